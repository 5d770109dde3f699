//! Unique visitors through their public handle, on every store. Days are turned by hand: their keys' lives are relative, so a server's own clock does
//! not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use larder_core::native::{Families, Native, NativeReply};
use larder_core::{Clock, Ctx, Effect, ErrorKind, Key, ManualClock, Op, StoreRef};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{IdKind, Kind, Name, Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    unique_visitors_agree_with_a_model [Cas];
    unique_visitors_are_told_once_under_eight_tasks_and_two_handles [Cas];
    unique_visitors_count_once_when_the_nth_op_fails [Cas];
    unique_visitors_report_a_lost_shard_or_head_and_no_other_day [Cas];
    unique_visitors_refuse_what_is_no_id_and_no_day [Cas];
    unique_visitors_are_forecast_and_outgrow_it [Cas];
    unique_visitors_of_sketches_are_merged [Cas];
    unique_visitors_expire_when_they_are_no_longer_kept [Cas, Ttl];
    a_store_without_cas_refuses_unique_visitors [NoCas];
    drop_of_unique_visitors_removes_every_key_and_a_handle_notices [Cas];
}

const DAY: Duration = Duration::from_secs(86_400);
const TODAY: u64 = 20_000;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(DAY * 20_000))
}

fn options(clock: &Arc<ManualClock>) -> UniqueVisitorsOptions {
    UniqueVisitors::options().expected(3_000).timeout(Duration::from_secs(20)).clock(clock.clone())
}

async fn open(store: &StoreRef, options: &UniqueVisitorsOptions, name: &str) -> UniqueVisitors {
    options.open_or_create(store, name).await.expect("unique visitors")
}

async fn count(site: &UniqueVisitors, day: u64) -> u64 {
    site.count_in(day).await.expect("a count").visitors
}

/// True where shards are sets of the store's own.
fn is_native(t: &Bench) -> bool {
    t.store.profile().natives.contains(Families::SET | Families::KEYS)
}

async fn is_there(t: &Bench, key: &Key) -> bool {
    if !is_native(t) {
        return t.value(key).await.is_some();
    }
    let encoding = t.ok(Op::native(key.clone(), Native::Encoding)).await;
    !matches!(encoding.into_native(), Some(NativeReply::Text(None)))
}

/// Keys as `docs` write them down: the head's, and a shard's.
async fn keys(t: &Bench, name: &str, day: u64, shard: u32) -> (Key, Key) {
    let named = Name::new(name).expect("a short name");
    let manifest = find(&t.store, Ctx::default(), &named).await.expect("a manifest").expect("a structure");
    let key =
        |index: String| Key::new(format!("L.{name}.u.{:016x}.{index}", manifest.generation)).expect("a short name");
    let head = key(format!("h{day:x}"));
    let value = t.value(&head).await.expect("a head where it is documented");
    let tag = u32::from_le_bytes(value[4..8].try_into().expect("4 bytes"));
    (head, key(format!("{tag:x}-{shard:x}")))
}

async fn unique_visitors_agree_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (exact, compact) = (Precision::Exact, Precision::Compact);
    let near = Precision::NearExact { bits: 48 };
    for (precision, ids) in
        [(exact, IdKind::Any), (exact, IdKind::Integer), (compact, IdKind::Any), (near, IdKind::Integer)]
    {
        let (name, clock) = (t.name(&format!("{}-{}", precision.as_str(), ids.as_str())), clock());
        let options = options(&clock).precision(precision).ids(ids);
        let mut handles = [open(&t.store, &options, &name).await, open(&t.store, &options, &name).await];
        let mut model: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for step in 0..60 {
            let site = &handles[rng.usize(..2)];
            let day = TODAY - rng.u64(..3);
            let at = format!("{precision:?} {ids:?} step {step}, seed {seed}");
            match rng.u8(..8) {
                0..=3 => {
                    let some: Vec<u64> = (0..rng.usize(..40)).map(|_| rng.u64(..300)).collect();
                    let told = site.add_in(day, some.iter().copied()).await.expect("an add");
                    let there = model.entry(day).or_default();
                    let new = |id: &u64| if there.insert(*id) { Novelty::New } else { Novelty::Known };
                    assert_eq!(told, some.iter().map(new).collect::<Vec<_>>(), "{at}");
                }
                4 => {
                    let some: Vec<String> = (0..40).map(|_| rng.u64(..300).to_string()).collect();
                    let is_new = site.are_new_in(day, &some).await.expect("an answer");
                    let there = model.get(&day);
                    for (id, novelty) in some.iter().zip(is_new) {
                        let is_there = there.is_some_and(|there| there.contains(&id.parse().expect("a number")));
                        assert_eq!(novelty, if is_there { Novelty::Known } else { Novelty::New }, "{at}");
                    }
                }
                5 => handles[rng.usize(..2)] = open(&t.store, &options, &name).await,
                6 => {
                    let days = [TODAY - 2, TODAY - 1, TODAY];
                    let all: BTreeSet<u64> = days.iter().filter_map(|day| model.get(day)).flatten().copied().collect();
                    let united = UniqueVisitors::union(days.map(|day| (site, day))).await.expect("a union");
                    assert_eq!(united.visitors, all.len() as u64, "{at}");
                }
                _ => assert_eq!(count(site, day).await, model.get(&day).map_or(0, |there| there.len() as u64), "{at}"),
            }
        }
    }
}

