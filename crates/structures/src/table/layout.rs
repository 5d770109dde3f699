//! The bytes of a table: where an entry is, what it holds, and what the list of keys is made of. No store, no clock.
//!
//! Both are append-encoded values (see [`append::layout`](crate::append::layout)); this says what their elements mean.
//!
//! | an element of an entry | bytes | what |
//! |---|---|---|
//! | head | 1 | 0 |
//! | | 8 | incarnation: drawn when the entry is made, and with each put that gives it a life |
//! | | 4 | when it expires, seconds since the Unix epoch by its writer's clock; 0: never |
//! | | … | key |
//! | value | 1 | 1 |
//! | | 8 | mark of the key |
//! | | … | value; the last one counts |
//!
//! | an element of the list | bytes | what |
//! |---|---|---|
//! | listed | 1 + 8 + 4 | 0, incarnation, when it expires |
//! | | … | key |
//! | leaving | 1 + 8 + 4 | 1, incarnation, since when: an entry that is missing was removed, not lost |
//! | gone | 1 + 8 | 2, incarnation: it is off the list, whatever of it comes later |

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::append::layout::{
    self, FRAME_BYTES_MAX, Folded, Frame, HEADER_BYTES, Place, Value, put_element, put_varint, take_element,
};
use crate::append::{Action, Elements, Fold, Snapshot};
use crate::name::{Letters, letters};

/// The version of the layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;
/// The hash that places entries, as the manifest's parameters record it.
pub(crate) const HASH_XXH3: u8 = 1;
/// Which shard an entry says it is: none of the list's, whose number is far below.
const ENTRY_SHARD: u16 = u16::MAX;
/// Seeds the mark, so that it tells keys apart that share an index.
const MARK_SEED: u64 = 0x4c41_5244_4552_2d74;
/// Of the writers of renewals.
const RENEWER_SEED: u64 = u64::from_le_bytes(*b"renewal.");
/// The bit of an entry's client flags that says it is listed. The other 31 are of the key's mark.
const FLAG_LISTED: u32 = 1;
/// How many writers' last sequences an entry remembers when it is rewritten.
const ENTRY_WRITERS_MAX: usize = 8;
/// How many incarnations that are gone a shard of the list remembers.
pub(crate) const GONE_MAX: usize = 1024;
/// By how much clocks may disagree about an expiry.
pub(crate) const SLACK_S: u32 = 300;

const TAG: usize = 1;
const INCARNATION_BYTES: usize = 8;
const SECONDS_BYTES: usize = 4;
const MARK_BYTES: usize = 8;
const HEAD_BYTES: usize = TAG + INCARNATION_BYTES + SECONDS_BYTES;
const LENGTH_BYTES_MAX: usize = 10;

/// What an entry's item takes beside key and value, at the most.
pub(crate) const ENTRY_BYTES: usize = HEADER_BYTES
    + LENGTH_BYTES_MAX
    + ENTRY_WRITERS_MAX * (8 + LENGTH_BYTES_MAX + 4)
    + FRAME_BYTES_MAX
    + LENGTH_BYTES_MAX
    + HEAD_BYTES
    + LENGTH_BYTES_MAX
    + TAG
    + MARK_BYTES;
/// What the list takes for a key beside its bytes, at the most, in one write.
pub(crate) const LISTING_BYTES: usize = 2 * (LENGTH_BYTES_MAX + HEAD_BYTES);

/// Where a key's entry is, and how it is told from others there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// 14 characters of base64url: 84 bits of the hash.
    pub(crate) index: Letters<14>,
    /// Which shard of the list names it.
    pub(crate) shard: u16,
    mark: u64,
}

impl Spot {
    /// Frozen: it says where entries are.
    pub(crate) fn of(key: &[u8], shards: u16) -> Spot {
        let hash = xxh3_128(key);
        let index = letters(hash);
        // The low half: what the index has of it are its highest 20 bits, what the shard takes are the other 44.
        let product = u128::from((hash as u64) << 20) * u128::from(shards);
        Spot { index, shard: (product >> 64) as u16, mark: xxh3_64_with_seed(key, MARK_SEED) }
    }

    pub(crate) fn flags(&self, is_listed: bool) -> u32 {
        (self.mark as u32) & !FLAG_LISTED | u32::from(is_listed)
    }

    /// Whether an item with these flags is listed; `None` for another key's.
    pub(crate) fn is_listed(&self, flags: u32) -> Option<bool> {
        (flags & !FLAG_LISTED == self.flags(false)).then_some(flags & FLAG_LISTED != 0)
    }
}

