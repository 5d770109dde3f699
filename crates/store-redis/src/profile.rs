//! The profile of a server.

use larder_core::native::Families;
use larder_core::{Durability, Encodings, Eviction, Key, Profile, Ranges, TtlSupport};

use crate::codec::TTL_MAX;
use crate::handshake::{Flavour, Persistence, ServerInfo};
use crate::layout::HEADER_BYTES_MAX;

/// How many ops one batch may have.
pub const BATCH_OPS_MAX: usize = 16_384;

/// Structures that are kept in the server's own hashes and sets make their shards by its limits of packed encodings, down to this many entries. Below, they
/// take some ten times as much memory.
const PACKED_ENTRIES_MIN: u64 = 16;
/// What short fields and values take.
const PACKED_BYTES_MIN: u64 = 16;

/// What a server promises; `value_bytes_max` is what the configuration allows.
pub(crate) fn profile(info: &ServerInfo, value_bytes_max: usize) -> Profile {
    Profile {
        store: describe(info),
        key_bytes_max: Key::BYTES_MAX,
        keys_binary: true,
        item_bytes_max: item_bytes_max(info, value_bytes_max),
        item_overhead_bytes: HEADER_BYTES_MAX,
        batch_ops_max: BATCH_OPS_MAX,
        nodes: 1,
        scattered: false,
        cas: true,
        delete_cas: true,
        ttl: TtlSupport::Millis,
        ttl_max: TTL_MAX,
        remaining_ttl: true,
        arith_initial: true,
        ranges: Ranges::Native,
        natives: Families::all(),
        watch: true,
        durability: match info.persistence {
            Persistence::Unknown => Durability::Unknown,
            Persistence::None => Durability::Server,
            Persistence::Snapshots | Persistence::AppendOnly => Durability::Recent,
            Persistence::AppendOnlyAlways if info.is_alone => Durability::Disk,
            // A failover loses what had not reached the replica, also to one that is not connected just now.
            Persistence::AppendOnlyAlways => Durability::Recent,
        },
        eviction: match info.policy.as_deref() {
            None => Eviction::Unknown,
            Some("noeviction") => Eviction::Never,
            Some(_) => Eviction::WhenFull,
        },
        encodings: info.encodings,
        warnings: warnings(info),
    }
}

/// What a cluster promises, by what its primaries told: of each thing the least. What those that told nothing lose and evict is not known; sizes go by those that told.
///
/// Never [`Durability::Disk`]: a cluster is made to fail over, and replicas come, and move from one primary to another, unseen by those who are connected.
pub(crate) fn cluster_profile(infos: &[&ServerInfo], primaries: usize, value_bytes_max: usize) -> Profile {
    let mut told = infos.iter().map(|info| profile(info, value_bytes_max));
    let mut all = told.next().unwrap_or_else(|| profile(&ServerInfo::default(), value_bytes_max));
    for one in told {
        all.item_bytes_max = all.item_bytes_max.min(one.item_bytes_max);
        all.durability = lesser(all.durability, one.durability);
        all.eviction = likelier(all.eviction, one.eviction);
        all.encodings = all.encodings.filter(|encodings| one.encodings.as_ref() == Some(encodings));
        all.warnings.extend(one.warnings);
    }
    all.durability = lesser(all.durability, Durability::Recent);
    all.scattered = primaries > 1;
    all.warnings.sort();
    all.warnings.dedup();
    let untold = primaries.saturating_sub(infos.len());
    if untold > 0 {
        all.durability = lesser(all.durability, Durability::Unknown);
        all.eviction = likelier(all.eviction, Eviction::Unknown);
        all.warnings.push(format!(
            "{untold} of {primaries} primaries told nothing, and what they may evict or lose is not known until they do; see whether they are up"
        ));
    }
    let replicas: u32 = infos.iter().filter_map(|info| info.replicas).sum();
    let bare = infos.iter().filter(|info| info.replicas == Some(0)).count();
    if bare > 0 {
        all.warnings.push(format!(
            "{bare} of {primaries} primaries had no replica when they were last connected to: where that is so still, nobody takes their place"
        ));
    }
    let one = infos.first().map_or_else(|| "redis".to_owned(), |info| version(info));
    all.store = format!("{one}, cluster of {primaries} primaries, {replicas} replicas");
    all
}

/// What a crash takes from either of two.
fn lesser(one: Durability, other: Durability) -> Durability {
    [Durability::Unknown, Durability::Process, Durability::Server, Durability::Recent]
        .into_iter()
        .find(|durability| *durability == one || *durability == other)
        .unwrap_or(one)
}