async fn unique_visitors_are_told_once_under_eight_tasks_and_two_handles(t: Bench) {
    for precision in [Precision::Exact, Precision::Compact] {
        let (name, clock) = (t.name(precision.as_str()), clock());
        let options = options(&clock).precision(precision).expected(200);
        let handles = [open(&t.store, &options, &name).await, open(&t.store, &options, &name).await];
        let tasks: Vec<_> = (0..8u64)
            .map(|task| {
                let site = handles[(task % 2) as usize].clone();
                tokio::spawn(async move {
                    let mut new = Vec::new();
                    for n in 0..12u64 {
                        // Half of each batch is everybody's.
                        let ids: Vec<u64> = (0..10)
                            .map(|k| if k < 5 { n * 10 + k } else { 1_000 + task * 1_000 + n * 10 + k })
                            .collect();
                        let told = site.add(ids.iter().copied()).await.expect("an add");
                        assert!(!told.contains(&Novelty::Unknown), "nothing was lost");
                        new.extend(ids.iter().zip(told).filter(|(_, told)| *told == Novelty::New).map(|(id, _)| *id));
                    }
                    new
                })
            })
            .collect();
        let mut new = Vec::new();
        for task in tasks {
            new.extend(task.await.expect("no panic"));
        }
        let distinct: BTreeSet<u64> = new.iter().copied().collect();
        assert_eq!(new.len(), distinct.len(), "an id was told twice to be new");
        assert_eq!(distinct.len(), 12 * 5 + 8 * 12 * 5);
        assert_eq!(count(&handles[0], TODAY).await, distinct.len() as u64);
    }
}

async fn unique_visitors_count_once_when_the_nth_op_fails(t: Bench) {
    for fault in [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)] {
        for nth in 1..=14 {
            let (name, clock) = (t.name(&format!("{fault:?}-{nth}")), clock());
            let faulty = Faulty::new(t.store.clone());
            let options = options(&clock).expected(1);
            let site = open(&faulty.shared(), &options, &name).await;
            faulty.fail_nth(nth, fault);
            let mut new: BTreeMap<u64, u32> = BTreeMap::new();
            let mut unknown = BTreeSet::new();
            for ids in [[1, 2, 3], [3, 4, 5], [1, 5, 6]] {
                match site.add(ids).await {
                    Ok(told) => {
                        for (id, told) in ids.iter().zip(told) {
                            *new.entry(*id).or_default() += u32::from(told == Novelty::New);
                            unknown.extend((told == Novelty::Unknown).then_some(*id));
                        }
                    }
                    Err(error) => panic!("{fault:?} at op {nth}: one fault was not ridden out: {error}"),
                }
            }
            faulty.heal();
            faulty.deliver_late().await;
            // A set of the server's own has no mark of who added to it last.
            assert!(is_native(&t) || unknown.is_empty(), "{fault:?} at op {nth}: nobody else wrote");
            let is_right = |(id, &times): (&u64, &u32)| times == 1 || times == 0 && unknown.contains(id);
            assert!(new.iter().all(is_right), "{fault:?} at op {nth}: {new:?}, unknown {unknown:?}");
            let again = open(&t.store, &options, &name).await;
            assert_eq!(count(&again, TODAY).await, 6, "{fault:?} at op {nth}");
        }
    }
    // A store that never answers is told as such.
    let (name, clock) = (t.name("dead"), clock());
    let faulty = Faulty::new(t.store.clone());
    let site = open(&faulty.shared(), &options(&clock), &name).await;
    site.add([1u64]).await.expect("an add");
    let brief = options(&clock).timeout(Duration::from_millis(1_500));
    let brief = open(&faulty.shared(), &brief, &name).await;
    // So that it knows the day: on a busy machine one call's time may be too short for that.
    for _ in 0..20 {
        if brief.add([1u64]).await.is_ok() {
            break;
        }
    }
    faulty.fail_always(Fault::LostReply);
    let error = brief.add([2u64]).await.expect_err("nobody answers");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
    faulty.heal();
    site.add([2u64]).await.expect("an add");
    assert_eq!(count(&site, TODAY).await, 2);
}

