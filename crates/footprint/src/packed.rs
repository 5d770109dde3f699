//! Packed encodings of Redis and Valkey: what keeps a collection out of them, and what it would take in them.
//!
//! Sources: `listpack.c`, `intset.c`, `t_set.c` and `dict.c` of Redis 7.2, and jemalloc's size classes as Redis builds it (a quantum of 8 bytes).

use larder_core::Encodings;
use larder_core::survey::{DataType, Measured, Part, Shape, Vitals};

/// The header and the end of a listpack.
const LISTPACK_BYTES: u64 = 7;
/// The header of a set of integers.
const INTSET_BYTES: u64 = 8;
/// An entry of the server's dictionaries.
const ENTRY_BYTES: u64 = 24;
/// The same in a set, from this version of Redis on, which counts it as the other: key and next of what shares its bucket. Measured of 8.0; the sources of 8.2 count so, too.
const CHAINED_BYTES: u64 = 16;
const SETS_WITHOUT_VALUES: (u32, u32) = (7, 2);
/// More elements than any collection has, whatever a server tells.
const ELEMENTS_MAX: u64 = 1 << 40;
/// What a shard of a sharded sorted set has before its members, and with each of them: two lengths and a score.
const SORTED_SHARD_BYTES: u64 = 22;
const SCORE_BYTES: u64 = 1 + 1 + 8;
/// An object, which stands for a value.
const OBJECT_BYTES: u64 = 16;

/// Why a collection is not packed.
///
/// ```
/// use larder_footprint::Reason;
/// let reason = Reason::TooMany { setting: "set-max-intset-entries", limit: 512, largest: 900 };
/// assert_eq!(reason.to_string(), "900 elements are over set-max-intset-entries 512");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It has more elements than a limit of the server's.
    TooMany {
        /// Which.
        setting: &'static str,
        /// The limit.
        limit: u64,
        /// How many elements the largest one has.
        largest: u64,
    },
    /// An element is longer than a limit of the server's.
    TooLong {
        /// Which.
        setting: &'static str,
        /// The limit, in bytes.
        limit: u64,
        /// The longest element that was seen, in bytes.
        longest: u64,
    },
    /// A set has members that are no whole numbers, and the server packs no others: that is Redis before 7.2.
    NotIntegers,
    /// It is within the limits as far as was looked: it was over one before, or an element that was not drawn is. What was unpacked once stays so until it is written anew.
    Before,
}

impl Reason {
    /// The same, whatever the figures: of several keys the worst is told.
    pub(crate) fn is_like(&self, other: &Reason) -> bool {
        match (self, other) {
            (Reason::TooMany { setting, .. }, Reason::TooMany { setting: other, .. })
            | (Reason::TooLong { setting, .. }, Reason::TooLong { setting: other, .. }) => setting == other,
            _ => self == other,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::TooMany { setting, limit, largest } => {
                write!(f, "{largest} elements are over {setting} {limit}")
            }
            Reason::TooLong { setting, limit, longest } => {
                write!(f, "an element of {longest} bytes is over {setting} {limit}")
            }
            Reason::NotIntegers => f.write_str(
                "members are no whole numbers, and this server packs no other sets (Redis 7.2 and Valkey do)",
            ),
            Reason::Before => {
                f.write_str("within the limits now: it was over one before, and stays so until it is written anew")
            }
        }
    }
}

/// True for a collection that could be packed and is not.
///
/// ```
/// use larder_core::survey::DataType;
/// assert!(larder_footprint::is_unpacked(DataType::Hash, "hashtable"));
/// assert!(!larder_footprint::is_unpacked(DataType::List, "quicklist"));
/// ```
pub fn is_unpacked(data_type: DataType, encoding: &str) -> bool {
    match data_type {
        DataType::Hash | DataType::Set => encoding == "hashtable",
        DataType::SortedSet => encoding == "skiplist",
        _ => false,
    }
}

