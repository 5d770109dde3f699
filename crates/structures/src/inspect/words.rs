//! What a manifest's parameters are, and what a kind promises on a store, in words.

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Durability, Profile};

use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::{counter, lock, log, lookup, queue, records, sharded, table, unique, visitors};

/// The parameters of a structure. `stored` is its manifest as it stands in the store.
pub(super) fn params(name: &Name, manifest: &Manifest, stored: &Bytes) -> Vec<(&'static str, String)> {
    match manifest.kind {
        Kind::Lock => lock::describe(name, stored),
        Kind::Counter => vec![("slots", manifest.shards.to_string()), ("copies", manifest.copies.to_string())],
        Kind::FastCounter => {
            let kept = if counter::is_native(manifest) { "a native bit field" } else { "decimal digits" };
            vec![("range", "±2^61".to_owned()), ("kept in", kept.to_owned())]
        }
        Kind::Set => vec![("shards", manifest.shards.to_string()), ("members are spread by", "XXH3-64".to_owned())],
        Kind::Cache => vec![("keys are hashed by", "XXH3-128".to_owned())],
        Kind::Array => vec![("shards", manifest.shards.to_string()), ("elements are spread by", "XXH3-64".to_owned())],
        Kind::Visitors => visitors::describe(&manifest.params).unwrap_or_else(|| raw(manifest)),
        Kind::UniqueVisitors => unique::describe(&manifest.params).unwrap_or_else(|| raw(manifest)),
        Kind::EventLog => log::describe(&manifest.params).unwrap_or_else(|| raw(manifest)),
        Kind::Records => records::describe(manifest).unwrap_or_else(|| raw(manifest)),
        Kind::PackedTable => lookup::describe(),
        Kind::ShardedHash | Kind::ShardedSet | Kind::ShardedSortedSet => {
            sharded::describe(manifest).unwrap_or_else(|| raw(manifest))
        }
        Kind::Table => table::describe(manifest).unwrap_or_else(|| raw(manifest)),
        Kind::Queue | Kind::Stack => queue::describe(&manifest.params).unwrap_or_else(|| raw(manifest)),
    }
}

/// As they are stored.
fn raw(manifest: &Manifest) -> Vec<(&'static str, String)> {
    vec![("parameters", Shown(&manifest.params).to_string())]
}

/// What a structure promises on a store, in a sentence. `docs/guarantees.md` says it failure by failure.
pub(super) fn guarantee(manifest: &Manifest, profile: &Profile) -> String {
    let promise = match manifest.kind {
        Kind::Lock => "one holder at a time by the leases, with fencing tokens that grow while its record survives",
        Kind::Counter => "each add counts exactly once",
        Kind::FastCounter => "each acknowledged add counts once; one whose reply is lost is reported as unknown",
        Kind::Set => "the changes of each handle in their order, each counting once",
        Kind::Visitors => "each acknowledged hit counts once in the window of its time",
        Kind::UniqueVisitors => "each acknowledged visitor counts once in its period",
        Kind::EventLog => {
            "each acknowledged event stands once in the chunk of its time; a chunk that is lost is told as a gap"
        }
        Kind::Array => "the changes of each handle in their order, each counting once and seen whole",
        Kind::Table => "the list of keys and the entries agree, or are brought to agree by whoever reads them",
        Kind::Queue | Kind::Stack => "each acknowledged item is handed out at least once until it is acknowledged",
        Kind::Records => "each acknowledged set stands, its neighbours with it, and the highest id is never behind",
        Kind::PackedTable => "each lookup reads one whole version, and a lost block is told from a key without a row",
        Kind::ShardedSortedSet => {
            "each acknowledged change stands, and is seen at once in the highest and the lowest, also while it is resharded"
        }
        Kind::ShardedHash | Kind::ShardedSet => "each acknowledged change stands, also while it is resharded",
        Kind::Cache => {
            "one rebuild of a key at a time, however long it takes, while its lease can be renewed; values may go at any time"
        }
    };
    format!("{promise}; {}", loss(manifest, profile))
}

