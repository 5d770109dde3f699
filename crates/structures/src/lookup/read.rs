//! Looking up: the directory tells the block, one read brings it.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Batch, Ctx, Error, ErrorKind, Op, Result, Want};

use super::BATCH_BYTES;
use super::block::Block;
use super::build::is_passing;
use super::key::{Family, LookupKey};
use super::layout::{Directory, Spot, Version};
use super::shared::{Inner, Loaded};

/// How often a lookup begins anew because another version was built meanwhile.
const ROUNDS_MAX: usize = 16;

/// The row of a key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # use larder_structures::lookup::{LookupKey, PackedTable, Rows};
/// let mut rows = Rows::new(["country"])?;
/// rows.push_network("192.0.2.0/24", ["CA"])?;
/// let countries = PackedTable::open_or_create(&store, "countries").await?;
/// countries.build(rows).await?;
/// let found = countries.get("192.0.2.9".parse::<LookupKey>()?).await?.expect("in the network");
/// assert_eq!((found.first.to_string(), found.last.to_string()), ("192.0.2.0".into(), "192.0.2.255".into()));
/// assert_eq!((&found.columns[..], &found.fields[..]), (&["country".to_owned()][..], &["CA".into()][..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The first key of the row's range.
    pub first: LookupKey,
    /// The last one.
    pub last: LookupKey,
    /// The row's fields, in the order of its columns.
    pub fields: Vec<Bytes>,
    /// The names of its columns. All rows of a version share them; another version may have others.
    pub columns: Arc<[String]>,
}

impl Found {
    /// The field of a column, whatever its place is in the row's version; `None` where that has no such column.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # use larder_structures::lookup::{CsvOptions, PackedTable};
    /// let cities = PackedTable::open_or_create(&store, "cities").await?;
    /// for csv in ["id,country,city\n7,CA,Toronto\n", "id,region,country\n7,Ontario,CA\n"] {
    ///     cities.build(CsvOptions::new().read(csv.as_bytes())?).await?;
    ///     let found = cities.get(7u64).await?.expect("a row");
    ///     assert_eq!(found.field("country").expect("a column"), "CA");
    ///     assert_eq!(found.field("street"), None);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn field(&self, column: &str) -> Option<&Bytes> {
        self.fields.get(self.columns.iter().position(|name| name == column)?)
    }
}

/// What came of asking one version.
enum Tried {
    /// The rows, and of which version they are.
    Found(Vec<Option<Found>>),
    /// This block is not there.
    Missing(Spot),
    /// This key is a number, and the table is of addresses.
    Unfit(LookupKey),
    /// Another version is in force.
    Another,
}

/// What is looked for, a piece a block: none of them is empty.
fn by_block(wanted: &[(usize, Spot)]) -> impl Iterator<Item = &[(usize, Spot)]> {
    wanted.chunk_by(|(_, one), (_, next)| one.block == next.block)
}

/// How much of it, from the front on, is in so many blocks.
fn of_blocks(wanted: &[(usize, Spot)], most: usize) -> usize {
    by_block(wanted).take(most).map(<[_]>::len).sum()
}

/// True for a number where the table has addresses.
fn is_unfit(directory: &Directory, key: &LookupKey) -> bool {
    key.family() == Family::Number && !directory.has_numbers() && !directory.sections.is_empty()
}

impl Inner {
    /// The rows of keys, all of one version.
    pub(super) async fn get_many(&self, keys: &[LookupKey]) -> Result<Vec<Option<Found>>> {
        self.vigil.check()?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let ctx = self.ctx();
        let mut loaded = self.loaded();
        for _ in 0..ROUNDS_MAX {
            let tried = self.try_get(ctx, &loaded, keys).await?;
            self.vigil.check()?;
            if let Tried::Found(found) = tried {
                return Ok(found);
            }
            let (now, _) = self.load(ctx).await?;
            let is_in_force = now.is(loaded.known());
            match tried {
                // The blocks of a version go when another one is in force: while this one is, nobody removes them.
                Tried::Missing(spot) if is_in_force => return Err(self.lost(&spot)),
                Tried::Unfit(key) if is_in_force => return Err(self.unfit(&key)),
                _ => loaded = now,
            }
        }
        let detail = format!("packed table {} was built anew each of the {ROUNDS_MAX} times it was read", self.name);
        Err(Error::new(ErrorKind::Conflict, detail))
    }

