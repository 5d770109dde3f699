//! Hits that name their visitor: hashes appended to a shard of the window.
//!
//! A hash that is appended twice counts once, so every step may be tried again, whatever became of the one before: nothing here
//! is ever in doubt for longer than the network is down. That is why these values need no writers and sequences, unlike
//! [`append`](crate::append)'s, and a hit takes 8 bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::observe::Phase;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Item, Key, Op, PutMode, Reply, Result, Ttl, Want};

use super::hits::is_passing;
use super::layout::{self, HASH_BYTES, SHARD_HEADER_BYTES};
use super::shared::Shared;
use crate::events;
use crate::ids::random_id;
use crate::ledger::{List, Piece};
use crate::manifest::unexpected;
use crate::retry::Backoff;
use crate::runtime;

/// How many steps one hit may take.
const STEPS_MAX: usize = 32;
/// How often a step may fail while nothing was sent.
const FAULTS_MAX: usize = 8;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Fewer bytes of repeats in a shard are let be.
const REPEATS_BYTES: usize = 64 * 1024;
/// How long a compaction beside the reader may take.
const COMPACT_MAX: Duration = Duration::from_secs(5);

/// A hit under way.
struct Visit {
    window: u64,
    part: u16,
    key: Key,
    hash: u64,
    deadline: Instant,
}

