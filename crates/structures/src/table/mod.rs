//! A table: values by keys, each an item of its own, and a list of the keys.
//!
//! An entry is read with one get and written with one batch. The list tells what no single item can: which keys there are, and
//! whether an entry that is missing was removed or lost.
//!
//! Source: A. Smirnov, "Data structures in memcached/MemcacheDB, part 2", 2008. The article writes entry and list in turn, and a
//! crash in between leaves them at odds for good; its table is locked meanwhile. Here nothing is locked, and whoever reads what a
//! crash left repairs it.
//!
//! # How the two are kept in step
//! Each entry has an *incarnation*, drawn when it is made, and says in its item's client flags whether it is *listed*. Nobody
//! overwrites an entry without having read it: a put *appends* its value to the item, as a frame (the last one counts), and all
//! else is conditional on the token that was read. A blind `replace` would wipe out the flag of an entry whose maker crashed before
//! he listed it. The list is append-encoded, too; its elements are notes on incarnations: *listed* (with the key), *leaving*, *gone*.
//!
//! | call | steps, each after the one before was acknowledged |
//! |---|---|
//! | put, the entry is there | **a** append the value (and learn whether the entry is listed) |
//! | put, it is not | **a** add the entry, not listed; **b** note *listed*; behind the caller **c** flag the entry as listed, by token |
//! | remove | **d** read the entry; **e** note *leaving*; **f** delete it, by token; behind the caller **g** note *gone* |
//! | remove, it is not listed yet | **d**; sign and list it as a repair does; **d** once more: as it is there, nothing has taken its place before it was listed; **e**, **f**, **g** |
//! | repair, by whoever reads an entry that is not listed | rewrite the entry with a frame of its own and no value, by token, so that its maker does not take it back any more; **b**, **c** |
//!
//! What a crash leaves, and who repairs it:
//!
//! | a crash after | entry | list | then |
//! |---|---|---|---|
//! | put: a | there, not listed | | `get` finds it and repairs it; so does the next put, before it is acknowledged |
//! | put: b | there, not listed | listed | the same; a second *listed* of one incarnation changes nothing |
//! | remove of an entry that was not listed: signed, listed | there, not listed | maybe listed | as put: a, put: b |
//! | remove: e | there | leaving | `keys` and `entries` look whether it is there, and list it; after ten minutes they give it a new incarnation. So does a handle that only gets and puts: behind a get or put of what is there, it looks through the key's shard of the list if it has not for ten minutes. Until then its loss is taken for the removal, which may yet have been |
//! | remove: f | | leaving | absent to all; whoever reads the list notes it *gone* |
//!
//! Where two meet:
//!
//! | the race | what comes of it |
//! |---|---|
//! | put and put of a new key | one `add` wins; the other's append came too early and its `add` too late, so it looks again and writes by token |
//! | put, in a table with lives, takes the place of an entry that its maker has not listed yet | it lists that entry first. So incarnations of a key are on the list in their order; one that is *gone* takes along those before it, and the list remembers them all |
//! | put and put of one handle, and the later one lands first | writes of one handle count in the order in which they began: the earlier one was overwritten. It neither counts in the entry nor makes an incarnation |
//! | put joins an entry that others remove before its add, sent along, has arrived | the add makes it anew: while such a put is under way its value may be read, removed, and read again. Where it may come after the call, the put is `Unknown` |
//! | put joins an entry that is not listed yet | it lists the entry itself before it is acknowledged; its maker does the same, and either is enough. Is another there by then, it signs that first, as a repair does. Is the entry gone by then, and does the list not name its key, it may have been lost unlisted: `Unknown`, unless the store cannot lose it |
//! | put joins an entry that is being removed | the token has changed: the remove looks again, and removes what it finds, or the put came after the delete and makes a new incarnation |
//! | remove, in a table with lives, of an entry whose place a put takes meanwhile | begins anew with what is there, and removes that: it was there all the time |
//! | remove of an entry that its maker has not listed yet | it signs and lists the entry first: so a maker whom the list refuses does not take it back, and others make no other before this one is listed. Was it lost in between, whoever takes its place is given another incarnation, as below. The maker's own *listed*, however late, changes nothing, not after *gone* either: the list remembers the last 1,024 that are gone. Whoever notes *listed* more than 100 ms after he saw the entry looks again: is it missing by then, and says the list that it is there, it is `Lost` to whoever misses it, though it may have been removed, and over a thousand others after it: nobody can tell, and no loss is to be silent (on a store that cannot lose it is noted *gone*); is a newer one there, that gets another incarnation, which takes the late one along |
//! | a renewal (a new incarnation in the entry's place) comes between the steps of a remove | what was written to the entry is still in it, so the remove knows it again, and removes it under its new incarnation |
//! | remove and remove | one deletes; the other finds it gone and answers false. Where it came and went between the other's steps, the list tells that from a loss: as for readers, it is read again |
//! | remove, then put by others, then the remove's **g** | names the old incarnation, and leaves the new one alone |
//! | a reader misses the entry | it reads the list, the entry, the list: *leaving* is noted before the delete, so only what was lost is reported as lost |
//!
//! # Guarantees, a store
//! | | memory | memcached | the classic dialect (no delete by cas) |
//! |---|---|---|---|
//! | a put that was acknowledged | is listed, and read until it is overwritten, removed or over | the same, until the server evicts or ends | the same |
//! | a put whose outcome is unknown | cannot be | the entry is looked into; where it is not there, `Unknown`: it counts at most once, now or later. `Unknown`, too, where it overwrote an entry and nothing tells whether its add has come as well: held back by the network, that makes the entry once more when it is removed. Whoever reads what it left lists it behind his answer. An entry that is evicted before it is listed is absent, though somebody may have read it: its put was not acknowledged by then | the same |
//! | a lost entry | only where it is built as a cache that evicts: `Lost` | [`Lost`](larder_core::ErrorKind::Lost), never absent | the same |
//! | a lost shard of the list | the same | `Lost` to `keys` and to those who miss an entry; entries are read as before | the same |
//! | a remove that meets a remove *and* a put of the same key | leaves the put | leaves the put | may delete the put's entry, whose key then is `Lost` |
//! | without cas | | refused at open, `Unsupported` | |
//!
//! A store that never evicts and keeps what it has for its life (the process) cannot lose an entry: what is missing there is absent,
//! one round trip tells, and a key that is listed all the same is taken off the list. A store on the network says anew what it keeps each time
//! it connects: from the first reply of a server that may lose on, a handle asks the list, and goes on so whatever comes later.
//!
//! Reads of several entries are no snapshot.
//!
//! # Lives
//! Entries have lives ([`put_for`](Table::put_for)) in a table made with [`ttl(true)`](TableOptions::ttl): there each put makes the entry
//! anew, under its own incarnation, and the list names the life of each. It costs a put of an existing entry two round trips more.
//! An entry that is missing is absent, not lost, from five minutes before its life's end by the reader's clock, since clocks
//! disagree: so a loss within the last five minutes of a life is not told. The life itself is ended by the store's clock. It is told with each write that makes or lists the
//! entry, as what is left of it when that is sent: where one is held back on its way, the entry lasts longer by as long. A store that does not tell what is left of a life (memcached's classic
//! dialect) is told what is left by the clock of who writes: where others list an entry for its maker, or are about to remove it, it ends as much earlier or later as their clocks differ.
//! A put that took an entry's place, and whose maker died before he listed it, leaves the one before it on the list. Is the new life over before anybody has read the entry,
//! the key is `Lost` until it is put or removed: nobody can know what was there.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | get, has | 1; of what is missing 2 (1 on a store that cannot lose); of what is lost, or missing in the last five minutes of its life, 4 |
//! | get_many | 1 a node for each batch that the keys fill; where some are missing as above, for each 65,536 keys |
//! | put of an existing entry | 1; 3 where two values do not fit into one item; 3 in a table with lives, 6 where the entry is not listed yet |
//! | put of a new one | 2, and 2 behind the caller; 3 where they took more than 100 ms |
//! | remove | 3, and 2 behind the caller; 6 where the entry is not listed yet; of what is missing 2; 4 where others are removing it, of what is lost 5; 3 more each time that others put it meanwhile |
//! | keys | 1; 2 while entries are being removed, or lives end |
//! | entries | as keys, and 1 a node |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 3 to make it |
//!
//! # Limits and memory
//! A key has 0 bytes up to [`Table::key_bytes_max`] (65,536 on memcached), a value 0 up to [`Table::value_bytes_max`]: the store's limit less 310 bytes
//! and the key. An entry costs key, value and 65 to 68 bytes, and the store's own cost of an item with a key of 36 bytes and the
//! name; what was put over stays in the item until it is more than the entry and 256 bytes, then it is compacted behind the caller, or by a put along with the handle's next one. The list takes a
//! key and 14 bytes for each, and must fit into the items of its [shards](TableOptions::shards): 1 MiB of memcached lists some 30,000 keys of 20 bytes, to be on the safe side
//! with removals. An incarnation that is gone costs 10 bytes, at most 10 KB a shard.
//!
//! Behind its callers, a handle that is open for longer reads each shard whose entries it gets or puts once in ten minutes.
//!
//! Entries stand where XXH3-128 puts their keys. Whoever crafts two keys of one hash gets an error on the second, never a wrong value.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod layout;
mod list;
mod look;
mod put;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{ClockRef, Ctx, Error, ErrorKind, Result, StoreRef, SystemClock, Ttl, TtlSupport};

