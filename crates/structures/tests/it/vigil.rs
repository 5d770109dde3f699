//! Manifests that are evicted while the data stay, and lives of a name that others made meanwhile.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{
    ClockRef, Ctx, ErrorKind, Key, ManualClock, Op, PutMode, Reply, Route, StoreExt, StoreRef, Ttl, Want,
};
use larder_structures::{Counter, Name, Set};

use crate::counter::fleet::{Fleet, Node};
use crate::counter::support::{Meter, counting, data_key, memory};
use crate::support::hooked::Hooked;
use crate::support::natives::Natives;

const MINUTE: Duration = Duration::from_secs(60);

fn manual() -> (Arc<ManualClock>, ClockRef) {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    (clock.clone(), clock)
}

/// A handle of each structure that has data of its own.
enum Handle {
    Set(Set),
    Counter(Counter),
}

const KINDS: [&str; 4] = ["set", "sharded set", "counter", "fast counter"];
/// One that the store keeps natively.
const NATIVE: &str = "native fast counter";

/// A store for this kind, over another.
fn store_for(kind: &str, store: StoreRef) -> StoreRef {
    if kind == NATIVE { Natives::over(&store) } else { store }
}

impl Handle {
    async fn open(kind: &str, store: &StoreRef, clock: ClockRef) -> Handle {
        let set = Set::options().clock(clock.clone());
        let counter = Counter::options().clock(clock);
        match kind {
            "set" => Handle::Set(set.open_or_create(store, "n").await.unwrap()),
            "sharded set" => Handle::Set(set.shards(5).open_or_create(store, "n").await.unwrap()),
            "counter" => Handle::Counter(counter.open_or_create(store, "n").await.unwrap()),
            _ => Handle::Counter(counter.fast().open_or_create(store, "n").await.unwrap()),
        }
    }

    async fn write(&self) -> larder_core::Result<()> {
        match self {
            Handle::Set(set) => set.add(["a"]).await,
            Handle::Counter(counter) => counter.add(1).await,
        }
    }

    async fn read(&self) -> larder_core::Result<i128> {
        match self {
            Handle::Set(set) => set.members().await.map(|members| members.len() as i128),
            Handle::Counter(counter) => counter.get().await,
        }
    }

    async fn use_as(&self, is_write: bool) -> larder_core::Result<()> {
        if is_write { self.write().await } else { self.read().await.map(drop) }
    }
}

async fn evict_manifest(store: &StoreRef) {
    store.delete(Name::new("n").unwrap().manifest_key().unwrap()).await.unwrap();
}

/// Lets what runs beside the callers run.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

async fn exists(store: &StoreRef) -> bool {
    match Set::open(store, "n").await {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::Absent,
    }
}

#[tokio::test]
async fn a_manifest_that_was_evicted_is_put_back_by_the_first_use_after_a_minute() {
    for kind in KINDS.into_iter().chain([NATIVE]) {
        for is_write in [false, true] {
            let (store, counting) = counting();
            let store = store_for(kind, store);
            let (clock, shared) = manual();
            let handle = Handle::open(kind, &store, shared.clone()).await;
            handle.write().await.unwrap();
            evict_manifest(&store).await;
            clock.advance(MINUTE - Duration::from_millis(1));
            handle.use_as(is_write).await.unwrap();
            settle().await;
            assert!(!exists(&store).await, "{kind}: too early");
            clock.advance(Duration::from_millis(1));
            handle.use_as(is_write).await.unwrap();
            settle().await;
            assert!(exists(&store).await, "{kind}, written {is_write}");
            let again = Handle::open(kind, &store, shared).await;
            assert_eq!(again.read().await.unwrap(), handle.read().await.unwrap(), "{kind}");
            // Where all is well, a look costs nothing.
            let mut meter = Meter::new(counting);
            clock.advance(MINUTE);
            handle.use_as(is_write).await.unwrap();
            assert_eq!(meter.round_trips(), 1, "{kind}, written {is_write}");
        }
    }
}

