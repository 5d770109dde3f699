//! A store in a folder that is damaged, or full, behind the server: told, never a miss, and nothing acknowledged goes.

mod common;
#[path = "../../store-durable/tests/common/syncs.rs"]
mod syncs;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_core::list::{List, Listed};
use larder_core::{Cas, Ctx, Durability, ErrorKind, Eviction, Key, Op, PutMode, Reply, Store, StoreExt, Ttl, Want};
use larder_server::{DurableOptions, Listen, MemoryEngine, MemoryStore, Server};
use larder_store_durable::Sync;
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::sessions::{ask, connect, exchange};
use syncs::refuse_syncs;

const ITEMS: usize = 200;
const VALUE_BYTES: usize = 400;
const DAMAGED: usize = 100;

/// What the engine cannot make shorter.
fn value(number: usize) -> String {
    let mut random = fastrand::Rng::with_seed(number as u64);
    std::iter::repeat_with(|| random.alphanumeric()).take(VALUE_BYTES).collect()
}

fn name(number: usize) -> String {
    format!("k{number:03}")
}

fn tables(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tables(&path));
        } else if path.components().any(|part| part.as_os_str() == "tables") {
            found.push(path);
        }
    }
    found
}

/// A store with items in a table, and a byte of one of them flipped.
async fn damaged(folder: &Path) {
    let store = DurableOptions::new(folder).open().unwrap();
    for number in 0..ITEMS {
        let op = Op::put(Key::new(name(number)).unwrap(), PutMode::Set, value(number), Ttl::Never);
        store.run_one(Ctx::default(), op).await.unwrap();
    }
    store.settle().unwrap();
    drop(store);
    let key = name(DAMAGED);
    let mut flipped = 0;
    for path in tables(folder) {
        let mut bytes = std::fs::read(&path).unwrap();
        let text = &value(DAMAGED).into_bytes()[100..116];
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            bytes[at] ^= 0x20;
            std::fs::write(&path, bytes).unwrap();
            flipped += 1;
        }
    }
    assert!(flipped > 0, "{key} stands in no table");
}

async fn client(addr: SocketAddr, dialect: &str) -> MemcachedStore {
    MemcachedStore::connect(Config::from_url(&format!("memcached://{addr}?dialect={dialect}")).unwrap()).await.unwrap()
}

