//! The bytes of an entry, and where it stands. Pure.
//!
//! | part | bytes | what |
//! |---|---|---|
//! | magic | 4 | `LRC` and the version, 1 |
//! | draw | 8 | drawn at random for each rebuild: a write knows itself by it |
//! | written | varint | ms since the Unix epoch, by the writer's wall clock; used only where the store tells no remaining life |
//! | life | varint | ms that the item was given to live; less what remains of it, that is the record's age by the store's clock |
//! | fresh | varint | the value is fresh while the age is under this many ms |
//! | served | varint | the value may be served stale while the age is under this many ms; 0: there is no value |
//! | lease | varint | somebody rebuilds while the age is under this many ms; 0: nobody does |
//! | key | varint + *n* | length, bytes |
//! | value | | the rest |

use bytes::{BufMut, Bytes};
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};

use crate::append::layout::{put_varint, take_length, take_varint};
use crate::name::{Letters, letters};

/// The version of the layout, in the manifest.
pub(crate) const LAYOUT: u8 = 1;
/// The one parameter of a cache: how a key becomes an index. 1: see [`index_of`].
pub(super) const HASH_XXH3_128: u8 = 1;
/// The most that a record takes beside its key and value.
pub(super) const HEAD_BYTES_MAX: usize = 4 + 8 + 6 * 10;

const MAGIC: [u8; 4] = *b"LRC\x01";
const DRAW_BYTES: usize = 8;

/// What stands under an entry's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) draw: u64,
    pub(super) written_ms: u64,
    pub(super) life_ms: u64,
    pub(super) fresh_ms: u64,
    pub(super) lease_ms: u64,
    pub(super) key: Bytes,
    pub(super) content: Option<Content>,
}

/// A value, and how long it is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) value: Bytes,
    /// How long from the writing of the record on it may be served; more than 0.
    pub(super) served_ms: u64,
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let (value, served_ms) = match &self.content {
            Some(content) => (&content.value[..], content.served_ms),
            None => (&[][..], 0),
        };
        let mut out = Vec::with_capacity(HEAD_BYTES_MAX + self.key.len() + value.len());
        out.put_slice(&MAGIC);
        out.put_u64_le(self.draw);
        for number in [self.written_ms, self.life_ms, self.fresh_ms, served_ms, self.lease_ms, self.key.len() as u64] {
            put_varint(&mut out, number);
        }
        out.put_slice(&self.key);
        out.put_slice(value);
        out.into()
    }

    /// Reads stored bytes; key and value share them.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no record.
    pub(super) fn decode(bytes: &Bytes) -> Result<Record> {
        Record::parse(bytes).ok_or_else(|| {
            Error::new(ErrorKind::LayoutMismatch, format!("this is no entry of a cache: {}", Shown(bytes)))
        })
    }

    fn parse(bytes: &Bytes) -> Option<Record> {
        let body = bytes.strip_prefix(&MAGIC)?;
        let (draw, mut rest) = body.split_first_chunk::<DRAW_BYTES>()?;
        let mut number = || take_varint(&mut rest);
        let (written_ms, life_ms, fresh_ms, served_ms, lease_ms) =
            (number()?, number()?, number()?, number()?, number()?);
        let key_bytes = take_length(&mut rest)?;
        let at = bytes.len() - rest.len();
        if key_bytes > rest.len() || fresh_ms > served_ms || (served_ms == 0 && key_bytes < rest.len()) {
            return None;
        }
        let (key, value) = (bytes.slice(at..at + key_bytes), bytes.slice(at + key_bytes..));
        let content = (served_ms > 0).then_some(Content { value, served_ms });
        Some(Record { draw: u64::from_le_bytes(*draw), written_ms, life_ms, fresh_ms, lease_ms, key, content })
    }
}

