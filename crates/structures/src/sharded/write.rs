//! Writing: each shard in one step, on condition that it is live.
//!
//! Natively a change is one op that the shard itself refuses when it is not live. Where shards are items it is a read and a conditional write.
//! A shard that is refused is looked at: one that nothing came to yet is filled by whoever meets it (`fill`), one that was sealed sends the writer to the map.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::{Collection, Guarded, GuardedAct, Native, NativeReply, Score};
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, Ttl, Verb, Want, ambient};

use super::SHARDS_MAX;
use super::core::{Ask, Core, Unusable, coming_from, midway};
use super::keeper::{Pending, follows};
use super::layout::{LIVE, Map, Mark, Plan, Shard};
use crate::events;
use crate::ids::random_id;
use crate::retry::Backoff;
use crate::runtime;

/// How often a write is tried where others get in between.
const ROUNDS_MAX: usize = 1_000;

/// What is done to an element.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Put(Bytes),
    Remove,
    /// A member of a sorted set gets a score.
    Score(Score),
    /// A score is added to it.
    Add(Score),
    /// It is made ready to be brought to the ends, unless they are known to have it.
    Settle,
}

/// What is told of a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The element is new, or was there.
    pub(super) flag: bool,
    /// In a sorted set: the score it has now.
    pub(super) score: Option<Score>,
    /// There, too: what is left to do.
    pub(super) pending: Option<Pending>,
}

/// Changes of one shard, in their order: which ones, and what the elements are called there.
pub(super) type Group = Vec<(usize, Bytes)>;

/// How a try on one shard ended.
enum Tried {
    Done(Vec<Told>),
    /// The ends that this handle knows are older than those of who wrote to it.
    Behind(u64),
    /// Somebody was first: try again.
    Beaten,
    /// It takes no writes as it is.
    Refused(Mark),
    Failed(Error),
}

/// Writes whose outcome is in doubt, a shard: what each left in the shard as its mark and would have told, and the mark that it was to replace.
#[derive(Default)]
struct Doubts {
    tries: Vec<(u64, Vec<Told>)>,
    base: u64,
}

/// What one call is about.
struct Call<'a> {
    names: &'a [Bytes],
    changes: &'a [Change],
    /// The ends are read beside the shards.
    looks: bool,
    /// The map that was known as it began.
    first: Plan,
    doubts: HashMap<(u32, u16), Doubts>,
}

impl Core {
    /// Makes changes, all puts or all removals: for each, true if the element was new, or was there. **Round trips: 1** natively, else 2.
    pub(super) async fn change(&self, names: &[Bytes], changes: &[Change]) -> Result<Vec<bool>> {
        let told = self.edit(self.deadline(), names, changes, false).await?;
        Ok(told.into_iter().map(|told| told.flag).collect())
    }

    /// The same, with all that is told; and with a look at the ends of a sorted set. **Round trips: 1** natively, else 2.
    pub(super) async fn edit(
        &self,
        deadline: Instant,
        names: &[Bytes],
        changes: &[Change],
        looks: bool,
    ) -> Result<Vec<Told>> {
        self.check()?;
        let ctx = Ctx { deadline: Some(deadline) };
        let mut out = vec![Told::default(); names.len()];
        let mut todo: Vec<usize> = (0..names.len()).collect();
        let (mut strikes, mut is_begun) = (0, false);
        let _held = self.hold(names).await;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
        let mut plan = self.plan();
        let mut call = Call { names, changes, looks, first: plan, doubts: HashMap::new() };
        for round in 0..ROUNDS_MAX {
            if todo.is_empty() {
                // A batch of these may have seen that others made the name again, or that the store went back, or another call's.
                self.vigil.check()?;
                self.tell_setback_since(&call.first).map_err(|error| midway(error, is_begun))?;
                return Ok(out);
            }
            if round > 0 && ambient::now() >= deadline {
                break;
            }
            // What is in doubt is settled where it was written.
            if call.doubts.is_empty() {
                plan = self.plan();
            }
            let groups = match self.groups(&plan.map, names, &todo) {
                // More shards may have been made since.
                Err(error) if self.params.is_dense => {
                    let now = self.refresh(ctx).await.map_err(|error| midway(error, is_begun))?;
                    if now == plan {
                        return Err(midway(error, is_begun));
                    }
                    continue;
                }
                groups => groups?,
            };
            let tried = self.try_all(ctx, &plan.map, &groups, &mut call).await;
            let mut round = judged(&plan, groups, tried, &mut out, &mut is_begun);
            todo = std::mem::take(&mut round.left);
            let is_midway = is_begun || !call.doubts.is_empty();
            let next = self.make_ready(ctx, &plan, round, &mut backoff, &mut strikes).await;
            next.map_err(|error| midway(error, is_midway))?;
        }
        Err(midway(self.beaten(), is_begun || !call.doubts.is_empty()))
    }

