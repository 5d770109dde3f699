//! Advice: what would save memory, and how much.
//!
//! All of it is arithmetic over groups that were measured: nothing is asked of a server, and nothing changed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use larder_core::Encodings;
use larder_core::survey::{DataType, Measured, Part, Shape, SlabClass, Vitals};
use larder_structures::Name;
use larder_structures::sharded::SHARDS_MAX;

use crate::dense::reshard_dense;
use crate::group::Group;
use crate::packed::{
    Allocator, Limits, Reason, are_integers, longest, packed, packed_by_chance, sorted_shard_by_chance,
};
use crate::pattern::{Owner, fixed};
use crate::report::encodings;
use crate::reshard::reshard;
use crate::slabs::{Slabs, best_factor};

/// Elements that a listpack may have: every operation walks through it, 1.1 microseconds at 512 and 2.2 at 1,024 where a table takes 0.5.
const LISTPACK_ENTRIES_MAX: u64 = 512;
/// Members that a set of integers may have: it is searched in halves, but a new member moves half of it.
const INTSET_ENTRIES_MAX: u64 = 4_096;
/// Bytes that an element of a listpack may have: they are moved when one before it changes.
const VALUE_BYTES_MAX: u64 = 1_024;
/// Elements of a shard of a hash: 64 to 128 take as little memory as 1,024, at a fifth of the time an operation.
const SHARD_ELEMENTS: u64 = 64;
/// Of a set of integers that is spread by a hash, how many deviations over the mean a shard must hold: 1 in 90,000 has more.
const SHARD_DEVIATIONS: f64 = 4.25;
/// Fewer keys are not worth another layout.
const MANY_KEYS: u64 = 1_000;
/// Values this short cost less than their keys.
const SHORT_VALUE_BYTES: f64 = 64.0;
/// The key of a shard, in bytes.
pub(crate) const SHARD_KEY_BYTES: u64 = 40;
/// A saving below this share of all is not worth a word.
const WORTH: f64 = 0.01;
/// A growth factor that saves less than this share is left alone: it takes a restart, which empties the cache.
const WORTH_RESTART: f64 = 0.05;
/// What an item of memcached takes in a shard of its own beside the elements: its header, and that of the shard.
const PORTABLE_SHARD_BYTES: f64 = 64.0 + 14.0;
/// Chunks that grow by 1.25 are a tenth larger than what is in them, in the mean.
const CHUNK_WASTE: f64 = 1.1;
/// Where more is resident than so many times of what is used, it is worth to have it tidied up.
const FRAGMENTED: f64 = 1.5;
/// Below this much, what is resident is mostly the server itself.
const FRAGMENTED_BYTES_MIN: u64 = 64 << 20;
/// Names whose manifest is gone that are told, those of most keys first; of the rest, how many they are.
const UNCLAIMED_MAX: usize = 20;
/// What is left of fragmentation after tidying up.
const TIDY: f64 = 1.1;

/// Something that would save memory.
///
/// ```
/// use larder_core::survey::{DataType, Measured, Part, Shape, Vitals};
/// use larder_core::Encodings;
/// use larder_footprint::{Group, Owner, advise};
/// let limits = Encodings { set_integers_max: 128, ..Encodings::default() };
/// let mut vitals = Vitals::of("cache:6379", "redis 7.0.15");
/// vitals.encodings = Some(limits);
/// let shapes = vec![Shape { name: Part::Integer(100_000), value: None }];
/// let set = Measured { bytes: 14_000, elements: 200, shapes, ..Measured::default() };
/// let group = Group::new(Owner::Foreign("followers:*".to_owned()), DataType::Set, "hashtable", 1_000)
///     .measured(vec![(b"followers:1".to_vec(), set)], Some(&limits));
/// let advice = advise(&[group], &[vitals]);
/// assert_eq!(advice[0].act.to_string(), "set-max-intset-entries 256");
/// assert!(advice[0].saves_bytes > 12_000_000.0, "of 14 MB");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// Whose keys it is about; `None` for the server as a whole.
    pub owner: Option<Owner>,
    /// What they hold and how they are kept.
    pub kept: String,
    /// What to do.
    pub act: Act,
    /// What was measured that calls for it.
    pub why: String,
    /// What else is to be known before it is done.
    pub note: &'static str,
    /// What it would save, about; 0 for what saves nothing but trouble.
    pub saves_bytes: f64,
}

