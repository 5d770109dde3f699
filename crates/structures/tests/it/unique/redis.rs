//! Unique visitors in sets of Redis and Valkey: what the server itself says of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::steady::metered;
use larder_core::native::{Native, NativeReply};
use larder_core::{Ctx, Effect, ErrorKind, Key, Op, StoreRef};
use larder_layers::Counting;
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore};
use larder_structures::{IdKind, Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion, Value};

async fn client(server: &RedisServer) -> Arc<Counting> {
    let config = Config::from_url(&format!("{}?timeout_ms=20000&connect_timeout_ms=10000", server.url())).unwrap();
    let store: StoreRef = Arc::new(RedisStore::connect(config).await.unwrap());
    Arc::new(metered(store))
}

/// Periods of a year: a test on the last of its milliseconds would take longer.
fn options(precision: Precision) -> UniqueVisitorsOptions {
    UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).precision(precision).ids(IdKind::Integer)
}

/// The keys of the shards, which are all that is a set.
fn shards(server: &RedisServer) -> Vec<String> {
    let Value::Array(page) = server.command(&["SCAN", "0", "COUNT", "1000000", "TYPE", "set"]) else {
        return Vec::new();
    };
    page[1].text().lines().map(str::to_owned).collect()
}

/// The encodings of all shards, and what they take together, as the server tells over the store.
async fn look(server: &RedisServer, store: &StoreRef) -> (Vec<String>, u64) {
    let keys: Vec<Key> = shards(server).into_iter().map(|key| Key::new(key).unwrap()).collect();
    let ask = |what: Native| keys.iter().map(move |key| Op::native(key.clone(), what.clone())).collect();
    let (mut encodings, mut bytes) = (Vec::new(), 0);
    for batch in [ask(Native::Encoding), ask(Native::MemoryBytes)] {
        for reply in store.run(Ctx::default(), batch).await {
            match reply.unwrap().into_native().unwrap() {
                NativeReply::Text(Some(encoding)) => encodings.push(encoding),
                NativeReply::Size(Some(size)) => bytes += size,
                other => panic!("{other:?}"),
            }
        }
    }
    (encodings, bytes)
}

