//! A disk that takes its time: how long requests took, as `/metrics` and `stats latency` tell it, until whoever asked could be told; and what is held in memory meanwhile.

mod common;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use larder_core::Result;
use larder_server::{
    Config, DurableEngine, DurableOptions, DurableStore, Engine, Figures, Limits, Promises, Server, Walk,
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
    /// When what is waited for is on disk, by ticket.
    due: Mutex<std::collections::HashMap<u64, Instant>>,
    /// Writes since something was settled, and the most there were.
    writes: Arc<[AtomicUsize; 2]>,
}

impl Slow {
    fn new(store: DurableStore) -> Slow {
        Slow { engine: DurableEngine::new(store), due: Mutex::default(), writes: Arc::default() }
    }
}

impl Engine for Slow {
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
        let due = *self.due.lock().entry(touched).or_insert_with(|| Instant::now() + DISK);
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
        self.engine.walk(at, see)
    }

    fn figures(&self) -> Figures {
        self.engine.figures()
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
