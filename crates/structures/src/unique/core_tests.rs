//! What is kept for how long, and what options take.

use larder_core::{ManualClock, Profile, PutMode, Run, Store, StoreExt};
use larder_store_memory::MemoryStore;

use super::*;
use crate::unique::{Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The day that it is now.
const NOW: u64 = 19_000;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// At the beginning of a day.
fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(DAY * NOW as u32))
}

async fn open(options: UniqueVisitorsOptions) -> UniqueVisitors {
    options.open_or_create(&memory(), "site").await.unwrap()
}

/// Of clocks that are behind, and stores that count whole seconds: five minutes, and five seconds.
#[tokio::test]
async fn what_a_period_has_lives_until_it_is_over_by_everybodys_clock() {
    let clock = clock();
    let site = open(UniqueVisitors::options().keep(HOUR).clock(clock.clone())).await;
    let beside = Duration::from_secs(5 * 60 + 5);
    assert_eq!(site.0.core.life(NOW), Ttl::After(DAY + HOUR + beside));
    clock.advance(7 * HOUR);
    assert_eq!(site.0.core.life(NOW), Ttl::After(DAY - 6 * HOUR + beside));
    let kept = open(UniqueVisitors::options().clock(clock)).await;
    assert_eq!(kept.0.core.life(NOW), Ttl::Never);
}

#[tokio::test]
async fn a_period_tells_how_many_to_expect_of_the_next_for_as_long_as_it_is_kept() {
    let clock = clock();
    let site = open(UniqueVisitors::options().expected(10).keep(HOUR).clock(clock.clone())).await;
    site.add(0..100u64).await.unwrap();
    clock.advance(DAY + HOUR - Duration::from_millis(1));
    assert_eq!(site.forecast(NOW + 1).await.unwrap(), 150);
    clock.advance(Duration::from_millis(1));
    assert_eq!(site.forecast(NOW + 1).await.unwrap(), 10, "it is over");
}

/// And one of which shards may come late is remembered for as long as nobody looks for them.
#[tokio::test]
async fn the_list_remembers_the_last_periods_of_those_that_were_forgotten() {
    const KEPT: u64 = 1_024;
    let site = open(UniqueVisitors::options().expected(1).clock(clock())).await;
    let core = &site.0.core;
    let (first, late) = (NOW - KEPT - 3, NOW - KEPT - 4);
    let mut pieces: Vec<Piece> = (first..NOW).map(|period| entry(period, 0, FORGOTTEN, period)).collect();
    pieces.push(entry(late, 3, PLANNED, 7));
    core.ledger.register(core.deadline(), &pieces).await.unwrap();
    for period in [late, NOW] {
        site.add_in(period, [1u64]).await.unwrap();
        site.forget(period).await.unwrap();
    }
    let list = core.ledger.read(Ctx::default()).await.unwrap();
    assert!(list.pieces().iter().all(|piece| piece.part == FORGOTTEN), "{list:?}");
    // Beside the one that was forgotten last.
    let periods: Vec<u64> = list.pieces().iter().map(period_of).collect();
    assert_eq!(periods, (NOW - KEPT..=NOW).chain([late]).collect::<Vec<_>>());
    assert_eq!(list.pieces().last(), Some(&entry(late, 3, FORGOTTEN, 7)));
}

#[tokio::test]
async fn a_period_that_was_forgotten_and_is_over_is_listed_no_longer() {
    let clock = clock();
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let hours = UniqueVisitors::options().period(HOUR).keep(HOUR).clock(clock.clone());
    let site = hours.open_or_create(&store, "site").await.unwrap();
    for _ in 0..16 {
        site.add([1u64]).await.unwrap();
        site.forget(site.current().unwrap()).await.unwrap();
        clock.advance(HOUR);
    }
    let listed = async || site.0.core.ledger.read(Ctx::default()).await.unwrap().pieces().len();
    assert_eq!(listed().await, 16);
    clock.advance(3 * HOUR);
    site.add([1u64]).await.unwrap();
    assert_eq!(listed().await, 2, "this one, and its plan");
}

/// Items of a server, as it says itself.
#[derive(Debug)]
struct Server(StoreRef);

