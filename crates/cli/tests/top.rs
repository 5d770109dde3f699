//! The sharded sorted set through the command, on real servers.

mod common;

use common::{larder, on, on_with_input};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

fn each_server(test: impl Fn(&str)) {
    for version in Version::ALL {
        let memcached = Memcached::start(version, &[]);
        test(&memcached.url());
    }
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    test(&redis.url());
}

#[test]
fn members_are_scored_ranked_and_removed_and_the_set_is_resharded() {
    each_server(|url| {
        let on = |line: &str| on(url, line);
        assert_eq!(on("top set points --shards 8 --kept 3 ann 12 bob 7.5 cid -3 dan 9").exits(0), "4\n");
        assert_eq!(on("top set points eve 9 bob 8").exits(0), "1\n");
        assert_eq!(on("top list points").exits(0), "ann\t12\neve\t9\ndan\t9\n");
        assert_eq!(on("top list points 1").exits(0), "ann\t12\n");
        assert_eq!(on("top bottom points 2").exits(0), "cid\t-3\nbob\t8\n");
        assert_eq!(on("top add points bob 0.5 cid -1 fay 1").exits(0), "8.5\n-4\n1\n");
        assert_eq!(on("top get points ann cid").exits(0), "12\n-4\n");
        let missing = on("top get points ann zoe");
        assert_eq!((missing.code(), missing.text().as_str()), (1, "12\n"));
        on("reshard points --shards 20").exits(0);
        let stat = on("--json top stat points").json();
        // Options of all commands stand anywhere; those of the screen do not stand with a verb.
        assert_eq!(on("top --json stat points").json(), stat);
        on("top --once stat points").fails(2, "--once");
        on("top --interval 2s set points top 1").fails(2, "--interval");
        let figures = ["shards", "members", "kept"].map(|figure| stat[figure].clone());
        assert_eq!(figures, [json!(20), json!(6), json!(3)]);
        assert_eq!(on("top remove points ann zoe").exits(0), "1\n");
        assert_eq!(on("top list points 1").exits(0), "eve\t9\n");
        let row = on("--json top list points 1").json();
        assert_eq!(row, json!({"member": "eve", "score": 9.0}));
        let all: Vec<Vec<u8>> =
            [&b"bob\t8.5"[..], b"cid\t-4", b"dan\t9", b"eve\t9", b"fay\t1"].map(<[u8]>::to_vec).into();
        assert_eq!(on("top list points --all").sorted_lines(), all);
        assert_eq!(on("top set points top inf").exits(0), "1\n");
        assert_eq!(on("--json top get points top").json(), json!({"member": "top", "score": "inf"}));
        assert_eq!(on("--json inspect points").json()["elements"], 6);
        assert_eq!(on("drop points").exits(0), "sharded sorted set\n");
    });
}

#[test]
fn members_come_from_standard_input() {
    each_server(|url| {
        let lines: String = (0..5_000).map(|n| format!("m{n}\t{}\n", n * 7_919 % 5_003)).collect();
        let set = "top set points --expected 5000 --kept 10 -";
        assert_eq!(on_with_input(url, set, lines.as_bytes()).exits(0), "5000\n");
        let mut scores: Vec<(u64, String)> = (0..5_000).map(|n| (n * 7_919 % 5_003, format!("m{n}"))).collect();
        scores.sort_unstable();
        let line = |(score, member): &(u64, String)| format!("{member}\t{score}\n");
        let top: String = scores.iter().rev().take(10).map(line).collect();
        let bottom: String = scores.iter().take(10).map(line).collect();
        assert_eq!(on(url, "top list points").exits(0), top);
        assert_eq!(on(url, "top bottom points").exits(0), bottom);
        // Several batches are under way at a time, and told in the order of the lines.
        let members: String = (0..5_000).map(|n| format!("m{n}\n")).collect();
        let told: String = (0..5_000).map(|n| format!("{}\n", n * 7_919 % 5_003)).collect();
        assert!(on_with_input(url, "top get points -", members.as_bytes()).exits(0) == told, "in their order");
        let nothing: String = (0..5_000).map(|n| format!("m{n}\t0\n")).collect();
        assert!(on_with_input(url, "top add points -", nothing.as_bytes()).exits(0) == told, "in their order");
        // All that stand at the top, and could have moved up without a look at the shards, and some more.
        let removed: String = scores.iter().rev().take(25).map(|(_, member)| format!("{member}\n")).collect();
        assert_eq!(on_with_input(url, "top remove points -", removed.as_bytes()).exits(0), "25\n");
        let top: String = scores.iter().rev().skip(25).take(10).map(line).collect();
        assert_eq!(on(url, "top list points").exits(0), top);
        assert_eq!(on(url, "top list points --all").sorted_lines().len(), 4_975);
    });
}

