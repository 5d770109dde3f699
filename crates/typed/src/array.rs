//! An array of typed elements.

use std::borrow::Borrow;

use larder_core::Result;
use larder_structures::lock::LockGuard;

use crate::undecoded::{all_encoded, decoded};
use crate::{Codec, typed};

typed! {
    /// An [`Array`](larder_structures::Array) of elements of a type: a cheap clone.
    ///
    /// Elements are removed by their bytes: for that the encoding must be canonical, see [`Codec`].
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// steps.push(["unpack".to_owned(), "build".to_owned()]).await?;
    /// assert_eq!(steps.elements().await?, ["unpack", "build"]);
    /// # Ok(())
    /// # }
    /// ```
    TypedArray of Array
}

impl<T, C: Codec<T>> TypedArray<T, C> {
    /// Appends elements. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// steps.push([&"unpack".to_owned()]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for an element that the codec cannot write; else as [`Array::push`](larder_structures::Array::push).
    pub async fn push(&self, elements: impl IntoIterator<Item = impl Borrow<T>>) -> Result<()> {
        self.raw.push(all_encoded::<T, C>("an element", elements)?).await
    }

    /// Removes elements, as [`Array::remove`](larder_structures::Array::remove) does.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// steps.remove(["unpack".to_owned()]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](TypedArray::push).
    pub async fn remove(&self, elements: impl IntoIterator<Item = impl Borrow<T>>) -> Result<()> {
        self.raw.remove(all_encoded::<T, C>("an element", elements)?).await
    }

    /// Adds and deletes elements in one atomic step, as [`Array::change`](larder_structures::Array::change) does.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// steps.change(["unpack".to_owned()], ["build".to_owned()]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](TypedArray::push); else as [`Array::change`](larder_structures::Array::change).
    pub async fn change(
        &self,
        add: impl IntoIterator<Item = impl Borrow<T>>,
        delete: impl IntoIterator<Item = impl Borrow<T>>,
    ) -> Result<()> {
        let (add, delete) = (all_encoded::<T, C>("an element", add)?, all_encoded::<T, C>("an element", delete)?);
        self.raw.change(add, delete).await
    }

    /// Adds and deletes elements in one atomic step under a lock, as [`Array::change_under`](larder_structures::Array::change_under) does. **Round trips: 2.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Array, Lock};
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// let guard = Lock::open(&store, "steps-lock").await?.acquire(std::time::Duration::from_secs(5)).await?;
    /// steps.change_under(&guard, ["unpack".to_owned()], ["build".to_owned()]).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](TypedArray::push); else as [`Array::change_under`](larder_structures::Array::change_under).
    pub async fn change_under(
        &self,
        guard: &LockGuard,
        add: impl IntoIterator<Item = impl Borrow<T>>,
        delete: impl IntoIterator<Item = impl Borrow<T>>,
    ) -> Result<()> {
        let (add, delete) = (all_encoded::<T, C>("an element", add)?, all_encoded::<T, C>("an element", delete)?);
        self.raw.change_under(guard, add, delete).await
    }

    /// All elements, in their order. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// assert!(steps.elements().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for the first element that is none of the type, see [`Undecoded`](crate::Undecoded); else as
    /// [`Array::elements`](larder_structures::Array::elements).
    pub async fn elements(&self) -> Result<Vec<T>> {
        self.each().await?.into_iter().collect()
    }

    /// All elements, each by itself: those that are none of the type do not hide the others. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// use larder_typed::TypedArray;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let steps: TypedArray<String> = TypedArray::new(Array::open_or_create(&store, "steps").await?);
    /// let readable: Vec<_> = steps.each().await?.into_iter().filter_map(Result::ok).collect();
    /// # _ = readable;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Array::elements`](larder_structures::Array::elements); within, as [`elements`](TypedArray::elements).
    pub async fn each(&self) -> Result<Vec<Result<T>>> {
        let elements = self.raw.elements().await?.into_iter().enumerate();
        Ok(elements.map(|(at, element)| decoded::<T, C>(format_args!("element {at}"), element)).collect())
    }
}
