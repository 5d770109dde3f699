//! Replies, appended to a buffer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Appends a line and its end.
///
/// ```
/// use larder_proto::server::write;
/// let mut out = Vec::new();
/// write::line(&mut out, "STORED");
/// assert_eq!(out, b"STORED\r\n");
/// ```
#[inline]
pub fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a decimal number.
///
/// ```
/// use larder_proto::server::write;
/// let mut out = Vec::new();
/// write::number(&mut out, 42);
/// assert_eq!(out, b"42");
/// ```
#[inline]
pub fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends an item as `get` and its kin answer it.
///
/// ```
/// let mut out = Vec::new();
/// larder_proto::server::write::value(&mut out, b"k", 7, b"abc", Some(9));
/// assert_eq!(out, b"VALUE k 7 3 9\r\nabc\r\n");
/// ```
#[inline]
pub fn value(out: &mut Vec<u8>, key: &[u8], flags: u32, value: &[u8], cas: Option<u64>) {
    out.reserve(key.len() + value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    number(out, u64::from(flags));
    out.push(b' ');
    number(out, value.len() as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        number(out, cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a returned flag with a number, such as ` c17`.
///
/// ```
/// use larder_proto::server::write;
/// let mut out = Vec::new();
/// write::flag(&mut out, b'c', 17);
/// assert_eq!(out, b" c17");
/// ```
#[inline]
pub fn flag(out: &mut Vec<u8>, letter: u8, value: u64) {
    out.extend_from_slice(&[b' ', letter]);
    number(out, value);
}

/// Appends the flag `k`: the key, as base64 with the flag `b` behind it if it came so.
///
/// ```
/// use larder_proto::server::write;
/// let mut out = Vec::new();
/// write::key(&mut out, b"hits", true);
/// assert_eq!(out, b" kaGl0cw== b");
/// ```
pub fn key(out: &mut Vec<u8>, key: &[u8], base64: bool) {
    out.extend_from_slice(b" k");
    if base64 {
        key_text(out, key, true);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Appends a key as it is, or as base64.
///
/// ```
/// use larder_proto::server::write;
/// let mut out = Vec::new();
/// write::key_text(&mut out, b"hits", true);
/// assert_eq!(out, b"aGl0cw==");
/// ```
pub fn key_text(out: &mut Vec<u8>, key: &[u8], base64: bool) {
    if !base64 {
        out.extend_from_slice(key);
        return;
    }
    let start = out.len();
    out.resize(start + key.len().div_ceil(3) * 4, 0);
    // The room is exact, so that this cannot fail; what could not be encoded would be cut off.
    let text = STANDARD.encode_slice(key, &mut out[start..]).unwrap_or(0);
    out.truncate(start + text);
}

/// Appends a key as URLs escape it, for `lru_crawler metadump`.
///
/// ```
/// use larder_proto::server::write;
/// let mut out = Vec::new();
/// write::key_escaped(&mut out, b"page hits");
/// assert_eq!(out, b"page%20hits");
/// ```
pub fn key_escaped(out: &mut Vec<u8>, key: &[u8]) {
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble & 15)];
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte)]);
        }
    }
}

/// Appends a line of statistics.
///
/// ```
/// let mut out = Vec::new();
/// larder_proto::server::write::stat(&mut out, "pid", 7);
/// assert_eq!(out, b"STAT pid 7\r\n");
/// ```
pub fn stat(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    use std::io::Write;
    // A Vec takes whatever is written.
    let _ = write!(out, "STAT {name} {value}\r\n");
}
