//! Unique visitors through the command, on real servers.

mod common;

use common::{on, on_with_input};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

/// Days of a year: a test on the last of its milliseconds would take longer.
const NEW: &str = "--period 365d --expected 5000";

#[test]
fn visitors_are_added_counted_and_told_to_be_new() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        let on = |line: &str| on(&url, line);
        assert_eq!(on(&format!("unique add site {NEW} alice bob alice")).exits(0), "2\n");
        assert_eq!(on("unique add site --each bob carol").exits(0), "known bob\nnew carol\n");
        let told = on("--json unique add site dave bob --day 40").json();
        assert_eq!(told, json!({"name": "site", "period": 40, "new": 2, "known": 0, "unknown": 0}));
        assert_eq!(on("unique count site").exits(0), "3\n");
        assert_eq!(on("unique count site --day 39").exits(0), "0\n", "a day on which nobody came");
        assert_eq!(on("unique new site alice eve").exits(0), "eve\n");
        assert_eq!(on("unique new site alice").code(), 1);
        let stat = on("--json unique count site --stat").json();
        assert_eq!(
            (&stat["visitors"], &stat["expected"], &stat["outgrown"]),
            (&json!(3), &json!(5_000), &json!(false))
        );
        on("unique add blog --period 365d frank bob").exits(0);
        assert_eq!(on("unique union site blog").exits(0), "4\n");
        assert_eq!(on("--json unique union site --day 41 --days 3").json()["visitors"], 2);
        on("unique forget site --day 40").exits(0);
        assert_eq!(on("unique count site --day 40").exits(0), "0\n");
        assert_eq!(on("drop site").exits(0), "unique visitors\n");
    }
}

#[test]
fn visitors_come_from_standard_input() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let ids: String = (0..40_000).map(|n| format!("{}\n", n % 21_000)).collect();
    let add = format!("unique add site {NEW} --precision exact --ids-are integer -");
    assert_eq!(on_with_input(&url, &add, ids.as_bytes()).exits(0), "21000\n");
    assert_eq!(on(&url, "unique count site").exits(0), "21000\n");
    assert_eq!(on_with_input(&url, "unique new site -", b"5\n21000\n").exits(0), "21000\n");
    // More than a batch, and told in the order of the lines.
    let ids: String = (0..140_000).rev().map(|n| format!("{n}\n")).collect();
    let told: String =
        (0..140_000).rev().map(|n| format!("{} {n}\n", if n < 21_000 { "known" } else { "new" })).collect();
    assert!(on_with_input(&url, "unique add site --each -", ids.as_bytes()).exits(0) == told, "in their order");
    let raw = on_with_input(&url, &format!("unique add texts {NEW} --each -"), b"\xff\n");
    assert_eq!((raw.code(), &raw.stdout[..]), (0, &b"new \xff\n"[..]), "byte by byte");
    on_with_input(&url, "unique add site -", b"5\n-1\n").fails(2, "18446744073709551615");
    for line in ["unique add site -", "unique new site -"] {
        on_with_input(&url, line, b"5\n7\nx\n8\n").fails(2, "line 3: bad input: ids here are whole numbers");
    }
    assert!(!on(&url, "unique add site x").stderr.contains("line "));
    on(&url, "unique add site - 5").fails(2, "stands alone");
}

/// A day is made for half as many again as came the day before, and what a day without visitors would be made for is told.
#[test]
fn what_a_day_is_made_for_is_told_before_anybody_came_and_after() {
    let memcached = Memcached::start(Version::New, &[]);
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    for url in [memcached.url(), redis.url()] {
        let ids: String = (0..2_000).map(|n| format!("{n}\n")).collect();
        let add = format!("unique add site {NEW} --precision exact --day 10 -");
        assert_eq!(on_with_input(&url, &add, ids.as_bytes()).exits(0), "2000\n");
        let expected =
            |day: u64| on(&url, &format!("--json unique count site --stat --day {day}")).json()["expected"].clone();
        // Nobody came yet, and then somebody did.
        assert_eq!([10, 11, 12].map(expected), [5_000, 3_000, 5_000]);
        let none = on(&url, "--json unique count site --stat --day 11").json();
        let fields = on(&url, "--json unique count site --stat --day 10").json();
        let names = |object: &serde_json::Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&none), names(&fields));
        assert_eq!((&none["visitors"], &none["precision"], &none["shards"]), (&json!(0), &json!("exact"), &json!(0)));
        let plain = on(&url, "unique count site --stat --day 11").exits(0);
        assert_eq!(plain, "visitors 0\nprecision exact\nperiod 11\nexpected 3000\n");
        on(&url, "unique add site --day 11 alice").exits(0);
        // After a day of one visitor, and after one of none.
        on(&url, "unique add site --day 12 alice").exits(0);
        on(&url, "unique add site --day 14 alice").exits(0);
        assert_eq!([11, 12, 14].map(expected), [3_000, 2, 5_000]);
    }
}