    async fn try_get(&self, ctx: Ctx, loaded: &Loaded, keys: &[LookupKey]) -> Result<Tried> {
        let mut found = vec![None; keys.len()];
        // The keys that have a block, by block.
        let mut wanted: Vec<(usize, Spot)> = Vec::with_capacity(keys.len());
        let directory = loaded.version.as_ref().map(|(_, directory)| directory);
        // It may be of numbers since.
        if let Some(key) = directory.and_then(|directory| keys.iter().find(|key| is_unfit(directory, key))) {
            return Ok(Tried::Unfit(*key));
        }
        let (mut looks, mut must_know) = (self.is_look_due(), false);
        for (at, key) in keys.iter().enumerate() {
            match directory.and_then(|directory| directory.spot(key)) {
                Some(spot) => wanted.push((at, spot)),
                // That no row has it, the version in force must say.
                None => (looks, must_know) = (true, true),
            }
        }
        wanted.sort_unstable_by_key(|(at, spot)| (spot.block, *at));
        let most = self.ops_a_batch(BATCH_BYTES, self.sizes.block);
        let mut rest = &wanted[..];
        loop {
            let (some, behind) = rest.split_at(of_blocks(rest, most));
            rest = behind;
            if some.is_empty() && !looks {
                return Ok(Tried::Found(found));
            }
            let mut batch = Batch::new();
            if let Some((version, _)) = &loaded.version {
                for spots in by_block(some) {
                    batch.push(Op::get(self.block_key(version, spots[0].1.block)?, Want::VALUE));
                }
            }
            if looks {
                batch.push(self.head_op()?);
            }
            let mut replies = self.vigil.run(ctx, batch).await;
            if std::mem::take(&mut looks) {
                match replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply())) {
                    // What was in force when it was read last is better than nothing; the next look is due as ever.
                    Err(error) if is_passing(&error) && !must_know => {}
                    reply => {
                        let (head, _) = self.head(reply?, loaded.known())?;
                        if !loaded.is(head.current) {
                            return Ok(Tried::Another);
                        }
                    }
                }
            }
            let Some((version, directory)) = &loaded.version else { return Ok(Tried::Found(found)) };
            for (spots, reply) in by_block(some).zip(replies) {
                let Some(item) = reply?.into_item() else { return Ok(Tried::Missing(spots[0].1)) };
                for (at, spot) in spots {
                    found[*at] = self.row(&item.value, version, directory, spot)?;
                }
            }
        }
    }

    /// The row that a block has of a key.
    fn row(&self, bytes: &[u8], version: &Version, directory: &Directory, spot: &Spot) -> Result<Option<Found>> {
        let number = spot.block;
        let damaged = || {
            let detail =
                format!("block {number} of version {} of packed table {} is damaged", version.number, self.name);
            self.loss(Error::new(ErrorKind::Corrupt, detail))
        };
        let block = Block::parse(bytes, version.build, number, spot.first).ok_or_else(damaged)?;
        let hit = block.find(spot.key);
        let Some(row) = hit.row else { return Ok(None) };
        let last = hit.end.map_or(spot.last, |end| end - 1);
        let fields = block.row(row, &directory.decoder).ok_or_else(damaged)?;
        let (first, last) = (spot.family.key(hit.first), spot.family.key(last));
        Ok(Some(Found { first, last, fields, columns: directory.columns.clone() }))
    }

    /// The error for a number where the table has addresses.
    fn unfit(&self, key: &LookupKey) -> Error {
        let detail = format!("packed table {} is of addresses, and {key} is a number", self.name);
        Error::new(ErrorKind::BadInput, detail)
    }

    fn lost(&self, spot: &Spot) -> Error {
        let (first, last) = (spot.family.key(spot.first), spot.family.key(spot.last));
        let detail = format!("packed table {} has lost block {}: {first} to {last}", self.name, spot.block);
        self.loss(Error::new(ErrorKind::Lost, detail))
    }
}