async fn unique_visitors_report_a_lost_shard_or_head_and_no_other_day(t: Bench) {
    for is_head in [false, true] {
        let (name, clock) = (t.name(&format!("head-{is_head}")), clock());
        let options = options(&clock);
        let site = open(&t.store, &options, &name).await;
        // The other way round, today would be made for two.
        site.add_in(TODAY, 0..500u64).await.expect("an add");
        site.add_in(TODAY - 1, ["v"]).await.expect("an add");
        let (head, shard) = keys(&t, &name, TODAY, 1).await;
        t.remove(if is_head { head } else { shard }).await;
        let fresh = open(&t.store, &options, &name).await;
        // A handle that has the day open needs no head.
        let readers = if is_head { vec![&fresh] } else { vec![&site, &fresh] };
        for site in readers {
            for error in [
                site.count().await.err(),
                site.add(0..500u64).await.err(),
                site.are_new_in(TODAY, 0..500u64).await.err(),
                UniqueVisitors::union([(site, TODAY - 1), (site, TODAY)]).await.err(),
            ] {
                let error = error.expect("lost");
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert!(error.to_string().contains(&TODAY.to_string()), "{error} does not name the day");
            }
            assert_eq!(count(site, TODAY - 1).await, 1);
            assert_eq!(site.forecast(TODAY + 1).await.expect("what the options say"), 3_000);
        }
        fresh.forget(TODAY).await.expect("a removal");
        assert_eq!(count(&fresh, TODAY).await, 0);
        assert_eq!(fresh.add(["w"]).await.expect("an add"), [Novelty::New]);
        assert_eq!(count(&fresh, TODAY).await, 1);
    }
}

async fn unique_visitors_refuse_what_is_no_id_and_no_day(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let numbers = options(&clock).precision(Precision::Exact).ids(IdKind::Integer);
    let site = open(&t.store, &numbers, &name).await;
    for wrong in ["-1", "18446744073709551616", "", "x"] {
        let error = site.add(["7", wrong]).await.expect_err("refused");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("18446744073709551615"), "{error} does not name the limit");
    }
    let after = TODAY + 3;
    for error in [site.add_in(after, ["7"]).await.err(), site.count_in(u64::MAX).await.err()] {
        assert_eq!(error.expect("refused").kind(), ErrorKind::BadInput);
    }
    assert_eq!(count(&site, TODAY).await, 0, "something was written");
    for wrong in [
        numbers.clone().period(Duration::from_millis(999)),
        numbers.clone().expected(0),
        numbers.clone().offset_s(15 * 3_600),
        numbers.clone().precision(Precision::NearExact { bits: 23 }),
        numbers.clone().precision(Precision::Sketch { lg_k: 17 }),
        numbers.clone().timeout(Duration::ZERO),
    ] {
        let error = wrong.open_or_create(&t.store, t.name("b")).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    }
    for other in
        [numbers.clone().precision(Precision::Compact), numbers.clone().ids(IdKind::Any), numbers.clone().seed(1)]
    {
        let error = other.open_or_create(&t.store, &name).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
    let seeded = open(&t.store, &numbers.clone().seed(1), &t.name("c")).await;
    let error = UniqueVisitors::union([(&site, TODAY), (&seeded, TODAY)]).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    // Any bytes are ids where any are.
    let any = open(&t.store, &options(&clock), &t.name("d")).await;
    let long = vec![b'x'; 100_000];
    let ids: [&[u8]; 6] = [b"", b" ", b"\r\n", b"\0\xff", b"v", &long];
    for expected in [Novelty::New, Novelty::Known] {
        assert_eq!(any.add(ids).await.expect("an add"), [expected; 6]);
    }
}

