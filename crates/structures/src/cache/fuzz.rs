//! The entries of a cache, fuzzed.

use bytes::Bytes;

use super::layout::{Content, Record};
use crate::fuzzing::{Codec, bytes, comes_back, number, unsealed};

pub(crate) const CODECS: &[Codec] = &[Codec {
    name: "cache entry",
    draw: |rng| {
        let served_ms = number(rng).max(1);
        let content = rng.bool().then(|| Content { value: bytes(rng, 30).into(), served_ms });
        let record = Record {
            draw: rng.u64(..),
            written_ms: number(rng),
            life_ms: number(rng),
            // Fresh no longer than it is served.
            fresh_ms: if content.is_some() { rng.u64(0..=served_ms) } else { 0 },
            lease_ms: number(rng),
            key: bytes(rng, 20).into(),
            content,
        };
        record.encode().to_vec()
    },
    read: |bytes| {
        let read = Record::decode(&Bytes::copy_from_slice(bytes)).ok();
        comes_back(read, |record| Record::decode(&record.encode()).ok())
    },
    seal: unsealed,
}];
