//! The sharded set.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::Result;

use super::core::Core;
use super::write::Change;

/// A handle of a sharded set: a cheap clone, shared by as many tasks as you like. See the [module](super).
///
/// Unlike a [`Set`](crate::Set) it tells who is new, and takes as many members as there is room for; a `Set` adds in one round trip on every store.
///
/// ```
/// # use larder_core::StoreRef;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::ShardedSet;
/// let seen = ShardedSet::open_or_create(&store, "seen").await?;
/// assert_eq!(seen.add(["a", "b", "a"]).await?, [true, true, false]);
/// assert!(seen.has("a").await?);
/// assert_eq!(seen.remove(["a"]).await?, [true]);
/// assert_eq!(seen.members().await?, ["b"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ShardedSet(pub(super) Arc<Core>);

super::common!(
    ShardedSet,
    ShardedSet,
    "# #[tokio::main(flavor = \"current_thread\")] async fn main() -> larder_core::Result<()> {
# let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
use larder_structures::ShardedSet;
let seen = ShardedSet::open_or_create(&store, \"seen\").await?;
seen.add([\"a\"]).await?;
seen.reshard(200).await?;
assert_eq!((seen.shards(), seen.len().await?), (200, 1));
# Ok(()) }"
);

impl ShardedSet {
    /// Adds members; for each, in their order, true if it is new: of several that add one at once, one is told so. **Round trips: 1** natively, else 2 (1 where none is new).
    ///
    /// Those of one shard are added at once, the shards each by itself.
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a member of more than 65,535 bytes, or that is no number of the range where they are dense; nothing was added then. [`Full`](larder_core::ErrorKind::Full) where a shard takes no more, until it is
    /// resharded; [`Lost`](larder_core::ErrorKind::Lost) for a shard that is gone; those of the store. With [`Unknown`](larder_core::Effect::Unknown) some may have been added: to add them
    /// again does no harm, but who is new is not told then.
    pub async fn add(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<bool>> {
        let names: Vec<Bytes> = members.into_iter().map(|member| Bytes::copy_from_slice(member.as_ref())).collect();
        let changes = vec![Change::Put(Bytes::new()); names.len()];
        self.0.change(&names, &changes).await
    }

    /// Removes members; for each, in their order, true if it was there. **Round trips: 1** natively, else 2 (1 where none was there).
    ///
    /// # Errors
    /// As [`add`](ShardedSet::add).
    pub async fn remove(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<bool>> {
        let names: Vec<Bytes> = members.into_iter().map(|member| Bytes::copy_from_slice(member.as_ref())).collect();
        let changes = vec![Change::Remove; names.len()];
        self.0.change(&names, &changes).await
    }

    /// True if this is a member. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`has_many`](ShardedSet::has_many).
    pub async fn has(&self, member: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.has_many([member]).await?.first() == Some(&true))
    }

    /// Which of these are members. **Round trips: 1**, 1 more for each further 1,024 shards they stand in (256 where shards are items).
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for one of more than 65,535 bytes, or that is no number of the range where they are dense; [`Lost`](larder_core::ErrorKind::Lost) for a shard that is gone; those of the store.
    pub async fn has_many(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<bool>> {
        let names: Vec<Bytes> = members.into_iter().map(|member| Bytes::copy_from_slice(member.as_ref())).collect();
        Ok(self.0.get(&names).await?.into_iter().map(|found| found.is_some()).collect())
    }

    /// All members, in no order. No snapshot: each shard is read at one moment. **Round trips: 1** for every 128 shards.
    ///
    /// # Errors
    /// [`Lost`](larder_core::ErrorKind::Lost) where a shard is gone, and those of the store.
    pub async fn members(&self) -> Result<Vec<Bytes>> {
        Ok(self.0.sweep(true).await?.elements.into_iter().map(|(member, _)| member).collect())
    }
}
