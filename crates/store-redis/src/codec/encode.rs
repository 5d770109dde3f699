//! Ops as commands.

use std::time::Duration;

use bytes::Bytes;
use larder_core::range;
use larder_core::{Arith, Cas, Error, ErrorKind, Initial, Op, PutMode, Remaining, Reply, Result, Ttl, Verb, Want};
use redis::Cmd;

use super::decode::told;
use super::{Command, Expect, ReadBack};
use crate::handshake::Unknown;
use crate::layout::{self, HEADER_BYTES, HEADER_BYTES_MAX, Header};
use crate::place::physical;
use crate::scripts::Script;

/// The longest life: a hundred years. Redis takes more, and its clock is a wall clock.
pub(crate) const TTL_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Behind the end of every value, and far from where Lua's numbers lose digits.
const OFFSET_MAX: u64 = 1 << 40;

/// What an op is held against before it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Key, value and the longest header together.
    pub(crate) item_bytes_max: usize,
    /// What the server does not know.
    pub(crate) unknown: Unknown,
}

/// How an op is run.
pub(crate) enum Encoded {
    /// By a command.
    Command(Command),
    /// Not at all: the answer is known.
    Known(Reply),
}

/// What the op behind a conditional write wants, where it reads the item that is written: then the two are one command.
pub(crate) fn reads_back(write: &Op, next: Option<&Op>) -> Option<Want> {
    let next = next?;
    match (&write.verb, &next.verb) {
        (Verb::Put { mode: PutMode::Cas(_), .. }, &Verb::Get { want }) if want.contains(Want::VALUE) => {
            (write.key == next.key && write.route == next.route).then_some(want)
        }
        _ => None,
    }
}

/// The command of an op, and of the read of the same item behind it (`read_back`); its outcome where that is known without asking: a token of another store.
///
/// # Errors
/// [`ErrorKind::BadInput`] for what is over a limit, [`ErrorKind::Unsupported`] for what the store has not.
pub(crate) fn encode(op: &Op, read_back: Option<Want>, limits: Limits) -> Result<Encoded> {
    let key = physical(op);
    let key = key.as_ref();
    let command = match &op.verb {
        Verb::Get { want } => get(key, *want),
        Verb::Put { mode, value, flags, ttl } => {
            let bytes_max = limits.item_bytes_max.saturating_sub(HEADER_BYTES_MAX + op.key.as_bytes().len());
            if value.len() > bytes_max {
                let detail = format!("a value has {} bytes; the limit beside this key is {bytes_max}", value.len());
                return Err(Error::new(ErrorKind::BadInput, detail).op(op));
            }
            let ttl_ms = milliseconds(*ttl).map_err(|error| error.op(op))?;
            match put(key, *mode, value, *flags, ttl_ms, HEADER_BYTES + bytes_max, read_back) {
                Some(command) => command,
                None => return Ok(Encoded::Known(Reply::Exists)),
            }
        }
        Verb::Delete { cas: None } => script(Script::Delete, key, Expect::Deleted),
        Verb::Delete { cas: Some(cas) } => {
            let Some((head, length)) = layout::expected(*cas) else { return Ok(Encoded::Known(Reply::Exists)) };
            let mut command = script(Script::Delete, key, Expect::Deleted);
            command.cmd.arg(&head[..]).arg(length);
            command
        }
        Verb::Touch { ttl } => {
            let ttl_ms = milliseconds(*ttl).map_err(|error| error.op(op))?;
            let mut command = script(Script::Touch, key, Expect::Touched);
            command.cmd.arg(ttl_ms);
            command
        }
        Verb::GetRange { offset, len } => {
            let from = (*offset).min(OFFSET_MAX);
            let mut command = script(Script::RangeGet, key, Expect::Range);
            command.cmd.arg(from).arg(i64::try_from(from.saturating_add(*len).min(OFFSET_MAX)).unwrap_or(i64::MAX) - 1);
            command
        }
        Verb::PutRange { offset, value } => {
            let bytes_max = limits.item_bytes_max.saturating_sub(HEADER_BYTES_MAX + op.key.as_bytes().len());
            let offset = if value.is_empty() { 0 } else { *offset };
            range::end(offset, value.len(), bytes_max).map_err(|error| error.op(op))?;
            let mut command = script(Script::RangePut, key, Expect::Swapped);
            command.cmd.arg(offset).arg(&value[..]).arg(&layout::version_bytes(fastrand::u64(..))[..]);
            command
        }
        Verb::Native(native) => {
            super::native::looks_by(native).map_or(Ok(()), |look| limits.unknown.refuse(look)).map_err(|e| e.op(op))?;
            match super::native::encode(key, native).map_err(|error| error.op(op))? {
                Ok(command) => command,
                Err(reply) => return Ok(Encoded::Known(reply.into())),
            }
        }
        // A batch of watches alone runs on a connection of its own.
        Verb::Watch { .. } => return Err(op.lacking()),
        Verb::Arith { arith, initial } => arithmetic(key, *arith, *initial).map_err(|error| error.op(op))?,
    };
    Ok(Encoded::Command(command))
}

