//! Filling shards of a new map with what comes from those of the old one: by whoever meets one that is unfilled.
//!
//! 1. The shards that its elements come from are sealed. They refuse every write from then on, so they say the same for ever.
//! 2. The shard is written, with all that belongs to it, on condition that it is unfilled.
//!
//! Any number may do so at once: they write the same, and one lands. Whoever dies on the way leaves what the next one goes on with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use larder_core::native::{Collection, Guarded, GuardedAct, Native, NativeReply};
use larder_core::{Batch, Cas, Ctx, Op, Reply, Result};

use super::core::{Ask, Core, Found, OPS_A_BATCH, STRIKES_MAX, Sight, coming_from};
use super::layout::{LIVE, Map, Mark, Plan, SEALED, Shard, UNFILLED};
use crate::ids::random_id;

/// How often it is tried where others get in between.
const ROUNDS_MAX: usize = 100;
/// How many shards are filled at once, at the most.
const SHARDS_AT_ONCE: usize = 32;

impl Core {
    /// Sees to it that shards of the map in force are filled. **Round trips: 2** natively, else 4, for every 32 of them, or as many as come from some 500.
    ///
    /// # Errors
    /// [`Lost`](larder_core::ErrorKind::Lost) where one of them, or what it comes from, is gone; where the map is another by then [`RolledBack`](larder_core::ErrorKind::RolledBack), once, if it
    /// went back, and else [`Conflict`](larder_core::ErrorKind::Conflict).
    pub(super) async fn fill(&self, ctx: Ctx, plan: &Plan, shards: &[u16]) -> Result<()> {
        let Some(from) = coming_from(plan) else { return Ok(()) };
        let mut rest = shards;
        while !rest.is_empty() {
            let part;
            (part, rest) = rest.split_at(self.filled_at_once(&plan.map, &from, rest));
            let mut todo = part.to_vec();
            let mut strikes = 0;
            for _ in 0..ROUNDS_MAX {
                let (left, gone) = if self.is_native() {
                    self.fill_native(ctx, &plan.map, &from, &todo).await?
                } else {
                    self.fill_portable(ctx, &plan.map, &from, &todo).await?
                };
                todo = left;
                if todo.is_empty() {
                    break;
                }
                if let Some(source) = gone {
                    strikes += 1;
                    if strikes >= STRIKES_MAX {
                        // Others may have gone another way meanwhile, from a map that went back.
                        let now = self.refresh(ctx).await?;
                        return Err(if now == *plan { self.lost(&from, source) } else { self.beaten() });
                    }
                }
            }
            if !todo.is_empty() {
                return Err(self.beaten());
            }
        }
        Ok(())
    }

    /// How many of these shards are filled at once, the first ones: 32, or fewer, which with what they come from are no more ops than go into a batch; but one.
    pub(super) fn filled_at_once(&self, to: &Map, from: &Map, shards: &[u16]) -> usize {
        let (most, mut ops) = (self.a_batch(1, OPS_A_BATCH), 0);
        let fits = |shard: &&u16| {
            ops += 1 + 2 * to.overlap(**shard, from).len();
            ops <= most
        };
        shards.iter().take(SHARDS_AT_ONCE).take_while(fits).count().max(1)
    }