use self::layout::{HASH_XXH3, ListElements};
use self::list::Inner;
use self::look::Seen;
use crate::append::{Shards, Tuning};
use crate::events;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::registry::Pieces;
use crate::timeout;

/// The most shards that the list of a table can be made with.
pub const SHARDS_MAX: u16 = 1024;

/// The longest key, where the store's items are large enough.
const KEY_BYTES_MAX: usize = 65_536;
/// Fewer stale bytes than this are let be in an entry.
const DIRTY_BYTES: usize = 256;
/// How long a reader leaves it to the putter to list an entry.
const REPAIR_AFTER: Duration = Duration::from_millis(100);
/// Who takes longer to list an entry looks whether it is still there: the list may have forgotten meanwhile that it is gone.
const LISTING_MAX: Duration = Duration::from_millis(100);
/// After so long a remove that is not through is taken for one whose client died; so often those who only get and put look for one.
const LEAVING_MAX_S: u32 = 600;

/// A handle of a table: a cheap clone, shared by as many tasks as you like.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Table;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let prices = Table::open_or_create(&store, "prices").await?;
/// prices.put("apple", "3.20").await?;
/// assert_eq!(prices.get("apple").await?.unwrap(), "3.20");
/// assert_eq!(prices.keys().await?, ["apple"]);
/// assert!(prices.remove("apple").await? && !prices.has("apple").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Table(Arc<Inner>);