    /// Does what must be done before the next round.
    async fn make_ready(
        &self,
        ctx: Ctx,
        plan: &Plan,
        round: Round,
        backoff: &mut Backoff,
        strikes: &mut u32,
    ) -> Result<()> {
        if let Some(fault) = round.fault {
            return Err(fault);
        }
        if round.beaten {
            runtime::current("writing again waits a moment")?;
            events::conflict(self.subject());
            tokio::time::sleep(backoff.next_pause()).await;
        }
        if let Some(seen) = round.behind {
            self.catch_up(ctx, seen).await.map_err(|error| error.effect(Effect::NotApplied))?;
        }
        if !round.unfilled.is_empty() {
            match self.fill(ctx, plan, &round.unfilled).await {
                // Filled by others, and resharded again since: that map is not in force any more.
                Err(error) if error.kind() == ErrorKind::Conflict && self.plan() != *plan => {}
                filled => filled.map_err(|error| error.effect(Effect::NotApplied))?,
            }
        }
        if round.is_old {
            self.look_again(ctx, plan, &round.unusable, strikes).await?;
        }
        Ok(())
    }

    /// Keeps this handle's other writers out of the same shards, where they would only beat each other.
    async fn hold(&self, names: &[Bytes]) -> Vec<tokio::sync::MutexGuard<'_, ()>> {
        if self.is_native() {
            return Vec::new();
        }
        let map = self.plan().map;
        let of = |name: &Bytes| self.place(&map, name).map(|(shard, _)| usize::from(shard) % self.gates.len());
        // In one order, so that no two wait for each other.
        let gates: BTreeSet<usize> = names.iter().filter_map(|name| of(name).ok()).collect();
        let mut held = Vec::with_capacity(gates.len());
        for gate in gates {
            held.push(self.gates[gate].lock().await);
        }
        held
    }

    fn groups(&self, map: &Map, names: &[Bytes], of: &[usize]) -> Result<BTreeMap<u16, Group>> {
        let mut groups: BTreeMap<u16, Group> = BTreeMap::new();
        for &at in of {
            let (shard, stored) = self.place(map, &names[at])?;
            groups.entry(shard).or_default().push((at, stored));
        }
        Ok(groups)
    }

    /// Tries each group, and tells how it ended.
    async fn try_all(&self, ctx: Ctx, map: &Map, groups: &BTreeMap<u16, Group>, call: &mut Call<'_>) -> Vec<Tried> {
        let groups: Vec<(u16, &Group)> = groups.iter().map(|(&shard, group)| (shard, group)).collect();
        let mut tried = Vec::with_capacity(groups.len());
        for part in groups.chunks(self.ops_a_batch()) {
            // What comes after a fault would only be more that is begun.
            if tried.iter().any(|tried| matches!(tried, Tried::Failed(_))) {
                tried.extend(part.iter().map(|_| Tried::Beaten));
                continue;
            }
            let some = if self.is_native() {
                self.try_native(ctx, map, part, call).await
            } else {
                self.try_portable(ctx, map, part, call).await
            };
            match some {
                Ok(some) => tried.extend(some),
                Err(error) => tried.extend(part.iter().map(|_| Tried::Failed(error.clone()))),
            }
        }
        tried
    }

    async fn try_native(
        &self,
        ctx: Ctx,
        map: &Map,
        groups: &[(u16, &Group)],
        call: &mut Call<'_>,
    ) -> Result<Vec<Tried>> {
        let mut batch = Batch::new();
        for (shard, group) in groups {
            let is_put = group.first().is_some_and(|(at, _)| matches!(call.changes[*at], Change::Put(_)));
            let act = if is_put {
                let value = |at: usize| match &call.changes[at] {
                    Change::Put(value) => value.clone(),
                    _ => Bytes::new(),
                };
                let entries = group.iter().map(|(at, stored)| (stored.clone(), value(*at)));
                GuardedAct::Put { entries: entries.collect() }
            } else {
                GuardedAct::Remove { names: group.iter().map(|(_, stored)| stored.clone()).collect() }
            };
            let guarded = Guarded { of: self.of, mark: Bytes::from_static(LIVE), act };
            batch.push(Op::native(self.key(map, *shard)?, Native::Guarded(guarded)));
        }
        let mut tried = Vec::with_capacity(groups.len());
        let mut unmarked = Vec::new();
        let replies = self.run(ctx, batch).await;
        for (at, ((shard, _), reply)) in groups.iter().zip(replies).enumerate() {
            tried.push(match reply.map(Reply::into_native) {
                Ok(Some(NativeReply::Flags(flags))) => {
                    Tried::Done(flags.into_iter().map(|flag| Told { flag, ..Told::default() }).collect())
                }
                Ok(Some(NativeReply::Unmarked)) => {
                    unmarked.push((at, (*shard, Ask::Names(Vec::new()))));
                    Tried::Beaten
                }
                Ok(other) => Tried::Failed(self.strange(&other).effect(Effect::Unknown)),
                Err(error) => Tried::Failed(error),
            });
        }
        if !unmarked.is_empty() {
            let (at, asks): (Vec<usize>, Vec<(u16, Ask)>) = unmarked.into_iter().unzip();
            match self.look(ctx, map, &asks).await {
                // Live by now: it was filled in between.
                Ok(sights) => at.into_iter().zip(sights).for_each(|(at, sight)| {
                    tried[at] = if sight.mark == Mark::Live { Tried::Beaten } else { Tried::Refused(sight.mark) };
                }),
                // Of those that were looked at alone: the others have ended as they did.
                Err(error) => at.into_iter().for_each(|at| tried[at] = Tried::Failed(error.clone())),
            }
        }
        Ok(tried)
    }

    async fn try_portable(
        &self,
        ctx: Ctx,
        map: &Map,
        groups: &[(u16, &Group)],
        call: &mut Call<'_>,
    ) -> Result<Vec<Tried>> {
        let places = groups.iter().map(|(shard, _)| (map, *shard));
        let readings = match std::mem::take(&mut call.looks) {
            true => self.read_items_and_ends(ctx, places).await?,
            false => self.read_items(ctx, places).await?,
        };
        // These may be shards that no map names any more: nothing is written there yet.
        self.tell_setback_since(&call.first).map_err(|error| error.effect(Effect::NotApplied))?;
        let (mut tried, mut batch, mut sent) = (Vec::with_capacity(groups.len()), Batch::new(), Vec::new());
        for (at, ((shard, group), reading)) in groups.iter().zip(readings).enumerate() {
            tried.push(Tried::Beaten);
            let (mut now, cas) = match self.usable(map, *shard, reading, &mut call.doubts) {
                Ok(usable) => usable,
                Err(ended) => {
                    tried[at] = ended;
                    continue;
                }
            };
            let base = now.tag;
            let told = match self.applied((map, *shard), &mut now, group, call) {
                Ok(told) => told,
                Err(ended) => {
                    tried[at] = ended;
                    continue;
                }
            };
            now.tag = random_id();
            match self.put_item_op(map, *shard, &now, cas) {
                Ok(op) => batch.push(op),
                Err(error) => {
                    tried[at] = Tried::Failed(error);
                    continue;
                }
            }
            sent.push((at, *shard, now.tag, base, told));
        }
        if tried.iter().any(|tried| matches!(tried, Tried::Failed(_))) || batch.is_empty() {
            return Ok(tried);
        }
        let replies = self.run(ctx, batch).await;
        for ((at, shard, tag, base, told), reply) in sent.into_iter().zip(replies) {
            tried[at] = match reply {
                Ok(Reply::Stored) => {
                    call.doubts.remove(&(map.id, shard));
                    Tried::Done(told)
                }
                Ok(Reply::Exists | Reply::NotStored | Reply::Miss) => Tried::Beaten,
                Ok(other) => Tried::Failed(self.strange(&other).effect(Effect::Unknown)),
                Err(error) if error.is_unknown() => {
                    events::retry(self.subject(), error.kind());
                    let doubts = call.doubts.entry((map.id, shard)).or_default();
                    doubts.base = base;
                    doubts.tries.push((tag, told));
                    Tried::Beaten
                }
                Err(error) => Tried::Failed(error),
            };
        }
        Ok(tried)
    }

    /// A shard that can be written to as it was read; else how the try on it has ended.
    fn usable(
        &self,
        map: &Map,
        shard: u16,
        reading: Option<(Shard, Cas)>,
        all_doubts: &mut HashMap<(u32, u16), Doubts>,
    ) -> std::result::Result<(Shard, Cas), Tried> {
        let doubts = all_doubts.get(&(map.id, shard));
        let Some((now, cas)) = reading else {
            return Err(match doubts {
                Some(_) => Tried::Failed(self.in_doubt(map, shard)),
                None => Tried::Refused(Mark::Missing),
            });
        };
        if let Some(doubts) = doubts {
            if let Some((_, told)) = doubts.tries.iter().find(|(tag, _)| *tag == now.tag) {
                let done = Tried::Done(told.clone());
                all_doubts.remove(&(map.id, shard));
                return Err(done);
            }
            if doubts.base != now.tag {
                return Err(Tried::Failed(self.in_doubt(map, shard)));
            }
        }
        if now.mark != Mark::Live {
            // Sealed, and as it was: what is in doubt did not land, and cannot any more.
            all_doubts.remove(&(map.id, shard));
            return Err(Tried::Refused(now.mark));
        }
        Ok((now, cas))
    }

    /// Others wrote to the shard after a write whose reply was lost: nobody knows any more whether it landed.
    fn in_doubt(&self, map: &Map, shard: u16) -> Error {
        let detail = format!(
            "{}: a reply was lost, and others have written to shard {shard} of {} since",
            self.what(),
            map.shards
        );
        Error::new(ErrorKind::Unavailable, detail).effect(Effect::Unknown)
    }

    /// Reads shards that are items, with their tokens; `None` for those that are missing. **Round trips: 1** for every 1,024.
    pub(super) async fn read_items(
        &self,
        ctx: Ctx,
        places: impl Iterator<Item = (&Map, u16)>,
    ) -> Result<Vec<Option<(Shard, Cas)>>> {
        let gets: Result<Batch> =
            places.map(|(map, shard)| Ok(Op::get(self.key(map, shard)?, Want::VALUE | Want::CAS))).collect();
        self.run_if_any(ctx, gets?).await.into_iter().map(|reply| self.item(reply)).collect()
    }

    /// The same, and the ends of a sorted set. **Round trips: 1.**
    async fn read_items_and_ends(
        &self,
        ctx: Ctx,
        places: impl Iterator<Item = (&Map, u16)>,
    ) -> Result<Vec<Option<(Shard, Cas)>>> {
        let gets = places.map(|(map, shard)| Ok(Op::get(self.key(map, shard)?, Want::VALUE | Want::CAS)));
        let batch: Result<Batch> = std::iter::once(self.ends_cell().map(|cell| cell.read_op())).chain(gets).collect();
        let newest = self.keeper.newest();
        let mut replies = self.run(ctx, batch?).await.into_iter();
        let now = self.learn_ends(replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?)?;
        if !now.is_some_and(|now| follows(newest.as_deref(), &now)) {
            // Gone, or set back: who finds that none are known reads them, and begins them anew.
            self.keeper.forget();
        }
        replies.map(|reply| self.item(reply)).collect()
    }

    /// A shard that was read, with its token.
    fn item(&self, reply: Result<Reply>) -> Result<Option<(Shard, Cas)>> {
        let Some(item) = reply?.into_item() else { return Ok(None) };
        let cas = item.cas.ok_or_else(|| Error::new(ErrorKind::Protocol, "the store gave no cas token"))?;
        Ok(Some((self.shard(&item.value)?, cas)))
    }

    /// Makes the changes of a group to a shard as it was read; else how the try on it has ended.
    fn applied(
        &self,
        at: (&Map, u16),
        now: &mut Shard,
        group: &Group,
        call: &Call<'_>,
    ) -> std::result::Result<Vec<Told>, Tried> {
        let applied = match self.of {
            Collection::Sorted => self.ranked(at, now, group, (call.names, call.changes)),
            _ => applied(now, group, call.changes),
        };
        match applied {
            Applied::Changed(told) => Ok(told),
            Applied::Same(told) => Err(Tried::Done(told)),
            Applied::Behind(seen) => Err(Tried::Behind(seen)),
            Applied::Refused(error) => Err(Tried::Failed(error)),
        }
    }

    /// The op that writes a shard that is an item, where it has this token.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] for one that takes more than an item can have under the longest key of a shard: it may come to that by a resharding.
    pub(super) fn put_item_op(&self, map: &Map, shard: u16, now: &Shard, cas: Cas) -> Result<Op> {
        let (key, value) = (self.key(map, shard)?, now.encode(self.of));
        let max = self.store.profile().value_bytes_max(self.key(map, SHARDS_MAX)?.as_bytes().len());
        if value.len() > max {
            return Err(self.no_room((map, shard), value.len(), &format!("an item takes {max}")));
        }
        let verb = Verb::Put { mode: PutMode::Cas(cas), value, flags: now.flags(self.of), ttl: Ttl::Never };
        Ok(Op::new(key, verb))
    }

    /// The error for a shard that would take more than it can have.
    pub(super) fn no_room(&self, (map, shard): (&Map, u16), bytes: usize, limit: &str) -> Error {
        let detail = format!(
            "{}: shard {shard} of {} would take {bytes} bytes, and {limit}: resharding to more shards makes room",
            self.what(),
            map.shards
        );
        let error = Error::new(ErrorKind::Full, detail).store(self.store.profile().store.clone());
        match self.key(map, shard) {
            Ok(key) => error.key(&key),
            Err(_) => error,
        }
    }
}

