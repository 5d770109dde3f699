//! The table's own ops: reading entries, writing and reading the list, work beside the caller.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::observe::{Phase, Subject};
use larder_core::text::Shown;
use larder_core::{
    Batch, Cas, Ctx, Durability, Error, ErrorKind, Item, Key, Op, Profile, PutMode, Remaining, Replies, Reply, Result,
    StoreRef, Ttl, TtlSupport, Verb, Want, ambient,
};
use tokio::runtime::Handle;

use super::layout::{self, ENTRY_BYTES, Entry, LISTING_BYTES, ListElements, Listing, Note, SLACK_S, Says, Spot, Stamp};
use super::{KEY_BYTES_MAX, TableOptions};
use crate::append::shards::Reading;
use crate::append::{Part, Shards, Write, Writer};
use crate::combine::Combiner;
use crate::events;
use crate::ids::random_id;
use crate::manifest::{Manifest, unexpected};
use crate::name::Name;
use crate::owned::Owned;
use crate::registry::Pieces;
use crate::retry::Backoff;
use crate::runtime;

/// How many bytes of different callers' changes to the list travel in one write.
const COMBINED_BYTES_MAX: usize = 64 * 1024;
/// How long work beside the caller may take.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// The largest compaction that travels with another entry's put.
const CARRIED_BYTES_MAX: usize = 4096;
/// How many such pieces of work a handle has under way at the most; further ones are left to the next reader.
const BEHIND_TASKS_MAX: usize = 64;
/// How often a call may look again, or try again, before it gives up.
pub(super) const ROUNDS_MAX: usize = 32;
/// How often an op may fail, in a way that passes, while nothing is in doubt.
const FAULTS_MAX: u32 = 8;

pub(super) struct Inner {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) shards: Arc<Shards<ListElements>>,
    combiner: Combiner<Writer<ListElements>>,
    pub(super) timeout: Duration,
    clock: larder_core::ClockRef,
    /// This handle, among all that write entries, and the last sequence that it gave out.
    writer: u64,
    seq: AtomicU64,
    /// How much is under way beside the callers.
    behind: AtomicUsize,
    /// Told when nothing is any more.
    rest: tokio::sync::Notify,
    /// The entries that are being repaired; protects nothing else, never held across an await.
    repairing: Mutex<HashSet<Key>>,
    /// A compaction of an entry that travels with the next put; protects nothing else, never held across an await.
    compaction: Mutex<Option<Compaction>>,
    /// When this handle last looked through each shard of the list, in seconds of its clock; at first, when it was opened.
    tended_s: Vec<AtomicU32>,
    /// True if entries have lives.
    pub(super) has_lives: bool,
    /// True once the store said that it may lose what it holds; whatever it says later, entries may have been lost by then.
    may_lose: AtomicBool,
}

/// Work beside the callers.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An entry's item, and where it is.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) item: Item,
    pub(super) is_listed: bool,
}

/// A rewrite of an entry without what is stale in it, and the shard that lists its key.
pub(super) struct Compaction {
    op: Op,
    shard: u16,
}

/// A call under way: until when, and how often it may yet fail.
pub(super) struct Effort {
    pub(super) deadline: Instant,
    backoff: Backoff,
    faults: u32,
}

impl Effort {
    pub(super) fn ctx(&self) -> Ctx {
        Ctx { deadline: Some(self.deadline) }
    }

    pub(super) fn is_over(&self) -> bool {
        ambient::now() >= self.deadline
    }

    /// Waits before another try of what is done to `subject`, if the error is one that may pass.
    ///
    /// # Errors
    /// The error, where another try is not worth it.
    pub(super) async fn again(&mut self, subject: Subject<'_>, error: Error) -> Result<()> {
        self.faults += 1;
        let is_passing = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
        if !is_passing || self.faults >= FAULTS_MAX || self.is_over() {
            return Err(error);
        }
        events::retry(subject, error.kind());
        self.pause().await;
        Ok(())
    }

    pub(super) async fn pause(&mut self) {
        let left = self.deadline.saturating_duration_since(ambient::now());
        tokio::time::sleep(self.backoff.next_pause().min(left)).await;
    }
}

