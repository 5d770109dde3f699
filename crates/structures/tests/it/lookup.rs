//! Packed tables whose builders die, on stores that have no room, and between two versions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, Key, Op, PutMode, Reply, StoreExt, StoreRef, Ttl, Verb, Want};
use larder_store_memcached::{Config, MemcachedStore};
use larder_store_memory::MemoryStore;
use larder_structures::lookup::{CsvOptions, LookupKey, Progress, Rows, Step};
use larder_structures::{Name, PackedTable, registry};
use larder_testkit::servers::{Memcached, Version};
use tokio::sync::Notify;

use crate::support::hooked::{Hooked, fail};
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

/// So few ops in a batch that a build takes many.
const BATCH_OPS: usize = 6;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn open(store: &StoreRef) -> PackedTable {
    PackedTable::options().block_bytes(64).open_or_create(store, "t").await.unwrap()
}

fn rows(version: &str, count: u64) -> Rows {
    let mut rows = Rows::new(["version", "word"]).unwrap();
    for id in 0..count {
        rows.push_id(id, [version.to_owned(), format!("{:x}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15))]).unwrap();
    }
    rows
}

async fn version(table: &PackedTable, count: u64) -> String {
    let keys: Vec<LookupKey> = (0..count).map(LookupKey::from).collect();
    let found = table.get_many(&keys).await.unwrap();
    let first = found[0].as_ref().expect("a row").fields[0].clone();
    assert!(found.iter().flatten().all(|found| found.fields[0] == first), "rows of two versions");
    String::from_utf8(first.to_vec()).unwrap()
}

/// How many keys the store has, beside the manifest and the head.
async fn keys(memory: &MemoryStore) -> usize {
    memory.stats().items - 2
}

/// All that a store holds.
fn contents(memory: &MemoryStore) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut contents = BTreeMap::new();
    memory.each(|key, seen| _ = contents.insert(key.to_vec(), seen.value.to_vec()));
    contents
}

/// As a server does that starts again with an older snapshot.
fn set_back(memory: &MemoryStore, to: &BTreeMap<Vec<u8>, Vec<u8>>) {
    memory.clear();
    for (key, value) in to {
        memory.direct().put(key, PutMode::Set, value, 0, Ttl::Never).unwrap();
    }
}

/// How much of the batch that a builder died at took effect.
#[derive(Clone, Copy, Debug)]
enum Applied {
    Nothing,
    Half,
    All,
}

/// Builds, and dies at the nth batch; false if the build came to an end before.
async fn die(store: &StoreRef, nth: u64, applied: Applied) -> bool {
    let hooked = Hooked::with_batches_of(store, BATCH_OPS);
    let table = open(&hooked.shared()).await;
    let died = Arc::new(Notify::new());
    let dies = died.clone();
    hooked.at(nth, move |store, mut batch| async move {
        batch.truncate(match applied {
            Applied::Nothing => 0,
            Applied::Half => batch.len() / 2,
            Applied::All => batch.len(),
        });
        if !batch.is_empty() {
            store.run(Ctx::default(), batch).await;
        }
        dies.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        built = table.build(rows("new", 40)) => {
            built.unwrap();
            false
        }
        () = died.notified() => true,
    }
}

#[tokio::test]
async fn a_build_that_is_killed_at_any_op_leaves_a_whole_version_and_its_litter_is_removed() {
    for applied in [Applied::Nothing, Applied::Half, Applied::All] {
        let mut seen = [0; 2];
        for nth in 1.. {
            let memory = Arc::new(MemoryStore::new());
            let store: StoreRef = memory.clone();
            let table = open(&store).await;
            table.build(rows("old", 30)).await.unwrap();
            let died = die(&store, nth, applied).await;
            let fresh = open(&store).await;
            match version(&fresh, 30).await.as_str() {
                "old" => seen[0] += 1,
                "new" => seen[1] += 1,
                other => panic!("version {other} was never built"),
            }
            // Whatever was left: the next build is the only one with keys.
            let built = table.build(rows("next", 35)).await.unwrap();
            assert_eq!(version(&fresh, 35).await, "next");
            assert!(fresh.stat().await.unwrap().others <= 1, "batch {nth}, {applied:?}: the one that died");
            let directory = keys(&memory).await - built.blocks as usize;
            assert!((1..3).contains(&directory), "batch {nth}, {applied:?}: {directory} keys beside the blocks");
            let name = Name::new("t").unwrap();
            registry::drop_structure(&store, Ctx::default(), &name).await.unwrap();
            assert_eq!(memory.stats().items, 0, "batch {nth}, {applied:?}");
            if !died {
                break;
            }
        }
        assert!(seen[0] > 5 && seen[1] > 3, "{seen:?}");
    }
}

#[tokio::test]
async fn a_dropped_table_takes_along_what_a_dead_build_left() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    open(&store).await.build(rows("old", 30)).await.unwrap();
    assert!(die(&store, 6, Applied::All).await);
    let name = Name::new("t").unwrap();
    registry::drop_structure(&store, Ctx::default(), &name).await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

#[tokio::test]
async fn a_handle_sees_a_version_whose_builder_died_before_it_swept() {
    let mut seen = 0;
    for nth in 1.. {
        let store = memory();
        open(&store).await.build(rows("old", 30)).await.unwrap();
        let handle = open(&store).await;
        assert_eq!(version(&handle, 30).await, "old");
        if !die(&store, nth, Applied::All).await {
            break;
        }
        if version(&open(&store).await, 30).await == "new" && version(&handle, 30).await == "old" {
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            assert_eq!(version(&handle, 30).await, "new", "batch {nth}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no build died between the two");
}

#[tokio::test]
async fn a_store_that_went_back_is_told_to_who_saw_more() {
    let store = memory();
    let table = open(&store).await;
    table.build(rows("one", 30)).await.unwrap();
    let manifest = registry::find(&store, Ctx::default(), &Name::new("t").unwrap()).await.unwrap().unwrap();
    let head = Key::new(format!("L.t.b.{:016x}.0", manifest.generation)).unwrap();
    let before = store.get(head.clone()).await.unwrap().unwrap();
    table.build(rows("two", 30)).await.unwrap();
    assert_eq!(store.put(head, PutMode::Set, before.value, Ttl::Never).await.unwrap(), Reply::Stored);
    let error = table.stat().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
    assert!(error.to_string().contains("was at version 2 and is at 1"), "{error}");
    // A fresh process cannot know that there was more; it finds that what the head names is gone.
    let fresh = PackedTable::open(&store, "t").await.unwrap();
    for told in [fresh.get(0u64).await.map(drop), fresh.stat().await.map(drop)] {
        let error = told.unwrap_err();
        assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("directory of version 1"), "{error}");
    }
    fresh.build(rows("three", 30)).await.unwrap();
    assert_eq!(version(&fresh, 30).await, "three");
}

#[tokio::test]
async fn a_table_whose_directory_is_damaged_says_so_and_is_mended_by_a_build() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    open(&store).await.build(rows("one", 30)).await.unwrap();
    let of_directory = |key: &&Vec<u8>| key.ends_with(b"-p0");
    let key = contents(&memory).keys().find(of_directory).expect("a directory").clone();
    store.put(Key::new(key).unwrap(), PutMode::Set, "other", Ttl::Never).await.unwrap();
    let fresh = open(&store).await;
    let error = fresh.get(0u64).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    fresh.build(rows("two", 30)).await.unwrap();
    assert_eq!(version(&fresh, 30).await, "two");
}

/// Found by a simulation (`larder-prove simulation --seed 501347 --seconds 0`): a number is given twice, to two builds, and the blocks of one were read by the directory of
/// the other.
#[tokio::test]
async fn a_version_that_was_built_again_after_a_setback_is_no_version_that_was_seen() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let builder = open(&store).await;
    builder.build(rows("one", 30)).await.unwrap();
    let (saw_one, before) = (open(&store).await, contents(&memory));
    builder.build(rows("two", 30)).await.unwrap();
    let saw_two = [open(&store).await, open(&store).await, open(&store).await];
    set_back(&memory, &before);
    let again = open(&store).await.build(rows("another two", 40)).await.unwrap();
    assert_eq!(again.version, 2);
    // By a block, by a key that no row of its own version had, and by the head alone.
    let told = [
        saw_two[0].get(7u64).await.map(drop),
        saw_two[1].get(35u64).await.map(drop),
        saw_two[2].stat().await.map(drop),
        builder.build(rows("three", 30)).await.map(drop),
    ];
    for told in told {
        let error = told.expect_err("it saw another version 2");
        assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
        assert!(error.to_string().contains("was at version 2, and another build has that number now"), "{error}");
    }
    for table in [saw_one, open(&store).await] {
        assert_eq!(version(&table, 40).await, "another two");
    }
    open(&store).await.build(rows("three", 40)).await.unwrap();
    // What is later than all that it saw it may read.
    assert_eq!(version(&saw_two[0], 40).await, "three");
}

/// A builder whose version a setback took away goes on until it looks at the head: what it writes and removes by then is not another's of the same number.
#[tokio::test]
async fn a_builder_that_a_setback_overtakes_harms_no_version_of_the_same_number() {
    let mut ended = 0;
    for nth in 1.. {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        open(&store).await.build(rows("one", 30)).await.unwrap();
        let before = contents(&memory);
        let hooked = Hooked::with_batches_of(&store, BATCH_OPS);
        let overtaken = open(&hooked.shared()).await;
        let is_set_back = Arc::new(AtomicBool::new(false));
        let seen = is_set_back.clone();
        hooked.at(nth, move |store, batch| async move {
            set_back(&memory, &before);
            open(&store).await.build(rows("another two", 40)).await.unwrap();
            seen.store(true, Ordering::SeqCst);
            store.run(Ctx::default(), batch).await
        });
        let built = overtaken.build(rows("two", 40)).await;
        if !is_set_back.load(Ordering::SeqCst) {
            break;
        }
        // One that had not been announced yet comes after it.
        let expected = if built.as_ref().is_ok_and(|built| built.version == 3) { "two" } else { "another two" };
        assert_eq!(version(&open(&store).await, 40).await, expected, "batch {nth}: {built:?}");
        ended += u64::from(built.is_err_and(|error| error.kind() == ErrorKind::Conflict));
    }
    assert!(ended > 5, "no builder was overtaken while it wrote: {ended}");
}

#[tokio::test]
async fn blocks_that_are_gone_when_they_are_read_back_are_lost_where_nothing_is_evicted_and_else_had_no_room() {
    for (evicts, expected) in [(false, ErrorKind::Lost), (true, ErrorKind::Full)] {
        let memory = MemoryStore::builder().bytes_max(1 << 24).evict(evicts).build().unwrap();
        let store: StoreRef = Arc::new(memory);
        let mut is_told = false;
        for nth in 1..20 {
            open(&store).await.build(rows("one", 40)).await.unwrap();
            let hooked = Hooked::with_batches_of(&store, BATCH_OPS);
            let table = open(&hooked.shared()).await;
            // As a failover does it: the blocks of this batch were acknowledged, and the replica has none of them.
            hooked.at(nth, |store, batch| async move {
                let is_block = |op: &Op| matches!(op.verb, Verb::Put { mode: PutMode::Set, .. });
                let blocks: Vec<Key> = batch.iter().filter(|op| is_block(op)).map(|op| op.key.clone()).collect();
                let replies = store.run(Ctx::default(), batch).await;
                for key in blocks {
                    store.delete(key).await.unwrap();
                }
                replies
            });
            let Err(error) = table.build(rows("two", 40)).await else { continue };
            assert_eq!(error.kind(), expected, "batch {nth}: {error}");
            assert_eq!(error.known_effect(), Effect::NotApplied, "batch {nth}: {error}");
            assert_eq!(version(&open(&store).await, 40).await, "one", "batch {nth}: {error}");
            is_told = true;
        }
        assert!(is_told, "no batch had blocks");
    }
}

#[tokio::test]
async fn a_block_of_something_else_is_corrupt_and_no_row() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let table = open(&store).await;
    table.build(rows("one", 30)).await.unwrap();
    let key = |block: u32| {
        let is_it = |key: &&Vec<u8>| key.ends_with(format!("-{block:x}").as_bytes());
        Key::new(contents(&memory).keys().find(is_it).expect("a block").clone()).unwrap()
    };
    let other = store.get(key(1)).await.unwrap().unwrap();
    let good = store.get(key(0)).await.unwrap().unwrap();
    let mut flipped = good.value.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    for bytes in [other.value, flipped.into(), good.value.slice(..good.value.len() - 1), "".into()] {
        store.put(key(0), PutMode::Set, bytes, Ttl::Never).await.unwrap();
        let error = table.get(0u64).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("block 0"), "{error}");
    }
    store.put(key(0), PutMode::Set, good.value, Ttl::Never).await.unwrap();
    assert!(table.get(0u64).await.unwrap().is_some());
}

