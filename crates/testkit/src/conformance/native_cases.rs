//! Native ops, on every store that declares them.

use std::time::Duration;

use bytes::Bytes;
use larder_core::native::{
    BitField, Collection, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply, Only, Ranks,
    Scan, Score, StreamId,
};
use larder_core::{Batch, Ctx, ErrorKind, Key, Op, Reply};

use super::{Bench, cases};

cases! {
    native_hashes_hold_fields [Native(Families::HASH)];
    native_sets_hold_members [Native(Families::SET)];
    native_sorted_sets_are_ordered [Native(Families::SORTED)];
    native_bits_hold_numbers [Native(Families::BITS)];
    native_bits_of_eight_writers_lose_nothing [Native(Families::BITS)];
    native_streams_are_appended_to [Native(Families::STREAM)];
    native_keys_are_looked_at_removed_and_expire [Native(Families::LOOK.union(Families::KEYS).union(Families::SET))];
    native_changes_need_their_mark [Native(Families::HASH.union(Families::SET).union(Families::SORTED))];
    native_collections_are_made_and_dropped_by_their_mark [Native(Families::HASH.union(Families::SET).union(Families::SORTED).union(Families::KEYS))];
    native_bits_need_their_mark [Native(Families::BITS.union(Families::KEYS))];
    native_ops_and_items_keep_apart [Native(Families::HASH.union(Families::SET))];
}

async fn ask(t: &Bench, key: &Key, native: Native) -> NativeReply {
    t.ok(Op::native(key.clone(), native)).await.into_native().expect("a native reply")
}

async fn refused(t: &Bench, key: &Key, native: Native) -> ErrorKind {
    let error = t.run(Op::native(key.clone(), native)).await.expect_err("refused");
    assert!(!error.is_unknown(), "{error}");
    error.kind()
}

