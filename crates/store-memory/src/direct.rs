//! The ops on borrowed bytes, without futures.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::range;
use larder_core::text::Shown;
use larder_core::{Arith, Cas, Error, ErrorKind, Initial, Item, Key, PutMode, Reply, Result, Ttl, Want};

use crate::ops::{Halt, Hashed, Put, View};
use crate::store::Inner;
use crate::update::{Next, Seen};

/// The ops of a [`MemoryStore`](crate::MemoryStore) on borrowed bytes, answered at once. Keys of 0 or over 250 bytes are
/// [`ErrorKind::BadInput`]; the other errors are those of [`apply`](crate::MemoryStore::apply). **Round trips: 0** each.
///
/// ```
/// use larder_core::{PutMode, Reply, Ttl};
/// use larder_store_memory::MemoryStore;
/// let store = MemoryStore::new();
/// let direct = store.direct();
/// assert_eq!(direct.put(b"log", PutMode::Set, b"a", 0, Ttl::Never)?, Reply::Stored);
/// assert_eq!(direct.put(b"log", PutMode::Append, b"b", 0, Ttl::Never)?, Reply::Stored);
/// assert_eq!(direct.read(b"log", |item| item.value.len())?, Some(2));
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Direct<'a> {
    inner: &'a Arc<Inner>,
}

