//! Queues and stacks: clients push, pop, claim, acknowledge and give back, and in some runs hold on to what they claimed; in the end everything is taken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{Batch, Ctx, Error, ErrorKind, Profile, PutMode, Result, Run as StoreRun, Store, StoreRef, Verb};
use larder_structures::{Claim, Queue, Stack};
use tokio::time::Instant;

use super::drive::{self, Client, Ended, LAST, opener, play};
use crate::history::check::leases::{self, Lease};
use crate::history::check::queue::{Allowed, Order, QueueOp, QueueTold, check};
use crate::history::recorder::Moment;
use crate::history::{Arena, Boxed, Run, Verdict, clock};

/// Longer than a client needs from a claim to its end, shorter than the wait for what is left.
const LEASE: Duration = Duration::from_secs(5);
/// The same in runs in which claims are renewed: some are held for longer than that.
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// How often one is renewed, at the most, and after what of its lease.
const RENEWALS_MAX: u8 = 3;
const RENEWED_AFTER: Duration = Duration::from_millis(1_200);
/// In such a run a client rests so long now and then, so that others are there while one holds on; and there are no more calls.
const REST_MS_MAX: u64 = 200;
const HELD_OPS_MAX: usize = 200;
/// The end of the last lease, and of what the clocks of stores are late.
const DRAINS_MAX: usize = 400;
const DRAIN_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Either of the two.
#[derive(Clone)]
pub(crate) enum Line {
    Queue(Queue),
    Stack(Stack),
}

impl Line {
    pub(crate) async fn push(&self, value: u64) -> Result<QueueTold> {
        match self {
            Line::Queue(queue) => queue.push(value.to_be_bytes()).await,
            Line::Stack(stack) => stack.push(value.to_be_bytes()).await,
        }
        .map(|()| None)
    }

    pub(crate) async fn pop(&self) -> Result<QueueTold> {
        let popped = match self {
            Line::Queue(queue) => queue.pop().await,
            Line::Stack(stack) => stack.pop().await,
        };
        popped?.as_deref().map(value).transpose()
    }

    pub(crate) async fn claim(&self) -> Result<Option<(u64, Claim)>> {
        self.claim_for(LEASE).await
    }

    async fn claim_for(&self, lease: Duration) -> Result<Option<(u64, Claim)>> {
        let claimed = match self {
            Line::Queue(queue) => queue.claim(lease).await,
            Line::Stack(stack) => stack.claim(lease).await,
        };
        claimed?.map(|claim| Ok((value(claim.item())?, claim))).transpose()
    }

    pub(crate) async fn len(&self) -> Result<u64> {
        match self {
            Line::Queue(queue) => queue.len().await,
            Line::Stack(stack) => stack.len().await,
        }
    }
}

fn value(item: &[u8]) -> Result<u64> {
    let value = item.try_into().map(u64::from_be_bytes);
    value.map_err(|_| Error::new(ErrorKind::Corrupt, "an item that nobody pushed"))
}

pub(super) fn queue(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        // Small segments: they are closed, linked and removed all the time.
        let open = opener!(Queue::options().segment_bytes(256).clock(clock()), drive::name("queue", run));
        let open: drive::Opener<Line> = Arc::new(move |store, how| {
            let opened = open(store, how);
            Box::pin(async move { opened.await.map(Line::Queue) })
        });
        line("queue", Order::Queue, arena, run, open).await
    })
}

pub(super) fn stack(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Stack::options().segment_bytes(256).clock(clock()), drive::name("stack", run));
        let open: drive::Opener<Line> = Arc::new(move |store, how| {
            let opened = open(store, how);
            Box::pin(async move { opened.await.map(Line::Stack) })
        });
        line("stack", Order::Stack, arena, run, open).await
    })
}

