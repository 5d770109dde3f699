//! The vocabulary of Larder.
//!
//! An [`Op`] is data, a [`Store`] runs batches of ops, a structure is a layout of bytes plus a few ops.
//! The same vocabulary is at both ends: a server parses bytes into ops, a network store encodes ops into bytes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`key`] | [`Key`]: 1 to 250 arbitrary bytes |
//! | [`op`] | [`Op`], [`Verb`], [`PutMode`], [`Ttl`], [`Want`], [`Route`], [`Batch`] |
//! | [`range`] | parts of a value: what reading and writing them means |
//! | [`native`] | native ops: hashes, sets, sorted sets, bits, streams, where a store has them |
//! | [`reply`] | [`Reply`], [`Item`], [`Remaining`], [`Replies`] |
//! | [`store`] | the [`Store`] trait, [`Run`], [`Ctx`] |
//! | [`ext`] | [`StoreExt`]: one call an op, for people |
//! | [`profile`] | [`Profile`]: limits and guarantees of a store |
//! | [`error`] | [`Error`], [`ErrorKind`], [`Effect`] |
//! | [`list`] | [`List`](list::List): which keys a store holds, where it can tell |
//! | [`survey`] | [`Survey`](survey::Survey): what servers say of their memory and work, and how they keep keys |
//! | [`observe`] | [`Observer`](observe::Observer): what goes on inside, told as data |
//! | [`ambient`] | the moment and the randomness that a program takes from its machine, or from a simulation |
//! | [`clock`] | [`Clock`]: the system's, or one that a test turns by hand |
//! | [`text`] | how bytes are shown to people |
//!
//! This crate knows no runtime and no socket.

pub mod ambient;
mod arith;
pub mod clock;
pub mod error;
pub mod ext;
pub mod key;
pub mod list;
pub mod native;
pub mod observe;
pub mod op;
pub mod profile;
pub mod range;
pub mod reply;
pub mod store;
pub mod survey;
pub mod text;

pub use clock::{Clock, ClockRef, ManualClock, SystemClock};
pub use error::{Effect, Error, ErrorKind, Result};
pub use ext::StoreExt;
pub use key::Key;
pub use op::{Arith, Batch, Cas, Initial, Op, PutMode, Route, Ttl, Verb, Want};
pub use profile::{Durability, Encodings, Eviction, Profile, Ranges, TtlSupport};
pub use reply::{Item, Remaining, Replies, Reply};
pub use store::{Ctx, Run, Store, StoreRef};
