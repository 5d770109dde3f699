//! When an item's life ends, and where that is noted for who reclaims it.
//!
//! A life that is renewed ends anew each time, and were each end noted for itself, the note of the one before would stay until that is due: a session of a day that is renewed every half a minute would
//! have 2,880 of them. So an end is noted at the next whole *step*, a power of two of milliseconds and no more than a 64th of the life: renewals within a step write one note again, and a key whose lives are of one length has 129 at the
//! most. The item itself ends to the millisecond; it is removed up to a step later.

use std::ops::RangeInclusive;

/// Bits of the time; those above say the step.
const MS_BITS: u32 = 56;
/// A step is the greatest power of two that is no more than the life, shifted right by this.
const STEPS_LOG2: u32 = 6;
/// The end of a shorter life is noted to the millisecond.
const STEPPED_LIFE_MS_MIN: u64 = 64_000;
/// Binary logarithms of steps: of the shortest life that has one, and of the longest that an op can ask for.
const STEP_LOG2: RangeInclusive<u64> = 9..=35;

/// The end of a life, as a record has it: milliseconds of the Unix epoch in the low 56 bits, above them the binary logarithm of the step, 9 to 35. Any other number is the time alone, in all 64 bits; so it is for
/// records of folders before the third layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End(u64);

impl End {
    /// Then, and noted to the millisecond. Times of 20 to 82 million years that would say a step are the latest before them.
    pub(crate) fn at(ms: u64) -> End {
        let is_stepped = STEP_LOG2.contains(&(ms >> MS_BITS));
        End(if is_stepped { (STEP_LOG2.start() << MS_BITS) - 1 } else { ms })
    }

    /// Then, of a life that is so long.
    pub(crate) fn of_life(ms: u64, life_ms: u64) -> End {
        if life_ms < STEPPED_LIFE_MS_MIN || ms >> MS_BITS != 0 {
            return End::at(ms);
        }
        let step_log2 = u64::from((life_ms >> STEPS_LOG2).ilog2()).min(*STEP_LOG2.end());
        End(step_log2 << MS_BITS | ms)
    }

    /// As it stands in a record.
    pub(crate) fn from_bits(bits: u64) -> End {
        End(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    fn step_log2(self) -> Option<u64> {
        Some(self.0 >> MS_BITS).filter(|step_log2| STEP_LOG2.contains(step_log2))
    }

    /// From then on the item is over.
    pub(crate) fn ms(self) -> u64 {
        if self.step_log2().is_some() { self.0 & ((1 << MS_BITS) - 1) } else { self.0 }
    }

    /// The time that it is noted by: never before the end, and less than a step behind it.
    pub(crate) fn noted_ms(self) -> u64 {
        let Some(step_log2) = self.step_log2() else { return self.0 };
        let within = (1 << step_log2) - 1;
        (self.ms() + within) & !within
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ops::TTL_MAX;

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn an_end_is_noted_by_the_next_step_of_its_life() {
        let ends = [(7, 63_999), (7, 64_000), (512, 64_000), (513, 64_000), (1 << 20 | 1, DAY_MS)];
        let noted = ends.map(|(ms, life_ms)| End::of_life(ms, life_ms).noted_ms());
        assert_eq!(noted, [7, 512, 512, 1_024, 2 << 20]);
        assert_eq!(End::of_life(7, DAY_MS).bits(), 20 << 56 | 7);
        let longest = u64::try_from(TTL_MAX.as_millis()).unwrap();
        assert_eq!(End::of_life(longest, longest).bits(), *STEP_LOG2.end() << 56 | longest);
    }

    #[test]
    fn times_that_would_say_a_step_are_the_latest_before_them() {
        let last = (9 << 56) - 1;
        let kept = [0, last, 36 << 56, u64::MAX].map(|ms| (ms, ms));
        for (ms, kept) in kept.into_iter().chain([(9 << 56, last), ((36 << 56) - 1, last)]) {
            let end = End::at(ms);
            assert_eq!((end.ms(), end.noted_ms()), (kept, kept), "{ms}");
            // A life that ends so late has no step, however long it is.
            assert_eq!(End::of_life(ms.max(1 << 56), u64::MAX), End::at(ms.max(1 << 56)));
        }
    }

    /// The longest life of a step has the most.
    #[test]
    fn a_life_that_is_renewed_all_the_time_has_129_notes_at_the_most() {
        for (life_ms, most) in [(64 << 10, 65), ((128 << 10) - 1, 129), (DAY_MS, 84)] {
            let renewed = (0..10_000).map(|nth| 1_700_000_000_000 + life_ms * nth / 10_000);
            let notes: BTreeSet<u64> =
                renewed.map(|now_ms| End::of_life(now_ms + life_ms, life_ms).noted_ms()).collect();
            assert!((most - 1..=most).contains(&notes.len()), "{} of a life of {life_ms} ms", notes.len());
        }
    }

    proptest! {
        #[test]
        fn an_end_is_noted_within_a_64th_of_its_life_behind_it(ms: u64, past in 0..64_u32, life: u64, short in 0..64_u32) {
            let (ms, life_ms) = (ms >> past, life >> short);
            let end = End::of_life(ms, life_ms);
            prop_assert_eq!(end, End::from_bits(end.bits()));
            prop_assert!(end.ms() <= end.noted_ms());
            prop_assert!(end.noted_ms() - end.ms() <= life_ms / 64);
            if ms >> MS_BITS == 0 {
                prop_assert_eq!(end.ms(), ms);
            }
            if life_ms < STEPPED_LIFE_MS_MIN {
                prop_assert_eq!(end, End::at(ms));
            }
        }

        #[test]
        fn whatever_a_record_says_is_a_time_and_a_note_that_is_not_before_it(bits: u64) {
            let end = End::from_bits(bits);
            prop_assert!(end.ms() <= end.noted_ms());
            prop_assert!(end.noted_ms() - end.ms() < 1 << 35);
        }
    }
}
