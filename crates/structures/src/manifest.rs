//! Manifests: what is recorded about a structure, under one key a name.
//!
//! Layout, numbers little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `LRD` and the version of this header, 1 |
//! | 4 | 1 | the kind: see [`Kind`] |
//! | 5 | 1 | the version of the kind's layout |
//! | 6 | 2 | shards: how many data keys there are |
//! | 8 | 8 | generation, drawn at random when the structure is made |
//! | 16 | 1 | copies: on how many servers each data key stands |
//! | 17 | … | parameters of the kind |
//!
//! A lock is its manifest: its record stands in the parameters, and there are no other keys.

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::text::Shown;
use larder_core::{
    Batch, Cas, Ctx, Effect, Error, ErrorKind, Item, Key, Op, PutMode, Reply, Result, Route, StoreExt, StoreRef, Ttl,
    Want,
};

use crate::cell::Cell;
use crate::events;
use crate::ids::random_id;
use crate::name::Name;
use crate::owned;

/// What a name holds.
///
/// ```
/// assert_eq!(larder_structures::Kind::UniqueVisitors.as_str(), "unique visitors");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A lock.
    Lock,
    /// A counter that is exact: a pool of slots under chained conditional writes.
    Counter,
    /// A counter on the server's own arithmetic.
    FastCounter,
    /// A set of append-encoded shards.
    Set,
    /// Visitors by windows of time.
    Visitors,
    /// A log of events by chunks of time.
    EventLog,
    /// An array of append-encoded shards.
    Array,
    /// A table: a list of keys, and an item an entry.
    Table,
    /// A queue of segments.
    Queue,
    /// A stack of segments.
    Stack,
    /// A cache whose entries are rebuilt by one client at a time.
    Cache,
    /// Different visitors, counted by periods.
    UniqueVisitors,
    /// Packed records: a few bits for each of many dense ids.
    Records,
    /// A hash of shards whose number can be changed.
    ShardedHash,
    /// A set of shards whose number can be changed.
    ShardedSet,
    /// A sorted set of such shards, with its two ends apart.
    ShardedSortedSet,
    /// A packed table: rows by ranges of addresses or by ids, built in versions.
    PackedTable,
}

impl Kind {
    const ALL: [Row; 17] = [
        Row { kind: Kind::Lock, byte: 1, name: "lock", role: 'l' },
        Row { kind: Kind::Counter, byte: 2, name: "counter", role: 's' },
        Row { kind: Kind::FastCounter, byte: 3, name: "fast counter", role: 'n' },
        Row { kind: Kind::Set, byte: 4, name: "set", role: 'p' },
        Row { kind: Kind::Visitors, byte: 5, name: "visitors", role: 'v' },
        Row { kind: Kind::EventLog, byte: 6, name: "log", role: 'e' },
        Row { kind: Kind::Array, byte: 7, name: "array", role: 'a' },
        Row { kind: Kind::Table, byte: 8, name: "table", role: 't' },
        Row { kind: Kind::Queue, byte: 9, name: "queue", role: 'q' },
        Row { kind: Kind::Stack, byte: 10, name: "stack", role: 'k' },
        Row { kind: Kind::Cache, byte: 11, name: "cache", role: 'c' },
        Row { kind: Kind::UniqueVisitors, byte: 16, name: "unique visitors", role: 'u' },
        Row { kind: Kind::Records, byte: 20, name: "packed records", role: 'r' },
        Row { kind: Kind::ShardedHash, byte: 24, name: "sharded hash", role: 'h' },
        Row { kind: Kind::ShardedSet, byte: 25, name: "sharded set", role: 'd' },
        Row { kind: Kind::ShardedSortedSet, byte: 26, name: "sharded sorted set", role: 'z' },
        Row { kind: Kind::PackedTable, byte: 28, name: "packed table", role: 'b' },
    ];

    /// The kinds that some stores keep otherwise than in items.
    pub(crate) const NATIVE: [Kind; 5] =
        [Kind::FastCounter, Kind::UniqueVisitors, Kind::Records, Kind::ShardedHash, Kind::ShardedSet];

