//! Periods on the store's own sets of integers: a shard is a set, a visitor one member of it, and the reply to adding him tells whether he is new.
//!
//! A server keeps a small set of integers as a sorted array of 2, 4 or 8 bytes a member, the width of the widest. So shards are made for as many members as the
//! server keeps so ([`sizing`](super::sizing)), and members have 32 bits wherever they can.
//!
//! | what | as a member |
//! |---|---|
//! | the mark that every shard has | -2^31 |
//! | compact | offset + 1 - 2^31, below 2^31 |
//! | exact, integers | (upper / 2^(k-1)) 2^32 + lower + 1 - 2^31, of *upper* and *lower* half of the id, where there are 2^k to 2^(k+1) - 1 shards |
//!
//! **Why an exact member can be so short**: the shard is taken from a hash whose upper half is *F*(lower) exclusive-or the bits of *upper*, reversed ([`id`](super::id)). Lower is
//! in the member. So the first *k* bits of the hash tell the last *k* bits of *upper*; and as a shard touches at most two such prefixes, next to each other, the
//! last of these bits, which is in the member, tells which. An id below 2^(31 + k) fits 32 bits: at 10 million visitors those below 2^45.
//!
//! A set that lost its last member is gone, and one that is missing is made by the next add. So each shard has a mark, and an add looks for it and writes as one
//! step: a shard without one was lost, or is another program's, and is not written to.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use larder_core::native::{Collection, Guarded, GuardedAct, Native, NativeReply};
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, Op, Replies, Reply, Result, Ttl, ambient};
use tokio::task::JoinSet;

use super::Novelty;
use super::add::Told;
use super::core::{Core, Day, as_ms};
use super::id::{Hash, Rounds};
use super::layout::{Head, Params, Precision, Shape, Spot};
use crate::events;
use crate::owned::{self, Owned};
use crate::retry::Backoff;

/// What 0 stands for, and with it the mark.
const BIAS: i64 = 1 << 31;
/// The digits of the mark.
const MARK: &[u8] = b"-2147483648";
/// How many members a server keeps packed where it does not tell.
const MEMBERS_MAX_DEFAULT: u64 = 512;
/// How many batches of one call are under way at once.
const BATCHES_UNDER_WAY_MAX: usize = 4;
/// How many ids and shards a batch has.
const OPS_A_BATCH: usize = 16_384;
/// How many ids an op has: a server does one op at a time.
const IDS_AN_OP: usize = 1_024;
const ROUNDS_MAX: usize = 64;
/// How often a call meets a fault that passes while none of its ids is in doubt.
const FAULTS_MAX: u32 = 8;

/// The member of an offset. Offsets are below 2^63 - 1.
pub(super) fn member(offset: u64) -> Bytes {
    let number = (offset as i64).wrapping_add(1).wrapping_sub(BIAS);
    Bytes::from(number.to_string())
}

/// The offset of a member; `None` for the mark, and an error for what is no member.
fn offset(member: &[u8]) -> Result<Option<u64>> {
    let number = std::str::from_utf8(member).ok().and_then(|digits| digits.parse::<i64>().ok());
    // The last offset of all is one more than 63 bits hold.
    let number = number.and_then(|number| u64::try_from(i128::from(number) + i128::from(BIAS)).ok());
    let number = number.ok_or_else(strange)?;
    Ok(number.checked_sub(1))
}

fn strange() -> Error {
    Error::new(ErrorKind::LayoutMismatch, "this is no shard of unique visitors: a member is none of theirs")
}

/// Where the id of a hash stands, exactly.
pub(super) fn exact_spot(head: &Head, hash: Hash) -> Spot {
    let shard = head.spot(hash, false).shard;
    let (upper, lower) = (hash.low >> 32, hash.low & u64::from(u32::MAX));
    Spot { shard, offset: (upper >> (prefix_bits(head) - 1)) << 32 | lower, low: 0 }
}

