//! Setting records, and getting some.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use larder_core::native::{BitField, GuardedBits, GuardedBitsAct, Native, NativeReply};
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, Ttl, Want, ambient};

use super::layout::{self, Bits, Header};
use super::shared::{Inner, Known, Seen};
use crate::events;
use crate::retry::Backoff;
use crate::runtime;

/// How often a write that others beat is tried again.
const ROUNDS_MAX: usize = 64;
/// How many numbers one native op writes or reads.
const FIELDS_AN_OP: usize = 1_024;
/// How many native ops one batch has.
const OPS_A_BATCH: usize = 64;

/// What is to be written to a shard: bits of it, and the number of its records that are known then.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) pieces: Vec<Bits>,
    pub(super) known: u32,
}

/// Records to read of a shard: places in the caller's list, and in the shard.
type Wanted = BTreeMap<u32, Vec<(usize, u32)>>;

impl Inner {
    /// Writes to shards. See [`PackedRecords::set_many`](super::PackedRecords::set_many).
    pub(super) async fn change(&self, mut todo: BTreeMap<u32, Change>) -> Result<()> {
        self.vigil().check()?;
        let deadline = self.deadline();
        let mut is_begun = false;
        while !todo.is_empty() {
            let some: Vec<u32> = todo.keys().copied().take(self.shards_a_batch()).collect();
            let part = some.iter().filter_map(|shard| Some((*shard, todo.remove(shard)?))).collect();
            let done = match self.ensure(deadline, some.into_iter()).await {
                Ok(()) if self.is_native() => self.change_native(deadline, part).await,
                Ok(()) => self.change_portable(deadline, part).await,
                Err(error) => Err(error),
            };
            done.map_err(|error| if is_begun { error.effect(Effect::Unknown) } else { error })?;
            is_begun = true;
        }
        self.vigil().check()
    }

