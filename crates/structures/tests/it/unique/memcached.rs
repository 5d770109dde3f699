//! Unique visitors on real memcached servers, old and new.

use std::time::Duration;

use larder_core::ErrorKind;
use larder_structures::{Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions};
use larder_testkit::servers::{Memcached, Version};

use crate::support::memcached::client;

fn options() -> UniqueVisitorsOptions {
    UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).expected(20_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_a_loss_and_never_a_zero() {
    for version in Version::ALL {
        let mut server = Memcached::start(version, &[]);
        let store = client(server.addr(), "").await;
        let site = options().open_or_create(&store, "site").await.unwrap();
        site.add(["v"]).await.unwrap();
        server.restart();
        // The first answer after a restart may be that of the broken connection.
        let mut told = site.count().await.unwrap_err();
        for _ in 0..200 {
            if told.kind() != ErrorKind::Unavailable {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            told = site.count().await.unwrap_err();
        }
        for error in [told, site.count().await.unwrap_err(), site.add(["v"]).await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        assert_eq!(UniqueVisitors::open(&store, "site").await.unwrap_err().kind(), ErrorKind::Absent);
    }
}

/// Items that grew through size classes would leave pages of each behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_stay_in_one_size_class_and_take_what_is_documented() {
    // As many bytes a visitor, the chunks of its shards and all that stands beside them; at most so many were reckoned.
    for (precision, bytes_max) in [(Precision::Compact, 3.8), (Precision::NEAR_EXACT, 2.8)] {
        let server = Memcached::start(Version::Old, &[]);
        let store = client(server.addr(), "").await;
        let site = options().precision(precision).open_or_create(&store, "site").await.unwrap();
        for part in 0..4u64 {
            let told = site.add(part * 5_000..(part + 1) * 5_000).await.unwrap();
            let new = told.into_iter().filter(|told| *told == Novelty::New).count();
            assert!(new > 4_990, "{new} of 5,000");
        }
        let stat = site.stat(site.current().unwrap()).await.unwrap().unwrap();
        assert!(stat.padded_bytes > 4_000 && stat.shards >= 10, "{stat:?}");
        let stats = server.stats("items");
        let number = |line: &str| line.rsplit(' ').next().and_then(|number| number.trim().parse::<u32>().ok());
        let most = stats.lines().filter(|line| line.contains(":number ")).filter_map(number).max().unwrap_or(0);
        // 19 of 20 are within the class that they are made in.
        assert!(most >= stat.shards - stat.shards / 5, "{most} of {} shards share a class: {stats}", stat.shards);
        assert_eq!(server.stat("evictions"), 0);
        let each = server.used_chunk_bytes() as f64 / 20_000.0;
        assert!(each < bytes_max, "{precision:?}: {each} bytes a visitor");
    }
}
