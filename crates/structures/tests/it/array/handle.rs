//! The array through its handle: what it holds, what it costs, what it refuses.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, StoreExt, StoreRef};
use larder_structures::{Array, Lock, Name, registry};

use crate::support::probe::{Probe, set_value, value_of};

const NOTHING: [&str; 0] = [];

/// The key of a shard, or of the commits, by the documented scheme.
async fn key_of(store: &StoreRef, name: &str, index: &str) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.{name}.a.{:016x}.{index}", manifest.generation)).unwrap()
}

async fn sorted(array: &Array) -> Vec<Bytes> {
    let mut elements = array.elements().await.unwrap();
    elements.sort();
    elements
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("{number:04}")).collect()
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let probe = Probe::new();
    let store = probe.shared();
    for shards in [1, 7] {
        let name = format!("a{shards}");
        // Never dirty: what runs in the background would be counted, too.
        let options = || Array::options().shards(shards).dirtiness(1 << 40);
        let array = options().open_or_create(&store, &name).await.unwrap();
        assert_eq!(probe.round_trips(), 3, "made");
        options().open_or_create(&store, &name).await.unwrap();
        assert_eq!(probe.round_trips(), 1, "opened or made");
        Array::open(&store, &name).await.unwrap();
        assert_eq!(probe.round_trips(), 1, "opened");
        for count in [2u32, 1_000, 20_000] {
            array.push((0..count).map(u32::to_be_bytes)).await.unwrap();
            assert_eq!(probe.round_trips(), 1, "pushed {count}");
            array.remove((1..count).map(u32::to_be_bytes)).await.unwrap();
            assert_eq!(probe.round_trips(), 1, "removed {count}");
        }
        assert_eq!(array.elements().await.unwrap().len(), 3);
        assert_eq!(probe.round_trips(), 1, "read");
        assert_eq!(array.stat().await.unwrap().elements, 3);
        assert_eq!(probe.round_trips(), 1, "stat");
        let many = numbers(0..100);
        array.change(&many, &many).await.unwrap();
        assert_eq!(probe.round_trips(), if shards == 1 { 1 } else { 2 }, "changed");
        array.change(["x"], ["x"]).await.unwrap();
        assert_eq!(probe.round_trips(), 1, "changed in one shard");
        let fresh = options().open(&store, &name).await.unwrap();
        probe.round_trips();
        fresh.change(&many, &many).await.unwrap();
        assert_eq!(probe.round_trips(), if shards == 1 { 1 } else { 3 }, "a handle's first change");
        array.change(&many, &many).await.unwrap();
        assert_eq!(probe.round_trips(), if shards == 1 { 1 } else { 4 }, "others changed meanwhile");
        array.compact().await.unwrap();
        assert_eq!(probe.round_trips(), 2, "compacted");
        array.compact().await.unwrap();
        assert_eq!(probe.round_trips(), 1, "nothing to compact");
        array.push(NOTHING).await.unwrap();
        array.change(NOTHING, NOTHING).await.unwrap();
        assert_eq!(probe.round_trips(), 0, "nothing to do");
    }
}

#[tokio::test]
async fn order_repeats_and_any_bytes() {
    for shards in [1, 3] {
        let store = Probe::new().shared();
        let array = Array::options().shards(shards).open_or_create(&store, b"\x00 \xff").await.unwrap();
        let mut all: Vec<Bytes> = (0..=255u8).map(|byte| Bytes::copy_from_slice(&[byte])).collect();
        all.extend(
            [&b""[..], b"\0", b"\0\0", b"\0\x01", b"\0\x02\x05\x05", b"\0\x03", b"", b"+a -b \r\n"]
                .map(Bytes::from_static),
        );
        array.push(&all).await.unwrap();
        array.push(&all[..3]).await.unwrap();
        let mut expected = [&all[..], &all[..3]].concat();
        if shards > 1 {
            expected.sort();
            assert_eq!(sorted(&array).await, expected);
            array.compact().await.unwrap();
            assert_eq!(sorted(&array).await, expected);
        } else {
            assert_eq!(array.elements().await.unwrap(), expected);
            array.compact().await.unwrap();
            assert_eq!(array.elements().await.unwrap(), expected);
        }
        array.change(["", "end"], [&b""[..], b"\0", b"\0\x01"]).await.unwrap();
        expected.retain(|element| ![&b""[..], b"\0", b"\0\x01"].contains(&&element[..]));
        expected.extend([&b""[..], b"end"].map(Bytes::from_static));
        expected.sort();
        assert_eq!(sorted(&array).await, expected);
    }
}

