//! Sharded collections whose shards grew over what the server packs.

use larder_core::Encodings;
use larder_core::survey::{Shape, Vitals};
use larder_structures::Kind;
use larder_structures::sharded::SHARDS_MAX;

use crate::advice::{Act, Advice, SHARD_KEY_BYTES, Spread, about, bucket_bytes, mean, shapes, worst};
use crate::group::Group;
use crate::packed::{Allocator, packed_by_chance};
use crate::pattern::Owner;

/// More shards for a structure of which some have more elements than the server packs. By a hash they are spread over all of them anew, those that are packed among them.
pub(crate) fn reshard(
    group: &Group,
    groups: &[Group],
    known: &Encodings,
    nodes: &[Vitals],
    on: Allocator,
) -> Option<Advice> {
    let (Owner::Structure { name, is_left_over: false }, Some(kind)) = (&group.owner, group.kind) else { return None };
    let spread = Spread::of(group, known).filter(|_| matches!(kind, Kind::ShardedHash | Kind::ShardedSet))?;
    // One that keeps its members cannot do with hashes of them, and no other shards pack texts.
    if spread.is_hashed || !group.measured.iter().any(|(_, measured)| spread.is_large(measured)) {
        return None;
    }
    let all: Vec<&Group> =
        groups.iter().filter(|other| other.owner == group.owner && other.data_type == group.data_type).collect();
    if all.iter().any(|group| group.measured.is_empty()) {
        return None;
    }
    let sum = |of: &dyn Fn(&Group) -> f64| all.iter().map(|group| group.keys as f64 * of(group)).sum::<f64>();
    // One of each shard is its mark.
    let elements = sum(&|group| mean(group, |measured| measured.elements.saturating_sub(1) as f64));
    let bytes = sum(&|group| mean(group, |measured| measured.bytes as f64));
    let (now, shards) = (sum(&|_| 1.0), (elements / spread.elements as f64).ceil());
    if shards <= now {
        return None;
    }
    let drawn: Vec<Shape> = all.iter().flat_map(|group| shapes(group)).collect();
    let a_shard = packed_by_chance(group.data_type, &drawn, elements / shards + 1.0, SHARD_KEY_BYTES, on);
    let saves_bytes = bytes - shards * a_shard - (shards - now) * bucket_bytes(nodes);
    let wanted = shards as u64;
    let (act, note) = if wanted > SHARDS_MAX.into() {
        // More than one name can have are several names.
        (spread.act(wanted, wanted), "programs must use the shards")
    } else {
        (Act::Reshard { name: name.clone(), shards: wanted }, "others read and write meanwhile")
    };
    Some(about(group, act, worst(group), note, saves_bytes))
}
