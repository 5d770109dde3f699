//! What all handles of a sharded collection share: where elements stand, and one batch of looks at shards.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::{Collection, Native, NativeReply, Ranks};
use larder_core::observe::Subject;
use larder_core::{
    Batch, ClockRef, Ctx, Effect, Error, ErrorKind, Key, Op, Replies, Reply, Result, StoreRef, Want, ambient,
};

use super::keeper::Keeper;
use super::layout::{self, Kept, LIVE, Map, Mark, Params, Phase, Plan, SEALED, Shard, UNFILLED};
use crate::events;
use crate::manifest::{Kind, Manifest, unexpected};
use crate::name::Name;
use crate::owned::GONE;
use crate::vigil::Vigil;

/// Ops of one batch.
pub(super) const OPS_A_BATCH: usize = 1_024;
/// Whole shards of one batch.
pub(super) const WHOLE_A_BATCH: usize = 128;
/// The longest name of an element.
pub const NAME_BYTES_MAX: usize = 65_535;
/// How many writers of one handle can be at different shards at once, where shards are items.
const GATES: usize = 64;
/// How long a handle that is used goes without a look at the map.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How often the same is found in vain before it is given up.
pub(super) const STRIKES_MAX: u32 = 4;

pub struct Core {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) params: Params,
    /// What a shard is natively.
    pub(super) of: Collection,
    pub(super) timeout: Duration,
    pub(super) vigil: Arc<Vigil>,
    pub(super) clock: ClockRef,
    map_key: Key,
    /// The newest map that was seen; never held across an await.
    plan: Mutex<Plan>,
    /// A look beside other ops found that the store went back; the next call that is asked, or ends, tells it.
    setback: Mutex<Option<Error>>,
    /// When the map is looked at next, by the clock's monotonic time.
    next_look_ms: AtomicU64,
    /// The last look found no map, or none that this release knows.
    is_map_amiss: AtomicBool,
    /// Writers of one handle to one shard go one after the other: they would only beat each other.
    pub(super) gates: Vec<tokio::sync::Mutex<()>>,
    /// Of a sorted set: what is known of its ends.
    pub(super) keeper: Keeper,
}

/// What is asked of a shard.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// The values of these elements, as they are named there.
    Names(Vec<Bytes>),
    All,
    Count,
}

/// What a shard answered.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) mark: Mark,
    /// Of a sorted set's shard that was read: the version of the ends that stands in it.
    pub(super) seen: u64,
    pub(super) found: Found,
}

#[derive(Clone, Debug)]
pub(super) enum Found {
    Values(Vec<Option<Bytes>>),
    /// Elements as they are named there, marks left out.
    All(Vec<(Bytes, Bytes)>),
    Count(u64),
}

/// A native shard's mark, and its elements as they are named there.
pub(super) type Whole = (Mark, Vec<(Bytes, Bytes)>);

/// An element's shard, and what it is called there.
pub(super) type Place = (u16, Bytes);

/// That the store went back.
struct Setback {
    error: Error,
    /// True unless another task of this handle found it already, which tells it.
    is_first: bool,
}

impl Core {
    pub(super) fn new(
        store: &StoreRef,
        name: &Name,
        manifest: Manifest,
        params: Params,
        plan: Plan,
        timeout: Duration,
    ) -> Result<Core> {
        let clock = larder_core::SystemClock::shared();
        Ok(Core {
            store: store.clone(),
            name: name.clone(),
            of: collection(manifest.kind),
            map_key: manifest.data_key(name, 0)?,
            vigil: Vigil::new(store, clock.clone(), name, &manifest)?,
            next_look_ms: AtomicU64::new(as_ms(clock.monotonic().saturating_add(LOOK_EVERY))),
            is_map_amiss: AtomicBool::new(false),
            clock,
            manifest,
            params,
            timeout,
            plan: Mutex::new(plan),
            setback: Mutex::default(),
            gates: (0..GATES).map(|_| tokio::sync::Mutex::new(())).collect(),
            keeper: Keeper::default(),
        })
    }

