//! Native ops as commands, and their replies.
//!
//! A native key has no header: its bytes, fields and members are Redis's own. Every op is one command, or one script, so it is applied as a whole.

use bytes::Bytes;
use larder_core::native::{
    BitAct, BitField, Collection, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply,
    Only, Ranks, Scan, Score, StreamEntry, StreamId,
};
use larder_core::{Effect, Error, ErrorKind, Reply, Result};
use redis::{Cmd, ServerError, Value};

use super::refusal::{Asked, refused_as};
use super::{Command, Expect};
use crate::scripts::Script;

/// Arguments that most commands have no more of.
const ARGS_MANY: usize = 8;
/// Bytes of what most commands have beside key and values: their name, and numbers.
const WORDS_BYTES_MANY: usize = 24;
/// The same of most calls of a script, with its hash.
const SCRIPT_BYTES_MANY: usize = 96;

/// What a native command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Count,
    /// 1 or 0.
    Flag,
    /// `OK`, or nil where there was something.
    Made,
    Number,
    Values,
    Flags,
    /// 1 or 0, where one was asked of what may be many.
    FlagOfOne,
    /// One for each change, or nil without the mark.
    Guarded,
    /// 1 or 0, or nil without the mark.
    GuardedFlag,
    /// The bytes as they were, in which a number was added to; 0 where it would leave its range, and nil without the mark.
    GuardedNumber(BitField, i64),
    Pairs,
    Members,
    Page,
    Score,
    Scores,
    Scored,
    Rank,
    Numbers,
    Bytes,
    Id,
    Entries,
    Text,
    Size,
    Removed,
    Touched,
}

/// The command of what only looks, which a server may be without.
pub(super) fn looks_by(native: &Native) -> Option<&'static str> {
    match native {
        Native::Encoding => Some("OBJECT"),
        Native::MemoryBytes => Some("MEMORY"),
        _ => None,
    }
}

/// The command of a native op, or its reply where that is known without asking.
pub(super) fn encode(key: &[u8], native: &Native) -> Result<std::result::Result<Command, NativeReply>> {
    native.check()?;
    use Native::*;
    let mut line = Line::new(key, native);
    let shape = match native {
        HashGet { fields } => line.with("HMGET", fields, Shape::Values),
        HashSet { entries } => line.pairs("HSET", entries, Shape::Count),
        HashAdd { field, value } => line.with("HSETNX", [field, value], Shape::Flag),
        HashRemove { fields } => line.with("HDEL", fields, Shape::Count),
        HashIncr { field, by } => {
            line.begin("HINCRBY").arg(&field[..]).arg(*by);
            Shape::Number
        }
        HashAll => line.bare("HGETALL", Shape::Pairs),
        HashLen => line.bare("HLEN", Shape::Count),
        HashScan(scan) => line.scan("HSCAN", *scan),
        SetAdd { members } => line.with("SADD", members, Shape::Count),
        SetRemove { members } => line.with("SREM", members, Shape::Count),
        // An answer without a list around it is less to write and to read.
        SetHas { members } if members.len() == 1 => line.with("SISMEMBER", members, Shape::FlagOfOne),
        SetHas { members } => line.with("SMISMEMBER", members, Shape::Flags),
        SetAll => line.bare("SMEMBERS", Shape::Members),
        SetLen => line.bare("SCARD", Shape::Count),
        SetScan(scan) => line.scan("SSCAN", *scan),
        SortedAdd { entries, only } => line.sorted_add(entries, *only),
        SortedIncr { member, by } => {
            line.begin("ZINCRBY").arg(text(*by)).arg(&member[..]);
            Shape::Score
        }
        SortedRemove { members } => line.with("ZREM", members, Shape::Count),
        SortedTrim(ranks) => line.ranks("ZREMRANGEBYRANK", *ranks, Shape::Count),
        SortedRange(ranks) => line.ranks("ZRANGE", *ranks, Shape::Scored),
        SortedScores { members } => line.with("ZMSCORE", members, Shape::Scores),
        SortedRank { member, from_top } => {
            line.with(if *from_top { "ZREVRANK" } else { "ZRANK" }, [member], Shape::Rank)
        }
        SortedLen => line.bare("ZCARD", Shape::Count),
        Guarded(guarded) => line.guarded(guarded),
        GuardedBits(guarded) => line.guarded_bits(guarded),
        Bits(fields) => line.bits(fields),
        BitsMake { value } => line.bits_make(value),
        BitsRead { len_bytes: 0, .. } => return Ok(Err(NativeReply::Bytes(Bytes::new()))),
        BitsRead { offset_bytes, len_bytes } => {
            let last = offset_bytes.saturating_add(len_bytes - 1).min(i64::MAX as u64);
            line.begin("GETRANGE").arg((*offset_bytes).min(i64::MAX as u64)).arg(last);
            Shape::Bytes
        }
        BitsLen => line.bare("STRLEN", Shape::Count),
        StreamAppend { fields, keep } => line.stream_append(fields, *keep),
        StreamRange { limit: 0, .. } => return Ok(Err(NativeReply::Entries(Vec::new()))),
        StreamRange { from, to, limit } => {
            line.begin("XRANGE").arg(id(*from)).arg(id(*to)).arg("COUNT").arg((*limit).min(i64::MAX as u64));
            Shape::Entries
        }
        StreamLen => line.bare("XLEN", Shape::Count),
        Encoding => {
            line.cmd.arg("OBJECT").arg("ENCODING").arg(key);
            Shape::Text
        }
        MemoryBytes => {
            line.cmd.arg("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0);
            Shape::Size
        }
        Remove => line.bare("UNLINK", Shape::Removed),
        Expire { ttl_ms } => {
            line.begin("PEXPIRE").arg(life(*ttl_ms));
            Shape::Touched
        }
        _ => return Err(Error::new(ErrorKind::Unsupported, format!("the store has no {}", native.name()))),
    };
    let expect = Expect::Native(shape, native.family());
    Ok(Ok(Command { script: line.script, ..Command::new(line.cmd, expect) }))
}

/// A command being written.
struct Line<'a> {
    cmd: Cmd,
    key: &'a [u8],
    script: Option<Script>,
}

