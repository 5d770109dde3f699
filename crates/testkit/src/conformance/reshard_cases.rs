//! Resharding of every sharded collection, on every store: whoever dies of it, and whoever works meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Batch, Ctx, ErrorKind, Key, Op, Profile, Result, Run, Store, StoreRef, Ttl, Verb, Want};
use larder_structures::inspect::inspect;
use larder_structures::{Name, ShardedHash, ShardedSet, ShardedSortedSet};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};
use crate::yielding::Yielding;

cases! {
    sharded_hashes_lose_nothing_when_a_resharding_dies_at_the_nth_op [Cas];
    sharded_sets_lose_nothing_when_a_resharding_dies_at_the_nth_op [Cas];
    sorted_sets_lose_nothing_when_a_resharding_dies_at_the_nth_op [Cas];
    sharded_hashes_lose_nothing_under_eight_tasks_while_resharded [Cas];
    sorted_sets_lose_nothing_under_eight_tasks_while_resharded [Cas];
    sharded_collections_go_on_where_a_resharding_was_undone_by_a_setback [Cas];
}

const PATIENCE: Duration = Duration::from_secs(30);
/// Members that a sorted set's ends can tell: fewer than there are.
const KEPT: u16 = 5;

/// Which collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Hash,
    Set,
    SortedSet,
}

/// Any of them, whose elements have a name and, but for those of a set, a number.
#[derive(Clone, Debug)]
enum Any {
    Hash(ShardedHash),
    Set(ShardedSet),
    SortedSet(ShardedSortedSet),
}

/// What is there, or should be; the number of a set's member is 0.
type Model = BTreeMap<String, u32>;

impl Any {
    async fn open(of: Of, store: &StoreRef, name: &str, shards: u16) -> Any {
        let opened = match of {
            Of::Hash => {
                ShardedHash::options().shards(shards).timeout(PATIENCE).open_or_create(store, name).await.map(Any::Hash)
            }
            Of::Set => {
                ShardedSet::options().shards(shards).timeout(PATIENCE).open_or_create(store, name).await.map(Any::Set)
            }
            Of::SortedSet => ShardedSortedSet::options()
                .shards(shards)
                .kept(KEPT)
                .timeout(PATIENCE)
                .open_or_create(store, name)
                .await
                .map(Any::SortedSet),
        };
        opened.expect("a collection")
    }

    /// Puts an element; true if it is new.
    async fn put(&self, name: &str, number: u32) -> bool {
        let told = match self {
            Any::Hash(hash) => hash.set([(name, number.to_string())]).await,
            Any::Set(set) => set.add([name]).await,
            Any::SortedSet(set) => set.set([(name, f64::from(number))]).await,
        };
        told.expect("a put")[0]
    }

    /// Removes an element; true if it was there.
    async fn remove(&self, name: &str) -> bool {
        let told = match self {
            Any::Hash(hash) => hash.remove([name]).await,
            Any::Set(set) => set.remove([name]).await,
            Any::SortedSet(set) => set.remove([name]).await,
        };
        told.expect("a removal")[0]
    }

    async fn find(&self, name: &str) -> Option<u32> {
        match self {
            Any::Hash(hash) => hash.get(name).await.expect("a value").map(|value| number(&value)),
            Any::Set(set) => set.has(name).await.expect("an answer").then_some(0),
            Any::SortedSet(set) => set.score(name).await.expect("a score").map(|score| score as u32),
        }
    }

