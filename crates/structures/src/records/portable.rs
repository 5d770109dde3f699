//! A native shard as the item that the portable layout has in its place: the same bytes, but for the number of records that are known, which natively stands
//! under a key of its own.

use bytes::Bytes;
use larder_core::native::{Native, NativeReply};
use larder_core::{Key, Op};

use super::layout::{Header, Kept, Params};
use super::shared::{HIGHEST, highest_op};
use crate::manifest::Manifest;
use crate::name::Name;

/// What an index is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Shard(u32),
    /// The highest id. In the portable layout it follows from the shards.
    Highest,
}

impl Part {
    pub(crate) fn of_index(index: &str) -> Option<Part> {
        if index == HIGHEST {
            return Some(Part::Highest);
        }
        let shard = index.strip_prefix('s')?.parse().ok()?;
        // Only as it would be written: another spelling is another key.
        (format!("s{shard}") == index).then_some(Part::Shard(shard))
    }
}

/// What a manifest says where shards are items; `None` for parameters of another release.
pub(crate) fn manifest(manifest: &Manifest) -> Option<Manifest> {
    let params = Params { kept: Kept::Portable, ..Params::decode(&manifest.params)? };
    Some(Manifest { params: params.encode(), ..manifest.clone() })
}

/// The ops that read a native shard, and a byte behind it, and then the highest id: so no record that the shard has is above it.
pub(crate) fn read_ops(name: &Name, manifest: &Manifest, key: Key) -> Option<[Op; 2]> {
    let len_bytes = Params::decode(&manifest.params)?.shard_bytes() as u64 + 1;
    let read = Op::native(key, Native::BitsRead { offset_bytes: 0, len_bytes });
    Some([read, highest_op(name, manifest).ok()?])
}

/// The value of the item; `None` for what is no shard of this number, and where the highest id was lost.
pub(crate) fn item(
    manifest: &Manifest,
    shard: u32,
    bits: Option<NativeReply>,
    highest: Option<NativeReply>,
) -> Option<Bytes> {
    let params = Params::decode(&manifest.params)?;
    let Some(NativeReply::Bytes(bytes)) = bits else { return None };
    let Some(NativeReply::Scores(scores)) = highest else { return None };
    let header = Header::parse(&bytes)?;
    if (header.shard, header.known, bytes.len()) != (shard, 0, params.shard_bytes()) {
        return None;
    }
    // A whole number below 2^53: the highest id that was set, plus 1.
    let end = scores.first().copied().flatten()?.get() as u64;
    let known = end.saturating_sub(u64::from(shard) * u64::from(params.per_shard)).min(u64::from(params.per_shard));
    let mut value = bytes.to_vec();
    Header::raise_known(&mut value, u32::try_from(known).unwrap_or(u32::MAX));
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use larder_core::native::Score;

    use super::*;
    use crate::manifest::Kind;
    use crate::records::Schema;

    /// Four records of 4 bits in a shard.
    fn native() -> Manifest {
        let params = Params { kept: Kept::Native, per_shard: 4, schema: Schema::parse(["n:u4"]).unwrap() };
        Manifest::new(Kind::Records, 1, 1, params.encode())
    }

    fn read(shard: u32, bytes: &'static [u8], end: Option<u32>) -> Option<Bytes> {
        let bits = Some(NativeReply::Bytes(Bytes::from_static(bytes)));
        item(&native(), shard, bits, Some(NativeReply::Scores(vec![end.map(Score::from)])))
    }

    #[test]
    fn a_native_shard_has_golden_bytes_as_an_item() {
        let bytes = b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x01\x12\x30";
        // The highest id plus 1, and how many of the shard's records, 4 to 7, are known then.
        for (end, known) in [(0, 0), (4, 0), (5, 1), (7, 3), (8, 4), (100, 4)] {
            let value = read(1, bytes, Some(end)).unwrap();
            assert_eq!(value[..8], bytes[..8]);
            assert_eq!(value[8..], *[&[0, 0, 0, known][..], &bytes[12..]].concat(), "{end}");
        }
        let said = manifest(&native()).unwrap();
        assert_eq!(said.params[..5], *b"\0\x04\0\0\0");
        assert_eq!(said.params[5..], native().params[5..]);
    }

    #[test]
    fn what_is_no_shard_is_none() {
        let bytes = b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x01\x12\x30";
        assert_eq!(read(0, bytes, Some(8)), None, "of another number");
        assert_eq!(read(1, bytes, None), None, "the highest id was lost");
        for wrong in [&b""[..], b"text", &bytes[..17], b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x01\x12\x30\0"]
        {
            assert_eq!(read(1, Box::leak(wrong.to_vec().into_boxed_slice()), Some(8)), None, "{wrong:?}");
        }
        assert_eq!(item(&native(), 1, None, None), None);
    }

    #[test]
    fn indexes_are_read_as_they_are_written() {
        assert_eq!(Part::of_index("s7"), Some(Part::Shard(7)));
        assert_eq!(Part::of_index("highest"), Some(Part::Highest));
        for other in ["", "s", "0", "s07", "s+7", "s4294967296", "Highest"] {
            assert_eq!(Part::of_index(other), None, "{other}");
        }
    }

    /// What is longer than a shard is none: so it is asked for a byte more than a shard has.
    #[test]
    fn a_shard_is_read_with_the_byte_behind_it() {
        let key = Key::new("s0").unwrap();
        let [read, _] = read_ops(&Name::new("n").unwrap(), &native(), key.clone()).unwrap();
        assert_eq!(read, Op::native(key, Native::BitsRead { offset_bytes: 0, len_bytes: 18 + 1 }));
    }
}