impl Line<'_> {
    /// With room for all of it: what grows as it is written is copied each time.
    fn new<'a>(key: &'a [u8], native: &Native) -> Line<'a> {
        let is_script = matches!(native, Native::Guarded(_) | Native::GuardedBits(_));
        let words_bytes = if is_script { SCRIPT_BYTES_MANY } else { WORDS_BYTES_MANY };
        Line { cmd: Cmd::with_capacity(ARGS_MANY, key.len() + native.bytes() + words_bytes), key, script: None }
    }

    fn begin(&mut self, name: &str) -> &mut Cmd {
        self.cmd.arg(name).arg(self.key)
    }

    fn call(&mut self, script: Script) -> &mut Cmd {
        self.script = Some(script);
        self.cmd.arg("EVALSHA").arg(script.sha()).arg(1).arg(self.key)
    }

    fn bare(&mut self, name: &str, shape: Shape) -> Shape {
        self.begin(name);
        shape
    }

    fn with<'b>(&mut self, name: &str, parts: impl IntoIterator<Item = &'b Bytes>, shape: Shape) -> Shape {
        self.begin(name);
        parts.into_iter().for_each(|part| _ = self.cmd.arg(&part[..]));
        shape
    }

    fn pairs(&mut self, name: &str, pairs: &[(Bytes, Bytes)], shape: Shape) -> Shape {
        self.with(name, pairs.iter().flat_map(|(field, value)| [field, value]), shape)
    }

    fn scan(&mut self, name: &str, scan: Scan) -> Shape {
        self.begin(name).arg(scan.cursor).arg("COUNT").arg(scan.count);
        Shape::Page
    }

    fn sorted_add(&mut self, entries: &[(Bytes, Score)], only: Only) -> Shape {
        self.begin("ZADD");
        for (condition, word) in [(Only::NEW, "NX"), (Only::KNOWN, "XX"), (Only::GREATER, "GT"), (Only::LESS, "LT")] {
            if only.contains(condition) {
                self.cmd.arg(word);
            }
        }
        self.cmd.arg("CH");
        entries.iter().for_each(|(member, score)| _ = self.cmd.arg(text(*score)).arg(&member[..]));
        Shape::Count
    }

    fn guarded(&mut self, guarded: &Guarded) -> Shape {
        let of = match guarded.of {
            Collection::Hash => "hash",
            Collection::Set => "set",
            Collection::Sorted => "sorted",
        };
        self.call(Script::Guarded).arg(of);
        let act = match guarded.act {
            GuardedAct::Remove { .. } => "remove",
            GuardedAct::Put { .. } => "put",
            GuardedAct::Turn { .. } => "turn",
            GuardedAct::Make { .. } => "make",
            GuardedAct::Drop { .. } => "drop",
        };
        self.cmd.arg(act).arg(&guarded.mark[..]);
        let entries = match &guarded.act {
            GuardedAct::Remove { names } | GuardedAct::Drop { or: names } => {
                names.iter().for_each(|name| _ = self.cmd.arg(&name[..]));
                return Shape::Guarded;
            }
            GuardedAct::Put { entries } => entries,
            GuardedAct::Turn { to, entries } => {
                self.cmd.arg(&to[..]);
                entries
            }
            GuardedAct::Make { ttl_ms } => {
                self.cmd.arg(ttl_ms.map_or(0, life));
                return Shape::Guarded;
            }
        };
        for (name, value) in entries {
            self.cmd.arg(&name[..]);
            if guarded.of != Collection::Set {
                self.cmd.arg(&value[..]);
            }
        }
        Shape::Guarded
    }

    fn guarded_bits(&mut self, guarded: &GuardedBits) -> Shape {
        self.call(Script::GuardedBits).arg(&guarded.mark[..]);
        match &guarded.act {
            GuardedBitsAct::Put { numbers } => {
                self.cmd.arg("put").arg(guarded.mark.len() - 1);
                for number in numbers {
                    if let BitAct::Set(value) = number.act {
                        self.cmd.arg(format!("u{}", number.width)).arg(number.offset).arg(value);
                    }
                }
            }
            GuardedBitsAct::Incr { number } => {
                let by = if let BitAct::Incr(by) = number.act { by } else { 0 };
                let last = ((number.offset + u64::from(number.width) - 1) / 8).max(guarded.mark.len() as u64 - 1);
                self.cmd.arg("incr").arg(format!("u{}", number.width)).arg(number.offset).arg(by).arg(last);
                return Shape::GuardedNumber(*number, by);
            }
            GuardedBitsAct::Drop { or } => {
                self.cmd.arg("drop");
                or.iter().for_each(|mark| _ = self.cmd.arg(&mark[..]));
            }
        }
        Shape::GuardedFlag
    }

    fn ranks(&mut self, name: &str, ranks: Ranks, shape: Shape) -> Shape {
        self.begin(name).arg(ranks.first).arg(ranks.last);
        if shape == Shape::Scored {
            if ranks.from_top {
                self.cmd.arg("REV");
            }
            self.cmd.arg("WITHSCORES");
        }
        shape
    }

    fn bits_make(&mut self, value: &[u8]) -> Shape {
        self.begin("SET").arg(value).arg("NX");
        Shape::Made
    }

    fn bits(&mut self, fields: &[BitField]) -> Shape {
        self.begin("BITFIELD").arg("OVERFLOW").arg("FAIL");
        for field in fields {
            let act = match field.act {
                BitAct::Get => "GET",
                BitAct::Set(_) => "SET",
                BitAct::Incr(_) => "INCRBY",
            };
            self.cmd.arg(act).arg(format!("u{}", field.width)).arg(field.offset);
            match field.act {
                BitAct::Get => {}
                BitAct::Set(value) => _ = self.cmd.arg(value),
                BitAct::Incr(by) => _ = self.cmd.arg(by),
            }
        }
        Shape::Numbers
    }

    fn stream_append(&mut self, fields: &[(Bytes, Bytes)], keep: Option<u64>) -> Shape {
        self.begin("XADD");
        if let Some(keep) = keep {
            self.cmd.arg("MAXLEN").arg("~").arg(keep.min(i64::MAX as u64));
        }
        self.cmd.arg("*");
        fields.iter().for_each(|(field, value)| _ = self.cmd.arg(&field[..]).arg(&value[..]));
        Shape::Id
    }
}

