//! Reading and compacting the shards of a structure.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Phase;
use larder_core::{
    Batch, ClockRef, Ctx, Effect, Error, ErrorKind, Item, Op, PutMode, Reply, Result, StoreRef, Ttl, Want, ambient,
};

use super::layout::{self, Elements, Fold, Folded, Place, RESERVED_BYTES, Value};
use super::past::Seen;
use crate::behind::Behind;
use crate::cell::Cell;
use crate::events;
use crate::ids::random_id;
use crate::manifest::{Manifest, unexpected};
use crate::name::Name;
use crate::retry::Backoff;
use crate::vigil::Vigil;

/// How often an explicit compaction is tried while others keep writing.
const COMPACT_TRIES_MAX: usize = 16;
/// How long a compaction beside the reader may take.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How often it is tried.
const BEHIND_TRIES_MAX: usize = 3;
/// How long a compaction that has met with a write may keep the handle's own writes waiting.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// The smallest value limit that a shard can live under: what it must reserve, and as much for elements.
pub(crate) const VALUE_BYTES_MIN: usize = 2 * RESERVED_BYTES;
/// Between two looks at a shard's dirt a handle appends this many times the bytes of dirt that are let be.
pub(crate) const LOOK_EVERY_DIRTY_BYTES: usize = 16;

/// How a handle treats its values.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) clock: ClockRef,
    /// Fewer stale bytes than this are let be.
    pub(crate) dirty_bytes: usize,
}

/// The shards of an opened structure.
pub(crate) struct Shards<E: Elements> {
    store: StoreRef,
    pub(crate) vigil: Arc<Vigil>,
    /// What it is, for errors: `set "tags"`.
    what: String,
    cells: Vec<Cell>,
    generation: u64,
    /// This handle, among all that write.
    pub(crate) writer: u64,
    value_bytes_max: usize,
    tuning: Tuning,
    /// Bytes that the handle appends to a shard between two looks at its dirt.
    look_bytes: AtomicUsize,
    /// Protects what was seen of each shard; held for a few loads and stores, never across an await.
    seen: Mutex<Vec<Seen>>,
    /// Held by a write of this handle while it is under way, and by a compaction that has met with one: else a handle that
    /// writes without a pause would never be compacted.
    quiet: tokio::sync::Mutex<()>,
    /// True while a compaction runs beside the callers; there is one at a time.
    compacting: Behind,
    /// What makes the states, where a value alone does not tell what it holds.
    elements: Option<Arc<E>>,
}

/// A shard as it was read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) shard: u16,
    item: Item,
    /// What was seen before the read was sent: a read that was overtaken by another is no rollback.
    before: Seen,
}

impl Reading {
    /// The value alone.
    pub(crate) fn into_value(self) -> Bytes {
        self.item.value
    }
}

/// Figures of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardStat {
    pub(crate) elements: usize,
    pub(crate) bytes: usize,
    pub(crate) live_bytes: usize,
    pub(crate) removals: u64,
}

impl ShardStat {
    pub(crate) fn stale_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.live_bytes)
    }
}

/// What a compaction of one reading would write.
struct Plan {
    value: Bytes,
    now: ShardStat,
    after: ShardStat,
    /// As [`layout::Snapshot::unsettled`].
    unsettled: u64,
    /// As [`layout::Snapshot::is_whole`].
    is_whole: bool,
}

/// What a write does that finds no room.
pub(crate) enum Room {
    /// Writes this value in place of the one that was read.
    Rewrite(Bytes),
    /// Has [`Elements::settle`] decide first.
    Settle(u64),
    /// Looks by [`Shards::read_whole`] whether the value only was read at another time than what is known elsewhere.
    Look,
}