    /// The kind's name, for people.
    ///
    /// ```
    /// assert_eq!(larder_structures::Kind::Counter.as_str(), "counter");
    /// ```
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    pub(crate) fn with_article(self) -> String {
        let name = self.as_str();
        // Many of them.
        if matches!(self, Kind::Visitors | Kind::UniqueVisitors | Kind::Records) {
            return name.to_owned();
        }
        let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        format!("{article} {name}")
    }

    fn byte(self) -> u8 {
        self.row().byte
    }

    /// What the data keys of this kind are called within the name: `s` for slots, `p` for pieces, …
    pub(crate) fn role(self) -> char {
        self.row().role
    }

    fn row(self) -> &'static Row {
        &Kind::ALL[self as usize]
    }

    fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.iter().find(|row| row.byte == byte).map(|row| row.kind)
    }
}

/// What is fixed about a kind; the byte and the role are part of the layout for ever.
struct Row {
    kind: Kind,
    byte: u8,
    name: &'static str,
    role: char,
}

/// What is recorded about a structure.
///
/// ```
/// # use larder_core::Ctx;
/// # use larder_structures::{Counter, Name, registry};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// Counter::options().slots(64).open_or_create(&store, "hits").await?;
/// let manifest = registry::find(&store, Ctx::default(), &Name::new("hits")?).await?.expect("it is there");
/// assert_eq!((manifest.shards, manifest.copies), (64, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What it is.
    pub kind: Kind,
    /// The version of the kind's layout.
    pub layout: u8,
    /// How many data keys there are; 0 for a structure that is its manifest.
    pub shards: u16,
    /// Which life of the name this is.
    pub generation: u64,
    /// On how many servers each data key stands: 1 without replication.
    pub copies: u8,
    /// Parameters of the kind, as it encodes them.
    pub params: Bytes,
}

const MAGIC: [u8; 4] = *b"LRD\x01";
/// Where the parameters begin.
pub(crate) const HEADER_BYTES: usize = 17;

impl Manifest {
    /// A manifest of a new life, without replication.
    pub(crate) fn new(kind: Kind, layout: u8, shards: u16, params: Bytes) -> Manifest {
        Manifest { kind, layout, shards, generation: random_id(), copies: 1, params }
    }

    /// The bytes that are stored.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.params.len());
        out.put_slice(&MAGIC);
        out.put_u8(self.kind.byte());
        out.put_u8(self.layout);
        out.put_u16_le(self.shards);
        out.put_u64_le(self.generation);
        out.put_u8(self.copies);
        out.put_slice(&self.params);
        out.freeze()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no manifest, and for a kind of a newer release.
    ///
    /// ```
    /// # use larder_core::{Key, StoreExt};
    /// # use larder_structures::{Counter, Kind, Manifest};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// Counter::open_or_create(&store, "hits").await?;
    /// let item = store.get(Key::new("L.hits.m")?).await?.expect("it is there");
    /// assert_eq!(Manifest::decode(&item.value)?.kind, Kind::Counter);
    /// assert!(Manifest::decode(&"something else".into()).is_err());
    /// # Ok(()) }
    /// ```
    pub fn decode(bytes: &Bytes) -> Result<Manifest> {
        let mismatch = |what: String| Error::new(ErrorKind::LayoutMismatch, what);
        if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC {
            return Err(mismatch(format!("this is no manifest of Larder: {}", Shown(bytes))));
        }
        let kind = Kind::from_byte(bytes[4])
            .ok_or_else(|| mismatch(format!("kind {} is not known to this release", bytes[4])))?;
        let mut generation = [0; 8];
        generation.copy_from_slice(&bytes[8..16]);
        Ok(Manifest {
            kind,
            layout: bytes[5],
            shards: u16::from_le_bytes([bytes[6], bytes[7]]),
            generation: u64::from_le_bytes(generation),
            copies: bytes[16],
            params: bytes.slice(HEADER_BYTES..),
        })
    }

    /// The key of the data at `index`: a number, or text as [`Name::data_key`] takes it.
    pub(crate) fn data_key(&self, name: &Name, index: impl std::fmt::Display) -> Result<Key> {
        name.data_key(self.kind.role(), self.generation, index)
    }

