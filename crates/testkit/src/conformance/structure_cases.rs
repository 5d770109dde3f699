//! Every structure through its public handle, on every store: semantics, names, loss, concurrency, faults, models.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use larder_core::native::{Families, Native, NativeReply};
use larder_core::{Ctx, Effect, ErrorKind, Key, Op, PutMode, Ttl, TtlSupport};
use larder_structures::lock::Released;
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Counter, CounterOptions, Kind, Lock, Manifest, Name, Set};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    structures_take_names_of_1_to_64_arbitrary_bytes [];
    structures_refuse_empty_and_long_names [];
    a_name_that_holds_another_structure_is_a_layout_mismatch [Cas, Ttl];
    a_key_written_by_another_program_is_a_layout_mismatch_and_kept [];
    opening_what_is_not_there_is_absent [];
    of_eight_that_create_all_get_the_same_structure [];
    drop_removes_every_key_and_a_handle_notices [];
    a_store_without_cas_refuses_lock_and_exact_counter_and_carries_the_rest [NoCas];

    counter_agrees_with_a_model [Cas];
    counter_is_exact_under_eight_tasks_and_two_handles [Cas];
    counter_is_exact_when_the_nth_op_fails [Cas];
    counter_reports_a_lost_slot [Cas];
    counter_leaves_nothing_behind_for_a_hundred_short_lived_handles [Cas];
    counter_reset_takes_what_it_returns [Cas];
    fast_counter_counts_up_and_down [];
    fast_counter_never_counts_an_unknown_twice [];
    fast_counter_reports_loss [];
    fast_counter_has_golden_bytes [];
    fast_counter_overflow_is_an_error_and_not_a_wrap [];

    set_agrees_with_a_model [];
    set_keeps_members_of_any_bytes [];
    set_is_whole_under_eight_tasks_two_handles_and_compaction [Cas];
    set_is_whole_when_the_nth_op_fails [];
    set_reports_a_lost_shard [];
    set_says_full_and_loses_nothing [];
    text_set_reads_and_writes_the_articles_encoding [];
}

/// The key of a structure's data, as `docs` write it down: other programs rely on it.
fn data_key(name: &str, role: char, manifest: &Manifest, index: u16) -> Key {
    Key::new(format!("L.{name}.{role}.{:016x}.{index}", manifest.generation)).expect("a short name")
}

async fn manifest(t: &Bench, name: &str) -> Manifest {
    let name = Name::new(name).expect("a short name");
    find(&t.store, Ctx::default(), &name).await.expect("a manifest").expect("a structure")
}

async fn dropped(t: &Bench, name: impl AsRef<[u8]>) {
    let name = Name::new(name).expect("a good name");
    assert!(drop_structure(&t.store, Ctx::default(), &name).await.expect("a drop").is_some(), "{name}");
}

async fn members(set: &Set) -> BTreeSet<Bytes> {
    let members = set.members().await.expect("members");
    let count = members.len();
    let unique: BTreeSet<Bytes> = members.into_iter().collect();
    assert_eq!(unique.len(), count, "a member is told twice");
    unique
}

fn bytes_set<M: Into<Bytes>>(members: impl IntoIterator<Item = M>) -> BTreeSet<Bytes> {
    members.into_iter().map(Into::into).collect()
}

// Names, kinds, creation.

async fn structures_take_names_of_1_to_64_arbitrary_bytes(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let unique = rng.u64(..).to_be_bytes();
    let names: [Vec<u8>; 6] = [
        [&unique[..], b" \0\r\n\t.%"].concat(),
        [&unique[..], b"\xff\xfe"].concat(),
        [&unique[..], &[b'.'; 56]].concat(),
        [&unique[..], &[0xff; 56]].concat(),
        (0..64).map(|_| rng.u8(..)).collect(),
        vec![unique[0]],
    ];
    for (n, name) in names.iter().enumerate() {
        let set = Set::open_or_create(&t.store, name).await.expect("a set");
        set.add([format!("{n}")]).await.expect("an add");
    }
    for (n, name) in names.iter().enumerate() {
        let set = Set::open(&t.store, name).await.expect("the set");
        assert_eq!(members(&set).await, bytes_set([format!("{n}")]));
        dropped(&t, name).await;
    }
    counters_take_names(&t, Counter::options().fast(), &names).await;
    let profile = t.store.profile();
    if profile.cas {
        counters_take_names(&t, Counter::options(), &names).await;
    }
    if profile.cas && profile.ttl != TtlSupport::None {
        locks_take_names(&t, &names).await;
    }
}

