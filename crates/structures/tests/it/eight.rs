//! Eight clients, each with connections of its own, behind a network that cuts, loses and delivers late, on servers of every kind: what is there in the end is what
//! they were told, and a ninth client, which sees the server directly, reads nothing else meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use larder_core::SystemClock;
use larder_structures::log::Cursor;
use larder_structures::{Array, EventLog, Table};
use larder_testkit::redis::RedisVersion;
use larder_testkit::servers::Version;

use crate::array::support::agree;
use crate::log::support::texts;
use crate::support::memcached::COLUMNS;
use crate::support::scene::Scene;
use crate::table::support::churn;

/// Long enough to settle what a fault left open.
const PATIENCE: Duration = Duration::from_secs(30);

fn seed() -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    seed
}

/// In one shard the order is held against the model, too.
async fn arrays(scene: Scene, shards: u16) {
    let seed = seed();
    let options = || Array::options().shards(shards).dirtiness(64).timeout(PATIENCE);
    let fresh = options().open_or_create(&scene.direct().await, "a").await.unwrap();
    let mut handles = Vec::new();
    for client in scene.eight().await {
        handles.push(options().open(&client, "a").await.unwrap());
    }
    scene.worsen(seed, 0.03);
    let agreed = agree::churn(&handles, &fresh, seed, 30, || scene.calm(seed)).await;
    assert!(agreed.known > 10 * agreed.unknown, "{agreed:?}, {}, {shards} shards, seed {seed}", scene.column);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_an_array_agree_with_a_model_on_memcached() {
    for (version, shards) in [(Version::Old, 1), (Version::New, 1), (Version::Old, 3), (Version::New, 3)] {
        arrays(Scene::memcached((version, "auto")), shards).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_an_array_agree_with_a_model_on_redis_and_valkey() {
    for (version, shards) in [(RedisVersion::Redis8, 1), (RedisVersion::Redis7, 3), (RedisVersion::Valkey, 3)] {
        arrays(Scene::redis(version), shards).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_an_array_agree_with_a_model_on_a_served_folder() {
    for shards in [1, 3] {
        arrays(Scene::served_folder(), shards).await;
    }
}

/// How many of the 160 keys, of which some 140 are used, must be judged for certain at the least: of the others a put or a remove was unknown.
const KEYS_JUDGED_MIN: usize = 100;

/// With lives every put is a conditional write of its own kind: the table is another one, as far as faults go.
async fn tables(scene: Scene, has_lives: bool) {
    let seed = seed();
    let options = || Table::options().shards(2).ttl(has_lives).dirtiness(64).timeout(PATIENCE);
    let fresh = options().open_or_create(&scene.direct().await, "t").await.unwrap();
    let mut handles = Vec::new();
    for client in scene.eight().await {
        handles.push(options().open(&client, "t").await.unwrap());
    }
    scene.worsen(seed, 0.02);
    let agreed = churn(&handles, &fresh, seed, 60, || scene.calm(seed)).await;
    let what = format!("{agreed:?}, lives {has_lives}, {}, seed {seed}", scene.column);
    println!("{what}");
    assert!(agreed.known >= KEYS_JUDGED_MIN && agreed.known > agreed.unknown, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_a_table_agree_with_a_model_on_memcached() {
    for (version, has_lives) in
        [(Version::Old, false), (Version::New, false), (Version::Old, true), (Version::New, true)]
    {
        tables(Scene::memcached((version, "auto")), has_lives).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_a_table_agree_with_a_model_on_redis_and_valkey() {
    for (version, has_lives) in
        [(RedisVersion::Redis8, false), (RedisVersion::Redis8, true), (RedisVersion::Valkey, true)]
    {
        tables(Scene::redis(version), has_lives).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_a_table_agree_with_a_model_on_a_served_folder() {
    for has_lives in [false, true] {
        tables(Scene::served_folder(), has_lives).await;
    }
}

/// What must be told once, and what must not be, where it is known.
type Known = HashMap<String, Option<bool>>;

async fn logs(scene: Scene) {
    let seed = seed();
    let seconds = Duration::from_secs;
    let options = || {
        let options = EventLog::options().chunk(seconds(2)).retention(seconds(600));
        options.timeout(PATIENCE).clock(SystemClock::shared())
    };
    let direct = options().open_or_create(&scene.direct().await, "l").await.unwrap();
    let mut handles = Vec::new();
    for client in scene.eight().await {
        handles.push(options().open(&client, "l").await.unwrap());
    }
    scene.worsen(seed, 0.05);
    let mut tail = direct.tail(Cursor::default()).unwrap();
    let puts = (0..).zip(handles).map(|(client, log)| tokio::spawn(put(log, client, seed ^ client)));
    let clients: Vec<_> = puts.collect();
    let mut told = Vec::new();
    while clients.iter().any(|client| !client.is_finished()) {
        told.extend(texts(tail.poll().await.unwrap()));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut known = Known::new();
    for client in clients {
        known.extend(client.await.unwrap());
    }
    // What is still held back on the way arrives, and must not count twice.
    scene.calm(seed).await;
    told.extend(texts(tail.poll().await.unwrap()));
    let all = texts(direct.fetch(..).await.unwrap());
    for (who, found) in [("fetch", &all), ("tail", &told)] {
        let mut times: HashMap<&str, usize> = HashMap::new();
        found.iter().for_each(|text| *times.entry(text).or_default() += 1);
        assert!(times.keys().all(|text| known.contains_key(*text)), "{who} tells what nobody put");
        for (text, expected) in &known {
            let times = times.get(text.as_str()).copied().unwrap_or(0);
            let is_right = expected.map_or(times <= 1, |expected| times == usize::from(expected));
            assert!(is_right, "{who}: {text} {times} times, {expected:?}; {}, seed {seed}", scene.column);
        }
    }
    let unknown = known.values().filter(|known| known.is_none()).count();
    assert!(unknown <= known.len() / 10, "{unknown} of {} unknown; {}, seed {seed}", known.len(), scene.column);
}

/// Puts events of its own.
async fn put(log: EventLog, client: u64, seed: u64) -> Known {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut known = Known::new();
    for n in 0..80 {
        let text = format!("{client}-{n}-{:0len$}", 0, len = rng.usize(1..2_000));
        let outcome = log.put_at(log.now_ms() - rng.u64(0..10_000), &text).await;
        let is_put = match outcome {
            Ok(()) => Some(true),
            Err(error) if error.is_unknown() => None,
            Err(_) => Some(false),
        };
        known.insert(text, is_put);
    }
    known
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_a_log_lose_and_repeat_nothing_on_memcached() {
    for column in COLUMNS {
        logs(Scene::memcached(column)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_a_log_lose_and_repeat_nothing_on_redis_and_valkey() {
    for version in [RedisVersion::Redis8, RedisVersion::Valkey] {
        logs(Scene::redis(version)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_of_a_log_lose_and_repeat_nothing_on_a_served_folder() {
    logs(Scene::served_folder()).await;
}
