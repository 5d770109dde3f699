//! The windows of visitors, fuzzed.

use super::layout::{Params, new_counter, parse_counter, parse_shard, shard_value};
use crate::fuzzing::{Codec, comes_back, number, unsealed};

pub(crate) const CODECS: &[Codec] = &[
    Codec {
        name: "visitors",
        draw: |rng| Params { period_ms: number(rng), shards: rng.u16(..) }.encode().to_vec(),
        read: |bytes| comes_back(Params::decode(bytes), |params| Params::decode(&params.encode())),
        seal: unsealed,
    },
    Codec {
        name: "visitors counter",
        draw: |rng| [new_counter(rng.u64(1..1 << 22)).into_bytes(), vec![b' '; rng.usize(0..3)]].concat(),
        read: |bytes| {
            comes_back(parse_counter(bytes).ok(), |&(incarnation, hits)| {
                parse_counter((incarnation << 40 | hits).to_string().as_bytes()).ok()
            })
        },
        seal: unsealed,
    },
    Codec {
        name: "visitors shard",
        draw: |rng| {
            let hashes: Vec<u64> = (0..rng.usize(0..9)).map(|_| rng.u64(..)).collect();
            shard_value(rng.u64(..), &hashes).to_vec()
        },
        read: |bytes| {
            comes_back(parse_shard(bytes).ok(), |(incarnation, hashes)| {
                parse_shard(&shard_value(*incarnation, hashes)).ok()
            })
        },
        seal: unsealed,
    },
];
