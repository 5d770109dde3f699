//! `larder export`, `import`, `backup`, `restore` and `check`.

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};

use common::{Done, finish, larder, on, on_with_input, until, wait};
use larder::dump::{DumpItem, DumpWriter, Head};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion, Value};
use larder_testkit::servers::{Memcached, Version};

/// Runs a command on a store, with a path behind it.
fn on_file(store: &str, line: &str, path: &Path) -> Done {
    finish(larder(line.split_whitespace()).arg(path).env("LARDER_STORE", store))
}

fn file_store(folder: &Path, name: &str) -> String {
    format!("file:{}", folder.join(name).display())
}

/// Something of each kind, and of those that a Redis keeps natively with each of their parameters.
const MADE: [&str; 33] = [
    "lock run nightly -- true",
    "counter add hits 5",
    "counter add views 100 --fast",
    "counter add views -- -107",
    "set add tags red green",
    "visitors hit now --period 30d --visitor ann --visitor bob",
    "log put audit signed-in",
    "array push jobs sweep cook",
    "table put prices apple 3.20",
    "table put quotes pear 2 --ttl 1h",
    "queue push work one two",
    "stack push undo one two",
    "cache get pages /index --ttl 1h --else echo rendered",
    "unique add site ann bob",
    "unique add kept ann bob --keep 30d",
    "unique add ids --precision exact --ids-are integer 7 70000000000 18446744073709551615",
    "unique add exact --precision exact ann bob",
    "unique add near --precision near ann bob",
    "unique add rough --precision sketch ann bob",
    "records define users place:CA|US visits:u7 paid:bit delta:i9 tag:bytes2",
    "records set users 17 place=US visits=100 paid=1 delta=-16 tag=00ff",
    "records set users 200000 visits=3",
    "records define none visits:u7",
    "hash set cities 17 Lund 18 Umeå -- -2147483648 mark",
    "hash set dense --dense 64 --expected 1000 17 Lund 999 last",
    "hash remove dense 17",
    "sharded-set add seen a b -- -2147483646 -5",
    "sharded-set add paid --dense 500 --expected 1000 17 999",
    "reshard seen --shards 7",
    "top set scores ann 3.5 bob -2",
    "top add scores ann 1",
    "unique add 2%days --day 20000 ann",
    "unique add 2%days --day 20001 ann bob",
];

/// How those are asked for, and what they answer.
const ASKED: [(&str, &str); 37] = [
    ("lock status nightly", "free, "),
    ("counter get hits", "5\n"),
    ("counter get views", "-7\n"),
    ("set has tags red", ""),
    ("visitors get now --current", "2\n"),
    ("log fetch audit --since 1h", "signed-in"),
    ("array get jobs", "sweep\ncook\n"),
    ("table get prices apple", "3.20\n"),
    ("table get quotes pear", "2\n"),
    ("queue len work", "2\n"),
    ("stack len undo", "2\n"),
    ("cache get pages /index --ttl 1h --else echo made anew", "rendered\n"),
    ("unique count site", "2\n"),
    ("unique new site ann cy", "cy\n"),
    ("unique count kept", "2\n"),
    ("unique count ids", "3\n"),
    ("unique new ids 7 8 70000000000 18446744073709551615", "8\n"),
    ("unique count exact", "2\n"),
    ("unique count near", "2\n"),
    ("unique count rough", "2\n"),
    ("unique union 2%days --day 20001 --days 2", "2\n"),
    ("unique count 2%days --day 20000", "1\n"),
    ("records get users 17", "17\tplace=US\tvisits=100\tpaid=1\tdelta=-16\ttag=00ff\n"),
    ("records get users 200000 --field visits", "3\n"),
    ("records max users", "200000\n"),
    ("records aggregate users place", "\tUS\n"),
    ("records aggregate none", "0\n"),
    ("hash len cities", "3\n"),
    ("hash get cities 17 18 -- -2147483648", "Lund\nUmeå\nmark\n"),
    ("hash entries dense", "999\tlast\n"),
    ("sharded-set len seen", "4\n"),
    ("sharded-set has seen a b -- -2147483646 -5", "true\ntrue\ntrue\ntrue\n"),
    ("sharded-set has paid 17 999", "true\ntrue\n"),
    ("top list scores", "ann\t4.5\nbob\t-2\n"),
    ("top get scores ann", "4.5\n"),
    ("lookup get net 192.0.2.7", "city=Lund"),
    ("ls", "packed table\tnet\n"),
];

