//! Making shards another number, or of another size, while readers and writers go on.
//!
//! | step | what a crash after it leaves |
//! |---|---|
//! | 1. plan: the map item names the map to come | the next resharding, or a drop, clears it away |
//! | 2. make its shards, unfilled | the same |
//! | 3. the map item puts it in force, and names the one that elements come from | a resharding midway: everybody goes on as if it were slow, and the next one finishes it |
//! | 4. fill each shard (`fill`), then remove what nothing comes from any more | the same |
//! | 5. the map item forgets the old map | nothing |
//!
//! Steps 1, 3 and 5 are conditional writes of one item. Natively step 4 fills a shard by one script, which nobody can interrupt: it stops Redis for 1 to 1.3 µs an element, measured, so for 125 to 160 ms where a new shard has 125,000 elements. With fewer than 20,000 in each new shard no other operation waits 50 ms for it; shards that are made for `expected` elements have 64 to 256 or so.

use std::collections::BTreeSet;
use std::time::Duration;

use larder_core::native::Collection;
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Op, Result, Ttl, Want};

use super::core::{Ask, Core, Found, OPS_A_BATCH, coming_from};
use super::layout::{Map, Mark, Phase, Plan, Shard};
use super::{SHARDS_MAX, make};
use crate::cell::Cell;
use crate::events;
use crate::ids::random_id;
use crate::owned;
use crate::retry::Backoff;
use crate::runtime;

/// How long another one's plan may stand before it is taken for dead; twice as long each time that one was.
const PLAN_MAX: Duration = Duration::from_secs(2);
/// It is never longer than this.
const PLAN_MAX_MAX: Duration = Duration::from_secs(64);
/// How many shards are filled between two looks around, at the most.
const SHARDS_A_STEP: u16 = 32;
/// How often it is tried where others reshard, too.
const ROUNDS_MAX: usize = 200;

/// How far a resharding is.
///
/// ```
/// let done = larder_structures::sharded::Progress { filled: 32, shards: 64 };
/// assert_eq!(done.filled * 100 / done.shards, 50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many of the new shards have their elements.
    pub filled: u32,
    /// How many there are.
    pub shards: u32,
}

/// What shards are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// So many; of dense numbers each holds as many as before, or more where they would not be enough.
    Shards(u16),
    /// Of so many dense numbers each; as many shards as hold the numbers that there is room for.
    PerShard(u32),
}

impl Aim {
    fn is_met(self, map: &Map) -> bool {
        match self {
            Aim::Shards(shards) => map.shards == shards,
            Aim::PerShard(per_shard) => map.per_shard == per_shard,
        }
    }
}

/// How long the next plan may stand: whoever took a live maker for dead leaves the next one the time. Else those who reshard at once could clear each other's plans away for ever.
fn longer(patience: Duration) -> Duration {
    (patience * 2).min(PLAN_MAX_MAX)
}

impl Core {
    /// Makes the shards what they are to be, after finishing what another one began.
    pub(super) async fn reshard(&self, aim: Aim, tell: &mut (dyn FnMut(Progress) + Send)) -> Result<()> {
        self.check()?;
        runtime::current("resharding waits now and then")?;
        self.check_aim(aim)?;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        // A map of ours was put in force: once it is finished this is done, whatever others make of it then.
        let (mut ours, mut patience) = (None, PLAN_MAX);
        for _ in 0..ROUNDS_MAX {
            let (plan, cas) = self.read_plan().await?;
            match plan.phase {
                Phase::Moving(from) => match self.finish(&plan, &from, cas, tell).await {
                    // Others have finished it.
                    Err(error) if error.kind() == ErrorKind::Conflict => {
                        tokio::time::sleep(backoff.next_pause()).await;
                    }
                    outcome => outcome?,
                },
                _ if ours == Some(plan.map.id) => return Ok(()),
                // Also where there are as many already: what a dead one has left is gone afterwards.
                Phase::Planned(other) => {
                    if self.clear(&plan, &other, patience).await? {
                        patience = longer(patience);
                    }
                }
                Phase::Stable => {
                    if let Some(shard) = self.undone(&plan).await? {
                        return Err(self.went_back(&plan, shard).await?);
                    }
                    if aim.is_met(&plan.map) {
                        return Ok(());
                    }
                    match self.begin(&plan, cas, aim).await? {
                        Some(to) => ours = Some(to),
                        None => tokio::time::sleep(backoff.next_pause()).await,
                    }
                }
            }
        }
        Err(self.beaten())
    }

