//! What a server keeps of what it acknowledged, as it is set up: the profile says no more.

mod common;

use common::*;
use larder_core::{Durability, Store};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

#[tokio::test]
async fn a_server_that_stops_to_sync_while_it_saves_does_not_promise_the_disk() {
    for version in RedisVersion::ALL {
        let profile = async |options: RedisOptions| open(&RedisServer::start(version, &options).url()).await.profile();
        let always = || RedisOptions::new().appendonly();
        let stops = profile(always().arg("no-appendfsync-on-rewrite", "yes")).await;
        assert_eq!((stops.durability, stops.warnings.len()), (Durability::Recent, 1), "{version:?}");
        assert!(stops.warnings[0].contains("set no-appendfsync-on-rewrite no"), "{:?}", stops.warnings);
        let syncs = profile(always()).await;
        assert_eq!((syncs.durability, &syncs.warnings[..]), (Durability::Disk, &[][..]), "{version:?}");
        // Of the last second anything may be gone in any case.
        let second =
            profile(RedisOptions::new().arg("appendonly", "yes").arg("no-appendfsync-on-rewrite", "yes")).await;
        assert_eq!((second.durability, &second.warnings[..]), (Durability::Recent, &[][..]), "{version:?}");
    }
}
