//! Every key of every structure, with something of another program's in its place: it is never read as what the structure holds; and never changed, where native data have marks and the server has types (Redis).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Error, ErrorKind, Key, PutMode, Result, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_store_redis::{Config, RedisStore};
use larder_structures::lookup::Rows;
use larder_structures::records::{Schema, Value as Field};
use larder_structures::registry::drop_structure;
use larder_structures::{
    Array, Cache, Counter, EventLog, IdKind, Lock, Name, PackedRecords, PackedTable, Precision, Queue, Set,
    ShardedHash, ShardedSet, ShardedSortedSet, Stack, Table, UniqueVisitors, UniqueVisitorsOptions, Visitors,
    VisitorsOptions,
};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, Value};

pub(crate) type Said = Pin<Box<dyn Future<Output = Result<String>> + Send>>;
pub(crate) type Act = Box<dyn Fn() -> Said + Send + Sync>;

/// What is done with a structure by one handle.
pub(crate) struct Hand {
    /// Puts in what the case begins with.
    pub(crate) fill: Act,
    /// All that it holds, in words.
    pub(crate) read: Act,
    /// Adds to it, and takes away.
    write: Act,
}

/// How a hand for a name is had.
pub(crate) type Scene = (&'static str, fn(StoreRef, String) -> Pin<Box<dyn Future<Output = Result<Hand>> + Send>>);

fn act<H, T, F>(handle: &H, work: fn(H) -> F) -> Act
where
    H: Clone + Send + Sync + 'static,
    T: Debug,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let handle = handle.clone();
    Box::new(move || {
        let done = work(handle.clone());
        Box::pin(async move { done.await.map(|told| format!("{told:?}")) })
    })
}

macro_rules! scene {
    ($name:literal, $store:ident, $key:ident => $open:expr, fill: $fill:expr, read: $read:expr, write: $write:expr) => {
        ($name, |$store: StoreRef, $key: String| {
            Box::pin(async move {
                let handle = $open.await?;
                Ok(Hand { fill: act(&handle, $fill), read: act(&handle, $read), write: act(&handle, $write) })
            })
        })
    };
}

fn year(precision: Precision) -> UniqueVisitorsOptions {
    let options = UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).expected(10);
    options.precision(precision).ids(IdKind::Integer).keep(Duration::from_secs(86_400))
}

fn long() -> VisitorsOptions {
    Visitors::options().period(Duration::from_secs(30 * 86_400))
}

fn schema() -> Schema {
    Schema::parse(["age:u9"]).unwrap()
}

fn rows(word: &str) -> Rows {
    let mut rows = Rows::new(["word"]).unwrap();
    for id in 0..30u64 {
        rows.push_id(id, [format!("{word} {id}")]).unwrap();
    }
    rows
}

fn simple() -> Vec<Scene> {
    vec![
        scene!("lock", s, n => Lock::options().lease(Duration::from_secs(5)).open(&s, &n),
        fill: |h: Lock| async move { h.try_acquire().await?.expect("it is new").release().await },
        read: |h: Lock| async move { h.status().await },
        write: |h: Lock| async move {
            let guard = h.try_acquire().await?.expect("it is free");
            guard.release().await
        }),
        scene!("counter", s, n => Counter::options().exact().open_or_create(&s, &n),
            fill: |h: Counter| async move { h.add(5).await },
            read: |h: Counter| async move { h.get().await },
            write: |h: Counter| async move { h.add(7).await }),
        scene!("fast counter", s, n => Counter::options().fast().open_or_create(&s, &n),
            fill: |h: Counter| async move { h.add(5).await },
            read: |h: Counter| async move { h.get().await },
            write: |h: Counter| async move { h.add(7).await }),
        scene!("set", s, n => Set::options().shards(2).open_or_create(&s, &n),
            fill: |h: Set| async move { h.add(["a", "b", "c", "d"]).await },
            read: |h: Set| async move { h.members().await.map(|members| { let mut all: Vec<_> = members.iter().map(|it| format!("{it:?}")).collect(); all.sort(); all }) },
            write: |h: Set| async move { h.add(["e", "f", "g"]).await?; h.remove(["a"]).await }),
        scene!("array", s, n => Array::options().shards(2).open_or_create(&s, &n),
            fill: |h: Array| async move { h.push(["a", "b", "c", "d"]).await },
            read: |h: Array| async move { h.elements().await.map(|mut all| { all.sort(); all }) },
            write: |h: Array| async move { h.push(["e", "f", "g"]).await?; h.remove(["a"]).await }),
        scene!("table", s, n => Table::options().shards(2).open_or_create(&s, &n),
            fill: |h: Table| async move { h.put("a", "1").await?; h.put("b", "2").await },
            read: |h: Table| async move { h.get_many(["a", "b"]).await },
            write: |h: Table| async move { h.put("a", "3").await?; h.put("c", "4").await?; h.remove("b").await }),
        scene!("table's list", s, n => Table::options().shards(2).open_or_create(&s, &n),
            fill: |h: Table| async move { h.put("a", "1").await?; h.put("b", "2").await },
            read: |h: Table| async move { h.entries().await.map(|mut all| { all.sort(); all }) },
            write: |h: Table| async move { h.remove("b").await?; h.put("d", "4").await }),
        scene!("log", s, n => EventLog::options().open_or_create(&s, &n),
            fill: |h: EventLog| async move { h.put("a").await?; h.put("b").await },
            read: |h: EventLog| async move {
                h.fetch(..).await?.whole().map(|events| events.len())
            },
            write: |h: EventLog| async move { h.put("c").await }),
    ]
}