    /// All there is, each once; the ends of a sorted set agree with it.
    async fn all(&self, when: &str) -> Model {
        let text = |name: &[u8]| String::from_utf8(name.to_vec()).expect("text");
        let all: Vec<(String, u32)> = match self {
            Any::Hash(hash) => {
                let all = hash.entries().await.unwrap_or_else(|error| panic!("{when}: {error}"));
                all.iter().map(|(field, value)| (text(field), number(value))).collect()
            }
            Any::Set(set) => {
                let all = set.members().await.unwrap_or_else(|error| panic!("{when}: {error}"));
                all.iter().map(|member| (text(member), 0)).collect()
            }
            Any::SortedSet(set) => {
                let all = set.entries().await.unwrap_or_else(|error| panic!("{when}: {error}"));
                all.iter().map(|(member, score)| (text(member), *score as u32)).collect()
            }
        };
        let count = all.len();
        let all: Model = all.into_iter().collect();
        assert_eq!(all.len(), count, "an element is there twice, {when}");
        if let Any::SortedSet(set) = self {
            let mut ranked: Vec<(&String, &u32)> = all.iter().collect();
            ranked.sort_by_key(|&(name, number)| (number, name));
            let top: Vec<String> = ranked.iter().rev().take(KEPT.into()).map(|(name, _)| (*name).clone()).collect();
            let told = set.top(KEPT.into()).await.unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_eq!(told.iter().map(|(name, _)| text(name)).collect::<Vec<_>>(), top, "{when}");
            let bottom: Vec<String> = ranked.iter().take(KEPT.into()).map(|(name, _)| (*name).clone()).collect();
            let told = set.bottom(KEPT.into()).await.unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_eq!(told.iter().map(|(name, _)| text(name)).collect::<Vec<_>>(), bottom, "{when}");
        }
        all
    }

    async fn len(&self) -> u64 {
        match self {
            Any::Hash(hash) => hash.len().await,
            Any::Set(set) => set.len().await,
            Any::SortedSet(set) => set.len().await,
        }
        .expect("a length")
    }

    /// Reads all there is.
    async fn len_of_all(&self) -> Result<usize> {
        Ok(match self {
            Any::Hash(hash) => hash.entries().await?.len(),
            Any::Set(set) => set.members().await?.len(),
            Any::SortedSet(set) => set.entries().await?.len(),
        })
    }

    async fn reshard(&self, shards: u16) -> Result<()> {
        match self {
            Any::Hash(hash) => hash.reshard(shards).await,
            Any::Set(set) => set.reshard(shards).await,
            Any::SortedSet(set) => set.reshard(shards).await,
        }
    }

    fn shards(&self) -> u16 {
        match self {
            Any::Hash(hash) => hash.shards(),
            Any::Set(set) => set.shards(),
            Any::SortedSet(set) => set.shards(),
        }
    }

    /// What is found of an element that was put with this number.
    fn as_found(&self, number: u32) -> u32 {
        if matches!(self, Any::Set(_)) { 0 } else { number }
    }
}

fn number(value: &[u8]) -> u32 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("a number")
}

async fn sharded_hashes_lose_nothing_when_a_resharding_dies_at_the_nth_op(t: Bench) {
    dies_of_each_fault(&t, Of::Hash).await;
}

async fn sharded_sets_lose_nothing_when_a_resharding_dies_at_the_nth_op(t: Bench) {
    dies_of_each_fault(&t, Of::Set).await;
}

async fn sorted_sets_lose_nothing_when_a_resharding_dies_at_the_nth_op(t: Bench) {
    dies_of_each_fault(&t, Of::SortedSet).await;
}

/// Side by side: most of it waits for the maker of a plan, who is dead.
async fn dies_of_each_fault(t: &Bench, of: Of) {
    tokio::join!(
        dies(t, of, Fault::NotSent),
        dies(t, of, Fault::LostRequest),
        dies(t, of, Fault::Cut),
        dies(t, of, Fault::LostReply),
        dies(t, of, Fault::Late(5)),
    );
}

