//! The store in a folder, as an engine.
//!
//! A request is done at once, where whoever asks next sees it, and its reply waits until that is durable; so the requests that a connection sends
//! together, and those of all connections that wait, share one sync.

use std::cell::Cell;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use larder_core::{Error, Eviction, Result, Store};
use larder_store_durable::{BackupParts, Direct, DirectItem, DirectNext, DurableStore};
use larder_store_memory::{Marks, Next, Place, Seen, Token, Value};

use super::{Engine, Figures, Promises, Walk, durability_word};

/// Items of a step of a walk.
const WALK_ITEMS: usize = 1_000;

thread_local! {
    /// The last ticket that a call of this thread came by.
    static TOUCHED: Cell<u64> = const { Cell::new(0) };
    /// Bytes of keys and values that calls of this thread wrote.
    static UNSETTLED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The store in a folder, as an engine. It keeps neither when an item was last used nor whether it was fetched: a read writes nothing.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// use larder_server::{DurableEngine, DurableOptions, Engine};
/// let store = DurableOptions::new(folder.path().join("store")).open()?;
/// assert_eq!(DurableEngine::new(store).promises().durability, "disk");
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DurableEngine {
    direct: Direct,
}

impl DurableEngine {
    /// Serves this store.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// use larder_server::{DurableEngine, DurableOptions, Engine};
    /// let store = DurableOptions::new(folder.path().join("store")).open()?;
    /// let engine = DurableEngine::new(store);
    /// assert_eq!(engine.fetch(b"k", |seen| seen.flags)?, None);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(store: DurableStore) -> DurableEngine {
        DurableEngine { direct: Direct::new(store) }
    }
}

fn touch(ticket: u64) {
    TOUCHED.set(TOUCHED.get().max(ticket));
}

/// Counts what is written of an item.
fn counted(key: &[u8], next: DirectNext) -> DirectNext {
    if let DirectNext::Put(item) = &next {
        UNSETTLED_BYTES.set(UNSETTLED_BYTES.get().saturating_add(key.len() + item.value.len()));
    }
    next
}

fn seen(item: &DirectItem) -> Seen<'_> {
    let DirectItem { value, flags, marks, cas, expiry_ms } = item;
    let marks = Marks::from_bits_truncate(*marks);
    Seen { value, flags: *flags, cas: *cas, expiry_ms: *expiry_ms, marks, accessed_s: None }
}

/// The item after a write; `None` where nothing comes of it.
fn written(item: Option<&DirectItem>, next: Next<'_>, fresh: u64) -> DirectNext {
    let (value, flags, expiry_ms, marks, token) = match next {
        Next::Keep => return DirectNext::Keep,
        Next::Remove => return DirectNext::Remove,
        Next::Used(marks) => return used(item, marks),
        Next::Write { value, flags, expiry_ms, marks, token } => (value, flags, expiry_ms, marks, token),
    };
    let old = item.map(|item| &item.value);
    let joined = |first: &[u8], second: &[u8]| {
        let mut joined = BytesMut::with_capacity(first.len() + second.len());
        joined.extend_from_slice(first);
        joined.extend_from_slice(second);
        joined.freeze()
    };
    let bytes = match (value, old) {
        (Value::Same, None) => return DirectNext::Keep,
        // What was read may be a part of a block, which would stay in memory for it.
        (Value::Same, Some(old)) => Bytes::copy_from_slice(old),
        (Value::Whole(bytes), _) | (Value::Append(bytes) | Value::Prepend(bytes), None) => {
            Bytes::copy_from_slice(bytes)
        }
        (Value::Append(more), Some(old)) => joined(old, more),
        (Value::Prepend(more), Some(old)) => joined(more, old),
        (Value::Padded { number, width }, _) => padded(number, width),
    };
    let keeps = !matches!(value, Value::Whole(_) | Value::Padded { .. });
    let is_joined = matches!(value, Value::Append(_) | Value::Prepend(_));
    DirectNext::Put(DirectItem {
        value: bytes,
        flags: item.filter(|_| keeps).map_or(flags, |item| item.flags),
        marks: marks.bits() & !Marks::FETCHED.bits(),
        cas: match token {
            Token::Same => item.map_or(fresh, |item| item.cas),
            Token::Fresh => fresh,
            Token::Given(cas) => cas,
        },
        expiry_ms: item.filter(|_| is_joined).map_or(expiry_ms, |item| item.expiry_ms),
    })
}

