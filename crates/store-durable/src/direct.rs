//! One item at a time, decided at once and durable a moment later: for servers, which answer many requests of a connection together.
//!
//! A write is decided where it is asked for, under a lock of its key's shard, and put where whoever asks next sees it; then it waits for
//! the committer with all others. Whoever wrote it, or saw it, holds a ticket, and tells nobody until the ticket is settled: so nobody learns what
//! a crash could still take back at `sync=always`. Where a batch fails, its tickets fail, and what they were for is told to nobody.
//!
//! What was written last stays where it is looked for after it is settled, up to a bound ([`Recent`]): most writes are to items that were just written, and the engine
//! would search its tables for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use foldhash::quality::RandomState;
use larder_core::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use std::hash::BuildHasher;

use crate::committer::{CAS_MAX, ITEMS_END, Request};
use crate::end::End;
use crate::fault::Fault;
use crate::layout::{self, Record, Shown};
use crate::recent::Recent;
use crate::store::DurableStore;

/// Locks that keys share.
const SHARDS: usize = 1024;

/// What a write, or a look at one, waits for; 0 for nothing.
pub type Ticket = u64;

/// An item, as a server sees it.
///
/// ```
/// let item = larder_store_durable::DirectItem { value: "v".into(), flags: 0, marks: 0, cas: 1, expiry_ms: None };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectItem {
    /// The value.
    pub value: Bytes,
    /// The flags.
    pub flags: u32,
    /// Eight bits that only servers read and write.
    pub marks: u8,
    /// The cas token.
    pub cas: u64,
    /// When it expires, in ms of the store's time; `None`: never.
    pub expiry_ms: Option<u64>,
}

/// What becomes of an item.
///
/// ```
/// let next = larder_store_durable::DirectNext::Keep;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectNext {
    /// It stays as it is; nothing is written.
    Keep,
    /// It is gone.
    Remove,
    /// It is this from now on.
    Put(DirectItem),
}

/// A [`DurableStore`] whose items are read and changed one by one, by whoever answers requests in threads of its own. It has the store to itself.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// use larder_store_durable::{Direct, DirectItem, DirectNext, Options};
/// use std::task::{Context, Poll, Waker};
/// let direct = Direct::new(Options::new(folder.path()).open()?);
/// let put = |_: Option<&DirectItem>, cas| {
///     DirectNext::Put(DirectItem { value: "v".into(), flags: 0, marks: 0, cas, expiry_ms: None })
/// };
/// let ticket = direct.update(b"k", put)?;
/// let (item, seen) = direct.get(b"k")?;
/// assert_eq!(item.unwrap().value, "v");
/// assert!(seen == ticket || seen == 0, "it waits for the same, or is settled");
/// while direct.poll_settled(ticket, &mut Context::from_waker(Waker::noop()))?.is_pending() {
///     std::thread::yield_now();
/// }
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Direct {
    store: DurableStore,
    unsettled: Arc<Unsettled>,
    /// The cas token that was given out last.
    cas: AtomicU64,
    hasher: RandomState,
}

/// What was decided and is not settled, and what was settled of late.
pub(crate) struct Unsettled {
    shards: Box<[Mutex<Recent>]>,
    inbox: Mutex<Inbox>,
    /// The last ticket that is settled.
    settled: AtomicU64,
    /// The ticket of the last removal of everything.
    cleared: AtomicU64,
    waiters: Mutex<Vec<(Ticket, Waker)>>,
}

/// What waits for the committer, in the order of the tickets.
#[derive(Default)]
struct Inbox {
    writes: Vec<Write>,
    last: Ticket,
    /// The committer was told that something is here.
    is_told: bool,
}

/// A write that was decided.
pub(crate) struct Write {
    pub(crate) ticket: Ticket,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// The item under a key is this, or gone; so far tokens were given out.
    Item { hash: u64, key: Bytes, record: Option<Record>, cas: u64 },
    /// Everything is gone.
    Clear,
}

impl std::fmt::Debug for Unsettled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsettled").field("settled", &self.settled).finish_non_exhaustive()
    }
}

impl Unsettled {
    fn new() -> Unsettled {
        Unsettled {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            inbox: Mutex::default(),
            settled: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            waiters: Mutex::default(),
        }
    }

