//! How many shards a period has, and how much of a hash is kept: by the visitors that are expected.
//!
//! Decided once, by whoever makes the period, and recorded in its head: to expect another number later moves nothing. One that outgrows it has
//! more in each shard, and stays right.

use super::layout::{BLOB_HEADER_BYTES, EXPECTED_MAX, Head, Params, Precision, SHARDS_MAX, Shape};

/// Of the visitors of the period before, how many are expected of the next: half as many again.
const GROWTH: (u64, u64) = (3, 2);
/// A shard is written whole: beyond so many bytes one visitor costs too much, below them the keys do. A class of allocators, and one of memcached's chunks.
const CLASS_BYTES: usize = 5_120;
const CHUNK_BYTES: usize = 4_544;
/// The same where little of a hash is kept, so that a key, and a class that shards fill more or less, weigh more: on a server, and in the process, where a
/// shard is not carried anywhere.
const NEAR_CLASS_BYTES: usize = 10_240;
const NEAR_CLASS_BYTES_IN_PROCESS: usize = 49_152;
/// What an item takes of a class beside its value: on Redis the header of a string, the one of an item, and a zero at the end; in the process the item's own and
/// malloc's, and the key.
const NATIVE_ITEM_BYTES: usize = 5 + 9 + 1;
const PROCESS_ITEM_BYTES: usize = 8 + 4 + 4 + 6 + 16;
/// Chunk sizes of memcached as it is started: each a quarter more than the last, a multiple of 8.
const CHUNK_BYTES_FIRST: usize = 96;
const CHUNK_BYTES_MAX: usize = 524_288;
/// What an item takes in a chunk beside key and value.
const ITEM_BYTES: usize = 64;
/// Of a set of integers, how many deviations over the mean stay packed: one in 90,000 shards has more.
const SET_DEVIATIONS: f64 = 4.25;
/// A member is put into the middle of an array: no more of them, whatever the server allows.
const SET_MEMBERS_MAX: u64 = 4_096;
/// What a set of integers of 32 bits takes beside its members; and beside its value an entry of the server's dictionary, its object, and two thirds of a table full of pointers.
const SET_BYTES: f64 = 8.0;
const SET_MEMBER_BYTES: f64 = 4.0;
const SET_ENTRY_BYTES: f64 = 24.0 + 16.0 + 12.0;
/// Beside a key: the header of its string, and the zero at its end.
const KEY_STRING_BYTES: usize = 3 + 1;
/// In how many steps fewer members a set are looked at than the most.
const SET_STEPS: u32 = 128;
/// Two shards would not tell enough of an exact id.
const EXACT_SETS_MIN: u32 = 4;

/// What is expected of a period, if so many came in the one before it: half as many again, or `unless` where nobody came, or nothing is known.
///
/// Source: the chapter on memory in J. Carlson, "Redis in Action", 2013, which doubles that for its shards, and rounds it up to a power of two
/// besides, so that they stay a quarter full; both are left out. Its day after a day without visitors is an error.
pub(super) fn forecast(before: Option<u64>, unless: u64) -> u64 {
    match before {
        None | Some(0) => unless,
        Some(before) => before.saturating_mul(GROWTH.0).div_ceil(GROWTH.1).min(EXPECTED_MAX),
    }
}

/// What a store is like, as far as sizes depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// How long the keys of shards are.
    pub(super) key_bytes: usize,
    /// Whether items are in this process.
    pub(super) is_in_process: bool,
    /// How many members of a set of integers it keeps packed.
    pub(super) members_max: u64,
}

