//! One item, one allocation: header, key and value behind a thin pointer.
//!
//! ```text
//!  0        8       12      16       22     30         34    34+k       used      class
//!  | header | width | flags | expiry | cas  | accessed | key | value ... | slack ... |
//!             only if value > 255 bytes
//!                     only if flags != 0
//!                             only if it was stored, or touched, with a life
//!                                      only if the token was given, and does not fit into the header
//!                                             only if the store keeps times of access
//! ```
//!
//! The header is one word: 8 bits of key length, 10 of tags, the low 8 of the value's length, 38 of cas. The capacity of the
//! allocation is not stored: it is a function of the bytes in use ([`class_bytes`]) and a tag, so an append inside the class costs no
//! reallocation and an item of 16 + 32 bytes takes 64 bytes of the heap, 8 of which are malloc's own.
//!
//! This is the one module of the crate with `unsafe`. The invariants its blocks name:
//!
//! - **I1** `start` points to an allocation of `Shape::alloc_bytes` bytes, aligned to 8, that this `Item` alone owns, where the
//!   shape follows from the header.
//! - **I2** the first `Shape::used` bytes of it are initialised.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ptr::NonNull;

/// Bits of a cas token; what a wrap means is told at [`Locked::next_cas`](crate::shard::Locked::next_cas).
pub(crate) const CAS_BITS: u32 = 38;
/// The latest expiry that can be stored, in ms of the store's clock: 48 bits, less the mark of "never".
pub(crate) const EXPIRY_MS_MAX: u64 = EXPIRY_NEVER - 1;
/// The largest value an item can have; the width field has 32 bits, and half of that keeps sums from overflowing anywhere.
pub(crate) const VALUE_BYTES_MAX: usize = (u32::MAX / 2) as usize;

const HEADER_BYTES: usize = 8;
const WIDTH_BYTES: usize = 4;
const FLAGS_BYTES: usize = 4;
const EXPIRY_BYTES: usize = 6;
const LONG_CAS_BYTES: usize = 8;
const ACCESSED_BYTES: usize = 4;
const EXPIRY_NEVER: u64 = (1 << 48) - 1;
const NARROW_MAX: usize = 255;

const TAG_EXPIRES: u64 = 1 << 8;
const TAG_FLAGGED: u64 = 1 << 9;
const TAG_WIDE: u64 = 1 << 10;
const TAG_REFERENCED: u64 = 1 << 11;
const TAG_GROWN: u64 = 1 << 12;
const TAG_FETCHED: u64 = 1 << 13;
const TAG_WON: u64 = 1 << 14;
const TAG_STALE: u64 = 1 << 15;
const TAG_LONG_CAS: u64 = 1 << 16;
const TAG_TIMED: u64 = 1 << 17;
const TAGS_OF_MARKS: u64 = TAG_FETCHED | TAG_WON | TAG_STALE;
const MARKS_SHIFT: u32 = 13;
const VALUE_SHIFT: u32 = 18;
const CAS_SHIFT: u32 = 64 - CAS_BITS;

const ALIGN: usize = 8;
const CLASS_STEP_MIN: usize = 16;
const CLASS_STEP_COARSE_MIN: usize = 64;
/// A larger item that grows takes the fine classes.
const COARSE_BYTES_MAX: usize = 4096;
/// An item that outgrows an allocation of this size is left to `realloc`, which may not have to copy; below, it is slower than a copy,
/// since it locks the arena that the allocation is from.
const REALLOC_BYTES_MIN: usize = 16 << 10;
const SMALL_BYTES_MAX: usize = 1024;

/// The allocator had no memory for this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory(pub(crate) usize);

/// What an item is made of. The value is the two slices, joined.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: [&'a [u8]; 2],
    pub(crate) flags: u32,
    pub(crate) expiry_ms: Option<u64>,
    pub(crate) cas: u64,
    pub(crate) marks: Marks,
    /// When it was last used, in seconds of the store's clock, where the store keeps that.
    pub(crate) accessed_s: Option<u32>,
    /// True if the item takes the classes of one that grows: see [`class_bytes`].
    pub(crate) grown: bool,
}

