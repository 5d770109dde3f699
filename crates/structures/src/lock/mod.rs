//! A lock with a lease, a fencing token, and a signal when it is lost.
//!
//! ```
//! use larder_core::{Result, StoreRef};
//! use larder_structures::lock::Lock;
//! use std::time::Duration;
//!
//! # async fn write_report(_token: u64) {}
//! async fn nightly(store: &StoreRef) -> Result<()> {
//!     let lock = Lock::options().lease(Duration::from_secs(10)).label("worker-7").open(store, "nightly").await?;
//!     let guard = lock.acquire(Duration::from_secs(60)).await?;
//!     guard.run(write_report(guard.fencing_token())).await?; // dropped midway if the lock is lost
//!     guard.release().await?;
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
//! # nightly(&(std::sync::Arc::new(larder_store_memory::MemoryStore::new()) as StoreRef)).await }
//! ```
//!
//! # How it works
//!
//! The lock is one record under the name's manifest key: free or held, token, owner, beat, lease, since when, label. Every write is
//! conditional on the record as it was read, and is read back in the same round trip; none is blind, so nobody frees another's lock.
//! The record outlives its holders: a release keeps it, so that tokens grow. The store forgets it 30 days after its last write.
//!
//! - **Taking** writes the next token: max(previous + 1, wall clock in microseconds). Where there is no record, one is added first, and then
//!   written over with what the wall clock shows by then, once it has gone on: whoever had the lock before, and whose record was lost, may have been
//!   given a token since this one looked.
//! - **Renewing**: a third of a lease after the last confirmed write, in the background. A lease ends, for its holder, at the time
//!   its last confirmed write was *sent*, plus the lease, less a margin (a tenth, at most 1 s). The deadline is judged by the
//!   clock at each question, so it holds after the process stood still, too.
//! - **A dead holder** is known by the record's age. The store's remaining life of the item tells it by the store's clock: a fresh
//!   process takes over at once. Where the store cannot tell, a record that did not change for one lease of its holder, by the
//!   waiter's own clock, is dead.
//! - **A lost record** (eviction, restart, drop): its holder learns at the next renewal. A handle that saw the record waits one
//!   lease before it makes a new one; a fresh process cannot know, and makes it at once.
//!
//! # What it guarantees
//!
//! | store | at most one holder in time | tokens grow |
//! |---|---|---|
//! | memory | while the process lives, unless the store evicts | always, in one life of the store |
//! | memcached | unless a server restarts, evicts, or itself stands still for longer than a lease | while the record survives; after a loss, with the wall clocks |
//! | without cas or expiry (MemcacheDB) | refused at open: [`ErrorKind::Unsupported`] | |
//!
//! "In time" means: by the leases, with clocks whose *rates* agree within the margin; they need not show the same time. A process
//! that stands still in the middle of its work still overlaps with the next holder when it goes on: **critical sections can
//! overlap in every such lock, on every store.** Only the fencing token, checked by the resource that is written to, stops a stale write.
//! Over 25 s of 6 clients with stalls past the lease, a resource that checked accepted none of them; a lock of `add` and a blind
//! delete let 42 of 937 through.
//!
//! There is no order among waiters of different handles, and a handle is not reentrant. On several memcached servers the record is on
//! one of them, by the list of servers: another list would be another lock, so a client that connects with another list is refused
//! (unless it asks for `fleet=claim` or `fleet=ignore`, or was connected to one of the servers alone before they were a fleet).
//!
//! # Round trips
//!
//! open 1 · acquire 1 on the handle that wrote last (or while nobody wrote since it looked), else 2; 1 more where there is no record ·
//! renew 1 · release 1 · status 1 · force release 2. So a one-shot `open, acquire, release` costs 3, and the first one of a name 4.

mod acquire;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod guard;
mod layout;
mod shared;
mod sight;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{ClockRef, Error, ErrorKind, Profile, Result, StoreRef, SystemClock, TtlSupport};

use self::layout::{LABEL_BYTES_MAX, LEASE_MAX, LEASE_MIN, RECORD_TTL};
use self::shared::Shared;
use crate::name::Name;
use crate::{manifest, timeout};

pub use guard::{Lease, LockGuard, Loss, Released};
pub(crate) use layout::{LAYOUT, describe};
pub use status::{Holder, LockStatus};

/// A lock, opened. Cheap to clone; clones share what they saw, so that a release by one makes the next acquire of another cheap.
///
/// See the [module](self) for what it guarantees on which store.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::Lock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::open(&store, "nightly").await?;
/// if let Some(guard) = lock.try_acquire().await? {
///     // … the work …
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lock {
    shared: Arc<Shared>,
}

/// How a lock is opened.
///
/// ```
/// # use larder_core::{ErrorKind, Result, StoreRef};
/// # use larder_structures::lock::Lock;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::options().lease(Duration::from_secs(5)).label("web-3/4711").open(&store, "nightly").await?;
/// let error = Lock::options().lease(Duration::from_millis(99)).open(&store, "nightly").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::BadInput);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until something is opened with them"]
pub struct LockOptions {
    lease: Duration,
    label: Bytes,
    timeout: Duration,
    clock: ClockRef,
    existing: bool,
}