    fn check_aim(&self, aim: Aim) -> Result<()> {
        let detail = match aim {
            Aim::Shards(0) => format!("{} takes 1 to {SHARDS_MAX} shards, not 0", self.what()),
            Aim::PerShard(0) => format!("{} takes at least 1 dense number a shard, not 0", self.what()),
            Aim::PerShard(_) if !self.params.is_dense => {
                format!("{} spreads its elements by hash, and not by dense numbers", self.what())
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::BadInput, detail))
    }

    pub(super) fn ctx(&self) -> Ctx {
        Ctx { deadline: Some(self.deadline()) }
    }

    /// The map with its token. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`refresh`](Core::refresh).
    async fn read_plan(&self) -> Result<(Plan, Cas)> {
        let known = self.plan();
        let batch = Batch::from_buf([Op::get(self.map_key().clone(), Want::VALUE | Want::CAS)]);
        let mut replies = self.vigil.run(self.ctx(), batch).await;
        self.vigil.check()?;
        let reply = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?;
        let found = reply.into_item().and_then(|item| Some((self.decoded(&item.value)?, item.cas?)));
        let Some((plan, cas)) = found else {
            // Says what is wrong with it.
            self.refresh(self.ctx()).await?;
            return Err(self.beaten());
        };
        self.heed(&known, plan)?;
        Ok((plan, cas))
    }

