//! What the store keeps over a restart, and what it refuses.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{
    Arith, Cas, Clock, Ctx, ErrorKind, Initial, Item, Key, ManualClock, Op, PutMode, Remaining, Reply, Result, Store,
    StoreExt, Ttl, Verb, Want,
};
use larder_store_durable::{Altered, Direct, DirectItem, DirectNext, DurableStore, NextCas, NextTtl, Options, Sync};

fn key(name: &str) -> Key {
    Key::new(name.to_owned()).unwrap()
}

async fn run(store: &DurableStore, op: Op) -> Result<Reply> {
    store.run_one(Ctx::default(), op).await
}

async fn item(store: &DurableStore, name: &str) -> Option<Item> {
    run(store, Op::get(key(name), Want::all())).await.unwrap().into_item()
}

async fn set(store: &DurableStore, name: &str, value: impl Into<Bytes>) -> Result<Reply> {
    run(store, Op::put(key(name), PutMode::Set, value, Ttl::Never)).await
}

async fn value(store: &DurableStore, name: &str) -> Option<Bytes> {
    item(store, name).await.map(|item| item.value)
}

fn put(name: &str, value: &str, flags: u32, ttl: Ttl) -> Op {
    Op::new(key(name), Verb::Put { mode: PutMode::Set, value: value.to_owned().into(), flags, ttl })
}

#[tokio::test]
async fn items_flags_lives_and_tokens_survive_a_restart_at_every_setting() {
    for sync in [Sync::Always, Sync::Every(Duration::from_millis(20)), Sync::Never] {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
        let open = || Options::new(folder.path()).sync(sync).clock(clock.clone()).open().unwrap();
        let store = open();
        run(&store, put("kept", "v", 7, Ttl::After(Duration::from_millis(1_500)))).await.unwrap();
        run(&store, put("plain", "", 0, Ttl::Never)).await.unwrap();
        run(&store, put("gone", "v", 0, Ttl::Never)).await.unwrap();
        run(&store, Op::delete(key("gone"))).await.unwrap();
        let (kept, plain) = (item(&store, "kept").await.unwrap(), item(&store, "plain").await.unwrap());
        assert_eq!(kept.ttl, Remaining::For(Duration::from_millis(1_500)));
        drop(store);

        clock.advance(Duration::from_millis(500));
        let store = open();
        let again = item(&store, "kept").await.unwrap();
        assert_eq!(again, Item { ttl: Remaining::For(Duration::from_millis(1_000)), ..kept.clone() }, "{sync}");
        assert_eq!(item(&store, "plain").await, Some(plain));
        assert_eq!(item(&store, "gone").await, None);
        // A token that was read before the restart is as good as ever.
        let cas = Op::put(key("kept"), PutMode::Cas(kept.cas.unwrap()), "w", Ttl::Never);
        assert_eq!(run(&store, cas.clone()).await.unwrap(), Reply::Stored);
        assert_eq!(run(&store, cas).await.unwrap(), Reply::Exists);
    }
}

#[tokio::test]
async fn tokens_never_repeat_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for sync in [Sync::Always, Sync::Never, Sync::Every(Duration::from_secs(1)), Sync::Never] {
        let store = Options::new(folder.path()).sync(sync).open().unwrap();
        for _ in 0..3 {
            set(&store, "k", "v").await.unwrap();
            let Cas { token, .. } = item(&store, "k").await.unwrap().cas.unwrap();
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        run(&store, Op::delete(key("k"))).await.unwrap();
    }
}

async fn token(store: &DurableStore, name: &str) -> u64 {
    item(store, name).await.unwrap().cas.unwrap().token
}

/// Three writes get tokens that count on.
async fn tokens_count_on(store: &DurableStore, last: &mut u64) {
    for _ in 0..3 {
        set(store, "k", "v").await.unwrap();
        let next = token(store, "k").await;
        assert!(next > *last && next < 1 << 40, "{next} after {last}");
        *last = next;
    }
}

