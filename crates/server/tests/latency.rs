//! A disk that takes its time: how long requests took, as `/metrics` and `stats latency` tell it, until whoever asked could be told; and what is held in memory meanwhile.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use larder_core::Result;
use larder_server::{
    BackupParts, Config, DurableEngine, DurableOptions, DurableStore, Engine, Figures, Limits, Promises, Runtime,
    Server, Walk,
};
use larder_store_memory::{Next, Seen};
use larder_testkit::sessions::{ask, connect, exchange, read_until};
use parking_lot::Mutex;

/// How long the disk takes here.
const DISK: Duration = Duration::from_millis(40);
/// One request in so many is timed.
const TIMED_EVERY: usize = 16;
const TIMED: usize = 4;

/// A store in a folder whose disk takes its time.
struct Slow {
    engine: DurableEngine,
    /// How long that is.
    disk: Duration,
    /// When what is waited for is on disk, by ticket.
    due: Mutex<std::collections::HashMap<u64, Instant>>,
    /// Writes since something was settled, and the most there were.
    writes: Arc<[AtomicUsize; 2]>,
    /// Held by a sync that is under way: what waits for one waits for this.
    sync: Arc<Mutex<()>>,
    /// How often it was asked what its files take.
    measured: AtomicUsize,
}

impl Slow {
    fn new(store: DurableStore) -> Slow {
        let (due, writes, sync, measured) = Default::default();
        Slow { engine: DurableEngine::new(store), disk: DISK, due, writes, sync, measured }
    }
}

impl Engine for Slow {
    const WAITS_FOR_DISK: bool = DurableEngine::WAITS_FOR_DISK;

    fn now_ms(&self) -> u64 {
        self.engine.now_ms()
    }

    fn fetch<T>(&self, key: &[u8], see: impl FnOnce(Seen<'_>) -> T) -> Result<Option<T>> {
        self.engine.fetch(key, see)
    }

    fn update<'n>(&self, key: &[u8], decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>) -> Result<()> {
        let [writes, most] = &*self.writes;
        most.fetch_max(writes.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.engine.update(key, decide)
    }

    fn flush(&self) -> Result<()> {
        self.engine.flush()
    }

    fn touched(&self) -> u64 {
        self.engine.touched()
    }

    fn unsettled_bytes(&self) -> usize {
        self.engine.unsettled_bytes()
    }

    fn poll_settled(&self, touched: u64, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let due = *self.due.lock().entry(touched).or_insert_with(|| Instant::now() + self.disk);
        let left = due.saturating_duration_since(Instant::now());
        let polled = if left > Duration::ZERO { Poll::Pending } else { self.engine.poll_settled(touched, cx) };
        if left > Duration::ZERO {
            let waker: Waker = cx.waker().clone();
            std::thread::spawn(move || {
                std::thread::sleep(left);
                waker.wake();
            });
        }
        if polled.is_ready() {
            self.writes[0].store(0, Ordering::Relaxed);
        }
        polled
    }

    fn walk(&self, at: Walk, see: impl FnMut(&[u8], Seen<'_>)) -> Result<Option<Walk>> {
        drop(self.sync.lock());
        self.engine.walk(at, see)
    }

    fn backup(&self) -> Result<Option<BackupParts>> {
        drop(self.sync.lock());
        self.engine.backup()
    }

    fn backup_part(&self, backup: &mut BackupParts) -> Result<Option<Vec<u8>>> {
        self.engine.backup_part(backup)
    }

    fn figures(&self) -> Figures {
        self.engine.figures()
    }

    fn disk_bytes(&self) -> u64 {
        drop(self.sync.lock());
        assert!(self.engine.disk_bytes() > 0, "a journal is there from the start");
        self.measured.fetch_add(1, Ordering::Relaxed) as u64 + 1
    }

    fn set_bytes_max(&self, bytes: usize) -> bool {
        self.engine.set_bytes_max(bytes)
    }

    fn promises(&self) -> Promises {
        self.engine.promises()
    }
}

#[test]
fn what_a_request_took_includes_the_wait_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = DurableOptions::new(folder.path()).open().unwrap();
    let engine = Slow::new(store);
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let config = Config { listen: common::anywhere(), threads: 1, metrics, ..Config::default() };
    let server = Server::start(engine, config).unwrap();
    let mut client = connect(server.addrs()[0]);
    // One batch: all of it waits for the disk once.
    let set = b"set k 0 0 1\r\nx\r\n".repeat(TIMED * TIMED_EVERY - 1);
    ask(&mut client, &[&set[..], b"set k 0 0 1\r\nx\r\nmn\r\n"].concat(), b"MN\r\n");
    // What is on disk waits for nothing. (`mn` was a request, too.)
    let get = b"get k\r\n".repeat(TIMED * TIMED_EVERY - 1);
    let began = Instant::now();
    ask(&mut client, &[&get[..], b"mn\r\n"].concat(), b"MN\r\n");
    let reads_s = began.elapsed().as_secs_f64();
    let http = exchange(server.metrics_addr().unwrap(), [&b"GET /metrics HTTP/1.0\r\n\r\n"[..]]);
    let text = String::from_utf8(http).unwrap();
    let told = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix("larder_request_seconds_")?.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
    };
    // Each of those that are timed stands for all of its number.
    assert_eq!(told("count{class=\"write\"}"), (TIMED * TIMED_EVERY) as f64);
    assert!(told("sum{class=\"write\"}") >= (TIMED * TIMED_EVERY) as f64 * DISK.as_secs_f64(), "{text}");
    assert!(told("count{class=\"read\"}") > 0.0, "{text}");
    assert!(told("sum{class=\"read\"}") <= reads_s * (TIMED * TIMED_EVERY) as f64, "{text}");
    let stats = String::from_utf8(ask(&mut client, b"stats latency\r\n", b"END\r\n")).unwrap();
    let p50 = stats.lines().find_map(|line| line.strip_prefix("STAT write:p50_us ")).unwrap().trim();
    assert!(p50.parse::<f64>().unwrap() >= 1e6 * DISK.as_secs_f64(), "{stats}");
}

