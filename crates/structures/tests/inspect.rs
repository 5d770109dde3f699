//! Looking at structures of each kind, whole and damaged.

mod counter_support;
mod set_support;

use counter_support::{memory, slot_key};
use larder_core::{Ctx, ErrorKind, Key, PutMode, StoreExt, StoreRef, Ttl};
use larder_structures::inspect::inspect;
use larder_structures::lock::Lock;
use larder_structures::{Array, Counter, Inspection, Kind, Name, Queue, Set, Stack, registry};

async fn look(store: &StoreRef, name: &str) -> Inspection {
    inspect(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().expect("it is there")
}

#[tokio::test]
async fn each_kind_tells_what_it_is() {
    let store = memory();
    let set = Set::options().shards(4).open_or_create(&store, "tags").await.unwrap();
    set.add(["a", "b", "c"]).await.unwrap();
    set.remove(["a"]).await.unwrap();
    let stat = set.stat().await.unwrap();
    let found = look(&store, "tags").await;
    assert_eq!((found.manifest.kind, found.manifest.shards), (Kind::Set, 4));
    assert_eq!((found.keys, found.missing, found.unread), (5, 0, 0));
    assert_eq!(found.elements, Some(2));
    assert_eq!((found.live_bytes, found.stale_bytes), (Some(stat.live_bytes), Some(stat.stale_bytes)));
    assert!(found.bytes > stat.bytes && found.bytes < stat.bytes + 100, "the values and the manifest");

    Counter::options().slots(3).open_or_create(&store, "hits").await.unwrap().add(1).await.unwrap();
    let found = look(&store, "hits").await;
    assert_eq!((found.manifest.kind, found.keys), (Kind::Counter, 4));
    assert_eq!(found.params[0], ("slots", "3".to_owned()));
    assert_eq!((found.live_bytes, found.elements), (None, None));

    Counter::options().fast().open_or_create(&store, "quick").await.unwrap();
    assert_eq!(look(&store, "quick").await.keys, 2);

    let lock = Lock::options().label("me").open(&store, "nightly").await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let found = look(&store, "nightly").await;
    assert_eq!((found.manifest.kind, found.keys), (Kind::Lock, 1));
    let params: Vec<String> = found.params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let token = format!("fencing token {}", guard.fencing_token());
    assert_eq!(params, ["state held", "lease 30s", &token, "label \"me\""]);
    guard.release().await.unwrap();
    assert_eq!(look(&store, "nightly").await.params[0], ("state", "free".to_owned()));
}

#[tokio::test]
async fn the_kinds_that_count_their_elements_do() {
    let store = memory();
    let array = Array::open_or_create(&store, "steps").await.unwrap();
    array.push(["a", "b"]).await.unwrap();
    let found = look(&store, "steps").await;
    assert_eq!((found.manifest.kind, found.elements, found.missing), (Kind::Array, Some(2), 0));
    assert!(found.live_bytes.is_some());
    let queue = Queue::open_or_create(&store, "jobs").await.unwrap();
    queue.push("a").await.unwrap();
    queue.push("b").await.unwrap();
    let found = look(&store, "jobs").await;
    assert_eq!((found.manifest.kind, found.elements, found.missing), (Kind::Queue, Some(2), 0));
    assert!(found.keys >= 3 && found.params.iter().any(|(name, _)| *name == "segment bytes"), "{found:?}");
    let stack = Stack::open_or_create(&store, "undo").await.unwrap();
    stack.push("a").await.unwrap();
    assert_eq!(look(&store, "undo").await.elements, Some(1));
}

#[tokio::test]
async fn what_is_lost_is_counted_and_nothing_is_written() {
    let store = memory();
    Set::options().shards(3).open_or_create(&store, "tags").await.unwrap();
    store.delete(set_support::shard_key(&store, "tags", 1).await).await.unwrap();
    let found = look(&store, "tags").await;
    assert_eq!((found.keys, found.missing, found.elements), (3, 1, None));
    Counter::options().slots(2).open_or_create(&store, "hits").await.unwrap();
    store.delete(slot_key(&store, "hits", 0).await).await.unwrap();
    assert_eq!(look(&store, "hits").await.missing, 1);
    assert_eq!(look(&store, "hits").await.missing, 1, "a look mends nothing");
}

#[tokio::test]
async fn a_list_tells_every_structure_and_nothing_else() {
    let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    let all: StoreRef = memory.clone();
    let shop = larder_layers::Namespace::new(all.clone(), "shop:").unwrap();
    let list = shop.list(memory.clone());
    let shop: StoreRef = std::sync::Arc::new(shop);
    Set::options().shards(3).open_or_create(&all, b"t\xff.m").await.unwrap();
    Lock::open(&all, "nightly").await.unwrap().try_acquire().await.unwrap().unwrap().release().await.unwrap();
    all.put(Key::new("L.strange.m").unwrap(), PutMode::Set, "42", Ttl::Never).await.unwrap();
    all.put(Key::new("else").unwrap(), PutMode::Set, "42", Ttl::Never).await.unwrap();
    Counter::open_or_create(&shop, "hits").await.unwrap();
    let mut looked_at = 0;
    let found = registry::list(&all, &*memory, Ctx::default(), &mut |count| looked_at = count).await.unwrap();
    let found: Vec<String> = found
        .iter()
        .map(|listed| match &listed.manifest {
            Ok(manifest) => format!("{} {}", manifest.kind.as_str(), listed.name),
            Err(error) => format!("{} {}", error.kind().as_str(), listed.name),
        })
        .collect();
    assert_eq!(found, ["lock \"nightly\"", "layout mismatch \"strange\"", "set \"t\\xff.m\""]);
    assert!(looked_at >= 8);
    let found = registry::list(&shop, &*list, Ctx::default(), &mut |_| ()).await.unwrap();
    assert_eq!(found.iter().map(|listed| listed.name.as_bytes()).collect::<Vec<_>>(), [b"hits"]);
}

#[tokio::test]
async fn nothing_and_strange_things_are_told() {
    let store = memory();
    let name = Name::new("n").unwrap();
    assert_eq!(inspect(&store, Ctx::default(), &name).await.unwrap(), None);
    store.put(name.manifest_key().unwrap(), PutMode::Set, "42", Ttl::Never).await.unwrap();
    let error = inspect(&store, Ctx::default(), &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(store.get(Key::new("L.n.m").unwrap()).await.unwrap().is_some());
}
