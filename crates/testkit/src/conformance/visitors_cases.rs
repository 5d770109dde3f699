//! Visitors through their public handle, on every store. Windows are turned by hand: their keys' lives are relative, so a server's
//! own clock does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_core::{Clock, Ctx, Effect, ErrorKind, Key, ManualClock, Op, StoreRef};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Kind, Manifest, Name, Visitors, VisitorsOptions};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    visitors_agree_with_a_model [];
    visitors_shift_at_the_boundary_and_interpolate [];
    visitors_named_by_any_bytes_count_once [];
    visitors_are_exact_under_eight_tasks_and_two_handles [];
    visitors_count_at_most_once_when_the_nth_op_fails [];
    visitors_report_a_lost_window_and_no_other [];
    visitors_refuse_other_periods_and_times [];
    drop_of_visitors_removes_every_key_and_a_handle_notices [];
}

const PERIOD_S: u64 = 300;
const PERIOD: Duration = Duration::from_secs(PERIOD_S);

/// A clock at the beginning of a window.
fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(5_912_345 * PERIOD_S)))
}

fn options(clock: &Arc<ManualClock>) -> VisitorsOptions {
    Visitors::options().period(PERIOD).shards(2).timeout(Duration::from_secs(20)).clock(clock.clone())
}

async fn open(store: &StoreRef, clock: &Arc<ManualClock>, name: &str) -> Visitors {
    options(clock).open_or_create(store, name).await.expect("visitors")
}

fn window(clock: &ManualClock) -> u64 {
    clock.wall().as_secs() / PERIOD_S
}

fn time_of(window: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(window * PERIOD_S)
}

async fn manifest(t: &Bench, name: &str) -> Manifest {
    let name = Name::new(name).expect("a short name");
    find(&t.store, Ctx::default(), &name).await.expect("a manifest").expect("a structure")
}

/// A key as `docs` write it down: other programs rely on it.
async fn key(t: &Bench, name: &str, index: &str) -> Key {
    Key::new(format!("L.{name}.v.{:016x}.{index}", manifest(t, name).await.generation)).expect("a short name")
}

async fn visitors_agree_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (name, clock) = (t.name("a"), clock());
    let mut handles = [open(&t.store, &clock, &name).await, open(&t.store, &clock, &name).await];
    let mut model: BTreeMap<u64, (u64, BTreeSet<u8>)> = BTreeMap::new();
    for step in 0..120 {
        let site = &handles[rng.usize(..2)];
        let at = window(&clock) - rng.u64(..=2);
        let who = rng.u8(..9);
        match rng.u8(..9) {
            0 => clock.advance(Duration::from_millis(rng.u64(..700_000))),
            1 | 2 => {
                let hits = rng.u64(..5);
                site.hit_at(time_of(at), hits).await.expect("hits");
                model.entry(at).or_default().0 += hits;
            }
            3..=5 => {
                site.hit_visitor_at([who], time_of(at)).await.expect("a hit");
                model.entry(at).or_default().1.insert(who);
            }
            6 => handles[usize::from(who % 2)] = open(&t.store, &clock, &name).await,
            _ => {
                let expected = model.get(&at).map_or(0, |(hits, visitors)| hits + visitors.len() as u64);
                assert_eq!(site.get_at(time_of(at)).await.expect("a figure"), expected, "step {step}, seed {seed}");
            }
        }
    }
}

async fn visitors_shift_at_the_boundary_and_interpolate(t: Bench) {
    let clock = clock();
    let site = open(&t.store, &clock, &t.name("a")).await;
    site.hit_many(60).await.expect("hits");
    clock.advance(PERIOD - Duration::from_millis(1));
    assert_eq!((site.current().await.expect("a figure"), site.get().await.expect("a figure")), (60, 0));
    clock.advance(Duration::from_millis(1));
    assert_eq!((site.current().await.expect("a figure"), site.get().await.expect("a figure")), (0, 60));
    for minutes in 0..5 {
        assert_eq!(site.interpolated().await.expect("a figure"), 12 * minutes);
        clock.advance(PERIOD / 5);
    }
    assert_eq!((site.get().await.expect("a figure"), site.interpolated().await.expect("a figure")), (0, 60));
    clock.advance(2 * PERIOD);
    assert_eq!((site.get().await.expect("a figure"), site.interpolated().await.expect("a figure")), (0, 0));
}

async fn visitors_named_by_any_bytes_count_once(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let long = vec![b'x'; 100_000];
    let ids: [&[u8]; 6] = [b"", b" ", b"\r\n", b"\0\xff", b"v", &long];
    for site in [open(&t.store, &clock, &name).await, open(&t.store, &clock, &name).await] {
        for id in ids.iter().chain(&ids) {
            site.hit_visitor(id).await.expect("a hit");
        }
        assert_eq!(site.current().await.expect("a figure"), 6);
    }
}

