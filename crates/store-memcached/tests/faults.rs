//! What is said of an op's effect must be true, whatever the network does; and nobody gets another's reply.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use larder_core::{Ctx, Effect, ErrorKind, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
use larder_store_memcached::MemcachedStore;
use larder_testkit::proxy::{Fault, Hold, Proxy, Rates, Then};
use larder_testkit::servers::{Memcached, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A server, a store that reaches it by a proxy, and one that reaches it directly: the truth.
struct Scene {
    _server: Memcached,
    proxy: Proxy,
    store: MemcachedStore,
    truth: MemcachedStore,
}

impl Scene {
    async fn new(version: Version, options: &str) -> Scene {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let store = open(&format!("memcached://{}?{options}", proxy.addr())).await;
        let truth = open(&server.url()).await;
        Scene { _server: server, proxy, store, truth }
    }
}

/// Checks an append of one byte against the value's length before and after it; a late one is waited for.
async fn judge(scene: &Scene, before: usize, appended: &Result<Reply>, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while scene.proxy.counts().late_pending > 0 {
        assert!(Instant::now() < deadline, "{what}: never delivered");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let after = value(&scene.truth, "k").await.unwrap().len();
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

fn append() -> Op {
    Op::put(key("k"), PutMode::Append, "x", Ttl::Never)
}

#[tokio::test]
async fn a_cut_at_every_byte_of_the_request_is_told_honestly() {
    for dialect in ["auto", "classic"] {
        let scene = Scene::new(Version::New, &format!("dialect={dialect}")).await;
        set(&scene.truth, "k", "").await;
        let mut unknown = 0;
        for after_bytes in 0..=("append k 0 0 1\r\nx\r\n".len() as u64) {
            let before = value(&scene.truth, "k").await.unwrap().len();
            wait_until_up(&scene.store).await;
            scene.proxy.next(Fault::CutRequest { after_bytes });
            let appended = one(&scene.store, append()).await;
            unknown += u32::from(appended.as_ref().is_err_and(larder_core::Error::is_unknown));
            judge(&scene, before, &appended, &format!("{dialect}, cut after {after_bytes}")).await;
        }
        assert!(unknown > 10, "{dialect}: only {unknown} were unknown, so the cuts did not happen");
    }
}

#[tokio::test]
async fn a_cut_at_every_byte_of_the_reply_is_told_honestly() {
    for dialect in ["auto", "classic"] {
        let scene = Scene::new(Version::Old, &format!("dialect={dialect}")).await;
        set(&scene.truth, "k", "").await;
        for after_bytes in 0..("STORED\r\n".len() as u64) {
            let before = value(&scene.truth, "k").await.unwrap().len();
            wait_until_up(&scene.store).await;
            scene.proxy.next(Fault::CutReply { after_bytes });
            let appended = one(&scene.store, append()).await;
            assert!(
                appended.as_ref().is_err_and(larder_core::Error::is_unknown),
                "{dialect} {after_bytes}: {appended:?}"
            );
            let after = value(&scene.truth, "k").await.unwrap().len();
            assert_eq!(after, before + 1, "{dialect}, reply cut after {after_bytes}: sent again");
        }
    }
}

#[tokio::test]
async fn a_read_that_is_cut_is_sent_again_once() {
    for (dialect, reply) in [("auto", "VA 5 O1\r\nvalue\r\n"), ("classic", "VALUE k 0 5\r\nvalue\r\nEND\r\n")] {
        let scene = Scene::new(Version::New, &format!("dialect={dialect}")).await;
        set(&scene.truth, "k", "value").await;
        for after_bytes in 0..(reply.len() as u64) {
            wait_until_up(&scene.store).await;
            scene.proxy.next(Fault::CutReply { after_bytes });
            assert_eq!(value(&scene.store, "k").await.unwrap(), "value", "{dialect} {after_bytes}");
        }
        let before = scene.store.stats();
        scene.proxy.script(0, |moment, _| match moment.bytes {
            [b'm', b'g', b' ', b'k', ..] | [b'g', b'e', b't', b' ', b'k', ..] => Fault::LoseReply(Then::Close),
            _ => Fault::Pass,
        });
        let error = one(&scene.store, Op::get(key("k"), Want::VALUE)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
        assert_eq!(scene.store.stats().ops, before.ops + 2, "{dialect}");
    }
}

/// Ops on one key take effect in the order of the batch: a read that goes again must not find the write that stood behind it.
#[tokio::test]
async fn a_read_before_a_write_that_may_be_applied_is_not_sent_again() {
    for dialect in ["auto", "classic"] {
        let scene = Scene::new(Version::New, &format!("dialect={dialect}")).await;
        set(&scene.truth, "k", "").await;
        set(&scene.truth, "other", "v").await;
        let get = |k: &str| Op::get(key(k), Want::VALUE);
        scene.proxy.next(Fault::CutReply { after_bytes: 0 });
        let replies = all(&scene.store, [get("k"), get("other"), append(), get("k")]).await;
        let error = replies[0].as_ref().expect_err(dialect);
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("out of order"), "{error}");
        assert!(matches!(&replies[1], Ok(Reply::Item(item)) if item.value == "v"), "{dialect}: of another key");
        assert!(replies[2].as_ref().is_err_and(larder_core::Error::is_unknown));
        assert!(matches!(&replies[3], Ok(Reply::Item(item)) if item.value == "x"), "{dialect}: behind the write");
        assert_eq!(value(&scene.truth, "k").await.unwrap(), "x", "{dialect}");
    }
}

#[tokio::test]
async fn lost_requests_lost_replies_and_late_deliveries_are_unknown_and_never_sent_again() {
    for version in Version::ALL {
        let scene = Scene::new(version, "timeout_ms=300").await;
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
            let before = value(&scene.truth, "k").await.unwrap().len();
            wait_until_up(&scene.store).await;
            scene.proxy.next(fault.clone());
            let appended = one(&scene.store, append()).await;
            let error = appended.as_ref().unwrap_err();
            assert!(error.is_unknown(), "{fault:?}: {error}");
            judge(&scene, before, &appended, &format!("{fault:?}")).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_hangs_times_out_and_the_connection_is_given_up() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&format!("{}?timeout_ms=100", server.url())).await;
    set(&store, "k", "v").await;
    server.stop();
    let start = Instant::now();
    let write = one(&store, append()).await.unwrap_err();
    assert_eq!((write.kind(), write.known_effect()), (ErrorKind::Timeout, Effect::Unknown));
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
    let read = one(&store, Op::get(key("k"), Want::VALUE)).await.unwrap_err();
    assert_eq!((read.kind(), read.known_effect()), (ErrorKind::Timeout, Effect::NotApplied));
    while store.stats().poisoned == 0 {
        let _ = one(&store, Op::get(key("k"), Want::VALUE)).await;
    }
    server.cont();
    wait_until_up(&store).await;
    // The thread of the old connection may come to it behind that of the new one.
    for _ in 0..400 {
        if value(&store, "k").await.unwrap() != "v" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(value(&store, "k").await.unwrap(), "vx", "the append was carried out once, late");
}

#[tokio::test]
async fn a_deadline_of_the_context_counts_and_the_others_replies_stay_matched() {
    let scene = Scene::new(Version::New, "timeout_ms=5000").await;
    set(&scene.truth, "k", "v").await;
    set(&scene.truth, "other", "w").await;
    scene.proxy.next(Fault::Delay { ms: 150 });
    let start = Instant::now();
    let hasty = scene.store.run_one(Ctx::within(Duration::from_millis(40)), Op::get(key("k"), Want::VALUE));
    let (hasty, patient) = tokio::join!(hasty, value(&scene.store, "other"));
    assert_eq!(hasty.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(patient.unwrap(), "w");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(value(&scene.store, "k").await.unwrap(), "v");
    assert_eq!((scene.store.stats().connections, scene.store.stats().timeouts), (1, 1));
}

#[tokio::test]
async fn a_deadline_that_has_passed_sends_nothing() {
    let scene = Scene::new(Version::New, "").await;
    let passed = Ctx { deadline: Some(Instant::now() - Duration::from_millis(1)) };
    let error = scene.store.run_one(passed, append()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied));
    assert_eq!(scene.store.stats().ops, 0);
}

#[tokio::test]
async fn garbage_poisons_the_connection() {
    let texts: [&[u8]; 6] = [
        b"VA 1 O4000000000\r\nx\r\n",
        b"HD O4000000000\r\n",
        b"STORED\r\n",
        b"-ERR unknown command\r\n",
        b"\x15\x03\x03\x00\x02\x02\x28 no line end, and so on and on\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    let scene = Scene::new(Version::New, "timeout_ms=500").await;
    set(&scene.truth, "k", "v").await;
    for (text, poisoned) in texts.iter().zip(1..) {
        wait_until_up(&scene.store).await;
        scene.proxy.next(Fault::Garbage(text.to_vec()));
        let error = one(&scene.store, Op::delete(key("k"))).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::Unknown), "{text:?}: {error}");
        assert_eq!(scene.store.stats().poisoned, poisoned, "{text:?}");
        assert_eq!(value(&scene.store, "k").await.unwrap(), "v");
    }
}

#[tokio::test]
async fn a_cut_in_a_batch_keeps_the_replies_that_came() {
    let scene = Scene::new(Version::New, "").await;
    scene.proxy.next(Fault::CutReply { after_bytes: "STORED\r\nSTO".len() as u64 });
    let ops = (0..3).map(|i| Op::put(key(format!("k{i}")), PutMode::Add, "v", Ttl::Never));
    let replies = all(&scene.store, ops).await;
    assert!(matches!(replies[0], Ok(Reply::Stored)));
    assert!(replies[1].as_ref().is_err_and(larder_core::Error::is_unknown));
    assert!(replies[2].as_ref().is_err_and(larder_core::Error::is_unknown));
}

/// Tasks that read and write values of their own while futures are dropped at random; then the same while connections break.
async fn everyone_gets_his_own(store: Arc<MemcachedStore>, drop_some: bool, tasks: u64) {
    let work = (0..tasks).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            let (mine, text) = (format!("k{task}"), format!("value of {task}"));
            let mut found = 0;
            for round in 0..150 {
                let _ = one(&store, Op::put(key(&mine), PutMode::Set, text.clone(), Ttl::Never)).await;
                let read =
                    all(&store, [Op::get(key(&mine), Want::VALUE), Op::get(key(format!("none{task}")), Want::VALUE)]);
                let replies = if drop_some && round % 3 == 0 {
                    let patience = Duration::from_micros(random.u64(0..400));
                    match tokio::time::timeout(patience, read).await {
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
        assert!(work.await.unwrap() > 20, "almost nothing was read");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_never_mix_up_replies() {
    for version in Version::ALL {
        for dialect in ["auto", "classic"] {
            let server = Memcached::start(version, &[]);
            let store = open(&format!("{}?dialect={dialect}&connections=2", server.url())).await;
            everyone_gets_his_own(Arc::new(store), true, 64).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_never_mix_up_replies() {
    for dialect in ["auto", "classic"] {
        let scene = Scene::new(Version::New, &format!("dialect={dialect}&timeout_ms=500")).await;
        let rates = Rates { cut_request: 0.01, cut_reply: 0.01, lost_reply: 0.01, delay: 0.1, ..Rates::default() };
        scene.proxy.random(7, rates);
        let Scene { store, proxy, _server, truth: _ } = scene;
        let store = Arc::new(store);
        everyone_gets_his_own(store.clone(), true, 16).await;
        assert!(store.stats().reconnects > 0 && proxy.counts().faults() > 0, "{dialect}: nothing broke");
    }
}

#[tokio::test]
async fn the_queue_refuses_over_its_limits_and_sends_nothing() {
    let scene = Scene::new(Version::New, "queue_ops_max=10&queue_bytes_max=65536&timeout_ms=300").await;
    let profile = scene.store.profile();
    assert_eq!((profile.batch_ops_max, profile.item_bytes_max), (10, 65_536), "more than can be sent is promised");
    let add = |i: usize| Op::put(key(format!("k{i}")), PutMode::Add, "v", Ttl::Never);
    for reply in all(&scene.store, (0..11).map(add)).await {
        let error = reply.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied));
        assert!(error.to_string().contains("the limit is 10"), "{error}");
    }
    assert_eq!(value(&scene.truth, "k0").await, None);
    // With the server silent, what is over the limit is refused at once, and does not wait for anything.
    scene.proxy.next(Fault::Hang);
    let start = Instant::now();
    let waiting = (0..10).map(|i| Op::get(key(format!("k{i}")), Want::VALUE));
    let (waited, refused) = tokio::join!(all(&scene.store, waiting), async {
        tokio::task::yield_now().await;
        let refused = one(&scene.store, Op::get(key("k"), Want::VALUE)).await;
        (refused.unwrap_err(), start.elapsed())
    });
    assert_eq!((refused.0.kind(), refused.0.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(refused.1 < Duration::from_millis(200), "{refused:?}");
    assert!(refused.0.to_string().contains("queue_ops_max=10"), "{}", refused.0);
    assert!(waited.iter().all(|reply| reply.as_ref().unwrap_err().kind() == ErrorKind::Timeout));
}

/// What is refused while nothing waits would be refused for ever.
#[tokio::test]
async fn what_alone_is_over_the_queues_limits_goes_while_nothing_waits() {
    let server = Memcached::start(Version::New, &["-I", "2m"]);
    let store = open(&format!("{}?queue_ops_max=1000&queue_bytes_max=65536", server.url())).await;
    let limit = store.profile().batch_ops_max;
    assert_eq!(limit, 1_000);
    let add = |i: usize| Op::put(key(format!("k{i}")), PutMode::Add, vec![1; 1_000], Ttl::Never);
    let replies = all(&store, (0..limit).map(add)).await;
    assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))), "{:?}", replies[0]);
    set(&store, "large", vec![7; 2_000_000]).await;
    assert_eq!(value(&store, "large").await.unwrap().len(), 2_000_000);
}

#[tokio::test]
async fn bytes_that_wait_are_bounded() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&format!("{}?queue_bytes_max=65536&timeout_ms=20000", server.url())).await;
    server.stop();
    let large = |i: usize| Op::put(key(format!("l{i}")), PutMode::Set, vec![1; 900_000], Ttl::Never);
    // More than the system's buffers take: it goes while nothing waits, and stays in part with us.
    let (large, refused) = tokio::join!(all(&store, (0..30).map(large)), async {
        stuck(&store).await;
        let refused = one(&store, Op::put(key("k"), PutMode::Set, "v", Ttl::Never)).await;
        server.cont();
        refused
    });
    let error = refused.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("queue_bytes_max=65536"), "{error}");
    assert!(large.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
    assert_eq!(value(&store, "k").await, None);
}

#[tokio::test]
async fn an_op_that_is_overdue_before_it_was_written_is_taken_back() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&format!("{}?timeout_ms=20000", server.url())).await;
    let truth = open(&server.url()).await;
    set(&truth, "k", "").await;
    server.stop();
    // More than the system's buffers take, so that what follows stays with us.
    let large = all(&store, (0..30).map(|i| Op::put(key(format!("l{i}")), PutMode::Set, vec![1; 900_000], Ttl::Never)));
    let before = one(&store, Op::put(key("before"), PutMode::Add, "v", Ttl::Never));
    let overdue = (0..3).map(|_| store.run_one(Ctx::within(Duration::from_millis(400)), append()));
    let after = all(&store, [append(), Op::get(key("k"), Want::VALUE)]);
    // The task takes over whatever is there at one time; what comes later waits behind it.
    let (large, (before, first, after)) = tokio::join!(large, async {
        stuck(&store).await;
        tokio::join!(before, all_in_turn(overdue.collect(), &server), after)
    });
    for error in first {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied), "{error}");
    }
    assert!(large.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
    assert_eq!(before.unwrap(), Reply::Stored);
    assert!(matches!(&after[1], Ok(Reply::Item(item)) if item.value == "x"), "taken back, and yet sent: {after:?}");
    assert_eq!((store.stats().connections, store.stats().timeouts), (1, 3));
}

/// Waits until some bytes were sent, and then none for a while: the system's buffers are full.
async fn stuck(store: &MemcachedStore) {
    const QUIET_POLLS: u32 = 15;
    let (mut sent, mut quiet) = (0, 0);
    while quiet < QUIET_POLLS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = store.stats().sent_bytes;
        quiet = if now == sent && now > 900_000 { quiet + 1 } else { 0 };
        sent = now;
    }
}

