//! What clients did and were told, by one clock of their own that only orders.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_core::{Error, ErrorKind, Result};

use super::{Caused, Verdict};

/// When something happened: a number that grows by each event. Of two calls, the one that returned before the other was invoked came first.
pub type Moment = u64;

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<R> {
    /// It took effect, and this was told.
    Ok(R),
    /// It did not take effect, and never will.
    NotApplied,
    /// It may have taken effect, or may yet, once.
    Unknown,
}

/// A call of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<O, R> {
    /// Whose.
    pub client: usize,
    /// What was asked for.
    pub op: O,
    /// When it began.
    pub invoked: Moment,
    /// When it ended; [`Moment::MAX`] where the outcome is unknown, since its effect may come at any time.
    pub returned: Moment,
    /// How.
    pub outcome: Outcome<R>,
}

impl<O, R> Call<O, R> {
    /// What was told, where it took effect.
    pub fn ok(&self) -> Option<&R> {
        match &self.outcome {
            Outcome::Ok(told) => Some(told),
            Outcome::NotApplied | Outcome::Unknown => None,
        }
    }

    /// Whether it may have taken effect without that being known.
    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown)
    }

    /// Whether it may have taken effect.
    pub fn may_count(&self) -> bool {
        !matches!(self.outcome, Outcome::NotApplied)
    }
}

/// Records the calls of all clients of one run, and what the nemesis had caused by then.
pub struct Recorder<O, R> {
    now: AtomicU64,
    caused: Arc<Caused>,
    seen: Mutex<Seen<O, R>>,
}

struct Seen<O, R> {
    calls: Vec<Call<O, R>>,
    told: Told,
}

/// What the clients were told besides outcomes.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Calls that took effect, or may have.
    pub calls: u64,
    /// Of those, unknown.
    pub unknown: u64,
    /// Of `calls`, those whose answer was that something is gone: nothing is held against that.
    pub calls_lost: u64,
    /// `Lost` and `Absent`.
    pub lost: u64,
    /// `RolledBack`.
    pub rolled_back: u64,
    /// Of `lost`, and of `rolled_back`, those that were told while nothing had been caused yet that takes data.
    pub lost_early: u64,
    /// See `lost_early`.
    pub rolled_back_early: u64,
    /// Of `lost_early`, those that were told while nothing had failed or taken long either, or arrived late or twice: nobody could doubt what had become of a write.
    pub lost_undoubted: u64,
    /// Outcomes that were unknown while nothing had been cut or harmed.
    pub open_early: Vec<Open>,
    /// What failed while no batch had failed and nothing was harmed, the first in words.
    pub failed_early: Option<String>,
    /// The first of either, in words.
    pub first: Option<String>,
    /// By this moment nothing had been lost or set back.
    pub whole_until: Moment,
    /// By this moment nothing had arrived late or twice.
    pub on_time_until: Moment,
    /// By this moment nothing had failed, or taken long. 0 where that is not counted.
    pub smooth_until: Moment,
    /// Errors that no fault excuses.
    pub strange: Vec<String>,
    /// The store cannot have the structure.
    pub is_refused: bool,
    /// Where a reply was lost, the structure tells what may be gone as lost, though it may not be.
    pub tells_doubts: bool,
}

/// An outcome that was unknown without a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// When the call was invoked; `None`: it is none of the history.
    pub invoked: Option<Moment>,
    /// What kind of error said so.
    pub kind: ErrorKind,
    /// Whether a batch had failed by then.
    pub had_failed: bool,
    /// What was told.
    pub words: String,
}

/// Of a run in which nothing is caused.
impl<O, R> Default for Recorder<O, R> {
    fn default() -> Recorder<O, R> {
        Recorder::new(Arc::default())
    }
}

impl<O, R> Recorder<O, R> {
    /// Of a run in which this is caused.
    pub fn new(caused: Arc<Caused>) -> Recorder<O, R> {
        let seen = Mutex::new(Seen { calls: Vec::new(), told: Told::default() });
        Recorder { now: AtomicU64::new(0), caused, seen }
    }
}

