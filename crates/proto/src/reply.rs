//! The incremental parser of replies.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use larder_core::{Cas, Effect, Error, ErrorKind, Item, Remaining, Reply, Want};

use crate::line::{ProtocolError, first_line, number};
use crate::request::{Expect, Shape};

/// The most that is told of what our own server says of its store.
const TOLD_BYTES_MAX: usize = 512;
/// For so much more of a value room is made at once: what is announced may never come.
const RESERVED_BYTES_MAX: usize = 8 << 20;

/// Values up to this many bytes are copied out of the receive buffer; larger ones share it.
///
/// A shared value keeps the whole buffer alive, a copied one costs a memcpy: at 4 KiB the two are about even.
pub const COPIED_BYTES_MAX: usize = 4 * 1024;

/// How a server answered one op.
///
/// ```
/// use bytes::BytesMut;
/// use larder_core::{ErrorKind, Key, Op, PutMode, Ttl};
/// use larder_proto::{Abilities, Answer, Decoder, Dialect};
/// let set = Op::put(Key::new("k")?, PutMode::Set, "v", Ttl::Never);
/// let expect = Abilities::of(Dialect::Classic).encode(&set, 0, 0, &mut Vec::new())?;
/// let decoder = Decoder { session: 1, value_bytes_max: 1 << 20 };
/// let mut received = BytesMut::from("SERVER_ERROR out of memory storing object\r\n");
/// let Some(Answer::Refused { error, in_step }) = decoder.decode(&mut received, &expect)? else { panic!() };
/// assert_eq!((error.kind(), in_step), (ErrorKind::Full, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Answer {
    /// With an outcome.
    Reply(Reply),
    /// With an error line.
    Refused {
        /// The error, with what is known of the effect. It names no op, no key and no server yet.
        error: Error,
        /// False if stray replies may follow, so that the connection must be given up.
        in_step: bool,
    },
}

/// Parses the replies of one connection.
///
/// ```
/// use bytes::BytesMut;
/// use larder_core::{Key, Op, Reply, Want};
/// use larder_proto::{Abilities, Answer, Decoder, Dialect};
///
/// let get = Op::get(Key::new("hits")?, Want::VALUE);
/// let expect = Abilities::of(Dialect::Meta).encode(&get, 7, 0, &mut Vec::new())?;
/// let decoder = Decoder { session: 1, value_bytes_max: 1 << 20 };
///
/// let mut received = BytesMut::from("VA 2 O7\r\n4");
/// assert!(decoder.decode(&mut received, &expect)?.is_none()); // more has to come
/// received.extend_from_slice(b"2\r\n");
/// let Some(Answer::Reply(Reply::Item(item))) = decoder.decode(&mut received, &expect)? else { panic!() };
/// assert_eq!(item.value, "42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The session that cas tokens of this connection belong to.
    pub session: u64,
    /// The longest value the server can hold; a longer one is a sign of having lost step.
    pub value_bytes_max: usize,
}

