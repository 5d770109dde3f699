//! The counter on several servers: what is lost, what is not, and what it costs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, ManualClock, Profile, Replies, Run, Store, StoreRef};
use larder_core::{Key, Op, PutMode, Reply, Route, StoreExt, Ttl, Verb, Want};
use larder_structures::{Counter, Name, registry};
use larder_testkit::faulty::{Fault, Faulty};

use crate::counter::fleet::{Fleet, Node};
use crate::counter::support::Meter;
use crate::counter::support::slot_key;
use crate::support::hooked::{Hooked, fail};
use crate::support::steady::metered;

fn nodes(count: usize) -> Vec<Arc<Node>> {
    (0..count).map(|_| Node::new()).collect()
}

fn fleet(nodes: &[Arc<Node>]) -> StoreRef {
    Fleet::shared(nodes.iter().map(|node| node.clone() as StoreRef))
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let nodes = nodes(3);
    let counting = metered(fleet(&nodes));
    let store: StoreRef = Arc::new(counting.clone());
    let mut meter = Meter::new(counting);
    let counter = Counter::options().copies(3).open_or_create(&store, "n").await.unwrap();
    assert_eq!(meter.round_trips(), 4, "make");
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 3, "first add");
    for _ in 0..3 {
        counter.add(1).await.unwrap();
        assert_eq!(meter.round_trips(), 1, "warm add");
    }
    assert_eq!(counter.get().await.unwrap(), 4);
    assert_eq!(meter.round_trips(), 1, "get");
    let other = Counter::open(&store, "n").await.unwrap();
    assert_eq!(meter.round_trips(), 1, "open");
    assert_eq!(other.reset().await.unwrap(), 4);
    assert_eq!(meter.round_trips(), 3, "reset");
    counter.add(1).await.unwrap();
    _ = meter.round_trips();
    counter.release().await.unwrap();
    assert_eq!(meter.round_trips(), 1, "release");
    counter.add(1).await.unwrap();
    _ = meter.round_trips();
    nodes[0].restart_empty();
    // The write that finds the copy missing still counts, on the two others.
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 1, "the add that meets an empty server");
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 7, "the add that mends");
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 1, "the add after it");
    let fresh = Counter::open(&store, "n").await.unwrap();
    assert!(meter.round_trips() <= 2, "open, and the manifest's copy made again");
    assert_eq!(fresh.repair().await.unwrap(), 0, "idle slots were mended too");
    assert_eq!(fresh.get().await.unwrap(), 5);
}

#[tokio::test]
async fn each_server_in_turn_is_lost_and_comes_back_empty_and_the_total_stands() {
    for (copies, servers) in [(2, 2), (2, 3), (3, 3), (3, 5), (4, 4), (5, 5)] {
        let nodes = nodes(servers);
        let store = fleet(&nodes);
        let options = Counter::options().copies(copies).slots(4).timeout(Duration::from_secs(2));
        let counter = options.open_or_create(&store, "n").await.unwrap();
        let mut total = 0;
        for (turn, node) in nodes.iter().cycle().take(2 * servers).enumerate() {
            node.stop();
            assert_eq!(counter.get().await.unwrap(), total, "{copies} of {servers}, turn {turn}");
            if copies > 2 {
                counter.add(1).await.unwrap_or_else(|error| panic!("{copies} of {servers}, turn {turn}: {error}"));
                total += 1;
            }
            let fresh = Counter::open(&store, "n").await.unwrap();
            assert_eq!(fresh.get().await.unwrap(), total);
            node.restart_empty();
            assert_eq!(fresh.get().await.unwrap(), total, "{copies} of {servers}, turn {turn}");
            // Mended by adds of the owner, of a fresh process, or on demand.
            match turn % 3 {
                0 => {
                    counter.add(1).await.unwrap();
                    counter.add(1).await.unwrap();
                    total += 2;
                }
                1 => {
                    let fresh = Counter::open(&store, "n").await.unwrap();
                    fresh.add(2).await.unwrap();
                    total += 2;
                }
                _ => {}
            }
            Counter::open(&store, "n").await.unwrap().repair().await.unwrap();
            assert_eq!(counter.repair().await.unwrap(), 0);
        }
        assert_eq!(counter.get().await.unwrap(), total);
    }
}

