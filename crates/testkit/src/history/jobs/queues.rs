//! Queues and stacks: clients push, pop, claim, acknowledge and give back; in the end everything is taken.

use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_structures::{Claim, Queue, Stack};

use super::drive::{self, Client, Ended, LAST, opener, play};
use crate::history::check::queue::{Allowed, Order, QueueOp, QueueTold, check};
use crate::history::{Arena, Boxed, Run, Verdict, clock};

/// Longer than a client needs from a claim to its end, shorter than the wait for what is left.
const LEASE: Duration = Duration::from_secs(5);
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
        let claimed = match self {
            Line::Queue(queue) => queue.claim(LEASE).await,
            Line::Stack(stack) => stack.claim(LEASE).await,
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
        let open: drive::Opener<Line> = std::sync::Arc::new(move |store, how| {
            let opened = open(store, how);
            Box::pin(async move { opened.await.map(Line::Queue) })
        });
        line("queue", Order::Queue, arena, run, open).await
    })
}

pub(super) fn stack(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(Stack::options().segment_bytes(256).clock(clock()), drive::name("stack", run));
        let open: drive::Opener<Line> = std::sync::Arc::new(move |store, how| {
            let opened = open(store, how);
            Box::pin(async move { opened.await.map(Line::Stack) })
        });
        line("stack", Order::Stack, arena, run, open).await
    })
}

async fn line(job: &'static str, order: Order, arena: Arena, run: Run, open: drive::Opener<Line>) -> Verdict {
    // Claims that are left to run out make the end wait for a lease: not in every run.
    let mut rng = run.habits();
    let habits = Habits { leaves_claims: rng.u8(..8) == 0, is_lone: rng.u8(..3) == 0 };
    let may_evict = arena.quiet.profile().may_lose_one();
    let mut ended = play(job, arena, run, open, |client| work(client, habits)).await;
    // Whether a used up segment was evicted or removed, nobody knows where the reply is lost.
    ended.tells_doubts = may_evict;
    ended.stops_at_losses = true;
    drain(&ended).await;
    ended.judge(|calls, excuses| {
        let is_lost = excuses.loss_told && excuses.lost;
        let late = excuses.late.then_some(excuses.on_time_until);
        let back = excuses.set_back.then_some(excuses.whole_until);
        let repeats_after = late.into_iter().chain(back).min();
        let allowed = Allowed { loss: is_lost || excuses.set_back, repeats_after };
        check(calls, order, allowed, LAST)
    })
}

/// What clients do in a run.
#[derive(Clone, Copy)]
struct Habits {
    /// Some claims are left to run out.
    leaves_claims: bool,
    /// Only the first client pushes: then values come in its order.
    is_lone: bool,
}

async fn work(mut client: Client<Line, QueueOp, QueueTold>, habits: Habits) {
    let line = client.handle.clone();
    let mut call = 0;
    while call < client.ops as u64 {
        call += 1;
        let value = (client.number as u64) << 32 | call;
        match client.rng.u8(..10) {
            // The others wait a moment, lest they take faster than one can push.
            0..=4 if habits.is_lone && client.number > 0 => tokio::task::yield_now().await,
            0..=4 => _ = client.history.call(client.number, QueueOp::Push(value), line.push(value)).await,
            5 | 6 => _ = client.history.call(client.number, QueueOp::Pop, line.pop()).await,
            _ => {
                call += 1;
                claim(&mut client, &line, habits.leaves_claims).await;
            }
        }
    }
}

async fn claim(client: &mut Client<Line, QueueOp, QueueTold>, line: &Line, leaves_claims: bool) {
    let invoked = client.history.tick();
    let claimed = line.claim().await;
    let (told, claim) = match claimed {
        Ok(Some((value, claim))) => (Ok(Some(value)), Some((value, claim))),
        Ok(None) => (Ok(None), None),
        Err(error) => (Err(error), None),
    };
    _ = client.history.ended(client.number, QueueOp::Claim, invoked, told);
    let Some((value, claim)) = claim else { return };
    match client.rng.u8(..20) {
        0 if leaves_claims => {}
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

/// Takes all that is left, what is claimed too when its lease has run out.
async fn drain(ended: &Ended<Line, QueueOp, QueueTold>) {
    let Some(line) = ended.fresh.clone() else { return };
    let mut failed = 0;
    for _ in 0..DRAINS_MAX {
        loop {
            let invoked = ended.history.tick();
            let popped = line.pop().await;
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