#[tokio::test]
async fn a_life_that_others_made_meanwhile_ends_the_handle_of_the_first() {
    for kind in KINDS {
        for is_write in [false, true] {
            let store = memory();
            let (clock, shared) = manual();
            let handle = Handle::open(kind, &store, shared.clone()).await;
            handle.write().await.unwrap();
            evict_manifest(&store).await;
            let second = Handle::open(kind, &store, shared).await;
            second.write().await.unwrap();
            clock.advance(MINUTE);
            for _ in 0..3 {
                for is_write in [is_write, true, false] {
                    let error = handle.use_as(is_write).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Lost, "{kind}: {error}");
                }
            }
            assert_eq!(second.read().await.unwrap(), 1, "{kind}");
        }
    }
}

#[tokio::test]
async fn a_manifest_is_not_put_back_where_data_went_too() {
    for (kind, role) in [("sharded set", 'p'), ("counter", 's')] {
        let store = memory();
        let (clock, shared) = manual();
        let handle = Handle::open(kind, &store, shared).await;
        handle.write().await.unwrap();
        let key = data_key(&store, "n", role, 4).await;
        evict_manifest(&store).await;
        store.delete(key).await.unwrap();
        clock.advance(MINUTE);
        assert_eq!(handle.read().await.unwrap_err().kind(), ErrorKind::Lost, "{kind}");
        clock.advance(MINUTE);
        // One shard or slot may be used still; the others tell that this may be a drop under way.
        _ = handle.write().await;
        settle().await;
        assert!(!exists(&store).await, "{kind}");
    }
}

/// Three servers, each with a copy of the manifest.
struct Three {
    nodes: Vec<Arc<Node>>,
    store: StoreRef,
    manifest: Key,
}

impl Three {
    fn new() -> Three {
        let nodes: Vec<Arc<Node>> = (0..3).map(|_| Node::new()).collect();
        let store = Fleet::shared(nodes.iter().map(|node| node.clone() as StoreRef));
        Three { nodes, store, manifest: Name::new("n").unwrap().manifest_key().unwrap() }
    }

    async fn at(&self, rank: u8, op: Op) -> Reply {
        self.store.run_one(Ctx::default(), op.routed(Route { with: None, rank })).await.unwrap()
    }

    /// The copy on a server.
    async fn copy(&self, rank: u8) -> Option<Bytes> {
        self.at(rank, Op::get(self.manifest.clone(), Want::VALUE)).await.into_item().map(|item| item.value)
    }

    async fn put(&self, rank: u8, value: impl Into<Bytes>) {
        let put = Op::put(self.manifest.clone(), PutMode::Set, value, Ttl::Never);
        assert_eq!(self.at(rank, put).await, Reply::Stored);
    }

    async fn evict(&self, ranks: impl IntoIterator<Item = u8>) {
        for rank in ranks {
            assert_eq!(self.at(rank, Op::delete(self.manifest.clone())).await, Reply::Deleted, "rank {rank}");
        }
    }

    /// On which servers a copy stands.
    async fn there(&self) -> [bool; 3] {
        let mut there = [false; 3];
        for rank in 0..3 {
            there[usize::from(rank)] = self.copy(rank).await.is_some();
        }
        there
    }
}

/// A counter on three servers that looks at its manifest a minute later, by a client whose batches a test meets.
async fn hooked_counter(three: &Three) -> (Counter, Arc<Hooked>, Arc<ManualClock>) {
    let (clock, shared) = manual();
    let hooked = Hooked::new(&three.store);
    let options = Counter::options().copies(3).slots(1).clock(shared);
    (options.open_or_create(&hooked.shared(), "n").await.unwrap(), hooked, clock)
}

