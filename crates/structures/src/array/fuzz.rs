//! The shards and the commits of an array, fuzzed.

use super::commits::Commits;
use super::keeper::ArrayElements;
use super::layout::{Ordered, fenced, numbered, stored};
use crate::append::layout::{Action, Place, frame, put_element};
use crate::fuzzing::{Codec, GENERATION, appended, bytes, comes_back, number, read_appended, seal_appended};

const PLACE: Place = Place { generation: GENERATION, shard: 1 };
const SHARDS: u16 = 11;

fn commits(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut commits = Commits::new(GENERATION, SHARDS);
    for _ in 0..rng.usize(0..6) {
        let touched: Vec<u16> = (0..SHARDS).filter(|_| rng.bool()).collect();
        let base = rng.u64(0..=commits.last());
        commits = commits.next(rng.u64(..), touched, number(rng), base);
    }
    commits.encode().to_vec()
}

fn shard(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut value = appended(rng, PLACE, |rng| stored(&bytes(rng, 9)).into_owned());
    for seq in 100..rng.u64(100..103) {
        let mut operations = Vec::new();
        put_element(&mut operations, Action::Put, &stored(&bytes(rng, 5)));
        let change =
            if rng.bool() { numbered(number(rng), 7, &operations) } else { fenced(number(rng), 8, &operations) };
        value.extend_from_slice(&frame(PLACE, 99, seq, &change));
    }
    value
}

pub(crate) const CODECS: &[Codec] = &[
    Codec {
        name: "array commits",
        draw: commits,
        read: |bytes| {
            let commits = Commits::decode(bytes, GENERATION, SHARDS).ok();
            if let Some(commits) = &commits {
                _ = (commits.fate(3, 7), commits.is(commits.last(), 7), commits.wants(3, &Ordered::default()));
                _ = (commits.accepted(), commits.contradicted(commits), commits.chain_of(3));
            }
            comes_back(commits, |commits| Commits::decode(&commits.encode(), GENERATION, SHARDS).ok())
        },
        seal: |bytes| super::commits::seal(bytes, GENERATION),
    },
    Codec {
        name: "array shard",
        draw: shard,
        read: |bytes| {
            read_appended::<ArrayElements>(bytes, PLACE, |shard| {
                let count = shard.values().count();
                if count > shard.len_max() { Err(format!("{count} elements of {}", shard.len_max())) } else { Ok(()) }
            })
        },
        seal: |bytes| seal_appended(PLACE, bytes),
    },
];
