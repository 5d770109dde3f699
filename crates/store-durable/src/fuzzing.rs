//! Not for programs: stored bytes and journals, read, for the proof's fuzzing; and rounds that are left where they are, for tests of damage.

use std::fs::File;
use std::io::{self, Cursor};
use std::path::Path;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::end::End;
use crate::journal;
use crate::layout::{COMMIT_KEY, Commit, Content, Generations, Record, Round, RoundWriter, item_key, split_expiry_key};
use crate::moving::Moving;
use crate::place::{Identity, Noted, check_line};
use crate::store::DurableStore;
use crate::tables::place_of_damage;

/// An item as it is stored under `key`; `end` as the record has it.
pub fn record(key: &[u8], marks: u8, flags: u32, end: Option<u64>, cas: u64, value: &[u8]) -> Vec<u8> {
    // Every other token's is of a later generation.
    let generation = (cas % 2) as u32 * (cas >> 32) as u32;
    let end = end.map(End::from_bits);
    Record { marks, flags, end, generation, cas, value: Bytes::copy_from_slice(value) }.encode(key)
}

/// Reads an item, and its own encoding again: whether it was taken.
///
/// # Errors
/// It does not come back.
pub fn read_record(key: &[u8], bytes: &[u8]) -> Result<bool, String> {
    let Ok(record) = Record::decode(key, &Bytes::copy_from_slice(bytes)) else { return Ok(false) };
    _ = (record.is_over(0), record.is_over(u64::MAX), split_expiry_key(bytes), Generations::decode(bytes));
    if record.end.is_some_and(|end| end.noted_ms() < end.ms()) || Record::end_of(bytes) != record.end {
        return Err(format!("the end of {record:?} is noted elsewhere"));
    }
    let again = Record::decode(key, &record.encode(key).into());
    if again.as_ref() == Ok(&record) { Ok(true) } else { Err(format!("{record:?} comes back as {again:?}")) }
}

/// A round of these items, those without bytes gone.
pub fn round(sequence: u64, items: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut writer = RoundWriter::new(sequence, items.len(), 0);
    items.iter().for_each(|(key, value)| writer.add_bytes(key, value.as_deref()));
    writer.finish().1.to_vec()
}

/// Such bytes, but for their last 8, with their check behind them.
pub fn sealed_round(body: &[u8]) -> Vec<u8> {
    [body, &xxh3_64(body).to_le_bytes()].concat()
}

/// Reads a round, and what it is written as again: whether it was taken.
///
/// # Errors
/// It does not come back.
pub fn read_round(bytes: &[u8]) -> Result<bool, String> {
    let Ok(read) = Round::decode(&Bytes::copy_from_slice(bytes)) else { return Ok(false) };
    let items: Vec<_> = read.items().map(|(key, value)| (key.to_vec(), value.map(|value| value.to_vec()))).collect();
    if round(read.sequence, &items) == bytes { Ok(true) } else { Err(format!("{items:?} comes back as other bytes")) }
}

/// Whether a table's file matches every checksum in it.
///
/// # Errors
/// It cannot be read.
pub fn table_is_sound(path: &Path) -> io::Result<bool> {
    File::open(path).and_then(|file| place_of_damage(&file)).map(|place| place.is_none())
}

/// How many rounds are in a store's engine.
///
/// # Errors
/// One is damaged.
pub fn rounds(store: &DurableStore) -> larder_core::Result<usize> {
    Moving::find(&store.shared().engine).map(|rounds| rounds.len()).map_err(|fault| fault.error("a store"))
}

/// Writes what is in memory to tables, as the engine does when it is full: rounds as rounds.
///
/// # Errors
/// Those of a write.
pub fn flush(store: &DurableStore) -> larder_core::Result<()> {
    store.shared().engine.settle().map_err(|fault| fault.error("a store"))
}

/// A key and its value; without one, it is removed.
pub type Entry = (Vec<u8>, Option<Vec<u8>>);

/// A batch as the engine journals it, of these entries, and its commit record.
pub fn batch(number: u64, sequence: u64, entries: &[Entry]) -> Vec<u8> {
    forged_batch(number, sequence, entries, entries)
}

/// The same, whose commit record is that of other entries: `told`.
pub fn forged_batch(number: u64, sequence: u64, entries: &[Entry], told: &[Entry]) -> Vec<u8> {
    let mut content = Content::default();
    for (key, value) in told {
        content.add(&item_key(key), value.as_deref());
    }
    let commit = Commit { sequence, content: content.sum(), items: content.items, ..Commit::default() }.encode();
    let named = entries.iter().map(|(key, value)| (item_key(key), value.clone()));
    let all: Vec<_> = named.chain([(COMMIT_KEY.to_vec(), Some(commit))]).collect();
    journal::framed(number, &all)
}

/// The same of an incarnation, which says that all batches before are on disk.
pub fn synced_batch(store: u64, number: u64, sequence: u64, synced: u64) -> Vec<u8> {
    let commit = Commit { sequence, synced, store, content: Content::default().sum(), ..Commit::default() };
    journal::framed(number, &[(COMMIT_KEY.to_vec(), Some(commit.encode()))])
}

/// The batches that stand at the front of these bytes, up to the first that is none: the engine's number of each, ours, and where it ends.
pub fn read_batches(bytes: &[u8]) -> Vec<(u64, u64, usize)> {
    journal::frames_of(Cursor::new(bytes), bytes.len() as u64)
}

/// What is noted of a store outside of its engine, as its file holds it.
pub fn note(store: u64, incarnation: u64, restores: u64, sequence: u64, journal: u64) -> String {
    sealed_note(&Noted { identity: Identity { store, incarnation, restores }, sequence, journal }.text())
}

/// Such a text with its check behind it.
pub fn sealed_note(body: &str) -> String {
    format!("{body}{}", check_line(body))
}

/// Reads that: whether it was taken.
///
/// # Errors
/// It does not come back.
pub fn read_note(text: &str) -> Result<bool, String> {
    let Some(noted) = Noted::parse(text) else { return Ok(false) };
    let again = Noted::parse(&sealed_note(&noted.text()));
    if again == Some(noted) { Ok(true) } else { Err(format!("{noted:?} comes back as {again:?}")) }
}