/// What to do.
///
/// ```
/// use larder_footprint::Act;
/// assert_eq!(Act::Rewrite.to_string(), "write the keys anew");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Act {
    /// Change settings of Redis or Valkey: `CONFIG SET`, and lines of redis.conf.
    Settings(Vec<Setting>),
    /// Start memcached with other options.
    Options(Vec<Setting>),
    /// Write keys anew, so that they are packed again: by `DUMP` and `RESTORE`, or a restart from a snapshot.
    Rewrite,
    /// Spread elements over small shards.
    Shard {
        /// By what: a command of Larder's.
        by: &'static str,
        /// Elements of a shard.
        elements: u64,
        /// How many shards that is, of all keys together.
        shards: u64,
        /// How many of them at most would be of one name. A name has [`SHARDS_MAX`](larder_structures::sharded::SHARDS_MAX): more are spread over several names.
        of_a_name: u64,
    },
    /// Spread a structure over another number of shards.
    Reshard {
        /// Which.
        name: Name,
        /// Over how many.
        shards: u64,
    },
    /// Cut the dense numbers of a structure into smaller shards.
    ReshardDense {
        /// Which.
        name: Name,
        /// How many numbers a shard.
        per_shard: u32,
        /// How many shards that is.
        shards: u64,
    },
    /// Find out whether data whose manifest is gone is live: no memory is saved by it, but what is lost may be found.
    Look {
        /// Of which structure it is.
        name: Name,
    },
    /// Remove keys that nobody reads any more.
    Remove {
        /// Of which structure they were.
        name: Name,
    },
}

/// A setting and its value.
///
/// ```
/// use larder_footprint::Setting;
/// let setting = Setting { name: "set-max-intset-entries".to_owned(), value: "1024".to_owned(), now: "512".to_owned() };
/// assert_eq!(setting.to_string(), "set-max-intset-entries 1024");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// By the server's own name.
    pub name: String,
    /// What it should be.
    pub value: String,
    /// What it is.
    pub now: String,
}

impl Setting {
    fn new(name: &str, value: impl ToString, now: impl ToString) -> Setting {
        Setting { name: name.to_owned(), value: value.to_string(), now: now.to_string() }
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setting { name, value, .. } = self;
        if value.is_empty() { f.write_str(name) } else { write!(f, "{name} {value}") }
    }
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Act::Settings(settings) | Act::Options(settings) => {
                let all: Vec<String> = settings.iter().map(Setting::to_string).collect();
                f.write_str(&all.join(", "))
            }
            Act::Rewrite => f.write_str("write the keys anew"),
            Act::Shard { by, elements, shards, of_a_name } => {
                write!(f, "{by}: {shards} shards of {elements}")?;
                match of_a_name.div_ceil(SHARDS_MAX.into()) {
                    0 | 1 => Ok(()),
                    names => write!(f, ", over {names} names: one has {SHARDS_MAX} at most"),
                }
            }
            Act::Reshard { name, shards } => write!(f, "larder reshard {name} --shards {shards}"),
            Act::ReshardDense { name, per_shard, .. } => write!(f, "larder reshard {name} --dense {per_shard}"),
            Act::Look { name } => write!(f, "find out whether {name} is live, whose manifest is gone"),
            Act::Remove { name } => write!(f, "remove what is left over of {name}"),
        }
    }
}

