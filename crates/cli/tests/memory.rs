//! `larder memory …` on real servers.

mod common;

use common::{finish, larder, on, on_with_input, until};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::Value;

/// The group of an owner and an encoding, of a report in JSON.
#[track_caller]
fn group<'a>(report: &'a Value, owner: &str, encoding: &str) -> &'a Value {
    let groups = report["groups"].as_array().unwrap();
    let is_it = |group: &&Value| group["owner"] == owner && group["encoding"] == encoding;
    groups.iter().find(is_it).unwrap_or_else(|| panic!("no {owner} {encoding} in {report:#}"))
}

/// 60 sets of 200 numbers each, over a limit of 150.
fn pushed_out(version: RedisVersion) -> RedisServer {
    let server = RedisServer::start(version, &RedisOptions::new());
    server.command(&["CONFIG", "SET", "set-max-intset-entries", "150"]);
    for key in 0..60 {
        let members = (0..200).map(|member| (key * 1_000 + member).to_string());
        let words: Vec<String> = ["SADD".to_owned(), format!("followers:{key}")].into_iter().chain(members).collect();
        server.command(&words);
    }
    server
}

#[test]
fn the_report_and_the_advice_name_the_limit_and_what_lifting_it_saves() {
    for version in RedisVersion::ALL {
        let server = pushed_out(version);
        on(&server.url(), "set add tags a b c").exits(0);
        let report = on(&server.url(), "--json memory report --elements").json();
        let found = group(&report, "followers:*", "hashtable");
        assert_eq!((found["keys"].as_u64(), found["unpacked"].as_bool()), (Some(60), Some(true)), "{version:?}");
        assert_eq!(found["reasons"][0]["setting"], "set-max-intset-entries", "{version:?}");
        assert!(found["element_bytes"].as_f64().unwrap() > 20.0 && found["element_resident_bytes"].is_f64(), "{found}");
        assert_eq!(found["bytes"]["error"], 0.0, "all 60 were measured: {found}");
        assert_eq!(
            (&report["structures"][0]["name"], &report["structures"][0]["elements"]),
            (&"tags".into(), &3.0.into())
        );
        let plain = on(&server.url(), "memory report --rate 0").exits(0);
        assert!(plain.contains("100 % of keys: 200 elements are over set-max-intset-entries 150"), "{plain}");
        assert!(plain.contains('█') && !plain.contains('\x1b'), "bars, and colours for terminals only: {plain}");

        let advice = on(&server.url(), "memory advise").exits(0);
        let lines: Vec<&str> = advice.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["set-max-intset-entries 256"], "{advice}");
        let json = on(&server.url(), "--json memory advise").json();
        assert!(json["advice"][0]["saves_bytes"].as_f64().unwrap() > 200_000.0, "{json}");
        // As a server would read it.
        let words: Vec<&str> = lines[0].split(' ').collect();
        assert_eq!(server.command(&["CONFIG", "SET", words[0], words[1]]).text(), "OK");
    }
}

/// Beside settings, the advice names the sizes of shards: of what is too large to be packed whole, and of many small keys.
#[test]
fn the_advice_names_the_sizes_of_shards() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    for user in 0..5_000 {
        let field = format!("user:{user}");
        server.command(&["HSET", "logins", &field, "20260131"]);
    }
    let advice = on(&server.url(), "memory advise").exits(0);
    assert!(advice.contains("larder hash: 79 shards of 64"), "{advice}");
    let json = on(&server.url(), "--json memory advise").json();
    let told = &json["advice"][0];
    assert_eq!(
        (&told["act"], &told["shards"], &told["elements_a_shard"]),
        (&"shard".into(), &79.into(), &64.into()),
        "{json}"
    );
}

#[test]
fn a_plot_is_a_picture_and_one_that_cannot_be_written_is_told() {
    let server = pushed_out(RedisVersion::Redis7);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.svg");
    on(&server.url(), &format!("memory report --plot {}", file.display())).exits(0);
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
    assert!(picture.contains("followers:* (set, hashtable)"), "{picture}");
    on(&server.url(), "memory report --plot /nowhere/memory.svg").fails(2, "/nowhere/memory.svg cannot be written");
}