/// What ends it, and what is said then.
fn loss(manifest: &Manifest, profile: &Profile) -> String {
    let kind = manifest.kind;
    let end = match (profile.durability, manifest.copies) {
        (Durability::Process, _) => "the data end with this process".to_owned(),
        (Durability::Server, 0 | 1) => "a restart of its server takes the data".to_owned(),
        (Durability::Server, 2) => "one of its 2 servers may be lost: reads go on, adds wait for it".to_owned(),
        (Durability::Server, copies) => {
            format!("of its {copies} servers {} may be lost at a time, and reads and adds go on", (copies - 1) / 2)
        }
        (Durability::Recent, _) => "a crash of the store takes the latest writes, acknowledged or not".to_owned(),
        (Durability::Disk, _) => "what was acknowledged survives a crash of the store".to_owned(),
        (Durability::Unknown, _) => "the store does not say what a crash takes".to_owned(),
    };
    let evicts = if profile.may_evict() { ", and the store may evict them when it is full" } else { "" };
    let said = match kind {
        Kind::Lock => "its holder learns of a loss at its next renewal, and may overlap with the next one until then",
        Kind::Cache => "a loss is a miss, and a rebuild follows",
        _ if profile.durability == Durability::Disk && !profile.may_evict() => "should data be lost, that is an error",
        _ => "a loss is an error, never a smaller or an empty value",
    };
    format!("{end}{evicts}; {said}")
}

#[cfg(test)]
mod tests {
    use larder_core::Eviction;

    use super::*;

    #[test]
    fn a_guarantee_says_what_ends_it_on_this_store() {
        let server =
            Profile { durability: Durability::Server, eviction: Eviction::WhenFull, ..Profile::unlimited("memcached") };
        let disk = Profile { durability: Durability::Disk, ..Profile::unlimited("durable") };
        let manifest = |kind, copies| Manifest { copies, ..Manifest::new(kind, 1, 4, Bytes::new()) };
        let set = guarantee(&manifest(Kind::Set, 1), &server);
        assert!(
            set.contains("restart of its server") && set.contains("evict") && set.contains("never a smaller"),
            "{set}"
        );
        let set = guarantee(&manifest(Kind::Set, 1), &disk);
        assert!(set.contains("survives a crash") && !set.contains("evict"), "{set}");
        let two = guarantee(&manifest(Kind::Counter, 2), &server);
        assert!(two.contains("adds wait"), "{two}");
        let three = guarantee(&manifest(Kind::Counter, 3), &server);
        assert!(three.contains("of its 3 servers 1 may be lost"), "{three}");
        let lock = guarantee(&manifest(Kind::Lock, 1), &server);
        assert!(lock.contains("overlap"), "{lock}");
    }

    #[test]
    fn only_a_store_that_keeps_what_it_took_promises_that_nothing_should_be_lost() {
        let set = Manifest::new(Kind::Set, 1, 4, Bytes::new());
        let keeps = Profile { durability: Durability::Disk, ..Profile::unlimited("durable") };
        let said = guarantee(&set, &keeps);
        assert!(said.contains("should data be lost, that is an error"), "{said}");
        let evicts = Profile { eviction: Eviction::WhenFull, ..keeps };
        let said = guarantee(&set, &evicts);
        assert!(said.contains("a loss is an error, never a smaller or an empty value"), "{said}");
    }

    /// Those of a later release: an operator sees what stands there, and no name that is made up.
    #[test]
    fn parameters_that_this_release_cannot_read_are_shown_as_they_are() {
        let name = Name::new("n").unwrap();
        for kind in [Kind::Visitors, Kind::UniqueVisitors, Kind::EventLog, Kind::Records, Kind::ShardedSet] {
            let manifest = Manifest::new(kind, 1, 1, Bytes::from_static(b"new\xff"));
            let said = params(&name, &manifest, &manifest.encode());
            assert_eq!(said, [("parameters", "\"new\\xff\"".to_owned())], "{kind:?}");
        }
    }

    /// What is in a cache may go at any time, wherever it is.
    #[test]
    fn what_a_cache_loses_is_a_miss_on_every_store() {
        let cache = Manifest::new(Kind::Cache, 1, 0, Bytes::new());
        for durability in [Durability::Process, Durability::Server, Durability::Disk] {
            let said = guarantee(&cache, &Profile { durability, ..Profile::unlimited("any") });
            assert!(said.contains("a loss is a miss") && !said.contains("is an error"), "{said}");
        }
    }
}