/// What would save memory, what saves most first; before it, what may be a loss: of at most 20 names. A pure function of what was measured: of groups, and of what the servers said.
///
/// A saving below a hundredth of all is left out. Savings of one group do not add up: they are choices. Never advised is a memcached growth factor that runs out of slab classes, such as
/// 1.05: items in between would take chunks of half a megabyte.
///
/// Sizes after a change are computed from elements that were drawn, by the encodings' own layouts and the allocator's size classes: within 15 % of what a server then really takes, which a
/// test holds on real servers.
pub fn advise(groups: &[Group], nodes: &[Vitals]) -> Vec<Advice> {
    let all: f64 = groups.iter().map(|group| group.resident_bytes.unwrap_or(0.0).max(group.bytes.value)).sum();
    let mut advice = Vec::new();
    if let Some(limits) = encodings(nodes) {
        let on = Allocator::of(nodes);
        for group in groups {
            advice.extend(raise_limits(group, &limits, on));
            advice.extend(shard_large(group, &limits, nodes, on));
            advice.extend(reshard(group, groups, &limits, nodes, on));
            advice.extend(reshard_dense(group, groups, &limits, nodes, on));
            advice.extend(shard_sorted(group, nodes, on));
            advice.extend(gather_strings(group, &limits, nodes, on));
        }
        advice.extend(tidy_up(nodes));
    }
    for group in groups {
        advice.extend(gather_items(group, nodes));
        advice.extend(left_over(group));
    }
    advice.retain(|one| one.saves_bytes > all * WORTH);
    advice.extend(slabs(groups, nodes));
    advice.sort_by(|one, other| other.saves_bytes.total_cmp(&one.saves_bytes));
    let mut all = unclaimed(groups);
    all.append(&mut advice);
    all
}

/// The settings that all advice together calls for: of each the largest.
///
/// ```
/// assert!(larder_footprint::settings(&[]).is_empty());
/// ```
pub fn settings(advice: &[Advice]) -> Vec<Setting> {
    let mut all: BTreeMap<&str, &Setting> = BTreeMap::new();
    for setting in advice.iter().flat_map(|one| match &one.act {
        Act::Settings(settings) | Act::Options(settings) => &settings[..],
        _ => &[],
    }) {
        let number = |setting: &Setting| amount(&setting.value);
        let known = all.entry(&setting.name).or_insert(setting);
        if number(setting) > number(known) {
            *known = setting;
        }
    }
    all.into_values().cloned().collect()
}

/// How much a setting is: a number, of kibi or mebi where it ends so.
fn amount(value: &str) -> f64 {
    let (digits, unit) = match value.as_bytes().last() {
        Some(b'k') => (&value[..value.len() - 1], 1_024.0),
        Some(b'm') => (&value[..value.len() - 1], 1_048_576.0),
        _ => (value, 1.0),
    };
    digits.parse::<f64>().map_or(0.0, |number| number * unit)
}

pub(crate) fn about(group: &Group, act: Act, why: String, note: &'static str, saves_bytes: f64) -> Advice {
    let kept = group.kept();
    Advice { owner: Some(group.owner.clone()), kept, act, why, note, saves_bytes }
}

/// The mean of something over the measured keys of a group.
pub(crate) fn mean(group: &Group, of: impl Fn(&Measured) -> f64) -> f64 {
    let sum: f64 = group.measured.iter().map(|(_, measured)| of(measured)).sum();
    sum / group.measured.len().max(1) as f64
}

const REWRITE_NOTE: &str = "keys that are not packed stay so until they are written anew: by DUMP and RESTORE, a restart from a snapshot, or a failover to a replica that loaded one";