impl<'a> Direct<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>) -> Direct<'a> {
        Direct { inner }
    }

    /// The wanted parts of an item; `None` is a miss.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length.
    ///
    /// ```
    /// # use larder_core::Want;
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert!(store.direct().get(b"", Want::VALUE).is_err());
    /// ```
    #[inline]
    pub fn get(&self, key: &[u8], want: Want) -> Result<Option<Item>> {
        self.read(key, |view| view.item(want))
    }

    /// Shows an item to `see` where it lies, without a copy; `None` is a miss. The item's shard is locked meanwhile: be brief,
    /// and do not use the store in there.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length.
    ///
    /// ```
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert_eq!(store.direct().read(b"k", |item| item.flags)?, None);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[inline]
    pub fn read<T>(&self, key: &[u8], see: impl FnOnce(View<'_>) -> T) -> Result<Option<T>> {
        checked(key)?;
        let shared = &self.inner.shared;
        let at = Hashed { hash: shared.hash(key), key };
        Ok(self.inner.slot(at.hash).lock(shared).read(at, see))
    }

    /// Writes an item; [`PutMode`] says when and how, and which replies to expect.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key or value over its limit and a ttl out of range; [`ErrorKind::Full`] without room.
    ///
    /// ```
    /// # use larder_core::{PutMode, Reply, Ttl};
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert_eq!(store.direct().put(b"k", PutMode::Replace, b"v", 0, Ttl::Never)?, Reply::NotStored);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn put(&self, key: &[u8], mode: PutMode, value: &[u8], flags: u32, ttl: Ttl) -> Result<Reply> {
        checked(key)?;
        let value_bytes_max = self.inner.shared.item_bytes_max - key.len();
        let joins = matches!(mode, PutMode::Append | PutMode::Prepend);
        if value.len() > value_bytes_max && !joins {
            let (bytes, key_bytes) = (value.len(), key.len());
            let detail =
                format!("a value has {bytes} bytes; the limit beside a key of {key_bytes} is {value_bytes_max}");
            return Err(bad_input(detail));
        }
        // Append and prepend keep the life the item has.
        let expiry_ms = if joins { None } else { self.inner.expiry_ms(ttl)? };
        let put = Put { mode, value, flags, expiry_ms };
        self.inner.run(key, |shard, at| shard.put(at, &put).map_err(Halt::Stop))
    }

    /// The bytes of a part of a value; none behind its end. `None` is a miss.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length.
    ///
    /// ```
    /// # use larder_core::{PutMode, Ttl};
    /// # let store = larder_store_memory::MemoryStore::new();
    /// store.direct().put(b"k", PutMode::Set, b"hello", 0, Ttl::Never)?;
    /// assert_eq!(store.direct().get_range(b"k", 1, 3)?, Some("ell".into()));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn get_range(&self, key: &[u8], offset: u64, len: u64) -> Result<Option<Bytes>> {
        self.read(key, |view| {
            let (from, to) = range::bounds(view.value.len(), offset, len);
            Bytes::copy_from_slice(&view.value[from..to])
        })
    }

    /// Writes over a part of a value that is there; a gap behind its end is filled with zeros.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length and where the value would be over its limit; [`ErrorKind::Full`] without room.
    ///
    /// ```
    /// # use larder_core::{PutMode, Reply, Ttl};
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert_eq!(store.direct().put_range(b"k", 1, b"ipp")?, Reply::Miss);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn put_range(&self, key: &[u8], offset: u64, value: &[u8]) -> Result<Reply> {
        checked(key)?;
        let end = range::end(offset, value.len(), self.inner.shared.item_bytes_max - key.len())?;
        self.inner.run(key, |shard, at| shard.put_range(at, end, value).map_err(Halt::Stop))
    }

    /// Removes an item, or only the one that the token was read from.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length.
    ///
    /// ```
    /// # use larder_core::Reply;
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert_eq!(store.direct().delete(b"k", None)?, Reply::Miss);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn delete(&self, key: &[u8], cas: Option<Cas>) -> Result<Reply> {
        checked(key)?;
        self.inner.run(key, |shard, at| Ok(shard.delete(at, cas)))
    }

    /// Gives an item another life, counted from now. Its cas token stays.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length and a ttl out of range; [`ErrorKind::Full`] where an item that had no
    /// life before has no room for one.
    ///
    /// ```
    /// # use larder_core::{Reply, Ttl};
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert_eq!(store.direct().touch(b"k", Ttl::Never)?, Reply::Miss);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn touch(&self, key: &[u8], ttl: Ttl) -> Result<Reply> {
        checked(key)?;
        let expiry_ms = self.inner.expiry_ms(ttl)?;
        self.inner.run(key, |shard, at| shard.touch(at, expiry_ms).map_err(Halt::Stop))
    }

    /// Shows an item to `see` where it lies, as [`read`](Direct::read), and notes that it was fetched.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length.
    ///
    /// ```
    /// # use larder_core::{PutMode, Ttl};
    /// use larder_store_memory::Marks;
    /// # let store = larder_store_memory::MemoryStore::new();
    /// store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::Never)?;
    /// let marks = || store.direct().fetch(b"k", |item| item.marks);
    /// assert_eq!(marks()?, Some(Marks::empty()));
    /// assert_eq!(marks()?, Some(Marks::FETCHED));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[inline]
    pub fn fetch<T>(&self, key: &[u8], see: impl FnOnce(Seen<'_>) -> T) -> Result<Option<T>> {
        checked(key)?;
        let shared = &self.inner.shared;
        let at = Hashed { hash: shared.hash(key), key };
        Ok(self.inner.slot(at.hash).lock(shared).fetch(at, see))
    }

    /// Changes one item by a closure, in one piece: it is shown the item, if there is one, and a token that nobody has had, and says what
    /// becomes of the item. The item's shard is locked meanwhile: be brief, and do not use the store in there.
    ///
    /// The closure runs again where room had to be made first, so a run must overwrite what an earlier one left.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length and a value over the limit; [`ErrorKind::Full`] without room. Nothing has changed then.
    ///
    /// ```
    /// use larder_store_memory::{Marks, MemoryStore, Next, Token, Value};
    /// let store = MemoryStore::new();
    /// let mut found = false;
    /// store.direct().update(b"k", |seen, _fresh| {
    ///     found = seen.is_some();
    ///     Next::Write { value: Value::Whole(b"v"), flags: 0, expiry_ms: None, marks: Marks::empty(), token: Token::Given(1 << 63) }
    /// })?;
    /// assert!(!found);
    /// assert_eq!(store.direct().fetch(b"k", |item| item.cas)?, Some(1 << 63));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn update<'n>(&self, key: &[u8], mut decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>) -> Result<()> {
        checked(key)?;
        let value_bytes_max = self.inner.shared.item_bytes_max - key.len();
        let over = std::cell::Cell::new(None);
        let decide = std::cell::RefCell::new(|seen: Option<Seen<'_>>, fresh: u64| {
            let old_bytes = seen.map_or(0, |seen| seen.value.len());
            let next = decide(seen, fresh);
            if let Next::Write { value, expiry_ms, .. } = next {
                if expiry_ms.is_some() {
                    self.inner.start_sweeping();
                }
                let bytes = value.bytes_after(old_bytes);
                if bytes > value_bytes_max {
                    over.set(Some(bytes));
                    return Next::Keep;
                }
            }
            next
        });
        self.inner.run(key, |shard, at| shard.update(at, &mut *decide.borrow_mut()).map_err(Halt::Stop))?;
        let Some(bytes) = over.get() else { return Ok(()) };
        let detail = format!("a value has {bytes} bytes; the limit beside a key of {} is {value_bytes_max}", key.len());
        Err(bad_input(detail))
    }

    /// Now, in ms of the store's clock: what expiries count from.
    ///
    /// ```
    /// # let store = larder_store_memory::MemoryStore::new();
    /// assert!(store.direct().now_ms() < 60_000);
    /// ```
    pub fn now_ms(&self) -> u64 {
        self.inner.shared.now_ms()
    }

    /// Adds to or subtracts from a number; `initial` is stored, and answered, where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a key of no valid length, a ttl out of range, and a value that is no number;
    /// [`ErrorKind::Full`] without room.
    ///
    /// ```
    /// # use larder_core::{Arith, Initial, Reply, Ttl};
    /// # let store = larder_store_memory::MemoryStore::new();
    /// let one = Some(Initial { value: 1, ttl: Ttl::Never });
    /// assert_eq!(store.direct().arith(b"n", Arith::Incr(5), one)?, Reply::Number(1));
    /// assert_eq!(store.direct().arith(b"n", Arith::Incr(5), one)?, Reply::Number(6));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn arith(&self, key: &[u8], arith: Arith, initial: Option<Initial>) -> Result<Reply> {
        checked(key)?;
        let initial = match initial {
            Some(Initial { value, ttl }) => Some((value, self.inner.expiry_ms(ttl)?)),
            None => None,
        };
        self.inner.run(key, |shard, at| shard.arith(at, arith, initial))
    }
}

impl std::fmt::Debug for Direct<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

#[inline]
fn checked(key: &[u8]) -> Result<()> {
    if (1..=Key::BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(bad_input(format!("a key has {} bytes; it takes 1 to {}: {}", key.len(), Key::BYTES_MAX, Shown(key))))
}

#[cold]
fn bad_input(detail: String) -> Error {
    Error::new(ErrorKind::BadInput, detail).store("memory")
}