#[test]
fn a_server_that_packs_less_is_told_with_its_limit_and_a_cure() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let url = server.url();
    let ids: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    // More than it was made for.
    let add = "unique add site --period 365d --expected 500 --precision exact --ids-are integer -";
    on_with_input(&url, add, ids.as_bytes()).exits(0);
    let stat = on(&url, "--json unique count site --stat").json();
    assert!(stat["unpacked_shards"].as_u64() > Some(0) && stat["outgrown"] == true, "{stat}");
    let most = (stat["largest_shard"].as_u64().unwrap() + 1).next_power_of_two();
    let plain = on(&url, "unique count site --stat").exits(0);
    assert!(plain.contains("than the server packs (set-max-intset-entries 512)"), "{plain}");
    assert!(plain.contains(&format!("set set-max-intset-entries to {most}: ")), "{plain}");
}

#[test]
fn counts_that_are_not_exact_state_their_standard_error() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let ids: String = (0..30_000).map(|n| format!("{n}\n")).collect();
    for (precision, error_max) in [("near:24", 100.0), ("sketch", 400.0)] {
        let name = precision.split(':').next().unwrap();
        let add = format!("unique add {name} --period 365d --expected 30000 --precision {precision} -");
        on_with_input(&url, &add, ids.as_bytes()).exits(0);
        let stat = on(&url, &format!("--json unique count {name} --stat")).json();
        let (visitors, error) = (stat["visitors"].as_f64().unwrap(), stat["standard_error"].as_f64().unwrap());
        assert!(error > 1.0 && error < error_max, "{stat}");
        assert!((visitors - 30_000.0).abs() < 5.0 * error, "{stat}");
        let plain = on(&url, &format!("unique count {name} --stat")).exits(0);
        assert!(plain.lines().any(|line| line == format!("standard error {error:.1}")), "{plain}");
        let plain = on(&url, &format!("unique count {name}")).exits(0);
        assert_eq!(plain, format!("{visitors}\n"));
        assert_eq!(on(&url, &format!("--json unique count {name}")).json()["standard_error"], stat["standard_error"]);
    }
}

/// The 25th of October 2026 has 25 hours in Berlin: it ends at 23:00 of that day in UTC, and began at 22:00 of the one before.
#[test]
fn days_are_those_of_a_zone() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let day = |time: &str| {
        on(&url, &format!("--json unique add site --zone europe/berlin {time} --at {time}")).json()["period"].clone()
    };
    let times = ["2026-10-24T21:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z", "2026-10-25T23:00:00Z"];
    assert_eq!(times.map(day), [20_750, 20_751, 20_751, 20_752].map(serde_json::Value::from));
    assert_eq!(on(&url, "unique count site --at 2026-10-25T12:00:00Z").exits(0), "2\n");
    let told = on(&url, "inspect site").exits(0);
    assert!(told.contains("Europe/Berlin"), "{told}");
    on(&url, "unique add site bob --offset +01:00").fails(8, "days of Europe/Berlin, not of an offset of 3600 s");
    on(&url, "unique add site bob --zone Asia/Tokyo").fails(8, "days of Europe/Berlin, not of Asia/Tokyo");
    on(&url, "unique add other bob --zone Europe/Atlantis").fails(2, "IANA time zone database");
    on(&url, "unique add other bob --zone Asia/Tokyo --offset +09:00").fails(2, "cannot be used with");
}

#[test]
fn what_is_wrong_is_said() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    for line in ["unique count n", "unique new n a", "unique union n", "unique add n --existing a"] {
        on(&url, line).fails(3, "absent (never created, or lost)");
        assert!(on(&url, line).stderr.contains("`larder unique add n ID` creates them"));
    }
    on(&url, &format!("unique add n {NEW} a")).exits(0);
    on(&url, "unique add n --precision sketch a").fails(8, "precision");
    on(&url, "unique add m --precision near:60 a").fails(2, "24 to 48");
    on(&url, "unique add n a --day 99999").fails(2, "ahead");
    on(&url, "set add n a").fails(8, "not a set");
    on(&url, "unique add s --precision sketch a b").exits(0);
    on(&url, "unique union n s").fails(2, "cannot be united");
}
