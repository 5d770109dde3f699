//! Ops as commands, and replies as outcomes: no connection, no clock.

mod decode;
mod encode;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod native;
mod refusal;

use larder_core::native::Families;
use larder_core::{Effect, Error, ErrorKind, Op, Reply, Result, Want};

pub(crate) use decode::decode;
pub(crate) use encode::{Encoded, Limits, TTL_MAX, encode, reads_back};
use redis::ServerError;
use refusal::{Asked, half_done, refused_as};
pub(crate) use refusal::{Refusal, refused};

use crate::place::physical;
use crate::scripts::Script;

/// A command on one key.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) cmd: redis::Cmd,
    /// What it answers.
    pub(crate) expect: Expect,
    /// The script that it calls, if it calls one.
    pub(crate) script: Option<Script>,
    /// Where it answers the next op, too, a read of the item that it writes.
    pub(crate) read_back: Option<Box<ReadBack>>,
}

/// A read right behind a conditional write of the same item. A script costs the server many times what a command does, so the two are one: what was stored is
/// known, and only what kept it from being stored is read.
#[derive(Clone, Debug)]
pub(crate) struct ReadBack {
    want: Want,
    /// What the read finds if the write is stored.
    stored: Reply,
}

/// What became of the one or two ops of a command.
pub(crate) struct Outcome {
    first: Result<Reply>,
    /// Of the read behind it, where it answers that, too.
    read: Option<Result<Reply>>,
}

impl Outcome {
    /// Puts it where it belongs among the replies to a batch, in which the command's first op is at `at`. Errors name their op, and what else `say` adds.
    pub(crate) fn put(self, at: usize, batch: &[Op], replies: &mut [Result<Reply>], say: impl Fn(Error) -> Error) {
        replies[at] = self.first.map_err(|error| say(error.op(&batch[at])));
        if let Some(read) = self.read {
            replies[at + 1] = read.map_err(|error| say(error.op(&batch[at + 1])));
        }
    }
}

impl Command {
    fn new(cmd: redis::Cmd, expect: Expect) -> Command {
        Command { cmd, expect, script: None, read_back: None }
    }

    /// How many ops of a batch it answers.
    pub(crate) fn ops(&self) -> usize {
        1 + usize::from(self.read_back.is_some())
    }

    /// The outcome where there is none but this error.
    pub(crate) fn failed(&self, error: Error) -> Outcome {
        let read = self.read_back.is_some().then(|| Err(error.clone().effect(Effect::NotApplied)));
        Outcome { first: Err(error), read }
    }
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
    /// The same, with what is there instead: `[-1, item, remaining ms]`.
    SwappedOrRead,
    Deleted,
    Touched,
    /// Digits, nil for a miss, or a script's number.
    Number,
    /// Bytes of a value, nil for a miss, or a script's number.
    Range,
    /// What a native command answers, and the family of its op.
    Native(native::Shape, Families),
}

/// Names the key as the server has it, where that is another than the op's and the mend is at the server.
pub(crate) fn placed(error: Error, op: &Op) -> Error {
    let key = physical(op);
    if !matches!(error.kind(), ErrorKind::Config | ErrorKind::LayoutMismatch) || key == op.key.as_bytes() {
        return error;
    }
    // Whole: what is left out in the middle of it nobody could look for.
    let detail = format!("{}; on the server the key is \"{}\"", error.detail(), key.escape_ascii());
    Error::new(error.kind(), detail).effect(error.known_effect())
}

/// What a server says no with to a command.
pub(crate) fn refused_to(error: &ServerError, command: &Command) -> Error {
    let script = command.script;
    if let Some(half) = script.and_then(|_| half_done(error)) {
        return half;
    }
    match command.expect {
        Expect::Native(_, family) => native::no(error, &Asked { holds: native::holds(family), script }),
        _ => refused_as(error, &Asked { holds: "string", script }),
    }
}
