//! Looking at structures of each kind, whole and damaged.

use larder_core::{Ctx, ErrorKind, Key, ManualClock, PutMode, StoreExt, StoreRef, Ttl};
use larder_structures::PackedTable;
use larder_structures::inspect::inspect;
use larder_structures::lock::Lock;
use larder_structures::lookup::Rows;
use larder_structures::records::{Schema, Value};
use larder_structures::{
    Array, Cache, Counter, EventLog, IdKind, Inspection, Kind, Name, PackedRecords, Queue, Set, ShardedHash,
    ShardedSet, ShardedSortedSet, Stack, Table, UniqueVisitors, Visitors, registry,
};

use crate::counter::fleet::{Fleet, Node};
use crate::counter::support::{memory, slot_key};
use crate::sharded::contents;
use crate::support::hooked::Hooked;
use crate::support::natives::{NATIVE_BYTES, Natives};
use crate::visitors;

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
async fn a_queue_and_a_stack_tell_what_of_their_segments_is_stale() {
    let store = memory();
    let queue = Queue::open_or_create(&store, "jobs").await.unwrap();
    queue.push_all(["x".repeat(100), "y".repeat(50), "z".repeat(10)]).await.unwrap();
    let fresh = look(&store, "jobs").await;
    let live = fresh.live_bytes.unwrap();
    assert_eq!((fresh.stale_bytes, fresh.elements), (Some(0), Some(3)));
    assert!(live > 160 && live < 300, "{live}");
    // Claimed is not gone: it may be delivered again.
    let claim = queue.claim(std::time::Duration::from_secs(30)).await.unwrap().unwrap();
    assert_eq!(look(&store, "jobs").await.stale_bytes, Some(0));
    queue.ack(claim.id()).await.unwrap();
    let found = look(&store, "jobs").await;
    // Of 100 bytes the length takes 2, since it is kept twice over.
    assert_eq!((found.stale_bytes, found.live_bytes, found.elements), (Some(102), Some(live - 102), Some(2)));
    let stack = Stack::open_or_create(&store, "undo").await.unwrap();
    stack.push_all(["a", "b"]).await.unwrap();
    assert_eq!(stack.pop().await.unwrap().unwrap(), "b");
    let found = look(&store, "undo").await;
    assert_eq!((found.stale_bytes, found.elements), (Some(2), Some(1)));
}

#[tokio::test]
async fn a_queue_whose_segment_is_gone_is_told_to_miss_it() {
    let store = memory();
    let queue = Queue::open_or_create(&store, "jobs").await.unwrap();
    queue.push("a").await.unwrap();
    let found = look(&store, "jobs").await;
    assert_eq!(found.missing, 0);
    let prefix = format!("L.jobs.q.{:016x}", found.manifest.generation);
    store.delete(larder_testkit::queue_bytes::segment_key(&store, &prefix, 0).await).await.unwrap();
    let found = look(&store, "jobs").await;
    assert_eq!((found.missing, found.elements, found.live_bytes, found.stale_bytes), (1, None, None, None));
}

/// What the parameters say, a line each.
fn words(found: &Inspection) -> Vec<String> {
    found.params.iter().map(|(name, value)| format!("{name} {value}")).collect()
}

#[tokio::test]
async fn a_table_tells_its_entries_and_what_is_stale_in_them_and_in_its_list() {
    let store = memory();
    let table = Table::options().shards(2).open_or_create(&store, "prices").await.unwrap();
    for number in 0..20 {
        table.put(number.to_string(), "first").await.unwrap();
    }
    table.settle().await;
    let found = look(&store, "prices").await;
    assert_eq!((found.manifest.kind, found.keys, found.missing), (Kind::Table, 1 + 2 + 20, 0));
    assert_eq!((found.elements, found.params.len()), (Some(20), 3));
    let manifest_bytes = found.bytes - found.live_bytes.unwrap() - found.stale_bytes.unwrap();
    assert_eq!(manifest_bytes, 17 + found.manifest.params.len() as u64);
    // A second value makes the first one stale.
    table.put("0", vec![b'x'; 200]).await.unwrap();
    table.put("0", "short").await.unwrap();
    table.settle().await;
    let after = look(&store, "prices").await;
    assert!(after.stale_bytes.unwrap() > found.stale_bytes.unwrap() + 200, "{after:?}");
    table.remove("1").await.unwrap();
    table.settle().await;
    assert_eq!(look(&store, "prices").await.elements, Some(19));
    let generation = found.manifest.generation;
    store.delete(Key::new(format!("L.prices.t.{generation:016x}.1")).unwrap()).await.unwrap();
    let lost = look(&store, "prices").await;
    assert_eq!((lost.missing, lost.live_bytes, lost.stale_bytes, lost.elements), (1, None, None, None));
}