/// The limits that hold for one type of collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) entries: (&'static str, u64),
    pub(crate) value_bytes: (&'static str, u64),
    /// Of a set: how many whole numbers are kept in a row.
    pub(crate) integers: Option<(&'static str, u64)>,
}

impl Limits {
    pub(crate) fn of(data_type: DataType, known: &Encodings) -> Option<Limits> {
        let limits = |entries, value_bytes| Limits { entries, value_bytes, integers: None };
        Some(match data_type {
            DataType::Hash => limits(
                ("hash-max-listpack-entries", known.hash_entries_max),
                ("hash-max-listpack-value", known.hash_value_bytes_max),
            ),
            DataType::SortedSet => limits(
                ("zset-max-listpack-entries", known.sorted_set_entries_max),
                ("zset-max-listpack-value", known.sorted_set_value_bytes_max),
            ),
            DataType::Set => Limits {
                integers: Some(("set-max-intset-entries", known.set_integers_max)),
                ..limits(
                    ("set-max-listpack-entries", known.set_entries_max),
                    ("set-max-listpack-value", known.set_value_bytes_max),
                )
            },
            _ => return None,
        })
    }
}

/// Why a collection that was measured is not packed; at least one reason.
///
/// ```
/// use larder_core::Encodings;
/// use larder_core::survey::{DataType, Measured};
/// use larder_footprint::{Reason, why};
/// let limits = Encodings { hash_entries_max: 128, hash_value_bytes_max: 64, ..Encodings::default() };
/// let hash = Measured { bytes: 9_000, elements: 200, ..Measured::default() };
/// let setting = "hash-max-listpack-entries";
/// assert_eq!(why(DataType::Hash, &limits, &hash), [Reason::TooMany { setting, limit: 128, largest: 200 }]);
/// ```
pub fn why(data_type: DataType, known: &Encodings, measured: &Measured) -> Vec<Reason> {
    let Some(limits) = Limits::of(data_type, known) else { return vec![Reason::Before] };
    let mut reasons = Vec::new();
    let (setting, entries_max) = limits.entries;
    if let Some((integers, integers_max)) = limits.integers
        && are_integers(&measured.shapes)
    {
        // Whole numbers over their own limit are packed as other members are, if they may be.
        if measured.elements > integers_max.max(entries_max) {
            let (setting, limit) = if integers_max >= entries_max { (integers, integers_max) } else { limits.entries };
            reasons.push(Reason::TooMany { setting, limit, largest: measured.elements });
        }
        return or_before(reasons);
    }
    if limits.integers.is_some() && entries_max == 0 {
        return vec![Reason::NotIntegers];
    }
    if measured.elements > entries_max {
        reasons.push(Reason::TooMany { setting, limit: entries_max, largest: measured.elements });
    }
    let (setting, limit) = limits.value_bytes;
    let longest = longest(data_type, &measured.shapes);
    if longest > limit {
        reasons.push(Reason::TooLong { setting, limit, longest });
    }
    or_before(reasons)
}

fn or_before(reasons: Vec<Reason>) -> Vec<Reason> {
    if reasons.is_empty() { vec![Reason::Before] } else { reasons }
}

/// True if there are elements, and all of them are whole numbers.
pub(crate) fn are_integers(shapes: &[Shape]) -> bool {
    !shapes.is_empty() && shapes.iter().all(|shape| matches!(shape.name, Part::Integer(_)) && shape.value.is_none())
}

/// The longest part that counts against a limit, in bytes: of a sorted set the members, not the scores.
pub(crate) fn longest(data_type: DataType, shapes: &[Shape]) -> u64 {
    let value = |shape: &Shape| match data_type {
        DataType::SortedSet => 0,
        _ => shape.value.map_or(0, Part::bytes),
    };
    shapes.iter().map(|shape| shape.name.bytes().max(value(shape))).max().unwrap_or(0)
}

/// The sizes that a server's allocator gives: jemalloc's, with small ones in steps of its quantum.
///
/// ```
/// use larder_footprint::Allocator;
/// let own = Allocator::default();
/// for (bytes, given) in [(1, 8), (24, 24), (65, 80), (129, 160), (1_025, 1_280), (4_097, 5_120)] {
///     assert_eq!(own.gives(bytes), given);
/// }
/// let debians = Allocator { quantum_bytes: 16 };
/// assert_eq!((debians.gives(24), debians.gives(65), debians.gives(129)), (32, 80, 160));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// The step between small sizes.
    pub quantum_bytes: u64,
}

