//! The members of a set as they were read: places in the values, not copies.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::append::layout::element_bytes;
use crate::append::{Action, Fold};

/// A value of so many bytes a member, or more, is listed without growing what it is listed in. No more is taken than for
/// [`SPANS_FIRST_MAX`] of them: a value may hold few and long ones.
const MEMBER_BYTES_ABOUT: usize = 8;
const SPANS_FIRST_MAX: usize = 1024;

/// The members of a set, in no order, each once: what [`Set::members`](super::Set::members) read.
///
/// They lie in the values that were read; nothing is copied. Looking at them costs nothing; a member that is kept as [`Bytes`]
/// shares the memory of its value, and keeps all of it.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Set;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let tags = Set::open_or_create(&store, "tags").await?;
/// tags.add(["red", "green"]).await?;
/// let members = tags.members().await?;
/// assert_eq!(members.iter().map(<[u8]>::len).sum::<usize>(), 8);
/// let mut owned = members.to_vec();
/// owned.sort();
/// assert_eq!(owned, ["green", "red"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Members {
    shards: SmallVec<[Listed; 1]>,
}

/// The members in one value.
#[derive(Clone)]
struct Listed {
    value: Bytes,
    spans: Vec<Span>,
}

/// Where a member lies in its value.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    bytes: u32,
    /// A part of its hash, to tell most others without a look at them, and to place it in a larger table.
    hash: u32,
    /// False once it was removed.
    is_there: bool,
}

impl Span {
    fn range(self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.bytes as usize
    }

    fn of(self, value: &[u8]) -> &[u8] {
        &value[self.range()]
    }
}

/// The members of one value, listed.
pub(super) struct Spans(Vec<Span>);

impl Members {
    /// With room for as many shards.
    pub(super) fn with_capacity(shards: usize) -> Members {
        Members { shards: SmallVec::with_capacity(shards) }
    }

    /// Adds what was listed of `value`.
    pub(super) fn push(&mut self, value: Bytes, listed: Spans) {
        self.shards.push(Listed { value, spans: listed.0 });
    }

    /// How many there are.
    ///
    /// ```
    /// assert_eq!(larder_structures::set::Members::default().len(), 0);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|listed| listed.spans.len()).sum()
    }

    /// True if there are none.
    ///
    /// ```
    /// assert!(larder_structures::set::Members::default().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|listed| listed.spans.is_empty())
    }

    /// Each of them, where it lies.
    ///
    /// ```
    /// assert_eq!(larder_structures::set::Members::default().iter().next(), None);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.iter().flat_map(|listed| listed.spans.iter().map(|span| span.of(&listed.value)))
    }

    /// Each of them as bytes that share the memory of what was read.
    ///
    /// ```
    /// assert!(larder_structures::set::Members::default().to_vec().is_empty());
    /// ```
    #[must_use]
    pub fn to_vec(&self) -> Vec<Bytes> {
        let of = |listed: &Listed, span: &Span| listed.value.slice(span.range());
        self.shards.iter().flat_map(|listed| listed.spans.iter().map(move |span| of(listed, span))).collect()
    }
}

impl IntoIterator for Members {
    type Item = Bytes;
    type IntoIter = Box<dyn Iterator<Item = Bytes> + Send>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(
            self.shards
                .into_iter()
                .flat_map(|Listed { value, spans }| spans.into_iter().map(move |span| value.slice(span.range()))),
        )
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(larder_core::text::Shown)).finish()
    }
}

/// Lists the members of one value, each once: a table of their places in a vector, and nothing in it is ever taken out.
///
/// A quarter of what a `HashSet` of slices costs, which is most of what reading a set costs.
pub(super) struct Listing<'v> {
    value: &'v [u8],
    spans: Vec<Span>,
    /// A place in `spans` plus one, or 0, at the hash of its member or the next free slot. A power of two; empty where no member
    /// can come twice.
    slots: Vec<u32>,
    hasher: crate::hash::State,
    has_removed: bool,
    /// What the members take in a snapshot.
    elements_bytes: usize,
}