    /// Writes the map, if it has the token. False where it has not, and where that is not known: read it again.
    async fn write_plan(&self, cas: Cas, plan: &Plan) -> Result<bool> {
        let cell = Cell::new(self.map_key().clone());
        let wrote = cell.write(&self.store, self.ctx(), cas, plan.encode(), Ttl::Never).await;
        match wrote.landed {
            Ok(true) => {
                self.learn(*plan);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) if error.is_unknown() => {
                events::retry(self.subject(), error.kind());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The map to come: at least as many ids where they are dense.
    fn next_map(&self, map: &Map, aim: Aim) -> Result<Map> {
        let bad = |detail: String| Error::new(ErrorKind::BadInput, detail);
        let mut id = random_id() as u32;
        while id == map.id {
            id = random_id() as u32;
        }
        let (shards, per_shard) = match aim {
            Aim::PerShard(per_shard) => {
                let shards = map.capacity().div_ceil(u64::from(per_shard)).max(1);
                let shards = u16::try_from(shards).map_err(|_| {
                    bad(format!(
                        "{per_shard} dense numbers a shard would be {shards} shards of {}, for the {} numbers that it has room for; there are {SHARDS_MAX} at the most, of {} numbers each",
                        self.what(),
                        map.capacity(),
                        map.per_shard_min()
                    ))
                })?;
                (shards, per_shard)
            }
            Aim::Shards(shards) if map.per_shard == 0 => (shards, 0),
            Aim::Shards(shards) if shards >= map.shards => (shards, map.per_shard),
            Aim::Shards(shards) => {
                let per_shard = u32::try_from(map.capacity().div_ceil(u64::from(shards)));
                let few = |_| bad(format!("{shards} shards are too few for the ids of {}", self.what()));
                (shards, per_shard.map_err(few)?)
            }
        };
        Ok(Map { id, shards, per_shard })
    }

    /// Sees to it that what stands in the shards of one map fits into those of another, where shards are items: one that does not would stay unfilled. A shard that
    /// several come into is to leave an eighth to what is written meanwhile; what comes from one shard is never larger than that, which fits under any key. **Round trips: 1** for every 32 shards
    /// that are brought together with others, none natively.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] where it does not fit.
    async fn expect_room(&self, from: &Map, to: &Map) -> Result<()> {
        if self.is_native() {
            return Ok(());
        }
        let are_several = |shard: &u16| to.overlap(*shard, from).len() > 1;
        let sources: BTreeSet<u16> =
            (0..to.shards).filter(are_several).flat_map(|shard| to.overlap(shard, from)).collect();
        let mut bytes = vec![Shard::empty(Mark::Live).encode(self.of).len(); to.shards.into()];
        let asks: Vec<(u16, Ask)> = sources.into_iter().map(|shard| (shard, Ask::All)).collect();
        for part in asks.chunks(SHARDS_A_STEP.into()) {
            for ((source, _), sight) in part.iter().zip(self.look(self.ctx(), from, part).await?) {
                // What is missing is told by who fills; or others were first, and nothing is put in force here.
                let Found::All(all) = sight.found else { continue };
                for (stored, value) in all {
                    let Some(name) = self.named(from, *source, &stored)? else { continue };
                    let (shard, stored) = self.place(to, &name)?;
                    bytes[usize::from(shard)] += Shard::element_bytes(self.of, &stored, &value);
                }
            }
        }
        for (shard, bytes) in (0..to.shards).zip(bytes).filter(|(shard, _)| are_several(shard)) {
            let item_max = self.store.profile().value_bytes_max(self.key(to, shard)?.as_bytes().len());
            let left = item_max / 8;
            if bytes > item_max - left {
                let limit =
                    format!("of the {item_max} that an item takes, {left} are left to what is written meanwhile");
                return Err(self.no_room((to, shard), bytes, &limit).effect(Effect::NotApplied));
            }
        }
        Ok(())
    }

    /// Steps 1 to 3. The id of the map that is in force then; `None` where others were first.
    async fn begin(&self, plan: &Plan, cas: Cas, aim: Aim) -> Result<Option<u32>> {
        let to = self.next_map(&plan.map, aim)?;
        self.expect_room(&plan.map, &to).await?;
        let planned = self.next_plan(plan, plan.map, Phase::Planned(to))?;
        if !self.write_plan(cas, &planned).await? {
            return Ok(None);
        }
        let read = match self.make_unfilled(&to).await {
            Ok(()) => self.read_plan().await,
            Err(error) => Err(error),
        };
        let (now, cas) = match read {
            // It was dropped meanwhile, or went back to before the plan: nobody knows of these.
            Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack) => {
                if error.kind() == ErrorKind::Lost || !self.plan().names(&to) {
                    _ = self.remove(&to, 0..to.shards).await;
                }
                return Err(error);
            }
            read => read?,
        };
        let moving = self.next_plan(&now, to, Phase::Moving(plan.map))?;
        if now == planned && self.write_plan(cas, &moving).await? {
            return Ok(Some(to.id));
        }
        // Others have cleared it away. Or put it in force, and maybe go on from it: then elements stand in its shards.
        if !now.names(&to) {
            self.remove(&to, 0..to.shards).await?;
        }
        Ok(None)
    }

    /// Step 2.
    ///
    /// # Errors
    /// With the effect "not applied": what is there is cleared away by the next one.
    async fn make_unfilled(&self, to: &Map) -> Result<()> {
        for part in make::parts(to, self.ops_a_batch()) {
            let ops = part.map(|shard| make::make_op(self.of, self.is_native(), self.key(to, shard)?, Mark::Unfilled));
            let ops = ops.collect::<Result<Batch>>()?;
            for (op, reply) in ops.iter().zip(self.run(self.ctx(), ops.clone()).await) {
                let made = reply.and_then(|reply| owned::is_made(op, &reply));
                made.map_err(|error| error.effect(Effect::NotApplied))?;
            }
        }
        Ok(())
    }

    /// Clears a plan away, unless its maker gets on with it within so long: true if he did not.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] where it was in force already: what stands in its shards was acknowledged.
    async fn clear(&self, plan: &Plan, other: &Map, patience: Duration) -> Result<bool> {
        self.wait_for_maker(plan, patience).await?;
        // Read before the shards: who puts it in force after that, and fills some, has the writing fail.
        let (now, cas) = self.read_plan().await?;
        if now == *plan
            && let Some(shard) = self.undone(plan).await?
        {
            return Err(self.went_back(plan, shard).await?);
        }
        self.clear_away(plan, other, (now == *plan).then_some(cas)).await?;
        Ok(now == *plan)
    }

    /// Waits until the maker of a plan gets on with it, or is taken for dead after so long.
    async fn wait_for_maker(&self, plan: &Plan, patience: Duration) -> Result<()> {
        let mut waited = Duration::ZERO;
        let pause = Duration::from_millis(50);
        while waited < patience {
            tokio::time::sleep(pause).await;
            waited += pause;
            if self.read_plan().await?.0 != *plan {
                break;
            }
        }
        Ok(())
    }

    /// Writes the map without a plan, where it has this token; and removes what was to come.
    async fn clear_away(&self, plan: &Plan, other: &Map, cas: Option<Cas>) -> Result<()> {
        let stable = self.next_plan(plan, plan.map, Phase::Stable)?;
        if let Some(cas) = cas {
            self.write_plan(cas, &stable).await?;
        }
        // Also where others were first, or a lost write of ours landed: what no plan names any more can come into force no more.
        if !self.read_plan().await?.0.names(other) {
            self.remove(other, 0..other.shards).await?;
        }
        Ok(())
    }

    /// A shard that proves that the map went back behind a resharding, to this one, which is not moving: shards are sealed, and filled, only for a map that is in force. One of the map
    /// in force that is sealed; or one of the map to come that is not unfilled. **Round trips: 1** for every 1,024 shards, of both maps.
    async fn undone(&self, plan: &Plan) -> Result<Option<u16>> {
        let is_sealed = |mark| mark == Mark::Sealed;
        let found = match (self.one_marked(&plan.map, is_sealed).await?, plan.phase) {
            (None, Phase::Planned(to)) => {
                let is_filled = |mark| matches!(mark, Mark::Live | Mark::Turned | Mark::Sealed);
                self.one_marked(&to, is_filled).await?
            }
            (found, _) => found,
        };
        // Else others have put a map in force meanwhile.
        Ok(if found.is_some() && self.read_plan().await?.0 == *plan { found } else { None })
    }

    /// The first shard of a map with such a mark. **Round trips: 1** for every 1,024 shards.
    async fn one_marked(&self, map: &Map, is_such: impl Fn(Mark) -> bool) -> Result<Option<u16>> {
        // What is smallest: natively nothing but marks, of an item its flags.
        let ask = if self.is_native() { Ask::Names(Vec::new()) } else { Ask::Count };
        let asks: Vec<(u16, Ask)> = (0..map.shards).map(|shard| (shard, ask.clone())).collect();
        for part in asks.chunks(OPS_A_BATCH) {
            // As long for each part: there may be many.
            let sights = self.look(self.ctx(), map, part).await?;
            if let Some(((shard, _), _)) = part.iter().zip(sights).find(|(_, sight)| is_such(sight.mark)) {
                return Ok(Some(*shard));
            }
        }
        Ok(None)
    }

    /// Goes on from a map that went back, by a failover, behind a resharding: shards of it are sealed for one that it does not tell of, so nobody could write to them ever
    /// again. What was to come is put in force where it is still named, and there; else what was sealed is brought to new shards. The error tells of it, once.
    pub(super) async fn went_back(&self, before: &Plan, shard: u16) -> Result<Error> {
        runtime::current("resharding waits now and then")?;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        let mut patience = PLAN_MAX;
        let is_missing = |mark| mark == Mark::Missing;
        for _ in 0..ROUNDS_MAX {
            let (plan, cas) = self.read_plan().await?;
            if plan.map.id != before.map.id {
                let detail = format!(
                    "the map of {} went back to version {}, by a failover: shard {shard} was sealed, or filled, by a resharding that it does not tell of. What was written since \
                     that began may be gone; it goes on from the rest",
                    self.what(),
                    before.version
                );
                return Ok(self.loss(Error::new(ErrorKind::RolledBack, detail).effect(Effect::NotApplied)));
            }
            match plan.phase {
                Phase::Moving(from) => self.finish(&plan, &from, cas, &mut |_| {}).await?,
                Phase::Planned(to) if self.one_marked(&to, is_missing).await?.is_none() => {
                    let moving = self.next_plan(&plan, to, Phase::Moving(plan.map))?;
                    _ = self.write_plan(cas, &moving).await?;
                }
                Phase::Planned(to) => {
                    // Where shards were removed since, what was to come has all there is of their elements.
                    if let Some(shard) = self.one_marked(&plan.map, is_missing).await? {
                        return Err(self.lost(&plan.map, shard));
                    }
                    self.wait_for_maker(&plan, patience).await?;
                    patience = longer(patience);
                    let (now, cas) = self.read_plan().await?;
                    self.clear_away(&plan, &to, (now == plan).then_some(cas)).await?;
                }
                Phase::Stable => {
                    // They may tell of what is only in shards that nothing names any more: they are made again.
                    if self.of == Collection::Sorted {
                        let ends = self.ends_cell()?.key;
                        for reply in self.run(self.ctx(), Batch::from_buf([Op::delete(ends)])).await {
                            reply?;
                        }
                    }
                    if self.begin(&plan, cas, Aim::Shards(plan.map.shards)).await?.is_none() {
                        tokio::time::sleep(backoff.next_pause()).await;
                    }
                }
            }
        }
        Err(self.beaten())
    }

    /// Steps 4 and 5.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where others got ahead.
    async fn finish(&self, plan: &Plan, from: &Map, cas: Cas, tell: &mut (dyn FnMut(Progress) + Send)) -> Result<()> {
        debug_assert_eq!(coming_from(plan), Some(*from));
        let shards = plan.map.shards;
        let (mut next, mut removed) = (0u16, 0u16);
        tell(Progress { filled: 0, shards: u32::from(shards) });
        while next < shards {
            let rest: Vec<u16> = (next..next.saturating_add(SHARDS_A_STEP).min(shards)).collect();
            // Each part has as long as a call: what few shards come from may be many.
            let some = &rest[..self.filled_at_once(&plan.map, from, &rest)];
            self.fill(self.ctx(), plan, some).await?;
            next += some.len() as u16;
            // Nothing comes from those before what the next one needs.
            let needed = if next < shards { self.sealed_for(&plan.map, from, next).start } else { from.shards };
            if removed < needed {
                self.remove(from, removed..needed).await?;
                removed = needed;
            }
            tell(Progress { filled: u32::from(next), shards: u32::from(shards) });
            tokio::task::yield_now().await;
        }
        let stable = self.next_plan(plan, plan.map, Phase::Stable)?;
        self.write_plan(cas, &stable).await?;
        Ok(())
    }

    /// Removes shards that nobody needs. What another program keeps under such a key stays, and is in nobody's way.
    async fn remove(&self, map: &Map, shards: std::ops::Range<u16>) -> Result<()> {
        let (all, profile): (Vec<u16>, _) = (shards.collect(), self.store.profile());
        for part in all.chunks(self.ops_a_batch()) {
            let ops = part
                .iter()
                .map(|&shard| Ok(make::owned(self.of, self.is_native(), self.key(map, shard)?).remove_op(&profile)));
            // Without a look at the map: also where that is gone.
            for reply in self.vigil.run(self.ctx(), ops.collect::<Result<Batch>>()?).await {
                reply?;
            }
        }
        Ok(())
    }
}