#[tokio::test]
async fn a_token_that_a_caller_chose_is_not_counted_on_from() {
    const CHOSEN: [u64; 4] = [u64::MAX, u64::MAX - (1 << 19), 1 << 63, 1 << 45];
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for life in 0..3 {
        let store = Options::new(folder.path()).open().unwrap();
        for chosen in CHOSEN {
            let name = format!("chosen{chosen}");
            if life == 0 {
                let cas = NextCas::Exactly(chosen);
                let put = Altered::Put { value: "v".into(), flags: 0, marks: 0, ttl: NextTtl::Keep, cas };
                store.alter(key(&name), |_| (put, ())).await.unwrap();
                tokens_count_on(&store, &mut last).await;
            }
            // It is kept by what keeps an item's token, and also where others are written with it.
            let touch = Op::touch(key(&name), Ttl::After(Duration::from_secs(1_000)));
            let replies = store.run(Ctx::default(), [touch, put("k", "v", 0, Ttl::Never)].into_iter().collect()).await;
            assert!(replies.iter().all(Result::is_ok));
            assert_eq!(token(&store, &name).await, chosen);
            tokens_count_on(&store, &mut last).await;
        }
    }
}

#[tokio::test]
async fn a_token_that_a_server_s_client_chose_is_not_counted_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for chosen in [u64::MAX, 1 << 63] {
        let direct = Direct::new(Options::new(folder.path()).open().unwrap());
        let put = |cas| DirectNext::Put(DirectItem { value: "v".into(), flags: 0, marks: 0, cas, expiry_ms: None });
        direct.overwrite(b"chosen", |_| put(chosen)).unwrap();
        for _ in 0..3 {
            direct.update(b"k", |_, cas| put(cas)).unwrap();
            let next = direct.get(b"k").unwrap().0.unwrap().cas;
            assert!(next > last && next < 1 << 40, "{next} after {last}");
            last = next;
        }
        drop(direct);
        let store = Options::new(folder.path()).open().unwrap();
        run(&store, Op::touch(key("chosen"), Ttl::Never)).await.unwrap();
        assert_eq!(token(&store, "chosen").await, chosen);
        tokens_count_on(&store, &mut last).await;
    }
}

#[tokio::test]
async fn ops_of_a_batch_see_those_before_them_and_readers_see_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).open().unwrap();
    let number = Verb::Arith { arith: Arith::Incr(5), initial: Some(Initial { value: 1, ttl: Ttl::Never }) };
    let batch = [
        Op::new(key("n"), number.clone()),
        Op::new(key("n"), number),
        Op::get(key("n"), Want::VALUE),
        Op::put(key("n"), PutMode::Append, "0", Ttl::Never),
        Op::delete(key("m")),
    ];
    let replies = store.run(Ctx::default(), batch.into_iter().collect()).await;
    let replies: Vec<Reply> = replies.into_iter().map(|reply| reply.unwrap()).collect();
    let read = Reply::Item(Item { value: "6".into(), ..Item::default() });
    assert_eq!(replies, [Reply::Number(1), Reply::Number(6), read, Reply::Stored, Reply::Miss]);
    assert_eq!(value(&store, "n").await, Some("60".into()));
}

/// Not only out of sight: the tables that held it are merged, and go.
#[tokio::test]
async fn what_expired_gives_its_room_on_the_disk_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
    let store = Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for batch in 0..16 {
        let brief = |number| {
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(64 << 10).collect();
            let life = Ttl::After(Duration::from_secs(10));
            Op::put(key(&format!("brief{batch}.{number}")), PutMode::Set, bytes, life)
        };
        assert!(store.run(Ctx::default(), (0..16).map(brief).collect()).await.iter().all(Result::is_ok));
    }
    set(&store, "kept", "v").await.unwrap();
    store.settle().unwrap();
    let tables = || {
        let files = std::fs::read_dir(folder.path().join("engine/keyspaces/1/tables")).unwrap();
        files.map(|file| file.unwrap().metadata().map_or(0, |found| found.len())).sum::<u64>()
    };
    let before = tables();
    assert!(before >= 16 << 20, "{before}");
    clock.advance(Duration::from_secs(11));
    // The store's timer may have come first.
    store.reclaim_expired().await.unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while tables() > before / 8 {
        assert!(Instant::now() < until, "{} bytes are left of {before}", tables());
        // As more is written, which has the tables merged.
        for _ in 0..16 {
            set(&store, "kept", "v").await.unwrap();
        }
        store.settle().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(value(&store, "kept").await.unwrap(), "v");
}

