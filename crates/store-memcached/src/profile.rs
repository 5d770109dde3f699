//! The profile of a fleet: of each limit and guarantee, the weakest that any server has.
//!
//! Of a server that was down since the store was opened nothing is known. What it cannot do, or hold, it refuses by name once it is
//! there, so that abilities and limits are those of the others; what it takes with it when it crashes, or evicts, it would not tell,
//! so that it counts as one that promises neither.

use std::iter::repeat_n;
use std::time::{Duration, Instant};

use larder_core::native::Families;
use larder_core::{Durability, Eviction, Key, Profile, Ranges, TtlSupport};
use larder_proto::exptime::ttl_max;
use larder_proto::{Abilities, Dialect};

use crate::config::Config;
use crate::probe::ServerInfo;

/// How many ops one batch may have, where the queue of a connection takes as many.
pub const BATCH_OPS_MAX: usize = 16_384;

/// A profile is put together anew after so long: where the servers' times end one day, the longest life falls.
pub(crate) const FRESH: Duration = Duration::from_secs(5);
/// By how much less than the longest life is promised, so that it can still be asked for by who has read the profile some time ago.
const TTL_MARGIN_S: u64 = 30;

/// How many ops one batch may have: not more than may wait for a connection.
pub(crate) fn batch_ops_max(config: &Config) -> usize {
    BATCH_OPS_MAX.min(config.queue_ops_max).max(1)
}

/// The profile, by what is known of some of the servers, or of all.
pub(crate) fn aggregate(infos: &[ServerInfo], config: &Config) -> Profile {
    let nodes = config.servers.len();
    let all = |holds: fn(&Abilities) -> bool| infos.iter().all(|info| holds(&info.abilities));
    let now = Instant::now();
    let meta = all(|server| server.dialect.is_meta());
    let ttl = all(|server| server.ttl);
    let unseen = nodes.saturating_sub(infos.len());
    Profile {
        store: describe(infos, nodes),
        key_bytes_max: Key::BYTES_MAX,
        keys_binary: meta,
        item_bytes_max: infos
            .iter()
            .map(|info| info.abilities.item_bytes_max)
            .min()
            .unwrap_or(Abilities::ITEM_BYTES_DEFAULT)
            .min(config.queue_bytes_max),
        item_overhead_bytes: Abilities::ITEM_OVERHEAD_BYTES,
        batch_ops_max: batch_ops_max(config),
        nodes,
        scattered: nodes > 1,
        cas: all(|server| server.cas),
        // The classic dialect ends the item's life by a `cas`.
        delete_cas: all(|server| server.cas && (server.dialect.is_meta() || server.ttl)),
        ttl: if ttl { TtlSupport::Seconds } else { TtlSupport::None },
        ttl_max: infos.iter().map(|info| ttl_max(info.now_s(now) + TTL_MARGIN_S)).min().unwrap_or_default(),
        remaining_ttl: meta && ttl,
        arith_initial: meta,
        ranges: if all(|server| server.cas) { Ranges::ByCas } else { Ranges::No },
        natives: Families::empty(),
        watch: false,
        durability: weakest(infos.iter().map(|info| info.durability).chain(repeat_n(Durability::Unknown, unseen))),
        eviction: eviction(infos.iter().map(|info| info.evicts).chain(repeat_n(None, unseen))),
        encodings: None,
        warnings: Vec::new(),
    }
}

/// A fleet is as durable as the least of its servers.
fn weakest(each: impl Iterator<Item = Durability>) -> Durability {
    let rank = |durability: &Durability| match durability {
        Durability::Disk => 3,
        Durability::Recent => 2,
        Durability::Unknown => 1,
        Durability::Process | Durability::Server => 0,
    };
    each.min_by_key(rank).unwrap_or(Durability::Unknown)
}

/// A fleet evicts if one of its servers does, and does not if all say so.
fn eviction(each: impl Iterator<Item = Option<bool>>) -> Eviction {
    each.fold(Eviction::Never, |fleet, evicts| match (fleet, evicts) {
        (Eviction::WhenFull, _) | (_, Some(true)) => Eviction::WhenFull,
        (Eviction::Unknown, _) | (_, None) => Eviction::Unknown,
        (Eviction::Never, Some(false)) => Eviction::Never,
    })
}

/// `memcached 1.6.18 (meta13)`, or of the oldest server of several: `memcached 1.6.18 (meta13), 3 servers`.
fn describe(infos: &[ServerInfo], nodes: usize) -> String {
    let oldest = infos.iter().min_by_key(|info| (info.abilities.dialect, info.version));
    let dialect = oldest.map_or(Dialect::Classic, |info| info.abilities.dialect);
    let version = oldest.and_then(|info| info.version).map_or(String::new(), |version| format!(" {version}"));
    let servers = if nodes > 1 { format!(", {nodes} servers") } else { String::new() };
    format!("memcached{version} ({dialect}){servers}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Server;

    #[test]
    fn a_fleet_promises_what_the_weakest_of_its_servers_does() {
        use Durability::{Disk, Recent, Server, Unknown};
        for (each, fleet) in [
            (&[Disk, Disk][..], Disk),
            (&[Disk, Recent], Recent),
            (&[Disk, Unknown], Unknown),
            (&[Recent, Unknown], Unknown),
            (&[Unknown, Server, Disk], Server),
            (&[], Unknown),
        ] {
            assert_eq!(weakest(each.iter().copied()), fleet, "{each:?}");
        }
        for (each, fleet) in [
            (&[Some(false), Some(false)][..], Eviction::Never),
            (&[Some(false), None], Eviction::Unknown),
            (&[None, Some(false)], Eviction::Unknown),
            (&[None, Some(true)], Eviction::WhenFull),
            (&[Some(true), None, Some(false)], Eviction::WhenFull),
        ] {
            assert_eq!(eviction(each.iter().copied()), fleet, "{each:?}");
        }
    }

    #[test]
    fn of_servers_that_are_down_no_guarantee_is_given() {
        let config = Config::new(["a", "b"].map(|host| Server::tcp(host, Config::PORT)).to_vec());
        let nobody = aggregate(&[], &config);
        assert_eq!((nobody.durability, nobody.eviction), (Durability::Unknown, Eviction::Unknown));
    }

    #[test]
    fn keys_are_scattered_over_several_servers_only() {
        let of = |hosts: &[&str]| {
            aggregate(&[], &Config::new(hosts.iter().map(|host| Server::tcp(host, Config::PORT)).collect()))
        };
        assert_eq!((of(&["a"]).scattered, of(&["a", "b"]).scattered), (false, true));
    }
}
