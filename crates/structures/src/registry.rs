//! Finding out what a name holds, and dropping it with all its keys.

use std::collections::BTreeSet;
use std::time::Duration;

use larder_core::list::{self, List};
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Op, Reply, Result, StoreRef, Want, ambient};

use crate::array;
use crate::cache;
use crate::copies;
use crate::counter;
use crate::lock;
use crate::log;
use crate::lookup;
use crate::manifest::{self, Found, Kind, Manifest};
use crate::name::Name;
use crate::owned::{self, Owned};
use crate::queue;
use crate::records;
use crate::retry::Backoff;
use crate::runtime;
use crate::set;
use crate::sharded;
use crate::table;
use crate::unique;
use crate::visitors;

/// What a name holds: its manifest, or `None`. **Round trips: 1**; 2 where a copy of it on another server is made again.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] where the key holds something that is no manifest of this release.
///
/// ```
/// # use larder_core::Ctx;
/// # use larder_structures::{Counter, Kind, Name, registry};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let name = Name::new("hits")?;
/// assert_eq!(registry::find(&store, Ctx::default(), &name).await?, None);
/// Counter::open_or_create(&store, "hits").await?;
/// let manifest = registry::find(&store, Ctx::default(), &name).await?.expect("it is there");
/// assert_eq!(manifest.kind, Kind::Counter);
/// # Ok(()) }
/// ```
pub async fn find(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<Manifest>> {
    Ok(copies::find(store, ctx, name).await?.map(|found| found.manifest))
}

/// The error for a name that holds nothing, worded by what the store can promise: of one that keeps its data it was never created, on another it may
/// have been lost. **Round trips: 0.**
///
/// ```
/// # use larder_core::{ErrorKind, StoreRef};
/// # use larder_structures::{Name, registry};
/// # fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let error = registry::absent(&store, &Name::new("hits")?);
/// assert_eq!(error.kind(), ErrorKind::Absent);
/// assert!(error.to_string().contains("\"hits\" is absent (never created, or lost)"));
/// # Ok(())
/// # }
/// ```
pub fn absent(store: &StoreRef, name: &Name) -> Error {
    manifest::absent(store, name)
}

/// A structure that [`list()`] found.
///
/// ```
/// # use larder_structures::registry::Listed;
/// fn line(listed: &Listed) -> String {
///     let kind = listed.manifest.as_ref().map_or("?", |manifest| manifest.kind.as_str());
///     format!("{kind} {}", listed.name)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// What is recorded about it, or why that cannot be read.
    pub manifest: Result<Manifest>,
}

/// The structures of a store, by name: what `list` tells of their manifests, and what those say. `looked_at` is told how many items were looked at, now and then.
///
/// **No snapshot**: what is made or dropped meanwhile may be in it or not; on a server whose own listing is none either
/// ([`List`]), one that is moved about may be missed. **Round trips: 1** for every 256 structures, and the listing, which takes as long as the store is large.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where the store cannot tell its keys; those of the store and of the listing.
///
/// ```
/// # use larder_core::Ctx;
/// # use larder_structures::{Counter, Set, registry};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let store: larder_core::StoreRef = memory.clone();
/// Counter::open_or_create(&store, "hits").await?;
/// Set::open_or_create(&store, "tags").await?;
/// let all = registry::list(&store, &*memory, Ctx::default(), &mut |_| ()).await?;
/// assert_eq!(all.iter().map(|listed| listed.name.as_bytes()).collect::<Vec<_>>(), [b"hits", b"tags"]);
/// # Ok(()) }
/// ```
pub async fn list(
    store: &StoreRef,
    list: &dyn List,
    ctx: Ctx,
    looked_at: &mut (dyn FnMut(u64) + Send),
) -> Result<Vec<Listed>> {
    let mut names = BTreeSet::new();
    let mut tell = |told: list::Listed<'_>| match told {
        list::Listed::Key(key) => names.extend(Name::of_manifest_key(key)),
        list::Listed::Other(_) => {}
        list::Listed::LookedAt(count) => looked_at(count),
    };
    list.list(ctx, Name::MANIFESTS, &mut tell).await?;
    manifests(store, ctx, names.into_iter().collect()).await
}

