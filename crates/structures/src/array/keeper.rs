//! What a handle knows of the commits, and how it adds to them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_core::observe::Subject;
use larder_core::{Cas, Ctx, Effect, Error, ErrorKind, Item, Op, PutMode, Reply, Result, StoreRef, Ttl, ambient};

use super::commits::{Commits, Fate};
use super::layout::Ordered;
use crate::append::shards::Reading;
use crate::append::{Elements, Shards};
use crate::cell::Cell;
use crate::events;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::retry::Backoff;

/// The index of the commits' key.
pub(crate) const INDEX: &str = "commits";
/// From how many bytes of commits on a change first settles older numbers in the shards.
const TIDY_BYTES: usize = 4096;
const TIDY_NUMBERS: (usize, usize) = (16, 256);
/// How many times as many numbers are remembered at the most, while that does not succeed.
const NUMBERS_MAX_TIMES: usize = 8;
/// How often one write of the commits is tried.
const WRITE_TRIES_MAX: usize = 32;
/// How often reading them is tried.
const READ_TRIES_MAX: usize = 8;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// An array's elements; with several shards they depend on the commits.
pub(crate) struct ArrayElements(pub(crate) Option<Keeper>);

impl Elements for ArrayElements {
    type State<'v> = Ordered<'v>;

    fn state<'v>(&self) -> Ordered<'v> {
        Ordered::with(self.0.as_ref().and_then(Keeper::commits))
    }

    async fn read(&self, shards: &Shards<ArrayElements>, ctx: Ctx, which: Vec<u16>) -> Result<Vec<Reading>> {
        match &self.0 {
            Some(keeper) => Ok(keeper.read_whole(shards, ctx, which).await?.0),
            None => shards.read(ctx, which).await,
        }
    }

    async fn settle(&self, ctx: Ctx, upto: u64) -> Result<()> {
        match &self.0 {
            Some(keeper) => keeper.settle(ctx, upto).await,
            None => Ok(()),
        }
    }
}

/// The commits of one array.
pub(crate) struct Keeper {
    store: StoreRef,
    cell: Cell,
    name: Name,
    what: String,
    generation: u64,
    shards: u16,
    value_bytes_max: usize,
    /// Protects what is known; held for a few loads and stores.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    commits: Option<Arc<Commits>>,
    /// The token that goes with them, if it is known.
    cas: Option<Cas>,
    /// The highest mark that was seen in each shard; marks only grow.
    marks: Vec<u64>,
    /// The last number when older ones could not be settled, since a shard had no room; 0: never.
    in_vain: u64,
}

/// How a number was fought for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Won,
    /// It went to another: the change never counts under this number.
    Beaten,
}

/// A change over several shards that wants its number.
pub(crate) struct Claim<'a> {
    pub(crate) number: u64,
    /// 0: the number is to go to nobody.
    pub(crate) id: u64,
    pub(crate) touched: &'a [u16],
    /// Of the lock it is made under.
    pub(crate) token: Option<u64>,
}

impl Keeper {
    pub(crate) fn new(store: &StoreRef, name: &Name, manifest: &Manifest) -> Result<Keeper> {
        let cell = Cell::new(manifest.data_key(name, INDEX)?);
        let value_bytes_max = store.profile().value_bytes_max(cell.key.as_bytes().len());
        Ok(Keeper {
            store: store.clone(),
            cell,
            name: name.clone(),
            what: format!("array {name}"),
            generation: manifest.generation,
            shards: manifest.shards,
            value_bytes_max,
            known: Mutex::new(Known { marks: vec![0; usize::from(manifest.shards)], ..Known::default() }),
        })
    }

    /// The op that creates the commits of a new array.
    pub(crate) fn create_op(name: &Name, manifest: &Manifest) -> Result<Op> {
        let value = Commits::new(manifest.generation, manifest.shards).encode();
        Ok(Op::put(manifest.data_key(name, INDEX)?, PutMode::Add, value, Ttl::Never))
    }

    pub(crate) fn read_op(&self) -> Op {
        self.cell.read_op()
    }

