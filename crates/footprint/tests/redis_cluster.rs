//! Reports on clusters.

mod support;

use std::sync::Arc;

use larder_core::StoreRef;
use larder_core::survey::Pace;
use larder_footprint::{Options, report};
use larder_store_redis::{ClusterConfig, RedisClusterStore};
use larder_structures::ShardedSet;
use larder_testkit::redis::{RedisVersion, shared_cluster};
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