fn answer(server: &Server, request: &str) -> String {
    let mut stream = connect(server.addrs()[0]);
    let request = format!("{request}\r\nmn\r\n");
    String::from_utf8(ask(&mut stream, request.as_bytes(), b"MN\r\n")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_item_is_an_error_of_each_command_and_never_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    damaged(folder.path()).await;
    let server = common::start_in_folder(folder.path());
    let (key, whole) = (name(DAMAGED), name(0));
    for request in [
        "get K",
        "gets K",
        "gat 0 K",
        "gats 0 K",
        "mg K v",
        "mg K q",
        "mg K T0",
        "me K",
        "delete K",
        "md K q",
        "touch K 9",
        "incr K 1",
        "ma K",
        "stats sizes",
    ] {
        let reply = answer(&server, &request.replace('K', &key));
        assert!(reply.starts_with("SERVER_ERROR the store is corrupt: "), "{request}: {reply}");
        assert_eq!(reply.lines().count(), 2, "{request}: {reply}");
    }
    let reply = answer(&server, &format!("get {whole} {key} {whole}"));
    assert!(reply.starts_with(&format!("VALUE {whole} 0 {VALUE_BYTES}\r\n{}\r\nSERVER_ERROR ", value(0))), "{reply}");
    assert!(!reply.contains("END\r\n") && !reply.contains("NOT_FOUND"), "{reply}");
    for request in ["lru_crawler metadump all", "lru_crawler mgdump all", "stats cachedump 1 0"] {
        let reply = answer(&server, request);
        assert!(reply.ends_with("\r\nMN\r\n") && reply.contains("SERVER_ERROR the store is corrupt: "), "{request}");
        assert!(!reply.contains("END\r\n") && !reply.contains("EN\r\n"), "{request}: {reply}");
    }
    for dialect in ["classic", "meta"] {
        let store = client(server.addrs()[0], dialect).await;
        let (bad, good) = (Key::new(key.clone()).unwrap(), Key::new(whole.clone()).unwrap());
        for op in [Op::get(bad.clone(), Want::VALUE), Op::delete(bad.clone())] {
            let error = store.run_one(Ctx::default(), op).await.unwrap_err();
            assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Corrupt, false), "{dialect}: {error}");
        }
        let read = store.get(good).await.unwrap().unwrap();
        assert_eq!(read.value, value(0), "{dialect}: it is in step");
        assert_eq!(store.stats().reconnects, 0);
        let error = store.list(Ctx::default(), b"", &mut |_: Listed<'_>| ()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// A plain set does not look what was there, and so it mends what is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_takes_the_place_of_a_damaged_item() {
    for (request, said) in [("set K 0 0 4\r\nnext", "STORED"), ("ms K 4\r\nnext", "HD")] {
        let folder = tempfile::tempdir().unwrap();
        damaged(folder.path()).await;
        let server = common::start_in_folder(folder.path());
        let key = name(DAMAGED);
        assert!(answer(&server, &format!("get {key}")).starts_with("SERVER_ERROR the store is corrupt: "));
        assert_eq!(answer(&server, &request.replace('K', &key)), format!("{said}\r\nMN\r\n"));
        assert_eq!(answer(&server, &format!("get {key}")), format!("VALUE {key} 0 4\r\nnext\r\nEND\r\nMN\r\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_no_value_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let server = common::start_in_folder(folder.path());
    assert_eq!(answer(&server, "set k 0 0 3\r\nold"), "STORED\r\nMN\r\n");
    assert_eq!(answer(&server, "set n 0 0 1\r\n5"), "STORED\r\nMN\r\n");
    let ask =
        |server: &Server, request: &str| String::from_utf8(exchange(server.addrs()[0], [request.as_bytes()])).unwrap();
    assert_eq!(ask(&server, MARKED), "HD\r\n".repeat(3));
    drop(server);
    let store = DurableOptions::new(folder.path()).reserve_bytes(u64::MAX).open().unwrap();
    let config = larder_server::Config { listen: common::anywhere(), threads: 2, ..Default::default() };
    let server = Server::start(larder_server::DurableEngine::new(store), config).unwrap();
    for request in [
        "set k 0 0 3\r\nnew",
        "ms k 3\r\nnew",
        "ms k 3 MA\r\nnew",
        "gat 9 k",
        "touch k 9",
        "mg k T9",
        "incr n 1",
        "decr n 1",
        "ma n",
    ] {
        let reply = answer(&server, request);
        assert!(reply.starts_with("SERVER_ERROR the store is full: "), "{request}: {reply}");
        assert_eq!(reply.lines().count(), 2, "{request}: {reply}");
        assert_eq!(answer(&server, "get k"), "VALUE k 0 3\r\nold\r\nEND\r\nMN\r\n", "after {request}");
        assert_eq!(answer(&server, "get n"), "VALUE n 0 1\r\n5\r\nEND\r\nMN\r\n", "after {request}");
    }
    reads_that_would_mark_go_on(&|request| ask(&server, request));
    for dialect in ["classic", "meta"] {
        let store = client(server.addrs()[0], dialect).await;
        let set = Op::put(Key::new("k").unwrap(), PutMode::Set, "new", Ttl::Never);
        let error = store.run_one(Ctx::default(), set).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Full, false), "{dialect}: {error}");
    }
    assert_eq!(answer(&server, "delete n"), "DELETED\r\nMN\r\n", "what gives room back is let through");
}

/// Items that a read would mark: one is stale, one ends within a minute.
const MARKED: &str = "ms stale 1\r\n1\r\nms ends 1 T30\r\n1\r\nmd stale I T600\r\n";

/// It is the mark that is refused, and so nobody is told to have won: it is read by all as it was before.
fn reads_that_would_mark_go_on(ask: &dyn Fn(&str) -> String) {
    for _ in 0..2 {
        assert_eq!(ask("mg stale v k\r\n"), "VA 1 kstale X\r\n1\r\n");
        assert_eq!(ask("mg stale s q\r\nmn\r\n"), "HD s1 X\r\nMN\r\n");
        assert_eq!(ask("mg stale v N30 R30\r\n"), "VA 1 X\r\n1\r\n");
        assert_eq!(ask("mg ends v R60\r\nmn\r\n"), "VA 1\r\n1\r\nMN\r\n");
        assert_eq!(ask("mg none v R60\r\n"), "EN\r\n");
        let made = ask("mg none v N30\r\nmn\r\n");
        assert!(made.starts_with("SERVER_ERROR the store is ") && made.lines().count() == 2, "{made}");
    }
    assert_eq!(ask("get stale ends\r\n"), "VALUE stale 0 1\r\n1\r\nVALUE ends 0 1\r\n1\r\nEND\r\n");
}

/// The server of a process of its own, from which the system takes its syncs.
#[tokio::test(flavor = "multi_thread")]
async fn child_whose_servers_disk_refuses_to_sync() {
    let Some(folder) = std::env::var_os("LARDER_CHILD") else { return };
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let config = larder_server::Config { listen: common::anywhere(), threads: 2, metrics, ..Default::default() };
    let store = DurableOptions::new(folder).open().unwrap();
    let server = Server::start(larder_server::DurableEngine::new(store), config).unwrap();
    let http = |path: &str| {
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        String::from_utf8(exchange(server.metrics_addr().unwrap(), [request.as_bytes()])).unwrap()
    };
    let ask = |request: &str| String::from_utf8(exchange(server.addrs()[0], [request.as_bytes()])).unwrap();
    assert_eq!(ask("set k 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert!(http("/healthz").ends_with("\r\n\r\nok\n"));
    assert_eq!(ask(MARKED), "HD\r\n".repeat(3));
    refuse_syncs();
    assert_eq!(ask("set k 0 0 1\r\n2\r\n"), "", "it may have been written: nobody is told anything");
    let gets = ask("gets k\r\n");
    let token = gets.lines().next().unwrap().rsplit(' ').next().unwrap();
    assert_eq!(gets, format!("VALUE k 0 1 {token}\r\n1\r\nEND\r\n"), "reads go on");
    assert_eq!(ask("mg k v\r\nmg none v\r\n"), "VA 1\r\n1\r\nEN\r\n");
    reads_that_would_mark_go_on(&ask);
    let cas = format!("cas k 0 0 1 {token}\r\n3");
    let refused = [
        "set k 0 0 1\r\n3",
        "add fresh 0 0 1\r\n3",
        "append k 0 0 1\r\n3",
        &cas,
        "delete k",
        "touch k 9",
        "gat 9 k",
        "incr k 1",
        "decr k 1",
        "ms k 1\r\n3",
        "md k",
        "md k q",
        "ma k",
        "mg k v T9",
        "flush_all",
        "flush_all 10",
    ];
    for request in refused {
        let reply = ask(&format!("{request}\r\nmn\r\n"));
        assert!(reply.starts_with("SERVER_ERROR the store is unavailable: "), "{request}: {reply}");
        assert!(reply.ends_with("\r\nMN\r\n") && reply.lines().count() == 2, "{request}: {reply}");
    }
    let metrics = http("/metrics");
    let told = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).to_owned()
    };
    assert_eq!(
        told("larder_request_errors_total"),
        (refused.len() + 2).to_string(),
        "and two items that a read would have made"
    );
    for name in ["cas_hits", "cas_misses", "delete_hits", "delete_misses", "touch_misses", "incr_misses", "decr_misses"]
    {
        // One was marked as stale before.
        let before = if name == "delete_hits" { "1" } else { "0" };
        assert_eq!(told(&format!("larder_{name}_total")), before, "an error of the store is neither");
    }
    let health = http("/healthz");
    assert!(health.starts_with("HTTP/1.1 503 ") && health.contains("open the store anew"), "{health}");
    for dialect in ["classic", "meta"] {
        let store = client(server.addrs()[0], dialect).await;
        let error = store.run_one(Ctx::default(), Op::delete(Key::new("k").unwrap())).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false), "{dialect}: {error}");
    }
    println!("refused {}", refused.len());
}

