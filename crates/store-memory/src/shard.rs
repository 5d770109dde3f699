//! A shard: one table of items under one lock, and how it grows, shrinks, expires and evicts.

use std::sync::atomic::Ordering;

use hashbrown::HashTable;
use larder_core::{Cas, ClockRef};
use std::hash::{BuildHasher, Hasher};

use crate::budget::{Budget, Short};
use crate::item::{CAS_BITS, Item, NoMemory, Parts};
use crate::sync::{AtomicU64, HashState, Mutex, MutexGuard};

/// The most buckets that are looked at while a shard is locked to sweep or to evict: some 20 us.
pub(crate) const HOLD_BUCKETS_MAX: usize = 1024;
/// An earliest expiry of nothing.
pub(crate) const NEVER_MS: u64 = u64::MAX;
/// The part of a shard's items that goes when the shard has its turn to evict.
const EVICT_PARTS: usize = 64;
/// A table of fewer buckets is not worth shrinking.
const SHRINK_BUCKETS_MIN: usize = 64;

/// What all shards share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) hasher: HashState,
    pub(crate) budget: Budget,
    pub(crate) clock: ClockRef,
    /// The largest key and value together.
    pub(crate) item_bytes_max: usize,
    /// True if the store evicts when it is full.
    pub(crate) evicts: bool,
    /// True if items keep when they were last used.
    pub(crate) tracks_access: bool,
    /// The session of this store's cas tokens.
    pub(crate) session: u64,
    /// The bytes of the smallest table, which the shard of a lone item has.
    pub(crate) table_bytes_least: usize,
}

impl Shared {
    /// The hash of a key, seeded for this store: keys come from users.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The store's time in whole ms.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time for an item that keeps when it was last used.
    pub(crate) fn stamp(&self) -> Option<u32> {
        self.tracks_access.then(|| u32::try_from(self.clock.monotonic().as_secs()).unwrap_or(u32::MAX))
    }

    /// Where an item of `class_bytes` lacks room: whether it would have any if there were nothing else in the store.
    #[cold]
    fn short_of(&self, class_bytes: usize, stop: Stop) -> Stop {
        let least = class_bytes.saturating_add(self.table_bytes_least);
        match stop {
            Stop::Short(_) if self.budget.max().is_some_and(|max| least > max) => Stop::TooLarge(least),
            stop => stop,
        }
    }

    /// The token as callers see it.
    pub(crate) fn cas(&self, token: u64) -> Cas {
        Cas { token, session: self.session }
    }
}

/// Why a write did not happen. The item is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The budget lacks this many bytes.
    Short(usize),
    /// The budget is smaller than these bytes, which the item and its table take by themselves: no eviction helps.
    TooLarge(usize),
    /// The allocator lacks this many bytes.
    NoMemory(usize),
}

impl From<Short> for Stop {
    fn from(Short(bytes): Short) -> Stop {
        Stop::Short(bytes)
    }
}

impl From<NoMemory> for Stop {
    fn from(NoMemory(bytes): NoMemory) -> Stop {
        Stop::NoMemory(bytes)
    }
}

/// A shard and its lock, on cache lines of their own (two, since processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// No item of the shard expires before this. Written under the lock; read without it by whoever looks for work.
    earliest_ms: AtomicU64,
    /// The lock protects the table and its counts; it is held for one op, or [`HOLD_BUCKETS_MAX`] buckets of a sweep.
    shard: Mutex<Shard>,
}

#[derive(Debug)]
struct Shard {
    table: HashTable<Item>,
    /// How often items were moved to another table: between two moves each stays in its bucket.
    moves: u64,
    /// The heap bytes of the items and the table.
    bytes: usize,
    cas: u64,
    /// The bucket that eviction looks at next.
    hand: usize,
    /// The bucket that the sweep looks at next.
    swept: usize,
    /// The earliest expiry among the buckets swept, and what was stored since the sweep began.
    swept_earliest_ms: u64,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("key", &larder_core::text::Shown(self.key())).finish_non_exhaustive()
    }
}

