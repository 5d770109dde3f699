//! What the durable store keeps: items, rounds of them, the journal's batches, the notes outside of its engine. What was written is read, a changed bit is told, and garbage is none.

use larder_store_durable::fuzzing::{
    batch, note, read_batches, read_note, read_record, read_round, record, round, sealed_note, sealed_round,
};

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
    let mut bytes = whole.clone();
    input.mutate(&mut bytes, &[], &value);
    let is_read = bounded("an item", bytes.len(), 8, || read_record(&key, &bytes))??;
    // The check has 32 bits: of so many changes hardly one passes, and that one is no longer than it was.
    if is_read && bytes != whole && bytes.len() > whole.len() + 64 {
        return Err(format!("a changed item is read: {}", shown(&bytes)));
    }
    Ok(())
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

fn entries(input: &mut Input) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let count = input.rng.usize(0..4);
    let entry = |input: &mut Input| (input.bytes(12), input.rng.bool().then(|| input.bytes(40)));
    (0..count).map(|_| entry(input)).collect()
}

fn journal(input: &mut Input) -> Result<(), String> {
    let (mut whole, mut ends) = (Vec::new(), vec![0]);
    let mut written = Vec::new();
    for sequence in 1..=input.rng.u64(1..4) {
        let number = input.number();
        let entries = entries(input);
        whole.extend(batch(number, sequence, &entries));
        ends.push(whole.len());
        written.push((number, sequence));
    }
    if read_batches(&whole) != written {
        return Err(format!("batches are not read as they were written: {}", shown(&whole)));
    }
    let mut bytes = whole.clone();
    match input.rng.u8(0..4) {
        0 => bytes = input.bytes(120),
        1 => bytes.truncate(input.rng.usize(0..=bytes.len())),
        _ => input.mutate(&mut bytes, &[], &whole),
    }
    // The number lies outside of the checks: that is held by those around it.
    let read = bounded("a journal", bytes.len(), 8, || read_batches(&bytes))?;
    let changed_at = whole.iter().zip(&bytes).position(|(one, other)| one != other).unwrap_or(bytes.len());
    let sound = ends.iter().filter(|&&end| 0 < end && end <= changed_at).count();
    let is_prefix = read.len() >= sound && read[..sound] == written[..sound];
    if is_prefix { Ok(()) } else { Err(format!("{read:?} were read of {written:?}: {}", shown(&bytes))) }
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
    let text = if input.rng.bool() { sealed_note(&text) } else { text };
    bounded("a note", text.len(), 8, || read_note(&text))??;
    Ok(())
}