/// The id at an offset of a shard.
fn exact_id(head: &Head, shard: u32, offset: u64, rounds: &Rounds) -> u64 {
    let bits = prefix_bits(head);
    // The halves: truncation is meant.
    let (rest, lower) = (offset >> 32, offset as u32);
    let mixed = rounds.of(lower) >> (32 - bits);
    // Below 2^bits, and bits are 22 at the most.
    let first = (head.first(shard) >> (64 - bits)) as u32;
    let prefix = first + u32::from((first ^ mixed) & 1 != (rest & 1) as u32);
    let known = u64::from((prefix ^ mixed).reverse_bits() >> (32 - bits));
    let upper = rest << (bits - 1) | known & ((1 << (bits - 1)) - 1);
    upper << 32 | u64::from(lower)
}

/// How many bits of a hash a shard tells, up to one.
fn prefix_bits(head: &Head) -> u32 {
    // There are SHARDS_MIN at the least.
    head.shards.max(2).ilog2()
}

/// An id of a call.
struct One {
    spot: Spot,
    novelty: Option<Novelty>,
    /// A reply was lost: it may be this call that added it.
    is_in_doubt: bool,
    is_done: bool,
    error: Option<Error>,
}

/// What of a call goes out in one batch: ids by their place, those of one shard next to each other.
struct Part {
    /// Of each op.
    ids: Vec<Vec<usize>>,
    batch: Batch,
    /// Ids and ops.
    weight: usize,
}

impl Core {
    /// True where shards are sets of the store's own.
    pub(super) fn is_native(&self) -> bool {
        self.params.shape == Shape::Native
    }

    /// How many members a shard may have so that the server keeps it packed, the mark included.
    pub(super) fn members_max(&self) -> u64 {
        let told = self.store.profile().encodings.map(|encodings| encodings.set_integers_max);
        told.filter(|&most| most > 0).unwrap_or(MEMBERS_MAX_DEFAULT)
    }

    /// Where a hash stands in a period.
    pub(super) fn spot(&self, head: &Head, hash: Hash) -> Spot {
        match (self.is_native(), self.params.precision) {
            (true, Precision::Exact) => exact_spot(head, hash),
            _ => head.spot(hash, self.params.is_wide()),
        }
    }

    /// The op that makes a shard, with its mark alone.
    pub(super) fn make_set_op(&self, day: &Day, key: Key) -> Op {
        let life = match self.life(day.period) {
            Ttl::After(life) => Some(as_ms(life).max(1)),
            Ttl::Never => None,
        };
        owned::make_op(key, Collection::Set, Bytes::from_static(MARK), life)
    }

    /// Adds ids of a period. A period that is known needs **1 round trip**; batches of 16,383 ids and shards go out four at a time.
    ///
    /// To be dropped midway does no harm: some of them count.
    pub(super) async fn add_members(self: &Arc<Self>, deadline: Instant, day: &Day, spots: &[Spot]) -> Told {
        let mut order: Vec<usize> = (0..spots.len()).collect();
        order.sort_unstable_by_key(|&at| (spots[at], at));
        let mut ones: Vec<One> = Vec::with_capacity(spots.len());
        let mut asked = vec![0; spots.len()];
        for at in order {
            let spot = spots[at];
            if ones.last().is_none_or(|one| one.spot != spot) {
                ones.push(One { spot, novelty: None, is_in_doubt: false, is_done: false, error: None });
            }
            asked[at] = ones.len() - 1;
        }
        self.settle_members(deadline, day, &mut ones).await;
        told(&mut ones, &asked)
    }