#[tokio::test]
async fn what_expired_is_a_miss_and_is_reclaimed_and_a_life_that_was_replaced_counts() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
    let store = Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let second = |count| Ttl::After(Duration::from_secs(count));
    for number in 0..3_000 {
        run(&store, put(&format!("brief{number}"), "v", 0, second(1))).await.unwrap();
        if number == 9 {
            break; // the rest in one batch
        }
    }
    let rest = (10..3_000).map(|number| put(&format!("brief{number}"), "v", 0, second(1))).collect();
    assert!(store.run(Ctx::default(), rest).await.iter().all(Result::is_ok));
    run(&store, put("touched", "v", 0, second(1))).await.unwrap();
    run(&store, Op::touch(key("touched"), second(5))).await.unwrap();
    run(&store, put("freed", "v", 0, second(1))).await.unwrap();
    run(&store, Op::touch(key("freed"), Ttl::Never)).await.unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(item(&store, "brief0").await, None);
    assert_eq!(run(&store, Op::delete(key("brief0"))).await.unwrap(), Reply::Miss);
    let keys = |store: &DurableStore| {
        let items = store.scan(b"", 10, Want::empty()).unwrap();
        items.iter().map(|(key, _)| String::from_utf8(key.as_bytes().to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&store), ["freed", "touched"], "what is over is not told");
    // The store's timer may have come first, and removed some.
    let stored = || store.check(&mut |_| ()).unwrap().items;
    assert!(store.reclaim_expired().await.unwrap() <= 3_000);
    assert_eq!(stored(), 2);
    assert_eq!(store.reclaim_expired().await.unwrap(), 0);
    clock.advance(Duration::from_secs(4));
    assert!(store.reclaim_expired().await.unwrap() <= 1);
    assert_eq!(stored(), 1);
    assert_eq!(keys(&store), ["freed"]);
}

#[tokio::test]
async fn what_is_over_is_removed_though_nobody_asks_for_it() {
    const LIFE: Duration = Duration::from_millis(200);
    // One is written as itself, a hundred at once as a round.
    for count in [1, 100] {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).open().unwrap();
        set(&store, "stays", "v").await.unwrap();
        let begun = Instant::now();
        let brief = (0..count).map(|number| put(&format!("brief{number}"), "v", 0, Ttl::After(LIFE))).collect();
        assert!(store.run(Ctx::default(), brief).await.iter().all(Result::is_ok));
        // A check counts what is there, also if it is over.
        let stored = || store.check(&mut |_| ()).unwrap().items;
        while stored() > 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} of {count} are there", stored() - 1);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(begun.elapsed() >= LIFE, "not before they are over");
        assert_eq!(value(&store, "stays").await, Some("v".into()));
    }
}

/// More than are taken up at once.
#[tokio::test]
async fn as_many_as_are_over_are_removed_within_seconds_while_others_write() {
    const COUNT: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).open().unwrap();
    for batch in 0..20 {
        let names = (0..COUNT / 20).map(|number| format!("brief{batch}.{number}"));
        let brief = names.map(|name| put(&name, "v", 0, Ttl::After(Duration::from_millis(200)))).collect();
        assert!(store.run(Ctx::default(), brief).await.iter().all(Result::is_ok));
    }
    let begun = Instant::now();
    while store.check(&mut |_| ()).unwrap().items > 1 {
        assert!(begun.elapsed() < Duration::from_secs(8), "{}", store.check(&mut |_| ()).unwrap().items);
        set(&store, "stays", "v").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A turn is over long before the chores of a store begin.
#[tokio::test]
async fn what_is_over_is_removed_though_the_folder_is_only_used_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let options = || Options::new(folder.path()).clock(clock.clone());
    let shared = options().wait(Duration::MAX).open_shared().unwrap();
    let brief = |number| put(&format!("brief{number}"), "v", 0, Ttl::After(Duration::from_secs(1)));
    assert!(shared.run(Ctx::default(), (0..10).map(brief).collect()).await.iter().all(Result::is_ok));
    clock.advance(Duration::from_secs(2));
    for turn in 0..5 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        shared.run_one(Ctx::default(), put("lives", &turn.to_string(), 0, Ttl::Never)).await.unwrap();
    }
    drop(shared);
    let store = options().open().unwrap();
    assert_eq!(store.check(&mut |_| ()).unwrap().items, 1);
}

