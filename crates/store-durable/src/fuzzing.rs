//! Not for programs: stored bytes and journals, read, for the proof's fuzzing.

use std::io::Cursor;

use bytes::Bytes;

use crate::journal;
use crate::layout::{COMMIT_KEY, Commit, Content, Generations, Record, item_key, split_expiry_key};
use crate::place::{Identity, Noted, check_line};

/// An item as it is stored under `key`.
pub fn record(key: &[u8], marks: u8, flags: u32, expiry_ms: Option<u64>, cas: u64, value: &[u8]) -> Vec<u8> {
    // Every other token's is of a later generation.
    let generation = (cas % 2) as u32 * (cas >> 32) as u32;
    Record { marks, flags, expiry_ms, generation, cas, value: Bytes::copy_from_slice(value) }.encode(key)
}

/// Reads an item, and its own encoding again: whether it was taken.
///
/// # Errors
/// It does not come back.
pub fn read_record(key: &[u8], bytes: &[u8]) -> Result<bool, String> {
    let Ok(record) = Record::decode(key, &Bytes::copy_from_slice(bytes)) else { return Ok(false) };
    _ = (record.is_over(0), record.is_over(u64::MAX), split_expiry_key(bytes), Generations::decode(bytes));
    let again = Record::decode(key, &record.encode(key).into());
    if again.as_ref() == Ok(&record) { Ok(true) } else { Err(format!("{record:?} comes back as {again:?}")) }
}

/// A batch as the engine journals it, of these entries, and its commit record.
pub fn batch(number: u64, sequence: u64, entries: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut content = Content::default();
    for (key, value) in entries {
        content.add(&item_key(key), value.as_deref());
    }
    let commit = Commit { sequence, content: content.sum(), items: content.items, ..Commit::default() }.encode();
    let named = entries.iter().map(|(key, value)| (item_key(key), value.clone()));
    let all: Vec<_> = named.chain([(COMMIT_KEY.to_vec(), Some(commit))]).collect();
    journal::framed(number, &all)
}

/// The numbers of the batches that stand at the front of these bytes, up to the first that is none.
pub fn read_batches(bytes: &[u8]) -> Vec<(u64, u64)> {
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