fn that_wait_and_count() -> Vec<Scene> {
    vec![
        scene!("queue", s, n => Queue::open_or_create(&s, &n),
            fill: |h: Queue| async move { h.push_all(["a", "b", "c"]).await?; h.pop().await },
            read: |h: Queue| async move { h.len().await },
            write: |h: Queue| async move { h.push("d").await?; h.pop().await }),
        scene!("queue's claims", s, n => Queue::open_or_create(&s, &n),
            fill: |h: Queue| async move {
                h.push_all(["a", "b", "c"]).await?;
                let claim = h.claim(Duration::from_secs(60)).await?.expect("there are three");
                std::mem::forget(claim);
                Ok(())
            },
            read: |h: Queue| async move { h.len().await },
            write: |h: Queue| async move { h.push("d").await?; h.pop().await?; h.pop().await }),
        scene!("stack", s, n => Stack::open_or_create(&s, &n),
            fill: |h: Stack| async move { h.push_all(["a", "b", "c"]).await },
            read: |h: Stack| async move { h.len().await },
            write: |h: Stack| async move { h.push("d").await?; h.pop().await?; h.pop().await }),
        scene!("cache", s, n => Cache::open_or_create(&s, &n),
            fill: |h: Cache| async move {
                h.get_or_rebuild("k", || async { Ok::<_, Error>("value") }).await.map(drop)
            },
            read: |h: Cache| async move { h.get("k").await.map(|found| found.map(|it| it.value.clone())) },
            write: |h: Cache| async move { h.invalidate("k").await }),
        scene!("visitors", s, n => long().open_or_create(&s, &n),
            fill: |h: Visitors| async move { h.hit_many(3).await?; h.hit_visitor("a").await },
            read: |h: Visitors| async move { h.current().await },
            write: |h: Visitors| async move { h.hit().await?; h.hit_visitor("b").await }),
        scene!("unique visitors, compact", s, n => year(Precision::Compact).open_or_create(&s, &n),
            fill: |h: UniqueVisitors| async move { h.add([1u64, 2]).await },
            read: |h: UniqueVisitors| async move { h.count().await.map(|count| count.visitors) },
            write: |h: UniqueVisitors| async move { h.add([3u64, 1]).await }),
        scene!("unique visitors, exact", s, n => year(Precision::Exact).open_or_create(&s, &n),
            fill: |h: UniqueVisitors| async move { h.add([1u64, 2]).await },
            read: |h: UniqueVisitors| async move { h.count().await.map(|count| count.visitors) },
            write: |h: UniqueVisitors| async move { h.add([3u64, 1]).await }),
        scene!("unique visitors, sketch", s, n => year(Precision::Sketch { lg_k: 11 }).open_or_create(&s, &n),
            fill: |h: UniqueVisitors| async move { h.add([1u64, 2]).await },
            read: |h: UniqueVisitors| async move { h.count().await.map(|count| count.visitors) },
            write: |h: UniqueVisitors| async move { h.add([3u64, 1]).await }),
    ]
}