#[tokio::test]
async fn two_servers_of_three_at_once_are_a_loss_and_never_a_smaller_number() {
    let nodes = nodes(3);
    let store = fleet(&nodes);
    let counter = Counter::options().copies(3).open_or_create(&store, "n").await.unwrap();
    counter.add(5).await.unwrap();
    nodes[0].stop();
    nodes[1].stop();
    for error in [counter.get().await.unwrap_err(), counter.add(1).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    nodes[0].restart_empty();
    nodes[1].restart_empty();
    let fresh = Counter::open(&store, "n").await.unwrap();
    let errors = [
        fresh.get().await.unwrap_err(),
        fresh.add(1).await.unwrap_err(),
        fresh.reset().await.unwrap_err(),
        fresh.repair().await.unwrap_err(),
        counter.get().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
    }
    // What the owner had sent before may be on the third; it is no count any more, and says so.
    assert!(matches!(counter.add(1).await, Err(error) if error.kind() == ErrorKind::Lost));
}

#[tokio::test]
async fn with_two_copies_adds_wait_for_both() {
    let nodes = nodes(2);
    let store = fleet(&nodes);
    let options = Counter::options().copies(2).timeout(Duration::from_millis(100));
    let counter = options.open_or_create(&store, "n").await.unwrap();
    counter.add(1).await.unwrap();
    nodes[1].stop();
    let error = counter.add(10).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    nodes[1].resume();
    counter.add(100).await.unwrap();
    let total = counter.get().await.unwrap();
    assert!(total == 101 || total == 111, "{total}");
    let fresh = Counter::open(&store, "n").await.unwrap();
    assert_eq!(fresh.get().await.unwrap(), total);
}

/// A store that makes nothing.
#[derive(Debug)]
struct NoRoom(StoreRef);

impl Store for NoRoom {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let makes = |op: &Op| matches!(op.verb, Verb::Put { mode: PutMode::Add, .. });
            let others = batch.iter().filter(|op| !makes(op)).cloned().collect();
            let mut replies = self.0.run(ctx, others).await.into_iter();
            let full = || Err(Error::new(ErrorKind::Full, "no room").effect(Effect::NotApplied));
            batch.iter().map(|op| if makes(op) { full() } else { replies.next().unwrap() }).collect()
        })
    }
}

#[tokio::test]
async fn where_a_server_has_no_room_for_a_copy_an_add_that_needs_it_says_so() {
    let nodes = nodes(2);
    let store = fleet(&nodes);
    let options = Counter::options().copies(2).slots(1);
    options.open_or_create(&store, "n").await.unwrap().add(1).await.unwrap();
    nodes[1].restart_empty();
    let full: StoreRef = Arc::new(NoRoom(store.clone()));
    let counter = Counter::open(&full, "n").await.unwrap();
    let error = counter.add(10).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    let fresh = Counter::open(&store, "n").await.unwrap();
    fresh.add(100).await.unwrap();
    assert_eq!(fresh.get().await.unwrap(), 101);
}

#[tokio::test]
async fn a_repair_tells_how_many_slots_it_mended() {
    let nodes = nodes(3);
    let store = fleet(&nodes);
    Counter::options().copies(3).slots(4).open_or_create(&store, "n").await.unwrap().add(1).await.unwrap();
    for node in &nodes {
        node.restart_empty();
        let fresh = Counter::open(&store, "n").await.unwrap();
        assert_eq!(fresh.repair().await.unwrap(), 4);
        assert_eq!((fresh.repair().await.unwrap(), fresh.get().await.unwrap()), (0, 1));
    }
}

