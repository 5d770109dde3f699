//! Lines to commands.

use memchr::memchr;

use super::meta::{self, KeyScratch, Meta};
use super::words::{Words, i32_of, loose_i32, loose_u64, noreply, u32_of, u64_of};
use super::{BAD_FORMAT, KEY_BYTES_MAX};

/// Which classic storage command.
///
/// ```
/// use larder_proto::server::{Command, KeyScratch, PutVerb, parse};
/// let mut scratch = KeyScratch::new();
/// let Command::Put(put) = parse(b"cas k 0 0 2 9\r\n", &mut scratch) else { panic!() };
/// assert_eq!(put.verb, PutVerb::Cas(9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutVerb {
    /// `set`
    Set,
    /// `add`
    Add,
    /// `replace`
    Replace,
    /// `append`
    Append,
    /// `prepend`
    Prepend,
    /// `cas`, with its token.
    Cas(u64),
}

/// A classic storage command; its value follows the line.
///
/// ```
/// use larder_proto::server::{Command, KeyScratch, parse};
/// let mut scratch = KeyScratch::new();
/// let Command::Put(put) = parse(b"set k 7 60 2 noreply\r\n", &mut scratch) else { panic!() };
/// assert_eq!((put.flags, put.exptime, put.bytes, put.noreply), (7, 60, 2, true));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Which.
    pub verb: PutVerb,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The life, as it was sent.
    pub exptime: i32,
    /// The length of the value, without the line end that follows it.
    pub bytes: usize,
    /// True if nobody waits for the reply.
    pub noreply: bool,
}