    /// Reads each shard, changes it, writes it if it has still the token; again for those where somebody was first.
    async fn change_portable(&self, deadline: Instant, mut todo: BTreeMap<u32, Change>) -> Result<()> {
        let ctx = Ctx { deadline: Some(deadline) };
        // In one order for all, so that no two wait for each other.
        let mut gates: Vec<usize> = todo.keys().map(|&shard| shard as usize % self.gates.len()).collect();
        gates.sort_unstable();
        gates.dedup();
        let mut held = Vec::with_capacity(gates.len());
        for gate in gates {
            held.push(self.gates[gate].lock().await);
        }
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        let mut is_begun = false;
        let midway = |error: Error, is_begun: bool| if is_begun { error.effect(Effect::Unknown) } else { error };
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                runtime::current("writing records again waits a moment")?;
                events::conflict(self.subject());
                tokio::time::sleep(backoff.next_pause()).await;
            }
            if ambient::now() >= deadline {
                break;
            }
            let puts = self.changed(ctx, deadline, &todo).await.map_err(|error| midway(error, is_begun))?;
            let replies = self.vigil().run(ctx, puts).await;
            let (mut beaten, mut fault) = (BTreeMap::new(), None);
            for ((shard, change), reply) in std::mem::take(&mut todo).into_iter().zip(replies) {
                match reply {
                    Ok(Reply::Stored) => is_begun = true,
                    // Somebody was first, or it is gone: the next look tells.
                    Ok(Reply::Exists | Reply::NotStored | Reply::Miss) => _ = beaten.insert(shard, change),
                    Ok(other) => {
                        fault = Some(
                            Error::new(ErrorKind::Protocol, format!("a write was answered {other:?}"))
                                .effect(Effect::Unknown),
                        )
                    }
                    Err(error) => {
                        is_begun |= error.is_unknown();
                        fault = fault.or(Some(error));
                    }
                }
            }
            if let Some(fault) = fault {
                return Err(midway(fault, is_begun));
            }
            if beaten.is_empty() {
                return Ok(());
            }
            todo = beaten;
        }
        let detail = format!("others kept writing to {} of the shards of records {}", todo.len(), self.name);
        Err(midway(Error::new(ErrorKind::Conflict, detail), is_begun))
    }

    /// Reads shards and makes of each what it is to be: the conditional writes.
    async fn changed(&self, ctx: Ctx, deadline: Instant, todo: &BTreeMap<u32, Change>) -> Result<Batch> {
        let gets: Result<Batch> =
            todo.keys().map(|&shard| Ok(Op::get(self.key(shard)?, Want::VALUE | Want::CAS))).collect();
        let replies = self.vigil().run(ctx, gets?).await;
        let mut puts = Batch::new();
        for ((&shard, change), reply) in todo.iter().zip(replies) {
            let Some(item) = reply?.into_item() else {
                self.settle(deadline, shard, None).await?;
                return Err(self.lost(shard));
            };
            let header = self.header(shard, &item.value)?;
            self.settle(deadline, shard, Some(header.incarnation)).await?;
            if item.value.len() != self.params.shard_bytes() {
                return Err(self.strange(shard));
            }
            let mut value = Vec::from(item.value);
            change.pieces.iter().for_each(|piece| layout::write_bits(&mut value, *piece));
            Header::raise_known(&mut value, change.known);
            let cas = item.cas.ok_or_else(|| Error::new(ErrorKind::Protocol, "the store gave no cas token"))?;
            puts.push(Op::put(self.key(shard)?, PutMode::Cas(cas), value, Ttl::Never));
        }
        Ok(puts)
    }

    /// Writes bit fields, each op with the mark of its shard; and the highest id, if it grows.
    async fn change_native(&self, deadline: Instant, todo: BTreeMap<u32, Change>) -> Result<()> {
        let end = todo.iter().next_back().map_or(0, |(&shard, change)| self.first_id(shard) + u64::from(change.known));
        let mut ops = Vec::new();
        for (shard, change) in todo {
            let pieces = layout::joined(change.pieces);
            // Without a field to write it is a look at the shard: its records are known from then on.
            if pieces.is_empty() {
                ops.push((shard, self.header_op(shard)?));
            }
            let incarnation = self.known(shard).ok_or_else(|| self.lost(shard))?;
            for pieces in pieces.chunks(FIELDS_AN_OP) {
                let set = |piece: &Bits| BitField::set(piece.width, piece.offset, piece.value);
                let act = GuardedBitsAct::Put { numbers: pieces.iter().map(set).collect() };
                let guarded = GuardedBits { mark: Header::mark(shard, incarnation), act };
                ops.push((shard, Op::native(self.key(shard)?, Native::GuardedBits(guarded))));
            }
        }
        let grows = end > self.highest.load(Ordering::Relaxed);
        let mut is_begun = false;
        let batches = ops.chunks(OPS_A_BATCH.min(self.store.profile().batch_ops_max.saturating_sub(2).max(1)));
        let last = batches.len().saturating_sub(1);
        for (at, some) in batches.enumerate() {
            let mut batch: Batch = some.iter().map(|(_, op)| op.clone()).collect();
            let raises = grows && at == last;
            if raises {
                batch.extend(self.raise_ops(end - 1)?);
            }
            let mut replies = self.vigil().run(Ctx { deadline: Some(deadline) }, batch).await;
            let raised = if raises { replies.pop() } else { None };
            let raise = if raises { replies.pop() } else { None };
            is_begun |= replies.iter().chain(&raise).any(has_written);
            let midway = |error: Error| if is_begun { error.effect(Effect::Unknown) } else { error };
            for ((shard, _), reply) in some.iter().zip(replies) {
                self.wrote(deadline, *shard, reply).await.map_err(midway)?;
            }
            if let (Some(raise), Some(raised)) = (raise, raised) {
                raise.map_err(midway)?;
                self.know_highest(self.highest(raised).map_err(midway)?);
            }
        }
        Ok(())
    }

    /// Fails unless a shard was written to, or is there where it was only looked at.
    async fn wrote(&self, deadline: Instant, shard: u32, reply: Result<Reply>) -> Result<()> {
        let found = match reply? {
            Reply::Native(native) if *native == NativeReply::Flag(true) => return Ok(()),
            // Not the one that was listed: gone, made again, or another program's.
            Reply::Native(native) if *native == NativeReply::Unmarked => None,
            Reply::Native(native) => match *native {
                NativeReply::Bytes(bytes) => {
                    Header::parse(&bytes).filter(|header| header.shard == shard).map(|header| header.incarnation)
                }
                _ => return Err(self.strange(shard)),
            },
            _ => return Err(self.strange(shard)),
        };
        match self.settle(deadline, shard, found).await? {
            Known::Made => Ok(()),
            Known::Never | Known::Meanwhile => Err(self.lost(shard)),
        }
    }

    pub(super) fn first_id(&self, shard: u32) -> u64 {
        u64::from(shard) * u64::from(self.params.per_shard)
    }

    /// Reads numbers of records: `parts` of each, in the order of the ids; without parts none, but a shard that is lost is told as with them.
    pub(super) async fn read(&self, ids: &[u64], parts: &[Bits]) -> Result<Vec<Vec<u64>>> {
        self.vigil().check()?;
        let mut wanted = Wanted::new();
        for (at, &id) in ids.iter().enumerate() {
            let (shard, position) = self.place(id)?;
            let records = wanted.entry(shard).or_default();
            // Without parts a shard is asked only what it says of itself.
            if !parts.is_empty() {
                records.push((at, position));
            }
        }
        let deadline = self.deadline();
        let mut out = vec![Vec::new(); ids.len()];
        // A shard that others made meanwhile is known the next time.
        loop {
            let seen = if self.is_native() {
                self.read_native(deadline, &wanted, parts, &mut out).await?
            } else {
                self.read_portable(deadline, &wanted, parts, &mut out).await?
            };
            if !self.settle_all(deadline, &seen).await?.contains(&Known::Meanwhile) {
                self.vigil().check()?;
                return Ok(out);
            }
        }
    }

    /// Reads numbers of records, and what each shard says of itself, which is still to be settled.
    async fn read_native(
        &self,
        deadline: Instant,
        wanted: &Wanted,
        parts: &[Bits],
        out: &mut [Vec<u64>],
    ) -> Result<Vec<Seen>> {
        let mut seen = Vec::with_capacity(wanted.len());
        let records_an_op = (FIELDS_AN_OP / parts.len().max(1)).max(1);
        let mut asked: Vec<(u32, &[(usize, u32)])> = Vec::new();
        for (&shard, records) in wanted {
            match records.is_empty() {
                true => asked.push((shard, records)),
                false => asked.extend(records.chunks(records_an_op).map(|some| (shard, some))),
            }
        }
        for some in asked.chunks(OPS_A_BATCH.min(self.store.profile().batch_ops_max)) {
            let ops: Result<Batch> = some
                .iter()
                .map(|(shard, records)| {
                    let gets = records.iter().flat_map(|(_, position)| {
                        let first = self.params.first_bit(*position);
                        parts.iter().map(move |part| BitField::get(part.width, first + part.offset))
                    });
                    let fields = Header::mark_fields().into_iter().chain(gets).collect();
                    Ok(Op::native(self.key(*shard)?, Native::Bits(fields)))
                })
                .collect();
            let were_known: Vec<bool> = some.iter().map(|(shard, _)| self.known(*shard).is_some()).collect();
            let replies = self.vigil().run(Ctx { deadline: Some(deadline) }, ops?).await;
            for (((shard, records), was_known), reply) in some.iter().zip(were_known).zip(replies) {
                let Some(NativeReply::Numbers(numbers)) = reply?.into_native() else {
                    return Err(self.strange(*shard));
                };
                let found = Header::of_fields(*shard, &numbers);
                seen.push(Seen { shard: *shard, was_known, found });
                let mut numbers = numbers.into_iter().skip(Header::mark_fields().len());
                for (at, _) in *records {
                    let read = numbers.by_ref().take(parts.len()).map(Option::unwrap_or_default);
                    // Of a shard that was never made they are zeros, whatever another program keeps there.
                    out[*at] = if found.is_some() { read.collect() } else { read.map(|_| 0).collect() };
                }
            }
        }
        Ok(seen)
    }

    /// As [`read_native`](Inner::read_native).
    async fn read_portable(
        &self,
        deadline: Instant,
        wanted: &Wanted,
        parts: &[Bits],
        out: &mut [Vec<u64>],
    ) -> Result<Vec<Seen>> {
        let mut seen = Vec::with_capacity(wanted.len());
        let shards: Vec<(&u32, &Vec<(usize, u32)>)> = wanted.iter().collect();
        let record_bytes = self.params.schema.bits() / 8 + 2;
        // Of a shard that few records are wanted of, only those are read, where the store can.
        let by_parts = |records: &[(usize, u32)]| {
            self.has_ranges() && records.len() <= 16 && records.len() * record_bytes * 4 < self.params.shard_bytes()
        };
        let a_batch = self.shards_a_batch().min(self.store.profile().batch_ops_max / 17).max(1);
        for some in shards.chunks(a_batch) {
            let mut batch = Batch::new();
            for &(&shard, records) in some {
                if !by_parts(records) {
                    batch.push(Op::get(self.key(shard)?, Want::VALUE));
                    continue;
                }
                batch.push(self.header_op(shard)?);
                for (_, position) in records {
                    let first = self.params.first_bit(*position);
                    batch.push(Op::get_range(self.key(shard)?, first / 8, record_bytes as u64));
                }
            }
            let were_known: Vec<bool> = some.iter().map(|(shard, _)| self.known(**shard).is_some()).collect();
            let mut replies = self.vigil().run(Ctx { deadline: Some(deadline) }, batch).await.into_iter();
            for (&(&shard, records), was_known) in some.iter().zip(were_known) {
                let whole = !by_parts(records);
                let head = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?.into_item();
                let found = match &head {
                    Some(item) => Some(self.header(shard, &item.value)?.incarnation),
                    None => None,
                };
                seen.push(Seen { shard, was_known, found });
                for (at, position) in records {
                    let first = self.params.first_bit(*position);
                    let (bytes, base) = if whole {
                        (head.as_ref().map(|item| item.value.clone()), 0)
                    } else {
                        let item = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?.into_item();
                        (item.map(|item| item.value), first / 8 * 8)
                    };
                    out[*at] = match &bytes {
                        Some(bytes) => {
                            let read = |part: &Bits| layout::read_bits(bytes, first - base + part.offset, part.width);
                            parts.iter().map(read).collect()
                        }
                        None if found.is_some() => return Err(self.lost(shard)),
                        None => vec![0; parts.len()],
                    };
                }
            }
        }
        Ok(seen)
    }

    /// The highest id that is known, plus 1. **Round trips: 1** in the native layout, else 2, and 1 for each shard at the end that nothing was
    /// written to yet.
    pub(super) async fn end(&self) -> Result<u64> {
        self.vigil().check()?;
        let deadline = self.deadline();
        let ctx = Ctx { deadline: Some(deadline) };
        if self.is_native() {
            let knew = self.highest.load(Ordering::Relaxed);
            let mut replies = self.vigil().run(ctx, Batch::from_buf([self.highest_op()?])).await;
            let end = self.highest(replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply())))?;
            if end < knew {
                return Err(self.set_back(end, knew)?);
            }
            self.know_highest(end);
            return Ok(end);
        }
        let list = self.look(deadline).await?;
        let mut shards: Vec<u32> = list.pieces().iter().filter_map(|piece| u32::try_from(piece.number).ok()).collect();
        shards.dedup();
        for shard in shards.into_iter().rev() {
            let mut replies = self.vigil().run(ctx, Batch::from_buf([self.header_op(shard)?])).await;
            let reply = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?;
            let Some(item) = reply.into_item() else { return Err(self.lost(shard)) };
            let header = self.header(shard, &item.value)?;
            self.settle(deadline, shard, Some(header.incarnation)).await?;
            if header.known > 0 {
                return Ok(self.first_id(shard) + u64::from(header.known));
            }
        }
        Ok(0)
    }
}

/// True if an op that was answered so has written, or may have.
fn has_written(reply: &Result<Reply>) -> bool {
    match reply {
        Ok(Reply::Native(native)) => matches!(**native, NativeReply::Flag(true) | NativeReply::Count(1..)),
        Ok(_) => false,
        Err(error) => error.is_unknown(),
    }
}
