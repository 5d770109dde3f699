//! Holding a lock: the lease and its renewal, the signal that it is lost, and letting go.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use larder_core::observe::{self, Event, Subject};
use larder_core::{ClockRef, Ctx, Effect, Error, ErrorKind, Result, ambient};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::layout::{Found, Record};
use super::shared::{LetGo, Shared};
use crate::keepers::Kept;
use crate::renew::{Leased, margin};
use crate::runtime;

/// Writes that one renewal may take when an earlier one of its own, or a new connection, gets in between.
const RENEW_WRITES_MAX: usize = 4;

/// Why a lock is not held any more.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::{Lock, Loss};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::open(&store, "nightly").await?;
/// let guard = lock.try_acquire().await?.expect("it is new");
/// lock.force_release().await?;
/// # guard.renew().await.unwrap_err();
/// assert_eq!(guard.lost().await, Loss::Freed);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended without a renewal that was confirmed in time: the store did not answer, or this process stood still.
    LeaseOver,
    /// Another holder took the lock over.
    TakenOver,
    /// Somebody freed it by force.
    Freed,
    /// The record is gone: the store lost it or evicted it, or the lock was dropped.
    Gone,
    /// The guard itself let go.
    Released,
}

impl Loss {
    /// The reason in words.
    ///
    /// ```
    /// assert_eq!(larder_structures::lock::Loss::Freed.as_str(), "it was freed by force");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Loss::LeaseOver => "its lease ended without a renewal that was confirmed in time",
            Loss::TakenOver => "another holder took it over",
            Loss::Freed => "it was freed by force",
            Loss::Gone => "its record is gone from the store",
            Loss::Released => "it was released",
        }
    }

    /// The reason in a word or two, as events tell it.
    fn in_brief(self) -> &'static str {
        match self {
            Loss::LeaseOver => "lease over",
            Loss::TakenOver => "taken over",
            Loss::Freed => "freed",
            Loss::Gone => "gone",
            Loss::Released => "released",
        }
    }
}

/// How a release ended.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::{Lock, Released};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::open(&store, "nightly").await?;
/// let guard = lock.try_acquire().await?.expect("it is new");
/// lock.force_release().await?;
/// assert_eq!(guard.release().await?, Released::AlreadyLost);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// The lock was this guard's to the end, and is free.
    Released,
    /// It was lost before: the lease had ended, or another had it. Work done under it may have overlapped with another holder's.
    AlreadyLost,
}

/// A lock's term as last confirmed: until when it is held, if nothing renews it.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::Lock;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::options().lease(Duration::from_secs(10)).open(&store, "nightly").await?;
/// let guard = lock.try_acquire().await?.expect("it is new");
/// let lease = guard.lease();
/// assert_eq!(lease.token(), guard.fencing_token());
/// assert!(lease.remaining() <= Duration::from_secs(9)); // the margin is a tenth
/// assert!(lease.deadline() <= std::time::Instant::now() + Duration::from_secs(9));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Lease {
    token: u64,
    deadline: Duration,
    clock: ClockRef,
}

impl Lease {
    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// How long it lasts from now; zero when it is over.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_sub(self.clock.monotonic())
    }

    /// When it ends: the time the last confirmed write was sent, plus the lease, less the margin.
    pub fn deadline(&self) -> Instant {
        ambient::now() + self.remaining()
    }
}

/// A lock that is held, until it is released or lost.
///
/// While it lives, a task in the background renews the lease at a third of it. Dropping it releases the lock in the background on the
/// runtime it was taken on; if that has ended, or the release fails, the lease ends it.
///
/// **A guard is no proof.** A process may stand still between looking at its lease and writing; no lock over a network can
/// prevent that. What must not be overwritten by a holder of yesterday checks [`fencing_token`](LockGuard::fencing_token) itself and
/// refuses a smaller one than it has seen.
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// # use larder_structures::lock::{Lock, LockStatus};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let lock = Lock::open(&store, "nightly").await?;
/// {
///     let _guard = lock.try_acquire().await?.expect("it is new");
///     assert!(matches!(lock.status().await?, LockStatus::Held(_)));
/// } // released in the background
/// # Ok(()) }
/// ```
#[must_use = "a lock is released when its guard is dropped"]
pub struct LockGuard {
    term: Arc<Term>,
    kept: Kept<Term>,
    runtime: Handle,
    /// True when there is nothing left to give back.
    settled: bool,
}