impl Slot {
    pub(crate) fn new() -> Slot {
        let table = HashTable::new();
        let shard = Shard { table, moves: 0, bytes: 0, cas: 0, hand: 0, swept: 0, swept_earliest_ms: NEVER_MS };
        Slot { earliest_ms: AtomicU64::new(NEVER_MS), shard: Mutex::new(shard) }
    }

    /// No item of the shard expires before this.
    pub(crate) fn earliest_ms(&self) -> u64 {
        self.earliest_ms.load(Ordering::Relaxed)
    }

    /// Locks the shard.
    #[inline]
    pub(crate) fn lock<'a>(&'a self, shared: &'a Shared) -> Locked<'a> {
        Locked { earliest_ms: &self.earliest_ms, shard: self.shard.lock(), shared }
    }
}

/// A shard while it is locked.
pub(crate) struct Locked<'a> {
    earliest_ms: &'a AtomicU64,
    shard: MutexGuard<'a, Shard>,
    pub(crate) shared: &'a Shared,
}

/// The store's time in whole ms: read where it is asked for, and once, so that an item does not expire in the middle of what is done to it.
#[derive(Default)]
pub(crate) struct Moment(Option<u64>);

impl Moment {
    pub(crate) fn ms(&mut self, shared: &Shared) -> u64 {
        *self.0.get_or_insert_with(|| shared.now_ms())
    }
}

/// An item that is about to change, and the counts that change with it.
pub(crate) struct Change<'a> {
    pub(crate) item: &'a mut Item,
    bytes: &'a mut usize,
    shared: &'a Shared,
}

impl Change<'_> {
    /// Runs `act`, which makes the item's class one of `class_bytes`; the bytes are taken before, or nothing happens.
    pub(crate) fn resized<E>(self, class_bytes: usize, act: impl FnOnce(&mut Item) -> Result<(), E>) -> Result<(), Stop>
    where
        Stop: From<E>,
    {
        let old = self.item.class_bytes();
        charged(&self.shared.budget, self.bytes, old, class_bytes, || act(self.item))
            .map_err(|stop| self.shared.short_of(class_bytes, stop))?;
        // What is written is in use, too: a counter that nobody reads is not a cold item.
        if self.shared.evicts {
            self.item.set_referenced(true);
        }
        Ok(())
    }
}

/// Runs `act` with the budget and the count moved from `old` to `new` bytes; they are as they were if it fails.
fn charged<T, E>(
    budget: &Budget,
    bytes: &mut usize,
    old: usize,
    new: usize,
    act: impl FnOnce() -> Result<T, E>,
) -> Result<T, Stop>
where
    Stop: From<E>,
{
    let (more, less) = (new.saturating_sub(old), old.saturating_sub(new));
    budget.take(more)?;
    match act() {
        Ok(done) => {
            budget.give(less);
            *bytes = *bytes + more - less;
            Ok(done)
        }
        Err(error) => {
            budget.give(more);
            Err(error.into())
        }
    }
}

