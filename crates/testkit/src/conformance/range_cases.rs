//! The optional ops: ranges where a store has them, and that a store says so of each that it has not.

use bytes::Bytes;
use larder_core::native::{BitField, Families, Native, Ranks, Scan, StreamId};
use larder_core::{Batch, Ctx, ErrorKind, Op, PutMode, Ranges, Reply, Ttl, Verb};

use super::{Bench, cases};

cases! {
    a_range_is_read_as_far_as_the_value_goes [Ranges];
    a_range_is_written_over_and_past_the_end [Ranges];
    a_range_of_nothing_is_a_miss_and_makes_nothing [Ranges];
    a_range_over_the_limit_is_refused_and_keeps_the_value [Ranges];
    a_range_changes_the_token_and_keeps_flags_and_life [Ranges, Cas, RemainingTtl];
    eight_writers_lose_no_range [Ranges];
    ranges_keep_their_order_in_a_batch [Ranges];
    a_store_without_ranges_says_so [NoRanges];
    a_native_op_that_a_store_has_not_is_unsupported [];
}

async fn read(t: &Bench, key: &larder_core::Key, offset: u64, len: u64) -> Option<Bytes> {
    t.ok(Op::get_range(key.clone(), offset, len)).await.into_item().map(|item| item.value)
}

async fn a_range_is_read_as_far_as_the_value_goes(t: Bench) {
    let (key, empty) = (t.key("a"), t.key("empty"));
    t.set(&key, "hello").await;
    t.set(&empty, "").await;
    for (offset, len, expected) in
        [(0, 5, "hello"), (0, 9, "hello"), (1, 3, "ell"), (4, 1, "o"), (5, 1, ""), (99, 9, ""), (2, 0, ""), (0, 0, "")]
    {
        assert_eq!(read(&t, &key, offset, len).await.unwrap(), expected, "{len} bytes from {offset} on");
    }
    assert_eq!(read(&t, &key, 1, u64::MAX).await.unwrap(), "ello");
    assert_eq!(read(&t, &key, u64::MAX, u64::MAX).await.unwrap(), "");
    assert_eq!(read(&t, &empty, 0, 9).await.unwrap(), "", "an empty value is there");
}

async fn a_range_is_written_over_and_past_the_end(t: Bench) {
    let key = t.key("a");
    t.set(&key, "hello").await;
    for (offset, value, expected) in [
        (1, &b"ipp"[..], &b"hippo"[..]),
        (4, b"ies", b"hippies"),
        (0, b"", b"hippies"),
        (900, b"", b"hippies"),
        (9, b"\xff", b"hippies\0\0\xff"),
        (0, b"\0", b"\0ippies\0\0\xff"),
    ] {
        assert_eq!(t.ok(Op::put_range(key.clone(), offset, value.to_vec())).await, Reply::Stored);
        assert_eq!(t.value(&key).await.unwrap(), expected, "{value:?} at {offset}");
    }
    let long = vec![7; 5_000];
    t.ok(Op::put_range(key.clone(), 300, long.clone())).await;
    let value = t.value(&key).await.unwrap();
    assert_eq!((value.len(), &value[300..], &value[10..300]), (5_300, &long[..], &[0; 290][..]));
}

async fn a_range_of_nothing_is_a_miss_and_makes_nothing(t: Bench) {
    let key = t.key("a");
    assert_eq!(t.ok(Op::get_range(key.clone(), 0, 1)).await, Reply::Miss);
    assert_eq!(t.ok(Op::put_range(key.clone(), 0, "x")).await, Reply::Miss);
    assert_eq!(t.ok(Op::put_range(key.clone(), 0, "")).await, Reply::Miss);
    assert_eq!(t.value(&key).await, None);
}

async fn a_range_over_the_limit_is_refused_and_keeps_the_value(t: Bench) {
    let key = t.key("a");
    t.set(&key, "old").await;
    let max = t.store.profile().value_bytes_max(key.as_bytes().len()) as u64;
    for offset in [max, max - 1, u64::MAX] {
        let error = t.run(Op::put_range(key.clone(), offset, "xy")).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::BadInput, false), "{offset}: {error}");
        assert!(error.to_string().contains(&max.to_string()), "{error} does not name {max}");
    }
    assert_eq!(t.value(&key).await.unwrap(), "old");
}

