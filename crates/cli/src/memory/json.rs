//! Reports as JSON.

use larder::footprint::{Act, Advice, Estimate, Footprint, Group, Owner, Reason, Report, Setting, settings};
use larder::survey::Vitals;
use serde_json::{Value, json};

use crate::output::bytes;

/// All of a report.
pub(super) fn report(report: &Report) -> Value {
    json!({
        "nodes": report.nodes.iter().map(node).collect::<Vec<_>>(),
        "silent": report.silent.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "keys": report.keys,
        "bytes": estimate(&report.bytes),
        "resident_ratio": report.resident_ratio,
        "samples": report.samples,
        "seconds": report.took.as_secs_f64(),
        "groups": report.groups.iter().map(group).collect::<Vec<_>>(),
        "structures": report.structures.iter().map(structure).collect::<Vec<_>>(),
        "advice": report.advice.iter().map(advice).collect::<Vec<_>>(),
    })
}

/// What a report calls for.
pub(super) fn advise(report: &Report) -> Value {
    json!({
        "settings": settings(&report.advice).iter().map(setting).collect::<Vec<_>>(),
        "advice": report.advice.iter().map(advice).collect::<Vec<_>>(),
        "bytes": estimate(&report.bytes),
        "silent": report.silent.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn node(vitals: &Vitals) -> Value {
    json!({
        "node": vitals.node,
        "software": vitals.software,
        "used_bytes": vitals.used_bytes,
        "data_bytes": vitals.data_bytes,
        "resident_bytes": vitals.resident_bytes,
        "disk_bytes": vitals.disk_bytes,
        "limit_bytes": vitals.limit_bytes,
        "keys": vitals.items,
        "settings": vitals.settings,
    })
}

/// A sum and its error, which is null where it is not known.
fn estimate(estimate: &Estimate) -> Value {
    let error = Some(estimate.error).filter(|error| error.is_finite());
    json!({"value": estimate.value, "error": error, "sampled": estimate.sampled, "of": estimate.of})
}

fn group(group: &Group) -> Value {
    let (owner, is_left_over) = owner(&group.owner);
    let reason = |(reason, share): &(Reason, f64)| json!({"why": reason.to_string(), "setting": reason.setting(), "share": share});
    json!({
        "owner": owner,
        "structure": matches!(group.owner, Owner::Structure { .. } | Owner::Unclaimed(_) | Owner::OtherStructures),
        "left_over": is_left_over,
        "manifest_gone": matches!(group.owner, Owner::Unclaimed(_)),
        "kind": group.kind.map(larder::Kind::as_str),
        "type": group.data_type.as_str(),
        "encoding": group.encoding,
        "keys": group.keys,
        "bytes": estimate(&group.bytes),
        "resident_bytes": group.resident_bytes,
        "elements": group.elements.as_ref().map(estimate),
        "element_bytes": group.element_bytes(),
        "element_resident_bytes": group.element_resident_bytes(),
        "expiring": group.expiring,
        "key_bytes": group.key_bytes,
        "value_bytes": group.value_bytes,
        "unpacked": group.is_unpacked(),
        "reasons": group.reasons.iter().map(reason).collect::<Vec<_>>(),
    })
}

fn owner(owner: &Owner) -> (Value, bool) {
    match owner {
        Owner::Structure { name, is_left_over } => (bytes(name.as_bytes()), *is_left_over),
        Owner::Unclaimed(name) => (bytes(name.as_bytes()), false),
        other => (Value::from(other.to_string()), false),
    }
}

fn structure(structure: &Footprint) -> Value {
    let each = |bytes: f64| structure.elements.filter(|&elements| elements > 0.0).map(|elements| bytes / elements);
    json!({
        "name": bytes(structure.name.as_bytes()),
        "kind": structure.kind.map(larder::Kind::as_str),
        "keys": structure.keys,
        "bytes": structure.bytes,
        "resident_bytes": structure.resident_bytes,
        "elements": structure.elements,
        "element_bytes": each(structure.bytes),
        "element_resident_bytes": structure.resident_bytes.and_then(each),
    })
}

fn advice(advice: &Advice) -> Value {
    let (act, settings, shards) = match &advice.act {
        Act::Settings(settings) => ("settings", &settings[..], None),
        Act::Options(options) => ("options", &options[..], None),
        Act::Rewrite => ("rewrite", &[][..], None),
        Act::Shard { elements, shards, of_a_name, .. } => {
            ("shard", &[][..], Some((Some(*elements), *shards, *of_a_name)))
        }
        Act::Reshard { shards, .. } => ("reshard", &[][..], Some((None, *shards, *shards))),
        Act::ReshardDense { per_shard, shards, .. } => {
            ("reshard", &[][..], Some((Some(u64::from(*per_shard)), *shards, *shards)))
        }
        Act::Look { .. } => ("look", &[][..], None),
        Act::Remove { .. } => ("remove", &[][..], None),
        _ => ("other", &[][..], None),
    };
    json!({
        "owner": advice.owner.as_ref().map(|about| owner(about).0),
        "kept": advice.kept,
        "act": act,
        "what": advice.act.to_string(),
        "settings": settings.iter().map(setting).collect::<Vec<_>>(),
        "shards": shards.map(|(_, shards, _)| shards),
        "shards_of_a_name": shards.map(|(_, _, of_a_name)| of_a_name),
        "elements_a_shard": shards.and_then(|(elements, _, _)| elements),
        "why": advice.why,
        "note": advice.note,
        "saves_bytes": advice.saves_bytes,
    })
}

fn setting(setting: &Setting) -> Value {
    json!({"name": setting.name, "value": setting.value, "now": setting.now})
}