    async fn settle_members(self: &Arc<Self>, deadline: Instant, day: &Day, ones: &mut [One]) {
        let mut backoff = Backoff::new(super::add::PAUSE_FIRST, super::add::PAUSE_MAX);
        let mut faults = 0;
        for _ in 0..ROUNDS_MAX {
            let open: Vec<usize> = (0..ones.len()).filter(|&at| !ones[at].is_done).collect();
            if open.is_empty() || ambient::now() >= deadline {
                return;
            }
            let is_again = match self.parts(day, ones, &open) {
                Ok(parts) => self.send_parts(deadline, day, parts, ones).await,
                Err(error) => return open.iter().for_each(|&at| ones[at].error = Some(error.clone())),
            };
            if !is_again {
                return;
            }
            faults += 1;
            if faults >= FAULTS_MAX && !ones.iter().any(|one| one.is_in_doubt && !one.is_done) {
                return;
            }
            let left = deadline.saturating_duration_since(ambient::now());
            tokio::time::sleep(backoff.next_pause().min(left)).await;
        }
    }

    /// Puts ids into batches, those of one shard into one op.
    fn parts(&self, day: &Day, ones: &[One], open: &[usize]) -> Result<Vec<Part>> {
        // One is left for a look at the manifest.
        let room = OPS_A_BATCH.min(self.store.profile().batch_ops_max).saturating_sub(1).max(2);
        let mut parts: Vec<Part> = Vec::new();
        for ids in open.chunk_by(|&one, &other| ones[one].spot.shard == ones[other].spot.shard) {
            let Some(&first) = ids.first() else { continue };
            let key = self.shard_key(&day.head, ones[first].spot.shard)?;
            for ids in ids.chunks(IDS_AN_OP.min(room - 1)) {
                if parts.last().is_none_or(|part| part.weight + ids.len() + 1 > room) {
                    parts.push(Part { ids: Vec::new(), batch: Batch::new(), weight: 0 });
                }
                let Some(part) = parts.last_mut() else { continue };
                let entries = ids.iter().map(|&at| (member(ones[at].spot.offset), Bytes::new())).collect();
                let act = GuardedAct::Put { entries };
                let guarded = Guarded { of: Collection::Set, mark: Bytes::from_static(MARK), act };
                part.batch.push(Op::native(key.clone(), Native::Guarded(guarded)));
                part.ids.push(ids.to_vec());
                part.weight += ids.len() + 1;
            }
        }
        Ok(parts)
    }

    /// Sends batches, several at once. True if something must be tried again.
    async fn send_parts(self: &Arc<Self>, deadline: Instant, day: &Day, parts: Vec<Part>, ones: &mut [One]) -> bool {
        let ctx = Ctx { deadline: Some(deadline) };
        let mut parts = parts.into_iter();
        if parts.len() == 1 {
            let Some(Part { ids, batch, .. }) = parts.next() else { return false };
            let replies = self.vigil().run(ctx, batch).await;
            return self.take_in(day, &ids, replies, ones);
        }
        let mut under_way: JoinSet<(Vec<Vec<usize>>, Replies)> = JoinSet::new();
        let (mut is_again, mut sent, mut answered) = (false, Vec::new(), 0);
        loop {
            while under_way.len() < BATCHES_UNDER_WAY_MAX {
                let Some(Part { ids, batch, .. }) = parts.next() else { break };
                let vigil = self.vigil().clone();
                sent.push(ids.clone());
                under_way.spawn(async move { (ids, vigil.run(ctx, batch).await) });
            }
            match under_way.join_next().await {
                Some(Ok((ids, replies))) => {
                    answered += 1;
                    is_again |= self.take_in(day, &ids, replies, ones);
                }
                // A task that panicked: what it sent is in doubt, and is sent again.
                Some(Err(_)) => is_again = true,
                None => break,
            }
        }
        if answered < sent.len() {
            sent.iter().flatten().flatten().for_each(|&at| ones[at].is_in_doubt |= !ones[at].is_done);
        }
        is_again
    }