    /// As [`data_key`](Manifest::data_key), of many at once.
    pub(crate) fn data_keys<I: AsRef<str>>(
        &self,
        name: &Name,
        indexes: impl ExactSizeIterator<Item = I>,
    ) -> Result<Vec<Key>> {
        name.data_keys(self.kind.role(), self.generation, indexes)
    }

    /// The place of each copy of the data at `index`: the same key on servers of falling rank.
    pub(crate) fn cells(&self, name: &Name, index: u16) -> Result<Vec<Cell>> {
        let key = self.data_key(name, index)?;
        Ok((0..self.copies).map(|rank| Cell { key: key.clone(), route: Route { with: None, rank } }).collect())
    }

    /// Fails unless this is a `kind` of layout `layout`.
    pub(crate) fn expect(&self, name: &Name, kind: Kind, layout: u8) -> Result<()> {
        if self.kind != kind {
            let detail = format!("{name} holds {}, not {}", self.kind.with_article(), kind.with_article());
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        }
        if self.layout != layout {
            let (kind, found) = (kind.with_article(), self.layout);
            let detail = format!("{name} holds {kind} of layout {found}; this release reads layout {layout}");
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        }
        Ok(())
    }

    /// Fails unless there are 1 to `max` shards, and as many as were `asked` for, if any.
    pub(crate) fn expect_shards(&self, name: &Name, max: u16, asked: Option<u16>) -> Result<()> {
        let shards = self.shards;
        let detail = match asked {
            _ if !(1..=max).contains(&shards) => {
                format!("{name} has {shards} shards; {} has 1 to {max}", self.kind.with_article())
            }
            Some(asked) if asked != shards => {
                format!("{name} was made with {shards} shards, not {asked}; their number is fixed")
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::LayoutMismatch, detail))
    }
}

/// How many shards `what` is made with: those that were asked for, if it takes so many, and 1 if none were.
///
/// # Errors
/// [`ErrorKind::BadInput`] unless they are 1 to `max`.
pub(crate) fn shards_to_make(what: &str, max: u16, asked: Option<u16>) -> Result<u16> {
    let shards = asked.unwrap_or(1);
    if !(1..=max).contains(&shards) {
        return Err(Error::new(ErrorKind::BadInput, format!("{what} takes 1 to {max} shards, not {shards}")));
    }
    Ok(shards)
}

/// A manifest as it was read, with what the store said of its item.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    pub(crate) item: Item,
}

