//! A store in a folder that is damaged, or full, behind the server: told, never a miss, and nothing acknowledged goes.

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use larder_core::list::{List, Listed};
use larder_core::{Ctx, ErrorKind, Key, Op, PutMode, StoreExt, Ttl, Want};
use larder_server::{DurableOptions, Server};
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::sessions::{ask, connect};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_no_value_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let server = common::start_in_folder(folder.path());
    assert_eq!(answer(&server, "set k 0 0 3\r\nold"), "STORED\r\nMN\r\n");
    drop(server);
    let store = DurableOptions::new(folder.path()).reserve_bytes(u64::MAX).open().unwrap();
    let config = larder_server::Config { listen: common::anywhere(), threads: 2, ..Default::default() };
    let server = Server::start(larder_server::DurableEngine::new(store), config).unwrap();
    for request in ["set k 0 0 3\r\nnew", "ms k 3\r\nnew", "ms k 3 MA\r\nnew", "incr k 1\r\ngat 9 k", "touch k 9"] {
        let reply = answer(&server, request);
        assert!(
            reply.contains("SERVER_ERROR the store is full: ") || request.starts_with("incr"),
            "{request}: {reply}"
        );
        assert_eq!(answer(&server, "get k"), "VALUE k 0 3\r\nold\r\nEND\r\nMN\r\n", "after {request}");
    }
    for dialect in ["classic", "meta"] {
        let store = client(server.addrs()[0], dialect).await;
        let set = Op::put(Key::new("k").unwrap(), PutMode::Set, "new", Ttl::Never);
        let error = store.run_one(Ctx::default(), set).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Full, false), "{dialect}: {error}");
    }
}
