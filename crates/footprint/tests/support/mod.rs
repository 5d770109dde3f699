//! Data to report on.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::sync::Arc;

use bytes::Bytes;
use larder_core::native::Native;
use larder_core::survey::Pace;
use larder_core::{Batch, Ctx, Key, Op, StoreRef};
use larder_footprint::{Group, Options, Report, report};
use larder_store_redis::{Config, RedisStore};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

/// A store on a server.
pub(crate) async fn open(server: &RedisServer) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(Config::from_url(&server.url()).unwrap()).await.unwrap())
}

/// A report as fast as the server answers.
pub(crate) async fn look(store: &Arc<RedisStore>, samples: u32) -> Report {
    let plain: StoreRef = store.clone();
    let options = Options { pace: Pace::UNBOUNDED, samples, seed: 7, ..Options::default() };
    report(&plain, &**store, &options, &mut |_| ()).await.unwrap()
}

/// The group of an owner, as it is printed, and an encoding.
#[track_caller]
pub(crate) fn group<'a>(report: &'a Report, owner: &str, encoding: &str) -> &'a Group {
    let is_it = |group: &&Group| group.owner.to_string() == owner && group.encoding == encoding;
    report.groups.iter().find(is_it).unwrap_or_else(|| panic!("no {owner} {encoding} in {:#?}", report.groups))
}

/// Runs ops; all must do.
pub(crate) async fn run(store: &StoreRef, ops: impl IntoIterator<Item = Op>) {
    let ops: Vec<Op> = ops.into_iter().collect();
    for part in ops.chunks(100) {
        for reply in store.run(Ctx::default(), part.iter().cloned().collect::<Batch>()).await {
            reply.unwrap();
        }
    }
}

/// A set of these members under a key.
pub(crate) fn set(key: &str, members: impl Iterator<Item = String>) -> Op {
    let members = members.map(Bytes::from).collect();
    Op::native(Key::new(key.to_owned()).unwrap(), Native::SetAdd { members })
}

/// A hash of these fields under a key.
pub(crate) fn hash(key: &str, entries: impl Iterator<Item = (String, String)>) -> Op {
    let entries = entries.map(|(field, value)| (Bytes::from(field), Bytes::from(value))).collect();
    Op::native(Key::new(key.to_owned()).unwrap(), Native::HashSet { entries })
}

/// A server that keeps no histogram of each command it was ever sent, half a megabyte of them, which would be taken for data.
pub(crate) fn plain_server(version: RedisVersion) -> RedisServer {
    RedisServer::start(version, &RedisOptions::new().arg("latency-tracking", "no"))
}

/// What a server uses, once it has freed what it frees later, and what scripts left in their interpreter: Redis 8 counts it.
pub(crate) fn used(server: &RedisServer) -> f64 {
    server.command(&["SCRIPT", "FLUSH", "SYNC"]);
    while server.info("memory", "lazyfree_pending_objects") != "0" {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let number = |field: &str| server.info("memory", field).parse::<f64>().unwrap();
    // What connections hold is none of the data.
    number("used_memory") - number("mem_clients_normal")
}

/// Asserts that a claim is within 15 % of what was measured.
#[track_caller]
pub(crate) fn holds(claimed: f64, measured: f64) {
    let off = claimed / measured - 1.0;
    assert!(off.abs() < 0.15, "claimed {claimed:.0}, measured {measured:.0}: {:.1} % off", off * 100.0);
    println!("claimed {claimed:.0}, measured {measured:.0}: {:.1} % off", off * 100.0);
}