/// Each touch writes the item anew, and stays in memory until it is on disk.
#[test]
fn small_requests_that_write_a_large_item_wait_for_the_disk_before_they_fill_the_memory() {
    const ITEM_BYTES: usize = 100_000;
    const TOUCHES: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let engine = Slow::new(DurableOptions::new(folder.path()).open().unwrap());
    let writes = engine.writes.clone();
    let config = Config { listen: common::anywhere(), threads: 1, ..Config::default() };
    let server = Server::start(engine, config).unwrap();
    let mut client = connect(server.addrs()[0]);
    let value = vec![b'x'; ITEM_BYTES];
    ask(&mut client, &[format!("set k 0 0 {ITEM_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n");
    // Nothing is answered before all of them are done.
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let touches = b"touch k 100 noreply\r\n".repeat(TOUCHES);
    client.write_all(&[&touches[..], b"mn\r\n"].concat()).unwrap();
    let mut other = connect(server.addrs()[0]);
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = String::from_utf8(ask(&mut other, b"stats\r\n", b"END\r\n")).unwrap();
        let held = stats.lines().find_map(|line| line.strip_prefix("STAT read_buf_bytes ")).unwrap();
        let held: usize = held.trim().parse().unwrap();
        assert!(held < 10 * ITEM_BYTES, "{held}");
        if held > 2 * ITEM_BYTES {
            break;
        }
        assert!(Instant::now() < until, "what waits for the disk is counted");
    }
    read_until(&mut client, b"MN\r\n");
    let most = writes[1].load(Ordering::Relaxed);
    assert!((2..=4).contains(&most), "{most} of {TOUCHES} writes of {ITEM_BYTES} bytes waited at once");
    let got = String::from_utf8(ask(&mut client, b"mg k t s\r\n", b"\r\n")).unwrap();
    assert!(
        got.starts_with("HD t") && got.trim_end().ends_with(&format!("s{ITEM_BYTES}")) && !got.contains("t-1"),
        "{got}"
    );
}

/// What they wrote was admitted, and drains by itself: they wait for each other, and each is answered.
#[test]
fn who_only_waits_for_the_disk_is_not_closed_however_many_they_are() {
    const CLIENTS: usize = 40;
    const ITEM_BYTES: usize = 100_000;
    const MOST: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let engine = Slow::new(DurableOptions::new(folder.path()).open().unwrap());
    let limits = Limits { held_bytes_max: MOST, ..Limits::default() };
    let server =
        Server::start(engine, Config { listen: common::anywhere(), threads: 1, limits, ..Config::default() }).unwrap();
    let mut watcher = connect(server.addrs()[0]);
    let mut stat = |name: &str| -> usize {
        let stats = String::from_utf8(ask(&mut watcher, b"stats\r\n", b"END\r\n")).unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} "))).unwrap();
        line.trim().parse().unwrap()
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(server.addrs()[0])).collect();
    let value = vec![b'x'; ITEM_BYTES];
    for round in 0..3 {
        for (nth, client) in clients.iter_mut().enumerate() {
            let set = [format!("set k{nth} 0 0 {ITEM_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat();
            client.write_all(&set).unwrap();
        }
        assert!(stat("read_buf_bytes") < MOST + 10 * ITEM_BYTES, "others are not read meanwhile");
        for (nth, client) in clients.iter_mut().enumerate() {
            assert_eq!(read_until(client, b"\r\n"), b"STORED\r\n", "{nth} of round {round}");
        }
    }
    assert_eq!(stat("held_kicks"), 0);
    let until = Instant::now() + Duration::from_secs(10);
    while stat("read_buf_bytes") > MOST / 10 {
        assert!(Instant::now() < until, "it is counted no longer");
    }
}

/// Who waits for the disk, for room or for a listing, and for how long, is not up to the client.
#[test]
fn who_waits_for_the_server_for_longer_than_may_be_idle_is_answered_and_who_is_idle_is_closed() {
    const IDLE: Duration = Duration::from_millis(400);
    let folder = tempfile::tempdir().unwrap();
    let store = DurableOptions::new(folder.path()).open().unwrap();
    let engine = Slow { disk: 3 * IDLE, ..Slow::new(store) };
    let sync = engine.sync.clone();
    // Less than one item: while it is not on disk nothing is read.
    let limits = Limits { idle_timeout_ms: IDLE.as_millis() as u64, held_bytes_max: 1 << 10, ..Limits::default() };
    let config = Config { listen: common::anywhere(), threads: 1, limits, ..Config::default() };
    let server = Server::start(engine, config).unwrap();
    let addr = server.addrs()[0];
    let set = format!("set k 0 0 3000\r\n{}\r\n", "v".repeat(3_000));
    let (mut writer, mut paused, began) = (connect(addr), connect(addr), Instant::now());
    writer.write_all(set.as_bytes()).unwrap();
    std::thread::sleep(IDLE / 8);
    assert_eq!(ask(&mut paused, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
    assert!(began.elapsed() > 2 * IDLE, "it waited for room");
    assert_eq!(read_until(&mut writer, b"\r\n"), b"STORED\r\n");
    // Where nothing is to be answered, either, its time begins only when that is on disk.
    let mut quiet = connect(addr);
    quiet.write_all(b"set k 0 0 1 noreply\r\nx\r\n").unwrap();
    let stalled = sync.lock();
    let mut listing = connect(addr);
    listing.write_all(b"lru_crawler metadump all\r\n").unwrap();
    std::thread::sleep(3 * IDLE + IDLE / 2);
    assert_eq!(ask(&mut quiet, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
    drop(stalled);
    assert!(read_until(&mut listing, b"END\r\n").starts_with(b"OK\r\nkey=k "), "it was not cut off");
    for mut idle in [writer, paused, quiet, listing] {
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "nobody waits for the server now");
    }
    assert_eq!(stat(addr, "idle_kicks"), 4);
}

/// The number that `stats` tells.
fn stat(addr: SocketAddr, name: &str) -> u64 {
    let stats = String::from_utf8(ask(&mut connect(addr), b"stats\r\n", b"END\r\n")).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {stats}")).trim().parse().unwrap()
}

/// What the files take is asked for by a thread of its own, once a second.
#[test]
fn who_comes_or_asks_for_figures_waits_for_no_sync() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Slow::new(DurableOptions::new(folder.path()).open().unwrap());
    let sync = engine.sync.clone();
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let config = Config { listen: common::anywhere(), threads: 1, metrics, ..Config::default() };
    let server = Server::start(engine, config).unwrap();
    let (addr, http) = (server.addrs()[0], server.metrics_addr().unwrap());
    assert!(stat(addr, "bytes") > 0, "it was asked before anybody came");
    let stalled = sync.lock();
    // By now it is being asked again.
    std::thread::sleep(Duration::from_millis(1_200));
    let (before, began) = (stat(addr, "bytes"), Instant::now());
    for _ in 0..3 {
        let [health, text] = ["healthz", "metrics"].map(|path| {
            let told = exchange(http, [format!("GET /{path} HTTP/1.0\r\n\r\n").as_bytes()]);
            String::from_utf8(told).unwrap()
        });
        assert!(health.ends_with("ok\n"), "{health}");
        assert!(text.contains(&format!("\nlarder_item_bytes {before}\n")), "{text}");
        let mut client = connect(addr);
        for request in ["stats", "stats slabs", "stats items"] {
            ask(&mut client, format!("{request}\r\n").as_bytes(), b"END\r\n");
        }
        ask(&mut client, b"stats reset\r\n", b"RESET\r\n");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(stalled);
    let until = Instant::now() + Duration::from_secs(10);
    while stat(addr, "bytes") <= before {
        assert!(Instant::now() < until, "it is asked again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// More of them than there are threads to walk, and two at a time of the backups.
#[test]
fn listings_that_wait_for_a_sync_keep_nobody_else_waiting() {
    const LISTINGS: [(&str, &str); 6] = [
        ("lru_crawler metadump all", "END\r\n"),
        ("lru_crawler mgdump all", "EN\r\n"),
        ("lru_crawler backup all", "END\r\n"),
        ("stats sizes", "END\r\n"),
        ("stats cachedump 1 0", "END\r\n"),
        ("lru_crawler metadump all", "END\r\n"),
    ];
    for (runtime, threads) in [(Runtime::PerCore, 1), (Runtime::Shared, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let engine = Slow::new(DurableOptions::new(folder.path()).open().unwrap());
        let sync = engine.sync.clone();
        let config = Config { listen: common::anywhere(), threads, runtime, ..Config::default() };
        let server = Server::start(engine, config).unwrap();
        let addr = server.addrs()[0];
        let mut other = connect(addr);
        let items: String = (0..2_500).map(|item| format!("set {item:04} 0 0 1 noreply\r\nx\r\n")).collect();
        ask(&mut other, (items + "mn\r\n").as_bytes(), b"MN\r\n");
        let stalled = sync.lock();
        let begin = |(request, _): &(&str, &str)| {
            let mut stream: TcpStream = connect(addr);
            stream.write_all(format!("{request}\r\nmn\r\n").as_bytes()).unwrap();
            stream
        };
        let mut listing: Vec<_> = LISTINGS.iter().map(begin).collect();
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..10 {
            ask(&mut other, b"get 0000\r\n", b"END\r\n");
            ask(&mut connect(addr), b"set o 0 0 1\r\nx\r\n", b"STORED\r\n");
        }
        drop(stalled);
        for ((request, end), stream) in LISTINGS.iter().zip(&mut listing) {
            let told = read_until(stream, b"MN\r\n");
            assert!(told.ends_with(format!("{end}MN\r\n").as_bytes()), "{request} of {runtime:?}");
            let items = memchr::memmem::find_iter(&told, b"\r\nmg ").count() + told.split(|b| *b == b'=').count();
            assert!(!request.contains("dump all") || items >= 2_500, "{request} of {runtime:?}: {items}");
        }
    }
}
