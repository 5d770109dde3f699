//! The profile of a fleet: of each limit and guarantee, the weakest that any server has.

use std::time::Instant;

use larder_core::native::Families;
use larder_core::{Durability, Eviction, Key, Profile, Ranges, TtlSupport};
use larder_proto::exptime::ttl_max;
use larder_proto::{Abilities, Dialect};

use crate::probe::ServerInfo;

/// How many ops one batch may have.
pub const BATCH_OPS_MAX: usize = 16_384;

pub(crate) fn aggregate(infos: &[ServerInfo], nodes: usize) -> Profile {
    let all = |holds: fn(&Abilities) -> bool| infos.iter().all(|info| holds(&info.abilities));
    let now = Instant::now();
    let meta = all(|server| server.dialect.is_meta());
    let ttl = all(|server| server.ttl);
    let evictions: Vec<Option<bool>> = infos.iter().map(|info| info.evicts).collect();
    Profile {
        store: describe(infos, nodes),
        key_bytes_max: Key::BYTES_MAX,
        keys_binary: meta,
        item_bytes_max: infos
            .iter()
            .map(|info| info.abilities.item_bytes_max)
            .min()
            .unwrap_or(Abilities::ITEM_BYTES_DEFAULT),
        item_overhead_bytes: Abilities::ITEM_OVERHEAD_BYTES,
        batch_ops_max: BATCH_OPS_MAX,
        nodes,
        cas: all(|server| server.cas),
        // The classic dialect ends the item's life by a `cas`.
        delete_cas: all(|server| server.cas && (server.dialect.is_meta() || server.ttl)),
        ttl: if ttl { TtlSupport::Seconds } else { TtlSupport::None },
        ttl_max: infos.iter().map(|info| ttl_max(info.now_s(now))).min().unwrap_or_default(),
        remaining_ttl: meta && ttl,
        arith_initial: meta,
        ranges: if all(|server| server.cas) { Ranges::ByCas } else { Ranges::No },
        natives: Families::empty(),
        watch: false,
        durability: weakest(infos.iter().map(|info| info.durability)),
        eviction: if evictions.contains(&Some(true)) {
            Eviction::WhenFull
        } else if evictions.iter().all(|evicts| *evicts == Some(false)) {
            Eviction::Never
        } else {
            Eviction::Unknown
        },
        encodings: None,
        warnings: Vec::new(),
    }
}

/// A fleet is as durable as the least of its servers.
fn weakest(each: impl Iterator<Item = Durability>) -> Durability {
    let rank = |durability: &Durability| match durability {
        Durability::Disk => 2,
        Durability::Recent => 1,
        Durability::Process | Durability::Server | Durability::Unknown => 0,
    };
    each.min_by_key(rank).unwrap_or(Durability::Server)
}

/// `memcached 1.6.18 (meta13)`, or of the oldest server of several: `memcached 1.6.18 (meta13), 3 servers`.
fn describe(infos: &[ServerInfo], nodes: usize) -> String {
    let oldest = infos.iter().min_by_key(|info| (info.abilities.dialect, info.version));
    let dialect = oldest.map_or(Dialect::Classic, |info| info.abilities.dialect);
    let version = oldest.and_then(|info| info.version).map_or(String::new(), |version| format!(" {version}"));
    let servers = if nodes > 1 { format!(", {nodes} servers") } else { String::new() };
    format!("memcached{version} ({dialect}){servers}")
}