/// How a table is opened and made.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Table;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let sessions = Table::options().shards(4).ttl(true).open_or_create(&store, "sessions").await?;
/// sessions.put_for("u7", "…", std::time::Duration::from_secs(1800)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TableOptions {
    shards: Option<u16>,
    ttl: Option<bool>,
    timeout: Duration,
    dirty_bytes: usize,
    clock: Option<ClockRef>,
}

/// All entries of a table that are there, and the keys of those that are lost, by [`Table::entries_and_lost`].
///
/// ```
/// # use larder_structures::Table;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let users = Table::open_or_create(&store, "users").await?;
/// users.put("ann", "Toronto").await?;
/// let all = users.entries_and_lost().await?;
/// assert_eq!((all.entries, all.lost), (vec![("ann".into(), "Toronto".into())], vec![]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TableEntries {
    /// Keys and values, in no order.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Keys that are listed, and whose entries are gone.
    pub lost: Vec<Bytes>,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions { shards: None, ttl: None, timeout: Duration::from_secs(5), dirty_bytes: 1024, clock: None }
    }
}

impl TableOptions {
    /// Over how many shards, 1 to [`SHARDS_MAX`], the list of a table is spread that is made; 1 if not given. It is fixed then: opening
    /// with another number is a [`LayoutMismatch`](ErrorKind::LayoutMismatch). A shard lists as many keys as fit into one item of the store.
    ///
    /// ```
    /// let options = larder_structures::Table::options().shards(16);
    /// ```
    pub fn shards(mut self, shards: u16) -> TableOptions {
        self.shards = Some(shards);
        self
    }

    /// Whether entries may have lives: see [Lives](self#lives). Fixed when the table is made, false if not given; opening one that was
    /// made otherwise is a [`LayoutMismatch`](ErrorKind::LayoutMismatch), opening one without saying takes it as it is.
    ///
    /// ```
    /// let options = larder_structures::Table::options().ttl(true);
    /// ```
    pub fn ttl(mut self, has_lives: bool) -> TableOptions {
        self.ttl = Some(has_lives);
        self
    }

