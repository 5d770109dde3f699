//! Filling the ends of a sorted set from its shards: see [`keeper`](super::keeper).

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Batch, Ctx, ErrorKind, Reply, Result};

use super::core::{Core, Unusable, coming_from};
use super::ends::{Ends, Filling, Records};
use super::keeper::Held;
use super::layout::{Mark, Plan, Record, Shard};
use crate::events;
use crate::retry::Backoff;
use crate::runtime;

/// How many shards are entered at once.
const SHARDS_A_STEP: u16 = 128;
/// How often a step is tried where others get in between.
const TRIES_MAX: usize = 200;

impl Core {
    /// Fills the ends, unless they have enough members: what is there then. **Round trips: 3** for every 128 shards, and 2; 1 more where they are not being
    /// filled yet.
    ///
    /// # Errors
    /// [`Lost`](larder_core::ErrorKind::Lost) where a shard is gone; [`Conflict`](larder_core::ErrorKind::Conflict) where others keep changing them.
    pub(super) async fn fill_ends(&self) -> Result<Arc<Held>> {
        let _one = self.keeper.filler.lock().await;
        let mut held = self.read_ends(self.ctx()).await?;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
        let mut tries = 0;
        while held.ends.filling.is_some() || held.ends.are_short(self.kept()) {
            let before = held.ends.filling;
            held = {
                let _alone = self.keeper.gate.lock().await;
                self.fill_step(held).await?
            };
            tries = if held.ends.filling == before { tries + 1 } else { 0 };
            if tries == TRIES_MAX {
                return Err(self.beaten());
            }
            if tries > 0 {
                runtime::current("filling the ends again waits a moment")?;
                events::conflict(self.subject());
                tokio::time::sleep(backoff.next_pause()).await;
            }
        }
        Ok(held)
    }

    /// Goes one step further from ends that were read: what is there then, whether that landed or others were first.
    async fn fill_step(&self, held: Arc<Held>) -> Result<Arc<Held>> {
        let ctx = self.ctx();
        let mut plan = self.plan();
        let (ends, map) = (&held.ends, plan.map.id);
        let next = match ends.filling {
            None => return self.go_on(ctx, &held, ends.to_fill(self.kept(), map)).await,
            Some(Filling { map, next }) => {
                if map != plan.map.id {
                    plan = self.refresh(ctx).await?;
                }
                if map != plan.map.id {
                    // It was resharded: other shards.
                    return self.go_on(ctx, &held, ends.filled_to(plan.map.id, 0)).await;
                }
                next
            }
        };
        if next >= plan.map.shards {
            return self.go_on(ctx, &held, ends.filled()).await;
        }
        let end = next.saturating_add(SHARDS_A_STEP).min(plan.map.shards);
        match self.told(ctx, &plan, (next..end).collect(), ends.version).await? {
            Ok(records) => {
                let mut next = ends.filled_to(plan.map.id, end);
                next.enter(&records, self.limits().capacity());
                self.go_on(ctx, &held, next).await
            }
            Err(seen) => self.catch_up(ctx, seen).await,
        }
    }

    async fn go_on(&self, ctx: Ctx, held: &Held, next: Ends) -> Result<Arc<Held>> {
        Ok(self.replace_ends(ctx, held, next).await?.1)
    }

    /// Tells shards a version of the ends that was read, and what they say then; `Err` where the ends, or the map, were read too long ago. **Round trips: 2.**
    async fn told(
        &self,
        ctx: Ctx,
        plan: &Plan,
        mut todo: Vec<u16>,
        version: u64,
    ) -> Result<std::result::Result<Records, u64>> {
        let (mut records, mut strikes) = (Records::new(), 0);
        for _ in 0..TRIES_MAX {
            if todo.is_empty() {
                return Ok(Ok(records));
            }
            let readings = self.read_items(ctx, todo.iter().map(|&shard| (&plan.map, shard))).await?;
            let (mut batch, mut sent, mut left, mut unfilled) = (Batch::new(), Vec::new(), Vec::new(), Vec::new());
            let (mut unusable, mut is_old) = (Unusable::default(), false);
            for (&shard, reading) in todo.iter().zip(readings) {
                match reading {
                    Some((now, _)) if now.seen > version => return Ok(Err(now.seen)),
                    Some((now, _)) if now.mark == Mark::Live && now.seen == version => {
                        self.enter(plan, shard, &now, &mut records)?;
                    }
                    Some((mut now, cas)) if now.mark == Mark::Live => {
                        // No element is another: the mark of who wrote it last stays, as he may look for it.
                        now.seen = version;
                        batch.push(self.put_item_op(&plan.map, shard, &now, cas)?);
                        sent.push((shard, now));
                    }
                    Some((now, _)) if now.mark == Mark::Unfilled && coming_from(plan).is_some() => unfilled.push(shard),
                    other => {
                        is_old = true;
                        unusable.add(shard, other.map_or(Mark::Missing, |(now, _)| now.mark));
                        left.push(shard);
                    }
                }
            }
            for ((shard, now), reply) in sent.into_iter().zip(self.run_if_any(ctx, batch).await) {
                match reply {
                    Ok(Reply::Stored) => self.enter(plan, shard, &now, &mut records)?,
                    // Whether it landed, the next round finds.
                    Err(error) if !error.is_unknown() => return Err(error),
                    _ => left.push(shard),
                }
            }
            if !unfilled.is_empty() {
                match self.fill(ctx, plan, &unfilled).await {
                    Err(error) if error.kind() == ErrorKind::Conflict && self.plan() != *plan => {}
                    filled => filled?,
                }
            }
            left.extend(unfilled);
            if is_old {
                self.look_again(ctx, plan, &unusable, &mut strikes).await?;
            }
            if self.plan() != *plan {
                return Ok(Err(0));
            }
            todo = left;
        }
        Err(self.beaten())
    }

    /// Notes what a shard says of its members.
    fn enter(&self, plan: &Plan, shard: u16, now: &Shard, records: &mut Records) -> Result<()> {
        for (stored, value) in &now.elements {
            let (name, record) = (self.named(&plan.map, shard, stored)?, Record::decode(value));
            records.extend(name.zip(record).map(|(name, record)| (name, record.score)));
        }
        Ok(())
    }
}