impl Parts<'_> {
    /// The bytes an item of these parts takes of the heap.
    pub(crate) fn class_bytes(&self) -> usize {
        self.shape().class_bytes()
    }

    fn shape(&self) -> Shape {
        Shape {
            key_bytes: self.key.len(),
            value_bytes: self.value[0].len() + self.value[1].len(),
            expires: self.expiry_ms.is_some(),
            flagged: self.flags != 0,
            long_cas: is_long(self.cas),
            timed: self.accessed_s.is_some(),
            grown: self.grown,
        }
    }
}

/// The bytes of the heap that hold `used` bytes, the allocator's own header included: multiples of 16 up to 256, then eight
/// classes to each doubling. An item that has outgrown its class once will again, and moves in coarser steps from then on while it
/// is small: multiples of 64, then four classes to each doubling. So appends move an item a logarithmic number of times.
fn class_bytes(used: usize, grown: bool) -> usize {
    let need = used + malloc_bytes(used);
    let coarse = grown && need <= COARSE_BYTES_MAX;
    let (least, parts_log2) = if coarse { (CLASS_STEP_COARSE_MIN, 2) } else { (CLASS_STEP_MIN, 3) };
    let step = (1usize << (need - 1).ilog2().saturating_sub(parts_log2)).max(least);
    need.next_multiple_of(step)
}

/// What glibc's malloc adds: 8 bytes, 16 where it may map whole pages.
fn malloc_bytes(used: usize) -> usize {
    if used <= SMALL_BYTES_MAX - 8 { 8 } else { 16 }
}

/// Where the parts of an item lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    key_bytes: usize,
    value_bytes: usize,
    expires: bool,
    flagged: bool,
    long_cas: bool,
    timed: bool,
    grown: bool,
}

impl Shape {
    /// The shape with another expiry and token.
    fn beside(self, expiry_ms: Option<u64>, cas: u64) -> Shape {
        Shape { expires: self.expires || expiry_ms.is_some(), long_cas: is_long(cas), ..self }
    }

    /// The shape with a value that grew by `more` bytes.
    fn joined(self, more: usize) -> Shape {
        let new = Shape { value_bytes: self.value_bytes + more, ..self };
        if new.class_bytes() == self.class_bytes() { new } else { Shape { grown: true, ..new } }
    }

    fn class_bytes(self) -> usize {
        class_bytes(self.used(), self.grown)
    }

    /// What is asked of the allocator.
    fn alloc_bytes(self) -> usize {
        self.class_bytes() - malloc_bytes(self.used())
    }

    fn wide(self) -> bool {
        self.value_bytes > NARROW_MAX
    }

    fn flags_at(self) -> usize {
        HEADER_BYTES + if self.wide() { WIDTH_BYTES } else { 0 }
    }

    fn expiry_at(self) -> usize {
        self.flags_at() + if self.flagged { FLAGS_BYTES } else { 0 }
    }

    fn long_cas_at(self) -> usize {
        self.expiry_at() + if self.expires { EXPIRY_BYTES } else { 0 }
    }

    fn accessed_at(self) -> usize {
        self.long_cas_at() + if self.long_cas { LONG_CAS_BYTES } else { 0 }
    }

    fn key_at(self) -> usize {
        self.accessed_at() + if self.timed { ACCESSED_BYTES } else { 0 }
    }

    fn value_at(self) -> usize {
        self.key_at() + self.key_bytes
    }

    fn used(self) -> usize {
        self.value_at() + self.value_bytes
    }

    fn header(self, cas: u64, marks: Marks) -> u64 {
        let tag = |on: bool, tag: u64| if on { tag } else { 0 };
        let cas = if self.long_cas { 0 } else { cas };
        (self.key_bytes as u64 & 0xff)
            | tag(self.expires, TAG_EXPIRES)
            | tag(self.flagged, TAG_FLAGGED)
            | tag(self.wide(), TAG_WIDE)
            | tag(self.grown, TAG_GROWN)
            | tag(self.long_cas, TAG_LONG_CAS)
            | tag(self.timed, TAG_TIMED)
            | (u64::from(marks.bits()) << MARKS_SHIFT)
            | ((self.value_bytes as u64 & 0xff) << VALUE_SHIFT)
            | (cas << CAS_SHIFT)
    }
}

