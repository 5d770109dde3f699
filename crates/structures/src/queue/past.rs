//! Which items a segment held when they were taken: told by few bytes, and not by their number alone.
//!
//! State and segments may lie on different servers, and a failover sets one of them back without the other. A segment that lost its last frames is pushed to
//! again: what is pushed stands where something else stood, and the state says of that place that it was taken.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::append::layout;

/// The frames of a segment that hold items, in their order, each with all before it.
///
/// A push is one frame, with the writer and a sequence that this writer gives once: two pushes of the same bytes are told apart. Frames come and go
/// as a whole. What a stack notes and what is repeated is no part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain(Vec<Link>);

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    /// How many items there are up to its last.
    items: u32,
    /// Of it and all before it.
    digest: u64,
}

/// What a [`Chain`] was up to a frame, and, more coarsely, up to earlier ones: 1, 2, 4 … frames before it.
///
/// Items are missed only from there on where a chain differs, so what is taken once more is less than twice what is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Print {
    /// How many frames.
    frames: u32,
    digest: u64,
    /// The low half of the digests so many frames before. The first, of all, would be 0 frames, and is not kept.
    earlier: Vec<u32>,
}

/// The bytes of an earlier digest.
const EARLIER_BYTES: usize = 4;

/// How many frames before the last those are whose digests are kept.
fn distances(frames: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|power| 1 << power).take_while(move |&distance| distance < frames)
}

impl Chain {
    /// Adds an item of the frame that its writer gave this sequence; `is_first`: the first of that frame.
    pub(super) fn add(&mut self, incarnation: u64, writer: u64, seq: u64, is_first: bool) {
        let last = self.0.last().copied().unwrap_or(Link { items: 0, digest: incarnation });
        let items = last.items.saturating_add(1);
        match self.0.last_mut().filter(|_| !is_first) {
            Some(link) => link.items = items,
            None => {
                let mut frame = [0; 16];
                frame[..8].copy_from_slice(&writer.to_le_bytes());
                frame[8..].copy_from_slice(&seq.to_le_bytes());
                self.0.push(Link { items, digest: xxh3_64_with_seed(&frame, last.digest) });
            }
        }
    }

    /// Of all frames that hold the first `end` items.
    pub(super) fn print(&self, end: u32) -> Print {
        let frames = match end {
            0 => 0,
            end => (self.0.partition_point(|link| link.items < end) + 1).min(self.0.len()),
        };
        let Some(last) = frames.checked_sub(1) else { return Print::default() };
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        let earlier = distances(frames).map(|distance| self.0[last - distance as usize].digest as u32);
        Print { frames, digest: self.0[last].digest, earlier: earlier.collect() }
    }

    /// Of the first `end` items that the print was of, how many are here for certain. `None`: all of them.
    pub(super) fn kept(&self, print: &Print, end: u32) -> Option<u32> {
        let frame = |before: u32| {
            let at = print.frames.checked_sub(before)?.checked_sub(1)?;
            self.0.get(usize::try_from(at).ok()?)
        };
        if end == 0 || frame(0).is_some_and(|link| link.digest == print.digest && link.items >= end) {
            return None;
        }
        let is_same = |(before, digest): (u32, &u32)| frame(before).filter(|link| link.digest as u32 == *digest);
        let kept = distances(print.frames).zip(&print.earlier).find_map(is_same);
        Some(kept.map_or(0, |link| link.items.min(end)))
    }
}

impl Print {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        layout::put_varint(out, self.frames.into());
        if self.frames > 0 {
            out.extend_from_slice(&self.digest.to_le_bytes());
            self.earlier.iter().for_each(|digest| out.extend_from_slice(&digest.to_le_bytes()));
        }
    }

    pub(super) fn take(rest: &mut &[u8]) -> Option<Print> {
        let frames = u32::try_from(layout::take_varint(rest)?).ok()?;
        if frames == 0 {
            return Some(Print::default());
        }
        let digest = layout::take_u64(rest)?;
        let bytes = layout::take(rest, distances(frames).count() * EARLIER_BYTES)?;
        let earlier = bytes.chunks_exact(EARLIER_BYTES).filter_map(|four| four.first_chunk().copied());
        Some(Print { frames, digest, earlier: earlier.map(u32::from_le_bytes).collect() })
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Chain {
    /// Of so many frames of one item, the first `shared` of which are the same in all such chains.
    pub(super) fn of(frames: u32, shared: u32, other: u64) -> Chain {
        let mut chain = Chain::default();
        for at in 0..frames {
            chain.add(1, if at < shared { 0 } else { other }, u64::from(at), true);
        }
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_print_has_golden_bytes() {
        let chain = Chain::of(5, 5, 0);
        let first = xxh3_64_with_seed(&[0; 16], 1);
        assert_eq!(chain.0[0].digest, first);
        let mut bytes = Vec::new();
        chain.print(5).put(&mut bytes);
        let digest = |at: usize| chain.0[at].digest.to_le_bytes();
        assert_eq!(bytes, [&[5][..], &digest(4), &digest(3)[..4], &digest(2)[..4], &digest(0)[..4]].concat());
        assert_eq!(Print::take(&mut &bytes[..]), Some(chain.print(5)));
        assert_eq!(Print::take(&mut &bytes[..20]), None);
        let mut none = Vec::new();
        chain.print(0).put(&mut none);
        assert_eq!((&none[..], Print::take(&mut &none[..])), (&[0][..], Some(Print::default())));
    }

    #[test]
    fn what_is_gone_is_missed_and_less_than_twice_as_much_is_given_up() {
        for frames in 1..80 {
            let print = Chain::of(frames, frames, 0).print(frames);
            for shared in 0..=frames {
                for there in shared..frames + 40 {
                    let kept = Chain::of(there, shared, 7).kept(&print, frames);
                    if shared == frames {
                        assert_eq!(kept, None);
                        continue;
                    }
                    let kept = kept.expect("it was set back");
                    assert!(kept <= shared && shared - kept < frames - shared, "{frames} {shared} {there}: {kept}");
                }
            }
        }
    }

    #[test]
    fn frames_of_several_items_count_as_a_whole() {
        let mut chain = Chain::default();
        for (writer, seq, items) in [(1, 1, 3), (2, 1, 1), (1, 2, 2)] {
            (0..items).for_each(|at| chain.add(9, writer, seq, at == 0));
        }
        assert_eq!(chain.0.iter().map(|link| link.items).collect::<Vec<_>>(), [3, 4, 6]);
        // In the midst of the first, and of the last.
        assert_eq!(chain.print(1), chain.print(3));
        assert_eq!((chain.print(1).frames, chain.print(5).frames), (1, 3));
        assert_eq!(chain.kept(&chain.print(5), 5), None);
        // The last frame is gone, and another of as many items is there: four of five are what they were.
        let mut other = Chain(chain.0[..2].to_vec());
        assert_eq!(other.kept(&chain.print(5), 5), Some(4));
        (0..2).for_each(|at| other.add(9, 1, 3, at == 0));
        assert_eq!(other.kept(&chain.print(5), 5), Some(4));
        // Of the first frame two items were taken: a segment without it holds none of them.
        assert_eq!(Chain::default().kept(&chain.print(2), 2), Some(0));
    }

    #[test]
    fn another_segment_has_another_chain() {
        let (mut one, mut other) = (Chain::default(), Chain::default());
        one.add(1, 5, 5, true);
        other.add(2, 5, 5, true);
        assert_eq!(other.kept(&one.print(1), 1), Some(0));
    }
}
