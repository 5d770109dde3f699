//! Caches: clients read, rebuild what is not there, and invalidate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_structures::Cache;
use larder_structures::cache::Lookup;

use super::drive::{self, Client, opener, play};
use crate::history::check::cache::{CacheOp, CacheTold, check};
use crate::history::{Arena, Boxed, Run, Verdict, clock};

const KEYS: u64 = 3;

/// What was made: for which key, and when that began.
type Made = Arc<Mutex<HashMap<u64, (u64, u64)>>>;
type CacheClient = Client<Cache, CacheOp, CacheTold>;

pub(super) fn cache(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || {
            Cache::options()
                .ttl(Duration::from_secs(3_600))
                .stale(Duration::from_secs(60))
                .lease(Duration::from_secs(2))
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
        let made = std::mem::take(&mut *made.lock().unwrap_or_else(PoisonError::into_inner));
        ended.judge(|calls, excuses| if excuses.set_back { Vec::new() } else { check(calls, &made) })
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
        let invoked = client.history.tick();
        let told = match cache.lookup(key.to_string()).await {
            Ok(Lookup::Found(found)) => value(&found.value).map(CacheTold::Found),
            Ok(Lookup::Rebuild(lease)) => {
                let (own, begun) = ((client.number as u64) << 32 | call, client.history.tick());
                made.lock().unwrap_or_else(PoisonError::into_inner).insert(own, (key, begun));
                for _ in 0..client.rng.u8(..4) {
                    tokio::task::yield_now().await;
                }
                _ = lease.finish(own.to_be_bytes().to_vec()).await;
                Ok(CacheTold::Made(own, begun))
            }
            Err(error) => Err(error),
        };
        _ = client.history.ended(client.number, CacheOp::Get(key), invoked, told);
    }
}