pub(super) fn entry_place(generation: u64) -> Place {
    Place { generation, shard: ENTRY_SHARD }
}

/// Who writes, and its how-manieth write this is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) generation: u64,
    pub(crate) writer: u64,
    pub(crate) seq: u64,
}

fn head(incarnation: u64, expiry_s: u32, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + key.len());
    out.push(0);
    out.extend_from_slice(&incarnation.to_le_bytes());
    out.extend_from_slice(&expiry_s.to_le_bytes());
    out.extend_from_slice(key);
    out
}

fn put_value(out: &mut Vec<u8>, spot: &Spot, value: &[u8]) {
    // As `put_element` does, without a copy of the value in between.
    put_varint(out, ((TAG + MARK_BYTES + value.len()) as u64) << 1);
    out.push(1);
    out.extend_from_slice(&spot.mark.to_le_bytes());
    out.extend_from_slice(value);
}

/// What a put appends to an entry that is there.
pub(crate) fn value_frame(stamp: Stamp, spot: &Spot, value: &[u8]) -> Bytes {
    let mut elements = Vec::with_capacity(value.len() + 20);
    put_value(&mut elements, spot, value);
    layout::frame(entry_place(stamp.generation), stamp.writer, stamp.seq, &elements)
}

/// A write of no value: only that somebody was here.
pub(crate) fn empty_frame(stamp: Stamp) -> Bytes {
    layout::frame(entry_place(stamp.generation), stamp.writer, stamp.seq, &[])
}

/// What a put writes that makes the entry, or makes it anew.
pub(crate) fn whole_frame(
    stamp: Stamp,
    spot: &Spot,
    (incarnation, expiry_s): (u64, u32),
    key: &[u8],
    value: &[u8],
) -> Bytes {
    let mut elements = Vec::with_capacity(key.len() + value.len() + 40);
    put_element(&mut elements, Action::Put, &head(incarnation, expiry_s, key));
    put_value(&mut elements, spot, value);
    layout::frame(entry_place(stamp.generation), stamp.writer, stamp.seq, &elements)
}

/// The writer of a renewal: whoever knew the entry by the incarnation of before knows it again by this.
pub(crate) fn renewer(stale: u64) -> u64 {
    xxh3_64_with_seed(&stale.to_le_bytes(), RENEWER_SEED)
}

/// The item of a new entry.
pub(crate) fn new_entry(generation: u64, frame: &[u8]) -> Bytes {
    let empty = layout::empty(entry_place(generation));
    Bytes::from([&empty[..], frame].concat())
}

/// What the elements of an entry fold into.
#[derive(Debug, Default)]
pub(crate) struct EntryState<'v> {
    head: &'v [u8],
    value: Option<&'v [u8]>,
    mark: u64,
}

impl<'v> Fold<'v> for EntryState<'v> {
    fn apply(&mut self, _: Action, element: &'v [u8]) {
        match element.split_first() {
            Some((0, rest)) if rest.len() + TAG >= HEAD_BYTES => {
                self.mark = xxh3_64_with_seed(&element[HEAD_BYTES..], MARK_SEED);
                self.head = element;
                // What stood there before may be another key's.
                self.value = None;
            }
            // Another key's put, whose index is the same: it is told so, and this entry stays as it was.
            Some((1, rest)) if rest.first_chunk() == Some(&self.mark.to_le_bytes()) && !self.head.is_empty() => {
                self.value = Some(element);
            }
            _ => {}
        }
    }
}

impl<'v> Snapshot<'v> for EntryState<'v> {
    fn elements(&self) -> impl Iterator<Item = &'v [u8]> {
        [self.head].into_iter().chain(self.value)
    }
}

/// An entry, as its item holds it.
#[derive(Debug)]
pub(crate) struct Entry<'v> {
    pub(crate) incarnation: u64,
    pub(crate) expiry_s: u32,
    pub(crate) key: &'v [u8],
    pub(crate) value: &'v [u8],
    epoch: u32,
    bytes: usize,
    generation: u64,
    folded: Folded<EntryState<'v>>,
}

