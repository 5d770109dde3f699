//! Arrays through their public handle, on every store, and what each call costs there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, Op, PutMode, Result, StoreRef, Ttl};
use larder_layers::Counting;
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Array, ArrayOptions, Lock, Name};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    array_agrees_with_a_model [];
    array_over_shards_agrees_with_a_model [Cas];
    array_keeps_elements_of_any_bytes_in_order [];
    array_changes_over_shards_are_whole_to_every_reader [Cas];
    array_change_over_shards_is_refused_without_cas [NoCas];
    array_is_whole_under_eight_tasks_and_two_handles [Cas];
    array_is_whole_when_the_nth_op_fails [Cas];
    array_reports_a_lost_shard_and_lost_commits [Cas];
    array_goes_on_once_a_part_that_was_set_back_is_accepted [Cas];
    array_refuses_a_holder_that_was_overtaken [Cas, Ttl];
    drop_of_an_array_removes_every_key [];
    budget_array_open [];
    budget_array_create [];
    budget_array_push_of_a_thousand [];
    budget_array_remove_of_a_thousand [];
    budget_array_change_in_one_shard [];
    budget_array_change_over_shards [Cas];
    budget_array_first_change_over_shards [Cas];
    budget_array_change_under_a_lock [Cas, Ttl];
    budget_array_elements [];
    budget_array_stat [];
    budget_array_accept_loss_of_nothing [];
    budget_drop_of_an_array [];
}

const NOTHING: [&str; 0] = [];
const SHARDS: u16 = 3;

const FAULTS: [Fault; 5] = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(2)];

fn options() -> ArrayOptions {
    Array::options().timeout(Duration::from_secs(20))
}

async fn open(store: &StoreRef, name: &str, shards: u16) -> Array {
    options().shards(shards).open_or_create(store, name).await.expect("an array")
}

async fn sorted(array: &Array) -> Vec<Bytes> {
    let mut elements = array.elements().await.expect("elements");
    elements.sort();
    elements
}

/// The parts of a whole that is changed at once.
fn whole(generation: u32) -> Vec<String> {
    (0..8).map(|part| format!("{generation}-{part}")).collect()
}

/// A key as `docs` write it down: other programs rely on it.
async fn key(t: &Bench, name: &str, index: &str) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await;
    let generation = manifest.expect("a manifest").expect("a structure").generation;
    Key::new(format!("L.{name}.a.{generation:016x}.{index}")).expect("a short name")
}

async fn array_agrees_with_a_model(t: Bench) {
    agree(t, 1).await;
}

async fn array_over_shards_agrees_with_a_model(t: Bench) {
    agree(t, SHARDS).await;
}

async fn agree(t: Bench, shards: u16) {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let mut handles = Vec::new();
    for _ in 0..2 {
        handles.push(options().shards(shards).dirtiness(64).open_or_create(&t.store, &name).await.expect("an array"));
    }
    let mut model: Vec<String> = Vec::new();
    for step in 0..120 {
        let array = &handles[rng.usize(0..2)];
        let mut draw = || (0..rng.usize(0..4)).map(|_| rng.u8(0..12).to_string()).collect::<Vec<_>>();
        let (add, delete) = (draw(), draw());
        match rng.u8(0..4) {
            0 => {
                array.push(&add).await.expect("a push");
                model.extend(add);
            }
            1 => {
                array.remove(&delete).await.expect("a remove");
                model.retain(|element| !delete.contains(element));
            }
            2 => {
                array.change(&add, &delete).await.expect("a change");
                model.retain(|element| !delete.contains(element));
                model.extend(add);
            }
            _ if shards == 1 => {
                assert_eq!(array.elements().await.expect("elements"), model, "step {step}, seed {seed}")
            }
            _ => {
                let mut expected = model.clone();
                expected.sort();
                assert_eq!(sorted(array).await, expected, "step {step}, seed {seed}");
            }
        }
    }
    model.sort();
    for array in &handles {
        assert_eq!(sorted(array).await, model, "seed {seed}");
    }
}

