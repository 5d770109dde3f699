//! Sharded sorted sets through their public handles, on every store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, Op, PutMode, Reply, Result, StoreRef, Ttl, Want};
use larder_layers::Counting;
use larder_structures::inspect::inspect;
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Kind, Name, ShardedSet, ShardedSortedSet};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    sorted_sets_agree_with_a_model [Cas];
    sorted_sets_show_every_acknowledged_change_under_four_writers [Cas];
    sorted_sets_agree_with_their_shards_when_the_nth_op_fails [Cas];
    sorted_sets_are_filled_again_when_filling_dies_at_the_nth_op [Cas];
    sorted_sets_make_lost_ends_again_from_their_shards [Cas];
    sorted_sets_notice_ends_that_were_set_back [Cas];
    sorted_sets_report_a_lost_shard [Cas];
    sorted_sets_of_dense_numbers_grow [Cas];
    sorted_sets_order_every_score_there_is [Cas];
    sorted_sets_refuse_what_does_not_fit [Cas];
    sorted_round_trips_are_as_documented [Cas];
    drop_of_a_sorted_set_removes_every_key_and_a_handle_notices [Cas];
}

const PATIENCE: Duration = Duration::from_secs(30);

type Scores = BTreeMap<Vec<u8>, f64>;
type Ranking = Vec<(Bytes, f64)>;

async fn sorted(store: &StoreRef, name: &str, shards: u16, kept: u16) -> ShardedSortedSet {
    let options = ShardedSortedSet::options().shards(shards).kept(kept).timeout(PATIENCE);
    options.open_or_create(store, name).await.expect("a sorted set")
}

/// The lowest first.
fn ranking(scores: impl IntoIterator<Item = (Bytes, f64)>) -> Ranking {
    let mut all: Ranking = scores.into_iter().collect();
    all.sort_by(|(a, x), (b, y)| x.total_cmp(y).then_with(|| a.cmp(b)));
    all
}

fn of_model(model: &Scores) -> Ranking {
    ranking(model.iter().map(|(member, score)| (Bytes::from(member.clone()), *score)))
}

/// Both ends are those of this ranking, to as many as are kept.
async fn ends_are(set: &ShardedSortedSet, all: &Ranking, when: &str) {
    let n = set.kept();
    let top: Ranking = all.iter().rev().take(n).cloned().collect();
    let bottom: Ranking = all.iter().take(n).cloned().collect();
    assert_eq!(set.top(n).await.expect("a top"), top, "{when}");
    assert_eq!(set.bottom(n).await.expect("a bottom"), bottom, "{when}");
}

/// The ends are those of all that stands in the shards.
async fn ends_agree(set: &ShardedSortedSet, when: &str) -> Ranking {
    let all = ranking(set.entries().await.expect("entries"));
    assert!(all.windows(2).all(|pair| pair[0].0 != pair[1].0), "a member is there twice, {when}");
    assert_eq!(set.len().await.expect("a length"), all.len() as u64, "{when}");
    ends_are(set, &all, when).await;
    all
}

async fn sorted_sets_agree_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let sets = [sorted(&t.store, &name, 5, 3).await, sorted(&t.store, &name, 5, 3).await];
    let mut model = Scores::new();
    for step in 0..120 {
        let when = format!("step {step}, seed {seed}");
        let set = &sets[rng.usize(..2)];
        let members: Vec<Vec<u8>> = (0..rng.usize(1..5))
            .map(|_| match rng.u8(..30) {
                0 => Vec::new(),
                1 => vec![0, 0xff, b'\r', b'\n'],
                n => vec![b'a' + n],
            })
            .collect();
        match rng.u8(..20) {
            0..=6 => {
                let entries: Vec<_> =
                    members.into_iter().map(|member| (member, f64::from(rng.i32(-9..9)) / 2.0)).collect();
                let expected: Vec<bool> =
                    entries.iter().map(|(member, score)| model.insert(member.clone(), *score).is_none()).collect();
                assert_eq!(set.set(entries).await.expect("a set"), expected, "{when}");
            }
            7..=9 => {
                let entries: Vec<_> = members.into_iter().map(|member| (member, f64::from(rng.i32(-4..4)))).collect();
                let mut sum = |(member, by): &(Vec<u8>, f64)| {
                    let score = model.entry(member.clone()).or_insert(0.0);
                    *score += by;
                    *score
                };
                let expected: Vec<f64> = entries.iter().map(&mut sum).collect();
                assert_eq!(set.add(entries).await.expect("an add"), expected, "{when}");
            }
            10..=15 => {
                let expected: Vec<bool> = members.iter().map(|member| model.remove(member).is_some()).collect();
                assert_eq!(set.remove(&members).await.expect("a removal"), expected, "{when}");
            }
            16..=17 => {
                let expected: Vec<Option<f64>> = members.iter().map(|member| model.get(member).copied()).collect();
                assert_eq!(set.scores(&members).await.expect("scores"), expected, "{when}");
            }
            18 => assert_eq!(ends_agree(set, &when).await, of_model(&model), "{when}"),
            _ => set.reshard(rng.u16(1..12)).await.expect("a resharding"),
        }
        ends_are(&sets[rng.usize(..2)], &of_model(&model), &when).await;
    }
}