async fn counters_take_names(t: &Bench, options: CounterOptions, names: &[Vec<u8>]) {
    for (n, name) in (1..).zip(names) {
        let counter = options.open_or_create(&t.store, name).await.expect("a counter");
        counter.add(n).await.expect("an add");
    }
    for (n, name) in (1..).zip(names) {
        let counter = options.open(&t.store, name).await.expect("the counter");
        assert_eq!(counter.get().await.expect("a get"), n, "{name:?}");
        dropped(t, name).await;
    }
}

/// Holds the locks of all names at once: two that were one lock would wait for each other.
async fn locks_take_names(t: &Bench, names: &[Vec<u8>]) {
    let mut guards = Vec::new();
    for name in names {
        let lock = Lock::open(&t.store, name).await.expect("a lock");
        guards.push(lock.acquire(Duration::from_secs(20)).await.expect("a lock of its own"));
    }
    for (guard, name) in guards.into_iter().zip(names) {
        assert_eq!(guard.release().await.expect("a release"), Released::Released, "{name:?}");
        dropped(t, name).await;
    }
}

async fn structures_refuse_empty_and_long_names(t: Bench) {
    for name in [&b""[..], &[b'x'; 65], &[0; 10_000]] {
        for error in [
            Set::open_or_create(&t.store, name).await.err(),
            Counter::options().fast().open_or_create(&t.store, name).await.err(),
            Lock::open(&t.store, name).await.err(),
        ] {
            let error = error.expect("refused");
            assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
            let said = error.to_string();
            assert!(
                said.contains("64") && (name.is_empty() || said.contains(&name.len().to_string())),
                "{said} does not name the limit and the length"
            );
        }
    }
}