    /// By other bits than those that a shard places its items by.
    fn shard(&self, hash: u64) -> &Mutex<Recent> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// What waits, for the committer.
    pub(crate) fn take(&self) -> Vec<Write> {
        let mut inbox = self.inbox.lock();
        inbox.is_told = false;
        std::mem::take(&mut inbox.writes)
    }

    /// True once, of what waits: who is answered so tells the committer.
    pub(crate) fn is_untold(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let is_untold = !inbox.is_told && !inbox.writes.is_empty();
        inbox.is_told |= is_untold;
        is_untold
    }

    /// All that was decided up to this ticket is where all look; what is large of it is forgotten.
    pub(crate) fn settle(&self, large: &[(u64, Ticket)], last: Ticket) {
        // In this order: an item that was written after everything was removed is not forgotten while that removal seems to be under way.
        self.settled.fetch_max(last, Ordering::AcqRel);
        for (hash, ticket) in large {
            self.shard(*hash).lock().forget(*hash, *ticket);
        }
        self.wake(|ticket| ticket <= last);
    }

    /// Forgets what is settled and too much, where nobody decides who would. Whoever decides may read the disk meanwhile: he is not waited for.
    pub(crate) fn trim(&self) {
        let settled = self.settled.load(Ordering::Acquire);
        self.shards.iter().filter_map(|shard| shard.try_lock()).for_each(|mut shard| shard.trim(settled));
    }

    /// Nothing is settled any more; see [`Shared::failure`](crate::committer::Shared::failure).
    pub(crate) fn fail(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, which: impl Fn(Ticket) -> bool) {
        let due: Vec<_> = self.waiters.lock().extract_if(.., |(ticket, _)| which(*ticket)).collect();
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Direct {
    /// Takes a store.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(store: DurableStore) -> Direct {
        let unsettled = store.shared().unsettled.get_or_init(|| Arc::new(Unsettled::new())).clone();
        let cas = AtomicU64::new(store.first_cas.min(CAS_MAX));
        Direct { store, unsettled, cas, hasher: RandomState::default() }
    }

    /// The store, for what is not about one item.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// assert_eq!(direct.store().stats()?.torn_bytes, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn store(&self) -> &DurableStore {
        &self.store
    }

