//! What `docs/layouts.md` says is enough to share data with: a program in Python, `docs/examples/layouts.py`, written from it, reads what Larder wrote and writes what Larder reads.
//!
//! It needs `python3`. Where there is none the tests say so and pass, but not where `CI` is set.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use larder::cache::{Lookup, Rebuild, Source};
use larder::{
    Array, Cache, Counter, Ctx, Error, ErrorKind, EventLog, Key, Lock, Name, Queue, Set, Stack, StackOptions, StoreExt,
    StoreRef, Table, Visitors,
};
use larder_testkit::servers::{Memcached, Version};

const LEASE: Duration = Duration::from_secs(60);

/// A server, a store on it, and the program.
struct Shared {
    server: Memcached,
    store: StoreRef,
}

impl Shared {
    /// `None` where there is no Python.
    async fn start() -> Option<Shared> {
        let found = Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("CI").is_none(), "there is no python3, which these tests need");
            eprintln!("SKIPPED: there is no python3, so nothing was read or written by another language");
            return None;
        }
        let server = Memcached::start(Version::New, &[]);
        let store = larder::open(&server.url()).await.unwrap();
        Some(Shared { server, store })
    }

    /// What the program says: its output and its complaint.
    fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/layouts.py");
        let mut python = Command::new("python3");
        python.env("PYTHONDONTWRITEBYTECODE", "1").arg(program).arg(self.server.addr().to_string()).args(arguments);
        let done = python.stdin(Stdio::null()).output().unwrap();
        let (told, complaint) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
        if done.status.success() { Ok(told.trim_end().to_owned()) } else { Err(complaint) }
    }

    /// Runs the program, which must succeed.
    fn python(&self, arguments: &[&str]) -> String {
        self.ask(arguments).unwrap_or_else(|complaint| panic!("{arguments:?}: {complaint}"))
    }

    /// Runs the program, which must tell that what it needs is gone.
    fn loses(&self, arguments: &[&str]) {
        let complaint = self.ask(arguments).expect_err("it is lost");
        assert!(complaint.starts_with("lost: "), "{arguments:?}: {complaint}");
    }
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// As JSON: a byte is the character of its number.
fn json<B: AsRef<[u8]>>(elements: impl IntoIterator<Item = B>) -> String {
    let quoted = |element: B| {
        let letter = |&byte: &u8| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(byte)),
            b' '..=b'~' => char::from(byte).to_string(),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            _ => format!("\\u{byte:04x}"),
        };
        format!("\"{}\"", element.as_ref().iter().map(letter).collect::<String>())
    };
    format!("[{}]", elements.into_iter().map(quoted).collect::<Vec<_>>().join(", "))
}

fn sorted(mut elements: Vec<Bytes>) -> Vec<Bytes> {
    elements.sort();
    elements
}

#[tokio::test]
async fn python_and_larder_count_together() {
    let Some(shared) = Shared::start().await else { return };
    let counter = Counter::options().slots(4).open_or_create(&shared.store, "c d%\u{e9}").await.unwrap();
    counter.add(40).await.unwrap();
    counter.add(-1).await.unwrap();
    assert_eq!(shared.python(&["counter", "get", "c d%\u{e9}"]), "39");
    assert_eq!(shared.python(&["counter", "add", "c d%\u{e9}", "-50"]), "-11");
    counter.add(1).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), -10);
    // One that Python made; Larder's writers go on in it.
    shared.python(&["counter", "create", "made"]);
    shared.python(&["counter", "add", "made", "7"]);
    let made = Counter::open(&shared.store, "made").await.unwrap();
    made.add(1).await.unwrap();
    assert_eq!(made.get().await.unwrap(), 8);
    made.reset().await.unwrap();
    assert_eq!(shared.python(&["counter", "get", "made"]), "0");
    shared.loses(&["counter", "get", "none"]);
    shared.loses(&["set", "members", "made"]);
}

#[tokio::test]
async fn python_and_larder_count_fast_together() {
    let Some(shared) = Shared::start().await else { return };
    let counter = Counter::options().fast().open_or_create(&shared.store, "f").await.unwrap();
    counter.add(-5).await.unwrap();
    assert_eq!(shared.python(&["fast-counter", "get", "f"]), "-5");
    assert_eq!(shared.python(&["fast-counter", "add", "f", "12"]), "7");
    assert_eq!(counter.get().await.unwrap(), 7);
    shared.python(&["fast-counter", "create", "made"]);
    let made = Counter::options().fast().open_or_create(&shared.store, "made").await.unwrap();
    made.add(3).await.unwrap();
    assert_eq!(shared.python(&["fast-counter", "add", "made", "-4"]), "-1");
    assert_eq!(made.get().await.unwrap(), -1);
}