/// A score as Redis reads it: every bit of it.
pub(super) fn text(score: Score) -> String {
    match score.get() {
        number if number.is_infinite() => if number > 0.0 { "+inf" } else { "-inf" }.to_owned(),
        number => format!("{number:?}"),
    }
}

/// A life as Redis takes it.
fn life(ttl_ms: u64) -> u64 {
    ttl_ms.min(crate::codec::TTL_MAX.as_millis() as u64)
}

fn id(id: StreamId) -> String {
    format!("{}-{}", id.ms, id.seq)
}

/// The outcome that a reply tells.
pub(super) fn decode(value: Value, shape: Shape) -> Result<Reply> {
    let reply = match (shape, value) {
        (Shape::Removed, Value::Int(gone)) => return Ok(if gone > 0 { Reply::Deleted } else { Reply::Miss }),
        (Shape::Touched, Value::Int(done)) => return Ok(if done > 0 { Reply::Touched } else { Reply::Miss }),
        (shape, value) => read(shape, value),
    };
    reply.map(Reply::from).ok_or_else(|| {
        Error::new(ErrorKind::Protocol, format!("the server answered something else than {shape:?}"))
            .effect(Effect::Unknown)
    })
}

fn read(shape: Shape, value: Value) -> Option<NativeReply> {
    Some(match shape {
        Shape::Count => NativeReply::Count(count(&value)?),
        Shape::Flag => NativeReply::Flag(count(&value)? > 0),
        Shape::Made => NativeReply::Flag(match value {
            Value::Okay => true,
            Value::Nil => false,
            _ => return None,
        }),
        Shape::Number => match value {
            Value::Int(number) => NativeReply::Number(number),
            _ => return None,
        },
        Shape::Values => NativeReply::Values(parts(value)?.into_iter().map(some_bytes).collect::<Option<_>>()?),
        Shape::Flags => {
            NativeReply::Flags(parts(value)?.iter().map(|value| Some(count(value)? > 0)).collect::<Option<_>>()?)
        }
        Shape::FlagOfOne => NativeReply::Flags(vec![count(&value)? > 0]),
        Shape::Guarded | Shape::GuardedFlag | Shape::GuardedNumber(..) if value == Value::Nil => NativeReply::Unmarked,
        Shape::Guarded => return read(Shape::Flags, value),
        Shape::GuardedFlag => return read(Shape::Flag, value),
        Shape::GuardedNumber(..) if value == Value::Int(0) => NativeReply::Numbers(vec![None]),
        Shape::GuardedNumber(number, by) => {
            let new = number_in(&bytes(value)?, number).checked_add_signed(by);
            NativeReply::Numbers(vec![Some(new.filter(|new| new >> number.width == 0)?)])
        }
        Shape::Pairs => NativeReply::Pairs(pairs(value)?),
        Shape::Members => NativeReply::Members(parts(value)?.into_iter().map(bytes).collect::<Option<_>>()?),
        Shape::Page => page(value)?,
        Shape::Score => NativeReply::Scores(vec![Some(score(value)?)]),
        Shape::Scores => NativeReply::Scores(
            parts(value)?
                .into_iter()
                .map(|value| if value == Value::Nil { Some(None) } else { score(value).map(Some) })
                .collect::<Option<_>>()?,
        ),
        Shape::Scored => NativeReply::Scored(scored(value)?),
        Shape::Rank => NativeReply::Rank(match value {
            Value::Nil => None,
            value => Some(count(&value)?),
        }),
        Shape::Numbers => NativeReply::Numbers(
            parts(value)?
                .iter()
                .map(|value| if *value == Value::Nil { Some(None) } else { count(value).map(Some) })
                .collect::<Option<_>>()?,
        ),
        Shape::Bytes => NativeReply::Bytes(bytes(value)?),
        Shape::Id => NativeReply::Id(stream_id(&bytes(value)?)?),
        Shape::Entries => NativeReply::Entries(parts(value)?.into_iter().map(entry).collect::<Option<_>>()?),
        Shape::Text => NativeReply::Text(match value {
            Value::Nil => None,
            value => Some(String::from_utf8(bytes(value)?.to_vec()).ok()?),
        }),
        Shape::Size => NativeReply::Size(match value {
            Value::Nil => None,
            value => Some(count(&value)?),
        }),
        Shape::Removed | Shape::Touched => return None,
    })
}

