//! Keys that belong together share a slot of a cluster, by the cluster's own word.

use std::sync::Arc;
use std::time::Duration;

use larder_core::StoreRef;
use larder_store_redis::{ClusterConfig, RedisClusterStore};
use larder_structures::{Queue, Stack};
use larder_testkit::redis::{RedisCluster, RedisVersion};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claims_marker_stands_in_the_slot_of_its_queues_state() {
    let cluster = RedisCluster::start(RedisVersion::Redis8);
    let url = format!("{}?timeout_ms=10000&connect_timeout_ms=10000", cluster.url());
    let store: StoreRef = Arc::new(RedisClusterStore::connect(ClusterConfig::from_url(&url).unwrap()).await.unwrap());
    let unique = fastrand::u64(..);
    let (jobs, pile) = (format!("jobs{unique:x}"), format!("pile{unique:x}"));
    let queue = Queue::open_or_create(&store, jobs.as_str()).await.unwrap();
    queue.push_all(["a", "b"]).await.unwrap();
    let stack = Stack::open_or_create(&store, pile.as_str()).await.unwrap();
    stack.push_all(["a", "b"]).await.unwrap();
    let claims = [
        queue.claim(Duration::from_secs(60)).await.unwrap().unwrap(),
        queue.claim(Duration::from_secs(60)).await.unwrap().unwrap(),
    ];
    let taken = stack.claim(Duration::from_secs(60)).await.unwrap().unwrap();
    let primaries = &cluster.nodes()[..3];
    let slot = |key: &str| primaries[0].command(&["CLUSTER", "KEYSLOT", key]).text();
    for (name, markers) in [(&jobs, 2), (&pile, 1)] {
        let keys = |pattern: String| -> Vec<String> {
            let found = primaries.iter().map(|node| node.command(&["KEYS", &pattern]).text());
            found.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
        };
        let (alone, together) = (keys(format!("L.{name}.*")), keys(format!("{{L.{name}.*")));
        assert_eq!(together.len(), markers, "{together:?}");
        for key in &together {
            let state = key[1..].split('}').next().unwrap();
            assert!(alone.iter().any(|key| key == state), "{state} is no key among {alone:?}");
            assert_eq!(slot(key), slot(state), "{key}");
        }
    }
    drop((claims, taken));
}