impl<'v> Entry<'v> {
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no entry of this table.
    pub(crate) fn parse(bytes: &'v [u8], generation: u64) -> Result<Entry<'v>> {
        Entry::of(&Value::parse(bytes, entry_place(generation))?, generation)
    }

    fn of(parsed: &Value<'v>, generation: u64) -> Result<Entry<'v>> {
        let folded = parsed.fold(EntryState::default())?;
        let (incarnation, expiry_s, key) = split_head(folded.state.head)
            .ok_or_else(|| Error::new(ErrorKind::LayoutMismatch, "the entry has no key"))?;
        let value = folded.state.value.and_then(|element| element.get(TAG + MARK_BYTES..));
        let value = value.ok_or_else(|| Error::new(ErrorKind::LayoutMismatch, "the entry has no value"))?;
        Ok(Entry { incarnation, expiry_s, key, value, epoch: parsed.epoch, bytes: parsed.len(), generation, folded })
    }

    /// # Errors
    /// [`ErrorKind::Conflict`] where another key stands under the hash of this one.
    pub(crate) fn expect(&self, key: &[u8]) -> Result<()> {
        if self.key == key {
            return Ok(());
        }
        let detail =
            format!("two keys have the same hash, and one of them is there: {} and {}", Shown(key), Shown(self.key));
        Err(Error::new(ErrorKind::Conflict, detail))
    }

    /// The last write of this writer that is in it: earlier ones do not count any more. 0 if none is known.
    pub(crate) fn last(&self, writer: u64) -> u64 {
        self.folded.last(writer)
    }

    /// The last write of each writer that is in it.
    pub(crate) fn writes(&self) -> Vec<(u64, u64)> {
        self.folded.writers.iter().map(|(writer, last)| (writer, last.seq)).collect()
    }

    /// True if it is what had this incarnation and these writes, under a new incarnation in its place: nobody has removed that in between. It has the mark of who renewed it, or one of the writes and
    /// nothing later of its writer.
    pub(crate) fn goes_on_from(&self, incarnation: u64, writes: &[(u64, u64)]) -> bool {
        self.last(renewer(incarnation)) > 0 || writes.iter().any(|&(writer, seq)| self.last(writer) == seq)
    }

    /// True if all that is in it is of this writer, and the last of it is this write.
    pub(crate) fn is_all_of(&self, writer: u64, seq: u64) -> bool {
        self.folded.writers() == 1 && self.last(writer) == seq
    }

    /// Bytes that a rewrite would save.
    pub(crate) fn stale_bytes(&self, now_s: u32) -> usize {
        self.bytes.saturating_sub(self.folded.live_bytes(now_s))
    }

    /// The entry, rewritten without what is stale.
    pub(crate) fn compacted(&mut self, now_s: u32) -> Bytes {
        self.folded.keep_writers(ENTRY_WRITERS_MAX);
        self.folded.compacted(entry_place(self.generation), self.epoch, now_s)
    }

    /// The entry, rewritten with a frame applied.
    pub(crate) fn rewritten(mut self, frame: &'v [u8], now_s: u32) -> Result<Bytes> {
        self.folded.join(entry_place(self.generation), frame)?;
        Ok(self.compacted(now_s))
    }
}

/// The value of an entry that a get brought. Most entries are as they were made, in one frame: then nothing is folded.
///
/// # Errors
/// As [`Entry::parse`] and [`Entry::expect`].
pub(crate) fn value_of<'v>(bytes: &'v [u8], generation: u64, spot: &Spot, key: &[u8]) -> Result<&'v [u8]> {
    let parsed = Value::parse(bytes, entry_place(generation))?;
    if let Some(value) = parsed.only_frame().and_then(|frame| made_value(frame, spot, key)) {
        return Ok(value);
    }
    let entry = Entry::of(&parsed, generation)?;
    entry.expect(key)?;
    Ok(entry.value)
}

/// The value in a frame that made the entry of this key, and did nothing else.
fn made_value<'v>(frame: Frame<'v>, spot: &Spot, key: &[u8]) -> Option<&'v [u8]> {
    let mut elements = frame.elements;
    let (Action::Put, head) = take_element(&mut elements)? else { return None };
    let (Action::Put, element) = take_element(&mut elements)? else { return None };
    let is_this = head.first() == Some(&0) && split_head(head)?.2 == key && elements.is_empty();
    let (mark, value) = element.strip_prefix(&[1])?.split_first_chunk()?;
    (is_this && *mark == spot.mark.to_le_bytes()).then_some(value)
}

/// How many bytes of an item of a table a compaction would save: of a shard of its list, or of an entry.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are no such item.
pub(crate) fn stale_bytes(bytes: &[u8], generation: u64, shard: Option<u16>, now_s: u32) -> Result<usize> {
    let Some(shard) = shard else { return Ok(Entry::parse(bytes, generation)?.stale_bytes(now_s)) };
    let list = Value::parse(bytes, Place { generation, shard })?.fold(Listing::default())?;
    Ok(bytes.len().saturating_sub(list.live_bytes(now_s)))
}

