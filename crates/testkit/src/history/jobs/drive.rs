//! What the jobs share: clients that open and work, the final read, and the end of a run.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result, StoreRef};
use tokio::time::Instant;

use crate::history::check::Checked;
use crate::history::recorder::{Call, Moment, Open, Recorder, Told};
use crate::history::{Arena, Boxed, Caused, Run, Verdict};

/// How often something is tried that a fault may meet: an open, a final read.
const TRIES_MAX: usize = 100;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// The client that makes the final read.
pub(super) const LAST: usize = usize::MAX;

/// Opens a handle, or makes what it is a handle of.
pub(super) type Opener<H> = Arc<dyn Fn(StoreRef, Opening) -> Boxed<Result<H>> + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    Make,
    Open,
}

/// The opener of anything that has options with `open` and `open_or_create`. The options are made for each handle: it goes by a clock of its own.
macro_rules! opener {
    ($options:expr, $name:expr) => {{
        let name = $name;
        let open: $crate::history::jobs::drive::Opener<_> =
            std::sync::Arc::new(move |store: larder_core::StoreRef, how| {
                let (options, name) = ($options, name.clone());
                Box::pin(async move {
                    match how {
                        $crate::history::jobs::drive::Opening::Make => options.open_or_create(&store, &name).await,
                        $crate::history::jobs::drive::Opening::Open => options.open(&store, &name).await,
                    }
                })
            });
        open
    }};
}
pub(super) use opener;

/// One client: which, with what handle, and what it draws from.
pub(super) struct Client<H, O, R> {
    pub(super) number: usize,
    pub(super) handle: H,
    pub(super) rng: fastrand::Rng,
    pub(super) history: Arc<Recorder<O, R>>,
    /// How many calls it should make.
    pub(super) ops: usize,
}

/// A structure's name that no other run uses, so that runs can share a server.
pub(super) fn name(job: &str, run: Run) -> String {
    format!("{job} {:016x}", run.seed)
}

/// What time it was at moments of a history.
pub(super) struct Times {
    begun: Instant,
    at: Mutex<BTreeMap<Moment, Duration>>,
}

impl Default for Times {
    fn default() -> Times {
        Times { begun: Instant::now(), at: Mutex::default() }
    }
}

impl Times {
    /// Notes what time it is now: a moment before or after a call, of no call itself.
    pub(super) fn note<O, R: Clone>(&self, history: &Recorder<O, R>) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.insert(history.tick(), self.begun.elapsed());
    }

    /// What was noted.
    pub(super) fn take(&self) -> BTreeMap<Moment, Duration> {
        std::mem::take(&mut self.at.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is left when the clients are done and all is calm.
pub(super) struct Ended<H, O, R> {
    /// A handle that was opened just now, on the quiet store; `None`: what it was told is noted.
    pub(super) fresh: Option<H>,
    pub(super) history: Arc<Recorder<O, R>>,
    caused: Arc<Caused>,
    job: &'static str,
    /// A final read was told of a loss, or there was nobody to make it.
    is_unread: AtomicBool,
    /// What takes several round trips and is done with the last: one of them that fails, or a list that is full, leaves it open, too, though nothing was cut.
    pub(super) ends_midway: fn(&O) -> bool,
    /// What others removed may as well have been lost, by all that is told of it: a conflict leaves that open.
    pub(super) others_may_be_losses: bool,
    /// See [`Told`].
    pub(super) tells_doubts: bool,
    /// Checks are left out, too, where something was lost, and not only where the store was set back.
    pub(super) stops_at_losses: bool,
}

/// What the checkers may excuse.
#[derive(Default)]
pub(super) struct Excuses {
    /// Somebody was told of a loss.
    pub(super) loss_told: bool,
    /// Something may be gone, told or not.
    pub(super) lost: bool,
    /// The store may be in an older state than it was: a fresh process cannot know.
    pub(super) set_back: bool,
    /// Requests may have been delivered late or twice.
    pub(super) late: bool,
    /// Of some write it may be unknown whether it was carried out.
    pub(super) cut: bool,
    /// Clocks may be wrong.
    pub(super) clocks: bool,
    /// By this moment nothing was lost or set back.
    pub(super) whole_until: Moment,
    /// By this moment nothing was late.
    pub(super) on_time_until: Moment,
    /// By this moment nothing had failed.
    pub(super) smooth_until: Moment,
}

/// Makes the structure, runs a task a client to their ends, calms the arena, and opens it again.
pub(super) async fn play<H, O, R, F>(
    job: &'static str,
    arena: Arena,
    run: Run,
    open: Opener<H>,
    work: impl Fn(Client<H, O, R>) -> F,
) -> Ended<H, O, R>
where
    H: Send + 'static,
    O: Send + 'static,
    R: Send + Clone + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let history = Arc::new(Recorder::new(arena.caused.clone()));
    let ops = run.ops.div_ceil(arena.clients.len().max(1));
    let mut tasks = Vec::new();
    let is_made = try_to_open(&history, &open, &arena.quiet, Opening::Make).await.is_some();
    if is_made {
        for (number, store) in arena.clients.iter().enumerate() {
            let rng = fastrand::Rng::with_seed(run.seed.wrapping_mul(31).wrapping_add(number as u64));
            let Some(handle) = try_to_open(&history, &open, store, Opening::Open).await else { continue };
            tasks.push(tokio::spawn(work(Client { number, handle, rng, history: history.clone(), ops })));
        }
    }
    for task in tasks {
        if let Err(panic) = task.await {
            history.strange(format!("a client panicked: {panic}"));
        }
    }
    (arena.calm)().await;
    let losses = history.losses_told();
    let fresh = try_to_open(&history, &open, &arena.quiet, Opening::Open).await;
    if is_made && fresh.is_none() && history.losses_told() == losses {
        history.strange(format!("it was made, all is calm, and it cannot be opened in {TRIES_MAX} tries"));
    }
    let caused = arena.caused;
    Ended {
        fresh,
        history,
        caused,
        job,
        is_unread: AtomicBool::new(false),
        ends_midway: |_| false,
        others_may_be_losses: false,
        tells_doubts: false,
        stops_at_losses: false,
    }
}

/// Faults meet opens, too. `None`: it is no use to try again, or something is gone, which is noted.
async fn try_to_open<H, O, R: Clone>(
    history: &Recorder<O, R>,
    open: &Opener<H>,
    store: &StoreRef,
    how: Opening,
) -> Option<H> {
    for _ in 0..TRIES_MAX {
        match open(store.clone(), how).await {
            Ok(handle) => return Some(handle),
            Err(error) if is_passing(&error) => tokio::time::sleep(TRY_AGAIN_AFTER).await,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                history.refused();
                return None;
            }
            Err(error) => {
                history.note(&error);
                return None;
            }
        }
    }
    None
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict)
}