async fn a_name_that_holds_another_structure_is_a_layout_mismatch(t: Bench) {
    let name = t.name("a");
    let set = Set::open_or_create(&t.store, &name).await.expect("a set");
    set.add(["m"]).await.expect("an add");
    for error in [
        Counter::open_or_create(&t.store, &name).await.err(),
        Counter::open(&t.store, &name).await.err(),
        Lock::open(&t.store, &name).await.err(),
    ] {
        let error = error.expect("refused");
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
    assert_eq!(members(&set).await, bytes_set(["m"]));
    let lock = Lock::open(&t.store, t.name("b")).await.expect("a lock");
    let guard = lock.try_acquire().await.expect("a try").expect("free");
    let error = Set::open_or_create(&t.store, t.name("b")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert_eq!(guard.release().await.expect("a release"), Released::Released);
}

async fn a_key_written_by_another_program_is_a_layout_mismatch_and_kept(t: Bench) {
    let name = t.name("a");
    let key = Name::new(&name).and_then(|name| name.manifest_key()).expect("a key");
    t.set(&key, "not ours").await;
    let error = Set::open_or_create(&t.store, &name).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    let error = Counter::options().fast().open_or_create(&t.store, &name).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert_eq!(t.value(&key).await.expect("still there"), "not ours");
}

async fn opening_what_is_not_there_is_absent(t: Bench) {
    for error in [
        Set::open(&t.store, t.name("a")).await.err(),
        Counter::options().fast().open(&t.store, t.name("b")).await.err(),
    ] {
        let error = error.expect("absent");
        assert_eq!(error.kind(), ErrorKind::Absent, "{error}");
        // Only a store on disk can tell that nothing was lost.
        let loses = t.store.profile().durability != larder_core::Durability::Disk;
        let words = if loses { "never created, or lost" } else { "(never created)" };
        assert!(error.to_string().contains(words), "{error}");
    }
    let name = Name::new(t.name("a")).expect("a name");
    assert!(find(&t.store, Ctx::default(), &name).await.expect("a look").is_none(), "an open created something");
}

async fn of_eight_that_create_all_get_the_same_structure(t: Bench) {
    let name = t.name("a");
    let creators: Vec<_> = (0..8)
        .map(|n| {
            let (t, name) = (t.clone(), name.clone());
            tokio::spawn(async move {
                let set = Set::open_or_create(&t.store, &name).await.expect("a set");
                set.add([format!("{n}")]).await.expect("an add");
            })
        })
        .collect();
    for creator in creators {
        creator.await.expect("no panic");
    }
    let set = Set::open(&t.store, &name).await.expect("the set");
    assert_eq!(members(&set).await, bytes_set((0..8).map(|n| n.to_string())));
}

async fn drop_removes_every_key_and_a_handle_notices(t: Bench) {
    let name = t.name("a");
    let set = Set::options().shards(4).open_or_create(&t.store, &name).await.expect("a set");
    set.add(["a", "b", "c", "d", "e"]).await.expect("an add");
    let old = manifest(&t, &name).await;
    assert_eq!((old.kind, old.shards), (Kind::Set, 4));
    for index in 0..4 {
        assert!(
            t.value(&data_key(&name, 'p', &old, index)).await.is_some(),
            "shard {index} is not where it is documented"
        );
    }
    dropped(&t, &name).await;
    for index in 0..4 {
        assert_eq!(t.value(&data_key(&name, 'p', &old, index)).await, None, "shard {index}");
    }
    for error in [set.members().await.err(), set.add(["f"]).await.err(), set.has("a").await.err()] {
        let error = error.expect("lost");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    let again = Set::open_or_create(&t.store, &name).await.expect("a new life");
    assert!(members(&again).await.is_empty());
    assert!(set.add(["late"]).await.is_err(), "a write of an earlier life landed");
    assert!(members(&again).await.is_empty());
}

async fn a_store_without_cas_refuses_lock_and_exact_counter_and_carries_the_rest(t: Bench) {
    for error in
        [Counter::open_or_create(&t.store, t.name("a")).await.err(), Lock::open(&t.store, t.name("b")).await.err()]
    {
        let error = error.expect("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("cas"), "{error} does not say what is missing");
    }
    let set = Set::open_or_create(&t.store, t.name("c")).await.expect("a set");
    set.add(["a", "b"]).await.expect("an add");
    set.remove(["a"]).await.expect("a remove");
    assert_eq!(members(&set).await, bytes_set(["b"]));
    assert_eq!(set.compact().await.expect_err("refused").kind(), ErrorKind::Unsupported);
}

// Counters.

async fn counter_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.push(Counter::options().slots(2).open_or_create(&t.store, &name).await.expect("a counter"));
    }
    let mut model = 0_i128;
    for step in 0..60 {
        let handle = rng.usize(..handles.len());
        match rng.u8(..10) {
            0 => handles[handle] = Counter::open(&t.store, &name).await.expect("the counter"),
            1 => handles[handle].release().await.expect("a release"),
            2 => {
                assert_eq!(handles[handle].reset().await.expect("a reset"), model, "step {step}, seed {seed}");
                model = 0;
            }
            3 => assert_eq!(handles[handle].get().await.expect("a get"), model, "step {step}, seed {seed}"),
            _ => {
                let delta = rng.i64(..) >> rng.u8(..64);
                handles[handle].add(delta).await.expect("an add");
                model += i128::from(delta);
            }
        }
    }
    assert_eq!(handles[0].get().await.expect("a get"), model, "seed {seed}");
}

async fn counter_is_exact_under_eight_tasks_and_two_handles(t: Bench) {
    let name = t.name("a");
    let one = Counter::options().slots(1).open_or_create(&t.store, &name).await.expect("a counter");
    let two = Counter::open(&t.store, &name).await.expect("the counter");
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let counter = if n % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                for _ in 0..50 {
                    counter.add(n + 1).await.expect("an add");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(one.get().await.expect("a get"), 50 * (1..=8).sum::<i128>());
}

/// The faults that the nth op meets, before and after it was applied.
pub(super) const FAULTS: [Fault; 5] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)];
/// How many ops a case looks into: enough for a first write, a warm one and what settles them.
const NTH_MAX: u64 = 12;

async fn counter_is_exact_when_the_nth_op_fails(t: Bench) {
    for fault in FAULTS {
        for nth in 1..=NTH_MAX {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let counter = Counter::options().slots(2).open_or_create(&faulty.shared(), &name).await.expect("a counter");
            faulty.fail_nth(nth, fault);
            let (mut sure, mut unsure) = (0, 0);
            for delta in [1, 10, 100, 1_000] {
                match counter.add(delta).await {
                    Ok(()) => sure += i128::from(delta),
                    Err(error) if error.is_unknown() => unsure += i128::from(delta),
                    Err(error) => assert_eq!(error.known_effect(), Effect::NotApplied),
                }
            }
            faulty.heal();
            faulty.deliver_late().await;
            let found = Counter::open(&t.store, &name).await.expect("the counter").get().await.expect("a get");
            assert!(unsure == 0, "{fault:?} at {nth}: an outcome that can be looked up was reported as unknown");
            assert_eq!(found, sure, "{fault:?} at op {nth}");
        }
    }
}

async fn counter_reports_a_lost_slot(t: Bench) {
    let name = t.name("a");
    let counter = Counter::options().slots(3).open_or_create(&t.store, &name).await.expect("a counter");
    counter.add(5).await.expect("an add");
    let manifest = manifest(&t, &name).await;
    t.ok(Op::delete(data_key(&name, 's', &manifest, 1))).await;
    let fresh = Counter::open(&t.store, &name).await.expect("the manifest is there");
    for counter in [counter, fresh] {
        let error = counter.get().await.expect_err("a slot is gone");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

async fn counter_leaves_nothing_behind_for_a_hundred_short_lived_handles(t: Bench) {
    let name = t.name("a");
    let first = Counter::options().slots(4).open_or_create(&t.store, &name).await.expect("a counter");
    for _ in 0..100 {
        Counter::open(&t.store, &name).await.expect("the counter").add(1).await.expect("an add");
    }
    assert_eq!(first.get().await.expect("a get"), 100);
    let manifest = manifest(&t, &name).await;
    assert_eq!(manifest.shards, 4);
    let mut bytes = 0;
    for index in 0..4 {
        bytes += t.value(&data_key(&name, 's', &manifest, index)).await.expect("a slot").len();
    }
    assert!(bytes < 4 * 512, "four slots have grown to {bytes} bytes");
    assert_eq!(t.value(&data_key(&name, 's', &manifest, 4)).await, None);
}

async fn counter_reset_takes_what_it_returns(t: Bench) {
    let name = t.name("a");
    let counter = Counter::options().slots(2).open_or_create(&t.store, &name).await.expect("a counter");
    let adder = tokio::spawn({
        let counter = counter.clone();
        async move {
            for _ in 0..200 {
                counter.add(1).await.expect("an add");
            }
        }
    });
    let other = Counter::open(&t.store, &name).await.expect("the counter");
    let mut taken = 0;
    for _ in 0..5 {
        taken += other.reset().await.expect("a reset");
    }
    adder.await.expect("no panic");
    assert_eq!(taken + other.get().await.expect("a get"), 200);
}

async fn fast_counter_counts_up_and_down(t: Bench) {
    let counter = Counter::options().fast().open_or_create(&t.store, t.name("a")).await.expect("a counter");
    counter.add(-7).await.expect("an add");
    assert_eq!(counter.get().await.expect("a get"), -7);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let counter = counter.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    counter.add(2).await.expect("an add");
                    counter.add(-1).await.expect("an add");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(counter.get().await.expect("a get"), 8 * 25 - 7);
}

async fn fast_counter_never_counts_an_unknown_twice(t: Bench) {
    for fault in FAULTS {
        let faulty = Faulty::new(t.store.clone());
        let name = t.name(&format!("{fault:?}"));
        let counter = Counter::options().fast().open_or_create(&faulty.shared(), &name).await.expect("a counter");
        faulty.fail_nth(1, fault);
        let error = counter.add(1).await.expect_err("it was broken");
        assert_eq!(error.is_unknown(), fault != Fault::NotSent, "{fault:?}: {error}");
        faulty.deliver_late().await;
        let found = counter.get().await.expect("a get");
        let applied = matches!(fault, Fault::Cut | Fault::LostReply | Fault::Late(_));
        assert_eq!(found, i128::from(applied), "{fault:?}");
    }
}

async fn fast_counter_reports_loss(t: Bench) {
    let name = t.name("a");
    let counter = Counter::options().fast().open_or_create(&t.store, &name).await.expect("a counter");
    counter.add(5).await.expect("an add");
    let manifest = manifest(&t, &name).await;
    t.remove(data_key(&name, 'n', &manifest, 0)).await;
    for error in [counter.add(1).await.err(), counter.get().await.err()] {
        let error = error.expect("lost");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

async fn fast_counter_has_golden_bytes(t: Bench) {
    let name = t.name("a");
    let counter = Counter::options().fast().open_or_create(&t.store, &name).await.expect("a counter");
    let manifest = manifest(&t, &name).await;
    let key = data_key(&name, 'n', &manifest, 0);
    let is_native = t.store.profile().natives.contains(Families::BITS | Families::KEYS);
    assert_eq!(manifest.layout, if is_native { 3 } else { 1 });
    for (add, digits, bits) in [
        (0, "4611686018427387904", b"\x40\0\0\0\0\0\0\0"),
        (-1, "4611686018427387903", b"\x3f\xff\xff\xff\xff\xff\xff\xff"),
        (8, "4611686018427387911", b"\x40\0\0\0\0\0\0\x07"),
    ] {
        counter.add(add).await.expect("an add");
        if is_native {
            let whole = Native::BitsRead { offset_bytes: 0, len_bytes: 99 };
            let found = t.ok(Op::native(key.clone(), whole)).await.into_native();
            let expected = [manifest.generation.to_be_bytes(), *bits].concat();
            assert_eq!(found, Some(NativeReply::Bytes(expected.into())));
        } else {
            assert_eq!(t.value(&key).await.expect("it is there"), digits);
        }
    }
}

async fn fast_counter_overflow_is_an_error_and_not_a_wrap(t: Bench) {
    let counter = Counter::options().fast().open_or_create(&t.store, t.name("a")).await.expect("a counter");
    let error = counter.add(i64::MAX).await.expect_err("over the limit of one add");
    assert!(matches!(error.kind(), ErrorKind::BadInput | ErrorKind::Overflow), "{error}");
    let step = 1_i64 << 56;
    let mut value = 0_i128;
    loop {
        match counter.add(step).await {
            Ok(()) => value += i128::from(step),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Overflow, "{error}");
                break;
            }
        }
        assert!(value < 1 << 63, "it never ends");
    }
    assert_eq!(counter.get().await.expect("a get"), value);
}

// Sets.

async fn set_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let options = || Set::options().dirtiness(64);
    let mut handles = Vec::new();
    for _ in 0..2 {
        handles.push(options().shards(3).open_or_create(&t.store, &name).await.expect("a set"));
    }
    let mut model: BTreeSet<Bytes> = BTreeSet::new();
    for step in 0..80 {
        let at = rng.usize(..handles.len());
        let some: Vec<Bytes> = (0..rng.usize(..6)).map(|_| rng.u8(..20).to_string().into()).collect();
        match rng.u8(..10) {
            0 => handles[at] = options().open(&t.store, &name).await.expect("the set"),
            1 if t.store.profile().cas => _ = handles[at].compact().await.expect("a compaction"),
            2..5 => {
                handles[at].remove(&some).await.expect("a remove");
                some.iter().for_each(|member| _ = model.remove(member));
            }
            5..8 => {
                handles[at].add(&some).await.expect("an add");
                model.extend(some);
            }
            8 => {
                let member = rng.u8(..20).to_string();
                let has = handles[at].has(&member).await.expect("a has");
                assert_eq!(has, model.contains(member.as_bytes()), "step {step}, seed {seed}");
            }
            _ => assert_eq!(members(&handles[at]).await, model, "step {step}, seed {seed}"),
        }
    }
    assert_eq!(members(&handles[0]).await, model, "seed {seed}");
}

async fn set_keeps_members_of_any_bytes(t: Bench) {
    let set = Set::options().shards(2).open_or_create(&t.store, t.name("a")).await.expect("a set");
    let all = bytes_set([
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b" +a -b "),
        Bytes::from_static(b"\r\nEND\r\n"),
        Bytes::from(vec![0xff; 300]),
        Bytes::from(vec![7; 100_000]),
    ]);
    set.add(&all).await.expect("an add");
    assert_eq!(members(&set).await, all);
    for member in &all {
        assert!(set.has(member).await.expect("a has"));
    }
    set.remove([Bytes::new()]).await.expect("a remove");
    assert!(!set.has("").await.expect("a has"));
    let error = set.add([vec![1; set.member_bytes_max() + 1]]).await.expect_err("over the limit");
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert_eq!(members(&set).await.len(), all.len() - 1);
}

async fn set_is_whole_under_eight_tasks_two_handles_and_compaction(t: Bench) {
    let name = t.name("a");
    let one = Set::options().dirtiness(32).open_or_create(&t.store, &name).await.expect("a set");
    let two = Set::options().dirtiness(32).open(&t.store, &name).await.expect("the set");
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let set = if n % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                for round in 0..20 {
                    set.add([format!("{n}-{round}"), format!("{n}-gone")]).await.expect("an add");
                    set.remove([format!("{n}-gone")]).await.expect("a remove");
                    if round % 5 == 0 {
                        _ = set.members().await.expect("members");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let expected = bytes_set((0..8).flat_map(|n| (0..20).map(move |round| format!("{n}-{round}"))));
    assert_eq!(members(&one).await, expected);
}

async fn set_is_whole_when_the_nth_op_fails(t: Bench) {
    for fault in FAULTS {
        for nth in 1..=6 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let set = Set::open_or_create(&faulty.shared(), &name).await.expect("a set");
            let other = Set::open(&t.store, &name).await.expect("the set");
            faulty.fail_nth(nth, fault);
            for n in 0..3 {
                set.add([format!("kept-{n}"), "gone".to_owned()]).await.expect("an add that can be settled");
                // Somebody else takes it out: a retried add must not bring it back.
                other.remove(["gone"]).await.expect("a remove");
            }
            faulty.heal();
            faulty.deliver_late().await;
            let expected = bytes_set((0..3).map(|n| format!("kept-{n}")));
            assert_eq!(members(&other).await, expected, "{fault:?} at op {nth}");
        }
    }
}

async fn set_reports_a_lost_shard(t: Bench) {
    let name = t.name("a");
    let set = Set::options().shards(3).open_or_create(&t.store, &name).await.expect("a set");
    set.add((0..50).map(|n| n.to_string())).await.expect("an add");
    let manifest = manifest(&t, &name).await;
    t.ok(Op::delete(data_key(&name, 'p', &manifest, 2))).await;
    let fresh = Set::open(&t.store, &name).await.expect("the manifest is there");
    for set in [set, fresh] {
        let read = set.members().await.expect_err("a shard is gone");
        let written = set.add((0..50).map(|n| n.to_string())).await.expect_err("a shard is gone");
        assert_eq!((read.kind(), written.kind()), (ErrorKind::Lost, ErrorKind::Lost), "{read} / {written}");
    }
    assert_eq!(t.value(&data_key(&name, 'p', &manifest, 2)).await, None, "a write made a lost shard anew");
}

async fn set_says_full_and_loses_nothing(t: Bench) {
    let set = Set::open_or_create(&t.store, t.name("a")).await.expect("a set");
    let big = |n: u32| [vec![b'x'; 300_000], n.to_be_bytes().to_vec()].concat();
    let mut kept = 0;
    let error = loop {
        match set.add([big(kept)]).await {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 10_000, "it is never full");
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("shard"), "{error} does not name the cure");
    assert_eq!(members(&set).await, bytes_set((0..kept).map(big)));
}

async fn text_set_reads_and_writes_the_articles_encoding(t: Bench) {
    let key = t.key("a");
    let set = Set::open_text(&t.store, key.as_bytes()).expect("a set");
    set.add(["a", "b", "c"]).await.expect("an add");
    assert_eq!(t.value(&key).await.expect("a value"), "+a +b +c ");
    t.ok(Op::put(key.clone(), PutMode::Append, "-b -x ", Ttl::Never)).await;
    assert_eq!(members(&set).await, bytes_set(["a", "c"]));
    let error = set.add(["two words"]).await.expect_err("a member with a space");
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
}
