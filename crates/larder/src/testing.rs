//! For tests of programs that use Larder: what does mine do when a reply is lost, a counter is unknown, a lock is gone?
//!
//! | what happens | how a test makes it happen |
//! |---|---|
//! | an op fails before or after it took effect, its reply is lost, it arrives late | [`Faulty`] around any store, [`fail_nth`](Faulty::fail_nth) or [`fail_randomly`](Faulty::fail_randomly) from a seed |
//! | the server cannot be reached | [`fail_always`](Faulty::fail_always), and [`heal`](Faulty::heal) |
//! | the server restarts empty, or evicts | `MemoryStore::clear`, or a delete of the key |
//! | time passes, a clock is off | [`ManualClock`], given to the store in the process and to structures with `clock(…)` in their options |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> larder::Result<()> {
//! use larder::testing::{Fault, Faulty};
//! use larder::{Counter, ErrorKind, Lock, StoreRef, memory::MemoryStore};
//! use std::sync::Arc;
//!
//! let memory = Arc::new(MemoryStore::new());
//! let faulty = Faulty::new(memory.clone());
//! let store: StoreRef = faulty.shared();
//!
//! // A counter of which nobody knows whether it counted.
//! let hits = Counter::options().fast().open_or_create(&store, "hits").await?;
//! faulty.fail_nth(1, Fault::LostReply);
//! assert!(hits.add(1).await.unwrap_err().is_unknown());
//!
//! // A lock that is lost while its work goes on: the server restarted.
//! let lock = Lock::open(&store, "nightly").await?;
//! let guard = lock.try_acquire().await?.expect("nobody holds it");
//! memory.clear();
//! assert!(guard.renew().await.is_err());
//! let outcome = guard.run(async { "must not be written" }).await;
//! assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced);
//! # Ok(())
//! # }
//! ```

pub use larder_core::ManualClock;
pub use larder_layers::testing::{Fault, Faulty};
