//! A rebuild under way.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Subject;
use larder_core::text::Shown;
use larder_core::{Cas, Ctx, Effect, Error, ErrorKind, Item, Op, PutMode, Reply, Result, StoreExt};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::judge::Scribe;
use super::layout::{Content, Record};
use super::shared::{Shared, Try};
use super::{Cached, Source};
use crate::cell::Cell;
use crate::events;
use crate::renew::{self, Leased};
use crate::retry::Backoff;
use crate::runtime;

/// The first pause after a write that failed is at most this long.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Writes that one renewal may take when an earlier one of its own, or a new connection, gets in between.
const RENEW_WRITES_MAX: usize = 4;

/// The lease to rebuild an entry: this caller, and for the lease's time nobody else, makes the value. See [`Cache::lookup`](super::Cache::lookup).
///
/// It lasts for [`lease`](super::CacheOptions::lease) and is not renewed unless [asked for](Rebuild::renewing).
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
    term: Arc<Term>,
    /// Renews the lease, once that was asked for.
    keeper: Option<AbortHandle>,
    /// Where the lease is renewed, and given up if this is dropped.
    runtime: Option<Handle>,
    is_settled: bool,
}

/// What the caller and the task that renews know of the lease.
pub(super) struct Term {
    shared: Arc<Shared>,
    cell: Cell,
    key: Bytes,
    draw: u64,
    /// The stale value as it was read with the lease.
    kept: Option<Content>,
    /// When it was as old as it said, at the earliest, by the monotonic clock: not when the answer came, which is later.
    since: Duration,
    /// Held for a look or a change, never across an await.
    standing: Mutex<Standing>,
}

struct Standing {
    /// The token of the lease as it was last read.
    cas: Cas,
    /// When the last write of it was sent that is confirmed, by the monotonic clock.
    sent: Duration,
    /// Why the last renewal failed, if it did.
    fault: Option<Error>,
    /// Why the lease is known to be gone. Once set, it stays.
    gone: Option<Error>,
}

impl Rebuild {
    pub(super) fn new(term: Term) -> Rebuild {
        let runtime = Handle::try_current().ok();
        Rebuild { term: Arc::new(term), keeper: None, runtime, is_settled: false }
    }

    /// The same, renewed in the background until it is finished, given up or dropped: the rebuild may take longer than the lease, and others leave it alone all the
    /// same. **Round trips: 1** at each third of the lease, which sends the stale value once more where there is one.
    ///
    /// [`get_or_rebuild`](super::Cache::get_or_rebuild) does so. A renewal that fails is told to the observer as a retry and tried again; if none succeeds before
    /// the lease is over, another may begin the rebuild, and [`finish`](Rebuild::finish) tells why. A lease that was taken outside a Tokio runtime is not renewed.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Cache, cache::Lookup};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let options = Cache::options().lease(Duration::from_secs(1)).wait(Duration::ZERO);
    /// let cache = options.open_or_create(&store, "pages").await?;
    /// let Lookup::Rebuild(rebuild) = cache.lookup("/index").await? else { panic!("it is new") };
    /// let rebuild = rebuild.renewing();
    /// tokio::time::sleep(Duration::from_millis(1_500)).await;
    /// assert!(cache.lookup("/index").await.is_err()); // somebody still makes it
    /// assert!(rebuild.finish("<html>").await.is_kept());
    /// # Ok(())
    /// # }
    /// ```
    pub fn renewing(mut self) -> Rebuild {
        if let (None, Some(runtime)) = (&self.keeper, &self.runtime) {
            self.keeper = Some(runtime.spawn(renew::keep(self.term.clone())).abort_handle());
        }
        self
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
        &self.term.key
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
        self.term.kept.as_ref().map(|content| &content.value)
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
        self.stop_renewing();
        let outcome = self.term.write(&value).await;
        if outcome.as_ref().is_err_and(|error| !error.is_unknown() && error.kind() != ErrorKind::Conflict) {
            self.term.free().await;
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
        self.stop_renewing();
        self.term.free().await;
        self.is_settled = true;
    }

    /// A renewal that is under way may land yet, or not: whoever writes after it looks.
    fn stop_renewing(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
    }
}

impl Term {
    pub(super) fn new(
        shared: Arc<Shared>,
        cell: Cell,
        cas: Cas,
        key: Bytes,
        Try { draw, sent }: Try,
        kept: Option<Content>,
        since: Duration,
    ) -> Term {
        let standing = Mutex::new(Standing { cas, sent, fault: None, gone: None });
        Term { shared, cell, key, draw, kept, since, standing }
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
        let place = self.place()?;
        let terms = &self.shared.terms;
        let outcome = place.replace(&self.scribe().value(value.clone(), terms.ttl, terms.stale)).await;
        outcome.map_err(|error| if error.kind() == ErrorKind::Conflict { self.gone(error) } else { error })
    }

