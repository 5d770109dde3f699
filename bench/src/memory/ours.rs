//! Ours, called directly, and as structures call it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Arith, Batch, Cas, Ctx, Item, Key, Op, PutMode, Reply, Run, StoreRef, Ttl, Want};
use larder_store_memory::MemoryStore;

use super::table::Table;

fn life(ttl: Option<Duration>) -> Ttl {
    ttl.map_or(Ttl::Never, Ttl::After)
}

/// `MemoryStore::direct`: borrowed bytes in, no futures.
pub(super) struct Direct {
    store: MemoryStore,
    /// The tokens of a store share their session.
    session: u64,
}

impl Direct {
    pub(super) fn new() -> Direct {
        let store = MemoryStore::new();
        let session = session(|key, mode| {
            _ = store.direct().put(key, mode, b"", 0, Ttl::Never);
            let item = store.direct().get(key, Want::CAS).ok().flatten();
            _ = store.direct().delete(key, None);
            item
        });
        Direct { store, session }
    }

    fn put(&self, key: &[u8], mode: PutMode, value: &[u8], ttl: Option<Duration>) -> bool {
        matches!(self.store.direct().put(key, mode, value, 0, life(ttl)), Ok(Reply::Stored))
    }
}

fn session(probe: impl FnOnce(&[u8], PutMode) -> Option<Item>) -> u64 {
    probe(b"session", PutMode::Set).and_then(|item| item.cas).map_or(0, |cas| cas.session)
}

impl Table for Direct {
    type Owned = Bytes;

    fn read<T>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.store.direct().read(key, |view| see(view.value)).ok().flatten()
    }

    fn get(&self, key: &[u8]) -> Option<Bytes> {
        Some(self.store.direct().get(key, Want::VALUE).ok().flatten()?.value)
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        Some(self.store.direct().get(key, Want::CAS).ok().flatten()?.cas?.token)
    }

    fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.put(key, PutMode::Set, value, ttl);
    }

    fn add(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> bool {
        self.put(key, PutMode::Add, value, ttl)
    }

    fn cas(&self, key: &[u8], version: u64, value: &[u8], ttl: Option<Duration>) -> bool {
        self.put(key, PutMode::Cas(Cas { token: version, session: self.session }), value, ttl)
    }

    fn append(&self, key: &[u8], tail: &[u8]) -> bool {
        self.put(key, PutMode::Append, tail, None)
    }

    fn incr(&self, key: &[u8], delta: u64) -> Option<u64> {
        match self.store.direct().arith(key, Arith::Incr(delta), None) {
            Ok(Reply::Number(number)) => Some(number),
            _ => None,
        }
    }

    fn delete(&self, key: &[u8]) -> bool {
        matches!(self.store.direct().delete(key, None), Ok(Reply::Deleted))
    }
}

/// `dyn Store`: an op is made for each call, key and value included, and its run is polled.
pub(super) struct Dyn {
    store: StoreRef,
    session: u64,
}

impl Dyn {
    pub(super) fn new() -> Dyn {
        let mut table = Dyn { store: Arc::new(MemoryStore::new()), session: 0 };
        table.session = session(|key, mode| {
            table.put(key, mode, b"", None);
            let item = table.item(key, Want::CAS);
            table.delete(key);
            item
        });
        table
    }

    fn run(&self, key: &[u8], op: impl FnOnce(Key) -> Op) -> Option<Reply> {
        let key = Key::new(Bytes::copy_from_slice(key)).ok()?;
        match self.store.run(Ctx::default(), Batch::from_buf([op(key)])) {
            Run::Ready(mut replies) => replies.pop()?.ok(),
            Run::Pending(_) => None,
        }
    }

    fn item(&self, key: &[u8], want: Want) -> Option<Item> {
        self.run(key, |key| Op::get(key, want))?.into_item()
    }

    fn put(&self, key: &[u8], mode: PutMode, value: &[u8], ttl: Option<Duration>) -> bool {
        let value = Bytes::copy_from_slice(value);
        self.run(key, |key| Op::put(key, mode, value, life(ttl))) == Some(Reply::Stored)
    }
}

impl Table for Dyn {
    type Owned = Bytes;

    fn read<T>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        Some(see(&self.get(key)?))
    }

    fn get(&self, key: &[u8]) -> Option<Bytes> {
        Some(self.item(key, Want::VALUE)?.value)
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        Some(self.item(key, Want::CAS)?.cas?.token)
    }

    fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.put(key, PutMode::Set, value, ttl);
    }

    fn add(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> bool {
        self.put(key, PutMode::Add, value, ttl)
    }

    fn cas(&self, key: &[u8], version: u64, value: &[u8], ttl: Option<Duration>) -> bool {
        self.put(key, PutMode::Cas(Cas { token: version, session: self.session }), value, ttl)
    }

    fn append(&self, key: &[u8], tail: &[u8]) -> bool {
        self.put(key, PutMode::Append, tail, None)
    }

    fn incr(&self, key: &[u8], delta: u64) -> Option<u64> {
        match self.run(key, |key| Op::arith(key, Arith::Incr(delta)))? {
            Reply::Number(number) => Some(number),
            _ => None,
        }
    }

    fn delete(&self, key: &[u8]) -> bool {
        self.run(key, Op::delete) == Some(Reply::Deleted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{check, check_atomic};
    use super::*;

    #[test]
    fn direct_has_the_semantics() {
        check(&Direct::new());
        check_atomic(&Direct::new());
    }

    #[test]
    fn dyn_has_the_semantics() {
        check(&Dyn::new());
        check_atomic(&Dyn::new());
    }
}
