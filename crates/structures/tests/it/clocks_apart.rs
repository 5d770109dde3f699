//! Clients whose clocks are minutes apart, on real servers that go by clocks of their own: as far as the guarantees reach, nothing is lost, and none reports a loss.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_core::{
    Clock, ClockRef, Durability, ErrorKind, Key, ManualClock, Op, Remaining, StoreExt, StoreRef, SystemClock, Want,
};
use larder_structures::log::Cursor;
use larder_structures::{EventLog, Name, Table, Visitors, registry};
use larder_testkit::redis::RedisVersion;
use larder_testkit::servers::Version;

use crate::log::support::texts;
use crate::support::scene::Scene;
use crate::table::support::{flagged, lose, sorted_keys};

/// How far off each client's clock is, in seconds: three minutes behind the right one, or ahead of it, and nearly the five that clocks may be apart.
const OFF_S: [[i64; 3]; 2] = [[-180, 0, 115], [-115, 0, 180]];

fn scenes() -> Vec<Scene> {
    vec![
        Scene::memcached((Version::Old, "auto")),
        Scene::memcached((Version::New, "auto")),
        Scene::memcached((Version::New, "classic")),
        Scene::redis(RedisVersion::Redis8),
        Scene::redis(RedisVersion::Valkey),
        Scene::served_folder(),
    ]
}

/// Runs a test on each server, all at once, with each set of clocks.
async fn everywhere<F: Future<Output = ()> + Send + 'static>(test: fn(Arc<Scene>, [i64; 3]) -> F) {
    let mut tests = Vec::new();
    for scene in scenes() {
        let scene = Arc::new(scene);
        for off_s in OFF_S {
            println!("{} {off_s:?}", scene.column);
            tests.push(tokio::spawn(test(scene.clone(), off_s)));
        }
    }
    for test in tests {
        test.await.expect("it holds");
    }
}

/// A clock that goes, and is off.
#[derive(Debug)]
struct Off {
    right: SystemClock,
    by_s: i64,
}

impl Clock for Off {
    fn monotonic(&self) -> Duration {
        self.right.monotonic()
    }

    fn wall(&self) -> Duration {
        off(self.right.wall(), self.by_s)
    }
}

fn off(time: Duration, by_s: i64) -> Duration {
    let by = Duration::from_secs(by_s.unsigned_abs());
    if by_s < 0 { time - by } else { time + by }
}

fn going(by_s: i64) -> ClockRef {
    Arc::new(Off { right: SystemClock::new(), by_s })
}

/// Clocks that stand until they are turned, off by so much from now.
fn standing(off_s: [i64; 3]) -> [Arc<ManualClock>; 3] {
    let now = SystemClock::new().wall();
    off_s.map(|by_s| Arc::new(ManualClock::at(off(now, by_s))))
}

/// A name that the tests on one server do not share.
fn name(what: &str, off_s: [i64; 3]) -> String {
    format!("{what}{}", off_s[0].unsigned_abs())
}

async fn life_of(store: &StoreRef, key: Key) -> Option<Duration> {
    let item = store.run_one(Default::default(), Op::get(key, Want::TTL)).await.unwrap().into_item().unwrap();
    match item.ttl {
        Remaining::For(life) => Some(life),
        // The classic dialect does not tell.
        _ if !store.profile().remaining_ttl => None,
        other => panic!("{other:?} is no life"),
    }
}

async fn generation(store: &StoreRef, name: &str) -> u64 {
    let name = Name::new(name).unwrap();
    registry::find(store, Default::default(), &name).await.unwrap().unwrap().generation
}

async fn visitors(scene: Arc<Scene>, off_s: [i64; 3]) {
    const PERIOD_S: u64 = 60;
    const STEP: Duration = Duration::from_secs(5);
    let name = name("v", off_s);
    let clocks = standing(off_s);
    let mut sites = Vec::new();
    for clock in &clocks {
        let options = Visitors::options().period(Duration::from_secs(PERIOD_S)).clock(clock.clone());
        sites.push(options.open_or_create(&scene.direct().await, &name).await.unwrap());
    }
    let (mut hits, mut read) = (0, 0);
    for step in 0..180u32 {
        // Four minutes of hits, and more than ten in which they are read.
        for (who, site) in sites.iter().enumerate().filter(|_| step < 48) {
            site.hit().await.unwrap();
            site.hit_visitor(format!("{who} {step}")).await.unwrap();
            hits += 2;
        }
        // Whatever another clock says, nobody takes a window for a lost one.
        for site in &sites {
            let who = |error| panic!("{}, {off_s:?}, step {step}: {error}", scene.column);
            site.interpolated().await.unwrap_or_else(who);
            site.current().await.unwrap_or_else(who);
        }
        // The one behind reads each window as it ends: by then everybody has left it.
        let (before, after) = (clocks[0].wall(), clocks[0].wall() + STEP);
        for clock in &clocks {
            clock.advance(STEP);
        }
        if before.as_secs() / PERIOD_S != after.as_secs() / PERIOD_S {
            read += sites[0].get().await.unwrap();
        }
    }
    assert_eq!(read, hits, "{}, {off_s:?}", scene.column);
    windows_outlive_all_clocks(&scene, &name, &clocks, &sites).await;
}