    /// Now, in ms of the store's time: what lives end by.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// assert!(direct.now_ms() > 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn now_ms(&self) -> u64 {
        self.store.shared().time.now_ms()
    }

    /// The living item under a key, and the ticket to wait for before it is told.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where it is damaged; [`ErrorKind::Unavailable`] where the disk does not answer.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// assert_eq!(direct.get(b"k")?, (None, 0));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn get(&self, key: &[u8]) -> Result<(Option<DirectItem>, Ticket)> {
        let (hash, shard) = self.shard(key);
        let (record, ticket) = self.look(&shard, hash, key);
        drop(shard);
        let record = match record {
            Some(record) => record,
            None => self.stored(key)?,
        };
        Ok((self.living(record), ticket))
    }

    /// Changes the item under a key in one piece: `decide` sees it, or that there is none, and the token that a new one is to have. The ticket is of the write, or of what was
    /// seen.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a value over the limit, [`ErrorKind::Full`] where the disk has no room (removals go through),
    /// [`ErrorKind::Unavailable`] after a write that failed. Nothing has changed then.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// use larder_store_durable::DirectNext;
    /// assert_eq!(direct.update(b"k", |item, _| { assert!(item.is_none()); DirectNext::Keep })?, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn update(&self, key: &[u8], decide: impl FnOnce(Option<&DirectItem>, u64) -> DirectNext) -> Result<Ticket> {
        let (hash, shard) = self.shard(key);
        let (record, seen) = self.look(&shard, hash, key);
        let record = match record {
            Some(record) => record,
            None => self.stored(key)?,
        };
        let item = self.living(record);
        let cas = self.cas.fetch_add(1, Ordering::Relaxed) + 1;
        let record = match decide(item.as_ref(), cas) {
            DirectNext::Keep => return Ok(seen),
            DirectNext::Remove if item.is_none() => return Ok(seen),
            DirectNext::Remove => None,
            // It ends before it begins.
            DirectNext::Put(next) if next.expiry_ms.is_some_and(|expiry_ms| expiry_ms <= self.now_ms()) => {
                if item.is_none() {
                    return Ok(seen);
                }
                None
            }
            DirectNext::Put(next) => Some(self.checked(key, next)?),
        };
        self.decided((hash, shard), key, record, cas)
    }

    /// Changes the item under a key whatever it is: nobody looks, but for a removal. `decide` is given the token that a new item is to have.
    ///
    /// # Errors
    /// As of [`update`](Direct::update). Nothing has changed then.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// use larder_store_durable::{DirectItem, DirectNext};
    /// let put = |cas| DirectNext::Put(DirectItem { value: "v".into(), flags: 0, marks: 0, cas, expiry_ms: None });
    /// assert!(direct.overwrite(b"k", put)? > 0);
    /// assert_eq!(direct.get(b"k")?.0.unwrap().value, "v");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn overwrite(&self, key: &[u8], decide: impl FnOnce(u64) -> DirectNext) -> Result<Ticket> {
        let shard = self.shard(key);
        let cas = self.cas.fetch_add(1, Ordering::Relaxed) + 1;
        let record = match decide(cas) {
            DirectNext::Keep => return Ok(0),
            DirectNext::Put(next) if next.expiry_ms.is_none_or(|expiry_ms| expiry_ms > self.now_ms()) => {
                self.checked(key, next)?
            }
            // It ends before it begins, or at once: nothing is written where nothing is.
            DirectNext::Put(_) | DirectNext::Remove => {
                drop(shard);
                return self.update(key, |_, _| DirectNext::Remove);
            }
        };
        self.decided(shard, key, Some(record), cas)
    }

    /// This is what an item is from now on.
    fn decided(
        &self,
        (hash, mut shard): (u64, MutexGuard<'_, Recent>),
        key: &[u8],
        record: Option<Record>,
        cas: u64,
    ) -> Result<Ticket> {
        self.may_write()?;
        if let Some(record) = &record {
            if cas > CAS_MAX {
                return Err(self.named(&Fault::no_token()));
            }
            self.store.shared().admit(record.bytes_about(key)).map_err(|fault| self.named(&fault))?;
        }
        let key = Bytes::copy_from_slice(key);
        // The shard is held until the end, so that writes of a key go to the committer in their order.
        let ticket = self.push(What::Item { hash, key: key.clone(), record: record.clone(), cas });
        shard.decide(hash, key, record, ticket, self.unsettled.settled.load(Ordering::Acquire));
        Ok(ticket)
    }

    /// Removes everything that was written before, all of it or nothing should the process be killed meanwhile. It takes one small write, however much there is; what that takes
    /// on the disk is given back in the background.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Full`] after a write that failed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// let ticket = direct.clear()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn clear(&self) -> Result<Ticket> {
        self.may_write()?;
        let mut shards: Vec<_> = self.unsettled.shards.iter().map(|shard| shard.lock()).collect();
        let ticket = self.push(What::Clear);
        self.unsettled.cleared.store(ticket, Ordering::Release);
        shards.iter_mut().for_each(|shard| shard.clear());
        Ok(ticket)
    }

    /// Whether what the ticket is for is as durable as the store promises. Who asks, and must wait, has all that was decided so far written; where nobody asks, the store's own
    /// timer does within a second.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Full`] after a write that failed: what the ticket is for may have been written or not.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// use std::task::{Context, Poll, Waker};
    /// assert_eq!(direct.poll_settled(0, &mut Context::from_waker(Waker::noop()))?, Poll::Ready(()));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn poll_settled(&self, ticket: Ticket, cx: &mut Context<'_>) -> Result<Poll<()>> {
        let is_settled = || self.unsettled.settled.load(Ordering::Acquire) >= ticket;
        if is_settled() {
            return Ok(Poll::Ready(()));
        }
        let mut waiters = self.unsettled.waiters.lock();
        // Looked at again under the lock that who settles takes after it.
        if is_settled() {
            return Ok(Poll::Ready(()));
        }
        if let Some(fault) = self.store.shared().failure() {
            return Err(self.named(&fault));
        }
        // Somebody who asks twice is woken twice; looking for him among 10,000 would cost more.
        waiters.push((ticket, cx.waker().clone()));
        drop(waiters);
        if self.unsettled.is_untold() {
            self.store.nudge(Request::Inbox);
        }
        Ok(Poll::Pending)
    }

    /// Shows up to `count` living items that are settled, in the order of their keys, from `from` on: where to go on, `None` at the end. There may be fewer of them, or none, and
    /// more behind.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where an item is damaged.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// assert_eq!(direct.walk(b"", 100, &mut |_, _| ())?, None);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn walk(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &DirectItem)) -> Result<Option<Vec<u8>>> {
        let shared = self.store.shared();
        let (moment, to) = shared.page(&layout::item_key(from), count);
        let generation = shared.generation_of(&moment).map_err(|fault| self.named(&fault))?;
        let shows = Shown { now_ms: self.now_ms(), generation };
        let (mut shown, mut last, mut bad) = (0, None, None);
        let mut tell = |engine_key: &[u8], bytes: Bytes| {
            let key = &engine_key[1..];
            match Record::decode(key, &bytes) {
                Ok(record) if !shows.has(&record) => {}
                Ok(record) => see(key, &item(record)),
                Err(fault) => bad = Some(crate::list::damaged(key, fault)),
            }
            shown += 1;
            last = Some(key.to_vec());
            shown < count && bad.is_none()
        };
        let scanned = moment.scan(&layout::item_key(from), &to, &mut tell);
        scanned.and(bad.map_or(Ok(()), Err)).map_err(|fault| self.named(&fault))?;
        let behind = last.filter(|_| shown == count).map(|mut next| {
            next.push(0);
            next
        });
        Ok(behind.or_else(|| (to != ITEMS_END).then(|| to[1..].to_vec())))
    }

    /// How many items there are, about: those that are over and not removed yet are counted.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// assert!(direct.items_about() < 10);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn items_about(&self) -> u64 {
        self.store.shared().items_about()
    }

    /// A key's hash, and its shard.
    fn shard(&self, key: &[u8]) -> (u64, MutexGuard<'_, Recent>) {
        let hash = self.hasher.hash_one(key);
        (hash, self.unsettled.shard(hash).lock())
    }

    /// What was decided of an item, where that is known here (`Some(None)`: it is gone), and what to wait for.
    fn look(&self, shard: &Recent, hash: u64, key: &[u8]) -> (Option<Option<Record>>, Ticket) {
        let decided = shard.get(hash, key);
        let settled = self.unsettled.settled.load(Ordering::Acquire);
        let cleared = self.unsettled.cleared.load(Ordering::Acquire);
        let is_clearing = cleared > settled;
        // What is not settled when a write has failed never is: the store goes on answering with what was before.
        if (decided.is_none() && !is_clearing) || self.store.shared().failure().is_some() {
            return (None, 0);
        }
        let wait = |ticket| if ticket > settled { ticket } else { 0 };
        decided.map_or((Some(None), cleared), |decided| (Some(decided.record.clone()), wait(decided.ticket)))
    }

    fn stored(&self, key: &[u8]) -> Result<Option<Record>> {
        self.store.shared().stored(key).map_err(|fault| self.named(&fault))
    }

    fn living(&self, record: Option<Record>) -> Option<DirectItem> {
        record.filter(|record| !self.store.shared().is_over(record, self.now_ms())).map(item)
    }

    fn checked(&self, key: &[u8], next: DirectItem) -> Result<Record> {
        let most = self.store.shared().item_bytes_max;
        if key.len() + next.value.len() > most {
            let detail = format!("key and value have {} bytes; the limit is {most}", key.len() + next.value.len());
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        let DirectItem { value, flags, marks, cas, expiry_ms } = next;
        let end = expiry_ms.map(|ms| End::of_life(ms, ms.saturating_sub(self.now_ms())));
        Ok(Record { marks, flags, end, cas, value, ..Record::default() })
    }

    /// Why nothing is written any more: a write or a sync has failed. `None` while all is well.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let direct = larder_store_durable::Direct::new(larder_store_durable::Options::new(folder.path()).open()?);
    /// assert!(direct.failure().is_none());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn failure(&self) -> Option<Error> {
        let shared = self.store.shared();
        shared.failure().map(|earlier| shared.refused(&earlier))
    }

    fn may_write(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    fn push(&self, what: What) -> Ticket {
        let mut inbox = self.unsettled.inbox.lock();
        inbox.last += 1;
        let ticket = inbox.last;
        inbox.writes.push(Write { ticket, what });
        ticket
    }

    fn named(&self, fault: &Fault) -> Error {
        fault.error(&self.store.shared().name)
    }
}

fn item(record: Record) -> DirectItem {
    let Record { marks, flags, end, cas, value, .. } = record;
    DirectItem { value, flags, marks, cas, expiry_ms: end.map(End::ms) }
}