/// An add that finds a copy missing makes it again in its own slot, and in those that nobody writes to: another's goes on by itself, until it seems dead after half a minute.
#[tokio::test]
async fn an_add_mends_its_own_slot_and_those_that_nobody_uses() {
    for (idle_for, left) in [(Duration::from_secs(29), 1), (Duration::from_secs(31), 0)] {
        let nodes = nodes(3);
        let store = fleet(&nodes);
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let options = Counter::options().copies(3).slots(3).clock(clock.clone());
        let other = options.open_or_create(&store, "n").await.unwrap();
        other.add(1).await.unwrap();
        let counter = options.open(&store, "n").await.unwrap();
        counter.add(1).await.unwrap();
        clock.advance(idle_for);
        nodes[0].restart_empty();
        // The first finds the copy missing, the second mends.
        for _ in 0..2 {
            counter.add(1).await.unwrap();
        }
        let fresh = options.open(&store, "n").await.unwrap();
        assert_eq!(fresh.repair().await.unwrap(), left, "the other is idle for {idle_for:?}");
        assert_eq!(fresh.get().await.unwrap(), 4);
    }
}

#[tokio::test]
async fn dropping_removes_every_copy() {
    let nodes = nodes(3);
    let store = fleet(&nodes);
    let name = Name::new("n").unwrap();
    for lost in [None, Some(0), Some(1), Some(2)] {
        Counter::options().copies(3).open_or_create(&store, "n").await.unwrap().add(1).await.unwrap();
        if let Some(lost) = lost {
            nodes[lost].restart_empty();
        }
        registry::drop_structure(&store, Ctx::default(), &name).await.unwrap().unwrap();
        assert_eq!(Counter::open(&store, "n").await.unwrap_err().kind(), ErrorKind::Absent, "{lost:?}");
        assert_eq!(registry::find(&store, Ctx::default(), &name).await.unwrap(), None);
    }
}

/// Runs ops one after the other, and adds to a counter after each.
async fn one_by_one(store: StoreRef, batch: Batch, counter: Counter) -> Replies {
    let mut replies = Replies::new();
    for op in batch {
        replies.extend(store.run(Ctx::default(), Batch::from_iter([op])).await);
        _ = counter.add(1).await;
    }
    replies
}

#[tokio::test]
async fn copies_that_are_made_again_while_they_are_dropped_do_not_outlive_the_drop() {
    let name = Name::new("n").unwrap();
    // The batches of a drop after its look: the data, the manifest, what was made again meanwhile.
    for (copies, slots, batches) in
        [(2, 1, 2..=2), (2, 1, 2..=4), (2, 2, 2..=3), (3, 1, 2..=4), (3, 4, 2..=2), (5, 1, 3..=4)]
    {
        let store = fleet(&nodes(usize::from(copies)));
        let options = Counter::options().copies(copies).slots(slots).timeout(Duration::from_millis(200));
        let counter = options.open_or_create(&store, "n").await.unwrap();
        counter.add(1).await.unwrap();
        let hooked = Hooked::new(&store);
        for nth in batches.clone() {
            let counter = counter.clone();
            hooked.at(nth, move |store, batch| one_by_one(store, batch, counter));
        }
        registry::drop_structure(&hooked.shared(), Ctx::default(), &name).await.unwrap().unwrap();
        let case = format!("{copies} copies, {slots} slots, batches {batches:?}");
        for _ in 0..3 {
            let error = counter.add(1).await.expect_err(&case);
            assert_eq!(error.kind(), ErrorKind::Lost, "{case}: {error}");
        }
        assert_eq!(Counter::open(&store, "n").await.unwrap_err().kind(), ErrorKind::Absent, "{case}");
        assert_eq!(counter.get().await.unwrap_err().kind(), ErrorKind::Lost, "{case}");
    }
}

