//! Real processes against a real server, their connections cut at random: the exact counter is exact.

use std::process::{Command, Stdio};
use std::time::Duration;

use larder::{Counter, ErrorKind};
use larder_testkit::proxy::{Proxy, Rates};
use larder_testkit::servers::{Memcached, Version};

const PROCESSES: usize = 8;
/// Says to a process how often it adds.
const INCREMENTS_VARIABLE: &str = "LARDER_TEST_WORKER_INCREMENTS";
const COUNTER: &str = "hits";
/// Says to this same executable that it is one of the processes, and where the store is.
const STORE_VARIABLE: &str = "LARDER_TEST_WORKER_STORE";
/// How often one increment is tried again after the store said that it did not take effect.
const TRIES_MAX: usize = 1_000;
/// How many faults are expected to be caused in all.
const FAULTS: f64 = 400.0;

/// Not a test of its own: what each process runs.
#[tokio::test]
async fn worker() {
    let Ok(url) = std::env::var(STORE_VARIABLE) else { return };
    let increments: usize =
        std::env::var(INCREMENTS_VARIABLE).ok().and_then(|text| text.parse().ok()).expect("a number");
    let mut tries = 0;
    let counter = loop {
        let opened = async { Counter::open(&larder::open(&url).await?, COUNTER).await };
        match opened.await {
            Ok(counter) => break counter,
            Err(error) => {
                tries += 1;
                assert!(tries < TRIES_MAX, "{error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let mut unknown = 0;
    for _ in 0..increments {
        let mut tries = 0;
        loop {
            match counter.add(1).await {
                Ok(()) => break,
                Err(error) if error.is_unknown() => {
                    unknown += 1;
                    break;
                }
                Err(error) => {
                    // It says that it did not take effect: then trying again must count it once.
                    assert!(
                        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict),
                        "{error}"
                    );
                    tries += 1;
                    assert!(tries < TRIES_MAX, "{error}");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }
    println!("unknown={unknown}.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn eight_processes_of_ten_thousand_increments_with_cuts_count_exactly() {
    count_exactly(Version::New, 10_000).await;
}

/// Fewer on the old release, as this is to take seconds: as many faults are caused, so five times as many for each increment.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn eight_processes_of_two_thousand_increments_with_cuts_count_exactly_on_an_old_release() {
    count_exactly(Version::Old, 2_000).await;
}

/// Has the processes count on a server of this release, their connections cut at random.
async fn count_exactly(version: Version, increments_each: usize) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let server = Memcached::start(version, &["-m", "64"]);
    let direct = larder::open(&format!("memcached://{}", server.addr())).await.expect("the server");
    let counter = Counter::open_or_create(&direct, COUNTER).await.expect("a counter");
    let proxy = Proxy::start(server.addr());
    let rate = FAULTS / (PROCESSES * increments_each) as f64 / 5.0;
    proxy.random(
        seed,
        Rates {
            lost_request: rate,
            lost_reply: rate,
            late_delivery: rate,
            cut_request: rate,
            cut_reply: rate,
            ..Rates::default()
        },
    );
    let url = format!("memcached://{}?timeout_ms=2000", proxy.addr());
    let executable = std::env::current_exe().expect("this executable");
    let workers: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(&executable);
            command.args(["--exact", "worker", "--nocapture"]).stdout(Stdio::piped());
            command.env(STORE_VARIABLE, &url).env(INCREMENTS_VARIABLE, increments_each.to_string());
            command.spawn().expect("a process")
        })
        .collect();
    let outputs = tokio::task::spawn_blocking(move || {
        workers.into_iter().map(|worker| worker.wait_with_output().expect("its output")).collect::<Vec<_>>()
    });
    let mut unknown = 0;
    for output in outputs.await.expect("no panic") {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let told = text.split("unknown=").nth(1).and_then(|rest| rest.split('.').next()).expect("a count");
        unknown += told.parse::<i128>().expect("a number");
    }
    let counts = proxy.counts();
    println!("{counts:?}");
    assert!(counts.faults() > 100, "the proxy did next to nothing: {counts:?}");
    let found = counter.get().await.expect("a get");
    let asked = (PROCESSES * increments_each) as i128;
    // An outcome that was reported as unknown may be either; all others are counted, each once.
    assert!((asked - unknown..=asked).contains(&found), "{found} of {asked}, {unknown} unknown, seed {seed}");
    assert_eq!(unknown, 0, "the server was there all the time: every outcome can be looked up (seed {seed})");
}
