//! The record of a lock, fuzzed.

use bytes::Bytes;

use super::layout::{LABEL_BYTES_MAX, LEASE_MAX, LEASE_MIN, Record};
use crate::fuzzing::{Codec, bytes, comes_back, unsealed};
use crate::name::Name;

fn read(bytes: &Bytes) -> Option<Record> {
    Record::decode(&Name::new("lock").ok()?, bytes).ok()
}

pub(crate) const CODECS: &[Codec] = &[Codec {
    name: "lock",
    draw: |rng| {
        let record = Record {
            generation: rng.u64(..),
            held: rng.bool(),
            token: rng.u64(..),
            owner: rng.u64(..),
            beat: rng.u64(..),
            lease_ms: rng.u32(LEASE_MIN.as_millis() as u32..=LEASE_MAX.as_millis() as u32),
            since_us: rng.u64(..),
            label: bytes(rng, LABEL_BYTES_MAX).into(),
        };
        record.encode().to_vec()
    },
    read: |bytes| comes_back(read(&Bytes::copy_from_slice(bytes)), |record| read(&record.encode())),
    seal: unsealed,
}];
