//! Taking a lock: looking, judging, writing, and settling what a lost reply left open.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::{self, Event, WaitEnd};
use larder_core::{Ctx, Effect, Error, ErrorKind, Result};
use tokio::runtime::Handle;

use super::guard::{LockGuard, Term};
use super::layout::{Found, Record};
use super::sight::Verdict;
use super::{Lock, shared::Shared};
use crate::events::{self, Vain, Waiting};
use crate::ids::random_id;
use crate::retry::Backoff;
use crate::runtime;
use crate::wait::{self, Watched};

/// Writes that one try may take when others, or breaking connections, get in between.
const TAKE_WRITES_MAX: usize = 4;

/// The bound of the first pause between two looks at a lock that somebody holds; it doubles.
const POLL_FIRST: Duration = Duration::from_millis(4);

/// The longest pause between two looks.
const POLL_MAX: Duration = Duration::from_millis(250);

/// The shortest pause between two looks where the store's or the runtime's clock is coarse.
const POLL_MIN: Duration = Duration::from_millis(1);

/// How long a try observes a record whose age the store cannot tell.
pub(super) const TRY_OBSERVE_MAX: Duration = Duration::from_secs(60);

/// Looks at a record during a lease: a live holder renews at a third of it, so the second or third look shows a change.
const OBSERVE_LOOKS: u32 = 3;

impl Lock {
    /// Takes the lock if nobody has it; `None` if somebody does.
    ///
    /// A holder that died is known by the store's clock, where it can tell a record's age, and its lock is taken over at once.
    /// Where the store cannot tell (memcached's classic dialect), this observes the record for one lease of its holder, at most 60 s
    /// a call, unless this handle saw it that long ago already: a record that does not change is dead, one that does is `None`.
    ///
    /// **Round trips: 1** if nobody wrote the record since this handle last read or wrote it, else 2 (1 for `None`); 1 more where there is no
    /// record, and 1 a look where it must observe.
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`]: this handle saw the record, and it is gone. Its holder may live, so nothing is taken for one lease
    ///   from the first look that missed it; then a try makes a new one.
    /// - [`ErrorKind::Conflict`]: four writes in a row found the record changed.
    /// - Of the store's errors, one with [`Effect::Unknown`] means that the lock may have been taken; it is then given back in the
    ///   background, and at the latest its lease ends.
    /// - [`ErrorKind::Unsupported`] outside a Tokio runtime; its timer must be enabled (without one Tokio panics).
    ///
    /// ```
    /// # use larder_core::{Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.try_acquire().await?.expect("it is new");
    /// assert!(lock.try_acquire().await?.is_none());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let waiting = Waiting::begin(self.shared.subject(), &self.shared.clock);
        let outcome = self.try_once().await;
        waiting.end(match &outcome {
            Ok(Some(_)) => WaitEnd::Got,
            Ok(None) => WaitEnd::Busy,
            Err(_) => WaitEnd::Failed,
        });
        outcome
    }

    async fn try_once(&self) -> Result<Option<LockGuard>> {
        let mut bid = Bid::new(self)?;
        let mut first_look: Option<Bytes> = None;
        let mut budget = TRY_OBSERVE_MAX;
        // One look more than a lease has, since pauses may end a little early by another clock.
        for _ in 0..=OBSERVE_LOOKS + 1 {
            let (left, found) = match bid.step().await? {
                Step::Taken(guard) => return Ok(Some(guard)),
                Step::Gone { left } => {
                    let advice =
                        format!("; a live holder may be without it, so it is not made anew for another {left:?}");
                    return Err(bid.shared().lost(&advice));
                }
                Step::Busy { by_store: true, .. } => return Ok(None),
                Step::Busy { left, found, by_store: false } => (left, found),
            };
            if budget.is_zero() || *first_look.get_or_insert_with(|| found.value.clone()) != found.value {
                return Ok(None);
            }
            let lease = found.record.lease();
            let pause = left.min(lease / OBSERVE_LOOKS + lease / 10).max(POLL_MIN).min(budget);
            budget -= pause;
            tokio::time::sleep(pause).await;
        }
        Ok(None)
    }

    /// Takes the lock, waiting for it as long as `wait`.
    ///
    /// Where the store tells of changes (`watch` in the profile: Redis and Valkey do), the wait ends as the lock is let go. Elsewhere it
    /// polls, with pauses of full jitter, at most 250 ms. Of the tasks that wait on one handle and its clones one polls, the others
    /// queue behind it in order; between handles there is no order. A record that is lost while this waits is made anew after one
    /// lease. Faults of the store that leave nothing undone (unreachable, no answer) are ridden out within `wait`. The exchange
    /// under way when `wait` ends may take one `timeout` longer.
    ///
    /// A future that is dropped gives back what it may have taken in the background; if that fails, the lease ends it.
    /// A handle is not reentrant: who holds the lock and waits for it waits in vain.
    ///
    /// **Round trips: 1** if nobody wrote the record since this handle last read or wrote it, else 2; 1 more where there is no record; while it
    /// waits, 1 a look.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when the wait is over, naming the holder; else as [`try_acquire`](Lock::try_acquire), but for `Lost`.
    ///
    /// ```
    /// # use larder_core::{ErrorKind, Result, StoreRef};
    /// # use larder_structures::lock::Lock;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let lock = Lock::open(&store, "nightly").await?;
    /// let guard = lock.acquire(Duration::from_secs(10)).await?;
    /// let error = lock.acquire(Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Timeout);
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, wait: Duration) -> Result<LockGuard> {
        let waiting = Waiting::begin(self.shared.subject(), &self.shared.clock);
        waiting.brought(self.wait_for(wait).await)
    }

    async fn wait_for(&self, wait: Duration) -> Result<LockGuard, Vain> {
        let shared = &self.shared;
        let mut bid = Bid::new(self)?;
        let start = shared.clock.monotonic();
        let left = || wait.saturating_sub(shared.clock.monotonic().saturating_sub(start));
        let Ok(_turn) = tokio::time::timeout(wait, shared.turn.lock()).await else {
            let vain = over(shared, wait, "other tasks wait for it on this handle");
            // Nobody may have it: whoever has the turn gets no answer.
            return Err(if shared.is_failing.load(Ordering::Relaxed) { vain.error.into() } else { vain });
        };
        let mut backoff = Backoff::new(POLL_FIRST, POLL_MAX);
        loop {
            let step = bid.step().await;
            shared.is_failing.store(step.is_err(), Ordering::Relaxed);
            let due = match &step {
                Ok(Step::Taken(_)) => Duration::ZERO,
                Ok(Step::Busy { left, .. } | Step::Gone { left }) => *left,
                Err(error) if is_passing(error) => POLL_MAX,
                Err(_) => Duration::ZERO,
            };
            let left = left().min(due);
            if left.is_zero() {
                return match step? {
                    Step::Taken(guard) => Ok(guard),
                    Step::Busy { found, .. } => Err(over(shared, wait, &held_by(&found))),
                    Step::Gone { .. } => {
                        Err(over(shared, wait, "its record was lost, and a live holder may be without it"))
                    }
                };
            }
            if let Err(error) = &step {
                events::retry(shared.subject(), error.kind());
            }
            let poll = backoff.next_pause().max(POLL_MIN);
            // Ends early when this handle lets go.
            let watched = step.ok().map(|step| shared.watched(&step));
            wait::either(shared.freed.notified(), wait::changed(&shared.store, watched, poll, left)).await;
        }
    }
}