#[tokio::test]
async fn of_copies_those_that_are_missing_are_put_back_wherever_they_stood() {
    for evicted in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
        for is_write in [false, true] {
            let three = Three::new();
            let (clock, shared) = manual();
            let counter = Counter::options().copies(3).clock(shared).open_or_create(&three.store, "n").await.unwrap();
            counter.add(1).await.unwrap();
            three.evict(evicted.iter().copied()).await;
            clock.advance(MINUTE);
            let handle = Handle::Counter(counter);
            handle.use_as(is_write).await.unwrap();
            settle().await;
            assert_eq!(three.there().await, [true; 3], "of {evicted:?}, written {is_write}");
            assert_eq!(handle.read().await.unwrap(), 1 + i128::from(is_write));
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_full_is_sent_as_it_is_and_the_look_after_it() {
    let store = memory();
    let (clock, shared) = manual();
    Set::options().shards(5).open_or_create(&store, "n").await.unwrap().add(["a"]).await.unwrap();
    // Fails where a batch has more ops than the store takes.
    let narrow = Hooked::with_batches_of(&store, 5).shared();
    let set = Set::options().clock(shared).open(&narrow, "n").await.unwrap();
    evict_manifest(&store).await;
    clock.advance(MINUTE);
    assert_eq!(set.members().await.unwrap().to_vec(), ["a"]);
    settle().await;
    assert!(exists(&store).await, "it was looked at, and put back");
}

/// All servers are emptied while the manifest is put back, as by a drop: what stands then on the server that decides says that the data are lost, and no copy stays behind.
#[tokio::test]
async fn of_copies_that_are_put_back_after_the_data_went_only_the_one_that_decides_stays() {
    let three = Three::new();
    let (counter, hooked, clock) = hooked_counter(&three).await;
    counter.add(1).await.unwrap();
    three.evict(0..3).await;
    clock.advance(MINUTE);
    let nodes = three.nodes.clone();
    // The read with the look in it, the look at the data, and what puts the manifest back.
    hooked.at(3, move |store, batch| async move {
        nodes.iter().for_each(|node| node.restart_empty());
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(counter.get().await.unwrap(), 1);
    for _ in 0..3 {
        settle().await;
    }
    assert_eq!(three.there().await, [true, false, false]);
    let error = match Counter::open(&three.store, "n").await {
        Ok(counter) => counter.get().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// A copy that does not decide, of another life: it is replaced as if there were none.
#[tokio::test]
async fn a_copy_that_another_life_left_is_replaced_by_the_first_use_after_a_minute() {
    let three = Three::new();
    let read = async |rank| three.copy(rank).await.unwrap();
    for is_evicted in [false, true] {
        let (clock, shared) = manual();
        let counter = Counter::options().copies(3).clock(shared).open_or_create(&three.store, "n").await.unwrap();
        let ours = read(0).await;
        let mut other = ours.to_vec();
        // The first byte of the generation.
        other[8] ^= 1;
        three.put(1, other).await;
        three.put(2, "another program's").await;
        if is_evicted {
            // It is put back first, and the copy is replaced by the next look.
            three.evict([0]).await;
            clock.advance(MINUTE);
            assert_eq!(counter.get().await.unwrap(), 0);
            settle().await;
            settle().await;
            assert_ne!(read(1).await, ours);
        }
        clock.advance(MINUTE);
        assert_eq!(counter.get().await.unwrap(), 0);
        settle().await;
        settle().await;
        assert_eq!([read(0).await, read(1).await], [ours.clone(), ours]);
        assert_eq!(read(2).await, "another program's");
        three.evict([2]).await;
    }
}

/// What stands there by then is another life's: it is not what was put back.
#[tokio::test]
async fn of_copies_that_are_taken_back_one_that_another_life_wrote_since_stays() {
    let three = Three::new();
    let (counter, hooked, clock) = hooked_counter(&three).await;
    let slot = data_key(&three.store, "n", 's', 0).await;
    three.evict(1..3).await;
    clock.advance(MINUTE);
    let at = |rank| Route { with: None, rank };
    let others = Op::put(three.manifest.clone(), PutMode::Set, "another life's", Ttl::Never).routed(at(1));
    // The read with the look in it, the look at the data, what puts the copies back, the second look, and what takes them back.
    hooked.at(3, move |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        for rank in 0..3 {
            store.run_one(Ctx::default(), Op::delete(slot.clone()).routed(at(rank))).await.unwrap();
        }
        replies
    });
    hooked.at(5, move |store, batch| async move {
        assert_eq!(batch.len(), 2);
        store.run_one(Ctx::default(), others).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(counter.get().await.unwrap(), 0);
    for _ in 0..3 {
        settle().await;
    }
    assert_eq!(three.there().await[1..], [true, false]);
}