#[test]
fn memcached_old_and_new_are_reported_item_by_item() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let ids: String = (0..2_000).map(|id| format!("visitor-{id}\n")).collect();
        on_with_input(&server.url(), "set add seen --shards 8 -", ids.as_bytes()).exits(0);
        let report = on(&server.url(), "--json memory report --elements").json();
        assert_eq!(report["keys"].as_u64(), Some(server.stat("curr_items")), "{version:?}");
        assert_eq!(report["bytes"]["value"].as_f64(), Some(server.stat("bytes") as f64), "{version:?}");
        let seen = &report["structures"][0];
        assert_eq!((seen["keys"].as_u64(), seen["elements"].as_f64()), (Some(9), Some(2_000.0)), "{version:?}: {seen}");
        assert!(on(&server.url(), "memory report").exits(0).contains("\"seen\""));
        assert!(on(&server.url(), "memory advise").exits(0).starts_with('#'));
    }
}

/// It saves nothing to look whether data is live.
#[test]
fn what_is_to_be_looked_at_is_told_apart_from_what_saves() {
    let server = RedisServer::start(RedisVersion::ALL[0], &RedisOptions::new());
    on(&server.url(), "set add tags a b").exits(0);
    server.command(&["DEL", "L.tags.m"]);
    let report = on(&server.url(), "memory report").exits(0);
    let (_, told) = report.split_once("To look at\n").unwrap_or_else(|| panic!("{report}"));
    assert!(told.starts_with("find out whether \"tags\" is live"), "{report}");
    assert!(told.contains("Nothing would save a hundredth of it.") && !report.contains("What would save"), "{report}");
    assert!(!report.contains("  0 B"), "{report}");
    let advice = on(&server.url(), "memory advise").exits(0);
    assert!(advice.starts_with("# To look at\n# find out whether"), "{advice}");
    assert!(advice.contains("nothing would save a hundredth of that"), "{advice}");
}

#[test]
fn files_and_the_users_own_store_are_reported_too() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().display());
    on(&url, "set add tags a b").exits(0);
    let report = on(&url, "--json memory report --elements").json();
    assert_eq!((report["keys"].as_u64(), report["structures"][0]["elements"].as_f64()), (Some(2), Some(2.0)));
    assert!(report["nodes"][0]["disk_bytes"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn what_cannot_be_told_or_asked_is_refused_with_the_reason() {
    let fake = ClassicFake::start();
    on(&format!("memcached://{}", fake.addr()), "memory report").fails(8, "unsupported");
    let server = Memcached::start(Version::New, &["-o", "no_lru_crawler"]);
    on(&server.url(), "memory report").fails(8, "lru_crawler");
    on(&server.url(), "memory report --samples 1").fails(2, "2..=1000000");
    finish(&mut larder(["memory"])).fails(2, "larder memory report");
    let done = finish(larder(["memory", "report"]).env("LARDER_STORE", "redis://127.0.0.1:1"));
    assert_eq!(done.code(), 6, "{done:?}");
}

/// Our own server has no slabs, so that none of its items is cut into chunks.
#[test]
fn items_of_our_own_server_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut server = larder(["serve", "--store", "memory:", "-s"]).arg(&socket).spawn().unwrap();
    until("the server", || socket.exists());
    let url = format!("memcached+unix://{}", socket.display());
    on(&url, "set add tags a b c").exits(0);
    let report = on(&url, "--json memory report").json();
    server.kill().unwrap();
    server.wait().unwrap();
    let encodings: Vec<&Value> = report["groups"].as_array().unwrap().iter().map(|group| &group["encoding"]).collect();
    assert!(!encodings.is_empty() && encodings.iter().all(|encoding| **encoding == "item"), "{report:#}");
}