#[tokio::test]
async fn what_was_removed_at_once_is_swept_though_the_folder_is_only_used_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Options::new(folder.path()).open().unwrap();
    let store = open();
    let puts = (0..3_000).map(|number| put(&format!("k{number}"), "v", 0, Ttl::Never)).collect();
    assert!(store.run(Ctx::default(), puts).await.iter().all(Result::is_ok));
    let direct = larder_store_durable::Direct::new(store);
    let ticket = direct.clear().unwrap();
    std::future::poll_fn(|cx| direct.poll_settled(ticket, cx).unwrap()).await;
    drop(direct);
    (0..5).for_each(|_| drop(open()));
    assert_eq!(open().check(&mut |_| ()).unwrap().items, 0);
}

#[tokio::test]
async fn a_clock_set_back_a_year_brings_nothing_back_and_ends_no_life() {
    let folder = tempfile::tempdir().unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let clock = Arc::new(ManualClock::at(2 * year));
    let open = || Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let store = open();
    run(&store, put("over", "v", 0, Ttl::After(Duration::from_secs(1)))).await.unwrap();
    run(&store, put("lives", "v", 0, Ttl::After(Duration::from_secs(60)))).await.unwrap();
    clock.advance(Duration::from_secs(2));
    clock.set_wall(year);
    assert_eq!(item(&store, "over").await, None);
    run(&store, put("new", "v", 0, Ttl::After(Duration::from_secs(10)))).await.unwrap();
    drop(store);

    let store = open();
    assert_eq!(clock.wall(), year);
    assert_eq!(item(&store, "over").await, None, "a clock set back brings nothing back");
    assert_eq!(item(&store, "lives").await.unwrap().ttl, Remaining::For(Duration::from_secs(58)));
    clock.advance(Duration::from_secs(10));
    assert_eq!(item(&store, "new").await, None, "nor makes it anything live longer");
    assert!(item(&store, "lives").await.is_some());
}

/// The ends of such lives are noted a 64th behind them: nothing of the item is written when it is over.
#[tokio::test]
async fn a_clock_set_back_brings_nothing_back_though_nothing_was_written_since() {
    let folder = tempfile::tempdir().unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let clock = Arc::new(ManualClock::at(2 * year));
    let open = || Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let life = Duration::from_secs(6_500);
    let store = open();
    run(&store, put("over", "v", 0, Ttl::After(life))).await.unwrap();
    clock.advance(life + Duration::from_secs(1));
    drop(store);
    let store = open();
    assert_eq!(item(&store, "over").await, None);
    assert_eq!(store.check(&mut |_| ()).unwrap().items, 1, "it is not removed yet");
    drop(store);
    clock.set_wall(year);
    assert_eq!(item(&open(), "over").await, None);
    assert_eq!(item(&open(), "over").await, None);
    let store = open();
    clock.advance(life);
    drop(store);
    // A store without lives is left as it is.
    let store = open();
    let sequence = store.stats().unwrap().sequence;
    assert_eq!(store.check(&mut |_| ()).unwrap().items, 0);
    drop(store);
    clock.advance(life);
    assert_eq!(open().stats().unwrap().sequence, sequence);
}

