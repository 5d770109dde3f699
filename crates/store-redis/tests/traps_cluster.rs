//! What is set up wrong in a cluster, or was written by others: as on one server, a clear error naming the command, the key and the mend, and nothing
//! overwritten.

mod common;

use std::time::{Duration, Instant};

use common::{every_op, key, put};
use larder_core::{
    Ctx, Durability, Effect, Error, ErrorKind, Eviction as Evicts, PutMode, Reply, Store, StoreExt, Ttl,
};
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion, Value, shared_cluster};

async fn try_open(url: &str) -> Result<RedisClusterStore, Error> {
    let config = ClusterConfig::from_url(&format!("{url}?timeout_ms=10000&connect_timeout_ms=5000")).unwrap();
    RedisClusterStore::connect(config).await
}

async fn open(url: &str) -> RedisClusterStore {
    try_open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn refused(url: &str) -> String {
    let error = try_open(url).await.expect_err("it was opened");
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
    error.to_string()
}

/// The cluster's URL with a user and a password.
fn url_of(cluster: &RedisCluster, user: &str) -> String {
    cluster.url().replace("redis-cluster://", &format!("redis-cluster://{user}@"))
}

fn contains(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

/// The primary of a key, to ask and to write as another program does.
fn primary_of<'a>(cluster: &'a RedisCluster, key: &str) -> &'a RedisServer {
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", key]).text();
    &cluster.nodes()[cluster.primary_of(slot.parse().unwrap())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_missing_or_wrong_is_named() {
    let cluster = RedisCluster::start_with(RedisVersion::Redis7, &RedisOptions::new().password("s3cret"));
    let missing = refused(&cluster.url()).await;
    contains(&missing, &["wants a password (HELLO", "put it in the URL", "127.0.0.1:"]);
    let wrong = refused(&url_of(&cluster, ":hunter2")).await;
    contains(&wrong, &["refuses the user or the password (HELLO", "correct them in"]);
    assert!(!wrong.contains("hunter2"), "{wrong}");
    let store = open(&url_of(&cluster, ":s3cret")).await;
    assert_eq!(store.put(key("k"), PutMode::Set, "v", Ttl::Never).await.unwrap(), Reply::Stored);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_acl_forbids_is_named_with_the_mend() {
    // Replicas sign in as the default user.
    let acl = "user default on >admin ~* &* +@all\n\
               user noscript on >p ~* &* +@all -evalsha\n\
               user noload on >p ~* &* +@all -script\n\
               user noset on >p ~* &* +@all -set\n\
               user nokey on >p ~mine* &* +@all\n";
    let cluster = RedisCluster::start_with(RedisVersion::Redis8, &RedisOptions::new().acl(acl, "default", "admin"));
    for (user, command) in [("noload", "SCRIPT LOAD"), ("noscript", "EVALSHA")] {
        contains(&refused(&url_of(&cluster, &format!("{user}:p"))).await, &[command, "ACL SETUSER", "127.0.0.1:"]);
    }
    for (user, mode, forbidden) in [
        ("noset", PutMode::Add, "'set' command"),
        ("noset", PutMode::Set, "'set' command"),
        ("nokey", PutMode::Add, " key"),
        ("nokey", PutMode::Append, " key"),
    ] {
        let op = put("k", mode, "v");
        let named = format!("op {}", op.name());
        let store = open(&url_of(&cluster, &format!("{user}:p"))).await;
        let error = store.run_one(Ctx::default(), op).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
        let said = error.to_string();
        contains(&said, &["forbids it to this user", forbidden, "ACL SETUSER", "key \"k\"", &named]);
    }
    assert_eq!(primary_of(&cluster, "k").command(&["EXISTS", "k"]), Value::Int(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_acl_forbids_of_the_cluster_itself_is_named_or_missed_and_said_to_be() {
    let acl = "user default on >admin ~* &* +@all\n\
               user nocluster on >p ~* &* +@all -cluster\n\
               user noinfo on >p ~* &* +@all -info\n\
               user noasking on >p ~* &* +@all -asking\n";
    let cluster = RedisCluster::start_with(RedisVersion::Redis7, &RedisOptions::new().acl(acl, "default", "admin"));
    let said = refused(&url_of(&cluster, "nocluster:p")).await;
    contains(&said, &["forbids it to this user", "cluster", "ACL SETUSER", "127.0.0.1:"]);

    let store = open(&url_of(&cluster, "noinfo:p")).await;
    let profile = store.profile();
    assert_eq!(profile.eviction, Evicts::Unknown);
    assert!(profile.warnings.iter().any(|warning| warning.contains("INFO is refused")), "{:?}", profile.warnings);
    assert_eq!(store.put(key("k"), PutMode::Set, "v", Ttl::Never).await.unwrap(), Reply::Stored);
    // What it is, it tells all the same.
    let single = format!("redis://noinfo:p@{}", cluster.nodes()[0].addr());
    let error = RedisStore::connect(Config::from_url(&single).unwrap()).await.unwrap_err();
    contains(&error.to_string(), &["node of a cluster", "redis-cluster://"]);

    // A slot on its way: what is not at its owner any more is asked for at the one that takes it in.
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "k"]).text();
    let owner = cluster.primary_of(slot.parse().unwrap());
    let (from, to) = (&cluster.nodes()[owner], &cluster.nodes()[(owner + 1) % 3]);
    let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]).text();
    assert_eq!(from.command(&["DEL", "k"]), Value::Int(1));
    assert_eq!(to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]).text(), "OK");
    assert_eq!(from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]).text(), "OK");
    let store = open(&url_of(&cluster, "noasking:p")).await;
    let began = Instant::now();
    let error = store.run_one(Ctx::default(), put("k", PutMode::Add, "v")).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
    contains(&error.to_string(), &["takes the command ASKING", "ACL SETUSER", "op add", "key \"k\""]);
    assert!(began.elapsed() < Duration::from_secs(5), "it went in circles");
    let may = open(&url_of(&cluster, "noinfo:p")).await;
    assert_eq!(may.run_one(Ctx::default(), put("k", PutMode::Add, "v")).await.unwrap(), Reply::Stored);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_was_taken_away_and_a_policy_that_evicts_are_named() {
    let options = RedisOptions::new().arg("rename-command APPEND", "");
    let cluster = RedisCluster::start_with(RedisVersion::Valkey, &options);
    contains(&refused(&cluster.url()).await, &["needs the command APPEND", "rename-command", "127.0.0.1:"]);
    drop(cluster);
    let cluster = RedisCluster::start(RedisVersion::Valkey);
    // One primary is enough: whatever has a key there may go.
    let odd = &cluster.nodes()[1];
    for (name, value) in
        [("maxmemory", "64mb"), ("maxmemory-policy", "allkeys-lru"), ("hash-max-listpack-entries", "4")]
    {
        assert_eq!(odd.command(&["CONFIG", "SET", name, value]).text(), "OK");
    }
    let profile = open(&cluster.url()).await.profile();
    assert_eq!((profile.eviction, profile.durability), (Evicts::WhenFull, Durability::Server));
    assert_eq!(profile.encodings, None, "its primaries do not agree");
    assert_eq!(profile.warnings.len(), 2, "{:?}", profile.warnings);
    contains(&profile.warnings[0], &["maxmemory-policy allkeys-lru", "set maxmemory-policy noeviction"]);
    contains(&profile.warnings[1], &["hash-max-listpack-entries is 4", "set hash-max-listpack-entries 512"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_wrote_is_never_touched() {
    let cluster = RedisCluster::start(RedisVersion::Redis7);
    let store = open(&cluster.url()).await;
    store.put(key("ours"), PutMode::Set, "v", Ttl::Never).await.unwrap();
    let cas = store.get(key("ours")).await.unwrap().unwrap().cas.unwrap();
    let written: [(&str, &[&str]); 7] = [
        ("list", &["RPUSH", "list", "a"]),
        ("hash", &["HSET", "hash", "a", "b"]),
        ("set", &["SADD", "set", "a"]),
        ("sorted", &["ZADD", "sorted", "1", "a"]),
        ("stream", &["XADD", "stream", "1-1", "a", "b"]),
        ("text", &["SET", "text", "hello, world"]),
        ("number", &["SET", "number", "5"]),
    ];
    for (name, command) in written {
        let primary = primary_of(&cluster, name);
        assert!(!primary.command(command).is_error());
        let before = primary.command(&["DUMP", name]);
        let because = if command[0] == "SET" { "another program wrote" } else { "another Redis type" };
        for op in every_op(name, cas) {
            let (op_name, named) = (op.name(), format!("key \"{name}\""));
            let error = store.run_one(Ctx::default(), op).await.expect_err(name);
            assert_eq!(
                (error.kind(), error.known_effect()),
                (ErrorKind::LayoutMismatch, Effect::NotApplied),
                "{name} {op_name}: {error}"
            );
            let op_name = format!("op {op_name}");
            contains(
                &error.to_string(),
                &[because, "nothing was changed", "Use another key or namespace", &op_name, &named],
            );
        }
        assert_eq!(store.run_one(Ctx::default(), put(name, PutMode::Add, "v")).await.unwrap(), Reply::NotStored);
        assert_eq!(primary.command(&["DUMP", name]), before, "{name} was changed");
        assert_eq!(primary.command(&["PTTL", name]), Value::Int(-1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_for_replicas_does_so_on_each_primary() {
    let cluster = RedisCluster::start(RedisVersion::Valkey);
    let url = format!("{}?wait_replicas=1&wait_ms=300&timeout_ms=10000&connect_timeout_ms=5000", cluster.url());
    let store = RedisClusterStore::connect(ClusterConfig::from_url(&url).unwrap()).await.unwrap();
    assert_eq!(store.profile().warnings, [""; 0]);
    let names: Vec<String> = (0..30).map(|at| format!("k{at}")).collect();
    let trips = store.stats().round_trips;
    let puts = || names.iter().map(|name| put(name, PutMode::Set, "v")).collect();
    assert!(store.run(Ctx::default(), puts()).await.iter().all(Result::is_ok));
    assert_eq!(store.stats().round_trips - trips, 3, "one a primary, the wait included");
    let keys = |node: usize| cluster.nodes()[node].command(&["DBSIZE"]);
    for primary in 0..3 {
        assert_eq!(cluster.nodes()[primary].calls("wait") > 0, keys(primary) != Value::Int(0));
        assert_eq!(keys(primary), keys(primary + 3), "its replica has what was acknowledged");
    }

    // Where a replica does not confirm, the outcome is unknown; elsewhere it is told as done.
    cluster.nodes()[3].stop();
    let replies = store.run(Ctx::default(), puts()).await;
    cluster.nodes()[3].cont();
    for (name, reply) in names.iter().zip(replies) {
        let is_there = primary_of(&cluster, name).addr() == cluster.nodes()[0].addr();
        match reply {
            Ok(_) => assert!(!is_there, "{name} was told as done"),
            Err(error) => {
                assert!(is_there, "{name}: {error}");
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown));
                contains(
                    &error.to_string(),
                    &["0 of 1 replicas confirmed it within 300 ms", &format!("key \"{name}\"")],
                );
            }
        }
    }
    // Reads go on once the replica has caught up.
    let deadline = Instant::now() + Duration::from_secs(10);
    for name in &names {
        while let Err(error) = store.get(key(name)).await {
            assert!(Instant::now() < deadline, "{name}: {error}");
        }
    }
}

/// What `WAIT` says to a replica is no answer about the write, which is redirected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_for_replicas_follows_its_primary() {
    for version in RedisVersion::ALL {
        let cluster = RedisCluster::start(version);
        let url = format!("{}?wait_replicas=1&wait_ms=5000&timeout_ms=20000&connect_timeout_ms=5000", cluster.url());
        let store = RedisClusterStore::connect(ClusterConfig::from_url(&url).unwrap()).await.unwrap();
        let write = |value: &'static str| store.put(key("k"), PutMode::Set, value, Ttl::Never);
        assert_eq!(write("v").await.unwrap(), Reply::Stored);
        let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "k"]).text().parse().unwrap();
        let replica = cluster.primary_of(slot) + 3;
        tokio::task::block_in_place(|| cluster.fail_over_to(replica));
        let waits = cluster.nodes()[replica].calls("wait");
        assert_eq!(write("w").await.unwrap(), Reply::Stored);
        assert!(store.stats().redirections > 0, "it knew of the failover");
        assert!(cluster.nodes()[replica].calls("wait") > waits);
        assert_eq!(store.get(key("k")).await.unwrap().unwrap().value, "w");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_profile_tells_of_the_cluster() {
    for version in RedisVersion::ALL {
        let profile = open(&shared_cluster(version).url()).await.profile();
        let flavour = if version == RedisVersion::Valkey { "valkey " } else { "redis " };
        assert!(profile.store.starts_with(flavour), "{}", profile.store);
        assert!(profile.store.ends_with("cluster of 3 primaries, 3 replicas"), "{}", profile.store);
        assert_eq!((profile.nodes, profile.cas, profile.watch), (1, true, true));
        assert_eq!((profile.durability, profile.eviction), (Durability::Server, Evicts::Never));
        assert_eq!(profile.warnings, [""; 0]);
        assert_eq!(profile.encodings.expect("its primaries agree").set_integers_max, 512);
    }
}

/// Replicas come and move unseen: a primary that a failover has just made, or whose replica is down for a moment, tells of none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_never_promises_what_a_failover_takes() {
    let mut cluster = RedisCluster::start_with(RedisVersion::Redis8, &RedisOptions::new().appendonly());
    let store = open(&cluster.url()).await;
    assert_eq!((store.profile().durability, store.profile().warnings.len()), (Durability::Recent, 0));
    (3..6).for_each(|replica| cluster.node_mut(replica).kill9());
    let deadline = Instant::now() + Duration::from_secs(20);
    while (0..3).any(|primary| cluster.nodes()[primary].info("replication", "connected_slaves") != "0") {
        assert!(Instant::now() < deadline, "the replicas do not leave");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let profile = open(&cluster.url()).await.profile();
    assert_eq!(profile.durability, Durability::Recent);
    assert!(profile.may_lose_one());
    contains(&profile.warnings[0], &["3 of 3 primaries had no replica when they were last connected to"]);
}

/// What it is set up to evict or lose nobody knows before it tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_primary_has_told_nothing_the_profile_promises_nothing_for_it() {
    let mut cluster = RedisCluster::start(RedisVersion::Redis8);
    // Nobody takes its place.
    cluster.node_mut(3).kill9();
    cluster.node_mut(0).kill9();
    let store = open(&cluster.url()).await;
    let profile = store.profile();
    assert_eq!((profile.eviction, profile.durability), (Evicts::Unknown, Durability::Unknown));
    assert!(profile.may_evict() && profile.may_lose_one());
    assert_eq!(profile.warnings.len(), 1, "{:?}", profile.warnings);
    contains(&profile.warnings[0], &["1 of 3 primaries told nothing", "see whether they are up"]);

    tokio::task::block_in_place(|| cluster.node_mut(0).restart());
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.profile().eviction == Evicts::Unknown {
        assert!(Instant::now() < deadline, "it is not heard of");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let profile = store.profile();
    assert_eq!((profile.eviction, profile.durability), (Evicts::Never, Durability::Server));
    assert!(!profile.warnings.iter().any(|warning| warning.contains("told nothing")), "{:?}", profile.warnings);
    // What it told stands while it is down.
    cluster.node_mut(0).kill9();
    assert_eq!(store.profile().eviction, Evicts::Never);
}