#[tokio::test]
async fn the_largest_element_fits_and_one_more_byte_is_refused() {
    for shards in [1, 2] {
        let store = Probe::small(20_000).shared();
        let array = Array::options().shards(shards).open_or_create(&store, "a").await.unwrap();
        let largest = vec![0u8; array.element_bytes_max()];
        let room_bytes = store.profile().value_bytes_max(key_of(&store, "a", "0").await.as_bytes().len());
        assert_eq!(largest.len(), room_bytes - 3_022, "as documented");
        array.push([&largest]).await.unwrap();
        assert_eq!(array.elements().await.unwrap(), [&largest]);
        // There is no room for the removal beside it: the value is written anew. Over several shards a change needs that room.
        if shards > 1 {
            let error = array.change(["a", "b", "c", "d"], [&largest]).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
            assert_eq!(array.elements().await.unwrap(), [&largest]);
            array.remove([&largest]).await.unwrap();
        }
        array.change(["a", "b", "c", "d"], [&largest]).await.unwrap();
        assert_eq!(sorted(&array).await, ["a", "b", "c", "d"]);
        let error = array.push([vec![b'x'; largest.len() + 1]]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied));
        assert!(
            error.to_string().contains(&format!("{} bytes; the limit on this store is", largest.len() + 1)),
            "{error}"
        );
        // A sum over the limit of a call: nothing is written.
        let many = vec![vec![b'm'; 100]; 200];
        for error in [array.push(&many).await, array.change(&many, NOTHING).await].map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::BadInput);
            assert!(error.to_string().contains("come to 20400 bytes in shard"), "{error}");
        }
        assert_eq!(sorted(&array).await, ["a", "b", "c", "d"]);
    }
}