async fn sorted_sets_show_every_acknowledged_change_under_four_writers(t: Bench) {
    const TURNS: i32 = 40;
    let name = t.name("a");
    let mut writers = Vec::new();
    for writer in 0..4u8 {
        let (set, reader) = (sorted(&t.store, &name, 6, 5).await, sorted(&t.store, &name, 6, 5).await);
        writers.push(tokio::spawn(async move {
            let own = format!("own-{writer}");
            let mut sums = 0;
            for turn in 0..TURNS {
                // Its own member only rises, among the five highest with those of the others.
                let score = 1_000.0 + f64::from(turn);
                set.set([(&own, score)]).await.expect("a set");
                let top = reader.top(5).await.expect("a top");
                let found = top.iter().find(|(member, _)| *member == own.as_bytes());
                assert_eq!(found.map(|(_, score)| *score), Some(score), "{own} in {top:?}");
                // Members that all of them change, at either end and between.
                let member = format!("m{}", fastrand::u8(..30));
                match fastrand::u8(..3) {
                    0 => _ = set.set([(&member, f64::from(fastrand::i8(..)))]).await.expect("a set"),
                    1 => _ = set.remove([&member]).await.expect("a removal"),
                    _ => {
                        set.add([("sum", -1.0)]).await.expect("an add");
                        sums += 1;
                    }
                }
                tokio::task::yield_now().await;
            }
            sums
        }));
    }
    let mut sum = 0;
    for writer in writers {
        sum += writer.await.expect("no panic");
    }
    for set in [sorted(&t.store, &name, 6, 5).await, sorted(&t.store, &name, 6, 5).await] {
        let all = ends_agree(&set, "at the end").await;
        let found = all.iter().find(|(member, _)| member == "sum").map_or(0.0, |(_, score)| *score);
        assert_eq!(found, -f64::from(sum), "each add counts once");
        set.reshard(11).await.expect("a resharding");
        assert_eq!(ends_agree(&set, "resharded").await, all);
    }
}

const FAULTS: [Fault; 5] = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)];

async fn sorted_sets_agree_with_their_shards_when_the_nth_op_fails(t: Bench) {
    for fault in FAULTS {
        for nth in 1..=9 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let set = sorted(&faulty.shared(), &name, 3, 2).await;
            set.set((0..8).map(|n| (format!("m{n}"), f64::from(n)))).await.expect("a set");
            faulty.fail_nth(nth, fault);
            let when = format!("{fault:?} at op {nth}");
            // To the top, out of it, and in between.
            let rises = outcome(set.set([("m3", 9.0)]).await.map(|_| ()), None, 9.0, Some(3.0), &when);
            let falls = outcome(set.remove(["m7"]).await.map(|_| ()), Some(()), 0.0, Some(7.0), &when);
            let moves = outcome(set.add([("m4", 0.5)]).await.map(|_| ()), None, 4.5, Some(4.0), &when);
            faulty.heal();
            // Whoever reads a member first is told what everybody is told from then on: also at the ends.
            let other = sorted(&t.store, &name, 3, 2).await;
            let before = other.scores(["m3", "m7", "m4"]).await.unwrap_or_else(|error| panic!("{when}: {error}"));
            for (found, expected) in before.iter().zip([&rises, &falls, &moves]) {
                assert!(expected.contains(found), "{when}: {found:?}, not one of {expected:?}");
            }
            ends_agree(&other, &when).await;
            faulty.deliver_late().await;
            for set in [&other, &set, &sorted(&t.store, &name, 3, 2).await] {
                let all = ends_agree(set, &when).await;
                for (member, expected) in [("m3", &rises), ("m7", &falls), ("m4", &moves)] {
                    let found = all.iter().find(|(found, _)| found == member).map(|(_, score)| *score);
                    assert!(expected.contains(&found), "{when}: {member} has {found:?}, not one of {expected:?}");
                }
            }
        }
    }
}

