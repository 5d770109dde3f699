//! One item changed by a closure: what the memcached server needs beyond the ops of [`Store`](larder_core::Store).
//!
//! The closure sees the item, or that there is none, and says what is to become of it; nobody comes in between. It may run again where room had
//! to be made, so it must not leave anything behind that a second run would not overwrite.

use crate::item::{Item, Marks, Parts};
use crate::ops::{Done, Hashed};
use crate::shard::{Locked, Moment, Stop};

/// An item as it lies in the store, with what memcached's meta commands ask for.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The flags.
    pub flags: u32,
    /// The token, without its session.
    pub cas: u64,
    /// When it expires, in ms of the store's clock; `None` for never.
    pub expiry_ms: Option<u64>,
    /// What it remembers of how it was used.
    pub marks: Marks,
    /// When it was last used, in seconds of the store's clock, where the store
    /// [keeps that](crate::Builder::track_access).
    pub accessed_s: Option<u32>,
}

impl<'a> Seen<'a> {
    pub(crate) fn of(item: &'a Item) -> Seen<'a> {
        Seen {
            value: item.value(),
            flags: item.flags(),
            cas: item.cas(),
            expiry_ms: item.expiry_ms(),
            marks: item.marks(),
            accessed_s: item.accessed_s(),
        }
    }
}

/// The longest number.
const NUMBER_BYTES_MAX: usize = 20;

/// The value an item is to have.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// The one it has; nothing comes of it where there is no item.
    Same,
    /// These bytes; the marks are as given, the rest of the item is made anew.
    Whole(&'a [u8]),
    /// The one it has with these bytes behind it; just these where there is no item.
    Append(&'a [u8]),
    /// The one it has with these bytes before it; just these where there is no item.
    Prepend(&'a [u8]),
    /// A decimal number, with spaces behind it up to this width.
    Padded {
        /// The number.
        number: u64,
        /// The least length.
        width: usize,
    },
}

impl Value<'_> {
    /// The length of the value, where the item had one of `old_bytes`.
    pub(crate) fn bytes_after(&self, old_bytes: usize) -> usize {
        match self {
            Value::Same => old_bytes,
            Value::Whole(bytes) => bytes.len(),
            Value::Padded { width, .. } => (*width).max(NUMBER_BYTES_MAX),
            Value::Append(more) | Value::Prepend(more) => old_bytes.saturating_add(more.len()),
        }
    }
}

/// The token an item is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The one it has; a fresh one where there is no item.
    Same,
    /// The fresh one that the closure was shown.
    Fresh,
    /// This one.
    Given(u64),
}

/// What is to become of an item.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// It stays as it is.
    Keep,
    /// It stays as it is, and was used: its time of access is now, and an eviction passes it by once.
    Used(Marks),
    /// It is removed.
    Remove,
    /// It changes, or is made.
    Write {
        /// Its value.
        value: Value<'a>,
        /// Its flags; kept where the value is not [`Whole`](Value::Whole) and there is an item.
        flags: u32,
        /// When it expires, in ms of the store's clock. A time that has passed removes it.
        expiry_ms: Option<u64>,
        /// Its marks.
        marks: Marks,
        /// Its token.
        token: Token,
    },
}

