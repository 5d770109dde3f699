//! The commits of an array with several shards: which change over several of them won each number.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `LRC` and the version, 2 |
//! | 4 | 8 | generation |
//! | 12 | 4 | check of all that follows: the low half of XXH3-64, seed = generation |
//! | 16 | varint | base: numbers up to this one are settled in every shard |
//! | | varint | the highest fencing token that a change was made under; 0: none |
//! | | 8 | chain of the base |
//! | | 8 + ⌈shards / 8⌉ each | of each number from base + 1 on: the id of the change that won it (0: none), and the shards it touches, a bit each, the lowest first |
//!
//! The key is written by `cas` alone. Each write adds one number, so the last number is the version of the whole.
//!
//! # How a change becomes visible at once
//! A change over several shards is first written into each as a *numbered change*, under the number after the last one. It counts nowhere
//! yet. Once all shards have it, one `cas` here gives the number to its id: from then on it counts in all of them. If the number
//! went to another, it is written again under the next one. A changer that dies in between leaves bytes that never count.
//!
//! A reader reads the commits with the shards, in any order, and must have a state of one moment: see [`Commits::wants`]. A compaction settles numbered changes: it
//! applies the ones that won, drops the others, and leaves the last number as its *mark*. One that meets a number which is
//! still open gives it to nobody first, so that it never can count.
//!
//! # How a part that went back shows
//! The commits and the shards may lie on different servers, and one of these may be set back alone, by a failover that lost its latest writes. If it was the commits', the
//! next changes get numbers that others had before, and shards in which these were settled would pass for having settled the new ones. So each number has a *chain*: the
//! XXH3-64 of the winner's id, seeded with the chain of the number before. A shard holds that of its mark, and only what has the same stands on the same past.
//!
//! # Eras
//! Who accepts such a loss gives the next number to the end of the era, the id of all ones ([`Commits::ended`]), after which no change wins one; has all shards settled anew; and then the commits begin a new *era*: the next multiple of 2^40 is the base, and a mark in all
//! shards. What was written under numbers of an earlier era counts nowhere from then on, whenever it comes.
//!
//! Source: the commit point at one record is that of Percolator (Peng and Dabek, OSDI 2010), without its locks: here readers never wait.

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::Ordered;
use crate::append::layout::{put_varint, take, take_u64, take_varint};

const MAGIC: [u8; 4] = *b"LRC\x02";
const HEADER_BYTES: usize = 16;
/// Numbers of an era.
const ERA_NUMBERS: u64 = 1 << 40;
/// The id that a number is given to after which no change of the era wins one.
const ENDS: u64 = u64::MAX;
/// What takes the place of a winner's id between one era and the next; no id has so many bytes.
const ERA_ENDS: &[u8] = b"loss accepted";

/// Which change won which number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commits {
    generation: u64,
    shards: u16,
    /// Numbers up to this one are settled in every shard.
    pub(crate) base: u64,
    /// The highest token of a lock.
    pub(crate) token: u64,
    /// Of `base`.
    chain: u64,
    /// From `base` + 1 on.
    winners: Vec<Winner>,
    /// Of each winner, a bit a shard: all in one, since each change copies them.
    touched: Vec<u8>,
}

/// Who won a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Winner {
    /// 0: nobody.
    id: u64,
    /// Of its number; it is not stored.
    chain: u64,
}

/// What became of a numbered change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Won,
    /// Another, or nobody, has its number.
    Beaten,
    /// Its number is the next one.
    Open,
    /// Too long ago to tell.
    Forgotten,
    /// Its number is further ahead than that: the commits are older than when it was chosen.
    Ahead,
}

/// What a reader lacks for a state of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Nothing,
    /// The shard is older than the commits: it lacks the change of this number.
    NewerShard(u64),
    /// The same: it has not settled what the commits have forgotten, up to this number, though it may have all of it in its log.
    SettledShard(u64),
    /// The commits are older than the shard, which has settled up to this number.
    NewerCommits(u64),
    /// The shard has settled up to this number, and its winners, or those before it, were others than the commits know.
    SamePast(u64),
}