/// What a group of changes made of a shard.
pub(super) enum Applied {
    Changed(Vec<Told>),
    /// Nothing is another than it was.
    Same(Vec<Told>),
    /// What it says of the ends is newer than what this handle knows.
    Behind(u64),
    Refused(Error),
}

/// What is left to do after each group was tried once.
#[derive(Default)]
struct Round {
    left: Vec<usize>,
    unfilled: Vec<u16>,
    unusable: Unusable,
    is_old: bool,
    beaten: bool,
    /// What the shards say of the ends, where it is newer.
    behind: Option<u64>,
    fault: Option<Error>,
}

fn judged(
    plan: &Plan,
    groups: BTreeMap<u16, Group>,
    tried: Vec<Tried>,
    out: &mut [Told],
    is_begun: &mut bool,
) -> Round {
    let mut round = Round::default();
    for ((shard, group), tried) in groups.into_iter().zip(tried) {
        match tried {
            Tried::Done(told) => {
                *is_begun = true;
                group.iter().zip(told).for_each(|((at, _), told)| out[*at] = told);
                continue;
            }
            Tried::Failed(error) => {
                *is_begun |= error.is_unknown();
                round.fault = round.fault.or(Some(error));
                continue;
            }
            Tried::Beaten => round.beaten = true,
            Tried::Behind(seen) => round.behind = round.behind.max(Some(seen)),
            Tried::Refused(Mark::Unfilled) if coming_from(plan).is_some() => round.unfilled.push(shard),
            Tried::Refused(mark) => {
                round.is_old = true;
                round.unusable.add(shard, mark);
            }
        }
        round.left.extend(group.into_iter().map(|(at, _)| at));
    }
    // In the order of the call, as the changes of one element must be.
    round.left.sort_unstable();
    round
}

/// Makes changes to a shard of a hash or a set.
fn applied(shard: &mut Shard, group: &Group, changes: &[Change]) -> Applied {
    let (mut told, mut is_changed) = (Vec::with_capacity(group.len()), false);
    for (at, stored) in group {
        let flag = match &changes[*at] {
            Change::Put(value) => {
                let before = shard.elements.insert(stored.clone(), value.clone());
                is_changed |= before.as_ref() != Some(value);
                before.is_none()
            }
            Change::Remove => {
                let was_there = shard.elements.remove(stored).is_some();
                is_changed |= was_there;
                was_there
            }
            // Of sorted sets.
            Change::Score(_) | Change::Add(_) | Change::Settle => false,
        };
        told.push(Told { flag, ..Told::default() });
    }
    if is_changed { Applied::Changed(told) } else { Applied::Same(told) }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
