//! Reading an entry, and taking its lease.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Subject;
use larder_core::text::Shown;
use larder_core::{
    Batch, ClockRef, Ctx, Error, ErrorKind, Item, Op, Profile, Reply, Result, StoreRef, TtlSupport, ambient,
};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::judge::{Scribe, Verdict, age, judge, told};
use super::layout::{Content, HASH_XXH3_128, HEAD_BYTES_MAX, LAYOUT, Record, index_of};
use super::rebuild::{Rebuild, Term};
use super::{Cached, KEY_BYTES_MAX, Lookup, Source};
use crate::cell::Cell;
use crate::events::{self, Vain, Waiting};
use crate::ids::random_id;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::retry::Backoff;
use crate::runtime;
use crate::vigil::{Sight, Vigil};
use crate::wait::{self, Watched};

/// The first pause of those who wait for a rebuild is at most this long.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How often a delete whose outcome is unknown is sent.
const INVALIDATE_TRIES_MAX: usize = 4;
/// How many leases of unknown outcome a caller remembers. One that is forgotten is somebody else's should it land: it is waited for.
const TRIES_KEPT_MAX: usize = 16;

/// How a handle treats its entries. Nothing of it is recorded but with each entry.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) ttl: Duration,
    pub(super) stale: Duration,
    pub(super) lease: Duration,
    pub(super) wait: Duration,
    pub(super) timeout: Duration,
    pub(super) clock: ClockRef,
    /// True if a cache that is gone is made again.
    pub(super) may_create: bool,
}

/// What all clones of a handle share.
pub(super) struct Shared {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) terms: Terms,
    /// The life of the name that is worked on; `None` once it is known to be over. Held for a load or a store.
    life: Mutex<Option<Arc<Life>>>,
}

/// One life of the name.
#[derive(Debug)]
struct Life {
    manifest: Manifest,
    vigil: Arc<Vigil>,
}

/// An entry as it was read.
struct View {
    cell: Cell,
    item: Option<Item>,
    /// When it was as old as it says, at the earliest, by the monotonic clock. The time since is part of its age, too.
    as_of: Duration,
}

/// Somebody who asks for a key, and rebuilds it if it is their turn. Dropped midway, it gives back what it may have taken.
struct Bid {
    shared: Arc<Shared>,
    key: Bytes,
    /// The leases that were sent and may stand, the latest last.
    tries: Vec<Try>,
    /// Where the latest was sent to, and the runtime to give it back on: a drop may come from outside of it.
    sent_to: Option<(Cell, Option<Handle>)>,
    /// When waiting for others ends.
    wait_until: Instant,
    /// When trying to take the lease ends.
    try_until: Instant,
    backoff: Backoff,
}

/// A lease that was sent. Each has a draw of its own: one that arrives late, after an invalidation of the lease that landed in its stead, must not pass for that one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Try {
    pub(super) draw: u64,
    /// When it was sent, by the monotonic clock.
    pub(super) sent: Duration,
}

impl Shared {
    pub(super) async fn open(store: &StoreRef, name: Name, terms: Terms) -> Result<Shared> {
        let shared = Shared { store: store.clone(), name, terms, life: Mutex::new(None) };
        shared.life(shared.ctx()).await?;
        Ok(shared)
    }

    pub(super) fn ctx(&self) -> Ctx {
        Ctx::within(self.terms.timeout)
    }

