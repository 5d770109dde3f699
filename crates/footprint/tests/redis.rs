//! Reports and advice on real Redis and Valkey servers.

mod support;

use larder_core::StoreRef;
use larder_core::survey::DataType;
use larder_footprint::{Act, Reason, Report};
use larder_structures::{Set, ShardedHash, ShardedSet, ShardedSortedSet, UniqueVisitors};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use support::{group, hash, holds, look, open, plain_server, run, set, used};

#[tokio::test]
async fn a_set_that_a_setting_pushed_out_of_its_encoding_is_told_with_the_setting() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let members = |key: usize| (0..200).map(move |member| (100_000 + key * 1_000 + member).to_string());
        run(&plain, (0..50).map(|key| set(&format!("followers:{key}"), members(key)))).await;
        let before = look(&store, 100).await;
        let packed = group(&before, "followers:*", "intset");
        assert_eq!((packed.keys, packed.data_type, packed.reasons.len()), (50, DataType::Set, 0), "{version:?}");
        assert_eq!(packed.elements.unwrap().value, 10_000.0);
        // Members of over 32,767 take 4 bytes each.
        let each = packed.element_bytes().unwrap();
        assert!((4.0..6.0).contains(&each), "{version:?}: {each}, {:?}", &packed.measured[..3]);

        server.command(&["CONFIG", "SET", "set-max-intset-entries", "150"]);
        run(&plain, (0..50).map(|key| set(&format!("followers:{key}"), std::iter::once("900000".to_owned())))).await;
        let after = look(&store, 100).await;
        let unpacked = group(&after, "followers:*", "hashtable");
        let over = Reason::TooMany { setting: "set-max-intset-entries", limit: 150, largest: 201 };
        assert_eq!(unpacked.reasons, [(over, 1.0)], "{version:?}");
        assert!(unpacked.element_bytes().unwrap() > 4.0 * each, "{:?}", unpacked.element_bytes());
        assert!(unpacked.element_resident_bytes().unwrap() >= unpacked.element_bytes().unwrap());
        let advice = &after.advice[0];
        assert_eq!(advice.act.to_string(), "set-max-intset-entries 256", "{version:?}");
    }
}

#[tokio::test]
async fn structures_whose_shards_the_limits_pushed_out_are_told_by_name() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = open(&server).await;
    let plain: StoreRef = store.clone();
    Set::open_or_create(&plain, "tags").await.unwrap().add(["red", "green"]).await.unwrap();
    let seen = ShardedSet::open_or_create(&plain, "seen").await.unwrap();
    seen.add((0..2_000u32).map(|id| id.to_string())).await.unwrap();
    let site = UniqueVisitors::open_or_create(&plain, "site").await.unwrap();
    site.add(0..2_000u64).await.unwrap();
    let packed = look(&store, 1_000).await;
    assert!(packed.groups.iter().all(|group| !group.is_unpacked()), "{:#?}", packed.groups);
    assert_eq!(group(&packed, "\"seen\"", "intset").elements.unwrap().value, 2_000.0);
    assert_eq!(group(&packed, "\"site\"", "intset").elements.unwrap().value, 2_000.0);
    let of = |name: &[u8]| packed.structures.iter().find(|one| one.name.as_bytes() == name).unwrap();
    assert_eq!(of(b"seen").elements, Some(2_000.0));
    assert_eq!((of(b"tags").elements, of(b"tags").keys), (None, 2));

    server.command(&["CONFIG", "SET", "set-max-intset-entries", "16"]);
    seen.add((2_000..4_000u32).map(|id| id.to_string())).await.unwrap();
    let after = look(&store, 1_000).await;
    let fallen = group(&after, "\"seen\"", "hashtable");
    assert!(matches!(fallen.reasons[0].0, Reason::TooMany { setting: "set-max-intset-entries", limit: 16, .. }));
    let reshard = after.advice.iter().find(|one| matches!(one.act, Act::Settings(_))).unwrap();
    assert!(reshard.act.to_string().starts_with("set-max-intset-entries "), "{reshard:?}");
}