/// Every kind there is, as `larder ls` names it.
const KINDS: usize = 17;

fn make(store: &str) {
    MADE.iter().for_each(|line| _ = on(store, line).exits(0));
    on_with_input(store, "lookup build net -", b"start,end,city\n192.0.2.0,192.0.2.255,Lund\n").exits(0);
    let listed = on(store, "ls").exits(0);
    let kinds: HashSet<&str> = listed.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(kinds.len(), KINDS, "{kinds:?}");
}

fn assert_made(store: &str) {
    assert_asked(store, |_| true);
}

fn assert_asked(store: &str, is_asked: impl Fn(&str) -> bool) {
    for (line, answer) in ASKED.into_iter().filter(|(line, _)| is_asked(line)) {
        let done = on(store, line);
        assert!(done.text().contains(answer), "{line} on {store}: {done:?}");
    }
}

/// Verbs of which something is made where that is enough.
const SOME: [&str; 6] = ["counter ", "set ", "array ", "table ", "queue ", "log "];

fn is_some(line: &str) -> bool {
    SOME.iter().any(|verb| line.starts_with(verb))
}

fn make_some(store: &str) {
    MADE.iter().filter(|line| is_some(line)).for_each(|line| _ = on(store, line).exits(0));
}

fn assert_some(store: &str) {
    assert_asked(store, is_some);
}

/// Changes what is kept natively somewhere: it is no mere picture of itself.
fn change(store: &str) {
    let lines = [
        ("counter add views 7", ""),
        ("unique add site bob cy", "1\n"),
        ("unique add ids 8 7", "1\n"),
        ("records set users 200001 visits=5", ""),
        ("hash set cities 17 Malmö", ""),
        ("hash remove cities 18", "1\n"),
        ("sharded-set add seen b c", "1\n"),
        ("reshard seen --shards 20", ""),
        ("sharded-set remove paid 17 18", "1\n"),
    ];
    for (line, answer) in lines {
        let said = on(store, line).exits(0);
        assert!(said.contains(answer), "{line} on {store}: {said:?}");
    }
    for (line, answer) in [
        ("counter get views", "0\n"),
        ("unique count site", "3\n"),
        ("unique count ids", "4\n"),
        ("records max users", "200001\n"),
        ("records aggregate users", "200002\n"),
        ("hash get cities 17", "Malmö\n"),
        ("hash len cities", "2\n"),
        ("sharded-set len seen", "5\n"),
        ("sharded-set members paid", "999\n"),
    ] {
        assert_eq!(on(store, line).exits(0), answer, "{line} on {store}");
    }
}

/// A server of the memory store, on a socket in a folder; killed when it is dropped.
struct Memory(Child, String);

