//! `larder inspect` and `larder ls`, on real servers.

mod common;

use common::on;
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::redis::{Eviction, RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

#[test]
fn inspect_tells_each_kind_and_what_it_promises_here() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let on = |line: &str| on(&server.url(), line);
        on("set add tags a b c --shards 2").exits(0);
        on("set remove tags a").exits(0);
        let found = on("--json inspect tags").json();
        assert_eq!((&found["kind"], &found["shards"], &found["keys"]), (&json!("set"), &json!(2), &json!(3)));
        assert_eq!((&found["elements"], &found["missing"]), (&json!(2), &json!(0)));
        assert!(found["stale_bytes"].as_u64().unwrap() > 0, "{found}");
        assert!(found["guarantee"].as_str().unwrap().contains("restart of its server"), "{found}");
        let plain = on("inspect tags").exits(0);
        assert!(plain.starts_with("kind set\nlayout 1\ngeneration "), "{plain}");
        assert!(
            plain.contains("\nparameter shards: 2\nparameter members are spread by: XXH3-64\nstore memcached 1.6."),
            "{plain}"
        );

        on("counter add hits").exits(0);
        assert_eq!(on("--json inspect hits").json()["parameters"], json!({"slots": "16", "copies": "1"}));
        on("counter add quick --fast").exits(0);
        assert_eq!(on("--json inspect quick").json()["kind"], "fast counter");
        on("lock run nightly -- true").exits(0);
        assert_eq!(on("--json inspect nightly").json()["parameters"]["state"], "free");
        on("visitors hit site --period 5m").exits(0);
        let visitors = on("--json inspect site").json();
        assert_eq!(visitors["parameters"]["period"], "300s", "{visitors}");
        assert!(visitors["live_bytes"].as_u64().unwrap() > 20 && visitors["stale_bytes"].is_u64(), "{visitors}");
        on("log put audit started").exits(0);
        let log = on("--json inspect audit").json();
        assert_eq!(log["elements"], 1, "{log}");
        assert!(log["live_bytes"].as_u64().unwrap() > 34 && log["stale_bytes"].is_u64(), "{log}");
        on("inspect nothing").fails(3, "absent");
    }
}

#[test]
fn what_endangers_the_data_is_warned_of_and_does_not_stop_the_command() {
    let options = RedisOptions::new().maxmemory(64 << 20, Eviction::AllKeysLru);
    let redis = RedisServer::start(RedisVersion::Redis7, &options);
    let added = on(&redis.url(), "counter add hits");
    added.exits(0);
    assert!(added.stderr.starts_with("warning: the server evicts when it is full"), "{}", added.stderr);
    assert!(added.stderr.contains("set maxmemory-policy noeviction"), "{}", added.stderr);
    let found = on(&redis.url(), "--json inspect hits");
    assert!(found.json()["warnings"][0].as_str().unwrap().contains("allkeys-lru"));
    assert!(found.stderr.starts_with("{\"warning\":\"the server evicts"), "{}", found.stderr);
    let safe = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    assert_eq!(on(&safe.url(), "counter add hits").stderr, "");
}

#[test]
fn inspect_costs_what_its_help_says() {
    let server = Memcached::start(Version::New, &[]);
    on(&server.url(), "counter add hits").exits(0);
    assert!(on(&server.url(), "--trace inspect hits").stderr.contains("round trips: 2,"));
    on(&server.url(), "set add tags a").exits(0);
    assert!(on(&server.url(), "--trace inspect tags").stderr.contains("round trips: 4,"));
}

#[test]
fn ls_lists_what_there_is_by_name_on_old_and_new_servers() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let on = |line: &str| on(&server.url(), line);
        assert_eq!(on("ls").exits(0), "");
        on("set add tags a --shards 3").exits(0);
        on("counter add hits").exits(0);
        on("lock run nightly -- true").exits(0);
        assert_eq!(on("ls").exits(0), "counter\thits\nlock\tnightly\nset\ttags\n", "{version:?}");
        assert_eq!(on("ls --kind set").exits(0), "set\ttags\n");
        let first = on("--json ls --kind counter").json();
        assert_eq!((&first["name"], &first["kind"], &first["shards"]), (&json!("hits"), &json!("counter"), &json!(16)));
        on("drop hits").exits(0);
        assert_eq!(on("ls --timeout 30s").exits(0), "lock\tnightly\nset\ttags\n");
    }
}

#[test]
fn what_another_program_put_where_a_manifest_belongs_hides_no_structure() {
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    on(&redis.url(), "counter add hits").exits(0);
    redis.command(&["SET", "L.x.m", "hello"]);
    redis.command(&["RPUSH", "L.y.m", "hello"]);
    let listed = on(&redis.url(), "ls");
    let names: Vec<String> = listed.exits(0).lines().map(|line| line.split('\t').nth(1).unwrap().to_owned()).collect();
    assert_eq!(names, ["hits", "x", "y"], "{}", listed.stderr);
    on(&redis.url(), "memory report").exits(0);
}

#[test]
fn ls_says_where_a_server_cannot_tell() {
    let fake = ClassicFake::start();
    on(&format!("memcached://{}", fake.addr()), "ls").fails(8, "unsupported");
    let server = Memcached::start(Version::New, &["-o", "no_lru_crawler"]);
    on(&server.url(), "ls").fails(8, "lru_crawler");
}

#[test]
fn a_cache_tells_its_entries_and_what_stands_under_a_key() {
    let redis = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let memcached = Version::ALL.map(|version| Memcached::start(version, &[]));
    let urls = [memcached[0].url(), memcached[1].url(), redis.url()];
    for url in &urls {
        let on = |line: &str| on(url, line);
        on("cache get pages /one --ttl 5m --stale 1m --else printf 0123456789").exits(0);
        on("cache get pages /two --ttl 1s --stale 5m --else printf x").exits(0);
        on("counter add hits").exits(0);
        let found = on("--json inspect pages").json();
        assert_eq!((&found["kind"], &found["layout"], &found["keys"]), (&json!("cache"), &json!(1), &json!(1)));
        assert_eq!((&found["entries"], &found["entries_are_all"]), (&json!(2), &json!(true)), "{found}");
        assert!(found["guarantee"].as_str().unwrap().contains("one rebuild of a key at a time"), "{found}");
        let one = on("--json inspect pages --entry /one --count-for 0s").json();
        assert_eq!((&one["entry"], &one["entry_value_bytes"]), (&json!("fresh"), &json!(10)), "{one}");
        assert!(one["entry_bytes"].as_u64().unwrap() > 30 && one["entries"].is_null(), "{one}");
        let left = one["entry_served_for_s"].as_f64().unwrap();
        assert!((300.0..=361.0).contains(&left) && one["entry_age_s"].as_f64().unwrap() < 30.0, "{one}");
        std::thread::sleep(std::time::Duration::from_millis(2_100));
        let two = on("inspect pages --entry /two").exits(0);
        assert!(two.contains("\nentries 2\nentries_are_all true\nentry stale\nentry_value_bytes 1\n"), "{two}");
        assert!(on("inspect pages --entry /three").exits(0).contains("\nentry none\n"));
        // To look at a stale entry is not to ask for it: nobody rebuilds it now.
        assert!(on("inspect pages --entry /two").exits(0).contains("\nentry stale\n"));
        on("inspect hits --entry /one").fails(2, "is a counter");
    }
}
