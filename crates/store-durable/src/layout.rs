//! The stored bytes: pure, without engine or clock. Described for other languages in `docs/layouts.md`.
//!
//! One keyspace of the engine holds everything. The first byte of an engine key says what it is:
//!
//! | first byte | rest of the key | value |
//! |---|---|---|
//! | 0 | `commit` | the [`Commit`] of the batch that was written last |
//! | 0 | `generation` | the [`Generations`]; none until everything was removed for the first time |
//! | 1 | the ms by which the end of an item's life is noted, 8 bytes big-endian; the item's key | empty: the item may be over then |
//! | 2 | the item's key | the [`Record`] |
//! | 3 | a place, 2 bytes big-endian | a [`Round`]: what it says of an item stands before the item itself |

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::end::End;

/// The engine key of the commit record.
pub(crate) const COMMIT_KEY: &[u8] = b"\x00commit";
/// The engine key of the generations.
pub(crate) const GENERATION_KEY: &[u8] = b"\x00generation";
/// The first byte of an expiry's engine key.
pub(crate) const EXPIRY: u8 = 1;
/// The first byte of an item's engine key.
pub(crate) const ITEM: u8 = 2;
/// The first byte of a round's engine key.
pub(crate) const ROUND: u8 = 3;

/// The version of records and commits, in the high half of their first byte.
const VERSION: u8 = 0x10;
const HAS_MARKS: u8 = 1;
const HAS_FLAGS: u8 = 2;
const HAS_EXPIRY: u8 = 4;
const HAS_GENERATION: u8 = 8;
const CHECK_BYTES: usize = 4;
pub(crate) const COMMIT_BYTES: usize = 1 + 6 * 8 + 4 + 8;
const GENERATIONS_BYTES: usize = 1 + 4 + 4 + 8;

/// An item as it is stored.
///
/// First byte: 1 in the high half; in the low half which of the optional fields follow. Then, little-endian: marks (1 byte, bit 0), flags
/// (4, bit 1), [end of life](End) (8, bit 2), generation (4, bit 3), cas token (8), the value, and 4 bytes of check: the low half of
/// xxh3-64 over the item's key and all before.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// Spare bits of whoever alters the item: the server's win and stale marks.
    pub(crate) marks: u8,
    pub(crate) flags: u32,
    pub(crate) end: Option<End>,
    /// How often everything had been removed when it was written.
    pub(crate) generation: u32,
    pub(crate) cas: u64,
    pub(crate) value: Bytes,
}

/// What each batch carries of itself, so that its place in the order and its content can be told from the journal alone.
///
/// Little-endian: 1 byte of version, then 8 bytes each of [`sequence`](Commit::sequence), [`synced`](Commit::synced), [`store`](Commit::store),
/// [`cas_limit`](Commit::cas_limit), [`time_ms`](Commit::time_ms), [`content`](Commit::content), 4 of [`items`](Commit::items), and xxh3-64 over all of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Commit {
    /// Counts batches from 1, without a gap.
    pub(crate) sequence: u64,
    /// The last sequence that was known to be on disk when this was written.
    pub(crate) synced: u64,
    /// The incarnation of the store that wrote it.
    pub(crate) store: u64,
    /// No cas token up to here is ever given out again.
    pub(crate) cas_limit: u64,
    /// The store's time when it was written.
    pub(crate) time_ms: u64,
    /// [`Content`] of the other entries of the batch.
    pub(crate) content: u64,
    /// How many those are.
    pub(crate) items: u32,
}

/// Which items there are, of those that are stored: an item is of a generation, and where that is not the current one, it was removed with all others at once.
///
/// Little-endian: 1 byte of version, then 4 bytes each of [`current`](Generations::current) and [`swept`](Generations::swept), and xxh3-64 over all of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Generations {
    /// The one that is shown.
    pub(crate) current: u32,
    /// No item of an earlier one than this is stored any more.
    pub(crate) swept: u32,
}

/// Which items are shown, of those that are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) now_ms: u64,
    /// The current generation.
    pub(crate) generation: u32,
}

