//! What became of numbered writes, and what each handle told of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder::{Error, ErrorKind, Result, StoreRef};

use crate::subjects::{Subject, Tells, There, number};
use crate::usable;
use crate::windows::{Span, Touching, Windows};

/// A write whose outcome is unknown may be done so long after that was told.
pub(crate) const LATE: Duration = Duration::from_secs(10);

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack)
}

/// Only what a lost node can bring may be told.
pub(crate) fn judge(error: &Error) {
    let may_be = [
        ErrorKind::Lost,
        ErrorKind::RolledBack,
        ErrorKind::Absent,
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
        ErrorKind::Conflict,
        ErrorKind::Fenced,
    ];
    assert!(may_be.contains(&error.kind()), "{error}");
}

/// What was told of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Done,
    Unknown,
    Refused,
}

/// What was found where only a number is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) span: Span,
    pub(crate) found: u64,
}

/// The writes to one thing, by their numbers: when each was under way, and what was told of it.
#[derive(Default)]
pub(crate) struct Book {
    entries: Mutex<BTreeMap<u64, (Span, Told)>>,
}

impl Book {
    pub(crate) fn enter(&self, id: u64, sent: Instant, outcome: &Result<()>) {
        let told = match outcome {
            Ok(()) => Told::Done,
            Err(error) => {
                judge(error);
                if error.is_unknown() { Told::Unknown } else { Told::Refused }
            }
        };
        locked(&self.entries).insert(id, (Span::since(sent), told));
    }

    /// Everything that was entered.
    pub(crate) fn entries(&self) -> BTreeMap<u64, (Span, Told)> {
        locked(&self.entries).clone()
    }

    fn all(&self, told: Told) -> BTreeSet<u64> {
        locked(&self.entries).iter().filter(|(_, entry)| entry.1 == told).map(|(&id, _)| id).collect()
    }

    /// Holds the numbers that are there against what was told; acknowledged ones may miss where a failover may have taken them, and `spare` others. How many
    /// acknowledged ones are not there.
    pub(crate) fn close(&self, what: &str, there: &BTreeSet<u64>, touching: &Touching, spare: u64) -> u64 {
        let (acknowledged, refused) = (self.all(Told::Done), self.all(Told::Refused));
        let lies: Vec<&u64> = there.intersection(&refused).collect();
        assert!(lies.is_empty(), "{what}: {lies:?} were told not to be applied");
        let known: BTreeSet<u64> = acknowledged.union(&self.all(Told::Unknown)).copied().collect();
        let strangers: Vec<&u64> = there.difference(&known).collect();
        assert!(strangers.is_empty(), "{what}: nobody wrote {strangers:?}");
        let missing: BTreeSet<u64> = acknowledged.difference(there).copied().collect();
        let entries = locked(&self.entries);
        let gone: Vec<(u64, Span)> = missing.iter().map(|&id| (id, entries[&id].0)).collect();
        let gone: Vec<_> = gone.into_iter().filter(|&(_, span)| !touching.may_lose(span)).collect();
        assert!(
            gone.len() as u64 <= spare,
            "{what}: {gone:?} were acknowledged while no primary of it was about to die, and are gone; {spare} may be"
        );
        missing.len() as u64
    }

    /// The same where only their number is there: between any two looks it grows by what was acknowledged, but for what a failover may have taken.
    pub(crate) fn close_count(&self, what: &str, looks: &[Checkpoint], touching: &Touching) -> u64 {
        let entries: Vec<(Span, Told)> = locked(&self.entries).values().copied().collect();
        let [first, .., last] = looks else { panic!("{what}: it was not looked at") };
        for (from, to) in looks.iter().zip(&looks[1..]).chain([(first, last)]) {
            held(what, &entries, [*from, *to], touching);
        }
        let acknowledged = entries.iter().filter(|entry| entry.1 == Told::Done).count() as u64;
        acknowledged.saturating_sub(last.found - first.found)
    }

    /// How many of these a failover may have taken.
    fn may_be_undone<'a>(&self, ids: impl Iterator<Item = &'a u64>, touching: &Touching) -> u64 {
        let entries = locked(&self.entries);
        ids.filter_map(|id| entries.get(id)).filter(|entry| touching.may_lose(entry.0)).count() as u64
    }

    /// What was told of all of them; `lost` of them are gone.
    pub(crate) fn sum(&self, lost: u64, touching: &Touching) -> Sum {
        let entries = locked(&self.entries);
        let done = || entries.values().filter(|entry| entry.1 == Told::Done);
        Sum {
            acknowledged: done().count() as u64,
            outside: done().filter(|entry| !touching.may_lose(entry.0)).count() as u64,
            unknown: entries.values().filter(|entry| entry.1 == Told::Unknown).count() as u64,
            lost,
            told: 0,
        }
    }
}