impl<O, R: Clone> Recorder<O, R> {
    /// The next moment.
    pub fn tick(&self) -> Moment {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// Makes a call and records it; returns what was told if it took effect.
    pub async fn call(&self, client: usize, op: O, work: impl Future<Output = Result<R>>) -> Option<R> {
        let invoked = self.tick();
        let outcome = work.await;
        self.ended(client, op, invoked, outcome).ok()
    }

    /// Records a call that began at `invoked` and ends now.
    ///
    /// # Errors
    /// Those of the outcome, so that a job can look into them.
    pub fn ended(&self, client: usize, op: O, invoked: Moment, outcome: Result<R>) -> Result<R> {
        let returned = self.tick();
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.told.watch(returned, &self.caused);
        if let Err(error) = &outcome {
            seen.told.note(error, &self.caused, Some(invoked));
        }
        let is_told_lost = outcome.as_ref().is_err_and(is_loss);
        let (outcome, returned) = match &outcome {
            Ok(told) => (Outcome::Ok(told.clone()), returned),
            // What a loss was told of may be seen by others until it is taken back.
            Err(error) if error.is_unknown() || is_loss(error) => (Outcome::Unknown, Moment::MAX),
            Err(_) => (Outcome::NotApplied, returned),
        };
        seen.told.calls += u64::from(!matches!(outcome, Outcome::NotApplied));
        seen.told.calls_lost += u64::from(is_told_lost);
        let told = match &outcome {
            Outcome::Ok(told) => Ok(told.clone()),
            Outcome::NotApplied | Outcome::Unknown => Err(()),
        };
        seen.calls.push(Call { client, op, invoked, returned, outcome });
        told.map_err(|()| Error::new(ErrorKind::Unavailable, "told above"))
    }

    /// Notes an error of something that is no call of the history: of an open, of a release.
    pub fn note(&self, error: &Error) {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).told.note(error, &self.caused, None);
    }

    /// Notes what must not be, seen by a job itself.
    pub fn strange(&self, what: String) {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).told.strange.push(what);
    }

    /// Notes that the store cannot have the structure.
    pub fn refused(&self) {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).told.is_refused = true;
    }

    /// How many losses were told by now.
    pub fn losses_told(&self) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.told.lost + seen.told.rolled_back
    }

    /// All calls in the order in which they began, and what else was told.
    pub fn finish(&self) -> (Vec<Call<O, R>>, Told) {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.told.watch(Moment::MAX, &self.caused);
        let mut calls = std::mem::take(&mut seen.calls);
        calls.sort_by_key(|call| call.invoked);
        (calls, std::mem::take(&mut seen.told))
    }
}

fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Absent | ErrorKind::RolledBack)
}

impl Told {
    /// Looks at what was caused by now. A cause is counted before its harm is done: where there is none yet, nothing had come of one before either.
    fn watch(&mut self, now: Moment, caused: &Caused) {
        if !caused.may_have_harmed() {
            self.whole_until = self.whole_until.max(now);
        }
        if !caused.may_have_been_late() {
            self.on_time_until = self.on_time_until.max(now);
        }
        if !caused.may_have_failed() {
            self.smooth_until = self.smooth_until.max(now);
        }
    }