/// Fields that cannot be packed.
fn noise(fields: u64, bytes: usize) -> Rows {
    let mut random = fastrand::Rng::with_seed(fields);
    let mut rows = Rows::new(["noise"]).unwrap();
    for id in 0..fields {
        rows.push_id(id, [(0..bytes).map(|_| random.u8(..)).collect::<Vec<u8>>()]).unwrap();
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_a_server_has_no_room_for_is_told_and_the_old_one_stays() {
    let server = Memcached::start(Version::Old, &["-m", "8"]);
    let connected: StoreRef =
        Arc::new(MemcachedStore::connect(Config::from_url(&server.url()).unwrap()).await.unwrap());
    let full: StoreRef = Arc::new(MemoryStore::builder().bytes_max(1 << 20).build().unwrap());
    let evicting: StoreRef = Arc::new(MemoryStore::builder().bytes_max(1 << 20).evict(true).build().unwrap());
    for (store, count) in [(connected, 2_000), (full, 400), (evicting, 400)] {
        let table = PackedTable::open_or_create(&store, "t").await.unwrap();
        table.build(rows("old", 10)).await.unwrap();
        let error = table.build(noise(count, 8_000)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Lost), "{error}");
        assert!(!error.is_unknown(), "{error}");
        // Where the server evicts, what was there before may be gone as well: then that is said.
        match table.get(3u64).await {
            Ok(found) => assert_eq!(found.expect("a row").fields[0], "old"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        }
    }
}

#[tokio::test]
async fn progress_is_told_step_by_step() {
    let hooked = Hooked::with_batches_of(&memory(), BATCH_OPS);
    let table = open(&hooked.shared()).await;
    let mut told: Vec<Progress> = Vec::new();
    let built = table.build_told(rows("one", 60), &mut |progress| told.push(progress)).await.unwrap();
    let of = |step: Step| told.iter().filter(|progress| progress.step == step).collect::<Vec<_>>();
    assert_eq!(told.first(), Some(&Progress { step: Step::Packing, done: 0, all: 60 }));
    for step in [Step::Writing, Step::Verifying] {
        let told = of(step);
        assert!(told.len() > 2 && told.iter().is_sorted_by(|one, next| one.done < next.done), "{told:?}");
        assert!(told.iter().all(|progress| progress.all > u64::from(built.blocks)));
    }
    assert!(told.iter().is_sorted_by_key(|progress| progress.step as u8));
    assert_eq!(told.last().map(|progress| progress.done), told.last().map(|progress| progress.all));
}

/// It is most of what a large one takes.
#[tokio::test]
async fn how_many_rows_are_packed_is_told_while_they_are() {
    let table = open(&memory()).await;
    // Some tenths of a second of packing, of which a busy machine may sleep away one, or two.
    let first: u64 = if cfg!(debug_assertions) { 100_000 } else { 600_000 };
    for rows_count in [first, 2 * first, 4 * first] {
        let mut told: Vec<u64> = Vec::new();
        let mut packed = |progress: Progress| {
            if progress.step == Step::Packing {
                assert_eq!(progress.all, rows_count);
                told.push(progress.done);
            }
        };
        table.build_told(rows("one", rows_count), &mut packed).await.unwrap();
        assert!(told.is_sorted() && told.first() == Some(&0) && told.last() == Some(&rows_count), "{told:?}");
        if told.iter().any(|done| (1..rows_count).contains(done)) {
            return;
        }
    }
    panic!("nothing is told between the first row and the last");
}

#[tokio::test]
async fn a_name_of_something_else_and_bad_sizes_are_refused() {
    let store = memory();
    let table = PackedTable::options().block_bytes(63).open_or_create(&store, "t").await.unwrap_err();
    assert!(table.kind() == ErrorKind::BadInput && table.to_string().contains("64 to"), "{table}");
    assert_eq!(store.run(Ctx::default(), Batch::new()).await.len(), 0);
    assert_eq!(PackedTable::open(&store, "t").await.unwrap_err().kind(), ErrorKind::Absent, "nothing was made");
    let rows = CsvOptions::new().read("id,a\n1,x\n".as_bytes()).unwrap();
    assert_eq!(open(&store).await.build(rows).await.unwrap().rows, 1);
}

#[test]
fn without_a_runtime_a_build_says_so() {
    let store = memory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let table = runtime.block_on(open(&store));
    drop(runtime);
    use std::future::Future as _;
    let mut build = std::pin::pin!(table.build(rows("one", 3)));
    let waker = std::task::Waker::noop();
    let std::task::Poll::Ready(built) = build.as_mut().poll(&mut std::task::Context::from_waker(waker)) else {
        panic!("it waits for nothing")
    };
    assert_eq!(built.unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Builds `rows` of `version` by a program that dies right after it announced them.
async fn announce_and_die(store: &StoreRef, version: &str) {
    let hooked = Hooked::new(store);
    let table = open(&hooked.shared()).await;
    (3..100).for_each(|nth| hooked.refuse(nth));
    table.build(rows(version, 3)).await.unwrap_err();
}

#[tokio::test]
async fn a_build_that_was_ended_before_it_saw_itself_announced_is_over() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let table = open(&hooked.shared()).await;
    // Batch 1 reads the head, batch 2 announces.
    hooked.at(2, |store, batch| async move {
        _ = store.run(Ctx::default(), batch.clone()).await;
        announce_and_die(&store, "later").await;
        fail(&batch, Effect::Unknown)
    });
    let error = table.build(rows("earlier", 3)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
    assert_eq!(open(&store).await.stat().await.unwrap().version, None);
}

#[tokio::test]
async fn a_build_that_was_in_force_before_its_maker_knew_is_unknown_once_another_took_its_place() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let table = open(&hooked.shared()).await;
    // Two batches announce, two write and verify, the fifth reads the head, and the sixth puts the version in force.
    hooked.at(6, |store, batch| async move {
        _ = store.run(Ctx::default(), batch.clone()).await;
        let other = open(&store).await;
        assert_eq!(version(&other, 3).await, "first", "it is in force");
        other.build(rows("second", 3)).await.unwrap();
        fail(&batch, Effect::Unknown)
    });
    let error = table.build(rows("first", 3)).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(version(&table, 3).await, "second");
}

#[tokio::test]
async fn a_store_that_fails_while_a_table_is_opened_is_told() {
    let store = memory();
    open(&store).await.build(rows("old", 30)).await.unwrap();
    let mut refused = 0;
    loop {
        let hooked = Hooked::new(&store);
        hooked.refuse(refused + 1);
        match PackedTable::options().block_bytes(64).open(&hooked.shared(), "t").await {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        refused += 1;
        assert!(refused < 10);
    }
    assert!(refused >= 2, "the manifest, and what it says of the table");
    assert_eq!(version(&open(&store).await, 30).await, "old");
}

/// The batches of a build of few rows: one reads the head, one announces, one writes, one verifies, one reads the head again, and the sixth puts the version in force.
const PUBLISHES: u64 = 6;

fn failed(batch: &Batch, kind: ErrorKind) -> larder_core::Replies {
    batch.iter().map(|_| Err(larder_core::Error::new(kind, "as the test wants").effect(Effect::NotApplied))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_build_goes_on_past_a_fault_that_passes_at_any_step_after_a_pause() {
    for nth in 1..=PUBLISHES {
        let hooked = Hooked::new(&memory());
        let table = open(&hooked.shared()).await;
        hooked.refuse(nth);
        let begin = tokio::time::Instant::now();
        let built = table.build(rows("one", 3)).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        assert_eq!((built.version, built.rows), (1, 3));
        assert_eq!(version(&table, 3).await, "one");
        assert!(begin.elapsed() > Duration::ZERO, "batch {nth} was sent again at once");
    }
}

#[tokio::test]
async fn a_build_ends_at_a_fault_that_does_not_pass_and_leaves_none_of_its_keys() {
    for (nth, is_announced) in [(1, false), (3, true), (4, true), (5, true)] {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        open(&store).await.build(rows("old", 30)).await.unwrap();
        let before = contents(&memory);
        let hooked = Hooked::new(&store);
        let table = open(&hooked.shared()).await;
        hooked.at(nth, |_, batch| async move { failed(&batch, ErrorKind::Protocol) });
        let error = table.build(rows("new", 3)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::NotApplied), "batch {nth}");
        assert!(contents(&memory).keys().eq(before.keys()), "batch {nth}: keys are left");
        let fresh = open(&store).await;
        assert_eq!(fresh.stat().await.unwrap().others, usize::from(is_announced), "batch {nth}");
        assert_eq!(version(&fresh, 30).await, "old", "batch {nth}");
    }
}

#[tokio::test]
async fn what_a_dead_build_left_is_removed_before_the_next_one_takes_room() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    open(&store).await.build(rows("old", 30)).await.unwrap();
    let before = memory.stats().items;
    assert!(die(&store, 6, Applied::All).await);
    assert!(memory.stats().items > before, "it left none");
    let full = Sieve::answering(&store, |_, op| {
        let is_block = matches!(op.verb, Verb::Put { mode: PutMode::Set, .. });
        is_block.then(|| Err(larder_core::Error::new(ErrorKind::Full, "no room").effect(Effect::NotApplied)))
    });
    let error = open(&full).await.build(rows("new", 3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(memory.stats().items, before);
    assert_eq!(version(&open(&store).await, 30).await, "old");
}

/// The next build removes what a dead one wrote, and goes on listing it: what comes once that has ended, too, is removed by the one after.
#[tokio::test]
async fn a_batch_of_a_dead_build_that_comes_after_the_next_one_is_removed_in_the_end() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    open(&store).await.build(rows("old", 30)).await.unwrap();
    let alone = memory.stats().items;
    let hooked = Hooked::new(&store);
    let (table, late, died) = (open(&hooked.shared()).await, Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let (sent, dies) = (late.clone(), died.clone());
    hooked.at(3, move |_, batch| async move {
        *sent.lock().unwrap() = Some(batch);
        dies.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        _ = table.build(rows("dead", 30)) => panic!("it came to an end"),
        () = died.notified() => {}
    }
    open(&store).await.build(rows("next", 30)).await.unwrap();
    let batch: Batch = late.lock().unwrap().take().unwrap();
    assert!(batch.iter().any(|op| matches!(op.verb, Verb::Put { mode: PutMode::Set, .. })), "it writes blocks");
    store.run(Ctx::default(), batch).await;
    assert!(memory.stats().items > alone, "they came");
    let built = open(&store).await.build(rows("last", 30)).await.unwrap();
    assert_eq!((built.is_swept, memory.stats().items), (true, alone));
    assert_eq!(open(&store).await.stat().await.unwrap().others, 0);
}

/// What could not be removed stays listed, whoever builds then: nothing else names its keys.
#[tokio::test(start_paused = true)]
async fn versions_that_builds_cannot_remove_are_removed_by_one_that_can() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    open(&store).await.build(rows("first", 30)).await.unwrap();
    let alone = memory.stats().items;
    let undying = Sieve::answering(&store, |_, op| {
        let down = || Err(larder_core::Error::new(ErrorKind::Unavailable, "down").effect(Effect::NotApplied));
        matches!(op.verb, Verb::Delete { .. }).then(down)
    });
    // As many as are listed, and one that has no place.
    for number in 2..=17 {
        let built = open(&undying).await.build(rows("another", 30)).await.unwrap();
        assert_eq!((built.version, built.is_swept), (number, false));
    }
    let error = open(&undying).await.build(rows("one too many", 30)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(version(&open(&store).await, 30).await, "another");
    let built = open(&store).await.build(rows("last", 30)).await.unwrap();
    assert_eq!((built.is_swept, memory.stats().items), (true, alone));
}

/// The servers of the head and of a block may be two.
#[tokio::test]
async fn a_row_is_read_though_the_server_of_the_head_is_away_where_a_look_at_it_is_due() {
    let store = memory();
    let mut some = Rows::new(["word"]).unwrap();
    (10..40u64).for_each(|id| some.push_id(id, [format!("word {id}")]).unwrap());
    open(&store).await.build(some).await.unwrap();
    let (is_away, tells) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (away, counts) = (is_away.clone(), tells.clone());
    let sieve = Sieve::answering(&store, move |_, op| {
        let is_head = matches!(&op.verb, Verb::Get { want } if want.contains(Want::CAS));
        (away.load(Ordering::SeqCst) && is_head).then(|| {
            counts.fetch_add(1, Ordering::SeqCst);
            Err(larder_core::Error::new(ErrorKind::Unavailable, "down").effect(Effect::NotApplied))
        })
    });
    let table = open(&sieve).await;
    is_away.store(true, Ordering::SeqCst);
    for looks in 1..=2 {
        // A look is due once a second.
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        assert!(table.get(LookupKey::from(17)).await.unwrap().is_some());
        assert_eq!(tells.load(Ordering::SeqCst), looks, "a look was due");
        // That no row has it only the head can say.
        assert_eq!(table.get(LookupKey::from(7)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        tells.store(looks, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_columns_are_those_of_the_version_that_was_read() {
    let store = memory();
    let table = open(&store).await;
    assert!(table.columns().is_empty(), "nothing was built");
    table.build(rows("one", 3)).await.unwrap();
    for table in [&table, &open(&store).await] {
        assert_eq!(table.columns(), ["version", "word"]);
    }
    let before = table.get(1u64).await.unwrap().unwrap();
    let csv = "id,note,version\n1,x,two\n";
    table.build(CsvOptions::new().read(csv.as_bytes()).unwrap()).await.unwrap();
    let after = table.get(1u64).await.unwrap().unwrap();
    assert_eq!([&before, &after].map(|row| row.field("version").unwrap()), ["one", "two"]);
    assert_eq!((before.field("note"), after.field("word")), (None, None));
    assert_eq!(
        (&before.columns[..], &after.columns[..]),
        (&["version", "word"].map(String::from)[..], &table.columns()[..])
    );
    let found = larder_structures::inspect::inspect(&store, Ctx::default(), &Name::new("t").unwrap()).await.unwrap();
    let found = found.expect("a table");
    assert_eq!(found.params, [("kept in", "blocks of packed rows, by versions".to_owned())]);
}

#[tokio::test]
async fn a_version_whose_place_another_takes_before_it_is_read_is_not_lost() {
    let store = memory();
    let builder = open(&store).await;
    builder.build(rows("one", 30)).await.unwrap();
    let hooked = Hooked::new(&store);
    let reader = open(&hooked.shared()).await;
    builder.build(rows("two", 30)).await.unwrap();
    // It reads the head, then the directory.
    hooked.at(2, move |store, batch| async move {
        builder.build(rows("three", 30)).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(reader.stat().await.unwrap().version, Some(3));
    assert_eq!(version(&reader, 30).await, "three");
}

#[tokio::test]
async fn every_request_of_a_table_has_the_time_that_its_options_give() {
    let deadlines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = deadlines.clone();
    let store = Sieve::answering(&memory(), move |ctx, _| {
        seen.lock().unwrap().push(ctx.deadline);
        None
    });
    let options = PackedTable::options().block_bytes(64).timeout(Duration::from_secs(60));
    let table = options.open_or_create(&store, "t").await.unwrap();
    table.build(rows("one", 3)).await.unwrap();
    table.stat().await.unwrap();
    table.get(1u64).await.unwrap();
    let latest = std::time::Instant::now() + Duration::from_secs(60);
    let deadlines = std::mem::take(&mut *deadlines.lock().unwrap());
    assert!(deadlines.len() > 10 && deadlines.iter().all(|at| at.is_some_and(|at| at <= latest)), "{deadlines:?}");
}

/// Two reads of one handle, each of which saw a version 2 of its own: what is known first stays, so that the other is told at the next look.
#[tokio::test]
async fn of_two_versions_of_one_number_that_a_handle_reads_at_once_the_second_is_told() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    open(&store).await.build(rows("one", 30)).await.unwrap();
    let before = contents(&memory);
    let hooked = Hooked::new(&store);
    let handle = open(&hooked.shared()).await;
    open(&store).await.build(rows("two", 30)).await.unwrap();
    let (late, is_read, may_go) = (handle.clone(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (reads, goes) = (is_read.clone(), may_go.clone());
    // The first one's second batch has the directory; the second one's is the fourth.
    hooked.at(4, move |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        reads.notify_one();
        goes.notified().await;
        replies
    });
    let second = Arc::new(std::sync::Mutex::new(None));
    let spawned = second.clone();
    hooked.at(2, move |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        set_back(&memory, &before);
        open(&store).await.build(rows("another two", 30)).await.unwrap();
        *spawned.lock().unwrap() = Some(tokio::spawn(async move { late.stat().await.map(drop) }));
        is_read.notified().await;
        replies
    });
    assert_eq!(handle.stat().await.unwrap().version, Some(2));
    may_go.notify_one();
    let second = second.lock().unwrap().take().expect("it was begun");
    _ = second.await.unwrap();
    let error = handle.stat().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
}

#[tokio::test]
async fn a_look_that_a_later_one_of_the_handle_overtakes_tells_what_that_one_saw_and_costs_one_round_trip() {
    let store = memory();
    let builder = open(&store).await;
    builder.build(rows("one", 30)).await.unwrap();
    let hooked = Hooked::new(&store);
    let counting = metered(hooked.shared());
    let shared: StoreRef = Arc::new(counting.clone());
    let handle = open(&shared).await;
    builder.build(rows("two", 30)).await.unwrap();
    let other = handle.clone();
    hooked.at(1, move |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        builder.build(rows("three", 30)).await.unwrap();
        assert_eq!(other.stat().await.unwrap().version, Some(3));
        replies
    });
    let before = counting.counts();
    assert_eq!(handle.stat().await.unwrap().version, Some(3));
    // The later one read the head and the directory.
    assert_eq!(counting.counts().since(&before).round_trips, 1 + 2);
}

fn networks(word: &str) -> Rows {
    let mut rows = Rows::new(["word"]).unwrap();
    rows.push_network("192.0.2.0/24", [word]).unwrap();
    rows
}

/// A number that a table of addresses cannot have may be one of the version that took its place.
#[tokio::test]
async fn a_handle_that_knows_addresses_finds_the_numbers_that_were_built_since() {
    let counting = metered(memory());
    let store: StoreRef = Arc::new(counting.clone());
    let builder = open(&store).await;
    builder.build(networks("one")).await.unwrap();
    let (address, number): (LookupKey, LookupKey) = ("192.0.2.9".parse().unwrap(), 7u64.into());
    let [reader, fresh, of_both] = [open(&store).await, open(&store).await, open(&store).await];
    for handle in [&reader, &of_both] {
        for _ in 0..2 {
            let before = counting.counts();
            let error = handle.get_many(&[address, number]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
            assert!(error.to_string().contains("is of addresses, and 7 is a number"), "{error}");
            assert_eq!(counting.counts().since(&before).round_trips, 1);
            assert_eq!(&handle.get(address).await.unwrap().unwrap().fields[0][..], b"one");
        }
    }
    builder.build(rows("two", 30)).await.unwrap();
    for handle in [&reader, &fresh] {
        let before = counting.counts();
        assert_eq!(&handle.get(number).await.unwrap().expect("a row").fields[0][..], b"two");
        assert_eq!(counting.counts().since(&before).round_trips, 3);
    }
    let found = of_both.get_many(&[number, address]).await.unwrap();
    assert!(found[0].is_some() && found[1].is_none(), "{found:?}");
    // And back: the numbers are refused once addresses are in force.
    builder.build(networks("three")).await.unwrap();
    assert_eq!(&of_both.get(address).await.unwrap().expect("a row").fields[0][..], b"three");
    assert_eq!(reader.get(number).await.unwrap_err().kind(), ErrorKind::BadInput);
}

/// Where no block of the old version is gone yet, a handle learns of the new one by its look at the head: calls that are refused leave it to others.
#[tokio::test]
async fn a_number_that_is_refused_takes_no_look_from_those_behind_it() {
    let counting = metered(memory());
    let store: StoreRef = Arc::new(counting.clone());
    open(&store).await.build(networks("one")).await.unwrap();
    let address: LookupKey = "192.0.2.9".parse().unwrap();
    let reader = open(&store).await;
    reader.get(7u64).await.unwrap_err();
    let before = counting.counts();
    reader.get(address).await.unwrap();
    assert!(counting.counts().since(&before).ops >= 2, "the first look is due: a block, and the head");
}

#[tokio::test]
async fn a_build_that_died_is_told_of_a_table_that_has_no_version_yet() {
    let store = memory();
    open(&store).await;
    assert!(die(&store, 3, Applied::Nothing).await);
    let stat = open(&store).await.stat().await.unwrap();
    assert_eq!((stat.version, stat.others), (None, 1));
}