async fn line(job: &'static str, order: Order, mut arena: Arena, run: Run, open: drive::Opener<Line>) -> Verdict {
    // Claims that are left to run out make the end wait for a lease: not in every run.
    let mut rng = run.habits();
    let habits = Habits { leaves_claims: rng.u8(..8) == 0, is_lone: rng.u8(..3) == 0, holds_on: rng.u8(..6) == 0 };
    let run = if habits.holds_on { Run { ops: run.ops.min(HELD_OPS_MAX), ..run } } else { run };
    let held = Arc::new(Held::default());
    let may_evict = arena.quiet.profile().may_lose_one();
    let caused = arena.caused.clone();
    let opens: Vec<Arc<Opens>> = arena.clients.iter().map(|_| Arc::default()).collect();
    for (store, opens) in arena.clients.iter_mut().zip(&opens) {
        *store = Arc::new(Told { inner: store.clone(), opens: opens.clone() });
    }
    let mut ended = play(job, arena, run, open, |client| {
        let opens = opens[client.number].clone();
        work(client, habits, opens, held.clone())
    })
    .await;
    // Whether a used up segment was evicted or removed, nobody knows where the reply is lost.
    ended.tells_doubts = may_evict;
    ended.stops_at_losses = true;
    drain(&ended, &held).await;
    ended.judge(|calls, excuses| {
        let is_lost = excuses.loss_told && excuses.lost;
        let allowed = Allowed {
            loss: is_lost || excuses.set_back,
            whole_until: excuses.whole_until,
            repeats_after: excuses.set_back.then_some(excuses.whole_until),
            late: caused.late.load(Ordering::SeqCst),
            on_time_until: excuses.on_time_until,
            open: opens.iter().flat_map(|opens| opens.take()).collect(),
        };
        let mut checked = check(calls, order, &allowed, LAST);
        let Held { leases, ended, .. } = &*held;
        let of_leases = leases::check(calls, &locked(leases), &locked(ended), &allowed);
        checked.bad.extend(of_leases.bad);
        checked.left_out += of_leases.left_out;
        checked
    })
}

/// What was claimed for how long, and when calls were over.
struct Held {
    begun: Instant,
    leases: Mutex<Vec<Lease>>,
    ended: Mutex<HashMap<Moment, Duration>>,
}

impl Default for Held {
    fn default() -> Held {
        Held { begun: Instant::now(), leases: Mutex::default(), ended: Mutex::default() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Held {
    /// Notes that a call is over that began at this moment.
    fn is_over(&self, invoked: Moment) {
        locked(&self.ended).insert(invoked, self.begun.elapsed());
    }

    /// Notes what a call was told that began at this time.
    fn is_held(&self, client: &Client<Line, QueueOp, QueueTold>, value: u64, asked: Instant, lease: Duration) {
        let until = asked.duration_since(self.begun) + lease;
        locked(&self.leases).push(Lease { value, client: client.number, granted: client.history.tick(), until });
    }
}

/// What a client's store was asked to write and did not say to be written, and the calls in which that was.
#[derive(Debug, Default)]
struct Opens {
    /// Batches that push: whose append may arrive yet.
    appends: AtomicU64,
    /// Batches with other writes of which one failed.
    writes: AtomicU64,
    /// By the moment at which a call began: how many of those that concern it.
    of_calls: Mutex<HashMap<Moment, u64>>,
}

impl Opens {
    fn of_calls(&self) -> MutexGuard<'_, HashMap<Moment, u64>> {
        self.of_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> HashMap<Moment, u64> {
        std::mem::take(&mut self.of_calls())
    }

    /// Does a call, one at a time, that began at `invoked`.
    async fn watch<T>(&self, invoked: Moment, which: &AtomicU64, call: impl Future<Output = T>) -> T {
        let before = which.load(Ordering::SeqCst);
        let told = call.await;
        let open = which.load(Ordering::SeqCst) - before;
        if open > 0 {
            self.of_calls().insert(invoked, open);
        }
        told
    }
}

/// A client's store, which notes that.
#[derive(Debug)]
struct Told {
    inner: StoreRef,
    opens: Arc<Opens>,
}

impl Store for Told {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> StoreRun<'a> {
        let is_append = |verb: &Verb| matches!(verb, Verb::Put { mode: PutMode::Append, .. });
        let writes: Vec<Option<bool>> = batch.iter().map(|op| (!op.is_read()).then(|| is_append(&op.verb))).collect();
        let (append, write) = (writes.contains(&Some(true)), writes.contains(&Some(false)));
        let under_way = UnderWay { opens: &self.opens, append, write };
        let run = self.inner.run(ctx, batch);
        StoreRun::pending(async move {
            // All of it, and not its fields: it counts also where this is dropped.
            let mut under_way = under_way;
            let replies = run.await;
            let told = || replies.iter().zip(&writes).filter_map(|(told, write)| Some((told.as_ref().err()?, *write)));
            under_way.append = told().any(|(error, write)| write == Some(true) && error.is_unknown());
            under_way.write = told().any(|(_, write)| write == Some(false));
            replies
        })
    }
}

/// A batch that is not answered yet, or what of it was not done: counted as it is dropped.
struct UnderWay<'a> {
    opens: &'a Opens,
    append: bool,
    write: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.opens.appends.fetch_add(u64::from(self.append), Ordering::SeqCst);
        self.opens.writes.fetch_add(u64::from(self.write), Ordering::SeqCst);
    }
}

/// What clients do in a run.
#[derive(Clone, Copy)]
struct Habits {
    /// Some claims are left to run out.
    leaves_claims: bool,
    /// Only the first client pushes: then values come in its order.
    is_lone: bool,
    /// Leases are short, and some are renewed.
    holds_on: bool,
}