/// Bytes that are not what they should be; what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bad(pub(crate) &'static str);

/// The engine key of an item.
pub(crate) fn item_key(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + key.len());
    put_item_key(key, &mut out);
    out
}

/// The same, in place of what a buffer held.
pub(crate) fn put_item_key(key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(ITEM);
    out.extend_from_slice(key);
}

/// The engine key that the end of an item's life is noted by.
pub(crate) fn expiry_key(end: End, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(9 + key.len());
    put_expiry_key(end, key, &mut out);
    out
}

/// The same, in place of what a buffer held.
pub(crate) fn put_expiry_key(end: End, key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(EXPIRY);
    out.extend_from_slice(&end.noted_ms().to_be_bytes());
    out.extend_from_slice(key);
}

/// The ms by which an end is noted and the item's key, in the end's engine key.
pub(crate) fn split_expiry_key(engine_key: &[u8]) -> Option<(u64, &[u8])> {
    let (&EXPIRY, rest) = engine_key.split_first()? else { return None };
    let (ms, key) = rest.split_first_chunk()?;
    Some((u64::from_be_bytes(*ms), key))
}

/// The engine key of a round.
pub(crate) fn round_key(slot: u16) -> [u8; 3] {
    let [high, low] = slot.to_be_bytes();
    [ROUND, high, low]
}

