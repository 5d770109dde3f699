//! Locks: clients take turns, and write under the lock to what checks its tokens; in every third run some free it by force.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::{ErrorKind, Result};
use larder_structures::Lock;
use larder_structures::lock::{LockGuard, LockStatus, Released};
use tokio::time::Instant;

use super::drive::{self, Client, Opening, play};
use crate::history::check::grants::{Hold, LockOp, LockTold, Promise, check};
use crate::history::recorder::{Moment, Recorder};
use crate::history::{Arena, Boxed, Run, Verdict, clock};

const LEASE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(6);

/// Of so many holds one is for a while, in which others wait.
const LONG_ONE_IN: u8 = 6;
const LONG_MS_MAX: u64 = 40;

/// Of so many turns of a run with force one frees the lock, and of so many holds one is renewed by hand.
const FORCED_ONE_IN: u8 = 5;
const RENEWED_ONE_IN: u8 = 2;
/// "The time its last confirmed write was sent, plus the lease, less a margin": no lease is over before that, and before this on no clock.
const IS_HELD_FOR: Duration = Duration::from_secs(1);

/// What the lock guards, and who was seen to hold it.
#[derive(Default)]
struct Guarded {
    token_max: u64,
    holds: Vec<Hold>,
}

impl Guarded {
    /// A resource that knows tokens, and nothing of grants: it takes what is no older than the newest. Whether that is in the order of the grants the checker says.
    fn write(&mut self, token: u64) -> LockTold {
        if token < self.token_max {
            return None;
        }
        self.token_max = token;
        Some(1)
    }
}

type History = Recorder<LockOp, LockTold>;

/// A moment at which the lock was held: the handle says so after it, and a lock that is lost does not come back.
fn held_at(history: &History, guard: &LockGuard) -> Option<Moment> {
    let now = history.tick();
    guard.is_held().then_some(now)
}

pub(super) fn lock(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let name = drive::name("lock", run);
        let open: drive::Opener<Lock> = Arc::new(move |store, _: Opening| {
            let (options, name) = (Lock::options().lease(LEASE).clock(clock()), name.clone());
            Box::pin(async move { options.open(&store, &name).await })
        });
        let guarded = Arc::new(Mutex::new(Guarded::default()));
        let shared = guarded.clone();
        let is_forced = run.habits().u8(..3) == 0;
        let mut ended = play("lock", arena, run, open, move |client| work(client, is_forced, shared.clone())).await;
        // Holds overlap then, and tokens follow the wall clocks.
        ended.stops_at_losses = true;
        // A record that is made stands before it counts, and counts with the write behind it.
        ended.ends_midway = |op| *op == LockOp::Acquire;
        // Whatever became of it, it can be had again.
        ended
            .read(LockOp::Acquire, |lock| async move {
                let guard = lock.acquire(4 * LEASE).await?;
                let token = guard.fencing_token();
                guard.release().await?;
                Ok(Some(token))
            })
            .await;
        let holds = std::mem::take(&mut guarded.lock().unwrap_or_else(PoisonError::into_inner).holds);
        ended.judge(|calls, excuses| {
            // "A wall clock that goes back can make tokens fall after a loss of the record, at no other time."
            let promise = Promise { whole_until: excuses.whole_until, grows_on: !excuses.clocks };
            check(calls, &holds, promise)
        })
    })
}

async fn work(mut client: Client<Lock, LockOp, LockTold>, is_forced: bool, guarded: Arc<Mutex<Guarded>>) {
    let mut call = 0;
    while call < client.ops {
        call += 3;
        if is_forced && client.rng.u8(..FORCED_ONE_IN) == 0 {
            force(&client).await;
            continue;
        }
        let (invoked, asked) = (client.history.tick(), Instant::now());
        let acquired = match client.rng.u8(..3) {
            0 => client.handle.try_acquire().await,
            _ => client.handle.acquire(WAIT).await.map(Some),
        };
        let (told, guard) = match acquired {
            Ok(guard) => (Ok(guard.as_ref().map(LockGuard::fencing_token)), guard),
            Err(error) => (Err(error), None),
        };
        _ = client.history.ended(client.number, LockOp::Acquire, invoked, told);
        let Some(guard) = guard else { continue };
        hold(&mut client, &guard, &guarded).await;
        if is_forced && client.rng.u8(..RENEWED_ONE_IN) == 0 {
            renew(&client, &guard, asked).await;
        }
        let (token, invoked) = (guard.fencing_token(), client.history.tick());
        let released = guard.release().await.map(|released| (released == Released::Released).then_some(1));
        let op = LockOp::Release(token, asked.elapsed() < IS_HELD_FOR);
        _ = client.history.ended(client.number, op, invoked, released);
    }
}

/// Holds it for some time, and writes.
async fn hold(client: &mut Client<Lock, LockOp, LockTold>, guard: &LockGuard, guarded: &Mutex<Guarded>) {
    let (token, from) = (guard.fencing_token(), held_at(&client.history, guard));
    for _ in 0..client.rng.u8(..3) {
        tokio::task::yield_now().await;
    }
    if client.rng.u8(..LONG_ONE_IN) == 0 {
        tokio::time::sleep(Duration::from_millis(client.rng.u64(..LONG_MS_MAX))).await;
    }
    // Without asking whether it is still held, as the worst of clients.
    let begun = client.history.tick();
    let mut guarded = guarded.lock().unwrap_or_else(PoisonError::into_inner);
    let wrote = guarded.write(token);
    _ = client.history.ended(client.number, LockOp::Write(token), begun, Ok(wrote));
    if let Some(from) = from {
        let until = held_at(&client.history, guard).unwrap_or(from);
        guarded.holds.push(Hold { client: client.number, token, from, until });
    }
}

async fn force(client: &Client<Lock, LockOp, LockTold>) {
    let invoked = client.history.tick();
    let freed: Result<LockTold> = client.handle.force_release().await.map(|before| match before {
        LockStatus::Held(holder) => Some(holder.token),
        _ => None,
    });
    _ = client.history.ended(client.number, LockOp::Force(client.history.tick()), invoked, freed);
}

async fn renew(client: &Client<Lock, LockOp, LockTold>, guard: &LockGuard, asked: Instant) {
    let invoked = client.history.tick();
    let renewed = match guard.renew().await {
        Ok(()) => Ok(Some(1)),
        Err(error) if error.kind() == ErrorKind::Fenced => Ok(None),
        Err(error) => Err(error),
    };
    let op = LockOp::Renew(guard.fencing_token(), asked.elapsed() < IS_HELD_FOR);
    let is_lost = matches!(renewed, Ok(None));
    _ = client.history.ended(client.number, op, invoked, renewed);
    if is_lost && guard.is_held() {
        client.history.strange(format!("token {} is lost, as was told, and held", guard.fencing_token()));
    }
}
