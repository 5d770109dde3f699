//! Every op's semantics, checked against every store.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{
    Arith, Batch, Cas, Ctx, ErrorKind, Initial, Item, Key, Op, PutMode, Remaining, Reply, Ttl, Verb, Want,
};

use super::{Bench, cases};

cases! {
    get_of_nothing_is_a_miss [];
    set_then_get_brings_the_same_bytes [];
    set_replaces [];
    add_takes_effect_only_where_there_is_nothing [];
    replace_takes_effect_only_where_there_is_something [];
    append_and_prepend_join [];
    append_and_prepend_to_nothing_are_not_stored [];
    append_keeps_the_flags [];
    flags_are_kept [];
    an_empty_value_is_a_hit [];
    the_largest_value_fits_and_one_byte_more_is_refused [];
    a_value_over_the_limit_leaves_the_old_one_in_every_mode [];
    an_append_over_the_limit_is_not_stored_and_keeps_the_old_value [];
    delete_removes_once [];
    incr_and_decr_count [];
    incr_wraps_at_2_to_the_64 [];
    decr_stops_at_zero [];
    arithmetic_on_nothing_is_a_miss [];
    arithmetic_on_text_is_refused_and_keeps_it [];
    arithmetic_creates_when_told_to [ArithInitial];
    the_shortest_and_the_longest_key_work [];
    binary_keys_work [BinaryKeys];
    binary_values_work [];
    a_batch_keeps_the_order_of_one_key [];
    a_batch_of_many_keys_answers_each [];
    cas_takes_effect_only_with_the_current_token [Cas];
    cas_on_nothing_is_a_miss [Cas];
    the_read_behind_a_swap_finds_what_stands_after_it [Cas];
    the_read_behind_a_swap_tells_the_life_that_is_left [Cas, RemainingTtl];
    of_five_writers_one_cas_wins_each_round [Cas];
    every_write_changes_the_token_and_touch_does_not [Cas, Ttl];
    a_token_of_another_session_is_refused [Cas];
    delete_by_token_spares_another_item [DeleteCas];
    delete_by_token_of_nothing_is_a_miss [DeleteCas];
    eight_writers_lose_no_increment [];
    eight_writers_lose_no_append [];
    an_item_expires [Ttl];
    an_item_lives_at_least_its_ttl_less_a_second [Ttl];
    touch_gives_another_life [Ttl];
    touch_of_nothing_is_a_miss [Ttl];
    append_keeps_the_ttl [Ttl];
    an_expired_item_can_be_added_again [Ttl];
    the_remaining_ttl_is_told [RemainingTtl];
    a_ttl_of_31_days_and_of_10_years_works [RemainingTtl];
    a_ttl_of_zero_is_refused [];
    a_ttl_over_the_limit_is_refused [Ttl];
    a_life_where_there_are_none_is_refused [NoTtl];
}

fn put(key: &Key, mode: PutMode, value: impl Into<Bytes>) -> Op {
    Op::put(key.clone(), mode, value, Ttl::Never)
}

async fn get_of_nothing_is_a_miss(t: Bench) {
    assert_eq!(t.ok(Op::get(t.key("a"), Want::VALUE)).await, Reply::Miss);
    assert_eq!(t.ok(Op::get(t.key("a"), Want::empty())).await, Reply::Miss);
}

async fn set_then_get_brings_the_same_bytes(t: Bench) {
    let key = t.key("a");
    t.set(&key, "hello").await;
    assert_eq!(t.value(&key).await.unwrap(), "hello");
    let bare = t.ok(Op::get(key, Want::empty())).await.into_item().expect("a hit without any part");
    assert!(bare.value.is_empty() && bare.cas.is_none(), "{bare:?}");
}

async fn set_replaces(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    t.set(&key, "two").await;
    assert_eq!(t.value(&key).await.unwrap(), "two");
}

async fn add_takes_effect_only_where_there_is_nothing(t: Bench) {
    let key = t.key("a");
    assert_eq!(t.ok(put(&key, PutMode::Add, "one")).await, Reply::Stored);
    assert_eq!(t.ok(put(&key, PutMode::Add, "two")).await, Reply::NotStored);
    assert_eq!(t.value(&key).await.unwrap(), "one");
}