/// The place in a round's engine key.
pub(crate) fn split_round_key(engine_key: &[u8]) -> Option<u16> {
    match engine_key {
        [ROUND, high, low] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

/// All changes of one batch, in one entry.
///
/// Little-endian: 1 byte of version, 8 of the batch's sequence, 4 of the number of items; for each item 4 of the key's length, 4 of the value's (all ones: the item is gone), key and
/// value; and xxh3-64 over all of that.
pub(crate) struct Round {
    pub(crate) sequence: u64,
    bytes: Bytes,
}

/// A round that is put together.
pub(crate) struct RoundWriter {
    bytes: Vec<u8>,
    items: u32,
    value: Vec<u8>,
}

const GONE: u32 = u32::MAX;
const ROUND_HEAD_BYTES: usize = 1 + 8 + 4;
/// What a change takes in a round besides its value, about: lengths, a key of 40 bytes, what stands around an item.
const CHANGE_BYTES: usize = 64;

impl RoundWriter {
    /// A round of about so many changes, whose values have so many bytes.
    pub(crate) fn new(sequence: u64, changes: usize, value_bytes: usize) -> RoundWriter {
        let mut bytes = Vec::with_capacity(value_bytes + changes * CHANGE_BYTES + ROUND_HEAD_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&sequence.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        RoundWriter { bytes, items: 0, value: Vec::new() }
    }

    /// Adds what an item is; `None`: it is gone.
    pub(crate) fn add(&mut self, key: &[u8], record: Option<&Record>) {
        let mut value = std::mem::take(&mut self.value);
        self.add_bytes(key, record.map(|record| record.put(key, &mut value)));
        self.value = value;
    }

    /// The same, by the bytes of an item's record.
    pub(crate) fn add_bytes(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.items += 1;
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&value.map_or(GONE, |value| value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
    }

    /// The round, and its bytes.
    pub(crate) fn finish(mut self) -> (Round, Bytes) {
        self.bytes[9..ROUND_HEAD_BYTES].copy_from_slice(&self.items.to_le_bytes());
        let check = xxh3_64(&self.bytes);
        self.bytes.extend_from_slice(&check.to_le_bytes());
        let bytes = Bytes::from(self.bytes);
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[1..9]);
        (Round { sequence: u64::from_le_bytes(number), bytes: bytes.clone() }, bytes)
    }
}

impl Round {
    /// The round from its bytes: every item of it can be read then.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Round, Bad> {
        let Some((body, found)) = bytes.split_last_chunk::<8>() else { return Err(Bad("a round is too short")) };
        if xxh3_64(body).to_le_bytes() != *found {
            return Err(Bad("a round does not match its checksum"));
        }
        let mut rest = body;
        if field::<1>(&mut rest)? != [VERSION] {
            return Err(Bad("a round is of a newer layout"));
        }
        let sequence = u64::from_le_bytes(field(&mut rest)?);
        let items = u32::from_le_bytes(field(&mut rest)?);
        let round = Round { sequence, bytes: bytes.clone() };
        let (mut count, mut taken) = (0, ROUND_HEAD_BYTES);
        for (key, value) in round.items() {
            count += 1;
            taken += 8 + key.len() + value.map_or(0, |value| value.len());
        }
        if (count, taken) != (items, body.len()) {
            return Err(Bad("a round ends in the middle of an item"));
        }
        Ok(round)
    }

    /// Each key, and the bytes of its record; without a copy.
    pub(crate) fn items(&self) -> impl Iterator<Item = (&[u8], Option<Bytes>)> {
        let (mut at, end) = (ROUND_HEAD_BYTES, self.bytes.len() - 8);
        std::iter::from_fn(move || {
            let mut rest = self.bytes.get(at..end)?;
            let (key_bytes, value_bytes) = (field(&mut rest).ok()?, field(&mut rest).ok()?);
            let (key_bytes, value_bytes) = (u32::from_le_bytes(key_bytes) as usize, u32::from_le_bytes(value_bytes));
            let key = rest.get(..key_bytes)?;
            let from = at + 8 + key_bytes;
            if value_bytes == GONE {
                at = from;
                return Some((key, None));
            }
            rest.get(key_bytes..)?.get(..value_bytes as usize)?;
            at = from + value_bytes as usize;
            Some((key, Some(self.bytes.slice(from..at))))
        })
    }
}

impl Record {
    /// When the life of the item of these bytes ends, which are known to be whole.
    pub(crate) fn end_of(bytes: &[u8]) -> Option<End> {
        let (&head, mut rest) = bytes.split_first()?;
        if head & HAS_MARKS != 0 {
            field::<1>(&mut rest).ok()?;
        }
        if head & HAS_FLAGS != 0 {
            field::<4>(&mut rest).ok()?;
        }
        (head & HAS_EXPIRY != 0).then(|| field(&mut rest).ok().map(read_end)).flatten()
    }

    /// The bytes of the item of `key`.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(key, &mut out).to_vec()
    }

    /// Writes the bytes of the item of `key` in place of what a buffer held, behind what only the checksum is over, so that it is summed in one piece: what is
    /// returned.
    pub(crate) fn put<'a>(&self, key: &[u8], out: &'a mut Vec<u8>) -> &'a [u8] {
        out.clear();
        out.reserve(4 + key.len() + 26 + self.value.len() + CHECK_BYTES);
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        let start = out.len();
        out.push(VERSION);
        if self.marks != 0 {
            out[start] |= HAS_MARKS;
            out.push(self.marks);
        }
        if self.flags != 0 {
            out[start] |= HAS_FLAGS;
            out.extend_from_slice(&self.flags.to_le_bytes());
        }
        if let Some(end) = self.end {
            out[start] |= HAS_EXPIRY;
            out.extend_from_slice(&end.bits().to_le_bytes());
        }
        if self.generation != 0 {
            out[start] |= HAS_GENERATION;
            out.extend_from_slice(&self.generation.to_le_bytes());
        }
        out.extend_from_slice(&self.cas.to_le_bytes());
        out.extend_from_slice(&self.value);
        let check = xxh3_64(out) as u32;
        out.extend_from_slice(&check.to_le_bytes());
        &out[start..]
    }

    /// The item of `key` from its bytes, its value without a copy.
    pub(crate) fn decode(key: &[u8], bytes: &Bytes) -> Result<Record, Bad> {
        let Some((body, found)) = bytes.split_last_chunk::<CHECK_BYTES>() else {
            return Err(Bad("a record is too short"));
        };
        if check(key, body) != *found {
            return Err(Bad("a record does not match its checksum"));
        }
        let mut rest = body;
        let [head] = field(&mut rest)?;
        if head & 0xf0 != VERSION {
            return Err(Bad("a record is of a newer layout"));
        }
        let mut record = Record::default();
        if head & HAS_MARKS != 0 {
            [record.marks] = field(&mut rest)?;
        }
        if head & HAS_FLAGS != 0 {
            record.flags = u32::from_le_bytes(field(&mut rest)?);
        }
        if head & HAS_EXPIRY != 0 {
            record.end = Some(read_end(field(&mut rest)?));
        }
        if head & HAS_GENERATION != 0 {
            record.generation = u32::from_le_bytes(field(&mut rest)?);
        }
        record.cas = u64::from_le_bytes(field(&mut rest)?);
        let start = body.len() - rest.len();
        record.value = bytes.slice(start..body.len());
        Ok(record)
    }

    /// Bytes that the item of `key` has, about.
    pub(crate) fn bytes_about(&self, key: &[u8]) -> u64 {
        (key.len() + self.value.len()) as u64
    }

    /// True if the item is over at `now_ms`.
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.end.is_some_and(|end| end.ms() <= now_ms)
    }
}

