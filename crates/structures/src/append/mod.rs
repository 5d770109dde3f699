//! Append-encoded values: a snapshot of the elements, and the operations appended since, under one key a shard.
//!
//! The engine of every structure that is changed often and read whole: sets now; what elements mean is a
//! [`Fold`] of the structure's own. A change is one `append`, whatever the number of elements. A read is one `get`.
//! A compaction writes the snapshot anew, by `cas`, with the token of the read that found the value dirty: where anything was
//! appended meanwhile it comes to nothing, and does no harm. It runs beside the reader, never before it. Writes of the same
//! handle wait for one that met with them; where several handles write without a pause, a value may grow until it is full,
//! which stops the appends, and is compacted then.
//!
//! Source: D. Sallings, "Maintaining a Set in Memcached", Couchbase blog, 2011. Added to it: writers and sequences, so that a
//! retried append counts once (the article's brings an element back that somebody removed in between); a check a frame; a
//! generation, so that a late append cannot land in a value made anew; telling a loss from an empty value.
//!
//! # What is promised
//! - The changes of one handle count in the order in which they were made, each once or, where its outcome was reported as
//!   unknown, at most once, and never after a later change of the same handle to the same shard: sequences are counted a shard.
//! - This holds as long as a snapshot remembers the writer: the last 128 that wrote, those silent for more than ten minutes
//!   only as far as there are fewer than 16 others. A request that the network holds back for longer than that, and then
//!   delivers, counts once more.
//! - A change of several shards is atomic a shard, not over all: every shard has its own outcome.
//! - A value that is gone is [`Lost`](larder_core::ErrorKind::Lost), and the change unknown that may have landed in it. A value that is older than one that this handle saw is
//!   [`RolledBack`](larder_core::ErrorKind::RolledBack), however it has grown since: its epoch and length only grow, within an
//!   epoch it begins with what was read of it, and every sequence of the handle's own that was acknowledged is there. A rollback
//!   is missed where it was compacted since, but for the handle's own sequences above the one that the snapshot has of it: all of them, where it
//!   names fewer than 16 writers and not this one.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | the bytes |
//! | [`past`] | what a handle knows of a shard, and whether a value contradicts it |
//! | [`shards`] | reading and compacting |
//! | [`writers`] | who wrote a value, and the last of each |
//! | [`writer`] | appending: one write under way, settled or given up within its deadline |

pub(crate) mod layout;
pub(crate) mod past;
pub(crate) mod shards;
pub(crate) mod writer;
pub(crate) mod writers;

pub(crate) use layout::{Action, Distinct, Elements, Fold, Snapshot};
pub(crate) use shards::{LOOK_EVERY_DIRTY_BYTES, Shards, Tuning};
pub(crate) use writer::{Part, Write, Writer};
