//! A portable dump: what a store holds, as one stream of bytes, from any store to any store.
//!
//! ```text
//! dump  = "LARDER-DUMP 1\n" block…
//! block = kind(1) length(4) body(length) check(8)
//!         check: xxh3-64 of kind, length and body, seeded with the block's number, from 0
//! kind  'h'  the first block, once: what the dump is of. UTF-8, a line each: a name, a space, a value
//!       'i'  items, each: key length(2) flags(4) expiry(8) value length(4) key value
//!            all begin in the first 256 KiB of the body
//!            expiry: ms since 1970, by the wall clock of whoever wrote it; 0: never
//!       'e'  the last block, once: items(8) bytes of their values(8)
//! ```
//!
//! Numbers are little-endian and unsigned. A dump without its last block was cut short; a block that does not match its check is damaged; both are told with the place,
//! and so is a block that is missing or stands elsewhere, since its number is in its check. It is not compressed: pipe it through a compressor.
//!
//! [`export`] writes one of any store that can list its keys, while others work on it; [`import`] puts one into any store. The durable store writes one of a moment (its `backup`).
//! What a store keeps in more than items, or in copies on several servers, is exported through `Portable` of `larder-structures`, which reads it as items, one a key.

mod export;
mod format;
mod import;
mod reader;
mod writer;

pub use export::{Exported, Foreign, export};
pub use format::{DumpFault, DumpItem, FileError, Head, Origin, Totals};
pub use import::{Imported, Importing, Refused, import};
pub use reader::DumpReader;
pub use writer::{DumpWriter, OtherStore, Resumed};
