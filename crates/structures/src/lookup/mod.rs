//! Packed tables: rows by ranges of addresses, or by ids, built once and read often.
//!
//! The table of the cities of all addresses, 370,000 of them, takes 32 MB as a hash of JSON texts. Here it takes 2.4 MB, and any row is read in one round trip: the
//! reader keeps a small directory, which tells the block, and decodes of it the one row that it wants.
//!
//! Source: J. Carlson, "Redis in Action", 2013, sections 5.3 and 9.2 (ranges of addresses in a sorted set, and cities in a sharded hash). Here ranges and rows stand
//! together, so that a lookup is one read instead of two, and gaps between ranges are told.
//!
//! # How it works
//! A table is a version that never changes. [`build`](PackedTable::build) makes the next one beside it: it learns from all rows how to write their fields in few bits
//! (values that come often by Huffman codes, texts byte by byte under codes that depend on the two bytes before), cuts them into blocks of the size of an allocator's
//! class, writes the blocks under keys of their own, reads them back, and then puts the version in force by one conditional write of the head, a small item.
//! What came before is removed then. A build that dies leaves the old version in force; the next one removes what it left.
//!
//! A reader keeps the directory of a version: the first key of each block, and the codes. A block that is missing means that another version is in force,
//! or that the store lost it: it looks at the head, and goes on with the other version, or says [`Lost`](larder_core::ErrorKind::Lost).
//!
//! # Guarantees, a store
//! | | memory | memcached | Redis, Valkey |
//! |---|---|---|---|
//! | a lookup | finds the rows of one version, never of two | the same | the same |
//! | a build that has returned | every handle that can read the head reads it, at the latest a second later | the same | the same |
//! | a build that fails, or dies midway | changes nothing that is read | the same | the same; a reply of the last write that is lost is `Unknown` |
//! | a lost block, or head | only where the store is built to evict | [`Lost`](larder_core::ErrorKind::Lost), never "no such row" | the same |
//! | a store that was set back | cannot be | [`RolledBack`](larder_core::ErrorKind::RolledBack) to a handle that saw a later version, or another of the same number, within a second of its use, once it can read the head | the same |
//! | two builds at once | the one that began later goes on, the other is told [`Conflict`](larder_core::ErrorKind::Conflict) | the same | the same |
//!
//! # Round trips
//! | of an opened handle | |
//! |---|---|
//! | get | 1, also to refuse a number where the table has addresses; 3 more when another version was built since |
//! | get_many | 1 for every 1 MiB of the blocks they touch |
//! | build | 4, and 2 for every 128 KiB of blocks; 3 more to remove what was there before |
//! | stat | 1 |
//! | open | 3 |
//! | open_or_create | 3 if it is there, 4 to make it |
//!
//! # Memory and limits
//! A reader keeps the directory, and 128 bytes for each code of its texts: some 400 KB for 370,000 rows of three columns, and never more than a megabyte a column. A builder keeps all rows, some 40 bytes each and their fields.
//! A row must fit an item of the store, packed. Keys are 32 or 128 bits of address, or numbers up to 2^128 - 1.

mod bits;
mod block;
mod build;
mod csv;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod huffman;
mod key;
mod layout;
mod model;
mod pack;
mod read;
mod rows;
mod shared;
mod strict;
mod text;

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, PutMode, Result, StoreExt as _, StoreRef, Ttl, Want};

pub use self::build::{Built, Progress, Step};
pub use self::csv::CsvOptions;
pub use self::key::LookupKey;
use self::layout::Head;
pub(crate) use self::layout::LAYOUT;
pub use self::read::Found;
pub use self::rows::{COLUMN_NAME_BYTES_MAX, COLUMNS_MAX, ROWS_MAX, Rows};
use self::shared::Inner;
pub use self::strict::CSV_RECORD_BYTES_MAX;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::owned::Owned;
use crate::registry::Pieces;
use crate::timeout;

/// How many bytes of blocks one batch reads.
const BATCH_BYTES: usize = 1024 * 1024;
/// How many one batch of a build writes, or reads back: what servers buffer for it stays with them.
const BUILD_BATCH_BYTES: usize = 128 * 1024;