fn all(texts: &[&'static str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
}

fn score(score: f64) -> Score {
    Score::new(score).expect("a number")
}

async fn native_hashes_hold_fields(t: Bench) {
    let key = t.key("h");
    assert_eq!(ask(&t, &key, Native::HashAll).await, NativeReply::Pairs(Vec::new()), "a missing key is an empty hash");
    let odd = Bytes::from_static(b"\0\r\n\xff");
    let entries = vec![("a".into(), "1".into()), (odd.clone(), Bytes::new())];
    assert_eq!(ask(&t, &key, Native::HashSet { entries: entries.clone() }).await, NativeReply::Count(2));
    assert_eq!(ask(&t, &key, Native::HashSet { entries: vec![("a".into(), "7".into())] }).await, NativeReply::Count(0));
    for (field, value, is_new) in [("a", "9", false), ("b", "x", true)] {
        let add = Native::HashAdd { field: field.into(), value: value.into() };
        assert_eq!(ask(&t, &key, add).await, NativeReply::Flag(is_new));
    }
    let fields = vec!["a".into(), "none".into(), odd.clone()];
    let expected = vec![Some("7".into()), None, Some(Bytes::new())];
    assert_eq!(ask(&t, &key, Native::HashGet { fields }).await, NativeReply::Values(expected));
    let incr = |field: &'static str, by| Native::HashIncr { field: field.into(), by };
    assert_eq!(ask(&t, &key, incr("a", -9)).await, NativeReply::Number(-2));
    assert_eq!(ask(&t, &key, incr("n", i64::MAX)).await, NativeReply::Number(i64::MAX));
    assert_eq!(refused(&t, &key, incr("n", 1)).await, ErrorKind::Overflow);
    assert_eq!(refused(&t, &key, incr("b", 1)).await, ErrorKind::BadInput);
    assert_eq!(ask(&t, &key, Native::HashRemove { fields: all(&["b", "none"]) }).await, NativeReply::Count(1));
    assert_eq!(ask(&t, &key, Native::HashLen).await, NativeReply::Count(3));
    let NativeReply::Pairs(mut pairs) = ask(&t, &key, Native::HashAll).await else { panic!("pairs") };
    pairs.sort();
    assert_eq!(pairs, [(odd, Bytes::new()), ("a".into(), "-2".into()), ("n".into(), i64::MAX.to_string().into())]);
    let NativeReply::Page { found, .. } = ask(&t, &key, Native::HashScan(Scan::start(100))).await else {
        panic!("a page")
    };
    assert_eq!(found.len(), 6, "fields and values in turn");
}

async fn native_sets_hold_members(t: Bench) {
    let key = t.key("s");
    let add = |members: &[&'static str]| Native::SetAdd { members: all(members) };
    assert_eq!(ask(&t, &key, add(&["a", "b", ""])).await, NativeReply::Count(3));
    assert_eq!(ask(&t, &key, add(&["b", "c"])).await, NativeReply::Count(1));
    let has = Native::SetHas { members: all(&["a", "x", ""]) };
    assert_eq!(ask(&t, &key, has).await, NativeReply::Flags(vec![true, false, true]));
    assert_eq!(ask(&t, &key, Native::SetRemove { members: all(&["a", "x"]) }).await, NativeReply::Count(1));
    let NativeReply::Members(mut members) = ask(&t, &key, Native::SetAll).await else { panic!("members") };
    members.sort();
    assert_eq!(members, all(&["", "b", "c"]));
    let many: Vec<Bytes> = (0..2_000).map(|n| format!("member {n}").into()).collect();
    assert_eq!(ask(&t, &key, Native::SetAdd { members: many }).await, NativeReply::Count(2_000));
    let (mut scan, mut seen) = (Scan::start(100), std::collections::BTreeSet::new());
    loop {
        let NativeReply::Page { next, found } = ask(&t, &key, Native::SetScan(scan)).await else { panic!("a page") };
        seen.extend(found);
        let Some(cursor) = next else { break };
        scan.cursor = cursor;
    }
    assert_eq!(seen.len(), 2_003);
    assert_eq!(ask(&t, &key, Native::SetLen).await, NativeReply::Count(2_003));
    assert_eq!(refused(&t, &key, Native::SetAdd { members: Vec::new() }).await, ErrorKind::BadInput);
}

async fn native_sorted_sets_are_ordered(t: Bench) {
    let key = t.key("z");
    let add =
        |member: &'static str, to: f64, only| Native::SortedAdd { entries: vec![(member.into(), score(to))], only };
    assert_eq!(
        ask(&t, &key, add("a", 1.0, Only::KNOWN)).await,
        NativeReply::Count(0),
        "it makes neither member nor key"
    );
    assert_eq!(ask(&t, &key, Native::SortedScores { members: all(&["a"]) }).await, NativeReply::Scores(vec![None]));
    for (member, to, only, changes) in [
        ("a", 0.1, Only::empty(), 1),
        ("b", -2.0, Only::NEW, 1),
        ("b", 9.0, Only::NEW, 0),
        ("c", f64::INFINITY, Only::GREATER, 1),
        ("a", 0.05, Only::GREATER, 0),
        ("a", 9_007_199_254_740_991.0, Only::KNOWN | Only::GREATER, 1),
        ("b", -3.0, Only::LESS, 1),
    ] {
        assert_eq!(ask(&t, &key, add(member, to, only)).await, NativeReply::Count(changes), "{member} {to} {only:?}");
    }
    let ranked =
        |of: &[(&'static str, f64)]| NativeReply::Scored(of.iter().map(|&(m, s)| (m.into(), score(s))).collect());
    let top = ranked(&[("c", f64::INFINITY), ("a", 9_007_199_254_740_991.0)]);
    assert_eq!(ask(&t, &key, Native::SortedRange(Ranks::top(2))).await, top);
    assert_eq!(ask(&t, &key, Native::SortedRange(Ranks::bottom(1))).await, ranked(&[("b", -3.0)]));
    assert_eq!(ask(&t, &key, Native::SortedRange(Ranks::top(0))).await, ranked(&[]));
    for (from_top, rank) in [(true, 2), (false, 0)] {
        let ask_rank = Native::SortedRank { member: "b".into(), from_top };
        assert_eq!(ask(&t, &key, ask_rank).await, NativeReply::Rank(Some(rank)));
    }
    let none = Native::SortedRank { member: "x".into(), from_top: true };
    assert_eq!(ask(&t, &key, none).await, NativeReply::Rank(None));
    let incr = Native::SortedIncr { member: "b".into(), by: score(0.5) };
    assert_eq!(ask(&t, &key, incr).await, NativeReply::Scores(vec![Some(score(-2.5))]));
    let trim = Native::SortedTrim(Ranks { first: 0, last: -3, from_top: false });
    assert_eq!(ask(&t, &key, trim).await, NativeReply::Count(1), "all but the two highest");
    assert_eq!(ask(&t, &key, Native::SortedRemove { members: all(&["a", "b"]) }).await, NativeReply::Count(1));
    assert_eq!(ask(&t, &key, Native::SortedLen).await, NativeReply::Count(1));
}

async fn native_bits_hold_numbers(t: Bench) {
    let key = t.key("b");
    let get = Native::Bits(vec![BitField::get(63, 1), BitField::get(9, 64)]);
    assert_eq!(ask(&t, &key, get).await, NativeReply::Numbers(vec![Some(0), Some(0)]));
    assert_eq!(ask(&t, &key, Native::BitsLen).await, NativeReply::Count(0), "a read makes nothing");
    let make = |value: &'static [u8]| Native::BitsMake { value: value.into() };
    assert_eq!(ask(&t, &key, make(b"\x80\0\0\0\0\0\0\x07\0\0")).await, NativeReply::Flag(true));
    assert_eq!(ask(&t, &key, make(b"x")).await, NativeReply::Flag(false));
    let mark = || BitField::get(63, 1);
    let steps = Native::Bits(vec![
        mark(),
        BitField::set(9, 64 + 3, 0x155),
        BitField::get(9, 64 + 3),
        BitField::incr(9, 64 + 3, 0xff),
        BitField::incr(9, 64 + 3, -0x155),
        BitField::set(1, 64 + 2, 1),
        BitField::set(63, 200, u64::MAX >> 1),
    ]);
    // An addition that would leave the range writes nothing.
    let expected = [Some(7), Some(0), Some(0x155), None, Some(0), Some(0), Some(0)];
    assert_eq!(ask(&t, &key, steps).await, NativeReply::Numbers(expected.to_vec()));
    let get = Native::Bits(vec![BitField::get(12, 64), BitField::get(63, 200), BitField::get(8, 4_000)]);
    assert_eq!(ask(&t, &key, get).await, NativeReply::Numbers(vec![Some(0x200), Some(u64::MAX >> 1), Some(0)]));
    assert_eq!(ask(&t, &key, Native::BitsLen).await, NativeReply::Count(33));
    let read = |offset_bytes, len_bytes| Native::BitsRead { offset_bytes, len_bytes };
    assert_eq!(ask(&t, &key, read(7, 3)).await, NativeReply::Bytes(b"\x07\x20\0"[..].into()));
    for (offset, len) in [(0, 0), (33, 9), (u64::MAX, u64::MAX)] {
        assert_eq!(ask(&t, &key, read(offset, len)).await, NativeReply::Bytes(Bytes::new()), "{len} from {offset}");
    }
    assert_eq!(refused(&t, &key, Native::Bits(vec![mark(), BitField::set(2, 0, 4)])).await, ErrorKind::BadInput);
}

async fn native_bits_of_eight_writers_lose_nothing(t: Bench) {
    let key = t.key("b");
    let writers = (0..8u64).map(|writer| {
        let (t, key) = (t.clone(), key.clone());
        tokio::spawn(async move {
            for value in 1..=50 {
                ask(&t, &key, Native::Bits(vec![BitField::set(9, 5 + writer * 9, value + writer)])).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic");
    }
    let get = (0..8).map(|writer| BitField::get(9, 5 + writer * 9)).collect();
    let expected = (0..8).map(|writer| Some(50 + writer)).collect();
    assert_eq!(ask(&t, &key, Native::Bits(get)).await, NativeReply::Numbers(expected));
}

async fn native_streams_are_appended_to(t: Bench) {
    let key = t.key("x");
    let append = |value: String, keep| Native::StreamAppend { fields: vec![("v".into(), value.into())], keep };
    let mut ids = Vec::new();
    for n in 0..3 {
        let NativeReply::Id(id) = ask(&t, &key, append(n.to_string(), None)).await else { panic!("an id") };
        ids.push(id);
    }
    assert!(ids.is_sorted() && ids[0] > StreamId::MIN);
    let range = |from, to, limit| Native::StreamRange { from, to, limit };
    let NativeReply::Entries(found) = ask(&t, &key, range(ids[1], StreamId::MAX, 9)).await else { panic!("entries") };
    assert_eq!(found.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids[1..]);
    assert_eq!(found[1].fields, [("v".into(), "2".into())]);
    for (limit, expected) in [(0, 0), (2, 2)] {
        let NativeReply::Entries(found) = ask(&t, &key, range(StreamId::MIN, StreamId::MAX, limit)).await else {
            panic!("entries")
        };
        assert_eq!(found.len(), expected);
    }
    for n in 0..1_000 {
        ask(&t, &key, append(n.to_string(), Some(100))).await;
    }
    let NativeReply::Count(left) = ask(&t, &key, Native::StreamLen).await else { panic!("a count") };
    assert!((100..500).contains(&left), "{left} of 1,003 are left");
}

async fn native_keys_are_looked_at_removed_and_expire(t: Bench) {
    let key = t.key("k");
    assert_eq!(ask(&t, &key, Native::Encoding).await, NativeReply::Text(None));
    assert_eq!(ask(&t, &key, Native::MemoryBytes).await, NativeReply::Size(None));
    ask(&t, &key, Native::SetAdd { members: all(&["1", "2"]) }).await;
    assert_eq!(ask(&t, &key, Native::Encoding).await, NativeReply::Text(Some("intset".into())));
    ask(&t, &key, Native::SetAdd { members: all(&["x"]) }).await;
    assert_ne!(ask(&t, &key, Native::Encoding).await, NativeReply::Text(Some("intset".into())));
    let NativeReply::Size(Some(bytes)) = ask(&t, &key, Native::MemoryBytes).await else { panic!("a size") };
    assert!((10..1_000).contains(&bytes), "{bytes}");
    assert_eq!(t.ok(Op::native(key.clone(), Native::Expire { ttl_ms: 60_000 })).await, Reply::Touched);
    assert_eq!(t.ok(Op::native(key.clone(), Native::Remove)).await, Reply::Deleted);
    assert_eq!(t.ok(Op::native(key.clone(), Native::Remove)).await, Reply::Miss);
    assert_eq!(t.ok(Op::native(key.clone(), Native::Expire { ttl_ms: 60_000 })).await, Reply::Miss);
    ask(&t, &key, Native::SetAdd { members: all(&["x"]) }).await;
    assert_eq!(t.ok(Op::native(key.clone(), Native::Expire { ttl_ms: 50 })).await, Reply::Touched);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while ask(&t, &key, Native::SetLen).await != NativeReply::Count(0) {
        assert!(tokio::time::Instant::now() < deadline, "it is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn native_ops_and_items_keep_apart(t: Bench) {
    let (item, set) = (t.key("item"), t.key("set"));
    t.set(&item, "value").await;
    ask(&t, &set, Native::SetAdd { members: all(&["m"]) }).await;
    assert_eq!(refused(&t, &item, Native::SetAdd { members: all(&["m"]) }).await, ErrorKind::LayoutMismatch);
    assert_eq!(refused(&t, &set, Native::HashLen).await, ErrorKind::LayoutMismatch);
    let error = t.run(Op::get(set.clone(), larder_core::Want::VALUE)).await.expect_err("no item");
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    // In a batch each answers for itself, and ops on one key keep their order.
    let batch = Batch::from_iter([
        Op::native(set.clone(), Native::SetAdd { members: all(&["n"]) }),
        Op::native(item.clone(), Native::SetLen),
        Op::native(set.clone(), Native::SetLen),
    ]);
    let mut replies = t.store.run(Ctx::default(), batch).await.into_iter();
    let mut next = || replies.next().expect("a reply");
    assert_eq!(next().expect("new").into_native(), Some(NativeReply::Count(1)));
    assert_eq!(next().expect_err("an item").kind(), ErrorKind::LayoutMismatch);
    assert_eq!(next().expect("two").into_native(), Some(NativeReply::Count(2)));
    assert_eq!(t.value(&item).await.expect("untouched"), "value");
}

async fn native_changes_need_their_mark(t: Bench) {
    let entries = |names: &[&'static str]| -> Vec<(Bytes, Bytes)> {
        names.iter().map(|name| (Bytes::from_static(name.as_bytes()), Bytes::from_static(b"7"))).collect()
    };
    for of in [Collection::Hash, Collection::Set, Collection::Sorted] {
        let key = t.key(&format!("{of:?}"));
        let guarded = |mark: &'static str, act| Native::Guarded(Guarded { of, mark: mark.into(), act });
        let (len, make) = match of {
            Collection::Hash => (Native::HashLen, Native::HashAdd { field: "open".into(), value: "0".into() }),
            Collection::Set => (Native::SetLen, Native::SetAdd { members: all(&["open"]) }),
            Collection::Sorted => {
                let entries = vec![("open".into(), Score::from(0))];
                (Native::SortedLen, Native::SortedAdd { entries, only: Only::NEW })
            }
        };
        let put = |names: &[&'static str]| GuardedAct::Put { entries: entries(names) };
        assert_eq!(ask(&t, &key, guarded("open", put(&["a"]))).await, NativeReply::Unmarked, "no key is made");
        assert_eq!(ask(&t, &key, len.clone()).await, NativeReply::Count(0));
        ask(&t, &key, make).await;
        let told = ask(&t, &key, guarded("open", put(&["a", "b", "a"]))).await;
        assert_eq!(told, NativeReply::Flags(vec![true, true, false]), "{of:?}");
        let gone = GuardedAct::Remove { names: all(&["a", "none"]) };
        assert_eq!(ask(&t, &key, guarded("open", gone)).await, NativeReply::Flags(vec![true, false]));
        assert_eq!(ask(&t, &key, guarded("closed", put(&["c"]))).await, NativeReply::Unmarked);
        let turn = || GuardedAct::Turn { to: "closed".into(), entries: entries(&["c", "b"]) };
        assert_eq!(ask(&t, &key, guarded("open", turn())).await, NativeReply::Flags(vec![true, false]));
        assert_eq!(ask(&t, &key, guarded("open", turn())).await, NativeReply::Unmarked, "it was turned");
        assert_eq!(ask(&t, &key, len).await, NativeReply::Count(3), "b, c and the mark");
        assert_eq!(refused(&t, &key, guarded("closed", put(&[]))).await, ErrorKind::BadInput);
    }
    let key = t.key("other");
    ask(&t, &key, Native::SetAdd { members: all(&["m"]) }).await;
    let act = GuardedAct::Remove { names: all(&["m"]) };
    let odd = Native::Guarded(Guarded { of: Collection::Hash, mark: "m".into(), act });
    assert_eq!(refused(&t, &key, odd).await, ErrorKind::LayoutMismatch);
}

async fn native_collections_are_made_and_dropped_by_their_mark(t: Bench) {
    for of in [Collection::Hash, Collection::Set, Collection::Sorted] {
        let (key, other) = (t.key(&format!("{of:?}")), t.key(&format!("other-{of:?}")));
        let guarded = |mark: &'static str, act| Native::Guarded(Guarded { of, mark: mark.into(), act });
        let make = |ttl_ms| guarded("open", GuardedAct::Make { ttl_ms });
        let drop_by = |or: &[&'static str]| guarded("open", GuardedAct::Drop { or: all(or) });
        let told = |flag| NativeReply::Flags(vec![flag]);
        let (len, add) = match of {
            Collection::Hash => (Native::HashLen, Native::HashAdd { field: "shut".into(), value: "0".into() }),
            Collection::Set => (Native::SetLen, Native::SetAdd { members: all(&["shut"]) }),
            Collection::Sorted => {
                let entries = vec![("shut".into(), Score::from(0))];
                (Native::SortedLen, Native::SortedAdd { entries, only: Only::NEW })
            }
        };
        assert_eq!(ask(&t, &key, drop_by(&["shut"])).await, told(false), "{of:?}: nothing is there");
        assert_eq!(ask(&t, &key, make(None)).await, told(true));
        assert_eq!(ask(&t, &key, make(None)).await, told(false));
        assert_eq!(ask(&t, &key, len.clone()).await, NativeReply::Count(1));
        // Another's: neither made nor dropped.
        ask(&t, &other, add).await;
        assert_eq!(ask(&t, &other, make(None)).await, NativeReply::Unmarked, "{of:?}");
        assert_eq!(ask(&t, &other, make(Some(1))).await, NativeReply::Unmarked);
        assert_eq!(ask(&t, &other, drop_by(&["closed"])).await, NativeReply::Unmarked);
        assert_eq!(ask(&t, &other, len.clone()).await, NativeReply::Count(1));
        assert_eq!(ask(&t, &other, drop_by(&["closed", "shut"])).await, told(true), "one of its marks does");
        assert_eq!(ask(&t, &key, drop_by(&[])).await, told(true));
        assert_eq!(ask(&t, &key, drop_by(&[])).await, told(false));
        assert_eq!(ask(&t, &key, make(Some(50))).await, told(true));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        while ask(&t, &key, len.clone()).await != NativeReply::Count(0) {
            assert!(tokio::time::Instant::now() < deadline, "it is still there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(refused(&t, &key, make(Some(0))).await, ErrorKind::BadInput);
    }
}

async fn native_bits_need_their_mark(t: Bench) {
    let key = t.key("b");
    let guarded = |mark: &'static [u8], act| Native::GuardedBits(GuardedBits { mark: mark.into(), act });
    let incr = |by| guarded(b"\0m\xff", GuardedBitsAct::Incr { number: BitField::incr(63, 25, by) });
    let small = |by| guarded(b"\0m\xff", GuardedBitsAct::Incr { number: BitField::incr(9, 88, by) });
    let put = |numbers: Vec<BitField>| guarded(b"\0m\xff", GuardedBitsAct::Put { numbers });
    let drop_by = |mark, or: &[&'static str]| guarded(mark, GuardedBitsAct::Drop { or: all(or) });
    let read = || Native::BitsRead { offset_bytes: 0, len_bytes: 9_999 };
    for op in [incr(1), put(vec![BitField::set(8, 24, 7)])] {
        assert_eq!(ask(&t, &key, op).await, NativeReply::Unmarked);
    }
    assert_eq!(ask(&t, &key, drop_by(b"m", &[])).await, NativeReply::Flag(false));
    assert_eq!(ask(&t, &key, Native::BitsLen).await, NativeReply::Count(0), "no key is made");
    let make = |value: &'static [u8]| Native::BitsMake { value: value.into() };
    ask(&t, &key, make(b"\0m\xff\0\0\0\0\0\0\0\0")).await;
    // Every bit of a wide number comes back.
    let mut number = 0_u64;
    for by in [1, (1 << 53) - 1, 2, 1 << 62, -(1 << 61), -7, i64::from(u32::MAX), 3, (1 << 61) + 5] {
        number = number.checked_add_signed(by).expect("in range");
        assert_eq!(ask(&t, &key, incr(by)).await, NativeReply::Numbers(vec![Some(number)]), "{by}");
    }
    for by in [i64::MAX, -i64::MAX] {
        assert_eq!(ask(&t, &key, incr(by)).await, NativeReply::Numbers(vec![None]), "{by}");
    }
    assert_eq!(ask(&t, &key, incr(0)).await, NativeReply::Numbers(vec![Some(number)]), "nothing was added");
    for (by, then) in [(511, Some(511)), (1, None), (-500, Some(11)), (-12, None)] {
        assert_eq!(ask(&t, &key, small(by)).await, NativeReply::Numbers(vec![then]));
    }
    // More numbers than a call takes at once.
    let many: Vec<BitField> = (0..3_000).map(|n| BitField::set(9, 104 + n * 9, n % 512)).collect();
    assert_eq!(ask(&t, &key, put(many)).await, NativeReply::Flag(true));
    let gets = (0..3_000).map(|n| BitField::get(9, 104 + n * 9)).collect();
    let expected = (0..3_000).map(|n| Some(n % 512)).collect();
    assert_eq!(ask(&t, &key, Native::Bits(gets)).await, NativeReply::Numbers(expected));
    // Another's: nothing of it changes.
    let before = ask(&t, &key, read()).await;
    let another = |act| guarded(b"\0m\xfe", act);
    for act in [
        GuardedBitsAct::Incr { number: BitField::incr(63, 25, 1) },
        GuardedBitsAct::Put { numbers: vec![BitField::set(8, 0, 1), BitField::set(8, 80_000, 1)] },
        GuardedBitsAct::Drop { or: all(&["n", "\0m\u{1}"]) },
    ] {
        assert_eq!(ask(&t, &key, another(act)).await, NativeReply::Unmarked);
    }
    assert_eq!(ask(&t, &key, read()).await, before);
    assert_eq!(refused(&t, &key, put(Vec::new())).await, ErrorKind::BadInput);
    assert_eq!(ask(&t, &key, drop_by(b"another", &["none", "\0m"])).await, NativeReply::Flag(true));
    assert_eq!(ask(&t, &key, drop_by(b"another", &[])).await, NativeReply::Flag(false));
    // A mark that is longer than the value is not in it.
    ask(&t, &key, make(b"\0m")).await;
    assert_eq!(ask(&t, &key, incr(1)).await, NativeReply::Unmarked);
    let set = t.key("set");
    ask(&t, &set, Native::SetAdd { members: all(&["m"]) }).await;
    assert_eq!(refused(&t, &set, incr(1)).await, ErrorKind::LayoutMismatch);
    assert_eq!(refused(&t, &set, drop_by(b"m", &[])).await, ErrorKind::LayoutMismatch);
}
