//! Larder's durable store: memcached's semantics over arbitrary bytes, in a folder, for one process at a time.
//!
//! | guarantee | |
//! |---|---|
//! | crash of the process (`kill -9`) | takes nothing that was acknowledged |
//! | power cut | takes nothing that was acknowledged at [`Sync::Always`]; at most what came within the interval and while a sync took at [`Sync::Every`]; what the system had not written at [`Sync::Never`] |
//! | cas tokens | never given out twice, over restarts too |
//! | lives | to the ms, by a time that never goes back, over restarts too |
//! | damage | [`Corrupt`](larder_core::ErrorKind::Corrupt), with its place; never a miss |
//! | an older copy that was put back | [`RolledBack`](larder_core::ErrorKind::RolledBack), where a [witness](Options::witness) is kept |
//! | a write or a sync that fails | is unknown; nothing is written from then on until the store is opened anew; reads go on |
//! | two processes | the second gets an error that names the first |
//!
//! **Round trips: 0**: the store is in the process. A batch that only reads is answered at once, and reads the disk where what it wants is in no cache; one that writes waits
//! for the committer, and at [`Sync::Always`] for the disk. The engine is [fjall](https://crates.io/crates/fjall).

#![deny(unsafe_code)]

mod ahead;
mod alter;
mod answer;
mod backup;
mod check;
mod committer;
mod direct;
mod end;
mod engine;
mod expiry;
mod fault;
mod front;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod journal;
mod layout;
mod list;
mod moving;
mod newest;
mod notes;
mod ops;
mod options;
mod place;
mod queue;
mod recent;
mod room;
mod shared;
mod store;
mod survey;
mod sweep;
mod tables;
mod time;
mod timer;
mod told;
mod versions;
mod witness;

pub use alter::{Altered, Entry, NextCas, NextTtl};
pub use backup::BackupParts;
pub use check::Checked;
pub use direct::{Direct, DirectItem, DirectNext, Ticket};
pub use options::{NoSync, Options, Sync};
pub use shared::SharedStore;
pub use store::{DurableStore, Stats};
