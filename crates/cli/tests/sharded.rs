//! Sharded hashes and sets through the command, on real servers; and resharding that is killed.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{larder, on, on_with_input, wait_within};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

fn each_server(test: impl Fn(&str)) {
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    test(&redis.url());
    let memcached = Memcached::start(Version::New, &["-m", "512"]);
    test(&memcached.url());
}

#[test]
fn fields_are_set_read_and_removed_and_the_hash_is_resharded() {
    each_server(|url| {
        let on = |line: &str| on(url, line);
        assert_eq!(on("hash set cities --shards 8 17 Lund 18 Visby").exits(0), "2\n");
        assert_eq!(on("hash set cities 18 Kalmar 19 Ystad").exits(0), "1\n");
        assert_eq!(on("hash get cities 17 18").exits(0), "Lund\nKalmar\n");
        let missing = on("hash get cities 17 99");
        assert_eq!((missing.code(), missing.text().as_str()), (1, "Lund\n"));
        assert_eq!(on("hash len cities").exits(0), "3\n");
        on("reshard cities --shards 20").exits(0);
        let stat = on("--json hash stat cities").json();
        assert_eq!((&stat["shards"], &stat["elements"], &stat["moving_from"]), (&json!(20), &json!(3), &json!(null)));
        assert_eq!(on("hash remove cities 17 99").exits(0), "1\n");
        let entries: Vec<Vec<u8>> = vec![b"18\tKalmar".to_vec(), b"19\tYstad".to_vec()];
        assert_eq!(on("hash entries cities").sorted_lines(), entries);
        assert_eq!(on("--json inspect cities").json()["elements"], 2);
        assert_eq!(on("drop cities").exits(0), "sharded hash\n");
    });
}

#[test]
fn members_come_from_standard_input_and_who_is_new_is_counted() {
    each_server(|url| {
        let members: String = (0..5_000).map(|n| format!("{}\n", n % 3_000)).collect();
        let add = "sharded-set add seen --expected 3000 -";
        assert_eq!(on_with_input(url, add, members.as_bytes()).exits(0), "3000\n");
        assert_eq!(on(url, "sharded-set len seen").exits(0), "3000\n");
        assert_eq!(on(url, "sharded-set has seen 5").exits(0), "true\n");
        let has = on(url, "sharded-set has seen 5 x");
        assert_eq!((has.code(), has.text().as_str()), (1, "true\nfalse\n"));
        assert_eq!(on(url, "sharded-set remove seen 5 x").exits(0), "1\n");
        assert_eq!(on(url, "sharded-set members seen").sorted_lines().len(), 2_999);
        let lines = b"a\t1\nb\t2\tx\n";
        assert_eq!(on_with_input(url, "hash set h -", lines).exits(0), "2\n");
        assert_eq!(on(url, "hash get h b").exits(0), "2\tx\n");
    });
}

/// A set that the server's limit pushes out of its packed form, all of it or a part.
#[test]
fn of_a_key_that_comes_again_the_last_line_stays() {
    each_server(|url| {
        // Each batch is about one key and others of its own.
        let lines = |line: &dyn Fn(u32, u32) -> String| -> String {
            (0..20_480).map(|n| line(if n % 4 == 0 { 1 } else { n + 2 }, n)).collect()
        };
        let of_tabs = lines(&|key, n| format!("{key}\t{n}\n"));
        on_with_input(url, "hash set h -", of_tabs.as_bytes()).exits(0);
        assert_eq!(on(url, "hash get h 1").exits(0), "20476\n");
        on_with_input(url, "top set t -", of_tabs.as_bytes()).exits(0);
        assert_eq!(on(url, "top get t 1").exits(0), "20476\n");
        on(url, "records define r n:u32").exits(0);
        let of_ids = lines(&|id, n| format!("{id} n={n}\n")).repeat(3);
        on_with_input(url, "records set r -", of_ids.as_bytes()).exits(0);
        assert_eq!(on(url, "records get r 1 --field n").exits(0), "20476\n");
    });
}