/// Writers over connections that break, with servers that restart empty one after the other.
async fn storm(seed: u64, copies: u8, servers: usize, slots: u16) {
    let nodes = nodes(servers);
    let direct = fleet(&nodes);
    let options = Counter::options().copies(copies).slots(slots).timeout(Duration::from_secs(20));
    options.open_or_create(&direct, "n").await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4_u64 {
        let lines: Vec<Faulty> = nodes.iter().map(|node| Faulty::new(node.clone())).collect();
        let store = Fleet::shared(lines.iter().map(Faulty::shared));
        let counter = Counter::options().timeout(Duration::from_secs(20)).open(&store, "n").await.unwrap();
        for (at, line) in lines.iter().enumerate() {
            let faults = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)];
            line.fail_randomly(seed ^ writer ^ (at as u64) << 8, 60, &faults);
        }
        writers.spawn(async move {
            let (mut min, mut max) = (0_i128, 0);
            for _ in 0..60 {
                match counter.add(1).await {
                    Ok(()) => (min, max) = (min + 1, max + 1),
                    Err(error) if error.is_unknown() => max += 1,
                    Err(_) => {}
                }
            }
            for line in &lines {
                line.heal();
                line.deliver_late().await;
            }
            (min, max)
        });
    }
    let restarts = tokio::spawn({
        let (nodes, direct) = (nodes.clone(), direct.clone());
        async move {
            for node in nodes.iter().cycle().take(4) {
                for _ in 0..fastrand::u16(..200) {
                    tokio::task::yield_now().await;
                }
                node.stop();
                for _ in 0..fastrand::u16(..100) {
                    tokio::task::yield_now().await;
                }
                node.restart_empty();
                // The next may be lost only once this one's copies are there again.
                let mender = Counter::open(&direct, "n").await.unwrap();
                mender.repair().await.unwrap_or_else(|error| panic!("seed {seed}, {copies} of {servers}: {error}"));
            }
        }
    });
    let resetter = Counter::options().timeout(Duration::from_secs(20)).open(&direct, "n").await.unwrap();
    let (mut taken, mut is_all_known) = (0, true);
    for _ in 0..6 {
        match resetter.reset().await {
            Ok(sum) => taken += sum,
            Err(error) => is_all_known &= !error.is_unknown(),
        }
        for _ in 0..fastrand::u16(..100) {
            tokio::task::yield_now().await;
        }
    }
    let known = writers.join_all().await;
    restarts.await.unwrap();
    let (min, max) = known.iter().fold((0, 0), |(min, max), known| (min + known.0, max + known.1));
    let counter = Counter::open(&direct, "n").await.unwrap();
    let total = counter.get().await.unwrap();
    // What a reset took that did not end is in its error, for people.
    let fits = if is_all_known { (min..=max).contains(&(total + taken)) } else { total + taken <= max };
    assert!(fits, "seed {seed}, {copies} of {servers}: {total} and {taken} are not in {min}..={max}");
    assert!(slots < 4 || max - min < 20, "seed {seed}, {copies} of {servers}: {min}..={max}");
    counter.add(1).await.unwrap();
    let after = counter.get().await.unwrap();
    assert!(after == total + 1, "seed {seed}, {copies} of {servers}: {total}, then {after}");
}

#[tokio::test]
async fn writers_count_exactly_while_connections_break_and_servers_restart_empty() {
    for (copies, servers, slots) in [(2, 2, 4), (3, 3, 4), (3, 3, 1), (3, 5, 2), (4, 4, 2), (5, 5, 4)] {
        for _ in 0..10 {
            storm(fastrand::u64(..), copies, servers, slots).await;
        }
    }
}

/// Which servers have the copies of a key, by their rank.
async fn places(store: &StoreRef, nodes: &[Arc<Node>], key: &Key) -> Vec<usize> {
    let mut places = Vec::new();
    for rank in 0..nodes.len() as u8 {
        let marker = Key::new(format!("marker-{rank}")).unwrap();
        let put = Op::put(marker.clone(), PutMode::Set, "here", Ttl::Never);
        store.run_one(Ctx::default(), put.routed(Route { with: Some(key.clone()), rank })).await.unwrap();
        for (at, node) in nodes.iter().enumerate() {
            let node: StoreRef = node.clone();
            if node.get(marker.clone()).await.is_ok_and(|found| found.is_some()) {
                places.push(at);
            }
        }
    }
    places
}

