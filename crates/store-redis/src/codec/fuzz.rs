//! Replies of a server, for the proof's fuzzing: those that a command may get, what they tell, and what tells the same again.

use fastrand::Rng;
use larder_core::native::{BitField, Families, NativeReply, Score, StreamEntry};
use larder_core::{Item, Remaining, Reply, Result, Want};
use redis::{Cmd, Value};

use super::native::{Shape, text};
use super::{Command, Expect, ReadBack};
use crate::layout::{self, FLAGGED, HEADER_BYTES, HEADER_BYTES_MAX, MAGIC};
use crate::scripts::Script;

/// A command that was sent, as far as its reply goes.
#[derive(Debug)]
pub struct Ask {
    command: Command,
}

const SHAPES: [Shape; 24] = [
    Shape::Count,
    Shape::Flag,
    Shape::Made,
    Shape::Number,
    Shape::Values,
    Shape::Flags,
    Shape::FlagOfOne,
    Shape::Guarded,
    Shape::GuardedFlag,
    Shape::Pairs,
    Shape::Members,
    Shape::Page,
    Shape::Score,
    Shape::Scores,
    Shape::Scored,
    Shape::Rank,
    Shape::Numbers,
    Shape::Bytes,
    Shape::Id,
    Shape::Entries,
    Shape::Text,
    Shape::Size,
    Shape::Removed,
    Shape::Touched,
];
/// Most replies hold so few parts.
const PARTS: usize = 5;

impl Ask {
    /// Any command.
    pub fn draw(rng: &mut Rng) -> Ask {
        let want = if rng.bool() { Want::all() } else { Want::from_bits_truncate(rng.u8(..)) };
        let family = [Families::HASH, Families::SORTED, Families::STREAM][rng.usize(0..3)];
        let expect = match rng.u8(0..24) {
            0 => Expect::Item(want),
            1 => Expect::ItemAndLife(want),
            2 => Expect::Head(want),
            3 => Expect::Added,
            4 => Expect::Stored,
            5 => Expect::Swapped,
            6 => Expect::SwappedOrRead,
            7 => Expect::Deleted,
            8 => Expect::Touched,
            9 => Expect::Number,
            10 => Expect::Range,
            11 => Expect::Native(guarded_number(rng), family),
            _ => Expect::Native(SHAPES[rng.usize(0..SHAPES.len())], family),
        };
        let script = rng.bool().then(|| Script::ALL[rng.usize(0..Script::ALL.len())]);
        let stored = Reply::Item(Item { value: bytes(rng).into(), ..Item::default() });
        let read_back = (expect == Expect::SwappedOrRead).then(|| Box::new(ReadBack { want, stored }));
        Ask { command: Command { script, read_back, ..Command::new(Cmd::new(), expect) } }
    }

    /// A reply that it may get, and that tells an outcome.
    pub fn answer(&self, rng: &mut Rng) -> Value {
        match self.command.expect {
            Expect::Item(_) => or_nil(rng, |rng| Value::BulkString(item(rng))),
            Expect::ItemAndLife(_) => or_nil(rng, |rng| Value::Array(vec![Value::BulkString(item(rng)), life(rng)])),
            Expect::Head(_) => or_nil(rng, |rng| {
                let item = item(rng);
                let head = item[..item.len().min(HEADER_BYTES_MAX)].to_vec();
                Value::Array(vec![Value::BulkString(head), Value::Int(item.len() as i64), life(rng)])
            }),
            Expect::Added => or_nil(rng, |_| Value::Okay),
            Expect::Stored | Expect::Touched => Value::Int(rng.i64(0..=1)),
            Expect::Swapped | Expect::Deleted => Value::Int(rng.i64(-1..=1)),
            Expect::SwappedOrRead => match rng.i64(-1..=1) {
                another @ -1 => Value::Array(vec![Value::Int(another), Value::BulkString(item(rng)), life(rng)]),
                done => Value::Int(done),
            },
            Expect::Number => or_nil(rng, |rng| bulk(number(rng).to_string())),
            Expect::Range => or_nil(rng, |rng| bulk(bytes(rng))),
            Expect::Native(shape, _) => native(shape, rng),
        }
    }