/// One small batch takes less than what is to stay free.
#[tokio::test]
async fn a_clock_set_back_brings_nothing_back_though_the_disk_has_no_room_for_writes() {
    let folder = tempfile::tempdir().unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let clock = Arc::new(ManualClock::at(2 * year));
    let options = || Options::new(folder.path()).clock(clock.clone());
    let life = Duration::from_secs(6_500);
    run(&options().open().unwrap(), put("over", "v", 0, Ttl::After(life))).await.unwrap();
    clock.advance(life + Duration::from_secs(1));
    let store = options().reserve_bytes(u64::MAX).open().unwrap();
    assert_eq!(set(&store, "k", "v").await.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(item(&store, "over").await, None);
    drop(store);
    clock.set_wall(year);
    let store = options().open().unwrap();
    assert_eq!(item(&store, "over").await, None);
    assert_eq!(store.check(&mut |_| ()).unwrap().items, 1, "nothing was removed meanwhile");
}

/// Commands that look at something open the folder, read, and close it again.
#[tokio::test]
async fn a_turn_that_only_reads_writes_nothing_unless_it_told_what_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let open = || Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let store = open();
    let life = Duration::from_secs(6_500);
    run(&store, put("brief", "v", 0, Ttl::After(life))).await.unwrap();
    run(&store, put("long", "v", 0, Ttl::After(10 * life))).await.unwrap();
    let sequence = store.stats().unwrap().sequence;
    drop(store);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        let store = open();
        assert!(item(&store, "brief").await.is_some());
        assert_eq!(store.stats().unwrap().sequence, sequence);
    }
    clock.advance(life);
    let store = open();
    assert_eq!(item(&store, "brief").await, None);
    drop(store);
    let store = open();
    assert_eq!(store.stats().unwrap().sequence, sequence + 1, "the time");
    assert!(item(&store, "long").await.is_some());
}

/// As long as somebody is told by it, and nothing else is written: what a kill leaves is no more than a minute behind.
#[tokio::test]
async fn the_time_is_noted_once_a_minute_while_somebody_is_told_that_something_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store = Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let life = Duration::from_secs(6_400);
    run(&store, put("k", "v", 0, Ttl::After(life))).await.unwrap();
    let batches = || store.stats().unwrap().sequence;
    let before = batches();
    clock.advance(life);
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(batches(), before, "nobody was told");
    let begun = Instant::now();
    assert_eq!(item(&store, "k").await, None);
    while batches() == before {
        assert!(begun.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(item(&store, "k").await, None);
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(batches(), before + 1, "it was noted");
}

#[tokio::test]
async fn a_value_of_64_mb_is_kept_and_one_of_65_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).open().unwrap();
    let largest = vec![7u8; Options::VALUE_BYTES_MAX];
    set(&store, "k", largest.clone()).await.unwrap();
    let error = set(&store, "k", vec![8u8; 65 << 20]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("68157440 bytes; the limit beside this key is 67109113"), "{error}");
    let append = Op::put(key("k"), PutMode::Append, vec![9u8; 300], Ttl::Never);
    assert_eq!(run(&store, append).await.unwrap(), Reply::NotStored);
    drop(store);
    let store = Options::new(folder.path()).open().unwrap();
    assert!(value(&store, "k").await.unwrap() == largest);
}

#[tokio::test]
async fn many_writers_share_batches_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Options::new(folder.path()).open().unwrap());
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    let initial = Some(Initial { value: 1, ttl: Ttl::Never });
                    let incr = Op::new(key("n"), Verb::Arith { arith: Arith::Incr(1), initial });
                    run(&store, incr).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(value(&store, "n").await, Some("1600".into()));
    let batches = store.stats().unwrap().sequence;
    assert!(batches < 1_600, "{batches} batches of 1,600 writes: they share some");
}

#[tokio::test]
async fn an_item_is_altered_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Options::new(folder.path()).value_bytes_max(100).open().unwrap();
    let store = open();
    run(&store, put("k", "v", 3, Ttl::After(Duration::from_secs(60)))).await.unwrap();
    let before = item(&store, "k").await.unwrap();
    let mark = |cas, ttl, size: usize| {
        move |entry: Option<&larder_store_durable::Entry>| {
            let (flags, marks) = entry.map_or((0, 0), |entry| (entry.flags, entry.marks));
            let put = Altered::Put { value: vec![b'x'; size].into(), flags, marks: marks | 4, ttl, cas };
            (put, marks)
        }
    };
    assert_eq!(store.alter(key("k"), mark(NextCas::Keep, NextTtl::Keep, 1)).await.unwrap(), 0);
    let after = item(&store, "k").await.unwrap();
    assert_eq!((after.cas, after.flags), (before.cas, 3));
    assert!(matches!(after.ttl, Remaining::For(left) if left > Duration::from_secs(50)));
    drop(store);
    let store = open();
    assert_eq!(store.alter(key("k"), mark(NextCas::Exactly(9), NextTtl::New(Ttl::Never), 2)).await.unwrap(), 4);
    let after = item(&store, "k").await.unwrap();
    assert_eq!((after.cas.unwrap().token, after.ttl), (9, Remaining::Never));
    let error = store.alter(key("k"), mark(NextCas::New, NextTtl::Keep, 400)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert_eq!(item(&store, "k").await.unwrap(), after);
    // A plain write takes the marks away.
    set(&store, "k", "v").await.unwrap();
    assert_eq!(store.alter(key("k"), |entry| (Altered::Remove, entry.unwrap().marks)).await.unwrap(), 0);
    assert!(store.alter(key("k"), |entry| (Altered::Remove, entry.is_none())).await.unwrap());
}