    /// The newest that this handle has seen.
    pub(crate) fn commits(&self) -> Option<Arc<Commits>> {
        self.lock().commits.clone()
    }

    /// Forgets what this handle has seen: whatever is there now contradicts nothing.
    pub(crate) fn forget(&self) {
        *self.lock() = Known { marks: vec![0; usize::from(self.shards)], ..Known::default() };
    }

    pub(crate) fn saw_mark(&self, shard: u16, mark: u64) {
        let mut known = self.lock();
        let seen = &mut known.marks[usize::from(shard)];
        *seen = mark.max(*seen);
    }

    /// Takes in the reply to a read of the commits that was sent when these were known.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], [`ErrorKind::RolledBack`], [`ErrorKind::LayoutMismatch`], and the store's.
    pub(crate) fn take_in(&self, item: Option<Item>, before: Option<&Commits>) -> Result<Arc<Commits>> {
        let Some(item) = item else {
            return Err(self.error(ErrorKind::Lost, "its commits are gone: evicted, or lost in a restart"));
        };
        let commits = Commits::decode(&item.value, self.generation, self.shards)
            .map_err(|error| error.key(&self.cell.key).store(self.store.profile().store.clone()))?;
        if let Some(why) = before.and_then(|before| commits.contradicted(before)) {
            return Err(self.error(ErrorKind::RolledBack, &why));
        }
        let commits = Arc::new(commits);
        let mut known = self.lock();
        // A reply may have been overtaken by a newer one.
        if known.commits.as_ref().is_none_or(|now| now.last() <= commits.last()) {
            known.commits = Some(commits.clone());
            known.cas = item.cas;
        }
        Ok(commits)
    }

    /// Reads the commits. **Round trips: 1.**
    pub(crate) async fn refresh(&self, ctx: Ctx) -> Result<Arc<Commits>> {
        let before = self.commits();
        let item = self.cell.read(&self.store, ctx).await?;
        self.take_in(item, before.as_deref())
    }