impl Memory {
    fn start(folder: &Path) -> Memory {
        let socket = folder.join("memory.socket");
        let child = larder(["serve", "-s"]).arg(&socket).spawn().unwrap();
        until("the server", || UnixStream::connect(&socket).is_ok());
        Memory(child, format!("memcached+unix://{}", socket.display()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Moves all of one store to others, one after the other, and asks for it in each.
fn moves_along(folder: &Path, first: &str, others: &[String]) {
    make(first);
    assert_made(first);
    let mut from = first.to_owned();
    for (step, to) in others.iter().enumerate() {
        let dump = folder.join(format!("{step}.dump"));
        let said = on_file(&from, "export", &dump).exits(0);
        assert!(said.contains(" items, "), "{said}");
        let said = on_file(to, "import", &dump).exits(0);
        assert!(said.contains(" 0 there already, 0 over, 0 refused"), "{said}");
        assert_made(to);
        let again = on_file(to, "import", &dump).exits(0);
        assert!(again.starts_with("0 written, "), "what is there stays: {again}");
        from = to.clone();
    }
    assert_made(first);
    others.iter().for_each(|other| change(other));
}

#[test]
fn every_structure_moves_from_store_to_store() {
    let folder = tempfile::tempdir().unwrap();
    let memcached = Memcached::start(Version::New, &[]);
    let redis = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let others = [memcached.url(), redis.url(), file_store(folder.path(), "last")];
    moves_along(folder.path(), &file_store(folder.path(), "first"), &others);
}

#[test]
fn every_structure_moves_from_a_redis_that_keeps_it_natively() {
    let folder = tempfile::tempdir().unwrap();
    let from = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let (other, memcached) =
        (RedisServer::start(RedisVersion::Valkey, &RedisOptions::new()), Memcached::start(Version::New, &[]));
    let memory = Memory::start(folder.path());
    let others = [memory.1.clone(), other.url(), file_store(folder.path(), "last"), memcached.url()];
    moves_along(folder.path(), &from.url(), &others);
    change(&from.url());
}

#[test]
fn every_structure_moves_from_a_redis_cluster_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = [RedisVersion::Redis8, RedisVersion::Redis7].map(RedisCluster::start);
    let others = [file_store(folder.path(), "between"), to.url(), file_store(folder.path(), "last")];
    moves_along(folder.path(), &from.url(), &others);
    change(&from.url());
}

/// What a memcached answers to a line.
fn ask_memcached(server: &Memcached, line: &str) -> String {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// Three memcacheds, and a store over them.
fn fleet() -> ([Memcached; 3], String) {
    let servers = [(); 3].map(|()| Memcached::start(Version::New, &[]));
    let hosts = servers.each_ref().map(|server| server.addr().to_string());
    (servers, format!("memcached://{}", hosts.join(",")))
}

/// How a counter of three copies is exported, imported and read, where some of the three servers came back empty.
fn moves_a_counter_of_copies(flushed: &[usize]) -> [Done; 3] {
    let folder = tempfile::tempdir().unwrap();
    let (servers, from) = fleet();
    on(&from, "counter add hits 5 --copies 3").exits(0);
    on(&from, "counter add hits 37").exits(0);
    flushed.iter().for_each(|&at| assert_eq!(ask_memcached(&servers[at], "flush_all"), "OK\r\n"));
    let (to, dump) = (file_store(folder.path(), "to"), folder.path().join("all.dump"));
    let exported = on_file(&from, "export", &dump);
    let imported = on_file(&to, "import", &dump);
    let got = on(&to, "counter get hits");
    assert_eq!(on(&to, "counter add hits 1").code(), got.code());
    [exported, imported, got]
}

#[test]
fn a_counter_with_copies_moves_as_one_without_also_where_a_server_came_back_empty() {
    // A manifest, and 16 slots.
    for flushed in [&[][..], &[0], &[1], &[2]] {
        let [exported, imported, got] = moves_a_counter_of_copies(flushed);
        assert!(exported.exits(0).starts_with("17 items, "), "{flushed:?}: {exported:?}");
        assert_eq!(imported.exits(0), "17 written, 0 there already, 0 over, 0 refused\n", "{flushed:?}");
        assert_eq!(got.exits(0), "42\n", "{flushed:?}");
    }
    let [exported, _, got] = moves_a_counter_of_copies(&[0, 1]);
    exported.exits(8);
    assert!(exported.stderr.contains("16 keys were left out"), "{}", exported.stderr);
    assert!(exported.stderr.contains("this is not what a counter has here"), "{}", exported.stderr);
    got.fails(4, "lost");
}

#[test]
fn every_structure_moves_from_several_servers_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let ((_servers, from), (_others, to)) = (fleet(), fleet());
    moves_along(folder.path(), &from, &[to, file_store(folder.path(), "last")]);
}

#[test]
fn a_native_structure_is_gone_on_with_where_its_export_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let value = "x".repeat(20_000);
    let fields: String = (0..2_000).map(|n| format!("{n}\t{n}{value}\n")).collect();
    on_with_input(&redis.url(), "hash set large -", fields.as_bytes()).exits(0);
    on(&redis.url(), "counter add views 100 --fast").exits(0);
    let dump = folder.path().join("all.dump");
    let mut child = larder(["export"]).arg(&dump).env("LARDER_STORE", redis.url()).spawn().unwrap();
    until("some of the dump", || std::fs::metadata(&dump).is_ok_and(|file| file.len() > 1 << 20));
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was done before it was killed");
    let said = finish(larder(["--json", "export", "--resume"]).arg(&dump).env("LARDER_STORE", redis.url())).json();
    assert!(said["known"].as_u64() > Some(0), "{said}");
    let to = file_store(folder.path(), "to");
    on_file(&to, "import", &dump).exits(0);
    assert_eq!(on(&to, "hash len large").exits(0), "2000\n");
    for n in [0, 999, 1_999] {
        assert_eq!(on(&to, &format!("hash get large {n}")).exits(0), format!("{n}{value}\n"));
    }
    assert_eq!(on(&to, "counter get views").exits(0), "100\n");
}

#[test]
fn an_export_is_gone_on_with_by_where_the_store_is_not_by_how_it_describes_itself() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("all.dump");
    let [one, two] = [(); 2].map(|()| RedisServer::start(RedisVersion::Redis8, &RedisOptions::new()));
    on(&one.url(), "set add tags red").exits(0);
    on_file(&one.url(), "export", &dump).exits(0);
    let whole = std::fs::read(&dump).unwrap();
    let cut = || std::fs::write(&dump, &whole[..whole.len() - 5]).unwrap();
    cut();
    on_file(&two.url(), "export --resume", &dump).fails(2, "items of both would be in it");
    on_file(&format!("{}/1", one.url()), "export --resume", &dump).fails(2, "items of both would be in it");
    // It has a replica now, and says so.
    let _replica = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new().replica_of(one.addr()));
    until("a replica", || one.info("replication", "connected_slaves") == "1");
    on_file(&one.url(), "export --resume", &dump).exits(0);
}