impl<E: Elements> Shards<E> {
    /// The shards that a manifest names. No round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store's items or batches are too small.
    pub(crate) fn new(store: &StoreRef, name: &Name, manifest: &Manifest, tuning: Tuning) -> Result<Shards<E>> {
        let what = format!("{} {name}", manifest.kind.as_str());
        let profile = store.profile();
        let mut cells = Vec::with_capacity(usize::from(manifest.shards));
        for index in 0..manifest.shards {
            cells.push(Cell::new(manifest.data_key(name, index)?));
        }
        let key_bytes = cells.iter().map(|cell| cell.key.as_bytes().len()).max().unwrap_or(0);
        // The layout counts a snapshot's bytes in 32 bits.
        let value_bytes_max = profile.value_bytes_max(key_bytes).min(u32::MAX as usize);
        let refuse = |detail: String| Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        if value_bytes_max < VALUE_BYTES_MIN {
            return refuse(format!("{what} needs items of {VALUE_BYTES_MIN} bytes; here one takes {value_bytes_max}"));
        }
        if cells.len() > profile.batch_ops_max {
            let max = profile.batch_ops_max;
            return refuse(format!("{what} has {} shards; a batch of this store takes {max} ops", cells.len()));
        }
        Ok(Shards {
            store: store.clone(),
            vigil: Vigil::new(store, tuning.clock.clone(), name, manifest)?,
            what,
            seen: Mutex::new(vec![Seen::default(); cells.len()]),
            cells,
            generation: manifest.generation,
            // Keys of the operating system's randomness: no two handles anywhere draw the same.
            writer: random_id(),
            value_bytes_max,
            look_bytes: AtomicUsize::new(tuning.dirty_bytes.saturating_mul(LOOK_EVERY_DIRTY_BYTES)),
            tuning,
            quiet: tokio::sync::Mutex::new(()),
            compacting: Behind::default(),
            elements: None,
        })
    }

    /// The same, with states that `elements` makes.
    pub(crate) fn with_elements(self, elements: Arc<E>) -> Shards<E> {
        Shards { elements: Some(elements), ..self }
    }

    fn new_state<'v>(&self) -> E::State<'v> {
        self.elements.as_ref().map_or_else(E::State::default, |elements| elements.state())
    }

    /// Has the structure find out, or decide, what became of changes that its states do not know.
    pub(crate) async fn settle(&self, ctx: Ctx, upto: u64) -> Result<()> {
        match &self.elements {
            Some(elements) => elements.settle(ctx, upto).await,
            None => Ok(()),
        }
    }

    /// The ops that create the empty shards of a new manifest.
    pub(crate) fn create_ops(name: &Name, manifest: &Manifest) -> Result<Batch> {
        let add = |shard| {
            let value = layout::empty(Place { generation: manifest.generation, shard });
            Ok(Op::put(manifest.data_key(name, shard)?, PutMode::Add, value, Ttl::Never))
        };
        (0..manifest.shards).map(add).collect()
    }

    /// What it is, for errors.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// How many shards there are.
    pub(crate) fn count(&self) -> u16 {
        // The count came from a manifest's u16.
        u16::try_from(self.cells.len()).unwrap_or(u16::MAX)
    }

    pub(crate) fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// The most that the elements of one write may take in one shard, with the length before each.
    pub(crate) fn elements_bytes_max(&self) -> usize {
        self.value_bytes_max - RESERVED_BYTES
    }

