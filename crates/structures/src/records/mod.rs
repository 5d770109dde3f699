//! Packed records: a few bits for each of many dense ids.
//!
//! A [`Schema`] declares fields of so many bits; record after record they stand without gaps in shards of one size. So ten million users
//! with a place of 9 bits take 11 MB, are counted by place in some ms, and any of them is read or written in a round trip.
//!
//! Source: J. Carlson, "Redis in Action", 2013, section 9.3 (locations of users in strings of two bytes a user, sharded, with the highest id
//! known kept beside them). Here a field takes the bits it needs, shards have a size that allocators keep without waste, a lost
//! shard is told from one that was never written, and the highest id cannot fall behind what was acknowledged.
//!
//! # How it works
//! Record `id` is number `id % n` of shard `id / n`. A shard is made whole, of zeros, when the first of its records is set, and is listed
//! before anything in it is acknowledged (`ledger`); it carries an incarnation that every read and write looks at. So a shard that is
//! listed and missing, or another, is [`Lost`](larder_core::ErrorKind::Lost); one that is not listed reads as zeros.
//!
//! Two layouts of the same bytes, chosen when the records are made and recorded with them:
//!
//! | layout | where | a set is | the highest id |
//! |---|---|---|---|
//! | portable | every store with conditional writes | a read of the shard and a conditional write | stands in its shard, changed by the same write |
//! | native | stores with bit fields and sorted sets (Redis, Valkey) | one command on the bits alone | a sorted set of one member that only grows, in the same batch |
//!
//! # Guarantees, a store
//! | | memory | memcached | Redis, Valkey |
//! |---|---|---|---|
//! | a set that was acknowledged | is read by every get that begins later, until it is set again | the same, until the server evicts or ends | the same |
//! | neighbours in one byte, set at the same time | both stand | both stand | both stand |
//! | fields of one record in one set | change at once | change at once | change at once; over 1,000 of them in parts |
//! | a set whose reply is lost | cannot be | `Unknown`, and never sent again | the same |
//! | a lost shard | only where the store is built to evict | [`Lost`](larder_core::ErrorKind::Lost) for its ids, for good | the same |
//! | highest id | never less than one that was acknowledged | the same | the same; lost with its key, which is `Lost`. Set back alone, by a failover, it is `RolledBack` to handles that were told a higher one; to others it is the highest, and an aggregate leaves out what is above |
//! | set_many | each shard by itself | the same | each shard, and each 1,000 numbers, by itself |
//!
//! An aggregate is no snapshot: each shard is read at one moment, one after the other.
//!
//! # Round trips
//! | of an opened handle | portable | native |
//! |---|---|---|
//! | get | 1 | 1 |
//! | set | 2 | 1 |
//! | get_many, set_many | 1 and 2 for every 2 MiB of the shards they touch | 1 for 64 × 1,024 numbers |
//! | the first set in a shard | 4 more | 4 more |
//! | a get, or get_many, of any shard that was never made: the list tells so, each time | 1 more | 1 more |
//! | the first time a handle meets a shard that others made | 1 more | 1 more |
//! | highest | 2 | 1 |
//! | aggregate | 3, and 1 for every 2 MiB | 2, and 1 for every 2 MiB |
//! | open | 2 | 2 |
//! | open_or_create | 2 if it is there, 4 to make it | the same |
//!
//! # Memory and limits
//! A shard fills one slab class of memcached's (8,880 bytes), one of the allocator's classes in process (64 KiB), and stays just
//! under 256 KiB on Redis: past a power of two an allocator hands out the next class, a quarter larger. There are at most 32,768 shards, so
//! the size of a shard sets the range of ids; [`shard_bytes`](RecordsOptions::shard_bytes) makes it another.

mod aggregate;
mod change;
pub(crate) mod layout;
pub(crate) mod portable;
mod schema;
mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::native::Families;
use larder_core::{Ctx, Durability, Error, ErrorKind, Profile, Result, StoreRef};