/// A window that any of them makes lives, by the server's clock, until the one behind is done with it by his own.
async fn windows_outlive_all_clocks(scene: &Scene, name: &str, clocks: &[Arc<ManualClock>; 3], sites: &[Visitors]) {
    const KEPT: u64 = 2;
    let store = scene.direct().await;
    let generation = generation(&store, name).await;
    let behind = clocks[0].wall();
    for (site, clock) in sites.iter().zip(clocks) {
        site.hit().await.unwrap();
        let period = site.period();
        let window = clock.wall().as_secs() / period.as_secs();
        let key = Key::new(format!("L.{name}.v.{generation:016x}.w{window}")).unwrap();
        let done = period * u32::try_from(window + KEPT + 1).unwrap();
        if let Some(life) = life_of(&store, key).await {
            // Other clients may have made it before, a moment ago.
            assert!(life + Duration::from_secs(2) > done - behind, "{}: {life:?}", scene.column);
        }
        // Read where he may, and never lost.
        let of_window = UNIX_EPOCH + period * u32::try_from(window).unwrap();
        assert!(site.get_at(of_window).await.unwrap() >= 1, "{}", scene.column);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn visitors_whose_clocks_are_minutes_apart_are_counted_and_nobody_reports_a_loss() {
    everywhere(visitors).await;
}

async fn logs(scene: Arc<Scene>, off_s: [i64; 3]) {
    let name = name("l", off_s);
    let (chunk, retention) = (Duration::from_secs(10), Duration::from_secs(600));
    let mut logs = Vec::new();
    for by_s in off_s {
        let options = EventLog::options().chunk(chunk).retention(retention).clock(going(by_s));
        logs.push(options.open_or_create(&scene.direct().await, &name).await.unwrap());
    }
    let mut tails = Vec::new();
    for log in &logs {
        tails.push((log.tail(Cursor::default()).unwrap(), Vec::new()));
    }
    // Each in the order that its own clock gives it; and all of them in that of all clocks.
    for round in 0..3 {
        for (who, log) in logs.iter().enumerate() {
            log.put(format!("{who} {round}")).await.unwrap();
        }
        for (tail, told) in &mut tails {
            told.extend(texts(tail.poll().await.unwrap()));
        }
    }
    let all: Vec<String> = (0..3).flat_map(|who| (0..3).map(move |round| format!("{who} {round}"))).collect();
    for (log, (_, told)) in logs.iter().zip(&mut tails) {
        assert_eq!(texts(log.fetch(..).await.unwrap()), all, "{}, {off_s:?}", scene.column);
        told.sort();
        assert_eq!(*told, all, "{}, {off_s:?}: told by a tail", scene.column);
    }
    oldest_events_stay_while_anybody_wants_them(&scene, &name, &logs).await;
}

/// The oldest event that each of them takes: made by the one whose clock is ahead, it lives until it is past the retention of the one behind.
async fn oldest_events_stay_while_anybody_wants_them(scene: &Scene, name: &str, logs: &[EventLog]) {
    let store = scene.direct().await;
    let generation = generation(&store, name).await;
    let (chunk_ms, retention_ms) = (logs[0].chunk().as_millis() as u64, logs[0].retention().as_millis() as u64);
    for log in logs {
        let time_ms = log.now_ms() - retention_ms + 5_000;
        log.put_at(time_ms, "old").await.unwrap();
        let index = time_ms / chunk_ms;
        let part = Key::new(format!("L.{name}.e.{generation:016x}.{index:x}-0")).unwrap();
        let last_ms = (index + 1) * chunk_ms - 1;
        let wanted_ms = (last_ms + retention_ms).saturating_sub(logs[0].now_ms());
        if let Some(life) = life_of(&store, part).await {
            assert!(life + Duration::from_secs(2) > Duration::from_millis(wanted_ms), "{}: {life:?}", scene.column);
        }
        let found = texts(log.fetch(time_ms..=time_ms).await.unwrap());
        assert_eq!(found, ["old"], "{}", scene.column);
        // The one behind wants it for longer, and has it.
        assert_eq!(texts(logs[0].fetch(time_ms..=time_ms).await.unwrap()), ["old"], "{}", scene.column);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_clients_whose_clocks_are_minutes_apart_are_told_once_to_all() {
    everywhere(logs).await;
}

async fn tables(scene: Arc<Scene>, off_s: [i64; 3]) {
    let name = name("t", off_s);
    let (short, long) = (Duration::from_secs(3), Duration::from_secs(3600));
    let mut tables = Vec::new();
    for by_s in off_s {
        let options = Table::options().ttl(true).clock(going(by_s));
        tables.push(options.open_or_create(&scene.direct().await, &name).await.unwrap());
    }
    let store = scene.direct().await;
    let is_lossless = store.profile().durability == Durability::Disk;
    for (who, table) in tables.iter().enumerate() {
        table.put_for(format!("short {who}"), "v", short).await.unwrap();
        table.put_for(format!("long {who}"), "v", long).await.unwrap();
        table.put_for(format!("lost {who}"), "v", long).await.unwrap();
    }
    let put = SystemTime::now();
    for who in 0..3 {
        for what in ["short", "long", "lost"] {
            if put.elapsed().unwrap_or_default() < short - Duration::from_secs(1) || what != "short" {
                flagged(&store, &name, format!("{what} {who}").as_bytes()).await;
            }
        }
        lose(&store, &name, format!("lost {who}").as_bytes()).await;
    }
    // By the server's clock its life is over for all, whoever gave it, and that is no loss.
    tokio::time::sleep(short + Duration::from_secs(2)).await;
    for (reader, table) in tables.iter().enumerate() {
        for who in 0..3 {
            let say = |what: &str| format!("{}, {off_s:?}: {what} of {who}, read by {reader}", scene.column);
            let over =
                table.get(format!("short {who}")).await.unwrap_or_else(|error| panic!("{}: {error}", say("short")));
            assert_eq!(over, None, "{}", say("short"));
            assert_eq!(table.get(format!("long {who}")).await.unwrap().unwrap(), "v", "{}", say("long"));
            match table.get(format!("lost {who}")).await {
                Err(lost) => assert_eq!(lost.kind(), ErrorKind::Lost, "{}: {lost}", say("lost")),
                // A folder loses nothing: somebody deleted it.
                Ok(found) => assert!(found.is_none() && is_lossless, "{}", say("lost")),
            }
        }
        let found = table.entries_and_lost().await.unwrap();
        let mut entries: Vec<_> = found.entries.into_iter().map(|(key, _)| key).collect();
        entries.sort();
        assert_eq!(entries, ["long 0", "long 1", "long 2"], "{}", scene.column);
        assert_eq!(found.lost.len(), if is_lossless { 0 } else { 3 }, "{}: {:?}", scene.column, found.lost);
        // The list alone tells a key until the life is over by the reader's clock.
        let keys = sorted_keys(table).await;
        for who in 0..3 {
            let is_listed = keys.contains(&format!("short {who}").into());
            let may_be_listed = off_s[reader] < off_s[who];
            // Where nothing is lost, whoever has read the entries has taken it off the list.
            let is_right = if is_lossless { may_be_listed || !is_listed } else { is_listed == may_be_listed };
            assert!(is_right, "{}, {off_s:?}: {who}, read by {reader}: {is_listed}", scene.column);
        }
    }
    lives_that_are_over_by_another_clock_are_read(&scene, &tables).await;
}

/// An entry whose life is over by the clock of the one ahead is there as long as the server says so, for him too.
async fn lives_that_are_over_by_another_clock_are_read(scene: &Scene, tables: &[Table]) {
    tables[0].put_for("now", "v", Duration::from_secs(30)).await.unwrap();
    for table in tables {
        assert_eq!(table.get("now").await.unwrap().unwrap(), "v", "{}", scene.column);
        assert!(sorted_keys(table).await.iter().any(|key| key == "now"), "{}", scene.column);
    }
    assert!(tables[2].remove("now").await.unwrap(), "{}", scene.column);
    for table in tables {
        assert_eq!(table.get("now").await.unwrap(), None, "{}", scene.column);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_in_a_table_end_by_the_servers_clock_for_clients_minutes_apart() {
    everywhere(tables).await;
}