/// What the server says no with, where it means another thing for a native op.
pub(super) fn no(error: &ServerError, asked: &Asked) -> Error {
    let words = error.details().unwrap_or_default();
    let told = |kind: ErrorKind| Error::new(kind, format!("the server answered: {} {words}", error.code()));
    if words.contains("would overflow") || words.contains("is not a number (NaN)") {
        return told(ErrorKind::Overflow);
    }
    if words.contains("is not an integer") || words.contains("not a valid float") {
        return told(ErrorKind::BadInput);
    }
    refused_as(error, asked)
}

/// What a key holds that ops of a family are for.
pub(super) fn holds(family: Families) -> &'static str {
    match family {
        Families::HASH => "hash",
        Families::SET => "set",
        Families::SORTED => "sorted set",
        Families::BITS => "string of bits",
        Families::STREAM => "stream",
        _ => "string",
    }
}

fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Boolean(flag) => Some(u64::from(*flag)),
        _ => None,
    }
}

/// The number of a field in these bytes; bits past the end are 0.
fn number_in(bytes: &[u8], field: BitField) -> u64 {
    let rest = bytes.get((field.offset / 8) as usize..).unwrap_or_default();
    // Nine bytes hold 63 bits from any bit on.
    let mut window = [0; 16];
    window.iter_mut().zip(rest).take(9).for_each(|(to, byte)| *to = *byte);
    ((u128::from_be_bytes(window) << (field.offset % 8)) >> (128 - u32::from(field.width))) as u64
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.into_bytes().into()),
        Value::Okay => Some(Bytes::from_static(b"OK")),
        _ => None,
    }
}