    /// What it is, to the observer.
    pub(super) fn subject(&self) -> Subject<'_> {
        events::subject(Kind::Cache, &self.name)
    }

    /// The most bytes that the value of a key can have.
    pub(super) fn value_bytes_max(&self, key: &[u8]) -> usize {
        let profile = self.store.profile();
        profile.value_bytes_max(profile.key_bytes_max).saturating_sub(HEAD_BYTES_MAX + key.len())
    }

    pub(super) fn scribe<'a>(&self, key: &'a Bytes, draw: u64) -> Scribe<'a> {
        Scribe { key, draw, wall: self.terms.clock.wall(), ttl: self.store.profile().ttl }
    }

    /// What is cached. **Round trips: 1.**
    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Cached>> {
        let key = checked(key)?;
        let view = self.read(&key).await?;
        Ok(match self.verdict(&view, &key, &[])? {
            Verdict::Fresh(value) => Some(Cached { value, source: Source::Fresh }),
            Verdict::Stale(value) | Verdict::Takeable(Some(Content { value, .. })) => {
                Some(Cached { value, source: Source::Stale })
            }
            Verdict::Busy | Verdict::Mine { .. } | Verdict::Takeable(None) => None,
        })
    }

    /// What is cached, or the lease to rebuild it.
    pub(super) async fn lookup(self: &Arc<Self>, key: &[u8]) -> Result<Lookup> {
        let key = checked(key)?;
        let mut waiting = None;
        let outcome = self.seek(key, &mut waiting).await;
        match waiting {
            Some(waiting) => waiting.brought(outcome),
            None => outcome.map_err(|vain| vain.error),
        }
    }

    async fn seek<'a>(self: &'a Arc<Self>, key: Bytes, waiting: &mut Option<Waiting<'a>>) -> Result<Lookup, Vain> {
        let now = Instant::now();
        let Terms { wait, timeout, .. } = self.terms;
        let mut bid = Bid {
            shared: self.clone(),
            key,
            tries: Vec::new(),
            sent_to: None,
            wait_until: now + wait,
            try_until: now + wait.max(timeout),
            backoff: Backoff::new(PAUSE_FIRST, PAUSE_MAX),
        };
        let mut view = self.read(&bid.key).await?;
        let mut is_again = false;
        loop {
            match self.verdict(&view, &bid.key, &bid.tries)? {
                Verdict::Fresh(value) => return Ok(Lookup::Found(Cached { value, source: Source::Fresh })),
                Verdict::Stale(value) => return Ok(Lookup::Found(Cached { value, source: Source::Stale })),
                Verdict::Mine { draw, kept } => return Ok(Lookup::Rebuild(self.rebuild(bid, view, draw, kept)?)),
                Verdict::Busy => {
                    waiting.get_or_insert_with(|| Waiting::begin(self.subject(), &self.terms.clock));
                    bid.wait(&self.store, &view).await?;
                    view = self.read(&bid.key).await?;
                }
                Verdict::Takeable(kept) => {
                    if std::mem::replace(&mut is_again, true) {
                        events::conflict(self.subject());
                        bid.pause().await?;
                    }
                    view = self.take(&mut bid, view, kept).await?;
                }
            }
        }
    }

    /// The rebuild under the lease of that draw, which was read.
    fn rebuild(self: &Arc<Self>, mut bid: Bid, view: View, draw: u64, kept: Option<Content>) -> Result<Rebuild> {
        let term = self.term(&bid.key, &bid.tries, view, draw, kept)?;
        // From here on it is the rebuild that gives the lease up.
        bid.tries.clear();
        Ok(Rebuild::new(term))
    }

    fn term(
        self: &Arc<Self>,
        key: &Bytes,
        tries: &[Try],
        view: View,
        draw: u64,
        kept: Option<Content>,
    ) -> Result<Term> {
        let cas = view.item.and_then(|item| item.cas).ok_or_else(no_token)?;
        let sent = tries.iter().find(|sent| sent.draw == draw).map_or(Duration::ZERO, |sent| sent.sent);
        Ok(Term::new(self.clone(), view.cell, cas, key.clone(), Try { draw, sent }, kept, view.as_of))
    }

    /// Gives up the lease of somebody who asks no more, if one of those stands. Should it fail, the lease ends with its time.
    async fn give_back(self: Arc<Self>, cell: Cell, key: Bytes, tries: Vec<Try>) {
        let sent = self.terms.clock.monotonic();
        let Ok(item) = cell.read(&self.store, self.ctx()).await else { return };
        let view = self.view(cell, item, sent);
        if let Ok(Verdict::Mine { draw, kept }) = self.verdict(&view, &key, &tries)
            && let Ok(term) = self.term(&key, &tries, view, draw, kept)
        {
            term.free().await;
        }
    }

    /// Writes a lease where there is none; what stands there then. Its draw tells whose it is, and which of several that were tried.
    async fn take(&self, bid: &mut Bid, view: View, kept: Option<Content>) -> Result<View> {
        let sent = self.terms.clock.monotonic();
        let draw = bid.next_try(sent, &view.cell);
        // A lease does not make it live longer by what has passed since it was read.
        let kept = kept.and_then(|content| content.after(view.as_of, sent));
        let lease = self.scribe(&bid.key, draw).lease(self.terms.lease, kept);
        let (cell, bytes, ttl) = (view.cell, lease.encode(), lease.ttl());
        let wrote = match view.item {
            Some(item) => cell.write(&self.store, self.ctx(), item.cas.ok_or_else(no_token)?, bytes, ttl).await,
            None => cell.create(&self.store, self.ctx(), bytes, ttl).await,
        };
        let is_nowhere = match &wrote.landed {
            Ok(is_landed) => !is_landed,
            Err(error) => !error.is_unknown(),
        };
        if is_nowhere {
            bid.tries.pop();
        }
        match (wrote.landed, wrote.now) {
            (Err(error), _) if !error.is_unknown() => Err(error),
            (_, Ok(item)) => Ok(self.view(cell, item, sent)),
            // It may have landed: whoever reads it knows.
            (landed, Err(error)) => {
                let mut fault = landed.err().unwrap_or(error);
                while bid.pause().await.is_ok() {
                    match self.read(&bid.key).await {
                        Ok(view) => return Ok(view),
                        Err(error) => fault = error.effect(fault.known_effect()),
                    }
                }
                Err(fault)
            }
        }
    }

    /// What an entry says to somebody who tried those leases.
    fn verdict(&self, view: &View, key: &[u8], tries: &[Try]) -> Result<Verdict> {
        let Some(item) = &view.item else { return Ok(Verdict::Takeable(None)) };
        let record = Record::decode(&item.value).map_err(|error| error.key(&view.cell.key))?;
        let age = age(&record, item.ttl, &self.store.profile(), self.terms.clock.wall());
        Ok(judge(record, key, |draw| tries.iter().any(|sent| sent.draw == draw), age))
    }

    /// Removes an entry, and whatever lease there is on it; in the life of the name that is, also where others have made it anew since the last look.
    /// **Round trips: 1.**
    pub(super) async fn invalidate(&self, key: &[u8]) -> Result<()> {
        let key = checked(key)?;
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut doubt = None;
        // For all tries.
        let ctx = self.ctx();
        for attempt in 1.. {
            match self.run_in(ctx, true, &key, |cell| Op::delete(cell.key.clone())).await {
                Ok((_, Reply::Deleted | Reply::Miss)) => break,
                Ok((cell, reply)) => return Err(manifest::unexpected(&Op::delete(cell.key), &reply)),
                // A second delete does no harm: it can cost a value that was cached since, never bring one back.
                Err(error) if error.is_unknown() && attempt < INVALIDATE_TRIES_MAX && !is_over(ctx) => {
                    runtime::current("an invalidation is tried again").map_err(|_| error.clone())?;
                    events::retry(self.subject(), error.kind());
                    tokio::time::sleep(backoff.next_pause()).await;
                    doubt = Some(error);
                }
                // What an earlier try did is not known, whatever became of this one.
                Err(error) => return Err(doubt.unwrap_or(error)),
            }
        }
        Ok(())
    }

    async fn read(&self, key: &[u8]) -> Result<View> {
        let sent = self.terms.clock.monotonic();
        let (cell, reply) = self.run(key, Cell::read_op).await?;
        Ok(self.view(cell, reply.into_item(), sent))
    }

    /// What the answer to a read says that was sent then.
    fn view(&self, cell: Cell, item: Option<Item>, sent: Duration) -> View {
        // The store told its age on the way; by the wall clock it is judged here and now.
        let is_told = item.as_ref().is_some_and(|item| told(item.ttl, &self.store.profile()).is_some());
        let as_of = if is_told { sent } else { self.terms.clock.monotonic() };
        View { cell, item, as_of }
    }

    /// Runs an op on the entry of a key, in the life of the name that is.
    async fn run(&self, key: &[u8], op: impl Fn(&Cell) -> Op) -> Result<(Cell, Reply)> {
        self.run_in(self.ctx(), false, key, op).await
    }

    /// The same, with a look at the manifest also where none is due.
    async fn run_in(&self, ctx: Ctx, mut looks: bool, key: &[u8], op: impl Fn(&Cell) -> Op) -> Result<(Cell, Reply)> {
        let index = index_of(key);
        loop {
            let life = self.life(ctx).await?;
            let cell = Cell::new(life.manifest.data_key(&self.name, index)?);
            let batch = Batch::from_iter([op(&cell)]);
            // The next look at the life that is opened now is not due for a minute: this ends.
            let (mut replies, sight) = match std::mem::take(&mut looks) {
                true => {
                    let (replies, sight) = life.vigil.look(ctx, batch).await;
                    (replies, Some(sight))
                }
                false => life.vigil.watch(ctx, batch).await,
            };
            match sight {
                Some(Sight::Another | Sight::Gone { .. }) => self.end(&life),
                _ => {
                    let reply = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?;
                    return Ok((cell, reply));
                }
            }
        }
    }

    /// The life that is worked on, opened anew where the last one has ended. **Round trips: 0**, 1 to 2 to open it.
    async fn life(&self, ctx: Ctx) -> Result<Arc<Life>> {
        if let Some(life) = &*self.lock() {
            return Ok(life.clone());
        }
        let Terms { clock, may_create, .. } = &self.terms;
        let manifest = match manifest::find(&self.store, ctx, &self.name).await? {
            Some(found) => found.manifest,
            None if *may_create => {
                let new = Manifest::new(Kind::Cache, LAYOUT, 0, Bytes::from_static(&[HASH_XXH3_128]));
                manifest::create(&self.store, ctx, &self.name, new, |_| Ok(Vec::new())).await?
            }
            None => return Err(manifest::absent(&self.store, &self.name)),
        };
        check(&self.name, &manifest)?;
        let vigil = Vigil::new(&self.store, clock.clone(), &self.name, &manifest)?;
        let life = Arc::new(Life { manifest, vigil });
        *self.lock() = Some(life.clone());
        Ok(life)
    }

    fn end(&self, over: &Arc<Life>) {
        let mut life = self.lock();
        if life.as_ref().is_some_and(|life| Arc::ptr_eq(life, over)) {
            *life = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Life>>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bid {
    /// Draws for a lease that is sent now.
    fn next_try(&mut self, now: Duration, cell: &Cell) -> u64 {
        self.sent_to = Some((cell.clone(), Handle::try_current().ok()));
        if self.tries.len() >= TRIES_KEPT_MAX {
            self.tries.remove(0);
        }
        let draw = random_id();
        self.tries.push(Try { draw, sent: now });
        draw
    }

    /// Waits for a rebuild of somebody else's.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] where the time for that is over.
    async fn wait(&mut self, store: &StoreRef, view: &View) -> Result<(), Vain> {
        let left = self.wait_until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.over("waited for somebody else's rebuild"));
        }
        runtime::current("waiting for a rebuild takes a timer")?;
        let watched = Watched::new(&view.cell.read_op(), view.item.as_ref().and_then(|item| item.cas));
        // The end of a dead rebuilder's lease is no change: it is found by a look.
        wait::changed(store, [watched], self.backoff.next_pause(), left.min(PAUSE_MAX)).await;
        Ok(())
    }

    fn over(&self, what: &str) -> Vain {
        Vain::busy(Error::new(ErrorKind::Timeout, format!("{what} of {} until the time was over", Shown(&self.key))))
    }

    /// Pauses for a moment before the lease is tried for again.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] where the time for that is over.
    async fn pause(&mut self) -> Result<(), Vain> {
        let now = Instant::now();
        if now >= self.try_until {
            return Err(self.over("tried to take the lease"));
        }
        runtime::current("a pause before the lease is tried for again takes a timer")?;
        tokio::time::sleep_until(self.try_until.min(now + self.backoff.next_pause())).await;
        Ok(())
    }
}