/// Reads the manifest of a name; `None` if there is none. **Round trips: 1.**
pub(crate) async fn find(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<Found>> {
    let key = name.manifest_key()?;
    let reply = store.run_one(ctx, Op::get(key.clone(), Want::VALUE | Want::CAS | Want::TTL)).await?;
    let Some(item) = reply.into_item() else { return Ok(None) };
    let manifest = Manifest::decode(&item.value).map_err(|error| error.key(&key))?;
    Ok(Some(Found { manifest, item }))
}

/// The error for a name without a manifest, worded by what the store can promise.
pub(crate) fn absent(store: &StoreRef, name: &Name) -> Error {
    let profile = store.profile();
    let why = match profile.durability {
        larder_core::Durability::Disk => "absent (never created)",
        _ => "absent (never created, or lost)",
    };
    Error::new(ErrorKind::Absent, format!("{name} is {why}")).store(profile.store.clone())
}

/// How often creation is tried when a reply is lost.
const CREATE_TRIES_MAX: usize = 4;

/// Makes a structure: first its data, then the manifest that commits it. Of several that race, one wins, the others
/// remove the data they wrote and get the winner's manifest. **Round trips: 2**, 3 to 4 for one that lost the race; where the data are several batches, 1 for each but the last.
///
/// `data_of` are ops that only ever create (`add`) keys of the manifest's own generation. Nothing is sent twice: where a reply is lost, the next try is of another generation. A request that the network
/// holds back would otherwise bring back, empty, what stood for long and was evicted, or a manifest that was dropped.
///
/// # Errors
/// Those of the store, with [`Effect::Unknown`] exactly where a manifest of ours may have landed or may yet; only then data stay, or where the time is over. [`ErrorKind::Conflict`] if others
/// created and dropped it at each try.
pub(crate) async fn create(
    store: &StoreRef,
    ctx: Ctx,
    name: &Name,
    new: Manifest,
    data_of: impl Fn(&Manifest) -> Result<Vec<Batch>>,
) -> Result<Manifest> {
    let mut drafts = Vec::with_capacity(1);
    let made = draw(store, ctx, name, new, data_of, &mut drafts).await;
    for draft in drafts {
        let stays = match &made {
            Ok(made) => made.generation == draft.generation,
            Err(_) => draft.is_in_doubt,
        };
        for undo in draft.undo.into_iter().filter(|undo| !stays && !undo.is_empty()) {
            _ = store.run(ctx, undo).await;
        }
    }
    made
}

/// A generation that was tried.
struct Draft {
    generation: u64,
    /// What removes its data.
    undo: Vec<Batch>,
    /// Its manifest may land yet, or has.
    is_in_doubt: bool,
}

/// What stands in the end, ours or the one that came first; all that was tried is noted.
async fn draw(
    store: &StoreRef,
    ctx: Ctx,
    name: &Name,
    mut new: Manifest,
    data_of: impl Fn(&Manifest) -> Result<Vec<Batch>>,
    drafts: &mut Vec<Draft>,
) -> Result<Manifest> {
    let (mut doubt, mut fault) = (None, None);
    let failed = |error: Error, doubt: Option<Error>| doubt.unwrap_or_else(|| error.effect(Effect::NotApplied));
    for _ in 0..CREATE_TRIES_MAX {
        if !drafts.is_empty() {
            new.generation = random_id();
        }
        let data = data_of(&new).map_err(|error| failed(error, doubt.clone()))?;
        let undo = data.iter().map(|ops| ops.iter().map(owned::undo_op).collect()).collect();
        drafts.push(Draft { generation: new.generation, undo, is_in_doubt: false });
        match add_data(store, ctx, data).await {
            Ok(()) => {}
            Err(error) if error.is_unknown() => {
                events::retry(events::subject(new.kind, name), error.kind());
                fault = Some(error);
                continue;
            }
            // Nobody can know of them yet.
            Err(error) => return Err(failed(error, doubt)),
        }
        let put = Op::put(name.manifest_key()?, PutMode::Add, new.encode(), Ttl::Never);
        match store.run_one(ctx, put).await {
            Ok(Reply::Stored) => return Ok(new),
            Ok(_) => {}
            Err(error) if error.is_unknown() => {
                events::retry(events::subject(new.kind, name), error.kind());
                // The one of this try.
                drafts.last_mut().into_iter().for_each(|draft| draft.is_in_doubt = true);
                doubt = Some(error);
            }
            Err(error) => return Err(failed(error, doubt)),
        }
        // Somebody else's manifest is there, or our own, whose reply was lost.
        match find(store, ctx, name).await {
            Ok(Some(found)) => {
                if drafts.iter().all(|draft| draft.generation != found.manifest.generation) {
                    events::conflict(events::subject(new.kind, name));
                }
                return Ok(found.manifest);
            }
            Ok(None) => {}
            Err(error) => fault = Some(error),
        }
    }
    let conflict = || Error::new(ErrorKind::Conflict, format!("{name} keeps being created and dropped"));
    Err(failed(fault.unwrap_or_else(conflict), doubt))
}

/// Runs creating ops, one batch behind the other.
///
/// # Errors
/// The first, which ends it.
async fn add_data(store: &StoreRef, ctx: Ctx, data: Vec<Batch>) -> Result<()> {
    for ops in data.into_iter().filter(|ops| !ops.is_empty()) {
        for (op, reply) in ops.iter().zip(store.run(ctx, ops.clone()).await) {
            owned::is_made(op, &reply?)?;
        }
    }
    Ok(())
}

/// The error for a reply that does not belong to its op: the store broke its contract.
pub(crate) fn unexpected(op: &Op, reply: &Reply) -> Error {
    Error::new(ErrorKind::Protocol, format!("the store answered {reply:?}")).op(op).effect(Effect::Unknown)
}

/// Removes a manifest, if its item still has the token. True if it is gone. **Round trips: 1.**
///
/// A store that cannot delete by token deletes whatever is there.
pub(crate) async fn remove(store: &StoreRef, ctx: Ctx, name: &Name, cas: Option<Cas>) -> Result<bool> {
    let key = name.manifest_key()?;
    let op = match cas {
        Some(cas) if store.profile().delete_cas => Op::delete_if(key, cas),
        _ => Op::delete(key),
    };
    Ok(matches!(store.run_one(ctx, op).await?, Reply::Deleted | Reply::Miss))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_name_every_kind_with_its_role_and_byte() {
        let layouts = include_str!("../../../docs/layouts.md");
        for Row { kind, byte, name, role } in Kind::ALL {
            let name = if kind == Kind::Counter { "exact counter" } else { name };
            let row = format!("| `{role}` | {name} | {byte} | ");
            assert!(layouts.contains(&row), "docs/layouts.md has no row {row:?}");
        }
    }

    #[tokio::test]
    async fn a_manifest_that_was_written_since_is_not_removed() {
        let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
        let (ctx, name) = (Ctx::default(), Name::new("n").unwrap());
        let put = Op::put(name.manifest_key().unwrap(), PutMode::Set, "older", Ttl::Never);
        let read = Op::get(name.manifest_key().unwrap(), Want::CAS);
        store.run_one(ctx, put.clone()).await.unwrap();
        let cas = store.run_one(ctx, read).await.unwrap().into_item().unwrap().cas;
        store.run_one(ctx, put).await.unwrap();
        assert!(!remove(&store, ctx, &name, cas).await.unwrap());
        assert!(remove(&store, ctx, &name, None).await.unwrap());
    }

    /// One that came first is a conflict; one's own, of which the reply was lost, is none.
    #[tokio::test]
    async fn who_lost_the_race_tells_of_a_conflict_and_who_won_it_without_a_reply_does_not() {
        use larder_layers::testing::{Fault, Faulty};
        events::tests::listen();
        let faulty = Faulty::new(std::sync::Arc::new(larder_store_memory::MemoryStore::new()));
        let (store, name) = (faulty.shared(), Name::new("raced for").unwrap());
        let new = || Manifest::new(Kind::Set, 1, 1, Bytes::new());
        let first = new();
        faulty.fail_nth(1, Fault::LostReply);
        let made = create(&store, Ctx::default(), &name, first.clone(), |_| Ok(Vec::new())).await.unwrap();
        assert_eq!(made, first);
        assert_eq!(events::tests::told("raced for"), ["retry after unavailable"]);
        let found = create(&store, Ctx::default(), &name, new(), |_| Ok(Vec::new())).await.unwrap();
        assert_eq!(found, first);
        assert_eq!(events::tests::told("raced for"), ["retry after unavailable", "conflict"]);
    }

    #[test]
    fn golden_bytes() {
        let manifest = Manifest {
            kind: Kind::Set,
            layout: 1,
            shards: 0x0203,
            generation: 0x1122_3344_5566_7788,
            copies: 2,
            params: Bytes::from_static(b"\x09p"),
        };
        let bytes = manifest.encode();
        assert_eq!(&bytes[..], b"LRD\x01\x04\x01\x03\x02\x88\x77\x66\x55\x44\x33\x22\x11\x02\x09p");
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
    }

    #[test]
    fn each_copy_of_data_has_a_place_of_its_own() {
        let name = Name::new("n").unwrap();
        let manifest = Manifest { copies: 3, ..Manifest::new(Kind::Counter, 1, 1, Bytes::new()) };
        let cells = manifest.cells(&name, 7).unwrap();
        assert_eq!(cells.iter().map(|cell| cell.route.rank).collect::<Vec<_>>(), [0, 1, 2]);
        let key = manifest.data_key(&name, 7).unwrap();
        assert!(cells.iter().all(|cell| cell.key == key && cell.route.with.is_none()));
    }

    #[test]
    fn every_kind_has_its_own_row_and_byte() {
        for row in Kind::ALL {
            assert_eq!((row.kind.row().kind, Kind::from_byte(row.byte)), (row.kind, Some(row.kind)));
        }
    }

    #[test]
    fn what_a_name_holds_is_told_in_words() {
        let name = Name::new("n").unwrap();
        let expect = |found: Kind, wanted, layout| {
            Manifest::new(found, 1, 1, Bytes::new()).expect(&name, wanted, layout).unwrap_err().to_string()
        };
        assert!(expect(Kind::Visitors, Kind::Set, 1).contains("holds visitors, not a set"));
        assert!(expect(Kind::Array, Kind::Visitors, 1).contains("holds an array, not visitors"));
        assert!(expect(Kind::Visitors, Kind::Visitors, 2).contains("holds visitors of layout 1; this release reads"));
    }

    #[test]
    fn another_number_of_shards_than_asked_for_or_possible_is_told() {
        let name = Name::new("n").unwrap();
        let expect = |has: u16, asked| Manifest::new(Kind::Set, 1, has, Bytes::new()).expect_shards(&name, 8, asked);
        for (has, asked) in [(1, None), (8, None), (8, Some(8)), (3, Some(3))] {
            assert!(expect(has, asked).is_ok(), "{has} {asked:?}");
        }
        for (has, asked, told) in [
            (0, None, "\"n\" has 0 shards; a set has 1 to 8"),
            (9, Some(9), "\"n\" has 9 shards; a set has 1 to 8"),
            (3, Some(4), "\"n\" was made with 3 shards, not 4; their number is fixed"),
        ] {
            let error = expect(has, asked).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }

    #[tokio::test]
    async fn a_manifest_that_was_refused_is_not_asked_for_again() {
        use larder_layers::testing::{Fault, Faulty};
        let faulty = Faulty::new(std::sync::Arc::new(larder_store_memory::MemoryStore::new()));
        let store = faulty.shared();
        let (ctx, name) = (Ctx::default(), Name::new("n").unwrap());
        faulty.fail_nth(1, Fault::NotSent);
        let new = Manifest::new(Kind::Set, 1, 1, Bytes::new());
        let error = create(&store, ctx, &name, new, |_| Ok(Vec::new())).await.unwrap_err();
        assert!(!error.is_unknown(), "{error}");
        assert!(find(&store, ctx, &name).await.unwrap().is_none(), "nothing was written");
    }

    /// A store in memory that says something else of itself.
    #[derive(Debug)]
    struct Says(larder_store_memory::MemoryStore, fn(&mut larder_core::Profile));

    impl Says {
        fn shared(says: fn(&mut larder_core::Profile)) -> StoreRef {
            std::sync::Arc::new(Says(larder_store_memory::MemoryStore::new(), says))
        }
    }

    impl larder_core::Store for Says {
        fn profile(&self) -> std::sync::Arc<larder_core::Profile> {
            let mut profile = (*self.0.profile()).clone();
            (self.1)(&mut profile);
            std::sync::Arc::new(profile)
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> larder_core::Run<'a> {
            self.0.run(ctx, batch)
        }
    }

    #[test]
    fn what_is_on_disk_is_not_lost_where_it_is_absent() {
        let said = |says| absent(&Says::shared(says), &Name::new("n").unwrap()).to_string();
        assert!(said(|profile| profile.durability = larder_core::Durability::Disk).contains("absent (never created)"));
        assert!(said(|_| ()).contains("absent (never created, or lost)"));
    }

    #[tokio::test]
    async fn a_store_that_cannot_delete_by_token_deletes_what_is_there() {
        let (ctx, name) = (Ctx::default(), Name::new("n").unwrap());
        for is_gone in [true, false] {
            let store = Says::shared(if is_gone { |profile| profile.delete_cas = false } else { |_| () });
            let put = Op::put(name.manifest_key().unwrap(), PutMode::Set, "v", Ttl::Never);
            store.run_one(ctx, put.clone()).await.unwrap();
            let read = Op::get(name.manifest_key().unwrap(), Want::CAS);
            let older = store.run_one(ctx, read).await.unwrap().into_item().unwrap().cas;
            store.run_one(ctx, put).await.unwrap();
            assert_eq!(remove(&store, ctx, &name, older).await.unwrap(), is_gone);
        }
    }

    fn data_of(name: &Name, new: &Manifest) -> Result<Vec<Batch>> {
        let put = Op::put(new.data_key(name, 0)?, PutMode::Add, "v", Ttl::Never);
        Ok(vec![Batch::new(), Batch::from_iter([put])])
    }

    async fn has_data(store: &StoreRef, name: &Name, of: &Manifest) -> bool {
        store.get(of.data_key(name, 0).unwrap()).await.unwrap().is_some()
    }

    #[tokio::test]
    async fn what_is_tried_again_is_of_another_generation_and_leaves_nothing_of_the_first() {
        use larder_layers::testing::{Fault, Faulty};
        for (nth, fault) in
            [(1, Fault::LostReply), (1, Fault::LostRequest), (2, Fault::LostRequest), (2, Fault::LostReply)]
        {
            let faulty = Faulty::new(std::sync::Arc::new(larder_store_memory::MemoryStore::new()));
            let (store, name) = (faulty.shared(), Name::new("n").unwrap());
            let new = Manifest::new(Kind::Set, 1, 1, Bytes::new());
            faulty.fail_nth(nth, fault);
            let made = create(&store, Ctx::default(), &name, new.clone(), |new| data_of(&name, new)).await.unwrap();
            // Of the last it is found that it stands.
            let is_first = (nth, fault) == (2, Fault::LostReply);
            assert_eq!(made == new, is_first, "{nth} {fault:?}");
            assert_eq!(find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest, made);
            assert!(has_data(&store, &name, &made).await, "{nth} {fault:?}");
            assert_eq!(has_data(&store, &name, &new).await, is_first, "{nth} {fault:?}");
        }
    }

    /// A store that loses each request to write a manifest.
    #[derive(Debug)]
    struct NoManifests(StoreRef, std::sync::Mutex<Vec<Manifest>>);

    impl larder_core::Store for NoManifests {
        fn profile(&self) -> std::sync::Arc<larder_core::Profile> {
            self.0.profile()
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> larder_core::Run<'a> {
            let is_put = |op: &&Op| op.key.as_bytes().ends_with(b".m") && !op.is_read();
            let Some(larder_core::Verb::Put { value, .. }) = batch.iter().find(is_put).map(|op| &op.verb) else {
                return self.0.run(ctx, batch);
            };
            self.1.lock().unwrap().push(Manifest::decode(value).unwrap());
            let lost = Error::new(ErrorKind::Unavailable, "lost").effect(Effect::Unknown);
            larder_core::Run::Ready([Err(lost)].into_iter().collect())
        }
    }

    #[tokio::test]
    async fn the_data_of_each_manifest_that_may_land_yet_stay() {
        let lost = std::sync::Arc::new(NoManifests(
            std::sync::Arc::new(larder_store_memory::MemoryStore::new()),
            std::sync::Mutex::default(),
        ));
        let (store, name): (StoreRef, _) = (lost.clone(), Name::new("n").unwrap());
        let new = Manifest::new(Kind::Set, 1, 1, Bytes::new());
        let error = create(&store, Ctx::default(), &name, new, |new| data_of(&name, new)).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, true));
        let sent = std::mem::take(&mut *lost.1.lock().unwrap());
        let generations: std::collections::BTreeSet<u64> = sent.iter().map(|manifest| manifest.generation).collect();
        assert_eq!((sent.len(), generations.len()), (CREATE_TRIES_MAX, CREATE_TRIES_MAX), "none is sent twice");
        for manifest in &sent {
            assert!(has_data(&store, &name, manifest).await);
        }
    }

    #[test]
    fn foreign_bytes_are_a_layout_mismatch() {
        for bytes in
            [&b""[..], b"42", b"LRD\x02\x04\x01\0\0\0\0\0\0\0\0\0\0\x01", b"LRD\x01\xee\x01\0\0\0\0\0\0\0\0\0\0\x01"]
        {
            let error = Manifest::decode(&Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{bytes:?}");
        }
    }
}
