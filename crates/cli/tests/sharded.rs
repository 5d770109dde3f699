//! Sharded hashes and sets through the command, on real servers; and resharding that is killed.

mod common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Done, larder, on, on_with_input, wait_within};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

fn each_server(test: impl Fn(&str)) {
    on_redis(&test);
    on_memcached(&test);
}

fn on_redis(test: impl Fn(&str)) {
    test(&RedisServer::start(RedisVersion::Redis7, &RedisOptions::new()).url());
}

fn on_memcached(test: impl Fn(&str)) {
    test(&Memcached::start(Version::New, &["-m", "512"]).url());
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

/// A set that the server's limit pushes out of its packed form, all of it or a part.
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

/// What the figures and the report advise of dense numbers, word for word: it packs all shards.
#[test]
fn advice_of_dense_numbers_packs_their_shards() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let url = server.url();
        let numbers: String = (0..3_000).map(|n| format!("{n}\n")).collect();
        on_with_input(&url, "sharded-set add paid --dense 1000 --shards 3 -", numbers.as_bytes()).exits(0);
        let lines: String = (0..3_000).map(|n| format!("{n}\tcity {n}\n")).collect();
        on_with_input(&url, "hash set cities --dense 1000 --shards 3 -", lines.as_bytes()).exits(0);
        for (name, group, per_shard) in [("paid", "sharded-set", 509), ("cities", "hash", 64)] {
            let stat = || on(&url, &format!("--json {group} stat {name}")).json();
            let before = stat();
            let cure = format!("resharding to {per_shard} dense numbers a shard packs them again");
            assert!(before["advice"].as_str().unwrap_or_default().ends_with(&cure), "{version:?}: {before}");
            let report = on(&url, "--json memory advise").json();
            let what = format!("larder reshard \"{name}\" --dense {per_shard}");
            let told = report["advice"].as_array().unwrap().iter().any(|one| one["what"] == what.as_str());
            assert!(told, "{version:?}: no {what} in {report:#}");
            let resharded = on(&url, &format!("--json reshard {name} --dense {per_shard}")).json();
            assert_eq!(resharded["shards"], 3_000u32.div_ceil(per_shard), "{version:?}");
            let after = stat();
            assert_eq!(
                (&after["unpacked_shards"], &after["elements"]),
                (&json!(0), &json!(3_000)),
                "{version:?}: {after}"
            );
            assert_eq!(after["advice"], json!(null), "{version:?}: {after}");
        }
        assert_eq!(on(&url, "hash get cities 2999 0").exits(0), "city 2999\ncity 0\n");
    }
}

#[test]
fn dense_shards_become_large_and_small_again() {
    each_server(|url| {
        let numbers: String = (0..6_400).map(|n| format!("{n}\n")).collect();
        on_with_input(url, "sharded-set add paid --dense 64 --shards 100 -", numbers.as_bytes()).exits(0);
        let a_shard = |dense: u32| {
            let params = on(url, "inspect paid").exits(0);
            assert!(params.lines().any(|line| line == format!("parameter dense numbers a shard: {dense}")), "{params}");
        };
        on(url, "reshard paid --shards 10").exits(0);
        a_shard(640);
        on(url, "reshard paid --dense 64").exits(0);
        a_shard(64);
        let stat = on(url, "--json sharded-set stat paid").json();
        assert_eq!((&stat["shards"], &stat["elements"]), (&json!(100), &json!(6_400)));
        assert_eq!(stat["largest_shard"], 64);
    });
}

/// More elements than 65,535 shards of 64 have: shards are made for more each, or the most is named.
#[test]
fn a_collection_for_many_elements_is_made_or_the_most_it_can_be_made_for_is_named() {
    let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let url = server.url();
    on(&url, "--timeout 60s hash set cities --expected 10000000 a b").exits(0);
    assert_eq!(on(&url, "--json hash stat cities").json()["shards"], 65_535);
    on(&url, "sharded-set add more --expected 4194241 a").fails(2, "it can be made for 4194240 at the most");
    on(&url, "hash set more --expected 16776961 a b").fails(2, "it can be made for 16776960 at the most");
    on(&url, "sharded-set len more").fails(3, "absent");
    on(&url, "sharded-set add ids --dense 500 --expected 32767501 1").fails(2, "32767500 at the most");
}