/// A handle of a packed table: a cheap clone, shared by as many tasks as you like.
///
/// ```
/// # use larder_core::StoreRef;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
/// let csv = "start,end,city,country\n192.0.2.0,192.0.2.127,Toronto,CA\n192.0.2.200,192.0.2.255,Paris,FR\n";
/// let cities = PackedTable::open_or_create(&store, "cities").await?;
/// cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
/// let found = cities.get("192.0.2.201".parse::<LookupKey>()?).await?.expect("a row");
/// assert_eq!(found.fields, ["Paris", "FR"]);
/// assert_eq!(cities.get("192.0.2.199".parse::<LookupKey>()?).await?, None); // between two ranges
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PackedTable(Arc<Inner>);

/// How a packed table is opened and made.
///
/// ```
/// let options = larder_structures::PackedTable::options().block_bytes(4096);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PackedTableOptions {
    block_bytes: Option<usize>,
    timeout: Duration,
}

impl Default for PackedTableOptions {
    fn default() -> PackedTableOptions {
        PackedTableOptions { block_bytes: None, timeout: Duration::from_secs(5) }
    }
}

impl PackedTableOptions {
    /// How large blocks are that this handle builds, in bytes; by the store if not given, some 2,000. Larger ones take less room in all, and more of the network.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// let cities = PackedTable::options().block_bytes(4096).open_or_create(&store, "cities").await?;
    /// cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// assert_eq!(cities.stat().await?.blocks, 1);
    /// # Ok(()) }
    /// ```
    pub fn block_bytes(mut self, bytes: usize) -> PackedTableOptions {
        self.block_bytes = Some(bytes);
        self
    }

    /// How long a call may take; 5 s if not given, a day at the most. A build may take as long for each batch.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let options = PackedTable::options().timeout(std::time::Duration::from_millis(200));
    /// let cities = options.open_or_create(&store, "cities").await?;
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> PackedTableOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// Opens a table that is there, and reads its directory. **Round trips: 3**; 2 where nothing was built yet, one more for each further 1 MiB of directory. Where the directory
    /// is gone or damaged, lookups say so until the table is built anew.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes, a timeout of 0 and blocks of a size that the store's items do not have,
    /// [`Absent`](ErrorKind::Absent) if there is none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure, [`Lost`](ErrorKind::Lost) where the head
    /// is gone, [`Unsupported`](ErrorKind::Unsupported) on a store without conditional writes.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let error = PackedTable::options().open(&store, "cities").await.unwrap_err();
    /// assert_eq!(error.kind(), larder_core::ErrorKind::Absent);
    /// # Ok(()) }
    /// ```
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedTable> {
        self.open_as(store, &Name::new(name)?, false).await
    }

    /// Opens a table, and makes an empty one if there is none. **Round trips: 3** if it is there, 4 to make it.
    ///
    /// # Errors
    /// As [`open`](PackedTableOptions::open), but for `Absent`.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let cities = PackedTable::options().open_or_create(&store, "cities").await?;
    /// assert_eq!(cities.get(LookupKey::from(5)).await?, None); // nothing was built yet
    /// # Ok(()) }
    /// ```
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedTable> {
        self.open_as(store, &Name::new(name)?, true).await
    }

    async fn open_as(self, store: &StoreRef, name: &Name, may_create: bool) -> Result<PackedTable> {
        timeout::check(self.timeout)?;
        let ctx = Ctx::within(self.timeout);
        let profile = store.profile();
        if !profile.cas {
            let detail = format!("packed table {name} needs conditional writes (cas), which this store has not");
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => {
                let new = Manifest::new(Kind::PackedTable, LAYOUT, 1, bytes::Bytes::new());
                // Refuses a store that cannot carry it, before anything is written.
                Inner::new(store, name, new.clone(), self.timeout, self.block_bytes)?;
                let data_of = |new: &Manifest| {
                    let head =
                        Op::put(shared::head_key(name, new)?, PutMode::Add, Head::default().encode(), Ttl::Never);
                    Ok(vec![Batch::from_iter([head])])
                };
                manifest::create(store, ctx, name, new, data_of).await?
            }
            None => return Err(manifest::absent(store, name)),
        };
        manifest.expect(name, Kind::PackedTable, LAYOUT)?;
        let inner = Inner::new(store, name, manifest, self.timeout, self.block_bytes)?;
        if let Err(error) = inner.load(ctx).await {
            // A version whose directory is gone is told of by those who read it; a build takes its place.
            let is_gone = matches!(error.kind(), ErrorKind::Lost | ErrorKind::Corrupt);
            if !is_gone || inner.read_head(ctx).await.is_err() {
                return Err(error);
            }
        }
        Ok(PackedTable(Arc::new(inner)))
    }
}

