//! Shared data structures over any Larder store.
//!
//! A structure is a layout of bytes plus a few ops. Each has a folder: `layout.rs` is pure bytes, the rest drives them over
//! a [`Store`](larder_core::Store) and names no store in particular.
//!
//! | module | what it holds |
//! |---|---|
//! | [`name`] | [`Name`]: 1 to 64 arbitrary bytes, and the keys made of it (the only place where keys are made) |
//! | [`manifest`] | what is recorded about a structure: kind, layout, generation, shards, parameters |
//! | [`lock`] | [`Lock`]: leases, fencing tokens, a signal when it is lost |
//! | [`counter`] | [`Counter`]: exact over a pool of slots, or fast on the server's arithmetic |
//! | [`log`] | [`EventLog`]: events by time, put in one round trip, fetched and followed, what was lost told as gaps |
//! | [`mod@inspect`] | what a structure of whatever kind is, takes and promises |
//! | [`lookup`] | [`PackedTable`]: rows by ranges of addresses or by ids, built once and read in one round trip |
//! | [`portable`] | [`Portable`]: a store read as if all structures in it were kept in items |
//! | [`queue`] | [`Queue`] and [`Stack`]: pushed in one round trip, claimed with a lease, acknowledged |
//! | [`records`] | [`PackedRecords`]: a few bits for each of many dense ids |
//! | [`registry`] | finding out what a name holds, and dropping it with all its keys |
//! | [`mod@array`] | [`Array`]: an ordered list, appended to in one round trip, changed whole without a lock |
//! | [`cache`] | [`Cache`]: values that one client at a time makes again |
//! | [`sharded`] | [`ShardedHash`], [`ShardedSet`] and [`ShardedSortedSet`]: many small shards, whose number can be changed while they are used |
//! | [`set`] | [`Set`]: members added and removed in one round trip, read in one |
//! | [`table`] | [`Table`]: values by keys, each an item of its own, and a list of the keys |
//! | `append` | append-encoded values: a snapshot and the operations since, compacted by cas |
//! | `behind` | work beside the caller, one piece at a time |
//! | `cell` | one key under chained conditional writes, and what landed of them |
//! | `combine` | many callers' changes in one write, safe to cancel |
//! | `copies` | manifests that stand on several servers |
//! | `events` | what structures tell the process's observer |
//! | `ids` | random ids that no two machines share |
//! | `ledger` | the list of the pieces a structure has made, so that one that is gone is told from one that never was |
//! | `renew` | keeping a lease: renewed at a third of it |
//! | `retry` | how often, and with which pauses, a conflict is tried again |
//! | `runtime` | the caller's Tokio runtime, or an error where there is none |
//! | `timeout` | how long a call may take |
//! | [`unique`] | [`UniqueVisitors`]: how many different visitors came in a day, and who is new |
//! | [`visitors`] | [`Visitors`]: who came in windows of time, counted while they pass |
//! | `vigil` | an open handle's eye on its manifest |

#[cfg(test)]
mod answering_tests;
mod append;
pub mod array;
mod behind;
pub mod cache;
mod cell;
mod combine;
mod copies;
pub mod counter;
mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod ids;
pub mod inspect;
mod keepers;
mod ledger;
pub mod lock;
pub mod log;
pub mod lookup;
pub mod manifest;
pub mod name;
mod owned;
pub mod portable;
pub mod queue;
#[cfg(test)]
mod ranked_tests;
pub mod records;
pub mod registry;
mod renew;
mod retry;
#[cfg(test)]
mod ruled_tests;
mod runtime;
pub mod set;
pub mod sharded;
pub mod table;
mod timeout;
pub mod unique;
mod vigil;
pub mod visitors;
mod wait;

pub use array::{Array, ArrayOptions, ArrayStat};
pub use cache::{Cache, CacheOptions};
pub use counter::{Counter, CounterOptions};
pub use inspect::Inspection;
pub use lock::Lock;
pub use log::{EventLog, EventLogOptions};
pub use lookup::{PackedTable, PackedTableOptions, PackedTableStat};
pub use manifest::{Kind, Manifest};
pub use name::Name;
pub use portable::Portable;
pub use queue::{Claim, Queue, QueueOptions, QueueStat, Stack, StackOptions};
pub use records::{PackedRecords, RecordsOptions};
pub use set::{Set, SetOptions, SetStat};
pub use sharded::{ShardedHash, ShardedOptions, ShardedSet, ShardedSortedSet, ShardedStat};
pub use table::{Table, TableEntries, TableOptions};
pub use unique::{
    IdKind, Novelty, Precision, UniqueCount, UniqueStat, UniqueVisitors, UniqueVisitorsOptions, VisitorId,
};
pub use visitors::{Visitors, VisitorsOptions};
