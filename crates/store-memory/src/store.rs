//! The store: shards, and what spans them.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use larder_core::{
    Batch, Ctx, Durability, Error, ErrorKind, Eviction, Item, Key, Op, Profile, Ranges, Replies, Reply, Result, Run,
    Store, Ttl, TtlSupport, Verb, ambient,
};

use crate::budget::Budget;
use crate::builder::Builder;
use crate::direct::Direct;
use crate::item::EXPIRY_MS_MAX;
use crate::ops::{Done, Halt, Hashed};
use crate::shard::{Locked, Shared, Slot, Stop, table_bytes_least};
use crate::sweep;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, HashState};
use crate::update::Seen;

/// The longest life: 100 years of 365 days.
pub(crate) const TTL_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How often a write tries again after room was made for it and others took it.
const ROOM_ATTEMPTS_MAX: usize = 64;
/// The part of the budget that a write evicts beyond its own need at the most, when others keep taking what it made.
const ROOM_PARTS: usize = 16;
/// How often one write visits each shard to evict; it takes two rounds of the hand to find something in a shard where all was read.
const EVICT_VISITS_MAX: usize = 1024;

/// A store in this process. It dies with it.
///
/// memcached's semantics over arbitrary bytes, with lives in ms. An op holds one of 256 locks for its own duration and answers at
/// once: [`Store::run`] is always [`Run::Ready`], and **round trips: 0**. [`direct`](MemoryStore::direct) has the same without
/// futures and without `Bytes`.
///
/// A store with a budget that is full reclaims what has expired, and then refuses with [`ErrorKind::Full`], or evicts if
/// [built so](Builder::evict). A refused write changes nothing.
///
/// ```
/// use larder_core::{Key, Op, PutMode, Reply, Ttl, Want};
/// use larder_store_memory::MemoryStore;
/// let store = MemoryStore::new();
/// let key = Key::new("greeting")?;
/// store.apply(&Op::put(key.clone(), PutMode::Set, "hello", Ttl::Never))?;
/// let item = store.apply(&Op::get(key, Want::VALUE))?.into_item();
/// assert_eq!(item.map(|item| item.value), Some("hello".into()));
/// # Ok::<(), larder_core::Error>(())
/// ```
pub struct MemoryStore {
    pub(crate) inner: Arc<Inner>,
    profile: Arc<Profile>,
}

/// What the store shares with its sweeper.
pub(crate) struct Inner {
    pub(crate) shared: Shared,
    pub(crate) slots: Box<[Slot]>,
    sweeping: AtomicBool,
    sweeper: OnceLock<Thread>,
    /// Counts visits of eviction; the shard whose turn it is follows from it.
    pub(crate) evict_turn: AtomicUsize,
    evicted: AtomicU64,
    expired: AtomicU64,
}

/// A place in a walk over all items, by [`MemoryStore::each_from`].
///
/// ```
/// # use larder_store_memory::{MemoryStore, Place};
/// let (store, mut steps, mut at) = (MemoryStore::new(), 0, Some(Place::default()));
/// while let Some(place) = at {
///     at = store.each_from(place, |_key, _item| ());
///     steps += 1;
/// }
/// assert_eq!(steps, store.shards()); // nothing is in any of them
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    shard: usize,
    bucket: usize,
    /// How often the shard's items had moved by then.
    moves: u64,
}

/// What a store holds, by [`MemoryStore::stats`].
///
/// ```
/// # use larder_core::{PutMode, Ttl};
/// let store = larder_store_memory::MemoryStore::new();
/// store.direct().put(&[b'k'; 16], PutMode::Set, &[b'v'; 32], 0, Ttl::Never)?;
/// let stats = store.stats();
/// assert_eq!(stats.items, 1);
/// assert!(stats.bytes >= 64); // the item's size class, and its shard's first table
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items, expired ones that were not reclaimed yet included.
    pub items: usize,
    /// Heap bytes of items and index tables: what the budget counts.
    pub bytes: usize,
    /// Items that were evicted since the store was made.
    pub evicted: u64,
    /// Expired items that were reclaimed without being touched.
    pub expired: u64,
}