impl Commit {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(COMMIT_BYTES);
        out.push(VERSION);
        for number in [self.sequence, self.synced, self.store, self.cas_limit, self.time_ms, self.content] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.items.to_le_bytes());
        let check = xxh3_64(&out);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }

    /// The record from its bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Commit, Bad> {
        if bytes.len() != COMMIT_BYTES {
            return Err(Bad("a commit record has another length"));
        }
        let (mut body, found) = bytes.split_at(COMMIT_BYTES - 8);
        if xxh3_64(body).to_le_bytes() != found {
            return Err(Bad("a commit record does not match its checksum"));
        }
        if field::<1>(&mut body)? != [VERSION] {
            return Err(Bad("a commit record is of a newer layout"));
        }
        let mut number = || field(&mut body).map(u64::from_le_bytes);
        let (sequence, synced, store) = (number()?, number()?, number()?);
        let (cas_limit, time_ms, content) = (number()?, number()?, number()?);
        let items = u32::from_le_bytes(field(&mut body)?);
        Ok(Commit { sequence, synced, store, cas_limit, time_ms, content, items })
    }
}

impl Shown {
    /// True if an item is.
    pub(crate) fn has(self, record: &Record) -> bool {
        record.generation == self.generation && !record.is_over(self.now_ms)
    }
}

impl Generations {
    /// The bytes.
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(GENERATIONS_BYTES);
        out.push(VERSION);
        out.extend_from_slice(&self.current.to_le_bytes());
        out.extend_from_slice(&self.swept.to_le_bytes());
        let check = xxh3_64(&out);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }

    /// Them from their bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Generations, Bad> {
        let Some((mut body, check)) = bytes.split_last_chunk().filter(|_| bytes.len() == GENERATIONS_BYTES) else {
            return Err(Bad("the note of generations has another length"));
        };
        if xxh3_64(body).to_le_bytes() != *check {
            return Err(Bad("the note of generations does not match its checksum"));
        }
        if field::<1>(&mut body)? != [VERSION] {
            return Err(Bad("the note of generations is of a newer layout"));
        }
        let mut number = || field(&mut body).map(u32::from_le_bytes);
        Ok(Generations { current: number()?, swept: number()? })
    }
}

/// The checksum over what a batch writes, entry by entry in its order: for each 1 byte (1: it is removed), the lengths of key and
/// value (4 bytes each), key and value.
#[derive(Default)]
pub(crate) struct Content {
    hasher: Xxh3,
    /// How many entries there were.
    pub(crate) items: u32,
}

