//! Keys of a structure under which another program keeps something of its own, on a server and on a cluster: the manifest's key, and native data's.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::native::Families;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Profile, Result, Run, Store, StoreRef, Verb};
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore};
use larder_structures::records::{Schema, Value as Field};
use larder_structures::registry::drop_structure;
use larder_structures::{
    Array, Cache, Counter, EventLog, IdKind, Lock, Name, Novelty, PackedRecords, PackedTable, Precision, Queue, Set,
    ShardedHash, ShardedSet, ShardedSortedSet, Stack, Table, UniqueVisitors, UniqueVisitorsOptions, Visitors,
};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion, Value};

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

    /// Puts what another program may keep there in the place of what is there, with a life, and looks at it.
    fn plant(&self, key: &str, command: &[&[u8]]) -> Seen {
        self.of(key).command(&["DEL", key]);
        let words: Vec<&[u8]> = [&command[..1], &[key.as_bytes()], &command[1..]].concat();
        assert!(!self.of(key).command(&words).is_error(), "{key}");
        assert_eq!(self.of(key).command(&["PEXPIRE", key, "3600000"]), Value::Int(1));
        self.seen(key)
    }

    /// What is under a key, and when it ends.
    fn seen(&self, key: &str) -> Seen {
        (self.of(key).command(&["DUMP", key]), self.of(key).command(&["PEXPIRETIME", key]))
    }

    /// The keys of a structure's data that are of a type.
    fn keys_of(&self, name: &str, kind: &str) -> Vec<String> {
        let begins = format!("L.{name}.");
        let all = self.keys().into_iter().filter(|key| key.starts_with(&begins) && !key.ends_with(".m"));
        all.filter(|key| self.of(key).command(&["TYPE", key]).text() == kind).collect()
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

type Seen = (Value, Value);

/// A store under which another program writes its own a moment before the next key of native data is made.
struct Overtaken {
    store: StoreRef,
    servers: Arc<Servers>,
    /// What was written, and where; `None` where nothing is to be.
    planted: Mutex<Option<Vec<(String, Seen)>>>,
}

impl Overtaken {
    async fn over(servers: &Arc<Servers>) -> Arc<Overtaken> {
        let store = servers.store().await;
        Arc::new(Overtaken { store, servers: servers.clone(), planted: Mutex::new(None) })
    }

    fn arm(&self) {
        *self.planted.lock().unwrap() = Some(Vec::new());
    }

    /// What was written, which must be there still.
    fn planted(&self) -> String {
        let planted = self.planted.lock().unwrap().take().unwrap();
        let [(key, before)] = &planted[..] else { panic!("{} keys were made", planted.len()) };
        assert_eq!(self.servers.seen(key), *before, "{key} was changed");
        key.clone()
    }
}

impl Store for Overtaken {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if let Some(planted) = self.planted.lock().unwrap().as_mut().filter(|planted| planted.is_empty()) {
            let family = |verb: &Verb| match verb {
                Verb::Native(native) if !native.is_read() => Some(native.family()),
                _ => None,
            };
            if let Some((op, family)) = batch.iter().find_map(|op| Some((op, family(&op.verb)?))) {
                let command: &[&[u8]] = match family {
                    Families::HASH => &[b"HSET", b"a", b"b"],
                    Families::SET => &[b"SADD", b"1", b"2"],
                    Families::SORTED => &[b"ZADD", b"1", b"id"],
                    _ => &[b"SET", b"a string"],
                };
                let key = String::from_utf8(op.key.as_bytes().to_vec()).unwrap();
                planted.push((key.clone(), self.servers.plant(&key, command)));
            }
        }
        self.store.run(ctx, batch)
    }
}

impl std::fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Overtaken")
    }
}

/// An error of a kind that names the key and the mend.
fn names(error: &Error, kind: ErrorKind, key: &str, what: &str) {
    let said = error.to_string();
    assert_eq!(error.kind(), kind, "{what}: {said}");
    for part in [&format!("key \"{key}\"")[..], "another program", "namespace"] {
        assert!(said.contains(part), "{what}: {part:?} is not in: {said}");
    }
}

/// The same of one that changed nothing at all.
fn is_told(error: &Error, kind: ErrorKind, key: &str, what: &str) {
    names(error, kind, key, what);
    assert_eq!(error.known_effect(), Effect::NotApplied, "{what}: {error}");
}

