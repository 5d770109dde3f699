//! What is said of an op's effect must be true, whatever the network does; and nobody gets another's reply.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use larder_core::{Arith, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, StoreExt, Ttl, Want};
use larder_net::all_of;
use larder_store_redis::{Config, RedisStore};
use larder_testkit::proxy::{Fault, Hold, Proxy, Rates, Then};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

/// Of clients whose time is not to run out: the machine may be busy.
const PATIENCE: &str = "timeout_ms=10000&connect_timeout_ms=5000";

/// A server, a store that reaches it by a proxy, and one that reaches it directly: the truth.
struct Scene {
    server: RedisServer,
    proxy: Proxy,
    store: RedisStore,
    truth: RedisStore,
}

impl Scene {
    async fn new(version: RedisVersion, options: &str) -> Scene {
        let server = RedisServer::start(version, &RedisOptions::new());
        let proxy = Proxy::start(server.addr());
        let store = open(&format!("redis://{}?{options}", proxy.addr())).await;
        let truth = open(&format!("{}?{PATIENCE}", server.url())).await;
        Scene { server, proxy, store, truth }
    }

    async fn length(&self) -> usize {
        value(&self.truth, "k").await.unwrap().len()
    }
}

fn append() -> Op {
    put("k", PutMode::Append, "x")
}

/// Checks an append of one byte against the value's length before and after it; a late one is waited for.
async fn judge(scene: &Scene, before: usize, appended: &Result<Reply>, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while scene.proxy.counts().late_pending > 0 {
        assert!(Instant::now() < deadline, "{what}: never delivered");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let after = scene.length().await;
    match appended {
        Ok(reply) => {
            assert_eq!(*reply, Reply::Stored, "{what}");
            assert_eq!(after, before + 1, "{what}: stored, it said");
        }
        Err(error) if error.known_effect() == Effect::NotApplied => {
            assert_eq!(after, before, "{what}: not applied, it said: {error}");
        }
        Err(error) => assert!(after == before || after == before + 1, "{what}: applied twice: {error}"),
    }
}

#[tokio::test]
async fn a_cut_in_the_request_or_the_reply_is_told_honestly() {
    let scene = Scene::new(RedisVersion::Redis7, PATIENCE).await;
    set(&scene.truth, "k", "").await;
    let mut unknown = 0;
    for after_bytes in (0..110).step_by(5) {
        let before = scene.length().await;
        wait_until_up(&scene.store).await;
        scene.proxy.next(Fault::CutRequest { after_bytes });
        let appended = one(&scene.store, append()).await;
        unknown += u32::from(appended.as_ref().is_err_and(Error::is_unknown));
        judge(&scene, before, &appended, &format!("cut after {after_bytes}")).await;
    }
    assert!(unknown > 10, "only {unknown} were unknown, so the cuts did not happen");
    for after_bytes in 0..(":1\r\n".len() as u64) {
        let before = scene.length().await;
        wait_until_up(&scene.store).await;
        scene.proxy.next(Fault::CutReply { after_bytes });
        let appended = one(&scene.store, append()).await;
        assert!(appended.as_ref().is_err_and(Error::is_unknown), "{after_bytes}: {appended:?}");
        assert_eq!(scene.length().await, before + 1, "reply cut after {after_bytes}: sent again");
    }
}

#[tokio::test]
async fn lost_requests_lost_replies_and_late_deliveries_are_unknown_and_never_sent_again() {
    for version in RedisVersion::ALL {
        let scene = Scene::new(version, "timeout_ms=400").await;
        set(&scene.truth, "k", "").await;
        let faults = [
            Fault::LoseRequest(Then::Close),
            Fault::LoseReply(Then::Close),
            Fault::DeliverLate(Hold::CutThenMs(30)),
            Fault::LoseRequest(Then::Hang),
            Fault::LoseReply(Then::Hang),
            Fault::Hang,
            Fault::Close,
        ];
        for fault in faults {
            let before = scene.length().await;
            wait_until_up(&scene.store).await;
            scene.proxy.next(fault.clone());
            let appended = one(&scene.store, append()).await;
            let error = appended.as_ref().expect_err("a fault");
            assert!(error.is_unknown(), "{version:?} {fault:?}: {error}");
            judge(&scene, before, &appended, &format!("{version:?} {fault:?}")).await;
        }
    }
}

#[tokio::test]
async fn a_write_whose_reply_is_cut_anywhere_says_that_the_connection_ended() {
    for version in RedisVersion::ALL {
        let scene = Scene::new(version, PATIENCE).await;
        set(&scene.truth, "k", "").await;
        for after_bytes in 0..(":1\r\n".len() as u64) {
            wait_until_up(&scene.store).await;
            scene.proxy.next(Fault::CutReply { after_bytes });
            let error = one(&scene.store, append()).await.expect_err("a reply that was cut");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{version:?}, after {after_bytes} bytes: {error}");
            assert!(error.is_unknown(), "{error}");
        }
    }
}

#[tokio::test]
async fn a_greeting_that_is_cut_anywhere_is_no_other_server() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let proxy = Proxy::start(server.addr());
        let config = Config::from_url(&format!("redis://{}", proxy.addr())).unwrap();
        // Through the greeting, and into the answers to what is asked after it.
        for after_bytes in (0..300).step_by(7) {
            proxy.next(Fault::CutReply { after_bytes });
            let error = RedisStore::connect(config.clone()).await.expect_err("a greeting that was cut");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{version:?}, after {after_bytes} bytes: {error}");
        }
        assert!(RedisStore::connect(config).await.is_ok());
    }
}