/// Where the entry of a key stands: 14 characters of the base64 alphabet of URLs, the upper 84 bits of XXH3-128, seed 0.
///
/// Two keys that share an index share an entry: then each misses what the other wrote, and nobody is served another key's value.
pub(super) fn index_of(key: &[u8]) -> Letters<14> {
    letters(xxhash_rust::xxh3::xxh3_128(key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> Record {
        Record {
            draw: 0x0102_0304_0506_0708,
            written_ms: 200,
            life_ms: 7_000,
            fresh_ms: 5_000,
            lease_ms: 0,
            key: Bytes::from_static(b"k\xff"),
            content: Some(Content { value: Bytes::from_static(b"value"), served_ms: 6_500 }),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = record().encode();
        assert_eq!(
            &bytes[..],
            b"LRC\x01\x08\x07\x06\x05\x04\x03\x02\x01\xc8\x01\xd8\x36\x88\x27\xe4\x32\0\x02k\xffvalue"
        );
        assert_eq!(Record::decode(&bytes).unwrap(), record());
        let lease = Record { fresh_ms: 0, lease_ms: 30_000, content: None, ..record() };
        let bytes = lease.encode();
        assert_eq!(&bytes[..], b"LRC\x01\x08\x07\x06\x05\x04\x03\x02\x01\xc8\x01\xd8\x36\0\0\xb0\xea\x01\x02k\xff");
        assert_eq!(Record::decode(&bytes).unwrap(), lease);
    }

    #[test]
    fn indexes_have_golden_vectors() {
        // XXH3-128 of nothing is 99aa06d3014798d86001c324468d497f.
        assert_eq!(index_of(b"").as_ref(), "maoG0wFHmNhgAc");
        assert_eq!(index_of(b"key").as_ref(), "pL305WRWTPi76g");
        assert_eq!(index_of(b"k").as_ref(), "BMN9mZPii-apIe");
        assert_eq!(index_of(b"other").as_ref(), "8aHe0YPt7vLKvR");
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let empty = Record { content: Some(Content { value: Bytes::new(), served_ms: 5_000 }), ..record() };
        assert_eq!(Record::decode(&empty.encode()).unwrap(), empty);
    }

    #[test]
    fn what_is_cut_or_makes_no_sense_is_a_mismatch() {
        let bytes = record().encode();
        for end in 0..bytes.len() - b"value".len() {
            let error = Record::decode(&bytes.slice(..end)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{end}");
        }
        let fresh_and_not_served = Record { fresh_ms: 6_501, ..record() };
        assert!(Record::decode(&fresh_and_not_served.encode()).is_err());
        let mut lease = Record { fresh_ms: 0, content: None, ..record() }.encode().to_vec();
        lease.push(0);
        assert!(Record::decode(&lease.into()).is_err(), "a value behind a record that has none");
    }

    /// What a caller may put into an entry is what this leaves: another would let in what a store refuses, or refuse what fits.
    #[test]
    fn a_record_takes_what_is_set_aside_and_the_length_of_its_key_beside() {
        let most = u64::MAX;
        let content = Some(Content { value: Bytes::new(), served_ms: most });
        let record =
            Record { draw: most, written_ms: most, life_ms: most, fresh_ms: most, lease_ms: most, content, ..record() };
        let length_of_the_key = 1;
        assert_eq!(record.encode().len() - record.key.len() + 10 - length_of_the_key, HEAD_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes: Vec<u8>, cut in 0usize..40, at in 0usize..40, byte: u8) {
            _ = Record::decode(&Bytes::from(bytes));
            let mut spoilt = record().encode().to_vec();
            spoilt.truncate(spoilt.len().saturating_sub(cut));
            if let Some(spot) = spoilt.get_mut(at) {
                *spot = byte;
            }
            _ = Record::decode(&spoilt.into());
        }

        #[test]
        fn what_is_written_is_read(
            numbers in prop::array::uniform5(any::<u64>()), key: Vec<u8>, value: Option<Vec<u8>>, served_ms in 1u64..
        ) {
            let [draw, written_ms, life_ms, fresh_ms, lease_ms] = numbers;
            let content = value.map(|value| Content { value: value.into(), served_ms });
            let fresh_ms = fresh_ms.min(content.as_ref().map_or(0, |content| content.served_ms));
            let record = Record { draw, written_ms, life_ms, fresh_ms, lease_ms, key: key.into(), content };
            let bytes = record.encode();
            let beside = record.key.len() + record.content.as_ref().map_or(0, |content| content.value.len());
            prop_assert!(bytes.len() <= HEAD_BYTES_MAX + beside);
            prop_assert_eq!(Record::decode(&bytes).unwrap(), record);
        }
    }
}
