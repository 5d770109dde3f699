//! What each op does to a locked shard: memcached's semantics. Nothing here waits, retries or makes room.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Arith, Cas, Error, Item, PutMode, Remaining, Reply, Want};

use crate::item::{Item as Stored, Marks, NoMemory, Parts};
use crate::shard::{Locked, Shared, Stop};

/// Why an op has no reply.
pub(crate) enum Halt {
    /// There is no room; making some and trying again may help.
    Stop(Stop),
    /// Trying again will not help.
    Fault(Error),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Halt {
        Halt::Stop(stop)
    }
}

/// How a write ended: the [`Reply`] that it becomes, in two words instead of eleven. A reply has room for an item, and is
/// handed through some layers; a write that is short enough lets the processor begin the next one while this one waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Stored,
    NotStored,
    Exists,
    Miss,
    Deleted,
    Touched,
    Number(u64),
}

impl From<Done> for Reply {
    fn from(done: Done) -> Reply {
        match done {
            Done::Stored => Reply::Stored,
            Done::NotStored => Reply::NotStored,
            Done::Exists => Reply::Exists,
            Done::Miss => Reply::Miss,
            Done::Deleted => Reply::Deleted,
            Done::Touched => Reply::Touched,
            Done::Number(number) => Reply::Number(number),
        }
    }
}

/// A key and its hash.
#[derive(Clone, Copy)]
pub(crate) struct Hashed<'a> {
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
}

/// What a put brings, its limits checked.
#[derive(Clone, Copy)]
pub(crate) struct Put<'a> {
    pub(crate) mode: PutMode,
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expiry_ms: Option<u64>,
}

/// An item as it lies in the store, seen without a copy by [`Direct::read`](crate::Direct::read).
///
/// ```
/// # use larder_core::{PutMode, Remaining, Ttl};
/// # let store = larder_store_memory::MemoryStore::new();
/// store.direct().put(b"k", PutMode::Set, b"value", 7, Ttl::Never)?;
/// let seen = store.direct().read(b"k", |view| (view.value.len(), view.flags, view.ttl()))?;
/// assert_eq!(seen, Some((5, 7, Remaining::Never)));
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The flags.
    pub flags: u32,
    /// The cas token.
    pub cas: Cas,
    expiry_ms: Option<u64>,
    shared: &'a Shared,
}

impl View<'_> {
    /// What is left of the item's life, at most 1 ms more than was asked for. Reads the store's clock.
    ///
    /// ```
    /// # use larder_core::{PutMode, Remaining, Ttl};
    /// # use std::time::Duration;
    /// # let store = larder_store_memory::MemoryStore::new();
    /// store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::After(Duration::from_secs(60)))?;
    /// let left = store.direct().read(b"k", |view| view.ttl())?;
    /// assert!(matches!(left, Some(Remaining::For(left)) if left <= Duration::from_millis(60_001)));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn ttl(&self) -> Remaining {
        match self.expiry_ms {
            None => Remaining::Never,
            Some(ms) => Remaining::For(Duration::from_millis(ms).saturating_sub(self.shared.clock.monotonic())),
        }
    }

    /// The parts that are wanted, copied.
    pub(crate) fn item(&self, want: Want) -> Item {
        Item {
            value: if want.contains(Want::VALUE) { Bytes::copy_from_slice(self.value) } else { Bytes::new() },
            flags: if want.contains(Want::FLAGS) { self.flags } else { 0 },
            cas: want.contains(Want::CAS).then_some(self.cas),
            ttl: if want.contains(Want::TTL) { self.ttl() } else { Remaining::Unknown },
        }
    }
}