/// What is recorded about names; those without a manifest are left out, and one whose place another program's value takes is listed with the
/// error that tells so. **Round trips: 1** for every 256.
///
/// # Errors
/// Those of the store.
///
/// ```
/// # use larder_core::Ctx;
/// # use larder_structures::{Counter, Name, registry};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// Counter::open_or_create(&store, "hits").await?;
/// let found = registry::manifests(&store, Ctx::default(), vec![Name::new("hits")?, Name::new("nothing")?]).await?;
/// assert_eq!(found.len(), 1);
/// # Ok(()) }
/// ```
pub async fn manifests(store: &StoreRef, ctx: Ctx, names: Vec<Name>) -> Result<Vec<Listed>> {
    let mut all = Vec::with_capacity(names.len());
    for part in names.chunks(MANIFESTS_A_BATCH.min(store.profile().batch_ops_max)) {
        let gets = part.iter().map(|name| Ok(Op::get(name.manifest_key()?, Want::VALUE)));
        let replies = store.run(ctx, gets.collect::<Result<Batch>>()?).await;
        for (name, reply) in part.iter().zip(replies) {
            let manifest = match reply {
                Ok(reply) => reply.into_item().map(|item| Manifest::decode(&item.value)),
                Err(error) if is_of_its_item(&error) => Some(Err(error)),
                Err(error) => return Err(error),
            };
            // One that is gone was dropped since, or expired, or stands on another server as a copy only.
            all.extend(manifest.map(|manifest| Listed { name: name.clone(), manifest }));
        }
    }
    Ok(all)
}

/// True if a read failed by what stands there, another program's value: it says nothing of others.
pub(crate) fn is_of_its_item(error: &Error) -> bool {
    !error.is_unknown() && matches!(error.kind(), ErrorKind::LayoutMismatch | ErrorKind::BadInput)
}

/// How many manifests are read at once.
const MANIFESTS_A_BATCH: usize = 256;

/// How often the manifest is removed again when its token died, or a lock was renewed, in between.
const DROP_TRIES_MAX: usize = 4;