#[tokio::test]
async fn python_and_larder_hold_one_lock_by_turns() {
    let Some(shared) = Shared::start().await else { return };
    let lock = Lock::options().lease(Duration::from_secs(30)).label("rust").open(&shared.store, "l").await.unwrap();
    assert_eq!(shared.python(&["lock", "status", "l"]), "null");
    let guard = lock.acquire(Duration::from_secs(10)).await.unwrap();
    let token = guard.fencing_token();
    let told = shared.python(&["lock", "status", "l"]);
    assert_eq!(told, format!("{{\"held\": true, \"token\": {token}, \"label\": \"rust\"}}"));
    assert_eq!(shared.python(&["lock", "take", "l", "5000"]), "null", "it is held");
    guard.release().await.unwrap();
    let theirs: u64 = shared.python(&["lock", "take", "l", "30000", "python"]).parse().unwrap();
    assert!(theirs > token);
    assert!(lock.try_acquire().await.unwrap().is_none(), "Python has it");
    assert_eq!(shared.python(&["lock", "free", "l", &theirs.to_string()]), "true");
    let guard = lock.try_acquire().await.unwrap().expect("it is free");
    assert!(guard.fencing_token() > theirs);
    assert_eq!(shared.python(&["lock", "free", "l", &theirs.to_string()]), "false", "it is another's by now");
    // A lease of Python's that runs out is taken over.
    shared.python(&["lock", "take", "first", "1000"]);
    let first = Lock::open(&shared.store, "first").await.unwrap();
    first.acquire(Duration::from_secs(10)).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn python_and_larder_change_one_set() {
    let Some(shared) = Shared::start().await else { return };
    let long = vec![b'x'; 1_000];
    for shards in [1, 3] {
        let name = format!("s{shards}");
        let set = Set::options().shards(shards).dirtiness(64).open_or_create(&shared.store, &name).await.unwrap();
        let members: [&[u8]; 5] = [b"", b"a", b"b\r\n\xff", b"c", &long];
        set.add(members).await.unwrap();
        set.remove(["a"]).await.unwrap();
        set.compact().await.unwrap();
        set.add(["d"]).await.unwrap();
        assert_eq!(shared.python(&["set", "members", &name]), json([&b""[..], b"b\r\n\xff", b"c", b"d", &long]));
        shared.python(&["set", "add", &name, "e", "f", "\u{e9}"]);
        shared.python(&["set", "remove", &name, "c", "f"]);
        let fresh = Set::open(&shared.store, &name).await.unwrap();
        for set in [&set, &fresh] {
            let found = sorted(set.members().await.unwrap().to_vec());
            let expected: Vec<&[u8]> = vec![b"", b"b\r\n\xff", b"d", b"e", &long, "\u{e9}".as_bytes()];
            assert_eq!(found, expected);
        }
        let made = format!("made{shards}");
        shared.python(&["set", "create", &made, &shards.to_string()]);
        shared.python(&["set", "add", &made, "x", "y"]);
        let made = Set::open(&shared.store, &made).await.unwrap();
        made.add(["z"]).await.unwrap();
        made.compact().await.unwrap();
        assert_eq!(sorted(made.members().await.unwrap().to_vec()), ["x", "y", "z"]);
    }
}

#[tokio::test]
async fn python_and_larder_change_one_array() {
    let Some(shared) = Shared::start().await else { return };
    let one = Array::options().dirtiness(64).open_or_create(&shared.store, "one").await.unwrap();
    one.push([&b"a"[..], b"", b"\0", b"a", b"\0\x01z"]).await.unwrap();
    one.change(["b"], ["none"]).await.unwrap();
    one.compact().await.unwrap();
    one.push(["c"]).await.unwrap();
    let expected = json([&b"a"[..], b"", b"\0", b"a", b"\0\x01z", b"b", b"c"]);
    assert_eq!(shared.python(&["array", "get", "one"]), format!("[{expected}]"));
    shared.python(&["array", "push", "one", "d", "d"]);
    shared.python(&["array", "change", "one", "a", "e"]);
    let fresh = Array::open(&shared.store, "one").await.unwrap();
    for array in [&one, &fresh] {
        let expected: [&[u8]; 8] = [b"", b"\0", b"\0\x01z", b"b", b"c", b"d", b"d", b"e"];
        assert_eq!(array.elements().await.unwrap(), expected);
    }

    shared.python(&["array", "create", "made", "3"]);
    let many = Array::options().shards(3).open_or_create(&shared.store, "made").await.unwrap();
    many.push(["a", "b", "c", "d", "e", "f"]).await.unwrap();
    many.change(["g", "h"], ["a", "b"]).await.unwrap();
    let flat = |told: String| {
        let mut all: Vec<char> = told.chars().filter(char::is_ascii_alphabetic).collect();
        all.sort_unstable();
        all.into_iter().collect::<String>()
    };
    assert_eq!(flat(shared.python(&["array", "get", "made"])), "cdefgh");
    // Changes over several shards, by turns; after each, both sides see the same.
    for (delete, add) in [("c", "i"), ("d", "j"), ("e", "k"), ("f", "l")] {
        shared.python(&["array", "change", "made", delete, add]);
        many.change(["g", "m"], ["g"]).await.unwrap();
        many.change([""; 0], ["m"]).await.unwrap();
        let found = sorted(many.elements().await.unwrap());
        let text: String = found.iter().map(|element| std::str::from_utf8(element).unwrap()).collect();
        assert_eq!(text, flat(shared.python(&["array", "get", "made"])), "after {delete} and {add}");
        assert!(text.contains(add) && !text.contains(delete), "{text}");
        if delete == "d" {
            many.compact().await.unwrap();
        }
    }
}

#[tokio::test]
async fn python_and_larder_count_one_sites_visitors() {
    let Some(shared) = Shared::start().await else { return };
    let period = Duration::from_secs(3_600);
    let site = Visitors::options().period(period).shards(2).open_or_create(&shared.store, "v").await.unwrap();
    let time = SystemTime::now();
    let at = now_ms().to_string();
    assert_eq!(shared.python(&["visitors", "get", "v", &at]), "0");
    site.hit_at(time, 3).await.unwrap();
    for who in ["ann", "bob", "ann", "cid"] {
        site.hit_visitor_at(who, time).await.unwrap();
    }
    assert_eq!(shared.python(&["visitors", "get", "v", &at]), "6");
    shared.python(&["visitors", "hit", "v", &at]);
    shared.python(&["visitors", "visit", "v", &at, "bob"]);
    shared.python(&["visitors", "visit", "v", &at, "dan"]);
    assert_eq!(site.get_at(time).await.unwrap(), 8);
    // A window that Python made, in a structure that it made.
    shared.python(&["visitors", "create", "made", "60000"]);
    shared.python(&["visitors", "visit", "made", &at, "ann"]);
    shared.python(&["visitors", "hit", "made", &at]);
    let made = Visitors::open(&shared.store, "made").await.unwrap();
    made.hit_visitor_at("ann", time).await.unwrap();
    made.hit_visitor_at("bob", time).await.unwrap();
    assert_eq!(made.get_at(time).await.unwrap(), 3);
    assert_eq!(shared.python(&["visitors", "get", "made", &at]), "3");
}

#[tokio::test]
async fn python_and_larder_write_one_log() {
    let Some(shared) = Shared::start().await else { return };
    let minute = Duration::from_secs(60);
    let log = EventLog::options().chunk(minute).retention(minute * 60);
    let log = log.open_or_create(&shared.store, "l").await.unwrap();
    let (now, before) = (now_ms(), now_ms() - 600_000);
    log.put_at(now, b"a\xff").await.unwrap();
    log.put_at(before, "").await.unwrap();
    let (first, last) = ((now - 3_000_000).to_string(), (now + 60_000).to_string());
    let fetch = |name: &str| shared.python(&["log", "fetch", name, &first, &last]);
    assert_eq!(fetch("l"), format!("{{\"events\": [[{before}, \"\"], [{now}, \"a\\u00ff\"]], \"gaps\": []}}"));
    shared.python(&["log", "put", "l", &now.to_string(), "from Python"]);
    shared.python(&["log", "put", "l", &(now - 1_200_000).to_string(), "in a chunk that it made"]);
    let found = log.fetch(..).await.unwrap().whole().unwrap();
    let texts: Vec<_> = found.iter().map(|event| event.bytes.clone()).collect();
    assert_eq!(texts, [&b"in a chunk that it made"[..], b"", b"a\xff", b"from Python"]);
    // A chunk that is gone is a gap to both.
    shared.python(&["log", "create", "made", "60000", "3600000"]);
    shared.python(&["log", "put", "made", &now.to_string(), "x"]);
    let made = EventLog::open(&shared.store, "made").await.unwrap();
    made.put_at(before, "y").await.unwrap();
    let mut tail = made.tail(larder::log::Cursor::default()).unwrap();
    assert_eq!(tail.poll().await.unwrap().whole().unwrap().len(), 2);
    lose(&shared, "made", &format!("{:x}-0", now / 60_000)).await;
    assert!(fetch("made").ends_with(&format!("\"gaps\": [[{}, 0]]}}", now / 60_000)), "{}", fetch("made"));
    assert_eq!(made.fetch(..).await.unwrap().whole().unwrap_err().kind(), ErrorKind::Lost);
}

/// Deletes a key of a log, as an eviction does.
async fn lose(shared: &Shared, name: &str, index: &str) {
    let found = larder::find(&shared.store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    let key = Key::new(format!("L.{name}.e.{:016x}.{index}", found.generation)).unwrap();
    assert!(shared.store.delete(key).await.unwrap(), "{index} was not there");
}

#[tokio::test]
async fn python_and_larder_share_a_table() {
    let Some(shared) = Shared::start().await else { return };
    for made_by_python in [false, true] {
        let name = format!("t{made_by_python}");
        if made_by_python {
            shared.python(&["table", "create", &name, "2"]);
        }
        let table = Table::options().shards(2).open_or_create(&shared.store, &name).await.unwrap();
        let long = "k".repeat(300);
        for (key, value) in [("", "empty"), ("a", "1"), ("b", "1"), (&long, "long"), ("gone", "x")] {
            table.put(key, value).await.unwrap();
        }
        table.put("a", "2").await.unwrap();
        table.remove("gone").await.unwrap();
        table.settle().await;
        assert_eq!(shared.python(&["table", "get", &name, "a"]), "\"2\"");
        assert_eq!(shared.python(&["table", "get", &name, ""]), "\"empty\"");
        assert_eq!(shared.python(&["table", "get", &name, &long]), "\"long\"");
        assert_eq!(shared.python(&["table", "get", &name, "gone"]), "null");
        assert_eq!(shared.python(&["table", "keys", &name]), json(["", "a", "b", &long]));
        shared.python(&["table", "put", &name, "a", "3"]);
        shared.python(&["table", "put", &name, "new", "4"]);
        assert_eq!(shared.python(&["table", "remove", &name, "b"]), "true");
        assert_eq!(shared.python(&["table", "remove", &name, "none"]), "false");
        let fresh = Table::open(&shared.store, &name).await.unwrap();
        for table in [&table, &fresh] {
            let mut entries = table.entries().await.unwrap();
            entries.sort();
            let expected = [("", "empty"), ("a", "3"), (&long, "long"), ("new", "4")];
            assert_eq!(entries, expected.map(|(key, value)| (Bytes::from(key.to_owned()), Bytes::from(value))));
            assert_eq!(table.get("b").await.unwrap(), None);
        }
        fresh.put("new", "5").await.unwrap();
        fresh.remove("a").await.unwrap();
        assert_eq!(shared.python(&["table", "get", &name, "new"]), "\"5\"");
        assert_eq!(shared.python(&["table", "keys", &name]), json(["", &long, "new"]));
    }
}

#[tokio::test]
async fn python_and_larder_work_at_one_queue() {
    let Some(shared) = Shared::start().await else { return };
    let queue = Queue::options().segment_bytes(4_096).open_or_create(&shared.store, "q").await.unwrap();
    // Several segments, the first of them used up.
    let numbers: Vec<String> = (0..200).map(|n| format!("item {n:03} {:040}", 0)).collect();
    for some in numbers.chunks(20) {
        queue.push_all(some).await.unwrap();
    }
    for number in &numbers[..100] {
        assert_eq!(queue.pop().await.unwrap().unwrap(), number.as_bytes());
    }
    let claim = queue.claim(Duration::from_secs(60)).await.unwrap().expect("an item");
    assert_eq!(shared.python(&["queue", "items", "q"]), json(&numbers[101..]));
    claim.release().await.unwrap();
    assert_eq!(shared.python(&["queue", "items", "q"]), json(&numbers[100..]));
    for number in &numbers[100..105] {
        assert_eq!(shared.python(&["queue", "pop", "q"]), format!("\"{number}\""));
    }
    shared.python(&["queue", "push", "q", "from Python", ""]);
    for number in &numbers[105..] {
        assert_eq!(queue.pop().await.unwrap().unwrap(), number.as_bytes());
    }
    assert_eq!(queue.pop().await.unwrap().unwrap(), "from Python");
    assert_eq!(queue.pop().await.unwrap().unwrap(), "");
    assert_eq!(queue.pop().await.unwrap(), None);
    assert_eq!(shared.python(&["queue", "pop", "q"]), "null");

    shared.python(&["queue", "create", "made"]);
    shared.python(&["queue", "push", "made", "a", "b", "c"]);
    let made = Queue::open(&shared.store, "made").await.unwrap();
    made.push("d").await.unwrap();
    assert_eq!(shared.python(&["queue", "pop", "made"]), "\"a\"");
    let claim = made.claim(Duration::from_secs(60)).await.unwrap().expect("an item");
    assert_eq!(claim.item(), "b");
    assert_eq!(shared.python(&["queue", "pop", "made"]), "\"c\"");
    claim.ack().await.unwrap();
    assert_eq!(made.pop().await.unwrap().unwrap(), "d");
    assert_eq!(made.len().await.unwrap(), 0);
    let stat = made.stat().await.unwrap();
    assert_eq!(stat.acknowledged, 4);

    // Several segments, opened by both.
    shared.python(&["queue", "create", "long", "1024"]);
    let long = Queue::open(&shared.store, "long").await.unwrap();
    push_by_turns(&shared, "queue", "long", |item| long.push(item)).await;
    assert!(long.stat().await.unwrap().segments > 4);
    assert_eq!(shared.python(&["queue", "items", "long"]), json(by_turns()));
    for item in by_turns() {
        assert_eq!(long.pop().await.unwrap().unwrap(), item);
    }
    assert_eq!(long.pop().await.unwrap(), None);
}

/// What [`push_by_turns`] pushes, in its order.
fn by_turns() -> Vec<String> {
    (0..60).map(|n| format!("item {n:0100}")).collect()
}

/// Pushes five items by Python in one call, then five by Larder, and so on.
async fn push_by_turns<F>(shared: &Shared, what: &str, name: &str, push: impl Fn(String) -> F)
where
    F: Future<Output = larder::Result<()>>,
{
    for (turn, items) in by_turns().chunks(5).enumerate() {
        if turn % 2 == 0 {
            let items = items.iter().map(String::as_str);
            shared.python(&[what, "push", name].into_iter().chain(items).collect::<Vec<_>>());
        } else {
            for item in items {
                push(item.clone()).await.unwrap();
            }
        }
    }
}

/// The items of a stack, as a pop would bring them, are what Python reads.
fn holds(shared: &Shared, name: &str, items: &[String]) {
    assert_eq!(shared.python(&["stack", "items", name]), json(items.iter().rev()));
}

#[tokio::test]
async fn python_and_larder_share_a_stack() {
    let Some(shared) = Shared::start().await else { return };
    let options = StackOptions::from(Queue::options().segment_bytes(1_024));
    let stack = options.open_or_create(&shared.store, "s").await.unwrap();
    holds(&shared, "s", &[]);
    let mut items = by_turns();
    for item in &items {
        stack.push(item).await.unwrap();
    }
    assert!(stack.stat().await.unwrap().segments > 4);
    holds(&shared, "s", &items);
    // Down into a segment, and up again: it notes what was taken of it.
    for _ in 0..25 {
        assert_eq!(stack.pop().await.unwrap().unwrap(), items.pop().unwrap());
    }
    holds(&shared, "s", &items);
    push_by_turns(&shared, "stack", "s", |item| stack.push(item)).await;
    items.extend(by_turns());
    holds(&shared, "s", &items);
    // What is claimed is nobody else's, and what comes back has its place.
    let claims = [stack.claim(LEASE).await.unwrap().unwrap(), stack.claim(LEASE).await.unwrap().unwrap()];
    assert_eq!(*claims[1].item(), items[items.len() - 2]);
    holds(&shared, "s", &items[..items.len() - 2]);
    claims[1].release().await.unwrap();
    claims[0].ack().await.unwrap();
    items.pop();
    holds(&shared, "s", &items);
    while let Some(item) = items.pop() {
        assert_eq!(stack.pop().await.unwrap().unwrap(), item);
    }
    assert_eq!(stack.pop().await.unwrap(), None);
    assert_eq!(stack.len().await.unwrap(), 0);
    holds(&shared, "s", &[]);

    shared.python(&["stack", "create", "made", "1024"]);
    let made = Stack::open(&shared.store, "made").await.unwrap();
    push_by_turns(&shared, "stack", "made", |item| made.push(item)).await;
    holds(&shared, "made", &by_turns());
    for item in by_turns().into_iter().rev() {
        assert_eq!(made.pop().await.unwrap().unwrap(), item);
    }
    assert_eq!(made.pop().await.unwrap(), None);
}

async fn lease(cache: &Cache, key: &str) -> Rebuild {
    match cache.lookup(key).await.unwrap() {
        Lookup::Rebuild(rebuild) => rebuild,
        Lookup::Found(found) => panic!("{found:?}"),
    }
}

#[tokio::test]
async fn python_and_larder_share_a_cache() {
    let Some(shared) = Shared::start().await else { return };
    for made_by_python in [false, true] {
        let name = format!("c{made_by_python}");
        if made_by_python {
            shared.python(&["cache", "create", &name]);
        }
        let python = |verb: &str, arguments: &[&str]| shared.python(&[&["cache", verb, &name], arguments].concat());
        let cache = Cache::options().ttl(LEASE).lease(LEASE).open_or_create(&shared.store, &name).await.unwrap();
        assert_eq!(python("get", &["k"]), r#"["none", false, null]"#);
        cache.get_or_rebuild("k", async || Ok::<_, Error>(&b"v\xff"[..])).await.unwrap();
        assert_eq!(python("get", &["k"]), r#"["fresh", false, "v\u00ff"]"#);
        assert_eq!(python("lease", &["k", "60000"]), "null", "it is fresh");
        // Larder makes it, Python knows; and an invalidation counts.
        python("invalidate", &["k"]);
        let rebuild = lease(&cache, "k").await;
        assert_eq!(python("get", &["k"]), r#"["none", true, null]"#);
        assert_eq!(python("lease", &["k", "60000"]), "null", "it is being made");
        python("invalidate", &["k"]);
        assert!(!rebuild.finish("too late").await.is_kept());
        assert!(lease(&cache, "k").await.finish("w").await.is_kept());
        assert_eq!(python("get", &["k"]), r#"["fresh", false, "w"]"#);
        // Python makes it, and Larder waits.
        python("invalidate", &["k"]);
        let draw = python("lease", &["k", "60000"]).replace('"', "");
        let waiting = cache.clone();
        let waiting = tokio::spawn(async move {
            waiting.get_or_rebuild("k", async || Err::<Vec<u8>, _>(Error::new(ErrorKind::Conflict, "not mine"))).await
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished());
        assert_eq!(python("finish", &["k", &draw, "by Python", "60000"]), "true");
        let found = waiting.await.unwrap().unwrap();
        assert_eq!(found.value, "by Python");
        assert!(matches!(found.source, Source::Fresh), "{found:?}");
        assert_eq!(python("finish", &["k", "1", "x", "60000"]), "false", "the lease is another's");
    }
}

/// A value that was never fresh, and may be served for long.
#[tokio::test]
async fn python_and_larder_serve_one_stale_value_while_it_is_made_anew() {
    let Some(shared) = Shared::start().await else { return };
    let cache = Cache::options().ttl(LEASE).lease(LEASE).open_or_create(&shared.store, "c").await.unwrap();
    let python = |verb: &str, arguments: &[&str]| shared.python(&[&["cache", verb, "c", "k"], arguments].concat());
    let finish = |draw: &str, value: &str| {
        assert_eq!(python("finish", &[&draw.replace('"', ""), value, "0", "600000"]), "true");
    };
    finish(&python("lease", &["60000"]), "old");
    assert_eq!(python("get", &[]), r#"["stale", false, "old"]"#);
    let rebuild = lease(&cache, "k").await;
    assert_eq!(rebuild.stale().unwrap(), "old");
    assert_eq!(python("get", &[]), r#"["stale", true, "old"]"#);
    assert_eq!(python("lease", &["60000"]), "null");
    assert!(rebuild.finish("new").await.is_kept());
    assert_eq!(python("get", &[]), r#"["fresh", false, "new"]"#);
    python("invalidate", &[]);
    finish(&python("lease", &["60000"]), "older");
    let draw = python("lease", &["60000"]);
    let Lookup::Found(found) = cache.lookup("k").await.unwrap() else { panic!("Python makes it") };
    assert_eq!(found.value, "older");
    assert!(matches!(found.source, Source::Stale), "{found:?}");
    finish(&draw, "newer");
    assert_eq!(cache.get("k").await.unwrap().unwrap().value, "newer");
}