#[tokio::test]
async fn the_kinds_whose_pieces_come_as_they_are_used_count_them() {
    let store = memory();
    // A change over several shards keeps its commits in an item of their own.
    let array = Array::options().shards(3).open_or_create(&store, "hosts").await.unwrap();
    array.change(["a", "b", "c", "d"], ["z"]).await.unwrap();
    let found = look(&store, "hosts").await;
    assert_eq!((found.manifest.kind, found.keys, found.elements), (Kind::Array, 1 + 3 + 1, Some(4)));
    let stat = array.stat().await.unwrap();
    assert_eq!((found.live_bytes, found.stale_bytes), (Some(stat.live_bytes), Some(stat.stale_bytes)));

    let log = EventLog::open_or_create(&store, "audit").await.unwrap();
    let list_alone = look(&store, "audit").await.keys;
    log.put_all([(log.now_ms(), "a"), (log.now_ms(), "b"), (log.now_ms() - 7_200_000, "c")]).await.unwrap();
    let found = look(&store, "audit").await;
    assert_eq!((found.manifest.kind, found.keys), (Kind::EventLog, list_alone + 2), "a part a chunk");
    assert_eq!((found.elements, found.missing), (Some(3), 0), "events");

    let visitors = Visitors::open_or_create(&store, "site").await.unwrap();
    let ledger = look(&store, "site").await.keys;
    visitors.hit_many(3).await.unwrap();
    let found = look(&store, "site").await;
    assert_eq!((found.manifest.kind, found.keys), (Kind::Visitors, ledger + 1), "a counter a window");

    let cache = Cache::open_or_create(&store, "pages").await.unwrap();
    cache.get_or_rebuild("k", async || Ok::<_, larder_core::Error>("v")).await.unwrap();
    let found = look(&store, "pages").await;
    assert_eq!((found.manifest.kind, found.keys, found.missing), (Kind::Cache, 1, 0), "entries are not listed");
    assert_eq!(words(&found), ["keys are hashed by XXH3-128"]);
}

#[tokio::test]
async fn a_log_and_visitors_tell_what_is_live_and_what_repeats() {
    let store = memory();
    let hour = std::time::Duration::from_secs(3_600);
    let log = EventLog::options().chunk(hour).open_or_create(&store, "audit").await.unwrap();
    let now_ms = log.now_ms();
    for event in ["one", "two"] {
        log.put_at(now_ms, event).await.unwrap();
    }
    let found = look(&store, "audit").await;
    let manifest_bytes = (17 + found.manifest.params.len()) as u64;
    let all = |found: &Inspection| found.live_bytes.unwrap() + found.stale_bytes.unwrap() + manifest_bytes;
    assert_eq!((all(&found), found.elements), (found.bytes, Some(2)));
    // What the network brings twice stands twice, and counts once.
    let generation = found.manifest.generation;
    let part = Key::new(format!("L.audit.e.{generation:016x}.{:x}-0", now_ms / 3_600_000)).unwrap();
    let value = store.get(part.clone()).await.unwrap().unwrap().value;
    let frames = value.slice(34..);
    store.put(part.clone(), PutMode::Append, frames.clone(), Ttl::Never).await.unwrap();
    let twice = look(&store, "audit").await;
    assert_eq!(twice.stale_bytes.unwrap(), found.stale_bytes.unwrap() + frames.len() as u64);
    assert_eq!((twice.live_bytes, twice.elements, all(&twice)), (found.live_bytes, Some(2), twice.bytes));
    // Bytes that no release wrote leave it untold.
    store.put(part, PutMode::Append, "else", Ttl::Never).await.unwrap();
    let strange = look(&store, "audit").await;
    assert_eq!((strange.live_bytes, strange.stale_bytes, strange.elements), (None, None, None));

    let clock = std::sync::Arc::new(ManualClock::at(std::time::Duration::from_secs(3_000_000)));
    let options = Visitors::options().shards(1).clock(clock);
    let visitors = options.open_or_create(&store, "site").await.unwrap();
    let again = options.open(&store, "site").await.unwrap();
    visitors.hit_visitor("joe").await.unwrap();
    let found = look(&store, "site").await;
    let manifest_bytes = (17 + found.manifest.params.len()) as u64;
    assert_eq!(found.live_bytes.unwrap() + found.stale_bytes.unwrap() + manifest_bytes, found.bytes);
    // Another handle does not know of it, and does not ask.
    again.hit_visitor("joe").await.unwrap();
    let twice = look(&store, "site").await;
    assert_eq!(twice.stale_bytes.unwrap(), found.stale_bytes.unwrap() + 8);
    assert_eq!((twice.live_bytes, twice.elements), (found.live_bytes, None));
}

