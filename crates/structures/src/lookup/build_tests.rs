//! How often a build tries what fails, what it sends at once, and what it tells.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use larder_core::{Ctx, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::{Answering, fails};
use crate::events::tests::{listen, told};
use crate::lookup::{LookupKey, PackedTable};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn open(store: &StoreRef) -> PackedTable {
    PackedTable::open_or_create(store, "t").await.unwrap()
}

fn rows(count: u64) -> Rows {
    let mut rows = Rows::new(["word"]).unwrap();
    for id in 0..count {
        rows.push_id(id, [word(id)]).unwrap();
    }
    rows
}

fn word(id: u64) -> String {
    format!("{:x}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn is_block(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Set, .. })
}

fn is_head(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. })
}

/// How often each key is asked for by ops of a kind.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<BTreeMap<Key, usize>>>);

impl Asked {
    fn note(&self, op: &Op) {
        *self.0.lock().unwrap().entry(op.key.clone()).or_default() += 1;
    }

    fn times(&self) -> Vec<usize> {
        self.0.lock().unwrap().values().copied().collect()
    }
}

#[tokio::test]
async fn a_row_is_found_by_its_key_among_those_of_many_blocks() {
    let store = memory();
    let table = PackedTable::options().block_bytes(64).open_or_create(&store, "t").await.unwrap();
    assert!(table.build(rows(200)).await.unwrap().blocks > 3);
    let keys = [3u64, 150, 1_000, 77].map(LookupKey::from);
    let found = table.get_many(&keys).await.unwrap();
    let words = found.into_iter().map(|found| found.map(|found| String::from_utf8(found.fields[0].to_vec()).unwrap()));
    let words: Vec<Option<String>> = words.collect();
    assert_eq!(words, [Some(word(3)), Some(word(150)), None, Some(word(77))]);
}