/// Limits under which the keys of a group would be packed, as far as packing stays quick.
fn raise_limits(group: &Group, known: &Encodings, on: Allocator) -> Option<Advice> {
    let limits = Limits::of(group.data_type, known).filter(|_| group.is_unpacked())?;
    let shapes: Vec<Shape> = group.measured.iter().flat_map(|(_, measured)| measured.shapes.iter().copied()).collect();
    let of_integers = limits.integers.filter(|_| are_integers(&shapes));
    // A server that packs no such sets has nothing to raise.
    if shapes.is_empty() || (of_integers.is_none() && limits.entries.1 == 0) {
        return None;
    }
    let (entries, entries_max) = match of_integers {
        Some(limit) => (limit, INTSET_ENTRIES_MAX),
        None => (limits.entries, LISTPACK_ENTRIES_MAX),
    };
    let length =
        |measured: &Measured| if of_integers.is_some() { 0 } else { longest(group.data_type, &measured.shapes) };
    let can_be = |measured: &&Measured| {
        !measured.shapes.is_empty()
            && measured.elements <= entries_max.max(entries.1)
            && length(measured) <= VALUE_BYTES_MAX
    };
    let able: Vec<&Measured> = group.measured.iter().map(|(_, measured)| measured).filter(can_be).collect();
    let most = able.iter().map(|measured| measured.elements).max()?;
    let longest = able.iter().map(|measured| length(measured)).max().unwrap_or(0);
    let raised = |limit: u64, wanted: u64| if wanted > limit { wanted.next_power_of_two() } else { limit };
    let mut settings = Vec::new();
    for ((name, limit), wanted) in [(entries, most), (limits.value_bytes, longest)] {
        if raised(limit, wanted) > limit {
            settings.push(Setting::new(name, raised(limit, wanted), limit));
        }
    }
    let key_bytes = group.key_bytes.round() as u64;
    let saves_bytes = group.keys as f64
        * mean(group, |measured| match can_be(&measured) {
            true => {
                measured.bytes as f64
                    - packed(group.data_type, &measured.shapes, measured.elements as f64, key_bytes, on) as f64
            }
            false => 0.0,
        });
    let act = if settings.is_empty() { Act::Rewrite } else { Act::Settings(settings) };
    Some(about(group, act, worst(group), REWRITE_NOTE, saves_bytes))
}

/// Why the keys of a group are not packed, in a sentence.
pub(crate) fn worst(group: &Group) -> String {
    let all: Vec<String> =
        group.reasons.iter().map(|(reason, share)| format!("{:.0} % of keys: {reason}", share * 100.0)).collect();
    all.join("; ")
}

/// How many whole numbers a shard of a set may have in the mean so that chance keeps it under the server's limit.
fn integers_a_shard(limit: u64) -> u64 {
    // One is a mark.
    let most = limit.clamp(8, INTSET_ENTRIES_MAX).saturating_sub(1) as f64;
    let mean = ((SHARD_DEVIATIONS.powi(2) + 4.0 * most).sqrt() / 2.0 - SHARD_DEVIATIONS / 2.0).powi(2);
    mean.max(1.0) as u64
}

/// Small shards for the elements of a group.
pub(crate) struct Spread {
    /// The command that makes them.
    by: &'static str,
    /// Elements of a shard, in the mean.
    pub(crate) elements: u64,
    /// Keys of so many are better left whole, with their limits raised.
    entries_max: u64,
    /// They keep hashes in the place of members.
    pub(crate) is_hashed: bool,
}

impl Spread {
    /// `None` where no shards would be packed.
    pub(crate) fn of(group: &Group, known: &Encodings) -> Option<Spread> {
        // More shards of dense numbers have as many each.
        let limits = Limits::of(group.data_type, known).filter(|_| group.is_unpacked() && group.dense.is_none())?;
        let of_integers = limits.integers.filter(|_| are_integers(&shapes(group)));
        let is_hashed = of_integers.is_none() && limits.entries.1 == 0;
        let (by, elements, entries_max) = match (group.data_type, of_integers) {
            // Of members that cannot be packed, hashes of 32 bits can.
            (DataType::Set, None) if is_hashed => (
                "larder unique (counts, and tells who is new; members are not kept)",
                integers_a_shard(known.set_integers_max),
                0,
            ),
            (DataType::Set, Some((_, limit))) => ("larder sharded-set", integers_a_shard(limit), limit),
            (DataType::Set, None) => {
                ("larder sharded-set", SHARD_ELEMENTS.min(limits.entries.1 / 2), LISTPACK_ENTRIES_MAX)
            }
            (DataType::Hash, _) => ("larder hash", SHARD_ELEMENTS.min(limits.entries.1 / 2), LISTPACK_ENTRIES_MAX),
            _ => return None,
        };
        (elements > 0).then_some(Spread { by, elements, entries_max, is_hashed })
    }

