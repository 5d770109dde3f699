//! A group: keys of one owner, one type and one encoding.

use std::collections::BTreeMap;

use larder_core::Encodings;
use larder_core::survey::{DataType, Measured};
use larder_structures::Kind;
use larder_structures::sharded::Dense;

use crate::estimate::Estimate;
use crate::groups::{Like, Tally};
use crate::packed::{Reason, is_unpacked, why};
use crate::pattern::{Owner, has_mark};

/// Keys of one owner, one type and one encoding, and what they take.
///
/// ```
/// use larder_core::survey::DataType;
/// use larder_footprint::{Group, Owner};
/// let group = Group::new(Owner::Foreign("user:*".to_owned()), DataType::Hash, "listpack", 1_000);
/// assert_eq!((group.keys, group.is_unpacked()), (1_000, false));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Group {
    /// Whose they are.
    pub owner: Owner,
    /// Of a structure its kind, where its manifest tells.
    pub kind: Option<Kind>,
    /// Of a structure of dense numbers, how those are cut into shards.
    pub dense: Option<Dense>,
    /// What they hold.
    pub data_type: DataType,
    /// How the server keeps them, in its own words.
    pub encoding: String,
    /// How many there are.
    pub keys: u64,
    /// What they take, all included.
    pub bytes: Estimate,
    /// What is resident, or set apart, for them; `None` of a store in a folder, whose tables take about what [`bytes`](Group::bytes) tells.
    pub resident_bytes: Option<f64>,
    /// How many elements they have together; `None` where only the structure can tell.
    pub elements: Option<Estimate>,
    /// The share of those with a life; of the sampled ones, where they were sampled.
    pub expiring: Option<f64>,
    /// How long a key is, in the mean.
    pub key_bytes: f64,
    /// How long a value is, in the mean, where keys hold one.
    pub value_bytes: Option<f64>,
    /// Why they are not packed, with the share of the sampled ones of which that is true; empty where they are, or cannot be.
    pub reasons: Vec<(Reason, f64)>,
    /// Those that were looked at closer, by their keys.
    pub measured: Vec<(Vec<u8>, Measured)>,
    /// How many there are of each size, in steps of 8 bytes, over 512 KiB of 4 KiB, where the server tells sizes as it lists.
    pub sizes: BTreeMap<u64, u64>,
}

impl Group {
    /// What its keys are and how they are kept, as `set, intset`.
    ///
    /// ```
    /// use larder_core::survey::DataType;
    /// use larder_footprint::{Group, Owner};
    /// let group = Group::new(Owner::Foreign("tags:*".into()), DataType::Set, "intset", 3);
    /// assert_eq!(group.kept(), "set, intset");
    /// ```
    pub fn kept(&self) -> String {
        format!("{}, {}", self.data_type.as_str(), self.encoding)
    }

    /// A group of which nothing is known but its number.
    pub fn new(owner: Owner, data_type: DataType, encoding: impl Into<String>, keys: u64) -> Group {
        Group {
            owner,
            kind: None,
            dense: None,
            data_type,
            encoding: encoding.into(),
            keys,
            bytes: Estimate::exact(0.0, keys),
            resident_bytes: None,
            elements: None,
            expiring: None,
            key_bytes: 0.0,
            value_bytes: None,
            reasons: Vec::new(),
            measured: Vec::new(),
            sizes: BTreeMap::new(),
        }
    }

    /// The same with what a closer look at some of its keys found, each drawn at random: sizes, elements, and why they are not packed by these limits.
    ///
    /// ```
    /// use larder_core::Encodings;
    /// use larder_core::survey::{DataType, Measured};
    /// use larder_footprint::{Group, Owner};
    /// let limits = Encodings { hash_entries_max: 128, hash_value_bytes_max: 64, ..Encodings::default() };
    /// let hash = Measured { bytes: 20_000, elements: 300, ..Measured::default() };
    /// let group = Group::new(Owner::Foreign("user:*".to_owned()), DataType::Hash, "hashtable", 10)
    ///     .measured(vec![(b"user:1".to_vec(), hash)], Some(&limits));
    /// assert_eq!(group.bytes.value, 200_000.0);
    /// assert_eq!(group.reasons[0].0.to_string(), "300 elements are over hash-max-listpack-entries 128");
    /// ```
    #[must_use]
    pub fn measured(mut self, measured: Vec<(Vec<u8>, Measured)>, limits: Option<&Encodings>) -> Group {
        let all = || measured.iter().map(|(_, measured)| measured);
        let count = measured.len().max(1) as f64;
        let bytes: Vec<f64> = all().map(|measured| measured.bytes as f64).collect();
        self.bytes = Estimate::of(&bytes, self.keys);
        let marks = u64::from(self.kind.is_some_and(has_mark) && self.data_type != DataType::String);
        let elements: Vec<f64> = all().map(|measured| measured.elements.saturating_sub(marks) as f64).collect();
        // What a string of a structure holds, only the structure knows.
        let is_told = !(matches!(self.owner, Owner::Foreign(_)) || marks == 1);
        self.elements = (!is_told).then(|| Estimate::of(&elements, self.keys));
        self.expiring = Some(all().filter(|measured| measured.expires).count() as f64 / count);
        let values: Vec<u64> = all().filter_map(|measured| measured.value_bytes).collect();
        self.value_bytes = (!values.is_empty()).then(|| values.iter().sum::<u64>() as f64 / values.len() as f64);
        if let Some(limits) = limits.filter(|_| self.is_unpacked()) {
            self.reasons = reasons(self.data_type, limits, all());
        }
        self.measured = measured;
        self
    }