    pub(super) async fn free(&self) {
        if let Ok(place) = self.place() {
            _ = place.replace(&self.scribe().free(self.kept_now())).await;
        }
    }

    /// What is left of the stale value.
    fn kept_now(&self) -> Option<Content> {
        let now = self.shared.terms.clock.monotonic();
        self.kept.clone().and_then(|content| content.after(self.since, now))
    }

    fn scribe(&self) -> Scribe<'_> {
        self.shared.scribe(&self.key, self.draw)
    }

    /// Where the lease stands.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it is known to be gone.
    fn place(&self) -> Result<Place<'_>> {
        let standing = self.standing();
        match &standing.gone {
            Some(error) => Err(error.clone()),
            None => Ok(Place { shared: &self.shared, cell: &self.cell, cas: standing.cas, draw: self.draw }),
        }
    }

    /// Notes that the lease is gone; the error that says so from now on, with the reason if it could not be renewed.
    fn gone(&self, error: Error) -> Error {
        let mut standing = self.standing();
        let error = match standing.fault.take() {
            None => error,
            Some(fault) => {
                let detail = format!("{}; the last renewal of its lease had failed: {fault}", error.detail());
                Error::new(error.kind(), detail).effect(error.known_effect()).source(fault)
            }
        };
        standing.gone.get_or_insert(error).clone()
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        // Each change is an assignment: whole after a panic, too.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leased for Term {
    fn lease(&self) -> Duration {
        self.shared.terms.lease
    }

    fn timeout(&self) -> Duration {
        self.shared.terms.timeout
    }

    fn age(&self) -> Duration {
        let sent = self.standing().sent;
        self.shared.terms.clock.monotonic().saturating_sub(sent)
    }

    fn left(&self) -> Duration {
        let is_gone = self.standing().gone.is_some();
        if is_gone { Duration::ZERO } else { self.lease().saturating_sub(self.age()) }
    }

    fn subject(&self) -> Subject<'_> {
        self.shared.subject()
    }

    /// Writes the lease anew in its own place. **Round trips: 1**, more after faults and on a new connection.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it is gone; the store's.
    async fn renew(&self, ctx: Ctx) -> Result<()> {
        for _ in 0..RENEW_WRITES_MAX {
            let place = self.place()?;
            let record = self.scribe().lease(self.shared.terms.lease, self.kept_now());
            let sent = self.shared.terms.clock.monotonic();
            let wrote = self.cell.write(&self.shared.store, ctx, place.cas, record.encode(), record.ttl()).await;
            let is_landed = matches!(wrote.landed, Ok(true));
            match wrote.now.map(|now| place.ours(now)) {
                Ok(Ok(cas)) => self.standing().cas = cas,
                Ok(Err(error)) if error.kind() == ErrorKind::Conflict => {
                    events::conflict(self.subject());
                    return Err(self.gone(error));
                }
                // Its token is found by the next write.
                Ok(Err(_)) | Err(_) if is_landed => {}
                Ok(Err(error)) | Err(error) => return Err(wrote.landed.err().unwrap_or(error)),
            }
            if is_landed {
                let mut standing = self.standing();
                (standing.sent, standing.fault) = (sent, None);
                return Ok(());
            }
            if let Err(error) = wrote.landed
                && !error.is_unknown()
            {
                return Err(error);
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!("a lease changed under {RENEW_WRITES_MAX} writes; that is the limit"),
        ))
    }

    fn failed(&self, cause: Error) {
        events::retry(self.subject(), cause.kind());
        self.standing().fault = Some(cause);
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
                        // It may have landed, and been removed since.
                        return Err(if doubt.is_some() { error.effect(Effect::Unknown) } else { error });
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
        if item.as_ref().is_some_and(|item| item.value == bytes) {
            return Ok(None);
        }
        self.ours(item).map(Some)
    }

    /// The token of the lease in what was read.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it is not there any more.
    fn ours(&self, item: Option<Item>) -> Result<Cas> {
        let Some(item) = item else { return Err(superseded("it was invalidated, evicted, or outlived its lease")) };
        match Record::decode(&item.value) {
            Ok(record) if record.draw == self.draw && record.lease_ms > 0 => {
                item.cas.ok_or_else(|| Error::new(ErrorKind::Protocol, "the store read an item without its token"))
            }
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
        self.stop_renewing();
        if self.is_settled {
            return;
        }
        let Some(runtime) = self.runtime.clone().or_else(|| Handle::try_current().ok()) else { return };
        let term = self.term.clone();
        runtime.spawn(async move { term.free().await });
    }
}

impl fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rebuild")
            .field("name", &self.term.shared.name)
            .field("key", &Shown(&self.term.key))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
