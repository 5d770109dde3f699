//! Locks: clients take turns, and write under the lock to what checks its tokens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_structures::Lock;
use larder_structures::lock::LockGuard;

use super::drive::{self, Client, Opening, play};
use crate::history::check::grants::{LockOp, LockTold, check};
use crate::history::recorder::Moment;
use crate::history::{Arena, Boxed, Run, Verdict, clock};

const LEASE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(6);
/// Now and then somebody holds it for up to so long: about until its first renewal.
const HELD_MS_MAX: u64 = 600;

/// Who holds the lock as far as its own handle knows, and the highest token that wrote.
#[derive(Default)]
struct Guarded {
    held: Vec<Held>,
    token_max: u64,
    overlaps: Vec<Overlap>,
}

struct Held {
    client: usize,
    guard: Arc<LockGuard>,
    /// Somebody took the lock meanwhile who had never seen its record, and left one behind that tells nobody of this hold.
    is_passed_over: bool,
}

/// Two clients that held the lock at once.
struct Overlap {
    at: Moment,
    /// The later one could know that the record was gone.
    could_know: bool,
    told: String,
}

impl Guarded {
    /// A client was granted the lock: nobody else's handle may say that it is still held, unless this one's says already that it is over.
    fn granted(&mut self, client: usize, guard: &Arc<LockGuard>, at: Moment, had_seen: bool) {
        for held in &mut self.held {
            if held.guard.is_held() && guard.is_held() {
                let (one, two) = (held.guard.fencing_token(), guard.fencing_token());
                let other = held.client;
                let told = format!("clients {other} and {client} hold the lock at once, by tokens {one} and {two}");
                self.overlaps.push(Overlap { at, could_know: had_seen && !held.is_passed_over, told });
            }
            held.is_passed_over |= !had_seen;
        }
        self.held.push(Held { client, guard: guard.clone(), is_passed_over: false });
    }

    fn write(&mut self, token: u64) -> LockTold {
        if token < self.token_max {
            return None;
        }
        self.token_max = token;
        Some(1)
    }
}

pub(super) fn lock(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let (options, name) = (Lock::options().lease(LEASE).clock(clock()), drive::name("lock", run));
        let open: drive::Opener<Lock> = Arc::new(move |store, _: Opening| {
            let (options, name) = (options.clone(), name.clone());
            Box::pin(async move { options.open(&store, &name).await })
        });
        let guarded = Arc::new(Mutex::new(Guarded::default()));
        let shared = guarded.clone();
        let ended = play("lock", arena, run, open, move |client| work(client, shared.clone())).await;
        // Whatever became of it, it can be had again.
        ended
            .read(LockOp::Acquire, |lock| async move {
                let guard = lock.acquire(4 * LEASE).await?;
                let token = guard.fencing_token();
                guard.release().await?;
                Ok(Some(token))
            })
            .await;
        let overlaps = std::mem::take(&mut guarded.lock().unwrap_or_else(PoisonError::into_inner).overlaps);
        ended.judge(|calls, excuses| {
            // Only who never saw the record takes a lock that was lost before its lease is over.
            let is_wrong = |overlap: &&Overlap| match (excuses.lost, excuses.set_back || excuses.clocks) {
                (_, true) => false,
                (true, false) => overlap.could_know,
                (false, false) => excuses.until.is_none_or(|until| overlap.at <= until),
            };
            let mut bad: Vec<String> = overlaps.iter().filter(is_wrong).map(|overlap| overlap.told.clone()).collect();
            // "While the record survives; after a loss, with the wall clocks."
            let may_fall = (excuses.lost || excuses.set_back) && excuses.clocks;
            if !may_fall {
                bad.extend(check(calls));
            }
            bad
        })
    })
}

async fn work(mut client: Client<Lock, LockOp, LockTold>, guarded: Arc<Mutex<Guarded>>) {
    let locked = || guarded.lock().unwrap_or_else(PoisonError::into_inner);
    let mut has_seen = false;
    let mut call = 0;
    while call < client.ops {
        call += 3;
        let invoked = client.history.tick();
        let acquired = match client.rng.u8(..3) {
            0 => client.handle.try_acquire().await,
            _ => client.handle.acquire(WAIT).await.map(Some),
        };
        let (told, guard) = match acquired {
            Ok(guard) => (Ok(guard.as_ref().map(LockGuard::fencing_token)), guard.map(Arc::new)),
            Err(error) => (Err(error), None),
        };
        // Before it is recorded: what is granted later must not be taken for one at the same time.
        if let Some(guard) = &guard {
            let now = client.history.tick();
            locked().granted(client.number, guard, now, has_seen);
        }
        has_seen |= told.is_ok();
        _ = client.history.ended(client.number, LockOp::Acquire, invoked, told);
        let Some(guard) = guard else { continue };
        let token = guard.fencing_token();
        for _ in 0..client.rng.u8(..3) {
            tokio::task::yield_now().await;
        }
        if client.rng.u8(..16) == 0 {
            tokio::time::sleep(Duration::from_millis(client.rng.u64(..HELD_MS_MAX))).await;
        }
        let begun = client.history.tick();
        {
            let mut guarded = locked();
            let wrote = guarded.write(token);
            _ = client.history.ended(client.number, LockOp::Write(token), begun, Ok(wrote));
        }
        locked().held.retain(|held| !Arc::ptr_eq(&held.guard, &guard));
        if let Some(guard) = Arc::into_inner(guard) {
            let release = async { guard.release().await.map(|_| None) };
            client.history.call(client.number, LockOp::Release(token), release).await;
        }
    }
}