/// What the score of a member may be after a change that ended so: `removed`, or with this score, or as it was.
fn outcome(ended: Result<()>, removed: Option<()>, score: f64, before: Option<f64>, when: &str) -> Vec<Option<f64>> {
    let after = if removed.is_some() { None } else { Some(score) };
    match ended {
        Ok(()) => vec![after],
        Err(error) if error.is_unknown() => vec![before, after],
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::Lost, "{error}: nothing was lost ({when})");
            vec![before]
        }
    }
}

async fn sorted_sets_are_filled_again_when_filling_dies_at_the_nth_op(t: Bench) {
    for fault in FAULTS {
        for nth in (1..).step_by(2) {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let set = sorted(&faulty.shared(), &name, 3, 2).await;
            set.set((0..16).map(|n| (format!("m{n:02}"), f64::from(n)))).await.expect("a set");
            set.remove(["m15", "m14"]).await.expect("a removal");
            let when = format!("{fault:?} at op {nth}");
            faulty.fail_nth(nth, fault);
            // One more than the top can spare: it is filled from the shards.
            let removed = set.remove(["m13"]).await;
            let is_over = faulty.injected() == 0;
            faulty.heal();
            let other = sorted(&t.store, &name, 3, 2).await;
            other.set([("m01", 11.5)]).await.unwrap_or_else(|error| panic!("{when}: {error}"));
            if removed.is_ok() {
                let top = other.top(2).await.unwrap_or_else(|error| panic!("{when}: {error}"));
                assert_eq!(top, [("m12".into(), 12.0), ("m01".into(), 11.5)], "{when}");
            }
            faulty.deliver_late().await;
            ends_agree(&other, &when).await;
            ends_agree(&set, &when).await;
            if is_over {
                removed.expect("nothing failed");
                break;
            }
        }
    }
}

/// Keys as `docs/layouts.md` writes them down: 0 is the map, 1 the ends.
async fn data_key(t: &Bench, name: &str, index: u8) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await.expect("a manifest");
    let generation = manifest.expect("a structure").generation;
    Key::new(format!("L.{name}.z.{generation:016x}.{index}")).expect("a short name")
}

async fn shard_key(t: &Bench, name: &str, shard: u16) -> Key {
    let map = data_key(t, name, 0).await;
    let value = t.ok(Op::get(map.clone(), Want::VALUE)).await.into_item().expect("the map").value;
    let id = u32::from_le_bytes(*value[10..].first_chunk().expect("an id"));
    let text = std::str::from_utf8(map.as_bytes()).expect("text");
    Key::new(format!("{}{id:08x}-{shard}", &text[..text.len() - 1])).expect("a short name")
}

async fn sorted_sets_make_lost_ends_again_from_their_shards(t: Bench) {
    let name = t.name("a");
    let set = sorted(&t.store, &name, 4, 3).await;
    let stale = sorted(&t.store, &name, 4, 3).await;
    let mut model = Scores::new();
    for n in 0..40 {
        model.insert(format!("m{n:02}").into_bytes(), f64::from(n));
    }
    set.set(model_entries(&model)).await.expect("a set");
    ends_are(&stale, &of_model(&model), "before").await;
    let ends = data_key(&t, &name, 1).await;
    assert_eq!(t.ok(Op::delete(ends.clone())).await, Reply::Deleted);
    ends_are(&set, &of_model(&model), "read").await;
    // Written to first: from the top to between, between, and new at the bottom.
    assert_eq!(t.ok(Op::delete(ends.clone())).await, Reply::Deleted);
    stale.set([("m39", 20.5), ("m21", 21.5), ("new", -1.0)]).await.expect("a set");
    model.extend([(b"m39".to_vec(), 20.5), (b"m21".to_vec(), 21.5), (b"new".to_vec(), -1.0)]);
    ends_are(&set, &of_model(&model), "written").await;
    assert_eq!(t.ok(Op::delete(ends)).await, Reply::Deleted);
    assert_eq!(set.remove(["m38", "m20"]).await.expect("a removal"), [true, true]);
    model.remove(&b"m38"[..]);
    model.remove(&b"m20"[..]);
    assert_eq!(ends_agree(&stale, "removed").await, of_model(&model));
    assert_eq!(ends_agree(&sorted(&t.store, &name, 4, 3).await, "opened anew").await, of_model(&model));
}