impl MemoryStore {
    /// A store without a budget, by the system's clock.
    ///
    /// ```
    /// assert_eq!(larder_store_memory::MemoryStore::new().stats().items, 0);
    /// ```
    pub fn new() -> MemoryStore {
        MemoryStore::assemble(Builder::new())
    }

    /// A store with limits of its own.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::builder().bytes_max(1 << 30).build()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn assemble(builder: Builder) -> MemoryStore {
        let slots = (0..builder.shard_count()).map(|_| Slot::new()).collect();
        let item_bytes_max = builder.value_bytes_max + Key::BYTES_MAX;
        let profile = Profile {
            item_bytes_max,
            ttl: TtlSupport::Millis,
            ranges: Ranges::Native,
            ttl_max: TTL_MAX,
            durability: Durability::Process,
            eviction: if builder.evict { Eviction::WhenFull } else { Eviction::Never },
            ..Profile::unlimited("memory")
        };
        let shared = Shared {
            hasher: HashState::default(),
            budget: Budget::new(builder.bytes_max),
            clock: builder.clock,
            item_bytes_max,
            evicts: builder.evict,
            tracks_access: builder.tracks_access,
            session: ambient::random(),
            table_bytes_least: table_bytes_least(),
        };
        let inner = Inner {
            shared,
            slots,
            sweeping: AtomicBool::new(false),
            sweeper: OnceLock::new(),
            evict_turn: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        };
        MemoryStore { inner: Arc::new(inner), profile: Arc::new(profile) }
    }

    /// Runs one op, now. **Round trips: 0.**
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a value over the limit, a ttl of zero or over 100 years, and arithmetic on what is no number;
    /// [`ErrorKind::Full`] where the budget, or the machine's memory, has no room. Nothing has changed then.
    ///
    /// ```
    /// # use larder_core::{Arith, Initial, Key, Op, Reply, Ttl, Verb};
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::new();
    /// let verb = Verb::Arith { arith: Arith::Incr(1), initial: Some(Initial { value: 1, ttl: Ttl::Never }) };
    /// let op = Op::new(Key::new("hits")?, verb);
    /// assert_eq!(store.apply(&op)?, Reply::Number(1));
    /// assert_eq!(store.apply(&op)?, Reply::Number(2));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn apply(&self, op: &Op) -> Result<Reply> {
        let (direct, key) = (self.direct(), op.key.as_bytes());
        let reply = match &op.verb {
            Verb::Get { want } => direct.get(key, *want).map(|item| item.map_or(Reply::Miss, Reply::Item)),
            Verb::Put { mode, value, flags, ttl } => direct.put(key, *mode, value, *flags, *ttl),
            Verb::Delete { cas } => direct.delete(key, *cas),
            Verb::Touch { ttl } => direct.touch(key, *ttl),
            Verb::Arith { arith, initial } => direct.arith(key, *arith, *initial),
            Verb::GetRange { offset, len } => direct.get_range(key, *offset, *len).map(|found| match found {
                Some(value) => Reply::Item(Item { value, ..Item::default() }),
                None => Reply::Miss,
            }),
            Verb::PutRange { offset, value } => direct.put_range(key, *offset, value),
            Verb::Watch { .. } | Verb::Native(_) => Err(op.lacking().store("memory")),
        };
        reply.map_err(|error| error.op(op))
    }

    /// The same ops without futures, on borrowed bytes.
    ///
    /// ```
    /// # use larder_core::Want;
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::new();
    /// assert_eq!(store.direct().get(b"nothing here", Want::VALUE)?, None);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn direct(&self) -> Direct<'_> {
        Direct::new(&self.inner)
    }

    /// Removes every item that has expired by the store's clock: how many. A sweeper thread does so without being asked, from the
    /// first item with a life on; this is for whoever turns the clock by hand, or cannot wait.
    ///
    /// ```
    /// # use larder_core::{ManualClock, PutMode, Ttl};
    /// # use larder_store_memory::MemoryStore;
    /// # use std::{sync::Arc, time::Duration};
    /// let clock = Arc::new(ManualClock::default());
    /// let store = MemoryStore::builder().clock(clock.clone()).build()?;
    /// store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::After(Duration::from_millis(5)))?;
    /// clock.advance(Duration::from_millis(5));
    /// store.reclaim_expired();
    /// assert_eq!(store.stats().items, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn reclaim_expired(&self) -> usize {
        self.inner.reclaim(0, |_| false)
    }

    /// Removes every item that is there when it is called: how many. Shard by shard, so that what is stored meanwhile may stay or go.
    ///
    /// ```
    /// # use larder_core::{PutMode, Ttl};
    /// let store = larder_store_memory::MemoryStore::new();
    /// store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::Never)?;
    /// assert_eq!(store.clear(), 1);
    /// assert_eq!(store.stats().bytes, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn clear(&self) -> usize {
        self.inner.slots.iter().map(|slot| slot.lock(&self.inner.shared).clear()).sum()
    }

    /// Changes the byte budget; false, and nothing changed, for a store that was built without one. A store that holds more refuses writes,
    /// or evicts, until it holds less.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::builder().bytes_max(64 << 20).build()?;
    /// assert!(store.set_bytes_max(128 << 20));
    /// assert!(!MemoryStore::new().set_bytes_max(128 << 20));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn set_bytes_max(&self, bytes: usize) -> bool {
        self.inner.shared.budget.set_max(bytes.max(Builder::BYTES_MAX_MIN))
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.inner.slots.len()
    }

    /// Shows some of the living items, of one shard, which is locked meanwhile: be brief, and do not use the store in there. Says where to go on; `None` at the end. Begun at [`Place::default`].
    ///
    /// An item that is there from the first step to the last is shown; once, but for those of a shard whose table was made anew meanwhile, as when it grows, which are shown again, all in one step. Else a step
    /// is 1,024 items at the most. What is removed and stored again meanwhile may be shown twice, or not.
    ///
    /// ```
    /// # use larder_core::{PutMode, Ttl};
    /// # use larder_store_memory::Place;
    /// let store = larder_store_memory::MemoryStore::new();
    /// store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::Never)?;
    /// let (mut at, mut keys) = (Some(Place::default()), Vec::new());
    /// while let Some(place) = at {
    ///     at = store.each_from(place, |key, _| keys.push(key.to_vec()));
    /// }
    /// assert_eq!(keys, [b"k"]);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn each_from(&self, at: Place, mut see: impl FnMut(&[u8], Seen<'_>)) -> Option<Place> {
        let Place { shard, bucket, moves } = at;
        let slot = self.inner.slots.get(shard)?;
        let now_ms = self.inner.shared.now_ms();
        let next = slot.lock(&self.inner.shared).some((bucket, moves), |item| {
            if item.expiry_ms().is_none_or(|expiry_ms| expiry_ms > now_ms) {
                see(item.key(), Seen::of(item));
            }
        });
        match next {
            Some((bucket, moves)) => Some(Place { shard, bucket, moves }),
            None => (shard + 1 < self.shards()).then_some(Place { shard: shard + 1, ..Place::default() }),
        }
    }

    /// Shows all living items, in steps of [`each_from`](MemoryStore::each_from).
    ///
    /// ```
    /// # use larder_core::{PutMode, Ttl};
    /// let store = larder_store_memory::MemoryStore::new();
    /// store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::Never)?;
    /// let mut keys = Vec::new();
    /// store.each(|key, _| keys.push(key.to_vec()));
    /// assert_eq!(keys, [b"k"]);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn each(&self, mut see: impl FnMut(&[u8], Seen<'_>)) {
        let mut next = Some(Place::default());
        while let Some(at) = next {
            next = self.each_from(at, &mut see);
        }
    }

    /// What the store holds. Costs a lock a shard, no walk. Locks the shards one after the other: the sum of a busy store is of no single moment.
    ///
    /// ```
    /// # use larder_store_memory::{MemoryStore, Stats};
    /// assert_eq!(MemoryStore::new().stats(), Stats::default());
    /// ```
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            evicted: self.inner.evicted.load(Ordering::Relaxed),
            expired: self.inner.expired.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for slot in &self.inner.slots {
            let shard = slot.lock(&self.inner.shared);
            stats.items += shard.len();
            stats.bytes += shard.bytes();
        }
        stats
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = self.inner.shared.budget.max();
        f.debug_struct("MemoryStore").field("bytes_max", &max).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, _ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::Ready(batch.iter().map(|op| self.apply(op)).collect::<Replies>())
    }
}

