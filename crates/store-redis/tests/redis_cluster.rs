//! The store on a real cluster: routing, redirections, lost nodes, and what is said of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::list::{List, Listed};
use larder_core::{
    Arith, Batch, Ctx, Effect, Error, ErrorKind, Initial, Key, Op, PutMode, Reply, Route, Store, StoreExt, Ttl, Verb,
    Want,
};
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore};
use larder_testkit::proxy::{Fault, Proxy, Then};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion, shared_cluster};

const PATIENCE: &str = "timeout_ms=10000&connect_timeout_ms=5000";

async fn open(url: &str) -> RedisClusterStore {
    let config = ClusterConfig::from_url(&format!("{url}?{PATIENCE}")).unwrap();
    RedisClusterStore::connect(config).await.unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name.to_owned()).unwrap()
}

/// Keys of this test alone.
fn keys(name: &str, count: usize) -> Vec<Key> {
    let unique = fastrand::u64(..);
    (0..count).map(|at| key(&format!("{name}-{unique:x}-{at}"))).collect()
}

fn slot_of(cluster: &RedisCluster, key: &Key) -> u16 {
    let said = cluster.nodes()[0].command(&[b"CLUSTER", b"KEYSLOT" as &[u8], key.as_bytes()]);
    said.text().parse().unwrap()
}

fn incr(key: &Key) -> Op {
    let initial = Some(Initial { value: 1, ttl: Ttl::Never });
    Op::new(key.clone(), Verb::Arith { arith: Arith::Incr(1), initial })
}

async fn number(store: &RedisClusterStore, key: &Key) -> u64 {
    match store.run_one(Ctx::default(), Op::arith(key.clone(), Arith::Incr(0))).await.unwrap() {
        Reply::Number(number) => number,
        Reply::Miss => 0,
        other => panic!("{other:?}"),
    }
}

/// On a busy machine a node that waits for its turn is not to seem dead.
fn patient() -> RedisOptions {
    RedisOptions::new().arg("cluster-node-timeout", "5000")
}