#[tokio::test]
async fn the_packed_kinds_tell_what_they_hold() {
    let store = memory();
    let unique = UniqueVisitors::open_or_create(&store, "days").await.unwrap();
    let before = look(&store, "days").await;
    unique.add(["ann", "bob"]).await.unwrap();
    let found = look(&store, "days").await;
    assert_eq!((found.manifest.kind, found.missing), (Kind::UniqueVisitors, 0));
    assert!(found.keys > before.keys && found.bytes > before.bytes, "{before:?} {found:?}");

    let schema = Schema::parse(["visits:u7"]).unwrap();
    let records = PackedRecords::options().schema(schema).open_or_create(&store, "users").await.unwrap();
    let before = look(&store, "users").await;
    records.set(7, &[("visits", Value::Uint(3))]).await.unwrap();
    let found = look(&store, "users").await;
    assert_eq!((found.manifest.kind, found.keys, found.missing), (Kind::Records, before.keys + 1, 0), "a shard");
    assert_eq!((before.elements, found.elements), (Some(0), Some(8)), "ids are dense, from 0");
    assert!(words(&found).iter().any(|line| line.contains("visits")), "{:?}", words(&found));

    let hash = ShardedHash::options().shards(4).open_or_create(&store, "stock").await.unwrap();
    hash.set([("apple", "3"), ("pear", "4")]).await.unwrap();
    let found = look(&store, "stock").await;
    assert_eq!((found.manifest.kind, found.elements, found.missing), (Kind::ShardedHash, Some(2), 0));
    let set = ShardedSet::options().shards(4).open_or_create(&store, "seen").await.unwrap();
    set.add(["a", "b", "c"]).await.unwrap();
    let found = look(&store, "seen").await;
    assert_eq!((found.manifest.kind, found.elements, found.missing), (Kind::ShardedSet, Some(3), 0));
    assert!(found.keys > 1 && !found.guarantee.is_empty(), "{found:?}");
}