    fn note(&mut self, error: &Error, caused: &Caused, invoked: Option<Moment>) {
        self.unknown += u64::from(error.is_unknown());
        let is_whole = !caused.may_have_harmed();
        let is_early = u64::from(is_whole);
        // Of what has no answer yet, whoever waits may be told first.
        let may_be_about_to = error.kind() == ErrorKind::Timeout && caused.is_under_way();
        if error.is_unknown() && is_whole && !caused.may_have_cut() && !may_be_about_to {
            let (kind, words) = (error.kind(), error.to_string());
            self.open_early.push(Open { invoked, kind, had_failed: caused.may_have_failed(), words });
        }
        if is_loss(error) && self.first.is_none() {
            self.first = Some(error.to_string());
        }
        match error.kind() {
            ErrorKind::Lost | ErrorKind::Absent => {
                self.lost += 1;
                self.lost_early += is_early;
                self.lost_undoubted += u64::from(is_whole && !caused.may_have_failed() && !caused.may_have_been_late());
            }
            ErrorKind::RolledBack => {
                self.rolled_back += 1;
                self.rolled_back_early += is_early;
            }
            // The network and other clients do this. Whether a full store is one, its maker knows.
            ErrorKind::Conflict => {}
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Full => {
                if is_whole && !caused.may_have_failed() && !may_be_about_to && self.failed_early.is_none() {
                    self.failed_early = Some(error.to_string());
                }
            }
            // Leases end.
            ErrorKind::Fenced => {}
            _ => self.strange.push(format!("an error that no fault excuses: {error}")),
        }
    }

    /// Whether anything was told to be gone.
    pub fn is_loss(&self) -> bool {
        self.lost + self.rolled_back > 0
    }

