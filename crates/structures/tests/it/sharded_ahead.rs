//! Collections of dense numbers: a handle whose map has no shard for a number looks whether there are more by now.

use larder_core::ErrorKind;
use larder_structures::ShardedHash;

use crate::sharded::{cost, counting};

#[tokio::test]
async fn a_number_for_which_others_have_made_shards_is_found() {
    let (counting, store) = counting();
    let options = || ShardedHash::options().shards(2).dense(10);
    let maker = options().open_or_create(&store, "n").await.unwrap();
    let reader = options().open(&store, "n").await.unwrap();
    maker.reshard(4).await.unwrap();
    maker.set([("35", "v")]).await.unwrap();
    let (took, found) = cost(&counting, reader.get_many(["35", "20"])).await;
    assert_eq!(found, [Some("v".into()), None]);
    assert_eq!(took.round_trips, 2, "the map, and what is in the shards");
}

/// One look tells that there is no such shard.
#[tokio::test]
async fn a_number_for_which_there_is_no_shard_is_refused_after_one_look() {
    for is_resharded in [false, true] {
        let (counting, store) = counting();
        let options = || ShardedHash::options().shards(2).dense(10);
        let maker = options().open_or_create(&store, "n").await.unwrap();
        let reader = options().open(&store, "n").await.unwrap();
        if is_resharded {
            maker.reshard(3).await.unwrap();
        }
        let before = counting.counts();
        let error = reader.get("70").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert_eq!(counting.counts().since(&before).round_trips, 1, "resharded: {is_resharded}");
    }
}