impl Shared {
    /// What a wait that follows on a step depends on.
    fn watched(&self, step: &Step) -> Watched {
        let seen = match step {
            Step::Busy { found, .. } => Some(found.cas),
            Step::Taken(_) | Step::Gone { .. } => None,
        };
        Watched::new(&self.cell.read_op(), seen)
    }
}

/// True for faults that may be over at the next look. One whose effect is unknown is among them: the bid knows its own writes.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict)
}

fn over(shared: &Shared, wait: Duration, why: &str) -> Vain {
    let detail = format!("the lock {} was not free within {wait:?}: {why}", shared.name);
    Vain::busy(Error::new(ErrorKind::Timeout, detail).store(shared.store.profile().store.clone()))
}

fn held_by(found: &Found) -> String {
    let Record { owner, label, token, .. } = &found.record;
    format!("{} (owner {owner:016x}) holds it with token {token}", larder_core::text::Shown(label))
}

/// What a look at the lock, and a write where it seemed worth one, came to.
enum Step {
    Taken(LockGuard),
    Busy { left: Duration, by_store: bool, found: Found },
    Gone { left: Duration },
}

/// One acquisition under way. All its writes carry one owner that nobody else has, so that it knows them again.
struct Bid {
    lock: Lock,
    runtime: Handle,
    owner: u64,
    beat: u64,
    /// A write was sent and not settled: it may have landed, or may yet.
    open: bool,
    /// It found no record once, and sent one. That is no taking yet: its token is of before it was sent, and the record of somebody who has taken the lock since, with that token or a higher one, may
    /// have been lost again by the time it lands. So it is written over, with what the clock shows then.
    has_added: bool,
}

impl Bid {
    fn new(lock: &Lock) -> Result<Bid> {
        let runtime = runtime::current("a lock renews its lease in the background")?;
        Ok(Bid { lock: lock.clone(), runtime, owner: random_id(), beat: 0, open: false, has_added: false })
    }

    fn shared(&self) -> &Shared {
        &self.lock.shared
    }