impl Inner {
    /// The shard of a hash. Its size is drawn from 1 to 2, evenly by the logarithm: tables double at the powers of two, and
    /// shards of one size would all do so at the same number of items. (log2(1+x) ~ x + 0.34 x(1-x).) Bits 40 to 55: the table
    /// uses those below and above.
    #[inline]
    pub(crate) fn slot(&self, hash: u64) -> &Slot {
        &self.slots[self.slot_index(hash)]
    }

    fn slot_index(&self, hash: u64) -> usize {
        let part = (hash >> 40) & 0xffff;
        let bent = part + ((part * (0x1_0000 - part)) >> 16) * 11 / 32;
        (bent as usize * self.slots.len()) >> 16
    }

    /// Runs an op on its shard.
    #[inline(always)]
    pub(crate) fn run(
        &self,
        key: &[u8],
        op: impl Fn(&mut Locked<'_>, Hashed<'_>) -> Result<Done, Halt>,
    ) -> Result<Reply> {
        let at = Hashed { hash: self.shared.hash(key), key };
        let first = op(&mut self.slot(at.hash).lock(&self.shared), at);
        match first {
            Ok(done) => Ok(done.into()),
            Err(halt) => self.run_again(at, halt, op).map(Reply::from),
        }
    }

    /// Where the budget was short, makes room with no lock held, and tries again.
    #[cold]
    fn run_again(
        &self,
        at: Hashed<'_>,
        mut halt: Halt,
        op: impl Fn(&mut Locked<'_>, Hashed<'_>) -> Result<Done, Halt>,
    ) -> Result<Done> {
        let mut need = 0;
        for attempt in 1..=ROOM_ATTEMPTS_MAX {
            need = match halt {
                Halt::Fault(error) => return Err(error.store("memory")),
                Halt::Stop(Stop::NoMemory(bytes)) => return Err(no_memory(bytes)),
                Halt::Stop(Stop::TooLarge(bytes)) => return Err(self.too_large(bytes)),
                Halt::Stop(Stop::Short(bytes)) => bytes,
            };
            if !self.make_room(self.slot_index(at.hash), need, attempt) {
                break;
            }
            halt = match op(&mut self.slot(at.hash).lock(&self.shared), at) {
                Ok(done) => return Ok(done),
                Err(halt) => halt,
            };
        }
        Err(self.full(need))
    }

