//! [`Namespace`]: a prefix before every key.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use larder_core::list::{List, ListRef, Listed, Listing};
use larder_core::text::Shown;
use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, Profile, Replies, Result, Run, Store, StoreRef};
use parking_lot::Mutex;

/// A store whose every key begins with a prefix, unseen by those who use it.
///
/// The prefix is arbitrary bytes; one that ends in a byte that occurs in no other prefix (`shop:`) keeps namespaces apart.
/// Keys that route ([`Route`](larder_core::Route)) get it too. Replies are handed on as they are; errors name the whole key. The
/// profile's longest key is shorter by the prefix. **Round trips: none of its own.**
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Key, PutMode, Store, StoreExt, StoreRef, Ttl};
/// use larder_layers::Namespace;
/// use larder_store_memory::MemoryStore;
/// use std::sync::Arc;
///
/// let all: StoreRef = Arc::new(MemoryStore::builder().build()?);
/// let shop = Namespace::new(all.clone(), "shop:")?;
/// shop.put(Key::new("stock")?, PutMode::Set, "7", Ttl::Never).await?;
/// assert!(all.get(Key::new("shop:stock")?).await?.is_some());
/// assert_eq!(shop.profile().key_bytes_max, all.profile().key_bytes_max - 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Namespace {
    store: StoreRef,
    prefix: Bytes,
    /// The store's profile and ours, made of it; protects the pair while a new handshake replaces it.
    profiles: Mutex<(Arc<Profile>, Arc<Profile>)>,
}

impl Namespace {
    /// Puts `prefix` before every key that `store` is asked for.
    ///
    /// Names of structures leave a namespace 16 bytes of a key.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for an empty prefix, and for one that leaves no room for a key.
    ///
    /// ```
    /// use larder_core::ErrorKind;
    /// use larder_layers::Namespace;
    /// # use larder_store_memory::MemoryStore;
    /// let store = std::sync::Arc::new(MemoryStore::builder().build()?);
    /// let error = Namespace::new(store, "").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::BadInput);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(store: StoreRef, prefix: impl Into<Bytes>) -> Result<Namespace> {
        let prefix = prefix.into();
        let inner = store.profile();
        if prefix.is_empty() {
            return Err(Error::new(ErrorKind::BadInput, "a namespace is empty; it takes at least 1 byte"));
        }
        if prefix.len() >= inner.key_bytes_max {
            let detail = format!(
                "a namespace has {} bytes; the limit is {}, so that a key has room behind it: {}",
                prefix.len(),
                inner.key_bytes_max.saturating_sub(1),
                Shown(&prefix)
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        let ours = Arc::new(lowered(&inner, prefix.len()));
        Ok(Namespace { store, prefix, profiles: Mutex::new((inner, ours)) })
    }

    /// What a list looks like through this namespace: only its keys, without the prefix. `list` is that of the store behind it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// use larder_core::list::{List, Listed, ListRef};
    /// use larder_core::{Ctx, Key, PutMode, StoreExt, StoreRef, Ttl};
    /// use larder_layers::Namespace;
    /// use larder_store_memory::MemoryStore;
    /// use std::sync::Arc;
    ///
    /// let all = Arc::new(MemoryStore::new());
    /// let shop = Namespace::new(all.clone(), "shop:")?;
    /// shop.put(Key::new("stock")?, PutMode::Set, "7", Ttl::Never).await?;
    /// all.put(Key::new("others")?, PutMode::Set, "8", Ttl::Never).await?;
    /// let mut keys = Vec::new();
    /// let mut tell = |told: Listed<'_>| if let Listed::Key(key) = told { keys.push(key.to_vec()) };
    /// shop.list(all).list(Ctx::default(), b"", &mut tell).await?;
    /// assert_eq!(keys, [b"stock"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, list: ListRef) -> ListRef {
        Arc::new(NamespaceList { list, prefix: self.prefix.clone() })
    }

    fn prefixed(&self, key: &Key) -> Result<Key> {
        let limit = Key::BYTES_MAX - self.prefix.len().min(Key::BYTES_MAX);
        if key.as_bytes().len() > limit {
            let detail = format!(
                "a key has {} bytes; the limit is {limit}, since the namespace {} takes {} of {}",
                key.as_bytes().len(),
                Shown(&self.prefix),
                self.prefix.len(),
                Key::BYTES_MAX
            );
            return Err(Error::new(ErrorKind::BadInput, detail).key(key));
        }
        let mut bytes = BytesMut::with_capacity(self.prefix.len() + key.as_bytes().len());
        bytes.extend_from_slice(&self.prefix);
        bytes.extend_from_slice(key.as_bytes());
        Key::new(bytes.freeze())
    }

    fn place(&self, op: &mut Op) -> Result<()> {
        op.key = self.prefixed(&op.key)?;
        if let Some(with) = &op.route.with {
            op.route.with = Some(self.prefixed(with)?);
        }
        Ok(())
    }
}

/// The keys behind a prefix.
#[derive(Debug)]
struct NamespaceList {
    list: ListRef,
    prefix: Bytes,
}

impl List for NamespaceList {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            let whole = [&self.prefix[..], prefix].concat();
            let mut tell_stripped = |told: Listed<'_>| match told {
                // Whatever the list tells: a key of others is none of ours.
                Listed::Key(key) => {
                    key.strip_prefix(&self.prefix[..]).into_iter().for_each(|key| tell(Listed::Key(key)))
                }
                // Nobody can say whether it is behind the prefix.
                Listed::Other(_) => {}
                progress @ Listed::LookedAt(_) => tell(progress),
            };
            self.list.list(ctx, &whole, &mut tell_stripped).await
        })
    }
}

