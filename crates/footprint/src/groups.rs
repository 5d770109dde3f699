//! Keys that are alike, counted as a survey tells them, with a few of each to look closer at.

use std::collections::{BTreeMap, HashMap};

use larder_core::survey::{DataType, Sample, Seen};

use crate::packed::is_unpacked;
use crate::pattern::{Belongs, Sorter};

/// Sizes are told apart to so many bytes.
const SIZE_STEP: u64 = 8;
/// Those over so many bytes, of which there are few, to so many.
const LARGE_BYTES: u64 = 512 * 1024;
const LARGE_STEP: u64 = 4 * 1024;
/// No item is larger: what a server tells of more counts as this, so that sizes are no more than can be held.
const SIZE_MAX: u64 = 1 << 30;
/// Elements that are drawn of a collection that is not packed.
const ELEMENTS_DRAWN: u32 = 128;

/// What keys have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Like {
    pub(crate) belongs: Belongs,
    pub(crate) data_type: DataType,
    pub(crate) encoding: String,
}

/// What was counted of keys that are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: u64,
    pub(crate) key_bytes: u64,
    /// The sums of what was told; `None` where it was not.
    pub(crate) bytes: Option<u64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) value_bytes: Option<u64>,
    pub(crate) expiring: Option<u64>,
    /// How many there are of each size.
    pub(crate) sizes: BTreeMap<u64, u64>,
    /// Keys drawn at random: each of those that were counted is as likely to be among them.
    pub(crate) drawn: Vec<Vec<u8>>,
}

impl Tally {
    /// Of two, as if one had counted all.
    fn join(&mut self, other: Tally, random: &mut fastrand::Rng, draw_max: usize) {
        let (mut mine, mut theirs) = (std::mem::take(&mut self.drawn), other.drawn);
        let (mut of_mine, mut of_theirs) = (self.keys, other.keys);
        random.shuffle(&mut mine);
        random.shuffle(&mut theirs);
        while self.drawn.len() < draw_max && !(mine.is_empty() && theirs.is_empty()) {
            let is_mine = random.u64(..(of_mine + of_theirs).max(1)) < of_mine;
            let (from, of) = if is_mine { (&mut mine, &mut of_mine) } else { (&mut theirs, &mut of_theirs) };
            match from.pop() {
                Some(key) => self.drawn.push(key),
                // All of that side were drawn.
                None => *of = 0,
            }
            *of = of.saturating_sub(1);
        }
        let sum = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.saturating_add(other));
        self.keys += other.keys;
        self.key_bytes += other.key_bytes;
        self.bytes = sum(self.bytes, other.bytes);
        self.resident_bytes = sum(self.resident_bytes, other.resident_bytes);
        self.value_bytes = sum(self.value_bytes, other.value_bytes);
        self.expiring = sum(self.expiring, other.expiring);
        for (size, count) in other.sizes {
            *self.sizes.entry(size).or_default() += count;
        }
    }

    fn count(&mut self, seen: &Seen<'_>, random: &mut fastrand::Rng, draw_max: usize) {
        if self.keys == 0 {
            (self.bytes, self.resident_bytes, self.value_bytes, self.expiring) = (Some(0), Some(0), Some(0), Some(0));
        }
        let add =
            |sum: &mut Option<u64>, more: Option<u64>| *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
        self.keys += 1;
        self.key_bytes += seen.key.len() as u64;
        add(&mut self.bytes, seen.bytes);
        add(&mut self.resident_bytes, seen.resident_bytes);
        add(&mut self.value_bytes, seen.value_bytes);
        add(&mut self.expiring, seen.expires.map(u64::from));
        if let Some(bytes) = seen.bytes.map(|bytes| bytes.min(SIZE_MAX)) {
            let step = if bytes > LARGE_BYTES { LARGE_STEP } else { SIZE_STEP };
            *self.sizes.entry(bytes.next_multiple_of(step)).or_default() += 1;
        }
        // Algorithm R (Vitter, 1985, after Waterman).
        if self.drawn.len() < draw_max {
            self.drawn.push(seen.key.to_vec());
        } else if let Ok(place) = usize::try_from(random.u64(..self.keys))
            && let Some(drawn) = self.drawn.get_mut(place)
        {
            *drawn = seen.key.to_vec();
        }
    }
}

/// Counts keys as they are told.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) sorter: Sorter,
    tallies: HashMap<Like, Tally>,
    random: fastrand::Rng,
    draw_max: usize,
}

impl Collector {
    pub(crate) fn new(draw_max: usize, seed: u64) -> Collector {
        let random = fastrand::Rng::with_seed(seed);
        Collector { sorter: Sorter::default(), tallies: HashMap::new(), random, draw_max }
    }