/// The line that is wrong has its number, wherever its batch began, and what is read of it or what the structure refuses.
#[test]
fn a_wrong_line_of_standard_input_is_named_by_its_number() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let with = |line: &str, input: &str| on_with_input(&url, line, input.as_bytes());
    let before = |each: &dyn Fn(u32) -> String| -> String { (0..1_500).map(|n| each(n % 8)).collect() };
    let (tabbed, bare) = (before(&|n| format!("{n}\t1\n")), before(&|n| format!("{n}\n")));
    with("hash set n -", &format!("{tabbed}no tab\n")).fails(2, "line 1501: ");
    with("table put t -", &format!("{tabbed}no tab\n")).fails(2, "line 1501: ");
    with("hash set ids --dense 4 --shards 2 -", &format!("{tabbed}8\ta\n")).fails(2, "line 1501: ");
    with("hash get ids -", "7\n08\n").fails(2, "line 2: ");
    with("hash remove ids -", &format!("{bare}-1\n1\n")).fails(2, "line 1501: ");
    with("sharded-set add set --dense 4 --shards 2 -", &bare).exits(0);
    for verb in ["add", "remove"] {
        let done = with(&format!("sharded-set {verb} set -"), &format!("{bare}8\n"));
        done.fails(2, "line 1501: ");
        assert!(done.stderr.contains("0 to 7"), "{}", done.stderr);
    }
    with("sharded-set has set -", "1\n2\n8\n").fails(2, "line 3: ");
    // What is on the command line has no lines.
    let typed = on(&url, "sharded-set add set 8");
    typed.fails(2, "0 to 7");
    assert!(!typed.stderr.contains("line"), "{}", typed.stderr);
    let long = "x".repeat(70_000);
    with("sharded-set add texts -", &format!("a\n{long}\n")).fails(2, "line 2: ");
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
    on(&url, "reshard ids --dense 0").fails(2, "--dense");
    on(&url, "reshard ids").fails(2, "--shards");
    on(&url, "reshard ids --shards 3 --dense 3").fails(2, "cannot be used with");
    on(&url, "hash set texts a b").exits(0);
    on(&url, "reshard texts --dense 3").fails(2, "by hash, and not by dense numbers");
}

/// Deletes the second shard of a collection, as an eviction does.
fn lose_a_shard(server: &Memcached, name: &str) {
    let stream = TcpStream::connect(server.addr()).unwrap();
    let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
    (&stream).write_all(b"lru_crawler metadump all\r\n").unwrap();
    let all: Vec<String> = lines.by_ref().take_while(|line| line != "END").collect();
    let mut keys = all.iter().filter_map(|line| line.strip_prefix("key=")?.split(' ').next());
    let is_shard = |key: &&str| key.starts_with(&format!("L.{name}.")) && key.ends_with("-1");
    let shard = keys.find(is_shard).unwrap_or_else(|| panic!("no shard in {all:?}"));
    (&stream).write_all(format!("delete {shard}\r\n").as_bytes()).unwrap();
    assert_eq!(lines.next().unwrap(), "DELETED");
}

/// What goes on with the same command is told apart from what would end the same way.
#[test]
fn a_resharding_that_does_not_fit_or_lacks_a_shard_is_not_said_to_go_on() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let lines = format!("0\t{0}\n1\t{0}\n", "x".repeat(600_000));
    assert_eq!(on_with_input(&url, "hash set full --dense 1 --shards 2 -", lines.as_bytes()).exits(0), "2\n");
    let full = on(&url, "reshard full --shards 1");
    full.fails(8, "resharding to more shards makes room");
    assert!(!full.stderr.contains("the same command"), "{}", full.stderr);
    on(&url, "hash set lost --dense 1 --shards 2 0 a 1 b").exits(0);
    lose_a_shard(&server, "lost");
    let lost = on(&url, "reshard lost --shards 3");
    lost.fails(4, "is gone");
    assert!(!lost.stderr.contains("the same command"), "{}", lost.stderr);
}

