//! The store: opening, reading, and handing writes to the committer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_core::{
    Batch, Ctx, Durability, Effect, Error, ErrorKind, Eviction, Op, Profile, Ranges, Replies, Reply, Result, Run,
    Store, TtlSupport, Verb,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::committer::{Committer, QUEUE_REQUESTS_MAX, Request, Shared, SharedParts};
use crate::engine::Engine;
use crate::fault::{Fault, Harm};
use crate::journal::{self, Found};
use crate::layout::Commit;
use crate::moving::Moving;
use crate::newest::Newest;
use crate::notes::Noters;
use crate::ops::{self, TTL_MAX};
use crate::options::{Options, Sync};
use crate::place::{self, Identity, Noted, Place};
use crate::queue::{Entrance, queue};
use crate::room::Room;
use crate::tables;
use crate::time::Timekeeper;
use crate::timer::Timer;
use crate::versions;
use crate::witness::Witness;

/// How long one who may not wait in line sleeps between two looks at a full queue.
const FULL_WAIT: Duration = Duration::from_millis(1);
/// How long a store that failed is waited for when it is closed.
const FAILED_WAIT: Duration = Duration::from_secs(5);
/// Requests that carry fewer bytes are counted by the queue alone.
const LARGE_BYTES_MIN: usize = 64 << 10;
/// Kilobytes of large requests that may wait for the committer.
const QUEUE_KB_MAX: usize = 256 << 10;

/// A store in a folder, for one process at a time. See the crate's page for what it promises.
///
/// It is closed when it is dropped: that waits until all is on disk, some ms.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path();
/// use larder_core::{Ctx, Key, Op, PutMode, StoreExt, Ttl};
/// use larder_store_durable::Options;
/// let key = Key::new("greeting")?;
/// let store = Options::new(path).open()?;
/// store.run_one(Ctx::default(), Op::put(key.clone(), PutMode::Set, "hello", Ttl::Never)).await?;
/// drop(store);
/// let store = Options::new(path).open()?;
/// assert_eq!(store.get(key).await?.map(|item| item.value), Some("hello".into()));
/// # Ok(())
/// # }
/// ```
pub struct DurableStore {
    // In this order: the threads are ended, then the engine is closed, then the folder is given back.
    timer: Timer,
    notes: Noters,
    queue: Entrance<Request>,
    committer: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    large: Arc<Semaphore>,
    profile: Arc<Profile>,
    pub(crate) identity: Identity,
    /// No cas token up to here was ever given out.
    pub(crate) first_cas: u64,
    torn_bytes: u64,
    _place: Arc<Place>,
}

/// What a store says of itself, by [`DurableStore::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The number of the batch that was written last; batches count from 1.
    pub sequence: u64,
    /// The last one that is known to be on disk.
    pub synced: u64,
    /// Bytes that the store's files take; a journal that is not full counts whole.
    pub disk_bytes: u64,
    /// Bytes of a write that a crash had cut short, cut off when the store was opened; or of damage in what was not known to be on disk, with what came behind it.
    pub torn_bytes: u64,
}