impl Commits {
    pub(crate) fn new(generation: u64, shards: u16) -> Commits {
        Commits { generation, shards, base: 0, token: 0, chain: generation, winners: Vec::new(), touched: Vec::new() }
    }

    /// The last number that was given.
    pub(crate) fn last(&self) -> u64 {
        self.base + self.winners.len() as u64
    }

    /// The chain of the last number.
    pub(crate) fn tip(&self) -> u64 {
        self.winners.last().map_or(self.chain, |winner| winner.chain)
    }

    /// The chain of a number; `None` for one that is forgotten, or not given yet.
    pub(crate) fn chain_of(&self, number: u64) -> Option<u64> {
        if number == self.base { Some(self.chain) } else { self.winner(number).map(|winner| winner.chain) }
    }

    /// In which era they are.
    pub(crate) fn era(&self) -> u64 {
        self.base / ERA_NUMBERS
    }

    /// Why these cannot follow `before`, which was read earlier.
    pub(crate) fn contradicted(&self, before: &Commits) -> Option<String> {
        let last = before.last();
        if self.era() > before.era() {
            return Some("others have accepted a loss since this handle was opened".to_owned());
        }
        if self.last() < last {
            return Some(format!("its last change is {}; this handle saw {last}", self.last()));
        }
        let is_other = self.chain_of(last).is_some_and(|chain| chain != before.tip());
        is_other.then(|| format!("its changes up to {last} are not those that this handle saw"))
    }

    /// The last of an era: the next number goes to its end.
    pub(crate) fn ended(&self) -> Commits {
        self.next(ENDS, [], 0, self.base)
    }

    /// True if no change wins a number any more.
    pub(crate) fn is_ended(&self) -> bool {
        self.winners.last().is_some_and(|winner| winner.id == ENDS)
    }

    /// The first of the next era; shards are settled with its base as mark, and its chain, before it is written. `None`: there is none.
    ///
    /// It comes of these alone: whoever accepts a loss at the same time writes the same.
    pub(crate) fn accepted(&self) -> Option<Commits> {
        let base = (self.era() + 1).checked_mul(ERA_NUMBERS)?;
        let chain = xxh3_64_with_seed(ERA_ENDS, self.tip());
        Some(Commits { base, token: self.token, chain, ..Commits::new(self.generation, self.shards) })
    }

    /// How many numbers are remembered.
    pub(crate) fn len(&self) -> usize {
        self.winners.len()
    }

    /// What one number takes, in bytes.
    pub(crate) fn winner_bytes(&self) -> usize {
        8 + self.touched_bytes()
    }

    fn touched_bytes(&self) -> usize {
        usize::from(self.shards).div_ceil(8)
    }

    /// True if the number went to this change.
    pub(crate) fn is(&self, number: u64, id: u64) -> bool {
        id != 0 && self.winner(number).is_some_and(|winner| winner.id == id)
    }