/// What either of two may evict.
fn likelier(one: Eviction, other: Eviction) -> Eviction {
    match (one, other) {
        (Eviction::WhenFull, _) | (_, Eviction::WhenFull) => Eviction::WhenFull,
        (Eviction::Unknown, _) | (_, Eviction::Unknown) => Eviction::Unknown,
        (Eviction::Never, Eviction::Never) => Eviction::Never,
    }
}

/// The largest item: what the configuration allows beside the longest key, and no more than the server takes.
pub(crate) fn item_bytes_max(info: &ServerInfo, value_bytes_max: usize) -> usize {
    let wanted = value_bytes_max + HEADER_BYTES_MAX + Key::BYTES_MAX;
    let taken = info.bulk_bytes_max.and_then(|bytes| usize::try_from(bytes).ok());
    taken.map_or(wanted, |taken| wanted.min(taken))
}

/// `redis 7.0.15`, `valkey 8.1.3, 1 replica`.
fn describe(info: &ServerInfo) -> String {
    let replicas = match info.replicas.unwrap_or_default() {
        0 => String::new(),
        1 => ", 1 replica".to_owned(),
        replicas => format!(", {replicas} replicas"),
    };
    format!("{}{replicas}", version(info))
}

fn version(info: &ServerInfo) -> String {
    let flavour = match info.flavour {
        Flavour::Redis => "redis",
        Flavour::Valkey => "valkey",
    };
    let version = if info.version.is_empty() { String::new() } else { format!(" {}", info.version) };
    format!("{flavour}{version}")
}

/// What is set up so that it endangers structures.
fn warnings(info: &ServerInfo) -> Vec<String> {
    let mut warnings = Vec::new();
    match info.policy.as_deref() {
        None | Some("noeviction") => {}
        Some(policy) => warnings.push(format!(
            "the server evicts when it is full (maxmemory-policy {policy}), structures too; set maxmemory-policy noeviction"
        )),
    }
    if info.is_unsynced_at_times {
        warnings.push(
            "the server syncs nothing while it writes a snapshot or its append-only file anew (no-appendfsync-on-rewrite is not no): what it acknowledges \
             then is not on disk, though appendfsync is always; set no-appendfsync-on-rewrite no"
                .to_owned(),
        );
    }
    if info.is_writable_as_replica {
        warnings.push(
            "the server takes writes as a replica too (replica-read-only no): once it is demoted, what it acknowledges is dropped when it syncs with its \
             primary, and nobody is told; set replica-read-only yes"
                .to_owned(),
        );
    }
    warnings.extend(info.encodings.iter().flat_map(unpacked));
    if let Some(replicas) = info.replicas.filter(|replicas| *replicas < info.wait_replicas) {
        warnings.push(format!(
            "writes wait for {} replicas, and {replicas} are connected, by what the server said when it was last connected to: until more are, every write is told as \
             unknown; connect replicas, or lower wait_replicas",
            info.wait_replicas
        ));
    }
    if let Some(untold) = &info.untold {
        warnings.push(format!(
            "the server does not tell all of its settings ({untold}); what it may evict or lose is not known"
        ));
    }
    warnings
}