/// At one op after the other, until one resharding gets through.
async fn dies(t: &Bench, of: Of, fault: Fault) {
    for nth in (1..).step_by(3) {
        let when = format!("{of:?}, {fault:?} at op {nth}");
        let name = t.name(&format!("{fault:?}-{nth}"));
        let faulty = Faulty::new(t.store.clone());
        let dying = Any::open(of, &faulty.shared(), &name, 3).await;
        let other = Any::open(of, &t.store, &name, 3).await;
        let mut model = Model::new();
        for n in 0..24 {
            assert!(other.put(&format!("f{n}"), n).await);
            model.insert(format!("f{n}"), other.as_found(n));
        }
        faulty.fail_nth(nth, fault);
        let outcome = dying.reshard(5).await;
        let is_over = faulty.injected() == 0;
        faulty.heal();
        // Wherever it stopped, others read and write on.
        assert_eq!(other.all(&when).await, model, "{when}");
        for (n, is_new) in [(3, false), (40, true)] {
            assert_eq!(other.put(&format!("f{n}"), 100 + n).await, is_new, "{when}");
            model.insert(format!("f{n}"), other.as_found(100 + n));
        }
        assert!(other.remove("f7").await, "{when}");
        model.remove("f7");
        assert_eq!(other.len().await, model.len() as u64, "{when}");
        faulty.deliver_late().await;
        let fresh = Any::open(of, &t.store, &name, 3).await;
        // To what the dead wanted, or to what was there before.
        let shards = if nth % 2 == 0 { 3 } else { 5 };
        fresh.reshard(shards).await.unwrap_or_else(|error| panic!("{when}: {error}"));
        for any in [&fresh, &other, &dying] {
            assert_eq!(any.all(&when).await, model, "{when}");
            assert_eq!((any.len().await, any.shards()), (model.len() as u64, shards), "{when}");
        }
        let found = inspect(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a look");
        // The manifest, the map, the shards, and a sorted set's ends: nothing is left of the other map.
        let keys = u64::from(shards) + if of == Of::SortedSet { 3 } else { 2 };
        assert_eq!(found.map(|found| found.keys), Some(keys), "{when}");
        if is_over {
            outcome.expect("nothing failed");
            return;
        }
    }
}

async fn sharded_hashes_lose_nothing_under_eight_tasks_while_resharded(t: Bench) {
    under_eight_tasks(&t, Of::Hash).await;
}

async fn sorted_sets_lose_nothing_under_eight_tasks_while_resharded(t: Bench) {
    under_eight_tasks(&t, Of::SortedSet).await;
}

/// What tasks do while a collection is resharded, until that is over; how many of their calls began and ended during one resharding is counted.
pub(super) struct Meanwhile {
    /// How many reshardings have begun and how many have ended, added up: odd while one is under way.
    turns: AtomicU64,
    is_over: AtomicBool,
    /// Of each task, its calls that were wholly within a resharding.
    within: Vec<AtomicU64>,
}

impl Meanwhile {
    /// How often it is resharded at least: with each something new comes.
    const RESHARDINGS_MIN: u64 = 4;
    /// How often at the most, until each task had its calls within.
    const RESHARDINGS_MAX: u64 = 1_000;
    /// Calls within a resharding that each task is to have.
    const WITHIN_MIN: u64 = 4;
    /// After so many turns a task ends, whatever becomes of the reshardings.
    const TURNS_MAX: u32 = 50_000;

    pub(super) fn of(tasks: usize) -> Arc<Meanwhile> {
        let within = (0..tasks).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Meanwhile { turns: AtomicU64::new(0), is_over: AtomicBool::new(false), within })
    }

    /// A handle's store for who reshards: one in the process answers at once, and would let nobody in between.
    pub(super) fn yielding(store: &StoreRef) -> StoreRef {
        Arc::new(Yielding(store.clone()))
    }

    /// Begins a resharding, to one of these numbers of shards in turn; `None` once each task had its calls within.
    ///
    /// # Panics
    /// If one had too few.
    pub(super) fn begin(&self, shards: &[u16]) -> Option<u16> {
        let done = self.turns.load(Ordering::SeqCst) / 2;
        let within: Vec<u64> = self.within.iter().map(|calls| calls.load(Ordering::SeqCst)).collect();
        let is_enough = within.iter().all(|calls| *calls >= Meanwhile::WITHIN_MIN);
        if done < Meanwhile::RESHARDINGS_MIN || (!is_enough && done < Meanwhile::RESHARDINGS_MAX) {
            self.turns.fetch_add(1, Ordering::SeqCst);
            return Some(shards[done as usize % shards.len()]);
        }
        self.is_over.store(true, Ordering::SeqCst);
        println!("{done} reshardings; calls of each task within one: {within:?}");
        assert!(is_enough, "of {done} reshardings the tasks met too few: {within:?}");
        None
    }

    pub(super) fn end(&self) {
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a call of a task.
    pub(super) async fn call<T>(&self, task: usize, call: impl Future<Output = T>) -> T {
        let before = self.turns.load(Ordering::SeqCst);
        let told = call.await;
        if before % 2 == 1 && self.turns.load(Ordering::SeqCst) == before {
            self.within[task].fetch_add(1, Ordering::SeqCst);
        }
        told
    }

    /// True once a task in this turn of its own has nothing to wait for any more.
    pub(super) fn is_over(&self, turn: u32) -> bool {
        self.is_over.load(Ordering::SeqCst) || turn >= Meanwhile::TURNS_MAX
    }

    /// How many of so many new things have come by this turn of a task: some before the first resharding, some with each of the next, all in the end.
    pub(super) fn have_come(&self, turn: u32, all: u32) -> u32 {
        let stages = Meanwhile::RESHARDINGS_MIN + 1;
        let stage = (self.turns.load(Ordering::SeqCst).div_ceil(2) + 1).min(stages);
        if self.is_over(turn) { all } else { (u64::from(all) * stage / stages) as u32 }
    }
}

/// Each task has elements of its own, of which it finds what it was told; and all put the same ones, new to one of them, some of them with each resharding.
async fn under_eight_tasks(t: &Bench, of: Of) {
    const TASKS: u32 = 8;
    const SHARED: u32 = 60;
    let name = t.name("a");
    let handles = [Any::open(of, &t.store, &name, 3).await, Any::open(of, &t.store, &name, 3).await];
    let other = Any::open(of, &Meanwhile::yielding(&t.store), &name, 3).await;
    let (new, meanwhile) = (Arc::new(AtomicU64::new(0)), Meanwhile::of(TASKS as usize));
    let workers = (0..TASKS).map(|task| {
        let (any, new, meanwhile) = (handles[task as usize % 2].clone(), new.clone(), meanwhile.clone());
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(task.into());
            let (mut own, mut next) = (Model::new(), 0);
            for turn in 0.. {
                let come = meanwhile.have_come(turn, SHARED);
                if next == SHARED && meanwhile.is_over(turn) {
                    break;
                }
                let shared = if next < come { next } else { random.u32(..next) };
                next = next.max(shared + 1);
                let element = format!("shared-{shared}");
                let is_new = meanwhile.call(task as usize, any.put(&element, 7)).await;
                new.fetch_add(is_new.into(), Ordering::Relaxed);
                change_own(&any, (&meanwhile, task), &mut own, &mut random, turn).await;
                // A store in the process answers at once, and lets nobody else in.
                tokio::task::yield_now().await;
            }
            own
        })
    });
    let workers: Vec<_> = workers.collect();
    while let Some(shards) = meanwhile.begin(&[7, 2, 9, 5]) {
        other.reshard(shards).await.expect("a resharding");
        meanwhile.end();
    }
    let mut model: Model = (0..SHARED).map(|turn| (format!("shared-{turn}"), other.as_found(7))).collect();
    for worker in workers {
        model.extend(worker.await.expect("no panic"));
    }
    other.reshard(4).await.expect("a resharding");
    assert_eq!(new.load(Ordering::Relaxed), u64::from(SHARED), "each is new once");
    for any in [&handles[0], &handles[1], &other] {
        assert_eq!(any.all("at the end").await, model);
        assert_eq!((any.len().await, other.shards()), (model.len() as u64, 4));
    }
}