#[tokio::test]
async fn what_is_lost_is_counted_and_nothing_is_written() {
    let store = memory();
    Set::options().shards(3).open_or_create(&store, "tags").await.unwrap();
    store.delete(crate::support::probe::shard_key(&store, "tags", 1).await).await.unwrap();
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

#[tokio::test]
async fn a_log_tells_its_chunk_and_its_retention() {
    let store = memory();
    let minute = std::time::Duration::from_secs(60);
    EventLog::options().chunk(minute).retention(minute * 90).open_or_create(&store, "audit").await.unwrap();
    assert_eq!(words(&look(&store, "audit").await), ["chunk 60s", "retention 5400s"]);
}

#[tokio::test]
async fn visitors_tell_what_they_were_made_with() {
    let store = memory();
    Visitors::open_or_create(&store, "site").await.unwrap();
    assert_eq!(words(&look(&store, "site").await), ["period 300s", "shards a window 4"]);
    UniqueVisitors::open_or_create(&store, "days").await.unwrap();
    let as_usual = ["period 86400s", "offset 0 s", "precision compact", "ids any", "expected 100000", "kept for ever"];
    assert_eq!(words(&look(&store, "days").await), as_usual);
    let hour = std::time::Duration::from_secs(3_600);
    let options = UniqueVisitors::options().period(hour).offset_s(-1_800).keep(24 * hour).expected(7);
    options.open_or_create(&store, "hours").await.unwrap();
    let words = words(&look(&store, "hours").await);
    assert_eq!(words, ["period 3600s", "offset -1800 s", "precision compact", "ids any", "expected 7", "kept 86400s"]);
}

#[tokio::test]
async fn a_packed_table_tells_its_rows() {
    let store = memory();
    let table = PackedTable::open_or_create(&store, "places").await.unwrap();
    assert_eq!(look(&store, "places").await.elements, Some(0));
    let mut rows = Rows::new(["place"]).unwrap();
    for id in 0..7 {
        rows.push_id(id, ["here"]).unwrap();
    }
    table.build(rows).await.unwrap();
    let found = look(&store, "places").await;
    assert_eq!((found.manifest.kind, found.elements, found.missing), (Kind::PackedTable, Some(7), 0));
}

#[tokio::test]
async fn what_is_claimed_of_a_queue_is_in_it_still() {
    let store = memory();
    let queue = Queue::open_or_create(&store, "jobs").await.unwrap();
    queue.push_all(["a", "b", "c"]).await.unwrap();
    let _claim = queue.claim(std::time::Duration::from_secs(30)).await.unwrap().unwrap();
    assert_eq!(look(&store, "jobs").await.elements, Some(3));
}

#[tokio::test]
async fn a_sharded_hash_that_lost_a_shard_is_told_to_miss_it() {
    let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    let store: StoreRef = memory.clone();
    let hash = ShardedHash::options().shards(2).open_or_create(&store, "stock").await.unwrap();
    hash.set([("apple", "3"), ("pear", "4")]).await.unwrap();
    let mut shards = Vec::new();
    memory.each(|key, _| {
        if key.ends_with(b"-0") {
            shards.push(Key::new(bytes::Bytes::copy_from_slice(key)).unwrap());
        }
    });
    assert_eq!(shards.len(), 1, "the first of two");
    assert!(store.delete(shards.remove(0)).await.unwrap());
    let found = look(&store, "stock").await;
    assert_eq!((found.missing, found.elements), (1, None));
}

/// Windows have lives: one that ended since it was listed is no loss.
#[tokio::test]
async fn a_piece_that_is_gone_since_it_was_listed_is_not_missing() {
    let clock = visitors::support::clock();
    let store = visitors::support::memory(&clock);
    let site = visitors::support::open(&store, &clock).await;
    site.hit().await.unwrap();
    let before = look(&store, visitors::support::NAME).await;
    let window = visitors::support::key(&store, visitors::support::window(&clock), None).await;
    visitors::support::evict(&store, &window).await;
    let found = look(&store, visitors::support::NAME).await;
    assert_eq!((found.keys, found.missing, found.unread), (before.keys - 1, 0, 0));
}

/// One server of two is down: what the other has is told, and how much could not be read.
#[tokio::test]
async fn what_a_server_that_is_down_has_is_told_as_unread() {
    let nodes = [Node::new(), Node::new()];
    let store = Fleet::shared(nodes.iter().map(|node| node.clone() as StoreRef));
    Counter::options().copies(2).slots(3).open_or_create(&store, "hits").await.unwrap();
    let whole = look(&store, "hits").await;
    assert_eq!((whole.keys, whole.unread), (1 + 6, 0));
    nodes[1].stop();
    let found = look(&store, "hits").await;
    assert_eq!((found.keys, found.missing, found.unread), (1 + 3, 0, 3));
    nodes[0].stop();
    let name = Name::new("hits").unwrap();
    let error = inspect(&store, Ctx::default(), &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_table_tells_whether_its_entries_may_have_lives() {
    let store = memory();
    for (has_lives, says) in [(false, "lives no"), (true, "lives yes")] {
        let name = format!("lives-{has_lives}");
        Table::options().ttl(has_lives).open_or_create(&store, &name).await.unwrap();
        assert_eq!(words(&look(&store, &name).await)[2], says);
    }
}

/// They are read in batches of 64, and what the list names stands behind the list.
#[tokio::test]
async fn a_table_of_many_entries_counts_each_once() {
    let store = memory();
    let table = Table::options().shards(2).open_or_create(&store, "prices").await.unwrap();
    for number in 0..150 {
        table.put(number.to_string(), "first").await.unwrap();
    }
    table.settle().await;
    let found = look(&store, "prices").await;
    assert_eq!((found.keys, found.missing, found.elements), (1 + 2 + 150, 0, Some(150)));
    assert_eq!(found.live_bytes.unwrap() + found.stale_bytes.unwrap() + 17 + 2, found.bytes);
}

/// What a store keeps as hashes, sets and bits of its own is weighed by it, since it cannot be read as an item.
#[tokio::test]
async fn shards_that_are_no_items_are_counted_and_weighed() {
    let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    let natives = Natives::over(&(memory.clone() as StoreRef));
    let store = natives.shared();
    let hash = ShardedHash::options().shards(4).open_or_create(&store, "stock").await.unwrap();
    hash.set([("apple", "3"), ("pear", "4")]).await.unwrap();
    let unique = UniqueVisitors::options().ids(IdKind::Integer).open_or_create(&store, "days").await.unwrap();
    unique.add([1u64, 2]).await.unwrap();
    let schema = Schema::parse(["visits:u7"]).unwrap();
    let records = PackedRecords::options().schema(schema).open_or_create(&store, "users").await.unwrap();
    records.set(7, &[("visits", Value::Uint(3))]).await.unwrap();
    for name in ["stock", "days", "users"] {
        let prefix = format!("L.{name}.").into_bytes();
        let items = contents(&memory).into_iter().filter(|(key, _)| key.starts_with(&prefix));
        let items: Vec<usize> = items.map(|(_, value)| value.len()).collect();
        let others = natives.all().keys().filter(|key| key.as_bytes().starts_with(&prefix)).count();
        let found = look(&store, name).await;
        assert!(others > 0, "{name}");
        assert_eq!((found.missing, found.unread), (0, 0), "{name}");
        assert_eq!(found.keys, (items.len() + others) as u64, "{name}");
        let bytes = items.iter().sum::<usize>() as u64 + others as u64 * NATIVE_BYTES;
        assert_eq!(found.bytes, bytes, "{name}");
    }
}

/// A store that does not answer has lost nothing.
#[tokio::test(start_paused = true)]
async fn what_a_store_does_not_answer_is_an_error_or_unread_and_never_missing() {
    let store = memory();
    Array::open_or_create(&store, "steps").await.unwrap().push(["a", "b"]).await.unwrap();
    ShardedHash::open_or_create(&store, "stock").await.unwrap().set([("apple", "3")]).await.unwrap();
    ShardedSet::open_or_create(&store, "seen").await.unwrap().add(["a"]).await.unwrap();
    ShardedSortedSet::open_or_create(&store, "points").await.unwrap().set([("a", 1.0)]).await.unwrap();
    let schema = Schema::parse(["visits:u7"]).unwrap();
    let records = PackedRecords::options().schema(schema).open_or_create(&store, "users").await.unwrap();
    records.set(7, &[("visits", Value::Uint(3))]).await.unwrap();
    for name in ["steps", "stock", "seen", "points", "users"] {
        let mut failed = 0;
        for nth in 1..=8 {
            let hooked = Hooked::new(&store);
            // And whatever is tried again.
            (nth..nth + 60).for_each(|nth| hooked.refuse(nth));
            match inspect(&hooked.shared(), Ctx::default(), &Name::new(name).unwrap()).await {
                Ok(found) => assert_eq!(found.expect("it is there").missing, 0, "{name} at batch {nth}"),
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{name} at batch {nth}: {error}");
                }
            }
        }
        assert!(failed > 2, "{name}: {failed}");
    }
}
