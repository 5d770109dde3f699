//! Not for programs: items as they are stored, and the tokens of them, for the proof's fuzzing.

use bytes::Bytes;

use crate::layout::{decode, encode, expected};

/// An item as it is stored.
pub fn item(version: u64, flags: u32, value: &[u8]) -> Vec<u8> {
    encode(version, flags, value)
}

/// Reads an item, and its own encoding again: whether it was taken.
///
/// # Errors
/// It does not come back, or its token says something else than what was read.
pub fn read_item(bytes: &[u8]) -> Result<bool, String> {
    let Some((header, value)) = decode(Bytes::copy_from_slice(bytes)) else { return Ok(false) };
    let cas = header.cas(bytes.len());
    if !expected(cas).is_some_and(|(head, length)| bytes.starts_with(&head) && length == bytes.len() as u64) {
        return Err(format!("an item of {} bytes has the token {cas:?}", bytes.len()));
    }
    let again = decode(encode(cas.token, header.flags, &value).into());
    match again {
        Some((same, whole)) if same.flags == header.flags && whole == value => Ok(true),
        other => Err(format!("{header:?} with {} bytes comes back as {other:?}", value.len())),
    }
}