/// Drops a structure while another program's value is in it, and once it is gone.
async fn is_dropped_without(servers: &Servers, store: &StoreRef, name: &str, key: &str) {
    let before = servers.seen(key);
    let named = Name::new(name).unwrap();
    // However often it is tried.
    for _ in 0..2 {
        let error = drop_structure(store, Ctx::default(), &named).await.unwrap_err();
        names(&error, ErrorKind::LayoutMismatch, key, "drop");
        assert_eq!(servers.seen(key), before, "{key} was changed by a drop");
    }
    servers.of(key).command(&["DEL", key]);
    drop_structure(store, Ctx::default(), &named).await.unwrap().expect("it is still there");
    let begins = format!("L.{name}.");
    let left: Vec<String> = servers.keys().into_iter().filter(|key| key.starts_with(&begins)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Strings of other programs: of the length of a number without its mark and of that of one with it, texts whose first bit is 1, and none.
const STRINGS: [&[u8]; 8] = [
    b"a string",
    "\u{43f}\u{440}\u{438}\u{432}".as_bytes(),
    b"\xc0\0\0\0\0\0\0\0",
    b"",
    b"5",
    b"hello, world",
    b"sixteen letters!",
    &[0xc0; 300],
];

fn year() -> UniqueVisitorsOptions {
    let options = UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).expected(10);
    options.precision(Precision::Compact).ids(IdKind::Integer).keep(Duration::from_secs(86_400))
}

async fn records(store: &StoreRef, name: &str) -> PackedRecords {
    let schema = Schema::parse(["age:u9"]).unwrap();
    PackedRecords::options().schema(schema).shard_bytes(16 + 9).open_or_create(store, name).await.unwrap()
}

fn servers() -> Vec<Servers> {
    let one = |version| Servers::One(Box::new(RedisServer::start(version, &RedisOptions::new())));
    let mut all: Vec<Servers> = RedisVersion::ALL.map(one).into_iter().collect();
    all.push(Servers::Cluster(RedisCluster::start(RedisVersion::Redis7)));
    all
}

/// What each structure says of a name, opened and made.
async fn said_of(store: &StoreRef, name: &str) -> Vec<(&'static str, Result<()>)> {
    let schema = Schema::parse(["age:u9"]).unwrap();
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
        ("packed records", PackedRecords::options().schema(schema).open_or_create(store, name).await.map(drop)),
        ("packed table", PackedTable::open_or_create(store, name).await.map(drop)),
        ("sharded hash", ShardedHash::open_or_create(store, name).await.map(drop)),
        ("sharded set", ShardedSet::open(store, name).await.map(drop)),
        ("sharded sorted set", ShardedSortedSet::open_or_create(store, name).await.map(drop)),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_string_of_another_program_is_no_fast_counter() {
    for servers in servers() {
        let store = servers.store().await;
        let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
        fast.add(1).await.unwrap();
        let [key] = &servers.keys_of("fast", "string")[..] else { panic!("one number") };
        let fresh = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
        for string in STRINGS {
            let before = servers.plant(key, &[b"SET", string]);
            for counter in [&fast, &fresh] {
                is_told(&counter.add(7).await.unwrap_err(), ErrorKind::Lost, key, "add");
                is_told(&counter.get().await.unwrap_err(), ErrorKind::Lost, key, "get");
                is_told(&counter.reset().await.unwrap_err(), ErrorKind::Lost, key, "reset");
            }
            assert_eq!(servers.seen(key), before, "{string:?} was changed");
        }
        servers.of(key).command(&["DEL", key]);
        is_told(&fast.add(7).await.unwrap_err(), ErrorKind::Lost, key, "add");
        assert_eq!(servers.of(key).command(&["EXISTS", key]), Value::Int(0), "a part of it was made anew");
        servers.plant(key, &[b"SET", b"a string"]);
        is_dropped_without(&servers, &store, "fast", key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_string_of_another_program_is_no_shard_of_records() {
    for servers in servers() {
        let store = servers.store().await;
        let known = records(&store, "records").await;
        let age = |age: u64| [("age", Field::Uint(age))];
        // 8 records a shard: the second is never made.
        known.set(3, &age(300)).await.unwrap();
        known.set(20, &age(7)).await.unwrap();
        let shard = servers.keys_of("records", "string").into_iter().find(|key| key.ends_with(".s0")).unwrap();
        let never = shard.replace(".s0", ".s1");
        let fresh = records(&store, "records").await;
        for string in STRINGS {
            let (lost, other) = (servers.plant(&shard, &[b"SET", string]), servers.plant(&never, &[b"SET", string]));
            for records in [&known, &fresh] {
                is_told(&records.set(3, &age(1)).await.unwrap_err(), ErrorKind::Lost, &shard, "set");
                is_told(&records.set(3, &[]).await.unwrap_err(), ErrorKind::Lost, &shard, "set of nothing");
                is_told(&records.get(3).await.unwrap_err(), ErrorKind::Lost, &shard, "get");
                is_told(&records.set(9, &age(1)).await.unwrap_err(), ErrorKind::LayoutMismatch, &never, "a new shard");
                assert_eq!(records.get(9).await.unwrap(), [Field::Uint(0)], "it was never set");
                assert_eq!(records.get(20).await.unwrap(), [Field::Uint(7)]);
            }
            assert_eq!((servers.seen(&shard), servers.seen(&never)), (lost, other), "{string:?} was changed");
        }
        servers.of(&never).command(&["DEL", &never]);
        let highest = servers.keys_of("records", "zset").pop().unwrap();
        let before = servers.plant(&highest, &[b"ZADD", b"1", b"id", b"2", b"other"]);
        names(&known.set(21, &age(1)).await.unwrap_err(), ErrorKind::Lost, &highest, "set over the highest id");
        is_told(&known.highest().await.unwrap_err(), ErrorKind::Lost, &highest, "highest");
        assert_eq!(servers.seen(&highest), before, "the sorted set was changed");
        servers.of(&highest).command(&["DEL", &highest]);
        is_dropped_without(&servers, &store, "records", &shard).await;
        let again = records(&store, "records").await;
        again.set(1, &age(1)).await.unwrap();
        let highest = servers.keys_of("records", "zset").pop().unwrap();
        servers.plant(&highest, &[b"ZADD", b"1", b"id"]);
        is_dropped_without(&servers, &store, "records", &highest).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_highest_id_that_went_back_is_told_to_those_who_were_told_a_higher_one() {
    for servers in servers() {
        let store = servers.store().await;
        let known = records(&store, "records").await;
        known.set(20, &[("age", Field::Uint(7))]).await.unwrap();
        let highest = servers.keys_of("records", "zset").pop().unwrap();
        let Value::Array(members) = servers.of(&highest).command(&["ZRANGE", &highest, "0", "-1"]) else {
            panic!("no list of members")
        };
        let [Value::Bulk(member)] = &members[..] else { panic!("not one member: {members:?}") };
        // As a failover leaves it whose replica had not heard of the set: 3 is the highest.
        servers.of(&highest).command(&[b"ZADD", highest.as_bytes(), b"4", member]);
        for told in [known.highest().await.map(drop), known.aggregate(&["age"]).await.map(drop)] {
            let error = told.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
            assert!(error.to_string().contains("was 20 and is 3"), "{error}");
        }
        let fresh = records(&store, "records").await;
        assert_eq!(fresh.highest().await.unwrap(), Some(3), "it knows no better");
        fresh.set(21, &[("age", Field::Uint(7))]).await.unwrap();
        assert_eq!(known.highest().await.unwrap(), Some(21), "it has grown past what was known");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collections_of_another_program_are_no_shards() {
    for servers in servers() {
        let store = servers.store().await;
        let site = year().open_or_create(&store, "site").await.unwrap();
        site.add([1u64, 2]).await.unwrap();
        let key = servers.keys_of("site", "set").pop().unwrap();
        let members: [&[&[u8]]; 3] = [&[b"SADD", b"1", b"2"], &[b"SADD", b"a"], &[b"SADD", b"-2147483647"]];
        for members in members {
            let before = servers.plant(&key, members);
            is_told(&site.add([3u64, 1]).await.unwrap_err(), ErrorKind::Lost, &key, "add");
            is_told(&site.count().await.unwrap_err(), ErrorKind::Lost, &key, "count");
            assert_eq!(servers.seen(&key), before, "{members:?} were changed");
        }
        let before = servers.seen(&key);
        let year = site.current().unwrap();
        names(&site.forget(year).await.unwrap_err(), ErrorKind::LayoutMismatch, &key, "forget");
        site.forget(year).await.unwrap();
        assert_eq!(servers.seen(&key), before);
        servers.of(&key).command(&["DEL", &key]);
        assert_eq!(site.add([3u64]).await.unwrap(), [Novelty::New], "another life of the period");
        let key = servers.keys_of("site", "set").pop().unwrap();
        servers.plant(&key, &[b"SADD", b"1"]);
        is_dropped_without(&servers, &store, "site", &key).await;

        let hash = ShardedHash::options().shards(1).open_or_create(&store, "hash").await.unwrap();
        let set = ShardedSet::options().shards(1).open_or_create(&store, "set").await.unwrap();
        let (hash_key, set_key) =
            (servers.keys_of("hash", "hash").pop().unwrap(), servers.keys_of("set", "set").pop().unwrap());
        let before = (servers.plant(&hash_key, &[b"HSET", b"a", b"b"]), servers.plant(&set_key, &[b"SADD", b"a"]));
        is_told(&hash.set([("f", "w")]).await.unwrap_err(), ErrorKind::Lost, &hash_key, "hash set");
        is_told(&hash.remove(["f"]).await.unwrap_err(), ErrorKind::Lost, &hash_key, "hash remove");
        is_told(&hash.reshard(2).await.unwrap_err(), ErrorKind::Lost, &hash_key, "hash reshard");
        is_told(&set.add(["f"]).await.unwrap_err(), ErrorKind::Lost, &set_key, "set add");
        assert_eq!((servers.seen(&hash_key), servers.seen(&set_key)), before);
        is_dropped_without(&servers, &store, "hash", &hash_key).await;
        is_dropped_without(&servers, &store, "set", &set_key).await;
    }
}

/// Another program may write a key between the moment that its name is drawn and the one that it is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_wrote_just_before_is_not_made_a_structures_own() {
    for servers in servers() {
        let servers = Arc::new(servers);
        let overtaken = Overtaken::over(&servers).await;
        let store: StoreRef = overtaken.clone();

        overtaken.arm();
        let error = ShardedHash::options().shards(3).open_or_create(&store, "hash").await.unwrap_err();
        is_told(&error, ErrorKind::LayoutMismatch, &overtaken.planted(), "a hash");
        overtaken.arm();
        let error = ShardedSet::options().shards(3).open_or_create(&store, "set").await.unwrap_err();
        is_told(&error, ErrorKind::LayoutMismatch, &overtaken.planted(), "a set");
        overtaken.arm();
        let schema = Schema::parse(["age:u9"]).unwrap();
        let error = PackedRecords::options().schema(schema).open_or_create(&store, "records").await.unwrap_err();
        is_told(&error, ErrorKind::LayoutMismatch, &overtaken.planted(), "records");
        assert_eq!(servers.keys().len(), 3, "the other keys are gone: {:?}", servers.keys());

        for (name, is_hash) in [("h", true), ("s", false)] {
            let hash = ShardedHash::options().shards(1).open_or_create(&store, "h").await.unwrap();
            let set = ShardedSet::options().shards(1).open_or_create(&store, "s").await.unwrap();
            overtaken.arm();
            let error = if is_hash { hash.reshard(3).await } else { set.reshard(3).await }.unwrap_err();
            is_told(&error, ErrorKind::LayoutMismatch, &overtaken.planted(), name);
            // The next one clears its plan away, and takes other keys.
            if is_hash { hash.reshard(3).await } else { set.reshard(3).await }.unwrap();
            hash.set([("f", "v")]).await.unwrap();
            set.add(["m"]).await.unwrap();
        }

        // A period takes other keys at once.
        let site = year().open_or_create(&store, "site").await.unwrap();
        overtaken.arm();
        assert_eq!(site.add([1u64, 2]).await.unwrap(), [Novelty::New; 2]);
        overtaken.planted();
        assert_eq!(site.count().await.unwrap().visitors, 2);

        overtaken.arm();
        let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
        let key = overtaken.planted();
        let before = servers.seen(&key);
        is_told(&fast.add(1).await.unwrap_err(), ErrorKind::Lost, &key, "fast add");
        assert_eq!(servers.seen(&key), before);
    }
}
