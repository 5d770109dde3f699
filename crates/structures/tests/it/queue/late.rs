//! Queues and stacks when requests arrive after those who sent them gave up: above all the one that makes a segment.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, PutMode, Run, Store, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, QueueOptions, registry};
use larder_testkit::faulty::{Fault, Faulty};

use crate::queue::support::{BOTH, Kind, Line, small};

/// Holds back the next batch that makes an item, until it is told to deliver it.
struct Holding {
    inner: StoreRef,
    is_holding: AtomicBool,
    held: Mutex<Option<Batch>>,
}

impl Holding {
    fn new(inner: &StoreRef) -> Arc<Holding> {
        Arc::new(Holding { inner: inner.clone(), is_holding: AtomicBool::new(false), held: Mutex::default() })
    }

    fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    fn holds(&self) -> bool {
        self.held.lock().unwrap().is_some()
    }

    async fn deliver(&self) {
        let held = self.held.lock().unwrap().take().expect("a batch");
        self.inner.run(Ctx::default(), held).await;
    }
}

impl Store for Holding {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let makes = |op: &Op| matches!(op.verb, Verb::Put { mode: PutMode::Add, .. });
        if batch.iter().any(makes) && self.is_holding.swap(false, Ordering::Relaxed) {
            let error = Error::new(ErrorKind::Timeout, "no reply came").effect(Effect::Unknown);
            let replies = batch.iter().map(|_| Err(error.clone())).collect();
            *self.held.lock().unwrap() = Some(batch);
            return Run::pending(async move { replies });
        }
        self.inner.run(ctx, batch)
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holding")
    }
}

/// One that is about to open segment 1 is held back; others open, empty and remove it; then the request arrives. What those push who
/// still take segment 1 for the tail must not vanish in what it made.
#[tokio::test]
async fn what_is_pushed_after_a_late_request_made_a_segment_again_is_delivered() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::new());
        // Looks at the tail are an eighth of a segment apart: a short push sees none.
        let options = || QueueOptions::default().segment_bytes(64 * 1024);
        let holding = Holding::new(&store);
        let late = Line::open(kind, &holding.shared(), &options()).await;
        let other = Line::open(kind, &store, &options()).await;
        holding.is_holding.store(true, Ordering::Relaxed);
        while !holding.holds() {
            late.push([1; 4_000]).await.unwrap();
        }
        while other.stat().await.segments < 2 {
            other.push([2; 4_000]).await.unwrap();
        }
        let mut stale = Vec::new();
        for _ in 0..8 {
            stale.push(Line::open(kind, &store, &options()).await);
        }
        while other.stat().await.segments < 3 {
            other.push([3; 4_000]).await.unwrap();
        }
        other.drain().await;
        // The next writes take the segments off the record.
        for _ in 0..3 {
            other.push("x").await.unwrap();
            other.pop().await.unwrap().unwrap();
        }
        assert_eq!(other.stat().await.segments, 1, "{kind:?}");
        holding.deliver().await;
        let mut pushed = Vec::new();
        for (n, line) in stale.iter().enumerate() {
            line.push(format!("precious {n}")).await.unwrap();
            pushed.push(format!("precious {n}"));
        }
        let mut given = other.drain().await;
        given.sort();
        assert_eq!(given, pushed, "{kind:?}");
    }
}

/// The request that makes the next segment arrives late, and the one that makes its link: a queue of many segments is whole.
#[tokio::test]
async fn a_queue_of_many_segments_is_whole_whichever_of_their_requests_is_late() {
    for kind in BOTH {
        for after in [1, 7, 200] {
            for nth in 1..40 {
                let faulty = Faulty::new(Arc::new(MemoryStore::new()));
                let store = faulty.shared();
                let (one, two) = (Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await);
                faulty.fail_nth(10 + 5 * nth, Fault::Late(after));
                for n in 0..120 {
                    let line = if n % 10 < 9 { &one } else { &two };
                    line.push(format!("item {n:04}")).await.unwrap();
                }
                let mut given: BTreeSet<String> = one.drain().await.into_iter().collect();
                faulty.deliver_late().await;
                given.extend(two.drain().await);
                assert_eq!(given.len(), 120, "{kind:?}, op {nth}, {after} ops late");
                assert_eq!(two.stat().await.segments_lost, 0);
            }
        }
    }
}

