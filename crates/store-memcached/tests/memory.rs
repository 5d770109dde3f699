//! What a connection holds of replies that nobody waits for. Alone in its process: it looks at the most memory that this ever had.

mod common;

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::*;
use larder_core::{Batch, Ctx, ErrorKind, Op, Store, Want};
use larder_testkit::servers::{Memcached, Version};

const VALUE_BYTES: usize = 1_000_000;
const READS: usize = 400;

/// The most memory that the process has had, in bytes.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_nobody_waits_for_are_not_kept_and_deadlines_count_while_many_bytes_come() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&format!("{}?timeout_ms=20000&connections=1", server.url())).await;
    set(&store, "large", vec![b'x'; VALUE_BYTES]).await;
    let reads = || (0..READS).map(|_| Op::get(key("large"), Want::VALUE)).collect::<Batch>();
    let before = peak_bytes();

    // One who leaves at once.
    let mut dropped = Box::pin(async { store.run(Ctx::default(), reads()).await });
    poll_fn(|cx| {
        assert!(dropped.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(dropped);
    assert!(value(&store, "small").await.is_none(), "it comes behind all of them");
    let kept = peak_bytes() - before;
    assert!(kept < READS * VALUE_BYTES / 4, "{kept} bytes of {} were kept", READS * VALUE_BYTES);

    // And one whose time runs out while they come.
    let begun = Instant::now();
    let patience = Duration::from_millis(30);
    let replies = store.run(Ctx { deadline: Some(begun + patience) }, reads()).await;
    let late = begun.elapsed();
    assert_eq!(replies.last().unwrap().as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    assert!(value(&store, "small").await.is_none());
    let all = begun.elapsed();
    eprintln!("ended after {late:?}, all had come after {all:?}, {} bytes at the most", peak_bytes() - before);
    assert!(late < patience + (all - patience) / 2, "it ended after {late:?}, when all had come after {all:?}");
}