    pub(crate) fn count(&mut self, seen: &Seen<'_>) {
        let mut belongs = self.sorter.sort(seen.key);
        if matches!(&belongs, Belongs::Pattern(pattern) if self.sorter.is_full(pattern)) {
            belongs = self.sorter.folded(belongs);
        }
        let like = Like { belongs, data_type: seen.data_type, encoding: seen.encoding.to_owned() };
        self.tallies.entry(like).or_default().count(seen, &mut self.random, self.draw_max);
    }

    /// What was counted, in an order that does not change; what turned out to have too many patterns together.
    pub(crate) fn finish(mut self) -> (Sorter, Vec<(Like, Tally)>) {
        let mut folded: BTreeMap<Like, Tally> = BTreeMap::new();
        let mut tallies: Vec<(Like, Tally)> = self.tallies.into_iter().collect();
        tallies.sort_by(|one, other| one.0.cmp(&other.0));
        for (mut like, tally) in tallies {
            like.belongs = self.sorter.folded(like.belongs);
            match folded.get_mut(&like) {
                Some(known) => known.join(tally, &mut self.random, self.draw_max),
                None => _ = folded.insert(like, tally),
            }
        }
        (self.sorter, folded.into_iter().collect())
    }
}

/// The closer look that the keys of a group are worth.
pub(crate) fn samples(like: &Like, tally: &Tally) -> Vec<Sample> {
    if tally.bytes.is_some() {
        return Vec::new();
    }
    let elements_max = if is_unpacked(like.data_type, &like.encoding) { ELEMENTS_DRAWN } else { 0 };
    let sample = |key: &Vec<u8>| Sample { key: key.clone(), data_type: like.data_type, elements_max };
    tally.drawn.iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_items_are_told_by_their_sizes_too() {
        let mut tally = Tally::default();
        for bytes in [97, 512 << 10, (512 << 10) + 1, 1 << 20, (64 << 20) - 5] {
            tally.count(&Seen { bytes: Some(bytes), ..seen(b"k") }, &mut fastrand::Rng::with_seed(1), 1);
        }
        let sizes: Vec<u64> = tally.sizes.into_keys().collect();
        assert_eq!(sizes, [104, 512 << 10, 516 << 10, 1 << 20, 64 << 20]);
    }

    #[test]
    fn sizes_beyond_any_item_are_of_the_largest() {
        let mut tally = Tally::default();
        for bytes in [1 << 30, (1 << 30) + 1, 1 << 40, u64::MAX] {
            let mut one = Tally::default();
            one.count(&Seen { bytes: Some(bytes), ..seen(b"k") }, &mut fastrand::Rng::with_seed(1), 1);
            tally.join(one, &mut fastrand::Rng::with_seed(1), 1);
        }
        assert_eq!(tally.sizes.into_iter().collect::<Vec<_>>(), [(1 << 30, 4)]);
    }

    fn seen(key: &[u8]) -> Seen<'_> {
        Seen {
            key,
            data_type: DataType::Item,
            encoding: "item",
            bytes: Some(key.len() as u64 + 50),
            resident_bytes: None,
            value_bytes: Some(1),
            expires: Some(false),
        }
    }

    #[test]
    fn every_key_is_as_likely_to_be_drawn() {
        let mut counts = [0u32; 50];
        let mut seeds = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let mut collector = Collector::new(5, seeds.u64(..));
            (0..50).for_each(|number| collector.count(&seen(format!("k:{number:02}").as_bytes())));
            let (_, groups) = collector.finish();
            assert_eq!((groups.len(), groups[0].1.keys, groups[0].1.drawn.len()), (1, 50, 5));
            for key in &groups[0].1.drawn {
                counts[std::str::from_utf8(&key[2..]).unwrap().parse::<usize>().unwrap()] += 1;
            }
        }
        // 2,000 draws of 5 of 50: 200 each, with a deviation of 13.
        assert!(counts.iter().all(|count| (140..260).contains(count)), "{counts:?}");
    }

    #[test]
    fn groups_that_are_joined_are_drawn_from_by_their_sizes() {
        let mut large = 0;
        let mut seeds = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut collector = Collector::new(10, seeds.u64(..));
            // Too many patterns with one beginning: all are told together in the end.
            for word in [
                "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t",
                "u", "v", "w", "x",
            ] {
                collector.count(&seen(format!("u:{word}").as_bytes()));
            }
            (0..216).for_each(|number| collector.count(&seen(format!("u:y{number}").as_bytes())));
            let (_, groups) = collector.finish();
            let tally = &groups[0].1;
            assert_eq!((groups.len(), tally.keys, tally.drawn.len()), (1, 240, 10));
            assert_eq!((tally.value_bytes, tally.resident_bytes), (Some(240), None));
            assert_eq!(tally.sizes.values().sum::<u64>(), 240);
            large += tally.drawn.iter().filter(|key| key.starts_with(b"u:y")).count();
        }
        // 90 in 100 keys are of the large pattern.
        assert!((4_350..4_650).contains(&large), "{large} of 5000");
    }
}
