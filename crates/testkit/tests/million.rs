//! As many elements as anybody has: pushed in one call where the structure takes that, and read back, all of them and in their order; and calls of no elements.
//!
//! The suite does it with some thousands in the process. `LARDER_MILLION` names the stores that it is done on with a million, of `memory`, `memcached`, `redis` and `file`, separated by commas;
//! `LARDER_MILLION_ELEMENTS` another number. It prints how long each part took.

use std::any::Any;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder::{Array, Effect, ErrorKind, EventLog, Queue, Result, Set, Stack, StoreRef, Table};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

const STORES_ENV: &str = "LARDER_MILLION";
const ELEMENTS_ENV: &str = "LARDER_MILLION_ELEMENTS";
/// Without the variables.
const FEW: u32 = 5_000;
const MILLION: u32 = 1_000_000;
/// How many go into a call where one call does not take all.
const A_CALL: usize = 10_000;
/// How many take at once through one handle, whose takings share their round trips: one at a time pays two for each item.
const TAKERS: usize = 100;
/// Longer than any call takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A store, and what must live as long.
struct Opened {
    store: StoreRef,
    name: String,
    elements: u32,
    _guard: Box<dyn Any>,
}

async fn stores() -> Vec<Opened> {
    let named = std::env::var(STORES_ENV).ok();
    let elements = std::env::var(ELEMENTS_ENV).ok().map(|text| text.parse().expect("a number of elements"));
    let elements = elements.unwrap_or(if named.is_some() { MILLION } else { FEW });
    let mut all = Vec::new();
    for name in named.as_deref().unwrap_or("memory").split(',') {
        let (url, guard): (String, Box<dyn Any>) = match name {
            "memory" => ("memory:".to_owned(), Box::new(())),
            "memcached" => {
                let server = Memcached::start(Version::New, &["-m", "1024"]);
                (format!("{}?timeout_ms=60000", server.url()), Box::new(server))
            }
            "redis" => {
                let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
                (format!("{}?timeout_ms=60000", server.url()), Box::new(server))
            }
            "file" => {
                let folder = tempfile::tempdir().unwrap();
                // What is asked here is how much it takes, and not what a power cut would.
                (format!("file:{}?sync=every:100ms", folder.path().display()), Box::new(folder))
            }
            other => panic!("{STORES_ENV} names {other}; there are memory, memcached, redis and file"),
        };
        let store = larder::open(&url).await.unwrap();
        all.push(Opened { store, name: name.to_owned(), elements, _guard: guard });
    }
    all
}

/// Elements that sort as they are numbered.
fn element(number: u32) -> String {
    format!("{number:07}")
}

fn elements(count: u32) -> Vec<String> {
    (0..count).map(element).collect()
}

/// Tells how long something took.
struct Clock<'o> {
    opened: &'o Opened,
    what: &'static str,
    start: Instant,
}

impl<'o> Clock<'o> {
    fn start(opened: &'o Opened, what: &'static str) -> Clock<'o> {
        Clock { opened, what, start: Instant::now() }
    }

    fn lap(&mut self, part: &str) {
        let (took, count) = (self.start.elapsed(), self.opened.elements);
        let each = took.as_secs_f64() * 1e6 / f64::from(count);
        println!(
            "{}: {}, {part}: {count} in {:.2} s, {each:.2} us each",
            self.opened.name,
            self.what,
            took.as_secs_f64()
        );
        self.start = Instant::now();
    }
}

/// True if one call took all; where it takes no more than so many, it says so and has done nothing.
fn is_whole(outcome: Result<()>) -> bool {
    let Err(error) = outcome else { return true };
    assert!(matches!(error.kind(), ErrorKind::BadInput | ErrorKind::Full), "{error}");
    assert_eq!(error.known_effect(), Effect::NotApplied, "{error}");
    println!("in one call: {error}");
    false
}

async fn pop(queue: Queue) -> Result<Option<Bytes>> {
    queue.pop().await
}