impl DurableStore {
    pub(crate) fn open(options: &Options) -> Result<DurableStore> {
        let name = format!("file:{}", options.folder.display());
        let witness = options.witness.clone().map(Witness::new);
        if !options.create && place::is_empty(&options.folder)? {
            // Before the folder is made.
            return Err(missing(options, witness.as_ref()).store(name));
        }
        let mut place = Place::lock(&options.folder, &options.patience)?;
        let opened = open_engine(&place, &name, options, witness.as_ref())?;
        let Opened { engine, identity, last, torn_bytes } = opened;
        place.name_lock(identity);
        let place = Arc::new(place);
        let generations = engine.generations().map_err(|fault| fault.error(&name))?;
        let parts = SharedParts {
            name: name.clone(),
            time: Timekeeper::new(options.clock.clone(), last.time_ms),
            sync: options.sync,
            // Tokens never repeat in an incarnation: one that was read before a restart is as good as any.
            session: identity.incarnation,
            item_bytes_max: options.item_bytes_max(),
            room: Room::new(options.folder.clone(), options.reserve_bytes),
            generations,
        };
        let shared = Arc::new(Shared::new(engine, parts, &last));
        let (queue, requests) = queue(QUEUE_REQUESTS_MAX);
        let journal = Newest::find(place.engine(), |journal| shared.engine.follow(journal));
        let journal = journal.map_err(|fault| fault.error(&name))?;
        let last = Commit { store: identity.incarnation, ..last };
        let rounds = Moving::find(&shared.engine).map_err(|fault| fault.error(&name))?;
        let moving = Moving::resume(&shared, &rounds);
        drop(rounds);
        let committer = Committer::new(shared.clone(), requests, last, generations, journal, moving);
        let ending = Ending(shared.clone());
        let work = move || {
            let _ending = ending;
            committer.run();
        };
        let spawned = std::thread::Builder::new().name("larder-committer".to_owned()).spawn(work);
        let threads =
            |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("no thread: {error}")).store(&name);
        let committer = spawned.map_err(threads)?;
        let (notes, noted) = Noters::start(shared.clone(), place.clone(), witness, identity).map_err(threads)?;
        noted?;
        let timer = Timer::start(shared.clone(), queue.queue()).map_err(threads)?;
        Ok(DurableStore {
            timer,
            notes,
            queue,
            committer: Some(committer),
            large: Arc::new(Semaphore::new(QUEUE_KB_MAX)),
            profile: Arc::new(profile(&name, options)),
            shared,
            identity,
            first_cas: last.cas_limit,
            torn_bytes,
            _place: place,
        })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What the store says of itself.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where the disk does not tell.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = larder_store_durable::Options::new(folder.path()).open()?;
    /// assert_eq!(store.stats()?.torn_bytes, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn stats(&self) -> Result<Stats> {
        Ok(Stats {
            sequence: self.shared.written.load(Ordering::Acquire),
            synced: self.shared.synced.load(Ordering::Acquire),
            disk_bytes: self.shared.engine.disk_bytes().map_err(|fault| fault.error(&self.shared.name))?,
            torn_bytes: self.torn_bytes,
        })
    }

    /// Bytes that were cut off when the store was opened: see [`Stats::torn_bytes`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// assert_eq!(larder_store_durable::Options::new(folder.path()).open()?.torn_bytes(), 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Drawn when the store was made, and anew by each restore: two stores with one incarnation hold the same data, or one is a copy of the other.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// use larder_store_durable::Options;
    /// let first = Options::new(folder.path()).open()?.incarnation();
    /// assert_eq!(Options::new(folder.path()).open()?.incarnation(), first);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn incarnation(&self) -> u64 {
        self.identity.incarnation
    }

    /// Has all on disk that was acknowledged so far.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Full`] where the disk refuses; nothing is written from then on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// use larder_store_durable::{Options, Sync};
    /// let store = Options::new(folder.path()).sync(Sync::Never).open()?;
    /// store.sync().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sync(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Sync { reply }).await?;
        answer.await.map_err(|_| self.gone(true))?
    }

    /// Removes items that have expired: how many. The store does so without being asked, every second; this is for whoever turns the clock by hand, or
    /// cannot wait.
    ///
    /// An item is a miss to the millisecond. What it takes on the disk is given back up to a 64th of its life later, here too, where that life was of 64 s or more: so a life that is renewed all the time
    /// is noted 129 times at the most. Until then [`check`](DurableStore::check) and the number of items count it.
    ///
    /// # Errors
    /// Those of a write.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = larder_store_durable::Options::new(folder.path()).open()?;
    /// assert_eq!(store.reclaim_expired().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reclaim_expired(&self) -> Result<u64> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Reclaim { reply: Some(reply) }).await?;
        answer.await.map_err(|_| self.gone(true))?
    }

    /// Writes what is in memory to tables, and waits: the engine does so by itself as it fills. For measuring, and before a folder is copied.
    ///
    /// # Errors
    /// Those of a write.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// larder_store_durable::Options::new(folder.path()).open()?.settle()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn settle(&self) -> Result<()> {
        let (reply, moved) = std::sync::mpsc::channel();
        let mut request = Some(Request::Move { reply: Some(reply) });
        while let Some(waiting) = request.take() {
            request = self.queue.try_push(waiting);
            if request.is_some() {
                std::thread::sleep(FULL_WAIT);
            }
        }
        let moved = moved.recv().map_err(|_| self.gone(true))?;
        moved.and_then(|()| self.shared.engine.settle()).map_err(|fault| fault.error(&self.shared.name))
    }

    /// Has the committer look around. One that has much to do does so by itself.
    pub(crate) fn nudge(&self, request: Request) {
        _ = self.queue.try_send(request);
    }

    /// Hands the committer a request.
    pub(crate) async fn ask(&self, request: Request) -> Result<()> {
        if self.queue.send(request).await { Ok(()) } else { Err(self.gone(false)) }
    }

    /// The error of a request that the committer did not answer, or cannot take.
    pub(crate) fn gone(&self, was_sent: bool) -> Error {
        let effect = if was_sent { Effect::Unknown } else { Effect::NotApplied };
        let detail = "the store's committer has ended; open the store anew";
        Error::new(ErrorKind::Unavailable, detail).effect(effect).store(&self.shared.name)
    }

    /// A batch that only reads.
    fn read_all(&self, batch: &Batch) -> Replies {
        let rules = self.shared.rules();
        let now_ms = u64::try_from(rules.now.as_millis()).unwrap_or(u64::MAX);
        let read = |op: &Op| {
            let record = self.shared.read(op.key.as_bytes(), now_ms);
            let record = record.map_err(|fault| fault.error(&self.shared.name).op(op))?;
            Ok(ops::apply(op, record.as_ref(), &rules)?.0)
        };
        batch.iter().map(read).collect()
    }

    async fn write_all(&self, batch: Batch, deadline: Option<Instant>) -> Replies {
        // Kept for the errors.
        let batch = Arc::new(batch);
        let failed = |error: &Error| -> Replies {
            let one = |op: &Op| {
                let effect = if op.is_read() { Effect::NotApplied } else { error.known_effect() };
                Err::<Reply, _>(error.clone().effect(effect).op(op))
            };
            batch.iter().map(one).collect()
        };
        let room = match self.room(&batch).await {
            Ok(room) => room,
            Err(error) => return failed(&error),
        };
        let (reply, answer) = oneshot::channel();
        if let Err(error) = self.ask(Request::Run { batch: batch.clone(), deadline, reply, _room: room }).await {
            return failed(&error);
        }
        answer.await.unwrap_or_else(|_| failed(&self.gone(true)))
    }

    /// Waits until there is room in the queue for a large request.
    async fn room(&self, batch: &Batch) -> Result<Option<OwnedSemaphorePermit>> {
        let bytes: usize = batch.iter().map(value_bytes).sum();
        if bytes < LARGE_BYTES_MIN {
            return Ok(None);
        }
        let kb = (bytes >> 10).min(QUEUE_KB_MAX);
        let permits = u32::try_from(kb).unwrap_or(u32::MAX);
        self.large.clone().acquire_many_owned(permits).await.map(Some).map_err(|_| self.gone(false))
    }
}

