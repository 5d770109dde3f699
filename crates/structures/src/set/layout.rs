//! What a set's elements mean, which shard a member belongs to, and the text encoding.

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::append::{Action, Distinct, Elements, Fold};

/// The version of the binary layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;
/// The hash that spreads members over shards, as the manifest's parameters record it.
pub(crate) const HASH_XXH3: u8 = 1;

/// The shard of a member: the high half of XXH3-64 times the number of shards.
///
/// Frozen: it says where members are. Twice the shards split each in two, and leave the others alone.
pub(crate) fn shard_of(member: &[u8], shards: u16) -> u16 {
    let product = u128::from(xxh3_64(member)) * u128::from(shards);
    // Less than `shards`, so it fits.
    (product >> 64) as u16
}

/// The elements of a set are its members.
pub(crate) struct SetElements;

impl Elements for SetElements {
    type State<'v> = Distinct<'v>;
}

/// Whether one member is there: no table is built.
#[derive(Debug)]
pub(crate) struct Has<'m> {
    pub(crate) member: &'m [u8],
    pub(crate) is_there: bool,
}

impl Fold<'_> for Has<'_> {
    fn apply(&mut self, action: Action, element: &[u8]) {
        if element == self.member {
            self.is_there = action == Action::Put;
        }
    }
}

/// A text value, decoded.
#[derive(Debug)]
pub(crate) struct Text<'v> {
    pub(crate) members: Distinct<'v>,
    /// Removals in it: the article's measure of dirt.
    pub(crate) removals: u64,
}

/// Adds an operation to a text.
///
/// # Errors
/// [`ErrorKind::BadInput`] for a member that the text cannot hold.
pub(crate) fn put_text(out: &mut Vec<u8>, action: Action, member: &[u8]) -> Result<()> {
    if member.is_empty() {
        let detail = "a member is empty; the text encoding takes members of at least 1 byte";
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    if let Some(byte) = member.iter().find(|byte| byte.is_ascii_control() || **byte == b' ') {
        let detail = format!(
            "a member holds the byte 0x{byte:02x}; the text encoding takes no spaces and no control characters: {}",
            Shown(member)
        );
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    out.push(if action == Action::Put { b'+' } else { b'-' });
    out.extend_from_slice(member);
    out.push(b' ');
    Ok(())
}

/// Reads a text: operations parted by white space.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for a word that begins with neither `+` nor `-`.
pub(crate) fn decode_text(value: &[u8]) -> Result<Text<'_>> {
    let mut text = Text { members: Distinct::default(), removals: 0 };
    // What the article's `split()` parts at; \x0b is none to Rust's `is_ascii_whitespace`.
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    for word in value.split(is_space).filter(|word| !word.is_empty()) {
        match word.split_first() {
            Some((b'+', member)) => text.members.apply(Action::Put, member),
            Some((b'-', member)) => {
                text.removals += 1;
                text.members.apply(Action::Remove, member);
            }
            _ => {
                let detail = format!("this is no set as text, words begin with + or -: {}", Shown(word));
                return Err(Error::new(ErrorKind::LayoutMismatch, detail));
            }
        }
    }
    Ok(text)
}

impl Text<'_> {
    /// Its length, compacted.
    pub(crate) fn live_bytes(&self) -> usize {
        self.members.0.iter().map(|member| member.len() + 2).sum()
    }

    /// The same members, added once each.
    pub(crate) fn compacted(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.live_bytes());
        for member in &self.members.0 {
            // Members that were read are written as they were, even those that we would not take from a caller.
            out.push(b'+');
            out.extend_from_slice(member);
            out.push(b' ');
        }
        Bytes::from(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(action: Action, members: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for member in members {
            put_text(&mut out, action, member.as_bytes()).unwrap();
        }
        out
    }

    fn sorted<'v>(text: &Text<'v>) -> Vec<&'v [u8]> {
        let mut members: Vec<_> = text.members.0.iter().copied().collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn the_text_has_the_articles_golden_bytes() {
        assert_eq!(encode(Action::Put, &["a", "b", "c"]), b"+a +b +c ");
        assert_eq!(encode(Action::Remove, &["b", "x"]), b"-b -x ");
        let text = decode_text(b"+a +b +c -b -x").unwrap();
        assert_eq!(sorted(&text), [&b"a"[..], b"c"]);
        assert_eq!(text.removals, 2);
        assert_eq!(decode_text(b"+a +b -a").unwrap().compacted(), b"+b "[..]);
    }

    #[test]
    fn a_text_takes_any_white_space_and_nothing_foreign() {
        assert_eq!(sorted(&decode_text(b"\n+a\t\x0b+-b\r\n").unwrap()), [&b"-b"[..], b"a"]);
        assert!(sorted(&decode_text(b"").unwrap()).is_empty());
        assert_eq!(decode_text(b"+a b").unwrap_err().kind(), ErrorKind::LayoutMismatch);
    }

    #[test]
    fn a_text_refuses_members_that_it_cannot_hold() {
        for member in [&b""[..], b"a b", b"a\n", b"\x0b", b"\x7f"] {
            assert_eq!(put_text(&mut Vec::new(), Action::Put, member).unwrap_err().kind(), ErrorKind::BadInput);
        }
    }

    #[test]
    fn shards_have_golden_vectors() {
        let golden: [(&[u8], [u16; 4]); 5] = [
            (b"", [0, 0, 1, 180]),
            (b"a", [0, 1, 6, 923]),
            (b"member-1", [0, 0, 0, 96]),
            (&[0; 16], [0, 1, 5, 834]),
            (&[0xff; 300], [0, 1, 4, 667]),
        ];
        let now = golden.map(|(member, _)| (member, [1, 2, 7, 1024].map(|count| shard_of(member, count))));
        assert_eq!(now, golden);
        // The hash itself, against the vectors of its reference implementation.
        assert_eq!([xxh3_64(b""), xxh3_64(b"a")], [0x2d06_8005_38d3_94c2, 0xe6c6_32b6_1e96_4e1f]);
    }

    #[test]
    fn members_spread_evenly() {
        let mut counts = [0u32; 16];
        for number in 0..16_000u32 {
            counts[usize::from(shard_of(&number.to_le_bytes(), 16))] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(text) = decode_text(&bytes) {
                let again = text.compacted();
                prop_assert_eq!(sorted(&decode_text(&again).unwrap()), sorted(&text));
                prop_assert!(again.len() == text.live_bytes());
            }
        }
    }

    #[test]
    fn one_member_is_there_by_what_was_last_done_to_it() {
        let has = |ops: &[(Action, &[u8])]| {
            let mut has = Has { member: b"a", is_there: false };
            ops.iter().for_each(|(action, member)| has.apply(*action, member));
            has.is_there
        };
        assert!(has(&[(Action::Put, b"a"), (Action::Remove, b"b")]));
        assert!(!has(&[(Action::Put, b"a"), (Action::Remove, b"a"), (Action::Put, b"b")]));
    }

    #[test]
    fn a_text_is_as_long_as_it_says_once_it_is_compacted() {
        for value in [&b""[..], b"+a ", b"+abc +d -d +efghi -abc +abc "] {
            let text = decode_text(value).unwrap();
            assert_eq!(text.live_bytes(), text.compacted().len());
        }
    }
}
