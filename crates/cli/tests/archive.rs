//! `larder export`, `import`, `backup`, `restore` and `check`.

mod common;

use std::path::Path;

use common::{Done, finish, larder, on, on_with_input};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

/// Runs a command on a store, with a path behind it.
fn on_file(store: &str, line: &str, path: &Path) -> Done {
    finish(larder(line.split_whitespace()).arg(path).env("LARDER_STORE", store))
}

fn file_store(folder: &Path, name: &str) -> String {
    format!("file:{}", folder.join(name).display())
}

/// Something of most kinds.
const MADE: [&str; 8] = [
    "counter add hits 5",
    "set add tags red green",
    "array push jobs sweep cook",
    "table put prices apple 3.20",
    "table put quotes pear 2 --ttl 1h",
    "queue push work one two",
    "log put audit signed-in",
    "unique add site ann bob",
];

/// How those are asked for, and what they answer.
const ASKED: [(&str, &str); 8] = [
    ("counter get hits", "5\n"),
    ("set has tags red", ""),
    ("array get jobs", "sweep\ncook\n"),
    ("table get prices apple", "3.20\n"),
    ("table get quotes pear", "2\n"),
    ("queue len work", "2\n"),
    ("log fetch audit --since 1h", "signed-in"),
    ("unique count site", "2\n"),
];

fn make(store: &str) {
    MADE.iter().for_each(|line| _ = on(store, line).exits(0));
}

fn assert_made(store: &str) {
    for (line, answer) in ASKED {
        let said = on(store, line).exits(0);
        assert!(said.contains(answer), "{line} on {store}: {said:?}");
    }
}

#[test]
fn every_structure_moves_from_store_to_store() {
    let folder = tempfile::tempdir().unwrap();
    let memcached = Memcached::start(Version::New, &[]);
    let redis = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let first = file_store(folder.path(), "first");
    make(&first);
    let mut from = first.clone();
    let on_the_way = [memcached.url(), redis.url(), file_store(folder.path(), "last")];
    for (step, to) in on_the_way.into_iter().enumerate() {
        let dump = folder.path().join(format!("{step}.dump"));
        let said = on_file(&from, "export", &dump).exits(0);
        assert!(said.contains(" items, "), "{said}");
        let said = on_file(&to, "import", &dump).exits(0);
        assert!(said.contains(" 0 there already, 0 over, 0 refused"), "{said}");
        assert_made(&to);
        let again = on_file(&to, "import", &dump).exits(0);
        assert!(again.starts_with("0 written, "), "what is there stays: {again}");
        from = to;
    }
    assert_made(&first);
}

#[test]
fn a_pipe_carries_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (file_store(folder.path(), "from"), file_store(folder.path(), "to"));
    make(&from);
    let done = on(&from, "export -");
    assert_eq!(done.code(), 0);
    let said = on_with_input(&to, "--json import -", &done.stdout).json();
    assert_eq!(said["kept"], 0);
    assert_made(&to);
    let cut = &done.stdout[..done.stdout.len() - 3];
    let failed = on_with_input(&to, "import -", cut);
    failed.fails(4, "it was cut short");
    assert!(failed.stderr.contains("go on with --skip-blocks "), "{}", failed.stderr);
}

#[test]
fn an_export_is_not_written_over_what_is_there_and_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (store, dump) = (file_store(folder.path(), "store"), folder.path().join("all.dump"));
    make(&store);
    on_file(&store, "export", &dump).exits(0);
    on_file(&store, "export", &dump).fails(2, "is there already");
    on_file(&store, "export --resume", &dump).fails(2, "is whole");
    let whole = std::fs::read(&dump).unwrap();
    std::fs::write(&dump, &whole[..whole.len() - 5]).unwrap();
    on_file(&store, "export --resume", &dump).exits(0);
    let to = file_store(folder.path(), "to");
    on_file(&to, "import", &dump).exits(0);
    assert_made(&to);
    on_file(&store, "import", &folder.path().join("none")).fails(2, "cannot be opened");
    std::fs::write(&dump, "hello").unwrap();
    on_file(&store, "import", &dump).fails(4, "is no dump");
}

#[test]
fn items_that_the_store_does_not_take_are_named_and_the_others_go() {
    let folder = tempfile::tempdir().unwrap();
    let (store, dump) = (file_store(folder.path(), "store"), folder.path().join("all.dump"));
    make(&store);
    let put = larder(["table", "put", "large", "key"]).arg("x".repeat(100_000)).env("LARDER_STORE", &store).status();
    assert!(put.unwrap().success());
    on_file(&store, "export", &dump).exits(0);
    let server = Memcached::start(Version::New, &["-I", "64k", "-o", "slab_chunk_max=32"]);
    let done = on_file(&server.url(), "import", &dump);
    let said = done.exits(8);
    assert!(said.contains(", 1 refused"), "{said}");
    assert!(done.stderr.contains("65536") || done.stderr.contains("limit"), "{}", done.stderr);
    assert_made(&server.url());
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
    make(&from);
    on_file(&from, "backup", &dump).exits(0);
    on_file(&from, "backup", &dump).fails(2, "is there already");
    assert!(!folder.path().join("monday.dump.new").exists());
    on_file(&to, "restore", &dump).exits(0);
    on_file(&to, "restore", &dump).fails(2, "holds a store");
    assert_made(&to);
    let checked = on(&to, "--json check").json();
    assert_eq!(checked["damaged"], 0);
    assert!(checked["items"].as_u64().unwrap() > 8);
    on_file("redis://127.0.0.1:1", "backup", &folder.path().join("x")).fails(2, "is no durable store");
    on("memcached://127.0.0.1:1", "check").fails(2, "larder export");
}

#[test]
fn damage_is_told_by_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let store = file_store(folder.path(), "store");
    make(&store);
    let journals = std::fs::read_dir(folder.path().join("store").join("engine")).unwrap();
    let journal =
        journals.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|it| it == "jnl"));
    let journal = journal.unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[400] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    on(&store, "check").fails(4, ".jnl at byte ");
}
