//! Counters of every kind: clients add and read.

use std::time::{Duration, SystemTime};

use larder_core::Result;
use larder_structures::{Counter, Visitors};

use super::drive::{self, Client, opener, play};
use crate::history::check::counter::{CounterOp, check};
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

/// Whether adds may be of less than nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Signs {
    Both,
    Up,
}

/// The exact one.
pub(super) fn exact(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Counter::options().exact().clock(clock()), drive::name("counter", run));
        counter("counter", arena, run, open, Signs::Both, add_or_get).await
    })
}

/// On the store's arithmetic.
pub(super) fn fast(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Counter::options().fast().clock(clock()), drive::name("fast counter", run));
        counter("fast counter", arena, run, open, Signs::Both, add_or_get).await
    })
}

fn add_or_get(counter: Counter, op: CounterOp, _: Seen) -> Boxed<Result<i128>> {
    Box::pin(async move {
        match op {
            CounterOp::Add(by) => counter.add(by).await.map(|()| 0),
            CounterOp::Read => counter.get().await,
        }
    })
}

/// Longer than any run.
const PERIOD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Visitors: hits, and visitors that come once, in one window.
pub(super) fn visitors(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = Visitors::options().period(PERIOD).clock(clock());
        let open = opener!(options, drive::name("visitors", run));
        counter("visitors", arena, run, open, Signs::Up, |visitors, op, seen| {
            Box::pin(async move {
                match op {
                    CounterOp::Add(1) => visitors.hit_visitor_at(seen.visitor.to_be_bytes(), seen.at).await.map(|()| 0),
                    CounterOp::Add(by) => visitors.hit_at(seen.at, by.unsigned_abs()).await.map(|()| 0),
                    CounterOp::Read => visitors.get_at(seen.at).await.map(i128::from),
                }
            })
        })
        .await
    })
}

pub(super) async fn counter<H: Clone + Send + 'static>(
    job: &'static str,
    arena: Arena,
    run: Run,
    open: drive::Opener<H>,
    signs: Signs,
    apply: Apply<H>,
) -> Verdict {
    // Where nothing is taken away, reads go one way: a stronger check.
    let is_up = signs == Signs::Up || !run.seed.is_multiple_of(3);
    let at = SystemTime::UNIX_EPOCH + clock().wall();
    let ended = play(job, arena, run, open, |client| work(client, is_up, at, apply)).await;
    ended.read(CounterOp::Read, |handle| apply(handle, CounterOp::Read, Seen { at, visitor: 0 })).await;
    ended.judge(|calls, excuses| check(calls, excuses.set_back))
}

async fn work<H: Clone>(mut client: Client<H, CounterOp, i128>, is_up: bool, at: SystemTime, apply: Apply<H>) {
    for call in 0..client.ops as u64 {
        let seen = Seen { at, visitor: (client.number as u64) << 32 | call };
        let op = match client.rng.u8(..8) {
            0 | 1 => CounterOp::Read,
            2 => CounterOp::Add(1),
            _ => CounterOp::Add(client.rng.i64(2..1_000) * if !is_up && client.rng.bool() { -1 } else { 1 }),
        };
        client.history.call(client.number, op, apply(client.handle.clone(), op, seen)).await;
    }
}