impl Content {
    /// Adds an entry; `None` removes it.
    pub(crate) fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.head(key, value.map(<[u8]>::len));
        self.hasher.update(value.unwrap_or_default());
    }

    /// Adds an entry whose value follows by [`more`](Content::more).
    pub(crate) fn head(&mut self, key: &[u8], value_bytes: Option<usize>) {
        self.items += 1;
        let mut head = [0; 9];
        head[0] = u8::from(value_bytes.is_none());
        head[1..5].copy_from_slice(&(key.len() as u32).to_le_bytes());
        head[5..].copy_from_slice(&(value_bytes.unwrap_or(0) as u32).to_le_bytes());
        self.hasher.update(&head);
        self.hasher.update(key);
    }

    /// Adds bytes of the last entry's value.
    pub(crate) fn more(&mut self, value: &[u8]) {
        self.hasher.update(value);
    }

    /// The checksum.
    pub(crate) fn sum(&self) -> u64 {
        self.hasher.digest()
    }
}

fn check(key: &[u8], body: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = Xxh3::new();
    hasher.update(&(key.len() as u32).to_le_bytes());
    hasher.update(key);
    hasher.update(body);
    (hasher.digest() as u32).to_le_bytes()
}

fn read_end(field: [u8; 8]) -> End {
    End::from_bits(u64::from_le_bytes(field))
}