#[tokio::test]
async fn without_room_on_the_disk_writes_are_refused_and_reads_and_deletes_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).open().unwrap();
    set(&store, "k", "v").await.unwrap();
    drop(store);
    let store = Options::new(folder.path()).reserve_bytes(u64::MAX).open().unwrap();
    let error = set(&store, "k", "w").await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Full, false));
    assert_eq!(value(&store, "k").await, Some("v".into()));
    assert_eq!(run(&store, Op::delete(key("k"))).await.unwrap(), Reply::Deleted);
}

#[tokio::test]
async fn a_store_that_syncs_now_and_then_does_so_though_nobody_writes_any_more() {
    // The second setting shows that what was written is on disk by the timer alone.
    for (sync, is_synced) in [(Sync::Every(Duration::from_millis(100)), true), (Sync::Never, false)] {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).sync(sync).open().unwrap();
        for value in ["1", "2", "3"] {
            set(&store, "k", value).await.unwrap();
        }
        let written = store.stats().unwrap().sequence;
        let until = Instant::now() + Duration::from_secs(if is_synced { 20 } else { 1 });
        let is_on_disk = || store.stats().unwrap().synced == written;
        while !is_on_disk() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(is_on_disk(), is_synced, "{sync}: {:?}", store.stats());
        assert_eq!(store.stats().unwrap().sequence, written, "nobody wrote meanwhile");
    }
}

/// Has the next note to a witness stand still until this is dropped: it is written to another name first, and there is a pipe that nobody reads.
struct Hung(std::path::PathBuf);

