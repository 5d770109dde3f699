//! Reclaim: items whose life is over are removed without anybody asking for them.
//!
//! Each write of an item with a life adds an entry by the time that its [end](crate::end) is noted by, ordered by that time. When the time has come the entry is looked up: if the item
//! is over, it goes; if it got another life since, that one has an entry of its own. So a write need not know the life it replaces. Of every item that has a life there is an entry which is never before its end:
//! so one that has come is of no use to an item that is not over, and may go.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::end::End;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::layout;

/// Expiries that are taken up at once.
pub(crate) const DUE_MAX: usize = 1024;

/// When an item may be to be removed.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// No entry comes before this, but for those that are left over.
    earliest_ms: AtomicU64,
    /// More have come than were taken up.
    has_more: AtomicBool,
    /// The committer was asked for those, and has not come to it.
    is_asked: AtomicBool,
}

/// Expiries whose time has come.
pub(crate) struct Due {
    /// Their engine keys.
    pub(crate) keys: Vec<Vec<u8>>,
    /// There may be more.
    pub(crate) is_full: bool,
}

impl Expiry {
    /// An item with this end is written.
    pub(crate) fn note(&self, end: End) {
        self.earliest_ms.fetch_min(end.noted_ms(), Ordering::Relaxed);
    }

    /// True if an entry may have come.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.has_more() || self.earliest_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// False if there is no entry, for certain.
    pub(crate) fn has_lives(&self) -> bool {
        self.has_more() || self.earliest_ms.load(Ordering::Relaxed) < u64::MAX
    }

