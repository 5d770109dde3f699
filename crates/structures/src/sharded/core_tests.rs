use larder_core::{Profile, PutMode, Run, Store, StoreExt, Ttl};
use tokio::sync::Semaphore;

use super::*;
use crate::answering_tests::{Answering, fails};
use crate::sharded::layout::LAYOUT;
use crate::sharded::reshard::Aim;
use crate::sharded::write::Change;

fn hash() -> Core {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let manifest = Manifest::new(Kind::ShardedHash, LAYOUT, 1, Bytes::new());
    let params = Params { kept: Kept::Native, is_dense: false, limits: None };
    let plan = Plan { version: 1, map: Map { id: 1, shards: 1, per_shard: 0 }, phase: Phase::Stable };
    Core::new(&store, &Name::new("n").unwrap(), manifest, params, plan, Duration::from_secs(5)).unwrap()
}

/// A reply that has these of the marks live, sealed and unfilled, and then values.
fn reply(marks: [bool; 3], values: &[&'static str]) -> Reply {
    let marks = marks.map(|has| has.then(|| Bytes::from_static(b"1")));
    let values = values.iter().map(|value| Some(Bytes::from_static(value.as_bytes())));
    Reply::from(NativeReply::Values(marks.into_iter().chain(values).collect()))
}

#[test]
fn a_native_shard_is_what_its_mark_says() {
    let hash = hash();
    for (marks, mark) in [
        ([true, false, false], Mark::Live),
        ([false, true, false], Mark::Sealed),
        ([false, false, true], Mark::Unfilled),
        ([false, false, false], Mark::Missing),
    ] {
        assert_eq!(hash.values(reply(marks, &["v"])).unwrap(), (mark, vec![Some(Bytes::from("v"))]));
        assert_eq!(hash.values(reply(marks, &[])).unwrap(), (mark, vec![]));
    }
    for strange in [NativeReply::Values(vec![None, None]), NativeReply::Flags(Vec::new()), NativeReply::Count(3)] {
        let error = hash.values(strange.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
}

#[tokio::test]
async fn whether_a_number_is_taken_is_told_by_the_map_that_is_known() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let settings = crate::sharded::make::Settings { shards: Some(3), dense: Some(100), ..Default::default() };
    let set = settings.open(&store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
    assert!(set.takes(b"0").is_ok() && set.takes(b"299").is_ok());
    for name in ["300", "x", "01"] {
        assert_eq!(set.takes(name.as_bytes()).unwrap_err().kind(), ErrorKind::BadInput, "{name}");
    }
}

/// Who counts a shard looks at its mark before and after: filled in between, the count may be of either.
#[test]
fn a_count_of_a_native_shard_holds_where_it_was_the_same_before_and_after() {
    let hash = hash();
    let (live, unfilled, sealed) = ([true, false, false], [false, false, true], [false, true, false]);
    for (before, after, mark) in [
        (live, live, Mark::Live),
        (unfilled, live, Mark::Turned),
        (live, sealed, Mark::Sealed),
        (unfilled, unfilled, Mark::Unfilled),
    ] {
        let replies = [reply(before, &[]), NativeReply::Count(5).into(), reply(after, &[])];
        let sight = hash.sight(&Ask::Count, &mut replies.into_iter().map(Ok)).unwrap();
        assert_eq!(sight.mark, mark);
        // The mark is no element.
        assert!(matches!(sight.found, Found::Count(4)), "{sight:?}");
    }
}

/// Others dropped it, and it was resharded meanwhile: shards may be left that take everything.
#[tokio::test]
async fn a_handle_that_misses_its_map_acknowledges_nothing_from_then_on() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let settings = crate::sharded::make::Settings { shards: Some(1), ..Default::default() };
    let name = Name::new("n").unwrap();
    let set = settings.open(&store, &name, Kind::ShardedSet, true).await.unwrap();
    let get = Op::get(set.map_key.clone(), Want::VALUE);
    let map = store.run_one(Ctx::default(), get).await.unwrap().into_item().unwrap().value;
    let put = |value: Bytes| Op::put(set.map_key.clone(), PutMode::Set, value, Ttl::Never);
    let names = [Bytes::from_static(b"a")];
    let add = async || set.change(&names, &[Change::Put(Bytes::new())]).await;
    store.run_one(Ctx::default(), Op::delete(set.map_key.clone())).await.unwrap();
    set.next_look_ms.store(0, Ordering::Relaxed);
    for (then, kind) in [(Bytes::from_static(b"another"), ErrorKind::Lost), (map, ErrorKind::LayoutMismatch)] {
        for _ in 0..2 {
            let error = add().await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (kind, Effect::NotApplied), "{error}");
            assert_eq!(set.get(&names).await.unwrap_err().kind(), kind);
        }
        store.run_one(Ctx::default(), put(then)).await.unwrap();
    }
    add().await.unwrap();
    assert!(!set.is_look_due(), "the next look is due in a minute");
    // What was written beside the look may be there.
    let replies = async |ops| set.run(Ctx::default(), Batch::from_iter(ops)).await;
    store.run_one(Ctx::default(), Op::delete(set.map_key.clone())).await.unwrap();
    set.next_look_ms.store(0, Ordering::Relaxed);
    let key = Key::new("k").unwrap();
    let ops = [Op::get(key.clone(), Want::VALUE), Op::put(key, PutMode::Set, "v", Ttl::Never)];
    let told: Vec<_> = replies(ops).await.into_iter().map(|reply| reply.unwrap_err().known_effect()).collect();
    assert_eq!(told, [Effect::NotApplied, Effect::Unknown]);
}

/// Of maps of one version, and of older ones, the one that was read later is gone by, and who knew the other is told.
#[test]
fn a_map_is_heeded_though_another_one_of_its_version_is_known() {
    let hash = hash();
    let plan = |version, id| Plan { version, map: Map { id, shards: 1, per_shard: 0 }, phase: Phase::Stable };
    let (old, ours, theirs) = (plan(3, 1), plan(6, 2), plan(6, 3));
    assert_eq!(hash.heed(&hash.plan(), ours).unwrap(), ours);
    assert_eq!(hash.heed(&ours, ours).unwrap(), ours);
    assert_eq!(hash.learn(theirs), ours);
    // Others have overtaken a read of before.
    assert_eq!(hash.heed(&old, theirs).unwrap(), ours);
    let told = |before: &Plan, read: Plan| {
        let error = hash.heed(before, read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
        error.to_string()
    };
    assert!(told(&ours, theirs).contains("was at version 6, and another has that version now"));
    assert_eq!(hash.plan(), theirs);
    // A task that asked while the other was known has nothing to say against what was read since.
    assert!(told(&ours, old).contains("was at version 6 and is at 3"));
    assert_eq!(hash.plan(), theirs);
    told(&theirs, old);
    assert_eq!(hash.plan(), old);
    assert_eq!(hash.heed(&old, theirs).unwrap(), theirs);
}

/// Two tasks go by a map: the one is told that the store went back, and so is the other, who reads what the first has learned.
#[tokio::test]
async fn a_task_that_went_by_the_map_before_is_told_as_well() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let settings = crate::sharded::make::Settings { shards: Some(1), ..Default::default() };
    let set = settings.open(&store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
    let now = set.plan();
    for before in [Plan { version: now.version + 1, ..now }, Plan { map: Map { id: !now.map.id, ..now.map }, ..now }] {
        let mut strikes = 0;
        let again = set.look_again(Ctx::default(), &before, &Unusable::default(), &mut strikes).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::RolledBack);
    }
    let before = Plan { version: now.version - 1, ..now };
    set.look_again(Ctx::default(), &before, &Unusable::default(), &mut 0).await.unwrap();
}

/// A look beside other ops; where only the map went back, these are of shards that no map names, and nothing is written there.
#[tokio::test]
async fn a_look_that_finds_that_the_map_went_back_is_told_once_by_its_call() {
    for is_add in [true, false] {
        let memory = Arc::new(larder_store_memory::MemoryStore::new());
        let store: StoreRef = memory.clone();
        let settings = crate::sharded::make::Settings { shards: Some(1), ..Default::default() };
        let set = settings.open(&store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
        let first = set.plan();
        set.reshard(Aim::Shards(2), &mut |_| {}).await.unwrap();
        let put = Op::put(set.map_key.clone(), PutMode::Set, first.encode(), Ttl::Never);
        store.run_one(Ctx::default(), put).await.unwrap();
        set.next_look_ms.store(0, Ordering::Relaxed);
        let names = [Bytes::from_static(b"astray")];
        let error = match is_add {
            true => set.change(&names, &[Change::Put(Bytes::new())]).await.unwrap_err(),
            false => set.get(&names).await.unwrap_err(),
        };
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::RolledBack, false), "{error}");
        set.check().unwrap();
        assert_eq!(set.plan(), first);
        let is_written = |value: &[u8]| value.windows(6).any(|part| part == b"astray");
        memory.each(|_, seen| assert!(!is_written(seen.value), "it was not applied"));
    }
}