    /// Takes in the replies to a batch. True if something must be tried again.
    fn take_in(&self, day: &Day, ids: &[Vec<usize>], replies: Replies, ones: &mut [One]) -> bool {
        let mut replies = replies.into_iter();
        let mut passing = None;
        for ids in ids {
            let Some(&first) = ids.first() else { continue };
            let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            match reply.map(Reply::into_native) {
                Ok(Some(NativeReply::Flags(flags))) if flags.len() == ids.len() => {
                    ids.iter().zip(flags).for_each(|(&at, is_new)| ones[at].take_in(is_new));
                }
                Ok(Some(NativeReply::Unmarked)) => {
                    let lost = self.lost_shard(day, ones[first].spot.shard);
                    ids.iter().for_each(|&at| ones[at].fail(lost.clone()));
                }
                Ok(_) => ids.iter().for_each(|&at| ones[at].fail(strange())),
                Err(error) => ids.iter().for_each(|&at| ones[at].fault(error.clone())),
            }
            for &at in ids {
                ones[at].is_done |= ones[at].novelty.is_some() && ones[at].error.is_none();
                passing = passing.or(ones[at].error.as_ref().filter(|_| !ones[at].is_done).map(Error::kind));
            }
        }
        if let Some(kind) = passing {
            events::retry(self.vigil().subject(), kind);
        }
        passing.is_some()
    }

    /// Which of these offsets a shard has, shard by shard. **Round trips: 1** for every 4,096 shards.
    pub(super) async fn are_members(&self, ctx: Ctx, day: &Day, shards: &[(u32, Vec<u64>)]) -> Result<Vec<Vec<bool>>> {
        let mut found = Vec::with_capacity(shards.len());
        for part in shards.chunks(self.ops_a_batch()) {
            let ops = part.iter().map(|(shard, offsets)| {
                Ok(has_op(self.shard_key(&day.head, *shard)?, offsets.iter().map(|&offset| member(offset)).collect()))
            });
            let replies = self.vigil().run(ctx, ops.collect::<Result<Batch>>()?).await;
            for ((shard, offsets), reply) in part.iter().zip(replies) {
                let Some(NativeReply::Flags(flags)) = reply?.into_native() else { return Err(strange()) };
                match flags.split_first() {
                    Some((true, flags)) if flags.len() == offsets.len() => found.push(flags.to_vec()),
                    Some((false, _)) => return Err(self.lost_shard(day, *shard)),
                    _ => return Err(strange()),
                }
            }
        }
        Ok(found)
    }

    /// How many visitors each shard has. **Round trips: 1** for every 4,096.
    pub(super) async fn set_sizes(&self, ctx: Ctx, day: &Day, shards: &[u32]) -> Result<Vec<u32>> {
        let mut sizes = Vec::with_capacity(shards.len());
        let a_batch = self.ops_a_batch().min(self.store.profile().batch_ops_max.saturating_sub(1) / 2).max(1);
        for part in shards.chunks(a_batch) {
            let mut ops = Batch::with_capacity(2 * part.len() + 1);
            for key in self.shard_keys(&day.head, part.iter().copied())? {
                ops.push(Op::native(key.clone(), Native::SetHas { members: vec![Bytes::from_static(MARK)] }));
                ops.push(Op::native(key, Native::SetLen));
            }
            let mut replies = self.vigil().run(ctx, ops).await.into_iter();
            let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            for &shard in part {
                let (marked, size) = (next().and_then(is_marked)?, next()?);
                match size.into_native() {
                    // The mark is one of them. They are two commands: a shard that goes in between has none.
                    Some(NativeReply::Count(members @ 1..)) if marked => {
                        sizes.push(u32::try_from(members - 1).unwrap_or(u32::MAX));
                    }
                    Some(NativeReply::Count(_)) => return Err(self.lost_shard(day, shard)),
                    _ => return Err(strange()),
                }
            }
        }
        Ok(sizes)
    }