/// The only key of a Redis that this pattern fits.
fn key_of(redis: &RedisServer, pattern: &str) -> Vec<u8> {
    match redis.command(&["KEYS", pattern]) {
        Value::Array(keys) => match &keys[..] {
            [Value::Bulk(key)] => key.to_vec(),
            keys => panic!("{pattern}: {keys:?}"),
        },
        other => panic!("{pattern}: {other:?}"),
    }
}

#[test]
fn what_a_native_structure_has_lost_is_told_and_never_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    for line in [
        "counter add views 100 --fast",
        "counter add gone 100 --fast",
        "sharded-set add seen --dense 1000 --expected 1000 1 2",
        "hash set cities --dense 1000 --expected 1000 1 Lund",
        "unique add site ann --expected 10",
        "records bits active 3 --on",
        "records bits other 3 --on",
        "counter add whole 7 --fast",
    ] {
        on(&redis.url(), line).exits(0);
    }
    redis.command(&[b"SET".to_vec(), key_of(&redis, "L.views.n.*"), b"text".to_vec()]);
    redis.command(&[b"DEL".to_vec(), key_of(&redis, "L.gone.n.*")]);
    redis.command(&[b"SREM".to_vec(), key_of(&redis, "L.seen.d.*-0"), b"-2147483648".to_vec()]);
    redis.command(&[b"HDEL".to_vec(), key_of(&redis, "L.cities.h.*-0"), b"-2147483648".to_vec()]);
    redis.command(&[b"SREM".to_vec(), key_of(&redis, "L.site.u.*-0"), b"-2147483648".to_vec()]);
    redis.command(&[b"DEL".to_vec(), key_of(&redis, "L.active.r.*.highest")]);
    redis.command(&[b"SETRANGE".to_vec(), key_of(&redis, "L.other.r.*.s0"), b"0".to_vec(), vec![1]]);
    let dump = folder.path().join("all.dump");
    let done = on_file(&redis.url(), "export", &dump);
    done.exits(8);
    // Of `other` only the incarnation is another: that is told by its own list, there as here.
    assert!(done.stderr.contains("5 keys were left out"), "{}", done.stderr);
    for told in ["views", "seen", "cities", "site", "active"] {
        assert!(done.stderr.contains(&format!("{told:?}: this is not what ")), "{told}: {}", done.stderr);
    }
    let to = file_store(folder.path(), "to");
    on_file(&to, "import", &dump).exits(0);
    for line in [
        "counter get views",
        "counter get gone",
        "sharded-set members seen",
        "hash entries cities",
        "unique count site",
        "records bits active 3",
        "records bits other 3",
    ] {
        on(&to, line).fails(4, "lost");
    }
    assert_eq!(on(&to, "counter get whole").exits(0), "7\n");
}

