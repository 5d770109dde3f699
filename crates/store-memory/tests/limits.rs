//! Keys, values and lives at their limits and one past them; bad input is named and changes nothing.

use std::time::Duration;

use larder_core::{Arith, ErrorKind, Eviction, Key, Op, PutMode, Remaining, Reply, Store, StoreExt, Ttl, Verb, Want};
use larder_store_memory::{Builder, MemoryStore};

fn value(store: &MemoryStore, key: &[u8]) -> Option<Vec<u8>> {
    store.direct().read(key, |item| item.value.to_vec()).unwrap()
}

#[test]
fn binary_keys_of_every_length_are_apart() {
    let store = MemoryStore::new();
    let direct = store.direct();
    let keys: Vec<Vec<u8>> = (1..=250).flat_map(|len| [0u8, b' ', b'\n', 0xff].map(|byte| vec![byte; len])).collect();
    for (at, key) in keys.iter().enumerate() {
        direct.put(key, PutMode::Add, &at.to_le_bytes(), 0, Ttl::Never).unwrap();
    }
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(value(&store, key).unwrap(), at.to_le_bytes());
    }
    assert_eq!(store.stats().items, keys.len());
    for key in [&[][..], &[b'k'; 251][..]] {
        let error = direct.put(key, PutMode::Set, b"", 0, Ttl::Never).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains("250") && error.to_string().contains(&key.len().to_string()), "{error}");
    }
}

#[test]
fn a_value_at_the_limit_is_stored_and_one_past_it_refused() {
    for limit in [1, 255, 256, 1_000, 1 << 20] {
        let store = MemoryStore::builder().value_bytes_max(limit).build().unwrap();
        for key_bytes in [1, 20, 250] {
            let key = Key::new(vec![b'k'; key_bytes]).unwrap();
            let fits = store.profile().value_bytes_max(key_bytes);
            assert!(fits >= limit);
            let put = |mode, len| store.apply(&Op::put(key.clone(), mode, vec![b'v'; len], Ttl::Never));
            assert_eq!(put(PutMode::Set, fits).unwrap(), Reply::Stored);
            for mode in [PutMode::Set, PutMode::Add, PutMode::Replace] {
                let error = put(mode, fits + 1).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadInput);
                let text = error.to_string();
                assert!(text.contains(&fits.to_string()) && text.contains(&(fits + 1).to_string()), "{text}");
            }
            for mode in [PutMode::Append, PutMode::Prepend] {
                assert_eq!(put(mode, 1).unwrap(), Reply::NotStored);
                assert_eq!(put(mode, usize::min(fits * 2, 3 << 20)).unwrap(), Reply::NotStored);
                assert_eq!(put(mode, 0).unwrap(), Reply::Stored);
            }
            assert_eq!(value(&store, key.as_bytes()).unwrap(), vec![b'v'; fits]);
            assert_eq!(put(PutMode::Set, 0).unwrap(), Reply::Stored);
            assert_eq!(value(&store, key.as_bytes()).unwrap(), b"");
        }
    }
}

#[test]
fn lives_from_a_nanosecond_to_a_hundred_years() {
    let store = MemoryStore::new();
    let day = Duration::from_secs(86_400);
    let put = |ttl| store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::After(ttl));
    for good in [Duration::from_nanos(1), 31 * day, 3_650 * day, store.profile().ttl_max] {
        assert_eq!(put(good).unwrap(), Reply::Stored);
    }
    let Remaining::For(rest) = store.direct().get(b"k", Want::TTL).unwrap().unwrap().ttl else { panic!("no life") };
    assert!(rest > 36_499 * day && rest <= 36_500 * day + Duration::from_millis(1), "{rest:?}");
    for bad in [Duration::ZERO, store.profile().ttl_max + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(put(bad).unwrap_err().kind(), ErrorKind::BadInput);
        assert_eq!(store.direct().touch(b"k", Ttl::After(bad)).unwrap_err().kind(), ErrorKind::BadInput);
    }
    assert_eq!(value(&store, b"k").unwrap(), b"v");
}