use self::aggregate::Tally;
pub use self::aggregate::{Aggregate, GROUPS_MAX, Group};
use self::change::Change;
pub(crate) use self::layout::LAYOUT;
use self::layout::{HEADER_BYTES, Header, Kept, Params};
pub use self::schema::{
    FIELDS_MAX, Field, FieldKind, NAME_BYTES_MAX, RECORD_BITS_MAX, SCHEMA_BYTES_MAX, Schema, SchemaBuilder, Value,
};
use self::shared::Inner;
use crate::ledger::{self, Ledger};
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::registry::Pieces;
use crate::timeout;

/// What the native layout takes of a store.
const NATIVE: Families = Families::BITS.union(Families::SORTED).union(Families::KEYS);
/// The most shards there can be.
pub const SHARDS_MAX: u32 = 32_768;
/// How many bytes of shards one batch reads or writes.
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// A slab class of memcached's default settings that wastes 0.07 % of its pages, and what an item takes of it beside key and value.
const SLAB_BYTES: usize = 8_880;
const SLAB_ITEM_BYTES: usize = 48 + 8 + 1 + 2;
/// Of a class of the memory store: 64 KiB less what allocator and item keep beside key and value.
const PROCESS_BYTES: usize = (64 << 10) - 16 - 32;
/// Just under 256 KiB, as a string of Redis's: less its header, and what the store keeps. A shard is made whole, so the last one is half empty in the mean: larger ones
/// would cost more of ten million small records than their keys save.
const NATIVE_BYTES: usize = (256 << 10) - 64;
/// The largest shard that can be asked for.
const SHARD_BYTES_MAX: usize = 16 << 20;

/// A handle of packed records: a cheap clone, shared by as many tasks as you like.
///
/// ```
/// # use larder_core::StoreRef;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::records::{PackedRecords, Schema, Value};
/// let schema = Schema::parse(["place:CA-ON|US-NY", "visits:u7"])?;
/// let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
/// users.set(7, &[("place", "US-NY".into()), ("visits", 3u64.into())]).await?;
/// assert_eq!(users.get(7).await?[1], Value::Uint(3));
/// assert_eq!(users.highest().await?, Some(7));
/// assert_eq!(users.aggregate(&["place"]).await?.count(&["US-NY".into()]), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PackedRecords(Arc<Inner>);

/// How packed records are opened and made.
///
/// ```
/// let options = larder_structures::PackedRecords::options().shard_bytes(1 << 16);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RecordsOptions {
    schema: Option<Schema>,
    shard_bytes: Option<usize>,
    timeout: Duration,
}

impl Default for RecordsOptions {
    fn default() -> RecordsOptions {
        RecordsOptions { schema: None, shard_bytes: None, timeout: Duration::from_secs(5) }
    }
}

impl RecordsOptions {
    /// What the records hold. Needed to make some; opening some of another schema is a [`LayoutMismatch`](ErrorKind::LayoutMismatch), opening without
    /// saying takes them as they are.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// assert_eq!(users.schema().bits(), 9); // 2 for the place, which may be none, and 7
    /// # Ok(()) }
    /// ```
    pub fn schema(mut self, schema: Schema) -> RecordsOptions {
        self.schema = Some(schema);
        self
    }

    /// How large a shard is made, in bytes; by the store if not given (see [Memory](self#memory-and-limits)). Fixed when the records are made.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// let options = PackedRecords::options().schema(schema).shard_bytes(4096);
    /// let users = options.open_or_create(&store, "users").await?;
    /// users.set(100_000, &[("visits", 1u64.into())]).await?; // shards in between are not made
    /// # Ok(()) }
    /// ```
    pub fn shard_bytes(mut self, bytes: usize) -> RecordsOptions {
        self.shard_bytes = Some(bytes);
        self
    }

