//! Names opened as another kind of structure than they hold: each kind by every other.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Effect, ErrorKind, Profile, Result, Run, Store, StoreRef};
use larder_store_memcached::{Config, MemcachedStore};
use larder_store_memory::MemoryStore;
use larder_store_redis::{ClusterConfig, Config as RedisConfig, RedisClusterStore, RedisStore};
use larder_structures::inspect::inspect;
use larder_structures::records::Schema;
use larder_structures::{
    Array, Cache, Counter, EventLog, Kind, Lock, Manifest, Name, PackedRecords, PackedTable, Queue, Set, ShardedHash,
    ShardedSet, ShardedSortedSet, Stack, Table, UniqueVisitors, Visitors,
};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, shared_cluster};
use larder_testkit::servers::{Memcached, Version};

/// Counts the ops that could change something.
#[derive(Debug)]
struct Writes(StoreRef, AtomicUsize);

impl Store for Writes {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.1.fetch_add(batch.iter().filter(|op| !op.is_read()).count(), Ordering::SeqCst);
        self.0.run(ctx, batch)
    }
}

pub(crate) type Opened = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// How names are opened as a kind: those that are there, and those that may be made.
pub(crate) struct Opener {
    pub(crate) kind: Kind,
    pub(crate) open: fn(StoreRef, String) -> Opened,
    pub(crate) make: fn(StoreRef, String) -> Opened,
}

macro_rules! opener {
    ($kind:ident, $options:expr) => {
        opener!($kind, $options, open, open_or_create)
    };
    ($kind:ident, $options:expr, $open:ident, $make:ident) => {
        Opener {
            kind: Kind::$kind,
            open: |store, name| Box::pin(async move { $options.$open(&store, name).await.map(drop) }),
            make: |store, name| Box::pin(async move { $options.$make(&store, name).await.map(drop) }),
        }
    };
}

pub(crate) fn openers() -> Vec<Opener> {
    vec![
        Opener {
            kind: Kind::Lock,
            open: |store, name| Box::pin(async move { Lock::open(&store, name).await.map(drop) }),
            make: |store, name| {
                Box::pin(async move {
                    let guard = Lock::open(&store, name).await?.try_acquire().await?.expect("nobody holds it");
                    guard.release().await.map(drop)
                })
            },
        },
        opener!(Counter, Counter::options().exact()),
        opener!(FastCounter, Counter::options().fast()),
        opener!(Set, Set::options()),
        opener!(Visitors, Visitors::options()),
        opener!(EventLog, EventLog::options()),
        opener!(Array, Array::options()),
        opener!(Table, Table::options()),
        opener!(Queue, Queue::options()),
        opener!(Stack, Stack::options()),
        opener!(Cache, Cache::options()),
        opener!(UniqueVisitors, UniqueVisitors::options()),
        opener!(Records, PackedRecords::options().schema(Schema::parse(["visits:u7"]).unwrap())),
        opener!(ShardedHash, ShardedHash::options()),
        opener!(ShardedSet, ShardedSet::options()),
        opener!(ShardedSortedSet, ShardedSortedSet::options()),
        opener!(PackedTable, PackedTable::options()),
    ]
}

/// What an error must name where one kind is opened as the other.
fn both(made: Kind, other: Kind) -> [&'static str; 2] {
    match (made, other) {
        // One counter is told from the other by its mode, and what is none is neither.
        (Kind::Counter, Kind::FastCounter) | (Kind::FastCounter, Kind::Counter) => ["mode exact", "mode fast"],
        (_, Kind::FastCounter) => [made.as_str(), Kind::Counter.as_str()],
        _ => [made.as_str(), other.as_str()],
    }
}

async fn each_name_is_refused_as_any_other_kind(inner: StoreRef) {
    let writes = Arc::new(Writes(inner.clone(), AtomicUsize::new(0)));
    let watched: StoreRef = writes.clone();
    for made in openers() {
        let name = format!("a {}", made.kind.as_str());
        (made.make)(inner.clone(), name.clone()).await.unwrap();
        (made.open)(inner.clone(), name.clone()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        for other in openers().into_iter().filter(|other| other.kind != made.kind) {
            for open in [other.open, other.make] {
                let error = open(watched.clone(), name.clone()).await.expect_err("it is another");
                assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{name} as {:?}: {error}", other.kind);
                assert_eq!(error.known_effect(), Effect::NotApplied, "{error}");
                let text = error.to_string();
                let names = both(made.kind, other.kind);
                assert!(names.iter().all(|name| text.contains(name)), "{names:?} are not both in: {text}");
            }
        }
        let found = inspect(&inner, Ctx::default(), &Name::new(&name).unwrap()).await.unwrap().unwrap();
        assert_eq!((found.manifest.kind, found.missing), (made.kind, 0), "{name}");
    }
    assert_eq!(writes.1.load(Ordering::SeqCst), 0, "nothing was written");
}

#[test]
fn every_kind_that_a_manifest_can_name_has_its_opener() {
    let known = (0..=u8::MAX).filter(|&byte| {
        let manifest = [&b"LRD\x01"[..], &[byte], &[0; 12]].concat();
        Manifest::decode(&Bytes::from(manifest)).is_ok()
    });
    assert_eq!(known.count(), openers().len());
}

#[tokio::test]
async fn a_name_opened_as_another_structure_is_refused_by_the_name_of_both_in_memory() {
    each_name_is_refused_as_any_other_kind(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn a_name_opened_as_another_structure_is_refused_by_the_name_of_both_on_a_server() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let config = Config::from_url(&server.url()).unwrap();
        each_name_is_refused_as_any_other_kind(Arc::new(MemcachedStore::connect(config).await.unwrap())).await;
    }
}

#[tokio::test]
async fn a_name_opened_as_another_structure_is_refused_by_the_name_of_both_on_redis_and_valkey() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let config = RedisConfig::from_url(&server.url()).unwrap();
        each_name_is_refused_as_any_other_kind(Arc::new(RedisStore::connect(config).await.unwrap())).await;
    }
}

/// The cluster is that of all tests of a run: names of our own.
#[tokio::test]
async fn a_name_opened_as_another_structure_is_refused_by_the_name_of_both_on_a_cluster() {
    let config = ClusterConfig::from_url(&shared_cluster(RedisVersion::Redis7).url()).unwrap();
    let cluster: StoreRef = Arc::new(RedisClusterStore::connect(config).await.unwrap());
    let namespace = format!("kinds-{:016x}:", fastrand::u64(..));
    each_name_is_refused_as_any_other_kind(Arc::new(larder_layers::Namespace::new(cluster, namespace).unwrap())).await;
}
