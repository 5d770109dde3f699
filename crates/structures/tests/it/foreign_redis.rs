//! Keys of a structure under which another program keeps something of its own, on a server and on a cluster: the manifest's key, and native data's.

use std::sync::Arc;

use larder_core::{Effect, ErrorKind, Result, StoreRef};
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore};
use larder_structures::{
    Array, Cache, Counter, EventLog, Lock, PackedTable, Queue, Set, ShardedHash, ShardedSet, Stack, Table,
    UniqueVisitors, Visitors,
};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};

/// A server, or a cluster: what tests ask beside the store.
enum Servers {
    One(Box<RedisServer>),
    Cluster(RedisCluster),
}

impl Servers {
    async fn store(&self) -> StoreRef {
        match self {
            Servers::One(server) => {
                Arc::new(RedisStore::connect(Config::from_url(&server.url()).unwrap()).await.unwrap())
            }
            Servers::Cluster(cluster) => {
                let config = ClusterConfig::from_url(&format!("{}?timeout_ms=10000", cluster.url())).unwrap();
                Arc::new(RedisClusterStore::connect(config).await.unwrap())
            }
        }
    }

    /// The server that has a key.
    fn of(&self, key: &str) -> &RedisServer {
        match self {
            Servers::One(server) => server,
            Servers::Cluster(cluster) => {
                let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", key]).text();
                &cluster.nodes()[cluster.primary_of(slot.parse().unwrap())]
            }
        }
    }

    fn keys(&self) -> Vec<String> {
        let all = |server: &RedisServer| server.command(&["KEYS", "L.*"]).text();
        let text = match self {
            Servers::One(server) => all(server),
            Servers::Cluster(cluster) => {
                let primaries = cluster.nodes().iter().enumerate().filter(|(node, _)| cluster.is_primary(*node));
                primaries.map(|(_, node)| all(node)).collect::<Vec<_>>().join("\n")
            }
        };
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

fn servers() -> Vec<Servers> {
    let one = |version| Servers::One(Box::new(RedisServer::start(version, &RedisOptions::new())));
    let mut all: Vec<Servers> = RedisVersion::ALL.map(one).into_iter().collect();
    all.push(Servers::Cluster(RedisCluster::start(RedisVersion::Redis7)));
    all
}

/// What each structure says of a name, opened and made.
async fn said_of(store: &StoreRef, name: &str) -> Vec<(&'static str, Result<()>)> {
    vec![
        ("lock", Lock::open(store, name).await.map(drop)),
        ("counter", Counter::open_or_create(store, name).await.map(drop)),
        ("fast counter", Counter::options().fast().open_or_create(store, name).await.map(drop)),
        ("set", Set::open_or_create(store, name).await.map(drop)),
        ("array", Array::open_or_create(store, name).await.map(drop)),
        ("table", Table::open_or_create(store, name).await.map(drop)),
        ("log", EventLog::open_or_create(store, name).await.map(drop)),
        ("queue", Queue::open_or_create(store, name).await.map(drop)),
        ("stack", Stack::open_or_create(store, name).await.map(drop)),
        ("cache", Cache::open_or_create(store, name).await.map(drop)),
        ("visitors", Visitors::open_or_create(store, name).await.map(drop)),
        ("unique visitors", UniqueVisitors::open_or_create(store, name).await.map(drop)),
        ("packed table", PackedTable::open_or_create(store, name).await.map(drop)),
        ("sharded hash", ShardedHash::open_or_create(store, name).await.map(drop)),
        ("sharded set", ShardedSet::open(store, name).await.map(drop)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifests_key_that_another_program_uses_is_never_touched() {
    for servers in servers() {
        let store = servers.store().await;
        let written: [(&str, &[&str]); 4] = [
            ("list", &["RPUSH", "L.list.m", "a"]),
            ("hash", &["HSET", "L.hash.m", "a", "b"]),
            ("text", &["SET", "L.text.m", "hello, world"]),
            ("number", &["SET", "L.number.m", "5"]),
        ];
        for (name, command) in written {
            let key = command[1];
            assert!(!servers.of(key).command(command).is_error());
            let before = servers.of(key).command(&["DUMP", key]);
            for (kind, said) in said_of(&store, name).await {
                let error = said.expect_err(kind);
                assert_eq!(
                    (error.kind(), error.known_effect()),
                    (ErrorKind::LayoutMismatch, Effect::NotApplied),
                    "{kind} of {name}: {error}"
                );
                let said = error.to_string();
                for part in ["another", "op ", &format!("key \"{key}\""), "Use another key or namespace"] {
                    assert!(said.contains(part), "{kind} of {name}: {part:?} is not in: {said}");
                }
            }
            assert_eq!(servers.of(key).command(&["DUMP", key]), before, "{name} was changed");
        }
        assert_eq!(servers.keys().len(), written.len(), "nothing was left behind: {:?}", servers.keys());
    }
}

/// What another program keeps under a key of native data, in the very type that the structure keeps there: it has no mark, so it is no part of the structure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn native_data_of_another_program_of_the_same_type_are_a_loss_and_never_written_to() {
    for servers in servers() {
        let store = servers.store().await;
        let hash = ShardedHash::options().shards(1).open_or_create(&store, "hash").await.unwrap();
        let set = ShardedSet::options().shards(1).open_or_create(&store, "set").await.unwrap();
        let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
        hash.set([("f", "v")]).await.unwrap();
        set.add(["m"]).await.unwrap();
        fast.add(1).await.unwrap();
        let of = |name: &str, kind: &str| {
            let keys = servers.keys().into_iter().filter(|key| key.contains(&format!("L.{name}.")));
            keys.into_iter().find(|key| servers.of(key).command(&["TYPE", key]).text() == kind).expect("a native key")
        };
        let (hash_key, set_key) = (of("hash", "hash"), of("set", "set"));
        let fast_key = servers.keys().into_iter().find(|key| key.starts_with("L.fast.") && key != "L.fast.m").unwrap();
        let replace = |key: &str, command: &[&str]| {
            servers.of(key).command(&["DEL", key]);
            assert!(!servers.of(key).command(command).is_error());
            servers.of(key).command(&["DUMP", key])
        };
        let hash_before = replace(&hash_key, &["HSET", &hash_key, "a", "b"]);
        let set_before = replace(&set_key, &["SADD", &set_key, "a"]);
        for error in [
            hash.set([("f", "w")]).await.unwrap_err(),
            hash.get("f").await.unwrap_err(),
            hash.entries().await.unwrap_err(),
            set.add(["n"]).await.unwrap_err(),
            set.has("m").await.unwrap_err(),
            set.members().await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
        }
        assert_eq!(servers.of(&hash_key).command(&["DUMP", &hash_key]), hash_before, "the hash was changed");
        assert_eq!(servers.of(&set_key).command(&["DUMP", &set_key]), set_before, "the set was changed");
        // A number's mark is its first bit, which no text has.
        let fast_before = replace(&fast_key, &["SET", &fast_key, "hello, world"]);
        assert_eq!(fast.get().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(servers.of(&fast_key).command(&["DUMP", &fast_key]), fast_before, "the text was changed");
    }
}
