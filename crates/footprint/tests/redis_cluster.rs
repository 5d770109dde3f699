//! Reports on clusters.

mod support;

use std::sync::Arc;

use larder_core::survey::{DataType, Measured, Pace, Sample, Survey, Told};
use larder_core::{Ctx, StoreRef};
use larder_footprint::{Options, report};
use larder_store_redis::{ClusterConfig, RedisClusterStore};
use larder_structures::ShardedSet;
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisVersion, shared_cluster};
use support::{group, run, set};

#[tokio::test]
async fn every_key_of_every_primary_is_counted_once() {
    let cluster = shared_cluster(RedisVersion::Redis7);
    let config = ClusterConfig::from_url(&cluster.url()).unwrap();
    let store = Arc::new(RedisClusterStore::connect(config).await.unwrap());
    let plain: StoreRef = store.clone();
    // Others use the cluster, too: names of our own.
    let prefix = format!("footprint-{}-", std::process::id());
    let word = |key: usize| format!("{prefix}:{key}");
    run(&plain, (0..2_000).map(|key| set(&word(key), (0..3).map(|member| member.to_string())))).await;
    let seen = ShardedSet::open_or_create(&plain, "footprint-seen").await.unwrap();
    seen.add((0..3_000u32).map(|id| id.to_string())).await.unwrap();
    let options = Options { pace: Pace::UNBOUNDED, samples: 3_000, ..Options::default() };
    let report = report(&plain, &*store, &options, &mut |_| ()).await.unwrap();
    assert_eq!(report.nodes.len(), 3);
    let ours = group(&report, "footprint-*:*", "intset");
    assert_eq!((ours.keys, ours.elements.unwrap().value, ours.bytes.error), (2_000, 6_000.0, 0.0));
    assert_eq!(group(&report, "\"footprint-seen\"", "intset").elements.unwrap().value, 3_000.0);
    larder_structures::registry::drop_structure(
        &plain,
        larder_core::Ctx::default(),
        &larder_structures::Name::new("footprint-seen").unwrap(),
    )
    .await
    .unwrap();
    run(
        &plain,
        (0..2_000).map(|key| {
            larder_core::Op::native(larder_core::Key::new(word(key)).unwrap(), larder_core::native::Native::Remove)
        }),
    )
    .await;
}

/// A cluster whose nodes may wait for their turn on a busy machine, and a store on it.
async fn own(version: RedisVersion) -> (RedisCluster, Arc<RedisClusterStore>) {
    let cluster = RedisCluster::start_with(version, &RedisOptions::new().arg("cluster-node-timeout", "5000"));
    let config = ClusterConfig::from_url(&format!("{}?timeout_ms=10000&connect_timeout_ms=5000", cluster.url()));
    let store = RedisClusterStore::connect(config.unwrap()).await.unwrap();
    (cluster, Arc::new(store))
}

fn keys_of(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}:{at}")).collect()
}

/// How many keys of a prefix a walk tells.
async fn walked(store: &RedisClusterStore, prefix: &str) -> usize {
    let mut keys = 0;
    let mut tell = |told: Told<'_>| {
        keys += usize::from(matches!(told, Told::Key(seen) if seen.key.starts_with(prefix.as_bytes())));
    };
    store.walk(Ctx::default(), Pace::UNBOUNDED, &mut tell).await.unwrap();
    keys
}

async fn measured(store: &RedisClusterStore, keys: &[String]) -> Vec<Option<Measured>> {
    let sample = |key: &String| Sample { key: key.clone().into_bytes(), data_type: DataType::Set, elements_max: 3 };
    let samples: Vec<Sample> = keys.iter().map(sample).collect();
    store.measure(Ctx::default(), Pace::UNBOUNDED, &samples).await.unwrap()
}

/// Makes a report, and tells how many keys a walk tells that begin with `{moves}` and `stays`; of the latter the report has as many.
async fn reported(store: &Arc<RedisClusterStore>) -> (usize, usize) {
    let plain: StoreRef = store.clone();
    let options = Options { pace: Pace::UNBOUNDED, ..Options::default() };
    let report = report(&plain, &**store, &options, &mut |_| ()).await.unwrap();
    let stays = walked(store, "stays:").await;
    assert_eq!(group(&report, "stays:*", "intset").keys, stays as u64);
    (walked(store, "{moves}:").await, stays)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_while_a_slot_moves_may_miss_its_keys_and_has_all_others() {
    for version in [RedisVersion::Redis7, RedisVersion::Valkey] {
        let (cluster, store) = own(version).await;
        let plain: StoreRef = store.clone();
        let (moves, stays) = (keys_of("{moves}", 200), keys_of("stays", 600));
        let members = || (0..3).map(|member| member.to_string());
        run(&plain, stays.iter().map(|key| set(key, members()))).await;
        let slot: u16 = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "{moves}"]).text().parse().unwrap();
        let from = cluster.primary_of(slot);
        let to = (from + 1) % 3;
        // As another program writes them: the store's own keys share no slot by a tag.
        for key in &moves {
            assert!(!cluster.nodes()[from].command(&["SADD", key, "0", "1", "2"]).is_error());
        }
        assert_eq!(reported(&store).await, (200, 600));

        cluster.begin_move(slot, to);
        assert_eq!(reported(&store).await, (200, 600), "they are where they were");
        assert_eq!(measured(&store, &moves).await.iter().flatten().count(), 200);
        // The one that takes them in names them, and refuses what is asked of them (MOVED); the one that had them redirects (ASK).
        cluster.move_keys(slot, to);
        assert_eq!(reported(&store).await, (0, 600));
        assert_eq!(measured(&store, &moves).await, vec![None; 200]);
        assert_eq!(measured(&store, &stays).await.iter().flatten().count(), 600);

        cluster.end_move(slot, to);
        assert_eq!(measured(&store, &moves[..1]).await, [None], "by the map of before");
        assert_eq!(reported(&store).await, (200, 600));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_demoted_tells_of_its_keys_all_the_same() {
    let (cluster, store) = own(RedisVersion::Redis8).await;
    let plain: StoreRef = store.clone();
    let keys = keys_of("k", 600);
    run(&plain, keys.iter().map(|key| set(key, std::iter::once("1".to_owned())))).await;
    tokio::task::block_in_place(|| {
        cluster.fail_over_to(3);
        cluster.wait_ok();
    });
    assert_eq!(walked(&store, "k:").await, 600);
    assert_eq!(measured(&store, &keys).await.iter().flatten().count(), 600);
    assert_eq!(store.stats().redirections, 0, "it went by the map of before");
}