async fn replace_takes_effect_only_where_there_is_something(t: Bench) {
    let key = t.key("a");
    assert_eq!(t.ok(put(&key, PutMode::Replace, "one")).await, Reply::NotStored);
    assert_eq!(t.value(&key).await, None);
    t.set(&key, "one").await;
    assert_eq!(t.ok(put(&key, PutMode::Replace, "two")).await, Reply::Stored);
    assert_eq!(t.value(&key).await.unwrap(), "two");
}

async fn append_and_prepend_join(t: Bench) {
    let key = t.key("a");
    t.set(&key, "b").await;
    assert_eq!(t.ok(put(&key, PutMode::Append, "c")).await, Reply::Stored);
    assert_eq!(t.ok(put(&key, PutMode::Prepend, "a")).await, Reply::Stored);
    assert_eq!(t.ok(put(&key, PutMode::Append, "")).await, Reply::Stored);
    assert_eq!(t.value(&key).await.unwrap(), "abc");
}

async fn append_and_prepend_to_nothing_are_not_stored(t: Bench) {
    let key = t.key("a");
    assert_eq!(t.ok(put(&key, PutMode::Append, "c")).await, Reply::NotStored);
    assert_eq!(t.ok(put(&key, PutMode::Prepend, "c")).await, Reply::NotStored);
    assert_eq!(t.value(&key).await, None);
}

fn flagged(key: &Key, mode: PutMode, value: &'static str, flags: u32) -> Op {
    let value = Bytes::from_static(value.as_bytes());
    Op::new(key.clone(), Verb::Put { mode, value, flags, ttl: Ttl::Never })
}

async fn append_keeps_the_flags(t: Bench) {
    let key = t.key("a");
    t.ok(flagged(&key, PutMode::Set, "a", 7)).await;
    t.ok(flagged(&key, PutMode::Append, "b", 9)).await;
    let item = t.get(&key).await.unwrap();
    assert_eq!((&item.value[..], item.flags), (&b"ab"[..], 7));
}

async fn flags_are_kept(t: Bench) {
    let key = t.key("a");
    for flags in [0, 1, u32::MAX] {
        t.ok(flagged(&key, PutMode::Set, "a", flags)).await;
        assert_eq!(t.get(&key).await.unwrap().flags, flags);
    }
}

async fn an_empty_value_is_a_hit(t: Bench) {
    let key = t.key("a");
    t.set(&key, "").await;
    assert_eq!(t.value(&key).await.unwrap(), "");
}

fn pattern(bytes: usize) -> Bytes {
    (0..bytes).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into()
}

async fn the_largest_value_fits_and_one_byte_more_is_refused(t: Bench) {
    let key = t.key("a");
    let max = t.store.profile().value_bytes_max(key.as_bytes().len());
    let largest = pattern(max);
    t.set(&key, largest.clone()).await;
    assert_eq!(t.value(&key).await.unwrap(), largest);
    let error = t.run(put(&key, PutMode::Set, pattern(max + 1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    for number in [max, max + 1] {
        assert!(error.to_string().replace(',', "").contains(&number.to_string()), "{error} does not name {number}");
    }
    assert_eq!(t.value(&key).await.unwrap(), largest);
}

async fn a_value_over_the_limit_leaves_the_old_one_in_every_mode(t: Bench) {
    let key = t.key("a");
    t.set(&key, "old").await;
    let big = pattern(t.store.profile().value_bytes_max(key.as_bytes().len()) + 1);
    let mut modes = vec![PutMode::Set, PutMode::Add, PutMode::Replace];
    if t.store.profile().cas {
        modes.push(PutMode::Cas(t.cas(&key).await));
        modes.push(PutMode::Cas(Cas { token: 1, session: t.cas(&key).await.session }));
    }
    for mode in modes {
        let error = t.run(put(&key, mode, big.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{mode:?}: {error}");
        assert!(!error.is_unknown(), "{mode:?}: {error}");
        assert_eq!(t.value(&key).await.unwrap(), "old", "{mode:?}");
    }
}

async fn an_append_over_the_limit_is_not_stored_and_keeps_the_old_value(t: Bench) {
    let key = t.key("a");
    let max = t.store.profile().value_bytes_max(key.as_bytes().len());
    let old = pattern(max - 10);
    t.set(&key, old.clone()).await;
    for mode in [PutMode::Append, PutMode::Prepend] {
        // Past what the store may add for itself, too.
        assert_eq!(t.ok(put(&key, mode, pattern(200))).await, Reply::NotStored, "{mode:?}");
        assert_eq!(t.value(&key).await.unwrap(), old, "{mode:?}");
    }
}

async fn delete_removes_once(t: Bench) {
    let key = t.key("a");
    assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Miss);
    t.set(&key, "one").await;
    assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Deleted);
    assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Miss);
    assert_eq!(t.value(&key).await, None);
}

async fn incr_and_decr_count(t: Bench) {
    let key = t.key("a");
    t.set(&key, "5").await;
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Incr(10))).await, Reply::Number(15));
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Decr(7))).await, Reply::Number(8));
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Incr(0))).await, Reply::Number(8));
    assert_eq!(number(&t, &key).await, "8");
}