#[test]
fn the_figures_tell_how_many_shards_are_not_packed() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let url = server.url();
    let stat = |expected: u64, advises: bool| {
        let found = on(&url, "--json sharded-set stat paid").json();
        assert_eq!((&found["unpacked_shards"], found["advice"].is_string()), (&json!(expected), advises), "{found}");
        let plain = on(&url, "sharded-set stat paid").exits(0);
        assert!(plain.lines().any(|line| line == format!("unpacked_shards {expected}")), "{plain}");
    };
    // Shards of 100, 100 and 10.
    let numbers: String = (0..210).map(|n| format!("{n}\n")).collect();
    on_with_input(&url, "sharded-set add paid --dense 100 --shards 3 -", numbers.as_bytes()).exits(0);
    stat(0, false);
    server.command(&["CONFIG", "SET", "set-max-intset-entries", "50"]);
    on(&url, "sharded-set remove paid 5 105").exits(0);
    on(&url, "sharded-set add paid 5 105").exits(0);
    stat(2, true);
    let memcached = Memcached::start(Version::New, &[]);
    on(&memcached.url(), "sharded-set add paid a").exits(0);
    assert_eq!(on(&memcached.url(), "--json sharded-set stat paid").json()["unpacked_shards"], json!(null));
    assert!(!on(&memcached.url(), "sharded-set stat paid").exits(0).contains("unpacked_shards"));
}

#[test]
fn what_is_wrong_is_said() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    for line in ["hash get n a", "hash len n", "sharded-set has n a", "sharded-set members n", "reshard n --shards 2"] {
        on(&url, line).fails(3, "absent (never created, or lost)");
    }
    on(&url, "hash set n a").fails(2, "has no value");
    on_with_input(&url, "hash set n -", b"no tab\n").fails(2, "no tab");
    on(&url, "hash set ids --dense 4 --shards 2 0 a").exits(0);
    on(&url, "hash set ids 8 a").fails(2, "0 to 7");
    on(&url, "hash get ids 08").fails(2, "whole numbers");
    on(&url, "sharded-set add ids a").fails(8, "holds a sharded hash, not a sharded set");
    on(&url, "set add tags a").exits(0);
    on(&url, "reshard tags --shards 2").fails(8, "only a sharded hash, set and sorted set");
    on(&url, "reshard ids --shards 0").fails(2, "--shards");
}

