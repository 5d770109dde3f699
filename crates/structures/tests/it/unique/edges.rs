//! Unique visitors at the edges of what they promise: limits, clocks, options, what a crash leaves, in memory.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{
    Batch, Ctx, Durability, Effect, Error, ErrorKind, Eviction, Key, ManualClock, Profile, PutMode, Run, Store,
    StoreExt, StoreRef, Ttl,
};
use larder_store_memory::MemoryStore;
use larder_structures::{IdKind, Name, Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions, registry};
use larder_testkit::faulty::{Fault, Faulty};

use crate::support::far::Far;
use crate::support::hooked::{Hooked, fail};
use crate::support::shaped::Shaped;
use crate::support::sieve::Sieve;
use crate::support::steady::{metered, steady};
use crate::visitors::support::NoLives;

const SECOND: Duration = Duration::from_secs(1);
/// The first second of a day.
const START_S: u64 = 20_000 * 86_400;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Periods of a year: a test on the last of its milliseconds would take longer.
fn options() -> UniqueVisitorsOptions {
    steady();
    UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).expected(1)
}

/// Periods of a second, by a clock that is turned by hand.
fn seconds(clock: &Arc<ManualClock>) -> UniqueVisitorsOptions {
    steady();
    UniqueVisitors::options().period(SECOND).expected(1).clock(clock.clone())
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(START_S)))
}

async fn open(store: &StoreRef) -> UniqueVisitors {
    options().open_or_create(store, "site").await.unwrap()
}

/// A server that evicts, as far as it says of itself.
fn as_a_server(store: &StoreRef, eviction: Eviction) -> StoreRef {
    Shaped::over(store, |profile| {
        profile.durability = Durability::Server;
        profile.eviction = eviction;
    })
}

#[tokio::test]
async fn a_union_of_one_period_is_its_count() {
    let store = memory();
    // But for sketches, whose union has an estimate of its own.
    let all = [Precision::Exact, Precision::Compact, Precision::NearExact { bits: 24 }];
    for (precision, ids) in
        all.into_iter().flat_map(|precision| [(precision, IdKind::Any), (precision, IdKind::Integer)])
    {
        let name = format!("{}-{}", precision.as_str(), ids.as_str());
        let site = options().precision(precision).ids(ids).open_or_create(&store, &name).await.unwrap();
        site.add(0..3_000u64).await.unwrap();
        let united = UniqueVisitors::union([(&site, site.current().unwrap())]).await.unwrap();
        assert_eq!(united, site.count().await.unwrap(), "{name}");
    }
}

/// Of each no more is read at a time than 256 shards: one is far ahead of the other.
#[tokio::test]
async fn periods_of_few_and_of_many_shards_unite() {
    let store = memory();
    let few = open(&store).await;
    let many = options().expected(500_000).open_or_create(&store, "many").await.unwrap();
    few.add(0..2_000u64).await.unwrap();
    many.add(1_000..3_000u64).await.unwrap();
    let year = few.current().unwrap();
    assert!(many.stat(year).await.unwrap().unwrap().shards > 256);
    for parts in [[(&few, year), (&many, year)], [(&many, year), (&few, year)]] {
        assert_eq!(UniqueVisitors::union(parts).await.unwrap().visitors, 3_000);
    }
}

/// Near-exact shards are as large as where they live lets them be.
#[tokio::test]
async fn near_exact_shards_fill_48_kb_in_the_process_and_10_on_a_server() {
    let memory = memory();
    for (store, bytes) in [(memory.clone(), 49_152.0), (as_a_server(&memory, Eviction::Never), 10_240.0)] {
        let near = options().precision(Precision::NEAR_EXACT).expected(2_000_000);
        let site = near.open_or_create(&store, format!("site-{bytes}")).await.unwrap();
        site.add([1u64]).await.unwrap();
        let shards = site.stat(site.current().unwrap()).await.unwrap().unwrap().shards;
        // Of 2 million visitors one takes 12.5 bits.
        let filled = 2_000_000.0 * 12.5 / 8.0 / f64::from(shards) / bytes;
        assert!((0.9..1.0).contains(&filled), "{shards} shards fill {filled} of {bytes} bytes");
    }
}

