//! What the shards of a structure tell, and what is dirty in them.

use larder_core::{Key, PutMode, StoreExt, SystemClock};
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;

use super::*;
use crate::append::Action;
use crate::events::tests::{listen, told};
use crate::ledger::layout::Entries;
use crate::manifest::{self, Kind};

const DIRTY_BYTES: usize = 64;

/// Shards over a fresh store, which is given, too.
async fn made(name: &str, count: u16) -> (StoreRef, Arc<Shards<Entries>>) {
    made_by(name, count, SystemClock::shared()).await
}

async fn made_by(name: &str, count: u16, clock: ClockRef) -> (StoreRef, Arc<Shards<Entries>>) {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let name = Name::new(name).unwrap();
    let new = Manifest::new(Kind::Set, 1, count, Bytes::new());
    let data_of = |new: &Manifest| Ok(vec![Shards::<Entries>::create_ops(&name, new)?]);
    let manifest = manifest::create(&store, Ctx::default(), &name, new, data_of).await.unwrap();
    let tuning = Tuning { clock, dirty_bytes: DIRTY_BYTES };
    (store.clone(), Arc::new(Shards::new(&store, &name, &manifest, tuning).unwrap()))
}

/// One write of one writer, as any handle makes it.
async fn append(store: &StoreRef, shards: &Shards<Entries>, (writer, seq): (u64, u64), elements: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    elements.iter().for_each(|element| layout::put_element(&mut bytes, Action::Put, element));
    let frame = layout::frame(shards.place(0), writer, seq, &bytes);
    let op = shards.op(0, |key: Key| Op::put(key, PutMode::Append, frame, Ttl::Never));
    assert_eq!(store.run_one(Ctx::default(), op).await.unwrap(), Reply::Stored);
}

async fn is_dirty(shards: &Shards<Entries>) -> bool {
    let readings = shards.read(Ctx::default(), [0]).await.unwrap();
    let folded = shards.state(&readings[0]).unwrap();
    shards.is_dirty(&readings[0], &folded)
}

#[tokio::test]
async fn a_value_is_dirty_by_what_is_stale_in_it_and_not_by_its_writers() {
    let (store, shards) = made("dirty", 1).await;
    let element = vec![vec![b'x'; 40]];
    append(&store, &shards, (1, 1), &element).await;
    assert!(!is_dirty(&shards).await, "nothing is stale");
    for writer in 2..100 {
        append(&store, &shards, (writer, 1), &element).await;
    }
    assert!(is_dirty(&shards).await, "99 times the same");
    shards.compact(Ctx::default()).await.unwrap();
    // Its writers take far more than its element, and than the dirt that is let be: no compaction would save that.
    assert!(!is_dirty(&shards).await);
}

#[tokio::test]
async fn a_large_value_is_looked_at_again_only_after_a_quarter_of_it_was_appended() {
    let (store, shards) = made("large", 1).await;
    assert_eq!(shards.look_bytes(), DIRTY_BYTES * LOOK_EVERY_DIRTY_BYTES);
    let elements: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 100]).collect();
    append(&store, &shards, (1, 1), &elements).await;
    shards.look_behind(vec![0]);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!((2_500..2_600).contains(&shards.look_bytes()), "{} of some 10,000 bytes", shards.look_bytes());
}

#[tokio::test]
async fn a_compaction_tells_how_it_ended() {
    listen();
    let (store, shards) = made("told", 1).await;
    for seq in 1..3 {
        append(&store, &shards, (1, seq), &[vec![b'x'; 40]]).await;
    }
    let stats = shards.compact(Ctx::default()).await.unwrap();
    assert_eq!((stats[0].elements, stats[0].stale_bytes()), (1, 0));
    assert_eq!(told("told"), ["compaction begun", "compaction done"]);
}

