//! Collections of dense numbers: smaller ranges are packed, more shards are not.

use larder_core::Encodings;
use larder_core::native::Collection;
use larder_core::survey::{DataType, Measured, Part, Shape, Vitals};

use crate::advice::{Act, Advice, SHARD_KEY_BYTES, about, bucket_bytes, mean, worst};
use crate::group::Group;
use crate::packed::{Allocator, Limits, packed};
use crate::pattern::Owner;

/// Smaller shards for a structure whose shards have more dense numbers than the server packs.
pub(crate) fn reshard_dense(
    group: &Group,
    groups: &[Group],
    known: &Encodings,
    nodes: &[Vitals],
    on: Allocator,
) -> Option<Advice> {
    let limits = Limits::of(group.data_type, known).filter(|_| group.is_unpacked())?;
    let (dense, Owner::Structure { name, is_left_over: false }) = (group.dense?, &group.owner) else { return None };
    let (of, entries_max) = match group.data_type {
        DataType::Set => (Collection::Set, limits.integers?.1),
        _ => (Collection::Hash, limits.entries.1),
    };
    let is_large = |measured: &Measured| measured.elements > entries_max && !measured.shapes.is_empty();
    if !group.measured.iter().any(|(_, measured)| is_large(measured)) {
        return None;
    }
    let per_shard = dense.packed(of, entries_max)?;
    // Of one that there is now.
    let pieces = f64::from(dense.per_shard) / f64::from(per_shard);
    let a_key = |shapes: &[Shape], elements: f64| {
        (packed(group.data_type, shapes, elements, SHARD_KEY_BYTES, on) + bucket_bytes(nodes) as u64) as f64
    };
    let mark = Shape { name: Part::Integer(i32::MIN.into()), value: None };
    let here = group.keys as f64
        * mean(group, |measured| {
            let mut shapes = measured.shapes.clone();
            // All members of a set of integers are as wide as the mark, whether it was drawn or not.
            shapes.extend((of == Collection::Set).then_some(mark));
            let each = measured.elements.saturating_sub(1) as f64 / pieces + 1.0;
            if shapes.is_empty() { 0.0 } else { measured.bytes as f64 - pieces * a_key(&shapes, each) }
        });
    // The other shards are cut, too: each piece more is a key with a mark.
    let is_like = |other: &&Group| other.owner == group.owner && other.data_type == group.data_type;
    let others = groups.iter().filter(is_like).map(|other| other.keys).sum::<u64>().saturating_sub(group.keys) as f64;
    let saves_bytes = here - others * (pieces - 1.0) * a_key(&[mark], 1.0);
    let shards = (u64::from(dense.shards) * u64::from(dense.per_shard)).div_ceil(per_shard.into());
    let act = Act::ReshardDense { name: name.clone(), per_shard, shards };
    Some(about(group, act, worst(group), "others read and write meanwhile", saves_bytes))
}