/// Holds the growth between two looks against what was told.
fn held(what: &str, entries: &[(Span, Told)], [from, to]: [Checkpoint; 2], touching: &Touching) {
    let (mut least, mut most) = (0_i64, 0_i64);
    for &(span, told) in entries.iter().filter(|entry| entry.1 != Told::Refused) {
        // A write of which nothing was told may be done a while later.
        let late = if told == Told::Unknown { LATE } else { Duration::ZERO };
        most += i64::from(span.sent < to.span.ended && span.ended + late > from.span.sent);
        if span.sent > from.span.ended {
            let must_be = told == Told::Done && span.ended < to.span.sent && !touching.may_lose(span);
            least += i64::from(must_be);
        } else {
            // It may have been counted at the first look and be gone since.
            let may_go = span.sent < to.span.ended && touching.may_lose_after(span, from.span.sent);
            least -= i64::from(may_go);
        }
    }
    let grown = to.found.cast_signed() - from.found.cast_signed();
    assert!(
        (least..=most).contains(&grown),
        "{what}: grew by {grown} from {} to {}, not by {least} to {most}",
        from.found,
        to.found
    );
}

/// A handle, what was acknowledged to it, and whether it told a loss.
struct Life<H> {
    handle: H,
    acknowledged: Mutex<BTreeSet<u64>>,
    has_told: AtomicBool,
}

/// A structure: its handles, opened anew where one tells a loss, and its book.
pub(crate) struct Kept<H> {
    pub(crate) name: String,
    lives: Mutex<Vec<Arc<Life<H>>>>,
    pub(crate) book: Book,
    /// What was found, where only a number is there.
    looks: Mutex<Vec<Checkpoint>>,
    /// The phase of faults in which it was last looked at.
    looked: AtomicU64,
}

/// What the end came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) acknowledged: u64,
    /// Of these, what no failover can have taken.
    pub(crate) outside: u64,
    pub(crate) unknown: u64,
    pub(crate) lost: u64,
    /// Handles that told a loss.
    pub(crate) told: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Sum) {
        self.acknowledged += other.acknowledged;
        self.outside += other.outside;
        self.unknown += other.unknown;
        self.lost += other.lost;
        self.told += other.told;
    }
}

impl<H: Subject> Kept<H> {
    pub(crate) async fn new(store: &StoreRef, at: usize) -> Kept<H> {
        let name = format!("{}{at}", H::KIND);
        let handle = usable(&name, || H::open(store, &name, true)).await;
        let first = Checkpoint { span: Span::since(Instant::now()), found: 0 };
        let kept = Kept {
            name,
            lives: Mutex::default(),
            book: Book::default(),
            looks: Mutex::new(vec![first]),
            looked: AtomicU64::new(0),
        };
        kept.begin(handle);
        kept
    }

    fn begin(&self, handle: H) {
        let life = Life { handle, acknowledged: Mutex::default(), has_told: AtomicBool::new(false) };
        locked(&self.lives).push(Arc::new(life));
    }

    fn life(&self) -> Arc<Life<H>> {
        locked(&self.lives).last().expect("one was opened").clone()
    }

    /// Writes; once in each phase of the faults, looks first.
    pub(crate) async fn write(&self, store: &StoreRef, id: u64, phase: u64) {
        if self.looked.fetch_max(phase, Ordering::Relaxed) < phase {
            let sent = Instant::now();
            if let Some(There::Count(found)) = self.with(store, async |handle| handle.read().await).await {
                locked(&self.looks).push(Checkpoint { span: Span::since(sent), found });
            }
        }
        let (life, sent) = (self.life(), Instant::now());
        let outcome = life.handle.write(id).await;
        if outcome.is_ok() {
            locked(&life.acknowledged).insert(id);
        }
        self.book.enter(id, sent, &outcome);
        if let Err(error) = outcome {
            self.heed(store, &life, &error).await;
        }
    }

    /// Anything else, by the handle of now.
    pub(crate) async fn with<T>(&self, store: &StoreRef, go: impl AsyncFnOnce(&H) -> Result<T>) -> Option<T> {
        let life = self.life();
        match go(&life.handle).await {
            Ok(done) => Some(done),
            Err(error) => {
                judge(&error);
                self.heed(store, &life, &error).await;
                None
            }
        }
    }

    /// Opens it anew, as a program would that was told of a loss.
    async fn heed(&self, store: &StoreRef, life: &Life<H>, error: &Error) {
        if is_loss(error)
            && !life.has_told.swap(true, Ordering::Relaxed)
            && let Ok(fresh) = H::open(store, &self.name, false).await
        {
            self.begin(fresh);
        }
    }

