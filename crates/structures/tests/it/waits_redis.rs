//! Waits that end as the thing waited for happens, on servers and clusters that tell of changes.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Key, StoreExt, StoreRef};
use larder_layers::Counting;
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore};
use larder_structures::cache::Lookup;
use larder_structures::log::Cursor;
use larder_structures::{Cache, EventLog, Lock, Queue, Stack};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, shared_cluster};
use tokio::task::{JoinSet, spawn_blocking};

use crate::cache::support::long_rebuild;
use crate::support::steady::metered;

/// Longer than any wait here should take.
const PATIENCE: Duration = Duration::from_secs(30);

const CLIENT: &str = "timeout_ms=10000&connect_timeout_ms=10000";

/// A server, or the cluster of the run.
struct Place {
    what: String,
    url: String,
    /// Others use the cluster, too.
    name: String,
    _server: Box<dyn Any + Send + Sync>,
}

impl Place {
    fn server(version: RedisVersion) -> Place {
        let server = server(version);
        Place::new(format!("{version:?}"), server.url(), Box::new(server))
    }

    fn cluster(version: RedisVersion) -> Place {
        let cluster = shared_cluster(version);
        Place::new(format!("a cluster of {version:?}"), cluster.url(), Box::new(cluster))
    }

    fn new(what: String, url: String, server: Box<dyn Any + Send + Sync>) -> Place {
        Place { what, url, name: format!("waits-{:x}", fastrand::u64(..)), _server: server }
    }

    /// A client of its own, with connections of its own: another process.
    async fn client(&self) -> Arc<Counting> {
        let url = format!("{}?{CLIENT}", self.url);
        let store: StoreRef = if url.starts_with("redis-cluster:") {
            Arc::new(RedisClusterStore::connect(ClusterConfig::from_url(&url).unwrap()).await.unwrap())
        } else {
            Arc::new(RedisStore::connect(Config::from_url(&url).unwrap()).await.unwrap())
        };
        Arc::new(metered(store))
    }
}

/// Tries a wait on every server and every cluster, side by side: it is mostly quiet.
async fn everywhere<F: Future<Output = ()> + Send + 'static>(wait: fn(Place) -> F) {
    let mut tries = JoinSet::new();
    for version in RedisVersion::ALL {
        for start in [Place::server, Place::cluster] {
            tries.spawn(async move { wait(spawn_blocking(move || start(version)).await.unwrap()).await });
        }
    }
    while let Some(tried) = tries.join_next().await {
        tried.unwrap();
    }
}

/// A client of its own, with connections of its own: another process.
async fn client(server: &RedisServer) -> Arc<Counting> {
    let config = Config::from_url(&format!("{}?{CLIENT}", server.url())).unwrap();
    let store: StoreRef = Arc::new(RedisStore::connect(config).await.unwrap());
    Arc::new(metered(store))
}

fn server(version: RedisVersion) -> RedisServer {
    RedisServer::start(version, &RedisOptions::new())
}

/// What a wait that is told may take on average, from the change to its end. Polling, with pauses drawn between 0 and 250 ms, takes 83 ms: the looks in a quiet
/// time are counted, too, since that alone could be luck.
const TOLD_WITHIN: Duration = Duration::from_millis(60);

/// Long enough for polling to look some sixteen times.
const QUIET: Duration = Duration::from_millis(1_500);

/// Looks in a quiet time that is told of when it ends: the first one, perhaps one that the opening of the connection for it ended, and the waits themselves.
const QUIET_LOOKS_MAX: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_takes_a_lock_as_it_is_let_go_and_does_not_poll() {
    everywhere(a_lock_is_waited_for).await;
}

