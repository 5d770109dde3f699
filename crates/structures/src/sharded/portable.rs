//! A native shard as the item that the portable layout has in its place: the key, the marks and the elements are the same.

use bytes::Bytes;
use larder_core::native::NativeReply;
use larder_core::{Key, Op};

use super::core::{all, all_op, collection};
use super::layout::{Kept, Mark, Params, Shard, unescaped};
use crate::ids::random_id;
use crate::manifest::{Kind, Manifest};

/// What a manifest says where shards are items; `None` for parameters of another release.
pub(crate) fn manifest(manifest: &Manifest) -> Option<Manifest> {
    let params = Params { kept: Kept::Portable, ..Params::decode(&manifest.params)? };
    Some(Manifest { params: params.encode(), ..manifest.clone() })
}

/// The op that reads a native shard.
pub(crate) fn read_op(kind: Kind, key: Key) -> Op {
    all_op(collection(kind), key)
}

/// The value and the flags of the item; `None` for what is no shard, or was lost and made again by a write.
pub(crate) fn item(kind: Kind, reply: Option<NativeReply>) -> Option<(Bytes, u32)> {
    let (mark, all) = all(reply).ok()?;
    if mark == Mark::Missing {
        return None;
    }
    let mut shard = Shard { tag: random_id(), ..Shard::empty(mark) };
    shard.elements = all.into_iter().filter_map(|(stored, value)| Some((unescaped(&stored)?, value))).collect();
    Some((shard.encode(collection(kind)), shard.flags(collection(kind))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static [u8]) -> Bytes {
        Bytes::from_static(text)
    }

    #[test]
    fn a_native_shard_has_golden_bytes_as_an_item() {
        let pairs = vec![
            (bytes(b"b"), bytes(b"2")),
            (bytes(b"-2147483648"), bytes(b"0")),
            (bytes(b"a"), bytes(b"")),
            // A name that could be taken for a mark.
            (bytes(b"\0-2147483647"), bytes(b"1")),
        ];
        let (value, flags) = item(Kind::ShardedHash, Some(NativeReply::Pairs(pairs))).unwrap();
        assert_eq!(flags, 3 * 4 + 1);
        assert_eq!(value[..2], *b"\x01\x01");
        // Then who changed it last, drawn anew.
        assert_eq!(value[10..], *b"\x03\0\0\0\x0b-2147483647\x011\x01a\0\x01b\x012");
        let set = |mark| Some(NativeReply::Members(vec![bytes(b"7"), bytes(mark)]));
        for (mark, byte) in [(&b"-2147483646"[..], 0), (b"-2147483648", 1), (b"-2147483647", 2)] {
            let (value, flags) = item(Kind::ShardedSet, set(mark)).unwrap();
            assert_eq!((value[1], flags, &value[10..]), (byte, 4 + u32::from(byte), &b"\x01\0\0\0\x017"[..]));
        }
    }

    /// Whoever writes it knows by that whether it is the one that he wrote.
    #[test]
    fn an_item_says_that_it_was_made_by_a_change_of_its_own() {
        let made = || item(Kind::ShardedSet, Some(NativeReply::Members(vec![bytes(b"-2147483648")]))).unwrap().0;
        assert_ne!(made()[2..10], made()[2..10]);
    }

    #[test]
    fn what_has_no_mark_is_none() {
        assert_eq!(item(Kind::ShardedSet, Some(NativeReply::Members(vec![bytes(b"7")]))), None);
        assert_eq!(item(Kind::ShardedSet, Some(NativeReply::Members(Vec::new()))), None);
        assert_eq!(item(Kind::ShardedHash, Some(NativeReply::Count(1))), None);
        assert_eq!(item(Kind::ShardedHash, None), None);
    }

    #[test]
    fn a_manifest_says_that_shards_are_items() {
        let native = Params { kept: Kept::Native, is_dense: true, limits: None };
        let found = Manifest::new(Kind::ShardedSet, 1, 1, native.encode());
        let said = manifest(&found).unwrap();
        assert_eq!(said, Manifest { params: bytes(b"\0\x01"), ..found });
    }
}