#[tokio::test]
async fn a_read_that_is_cut_is_sent_again_once_and_a_write_is_not() {
    let scene = Scene::new(RedisVersion::Valkey, PATIENCE).await;
    set(&scene.truth, "k", "value").await;
    for after_bytes in 0..("$14\r\n\u{1}12345678value\r\n".len() as u64) {
        wait_until_up(&scene.store).await;
        scene.proxy.next(Fault::CutReply { after_bytes });
        assert_eq!(value(&scene.store, "k").await.unwrap(), "value", "{after_bytes}");
    }
    wait_until_up(&scene.store).await;
    let before = scene.store.stats().ops;
    scene.proxy.script(0, |moment, _| match moment.bytes {
        bytes if bytes.ends_with(b"$3\r\nGET\r\n$1\r\nk\r\n") => Fault::LoseReply(Then::Close),
        _ => Fault::Pass,
    });
    let error = one(&scene.store, Op::get(key("k"), Want::VALUE)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(scene.store.stats().ops, before + 2);
}

/// What leaves with others is taken from its caller: where it must be sent again, it is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_leave_together_are_sent_again_where_their_connection_or_the_scripts_are_gone() {
    let scene = Scene::new(RedisVersion::Redis7, PATIENCE).await;
    let there = (0..64).map(|at| put(&format!("k{at}"), PutMode::Set, format!("value {at}")));
    all(&scene.truth, there).await.into_iter().for_each(|reply| _ = reply.unwrap());
    wait_until_up(&scene.store).await;
    // A read of a life is a script.
    let want = |at: usize| if at % 4 == 1 { Want::TTL } else { Want::VALUE };
    let together = async |what: &str| {
        let reads = (0..64).map(|at| Box::pin(one(&scene.store, Op::get(key(format!("k{at}")), want(at)))));
        for (at, reply) in all_of(reads.collect()).await.into_iter().enumerate() {
            let item = reply.unwrap_or_else(|error| panic!("{what}: {at}: {error}")).into_item();
            let value = if at % 4 == 1 { String::new() } else { format!("value {at}") };
            assert_eq!(item.map(|item| item.value), Some(value.into()), "{what}: {at}");
        }
    };
    together("in peace").await;
    for after_bytes in [0, 7, 500, 1_500] {
        wait_until_up(&scene.store).await;
        let before = scene.store.stats();
        scene.proxy.next(Fault::CutReply { after_bytes });
        together(&format!("cut after {after_bytes}")).await;
        assert!(scene.store.stats().ops > before.ops + 64, "cut after {after_bytes}: nothing was sent again");
    }
    wait_until_up(&scene.store).await;
    scene.server.command(&["SCRIPT", "FLUSH"]);
    together("without scripts").await;
    assert!(scene.store.stats().scripts_reloaded > 0);
}