/// The key of the only slot of a counter named n.
async fn slot(store: &StoreRef) -> Key {
    slot_key(store, "n", 0).await
}

#[tokio::test]
async fn a_copy_of_the_manifest_that_an_earlier_life_left_behind_is_replaced() {
    let nodes = nodes(3);
    let store = fleet(&nodes);
    let name = Name::new("n").unwrap();
    let key = name.manifest_key().unwrap();
    Counter::options().copies(3).open_or_create(&store, "n").await.unwrap();
    let copy = |rank| Op::get(key.clone(), Want::VALUE).routed(Route { with: None, rank });
    let read = async |rank| store.run_one(Ctx::default(), copy(rank)).await.unwrap().into_item().unwrap().value;
    let ours = read(0).await;
    let mut earlier = ours.to_vec();
    // The first byte of the generation.
    earlier[8] ^= 1;
    for rank in 1..3 {
        let put = Op::put(key.clone(), PutMode::Set, earlier.clone(), Ttl::Never);
        store.run_one(Ctx::default(), put.routed(Route { with: None, rank })).await.unwrap();
    }
    Counter::open(&store, "n").await.unwrap();
    assert_eq!([read(0).await, read(1).await, read(2).await], [ours.clone(), ours.clone(), ours]);
}

#[tokio::test]
async fn a_manifest_is_not_taken_for_found_while_the_server_that_decides_refuses_it() {
    let nodes = nodes(3);
    let store = fleet(&nodes);
    Counter::options().copies(3).open_or_create(&store, "n").await.unwrap().add(5).await.unwrap();
    let first = Op::delete(Name::new("n").unwrap().manifest_key().unwrap());
    assert_eq!(store.run_one(Ctx::default(), first).await.unwrap(), Reply::Deleted);
    let hooked = Hooked::new(&store);
    hooked.refuse(2);
    let error = Counter::open(&hooked.shared(), "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(Counter::open(&hooked.shared(), "n").await.unwrap().get().await.unwrap(), 5);
}

#[tokio::test]
async fn a_repair_that_could_not_ask_a_server_does_not_say_that_nothing_is_missing() {
    let nodes = nodes(3);
    let store = fleet(&nodes);
    let counter = Counter::options().copies(3).open_or_create(&store, "n").await.unwrap();
    counter.add(1).await.unwrap();
    nodes[2].stop();
    let error = counter.repair().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    nodes[2].resume();
    assert_eq!(counter.repair().await.unwrap(), 0);
}

/// One writer's last write reaches one server alone, and another's, acknowledged, the two others: of the two the acknowledged one counts, whichever of its
/// servers is down.
#[tokio::test]
async fn an_acknowledged_add_outweighs_one_that_was_beaten() {
    for down in 0..3 {
        let nodes = nodes(3);
        let store = fleet(&nodes);
        Counter::options().copies(3).slots(1).open_or_create(&store, "n").await.unwrap();
        // The second one's line to the last copy's server is cut.
        let lines: Vec<Faulty> = nodes.iter().map(|node| Faulty::new(node.clone())).collect();
        let order = places(&store, &nodes, &slot(&store).await).await;
        lines[order[2]].fail_always(Fault::NotSent);
        let second = Counter::open(&Fleet::shared(lines.iter().map(Faulty::shared)), "n").await.unwrap();
        let hooked = Hooked::new(&store);
        let first = Counter::open(&hooked.shared(), "n").await.unwrap();
        let (beaten, is_beaten) = tokio::sync::oneshot::channel();
        // A look, a claim, and then the write.
        hooked.at(3, move |store, batch| async move {
            second.add(100).await.unwrap();
            _ = store.run(Ctx::default(), batch).await;
            beaten.send(()).unwrap();
            std::future::pending().await
        });
        let adding = tokio::spawn(async move { first.add(1).await });
        is_beaten.await.unwrap();
        adding.abort();
        nodes[order[down]].stop();
        let fresh = Counter::open(&store, "n").await.unwrap();
        assert_eq!(fresh.get().await.unwrap(), 100, "the server of copy {down} is down");
    }
}

/// What another writer was told to count between an add's look and its claim: the add must see it before it writes.
#[tokio::test]
async fn an_add_whose_claim_comes_too_late_does_not_write_over_what_it_has_not_seen() {
    // Which of two claims is the higher is drawn.
    for _ in 0..16 {
        let store = fleet(&nodes(3));
        let other = Counter::options().copies(3).slots(1).open_or_create(&store, "n").await.unwrap();
        let hooked = Hooked::new(&store);
        let counter = Counter::open(&hooked.shared(), "n").await.unwrap();
        hooked.at(2, move |store, batch| async move {
            other.add(100).await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        counter.add(1).await.unwrap();
        assert_eq!(counter.get().await.unwrap(), 101);
    }
}

#[tokio::test]
async fn an_add_that_cannot_claim_enough_copies_was_never_sent() {
    let nodes = nodes(2);
    let store = fleet(&nodes);
    Counter::options().copies(2).slots(1).open_or_create(&store, "n").await.unwrap();
    let counter = Counter::options().timeout(Duration::from_millis(200)).open(&store, "n").await.unwrap();
    nodes[1].stop();
    let error = counter.add(1).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    nodes[1].resume();
    assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 0);
}

/// Of three servers one is down, and one comes back empty the moment it has acknowledged: one copy is too few to count on.
#[tokio::test]
async fn a_copy_that_is_gone_when_it_is_read_back_is_no_copy() {
    let nodes = nodes(3);
    let direct = fleet(&nodes);
    Counter::options().copies(3).slots(1).open_or_create(&direct, "n").await.unwrap();
    let order = places(&direct, &nodes, &slot(&direct).await).await;
    let (down, restarted) = (nodes[order[0]].clone(), nodes[order[2]].clone());
    let hooked = Hooked::new(&(restarted.clone() as StoreRef));
    let line = |at: usize| if at == order[2] { hooked.shared() } else { nodes[at].clone() };
    let store = Fleet::shared((0..3).map(line));
    let options = Counter::options().timeout(Duration::from_millis(200));
    let counter = options.open(&store, "n").await.unwrap();
    down.stop();
    // A look, a claim, and then the write.
    hooked.at(3, move |node, batch| async move {
        let mut ops = batch.into_iter();
        let mut replies = node.run(Ctx::default(), Batch::from_iter(ops.next())).await;
        assert!(matches!(replies[..], [Ok(Reply::Stored)]), "{replies:?}");
        restarted.restart_empty();
        replies.extend(node.run(Ctx::default(), ops.collect()).await);
        replies
    });
    let error = counter.add(1).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
}

/// A copy that another program writes over right behind a write: whether it counts cannot be told, and so it is.
#[tokio::test]
async fn an_add_whose_copy_cannot_be_read_back_is_told_as_unknown() {
    let store = fleet(&nodes(3));
    Counter::options().copies(3).slots(1).open_or_create(&store, "n").await.unwrap();
    let hooked = Hooked::new(&store);
    let options = Counter::options().timeout(Duration::from_millis(200));
    let counter = options.open(&hooked.shared(), "n").await.unwrap();
    let strange = slot(&store).await;
    let at_last = |op: Op| op.routed(Route { with: None, rank: 2 });
    let put = at_last(Op::put(strange.clone(), PutMode::Set, "another program's", Ttl::Never));
    // A look, a claim, and then the write: for each copy a put and a get.
    hooked.at(3, move |store, batch| async move {
        let mut replies = store.run(Ctx::default(), batch).await;
        store.run_one(Ctx::default(), put.clone()).await.unwrap();
        let get = Op::get(put.key.clone(), Want::VALUE | Want::CAS).routed(put.route.clone());
        replies[5] = store.run_one(Ctx::default(), get).await;
        replies
    });
    let error = counter.add(1).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::LayoutMismatch, true), "{error}");
    store.run_one(Ctx::default(), at_last(Op::delete(strange))).await.unwrap();
    assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 1, "it did count");
}