impl<'v> Listing<'v> {
    /// For the elements of `value`, which is under 4 GiB. `is_distinct`: none comes twice, and none is removed.
    pub(super) fn new(value: &'v [u8], is_distinct: bool) -> Listing<'v> {
        let about = (value.len() / MEMBER_BYTES_ABOUT).clamp(1, SPANS_FIRST_MAX);
        let slots = if is_distinct { Vec::new() } else { vec![0; slots_for(about)] };
        let spans = Vec::with_capacity(about);
        Listing { value, spans, slots, hasher: Default::default(), has_removed: false, elements_bytes: 0 }
    }

    /// What the members take in a snapshot.
    pub(super) fn elements_bytes(&self) -> usize {
        self.elements_bytes
    }

    /// What is there in the end.
    pub(super) fn finish(mut self) -> Spans {
        if self.has_removed {
            self.spans.retain(|span| span.is_there);
        }
        Spans(self.spans)
    }

    /// A member of the value, by where it lies.
    fn span(&self, element: &[u8], hash: u32) -> Span {
        let start = element.as_ptr() as usize - self.value.as_ptr() as usize;
        Span { start: start as u32, bytes: element.len() as u32, hash, is_there: true }
    }

    fn hash(&self, element: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(element);
        // The low half: truncation is meant.
        hasher.finish() as u32
    }

    /// Where the member is in `spans`; else the slot for it.
    #[inline(always)]
    fn find(&self, element: &[u8], hash: u32) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                0 => return Err(slot),
                place => {
                    let span = self.spans[place as usize - 1];
                    if span.hash == hash && span.of(self.value) == element {
                        return Ok(place as usize - 1);
                    }
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Makes the table large enough for so many members.
    fn make_slots(&mut self, members: usize) {
        let slots = slots_for(members);
        if slots <= self.slots.len() {
            return;
        }
        self.slots = vec![0; slots];
        for (place, span) in (1u32..).zip(&self.spans) {
            let mut slot = span.hash as usize & (slots - 1);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (slots - 1);
            }
            self.slots[slot] = place;
        }
    }
}

/// Two to four slots a member, so that most find theirs free.
fn slots_for(members: usize) -> usize {
    (members * 2).next_power_of_two()
}

impl<'v> Fold<'v> for Listing<'v> {
    fn expect(&mut self, elements: usize) {
        self.spans.reserve(elements);
        if !self.slots.is_empty() {
            self.make_slots(self.spans.len() + elements);
        }
    }

