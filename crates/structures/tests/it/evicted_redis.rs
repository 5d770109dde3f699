//! Every structure on a Redis that evicts, which others fill: what is gone is told, and nothing is read as less than it was.

use std::sync::Arc;

use larder_core::{ErrorKind, StoreRef};
use larder_store_redis::{Config, RedisStore};
use larder_testkit::redis::{Eviction, RedisOptions, RedisServer, RedisVersion};

use crate::foreign_keys::{Hand, scenes};

const MAXMEMORY_BYTES: u64 = 6 << 20;

fn evicted(server: &RedisServer) -> u64 {
    server.info("stats", "evicted_keys").parse().unwrap()
}

/// Another program's keys, of a kilobyte each, until so many keys were evicted. Which ones go is up to the server: by its clock all were used in the same second.
fn others_fill(server: &RedisServer, evictions: u64) {
    let script = "for at = 1, 100 do redis.call('SET', ARGV[1] .. at, string.rep('x', 1000)) end";
    let until = evicted(server) + evictions;
    for round in 0..100_000 {
        if evicted(server) >= until {
            return;
        }
        assert!(!server.command(&["EVAL", script, "0", &format!("other-{round}-")]).is_error());
    }
    panic!("nothing is evicted");
}

/// Nothing of it was lost, or that something was is told. Nobody says what would be right of less.
fn is_honest(kind: &str, before: &str, told: &larder_core::Result<String>) -> bool {
    match told {
        // A miss is no loss.
        Ok(told) if kind == "cache" => told == before || told == "None",
        Ok(told) => told == before,
        Err(error) => matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack | ErrorKind::Absent),
    }
}

async fn of_every_structure_what_is_evicted_is_told(version: RedisVersion) {
    let options = RedisOptions::new().maxmemory(MAXMEMORY_BYTES, Eviction::AllKeysLru).arg("maxmemory-samples", "3");
    let server = RedisServer::start(version, &options);
    let store = RedisStore::connect(Config::from_url(&server.url()).unwrap()).await.unwrap();
    let store: StoreRef = Arc::new(store);
    let (mut wrong, mut lost, mut whole) = (Vec::new(), 0, 0);
    for (round, evictions) in [500, 2_000, 5_000, 15_000].into_iter().enumerate() {
        let mut hands: Vec<(&str, Hand, String)> = Vec::new();
        for (kind, open) in scenes() {
            let name = format!("e{round}-{:x}", fastrand::u32(..));
            let hand = open(store.clone(), name).await.unwrap();
            (hand.fill)().await.unwrap();
            let before = (hand.read)().await.unwrap();
            hands.push((kind, hand, before));
        }
        others_fill(&server, evictions);
        for (kind, hand, before) in &hands {
            let told = (hand.read)().await;
            match &told {
                Ok(told) if told == before => whole += 1,
                _ => lost += 1,
            }
            if !is_honest(kind, before, &told) {
                wrong.push(format!("{evictions} evicted, {kind}: {told:?} of {before}"));
            }
        }
    }
    assert!(evicted(&server) > 20_000);
    assert!(lost > 20 && whole > 0, "{lost} were lost, {whole} were not");
    assert!(wrong.is_empty(), "{version:?}:\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_redis_evicts_that_others_fill_is_told_and_never_read_as_less() {
    for version in RedisVersion::ALL {
        of_every_structure_what_is_evicted_is_told(version).await;
    }
}
