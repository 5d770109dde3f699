//! A survey keeps its deadline, whatever it waits for.

mod common;

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use larder_core::survey::{DataType, Pace, Sample, Survey};
use larder_core::{Ctx, ErrorKind, Result};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

fn samples(keys: u32) -> Vec<Sample> {
    (0..keys)
        .map(|at| Sample { key: format!("k{at}").into_bytes(), data_type: DataType::String, elements_max: 0 })
        .collect()
}

fn soon() -> Ctx {
    Ctx::within(Duration::from_millis(300))
}

fn is_late<T: std::fmt::Debug>(begun: Instant, found: Result<T>) {
    assert_eq!(found.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_survey_does_not_wait_longer_for_its_connection_than_its_deadline() {
    let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    // Taken, and never answered.
    let mut silent = Vec::new();
    let (addr, dials) = only_the_first(server.addr(), move |stream| silent.push(stream)).await;
    let store = open(&format!("redis://{addr}?timeout_ms=60000&connect_timeout_ms=60000")).await;
    let begun = Instant::now();
    is_late(begun, store.walk(soon(), Pace::default(), &mut |_| ()).await);
    is_late(begun, store.measure(soon(), Pace::default(), &samples(1)).await);
    assert_eq!(dials.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_survey_does_not_pause_longer_than_its_deadline() {
    let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let store = open(&server.url()).await;
    for at in 0..600 {
        server.command(&["SET", &format!("k{at}"), "v"]);
    }
    let pace = Pace { keys_a_second: NonZeroU32::new(1) };
    let begun = Instant::now();
    is_late(begun, store.walk(soon(), pace, &mut |_| ()).await);
    is_late(begun, store.measure(soon(), pace, &samples(60)).await);
    // Behind the last piece nothing is left to be late.
    assert_eq!(store.measure(soon(), pace, &samples(10)).await.unwrap().len(), 10);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