impl Shared {
    pub(super) async fn visit(self: &Arc<Self>, window: u64, id: &[u8]) -> Result<()> {
        self.vigil().check()?;
        let hash = layout::hash_of(id, self.manifest.generation);
        // One that is known is noted once more where a look is due, which goes with that: a handle that sees known ones alone would never be told of a drop.
        if self.known.has_visitor(window, hash) && !self.vigil().is_look_due() {
            return Ok(());
        }
        runtime::current("a hit of a visitor has a timeout")?;
        let part = layout::part_of(layout::shard_of(hash, self.params.shards));
        let key = match self.known.part(window, part) {
            Some(key) => key,
            None => self.key(window, part)?,
        };
        let visit = Visit { window, part, key, hash, deadline: self.deadline() };
        let work = self.settle(&visit);
        tokio::time::timeout_at(visit.deadline.into(), work).await.unwrap_or_else(|_| {
            let detail = format!("the hit was not settled within {:?}", self.timeout);
            Err(Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown))
        })?;
        self.known.visited(window, hash);
        self.vigil().check()
    }

    async fn settle(self: &Arc<Self>, visit: &Visit) -> Result<()> {
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let (mut is_in_doubt, mut faults, mut last) = (false, 0, None);
        for _ in 0..STEPS_MAX {
            let step = match self.known.part(visit.window, visit.part) {
                Some(_) => self.append(visit).await,
                None => self.visit_first(visit).await,
            };
            match step {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    is_in_doubt |= error.is_unknown();
                    faults += 1;
                    let is_last = !is_passing(&error) || (!is_in_doubt && faults >= FAULTS_MAX);
                    if is_last {
                        return Err(doubted(error, is_in_doubt));
                    }
                    events::retry(self.vigil().subject(), error.kind());
                    last = Some(error);
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        let conflict = || {
            let detail = format!("others wrote, or the shard vanished, at each of {STEPS_MAX} steps");
            Error::new(ErrorKind::Conflict, detail).key(&visit.key)
        };
        Err(doubted(last.unwrap_or_else(conflict), is_in_doubt))
    }

    /// Appends to a shard that the ledger lists. True if the visitor is in it.
    async fn append(&self, visit: &Visit) -> Result<bool> {
        let op = visit.append_op();
        match self.run_one(visit.ctx(), op.clone()).await? {
            Reply::Stored => Ok(true),
            Reply::NotStored => self.make_room(visit).await,
            other => Err(unexpected(&op, &other)),
        }
    }

    /// Makes the shard unless it is there, appends to it, and sees to it that the ledger lists it. True if the visitor is in it.
    async fn visit_first(self: &Arc<Self>, visit: &Visit) -> Result<bool> {
        let window = visit.window;
        // Drawn anew each time: see the ledger.
        let incarnation = random_id();
        let value = layout::shard_value(incarnation, &[]);
        let piece = Piece { number: window, part: visit.part, incarnation };
        let making = self.ledger.making(vec![piece]);
        let before = self.ledger.seen();
        let batch = [
            Op::put(visit.key.clone(), PutMode::Add, value, self.life(window)),
            visit.append_op(),
            self.ledger.read_op(),
        ];
        let mut replies = self.vigil().run(visit.ctx(), Batch::from_iter(batch)).await.into_iter();
        drop(making);
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let (added, appended, listed) = (next(), next(), next());
        let is_in = appended? == Reply::Stored;
        let is_made = match added {
            Ok(added) => added == Reply::Stored,
            // It was there already, for the append to land in.
            Err(_) if is_in => false,
            Err(error) => return Err(error),
        };
        let made = is_made.then_some(incarnation);
        match self.enlist_shard(visit, made, self.ledger.list(listed, before)).await {
            Ok(is_there) => {
                self.ledger.listed(&[piece]);
                Ok(is_in && is_there)
            }
            Err(error) if error.kind() == ErrorKind::Lost => {
                // Dropped, or lost whole: what was made is nobody's.
                self.remove_orphans(visit.ctx()).await;
                Err(error.effect(Effect::NotApplied))
            }
            Err(error) => Err(if is_in { error.effect(Effect::Unknown) } else { error }),
        }
    }

    /// Sees to it that the ledger lists a shard, of the incarnation that was `made` or of the one that is there. False if none is, or
    /// if the one that is there was made since, and has not taken the visitor.
    async fn enlist_shard(self: &Arc<Self>, visit: &Visit, made: Option<u64>, list: Result<List>) -> Result<bool> {
        let (mut list, mut incarnation, mut is_in) = (list?, made, true);
        if incarnation.is_none() && !list.has(visit.window, visit.part) {
            // Its maker has not entered it yet, or died before: only the shard tells its incarnation.
            let before = self.ledger.seen();
            let get = Op::get(visit.key.clone(), Want::VALUE);
            let mut replies = self.vigil().run(visit.ctx(), Batch::from_iter([self.ledger.read_op(), get])).await;
            let item = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?.into_item();
            list = self.ledger.list(replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply())), before)?;
            let Some(item) = item else { return Ok(false) };
            let (found, hashes) = layout::parse_shard(&item.value).map_err(|error| error.key(&visit.key))?;
            incarnation = Some(found);
            is_in = hashes.binary_search(&visit.hash).is_ok();
        }
        // Where the ledger lists it already, nothing is entered.
        let piece = Piece { number: visit.window, part: visit.part, incarnation: incarnation.unwrap_or(0) };
        self.enlist(visit.deadline, &list, &[piece]).await?;
        Ok(is_in)
    }

    /// Writes a shard anew that has no room, each visitor once and this one among them. True if it is in it.
    async fn make_room(&self, visit: &Visit) -> Result<bool> {
        let get = Op::get(visit.key.clone(), Want::VALUE | Want::CAS);
        let Some(item) = self.run_one(visit.ctx(), get).await?.into_item() else {
            self.known.gone(visit.window, visit.part);
            return Ok(false);
        };
        let (incarnation, mut hashes) = layout::parse_shard(&item.value).map_err(|error| error.key(&visit.key))?;
        let Err(at) = hashes.binary_search(&visit.hash) else { return Ok(true) };
        hashes.insert(at, visit.hash);
        let bytes = SHARD_HEADER_BYTES + hashes.len() * HASH_BYTES;
        let fits_as_it_is = item.value.len() + HASH_BYTES <= self.value_bytes_max;
        let cas = item.cas.filter(|_| self.store.profile().cas);
        let Some(cas) = cas.filter(|_| bytes <= self.value_bytes_max) else {
            // It may have been gone for a moment.
            return if fits_as_it_is { Ok(false) } else { Err(self.full(visit, hashes.len() - 1)) };
        };
        let value = layout::shard_value(incarnation, &hashes);
        let op = Op::put(visit.key.clone(), PutMode::Cas(cas), value, self.life(visit.window));
        self.tell_compaction(visit.part, Phase::Begun);
        let outcome = self.run_one(visit.ctx(), op.clone()).await;
        self.tell_compaction(visit.part, phase_of(&outcome));
        match outcome? {
            Reply::Stored => Ok(true),
            Reply::Exists => Ok(false),
            Reply::Miss => {
                self.known.gone(visit.window, visit.part);
                Ok(false)
            }
            other => Err(unexpected(&op, &other)),
        }
    }

    fn tell_compaction(&self, part: u16, phase: Phase) {
        events::compaction(self.vigil().subject(), part.saturating_sub(1), phase);
    }

    fn full(&self, visit: &Visit, visitors: usize) -> Error {
        let hint =
            if self.store.profile().cas { "" } else { " (this store has no cas, so repeats cannot be compacted away)" };
        let detail = format!(
            "shard {} of {} of window {} holds {visitors} visitors, and an item of this store takes no more than {} bytes: make \
             visitors with more shards, or with a shorter period{hint}",
            visit.part.saturating_sub(1),
            self.params.shards,
            visit.window,
            self.value_bytes_max
        );
        Error::new(ErrorKind::Full, detail).key(&visit.key).store(self.store.profile().store.clone())
    }

    /// Writes a shard anew without repeats, beside the caller, if there are many. Never waits, never fails.
    pub(super) fn compact_behind(
        self: &Arc<Self>,
        (window, part): (u64, u16),
        key: &Key,
        item: &Item,
        hashes: Vec<u64>,
    ) {
        let live_bytes = SHARD_HEADER_BYTES + hashes.len() * HASH_BYTES;
        let is_dirty = item.value.len() - live_bytes > REPEATS_BYTES.max(live_bytes);
        let (true, true, Some(cas)) = (is_dirty, self.store.profile().cas, item.cas) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok((incarnation, _)) = layout::parse_shard(item.value.get(..SHARD_HEADER_BYTES).unwrap_or(&[])) else {
            return;
        };
        if self.is_compacting.swap(true, Ordering::Acquire) {
            return;
        }
        let busy = Compacting(self.clone());
        let (key, ttl) = (key.clone(), self.life(window));
        runtime.spawn(async move {
            let value: Bytes = layout::shard_value(incarnation, &hashes);
            let op = Op::put(key, PutMode::Cas(cas), value, ttl);
            busy.0.tell_compaction(part, Phase::Begun);
            // Forgotten on purpose: the value says the same before and after.
            let mut replies = busy.0.store.run(Ctx::within(COMPACT_MAX), Batch::from_buf([op])).await;
            let outcome = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            busy.0.tell_compaction(part, phase_of(&outcome));
        });
    }
}