/// A number of the environment, for runs that are larger than what fits into a suite.
fn asked(name: &str, unless: u64) -> u64 {
    std::env::var(name).map_or(unless, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A command that waits longer for its turn at a folder than anybody would, as on a busy machine it may have to.
fn patient(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = larder(["--timeout", "60s"]);
    command.args(args);
    command
}

/// Gives the command lines, some hundred thousand at a time; how many it said were new.
fn put(url: &str, line: &str, numbers: Range<u64>, text: impl Fn(u64) -> String) -> u64 {
    let mut new = 0;
    for first in numbers.clone().step_by(200_000) {
        let part: String = (first..numbers.end.min(first + 200_000)).map(&text).collect();
        new += on_with_input(url, &format!("--timeout 60s {line}"), part.as_bytes())
            .exits(0)
            .trim()
            .parse::<u64>()
            .expect("a number");
    }
    new
}

/// A run over so many elements, on one store.
#[derive(Clone, Copy)]
struct Scale<'a> {
    url: &'a str,
    elements: u64,
}

impl Scale<'_> {
    /// How many shards there are of so many elements each.
    fn shards(&self, elements_a_shard: u64) -> String {
        (self.elements / elements_a_shard).max(1).to_string()
    }

    /// Runs a command: over a million it takes longer than one otherwise may.
    fn on(&self, line: &str) -> Done {
        let patience = Duration::from_secs(60) * u32::try_from(self.elements / 20_000 + 1).unwrap();
        wait_within(patient(line.split_whitespace()).env("LARDER_STORE", self.url).spawn().unwrap(), patience)
    }

    fn is_folder(&self) -> bool {
        self.url.starts_with("file:")
    }

    /// No add takes longer, a process and all: whoever meets a resharding, or what a killed one left, does its own part of it or goes by, and waits for nobody. A folder is opened anew behind
    /// each kill, which takes longer the more is in it, and used in turns.
    fn add_max(&self) -> Duration {
        let opening_s = if self.is_folder() { 10 + self.elements / 50_000 } else { 0 };
        Duration::from_secs(5 + opening_s)
    }

    fn reshard(&self, elements_a_shard: u64) {
        self.on(&format!("reshard seen --shards {}", self.shards(elements_a_shard))).exits(0);
    }

    /// How many shards there are, or are to be, and whether elements are being moved to them.
    fn stands(&self, group: &str) -> (String, bool) {
        let stat = self.on(&format!("--json {group} stat seen")).json();
        (stat["shards"].to_string(), !stat["moving_from"].is_null())
    }
}

/// The servers, and a folder that commands use in turns: one that is killed there dies in the midst of the store's own work.
fn in_a_folder(test: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    // On a busy machine one turn may take long.
    test(&format!("file:{}?share=yes&wait_ms=30000", folder.path().join("store").display()));
}

/// How often a kill may come too late, for each that does not.
const ATTEMPTS_A_KILL: u64 = 5;

/// What became of reshardings that were killed.
struct Killed {
    attempts: u64,
    /// How many were killed before they were done.
    landed: u64,
    /// How many were killed while they moved elements to shards that they had put in force themselves.
    midway: u64,
}