bitflags::bitflags! {
    /// What an item remembers of how it was used: for the memcached protocol's `h` and its recache flags. Any new value clears them.
    ///
    /// ```
    /// use larder_store_memory::Marks;
    /// assert!((Marks::STALE | Marks::WON).contains(Marks::WON));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Marks: u8 {
        /// It has been read.
        const FETCHED = 1;
        /// Somebody was told to make it anew.
        const WON = 2;
        /// Its value is out of date.
        const STALE = 4;
    }
}

/// True for a token that does not fit into the header. Only a caller that sets tokens of its own makes such.
fn is_long(cas: u64) -> bool {
    cas >> CAS_BITS != 0
}

/// An item: eight bytes that own one allocation.
pub(crate) struct Item {
    start: NonNull<u8>,
}

// SAFETY: I1, the item alone owns its allocation, as a `Box<[u8]>` does.
unsafe impl Send for Item {}

impl Item {
    /// Makes an item. The key has 1 to 250 bytes, the value at most [`VALUE_BYTES_MAX`]: callers check.
    pub(crate) fn new(parts: &Parts<'_>) -> Result<Item, NoMemory> {
        let mut item = Item { start: allocate(parts.shape().alloc_bytes())? };
        item.write(parts);
        Ok(item)
    }

    /// Makes the item anew of `parts`, in place where it stays in its class. It is unchanged after an error.
    pub(crate) fn rewrite(&mut self, parts: &Parts<'_>) -> Result<(), NoMemory> {
        if self.class_bytes() == parts.class_bytes() {
            self.write(parts);
        } else {
            *self = Item::new(parts)?;
        }
        Ok(())
    }

    /// Joins bytes behind the value. It is unchanged after an error.
    pub(crate) fn append(&mut self, tail: &[u8], cas: u64) -> Result<(), NoMemory> {
        let old = self.shape();
        let new = old.joined(tail.len());
        if old.wide() != new.wide() || old.long_cas != is_long(cas) {
            let value = [self.value(), tail];
            *self = Item::new(&Parts { value, cas, marks: Marks::empty(), grown: new.grown, ..self.parts() })?;
            return Ok(());
        }
        self.grow(old, new)?;
        self.put(old.used(), tail);
        self.set_length(new, cas, Marks::empty());
        Ok(())
    }

    /// Joins bytes before the value. It is unchanged after an error.
    pub(crate) fn prepend(&mut self, head: &[u8], cas: u64) -> Result<(), NoMemory> {
        let old = self.shape();
        let new = old.joined(head.len());
        if old.wide() != new.wide() || old.long_cas != is_long(cas) {
            let value = [head, self.value()];
            *self = Item::new(&Parts { value, cas, marks: Marks::empty(), grown: new.grown, ..self.parts() })?;
            return Ok(());
        }
        self.grow(old, new)?;
        let at = old.value_at();
        // SAFETY: I1 after `grow`: the allocation holds new.used() = at + head + old value bytes, so source and target are
        // inside it; I2: the source is initialised. `copy` allows the overlap.
        unsafe {
            let from = self.start.as_ptr().add(at);
            std::ptr::copy(from, from.add(head.len()), old.value_bytes);
        }
        self.put(at, head);
        self.set_length(new, cas, Marks::empty());
        Ok(())
    }

    /// Replaces the value, keeping life, flags and marks. It is unchanged after an error.
    pub(crate) fn set_value(&mut self, value: &[u8], cas: u64) -> Result<(), NoMemory> {
        let old = self.shape();
        let new = Shape { value_bytes: value.len(), long_cas: is_long(cas), ..old };
        if old.wide() != new.wide() || old.long_cas != new.long_cas || old.class_bytes() != new.class_bytes() {
            *self = Item::new(&Parts { value: [value, &[]], cas, ..self.parts() })?;
            return Ok(());
        }
        self.put(old.value_at(), value);
        self.set_length(new, cas, self.marks());
        Ok(())
    }