    /// Where a number's winner is.
    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.base)?.checked_sub(1)?).ok()
    }

    fn winner(&self, number: u64) -> Option<&Winner> {
        self.winners.get(self.place(number)?)
    }

    fn touches(&self, number: u64, shard: u16) -> bool {
        let bits = self.place(number).and_then(|at| self.touched.chunks_exact(self.touched_bytes().max(1)).nth(at));
        bits.and_then(|bits| bits.get(usize::from(shard / 8))).is_some_and(|bits| bits & 1 << (shard % 8) != 0)
    }

    pub(crate) fn fate(&self, number: u64, id: u64) -> Fate {
        match number {
            _ if number <= self.base => Fate::Forgotten,
            _ if self.is(number, id) => Fate::Won,
            _ if number <= self.last() => Fate::Beaten,
            _ if number == self.last() + 1 => Fate::Open,
            _ => Fate::Ahead,
        }
    }

    /// The next state: the next number goes to `id` (0: nobody), which touches these shards. Numbers up to `base` are settled.
    pub(crate) fn next(&self, id: u64, touched: impl IntoIterator<Item = u16>, token: u64, base: u64) -> Commits {
        let mut bits = vec![0; self.touched_bytes()];
        for shard in touched {
            bits[usize::from(shard / 8)] |= 1 << (shard % 8);
        }
        let base = base.clamp(self.base, self.last());
        // Not more than there are winners, which are counted in a usize.
        let settled = (base - self.base) as usize;
        let chain = self.chain_of(base).unwrap_or(self.chain);
        let winner = Winner { id, chain: link(self.tip(), id) };
        let winners = [&self.winners[settled..], &[winner]].concat();
        let touched = [&self.touched[settled * bits.len()..], &bits].concat();
        Commits { base, token: self.token.max(token), chain, winners, touched, ..*self }
    }

    /// What a reader of a shard lacks. With nothing wanting, every shard shows the numbered changes up to the last, and no other:
    /// those up to its mark are settled in it, those above are in its log, and what the commits do not have is skipped.
    pub(crate) fn wants(&self, shard: u16, state: &Ordered<'_>) -> Wants {
        if state.mark > self.last() {
            return Wants::NewerCommits(state.mark);
        }
        if state.mark < self.base {
            return Wants::SettledShard(self.base);
        }
        if state.mark > 0 && self.chain_of(state.mark) != Some(state.chain) {
            return Wants::SamePast(state.mark);
        }
        let mut touching = (state.mark..=self.last()).skip(1).filter(|&number| self.touches(number, shard));
        let missing = touching.find(|number| !state.found.contains(number));
        missing.map_or(Wants::Nothing, Wants::NewerShard)
    }

    /// The bytes that are stored.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES + 28 + self.winners.len() * self.winner_bytes());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        put_varint(&mut out, self.base);
        put_varint(&mut out, self.token);
        out.extend_from_slice(&self.chain.to_le_bytes());
        for (winner, touched) in self.winners.iter().zip(self.touched.chunks(self.touched_bytes().max(1))) {
            out.extend_from_slice(&winner.id.to_le_bytes());
            out.extend_from_slice(touched);
        }
        let check = check(self.generation, &out[HEADER_BYTES..]);
        out[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&check.to_le_bytes());
        Bytes::from(out)
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for what is no such value, or another one's.
    pub(crate) fn decode(bytes: &[u8], generation: u64, shards: u16) -> Result<Commits> {
        let mismatch = |why: &str| {
            let detail = format!("these are no commits of this array, {why}: {}", Shown(bytes));
            Error::new(ErrorKind::LayoutMismatch, detail)
        };
        let Some((header, mut rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(mismatch("too short"));
        };
        if header[..4] != MAGIC || header[4..12] != generation.to_le_bytes() {
            return Err(mismatch("of another layout or generation"));
        }
        if header[12..] != check(generation, rest).to_le_bytes() {
            return Err(mismatch("the check does not match"));
        }
        let mut commits = Commits::new(generation, shards);
        let read = (|| {
            commits.base = take_varint(&mut rest)?;
            commits.token = take_varint(&mut rest)?;
            commits.chain = take_u64(&mut rest)?;
            let count = rest.len() / commits.winner_bytes();
            commits.winners.reserve_exact(count);
            commits.touched.reserve_exact(count * commits.touched_bytes());
            while !rest.is_empty() {
                let id = take_u64(&mut rest)?;
                commits.touched.extend_from_slice(take(&mut rest, commits.touched_bytes())?);
                commits.winners.push(Winner { id, chain: link(commits.tip(), id) });
            }
            commits.base.checked_add(commits.winners.len() as u64)
        })();
        read.map(|_| commits).ok_or_else(|| mismatch("malformed"))
    }
}

/// The chain of a number that went to `id`, by that of the number before.
fn link(chain: u64, id: u64) -> u64 {
    xxh3_64_with_seed(&id.to_le_bytes(), chain)
}

/// Puts the check right.
#[cfg(feature = "fuzzing")]
pub(super) fn seal(bytes: &mut [u8], generation: u64) {
    if let Some((header, rest)) = bytes.split_at_mut_checked(HEADER_BYTES) {
        header[HEADER_BYTES - 4..].copy_from_slice(&check(generation, rest).to_le_bytes());
    }
}

fn check(generation: u64, bytes: &[u8]) -> u32 {
    // The low half: truncation is meant.
    xxh3_64_with_seed(bytes, generation) as u32
}

#[cfg(test)]
#[path = "commits_tests.rs"]
mod tests;
