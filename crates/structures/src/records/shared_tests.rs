//! Records beside others: who is first with a shard, and a list that goes back in the middle of a call.

use std::sync::MutexGuard;

use larder_core::{Effect, Profile, Run, Store, StoreExt};
use larder_store_memory::MemoryStore;

use super::*;
use crate::append::{Distinct, layout as engine};
use crate::events::tests::{listen, told};
use crate::records::{PackedRecords, Schema, Value};

/// What somebody else does before an op; true once it is done.
type Meddle = Box<dyn FnMut(&MemoryStore, &Op) -> bool + Send>;

/// A store to which somebody else does something once, between two ops of whoever asks it.
struct Meddled {
    inner: MemoryStore,
    meddle: Mutex<Option<Meddle>>,
}

impl Meddled {
    fn new() -> Arc<Meddled> {
        Arc::new(Meddled { inner: MemoryStore::new(), meddle: Mutex::default() })
    }

    fn meddle(&self) -> MutexGuard<'_, Option<Meddle>> {
        self.meddle.lock().unwrap()
    }

    fn reply(&self, op: &Op) -> Result<Reply> {
        let mut meddle = self.meddle();
        if meddle.as_mut().is_some_and(|meddle| meddle(&self.inner, op)) {
            *meddle = None;
        }
        self.inner.apply(op)
    }
}

impl fmt::Debug for Meddled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meddled")
    }
}

impl Store for Meddled {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
        Run::Ready(batch.iter().map(|op| self.reply(op)).collect())
    }
}

async fn records(store: &StoreRef, name: &str) -> PackedRecords {
    let options = PackedRecords::options().schema(Schema::parse(["n:u8"]).unwrap()).shard_bytes(64);
    options.open_or_create(store, name).await.unwrap()
}

fn verb(op: &Op) -> (bool, bool) {
    use larder_core::Verb;
    let is_write = matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. });
    (is_write, matches!(op.verb, Verb::Put { mode: PutMode::Append, .. }))
}

#[tokio::test]
async fn a_conflict_is_told_where_somebody_was_first_and_only_there() {
    listen();
    let meddled = Meddled::new();
    let store: StoreRef = meddled.clone();
    let records = records(&store, "beaten").await;
    for n in [7, 8] {
        records.set(3, &[("n", Value::Uint(n))]).await.unwrap();
    }
    assert_eq!(told("beaten"), [""; 0], "nobody was in the way");
    *meddled.meddle() = Some(Box::new(|store, op| {
        let (is_write, _) = verb(op);
        if is_write {
            let Reply::Item(item) = store.apply(&Op::get(op.key.clone(), Want::VALUE)).unwrap() else {
                panic!("it is there");
            };
            store.apply(&Op::put(op.key.clone(), PutMode::Set, item.value, Ttl::Never)).unwrap();
        }
        is_write
    }));
    records.set(3, &[("n", Value::Uint(9))]).await.unwrap();
    assert_eq!(told("beaten"), ["conflict"]);
    assert_eq!(records.get(3).await.unwrap(), [Value::Uint(9)]);
}

/// A list of another past, in which this shard was made by others: written anew there, it knows its last sixteen writers and none before.
async fn other_list(store: &StoreRef, inner: &Inner) -> Bytes {
    let key = inner.manifest.data_key(&inner.name, 0).unwrap();
    let value = async || store.get(key.clone()).await.unwrap().unwrap().value;
    let before = value().await;
    for number in 0..16 {
        let tuning = Tuning { clock: larder_core::SystemClock::shared(), dirty_bytes: LEDGER_DIRTY_BYTES };
        let ledger = Ledger::new(store, &inner.name, &inner.manifest, tuning).unwrap();
        ledger.register(inner.deadline(), &[Piece { number, part: 0, incarnation: 5 }]).await.unwrap();
    }
    let (place, listed) = (engine::Place { generation: inner.manifest.generation, shard: 0 }, value().await);
    let folded = engine::Value::parse(&listed, place).unwrap().fold(Distinct::default()).unwrap();
    store.put(key, PutMode::Set, before, Ttl::Never).await.unwrap();
    folded.compacted(place, 0, 0)
}

/// The servers fail over between the listing of a shard and the look at what is listed then; nothing in that list says of itself that it is another.
#[tokio::test]
async fn a_list_that_lost_a_shard_as_soon_as_it_had_it_is_told_though_it_has_another_in_its_place() {
    let meddled = Meddled::new();
    let store: StoreRef = meddled.clone();
    let records = records(&store, "back").await;
    let other = other_list(&store, &records.0).await;
    let mut is_listed = false;
    *meddled.meddle() = Some(Box::new(move |store, op| {
        let (_, is_listing) = verb(op);
        let is_look = is_listed && !is_listing;
        if is_look {
            store.apply(&Op::put(op.key.clone(), PutMode::Set, other.clone(), Ttl::Never)).unwrap();
        }
        is_listed |= is_listing;
        is_look
    }));
    let error = records.set(3, &[("n", Value::Uint(7))]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("lacks what was just listed"), "{error}");
}