/// A number of the environment, for runs that are larger than what fits into a suite.
fn asked(name: &str, unless: u64) -> u64 {
    std::env::var(name).map_or(unless, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Adds members by the command, some hundred thousand at a time; how many were new.
fn add_members(url: &str, add: &str, members: std::ops::Range<u64>) -> u64 {
    let mut new = 0;
    for first in members.clone().step_by(200_000) {
        let part: String = (first..members.end.min(first + 200_000)).map(|n| format!("{n}\n")).collect();
        new += on_with_input(url, add, part.as_bytes()).exits(0).trim().parse::<u64>().expect("a number");
    }
    new
}

/// How often a kill may come too late, for each that does not.
const ATTEMPTS_A_KILL: u64 = 5;

/// Reshards by a command that is killed at some moment of this time, with other shards each time, until so many were killed before they were done: how many it took. `look` is given how many
/// there were before.
fn reshard_and_kill(url: &str, kills: u64, within: Duration, shards: [&str; 2], mut look: impl FnMut(u64)) -> u64 {
    let (mut landed, mut attempts) = (0, 0);
    while landed < kills {
        assert!(attempts < ATTEMPTS_A_KILL * kills, "only {landed} of {attempts} were killed before they were done");
        let shards = shards[(attempts % 2) as usize];
        let mut child = larder(["reshard", "seen", "--shards", shards]).env("LARDER_STORE", url).spawn().unwrap();
        thread::sleep(within.mul_f64(fastrand::f64()));
        child.kill().unwrap();
        landed += u64::from(!child.wait().unwrap().success());
        look(attempts);
        attempts += 1;
    }
    attempts
}

/// How long a resharding takes that nobody kills, so that those that are killed are so at any moment of theirs.
fn time_of_a_reshard(reshard: impl FnOnce()) -> Duration {
    let from = Instant::now();
    reshard();
    from.elapsed()
}

/// Members are added while resharding is killed and begun anew; each is new once, and none is lost.
#[test]
fn a_resharding_that_is_killed_twenty_times_loses_and_doubles_nothing() {
    let (members, kills) = (asked("LARDER_RESHARD_MEMBERS", 20_000), asked("LARDER_RESHARD_KILLS", 20));
    let shards = |members_a_shard: u64| (members / members_a_shard).max(1).to_string();
    // A million take longer than a command otherwise may.
    let patience = Duration::from_secs(60) * u32::try_from(members / 20_000 + 1).unwrap();
    each_server(|url| {
        let on = |line: &str| {
            wait_within(larder(line.split_whitespace()).env("LARDER_STORE", url).spawn().unwrap(), patience)
        };
        let add = format!("sharded-set add seen --shards {} -", shards(66));
        assert_eq!(add_members(url, &add, 0..members), members);
        let is_over = AtomicBool::new(false);
        let (attempts, (added, new, slowest)) = thread::scope(|scope| {
            let adder = scope.spawn(|| add_until(url, &is_over));
            let whole = time_of_a_reshard(|| drop(on(&format!("reshard seen --shards {}", shards(50))).exits(0)));
            let attempts = reshard_and_kill(url, kills, whole, [&shards(28), &shards(133)], |attempt| {
                let len: u64 = on("sharded-set len seen").exits(0).trim().parse().unwrap();
                assert!(len >= members, "{len} after attempt {attempt}");
            });
            on(&format!("reshard seen --shards {}", shards(50))).exits(0);
            is_over.store(true, Ordering::Relaxed);
            (attempts, adder.join().unwrap())
        });
        assert_eq!(new, added, "each x is new once, and nothing else is");
        assert_eq!(on("sharded-set len seen").exits(0), format!("{}\n", members + added));
        let found = on("sharded-set members seen").sorted_lines();
        assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "a member is there twice");
        assert_eq!(found.len() as u64, members + added);
        let stat = on("--json sharded-set stat seen").json();
        assert_eq!((stat["shards"].to_string(), &stat["moving_from"]), (shards(50), &json!(null)));
        // The manifest, the map and the shards: what the dead have left is gone.
        assert_eq!(on("--json inspect seen").json()["keys"].to_string(), (members / 50 + 2).to_string());
        println!(
            "{url}: {members} members and {added} more, {kills} of {attempts} killed midway; the slowest add of 100, a process and all, {slowest:?}"
        );
    });
}

/// Adds members of which half are there already, until it is over: how many were not, how many of them were said to be new, and how long the slowest command took.
fn add_until(url: &str, is_over: &AtomicBool) -> (u64, u64, Duration) {
    let (mut added, mut new, mut slowest) = (0, 0, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        let part: String = (added..added + 50).map(|n| format!("{}\nx{n}\n", n % 100)).collect();
        let from = Instant::now();
        let told = on_with_input(url, "sharded-set add seen -", part.as_bytes()).exits(0);
        slowest = slowest.max(from.elapsed());
        new += told.trim().parse::<u64>().expect("a number");
        added += 50;
    }
    (added, new, slowest)
}

/// The same of the other two, with fewer kills in the suite: what is put again and again has the value that was put last.
#[test]
fn hashes_and_sorted_sets_lose_nothing_when_a_resharding_is_killed() {
    const ELEMENTS: u64 = 4_000;
    let kills = asked("LARDER_RESHARD_KILLS", 6);
    let lines = |from: u64, to: u64, value: u64| -> String { (from..to).map(|n| format!("e{n}\t{value}\n")).collect() };
    each_server(|url| {
        for (group, all) in [("hash", "hash entries seen"), ("top", "top list seen --all")] {
            let set = format!("{group} set seen --shards 60 -");
            assert_eq!(on_with_input(url, &set, lines(0, ELEMENTS, 0).as_bytes()).exits(0), format!("{ELEMENTS}\n"));
            let whole = time_of_a_reshard(|| drop(on(url, "reshard seen --shards 100").exits(0)));
            let attempts = reshard_and_kill(url, kills, whole, ["170", "40"], |attempt| {
                // Those of the first tenth get another value, and ten more come.
                let more = ELEMENTS + 10 * attempt;
                let changed = lines(0, ELEMENTS / 10, attempt + 1) + &lines(more, more + 10, 0);
                let told = on_with_input(url, &set, changed.as_bytes()).exits(0);
                assert_eq!(told, "10\n", "{group}, attempt {attempt}");
            });
            on(url, "reshard seen --shards 50").exits(0);
            let mut expected = lines(0, ELEMENTS / 10, attempts) + &lines(ELEMENTS / 10, ELEMENTS + 10 * attempts, 0);
            expected.truncate(expected.len() - 1);
            let mut expected: Vec<&[u8]> = expected.split('\n').map(str::as_bytes).collect();
            expected.sort_unstable();
            assert!(on(url, all).sorted_lines() == expected, "{group}: something was lost, doubled, or set back");
            let keys = if group == "top" { 53 } else { 52 };
            assert_eq!(on(url, "--json inspect seen").json()["keys"], keys, "{group}: what the dead have left is gone");
            on(url, "drop seen").exits(0);
        }
    });
}