async fn unique_visitors_are_forecast_and_outgrow_it(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let site = open(&t.store, &options(&clock).expected(10), &name).await;
    assert_eq!(site.forecast(TODAY).await.expect("a forecast"), 10, "a day after a day without visitors");
    for part in 0..4u64 {
        site.add(part * 1_000..(part + 1) * 1_000).await.expect("an add");
    }
    let stat = site.stat(TODAY).await.expect("figures").expect("a day");
    assert_eq!((stat.expected, stat.shards, stat.count.visitors, stat.is_outgrown()), (10, 1, 4_000, true));
    // Another expectation moves nothing of a day that runs.
    let other = open(&t.store, &options(&clock).expected(1_000_000), &name).await;
    assert_eq!(other.add([1u64, 4_000]).await.expect("an add"), [Novelty::Known, Novelty::New]);
    clock.advance(DAY);
    assert_eq!(site.add([1u64]).await.expect("an add"), [Novelty::New]);
    let stat = site.stat(TODAY + 1).await.expect("figures").expect("a day");
    assert_eq!((stat.expected, stat.count.visitors), (6_002, 1));
    assert!(stat.shards > 1, "{stat:?}");
    let both = UniqueVisitors::union([(&site, TODAY), (&site, TODAY + 1)]).await.expect("a union");
    assert_eq!(both.visitors, 4_001, "days of other sizes are united");
    let day = UNIX_EPOCH + clock.wall();
    assert_eq!(site.period_of(day).expect("a day"), TODAY + 1);
}

async fn unique_visitors_of_sketches_are_merged(t: Bench) {
    let clock = clock();
    let options = options(&clock).precision(Precision::SKETCH);
    let name = t.name("shop");
    let (shop, twin) = (open(&t.store, &options, &name).await, open(&t.store, &options, &name).await);
    let blog = open(&t.store, &options, &t.name("blog")).await;
    let (first, second) = tokio::join!(shop.add(0..6_000u64), twin.add(4_000..10_000u64));
    assert_eq!(first.expect("an add")[..2], [Novelty::Unknown; 2]);
    second.expect("an add");
    blog.add(9_000..12_000u64).await.expect("an add");
    for site in [&shop, &twin] {
        let count = site.count().await.expect("a count");
        assert!(count.visitors.abs_diff(10_000) < 600, "{count:?}");
        assert!((100.0..120.0).contains(&count.standard_error), "{count:?}");
    }
    let united = UniqueVisitors::union([(&shop, TODAY), (&blog, TODAY)]).await.expect("a union");
    assert!(united.visitors.abs_diff(12_000) < 700, "{united:?}");
    let exact = open(&t.store, &options.clone().precision(Precision::Compact), &t.name("c")).await;
    let error = UniqueVisitors::union([(&shop, TODAY), (&exact, TODAY)]).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
}

async fn unique_visitors_expire_when_they_are_no_longer_kept(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let options = options(&clock).keep(2 * DAY);
    let site = open(&t.store, &options, &name).await;
    site.add(["v"]).await.expect("an add");
    clock.advance(3 * DAY - Duration::from_millis(1));
    assert_eq!(count(&site, TODAY).await, 1);
    clock.advance(Duration::from_millis(1));
    for error in [site.count_in(TODAY).await.err(), site.add_in(TODAY, ["w"]).await.err()] {
        let error = error.expect("over");
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    }
    assert_eq!(count(&site, TODAY + 1).await, 0);
}

async fn a_store_without_cas_refuses_unique_visitors(t: Bench) {
    let error = UniqueVisitors::open_or_create(&t.store, t.name("a")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

async fn drop_of_unique_visitors_removes_every_key_and_a_handle_notices(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let options = options(&clock);
    let site = open(&t.store, &options, &name).await;
    let mut all = Vec::new();
    // The other way round, today would be made for two.
    for day in [TODAY, TODAY - 1] {
        site.add_in(day, ["v"]).await.expect("an add");
        let (head, _) = keys(&t, &name, day, 0).await;
        all.push(head);
        let stat = site.stat(day).await.expect("figures").expect("a day");
        assert!(stat.shards > 1);
        for shard in 0..stat.shards {
            all.push(keys(&t, &name, day, shard).await.1);
        }
    }
    for key in &all {
        assert!(is_there(&t, key).await, "{key} is not where it is documented");
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::UniqueVisitors));
    for key in &all {
        assert!(!is_there(&t, key).await, "{key}");
    }
    for error in [site.count().await.err(), site.add(["w"]).await.err(), site.add_in(TODAY - 2, ["w"]).await.err()] {
        assert_eq!(error.expect("lost").kind(), ErrorKind::Lost);
    }
    let again = open(&t.store, &options, &name).await;
    assert_eq!(again.add(["v"]).await.expect("an add"), [Novelty::New]);
    assert!(site.add(["w"]).await.is_err(), "an add of an earlier life counted");
    assert_eq!(count(&again, TODAY).await, 1);
}
