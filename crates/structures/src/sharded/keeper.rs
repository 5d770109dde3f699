//! The ends of a sorted set, and how they and the shards are brought to agree.
//!
//! A change that the ends must learn of takes two writes, and whoever makes it may die between them. So the shard is written first, and says of the member that it is *pending*;
//! then the ends are written, on condition that nobody else did since they were read, and the change is acknowledged. Nobody is told of a pending member before the ends
//! agree with it: whoever meets one sees to that himself. So a change takes effect for all, or for nobody yet.
//!
//! # Why they agree
//! Each write of the ends is a new version, by the token of the last. A shard carries `seen`, a version of the ends, which only grows.
//!
//! 1. *Who brings a member to the ends* that he has read at version `v` has written `v` to the member's shard as `seen`, together with the member or after it, and before he writes
//!    the ends. So ends of a version greater than `seen` can no more be changed by what the shard said before: that token is dead.
//! 2. *Who writes a shard* knows ends of version `seen` or later; else he reads them first. A member whose score was and will be beyond their reach he writes as it is. Reaches only
//!    grow narrower, but where ends are filled; and that is told to each shard, as `seen`, before what stands in it is entered. A shard of a new map is told what those were told that are
//!    sealed for it, of which each has at least one (`fill`).
//! 3. *A pending member is settled* where ends of a version greater than `seen` agree with it. By 1 nobody can have changed that since, but for those who write the shard again.
//!    The mark goes with the next write of the shard.
//!
//! A writer who is overtaken at the ends begins again with the shard, by 1. What is in doubt need not be known: it is read, and brought to agree again.
//!
//! # Filling
//! Ends that fell short, or were lost, are filled from the shards, some at a time: their next version reaches everything, and each step enters what a row of shards says by the
//! same rules as one writer would, and notes how far it came. Others write meanwhile, and anybody goes on where one stopped. Once all shards are read, the ends are complete as
//! far as they reach.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::Score;
use larder_core::{Batch, Cas, Clock, Ctx, Effect, Error, ErrorKind, Item, Op, PutMode, Reply, Result, Ttl, ambient};

use super::core::Core;
use super::ends::{Ends, Records};
use super::layout::{Limits, Map, Record, Shard};
use super::write::{Applied, Change, Group, Told};
use crate::cell::{Cell, Wrote};
use crate::events;
use crate::retry::Backoff;
use crate::runtime;

/// The index of the ends, as data of the manifest.
pub(super) const ENDS: u16 = 1;
/// How often it is tried where others get in between.
const ROUNDS_MAX: usize = 1_000;
/// How far above the versions that are known ends are begun anew, where the time is not greater: those that were lost may have been some versions further.
const AHEAD: u64 = 1 << 20;
/// How often it is tried to begin the ends anew.
const BEGINNINGS_MAX: usize = 100;

/// What all handles know of the ends.
#[derive(Default)]
pub(super) struct Keeper {
    /// Never held across an await.
    state: Mutex<State>,
    /// Those of one handle who write the ends go one after the other: they would only beat each other.
    pub(super) gate: tokio::sync::Mutex<()>,
    /// One fills them.
    pub(super) filler: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    held: Option<Arc<Held>>,
    /// Those of the greatest version that was seen, also once they are gone.
    newest: Option<Arc<Held>>,
}

/// The ends as they were read.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) ends: Arc<Ends>,
    cas: Cas,
    /// What they were read from.
    value: Bytes,
}

impl Held {
    /// True if `later` may have been written behind these, or are these. Of one version there are others only where the store went back and they were written as often since.
    fn leads_to(&self, later: &Held) -> bool {
        later.ends.version > self.ends.version || (later.ends.version == self.ends.version && later.value == self.value)
    }
}

/// True unless the store went back between `before`, the newest that were known when it was asked for the ends, and what it answered.
pub(super) fn follows(before: Option<&Held>, now: &Held) -> bool {
    before.is_none_or(|before| before.leads_to(now))
}

/// What is left to do about a member whose shard was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// What its shard says.
    pub(super) score: Option<Score>,
    /// The version of the ends that the shard was told with it.
    pub(super) version: u64,
}

/// Members that are pending; `None` where it is not known what their shards say.
pub(super) type Pendings = BTreeMap<Bytes, Option<Pending>>;

/// Versions begin with the time, so that those of ends that were lost do not come again.
pub(super) fn now_us(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.wall().as_micros()).unwrap_or(u64::MAX)
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest ends that were seen.
    pub(super) fn held(&self) -> Option<Arc<Held>> {
        self.state().held.clone()
    }

    /// Those of the greatest version that were seen.
    pub(super) fn newest(&self) -> Option<Arc<Held>> {
        self.state().newest.clone()
    }

    /// They are gone.
    pub(super) fn forget(&self) {
        self.state().held = None;
    }

    /// Of two of one version those that are known stay: who asked when these were known begins them anew ([`follows`]).
    fn learn(&self, held: &Arc<Held>) {
        let mut state = self.state();
        if follows(state.newest.as_deref(), held) {
            state.newest = Some(held.clone());
            state.held = Some(held.clone());
        }
    }
}

