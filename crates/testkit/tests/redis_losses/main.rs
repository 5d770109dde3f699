//! Servers and clusters that lose what they acknowledged: every structure that says it detects that, does.
//!
//! One server that saved nothing, one that saved a while ago, one whose replica took its place, and a cluster all of whose primaries fell to replicas that were
//! behind. The replicas are down while writes are acknowledged, and come back over their own files: what happens where replication had fallen behind,
//! without a race. To the handles it is a store that was set back to an older state.

mod cut_off;
mod fresh;
mod handles;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use larder::{Array, Counter, ErrorKind, LockGuard, Set, StoreRef};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};
use tokio::task::JoinSet;

use crate::handles::{
    Handles, ROUNDS, Told, begin, each_is_older_or_newer, older_numbers_and_members_go_unnoticed, said, silent_of,
    told_by, write,
};

const PRIMARIES: usize = 3;
/// Structures of each kind, so many that every primary has something of one.
const EACH: usize = 32;
/// Of every client: the machine may be busy.
const PATIENCE: &str = "timeout_ms=5000&connect_timeout_ms=5000";

/// Writes twice more, and takes the lock: what is lost.
async fn two_more_rounds(handles: &mut Handles) -> LockGuard {
    for round in 2..=ROUNDS {
        write(handles, round).await.unwrap();
    }
    handles.lock.acquire(Duration::from_secs(5)).await.unwrap()
}

/// Opens all whose names end so, and writes once: what is kept.
async fn first_round(store: &StoreRef, which: &str) -> Handles {
    let mut handles = begin(store, which).await.unwrap();
    write(&mut handles, 1).await.unwrap();
    handles
}