#[tokio::test]
async fn only_a_server_that_evicts_has_shards_padded() {
    let cache: StoreRef = Arc::new(MemoryStore::builder().bytes_max(64 << 20).evict(true).build().unwrap());
    for (store, is_padded) in [
        (cache, false),
        (as_a_server(&memory(), Eviction::Never), false),
        (as_a_server(&memory(), Eviction::WhenFull), true),
    ] {
        let site = open(&store).await;
        site.add([1u64]).await.unwrap();
        let padded_bytes = site.stat(site.current().unwrap()).await.unwrap().unwrap().padded_bytes;
        assert_eq!(padded_bytes > 0, is_padded, "{}", store.profile());
    }
}

/// A shard that is padded gives up what it is padded with before it is full.
#[tokio::test]
async fn a_padded_shard_takes_as_many_visitors_as_another() {
    let mut taken = Vec::new();
    for is_padded in [false, true] {
        let memory: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(16_640).build().unwrap());
        let store = if is_padded { as_a_server(&memory, Eviction::WhenFull) } else { memory };
        let site = open(&store).await;
        let mut added = 0u64;
        let error = loop {
            match site.add(added..added + 50).await {
                Ok(_) => added += 50,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        taken.push(added);
    }
    assert!(taken[0] == taken[1] && taken[0] > 4_000, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_asked_a_few_times() {
    let hooked = Hooked::new(&memory());
    let counting = metered(hooked.shared());
    let shared: StoreRef = Arc::new(counting.clone());
    let site = open(&shared).await;
    site.add([0u64]).await.unwrap();
    (1..=70).for_each(|nth| hooked.refuse(nth));
    let before = counting.counts();
    let error = site.add([1u64]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(counting.counts().since(&before).round_trips, 8);
}

#[tokio::test]
async fn periods_that_are_over_or_have_no_number_say_so() {
    let clock = clock();
    let site = seconds(&clock).keep(10 * SECOND).open_or_create(&memory(), "site").await.unwrap();
    let now = site.current().unwrap();
    assert_eq!(now, START_S);
    for (period, said) in [
        (1 << 40, "the last one is 1099511627775"),
        (now + 93_601, "begins 93601000 ms ahead of this clock; the limit is 93600000 ms"),
        (now - 11, "kept for 10000 ms after its end, and that was 0 ms ago"),
        (now - 14, "kept for 10000 ms after its end, and that was 3000 ms ago"),
    ] {
        let error = site.count_in(period).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    for kept in [now - 10, now + 93_600] {
        assert_eq!(site.count_in(kept).await.unwrap().visitors, 0);
    }
}

#[tokio::test]
async fn the_last_period_that_has_a_number_takes_visitors() {
    const LAST: u64 = (1 << 40) - 1;
    let clock = Far::at(LAST);
    let options = UniqueVisitors::options().period(SECOND).expected(1).clock(clock.clone());
    let site = options.open_or_create(&memory(), "site").await.unwrap();
    assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
    assert_eq!(site.count_in(LAST).await.unwrap().visitors, 1);
    clock.set(LAST + 1);
    for error in [site.add([1u64]).await.unwrap_err(), site.add_in(LAST + 1, [1u64]).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains("1099511627775"), "{error}");
    }
}

/// A count of one that is known is 1 round trip, of one that was forgotten 2.
#[tokio::test]
async fn a_handle_knows_64_periods() {
    let clock = clock();
    let counting = metered(memory());
    let store: StoreRef = Arc::new(counting.clone());
    let site = seconds(&clock).open_or_create(&store, "site").await.unwrap();
    let first = site.current().unwrap() - 63;
    for period in first..first + 64 {
        site.add_in(period, [period]).await.unwrap();
    }
    let before = counting.counts();
    for period in first..first + 64 {
        assert_eq!(site.count_in(period).await.unwrap().visitors, 1);
    }
    assert_eq!(counting.counts().since(&before).round_trips, 64);
    clock.advance(SECOND);
    site.add([7u64]).await.unwrap();
    let before = counting.counts();
    site.count_in(first).await.unwrap();
    assert_eq!(counting.counts().since(&before).round_trips, 2, "a 65th has put out the first");
}

/// By a clock that is ahead of the maker's as far as clocks may be apart, a period is over before its keys have ended.
#[tokio::test]
async fn periods_are_looked_after_only_once_they_are_over_by_everybodys_clock() {
    let clock = clock();
    // Where nothing ends: the store's clock stands.
    let inner = MemoryStore::builder().clock(Arc::new(ManualClock::at(Duration::from_secs(START_S)))).build().unwrap();
    let counting = metered(Arc::new(inner));
    let store: StoreRef = Arc::new(counting.clone());
    let site = seconds(&clock).keep(SECOND).open_or_create(&store, "site").await.unwrap();
    for _ in 0..16 {
        site.add([1u64]).await.unwrap();
        clock.advance(SECOND);
    }
    // The first of the sixteen was kept until 2 s after its beginning, the last until 17 s. Clocks are 5 minutes apart, one before the store's and one
    // behind it, and lives end 5 s later.
    let mut costs = Vec::new();
    for since_start_s in [100, 17 + 604, 17 + 605] {
        clock.set_wall(Duration::from_secs(START_S + since_start_s));
        let before = counting.counts();
        site.add([1u64]).await.unwrap();
        costs.push(counting.counts().since(&before).round_trips);
    }
    assert_eq!(costs[0], 8, "a period's first: 2 for the add, and 6 to make it");
    assert_eq!(costs, [costs[0], costs[0], costs[0] + 1], "a look at their keys, which are there");
}

/// Where nothing expires, the ledger says which shards a period has before it has any.
#[tokio::test]
async fn a_period_whose_maker_died_midway_is_dropped_with_the_structure() {
    // The steps of making one: look, forecast, plan, shards, head, entry, look again.
    for step in [5, 6, 7] {
        let inner = Arc::new(MemoryStore::new());
        let store: StoreRef = inner.clone();
        let hooked = Hooked::new(&store);
        let site = options().expected(20_000).open_or_create(&hooked.shared(), "site").await.unwrap();
        hooked.at(step, |_, _| std::future::pending());
        let mut add = std::pin::pin!(site.add([1u64]));
        for _ in 0..100 {
            let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(add.as_mut().poll(cx))).await;
            assert!(poll.is_pending(), "it is to stand still at step {step}");
            tokio::task::yield_now().await;
        }
        assert!(inner.stats().items > 10, "there are shards");
        let name = Name::new("site").unwrap();
        registry::drop_structure(&store, Ctx::default(), &name).await.unwrap().unwrap();
        assert_eq!(inner.stats().items, 0, "step {step}");
    }
}

/// A period is made before each step of a drop, and a drop before each step of making one.
#[tokio::test]
async fn periods_that_are_kept_for_ever_and_made_beside_a_drop_leave_nothing() {
    // The manifest, the list, heads, shards, the list, the manifest.
    for step in 2..=6 {
        let inner = Arc::new(MemoryStore::new());
        let store: StoreRef = inner.clone();
        let clock = clock();
        let site = seconds(&clock).open_or_create(&store, "site").await.unwrap();
        site.add([1u64]).await.unwrap();
        clock.advance(SECOND);
        let hooked = Hooked::new(&store);
        hooked.at(step, move |store, batch| async move {
            _ = site.add([2u64]).await;
            store.run(Ctx::default(), batch).await
        });
        let name = Name::new("site").unwrap();
        registry::drop_structure(&hooked.shared(), Ctx::default(), &name).await.unwrap().unwrap();
        assert_eq!(inner.stats().items, 0, "step {step} of the drop");
    }
    // The steps of making one: look, forecast, plan, shards, head, entry, look again.
    for step in 1..=7 {
        let inner = Arc::new(MemoryStore::new());
        let store: StoreRef = inner.clone();
        let hooked = Hooked::new(&store);
        let site = options().open_or_create(&hooked.shared(), "site").await.unwrap();
        hooked.at(step, |store, batch| async move {
            registry::drop_structure(&store, Ctx::default(), &Name::new("site").unwrap()).await.unwrap().unwrap();
            store.run(Ctx::default(), batch).await
        });
        assert_eq!(site.add([1u64]).await.unwrap_err().kind(), ErrorKind::Lost, "step {step} of the add");
        assert_eq!(inner.stats().items, 0, "step {step} of the add");
    }
}

/// A head that was refused, in a reply that was lost: what was made for it is removed, and the other's stands.
#[tokio::test]
async fn shards_of_a_head_that_came_second_are_removed_even_if_that_was_not_told() {
    let inner = Arc::new(MemoryStore::new());
    let store: StoreRef = inner.clone();
    let hooked = Hooked::new(&store);
    let (site, other) = (open(&hooked.shared()).await, open(&store).await);
    hooked.at(5, move |store, batch| async move {
        other.add([7u64]).await.unwrap();
        _ = store.run(Ctx::default(), batch.clone()).await;
        fail(&batch, Effect::Unknown)
    });
    assert_eq!(site.add([7u64, 8]).await.unwrap(), [Novelty::Known, Novelty::New]);
    assert_eq!(site.count().await.unwrap().visitors, 2);
    assert_eq!(inner.stats().items, 4, "manifest, list, head and shard");
}

#[tokio::test]
async fn a_forecast_that_cannot_be_read_is_an_error_and_no_guess() {
    let faulty = Faulty::new(memory());
    let site = options().expected(700).open_or_create(&faulty.shared(), "site").await.unwrap();
    let year = site.current().unwrap();
    site.add_in(year - 1, 0..100u64).await.unwrap();
    faulty.fail_always(Fault::NotSent);
    assert_eq!(site.forecast(year).await.unwrap_err().kind(), ErrorKind::Unavailable);
    faulty.heal();
    assert_eq!(site.forecast(year).await.unwrap(), 150);
}

/// Yesterday's damage is yesterday's: who comes first today is counted.
#[tokio::test]
async fn a_period_after_one_with_another_programs_bytes_in_it_is_made_for_what_the_options_say() {
    let inner = Arc::new(MemoryStore::new());
    let store: StoreRef = inner.clone();
    let site = options().expected(700).open_or_create(&store, "site").await.unwrap();
    let year = site.current().unwrap();
    site.add_in(year - 1, 0..100u64).await.unwrap();
    let mut keys = Vec::new();
    inner.each(|key, _| keys.push(Key::new(key.to_vec()).unwrap()));
    let heads: Vec<Key> =
        keys.into_iter().filter(|key| key.as_bytes().rsplit(|&byte| byte == b'.').next().unwrap()[0] == b'h').collect();
    assert_eq!(heads.len(), 1, "{heads:?}");
    store.put(heads[0].clone(), PutMode::Set, "theirs", Ttl::Never).await.unwrap();
    let fresh = options().expected(700).open(&store, "site").await.unwrap();
    assert_eq!(fresh.count_in(year - 1).await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    assert_eq!(fresh.forecast(year).await.unwrap(), 700);
    assert_eq!(fresh.add([7u64]).await.unwrap(), [Novelty::New]);
}

/// The structure was made again by others while its old keys are there: what they say is not what it is asked for.
#[tokio::test]
async fn figures_and_forecasts_of_a_life_that_is_over_are_a_loss() {
    for is_stat in [true, false] {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::at(Duration::from_secs(50 * 365 * 86_400 + 1)));
        let site = options().clock(clock.clone()).open_or_create(&store, "site").await.unwrap();
        let year = site.current().unwrap();
        site.add([7u64]).await.unwrap();
        store.delete(Name::new("site").unwrap().manifest_key().unwrap()).await.unwrap();
        options().open_or_create(&store, "site").await.unwrap();
        clock.advance(Duration::from_secs(61));
        let told = match is_stat {
            true => site.stat(year).await.map(|_| ()),
            false => site.forecast(year + 1).await.map(|_| ()),
        };
        let error = told.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("made again by others"), "{error}");
    }
}

/// A store that never answers, and gives up when it is told to.
#[derive(Debug)]
struct Deaf(StoreRef);

impl Store for Deaf {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            match ctx.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
            let silence = |_| Err(Error::new(ErrorKind::Timeout, "no answer").effect(Effect::NotApplied));
            batch.iter().map(silence).collect()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn opening_where_nothing_answers_ends_when_the_options_say() {
    let store: StoreRef = Arc::new(Deaf(memory()));
    let options = options().timeout(2 * SECOND);
    for may_create in [false, true] {
        let opening = async {
            if may_create { options.open_or_create(&store, "site").await } else { options.open(&store, "site").await }
        };
        let opened = tokio::time::timeout(4 * SECOND, opening).await.expect("it has a deadline");
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Timeout);
    }
}

#[tokio::test]
async fn an_offset_is_in_seconds_and_fixed() {
    let (store, clock) = (memory(), clock());
    let days = || UniqueVisitors::options().clock(clock.clone());
    let tokyo = days().offset_s(9 * 3_600).open_or_create(&store, "tokyo").await.unwrap();
    tokyo.add([1u64]).await.unwrap();
    let same = days().offset_s(9 * 3_600).open(&store, "tokyo").await.unwrap();
    assert_eq!(same.count().await.unwrap().visitors, 1);
    for other in [0, 9, 9 * 3_600 + 1, -9 * 3_600] {
        let error = days().offset_s(other).open(&store, "tokyo").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
        assert!(
            error.to_string().contains(&format!("days of an offset of 32400 s, not of an offset of {other} s")),
            "{error}"
        );
    }
}

/// In Berlin the 25th of October 2026 has 25 hours, and the 29th of March 23.
#[tokio::test]
async fn a_zones_days_have_the_hours_that_its_clocks_say() {
    const HOUR: Duration = Duration::from_secs(3_600);
    // Midnight in Berlin, in UTC, and the day's number.
    for (begin_s, hours, day) in [(1_792_879_200, 25, 20_751), (1_774_738_800, 23, 20_541), (1_792_969_200, 24, 20_752)]
    {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(begin_s)));
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let berlin = UniqueVisitors::options().zone("Europe/Berlin").keep(SECOND).clock(clock.clone());
        let site = berlin.open_or_create(&store, "site").await.unwrap();
        assert_eq!(site.current().unwrap(), day);
        clock.set_wall(Duration::from_secs(begin_s) - SECOND);
        assert_eq!(site.current().unwrap(), day - 1);
        site.add([1u64]).await.unwrap();
        for hour in [0, 12, hours - 1] {
            clock.set_wall(Duration::from_secs(begin_s) + HOUR * hour);
            site.add([u64::from(hour)]).await.unwrap();
        }
        assert_eq!(site.count().await.unwrap().visitors, 3, "{hours} hours");
        clock.set_wall(Duration::from_secs(begin_s) + HOUR * hours);
        assert_eq!(site.count_in(day).await.unwrap().visitors, 3, "it is kept for a second");
        assert_eq!((site.current().unwrap(), site.count().await.unwrap().visitors), (day + 1, 0));
        clock.advance(SECOND);
        let error = site.count_in(day).await.unwrap_err();
        assert!(
            error.to_string().contains("is over: it was kept for 1000 ms after its end, and that was 0 ms ago"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_zone_is_one_of_the_database_and_fixed() {
    let (store, clock) = (memory(), clock());
    let days = || UniqueVisitors::options().clock(clock.clone());
    for (wrong, part) in [
        (days().zone("Europe/Atlantis"), "it takes a name of the IANA time zone database"),
        (days().zone(""), "it takes a name of the IANA time zone database"),
        (days().zone("Asia/Tokyo").offset_s(0), "there are a zone, Asia/Tokyo, and an offset"),
        (days().zone("Asia/Tokyo").period(SECOND * 3_600), "whole days"),
    ] {
        let error = wrong.open_or_create(&store, "site").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(registry::find(&store, Ctx::default(), &Name::new("site").unwrap()).await.unwrap(), None);
    days().zone("Asia/Tokyo").period(7 * SECOND * 86_400).open_or_create(&store, "weeks").await.unwrap();
    days().zone("asia/tokyo").open(&store, "weeks").await.unwrap();
    days().open(&store, "weeks").await.unwrap();
    days().offset_s(3_600).open_or_create(&store, "offset").await.unwrap();
    for (name, asked, part) in [
        ("weeks", days().zone("Europe/Berlin"), "days of Asia/Tokyo, not of Europe/Berlin"),
        ("weeks", days().offset_s(9 * 3_600), "days of Asia/Tokyo, not of an offset of 32400 s"),
        ("offset", days().zone("Europe/Berlin"), "days of an offset of 3600 s, not of Europe/Berlin"),
    ] {
        let error = asked.open(&store, name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// A manifest whose zone this machine's database does not have: its structure is not opened, and may be dropped.
#[tokio::test]
async fn a_zone_that_is_not_known_here_is_refused_and_may_be_dropped() {
    let (store, clock) = (memory(), clock());
    let days = UniqueVisitors::options().zone("Asia/Tokyo").clock(clock.clone());
    days.open_or_create(&store, "site").await.unwrap();
    let name = Name::new("site").unwrap();
    let key = name.manifest_key().unwrap();
    let value = store.get(key.clone()).await.unwrap().unwrap().value;
    let at = value.windows(10).position(|bytes| bytes == b"Asia/Tokyo").unwrap();
    let elsewhere = [&value[..at], b"Mars/Ascra", &value[at + 10..]].concat();
    store.put(key, PutMode::Set, elsewhere, Ttl::Never).await.unwrap();
    let error = UniqueVisitors::options().clock(clock).open(&store, "site").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("the days of Mars/Ascra"), "{error}");
    registry::drop_structure(&store, Ctx::default(), &name).await.unwrap().unwrap();
}

#[tokio::test]
async fn periods_are_kept_for_ten_years_at_the_most() {
    let most = Duration::from_secs(10 * 366 * 86_400);
    let store = memory();
    options().keep(most).open_or_create(&store, "long").await.unwrap();
    let error = options().keep(most + Duration::from_millis(1)).open_or_create(&store, "longer").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert!(error.to_string().contains("are to be kept for") && error.to_string().contains("the limit is"), "{error}");
}

#[tokio::test]
async fn a_store_without_lives_keeps_periods_for_ever_or_not_at_all() {
    let store: StoreRef = Arc::new(NoLives(memory()));
    let site = open(&store).await;
    assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
    let error = options().keep(SECOND).open_or_create(&store, "short").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn a_period_is_outgrown_by_more_than_it_was_made_for() {
    let site = options().expected(3).open_or_create(&memory(), "site").await.unwrap();
    let year = site.current().unwrap();
    for (id, is_outgrown) in [(1, false), (2, false), (3, false), (4, true)] {
        site.add([id as u64]).await.unwrap();
        assert_eq!(site.stat(year).await.unwrap().unwrap().is_outgrown(), is_outgrown, "{id} of 3");
    }
}

#[tokio::test]
async fn a_handle_says_how_long_its_periods_are_and_answers_in_words() {
    let store = memory();
    assert_eq!(UniqueVisitors::open_or_create(&store, "days").await.unwrap().period(), 86_400 * SECOND);
    let site = seconds(&clock()).open_or_create(&store, "seconds").await.unwrap();
    assert_eq!(site.period(), SECOND);
    let answers = [Novelty::New, Novelty::Known, Novelty::Unknown].map(Novelty::as_str);
    assert_eq!(answers, ["new", "known", "unknown"]);
}

/// Else a server that does not answer would keep its caller for ever.
#[tokio::test]
async fn every_request_of_a_call_has_a_deadline() {
    let store = memory();
    let before = open(&store).await;
    before.add([1u64, 2]).await.unwrap();
    let urged = Sieve::answering(&store, |ctx, op| {
        assert!(ctx.deadline.is_some(), "{op:?}");
        None
    });
    let year = before.current().unwrap();
    let fresh = async || options().open(&urged, "site").await.unwrap();
    assert_eq!(fresh().await.count().await.unwrap().visitors, 2);
    assert_eq!(fresh().await.are_new_in(year, [1u64, 3]).await.unwrap(), [Novelty::Known, Novelty::New]);
    assert!(fresh().await.stat(year).await.unwrap().is_some());
    assert_eq!(fresh().await.forecast(year + 1).await.unwrap(), 3);
    assert_eq!(UniqueVisitors::union([(&fresh().await, year)]).await.unwrap().visitors, 2);
    assert_eq!(fresh().await.add([3u64]).await.unwrap(), [Novelty::New]);
    fresh().await.forget(year).await.unwrap();
}