async fn a_lock_is_waited_for(place: Place) {
    const ROUNDS: u32 = 8;
    let (what, name) = (&place.what, &place.name);
    let (holder, waiter) = (place.client().await, place.client().await);
    let held = Lock::open(&(holder as StoreRef), name).await.unwrap();
    let lock = Lock::open(&(waiter.clone() as StoreRef), name).await.unwrap();
    let mut waits = Duration::ZERO;
    for round in 0..ROUNDS {
        let guard = held.acquire(PATIENCE).await.unwrap();
        let (lock, before) = (lock.clone(), waiter.counts().round_trips);
        let waiting = tokio::spawn(async move {
            let guard = lock.acquire(PATIENCE).await.unwrap();
            (guard, Instant::now())
        });
        tokio::time::sleep(if round == 0 { QUIET } else { Duration::from_millis(600) }).await;
        let looks = waiter.counts().round_trips - before;
        assert!(round > 0 || looks <= QUIET_LOOKS_MAX, "{what}: {looks} looks");
        guard.release().await.unwrap();
        let released = Instant::now();
        let (guard, taken) = waiting.await.unwrap();
        waits += taken.saturating_duration_since(released);
        guard.release().await.unwrap();
    }
    assert!(waits < TOLD_WITHIN * ROUNDS, "{what}: {waits:?} for {ROUNDS} waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tail_is_told_of_each_event_as_it_is_put() {
    everywhere(a_log_is_followed).await;
}

async fn a_log_is_followed(place: Place) {
    const EVENTS: u32 = 10;
    let (what, name) = (&place.what, &place.name);
    let (writer, reader) = (place.client().await, place.client().await);
    let log = EventLog::open_or_create(&(writer as StoreRef), name).await.unwrap();
    let followed = EventLog::open(&(reader.clone() as StoreRef), name).await.unwrap();
    let mut tail = followed.tail(Cursor::default()).unwrap().every(Duration::from_secs(3_600));
    let mut waits = Duration::ZERO;
    for event in 0..EVENTS {
        let before = reader.counts().round_trips;
        let putting = async {
            // The tail waits by now, mostly.
            tokio::time::sleep(if event == 0 { QUIET } else { Duration::from_millis(50) }).await;
            let looks = reader.counts().round_trips - before;
            assert!(looks <= QUIET_LOOKS_MAX, "{what}: {looks} looks");
            log.put(event.to_string()).await.unwrap();
            Instant::now()
        };
        let telling = async {
            let found = tail.next().await.unwrap().whole().unwrap();
            (found, Instant::now())
        };
        let ((found, told), put) = tokio::join!(telling, putting);
        assert_eq!(found[0].bytes, event.to_string());
        waits += told.saturating_duration_since(put);
    }
    // A wait that is told nothing looks again after 2 s.
    assert!(waits < TOLD_WITHIN * EVENTS, "{what}: {waits:?} for {EVENTS} waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_value_reaches_those_who_wait_for_it() {
    everywhere(a_rebuild_is_waited_for).await;
}

/// Who waits for a rebuild looks every 250 ms all the same, for a rebuilder that died: the bound on the time tells polling apart, in so many rounds.
async fn a_rebuild_is_waited_for(place: Place) {
    const ROUNDS: u32 = 16;
    let (what, name) = (&place.what, &place.name);
    let (one, other) = (place.client().await, place.client().await);
    let cache = Cache::open_or_create(&(one as StoreRef), name).await.unwrap();
    let waiter = Cache::open(&(other as StoreRef), name).await.unwrap();
    let mut waits = Duration::ZERO;
    for round in 0..ROUNDS {
        let key = format!("page {round}");
        let Lookup::Rebuild(rebuild) = cache.lookup(&key).await.unwrap() else { panic!("nothing is cached") };
        let waiter = waiter.clone();
        let waiting = tokio::spawn(async move { (waiter.lookup(&key).await, Instant::now()) });
        // The pauses of polling would have grown by then.
        tokio::time::sleep(Duration::from_millis(400)).await;
        let at = Instant::now();
        rebuild.finish("page").await;
        let (found, ended) = waiting.await.unwrap();
        let Lookup::Found(cached) = found.unwrap() else { panic!("it was rebuilt") };
        assert_eq!(cached.value, "page");
        waits += ended.saturating_duration_since(at);
    }
    assert!(waits < TOLD_WITHIN * ROUNDS, "{what}: {waits:?} for {ROUNDS} waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_of_three_leases_is_made_once_and_those_who_wait_do_not_take_a_renewal_for_its_end() {
    let lease = Duration::from_secs(1);
    for version in RedisVersion::ALL {
        let server = server(version);
        let mut clients = Vec::new();
        for _ in 0..4 {
            let store = client(&server).await as StoreRef;
            clients.push(Cache::options().lease(lease).open_or_create(&store, "pages").await.unwrap());
        }
        let (rebuilds, got) = long_rebuild(clients, lease).await;
        assert_eq!(rebuilds, 1, "{version:?}: {got:?}");
        assert!(got.iter().all(|cached| cached.value == "0" && cached.is_kept()), "{version:?}: {got:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_ends_as_another_client_pushes_and_does_not_poll() {
    everywhere(an_item_is_waited_for).await;
}

/// One waits with `claim_within`, the other pushes now and then.
async fn an_item_is_waited_for(place: Place) {
    const ITEMS: u32 = 8;
    let (what, name) = (&place.what, &place.name);
    let (producer, consumer) = (place.client().await, place.client().await);
    let pushed = Queue::open_or_create(&(producer as StoreRef), name).await.unwrap();
    let taken = Queue::open(&(consumer.clone() as StoreRef), name).await.unwrap();
    let (lease, mut waits) = (Duration::from_secs(60), Duration::ZERO);
    for item in 0..ITEMS {
        let (taken, before) = (taken.clone(), consumer.counts().round_trips);
        let waiting = tokio::spawn(async move {
            let claim = taken.claim_within(lease, PATIENCE).await.unwrap().expect("an item");
            (claim.item().clone(), claim.ack().await.unwrap(), Instant::now())
        });
        tokio::time::sleep(if item == 0 { QUIET } else { Duration::from_millis(100) }).await;
        let looks = consumer.counts().round_trips - before;
        assert!(item > 0 || looks <= QUIET_LOOKS_MAX, "{what}: {looks} looks");
        let at = Instant::now();
        pushed.push(item.to_string()).await.unwrap();
        let (found, (), ended) = waiting.await.unwrap();
        assert_eq!(found, item.to_string());
        waits += ended.saturating_duration_since(at);
    }
    assert!(waits < TOLD_WITHIN * ITEMS, "{what}: {waits:?} for {ITEMS} waits");
}

/// What is given back, and what goes to a segment that is opened meanwhile, ends a wait too: both change the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_pop_of_a_stack_is_told_of_what_is_given_back() {
    let server = server(RedisVersion::Redis8);
    let (one, other) = (client(&server).await, client(&server).await);
    let holder = Stack::open_or_create(&(one as StoreRef), "undo").await.unwrap();
    holder.push("a").await.unwrap();
    let claim = holder.claim(Duration::from_secs(600)).await.unwrap().expect("an item");
    let waiter = Stack::open(&(other.clone() as StoreRef), "undo").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.pop_within(PATIENCE).await });
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let looks = other.counts().round_trips;
    assert!(looks <= 6, "{looks} looks");
    let at = Instant::now();
    claim.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().expect("an item"), "a");
    assert!(at.elapsed() < Duration::from_secs(1), "{:?}", at.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_leaves_no_waiter_behind() {
    let mut server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().appendonly());
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let guard = Lock::open(&(holder.clone() as StoreRef), "l").await.unwrap().acquire(PATIENCE).await.unwrap();
    let lock = Lock::open(&(waiter as StoreRef), "l").await.unwrap();
    let waiting = tokio::spawn(async move { lock.acquire(PATIENCE).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.kill9();
    server.restart();
    while holder.get(Key::new("any").unwrap()).await.is_err() {
        // Its prober redials within 2 s.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_not_track_polls() {
    let server = server(RedisVersion::Redis7);
    let user = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-client|tracking"];
    assert_eq!(server.command(&user).text(), "OK");
    let url = server.url().replace("redis://", "redis://limited:secret@");
    let store: StoreRef = Arc::new(RedisStore::connect(Config::from_url(&url).unwrap()).await.unwrap());
    let guard = Lock::open(&store, "l").await.unwrap().acquire(PATIENCE).await.unwrap();
    let lock = Lock::open(&store, "l").await.unwrap();
    let waiting = tokio::spawn(async move { lock.acquire(PATIENCE).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
