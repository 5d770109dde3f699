//! What the durable store keeps: items, rounds of them, the journal's batches, the notes outside of its engine. What was written is read, and whatever was changed is refused.
//!
//! One thing lies under no check: the number that the engine gives a batch of the journal. A change of it is held against the numbers around it (`follows`, `tells_of_a_loss` in the store's
//! `journal.rs`), and so is the order of whole batches, which is not looked at here.

use larder_store_durable::fuzzing::{
    Entry, batch, forged_batch, note, read_batches, read_note, read_record, read_round, record, round, sealed_note,
    sealed_round,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{Input, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target::new("durable items", || items),
        Target::new("durable rounds", || rounds),
        Target::new("durable journal", || journal),
        Target::new("durable notes", || notes),
    ]
}

fn items(input: &mut Input) -> Result<(), String> {
    let key = input.bytes(40);
    let expiry_ms = input.rng.bool().then(|| input.number());
    let (marks, flags, cas, value) = (input.rng.u8(..), input.number() as u32, input.number(), input.bytes(60));
    let whole = record(&key, marks, flags, expiry_ms, cas, &value);
    if read_record(&key, &whole) != Ok(true) {
        return Err(format!("an item is not read as it was written: {}", shown(&whole)));
    }
    let mut other = key.clone();
    input.mutate(&mut other, &[], &value);
    if other != key && read_record(&other, &whole)? && !has_its_check(&other, &whole) {
        return Err(format!("the item of {} is read as that of {}: {}", shown(&key), shown(&other), shown(&whole)));
    }
    let mut bytes = whole.clone();
    input.mutate(&mut bytes, &[], &value);
    let is_read = bounded("an item", bytes.len(), 8, || read_record(&key, &bytes))??;
    if is_read && bytes != whole && !has_its_check(&key, &bytes) {
        return Err(format!("a changed item is read: {} of {}", shown(&bytes), shown(&whole)));
    }
    Ok(())
}

/// Whether the check at the end of an item is that of its bytes, as `docs/layouts.md` has it: of 2^32 changes one leaves a right one, by chance.
fn has_its_check(key: &[u8], bytes: &[u8]) -> bool {
    let Some((body, found)) = bytes.split_last_chunk::<4>() else { return false };
    let all = [&(key.len() as u32).to_le_bytes(), key, body].concat();
    (xxh3_64(&all) as u32).to_le_bytes() == *found
}

fn rounds(input: &mut Input) -> Result<(), String> {
    let whole = round(input.number(), &entries(input));
    if read_round(&whole) != Ok(true) {
        return Err(format!("a round is not read as it was written: {}", shown(&whole)));
    }
    let mut bytes = whole[..whole.len() - 8].to_vec();
    input.mutate(&mut bytes, &[b"\xff\xff\xff\xff"], &whole);
    // With a check that is right, it is read as what it says or not at all.
    let sealed = sealed_round(&bytes);
    bounded("a round", sealed.len(), 8, || read_round(&sealed))??;
    // With the one that it had, only as it was.
    bytes.extend_from_slice(&whole[whole.len() - 8..]);
    if bounded("a round", bytes.len(), 8, || read_round(&bytes))?? && bytes != whole {
        return Err(format!("a changed round is read: {}", shown(&bytes)));
    }
    Ok(())
}

fn entries(input: &mut Input) -> Vec<Entry> {
    let count = input.rng.usize(0..4);
    let entry = |input: &mut Input| (input.bytes(12), input.rng.bool().then(|| input.bytes(40)));
    (0..count).map(|_| entry(input)).collect()
}

/// Behind the first byte of a batch and its 4 of how many entries it has: the engine's number.
const NUMBER: std::ops::Range<usize> = 5..13;

/// A batch but for its number, which lies under no check.
fn but_its_number(batch: &[u8]) -> Vec<u8> {
    [&batch[..NUMBER.start], &batch[NUMBER.end..]].concat()
}

/// Each batch that is read is one that was written, to the byte, its number aside; and up to the first change there are all.
fn journal(input: &mut Input) -> Result<(), String> {
    let (mut whole, mut written, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for sequence in 1..=input.rng.u64(1..4) {
        let number = input.number();
        let entries = entries(input);
        forged(input, number, sequence, &entries)?;
        let batch = batch(number, sequence, &entries);
        whole.extend_from_slice(&batch);
        ends.push((number, sequence, whole.len()));
        written.push(but_its_number(&batch));
    }
    if read_batches(&whole) != ends {
        return Err(format!("batches are not read as they were written: {}", shown(&whole)));
    }
    let mut bytes = whole.clone();
    match input.rng.u8(0..4) {
        0 => bytes = input.bytes(120),
        1 => bytes.truncate(input.rng.usize(0..=bytes.len())),
        _ => input.mutate(&mut bytes, &[], &whole),
    }
    let read = bounded("a journal", bytes.len(), 8, || read_batches(&bytes))?;
    let changed_at = whole.iter().zip(&bytes).position(|(one, other)| one != other).unwrap_or(bytes.len());
    let sound = ends.iter().filter(|&&(.., end)| end <= changed_at).count();
    if read.get(..sound) != Some(&ends[..sound]) {
        return Err(format!("{read:?} were read of {ends:?}, changed at {changed_at}: {}", shown(&bytes)));
    }
    let starts = std::iter::once(0).chain(read.iter().map(|&(.., end)| end));
    for (start, &(number, sequence, end)) in starts.zip(&read) {
        let batch = &bytes[start..end];
        if batch[NUMBER] != number.to_le_bytes() || !written.contains(&but_its_number(batch)) {
            return Err(format!("a changed batch is read, as {number} and {sequence}: {}", shown(batch)));
        }
    }
    Ok(())
}

/// A batch whose commit record is of other entries is none, though the engine's check is right.
fn forged(input: &mut Input, number: u64, sequence: u64, entries: &[Entry]) -> Result<(), String> {
    let mut others = entries.to_vec();
    match (input.rng.u8(0..4), others.len()) {
        (0, 1..) => _ = others.pop(),
        (1 | 2, 1..) => {
            let at = input.rng.usize(0..others.len());
            let (key, value) = &mut others[at];
            let bytes = if input.rng.bool() { key } else { value.get_or_insert_default() };
            input.mutate(bytes, &[], b"other");
        }
        _ => others.push((input.bytes(12), None)),
    }
    let bytes = forged_batch(number, sequence, &others, entries);
    if others != entries && !read_batches(&bytes).is_empty() {
        return Err(format!("a batch of {others:?} is read by the commit record of {entries:?}: {}", shown(&bytes)));
    }
    Ok(())
}

fn notes(input: &mut Input) -> Result<(), String> {
    const WORDS: &[&[u8]] = &[
        b"larder",
        b"store ",
        b"incarnation ",
        b"restores ",
        b"sequence ",
        b"journal ",
        b"check ",
        b"\n",
        b"0",
        b"f",
        b"+",
    ];
    let (store, incarnation) = (input.number(), input.number());
    let whole = note(store, incarnation, input.number(), input.number(), input.number());
    if read_note(&whole) != Ok(true) {
        return Err(format!("a note is not read as it was written: {whole:?}"));
    }
    let mut bytes = whole.clone().into_bytes();
    input.mutate(&mut bytes, WORDS, whole.as_bytes());
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let is_sealed = input.rng.bool();
    let text = if is_sealed { sealed_note(&text) } else { text };
    let is_read = bounded("a note", text.len(), 8, || read_note(&text))??;
    if is_read && !is_sealed && text != whole {
        return Err(format!("a changed note is read: {text:?} of {whole:?}"));
    }
    Ok(())
}