async fn pop_top(stack: Stack) -> Result<Option<Bytes>> {
    stack.pop().await
}

/// As many takers at once as there are items to come, which they get in the order in which they asked.
async fn take_all<'e, F>(expected: impl Iterator<Item = &'e String>, take: impl Fn() -> F)
where
    F: Future<Output = Result<Option<Bytes>>> + Send + 'static,
{
    let takers: Vec<_> = expected.map(|expected| (expected, tokio::spawn(take()))).collect();
    for (expected, taker) in takers {
        assert_eq!(taker.await.unwrap().unwrap().expect("an item"), expected.as_bytes());
    }
}

#[tokio::test]
async fn a_queue_takes_a_million_items_and_gives_them_in_order() {
    for opened in stores().await {
        let queue = Queue::options().timeout(PATIENCE).open_or_create(&opened.store, "q").await.unwrap();
        queue.push_all([""; 0]).await.unwrap();
        assert_eq!(queue.len().await.unwrap(), 0, "nothing was pushed");
        let all = elements(opened.elements);
        let mut clock = Clock::start(&opened, "queue");
        if !is_whole(queue.push_all(&all).await) {
            assert_eq!(queue.len().await.unwrap(), 0, "nothing was pushed");
            for some in all.chunks(A_CALL) {
                queue.push_all(some).await.unwrap();
            }
        }
        clock.lap("push");
        assert_eq!(queue.len().await.unwrap(), u64::from(opened.elements));
        clock.lap("len");
        for (round, some) in all.chunks(TAKERS).enumerate() {
            let mut some = some.iter();
            // Of every tenth round one is claimed and acknowledged.
            if round % 10 == 0 {
                let claim = queue.claim(Duration::from_secs(60)).await.unwrap().expect("an item");
                claim.ack().await.unwrap();
                assert_eq!(claim.item(), some.next().unwrap().as_bytes());
            }
            take_all(some, || pop(queue.clone())).await;
        }
        clock.lap("pop, claim");
        assert_eq!(queue.pop().await.unwrap(), None);
        assert_eq!(queue.len().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_stack_takes_a_million_items_and_gives_them_backwards() {
    for opened in stores().await {
        let stack = Stack::options().timeout(PATIENCE).open_or_create(&opened.store, "k").await.unwrap();
        stack.push_all([""; 0]).await.unwrap();
        assert_eq!(stack.len().await.unwrap(), 0, "nothing was pushed");
        let all = elements(opened.elements);
        let mut clock = Clock::start(&opened, "stack");
        if !is_whole(stack.push_all(&all).await) {
            assert_eq!(stack.len().await.unwrap(), 0, "nothing was pushed");
            for some in all.chunks(A_CALL) {
                stack.push_all(some).await.unwrap();
            }
        }
        clock.lap("push");
        let backwards: Vec<&String> = all.iter().rev().collect();
        for some in backwards.chunks(TAKERS) {
            take_all(some.iter().copied(), || pop_top(stack.clone())).await;
        }
        clock.lap("pop");
        assert_eq!(stack.pop().await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_array_takes_a_million_elements_and_reads_them_back() {
    for opened in stores().await {
        let options = Array::options().shards(16).timeout(PATIENCE);
        let array = options.open_or_create(&opened.store, "a").await.unwrap();
        array.push([""; 0]).await.unwrap();
        array.remove([""; 0]).await.unwrap();
        array.change([""; 0], [""; 0]).await.unwrap();
        assert!(array.elements().await.unwrap().is_empty());
        let all = elements(opened.elements);
        let mut clock = Clock::start(&opened, "array");
        if !is_whole(array.push(&all).await) {
            assert!(array.elements().await.unwrap().is_empty(), "nothing was pushed");
            for some in all.chunks(A_CALL) {
                array.push(some).await.unwrap();
            }
        }
        clock.lap("push");
        let mut found = array.elements().await.unwrap();
        clock.lap("read");
        // The order holds within a shard; all are there, each once.
        found.sort_unstable();
        assert_eq!(found.len(), all.len());
        assert!(found.iter().zip(&all).all(|(found, expected)| found == expected.as_bytes()));
        // In one shard the order is that of the calls, up to what an item holds.
        let some = &all[..all.len().min(50_000)];
        let one = Array::options().timeout(PATIENCE).open_or_create(&opened.store, "one").await.unwrap();
        for few in some.chunks(A_CALL) {
            one.push(few).await.unwrap();
        }
        assert!(one.elements().await.unwrap().iter().zip(some).all(|(found, expected)| found == expected.as_bytes()));
        assert_eq!(one.elements().await.unwrap().len(), some.len());
    }
}

#[tokio::test]
async fn a_log_takes_a_million_events_and_tells_them_in_order() {
    for opened in stores().await {
        let minute = Duration::from_secs(60);
        let options = EventLog::options().chunk(minute).retention(minute * 100).timeout(PATIENCE);
        let log = options.open_or_create(&opened.store, "l").await.unwrap();
        log.put_all(Vec::<(u64, &str)>::new()).await.unwrap();
        assert!(log.fetch(..).await.unwrap().is_empty());
        // Over the last half of an hour, as they came.
        let first_ms = log.now_ms() - 1_800_000;
        let count = u64::from(opened.elements);
        let at = |number: u64| first_ms + number * 1_800_000 / count;
        let events: Vec<(u64, String)> =
            (0..opened.elements).map(|number| (at(u64::from(number)), element(number))).collect();
        let mut clock = Clock::start(&opened, "log");
        if !is_whole(log.put_all(events.iter().cloned()).await) {
            assert!(log.fetch(..).await.unwrap().is_empty(), "nothing was put");
            for some in events.chunks(A_CALL) {
                log.put_all(some.iter().cloned()).await.unwrap();
            }
        }
        clock.lap("put");
        let is_all = |found: &[larder::log::Event]| {
            let is_it = |(found, expected): (&larder::log::Event, &(u64, String))| {
                found.time_ms == expected.0 && found.bytes == expected.1.as_bytes()
            };
            found.len() == events.len() && found.iter().zip(&events).all(is_it)
        };
        assert!(is_all(&log.fetch(..).await.unwrap().whole().unwrap()));
        clock.lap("fetch");
        let mut tail = log.tail(larder::log::Cursor::default()).unwrap();
        let mut told = tail.poll().await.unwrap().whole().unwrap();
        while tail.is_behind() {
            told.extend(tail.poll().await.unwrap().whole().unwrap());
        }
        clock.lap("tail");
        told.sort_by_key(|event| event.time_ms);
        assert!(is_all(&told));
    }
}

/// Calls that take many, of sets and tables: of none they do nothing, and of a million they take all.
#[tokio::test]
async fn a_set_and_a_table_take_a_million_and_none() {
    for opened in stores().await {
        let set = Set::options().shards(16).timeout(PATIENCE).open_or_create(&opened.store, "s").await.unwrap();
        set.add([""; 0]).await.unwrap();
        set.remove([""; 0]).await.unwrap();
        assert!(set.members().await.unwrap().is_empty());
        let all = elements(opened.elements);
        let mut clock = Clock::start(&opened, "set");
        if !is_whole(set.add(&all).await) {
            for some in all.chunks(A_CALL) {
                set.add(some).await.unwrap();
            }
        }
        clock.lap("add");
        assert_eq!(set.members().await.unwrap().len(), all.len());
        clock.lap("members");
        let table = Table::options().timeout(PATIENCE).open_or_create(&opened.store, "t").await.unwrap();
        assert!(table.get_many([""; 0]).await.unwrap().is_empty());
        table.put("0000007", "seven").await.unwrap();
        let found = table.get_many(&all).await.unwrap();
        clock.lap("table, get_many");
        assert_eq!(found.len(), all.len());
        assert!(found.iter().enumerate().all(|(at, found)| found.is_some() == (at == 7)));
    }
}
