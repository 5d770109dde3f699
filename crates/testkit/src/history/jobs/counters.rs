//! Counters of every kind: clients add and read, and in some runs take away what was counted.

use std::time::{Duration, SystemTime};

use larder_core::{Error, ErrorKind, Result};
use larder_structures::{Counter, Visitors};

use super::drive::{self, Client, opener, play};
use crate::history::check::Checked;
use crate::history::check::counter::{CounterOp, Rules, check};
use crate::history::recorder::Call;
use crate::history::{Arena, Boxed, Run, Verdict, clock};

/// How a handle does it.
pub(super) type Apply<H> = fn(H, CounterOp, Seen) -> Boxed<Result<i128>>;

/// What a counter of windows needs besides.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// The time of all hits.
    at: SystemTime,
    /// A visitor nobody else is.
    visitor: u64,
}

/// What clients do with a counter.
#[derive(Clone, Copy, Default)]
pub(super) struct Habits {
    /// Adds may be of less than nothing.
    pub(super) both_signs: bool,
    /// It is reset, in every other run.
    pub(super) resets: bool,
    /// As of the checker's [`Rules`].
    pub(super) takes_twice: bool,
    /// As of the checker's rules, too.
    pub(super) is_one_number: bool,
    pub(super) may_waver: bool,
    /// Adds may take several round trips: one of them that fails leaves it open.
    pub(super) adds_end_midway: bool,
}

/// The exact one.
pub(super) fn exact(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Counter::options().exact().clock(clock()), drive::name("counter", run));
        let habits = Habits { both_signs: true, resets: true, ..Habits::default() };
        counter("counter", arena, run, open, habits, on_counter).await
    })
}

/// Of two copies, which stand on two servers.
pub(super) fn of_copies(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Counter::options().exact().copies(2).clock(clock()), drive::name("counter of copies", run));
        let habits = Habits { both_signs: true, resets: true, may_waver: true, ..Habits::default() };
        let mut verdict = counter("counter of copies", arena, run, open, habits, on_counter).await;
        if verdict.losses_told > 0 {
            let what =
                format!("counter of copies: {} losses were told, and one server lost its copies", verdict.losses_told);
            verdict.violations.push(what);
        }
        verdict
    })
}

/// On the store's arithmetic.
pub(super) fn fast(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Counter::options().fast().clock(clock()), drive::name("fast counter", run));
        let habits =
            Habits { both_signs: true, resets: true, takes_twice: true, is_one_number: true, ..Habits::default() };
        counter("fast counter", arena, run, open, habits, on_counter).await
    })
}

fn on_counter(counter: Counter, op: CounterOp, _: Seen) -> Boxed<Result<i128>> {
    Box::pin(async move {
        match op {
            CounterOp::Add(by) => counter.add(by).await.map(|()| 0),
            CounterOp::Read => counter.get().await,
            CounterOp::Reset => counter.reset().await,
        }
    })
}

/// Longer than any run.
const PERIOD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Visitors: hits, and visitors that come once, in one window.
pub(super) fn visitors(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Visitors::options().period(PERIOD).clock(clock()), drive::name("visitors", run));
        // The first of a window, or of a shard, stands there before that is listed.
        let habits = Habits { adds_end_midway: true, ..Habits::default() };
        counter("visitors", arena, run, open, habits, |visitors, op, seen| {
            Box::pin(async move {
                match op {
                    CounterOp::Add(1) => visitors.hit_visitor_at(seen.visitor.to_be_bytes(), seen.at).await.map(|()| 0),
                    CounterOp::Add(by) => visitors.hit_at(seen.at, by.unsigned_abs()).await.map(|()| 0),
                    CounterOp::Read => visitors.get_at(seen.at).await.map(i128::from),
                    CounterOp::Reset => Err(Error::new(ErrorKind::Unsupported, "visitors are not reset")),
                }
            })
        })
        .await
    })
}

/// Windows in which hits still count: the one of now, the last complete one, and the one before.
const WINDOWS: u8 = 3;

/// Hits and reads of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InWindow {
    /// How many periods ago.
    ago: u8,
    op: CounterOp,
}

/// Visitors over windows: who comes in one counts there, and in no other, whoever came in several.
pub(super) fn windows(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Visitors::options().period(PERIOD).clock(clock()), drive::name("windows", run));
        let at = SystemTime::UNIX_EPOCH + clock().wall();
        let mut ended = play("visitors by window", arena, run, open, move |client| come_in_windows(client, at)).await;
        ended.ends_midway = |called: &InWindow| matches!(called.op, CounterOp::Add(_));
        for ago in 0..WINDOWS {
            let op = InWindow { ago, op: CounterOp::Read };
            ended.read(op, |visitors| in_window(visitors, op, Seen { at, visitor: 0 })).await;
        }
        ended.judge(|calls, excuses| {
            let rules = Rules { may_drop: excuses.set_back, ..Rules::default() };
            let mut all = Checked::default();
            for ago in 0..WINDOWS {
                let checked = check(&of_window(calls, ago), rules);
                all.left_out += checked.left_out;
                all.bad.extend(checked.bad.into_iter().map(|bad| format!("{ago} periods ago: {bad}")));
            }
            all
        })
    })
}