#[tokio::test]
async fn the_shards_that_are_gone_are_named_and_of_many_the_first_and_how_many_more() {
    let (store, shards) = made("gone", 9).await;
    for (count, named) in [(1, "0"), (8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more")] {
        for shard in 0..count {
            _ = store.run_one(Ctx::default(), shards.op(shard, Op::delete)).await.unwrap();
        }
        let error = shards.read(Ctx::default(), 0..shards.count()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains(&format!("set \"gone\": shard {named} of 9 is gone")), "{error}");
    }
}

/// A clock of which a second passes each time that it is asked.
#[derive(Debug)]
struct Runs(AtomicUsize);

impl larder_core::Clock for Runs {
    fn wall(&self) -> Duration {
        Duration::from_secs(1_000_000 + self.0.fetch_add(1, Ordering::Relaxed) as u64)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// Writers that were silent for ten minutes are forgotten, though their time is up only while the figures are made.
#[tokio::test]
async fn the_figures_of_a_compaction_are_those_of_what_it_wrote() {
    let clock = Arc::new(Runs(AtomicUsize::new(0)));
    let (store, shards) = made_by("figures", 1, clock.clone()).await;
    let element = vec![vec![b'x'; 40]];
    for writer in 1..40 {
        append(&store, &shards, (writer, 1), &element).await;
    }
    shards.compact(Ctx::default()).await.unwrap();
    let compacted_at = clock.0.load(Ordering::Relaxed) - 1;
    append(&store, &shards, (1, 2), &element).await;
    clock.0.store(compacted_at + 600, Ordering::Relaxed);
    let stat = shards.compact(Ctx::default()).await.unwrap()[0];
    assert_eq!(
        (stat.bytes, stat.live_bytes),
        (shards.read(Ctx::default(), [0]).await.unwrap()[0].item.value.len(), stat.bytes)
    );
    assert!(stat.bytes < 400, "{} bytes: most writers are forgotten", stat.bytes);
}

#[tokio::test]
async fn what_was_read_of_a_shard_is_seen_of_it() {
    let (store, shards) = made("seen", 2).await;
    append(&store, &shards, (1, 1), &[vec![b'x'; 40]]).await;
    let readings = shards.read(Ctx::default(), [0]).await.unwrap();
    shards.state(&readings[0]).unwrap();
    assert_eq!(shards.seen(0).newest, (0, readings[0].item.value.len()));
    assert_eq!(shards.seen(1).newest, (0, 0), "nobody read it");
}

#[tokio::test]
async fn as_many_stale_bytes_as_are_let_be_are_let_be_and_so_are_as_many_as_are_live() {
    let (_, shards) = made("edge", 1).await;
    let is_stale = |stale, live| shards.is_stale(stale + live, live);
    assert_eq!([is_stale(DIRTY_BYTES, 10), is_stale(DIRTY_BYTES + 1, 10)], [false, true]);
    assert_eq!([is_stale(1_000, 1_000), is_stale(1_001, 1_000)], [false, true]);
}

#[tokio::test]
async fn the_figures_behind_a_compaction_count_no_removals() {
    let (store, shards) = made("removals", 1).await;
    append(&store, &shards, (1, 1), &[vec![b'x'; 40]]).await;
    let mut bytes = Vec::new();
    layout::put_element(&mut bytes, Action::Remove, &[b'x'; 40]);
    let frame = layout::frame(shards.place(0), 1, 2, &bytes);
    let op = shards.op(0, |key: Key| Op::put(key, PutMode::Append, frame, Ttl::Never));
    assert_eq!(store.run_one(Ctx::default(), op).await.unwrap(), Reply::Stored);
    let reading = shards.read(Ctx::default(), [0]).await.unwrap().pop().unwrap();
    let before = shards.stat(&reading, &shards.state(&reading).unwrap());
    let after = shards.compact(Ctx::default()).await.unwrap()[0];
    assert_eq!([before.removals, after.removals], [1, 0]);
    let reading = shards.read(Ctx::default(), [0]).await.unwrap().pop().unwrap();
    assert_eq!(shards.stat(&reading, &shards.state(&reading).unwrap()), after, "as whoever reads it finds it");
}

#[tokio::test(start_paused = true)]
async fn a_compaction_that_the_store_refused_is_told_and_one_in_doubt_is_tried_again() {
    for (fault, is_told) in [(Fault::NotSent, true), (Fault::LostReply, false)] {
        let (store, _) = made("refused", 1).await;
        let faulty = Faulty::new(store.clone());
        let name = Name::new("refused").unwrap();
        let manifest = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
        let tuning = Tuning { clock: SystemClock::shared(), dirty_bytes: DIRTY_BYTES };
        let shards = Shards::<Entries>::new(&faulty.shared(), &name, &manifest, tuning).unwrap();
        for seq in 1..3 {
            append(&store, &shards, (1, seq), &[vec![b'x'; 40]]).await;
        }
        // The first op reads.
        faulty.fail_nth(2, fault);
        let outcome = shards.compact(Ctx::default()).await;
        assert_eq!(faulty.injected(), 1);
        match outcome {
            Err(error) => assert!(is_told && error.kind() == ErrorKind::Unavailable && !error.is_unknown(), "{error}"),
            Ok(stats) => assert!(!is_told && stats[0].stale_bytes() == 0, "{stats:?}"),
        }
    }
}

#[tokio::test]
async fn what_became_of_a_compactions_write_is_told() {
    listen();
    let (_, shards) = made("became", 1).await;
    let broken = Err(Error::new(ErrorKind::Unavailable, "as the test wants"));
    for reply in [Ok(Reply::Stored), Ok(Reply::Exists), Ok(Reply::Miss), broken] {
        shards.tell_reply(0, &reply);
    }
    assert_eq!(told("became"), ["compaction done", "compaction met", "compaction failed", "compaction failed"]);
}

#[tokio::test]
async fn the_smallest_values_that_a_shard_lives_under_have_room_for_as_much_as_it_reserves() {
    let name = Name::new("small").unwrap();
    let manifest = Manifest::new(Kind::Set, 1, 1, Bytes::new());
    let key_bytes = manifest.data_key(&name, 0).unwrap().as_bytes().len();
    let made = |bytes: usize| {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(bytes).build().unwrap());
        let room_bytes = store.profile().value_bytes_max(key_bytes);
        let tuning = Tuning { clock: SystemClock::shared(), dirty_bytes: DIRTY_BYTES };
        (room_bytes, Shards::<Entries>::new(&store, &name, &manifest, tuning))
    };
    // What an item has room for beside the value.
    let beside = made(100_000).0 - 100_000;
    let (room_bytes, smallest) = made(2 * RESERVED_BYTES - beside);
    assert_eq!((room_bytes, smallest.unwrap().elements_bytes_max()), (2 * RESERVED_BYTES, RESERVED_BYTES));
    let Err(error) = made(2 * RESERVED_BYTES - beside - 1).1 else { panic!("it has no room") };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// A store whose items take less than those of the one behind it.
#[derive(Debug)]
struct Smaller(StoreRef, usize);

impl larder_core::Store for Smaller {
    fn profile(&self) -> Arc<larder_core::Profile> {
        let profile = (*self.0.profile()).clone();
        Arc::new(larder_core::Profile { item_bytes_max: self.1, ..profile })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> larder_core::Run<'a> {
        self.0.run(ctx, batch)
    }
}

#[tokio::test]
async fn a_shard_is_written_anew_where_that_fills_an_item_to_the_byte() {
    let (store, shards) = made("filled", 1).await;
    let elements: Vec<Vec<u8>> = (0..200u8).map(|number| vec![number; 100]).collect();
    append(&store, &shards, (1, 1), &elements).await;
    let bytes = shards.compact_these(Ctx::default(), vec![0], true).await.unwrap()[0].bytes;
    let name = Name::new("filled").unwrap();
    let manifest = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
    let beside = store.profile().item_bytes_max - shards.value_bytes_max();
    for (room_bytes, is_full) in [(bytes, false), (bytes - 1, true)] {
        let smaller: StoreRef = Arc::new(Smaller(store.clone(), room_bytes + beside));
        let tuning = Tuning { clock: SystemClock::shared(), dirty_bytes: DIRTY_BYTES };
        let shards = Shards::<Entries>::new(&smaller, &name, &manifest, tuning).unwrap();
        assert_eq!(shards.value_bytes_max(), room_bytes);
        match shards.compact_these(Ctx::default(), vec![0], true).await {
            Ok(stats) => assert!(!is_full && stats[0].bytes == bytes, "{stats:?} of {room_bytes}"),
            Err(error) => assert!(is_full && error.kind() == ErrorKind::Full, "{error}"),
        }
    }
}