fn value_bytes(op: &Op) -> usize {
    match &op.verb {
        Verb::Put { value, .. } | Verb::PutRange { value, .. } => value.len(),
        _ => 0,
    }
}

impl Store for DurableStore {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    /// A batch that only reads is answered at once; ops on one key of a batch with a write in it are run in their order by the committer. A deadline is looked at when
    /// the committer takes the batch up: it is either refused then, or ends.
    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if batch.iter().all(Op::is_read) {
            return Run::Ready(self.read_all(&batch));
        }
        Run::pending(self.write_all(batch, ctx.deadline))
    }
}

impl Drop for DurableStore {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(committer) = self.committer.take() {
            wait_for(committer, &self.shared);
        }
        self.timer.stop();
        let tells = self.shared.has_written.load(Ordering::Acquire) && self.shared.sync_now().is_ok();
        // Only now: a note may hang.
        self.notes.stop(tells);
    }
}

impl fmt::Debug for DurableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableStore").field("store", &self.shared.name).finish_non_exhaustive()
    }
}

/// Tells a committer that ends by a panic: whoever waits for it would wait for ever.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let detail = "the thread that writes has ended in a panic".to_owned();
            self.0.fail(&Fault { harm: Harm::Unavailable, detail });
        }
    }
}

/// Waits until the committer has ended. One that waits for an engine that cannot write any more is left behind, with the engine and its lock on the folder, until the process ends.
fn wait_for(committer: JoinHandle<()>, shared: &Shared) {
    const PAUSE_MAX: Duration = Duration::from_millis(5);
    let (mut pause, mut failed) = (Duration::from_micros(20), None);
    while !committer.is_finished() {
        if shared.failure().is_some() && failed.get_or_insert_with(Instant::now).elapsed() > FAILED_WAIT {
            return;
        }
        std::thread::sleep(pause);
        pause = PAUSE_MAX.min(pause * 2);
    }
    _ = committer.join();
}

