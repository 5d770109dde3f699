//! Layers: stores that wrap a store.
//!
//! A [`Store`](larder_core::Store) has one method, so a layer sees every op there is and cannot be bypassed. Layers nest in any
//! order; the one that a structure is opened on is the outermost.
//!
//! | layer | what it does |
//! |---|---|
//! | [`Counting`] | counts ops, round trips, bytes and errors |
//! | [`Namespace`] | puts a prefix before every key, so that tenants share a store without seeing each other |
//! | [`Timeout`] | caps how long a batch may take, also for a store that hangs |
//! | [`Observed`] | tells an observer of every batch: ops, outcomes, latency |
//! | [`Outage`] | while the store cannot be reached: fails, waits, or falls back to a second store, as declared |
//! | [`Retry`] | tries again what is known not to have taken effect, and nothing else |
//!
//! With the features `metrics` and `tracing` there are observers for the crates of these names: `MetricsObserver` and `TracingObserver`, to be
//! set once a process ([`larder_core::observe::set`]).
//!
//! With the feature `testing` there is a store that breaks on purpose: `testing::Faulty`.
//!
//! A usual order, outermost first: observed, counting, retry, timeout, namespace, store.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> larder_core::Result<()> {
//! use larder_core::{Key, PutMode, StoreExt, StoreRef, Ttl};
//! use larder_layers::{Counting, Namespace, Retry, Timeout};
//! use larder_store_memory::MemoryStore;
//! use std::{sync::Arc, time::Duration};
//!
//! let store: StoreRef = Arc::new(MemoryStore::builder().build()?);
//! let store: StoreRef = Arc::new(Namespace::new(store, "shop:")?);
//! let store: StoreRef = Arc::new(Timeout::new(store, Duration::from_millis(500)));
//! let store = Counting::new(Arc::new(Retry::new(store)));
//! store.put(Key::new("greeting")?, PutMode::Set, "hello", Ttl::Never).await?;
//! assert_eq!(store.counts().round_trips, 1);
//! # Ok(())
//! # }
//! ```

mod counting;
#[cfg(test)]
mod fake;
#[cfg(feature = "metrics")]
mod metrics;
mod namespace;
mod observed;
mod outage;
mod retry;
mod runtime;
#[cfg(all(test, any(feature = "metrics", feature = "tracing")))]
mod samples;
#[cfg(feature = "testing")]
pub mod testing;
mod timeout;
#[cfg(feature = "tracing")]
mod tracing;

pub use counting::{Counting, Counts};
#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
pub use namespace::Namespace;
pub use observed::Observed;
pub use outage::{OnOutage, Outage};
pub use retry::Retry;
pub use timeout::Timeout;
#[cfg(feature = "tracing")]
pub use tracing::TracingObserver;