    pub(crate) fn is_large(&self, measured: &Measured) -> bool {
        measured.elements > self.entries_max && !measured.shapes.is_empty()
    }

    /// So many shards.
    pub(crate) fn act(&self, shards: u64, of_a_name: u64) -> Act {
        Act::Shard { by: self.by, elements: self.elements, shards, of_a_name }
    }
}

/// The elements that were drawn from the keys of a group.
pub(crate) fn shapes(group: &Group) -> Vec<Shape> {
    group.measured.iter().flat_map(|(_, measured)| measured.shapes.iter().copied()).collect()
}

/// Shards for collections that are too large to be packed whole.
fn shard_large(group: &Group, known: &Encodings, nodes: &[Vitals], on: Allocator) -> Option<Advice> {
    let spread = Spread::of(group, known).filter(|_| matches!(group.owner, Owner::Foreign(_)))?;
    let hashed = [Shape { name: Part::Integer(1 << 30), value: None }];
    let shards = |measured: &Measured| measured.elements.div_ceil(spread.elements) as f64;
    let of_large = |of: &dyn Fn(&Measured) -> f64| {
        group.keys as f64 * mean(group, |measured| if spread.is_large(measured) { of(measured) } else { 0.0 })
    };
    let saves_bytes = of_large(&|measured| {
        let shapes = if spread.is_hashed { &hashed[..] } else { &measured.shapes };
        let each = measured.elements as f64 / shards(measured) + 1.0;
        let a_shard = packed_by_chance(group.data_type, shapes, each, SHARD_KEY_BYTES, on) + bucket_bytes(nodes);
        measured.bytes as f64 - shards(measured) * a_shard
    });
    let count = of_large(&shards);
    let act = spread.act(count.ceil() as u64, largest(group, |measured| spread.is_large(measured), shards));
    (count >= 1.0).then(|| about(group, act, worst(group), "programs must use the shards", saves_bytes))
}

/// The shards of the key that needs most of them.
fn largest(group: &Group, is_large: impl Fn(&Measured) -> bool, shards: impl Fn(&Measured) -> f64) -> u64 {
    let large = group.measured.iter().filter(|(_, measured)| is_large(measured));
    large.map(|(_, measured)| shards(measured) as u64).max().unwrap_or(0)
}

/// Shards for sorted sets that are too large to be packed whole.
fn shard_sorted(group: &Group, nodes: &[Vitals], on: Allocator) -> Option<Advice> {
    let is_such = group.data_type == DataType::SortedSet && group.is_unpacked();
    if !is_such || !matches!(group.owner, Owner::Foreign(_)) {
        return None;
    }
    let is_large = |measured: &Measured| measured.elements > LISTPACK_ENTRIES_MAX && !measured.shapes.is_empty();
    let shards = |measured: &Measured| measured.elements.div_ceil(SHARD_ELEMENTS) as f64;
    let of_large = |of: &dyn Fn(&Measured) -> f64| {
        group.keys as f64 * mean(group, |measured| if is_large(measured) { of(measured) } else { 0.0 })
    };
    let saves_bytes = of_large(&|measured| {
        let each = measured.elements as f64 / shards(measured);
        let a_shard = sorted_shard_by_chance(&measured.shapes, each, SHARD_KEY_BYTES, on) + bucket_bytes(nodes);
        measured.bytes as f64 - shards(measured) * a_shard
    });
    let count = of_large(&shards);
    let of_a_name = largest(group, is_large, shards);
    let act = Act::Shard { by: "larder top", elements: SHARD_ELEMENTS, shards: count.ceil() as u64, of_a_name };
    let note = "the highest and the lowest are one read, ranks and ranges in between are not kept; programs must use the shards";
    (count >= 1.0).then(|| about(group, act, worst(group), note, saves_bytes))
}

