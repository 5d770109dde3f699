//! Reports on the embedded stores.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Key, Op, PutMode, StoreExt, StoreRef, Ttl};
use larder_footprint::{Act, Options, Owner, report};
use larder_store_durable::{DurableStore, Options as Files};
use larder_store_memory::MemoryStore;
use larder_structures::{Set, ShardedHash};

async fn fill(store: &StoreRef, count: usize) {
    let put =
        |number: usize| Op::put(Key::new(format!("user:{number}")).unwrap(), PutMode::Set, "short value", Ttl::Never);
    let ops: Vec<Op> = (0..count).map(put).collect();
    for part in ops.chunks(1_000) {
        assert!(store.run(Ctx::default(), part.iter().cloned().collect::<Batch>()).await.iter().all(Result::is_ok));
    }
}

fn asked() -> Options {
    Options { elements: true, ..Options::default() }
}

#[tokio::test]
async fn items_in_memory_are_summed_and_many_short_ones_gathered() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    fill(&store, 20_000).await;
    Set::open_or_create(&store, "tags").await.unwrap().add(["red", "green"]).await.unwrap();
    let mut steps = Vec::new();
    let found = report(&store, &*memory, &asked(), &mut |step| steps.push(step)).await.unwrap();
    assert!(steps.len() >= 3, "{steps:?}");
    assert_eq!((found.keys, found.bytes.error), (20_002, 0.0));
    assert_eq!(found.groups[0].owner, Owner::Foreign("user:*".to_owned()));
    assert_eq!(found.groups[0].elements.unwrap().value, 20_000.0);
    assert_eq!(found.structures[0].elements, Some(2.0));
    let Act::Shard { shards, elements: 64, .. } = found.advice[0].act else { panic!("{:?}", found.advice) };

    // Done as advised, in a store of its own: what its items take is less by what was claimed.
    let other = Arc::new(MemoryStore::new());
    let into: StoreRef = other.clone();
    let options = ShardedHash::options().shards(u16::try_from(shards).unwrap());
    let hash = options.open_or_create(&into, "users").await.unwrap();
    hash.set((0..20_000).map(|number: u32| (number.to_string(), "short value"))).await.unwrap();
    let after = report(&into, &*other, &asked(), &mut |_| ()).await.unwrap();
    let saved = found.groups[0].bytes.value - after.bytes.value;
    let off = found.advice[0].saves_bytes / saved - 1.0;
    println!("claimed {:.0}, measured {saved:.0}", found.advice[0].saves_bytes);
    assert!(off.abs() < 0.15, "claimed {:.0}, measured {saved:.0}", found.advice[0].saves_bytes);
    assert_eq!(after.structures[0].elements, Some(20_000.0));
}

/// Nobody can tell from outside whether what has no manifest was dropped, or has lost it.
#[tokio::test]
async fn data_whose_manifest_is_gone_is_told_to_be_live_maybe_and_never_to_be_removed() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let tags = Set::open_or_create(&store, "tags").await.unwrap();
    tags.add(["red", "green"]).await.unwrap();
    store.run_one(Ctx::default(), Op::delete(Key::new("L.tags.m").unwrap())).await.unwrap();
    let found = report(&store, &*memory, &asked(), &mut |_| ()).await.unwrap();
    assert_eq!(found.groups[0].owner.to_string(), "\"tags\" (manifest gone)");
    assert_eq!(found.structures, []);
    assert_eq!(found.advice.len(), 1, "{:?}", found.advice);
    assert!(matches!(found.advice[0].act, Act::Look { .. }), "{:?}", found.advice);
    assert!(found.advice[0].why.contains("live data of which it was evicted"), "{:?}", found.advice);
}

#[tokio::test]
async fn items_on_disk_are_summed_too_whether_the_store_is_shared_or_not() {
    let folder = tempfile::tempdir().unwrap();
    {
        let files = Arc::new(Files::new(folder.path()).open().unwrap());
        let store: StoreRef = files.clone();
        fill(&store, 5_000).await;
        Set::open_or_create(&store, "tags").await.unwrap().add(["red", "green"]).await.unwrap();
        let found = report(&store, &*files, &asked(), &mut |_| ()).await.unwrap();
        assert_eq!((found.keys, found.structures[0].elements), (5_002, Some(2.0)));
        assert!(found.nodes[0].disk_bytes.is_some() && found.resident_ratio.unwrap() > 0.0);
    }
    let files = Arc::new(Files::new(folder.path()).open_shared().unwrap());
    let store: StoreRef = files.clone();
    let found = report(&store, &*files, &asked(), &mut |_| ()).await.unwrap();
    assert_eq!(found.keys, 5_002);
}

/// What is resident is not told of groups in a folder: it is tables that become smaller, and those take what items do.
#[tokio::test]
async fn many_short_items_in_a_folder_are_gathered_for_what_their_tables_take() {
    // The room of a journal, which its file has from the beginning.
    const JOURNAL_BYTES: u64 = 64 << 20;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [before, after] = [0, 1].map(|at| Arc::new(Files::new(folders[at].path()).open().unwrap()));
    let tables = |files: &DurableStore| files.stats().unwrap().disk_bytes % JOURNAL_BYTES;
    let store: StoreRef = before.clone();
    fill(&store, 20_000).await;
    before.settle().unwrap();
    let found = report(&store, &*before, &asked(), &mut |_| ()).await.unwrap();
    assert_eq!(found.groups[0].resident_bytes, None);
    let advice = &found.advice[0];
    let Act::Shard { shards, .. } = advice.act else { panic!("{:?}", found.advice) };
    assert!(advice.note.contains("each write writes its shard anew"), "{advice:?}");

    let into: StoreRef = after.clone();
    let options = ShardedHash::options().shards(u16::try_from(shards).unwrap());
    let hash = options.open_or_create(&into, "users").await.unwrap();
    hash.set((0..20_000).map(|number: u32| (number.to_string(), "short value"))).await.unwrap();
    after.settle().unwrap();
    let saved = tables(&before) as f64 - tables(&after) as f64;
    println!("claimed {:.0}, measured {saved:.0}", advice.saves_bytes);
    assert!((advice.saves_bytes / saved - 1.0).abs() < 0.15, "claimed {:.0}, measured {saved:.0}", advice.saves_bytes);
}

#[tokio::test]
async fn an_empty_store_has_nothing_to_report() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let found = report(&store, &*memory, &asked(), &mut |_| ()).await.unwrap();
    assert_eq!((found.keys, found.groups.len(), found.advice.len()), (0, 0, 0));
    assert!(larder_footprint::svg(&found).ends_with("</svg>\n"));
}
