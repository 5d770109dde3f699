//! A cache of typed values.

use std::future::Future;

use larder_core::text::Shown;
use larder_core::{Error, Result};
use larder_structures::cache::{Cached, Lookup, Source};

use crate::undecoded::{decoded, encoded};
use crate::{Codec, typed};

typed! {
    /// A [`Cache`](larder_structures::Cache) of values of a type: a cheap clone.
    ///
    /// Values are never compared, so any codec will do. A value that was cached by a release whose type was another is an error, which
    /// [`invalidate`](larder_structures::Cache::invalidate) mends; postcard may also take it for a value of today's type: give the cache another name when the type changes.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// use larder_typed::TypedCache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let rates: TypedCache<(u32, u8)> = TypedCache::new(Cache::open_or_create(&store, "rates").await?);
    /// let rate = rates.get_or_rebuild("EUR", async || Ok::<_, larder_core::Error>((10_859, 4))).await?;
    /// assert_eq!(rate.value, (10_859, 4));
    /// # Ok(())
    /// # }
    /// ```
    TypedCache of Cache
}

/// A value, and how it was come by.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Cache;
/// use larder_typed::TypedCache;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let rates: TypedCache<(u32, u8)> = TypedCache::new(Cache::open_or_create(&store, "rates").await?);
/// let rate = rates.get_or_rebuild("EUR", async || Ok::<_, larder_core::Error>((10_859, 4))).await?;
/// println!("{:?}, {:?}", rate.value, rate.source);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TypedCached<T> {
    /// The value.
    pub value: T,
    /// How it was come by.
    pub source: Source,
}

impl<T, C: Codec<T>> TypedCache<T, C> {
    /// The value of a key; made by `rebuild` if it is missing or stale and this caller is the one whose turn it is, as
    /// [`Cache::get_or_rebuild`](larder_structures::Cache::get_or_rebuild) does. **Round trips: 1** for a hit, 3 with a rebuild.
    ///
    /// A value that was made and cannot be written by the codec comes back all the same, and [`Source::Rebuilt`] says that it is not cached.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// use larder_typed::TypedCache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let rates: TypedCache<(u32, u8)> = TypedCache::new(Cache::open_or_create(&store, "rates").await?);
    /// let rate = rates.get_or_rebuild("EUR", async || Ok::<_, larder_core::Error>((10_859, 4))).await?;
    /// assert_eq!(rate.value, (10_859, 4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) where what is cached is no value of the type, see [`Undecoded`](crate::Undecoded); those of `rebuild`; else as
    /// [`Cache::lookup`](larder_structures::Cache::lookup).
    pub async fn get_or_rebuild<E, Fut>(
        &self,
        key: impl AsRef<[u8]>,
        rebuild: impl FnOnce() -> Fut,
    ) -> Result<TypedCached<T>, E>
    where
        E: From<Error>,
        Fut: Future<Output = Result<T, E>>,
    {
        let key = key.as_ref();
        let lease = match self.raw.lookup(key).await? {
            Lookup::Found(cached) => return Ok(typed_cached::<T, C>(key, cached)?),
            Lookup::Rebuild(lease) => lease.renewing(),
        };
        let value = match rebuild().await {
            Ok(value) => value,
            Err(error) => {
                lease.give_up().await;
                return Err(error);
            }
        };
        let source = match encoded::<T, C>(format_args!("the value of {}", Shown(key)), &value) {
            Ok(bytes) => lease.finish(bytes).await.source,
            Err(error) => {
                lease.give_up().await;
                Source::Rebuilt(Err(error))
            }
        };
        Ok(TypedCached { value, source })
    }

    /// What is cached, fresh or stale; rebuilds nothing and waits for nobody. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// use larder_typed::TypedCache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let rates: TypedCache<(u32, u8)> = TypedCache::new(Cache::open_or_create(&store, "rates").await?);
    /// assert!(rates.get("EUR").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get_or_rebuild`](TypedCache::get_or_rebuild), but for those of rebuilding.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<TypedCached<T>>> {
        let key = key.as_ref();
        self.raw.get(key).await?.map(|cached| typed_cached::<T, C>(key, cached)).transpose()
    }

    /// Removes the value of a key, as [`Cache::invalidate`](larder_structures::Cache::invalidate) does. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// use larder_typed::TypedCache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let rates: TypedCache<(u32, u8)> = TypedCache::new(Cache::open_or_create(&store, "rates").await?);
    /// rates.invalidate("EUR").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Cache::invalidate`](larder_structures::Cache::invalidate).
    pub async fn invalidate(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.raw.invalidate(key).await
    }
}

fn typed_cached<T, C: Codec<T>>(key: &[u8], cached: Cached) -> Result<TypedCached<T>> {
    let value = decoded::<T, C>(format_args!("the value of {}", Shown(key)), cached.value)?;
    Ok(TypedCached { value, source: cached.source })
}