/// A push to a segment that was passed keeps it from being removed, but not its link. Who comes to it from an older state, by that link, must not take the segment for
/// removed: at whichever moment the push comes.
#[tokio::test]
async fn what_is_pushed_late_survives_a_taker_who_finds_no_link() {
    let options = || QueueOptions::default().segment_bytes(64 * 1024);
    for kind in BOTH {
        for pops_before in 0..40 {
            let store: StoreRef = Arc::new(MemoryStore::new());
            let one = Line::open(kind, &store, &options()).await;
            let mut pushed = 0;
            let mut late = None;
            for segments in [2, 3] {
                while one.stat().await.segments < segments {
                    one.push([b'x'; 4_000]).await.unwrap();
                    pushed += 1;
                }
                // Takes segment 1 for the tail.
                late.get_or_insert(Line::open(kind, &store, &options()).await);
            }
            for _ in 0..3 {
                one.push([b'x'; 4_000]).await.unwrap();
                pushed += 1;
            }
            let stale = Line::open(kind, &store, &options()).await;
            let mut given = Vec::new();
            for pop in 0..pops_before + 2 {
                if pop == pops_before {
                    late.take().unwrap().push("late").await.unwrap();
                    pushed += 1;
                }
                given.extend(one.pop().await.unwrap());
            }
            given.extend(stale.pop().await.unwrap());
            let given = given.len() + one.drain().await.len() + stale.drain().await.len();
            assert_eq!(given, pushed, "{kind:?}, late after {pops_before} pops");
        }
    }
}

/// Two busy producers, whose requests that make segments arrive late at random, and eight that push seldom, so that what they take for the
/// tail is old, on connections that break: what was acknowledged comes out, and nothing that was not pushed.
#[tokio::test]
async fn at_random_what_is_acknowledged_comes_out_however_late_requests_arrive() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let options = || QueueOptions::default().segment_bytes(4_096);
    let faults = [Fault::Late(2), Fault::Late(10), Fault::LostReply, Fault::LostRequest];
    for kind in BOTH {
        let mut rng = fastrand::Rng::with_seed(seed);
        let memory: StoreRef = Arc::new(MemoryStore::new());
        let taker = Line::open(kind, &memory, &options()).await;
        let held = [Holding::new(&memory), Holding::new(&memory)];
        let broken: Vec<Faulty> = (0..8).map(|_| Faulty::new(memory.clone())).collect();
        let stores: Vec<StoreRef> = held.iter().map(Holding::shared).chain(broken.iter().map(Faulty::shared)).collect();
        let mut producers = Vec::new();
        for store in &stores {
            producers.push(Line::open(kind, store, &options()).await);
        }
        for connection in &broken {
            connection.fail_randomly(rng.u64(..), 20, &faults);
        }
        let (mut acknowledged, mut tried, mut given) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for n in 0..4_000 {
            let at = if rng.u8(..) < 16 { rng.usize(2..10) } else { rng.usize(0..2) };
            let item = format!("{n:05} {}", "x".repeat(rng.usize(0..120)));
            tried.insert(item.clone());
            match producers[at].push(&item).await {
                Ok(()) => _ = acknowledged.insert(item),
                Err(error) => assert!(error.is_unknown() || error.known_effect() == Effect::NotApplied),
            }
            let connection = &held[rng.usize(0..2)];
            if connection.holds() && rng.u8(..) < 4 {
                connection.deliver().await;
            } else if !connection.holds() {
                connection.is_holding.store(rng.bool(), Ordering::Relaxed);
            }
            if rng.u8(..) < 8 {
                given.extend(taker.drain().await);
            }
        }
        for connection in &broken {
            connection.heal();
            connection.deliver_late().await;
        }
        given.extend(taker.drain().await);
        let out: BTreeSet<String> = given.into_iter().collect();
        let lost: Vec<_> = acknowledged.difference(&out).collect();
        assert!(lost.is_empty(), "{kind:?}, seed {seed}: {lost:?} are lost");
        assert!(out.is_subset(&tried), "{kind:?}, seed {seed}: something came that nobody pushed");
        let stat = taker.stat().await;
        assert_eq!((stat.segments_lost, stat.segments_missing, stat.items_lost), (0, 0, 0), "{kind:?}, seed {seed}");
    }
}