#[test]
fn arithmetic_on_what_is_no_number_names_it_and_keeps_it() {
    let store = MemoryStore::new();
    let key = Key::new("k").unwrap();
    for bad in ["", "a", "-1", " 1", "18446744073709551616", "000000000000000000001"] {
        store.direct().put(b"k", PutMode::Set, bad.as_bytes(), 9, Ttl::Never).unwrap();
        let error = store.apply(&Op::arith(key.clone(), Arith::Incr(1))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        assert!(error.to_string().contains("op incr"), "{error}");
        assert_eq!(value(&store, b"k").unwrap(), bad.as_bytes());
    }
}

#[test]
fn arithmetic_wraps_floors_and_leaves_no_padding() {
    let store = MemoryStore::new();
    let direct = store.direct();
    direct.put(b"n", PutMode::Set, b"18446744073709551615", 7, Ttl::Never).unwrap();
    assert_eq!(direct.arith(b"n", Arith::Incr(2), None).unwrap(), Reply::Number(1));
    assert_eq!(value(&store, b"n").unwrap(), b"1");
    direct.put(b"n", PutMode::Set, b"10", 7, Ttl::Never).unwrap();
    assert_eq!(direct.arith(b"n", Arith::Decr(1), None).unwrap(), Reply::Number(9));
    assert_eq!(value(&store, b"n").unwrap(), b"9");
    assert_eq!(direct.arith(b"n", Arith::Decr(u64::MAX), None).unwrap(), Reply::Number(0));
    assert_eq!(direct.get(b"n", Want::all()).unwrap().unwrap().flags, 7);
}

#[test]
fn options_out_of_range_are_named() {
    let errors: [(Builder, &str); 6] = [
        (MemoryStore::builder().bytes_max(1_023), "1023"),
        (MemoryStore::builder().evict(true), "bytes_max"),
        (MemoryStore::builder().value_bytes_max(0), "value_bytes_max is 0"),
        (MemoryStore::builder().value_bytes_max(1 << 31), "2147483648"),
        (MemoryStore::builder().shards(0), "shards is 0"),
        (MemoryStore::builder().shards(4_097), "4097"),
    ];
    for (builder, named) in errors {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn the_profile_says_what_the_store_does() {
    let store = MemoryStore::new();
    let profile = store.profile();
    assert_eq!((profile.store.as_str(), profile.nodes, profile.eviction), ("memory", 1, Eviction::Never));
    assert!(profile.cas && profile.delete_cas && profile.remaining_ttl && profile.arith_initial && profile.keys_binary);
    let cache = MemoryStore::builder().bytes_max(1 << 20).evict(true).build().unwrap();
    assert!(cache.profile().may_evict());
}

#[test]
fn a_batch_answers_in_order_and_at_once() {
    let store = MemoryStore::new();
    let key = Key::new("k").unwrap();
    let ops = [
        Op::put(key.clone(), PutMode::Set, "1", Ttl::Never),
        Op::arith(key.clone(), Arith::Incr(1)),
        Op::new(
            key.clone(),
            Verb::Put { mode: PutMode::Set, value: vec![0; 2 << 20].into(), flags: 0, ttl: Ttl::Never },
        ),
        Op::get(key.clone(), Want::VALUE),
        Op::delete(key.clone()),
        Op::get(key, Want::VALUE),
    ];
    let larder_core::Run::Ready(replies) = store.run(larder_core::Ctx::default(), ops.into_iter().collect()) else {
        panic!("an embedded store is always ready")
    };
    assert_eq!(replies[0].as_ref().unwrap(), &Reply::Stored);
    assert_eq!(replies[1].as_ref().unwrap(), &Reply::Number(2));
    assert_eq!(replies[2].as_ref().unwrap_err().kind(), ErrorKind::BadInput);
    assert!(matches!(replies[3].as_ref().unwrap(), Reply::Item(item) if item.value == "2"));
    assert_eq!((replies[4].as_ref().unwrap(), replies[5].as_ref().unwrap()), (&Reply::Deleted, &Reply::Miss));
}

#[test]
fn the_sugar_of_core_is_not_shadowed() {
    // `StoreExt::get` and the rest stay reachable on the concrete type: the direct ops are behind `direct()`.
    let store = MemoryStore::new();
    let mut future = std::pin::pin!(StoreExt::get(&store, Key::new("k").unwrap()));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(matches!(future.as_mut().poll(&mut cx), std::task::Poll::Ready(Ok(None))));
    drop(store.delete(Key::new("k").unwrap()));
}

#[test]
fn a_run_that_nobody_awaits_has_been_done() {
    let store = MemoryStore::new();
    let put = Op::put(Key::new("k").unwrap(), PutMode::Set, "v", Ttl::Never);
    drop(store.run(larder_core::Ctx::default(), larder_core::Batch::from_iter([put])));
    assert_eq!(value(&store, b"k").unwrap(), b"v");
}
