//! A rebuild under way.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Cas, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, StoreExt};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::judge::Scribe;
use super::layout::{Content, Record};
use super::shared::Shared;
use super::{Cached, Source};
use crate::cell::Cell;
use crate::events;
use crate::retry::Backoff;
use crate::runtime;

/// The first pause after a write that failed is at most this long.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The lease to rebuild an entry: this caller, and for the lease's time nobody else, makes the value. See [`Cache::lookup`](super::Cache::lookup).
///
/// Dropped without [`finish`](Rebuild::finish), also by a panic, the lease is given up beside the caller; where there is no runtime for that
/// any more it ends with its time.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::{Cache, cache::Lookup};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let cache = Cache::open_or_create(&store, "pages").await?;
/// if let Lookup::Rebuild(rebuild) = cache.lookup("/index").await? {
///     let cached = rebuild.finish("<html>").await;
///     assert!(cached.is_kept());
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a lease that is dropped is given up"]
pub struct Rebuild {
    shared: Arc<Shared>,
    cell: Cell,
    /// The token of the lease as it was read.
    cas: Cas,
    key: Bytes,
    draw: u64,
    kept: Option<Content>,
    /// When the lease was read, by the monotonic clock.
    since: Duration,
    /// Where the lease is given up if this is dropped.
    runtime: Option<Handle>,
    is_settled: bool,
}

impl Rebuild {
    pub(super) fn new(
        shared: Arc<Shared>,
        cell: Cell,
        cas: Cas,
        key: Bytes,
        draw: u64,
        kept: Option<Content>,
    ) -> Rebuild {
        let since = shared.terms.clock.monotonic();
        let runtime = Handle::try_current().ok();
        Rebuild { shared, cell, cas, key, draw, kept, since, runtime, is_settled: false }
    }

    /// The key whose value is to be made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Cache, cache::Lookup};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let cache = Cache::open_or_create(&store, "pages").await?;
    /// let Lookup::Rebuild(rebuild) = cache.lookup("/index").await? else { panic!("it is new") };
    /// assert_eq!(rebuild.key(), b"/index");
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value that others are served meanwhile, if there is one.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Cache, cache::Lookup};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let cache = Cache::open_or_create(&store, "pages").await?;
    /// let Lookup::Rebuild(rebuild) = cache.lookup("/index").await? else { panic!("it is new") };
    /// assert_eq!(rebuild.stale(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stale(&self) -> Option<&Bytes> {
        self.kept.as_ref().map(|content| &content.value)
    }

    /// Caches the value and ends the lease. **Round trips: 1**, more only after faults.
    ///
    /// The value comes back in any case; [`Source::Rebuilt`] tells whether it was cached.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Cache, cache::Lookup};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let cache = Cache::open_or_create(&store, "pages").await?;
    /// let Lookup::Rebuild(rebuild) = cache.lookup("/index").await? else { panic!("it is new") };
    /// cache.invalidate("/index").await?; // what is being made is out of date already
    /// let cached = rebuild.finish("<html>").await;
    /// assert_eq!((&cached.value[..], cached.is_kept()), (&b"<html>"[..], false));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn finish(mut self, value: impl Into<Bytes>) -> Cached {
        let value = value.into();
        let outcome = self.write(&value).await;
        if outcome.as_ref().is_err_and(|error| !error.is_unknown() && error.kind() != ErrorKind::Conflict) {
            self.free().await;
        }
        self.is_settled = true;
        Cached { value, source: Source::Rebuilt(outcome) }
    }

    /// Gives the lease up, so that the next one who asks may rebuild at once. **Round trips: 1.** Should it fail, the lease ends with its time.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Cache, cache::Lookup};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let cache = Cache::open_or_create(&store, "pages").await?;
    /// let Lookup::Rebuild(rebuild) = cache.lookup("/index").await? else { panic!("it is new") };
    /// rebuild.give_up().await;
    /// assert!(matches!(cache.lookup("/index").await?, Lookup::Rebuild(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn give_up(mut self) {
        self.free().await;
        self.is_settled = true;
    }

    async fn write(&self, value: &Bytes) -> Result<()> {
        let max = self.shared.value_bytes_max(&self.key);
        if value.len() > max {
            let detail = format!(
                "the value of {} has {} bytes; the limit on this store is {max}: {}",
                Shown(&self.key),
                value.len(),
                Shown(value)
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        let terms = &self.shared.terms;
        self.place().replace(&self.scribe().value(value.clone(), terms.ttl, terms.stale)).await
    }

    async fn free(&mut self) {
        let elapsed = self.shared.terms.clock.monotonic().saturating_sub(self.since);
        let kept = self.kept.clone().and_then(|content| content.after(elapsed));
        _ = self.place().replace(&self.scribe().free(kept)).await;
    }

    fn scribe(&self) -> Scribe<'_> {
        self.shared.scribe(&self.key, self.draw)
    }

    fn place(&self) -> Place<'_> {
        Place { shared: &self.shared, cell: &self.cell, cas: self.cas, draw: self.draw }
    }
}