impl<H: Clone, O: Clone, R: Clone> Ended<H, O, R> {
    /// Reads when all is over. What a fault still meets is read again; a call that never comes through is a violation.
    pub(super) async fn read<F: Future<Output = Result<R>>>(&self, op: O, read: impl Fn(H) -> F) -> Option<R> {
        let handle = self.fresh.clone()?;
        let mut failed = None;
        for _ in 0..TRIES_MAX {
            let invoked = self.history.tick();
            match read(handle.clone()).await {
                Err(error) if is_passing(&error) => failed = Some(error),
                outcome => {
                    let told = self.history.ended(LAST, op, invoked, outcome).ok();
                    self.is_unread.fetch_or(told.is_none(), Ordering::SeqCst);
                    return told;
                }
            }
            tokio::time::sleep(TRY_AGAIN_AFTER).await;
        }
        if let Some(error) = failed {
            self.history.strange(format!("the final read failed {TRIES_MAX} times: {error}"));
        }
        None
    }

    /// The verdict: what was told, and what a checker finds.
    pub(super) fn judge<C: Into<Checked>>(self, check: impl FnOnce(&[Call<O, R>], &Excuses) -> C) -> Verdict {
        let (calls, mut told) = self.history.finish();
        let ends_midway = |invoked| calls.iter().any(|call| call.invoked == invoked && (self.ends_midway)(&call.op));
        let has_ended = |open: &Open| open.had_failed || open.kind == ErrorKind::Full;
        told.open_early.retain(|open| !(has_ended(open) && open.invoked.is_some_and(ends_midway)));
        // A call whose time is over may not know how far it had come.
        told.open_early.retain(|open| !(open.kind == ErrorKind::Timeout && open.had_failed));
        told.open_early.retain(|open| !(open.kind == ErrorKind::Conflict && self.others_may_be_losses));
        told.tells_doubts = self.tells_doubts;
        let excuses = excuses(&told, &self.caused);
        let mut verdict = told.verdict();
        let Checked { bad, left_out } = check(&calls, &excuses).into();
        let is_unread = self.fresh.is_none() || self.is_unread.into_inner();
        if left_out > 0 || is_unread || excuses.set_back || self.stops_at_losses && excuses.lost {
            verdict.fully_checked = 0;
        }
        verdict.violations.extend(bad);
        for violation in &mut verdict.violations {
            violation.insert_str(0, &format!("{}: ", self.job));
        }
        verdict
    }
}

fn excuses(told: &Told, caused: &Caused) -> Excuses {
    Excuses {
        loss_told: told.is_loss(),
        lost: caused.may_have_lost(),
        set_back: caused.may_have_set_back(),
        late: caused.may_have_been_late(),
        cut: caused.may_have_cut(),
        clocks: caused.may_have_set_clocks(),
        whole_until: told.whole_until,
        on_time_until: told.on_time_until,
        smooth_until: told.smooth_until,
    }
}