fn model_entries(model: &Scores) -> Vec<(Vec<u8>, f64)> {
    model.iter().map(|(member, score)| (member.clone(), *score)).collect()
}

async fn sorted_sets_notice_ends_that_were_set_back(t: Bench) {
    let name = t.name("a");
    let set = sorted(&t.store, &name, 3, 2).await;
    set.set((0..20).map(|n| (format!("m{n:02}"), f64::from(n)))).await.expect("a set");
    let ends = data_key(&t, &name, 1).await;
    let old = t.ok(Op::get(ends.clone(), Want::VALUE)).await.into_item().expect("the ends").value;
    set.set([("m05", 30.0)]).await.expect("a set");
    set.remove(["m00"]).await.expect("a removal");
    // As a server that lost its latest writes, those of the shards left out. The handle has seen newer ones; another learns of it from a shard.
    let expected = ["m05", "m19"];
    for set in [set, sorted(&t.store, &name, 3, 2).await] {
        let reply = t.ok(Op::put(ends.clone(), PutMode::Set, old.clone(), Ttl::Never)).await;
        assert_eq!(reply, Reply::Stored);
        assert_eq!(set.score("m05").await.expect("a score"), Some(30.0));
        let top: Vec<Bytes> = set.top(2).await.expect("a top").into_iter().map(|(member, _)| member).collect();
        assert_eq!(top, expected);
        ends_agree(&set, "set back").await;
    }
}

async fn sorted_sets_report_a_lost_shard(t: Bench) {
    let name = t.name("a");
    let options = || ShardedSortedSet::options().shards(3).dense(10).kept(2).timeout(PATIENCE);
    let set = options().open_or_create(&t.store, &name).await.expect("a set");
    set.set((0..30).map(|id| (id.to_string(), f64::from(id)))).await.expect("a set");
    assert_eq!(t.ok(Op::delete(shard_key(&t, &name, 1).await)).await, Reply::Deleted);
    for set in [set, ShardedSortedSet::open(&t.store, &name).await.expect("a set")] {
        let lost = [
            set.score("10").await.err(),
            set.set([("19", 1.0)]).await.err(),
            set.add([("19", 1.0)]).await.err(),
            set.remove(["15"]).await.err(),
            set.len().await.err(),
            set.entries().await.err(),
            set.reshard(7).await.err(),
        ];
        for (at, error) in lost.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("call {at}: it is gone"));
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        assert_eq!(set.score("9").await.expect("a score"), Some(9.0));
    }
    // Ends cannot be made of shards that are not all there.
    assert_eq!(t.ok(Op::delete(data_key(&t, &name, 1).await)).await, Reply::Deleted);
    let set = ShardedSortedSet::open(&t.store, &name).await.expect("a set");
    for _ in 0..2 {
        assert_eq!(set.top(1).await.expect_err("a shard is gone").kind(), ErrorKind::Lost);
    }
    t.ok(Op::delete(data_key(&t, &name, 0).await)).await;
    assert_eq!(set.top(1).await.expect_err("the map is gone").kind(), ErrorKind::Lost);
    assert_eq!(ShardedSortedSet::open(&t.store, &name).await.expect_err("no map").kind(), ErrorKind::Lost);
}