#[tokio::test]
async fn a_million_elements_in_one_call_are_taken_whole_or_refused() {
    let store = Probe::new().shared();
    let million = || (0..1_000_000u32).map(u32::to_be_bytes);
    let one = Array::open_or_create(&store, "one").await.unwrap();
    let error = one.push(million()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    assert!(one.elements().await.unwrap().is_empty());
    let many = Array::options().shards(16).open_or_create(&store, "many").await.unwrap();
    many.push(million()).await.unwrap();
    assert_eq!(many.stat().await.unwrap().elements, 1_000_000);
    let mut elements = many.elements().await.unwrap();
    elements.sort_unstable();
    assert!(elements.iter().zip(million()).all(|(element, number)| element[..] == number));
    many.change(["only"], million()).await.unwrap();
    assert_eq!(many.elements().await.unwrap(), ["only"]);
}

#[tokio::test]
async fn what_is_not_there_or_is_something_else_is_told() {
    let store = Probe::new().shared();
    assert_eq!(Array::open(&store, "a").await.unwrap_err().kind(), ErrorKind::Absent);
    Array::options().shards(2).open_or_create(&store, "a").await.unwrap();
    let error = Array::options().shards(3).open_or_create(&store, "a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("2 shards, not 3"), "{error}");
    for shards in [0, 1025] {
        let error = Array::options().shards(shards).open_or_create(&store, "t").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
    }
    assert_eq!(
        Array::options().timeout(Duration::ZERO).open(&store, "a").await.unwrap_err().kind(),
        ErrorKind::BadInput
    );
    let error = larder_structures::Set::open(&store, "a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("holds an array, not a set"), "{error}");
    larder_structures::Set::open_or_create(&store, "s").await.unwrap();
    assert_eq!(Array::open_or_create(&store, "s").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    let tiny = Probe::small(1_000).shared();
    assert_eq!(Array::open_or_create(&tiny, "a").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn what_is_gone_is_lost_and_never_made_again() {
    for index in ["0", "1", "commits"] {
        let store = Probe::new().shared();
        let array = Array::options().shards(2).open_or_create(&store, "a").await.unwrap();
        let all = numbers(0..20);
        array.change(&all, NOTHING).await.unwrap();
        let key = key_of(&store, "a", index).await;
        store.delete(key.clone()).await.unwrap();
        let fresh = Array::open(&store, "a").await.unwrap();
        for array in [&array, &fresh] {
            assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::Lost, "{index}");
            let error = array.change(&all, &all).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{index}: {error}");
            if index != "commits" {
                assert_eq!(array.push(&all).await.unwrap_err().kind(), ErrorKind::Lost, "{index}");
            }
        }
        assert!(store.get(key).await.unwrap().is_none(), "{index}");
    }
}

#[tokio::test]
async fn an_older_state_is_rolled_back() {
    for index in ["0", "1", "commits"] {
        let store = Probe::new().shared();
        let array = Array::options().shards(2).open_or_create(&store, "a").await.unwrap();
        let key = key_of(&store, "a", index).await;
        let older = value_of(&store, &key).await;
        array.change(numbers(0..20), NOTHING).await.unwrap();
        array.elements().await.unwrap();
        set_value(&store, &key, older).await;
        assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::RolledBack, "{index}");
        if index != "commits" {
            // The commits tell a fresh handle, too: the shard lacks a change that was made.
            let fresh = Array::open(&store, "a").await.unwrap();
            assert_eq!(fresh.elements().await.unwrap_err().kind(), ErrorKind::RolledBack, "{index}");
        }
    }
}

#[tokio::test]
async fn a_drop_leaves_no_key() {
    for shards in [1, 3] {
        let store = Probe::new().shared();
        let array = Array::options().shards(shards).open_or_create(&store, "a").await.unwrap();
        array.push(numbers(0..20)).await.unwrap();
        let mut keys = vec![Name::new("a").unwrap().manifest_key().unwrap()];
        for index in 0..shards {
            keys.push(key_of(&store, "a", &index.to_string()).await);
        }
        if shards > 1 {
            keys.push(key_of(&store, "a", "commits").await);
        }
        for key in &keys {
            assert!(store.get(key.clone()).await.unwrap().is_some(), "{key}");
        }
        registry::drop_structure(&store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap();
        for key in &keys {
            assert!(store.get(key.clone()).await.unwrap().is_none(), "{key}");
        }
        assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(array.push(["late"]).await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test]
async fn a_full_array_says_so_and_a_change_that_does_not_fit_counts_nowhere() {
    let store = Probe::small(8_000).shared();
    let array = Array::options().shards(2).open_or_create(&store, "a").await.unwrap();
    let mut count = 0u32;
    let error = loop {
        if let Err(error) = array.push([format!("{count:0500}")]).await {
            break error;
        }
        count += 1;
    };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    let before = sorted(&array).await;
    assert_eq!(before.len(), count as usize);
    // Some of these go to the shard that is full, some to the other.
    let more: Vec<String> = (0..6).map(|number| format!("{number:0400}+")).collect();
    let error = array.change(&more, NOTHING).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert_eq!(sorted(&array).await, before);
    for part in before.chunks(5) {
        array.remove(part).await.unwrap();
    }
    array.change(&more, NOTHING).await.unwrap();
    assert_eq!(sorted(&array).await.len(), 6);
}

#[tokio::test]
async fn a_full_array_that_is_dirty_is_compacted_on_the_way() {
    for shards in [1, 2] {
        let store = Probe::small(8_000).shared();
        let array = Array::options().shards(shards).dirtiness(1 << 30).open_or_create(&store, "a").await.unwrap();
        for number in 0..100u32 {
            let element = format!("{:0300}", number % 5);
            array.change([&element, "x"], [&element, "x"]).await.unwrap();
        }
        let elements = array.elements().await.unwrap();
        assert_eq!(elements.len(), 6, "{shards} shards");
    }
}

#[tokio::test]
async fn without_cas_a_change_over_several_shards_is_refused() {
    let store = Probe::without_cas(1 << 20).shared();
    let array = Array::options().shards(4).open_or_create(&store, "a").await.unwrap();
    let all = numbers(0..20);
    array.push(&all).await.unwrap();
    array.remove(&all[10..]).await.unwrap();
    array.change(["one"], ["one"]).await.unwrap();
    let error = array.change(&all, NOTHING).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied));
    assert!(error.to_string().contains("conditional writes (cas)"), "{error}");
    assert_eq!(array.elements().await.unwrap().len(), 11);
    assert_eq!(array.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let one = Array::open_or_create(&store, "one").await.unwrap();
    one.change(&all, &all).await.unwrap();
    assert_eq!(one.elements().await.unwrap(), all);
}

#[tokio::test]
async fn a_change_under_a_lock_is_refused_to_who_lost_it() {
    for shards in [1, 4] {
        let store = Probe::new().shared();
        let array = Array::options().shards(shards).dirtiness(1 << 30).open_or_create(&store, "a").await.unwrap();
        let lock = Lock::open(&store, "l").await.unwrap();
        let first = lock.try_acquire().await.unwrap().unwrap();
        array.change_under(&first, ["a", "b", "c", "d"], NOTHING).await.unwrap();
        // The first holder stalls; the lock is taken from it, and it does not look.
        let other = Lock::open(&store, "l").await.unwrap();
        larder_structures::Lock::force_release(&other).await.unwrap();
        let second = other.acquire(Duration::from_secs(5)).await.unwrap();
        array.change_under(&second, ["e", "f"], ["a", "b"]).await.unwrap();
        for name in ["late", "later"] {
            let late = array.change_under(&first, [name, "x", "y"], ["c", "d"]).await.unwrap_err();
            assert_eq!((late.kind(), late.known_effect()), (ErrorKind::Fenced, Effect::NotApplied), "{late}");
            array.compact().await.unwrap();
        }
        assert_eq!(sorted(&array).await, ["c", "d", "e", "f"], "{shards} shards");
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_look_tells_figures_and_what_is_lost() {
    let store = Probe::new().shared();
    let array = Array::options().shards(3).open_or_create(&store, "a").await.unwrap();
    array.change(numbers(0..20), NOTHING).await.unwrap();
    array.remove(numbers(0..5)).await.unwrap();
    let name = Name::new("a").unwrap();
    let look = || larder_structures::inspect::inspect(&store, Ctx::default(), &name);
    let found = look().await.unwrap().unwrap();
    assert_eq!((found.keys, found.missing, found.elements), (5, 0, Some(15)));
    assert_eq!(found.stale_bytes, Some(array.stat().await.unwrap().stale_bytes));
    store.delete(key_of(&store, "a", "commits").await).await.unwrap();
    let found = look().await.unwrap().unwrap();
    assert_eq!((found.missing, found.elements), (1, None));
}