/// The parts of a key's name that differ among those of its group, and its value.
fn element(group: &Group, key: &[u8], value_bytes: u64) -> Shape {
    let prefix = match &group.owner {
        Owner::Foreign(pattern) => fixed(pattern).len(),
        _ => 0,
    };
    let value = match group.encoding.as_str() {
        // As many digits: the smallest such number.
        "int" => {
            Part::Integer(10i64.saturating_pow(u32::try_from(value_bytes).unwrap_or(18).saturating_sub(1).min(18)))
        }
        _ => Part::Text(value_bytes),
    };
    Shape { name: Part::of(key.get(prefix..).unwrap_or(key)), value: Some(value) }
}

/// A hash in place of very many short strings.
fn gather_strings(group: &Group, known: &Encodings, nodes: &[Vitals], on: Allocator) -> Option<Advice> {
    let value_bytes = group.value_bytes.filter(|&bytes| bytes <= SHORT_VALUE_BYTES)?;
    let is_such = group.data_type == DataType::String && group.keys >= MANY_KEYS && group.expiring == Some(0.0);
    if !is_such || !matches!(group.owner, Owner::Foreign(_)) || known.hash_entries_max == 0 {
        return None;
    }
    let shapes: Vec<Shape> =
        group.measured.iter().map(|(key, measured)| element(group, key, measured.value_bytes.unwrap_or(0))).collect();
    let elements = SHARD_ELEMENTS.min(known.hash_entries_max / 2).max(1);
    let shards = group.keys.div_ceil(elements);
    let a_shard = packed_by_chance(DataType::Hash, &shapes, elements as f64 + 1.0, SHARD_KEY_BYTES, on);
    let fewer = (group.keys - shards) as f64;
    let saves_bytes = group.bytes.value + fewer * bucket_bytes(nodes) - shards as f64 * a_shard;
    let why = format!("{} keys of {:.0} bytes with values of {value_bytes:.0}", group.keys, group.key_bytes);
    let act = Act::Shard { by: "larder hash", elements, shards, of_a_name: shards };
    Some(about(group, act, why, "fields have no lives of their own; programs must use the hash", saves_bytes))
}

/// What a key takes in the table of all keys, which no size of a key counts.
pub(crate) fn bucket_bytes(nodes: &[Vitals]) -> f64 {
    const POINTER_BYTES: f64 = 8.0;
    let items: u64 = nodes.iter().filter_map(|node| node.items).sum();
    // Few keys say nothing of the table that more would have: full between a half and whole.
    if items < MANY_KEYS {
        POINTER_BYTES * 1.5
    } else {
        POINTER_BYTES * items.next_power_of_two() as f64 / items as f64
    }
}

/// A sharded hash in place of very many short items.
fn gather_items(group: &Group, nodes: &[Vitals]) -> Option<Advice> {
    let value_bytes = group.value_bytes.filter(|&bytes| bytes <= SHORT_VALUE_BYTES)?;
    // Of groups in a folder nothing is resident; its tables take what their items do, within a twentieth.
    let is_in_folder = nodes.iter().any(|node| node.disk_bytes.is_some());
    let taken = group.resident_bytes.or_else(|| is_in_folder.then_some(group.bytes.value))?;
    let is_such = group.data_type == DataType::Item && group.keys >= MANY_KEYS && group.expiring == Some(0.0);
    let Owner::Foreign(pattern) = &group.owner else { return None };
    if !is_such {
        return None;
    }
    let has_chunks = nodes.iter().any(has_slabs);
    let name_bytes = (group.key_bytes - fixed(pattern).len() as f64).max(1.0);
    let shards = group.keys.div_ceil(SHARD_ELEMENTS);
    // A length before each name and each value.
    let elements = group.keys as f64 * (name_bytes + value_bytes + 2.0);
    let all = elements + shards as f64 * (PORTABLE_SHARD_BYTES + SHARD_KEY_BYTES as f64);
    let waste = if has_chunks { CHUNK_WASTE } else { 1.0 };
    let why =
        format!("{} items of {:.0} bytes each with values of {value_bytes:.0}", group.keys, taken / group.keys as f64);
    let act = Act::Shard { by: "larder hash", elements: SHARD_ELEMENTS, shards, of_a_name: shards };
    let note = if is_in_folder {
        "of the disk; elements have no lives of their own, and each write writes its shard anew; programs must use the hash"
    } else {
        "elements have no lives of their own, and an eviction takes a whole shard; programs must use the hash"
    };
    Some(about(group, act, why, note, taken - all * waste))
}