/// Runs a test that is a child, in a process of its own, on this folder.
fn run_child(test: &str, folder: &Path) -> std::process::Output {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env("LARDER_CHILD", folder).output().unwrap()
}

#[test]
fn after_a_sync_that_failed_every_write_is_an_error_and_reads_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_child("child_whose_servers_disk_refuses_to_sync", folder.path());
    assert!(String::from_utf8_lossy(&output.stdout).contains("refused 16"), "{output:?}");
    let server = common::start_in_folder(folder.path());
    let value = answer(&server, "mg k v");
    assert!(["VA 1\r\n1\r\nMN\r\n", "VA 1\r\n2\r\nMN\r\n"].contains(&value.as_str()), "{value}");
}

/// One that ends when nobody was connected for an hour, and cannot write any more.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_ends_when_it_is_idle_and_fails() {
    let Some(folder) = std::env::var_os("LARDER_CHILD") else { return };
    let limits = larder_server::Limits { exit_when_idle_ms: 3_600_000, ..Default::default() };
    let config = larder_server::Config { listen: common::anywhere(), threads: 2, limits, ..Default::default() };
    let store = DurableOptions::new(folder).open().unwrap();
    let server = Server::start(larder_server::DurableEngine::new(store), config).unwrap();
    let addr = server.addrs()[0];
    assert_eq!(answer(&server, "set k 0 0 1\r\n1"), "STORED\r\nMN\r\n");
    std::thread::sleep(Duration::from_millis(300));
    let mut reader = connect(addr);
    refuse_syncs();
    assert_eq!(exchange(addr, [&b"set k 0 0 1\r\n2\r\n"[..]]), b"", "it may have been written");
    // Not while somebody is there.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ask(&mut reader, b"mg k v\r\nmn\r\n", b"MN\r\n"), b"VA 1\r\n1\r\nMN\r\n");
    drop(reader);
    server.wait();
    println!("ended");
}