#[tokio::test]
async fn shards_are_made_for_the_limits_of_the_server() {
    for (version, setting) in [
        (RedisVersion::Redis7, "set-max-intset-entries"),
        (RedisVersion::Redis8, "set-max-listpack-entries"),
        (RedisVersion::Valkey, "set-max-listpack-entries"),
    ] {
        let limits = RedisOptions::new().arg("hash-max-listpack-entries", "32").arg(setting, "24");
        let server = RedisServer::start(version, &limits);
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let cities = ShardedHash::options().expected(3_000).open_or_create(&plain, "cities").await.unwrap();
        let seen = ShardedSet::options().expected(3_000).open_or_create(&plain, "seen").await.unwrap();
        // 188 and 250: half of what is packed, each.
        assert_eq!((cities.shards(), seen.shards()), (188, 250), "{version:?}");
        cities.set((0..3_000u32).map(|id| (id.to_string(), "Lund"))).await.unwrap();
        seen.add((0..3_000u32).map(|id| id.to_string())).await.unwrap();
        let report = look(&store, 300).await;
        let unpacked: u64 = report.groups.iter().filter(|group| group.is_unpacked()).map(|group| group.keys).sum();
        // Chance fills a shard in some thousands beyond twice its mean.
        assert!(unpacked <= 4, "{version:?}: {unpacked} shards are not packed");
    }
}

#[tokio::test]
async fn keys_of_a_life_that_is_over_are_told() {
    let server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let store = open(&server).await;
    let plain: StoreRef = store.clone();
    Set::open_or_create(&plain, "tags").await.unwrap().add(["red"]).await.unwrap();
    server.command(&["DEL", "L.tags.m"]);
    Set::open_or_create(&plain, "tags").await.unwrap().add(["red"]).await.unwrap();
    let report = look(&store, 10).await;
    let left: Vec<_> = report.advice.iter().filter(|one| matches!(one.act, Act::Remove { .. })).collect();
    assert_eq!(left.len(), 1, "{:#?}", report.groups);
    assert_eq!(left[0].owner.as_ref().unwrap().to_string(), "\"tags\" (left over)");
}

#[tokio::test]
async fn what_advice_claims_of_limits_is_what_applying_it_saves() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        server.command(&["CONFIG", "SET", "hash-max-listpack-entries", "128"]);
        let entries = |key: usize| {
            (0..200 + key % 50).map(move |field| (format!("field-{field}"), format!("value-{key}-{field}")))
        };
        run(&plain, (0..500).map(|key| hash(&format!("user:{key}"), entries(key)))).await;
        let report = look(&store, 100).await;
        let advice = report.advice.first().unwrap_or_else(|| panic!("{version:?}: {:#?}", report.groups));
        assert_eq!(advice.act.to_string(), "hash-max-listpack-entries 256", "{version:?}");
        let before = used(&server);
        server.command(&["CONFIG", "SET", "hash-max-listpack-entries", "256"]);
        // Written anew, as a restart from a snapshot would.
        server.command(&["DEBUG", "RELOAD"]);
        assert_eq!(server.command(&["OBJECT", "ENCODING", "user:0"]).text(), "listpack");
        holds(advice.saves_bytes, before - used(&server));
        assert!(look(&store, 100).await.advice.iter().all(|one| !matches!(one.act, Act::Settings(_))));
    }
}

#[tokio::test]
async fn what_advice_claims_of_shards_is_what_a_sharded_hash_saves() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let entries: Vec<(String, String)> =
            (0..50_000).map(|id| (format!("{id}"), format!("[\"City {id}\",\"NY\",\"US\"]"))).collect();
        run(&plain, entries.chunks(1_000).map(|part| hash("cities", part.iter().cloned()))).await;
        let report = look(&store, 100).await;
        let advice = &report.advice[0];
        let Act::Shard { shards, by: "larder hash", .. } = advice.act else { panic!("{advice:?}") };
        let before = used(&server);
        let options = ShardedHash::options().shards(u16::try_from(shards).unwrap());
        let sharded = options.open_or_create(&plain, "cities").await.unwrap();
        for part in entries.chunks(5_000) {
            sharded.set(part.iter().map(|(field, value)| (field.clone(), value.clone()))).await.unwrap();
        }
        server.command(&["DEL", "cities"]);
        holds(advice.saves_bytes, before - used(&server));
    }
}