    /// The verdict over what was told, apart from the checkers' own: nothing may be told that was not caused by then. What is caused later excuses nothing.
    pub fn verdict(self) -> Verdict {
        let mut violations = self.strange;
        let first = self.first.unwrap_or_default();
        let lost = if self.tells_doubts { self.lost_undoubted } else { self.lost_early };
        let back = self.rolled_back_early;
        if lost > 0 {
            violations.push(format!("{lost} losses were told, and nothing had been lost: {first}"));
        }
        if back > 0 {
            violations.push(format!("{back} times an older state was told, and there had been none: {first}"));
        }
        if let Some(open) = self.open_early.first() {
            let count = self.open_early.len();
            violations.push(format!("{count} outcomes were unknown, and nothing was cut: {}", open.words));
        }
        if let Some(failed) = self.failed_early {
            violations.push(format!("a call failed, and nothing had: {failed}"));
        }
        let losses_told = self.lost + self.rolled_back;
        let fully_checked = self.calls - self.calls_lost;
        let (unknown, refused) = (self.unknown, u64::from(self.is_refused));
        Verdict { operations: self.calls, fully_checked, unknown, losses_told, refused, violations }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::Effect;

    use super::*;

    fn one(error: Error) -> (Vec<Call<u8, u8>>, Told) {
        let recorder = Recorder::<u8, u8>::default();
        let at = recorder.tick();
        _ = recorder.ended(0, 1, at, Err(error));
        recorder.finish()
    }

    /// Whose nemesis is counted, and does nothing.
    fn watched() -> Arc<Caused> {
        let caused = Arc::new(Caused::default());
        caused.watched.store(true, Ordering::SeqCst);
        caused
    }

    /// What is said of one error that is told under these circumstances.
    fn violations(error: Error, caused: Arc<Caused>) -> Vec<String> {
        let recorder = Recorder::<u8, u8>::new(caused);
        let at = recorder.tick();
        _ = recorder.ended(0, 1, at, Err(error));
        recorder.finish().1.verdict().violations
    }

    #[test]
    fn what_is_told_without_a_cause_is_a_violation() {
        for (kind, words) in
            [(ErrorKind::Lost, "losses"), (ErrorKind::RolledBack, "older"), (ErrorKind::Corrupt, "no fault")]
        {
            let verdict = one(Error::new(kind, "x")).1.verdict();
            assert!(verdict.violations[0].contains(words), "{:?}", verdict.violations);
        }
        let (calls, told) = one(unknown());
        assert_eq!((calls[0].returned, &calls[0].outcome), (Moment::MAX, &Outcome::Unknown));
        let verdict = told.verdict();
        assert_eq!((verdict.unknown, verdict.violations.len()), (1, 0), "nobody counts what breaks");
    }

    fn unknown() -> Error {
        Error::new(ErrorKind::Timeout, "x").effect(Effect::Unknown)
    }

    #[test]
    fn where_failures_are_counted_each_unknown_outcome_and_each_failure_has_a_cause() {
        let count = |counter: fn(&Caused) -> &AtomicU64| {
            let caused = watched();
            counter(&caused).fetch_add(1, Ordering::SeqCst);
            caused
        };
        assert_eq!(violations(unknown(), watched()).len(), 2);
        assert!(violations(unknown(), watched())[0].contains("nothing was cut"));
        assert_eq!(violations(unknown(), count(|caused| &caused.failures)).len(), 1, "and none was cut");
        let conflict = Error::new(ErrorKind::Conflict, "x");
        assert!(violations(conflict.clone(), watched()).is_empty(), "others do this");
        assert_eq!(violations(conflict.effect(Effect::Unknown), watched()).len(), 1);
        let failed = Error::new(ErrorKind::Unavailable, "x");
        assert!(violations(failed.clone(), watched())[0].contains("nothing had"));
        assert!(violations(failed.clone(), count(|caused| &caused.failures)).is_empty());
        assert!(violations(failed.clone(), count(|caused| &caused.losses)).is_empty());
        // Whoever waits for what is under way may give up first; what failed at once is no such thing.
        let under_way = || {
            let caused = watched();
            caused.begun().insert(0, tokio::time::Instant::now());
            caused
        };
        assert!(violations(unknown(), under_way()).is_empty());
        assert_eq!(violations(failed, under_way()).len(), 1);
        let both = count(|caused| &caused.cuts);
        both.failures.fetch_add(1, Ordering::SeqCst);
        assert!(violations(unknown(), both).is_empty());
    }

    #[test]
    fn a_loss_in_doubt_is_excused_by_a_failure_before_it_and_by_none_after_it() {
        let caused = watched();
        let recorder = Recorder::<u8, u8>::new(caused.clone());
        let tell = || _ = recorder.ended(0, 1, recorder.tick(), Err(Error::new(ErrorKind::Lost, "x")));
        tell();
        caused.failures.fetch_add(1, Ordering::SeqCst);
        tell();
        let told = recorder.finish().1;
        assert_eq!((told.lost, told.lost_early, told.lost_undoubted), (2, 2, 1));
        let of = |tells_doubts| Told { tells_doubts, ..told.clone() }.verdict().violations.join(" ");
        assert!(of(true).starts_with("1 losses") && of(false).starts_with("2 losses"), "{}", of(true));
    }

    #[test]
    fn calls_that_failed_for_certain_are_not_counted_as_checked() {
        let recorder = Recorder::<u8, u8>::default();
        let end = |outcome| _ = recorder.ended(0, 1, recorder.tick(), outcome);
        end(Ok(1));
        end(Err(Error::new(ErrorKind::Unavailable, "x")));
        end(Err(unknown()));
        end(Err(Error::new(ErrorKind::Lost, "x")));
        let verdict = recorder.finish().1.verdict();
        assert_eq!(
            (verdict.operations, verdict.fully_checked, verdict.unknown),
            (3, 2, 1),
            "nothing is held against a loss"
        );
    }

    #[test]
    fn a_loss_that_is_told_before_the_first_is_caused_is_a_violation_and_one_after_it_is_none() {
        let caused = Arc::new(Caused::default());
        let recorder = Recorder::<u8, u8>::new(caused.clone());
        let tell = |kind| {
            let at = recorder.tick();
            _ = recorder.ended(0, 1, at, Err(Error::new(kind, "x")));
        };
        tell(ErrorKind::Lost);
        caused.losses.fetch_add(1, Ordering::SeqCst);
        let harmed = recorder.tick();
        tell(ErrorKind::Lost);
        tell(ErrorKind::RolledBack);
        let (_, told) = recorder.finish();
        assert!(told.whole_until < harmed && told.on_time_until == Moment::MAX, "{told:?}");
        let verdict = told.verdict();
        assert_eq!((verdict.losses_told, verdict.violations.len()), (3, 1));
        assert!(verdict.violations[0].starts_with("1 losses"), "{:?}", verdict.violations);
    }
}