impl Locked<'_> {
    /// The number of items, expired ones that nobody has met yet included.
    pub(crate) fn len(&self) -> usize {
        self.shard.table.len()
    }

    /// The heap bytes of the items and the table.
    pub(crate) fn bytes(&self) -> usize {
        self.shard.bytes
    }

    /// The next cas token. Items never change shards, so a count a shard is unique for a key.
    ///
    /// It wraps after 2^38 - 1 tokens of one shard: 3 days of a million a second. Whoever may write draws one, also where nothing
    /// comes of it: a put that is refused, arithmetic or an append on what is missing, and each op of a server that reads by
    /// [`update`](Locked::update). Then a token that was kept all that time matches by accident if its item's latest change happens
    /// to have drawn the very one. It is never 0, which memcached's protocol takes for no token.
    pub(crate) fn next_cas(&mut self) -> u64 {
        self.shard.cas = self.shard.cas % ((1 << CAS_BITS) - 1) + 1;
        self.shard.cas
    }

    /// The item of `key`. One that has expired is removed, and not found.
    #[inline(always)]
    pub(crate) fn find(&mut self, hash: u64, key: &[u8]) -> Option<Change<'_>> {
        self.find_at(hash, key, &mut Moment::default())
    }

    /// The item of `key`, as of one moment: what looks for it again is told the same.
    #[inline(always)]
    pub(crate) fn find_at(&mut self, hash: u64, key: &[u8], moment: &mut Moment) -> Option<Change<'_>> {
        self.ask_ahead(hash);
        let at = self.shard.table.find_bucket_index(hash, |item| item.has_key(key))?;
        let expiry_ms = self.shard.table.get_bucket(at)?.expiry_ms();
        if expiry_ms.is_some_and(|expiry_ms| expiry_ms <= moment.ms(self.shared)) {
            self.remove_at(at);
            return None;
        }
        let Shard { table, bytes, .. } = &mut *self.shard;
        Some(Change { item: table.get_bucket_mut(at)?, bytes, shared: self.shared })
    }

    /// Asks memory for the bucket where the search for a hash begins, which is where most items are.
    ///
    /// The search reads the table's tags first, and computes from them which bucket to read: two waits for memory, one after the
    /// other, in a store that is larger than the caches. Which bucket it begins at follows from the hash, so that the two can be
    /// waited for together. Where the guess is wrong, or the table takes hashes otherwise, this costs a load and changes nothing.
    #[inline(always)]
    fn ask_ahead(&self, hash: u64) {
        let table = &self.shard.table;
        if let Some(item) = table.get_bucket(hash as usize & table.num_buckets().wrapping_sub(1)) {
            item.ask_ahead();
        }
    }

    /// Adds an item whose key is not there.
    pub(crate) fn insert(&mut self, hash: u64, parts: &Parts<'_>) -> Result<(), Stop> {
        let Locked { shard, shared, .. } = self;
        let class = parts.class_bytes();
        // The item's bytes come first: a table that grew into the last room would leave none for the item.
        shared.budget.take(class).map_err(|short| shared.short_of(class, short.into()))?;
        if let Err(stop) = shard.add(shared, hash, parts) {
            shared.budget.give(class);
            return Err(shared.short_of(class, stop));
        }
        shard.bytes += class;
        self.note_expiry(parts.expiry_ms);
        Ok(())
    }

    /// Removes the item of `key`, expired or not.
    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) {
        if let Some(at) = self.shard.table.find_bucket_index(hash, |item| item.has_key(key)) {
            self.remove_at(at);
            self.shrink();
        }
    }

    /// Remembers that an item expires then. To be called wherever an expiry is stored.
    pub(crate) fn note_expiry(&mut self, expiry_ms: Option<u64>) {
        let Some(expiry_ms) = expiry_ms else { return };
        self.shard.swept_earliest_ms = self.shard.swept_earliest_ms.min(expiry_ms);
        if expiry_ms < self.earliest_ms.load(Ordering::Relaxed) {
            self.earliest_ms.store(expiry_ms, Ordering::Relaxed);
        }
    }

    /// Looks at the next [`HOLD_BUCKETS_MAX`] buckets and removes what has expired: how many, and whether that was the
    /// end of the table.
    pub(crate) fn sweep(&mut self, now_ms: u64) -> (usize, bool) {
        if self.shard.swept == 0 {
            self.shard.swept_earliest_ms = NEVER_MS;
        }
        let buckets = self.shard.table.num_buckets();
        let end = buckets.min(self.shard.swept + HOLD_BUCKETS_MAX);
        let mut removed = 0;
        for at in self.shard.swept..end {
            match self.shard.table.get_bucket(at).and_then(Item::expiry_ms) {
                Some(expiry_ms) if expiry_ms <= now_ms => {
                    self.remove_at(at);
                    removed += 1;
                }
                Some(expiry_ms) => self.shard.swept_earliest_ms = self.shard.swept_earliest_ms.min(expiry_ms),
                None => {}
            }
        }
        self.shard.swept = end;
        let done = end == buckets;
        if done {
            self.earliest_ms.store(self.shard.swept_earliest_ms, Ordering::Relaxed);
            self.shard.restart_sweep();
            self.shrink();
        }
        (removed, done)
    }

    /// Removes all items, and gives the table back: how many.
    pub(crate) fn clear(&mut self) -> usize {
        let Locked { shard, shared, .. } = self;
        let removed = shard.table.len();
        shared.budget.give(shard.bytes);
        shard.bytes = 0;
        shard.table = HashTable::new();
        shard.hand = 0;
        shard.restart_sweep();
        self.earliest_ms.store(NEVER_MS, Ordering::Relaxed);
        removed
    }

    /// Shows every item of the shard, expired ones included.
    pub(crate) fn each(&self, mut see: impl FnMut(&Item)) {
        self.shard.table.iter().for_each(&mut see);
    }

    /// Shows every item, expired ones included, of [`HOLD_BUCKETS_MAX`] buckets from one on: where to go on; `None` at the end. `at`: that bucket, and how often items had moved. Where they have moved since, all
    /// are shown, at the price of the move itself.
    pub(crate) fn some(&self, at: (usize, u64), see: impl FnMut(&Item)) -> Option<(usize, u64)> {
        let Shard { table, moves, .. } = &*self.shard;
        let buckets = table.num_buckets();
        let (from, end) = match at {
            (0, _) => (0, buckets.min(HOLD_BUCKETS_MAX)),
            (from, known) if known == *moves => (from, buckets.min(from + HOLD_BUCKETS_MAX)),
            _ => (0, buckets),
        };
        (from..end).filter_map(|at| table.get_bucket(at)).for_each(see);
        (end < buckets).then_some((end, *moves))
    }

    /// The keys that begin with `prefix` and have not expired, and how many items were looked at.
    pub(crate) fn keys(&self, now_ms: u64, prefix: &[u8]) -> (Vec<Box<[u8]>>, u64) {
        let lives = |item: &&Item| item.expiry_ms().is_none_or(|expiry_ms| expiry_ms > now_ms);
        let items = self.shard.table.iter().filter(lives);
        let keys = items.map(Item::key).filter(|key| key.starts_with(prefix)).map(Box::from).collect();
        (keys, self.shard.table.len() as u64)
    }

    /// Moves the clock's hand on until a 64th of the items has gone, or [`HOLD_BUCKETS_MAX`] buckets were looked at: an item that was
    /// read since the hand last passed gets another round, others go. How many went. (Second chance: Corbató, 1968.)
    pub(crate) fn evict(&mut self) -> usize {
        let now_ms = self.shared.now_ms();
        let goal = self.len().div_ceil(EVICT_PARTS);
        let mut removed = 0;
        for _ in 0..HOLD_BUCKETS_MAX {
            if removed == goal {
                break;
            }
            let at = self.shard.hand;
            self.shard.hand = (at + 1) % self.shard.table.num_buckets();
            let Some(item) = self.shard.table.get_bucket_mut(at) else { continue };
            let expired = item.expiry_ms().is_some_and(|expiry_ms| expiry_ms <= now_ms);
            if item.is_referenced() && !expired {
                item.set_referenced(false);
            } else {
                self.remove_at(at);
                removed += 1;
            }
        }
        self.shrink();
        self.give_empty_table();
        removed
    }

    /// Gives the table back where it holds nothing. Not in [`shrink`](Self::shrink): a key that is deleted and stored again would have its table made
    /// anew each time.
    fn give_empty_table(&mut self) {
        if self.len() == 0 {
            let Locked { shard, shared, .. } = self;
            let bytes = shard.table.allocation_size();
            shared.budget.give(bytes);
            shard.bytes -= bytes;
            shard.table = HashTable::new();
            shard.hand = 0;
            shard.restart_sweep();
        }
    }

    /// Gives a table back that has become much too large for its items. What cannot be had for it does not matter.
    pub(crate) fn shrink(&mut self) {
        let Locked { shard, shared, .. } = self;
        let table = &shard.table;
        if table.num_buckets() >= SHRINK_BUCKETS_MIN && table.len() < table.capacity() / 8 {
            let capacity = table.len() * 2;
            _ = shard.rebuild(shared, capacity);
        }
    }

    /// The bytes of the items, one by one, and of the table: what `bytes` must be.
    #[cfg(test)]
    pub(crate) fn bytes_counted(&self) -> usize {
        self.shard.table.iter().map(Item::class_bytes).sum::<usize>() + self.shard.table.allocation_size()
    }

    fn remove_at(&mut self, at: usize) {
        let Locked { shard, shared, .. } = self;
        if let Ok(entry) = shard.table.get_bucket_entry(at) {
            let (item, _) = entry.remove();
            let class = item.class_bytes();
            shared.budget.give(class);
            shard.bytes -= class;
        }
    }
}