#[test]
fn a_server_that_nobody_uses_ends_at_once_where_it_can_write_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_child("child_that_ends_when_it_is_idle_and_fails", folder.path());
    assert!(String::from_utf8_lossy(&output.stdout).contains("ended"), "{output:?}");
    let server = common::start_in_folder(folder.path());
    assert_eq!(answer(&server, "set k 0 0 1\r\n3"), "STORED\r\nMN\r\n", "the next one writes");
}

/// Of which a crash, or damage, has left a part at the journal's end.
#[test]
fn what_was_cut_off_is_told_by_the_server() {
    let folder = tempfile::tempdir().unwrap();
    drop(common::start_in_folder(folder.path()));
    let journal = folder.path().join("engine").join("0.jnl");
    let bytes = std::fs::read(&journal).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    std::fs::write(&journal, [&bytes[..end], b"torn"].concat()).unwrap();
    let store = DurableOptions::new(folder.path()).open().unwrap();
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let config = larder_server::Config { listen: common::anywhere(), threads: 2, metrics, ..Default::default() };
    let server = Server::start(larder_server::DurableEngine::new(store), config).unwrap();
    assert!(answer(&server, "stats").contains("STAT torn_bytes 4\r\n"));
    let metrics = exchange(server.metrics_addr().unwrap(), [&b"GET /metrics HTTP/1.0\r\n\r\n"[..]]);
    assert!(String::from_utf8(metrics).unwrap().contains("\nlarder_torn_bytes 4\n"));
}