/// The digits of a number as a get brings them. memcached leaves spaces behind a number that lost digits.
async fn number(t: &Bench, key: &Key) -> String {
    let value = t.value(key).await.expect("a number");
    String::from_utf8_lossy(value.trim_ascii_end()).into_owned()
}

async fn incr_wraps_at_2_to_the_64(t: Bench) {
    let key = t.key("a");
    t.set(&key, (u64::MAX - 1).to_string()).await;
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Incr(3))).await, Reply::Number(1));
    assert_eq!(number(&t, &key).await, "1");
}

async fn decr_stops_at_zero(t: Bench) {
    let key = t.key("a");
    t.set(&key, "10").await;
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Decr(1))).await, Reply::Number(9));
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Incr(0))).await, Reply::Number(9));
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Decr(u64::MAX))).await, Reply::Number(0));
    assert_eq!(number(&t, &key).await, "0");
}

async fn arithmetic_on_nothing_is_a_miss(t: Bench) {
    let key = t.key("a");
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Incr(1))).await, Reply::Miss);
    assert_eq!(t.ok(Op::arith(key.clone(), Arith::Decr(1))).await, Reply::Miss);
    assert_eq!(t.value(&key).await, None);
}

async fn arithmetic_on_text_is_refused_and_keeps_it(t: Bench) {
    let key = t.key("a");
    for text in ["x", "-1", "18446744073709551616"] {
        t.set(&key, text).await;
        for arith in [Arith::Incr(1), Arith::Decr(1)] {
            let error = t.run(Op::arith(key.clone(), arith)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput, "{text} {arith:?}: {error}");
            assert!(!error.is_unknown(), "{error}");
        }
        assert_eq!(t.value(&key).await.unwrap(), text);
    }
}

async fn arithmetic_creates_when_told_to(t: Bench) {
    let key = t.key("a");
    let initial = Some(Initial { value: 40, ttl: Ttl::Never });
    let op = Op::new(key.clone(), Verb::Arith { arith: Arith::Incr(2), initial });
    assert_eq!(t.ok(op.clone()).await, Reply::Number(40));
    assert_eq!(t.ok(op).await, Reply::Number(42));
    assert_eq!(t.value(&key).await.unwrap(), "42");
}

async fn the_shortest_and_the_longest_key_work(t: Bench) {
    let mut long = t.key("x").into_bytes().to_vec();
    long.resize(t.store.profile().key_bytes_max, b'k');
    for bytes in [b"~".to_vec(), long] {
        let key = Key::new(bytes).unwrap();
        t.set(&key, "v").await;
        assert_eq!(t.value(&key).await.unwrap(), "v");
        assert_eq!(t.ok(Op::delete(key)).await, Reply::Deleted);
    }
}

async fn binary_keys_work(t: Bench) {
    let tail: [&[u8]; 7] = [b" ", b"\0", b"\t", b"\r\n", b"\x01", b"\xff\xfe", b"\r\nset x 0 0 1\r\ny\r\n"];
    for tail in tail {
        let key = Key::new([t.key("b").as_bytes(), tail].concat()).unwrap();
        t.set(&key, "1").await;
        assert_eq!(t.ok(put(&key, PutMode::Add, "9")).await, Reply::NotStored, "{key}");
        assert_eq!(t.ok(put(&key, PutMode::Append, "2")).await, Reply::Stored, "{key}");
        assert_eq!(t.ok(Op::arith(key.clone(), Arith::Incr(1))).await, Reply::Number(13), "{key}");
        let token = t.cas(&key).await;
        assert_eq!(t.ok(put(&key, PutMode::Cas(token), "three")).await, Reply::Stored, "{key}");
        assert_eq!(t.ok(put(&key, PutMode::Cas(token), "four")).await, Reply::Exists, "{key}");
        assert_eq!(t.value(&key).await.unwrap(), "three", "{key}");
        assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Deleted, "{key}");
    }
}