fn get(key: &[u8], want: Want) -> Command {
    if !want.contains(Want::VALUE) {
        return script(Script::Head, key, Expect::Head(want));
    }
    if want.contains(Want::TTL) {
        return script(Script::Read, key, Expect::ItemAndLife(want));
    }
    let mut cmd = Cmd::with_capacity(2, 3 + key.len());
    cmd.arg("GET").arg(key);
    Command::new(cmd, Expect::Item(want))
}

/// A write over the item that the token was read from, and the read of it behind that. `None` for a token of another store.
fn swap(key: &[u8], cas: Cas, value: &Bytes, flags: u32, ttl_ms: u64, read_back: Option<Want>) -> Option<Command> {
    let (head, length) = layout::expected(cas)?;
    let item = layout::encode(fastrand::u64(..), flags, value);
    let mut command = script(Script::Cas, key, Expect::Swapped);
    command.cmd.arg(&item).arg(ttl_ms).arg(&head[..]).arg(length);
    if let (Some(want), Some(header)) = (read_back, Header::decode(&item)) {
        command.cmd.arg(1);
        command.expect = Expect::SwappedOrRead;
        let life = if ttl_ms == 0 { Remaining::Never } else { Remaining::For(Duration::from_millis(ttl_ms)) };
        let stored = told(header, value.clone(), item.len(), want, Some(life));
        command.read_back = Some(Box::new(ReadBack { want, stored }));
    }
    Some(command)
}

/// `None` for a token of another store.
fn put(
    key: &[u8],
    mode: PutMode,
    value: &Bytes,
    flags: u32,
    ttl_ms: u64,
    item_bytes_max: usize,
    read_back: Option<Want>,
) -> Option<Command> {
    let item = || layout::encode(fastrand::u64(..), flags, value);
    let command = match mode {
        PutMode::Set | PutMode::Replace => {
            let mut command = script(Script::Set, key, Expect::Stored);
            command.cmd.arg(item()).arg(ttl_ms);
            if mode == PutMode::Replace {
                command.cmd.arg("");
            }
            command
        }
        // The one write that needs no look before it: it writes only where there is nothing at all.
        PutMode::Add => {
            let mut cmd = Cmd::with_capacity(6, 32 + key.len() + value.len());
            cmd.arg("SET").arg(key).arg(item()).arg("NX");
            if ttl_ms > 0 {
                cmd.arg("PX").arg(ttl_ms);
            }
            Command::new(cmd, Expect::Added)
        }
        PutMode::Append | PutMode::Prepend => {
            let joins = if mode == PutMode::Append { Script::Append } else { Script::Prepend };
            let mut command = script(joins, key, Expect::Stored);
            command.cmd.arg(&value[..]).arg(item_bytes_max).arg(&layout::version_bytes(fastrand::u64(..))[..]);
            command
        }
        PutMode::Cas(cas) => swap(key, cas, value, flags, ttl_ms, read_back)?,
    };
    Some(command)
}

fn arithmetic(key: &[u8], arith: Arith, initial: Option<Initial>) -> Result<Command> {
    let (sign, delta) = match arith {
        Arith::Incr(delta) => ("+", delta),
        Arith::Decr(delta) => ("-", delta),
    };
    let mut command = script(Script::Arith, key, Expect::Number);
    command.cmd.arg(sign).arg(delta).arg(&layout::version_bytes(fastrand::u64(..))[..]);
    match initial {
        Some(Initial { value, ttl }) => command.cmd.arg(value).arg(milliseconds(ttl)?),
        None => command.cmd.arg("").arg(0),
    };
    Ok(command)
}

/// A call of a script on a key, without its arguments.
fn script(script: Script, key: &[u8], expect: Expect) -> Command {
    let mut cmd = Cmd::with_capacity(8, 64 + key.len());
    cmd.arg("EVALSHA").arg(script.sha()).arg(1).arg(key);
    Command { script: Some(script), ..Command::new(cmd, expect) }
}

/// A life in milliseconds, a part of one rounded up; 0 for ever.
fn milliseconds(ttl: Ttl) -> Result<u64> {
    let life = ttl.within(TTL_MAX)?;
    // Fits: the limit is far below.
    Ok(life.map_or(0, |life| u64::try_from(life.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)))
}
