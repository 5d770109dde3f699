//! A store that goes away and comes back, behind the outage layer: real servers that are killed and restarted, and a switch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::observe::{self, Event, Observer};
use larder_core::{
    Arith, Batch, Ctx, Durability, Effect, Error, ErrorKind, Key, Profile, PutMode, Run, Store, StoreExt, StoreRef, Ttl,
};
use larder_layers::{Observed, OnOutage, Outage, Retry};
use larder_store_memcached::{Config, MemcachedStore};
use larder_store_memory::MemoryStore;
use larder_structures::{Counter, Lock};
use larder_testkit::servers::{Memcached, Version};

const SECOND: Duration = Duration::from_secs(1);

fn key(name: &'static str) -> Key {
    Key::new(name).unwrap()
}

async fn client(server: &Memcached) -> StoreRef {
    let url = format!("{}?timeout_ms=10000&connect_timeout_ms=10000", server.url());
    let config = Config::from_url(&url).unwrap();
    Arc::new(MemcachedStore::connect(config).await.unwrap())
}

/// Until the client has noticed that its server is gone.
async fn noticed(store: &StoreRef) {
    let deadline = Instant::now() + 10 * SECOND;
    while Instant::now() < deadline {
        match store.get(key("probe")).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => return,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    panic!("the server is gone, and the client has not noticed");
}

async fn write(store: &dyn Store, value: &'static str) -> larder_core::Result<larder_core::Reply> {
    store.put(key("k"), PutMode::Set, value, Ttl::Never).await
}

async fn read(store: &dyn Store) -> larder_core::Result<Option<bytes::Bytes>> {
    Ok(store.get(key("k")).await?.map(|item| item.value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_outlives_a_server_that_is_killed_and_restarted() {
    for version in Version::ALL {
        let mut server = Memcached::start(version, &[]);
        let plain = client(&server).await;
        let store =
            Arc::new(Outage::new(plain.clone()).reads(OnOutage::Wait(20 * SECOND)).writes(OnOutage::Wait(20 * SECOND)));
        write(&*store, "before").await.unwrap();
        server.kill9();
        noticed(&plain).await;
        assert_eq!(write(&*plain, "lost").await.unwrap_err().kind(), ErrorKind::Unavailable);

        let start = Instant::now();
        let writing = tokio::spawn({
            let store = store.clone();
            async move { write(&*store, "during").await }
        });
        tokio::time::sleep(SECOND / 2).await;
        assert!(!writing.is_finished(), "{version:?}: it waits");
        server.restart();
        writing.await.unwrap().unwrap();
        assert!(start.elapsed() >= SECOND / 2);
        assert_eq!(read(&*store).await.unwrap().unwrap(), "during", "{version:?}");

        server.kill9();
        noticed(&plain).await;
        let brief = Outage::new(plain.clone()).writes(OnOutage::Wait(SECOND / 4));
        let start = Instant::now();
        let error = write(&brief, "never").await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
        assert!((SECOND / 4..10 * SECOND).contains(&start.elapsed()), "{:?}", start.elapsed());
        // A deadline of the caller's own comes first.
        let start = Instant::now();
        let op = larder_core::Op::delete(key("k"));
        store.run_one(Ctx::within(SECOND / 4), op).await.unwrap_err();
        assert!(start.elapsed() < 5 * SECOND);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_fall_back_while_the_server_is_away_and_only_then() {
    for version in Version::ALL {
        let mut server = Memcached::start(version, &[]);
        let plain = client(&server).await;
        let nearby: StoreRef = Arc::new(MemoryStore::new());
        write(&*nearby, "nearby").await.unwrap();
        let store = Outage::new(plain.clone()).reads(OnOutage::FallBack(nearby.clone()));
        assert_eq!(store.profile().durability, Durability::Process, "the weaker of both");
        assert!(store.profile().may_evict(), "the weaker of both");
        write(&store, "server").await.unwrap();
        assert_eq!(read(&store).await.unwrap().unwrap(), "server");
        server.kill9();
        noticed(&plain).await;
        assert_eq!(read(&store).await.unwrap().unwrap(), "nearby");
        assert_eq!(write(&store, "x").await.unwrap_err().kind(), ErrorKind::Unavailable, "writes were not declared");
        assert_eq!(read(&*nearby).await.unwrap().unwrap(), "nearby", "nor did one go there");
        server.restart();
        let deadline = Instant::now() + 10 * SECOND;
        while plain.get(key("k")).await.is_err() {
            assert!(Instant::now() < deadline, "the client does not come back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(read(&store).await.unwrap(), None, "the server again, which has forgotten");
    }
}

/// A memory store that can be switched off.
#[derive(Debug)]
struct Switch {
    store: MemoryStore,
    is_out: AtomicBool,
}

impl Switch {
    fn new() -> Arc<Switch> {
        Arc::new(Switch { store: MemoryStore::new(), is_out: AtomicBool::new(false) })
    }

    fn out(&self, is_out: bool) {
        self.is_out.store(is_out, Ordering::SeqCst);
    }
}

impl Store for Switch {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if self.is_out.load(Ordering::SeqCst) {
            return Run::Ready(batch.iter().map(|_| Err(Error::new(ErrorKind::Unavailable, "switched off"))).collect());
        }
        self.store.run(ctx, batch)
    }
}

#[tokio::test]
async fn a_structure_fails_in_an_outage_rather_than_splits() {
    let (switch, nearby): (_, StoreRef) = (Switch::new(), Arc::new(MemoryStore::new()));
    let outage = Outage::new(switch.clone());
    let store: StoreRef =
        Arc::new(outage.reads(OnOutage::FallBack(nearby.clone())).writes(OnOutage::FallBack(nearby.clone())));
    let counter = Counter::options().timeout(SECOND).open_or_create(&store, "hits").await.unwrap();
    counter.add(1).await.unwrap();
    let lock = Lock::options().timeout(SECOND).open(&store, "nightly").await.unwrap();
    switch.out(true);
    counter.add(1).await.unwrap_err();
    assert!(lock.try_acquire().await.is_err(), "no second lock");
    assert!(Counter::open_or_create(&store, "hits").await.is_err(), "no second counter is made");
    assert_eq!(store.arith(key("n"), Arith::Incr(1)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    switch.out(false);
    assert_eq!(counter.get().await.unwrap(), 1);
}

#[tokio::test]
async fn with_conditional_writes_too_a_lock_is_two_locks() {
    let (switch, nearby): (_, StoreRef) = (Switch::new(), Arc::new(MemoryStore::new()));
    let store: StoreRef = Arc::new(
        Outage::new(switch.clone())
            .reads(OnOutage::FallBack(nearby.clone()))
            .writes(OnOutage::FallBack(nearby))
            .conditional_writes_too(),
    );
    let first = Lock::open(&store, "nightly").await.unwrap().try_acquire().await.unwrap().unwrap();
    switch.out(true);
    let second = Lock::open(&store, "nightly").await.unwrap().try_acquire().await.unwrap().unwrap();
    assert!(first.is_held() && second.is_held(), "as the documentation says");
}

#[tokio::test]
async fn the_layers_tell_the_process_what_they_do() {
    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    #[derive(Debug)]
    struct Recorder;
    impl Observer for Recorder {
        fn observe(&self, event: &Event<'_>) {
            let line = match event {
                Event::Batch(batch) if batch.store == "told" => {
                    format!("{} {}", batch.ops[0].name, batch.ops[0].outcome.as_str())
                }
                Event::Retry { subject, cause } if subject.kind == "store" => format!("retry after {}", cause.as_str()),
                Event::FallBack { ops, .. } => format!("{ops} fall back"),
                _ => return,
            };
            SEEN.lock().unwrap().push(line);
        }
    }
    let told = || std::mem::take(&mut *SEEN.lock().unwrap());
    let (switch, nearby): (_, StoreRef) = (Switch::new(), Arc::new(MemoryStore::new()));
    let observed: StoreRef = Arc::new(Observed::new(switch.clone(), "told"));
    read(&*observed).await.unwrap();
    assert!(told().is_empty(), "nobody listened");
    observe::set(Recorder).unwrap();
    told();
    read(&*observed).await.unwrap();
    assert_eq!(told(), ["get miss"]);
    switch.out(true);
    let fails = "get unavailable";
    read(&Retry::new(observed.clone()).attempts_max(2)).await.unwrap_err();
    assert_eq!(told(), [fails, "retry after unavailable", fails]);
    read(&Outage::new(observed.clone()).reads(OnOutage::FallBack(nearby))).await.unwrap();
    assert_eq!(told(), [fails, "1 fall back"]);
    read(&Outage::new(observed).reads(OnOutage::Wait(SECOND / 20))).await.unwrap_err();
    let all = told();
    assert_eq!(all[..3], [fails, "retry after unavailable", fails]);
}