/// How a compaction ended.
fn phase_of(outcome: &Result<Reply>) -> Phase {
    match outcome {
        Ok(Reply::Stored) => Phase::Done,
        Ok(Reply::Exists | Reply::Miss) => Phase::Met,
        _ => Phase::Failed,
    }
}

impl Visit {
    fn ctx(&self) -> Ctx {
        Ctx { deadline: Some(self.deadline) }
    }

    fn append_op(&self) -> Op {
        let hash = Bytes::copy_from_slice(&self.hash.to_le_bytes());
        Op::put(self.key.clone(), PutMode::Append, hash, Ttl::Never)
    }
}

/// What is known of the effect after several steps.
fn doubted(error: Error, is_in_doubt: bool) -> Error {
    error.effect(if is_in_doubt { Effect::Unknown } else { Effect::NotApplied })
}

/// A compaction under way; lets the next one in when it is dropped, however that comes.
struct Compacting(Arc<Shared>);

impl Drop for Compacting {
    fn drop(&mut self) {
        self.0.is_compacting.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compaction_is_told_to_be_done_met_or_failed() {
        let phase = |reply| phase_of(&Ok(reply));
        assert_eq!(phase(Reply::Stored), Phase::Done);
        assert_eq!([phase(Reply::Exists), phase(Reply::Miss)], [Phase::Met; 2]);
        assert_eq!(phase(Reply::NotStored), Phase::Failed);
        assert_eq!(phase_of(&Err(larder_core::ext::no_reply())), Phase::Failed);
    }
}