#[tokio::test]
async fn what_advice_claims_of_sorted_sets_is_what_a_sharded_one_saves() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let scored: Vec<(String, f64)> =
            (0..30_000).map(|id| (format!("player-{id:06}"), f64::from(id) * 0.37)).collect();
        for part in scored.chunks(1_000) {
            let words = part.iter().flat_map(|(member, score)| [score.to_string(), member.clone()]);
            server.command(&["ZADD".to_owned(), "points".to_owned()].into_iter().chain(words).collect::<Vec<_>>());
        }
        let report = look(&store, 100).await;
        let advice = &report.advice[0];
        let Act::Shard { shards, by: "larder top", .. } = advice.act else { panic!("{advice:?}") };
        let before = used(&server);
        let options = ShardedSortedSet::options().shards(u16::try_from(shards).unwrap());
        let sharded = options.open_or_create(&plain, "players").await.unwrap();
        for part in scored.chunks(5_000) {
            sharded.set(part.iter().map(|(member, score)| (member.clone(), *score))).await.unwrap();
        }
        server.command(&["DEL", "points"]);
        holds(advice.saves_bytes, before - used(&server));
    }
}

#[tokio::test]
async fn what_advice_claims_of_short_strings_is_what_a_sharded_hash_saves() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = open(&server).await;
    let plain: StoreRef = store.clone();
    let value = |id: u32| format!("tok-{:08x}", id.wrapping_mul(2_654_435_761));
    for from in (0..100_000).step_by(1_000) {
        let words: Vec<String> = (from..from + 1_000).flat_map(|id| [format!("session:{id}"), value(id)]).collect();
        server.command(&[vec!["MSET".to_owned()], words].concat());
    }
    let report = look(&store, 200).await;
    let advice = &report.advice[0];
    let Act::Shard { shards, elements: 64, .. } = advice.act else { panic!("{advice:?}") };
    let before = used(&server);
    let options = ShardedHash::options().shards(u16::try_from(shards).unwrap());
    let sharded = options.open_or_create(&plain, "sessions").await.unwrap();
    for from in (0..100_000u32).step_by(5_000) {
        sharded.set((from..from + 5_000).map(|id| (id.to_string(), value(id)))).await.unwrap();
    }
    for from in (0..100_000).step_by(1_000) {
        let words: Vec<String> = (from..from + 1_000).map(|id| format!("session:{id}")).collect();
        server.command(&[vec!["DEL".to_owned()], words].concat());
    }
    // The table of all keys shrinks a piece at a time, as the server comes to it.
    let mut after = used(&server);
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        let now = used(&server);
        if now >= after {
            break;
        }
        after = now;
    }
    holds(advice.saves_bytes, before - after);
}

/// Sets of integers that a limit pushed out, and fit once it is what the advice says.
#[tokio::test]
async fn what_advice_claims_of_sets_of_integers_is_what_raising_their_limit_saves() {
    for version in RedisVersion::ALL {
        let server = plain_server(version);
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        server.command(&["CONFIG", "SET", "set-max-intset-entries", "150"]);
        let members = |key: usize| (0..200 + key % 50).map(move |at| (100_000 + key * 1_000 + at).to_string());
        run(&plain, (0..1_000).map(|key| set(&format!("followers:{key}"), members(key)))).await;
        let report = look(&store, 100).await;
        let advice = report.advice.first().unwrap_or_else(|| panic!("{version:?}: {:#?}", report.groups));
        assert_eq!(advice.act.to_string(), "set-max-intset-entries 256", "{version:?}");
        let before = used(&server);
        server.command(&["CONFIG", "SET", "set-max-intset-entries", "256"]);
        server.command(&["DEBUG", "RELOAD"]);
        assert_eq!(server.command(&["OBJECT", "ENCODING", "followers:0"]).text(), "intset");
        holds(advice.saves_bytes, before - used(&server));
        assert!(look(&store, 100).await.advice.iter().all(|one| !matches!(one.act, Act::Settings(_))));
    }
}