/// The profile behind a prefix.
fn lowered(inner: &Profile, prefix_bytes: usize) -> Profile {
    Profile {
        key_bytes_max: inner.key_bytes_max.saturating_sub(prefix_bytes),
        // The prefix is a part of the stored key, which the limit of an item counts.
        item_overhead_bytes: inner.item_overhead_bytes.saturating_add(prefix_bytes),
        ..inner.clone()
    }
}

impl Store for Namespace {
    fn profile(&self) -> Arc<Profile> {
        let inner = self.store.profile();
        let mut profiles = self.profiles.lock();
        if !Arc::ptr_eq(&profiles.0, &inner) {
            let ours = Arc::new(lowered(&inner, self.prefix.len()));
            *profiles = (inner, ours);
        }
        profiles.1.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, mut batch: Batch) -> Run<'a> {
        let mut refused: Vec<(usize, Error)> = Vec::new();
        for (at, op) in batch.iter_mut().enumerate() {
            if let Err(error) = self.place(op) {
                refused.push((at, error));
            }
        }
        if refused.is_empty() {
            return self.store.run(ctx, batch);
        }
        let mut at = 0;
        batch.retain(|_| {
            at += 1;
            refused.binary_search_by_key(&(at - 1), |(refused_at, _)| *refused_at).is_err()
        });
        if batch.is_empty() {
            return Run::Ready(with_refused(Replies::new(), refused));
        }
        match self.store.run(ctx, batch) {
            Run::Ready(replies) => Run::Ready(with_refused(replies, refused)),
            Run::Pending(future) => Run::pending(async move { with_refused(future.await, refused) }),
        }
    }
}

/// Puts the errors of ops that were never sent in their places among the replies. They come in the order of the batch.
fn with_refused(mut replies: Replies, refused: Vec<(usize, Error)>) -> Replies {
    for (at, error) in refused {
        replies.insert(at.min(replies.len()), Err(error));
    }
    replies
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::{Reply, Route, Want};

    use super::*;
    use crate::fake::Fake;

    fn get(key: impl Into<Bytes>) -> Op {
        Op::get(Key::new(key).unwrap(), Want::VALUE)
    }

    #[tokio::test]
    async fn keys_and_routing_keys_get_the_prefix_of_any_bytes() {
        let fake = Arc::new(Fake::default());
        let namespace = Namespace::new(fake.clone(), &b"\0\xff "[..]).unwrap();
        let route = Route { with: Some(Key::new("tag").unwrap()), rank: 3 };
        let replies = namespace.run(Ctx::default(), Batch::from_iter([get("k").routed(route)])).await;
        let asked = fake.take_asked();
        let op = &asked[0].1[0];
        assert_eq!(op.key.as_bytes(), b"\0\xff k");
        assert_eq!(op.route.with.as_ref().unwrap().as_bytes(), b"\0\xff tag");
        assert_eq!(op.route.rank, 3);
        let value = replies[0].clone().unwrap().into_item().unwrap().value;
        assert_eq!(value, &b"\0\xff k"[..], "the reply is the store's own");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_too_long_fails_alone_and_in_its_place() {
        for fake in [Arc::new(Fake::default()), Fake::slow(Duration::from_secs(1))] {
            let namespace = Namespace::new(fake.clone(), "12345").unwrap();
            let too_long_route = Route { with: Some(Key::new(vec![b'r'; 246]).unwrap()), rank: 0 };
            let batch = Batch::from_iter([
                get(vec![b'a'; 246]),
                get(vec![b'b'; 245]),
                get("c").routed(too_long_route),
                get("d"),
                get(vec![b'e'; 250]),
            ]);
            let replies = namespace.run(Ctx::default(), batch).await;
            let found: Vec<bool> = replies.iter().map(|reply| matches!(reply, Ok(Reply::Item(_)))).collect();
            assert_eq!(found, [false, true, false, true, false]);
            let error = replies[0].clone().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput);
            assert!(error.detail().contains("246 bytes; the limit is 245"), "{error}");
            assert_eq!(fake.take_asked()[0].1.len(), 2);
            assert!(namespace.run(Ctx::default(), Batch::from_iter([get(vec![b'a'; 246])])).await[0].is_err());
            assert!(fake.take_asked().is_empty(), "nothing is sent for a batch that is refused whole");
        }
    }

    #[test]
    fn the_profile_is_the_stores_with_shorter_keys() {
        let fake = Arc::new(Fake::default());
        let namespace = Namespace::new(fake.clone(), "12345").unwrap();
        let (inner, ours) = (fake.profile(), namespace.profile());
        assert_eq!(ours.key_bytes_max, 245);
        assert_eq!(ours.batch_ops_max, inner.batch_ops_max);
        assert_eq!(ours.value_bytes_max(20), inner.value_bytes_max(25));
    }

    #[test]
    fn a_prefix_that_leaves_no_room_is_refused() {
        let error = Namespace::new(Arc::new(Fake::default()), vec![b'x'; 250]).unwrap_err();
        assert!(error.detail().contains("250 bytes; the limit is 249"), "{error}");
        assert!(Namespace::new(Arc::new(Fake::default()), vec![b'x'; 249]).is_ok());
    }
}