fn packed_and_sharded() -> Vec<Scene> {
    vec![
        scene!("records", s, n => PackedRecords::options().schema(schema()).shard_bytes(16 + 9).open_or_create(&s, &n),
        fill: |h: PackedRecords| async move {
            h.set(3, &[("age", Field::Uint(300))]).await?;
            h.set(20, &[("age", Field::Uint(7))]).await
        },
        read: |h: PackedRecords| async move { Ok((h.get_many(&[3, 20]).await?, h.highest().await?)) },
        write: |h: PackedRecords| async move {
            h.set(3, &[("age", Field::Uint(1))]).await?;
            h.set(21, &[("age", Field::Uint(1))]).await?;
            h.set(30, &[("age", Field::Uint(1))]).await
        }),
        scene!("packed table", s, n => PackedTable::options().block_bytes(64).open_or_create(&s, &n),
            fill: |h: PackedTable| async move { h.build(rows("old")).await.map(drop) },
            read: |h: PackedTable| async move {
                let mut words = Vec::new();
                for id in 0..30u64 {
                    words.push(format!("{:?}", h.get(id).await?));
                }
                Ok(words)
            },
            write: |h: PackedTable| async move { h.build(rows("new")).await.map(drop) }),
        scene!("sharded hash", s, n => ShardedHash::options().shards(2).open_or_create(&s, &n),
            fill: |h: ShardedHash| async move { h.set([("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]).await },
            read: |h: ShardedHash| async move { h.entries().await.map(|mut all| { all.sort(); all }) },
            write: |h: ShardedHash| async move { h.set([("e", "5"), ("f", "6")]).await?; h.remove(["a", "b"]).await }),
        scene!("sharded set", s, n => ShardedSet::options().shards(2).open_or_create(&s, &n),
            fill: |h: ShardedSet| async move { h.add(["a", "b", "c", "d"]).await },
            read: |h: ShardedSet| async move { h.members().await.map(|mut all| { all.sort(); all }) },
            write: |h: ShardedSet| async move { h.add(["e", "f", "g"]).await?; h.remove(["a", "b"]).await }),
        scene!("sharded sorted set", s, n => ShardedSortedSet::options().shards(2).open_or_create(&s, &n),
            fill: |h: ShardedSortedSet| async move { h.set([("a", 1.0), ("b", 2.0), ("c", 3.0)]).await },
            read: |h: ShardedSortedSet| async move {
                let mut all = h.entries().await?;
                all.sort_by(|one, other| one.0.cmp(&other.0));
                Ok((all, h.top(2).await?))
            },
            write: |h: ShardedSortedSet| async move { h.set([("d", 4.0), ("e", 0.5)]).await?; h.remove(["a"]).await }),
    ]
}

/// Every structure.
pub(crate) fn scenes() -> Vec<Scene> {
    [simple(), that_wait_and_count(), packed_and_sharded()].concat()
}

/// Where the structures stand, as another program sees it.
enum Ground {
    Redis(Box<RedisServer>),
    /// Items alone: the portable layouts.
    Memory(Arc<MemoryStore>),
}

/// What others keep, as a command of Redis without its key; on items alone, the values of the second kind.
type Theirs = &'static [&'static str];

/// Of a type that no structure uses, of the type that items have, and of those that native data have.
const THEIRS: [Theirs; 7] = [
    &["SET", "hello, world"],
    &["SET", ""],
    &["SET", "5"],
    &["RPUSH", "a"],
    &["HSET", "a", "b"],
    &["SADD", "a"],
    &["ZADD", "1", "a"],
];

impl Ground {
    fn theirs(&self) -> &'static [Theirs] {
        match self {
            Ground::Redis(_) => &THEIRS,
            Ground::Memory(_) => &THEIRS[..3],
        }
    }

    fn keys(&self, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        match self {
            Ground::Redis(server) => {
                for pattern in ["L.*", "{L.*"] {
                    let text = server.command(&["KEYS", pattern]).text();
                    all.extend(text.lines().map(str::to_owned));
                }
            }
            Ground::Memory(memory) => {
                memory.each(|key, _| all.push(String::from_utf8_lossy(key).into_owned()));
            }
        }
        // What belongs together stands under both, on one server too.
        all.retain(|key| key.trim_start_matches('{').starts_with(&format!("L.{name}.")));
        all.sort();
        all
    }

    /// Puts something in the place of what is there, with a life.
    async fn plant(&self, key: &str, theirs: Theirs) {
        match self {
            Ground::Redis(server) => {
                server.command(&["DEL", key]);
                let words: Vec<&str> = [&theirs[..1], &[key], &theirs[1..]].concat();
                assert!(!server.command(&words).is_error(), "{key}");
                assert_eq!(server.command(&["PEXPIRE", key, "3600000"]), Value::Int(1));
            }
            Ground::Memory(memory) => {
                let key = Key::new(key.to_owned()).unwrap();
                memory.put(key, PutMode::Set, theirs[1], Ttl::After(Duration::from_secs(3_600))).await.unwrap();
            }
        }
    }

    /// What is there now, in words.
    async fn seen(&self, key: &str) -> String {
        match self {
            Ground::Redis(server) => {
                format!("{:?}", (server.command(&["DUMP", key]), server.command(&["PEXPIRETIME", key])))
            }
            Ground::Memory(memory) => {
                let item = memory.get(Key::new(key.to_owned()).unwrap()).await.unwrap();
                format!("{:?}", item.map(|item| (item.value, item.cas)))
            }
        }
    }
}

/// Errors that tell what is so; any other, and an answer that is not as it was, is none.
fn is_honest(kind: ErrorKind) -> bool {
    use ErrorKind::{Absent, Corrupt, LayoutMismatch, Lost, RolledBack};
    matches!(kind, Absent | Corrupt | LayoutMismatch | Lost | RolledBack)
}

/// One structure of which one key is another program's: what is wrong about what is said and done.
struct Case<'a> {
    ground: &'a Ground,
    what: String,
    key: String,
    /// What was read before.
    before: String,
    planted: String,
    wrong: Vec<String>,
}

impl Case<'_> {
    async fn look(&mut self, what: &str, said: Result<String>, is_read: bool) {
        // An item has no mark of who wrote it: what is under such a key, which has a number in it that nobody else draws, may be written over. It is told, though.
        let has_marks = matches!(self.ground, Ground::Redis(_));
        match said {
            // How many a shard of visitors has stands in its flags, so that a count needs no values: of an item without flags it is none.
            Ok(told) if !has_marks && is_read && told == "0" && self.what.starts_with("unique visitors") => {}
            Ok(told) if is_read && told != self.before => {
                self.wrong.push(format!("{}, {what}: {told} for {}", self.what, self.before));
            }
            Err(error) if !is_honest(error.kind()) => self.wrong.push(format!("{}, {what}: {error}", self.what)),
            // Which key to look at, and whose it is.
            Err(error)
                if has_marks
                    && ![&self.key, "another program"].iter().all(|part| error.to_string().contains(*part)) =>
            {
                self.wrong.push(format!("{}, {what}: the key, or the mend, is not in: {error}", self.what));
            }
            _ => {}
        }
        if has_marks && self.ground.seen(&self.key).await != self.planted {
            self.wrong.push(format!("{}: it was changed by {what}", self.what));
        }
    }
}

