//! The slots of an exact counter, and the copies of one that is on several servers, fuzzed.

use super::layout::{Mark, Slot};
use super::replica::Record;
use crate::fuzzing::{Codec, comes_back, number, unsealed};

fn slot(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut slot = Slot::default();
    for op in 1..rng.u64(1..14) {
        let mark = Mark { writer: rng.u64(1..12), op };
        let next = match rng.u8(0..6) {
            0 => slot.emptied(mark),
            1 => slot.released(),
            _ => slot.added(mark, rng.i128(..) >> rng.u32(1..127), number(rng)),
        };
        slot = next.unwrap_or(slot);
    }
    slot.encode().to_vec()
}

fn read_slot(bytes: &[u8]) -> Result<bool, String> {
    let read = Slot::decode(bytes);
    if let Some(slot) = &read {
        // What a writer does with whatever it met.
        let mark = Mark { writer: 5, op: 9 };
        _ = slot.fate(mark, slot.seq);
        _ = slot.fate(mark, slot.seq.saturating_sub(3));
        _ = (slot.added(mark, i128::MAX, 0), slot.emptied(mark), slot.released());
    }
    comes_back(read, |slot| Slot::decode(&slot.encode()))
}

pub(crate) const CODECS: &[Codec] = &[
    Codec { name: "counter slot", draw: slot, read: read_slot, seal: unsealed },
    Codec {
        name: "counter copy",
        // Two ballots of an epoch and a draw each, then the slot.
        draw: |rng| {
            let ballots = [number(rng), rng.u64(..), number(rng), rng.u64(..)].map(u64::to_le_bytes);
            [ballots.concat(), slot(rng)].concat()
        },
        read: |bytes| comes_back(Record::decode(bytes), |record| Record::decode(&record.encode())),
        seal: unsealed,
    },
];