/// The same, for a removal that is due when the disk has failed.
#[test]
fn child_whose_delayed_flush_fails() {
    let Some(folder) = std::env::var_os("LARDER_CHILD") else { return };
    let server = common::start_in_folder(Path::new(&folder));
    let flush_errors = || {
        let told = answer(&server, "stats");
        told.lines().find_map(|line| line.strip_prefix("STAT flush_errors ")).map(|number| number.parse().unwrap())
    };
    assert_eq!(answer(&server, "set k 0 0 1\r\n1"), "STORED\r\nMN\r\n");
    // One that is written is no error.
    assert_eq!(answer(&server, "flush_all 2"), "OK\r\nMN\r\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    while answer(&server, "mg k v") != "EN\r\nMN\r\n" {
        assert!(Instant::now() < deadline, "it is not flushed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answer(&server, "set k 0 0 1\r\n2"), "STORED\r\nMN\r\n");
    assert_eq!(flush_errors(), Some(0));
    assert_eq!(answer(&server, "flush_all 2"), "OK\r\nMN\r\n");
    refuse_syncs();
    let deadline = Instant::now() + Duration::from_secs(20);
    while flush_errors() != Some(1) {
        assert!(Instant::now() < deadline, "it is told nowhere");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answer(&server, "mg k v"), "VA 1\r\n2\r\nMN\r\n", "what was to go is there");
    // Told once.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(flush_errors(), Some(1));
    println!("told once");
}

#[test]
fn a_delayed_flush_that_fails_when_it_is_due_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_child("child_whose_delayed_flush_fails", folder.path());
    assert!(String::from_utf8_lossy(&output.stdout).contains("told once"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_served_folder_promises_reaches_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    let every = Sync::Every(Duration::from_millis(50));
    let served = [("a", Sync::Always), ("b", every)].map(|(name, sync)| {
        let store = DurableOptions::new(folder.path().join(name)).sync(sync).open().unwrap();
        let config = larder_server::Config { listen: common::anywhere(), threads: 1, ..Default::default() };
        Server::start(larder_server::DurableEngine::new(store), config).unwrap()
    });
    let memory = common::start(larder_server::Limits::default());
    let down = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let [disk, recent, memory] = [served[0].addrs()[0], served[1].addrs()[0], memory.addrs()[0]];
    for (servers, durability) in [
        (vec![disk], Durability::Disk),
        (vec![recent], Durability::Recent),
        (vec![disk, recent], Durability::Recent),
        (vec![recent, memory], Durability::Server),
        (vec![memory], Durability::Server),
        // Nothing is known of one that is down.
        (vec![disk, down], Durability::Unknown),
        (vec![down, memory], Durability::Server),
    ] {
        let addrs: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
        let config = Config::from_url(&format!("memcached://{}?fleet=ignore", addrs.join(","))).unwrap();
        let store = MemcachedStore::connect(config).await.unwrap();
        assert_eq!(store.profile().durability, durability, "{addrs:?}");
    }
}

/// On this address.
fn serve(engine: impl larder_server::Engine, addr: SocketAddr) -> Server {
    let config = larder_server::Config { listen: vec![Listen::Tcp(addr)], threads: 1, ..Default::default() };
    Server::start(engine, config).unwrap()
}

fn memory(evict: bool) -> MemoryEngine {
    MemoryEngine::new(MemoryStore::builder().bytes_max(8 << 20).evict(evict).build().unwrap())
}

fn in_folder(folder: &Path) -> larder_server::DurableEngine {
    larder_server::DurableEngine::new(DurableOptions::new(folder).open().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_server_evicts_reaches_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let servers =
        [serve(in_folder(folder.path()), anywhere), serve(memory(false), anywhere), serve(memory(true), anywhere)];
    let down = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let [disk, keeps, evicts] = servers.each_ref().map(|server| server.addrs()[0]);
    for (servers, eviction) in [
        (vec![disk], Eviction::Never),
        (vec![keeps], Eviction::Never),
        (vec![evicts], Eviction::WhenFull),
        (vec![disk, keeps], Eviction::Never),
        (vec![keeps, evicts], Eviction::WhenFull),
        (vec![disk, down], Eviction::Unknown),
        (vec![evicts, down], Eviction::WhenFull),
    ] {
        let addrs: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
        for dialect in ["classic", "meta"] {
            let url = format!("memcached://{}?fleet=ignore&dialect={dialect}", addrs.join(","));
            let store = MemcachedStore::connect(Config::from_url(&url).unwrap()).await.unwrap();
            assert_eq!(store.profile().eviction, eviction, "{addrs:?}");
        }
    }
}

/// The value of the key, and its token, once the server is there again.
async fn read(store: &MemcachedStore, key: &Key) -> Option<(Vec<u8>, Cas)> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match store.get(key.clone()).await {
            Ok(item) => return item.map(|item| (item.value.to_vec(), item.cas.expect("a token"))),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What tells one life of a server's data from another.
fn incarnation(server: &Server) -> String {
    let settings = answer(server, "stats settings");
    settings.lines().find_map(|line| line.strip_prefix("STAT incarnation ")).expect("it is told").to_owned()
}

/// A token is of a session, and a session ends with the server: also where the folder is the same, its incarnation with it, and its items with their tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_begins_another_session_and_in_memory_another_incarnation() {
    let folder = tempfile::tempdir().unwrap();
    let (key, evicting) = (Key::new("k").unwrap(), |evict| if evict { Eviction::WhenFull } else { Eviction::Never });
    for dialect in ["classic", "meta"] {
        for is_folder in [true, false] {
            let begin = |addr: SocketAddr, evict: bool| {
                if is_folder { serve(in_folder(folder.path()), addr) } else { serve(memory(evict), addr) }
            };
            let server = begin("127.0.0.1:0".parse().unwrap(), false);
            let (addr, before) = (server.addrs()[0], incarnation(&server));
            let store = client(addr, dialect).await;
            assert_eq!(store.profile().eviction, Eviction::Never);
            let put = |mode, value: &'static str| Op::put(key.clone(), mode, value, Ttl::Never);
            store.run_one(Ctx::default(), put(PutMode::Set, "one")).await.unwrap();
            let (_, cas) = read(&store, &key).await.unwrap();
            assert_eq!(read(&store, &key).await.unwrap().1, cas, "nothing has changed");
            drop(server);
            let server = begin(addr, true);
            assert_eq!(incarnation(&server) == before, is_folder, "{dialect}");
            let there = read(&store, &key).await;
            assert_eq!(there.as_ref().map(|(value, _)| &value[..]), is_folder.then_some(&b"one"[..]), "{dialect}");
            assert_eq!(store.profile().eviction, evicting(!is_folder), "{dialect}: it was asked anew");
            store.run_one(Ctx::default(), put(PutMode::Set, "two")).await.unwrap();
            let (_, now) = read(&store, &key).await.unwrap();
            assert_ne!(now.session, cas.session, "{dialect}");
            let reply = store.run_one(Ctx::default(), put(PutMode::Cas(cas), "three")).await.unwrap();
            assert!(matches!(reply, Reply::Exists), "{dialect}: {reply:?}");
            let reply = store.run_one(Ctx::default(), put(PutMode::Cas(now), "three")).await.unwrap();
            assert!(matches!(reply, Reply::Stored), "{dialect}: {reply:?}");
            let delete = Op::delete(key.clone());
            store.run_one(Ctx::default(), delete).await.unwrap();
        }
    }
}
