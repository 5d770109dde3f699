//! What became of numbered writes, and what each handle told of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder::{Error, ErrorKind, Result, StoreRef};

use crate::subjects::{Subject, Tells, There};
use crate::usable;

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

/// The numbers of writes to one thing, by what was told of them.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) acknowledged: Mutex<BTreeSet<u64>>,
    pub(crate) unknown: Mutex<BTreeSet<u64>>,
    pub(crate) refused: Mutex<BTreeSet<u64>>,
}

impl Book {
    pub(crate) fn enter(&self, id: u64, outcome: &Result<()>) {
        let book = match outcome {
            Ok(()) => &self.acknowledged,
            Err(error) => {
                judge(error);
                if error.is_unknown() { &self.unknown } else { &self.refused }
            }
        };
        locked(book).insert(id);
    }

    /// Holds the numbers that are there against what was told. How many acknowledged ones are not there.
    pub(crate) fn close(&self, what: &str, there: &BTreeSet<u64>) -> u64 {
        let (acknowledged, refused) = (locked(&self.acknowledged), locked(&self.refused));
        let lies: Vec<&u64> = there.intersection(&refused).collect();
        assert!(lies.is_empty(), "{what}: {lies:?} were told not to be applied");
        let known: BTreeSet<u64> = acknowledged.union(&locked(&self.unknown)).copied().collect();
        let strangers: Vec<&u64> = there.difference(&known).collect();
        assert!(strangers.is_empty(), "{what}: nobody wrote {strangers:?}");
        acknowledged.difference(there).count() as u64
    }

    /// The same where only their number is there.
    pub(crate) fn close_count(&self, what: &str, found: u64) -> u64 {
        let (acknowledged, unknown) = (locked(&self.acknowledged).len() as u64, locked(&self.unknown).len() as u64);
        assert!(
            found <= acknowledged + unknown,
            "{what}: {found} of {acknowledged} acknowledged and {unknown} unknown"
        );
        acknowledged.saturating_sub(found)
    }
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
    /// The round of faults after which it was looked at.
    looked: AtomicU64,
}

/// What the end came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) acknowledged: u64,
    pub(crate) unknown: u64,
    pub(crate) lost: u64,
    /// Handles that told a loss.
    pub(crate) told: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Sum) {
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.lost += other.lost;
        self.told += other.told;
    }
}

impl<H: Subject> Kept<H> {
    pub(crate) async fn new(store: &StoreRef, at: usize) -> Kept<H> {
        let name = format!("{}{at}", H::KIND);
        let handle = H::open(store, &name, true).await.unwrap();
        let kept = Kept { name, lives: Mutex::default(), book: Book::default(), looked: AtomicU64::new(0) };
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

    /// Writes; once in each round of faults, looks first.
    pub(crate) async fn write(&self, store: &StoreRef, id: u64, round: u64) {
        if self.looked.fetch_max(round, Ordering::Relaxed) < round {
            self.with(store, async |handle| handle.read().await).await;
        }
        let life = self.life();
        let outcome = life.handle.write(id).await;
        if outcome.is_ok() {
            locked(&life.acknowledged).insert(id);
        }
        self.book.enter(id, &outcome);
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
    pub(crate) async fn settle(&self, store: &StoreRef) -> Sum {
        let (fresh, there) = self.found(store).await;
        let lost = match there {
            There::Ids(ids) => {
                let once: BTreeSet<u64> = ids.iter().copied().collect();
                assert_eq!(once.len(), ids.len(), "{}: something is there twice", self.name);
                let lost = self.book.close(&self.name, &once);
                if H::TELLS == Tells::Always {
                    self.each_told(|life| locked(&life.acknowledged).difference(&once).count() as u64).await;
                }
                lost
            }
            There::Count(found) => {
                let lost = self.book.close_count(&self.name, found);
                let is_told = locked(&self.lives).iter().any(|life| life.has_told.load(Ordering::Relaxed));
                if H::TELLS == Tells::Always && lost > 0 && !is_told {
                    self.each_told(|_| lost).await;
                }
                lost
            }
        };
        // What is refused now was not usable.
        usable(&self.name, || fresh.write(0)).await;
        self.sum(lost)
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

    pub(crate) fn sum(&self, lost: u64) -> Sum {
        let told = locked(&self.lives).iter().filter(|life| life.has_told.load(Ordering::Relaxed)).count();
        Sum {
            acknowledged: locked(&self.book.acknowledged).len() as u64,
            unknown: locked(&self.book.unknown).len() as u64,
            lost,
            told: told as u64,
        }
    }
}