async fn sorted_sets_of_dense_numbers_grow(t: Bench) {
    let name = t.name("a");
    let options = || ShardedSortedSet::options().shards(2).dense(8).kept(3).timeout(PATIENCE);
    let set = options().open_or_create(&t.store, &name).await.expect("a set");
    let stale = options().open_or_create(&t.store, &name).await.expect("a set");
    set.set((0..16).map(|id| (id.to_string(), f64::from(id % 5)))).await.expect("a set");
    for member in ["16", "-1", "07", ""] {
        let error = set.set([("1", 9.0), (member, 9.0)]).await.expect_err("out of range");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    }
    set.reshard(5).await.expect("more shards");
    assert_eq!(stale.set([("39", 3.5)]).await.expect("it takes more now"), [true]);
    for set in [set, stale] {
        assert_eq!(set.top(3).await.expect("a top"), [("9".into(), 4.0), ("4".into(), 4.0), ("14".into(), 4.0)]);
        assert_eq!(ends_agree(&set, "grown").await.len(), 17);
    }
}

async fn sorted_sets_order_every_score_there_is(t: Bench) {
    let name = t.name("a");
    let set = sorted(&t.store, &name, 2, 12).await;
    let scores = [
        f64::NEG_INFINITY,
        f64::MIN,
        -9_007_199_254_740_993.0,
        -1.5,
        -f64::MIN_POSITIVE,
        0.0,
        f64::from_bits(1),
        0.1,
        9_007_199_254_740_992.0,
        f64::MAX,
        f64::INFINITY,
    ];
    set.set(scores.iter().enumerate().rev().map(|(at, score)| (format!("{at}"), *score))).await.expect("a set");
    set.set([("zero", -0.0)]).await.expect("a set");
    let mut bottom: Vec<f64> = set.bottom(12).await.expect("a bottom").into_iter().map(|(_, score)| score).collect();
    assert_eq!(bottom.remove(6).to_bits(), 0, "there is one zero");
    assert_eq!(bottom, scores);
    let error = set.add([("1", 1.0), ("0", f64::INFINITY)]).await.expect_err("no sum");
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert_eq!(set.add([("10", f64::INFINITY), ("none", -2.0)]).await.expect("sums"), [f64::INFINITY, -2.0]);
    ends_agree(&set, "every score").await;
}

async fn sorted_sets_refuse_what_does_not_fit(t: Bench) {
    let name = t.name("a");
    assert_eq!(ShardedSortedSet::open(&t.store, &name).await.expect_err("absent").kind(), ErrorKind::Absent);
    for kept in [0, 1_001] {
        let error = ShardedSortedSet::options().kept(kept).open_or_create(&t.store, &name).await.expect_err("so many");
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains("1000") && error.to_string().contains(&kept.to_string()), "{error}");
    }
    let set = sorted(&t.store, &name, 2, 10).await;
    assert_eq!(ShardedSet::open(&t.store, &name).await.expect_err("sorted").kind(), ErrorKind::LayoutMismatch);
    for bad in [f64::NAN, -f64::NAN] {
        for error in [set.set([("a", 1.0), ("b", bad)]).await.err(), set.add([("b", bad)]).await.err()] {
            let error = error.expect("not a number");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
        }
    }
    // A member of the longest name there is, at both ends, as often as they hold one.
    let long = vec![b'x'; 65_536];
    let error = set.set([(&b"a"[..], 1.0), (&long, 1.0)]).await.expect_err("too long");
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    let text = error.to_string();
    let max: usize = text.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!(text.contains("65536") && max >= 64, "{text}");
    let error = set.top(11).await.expect_err("more than are kept");
    assert_eq!((error.kind(), error.to_string().contains("10 members")), (ErrorKind::BadInput, true), "{error}");
    assert_eq!(set.len().await.expect("a length"), 0);
    assert_eq!((set.top(10).await.expect("a top"), set.bottom(0).await.expect("a bottom")), (Vec::new(), Vec::new()));
    assert_eq!(set.set([("", 1.0); 0]).await.expect("nothing to do"), [false; 0]);
    let full = sorted(&t.store, &t.name("b"), 60, 10).await;
    for n in 0..60u8 {
        let mut member = vec![b'x'; max];
        member[0] = n;
        full.set([(member, f64::from(n))]).await.expect("the longest");
    }
    assert_eq!(ends_agree(&full, "full").await.len(), 60);
}