impl Core {
    pub(super) fn limits(&self) -> Limits {
        self.params.limits.unwrap_or(Limits { kept: 1, member_bytes_max: 1 })
    }

    pub(super) fn ends_cell(&self) -> Result<Cell> {
        Ok(Cell::new(self.manifest.data_key(&self.name, ENDS)?))
    }

    /// The ends that were read; `None` where there are none. They are gone by only if they [follow](follows) what was known.
    pub(super) fn learn_ends(&self, reply: Reply) -> Result<Option<Arc<Held>>> {
        reply.into_item().map(|item| self.ends_of(item)).transpose()
    }

    /// Those of the same bytes as the newest that are known are not decoded again: most looks find them as they were.
    fn ends_of(&self, item: Item) -> Result<Arc<Held>> {
        let ends = match self.keeper.newest() {
            Some(known) if known.value == item.value => known.ends.clone(),
            _ => Arc::new(Ends::decode(&item.value).ok_or_else(|| {
                let detail = format!("the ends of {} are none that this release knows", self.what());
                Error::new(ErrorKind::LayoutMismatch, detail)
            })?),
        };
        self.held_of(item, ends)
    }

    /// The ends of an item, which is decoded.
    fn held_of(&self, item: Item, ends: Arc<Ends>) -> Result<Arc<Held>> {
        let cas = item.cas.ok_or_else(|| Error::new(ErrorKind::Protocol, "the store gave no cas token"))?;
        let held = Arc::new(Held { ends, cas, value: item.value });
        self.keeper.learn(&held);
        Ok(held)
    }

    /// Reads the ends; begins them anew where they are gone, or the store went back since they were read. **Round trips: 1.**
    pub(super) async fn read_ends(&self, ctx: Ctx) -> Result<Arc<Held>> {
        let newest = self.keeper.newest();
        let now = self.look_at_ends(ctx).await?;
        self.unless_set_back(ctx, newest, now).await
    }

    /// The ends that were found; they are begun anew where they are gone, or do not [follow](follows) `before`.
    async fn unless_set_back(&self, ctx: Ctx, before: Option<Arc<Held>>, now: Option<Arc<Held>>) -> Result<Arc<Held>> {
        match now {
            Some(held) if follows(before.as_deref(), &held) => Ok(held),
            old => self.begin_anew(ctx, old, before.map_or(0, |before| before.ends.version)).await,
        }
    }

    async fn look_at_ends(&self, ctx: Ctx) -> Result<Option<Arc<Held>>> {
        let batch = Batch::from_buf([self.ends_cell()?.read_op()]);
        let mut replies = self.run(ctx, batch).await;
        self.check()?;
        self.learn_ends(replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?)
    }

    /// Reads the ends, and begins them anew where they are older than what a shard has seen of them. **Round trips: 1.**
    pub(super) async fn catch_up(&self, ctx: Ctx, seen: u64) -> Result<Arc<Held>> {
        let held = self.read_ends(ctx).await?;
        if held.ends.version >= seen { Ok(held) } else { self.begin_anew(ctx, Some(held), seen).await }
    }

    /// Puts ends of which nothing is known in the place of those that are lost, or were set back.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where the map is gone, too; [`ErrorKind::Conflict`] where others keep writing those that were set back.
    async fn begin_anew(&self, ctx: Ctx, mut old: Option<Arc<Held>>, older_than: u64) -> Result<Arc<Held>> {
        events::gap(self.subject());
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
        for _ in 0..BEGINNINGS_MAX {
            match self.begin_once(ctx, old, older_than).await? {
                Some(held) if held.ends.version > older_than => return Ok(held),
                others => old = others,
            }
            if ctx.deadline.is_some_and(|deadline| ambient::now() >= deadline) {
                break;
            }
            runtime::current("beginning the ends anew waits a moment")?;
            events::conflict(self.subject());
            tokio::time::sleep(backoff.next_pause()).await;
        }
        Err(self.beaten())
    }