/// Enough for several slices, and a read by a script in each.
const MANY: usize = 2_600;

async fn read_many(store: &RedisStore, what: &str) {
    let want = |at: usize| if at % 100 == 1 { Want::TTL } else { Want::VALUE };
    let replies = all(store, (0..MANY).map(|at| Op::get(key(format!("k{at}")), want(at)))).await;
    assert_eq!(replies.len(), MANY);
    for (at, reply) in replies.into_iter().enumerate() {
        let found = reply.unwrap_or_else(|error| panic!("{what}: {error}")).into_item().map(|item| item.value);
        let value = if at % 100 == 1 { String::new() } else { format!("value {at}") };
        assert_eq!(found, (at % 3 != 0).then(|| value.into()), "{what}: {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_leave_in_slices_and_are_one_round_trip_whatever_happens_to_one() {
    let scene = Scene::new(RedisVersion::Redis7, PATIENCE).await;
    let there = (0..MANY).filter(|at| at % 3 != 0);
    all(&scene.truth, there.map(|at| put(&format!("k{at}"), PutMode::Set, format!("value {at}")))).await;
    wait_until_up(&scene.store).await;
    let trips = scene.store.stats().round_trips;
    read_many(&scene.store, "in peace").await;
    assert_eq!(scene.store.stats().round_trips - trips, 1);
    // The last slice has one read.
    all(&scene.store, (0..1_025).map(|at| Op::get(key(format!("k{at}")), Want::VALUE))).await;
    assert_eq!(scene.store.stats().round_trips - trips, 2);
    scene.server.command(&["SCRIPT", "FLUSH"]);
    read_many(&scene.store, "without scripts").await;
    assert_eq!(scene.store.stats().scripts_reloaded, 1);
    for after_bytes in [0, 7, 5_000, 14_000, 30_000] {
        wait_until_up(&scene.store).await;
        scene.proxy.next(Fault::CutReply { after_bytes });
        read_many(&scene.store, &format!("cut after {after_bytes}")).await;
    }
    // A batch that writes is not cut, and its write is done once.
    wait_until_up(&scene.store).await;
    let trips = scene.store.stats().round_trips;
    set(&scene.truth, "k", "").await;
    let reads = (0..MANY).map(|_| Op::get(key("k"), Want::VALUE));
    let replies = all(&scene.store, std::iter::once(append()).chain(reads)).await;
    let value = |reply: Result<Reply>| reply.unwrap().into_item().map(|item| item.value);
    assert!(replies.into_iter().skip(1).all(|reply| value(reply).is_some_and(|value| value == "x")));
    assert_eq!(scene.store.stats().round_trips - trips, 1);
}

#[tokio::test]
async fn a_server_that_hangs_times_out_and_the_connection_is_given_up() {
    let scene = Scene::new(RedisVersion::Redis8, "timeout_ms=100").await;
    set(&scene.truth, "k", "v").await;
    wait_until_up(&scene.store).await;
    scene.server.stop();
    let start = Instant::now();
    let write = one(&scene.store, append()).await.unwrap_err();
    assert_eq!((write.kind(), write.known_effect()), (ErrorKind::Timeout, Effect::Unknown));
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    let read = one(&scene.store, Op::get(key("k"), Want::VALUE)).await.unwrap_err();
    assert_eq!((read.kind(), read.known_effect()), (ErrorKind::Timeout, Effect::NotApplied));
    while scene.store.stats().poisoned == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the dead connection is kept");
        let _ = one(&scene.store, Op::get(key("k"), Want::VALUE)).await;
    }
    scene.server.cont();
    wait_until_up(&scene.store).await;
    assert_eq!(value(&scene.truth, "k").await.unwrap(), "vx", "the append was carried out once, late");
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_given_up_though_nobody_waits_for_a_deadline() {
    let scene = Scene::new(RedisVersion::Redis8, "timeout_ms=500").await;
    set(&scene.truth, "k", "v").await;
    wait_until_up(&scene.store).await;
    scene.proxy.next(Fault::Hang);
    let start = Instant::now();
    let found = loop {
        let hasty = tokio::time::timeout(Duration::from_millis(100), scene.store.get(key("k"))).await;
        if let Ok(Ok(found)) = hasty {
            break found;
        }
        // Some 1.2 s; a busy machine may take longer, and a connection that nobody gives up lasts as long as the system wants.
        assert!(start.elapsed() < Duration::from_secs(30), "the dead connection is kept");
    };
    assert_eq!(found.unwrap().value, "v");
    assert_eq!((scene.store.stats().poisoned, scene.proxy.counts().hangs), (1, 1));
}

#[tokio::test]
async fn a_deadline_counts_and_the_others_replies_stay_matched() {
    let scene = Scene::new(RedisVersion::Redis7, "timeout_ms=5000").await;
    set(&scene.truth, "k", "v").await;
    set(&scene.truth, "other", "w").await;
    let connections = scene.store.stats().connections;
    scene.proxy.next(Fault::Delay { ms: 150 });
    let hasty = scene.store.run_one(Ctx::within(Duration::from_millis(40)), Op::get(key("k"), Want::VALUE));
    let (hasty, patient) = tokio::join!(hasty, value(&scene.store, "other"));
    assert_eq!(hasty.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(patient.unwrap(), "w");
    assert_eq!(value(&scene.store, "k").await.unwrap(), "v");
    assert_eq!((scene.store.stats().connections, scene.store.stats().timeouts), (connections, 1));
    let passed = Ctx { deadline: Some(Instant::now() - Duration::from_millis(1)) };
    let before = scene.store.stats().ops;
    let error = scene.store.run_one(passed, append()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied));
    assert_eq!(scene.store.stats().ops, before);
}

#[tokio::test]
async fn a_server_that_is_down_is_refused_at_once_and_found_again() {
    let mut server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let store = open(&format!("{}?timeout_ms=3000", server.url())).await;
    set(&store, "k", "v").await;
    server.kill9();
    while one(&store, append()).await.unwrap_err().is_unknown() {}
    let start = Instant::now();
    let error = one(&store, append()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(1) && error.to_string().contains(&server.addr().to_string()),
        "{error}"
    );
    server.restart_empty();
    wait_until_up(&store).await;
    assert_eq!(one(&store, append()).await.unwrap(), Reply::NotStored, "nothing is left of it");
    set(&store, "k", "scripts are there again").await;
}

/// Tasks that read and write values of their own while futures are dropped at random.
async fn everyone_gets_his_own(store: Arc<RedisStore>, tasks: u64) {
    let work = (0..tasks).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            let (mine, text) = (format!("k{task}"), format!("value of {task}"));
            let mut found = 0;
            for round in 0..100 {
                let _ = one(&store, put(&mine, PutMode::Set, text.clone())).await;
                let read =
                    all(&store, [Op::get(key(&mine), Want::VALUE), Op::get(key(format!("none{task}")), Want::VALUE)]);
                let replies = if round % 3 == 0 {
                    match tokio::time::timeout(Duration::from_micros(random.u64(0..400)), read).await {
                        Ok(replies) => replies,
                        Err(_) => continue,
                    }
                } else {
                    read.await
                };
                if let Ok(Reply::Item(item)) = &replies[0] {
                    assert_eq!(item.value, text, "task {task} got another's reply");
                    found += 1;
                }
                assert!(!matches!(&replies[1], Ok(Reply::Item(_))), "task {task} got another's reply");
            }
            found
        })
    });
    for work in work.collect::<Vec<_>>() {
        assert!(work.await.unwrap() > 10, "almost nothing was read");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_and_broken_connections_never_mix_up_replies() {
    let Scene { server: _server, proxy, store, truth: _truth } =
        Scene::new(RedisVersion::Redis7, "timeout_ms=1000").await;
    let store = Arc::new(store);
    everyone_gets_his_own(store.clone(), 32).await;
    assert_eq!(store.stats().reconnects, 0, "a dropped future leaves the connection as it was");
    let rates = Rates { cut_request: 0.01, cut_reply: 0.01, lost_reply: 0.01, delay: 0.1, ..Rates::default() };
    proxy.random(7, rates);
    everyone_gets_his_own(store.clone(), 16).await;
    assert!(store.stats().reconnects > 0 && proxy.counts().faults() > 0, "nothing broke");
}

/// What 8 tasks over 2 clients said that they did, against what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_over_two_clients_on_a_bad_network_count_honestly() {
    let scene = Scene::new(RedisVersion::Redis8, "timeout_ms=500").await;
    let other = open(&format!("redis://{}?timeout_ms=500", scene.proxy.addr())).await;
    set(&scene.truth, "n", "0").await;
    scene.proxy.random(
        3,
        Rates {
            lost_request: 0.01,
            lost_reply: 0.01,
            late_delivery: 0.01,
            cut_reply: 0.01,
            late_ms_max: 20,
            ..Rates::default()
        },
    );
    let Scene { server: _server, proxy, store, truth } = scene;
    let stores = [Arc::new(store), Arc::new(other)];
    let tasks = (0..8).map(|task: usize| {
        let store = stores[task % 2].clone();
        tokio::spawn(async move {
            let (mut done, mut unknown) = (0u64, 0u64);
            for _ in 0..150 {
                match one(&store, Op::arith(key("n"), Arith::Incr(1))).await {
                    Ok(Reply::Number(_)) => done += 1,
                    Ok(reply) => panic!("{reply:?}"),
                    Err(error) if error.is_unknown() => unknown += 1,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
            (done, unknown)
        })
    });
    let (mut done, mut unknown) = (0, 0);
    for task in tasks.collect::<Vec<_>>() {
        let of = task.await.unwrap();
        (done, unknown) = (done + of.0, unknown + of.1);
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while proxy.counts().late_pending > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stands: u64 = String::from_utf8(value(&truth, "n").await.unwrap().to_vec()).unwrap().parse().unwrap();
    assert!(unknown > 0, "nothing broke");
    assert!((done..=done + unknown).contains(&stands), "{stands} stand; {done} were done, {unknown} are unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_tasks_over_two_clients_one_swap_wins_each_round() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let url = format!("{}?{PATIENCE}", server.url());
        let stores = [Arc::new(open(&url).await), Arc::new(open(&url).await)];
        for round in 0..20 {
            set(&stores[0], "k", "same").await;
            let read = one(&stores[round % 2], Op::get(key("k"), Want::CAS)).await.unwrap();
            let cas = read.into_item().and_then(|item| item.cas).unwrap();
            let writers = (0..8).map(|writer: usize| {
                let store = stores[writer % 2].clone();
                // Each writes what stands there: only the version tells them apart.
                let op = Op::put(key("k"), PutMode::Cas(cas), "same", Ttl::Never);
                tokio::spawn(async move { one(&store, op).await.unwrap() })
            });
            let mut won = 0;
            for writer in writers.collect::<Vec<_>>() {
                match writer.await.unwrap() {
                    Reply::Stored => won += 1,
                    reply => assert_eq!(reply, Reply::Exists),
                }
            }
            assert_eq!(won, 1, "{version:?}, round {round}");
        }
    }
}

/// A watch of an item as it stands.
async fn watch_of(store: &RedisStore, name: &str) -> Op {
    let item = one(store, Op::get(key(name), Want::CAS)).await.unwrap().into_item();
    Op::watch(key(name), item.and_then(|item| item.cas))
}

/// Whether a connection is being made to track.
fn tracks(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|part| part == b"TRACKING")
}

/// Waits for an item to change, which it does while that is under way.
async fn told_of_a_change(scene: &Scene) -> Result<Reply> {
    let watch = watch_of(&scene.truth, "k").await;
    let change = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(one(&scene.truth, append()).await.unwrap(), Reply::Stored);
    };
    tokio::join!(scene.store.run_one(Ctx::within(Duration::from_secs(20)), watch), change).0
}

#[tokio::test]
async fn a_cut_before_the_server_tracks_is_not_taken_for_a_refusal() {
    for version in RedisVersion::ALL {
        let scene = Scene::new(version, PATIENCE).await;
        set(&scene.truth, "k", "v").await;
        let watch = watch_of(&scene.truth, "k").await;
        for fault in [Fault::Close, Fault::LoseReply(Then::Close)] {
            let what = format!("{version:?} {fault:?}");
            scene.proxy.script(0, move |moment, _| if tracks(moment.bytes) { fault.clone() } else { Fault::Pass });
            let told = scene.store.run_one(Ctx::within(Duration::from_secs(20)), watch.clone()).await;
            let error = told.expect_err(&what);
            assert_eq!(
                (error.kind(), error.known_effect()),
                (ErrorKind::Unavailable, Effect::NotApplied),
                "{what}: {error}"
            );
            // Until then nobody dials.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        scene.proxy.set(Fault::Pass);
        assert_eq!(told_of_a_change(&scene).await.unwrap(), Reply::Changed, "{version:?}");
        assert_eq!(scene.store.stats().reconnects, 0, "{version:?}: it was the connection of another");
    }
}

#[tokio::test]
async fn a_wait_on_a_connection_that_fell_silent_ends_and_the_next_one_is_told() {
    let scene = Scene::new(RedisVersion::Redis8, "timeout_ms=1000&connect_timeout_ms=5000").await;
    set(&scene.truth, "k", "v").await;
    let is_silent = Arc::new(AtomicBool::new(false));
    let (silence, mut tracking) = (is_silent.clone(), None);
    // What is sent over the newest connection that tracks is swallowed, with whatever the server would say.
    scene.proxy.script(0, move |moment, _| {
        if tracks(moment.bytes) {
            tracking = Some(moment.connection);
        }
        let is_swallowed = tracking == Some(moment.connection) && silence.load(Ordering::Relaxed);
        if is_swallowed { Fault::Hang } else { Fault::Pass }
    });
    let watch = watch_of(&scene.truth, "k").await;
    let wait = |time: Duration| scene.store.run_one(Ctx::within(time), watch.clone());
    let fall_silent = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        is_silent.store(true, Ordering::Relaxed);
    };
    let start = Instant::now();
    let (told, ()) = tokio::join!(wait(Duration::from_secs(120)), fall_silent);
    // Within 4 s of the silence; a busy machine may take longer, and one that does not notice takes the two minutes.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(told.unwrap(), Reply::Changed, "nobody can tell");
    assert_eq!(scene.store.stats().poisoned, 1);

    // Waits that are shorter than it takes to notice: their looks are not answered.
    is_silent.store(false, Ordering::Relaxed);
    assert_eq!(wait(Duration::from_secs(2)).await.unwrap(), Reply::Unchanged);
    is_silent.store(true, Ordering::Relaxed);
    let start = Instant::now();
    while scene.store.stats().poisoned == 1 {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never noticed");
        // An error, where it is closed meanwhile.
        _ = wait(Duration::from_millis(150)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Nothing stays of it; and quiet alone is no silence.
    is_silent.store(false, Ordering::Relaxed);
    assert_eq!(told_of_a_change(&scene).await.unwrap(), Reply::Changed);
    let watch = watch_of(&scene.truth, "k").await;
    let quiet = scene.store.run_one(Ctx::within(Duration::from_secs(4)), watch).await;
    assert_eq!((quiet.unwrap(), scene.store.stats().poisoned), (Reply::Unchanged, 2));
}

/// Eight callers are under way, so that those who come next share a pipeline: the first of them from a runtime that ends, before it was sent or behind that.
#[test]
fn callers_who_share_a_pipeline_do_not_depend_on_the_runtime_of_one_of_them() {
    let ours = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = Arc::new(ours.block_on(open(&format!("{}?{PATIENCE}", server.url()))));
    for is_sent in [false, true] {
        server.stop();
        let handed_over = |ops: u64| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while store.stats().ops < ops {
                assert!(Instant::now() < deadline, "{} of {ops} ops", store.stats().ops);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let spawn = |name: &'static str| {
            let store = store.clone();
            ours.spawn(async move { one(&store, put(name, PutMode::Set, "v")).await })
        };
        let before = store.stats().ops;
        let crowd: Vec<_> = (0..8).map(|_| spawn("crowd")).collect();
        handed_over(before + 8);
        let theirs = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut first = Box::pin(one(&store, put("first", PutMode::Set, "v")));
        theirs.block_on(async { assert!(at_first_look(first.as_mut()).await.is_none()) });
        let rider = spawn("rider");
        handed_over(before + 10);
        if is_sent {
            theirs.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
        }
        drop(first);
        drop(theirs);
        server.cont();
        for caller in crowd.into_iter().chain([rider, spawn("later")]) {
            assert_eq!(ours.block_on(caller).unwrap().unwrap(), Reply::Stored, "sent before it ended: {is_sent}");
        }
    }
}

/// What a future says at its first look.
async fn at_first_look<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn callers_who_wait_for_a_pipeline_are_told_that_the_stores_own_runtime_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = (runtime(), runtime());
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = ours.block_on(open(&format!("{}?{PATIENCE}", server.url())));
    // Nothing of the store's runs from here on: eight send for themselves, and two share what never leaves.
    let mut callers: Vec<_> = (0..10).map(|_| Box::pin(one(&store, put("k", PutMode::Set, "v")))).collect();
    theirs.block_on(async {
        for caller in &mut callers {
            assert!(at_first_look(caller.as_mut()).await.is_none());
        }
    });
    drop(ours);
    let begun = Instant::now();
    for rider in callers.split_off(8) {
        let error = theirs.block_on(rider).unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "they waited for their deadline");
}

/// A server that stands still, and callers who give up and come again: what they all sent would be carried out once it goes on, and queue up till then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_any_more_is_not_sent() {
    let server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let store = open(&format!("{}?timeout_ms=60000", server.url())).await;
    set(&store, "k", "v").await;
    let before = server.calls("set");
    server.stop();
    // More than the system takes in.
    let (rounds, callers, value) = (8, 500, Bytes::from(vec![b'v'; 16 * 1024]));
    for _ in 0..rounds {
        let soon = || Ctx::default().at_most(Duration::from_millis(200));
        let add = || Box::pin(store.run_one(soon(), put("k", PutMode::Add, value.clone())));
        let replies = all_of((0..callers).map(|_| add()).collect()).await;
        assert!(replies.iter().all(|reply| matches!(reply, Err(error) if error.kind() == ErrorKind::Timeout)));
    }
    server.cont();
    // Behind everything that waited.
    assert_eq!(one(&store, put("end", PutMode::Add, "v")).await.unwrap(), Reply::Stored);
    let (sent, arrived) = (rounds * callers, server.calls("set") - before);
    assert!(arrived < sent / 2, "{arrived} of {sent} were carried out that nobody waited for");
}

/// Each is killed soon after it has shaken hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_each_connection_at_once_is_dialled_with_pauses() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = open(&server.url()).await;
    let before = store.stats().connections;
    let until = Instant::now() + Duration::from_secs(2);
    let killing = tokio::task::spawn_blocking(move || {
        while Instant::now() < until {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            // So that one can shake hands.
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    });
    let _server = killing.await.unwrap();
    let dialled = store.stats().connections - before;
    assert!((3..60).contains(&dialled), "{dialled} connections in 2 s");
    let up = Instant::now() + Duration::from_secs(10);
    while one(&store, put("k", PutMode::Set, "v")).await.is_err() {
        assert!(Instant::now() < up, "it is never up again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A server that takes one connection and no other, and many who wait: whoever comes is told why none is to be had, and one dials now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_connection_cannot_be_opened_do_not_dial_it_each() {
    let server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let (addr, dials) = only_the_first(server.addr(), drop).await;
    let store = Arc::new(open(&format!("redis://{addr}?{PATIENCE}")).await);
    set(&store, "k", "v").await;
    let watch = watch_of(&store, "k").await;
    let until = Instant::now() + Duration::from_secs(2);
    let wait = async |store: Arc<RedisStore>, watch: Op| {
        while Instant::now() < until {
            let error = store.run_one(Ctx::within(Duration::from_secs(20)), watch.clone()).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    all_of((0..50).map(|_| Box::pin(wait(store.clone(), watch.clone()))).collect()).await;
    let dials = dials.load(Ordering::Relaxed);
    assert!((2..60).contains(&dials), "{dials} dials in 2 s");
    assert_eq!(store.stats().reconnects, 0);
}