    /// The commits with their token, read if need be, and again where that fails in a way that passes. **Round trips: 0**, or 1.
    pub(crate) async fn current(&self, ctx: Ctx) -> Result<(Arc<Commits>, Cas)> {
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut last = None;
        for _ in 0..READ_TRIES_MAX {
            let known = {
                let known = self.lock();
                known.commits.clone().zip(known.cas)
            };
            if let Some(known) = known {
                return Ok(known);
            }
            match self.refresh(ctx).await {
                Ok(_) => {}
                Err(error) if is_passing(&error) && ctx.deadline.is_none_or(|by| ambient::now() < by) => {
                    events::retry(self.subject(), error.kind());
                    last = Some(error);
                    tokio::time::sleep(backoff.next_pause()).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| self.unsupported()))
    }

    /// Sees to it that every number up to this one is given, if need be to nobody.
    pub(crate) async fn settle(&self, ctx: Ctx, upto: u64) -> Result<()> {
        if upto == u64::MAX {
            return Err(self.error(ErrorKind::LayoutMismatch, "it holds what this release does not know"));
        }
        let commits = self.refresh(ctx).await?;
        if upto <= commits.last() {
            return Ok(());
        }
        let deadline = ctx.deadline.unwrap_or_else(|| ambient::now() + Duration::from_secs(5));
        self.claim(deadline, &Claim { number: upto, id: 0, touched: &[], token: None }).await.map(|_| ())
    }

    /// True if older numbers should be settled before another is given.
    pub(crate) fn wants_tidying(&self, commits: &Commits) -> bool {
        let numbers = self.tidy_numbers(commits);
        let is_in_vain = || commits.last() < self.lock().in_vain.saturating_add(numbers as u64 / 2);
        commits.len() >= numbers && (self.is_full(commits) || !is_in_vain())
    }

    /// Notes that a shard had no room for what it is to settle: it is tried again half as many numbers later, or once there is no other way.
    pub(crate) fn tidied_in_vain(&self, commits: &Commits) {
        self.lock().in_vain = commits.last();
    }

    /// True if so few of the numbers could be forgotten that the shards must be written anew first.
    pub(crate) fn is_behind(&self, commits: &Commits) -> bool {
        let unsettled = commits.last() - self.base(commits);
        unsettled >= self.tidy_numbers(commits) as u64 / 2
    }

    /// The shards in which not every number is settled, as far as this handle has seen.
    pub(crate) fn behind(&self, commits: &Commits) -> Vec<u16> {
        let last = commits.last();
        let known = self.lock();
        (0..self.shards).filter(|&shard| known.marks[usize::from(shard)] < last).collect()
    }

    /// True if no other number can be given before older ones are settled.
    pub(crate) fn is_full(&self, commits: &Commits) -> bool {
        let unsettled = commits.last() - self.base(commits);
        unsettled >= self.numbers_max(commits) as u64
    }

    fn numbers_max(&self, commits: &Commits) -> usize {
        let room = self.value_bytes_max.saturating_sub(64) / commits.winner_bytes();
        room.min(TIDY_NUMBERS.1.min((TIDY_BYTES / commits.winner_bytes()).max(TIDY_NUMBERS.0)) * NUMBERS_MAX_TIMES)
    }

    fn tidy_numbers(&self, commits: &Commits) -> usize {
        let numbers = (TIDY_BYTES / commits.winner_bytes()).clamp(TIDY_NUMBERS.0, TIDY_NUMBERS.1);
        numbers.min(self.numbers_max(commits) / 2).max(1)
    }

    /// Up to which number all shards are known to be settled.
    fn base(&self, commits: &Commits) -> u64 {
        let marks = self.lock().marks.iter().copied().min().unwrap_or(0);
        marks.clamp(commits.base, commits.last())
    }

    /// Gives a number to a change all of whose shards have it. **Round trips: 1**, 2 more for each time that others wrote meanwhile.
    ///
    /// # Errors
    /// With [`Effect::Unknown`] where the number may yet be its own. [`ErrorKind::Fenced`] if a later holder of the lock was here.
    pub(crate) async fn claim(&self, deadline: Instant, claim: &Claim<'_>) -> Result<Outcome> {
        let ctx = Ctx { deadline: Some(deadline) };
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let (mut doubt, mut fault): (Option<Error>, Option<Error>) = (None, None);
        for _ in 0..WRITE_TRIES_MAX {
            let (commits, cas) = match self.current(ctx).await {
                Ok(current) => current,
                Err(error) if is_passing(&error) && ambient::now() < deadline => {
                    events::retry(self.subject(), error.kind());
                    fault = Some(error.effect(Effect::NotApplied));
                    tokio::time::sleep(backoff.next_pause()).await;
                    continue;
                }
                Err(error) => return Err(settled(error, doubt.is_some())),
            };
            match commits.fate(claim.number, claim.id) {
                Fate::Won => return Ok(Outcome::Won),
                Fate::Beaten => return Ok(Outcome::Beaten),
                Fate::Forgotten => return doubt.map_or(Ok(Outcome::Beaten), Err),
                Fate::Ahead => {
                    let detail = format!("its last change is {}; {} was seen", commits.last(), claim.number - 1);
                    return Err(settled(self.error(ErrorKind::RolledBack, &detail), doubt.is_some()));
                }
                Fate::Open => self.check_open(&commits).map_err(|error| settled(error, doubt.is_some()))?,
            }
            let token = claim.token.unwrap_or(0);
            if claim.token.is_some() && token < commits.token {
                return Err(settled(self.outdated(token, commits.token), doubt.is_some()));
            }
            let next = commits.next(claim.id, claim.touched.iter().copied(), token, self.base(&commits));
            let encoded = next.encode();
            let wrote = self.cell.write(&self.store, ctx, cas, encoded.clone(), Ttl::Never).await;
            let has_landed = matches!(wrote.landed, Ok(true));
            let cause = wrote.landed.as_ref().err().map(Error::kind);
            match wrote.landed {
                Err(error) if error.is_unknown() => doubt = Some(error),
                Err(error) => fault = Some(error),
                Ok(true) => {}
                Ok(false) => events::conflict(self.subject()),
            }
            if has_landed {
                self.landed(next, &encoded, wrote.now);
                return Ok(Outcome::Won);
            }
            match wrote.now {
                Ok(item) => {
                    _ = self.take_in(item, Some(&commits)).map_err(|error| settled(error, doubt.is_some()))?;
                }
                Err(_) => self.forget_token(),
            }
            if ambient::now() >= deadline {
                break;
            }
            if let Some(cause) = cause {
                events::retry(self.subject(), cause);
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        let timeout = || self.error(ErrorKind::Timeout, "the change was not settled before its deadline");
        Err(doubt.or(fault).unwrap_or_else(timeout))
    }

    /// Fails where a loss is being accepted: no change wins a number then.
    pub(crate) fn check_open(&self, commits: &Commits) -> Result<()> {
        if !commits.is_ended() {
            return Ok(());
        }
        Err(self.error(ErrorKind::RolledBack, "a part of it was set back, and somebody is about to accept that"))
    }

    /// Writes the next commits over these, unless others have written meanwhile. **Round trips: 1**, or 2.
    ///
    /// # Errors
    /// The store's; with [`Effect::Unknown`] it may have been written, or may yet.
    pub(crate) async fn replace(&self, ctx: Ctx, over: &Commits, next: Commits) -> Result<bool> {
        let (commits, cas) = self.current(ctx).await?;
        if *commits != *over {
            return Ok(false);
        }
        let encoded = next.encode();
        let wrote = self.cell.write(&self.store, ctx, cas, encoded.clone(), Ttl::Never).await;
        self.forget_token();
        let has_landed = wrote.landed?;
        if has_landed {
            self.landed(next, &encoded, wrote.now);
        } else if let Ok(item) = wrote.now {
            self.take_in(item, Some(over))?;
        }
        Ok(has_landed)
    }

    /// Takes in what was found behind commits that landed: they count, whatever it is.
    fn landed(&self, commits: Commits, encoded: &[u8], found: Result<Option<Item>>) {
        match found {
            Ok(Some(item)) if item.value == encoded => self.know(commits, item.cas),
            Ok(item) => {
                self.know(commits.clone(), None);
                _ = self.take_in(item, Some(&commits));
            }
            Err(_) => self.know(commits, None),
        }
    }

    /// What landed, with its token if it was read back.
    fn know(&self, commits: Commits, cas: Option<Cas>) {
        let mut known = self.lock();
        if known.commits.as_ref().is_none_or(|now| now.last() <= commits.last()) {
            known.commits = Some(Arc::new(commits));
            known.cas = cas;
        } else {
            known.cas = None;
        }
    }

    fn forget_token(&self) {
        self.lock().cas = None;
    }

    /// The error for a change under a lock that others have held since.
    pub(crate) fn outdated(&self, token: u64, seen: u64) -> Error {
        outdated(&self.what, token, seen)
    }

    pub(crate) fn unsupported(&self) -> Error {
        let detail = "a change of elements in several shards needs conditional writes (cas), which this store lacks";
        self.error(ErrorKind::Unsupported, detail)
    }

    pub(crate) fn error(&self, kind: ErrorKind, why: &str) -> Error {
        let error = Error::new(kind, format!("{}: {why}", self.what));
        let error = error.key(&self.cell.key).store(self.store.profile().store.clone());
        match kind {
            ErrorKind::Lost | ErrorKind::RolledBack => events::loss(self.subject(), error),
            _ => error,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        events::subject(Kind::Array, &self.name)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a change under a lock that others have held since.
pub(crate) fn outdated(what: &str, token: u64, seen: u64) -> Error {
    let detail = format!("{what} was changed under the lock with token {seen}; {token} is older, and changes nothing");
    Error::new(ErrorKind::Fenced, detail)
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

fn settled(error: Error, is_in_doubt: bool) -> Error {
    error.effect(if is_in_doubt { Effect::Unknown } else { Effect::NotApplied })
}

/// The reply to a read of the commits.
pub(crate) fn item_of(reply: Option<Result<Reply>>) -> Result<Option<Item>> {
    Ok(reply.unwrap_or_else(|| Err(larder_core::ext::no_reply()))?.into_item())
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
