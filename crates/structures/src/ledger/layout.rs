//! The bytes of a ledger's entries, and what they fold into.
//!
//! A ledger is one append-encoded value, shard 0 of its structure; an element of it is an entry:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | number of the piece: of its chunk, its window, … |
//! | 8 | 2 | part: which of several pieces of that number |
//! | 10 | 8 | incarnation: drawn at random by whoever made the piece |
//!
//! Numbers are little-endian. An entry is put when its piece was made, and removed when its piece is past its life.

use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};

use crate::append::{Distinct, Elements};

/// What an entry takes.
pub(crate) const ENTRY_BYTES: usize = 18;

/// A piece that was made: which one, and which life of it.
///
/// Ordered by number, then part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) part: u16,
    /// Stands in the piece, too: where another stands there, or none, this one was lost.
    pub(crate) incarnation: u64,
}

impl Piece {
    pub(crate) fn encode(self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..10].copy_from_slice(&self.part.to_le_bytes());
        out[10..].copy_from_slice(&self.incarnation.to_le_bytes());
        out
    }

    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no entry.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Piece> {
        let fields = || {
            let (number, rest) = bytes.split_first_chunk()?;
            let (part, rest) = rest.split_first_chunk()?;
            let incarnation = rest.try_into().ok()?;
            Some(Piece {
                number: u64::from_le_bytes(*number),
                part: u16::from_le_bytes(*part),
                incarnation: u64::from_le_bytes(incarnation),
            })
        };
        fields().ok_or_else(|| {
            let detail = format!("an entry of {} bytes is none of a list of pieces: {}", bytes.len(), Shown(bytes));
            Error::new(ErrorKind::LayoutMismatch, detail)
        })
    }
}

/// The elements of a ledger are its entries.
pub(crate) struct Entries;

impl Elements for Entries {
    type State<'v> = Distinct<'v>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let piece = Piece { number: 0x0102_0304_0506_0708, part: 0x090a, incarnation: 0x1112_1314_1516_1718 };
        assert_eq!(piece.encode(), *b"\x08\x07\x06\x05\x04\x03\x02\x01\x0a\x09\x18\x17\x16\x15\x14\x13\x12\x11");
        assert_eq!(Piece::decode(&piece.encode()).unwrap(), piece);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_entry_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            match Piece::decode(&bytes) {
                Ok(piece) => prop_assert_eq!(&piece.encode()[..], &bytes[..]),
                Err(error) => {
                    prop_assert_ne!(bytes.len(), ENTRY_BYTES);
                    prop_assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
                }
            }
        }
    }
}