/// How often the data are deleted where others write meanwhile what names them, and how long they are let be before the next time: whoever puts into a log whose parts were deleted makes them
/// anew, and lists them, and is quiet after that.
const LIST_TRIES_MAX: usize = 24;
/// How often the same of a queue or a stack, whose users write its state with each taking: then it goes as it is.
const STATE_TRIES: usize = 8;
const LIST_PAUSE_FIRST: Duration = Duration::from_millis(2);
const LIST_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Drops whatever structure a name holds, with all its keys: first the data, then the manifest. So a drop that stops midway
/// leaves a structure that says [`Lost`](ErrorKind::Lost) and can be dropped again, and never a key that nobody can find.
/// Handles that are open answer `Lost` from then on.
///
/// Data with copies on several servers are deleted once more after the manifest: until it is gone, an open handle may take a
/// copy that was deleted for one that its server lost, and make it again. Afterwards it may not (it looks for the manifest
/// first), and one that looked just before cannot make enough copies for a write to count.
///
/// Returns what was dropped, `None` if there was nothing. **Round trips: 3**, 2 for a structure that is its manifest, 4 with
/// copies, and for unique visitors in sets of the store's own, 5 where a list names pieces; one more for each further batch that the keys fill, 3 for each time that a list was
/// written meanwhile, which waits a moment first, and two for each time that the manifest must be looked at again.
///
/// What others add meanwhile goes as well: the map of a sharded collection, which names its shards, the head of a packed table, which names its versions, the state of a queue or stack, which names its segments, and the lists of the periods of
/// unique visitors, of the windows of visitors, of the shards of packed records, of the parts of an event log and of the entries of a table are deleted as they were read, and where they were written since, they are read and what they name is
/// deleted once more. Whoever made what he cannot list any more removes it himself; what somebody had made who died before he could stays, under a key that nobody reads.
///
/// The state of a queue or stack, or the list of a table, that others write at each of eight tries, for some 250 ms, is deleted as it is: a segment that is opened, or an entry that is put, in that very moment stays, under a key that nobody reads.
///
/// A store that cannot delete by token (`delete_cas` in its profile) deletes manifest, map, head, state and list as they are: what others drop and make
/// again between the look and the delete loses its manifest there, and what others list meanwhile is left behind.
///
/// # Errors
/// [`ErrorKind::Conflict`] if the name was dropped and made again meanwhile: the new one is left alone; and where others keep writing what names its data. [`ErrorKind::LayoutMismatch`] while another
/// program's value, or another release's map of a sharded collection or head of a packed table, stands under one of its keys, and for a structure whose layout this release does not read: it is left as it is. [`Unsupported`](ErrorKind::Unsupported) outside of a Tokio runtime, where it must wait a moment. Those of the store. With [`Effect::Unknown`] a part of it may be gone: drop it again.
///
/// ```
/// # use larder_core::Ctx;
/// # use larder_structures::{Counter, Kind, Name, registry};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// Counter::open_or_create(&store, "hits").await?.add(1).await?;
/// let dropped = registry::drop_structure(&store, Ctx::default(), &Name::new("hits")?).await?;
/// assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::Counter));
/// assert!(Counter::open(&store, "hits").await.is_err());
/// # Ok(()) }
/// ```
pub async fn drop_structure(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<Manifest>> {
    let Some(mut found) = find_first(store, ctx, name).await? else { return Ok(None) };
    let manifest = found.manifest.clone();
    expect_readable(name, &manifest)?;
    delete_all_data(store, ctx, name, &manifest).await?;
    let mut is_begun = manifest.shards > 0;
    for _ in 0..DROP_TRIES_MAX {
        match manifest::remove(store, ctx, name, found.item.cas).await {
            Ok(true) => return swept(store, ctx, name, manifest).await,
            Ok(false) => {}
            Err(error) if error.is_unknown() => is_begun = true,
            Err(error) => return Err(midway(error, is_begun)),
        }
        // It is another's, or a token died with its connection, or a lock was renewed, or a reply was lost.
        found = match manifest::find(store, ctx, name).await.map_err(|error| midway(error, is_begun))? {
            None => return swept(store, ctx, name, manifest).await,
            Some(now) if now.manifest.generation == manifest.generation => now,
            Some(_) => {
                let detail = format!("{name} was dropped and made again meanwhile; what is there now is left alone");
                return Err(Error::new(ErrorKind::Conflict, detail));
            }
        };
    }
    let detail = format!("the manifest of {name} was written at each of {DROP_TRIES_MAX} tries to remove it");
    Err(midway(Error::new(ErrorKind::Conflict, detail), is_begun))
}

/// Fails unless this release reads the layout: it would not find all keys of another.
fn expect_readable(name: &Name, manifest: &Manifest) -> Result<()> {
    let kind = manifest.kind;
    let layout = match kind {
        Kind::Array => array::LAYOUT,
        Kind::Cache => cache::LAYOUT,
        Kind::Counter | Kind::FastCounter => counter::layout_of(manifest),
        Kind::EventLog => log::LAYOUT,
        Kind::Lock => lock::LAYOUT,
        Kind::PackedTable => lookup::LAYOUT,
        Kind::Queue | Kind::Stack => queue::LAYOUT,
        Kind::Records => records::LAYOUT,
        Kind::Set => set::LAYOUT,
        Kind::ShardedHash | Kind::ShardedSet | Kind::ShardedSortedSet => sharded::LAYOUT,
        Kind::Table => table::LAYOUT,
        Kind::UniqueVisitors => unique::LAYOUT,
        Kind::Visitors => visitors::LAYOUT,
    };
    manifest.expect(name, kind, layout)
}

/// Removes copies that were made again before the manifest was gone.
async fn swept(store: &StoreRef, ctx: Ctx, name: &Name, manifest: Manifest) -> Result<Option<Manifest>> {
    if manifest.copies > 1 {
        delete_data(store, ctx, name, &manifest, Vec::new()).await.map_err(|error| midway(error, true))?;
    }
    Ok(Some(manifest))
}

/// An error after which a part of the structure may be gone.
fn midway(error: Error, is_begun: bool) -> Error {
    if is_begun { error.effect(Effect::Unknown) } else { error }
}

/// Deletes the pieces, and then the data that they were found through: these as they were read, where others may name more pieces in them meanwhile, and anew
/// where they did.
async fn delete_all_data(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<()> {
    let mut is_begun = false;
    let mut backoff = Backoff::new(LIST_PAUSE_FIRST, LIST_PAUSE_MAX);
    for attempt in 0..LIST_TRIES_MAX {
        if attempt > 0 {
            runtime::current("dropping what others add to waits a moment").map_err(|error| midway(error, is_begun))?;
            let left = ctx.deadline.map(|deadline| deadline.saturating_duration_since(ambient::now()));
            tokio::time::sleep(backoff.next_pause().min(left.unwrap_or(Duration::MAX))).await;
        }
        let pieces = pieces(store, ctx, name, manifest).await.map_err(|error| midway(error, is_begun))?;
        let has_pieces = !pieces.keys.is_empty();
        delete_pieces(store, ctx, pieces.keys).await.map_err(|error| midway(error, is_begun))?;
        is_begun |= has_pieces;
        // What names the pieces is written with each change.
        let is_state = matches!(manifest.kind, Kind::Queue | Kind::Stack | Kind::Table);
        let tokens = if is_state && attempt >= STATE_TRIES { Vec::new() } else { pieces.tokens };
        if delete_data(store, ctx, name, manifest, tokens).await.map_err(|error| midway(error, is_begun))? {
            return Ok(());
        }
        is_begun = true;
    }
    let detail = format!("others wrote what names the data of {name} at each of {LIST_TRIES_MAX} tries to drop it");
    Err(midway(Error::new(ErrorKind::Conflict, detail), is_begun))
}

/// Deletes the keys that a structure made as it went, beside the data that its manifest counts: chunks, segments, entries. They
/// are found through those data, so they go first.
async fn delete_pieces(store: &StoreRef, ctx: Ctx, all: Vec<Owned>) -> Result<()> {
    let mut is_begun = false;
    let profile = store.profile();
    // Items name the others where there are both: they stay for the next drop where this one meets what is another program's.
    let parts = all.chunk_by(|one, next| one.is_item() == next.is_item());
    for part in parts.flat_map(|part| part.chunks(profile.batch_ops_max)) {
        let deletes = part.iter().map(|piece| piece.remove_op(&profile)).collect();
        delete_all(store, ctx, deletes).await.map_err(|error| midway(error, is_begun))?;
        is_begun = true;
    }
    Ok(())
}

/// What a structure made as it went.
#[derive(Default)]
pub(crate) struct Pieces {
    pub(crate) keys: Vec<Owned>,
    /// The tokens of the first data items, which name them: where others may name more in one that nobody would find without it.
    pub(crate) tokens: Vec<Option<Cas>>,
}

/// The keys of a structure's pieces. Each kind that has any knows them itself.
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let keys = match manifest.kind {
        Kind::Array => array::pieces(name, manifest),
        Kind::Lock | Kind::Counter | Kind::FastCounter | Kind::Set | Kind::Cache => Ok(Vec::new()),
        Kind::Visitors => return visitors::pieces(store, ctx, name, manifest).await,
        Kind::Table => return table::pieces(store, ctx, name, manifest).await,
        Kind::Queue | Kind::Stack => return queue::pieces(store, ctx, name, manifest).await,
        Kind::EventLog => return log::pieces(store, ctx, name, manifest).await,
        Kind::PackedTable => return lookup::pieces(store, ctx, name, manifest).await,
        Kind::UniqueVisitors => return unique::pieces(store, ctx, name, manifest).await,
        Kind::Records => return records::pieces(store, ctx, name, manifest).await,
        Kind::ShardedHash | Kind::ShardedSet | Kind::ShardedSortedSet => {
            return sharded::pieces(store, ctx, name, manifest).await;
        }
    };
    Ok(Pieces { keys: Owned::items(keys?), tokens: Vec::new() })
}

/// Deletes the data of a structure, and the copies of its manifest. False where one of the first of them has another token than its of these, and stays. **Round trips: 1** a
/// batch that the keys fill.
async fn delete_data(
    store: &StoreRef,
    ctx: Ctx,
    name: &Name,
    manifest: &Manifest,
    tokens: Vec<Option<Cas>>,
) -> Result<bool> {
    let profile = store.profile();
    let mut batch = Batch::new();
    let (mut is_begun, mut is_all) = (false, true);
    let mut tokens = tokens.into_iter();
    for index in 0..manifest.shards {
        let token = tokens.next().flatten().filter(|_| profile.delete_cas);
        for cell in manifest.cells(name, index)?.into_iter().take(profile.nodes) {
            if batch.len() >= profile.batch_ops_max {
                let deleted = delete_all(store, ctx, std::mem::take(&mut batch)).await;
                is_all &= deleted.map_err(|error| midway(error, is_begun))?;
                is_begun = true;
            }
            let data = match counter::mark(manifest) {
                Some(mark) => Owned::bits(cell.key, vec![mark]),
                None => Owned::item(cell.key),
            };
            let op = match token {
                Some(cas) => Op::delete_if(data.key, cas),
                None => data.remove_op(&profile),
            };
            batch.push(op.routed(cell.route));
        }
    }
    // Last: whoever put one back looks for the data after it.
    let copies = copies::delete_ops(name, manifest)?;
    batch.extend(copies.into_iter().filter(|op| usize::from(op.route.rank) < profile.nodes));
    Ok(is_all & delete_all(store, ctx, batch).await.map_err(|error| midway(error, is_begun))?)
}

/// False where one was to be deleted by a token, and has another.
async fn delete_all(store: &StoreRef, ctx: Ctx, deletes: Batch) -> Result<bool> {
    if deletes.is_empty() {
        return Ok(true);
    }
    let (mut is_begun, mut is_all, mut fault) = (false, true, None);
    let ops: Vec<Op> = deletes.iter().cloned().collect();
    for (op, reply) in ops.iter().zip(store.run(ctx, deletes).await) {
        if matches!(reply, Ok(Reply::Exists)) && op.cas().is_some() {
            is_all = false;
            continue;
        }
        match reply.and_then(|reply| owned::is_removed(op, &reply)) {
            Ok(was_there) => is_begun |= was_there,
            Err(error) => {
                is_begun |= error.is_unknown();
                fault = fault.or(Some(error));
            }
        }
    }
    fault.map_or(Ok(is_all), |error| Err(midway(error, is_begun)))
}

/// The manifest on the server that decides, brought back from a copy if there is none.
async fn find_first(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<Found>> {
    let found = manifest::find(store, ctx, name).await?;
    if found.is_some() || store.profile().nodes == 1 || copies::find(store, ctx, name).await?.is_none() {
        return Ok(found);
    }
    manifest::find(store, ctx, name).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::{PutMode, StoreExt, Ttl, Verb};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::Queue;
    use crate::answering_tests::Answering;
    use crate::ranked_tests::Three;
    use crate::{Counter, Set};

    /// Which keys it has nobody knows but the release that made it.
    #[tokio::test]
    async fn what_has_a_layout_of_another_release_is_not_dropped() {
        for kind in [Kind::Lock, Kind::Counter, Kind::FastCounter, Kind::Set, Kind::Array, Kind::Table, Kind::Cache]
            .into_iter()
            .chain([Kind::Visitors, Kind::Queue, Kind::Stack, Kind::EventLog, Kind::PackedTable, Kind::Records])
            .chain([Kind::UniqueVisitors, Kind::ShardedHash, Kind::ShardedSet, Kind::ShardedSortedSet])
        {
            let store: StoreRef = Arc::new(MemoryStore::new());
            let name = Name::new("n").unwrap();
            let later = Manifest { layout: 99, ..Manifest::new(kind, 1, 1, bytes::Bytes::new()) };
            for key in [name.manifest_key().unwrap(), later.data_key(&name, 0).unwrap()] {
                store.put(key, PutMode::Set, later.encode(), Ttl::Never).await.unwrap();
            }
            let error = drop_structure(&store, Ctx::default(), &name).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{kind:?}: {error}");
            assert!(error.to_string().contains("of layout 99; this release reads layout"), "{error}");
            for key in [name.manifest_key().unwrap(), later.data_key(&name, 0).unwrap()] {
                assert!(store.get(key.clone()).await.unwrap().is_some(), "{kind:?}: {key} is gone");
            }
        }
    }

    #[tokio::test]
    async fn what_stands_where_a_structure_of_fewer_copies_has_none_hides_nothing() {
        let servers = Arc::new(Three::new());
        let store: StoreRef = servers.clone();
        Counter::open_or_create(&store, "n").await.unwrap();
        let name = Name::new("n").unwrap();
        let put = Op::put(name.manifest_key().unwrap(), PutMode::Set, "of another program", Ttl::Never);
        servers.at(1).apply(&put).unwrap();
        assert!(find(&store, Ctx::default(), &name).await.unwrap().is_some());
        Counter::open(&store, "n").await.unwrap();
        Counter::options().copies(3).open_or_create(&store, "of three").await.unwrap();
        let name = Name::new("of three").unwrap();
        servers.at(1).apply(&Op { key: name.manifest_key().unwrap(), ..put }).unwrap();
        let error = find(&store, Ctx::default(), &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "there it has one: {error}");
        assert!(Set::open(&store, "nothing").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_of_a_queue_that_others_write_at_each_of_eight_tries_is_dropped_as_it_is() {
        let answering = Answering::over(&(Arc::new(MemoryStore::new()) as StoreRef));
        let (store, name) = (answering.shared(), Name::new("q").unwrap());
        Queue::open_or_create(&store, "q").await.unwrap();
        let manifest = find_first(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
        let state = manifest.data_key(&name, 0).unwrap();
        answering.asked();
        answering.by({
            let state = state.clone();
            move |op| (op.key == state && matches!(op.verb, Verb::Delete { cas: Some(_) })).then_some(Ok(Reply::Exists))
        });
        let dropped = drop_structure(&store, Ctx::default(), &name).await.unwrap();
        assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::Queue));
        let asked = answering.asked();
        let deletes = asked.iter().flat_map(|(_, batch)| batch).filter(|op| op.key == state && !op.is_read());
        let are_by_token: Vec<bool> = deletes.map(|op| op.cas().is_some()).collect();
        assert_eq!(are_by_token, [&[true; 8][..], &[false]].concat());
    }
}