#[test]
fn a_number_that_begins_as_an_item_does_is_told_from_one() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let item = |value: &[u8]| [b"\xc1\0\0\0\0\0\0\0\x01", value].concat();
    let generation = 0xc102_0304_0506_0708_u64;
    for (name, layout) in [("native", 3), ("digits", 1)] {
        let manifest = [&b"LRD\x01\x03"[..], &[layout, 1, 0], &generation.to_le_bytes(), &[1]].concat();
        let key = |rest: &str| format!("L.{name}.{rest}").into_bytes();
        redis.command(&[b"SET".to_vec(), key("m"), item(&manifest)]);
        let number = (1u64 << 62) + 42;
        let value = match layout {
            3 => [generation.to_be_bytes(), number.to_be_bytes()].concat(),
            _ => item(number.to_string().as_bytes()),
        };
        redis.command(&[b"SET".to_vec(), key(&format!("n.{generation:016x}.0")), value]);
        assert_eq!(on(&redis.url(), &format!("counter get {name}")).exits(0), "42\n");
    }
    let dump = folder.path().join("all.dump");
    let done = on_file(&redis.url(), "--json --trace export", &dump);
    done.exits(0);
    assert_eq!(done.round_trips(), 3, "the items, the manifests of what may be native, and what is");
    let to = file_store(folder.path(), "to");
    on_file(&to, "import", &dump).exits(0);
    for name in ["native", "digits"] {
        assert_eq!(on(&to, &format!("counter get {name}")).exits(0), "42\n", "{name}");
    }
}

#[test]
fn a_pipe_carries_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (file_store(folder.path(), "from"), file_store(folder.path(), "to"));
    make_some(&from);
    let done = on(&from, "export -");
    assert_eq!(done.code(), 0);
    let said = on_with_input(&to, "--json import -", &done.stdout).json();
    assert_eq!(said["kept"], 0);
    assert_some(&to);
    let cut = &done.stdout[..done.stdout.len() - 3];
    let failed = on_with_input(&to, "import -", cut);
    failed.fails(4, "it was cut short");
    assert!(failed.stderr.contains("go on with --skip-blocks "), "{}", failed.stderr);
}

/// Had it read them again, what they hold would have been there already.
#[test]
fn an_import_of_a_pipe_that_broke_goes_on_behind_the_blocks_that_it_named() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to, rest) =
        (file_store(folder.path(), "from"), file_store(folder.path(), "to"), file_store(folder.path(), "rest"));
    make_some(&from);
    let fields: String = (0..100).map(|n| format!("{n}\t{n}{}\n", "x".repeat(20_000))).collect();
    on_with_input(&from, "hash set large -", fields.as_bytes()).exits(0);
    let dump = on(&from, "export -").stdout;
    let failed = on_with_input(&to, "import -", &dump[..dump.len() * 2 / 3]);
    failed.fails(4, "it was cut short");
    let number_after = |text: &str, word: &str| {
        let from = text.find(word).unwrap_or_else(|| panic!("{word:?} is not in {text}")) + word.len();
        text[from..].chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
    };
    let skipped = number_after(&failed.stderr, "go on with --skip-blocks ");
    assert!(skipped > 1, "{}", failed.stderr);
    let words = ["import", "-", "--skip-blocks", &skipped.to_string()].join(" ");
    let on_rerun = on_with_input(&to, &format!("--json {words}"), &dump).json();
    assert_eq!((&on_rerun["kept"], &on_rerun["refused"]), (&0.into(), &0.into()), "{on_rerun}");
    let written = number_after(&failed.stderr[..failed.stderr.find(" written").unwrap()], "error: ");
    let all = on_with_input(&rest, "--json import -", &dump).json();
    assert_eq!(written + on_rerun["stored"].as_u64().unwrap(), all["stored"].as_u64().unwrap(), "{all}");
    assert_eq!(on_rerun["blocks"], all["blocks"]);
    assert_some(&to);
    assert_eq!(on(&to, "hash entries large").sorted_lines(), on(&from, "hash entries large").sorted_lines());
}

/// What is wrong with a dump is wrong with no store, and what was asked for is done or refused.
#[test]
fn a_dump_that_is_at_fault_is_told_from_a_store_and_no_option_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = file_store(folder.path(), "store");
    make_some(&store);
    // Of several blocks, the last of which are damaged.
    let fields: String = (0..100).map(|n| format!("{n}\t{n}{}\n", "x".repeat(20_000))).collect();
    on_with_input(&store, "hash set large -", fields.as_bytes()).exits(0);
    let dump = on(&store, "export -").stdout;
    let damaged = dump.len() * 3 / 4;
    let flipped: Vec<u8> = dump.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == damaged)).collect();
    let other = [b"LARDER-DUMP 2\n", &dump[14..]].concat();
    for (bytes, code, said) in
        [(&flipped[..], 4, "the dump is damaged"), (b"a text", 4, "this is no dump"), (&other, 8, "of another version")]
    {
        let failed = on_with_input(&store, "import -", bytes);
        failed.fails(code, said);
        for wrong in ["larder drop", "the store's files"] {
            assert!(!failed.stderr.contains(wrong), "{}", failed.stderr);
        }
    }
    let over = on_with_input(&store, "import - --skip-blocks 1000", &dump);
    over.fails(2, "1000 blocks are to be left out, and the dump has ");
    assert!(!over.stderr.contains("go on"), "{}", over.stderr);
    // What was to be left out is done, wherever in it the dump ends.
    let within = on_with_input(&store, "import - --skip-blocks 1000", &flipped);
    within.fails(4, "with a whole copy of the dump go on with --skip-blocks 1000");
    on(&store, "export - --resume").fails(2, "standard output cannot be gone on with");
}