/// The errors of ops that cannot succeed while the server stands; then lets it go on.
async fn all_in_turn(runs: Vec<impl Future<Output = Result<Reply>>>, server: &Memcached) -> Vec<larder_core::Error> {
    let mut runs: Vec<_> = runs.into_iter().map(Box::pin).collect();
    let mut errors = Vec::new();
    std::future::poll_fn(|cx| {
        runs.retain_mut(|run| match run.as_mut().poll(cx) {
            std::task::Poll::Ready(result) => {
                errors.push(result.unwrap_err());
                false
            }
            std::task::Poll::Pending => true,
        });
        if runs.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    server.cont();
    errors
}

#[tokio::test]
async fn a_server_that_is_down_is_refused_at_once_and_comes_back() {
    let mut server = Memcached::start(Version::New, &[]);
    let store = open(&server.url()).await;
    set(&store, "k", "v").await;
    server.kill9();
    let mut seen = HashSet::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    let error = loop {
        let start = Instant::now();
        let error = one(&store, append()).await.unwrap_err();
        seen.insert(error.known_effect());
        if error.detail().starts_with("down for") {
            assert!(start.elapsed() < Duration::from_millis(100));
            break error;
        }
        assert!(Instant::now() < deadline, "{error}");
    };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(error.to_string().contains(&server.addr().to_string()), "{error}");
    let dials = store.stats().dials_failed;
    for _ in 0..1_000 {
        assert!(one(&store, append()).await.is_err());
    }
    assert!(store.stats().dials_failed < dials + 20, "callers dial");
    server.restart();
    wait_until_up(&store).await;
    assert_eq!(value(&store, "k").await, None);
    assert_eq!(store.stats().reconnects, 1);
}

#[tokio::test]
async fn a_runtime_that_ends_leaves_nobody_waiting() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let store = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(open(&url))
    });
    let store = store.join().unwrap();
    let error = one(&store, append()).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::NotApplied);
}

/// The server is silent for longer than one that owes an answer may be: it does not have the value whole.
#[tokio::test]
async fn a_large_value_over_a_slow_link_is_stored() {
    let server = Memcached::start(Version::New, &["-I", "16m", "-m", "256"]);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let (link, target) = (listener.local_addr().unwrap(), server.addr());
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = TcpStream::connect(target).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            tokio::spawn(async move {
                let mut some = vec![0; 128 * 1024];
                loop {
                    let read = from_client.read(&mut some).await.unwrap();
                    if read == 0 || to_server.write_all(&some[..read]).await.is_err() {
                        return;
                    }
                    // 2.5 MB a second at the most.
                    tokio::time::sleep(Duration::from_micros(read as u64 * 2 / 5)).await;
                }
            });
        }
    });
    let store = open(&format!("memcached://{link}?timeout_ms=1500&connections=1")).await;
    let put = Op::put(key("large"), PutMode::Set, vec![7; 12_000_000], Ttl::Never);
    let stored = store.run_one(Ctx::within(Duration::from_secs(60)), put).await;
    assert_eq!(stored.unwrap(), Reply::Stored);
    assert_eq!(store.stats().connections, 1);
}