    pub(crate) fn look_bytes(&self) -> usize {
        self.look_bytes.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn place(&self, shard: u16) -> Place {
        Place { generation: self.generation, shard }
    }

    pub(crate) fn op(&self, shard: u16, op: impl FnOnce(larder_core::Key) -> Op) -> Op {
        let cell = &self.cells[usize::from(shard)];
        op(cell.key.clone()).routed(cell.route.clone())
    }

    pub(crate) fn read_op(&self, shard: u16) -> Op {
        self.op(shard, |key| Op::get(key, Want::VALUE | Want::CAS))
    }

    /// Coarse wall-clock seconds, for the list of recent writers.
    pub(crate) fn now_s(&self) -> u32 {
        u32::try_from(self.tuning.clock.wall().as_secs()).unwrap_or(u32::MAX)
    }

    /// Reads shards, all at once. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] naming the shards that are gone.
    pub(crate) async fn read(&self, ctx: Ctx, shards: impl IntoIterator<Item = u16>) -> Result<Vec<Reading>> {
        Ok(self.read_with(ctx, shards, None).await?.0)
    }

    /// Reads shards, and runs another op with them. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`read`](Shards::read); what became of the other op is told apart.
    pub(crate) async fn read_with(
        &self,
        ctx: Ctx,
        shards: impl IntoIterator<Item = u16>,
        other: Option<Op>,
    ) -> Result<(Vec<Reading>, Option<Result<Reply>>)> {
        let mut readings: Vec<Reading> = {
            let seen = self.lock_seen();
            let reading = |shard| Reading { shard, item: Item::default(), before: seen[usize::from(shard)].clone() };
            shards.into_iter().map(reading).collect()
        };
        let ops: Batch = readings.iter().map(|reading| self.read_op(reading.shard)).chain(other).collect();
        let mut replies = self.vigil.run(ctx, ops).await.into_iter();
        let mut lost = Vec::new();
        for reading in &mut readings {
            match replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))? {
                Reply::Item(item) => reading.item = item,
                Reply::Miss => lost.push(reading.shard),
                other => return Err(unexpected(&self.read_op(reading.shard), &other)),
            }
        }
        if lost.is_empty() { Ok((readings, replies.next())) } else { Err(self.lost(&lost)) }
    }

    /// Reads shards for a compaction: together with what their states depend on. **Round trips: 1**, more where the structure needs them.
    ///
    /// # Errors
    /// As [`read`](Shards::read), and [`ErrorKind::RolledBack`] for what cannot be of one past.
    pub(crate) async fn read_whole(&self, ctx: Ctx, shards: Vec<u16>) -> Result<Vec<Reading>> {
        match &self.elements {
            Some(elements) => elements.read(self, ctx, shards).await,
            None => self.read(ctx, shards).await,
        }
    }

    /// Forgets what this handle has seen: whatever is there now contradicts nothing.
    pub(crate) fn forget(&self) {
        self.lock_seen().fill_with(Seen::default);
    }

    /// A reading of an item that was read otherwise, with what was seen before that.
    pub(crate) fn reading(&self, shard: u16, item: Item, before: Seen) -> Reading {
        Reading { shard, item, before }
    }

    /// What the value holds, applied to `state`.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`], and [`ErrorKind::RolledBack`] for a value older than one that this handle saw.
    pub(crate) fn fold<'v, S: Fold<'v>>(&self, reading: &'v Reading, state: S) -> Result<Folded<S>> {
        self.fold_value(reading, state).map(|(_, folded)| folded)
    }

    fn fold_value<'v, S: Fold<'v>>(&self, reading: &'v Reading, state: S) -> Result<(Value<'v>, Folded<S>)> {
        let named = |error: Error| self.named(error, reading.shard);
        let value = Value::parse(&reading.item.value, self.place(reading.shard)).map_err(named)?;
        let before = &reading.before;
        let mut trace = before.trace(self.writer);
        let folded = value.fold_traced(state, &mut trace).map_err(named)?;
        let last = folded.last(self.writer);
        let now = (value.epoch, value.len());
        if let Some(why) = before.contradicted(now, last, &trace) {
            let detail = format!("{}: shard {} of {}: {why}", self.what, reading.shard, self.count());
            let error = self.named(Error::new(ErrorKind::RolledBack, detail), reading.shard);
            return Err(events::loss(self.vigil.subject(), error));
        }
        self.lock_seen()[usize::from(reading.shard)].read(before, now, last, &trace);
        Ok((value, folded))
    }

    /// The elements as a structure sees them.
    pub(crate) fn state<'v>(&self, reading: &'v Reading) -> Result<Folded<E::State<'v>>> {
        self.fold(reading, self.new_state())
    }

    /// The figures of a reading.
    pub(crate) fn stat<'v>(&self, reading: &Reading, folded: &Folded<E::State<'v>>) -> ShardStat {
        use layout::Snapshot;
        let bytes = reading.item.value.len();
        let live_bytes = folded.live_bytes(self.now_s());
        ShardStat { elements: folded.state.elements().count(), bytes, live_bytes, removals: folded.removals }
    }

    /// The value of a reading, for slices of it.
    pub(crate) fn value<'r>(&self, reading: &'r Reading) -> &'r Bytes {
        &reading.item.value
    }

    pub(crate) fn seen(&self, shard: u16) -> Seen {
        self.lock_seen()[usize::from(shard)].clone()
    }

    /// Notes that a write was acknowledged. `before` is what was seen when it was sent.
    pub(crate) fn acked(&self, shard: u16, seq: u64, before: &Seen) {
        self.lock_seen()[usize::from(shard)].acknowledged(seq, before);
    }

    fn lock_seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for shards that are gone.
    pub(crate) fn lost(&self, shards: &[u16]) -> Error {
        let detail =
            format!("{}: shard {} of {} is gone: evicted, or lost in a restart", self.what, list(shards), self.count());
        let error = Error::new(ErrorKind::Lost, detail).store(self.store.profile().store.clone());
        let error = match shards.first() {
            Some(&shard) => error.key(&self.cells[usize::from(shard)].key),
            None => error,
        };
        events::loss(self.vigil.subject(), error)
    }

    /// The error for a shard that has no room.
    pub(crate) fn full(&self, shard: u16, stat: ShardStat, wanted_bytes: usize, hint: &str) -> Error {
        let ShardStat { bytes, live_bytes, .. } = stat;
        let detail = format!(
            "{}: shard {shard} of {} holds {bytes} bytes ({live_bytes} live) of at most {}; {wanted_bytes} more do not fit: \
             remove some, or make one with more shards{hint}",
            self.what,
            self.count(),
            self.value_bytes_max,
        );
        self.named(Error::new(ErrorKind::Full, detail), shard)
    }

    fn named(&self, error: Error, shard: u16) -> Error {
        error.key(&self.cells[usize::from(shard)].key).store(self.store.profile().store.clone())
    }

    pub(crate) fn unsupported(&self) -> Error {
        let detail = format!("{} cannot be compacted: this store has no conditional writes (cas)", self.what);
        Error::new(ErrorKind::Unsupported, detail).store(self.store.profile().store.clone())
    }

    /// True if so much of a value that was read is stale that a compaction pays.
    pub(crate) fn is_dirty<'v, S: layout::Snapshot<'v>>(&self, reading: &Reading, folded: &Folded<S>) -> bool {
        self.is_dirty_with(reading, folded, folded.elements_bytes())
    }

    /// The same, where the elements are known to take `elements_bytes` in a snapshot.
    pub(crate) fn is_dirty_with<'v, S: Fold<'v>>(
        &self,
        reading: &Reading,
        folded: &Folded<S>,
        elements_bytes: usize,
    ) -> bool {
        let bytes = reading.item.value.len();
        // The writers that a snapshot keeps only add to what is live: they are sorted out only where they could matter.
        self.is_stale(bytes, elements_bytes)
            && self.is_stale(bytes, folded.live_bytes_with(elements_bytes, self.now_s()))
    }

    fn is_stale(&self, bytes: usize, live_bytes: usize) -> bool {
        bytes.saturating_sub(live_bytes) > self.tuning.dirty_bytes.max(live_bytes)
    }

    fn plan(&self, reading: &Reading) -> Result<Plan> {
        use layout::Snapshot;
        let (value, folded) = self.fold_value(reading, self.new_state())?;
        let now = self.stat(reading, &folded);
        let written = folded.compacted(self.place(reading.shard), value.epoch, self.now_s());
        let after = ShardStat { bytes: written.len(), live_bytes: written.len(), removals: 0, ..now };
        let is_whole = folded.state.is_whole(reading.shard);
        Ok(Plan { value: written, now, after, unsettled: folded.state.unsettled(), is_whole })
    }

    /// The plan, once nothing in it is unsettled.
    async fn settled(&self, ctx: Ctx, reading: &Reading, plan: Plan) -> Result<Plan> {
        if plan.unsettled == 0 {
            return Ok(plan);
        }
        self.settle(ctx, plan.unsettled).await?;
        let plan = self.plan(reading)?;
        if plan.unsettled == 0 {
            return Ok(plan);
        }
        let detail =
            format!("{}: shard {} of {} holds what this release does not know", self.what, reading.shard, self.count());
        Err(self.named(Error::new(ErrorKind::LayoutMismatch, detail), reading.shard))
    }

    /// Rewrites shards that have anything stale, and tells their figures after it.
    /// **Round trips: 2**, 1 if nothing was stale, 2 more for each time that others wrote in between.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] without cas; [`ErrorKind::Conflict`] if others wrote each time.
    pub(crate) async fn compact(&self, ctx: Ctx) -> Result<Vec<ShardStat>> {
        self.compact_these(ctx, (0..self.count()).collect(), false).await
    }

    /// The same of some shards; `even_clean`: also those where nothing is stale. One that would have no room for its head is left as it is.
    ///
    /// # Errors
    /// As [`compact`](Shards::compact), and with `even_clean`, once the others are written, [`ErrorKind::Full`] naming one that was left.
    pub(crate) async fn compact_these(&self, ctx: Ctx, mut todo: Vec<u16>, even_clean: bool) -> Result<Vec<ShardStat>> {
        if !self.store.profile().cas {
            return Err(self.unsupported());
        }
        let mut stats = Vec::with_capacity(todo.len());
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        let (mut unknown, mut quiet, mut full) = (None, None, None);
        for _ in 0..COMPACT_TRIES_MAX {
            let readings = self.read_whole(ctx, std::mem::take(&mut todo)).await?;
            let (mut batch, mut plans) = (Batch::new(), Vec::new());
            for reading in &readings {
                let plan = self.plan(reading)?;
                if plan.now.stale_bytes() == 0 && !even_clean {
                    stats.push(plan.now);
                    continue;
                }
                let plan = self.settled(ctx, reading, plan).await?;
                if !plan.is_whole {
                    // What it depends on was written meanwhile, and so it was itself.
                    todo.push(reading.shard);
                    continue;
                }
                if plan.after.bytes > self.value_bytes_max {
                    let more_bytes = plan.after.bytes.saturating_sub(plan.now.bytes);
                    full = full.or_else(|| even_clean.then(|| self.full(reading.shard, plan.now, more_bytes, "")));
                    stats.push(plan.now);
                    continue;
                }
                let cas = reading.item.cas.ok_or_else(|| self.unsupported())?;
                let put = |key| Op::put(key, PutMode::Cas(cas), plan.value.clone(), Ttl::Never);
                batch.push(self.op(reading.shard, put));
                self.tell(reading.shard, Phase::Begun);
                plans.push((reading.shard, plan.after));
            }
            if !batch.is_empty() {
                let mut replies = self.store.run(ctx, batch).await.into_iter();
                for (shard, after) in plans {
                    let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
                    self.tell_reply(shard, &reply);
                    match reply {
                        Ok(Reply::Stored) => stats.push(after),
                        Ok(Reply::Exists) => todo.push(shard),
                        Ok(_) => return Err(self.lost(&[shard])),
                        // Harmless either way: the value says the same before and after. The next read tells.
                        Err(error) if error.is_unknown() => {
                            unknown = Some(error);
                            todo.push(shard);
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            if todo.is_empty() {
                return full.map_or(Ok(stats), Err);
            }
            if quiet.is_none() {
                quiet = Some(self.quiet(ctx).await.ok_or_else(|| self.never_quiet())?);
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        let conflict = || {
            let detail = format!("{}: others wrote at each of {COMPACT_TRIES_MAX} tries to compact it", self.what);
            Error::new(ErrorKind::Conflict, detail)
        };
        Err(unknown.unwrap_or_else(conflict))
    }

    /// Compacts these readings beside the caller, where they are dirty and nothing is written meanwhile. Never waits, never
    /// fails.
    pub(crate) fn compact_behind(self: &Arc<Self>, readings: Vec<Reading>) {
        self.behind(|shards, ctx| async move { shards.compact_once(ctx, readings).await });
    }

    /// Looks at a shard beside the caller, and compacts it if it is dirty.
    pub(crate) fn look_behind(self: &Arc<Self>, looked_at: Vec<u16>) {
        self.behind(|shards, ctx| async move {
            let readings = shards.read_whole(ctx, looked_at).await?;
            shards.compact_once(ctx, readings).await
        });
    }

    fn behind<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>, Ctx) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        if self.store.profile().cas {
            // Forgotten when it fails: a compaction that failed did no harm, and the next read that finds dirt tries again.
            self.compacting.run(BEHIND_MAX, || work(self.clone(), Ctx::within(BEHIND_MAX)));
        }
    }

    async fn compact_once(&self, ctx: Ctx, readings: Vec<Reading>) -> Result<()> {
        let met = self.try_compact(ctx, &readings).await?;
        if met.is_empty() {
            return Ok(());
        }
        let _quiet = self.quiet(ctx).await.ok_or_else(|| self.never_quiet())?;
        // All writes of this handle wait for it, also those to shards on servers that answer.
        let work = self.compact_again(ctx.at_most(QUIET_MAX), met);
        tokio::time::timeout(QUIET_MAX, work).await.unwrap_or(Ok(()))
    }

    /// Compacts shards where somebody wrote meanwhile: no write of this handle does now.
    async fn compact_again(&self, ctx: Ctx, mut met: Vec<u16>) -> Result<()> {
        for _ in 1..BEHIND_TRIES_MAX {
            let readings = self.read_whole(ctx, met).await?;
            met = self.try_compact(ctx, &readings).await?;
            if met.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Keeps the writes of this handle and its compactions apart; `None` where others were at it up to the deadline.
    pub(crate) async fn quiet(&self, ctx: Ctx) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let Some(deadline) = ctx.deadline else { return Some(self.quiet.lock().await) };
        let left = deadline.saturating_duration_since(ambient::now());
        tokio::time::timeout(left, self.quiet.lock()).await.ok()
    }

    fn never_quiet(&self) -> Error {
        let detail = format!("{}: writes of this handle were under way until a compaction was to end", self.what);
        Error::new(ErrorKind::Timeout, detail)
    }

    /// Compacts those that are dirty; returns the shards where somebody wrote meanwhile.
    async fn try_compact(&self, ctx: Ctx, readings: &[Reading]) -> Result<Vec<u16>> {
        let (mut batch, mut sent, mut met) = (Batch::new(), Vec::new(), Vec::new());
        for reading in readings {
            let plan = self.plan(reading)?;
            let look_bytes = self.tuning.dirty_bytes.saturating_mul(LOOK_EVERY_DIRTY_BYTES);
            self.look_bytes.store(look_bytes.max(plan.now.live_bytes / 4), Ordering::Relaxed);
            let is_dirty = self.is_stale(plan.now.bytes, plan.now.live_bytes);
            if let (true, Some(cas)) = (is_dirty, reading.item.cas) {
                let plan = self.settled(ctx, reading, plan).await?;
                if !plan.is_whole {
                    met.push(reading.shard);
                    continue;
                }
                batch.push(self.op(reading.shard, |key| Op::put(key, PutMode::Cas(cas), plan.value, Ttl::Never)));
                self.tell(reading.shard, Phase::Begun);
                sent.push(reading.shard);
            }
        }
        if batch.is_empty() {
            return Ok(met);
        }
        let replies = self.store.run(ctx, batch).await;
        let told = sent.into_iter().zip(replies).inspect(|(shard, reply)| self.tell_reply(*shard, reply));
        met.extend(told.filter(|(_, reply)| matches!(reply, Ok(Reply::Exists))).map(|(shard, _)| shard));
        Ok(met)
    }

    /// Tells how far a compaction got.
    pub(crate) fn tell(&self, shard: u16, phase: Phase) {
        events::compaction(self.vigil.subject(), shard, phase);
    }

    /// Tells how a compaction's write ended.
    pub(crate) fn tell_reply(&self, shard: u16, reply: &Result<Reply>) {
        let phase = match reply {
            Ok(Reply::Stored) => Phase::Done,
            Ok(Reply::Exists) => Phase::Met,
            _ => Phase::Failed,
        };
        self.tell(shard, phase);
    }

    /// What a write needs that finds no room for its frame: the value compacted, with the frame applied to it.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if that does not fit either.
    pub(crate) fn rewritten<'v>(&self, reading: &'v Reading, frame: &'v [u8]) -> Result<Room> {
        use layout::Snapshot;
        let (value, mut folded) = self.fold_value(reading, self.new_state())?;
        if folded.state.unsettled() != 0 {
            return Ok(Room::Settle(folded.state.unsettled()));
        }
        if !folded.state.is_whole(reading.shard) {
            return Ok(Room::Look);
        }
        let before = self.stat(reading, &folded);
        folded.join(self.place(reading.shard), frame).map_err(|error| self.named(error, reading.shard))?;
        let written = folded.compacted(self.place(reading.shard), value.epoch, self.now_s());
        if written.len() > self.value_bytes_max {
            return Err(self.full(reading.shard, before, frame.len(), ""));
        }
        Ok(Room::Rewrite(written))
    }

    /// Writes a reading's value anew, with this state in place of its own; nothing else in it is changed. The op, for a batch.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] without cas; [`ErrorKind::Full`] where it does not fit.
    pub(crate) fn rewrite_op<'v>(&self, reading: &'v Reading, folded: &Folded<E::State<'v>>) -> Result<Op> {
        let epoch = Value::parse(&reading.item.value, self.place(reading.shard))?.epoch;
        let written = folded.compacted(self.place(reading.shard), epoch, self.now_s());
        if written.len() > self.value_bytes_max {
            let before = self.stat(reading, folded);
            return Err(self.full(reading.shard, before, written.len().saturating_sub(before.bytes), ""));
        }
        let cas = self.token(reading)?;
        Ok(self.op(reading.shard, |key| Op::put(key, PutMode::Cas(cas), written, Ttl::Never)))
    }

    /// The token of a reading.
    pub(crate) fn token(&self, reading: &Reading) -> Result<larder_core::Cas> {
        reading.item.cas.filter(|_| self.store.profile().cas).ok_or_else(|| self.unsupported())
    }

    /// Says of a call that changed several shards what became of it. `touched` are the shards of the call.
    ///
    /// # Errors
    /// The error of the first shard that failed, naming all that did. Its effect is `NotApplied` only if no shard was changed.
    pub(crate) fn judge(&self, outcomes: &[(u16, Result<()>)], touched: impl Fn(u16) -> bool) -> Result<()> {
        let mine = || outcomes.iter().filter(|(shard, _)| touched(*shard));
        let failed: Vec<(u16, &Error)> =
            mine().filter_map(|(shard, outcome)| Some((*shard, outcome.as_ref().err()?))).collect();
        let Some(&(_, first)) = failed.first() else { return Ok(()) };
        let all = mine().count();
        if all == 1 {
            return Err(first.clone());
        }
        let shards: Vec<u16> = failed.iter().map(|&(shard, _)| shard).collect();
        let is_unknown = failed.len() < all || failed.iter().any(|(_, error)| error.is_unknown());
        let detail = format!(
            "{}: shard {} of {} failed, {} others took the change: {}",
            self.what,
            list(&shards),
            self.count(),
            all - failed.len(),
            first.detail()
        );
        let effect = if is_unknown { Effect::Unknown } else { Effect::NotApplied };
        Err(self.named(Error::new(first.kind(), detail), shards[0]).effect(effect).source(first.clone()))
    }
}

/// Numbers for people: `3`, `3 and 2 more`.
fn list(shards: &[u16]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown: Vec<String> = shards.iter().take(SHOWN_MAX).map(u16::to_string).collect();
    match shards.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

#[cfg(test)]
#[path = "shards_tests.rs"]
mod tests;