fn field<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Bad> {
    let (field, after) = rest.split_first_chunk().ok_or(Bad("a record is too short"))?;
    *rest = after;
    Ok(*field)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_these() {
        let record = Record { cas: 7, value: Bytes::from_static(b"v"), ..Record::default() };
        assert_eq!(hex(&record.encode(b"k")), "1007000000000000007610de0ef3");
        let record = Record { marks: 3, flags: 0x0102, end: Some(End::at(9)), ..record };
        assert_eq!(hex(&record.encode(b"k")), "1703020100000900000000000000070000000000000076787892ef");
        let commit = Commit { sequence: 1, synced: 2, store: 3, cas_limit: 4, time_ms: 5, content: 6, items: 7 };
        assert_eq!(
            hex(&commit.encode()),
            "10010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000070000003ebe13b0f3454ccb"
        );
        let record = Record { generation: 5, ..record };
        assert_eq!(hex(&record.encode(b"k")), "1f0302010000090000000000000005000000070000000000000076d0324250");
        let generations = Generations { current: 2, swept: 1 };
        assert_eq!(hex(&generations.encode()), "10020000000100000087109a53cb0d2202");
        let record = Record { cas: 7, value: Bytes::from_static(b"v"), ..Record::default() };
        let (_, bytes) = round(3, &[(b"k", Some(&record)), (b"x", None)]);
        assert_eq!(
            hex(&bytes),
            "10030000000000000002000000010000000e0000006b1007000000000000007610de0ef301000000ffffffff78b554241d1e630832"
        );
        assert_eq!(round_key(258), *b"\x03\x01\x02");
        assert_eq!(item_key(b"k"), b"\x02k");
        assert_eq!(expiry_key(End::at(258), b"k"), b"\x01\0\0\0\0\0\0\x01\x02k");
        let end = Some(End::of_life(1_700_000_000_001, 86_400_000));
        let record = Record { end, cas: 7, value: Bytes::from_static(b"v"), ..Record::default() };
        assert_eq!(&hex(&record.encode(b"k"))[..36], "140168e5cf8b010014070000000000000076");
        assert_eq!(end.map(|end| hex(&expiry_key(end, b"k"))).as_deref(), Some("010000018bcff000006b"));
    }

    fn round(sequence: u64, items: &[(&[u8], Option<&Record>)]) -> (Round, Bytes) {
        let mut writer = RoundWriter::new(sequence, items.len(), 0);
        items.iter().for_each(|(key, record)| writer.add(key, *record));
        writer.finish()
    }

    /// With a right check behind them.
    fn sealed(body: &[u8]) -> Bytes {
        [body, &xxh3_64(body).to_le_bytes()].concat().into()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    proptest! {
        #[test]
        fn a_round_is_read_as_it_was_written_and_a_flip_or_a_cut_is_seen(
            sequence: u64, items: Vec<(Vec<u8>, Option<Vec<u8>>)>, at: usize, bit in 0..8u8,
        ) {
            let record = |value: &Vec<u8>| Record { cas: sequence, value: value.clone().into(), ..Record::default() };
            let records: Vec<_> = items.iter().map(|(key, value)| (&key[..], value.as_ref().map(record))).collect();
            let written: Vec<_> = records.iter().map(|(key, record)| (*key, record.as_ref())).collect();
            let (_, bytes) = round(sequence, &written);
            let read = Round::decode(&bytes).map_err(|bad| TestCaseError::fail(bad.0))?;
            prop_assert_eq!(read.sequence, sequence);
            let decoded = |(key, value): (&[u8], Option<Bytes>)| (key.to_vec(), value.map(|value| Record::decode(key, &value).unwrap()));
            let wanted = records.iter().map(|(key, record)| (key.to_vec(), record.clone()));
            prop_assert!(read.items().map(decoded).eq(wanted));
            let mut flipped = bytes.to_vec();
            flipped[at % bytes.len()] ^= 1u8 << bit;
            prop_assert!(Round::decode(&flipped.into()).is_err());
            prop_assert!(Round::decode(&bytes.slice(..at % bytes.len())).is_err());
            let body = &bytes[..at % (bytes.len() - 8)];
            prop_assert!(Round::decode(&sealed(body)).is_err(), "{} of {} bytes, and a right check", body.len(), bytes.len());
        }

        #[test]
        fn a_round_of_garbage_never_panics_also_where_its_check_is_right(mut bytes: Vec<u8>, head: bool) {
            _ = Round::decode(&bytes.clone().into());
            if head && !bytes.is_empty() {
                bytes[0] = VERSION;
            }
            if let Ok(round) = Round::decode(&sealed(&bytes)) {
                _ = round.items().count();
            }
        }

        #[test]
        fn what_is_written_is_read(
            marks: u8, flags: u32, end: Option<u64>, cas: u64, value: Vec<u8>, key: Vec<u8>, sequence: u64, items: u32, generation: u32,
        ) {
            let record = Record { marks, flags, end: end.map(End::from_bits), generation, cas, value: value.into() };
            let bytes = record.encode(&key);
            prop_assert_eq!(Record::end_of(&bytes), record.end);
            prop_assert_eq!(Record::decode(&key, &bytes.into()), Ok(record));
            let commit = Commit { sequence, items, ..Commit::default() };
            prop_assert_eq!(Commit::decode(&commit.encode()), Ok(commit));
            let generations = Generations { current: items, swept: generation };
            prop_assert_eq!(Generations::decode(&generations.encode()), Ok(generations));
            let end = End::from_bits(sequence);
            let engine_key = expiry_key(end, &key);
            prop_assert_eq!(split_expiry_key(&engine_key), Some((end.noted_ms(), &key[..])));
        }

        #[test]
        fn garbage_never_panics_and_a_flip_is_seen(bytes: Vec<u8>, flags: u32, value: Vec<u8>, at: usize, bit in 0..8u8) {
            _ = Record::decode(b"k", &bytes.clone().into());
            _ = Commit::decode(&bytes);
            _ = Generations::decode(&bytes);
            _ = split_expiry_key(&bytes);
            let mut record = Record { flags, value: value.into(), ..Record::default() }.encode(b"k");
            let at = at % record.len();
            record[at] ^= 1u8 << bit;
            prop_assert!(Record::decode(b"k", &record.into()).is_err());
            let mut commit = Commit { sequence: 5, ..Commit::default() }.encode();
            let at = at % commit.len();
            commit[at] ^= 1u8 << bit;
            prop_assert!(Commit::decode(&commit).is_err());
            let mut generations = Generations { current: flags, swept: 1 }.encode();
            let at = at % generations.len();
            generations[at] ^= 1u8 << bit;
            prop_assert!(Generations::decode(&generations).is_err());
        }
    }

    #[test]
    fn a_record_of_another_key_is_not_taken() {
        let bytes = Record::default().encode(b"a").into();
        assert!(Record::decode(b"b", &bytes).is_err());
    }
}
