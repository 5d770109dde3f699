//! The user that `SECURITY.md` tells operators to make, on each release and on a cluster: every structure's cases run as that user, who may do nothing else.

use std::sync::Arc;

use larder_core::{Key, PutMode, StoreExt, StoreRef, Ttl};
use larder_testkit::conformance::{
    Bench, Case, array_cases, cache_cases, lock_cases, log_cases, lookup_cases, model_cases, queue_cases,
    records_cases, reshard_cases, sharded_cases, sorted_cases, structure_cases, table_cases, unique_cases,
    visitors_cases,
};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion, Value};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const SECURITY: &str = include_str!("../../../SECURITY.md");
/// These are about what is allowed, not when.
const PATIENCE: &str = "timeout_ms=10000&connect_timeout_ms=10000";
const AT_ONCE: usize = 4;

const STRUCTURES: &[&[Case]] = &[
    structure_cases::CASES,
    lock_cases::CASES,
    array_cases::CASES,
    cache_cases::CASES,
    visitors_cases::CASES,
    unique_cases::CASES,
    log_cases::CASES,
    lookup_cases::CASES,
    model_cases::CASES,
    queue_cases::CASES,
    records_cases::CASES,
    sharded_cases::CASES,
    reshard_cases::CASES,
    sorted_cases::CASES,
    table_cases::CASES,
];

/// The user as the page has it, in one line.
fn user() -> String {
    let block = SECURITY.split("```").find(|block| block.contains("user larder on >secret")).expect("the page has it");
    block.lines().skip(1).collect::<Vec<_>>().join(" ")
}

fn options() -> RedisOptions {
    // A few cases are about parts of structures, which they keep under keys of the case.
    let acl = format!("user default on >admin ~* &* +@all\n{} ~case-*\n", user());
    RedisOptions::new().acl(&acl, "default", "admin")
}

async fn every_case_runs(url: &str) {
    let store: StoreRef = larder::open(&format!("{url}?{PATIENCE}")).await.unwrap_or_else(|error| panic!("{error}"));
    let profile = store.profile();
    assert!(profile.warnings.iter().all(|warning| !warning.contains("refused")), "{:?}", profile.warnings);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut cases = JoinSet::new();
    for case in STRUCTURES.iter().flat_map(|group| group.iter()) {
        if case.not_applicable(&profile).is_none() {
            let (bench, places) = (Bench::new(store.clone()), places.clone());
            cases.spawn(async move {
                let _place = places.acquire().await;
                (case.body)(bench).await;
            });
        }
    }
    let mut passed = 0;
    while let Some(ended) = cases.join_next().await {
        // What went wrong was printed by the case.
        ended.expect("a case failed");
        passed += 1;
    }
    assert!(passed > 100, "{passed}");
    let other = Key::new("other").unwrap();
    let said = store.put(other, PutMode::Set, "v", Ttl::Never).await.unwrap_err().to_string();
    assert!(said.contains("forbids it to this user") && said.contains("key \"other\""), "{said}");
}

async fn on_a_server(version: RedisVersion) {
    let server = RedisServer::start(version, &options());
    assert!(server.command(&["ACL", "GETUSER", "larder"]) != Value::Nil);
    every_case_runs(&format!("redis://larder:secret@{}", server.addr())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_that_operators_are_told_to_make_suffices_for_every_structure_on_redis_7() {
    on_a_server(RedisVersion::Redis7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_that_operators_are_told_to_make_suffices_for_every_structure_on_redis_8() {
    on_a_server(RedisVersion::Redis8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_that_operators_are_told_to_make_suffices_for_every_structure_on_valkey() {
    on_a_server(RedisVersion::Valkey).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_that_operators_are_told_to_make_suffices_for_every_structure_on_a_cluster() {
    let cluster = RedisCluster::start_with(RedisVersion::Valkey, &options());
    every_case_runs(&cluster.url().replace("redis-cluster://", "redis-cluster://larder:secret@")).await;
}
