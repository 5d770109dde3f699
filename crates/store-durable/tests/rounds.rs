//! Rounds: many changes at once are one entry of the engine's at first, and items later. What is read is the same before, meanwhile and after, in this life and the next.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use larder_core::list::{List, Listed};
use larder_core::{Batch, Ctx, Key, Op, PutMode, Store, Ttl, Verb, Want};
use larder_store_durable::{Direct, DirectItem, DirectNext, DurableStore, Options, Sync, Ticket};

/// Changes of a batch: so many that they are written as a round.
const CHANGES: usize = 20;
const KEYS: usize = 300;

type Model = BTreeMap<String, Vec<u8>>;

fn name(number: usize) -> String {
    format!("key{number:03}")
}

/// Writes a batch of random changes, here and there.
async fn change(store: &DurableStore, model: &mut Model) {
    let mut batch = Batch::new();
    for _ in 0..CHANGES {
        let key = name(fastrand::usize(..KEYS));
        let verb = match fastrand::u8(..4) {
            0 => {
                model.remove(&key);
                Verb::Delete { cas: None }
            }
            kind => {
                let value: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(fastrand::usize(..200)).collect();
                model.insert(key.clone(), value.clone());
                let ttl = if kind == 1 { Ttl::After(Duration::from_secs(86_400)) } else { Ttl::Never };
                Verb::Put { mode: PutMode::Set, value: value.into(), flags: 0, ttl }
            }
        };
        batch.push(Op { verb, ..Op::get(Key::new(key).unwrap(), Want::VALUE) });
    }
    assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok));
}

/// Holds every way to read a store against what should be there.
async fn agrees(store: &DurableStore, model: &Model) {
    for number in 0..KEYS {
        let found = common::get(store, &name(number)).await;
        assert_eq!(found.as_deref(), model.get(&name(number)).map(Vec::as_slice), "{}", name(number));
    }
    let from = name(fastrand::usize(..KEYS));
    let count = fastrand::usize(1..KEYS);
    let scanned = store.scan(from.as_bytes(), count, Want::VALUE).unwrap();
    let scanned: Vec<_> = scanned.iter().map(|(key, item)| (key.as_bytes(), &item.value[..])).collect();
    let wanted: Vec<_> = model.range(from..).take(count).map(|(key, value)| (key.as_bytes(), &value[..])).collect();
    assert_eq!(scanned, wanted);
    let mut listed = Vec::new();
    let mut tell = |told: Listed<'_>| {
        if let Listed::Key(key) = told {
            listed.push(String::from_utf8(key.to_vec()).unwrap());
        }
    };
    store.list(Ctx::default(), b"key", &mut tell).await.unwrap();
    assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
    let checked = store.check(&mut |_| ()).unwrap();
    assert_eq!((checked.damaged, checked.items), (0, model.len() as u64));
}

fn open(folder: &std::path::Path) -> DurableStore {
    Options::new(folder).sync(Sync::Never).open().unwrap()
}

/// A store that was opened has what it should, and what is changed then as well.
async fn goes_on(store: DurableStore, folder: &std::path::Path, mut model: Model) {
    agrees(&store, &model).await;
    change(&store, &mut model).await;
    drop(store);
    agrees(&open(folder), &model).await;
}

#[tokio::test]
async fn what_a_round_changed_is_read_before_and_after_it_is_moved_and_in_the_next_life() {
    for _ in 0..common::times("LARDER_ROUNDS", 4) {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, mut model) = (open(folder.path()), Model::new());
        for _ in 0..30 {
            change(&store, &mut model).await;
            match fastrand::u8(..8) {
                0 => store.settle().unwrap(),
                1 => {
                    drop(store);
                    store = open(folder.path());
                }
                2 => {
                    // As a process that was killed leaves it.
                    let image = tempfile::tempdir().unwrap();
                    common::copy(folder.path(), image.path());
                    goes_on(open(image.path()), image.path(), model.clone()).await;
                }
                3 => {
                    let mut dump = Vec::new();
                    store.backup(&mut dump, &mut |_| ()).unwrap();
                    let restored = tempfile::tempdir().unwrap();
                    let place = restored.path().join("restored");
                    Options::new(&place).restore(&dump[..], &mut |_| ()).unwrap();
                    agrees(&open(&place), &model).await;
                }
                // Alone, among rounds.
                4 => {
                    common::set(&store, &name(7), "alone").await.unwrap();
                    model.insert(name(7), b"alone".to_vec());
                }
                _ => {}
            }
            agrees(&store, &model).await;
        }
    }
}