/// Keys of lives that are over.
fn left_over(group: &Group) -> Option<Advice> {
    let Owner::Structure { name, is_left_over: true } = &group.owner else { return None };
    let why = format!("{} keys of a life of the name that is over: its manifest is of another", group.keys);
    let note = "look first that nobody made it anew meanwhile";
    Some(about(group, Act::Remove { name: name.clone() }, why, note, group.bytes.value))
}

/// Keys whose manifest is gone, by their names: nobody can tell from outside whether they are live. Those of most keys first.
fn unclaimed(groups: &[Group]) -> Vec<Advice> {
    let mut all: BTreeMap<&Name, (u64, BTreeSet<String>)> = BTreeMap::new();
    for group in groups {
        let Owner::Unclaimed(name) = &group.owner else { continue };
        let (keys, kept) = all.entry(name).or_default();
        *keys = keys.saturating_add(group.keys);
        kept.insert(group.kept());
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, (keys, _))| Reverse(*keys));
    let more = all.len().saturating_sub(UNCLAIMED_MAX);
    all.truncate(UNCLAIMED_MAX);
    let one = |(name, (keys, kept)): (&Name, (u64, BTreeSet<String>))| Advice {
        owner: Some(Owner::Unclaimed(name.clone())),
        kept: kept.into_iter().collect::<Vec<_>>().join("; "),
        act: Act::Look { name: name.clone() },
        why: format!("{keys} keys without a manifest: live data of which it was evicted, or what a drop left"),
        note: "a handle that is open puts an evicted one back within a minute of its use; who opens it anew meanwhile makes another, and this data is lost",
        saves_bytes: 0.0,
    };
    let mut advice: Vec<Advice> = all.into_iter().map(one).collect();
    if let Some(last) = advice.last_mut().filter(|_| more > 0) {
        last.why += &format!(" (and {more} more such names)");
    }
    advice
}

/// Memory that the allocator holds and does not use.
fn tidy_up(nodes: &[Vitals]) -> Vec<Advice> {
    let of = |node: &Vitals| {
        let (used, resident) = node.used_bytes.zip(node.resident_bytes)?;
        let is_jemalloc = node.told.get("mem_allocator").is_some_and(|name| name.starts_with("jemalloc"));
        let now = node.settings.get("activedefrag").filter(|now| is_jemalloc && *now == "no")?;
        if used < FRAGMENTED_BYTES_MIN || (resident as f64) < used as f64 * FRAGMENTED {
            return None;
        }
        Some(Advice {
            owner: None,
            kept: node.node.clone(),
            act: Act::Settings(vec![Setting::new("activedefrag", "yes", now)]),
            why: format!("{:.2} bytes are resident for each that is used", resident as f64 / used as f64),
            note: "it takes processor time while it runs; MEMORY PURGE gives back what is free already",
            saves_bytes: resident as f64 - used as f64 * TIDY,
        })
    };
    nodes.iter().filter_map(of).collect()
}

/// True for a server that keeps items in chunks.
fn has_slabs(node: &Vitals) -> bool {
    node.settings.contains_key("growth_factor")
}

/// What a memcached's slab classes, limits and pages call for.
fn slabs(groups: &[Group], nodes: &[Vitals]) -> Vec<Advice> {
    let Some(first) = nodes.iter().find(|node| has_slabs(node)) else { return Vec::new() };
    let mut advice = Vec::new();
    advice.extend(growth_factor(groups, first));
    for node in nodes {
        advice.extend(item_limit(node));
        advice.extend(free_pages(node));
    }
    advice
}

