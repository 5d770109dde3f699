//! Larder's store in the process: memcached semantics over arbitrary bytes.
//!
//! ```
//! use larder_core::{PutMode, Reply, Ttl, Want};
//! use larder_store_memory::MemoryStore;
//! use std::time::Duration;
//!
//! let store = MemoryStore::builder().bytes_max(64 << 20).build()?;
//! let direct = store.direct();
//! direct.put(b"session:7", PutMode::Set, b"alice", 0, Ttl::After(Duration::from_secs(60)))?;
//! let item = direct.get(b"session:7", Want::VALUE | Want::CAS)?.expect("it lives for a minute");
//! assert_eq!(&item.value[..], b"alice");
//! # Ok::<(), larder_core::Error>(())
//! ```
//!
//! # How it is built
//!
//! | module | what it holds |
//! |---|---|
//! | `item` | one item, one allocation: an 8-byte header, key, value; the only `unsafe` |
//! | `shard` | a table of item pointers under a lock: growth, sweeping, eviction |
//! | `ops` | what each op does to a locked shard |
//! | `update` | one item changed by a closure, for whoever needs more than the ops |
//! | `budget` | the byte budget |
//! | `sweep` | the thread that removes what has expired |
//! | `sync` | locks, atomics and the hash, which a test of schedules replaces |
//! | `list` | which keys there are |
//! | `store`, `direct`, `builder` | what the world sees |
//!
//! # What it costs
//!
//! Resident bytes an item, 5 million of them, glibc's allocator (`cargo run --release -p larder-store-memory --example
//! memory_overhead`): 79.7 for 16 + 32 bytes of key and value, 159.7 for 16 + 100. Of the 31.7 of overhead, 8 are the header, 8 are
//! malloc's, and some 15 the index: a pointer and a control byte in tables that are between 44 and 88 % full. Tables double at
//! different times, since shards are of different sizes, so that the average holds at any number of items. An item that grows by
//! appends has up to a quarter of slack; others up to an eighth, and up to 15 bytes under 256.
//!
//! The bytes that [`Stats`] counts, and the budget limits, are these, to within a percent.

mod budget;
mod builder;
mod direct;
mod item;
mod list;
mod ops;
mod shard;
mod store;
mod survey;
mod sweep;
mod sync;
mod update;

pub use builder::Builder;
pub use direct::Direct;
pub use item::Marks;
pub use ops::View;
pub use store::{MemoryStore, Place, Stats};
pub use update::{Next, Seen, Token, Value};

#[cfg(test)]
mod tests;