/// Limits of packed encodings that structures cannot follow.
fn unpacked(limits: &Encodings) -> Vec<String> {
    let watched = [
        ("hash-max-listpack-entries", limits.hash_entries_max, PACKED_ENTRIES_MIN, 512, "sharded hashes take"),
        ("hash-max-listpack-value", limits.hash_value_bytes_max, PACKED_BYTES_MIN, 64, "sharded hashes take"),
        ("set-max-intset-entries", limits.set_integers_max, PACKED_ENTRIES_MIN, 512, "unique visitors take"),
    ];
    let low = watched.into_iter().filter(|(_, limit, least, ..)| limit < least);
    let warn = |(setting, limit, least, usual, who): (&str, u64, u64, u32, &str)| {
        format!(
            "the server's {setting} is {limit}, less than the {least} that structures can be made for: {who} some ten times as much \
             memory; set {setting} {usual}"
        )
    };
    low.map(warn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(persistence: Persistence, policy: &str, replicas: u32, bulk_bytes_max: u64) -> ServerInfo {
        ServerInfo {
            version: "7.0.15".to_owned(),
            policy: Some(policy.to_owned()),
            persistence,
            replicas: Some(replicas),
            is_alone: replicas == 0,
            bulk_bytes_max: Some(bulk_bytes_max),
            encodings: Some(Encodings {
                hash_entries_max: 128,
                hash_value_bytes_max: 64,
                set_integers_max: 512,
                ..Encodings::default()
            }),
            ..ServerInfo::default()
        }
    }

    #[test]
    fn a_cluster_promises_of_each_thing_the_least_that_a_primary_does() {
        let disk = primary(Persistence::AppendOnlyAlways, "noeviction", 1, 512 << 20);
        let alike = cluster_profile(&[&disk, &disk, &disk], 3, 4 << 20);
        assert_eq!(
            (alike.durability, alike.eviction),
            (Durability::Recent, Eviction::Never),
            "a failover loses the latest"
        );
        assert_eq!((alike.warnings.len(), alike.nodes), (0, 1));
        let alone = cluster_profile(&[&disk], 1, 4 << 20);
        assert!(!profile(&disk, 4 << 20).scattered && !alone.scattered && !alone.may_lose_one());
        // One of them may lose what a queue has there while its state stands on another.
        assert!(alike.scattered && alike.may_lose_one() && cluster_profile(&[], 3, 4 << 20).scattered);
        assert_eq!(alike.encodings, disk.encodings);
        assert_eq!(alike.store, "redis 7.0.15, cluster of 3 primaries, 3 replicas");
        let alone = primary(Persistence::AppendOnlyAlways, "noeviction", 0, 512 << 20);
        let one = |info| profile(info, 4 << 20).durability;
        assert_eq!((one(&disk), one(&alone)), (Durability::Recent, Durability::Disk), "so of one server");
        let profile = cluster_profile(&[&alone, &alone], 2, 4 << 20);
        assert_eq!(profile.durability, Durability::Recent, "replicas may come unseen");
        assert_eq!(profile.warnings.len(), 1);
        assert!(profile.warnings[0].starts_with("2 of 2 primaries had no replica when"), "{:?}", profile.warnings);

        let mut other = primary(Persistence::None, "allkeys-lru", 1, 1 << 20);
        other.encodings = Some(Encodings { hash_entries_max: 64, ..disk.encodings.unwrap() });
        let mixed = cluster_profile(&[&disk, &other], 2, 4 << 20);
        assert_eq!((mixed.durability, mixed.eviction), (Durability::Server, Eviction::WhenFull));
        assert_eq!((mixed.item_bytes_max, mixed.encodings), (1 << 20, None));
        assert!(mixed.warnings[0].contains("maxmemory-policy allkeys-lru"), "{:?}", mixed.warnings);
        let unknown = cluster_profile(&[&disk, &ServerInfo::default()], 2, 4 << 20);
        assert_eq!((unknown.durability, unknown.eviction), (Durability::Unknown, Eviction::Unknown));
        assert_eq!(unknown.warnings, [""; 0], "of replicas it told nothing either");
    }

    #[test]
    fn a_primary_that_told_nothing_may_lose_and_evict_anything() {
        let disk = primary(Persistence::AppendOnlyAlways, "noeviction", 1, 512 << 20);
        let one_is_down = cluster_profile(&[&disk, &disk], 3, 4 << 20);
        assert_eq!((one_is_down.durability, one_is_down.eviction), (Durability::Unknown, Eviction::Unknown));
        assert_eq!(one_is_down.warnings.len(), 1);
        assert!(one_is_down.warnings[0].starts_with("1 of 3 primaries told nothing"), "{:?}", one_is_down.warnings);
        assert_eq!(one_is_down.encodings, disk.encodings, "shards are made for those that told");
        let evicts = primary(Persistence::None, "allkeys-lru", 1, 512 << 20);
        let known = cluster_profile(&[&disk, &evicts], 3, 4 << 20);
        assert_eq!(
            (known.durability, known.eviction),
            (Durability::Unknown, Eviction::WhenFull),
            "as one of them says"
        );
    }

    #[test]
    fn limits_that_structures_cannot_follow_are_warned_of() {
        let mut info = primary(Persistence::None, "noeviction", 0, 512 << 20);
        assert_eq!(warnings(&info), [""; 0]);
        info.encodings = Some(Encodings { hash_entries_max: 15, hash_value_bytes_max: 15, ..Encodings::default() });
        let said = warnings(&info);
        for (said, part) in said.iter().zip([
            "hash-max-listpack-entries is 15, less than the 16 that structures can be made for: sharded hashes",
            "set hash-max-listpack-value 64",
            "set-max-intset-entries is 0, less than the 16 that structures can be made for: unique visitors",
        ]) {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert_eq!(said.len(), 3);
    }
}