    /// The same as a server says it in the other protocol: it must tell the same.
    pub fn reframed(&self, answer: &Value) -> Value {
        let Expect::Native(shape, _) = self.command.expect else { return answer.clone() };
        match (shape, answer.clone()) {
            (Shape::Pairs, Value::Array(parts)) => Value::Map(in_pairs(parts)),
            (Shape::Members, Value::Array(parts)) => Value::Set(parts),
            (Shape::Scored, Value::Array(parts)) => {
                Value::Array(in_pairs(parts).into_iter().map(|(member, of)| Value::Array(vec![member, of])).collect())
            }
            (Shape::Score | Shape::Scores, answer) => each(answer, &|value| match value {
                Value::Double(number) => Score::new(number).map_or(Value::Nil, |score| bulk(text(score))),
                other => other,
            }),
            (Shape::Flag | Shape::Flags | Shape::FlagOfOne | Shape::Guarded | Shape::GuardedFlag, answer) => {
                each(answer, &|value| match value {
                    Value::Int(flag) => Value::Boolean(flag > 0),
                    other => other,
                })
            }
            (_, answer) => answer,
        }
    }

    /// What a reply tells: one outcome, or two where a read is answered, too.
    pub fn hear(&self, reply: Value) -> Vec<Result<Reply>> {
        let outcome = super::decode::decoded(reply, &self.command);
        std::iter::once(outcome.first).chain(outcome.read).collect()
    }

    /// Whether a reply to it is heard whole, so that `again` is that reply: nothing of it is left out because nobody wants it.
    pub fn wants_all(&self) -> bool {
        let want = match (self.command.expect, &self.command.read_back) {
            (Expect::Head(_), _) => return false,
            (Expect::ItemAndLife(want), _) => want,
            (Expect::Item(want), _) => want | Want::TTL,
            (_, Some(read_back)) => read_back.want,
            _ => return true,
        };
        want.contains(Want::FLAGS | Want::CAS | Want::TTL)
    }

    /// A reply that tells these outcomes.
    pub fn again(&self, first: &Reply, read: Option<&Reply>) -> Option<Value> {
        Some(match (self.command.expect, first) {
            (Expect::Native(shape, _), reply) => return told_again(shape, reply),
            (Expect::Range, Reply::Item(item)) => bulk(item.value.to_vec()),
            (Expect::Item(_), Reply::Item(item)) => Value::BulkString(item_again(item)),
            (Expect::ItemAndLife(_), Reply::Item(item)) => {
                Value::Array(vec![Value::BulkString(item_again(item)), life_again(item)])
            }
            (Expect::Head(_), Reply::Item(item)) => {
                let length = item.cas.map_or(0, |cas| (cas.session & 0xFFFF_FFFF) as i64);
                Value::Array(vec![Value::BulkString(item_again(item)), Value::Int(length), life_again(item)])
            }
            (Expect::SwappedOrRead, Reply::Exists) => match read? {
                Reply::Item(item) => {
                    Value::Array(vec![Value::Int(-1), Value::BulkString(item_again(item)), life_again(item)])
                }
                _ => return None,
            },
            (Expect::Number, Reply::Number(number)) => bulk(number.to_string()),
            (Expect::Added, Reply::Stored) => Value::Okay,
            (Expect::Added, Reply::NotStored) => Value::Nil,
            (_, Reply::Stored | Reply::Deleted | Reply::Touched) => Value::Int(1),
            (Expect::Stored, Reply::NotStored) => Value::Int(0),
            (Expect::Swapped | Expect::SwappedOrRead | Expect::Deleted | Expect::Touched, Reply::Miss) => Value::Int(0),
            (_, Reply::Exists) => Value::Int(-1),
            (_, Reply::Miss) => Value::Nil,
            _ => return None,
        })
    }
}

/// A number that is added to, so that there is a sum in its range.
fn guarded_number(rng: &mut Rng) -> Shape {
    let (width, offset) = (rng.u8(1..=BitField::WIDTH_MAX), rng.u64(0..100));
    let most = (1i64 << (width - 1)) - 1 + (1i64 << (width - 1));
    let by = rng.i64(0..=most) - rng.i64(0..=most);
    Shape::GuardedNumber(BitField::incr(width, offset, by), by)
}

/// The bytes in which such a number stands.
fn with_number(field: BitField, number: u64) -> Vec<u8> {
    let end = field.offset + u64::from(field.width);
    let mut bytes = vec![0; end.div_ceil(8) as usize];
    for bit in 0..u64::from(field.width) {
        let at = end - 1 - bit;
        bytes[(at / 8) as usize] |= ((number >> bit & 1) as u8) << (7 - at % 8);
    }
    bytes
}

