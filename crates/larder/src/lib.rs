//! Shared data structures in the stores people already run.
//!
//! A store holds items; a structure (a lock, a counter, a set) is a layout of bytes in a store plus a few ops. Write the program
//! against a structure once; run it over `memory:` while it is one process, and over a server when it is many.
//!
//! # Quick start
#![cfg_attr(feature = "memory", doc = "```")]
#![cfg_attr(not(feature = "memory"), doc = "```no_run")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> larder::Result<()> {
//! use larder::{Counter, Lock, Set};
//! use std::time::Duration;
//!
//! let store = larder::open("memory:").await?; // or "memcached://localhost:11211"
//!
//! let hits = Counter::open_or_create(&store, "hits").await?;
//! hits.add(2).await?;
//! assert_eq!(hits.get().await?, 2);
//!
//! let tags = Set::open_or_create(&store, "tags").await?;
//! tags.add(["red", "green"]).await?;
//! assert!(tags.has("red").await?);
//!
//! let nightly = Lock::open(&store, "nightly").await?;
//! let guard = nightly.acquire(Duration::from_secs(10)).await?;
//! println!("mine, with fencing token {}", guard.fencing_token());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//! | item | what it is |
//! |---|---|
//! | [`open`], [`open_with_list`], [`open_all`] | a store by its URL, what lists its keys, and what surveys it |
//! | [`Lock`], [`Counter`], [`Set`], [`Array`], [`Visitors`], [`UniqueVisitors`], [`EventLog`], [`Table`], [`Queue`], [`Stack`], [`Cache`], [`PackedRecords`], [`PackedTable`], [`ShardedHash`], [`ShardedSet`], [`ShardedSortedSet`] | the structures; each documents its guarantee on every store, and its round trips |
//! | [`find`], [`mod@inspect`], [`drop_structure`] | what a name holds, what that takes and promises, and removing it |
//! | [`Op`], [`Store`], [`StoreExt`], … | the vocabulary underneath, for those who need plain items |
//! | [`observe`] | what goes on inside, told to one observer a process; observers for `metrics` and `tracing` behind the features of their names |
//! | `blocking` | the structures for programs without async; behind the feature of its name |
//! | `typed` | values of types in the structures, through JSON, postcard or a codec of one's own; behind the feature of its name |
//! | [`footprint`] | what a store's memory goes into, and what would save some |
//! | [`mod@dump`] | what a store holds as one file, from any store to any store |
//! | `layers`, `memory`, `durable`, `memcached`, `redis` | wrappers around stores, and the stores themselves, each behind the feature of its name |
//!
//! # Outcomes and faults
//! A miss is an outcome, not an error. An [`Error`] says what went wrong ([`ErrorKind`]) and what is known of the effect: with
//! [`Effect::Unknown`] a write may have happened, or may yet, and nothing here tries it again blindly. Loss is an error, never a
//! zero or an empty set.

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(all(doctest, feature = "memory"))]
mod cookbook;
#[cfg(feature = "durable")]
mod durable_url;
mod open;
mod spelling;

/// The README's program, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(feature = "memory")]
mod memory_url;
#[cfg(any(feature = "memory", feature = "durable"))]
mod url_options;

#[doc(inline)]
pub use larder_core::{
    Arith, Batch, Cas, Clock, ClockRef, Ctx, Durability, Effect, Encodings, Error, ErrorKind, Eviction, Initial, Item,
    Key, ManualClock, Op, Profile, PutMode, Remaining, Replies, Reply, Result, Route, Run, Store, StoreExt, StoreRef,
    SystemClock, Ttl, TtlSupport, Verb, Want,
    list::{List, ListRef, Listed},
    native, observe, survey, text,
};
#[doc(inline)]
pub use larder_dump as dump;
#[doc(inline)]
pub use larder_footprint as footprint;
#[cfg(feature = "layers")]
pub use larder_layers as layers;
#[cfg(feature = "durable")]
pub use larder_store_durable as durable;
#[cfg(feature = "memcached")]
pub use larder_store_memcached as memcached;
#[cfg(feature = "memory")]
pub use larder_store_memory as memory;
#[cfg(feature = "redis")]
pub use larder_store_redis as redis;
#[doc(inline)]
pub use larder_structures::{
    Array, ArrayOptions, ArrayStat, Cache, CacheOptions, Counter, CounterOptions, EventLog, EventLogOptions, IdKind,
    Kind, Lock, Manifest, Name, Novelty, PackedRecords, PackedTable, PackedTableOptions, PackedTableStat, Portable,
    Precision, Queue, QueueOptions, QueueStat, RecordsOptions, Set, SetOptions, SetStat, ShardedHash, ShardedOptions,
    ShardedSet, ShardedSortedSet, ShardedStat, Stack, StackOptions, Table, TableEntries, TableOptions, UniqueCount,
    UniqueStat, UniqueVisitors, UniqueVisitorsOptions, VisitorId, Visitors, VisitorsOptions, array, cache, counter,
    inspect::{self, Inspection},
    lock::{self, LockGuard, LockOptions, LockStatus},
    log, lookup, queue, records,
    registry::{self, drop_structure, find, list},
    set, sharded, table, unique, visitors,
};
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "typed")]
pub use larder_typed as typed;
#[cfg(feature = "durable")]
pub use open::durable_options;
pub use open::{Opened, SCHEMES, open, open_all, open_with_list};