    /// Those that are not filled yet; and one of the old map that they come from, where it is for that being gone.
    async fn fill_native(&self, ctx: Ctx, to: &Map, from: &Map, shards: &[u16]) -> Result<(Vec<u16>, Option<u16>)> {
        let wanted: BTreeSet<u16> = shards.iter().flat_map(|&shard| to.overlap(shard, from)).collect();
        let mut batch = Batch::new();
        for &source in &wanted {
            batch.push(self.turn_op(from, source, LIVE, SEALED, Vec::new())?);
            batch.push(self.all_op(self.key(from, source)?));
        }
        let mut replies = self.run_if_any(ctx, batch).await.into_iter();
        let mut sources = BTreeMap::new();
        for source in wanted {
            let seal = replies.next();
            // Whether this one sealed it, or another did, the read behind it tells.
            let (mark, all) = self.all(replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?)?;
            match seal {
                Some(Err(error)) if mark == Mark::Live && !error.is_unknown() => return Err(error),
                _ => {}
            }
            sources.insert(source, Sight { mark, seen: 0, found: Found::All(all) });
        }
        let (mut batch, mut sent, mut left, mut stuck) = (Batch::new(), Vec::new(), Vec::new(), BTreeMap::new());
        for &shard in shards {
            let mark = |source: &u16| sources.get(source).map(|sight| sight.mark);
            if to.overlap(shard, from).all(|source| mark(&source) == Some(Mark::Sealed)) {
                match self.gathered(to, from, shard, &sources)? {
                    Ok(elements) => {
                        batch.push(self.turn_op(to, shard, UNFILLED, LIVE, elements)?);
                        sent.push(shard);
                    }
                    Err(source) => _ = stuck.insert(shard, source),
                }
            } else if let Some(gone) = to.overlap(shard, from).find(|source| mark(source) == Some(Mark::Missing)) {
                stuck.insert(shard, gone);
            } else {
                // The seal did not land.
                left.push(shard);
            }
        }
        let mut look: Vec<u16> = stuck.keys().copied().collect();
        for (shard, reply) in sent.into_iter().zip(self.run_if_any(ctx, batch).await) {
            match reply.map(Reply::into_native) {
                Ok(Some(NativeReply::Flags(_))) => {}
                Ok(Some(NativeReply::Unmarked)) => look.push(shard),
                Ok(other) => return Err(self.strange(&other)),
                // Whether it landed, the next round finds.
                Err(error) if error.is_unknown() => left.push(shard),
                Err(error) => return Err(error),
            }
        }
        let asks: Vec<(u16, Ask)> = look.into_iter().map(|shard| (shard, Ask::Names(Vec::new()))).collect();
        let mut gone = None;
        for ((shard, _), sight) in asks.iter().zip(self.look(ctx, to, &asks).await?) {
            match sight.mark {
                // Filled by others; or already on the way into the map after this.
                Mark::Live | Mark::Sealed | Mark::Turned => {}
                Mark::Missing => return Err(self.gone(ctx, to, *shard).await?),
                Mark::Unfilled => {
                    gone = gone.or(stuck.get(shard).copied());
                    left.push(*shard);
                }
            }
        }
        Ok((left, gone))
    }

    /// The shards of the old map that are sealed before one of the new map is filled: those that its elements come from. In a sorted set the last one is sealed, too, for a shard of dense
    /// numbers that the old map had no room for: so whoever fills the ends from the old map has told the last shard of them, and this one is told the same; or he finds that sealed, and the
    /// new map.
    pub(super) fn sealed_for(&self, to: &Map, from: &Map, shard: u16) -> Range<u16> {
        let overlap = to.overlap(shard, from);
        match self.of {
            Collection::Sorted => overlap.start.min(from.shards - 1)..overlap.end,
            _ => overlap,
        }
    }

    /// The error for a shard of this map that is missing, unless the map has gone on.
    async fn gone(&self, ctx: Ctx, map: &Map, shard: u16) -> Result<larder_core::Error> {
        let now = self.refresh(ctx).await?;
        Ok(if now.map == *map { self.lost(map, shard) } else { self.beaten() })
    }

    /// Runs ops, as many at once as go into a batch. **Round trips: 1** for every 1,024, none where there are none.
    pub(super) async fn run_if_any(&self, ctx: Ctx, batch: Batch) -> larder_core::Replies {
        let (most, mut ops) = (self.a_batch(1, OPS_A_BATCH), batch.into_iter());
        let mut replies = larder_core::Replies::new();
        while ops.len() > 0 {
            replies.extend(self.run(ctx, ops.by_ref().take(most).collect()).await);
        }
        replies
    }