    /// What was counted of keys that are alike.
    pub(crate) fn counted(owner: Owner, kind: Option<Kind>, like: &Like, tally: &Tally) -> Group {
        let mut group = Group { kind, ..Group::new(owner, like.data_type, &like.encoding, tally.keys) };
        let keys = tally.keys.max(1) as f64;
        group.key_bytes = tally.key_bytes as f64 / keys;
        group.value_bytes = tally.value_bytes.map(|bytes| bytes as f64 / keys);
        group.expiring = tally.expiring.map(|count| count as f64 / keys);
        group.resident_bytes = tally.resident_bytes.map(|bytes| bytes as f64);
        if let Some(bytes) = tally.bytes {
            group.bytes = Estimate::exact(bytes as f64, tally.keys);
            let is_foreign = matches!(group.owner, Owner::Foreign(_));
            group.elements = is_foreign.then(|| Estimate::exact(tally.keys as f64, tally.keys));
        }
        group.sizes.clone_from(&tally.sizes);
        group
    }

    /// The same with another group of the same owner, type and encoding, such as the next life of a structure.
    pub(crate) fn join(&mut self, other: Group) {
        let (mine, theirs) = (self.keys as f64, other.keys as f64);
        let mean = |one: f64, other: f64| (one * mine + other * theirs) / (mine + theirs).max(1.0);
        let means = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(one, other)| mean(one, other));
        self.kind = self.kind.or(other.kind);
        self.dense = self.dense.or(other.dense);
        self.bytes = self.bytes.plus(other.bytes);
        self.resident_bytes = self.resident_bytes.zip(other.resident_bytes).map(|(one, other)| one + other);
        self.elements = self.elements.zip(other.elements).map(|(one, other)| one.plus(other));
        self.expiring = means(self.expiring, other.expiring);
        self.key_bytes = mean(self.key_bytes, other.key_bytes);
        self.value_bytes = means(self.value_bytes, other.value_bytes);
        for (reason, share) in &mut self.reasons {
            let theirs = other.reasons.iter().find(|(other, _)| other.is_like(reason));
            *share = mean(*share, theirs.map_or(0.0, |(_, share)| *share));
        }
        for (reason, share) in other.reasons {
            if !self.reasons.iter().any(|(known, _)| known.is_like(&reason)) {
                self.reasons.push((reason, mean(0.0, share)));
            }
        }
        self.measured.extend(other.measured);
        for (size, count) in other.sizes {
            *self.sizes.entry(size).or_default() += count;
        }
        self.keys += other.keys;
    }

    /// True if its keys could be packed and are not.
    pub fn is_unpacked(&self) -> bool {
        is_unpacked(self.data_type, &self.encoding)
    }

    /// What an element takes; `None` where elements are not known, or there is none.
    pub fn element_bytes(&self) -> Option<f64> {
        self.elements.filter(|elements| elements.value > 0.0).map(|elements| self.bytes.value / elements.value)
    }

    /// What is resident for an element.
    pub fn element_resident_bytes(&self) -> Option<f64> {
        let elements = self.elements.filter(|elements| elements.value > 0.0)?;
        self.resident_bytes.map(|bytes| bytes / elements.value)
    }
}

/// Why keys are not packed: each reason once, at its worst, those of most keys first.
fn reasons<'a>(
    data_type: DataType,
    limits: &Encodings,
    measured: impl Iterator<Item = &'a Measured>,
) -> Vec<(Reason, f64)> {
    let mut found: Vec<(Reason, u32)> = Vec::new();
    let mut keys = 0u32;
    for one in measured {
        keys += 1;
        for reason in why(data_type, limits, one) {
            match found.iter_mut().find(|(known, _)| known.is_like(&reason)) {
                Some((known, count)) => {
                    *known = (*known).max(reason);
                    *count += 1;
                }
                None => found.push((reason, 1)),
            }
        }
    }
    found.sort_by_key(|&(reason, count)| (std::cmp::Reverse(count), reason));
    found.into_iter().map(|(reason, count)| (reason, f64::from(count) / f64::from(keys.max(1)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_no_element_and_reasons_are_told_at_their_worst() {
        let limits = Encodings { set_integers_max: 128, ..Encodings::default() };
        let set = |elements| {
            let shape = larder_core::survey::Shape { name: larder_core::survey::Part::Integer(7), value: None };
            (Vec::new(), Measured { bytes: elements * 70, elements, shapes: vec![shape], ..Measured::default() })
        };
        let name = larder_structures::Name::new("seen").unwrap();
        let owner = Owner::Structure { name, is_left_over: false };
        let mut group = Group::new(owner, DataType::Set, "hashtable", 3);
        group.kind = Some(Kind::ShardedSet);
        let group = group.measured(vec![set(201), set(301), set(101)], Some(&limits));
        assert_eq!(group.elements.unwrap().value, 600.0);
        let setting = "set-max-intset-entries";
        let over = Reason::TooMany { setting, limit: 128, largest: 301 };
        assert_eq!(group.reasons, [(over, 2.0 / 3.0), (Reason::Before, 1.0 / 3.0)]);
        assert_eq!(group.element_bytes(), Some(603.0 * 70.0 / 600.0));
    }
}
