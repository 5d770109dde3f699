//! A log of typed events.

use std::ops::RangeBounds;

use larder_core::Result;
use larder_structures::log::{Event, Gap};

use crate::undecoded::{decoded, encoded};
use crate::{Codec, typed};

typed! {
    /// An [`EventLog`](larder_structures::EventLog) of events of a type: a cheap clone.
    ///
    /// To follow it, [`tail`](larder_structures::EventLog::tail) the handle underneath, and [`decode`](TypedEventLog::decode) what it brings.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// use larder_typed::TypedEventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
    /// orders.put(&(7, "tea".to_owned())).await?;
    /// assert_eq!(orders.fetch(..).await?[0].event, (7, "tea".to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    TypedEventLog of EventLog
}

/// An event, and when it was.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::EventLog;
/// use larder_typed::TypedEventLog;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
/// orders.put(&(7, "tea".to_owned())).await?;
/// for event in orders.fetch(..).await? {
///     println!("{}: {:?}", event.time_ms, event.event);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedEvent<T> {
    /// When it was: milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What it was.
    pub event: T,
}

impl<T, C: Codec<T>> TypedEventLog<T, C> {
    /// Puts an event, of now. Round trips: as [`EventLog::put`](larder_structures::EventLog::put).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// use larder_typed::TypedEventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
    /// orders.put(&(7, "tea".to_owned())).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for an event that the codec cannot write; else as [`EventLog::put`](larder_structures::EventLog::put).
    pub async fn put(&self, event: &T) -> Result<()> {
        self.raw.put(encoded::<T, C>("an event", event)?).await
    }

    /// Puts an event of another time, in milliseconds since the Unix epoch. Round trips: as [`EventLog::put_at`](larder_structures::EventLog::put_at).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// use larder_typed::TypedEventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
    /// orders.put_at(orders.raw().now_ms() - 1_000, &(7, "tea".to_owned())).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`put`](TypedEventLog::put).
    pub async fn put_at(&self, time_ms: u64, event: &T) -> Result<()> {
        self.raw.put_at(time_ms, encoded::<T, C>("an event", event)?).await
    }

    /// The events of a range of time, as [`EventLog::fetch`](larder_structures::EventLog::fetch) has them.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// use larder_typed::TypedEventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
    /// assert!(orders.fetch(..).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](larder_core::ErrorKind::Lost) where there is a gap; [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for the first event that is none of the type, see
    /// [`Undecoded`](crate::Undecoded); else as [`EventLog::fetch`](larder_structures::EventLog::fetch).
    pub async fn fetch(&self, range: impl RangeBounds<u64>) -> Result<Vec<TypedEvent<T>>> {
        self.raw.fetch(range).await?.whole()?.into_iter().map(|event| self.decode(event)).collect()
    }

    /// The same with what is missing: events, each by itself, and gaps.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// use larder_typed::TypedEventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
    /// let (events, gaps) = orders.fetch_with_gaps(..).await?;
    /// assert!(events.is_empty() && gaps.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`EventLog::fetch`](larder_structures::EventLog::fetch); within, as [`fetch`](TypedEventLog::fetch).
    pub async fn fetch_with_gaps(
        &self,
        range: impl RangeBounds<u64>,
    ) -> Result<(Vec<Result<TypedEvent<T>>>, Vec<Gap>)> {
        let (events, gaps) = self.raw.fetch(range).await?.with_gaps();
        Ok((events.into_iter().map(|event| self.decode(event)).collect(), gaps))
    }

    /// An event of the handle underneath, typed.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// use larder_typed::TypedEventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let orders: TypedEventLog<(u32, String)> = TypedEventLog::new(EventLog::open_or_create(&store, "orders").await?);
    /// orders.put(&(7, "tea".to_owned())).await?;
    /// for event in orders.raw().fetch(..).await?.whole()? {
    ///     assert_eq!(orders.decode(event)?.event.0, 7);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) if it is none of the type, see [`Undecoded`](crate::Undecoded).
    pub fn decode(&self, event: Event) -> Result<TypedEvent<T>> {
        let Event { time_ms, bytes, .. } = event;
        Ok(TypedEvent { time_ms, event: decoded::<T, C>(format_args!("the event of {time_ms} ms"), bytes)? })
    }
}