fn native(shape: Shape, rng: &mut Rng) -> Value {
    let mut list = |part: fn(&mut Rng) -> Value| Value::Array((0..rng.usize(0..=PARTS)).map(|_| part(rng)).collect());
    match shape {
        Shape::Values => list(|rng| or_nil(rng, |rng| bulk(bytes(rng)))),
        Shape::Flags => list(|rng| Value::Int(rng.i64(0..=1))),
        Shape::Members => list(|rng| bulk(bytes(rng))),
        Shape::Scores => list(|rng| or_nil(rng, |rng| Value::Double(score(rng)))),
        Shape::Numbers => list(|rng| or_nil(rng, count)),
        Shape::Entries => list(|rng| Value::Array(vec![id(rng), flat(rng, |rng| bulk(bytes(rng)))])),
        Shape::Guarded => or_nil(rng, |rng| native(Shape::Flags, rng)),
        Shape::GuardedFlag => or_nil(rng, |rng| native(Shape::Flag, rng)),
        Shape::GuardedNumber(field, by) => or_nil(rng, |rng| {
            let most = i128::from(u64::MAX >> (64 - field.width));
            let from = i128::from(-by).max(0)..=(most - i128::from(by)).min(most);
            let number = rng.i128(from) as u64;
            if rng.bool() { Value::Int(0) } else { Value::BulkString(with_number(field, number)) }
        }),
        Shape::Flag | Shape::FlagOfOne | Shape::Removed | Shape::Touched => Value::Int(rng.i64(0..=1)),
        Shape::Made => or_nil(rng, |_| Value::Okay),
        Shape::Number => Value::Int(number(rng) as i64),
        Shape::Count => count(rng),
        Shape::Rank | Shape::Size => or_nil(rng, count),
        Shape::Pairs => flat(rng, |rng| bulk(bytes(rng))),
        Shape::Scored => flat(rng, |rng| Value::Double(score(rng))),
        Shape::Page => {
            let cursor = bulk(number(rng).to_string());
            Value::Array(vec![cursor, native(Shape::Members, rng)])
        }
        Shape::Score => Value::Double(score(rng)),
        Shape::Bytes => bulk(bytes(rng)),
        Shape::Id => id(rng),
        Shape::Text => or_nil(rng, |rng| bulk(["listpack", "hashtable", ""][rng.usize(0..3)])),
    }
}

/// The reply of a native command that tells this.
fn told_again(shape: Shape, reply: &Reply) -> Option<Value> {
    let list = |parts: &mut dyn Iterator<Item = Value>| Value::Array(parts.collect());
    let or_nil = |value: Option<Value>| value.unwrap_or(Value::Nil);
    let int = |number: u64| i64::try_from(number).map(Value::Int).ok();
    let reply = match reply {
        Reply::Native(native) => &**native,
        Reply::Deleted | Reply::Touched => return Some(Value::Int(1)),
        Reply::Miss => return Some(Value::Int(0)),
        _ => return None,
    };
    Some(match reply {
        NativeReply::Count(count) => int(*count)?,
        NativeReply::Flag(done) if shape == Shape::Made => or_nil(done.then_some(Value::Okay)),
        NativeReply::Flag(flag) => Value::Int(i64::from(*flag)),
        NativeReply::Number(number) => Value::Int(*number),
        NativeReply::Values(values) => {
            list(&mut values.iter().map(|value| or_nil(value.as_ref().map(|value| bulk(value.to_vec())))))
        }
        NativeReply::Flags(flags) if shape == Shape::FlagOfOne => Value::Int(i64::from(*flags.first()?)),
        NativeReply::Flags(flags) => list(&mut flags.iter().map(|flag| Value::Int(i64::from(*flag)))),
        NativeReply::Pairs(pairs) => flat_again(pairs, |value| bulk(value.to_vec())),
        NativeReply::Members(members) => list(&mut members.iter().map(|member| bulk(member.to_vec()))),
        NativeReply::Page { next, found } => {
            let found = list(&mut found.iter().map(|found| bulk(found.to_vec())));
            Value::Array(vec![bulk(next.unwrap_or(0).to_string()), found])
        }
        NativeReply::Scores(scores) if shape == Shape::Score => Value::Double((*scores.first()?)?.get()),
        NativeReply::Scores(scores) => {
            list(&mut scores.iter().map(|score| or_nil(score.map(|score| Value::Double(score.get())))))
        }
        NativeReply::Scored(scored) => flat_again(scored, |score| Value::Double(score.get())),
        NativeReply::Rank(number) | NativeReply::Size(number) => or_nil(number.and_then(int)),
        NativeReply::Numbers(numbers) => match (shape, numbers.first()) {
            (Shape::GuardedNumber(..), Some(None)) => Value::Int(0),
            (Shape::GuardedNumber(field, by), Some(Some(new))) => {
                Value::BulkString(with_number(field, (i128::from(*new) - i128::from(by)) as u64))
            }
            _ => list(&mut numbers.iter().map(|number| or_nil(number.and_then(int)))),
        },
        NativeReply::Bytes(bytes) => bulk(bytes.to_vec()),
        NativeReply::Id(id) => bulk(format!("{}-{}", id.ms, id.seq)),
        NativeReply::Entries(entries) => list(&mut entries.iter().map(|StreamEntry { id, fields }| {
            let fields = flat_again(fields, |value| bulk(value.to_vec()));
            Value::Array(vec![bulk(format!("{}-{}", id.ms, id.seq)), fields])
        })),
        NativeReply::Text(text) => or_nil(text.as_deref().map(bulk)),
        NativeReply::Unmarked => Value::Nil,
        _ => return None,
    })
}

