//! The memcached protocol as a codec: no runtime, no socket, no clock of its own.
//!
//! A client encodes an [`Op`](larder_core::Op) into bytes with [`Abilities::encode`], keeps the [`Expect`] it gets back, and
//! feeds the bytes of the answer to [`Decoder::decode`], in whatever pieces they arrive. Replies come in the order of the
//! requests; where the dialect can, an opaque number in each reply proves that the two are still in step.
//!
//! | module | what it holds |
//! |---|---|
//! | [`dialect`] | [`Version`], [`Dialect`]: which commands a server understands |
//! | [`abilities`] | [`Abilities`]: what one server can do, as its handshake told |
//! | [`key`] | how a key travels: as it is, or as base64 |
//! | [`exptime`] | how a life travels: relative, or absolute by the server's clock |
//! | [`request`] | which command an op becomes, byte by byte |
//! | [`reply`] | the incremental parser of replies |
//! | [`mod@line`] | lines: the bounded reading that everything else stands on |
//! | [`server`] | the other half: requests parsed, replies written |
//! | [`stats`] | `version`, `stats` and `stats settings`, for the handshake |
//!
//! # Which command an op becomes
//!
//! | op | meta dialects | classic dialect |
//! |---|---|---|
//! | get | `mg` with the wanted parts only | `get`, or `gets` for a token |
//! | set | `ms` | `set` |
//! | add, replace, append, prepend, cas | **the classic command**; `ms` for a binary key | the classic command |
//! | delete | `md`, with `C` for a token | `delete`; with a token a `cas` of an empty value that expires at once |
//! | touch | `mg` with `T` | `touch` |
//! | arithmetic | `ma`, with `N` and `J` for an initial value | `incr`, `decr`; with an initial value `Unsupported` |
//!
//! A delete by token of the classic dialect takes effect as `md` does. What it costs: the server keeps an empty item until somebody asks for
//! the key or its crawler comes by, and a server without expiry cannot do it.
//!
//! The conditional modes use classic commands even where `ms` exists, because an `ms` that is too large for the server, or that
//! finds it out of memory, deletes the item that was there, in every mode; the classic commands leave it alone.
//! A binary key has no classic form, so it takes `ms`: its size is checked before anything is sent, and an out-of-memory answer
//! is reported with [`Effect::Unknown`](larder_core::Effect::Unknown), since the old item is gone.

pub mod abilities;
pub mod dialect;
pub mod exptime;
pub mod key;
pub mod line;
pub mod metadump;
pub mod reply;
pub mod request;
pub mod server;
pub mod stats;

pub use abilities::Abilities;
pub use dialect::{Dialect, Version};
pub use line::ProtocolError;
pub use reply::{Answer, Decoder};
pub use request::Expect;