/// A store that cannot say how long items live is refused before there is a file.
#[test]
fn an_export_that_is_refused_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = ClassicFake::start();
    let dump = folder.path().join("all.dump");
    on(&server.url(), &format!("export {}", dump.display())).fails(8, "how long its items live");
    assert!(!dump.exists());
}

/// What a command did, and the most memory that it took.
fn peak_of(command: &mut Command) -> (Done, u64) {
    let child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    // Who has ended, and is not waited for yet, takes none.
    let peak = move || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024)
    };
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        while let Some(bytes) = peak() {
            most = bytes;
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        most
    });
    (wait(child), watch.join().unwrap())
}

/// Writes a dump of so many items with values of so many bytes.
fn write_dump(path: &Path, items: usize, value_bytes: usize) {
    let mut writer = DumpWriter::new(std::fs::File::create_new(path).unwrap(), &Head::now("a test")).unwrap();
    for number in 0..items {
        let key = larder::Key::new(format!("item{number}")).unwrap();
        let value = number.to_le_bytes().repeat(value_bytes / 8).into();
        writer.push(&DumpItem { key, flags: 0, expiry_ms: None, value }).unwrap();
    }
    writer.finish().unwrap();
}

/// Imports a dump of so many items with values of so many bytes into a store, exports it again, and gives the most memory that each took.
fn peaks(store: &str, folder: &Path, items: usize, value_bytes: usize) -> [u64; 2] {
    let [from, to] = ["from", "to"].map(|name| folder.join(format!("{name}.{items}.dump")));
    write_dump(&from, items, value_bytes);
    let peak = |line: &str, path: &Path, said: &str| {
        let (done, peak) = peak_of(larder([line]).arg(path).env("LARDER_STORE", store));
        assert_eq!(done.exits(0), said);
        assert!(peak > 1_000_000, "{peak} bytes is no command's");
        peak
    };
    let written = format!("{items} written, 0 there already, 0 over, 0 refused\n");
    let read = format!("{items} items, {} bytes of values\n", items * value_bytes);
    let peaks = [peak("import", &from, &written), peak("export", &to, &read)];
    println!("{peaks:?} bytes of memory at the most, of {} of values in {store}", items * value_bytes);
    peaks
}

#[test]
fn an_import_and_an_export_of_a_hundred_megabytes_take_less_than_half_of_that_in_memory() {
    for (items, value_bytes) in [(5_000, 20_000), (100, 1_000_000)] {
        let folder = tempfile::tempdir().unwrap();
        let redis = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
        let most = peaks(&redis.url(), folder.path(), items, value_bytes);
        assert!(most.iter().all(|&bytes| bytes < 50_000_000), "{most:?} of {items} items");
    }
}

/// The engine has up to 320 MiB in memory that it has yet to write to tables, 64 MiB of them as a rule, and caches besides: what is imported here is more than all of that.
#[test]
fn files_are_imported_and_exported_in_less_memory_than_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let most = peaks(&file_store(folder.path(), "store"), folder.path(), 30_000, 20_000);
    assert!(most.iter().all(|&bytes| bytes < 550_000_000), "{most:?}");
}

#[test]
fn a_pipe_that_nobody_reads_and_a_file_that_cannot_be_read_are_not_the_stores_fault() {
    let folder = tempfile::tempdir().unwrap();
    let store = file_store(folder.path(), "store");
    make_some(&store);
    for line in ["export -", "backup -"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = finish(larder(line.split(' ')).env("LARDER_STORE", &store).stdout(writer));
        assert_eq!((done.code(), done.stderr.as_str()), (141, ""), "{line}");
    }
    for line in ["import", "--store file:none restore"] {
        let done = on_file(&store, line, folder.path());
        done.fails(2, "the dump cannot be read");
        assert!(!done.stderr.contains("is the server up"), "{}", done.stderr);
    }
    let done =
        finish(larder(["set", "add", "t", "-"]).env("LARDER_STORE", &store).stdin(std::fs::File::open("/").unwrap()));
    done.fails(2, "standard input cannot be read");
}