/// What is there after each write, by the batches before it, and with it.
struct Written {
    models: Vec<(Range<u64>, Model)>,
}

impl Written {
    async fn rounds(&mut self, store: &DurableStore, count: usize) {
        for _ in 0..count {
            let before = store.stats().unwrap().sequence;
            let mut model = self.models.last().map_or_else(Model::new, |(_, model)| model.clone());
            change(store, &mut model).await;
            self.models.push((before..store.stats().unwrap().sequence, model));
        }
    }

    /// What may be there after so many batches: items may be moved by a batch just before or behind a round's.
    fn after(&self, batches: u64) -> &[(Range<u64>, Model)] {
        let certain = self.models.iter().rposition(|(written, _)| written.end <= batches).unwrap();
        let possible = self.models.iter().rposition(|(written, _)| written.start < batches).unwrap();
        &self.models[certain..=certain.max(possible)]
    }
}

/// Waits until what was written so far is moved: where the batches of that end.
async fn moved(store: &DurableStore) -> u64 {
    let sequence = || store.stats().unwrap().sequence;
    let (written, until) = (sequence(), Instant::now() + Duration::from_secs(30));
    let mut last = written;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if last > written && sequence() == last {
            return last;
        }
        last = sequence();
        assert!(Instant::now() < until, "nothing is moved");
    }
}

#[tokio::test]
async fn a_crash_at_any_batch_leaves_the_rounds_before_it_whole() {
    for sync in [Sync::Always, Sync::Never] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = Options::new(&path).sync(sync).open().unwrap();
        let mut written = Written { models: vec![(0..1, Model::new())] };
        // More items than are moved at once: moved while nobody writes, and by whoever closes the store.
        written.rounds(&store, 15).await;
        let moved_at = store.stats().unwrap().sequence..moved(&store).await;
        // Where a disk is slow some of it was moved before.
        let batches = moved_at.end - moved_at.start;
        assert!(batches > 1 || sync == Sync::Always, "items and rounds go by several batches: {moved_at:?}");
        written.rounds(&store, 8).await;
        drop(store);
        let journal = std::fs::read(path.join("engine/0.jnl")).unwrap();
        let ends = common::ends(&journal);
        assert!(ends.len() as u64 > moved_at.end + 8, "what closes the store moves the last, too");
        for (batches, end) in (1..).zip(ends) {
            let image = tempfile::tempdir().unwrap();
            common::copy(&path, image.path());
            // Noted at the end, and here it is not the end yet.
            std::fs::remove_file(image.path().join("state")).unwrap();
            std::fs::write(image.path().join("engine/0.jnl"), &journal[..end]).unwrap();
            let store = open(image.path());
            let mut found = Model::new();
            for (key, item) in store.scan(b"", KEYS, Want::VALUE).unwrap() {
                found.insert(String::from_utf8(key.as_bytes().to_vec()).unwrap(), item.value.to_vec());
            }
            assert!(written.after(batches).iter().any(|(_, model)| *model == found), "{sync}: after {batches} batches");
            agrees(&store, &found).await;
            if batches.is_multiple_of(4) {
                goes_on(store, image.path(), found).await;
            }
        }
    }
}

#[tokio::test]
async fn a_large_change_behind_rounds_stands_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut model) = (open(folder.path()), Model::new());
    change(&store, &mut model).await;
    common::set(&store, &name(3), vec![7; 2 << 20]).await.unwrap();
    model.insert(name(3), vec![7; 2 << 20]);
    agrees(&store, &model).await;
    let image = tempfile::tempdir().unwrap();
    common::copy(folder.path(), image.path());
    agrees(&open(image.path()), &model).await;
}

#[tokio::test]
async fn lives_that_rounds_gave_end_and_what_is_over_is_reclaimed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let put = |number: usize, ttl| Op::put(Key::new(name(number)).unwrap(), PutMode::Set, "v", ttl);
    let batch: Batch = (0..CHANGES).map(|number| put(number, Ttl::After(Duration::from_millis(1)))).collect();
    assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(common::get(&store, &name(1)).await, None);
    assert_eq!(store.reclaim_expired().await.unwrap(), CHANGES as u64);
    assert_eq!(store.check(&mut |_| ()).unwrap().items, 0);
}