    /// Writes over the value from `at` on, as far as it goes; `at` and the length of `bytes` lie inside it.
    pub(crate) fn overwrite(&mut self, at: usize, bytes: &[u8], cas: u64) {
        let shape = self.shape();
        assert!(at + bytes.len() <= shape.value_bytes, "the range is inside the value");
        self.put(shape.value_at() + at, bytes);
        self.set_length(shape, cas, Marks::empty());
    }

    /// Sets the expiry; everything else, the cas token too, stays. It is unchanged after an error.
    pub(crate) fn set_expiry(&mut self, expiry_ms: Option<u64>) -> Result<(), NoMemory> {
        let shape = self.shape();
        if shape.expires {
            self.put(shape.expiry_at(), &expiry_field(expiry_ms.unwrap_or(EXPIRY_NEVER)));
        } else if expiry_ms.is_some() {
            *self = Item::new(&Parts { expiry_ms, ..self.parts() })?;
        }
        Ok(())
    }

    /// Changes what stands beside value and flags. It is unchanged after an error.
    pub(crate) fn set_beside(&mut self, expiry_ms: Option<u64>, cas: u64, marks: Marks) -> Result<(), NoMemory> {
        let shape = self.shape();
        let expiry_ms = if shape.expires { Some(expiry_ms.unwrap_or(EXPIRY_NEVER)) } else { expiry_ms };
        if shape != shape.beside(expiry_ms, cas) {
            *self = Item::new(&Parts { expiry_ms, cas, marks, ..self.parts() })?;
            return Ok(());
        }
        if let Some(expiry_ms) = expiry_ms {
            self.put(shape.expiry_at(), &expiry_field(expiry_ms));
        }
        self.set_length(shape, cas, marks);
        Ok(())
    }

    /// The marks.
    #[inline]
    pub(crate) fn marks(&self) -> Marks {
        Marks::from_bits_truncate(((self.header() & TAGS_OF_MARKS) >> MARKS_SHIFT) as u8)
    }

    /// Sets the marks; writes nothing if they are these already.
    #[inline]
    pub(crate) fn set_marks(&mut self, marks: Marks) {
        let header = self.header();
        let new = header & !TAGS_OF_MARKS | (u64::from(marks.bits()) << MARKS_SHIFT);
        if new != header {
            self.set_header(new);
        }
    }

    /// When it was last used, in seconds of the store's clock, where that is kept.
    pub(crate) fn accessed_s(&self) -> Option<u32> {
        let shape = self.shape();
        shape.timed.then(|| u32::from_le_bytes(self.field(shape.accessed_at())))
    }

    /// Notes when it was used, if it has the field.
    pub(crate) fn set_accessed_s(&mut self, seconds: u32) {
        if self.accessed_s().is_some_and(|old| old != seconds) {
            let at = self.shape().accessed_at();
            self.put(at, &seconds.to_le_bytes());
        }
    }

    /// Sets or clears the bit that says the item was read since the clock's hand passed.
    pub(crate) fn set_referenced(&mut self, on: bool) {
        let header = self.header();
        self.set_header(if on { header | TAG_REFERENCED } else { header & !TAG_REFERENCED });
    }

    /// True if the item was read since the clock's hand passed.
    pub(crate) fn is_referenced(&self) -> bool {
        self.header() & TAG_REFERENCED != 0
    }

    /// The key.
    pub(crate) fn key(&self) -> &[u8] {
        let shape = self.shape();
        &self.bytes()[shape.key_at()..shape.value_at()]
    }

    /// Has the processor load where the item is, and goes on without waiting for it.
    #[inline(always)]
    pub(crate) fn ask_ahead(&self) {
        std::hint::black_box(self.start);
    }