/// An engine that was found as it was left.
struct Opened {
    engine: Engine,
    identity: Identity,
    last: Commit,
    torn_bytes: u64,
}

fn open_engine(place: &Place, name: &str, options: &Options, witness: Option<&Witness>) -> Result<Opened> {
    let named = |error: Error| error.store(name);
    match place.identity().map_err(named)? {
        Some((identity, layout)) => {
            let opened = reopen(place, identity, options, witness).map_err(named)?;
            witness.map_or(Ok(()), |witness| witness.agrees(identity, opened.last.sequence)).map_err(named)?;
            // Before anything is written that the older layout does not have, and only behind all that may refuse the store.
            place.renew(identity, layout).map_err(named)?;
            Ok(opened)
        }
        None if !options.create => Err(named(missing(options, witness))),
        None => {
            witness.map_or(Ok(()), Witness::knows_nothing).map_err(named)?;
            create(place, name, options)
        }
    }
}

/// Why a store that is not to be made is not opened: it is not there, or its witness knows that it was.
fn missing(options: &Options, witness: Option<&Witness>) -> Error {
    let lost = witness.map_or(Ok(()), Witness::knows_nothing).err();
    lost.unwrap_or_else(|| place::no_store(&options.folder))
}

fn create(place: &Place, name: &str, options: &Options) -> Result<Opened> {
    let identity = Identity { store: random()?, incarnation: random()?, restores: 0 };
    place.begin(identity, false)?;
    let named = |fault: Fault| fault.error(name);
    let engine = Engine::open(&place.engine(), true, options.cache_bytes).map_err(named)?;
    let time_ms = u64::try_from(options.clock.wall().as_millis()).unwrap_or(0);
    let first = Commit { sequence: 1, store: identity.incarnation, time_ms, ..Commit::default() };
    let last = engine.commit(engine.entries(), first, true).map_err(named)?;
    place.finish(identity)?;
    Ok(Opened { engine, identity, last, torn_bytes: 0 })
}

/// Opens an engine, and only one that holds all that it is known to have held.
fn reopen(place: &Place, identity: Identity, options: &Options, witness: Option<&Witness>) -> Result<Opened> {
    let folder = place.engine();
    let plain = |fault: Fault| fault.error("").clone();
    let corrupt = |detail: String| Err(Error::new(ErrorKind::Corrupt, detail));
    let noted = place.noted().filter(|noted| noted.identity == identity);
    let seen = look_over(place, identity, noted)?;
    let opened = Engine::open(&folder, false, options.cache_bytes);
    let engine = opened.map_err(|fault| plain(tables::named_in(&folder, fault)))?;
    let Some(last) = engine.last_commit().map_err(plain)? else {
        return corrupt(no_commit(&folder));
    };
    if let Some(noted) = noted.filter(|noted| noted.sequence > last.sequence) {
        return corrupt(shorter(last.sequence, noted.sequence, &folder));
    }
    if let Some((commit, number)) = seen.last.filter(|(commit, _)| *commit != last) {
        // The engine writes its memtables to tables in their order, so tables that go further than the journal hold all that is in it. What they know to have been on disk, the journal has, but
        // for what a sync that failed has taken.
        let is_ahead = last.sequence > commit.sequence && last.synced <= commit.sequence && last.store == commit.store;
        let is_whole = is_ahead && seen.lacks_no_file();
        if !is_whole || engine.commit_in_tables(number + 1).map_err(plain)?.is_some() {
            let (journal, tables) = (commit.sequence, last.sequence);
            return corrupt(format!("the journal ends with batch {journal}, the tables with {tables}"));
        }
        witness.map_or(Ok(()), |witness| witness.agrees(identity, last.sequence))?;
        drop(engine);
        journal::begin_anew(&folder, seen.newest).map_err(plain)?;
        return Ok(Opened { torn_bytes: seen.torn_bytes, ..reopen(place, identity, options, witness)? });
    }
    begins_where_tables_end(&seen, |number| engine.commit_in_tables(number))?;
    Ok(Opened { engine, identity, last, torn_bytes: seen.torn_bytes })
}