/// Waits until what a server decided is as durable as was asked.
fn settle(direct: &Direct, ticket: Ticket) {
    while direct.poll_settled(ticket, &mut Context::from_waker(Waker::noop())).unwrap().is_pending() {
        std::thread::yield_now();
    }
}

/// A server's writes are decided one by one and written together: of a key that a round has several times, the last counts, here, in an image of the folder and in the next life, whether
/// the round is one entry, some items, or some items that are large.
#[tokio::test]
async fn of_a_key_that_a_server_writes_again_and_again_in_a_round_the_last_counts() {
    for (keys, writes, bytes) in [(40, 400, 20), (2, 5, 20), (3, 9, 600_000), (40, 400, 5_000)] {
        let folder = tempfile::tempdir().unwrap();
        let (direct, mut model) = (Direct::new(open(folder.path())), Model::new());
        for _ in 0..3 {
            let mut last = 0;
            for _ in 0..writes {
                let key = name(fastrand::usize(..keys));
                let value: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(bytes).collect();
                let next = |cas| match fastrand::u8(..4) {
                    0 => DirectNext::Remove,
                    _ => DirectNext::Put(DirectItem {
                        value: value.clone().into(),
                        flags: 0,
                        marks: 0,
                        cas,
                        expiry_ms: None,
                    }),
                };
                let before = model.get(&key).cloned();
                let mut decide = |cas| {
                    let next = next(cas);
                    match &next {
                        DirectNext::Put(item) => _ = model.insert(key.clone(), item.value.to_vec()),
                        _ => _ = model.remove(&key),
                    }
                    next
                };
                let ticket = if fastrand::bool() {
                    direct.overwrite(key.as_bytes(), decide)
                } else {
                    direct.update(key.as_bytes(), |there, cas| {
                        assert_eq!(there.map(|item| &item.value[..]), before.as_deref(), "{key}");
                        decide(cas)
                    })
                };
                last = last.max(ticket.unwrap());
            }
            settle(&direct, last);
            agrees(direct.store(), &model).await;
            let image = tempfile::tempdir().unwrap();
            common::copy(folder.path(), image.path());
            agrees(&open(image.path()), &model).await;
        }
        drop(direct);
        agrees(&open(folder.path()), &model).await;
    }
}

#[tokio::test]
async fn pages_hold_what_is_there_however_much_in_front_is_gone() {
    const ITEMS: usize = 6_000;
    let folder = tempfile::tempdir().unwrap();
    let direct = Direct::new(open(folder.path()));
    let store = direct.store();
    let run = async |ops: Vec<Op>| {
        for batch in ops.chunks(1_000) {
            let batch: Batch = batch.iter().cloned().collect();
            assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok));
        }
    };
    let key = |number: usize| Key::new(format!("key{number:05}")).unwrap();
    // In front two of three are gone that the engine has, and of its first half all; and others are there that it has not.
    run((0..ITEMS).step_by(2).map(|number| Op::put(key(number), PutMode::Set, "engine", Ttl::Never)).collect()).await;
    store.settle().unwrap();
    let stays = |number: usize| number >= ITEMS / 2 && number.is_multiple_of(3);
    run((0..ITEMS).step_by(2).filter(|&number| !stays(number)).map(|number| Op::delete(key(number))).collect()).await;
    let is_put = |number: usize| number % 4 == 1;
    run((0..ITEMS)
        .filter(|&number| is_put(number))
        .map(|number| Op::put(key(number), PutMode::Set, "front", Ttl::Never))
        .collect())
    .await;
    let is_there = |number: &usize| if number.is_multiple_of(2) { stays(*number) } else { is_put(*number) };
    let all: Vec<Key> = (0..ITEMS).filter(is_there).map(key).collect();
    for (from, count) in [(0, 1), (0, 100), (7, 2_000), (ITEMS / 2 + 1, 5), (0, ITEMS), (ITEMS - 1, 10), (0, 0)] {
        let found = store.scan(key(from).as_bytes(), count, Want::empty()).unwrap();
        let wanted = all.iter().filter(|&it| *it >= key(from)).take(count);
        assert!(found.iter().map(|(key, _)| key).eq(wanted), "{count} from {from}");
    }
    for count in [17, 100, ITEMS] {
        let (mut walked, mut from) = (Vec::new(), Some(Vec::new()));
        while let Some(here) = from {
            from = direct.walk(&here, count, &mut |key, _| walked.push(Key::new(key.to_vec()).unwrap())).unwrap();
        }
        assert!(walked == all, "by {count}: {} of {}", walked.len(), all.len());
    }
}
