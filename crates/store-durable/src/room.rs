//! Room on the disk: writes are refused before the disk is full, so that what was begun can be ended. What the engine has in memory is begun: it is in the journal, and tables are still to be written of it. So is what was
//! admitted and waits: it goes to the journal, and to a table. And tables are merged, which writes all of them anew before the old ones go: where that fails the engine writes nothing more, and begins with it again
//! whenever it is opened.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::fault::{Fault, Harm};

/// The disk is asked again after so many bytes were written.
const ASK_EVERY_BYTES: u64 = 4 << 20;
/// While there is no room it is asked again after so many refusals, or after so long.
const ASK_EVERY_REFUSALS: u64 = 64;
const ASK_EVERY_MS: u64 = 1_000;
/// Where one large item alone lacks room, so many looks, a second apart, have what is in memory written to tables: the engine merges four of them.
const LOOKS_A_REFUSAL: u32 = 10;
/// Before there are as many again: others are admitted meanwhile, and a merge of what they wrote gives no room back. It doubles, up to the most, until a large item is admitted.
const LOOKS_PAUSE_MS: u64 = 30_000;
const LOOKS_PAUSE_MS_MAX: u64 = 600_000;

/// What the engine has begun, in bytes that it will write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    /// Tables of what is in memory; and as much again, to merge those.
    pub(crate) unwritten_bytes: u64,
    /// Merging the tables there are, at the most.
    pub(crate) merge_bytes: u64,
    /// Of that, what comes next: merging those that were just written into the first level.
    pub(crate) next_merge_bytes: u64,
}

/// The largest item that lacked room lately.
#[derive(Debug, Default)]
struct Refused {
    bytes: u64,
    /// Looks that it counts for, from now on.
    looks: u32,
    pause_ms: u64,
    /// What is refused before this does not count.
    rests_until_ms: u64,
}

/// Watches the room on the disk.
#[derive(Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    /// Bytes that must stay free.
    reserve_bytes: u64,
    /// Bytes that may be written before the disk is asked again.
    credit_bytes: AtomicU64,
    /// Bytes that were free when it was asked last, and those of what was begun.
    free_bytes: AtomicU64,
    unwritten_bytes: AtomicU64,
    merge_bytes: AtomicU64,
    /// Bytes that were admitted, and are not written yet.
    admitted_bytes: AtomicU64,
    refused: Mutex<Refused>,
    /// True while anything is in that.
    is_refused: AtomicBool,
    refusals: AtomicU64,
    /// When it was asked last, in milliseconds since it was made.
    asked_ms: AtomicU64,
    made: Instant,
}

impl Room {
    pub(crate) fn new(folder: PathBuf, reserve_bytes: u64) -> Room {
        let (free_bytes, refusals) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let (credit_bytes, asked_ms, made) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
        let (unwritten_bytes, merge_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let admitted_bytes = AtomicU64::new(0);
        let (refused, is_refused) = (Mutex::default(), AtomicBool::new(false));
        Room {
            folder,
            reserve_bytes,
            credit_bytes,
            free_bytes,
            unwritten_bytes,
            merge_bytes,
            admitted_bytes,
            refused,
            is_refused,
            refusals,
            asked_ms,
            made,
        }
    }

    /// Admits bytes that are to be written: they are counted until they [were](Room::carried_out). `begun` as below.
    ///
    /// # Errors
    /// `Full` where less than the reserve is free besides them, twice, and what else was begun. Nothing is admitted then.
    pub(crate) fn admit(&self, bytes: u64, begun: impl Fn() -> Begun) -> Result<(), Fault> {
        let mut admitted = self.admitted_bytes.load(Ordering::Relaxed);
        loop {
            // Only what is admitted counts for others: a large one that is refused takes no room from small ones beside it.
            let with_these = admitted.saturating_add(bytes);
            self.check_with(with_these, &begun).inspect_err(|_| self.refuse(bytes))?;
            let all = &self.admitted_bytes;
            match all.compare_exchange(admitted, with_these, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.forget_refused(bytes);
                    return Ok(());
                }
                Err(other) => admitted = other,
            }
        }
    }