/// Fails where batches are missing between the tables, as they are without the journal, and the journal's first one.
fn begins_where_tables_end(
    seen: &Found,
    in_tables: impl FnOnce(u64) -> Result<Option<Option<Commit>>, Fault>,
) -> Result<()> {
    let Some((first, number)) = seen.first else { return Ok(()) };
    let in_tables = in_tables(number).map_err(|fault| fault.error("").clone())?;
    let before = in_tables.map(|commit| commit.map_or(0, |commit| commit.sequence));
    match before.filter(|before| before + 1 < first.sequence) {
        Some(before) => {
            let gap = format!("the tables end with batch {before}, and the journal begins with {}", first.sequence);
            Err(Error::new(ErrorKind::Corrupt, format!("{gap}: part of the journal is gone")))
        }
        None => Ok(()),
    }
}

/// Looks at the engine's files before it opens them, and mends the journal's end where a crash cut it short.
fn look_over(place: &Place, identity: Identity, noted: Option<Noted>) -> Result<Found> {
    place.look_over_engine()?;
    // Until the engine takes it: whoever has it open writes what is looked at.
    let _engine = place.lock_engine()?;
    let folder = place.engine();
    let plain = |fault: Fault| fault.error("").clone();
    let corrupt = |detail: String| Err(Error::new(ErrorKind::Corrupt, detail));
    let seen = journal::verify(&folder, identity.incarnation, false, 0).map_err(plain)?;
    if let Some(noted) = noted.filter(|noted| noted.journal > seen.newest) {
        return corrupt(format!("the journal {}.jnl is gone: part of the store was deleted", noted.journal));
    }
    if let (Some((last, _)), Some(noted)) = (seen.last, noted)
        && last.sequence < noted.sequence
    {
        return corrupt(shorter(last.sequence, noted.sequence, &folder));
    }
    let strange = [seen.first, seen.last].into_iter().flatten().any(|(commit, _)| commit.store != identity.incarnation);
    if strange {
        return corrupt(format!("the journal in {} is another store's", folder.display()));
    }
    versions::verify(&folder).map_err(plain)?;
    if seen.last.is_none() {
        // All that there is must be in the tables, or what the journal's end is cut off for is all of it.
        let in_tables = Engine::commit_in_closed_tables(&folder, u64::MAX);
        let in_tables = in_tables.map_err(|fault| plain(tables::named_in(&folder, fault)))?.flatten();
        let Some(last) = in_tables else { return corrupt(no_commit(&folder)) };
        if let Some(noted) = noted.filter(|noted| noted.sequence > last.sequence) {
            return corrupt(shorter(last.sequence, noted.sequence, &folder));
        }
    }
    if journal::files(&folder).map_err(plain)?.len() > 1 {
        // The engine writes all but the newest to tables as it opens them, and then nobody sees any more what was missing.
        let in_tables = |number| Engine::commit_in_closed_tables(&folder, number);
        begins_where_tables_end(&seen, |number| in_tables(number).map_err(|fault| tables::named_in(&folder, fault)))?;
    }
    let on_disk = noted.map_or(0, |noted| noted.sequence);
    journal::verify(&folder, identity.incarnation, true, on_disk).map_err(plain)?;
    Ok(seen)
}

fn no_commit(folder: &Path) -> String {
    format!("the engine in {} holds no commit record", folder.display())
}

fn shorter(sequence: u64, noted: u64, folder: &Path) -> String {
    format!("{} ends with batch {sequence}, but {noted} was on disk: its end was damaged or cut off", folder.display())
}

pub(crate) fn profile(name: &str, options: &Options) -> Profile {
    Profile {
        item_bytes_max: options.item_bytes_max(),
        ttl: TtlSupport::Millis,
        ttl_max: TTL_MAX,
        durability: match options.sync {
            Sync::Always => Durability::Disk,
            Sync::Every(_) | Sync::Never => Durability::Recent,
        },
        eviction: Eviction::Never,
        ranges: Ranges::Native,
        ..Profile::unlimited(name)
    }
}

pub(crate) fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| Error::new(ErrorKind::Unavailable, format!("no random numbers: {error}")))
}
