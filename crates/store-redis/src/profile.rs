//! The profile of a server.

use larder_core::native::Families;
use larder_core::{Durability, Eviction, Key, Profile, Ranges, TtlSupport};

use crate::codec::TTL_MAX;
use crate::handshake::{Flavour, Persistence, ServerInfo};
use crate::layout::HEADER_BYTES_MAX;

/// How many ops one batch may have.
pub const BATCH_OPS_MAX: usize = 16_384;

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
            Persistence::AppendOnlyAlways => Durability::Disk,
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

/// What a cluster promises, by what its primaries told: of each thing the least.
pub(crate) fn cluster_profile(infos: &[&ServerInfo], primaries: usize, value_bytes_max: usize) -> Profile {
    let mut told = infos.iter().map(|info| profile(info, value_bytes_max));
    let mut all = told.next().unwrap_or_else(|| profile(&ServerInfo::default(), value_bytes_max));
    for one in told {
        all.item_bytes_max = all.item_bytes_max.min(one.item_bytes_max);
        all.durability = lesser(all.durability, one.durability);
        all.eviction = match (all.eviction, one.eviction) {
            (Eviction::WhenFull, _) | (_, Eviction::WhenFull) => Eviction::WhenFull,
            (Eviction::Unknown, _) | (_, Eviction::Unknown) => Eviction::Unknown,
            (Eviction::Never, Eviction::Never) => Eviction::Never,
        };
        all.encodings = all.encodings.filter(|encodings| one.encodings.as_ref() == Some(encodings));
        all.warnings.extend(one.warnings);
    }
    all.warnings.sort();
    all.warnings.dedup();
    let replicas: u32 = infos.iter().map(|info| info.replicas).sum();
    if replicas > 0 && all.durability == Durability::Disk {
        // A failover loses what had not reached the replica.
        all.durability = Durability::Recent;
    }
    let bare = infos.iter().filter(|info| info.replicas == 0).count();
    if bare > 0 {
        all.warnings.push(format!("{bare} of {primaries} primaries had no replica: nobody takes their place"));
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

/// The largest item: what the configuration allows beside the longest key, and no more than the server takes.
pub(crate) fn item_bytes_max(info: &ServerInfo, value_bytes_max: usize) -> usize {
    let wanted = value_bytes_max + HEADER_BYTES_MAX + Key::BYTES_MAX;
    let taken = info.bulk_bytes_max.and_then(|bytes| usize::try_from(bytes).ok());
    taken.map_or(wanted, |taken| wanted.min(taken))
}

/// `redis 7.0.15`, `valkey 8.1.3, 1 replica`.
fn describe(info: &ServerInfo) -> String {
    let replicas = match info.replicas {
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
    if info.replicas < info.wait_replicas {
        warnings.push(format!(
            "writes wait for {} replicas, and {} are connected: every write will be told as unknown; connect replicas, or lower wait_replicas",
            info.wait_replicas, info.replicas
        ));
    }
    if let Some(untold) = &info.untold {
        warnings.push(format!(
            "the server does not tell all of its settings ({untold}); what it may evict or lose is not known"
        ));
    }
    warnings
}