impl Hung {
    fn begin(witness: &std::path::Path) -> Hung {
        let pipe = witness.with_extension("new");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        Hung(pipe)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Who opens it is let go on, and fails then; who comes later finds none.
        let mut options = std::fs::OpenOptions::new();
        let _reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&self.0);
        _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_note_that_hangs_holds_up_no_sync() {
    let folder = tempfile::tempdir().unwrap();
    let (at, witness) = (folder.path().join("store"), folder.path().join("witness"));
    let every = Sync::Every(Duration::from_millis(50));
    let store = Options::new(&at).sync(every).witness(&witness).open().unwrap();
    let noted = || std::fs::read(at.join("state")).unwrap();
    let (before, noted_before) = (std::fs::read(&witness).unwrap(), noted());
    let hung = Hung::begin(&witness);
    let (begun, mut syncs) = (Instant::now(), 0);
    // The first note is due within a second or so of the first sync.
    while begun.elapsed() < Duration::from_secs(4) {
        set(&store, "k", "v").await.unwrap();
        let (written, until) = (store.stats().unwrap().sequence, Instant::now() + Duration::from_secs(20));
        while store.stats().unwrap().synced < written {
            assert!(Instant::now() < until, "none since {syncs} syncs");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        syncs += 1;
    }
    assert_eq!(std::fs::read(&witness).unwrap(), before, "it is not told of any of them");
    let noted_then = noted();
    assert!(noted_then != noted_before, "the folder is");
    set(&store, "k", "v").await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while noted() == noted_then {
        assert!(Instant::now() < until, "and again, while the witness hangs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(hung);
    drop(store);
    assert_ne!(std::fs::read(&witness).unwrap(), before);
}

/// How long the disk and the system take at the worst, while another thread asks them: a file beside the store is synced again and again.
struct Probe {
    stops: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Probe {
    fn start(path: std::path::PathBuf) -> Probe {
        const PAUSE: Duration = Duration::from_millis(20);
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let work = move || {
            let (mut file, mut worst) = (std::fs::File::create(path).unwrap(), Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(PAUSE);
                file.write_all(&[7; 4096]).unwrap();
                file.sync_data().unwrap();
                worst = worst.max(begun.elapsed() - PAUSE);
            }
            worst
        };
        Probe { stops, thread: std::thread::spawn(work) }
    }

    fn worst(self) -> Duration {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// How long what was acknowledged was not on disk at the most, and the most that the timer may leave it so; both as found in some seconds.
async fn window(interval: Duration, slack: Duration) -> (Duration, Duration) {
    const TIME: Duration = Duration::from_secs(3);
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path().join("store")).sync(Sync::Every(interval)).open().unwrap();
    let probe = Probe::start(folder.path().join("probe"));
    // What was acknowledged and is not known to be on disk: since when, and the number of its batch.
    let mut waiting = VecDeque::new();
    let (mut oldest, mut syncs, mut synced) = (Duration::ZERO, 0, 0);
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        set(&store, "k", vec![7; fastrand::usize(..2_000)]).await.unwrap();
        waiting.push_back((Instant::now(), store.stats().unwrap().sequence));
        let now = Instant::now();
        let found = store.stats().unwrap().synced;
        syncs += u32::from(found != synced);
        synced = found;
        while waiting.front().is_some_and(|(_, number)| *number <= synced) {
            waiting.pop_front();
        }
        oldest = oldest.max(waiting.front().map_or(Duration::ZERO, |(since, _)| now - *since));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(syncs > 3 && oldest > interval / 4, "{syncs} syncs, and {oldest:?}: they are not those of the timer");
    // Written while one sync was under way, it waits for that, for the interval, and for the next.
    (oldest, interval + probe.worst() * 2 + slack)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_on_disk_after_the_interval_and_a_sync() {
    const INTERVAL: Duration = Duration::from_millis(400);
    // Less than half an interval: one that was twice as long is found.
    const SLACK: Duration = Duration::from_millis(150);
    let mut found = Vec::new();
    // What others do on the machine may come to the store's sync, and not to the probe's: once, not each time.
    while found.len() < 4 {
        let (oldest, most) = window(INTERVAL, SLACK).await;
        if oldest <= most {
            return;
        }
        found.push((oldest, most));
    }
    panic!("so long after it was acknowledged a write was not on disk, and that is the most: {found:?}");
}

/// What waits for another process ends with the store, and nobody waits for those who have given up.
#[tokio::test]
async fn a_shared_store_that_waits_for_another_process_is_dropped_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Options::new(folder.path());
    let shared = open().wait(Duration::from_secs(3_600)).open_shared().unwrap();
    let other = loop {
        // It is closed a moment after the last op.
        match open().open() {
            Ok(store) => break store,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    for _ in 0..3 {
        let ctx = Ctx::within(Duration::from_millis(20));
        let error = shared.run_one(ctx, put("k", "v", 0, Ttl::Never)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
    let (dropped, is_dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(shared);
        dropped.send(()).unwrap();
    });
    is_dropped.recv_timeout(Duration::from_secs(30)).expect("it is dropped");
    drop(other);
}

/// Those who ask while another is waited for have waited, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_ask_at_the_same_time_wait_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let wait = Duration::from_millis(500);
    let shared = Arc::new(Options::new(folder.path()).wait(wait).open_shared().unwrap());
    let other = Options::new(folder.path()).wait(Duration::from_secs(30)).open().unwrap();
    let begun = std::time::Instant::now();
    let tasks = [(); 8].map(|()| {
        let shared = shared.clone();
        tokio::spawn(async move { shared.run_one(Ctx::default(), put("k", "v", 0, Ttl::Never)).await.unwrap_err() })
    });
    for task in tasks {
        let error = task.await.unwrap();
        assert!(error.to_string().contains("and was for 500ms"), "{error}");
    }
    // One after the other they took four seconds.
    assert!(begun.elapsed() < 5 * wait, "{:?}", begun.elapsed());
    drop(other);
}