impl Drop for Bid {
    fn drop(&mut self) {
        if self.tries.is_empty() {
            return;
        }
        let Some((cell, runtime)) = self.sent_to.take() else { return };
        let Some(runtime) = runtime.or_else(|| Handle::try_current().ok()) else { return };
        let (key, tries) = (std::mem::take(&mut self.key), std::mem::take(&mut self.tries));
        runtime.spawn(self.shared.clone().give_back(cell, key, tries));
    }
}

/// Refuses a store that cannot carry a cache, before anything is written.
///
/// # Errors
/// [`ErrorKind::Unsupported`].
pub(super) fn check_store(profile: &Profile) -> Result<()> {
    let lacks = |what: &str| {
        let detail = format!("a cache needs a store with {what}");
        Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()))
    };
    if !profile.cas {
        return lacks("conditional writes (cas)");
    }
    if profile.ttl == TtlSupport::None {
        return lacks("items that expire");
    }
    if profile.value_bytes_max(profile.key_bytes_max) < 2 * (HEAD_BYTES_MAX + KEY_BYTES_MAX) {
        return lacks(&format!("values of {} bytes at least", 2 * (HEAD_BYTES_MAX + KEY_BYTES_MAX)));
    }
    Ok(())
}

pub(super) fn checked(key: &[u8]) -> Result<Bytes> {
    if key.len() > KEY_BYTES_MAX {
        let detail = format!("a cache's key has {} bytes; the limit is {KEY_BYTES_MAX}: {}", key.len(), Shown(key));
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    Ok(Bytes::copy_from_slice(key))
}

/// Fails unless the manifest is of a cache that this release reads.
pub(super) fn check(name: &Name, manifest: &Manifest) -> Result<()> {
    manifest.expect(name, Kind::Cache, LAYOUT)?;
    if manifest.params[..] != [HASH_XXH3_128] || manifest.copies != 1 || manifest.shards != 0 {
        let detail = format!("{name} places or copies its entries in a way this release does not know");
        return Err(Error::new(ErrorKind::LayoutMismatch, detail));
    }
    Ok(())
}

fn no_token() -> Error {
    Error::new(ErrorKind::Protocol, "the store read an item without its token")
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// True once the time of a call is over.
fn is_over(ctx: Ctx) -> bool {
    ctx.deadline.is_some_and(|deadline| ambient::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use larder_core::{Effect, ManualClock, Run, Store, SystemClock};
    use larder_layers::testing::{Fault, Faulty};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::cache::Cache;
    use crate::events::tests::{listen, told};
    use crate::renew::Leased;

    /// So long no machine stands still.
    const LONG: Duration = Duration::from_secs(60);

    fn options() -> crate::CacheOptions {
        Cache::options().ttl(LONG).lease(LONG).wait(Duration::from_millis(50)).timeout(LONG)
    }

    /// A cache over a store that breaks as the test says, and that store.
    async fn over_faults(name: &str) -> (Faulty, Cache) {
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        let cache = options().open_or_create(&faulty.shared(), name).await.unwrap();
        (faulty, cache)
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_anothers_rebuild_is_told_as_busy_and_one_that_an_error_ends_as_failed() {
        listen();
        let (faulty, cache) = over_faults("awaited").await;
        let Lookup::Rebuild(rebuild) = cache.lookup("k").await.unwrap() else { panic!("nothing was there") };
        assert_eq!(cache.lookup("k").await.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(told("awaited"), ["waited: busy"]);
        faulty.fail_from(2, Fault::NotSent);
        assert_eq!(cache.lookup("k").await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(told("awaited"), ["waited: busy", "waited: failed"]);
        faulty.heal();
        rebuild.give_up().await;
    }

    /// Else a caller that was told nothing was done would find the lease of its own in the way.
    #[tokio::test]
    async fn a_lease_that_was_not_sent_is_told_and_not_tried_again() {
        let (faulty, cache) = over_faults("unsent").await;
        // The entry is looked at first.
        faulty.fail_nth(2, Fault::NotSent);
        let error = cache.lookup("k").await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert!(matches!(cache.lookup("k").await.unwrap(), Lookup::Rebuild(_)), "nobody has it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_in_doubt_is_sent_four_times_in_all() {
        let (faulty, cache) = over_faults("deleted").await;
        faulty.fail_always(Fault::LostReply);
        assert!(cache.invalidate("k").await.unwrap_err().is_unknown());
        assert_eq!(faulty.injected(), 4);
    }

    /// Terms of a cache in which nothing ends.
    fn long(clock: ClockRef) -> Terms {
        Terms { ttl: LONG, stale: LONG, lease: LONG, wait: LONG, timeout: LONG, clock, may_create: true }
    }

    #[tokio::test]
    async fn a_term_is_as_old_as_the_try_that_it_is_of() {
        let clock = Arc::new(ManualClock::at(LONG));
        let store: StoreRef = Arc::new(MemoryStore::new());
        let shared = Arc::new(Shared::open(&store, Name::new("tries").unwrap(), long(clock.clone())).await.unwrap());
        let Lookup::Rebuild(rebuild) = shared.lookup(b"k").await.unwrap() else { panic!("nothing was there") };
        let [first, second] = [1, 5].map(|s| Try { draw: s, sent: Duration::from_secs(s) });
        clock.advance(Duration::from_secs(9));
        for (draw, age) in [(1, 8), (5, 4)] {
            let view = shared.read(b"k").await.unwrap();
            let term = shared.term(&Bytes::from_static(b"k"), &[first, second], view, draw, None).unwrap();
            assert_eq!(term.age(), Duration::from_secs(age));
        }
        rebuild.give_up().await;
    }

    /// Every batch but the first takes effect, and its reply is lost; so are the reads behind it. Fails where too many are sent.
    #[derive(Debug)]
    struct Mute(StoreRef, AtomicUsize);

    impl Store for Mute {
        fn profile(&self) -> Arc<Profile> {
            self.0.profile()
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            let before = self.1.fetch_add(1, Ordering::SeqCst);
            assert!(before < 1_000, "without a pause");
            if before == 0 {
                return self.0.run(ctx, batch);
            }
            let lost = |op: &Op| {
                let effect = if op.is_read() { Effect::NotApplied } else { Effect::Unknown };
                Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(effect))
            };
            Run::Ready(batch.iter().map(lost).collect())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_in_doubt_is_looked_for_with_pauses_until_the_time_is_over() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        options().open_or_create(&store, "mute").await.unwrap();
        // Opening is one batch.
        let mute = Arc::new(Mute(store, AtomicUsize::new(0)));
        let shared: StoreRef = mute.clone();
        let cache = options().wait(LONG).open(&shared, "mute").await.unwrap();
        mute.1.store(0, Ordering::SeqCst);
        let began = Instant::now();
        let error = cache.lookup("k").await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
        assert_eq!(began.elapsed().as_secs(), LONG.as_secs());
    }

    #[test]
    fn a_store_that_just_carries_a_cache_is_taken_and_one_that_lacks_anything_is_not() {
        let bytes = 2 * (HEAD_BYTES_MAX + KEY_BYTES_MAX);
        let least = Profile { ttl: TtlSupport::Millis, ..Profile::unlimited("least") };
        let least = Profile { cas: true, item_bytes_max: bytes + least.key_bytes_max, item_overhead_bytes: 0, ..least };
        assert_eq!(least.value_bytes_max(least.key_bytes_max), bytes);
        check_store(&least).unwrap();
        let smaller = Profile { item_bytes_max: least.item_bytes_max - 1, ..least.clone() };
        let lasting = Profile { ttl: TtlSupport::None, ..least.clone() };
        for lacks in [smaller, lasting, Profile { cas: false, ..least }] {
            assert_eq!(check_store(&lacks).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn a_call_is_over_at_its_deadline_and_one_without_never() {
        assert!(is_over(Ctx { deadline: Some(ambient::now()) }));
        assert!(!is_over(Ctx { deadline: Some(ambient::now() + LONG) }) && !is_over(Ctx::default()));
    }

    #[tokio::test]
    async fn an_invalidation_has_no_second_try_behind_its_deadline() {
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        let mut shared =
            Shared::open(&faulty.shared(), Name::new("late").unwrap(), long(SystemClock::shared())).await.unwrap();
        shared.terms.timeout = Duration::ZERO;
        faulty.fail_always(Fault::LostReply);
        assert!(shared.invalidate(b"k").await.unwrap_err().is_unknown());
        assert_eq!(faulty.injected(), 1);
    }
}