/// What a packed table has.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let stat = larder_structures::PackedTable::open_or_create(&store, "cities").await?.stat().await?;
/// assert_eq!((stat.version, stat.rows), (None, 0)); // nothing was built yet
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackedTableStat {
    /// The number of the version in force; `None` before the first was built.
    pub version: Option<u32>,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// How many rows there are.
    pub rows: u64,
    /// In how many blocks.
    pub blocks: u32,
    /// What the blocks take, without keys and what the store adds, in bytes.
    pub bytes: u64,
    /// How many versions are being built, or were left by builds that died.
    pub others: usize,
}

impl PackedTable {
    /// Options, to open a table otherwise than by default.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let cities = PackedTable::options().block_bytes(1024).open_or_create(&store, "cities").await?;
    /// # Ok(()) }
    /// ```
    pub fn options() -> PackedTableOptions {
        PackedTableOptions::default()
    }

    /// Opens a table that is there. **Round trips: 3.**
    ///
    /// # Errors
    /// As [`PackedTableOptions::open`].
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// # cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// let reader = PackedTable::open(&store, "cities").await?;
    /// assert_eq!(reader.columns(), ["city"]);
    /// # Ok(()) }
    /// ```
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedTable> {
        PackedTable::options().open(store, name).await
    }

    /// Opens a table, and makes an empty one if there is none. **Round trips: 3**, 4 to make it.
    ///
    /// # Errors
    /// As [`PackedTableOptions::open_or_create`].
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// assert_eq!(cities.stat().await?.rows, 0);
    /// # Ok(()) }
    /// ```
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedTable> {
        PackedTable::options().open_or_create(store, name).await
    }