/// Over how many shards the first advice says to spread this structure, and what it claims that saves. What is used is to be looked at before: to draw members lets a server go on with moving
/// them into a larger table, and free the smaller one.
#[track_caller]
fn told_to_reshard(report: &Report, structure: &str) -> (u16, f64) {
    let advice = report.advice.first().unwrap_or_else(|| panic!("{:#?}", report.groups));
    let Act::Reshard { name, shards } = &advice.act else { panic!("{advice:?}") };
    assert_eq!(name.as_bytes(), structure.as_bytes());
    (u16::try_from(*shards).unwrap(), advice.saves_bytes)
}

#[tokio::test]
async fn what_advice_claims_of_a_sharded_hash_is_what_resharding_it_saves() {
    for version in RedisVersion::ALL {
        let server = plain_server(version);
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let cities = ShardedHash::options().shards(20).open_or_create(&plain, "cities").await.unwrap();
        let entries = (0..40_000u32).map(|id| (id.to_string(), format!("[\"City {id}\",\"NY\",\"US\"]")));
        cities.set(entries).await.unwrap();
        let before = used(&server);
        let (shards, claimed) = told_to_reshard(&look(&store, 100).await, "cities");
        cities.reshard(shards).await.unwrap();
        holds(claimed, before - used(&server));
        let after = look(&store, 100).await;
        assert!(after.groups.iter().all(|group| !group.is_unpacked()) && after.advice.is_empty(), "{after:#?}");
    }
}

#[tokio::test]
async fn what_advice_claims_of_a_sharded_set_of_integers_is_what_resharding_it_saves() {
    for version in RedisVersion::ALL {
        let server = plain_server(version);
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let seen = ShardedSet::options().shards(10).open_or_create(&plain, "seen").await.unwrap();
        seen.add((0..60_000u32).map(|id| (100_000 + id).to_string())).await.unwrap();
        let before = used(&server);
        let (shards, claimed) = told_to_reshard(&look(&store, 100).await, "seen");
        seen.reshard(shards).await.unwrap();
        holds(claimed, before - used(&server));
        let after = look(&store, 1_000).await;
        assert!(after.groups.iter().all(|group| !group.is_unpacked()) && after.advice.is_empty(), "{after:#?}");
    }
}

/// Of dense numbers more shards have as many each: they are told to become smaller, and are packed then.
#[tokio::test]
async fn what_advice_claims_of_dense_numbers_is_what_smaller_shards_save() {
    for version in RedisVersion::ALL {
        let server = plain_server(version);
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let dense = |report: &Report| {
            let told = report.advice.iter().find_map(|advice| match advice.act {
                Act::ReshardDense { per_shard, .. } => Some((per_shard, advice.saves_bytes)),
                _ => None,
            });
            told.unwrap_or_else(|| panic!("{version:?}: {:#?}", report.advice))
        };
        let paid = ShardedSet::options().dense(1_000).shards(60).open_or_create(&plain, "paid").await.unwrap();
        paid.add((0..60_000u32).map(|id| id.to_string())).await.unwrap();
        let before = used(&server);
        let (per_shard, claimed) = dense(&look(&store, 100).await);
        paid.reshard_dense(per_shard).await.unwrap();
        holds(claimed, before - used(&server));
        assert_eq!((per_shard, paid.stat().await.unwrap().unpacked_shards), (509, Some(0)), "{version:?}");
        assert!(look(&store, 100).await.advice.is_empty());

        let cities = ShardedHash::options().dense(2_000).shards(20).open_or_create(&plain, "cities").await.unwrap();
        let entries = (0..40_000u32).map(|id| (id.to_string(), format!("[\"City {id}\",\"NY\",\"US\"]")));
        cities.set(entries).await.unwrap();
        let before = used(&server);
        let (per_shard, claimed) = dense(&look(&store, 100).await);
        cities.reshard_dense(per_shard).await.unwrap();
        holds(claimed, before - used(&server));
        assert_eq!((per_shard, cities.stat().await.unwrap().unpacked_shards), (64, Some(0)), "{version:?}");
        assert!(look(&store, 100).await.advice.is_empty());
    }
}

