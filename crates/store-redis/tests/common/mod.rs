//! Short ways to say things.
#![allow(dead_code, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{
    Arith, Batch, Cas, Ctx, Error, ErrorKind, Initial, Key, Op, PutMode, Replies, Reply, Result, Store, StoreExt, Ttl,
    Verb, Want,
};
use larder_store_redis::{Config, RedisStore};
use tokio::net::{TcpListener, TcpStream};

/// The server is there: a dial that a busy machine let wait too long is tried again.
pub async fn open(url: &str) -> RedisStore {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match try_open(url).await {
            Ok(store) => return store,
            Err(error) if error.kind() == ErrorKind::Config || Instant::now() > deadline => panic!("{url}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

pub async fn try_open(url: &str) -> Result<RedisStore> {
    RedisStore::connect(Config::from_url(url)?).await
}

pub async fn refused(url: &str) -> Error {
    try_open(url).await.expect_err("it was opened")
}

pub fn key(name: impl AsRef<[u8]>) -> Key {
    Key::new(name.as_ref().to_vec()).unwrap()
}

pub fn put(name: &str, mode: PutMode, value: impl Into<Bytes>) -> Op {
    Op::put(key(name), mode, value, Ttl::Never)
}

pub async fn one(store: &RedisStore, op: Op) -> Result<Reply> {
    store.run_one(Ctx::default(), op).await
}

pub async fn all(store: &RedisStore, ops: impl IntoIterator<Item = Op>) -> Replies {
    store.run(Ctx::default(), ops.into_iter().collect::<Batch>()).await
}

pub async fn set(store: &RedisStore, name: &str, value: impl Into<Bytes>) {
    assert_eq!(one(store, put(name, PutMode::Set, value)).await.unwrap(), Reply::Stored);
}

pub async fn value(store: &RedisStore, name: &str) -> Option<Bytes> {
    let reply = one(store, Op::get(key(name), Want::VALUE)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    reply.into_item().map(|item| item.value)
}

/// Waits until ops are answered again.
pub async fn wait_until_up(store: &RedisStore) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = one(store, Op::get(key("up?"), Want::empty())).await {
        assert!(Instant::now() < deadline, "it does not come back: {error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Every op that a store can be asked for, on one key.
pub fn every_op(name: &str, cas: Cas) -> Vec<Op> {
    let modes = [PutMode::Set, PutMode::Replace, PutMode::Append, PutMode::Prepend, PutMode::Cas(cas)];
    let mut ops: Vec<Op> = modes.into_iter().map(|mode| put(name, mode, "1")).collect();
    ops.extend([Want::VALUE, Want::empty(), Want::all(), Want::CAS].map(|want| Op::get(key(name), want)));
    ops.extend([Op::delete(key(name)), Op::delete_if(key(name), cas), Op::touch(key(name), Ttl::Never)]);
    let initial = Some(Initial { value: 1, ttl: Ttl::Never });
    ops.push(Op::arith(key(name), Arith::Decr(1)));
    ops.push(Op::new(key(name), Verb::Arith { arith: Arith::Incr(1), initial }));
    ops.push(Op::get_range(key(name), 0, 4));
    ops.push(Op::put_range(key(name), 0, "1"));
    ops
}

/// A token of the item `ours`, which is there from then on.
pub async fn a_cas(store: &RedisStore) -> Cas {
    set(store, "ours", "v").await;
    cas_of(store, "ours").await
}

pub async fn cas_of(store: &RedisStore, name: &str) -> Cas {
    one(store, Op::get(key(name), Want::CAS)).await.unwrap().into_item().and_then(|item| item.cas).unwrap()
}

/// An address by which the first connection reaches a server, and the number of all others, to which something else is done.
pub async fn only_the_first(
    server: SocketAddr,
    mut others: impl FnMut(TcpStream) + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, dials) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let dialled = dials.clone();
    tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(server).await.unwrap();
            _ = tokio::io::copy_bidirectional(&mut first, &mut server).await;
        });
        while let Ok((other, _)) = listener.accept().await {
            dialled.fetch_add(1, Ordering::Relaxed);
            others(other);
        }
    });
    (addr, dials)
}