/// A lease that is to be replaced.
struct Place<'a> {
    shared: &'a Shared,
    cell: &'a Cell,
    cas: Cas,
    draw: u64,
}

impl Place<'_> {
    /// Writes a record in the place of the lease, and of nothing else: a lease that was invalidated, evicted or followed by another has
    /// another token, or none. A write whose outcome is unknown is looked up, and tried again as long as the lease stands: whichever of the two
    /// lands, the other cannot, and they are the same.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where the lease is gone; the store's; with [`Effect::Unknown`] where it could not be found out in time.
    async fn replace(mut self, record: &Record) -> Result<()> {
        let (bytes, ttl) = (record.encode(), record.ttl());
        let until = Instant::now() + self.shared.terms.timeout;
        let ctx = self.shared.ctx();
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut doubt = None;
        loop {
            let put = Op::put(self.cell.key.clone(), PutMode::Cas(self.cas), bytes.clone(), ttl);
            let mut fault = match self.shared.store.run_one(ctx, put.clone()).await {
                Ok(Reply::Stored) => return Ok(()),
                // The token is another's, or died with its connection: look.
                Ok(Reply::Exists | Reply::Miss | Reply::NotStored) => None,
                Ok(other) => return Err(crate::manifest::unexpected(&put, &other)),
                Err(error) if error.is_unknown() => {
                    doubt = Some(error.clone());
                    Some(error)
                }
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => Some(error),
                Err(error) => return Err(doubt.unwrap_or(error)),
            };
            loop {
                match self.look(ctx, &bytes).await {
                    Ok(Some(cas)) => {
                        self.cas = cas;
                        break;
                    }
                    Ok(None) => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Conflict => {
                        events::conflict(self.shared.subject());
                        return Err(error);
                    }
                    Err(error) => fault = Some(error),
                }
                if !self.may_go_on(until, &mut backoff).await {
                    break;
                }
            }
            if !self.may_go_on(until, &mut backoff).await {
                return Err(doubt.or(fault).unwrap_or_else(out_of_time));
            }
            events::retry(self.shared.subject(), fault.map_or(ErrorKind::Conflict, |error| error.kind()));
        }
    }

    /// The token of the lease; `None` if what was to be written is there.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it is neither; the store's.
    async fn look(&self, ctx: Ctx, bytes: &Bytes) -> Result<Option<Cas>> {
        let item = self.cell.read(&self.shared.store, ctx).await.map_err(|error| error.effect(Effect::NotApplied))?;
        let Some(item) = item else { return Err(superseded("it was invalidated, evicted, or outlived its lease")) };
        if item.value == bytes {
            return Ok(None);
        }
        match Record::decode(&item.value) {
            Ok(record) if record.draw == self.draw && record.lease_ms > 0 => item
                .cas
                .map(Some)
                .ok_or_else(|| Error::new(ErrorKind::Protocol, "the store read an item without its token")),
            _ => Err(superseded("it outlived its lease or was invalidated, and somebody else began another")),
        }
    }

    /// Pauses; false if there is no time left, or nothing to pause with.
    async fn may_go_on(&self, until: Instant, backoff: &mut Backoff) -> bool {
        if Instant::now() >= until || runtime::current("a write is tried again").is_err() {
            return false;
        }
        tokio::time::sleep(backoff.next_pause()).await;
        true
    }
}

fn superseded(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the rebuild came too late to be cached: {why}"))
}

fn out_of_time() -> Error {
    Error::new(ErrorKind::Timeout, "the value was not cached in time")
}

impl Drop for Rebuild {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let Some(runtime) = self.runtime.clone().or_else(|| Handle::try_current().ok()) else { return };
        let elapsed = self.shared.terms.clock.monotonic().saturating_sub(self.since);
        let kept = self.kept.take().and_then(|content| content.after(elapsed));
        let record = self.scribe().free(kept);
        let (shared, cell, cas, draw) = (self.shared.clone(), self.cell.clone(), self.cas, self.draw);
        runtime.spawn(async move { _ = Place { shared: &shared, cell: &cell, cas, draw }.replace(&record).await });
    }
}

impl fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rebuild")
            .field("name", &self.shared.name)
            .field("key", &Shown(&self.key))
            .finish_non_exhaustive()
    }
}