/// Segments that were added and not named are removed again by who added them: where nothing breaks, no keys are left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_openers_leave_no_keys_behind() {
    for kind in BOTH {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        let mut tasks = Vec::new();
        for task in 0..8 {
            let line = Line::open(kind, &store, &small().timeout(Duration::from_secs(60))).await;
            tasks.push(tokio::spawn(async move {
                for n in 0..60 {
                    line.push(format!("{task} {n:03}")).await.unwrap();
                    if n % 3 == 0 {
                        line.pop().await.unwrap();
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        registry::drop_structure(&store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap();
        // A link of a segment that others removed in the very moment may be left: a hundred bytes.
        assert!(memory.stats().items <= 2, "{kind:?}: {} keys are left", memory.stats().items);
    }
}

/// A segment that was used up and removed, and whose key holds what is no segment: it keeps nobody from the rest.
#[tokio::test]
async fn what_stands_in_the_place_of_a_used_up_segment_is_nobodys() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let line = Line::open(kind, &store, &small()).await;
        // The lowest segment stays on record, used up, as long as nobody removed it.
        while line.stat().await.segments < 3 {
            line.push([1; 100]).await.unwrap();
        }
        let first = crate::queue::support::key(kind, &store, Some(0)).await;
        if kind == Kind::Queue {
            for _ in 0..4 {
                line.pop().await.unwrap();
            }
        } else {
            line.drain().await;
            line.push("y").await.unwrap();
        }
        for garbage in ["garbage", ""] {
            let put = Op::put(first.clone(), PutMode::Set, garbage, larder_core::Ttl::Never);
            store.run(Ctx::default(), Batch::from_iter([put])).await;
            let fresh = Line::open(kind, &store, &small()).await;
            fresh.push("z").await.unwrap();
            fresh.stat().await;
            fresh.drain().await;
        }
    }
}

/// A link is of its segment: who loses it loses that one, is told once, and goes on behind it.
#[tokio::test]
async fn a_lost_link_is_a_lost_segment_and_told_once() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let line = Line::open(kind, &store, &small()).await;
        for n in 0..60 {
            line.push(format!("item {n:04}")).await.unwrap();
        }
        let segments = line.stat().await.segments;
        assert!(segments >= 5, "{segments}");
        let manifest = registry::find(&store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap().unwrap();
        let role = if kind == Kind::Queue { 'q' } else { 'k' };
        let link = larder_core::Key::new(format!("L.q.{role}.{:016x}.n2", manifest.generation)).unwrap();
        let replies = store.run(Ctx::default(), Batch::from_iter([Op::delete(link)])).await;
        assert_eq!(replies[0].as_ref().unwrap(), &larder_core::Reply::Deleted, "{kind:?}");
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::Lost);
        let (mut given, mut told) = (0, 0);
        loop {
            match line.pop().await {
                Ok(Some(_)) => given += 1,
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                    told += 1;
                }
            }
        }
        assert_eq!(told, 1, "{kind:?}");
        assert!((40..60).contains(&given), "{kind:?}: {given} of 60");
        assert_eq!(line.stat().await.segments_lost, 1);
    }
}