impl Default for Allocator {
    /// As Redis builds its own: 8. Distributions link the system's, with 16.
    fn default() -> Allocator {
        Allocator { quantum_bytes: 8 }
    }
}

impl Allocator {
    /// That of the first server that tells.
    pub(crate) fn of(nodes: &[Vitals]) -> Allocator {
        let told = nodes.iter().find_map(|node| node.quantum_bytes);
        told.map_or_else(Allocator::default, |quantum_bytes| Allocator { quantum_bytes })
    }

    /// What it gives for so many bytes.
    pub fn gives(self, bytes: u64) -> u64 {
        if bytes <= 8 {
            return 8;
        }
        // Four classes to each doubling.
        let step = 1 << (bytes - 1).ilog2().saturating_sub(2);
        bytes.next_multiple_of(self.quantum_bytes.max(step).max(1))
    }

    /// What a key and its elements take beside what `MEMORY USAGE` counts; below zero where it counts more. Redis counts 24 bytes for each entry of a dictionary, whatever is given for
    /// them; Valkey counts what is there.
    pub(crate) fn uncounted(self, nodes: &[Vitals], data_type: DataType, is_dictionary: bool, elements: u64) -> i64 {
        let Some(version) = nodes.iter().find_map(redis_version) else { return 0 };
        let an_entry = self.gives(ENTRY_BYTES).cast_signed() - ENTRY_BYTES.cast_signed();
        let elements = if is_dictionary { elements.min(ELEMENTS_MAX) } else { 0 };
        if data_type != DataType::Set || version < SETS_WITHOUT_VALUES {
            an_entry * (1 + elements.cast_signed())
        } else {
            an_entry + self.chained(elements).cast_signed() - ENTRY_BYTES.cast_signed() * elements.cast_signed()
        }
    }

    /// What entries take that have no value: one that is alone in its bucket is the bucket's pointer itself, and has none.
    fn chained(self, elements: u64) -> u64 {
        let buckets = elements.next_power_of_two() as f64;
        let alone = buckets * -(-(elements as f64) / buckets).exp_m1();
        // Positive, and far below 2^53.
        ((elements as f64 - alone) * self.gives(CHAINED_BYTES) as f64).round() as u64
    }
}

/// The version of a server that is Redis: of Valkey and others there is none.
fn redis_version(node: &Vitals) -> Option<(u32, u32)> {
    let mut numbers = node.software.strip_prefix("redis")?.trim_start().split('.').map(|number| number.parse().ok());
    let version = |number: Option<Option<u32>>| number.flatten().unwrap_or(0);
    Some((version(numbers.next()), version(numbers.next())))
}

/// What a part takes in a listpack, with its own length behind it.
fn listpack_part(part: Part) -> u64 {
    let entry = match part {
        Part::Integer(0..=127) => 1,
        Part::Integer(-4_096..=4_095) => 2,
        Part::Integer(-32_768..=32_767) => 3,
        Part::Integer(-8_388_608..=8_388_607) => 4,
        Part::Integer(-2_147_483_648..=2_147_483_647) => 5,
        Part::Integer(_) => 9,
        Part::Text(bytes @ 0..=63) => 1 + bytes,
        Part::Text(bytes @ 64..=4_095) => 2 + bytes,
        Part::Text(bytes) => 5 + bytes,
    };
    entry + u64::from(entry.max(1).ilog2() / 7) + 1
}

/// What an element takes in a listpack, in the mean.
pub(crate) fn listpack_element(shapes: &[Shape]) -> f64 {
    let bytes = |shape: &Shape| listpack_part(shape.name) + shape.value.map_or(0, listpack_part);
    shapes.iter().map(bytes).sum::<u64>() as f64 / shapes.len().max(1) as f64
}

/// How wide a set of integers with these members is, in bytes a member: as wide as the widest.
fn intset_width(shapes: &[Shape]) -> u64 {
    let width = |shape: &Shape| match shape.name {
        Part::Integer(-32_768..=32_767) => 2,
        Part::Integer(-2_147_483_648..=2_147_483_647) => 4,
        _ => 8,
    };
    shapes.iter().map(width).max().unwrap_or(8)
}