async fn binary_values_work(t: Bench) {
    let key = t.key("a");
    for value in
        [pattern(256), Bytes::from_static(b"\r\nEND\r\n"), Bytes::from_static(b"VALUE a 0 1\r\nx\r\nEND\r\n\0\xff")]
    {
        t.set(&key, value.clone()).await;
        assert_eq!(t.value(&key).await.unwrap(), value);
    }
}

async fn a_batch_keeps_the_order_of_one_key(t: Bench) {
    let key = t.key("a");
    let mut batch = Batch::new();
    batch.push(put(&key, PutMode::Set, ""));
    let mut expected = String::new();
    for number in 0..100 {
        batch.push(put(&key, PutMode::Append, format!("{number},")));
        expected.push_str(&format!("{number},"));
        batch.push(Op::get(key.clone(), Want::VALUE));
    }
    let replies = t.store.run(Ctx::default(), batch).await;
    assert_eq!(replies.len(), 201);
    let last = replies.into_iter().next_back().unwrap().unwrap().into_item().unwrap();
    assert_eq!(last.value, expected);
}

async fn a_batch_of_many_keys_answers_each(t: Bench) {
    let keys: Vec<Key> = (0..200).map(|n| t.key(&n.to_string())).collect();
    let puts: Batch = keys.iter().step_by(2).map(|key| put(key, PutMode::Set, key.clone().into_bytes())).collect();
    assert!(t.store.run(Ctx::default(), puts).await.into_iter().all(|reply| reply.unwrap() == Reply::Stored));
    let gets: Batch = keys.iter().map(|key| Op::get(key.clone(), Want::VALUE)).collect();
    let replies = t.store.run(Ctx::default(), gets).await;
    assert_eq!(replies.len(), keys.len());
    for (n, (key, reply)) in keys.iter().zip(replies).enumerate() {
        let found = reply.unwrap().into_item().map(|item| item.value);
        assert_eq!(found, (n % 2 == 0).then(|| key.clone().into_bytes()), "{key}");
    }
}

async fn cas_takes_effect_only_with_the_current_token(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    let token = t.cas(&key).await;
    assert_eq!(t.ok(put(&key, PutMode::Cas(token), "two")).await, Reply::Stored);
    assert_eq!(t.ok(put(&key, PutMode::Cas(token), "three")).await, Reply::Exists);
    assert_eq!(t.value(&key).await.unwrap(), "two");
}

async fn cas_on_nothing_is_a_miss(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    let token = t.cas(&key).await;
    t.ok(Op::delete(key.clone())).await;
    assert_eq!(t.ok(put(&key, PutMode::Cas(token), "two")).await, Reply::Miss);
    assert_eq!(t.value(&key).await, None);
}

/// A conditional write and a read of the same item, in one batch.
async fn swap(t: &Bench, key: &Key, token: Cas, value: &Bytes, flags: u32, ttl: Ttl) -> (Reply, Option<Item>) {
    let verb = Verb::Put { mode: PutMode::Cas(token), value: value.clone(), flags, ttl };
    let swap = Op { key: key.clone(), route: larder_core::Route::default(), verb };
    let batch = Batch::from_iter([swap, Op::get(key.clone(), Want::all())]);
    let mut replies = t.store.run(Ctx::default(), batch).await.into_iter().map(|reply| reply.expect("a reply"));
    let put = replies.next().expect("the first reply");
    (put, replies.next().and_then(Reply::into_item))
}

