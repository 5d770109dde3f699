//! Replies as outcomes.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Effect, Error, ErrorKind, Item, Op, Remaining, Reply, Result, Want};
use redis::Value;

use super::refusal::Refusal;
use super::{Command, Expect, Outcome, placed, refused_to};
use crate::layout::{self, Header};

/// What a script answers where the value there is not an item.
const FOREIGN: i64 = -2;
/// What it answers where the value is not a number.
const NO_NUMBER: i64 = -3;

/// What a conditional write answers where another item is there.
const ANOTHER: i64 = -1;

/// The outcome that a reply to an op tells. Errors do not name the op: the caller does.
pub(crate) fn decode(value: Value, command: &Command, op: &Op) -> Outcome {
    let Outcome { first, read } = decoded(value, command);
    Outcome {
        first: first.map_err(|error| placed(error, op)),
        read: read.map(|read| read.map_err(|error| placed(error, op))),
    }
}

/// The same, where an error says nothing of a key.
pub(super) fn decoded(value: Value, command: &Command) -> Outcome {
    match (&command.read_back, value) {
        (Some(read_back), Value::Int(1)) => {
            Outcome { first: Ok(Reply::Stored), read: Some(Ok(read_back.stored.clone())) }
        }
        (Some(_), Value::Int(0)) => Outcome { first: Ok(Reply::Miss), read: Some(Ok(Reply::Miss)) },
        (Some(read_back), Value::Array(mut parts)) if parts.first() == Some(&Value::Int(ANOTHER)) => {
            parts.remove(0);
            Outcome { first: Ok(Reply::Exists), read: Some(item_and_life(parts, read_back.want)) }
        }
        (_, Value::ServerError(error)) => command.failed(refused_to(&error, command)),
        (_, value) => match reply(value, command.expect) {
            Ok(reply) => Outcome { first: Ok(reply), read: None },
            Err(error) => command.failed(error),
        },
    }
}

fn reply(value: Value, expect: Expect) -> Result<Reply> {
    match (expect, value) {
        (Expect::Native(shape, _), value) => super::native::decode(value, shape),
        (Expect::Range, Value::BulkString(value)) => Ok(Reply::Item(Item { value: value.into(), ..Item::default() })),
        (Expect::Range, Value::Nil) => Ok(Reply::Miss),
        (Expect::Item(want), Value::BulkString(item)) => item_of(item, want, None),
        (Expect::ItemAndLife(want), Value::Array(parts)) => item_and_life(parts, want),
        (Expect::Head(want), Value::Array(parts)) => head(&parts, want),
        (Expect::Item(_) | Expect::ItemAndLife(_) | Expect::Head(_) | Expect::Number, Value::Nil) => Ok(Reply::Miss),
        (Expect::Added, Value::Okay) | (Expect::Stored | Expect::Swapped, Value::Int(1)) => Ok(Reply::Stored),
        (Expect::Added, Value::Nil) | (Expect::Stored, Value::Int(0)) => Ok(Reply::NotStored),
        (Expect::Deleted, Value::Int(1)) => Ok(Reply::Deleted),
        (Expect::Touched, Value::Int(1)) => Ok(Reply::Touched),
        (Expect::Swapped | Expect::Deleted | Expect::Touched, Value::Int(0)) => Ok(Reply::Miss),
        (Expect::Swapped | Expect::Deleted, Value::Int(ANOTHER)) => Ok(Reply::Exists),
        (Expect::Number, Value::BulkString(digits)) => number(&digits),
        (Expect::Number, Value::Int(NO_NUMBER)) => {
            let detail = "the value is not a number of 0 to 18446744073709551615 in decimal digits; it stays as it is";
            Err(Error::new(ErrorKind::BadInput, detail))
        }
        (_, Value::Int(FOREIGN)) => Err(Refusal::foreign()),
        (expect, value) => Err(strange(&format!("{value:?} to {expect:?}"))),
    }
}

fn item_of(item: Vec<u8>, want: Want, life: Option<Remaining>) -> Result<Reply> {
    let length = item.len();
    let Some((header, value)) = layout::decode(Bytes::from(item)) else { return Err(Refusal::foreign()) };
    Ok(told(header, value, length, want, life))
}

fn item_and_life(parts: Vec<Value>, want: Want) -> Result<Reply> {
    match <[Value; 2]>::try_from(parts) {
        Ok([Value::BulkString(item), Value::Int(ms)]) => item_of(item, want, Some(remaining(ms))),
        Ok(parts) => Err(strange(&format!("{parts:?} to a read"))),
        Err(parts) => Err(strange(&format!("{} parts to a read", parts.len()))),
    }
}

fn head(parts: &[Value], want: Want) -> Result<Reply> {
    let [Value::BulkString(head), Value::Int(length), Value::Int(ms)] = parts else {
        return Err(strange(&format!("{parts:?} to a look")));
    };
    let Some(header) = Header::decode(head) else { return Err(Refusal::foreign()) };
    let length = usize::try_from(*length).unwrap_or_default();
    Ok(told(header, Bytes::new(), length, want, Some(remaining(*ms))))
}

/// The parts that were wanted.
pub(super) fn told(header: Header, value: Bytes, length: usize, want: Want, life: Option<Remaining>) -> Reply {
    Reply::Item(Item {
        value,
        flags: if want.contains(Want::FLAGS) { header.flags } else { 0 },
        cas: want.contains(Want::CAS).then(|| header.cas(length)),
        ttl: life.filter(|_| want.contains(Want::TTL)).unwrap_or_default(),
    })
}

fn remaining(ms: i64) -> Remaining {
    match u64::try_from(ms) {
        Ok(ms) => Remaining::For(Duration::from_millis(ms)),
        Err(_) => Remaining::Never,
    }
}

fn number(digits: &[u8]) -> Result<Reply> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.map(Reply::Number).ok_or_else(|| strange(&format!("{:?} to arithmetic", larder_core::text::Shown(digits))))
}

/// A reply that no server should give: whatever it did, it was not what was asked.
fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the server answered {what}")).effect(Effect::Unknown)
}