async fn open(server: &RedisServer) -> StoreRef {
    larder::open(&format!("{}?{PATIENCE}", server.url())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_saved_nothing_is_a_loss_to_every_handle_and_absent_to_a_fresh_process() {
    for version in RedisVersion::ALL {
        let mut server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let mut handles = first_round(&store, "").await;
        let guard = two_more_rounds(&mut handles).await;
        server.restart();
        let silent = silent_of(&mut handles, &guard).await;
        assert!(silent.is_empty(), "{version:?}: {silent:#?}");
        let numbers = &handles.silent;
        for (what, said) in [
            ("fast counter", said(|| numbers.fast.get()).await.map(drop)),
            ("sharded set", said(|| numbers.set.members()).await.map(drop)),
            ("sharded sorted set", said(|| numbers.sorted.entries()).await.map(drop)),
        ] {
            assert_eq!(said.unwrap_err().kind(), ErrorKind::Lost, "{version:?}: {what}");
        }
        assert!(said(|| numbers.cache.get("page")).await.unwrap().is_none(), "{version:?}");
        let fresh = open(&server).await;
        let error = Counter::open(&fresh, "counter").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Absent, "{error}");
        assert!(error.to_string().contains("never created, or lost"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_from_an_older_snapshot_is_told_by_every_structure_that_detects_it() {
    for version in RedisVersion::ALL {
        let mut server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let mut handles = first_round(&store, "").await;
        assert_eq!(server.command(&["SAVE"]).text(), "OK");
        let guard = two_more_rounds(&mut handles).await;
        server.restart();
        let silent = silent_of(&mut handles, &guard).await;
        assert!(silent.is_empty(), "{version:?}: {silent:#?}");
        older_numbers_and_members_go_unnoticed(&handles.silent).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_writes_each_command_to_its_file_first_loses_nothing() {
    for version in RedisVersion::ALL {
        let mut server = RedisServer::start(version, &RedisOptions::new().appendonly());
        let store = open(&server).await;
        let mut handles = first_round(&store, "").await;
        let guard = two_more_rounds(&mut handles).await;
        server.restart();
        assert_eq!(said(|| handles.counter.get()).await.unwrap(), 15);
        assert_eq!(said(|| handles.silent.fast.get()).await.unwrap(), 15);
        assert_eq!(said(|| handles.table.keys()).await.unwrap().len(), 3);
        assert_eq!(said(|| handles.silent.set.members()).await.unwrap().len(), 3);
        assert_eq!(said(|| handles.silent.cache.get("page")).await.unwrap().expect("a page").value, "3");
        said(|| guard.renew()).await.unwrap();
        write(&mut handles, ROUNDS).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_behind_and_took_its_primarys_place_is_told_by_every_structure_that_detects_it() {
    for version in RedisVersion::ALL {
        let mut primary = RedisServer::start(version, &RedisOptions::new().arg("repl-diskless-sync-delay", "0"));
        let mut replica = RedisServer::start(version, &RedisOptions::new().replica_of(primary.addr()));
        let store = open(&primary).await;
        let mut handles = first_round(&store, "").await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while replica.info("replication", "master_link_status") != "up"
            || replica.info("replication", "slave_repl_offset") != primary.info("replication", "master_repl_offset")
        {
            assert!(Instant::now() < deadline, "{version:?}: the replica never got level");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(replica.command(&["SAVE"]).text(), "OK");
        replica.kill9();
        let guard = two_more_rounds(&mut handles).await;
        // It takes over the address, too, with all that it has: as behind a name that is pointed at it.
        primary.kill9();
        std::fs::copy(replica.folder().join("dump.rdb"), primary.folder().join("dump.rdb")).unwrap();
        primary.restart();
        let silent = silent_of(&mut handles, &guard).await;
        assert!(silent.is_empty(), "{version:?}: {silent:#?}");
        older_numbers_and_members_go_unnoticed(&handles.silent).await;
    }
}

/// Its replica follows it, also into nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_restarts_without_its_data_takes_its_replicas_along_and_every_handle_is_told() {
    for version in RedisVersion::ALL {
        let mut primary = RedisServer::start(version, &RedisOptions::new().arg("repl-diskless-sync-delay", "0"));
        let replica = RedisServer::start(version, &RedisOptions::new().replica_of(primary.addr()));
        let store = open(&primary).await;
        let mut handles = first_round(&store, "").await;
        let guard = two_more_rounds(&mut handles).await;
        let level = |what: &str, keys: fn(i64) -> bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !keys(replica.command(&["DBSIZE"]).text().parse().expect("a number")) {
                assert!(Instant::now() < deadline, "{version:?}: the replica {what}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        tokio::task::block_in_place(|| level("has nothing", |keys| keys > 10));
        primary.restart();
        let silent = silent_of(&mut handles, &guard).await;
        assert!(silent.is_empty(), "{version:?}: {silent:#?}");
        assert_eq!(said(|| handles.silent.fast.get()).await.unwrap_err().kind(), ErrorKind::Lost, "{version:?}");
        tokio::task::block_in_place(|| level("kept something", |keys| keys == 0));
        let error = Counter::open(&open(&primary).await, "counter").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Absent, "{version:?}: {error}");
    }
}

/// A cluster in which nothing is lost that a replica has, and the URL of all its nodes: with every primary gone, a client must know whom else to ask.
fn cluster() -> (RedisCluster, String) {
    let options = RedisOptions::new().appendonly().arg("cluster-require-full-coverage", "no");
    // Replicas take over when they are told to: on a busy machine a node that waits for its turn is not to seem dead.
    let options = options.arg("cluster-node-timeout", "5000");
    let cluster = RedisCluster::start_with(RedisVersion::Redis7, &options);
    let nodes: Vec<String> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redis-cluster://{}?{PATIENCE}", nodes.join(","));
    (cluster, url)
}

/// Waits until a replica has, in its file, what its primary has.
fn wait_in_step(cluster: &RedisCluster, primary: usize) {
    let (primary, replica) = (&cluster.nodes()[primary], &cluster.nodes()[primary + PRIMARIES]);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let offset = primary.info("replication", "master_repl_offset");
        let is_level = replica.info("replication", "slave_repl_offset") == offset;
        let is_written = replica.info("persistence", "aof_rewrite_in_progress") == "0"
            && replica.info("persistence", "aof_rewrite_scheduled") == "0"
            && replica.info("persistence", "aof_enabled") == "1";
        if is_level && is_written {
            return;
        }
        assert!(Instant::now() < deadline, "a replica never got level: {offset}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// From now on replicas take in nothing, though primaries acknowledge.
fn fall_behind(cluster: &mut RedisCluster) {
    for primary in 0..PRIMARIES {
        wait_in_step(cluster, primary);
        cluster.node_mut(primary + PRIMARIES).kill9();
    }
}

/// Every primary dies, and its replica takes over with what it has.
fn fail_over(cluster: &mut RedisCluster) {
    take_over(cluster, 0..PRIMARIES);
}

/// The same of some of them.
fn take_over(cluster: &mut RedisCluster, primaries: Range<usize>) {
    for primary in primaries.clone() {
        cluster.node_mut(primary).kill9();
    }
    for primary in primaries.clone() {
        cluster.node_mut(primary + PRIMARIES).restart();
    }
    for primary in primaries {
        let said = cluster.nodes()[primary + PRIMARIES].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        assert!(!said.is_error(), "{}", said.text());
    }
    cluster.wait_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_structure_that_detects_a_loss_by_failover_tells_it() {
    let start = Instant::now();
    let (mut cluster, url) = cluster();
    let store = larder::open(&url).await.unwrap();
    let mut handles = first_round(&store, "").await;
    tokio::task::block_in_place(|| fall_behind(&mut cluster));
    let guard = two_more_rounds(&mut handles).await;
    tokio::task::block_in_place(|| fail_over(&mut cluster));
    println!("failed over, {:?} after the start", start.elapsed());
    let silent = silent_of(&mut handles, &guard).await;
    assert!(silent.is_empty(), "{silent:#?}");
    older_numbers_and_members_go_unnoticed(&handles.silent).await;
    // A fresh process finds the older state, and can use it: it cannot know.
    let fresh = larder::open(&url).await.unwrap();
    let counter = Counter::open(&fresh, "counter").await.unwrap();
    assert_eq!(said(|| counter.get()).await.unwrap(), 5);
    assert_eq!(said(|| counter.add(1)).await.map(|_| ()).map_err(|error| error.to_string()), Ok(()));
    let set = Set::open(&fresh, "set").await.unwrap();
    let members = said(|| set.members()).await.unwrap();
    assert_eq!(members.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&b"1"[..], b"after"]));
}

/// It takes along what it has of each structure, and nothing of those whose keys lie elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_one_primary_is_told_by_those_that_it_took_something_of_and_the_others_are_whole() {
    let (mut cluster, url) = cluster();
    let store = larder::open(&url).await.unwrap();
    let mut first = JoinSet::new();
    for at in 0..EACH {
        let store = store.clone();
        first.spawn(async move { first_round(&store, &at.to_string()).await });
    }
    let all = first.join_all().await;
    tokio::task::block_in_place(|| fall_behind(&mut cluster));
    let mut written = JoinSet::new();
    for mut handles in all {
        written.spawn(async move { (two_more_rounds(&mut handles).await, handles) });
    }
    let all = written.join_all().await;
    tokio::task::block_in_place(|| take_over(&mut cluster, 0..1));
    let mut asked = JoinSet::new();
    for (guard, mut handles) in all {
        asked.spawn(async move {
            each_is_older_or_newer(&handles.silent).await;
            told_by(&mut handles, &guard).await
        });
    }
    let mut tell = BTreeMap::<&str, usize>::new();
    for told in asked.join_all().await.iter().flatten() {
        let Told { structure, said, .. } = told;
        assert!(
            told.is_loss() || matches!(said, Ok(true)),
            "{structure} lacks what was acknowledged and says {said:?}"
        );
        *tell.entry(structure).or_default() += usize::from(told.is_loss());
    }
    println!("of {EACH} handles each tell a loss: {tell:?}");
    assert!(tell.values().all(|&tell| tell > 0), "{tell:?}");
}

fn whole(number: u32) -> Vec<String> {
    (0..40).map(|part| format!("{number}-{part}")).collect()
}

/// Its shards lie on all primaries, and the one that holds its commits alone fails over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_whose_commits_alone_fail_over_is_told_and_goes_on_once_that_is_accepted() {
    let (mut cluster, url) = cluster();
    let store = larder::open(&url).await.unwrap();
    let options = || Array::options().shards(16).dirtiness(1 << 30).timeout(Duration::from_secs(20));
    let array = options().open_or_create(&store, "hosts").await.unwrap();
    array.change(whole(0), Vec::<&str>::new()).await.unwrap();
    let has_commits = |primary: &usize| {
        cluster.nodes()[*primary].command(&["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "*commits*"]).text()
            == "1"
    };
    let primary = (0..PRIMARIES).find(has_commits).expect("the commits");
    tokio::task::block_in_place(|| {
        wait_in_step(&cluster, primary);
        cluster.node_mut(primary + PRIMARIES).kill9();
    });
    array.change(whole(1), whole(0)).await.unwrap();
    array.compact().await.unwrap();
    tokio::task::block_in_place(|| take_over(&mut cluster, primary..primary + 1));
    let store = larder::open(&url).await.unwrap();
    let fresh = options().open(&store, "hosts").await.unwrap();
    said(|| fresh.change(whole(2), whole(0))).await.unwrap();
    for array in [&fresh, &array] {
        assert_eq!(said(|| array.elements()).await.unwrap_err().kind(), ErrorKind::RolledBack);
    }
    assert!(said(|| fresh.accept_loss()).await.unwrap());
    let elements = said(|| fresh.elements()).await.unwrap();
    assert!(whole(2).iter().all(|part| elements.iter().any(|element| element == part.as_bytes())), "{elements:?}");
    said(|| fresh.change(whole(3), &elements)).await.unwrap();
    assert!(!said(|| array.accept_loss()).await.unwrap(), "it was accepted already");
    for array in [&fresh, &array] {
        assert_eq!(said(|| array.elements()).await.unwrap().len(), whole(3).len());
    }
}