async fn the_read_behind_a_swap_finds_what_stands_after_it(t: Bench) {
    for (name, length, flags) in [("a", 0, 0), ("b", 40, 7), ("c", 5_000, 0)] {
        let key = t.key(name);
        let [one, two, three] = [b'1', b'2', b'3'].map(|byte| Bytes::from(vec![byte; length]));
        t.set(&key, one).await;
        let first = t.cas(&key).await;
        let (put, item) = swap(&t, &key, first, &two, flags, Ttl::Never).await;
        let item = item.expect("it was written");
        assert_eq!((put, &item.value, item.flags), (Reply::Stored, &two, flags), "{length} bytes");
        // By the old token: what is there is told, and stays.
        let (put, found) = swap(&t, &key, first, &three, 0, Ttl::Never).await;
        let found = found.expect("it is there");
        assert_eq!((put, &found.value, found.flags), (Reply::Exists, &two, flags), "{length} bytes");
        assert_eq!((found.cas, found.ttl), (item.cas, item.ttl), "{length} bytes");
        // The token of a read behind a swap is as good as any.
        let (put, item) = swap(&t, &key, item.cas.expect("a token"), &three, 0, Ttl::Never).await;
        let item = item.expect("it was written");
        assert_eq!((put, &item.value, item.flags), (Reply::Stored, &three, 0), "{length} bytes");
        t.ok(Op::delete(key.clone())).await;
        let gone = swap(&t, &key, item.cas.expect("a token"), &two, 0, Ttl::Never).await;
        assert_eq!(gone, (Reply::Miss, None), "{length} bytes");
        t.set(&key, two).await;
        let strange = swap(&t, &key, Cas { token: 1, session: u64::MAX }, &three, 0, Ttl::Never).await;
        assert_eq!(
            (strange.0, strange.1.map(|item| item.value)),
            (Reply::Exists, t.value(&key).await),
            "{length} bytes"
        );
    }
}

async fn the_read_behind_a_swap_tells_the_life_that_is_left(t: Bench) {
    let key = t.key("a");
    let life = Ttl::After(Duration::from_secs(100));
    t.set(&key, "1").await;
    let first = t.cas(&key).await;
    let (put, written) = swap(&t, &key, first, &"2".into(), 0, life).await;
    assert_eq!(put, Reply::Stored);
    let (put, found) = swap(&t, &key, first, &"3".into(), 0, Ttl::Never).await;
    assert_eq!(put, Reply::Exists);
    for item in [written, found].map(|item| item.expect("it is there")) {
        let Remaining::For(left) = item.ttl else { panic!("{:?} of a life of 100 s", item.ttl) };
        assert!((95..=100).contains(&left.as_millis().div_ceil(1_000)), "{left:?} of a life of 100 s");
    }
}