/// Puts an element that no other task has, or removes it, and finds what it was told.
async fn change_own(
    any: &Any,
    (meanwhile, task): (&Meanwhile, u32),
    own: &mut Model,
    random: &mut fastrand::Rng,
    turn: u32,
) {
    const OWN: u32 = 12;
    let element = format!("own-{task}-{}", random.u32(..OWN));
    let task = task as usize;
    if random.u8(..4) == 0 {
        let was_there = own.remove(&element).is_some();
        assert_eq!(meanwhile.call(task, any.remove(&element)).await, was_there, "{element}");
    } else {
        let is_new = own.insert(element.clone(), any.as_found(turn)).is_none();
        assert_eq!(meanwhile.call(task, any.put(&element, turn)).await, is_new, "{element}");
    }
    let found = meanwhile.call(task, any.find(&element)).await;
    assert_eq!(found, own.get(&element).copied(), "{element} was acknowledged");
}

/// Remembers what is written to items of the index 0: maps.
struct Recording {
    inner: StoreRef,
    wrote: Mutex<Vec<(Key, Bytes)>>,
}

impl Store for Recording {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        for op in &batch {
            if let (Verb::Put { value, .. }, true) = (&op.verb, op.key.as_bytes().ends_with(b".0")) {
                self.wrote.lock().expect("no panic").push((op.key.clone(), value.clone()));
            }
        }
        self.inner.run(ctx, batch)
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recording")
    }
}