    /// One try of that: what is there then.
    async fn begin_once(&self, ctx: Ctx, old: Option<Arc<Held>>, older_than: u64) -> Result<Option<Arc<Held>>> {
        // First, since a drop takes it with them.
        let plan = self.refresh(ctx).await?;
        let ends = Ends::unknown(now_us(&*self.clock).max(older_than.saturating_add(AHEAD)), plan.map.id);
        let mode = old.map_or(PutMode::Add, |held| PutMode::Cas(held.cas));
        self.keeper.forget();
        let (landed, now) = self.put_ends(ctx, mode, ends).await?;
        if landed && let Err(error) = self.refresh(ctx).await {
            if error.kind() == ErrorKind::Lost {
                // It was dropped meanwhile: nobody would find them.
                _ = self.run(ctx, Batch::from_buf([Op::delete(self.ends_cell()?.key)])).await;
            }
            return Err(error);
        }
        match now {
            Some(now) => Ok(Some(now)),
            None => self.look_at_ends(ctx).await,
        }
    }

    /// Writes the ends, and reads them again: whether that landed, and what is there. **Round trips: 1.**
    async fn put_ends(&self, ctx: Ctx, mode: PutMode, ends: Ends) -> Result<(bool, Option<Arc<Held>>)> {
        let value = ends.encode();
        let batch = self.ends_cell()?.put_ops(mode, value.clone(), Ttl::Never);
        let mut replies = self.run(ctx, batch).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let (put, get) = (next(), next());
        let wrote = Wrote::new(&value, put, get);
        let now = match wrote.now {
            Ok(Some(item)) if item.value == value => Some(self.held_of(item, Arc::new(ends))?),
            Ok(Some(item)) => Some(self.ends_of(item)?),
            _ => None,
        };
        match wrote.landed {
            Ok(landed) => Ok((landed, now)),
            // Whoever reads them finds out.
            Err(error) if error.is_unknown() => {
                events::retry(self.subject(), error.kind());
                Ok((false, None))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the next version of the ends: whether that landed, or others were first, or may have been; and what is there then. Where the store went back meanwhile that is
    /// ends that were begun anew, and know of nothing.
    pub(super) async fn replace_ends(&self, ctx: Ctx, held: &Held, ends: Ends) -> Result<(bool, Arc<Held>)> {
        let newest = self.keeper.newest();
        match self.put_ends(ctx, PutMode::Cas(held.cas), ends).await? {
            (landed, None) => Ok((landed, self.read_ends(ctx).await?)),
            (landed, Some(now)) => {
                let landed = landed && follows(newest.as_deref(), &now);
                Ok((landed, self.unless_set_back(ctx, newest, Some(now)).await?))
            }
        }
    }

    /// Makes the changes of a group to a shard of a sorted set.
    pub(super) fn ranked(
        &self,
        (map, shard): (&Map, u16),
        now: &mut Shard,
        group: &Group,
        (names, changes): (&[Bytes], &[Change]),
    ) -> Applied {
        let Some(held) = self.keeper.held().filter(|held| held.ends.version >= now.seen) else {
            return Applied::Behind(now.seen);
        };
        let ends = &held.ends;
        if ends.version > now.seen {
            self.unmark(map, shard, now, ends);
        }
        let (mut told, mut is_changed, mut is_pending) = (Vec::with_capacity(group.len()), false, false);
        for (at, stored) in group {
            let name = &names[*at];
            let old = now.elements.get(stored).and_then(|value| Record::decode(value)).unwrap_or_default();
            let score = match &changes[*at] {
                Change::Score(score) => Some(*score),
                Change::Add(by) => match Score::new(old.score.unwrap_or_default().get() + by.get()) {
                    Ok(score) => Some(score),
                    Err(_) => return Applied::Refused(self.no_sum(name, old.score, *by)),
                },
                Change::Settle => old.score,
                Change::Put(_) | Change::Remove => None,
            };
            let flag = old.score.is_some() == matches!(changes[*at], Change::Remove);
            let reached = ends.reach(name, old.score) || ends.reach(name, score);
            let new = Record { score, is_pending: old.is_pending || (reached && score != old.score) };
            is_changed |= new != old || new.is_pending;
            is_pending |= new.is_pending;
            match new.encode() {
                Some(value) => _ = now.elements.insert(stored.clone(), value),
                None => _ = now.elements.remove(stored),
            }
            let pending = new.is_pending.then_some(Pending { score, version: ends.version });
            told.push(Told { flag, score, pending });
        }
        if is_pending {
            now.seen = ends.version;
        }
        if is_changed { Applied::Changed(told) } else { Applied::Same(told) }
    }

    /// Takes the mark from pending members that these ends agree with. Their version must be greater than what the shard has seen.
    fn unmark(&self, map: &Map, shard: u16, now: &mut Shard, ends: &Ends) {
        let settled = |(stored, value): (&Bytes, &Bytes)| {
            let record = Record::decode(value).filter(|record| record.is_pending)?;
            // What has no name is no member, and stays as it is.
            let name = self.named(map, shard, stored).ok()??;
            ends.agree(&name, record.score).then(|| (stored.clone(), Record { is_pending: false, ..record }))
        };
        let settled: Vec<(Bytes, Record)> = now.elements.iter().filter_map(settled).collect();
        for (stored, record) in settled {
            match record.encode() {
                Some(value) => _ = now.elements.insert(stored, value),
                None => _ = now.elements.remove(&stored),
            }
        }
    }

    fn no_sum(&self, name: &Bytes, score: Option<Score>, by: Score) -> Error {
        let shown = larder_core::text::Shown(name);
        let score = score.unwrap_or_default().get();
        let detail = format!("{}: {score} and {} of {shown} have no sum", self.what(), by.get());
        Error::new(ErrorKind::BadInput, detail)
    }

    /// Sees to it that the ends agree with members that are pending: their scores. **Round trips: 1** where nobody else writes the ends, else 3 more a time.
    pub(super) async fn settle(&self, deadline: Instant, mut pending: Pendings) -> Result<Records> {
        let ctx = Ctx { deadline: Some(deadline) };
        let mut settled = Records::new();
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
        for _ in 0..ROUNDS_MAX {
            let held = match self.keeper.held() {
                Some(held) => held,
                None => self.read_ends(ctx).await?,
            };
            pending.retain(|member, pending| match pending {
                Some(Pending { score, version }) if held.ends.version > *version && held.ends.agree(member, *score) => {
                    settled.insert(member.clone(), *score);
                    false
                }
                _ => true,
            });
            if pending.is_empty() {
                return Ok(settled);
            }
            let is_old = |pending: &Option<Pending>| pending.is_none_or(|pending| pending.version != held.ends.version);
            let old = pending.iter().filter(|(_, pending)| is_old(pending)).map(|(member, _)| member.clone());
            let old: Vec<Bytes> = old.collect();
            if !old.is_empty() {
                let told = self.edit(deadline, &old, &vec![Change::Settle; old.len()], false).await?;
                for (member, told) in old.into_iter().zip(told) {
                    match told.pending {
                        None => {
                            pending.remove(&member);
                            settled.insert(member, told.score);
                        }
                        some => _ = pending.insert(member, some),
                    }
                }
                continue;
            }
            let records: Records =
                pending.iter().filter_map(|(member, pending)| Some((member.clone(), (*pending)?.score))).collect();
            let next = held.ends.with(&records, self.limits().capacity());
            if self.replace_ends(ctx, &held, next).await?.0 {
                settled.extend(records);
                return Ok(settled);
            }
            if ambient::now() >= deadline {
                break;
            }
            runtime::current("writing again waits a moment")?;
            events::conflict(self.subject());
            tokio::time::sleep(backoff.next_pause()).await;
        }
        Err(self.beaten())
    }

    /// Makes changes to members, and brings them to the ends. **Round trips: 2**, 3 where the ends are changed.
    pub(super) async fn rank(&self, names: &[Bytes], changes: &[Change]) -> Result<Vec<Told>> {
        let (deadline, first) = (self.deadline(), self.plan());
        let looks = self.is_near(names, changes);
        let mut alone = match looks {
            true => Some(self.keeper.gate.lock().await),
            false => None,
        };
        let told = self.edit(deadline, names, changes, looks).await?;
        let pending = names.iter().zip(&told).filter_map(|(name, told)| Some((name.clone(), Some(told.pending?))));
        let pending: Pendings = pending.collect();
        if pending.is_empty() {
            return Ok(told);
        }
        if alone.is_none() {
            alone = Some(self.keeper.gate.lock().await);
        }
        self.settle(deadline, pending).await.map_err(|error| error.effect(Effect::Unknown))?;
        // A batch of these may have seen it, too.
        self.tell_setback_since(&first).map_err(|error| error.effect(Effect::Unknown))?;
        drop(alone);
        let is_short = |held: Arc<Held>| held.ends.filling.is_none() && held.ends.are_short(self.kept());
        if self.keeper.held().is_some_and(is_short) {
            // The change is made, whatever comes of this: who reads them fills them otherwise. But that the store went back is told once.
            match self.fill_ends().await {
                Err(error) if error.kind() == ErrorKind::RolledBack => return Err(error.effect(Effect::Unknown)),
                _ => {}
            }
        }
        Ok(told)
    }

    /// How many members are read at an end, at the most.
    pub(super) fn kept(&self) -> usize {
        usize::from(self.limits().kept)
    }

    /// True if the changes may touch the ends, as far as this handle knows; then it looks at them.
    fn is_near(&self, names: &[Bytes], changes: &[Change]) -> bool {
        let Some(held) = self.keeper.held() else { return true };
        let is_near = |(name, change): (&Bytes, &Change)| match change {
            Change::Score(score) if held.ends.reach(name, Some(*score)) => true,
            _ => held.ends.name(name),
        };
        names.iter().zip(changes).any(is_near)
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
