//! Caches: clients read, rebuild what is not there, and invalidate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_structures::Cache;
use larder_structures::cache::Lookup;

use tokio::time::Instant;

use super::drive::{self, Client, opener, play};
use crate::history::check::Checked;
use crate::history::check::cache::{CacheOp, CacheTold, Turn, certain, check, two_at_once};
use crate::history::recorder::Moment;
use crate::history::{Arena, Boxed, Run, Verdict, clock};

const KEYS: u64 = 3;
const LEASE: Duration = Duration::from_secs(2);
/// In a turn that was over so shortly after it was asked for no lease can have run out.
const SHORT: Duration = Duration::from_secs(1);
/// Of so many turns one takes a while, in which others come.
const LONG_ONE_IN: u8 = 6;
const LONG_MS_MAX: u64 = 40;

/// What was made: for which key, and when that began; and turns to make it that no lease's end can have ended.
#[derive(Clone, Default)]
struct Made {
    values: Arc<Mutex<HashMap<u64, (u64, u64)>>>,
    turns: Arc<Mutex<Vec<Turn>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type CacheClient = Client<Cache, CacheOp, CacheTold>;

pub(super) fn cache(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || {
            Cache::options()
                .ttl(Duration::from_secs(3_600))
                .stale(Duration::from_secs(60))
                .lease(LEASE)
                .wait(Duration::from_secs(4))
                .clock(clock())
        };
        let open = opener!(options(), drive::name("cache", run));
        let made = Made::default();
        let shared = made.clone();
        let ended = play("cache", arena, run, open, move |client| work(client, shared.clone())).await;
        for key in 0..KEYS {
            ended
                .read(CacheOp::Get(key), |cache| async move {
                    let found = cache.get(key.to_string()).await?;
                    found.map_or(Ok(CacheTold::Done), |found| Ok(CacheTold::Found(value(&found.value)?)))
                })
                .await;
        }
        ended.judge(|calls, excuses| {
            let certain_until = excuses.whole_until.min(excuses.on_time_until);
            // Where the store does not tell the age of a lease, readers judge that by their wall clocks.
            let until = if excuses.clocks { 0 } else { certain_until };
            let mut bad = two_at_once(calls, &certain(std::mem::take(&mut locked(&made.turns)), until));
            bad.extend(if excuses.set_back { Vec::new() } else { check(calls, &locked(&made.values)) });
            Checked { bad, left_out: u64::from(until < Moment::MAX) }
        })
    })
}

fn value(bytes: &[u8]) -> Result<u64> {
    let value = bytes.try_into().map(u64::from_be_bytes);
    value.map_err(|_| Error::new(ErrorKind::Corrupt, "a value that nobody made"))
}

async fn work(mut client: CacheClient, made: Made) {
    let cache = client.handle.clone();
    for call in 0..client.ops as u64 {
        let key = client.rng.u64(..KEYS);
        if client.rng.u8(..4) == 0 {
            let invalidate = async { cache.invalidate(key.to_string()).await.map(|()| CacheTold::Done) };
            client.history.call(client.number, CacheOp::Invalidate(key), invalidate).await;
            continue;
        }
        let (invoked, asked) = (client.history.tick(), Instant::now());
        let told = match cache.lookup(key.to_string()).await {
            Ok(Lookup::Found(found)) => value(&found.value).map(CacheTold::Found),
            Ok(Lookup::Rebuild(lease)) => {
                let (own, begun) = ((client.number as u64) << 32 | call, client.history.tick());
                locked(&made.values).insert(own, (key, begun));
                for _ in 0..client.rng.u8(..4) {
                    tokio::task::yield_now().await;
                }
                if client.rng.u8(..LONG_ONE_IN) == 0 {
                    tokio::time::sleep(Duration::from_millis(client.rng.u64(..LONG_MS_MAX))).await;
                }
                let turn = Turn { key, asked: invoked, begun, finishing: client.history.tick() };
                if asked.elapsed() < SHORT {
                    locked(&made.turns).push(turn);
                }
                _ = lease.finish(own.to_be_bytes().to_vec()).await;
                Ok(CacheTold::Made(own, begun))
            }
            Err(error) => Err(error),
        };
        _ = client.history.ended(client.number, CacheOp::Get(key), invoked, told);
    }
}