async fn of_five_writers_one_cas_wins_each_round(t: Bench) {
    let key = t.key("a");
    for round in 0..20 {
        t.set(&key, format!("round {round}")).await;
        let token = t.cas(&key).await;
        let writers = (0..5).map(|writer| {
            let (t, key) = (t.clone(), key.clone());
            tokio::spawn(async move { t.ok(put(&key, PutMode::Cas(token), format!("writer {writer}"))).await })
        });
        let mut won = Vec::new();
        for (writer, reply) in writers.collect::<Vec<_>>().into_iter().enumerate() {
            match reply.await.unwrap() {
                Reply::Stored => won.push(writer),
                Reply::Exists => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        assert_eq!(t.value(&key).await.unwrap(), format!("writer {}", won[0]));
    }
}

async fn every_write_changes_the_token_and_touch_does_not(t: Bench) {
    let key = t.key("a");
    t.set(&key, "1").await;
    let mut last = t.cas(&key).await;
    let writes = [
        put(&key, PutMode::Set, "1"),
        put(&key, PutMode::Replace, "1"),
        put(&key, PutMode::Append, "2"),
        put(&key, PutMode::Prepend, "3"),
        Op::arith(key.clone(), Arith::Incr(1)),
        put(&key, PutMode::Set, "1"),
    ];
    for write in writes {
        let name = write.name();
        t.ok(write).await;
        let now = t.cas(&key).await;
        assert_ne!(now, last, "{name}");
        last = now;
    }
    t.ok(Op::touch(key.clone(), Ttl::After(Duration::from_secs(100)))).await;
    assert_eq!(t.cas(&key).await, last, "touch");
}

async fn a_token_of_another_session_is_refused(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    let token = t.cas(&key).await;
    let strange = Cas { session: token.session ^ 0x5a5a_5a5a, ..token };
    assert_eq!(t.ok(put(&key, PutMode::Cas(strange), "two")).await, Reply::Exists);
    assert_eq!(t.value(&key).await.unwrap(), "one");
}

async fn delete_by_token_spares_another_item(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    let token = t.cas(&key).await;
    t.set(&key, "two").await;
    assert_eq!(t.ok(Op::delete_if(key.clone(), token)).await, Reply::Exists);
    assert_eq!(t.value(&key).await.unwrap(), "two");
    let token = t.cas(&key).await;
    assert_eq!(t.ok(Op::delete_if(key.clone(), token)).await, Reply::Deleted);
    assert_eq!(t.value(&key).await, None);
}

async fn delete_by_token_of_nothing_is_a_miss(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    let token = t.cas(&key).await;
    t.ok(Op::delete(key.clone())).await;
    assert_eq!(t.ok(Op::delete_if(key, token)).await, Reply::Miss);
}

const WRITERS: u64 = 8;
const WRITES_EACH: u64 = 100;

async fn by_eight_writers(t: &Bench, write: impl Fn(u64) -> Op + Clone + Send + 'static) {
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (t, write) = (t.clone(), write.clone());
            tokio::spawn(async move {
                for _ in 0..WRITES_EACH {
                    t.ok(write(writer)).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn eight_writers_lose_no_increment(t: Bench) {
    let key = t.key("a");
    t.set(&key, "0").await;
    let counted = key.clone();
    by_eight_writers(&t, move |_| Op::arith(counted.clone(), Arith::Incr(1))).await;
    assert_eq!(t.value(&key).await.unwrap(), (WRITERS * WRITES_EACH).to_string());
}

async fn eight_writers_lose_no_append(t: Bench) {
    let key = t.key("a");
    t.set(&key, "").await;
    let appended = key.clone();
    by_eight_writers(&t, move |writer| put(&appended, PutMode::Append, writer.to_string())).await;
    let value = t.value(&key).await.unwrap();
    for writer in 0..WRITERS {
        let digit = b'0' + u8::try_from(writer).unwrap();
        assert_eq!(value.iter().filter(|&&byte| byte == digit).count() as u64, WRITES_EACH);
    }
}

async fn an_item_expires(t: Bench) {
    let key = t.key("a");
    t.ok(Op::put(key.clone(), PutMode::Set, "v", Ttl::After(Duration::from_secs(1)))).await;
    gone_within(&t, &key, Duration::from_secs(4)).await;
}

/// Waits until an item is gone: the clock of a server ticks in its own time.
async fn gone_within(t: &Bench, key: &Key, limit: Duration) {
    let deadline = tokio::time::Instant::now() + limit;
    while t.value(key).await.is_some() {
        assert!(tokio::time::Instant::now() < deadline, "{key} is still there after {limit:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn an_item_lives_at_least_its_ttl_less_a_second(t: Bench) {
    let key = t.key("a");
    let began = tokio::time::Instant::now();
    t.ok(Op::put(key.clone(), PutMode::Set, "v", Ttl::After(Duration::from_millis(2_500)))).await;
    // 2.5 s are rounded up to 3 where lives are whole seconds, and a life of T ends after T-1 s at the earliest.
    tokio::time::sleep(Duration::from_millis(1_400)).await;
    let is_there = t.value(&key).await.is_some();
    assert!(is_there || began.elapsed() >= Duration::from_millis(1_500), "gone after {:?}", began.elapsed());
    gone_within(&t, &key, Duration::from_secs(5)).await;
}

async fn touch_gives_another_life(t: Bench) {
    let (short, long) = (t.key("short"), t.key("long"));
    t.ok(Op::put(short.clone(), PutMode::Set, "v", Ttl::After(Duration::from_secs(100)))).await;
    t.ok(Op::put(long.clone(), PutMode::Set, "v", Ttl::After(Duration::from_secs(2)))).await;
    assert_eq!(t.ok(Op::touch(short.clone(), Ttl::After(Duration::from_secs(1)))).await, Reply::Touched);
    assert_eq!(t.ok(Op::touch(long.clone(), Ttl::Never)).await, Reply::Touched);
    gone_within(&t, &short, Duration::from_secs(4)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(t.value(&long).await.unwrap(), "v");
}

async fn touch_of_nothing_is_a_miss(t: Bench) {
    assert_eq!(t.ok(Op::touch(t.key("a"), Ttl::Never)).await, Reply::Miss);
}

async fn append_keeps_the_ttl(t: Bench) {
    let key = t.key("a");
    t.ok(Op::put(key.clone(), PutMode::Set, "a", Ttl::After(Duration::from_secs(1)))).await;
    t.ok(Op::put(key.clone(), PutMode::Append, "b", Ttl::After(Duration::from_secs(1_000)))).await;
    gone_within(&t, &key, Duration::from_secs(4)).await;
}

async fn an_expired_item_can_be_added_again(t: Bench) {
    let key = t.key("a");
    t.ok(Op::put(key.clone(), PutMode::Set, "a", Ttl::After(Duration::from_secs(1)))).await;
    gone_within(&t, &key, Duration::from_secs(4)).await;
    assert_eq!(t.ok(put(&key, PutMode::Append, "b")).await, Reply::NotStored);
    assert_eq!(t.ok(put(&key, PutMode::Replace, "b")).await, Reply::NotStored);
    assert_eq!(t.ok(put(&key, PutMode::Add, "b")).await, Reply::Stored);
    assert_eq!(t.value(&key).await.unwrap(), "b");
}

async fn remaining(t: &Bench, key: &Key) -> Remaining {
    t.ok(Op::get(key.clone(), Want::TTL)).await.into_item().expect("a hit").ttl
}

async fn the_remaining_ttl_is_told(t: Bench) {
    let key = t.key("a");
    t.set(&key, "v").await;
    assert_eq!(remaining(&t, &key).await, Remaining::Never);
    t.ok(Op::put(key.clone(), PutMode::Set, "a", Ttl::After(Duration::from_secs(100)))).await;
    expect_remaining(&t, &key, Duration::from_secs(100)).await;
}

async fn expect_remaining(t: &Bench, key: &Key, ttl: Duration) {
    let Remaining::For(left) = remaining(t, key).await else { panic!("{key} has no remaining ttl") };
    let slack = Duration::from_secs(30);
    assert!(left <= ttl + Duration::from_secs(1) && left + slack >= ttl, "{left:?} left of {ttl:?}");
}

async fn a_ttl_of_31_days_and_of_10_years_works(t: Bench) {
    for days in [29, 30, 31, 3_653] {
        let key = t.key(&days.to_string());
        let ttl = Duration::from_secs(days * 86_400);
        t.ok(Op::put(key.clone(), PutMode::Set, "v", Ttl::After(ttl))).await;
        expect_remaining(&t, &key, ttl).await;
        t.ok(Op::touch(key.clone(), Ttl::After(ttl))).await;
        expect_remaining(&t, &key, ttl).await;
    }
}

async fn a_ttl_of_zero_is_refused(t: Bench) {
    let key = t.key("a");
    t.set(&key, "old").await;
    let ttl = Ttl::After(Duration::ZERO);
    for op in [Op::put(key.clone(), PutMode::Set, "new", ttl), Op::touch(key.clone(), ttl)] {
        let error = t.run(op).await.unwrap_err();
        let text = error.to_string();
        let is_told = match error.kind() {
            ErrorKind::BadInput => text.contains("a ttl is 0; the shortest is 1 ms"),
            // Where nothing has a life, none is too short.
            ErrorKind::Unsupported => text.contains("ttl") || text.contains("touch"),
            _ => false,
        };
        assert!(is_told && !error.is_unknown(), "{error}");
    }
    assert_eq!(t.value(&key).await.unwrap(), "old");
}

async fn a_ttl_over_the_limit_is_refused(t: Bench) {
    let key = t.key("a");
    t.set(&key, "old").await;
    let max = t.store.profile().ttl_max;
    let over = max.checked_add(Duration::from_secs(86_400)).expect("a longest life that can be told");
    for op in [Op::put(key.clone(), PutMode::Set, "new", Ttl::After(over)), Op::touch(key.clone(), Ttl::After(over))] {
        let error = t.run(op).await.unwrap_err();
        assert!(error.kind() == ErrorKind::BadInput && !error.is_unknown(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&over.as_secs().to_string()), "{text}");
        let limit =
            text.split_once("the limit is ").and_then(|(_, rest)| rest.split_once([' ', 's'])).expect("a limit");
        let limit: u64 = limit.0.parse().expect("a limit in seconds");
        // Where the server's times end one day, the limit falls by a second each second.
        assert!(max.as_secs().abs_diff(limit) <= 60, "{max:?}: {text}");
    }
    assert_eq!(t.value(&key).await.unwrap(), "old");
}

async fn a_life_where_there_are_none_is_refused(t: Bench) {
    let key = t.key("a");
    t.set(&key, "old").await;
    let error = t.run(Op::put(key.clone(), PutMode::Set, "new", Ttl::After(Duration::from_secs(9)))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(t.value(&key).await.unwrap(), "old");
}