    async fn step(&mut self) -> Result<Step> {
        let ctx = self.shared().ctx();
        let bet = if self.open { None } else { self.shared().sight().bet() };
        let mut view = match bet {
            Some(view) => view,
            None => self.shared().read(ctx).await.map_err(|error| self.fault(error))?,
        };
        for _ in 0..TAKE_WRITES_MAX {
            let is_ours = view.as_ref().is_some_and(|found| found.record.is_held_by(self.owner));
            // A write that was given up on landed after all: it is written over, so that the lease begins anew.
            self.open |= is_ours;
            match (self.shared().judge(view.as_ref()), &view) {
                (Verdict::Busy { left, by_store }, Some(found)) if !is_ours => {
                    self.open = false;
                    return Ok(Step::Busy { left, by_store, found: found.clone() });
                }
                (Verdict::Gone { left }, _) => return Ok(Step::Gone { left }),
                _ => {}
            }
            match self.take(ctx, view).await? {
                Ok(guard) => return Ok(Step::Taken(guard)),
                Err(now) => view = now,
            }
        }
        Err(self.fault(self.shared().conflict(TAKE_WRITES_MAX)))
    }

    /// Writes this bid's record over what was seen: the guard, or what is there instead.
    async fn take(&mut self, ctx: Ctx, view: Option<Found>) -> Result<Result<LockGuard, Option<Found>>> {
        let is_ours = view.as_ref().is_some_and(|found| found.record.owner == self.owner);
        let wall_us =
            if is_ours && self.has_added { self.shared().next_wall_us().await } else { self.shared().wall_us() };
        let record = self.record(view.as_ref(), wall_us)?;
        let is_takeover = view.as_ref().is_some_and(|found| found.record.held && found.record.owner != self.owner);
        let was_open = self.open;
        (self.open, self.has_added) = (true, self.has_added || view.is_none());
        let sent = self.shared().clock.monotonic();
        let put = self.shared().put(ctx, view.as_ref(), &record).await;
        let landed = match put.landed {
            Ok(landed) => landed,
            Err(error) if !error.is_unknown() => {
                self.open = was_open;
                return Err(self.fault(error));
            }
            Err(error) => {
                let now = put.now.map_err(|_| error)?;
                self.open = still(view.as_ref(), now.as_ref());
                return Ok(Err(now));
            }
        };
        if landed {
            if is_takeover {
                observe::emit(|| Event::Takeover { subject: self.shared().subject(), is_dead: true });
            }
            return Ok(match put.now {
                Ok(now) if view.is_none() => Err(now),
                Err(error) if view.is_none() => return Err(self.fault(error)),
                Ok(Some(found)) if found.record == record => Ok(self.won(record, Some(found), sent)),
                Err(_) => Ok(self.won(record, None, sent)),
                // Freed by force, or dropped, right behind the write.
                Ok(now) => {
                    self.open = false;
                    Err(now)
                }
            });
        }
        events::conflict(self.shared().subject());
        self.open = was_open;
        let now = put.now.map_err(|error| self.fault(error))?;
        self.open = was_open && still(view.as_ref(), now.as_ref());
        Ok(Err(now))
    }

    /// The record that makes this bid the holder.
    fn record(&mut self, before: Option<&Found>, wall_us: u64) -> Result<Record> {
        let shared = &self.lock.shared;
        let token_before = before.map_or(0, |found| found.record.token).max(shared.sight().token_max());
        let next = token_before.checked_add(1).ok_or_else(|| {
            let detail =
                format!("the fencing token of the lock {} is {token_before}, the largest there is", shared.name);
            Error::new(ErrorKind::Overflow, detail)
        })?;
        self.beat += 1;
        Ok(Record {
            generation: before.map_or_else(random_id, |found| found.record.generation),
            held: true,
            token: next.max(wall_us),
            owner: self.owner,
            beat: self.beat,
            lease_ms: u32::try_from(shared.lease.as_millis()).unwrap_or(u32::MAX),
            since_us: wall_us,
            label: shared.label.clone(),
        })
    }

    fn won(&mut self, record: Record, found: Option<Found>, sent: Duration) -> LockGuard {
        self.open = false;
        LockGuard::new(Term::new(self.lock.shared.clone(), record, found, sent), self.runtime.clone())
    }

    /// An error of this bid: while one of its writes is open, nothing is known of its effect.
    fn fault(&self, error: Error) -> Error {
        error.effect(if self.open { Effect::Unknown } else { Effect::NotApplied })
    }
}

/// True if the record did not move on, so that a write conditional on it may yet land.
fn still(before: Option<&Found>, now: Option<&Found>) -> bool {
    before.map(|found| &found.value) == now.map(|found| &found.value)
}

impl Drop for Bid {
    fn drop(&mut self) {
        if self.open {
            let (shared, owner) = (self.lock.shared.clone(), self.owner);
            self.runtime.spawn(async move {
                // If it fails, the lease ends what this would have given back.
                _ = shared.let_go(shared.ctx(), owner, None).await;
            });
        }
    }
}