async fn one_key(ground: &Ground, store: &StoreRef, (kind, open): Scene, at: usize, theirs: Theirs) -> Vec<String> {
    let name = format!("n{:016x}", fastrand::u64(..));
    let known = open(store.clone(), name.clone()).await.unwrap();
    (known.fill)().await.unwrap();
    let before = (known.read)().await.unwrap();
    let key = ground.keys(&name)[at].clone();
    ground.plant(&key, theirs).await;
    let planted = ground.seen(&key).await;
    let mut case = Case { ground, what: format!("{kind}, {key}, {theirs:?}"), key, before, planted, wrong: Vec::new() };
    case.look("read", (known.read)().await, true).await;
    match open(store.clone(), name.clone()).await {
        Ok(fresh) => {
            case.look("fresh read", (fresh.read)().await, true).await;
            case.look("fresh write", (fresh.write)().await, false).await;
        }
        Err(error) => case.look("fresh open", Err(error), false).await,
    }
    case.look("write", (known.write)().await, false).await;
    let dropped = drop_structure(store, Ctx::default(), &Name::new(&name).unwrap()).await;
    case.look("drop", dropped.map(|found| format!("{}", found.is_some())), false).await;
    case.wrong
}

async fn no_key_is_changed_or_read(ground: Ground, store: StoreRef) {
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for (nth, scene) in scenes().into_iter().enumerate() {
        let name = format!("probe{nth}");
        let hand = (scene.1)(store.clone(), name.clone()).await.unwrap();
        (hand.fill)().await.unwrap();
        let all = ground.keys(&name).len();
        assert!(all > 0, "{}", scene.0);
        for at in 0..all {
            for theirs in ground.theirs() {
                wrong.extend(one_key(&ground, &store, scene, at, theirs).await);
                cases += 1;
            }
        }
    }
    assert!(cases > 200, "{cases}");
    assert!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_has_under_a_key_of_a_structure_is_neither_changed_nor_read_on_redis() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = RedisStore::connect(Config::from_url(&server.url()).unwrap()).await.unwrap();
    no_key_is_changed_or_read(Ground::Redis(Box::new(server)), Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_has_under_a_key_of_a_structure_is_not_read_in_memory() {
    let memory = Arc::new(MemoryStore::new());
    no_key_is_changed_or_read(Ground::Memory(memory.clone()), memory).await;
}
