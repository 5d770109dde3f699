//! Dumps: what was written is read, and what is cut short, damaged or none is told.

use bytes::Bytes;
use larder_core::Key;
use larder_dump::{DumpItem, DumpReader, DumpWriter, Head, Origin};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Input, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![Target::new("dumps", || dumps)]
}

const WORDS: &[&[u8]] = &[
    b"LARDER-DUMP 1\n",
    b"LARDER-DUMP 2\n",
    b"source ",
    b"made ",
    b"address ",
    b"store ",
    b"sequence ",
    b"\n",
    b"h",
    b"i",
    b"e",
];
/// Behind the magic line: kind and length, body, check.
const MAGIC_BYTES: usize = 14;
const PREFIX_BYTES: usize = 5;
const CHECK_BYTES: usize = 8;

fn head(input: &mut Input) -> Head {
    let origin = input.rng.bool().then(|| Origin {
        store: input.number(),
        incarnation: input.number(),
        restores: input.number(),
        sequence: input.number(),
    });
    let address = input.rng.bool().then(|| "redis://cache:6379".to_owned());
    Head { source: "memory:".to_owned(), address, made_ms: input.number(), origin }
}

fn items(input: &mut Input) -> Vec<DumpItem> {
    let mut items = Vec::new();
    for _ in 0..input.rng.usize(0..6) {
        let Ok(key) = Key::new(input.bytes(40)) else { continue };
        let expiry_ms = Some(input.number()).filter(|&ms| ms > 0);
        let most = if input.one_in(100) { 60_000 } else { 60 };
        items.push(DumpItem { key, flags: input.number() as u32, expiry_ms, value: Bytes::from(input.bytes(most)) });
    }
    items
}

fn written(head: &Head, items: &[DumpItem]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let failed = |error: larder_core::Error| format!("it cannot be written: {error}");
    let mut writer = DumpWriter::new(&mut out, head).map_err(failed)?;
    items.iter().try_for_each(|item| writer.push(item)).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(out)
}

/// All that is in it, or that it is none.
fn read(bytes: &[u8]) -> Option<(Head, Vec<DumpItem>)> {
    let mut reader = DumpReader::new(bytes).ok()?;
    let mut items = Vec::new();
    while let Some(block) = reader.next_block().ok()? {
        items.extend(block);
    }
    Some((reader.head().clone(), items))
}

/// Puts the check of every whole block right.
fn seal(bytes: &mut [u8]) {
    let (mut at, mut number) = (MAGIC_BYTES, 0);
    while let Some(length) = bytes.get(at + 1..at + PREFIX_BYTES).and_then(|length| length.try_into().ok()) {
        let end = at + PREFIX_BYTES + u32::from_le_bytes(length) as usize;
        if bytes.len() < end + CHECK_BYTES {
            return;
        }
        let check = xxh3_64_with_seed(&bytes[at..end], number);
        bytes[end..end + CHECK_BYTES].copy_from_slice(&check.to_le_bytes());
        (at, number) = (end + CHECK_BYTES, number + 1);
    }
}

fn dumps(input: &mut Input) -> Result<(), String> {
    let (head, items) = (head(input), items(input));
    let whole = written(&head, &items)?;
    let wrong = |what: &str, bytes: &[u8]| Err(format!("{what}: {}", shown(bytes)));
    if read(&whole) != Some((head, items)) {
        return wrong("a dump is not read as it was written", &whole);
    }
    let mut bytes = whole.clone();
    match input.rng.u8(0..4) {
        0 => bytes = input.jumble(WORDS, 12),
        1 => bytes.truncate(input.rng.usize(0..bytes.len())),
        _ => input.mutate(&mut bytes, WORDS, &whole),
    }
    let is_sealed = input.rng.bool();
    if is_sealed {
        seal(&mut bytes);
    }
    // The blocks are held as they come, and once more as items.
    let got = bounded("a dump", bytes.len(), 16, || read(&bytes))?;
    if !is_sealed && got.is_some() && bytes != whole {
        return wrong("a damaged dump is read", &bytes);
    }
    Ok(())
}
