//! Ops as commands, and replies as outcomes: no connection, no clock.

mod decode;
mod encode;
mod native;
mod refusal;

use larder_core::Want;

pub(crate) use decode::decode;
pub(crate) use encode::{Encoded, Limits, TTL_MAX, encode};
use redis::ServerError;
pub(crate) use refusal::{Refusal, refused};

/// A command on one key.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) cmd: redis::Cmd,
    /// What it answers.
    pub(crate) expect: Expect,
}

/// What a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The item, or nil.
    Item(Want),
    /// `[item, remaining ms]`, or nil.
    ItemAndLife(Want),
    /// `[first bytes, length, remaining ms]`, or nil.
    Head(Want),
    /// `OK`, or nil where there was something.
    Added,
    /// A script's number: 1, or what its comment says.
    Stored,
    /// The same, where 0 is a miss.
    Swapped,
    Deleted,
    Touched,
    /// Digits, nil for a miss, or a script's number.
    Number,
    /// Bytes of a value, nil for a miss, or a script's number.
    Range,
    /// What a native command answers.
    Native(native::Shape),
}

/// What a server says no with to a command that was to answer `expect`.
pub(crate) fn refused_to(error: &ServerError, expect: Expect) -> larder_core::Error {
    match expect {
        Expect::Native(_) => native::no(error),
        _ => refused(error),
    }
}