/// Those of ends that were lost do not come again: the time has gone on since.
#[test]
fn versions_of_the_ends_begin_with_the_time_in_microseconds() {
    let clock = larder_core::ManualClock::at(Duration::from_millis(1_700_000_000_123));
    assert_eq!(crate::sharded::keeper::now_us(&clock), 1_700_000_000_123_000);
}

/// A set that was resharded, of which only the map went back; and its map of before. Its store answers as often as it is permitted to.
async fn gone_back() -> (Core, Plan, Arc<Gated>) {
    let store = Arc::new(Gated(Arc::new(larder_store_memory::MemoryStore::new()), Semaphore::new(1_000)));
    let shared: StoreRef = store.clone();
    let settings = crate::sharded::make::Settings { shards: Some(1), ..Default::default() };
    let set = settings.open(&shared, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
    let first = set.plan();
    set.reshard(Aim::Shards(2), &mut |_| {}).await.unwrap();
    let put = Op::put(set.map_key.clone(), PutMode::Set, first.encode(), Ttl::Never);
    store.0.run_one(Ctx::default(), put).await.unwrap();
    set.next_look_ms.store(0, Ordering::Relaxed);
    (set, first, store)
}

#[derive(Debug)]
struct Gated(StoreRef, Semaphore);

impl Store for Gated {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let replies = self.0.run(ctx, batch).await;
            self.1.acquire().await.unwrap().forget();
            replies
        })
    }
}

