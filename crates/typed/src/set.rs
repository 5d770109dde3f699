//! A set of typed members.

use std::borrow::Borrow;

use larder_core::Result;

use crate::undecoded::{all_encoded, decoded, encoded};
use crate::{Codec, typed};

typed! {
    /// A [`Set`](larder_structures::Set) of members of a type: a cheap clone.
    ///
    /// Members are the same if their bytes are: the encoding must be canonical, see [`Codec`].
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// use larder_typed::TypedSet;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags: TypedSet<(u16, String)> = TypedSet::new(Set::open_or_create(&store, "tags").await?);
    /// tags.add([(1, "red".to_owned()), (2, "green".to_owned())]).await?;
    /// assert!(tags.has(&(1, "red".to_owned())).await?);
    /// # Ok(())
    /// # }
    /// ```
    TypedSet of Set
}

impl<T, C: Codec<T>> TypedSet<T, C> {
    /// Adds members. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// use larder_typed::TypedSet;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags: TypedSet<(u16, String)> = TypedSet::new(Set::open_or_create(&store, "tags").await?);
    /// tags.add([&(1, "red".to_owned())]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a member that the codec cannot write; else as [`Set::add`](larder_structures::Set::add).
    pub async fn add(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<()> {
        self.raw.add(all_encoded::<T, C>("a member", members)?).await
    }

    /// Removes members. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// use larder_typed::TypedSet;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags: TypedSet<(u16, String)> = TypedSet::new(Set::open_or_create(&store, "tags").await?);
    /// tags.remove([(1, "red".to_owned())]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`add`](TypedSet::add).
    pub async fn remove(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<()> {
        self.raw.remove(all_encoded::<T, C>("a member", members)?).await
    }

    /// True if this is a member. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// use larder_typed::TypedSet;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags: TypedSet<(u16, String)> = TypedSet::new(Set::open_or_create(&store, "tags").await?);
    /// assert!(!tags.has(&(1, "red".to_owned())).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`add`](TypedSet::add).
    pub async fn has(&self, member: &T) -> Result<bool> {
        self.raw.has(encoded::<T, C>("a member", member)?).await
    }

    /// All members, in no order. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// use larder_typed::TypedSet;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags: TypedSet<(u16, String)> = TypedSet::new(Set::open_or_create(&store, "tags").await?);
    /// assert!(tags.members().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for the first member that is none of the type, see [`Undecoded`](crate::Undecoded); else as
    /// [`Set::members`](larder_structures::Set::members).
    pub async fn members(&self) -> Result<Vec<T>> {
        self.each().await?.into_iter().collect()
    }

    /// All members, each by itself: those that are none of the type do not hide the others. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// use larder_typed::TypedSet;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags: TypedSet<(u16, String)> = TypedSet::new(Set::open_or_create(&store, "tags").await?);
    /// let readable: Vec<_> = tags.each().await?.into_iter().filter_map(Result::ok).collect();
    /// # _ = readable;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Set::members`](larder_structures::Set::members); within, as [`members`](TypedSet::members).
    pub async fn each(&self) -> Result<Vec<Result<T>>> {
        let members = self.raw.members().await?;
        Ok(members.into_iter().map(|member| decoded::<T, C>("a member", member)).collect())
    }
}