/// Reshards by a command that is killed, with other shards each time, until so many were killed before they were done, and on a server half as many of them midway. `look` is given how many there were before.
fn reshard_and_kill(
    (on, group): (Scale, &str),
    kills: u64,
    within: Duration,
    a_shard: [u64; 2],
    mut look: impl FnMut(u64),
) -> Killed {
    let (mut landed, mut midway, mut attempts) = (0, 0, 0);
    let (mut shards, mut moments) = (on.stands(group).0, Duration::ZERO..within);
    // A folder tells nobody when it is midway: what became of its kills is told, and not asked for.
    while landed < kills || 2 * midway < kills && !on.is_folder() {
        let so_far = format!("of {attempts} {landed} were killed before they were done, {midway} of them midway");
        assert!(attempts < ATTEMPTS_A_KILL * kills, "{so_far}");
        // So many are in force only once this one has put them there, whatever those before have left.
        let to = a_shard.map(|elements| on.shards(elements)).into_iter().find(|to| *to != shards);
        let moving = (to.expect("two numbers of shards"), true);
        let mut child =
            patient(["reshard", "seen", "--shards", &moving.0]).env("LARDER_STORE", on.url).spawn().unwrap();
        // One in four at any moment. A folder tells nobody how it stands while a command has its turn there.
        let drawn = if attempts % 4 == 0 {
            Duration::ZERO..moments.end
        } else if on.is_folder() {
            moments.clone()
        } else {
            while child.try_wait().unwrap().is_none() && on.stands(group) != moving {}
            Duration::ZERO..within / 4
        };
        let moment = drawn.start + (drawn.end - drawn.start).mul_f64(fastrand::f64());
        thread::sleep(moment);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        // Whoever was not killed has done it.
        assert!(status.success() || status.signal().is_some(), "{status}");
        let now = on.stands(group);
        assert!(!status.success() || now == (moving.0.clone(), false), "one that was done has left {now:?}");
        // A folder is opened the longer the more often it was killed: so the moments follow.
        if status.success() {
            moments = moments.start.min(moment / 2)..moment;
        } else if now != moving {
            moments = moment..moments.end.max(2 * moment);
        }
        landed += u64::from(!status.success());
        midway += u64::from(!status.success() && now == moving);
        shards = now.0;
        look(attempts);
        attempts += 1;
    }
    println!("{}: {group}: {landed} of {attempts} killed before they were done, {midway} of them midway", on.url);
    Killed { attempts, landed, midway }
}

/// Says that it is over, also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How long a resharding takes that nobody kills, so that those that are killed are so at any moment of theirs.
fn time_of_a_reshard(reshard: impl FnOnce()) -> Duration {
    let from = Instant::now();
    reshard();
    from.elapsed()
}

// Each store has a test of its own: on a busy machine so many kills take a minute.

#[test]
fn a_resharding_that_is_killed_twenty_times_loses_and_doubles_nothing_on_redis() {
    on_redis(a_killed_resharding_loses_and_doubles_nothing);
}

#[test]
fn a_resharding_that_is_killed_twenty_times_loses_and_doubles_nothing_on_memcached() {
    on_memcached(a_killed_resharding_loses_and_doubles_nothing);
}

#[test]
fn a_resharding_that_is_killed_twenty_times_loses_and_doubles_nothing_in_a_folder() {
    in_a_folder(a_killed_resharding_loses_and_doubles_nothing);
}

/// Members are added while resharding is killed and begun anew; each is new once, and none is lost.
fn a_killed_resharding_loses_and_doubles_nothing(url: &str) {
    let (members, kills) = (asked("LARDER_RESHARD_MEMBERS", 20_000), asked("LARDER_RESHARD_KILLS", 20));
    let scale = Scale { url, elements: members };
    let add = format!("sharded-set add seen --shards {} -", scale.shards(66));
    assert_eq!(put(url, &add, 0..members, |n| format!("{n}\n")), members);
    let is_over = AtomicBool::new(false);
    let (killed, (added, new, slowest)) = thread::scope(|scope| {
        let adder = scope.spawn(|| add_until(url, &is_over));
        let over = Over(&is_over);
        let whole = time_of_a_reshard(|| scale.reshard(50));
        let killed = reshard_and_kill((scale, "sharded-set"), kills, whole, [28, 133], |attempt| {
            let len: u64 = scale.on("sharded-set len seen").exits(0).trim().parse().unwrap();
            assert!(len >= members, "{len} after attempt {attempt}");
        });
        scale.reshard(50);
        drop(over);
        (killed, adder.join().unwrap())
    });
    println!(
        "{url}: {members} members and {added} more, {} of {} killed, {} of them midway; the slowest add of 100, a process and all, {slowest:?}",
        killed.landed, killed.attempts, killed.midway
    );
    assert!(slowest < scale.add_max(), "an add took {slowest:?}");
    assert_eq!(new, added, "each x is new once, and nothing else is");
    assert_eq!(scale.on("sharded-set len seen").exits(0), format!("{}\n", members + added));
    let found = scale.on("sharded-set members seen").sorted_lines();
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "a member is there twice");
    assert_eq!(found.len() as u64, members + added);
    let stat = scale.on("--json sharded-set stat seen").json();
    assert_eq!((stat["shards"].to_string(), &stat["moving_from"]), (scale.shards(50), &json!(null)));
    // The manifest, the map and the shards: what the dead have left is gone.
    assert_eq!(scale.on("--json inspect seen").json()["keys"].to_string(), (members / 50 + 2).to_string());
}