fn split_head(head: &[u8]) -> Option<(u64, u32, &[u8])> {
    let rest = head.get(TAG..)?;
    let (incarnation, rest) = rest.split_first_chunk()?;
    let (seconds, rest) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*incarnation), u32::from_le_bytes(*seconds), rest))
}

/// An operation on the list of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note<'k> {
    Listed { incarnation: u64, expiry_s: u32, key: &'k [u8] },
    Leaving { incarnation: u64, since_s: u32 },
    Gone { incarnation: u64 },
}

impl Note<'_> {
    /// Adds it to the elements of a frame.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        put_element(out, Action::Put, &self.element());
    }

    pub(super) fn element(self) -> Vec<u8> {
        let mut element = match self {
            Note::Listed { incarnation, expiry_s, key } => head(incarnation, expiry_s, key),
            Note::Leaving { incarnation, since_s } => head(incarnation, since_s, b""),
            Note::Gone { incarnation } => head(incarnation, 0, b""),
        };
        match self {
            Note::Listed { .. } => {}
            Note::Leaving { .. } => element[0] = 1,
            Note::Gone { .. } => {
                element[0] = 2;
                element.truncate(TAG + INCARNATION_BYTES);
            }
        }
        element
    }
}

/// The elements of a table's list.
pub(crate) struct ListElements;

impl Elements for ListElements {
    type State<'v> = Listing<'v>;
}

/// The keys of one shard of the list, as slices of its value.
///
/// A key is listed once an incarnation. Incarnations of one key are listed in the order in which they were, because whoever
/// removes or replaces one sees to it that it is listed before the entry is deleted, and so before the next can be made. So what is
/// gone takes all that were listed before it along: entries that were lost, and put again. These are gone, too, and remembered as that.
#[derive(Debug, Default)]
pub(crate) struct Listing<'v> {
    /// Only these keys, if only some are wanted.
    wanted: Option<HashSet<&'v [u8]>>,
    rows: Vec<Row<'v>>,
    /// Made where it is first needed: most lists name each key once, and nothing that is leaving or gone.
    by_incarnation: Option<Incarnations>,
    /// The last row of each key.
    by_key: HashMap<&'v [u8], usize, crate::hash::State>,
    /// The newest [`GONE_MAX`] that are gone. Those without an element were taken along by others.
    gone: VecDeque<(u64, Option<&'v [u8]>)>,
    is_gone: HashSet<u64, crate::hash::State>,
}

type Incarnations = HashMap<u64, usize, crate::hash::State>;

#[derive(Debug)]
struct Row<'v> {
    listed: &'v [u8],
    leaving: Option<&'v [u8]>,
    is_gone: bool,
    /// True if there is a later row of the same key.
    is_past: bool,
    /// The row of the same key before this one.
    before: Option<usize>,
}

/// What the list says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// It is not there, or on its way out.
    NotListed,
    /// Its last incarnation is being removed, since then.
    Leaving { incarnation: u64, since_s: u32 },
    /// Its last incarnation has a life that ends then.
    Mortal { incarnation: u64, expiry_s: u32 },
    /// It is there, for ever.
    Listed { incarnation: u64 },
}

impl Row<'_> {
    fn says(&self) -> Says {
        let Some((incarnation, expiry_s, _)) = split_head(self.listed) else { return Says::NotListed };
        if let Some(since_s) = self.leaving.and_then(split_head).map(|(_, since_s, _)| since_s) {
            return Says::Leaving { incarnation, since_s };
        }
        if expiry_s > 0 { Says::Mortal { incarnation, expiry_s } } else { Says::Listed { incarnation } }
    }
}

impl<'v> Listing<'v> {
    /// One that looks at these keys only.
    pub(crate) fn of(keys: impl IntoIterator<Item = &'v [u8]>) -> Listing<'v> {
        Listing { wanted: Some(keys.into_iter().collect()), ..Listing::default() }
    }

    /// Every key that is listed, and what is said of it.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'v [u8], Says)> {
        let last = self.rows.iter().filter(|row| !row.is_gone && !row.is_past);
        last.filter_map(|row| Some((split_head(row.listed)?.2, row.says())))
    }