    /// True if this is the item of `key`.
    #[inline]
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        self.header() & 0xff == key.len() as u64 && self.key() == key
    }

    /// The value.
    pub(crate) fn value(&self) -> &[u8] {
        &self.bytes()[self.shape().value_at()..]
    }

    /// The flags.
    pub(crate) fn flags(&self) -> u32 {
        let shape = self.shape();
        if shape.flagged { u32::from_le_bytes(self.field(shape.flags_at())) } else { 0 }
    }

    /// When the item expires, in ms of the store's clock.
    #[inline]
    pub(crate) fn expiry_ms(&self) -> Option<u64> {
        self.expiry_stored().filter(|&ms| ms != EXPIRY_NEVER)
    }

    /// What is in the expiry field, if there is one: an item that got a life and lost it keeps the field.
    #[inline]
    fn expiry_stored(&self) -> Option<u64> {
        if self.header() & TAG_EXPIRES == 0 {
            return None;
        }
        let [a, b, c, d, e, f] = self.field(self.shape().expiry_at());
        Some(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// The cas token.
    pub(crate) fn cas(&self) -> u64 {
        let header = self.header();
        if header & TAG_LONG_CAS == 0 {
            return header >> CAS_SHIFT;
        }
        u64::from_le_bytes(self.field(self.shape().long_cas_at()))
    }

    /// The bytes the item takes of the heap, the allocator's header included.
    pub(crate) fn class_bytes(&self) -> usize {
        self.shape().class_bytes()
    }

    /// The bytes it would take with `more` bytes joined to its value, and that token.
    pub(crate) fn class_joined(&self, more: usize, cas: u64) -> usize {
        Shape { long_cas: is_long(cas), ..self.shape().joined(more) }.class_bytes()
    }

    /// The bytes it would take with another value of `value_bytes`, and that token.
    pub(crate) fn class_with_value(&self, value_bytes: usize, cas: u64) -> usize {
        Shape { value_bytes, long_cas: is_long(cas), ..self.shape() }.class_bytes()
    }

    /// The bytes it would take with that expiry and token.
    pub(crate) fn class_beside(&self, expiry_ms: Option<u64>, cas: u64) -> usize {
        self.shape().beside(expiry_ms, cas).class_bytes()
    }

    /// The bytes it would take with that expiry.
    pub(crate) fn class_with_expiry(&self, expiry_ms: Option<u64>) -> usize {
        let shape = self.shape();
        Shape { expires: shape.expires || expiry_ms.is_some(), ..shape }.class_bytes()
    }

    fn parts(&self) -> Parts<'_> {
        Parts {
            key: self.key(),
            value: [self.value(), &[]],
            flags: self.flags(),
            expiry_ms: self.expiry_stored(),
            cas: self.cas(),
            marks: self.marks(),
            accessed_s: self.accessed_s(),
            grown: self.header() & TAG_GROWN != 0,
        }
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        let header = self.header();
        let value_bytes = if header & TAG_WIDE == 0 {
            (header >> VALUE_SHIFT) as usize & 0xff
        } else {
            // SAFETY: I2, a wide item's width field is behind its header, and initialised; unaligned reads are meant.
            unsafe { self.start.add(HEADER_BYTES).cast::<u32>().read_unaligned() as usize }
        };
        Shape {
            key_bytes: (header & 0xff) as usize,
            value_bytes,
            expires: header & TAG_EXPIRES != 0,
            flagged: header & TAG_FLAGGED != 0,
            long_cas: header & TAG_LONG_CAS != 0,
            timed: header & TAG_TIMED != 0,
            grown: header & TAG_GROWN != 0,
        }
    }

    /// Writes all parts into an allocation of their class, whatever it held before.
    fn write(&mut self, parts: &Parts<'_>) {
        let shape = parts.shape();
        debug_assert!((1..=0xff).contains(&shape.key_bytes) && shape.value_bytes <= VALUE_BYTES_MAX);
        if shape.flagged {
            self.put(shape.flags_at(), &parts.flags.to_le_bytes());
        }
        if let Some(expiry_ms) = parts.expiry_ms {
            self.put(shape.expiry_at(), &expiry_field(expiry_ms));
        }
        if let Some(accessed_s) = parts.accessed_s {
            self.put(shape.accessed_at(), &accessed_s.to_le_bytes());
        }
        self.put(shape.key_at(), parts.key);
        self.put(shape.value_at(), parts.value[0]);
        self.put(shape.value_at() + parts.value[0].len(), parts.value[1]);
        self.set_length(shape, parts.cas, parts.marks);
    }

    /// Writes the header and width of a shape whose bytes are all in place: the item is of that shape from here on.
    fn set_length(&mut self, shape: Shape, cas: u64, marks: Marks) {
        if shape.long_cas {
            self.put(shape.long_cas_at(), &cas.to_le_bytes());
        }
        if shape.wide() {
            self.put(HEADER_BYTES, &(shape.value_bytes as u32).to_ne_bytes());
        }
        self.set_header(shape.header(cas, marks));
    }

    /// Makes the allocation as large as `new` needs. The header still says `old`: the caller sets it, and cannot fail before.
    fn grow(&mut self, old: Shape, new: Shape) -> Result<(), NoMemory> {
        let (from, to) = (old.alloc_bytes(), new.alloc_bytes());
        if from == to {
            return Ok(());
        }
        if from < REALLOC_BYTES_MIN {
            let start = allocate(to)?;
            // SAFETY: I1 and I2: `old.used()` initialised bytes are here, and fit there since the item grew; the allocations are two.
            // Then the old one is freed, with the layout it was made with, and forgotten.
            unsafe {
                std::ptr::copy_nonoverlapping(self.start.as_ptr(), start.as_ptr(), old.used());
                dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(from, ALIGN));
            }
            self.start = start;
            return Ok(());
        }
        Layout::from_size_align(to, ALIGN).map_err(|_| NoMemory(to))?;
        // SAFETY: I1, the allocation was made with this layout; `to` is not zero and a valid size for the alignment.
        let start = unsafe { realloc(self.start.as_ptr(), Layout::from_size_align_unchecked(from, ALIGN), to) };
        self.start = NonNull::new(start).ok_or(NoMemory(to))?;
        Ok(())
    }

    /// Copies `bytes` to offset `at`, which with their length lies inside the allocation.
    #[inline]
    fn put(&mut self, at: usize, bytes: &[u8]) {
        // SAFETY: I1; every caller writes inside the shape it has room for. `bytes` is borrowed from elsewhere while
        // `self` is borrowed mutably, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) }
    }

    #[inline]
    fn header(&self) -> u64 {
        // SAFETY: I1 and I2, the first 8 bytes are the header, initialised and aligned.
        unsafe { self.start.cast::<u64>().read() }
    }

    #[inline]
    fn set_header(&mut self, header: u64) {
        // SAFETY: I1, the first 8 bytes are the header, and aligned.
        unsafe { self.start.cast::<u64>().write(header) }
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes()[at..at + N]);
        out
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: I1 and I2; the borrow of `self` keeps anyone from writing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.shape().used()) }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // SAFETY: I1, the allocation was made with this layout and nobody else has it.
        unsafe {
            let layout = Layout::from_size_align_unchecked(self.shape().alloc_bytes(), ALIGN);
            dealloc(self.start.as_ptr(), layout);
        }
    }
}

/// Allocates `bytes`, which are not 0.
fn allocate(bytes: usize) -> Result<NonNull<u8>, NoMemory> {
    let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| NoMemory(bytes))?;
    // SAFETY: the size is not zero: every shape has a header.
    NonNull::new(unsafe { alloc(layout) }).ok_or(NoMemory(bytes))
}

fn expiry_field(ms: u64) -> [u8; EXPIRY_BYTES] {
    let [a, b, c, d, e, f, _, _] = ms.min(EXPIRY_NEVER).to_le_bytes();
    [a, b, c, d, e, f]
}

#[cfg(test)]
#[path = "item_tests.rs"]
mod tests;