impl Decoder {
    /// Takes one reply off the front of `received`; `None` (and nothing taken) until all of it is there.
    ///
    /// # Errors
    /// The bytes are no possible answer to what was asked, or carry another opaque number or key: the connection is out of step
    /// and must be given up.
    ///
    /// ```
    /// use bytes::BytesMut;
    /// use larder_core::{Key, Op, Want};
    /// use larder_proto::{Abilities, Decoder, Dialect};
    /// let get = Op::get(Key::new("k")?, Want::VALUE);
    /// let expect = Abilities::of(Dialect::Meta).encode(&get, 7, 0, &mut Vec::new())?;
    /// let decoder = Decoder { session: 1, value_bytes_max: 1 << 20 };
    /// // The answer to another question: the two are out of step.
    /// assert!(decoder.decode(&mut BytesMut::from("EN O8\r\n"), &expect).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decode(&self, received: &mut BytesMut, expect: &Expect) -> Result<Option<Answer>, ProtocolError> {
        let Some(line) = first_line(received)? else {
            return Ok(None);
        };
        let line_bytes = line.len() + 2;
        match head(line, expect)? {
            Head::Done(reply) => {
                received.advance(line_bytes);
                Ok(Some(Answer::Reply(reply)))
            }
            Head::Hit { mut item, token } => {
                received.advance(line_bytes);
                item.cas = self.cas(token);
                Ok(Some(Answer::Reply(Reply::Item(item))))
            }
            Head::Refused { error, in_step } => {
                received.advance(line_bytes);
                Ok(Some(Answer::Refused { error, in_step }))
            }
            Head::Value { value_bytes, mut item, token } => {
                item.cas = self.cas(token);
                self.value(received, expect, line_bytes, value_bytes, item)
            }
        }
    }

    fn cas(&self, token: Option<u64>) -> Option<Cas> {
        token.map(|token| Cas { token, session: self.session })
    }

    fn value(
        &self,
        received: &mut BytesMut,
        expect: &Expect,
        line_bytes: usize,
        value_bytes: usize,
        mut item: Item,
    ) -> Result<Option<Answer>, ProtocolError> {
        if value_bytes > self.value_bytes_max {
            return Err(ProtocolError(format!(
                "a value of {value_bytes} bytes is announced; the server's limit is {}",
                self.value_bytes_max
            )));
        }
        let tail: &[u8] = if expect.shape == Shape::Get { b"\r\nEND\r\n" } else { b"\r\n" };
        let Some(whole) = value_bytes.checked_add(line_bytes + tail.len()) else {
            return Err(ProtocolError(format!("a value of {value_bytes} bytes is announced; no machine has so many")));
        };
        let value_end = line_bytes + value_bytes;
        let seen = received.get(value_end..received.len().min(whole)).unwrap_or_default();
        if !tail.starts_with(seen) {
            return Err(ProtocolError::unexpected("a value is not followed by its end", seen));
        }
        if received.len() < whole {
            received.reserve((whole - received.len()).min(RESERVED_BYTES_MAX));
            return Ok(None);
        }
        if expect.shape == Shape::MetaArith {
            // The server pads a decremented number with blanks to its old width in the item, never in the reply; some
            // proxies pass the item on.
            let digits = received[line_bytes..value_end].trim_ascii_end();
            let Some(number) = number(digits) else {
                return Err(ProtocolError::unexpected("the result of arithmetic is no number", digits));
            };
            received.advance(whole);
            return Ok(Some(Answer::Reply(Reply::Number(number))));
        }
        if !expect.want.contains(Want::VALUE) {
            received.advance(whole);
        } else if value_bytes <= COPIED_BYTES_MAX {
            item.value = Bytes::copy_from_slice(&received[line_bytes..value_end]);
            received.advance(whole);
        } else {
            received.advance(line_bytes);
            item.value = received.split_to(value_bytes).freeze();
            received.advance(tail.len());
        }
        Ok(Some(Answer::Reply(Reply::Item(item))))
    }
}

/// What the first line of a reply says.
enum Head {
    Done(Reply),
    /// A hit without a value.
    Hit {
        item: Item,
        token: Option<u64>,
    },
    Refused {
        error: Error,
        in_step: bool,
    },
    Value {
        value_bytes: usize,
        item: Item,
        token: Option<u64>,
    },
}

fn head(line: &[u8], expect: &Expect) -> Result<Head, ProtocolError> {
    if let Some(refused) = refused(line, expect) {
        return Ok(refused);
    }
    if expect.shape.is_meta() { meta(line, expect) } else { classic(line, expect) }
}