    /// Bytes that were admitted are written, or will not be.
    pub(crate) fn carried_out(&self, bytes: u64) {
        self.admitted_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// `begun` tells what the engine is still to write.
    ///
    /// # Errors
    /// `Full` where less than the reserve is free besides that, and what was admitted.
    pub(crate) fn check(&self, begun: impl FnOnce() -> Begun) -> Result<(), Fault> {
        self.check_with(self.admitted_bytes.load(Ordering::Relaxed), begun)
    }

    /// The same, were so many bytes admitted.
    fn check_with(&self, admitted_bytes: u64, begun: impl FnOnce() -> Begun) -> Result<(), Fault> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let is_short = self.is_short(admitted_bytes);
        let asks = is_short && {
            let nth = self.refusals.fetch_add(1, Ordering::Relaxed) % ASK_EVERY_REFUSALS;
            let since_ms = self.now_ms().saturating_sub(self.asked_ms.load(Ordering::Relaxed));
            nth == ASK_EVERY_REFUSALS - 1 || since_ms >= ASK_EVERY_MS
        };
        if asks || !is_short && self.credit_bytes.load(Ordering::Relaxed) == 0 {
            self.ask(begun());
        }
        if !self.is_short(admitted_bytes) {
            return Ok(());
        }
        let mut detail = format!(
            "the disk of {} has {} bytes left; {} must stay free (the option reserve_bytes)",
            self.folder.display(),
            self.free_bytes.load(Ordering::Relaxed),
            self.reserve_bytes
        );
        let unwritten_bytes = self.unwritten_bytes.load(Ordering::Relaxed);
        if unwritten_bytes > 0 {
            detail.push_str(&format!(", besides {unwritten_bytes} for tables of what is in memory"));
        }
        let merge_bytes = self.merged_bytes();
        if merge_bytes > 0 {
            detail.push_str(&format!(", {merge_bytes} for merging tables"));
        }
        let waiting_bytes = waiting_bytes(admitted_bytes);
        if waiting_bytes > 0 {
            detail.push_str(&format!(", and {waiting_bytes} for what is being written"));
        }
        Err(Fault { harm: Harm::Full, detail })
    }

    /// Asks the disk again where it was short, be it for one large item alone: true where there is room to write what is in memory to tables, and to merge those into the first level. Of little that is written often a
    /// table is small; and what was removed gives room back only when a merge has come to it, so that the reserve, and the room for a larger merge, must not be in the way of that.
    pub(crate) fn waits_for_tables(&self, begun: impl FnOnce() -> Begun) -> bool {
        if self.reserve_bytes == 0 {
            return false;
        }
        let refused_bytes = if self.is_refused.load(Ordering::Relaxed) { self.look_for_refused() } else { 0 };
        let wanted_bytes = self.admitted_bytes.load(Ordering::Relaxed).saturating_add(refused_bytes);
        if !self.is_short(wanted_bytes) {
            return false;
        }
        let begun = begun();
        self.ask(begun);
        let needed = begun.unwritten_bytes.saturating_mul(2).saturating_add(begun.next_merge_bytes);
        self.is_short(wanted_bytes) && self.free_bytes.load(Ordering::Relaxed) >= needed
    }

    /// There was no room for so many bytes.
    fn refuse(&self, bytes: u64) {
        let mut refused = self.refused.lock();
        if refused.looks > 0 {
            refused.bytes = refused.bytes.max(bytes);
        } else if self.now_ms() >= refused.rests_until_ms {
            (refused.bytes, refused.looks) = (bytes, LOOKS_A_REFUSAL);
            self.is_refused.store(true, Ordering::Relaxed);
        }
    }

    /// So many bytes were admitted: whoever waited for no more has room.
    fn forget_refused(&self, bytes: u64) {
        if self.is_refused.load(Ordering::Relaxed) {
            let mut refused = self.refused.lock();
            if bytes >= refused.bytes {
                *refused = Refused::default();
                self.is_refused.store(false, Ordering::Relaxed);
            }
        }
    }

    /// What was refused and is still looked after. This is one of the looks.
    fn look_for_refused(&self) -> u64 {
        let mut refused = self.refused.lock();
        if refused.looks == 0 {
            return 0;
        }
        refused.looks -= 1;
        if refused.looks == 0 {
            refused.pause_ms = (refused.pause_ms * 2).clamp(LOOKS_PAUSE_MS, LOOKS_PAUSE_MS_MAX);
            refused.rests_until_ms = self.now_ms().saturating_add(refused.pause_ms);
        }
        refused.bytes
    }

