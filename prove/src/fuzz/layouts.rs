//! Every decoder of the structures: what was written is read, and whatever else stands there is refused, or read as what it says.

use std::sync::OnceLock;

use larder_structures::fuzzing::{Codec, codecs};

use super::input::minimised;
use super::{Input, Target, bounded, caught, shown};

pub(super) fn targets() -> Vec<Target> {
    all().iter().map(|codec| Target::new(codec.name, move || move |input: &mut Input| layout(codec, input))).collect()
}

/// What an input may take in memory, times its bytes: a bit each of members of 8 bytes, and a table over them.
const FACTOR: u64 = 600;

fn all() -> &'static [Codec] {
    static ALL: OnceLock<Vec<Codec>> = OnceLock::new();
    ALL.get_or_init(codecs)
}

fn layout(codec: &Codec, input: &mut Input) -> Result<(), String> {
    let drawn = (codec.draw)(&mut input.rng);
    let read = |bytes: &[u8]| caught(|| bounded(codec.name, bytes.len(), FACTOR, || (codec.read)(bytes))?.map(drop));
    match (codec.read)(&drawn) {
        Ok(true) => {}
        other => return Err(format!("{} drawn as {} is read as {other:?}", codec.name, shown(&drawn))),
    }
    let mut bytes = drawn;
    match input.rng.u8(0..8) {
        0 => bytes = input.bytes(200),
        // What another structure wrote.
        1 if input.one_in(8) => bytes = (all()[input.rng.usize(0..all().len())].draw)(&mut input.rng),
        _ => {
            let other = (codec.draw)(&mut input.rng);
            input.mutate(&mut bytes, &[], &other);
        }
    }
    if input.rng.bool() {
        (codec.seal)(&mut bytes);
    }
    let Err(what) = read(&bytes) else { return Ok(()) };
    let fails = |bytes: &[u8]| {
        let mut sealed = bytes.to_vec();
        (codec.seal)(&mut sealed);
        read(bytes).is_err() || read(&sealed).is_err()
    };
    Err(format!("{}: {what}; of {}", codec.name, shown(&minimised(bytes, fails))))
}
