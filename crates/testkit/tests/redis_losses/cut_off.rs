//! A primary that is cut off from the other nodes while clients still reach it: what it acknowledges then is lost, and told.

use std::time::Duration;

use larder::{Counter, ErrorKind, Lock, LockGuard, Result, Set, StoreRef};

use crate::handles::said;
use crate::{PATIENCE, PRIMARIES, wait_in_step};

/// Of each kind, so many that every primary has some.
const EACH: usize = 24;
const CUT_OFF: usize = 0;
/// What a handle adds while the primary is cut off.
const ADDED: i64 = 5;

/// Handles of one client, of what all clients work on.
struct Client {
    counters: Vec<Counter>,
    sets: Vec<Set>,
    locks: Vec<Lock>,
}

impl Client {
    async fn new(store: &StoreRef) -> Client {
        let mut client = Client { counters: Vec::new(), sets: Vec::new(), locks: Vec::new() };
        for at in 0..EACH {
            client.counters.push(Counter::open_or_create(store, format!("counter{at}")).await.unwrap());
            client.sets.push(Set::open_or_create(store, format!("set{at}")).await.unwrap());
            let lock = Lock::options().lease(Duration::from_secs(600));
            client.locks.push(lock.open(store, format!("lock{at}")).await.unwrap());
        }
        client
    }

    async fn write(&self, added: i64, member: &str) {
        for (counter, set) in self.counters.iter().zip(&self.sets) {
            counter.add(added).await.unwrap();
            set.add([member]).await.unwrap();
        }
    }
}

/// How many tell that what was acknowledged is gone; all others have it.
fn told<T>(what: &str, said: Vec<Result<T>>, is_whole: impl Fn(&T) -> bool, kinds: &[ErrorKind]) -> usize {
    let mut told = 0;
    for (at, said) in said.into_iter().enumerate() {
        match said {
            Ok(found) => assert!(is_whole(&found), "{what}{at} lacks what was acknowledged and says nothing"),
            Err(error) => {
                assert!(kinds.contains(&error.kind()), "{what}{at}: {error}");
                told += 1;
            }
        }
    }
    assert!((1..EACH).contains(&told), "{what}: {told} of {EACH} tell a loss, of one primary in three");
    told
}

/// With `wait_replicas` nothing was acknowledged that is gone: its replica left the one that was cut off.
async fn add_waiting(waiting: &Client) -> Vec<bool> {
    let mut added = Vec::new();
    for counter in &waiting.counters {
        let outcome = counter.add(100).await;
        if let Err(error) = &outcome {
            assert!(error.is_unknown(), "{error}");
        }
        added.push(outcome.is_ok());
    }
    assert!(added.contains(&true) && added.contains(&false), "{added:?}");
    added
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_primary_that_is_cut_off_acknowledged_is_lost_and_every_handle_is_told() {
    let (cluster, _) = crate::cluster();
    let url = format!("{}?{PATIENCE}", cluster.url());
    let store = larder::open(&url).await.unwrap();
    let old = Client::new(&store).await;
    let waits = larder::open(&format!("{url}&wait_replicas=1&wait_ms=300")).await.unwrap();
    let waiting = Client::new(&waits).await;
    old.write(1, "before").await;
    let successor = tokio::task::block_in_place(|| {
        (0..PRIMARIES).for_each(|primary| wait_in_step(&cluster, primary));
        cluster.cut_off(CUT_OFF)
    });
    assert!(cluster.is_primary(CUT_OFF), "it has heard of it");

    // Who knows it as the primary goes on with it; who comes now goes to its successor.
    old.write(ADDED, "lost").await;
    let mut guards: Vec<LockGuard> = Vec::new();
    for lock in &old.locks {
        guards.push(lock.try_acquire().await.unwrap().expect("nobody has it"));
    }
    let at_successor = format!("redis-cluster://{}?{PATIENCE}", cluster.nodes()[successor].addr());
    let fresh = Client::new(&larder::open(&at_successor).await.unwrap()).await;
    let mut older = 0;
    for counter in &fresh.counters {
        let found = counter.get().await.unwrap();
        assert!([1, 1 + i128::from(ADDED)].contains(&found), "{found}");
        older += usize::from(found == 1);
    }
    assert!((1..EACH).contains(&older), "{older} counters of the primary that is cut off");
    let added = add_waiting(&waiting).await;
    tokio::task::block_in_place(|| cluster.meet_again(CUT_OFF));

    let gone = &[ErrorKind::RolledBack, ErrorKind::Lost][..];
    let (mut counters, mut sets, mut renewed) = (Vec::new(), Vec::new(), Vec::new());
    for ((counter, set), guard) in old.counters.iter().zip(&old.sets).zip(&guards) {
        counters.push(said(|| counter.get()).await);
        sets.push(said(|| set.members()).await);
        renewed.push(said(|| guard.renew()).await);
    }
    // What waited for replicas added hundreds.
    told("counter", counters, |&found| found % 100 == i128::from(1 + ADDED), gone);
    told("set", sets, |members| members.iter().any(|member| member == b"lost"), gone);
    told("lock", renewed, |_| true, &[ErrorKind::Lost, ErrorKind::Fenced]);
    for (at, counter) in fresh.counters.iter().enumerate() {
        let found = said(|| counter.get()).await.unwrap();
        assert!(!added[at] || found > 100, "counter{at}: an add that waited for a replica is gone: {found}");
        said(|| counter.add(1)).await.unwrap();
    }
}