    /// How many shards the server does not keep packed, as it says itself: what was unpacked once stays so, whatever the limits are now. **Round trips: 1** for every 4,096.
    pub(super) async fn unpacked_sets(&self, ctx: Ctx, day: &Day) -> Result<u64> {
        let shards: Vec<u32> = (0..day.head.shards).collect();
        let mut unpacked = 0;
        for part in shards.chunks(self.ops_a_batch().min(self.store.profile().batch_ops_max.saturating_sub(1)).max(1)) {
            let keys = self.shard_keys(&day.head, part.iter().copied())?;
            let ops: Batch = keys.into_iter().map(|key| Op::native(key, Native::Encoding)).collect();
            let replies = self.vigil().run(ctx, ops).await;
            for (&shard, reply) in part.iter().zip(replies) {
                match reply?.into_native() {
                    Some(NativeReply::Text(Some(encoding))) => {
                        unpacked += u64::from(!matches!(&encoding[..], "intset" | "listpack"));
                    }
                    Some(NativeReply::Text(None)) => return Err(self.lost_shard(day, shard)),
                    _ => return Err(strange()),
                }
            }
        }
        Ok(unpacked)
    }

    /// The hashes of shards, each sorted, as numbers of as many bits as the head says. **Round trips: 1.**
    pub(super) async fn set_hashes(&self, ctx: Ctx, day: &Day, shards: &[u32]) -> Result<Vec<Vec<u64>>> {
        let keys = self.shard_keys(&day.head, shards.iter().copied())?;
        let replies = self.vigil().run(ctx, keys.into_iter().map(set_op).collect()).await;
        let rounds = Rounds::new(self.params.seed);
        let mut all = Vec::with_capacity(shards.len());
        for (&shard, reply) in shards.iter().zip(replies) {
            let Some(NativeReply::Members(members)) = reply?.into_native() else { return Err(strange()) };
            match hashes(&self.params, &day.head, shard, members, &rounds)? {
                Some(hashes) => all.push(hashes),
                None => return Err(self.lost_shard(day, shard)),
            }
        }
        Ok(all)
    }
}

/// The hashes of a set's members, sorted, as numbers of as many bits as the head says; `None` for a set without its mark.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] where a member is none of this shard's.
pub(super) fn hashes(
    params: &Params,
    head: &Head,
    shard: u32,
    members: Vec<Bytes>,
    rounds: &Rounds,
) -> Result<Option<Vec<u64>>> {
    let (mut hashes, mut is_marked) = (Vec::with_capacity(members.len()), false);
    for found in members {
        match offset(&found)? {
            None => is_marked = true,
            Some(offset) => hashes.push(hash_at(params, head, shard, offset, rounds)?),
        }
    }
    hashes.sort_unstable();
    Ok(is_marked.then_some(hashes))
}

fn hash_at(params: &Params, head: &Head, shard: u32, offset: u64, rounds: &Rounds) -> Result<u64> {
    if params.precision == Precision::Exact {
        let hash = rounds.hash(exact_id(head, shard, offset, rounds));
        return if exact_spot(head, hash) == (Spot { shard, offset, low: 0 }) { Ok(hash.high) } else { Err(strange()) };
    }
    if offset >= head.span(shard) {
        return Err(strange());
    }
    // Below 2^bits, so it fits.
    Ok((head.first(shard) + u128::from(offset)) as u64)
}

/// The op that reads all of a set.
pub(super) fn set_op(key: Key) -> Op {
    Op::native(key, Native::SetAll)
}

impl One {
    fn take_in(&mut self, is_new: bool) {
        let novelty = match (is_new, self.is_in_doubt) {
            (false, true) => Novelty::Unknown,
            (false, false) => Novelty::Known,
            (true, _) => Novelty::New,
        };
        self.novelty.get_or_insert(novelty);
        self.error = None;
    }

    /// Takes in an error that may pass.
    fn fault(&mut self, error: Error) {
        let is_passing = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) || error.is_unknown();
        if !is_passing {
            return self.fail(error);
        }
        self.is_in_doubt |= error.is_unknown() && self.novelty.is_none();
        self.error = Some(error);
    }

    fn fail(&mut self, error: Error) {
        self.error = Some(error);
        self.is_done = true;
    }

    /// Why it cannot be said to count; `None` if it does.
    fn failure(&self) -> Option<Error> {
        if self.is_done && self.error.is_none() {
            return None;
        }
        let over = || Error::new(ErrorKind::Timeout, "the time was over before it was answered");
        let error = self.error.clone().unwrap_or_else(over);
        let is_in = self.is_in_doubt || self.novelty.is_some();
        Some(if is_in { error.effect(Effect::Unknown) } else { error })
    }
}