/// The slot's copy of rank 1 is gone.
async fn lose_second(store: &StoreRef) {
    let delete = Op::delete(slot(store).await).routed(Route { with: None, rank: 1 });
    assert_eq!(store.run_one(Ctx::default(), delete).await.unwrap(), Reply::Deleted);
}

/// What makes a missing copy again is held back until that copy was made again and lost once more: it brings no older state back.
#[tokio::test]
async fn what_makes_a_copy_again_and_comes_late_brings_no_older_sum_back() {
    for is_lost in [false, true] {
        let nodes = nodes(2);
        let store = fleet(&nodes);
        Counter::options().copies(2).slots(1).open_or_create(&store, "n").await.unwrap();
        let order = places(&store, &nodes, &slot(&store).await).await;
        let hooked = Hooked::new(&store);
        let counter = Counter::open(&hooked.shared(), "n").await.unwrap();
        lose_second(&store).await;
        let late = Arc::new(Mutex::new(Batch::new()));
        for nth in 1..=4 {
            let late = late.clone();
            hooked.at(nth, move |store, batch| async move {
                let mut replies = Replies::new();
                for op in batch {
                    let one = Batch::from_iter([op.clone()]);
                    if matches!(op.verb, Verb::Put { mode: PutMode::Add, .. }) {
                        replies.extend(fail(&one, Effect::Unknown));
                        late.lock().unwrap().push(op);
                    } else {
                        replies.extend(store.run(Ctx::default(), one).await);
                    }
                }
                replies
            });
        }
        counter.add(11).await.unwrap();
        counter.add(1).await.unwrap();
        lose_second(&store).await;
        let late = std::mem::take(&mut *late.lock().unwrap());
        assert!(!late.is_empty());
        assert!(store.run(Ctx::default(), late).await.iter().all(Result::is_ok));
        match is_lost {
            true => nodes[order[0]].restart_empty(),
            false => nodes[order[0]].stop(),
        }
        let fresh = Counter::open(&store, "n").await.unwrap();
        let expected = if is_lost { ErrorKind::Lost } else { ErrorKind::Unavailable };
        assert_eq!(fresh.get().await.unwrap_err().kind(), expected);
        if !is_lost {
            nodes[order[0]].resume();
            assert_eq!(fresh.get().await.unwrap(), 12);
            fresh.add(1).await.unwrap();
            assert_eq!(counter.get().await.unwrap(), 13);
        }
    }
}