#[test]
fn an_export_is_not_written_over_what_is_there_and_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (store, dump) = (file_store(folder.path(), "store"), folder.path().join("all.dump"));
    make_some(&store);
    on_file(&store, "export", &dump).exits(0);
    on_file(&store, "export", &dump).fails(2, "is there already");
    on_file(&store, "export --resume", &dump).fails(2, "is whole");
    let whole = std::fs::read(&dump).unwrap();
    std::fs::write(&dump, &whole[..whole.len() - 5]).unwrap();
    let done = on_file(&store, "export --resume", &dump);
    done.exits(0);
    assert!(done.stderr.contains("is gone on with: it was begun of "), "{}", done.stderr);
    std::fs::write(&dump, &whole[..whole.len() - 5]).unwrap();
    let other = file_store(folder.path(), "other");
    make_some(&other);
    let refused = on_file(&other, "export --resume", &dump);
    refused.fails(2, "items of both would be in it");
    assert!(refused.stderr.contains("--any-source"), "{}", refused.stderr);
    on_file(&other, "export --resume --any-source", &dump).exits(0);
    // A secret, an option and another way to the folder are no other store.
    std::fs::write(&dump, &whole[..whole.len() - 5]).unwrap();
    on_file(&format!("{store}/../store?sync=never"), "export --resume", &dump).exits(0);
    std::fs::write(&dump, &whole).unwrap();
    // A backup is of one moment: what is there now does not belong to it.
    let backup = folder.path().join("backup.dump");
    on_file(&store, "backup", &backup).exits(0);
    let moment = std::fs::read(&backup).unwrap();
    std::fs::write(&backup, &moment[..moment.len() - 5]).unwrap();
    on_file(&store, "export --resume", &backup).fails(2, "a backup of another moment");
    let to = file_store(folder.path(), "to");
    on_file(&to, "import", &dump).exits(0);
    assert_some(&to);
    on_file(&store, "import", &folder.path().join("none")).fails(2, "cannot be opened");
    std::fs::write(&dump, "hello").unwrap();
    on_file(&store, "import", &dump).fails(4, "is no dump");
}

#[test]
fn items_that_the_store_does_not_take_are_named_and_the_others_go() {
    let folder = tempfile::tempdir().unwrap();
    let (store, dump) = (file_store(folder.path(), "store"), folder.path().join("all.dump"));
    make_some(&store);
    let put = larder(["table", "put", "large", "key"]).arg("x".repeat(100_000)).env("LARDER_STORE", &store).status();
    assert!(put.unwrap().success());
    on_file(&store, "export", &dump).exits(0);
    let server = Memcached::start(Version::New, &["-I", "64k", "-o", "slab_chunk_max=32"]);
    let done = on_file(&server.url(), "import", &dump);
    let said = done.exits(8);
    assert!(said.contains(", 1 refused"), "{said}");
    assert!(done.stderr.contains("65536") || done.stderr.contains("limit"), "{}", done.stderr);
    assert_some(&server.url());
}

#[test]
fn what_others_keep_on_a_redis_is_named_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    on(&redis.url(), "counter add hits 5").exits(0);
    redis.command(&["SET", "theirs", "text"]);
    redis.command(&["SADD", "their set", "member"]);
    let dump = folder.path().join("all.dump");
    let done = on_file(&redis.url(), "export", &dump);
    done.exits(8);
    assert!(done.stderr.contains("2 keys were left out"), "{}", done.stderr);
    let to = file_store(folder.path(), "to");
    on_file(&to, "import", &dump).exits(0);
    assert_eq!(on(&to, "counter get hits").exits(0), "5\n");
}

