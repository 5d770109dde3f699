//! Who holds a lock, and freeing it by force.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use larder_core::Result;

use super::Lock;
use super::layout::{Found, Record};
use super::shared::Shared;
use super::sight::granularity;
use crate::ids::random_id;

/// Writes that a forced release may take when the holder's renewals get in between.
const FORCE_WRITES_MAX: usize = 8;

/// What is known of a lock.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::{Lock, LockStatus};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::open(&store, "nightly").await?;
/// match lock.status().await? {
///     LockStatus::Free { token } => println!("free, last token {token}"),
///     LockStatus::Held(holder) => println!("held by {:?}", holder.label),
///     _ => println!("absent (never created, or lost)"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// There is no record: the lock was never taken, or its record was lost. Only a store that survives its crashes can rule
    /// the second out.
    Absent,
    /// Nobody holds it.
    Free {
        /// The token of the last holder.
        token: u64,
    },
    /// Somebody holds it, or died holding it.
    Held(Holder),
}

/// Who holds a lock.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::{Lock, LockStatus};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::open(&store, "nightly").await?;
/// let guard = lock.try_acquire().await?.expect("it is new");
/// let LockStatus::Held(holder) = lock.status().await? else { panic!("it is held") };
/// assert!(holder.until.expect("the store has a clock") > holder.since);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The random id of the acquisition.
    pub owner: u64,
    /// What the holder calls itself; may be empty.
    pub label: Bytes,
    /// The fencing token.
    pub token: u64,
    /// Since when, by the holder's wall clock.
    pub since: SystemTime,
    /// How long the lock outlives a renewal.
    pub lease: Duration,
    /// The least time since the last renewal, by the store's clock; `None` where it cannot tell.
    pub age: Option<Duration>,
    /// Until when at the latest, unless renewed: by the store's clock, told in this process's wall time; `None` where the store cannot
    /// tell. In the past for a holder that is dead.
    pub until: Option<SystemTime>,
}

impl Holder {
    /// True if the lease is over by the store's clock: the next one who tries takes the lock.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::{Lock, LockStatus};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::options().label("web-3/4711").open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// let LockStatus::Held(holder) = lock.status().await? else { panic!("it is held") };
    /// assert_eq!((&holder.label[..], holder.token), (&b"web-3/4711"[..], guard.fencing_token()));
    /// assert!(!holder.is_dead());
    /// # Ok(()) }
    /// ```
    pub fn is_dead(&self) -> bool {
        self.age.is_some_and(|age| age >= self.lease)
    }
}

impl Lock {
    /// Who holds the lock, since when and until when. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](larder_core::ErrorKind::Lost) if this handle saw a record and there is none. Those of the store.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::{Lock, LockStatus};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// assert_eq!(lock.status().await?, LockStatus::Absent);
    /// # Ok(()) }
    /// ```
    pub async fn status(&self) -> Result<LockStatus> {
        let view = self.shared.read(self.shared.ctx()).await?;
        self.shared.status(view.as_ref())
    }

    /// Frees the lock, whoever holds it; what it was before. **Round trips: 2**, 1 if there is nothing to free.
    ///
    /// The holder learns at its next renewal, within a third of its lease; until then it goes on working. Only a resource that
    /// checks the fencing token is safe from it. The token is kept, so the next holder's is larger.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](larder_core::ErrorKind::Lost) as [`status`](Lock::status);
    /// [`ErrorKind::Conflict`](larder_core::ErrorKind::Conflict) when the record changed under eight writes in a row. Those of the
    /// store; with [`Effect::Unknown`](larder_core::Effect::Unknown), the lock may have been freed or may yet be. So it is where a reply was lost and another
    /// has the lock by then: who had it before may have been freed, and the other is let alone.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::{Lock, LockStatus};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// assert!(matches!(lock.force_release().await?, LockStatus::Held(_)));
    /// assert!(matches!(lock.status().await?, LockStatus::Free { .. }));
    /// assert!(lock.try_acquire().await?.expect("it is free").fencing_token() > guard.fencing_token());
    /// # Ok(()) }
    /// ```
    pub async fn force_release(&self) -> Result<LockStatus> {
        let shared = &self.shared;
        let ctx = shared.ctx();
        // Its own owner, so that the holder knows that it was not its own release, and this knows its own write again.
        let owner = random_id();
        let mut view = shared.read(ctx).await?;
        let mut before = shared.status(view.as_ref())?;
        let mut doubt = None;
        for _ in 0..FORCE_WRITES_MAX {
            let Some(found) = view.take_if(|found| found.record.held) else {
                return Ok(before);
            };
            let freed = Record { owner, ..found.record.freed() };
            view = match shared.free(ctx, &found, &freed, &mut doubt).await? {
                ControlFlow::Break(()) => return Ok(before),
                ControlFlow::Continue(now) => now,
            };
            // Where a reply was lost, the holder that was found may have been freed before somebody else took the lock: nobody asked to free that one, too.
            let is_of = |owner: u64| view.as_ref().is_none_or(|now| now.record.owner == owner);
            if !is_of(owner) && !is_of(found.record.owner) && doubt.is_some() {
                break;
            }
            // An earlier write of this call that landed late freed what `before` says.
            if view.as_ref().is_none_or(|found| found.record.owner != owner) {
                before = shared.status(view.as_ref())?;
            }
        }
        Err(doubt.unwrap_or_else(|| shared.conflict(FORCE_WRITES_MAX)))
    }
}

impl Shared {
    fn status(&self, view: Option<&Found>) -> Result<LockStatus> {
        let Some(found) = view else {
            if self.sight().knows_record() {
                return Err(self.lost(""));
            }
            return Ok(LockStatus::Absent);
        };
        let Record { held, token, owner, since_us, ref label, .. } = found.record;
        if !held {
            return Ok(LockStatus::Free { token });
        }
        let profile = self.store.profile();
        let lease = found.record.lease();
        let age = if profile.remaining_ttl { found.age_min(granularity(&profile)) } else { None };
        let until = age.and_then(|age| at((self.clock.wall() + lease).saturating_sub(age)));
        let since = at(Duration::from_micros(since_us)).unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(LockStatus::Held(Holder { owner, label: label.clone(), token, since, lease, age, until }))
    }
}

/// A time since the Unix epoch, if the system can express it.
fn at(wall: Duration) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(wall)
}