async fn work(mut client: Client<Line, QueueOp, QueueTold>, habits: Habits, opens: Arc<Opens>, held: Arc<Held>) {
    let line = client.handle.clone();
    let mut call = 0;
    while call < client.ops as u64 {
        call += 1;
        if habits.holds_on && client.rng.u8(..4) == 0 {
            tokio::time::sleep(Duration::from_millis(client.rng.u64(..REST_MS_MAX))).await;
        }
        let value = (client.number as u64) << 32 | call;
        match client.rng.u8(..10) {
            // The others wait a moment, lest they take faster than one can push.
            0..=4 if habits.is_lone && client.number > 0 => tokio::task::yield_now().await,
            0..=4 => {
                let invoked = client.history.tick();
                let pushed = opens.watch(invoked, &opens.appends, line.push(value)).await;
                _ = client.history.ended(client.number, QueueOp::Push(value), invoked, pushed);
            }
            5 | 6 => {
                let invoked = client.history.tick();
                let popped = line.pop().await;
                held.is_over(invoked);
                _ = client.history.ended(client.number, QueueOp::Pop, invoked, popped);
            }
            _ => {
                call += 1;
                claim(&mut client, &line, habits, &opens, &held).await;
            }
        }
    }
}

async fn claim(client: &mut Client<Line, QueueOp, QueueTold>, line: &Line, habits: Habits, opens: &Opens, held: &Held) {
    let lease = if habits.holds_on { SHORT_LEASE } else { LEASE };
    let (invoked, asked) = (client.history.tick(), Instant::now());
    let claimed = opens.watch(invoked, &opens.writes, line.claim_for(lease)).await;
    held.is_over(invoked);
    let (told, claim) = match claimed {
        Ok(Some((value, claim))) => (Ok(Some(value)), Some((value, claim))),
        Ok(None) => (Ok(None), None),
        Err(error) => (Err(error), None),
    };
    _ = client.history.ended(client.number, QueueOp::Claim, invoked, told);
    let Some((value, claim)) = claim else { return };
    held.is_held(client, value, asked, lease);
    if habits.holds_on && client.rng.u8(..6) == 0 {
        hold_on(client, value, &claim, held).await;
    }
    match client.rng.u8(..20) {
        0 if habits.leaves_claims => {}
        0..=3 => {
            let release = async { claim.release().await.map(|()| None) };
            client.history.call(client.number, QueueOp::Release(value), release).await;
        }
        _ => {
            let ack = async { claim.ack().await.map(|()| None) };
            client.history.call(client.number, QueueOp::Ack(value), ack).await;
        }
    }
}

/// Has a claim renewed, again and again before it is over.
async fn hold_on(client: &mut Client<Line, QueueOp, QueueTold>, value: u64, claim: &Claim, held: &Held) {
    for _ in 0..client.rng.u8(1..=RENEWALS_MAX) {
        tokio::time::sleep(RENEWED_AFTER).await;
        let (invoked, asked) = (client.history.tick(), Instant::now());
        let renewed = match claim.renew().await {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::Fenced => Ok(None),
            Err(error) => Err(error),
        };
        held.is_over(invoked);
        match client.history.ended(client.number, QueueOp::Renew(value), invoked, renewed) {
            Ok(Some(_)) => held.is_held(client, value, asked, claim.lease()),
            Ok(None) => return,
            Err(_) => {}
        }
    }
    // Into what is the last renewal's alone.
    tokio::time::sleep(RENEWED_AFTER).await;
}

/// Takes all that is left, what is claimed too when its lease has run out.
async fn drain(ended: &Ended<Line, QueueOp, QueueTold>, held: &Held) {
    let Some(line) = ended.fresh.clone() else { return };
    let mut failed = 0;
    for _ in 0..DRAINS_MAX {
        loop {
            let invoked = ended.history.tick();
            let popped = line.pop().await;
            held.is_over(invoked);
            let is_lost =
                popped.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack));
            match ended.history.ended(LAST, QueueOp::Pop, invoked, popped) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                // A lost segment is told once, and what is behind it comes.
                Err(_) if failed < DRAINS_MAX => failed += 1,
                // A lost state is told for ever.
                Err(_) if is_lost => return,
                Err(_) => return ended.history.strange("the queue cannot be read to its end".to_owned()),
            }
        }
        match line.len().await {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Lost => return ended.history.note(&error),
            Err(_) => {}
        }
        tokio::time::sleep(DRAIN_AGAIN_AFTER).await;
    }
    ended.history.strange("something is left that does not come out".to_owned());
}