    /// The row of an address or a number; `None` where no range has it. A table of numbers takes an address for its number. **Round trips: 1**, also to
    /// refuse a number, which the version in force must say; 3 more when another version was built since.
    ///
    /// Algorithm: two binary searches, one in the directory for the block and one in the block; at most 8 rows are decoded.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a number where the table has addresses, [`Lost`](ErrorKind::Lost) where the block, the directory or the head is gone,
    /// [`RolledBack`](ErrorKind::RolledBack) where the version in force is older than one that this handle has seen, or another of its number,
    /// [`Corrupt`](ErrorKind::Corrupt) for a block or a directory that is not as it was written, [`Conflict`](ErrorKind::Conflict) where others build anew all the time, those of the store.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// # cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// let found = cities.get("192.0.2.201".parse::<LookupKey>()?).await?.expect("a row");
    /// assert_eq!(found.fields, ["Paris"]);
    /// assert_eq!(cities.get("192.0.2.199".parse::<LookupKey>()?).await?, None); // between two ranges
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, key: impl Into<LookupKey>) -> Result<Option<Found>> {
        Ok(self.get_many(&[key.into()]).await?.pop().flatten())
    }

    /// The rows of many keys, in their order, all of one version. **Round trips: 1** for every 1 MiB of the blocks that they touch.
    ///
    /// # Errors
    /// As [`get`](PackedTable::get).
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// # cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// let keys = ["192.0.2.1".parse::<LookupKey>()?, "10.0.0.1".parse()?];
    /// let found = cities.get_many(&keys).await?;
    /// assert_eq!(found[0].as_ref().expect("a row").fields, ["Toronto"]);
    /// assert_eq!(found[1], None);
    /// # Ok(()) }
    /// ```
    pub async fn get_many(&self, keys: &[LookupKey]) -> Result<Vec<Option<Found>>> {
        self.0.get_many(keys).await
    }

    /// The names of the columns, of the version that this handle read last. A row that was found before may be of another one: it has [its own](Found::columns).
    /// **Round trips: 0.**
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// # cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// assert_eq!(cities.columns(), ["city"]);
    /// # Ok(()) }
    /// ```
    pub fn columns(&self) -> Vec<String> {
        self.0.loaded().version.as_ref().map(|(_, directory)| directory.columns.to_vec()).unwrap_or_default()
    }

    /// What the version in force has. **Round trips: 1**, 2 when another one was built since.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where the head or the directory is gone, [`RolledBack`](ErrorKind::RolledBack) as of [`get`](PackedTable::get), those of the store.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// # cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// let stat = cities.stat().await?;
    /// assert_eq!((stat.rows, stat.blocks, stat.others), (2, 1, 0));
    /// # Ok(()) }
    /// ```
    pub async fn stat(&self) -> Result<PackedTableStat> {
        let (loaded, head) = self.0.load(self.0.ctx()).await?;
        let others = head.others.len();
        Ok(match &loaded.version {
            None => PackedTableStat { others, ..PackedTableStat::default() },
            Some((version, directory)) => PackedTableStat {
                version: Some(version.number),
                columns: directory.columns.to_vec(),
                rows: directory.rows,
                blocks: version.blocks,
                bytes: directory.bytes,
                others,
            },
        })
    }

    /// Builds a version of these rows and puts it in the place of the one before. **Round trips: 4, and 2 for every 128 KiB** of blocks; 3 more
    /// to remove the version before.
    ///
    /// Dropped midway, the version before stays in force, or the new one is; what is left of the other is removed by the next build. Lookups go on all the time, and see the
    /// one or the other. It takes a Tokio runtime.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), with its number, for a row that does not fit an item of the store; [`Conflict`](ErrorKind::Conflict) where another build has begun
    /// after this one; [`Full`](ErrorKind::Full) where the store has no room; [`Lost`](ErrorKind::Lost) where it forgot meanwhile what it took, and evicts nothing, or where the table was dropped or its head is gone; [`RolledBack`](ErrorKind::RolledBack) as of [`get`](PackedTable::get); those of the store. The
    /// version before is in force then, but for errors with the effect [`Unknown`](larder_core::Effect): after those either may be.
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// let built = cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    /// assert_eq!(built.rows, 2);
    /// # Ok(()) }
    /// ```
    pub async fn build(&self, rows: Rows) -> Result<Built> {
        self.build_told(rows, &mut |_| ()).await
    }

    /// The same, telling how far it is.
    ///
    /// # Errors
    /// As [`build`](PackedTable::build).
    ///
    /// ```
    /// # use larder_structures::lookup::{CsvOptions, LookupKey, PackedTable};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let csv = "start,end,city\n192.0.2.0,192.0.2.127,Toronto\n192.0.2.200,192.0.2.255,Paris\n";
    /// # let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// let mut steps = 0;
    /// cities.build_told(CsvOptions::new().read(csv.as_bytes())?, &mut |_| steps += 1).await?;
    /// assert!(steps > 0);
    /// # Ok(()) }
    /// ```
    pub async fn build_told(&self, rows: Rows, told: &mut (dyn FnMut(Progress) + Send)) -> Result<Built> {
        self.0.build(rows, told).await
    }
}

/// The parameters in words.
pub(crate) fn describe() -> Vec<(&'static str, String)> {
    vec![("kept in", "blocks of packed rows, by versions".to_owned())]
}

/// The keys of all versions that the head lists, and its token: a build that begins or ends meanwhile writes it. One that is under way, and finds no head at its
/// next look, removes what it has written. **Round trips: 1.**
///
/// # Errors
/// Those of the store, and [`ErrorKind::LayoutMismatch`] for a head that this release does not know.
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let want = if store.profile().cas { Want::VALUE | Want::CAS } else { Want::VALUE };
    let reply = store.run_one(ctx, Op::get(shared::head_key(name, manifest)?, want)).await?;
    let Some(item) = reply.into_item() else { return Ok(Pieces::default()) };
    let head = shared::known_head(name, &item.value)?;
    let versions = head.current.iter().chain(&head.others);
    let keys: Result<Vec<Key>> = versions.flat_map(|version| shared::version_keys(name, manifest, version)).collect();
    Ok(Pieces { keys: Owned::items(keys?), tokens: vec![item.cas] })
}