/// The head of a period of so many expected visitors.
pub(super) fn head(params: &Params, expected: u64, incarnation: u64, on: Room) -> Head {
    let expected = expected.clamp(1, EXPECTED_MAX);
    let key_bytes = on.key_bytes;
    if let Precision::Sketch { .. } = params.precision {
        return Head { incarnation, expected, shards: 1, bits: 64, padded_bytes: 0 };
    }
    if params.shape == Shape::Native {
        return head_of_sets(params, expected, incarnation, on);
    }
    // Bits and shards depend on each other; both settle at once.
    let mut head = Head { incarnation, expected, shards: 1, bits: bits_of(params.precision, 1), padded_bytes: 0 };
    for _ in 0..3 {
        let room = match params.shape {
            Shape::Blob => blob_bytes(params.precision, on),
            Shape::Padded | Shape::Native => CHUNK_BYTES - ITEM_BYTES - key_bytes,
        };
        let a_shard = visitors_in(room, params, &head);
        let shards = (expected as f64 / a_shard).ceil().clamp(1.0, f64::from(SHARDS_MAX));
        // In range by the clamp.
        head.shards = shards as u32;
        head.bits = bits_of(params.precision, head.shards);
    }
    if params.shape == Shape::Padded {
        let mean = expected as f64 / f64::from(head.shards);
        let most = mean + 2.0 * mean.sqrt();
        let needed = (most * bytes_a_visitor(params, &head)).ceil() as usize + BLOB_HEADER_BYTES;
        let padded = chunk(needed + ITEM_BYTES + key_bytes) - ITEM_BYTES - key_bytes;
        head.padded_bytes = u32::try_from(padded).unwrap_or(0);
    }
    head
}

/// What of an allocator's class a blob can fill.
fn blob_bytes(precision: Precision, on: Room) -> usize {
    let class = match (precision, on.is_in_process) {
        (Precision::NearExact { .. }, false) => NEAR_CLASS_BYTES,
        (Precision::NearExact { .. }, true) => NEAR_CLASS_BYTES_IN_PROCESS,
        _ => CLASS_BYTES,
    };
    class - if on.is_in_process { PROCESS_ITEM_BYTES + on.key_bytes } else { NATIVE_ITEM_BYTES }
}

/// The head of a period whose shards are sets.
fn head_of_sets(params: &Params, expected: u64, incarnation: u64, on: Room) -> Head {
    let a_shard = members_a_set(on);
    let is_exact = params.precision == Precision::Exact;
    let least = if is_exact { EXACT_SETS_MIN } else { 1 };
    let shards = (expected as f64 / a_shard).ceil().clamp(f64::from(least), f64::from(SHARDS_MAX));
    // In range by the clamp.
    let shards = shards as u32;
    // A shard's offsets stay below 2^32 - 1: a member has 32 bits, and one of them is the mark.
    let bits = if is_exact { 64 } else { 32 + shards.ilog2() as u8 - u8::from(shards.is_power_of_two()) };
    Head { incarnation, expected, shards, bits, padded_bytes: 0 }
}

/// How many members a set is made for: at the most so many that nearly all stay packed, and of fewer those that take the least a member, since an allocator's classes are far apart there.
fn members_a_set(on: Room) -> f64 {
    // One is the mark.
    let most = on.members_max.clamp(8, SET_MEMBERS_MAX).saturating_sub(1) as f64;
    // The mean of which `most` is so many deviations away.
    let packed = ((SET_DEVIATIONS.powi(2) + 4.0 * most).sqrt() / 2.0 - SET_DEVIATIONS / 2.0).powi(2).max(1.0);
    let fewer = (0..SET_STEPS).map(|step| packed * (1.0 - f64::from(step) / f64::from(2 * SET_STEPS)));
    fewer.min_by(|a, b| bytes_in_a_set(*a, on.key_bytes).total_cmp(&bytes_in_a_set(*b, on.key_bytes))).unwrap_or(packed)
}

/// What a member of a packed set takes on Redis, its share of the key included, where sets have so many in the mean, spread by chance.
fn bytes_in_a_set(mean: f64, key_bytes: usize) -> f64 {
    let deviation = mean.sqrt();
    // The middles of parts of a normal distribution, and what each weighs.
    let parts = (-40..=40).map(|tenths| f64::from(tenths) / 10.0);
    let (bytes, weight) = parts.fold((0.0, 0.0), |(bytes, weight), at| {
        let members = (mean + at * deviation).round().max(0.0) + 1.0;
        let share = (-at * at / 2.0).exp();
        (bytes + share * class((SET_BYTES + SET_MEMBER_BYTES * members) as usize), weight + share)
    });
    (bytes / weight + SET_ENTRY_BYTES + class(key_bytes + KEY_STRING_BYTES)) / mean
}

