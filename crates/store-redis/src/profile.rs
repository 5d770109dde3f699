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

/// The largest item: what the configuration allows beside the longest key, and no more than the server takes.
pub(crate) fn item_bytes_max(info: &ServerInfo, value_bytes_max: usize) -> usize {
    let wanted = value_bytes_max + HEADER_BYTES_MAX + Key::BYTES_MAX;
    let taken = info.bulk_bytes_max.and_then(|bytes| usize::try_from(bytes).ok());
    taken.map_or(wanted, |taken| wanted.min(taken))
}

/// `redis 7.0.15`, `valkey 8.1.3, 1 replica`.
fn describe(info: &ServerInfo) -> String {
    let flavour = match info.flavour {
        Flavour::Redis => "redis",
        Flavour::Valkey => "valkey",
    };
    let version = if info.version.is_empty() { String::new() } else { format!(" {}", info.version) };
    let replicas = match info.replicas {
        0 => String::new(),
        1 => ", 1 replica".to_owned(),
        replicas => format!(", {replicas} replicas"),
    };
    format!("{flavour}{version}{replicas}")
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
    if let Some(untold) = &info.untold {
        warnings.push(format!(
            "the server does not tell all of its settings ({untold}); what it may evict or lose is not known"
        ));
    }
    warnings
}