/// Waits until a key is asked for where it is, without a redirection.
async fn is_known_soon(store: &RedisClusterStore, key: &Key) {
    for _ in 0..100 {
        let before = store.stats().redirections;
        assert!(store.get(key.clone()).await.unwrap().is_some());
        if store.stats().redirections == before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the map was never read anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_one_round_trip_a_node() {
    let store = open(&shared_cluster(RedisVersion::Redis7).url()).await;
    let keys = keys("batch", 300);
    let put = |key: &Key| Op::put(key.clone(), PutMode::Set, key.clone().into_bytes(), Ttl::Never);
    let before = store.stats().round_trips;
    let puts = store.run(Ctx::default(), keys.iter().map(put).collect()).await;
    assert!(puts.iter().all(|reply| *reply.as_ref().unwrap() == Reply::Stored));
    let gets: Batch = keys.iter().map(|key| Op::get(key.clone(), Want::VALUE)).collect();
    let replies = store.run(Ctx::default(), gets).await;
    for (reply, key) in replies.into_iter().zip(&keys) {
        assert_eq!(reply.unwrap().into_item().unwrap().value, key.as_bytes());
    }
    assert_eq!(store.stats().round_trips - before, 6, "two batches, three primaries");
    let before = store.stats().round_trips;
    assert!(store.get(keys[0].clone()).await.unwrap().is_some());
    assert_eq!(store.stats().round_trips - before, 1);
    assert_eq!(store.stats().redirections, 0);
    let profile = store.profile();
    assert_eq!((profile.nodes, profile.cas), (1, true));
    assert!(profile.store.contains("cluster of 3 primaries, 3 replicas"), "{}", profile.store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_are_one_round_trip_a_node_and_one_more_after_scripts_were_forgotten() {
    let cluster = RedisCluster::start(RedisVersion::Redis8);
    let store = open(&cluster.url()).await;
    let keys = keys("many", 5_000);
    let put = |key: &Key| Op::put(key.clone(), PutMode::Add, key.clone().into_bytes(), Ttl::Never);
    for some in keys.chunks(1_000) {
        let replies = store.run(Ctx::default(), some.iter().map(put).collect()).await;
        assert!(replies.iter().all(|reply| *reply.as_ref().unwrap() == Reply::Stored));
    }
    // Plain gets are commands, those that tell a life are scripts.
    for (want, forgotten_trips) in [(Want::VALUE | Want::TTL, 6), (Want::VALUE, 3)] {
        for (flush, trips) in [(false, 3), (true, forgotten_trips)] {
            if flush {
                let said = cluster.nodes()[..3].iter().map(|node| node.command(&["SCRIPT", "FLUSH"]).text());
                assert!(said.into_iter().all(|said| said == "OK"));
            }
            let before = store.stats().round_trips;
            let gets: Batch = keys.iter().map(|key| Op::get(key.clone(), want)).collect();
            let replies = store.run(Ctx::default(), gets).await;
            assert_eq!(store.stats().round_trips - before, trips, "{want:?}, {flush}");
            assert_eq!(replies.len(), keys.len());
            for (reply, key) in replies.into_iter().zip(&keys) {
                assert_eq!(reply.unwrap().into_item().unwrap().value, key.as_bytes());
            }
        }
    }
    assert_eq!(store.stats().redirections, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_of_a_batch_are_asked_at_once() {
    let cluster = RedisCluster::start(RedisVersion::Redis7);
    let store = Arc::new(open(&cluster.url()).await);
    let keys = keys("once", 60);
    // The first node stands still: the others answer what they were sent all the same.
    cluster.nodes()[0].stop();
    let before: Vec<u64> = [1, 2].iter().map(|&at| cluster.nodes()[at].calls("get")).collect();
    let (reader, gets) = (store.clone(), keys.iter().map(|key| Op::get(key.clone(), Want::VALUE)).collect());
    let read = tokio::spawn(async move { reader.run(Ctx::default(), gets).await });
    for (at, before) in [1, 2].into_iter().zip(before) {
        while cluster.nodes()[at].calls("get") == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(!read.is_finished());
    cluster.nodes()[0].cont();
    assert!(read.await.unwrap().iter().all(|reply| *reply.as_ref().unwrap() == Reply::Miss));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_share_a_slot_and_have_no_ranks() {
    let store = open(&shared_cluster(RedisVersion::Redis7).url()).await;
    let with = Route { with: Some(keys("family{1}", 1).remove(0)), rank: 0 };
    let member = |at: u32| Op::put(key(&format!("member{at}")), PutMode::Set, "", Ttl::Never).routed(with.clone());
    let before = store.stats().round_trips;
    assert!(store.run(Ctx::default(), (0..20).map(member).collect()).await.iter().all(Result::is_ok));
    assert_eq!(store.stats().round_trips - before, 1);
    let rank = Op::get(key("k"), Want::VALUE).routed(Route { with: None, rank: 1 });
    let error = store.run_one(Ctx::default(), rank).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_on_one_key_keep_their_order_while_its_slot_moves() {
    let cluster = RedisCluster::start_with(RedisVersion::Redis8, &patient());
    let store = open(&cluster.url()).await;
    let many = key("many");
    let slot = slot_of(&cluster, &many);
    let mover = tokio::task::spawn_blocking(move || {
        (0..6).for_each(|turn| cluster.move_slot(slot, turn % 3));
        cluster
    });
    while !mover.is_finished() {
        let set = Op::put(many.clone(), PutMode::Set, "0", Ttl::Never);
        let append = |text: &'static str| Op::put(many.clone(), PutMode::Append, text, Ttl::Never);
        let get = Op::get(many.clone(), Want::VALUE);
        let replies = store.run(Ctx::default(), Batch::from_iter([set, append("1"), append("2"), get])).await;
        let [Ok(Reply::Stored), Ok(Reply::Stored), Ok(Reply::Stored), Ok(Reply::Item(item))] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert_eq!(item.value, "012");
    }
    mover.await.unwrap();
    assert!(store.stats().redirections > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_followed_and_then_known() {
    let cluster = RedisCluster::start_with(RedisVersion::Valkey, &patient());
    let store = open(&cluster.url()).await;
    let moved = key("moved");
    store.put(moved.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap();
    let slot = slot_of(&cluster, &moved);
    let to = (cluster.primary_of(slot) + 1) % 3;
    let item = store.get(moved.clone()).await.unwrap().unwrap();

    // Under way: what is there is served where it was, what is not yet made where it will be.
    cluster.begin_move(slot, to);
    assert!(store.get(moved.clone()).await.unwrap().is_some());
    assert_eq!(store.stats().redirections, 0);
    let fresh = Op::put(key("fresh"), PutMode::Add, "w", Ttl::Never);
    let fresh = fresh.routed(Route { with: Some(moved.clone()), rank: 0 });
    assert_eq!(store.run_one(Ctx::default(), fresh.clone()).await.unwrap(), Reply::Stored);
    assert_eq!(store.stats().redirections, 1, "asked where it is taken in");
    cluster.move_keys(slot, to);
    let cas = PutMode::Cas(item.cas.unwrap());
    assert_eq!(
        store.put(moved.clone(), cas, "v2", Ttl::Never).await.unwrap(),
        Reply::Stored,
        "a token outlives a move"
    );
    assert_eq!(store.run_one(Ctx::default(), fresh).await.unwrap(), Reply::NotStored);
    cluster.end_move(slot, to);

    let before = store.stats();
    assert_eq!(store.get(moved.clone()).await.unwrap().unwrap().value, "v2");
    assert_eq!(store.stats().redirections, before.redirections + 1);
    // The map is read anew meanwhile: soon there is no detour.
    is_known_soon(&store, &moved).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_leaves_unknown_what_was_sent_and_its_replica_serves_on() {
    let mut cluster = RedisCluster::start(RedisVersion::Redis7);
    let store = Arc::new(open(&cluster.url()).await);
    let counted = keys("counted", 1).remove(0);
    let slot = slot_of(&cluster, &counted);
    let primary = cluster.primary_of(slot);
    for _ in 0..5 {
        store.run_one(Ctx::default(), incr(&counted)).await.unwrap();
    }
    // What stands in the socket of a server that dies may have been run: it is not sent to another one.
    cluster.nodes()[primary].stop();
    let (sender, op) = (store.clone(), incr(&counted));
    let sent = tokio::spawn(async move { sender.run_one(Ctx::default(), op).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!sent.is_finished());
    cluster.node_mut(primary).kill9();
    let error = sent.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    // What is sent from now on waits for the replica.
    let now = store.run_one(Ctx::default(), incr(&counted)).await.unwrap();
    let Reply::Number(now) = now else { panic!("{now:?}") };
    assert!((1..=7).contains(&now), "{now}");
    assert_eq!(number(&store, &counted).await, now);
    cluster.node_mut(primary).restart();
    cluster.wait_ok();
    assert_eq!(number(&store, &counted).await, now, "it came back as a replica");
    // And with consent, back to where it was: the one that was primary refuses, and that is followed.
    cluster.fail_over_to(primary);
    store.run_one(Ctx::default(), incr(&counted)).await.unwrap();
    assert_eq!(number(&store, &counted).await, now + 1);
}

async fn error_of(url: &str) -> Error {
    RedisClusterStore::connect(ClusterConfig::from_url(url).unwrap()).await.unwrap_err()
}

/// Has these nodes forget who serves a slot. One that does before its owner did learns of it once more, by what the owner had still to say.
async fn abandon(nodes: &[RedisServer], slot: u16) {
    let is_served = |node: &&RedisServer| {
        !node.command(&["CLUSTER", "DELSLOTS", &slot.to_string()]).text().contains("already unassigned")
    };
    let (mut quiet, deadline) = (0, Instant::now() + Duration::from_secs(10));
    while quiet < 3 {
        assert!(Instant::now() < deadline, "slot {slot} is served on");
        quiet = if nodes.iter().filter(is_served).count() == 0 { quiet + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_nobody_serves_is_named() {
    let options = patient().arg("cluster-require-full-coverage", "no");
    let cluster = RedisCluster::start_with(RedisVersion::Redis7, &options);
    let config = ClusterConfig::from_url(&format!("{}?timeout_ms=400", cluster.url())).unwrap();
    let store = RedisClusterStore::connect(config).await.unwrap();
    let gone = key("gone");
    let slot = slot_of(&cluster, &gone);
    abandon(cluster.nodes(), slot).await;
    let told = || cluster.nodes().iter().map(|node| node.calls("cluster|slots")).sum::<u64>();
    let (start, before, told_before) = (Instant::now(), store.stats().maps_read, told());
    let error = store.put(gone, PutMode::Set, "v", Ttl::Never).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    let said = error.to_string();
    for part in [&format!("slot {slot}"), "op set", "key \"gone\"", "redis-cli --cluster fix"] {
        assert!(said.contains(part), "{said}");
    }
    // Each look asks one node, and all of the others no more than four times a second.
    let others = cluster.nodes().len() as u64 - 1;
    let (told, looks) = (told() - told_before, store.stats().maps_read + 1 - before);
    let all_asked = 1 + start.elapsed().as_millis() as u64 / 250;
    assert!(told <= looks + others * all_asked, "{told} maps told in {looks} looks");
    // The others are served.
    let others: Batch = keys("other", 50).into_iter().map(|key| Op::get(key, Want::VALUE)).collect();
    assert!(store.run(Ctx::default(), others).await.iter().all(Result::is_ok));
    // A listing is of them, and says that there may be more.
    store.put(key("other listed"), PutMode::Set, "v", Ttl::Never).await.unwrap();
    let mut listed = 0;
    let mut tell = |told: Listed<'_>| listed += usize::from(told == Listed::Key(b"other listed"));
    let error = store.list(Ctx::default(), b"", &mut tell).await.unwrap_err();
    assert_eq!((error.kind(), listed), (ErrorKind::Unavailable, 1), "{error}");
    assert!(error.to_string().contains("16383 of 16384 slots"), "{error}");
    cluster.nodes()[0].command(&["CLUSTER", "ADDSLOTS", &slot.to_string()]);
    // It is listed once a look at the map finds it whole again.
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = store.list(Ctx::default(), b"", &mut |_| {}).await {
        assert!(Instant::now() < deadline, "{error}");
    }
}

/// It goes on serving its slots, and knows of no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_cut_off_from_the_others_does_not_hide_them() {
    let options = patient().arg("cluster-require-full-coverage", "no");
    let cluster = RedisCluster::start_with(RedisVersion::Redis7, &options);
    let before = open(&cluster.url()).await;
    let [cut_off, others @ ..] = cluster.nodes() else { unreachable!("a cluster has nodes") };
    for other in others {
        let id = other.command(&["CLUSTER", "MYID"]).text();
        let said = cut_off.command(&["CLUSTER", "FORGET", &id]);
        assert!(!said.is_error(), "{}", said.text());
    }
    assert!(cut_off.command(&["CLUSTER", "INFO"]).text().contains("cluster_slots_assigned:5461"));
    // The first seed is the one that is cut off.
    let fresh = open(&cluster.url()).await;
    let keys = keys("known", 50);
    for key in &keys {
        assert_eq!(fresh.put(key.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap(), Reply::Stored);
    }
    // Who knows them all looks again and again for a slot that nobody serves, and asks the one that is cut off, too.
    let is_of_others = |key: &&Key| cluster.primary_by(1, slot_of(&cluster, key)) != Some(0);
    let gone = keys.iter().find(is_of_others).expect("they serve two thirds of the slots");
    let slot = slot_of(&cluster, gone);
    abandon(others, slot).await;
    let asked_before = cut_off.calls("cluster|slots");
    let is_kept = |key: &&Key| slot_of(&cluster, key) != slot;
    let kept: Vec<Key> = keys.iter().filter(is_kept).cloned().collect();
    let get = Op::get(gone.clone(), Want::VALUE);
    let gets = async {
        for _ in 0..20 {
            for key in &kept {
                assert!(before.get(key.clone()).await.unwrap().is_some());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (refused, ()) = tokio::join!(before.run_one(Ctx::within(Duration::from_secs(2)), get), gets);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(cut_off.calls("cluster|slots") > asked_before, "it was never asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_for_the_sake_of_another_slot_says_so() {
    for version in RedisVersion::ALL {
        let options = RedisOptions::new().arg("cluster-require-full-coverage", "yes");
        let cluster = RedisCluster::start_with(version, &options);
        let config = || ClusterConfig::from_url(&format!("{}?timeout_ms=1000", cluster.url())).unwrap();
        let known = RedisClusterStore::connect(config()).await.unwrap();
        let [gone, served] = ["gone", "served"].map(key);
        let slots = [&gone, &served].map(|key| slot_of(&cluster, key));
        abandon(cluster.nodes(), slots[0]).await;
        let is_down = |node: &RedisServer| node.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:fail");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !cluster.nodes().iter().all(is_down) {
            assert!(Instant::now() < deadline, "{version:?}: it serves on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // One that was connected before, and one that connects to it as it is.
        for store in [known, RedisClusterStore::connect(config()).await.unwrap()] {
            let error = store.put(gone.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
            let said = error.to_string();
            let missing = format!("the slot {} of this key is served by no node", slots[0]);
            for part in [&missing[..], "16383 of 16384", "op set", "key \"gone\"", "redis-cli --cluster fix"] {
                assert!(said.contains(part), "{version:?}: {part:?} is not in: {said}");
            }
            let error = store.put(served.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
            let said = error.to_string();
            let there = format!("the slot {} of this key has its primary, but 1 of 16384 slots have none", slots[1]);
            let mend = ["cluster-require-full-coverage no", "--cluster fix"];
            for part in [&there[..], "CLUSTERDOWN", "op set", "key \"served\""].into_iter().chain(mend) {
                assert!(said.contains(part), "{version:?}: {part:?} is not in: {said}");
            }
            assert!(!said.contains("does not serve the slot"), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_may_be_dead_or_replicas_and_single_servers_are_told_apart() {
    let mut cluster = RedisCluster::start_with(RedisVersion::Redis7, &RedisOptions::new().password("secret"));
    let [dead, replica] = [2, 4].map(|at| cluster.nodes()[at].addr());
    let wrong = error_of(&format!("redis-cluster://{replica}")).await;
    assert_eq!(wrong.kind(), ErrorKind::Config);
    assert!(wrong.to_string().contains("password"), "{wrong}");
    cluster.node_mut(2).kill9();
    let store = open(&format!("redis-cluster://:secret@{dead},{replica}")).await;
    let some: Batch = keys("seed", 30).into_iter().map(|key| Op::put(key, PutMode::Set, "v", Ttl::Never)).collect();
    let replies = store.run(Ctx::default(), some).await;
    assert!(replies.iter().all(Result::is_ok), "those of the dead wait for its replica: {replies:?}");

    let node = RedisStore::connect(Config::from_url(&format!("redis://:secret@{replica}")).unwrap()).await.unwrap_err();
    assert!(node.to_string().contains("redis-cluster://"), "{node}");
    let single = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let error = error_of(&format!("redis-cluster://{}", single.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("open it as redis://"), "{error}");
    let error = error_of("redis-cluster://127.0.0.1:1").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A watch of keys as they stand, which waits by the time that this returns.
async fn watching(store: &Arc<RedisClusterStore>, keys: &[Key]) -> tokio::task::JoinHandle<Vec<Reply>> {
    let mut watches = Batch::new();
    for key in keys {
        let item = store.run_one(Ctx::default(), Op::get(key.clone(), Want::CAS)).await.unwrap().into_item();
        watches.push(Op::watch(key.clone(), item.and_then(|item| item.cas)));
    }
    let store = store.clone();
    let watch = tokio::spawn(async move {
        let replies = store.run(Ctx::within(Duration::from_secs(30)), watches).await;
        replies.into_iter().map(Result::unwrap).collect()
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!watch.is_finished(), "nothing has changed");
    watch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_when_its_slot_moves_or_its_primary_dies() {
    let mut cluster = RedisCluster::start(RedisVersion::Redis8);
    let store = Arc::new(open(&cluster.url()).await);
    let keys = keys("watched", 8);
    for key in &keys {
        store.put(key.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap();
    }
    // On all nodes at once; one changes.
    let watch = watching(&store, &keys).await;
    store.put(keys[5].clone(), PutMode::Set, "w", Ttl::Never).await.unwrap();
    let told = watch.await.unwrap();
    assert_eq!((told.len(), &told[5]), (8, &Reply::Changed));

    let slot = slot_of(&cluster, &keys[0]);
    let watch = watching(&store, &keys[..1]).await;
    tokio::task::block_in_place(|| cluster.move_slot(slot, (cluster.primary_of(slot) + 1) % 3));
    assert_eq!(watch.await.unwrap(), [Reply::Changed], "its slot has moved");

    // Watched where it is now: a watch by the map of before would end with the new one.
    is_known_soon(&store, &keys[0]).await;
    let watch = watching(&store, &keys[..1]).await;
    let primary = cluster.primary_of(slot);
    cluster.node_mut(primary).kill9();
    assert_eq!(watch.await.unwrap(), [Reply::Changed], "its primary is gone");
    tokio::task::block_in_place(|| cluster.wait_failover(slot, primary));
    let watch = watching(&store, &keys[..1]).await;
    store.put(keys[0].clone(), PutMode::Append, "x", Ttl::Never).await.unwrap();
    assert_eq!(watch.await.unwrap(), [Reply::Changed], "told by the one that took over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_before_scripts_are_loaded_again_stays_answered() {
    let cluster = RedisCluster::start_with(RedisVersion::Redis7, &patient());
    let node = &cluster.nodes()[0];
    let proxy = Proxy::start(node.addr());
    let said = node.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.addr().port().to_string()]);
    assert_eq!(said.text(), "OK");
    let store = open(&format!("redis-cluster://{}", proxy.addr())).await;
    let keys = keys("here", 100);
    let mut keys = keys.iter().filter(|key| cluster.primary_of(slot_of(&cluster, key)) == 0);
    let (plain, scripted) = (keys.next().expect("a third"), keys.next().expect("a third"));
    node.command(&["SCRIPT", "FLUSH"]);
    // What is sent once more behind the scripts has its reply lost.
    proxy.script(0, |moment, _| match moment.bytes.windows(6).any(|part| part == b"SCRIPT") {
        true => Fault::LoseReply(Then::Close),
        false => Fault::Pass,
    });
    let put = |key: &Key, mode| Op::put(key.clone(), mode, "v", Ttl::Never);
    let batch = Batch::from_iter([put(plain, PutMode::Add), put(scripted, PutMode::Set)]);
    let replies = store.run(Ctx::default(), batch).await;
    proxy.set(Fault::Pass);
    assert!(proxy.counts().lost_replies > 0, "{replies:?}");
    assert_eq!(replies[0].as_ref().unwrap(), &Reply::Stored, "it was answered before");
    let error = replies[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    assert_eq!(store.get(plain.clone()).await.unwrap().expect("it was stored").value, "v");
}

/// A script begins there, and is refused its first write in words without a code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_not_applied_on_a_cluster_that_serves_reads_while_it_is_down() {
    for version in RedisVersion::ALL {
        let reads = patient().arg("cluster-require-full-coverage", "yes").arg("cluster-allow-reads-when-down", "yes");
        let cluster = RedisCluster::start_with(version, &reads);
        let config = ClusterConfig::from_url(&format!("{}?timeout_ms=1000", cluster.url())).unwrap();
        let store = RedisClusterStore::connect(config).await.unwrap();
        let [gone, served] = ["gone", "served"].map(key);
        store.put(served.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap();
        abandon(cluster.nodes(), slot_of(&cluster, &gone)).await;
        let is_down = |node: &RedisServer| node.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:fail");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !cluster.nodes().iter().all(is_down) {
            assert!(Instant::now() < deadline, "{version:?}: it serves on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let began = Instant::now();
        let error = store.put(served.clone(), PutMode::Set, "w", Ttl::Never).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert!(began.elapsed() >= Duration::from_millis(800), "{version:?}: not tried until the deadline");
        let said = error.to_string();
        for part in ["while the cluster is down", "takes no write", "op set", "key \"served\""] {
            assert!(said.contains(part), "{version:?}: {part:?} is not in: {said}");
        }
        assert_eq!(store.get(served).await.unwrap().unwrap().value, "v");
    }
}