    fn is_short(&self, admitted_bytes: u64) -> bool {
        let begun = self.unwritten_bytes.load(Ordering::Relaxed).saturating_add(self.merged_bytes());
        let begun = begun.saturating_add(waiting_bytes(admitted_bytes));
        self.free_bytes.load(Ordering::Relaxed) < self.reserve_bytes.saturating_add(begun)
    }

    /// Merging the tables there are and those that are to be written.
    fn merged_bytes(&self) -> u64 {
        self.merge_bytes.load(Ordering::Relaxed).saturating_add(self.unwritten_bytes.load(Ordering::Relaxed))
    }

    /// Bytes were written.
    pub(crate) fn wrote(&self, bytes: usize) {
        let less = |credit: u64| Some(credit.saturating_sub(bytes as u64 + 1));
        _ = self.credit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What was begun is told before the disk is asked: what becomes a table in between counts twice, rather than not at all.
    fn ask(&self, begun: Begun) {
        self.asked_ms.store(self.now_ms(), Ordering::Relaxed);
        // A disk that does not say is written to until it refuses.
        let free =
            rustix::fs::statvfs(&self.folder).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        self.free_bytes.store(free, Ordering::Relaxed);
        self.unwritten_bytes.store(begun.unwritten_bytes, Ordering::Relaxed);
        self.merge_bytes.store(begun.merge_bytes, Ordering::Relaxed);
        self.credit_bytes.store(ASK_EVERY_BYTES, Ordering::Relaxed);
    }
}

/// What was admitted and waits, once for the journal and once for a table.
fn waiting_bytes(admitted_bytes: u64) -> u64 {
    admitted_bytes.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::{Ctx, ErrorKind, Key, Op, PutMode, Store, StoreExt, Ttl};

    use super::*;
    use crate::options::Sync;
    use crate::{Direct, DirectItem, DirectNext, Options};

    fn nothing() -> Begun {
        Begun::default()
    }

    fn unwritten(unwritten_bytes: u64) -> Begun {
        Begun { unwritten_bytes, ..Begun::default() }
    }

    #[test]
    fn room_that_came_back_is_found_within_a_second_of_few_refusals() {
        let folder = tempfile::tempdir().unwrap();
        let mut room = Room::new(folder.path().to_path_buf(), u64::MAX);
        assert_eq!(room.check(nothing).unwrap_err().harm, Harm::Full);
        // As if others had freed it.
        room.reserve_bytes = 1;
        room.free_bytes.store(0, Ordering::Relaxed);
        assert_eq!(room.check(nothing).unwrap_err().harm, Harm::Full, "it was asked just now");
        room.made -= Duration::from_millis(ASK_EVERY_MS);
        room.check(nothing).unwrap();
    }

    #[test]
    fn what_is_in_memory_and_in_no_table_needs_room_besides_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(folder.path().to_path_buf(), 1);
        room.check(|| unwritten(1 << 10)).unwrap();
        room.wrote(ASK_EVERY_BYTES as usize);
        let fault = room.check(|| unwritten(u64::MAX - 1)).unwrap_err();
        assert_eq!(fault.harm, Harm::Full);
        let told = format!("bytes left; 1 must stay free (the option reserve_bytes), besides {} for", u64::MAX - 1);
        assert!(fault.detail.contains(&told), "{}", fault.detail);
        Room::new(folder.path().to_path_buf(), 0).check(|| unwritten(u64::MAX)).unwrap();
    }