    /// True if some are left over, and are to be taken up soon.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more.load(Ordering::Relaxed)
    }

    /// Has `ask` ask for those that are left over, if there are any and nobody has: it says whether it could.
    pub(crate) fn ask_for_more(&self, ask: impl FnOnce() -> bool) {
        if self.has_more() && !self.is_asked.swap(true, Ordering::Relaxed) && !ask() {
            self.is_asked.store(false, Ordering::Relaxed);
        }
    }

    /// The first expiries that have come, of the engine keys from `from` on: of all, or those behind what was taken up before. To be called by the committer alone.
    pub(crate) fn due(&self, engine: &Engine, from: &[u8], now_ms: u64) -> Result<Due, Fault> {
        let (mut keys, mut next_ms, mut is_full) = (Vec::new(), u64::MAX, false);
        if from == [layout::EXPIRY] {
            // What comes before those that were taken up is noted until all have been.
            self.earliest_ms.store(u64::MAX, Ordering::Relaxed);
        }
        let scanned = engine.scan(from, &[layout::EXPIRY + 1], &mut |key, _| {
            match layout::split_expiry_key(key) {
                Some((noted_ms, _)) if noted_ms > now_ms => {
                    next_ms = noted_ms;
                    return false;
                }
                _ if keys.len() == DUE_MAX => is_full = true,
                _ => keys.push(key.to_vec()),
            }
            !is_full
        });
        self.earliest_ms.fetch_min(if scanned.is_ok() { next_ms } else { 0 }, Ordering::Relaxed);
        self.has_more.store(scanned.is_ok() && is_full, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
        scanned?;
        Ok(Due { keys, is_full })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use larder_core::{Ctx, ErrorKind, Key, ManualClock, Op, PutMode, Reply, Store, StoreExt, Ttl};

    use super::*;
    use crate::committer::Request;
    use crate::layout::{Commit, EXPIRY, Record};
    use crate::options::Sync;
    use crate::{Direct, DirectItem, DirectNext, DurableStore, Options};

    const BEGIN: Duration = Duration::from_secs(1_700_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn open(folder: &tempfile::TempDir, clock: &Arc<ManualClock>) -> DurableStore {
        Options::new(folder.path()).clock(clock.clone()).sync(Sync::Never).open().unwrap()
    }

    async fn put(store: &DurableStore, key: &str, life: Duration) {
        let put = Op::put(Key::new(key.to_owned()).unwrap(), PutMode::Set, "v", Ttl::After(life));
        store.run_one(Ctx::default(), put).await.unwrap();
    }

    async fn settled(direct: &Direct, ticket: u64) {
        std::future::poll_fn(|cx| direct.poll_settled(ticket, cx).unwrap()).await;
    }

    /// How many ends are noted.
    fn noted(store: &DurableStore) -> usize {
        let (from, to) = (&[EXPIRY], &[EXPIRY + 1]);
        let (moment, mut count) = (store.shared().moment(from, to), 0);
        let mut tell = |_: &[u8], _| {
            count += 1;
            true
        };
        moment.scan(from, to, &mut tell).unwrap();
        count
    }

    /// What is stored, over or not; all of it whole, and the end of each noted.
    fn stored(store: &DurableStore) -> u64 {
        let found = store.check(&mut |_| ()).unwrap();
        assert_eq!(found.damaged, 0, "{:?}", found.first);
        found.items
    }

    #[tokio::test]
    async fn a_life_that_is_renewed_ten_thousand_times_is_noted_65_times_and_ends_as_it_is_to() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(BEGIN));
        let store = open(&folder, &clock);
        // 64 steps, and the end of the last.
        let life = Duration::from_millis(64 << 20);
        put(&store, "k", life).await;
        for nth in 0..10_000 {
            clock.advance(life / 10_000);
            let touch = Op::touch(Key::new("k").unwrap(), Ttl::After(life));
            match nth % 2 {
                0 => put(&store, "k", life).await,
                _ => assert_eq!(store.run_one(Ctx::default(), touch).await.unwrap(), Reply::Touched),
            }
        }
        let notes = noted(&store);
        assert!((64..=65).contains(&notes), "{notes}");
        assert_eq!(stored(&store), 1);
        clock.advance(life - Duration::from_millis(1));
        store.reclaim_expired().await.unwrap();
        assert!(store.get(Key::new("k").unwrap()).await.unwrap().is_some(), "it lives to the millisecond");
        assert_eq!(stored(&store), 1, "notes of the lives before are gone, and not the item");
        assert_eq!(noted(&store), 1);
        clock.advance(Duration::from_millis(1));
        assert_eq!(store.get(Key::new("k").unwrap()).await.unwrap(), None, "and no longer");
        clock.advance(life / 64);
        store.reclaim_expired().await.unwrap();
        assert_eq!((stored(&store), noted(&store)), (0, 0), "a 64th of its life later at the most");
    }

    #[tokio::test]
    async fn a_life_that_a_server_renews_is_noted_by_steps_too() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(BEGIN));
        let direct = Direct::new(open(&folder, &clock));
        let item = |cas, expiry_ms| {
            let expiry_ms = Some(expiry_ms);
            DirectNext::Put(DirectItem { value: "v".into(), flags: 0, marks: 0, cas, expiry_ms })
        };
        let life_ms = u64::try_from(DAY.as_millis()).unwrap();
        for nth in 0..3_000 {
            clock.advance(DAY / 3_000);
            let expiry_ms = direct.now_ms() + life_ms;
            let ticket = match nth % 2 {
                0 => direct.overwrite(b"k", |cas| item(cas, expiry_ms)).unwrap(),
                _ => direct.update(b"k", |_, cas| item(cas, expiry_ms)).unwrap(),
            };
            assert_eq!(direct.get(b"k").unwrap().0.unwrap().expiry_ms, Some(expiry_ms), "as it was asked for");
            settled(&direct, ticket).await;
        }
        let notes = noted(direct.store());
        assert!((80..=85).contains(&notes), "{notes}");
        let mut told = None;
        direct.walk(b"", 10, &mut |_, item| told = item.expiry_ms).unwrap();
        assert_eq!(told, Some(direct.now_ms() + life_ms));
    }

    /// As it was written before there were steps.
    #[tokio::test]
    async fn items_of_the_older_layout_end_as_they_were_to_and_their_notes_go() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(BEGIN));
        let store = open(&folder, &clock);
        let end = End::at(u64::try_from((BEGIN + DAY).as_millis()).unwrap() + 1);
        let shared = store.shared();
        let mut entries = shared.engine.entries();
        for key in ["old", "renewed"] {
            entries.add_item(key.as_bytes(), Some(&Record { end: Some(end), value: "v".into(), ..Record::default() }));
        }
        let last = shared.engine.last_commit().unwrap().unwrap();
        shared.engine.commit(entries, Commit { sequence: last.sequence + 1, ..last }, true).unwrap();
        drop(store);
        let store = open(&folder, &clock);
        assert_eq!((stored(&store), noted(&store)), (2, 2));
        put(&store, "renewed", DAY * 2).await;
        clock.advance(DAY);
        assert!(store.get(Key::new("old").unwrap()).await.unwrap().is_some());
        clock.advance(Duration::from_millis(1));
        assert_eq!(store.get(Key::new("old").unwrap()).await.unwrap(), None);
        store.reclaim_expired().await.unwrap();
        assert_eq!((stored(&store), noted(&store)), (1, 1));
        assert!(store.get(Key::new("renewed").unwrap()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_clock_that_was_set_back_leaves_ends_and_their_notes_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(BEGIN));
        let store = open(&folder, &clock);
        put(&store, "k", DAY).await;
        drop(store);
        clock.set_wall(BEGIN - DAY * 300);
        let store = open(&folder, &clock);
        put(&store, "k", DAY).await;
        clock.advance(DAY);
        assert_eq!(store.get(Key::new("k").unwrap()).await.unwrap(), None);
        clock.advance(DAY / 64);
        store.reclaim_expired().await.unwrap();
        assert_eq!((stored(&store), noted(&store)), (0, 0));
    }

    /// Their notes have come, and gone, before they are swept.
    #[tokio::test]
    async fn what_waits_to_be_swept_is_not_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(BEGIN));
        let direct = Direct::new(open(&folder, &clock));
        for number in 0..5_000 {
            put(direct.store(), &format!("k{number}"), Duration::from_secs(1)).await;
        }
        settled(&direct, direct.clear().unwrap()).await;
        clock.advance(Duration::from_secs(1));
        direct.store().reclaim_expired().await.unwrap();
        while direct.store().shared().sweeps.load(Ordering::Acquire) {
            stored(direct.store());
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_is_swept_leaves_no_note_of_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(BEGIN));
        let direct = Direct::new(open(&folder, &clock));
        let life = |number: u64| Duration::from_secs(60 * (number + 1));
        for number in 0..50 {
            clock.advance(Duration::from_millis(7));
            put(direct.store(), &format!("k{number}"), life(number)).await;
        }
        let op = |number| {
            let key = Key::new(format!("k{number}")).unwrap();
            Op::put(key, PutMode::Set, "v", Ttl::After(life(number)))
        };
        // As a round, which is moved.
        let replies = direct.store().run(Ctx::default(), (50..100).map(op).collect()).await;
        assert!(replies.iter().all(Result::is_ok));
        assert_eq!((stored(direct.store()), noted(direct.store())), (100, 100));
        direct.store().settle().unwrap();
        assert_eq!((stored(direct.store()), noted(direct.store())), (100, 100));
        settled(&direct, direct.clear().unwrap()).await;
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while direct.store().shared().sweeps.load(Ordering::Acquire) {
            assert!(std::time::Instant::now() < until, "{} are left", stored(direct.store()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!((stored(direct.store()), noted(direct.store())), (0, 0));
    }

    #[tokio::test]
    async fn items_that_are_damaged_stay_and_those_behind_them_are_reclaimed() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
        let store = Options::new(folder.path()).clock(clock.clone()).open().unwrap();
        // More than are taken up at once, and all of them before the others.
        let damaged = DUE_MAX as u64 + 1;
        let mut entries = store.shared().engine.entries();
        for number in 0..damaged {
            let key = format!("damaged{number}");
            entries.add(&layout::item_key(key.as_bytes()), Some(b"no record"));
            entries.add(&layout::expiry_key(End::at(1), key.as_bytes()), Some(&[]));
        }
        store.shared().engine.commit(entries, Commit::default(), false).unwrap();
        put(&store, "one", Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.reclaim_expired().await.unwrap(), 1);
        put(&store, "two", Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(1));
        // As the timer asks.
        assert!(store.ask(Request::Reclaim { reply: None }).await.is_ok());
        store.sync().await.unwrap();
        let found = store.check(&mut |_| ()).unwrap();
        assert_eq!((found.items, found.damaged), (damaged, damaged));
        let error = store.get(Key::new("damaged7").unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