fn some_bytes(value: Value) -> Option<Option<Bytes>> {
    if value == Value::Nil { Some(None) } else { bytes(value).map(Some) }
}

fn parts(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(parts) | Value::Set(parts) => Some(parts),
        _ => None,
    }
}

/// Fields and values, however the protocol frames them.
fn pairs(value: Value) -> Option<Vec<(Bytes, Bytes)>> {
    match value {
        Value::Map(pairs) => pairs.into_iter().map(|(field, value)| Some((bytes(field)?, bytes(value)?))).collect(),
        value => {
            let mut parts = parts(value)?.into_iter();
            let mut pairs = Vec::with_capacity(parts.len() / 2);
            while let Some(field) = parts.next() {
                pairs.push((bytes(field)?, bytes(parts.next()?)?));
            }
            Some(pairs)
        }
    }
}

fn page(value: Value) -> Option<NativeReply> {
    let [cursor, found] = <[Value; 2]>::try_from(parts(value)?).ok()?;
    let cursor = std::str::from_utf8(&bytes(cursor)?).ok()?.parse().ok()?;
    let found = match found {
        Value::Map(pairs) => {
            pairs.into_iter().flat_map(|(field, value)| [field, value]).map(bytes).collect::<Option<_>>()?
        }
        found => parts(found)?.into_iter().map(bytes).collect::<Option<_>>()?,
    };
    Some(NativeReply::Page { next: (cursor != 0).then_some(cursor), found })
}

fn score(value: Value) -> Option<Score> {
    let number = match value {
        Value::Double(number) => number,
        Value::Int(number) => number as f64,
        value => std::str::from_utf8(&bytes(value)?).ok()?.parse().ok()?,
    };
    Score::new(number).ok()
}

/// Members and scores: in pairs (RESP3), or in turn.
fn scored(value: Value) -> Option<Vec<(Bytes, Score)>> {
    let mut parts = parts(value)?.into_iter();
    let mut found = Vec::with_capacity(parts.len());
    while let Some(part) = parts.next() {
        found.push(match part {
            Value::Array(pair) => {
                let [member, of] = <[Value; 2]>::try_from(pair).ok()?;
                (bytes(member)?, score(of)?)
            }
            member => (bytes(member)?, score(parts.next()?)?),
        });
    }
    Some(found)
}

fn stream_id(text: &[u8]) -> Option<StreamId> {
    let (ms, seq) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some(StreamId { ms: ms.parse().ok()?, seq: seq.parse().ok()? })
}