async fn visitors_are_exact_under_eight_tasks_and_two_handles(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let handles = [open(&t.store, &clock, &name).await, open(&t.store, &clock, &name).await];
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let site = handles[task % 2].clone();
            tokio::spawn(async move {
                for n in 0..40 {
                    site.hit().await.expect("a hit");
                    let id = if n % 2 == 0 { format!("all {n}") } else { format!("{task} {n}") };
                    site.hit_visitor(id).await.expect("a hit");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    clock.advance(PERIOD);
    assert_eq!(handles[0].get().await.expect("a figure"), 8 * 40 + 20 + 8 * 20);
}

async fn visitors_count_at_most_once_when_the_nth_op_fails(t: Bench) {
    for fault in [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)] {
        for nth in 1..=12 {
            let clock = clock();
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let site = options(&clock).shards(1).open_or_create(&faulty.shared(), &name).await.expect("visitors");
            faulty.fail_nth(nth, fault);
            let (mut sure, mut unsure) = (0, 0);
            for hits in [10, 100, 1_000] {
                match site.hit_many(hits).await {
                    Ok(()) => sure += hits,
                    Err(error) if error.is_unknown() => unsure += hits,
                    Err(error) => assert_eq!(error.known_effect(), Effect::NotApplied),
                }
                site.hit_visitor("one").await.expect("what is settled whatever breaks");
            }
            faulty.heal();
            faulty.deliver_late().await;
            let found = open_again(&t.store, &clock, &name).await.current().await.expect("a figure");
            assert!(found == sure + 1 || found == sure + unsure + 1, "{fault:?} at op {nth}: {found}, not {sure} + 1");
        }
    }
}

async fn open_again(store: &StoreRef, clock: &Arc<ManualClock>, name: &str) -> Visitors {
    Visitors::options().clock(clock.clone()).open(store, name).await.expect("the visitors")
}

async fn visitors_report_a_lost_window_and_no_other(t: Bench) {
    for part in ["", "-0"] {
        let (name, clock) = (t.name(&format!("a{part}")), clock());
        let site = options(&clock).shards(1).open_or_create(&t.store, &name).await.expect("visitors");
        for _ in 0..2 {
            site.hit_many(3).await.expect("hits");
            site.hit_visitor("v").await.expect("a hit");
            clock.advance(PERIOD);
        }
        let lost = window(&clock) - 1;
        t.ok(Op::delete(key(&t, &name, &format!("w{lost}{part}")).await)).await;
        for site in [&site, &open_again(&t.store, &clock, &name).await] {
            for error in [site.get().await.err(), site.interpolated().await.err()] {
                let error = error.expect("lost");
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert!(error.to_string().contains(&lost.to_string()), "{error} does not name the window");
            }
            assert_eq!(site.get_at(time_of(lost - 1)).await.expect("a figure"), 4);
            assert_eq!(site.current().await.expect("a figure"), 0);
            // Hits make it anew; that does not bring back what is gone.
            site.hit_at(time_of(lost), 1).await.expect("a hit");
            site.hit_visitor_at("w", time_of(lost)).await.expect("a hit");
            assert_eq!(site.get().await.expect_err("lost").kind(), ErrorKind::Lost);
        }
        clock.advance(PERIOD);
        assert_eq!(site.get().await.expect("a figure"), 0);
    }
}

async fn visitors_refuse_other_periods_and_times(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    for period in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(31 * 86_400)] {
        let error = options(&clock).period(period).open_or_create(&t.store, &name).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains("30 days"), "{error} does not name the limit");
    }
    assert_eq!(Visitors::open(&t.store, &name).await.expect_err("absent").kind(), ErrorKind::Absent);
    let site = open(&t.store, &clock, &name).await;
    let error = options(&clock).period(2 * PERIOD).open_or_create(&t.store, &name).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    for time in [time_of(window(&clock) - 3), time_of(window(&clock) + 2), UNIX_EPOCH] {
        for error in [site.hit_at(time, 1).await.err(), site.hit_visitor_at("v", time).await.err()] {
            let error = error.expect("refused");
            assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        }
    }
    assert_eq!(site.current().await.expect("a figure"), 0);
}

async fn drop_of_visitors_removes_every_key_and_a_handle_notices(t: Bench) {
    let (name, clock) = (t.name("a"), clock());
    let site = options(&clock).shards(1).open_or_create(&t.store, &name).await.expect("visitors");
    let mut keys = vec![key(&t, &name, "0").await];
    for _ in 0..3 {
        site.hit().await.expect("a hit");
        site.hit_visitor("v").await.expect("a hit");
        keys.push(key(&t, &name, &format!("w{}", window(&clock))).await);
        keys.push(key(&t, &name, &format!("w{}-0", window(&clock))).await);
        clock.advance(PERIOD);
    }
    for key in &keys {
        assert!(t.value(key).await.is_some(), "{key} is not where it is documented");
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::Visitors));
    for key in &keys {
        assert_eq!(t.value(key).await, None, "{key}");
    }
    for error in [site.get().await.err(), site.hit().await.err(), site.hit_visitor("w").await.err()] {
        assert_eq!(error.expect("lost").kind(), ErrorKind::Lost);
    }
    let again = open(&t.store, &clock, &name).await;
    assert!(site.hit().await.is_err(), "a hit of an earlier life counted");
    assert_eq!((again.get().await.expect("a figure"), again.current().await.expect("a figure")), (0, 0));
}
