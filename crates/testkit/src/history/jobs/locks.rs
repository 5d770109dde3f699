//! Locks: clients take turns, and write under the lock to what checks its tokens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_structures::Lock;
use larder_structures::lock::LockGuard;

use super::drive::{self, Client, Opening, play};
use crate::history::check::grants::{LockOp, LockTold, check};
use crate::history::{Arena, Boxed, Run, Verdict, clock};

const LEASE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(6);

/// Who holds the lock as far as its own handle knows, and the highest token that wrote.
#[derive(Default)]
struct Guarded {
    held: Vec<(usize, Arc<LockGuard>)>,
    token_max: u64,
    overlaps: Vec<String>,
}

impl Guarded {
    /// A client was granted the lock: nobody else's handle may say that it is still held, unless this one's says already that it is over.
    fn granted(&mut self, client: usize, guard: &Arc<LockGuard>) {
        for (other, held) in &self.held {
            if held.is_held() && guard.is_held() {
                let (one, two) = (held.fencing_token(), guard.fencing_token());
                self.overlaps
                    .push(format!("clients {other} and {client} hold the lock at once, by tokens {one} and {two}"));
            }
        }
        self.held.push((client, guard.clone()));
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
        let name = drive::name("lock", run);
        let open: drive::Opener<Lock> = Arc::new(move |store, _: Opening| {
            let (options, name) = (Lock::options().lease(LEASE).clock(clock()), name.clone());
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
        ended.judge(|calls, excuses| if excuses.leases { Vec::new() } else { [check(calls), overlaps].concat() })
    })
}

async fn work(mut client: Client<Lock, LockOp, LockTold>, guarded: Arc<Mutex<Guarded>>) {
    let locked = || guarded.lock().unwrap_or_else(PoisonError::into_inner);
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
            locked().granted(client.number, guard);
        }
        _ = client.history.ended(client.number, LockOp::Acquire, invoked, told);
        let Some(guard) = guard else { continue };
        let token = guard.fencing_token();
        for _ in 0..client.rng.u8(..3) {
            tokio::task::yield_now().await;
        }
        let begun = client.history.tick();
        {
            let mut guarded = locked();
            let wrote = guarded.write(token);
            _ = client.history.ended(client.number, LockOp::Write(token), begun, Ok(wrote));
        }
        locked().held.retain(|(_, held)| !Arc::ptr_eq(held, &guard));
        if let Some(guard) = Arc::into_inner(guard) {
            let release = async { guard.release().await.map(|_| None) };
            client.history.call(client.number, LockOp::Release(token), release).await;
        }
    }
}