impl LockOptions {
    /// How long the lock outlives its holder's last renewal: 100 ms to 1 day, whole milliseconds; 30 s by default.
    ///
    /// A holder that dies blocks the others that long. A holder that cannot reach the store for nine tenths of it loses the lock.
    ///
    /// ```
    /// # use larder_structures::lock::Lock;
    /// # use std::time::Duration;
    /// let options = Lock::options().lease(Duration::from_millis(1_500));
    /// ```
    pub fn lease(mut self, lease: Duration) -> LockOptions {
        self.lease = lease;
        self
    }

    /// Who holds it, for people who ask [`status`](Lock::status): at most 64 bytes, such as `host/pid`; empty by default.
    ///
    /// ```
    /// # use larder_structures::lock::Lock;
    /// # use std::time::Duration;
    /// let options = Lock::options().label(format!("web-3/{}", std::process::id()));
    /// ```
    pub fn label(mut self, label: impl AsRef<[u8]>) -> LockOptions {
        self.label = Bytes::copy_from_slice(label.as_ref());
        self
    }

    /// How long one method may take, retries included; 5 s by default, a day at the most. [`acquire`](Lock::acquire) takes its `wait` besides, and
    /// [`try_acquire`](Lock::try_acquire) the time it must observe.
    ///
    /// ```
    /// # use larder_structures::lock::Lock;
    /// # use std::time::Duration;
    /// let options = Lock::options().timeout(Duration::from_millis(500));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> LockOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// The clock of leases and tokens; the system's by default. Pauses are the runtime's, so another clock should run at its pace.
    ///
    /// ```
    /// # use larder_structures::lock::Lock;
    /// # use std::time::Duration;
    /// let options = Lock::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(mut self, clock: ClockRef) -> LockOptions {
        self.clock = clock;
        self
    }

    /// Opens only a lock that has a record: one that somebody has taken, and that is neither dropped nor lost since. Off by default, as whoever takes a lock first
    /// makes its record. It is asked of the read that opening is, so it costs no round trip; a record that is lost behind it is one as ever.
    ///
    /// ```
    /// # use larder_core::{ErrorKind, Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let error = Lock::options().existing().open(&store, "nihgtly").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Absent);
    /// # Ok(()) }
    /// ```
    pub fn existing(mut self) -> LockOptions {
        self.existing = true;
        self
    }

    /// Opens the lock; makes nothing. **Round trips: 1.**
    ///
    /// # Errors
    /// - [`ErrorKind::Absent`] for a lock without a record, if only an [`existing`](LockOptions::existing) one is opened.
    /// - [`ErrorKind::BadInput`] for a name of 0 or more than 64 bytes, a lease or a label out of its limits, a timeout of 0.
    /// - [`ErrorKind::Unsupported`] on a store without conditional writes or without lives of 30 days.
    /// - [`ErrorKind::LayoutMismatch`] where the name holds something else.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::options().label("web-3/4711").open(&store, "nightly").await?;
    /// # Ok(()) }
    /// ```
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Lock> {
        let name = Name::new(name)?;
        self.check()?;
        check_profile(&name, &store.profile())?;
        let existing = self.existing;
        let shared = Shared::new(store.clone(), name, self)?;
        let found = shared.read(shared.ctx()).await?;
        if existing && found.is_none() {
            return Err(manifest::absent(store, &shared.name));
        }
        Ok(Lock { shared: Arc::new(shared) })
    }

    fn check(&self) -> Result<()> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            return bad(format!("a lease is {:?}; it takes 100 ms to 1 day", self.lease));
        }
        if self.label.len() > LABEL_BYTES_MAX {
            return bad(format!("a label has {} bytes; the limit is {LABEL_BYTES_MAX}", self.label.len()));
        }
        timeout::check(self.timeout)
    }
}

/// Fails unless the store has what a lock needs.
fn check_profile(name: &Name, profile: &Profile) -> Result<()> {
    let missing = if !profile.cas {
        "conditional writes (cas)"
    } else if profile.ttl == TtlSupport::None || profile.ttl_max < RECORD_TTL {
        "lives of 30 days (expiry)"
    } else {
        return Ok(());
    };
    let detail = format!("the lock {name} needs {missing}, which this store does not have");
    Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()))
}

impl Lock {
    /// The options, at their defaults: a lease of 30 s, no label, a timeout of 5 s, the system's clock.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::options().lease(std::time::Duration::from_secs(5)).open(&store, "nightly").await?;
    /// # Ok(()) }
    /// ```
    pub fn options() -> LockOptions {
        LockOptions {
            lease: Duration::from_secs(30),
            label: Bytes::new(),
            timeout: Duration::from_secs(5),
            clock: SystemClock::shared(),
            existing: false,
        }
    }

    /// Opens the lock with the default options; makes nothing. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`LockOptions::open`].
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, [0xff, 0]).await?; // a name is any bytes
    /// # Ok(()) }
    /// ```
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Lock> {
        Lock::options().open(store, name).await
    }

    /// The name.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(Lock::open(&store, "nightly").await?.name().as_bytes(), b"nightly");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &Name {
        &self.shared.name
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.shared.name)
            .field("lease", &self.shared.lease)
            .field("store", &self.shared.store.profile().store)
            .finish_non_exhaustive()
    }
}