#[test]
fn a_backup_is_restored_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (file_store(folder.path(), "from"), file_store(folder.path(), "to"));
    let dump = folder.path().join("monday.dump");
    make_some(&from);
    // Somebody else's.
    let beside = folder.path().join("monday.dump.new");
    std::fs::write(&beside, "mine").unwrap();
    on_file(&from, "backup", &dump).exits(0);
    on_file(&from, "backup", &dump).fails(2, "is there already");
    assert_eq!(std::fs::read(&beside).unwrap(), b"mine");
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<HashSet<_>>(), ["from", "monday.dump", "monday.dump.new"].map(Into::into).into());
    on_file(&to, "restore", &dump).exits(0);
    on_file(&to, "restore", &dump).fails(2, "holds a store");
    assert_some(&to);
    let checked = on(&to, "--json check").json();
    assert_eq!(checked["damaged"], 0);
    assert!(checked["items"].as_u64().unwrap() > 8);
    on_file("redis://127.0.0.1:1", "backup", &folder.path().join("x")).fails(2, "is no durable store");
    on("memcached://127.0.0.1:1", "check").fails(2, "larder export");
}

/// Of a path that was mistyped nothing is told, and nothing is made there.
#[test]
fn what_only_reads_a_store_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    let mistyped = folder.path().join("mistyped");
    let (store, dump) = (file_store(folder.path(), "mistyped"), folder.path().join("all.dump"));
    let no_store = format!("{} holds no store, and none is to be made there", mistyped.display());
    for line in ["check", "check --json", "ls", "memory report", "memory advise", "top"] {
        on(&store, line).fails(2, &no_store);
        assert!(!mistyped.exists(), "{line}");
    }
    for line in ["backup", "export"] {
        on_file(&store, line, &dump).fails(2, &no_store);
        assert!(!mistyped.exists() && !dump.exists(), "{line}");
    }
    // Nor in a folder that is there.
    std::fs::create_dir(&mistyped).unwrap();
    on(&store, "check").fails(2, &no_store);
    assert_eq!(std::fs::read_dir(&mistyped).unwrap().count(), 0);
    on(&format!("{store}?create=yes"), "check").exits(0);
    on(&store, "check").exits(0);
    // What writes makes one, unless it is told not to.
    let other = file_store(folder.path(), "other");
    on(&format!("{other}?create=no"), "counter add hits").fails(2, "holds no store");
    on(&other, "counter add hits").exits(0);
    on(&other, "ls").exits(0);
    // A witness knows that there was one.
    let witnessed = format!("{other}?witness={}", folder.path().join("witness").display());
    on(&witnessed, "counter add hits").exits(0);
    std::fs::remove_dir_all(folder.path().join("other")).unwrap();
    on(&witnessed, "check").fails(4, "there is no store, and its witness");
    assert!(!folder.path().join("other").exists());
}

/// What a backup, or a tail, that was killed left of its file is removed by the next one; what another writes stays.
#[test]
fn what_is_left_of_a_file_that_is_not_whole_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (store, dump) = (file_store(folder.path(), "store"), folder.path().join("all.dump"));
    on(&store, "log put audit signed-in").exits(0);
    let half = |name: &str| folder.path().join(name);
    let (left, held, cursor) =
        (half("all.dump.0123456789abcdef.new"), half("all.dump.fedcba9876543210.new"), half("c.0123456789abcdef.new"));
    [&left, &held, &cursor].into_iter().for_each(|path| std::fs::write(path, "half").unwrap());
    let writer = std::fs::File::open(&held).unwrap();
    writer.lock().unwrap();
    on_file(&store, "backup", &dump).exits(0);
    assert_eq!([&left, &held, &cursor].map(|path| path.exists()), [false, true, true]);
    on_file(&store, "log tail audit --cursor", &half("c")).exits(0);
    assert_eq!([&left, &held, &cursor].map(|path| path.exists()), [false, true, false]);
}

#[test]
fn damage_is_told_by_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let store = file_store(folder.path(), "store");
    make_some(&store);
    let journals = std::fs::read_dir(folder.path().join("store").join("engine")).unwrap();
    let journal =
        journals.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|it| it == "jnl"));
    let journal = journal.unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[400] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    on(&store, "check").fails(4, ".jnl at byte ");
}

/// What stands under keys that none of ours can be is left out, and told: hash tags are the rule on a cluster.
#[test]
fn keys_of_other_programs_that_no_item_can_have_are_counted_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    on(&server.url(), "counter add hits 5").exits(0);
    for key in ["user:{1}", "{user:1}.cart", &"x".repeat(251)] {
        server.command(&["SET", key, "v"]);
    }
    let done = on_file(&server.url(), "export", &folder.path().join("all.dump"));
    done.exits(8);
    for part in ["3 keys were left out", "\"user:{1}\" is no key of an item", "\"{user:1}.cart\"", "(251 bytes)"] {
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }
}