/// What a key takes beside its value.
pub(crate) fn key_overhead(key_bytes: u64, on: Allocator) -> u64 {
    // A string of under 32 bytes has a header of 1 byte, up to 255 of 3; one byte ends it.
    let header = if key_bytes < 32 { 1 } else { 3 };
    on.gives(ENTRY_BYTES) + on.gives(OBJECT_BYTES) + on.gives(key_bytes + header + 1)
}

/// What a collection of so many elements like these would take packed, its key included.
///
/// ```
/// use larder_core::survey::{DataType, Part, Shape};
/// use larder_footprint::{Allocator, packed};
/// let shapes = vec![Shape { name: Part::of(b"100000"), value: None }; 4];
/// // A set of 32-bit integers: 8 bytes and 4 a member, and what stands for the key.
/// assert_eq!(packed(DataType::Set, &shapes, 500.0, 20, Allocator::default()), 24 + 16 + 24 + 2_048);
/// ```
pub fn packed(data_type: DataType, shapes: &[Shape], elements: f64, key_bytes: u64, on: Allocator) -> u64 {
    let value = if data_type == DataType::Set && are_integers(shapes) {
        INTSET_BYTES as f64 + elements * intset_width(shapes) as f64
    } else {
        LISTPACK_BYTES as f64 + elements * listpack_element(shapes)
    };
    // Positive, and far below 2^53.
    key_overhead(key_bytes, on) + on.gives(value.ceil() as u64)
}

/// The same in the mean over shards whose numbers of elements are spread by chance around a mean: what is given for them grows in steps.
pub(crate) fn packed_by_chance(data_type: DataType, shapes: &[Shape], mean: f64, key_bytes: u64, on: Allocator) -> f64 {
    by_chance(mean, |elements| packed(data_type, shapes, elements, key_bytes, on))
}

/// What a shard of a sharded sorted set takes in the mean, its key included: one string (`docs/layouts.md`).
pub(crate) fn sorted_shard_by_chance(shapes: &[Shape], mean: f64, key_bytes: u64, on: Allocator) -> f64 {
    let names = shapes.iter().map(|shape| shape.name.bytes()).sum::<u64>() as f64 / shapes.len().max(1) as f64;
    by_chance(mean, |elements| {
        let value = SORTED_SHARD_BYTES as f64 + elements * (names + SCORE_BYTES as f64);
        // A string of over 255 bytes has a header of 5; one byte ends it.
        key_overhead(key_bytes, on) + on.gives(value.ceil() as u64 + 6)
    })
}