/// The second of two looks is answered when the call of the first one is over.
#[tokio::test]
async fn a_setback_that_looks_of_two_tasks_find_is_told_once() {
    let (set, first, store) = gone_back().await;
    // Each call looks.
    set.is_map_amiss.store(true, Ordering::Relaxed);
    store.1.forget_permits(store.1.available_permits());
    let names = [Bytes::from_static(b"a")];
    let permits = async {
        for _ in 0..2 {
            tokio::task::yield_now().await;
            store.1.add_permits(1);
            tokio::task::yield_now().await;
        }
        store.1.add_permits(100);
    };
    let (one, two, ()) = tokio::join!(set.get(&names), set.get(&names), permits);
    assert_eq!(one.unwrap_err().kind(), ErrorKind::RolledBack);
    assert_eq!(two.unwrap(), [None]);
    assert_eq!(set.plan(), first);
    set.check().unwrap();
}

/// The call of the look tells it before its end, where shards are missing.
#[tokio::test]
async fn a_setback_that_a_call_tells_midway_is_not_told_by_the_next_one() {
    let (set, first, store) = gone_back().await;
    let (map, names) = (set.plan().map, [Bytes::from_static(b"a")]);
    for shard in 0..map.shards {
        store.0.run_one(Ctx::default(), Op::delete(set.key(&map, shard).unwrap())).await.unwrap();
    }
    assert_eq!(set.get(&names).await.unwrap_err().kind(), ErrorKind::RolledBack);
    assert_eq!(set.plan(), first);
    assert!(!matches!(set.get(&names).await, Err(error) if error.kind() == ErrorKind::RolledBack));
}