/// What was called of one window.
fn of_window(calls: &[Call<InWindow, i128>], ago: u8) -> Vec<Call<CounterOp, i128>> {
    let of = |call: &Call<InWindow, i128>| {
        let Call { client, op, invoked, returned, outcome } = call.clone();
        (op.ago == ago).then_some(Call { client, op: op.op, invoked, returned, outcome })
    };
    calls.iter().filter_map(of).collect()
}

fn in_window(visitors: Visitors, called: InWindow, seen: Seen) -> Boxed<Result<i128>> {
    Box::pin(async move {
        let at = seen.at - PERIOD * u32::from(called.ago);
        match called.op {
            // One who was counted already counts no more.
            CounterOp::Add(0 | 1) => visitors.hit_visitor_at(seen.visitor.to_be_bytes(), at).await.map(|()| 0),
            CounterOp::Add(by) => visitors.hit_at(at, by.unsigned_abs()).await.map(|()| 0),
            CounterOp::Read => match called.ago {
                0 => visitors.current().await,
                1 => visitors.get().await,
                _ => visitors.get_at(at).await,
            }
            .map(i128::from),
            CounterOp::Reset => Err(Error::new(ErrorKind::Unsupported, "visitors are not reset")),
        }
    })
}

/// Each visitor comes once in each window, one after the other, and sometimes again.
async fn come_in_windows(mut client: Client<Visitors, InWindow, i128>, at: SystemTime) {
    let mut visits = 0;
    for _ in 0..client.ops {
        let mut ago = client.rng.u8(..WINDOWS);
        let mut seen = Seen { at, visitor: 0 };
        let op = match client.rng.u8(..8) {
            0 | 1 => CounterOp::Read,
            2..6 => {
                ago = (visits % u64::from(WINDOWS)) as u8;
                seen.visitor = ((client.number as u64) << 32) | (visits / u64::from(WINDOWS));
                visits += 1;
                CounterOp::Add(1)
            }
            _ => CounterOp::Add(client.rng.i64(2..1_000)),
        };
        let called = InWindow { ago, op };
        let visitors = || client.handle.clone();
        let told = client.history.call(client.number, called, in_window(visitors(), called, seen)).await;
        if op == CounterOp::Add(1) && told.is_some() && client.rng.u8(..4) == 0 {
            let again = InWindow { ago, op: CounterOp::Add(0) };
            client.history.call(client.number, again, in_window(visitors(), again, seen)).await;
        }
    }
}

pub(super) async fn counter<H: Clone + Send + 'static>(
    job: &'static str,
    arena: Arena,
    run: Run,
    open: drive::Opener<H>,
    mut habits: Habits,
    apply: Apply<H>,
) -> Verdict {
    let mut rng = run.habits();
    // Where nothing is taken away, reads go one way: a stronger check.
    habits.both_signs &= rng.u8(..3) == 0;
    habits.resets &= rng.bool();
    let at = SystemTime::UNIX_EPOCH + clock().wall();
    let mut ended = play(job, arena, run, open, |client| work(client, habits, at, apply)).await;
    ended.ends_midway = match habits.adds_end_midway {
        true => |op| matches!(op, CounterOp::Add(_)),
        // Slot by slot.
        false => |op| *op == CounterOp::Reset,
    };
    ended.read(CounterOp::Read, |handle| apply(handle, CounterOp::Read, Seen { at, visitor: 0 })).await;
    let Habits { takes_twice, is_one_number, may_waver, .. } = habits;
    ended.judge(|calls, excuses| {
        check(calls, Rules { may_drop: excuses.set_back, takes_twice, is_one_number, may_waver })
    })
}

async fn work<H: Clone>(mut client: Client<H, CounterOp, i128>, habits: Habits, at: SystemTime, apply: Apply<H>) {
    for call in 0..client.ops as u64 {
        let seen = Seen { at, visitor: (client.number as u64) << 32 | call };
        let op = match client.rng.u8(..8) {
            0 if habits.resets && client.rng.bool() => CounterOp::Reset,
            0 | 1 => CounterOp::Read,
            2 => CounterOp::Add(1),
            _ => {
                let is_down = habits.both_signs && client.rng.bool();
                CounterOp::Add(client.rng.i64(2..1_000) * if is_down { -1 } else { 1 })
            }
        };
        client.history.call(client.number, op, apply(client.handle.clone(), op, seen)).await;
    }
}