fn entry(value: Value) -> Option<StreamEntry> {
    let [id, fields] = <[Value; 2]>::try_from(parts(value)?).ok()?;
    Some(StreamEntry { id: stream_id(&bytes(id)?)?, fields: pairs(fields)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn line(native: Native) -> String {
        let command = encode(b"k", &native).unwrap().unwrap();
        String::from_utf8(command.cmd.get_packed_command()).unwrap().replace("\r\n", " ")
    }

    #[test]
    fn commands_are_what_redis_reads() {
        let entries = vec![("m".into(), Score::new(0.1).unwrap()), ("n".into(), Score::new(f64::INFINITY).unwrap())];
        let only = Only::KNOWN | Only::GREATER;
        assert_eq!(
            line(Native::SortedAdd { entries, only }),
            "*9 $4 ZADD $1 k $2 XX $2 GT $2 CH $3 0.1 $1 m $4 +inf $1 n "
        );
        assert_eq!(
            line(Native::Bits(vec![BitField::get(63, 1), BitField::set(9, 128, 511), BitField::incr(1, 7, -1)])),
            "*15 $8 BITFIELD $1 k $8 OVERFLOW $4 FAIL $3 GET $3 u63 $1 1 $3 SET $2 u9 $3 128 $3 511 $6 INCRBY $2 u1 $1 7 $2 -1 "
        );
        assert_eq!(line(Native::SortedRange(Ranks::top(2))), "*6 $6 ZRANGE $1 k $1 0 $1 1 $3 REV $10 WITHSCORES ");
        let has =
            |members: &[&'static str]| Native::SetHas { members: members.iter().map(|&name| name.into()).collect() };
        assert_eq!(line(has(&["m"])), "*3 $9 SISMEMBER $1 k $1 m ");
        assert_eq!(line(has(&["m", "n"])), "*4 $10 SMISMEMBER $1 k $1 m $1 n ");
        let number = BitField::incr(63, 65, -7);
        let incr = Native::GuardedBits(GuardedBits { mark: "m".into(), act: GuardedBitsAct::Incr { number } });
        let said = line(incr);
        assert!(said.ends_with("$4 incr $3 u63 $2 65 $2 -7 $2 15 "), "{said}");
        let read = Native::BitsRead { offset_bytes: u64::MAX, len_bytes: u64::MAX };
        assert_eq!(line(read), format!("*4 $8 GETRANGE $1 k $19 {0} $19 {0} ", i64::MAX));
    }

    #[test]
    fn both_protocols_are_understood() {
        let expected = NativeReply::Scored(vec![("m".into(), Score::new(1.5).unwrap())]);
        for value in [
            Value::Array(vec![bulk("m"), bulk("1.5")]),
            Value::Array(vec![Value::Array(vec![bulk("m"), Value::Double(1.5)])]),
        ] {
            assert_eq!(read(Shape::Scored, value), Some(expected.clone()));
        }
        let expected = NativeReply::Pairs(vec![("f".into(), "v".into())]);
        for value in [Value::Array(vec![bulk("f"), bulk("v")]), Value::Map(vec![(bulk("f"), bulk("v"))])] {
            assert_eq!(read(Shape::Pairs, value), Some(expected.clone()));
        }
        let shape = Shape::GuardedNumber(BitField::incr(63, 13, 0), -9);
        for (old, new) in [
            (&b"\0\x07\xff\xff\xff\xff\xff\xff\xff\xf0"[..], Some((1 << 63) - 10)),
            (b"\xff\xf8\0\0\0\0\0\0\0\x9f", Some(0)),
            // It was written, the server says, and it cannot have been.
            (b"\xff\xf8\0\0\0\0\0\0\0\x8f", None),
        ] {
            let expected = new.map(|new| NativeReply::Numbers(vec![Some(new)]));
            assert_eq!(read(shape, Value::BulkString(old.to_vec())), expected, "{old:?}");
        }
        assert_eq!(read(shape, Value::Int(0)), Some(NativeReply::Numbers(vec![None])));
        assert_eq!(read(shape, Value::Nil), Some(NativeReply::Unmarked));
        for (value, is_there) in [(Value::Int(1), true), (Value::Int(0), false), (Value::Boolean(true), true)] {
            assert_eq!(read(Shape::FlagOfOne, value), Some(NativeReply::Flags(vec![is_there])));
        }
        let page = Value::Array(vec![bulk("0"), Value::Array(vec![bulk("m")])]);
        assert_eq!(read(Shape::Page, page), Some(NativeReply::Page { next: None, found: vec!["m".into()] }));
    }

    #[test]
    fn a_strange_reply_is_no_outcome() {
        let shapes =
            [Shape::Count, Shape::Pairs, Shape::Page, Shape::Scored, Shape::Numbers, Shape::Id, Shape::Entries];
        for shape in shapes.into_iter().chain([Shape::GuardedNumber(BitField::incr(63, 0, 1), i64::MIN)]) {
            for value in [bulk("x"), Value::Array(vec![bulk("x")]), Value::Array(vec![Value::Int(-1)])] {
                let error = decode(value, shape).unwrap_err();
                assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Protocol, true));
            }
        }
    }
}