    /// How long a call may take, with all it tries again; 5 s if not given, a day at the most.
    ///
    /// ```
    /// let options = larder_structures::Table::options().timeout(std::time::Duration::from_millis(200));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> TableOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// How many stale bytes a shard of the list may have before it is compacted, in the background; 1,024 if not given. It is compacted
    /// only if more than half of it is stale, too.
    ///
    /// ```
    /// let options = larder_structures::Table::options().dirtiness(4096);
    /// ```
    pub fn dirtiness(mut self, bytes: usize) -> TableOptions {
        self.dirty_bytes = bytes;
        self
    }

    /// Where the time comes from that lives are judged by in the list; the system's clock if not given.
    ///
    /// ```
    /// let options = larder_structures::Table::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(mut self, clock: ClockRef) -> TableOptions {
        self.clock = Some(clock);
        self
    }

    /// Opens a table that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Table::options().open(&store, "t").await.is_err());
    /// Table::open_or_create(&store, "t").await?;
    /// Table::options().open(&store, "t").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes and for a timeout of 0, [`Absent`](ErrorKind::Absent) if there is none,
    /// [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure or another option, [`Unsupported`](ErrorKind::Unsupported) on a
    /// store without conditional writes, without lives if it is to have some, or with too small items.
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Table> {
        self.open_as(store, &Name::new(name)?, false).await
    }

    /// Opens a table, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let table = Table::options().shards(4).open_or_create(&store, "t").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](TableOptions::open), but for `Absent`; [`BadInput`](ErrorKind::BadInput) for a number of shards that is out of range.
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Table> {
        self.open_as(store, &Name::new(name)?, true).await
    }

    async fn open_as(self, store: &StoreRef, name: &Name, may_create: bool) -> Result<Table> {
        timeout::check(self.timeout)?;
        let shards = manifest::shards_to_make("the list of a table", SHARDS_MAX, self.shards)?;
        let ctx = Ctx::within(self.timeout);
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => {
                let params = Bytes::copy_from_slice(&[HASH_XXH3, u8::from(self.ttl == Some(true))]);
                let new = Manifest::new(Kind::Table, LAYOUT, shards, params);
                // Refuses a store that cannot carry it, before anything is written.
                check_store(store, name, &new)?;
                Inner::new(store, name, new.clone(), &self)?;
                let data_of = |new: &Manifest| Ok(vec![Shards::<ListElements>::create_ops(name, new)?]);
                manifest::create(store, ctx, name, new, data_of).await?
            }
            None => return Err(manifest::absent(store, name)),
        };
        check(name, &manifest, &self)?;
        check_store(store, name, &manifest)?;
        Ok(Table(Arc::new(Inner::new(store, name, manifest, &self)?)))
    }

    fn tuning(&self) -> Tuning {
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        Tuning { clock, dirty_bytes: self.dirty_bytes }
    }
}

/// True if entries of this table have lives.
fn has_lives(manifest: &Manifest) -> bool {
    manifest.params.get(1) == Some(&1)
}

/// Fails unless the manifest is of a table that this release reads, and as the options want it.
fn check(name: &Name, manifest: &Manifest, options: &TableOptions) -> Result<()> {
    manifest.expect(name, Kind::Table, LAYOUT)?;
    let mismatch = |detail: String| Err(Error::new(ErrorKind::LayoutMismatch, detail));
    if !matches!(manifest.params[..], [HASH_XXH3, 0 | 1]) || manifest.copies != 1 {
        return mismatch(format!("{name} places or copies its entries in a way this release does not know"));
    }
    match options.ttl {
        Some(true) if !has_lives(manifest) => {
            return mismatch(format!("{name} was made without lives; drop it, and make it anew with ttl(true)"));
        }
        Some(false) if has_lives(manifest) => {
            return mismatch(format!("{name} was made with lives; drop it, and make it anew with ttl(false)"));
        }
        _ => {}
    }
    manifest.expect_shards(name, SHARDS_MAX, options.shards)
}

/// Fails where the store cannot carry a table.
fn check_store(store: &StoreRef, name: &Name, manifest: &Manifest) -> Result<()> {
    let profile = store.profile();
    let refuse = |what: &str| {
        let detail = format!("table {name} needs {what}, which this store has not");
        Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()))
    };
    if !profile.cas {
        return refuse("conditional writes (cas)");
    }
    if has_lives(manifest) && profile.ttl == TtlSupport::None {
        return refuse("items that expire");
    }
    Ok(())
}

/// The parameters in words; `None` for those of another release.
pub(crate) fn describe(manifest: &Manifest) -> Option<Vec<(&'static str, String)>> {
    let lives = match manifest.params[..] {
        [HASH_XXH3, 0] => "no",
        [HASH_XXH3, 1] => "yes",
        _ => return None,
    };
    let hash = "XXH3-128".to_owned();
    Some(vec![("shards", manifest.shards.to_string()), ("keys are hashed by", hash), ("lives", lives.to_owned())])
}