impl Shard {
    /// Adds an item whose bytes have been taken.
    fn add(&mut self, shared: &Shared, hash: u64, parts: &Parts<'_>) -> Result<(), Stop> {
        if self.table.capacity() == self.table.len() {
            self.make_slot(shared).map_err(|stop| match stop {
                Stop::Short(bytes) => Stop::Short(bytes + parts.class_bytes()),
                stop => stop,
            })?;
        }
        // There is a slot: this does not grow, and the hasher is not called.
        debug_assert!(self.table.capacity() > self.table.len());
        let item = Item::new(parts)?;
        self.table.insert_unique(hash, item, |item| shared.hash(item.key()));
        Ok(())
    }

    /// Makes room for one more item in a table that has none: twice the size, or, where a quarter of it is only the graves of
    /// removed items, the same size without them.
    ///
    /// A table that cannot grow is cleared of whatever graves it has, so that a full store can go on replacing one key by another.
    /// One that evicts does so only if there are enough to be worth the walk; else it makes the room to grow.
    fn make_slot(&mut self, shared: &Shared) -> Result<(), Stop> {
        let (len, capacity) = (self.table.len(), full_capacity(self.table.num_buckets()));
        let graves = capacity - len;
        if graves * 4 > capacity {
            return self.rebuild(shared, capacity);
        }
        let grown = self.rebuild(shared, capacity + 1);
        let worth = if shared.evicts { capacity / 16 } else { 0 };
        if grown.is_err() && graves > worth { self.rebuild(shared, capacity) } else { grown }
    }