/// What jemalloc gives for so many bytes: a multiple of 16, and from 128 on of a quarter of the power of two below.
fn class(bytes: usize) -> f64 {
    let step = (bytes.max(2) - 1).ilog2().saturating_sub(2);
    bytes.next_multiple_of((1 << step).max(16)) as f64
}

/// How many bits of a hash are kept.
fn bits_of(precision: Precision, shards: u32) -> u8 {
    match precision {
        Precision::Exact | Precision::Sketch { .. } => 64,
        // 22 at the most, so it fits.
        Precision::Compact => 35 + shards.max(1).ilog2() as u8,
        Precision::NearExact { bits } => bits,
    }
}

/// How many visitors a shard of so many bytes is made for: so that 19 in 20 shards stay within it.
fn visitors_in(room: usize, params: &Params, head: &Head) -> f64 {
    let most = room.saturating_sub(BLOB_HEADER_BYTES) as f64 / bytes_a_visitor(params, head);
    (most - 2.0 * most.sqrt()).max(16.0)
}

fn bytes_a_visitor(params: &Params, head: &Head) -> f64 {
    let gap = (f64::from(head.bits) - (head.expected as f64).log2()).max(0.0).exp2();
    rice_bits(gap) / 8.0 + if params.is_wide() { 8.0 } else { 0.0 }
}

/// What a number takes, Rice-coded, that is so far from the one before it in the mean: the parameter is that of [`rice::parameter`](super::rice::parameter), the gaps are
/// geometric, so that each doubling by the parameter goes on with the same chance.
fn rice_bits(gap: f64) -> f64 {
    let parameter = (gap * std::f64::consts::LN_2).max(1.0).log2().floor();
    parameter + 1.0 / -(-parameter.exp2() / gap).exp_m1()
}

/// The smallest chunk of so many bytes.
fn chunk(bytes: usize) -> usize {
    let mut chunk = CHUNK_BYTES_FIRST;
    while chunk < bytes && chunk < CHUNK_BYTES_MAX {
        let next = (chunk + chunk / 4).next_multiple_of(8);
        // There is none between the largest and what is a fifth less.
        chunk = if next >= CHUNK_BYTES_MAX / 5 * 4 { CHUNK_BYTES_MAX } else { next };
    }
    // Larger items are cut into pieces by the server.
    chunk.max(bytes)
}

/// How many visitors are expected not to be counted: `stored` hashes of `bits` bits.
///
/// Of *n* ids thrown into *M* places, *M* (1 - e^(-n/M)) are taken.
pub(super) fn missed(stored: u64, bits: u32) -> f64 {
    let places = (f64::from(bits)).exp2();
    let stored = stored as f64;
    let share = stored / places;
    if share >= 1.0 {
        return f64::INFINITY;
    }
    // The logarithm of a number near 1 loses its digits.
    if share < 1e-4 { stored * share / 2.0 * (1.0 + share * 2.0 / 3.0) } else { -places * (-share).ln_1p() - stored }
}