/// How many are not packed.
fn unpacked(encodings: &[String]) -> u64 {
    encodings.iter().filter(|encoding| *encoding != "intset").count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_stay_packed_and_their_members_small() {
    const VISITORS: u64 = 40_000;
    for version in RedisVersion::ALL {
        for precision in [Precision::Compact, Precision::Exact] {
            let server = RedisServer::start(version, &RedisOptions::new());
            let store = client(&server).await;
            let shared: StoreRef = store.clone();
            let site = options(precision).expected(VISITORS).open_or_create(&shared, "site").await.unwrap();
            site.add([0u64]).await.unwrap();
            let before = store.counts();
            // Ids that are far apart, and 32 bits wide or a little more.
            let told = site.add((1..VISITORS).map(|n| n * 700_001)).await.unwrap();
            assert!(told.iter().filter(|told| **told == Novelty::New).count() as u64 >= VISITORS - 2, "{precision:?}");
            let batches = store.counts().since(&before).round_trips;
            assert_eq!(batches, 3, "40,000 ids and their shards fill three batches, which go out together");
            let (encodings, bytes) = look(&server, &shared).await;
            assert_eq!(unpacked(&encodings), 0, "{version:?} {precision:?}: {encodings:?}");
            let each = bytes as f64 / VISITORS as f64;
            assert!(each < 4.9, "{version:?} {precision:?}: {each} bytes a visitor");
            let stat = site.stat(site.current().unwrap()).await.unwrap().unwrap();
            assert_eq!((stat.unpacked_shards, stat.shards as usize), (0, shards(&server).len()));
            assert!(stat.largest_shard < 512 && stat.count.stored + 2 >= VISITORS, "{stat:?}");
            assert!(site.add((0..VISITORS).map(|n| n * 700_001)).await.unwrap().iter().all(|is| *is == Novelty::Known));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_follow_the_servers_limit_and_tell_when_it_pushes_them_out() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().arg("set-max-intset-entries", "64"));
    let store: StoreRef = client(&server).await;
    let site = options(Precision::Compact).expected(5_000).open_or_create(&store, "site").await.unwrap();
    let year = site.current().unwrap();
    site.add(0..5_000u64).await.unwrap();
    let stat = site.stat(year).await.unwrap().unwrap();
    assert!(stat.largest_shard < 64 && stat.unpacked_shards == 0, "{stat:?}");
    assert_eq!(unpacked(&look(&server, &store).await.0), 0);
    // Twice as many as expected: right, and no longer small.
    site.add(5_000..10_000u64).await.unwrap();
    let stat = site.stat(year).await.unwrap().unwrap();
    assert_eq!((stat.count.visitors, stat.is_outgrown()), (10_000, true));
    assert_eq!(stat.unpacked_shards, unpacked(&look(&server, &store).await.0));
    assert!(stat.unpacked_shards > 0, "{stat:?}");
    // A limit that is raised packs nothing again, and the server is believed, not its limit.
    server.command(&["CONFIG", "SET", "set-max-intset-entries", "4096"]);
    let other: StoreRef = client(&server).await;
    let later = options(Precision::Compact).expected(5_000).open_or_create(&other, "site").await.unwrap();
    assert_eq!(later.stat(year).await.unwrap().unwrap().unpacked_shards, stat.unpacked_shards);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exact_set_keeps_every_number_and_unites_with_what_is_kept_otherwise() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store: StoreRef = client(&server).await;
    let memory: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let edges = [0, 1, u64::from(u32::MAX), 1 << 32, 1 << 45, (1 << 45) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
    for expected in [1, 3_000, 200_000] {
        let options = options(Precision::Exact).expected(expected);
        let name = format!("site-{expected}");
        let site = options.open_or_create(&store, &name).await.unwrap();
        let elsewhere = options.open_or_create(&memory, &name).await.unwrap();
        assert_eq!(site.add(edges).await.unwrap(), [Novelty::New; 9]);
        assert_eq!(site.add(edges).await.unwrap(), [Novelty::Known; 9]);
        let year = site.current().unwrap();
        assert_eq!(site.are_new_in(year, [2u64, 1 << 32]).await.unwrap(), [Novelty::New, Novelty::Known]);
        site.add(100..2_000u64).await.unwrap();
        elsewhere.add(edges.into_iter().chain(1_000..3_000)).await.unwrap();
        let near = options.clone().precision(Precision::NearExact { bits: 48 });
        let near = near.open_or_create(&memory, format!("near-{expected}")).await.unwrap();
        near.add(2_500..4_000u64).await.unwrap();
        let both = UniqueVisitors::union([(&site, year), (&elsewhere, year)]).await.unwrap();
        assert_eq!((both.visitors, both.missed), (9 + 2_900, 0.0));
        let all = UniqueVisitors::union([(&site, year), (&elsewhere, year), (&near, year)]).await.unwrap();
        assert_eq!(all.visitors, 9 + 3_900);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_to_a_shard_that_is_gone_is_a_loss_and_makes_nothing() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store: StoreRef = client(&server).await;
    let options = options(Precision::Compact).keep(Duration::from_secs(86_400));
    let site = options.expected(10).open_or_create(&store, "site").await.unwrap();
    site.add([1u64, 2, 3]).await.unwrap();
    let [shard] = &shards(&server)[..] else { panic!("one shard") };
    let life: i64 = server.command(&["PTTL", shard]).text().parse().unwrap();
    assert!(life > 86_400_000, "{life}");
    server.command(&["DEL", shard]);
    for _ in 0..2 {
        let error = site.add([4u64]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert_eq!(site.count().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(error.known_effect(), Effect::NotApplied, "{error}");
        assert_eq!(server.command(&["EXISTS", shard]), Value::Int(0), "a part of it was made anew");
    }
    site.forget(site.current().unwrap()).await.unwrap();
    assert_eq!(site.add([4u64]).await.unwrap(), [Novelty::New]);
    // Foreign members are no visitors.
    let [shard] = &shards(&server)[..] else { panic!("one shard") };
    server.command(&["SADD", shard, "mallory"]);
    let today = site.current().unwrap();
    let error = UniqueVisitors::union([(&site, today), (&site, today)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_everything_is_a_loss_and_never_a_zero() {
    let mut server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let store: StoreRef = client(&server).await;
    let site = options(Precision::Compact).open_or_create(&store, "site").await.unwrap();
    site.add([1u64]).await.unwrap();
    server.restart_empty();
    let mut told = site.count().await.unwrap_err();
    for _ in 0..200 {
        if told.kind() != ErrorKind::Unavailable {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        told = site.count().await.unwrap_err();
    }
    for error in [told, site.count().await.unwrap_err(), site.add([1u64]).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// Where the server's own sets do not serve, shards are items here as elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_take_the_round_trips_that_are_documented() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = client(&server).await;
    let shared: StoreRef = store.clone();
    for precision in [Precision::NEAR_EXACT, Precision::Exact, Precision::SKETCH] {
        let options = options(precision).ids(IdKind::Any).expected(100_000);
        let site = options.open_or_create(&shared, precision.as_str()).await.unwrap();
        site.add(["first"]).await.unwrap();
        let cost = async |ids: std::ops::Range<u64>| {
            let before = store.counts();
            site.add(ids).await.unwrap();
            store.counts().since(&before).round_trips
        };
        assert_eq!(cost(0..10_000).await, 2, "{precision:?}: new ones in all shards");
        let known = if precision == Precision::SKETCH { 1..=2 } else { 1..=1 };
        assert!(known.contains(&cost(0..10_000).await), "{precision:?}: none is new");
        assert_eq!(cost(10_000..10_001).await, 2, "{precision:?}: one");
        let before = store.counts();
        assert!(site.count().await.unwrap().visitors > 9_000);
        assert_eq!(store.counts().since(&before).round_trips, 1, "{precision:?}: a count");
    }
}

/// What the primary of a third of the slots was asked: what it read from sockets but for the replies of its replica, and how often it ran each command.
struct Asked {
    reads: u64,
    calls: BTreeMap<String, u64>,
}

impl Asked {
    fn look(server: &RedisServer) -> Asked {
        let told = server.command(&["INFO", "ALL"]).text();
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is no number"));
        let pairs: Vec<(&str, &str)> = told.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let calls = pairs.iter().filter_map(|(name, value)| {
            let calls = value.strip_prefix("calls=")?.split(',').next()?;
            Some((name.strip_prefix("cmdstat_")?.to_owned(), number(calls)))
        });
        let calls: BTreeMap<String, u64> = calls.collect();
        let reads = pairs.iter().find(|(name, _)| *name == "total_reads_processed").map(|(_, reads)| number(reads));
        Asked { reads: reads.unwrap() - calls.get("replconf").unwrap_or(&0), calls }
    }

    /// What came since an earlier look: commands that were run, and reads. The later look is one, and one the end of the connection of the earlier.
    fn since(&self, before: &Asked) -> (BTreeMap<String, u64>, u64) {
        let more = |(name, calls): (&String, &u64)| (name.clone(), calls - before.calls.get(name).unwrap_or(&0));
        let is_other = |(name, calls): &(String, u64)| *calls > 0 && name != "info" && name != "replconf";
        (self.calls.iter().map(more).filter(is_other).collect(), (self.reads - before.reads).saturating_sub(2))
    }
}

/// One batch of adds reaches each primary of a cluster as one pipeline: a script a shard that it serves, all of them read at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_adds_to_a_cluster_is_one_pipeline_a_primary() {
    const SHARDS: u64 = 60;
    let cluster = RedisCluster::start(RedisVersion::Redis7);
    let primaries = &cluster.nodes()[..3];
    let config = ClusterConfig::from_url(&format!("{}?timeout_ms=20000&connect_timeout_ms=10000", cluster.url()));
    let store = Arc::new(RedisClusterStore::connect(config.unwrap()).await.unwrap());
    let shared: StoreRef = store.clone();
    let counting = metered(shared);
    let site = options(Precision::Compact).expected(SHARDS * 424);
    let site = site.open_or_create(&(Arc::new(counting.clone()) as StoreRef), "site").await.unwrap();
    // The period is made, and every primary knows the script.
    site.add(0..1_000u64).await.unwrap();
    let stat = site.stat(site.current().unwrap()).await.unwrap().unwrap();
    assert!((SHARDS..=SHARDS + 2).contains(&u64::from(stat.shards)), "{stat:?}");
    for primary in primaries {
        let idle = (0..5).map(|_| (Asked::look(primary), Asked::look(primary)));
        let idle: Vec<_> = idle.map(|(before, after)| after.since(&before)).collect();
        assert!(idle.contains(&(BTreeMap::new(), 0)), "others ask, too: {idle:?}");
    }
    let mut least_reads = [u64::MAX; 3];
    for batch in 1..=5u64 {
        let before: Vec<Asked> = primaries.iter().map(Asked::look).collect();
        let (trips, batches) = (store.stats().round_trips, counting.counts());
        let told = site.add(batch * 1_000..batch * 1_000 + 200).await.unwrap();
        assert_eq!(told, [Novelty::New; 200]);
        assert_eq!(counting.counts().since(&batches).round_trips, 1, "one batch of the structure's");
        assert_eq!(store.stats().round_trips - trips, 3, "and one pipeline a primary");
        let mut scripts = 0;
        for (at, (primary, before)) in primaries.iter().zip(&before).enumerate() {
            let (mut calls, reads) = Asked::look(primary).since(before);
            // The script itself, and what it runs in the server.
            let sent = calls.remove("evalsha").unwrap_or(0);
            let within = [calls.remove("smismember"), calls.remove("sadd")];
            assert!(calls.is_empty() && sent > 0 && within.iter().all(Option::is_some), "{at}: {sent}, {calls:?}");
            scripts += sent;
            least_reads[at] = least_reads[at].min(reads);
        }
        // Of 200 ids in 60 shards two are left out in the mean.
        assert!(scripts <= u64::from(stat.shards) && scripts > SHARDS - 12, "{scripts} of {} shards", stat.shards);
    }
    assert_eq!(least_reads, [1; 3], "a primary reads all of a batch at once");
}