impl Inner {
    pub(super) fn new(store: &StoreRef, name: &Name, manifest: Manifest, options: &TableOptions) -> Result<Inner> {
        let profile = store.profile();
        let tuning = options.tuning();
        let clock = tuning.clock.clone();
        let shards = Arc::new(Shards::new(store, name, &manifest, tuning)?);
        let weight_max = COMBINED_BYTES_MAX.min(shards.elements_bytes_max());
        let opened_s = seconds(&clock);
        Ok(Inner {
            tended_s: (0..manifest.shards).map(|_| AtomicU32::new(opened_s)).collect(),
            store: store.clone(),
            name: name.clone(),
            has_lives: super::has_lives(&manifest),
            writer: shards.writer,
            combiner: Combiner::new(Writer::new(shards.clone()), weight_max),
            shards,
            manifest,
            timeout: options.timeout,
            clock,
            seq: AtomicU64::new(0),
            behind: AtomicUsize::new(0),
            rest: tokio::sync::Notify::new(),
            repairing: Mutex::default(),
            compaction: Mutex::default(),
            may_lose: AtomicBool::new(may_lose(&profile)),
        })
    }

    pub(super) fn effort(&self) -> Result<Effort> {
        runtime::current("a call has a timeout")?;
        self.shards.vigil.check()?;
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        Ok(Effort { deadline: ambient::now() + self.timeout, backoff, faults: 0 })
    }

    /// True where an entry that is missing cannot have been lost. Asked once the reply that misses it has come: a store on the network says anew at each handshake what it keeps, and that comes before the
    /// replies of its connection. Once false it stays so.
    pub(super) fn is_lossless(&self) -> bool {
        !self.may_lose.load(Ordering::Acquire) && self.is_lossless_by(&self.store.profile())
    }

    /// The same by a profile that was just read.
    pub(super) fn is_lossless_by(&self, profile: &Profile) -> bool {
        if self.may_lose.load(Ordering::Acquire) {
            return false;
        }
        let may_lose = may_lose(profile);
        if may_lose {
            self.may_lose.store(true, Ordering::Release);
        }
        !may_lose
    }

    pub(super) fn now_s(&self) -> u32 {
        seconds(&self.clock)
    }

    /// When a life ends that begins now.
    pub(super) fn expiry_s(&self, ttl: Ttl) -> u32 {
        match ttl {
            Ttl::Never => 0,
            // Rounded up, as stores do.
            Ttl::After(ttl) => {
                u32::try_from(self.clock.wall().saturating_add(ttl).as_secs()).unwrap_or(u32::MAX).saturating_add(1)
            }
        }
    }

    pub(super) fn spot(&self, key: &[u8]) -> Spot {
        Spot::of(key, self.shards.count())
    }

    pub(super) fn item_key(&self, spot: &Spot) -> Result<Key> {
        self.manifest.data_key(&self.name, spot.index)
    }

    pub(super) fn stamp(&self) -> Stamp {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        Stamp { generation: self.manifest.generation, writer: self.writer, seq }
    }

