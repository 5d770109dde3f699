//! What every test here uses.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{
    Arith, Batch, Cas, Ctx, Error, Initial, Item, Key, Op, PutMode, Replies, Reply, Result, Store, StoreExt, Ttl, Verb,
    Want,
};
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::servers::{Memcached, Version};

pub const ALL: Want = Want::VALUE.union(Want::CAS).union(Want::FLAGS).union(Want::TTL);

/// Every dialect, by the name that a URL gives it.
pub const EVERY: [&str; 4] = ["auto", "classic", "meta13", "meta"];

/// A server and a store for each release and dialect.
pub async fn each_of(dialects: &[&str], args: &[&str]) -> Vec<(String, Memcached, MemcachedStore)> {
    let mut stores = Vec::new();
    for version in Version::ALL {
        for dialect in dialects {
            let server = Memcached::start(version, args);
            let store = open(&format!("{}?dialect={dialect}", server.url())).await;
            stores.push((format!("{version:?} {dialect}"), server, store));
        }
    }
    stores
}

pub async fn open(url: &str) -> MemcachedStore {
    match MemcachedStore::connect(config(url)).await {
        Ok(store) => store,
        Err(error) => panic!("{url}: {error}"),
    }
}

pub async fn refused(url: &str) -> Error {
    match MemcachedStore::connect(config(url)).await {
        Ok(_) => panic!("{url}: connected"),
        Err(error) => error,
    }
}

pub fn config(url: &str) -> Config {
    Config::from_url(url).unwrap()
}

pub fn key(bytes: impl AsRef<[u8]>) -> Key {
    Key::new(Bytes::copy_from_slice(bytes.as_ref())).unwrap()
}

pub fn seconds(seconds: u64) -> Ttl {
    Ttl::After(Duration::from_secs(seconds))
}

pub async fn one(store: &MemcachedStore, op: Op) -> Result<Reply> {
    store.run_one(Ctx::default(), op).await
}

/// One op that must have an outcome.
pub async fn ok(store: &MemcachedStore, op: Op) -> Reply {
    one(store, op).await.unwrap()
}

pub async fn all(store: &MemcachedStore, ops: impl IntoIterator<Item = Op>) -> Replies {
    store.run(Ctx::default(), ops.into_iter().collect::<Batch>()).await
}

pub async fn set(store: &MemcachedStore, k: impl AsRef<[u8]>, value: impl Into<Bytes>) {
    assert_eq!(put(store, PutMode::Set, k, value).await, Reply::Stored);
}

pub async fn put(store: &MemcachedStore, mode: PutMode, k: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Reply {
    ok(store, Op::put(key(k), mode, value, Ttl::Never)).await
}

pub async fn item(store: &MemcachedStore, k: impl AsRef<[u8]>) -> Option<Item> {
    ok(store, Op::get(key(k), ALL)).await.into_item()
}

pub async fn value(store: &MemcachedStore, k: impl AsRef<[u8]>) -> Option<Bytes> {
    ok(store, Op::get(key(k), Want::VALUE)).await.into_item().map(|item| item.value)
}

pub async fn token(store: &MemcachedStore, k: impl AsRef<[u8]>) -> Cas {
    item(store, k).await.unwrap().cas.unwrap()
}

pub fn incr(k: impl AsRef<[u8]>, by: u64, initial: Option<u64>) -> Op {
    let initial = initial.map(|value| Initial { value, ttl: Ttl::Never });
    Op::new(key(k), Verb::Arith { arith: Arith::Incr(by), initial })
}

pub fn decr(k: impl AsRef<[u8]>, by: u64) -> Op {
    Op::arith(key(k), Arith::Decr(by))
}

/// Waits until the store's server answers again.
pub async fn wait_until_up(store: &MemcachedStore) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = one(store, Op::get(key("up"), Want::empty())).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What a server answers to raw bytes.
pub fn raw(addr: SocketAddr, request: &[u8], reply_bytes: usize) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = vec![0; reply_bytes];
    stream.read_exact(&mut reply).unwrap();
    String::from_utf8(reply).unwrap()
}

/// All that a server answers until it closes the connection, or nothing more comes.
pub fn raw_all(addr: SocketAddr, request: &[u8]) -> (String, bool) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = Vec::new();
    let is_closed = match stream.read_to_end(&mut reply) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    };
    (String::from_utf8(reply).unwrap(), is_closed)
}

/// What a server answers to raw requests that leave the connection in step.
pub fn says(addr: SocketAddr, requests: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(format!("{requests}mn\r\n").as_bytes()).unwrap();
    let (mut reply, mut part) = (Vec::new(), [0; 4096]);
    while !reply.ends_with(b"MN\r\n") {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "{requests:?}: closed after {:?}", reply.escape_ascii().to_string());
        reply.extend_from_slice(&part[..count]);
    }
    reply.truncate(reply.len() - 4);
    String::from_utf8(reply).unwrap()
}
