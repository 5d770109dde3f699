//! Eight clients that push, remove and change elements of their own, and what each of them knows of these.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use larder_core::ErrorKind;
use larder_structures::Array;

/// A task's own elements as they stand in the array, and more than one such list where an outcome is unknown.
type Worlds = Vec<Vec<String>>;

/// How many outcomes were known, and how many were not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) known: usize,
    pub(crate) unknown: usize,
}

/// 8 tasks over the handles while `fresh` reads and compacts. Then `settle`, and what is there must be what the tasks know: in one shard
/// with its order, over several as a bag.
pub(crate) async fn churn<F: Future<Output = ()>>(
    handles: &[Array],
    fresh: &Array,
    seed: u64,
    turns: u32,
    settle: impl FnOnce() -> F,
) -> Agreed {
    let shards = fresh.stat().await.unwrap().shards;
    let is_over = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn(read(fresh.clone(), is_over.clone()));
    let tasks: Vec<_> = (0..8usize)
        .map(|task| tokio::spawn(work(handles[task % handles.len()].clone(), task, seed ^ task as u64, turns, shards)))
        .collect();
    let mut agreed = Agreed::default();
    let mut all: Vec<Worlds> = Vec::new();
    for task in tasks {
        let (worlds, of_task) = task.await.unwrap();
        agreed.known += of_task.known;
        agreed.unknown += of_task.unknown;
        all.push(worlds);
    }
    is_over.store(true, Ordering::SeqCst);
    assert!(reader.await.unwrap() > 5, "the reader hardly read");
    settle().await;
    let found = fresh.elements().await.unwrap();
    for (task, worlds) in all.iter().enumerate() {
        let own = own(&found, task);
        assert!(is_one_of(&own, worlds, shards), "task {task} has {own:?}, and knows {worlds:?}; seed {seed}");
    }
    let told: usize = (0..all.len()).map(|task| own(&found, task).len()).sum();
    assert_eq!(told, found.len(), "there is what nobody pushed: {found:?}; seed {seed}");
    agreed
}

/// Reads and compacts. Each element is pushed once in all, so two reads must have the same order of those that are in both.
async fn read(array: Array, is_over: Arc<AtomicBool>) -> u32 {
    let mut before: HashMap<Bytes, usize> = HashMap::new();
    let mut reads = 0;
    while !is_over.load(Ordering::SeqCst) {
        let elements = array.elements().await.unwrap();
        let known: Vec<usize> = elements.iter().filter_map(|element| before.get(element).copied()).collect();
        assert!(known.is_sorted(), "the order changed between two reads: {elements:?}");
        let count = elements.len();
        before = elements.into_iter().enumerate().map(|(at, element)| (element, at)).collect();
        assert_eq!(before.len(), count, "an element is there twice");
        reads += 1;
        if reads % 10 == 0 {
            _ = array.compact().await;
        }
    }
    reads
}

fn own(elements: &[Bytes], task: usize) -> Vec<String> {
    let prefix = format!("{task}-");
    let all = elements.iter().map(|element| String::from_utf8(element.to_vec()).unwrap());
    all.filter(|element| element.starts_with(&prefix)).collect()
}

fn is_one_of(own: &[String], worlds: &Worlds, shards: u16) -> bool {
    let sorted = |elements: &[String]| {
        let mut elements = elements.to_vec();
        elements.sort_unstable();
        elements
    };
    worlds.iter().any(|world| if shards == 1 { world == own } else { sorted(world) == sorted(own) })
}

/// What one call changes: it counts in each shard as a whole, and a `change` in all.
struct Turn {
    add: Vec<String>,
    delete: Vec<String>,
    is_change: bool,
}

impl Turn {
    fn draw(rng: &mut fastrand::Rng, task: usize, turn: u32, world: &[String], shards: u16) -> Turn {
        let some: Vec<String> = (0..rng.usize(1..4)).map(|part| format!("{task}-{turn}-{part}")).collect();
        let mut there: Vec<String> = world.to_vec();
        rng.shuffle(&mut there);
        // What is not atomic is of one shard: of one element.
        let max = if shards == 1 { 3 } else { 1 };
        match rng.u8(..5) {
            0 | 1 => Turn { add: some.into_iter().take(max).collect(), delete: Vec::new(), is_change: false },
            2 => Turn { add: Vec::new(), delete: there.into_iter().take(max).collect(), is_change: false },
            _ => Turn { add: some, delete: there.into_iter().take(3).collect(), is_change: true },
        }
    }

    async fn run(&self, array: &Array) -> larder_core::Result<()> {
        match self.is_change {
            true => array.change(&self.add, &self.delete).await,
            false if self.delete.is_empty() => array.push(&self.add).await,
            false => array.remove(&self.delete).await,
        }
    }

    fn apply(&self, world: &[String]) -> Vec<String> {
        let stays = world.iter().filter(|element| !self.delete.contains(element));
        stays.chain(&self.add).cloned().collect()
    }
}

async fn work(array: Array, task: usize, seed: u64, turns: u32, shards: u16) -> (Worlds, Agreed) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut worlds: Worlds = vec![Vec::new()];
    let mut agreed = Agreed::default();
    for number in 0..turns {
        let turn = Turn::draw(&mut rng, task, number, &worlds[0], shards);
        let after = worlds.iter().map(|world| turn.apply(world));
        match turn.run(&array).await {
            Ok(()) => {
                agreed.known += 1;
                worlds = after.collect();
            }
            Err(error) if error.is_unknown() => {
                agreed.unknown += 1;
                worlds = after.collect::<Vec<_>>().into_iter().chain(worlds).collect();
            }
            Err(error) => assert_ne!(error.kind(), ErrorKind::Lost, "nothing was lost: {error}"),
        }
        worlds.dedup();
        if rng.u8(..4) == 0
            && let Ok(found) = array.elements().await
        {
            let own = own(&found, task);
            assert!(is_one_of(&own, &worlds, shards), "task {task} has {own:?}, and knows {worlds:?}; seed {seed}");
        }
    }
    (worlds, agreed)
}