/// One time that the lock is held.
pub(super) struct Term {
    shared: Arc<Shared>,
    token: u64,
    owner: u64,
    /// When the write was sent that took the lock.
    taken: Duration,
    /// Protects the order of writes, held across each: so an async mutex.
    writer: tokio::sync::Mutex<Writer>,
    /// Protects the lease, never held across an await: so a plain mutex.
    standing: Mutex<Standing>,
    /// Says that `standing.over` was set.
    over: watch::Sender<()>,
}

struct Writer {
    /// The record as last confirmed.
    record: Record,
    /// The same as it was read back; `None` when it must be read before the next write.
    found: Option<Found>,
    /// The highest beat that was sent. A write whose outcome is unknown keeps its beat: should it land late, it is not
    /// mistaken for a later one, which began the lease later.
    beat: u64,
}

struct Standing {
    /// When the last confirmed write was sent.
    sent: Duration,
    deadline: Duration,
    /// Once set, it stays.
    over: Option<Loss>,
}

impl Term {
    pub(super) fn new(shared: Arc<Shared>, record: Record, found: Option<Found>, sent: Duration) -> Term {
        let deadline = sent.saturating_add(shared.lease - margin(shared.lease));
        Term {
            token: record.token,
            owner: record.owner,
            taken: sent,
            shared,
            writer: tokio::sync::Mutex::new(Writer { beat: record.beat, record, found }),
            standing: Mutex::new(Standing { sent, deadline, over: None }),
            over: watch::Sender::new(()),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        // Each change is one assignment or two: whole after a panic, too.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is not held any more; `None` while it is. The clock decides, whether or not a timer fired yet.
    fn loss(&self) -> Option<Loss> {
        let mut standing = self.standing();
        if standing.over.is_none() && self.shared.clock.monotonic() >= standing.deadline {
            standing.over = Some(Loss::LeaseOver);
            self.over.send_replace(());
            drop(standing);
            self.tell(Loss::LeaseOver);
            return Some(Loss::LeaseOver);
        }
        standing.over
    }

    /// Tells that the term is over, once. Not with the lease locked: an observer may take its time.
    fn tell(&self, over: Loss) {
        observe::emit(|| {
            let time = self.shared.clock.monotonic().saturating_sub(self.taken);
            Event::Hold { subject: self.shared.subject(), time, end: over.in_brief() }
        });
    }

    /// Ends the term for a reason, unless it ended for another before; what it ended for.
    fn end(&self, loss: Loss) -> Loss {
        let earlier = self.loss();
        let mut standing = self.standing();
        let is_news = standing.over.is_none();
        let over = *standing.over.get_or_insert(earlier.unwrap_or(loss));
        self.over.send_replace(());
        drop(standing);
        if is_news {
            self.tell(over);
        }
        over
    }

    fn remaining(&self) -> Duration {
        self.standing().deadline.saturating_sub(self.shared.clock.monotonic())
    }

    /// A write that was sent at `sent` is confirmed. One that comes after the deadline does not bring the lease back.
    fn confirm(&self, sent: Duration) -> Result<()> {
        self.check()?;
        let mut standing = self.standing();
        standing.sent = sent;
        standing.deadline = sent.saturating_add(self.shared.lease - margin(self.shared.lease));
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.loss().map_or(Ok(()), |loss| Err(self.fenced(loss)))
    }

    fn fenced(&self, loss: Loss) -> Error {
        let detail =
            format!("the lock {} is not held any more with token {}: {}", self.shared.name, self.token, loss.as_str());
        Error::new(ErrorKind::Fenced, detail).store(self.shared.store.profile().store.clone())
    }

    fn lose(&self, loss: Loss) -> Error {
        self.fenced(self.end(loss))
    }

    /// The writer, once the write under way is over; it is not if a runtime has it that nobody drives any more.
    async fn writer(&self) -> Result<tokio::sync::MutexGuard<'_, Writer>> {
        let Shared { name, store, timeout, .. } = &*self.shared;
        tokio::time::timeout(*timeout, self.writer.lock()).await.map_err(|_| {
            let detail = format!("another renewal of the lock {name} is under way, and was for {timeout:?}");
            Error::new(ErrorKind::Timeout, detail).store(store.profile().store.clone())
        })
    }

    async fn renew(&self, ctx: Ctx) -> Result<()> {
        let mut writer = self.writer().await?;
        for _ in 0..RENEW_WRITES_MAX {
            self.check()?;
            let Some(found) = writer.found.take() else {
                let now = self.shared.read(ctx).await;
                self.adopt(&mut writer, now)?;
                continue;
            };
            writer.beat = writer.beat.wrapping_add(1);
            let next = writer.record.renewed(writer.beat);
            let sent = self.shared.clock.monotonic();
            let put = self.shared.put(ctx, Some(&found), &next).await;
            if let Ok(true) = put.landed {
                writer.record = next;
                if put.now.is_ok() {
                    self.adopt(&mut writer, put.now)?;
                }
                return self.confirm(sent);
            }
            match put.now {
                // Neither reply came: whether it landed shows at the next read.
                Err(error) => return Err(put.landed.err().unwrap_or(error)),
                now => self.adopt(&mut writer, now)?,
            }
            if let Err(error) = put.landed
                && !error.is_unknown()
            {
                return Err(error);
            }
        }
        Err(self.shared.conflict(RENEW_WRITES_MAX))
    }

    /// Goes on from the record as it was read, if it is still this term's; else the lock is lost.
    fn adopt(&self, writer: &mut Writer, now: Result<Option<Found>>) -> Result<()> {
        let found = match now {
            Ok(Some(found)) => found,
            Ok(None) => {
                let fenced = self.lose(Loss::Gone);
                observe::emit(|| Event::Loss { subject: self.shared.subject(), kind: ErrorKind::Lost });
                return Err(fenced);
            }
            Err(error) if error.kind() == ErrorKind::LayoutMismatch => return Err(self.lose(Loss::Gone)),
            Err(error) => return Err(error),
        };
        if found.record.is_held_by(self.owner) {
            writer.record = found.record.clone();
            writer.found = Some(found);
            return Ok(());
        }
        Err(self.lose(if found.record.held { Loss::TakenOver } else { Loss::Freed }))
    }

    /// Frees the record if it is still this term's.
    async fn let_go(&self) -> Result<LetGo> {
        // Not waited for: a renewal under way may be of a runtime that nobody drives any more. The record is then read.
        let start = self.writer.try_lock().ok().and_then(|mut writer| writer.found.take());
        self.shared.let_go(self.shared.ctx(), self.owner, start).await
    }
}

impl Leased for Term {
    fn lease(&self) -> Duration {
        self.shared.lease
    }

    fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    fn age(&self) -> Duration {
        let sent = self.standing().sent;
        self.shared.clock.monotonic().saturating_sub(sent)
    }

    fn left(&self) -> Duration {
        self.loss().map_or_else(|| self.remaining(), |_| Duration::ZERO)
    }

    fn subject(&self) -> Subject<'_> {
        self.shared.subject()
    }

    async fn renew(&self, ctx: Ctx) -> Result<()> {
        Term::renew(self, ctx).await
    }
}

impl LockGuard {
    pub(super) fn new(term: Term, runtime: Handle) -> LockGuard {
        let term = Arc::new(term);
        let kept = term.shared.keepers.keep(term.clone(), &runtime);
        LockGuard { term, kept, runtime, settled: false }
    }

    /// The fencing token: larger than that of every earlier holder. Send it along with every write to what the lock guards, and let
    /// that refuse a smaller one than it has seen.
    ///
    /// Each acquisition writes max(previous + 1, wall clock in microseconds): while the record survives tokens grow whatever the clocks
    /// do; after a loss of the record they grow if the wall clocks do, also where the record is lost and others are on their way to make it. A store that goes back to an older record, as at
    /// a failover, may give the same number again, where a clock that ran ahead had made it greater than the time: the next is one more than the last that is there.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// let token = guard.fencing_token();
    /// guard.release().await?;
    /// assert!(lock.try_acquire().await?.expect("it is free").fencing_token() > token);
    /// # Ok(()) }
    /// ```
    pub fn fencing_token(&self) -> u64 {
        self.term.token
    }

    /// Fails if the lease is over or the lock was lost, as far as this process knows. **Round trips: 0.**
    pub(crate) fn check(&self) -> Result<()> {
        self.term.check()
    }