    /// The longest key.
    pub(super) fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX.min((self.shards.elements_bytes_max() - LISTING_BYTES) / 2)
    }

    /// The longest value under a key of so many bytes.
    pub(super) fn value_bytes_max(&self, key_bytes: usize) -> usize {
        let item_key_bytes = self.name.data_key('t', 0, "12345678901234").map_or(0, |key| key.as_bytes().len());
        let item_bytes = self.store.profile().value_bytes_max(item_key_bytes).min(u32::MAX as usize);
        item_bytes.saturating_sub(ENTRY_BYTES).saturating_sub(key_bytes)
    }

    pub(super) fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = self.key_bytes_max();
        if key.len() > max {
            let detail = format!("a key has {} bytes; the limit is {max}: {}", key.len(), Shown(key));
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(())
    }

    pub(super) fn check_value(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_key(key)?;
        let max = self.value_bytes_max(key.len());
        if value.len() > max {
            let detail = format!(
                "the value of {} has {} bytes; the limit on this store is {max}: {}",
                Shown(key),
                value.len(),
                Shown(value)
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(())
    }

    pub(super) fn get_op(key: Key) -> Op {
        Op::get(key, Want::VALUE | Want::CAS | Want::FLAGS)
    }

    /// Runs a batch, with a look at the manifest where one is due. **Round trips: 1.**
    pub(super) async fn run(&self, ctx: Ctx, batch: Batch) -> Replies {
        self.shards.vigil.run(ctx, batch).await
    }

    /// An item that a get brought, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it is another key's.
    pub(super) fn found(&self, spot: &Spot, key: &[u8], reply: Result<Reply>) -> Result<Option<Found>> {
        let Some(item) = reply?.into_item() else { return Ok(None) };
        let Some(is_listed) = spot.is_listed(item.flags) else {
            Entry::parse(&item.value, self.manifest.generation)?.expect(key)?;
            let detail = format!("the entry of {} has flags of {:#x}, which no release wrote", Shown(key), item.flags);
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        };
        Ok(Some(Found { item, is_listed }))
    }

    /// An entry that was found.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for foreign bytes, [`ErrorKind::Conflict`] for another key's entry.
    pub(super) fn entry<'i>(&self, key: &[u8], item: &'i Item) -> Result<Entry<'i>> {
        let entry = Entry::parse(&item.value, self.manifest.generation)?;
        entry.expect(key)?;
        Ok(entry)
    }

    /// Reads an entry, with what is left of its life. **Round trips: 1**, more where the store cannot be reached.
    pub(super) async fn read(&self, effort: &mut Effort, spot: &Spot, key: &[u8]) -> Result<Option<Found>> {
        let item_key = self.item_key(spot)?;
        let mut want = Want::VALUE | Want::CAS | Want::FLAGS;
        if self.has_lives && self.store.profile().remaining_ttl {
            want |= Want::TTL;
        }
        loop {
            let batch = Batch::from_iter([Op::get(item_key.clone(), want)]);
            let reply = self.run(effort.ctx(), batch).await.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            match reply {
                Err(error) => effort.again(self.subject(), error).await?,
                reply => return self.found(spot, key, reply),
            }
        }
    }

    /// Reads shards of the list. **Round trips: 1**, more where the store cannot be reached.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] naming the shards that are gone.
    pub(super) async fn read_list(&self, effort: &mut Effort, shards: &[u16]) -> Result<Vec<Reading>> {
        loop {
            match self.shards.read(effort.ctx(), shards.iter().copied()).await {
                Err(error) if error.kind() != ErrorKind::Lost => effort.again(self.subject(), error).await?,
                read => {
                    self.shards.vigil.check()?;
                    return read;
                }
            }
        }
    }

    /// What the list says of keys, in their order. **Round trips: 1.**
    pub(super) async fn ask(&self, effort: &mut Effort, keys: &[(&[u8], u16)]) -> Result<Vec<Says>> {
        let mut shards: Vec<u16> = keys.iter().map(|(_, shard)| *shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut says = vec![Says::NotListed; keys.len()];
        for reading in self.read_list(effort, &shards).await? {
            let asked = keys.iter().filter(|(_, shard)| *shard == reading.shard).map(|(key, _)| *key);
            let state = self.shards.fold(&reading, Listing::of(asked))?.state;
            for (says, (key, shard)) in says.iter_mut().zip(keys) {
                if *shard == reading.shard {
                    *says = state.says(key);
                }
            }
        }
        Ok(says)
    }

    /// What the list says of a key. **Round trips: 1.**
    pub(super) async fn ask_of_one(&self, effort: &mut Effort, spot: &Spot, key: &[u8]) -> Result<Says> {
        let says = self.ask(effort, &[(key, spot.shard)]).await?;
        Ok(says.first().copied().unwrap_or(Says::NotListed))
    }

    /// Writes notes into a shard of the list. **Round trips: 1.**
    pub(super) async fn note(&self, deadline: Instant, shard: u16, notes: &[Note<'_>]) -> Result<()> {
        let mut elements = Vec::new();
        notes.iter().for_each(|note| note.put(&mut elements));
        let write = Write { parts: vec![Part { shard, elements }], deadline };
        let left = deadline.saturating_duration_since(ambient::now());
        let outcomes = self.combiner.submit_within(write, left).await?;
        self.shards.judge(&outcomes, |other| other == shard)
    }

    /// The op that rewrites an entry if it still has the token.
    pub(super) fn cas_op(key: Key, cas: Cas, value: Bytes, flags: u32, ttl: Ttl) -> Op {
        Op::new(key, Verb::Put { mode: PutMode::Cas(cas), value, flags, ttl })
    }

    /// Runs work beside the caller, on a runtime that is there and not too busy.
    pub(super) fn behind<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        if let Some((runtime, work)) = self.work_behind(work) {
            runtime.spawn(work);
        }
    }

    /// The same, its first step taken at once: what it sends first is sent before whatever the caller does next.
    fn begin_behind<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let Some((runtime, mut work)) = self.work_behind(work) else { return };
        // The task polls it again, whatever became ready meanwhile.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn(work);
        }
    }

    fn work_behind<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> Option<(Handle, Work)>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let runtime = Handle::try_current().ok()?;
        let busy = Busy(self.clone());
        if self.behind.fetch_add(1, Ordering::AcqRel) >= BEHIND_TASKS_MAX {
            return None;
        }
        let work = work(self.clone());
        let work = Box::pin(async move {
            // Forgotten on purpose: what was not repaired now, the next reader repairs.
            _ = tokio::time::timeout(BEHIND_MAX, work).await;
            drop(busy);
        });
        Some((runtime, work))
    }

    /// True if further work beside the callers would not be done.
    fn is_busy(&self) -> bool {
        self.behind.load(Ordering::Acquire) >= BEHIND_TASKS_MAX
    }

    /// After `incarnation` was noted *listed*: sees to it that the entry says so. Beside the caller, unless so much is under way there that it
    /// would not be done: each later put of the entry would have to list it again.
    pub(super) async fn flag(self: &Arc<Self>, effort: &Effort, key: &[u8], incarnation: u64) {
        if !self.is_busy() {
            return self.repair_behind(key, Some(incarnation));
        }
        let left = effort.deadline.saturating_duration_since(ambient::now());
        // Forgotten on purpose: the put is done, and the next one repairs what this could not.
        _ = tokio::time::timeout(left, self.repair(&self.spot(key), key, Some(incarnation))).await;
    }

    /// Waits until nothing is under way beside the callers, and nothing waits for another put; as long as work beside a caller may take, since others may go on calling.
    pub(super) async fn settle(self: &Arc<Self>) {
        if let Some(op) = self.take_compaction() {
            self.run_behind(op);
        }
        match runtime::current("waiting has an end") {
            Ok(_) => _ = tokio::time::timeout(BEHIND_MAX, self.at_rest()).await,
            // Without its timer a timeout panics.
            Err(_) => self.at_rest().await,
        }
    }

    async fn at_rest(&self) {
        loop {
            let rest = self.rest.notified();
            if self.behind.load(Ordering::Acquire) == 0 {
                return;
            }
            rest.await;
        }
    }

    /// Sees to it, beside the caller, that an entry is listed and says so. `noted`: the incarnation that is listed for certain.
    pub(super) fn repair_behind(self: &Arc<Self>, key: &[u8], noted: Option<u64>) {
        let spot = self.spot(key);
        let Ok(item_key) = self.item_key(&spot) else { return };
        let is_new = self.repairing.lock().unwrap_or_else(PoisonError::into_inner).insert(item_key.clone());
        if !is_new {
            return;
        }
        let repairing = Repairing(self.clone(), item_key);
        let key = key.to_vec();
        self.behind(move |table| async move {
            let repairing = repairing;
            if noted.is_none() {
                // Its putter is most likely about to do the same.
                tokio::time::sleep(super::REPAIR_AFTER).await;
            }
            let done = table.repair(&spot, &key, noted).await;
            drop(repairing);
            done
        });
    }

    async fn repair(self: &Arc<Self>, spot: &Spot, key: &[u8], mut noted: Option<u64>) -> Result<()> {
        let mut effort = self.effort()?;
        for _ in 0..ROUNDS_MAX {
            let since = ambient::now();
            let Some(found) = self.read(&mut effort, spot, key).await? else { return Ok(()) };
            let entry = self.entry(key, &found.item)?;
            if found.is_listed {
                return Ok(());
            }
            let Entry { incarnation, expiry_s, .. } = entry;
            if noted != Some(incarnation) {
                if !self.sign(&effort, spot, &found, entry).await? {
                    effort.pause().await;
                    continue;
                }
                self.note(effort.deadline, spot.shard, &[Note::Listed { incarnation, expiry_s, key }]).await?;
                self.check_late(&mut effort, spot, key, incarnation, since).await?;
                noted = Some(incarnation);
                continue;
            }
            let (Some(cas), Some(ttl)) = (found.item.cas, self.left(expiry_s, found.item.ttl)) else { return Ok(()) };
            let written = { entry }.compacted(self.now_s());
            let op = Inner::cas_op(self.item_key(spot)?, cas, written, spot.flags(true), ttl);
            match self.run(effort.ctx(), Batch::from_iter([op])).await.pop() {
                Some(Ok(Reply::Exists)) => {
                    events::conflict(self.subject());
                    effort.pause().await;
                }
                Some(Err(error)) => effort.again(self.subject(), error).await?,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Writes to an entry, without a value, before it is listed for its maker: he takes back what the list refused him, as long as nobody else wrote to it,
    /// and what is on the list and gone is lost. False if it is another by now. **Round trips: 1.**
    async fn sign(&self, effort: &Effort, spot: &Spot, found: &Found, entry: Entry<'_>) -> Result<bool> {
        // None: it is about to be over, and no maker is so late.
        let Some(op) = self.sign_op(spot, found, entry)? else { return Ok(true) };
        match self.run(effort.ctx(), Batch::from_iter([op])).await.pop() {
            Some(Ok(reply)) => Ok(reply == Reply::Stored),
            Some(Err(error)) => Err(error),
            None => Err(larder_core::ext::no_reply()),
        }
    }

    /// The op of [`sign`](Inner::sign); `None` for an entry that is about to be over.
    pub(super) fn sign_op(&self, spot: &Spot, found: &Found, entry: Entry<'_>) -> Result<Option<Op>> {
        let (Some(cas), Some(ttl)) = (found.item.cas, self.left(entry.expiry_s, found.item.ttl)) else {
            return Ok(None);
        };
        // A writer of its own: a put of this handle that began before is to count after it.
        let stamp = Stamp { generation: self.manifest.generation, writer: random_id(), seq: 1 };
        let written = entry.rewritten(&layout::empty_frame(stamp), self.now_s())?;
        Ok(Some(Inner::cas_op(self.item_key(spot)?, cas, written, spot.flags(false), ttl)))
    }

    /// What is left of a life; `None` where that is too little to write it anew.
    pub(super) fn left(&self, expiry_s: u32, told: Remaining) -> Option<Ttl> {
        match (expiry_s, told) {
            (0, _) => Some(Ttl::Never),
            (_, Remaining::For(left)) => Some(Ttl::After(left.max(self.life_min()))),
            _ => expiry_s
                .checked_sub(self.now_s())
                .filter(|left| *left > 0)
                .map(|left| Ttl::After(Duration::from_secs(u64::from(left)))),
        }
    }

    /// The least that is written of a life that goes on: what is left of it is told in the store's own measure, rounded down.
    fn life_min(&self) -> Duration {
        match self.store.profile().ttl {
            TtlSupport::Millis => Duration::from_millis(1),
            TtlSupport::None | TtlSupport::Seconds => Duration::from_secs(1),
        }
    }

    /// Compacts an entry beside the caller, if it is dirty.
    pub(super) fn compact_behind(self: &Arc<Self>, key: &[u8], found: &Found) {
        if let Some(compaction) = self.compaction(key, found) {
            self.run_behind(compaction);
        }
    }

    /// Compacts an entry along with the handle's next put, if it is dirty: where one entry is put again and again that saves a round trip
    /// for each. One that is large is compacted beside the caller, so that nobody's put waits for its bytes.
    pub(super) fn compact_with_next(self: &Arc<Self>, key: &[u8], found: &Found) {
        let Some(compaction) = self.compaction(key, found) else { return };
        let before = match compaction.op.value_bytes() {
            ..=CARRIED_BYTES_MAX => self.lock_compaction().replace(compaction),
            _ => Some(compaction),
        };
        if let Some(before) = before {
            self.run_behind(before);
        }
    }

    /// The compaction that goes with a put of this item, in front of it: its token is good until the item is written. On several servers only
    /// that of the same item: no put shall wait for another one's server.
    pub(super) fn compaction_with(self: &Arc<Self>, item_key: &Key) -> Option<Compaction> {
        let compaction = self.take_compaction()?;
        if compaction.op.key == *item_key || self.store.profile().nodes == 1 {
            return Some(compaction);
        }
        self.run_behind(compaction);
        None
    }

    /// The op of a compaction that is sent now; its reply goes to [`Shards::tell_reply`], with the shard.
    pub(super) fn begun(&self, compaction: Compaction) -> (Op, u16) {
        self.shards.tell(compaction.shard, Phase::Begun);
        (compaction.op, compaction.shard)
    }

    fn take_compaction(&self) -> Option<Compaction> {
        self.lock_compaction().take()
    }

    fn lock_compaction(&self) -> MutexGuard<'_, Option<Compaction>> {
        self.compaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rewrites an entry without what is stale, if that is much.
    fn compaction(&self, key: &[u8], found: &Found) -> Option<Compaction> {
        let now_s = self.now_s();
        let mut entry = self.entry(key, &found.item).ok()?;
        let stale_bytes = entry.stale_bytes(now_s);
        let is_dirty = stale_bytes > super::DIRTY_BYTES.max(found.item.value.len() - stale_bytes);
        let cas = found.item.cas.filter(|_| is_dirty && !self.has_lives)?;
        let spot = self.spot(key);
        let item_key = self.item_key(&spot).ok()?;
        let op = Inner::cas_op(item_key, cas, entry.compacted(now_s), spot.flags(found.is_listed), Ttl::Never);
        Some(Compaction { op, shard: spot.shard })
    }

    /// Runs a compaction, which may come to nothing, beside the caller. At once: behind the caller's next put its token would be a stale one, each
    /// time.
    fn run_behind(self: &Arc<Self>, compaction: Compaction) {
        self.begin_behind(move |table| async move {
            let (op, shard) = table.begun(compaction);
            let reply = table.run(Ctx::within(BEHIND_MAX), Batch::from_iter([op])).await.pop();
            table.shards.tell_reply(shard, &reply.unwrap_or_else(|| Err(larder_core::ext::no_reply())));
            Ok(())
        });
    }

    /// Looks through a shard of the list beside the caller, where this handle has not for long: who only gets and puts reads no list, and
    /// what a dead client left *leaving* would stay so, with a put that was acknowledged since.
    pub(super) fn tend_behind(self: &Arc<Self>, shard: u16, now_s: u32) {
        let Some(tended_s) = self.tended_s.get(usize::from(shard)) else { return };
        let last_s = tended_s.load(Ordering::Relaxed);
        let is_due = now_s.abs_diff(last_s) > super::LEAVING_MAX_S;
        if is_due && tended_s.compare_exchange(last_s, now_s, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.behind(move |table| async move { table.listed(&[shard]).await.map(drop) });
        }
    }

    /// Takes what is gone off the list, beside the caller.
    pub(super) fn tidy_behind(self: &Arc<Self>, key: &[u8], incarnation: u64) {
        let key = key.to_vec();
        self.behind(move |table| async move { table.tidy(&key, incarnation).await });
    }

    /// Takes an incarnation off the list whose entry is not there: it was listed, so it was there, and none comes back.
    async fn tidy(&self, key: &[u8], incarnation: u64) -> Result<()> {
        let mut effort = self.effort()?;
        let spot = self.spot(key);
        if let Some(found) = self.read(&mut effort, &spot, key).await?
            && self.entry(key, &found.item)?.incarnation == incarnation
        {
            return Ok(());
        }
        self.note(effort.deadline, spot.shard, &[Note::Gone { incarnation }]).await
    }

    /// True if an entry of this life may have ended by itself, given that clocks disagree.
    pub(super) fn may_be_over(&self, expiry_s: u32) -> bool {
        self.now_s().saturating_add(SLACK_S) >= expiry_s
    }

    /// True if it ended by itself, whatever the clocks.
    pub(super) fn is_over(&self, expiry_s: u32) -> bool {
        self.now_s() > expiry_s.saturating_add(SLACK_S)
    }

    /// The error for entries that are gone.
    pub(super) fn lost(&self, keys: &[&[u8]]) -> Error {
        const SHOWN_MAX: usize = 8;
        let mut shown: Vec<String> = keys.iter().take(SHOWN_MAX).map(|key| Shown(key).to_string()).collect();
        if keys.len() > SHOWN_MAX {
            shown.push(format!("{} more", keys.len() - SHOWN_MAX));
        }
        let detail = format!(
            "table {}: {} {} listed and gone: evicted, or lost in a restart (put anew or removed, a key is sound again)",
            self.name,
            shown.join(", "),
            if keys.len() == 1 { "is" } else { "are" }
        );
        let error = Error::new(ErrorKind::Lost, detail).store(self.store.profile().store.clone());
        events::loss(self.subject(), error)
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        self.shards.vigil.subject()
    }

    /// A reply that does not belong to its op.
    pub(super) fn strange(key: &Key, reply: &Reply) -> Error {
        unexpected(&Inner::get_op(key.clone()), reply)
    }

    /// All entries that a table's list names, for dropping it. Shards that are gone name none.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for a shard of the list that is none of this release: it may name entries that nobody would find without it.
    pub(super) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
        let mut pieces = Pieces::default();
        let indices: Vec<u16> = (0..manifest.shards).collect();
        for part in indices.chunks(store.profile().batch_ops_max.max(1)) {
            let keys: Vec<Key> = part.iter().map(|&shard| manifest.data_key(name, shard)).collect::<Result<_>>()?;
            let gets = keys.iter().map(|key| Op::get(key.clone(), Want::VALUE | Want::CAS));
            let replies = store.run(ctx, gets.collect()).await;
            for ((&shard, key), reply) in part.iter().zip(&keys).zip(replies) {
                let item = reply?.into_item();
                pieces.tokens.push(item.as_ref().and_then(|item| item.cas));
                let Some(item) = item else { continue };
                let place = crate::append::layout::Place { generation: manifest.generation, shard };
                let listing = crate::append::layout::Value::parse(&item.value, place)
                    .and_then(|value| value.fold(Listing::default()))
                    .map_err(|error| error.key(key))?;
                for (key, _) in listing.state.keys() {
                    let entry = manifest.data_key(name, layout::Spot::of(key, manifest.shards).index)?;
                    pieces.keys.push(Owned::item(entry));
                }
            }
        }
        Ok(pieces)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name).finish_non_exhaustive()
    }
}

/// True of a store that may lose an entry while it keeps others: it evicts, or what it has acknowledged may be gone in a restart.
fn may_lose(profile: &Profile) -> bool {
    profile.may_evict() || !matches!(profile.durability, Durability::Process | Durability::Disk)
}

fn seconds(clock: &larder_core::ClockRef) -> u32 {
    u32::try_from(clock.wall().as_secs()).unwrap_or(u32::MAX)
}

/// Work beside the caller; makes room for other work when it is dropped, however that comes.
struct Busy(Arc<Inner>);

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.behind.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.rest.notify_waiters();
        }
    }
}

/// An entry being repaired.
struct Repairing(Arc<Inner>, Key);

impl Drop for Repairing {
    fn drop(&mut self) {
        self.0.repairing.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