fn meta(line: &[u8], expect: &Expect) -> Result<Head, ProtocolError> {
    let unexpected = || ProtocolError::unexpected("unexpected reply to a meta command", line);
    let (status, rest) = line.split_at_checked(2).ok_or_else(unexpected)?;
    let mut words = rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let value_bytes = match status {
        b"VA" => Some(words.next().and_then(number).ok_or_else(unexpected)?),
        _ => None,
    };
    if value_bytes.is_none() && !rest.is_empty() && rest[0] != b' ' {
        return Err(unexpected());
    }
    let mut item = Item::default();
    let (mut token, mut opaque, mut flags, mut ttl) = (None, None, None, None);
    for word in words {
        let (flag, argument) = (word[0], &word[1..]);
        match flag {
            b'O' => opaque = Some(number(argument).ok_or_else(unexpected)?),
            b'c' if expect.want.contains(Want::CAS) => token = Some(number(argument).ok_or_else(unexpected)?),
            b'f' => {
                let number = number(argument).and_then(|flags| u32::try_from(flags).ok());
                flags = Some(number.ok_or_else(unexpected)?);
            }
            b't' if argument == b"-1" => ttl = Some(Remaining::Never),
            b't' => ttl = Some(Remaining::For(Duration::from_secs(number(argument).ok_or_else(unexpected)?))),
            _ => {} // W, X and Z of items that others treat as a cache
        }
    }
    // A miss may come without its opaque number from the oldest releases of this dialect; nothing else may.
    if opaque != Some(u64::from(expect.opaque)) && !(opaque.is_none() && status == b"EN") {
        return Err(ProtocolError::unexpected(&format!("the reply to another command than O{}", expect.opaque), line));
    }
    // A hit brings what was asked for, or it is not the answer.
    let is_hit = expect.shape == Shape::MetaGet && matches!(status, b"VA" | b"HD");
    let lacks = |part, is_there: bool| !is_there && expect.want.contains(part);
    let lacks_any = lacks(Want::VALUE, value_bytes.is_some())
        || lacks(Want::CAS, token.is_some())
        || lacks(Want::FLAGS, flags.is_some())
        || lacks(Want::TTL, ttl.is_some());
    if is_hit && lacks_any {
        return Err(ProtocolError::unexpected("a hit without all that was asked for", line));
    }
    item.flags = flags.unwrap_or_default();
    item.ttl = ttl.unwrap_or_default();
    let reply = match (expect.shape, status) {
        (Shape::MetaGet | Shape::MetaArith, b"VA") => {
            let value_bytes = value_bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(unexpected)?;
            return Ok(Head::Value { value_bytes, item, token });
        }
        (Shape::MetaGet, b"HD") => return Ok(Head::Hit { item, token }),
        (Shape::MetaGet | Shape::MetaTouch, b"EN") => Reply::Miss,
        (Shape::MetaTouch, b"HD") => Reply::Touched,
        (Shape::MetaPut, b"HD") => Reply::Stored,
        (Shape::MetaPut, b"NS") => Reply::NotStored,
        (Shape::MetaDelete, b"HD") => Reply::Deleted,
        (Shape::MetaPut | Shape::MetaDelete, b"EX") => Reply::Exists,
        (Shape::MetaPut | Shape::MetaDelete | Shape::MetaArith, b"NF") => Reply::Miss,
        _ => return Err(unexpected()),
    };
    Ok(Head::Done(reply))
}

fn classic(line: &[u8], expect: &Expect) -> Result<Head, ProtocolError> {
    let unexpected = || ProtocolError::unexpected("unexpected reply to a classic command", line);
    let reply = match (expect.shape, line) {
        (Shape::Get, b"END") => Reply::Miss,
        (Shape::Get, _) => return classic_value(line, expect).ok_or_else(unexpected),
        (Shape::Set | Shape::Put, b"STORED") => Reply::Stored,
        (Shape::Put, b"NOT_STORED") => Reply::NotStored,
        (Shape::Put | Shape::DeleteIf, b"EXISTS") => Reply::Exists,
        (Shape::Delete, b"DELETED") | (Shape::DeleteIf, b"STORED") => Reply::Deleted,
        (Shape::Touch, b"TOUCHED") => Reply::Touched,
        (Shape::Put | Shape::Delete | Shape::DeleteIf | Shape::Touch | Shape::Arith, b"NOT_FOUND") => Reply::Miss,
        (Shape::Arith, _) => Reply::Number(number(line.trim_ascii_end()).ok_or_else(unexpected)?),
        _ => return Err(unexpected()),
    };
    Ok(Head::Done(reply))
}

