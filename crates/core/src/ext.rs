//! One call an op: sugar over [`Store::run`] for people.

use std::future::Future;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::op::{Arith, Batch, Op, PutMode, Ttl, Want};
use crate::reply::{Item, Replies, Reply};
use crate::store::{Ctx, Store};

/// One call an op, with the store's default deadline. Every store has these.
///
/// **Round trips: 1** each, on the node that holds the key.
///
/// ```
/// # use larder_core::{Key, Store, StoreExt, Result, Ttl, PutMode, Reply, Arith};
/// async fn greet(store: &dyn Store) -> Result<()> {
///     let key = Key::new("greeting")?;
///     store.put(key.clone(), PutMode::Set, "hello", Ttl::Never).await?;
///     let item = store.get(key).await?;
///     assert_eq!(item.map(|item| item.value), Some("hello".into()));
///     Ok(())
/// }
/// ```
pub trait StoreExt: Store {
    /// Runs one op.
    ///
    /// ```
    /// # use larder_core::{Arith, Ctx, Key, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
    /// async fn look(store: &dyn Store) -> Result<()> {
    ///     let key = Key::new("k")?;
    ///     let soon = Ctx::within(std::time::Duration::from_millis(50));
    ///     let there = store.run_one(soon, Op::get(key, Want::empty())).await? != Reply::Miss;
    ///     # _ = there;
    ///     Ok(())
    /// }
    /// ```
    fn run_one(&self, ctx: Ctx, op: Op) -> impl Future<Output = Result<Reply>> + Send {
        let run = self.run(ctx, Batch::from_buf([op]));
        async move { run.await.pop().unwrap_or_else(|| Err(no_reply())) }
    }

    /// The value, flags and cas token of an item; `None` is a miss.
    ///
    /// ```
    /// # use larder_core::{Arith, Ctx, Key, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
    /// async fn read(store: &dyn Store) -> Result<()> {
    ///     let key = Key::new("k")?;
    ///     if let Some(item) = store.get(key).await? {
    ///         println!("{} bytes", item.value.len());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    fn get(&self, key: Key) -> impl Future<Output = Result<Option<Item>>> + Send {
        let reply = self.run_one(Ctx::default(), Op::get(key, Want::VALUE | Want::CAS | Want::FLAGS));
        async move { Ok(reply.await?.into_item()) }
    }

    /// Writes an item; [`PutMode`] says which replies to expect.
    ///
    /// ```
    /// # use larder_core::{Arith, Ctx, Key, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
    /// async fn make(store: &dyn Store) -> Result<()> {
    ///     let key = Key::new("k")?;
    ///     let made = store.put(key, PutMode::Add, "v", Ttl::Never).await? == Reply::Stored;
    ///     # _ = made;
    ///     Ok(())
    /// }
    /// ```
    fn put(
        &self,
        key: Key,
        mode: PutMode,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> impl Future<Output = Result<Reply>> + Send {
        self.run_one(Ctx::default(), Op::put(key, mode, value, ttl))
    }

    /// Removes an item; false if there was none.
    ///
    /// ```
    /// # use larder_core::{Arith, Ctx, Key, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
    /// async fn remove(store: &dyn Store) -> Result<()> {
    ///     let key = Key::new("k")?;
    ///     let was_there = store.delete(key).await?;
    ///     # _ = was_there;
    ///     Ok(())
    /// }
    /// ```
    fn delete(&self, key: Key) -> impl Future<Output = Result<bool>> + Send {
        let reply = self.run_one(Ctx::default(), Op::delete(key));
        async move { Ok(reply.await? == Reply::Deleted) }
    }

    /// Gives an item another life; false if there was none.
    ///
    /// ```
    /// # use larder_core::{Arith, Ctx, Key, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
    /// async fn keep(store: &dyn Store) -> Result<()> {
    ///     let key = Key::new("k")?;
    ///     let is_there = store.touch(key, Ttl::Never).await?;
    ///     # _ = is_there;
    ///     Ok(())
    /// }
    /// ```
    fn touch(&self, key: Key, ttl: Ttl) -> impl Future<Output = Result<bool>> + Send {
        let reply = self.run_one(Ctx::default(), Op::touch(key, ttl));
        async move { Ok(reply.await? == Reply::Touched) }
    }

    /// Arithmetic on an item that is there: the new number, or `None` for a miss.
    ///
    /// ```
    /// # use larder_core::{Arith, Ctx, Key, Op, PutMode, Reply, Result, Store, StoreExt, Ttl, Want};
    /// async fn count(store: &dyn Store) -> Result<()> {
    ///     let key = Key::new("k")?;
    ///     let now = store.arith(key, Arith::Incr(1)).await?;
    ///     # _ = now;
    ///     Ok(())
    /// }
    /// ```
    fn arith(&self, key: Key, arith: Arith) -> impl Future<Output = Result<Option<u64>>> + Send {
        let reply = self.run_one(Ctx::default(), Op::arith(key, arith));
        async move {
            match reply.await? {
                Reply::Number(number) => Ok(Some(number)),
                _ => Ok(None),
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// What a store answers at once: nothing to a batch of nothing, and a refusal of every op to one of more than `ops_max`. `None` for a batch
/// that is to be run.
///
/// ```
/// use larder_core::{Batch, Key, Op, ext::answered_at_once};
/// let batch = Batch::from_iter([Op::delete(Key::new("k")?)]);
/// assert!(answered_at_once(&batch, 1).is_none());
/// assert!(answered_at_once(&batch, 0).is_some_and(|replies| replies[0].is_err()));
/// # Ok::<(), larder_core::Error>(())
/// ```
pub fn answered_at_once(ops: &[Op], ops_max: usize) -> Option<Replies> {
    if ops.is_empty() {
        return Some(Replies::new());
    }
    (ops.len() > ops_max).then(|| {
        let detail = format!("a batch has {} ops; the limit is {ops_max}", ops.len());
        let error = Error::new(ErrorKind::BadInput, detail);
        ops.iter().map(|op| Err(error.clone().op(op))).collect()
    })
}

/// The error for a store that broke its contract of one result an op.
///
/// ```
/// assert!(larder_core::ext::no_reply().is_unknown());
/// ```
pub fn no_reply() -> Error {
    Error::new(ErrorKind::Protocol, "the store gave fewer replies than there were ops").effect(crate::Effect::Unknown)
}