pub(crate) use self::layout::{LAYOUT, stale_bytes};

/// The keys of the entries that a table's list names.
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    Inner::pieces(store, ctx, name, manifest).await
}

impl Table {
    /// Options, to open a table otherwise than by default.
    ///
    /// ```
    /// let options = larder_structures::Table::options().shards(4);
    /// ```
    pub fn options() -> TableOptions {
        TableOptions::default()
    }

    /// Opens a table that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::{ErrorKind, StoreRef};
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(Table::open(&store, "t").await.unwrap_err().kind(), ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TableOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Table> {
        Table::options().open(store, name).await
    }

    /// Opens a table, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Table::open_or_create(&store, "t").await?.keys().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TableOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Table> {
        Table::options().open_or_create(store, name).await
    }

    /// Puts an entry, in place of one that is there. It stays until it is removed. **Round trips: 1** if there is one, 2 if not; see the
    /// [module](self#round-trips).
    ///
    /// Dropped midway, the put has taken effect or not.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// table.put("k", "old").await?;
    /// table.put("k", [0u8, 255]).await?;
    /// table.put("", "").await?;
    /// assert_eq!(table.get("k").await?.unwrap(), [0u8, 255][..]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a key or value over its limit; [`Full`](ErrorKind::Full) if the list takes no further key, and then nothing is put;
    /// [`Conflict`](ErrorKind::Conflict) if another key of the same hash is there, others wrote at each try, or removed it before it was listed; [`Lost`](ErrorKind::Lost) where the list
    /// is gone; [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime; and what the store says. With an effect that is unknown, the put
    /// may have taken effect, or may yet.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.0.check_value(key, value)?;
        self.0.put(key, value, Ttl::Never).await
    }

    /// Puts an entry that is gone after `ttl`. **Round trips: 2** if there is none, 3 if there is, 6 if that one is not listed yet.
    ///
    /// The life ends by the store's clock; memcached counts whole seconds.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let sessions = Table::options().ttl(true).open_or_create(&store, "sessions").await?;
    /// sessions.put_for("u7", "…", Duration::from_secs(1800)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`put`](Table::put); [`LayoutMismatch`](ErrorKind::LayoutMismatch) for a table that was made without [lives](TableOptions::ttl),
    /// [`BadInput`](ErrorKind::BadInput) for a life of 0, or one over the store's limit.
    pub async fn put_for(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.0.check_value(key, value)?;
        let name = &self.0.name;
        if !self.0.has_lives {
            let detail = format!("{name} was made without lives; drop it, and make it anew with ttl(true)");
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        }
        let max = self.0.store.profile().ttl_max;
        if ttl > max {
            let detail = format!("a life of {ttl:?} is over the limit of this store, {max:?}");
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        self.0.put(key, value, Ttl::after(ttl)?).await
    }

    /// The value under a key; `None` if there is none. **Round trips: 1**; 2 where it is missing, on a store that may have lost it.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// assert_eq!(table.get("k").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) naming the key where the entry is listed and gone, or naming the list; [`LayoutMismatch`](ErrorKind::LayoutMismatch) for foreign bytes,
    /// [`Conflict`](ErrorKind::Conflict) where another key of the same hash is there, [`BadInput`](ErrorKind::BadInput) for a key over the limit, and what the store says.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let key = key.as_ref();
        self.0.check_key(key)?;
        match self.0.look(&[key]).await?.pop() {
            Some(Seen::There(value)) => Ok(Some(value)),
            Some(Seen::Lost) => Err(self.0.lost(&[key])),
            Some(Seen::Absent) | None => Ok(None),
        }
    }

    /// True if there is an entry. **Round trips: 1**; 2 where it is missing, on a store that may have lost it.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// table.put("k", "").await?;
    /// assert!(table.has("k").await? && !table.has("l").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Table::get).
    pub async fn has(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key).await?.is_some())
    }

    /// The values under many keys, in their order. **Round trips: 1** a node, for each batch that the keys fill; where some are missing as [`get`](Table::get), for each 65,536 keys.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// table.put("a", "1").await?;
    /// assert_eq!(table.get_many(["a", "b"]).await?, [Some("1".into()), None]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Table::get); `Lost` names the keys.
    pub async fn get_many(&self, keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<_> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        keys.iter().try_for_each(|key| self.0.check_key(key))?;
        let seen = self.0.look(&keys).await?;
        let lost: Vec<&[u8]> =
            keys.iter().zip(&seen).filter(|(_, seen)| **seen == Seen::Lost).map(|(key, _)| *key).collect();
        if !lost.is_empty() {
            return Err(self.0.lost(&lost));
        }
        let value = |seen| match seen {
            Seen::There(value) => Some(value),
            Seen::Absent | Seen::Lost => None,
        };
        Ok(seen.into_iter().map(value).collect())
    }

    /// Removes an entry. True if this call removed it, or may have where a reply was lost and the entry is gone, or it was lost; false if there was none. **Round trips: 3**, 2 if there is none,
    /// 4 where others are removing it, 5 where it was lost, 6 where it is not listed yet.
    ///
    /// Dropped midway, it has taken effect or not.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// table.put("k", "v").await?;
    /// assert!(table.remove("k").await?);
    /// assert!(!table.remove("k").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`put`](Table::put). An effect that is unknown: the entry may be there or not, and should it be lost, that will look like its removal.
    pub async fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        self.0.check_key(key)?;
        self.0.remove(key).await
    }

    /// All keys, in no order; those of entries that are lost, too. **Round trips: 1**, 2 while entries are being removed, or lives end.
    ///
    /// An entry whose life is over by this client's clock is looked for, since it is the store's clock that ends it; what is missing then
    /// is taken off the list, so that the second round trip is not needed again.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// table.put("k", "v").await?;
    /// assert_eq!(table.keys().await?, ["k"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where a shard of the list is gone, and as [`get`](Table::get).
    pub async fn keys(&self) -> Result<Vec<Bytes>> {
        Ok(self.0.all_listed().await?.into_iter().map(|(key, _)| key).collect())
    }

    /// All entries, in no order. **Round trips:** as [`keys`](Table::keys) for the list, and 1 a node, for each batch that the keys fill.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// table.put("k", "v").await?;
    /// assert_eq!(table.entries().await?, [("k".into(), "v".into())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Table::get); `Lost` names the keys, and [`entries_and_lost`](Table::entries_and_lost) brings the others.
    pub async fn entries(&self) -> Result<Vec<(Bytes, Bytes)>> {
        let (entries, lost) = self.0.everything().await?;
        if lost.is_empty() {
            return Ok(entries);
        }
        let lost: Vec<&[u8]> = lost.iter().map(|key| &key[..]).collect();
        Err(self.0.lost(&lost))
    }

    /// All entries that are there, and the keys of those that are lost. **Round trips:** as [`entries`](Table::entries), 3 more where some are lost.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let table = Table::open_or_create(&store, "t").await?;
    /// for key in table.entries_and_lost().await?.lost {
    ///     table.remove(key).await?; // or put it anew
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`keys`](Table::keys).
    pub async fn entries_and_lost(&self) -> Result<TableEntries> {
        let (entries, lost) = self.0.everything().await?;
        if !lost.is_empty() {
            events::gap(self.0.subject());
        }
        Ok(TableEntries { entries, lost })
    }

    /// Waits for what this handle has under way behind its callers: flagging entries that it put, tidying up after a remove. For a program that
    /// is about to end; what it leaves undone, others do. **Round trips: 0** of its own. At most 5 s, also where others go on
    /// calling; outside a Tokio runtime, which has the timer, as long as it takes.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let table = Table::open_or_create(&store, "t").await?;
    /// table.put("k", "v").await?;
    /// table.settle().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle(&self) {
        self.0.settle().await;
    }

    /// True if entries may have [lives](TableOptions::ttl). **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(!Table::open_or_create(&store, "t").await?.has_lives());
    /// # Ok(())
    /// # }
    /// ```
    pub fn has_lives(&self) -> bool {
        self.0.has_lives
    }

    /// The longest key that this table takes, in bytes. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(Table::open_or_create(&store, "t").await?.key_bytes_max(), 65_536);
    /// # Ok(())
    /// # }
    /// ```
    pub fn key_bytes_max(&self) -> usize {
        self.0.key_bytes_max()
    }

    /// The longest value that this table takes under a key of so many bytes. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Table::open_or_create(&store, "t").await?.value_bytes_max(20) > 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_bytes_max(&self, key_bytes: usize) -> usize {
        self.0.value_bytes_max(key_bytes)
    }
}

#[cfg(test)]
mod tests;