/// What the caller is told, in his order: of an id that he gave several times the first.
fn told(ones: &mut [One], asked: &[usize]) -> Told {
    let mut told = Told { novelties: Vec::with_capacity(asked.len()), failed: None };
    let mut is_any_in = false;
    for &at in asked {
        let failure = ones[at].failure();
        let novelty = ones[at].novelty.unwrap_or(Novelty::Unknown);
        told.novelties.push(if failure.is_some() { Novelty::Unknown } else { novelty });
        is_any_in |= failure.is_none() && novelty != Novelty::Known;
        if novelty == Novelty::New {
            ones[at].novelty = Some(Novelty::Known);
        }
        if let Some(error) = failure {
            match &mut told.failed {
                Some((first, count)) => {
                    *count += 1;
                    if error.is_unknown() {
                        *first = first.clone().effect(Effect::Unknown);
                    }
                }
                none => *none = Some((error, 1)),
            }
        }
    }
    if let Some((error, _)) = told.failed.as_mut().filter(|_| is_any_in) {
        *error = error.clone().effect(Effect::Unknown);
    }
    told
}

/// A shard's key.
pub(super) fn owned_set(key: Key) -> Owned {
    Owned::collection(key, Collection::Set, &[MARK])
}

/// Looks for the mark of a shard, and for members behind it.
fn has_op(key: Key, mut members: Vec<Bytes>) -> Op {
    members.insert(0, Bytes::from_static(MARK));
    Op::native(key, Native::SetHas { members })
}

