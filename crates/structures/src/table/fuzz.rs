//! The entries and the list of a table, fuzzed.

use super::layout::{Entry, ListElements, Note, Says, Spot, Stamp, entry_place, new_entry, value_frame, whole_frame};
use crate::append::layout::Place;
use crate::fuzzing::{Codec, GENERATION, appended, bytes, number, read_appended, seal_appended};

const PLACE: Place = Place { generation: GENERATION, shard: 2 };

fn entry(rng: &mut fastrand::Rng) -> Vec<u8> {
    let key = bytes(rng, 12);
    let spot = Spot::of(&key, 7);
    let stamp = |seq| Stamp { generation: GENERATION, writer: 3, seq };
    let whole = whole_frame(stamp(1), &spot, (rng.u64(..), rng.u32(..)), &key, &bytes(rng, 20));
    let mut entry = new_entry(GENERATION, &whole).to_vec();
    for seq in 2..rng.u64(2..5) {
        entry.extend_from_slice(&value_frame(stamp(seq), &spot, &bytes(rng, 20)));
    }
    entry
}

fn read_entry(bytes: &[u8]) -> Result<bool, String> {
    let Ok(mut entry) = Entry::parse(bytes, GENERATION) else { return Ok(false) };
    let told = (entry.incarnation, entry.expiry_s, entry.key.to_vec(), entry.value.to_vec());
    let (stale, compacted) = (entry.stale_bytes(7), entry.compacted(7));
    let again = Entry::parse(&compacted, GENERATION).map_err(|error| format!("compacted: {error}"))?;
    if (again.incarnation, again.expiry_s, again.key.to_vec(), again.value.to_vec()) != told {
        return Err(format!("{told:?} is compacted to {again:?}"));
    }
    if bytes.len().saturating_sub(compacted.len()) < stale {
        return Err(format!("{stale} bytes were to be saved of {} and {} are left", bytes.len(), compacted.len()));
    }
    Ok(true)
}

fn list(rng: &mut fastrand::Rng) -> Vec<u8> {
    appended(rng, PLACE, |rng| {
        let incarnation = rng.u64(1..9);
        let key = [b'k', rng.u8(b'0'..b'4')];
        let note = match rng.u8(0..4) {
            0 => Note::Leaving { incarnation, since_s: number(rng) as u32 },
            1 => Note::Gone { incarnation },
            _ => Note::Listed { incarnation, expiry_s: number(rng) as u32, key: &key },
        };
        note.element()
    })
}

fn read_list(bytes: &[u8]) -> Result<bool, String> {
    read_appended::<ListElements>(bytes, PLACE, |listing| {
        let unlisted = listing.keys().find(|(key, says)| *says == Says::NotListed || listing.says(key) != *says);
        unlisted.map_or(Ok(()), |(key, says)| Err(format!("{key:?} is listed, and {says:?}")))
    })
}

pub(crate) const CODECS: &[Codec] = &[
    Codec {
        name: "table entry",
        draw: entry,
        read: read_entry,
        seal: |bytes| seal_appended(entry_place(GENERATION), bytes),
    },
    Codec { name: "table list", draw: list, read: read_list, seal: |bytes| seal_appended(PLACE, bytes) },
];