/// The standard error of a count that is corrected by [`missed`].
pub(super) fn spread(stored: u64, bits: u32) -> f64 {
    missed(stored, bits).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::id::IdKind;
    use super::*;

    fn params(precision: Precision, shape: Shape) -> Params {
        let ids = IdKind::Any;
        Params {
            period_ms: 86_400_000,
            offset_ms: 0,
            seed: 0,
            precision,
            ids,
            shape,
            expected: 1_000,
            keep_ms: 0,
            zone: None,
        }
    }

    #[test]
    fn a_day_without_visitors_is_followed_by_what_was_said_first() {
        assert_eq!([forecast(None, 700), forecast(Some(0), 700)], [700, 700]);
        assert_eq!([1, 2, 1_000].map(|before| forecast(Some(before), 700)), [2, 3, 1_500]);
        assert_eq!(forecast(Some(u64::MAX), 1), EXPECTED_MAX);
    }

    #[test]
    fn of_ten_million_an_error_of_one_in_a_hundred_thousand_takes_more_than_the_bytes_that_are_planned() {
        const VISITORS: f64 = 1e7;
        let error = |bits| spread(VISITORS as u64, bits) / VISITORS;
        // What any code of so many random numbers takes: the logarithm of the mean gap, and of e.
        let bytes = |bits: u32| ((f64::from(bits).exp2() / VISITORS).log2() + std::f64::consts::LOG2_E) / 8.0;
        assert!((1.07e-5..1.09e-5).contains(&error(32)) && bytes(32) < 1.3, "{} in {}", error(32), bytes(32));
        assert!(error(33) < 1e-5 && bytes(33) > 1.35, "{} in {}", error(33), bytes(33));
    }

    /// What is planned for exact visitors, 4.4 to 4.6 bytes, is less than any code of ids of 64 bits can take: it was measured of shorter ones. What is made here takes next to nothing more than that.
    #[test]
    fn ten_million_ids_of_64_bits_take_more_than_the_bytes_that_are_planned_whatever_the_code() {
        const VISITORS: u64 = 10_000_000;
        // All sets of so many ids are as likely: the logarithm of how many there are, a visitor, by Stirling.
        let least = |bits: f64| (bits - (VISITORS as f64).log2() + std::f64::consts::LOG2_E) / 8.0;
        assert!((5.27..5.28).contains(&least(64.0)), "{}", least(64.0));
        let planned = [("Redis", 4.4), ("memcached", 4.6), ("the process", 4.5)];
        for (store, bytes) in planned {
            assert!(least(64.0) > bytes + 0.6, "{store}");
            // So many bits do fit: those of the ids that were measured, 56 of them.
            let fit = (1..=64).rev().find(|bits| least(f64::from(*bits)) <= bytes).unwrap();
            assert!((57..=58).contains(&fit), "{store}: {fit} bits");
        }
        for shape in [Shape::Blob, Shape::Padded] {
            let params = Params { ids: IdKind::Integer, ..params(Precision::Exact, shape) };
            for is_in_process in [true, false] {
                let head = head(&params, VISITORS, 1, Room { key_bytes: 40, is_in_process, members_max: 512 });
                let coded = bytes_a_visitor(&params, &head);
                assert!(head.bits == 64 && (least(64.0)..5.3).contains(&coded), "{shape:?}: {coded}");
            }
        }
    }

    #[test]
    fn golden_sizes() {
        let size = |precision, shape, expected| {
            let head = head(
                &params(precision, shape),
                expected,
                1,
                Room { key_bytes: 40, is_in_process: false, members_max: 512 },
            );
            (head.shards, head.bits, head.padded_bytes)
        };
        let many = 10_000_000;
        let sizes = [
            size(Precision::Compact, Shape::Blob, 1),
            size(Precision::Compact, Shape::Blob, many),
            size(Precision::Compact, Shape::Padded, many),
            size(Precision::NEAR_EXACT, Shape::Padded, many),
            size(Precision::Exact, Shape::Blob, many),
            size(Precision::SKETCH, Shape::Padded, many),
            size(Precision::Compact, Shape::Padded, 1),
            size(Precision::Compact, Shape::Native, many),
            size(Precision::Compact, Shape::Native, 1),
            size(Precision::Compact, Shape::Native, 800),
            size(Precision::Exact, Shape::Native, many),
            size(Precision::Exact, Shape::Native, 1),
        ];
        let golden = [
            (1, 35, 0),
            (6_522, 47, 0),
            (7_530, 47, 4_440),
            (2_992, 32, 4_440),
            (29_062, 64, 0),
            (1, 64, 0),
            (1, 35, 48),
            (23_611, 46, 0),
            (1, 31, 0),
            (2, 32, 0),
            (23_611, 64, 0),
            (4, 64, 0),
        ];
        assert_eq!(sizes, golden);
    }

    #[test]
    fn sets_stay_within_what_the_server_packs_and_their_members_within_32_bits() {
        for members_max in [8, 64, 512, 1_024, 100_000] {
            for expected in [1, 100, 5_000, 1_000_000, 100_000_000] {
                let params = params(Precision::Compact, Shape::Native);
                let head = head(&params, expected, 1, Room { key_bytes: 40, is_in_process: false, members_max });
                let mean = expected as f64 / f64::from(head.shards);
                assert!(mean + 4.0 * mean.sqrt() < members_max as f64 || head.shards == SHARDS_MAX, "{head:?}");
                for shard in [0, head.shards / 2, head.shards - 1] {
                    assert!(head.span(shard) < u64::from(u32::MAX), "{head:?}");
                }
            }
        }
    }

    /// A server that packs 512 members cannot have them in the 4.4 bytes that they take by themselves: not with sets of any other size, and not with keys of no length. One that is told to pack more can.
    #[test]
    fn a_visitor_in_a_set_takes_as_little_as_an_allocator_lets_it() {
        let room = |members_max, key_bytes| Room { key_bytes, is_in_process: false, members_max };
        let made = |members_max| bytes_in_a_set(members_a_set(room(members_max, 39)), 39);
        // By the allocator's classes; the first was measured on a live server with 10 million: 4.53.
        for (members_max, least, most) in [(512, 4.52, 4.55), (1_024, 4.33, 4.38), (4_096, 4.15, 4.20)] {
            assert!((least..most).contains(&made(members_max)), "{members_max}: {}", made(members_max));
        }
        // A string of no bytes takes a class, too.
        for mean in (1..512).map(f64::from) {
            assert!(bytes_in_a_set(mean, 0) > 4.4, "sets of {mean}");
            let is_packed = mean + SET_DEVIATIONS * mean.sqrt() < 511.0;
            assert!(!is_packed || bytes_in_a_set(mean, 39) > made(512) - 0.01, "sets of {mean} take less");
        }
        assert_eq!(
            [8, 16, 17, 100, 1_708, 1_793, 4_097].map(class),
            [16.0, 16.0, 32.0, 112.0, 1_792.0, 2_048.0, 5_120.0]
        );
    }

    #[test]
    fn the_correction_is_what_random_throws_show() {
        let mut random = fastrand::Rng::with_seed(3);
        let thrown = 20_000u64;
        let taken: std::collections::HashSet<u64> = (0..thrown).map(|_| random.u64(0..1 << 16)).collect();
        let stored = taken.len() as u64;
        let estimate = stored as f64 + missed(stored, 16);
        assert!((estimate - thrown as f64).abs() < 4.0 * spread(stored, 16), "{estimate} of {thrown}");
        // Both branches meet.
        let (below, above) = (missed(429_400, 32), missed(429_600, 32));
        assert!((below - 21.46).abs() < 0.1 && (above - 21.48).abs() < 0.1, "{below} {above}");
        assert_eq!(missed(1 << 32, 32), f64::INFINITY);
    }

    #[test]
    fn the_two_ways_to_the_correction_agree_where_they_meet_and_for_the_fewest() {
        // From a ten-thousandth of all places on.
        let (below, above) = (missed(429_496, 32), missed(429_497, 32));
        assert!((above / below - 1.0).abs() < 1e-5, "{below} {above}");
        // n^2 / 2^(b+1), of so few that the logarithm tells nothing.
        for (stored, bits) in [(1_000u64, 64), (1_000, 128), (1, 40)] {
            let expected = (stored as f64).powi(2) / f64::from(bits + 1).exp2();
            assert!((missed(stored, bits) / expected - 1.0).abs() < 1e-6, "{stored} of {bits} bits");
        }
    }

    #[test]
    fn golden_sizes_on_a_server_and_in_the_process() {
        let on = |is_in_process| Room { key_bytes: 40, is_in_process, members_max: 512 };
        let near = params(Precision::NEAR_EXACT, Shape::Blob);
        let shards = [false, true].map(|is_in_process| head(&near, 10_000_000, 1, on(is_in_process)).shards);
        assert_eq!(shards, [1_281, 264]);
    }

    /// A shard is padded for its mean and two deviations more, and what that takes is rounded up to a chunk.
    #[test]
    fn golden_paddings() {
        let params = params(Precision::Compact, Shape::Padded);
        let on = Room { key_bytes: 40, is_in_process: false, members_max: 512 };
        let padded = [150, 200, 600, 1_000].map(|expected| head(&params, expected, 1, on).padded_bytes);
        assert_eq!(padded, [840, 1_080, 2_800, 4_440]);
    }

    /// Of a class of 5,120 bytes malloc takes 16, the item 22, and its key 40.
    #[test]
    fn golden_sizes_in_the_process() {
        let on = Room { key_bytes: 40, is_in_process: true, members_max: 512 };
        let shards = [Precision::Compact, Precision::Exact]
            .map(|precision| head(&params(precision, Shape::Blob), 10_000_000, 1, on).shards);
        assert_eq!(shards, [6_606, 29_447]);
    }

    /// Where more members than 512 are packed, a set has fewer than the most: as many as take the least a member.
    #[test]
    fn golden_numbers_of_sets_where_more_members_are_packed() {
        let params = params(Precision::Compact, Shape::Native);
        let sets = [256, 1_024, 2_048, 4_096].map(|members_max| {
            head(&params, 10_000_000, 1, Room { key_bytes: 40, is_in_process: false, members_max }).shards
        });
        assert_eq!(sets, [51_335, 11_618, 5_724, 2_856]);
    }

    #[test]
    fn what_a_set_takes_with_its_mark_is_what_random_throws_show() {
        for (mean, sets) in [(20u32, 20_000), (400, 2_000)] {
            let mut random = fastrand::Rng::with_seed(5);
            // One is the mark.
            let mut members = vec![1usize; sets];
            (0..mean as usize * sets).for_each(|_| members[random.usize(..sets)] += 1);
            let taken: f64 = members.iter().map(|members| class(8 + 4 * members)).sum();
            let a_set = taken / sets as f64 + SET_ENTRY_BYTES + 48.0;
            let planned = bytes_in_a_set(f64::from(mean), 39) * f64::from(mean);
            assert!((planned - a_set).abs() < 2.0, "sets of {mean}: {planned} for {a_set} bytes");
        }
    }

    /// A string has a header of 3 bytes, and a zero at its end.
    #[test]
    fn a_key_takes_the_class_of_its_string() {
        let taken = |key_bytes: usize| bytes_in_a_set(20.0, key_bytes) * 20.0;
        for (key_bytes, class) in [(1, 16.0), (12, 16.0), (13, 32.0), (28, 32.0), (29, 48.0), (44, 48.0)] {
            let more = taken(key_bytes) - taken(0);
            assert!((more - (class - 16.0)).abs() < 1e-6, "a key of {key_bytes} bytes takes {more} more");
        }
    }

    /// Those that `memcached -vv` tells.
    #[test]
    fn an_item_goes_into_the_smallest_chunk_that_has_room() {
        let chunks = [96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944, 1_184, 1_480, 1_856, 2_320, 2_904, 3_632];
        assert_eq!([1, 95].map(chunk), [96, 96]);
        for pair in chunks.windows(2) {
            assert_eq!([pair[0], pair[0] + 1, pair[1] - 1].map(chunk), [pair[0], pair[1], pair[1]]);
        }
        assert_eq!([394_840, 394_841, 493_553, 524_288].map(chunk), [394_840, 524_288, 524_288, 524_288]);
        assert_eq!([524_289, 1_000_000].map(chunk), [524_289, 1_000_000], "it is cut into pieces");
    }
}