impl Locked<'_> {
    /// Runs `decide` on the item and does what it says.
    pub(crate) fn update<'a>(
        &mut self,
        at: Hashed<'_>,
        decide: &mut impl FnMut(Option<Seen<'_>>, u64) -> Next<'a>,
    ) -> Result<Done, Stop> {
        let (fresh, moment) = (self.next_cas(), &mut Moment::default());
        let next = match self.find_at(at.hash, at.key, moment) {
            Some(change) => decide(Some(Seen::of(change.item)), fresh),
            None => decide(None, fresh),
        };
        match next {
            Next::Keep => Ok(Done::Touched),
            Next::Used(marks) => {
                self.used(at, marks, moment);
                Ok(Done::Touched)
            }
            Next::Remove => {
                self.remove(at.hash, at.key);
                Ok(Done::Deleted)
            }
            Next::Write { value, flags, expiry_ms, marks, token } => {
                if expiry_ms.is_some_and(|expiry_ms| expiry_ms <= moment.ms(self.shared)) {
                    self.remove(at.hash, at.key);
                    return Ok(Done::Stored);
                }
                let beside = Beside { flags, expiry_ms, marks, token, fresh };
                match value {
                    Value::Padded { number, width } => self.write_number(at, number, width, &beside, moment)?,
                    value => self.write(at, value, &beside, moment)?,
                }
                self.note_expiry(expiry_ms);
                Ok(Done::Stored)
            }
        }
    }

    /// Notes that an item was used.
    #[inline]
    fn used(&mut self, at: Hashed<'_>, marks: Marks, moment: &mut Moment) {
        let (evicts, stamp) = (self.shared.evicts, self.shared.stamp());
        let Some(change) = self.find_at(at.hash, at.key, moment) else { return };
        if evicts && !change.item.is_referenced() {
            change.item.set_referenced(true);
        }
        change.item.set_marks(marks);
        if let Some(seconds) = stamp {
            change.item.set_accessed_s(seconds);
        }
    }

    /// Shows the item to `see`, and notes that it was fetched.
    #[inline]
    pub(crate) fn fetch<T>(&mut self, at: Hashed<'_>, see: impl FnOnce(Seen<'_>) -> T) -> Option<T> {
        let (evicts, stamp) = (self.shared.evicts, self.shared.stamp());
        let change = self.find(at.hash, at.key)?;
        let shown = see(Seen::of(change.item));
        // Bits are written only where they change something: a read leaves the item's cache line clean.
        if evicts && !change.item.is_referenced() {
            change.item.set_referenced(true);
        }
        let marks = change.item.marks();
        if !marks.contains(Marks::FETCHED) {
            change.item.set_marks(marks | Marks::FETCHED);
        }
        if let Some(seconds) = stamp {
            change.item.set_accessed_s(seconds);
        }
        Some(shown)
    }

    fn write_number(
        &mut self,
        at: Hashed<'_>,
        number: u64,
        width: usize,
        beside: &Beside,
        moment: &mut Moment,
    ) -> Result<(), Stop> {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        if width <= digits.len() {
            return self.write(at, Value::Whole(digits), beside, moment);
        }
        let mut text = [b' '; NUMBER_BYTES_MAX];
        if let Some(text) = text.get_mut(..width) {
            text[..digits.len()].copy_from_slice(digits);
            return self.write(at, Value::Whole(text), beside, moment);
        }
        // Somebody counts in a value that is mostly spaces.
        let mut text = digits.to_vec();
        text.resize(width, b' ');
        self.write(at, Value::Whole(&text), beside, moment)
    }

    fn write(&mut self, at: Hashed<'_>, value: Value<'_>, beside: &Beside, moment: &mut Moment) -> Result<(), Stop> {
        let stamp = self.shared.stamp();
        let Some(change) = self.find_at(at.hash, at.key, moment) else {
            let (Value::Whole(bytes) | Value::Append(bytes) | Value::Prepend(bytes)) = value else { return Ok(()) };
            return self.insert(at.hash, &beside.parts(at.key, bytes, stamp, beside.fresh));
        };
        let cas = beside.token(change.item.cas());
        match value {
            Value::Padded { .. } | Value::Same => {
                let (expiry_ms, marks) = (beside.expiry_ms, beside.marks);
                let class = change.item.class_beside(expiry_ms, cas);
                change.resized(class, |item| item.set_beside(expiry_ms, cas, marks))?;
            }
            Value::Whole(bytes) => {
                let parts = beside.parts(at.key, bytes, stamp, cas);
                change.resized(parts.class_bytes(), |item| item.rewrite(&parts))?;
            }
            Value::Append(more) | Value::Prepend(more) => {
                let before = matches!(value, Value::Prepend(_));
                let class = change.item.class_joined(more.len(), cas);
                change.resized(class, |item| if before { item.prepend(more, cas) } else { item.append(more, cas) })?;
            }
        }
        if let (Some(seconds), Some(change)) = (stamp, self.find_at(at.hash, at.key, moment)) {
            change.item.set_accessed_s(seconds);
        }
        Ok(())
    }
}

/// What a write says beside the value.
struct Beside {
    flags: u32,
    expiry_ms: Option<u64>,
    marks: Marks,
    token: Token,
    fresh: u64,
}

impl Beside {
    fn token(&self, old: u64) -> u64 {
        match self.token {
            Token::Same => old,
            Token::Fresh => self.fresh,
            Token::Given(token) => token,
        }
    }

    fn parts<'a>(&self, key: &'a [u8], value: &'a [u8], accessed_s: Option<u32>, old: u64) -> Parts<'a> {
        Parts {
            key,
            value: [value, &[]],
            flags: self.flags,
            expiry_ms: self.expiry_ms,
            cas: self.token(old),
            marks: self.marks,
            accessed_s,
            grown: false,
        }
    }
}
