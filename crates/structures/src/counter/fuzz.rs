//! The slots of an exact counter, fuzzed.

use super::layout::{Mark, Slot};
use crate::fuzzing::{Codec, comes_back, number, unsealed};

pub(crate) const CODECS: &[Codec] = &[Codec {
    name: "counter slot",
    draw: |rng| {
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
    },
    read: |bytes| {
        let read = Slot::decode(bytes);
        if let Some(slot) = &read {
            // What a writer does with whatever it met.
            let mark = Mark { writer: 5, op: 9 };
            _ = slot.fate(mark, slot.seq);
            _ = slot.fate(mark, slot.seq.saturating_sub(3));
            _ = (slot.added(mark, i128::MAX, 0), slot.emptied(mark), slot.released());
        }
        comes_back(read, |slot| Slot::decode(&slot.encode()))
    },
    seal: unsealed,
}];