#[test]
fn what_is_wrong_is_said() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    for line in
        ["top get n a", "top remove n a", "top list n", "top bottom n", "top stat n", "top set n --existing a 1"]
    {
        on(&url, line).fails(3, "absent (never created, or lost)");
    }
    on(&url, "top set n a").fails(2, "has no score");
    on(&url, "top set n a x").fails(2, "the score of \"a\" is not a number: \"x\"");
    on(&url, "top set n a nan").fails(2, "not a number");
    on_with_input(&url, "top set other -", b"no tab\n").fails(2, "no tab");
    on(&url, "top set n --kept 1001 a 1").fails(2, "1000");
    on(&url, "top set n --kept 5 a 1").exits(0);
    on(&url, "top list n 6").fails(2, "keeps 5 members at each end, not 6");
    on(&url, "top list n 6 --all").fails(2, "--all");
    on(&url, "sharded-set add n a").fails(8, "holds a sharded sorted set, not a sharded set");
    on(&url, "top set ids --dense 4 --shards 2 0 1").exits(0);
    on(&url, "top set ids 8 1").fails(2, "0 to 7");
    for (line, input) in [
        ("top set other -", "a\t1\nno tab\n"),
        ("top add other -", "a\t1\nb\tmuch\nc\tmore\n"),
        ("top set ids -", "7\t1\n8\t1\n"),
        ("top add ids -", "7\t1\n8\t1\n"),
        ("top get ids -", "0\n8\n"),
        ("top remove ids -", "7\nx\n"),
    ] {
        on_with_input(&url, line, input.as_bytes()).fails(2, "line 2: ");
    }
}

/// Writers are killed midway, at whatever they are about; the ends agree with the shards whenever somebody looks.
#[test]
fn writers_that_are_killed_leave_ends_that_agree() {
    each_server(|url| {
        on(url, "top set points --shards 4 --kept 5 first 0").exits(0);
        for kill in 0..12u64 {
            // All of them at the top, one after the other.
            let lines: String = (0..4_000).map(|n| format!("m{}\t{}\n", n % 50, kill * 10_000 + n)).collect();
            let mut child = larder(["top", "add", "points", "-"])
                .env("LARDER_STORE", url)
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let feeder = std::thread::spawn(move || _ = std::io::Write::write_all(&mut stdin, lines.as_bytes()));
            std::thread::sleep(std::time::Duration::from_millis(5 + kill * 3));
            child.kill().unwrap();
            child.wait().unwrap();
            feeder.join().unwrap();
            let mut all: Vec<(f64, String)> = on(url, "top list points --all")
                .exits(0)
                .lines()
                .map(|line| {
                    let (member, score) = line.split_once('\t').unwrap();
                    (score.parse().unwrap(), member.to_owned())
                })
                .collect();
            all.sort_by(|(x, a), (y, b)| x.total_cmp(y).then_with(|| a.cmp(b)));
            let line = |(score, member): &(f64, String)| format!("{member}\t{score}\n");
            let top: String = all.iter().rev().take(5).map(line).collect();
            let bottom: String = all.iter().take(5).map(line).collect();
            assert_eq!(on(url, "top list points").exits(0), top, "after kill {kill}");
            assert_eq!(on(url, "top bottom points").exits(0), bottom, "after kill {kill}");
        }
    });
}