impl Locked<'_> {
    /// Shows the item to `see`.
    #[inline]
    pub(crate) fn read<T>(&mut self, at: Hashed<'_>, see: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let shared = self.shared;
        let change = self.find(at.hash, at.key)?;
        // The bit is written only where it changes something: a read leaves the item's cache line clean.
        if shared.evicts && !change.item.is_referenced() {
            change.item.set_referenced(true);
        }
        let item = &*change.item;
        Some(see(View {
            value: item.value(),
            flags: item.flags(),
            cas: shared.cas(item.cas()),
            expiry_ms: item.expiry_ms(),
            shared,
        }))
    }

    pub(crate) fn put(&mut self, at: Hashed<'_>, put: &Put<'_>) -> Result<Done, Stop> {
        match put.mode {
            PutMode::Append => return self.join(at, put.value, false),
            PutMode::Prepend => return self.join(at, put.value, true),
            PutMode::Cas(cas) if cas.session != self.shared.session => return Ok(Done::Exists),
            PutMode::Set | PutMode::Add | PutMode::Replace | PutMode::Cas(_) => {}
        }
        let cas = self.next_cas();
        let parts = Parts {
            key: at.key,
            value: [put.value, &[]],
            flags: put.flags,
            expiry_ms: put.expiry_ms,
            cas,
            marks: Marks::empty(),
            accessed_s: self.shared.stamp(),
            grown: false,
        };
        match (self.find(at.hash, at.key), put.mode) {
            (Some(_), PutMode::Add) | (None, PutMode::Replace) => return Ok(Done::NotStored),
            (None, PutMode::Cas(_)) => return Ok(Done::Miss),
            (Some(change), PutMode::Cas(cas)) if change.item.cas() != cas.token => return Ok(Done::Exists),
            (Some(change), _) => {
                change.resized(parts.class_bytes(), |item| item.rewrite(&parts))?;
                self.note_expiry(parts.expiry_ms);
            }
            (None, _) => self.insert(at.hash, &parts)?,
        }
        Ok(Done::Stored)
    }

    fn join(&mut self, at: Hashed<'_>, more: &[u8], before: bool) -> Result<Done, Stop> {
        let cas = self.next_cas();
        let value_bytes_max = self.shared.item_bytes_max.saturating_sub(at.key.len());
        let Some(change) = self.find(at.hash, at.key) else { return Ok(Done::NotStored) };
        let value_bytes = change.item.value().len() + more.len();
        if value_bytes > value_bytes_max {
            return Ok(Done::NotStored);
        }
        let class = change.item.class_joined(more.len(), cas);
        change.resized(class, |item| if before { item.prepend(more, cas) } else { item.append(more, cas) })?;
        Ok(Done::Stored)
    }

    /// Writes over a part of the value; `end` is where it ends, within the limit.
    pub(crate) fn put_range(&mut self, at: Hashed<'_>, end: usize, bytes: &[u8]) -> Result<Done, Stop> {
        let cas = self.next_cas();
        let Some(change) = self.find(at.hash, at.key) else { return Ok(Done::Miss) };
        let value = change.item.value();
        let offset = end - bytes.len();
        if bytes.is_empty() || end <= value.len() {
            let class = change.item.class_bytes();
            let offset = if bytes.is_empty() { 0 } else { offset };
            let write = |item: &mut Stored| -> Result<(), NoMemory> {
                item.overwrite(offset, bytes, cas);
                Ok(())
            };
            change.resized(class, write)?;
            return Ok(Done::Stored);
        }
        let mut value = value.to_vec();
        value.resize(offset, 0); // shorter or longer: what is written ends it
        value.extend_from_slice(bytes);
        let class = change.item.class_with_value(value.len(), cas);
        change.resized(class, |item| item.set_value(&value, cas))?;
        Ok(Done::Stored)
    }

    pub(crate) fn delete(&mut self, at: Hashed<'_>, cas: Option<Cas>) -> Done {
        if cas.is_some_and(|cas| cas.session != self.shared.session) {
            return Done::Exists;
        }
        let Some(change) = self.find(at.hash, at.key) else { return Done::Miss };
        if cas.is_some_and(|cas| cas.token != change.item.cas()) {
            return Done::Exists;
        }
        self.remove(at.hash, at.key);
        Done::Deleted
    }

    pub(crate) fn touch(&mut self, at: Hashed<'_>, expiry_ms: Option<u64>) -> Result<Done, Stop> {
        let Some(change) = self.find(at.hash, at.key) else { return Ok(Done::Miss) };
        let class = change.item.class_with_expiry(expiry_ms);
        change.resized(class, |item| item.set_expiry(expiry_ms))?;
        self.note_expiry(expiry_ms);
        Ok(Done::Touched)
    }

    /// `initial` is the number to start from and its expiry.
    pub(crate) fn arith(
        &mut self,
        at: Hashed<'_>,
        arith: Arith,
        initial: Option<(u64, Option<u64>)>,
    ) -> Result<Done, Halt> {
        let cas = self.next_cas();
        let mut digits = itoa::Buffer::new();
        let Some(change) = self.find(at.hash, at.key) else {
            let Some((number, expiry_ms)) = initial else { return Ok(Done::Miss) };
            let value = [digits.format(number).as_bytes(), &[]];
            let (marks, accessed_s) = (Marks::empty(), self.shared.stamp());
            let parts = Parts { key: at.key, value, flags: 0, expiry_ms, cas, marks, accessed_s, grown: false };
            self.insert(at.hash, &parts)?;
            return Ok(Done::Number(number));
        };
        let new = arith.of(change.item.value()).map_err(Halt::Fault)?;
        let value = digits.format(new).as_bytes();
        let class = change.item.class_with_value(value.len(), cas);
        change.resized(class, |item| item.set_value(value, cas))?;
        Ok(Done::Number(new))
    }
}