impl Store for Server {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { durability: Durability::Server, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.0.run(ctx, batch)
    }
}

/// There they are not carried anywhere.
#[tokio::test]
async fn near_exact_shards_are_larger_in_the_process_than_on_a_server() {
    let options = || UniqueVisitors::options().precision(Precision::NEAR_EXACT).expected(100_000);
    let mut shards = Vec::new();
    for store in [memory(), Arc::new(Server(memory()))] {
        let site = options().clock(clock()).open_or_create(&store, "site").await.unwrap();
        site.add([1u64]).await.unwrap();
        shards.push(site.stat(NOW).await.unwrap().unwrap().shards);
    }
    assert!(shards[0] * 3 < shards[1], "{shards:?}");
}

#[tokio::test]
async fn a_period_is_a_day_unless_said_and_three_hundred_and_sixty_six_days_at_the_most() {
    assert_eq!(open(UniqueVisitors::options()).await.period(), Duration::from_secs(86_400));
    let longest = 366 * DAY;
    assert_eq!(open(UniqueVisitors::options().period(longest)).await.period(), longest);
    let longer = UniqueVisitors::options().period(longest + Duration::from_millis(1));
    assert_eq!(longer.open_or_create(&memory(), "site").await.unwrap_err().kind(), ErrorKind::BadInput);
}

#[tokio::test]
async fn an_offset_is_fourteen_hours_at_the_most_either_way() {
    for hours in [14, -14] {
        open(UniqueVisitors::options().offset_s(hours * 3_600)).await;
        let further = UniqueVisitors::options().offset_s(hours * 3_600 + hours.signum());
        let error = further.open_or_create(&memory(), "site").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains("it takes 50400 at the most"), "{error}");
    }
}

#[tokio::test]
async fn periods_are_kept_for_ten_years_at_the_most() {
    let ten_years = 10 * 366 * DAY;
    open(UniqueVisitors::options().keep(ten_years)).await;
    let longer = UniqueVisitors::options().keep(ten_years + Duration::from_millis(1));
    let error = longer.open_or_create(&memory(), "site").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
}

/// So far two calendars of the earth are apart.
#[tokio::test]
async fn a_period_is_added_to_from_twenty_six_hours_before_it_begins() {
    let clock = clock();
    let site = open(UniqueVisitors::options().expected(1).clock(clock.clone())).await;
    let ahead = site.add_in(NOW + 2, [1u64]).await.unwrap_err();
    assert_eq!(ahead.kind(), ErrorKind::BadInput, "{ahead}");
    clock.advance(22 * HOUR - Duration::from_millis(1));
    let ahead = site.add_in(NOW + 2, [1u64]).await.unwrap_err();
    assert_eq!(ahead.kind(), ErrorKind::BadInput, "{ahead}");
    assert!(ahead.to_string().contains("begins 93600001 ms ahead of this clock; the limit is 93600000 ms"), "{ahead}");
    clock.advance(Duration::from_millis(1));
    assert_eq!(site.add_in(NOW + 2, [1u64]).await.unwrap(), [Novelty::New]);
}

/// Who reads it learns what became of the life that the list has.
#[tokio::test]
async fn a_period_is_told_to_be_made_again_where_another_life_of_it_stands_and_else_to_have_no_head() {
    let (store, clock) = (memory(), clock());
    let open = async || UniqueVisitors::options().expected(1).clock(clock.clone()).open_or_create(&store, "site").await;
    let site = open().await.unwrap();
    site.add([1u64]).await.unwrap();
    let (core, fresh) = (&site.0.core, open().await.unwrap());
    let key = core.head_key(NOW).unwrap();
    let told = async |what: &str| {
        let error = fresh.count().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains(&format!(": {what}: ")), "{error}");
    };
    let other = Head { incarnation: 7, ..core.known(NOW).unwrap().head };
    store.put(key, PutMode::Set, other.encode(), Ttl::Never).await.unwrap();
    told("it was made again since").await;
    // That one is forgotten, and its head counts as none.
    core.ledger.register(core.deadline(), &[entry(NOW, 0, FORGOTTEN, 7)]).await.unwrap();
    told("its head is gone").await;
}