async fn sorted_round_trips_are_as_documented(t: Bench) {
    let counting = Counting::new(t.store.clone());
    let store: StoreRef = Arc::new(counting.clone());
    let name = t.name("a");
    async fn cost<T>(counting: &Counting, act: impl Future<Output = Result<T>>) -> (u64, T) {
        let before = counting.counts();
        let outcome = act.await.expect("an uncontended call");
        (counting.counts().since(&before).round_trips, outcome)
    }
    let options = || ShardedSortedSet::options().shards(8).kept(4);
    let (spent, set) = cost(&counting, options().open_or_create(&store, &name)).await;
    assert_eq!(spent, 4, "open_or_create, made");
    assert_eq!(cost(&counting, ShardedSortedSet::open(&store, &name)).await.0, 2, "open");
    let many = || (0..100).map(|n| (format!("m{n:02}"), f64::from(n)));
    assert_eq!(cost(&counting, set.set(many())).await.0, 3, "set at the ends");
    assert_eq!(cost(&counting, set.set([("m50", 49.5)])).await.0, 2, "set between them");
    assert_eq!(cost(&counting, set.set([("m50", 101.0)])).await.0, 3, "into the top");
    assert_eq!(cost(&counting, set.set([("m50", 50.5)])).await.0, 3, "out of it");
    assert_eq!(cost(&counting, set.add([("m60", 0.5)])).await.0, 2, "add between them");
    assert_eq!(cost(&counting, set.remove(["m51"])).await.0, 2, "remove between them");
    assert_eq!(cost(&counting, set.remove(["none"])).await.0, 1, "remove of none");
    assert_eq!(cost(&counting, set.top(4)).await.0, 1, "top");
    assert_eq!(cost(&counting, set.bottom(4)).await.0, 1, "bottom");
    assert_eq!(cost(&counting, set.score("m99")).await.0, 1, "score of one at the top, whose handle wrote the ends");
    let fresh = ShardedSortedSet::open(&t.store, &name).await.expect("a set");
    fresh.set([("m98", 105.0)]).await.expect("a set");
    assert_eq!(cost(&counting, set.score("m98")).await.0, 2, "score of one that another changed there");
    assert_eq!(cost(&counting, set.scores(many().map(|(member, _)| member).skip(10).take(80))).await.0, 1, "scores");
    assert_eq!(cost(&counting, set.len()).await.0, 1, "len");
    assert!(cost(&counting, set.entries()).await.0 <= 3, "entries");
    assert_eq!(cost(&counting, set.stat()).await.0, 1, "stat");
    // Handles that know nothing of the ends read them beside the shard.
    let cold = ShardedSortedSet::open(&store, &name).await.expect("a set");
    assert_eq!(cost(&counting, cold.set([("m55", 55.5)])).await.0, 2, "the first set, between");
    let cold = ShardedSortedSet::open(&store, &name).await.expect("a set");
    assert_eq!(cost(&counting, cold.set([("m55", 155.5)])).await.0, 3, "the first set, at the top");
    // What the top can spare is gone after four removals: the fifth fills it.
    for member in ["m55", "m98", "m99", "m97"] {
        assert_eq!(cost(&counting, cold.remove([member])).await.0, 3, "remove at the top");
    }
    let spent = cost(&counting, cold.remove(["m96"])).await.0;
    assert!((4..=10).contains(&spent), "a removal that fills the ends took {spent}");
    assert_eq!(cost(&counting, cold.top(4)).await.0, 1, "top after it");
}

async fn drop_of_a_sorted_set_removes_every_key_and_a_handle_notices(t: Bench) {
    let name = t.name("a");
    let set = sorted(&t.store, &name, 3, 2).await;
    set.set([("a", 1.0)]).await.expect("a set");
    let found = inspect(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a look");
    let found = found.expect("a structure");
    // The manifest, the map, the ends, and the shards.
    assert_eq!((found.keys, found.elements, found.missing), (6, Some(1), 0));
    let mut keys = vec![data_key(&t, &name, 0).await, data_key(&t, &name, 1).await];
    for shard in 0..3 {
        keys.push(shard_key(&t, &name, shard).await);
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::ShardedSortedSet));
    for error in [set.score("a").await.err(), set.set([("a", 2.0)]).await.err(), set.top(1).await.err()] {
        assert_eq!(error.expect("lost").kind(), ErrorKind::Lost);
    }
    for key in keys {
        assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Miss, "{key} is left");
    }
    let again = sorted(&t.store, &name, 3, 2).await;
    assert_eq!((again.len().await.expect("a length"), again.top(1).await.expect("a top")), (0, Vec::new()));
}
