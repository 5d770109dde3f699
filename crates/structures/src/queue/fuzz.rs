//! The state, the links and the segments of a queue, fuzzed.

use bytes::Bytes;
use larder_core::Item;

use super::engine::{Params, SEGMENT_BYTES};
use super::layout::{
    Below, Content, Mark, Open, Record, Remover, State, add, link, linked, note_frame, place, seal_state, segment,
};
use super::past::{Chain, Print};
use crate::append::Action;
use crate::append::layout::{frame, put_element};
use crate::fuzzing::{Codec, GENERATION, bytes, comes_back, number, seal_appended};

const NUMBER: u64 = 9;
const INCARNATION: u64 = 0x55;

fn ranges(rng: &mut fastrand::Rng) -> Vec<(u32, u32)> {
    let mut ranges = Vec::new();
    for _ in 0..rng.usize(0..5) {
        let start = rng.u32(0..1_000);
        add(&mut ranges, (start, start + rng.u32(1..50)));
    }
    ranges
}

fn print(rng: &mut fastrand::Rng) -> Print {
    let frames = rng.u32(0..100);
    Chain::of(frames, frames, 0).print(frames)
}

fn below(rng: &mut fastrand::Rng) -> Below {
    Below { segment: rng.bool().then(|| rng.u64(0..1 << 40)), is_guess: rng.bool() }
}

fn state(rng: &mut fastrand::Rng) -> Vec<u8> {
    let record = |rng: &mut fastrand::Rng| Record {
        segment: number(rng),
        incarnation: rng.u64(..),
        below: below(rng),
        taken: ranges(rng),
        print: print(rng),
        remover: rng.bool().then(|| Remover { writer: rng.u64(..), seq: number(rng), is_second: rng.bool() }),
    };
    let open = |rng: &mut fastrand::Rng| Open {
        segment: number(rng),
        ordinal: rng.u32(..),
        claim: rng.u64(..),
        attempts: rng.u32(..),
    };
    let state = State {
        seq: number(rng),
        tail: number(rng),
        incarnation: rng.u64(..),
        is_tail_lost: rng.bool(),
        live: number(rng),
        acked: number(rng),
        lost_segments: number(rng),
        lost_items: number(rng),
        found: number(rng),
        told: number(rng),
        marks: (0..rng.usize(0..4)).map(|_| Mark { writer: rng.u64(..), seq: number(rng) }).collect(),
        records: (0..rng.usize(0..4)).map(|_| record(rng)).collect(),
        opens: (0..rng.usize(0..4)).map(|_| open(rng)).collect(),
    };
    state.encode(GENERATION).to_vec()
}

fn read_state(bytes: &[u8]) -> Result<bool, String> {
    let state = State::decode(bytes, GENERATION).ok();
    for record in state.iter().flat_map(|state| &state.records) {
        let free = (record.first_free(100), record.last_free(100));
        if matches!(free, (Some(first), Some(last)) if first > last) || record.count() > record.end() {
            return Err(format!("{record:?} has free items {free:?}"));
        }
    }
    comes_back(state, |state| State::decode(&state.encode(GENERATION), GENERATION).ok())
}

fn note(rng: &mut fastrand::Rng) -> Bytes {
    let (below, taken, print) = (below(rng), ranges(rng), print(rng));
    let record = Record { segment: NUMBER, incarnation: INCARNATION, below, taken, print, remover: None };
    note_frame(&record, rng.u64(..), number(rng))
}

fn segment_of(rng: &mut fastrand::Rng) -> Vec<u8> {
    let place = place(NUMBER, INCARNATION);
    let note = rng.bool().then(|| note(rng));
    let mut bytes_of = segment(NUMBER, INCARNATION, note).to_vec();
    for seq in 1..rng.u64(1..5) {
        let mut elements = Vec::new();
        for _ in 0..rng.usize(1..5) {
            put_element(&mut elements, Action::Put, &bytes(rng, 12));
        }
        bytes_of.extend_from_slice(&frame(place, rng.u64(..), seq, &elements));
    }
    bytes_of
}

fn read_segment(bytes: &[u8]) -> Result<bool, String> {
    let item = Item { value: Bytes::copy_from_slice(bytes), ..Item::default() };
    let Ok(content) = Content::parse(NUMBER, &item, 1) else { return Ok(false) };
    let is_rising = content.taken.windows(2).all(|pair| pair[0].1 < pair[1].0);
    if is_rising && content.taken.iter().all(|range| range.0 < range.1) {
        return Ok(true);
    }
    Err(format!("taken ranges {:?}", content.taken))
}

pub(crate) const CODECS: &[Codec] = &[
    Codec { name: "queue", draw: state, read: read_state, seal: |bytes| seal_state(bytes, GENERATION) },
    Codec {
        name: "queue link",
        draw: |rng| link(GENERATION, NUMBER, rng.u64(..)).to_vec(),
        read: |bytes| {
            let read = linked(bytes, GENERATION, NUMBER).ok();
            comes_back(read, |&incarnation| linked(&link(GENERATION, NUMBER, incarnation), GENERATION, NUMBER).ok())
        },
        seal: crate::fuzzing::unsealed,
    },
    Codec {
        name: "queue parameters",
        draw: |rng| Params { segment_bytes: rng.u32(SEGMENT_BYTES), bytes_max: number(rng) }.encode().to_vec(),
        read: |bytes| comes_back(Params::decode(bytes), |params| Params::decode(&params.encode())),
        seal: crate::fuzzing::unsealed,
    },
    Codec {
        name: "queue segment",
        draw: segment_of,
        read: read_segment,
        seal: |bytes| seal_appended(place(NUMBER, INCARNATION), bytes),
    },
];