fn bulk(bytes: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(bytes.into())
}

fn or_nil(rng: &mut Rng, value: impl FnOnce(&mut Rng) -> Value) -> Value {
    if rng.u8(0..4) == 0 { Value::Nil } else { value(rng) }
}

fn bytes(rng: &mut Rng) -> Vec<u8> {
    crate::fuzzing::bytes(rng, 24)
}

fn number(rng: &mut Rng) -> u64 {
    rng.u64(..) >> rng.u32(0..64)
}

fn count(rng: &mut Rng) -> Value {
    Value::Int((number(rng) >> 1) as i64)
}

/// One zero only, as scores have it.
fn score(rng: &mut Rng) -> f64 {
    [0.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, number(rng) as f64][rng.usize(0..7)]
}

fn id(rng: &mut Rng) -> Value {
    bulk(format!("{}-{}", number(rng), number(rng)))
}

fn life(rng: &mut Rng) -> Value {
    if rng.bool() { Value::Int(-1) } else { count(rng) }
}

/// An item: with flags, without, or with the mark of flags that are 0.
fn item(rng: &mut Rng) -> Vec<u8> {
    let flags = if rng.bool() { rng.u32(..) } else { 0 };
    let mut item = layout::encode(rng.u64(..), flags, &bytes(rng));
    if flags == 0 && rng.u8(0..4) == 0 {
        item[1] |= 0x80;
        item.splice(HEADER_BYTES..HEADER_BYTES, [0; 4]);
    }
    item
}

/// The item as it is stored; what nobody wanted of it is 0.
fn item_again(item: &Item) -> Vec<u8> {
    let token = item.cas.map_or(if item.flags == 0 { 0 } else { FLAGGED }, |cas| cas.token);
    let mut bytes = vec![MAGIC];
    bytes.extend_from_slice(&token.to_be_bytes());
    if token & FLAGGED != 0 {
        bytes.extend_from_slice(&item.flags.to_le_bytes());
    }
    bytes.extend_from_slice(&item.value);
    bytes
}

fn life_again(item: &Item) -> Value {
    match item.ttl {
        Remaining::For(life) => Value::Int(life.as_millis() as i64),
        _ => Value::Int(-1),
    }
}

fn flat(rng: &mut Rng, value: fn(&mut Rng) -> Value) -> Value {
    Value::Array((0..rng.usize(0..=PARTS)).flat_map(|_| [bulk(bytes(rng)), value(rng)]).collect())
}

fn flat_again<T>(pairs: &[(bytes::Bytes, T)], value: impl Fn(&T) -> Value) -> Value {
    Value::Array(pairs.iter().flat_map(|(name, of)| [bulk(name.to_vec()), value(of)]).collect())
}

fn in_pairs(parts: Vec<Value>) -> Vec<(Value, Value)> {
    let mut parts = parts.into_iter();
    std::iter::from_fn(|| Some((parts.next()?, parts.next()?))).collect()
}

fn each(value: Value, change: &dyn Fn(Value) -> Value) -> Value {
    match value {
        Value::Array(parts) => Value::Array(parts.into_iter().map(change).collect()),
        other => change(other),
    }
}