    /// No more keys than this.
    pub(crate) fn len_max(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn says(&self, key: &[u8]) -> Says {
        self.by_key.get(key).map_or(Says::NotListed, |&at| self.rows[at].says())
    }

    fn list(&mut self, incarnation: u64, key: &'v [u8], element: &'v [u8]) {
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| wanted.contains(key));
        if !is_wanted || self.is_gone.contains(&incarnation) {
            return;
        }
        let row = Row { listed: element, leaving: None, is_gone: false, is_past: false, before: None };
        if self.by_incarnation.is_none()
            && let Slot::Vacant(vacant) = self.by_key.entry(key)
        {
            vacant.insert(self.rows.len());
            return self.rows.push(row);
        }
        // It may be the same once more, or another incarnation of the key. That makes the rows anew where it was not known yet.
        self.incarnations();
        let at = self.rows.len();
        match self.incarnations().entry(incarnation) {
            Slot::Occupied(_) => return,
            Slot::Vacant(vacant) => _ = vacant.insert(at),
        }
        let before = self.by_key.insert(key, at);
        if let Some(before) = before {
            self.rows[before].is_past = true;
        }
        self.rows.push(Row { before, ..row });
    }

    /// The rows that are not gone, by their incarnations. Made of the rows so far: of different keys, none of which is leaving or gone.
    fn incarnations(&mut self) -> &mut Incarnations {
        if self.by_incarnation.is_none() {
            self.by_incarnation = Some(Incarnations::default());
            self.by_key.clear();
            for row in std::mem::take(&mut self.rows) {
                if let Some((incarnation, _, key)) = split_head(row.listed) {
                    self.list(incarnation, key, row.listed);
                }
            }
        }
        self.by_incarnation.get_or_insert_default()
    }

    fn remember(&mut self, incarnation: u64, element: Option<&'v [u8]>) {
        if self.is_gone.insert(incarnation) {
            self.gone.push_back((incarnation, element));
        }
        if self.gone.len() > GONE_MAX
            && let Some((oldest, _)) = self.gone.pop_front()
        {
            self.is_gone.remove(&oldest);
        }
    }

    fn go(&mut self, incarnation: u64, element: &'v [u8]) {
        let last = self.incarnations().remove(&incarnation);
        self.remember(incarnation, Some(element));
        let Some(last) = last else { return };
        let mut next = Some(last);
        while let Some(at) = next {
            let row = &mut self.rows[at];
            row.is_gone = true;
            next = row.before;
            if let Some((older, _, key)) = split_head(row.listed) {
                // Whoever listed it first may not have come to that yet, and do so after this.
                self.remember(older, None);
                self.incarnations().remove(&older);
                if self.by_key.get(key) == Some(&last) {
                    self.by_key.remove(key);
                }
            }
        }
        self.cut_off(last);
    }

    /// Rows after one that is gone must not lead to it.
    fn cut_off(&mut self, gone: usize) {
        let Some((_, _, key)) = split_head(self.rows[gone].listed) else { return };
        let mut next = self.by_key.get(key).copied();
        while let Some(at) = next {
            let before = self.rows[at].before.filter(|&before| before != gone);
            self.rows[at].before = before;
            next = before;
        }
    }
}

impl<'v> Fold<'v> for Listing<'v> {
    fn expect(&mut self, elements: usize) {
        if self.wanted.is_none() {
            self.rows.reserve(elements);
            self.by_key.reserve(elements);
        }
    }

    fn apply(&mut self, _: Action, element: &'v [u8]) {
        let Some((tag, rest)) = element.split_first() else { return };
        match (tag, split_head(element)) {
            (0, Some((incarnation, _, key))) => self.list(incarnation, key, element),
            (1, Some((incarnation, _, _))) => {
                if let Some(&at) = self.incarnations().get(&incarnation) {
                    self.rows[at].leaving = Some(element);
                }
            }
            (2, None) => {
                if let Some((incarnation, _)) = rest.split_first_chunk() {
                    self.go(u64::from_le_bytes(*incarnation), element);
                }
            }
            _ => {}
        }
    }
}

impl<'v> Snapshot<'v> for Listing<'v> {
    fn elements(&self) -> impl Iterator<Item = &'v [u8]> {
        let rows = self.rows.iter().filter(|row| !row.is_gone);
        let gone = self.gone.iter().filter_map(|(_, element)| *element);
        gone.chain(rows.flat_map(|row| [row.listed].into_iter().chain(row.leaving)))
    }

    fn made(&self) -> impl Iterator<Item = Vec<u8>> {
        let taken_along = self.gone.iter().filter(|(_, element)| element.is_none());
        taken_along.map(|&(incarnation, _)| Note::Gone { incarnation }.element())
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
