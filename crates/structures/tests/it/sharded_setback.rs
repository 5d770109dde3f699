//! Sharded collections on a server that went back to an older state: what a handle is told that knew the newer one.

use std::collections::BTreeMap;

use larder_core::{Ctx, ErrorKind, PutMode, Result, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::{ShardedHash, ShardedSet, ShardedSortedSet};

use crate::sharded::{FILLS, contents, memory};
use crate::support::hooked::{Hooked, dies_at};
use crate::support::natives::Natives;

const KINDS: [&str; 3] = ["hash", "set", "sorted set"];
const CALLS: [&str; 5] = ["has", "len", "put", "members", "reshard"];

#[derive(Clone, Debug)]
enum Any {
    Hash(ShardedHash),
    Set(ShardedSet),
    Sorted(ShardedSortedSet),
}

impl Any {
    async fn open(kind: &str, store: &StoreRef) -> Any {
        match kind {
            "hash" => Any::Hash(ShardedHash::options().shards(2).open_or_create(store, "n").await.unwrap()),
            "set" => Any::Set(ShardedSet::options().shards(2).open_or_create(store, "n").await.unwrap()),
            _ => Any::Sorted(ShardedSortedSet::options().shards(2).kept(2).open_or_create(store, "n").await.unwrap()),
        }
    }

    /// Forty elements in two shards.
    async fn filled(kind: &str, store: &StoreRef) -> Any {
        let all = Any::open(kind, store).await;
        for name in 0..40 {
            all.put(&name.to_string()).await.unwrap();
        }
        all
    }

    async fn put(&self, name: &str) -> Result<()> {
        match self {
            Any::Hash(hash) => hash.set([(name, "v")]).await.map(drop),
            Any::Set(set) => set.add([name]).await.map(drop),
            Any::Sorted(set) => set.set([(name, 1.0)]).await.map(drop),
        }
    }

    async fn has(&self, name: &str) -> Result<bool> {
        match self {
            Any::Hash(hash) => hash.get(name).await.map(|found| found.is_some()),
            Any::Set(set) => set.has(name).await,
            Any::Sorted(set) => set.score(name).await.map(|found| found.is_some()),
        }
    }

    async fn len(&self) -> Result<u64> {
        match self {
            Any::Hash(hash) => hash.len().await,
            Any::Set(set) => set.len().await,
            Any::Sorted(set) => set.len().await,
        }
    }

    async fn members(&self) -> Result<usize> {
        match self {
            Any::Hash(hash) => hash.entries().await.map(|all| all.len()),
            Any::Set(set) => set.members().await.map(|all| all.len()),
            Any::Sorted(set) => set.entries().await.map(|all| all.len()),
        }
    }

    async fn reshard(&self, shards: u16) -> Result<()> {
        match self {
            Any::Hash(hash) => hash.reshard(shards).await,
            Any::Set(set) => set.reshard(shards).await,
            Any::Sorted(set) => set.reshard(shards).await,
        }
    }

    async fn call(&self, call: &str) -> Result<()> {
        match call {
            "has" => self.has("7").await.map(|has| assert!(has)),
            "len" => self.len().await.map(|len| assert_eq!(len, 40)),
            "put" => self.put("7").await,
            "members" => self.members().await.map(|members| assert_eq!(members, 40)),
            _ => self.reshard(4).await,
        }
    }
}

/// The flags of all items.
fn flags(memory: &MemoryStore) -> BTreeMap<Vec<u8>, u32> {
    let mut flags = BTreeMap::new();
    memory.each(|key, seen| _ = flags.insert(key.to_vec(), seen.flags));
    flags
}

/// `knows` was resharded to three, the store went back to before that, and others resharded it `since`, to each of these.
async fn went_back(kind: &str, since: &[u16]) -> Any {
    let (memory, store) = memory();
    let knows = Any::filled(kind, &store).await;
    let (before, of) = (contents(&memory), flags(&memory));
    knows.reshard(3).await.unwrap();
    memory.clear();
    for (key, value) in &before {
        memory.direct().put(key, PutMode::Set, value, of[key], Ttl::Never).unwrap();
    }
    for shards in since {
        Any::open(kind, &store).await.reshard(*shards).await.unwrap();
    }
    knows
}

#[tokio::test]
async fn a_map_that_went_back_is_told_once_whether_others_wrote_it_as_often_since_or_not() {
    for kind in KINDS {
        for (call, since) in CALLS.iter().flat_map(|call| [(call, &[][..]), (call, &[5][..])]) {
            let knows = went_back(kind, since).await;
            let error = knows.call(call).await.expect_err("it went back");
            assert_eq!(error.kind(), ErrorKind::RolledBack, "{kind}, {call}, {since:?}: {error}");
            let says = if since.is_empty() { "was at version 4 and is at 1" } else { "another has that version now" };
            assert!(error.to_string().contains(says), "{kind}, {call}, {since:?}: {error}");
            for call in CALLS {
                knows.call(call).await.unwrap_or_else(|error| panic!("{kind}, {call}, {since:?}: {error}"));
            }
        }
    }
}

/// What others have resharded oftener since is a map like another to who knew less.
#[tokio::test]
async fn a_map_that_others_wrote_oftener_since_is_gone_by() {
    for kind in KINDS {
        let knows = went_back(kind, &[5, 6]).await;
        for call in CALLS {
            knows.call(call).await.unwrap_or_else(|error| panic!("{kind}, {call}: {error}"));
        }
    }
}

/// It goes back while a removal fills the ends that it left short: by then the removal is done.
#[tokio::test(start_paused = true)]
async fn a_map_that_goes_back_while_the_ends_are_filled_is_told_once() {
    for nth in 4..=9 {
        let (memory, store) = memory();
        let hooked = Hooked::new(&store);
        let options = ShardedSortedSet::options().shards(2).kept(2);
        let knows = options.open_or_create(&hooked.shared(), "n").await.unwrap();
        knows.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
        let (before, of) = (contents(&memory), flags(&memory));
        knows.reshard(3).await.unwrap();
        hooked.at(nth, move |store, batch| async move {
            memory.clear();
            for (key, value) in &before {
                memory.direct().put(key, PutMode::Set, value, of[key], Ttl::Never).unwrap();
            }
            store.run(Ctx::default(), batch).await
        });
        let mut told = 0;
        let outcomes = [
            knows.remove(["m9", "m8", "m7"]).await.map(drop),
            knows.score("m0").await.map(drop),
            knows.top(2).await.map(drop),
            knows.score("m0").await.map(drop),
            knows.top(2).await.map(drop),
        ];
        for outcome in outcomes {
            match outcome {
                Err(error) if error.kind() == ErrorKind::RolledBack => told += 1,
                outcome => outcome.unwrap_or_else(|error| panic!("batch {nth}: {error}")),
            }
        }
        assert_eq!(told, 1, "batch {nth}");
    }
}

/// Of which kinds, and whether their shards are native.
const LAYOUTS: [(&str, bool); 5] =
    [("hash", false), ("set", false), ("sorted set", false), ("hash", true), ("set", true)];

/// Forty elements in two shards of which a resharding to three has put the map in force, and died; then "new" came to one of the new shards. Then the map alone went back: to that
/// which plans the three, or to the one before.
async fn undone(kind: &str, is_native: bool, to_plan: bool) -> StoreRef {
    let (memory, items) = memory();
    let store = if is_native { Natives::over(&items).shared() } else { items };
    Any::filled(kind, &store).await;
    let map = || contents(&memory).into_iter().find(|(key, _)| key.ends_with(b".0")).unwrap();
    let (key, stable) = map();
    let hooked = Hooked::new(&store);
    let dying = Any::open(kind, &hooked.shared()).await;
    dies_at(&hooked, FILLS - u64::from(is_native), dying.reshard(3)).await;
    let moving = map().1;
    assert_eq!(moving[1..3], [2, 3], "{kind}: it is in force, as the third version");
    let planned = [&[1, 1, 2], &moving[3..10], &moving[20..], &moving[10..20]].concat();
    Any::open(kind, &store).await.put("new").await.unwrap();
    memory.direct().put(&key, PutMode::Set, if to_plan { &planned } else { &stable }, 0, Ttl::Never).unwrap();
    store
}

#[tokio::test(start_paused = true)]
async fn a_resharding_that_finds_the_map_gone_back_to_a_plan_keeps_what_was_written_to_its_shards() {
    for (kind, is_native) in LAYOUTS {
        let store = undone(kind, is_native, true).await;
        let what = format!("{kind}, native: {is_native}");
        let fresh = Any::open(kind, &store).await;
        let told = fresh.reshard(4).await.expect_err(&what);
        assert_eq!(told.kind(), ErrorKind::RolledBack, "{what}: {told}");
        for shards in [4, 2] {
            assert!(fresh.has("new").await.unwrap(), "{what}");
            assert_eq!(fresh.members().await.unwrap(), 41, "{what}");
            fresh.reshard(shards).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(fresh.members().await.unwrap(), 41, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resharding_that_finds_the_map_gone_back_to_before_another_tells_that_what_came_since_may_be_gone() {
    // To others, and to as many as there are.
    for ((kind, is_native), shards) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 4), (layout, 2)]) {
        let store = undone(kind, is_native, false).await;
        let what = format!("{kind}, native: {is_native}, to {shards}");
        let fresh = Any::open(kind, &store).await;
        let told = fresh.reshard(shards).await.expect_err(&what);
        assert_eq!(told.kind(), ErrorKind::RolledBack, "{what}: {told}");
        assert!(!fresh.has("new").await.unwrap(), "{what}");
        if let Any::Sorted(set) = &fresh {
            assert_eq!(set.top(1).await.unwrap()[0].0, "9", "the ends tell of what is there");
        }
        fresh.reshard(shards).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(fresh.members().await.unwrap(), 40, "{what}");
    }
}
