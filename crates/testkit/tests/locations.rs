//! The example of the location table: every country and every region there is comes back, on every kind of store.

#[path = "../examples/locations.rs"]
mod locations;

use std::sync::Arc;

use larder::records::Value;
use larder::{ErrorKind, PackedRecords, StoreRef, records::Schema};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

async fn every_code_comes_back(store: &StoreRef) {
    let codes = locations::codes();
    assert!(codes.len() > 5_000 && codes.contains(&"ZW") && codes.contains(&"US-NY"), "{} codes", codes.len());
    let users = locations::open(store, "locations").await.unwrap();
    assert_eq!(users.schema().bits(), 13);
    let countries = locations::fill(&users).await.unwrap();
    let ids: Vec<u64> = (0..codes.len() as u64).collect();
    for (code, values) in codes.iter().zip(users.get_many(&ids).await.unwrap()) {
        assert_eq!(values, [Value::Choice(Some((*code).to_owned()))]);
    }
    let all = codes.len() + codes.len().div_ceil(3);
    assert_eq!(users.highest().await.unwrap(), Some(all as u64 - 1));
    assert_eq!(countries.values().sum::<u64>(), all as u64);
    for country in rust_iso3166::ALL_ALPHA2 {
        let here = |code: &str| code.split('-').next() == Some(*country);
        let expected = codes.iter().chain(codes.iter().step_by(3)).filter(|code| here(code)).count();
        assert_eq!(countries[*country], expected as u64, "{country}");
    }
    // Another list of codes moves nobody.
    let fewer = Schema::new().choice("place", codes.into_iter().skip(1)).build().unwrap();
    let error = PackedRecords::options().schema(fewer).open(store, "locations").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_country_and_region_comes_back_in_the_process() {
    every_code_comes_back(&(Arc::new(larder_store_memory::MemoryStore::new()) as StoreRef)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_country_and_region_comes_back_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().join("store").display());
    every_code_comes_back(&larder::open(&url).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_country_and_region_comes_back_from_servers() {
    const PATIENT: &str = "timeout_ms=10000&connect_timeout_ms=10000";
    let memcached = Memcached::start(Version::Old, &[]);
    let url = format!("{}?{PATIENT}", memcached.url());
    every_code_comes_back(&larder::open(&url).await.unwrap()).await;
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let url = format!("{}?{PATIENT}", redis.url());
    every_code_comes_back(&larder::open(&url).await.unwrap()).await;
}