/// What a line asks for.
///
/// ```
/// use larder_proto::server::{Command, KeyScratch, parse};
/// let mut scratch = KeyScratch::new();
/// let Command::Delete { key, noreply } = parse(b"delete k\r\n", &mut scratch) else { panic!() };
/// assert_eq!((key, noreply), (&b"k"[..], false));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`: at least one key.
    Get {
        /// The keys.
        keys: Words<'a>,
        /// True if tokens are to be told.
        cas: bool,
        /// The life to give, as it was sent.
        touch: Option<i32>,
    },
    /// A classic storage command.
    Put(Put<'a>),
    /// `mg`
    MetaGet(Meta<'a>),
    /// `ms`, and the length of its value.
    MetaPut(Meta<'a>, usize),
    /// `md`
    MetaDelete(Meta<'a>),
    /// `ma`
    MetaArith(Meta<'a>),
    /// `me`
    MetaDebug(Meta<'a>),
    /// `mn`
    MetaNoop,
    /// `delete`
    Delete {
        /// The key.
        key: &'a [u8],
        /// True if nobody waits for the reply.
        noreply: bool,
    },
    /// `incr`, `decr`
    Arith {
        /// The key.
        key: &'a [u8],
        /// True for `incr`.
        incr: bool,
        /// By how much.
        delta: u64,
        /// True if nobody waits for the reply.
        noreply: bool,
    },
    /// `touch`
    Touch {
        /// The key.
        key: &'a [u8],
        /// The life to give, as it was sent.
        exptime: i32,
        /// True if nobody waits for the reply.
        noreply: bool,
    },
    /// `stats`, and its words.
    Stats(Words<'a>),
    /// `version`
    Version,
    /// `quit`
    Quit,
    /// A command that is not about items: its name and words, and whether nobody waits for the reply.
    Admin(Admin, Words<'a>, bool),
    /// An error: what to answer (unless silent), and how many bytes behind the line to pass over.
    Refuse {
        /// The line to answer, without its end.
        reply: &'static str,
        /// True if nobody waits for it.
        silent: bool,
        /// The bytes of a body.
        swallow: usize,
    },
    /// Close at once: it speaks HTTP.
    Close,
}

/// Commands that are not about items.
///
/// ```
/// use larder_proto::server::{Admin, Command, KeyScratch, parse};
/// let mut scratch = KeyScratch::new();
/// assert!(matches!(parse(b"flush_all 5\r\n", &mut scratch), Command::Admin(Admin::FlushAll, _, false)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Admin {
    Shutdown,
    Slabs,
    CacheMemlimit,
    FlushAll,
    LruCrawler,
    Verbosity,
    Lru,
    Watch,
    RefreshCerts,
}

const fn refuse<'a>(reply: &'static str, silent: bool, swallow: usize) -> Command<'a> {
    Command::Refuse { reply, silent, swallow }
}

const BAD: Command<'_> = refuse(BAD_FORMAT, false, 0);

/// Parses a line, its `\n` included. `scratch` is where a base64 key is decoded to.
///
/// ```
/// use larder_proto::server::{Command, KeyScratch, parse};
/// let mut scratch = KeyScratch::new();
/// match parse(b"mg aGl0cw== b v\r\n", &mut scratch) {
///     Command::MetaGet(meta) => assert!(meta.key == b"hits" && meta.value && meta.base64),
///     other => panic!("{other:?}"),
/// }
/// ```
pub fn parse<'a>(line: &'a [u8], scratch: &'a mut KeyScratch) -> Command<'a> {
    if line.len() < 4 {
        return BAD;
    }
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let (name, rest) = text.split_at(memchr(b' ', text).unwrap_or(text.len()));
    let words = Words::of(rest);
    match name {
        b"get" => get(words, false),
        b"set" => put(PutVerb::Set, words),
        b"mg" => told(meta(words, scratch), Command::MetaGet),
        b"ms" => meta_put(words, scratch),
        // One message for all that may be wrong with its flags.
        b"ma" => told(meta(words, scratch).map_err(|error| error.and(Some(BAD_ARITH))), Command::MetaArith),
        b"md" => told(meta(words, scratch), Command::MetaDelete),
        b"mn" => Command::MetaNoop,
        b"me" => meta_debug(words, scratch),
        b"gets" => get(words, true),
        b"incr" => arith(words, true),
        b"decr" => arith(words, false),
        b"add" => put(PutVerb::Add, words),
        b"cas" => put(PutVerb::Cas(0), words),
        b"append" => put(PutVerb::Append, words),
        b"prepend" => put(PutVerb::Prepend, words),
        b"replace" => put(PutVerb::Replace, words),
        b"delete" => delete(words),
        b"touch" => touch(words),
        b"gat" => get_and_touch(words, false),
        b"gats" => get_and_touch(words, true),
        b"stats" => Command::Stats(words),
        b"version" => Command::Version,
        b"quit" => Command::Quit,
        b"watch" => Command::Admin(Admin::Watch, words, false),
        _ => other(Words::of(text)),
    }
}

const BAD_ARITH: &str = "CLIENT_ERROR invalid or duplicate flag";

fn get(keys: Words<'_>, cas: bool) -> Command<'_> {
    if { keys }.next().is_none() { BAD } else { Command::Get { keys, cas, touch: None } }
}

fn get_and_touch(mut words: Words<'_>, cas: bool) -> Command<'_> {
    let exptime = words.next();
    match (exptime, { words }.next()) {
        (Some(exptime), Some(_)) => match i32_of(exptime) {
            Some(exptime) => Command::Get { keys: words, cas, touch: Some(exptime) },
            // A `noreply` at the end is a key, as any other word there.
            None => refuse("CLIENT_ERROR invalid exptime argument", false, 0),
        },
        _ => BAD,
    }
}

fn put(verb: PutVerb, mut words: Words<'_>) -> Command<'_> {
    let (Some(key), Some(flags), Some(exptime), Some(bytes)) = (words.next(), words.next(), words.next(), words.next())
    else {
        return BAD;
    };
    let Some(bytes) = body_bytes(bytes) else { return BAD };
    // With four words behind the name, the length is the last one, and it is a number.
    let noreply = noreply(words, 5);
    let token = match verb {
        PutVerb::Cas(_) => words.next().and_then(u64_of).map(PutVerb::Cas),
        verb => Some(verb),
    };
    match (loose_u64(flags), loose_i32(exptime), token) {
        (Some(flags), Some(exptime), Some(verb)) if key.len() <= KEY_BYTES_MAX => {
            Command::Put(Put { verb, key, flags: flags as u32, exptime, bytes, noreply })
        }
        _ => refuse(BAD_FORMAT, noreply, bytes + 2),
    }
}

/// The length of a value that follows; `None` for one that no value can have.
fn body_bytes(word: &[u8]) -> Option<usize> {
    i32_of(word).filter(|&bytes| (0..=i32::MAX - 2).contains(&bytes)).and_then(|bytes| usize::try_from(bytes).ok())
}

/// The key and flags, or what is wrong with them; `None` for a line that is none of a meta command.
fn meta<'a>(mut words: Words<'a>, scratch: &'a mut KeyScratch) -> Result<Meta<'a>, Option<&'static str>> {
    let key = words.next().ok_or(None)?;
    meta::parse(key, words, 2, scratch).ok_or(None)?.map_err(Some)
}

fn told<'a>(parsed: Result<Meta<'a>, Option<&'static str>>, command: fn(Meta<'a>) -> Command<'a>) -> Command<'a> {
    match parsed {
        Ok(meta) => command(meta),
        Err(reply) => refuse(reply.unwrap_or(BAD_FORMAT), false, 0),
    }
}

fn meta_put<'a>(mut words: Words<'a>, scratch: &'a mut KeyScratch) -> Command<'a> {
    let (Some(key), Some(bytes)) = (words.next(), words.next()) else { return BAD };
    let parsed = meta::parse(key, words, 3, scratch);
    let (Some(parsed), Some(bytes)) = (parsed, body_bytes(bytes)) else { return BAD };
    match parsed {
        Ok(meta) => Command::MetaPut(meta, bytes),
        Err(reply) => refuse(reply, false, bytes + 2),
    }
}

fn meta_debug<'a>(mut words: Words<'a>, scratch: &'a mut KeyScratch) -> Command<'a> {
    let Some(key) = words.next() else { return BAD };
    let is_word = |word: &[u8]| (b'A'..=b'z').contains(&word[0]) || word[0].is_ascii_digit();
    if !words.take(super::WORDS_MAX - 2).all(is_word) {
        return BAD;
    }
    meta::debug_key(key, words, scratch).map_or(BAD, Command::MetaDebug)
}

fn delete(mut words: Words<'_>) -> Command<'_> {
    let Some(key) = words.next() else { return BAD };
    let noreply = key == b"noreply" && { words }.next().is_none() || noreply(words, 2);
    if key.len() > KEY_BYTES_MAX { refuse(BAD_FORMAT, noreply, 0) } else { Command::Delete { key, noreply } }
}

fn arith(mut words: Words<'_>, incr: bool) -> Command<'_> {
    let (Some(key), Some(delta)) = (words.next(), words.next()) else { return BAD };
    let noreply = delta == b"noreply" && { words }.next().is_none() || noreply(words, 3);
    if key.len() > KEY_BYTES_MAX {
        return refuse(BAD_FORMAT, noreply, 0);
    }
    match u64_of(delta) {
        Some(delta) => Command::Arith { key, incr, delta, noreply },
        None => refuse("CLIENT_ERROR invalid numeric delta argument", noreply, 0),
    }
}

fn touch(mut words: Words<'_>) -> Command<'_> {
    let (Some(key), Some(exptime)) = (words.next(), words.next()) else { return BAD };
    let noreply = exptime == b"noreply" && { words }.next().is_none() || noreply(words, 3);
    if key.len() > KEY_BYTES_MAX {
        return refuse(BAD_FORMAT, noreply, 0);
    }
    match i32_of(exptime) {
        Some(exptime) => Command::Touch { key, exptime, noreply },
        None => refuse("CLIENT_ERROR invalid exptime argument", noreply, 0),
    }
}

/// Everything else: commands that are rare, and what is none. Spaces before the name do not matter to these.
fn other(mut words: Words<'_>) -> Command<'_> {
    let silent = noreply(words, 0);
    let last = words.take(super::WORDS_MAX).last();
    let count = words.take(super::WORDS_MAX).count();
    let admin = match words.next() {
        Some(b"shutdown") => Admin::Shutdown,
        Some(b"slabs") => Admin::Slabs,
        Some(b"cache_memlimit") => Admin::CacheMemlimit,
        Some(b"flush_all") => Admin::FlushAll,
        Some(b"lru_crawler") => Admin::LruCrawler,
        Some(b"verbosity") => Admin::Verbosity,
        Some(b"lru") => Admin::Lru,
        Some(b"refresh_certs") => Admin::RefreshCerts,
        _ if count > 1 && last.is_some_and(|last| last.starts_with(b"HTTP/")) => return Command::Close,
        _ => return refuse("ERROR", silent, 0),
    };
    Command::Admin(admin, words, silent)
}

/// The delay of a `flush_all`, in seconds: its word, unless that is the `noreply`.
///
/// # Errors
/// What to answer.
///
/// ```
/// use larder_proto::server::{flush_delay, words::Words};
/// assert_eq!(flush_delay(Words::of(b"5"), false), Ok(5));
/// assert_eq!(flush_delay(Words::of(b"noreply"), true), Ok(0));
/// ```
pub fn flush_delay(words: Words<'_>, noreply: bool) -> Result<i32, &'static str> {
    if { words }.count() == usize::from(noreply) {
        return Ok(0);
    }
    { words }.next().and_then(i32_of).ok_or("CLIENT_ERROR invalid exptime argument")
}

/// A number that an admin command takes.
///
/// ```
/// use larder_proto::server::number;
/// assert_eq!((number(Some(b"64")), number(Some(b"x")), number(None)), (Some(64), None, None));
/// ```
pub fn number(word: Option<&[u8]>) -> Option<u32> {
    word.and_then(u32_of)
}

#[cfg(test)]
mod tests {
    use super::super::KeyScratch;
    use super::*;

    #[test]
    fn a_get_and_touch_with_a_bad_life_is_answered_whatever_its_last_key_is() {
        let bad: [&[u8]; 4] =
            [b"gat x n noreply\r\n", b"gats x noreply\r\n", b"gat 99999999999 n noreply\r\n", b"gat x n\r\n"];
        for line in bad {
            let mut scratch = KeyScratch::new();
            let Command::Refuse { reply, silent, swallow } = parse(line, &mut scratch) else { panic!() };
            assert_eq!((reply, silent, swallow), ("CLIENT_ERROR invalid exptime argument", false, 0));
        }
        // It is a key where the life is a number.
        let mut scratch = KeyScratch::new();
        let Command::Get { keys, .. } = parse(b"gat 0 n noreply\r\n", &mut scratch) else { panic!() };
        assert!(keys.eq([&b"n"[..], b"noreply"]));
    }
}