    #[inline]
    fn apply(&mut self, action: Action, element: &'v [u8]) {
        let is_put = action == Action::Put;
        if self.slots.is_empty() {
            self.spans.push(self.span(element, 0));
            self.elements_bytes += element_bytes(element.len());
            return;
        }
        let hash = self.hash(element);
        match self.find(element, hash) {
            Ok(place) if self.spans[place].is_there != is_put => {
                let bytes = element_bytes(element.len());
                self.spans[place].is_there = is_put;
                self.has_removed |= !is_put;
                self.elements_bytes = if is_put { self.elements_bytes + bytes } else { self.elements_bytes - bytes };
            }
            Err(slot) if is_put => {
                self.spans.push(self.span(element, hash));
                self.slots[slot] = self.spans.len() as u32;
                self.elements_bytes += element_bytes(element.len());
                if self.spans.len() * 2 >= self.slots.len() {
                    self.make_slots(self.spans.len() + 1);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn list<'v>(value: &'v [u8], ops: &[(Action, &'v [u8])]) -> (Members, usize) {
        let mut listing = Listing::new(value, false);
        for &(action, element) in ops {
            listing.apply(action, element);
        }
        let elements_bytes = listing.elements_bytes();
        let mut members = Members::default();
        members.push(Bytes::copy_from_slice(value), listing.finish());
        (members, elements_bytes)
    }

    #[test]
    fn members_are_told_as_slices_and_as_bytes() {
        let value = b"redgreenred";
        let (red, green, again) = (&value[..3], &value[3..8], &value[8..]);
        let put = Action::Put;
        let (members, bytes) =
            list(value, &[(put, red), (put, green), (put, again), (Action::Remove, red), (put, red)]);
        assert_eq!((members.len(), members.is_empty(), bytes), (2, false, 10));
        assert_eq!(members.iter().collect::<Vec<_>>(), [red, green]);
        assert_eq!(members.to_vec(), ["red", "green"]);
        assert_eq!(format!("{members:?}"), r#"{"red", "green"}"#);
        let (members, bytes) = list(value, &[(put, red), (Action::Remove, again)]);
        assert_eq!((members.len(), members.is_empty(), bytes), (0, true, 0));
        assert!(Members::default().is_empty());
    }

    #[test]
    fn a_distinct_value_needs_no_table() {
        let value = b"abc";
        let mut listing = Listing::new(value, true);
        listing.expect(3);
        (0..3).for_each(|at| listing.apply(Action::Put, &value[at..=at]));
        assert!(listing.slots.is_empty());
        assert_eq!(listing.elements_bytes(), 6);
        assert_eq!(listing.spans.len(), 3);
    }

    proptest! {
        /// Any sequence of changes, in tables that grow, ends as a plain set does.
        #[test]
        fn a_model_agrees(ops in proptest::collection::vec((any::<bool>(), 0u16..600), 0..1500), expected in 0usize..2000) {
            let value: Vec<u8> = (0..600u16).flat_map(|number| number.to_le_bytes()).chain([0; 200]).collect();
            // The first hundred are of no bytes up to 99, so that lengths differ.
            let element = |number: u16| match usize::from(number) {
                number @ ..100 => &value[1200..1200 + number],
                number => &value[2 * number..2 * number + 2],
            };
            let mut model: HashSet<&[u8]> = HashSet::new();
            let mut listing = Listing::new(&value, false);
            listing.expect(expected);
            for (is_put, number) in ops {
                listing.apply(if is_put { Action::Put } else { Action::Remove }, element(number));
                if is_put { model.insert(element(number)) } else { model.remove(element(number)) };
            }
            prop_assert_eq!(listing.elements_bytes(), model.iter().map(|member| element_bytes(member.len())).sum::<usize>());
            let mut members = Members::default();
            members.push(Bytes::copy_from_slice(&value), listing.finish());
            prop_assert_eq!(members.len(), model.len());
            prop_assert_eq!(members.iter().collect::<HashSet<_>>(), model);
        }
    }

    /// Where hashes meet, each look goes through all that are there: a list of *n* would take *n*² steps.
    #[test]
    fn members_have_hashes_of_their_own() {
        let listing = Listing::new(b"", false);
        let hashes: HashSet<u32> = (0..1_000u32).map(|number| listing.hash(&number.to_le_bytes())).collect();
        assert!(hashes.len() > 990, "{} hashes of 1,000 members", hashes.len());
    }

    #[test]
    fn two_members_whose_hashes_meet_are_two() {
        let value = b"redgreen";
        let (red, green) = (&value[..3], &value[3..]);
        let mut listing = Listing::new(value, false);
        let hash = listing.hash(green);
        let slot = listing.find(red, hash).unwrap_err();
        listing.spans.push(listing.span(red, hash));
        listing.slots[slot] = 1;
        assert_eq!(listing.find(red, hash), Ok(0));
        assert_ne!(listing.find(green, hash).unwrap_err(), slot);
        listing.apply(Action::Put, green);
        assert_eq!(listing.finish().0.len(), 2);
    }

    #[test]
    fn a_table_has_two_to_four_slots_for_each_member_that_comes_or_is_told_of() {
        for members in 1..1_000 {
            let slots = slots_for(members);
            assert!((2 * members..4 * members).contains(&slots), "{slots} for {members}");
        }
        let value: Vec<u8> = (0..1_500u16).flat_map(u16::to_le_bytes).collect();
        let mut listing = Listing::new(&value, false);
        for (at, member) in value.chunks(2).enumerate() {
            listing.apply(Action::Put, member);
            assert!(2 * (at + 1) <= listing.slots.len(), "{} slots for {} members", listing.slots.len(), at + 1);
            if at == 999 {
                listing.expect(400);
                assert!((2_800..5_600).contains(&listing.slots.len()), "{} slots", listing.slots.len());
            }
        }
        let mut listing = Listing::new(&[], false);
        listing.expect(1_000);
        assert!((2_000..4_000).contains(&listing.slots.len()), "{} slots", listing.slots.len());
    }
}
