//! One key under chained conditional writes: each write is conditional on the token that the last one left.
//!
//! A write and the read that tells what landed go out together, in one round trip: memcached's classic `cas` returns no
//! token, and its meta twin may delete the old item when it fails. The value must tell whose it is (an owner and a sequence),
//! so that the read tells a write that landed from one that did not, even when its reply was lost.

use bytes::Bytes;
use larder_core::{Batch, Cas, Ctx, Item, Key, Op, PutMode, Reply, Result, Route, StoreExt, StoreRef, Ttl, Want};

/// The place of a cell: its key, and the server that holds it.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) key: Key,
    pub(crate) route: Route,
}

/// What is known after a conditional write.
#[derive(Debug)]
pub(crate) struct Wrote {
    /// `Ok(true)`: it landed. `Ok(false)`: it did not, and never will. `Err`: with [`Effect::Unknown`](larder_core::Effect),
    /// it may have or may yet; `now` may tell.
    pub(crate) landed: Result<bool>,
    /// What the cell holds after it; `Ok(None)` is a miss.
    pub(crate) now: Result<Option<Item>>,
}

impl Cell {
    pub(crate) fn new(key: Key) -> Cell {
        Cell { key, route: Route::default() }
    }

    /// Reads the cell. **Round trips: 1.**
    pub(crate) async fn read(&self, store: &StoreRef, ctx: Ctx) -> Result<Option<Item>> {
        Ok(store.run_one(ctx, self.read_op()).await?.into_item())
    }

    /// The op that reads the cell with its token and remaining life.
    pub(crate) fn read_op(&self) -> Op {
        Op::get(self.key.clone(), Want::VALUE | Want::CAS | Want::TTL).routed(self.route.clone())
    }

    /// Writes the cell if it still has the token, and reads it back. **Round trips: 1.**
    pub(crate) async fn write(&self, store: &StoreRef, ctx: Ctx, cas: Cas, value: Bytes, ttl: Ttl) -> Wrote {
        self.put(store, ctx, PutMode::Cas(cas), value, ttl).await
    }

    /// Writes the cell if it is empty, and reads it back. **Round trips: 1.**
    pub(crate) async fn create(&self, store: &StoreRef, ctx: Ctx, value: Bytes, ttl: Ttl) -> Wrote {
        self.put(store, ctx, PutMode::Add, value, ttl).await
    }

    async fn put(&self, store: &StoreRef, ctx: Ctx, mode: PutMode, value: Bytes, ttl: Ttl) -> Wrote {
        let mut replies = store.run(ctx, self.put_ops(mode, value.clone(), ttl)).await.into_iter();
        let put = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let get = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        Wrote::new(&value, put, get)
    }

    /// The two ops of a write, for those who write several cells at once.
    pub(crate) fn put_ops(&self, mode: PutMode, value: Bytes, ttl: Ttl) -> Batch {
        let put = Op::put(self.key.clone(), mode, value, ttl).routed(self.route.clone());
        Batch::from_iter([put, self.read_op()])
    }
}

impl Wrote {
    /// Judges the two replies of a write of `value`.
    pub(crate) fn new(value: &Bytes, put: Result<Reply>, get: Result<Reply>) -> Wrote {
        let now = get.map(Reply::into_item);
        let is_there = matches!(&now, Ok(Some(item)) if item.value == value);
        let landed = match put {
            Ok(Reply::Stored) => Ok(true),
            // A lost reply, or an earlier try of the same write: the value itself tells.
            _ if is_there => Ok(true),
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        };
        Wrote { landed, now }
    }
}