    /// How long a call may take, with all it tries again; 5 s if not given, a day at the most. An aggregate may take as long for each block.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// let options = PackedRecords::options().timeout(std::time::Duration::from_millis(200));
    /// assert!(options.schema(schema).open_or_create(&store, "users").await.is_ok());
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> RecordsOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// Opens records that are there. **Round trips: 2.**
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes and for a timeout of 0, [`Absent`](ErrorKind::Absent) if there are none,
    /// [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure, another schema or another size of shards, [`Lost`](ErrorKind::Lost) where
    /// the list of the shards is gone, [`Unsupported`](ErrorKind::Unsupported) on a store without conditional writes.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// let other = Schema::parse(["paid:bit"])?;
    /// let error = PackedRecords::options().schema(other).open(&store, "users").await.unwrap_err();
    /// assert_eq!(error.kind(), larder_core::ErrorKind::LayoutMismatch);
    /// # Ok(()) }
    /// ```
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedRecords> {
        self.open_as(store, &Name::new(name)?, false).await
    }

    /// Opens records, and makes them if there are none. **Round trips: 2**, 4 if they are made.
    ///
    /// # Errors
    /// As [`open`](RecordsOptions::open), but for `Absent`; [`BadInput`](ErrorKind::BadInput) without a schema, where they must be made, and for a size of
    /// shards out of range.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// assert_eq!(users.highest().await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedRecords> {
        self.open_as(store, &Name::new(name)?, true).await
    }

    async fn open_as(self, store: &StoreRef, name: &Name, may_create: bool) -> Result<PackedRecords> {
        timeout::check(self.timeout)?;
        let ctx = Ctx::within(self.timeout);
        let profile = store.profile();
        if !profile.cas {
            let detail = format!("records {name} need conditional writes (cas), which this store has not");
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => self.create(store, ctx, name).await?,
            None => return Err(manifest::absent(store, name)),
        };
        let params = self.check(name, &manifest, &profile)?;
        let inner = Inner::new(store, name, manifest, params, self.timeout)?;
        inner.look(inner.deadline()).await?;
        Ok(PackedRecords(Arc::new(inner)))
    }

    async fn create(&self, store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Manifest> {
        let profile = store.profile();
        let schema = self.schema.clone().ok_or_else(|| {
            let detail = format!("there are no records {name}, and to make some it takes a schema");
            Error::new(ErrorKind::BadInput, detail)
        })?;
        let natively = profile.natives.contains(NATIVE);
        let kept = if natively { Kept::Native } else { Kept::Portable };
        let probe = Manifest::new(Kind::Records, LAYOUT, Ledger::SHARDS, bytes::Bytes::new());
        let key_bytes = shared::data_key(name, &probe, SHARDS_MAX - 1)?.as_bytes().len();
        let shard_bytes = self.shard_bytes_for(&profile, kept, key_bytes, schema.bits())?;
        let params = Params { kept, per_shard: layout::per_shard(shard_bytes, schema.bits()), schema };
        let new = Manifest::new(Kind::Records, LAYOUT, Ledger::SHARDS, params.encode());
        // Refuses a store that cannot carry it, before anything is written.
        Inner::new(store, name, new.clone(), params, self.timeout)?;
        let data_of = |new: &Manifest| {
            let mut data = Ledger::create_ops(name, new)?;
            if natively {
                data.push(shared::make_highest_op(name, new)?);
            }
            Ok(vec![data])
        };
        manifest::create(store, ctx, name, new, data_of).await
    }

    /// How large shards are made.
    fn shard_bytes_for(&self, profile: &Profile, kept: Kept, key_bytes: usize, record_bits: usize) -> Result<usize> {
        let least = HEADER_BYTES + record_bits.div_ceil(8);
        let max = match kept {
            Kept::Native => SHARD_BYTES_MAX,
            Kept::Portable => profile.value_bytes_max(key_bytes).min(SHARD_BYTES_MAX),
        };
        if let Some(asked) = self.shard_bytes {
            if !(least..=max).contains(&asked) {
                let detail = format!("a shard of {asked} bytes; for these records it takes {least} to {max}");
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
            return Ok(asked);
        }
        let fitting = match (kept, profile.durability) {
            (Kept::Native, _) => NATIVE_BYTES,
            (Kept::Portable, Durability::Process) => PROCESS_BYTES.saturating_sub(key_bytes),
            (Kept::Portable, _) => SLAB_BYTES.saturating_sub(SLAB_ITEM_BYTES + key_bytes),
        };
        Ok(fitting.max(least).min(max.max(least)))
    }

    /// Fails unless the manifest is of records that this release reads, as the options want them.
    fn check(&self, name: &Name, manifest: &Manifest, profile: &Profile) -> Result<Params> {
        manifest.expect(name, Kind::Records, LAYOUT)?;
        let mismatch = |detail: String| Err(Error::new(ErrorKind::LayoutMismatch, detail));
        let Some(params) = Params::decode(&manifest.params) else {
            return mismatch(format!("{name} packs its records in a way this release does not know"));
        };
        if let Some(schema) = self.schema.as_ref().filter(|schema| **schema != params.schema) {
            let difference = params.schema.difference(schema);
            return mismatch(format!("{name} holds records of {}, not of {schema}: {difference}", params.schema));
        }
        let per_shard = self.shard_bytes.map(|bytes| layout::per_shard(bytes, params.schema.bits()));
        if let Some(asked) = per_shard.filter(|asked| *asked != params.per_shard) {
            return mismatch(format!("{name} has {} records in a shard, not {asked}", params.per_shard));
        }
        if params.kept == Kept::Native && !profile.natives.contains(NATIVE) {
            let detail = format!("{name} holds records in bit fields, which this store has not");
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        Ok(params)
    }
}

/// The parameters in words; `None` for those of another release.
pub(crate) fn describe(manifest: &Manifest) -> Option<Vec<(&'static str, String)>> {
    let params = Params::decode(&manifest.params)?;
    let kept = match params.kept {
        Kept::Portable => "items under conditional writes",
        Kept::Native => "native bit fields",
    };
    Some(vec![
        ("fields", params.schema.to_string()),
        ("bits a record", params.schema.bits().to_string()),
        ("records a shard", params.per_shard.to_string()),
        ("bytes a shard", params.shard_bytes().to_string()),
        ("kept in", kept.to_owned()),
    ])
}

/// True if its pieces are no items.
pub(crate) fn is_native(manifest: &Manifest) -> bool {
    Params::decode(&manifest.params).is_some_and(|params| params.kept == Kept::Native)
}

/// The keys of the shards that the ledger lists, and of the highest id; and the ledger's token. **Round trips: 1.**
///
/// # Errors
/// Those of the store, and [`ErrorKind::LayoutMismatch`].
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let is_native = is_native(manifest);
    let mut shards: BTreeMap<u32, Vec<bytes::Bytes>> = BTreeMap::new();
    let (listed, cas) = ledger::pieces_and_token(store, ctx, name, manifest).await?;
    for piece in listed {
        if let Ok(shard) = u32::try_from(piece.number) {
            shards.entry(shard).or_default().push(Header::mark(shard, piece.incarnation));
        }
    }
    let mut all = Vec::with_capacity(shards.len() + 1);
    for (shard, marks) in shards {
        all.push(shared::owned_shard(name, manifest, is_native, shard, marks)?);
    }
    if is_native {
        all.push(shared::highest(name, manifest)?);
    }
    Ok(Pieces { keys: all, tokens: vec![cas] })
}

impl PackedRecords {
    /// Options, to open records otherwise than by default, and to make some.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// # Ok(()) }
    /// ```
    pub fn options() -> RecordsOptions {
        RecordsOptions::default()
    }

    /// Opens records that are there, whatever their schema. **Round trips: 2.**
    ///
    /// # Errors
    /// As [`RecordsOptions::open`].
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let error = PackedRecords::open(&store, "users").await.unwrap_err();
    /// assert_eq!(error.kind(), larder_core::ErrorKind::Absent);
    /// # Ok(()) }
    /// ```
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<PackedRecords> {
        PackedRecords::options().open(store, name).await
    }

    /// What the records hold.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// assert_eq!(users.schema().fields()[1].name(), "visits");
    /// # Ok(()) }
    /// ```
    pub fn schema(&self) -> &Schema {
        &self.0.params.schema
    }

    /// The highest id that can be set.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// assert!(users.id_max() > 1_000_000_000);
    /// assert!(users.get(users.id_max() + 1).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn id_max(&self) -> u64 {
        u64::from(SHARDS_MAX) * u64::from(self.0.params.per_shard) - 1
    }

    /// Sets fields of a record; those that are not named stay as they are. **Round trips: 1** where the store has bit fields, else 2; see the
    /// [module](self#round-trips).
    ///
    /// Dropped midway, it has taken effect or not.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for an id out of range, a field that there is not and a value that does not fit: nothing is written then.
    /// [`Lost`](ErrorKind::Lost) where the record's shard is gone, or the list of shards: one that was made for the record is then removed, in 1 more. [`Conflict`](ErrorKind::Conflict) where others kept writing to the shard. Those of
    /// the store; with [`Effect::Unknown`](larder_core::Effect) it may have taken effect, or may yet.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// users.set(7, &[("place", "US".into()), ("visits", 3u64.into())]).await?;
    /// users.set(7, &[("visits", 4u64.into())]).await?; // the place stays
    /// assert_eq!(users.get(7).await?, ["US".into(), Value::Uint(4)]);
    /// assert!(users.set(7, &[("visits", 128u64.into())]).await.is_err()); // too wide for 7 bits
    /// # Ok(()) }
    /// ```
    pub async fn set(&self, id: u64, fields: &[(&str, Value)]) -> Result<()> {
        self.set_many([(id, fields)]).await
    }

    /// Sets fields of many records. Of one that is given twice the last counts. **Round trips**: as one [`set`](PackedRecords::set) while
    /// they touch 2 MiB of shards, or 65,536 numbers where the store has bit fields.
    ///
    /// # Errors
    /// As [`set`](PackedRecords::set). Everything is checked before anything is written; after another error some may be set, which the
    /// effect `Unknown` says.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// let place = [("place", Value::from("CA"))];
    /// users.set_many((0..100).map(|id| (id, &place[..]))).await?;
    /// assert_eq!(users.highest().await?, Some(99));
    /// # Ok(()) }
    /// ```
    pub async fn set_many<'a>(&self, records: impl IntoIterator<Item = (u64, &'a [(&'a str, Value)])>) -> Result<()> {
        let params = &self.0.params;
        let mut todo: BTreeMap<u32, Change> = BTreeMap::new();
        for (id, fields) in records {
            let (shard, position) = self.0.place(id)?;
            let change = todo.entry(shard).or_default();
            change.known = change.known.max(position + 1);
            let first = params.first_bit(position);
            for (name, value) in fields {
                let field = &params.schema.fields()[params.schema.position(name)?];
                let pieces = field.pieces(value)?;
                change
                    .pieces
                    .extend(pieces.into_iter().map(|bits| layout::Bits { offset: first + bits.offset, ..bits }));
            }
        }
        self.0.change(todo).await
    }

    /// A record: the values of all fields, in their order; of one that was never set, zeros. **Round trips: 1**, 2 where nothing was
    /// set yet in its whole shard: that it was never made, and is not lost, the list tells.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for an id out of range, [`Lost`](ErrorKind::Lost) where its shard is gone, those of the store.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// assert_eq!(users.get(7).await?, [Value::Choice(None), Value::Uint(0)]); // it was never set
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, id: u64) -> Result<Vec<Value>> {
        Ok(self.get_many(&[id]).await?.pop().unwrap_or_default())
    }

    /// Records, in the order of the ids. **Round trips**: as one [`get`](PackedRecords::get) while they touch 2 MiB of shards, or 65,536
    /// numbers where the store has bit fields, and 1 for each further as many; 1 more for all the shards together that were never made.
    ///
    /// # Errors
    /// As [`get`](PackedRecords::get).
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// users.set(2, &[("visits", 9u64.into())]).await?;
    /// let records = users.get_many(&[2, 1]).await?;
    /// assert_eq!((&records[0][1], &records[1][1]), (&Value::Uint(9), &Value::Uint(0)));
    /// # Ok(()) }
    /// ```
    pub async fn get_many(&self, ids: &[u64]) -> Result<Vec<Vec<Value>>> {
        let fields = self.schema().fields();
        let parts: Vec<_> = fields.iter().flat_map(Field::parts).collect();
        let counts: Vec<usize> = fields.iter().map(|field| field.parts().len()).collect();
        let record = |numbers: Vec<u64>| {
            let mut rest = &numbers[..];
            let mut values = Vec::with_capacity(fields.len());
            for (field, &count) in fields.iter().zip(&counts) {
                let (own, others) = rest.split_at_checked(count).unwrap_or((rest, &[]));
                rest = others;
                values.push(field.value(own)?);
            }
            Ok(values)
        };
        self.0.read(ids, &parts).await?.into_iter().map(record).collect()
    }

    /// The highest id that was set; `None` if none was. Never less than one whose set was acknowledged before. **Round trips: 1** where the
    /// store has bit fields, else 2.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where it, or the shard that tells it, is gone; [`RolledBack`](ErrorKind::RolledBack) where this handle was told a higher one, in the native layout; those of the store.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// users.set(41, &[("visits", 1u64.into())]).await?;
    /// users.set(12, &[("visits", 1u64.into())]).await?;
    /// assert_eq!(users.highest().await?, Some(41));
    /// # Ok(()) }
    /// ```
    pub async fn highest(&self) -> Result<Option<u64>> {
        let end = self.0.end().await?;
        self.0.vigil().check()?;
        Ok(end.checked_sub(1))
    }

    /// How many of all records, from id 0 to the highest, have which values in these fields. Without a field it counts them. **Round trips: 3**,
    /// and 1 for every 2 MiB; the next block is read while one is counted.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a field that there is not, and for more than [`GROUPS_MAX`] groups; [`Lost`](ErrorKind::Lost) where a shard is gone; [`RolledBack`](ErrorKind::RolledBack) as of [`highest`](PackedRecords::highest); those of the store.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// users.set(0, &[("place", "CA".into())]).await?;
    /// users.set(2, &[("place", "CA".into())]).await?;
    /// let places = users.aggregate(&["place"]).await?;
    /// assert_eq!((places.count(&["CA".into()]), places.records), (2, 3)); // 1 was never set, and has no place
    /// # Ok(()) }
    /// ```
    pub async fn aggregate(&self, fields: &[&str]) -> Result<Aggregate> {
        self.aggregate_told(fields, &mut |_, _| ()).await
    }

    /// The same, telling how many records of how many were counted.
    ///
    /// # Errors
    /// As [`aggregate`](PackedRecords::aggregate).
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// users.set(9, &[("place", "CA".into())]).await?;
    /// let mut last = (0, 0);
    /// users.aggregate_told(&["place"], &mut |counted, of| last = (counted, of)).await?;
    /// assert_eq!(last, (10, 10));
    /// # Ok(()) }
    /// ```
    pub async fn aggregate_told(&self, fields: &[&str], told: &mut (dyn FnMut(u64, u64) + Send)) -> Result<Aggregate> {
        self.0.aggregate(Tally::new(self.schema(), fields)?, told).await
    }

    /// How many of the records of these ids have which values in these fields; an id that is given twice counts twice. **Round trips**: as a
    /// [`get_many`](PackedRecords::get_many) for every 1,000, also where shards were never made.
    ///
    /// # Errors
    /// As [`aggregate`](PackedRecords::aggregate), and [`BadInput`](ErrorKind::BadInput) for an id out of range.
    ///
    /// ```
    /// # use larder_structures::records::{PackedRecords, Schema, Value};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let schema = Schema::parse(["place:CA|US", "visits:u7"])?;
    /// # let users = PackedRecords::options().schema(schema).open_or_create(&store, "users").await?;
    /// users.set(4, &[("place", "CA".into())]).await?;
    /// let places = users.aggregate_ids(&["place"], &[4, 5]).await?;
    /// assert_eq!((places.count(&["CA".into()]), places.records), (1, 2));
    /// # Ok(()) }
    /// ```
    pub async fn aggregate_ids(&self, fields: &[&str], ids: &[u64]) -> Result<Aggregate> {
        self.0.aggregate_ids(Tally::new(self.schema(), fields)?, ids).await
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod layout_tests;

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