async fn array_keeps_elements_of_any_bytes_in_order(t: Bench) {
    let array = Array::open_or_create(&t.store, t.name("a")).await.expect("an array");
    let all = [&b"b"[..], b"", b"\0", b"\0\x01", b"a\r\nb ", b"\xff", b"b", b""];
    array.push(all).await.expect("a push");
    assert_eq!(array.elements().await.expect("elements"), all);
    array.change(["end"], ["", "b"]).await.expect("a change");
    assert_eq!(array.elements().await.expect("elements"), [&b"\0"[..], b"\0\x01", b"a\r\nb ", b"\xff", b"end"]);
    let error = array.push([vec![1; array.element_bytes_max() + 1]]).await.expect_err("over the limit");
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    assert_eq!(array.stat().await.expect("figures").elements, 5);
}

async fn array_changes_over_shards_are_whole_to_every_reader(t: Bench) {
    let name = t.name("a");
    let array = open(&t.store, &name, SHARDS).await;
    array.push(whole(0)).await.expect("a push");
    let reader = tokio::spawn({
        let other = open(&t.store, &name, SHARDS).await;
        async move {
            let mut reads = 0;
            loop {
                let elements = sorted(&other).await;
                let first = std::str::from_utf8(elements.first().expect("a whole")).expect("text").to_owned();
                let generation: u32 = first.split('-').next().and_then(|text| text.parse().ok()).expect("a number");
                assert_eq!(elements, whole(generation), "half a change");
                reads += 1;
                if generation == 60 {
                    return reads;
                }
                tokio::task::yield_now().await;
            }
        }
    });
    for generation in 1..=60 {
        array.change(whole(generation), whole(generation - 1)).await.expect("a change");
        if generation % 20 == 0 {
            _ = array.compact().await;
        }
    }
    assert!(reader.await.expect("no panic") >= 1);
}

async fn array_change_over_shards_is_refused_without_cas(t: Bench) {
    let array = open(&t.store, &t.name("a"), SHARDS).await;
    array.push(whole(0)).await.expect("a push");
    array.change(["x"], ["x"]).await.expect("a change in one shard");
    let error = array.change(whole(1), whole(0)).await.expect_err("refused");
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
    assert_eq!(sorted(&array).await.len(), 9);
}

