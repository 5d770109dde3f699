//! What the store on Redis keeps there: items of a header and a value, and the tokens that say what an item holds.

use larder_store_redis::fuzzing::{item, read_item};

use super::{Input, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![Target::new("items in Redis", || items)]
}

fn items(input: &mut Input) -> Result<(), String> {
    // Most items have no flags, and a shorter header.
    let flags = if input.rng.bool() { input.number() as u32 } else { 0 };
    let value = input.bytes(60);
    let whole = item(input.number(), flags, &value);
    if read_item(&whole) != Ok(true) {
        return Err(format!("an item is not read as it was written: {}", shown(&whole)));
    }
    let mut bytes = whole;
    match input.rng.u8(0..8) {
        0 => bytes = input.bytes(40),
        1 => bytes.truncate(input.rng.usize(0..=bytes.len())),
        _ => input.mutate(&mut bytes, &[], &value),
    }
    match bounded("an item", bytes.len(), 8, || read_item(&bytes))? {
        Ok(_) => Ok(()),
        Err(what) => Err(format!("{what}: {}", shown(&bytes))),
    }
}