    /// Makes room for `need` bytes, own shard first: false if there is none to be had.
    ///
    /// With each `attempt` a store that evicts makes more of it: what one write evicted, others may take before it tries again.
    #[cold]
    fn make_room(&self, own: usize, need: usize, attempt: usize) -> bool {
        let budget = &self.shared.budget;
        let Some(max) = budget.max().filter(|&max| need <= max) else { return false };
        self.reclaim(own, |budget| budget.fits(need));
        if self.shared.evicts && (attempt > 1 || !budget.fits(need)) {
            let more = need.saturating_mul(attempt - 1).min(max / ROOM_PARTS);
            let is_made = self.evict((need + more).min(max)) > 0;
            return is_made || budget.fits(need);
        }
        budget.fits(need)
    }

    /// Removes what has expired, from shard `own` on, until it is `enough`: how many.
    fn reclaim(&self, own: usize, enough: impl Fn(&Budget) -> bool) -> usize {
        let now_ms = self.shared.now_ms();
        let mut removed = 0;
        for slot in self.slots_from(own) {
            // A sweep that was under way ends, and one whole round after it.
            while slot.earliest_ms() <= now_ms && !enough(&self.shared.budget) {
                removed += slot.lock(&self.shared).sweep(now_ms).0;
            }
        }
        self.count_expired(removed);
        removed
    }