/// `VALUE <key> <flags> <bytes> [<token>]`, of the key that was asked for.
fn classic_value(line: &[u8], expect: &Expect) -> Option<Head> {
    let rest = line.strip_prefix(b"VALUE ")?;
    let rest = rest.strip_prefix(expect.key.as_ref()?.as_bytes())?.strip_prefix(b" ")?;
    let mut words = rest.split(|byte| *byte == b' ');
    let flags = u32::try_from(number(words.next()?)?).ok()?;
    let value_bytes = usize::try_from(number(words.next()?)?).ok()?;
    let token = words.next().map(number);
    let wants_token = expect.want.contains(Want::CAS);
    if words.next().is_some() || token == Some(None) || (wants_token && token.is_none()) {
        return None;
    }
    let flags = if expect.want.contains(Want::FLAGS) { flags } else { 0 };
    let token = token.flatten().filter(|_| wants_token);
    Some(Head::Value { value_bytes, item: Item { flags, ..Item::default() }, token })
}

/// An error line, told apart by whether the server is still in step after it, and by what it did to the item.
fn refused(line: &[u8], expect: &Expect) -> Option<Head> {
    let shown = || larder_core::text::Shown(line).to_string();
    if let Some(error) = refused_by_ours(line) {
        return Some(Head::Refused { error, in_step: true });
    }
    if let Some(message) = line.strip_prefix(b"SERVER_ERROR") {
        let no_room = contains(message, b"ut of memory") || contains(message, b"too large");
        // A failed plain set, and a failed `ms` in every mode, has deleted the old item.
        let (effect, gone) = match expect.shape {
            Shape::Set | Shape::MetaPut if no_room => (Effect::Unknown, "; the item that was there, if any, is gone"),
            shape if shape.is_read() || no_room => (Effect::NotApplied, ""),
            _ => (Effect::Unknown, ""),
        };
        let kind = if no_room { ErrorKind::Full } else { ErrorKind::Protocol };
        let error = Error::new(kind, format!("the server answered {}{gone}", shown())).effect(effect);
        return Some(Head::Refused { error, in_step: true });
    }
    if let Some(message) = line.strip_prefix(b"CLIENT_ERROR") {
        let not_a_number = contains(message, b"non-numeric");
        let kind = if not_a_number { ErrorKind::BadInput } else { ErrorKind::Protocol };
        let error = Error::new(kind, format!("the server answered {}", shown()));
        // "bad data chunk" and its like leave stray replies behind.
        return Some(Head::Refused { error, in_step: not_a_number });
    }
    if line == b"ERROR" || line.starts_with(b"ERROR ") {
        let error = Error::new(ErrorKind::Protocol, format!("the server does not know the command: {}", shown()));
        return Some(Head::Refused { error, in_step: false });
    }
    None
}

/// The error of Larder's own server, which says what is wrong with its store; nothing has changed then.
fn refused_by_ours(line: &[u8]) -> Option<Error> {
    let message = line.strip_prefix(b"SERVER_ERROR the store is ")?;
    let kinds = [ErrorKind::Corrupt, ErrorKind::Full, ErrorKind::Unavailable];
    let kind = kinds
        .into_iter()
        .find(|kind| message.strip_prefix(kind.as_str().as_bytes()).is_some_and(|rest| rest.starts_with(b":")))?;
    // Ours: it names a file and a place, and knows what it may say.
    let told = String::from_utf8_lossy(&line[..line.len().min(TOLD_BYTES_MAX)]);
    Some(Error::new(kind, format!("the server answered {told:?}")))
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(haystack, needle).is_some()
}