/// What the map item says of itself: nothing is under way, a map is to come, elements are being moved.
const PHASES: [u8; 3] = [0, 1, 2];

/// The map goes back, as by a failover of the server that it stands on, to before a resharding began, or was in force, and its shards do not: some are sealed.
async fn sharded_collections_go_on_where_a_resharding_was_undone_by_a_setback(t: Bench) {
    for of in [Of::Hash, Of::Set, Of::SortedSet] {
        for phase in &PHASES[..2] {
            let mut is_mended = false;
            for nth in (2..).step_by(5) {
                let when = format!("{of:?}, back to phase {phase} from op {nth}");
                let Some(told) = undone(&t, of, *phase, nth, &when).await else { break };
                is_mended |= told;
            }
            assert!(is_mended, "{of:?}, back to phase {phase}: no resharding was undone");
        }
    }
}

/// True if a resharding that died at this op was undone, and its shards went on; `None` if none died.
async fn undone(t: &Bench, of: Of, phase: u8, nth: u64, when: &str) -> Option<bool> {
    let name = t.name(&format!("{of:?}-{phase}-{nth}"));
    let recording = Arc::new(Recording { inner: t.store.clone(), wrote: Mutex::default() });
    let faulty = Faulty::new(recording.clone());
    let dying = Any::open(of, &faulty.shared(), &name, 3).await;
    let (map, stable) = recording.wrote.lock().expect("no panic")[0].clone();
    let other = Any::open(of, &t.store, &name, 3).await;
    let mut model = Model::new();
    for n in 0..24 {
        assert!(other.put(&format!("f{n}"), n).await);
        model.insert(format!("f{n}"), other.as_found(n));
    }
    faulty.fail_nth(nth, Fault::NotSent);
    let is_done = dying.reshard(5).await.is_ok();
    if is_done && faulty.injected() == 0 {
        return None;
    }
    faulty.heal();
    let now = t.ok(Op::get(map.clone(), Want::VALUE)).await.into_item().expect("a map").value;
    if now[1] != PHASES[2] {
        return Some(false);
    }
    // Fills some of the new shards, and seals what they come from.
    let other = Any::open(of, &t.store, &name, 3).await;
    for n in [3, 40] {
        other.put(&format!("f{n}"), 100 + n).await;
        model.insert(format!("f{n}"), other.as_found(100 + n));
    }
    let wrote = recording.wrote.lock().expect("no panic").clone();
    let planned = wrote.into_iter().rev().find(|(_, value)| value[1] == PHASES[1]).expect("a plan").1;
    let back = if phase == 0 { stable } else { planned };
    t.ok(Op::put(map.clone(), larder_core::PutMode::Set, back, Ttl::Never)).await;
    let fresh = Any::open(of, &t.store, &name, 3).await;
    match fresh.len_of_all().await {
        Err(error) if error.kind() == ErrorKind::RolledBack => {}
        // What was moved whole is removed where it came from.
        Err(error) if error.kind() == ErrorKind::Lost => return Some(false),
        other => panic!("{when}: {other:?}"),
    }
    let all = fresh.all(when).await;
    for n in (0..24).filter(|n| *n != 3) {
        assert_eq!(all.get(&format!("f{n}")), model.get(&format!("f{n}")), "{when}");
    }
    if phase == 1 {
        assert_eq!(all, model, "{when}: what came since is still named");
    }
    assert!(fresh.put("new", 1).await, "{when}");
    fresh.reshard(4).await.unwrap_or_else(|error| panic!("{when}: {error}"));
    assert_eq!(fresh.all(when).await.len(), all.len() + 1, "{when}");
    Some(true)
}