/// Adds members of which half are there already, until it is over: how many were not, how many of them were said to be new, and how long the slowest command took.
fn add_until(url: &str, is_over: &AtomicBool) -> (u64, u64, Duration) {
    let (mut added, mut new, mut slowest) = (0, 0, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        let part: String = (added..added + 50).map(|n| format!("{}\nx{n}\n", n % 100)).collect();
        let from = Instant::now();
        let told = on_with_input(url, "--timeout 60s sharded-set add seen -", part.as_bytes()).exits(0);
        slowest = slowest.max(from.elapsed());
        new += told.trim().parse::<u64>().expect("a number");
        added += 50;
    }
    (added, new, slowest)
}

#[test]
fn hashes_and_sorted_sets_lose_nothing_when_a_resharding_is_killed_on_redis() {
    on_redis(hashes_and_sorted_sets_lose_nothing);
}

#[test]
fn hashes_and_sorted_sets_lose_nothing_when_a_resharding_is_killed_on_memcached() {
    on_memcached(hashes_and_sorted_sets_lose_nothing);
}

#[test]
fn hashes_and_sorted_sets_lose_nothing_when_a_resharding_is_killed_in_a_folder() {
    in_a_folder(hashes_and_sorted_sets_lose_nothing);
}

/// The same of the other two, with fewer kills and elements in the suite: what is put again and again has the value that was put last.
fn hashes_and_sorted_sets_lose_nothing(url: &str) {
    let (elements, kills) = (asked("LARDER_RESHARD_MEMBERS", 4_000), asked("LARDER_RESHARD_KILLS", 6));
    let scale = Scale { url, elements };
    for (group, all) in [("hash", "hash entries seen"), ("top", "top list seen --all")] {
        let line = |value: u64| move |n: u64| format!("e{n}\t{value}\n");
        let set = format!("{group} set seen --shards {} -", scale.shards(66));
        assert_eq!(put(url, &set, 0..elements, line(0)), elements);
        let whole = time_of_a_reshard(|| scale.reshard(40));
        let killed = reshard_and_kill((scale, group), kills, whole, [23, 100], |attempt| {
            // Those of the first tenth get another value, and ten more come.
            let more = elements + 10 * attempt;
            assert_eq!(put(url, &set, 0..elements / 10, line(attempt + 1)), 0, "{group}, attempt {attempt}");
            let from = Instant::now();
            assert_eq!(put(url, &set, more..more + 10, line(0)), 10, "{group}, attempt {attempt}");
            assert!(from.elapsed() < scale.add_max(), "{group}, attempt {attempt}: {:?}", from.elapsed());
        });
        scale.reshard(80);
        let attempts = killed.attempts;
        let value = |n: u64| if n < elements / 10 { attempts } else { 0 };
        let expected = (0..elements + 10 * attempts).map(|n| format!("e{n}\t{}", value(n)).into_bytes());
        let mut expected: Vec<Vec<u8>> = expected.collect();
        expected.sort_unstable();
        assert!(scale.on(all).sorted_lines() == expected, "{group}: something was lost, doubled, or set back");
        // The manifest, the map, of the sorted set its ends, and the shards.
        let keys = elements / 80 + if group == "top" { 3 } else { 2 };
        let found = scale.on("--json inspect seen").json();
        assert_eq!(found["keys"].to_string(), keys.to_string(), "{group}: what the dead have left is gone");
        scale.on("drop seen").exits(0);
    }
}