/// A writer stands still at each of its steps, while another makes the missing copy again, is told that its add counts, and the copy is lost once more.
#[tokio::test]
async fn a_writer_that_stood_still_while_others_made_a_copy_again_brings_no_older_sum_back() {
    // The blank, the claim, and the write.
    for nth in 2..=4 {
        let nodes = nodes(2);
        let store = fleet(&nodes);
        let other = Counter::options().copies(2).slots(1).open_or_create(&store, "n").await.unwrap();
        let order = places(&store, &nodes, &slot(&store).await).await;
        let hooked = Hooked::new(&store);
        let counter = Counter::open(&hooked.shared(), "n").await.unwrap();
        lose_second(&store).await;
        let (stands, stood_still) = tokio::sync::oneshot::channel();
        hooked.at(nth, move |store, batch| async move {
            other.add(100).await.unwrap();
            lose_second(&store).await;
            _ = store.run(Ctx::default(), batch).await;
            stands.send(()).unwrap();
            std::future::pending().await
        });
        let adding = tokio::spawn(async move { counter.add(1).await });
        stood_still.await.unwrap();
        adding.abort();
        let fresh = Counter::open(&store, "n").await.unwrap();
        assert_eq!(fresh.get().await.unwrap(), 100, "batch {nth}");
        nodes[order[0]].stop();
        assert_eq!(fresh.get().await.unwrap_err().kind(), ErrorKind::Unavailable, "batch {nth}");
    }
}