async fn array_is_whole_under_eight_tasks_and_two_handles(t: Bench) {
    let name = t.name("a");
    let handles = [open(&t.store, &name, SHARDS).await, open(&t.store, &name, SHARDS).await];
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let array = handles[task % 2].clone();
            tokio::spawn(async move {
                for round in 0..8 {
                    array.push([format!("{task}-{round}"), format!("{task}-{round}")]).await.expect("a push");
                    let (old, new) = (format!("{task}-at-{round}"), format!("{task}-at-{}", round + 1));
                    array.change([new, format!("{task}-x")], [old, format!("{task}-x")]).await.expect("a change");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut expected: Vec<String> =
        (0..8).flat_map(|task| (0..8).flat_map(move |round| vec![format!("{task}-{round}"); 2])).collect();
    expected.extend((0..8).flat_map(|task| [format!("{task}-at-8"), format!("{task}-x")]));
    expected.sort();
    for array in handles {
        assert_eq!(sorted(&array).await, expected);
        array.compact().await.expect("a compaction");
        assert_eq!(sorted(&array).await, expected);
    }
}

async fn array_is_whole_when_the_nth_op_fails(t: Bench) {
    for fault in FAULTS {
        for nth in 1..=16 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let array = open(&faulty.shared(), &name, SHARDS).await;
            let other = open(&t.store, &name, SHARDS).await;
            faulty.fail_nth(nth, fault);
            for n in 0..2 {
                array.push(["twice", "gone"]).await.expect("a push that can be settled");
                // Somebody else takes it out: a push that is tried again must not bring it back.
                other.remove(["gone"]).await.expect("a remove");
                array.change(whole(n + 1), whole(n)).await.expect("a change that can be settled");
            }
            faulty.heal();
            faulty.deliver_late().await;
            let mut expected = whole(2);
            expected.extend(["twice", "twice"].map(str::to_owned));
            assert_eq!(sorted(&other).await, expected, "{fault:?} at op {nth}");
        }
    }
}

async fn array_reports_a_lost_shard_and_lost_commits(t: Bench) {
    for index in ["2", "commits"] {
        let name = t.name(index);
        let array = open(&t.store, &name, SHARDS).await;
        array.push(whole(0)).await.expect("a push");
        let key = key(&t, &name, index).await;
        t.ok(Op::delete(key.clone())).await;
        let fresh = open(&t.store, &name, SHARDS).await;
        for array in [array, fresh] {
            let read = array.elements().await.expect_err("it is gone");
            let changed = array.change(whole(1), whole(0)).await.expect_err("it is gone");
            assert_eq!((read.kind(), changed.kind()), (ErrorKind::Lost, ErrorKind::Lost), "{read} / {changed}");
        }
        assert_eq!(t.value(&key).await, None, "a write made it anew");
    }
}

async fn array_goes_on_once_a_part_that_was_set_back_is_accepted(t: Bench) {
    for index in ["2", "commits"] {
        let name = t.name(&format!("back-{index}"));
        let array = open(&t.store, &name, SHARDS).await;
        array.change(whole(0), NOTHING).await.expect("a change");
        let key = key(&t, &name, index).await;
        let older = t.value(&key).await.expect("a part");
        array.change(whole(1), whole(0)).await.expect("a change");
        array.compact().await.expect("a compaction");
        t.ok(Op::put(key, PutMode::Set, older, Ttl::Never)).await;
        let fresh = open(&t.store, &name, SHARDS).await;
        // The commits: what the shards have settled is given to another.
        fresh.change(whole(2), whole(1)).await.expect("a change");
        let read = fresh.elements().await.expect_err("half a change");
        assert_eq!(read.kind(), ErrorKind::RolledBack, "{index}: {read}");
        assert_eq!(fresh.compact().await.expect_err("half a change").kind(), ErrorKind::RolledBack, "{index}");
        assert!(fresh.accept_loss().await.expect("a loss that is accepted"), "{index}");
        let elements = sorted(&fresh).await;
        fresh.change(whole(3), elements).await.expect("a change");
        assert_eq!(sorted(&open(&t.store, &name, SHARDS).await).await, whole(3), "{index}");
    }
}

async fn array_refuses_a_holder_that_was_overtaken(t: Bench) {
    for shards in [1, SHARDS] {
        let array = open(&t.store, &t.name(&format!("a{shards}")), shards).await;
        let name = t.name(&format!("lock{shards}"));
        let lock = Lock::open(&t.store, &name).await.expect("a lock");
        let first = lock.try_acquire().await.expect("a try").expect("free");
        array.change_under(&first, whole(0), NOTHING).await.expect("a change");
        // The first holder does not look: it only learns that the lock is gone from the array.
        let other = Lock::open(&t.store, &name).await.expect("the lock");
        other.force_release().await.expect("a release");
        let second = other.try_acquire().await.expect("a try").expect("free");
        array.change_under(&second, whole(1), whole(0)).await.expect("a change");
        let late = array.change_under(&first, whole(2), whole(1)).await.expect_err("overtaken");
        assert_eq!((late.kind(), late.known_effect()), (ErrorKind::Fenced, Effect::NotApplied), "{late}");
        assert_eq!(sorted(&array).await, whole(1));
    }
}

async fn drop_of_an_array_removes_every_key(t: Bench) {
    let name = t.name("a");
    let array = open(&t.store, &name, SHARDS).await;
    array.push(whole(0)).await.expect("a push");
    let mut keys = Vec::new();
    for index in ["0", "1", "2", "commits"] {
        keys.push(key(&t, &name, index).await);
    }
    drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    for key in &keys {
        assert_eq!(t.value(key).await, None, "{key}");
    }
    assert_eq!(array.push(["late"]).await.expect_err("dropped").kind(), ErrorKind::Lost);
    assert_eq!(Array::open(&t.store, &name).await.expect_err("dropped").kind(), ErrorKind::Absent);
}

/// A store that counts, and a name.
struct Metered {
    counting: Counting,
    store: StoreRef,
    name: String,
}

impl Metered {
    fn new(bench: &Bench) -> Metered {
        let counting = Counting::new(bench.store.clone());
        Metered { store: Arc::new(counting.clone()), counting, name: bench.name("budget") }
    }

    async fn array(&self) -> Array {
        let options = Array::options().shards(SHARDS).dirtiness(usize::MAX);
        options.open_or_create(&self.store, &self.name).await.expect("an array")
    }

    /// Fails unless `act` takes as many round trips as are documented.
    async fn costs<T>(&self, budget: u64, act: impl Future<Output = Result<T>>) {
        let before = self.counting.counts();
        act.await.expect("an uncontended call");
        let found = self.counting.counts().since(&before).round_trips;
        assert_eq!(found, budget, "it takes {found} round trips; {budget} are documented");
    }
}

fn thousand() -> impl Iterator<Item = String> {
    (0..1_000).map(|n| format!("element-{n}"))
}

async fn budget_array_open(t: Bench) {
    let m = Metered::new(&t);
    m.array().await;
    m.costs(1, Array::open(&m.store, &m.name)).await;
}

async fn budget_array_create(t: Bench) {
    let m = Metered::new(&t);
    m.costs(3, options().shards(SHARDS).open_or_create(&m.store, &m.name)).await;
}

async fn budget_array_push_of_a_thousand(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    m.costs(1, array.push(thousand())).await;
}

async fn budget_array_remove_of_a_thousand(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    array.push(thousand()).await.expect("a push");
    m.costs(1, array.remove(thousand())).await;
}

async fn budget_array_change_in_one_shard(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    m.costs(1, array.change(["a", "a"], ["a"])).await;
}

async fn budget_array_change_over_shards(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    array.change(thousand(), thousand()).await.expect("a change");
    m.costs(2, array.change(thousand(), thousand())).await;
    array.elements().await.expect("elements");
    m.costs(2, array.change(thousand(), thousand())).await;
}

async fn budget_array_first_change_over_shards(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    m.costs(3, array.change(thousand(), thousand())).await;
}

async fn budget_array_change_under_a_lock(t: Bench) {
    let m = Metered::new(&t);
    let lock = Lock::open(&t.store, t.name("lock")).await.expect("a lock");
    let guard = lock.try_acquire().await.expect("a try").expect("free");
    let array = Array::options().dirtiness(usize::MAX).open_or_create(&m.store, &m.name).await.expect("an array");
    m.costs(2, array.change_under(&guard, ["a"], ["b"])).await;
    guard.release().await.expect("a release");
}

async fn budget_array_elements(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    array.push(thousand()).await.expect("a push");
    m.costs(1, array.elements()).await;
}

async fn budget_array_stat(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    m.costs(1, array.stat()).await;
}

async fn budget_array_accept_loss_of_nothing(t: Bench) {
    let m = Metered::new(&t);
    let array = m.array().await;
    array.push(thousand()).await.expect("a push");
    m.costs(1, array.accept_loss()).await;
}

async fn budget_drop_of_an_array(t: Bench) {
    let m = Metered::new(&t);
    m.array().await;
    let name = Name::new(&m.name).expect("a name");
    m.costs(4, drop_structure(&m.store, Ctx::default(), &name)).await;
}