/// Servers that pack sets of texts gain by smaller shards, and Redis 7.0, which packs none, is not told to make some.
#[tokio::test]
async fn what_advice_claims_of_a_sharded_set_of_texts_is_what_resharding_it_saves() {
    for version in RedisVersion::ALL {
        let server = plain_server(version);
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        let seen = ShardedSet::options().shards(40).open_or_create(&plain, "seen").await.unwrap();
        seen.add((0..40_000u32).map(|id| format!("visitor-{id:06}"))).await.unwrap();
        let before = used(&server);
        let report = look(&store, 100).await;
        if version == RedisVersion::Redis7 {
            assert!(report.advice.iter().all(|one| !matches!(one.act, Act::Reshard { .. })), "{:#?}", report.advice);
            continue;
        }
        let (shards, claimed) = told_to_reshard(&report, "seen");
        seen.reshard(shards).await.unwrap();
        holds(claimed, before - used(&server));
    }
}

#[tokio::test]
async fn a_sample_is_within_its_error_of_all() {
    let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new());
    let store = open(&server).await;
    let plain: StoreRef = store.clone();
    let entries = |key: usize| (0..1 + key % 97).map(move |field| (format!("f{field}"), "x".repeat(key % 31)));
    run(&plain, (0..3_000).map(|key| hash(&format!("user:{key}"), entries(key)))).await;
    let all = look(&store, 10_000).await;
    let sampled = look(&store, 200).await;
    let (all, sampled) = (group(&all, "user:*", "listpack"), group(&sampled, "user:*", "listpack"));
    assert_eq!((all.bytes.error, all.bytes.sampled, sampled.bytes.sampled), (0.0, 3_000, 200));
    let share = sampled.bytes.share().unwrap();
    assert!((0.01..0.2).contains(&share), "{share}");
    // Twice the error: 1 in 16,000 samples is further off.
    assert!((sampled.bytes.value - all.bytes.value).abs() < 2.0 * sampled.bytes.error, "{sampled:?}");
    let truth: usize = (0..3_000).map(|key| 1 + key % 97).sum();
    assert_eq!(all.elements.unwrap().value, truth as f64);
}

#[tokio::test]
async fn it_asks_as_a_guest_on_a_server_that_is_in_use() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server).await;
        let plain: StoreRef = store.clone();
        run(&plain, (0..3_000).map(|key| set(&format!("s:{key}"), ["a", "b"].iter().map(ToString::to_string)))).await;
        let written = |server: &RedisServer| server.info("persistence", "rdb_changes_since_last_save");
        let before = written(&server);
        look(&store, 20).await;
        assert_eq!(server.calls("keys"), 0, "{version:?}");
        assert!(server.calls("scan") >= 6, "{version:?}: in pieces of 500");
        assert!(server.calls("memory|usage") <= 20, "{version:?}: of a sample");
        assert_eq!(written(&server), before, "{version:?}: nothing is written");
    }
}

#[tokio::test]
async fn a_user_who_may_not_ask_is_told_for_which_command() {
    let acl = "user app on >secret ~* &* +@all -object\n";
    let options = RedisOptions::new().acl(acl, "admin", "admin-secret");
    let server = RedisServer::start(RedisVersion::Redis7, &options);
    let url = server.url().replace("redis://", "redis://app:secret@");
    let config = larder_store_redis::Config::from_url(&url).unwrap();
    let store = std::sync::Arc::new(larder_store_redis::RedisStore::connect(config).await.unwrap());
    let plain: StoreRef = store.clone();
    Set::open_or_create(&plain, "tags").await.unwrap();
    let error = larder_footprint::report(&plain, &*store, &Default::default(), &mut |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), larder_core::ErrorKind::Config);
    assert!(error.to_string().contains("OBJECT ENCODING"), "{error}");
}