    /// The random id of this acquisition, as [`status`](super::Lock::status) shows it.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::{Lock, LockStatus};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// let LockStatus::Held(holder) = lock.status().await? else { panic!("it is held") };
    /// assert_eq!(holder.owner, guard.owner());
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> u64 {
        self.term.owner
    }

    /// The lease as it stands now. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// assert!(guard.lease().remaining() > std::time::Duration::from_secs(28)); // of 30, less a margin of 1
    /// # Ok(()) }
    /// ```
    pub fn lease(&self) -> Lease {
        let deadline = match self.term.loss() {
            None => self.term.standing().deadline,
            Some(_) => Duration::ZERO,
        };
        Lease { token: self.term.token, deadline, clock: self.term.shared.clock.clone() }
    }

    /// True while the lease lasts by this process's clock and nothing is known to the contrary. False for ever after.
    /// **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// assert!(guard.is_held());
    /// # Ok(()) }
    /// ```
    pub fn is_held(&self) -> bool {
        self.term.loss().is_none()
    }

    /// Resolves, with the reason, when the lock is not held any more: lost, or released. It may be moved to another task.
    ///
    /// What others did (a takeover, a forced release, a loss) shows at the next renewal, so within a third of the lease. It takes a Tokio runtime, and panics when it is polled without one.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::{Lock, Loss};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// let lost = tokio::spawn(guard.lost());
    /// lock.force_release().await?;
    /// assert!(guard.renew().await.is_err());
    /// assert_eq!(lost.await.unwrap(), Loss::Freed);
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static {
        let term = self.term.clone();
        let mut over = term.over.subscribe();
        async move {
            loop {
                if let Some(loss) = term.loss() {
                    return loss;
                }
                // Not only the renewing task watches the deadline, since it may be gone with its runtime.
                _ = tokio::time::timeout(term.remaining(), over.changed()).await;
            }
        }
    }

    /// Runs `work` while the lock is held; when it is lost, drops it where it stands. **Round trips: 0**, renewals apart.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] when the lock was lost before `work` was done, also when the work's last step took longer than the
    /// lease: parts of it may have been done ([`Effect::Unknown`]), and may overlap with the next holder's. [`ErrorKind::Unsupported`] outside a Tokio runtime.
    ///
    /// ```
    /// # use larder_core::{ErrorKind, Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// assert_eq!(guard.run(async { 6 * 7 }).await?, 42);
    /// lock.force_release().await?;
    /// guard.renew().await.unwrap_err();
    /// let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Fenced);
    /// # Ok(()) }
    /// ```
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output> {
        runtime::current("the end of a lease is waited for by a timer,")?;
        let mut lost = pin!(self.lost());
        let mut work = pin!(work);
        let outcome = poll_fn(|cx| {
            // The loss is asked first, and by the clock: after a suspension the timer may not have fired yet.
            if let Poll::Ready(loss) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(loss));
            }
            if let Some(loss) = self.term.loss() {
                return Poll::Ready(Err(loss));
            }
            work.as_mut().poll(cx).map(|output| self.term.loss().map_or(Ok(output), Err))
        });
        outcome.await.map_err(|loss| self.term.fenced(loss).effect(Effect::Unknown))
    }

    /// Renews the lease now, apart from the renewals in the background. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if the lock is lost; [`ErrorKind::Unsupported`] outside a Tokio runtime. After any other error it is
    /// still held until [`lease`](LockGuard::lease) ends, and the background tries again.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// let deadline = guard.lease().deadline();
    /// guard.renew().await?;
    /// assert!(guard.lease().deadline() > deadline);
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self) -> Result<()> {
        runtime::current("a renewal waits for another that is under way")?;
        self.term.renew(self.term.shared.ctx()).await
    }

    /// Gives the lock back, if it is still this guard's. **Round trips: 1**, 2 when a renewal is under way or was lost.
    ///
    /// # Errors
    /// Those of the store, when it could not be settled whether the release landed ([`Effect::Unknown`]). It is then tried once
    /// more in the background, and at the latest the lease ends the lock. It is never another holder's that is freed.
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::{Lock, LockStatus, Released};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// let token = guard.fencing_token();
    /// assert_eq!(guard.release().await?, Released::Released);
    /// assert_eq!(lock.status().await?, LockStatus::Free { token });
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<Released> {
        let over = self.term.end(Loss::Released);
        self.kept.end();
        if is_anothers(over) {
            self.settled = true;
            return Ok(Released::AlreadyLost);
        }
        let let_go = self.term.let_go().await?;
        self.settled = true;
        Ok(match (over, let_go) {
            (Loss::Released, LetGo::Freed) => Released::Released,
            _ => Released::AlreadyLost,
        })
    }
}