fn server(node: &Vitals, options: Vec<Setting>, why: String, note: &'static str, saves_bytes: f64) -> Advice {
    Advice { owner: None, kept: node.node.clone(), act: Act::Options(options), why, note, saves_bytes }
}

/// `-f`: the growth factor whose chunks fit the items best.
fn growth_factor(groups: &[Group], node: &Vitals) -> Option<Advice> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (&size, &count) in groups.iter().flat_map(|group| &group.sizes) {
        *sizes.entry(size).or_default() += count;
    }
    let setting = |name: &str| node.settings.get(name).and_then(|value| value.parse::<f64>().ok());
    let (factor, room) = (setting("growth_factor")?, setting("chunk_size")? as u64);
    let chunk_max = setting("slab_chunk_max")? as u64;
    let now = Slabs::new(factor, room, chunk_max).total(&sizes) as f64;
    let (best, then) = best_factor(&sizes, room, chunk_max);
    let saves_bytes = now - then as f64;
    if saves_bytes <= now * WORTH_RESTART {
        return None;
    }
    let items: f64 = sizes.iter().map(|(&size, &count)| size as f64 * count as f64).sum();
    let why = format!(
        "chunks are {:.0} % larger than what is in them; by the sizes measured {best:.2} makes it {:.0} %",
        (now / items - 1.0) * 100.0,
        (then as f64 / items - 1.0) * 100.0
    );
    let options = vec![Setting::new("-f", format!("{best:.2}"), factor)];
    Some(server(
        node,
        options,
        why,
        "it takes a restart, which empties the server; sizes that come later may fit worse",
        saves_bytes,
    ))
}

/// `-I`: the largest item, where the server has refused some.
fn item_limit(node: &Vitals) -> Option<Advice> {
    let refused = node.number("store_too_large").filter(|&count| count > 0)?;
    let limit: u64 = node.settings.get("item_size_max")?.parse().ok()?;
    // Rounded up, and as many mebibytes only where they are whole: the server is to have no less.
    let show = |bytes: u64| match bytes {
        whole if whole.is_multiple_of(1 << 20) => format!("{}m", whole >> 20),
        bytes => format!("{}k", bytes.div_ceil(1 << 10)),
    };
    let why = format!("{refused} items were refused since they are larger than {} bytes", limit);
    let options = vec![Setting::new("-I", show(limit.saturating_mul(2)), show(limit))];
    Some(server(node, options, why, "it takes a restart, which empties the server; or split what is stored", 0.0))
}

/// Pages of classes that have few items left: no other class can use them unless they are moved.
fn free_pages(node: &Vitals) -> Option<Advice> {
    let page = |class: &SlabClass| class.page_chunks.saturating_mul(class.chunk_bytes);
    let whole = |class: &SlabClass| match page(class) {
        0 => 0,
        page => class.free_bytes() / page * page,
    };
    let sum = |of: &dyn Fn(&SlabClass) -> u64| node.classes.iter().map(of).fold(0, u64::saturating_add);
    let (free, all) = (sum(&whole), sum(&|class| class.pages.saturating_mul(page(class))));
    let is_off = node.settings.get("slab_automove").is_some_and(|mode| mode == "0");
    if !is_off || free == 0 || (free as f64) < all as f64 * WORTH_RESTART {
        return None;
    }
    let why = format!("{} of {} MB of slab pages belong to classes that do not need them", free >> 20, all >> 20);
    let options = vec![Setting::new("-o", "slab_reassign,slab_automove=1", "slab_automove=0")];
    Some(server(node, options, why, "`slabs automove 1` turns it on at once, where slab_reassign is", free as f64))
}

impl Reason {
    /// The setting whose limit it is, if it is one.
    ///
    /// ```
    /// assert_eq!(larder_footprint::Reason::Before.setting(), None);
    /// ```
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            Reason::TooMany { setting, .. } | Reason::TooLong { setting, .. } => Some(setting),
            Reason::NotIntegers | Reason::Before => None,
        }
    }
}