    pub(super) fn deadline(&self) -> Instant {
        let now = ambient::now();
        now.checked_add(self.timeout).unwrap_or(now)
    }

    pub(super) fn is_native(&self) -> bool {
        self.params.kept == Kept::Native
    }

    /// The newest map that this handle has seen.
    pub(super) fn plan(&self) -> Plan {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What stands in the way of a call as it begins, and as it ends.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where others made the name anew, each time; [`ErrorKind::RolledBack`] where a look beside other ops found that the store went back, once.
    pub(super) fn check(&self) -> Result<()> {
        self.vigil.check()?;
        self.tell_setback()
    }

    /// The second of these.
    pub(super) fn tell_setback(&self) -> Result<()> {
        self.setback.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// What stands in the way of a call that went by this map: the store went back since, whether a batch of it found that or another call's.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`], of each call that this befalls.
    pub(super) fn tell_setback_since(&self, first: &Plan) -> Result<()> {
        self.tell_setback()?;
        let now = self.plan();
        if first.leads_to(&now) { Ok(()) } else { Err(self.set_back(first, &now)) }
    }

    /// The key of the map.
    pub(super) fn map_key(&self) -> &Key {
        &self.map_key
    }

    pub(super) fn key(&self, map: &Map, shard: u16) -> Result<Key> {
        shard_key(&self.name, &self.manifest, map, shard)
    }

    /// How many ops go into one batch, if each element of it takes `each`.
    pub(super) fn a_batch(&self, each: usize, most: usize) -> usize {
        (self.store.profile().batch_ops_max.saturating_sub(4) / each).min(most).max(1)
    }

    pub(super) fn ops_a_batch(&self) -> usize {
        self.a_batch(2, OPS_A_BATCH)
    }

    /// Runs a batch, with a look at the manifest and at the map in it if one is due; where the map is gone, or none that this release knows, all ops say so. Where the store
    /// went back [`check`](Core::check) says so.
    /// **Round trips: 1.**
    pub(super) async fn run(&self, ctx: Ctx, mut batch: Batch) -> Replies {
        if batch.len() >= self.store.profile().batch_ops_max || !self.is_look_due() {
            return self.vigil.run(ctx, batch).await;
        }
        let are_reads: Vec<bool> = batch.iter().map(Op::is_read).collect();
        batch.push(Op::get(self.map_key.clone(), Want::VALUE));
        let before = self.plan();
        let mut replies = self.vigil.run(ctx, batch).await;
        let Some(Ok(reply)) = replies.pop() else { return replies };
        let map = self.map_of(reply);
        self.is_map_amiss.store(map.is_err(), Ordering::Release);
        match map {
            // What was in the batch has happened, and is answered; the call tells it all the same.
            Ok(plan) => {
                if let Err(Setback { error, is_first: true }) = self.weigh(&before, plan) {
                    *self.setback.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            }
            // It was dropped, say: what was written went to shards that nobody finds any more.
            Err(error) => {
                for (reply, is_read) in replies.iter_mut().zip(are_reads).filter(|(reply, _)| reply.is_ok()) {
                    let effect = if is_read { Effect::NotApplied } else { Effect::Unknown };
                    *reply = Err(error.clone().effect(effect));
                }
            }
        }
        replies
    }

    /// True for one caller a [`LOOK_EVERY`], and for all while the map is amiss.
    fn is_look_due(&self) -> bool {
        let now = as_ms(self.clock.monotonic());
        let due = self.next_look_ms.load(Ordering::Relaxed);
        let next = now.saturating_add(as_ms(LOOK_EVERY));
        // The look also keeps the map among what was used lately, where a store evicts what was not.
        let is_ours =
            now >= due && self.next_look_ms.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_ours || self.is_map_amiss.load(Ordering::Acquire)
    }

    /// Reads the map; answers the newest that is known then. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where it is gone, [`ErrorKind::RolledBack`], once, where the store went back since one that was known before it was read;
    /// [`ErrorKind::LayoutMismatch`] for one that this release does not know, or that does not agree with the manifest.
    pub(super) async fn refresh(&self, ctx: Ctx) -> Result<Plan> {
        let known = self.plan();
        let batch = Batch::from_buf([Op::get(self.map_key.clone(), Want::VALUE)]);
        let mut replies = self.vigil.run(ctx, batch).await;
        self.vigil.check()?;
        let reply = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?;
        self.heed(&known, self.map_of(reply)?)
    }

    /// Learns a map that was asked for when `before` was known: the newest that is known then.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] where the store went back since. It is gone on from what was read, so it is told once.
    pub(super) fn heed(&self, before: &Plan, read: Plan) -> Result<Plan> {
        self.weigh(before, read).map_err(
            |Setback { error, is_first }| {
                if is_first { error } else { self.tell_setback().err().unwrap_or(error) }
            },
        )
    }

    fn weigh(&self, before: &Plan, read: Plan) -> Result<Plan, Setback> {
        if before.leads_to(&read) {
            return Ok(self.learn(read));
        }
        let mut known = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = before.leads_to(&known);
        if *known == *before {
            *known = read;
        }
        drop(known);
        Err(Setback { error: self.set_back(before, &read), is_first })
    }

    /// The error for a map that another one has taken the place of which was not written behind it.
    fn set_back(&self, before: &Plan, now: &Plan) -> Error {
        let shown = match (before.version, now.version) {
            (then, now) if then == now => format!("was at version {then}, and another has that version now"),
            (then, now) => format!("was at version {then} and is at {now}"),
        };
        self.loss(Error::new(ErrorKind::RolledBack, format!("the map of {} {shown}", self.what())))
    }

    /// The map that was read.
    fn map_of(&self, reply: Reply) -> Result<Plan> {
        let Some(item) = reply.into_item() else {
            return Err(self.loss(Error::new(ErrorKind::Lost, format!("{} has lost its map", self.what()))));
        };
        self.decoded(&item.value).ok_or_else(|| unknown_map(&self.what(), &self.map_key))
    }

    /// The map of these bytes; `None` for one of another release, and for one that spreads elements in another way than the manifest says.
    pub(super) fn decoded(&self, value: &[u8]) -> Option<Plan> {
        let is_ours = |map: &Map| (map.per_shard > 0) == self.params.is_dense;
        Plan::decode(value).filter(|plan| is_ours(&plan.map) && plan.other().is_none_or(|other| is_ours(&other)))
    }

    /// What is written behind a plan.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] behind the last version that there can be: it comes from bytes that nobody wrote here.
    pub(super) fn next_plan(&self, before: &Plan, map: Map, phase: Phase) -> Result<Plan> {
        let Some(version) = before.version.checked_add(1) else {
            let detail = format!("the map of {} says that it was written as often as none can be", self.what());
            return Err(Error::new(ErrorKind::LayoutMismatch, detail).key(&self.map_key));
        };
        Ok(Plan { version, map, phase })
    }

    /// The newer one of this and the one that is known: another task's read may have overtaken. Of two of one version the one that is known: by which to go [`heed`](Core::heed) says.
    pub(super) fn learn(&self, plan: Plan) -> Plan {
        let mut known = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        if plan.version > known.version {
            *known = plan;
        }
        *known
    }

    /// Where an element stands.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a name that is too long, or is no id of the range where ids are dense.
    pub(super) fn place(&self, map: &Map, name: &Bytes) -> Result<Place> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if !self.params.is_dense {
            if name.len() > NAME_BYTES_MAX {
                return bad(format!("an element has {} bytes; the limit is {NAME_BYTES_MAX}", name.len()));
            }
            let stored = if self.is_native() { layout::escaped(name) } else { name.clone() };
            return Ok((map.shard_of_hash(layout::hash(name)), stored));
        }
        let Some(id) = dense_id(name) else {
            let shown = larder_core::text::Shown(name);
            return bad(format!(
                "{} takes whole numbers from 0, written without zeros before, not {shown}",
                self.what()
            ));
        };
        let per_shard = u64::from(map.per_shard.max(1));
        match u16::try_from(id / per_shard).ok().filter(|shard| *shard < map.shards) {
            Some(shard) => Ok((shard, Bytes::from((id % per_shard).to_string()))),
            None => bad(format!(
                "id {id} is over the range of {}: 0 to {}; resharding to more shards makes it larger",
                self.what(),
                map.capacity().saturating_sub(1)
            )),
        }
    }

    /// # Errors
    /// As [`place`](Core::place).
    pub(super) fn takes(&self, name: &[u8]) -> Result<()> {
        self.expect_length(name)?;
        self.place(&self.plan().map, &Bytes::copy_from_slice(name)).map(|_| ())
    }

    /// # Errors
    /// [`ErrorKind::BadInput`] for a member that is too long for the ends of a sorted set.
    pub(super) fn expect_length(&self, member: &[u8]) -> Result<()> {
        match self.params.limits.map(|limits| usize::from(limits.member_bytes_max)) {
            Some(max) if member.len() > max => {
                let detail = format!("a member has {} bytes; the limit of {} is {max}", member.len(), self.what());
                Err(Error::new(ErrorKind::BadInput, detail))
            }
            _ => Ok(()),
        }
    }

    /// What the map in force says of dense numbers, in words; `None` where elements are spread by hash.
    pub(super) fn range(&self) -> Option<[(&'static str, String); 2]> {
        let map = self.plan().map;
        let told = || {
            let range = ("dense numbers", format!("0 to {}", map.capacity().saturating_sub(1)));
            [range, ("dense numbers a shard", map.per_shard.to_string())]
        };
        self.params.is_dense.then(told)
    }

    /// The name of what is called `stored` in a shard; `None` for a mark.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for what is no number of the shard where ids are dense: it has no name, and nobody wrote it here.
    pub(super) fn named(&self, map: &Map, shard: u16, stored: &Bytes) -> Result<Option<Bytes>> {
        if self.params.is_dense {
            let Some(offset) = dense_id(stored).filter(|offset| *offset < u64::from(map.per_shard)) else {
                return Err(self.strange(&larder_core::text::Shown(stored).to_string()));
            };
            return Ok(Some(Bytes::from((u64::from(shard) * u64::from(map.per_shard) + offset).to_string())));
        }
        Ok(if self.is_native() { layout::unescaped(stored) } else { Some(stored.clone()) })
    }

    /// Asks shards. **Round trips: 1** for every 1,024 of them, 256 where shards are read whole.
    pub(super) async fn look(&self, ctx: Ctx, map: &Map, asks: &[(u16, Ask)]) -> Result<Vec<Sight>> {
        let is_whole = |ask: &Ask| match ask {
            Ask::All => true,
            Ask::Names(_) => !self.is_native(),
            Ask::Count => false,
        };
        let most = if asks.iter().any(|(_, ask)| is_whole(ask)) { WHOLE_A_BATCH * 2 } else { OPS_A_BATCH };
        let mut sights = Vec::with_capacity(asks.len());
        for part in asks.chunks(self.a_batch(3, most)) {
            let mut batch = Batch::new();
            for (shard, ask) in part {
                self.ask_ops(self.key(map, *shard)?, ask, &mut batch);
            }
            let mut replies = self.run(ctx, batch).await.into_iter();
            for (_, ask) in part {
                sights.push(self.sight(ask, &mut replies)?);
            }
        }
        Ok(sights)
    }

    fn ask_ops(&self, key: Key, ask: &Ask, batch: &mut Batch) {
        if !self.is_native() {
            let want = if matches!(ask, Ask::Count) { Want::FLAGS } else { Want::VALUE };
            return batch.push(Op::get(key, want));
        }
        match ask {
            Ask::Names(names) => batch.push(self.names_op(key, names)),
            Ask::All => batch.push(self.all_op(key)),
            Ask::Count => {
                let len = match self.of {
                    Collection::Hash => Native::HashLen,
                    Collection::Set => Native::SetLen,
                    Collection::Sorted => Native::SortedLen,
                };
                // Between two looks at the mark: what was so before and after it was so meanwhile, since marks only go forward.
                batch.push(self.names_op(key.clone(), &[]));
                batch.push(Op::native(key.clone(), len));
                batch.push(self.names_op(key, &[]));
            }
        }
    }

    /// Reads all of a native shard, with its mark.
    pub(super) fn all_op(&self, key: Key) -> Op {
        all_op(self.of, key)
    }

    /// Reads marks, and elements, of a native shard.
    fn names_op(&self, key: Key, names: &[Bytes]) -> Op {
        let marks = [LIVE, SEALED, UNFILLED].map(Bytes::from_static);
        let fields: Vec<Bytes> = marks.into_iter().chain(names.iter().cloned()).collect();
        Op::native(
            key,
            match self.of {
                Collection::Hash => Native::HashGet { fields },
                Collection::Set => Native::SetHas { members: fields },
                Collection::Sorted => Native::SortedScores { members: fields },
            },
        )
    }

    fn sight(&self, ask: &Ask, replies: &mut impl Iterator<Item = Result<Reply>>) -> Result<Sight> {
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        if !self.is_native() {
            return self.portable_sight(ask, next()?);
        }
        match ask {
            Ask::Names(_) => {
                let (mark, values) = self.values(next()?)?;
                Ok(Sight { mark, seen: 0, found: Found::Values(values) })
            }
            Ask::All => {
                let (mark, all) = self.all(next()?)?;
                Ok(Sight { mark, seen: 0, found: Found::All(all) })
            }
            Ask::Count => {
                let (before, count, after) = (next(), next(), next());
                let ((before, _), (mut mark, _)) = (self.values(before?)?, self.values(after?)?);
                let count = match count?.into_native() {
                    Some(NativeReply::Count(count)) => count,
                    other => return Err(self.strange(&other)),
                };
                if before != mark && mark == Mark::Live {
                    mark = Mark::Turned;
                }
                Ok(Sight { mark, seen: 0, found: Found::Count(count.saturating_sub(1)) })
            }
        }
    }

    fn portable_sight(&self, ask: &Ask, reply: Reply) -> Result<Sight> {
        let item = match reply {
            Reply::Item(item) => Some(item),
            Reply::Miss => None,
            other => return Err(unexpected(&Op::get(self.map_key.clone(), Want::VALUE), &other)),
        };
        if let Ask::Count = ask {
            let told = match item {
                Some(item) => Mark::of_flags(item.flags).ok_or_else(|| self.strange(&item.flags))?,
                None => (Mark::Missing, 0),
            };
            return Ok(Sight { mark: told.0, seen: 0, found: Found::Count(told.1) });
        }
        let shard = match item {
            Some(item) => self.shard(&item.value)?,
            None => Shard::empty(Mark::Missing),
        };
        let found = match ask {
            Ask::Names(names) => Found::Values(names.iter().map(|name| shard.elements.get(name).cloned()).collect()),
            _ => Found::All(shard.elements.into_iter().collect()),
        };
        Ok(Sight { mark: shard.mark, seen: shard.seen, found })
    }

    /// A shard that is an item.
    pub(super) fn shard(&self, value: &Bytes) -> Result<Shard> {
        Shard::decode(value, self.of).ok_or_else(|| self.strange(&"an item"))
    }

    /// The mark, and the values asked for, of a native shard.
    fn values(&self, reply: Reply) -> Result<(Mark, Vec<Option<Bytes>>)> {
        let mut values = match reply.into_native() {
            Some(NativeReply::Values(values)) => values,
            Some(NativeReply::Flags(flags)) => flags.into_iter().map(|has| has.then(Bytes::new)).collect(),
            other => return Err(self.strange(&other)),
        };
        if values.len() < 3 {
            return Err(self.strange(&values));
        }
        let rest = values.split_off(3);
        let mark = match [values[0].is_some(), values[1].is_some(), values[2].is_some()] {
            [true, ..] => Mark::Live,
            [_, true, _] => Mark::Sealed,
            [.., true] => Mark::Unfilled,
            _ => Mark::Missing,
        };
        Ok((mark, rest))
    }

    /// The mark, and all elements, of a native shard.
    pub(super) fn all(&self, reply: Reply) -> Result<Whole> {
        all(reply.into_native()).map_err(|other| self.strange(&other))
    }

    /// The longest value that fits into a shard, with nothing else in it.
    pub(super) fn value_bytes_max(&self) -> Result<usize> {
        let key = self.key(&self.plan().map, u16::MAX)?;
        Ok(self.store.profile().value_bytes_max(key.as_bytes().len()).saturating_sub(layout::HEADER_BYTES + 16))
    }

    /// What it is, for errors: `sharded hash "users"`.
    pub(super) fn what(&self) -> String {
        format!("{} {}", self.manifest.kind.as_str(), self.name)
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        events::subject(self.manifest.kind, &self.name)
    }

    pub(super) fn loss(&self, error: Error) -> Error {
        events::loss(self.subject(), error.store(self.store.profile().store.clone()))
    }

    /// The error for a shard that is gone.
    pub(super) fn lost(&self, map: &Map, shard: u16) -> Error {
        let detail = format!("{}: shard {shard} of {} is gone: {GONE}", self.what(), map.shards);
        let error = Error::new(ErrorKind::Lost, detail);
        self.loss(match self.key(map, shard) {
            Ok(key) => error.key(&key),
            Err(_) => error,
        })
    }

    /// The error for a key that holds something else.
    pub(super) fn strange(&self, what: &dyn fmt::Debug) -> Error {
        let detail = format!("a shard of {} holds something else: {what:?}", self.what());
        Error::new(ErrorKind::LayoutMismatch, detail)
    }

    /// The error where others got in between too often.
    pub(super) fn beaten(&self) -> Error {
        Error::new(ErrorKind::Conflict, format!("others kept changing {}", self.what()))
    }

    /// Sources of shards of the map in force, by the shard, and what they say: for those that nothing came to yet.
    pub(super) async fn sources(&self, ctx: Ctx, to: &Map, from: &Map, shards: &[u16]) -> Result<BTreeMap<u16, Sight>> {
        let mut wanted: Vec<u16> = shards.iter().flat_map(|&shard| to.overlap(shard, from)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let asks: Vec<(u16, Ask)> = wanted.iter().map(|&source| (source, Ask::All)).collect();
        Ok(wanted.into_iter().zip(self.look(ctx, from, &asks).await?).collect())
    }

    /// What of these sources belongs to a shard, by the names it has there; or the first of them that is not there any more.
    pub(super) fn gathered(
        &self,
        to: &Map,
        from: &Map,
        shard: u16,
        sources: &BTreeMap<u16, Sight>,
    ) -> Result<std::result::Result<Vec<(Bytes, Bytes)>, u16>> {
        let mut elements = Vec::new();
        for source in to.overlap(shard, from) {
            let Some(Sight { mark: Mark::Live | Mark::Sealed, found: Found::All(all), .. }) = sources.get(&source)
            else {
                return Ok(Err(source));
            };
            for (stored, value) in all {
                let Some(name) = self.named(from, source, stored)? else { continue };
                let (place, stored) = self.place(to, &name)?;
                if place == shard {
                    elements.push((stored, value.clone()));
                }
            }
        }
        Ok(Ok(elements))
    }

    /// What is to be done about shards that cannot be used as they are: the map is read again. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for one that is missing though the map is the same, [`ErrorKind::RolledBack`] for one that is sealed then, and where the store went back since `before`.
    pub(super) async fn look_again(&self, ctx: Ctx, before: &Plan, found: &Unusable, strikes: &mut u32) -> Result<()> {
        let now = self.refresh(ctx).await?;
        if !before.leads_to(&now) {
            // A look of this call found it, and nobody is to be told once more, or another task of this handle was told.
            self.tell_setback()?;
            return Err(self.set_back(before, &now));
        }
        if now != *before {
            *strikes = 0;
            return Ok(());
        }
        if let Some(&shard) = found.missing.first() {
            return Err(self.lost(&before.map, shard));
        }
        *strikes += 1;
        match (*strikes < STRIKES_MAX, found.stuck, coming_from(before)) {
            (true, ..) => Ok(()),
            (false, Some(source), Some(from)) => Err(self.lost(&from, source)),
            (false, ..) => Err(match (found.sealed, found.unfilled) {
                (Some(shard), _) => self.went_back(before, shard).await?,
                // The shard itself went back, to before it was filled; what it came from was removed since.
                (None, Some(shard)) => self.lost(&before.map, shard),
                (None, None) => self.beaten(),
            }),
        }
    }
}

/// Why shards cannot be used as they are.
#[derive(Debug, Default)]
pub(super) struct Unusable {
    /// Shards of the map in force that are not there.
    pub(super) missing: Vec<u16>,
    /// One that is sealed.
    pub(super) sealed: Option<u16>,
    /// One that is unfilled, though nothing comes to it any more.
    pub(super) unfilled: Option<u16>,
    /// A shard of the map that elements come from which is not there, though something still comes from it.
    pub(super) stuck: Option<u16>,
}

impl Unusable {
    /// Adds a shard of the map in force that is not live.
    pub(super) fn add(&mut self, shard: u16, mark: Mark) {
        match mark {
            Mark::Missing => self.missing.push(shard),
            Mark::Sealed => self.sealed = Some(shard),
            Mark::Unfilled => self.unfilled = Some(shard),
            Mark::Live | Mark::Turned => {}
        }
    }
}

/// An error of a call some of whose changes may have been made.
pub(super) fn midway(error: Error, is_begun: bool) -> Error {
    if is_begun { error.effect(Effect::Unknown) } else { error }
}

/// The error for a map item of another release.
pub(super) fn unknown_map(what: &str, key: &Key) -> Error {
    Error::new(ErrorKind::LayoutMismatch, format!("the map of {what} is none that this release knows")).key(key)
}

/// The map that elements come from, while some do.
pub(super) fn coming_from(plan: &Plan) -> Option<Map> {
    match plan.phase {
        Phase::Moving(from) => Some(from),
        _ => None,
    }
}

pub(super) fn shard_key(name: &Name, manifest: &Manifest, map: &Map, shard: u16) -> Result<Key> {
    manifest.data_key(name, format_args!("{:08x}-{shard}", map.id))
}

/// Reads all of a native shard, with its mark.
pub(super) fn all_op(of: Collection, key: Key) -> Op {
    let all = match of {
        Collection::Hash => Native::HashAll,
        Collection::Set => Native::SetAll,
        Collection::Sorted => Native::SortedRange(Ranks { first: 0, last: -1, from_top: false }),
    };
    Op::native(key, all)
}

/// The mark, and all elements, of a native shard; what was answered where that is something else.
pub(super) fn all(reply: Option<NativeReply>) -> std::result::Result<Whole, Option<NativeReply>> {
    let pairs: Vec<(Bytes, Bytes)> = match reply {
        Some(NativeReply::Pairs(pairs)) => pairs,
        Some(NativeReply::Members(members)) => members.into_iter().map(|member| (member, Bytes::new())).collect(),
        other => return Err(other),
    };
    let mut mark = Mark::Missing;
    let all = pairs.into_iter().filter(|(name, _)| match &name[..] {
        LIVE => {
            mark = Mark::Live;
            false
        }
        SEALED => {
            mark = Mark::Sealed;
            false
        }
        UNFILLED => {
            mark = Mark::Unfilled;
            false
        }
        _ => true,
    });
    let all = all.collect();
    Ok((mark, all))
}

/// What the shards of a kind are natively.
pub(super) fn collection(kind: Kind) -> Collection {
    match kind {
        Kind::ShardedHash => Collection::Hash,
        Kind::ShardedSortedSet => Collection::Sorted,
        _ => Collection::Set,
    }
}

/// A whole number as it is written in one way only.
fn dense_id(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?;
    let id: u64 = text.parse().ok()?;
    (text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'))).then_some(id)
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("kind", &self.manifest.kind).field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
