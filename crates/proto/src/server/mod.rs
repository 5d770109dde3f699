//! The server's half: requests parsed, as memcached 1.6.45 parses them.
//!
//! [`parse`] turns one line into a [`Command`] that borrows from it; nothing is allocated. What a line means, which error it gets, whether
//! its body is swallowed and what `noreply` silences follow memcached's own parser to the letter, oddities included, and are held against the
//! real server by `crates/server/tests/differential.rs`:
//!
//! - words are apart by spaces only, and at most 23 of them count; a line ends in `\n`, a `\r` before it is left out;
//! - a line of fewer than 4 bytes is a bad line, not an unknown command;
//! - `noreply` is the last word, and silences errors too, but not a line that cannot be taken apart;
//! - a length that is no number, or negative, swallows nothing: what follows is read as commands;
//! - a number may be followed by anything that C's `isspace` takes, and flags over 32 bits are cut.
//!
//! | module | what it holds |
//! |---|---|
//! | [`words`] | words of a line, and numbers as memcached reads them |
//! | [`command`] | [`Command`], [`parse`] |
//! | [`meta`] | the flags of meta commands |
//! | [`write`](mod@write) | replies, appended to a buffer |

pub mod command;
pub mod meta;
pub mod words;
pub mod write;

pub use command::{Admin, Command, Put, PutVerb, flush_delay, number, parse};
pub use meta::{KeyScratch, Meta};

/// The longest key, as it stands in a line.
pub const KEY_BYTES_MAX: usize = crate::key::KEY_TEXT_BYTES_MAX;
/// The longest line of any command but a `get` or `gets`: more without a line end is no memcached client.
pub const LINE_BYTES_MAX: usize = 2_048;
/// Words of a line that count.
pub const WORDS_MAX: usize = 23;
/// Words of a meta command, its name and key included.
pub const META_WORDS_MAX: usize = 20;
/// The longest opaque token, its `O` included.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// What a line gets that cannot be taken apart.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// What to do with bytes that hold no line end.
///
/// ```
/// use larder_proto::server::{Unended, unended};
/// assert_eq!(unended(b"get k"), Unended::Wait);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unended {
    /// Wait for more.
    Wait,
    /// Nobody who speaks the protocol sends this: close.
    Close,
}

/// Whether bytes without a line end may become a line: up to 2,048 bytes, and longer only if it begins as a `get`.
///
/// ```
/// use larder_proto::server::{Unended, unended};
/// assert_eq!(unended(b"set k 0 0"), Unended::Wait);
/// assert_eq!(unended(&[b'x'; 4_096]), Unended::Close);
/// let many = [&b"get "[..], &[b'x'; 4_096]].concat();
/// assert_eq!(unended(&many), Unended::Wait);
/// ```
pub fn unended(bytes: &[u8]) -> Unended {
    if bytes.len() <= LINE_BYTES_MAX {
        return Unended::Wait;
    }
    let spaces = bytes.iter().take_while(|&&byte| byte == b' ').count();
    let text = &bytes[spaces..];
    if spaces <= 100 && (text.starts_with(b"get ") || text.starts_with(b"gets ")) {
        Unended::Wait
    } else {
        Unended::Close
    }
}