    /// Moves the items to a table for `capacity` of them. Growth is never left to `insert`: it could not be refused there, nor
    /// charged before, and a sweep under way would miss what moves.
    fn rebuild(&mut self, shared: &Shared, capacity: usize) -> Result<(), Stop> {
        let old = self.table.allocation_size();
        // A table that would not fit is refused before it is allocated.
        let estimate = table_bytes_min(capacity).saturating_sub(old);
        if !shared.budget.fits(estimate) {
            return Err(Stop::Short(estimate));
        }
        let hash = |item: &Item| shared.hash(item.key());
        let mut table = HashTable::new();
        table.try_reserve(capacity, hash).map_err(|_| Stop::NoMemory(table_bytes_min(capacity)))?;
        charged(&shared.budget, &mut self.bytes, old, table.allocation_size(), || {
            for item in self.table.drain() {
                table.insert_unique(hash(&item), item, hash);
            }
            self.table = table;
            Ok::<_, NoMemory>(())
        })?;
        self.moves += 1;
        self.hand = 0;
        self.restart_sweep();
        Ok(())
    }

    fn restart_sweep(&mut self) {
        self.swept = 0;
        self.swept_earliest_ms = NEVER_MS;
    }
}

/// The bytes of the smallest table there is; 0 where the system has not even that.
pub(crate) fn table_bytes_least() -> usize {
    let mut table = HashTable::<Item>::new();
    // What it lacks, a write will be told that lacks it, too.
    _ = table.try_reserve(1, |_| 0);
    table.allocation_size()
}

/// How many items a table of so many buckets holds without graves.
fn full_capacity(buckets: usize) -> usize {
    if buckets < 8 { buckets.saturating_sub(1) } else { buckets / 8 * 7 }
}

/// At least the bytes of a table for so many items: a pointer and a control byte a bucket.
fn table_bytes_min(capacity: usize) -> usize {
    let buckets = (capacity.saturating_mul(8) / 7).checked_next_power_of_two().unwrap_or(usize::MAX / 16);
    buckets.saturating_mul(size_of::<Item>() + 1)
}