/// The mean of something over shards whose numbers of elements are spread by chance around a mean.
fn by_chance(mean: f64, bytes: impl Fn(f64) -> u64) -> f64 {
    // The middles of ten equally likely parts of a normal distribution.
    const DEVIATIONS: [f64; 5] = [0.126, 0.385, 0.674, 1.036, 1.645];
    let of = |deviations: f64| bytes((mean + deviations * mean.sqrt()).max(1.0)) as f64;
    DEVIATIONS.iter().map(|&deviations| of(deviations) + of(-deviations)).sum::<f64>() / (2 * DEVIATIONS.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS_7_0: Encodings = Encodings {
        hash_entries_max: 128,
        hash_value_bytes_max: 64,
        set_integers_max: 512,
        set_entries_max: 0,
        set_value_bytes_max: 0,
        sorted_set_entries_max: 128,
        sorted_set_value_bytes_max: 64,
        stream_node_entries_max: 100,
        stream_node_bytes_max: 4_096,
    };
    const REDIS_7_2: Encodings = Encodings { set_entries_max: 128, set_value_bytes_max: 64, ..REDIS_7_0 };

    fn set(elements: u64, members: &[&str]) -> Measured {
        let shape = |member: &&str| Shape { name: Part::of(member.as_bytes()), value: None };
        Measured { elements, shapes: members.iter().map(shape).collect(), ..Measured::default() }
    }

    #[test]
    fn the_limit_that_unpacks_a_set_is_named() {
        let of = |limits: &Encodings, measured: &Measured| why(DataType::Set, limits, measured);
        let over = |setting, limit, largest| vec![Reason::TooMany { setting, limit, largest }];
        let integers = set(600, &["1", "-7"]);
        assert_eq!(of(&REDIS_7_0, &integers), over("set-max-intset-entries", 512, 600));
        assert_eq!(of(&REDIS_7_2, &integers), over("set-max-intset-entries", 512, 600));
        // Between the two limits they are packed as others are.
        let small = Encodings { set_integers_max: 64, ..REDIS_7_2 };
        assert_eq!(of(&small, &set(100, &["1"])), [Reason::Before]);
        assert_eq!(of(&small, &set(200, &["1"])), over("set-max-listpack-entries", 128, 200));
        let texts = set(100, &["1", "red"]);
        assert_eq!(of(&REDIS_7_0, &texts), [Reason::NotIntegers]);
        assert_eq!(of(&REDIS_7_2, &texts), [Reason::Before]);
        assert_eq!(of(&REDIS_7_2, &set(129, &["red"])), over("set-max-listpack-entries", 128, 129));
        let long = "x".repeat(65);
        let setting = "set-max-listpack-value";
        assert_eq!(of(&REDIS_7_2, &set(2, &[&long])), [Reason::TooLong { setting, limit: 64, longest: 65 }]);
    }

    #[test]
    fn scores_are_no_members_and_values_are() {
        let long = Shape { name: Part::Text(3), value: Some(Part::Text(100)) };
        let measured = Measured { elements: 1, shapes: vec![long], ..Measured::default() };
        assert_eq!(why(DataType::SortedSet, &REDIS_7_0, &measured), [Reason::Before]);
        let setting = "hash-max-listpack-value";
        let reasons = why(DataType::Hash, &REDIS_7_0, &measured);
        assert_eq!(reasons, [Reason::TooLong { setting, limit: 64, longest: 100 }]);
        let both = Measured { elements: 129, ..measured };
        assert_eq!(why(DataType::Hash, &REDIS_7_0, &both).len(), 2);
    }

    /// 43.6 and 48.3 bytes a member are told by 8.0.6 of sets of 200 and 1,000, of which 24.7 and 30.2 are taken.
    #[test]
    fn members_of_a_set_take_less_on_redis_than_it_counts() {
        let (own, debians) = (Allocator::default(), Allocator { quantum_bytes: 16 });
        let of = |on: Allocator, software: &str, data_type, elements| {
            let nodes = [Vitals::of("cache:6379", software)];
            on.uncounted(&nodes, data_type, true, elements) as f64 / elements as f64
        };
        for (members, told, taken) in [(200, 43.6, 24.7), (1_000, 48.3, 30.2)] {
            let each = told + of(debians, "redis 8.0.6", DataType::Set, members);
            assert!((each - taken).abs() < 0.5, "{members}: {each}");
        }
        assert_eq!(of(own, "redis 7.0.15", DataType::Set, 200), 0.0);
        assert_eq!(of(debians, "redis 7.0.15", DataType::Set, 200), 8.0 * 201.0 / 200.0);
        assert_eq!(of(debians, "redis 8.0.6", DataType::Hash, 200), 8.0 * 201.0 / 200.0);
        assert_eq!(of(debians, "redis 8.4.0", DataType::Set, 200), of(debians, "redis 8.0.6", DataType::Set, 200));
        assert_eq!(of(debians, "valkey 8.1.1", DataType::Set, 200), 0.0);
    }

    #[test]
    fn parts_take_in_a_listpack_what_the_server_counts() {
        for (part, bytes) in [
            (Part::Integer(127), 2),
            (Part::Integer(-1), 3),
            (Part::Integer(4_096), 4),
            (Part::Integer(100_000), 5),
            (Part::Integer(1 << 30), 6),
            (Part::Integer(i64::MAX), 10),
            (Part::Text(0), 2),
            (Part::Text(63), 65),
            (Part::Text(64), 67),
            (Part::Text(126), 130),
        ] {
            assert_eq!(listpack_part(part), bytes, "{part:?}");
        }
    }

    #[test]
    fn the_chapters_set_of_integers_takes_what_was_measured() {
        // 10 M ids in 23,529 shards of 425 members of 32 bits: 4.41 bytes each on a live server (docs/bench.md).
        let shapes = vec![Shape { name: Part::Integer(1 << 30), value: None }];
        let a_shard = packed(DataType::Set, &shapes, 426.0, 40, Allocator { quantum_bytes: 16 }) as f64;
        let each = a_shard / 425.0;
        assert!((4.2..4.8).contains(&each), "{each}");
    }
}