#[tokio::test(start_paused = true)]
async fn blocks_that_are_not_taken_are_sent_six_times_and_removed_as_often_where_that_fails_too() {
    let answering = Answering::over(&memory());
    let table = open(&answering.shared()).await;
    let (sent, removed) = (Asked::default(), Asked::default());
    let (sends, removes) = (sent.clone(), removed.clone());
    answering.by(move |op| {
        let is_removal = matches!(op.verb, Verb::Delete { .. });
        match (is_block(op), is_removal) {
            (true, _) => sends.note(op),
            (_, true) => removes.note(op),
            _ => return None,
        }
        Some(fails(ErrorKind::Unavailable, Effect::NotApplied))
    });
    let error = table.build(rows(3)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!((sent.times(), removed.times()), (vec![6; 2], vec![6; 2]), "a block, and the directory");
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_fails_for_a_moment_is_done_before_the_build_ends() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let table = open(&answering.shared()).await;
    table.build(rows(3)).await.unwrap();
    let mut faults = 0;
    answering.by(move |op| {
        faults += usize::from(matches!(op.verb, Verb::Delete { .. }));
        let is_refused = matches!(op.verb, Verb::Delete { .. }) && faults <= 5;
        is_refused.then(|| fails(ErrorKind::Unavailable, Effect::NotApplied))
    });
    assert!(table.build(rows(4)).await.unwrap().is_swept);
    assert_eq!(table.stat().await.unwrap().others, 0);
}

#[tokio::test(start_paused = true)]
async fn blocks_that_cannot_be_read_back_are_asked_for_six_times() {
    let answering = Answering::over(&memory());
    let table = open(&answering.shared()).await;
    let (written, read) = (Asked::default(), Asked::default());
    let reads = read.clone();
    answering.by(move |op| {
        if is_block(op) {
            written.note(op);
        }
        let is_asked = op.is_read() && written.0.lock().unwrap().contains_key(&op.key);
        is_asked.then(|| {
            reads.note(op);
            fails(ErrorKind::Unavailable, Effect::NotApplied)
        })
    });
    let error = table.build(rows(3)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(read.times(), [6; 2], "a block, and the directory");
}

/// Of announcing a version, and of putting it in force.
#[tokio::test(start_paused = true)]
async fn a_head_that_the_store_refuses_is_written_once() {
    for nth in [1, 2] {
        let answering = Answering::over(&memory());
        let table = open(&answering.shared()).await;
        let written = Arc::new(Mutex::new(0));
        let writes = written.clone();
        answering.by(move |op| {
            if !is_head(op) {
                return None;
            }
            *writes.lock().unwrap() += 1;
            (*writes.lock().unwrap() >= nth).then(|| fails(ErrorKind::Unsupported, Effect::NotApplied))
        });
        let error = table.build(rows(3)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
        assert_eq!(*written.lock().unwrap(), nth);
    }
}

#[tokio::test(start_paused = true)]
async fn a_build_that_nothing_stands_in_the_way_of_makes_no_pause() {
    let table = open(&memory()).await;
    let began = tokio::time::Instant::now();
    table.build(rows(3)).await.unwrap();
    table.build(rows(4)).await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// The head that puts it in force is on its way for long, and nobody sees what came of it.
#[tokio::test(start_paused = true)]
async fn a_version_that_may_come_to_be_in_force_yet_has_all_of_its_blocks() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let table = open(&answering.shared()).await;
    let late = Arc::new(Mutex::new(Vec::new()));
    let keeps = late.clone();
    let head = table.0.head_key().unwrap();
    answering.by(move |op| {
        let mut heads = keeps.lock().unwrap();
        if is_head(op) {
            heads.push(op.clone());
            return (heads.len() > 1).then(|| fails(ErrorKind::Unavailable, Effect::Unknown));
        }
        (heads.len() > 1 && op.is_read() && op.key == head).then(|| fails(ErrorKind::Unavailable, Effect::NotApplied))
    });
    let error = table.build(rows(3)).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    let puts_in_force = late.lock().unwrap().remove(1);
    assert_eq!(memory.run_one(Ctx::default(), puts_in_force).await.unwrap(), Reply::Stored);
    assert!(open(&memory).await.get(2u64).await.unwrap().is_some());
}

#[tokio::test]
async fn a_build_tells_what_its_blocks_and_the_directory_take() {
    let answering = Answering::over(&memory());
    let options = PackedTable::options().block_bytes(2_000);
    let table = options.open_or_create(&answering.shared(), "t").await.unwrap();
    answering.asked();
    let built = table.build(rows(1_000)).await.unwrap();
    assert!(built.blocks > 1);
    let written: usize = puts(&answering).iter().flatten().sum();
    assert_eq!(built.bytes, written as u64);
}

/// The bytes of the blocks of each batch that wrote some.
fn puts(answering: &Answering) -> Vec<Vec<usize>> {
    let bytes = |op: &Op| match &op.verb {
        Verb::Put { mode: PutMode::Set, value, .. } => Some(value.len()),
        _ => None,
    };
    let asked = answering.asked();
    let batches = asked.iter().map(|(_, batch)| batch.iter().filter_map(bytes).collect::<Vec<usize>>());
    batches.filter(|bytes| !bytes.is_empty()).collect()
}

/// What servers buffer for a batch stays with them.
#[tokio::test]
async fn a_batch_of_a_build_writes_a_hundred_and_twenty_eight_kibibytes_of_blocks_at_the_most() {
    let answering = Answering::over(&memory());
    let options = PackedTable::options().block_bytes(2_000);
    let table = options.open_or_create(&answering.shared(), "t").await.unwrap();
    answering.asked();
    table.build(rows(40_000)).await.unwrap();
    let mut batches: Vec<usize> = puts(&answering).iter().map(|bytes| bytes.iter().sum()).collect();
    // The last one has the directory, too.
    batches.pop();
    assert!(batches.len() > 1, "{batches:?}");
    assert!(batches.iter().all(|bytes| *bytes <= 128 * 1_024), "{batches:?}");
    assert!(batches[0] > 64 * 1_024, "and not much less: {batches:?}");
}

/// A store that evicts had no room for them; one that does not has lost what it acknowledged.
#[tokio::test]
async fn blocks_that_are_gone_when_they_are_read_back_are_a_loss_where_nothing_is_evicted() {
    listen();
    for (evicts, name, events) in
        [(false, "blocks-that-were-lost", vec!["loss: lost"]), (true, "blocks-that-had-no-room", Vec::new())]
    {
        let memory: StoreRef = Arc::new(MemoryStore::builder().bytes_max(1 << 24).evict(evicts).build().unwrap());
        let answering = Answering::over(&memory);
        let table = PackedTable::open_or_create(&answering.shared(), name).await.unwrap();
        answering.by(|op| is_block(op).then_some(Ok(Reply::Stored)));
        let error = table.build(rows(3)).await.unwrap_err();
        assert_eq!(error.kind(), if evicts { ErrorKind::Full } else { ErrorKind::Lost }, "{error}");
        assert_eq!(told(name), events);
    }
}

#[tokio::test]
async fn rows_of_many_blocks_are_read_at_once_up_to_a_mebibyte_of_blocks() {
    let answering = Answering::over(&memory());
    let options = PackedTable::options().block_bytes(1024);
    let table = options.open_or_create(&answering.shared(), "t").await.unwrap();
    assert!(table.build(rows(2_000)).await.unwrap().blocks > 10);
    answering.asked();
    let keys: Vec<LookupKey> = (0..2_000u64).map(LookupKey::from).collect();
    assert!(table.get_many(&keys).await.unwrap().iter().all(Option::is_some));
    let batches = answering.asked().len();
    assert!(batches <= 2, "{batches} batches");
}

/// Others are first again and again: a build goes on for twice as long as one request may take.
#[tokio::test]
async fn a_head_that_others_write_is_tried_for_twice_the_timeout() {
    let answering = Answering::over(&memory());
    let timeout = Duration::from_millis(200);
    let table = PackedTable::options().timeout(timeout).open_or_create(&answering.shared(), "t").await.unwrap();
    answering.by(|op| is_head(op).then_some(Ok(larder_core::Reply::Exists)));
    let begin = std::time::Instant::now();
    let error = table.build(rows(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(begin.elapsed() >= 2 * timeout, "after {:?}", begin.elapsed());
}