/// A number with spaces behind it up to a width. A format of the standard library ends at a width of 65,535.
fn padded(number: u64, width: usize) -> Bytes {
    let mut text = number.to_string().into_bytes();
    text.resize(width.max(text.len()), b' ');
    Bytes::from(text)
}

/// The item after it was used: that alone is not kept, other marks are.
fn used(item: Option<&DirectItem>, marks: Marks) -> DirectNext {
    let marks = marks.bits() & !Marks::FETCHED.bits();
    match item.filter(|item| item.marks != marks) {
        Some(item) => DirectNext::Put(DirectItem { marks, value: Bytes::copy_from_slice(&item.value), ..item.clone() }),
        None => DirectNext::Keep,
    }
}

impl Engine for DurableEngine {
    const REFUSED_SET_REMOVES: bool = false;
    const WAITS_FOR_DISK: bool = true;

    fn now_ms(&self) -> u64 {
        self.direct.now_ms()
    }

    fn fetch<T>(&self, key: &[u8], see: impl FnOnce(Seen<'_>) -> T) -> Result<Option<T>> {
        let (item, ticket) = self.direct.get(key)?;
        touch(ticket);
        Ok(item.map(|item| see(seen(&item))))
    }

    fn update<'n>(&self, key: &[u8], mut decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>) -> Result<()> {
        let decided =
            |item: Option<&DirectItem>, fresh| counted(key, written(item, decide(item.map(seen), fresh), fresh));
        touch(self.direct.update(key, decided)?);
        Ok(())
    }

    fn write<'n>(
        &self,
        key: &[u8],
        looks: bool,
        mut decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>,
    ) -> Result<()> {
        if looks {
            return self.update(key, decide);
        }
        touch(self.direct.overwrite(key, |fresh| counted(key, written(None, decide(None, fresh), fresh)))?);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        touch(self.direct.clear()?);
        Ok(())
    }

    fn touched(&self) -> u64 {
        TOUCHED.take()
    }

    fn unsettled_bytes(&self) -> usize {
        UNSETTLED_BYTES.take()
    }

    fn poll_settled(&self, touched: u64, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.direct.poll_settled(touched, cx) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn walk(&self, at: Walk, mut see: impl FnMut(&[u8], Seen<'_>)) -> Result<Option<Walk>> {
        let next = self.direct.walk(&at.from, WALK_ITEMS, &mut |key, item| see(key, seen(item)))?;
        Ok(next.map(|from| Walk { place: Place::default(), from }))
    }

    fn backup(&self) -> Result<Option<BackupParts>> {
        self.direct.store().backup_in_parts().map(Some)
    }

    fn backup_part(&self, backup: &mut BackupParts) -> Result<Option<Vec<u8>>> {
        backup.next(self.direct.store())
    }

    fn failure(&self) -> Option<Error> {
        self.direct.failure()
    }

    fn figures(&self) -> Figures {
        let torn_bytes = self.direct.store().torn_bytes();
        Figures { items: self.direct.items_about(), torn_bytes, ..Figures::default() }
    }

    fn disk_bytes(&self) -> u64 {
        self.direct.store().stats().map_or(0, |stats| stats.disk_bytes)
    }

    fn set_bytes_max(&self, _bytes: usize) -> bool {
        false
    }

    fn promises(&self) -> Promises {
        let profile = self.direct.store().profile();
        Promises {
            durability: durability_word(profile.durability),
            evicts: profile.eviction != Eviction::Never,
            incarnation: self.direct.store().incarnation(),
        }
    }
}
