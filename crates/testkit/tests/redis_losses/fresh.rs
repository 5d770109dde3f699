//! What was made after a replica had fallen behind, and is lost in part as it takes over: it is told, of that alone, and what is lost is usable again once it
//! was cleared away.

use std::time::Duration;

use larder::{Ctx, ErrorKind, IdKind, Name, Precision, ShardedHash, StoreRef, UniqueVisitors, drop_structure};

use crate::handles::said;
use crate::{cluster, fall_behind, take_over};

/// Of each kind, so that the primary that fails over holds the heads, the maps and the manifests of some, and of others shards alone.
const EACH: usize = 6;
/// Visitors of a day, entries of a hash: enough for shards on every primary.
const MANY: u64 = 3_000;
const LOSSES: [ErrorKind; 2] = [ErrorKind::Lost, ErrorKind::RolledBack];

fn ids() -> impl Iterator<Item = u64> {
    1..=MANY
}

fn entries() -> impl Iterator<Item = (String, String)> {
    (0..200).map(|at| (format!("field{at}"), format!("value{at}")))
}

async fn sites(store: &StoreRef) -> Vec<UniqueVisitors> {
    let mut sites = Vec::new();
    for at in 0..EACH {
        let exact = UniqueVisitors::options().ids(IdKind::Integer).precision(Precision::Exact).expected(MANY);
        let site = exact.timeout(Duration::from_secs(20)).open_or_create(store, format!("site{at}")).await.unwrap();
        sites.push(site);
    }
    sites
}

async fn hashes(store: &StoreRef, name: &str) -> Vec<ShardedHash> {
    let mut hashes = Vec::new();
    for at in 0..EACH {
        let hash = ShardedHash::options().shards(16).open_or_create(store, format!("{name}{at}")).await.unwrap();
        hash.set(entries()).await.unwrap();
        hashes.push(hash);
    }
    hashes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_exact_day_that_a_failover_takes_is_told_and_usable_again_once_it_is_forgotten() {
    let (mut cluster, url) = cluster();
    let store = larder::open(&url).await.unwrap();
    let (before, today) = {
        let handles = sites(&store).await;
        let today = handles[0].current().unwrap();
        for site in &handles {
            site.add_in(today - 1, ids()).await.unwrap();
        }
        (handles, today)
    };
    tokio::task::block_in_place(|| fall_behind(&mut cluster));
    for site in &before {
        site.add_in(today, ids()).await.unwrap();
    }
    tokio::task::block_in_place(|| take_over(&mut cluster, 0..1));
    for (at, site) in before.iter().enumerate() {
        let error = said(|| site.count_in(today)).await.expect_err("a third of its shards is gone");
        assert!(LOSSES.contains(&error.kind()), "site{at}: {error}");
        if let Err(error) = said(|| site.add_in(today, [MANY + 1])).await {
            assert!(LOSSES.contains(&error.kind()), "site{at}: {error}");
        }
    }
    // One whose list went back says so from then on, to whoever had seen it. Who comes now goes by what there is.
    for (at, site) in sites(&store).await.iter().enumerate() {
        assert_eq!(said(|| site.count_in(today - 1)).await.unwrap().stored, MANY, "site{at}: the day before is whole");
        match said(|| site.count_in(today)).await {
            Ok(count) => assert_eq!(count.stored, 0, "site{at}: a part of the day passes for all of it"),
            Err(error) => assert!(LOSSES.contains(&error.kind()), "site{at}: {error}"),
        }
        said(|| site.forget(today)).await.unwrap();
        assert_eq!(said(|| site.count_in(today)).await.unwrap().stored, 0, "site{at}");
        said(|| site.add_in(today, ids())).await.unwrap();
        assert_eq!(said(|| site.count_in(today)).await.unwrap().stored, MANY, "site{at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_sharded_hash_whose_shards_a_failover_takes_is_told_and_usable_again_once_it_is_dropped() {
    let (mut cluster, url) = cluster();
    let store = larder::open(&url).await.unwrap();
    let kept = hashes(&store, "kept").await;
    tokio::task::block_in_place(|| fall_behind(&mut cluster));
    let fresh = hashes(&store, "fresh").await;
    tokio::task::block_in_place(|| take_over(&mut cluster, 0..1));
    for (at, hash) in fresh.iter().enumerate() {
        let error = said(|| hash.entries()).await.expect_err("a third of its shards is gone");
        assert!(LOSSES.contains(&error.kind()), "fresh{at}: {error}");
        // A write either goes to a shard that is there, or says so: it makes none of those that are gone again.
        for (field, value) in entries() {
            if let Err(error) = said(|| hash.set([(&field, &value)])).await {
                assert!(LOSSES.contains(&error.kind()), "fresh{at}: {error}");
            }
        }
        assert!(LOSSES.contains(&said(|| hash.entries()).await.unwrap_err().kind()), "fresh{at}");
        assert_eq!(said(|| kept[at].entries()).await.unwrap().len(), 200, "kept{at} is whole");
        let name = Name::new(format!("fresh{at}")).unwrap();
        said(|| drop_structure(&store, Ctx::within(Duration::from_secs(20)), &name)).await.unwrap();
    }
    for (at, hash) in hashes(&store, "fresh").await.iter().enumerate() {
        assert_eq!(said(|| hash.entries()).await.unwrap().len(), 200, "fresh{at}");
    }
}