fn is_marked(reply: Reply) -> Result<bool> {
    match reply.into_native() {
        Some(NativeReply::Flags(flags)) => Ok(flags.first() == Some(&true)),
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{StoreRef, Verb};
    use larder_layers::Counting;
    use larder_store_memory::MemoryStore;
    use proptest::prelude::*;

    use super::*;
    use crate::unique::UniqueVisitors;

    fn head(shards: u32) -> Head {
        Head { incarnation: 1, expected: 1, shards, bits: 64, padded_bytes: 0 }
    }

    fn spot(head: &Head, id: u64) -> Spot {
        exact_spot(head, Rounds::new(9).hash(id))
    }

    #[test]
    fn golden_members() {
        let members = [0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 40].map(|offset| member(offset).to_vec());
        let golden = ["-2147483647", "-2147483646", "2147483647", "2147483648", "1097364144129"];
        assert_eq!(members, golden.map(|digits| digits.as_bytes().to_vec()));
        assert_eq!(offset(MARK).unwrap(), None);
        assert_eq!(member(u64::MAX), MARK, "the mark stands before the first offset");
        for wrong in ["", "x", "-2147483649", "9223372036854775808", "1.0"] {
            assert_eq!(offset(wrong.as_bytes()).unwrap_err().kind(), ErrorKind::LayoutMismatch, "{wrong}");
        }
    }

    #[test]
    fn small_ids_take_four_bytes_whatever_the_number_of_shards() {
        for shards in [4, 5, 7, 8, 23_600, 1 << 22] {
            let head = head(shards);
            let limit = 1u64 << (31 + shards.ilog2());
            for id in [0, 1, limit / 3, limit - 1] {
                let number: i64 = String::from_utf8(member(spot(&head, id).offset).to_vec()).unwrap().parse().unwrap();
                let fits = i32::try_from(number).is_ok();
                // The last id of all is the one whose member is 1 more than fits.
                assert!(fits || id & 0xffff_ffff == 0xffff_ffff, "{id} in {shards} shards is {number}");
            }
        }
    }

    /// A store whose batches are short.
    #[derive(Debug)]
    struct Short(StoreRef, usize);

    impl larder_core::Store for Short {
        fn profile(&self) -> Arc<larder_core::Profile> {
            Arc::new(larder_core::Profile { batch_ops_max: self.1, ..(*self.0.profile()).clone() })
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> larder_core::Run<'a> {
            self.0.run(ctx, batch)
        }
    }

    /// How many ids each op of each batch has, where so many ids of each shard are added to a store that takes ten ops.
    async fn ids_of_batches(of_shards: &[u64]) -> Vec<Vec<usize>> {
        let store: StoreRef = Arc::new(Short(Arc::new(MemoryStore::new()), 10));
        let site = UniqueVisitors::options().open_or_create(&store, "site").await.unwrap();
        let spots = (0u32..)
            .zip(of_shards)
            .flat_map(|(shard, ids)| (0..*ids).map(move |offset| Spot { shard, offset, low: 0 }));
        let one = |spot| One { spot, novelty: None, is_in_doubt: false, is_done: false, error: None };
        let ones: Vec<One> = spots.map(one).collect();
        let open: Vec<usize> = (0..ones.len()).collect();
        let parts = site.0.core.parts(&Day { period: 0, head: head(4) }, &ones, &open).unwrap();
        let ids = |op: &Op| {
            let Verb::Native(native) = &op.verb else { panic!("{op:?}") };
            let Native::Guarded(Guarded { act: GuardedAct::Put { entries }, .. }) = &**native else { panic!("{op:?}") };
            entries.len()
        };
        parts.iter().map(|part| part.batch.iter().map(ids).collect()).collect()
    }

    /// An op is left for a look at the manifest: so ids and shards are nine at the most.
    #[tokio::test]
    async fn a_batch_has_as_many_ids_and_shards_as_the_store_takes_and_no_more() {
        assert_eq!(ids_of_batches(&[3, 4]).await, [vec![3, 4]], "they fill one");
        assert_eq!(ids_of_batches(&[4, 4]).await, [[4], [4]]);
        assert_eq!(ids_of_batches(&[8]).await, [[8]], "one shard fills it");
        assert_eq!(ids_of_batches(&[20]).await, [[8], [8], [4]]);
    }

    /// A pause before another try may take what was left of the time.
    #[tokio::test]
    async fn behind_its_deadline_nothing_more_is_sent() {
        let counting = Counting::new(Arc::new(MemoryStore::new()));
        let store: StoreRef = Arc::new(counting.clone());
        let site = UniqueVisitors::options().open_or_create(&store, "site").await.unwrap();
        let spots = [7, 8].map(|offset| Spot { shard: 0, offset, low: 0 });
        let before = counting.counts();
        let told = site.0.core.add_members(ambient::now(), &Day { period: 0, head: head(4) }, &spots).await;
        assert_eq!(counting.counts().since(&before).round_trips, 0);
        let (error, count) = told.failed.unwrap();
        assert_eq!((error.kind(), error.known_effect(), count), (ErrorKind::Timeout, Effect::NotApplied, 2));
        assert_eq!(told.novelties, [Novelty::Unknown; 2]);
    }

    proptest! {
        #[test]
        fn an_id_comes_back_from_its_shard_and_member(
            id: u64, small in 0u64..1 << 46, shards in 4u32..=1 << 22, few in 4u32..70, seed: u64,
        ) {
            let rounds = Rounds::new(seed);
            for shards in [shards, few] {
                let head = head(shards);
                for id in [id, small, id & !0xffff_ffff, u64::MAX] {
                    let spot = exact_spot(&head, rounds.hash(id));
                    prop_assert!(spot.shard < shards);
                    let found = offset(&member(spot.offset)).unwrap();
                    prop_assert_eq!(found, Some(spot.offset));
                    prop_assert_eq!(exact_id(&head, spot.shard, spot.offset, &rounds), id);
                }
            }
        }

        #[test]
        fn garbage_never_panics(digits in "-?[0-9]{0,20}", shards in 4u32..1_000, shard in 0u32..4) {
            if let Ok(Some(offset)) = offset(digits.as_bytes()) {
                exact_id(&head(shards), shard, offset, &Rounds::new(0));
            }
        }
    }
}
