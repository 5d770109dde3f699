//! What follows when nodes redirect, or refuse for now: by nodes that say so.

use std::time::{Duration, Instant};

use larder_core::{Ctx, Effect, ErrorKind, Key, Op, PutMode, Reply, StoreExt, Ttl, Want};

use super::RedisClusterStore;
use super::fake::{Fake, config};
use super::slot::SLOTS;

const LAST: u16 = SLOTS as u16 - 1;
const NIL: &str = "_";

/// A node that serves everything, and one that is only redirected to.
async fn two() -> (Fake, Fake, RedisClusterStore) {
    let (serves, other) = (Fake::start().await, Fake::start().await);
    [&serves, &other].iter().for_each(|fake| fake.says(1, &[(0, LAST, &serves)]));
    let store = RedisClusterStore::connect(config(&[&serves])).await.unwrap();
    (serves, other, store)
}

fn get() -> Op {
    Op::get(Key::new("k").unwrap(), Want::VALUE)
}

fn to(code: &str, fake: &Fake) -> String {
    format!("-{code} 7629 127.0.0.1:{}", fake.port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_sent_on_eight_times_in_a_row_goes_by_the_map_again() {
    let (serves, other, store) = two().await;
    let (there, back) = (to("MOVED", &other), to("MOVED", &serves));
    // By the map, and sent back to by the other four times; then by the map again.
    serves.answers("GET K", &[&there, &there, &there, &there, &there, NIL]);
    other.answers("GET K", &[&back]);
    assert_eq!(store.run_one(Ctx::default(), get()).await.unwrap(), Reply::Miss);
    assert_eq!((serves.heard().len(), other.heard().len()), (6, 4), "a ninth time it is not followed");
    let stats = store.stats();
    assert_eq!(stats.redirections, 9);
    assert!(stats.maps_read > 0, "and the map is looked at anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_refuses_for_now_is_tried_again_until_it_is_done_or_the_deadline() {
    let (serves, _other, store) = two().await;
    let refusals = [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "READONLY You can't write against a read only replica.",
        "ERR Script attempted to execute a write command while the cluster is down and readonly script: 0519ba, on @user_script:9.",
    ];
    for refusal in refusals.map(|said| format!("-{said}")) {
        let before = serves.heard().len();
        serves.answers("SET K", &[&refusal, &refusal, "+OK"]);
        let put = Op::put(Key::new("k").unwrap(), PutMode::Add, "v", Ttl::Never);
        assert_eq!(store.run_one(Ctx::default(), put.clone()).await.unwrap(), Reply::Stored, "{refusal}");
        assert_eq!(serves.heard().len() - before, 3, "{refusal}");
        serves.answers("SET K", &[&refusal]);
        let refused = async || {
            let began = Instant::now();
            let soon = Ctx::default().at_most(Duration::from_millis(300));
            let error = store.run_one(soon, put.clone()).await.unwrap_err();
            assert!(began.elapsed() >= Duration::from_millis(250), "{refusal}: not tried until the deadline");
            error
        };
        let mut error = refused().await;
        // The deadline may come while a try is under way: of a machine that is busy it does more often.
        for _ in 0..20 {
            if error.kind() != ErrorKind::Timeout {
                break;
            }
            assert!(error.is_unknown(), "{error}");
            error = refused().await;
        }
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        let code = refusal[1..].split(' ').next().unwrap();
        let said = error.to_string();
        assert!(said.contains(code) && said.contains("op add") && said.contains("key \"k\""), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_taken_in_is_asked_for() {
    let (serves, other, store) = two().await;
    serves.answers("GET K", &[&to("ASK", &other)]);
    other.answers("ASKING", &["+OK"]);
    other.answers("GET K", &[NIL]);
    assert_eq!(store.run_one(Ctx::default(), get()).await.unwrap(), Reply::Miss);
    assert_eq!(other.heard(), ["ASKING", "GET K"]);
}

/// It would go in circles between the two: the one says `ASK`, and the other, which did not hear that it was asked, `MOVED`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_that_is_refused_is_named() {
    for (refusal, mend) in [
        ("-NOPERM User joe has no permissions to run the 'asking' command", "ACL SETUSER"),
        ("-NOPERM this user has no permissions to run the 'asking' command or its subcommand", "ACL SETUSER"),
        ("-ERR unknown command 'ASKING', with args beginning with: ", "rename-command"),
    ] {
        let (serves, other, store) = two().await;
        serves.answers("GET K", &[&to("ASK", &other)]);
        other.answers("ASKING", &[refusal]);
        other.answers("GET K", &[&to("MOVED", &serves)]);
        let began = Instant::now();
        let error = store.run_one(Ctx::default(), get()).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(1), "it went in circles");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
        let said = error.to_string();
        for part in ["takes the command ASKING", mend, "op get", "key \"k\"", &format!("127.0.0.1:{}", other.port)] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
        // Where the slot has come meanwhile nobody need ask.
        other.answers("GET K", &[NIL]);
        assert_eq!(store.run_one(Ctx::default(), get()).await.unwrap(), Reply::Miss);
    }
}

/// Another map would not change it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_forbidden_has_no_map_looked_at() {
    let (serves, _other, store) = two().await;
    serves.answers("CLIENT TRACKING", &["-NOPERM User joe has no permissions to run the 'client|tracking' command"]);
    let looks = store.stats().maps_read;
    for _ in 0..3 {
        let watch = Op::watch(Key::new("k").unwrap(), None);
        let error = store.run_one(Ctx::default(), watch).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
    }
    // One that was asked for would be under way.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((store.stats().maps_read - looks, serves.heard().len()), (0, 1));
}