    /// What is there, by a fresh handle, which must be usable, for a read and for a write.
    pub(crate) async fn found(&self, store: &StoreRef) -> (H, There) {
        let fresh = usable(&self.name, || H::open(store, &self.name, false)).await;
        let there = usable(&self.name, || fresh.read()).await;
        (fresh, there)
    }

    /// Holds what is there against what was told, by all and by each handle.
    pub(crate) async fn settle(&self, store: &StoreRef, windows: &Windows) -> Sum {
        let (touching, sent) = (windows.of(H::KIND, &self.name), Instant::now());
        let (fresh, there) = self.found(store).await;
        let lost = match there {
            There::Ids(ids) => {
                let once: BTreeSet<u64> = ids.iter().copied().collect();
                assert_eq!(once.len(), ids.len(), "{}: something is there twice", self.name);
                let lost = self.book.close(&self.name, &once, &touching, 0);
                if H::TELLS == Tells::Always {
                    self.each_told(|life| locked(&life.acknowledged).difference(&once).count() as u64).await;
                }
                lost
            }
            There::Count(found) => {
                let mut looks = locked(&self.looks).clone();
                looks.push(Checkpoint { span: Span::since(sent), found });
                looks.sort_by_key(|look| look.span.sent);
                let lost = self.book.close_count(&self.name, &looks, &touching);
                let is_told = locked(&self.lives).iter().any(|life| life.has_told.load(Ordering::Relaxed));
                if H::TELLS == Tells::Always && lost > 0 && !is_told {
                    self.each_told(|_| lost).await;
                }
                lost
            }
        };
        // What is refused now was not usable.
        usable(&self.name, || fresh.write(0)).await;
        self.sum(lost, &touching)
    }

    /// Every handle that misses what was acknowledged to it says so, or has said so.
    async fn each_told(&self, missing: impl Fn(&Life<H>) -> u64) {
        let lives = locked(&self.lives).clone();
        for (at, life) in lives.iter().enumerate() {
            let missing = missing(life);
            if missing == 0 || life.has_told.load(Ordering::Relaxed) {
                continue;
            }
            let told = usable(&self.name, || async {
                match life.handle.read().await {
                    Err(error) if is_loss(&error) => Ok(true),
                    Ok(_) => Ok(false),
                    Err(error) => Err(error),
                }
            });
            assert!(
                told.await,
                "{}: {missing} writes that handle {at} was told are done are gone, and it says nothing",
                self.name
            );
            life.has_told.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self, lost: u64, touching: &Touching) -> Sum {
        let told = locked(&self.lives).iter().filter(|life| life.has_told.load(Ordering::Relaxed)).count();
        Sum { told: told as u64, ..self.book.sum(lost, touching) }
    }
}

/// What was taken from a queue or a stack.
#[derive(Default)]
pub(crate) struct Taken {
    items: Mutex<BTreeMap<u64, Vec<Span>>>,
    /// Takings of which nobody knows what they took.
    unknown: AtomicU64,
}

impl Taken {
    /// Takes, and notes what.
    pub(crate) async fn pop(
        &self,
        pop: impl AsyncFnOnce() -> Result<Option<bytes::Bytes>>,
    ) -> Result<Option<bytes::Bytes>> {
        let sent = Instant::now();
        let taken = pop().await;
        match &taken {
            Ok(Some(item)) => locked(&self.items).entry(number(item)).or_default().push(Span::since(sent)),
            Ok(None) => {}
            Err(error) => _ = self.unknown.fetch_add(u64::from(error.is_unknown()), Ordering::Relaxed),
        }
        taken
    }

    /// Holds what was taken against what was told of the pushes: once each, but where a failover may have undone the first taking, or where it took the end of a
    /// segment: then less than as many as it took come out again that stood before it. How many acknowledged items nobody ever got.
    pub(crate) fn close(&self, what: &str, book: &Book, touching: &Touching) -> u64 {
        let mut items = locked(&self.items);
        assert!(items.remove(&0).is_some(), "{what}: what was pushed last did not come out");
        let mut again = Vec::new();
        for (item, spans) in items.iter_mut() {
            spans.sort_by_key(|span| span.ended);
            let earlier = &spans[..spans.len() - 1];
            again.extend(earlier.iter().filter(|&&span| !touching.may_lose(span)).map(|span| (*item, *span)));
        }
        let unknown = self.unknown.load(Ordering::Relaxed);
        let undone = book.may_be_undone(items.keys(), touching) + unknown;
        assert!(
            again.len() as u64 <= undone,
            "{what}: {again:?} came out twice, and only {undone} that were taken may have been undone"
        );
        book.close(what, &items.keys().copied().collect(), touching, unknown)
    }
}