    #[test]
    fn what_is_in_memory_is_to_become_tables_where_only_that_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let room = |reserve_bytes| Room::new(folder.path().to_path_buf(), reserve_bytes);
        let in_the_way = room(1);
        assert!(!in_the_way.waits_for_tables(|| unwritten(u64::MAX)), "nobody was refused");
        let merge = |next_merge_bytes| Begun { unwritten_bytes: 1, merge_bytes: u64::MAX - 2, next_merge_bytes };
        assert_eq!(in_the_way.check(|| merge(1)).unwrap_err().harm, Harm::Full);
        assert!(in_the_way.waits_for_tables(|| merge(1)), "the largest merge is not what comes next");
        assert!(!in_the_way.waits_for_tables(|| merge(u64::MAX - 2)), "there is no room for what comes next");
        assert!(!in_the_way.waits_for_tables(|| unwritten(u64::MAX - 1)), "nor for the tables");
        // They are written: whoever comes next is not refused.
        assert!(!in_the_way.waits_for_tables(nothing));
        in_the_way.check(|| panic!("it was asked")).unwrap();
        let short = room(u64::MAX);
        assert_eq!(short.check(|| unwritten(1)).unwrap_err().harm, Harm::Full);
        assert!(short.waits_for_tables(|| unwritten(1)), "what they remove may give room back");
        let merging = room(1);
        let fault = merging.check(|| merge(1)).unwrap_err();
        assert!(fault.detail.ends_with(&format!("{} for merging tables", u64::MAX - 1)), "{fault:?}");
    }

    #[test]
    fn what_is_in_memory_is_to_become_tables_where_only_a_large_item_lacks_room() {
        const MB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let free = rustix::fs::statvfs(folder.path()).map(|disk| disk.f_bavail * disk.f_frsize).unwrap();
        // Half of what is free may be taken, and no item of as much goes in.
        let room = Room::new(folder.path().to_path_buf(), free / 2);
        room.admit(MB, || unwritten(MB)).unwrap();
        room.carried_out(MB);
        assert!(!room.waits_for_tables(|| unwritten(MB)), "nobody was refused");
        let mut room = room;
        let looks = |room: &Room| (0..100).filter(|_| room.waits_for_tables(|| unwritten(MB))).count();
        let mut passed_ms = 0;
        for pause_ms in [30_000, 60_000, 120_000, 240_000, 480_000, 600_000, 600_000] {
            assert_eq!(room.admit(free, || unwritten(MB)).unwrap_err().harm, Harm::Full);
            assert_eq!(looks(&room), LOOKS_A_REFUSAL as usize);
            room.made -= Duration::from_millis(pause_ms - 5_000);
            assert_eq!(room.admit(free, || unwritten(MB)).unwrap_err().harm, Harm::Full);
            assert_eq!(looks(&room), 0, "after {passed_ms} ms: what others write is merged over and over");
            room.made -= Duration::from_millis(5_000);
            passed_ms += pause_ms;
        }
        // A smaller one is not what waits.
        assert_eq!(room.admit(free, || unwritten(MB)).unwrap_err().harm, Harm::Full);
        room.admit(MB, || unwritten(MB)).unwrap();
        room.carried_out(MB);
        assert!(room.waits_for_tables(|| unwritten(MB)));
        // As if others had made room.
        room.free_bytes.store(4 * free, Ordering::Relaxed);
        room.credit_bytes.store(1, Ordering::Relaxed);
        room.admit(free, nothing).unwrap();
        room.carried_out(free);
        room.credit_bytes.store(0, Ordering::Relaxed);
        room.check(|| unwritten(MB)).unwrap();
        assert!(!room.waits_for_tables(|| unwritten(MB)), "nobody waits");
        assert_eq!(room.admit(free, || unwritten(MB)).unwrap_err().harm, Harm::Full);
        assert_eq!(looks(&room), LOOKS_A_REFUSAL as usize, "after one that was admitted there is no pause");
    }

    #[test]
    fn what_was_admitted_and_is_not_written_needs_room_twice() {
        const MB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(folder.path().to_path_buf(), MB);
        room.check(nothing).unwrap();
        // As if that was what is free.
        room.free_bytes.store(101 * MB, Ordering::Relaxed);
        assert_eq!(room.admit(51 * MB, nothing).unwrap_err().harm, Harm::Full);
        room.admit(40 * MB, nothing).unwrap();
        let fault = room.admit(40 * MB, nothing).unwrap_err();
        assert!(
            fault.harm == Harm::Full && fault.detail.ends_with("and 167772160 for what is being written"),
            "{fault:?}"
        );
        room.admit(10 * MB, nothing).unwrap();
        room.carried_out(50 * MB);
        room.admit(50 * MB, nothing).unwrap();
    }

    #[test]
    fn what_is_refused_takes_no_room_from_what_is_admitted_beside_it() {
        const MB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(folder.path().to_path_buf(), MB);
        room.check(nothing).unwrap();
        room.free_bytes.store(101 * MB, Ordering::Relaxed);
        // While a large one is looked at, and the disk is asked, a small one comes.
        let mut room = room;
        room.made -= Duration::from_secs(2);
        let came = std::cell::Cell::new(None);
        _ = room.admit(51 * MB, || {
            room.credit_bytes.store(MB, Ordering::Relaxed);
            room.asked_ms.store(room.now_ms(), Ordering::Relaxed);
            came.set(Some(room.admit(1, nothing).is_ok()));
            nothing()
        });
        assert_eq!(came.get(), Some(true));
    }

    /// Small ones go into a round, large ones are written by themselves; one is written by a server, one is not written.
    #[tokio::test]
    async fn what_was_admitted_is_forgotten_once_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let direct = Direct::new(Options::new(folder.path()).open().unwrap());
        let key = |number| Key::new(format!("k{number}")).unwrap();
        for bytes in [10, 1 << 20] {
            let batch = (0..20).map(|number| Op::put(key(number), PutMode::Set, vec![7; bytes], Ttl::Never)).collect();
            assert!(direct.store().run(Ctx::default(), batch).await.iter().all(Result::is_ok));
        }
        let add = Op::put(key(0), PutMode::Add, "v", Ttl::Never);
        direct.store().run_one(Ctx::default(), add).await.unwrap();
        let room = &direct.store().shared().room;
        let admitted = || room.admitted_bytes.load(Ordering::Relaxed);
        assert_eq!(admitted(), 0);
        let item = |cas| DirectItem { value: vec![7; 1 << 20].into(), flags: 0, marks: 0, cas, expiry_ms: None };
        let ticket = direct.overwrite(b"k0", |cas| DirectNext::Put(item(cas))).unwrap();
        assert!(admitted() == 0 || admitted() > 1 << 20);
        std::future::poll_fn(|cx| direct.poll_settled(ticket, cx).unwrap()).await;
        let ticket = direct.update(b"k0", |_, _| DirectNext::Remove).unwrap();
        std::future::poll_fn(|cx| direct.poll_settled(ticket, cx).unwrap()).await;
        assert_eq!(admitted(), 0);
        // As if that was what is left: what is large is refused, and nothing of it counted.
        room.free_bytes.store(room.reserve_bytes + (1 << 20), Ordering::Relaxed);
        room.credit_bytes.store(1, Ordering::Relaxed);
        room.unwritten_bytes.store(0, Ordering::Relaxed);
        let error = direct.overwrite(b"k0", |cas| DirectNext::Put(item(cas))).unwrap_err();
        let put = Op::put(key(0), PutMode::Set, vec![7; 1 << 20], Ttl::Never);
        let refused = direct.store().run_one(Ctx::default(), put).await.unwrap_err();
        assert_eq!([error.kind(), refused.kind()], [ErrorKind::Full; 2]);
        assert!(!refused.is_unknown() && admitted() == 0);
        direct.store().run_one(Ctx::default(), Op::put(key(0), PutMode::Set, "v", Ttl::Never)).await.unwrap();
    }

    #[tokio::test]
    async fn what_the_engine_has_in_memory_is_counted_until_it_is_in_tables() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).sync(Sync::Never).open().unwrap();
        for number in 0..8 {
            let key = Key::new(format!("k{number}")).unwrap();
            let put = Op::put(key, PutMode::Set, vec![7; 1 << 20], Ttl::Never);
            store.run_one(Ctx::default(), put).await.unwrap();
        }
        let unwritten = || store.shared().engine.unwritten_bytes();
        assert!(unwritten() >= 8 << 20, "{}", unwritten());
        store.settle().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while unwritten() >= 1 << 20 {
            assert!(Instant::now() < until, "{} are in tables", unwritten());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(store);
        // Also of what the journal holds when it is opened.
        let store = Options::new(folder.path()).open().unwrap();
        let put = Op::put(Key::new("k").unwrap(), PutMode::Set, vec![7; 1 << 20], Ttl::Never);
        store.run_one(Ctx::default(), put).await.unwrap();
        drop(store);
        let store = Options::new(folder.path()).open().unwrap();
        assert!(store.shared().engine.unwritten_bytes() >= 1 << 20);
    }
}