    /// The op that puts another mark in the place of one.
    fn turn_op(
        &self,
        map: &Map,
        shard: u16,
        mark: &'static [u8],
        to: &'static [u8],
        entries: Vec<(Bytes, Bytes)>,
    ) -> Result<Op> {
        let act = GuardedAct::Turn { to: Bytes::from_static(to), entries };
        let guarded = Guarded { of: self.of, mark: Bytes::from_static(mark), act };
        Ok(Op::native(self.key(map, shard)?, Native::Guarded(guarded)))
    }

    async fn fill_portable(&self, ctx: Ctx, to: &Map, from: &Map, shards: &[u16]) -> Result<(Vec<u16>, Option<u16>)> {
        let wanted: BTreeSet<u16> = shards.iter().flat_map(|&shard| self.sealed_for(to, from, shard)).collect();
        let places = shards.iter().map(|&shard| (to, shard)).chain(wanted.iter().map(|&source| (from, source)));
        let mut readings = self.read_items(ctx, places).await?;
        let of_sources = readings.split_off(shards.len().min(readings.len()));
        let mut targets = Vec::new();
        for (&shard, reading) in shards.iter().zip(readings) {
            match reading {
                Some((now, cas)) if now.mark == Mark::Unfilled => targets.push((shard, now, cas)),
                Some(_) => {}
                None => return Err(self.gone(ctx, to, shard).await?),
            }
        }
        if targets.is_empty() {
            return Ok((Vec::new(), None));
        }
        let (mut sources, mut seals) = (BTreeMap::new(), Batch::new());
        for (&source, reading) in wanted.iter().zip(of_sources) {
            let mark = match &reading {
                None => Mark::Missing,
                Some((now, _)) => now.mark,
            };
            if let Some((mut now, cas)) = reading {
                if now.mark == Mark::Live {
                    now.mark = Mark::Sealed;
                    seals.push(self.put_item_op(from, source, &now, cas)?);
                }
                let found = Found::All(now.elements.into_iter().collect());
                sources.insert(source, Sight { mark, seen: now.seen, found });
            }
        }
        if !seals.is_empty() {
            for reply in self.run_if_any(ctx, seals).await {
                match reply {
                    Err(error) if !error.is_unknown() => return Err(error),
                    // Whether they landed, the next round finds.
                    _ => {}
                }
            }
            return Ok((targets.into_iter().map(|(shard, ..)| shard).collect(), None));
        }
        self.put_filled(ctx, (to, from), targets, &sources).await
    }

    /// Writes shards with what belongs to them. Those that are left then; and one of the old map that is wanted for them, where it is for that being gone.
    async fn put_filled(
        &self,
        ctx: Ctx,
        (to, from): (&Map, &Map),
        targets: Vec<(u16, Shard, Cas)>,
        sources: &BTreeMap<u16, Sight>,
    ) -> Result<(Vec<u16>, Option<u16>)> {
        let (mut left, mut batch, mut sent, mut gone) = (Vec::new(), Batch::new(), Vec::new(), None);
        for (shard, mut now, cas) in targets {
            let sealed = self.sealed_for(to, from, shard);
            let elements = match sealed.clone().find(|source| !sources.contains_key(source)) {
                Some(source) => Err(source),
                None => self.gathered(to, from, shard, sources)?,
            };
            match elements {
                Err(source) => {
                    left.push(shard);
                    gone = gone.or(Some(source));
                }
                Ok(elements) => {
                    now.elements = elements.into_iter().collect();
                    let seen = sealed.filter_map(|source| sources.get(&source)).map(|sight| sight.seen);
                    now.seen = seen.max().unwrap_or(0);
                    now.mark = Mark::Live;
                    now.tag = random_id();
                    batch.push(self.put_item_op(to, shard, &now, cas)?);
                    sent.push(shard);
                }
            }
        }
        for (shard, reply) in sent.into_iter().zip(self.run_if_any(ctx, batch).await) {
            match reply {
                Ok(Reply::Stored) => {}
                Err(error) if !error.is_unknown() => return Err(error),
                _ => left.push(shard),
            }
        }
        Ok((left, gone))
    }
}
