//! The log against a plain list, in any order of puts, evictions, reads and turns of the clock, by two handles.

use std::collections::{BTreeMap, BTreeSet};

use larder_core::StoreExt;
use larder_structures::EventLog;
use larder_structures::log::{Cursor, Events, Gap, Tail};
use proptest::prelude::*;

use crate::log::support::*;
use crate::support::probe::Probe;

#[derive(Clone, Debug)]
enum Step {
    /// So long ago, so long.
    Put(u64, usize),
    Fetch(u64, u64),
    /// Looks until nothing is left behind, of so many parts each, by the cursor that goes through its bytes or by the other.
    Poll(bool, usize),
    /// One look, which may leave something behind.
    Glance,
    Evict(u64),
    Advance(u64),
    /// The handle is opened anew.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let ago_ms = || 0..12 * MINUTE_MS;
    prop_oneof![
        8 => (prop_oneof![Just(0), ago_ms()], prop_oneof![0usize..50, Just(2_500)]).prop_map(|(ago, len)| Step::Put(ago, len)),
        2 => (ago_ms(), ago_ms()).prop_map(|(one, two)| Step::Fetch(one.max(two), one.min(two))),
        3 => (any::<bool>(), 1usize..4).prop_map(|(through_bytes, parts)| Step::Poll(through_bytes, parts)),
        2 => Just(Step::Glance),
        1 => ago_ms().prop_map(Step::Evict),
        2 => prop_oneof![0..MINUTE_MS, Just(7 * MINUTE_MS)].prop_map(Step::Advance),
        1 => Just(Step::Reopen),
    ]
}

/// What was put and not lost: its time, its text.
#[derive(Default)]
struct Model {
    events: Vec<(u64, String)>,
    /// Chunks of which a part was lost, and how many.
    gaps: BTreeMap<u64, usize>,
    next: usize,
}

impl Model {
    fn between(&self, first_ms: u64, last_ms: u64) -> BTreeSet<String> {
        let is_in = |time_ms: u64| (first_ms..=last_ms).contains(&time_ms);
        self.events.iter().filter(|(time_ms, _)| is_in(*time_ms)).map(|(_, text)| text.clone()).collect()
    }

    fn gaps_between(&self, first_ms: u64, last_ms: u64) -> usize {
        self.gaps.range(first_ms / MINUTE_MS..=last_ms / MINUTE_MS).map(|(_, gaps)| gaps).sum()
    }
}

fn unique(events: Events) -> (BTreeSet<String>, Vec<Gap>) {
    let (events, gaps) = events.with_gaps();
    assert!(events.is_sorted_by_key(|event| event.time_ms));
    let texts = texts_of(&events);
    let unique: BTreeSet<String> = texts.iter().cloned().collect();
    assert_eq!(unique.len(), texts.len(), "an event is told twice");
    (unique, gaps)
}

/// One look, held against what was put and lost, and what was told before.
async fn look(tail: &mut Tail, (all, gaps_told): &mut (BTreeSet<String>, usize), model: &Model) {
    let (events, gaps) = unique(tail.poll().await.unwrap());
    for event in events {
        assert!(all.insert(event), "an event is told twice");
    }
    *gaps_told += gaps.len();
    assert!(*gaps_told <= model.gaps.values().sum());
}

async fn play(steps: Vec<(bool, Step)>) {
    let store = Probe::small(7_000).shared();
    let clock = clock();
    let mut handles: Vec<EventLog> = Vec::new();
    for _ in 0..2 {
        handles.push(options(&clock).open_or_create(&store, "l").await.unwrap());
    }
    let mut model = Model::default();
    let tail = |at: usize, parts| handles[at].tail(Cursor::default()).unwrap().parts_a_look(parts);
    let mut tails = [tail(0, 1), tail(1, 3)];
    // Of each tail: what it told, and how many gaps.
    let mut told: [(BTreeSet<String>, usize); 2] = Default::default();
    for (second, step) in steps {
        let at = usize::from(second);
        let now_ms = now_ms(&clock);
        let oldest_ms = now_ms - 10 * MINUTE_MS;
        match step {
            Step::Put(ago_ms, len) => {
                let (time_ms, text) = (now_ms - ago_ms, format!("{}-{:0len$}", model.next, 0));
                let outcome = handles[at].put_at(time_ms, &text).await;
                assert_eq!(outcome.is_ok(), time_ms >= oldest_ms, "{outcome:?}");
                if outcome.is_ok() {
                    model.events.push((time_ms, text));
                    model.next += 1;
                }
            }
            Step::Fetch(first_ago_ms, last_ago_ms) => {
                let (first_ms, last_ms) = (now_ms - first_ago_ms, now_ms - last_ago_ms);
                let (events, gaps) = unique(handles[at].fetch(first_ms..=last_ms).await.unwrap());
                assert_eq!(events, model.between(first_ms.max(oldest_ms), last_ms));
                if last_ms >= oldest_ms {
                    assert_eq!(gaps.len(), model.gaps_between(first_ms.max(oldest_ms), last_ms));
                }
            }
            Step::Glance => look(&mut tails[at], &mut told[at], &model).await,
            Step::Poll(through_bytes, parts) => {
                if through_bytes {
                    let cursor = Cursor::from_bytes(&tails[at].cursor().to_bytes()).unwrap();
                    tails[at] = handles[at].tail(cursor).unwrap().parts_a_look(parts);
                }
                // What a look in between has left, and then all that came since.
                while tails[at].is_behind() {
                    look(&mut tails[at], &mut told[at], &model).await;
                }
                look(&mut tails[at], &mut told[at], &model).await;
                while tails[at].is_behind() {
                    look(&mut tails[at], &mut told[at], &model).await;
                }
                // All that is there is told.
                assert!(model.between(oldest_ms, u64::MAX).is_subset(&told[at].0));
            }
            Step::Evict(ago_ms) => {
                let time_ms = now_ms - ago_ms;
                let key = part_key(&store, "l", time_ms, 0).await;
                if store.delete(key).await.unwrap() {
                    let chunk = time_ms / MINUTE_MS;
                    *model.gaps.entry(chunk).or_default() += 1;
                    // Which events were in its first part, a fetch tells; it must tell of the gap.
                    let fresh = options(&clock).open(&store, "l").await.unwrap();
                    let (left, _) = unique(fresh.fetch(oldest_ms..).await.unwrap());
                    model.events.retain(|(at_ms, text)| at_ms / MINUTE_MS != chunk || left.contains(text));
                }
            }
            Step::Advance(ms) => advance(&clock, ms),
            Step::Reopen => handles[at] = options(&clock).open(&store, "l").await.unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_model_agrees(steps in proptest::collection::vec((any::<bool>(), step()), 0..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps));
    }
}
