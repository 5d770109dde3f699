//! Not for programs: items as they are stored and the tokens of them, replies of servers, and the handshake, for the proof's fuzzing.

use bytes::Bytes;
use fastrand::Rng;
pub use redis::{Value, parse_redis_value};

pub use crate::cluster::fuzz as maps;
pub use crate::codec::fuzz::Ask;
use crate::config::WaitReplicas;
use crate::handshake;
use crate::layout::{decode, encode, expected};
use crate::node::Role;

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

/// Any bytes.
pub(crate) fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.usize(0..=most);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// Reads what a server, alone or one of a cluster, answered to the questions of a handshake: what was found, in words.
///
/// # Errors
/// It cannot serve as a store.
pub fn read_handshake(answers: Vec<Value>, is_member: bool) -> larder_core::Result<String> {
    let role = if is_member { Role::Member } else { Role::Single };
    let wait = WaitReplicas { replicas: 1, timeout: std::time::Duration::from_millis(1) };
    handshake::understood(answers, role, is_member.then_some(wait)).map(|info| format!("{info:?}"))
}

/// How many answers those are, of which the last may be left out.
pub fn questions() -> usize {
    let wait = WaitReplicas { replicas: 1, timeout: std::time::Duration::from_millis(1) };
    handshake::questions(Some(wait)).cmd_iter().count()
}