async fn a_range_changes_the_token_and_keeps_flags_and_life(t: Bench) {
    let key = t.key("a");
    let ttl = Ttl::After(std::time::Duration::from_secs(100));
    t.ok(Op::new(key.clone(), Verb::Put { mode: PutMode::Set, value: "hello".into(), flags: 77, ttl })).await;
    for offset in [1, 9] {
        let before = t.cas(&key).await;
        t.ok(Op::put_range(key.clone(), offset, "x")).await;
        let item = t.get(&key).await.unwrap();
        assert_ne!(item.cas, Some(before));
        assert_eq!(item.flags, 77);
        assert!(matches!(item.ttl, larder_core::Remaining::For(_)), "{item:?}");
        assert_eq!(t.ok(Op::put(key.clone(), PutMode::Cas(before), "late", ttl)).await, Reply::Exists);
    }
}

async fn eight_writers_lose_no_range(t: Bench) {
    const WRITERS: u8 = 8;
    const BYTES_EACH: u64 = 50;
    let key = t.key("a");
    t.set(&key, "").await;
    let writers = (1..=WRITERS).map(|writer| {
        let (t, key) = (t.clone(), key.clone());
        tokio::spawn(async move {
            for at in 0..BYTES_EACH {
                let offset = at * u64::from(WRITERS) + u64::from(writer) - 1;
                assert_eq!(t.ok(Op::put_range(key.clone(), offset, vec![writer])).await, Reply::Stored);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let expected: Vec<u8> = (0..BYTES_EACH).flat_map(|_| 1..=WRITERS).collect();
    assert_eq!(t.value(&key).await.unwrap(), expected);
}

async fn ranges_keep_their_order_in_a_batch(t: Bench) {
    let key = t.key("a");
    let batch = Batch::from_iter([
        Op::put(key.clone(), PutMode::Set, "aaaa", Ttl::Never),
        Op::put_range(key.clone(), 1, "bb"),
        Op::get_range(key.clone(), 0, 3),
        Op::put_range(key.clone(), 2, "cc"),
        Op::get_range(key.clone(), 0, 9),
        Op::delete(key.clone()),
        Op::get_range(key.clone(), 0, 9),
    ]);
    let replies: Vec<Reply> = t.store.run(Ctx::default(), batch).await.into_iter().map(Result::unwrap).collect();
    let values: Vec<Option<Bytes>> =
        [2, 4, 6].iter().map(|&at| replies[at].clone().into_item().map(|item| item.value)).collect();
    assert_eq!(values, [Some("abb".into()), Some("abcc".into()), None]);
}

async fn a_store_without_ranges_says_so(t: Bench) {
    let key = t.key("a");
    t.set(&key, "old").await;
    let profile = t.store.profile();
    assert_eq!(profile.ranges == Ranges::ByCas, profile.cas, "with cas they can be had of other ops");
    for op in [Op::get_range(key.clone(), 0, 1), Op::put_range(key.clone(), 0, "x")] {
        let error = t.run(op).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unsupported, false), "{error}");
    }
    assert_eq!(t.value(&key).await.unwrap(), "old");
}

/// An op of each family, and none that would change what is there.
fn one_of_each() -> Vec<Native> {
    vec![
        Native::HashSet { entries: vec![("f".into(), "v".into())] },
        Native::SetAdd { members: vec!["m".into()] },
        Native::SortedRange(Ranks::top(1)),
        Native::Bits(vec![BitField::set(8, 0, 1)]),
        Native::StreamRange { from: StreamId::MIN, to: StreamId::MAX, limit: 1 },
        Native::MemoryBytes,
        Native::Remove,
        Native::SetScan(Scan::start(1)),
    ]
}

async fn a_native_op_that_a_store_has_not_is_unsupported(t: Bench) {
    let families = one_of_each().iter().fold(Families::empty(), |all, native| all | native.family());
    assert_eq!(families, Families::all());
    let key = t.key("a");
    t.set(&key, "old").await;
    let declared = t.store.profile().natives;
    for native in one_of_each().into_iter().filter(|native| !declared.contains(native.family())) {
        let op = Op::native(key.clone(), native);
        let batch = Batch::from_iter([op.clone(), Op::get(key.clone(), larder_core::Want::VALUE)]);
        let mut replies = t.store.run(Ctx::default(), batch).await.into_iter();
        let error = replies.next().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unsupported, false), "{error}");
        assert!(error.to_string().contains(op.name()), "{error}");
        assert_eq!(replies.next().unwrap().unwrap().into_item().unwrap().value, "old", "the rest of the batch runs");
    }
}