/// A set of ten members in two shards whose map moves them to three, none of which is filled; and the map of before.
async fn moving(store: &StoreRef) -> (Core, Plan) {
    let settings = crate::sharded::make::Settings { shards: Some(2), ..Default::default() };
    let set = settings.open(store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
    set.change(&ten(), &vec![Change::Put(Bytes::new()); 10]).await.unwrap();
    let first = set.plan();
    let to = Map { id: !first.map.id, shards: 3, per_shard: 0 };
    for shard in 0..to.shards {
        let key = set.key(&to, shard).unwrap();
        let op = crate::sharded::make::make_op(set.of, false, key, Mark::Unfilled).unwrap();
        store.run_one(Ctx::default(), op).await.unwrap();
    }
    put_map(store, &set, &Plan { version: 3, map: to, phase: Phase::Moving(first.map) }).await;
    set.refresh(Ctx::default()).await.unwrap();
    (set, first)
}

fn ten() -> Vec<Bytes> {
    (0..10).map(|number: u32| Bytes::from(number.to_string())).collect()
}

async fn put_map(store: &StoreRef, set: &Core, plan: &Plan) {
    store.put(set.map_key.clone(), PutMode::Set, plan.encode(), Ttl::Never).await.unwrap();
}

async fn opened(store: &StoreRef) -> Result<Core> {
    let settings = crate::sharded::make::Settings::default();
    settings.open(store, &Name::new("n").unwrap(), Kind::ShardedSet, false).await
}

/// They resharded from a map that went back: from what this handle knows nothing leads to theirs by one write.
#[tokio::test]
async fn a_map_that_others_wrote_once_more_by_another_way_is_told_before_anything_is_written_astray() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let (set, first) = moving(&store).await;
    set.change(&ten(), &vec![Change::Put(Bytes::new()); 10]).await.unwrap();
    put_map(&store, &set, &first).await;
    let others = opened(&store).await.unwrap();
    assert_eq!(others.reshard(Aim::Shards(5), &mut |_| {}).await.unwrap_err().kind(), ErrorKind::RolledBack);
    others.reshard(Aim::Shards(2), &mut |_| {}).await.unwrap();
    let now = others.plan();
    assert_eq!((now.version, now.phase, set.plan().version), (4, Phase::Stable, 3));
    set.next_look_ms.store(0, Ordering::Relaxed);
    let names = [Bytes::from_static(b"astray")];
    let error = set.change(&names, &[Change::Put(Bytes::new())]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::RolledBack, false), "{error}");
    assert_eq!(set.plan(), now);
    set.change(&names, &[Change::Put(Bytes::new())]).await.unwrap();
    assert_eq!(others.get(&names).await.unwrap(), [Some(Bytes::new())]);
}

#[tokio::test]
async fn who_finds_that_nothing_can_come_to_a_shard_reads_the_map_before_he_says_that_it_is_lost() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let (set, first) = moving(&store).await;
    put_map(&store, &set, &first).await;
    let others = opened(&store).await.unwrap();
    others.reshard(Aim::Shards(5), &mut |_| {}).await.unwrap();
    let names = [Bytes::from_static(b"new")];
    let error = set.change(&names, &[Change::Put(Bytes::new())]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::NotApplied), "{error}");
    set.change(&names, &[Change::Put(Bytes::new())]).await.unwrap();
    // Where the map is the same it is lost.
    let (store, name): (StoreRef, _) = (Arc::new(larder_store_memory::MemoryStore::new()), Bytes::from_static(b"0"));
    let (set, first) = moving(&store).await;
    for shard in 0..first.map.shards {
        store.delete(set.key(&first.map, shard).unwrap()).await.unwrap();
    }
    let error = set.change(&[name], &[Change::Put(Bytes::new())]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
}

#[tokio::test]
async fn a_map_of_dense_numbers_is_none_of_what_is_spread_by_hash_and_the_other_way_round() {
    for dense in [None, Some(10)] {
        let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
        let settings = crate::sharded::make::Settings { shards: Some(2), dense, ..Default::default() };
        let set = settings.open(&store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
        let now = set.plan();
        let map = Map { per_shard: if dense.is_some() { 0 } else { 10 }, ..now.map };
        let other = Map { id: !now.map.id, ..map };
        for strange in [
            Plan { map, ..now },
            Plan { phase: Phase::Planned(other), ..now },
            Plan { phase: Phase::Moving(other), ..now },
            Plan { map, phase: Phase::Moving(Map { id: !now.map.id, ..now.map }), ..now },
        ] {
            put_map(&store, &set, &Plan { version: now.version + 1, ..strange }).await;
            let told = [
                opened(&store).await.map(drop),
                set.refresh(Ctx::default()).await.map(drop),
                set.reshard(Aim::Shards(3), &mut |_| {}).await,
            ];
            for error in told.map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "dense: {dense:?}, {strange:?}: {error}");
            }
        }
        assert_eq!(set.plan(), now);
    }
}

