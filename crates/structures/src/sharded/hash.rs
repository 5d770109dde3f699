//! The sharded hash.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Error, ErrorKind, Result};

use super::core::Core;
use super::write::Change;

/// A handle of a sharded hash, values by fields: a cheap clone, shared by as many tasks as you like. See the [module](super).
///
/// ```
/// # use larder_core::StoreRef;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::ShardedHash;
/// let cities = ShardedHash::open_or_create(&store, "cities").await?;
/// assert_eq!(cities.set([("17", "Lund"), ("18", "Umeå")]).await?, [true, true]);
/// assert_eq!(cities.get("17").await?.as_deref(), Some(&b"Lund"[..]));
/// assert_eq!(cities.remove(["17", "99"]).await?, [true, false]);
/// assert_eq!(cities.len().await?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ShardedHash(pub(super) Arc<Core>);

super::common!(
    ShardedHash,
    ShardedHash,
    "# #[tokio::main(flavor = \"current_thread\")] async fn main() -> larder_core::Result<()> {
# let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
use larder_structures::ShardedHash;
let cities = ShardedHash::open_or_create(&store, \"cities\").await?;
cities.set([(\"17\", \"Lund\")]).await?;
cities.reshard(200).await?;
assert_eq!((cities.shards(), cities.len().await?), (200, 1));
# Ok(()) }"
);

impl ShardedHash {
    /// Sets fields; for each, in their order, true if it is new. **Round trips: 1** natively, else 2.
    ///
    /// Those of one shard are set at once, the shards each by itself.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a field or a value that is too long, and for a field that is no number of the range where they are dense; nothing was set then.
    /// [`Full`](ErrorKind::Full) where a shard takes no more, until it is resharded; [`Lost`](ErrorKind::Lost) for a shard that is gone; those of the store.
    /// With [`Unknown`](larder_core::Effect::Unknown) some of them may have been set.
    pub async fn set(
        &self,
        entries: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
    ) -> Result<Vec<bool>> {
        let max = self.0.value_bytes_max()?;
        let (mut names, mut changes) = (Vec::new(), Vec::new());
        for (field, value) in entries {
            let value = value.as_ref();
            if value.len() > max {
                let detail = format!("a value has {} bytes; the limit here is {max}", value.len());
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
            names.push(Bytes::copy_from_slice(field.as_ref()));
            changes.push(Change::Put(Bytes::copy_from_slice(value)));
        }
        self.0.change(&names, &changes).await
    }

    /// The value of a field, if there is one. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`get_many`](ShardedHash::get_many).
    pub async fn get(&self, field: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        Ok(self.get_many([field]).await?.pop().flatten())
    }

    /// The values of fields, in their order. **Round trips: 1**, 1 more for each further 1,024 shards they stand in (256 where shards are items).
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a field that is too long, or no number of the range where they are dense; [`Lost`](ErrorKind::Lost) for a shard that is gone; those of
    /// the store.
    pub async fn get_many(&self, fields: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Option<Bytes>>> {
        let names: Vec<Bytes> = fields.into_iter().map(|field| Bytes::copy_from_slice(field.as_ref())).collect();
        self.0.get(&names).await
    }

    /// Removes fields; for each, in their order, true if it was there. **Round trips: 1** natively, else 2 (1 where none was there).
    ///
    /// # Errors
    /// As [`set`](ShardedHash::set).
    pub async fn remove(&self, fields: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<bool>> {
        let names: Vec<Bytes> = fields.into_iter().map(|field| Bytes::copy_from_slice(field.as_ref())).collect();
        let changes = vec![Change::Remove; names.len()];
        self.0.change(&names, &changes).await
    }

    /// All fields and their values, in no order. No snapshot: each shard is read at one moment. **Round trips: 1** for every 128 shards.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where a shard is gone, and those of the store.
    pub async fn entries(&self) -> Result<Vec<(Bytes, Bytes)>> {
        Ok(self.0.sweep(true).await?.elements)
    }
}