/// True if the record is known to be this term's no more, so that there is nothing to give back.
fn is_anothers(over: Loss) -> bool {
    matches!(over, Loss::TakenOver | Loss::Freed | Loss::Gone)
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.kept.end();
        if self.settled || is_anothers(self.term.end(Loss::Released)) {
            return;
        }
        let term = self.term.clone();
        // If it fails, the lease ends the lock.
        self.runtime.spawn(async move { _ = term.let_go().await });
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.term.shared.name)
            .field("token", &self.term.token)
            .field("over", &self.term.loss())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{ManualClock, StoreExt, StoreRef};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::events::tests::{listen, told};
    use crate::lock::Lock;

    const SECOND: Duration = Duration::from_secs(1);

    /// A lock that is held, by a clock that is turned by hand; so is the store's, which is another.
    struct Scene {
        store: StoreRef,
        clock: Arc<ManualClock>,
        of_store: Arc<ManualClock>,
        lock: Lock,
        guard: LockGuard,
    }

    async fn held(name: &str) -> Scene {
        let [clock, of_store] = [(); 2].map(|()| Arc::new(ManualClock::at(1_000_000 * SECOND)));
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(of_store.clone()).build().unwrap());
        let lock = Lock::options().lease(30 * SECOND).clock(clock.clone()).open(&store, name).await.unwrap();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        Scene { store, clock, of_store, lock, guard }
    }

    /// What was told of how it ended.
    fn ends(name: &str) -> Vec<String> {
        told(name).into_iter().filter(|told| told.starts_with("held: ")).collect()
    }

    #[tokio::test]
    async fn how_a_lock_was_lost_is_told_once_and_in_brief() {
        listen();
        let scene = held("given-back").await;
        assert_eq!(ends("given-back"), [""; 0], "it is held");
        scene.guard.release().await.unwrap();
        assert_eq!(ends("given-back"), ["held: released"]);

        let scene = held("outlived").await;
        scene.clock.advance(31 * SECOND);
        assert!(!scene.guard.is_held() && !scene.guard.is_held());
        drop(scene.guard);
        assert_eq!(ends("outlived"), ["held: lease over"]);

        let scene = held("freed").await;
        scene.lock.force_release().await.unwrap();
        scene.guard.renew().await.unwrap_err();
        assert_eq!(ends("freed"), ["held: freed"]);

        let scene = held("gone").await;
        scene.store.delete(scene.lock.name().manifest_key().unwrap()).await.unwrap();
        scene.guard.renew().await.unwrap_err();
        assert_eq!(ends("gone"), ["held: gone"]);

        // The store's clock is ahead of its holder's.
        let scene = held("robbed").await;
        scene.of_store.advance(40 * SECOND);
        let other = Lock::open(&scene.store, "robbed").await.unwrap().try_acquire().await.unwrap().unwrap();
        scene.guard.renew().await.unwrap_err();
        assert_eq!(ends("robbed"), ["held: taken over"]);
        drop(other);
    }

    #[tokio::test]
    async fn a_lease_is_as_old_as_the_last_write_that_is_confirmed() {
        let Scene { clock, guard, lock, .. } = held("aged").await;
        clock.advance(3 * SECOND);
        assert_eq!(guard.term.age(), 3 * SECOND);
        guard.renew().await.unwrap();
        assert_eq!(guard.term.age(), Duration::ZERO);
        clock.advance(SECOND);
        lock.force_release().await.unwrap();
        guard.renew().await.unwrap_err();
        assert_eq!(guard.term.age(), SECOND, "a renewal that failed makes it no younger");
    }

    #[tokio::test]
    async fn what_goes_by_a_guard_is_refused_once_its_lock_is_lost() {
        let Scene { clock, guard, .. } = held("guarding").await;
        guard.check().unwrap();
        clock.advance(31 * SECOND);
        let error = guard.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert!(error.to_string().contains(Loss::LeaseOver.as_str()), "{error}");
    }
}