#[tokio::test]
async fn a_number_over_the_range_of_a_map_with_room_for_none_is_refused_by_name() {
    let mut set = hash();
    set.params.is_dense = true;
    assert_eq!(set.takes(b"5").unwrap_err().kind(), ErrorKind::BadInput);
}

#[tokio::test]
async fn a_shard_of_dense_numbers_that_holds_something_else_is_told_and_moved_nowhere() {
    for (kind, name) in [Kind::ShardedSet, Kind::ShardedSortedSet]
        .into_iter()
        .flat_map(|kind| ["10", "18446744073709551615", "x", "01"].map(|name| (kind, name)))
    {
        let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
        let settings = crate::sharded::make::Settings { shards: Some(2), dense: Some(10), ..Default::default() };
        let set = settings.open(&store, &Name::new("n").unwrap(), kind, true).await.unwrap();
        let mut shard = Shard::empty(Mark::Live);
        let value = if kind == Kind::ShardedSet { Bytes::new() } else { Bytes::from_static(b"\0\0\0\0\0\0\xf0\x3f") };
        shard.elements.insert(Bytes::from(name), value);
        let (map, value) = (set.plan().map, shard.encode(set.of));
        store.put(set.key(&map, 1).unwrap(), PutMode::Set, value, Ttl::Never).await.unwrap();
        let told = [
            set.sweep(true).await.map(drop),
            set.reshard(Aim::Shards(1), &mut |_| {}).await,
            set.reshard(Aim::Shards(4), &mut |_| {}).await,
            set.sweep(true).await.map(drop),
        ];
        for (step, error) in told.map(Result::unwrap_err).into_iter().enumerate() {
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{kind:?}, {name}, step {step}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_map_that_says_it_was_written_as_often_as_none_can_be_is_refused_by_who_would_write_it() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let (set, first) = moving(&store).await;
    let moving = set.plan();
    for plan in [first, Plan { phase: Phase::Planned(moving.map), ..first }, moving] {
        let last = Plan { version: u64::MAX, ..plan };
        put_map(&store, &set, &last).await;
        let others = opened(&store).await.unwrap();
        let error = others.reshard(Aim::Shards(5), &mut |_| {}).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::LayoutMismatch && error.to_string().contains("as often as"),
            "{plan:?}: {error}"
        );
        assert_eq!(others.refresh(Ctx::default()).await.unwrap(), last);
    }
}

/// Who fills beside this one may have removed it between two looks.
#[tokio::test]
async fn a_source_that_a_look_misses_is_looked_for_again_before_it_is_lost() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let (_, first) = moving(&store).await;
    let answering = Answering::over(&store);
    let set = opened(&answering.shared()).await.unwrap();
    let (source, mut looks) = (set.key(&first.map, 0).unwrap(), 0);
    answering.by(move |op| {
        looks += u32::from(op.key == source && op.is_read());
        (op.key == source && op.is_read() && looks < STRIKES_MAX).then_some(Ok(Reply::Miss))
    });
    set.change(&ten(), &vec![Change::Put(Bytes::new()); 10]).await.unwrap();
    assert_eq!(set.get(&ten()).await.unwrap(), vec![Some(Bytes::new()); 10]);
}

#[tokio::test(start_paused = true)]
async fn a_map_that_the_store_does_not_take_is_told_by_who_reshards() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let settings = crate::sharded::make::Settings { shards: Some(2), ..Default::default() };
    settings.open(&store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
    let answering = Answering::over(&store);
    let set = opened(&answering.shared()).await.unwrap();
    let key = set.map_key.clone();
    answering.by(move |op| (op.key == key && !op.is_read()).then(|| fails(ErrorKind::Full, Effect::NotApplied)));
    let error = set.reshard(Aim::Shards(3), &mut |_| {}).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
}