    /// Evicts until `need` bytes fit: how many items. Shards take turns and give a part of what they have, so that those that have more give
    /// more: if each made room for its own items only, their sizes would drift apart for ever. Ends where no shard holds anything.
    pub(crate) fn evict(&self, need: usize) -> usize {
        let (mut evicted, mut idle) = (0, 0);
        for _ in 0..self.slots.len() * EVICT_VISITS_MAX {
            if self.shared.budget.fits(need) {
                break;
            }
            let turn = self.evict_turn.fetch_add(1, Ordering::Relaxed) % self.slots.len();
            let (removed, is_empty) = {
                let mut shard = self.slots[turn].lock(&self.shared);
                (shard.evict(), shard.len() == 0)
            };
            evicted += removed;
            idle = if is_empty && removed == 0 { idle + 1 } else { 0 };
            if idle == self.slots.len() {
                // Others take turns, too, so that a round of this loop may have passed by the very shards that hold something.
                if self.slots.iter().all(|slot| slot.lock(&self.shared).len() == 0) {
                    break;
                }
                idle = 0;
            }
        }
        self.evicted.fetch_add(evicted as u64, Ordering::Relaxed);
        evicted
    }

    fn slots_from(&self, own: usize) -> impl Iterator<Item = &Slot> {
        let (before, after) = self.slots.split_at(own);
        after.iter().chain(before)
    }

    /// When an item stored now with this life expires, in ms of the store's clock, rounded up: a life is never cut short.
    /// Starts the sweeper with the first one.
    pub(crate) fn expiry_ms(self: &Arc<Inner>, ttl: Ttl) -> Result<Option<u64>> {
        let Some(ttl) = ttl.within(TTL_MAX).map_err(|error| error.store("memory"))? else { return Ok(None) };
        self.start_sweeping();
        let ns = self.shared.clock.monotonic().saturating_add(ttl).as_nanos();
        Ok(Some(u64::try_from(ns.div_ceil(1_000_000)).unwrap_or(u64::MAX).min(EXPIRY_MS_MAX)))
    }

    /// Starts the sweeper, if it does not run yet.
    #[inline]
    pub(crate) fn start_sweeping(self: &Arc<Inner>) {
        if !self.sweeping.load(Ordering::Relaxed) && !self.sweeping.swap(true, Ordering::Relaxed) {
            match sweep::start(self) {
                Some(thread) => _ = self.sweeper.set(thread),
                None => self.sweeping.store(false, Ordering::Relaxed),
            }
        }
    }

    pub(crate) fn count_expired(&self, items: usize) {
        if items != 0 {
            self.expired.fetch_add(items as u64, Ordering::Relaxed);
        }
    }

    fn full(&self, need: usize) -> Error {
        let (used, max) = (self.shared.budget.used(), self.shared.budget.max().unwrap_or(usize::MAX));
        let detail = format!("the store holds {used} of at most {max} bytes, and the write needs {need} more");
        Error::new(ErrorKind::Full, detail).store("memory")
    }

    #[cold]
    fn too_large(&self, bytes: usize) -> Error {
        let max = self.shared.budget.max().unwrap_or(usize::MAX);
        let detail = format!("the item and its table take {bytes} bytes, and the store holds at most {max}");
        Error::new(ErrorKind::Full, detail).store("memory")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(thread) = self.sweeper.get() {
            thread.unpark();
        }
    }
}

fn no_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::Full, format!("the system has no memory for {bytes} bytes")).store("memory")
}
