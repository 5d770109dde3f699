//! The set as text under a key of its own, shared with other programs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{
    Batch, Ctx, Durability, Effect, ErrorKind, Key, Op, Profile, PutMode, Remaining, Reply, Run, Store, StoreExt,
    StoreRef, Ttl, Verb, Want,
};
use larder_store_memory::MemoryStore;
use larder_structures::Set;
use larder_testkit::faulty::{Fault, Faulty};

use crate::support::hooked::Hooked;
use crate::support::probe::{Probe, set_value, sorted, value_of};
use crate::support::sieve::Sieve;

fn key() -> Key {
    Key::new("index").unwrap()
}

#[tokio::test]
async fn the_key_has_golden_bytes_and_round_trips_are_as_documented() {
    let probe = Probe::new();
    let store = probe.shared();
    let set = Set::options().dirtiness(1 << 40).open_text(&store, "index").unwrap();
    assert_eq!(probe.round_trips(), 0);
    set.add(["a", "b", "c"]).await.unwrap();
    assert_eq!(probe.round_trips(), 2, "made");
    assert_eq!(value_of(&store, &key()).await, "+a +b +c ");
    probe.round_trips();
    set.remove(["b", "x"]).await.unwrap();
    assert_eq!(probe.round_trips(), 1, "changed");
    assert_eq!(value_of(&store, &key()).await, "+a +b +c -b -x ");
    probe.round_trips();
    assert_eq!(sorted(&set).await, ["a", "c"]);
    assert!(set.has("a").await.unwrap() && !set.has("b").await.unwrap());
    assert_eq!(probe.round_trips(), 3, "read");
    let stat = set.stat().await.unwrap();
    assert_eq!((stat.members, stat.removals, stat.bytes, stat.live_bytes, stat.shards), (2, 2, 15, 6, 1));
    probe.round_trips();
    assert_eq!(set.compact().await.unwrap().bytes, 6);
    assert_eq!(probe.round_trips(), 2, "compacted");
    set.compact().await.unwrap();
    assert_eq!(probe.round_trips(), 1, "nothing to compact");
}

#[tokio::test]
async fn what_other_programs_append_is_read() {
    let store = Probe::new().shared();
    set_value(&store, &key(), Bytes::from_static(b"+a +b +c -b -x")).await;
    let set = Set::open_text(&store, "index").unwrap();
    assert_eq!(sorted(&set).await, ["a", "c"]);
    set_value(&store, &key(), Bytes::from_static(b"hello")).await;
    assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    assert_eq!(value_of(&store, &key()).await, "hello");
}

#[tokio::test]
async fn missing_is_absent_and_after_it_was_seen_lost() {
    let store = Probe::new().shared();
    let set = Set::open_text(&store, "index").unwrap();
    let error = set.members().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Absent);
    assert!(error.to_string().contains("never created, or lost"), "{error}");
    assert_eq!(set.remove(["a"]).await.unwrap_err().kind(), ErrorKind::Absent);
    set.add(["a"]).await.unwrap();
    store.delete(key()).await.unwrap();
    assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(set.add(["b"]).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(store.get(key()).await.unwrap().is_none(), "a loss is not papered over");
    Set::open_text(&store, "index").unwrap().add(["b"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["b"]);
}

#[tokio::test]
async fn members_that_the_text_cannot_hold_are_refused() {
    let store = Probe::small(100).shared();
    let set = Set::open_text(&store, "index").unwrap();
    for member in ["", "a b", "a\n"] {
        assert_eq!(set.add([member]).await.unwrap_err().kind(), ErrorKind::BadInput);
    }
    let largest = "x".repeat(set.member_bytes_max());
    set.add([&largest]).await.unwrap();
    assert!(set.has(&largest).await.unwrap());
    let error = set.add([format!("{largest}x")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("the limit is"), "{error}");
    assert_eq!(Set::options().shards(2).open_text(&store, "i").unwrap_err().kind(), ErrorKind::BadInput);
    assert_eq!(Set::open_text(&store, "").unwrap_err().kind(), ErrorKind::BadInput);
}

/// Plays another program: puts or deletes the key around ops of the set.
#[derive(Debug)]
struct Racer {
    inner: StoreRef,
    /// How many more times: drops the key before an append, makes it before an add.
    times: std::sync::atomic::AtomicU32,
}

impl Store for Racer {
    fn profile(&self) -> Arc<larder_core::Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            use std::sync::atomic::Ordering::SeqCst;
            if self.times.load(SeqCst) > 0 {
                match batch[0].verb {
                    Verb::Put { mode: PutMode::Append, .. } => _ = self.inner.delete(key()).await,
                    Verb::Put { mode: PutMode::Add, .. } => {
                        self.times.fetch_sub(1, SeqCst);
                        self.inner.put(key(), PutMode::Set, "+other ", Ttl::Never).await.unwrap();
                    }
                    _ => {}
                }
            }
            self.inner.run(ctx, batch).await
        })
    }
}

#[tokio::test]
async fn an_append_that_finds_nothing_and_an_add_that_loses_the_race_are_tried_again_within_bounds() {
    let racing = |times| {
        let inner: StoreRef = Arc::new(MemoryStore::new());
        Arc::new(Racer { inner, times: std::sync::atomic::AtomicU32::new(times) }) as StoreRef
    };
    let store = racing(1);
    let set = Set::open_text(&store, "index").unwrap();
    set.add(["a"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["a", "other"]);

    // The call has seen the key, so that it is not made anew where it is gone once more.
    let store = racing(u32::MAX);
    let error = Set::open_text(&store, "index").unwrap().add(["a"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied));
}

#[tokio::test]
async fn a_full_text_that_goes_before_it_is_written_anew_is_lost_and_not_made_again() {
    let store = Probe::small(1_000).shared();
    let room_bytes = store.profile().value_bytes_max(key().as_bytes().len());
    store.put(key(), PutMode::Set, "+a ".repeat(room_bytes / 3), Ttl::Never).await.unwrap();
    let hooked = Hooked::new(&store);
    let set = Set::open_text(&hooked.shared(), "index").unwrap();
    // An append, an add, a look, and the key written anew.
    hooked.at(4, |store, batch| async move {
        assert!(matches!(batch[0].verb, Verb::Put { mode: PutMode::Cas(_), .. }), "{batch:?}");
        assert!(store.delete(key()).await.unwrap());
        store.run(Ctx::default(), batch).await
    });
    let error = set.add(["a-member-of-20-bytes"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
    assert!(store.get(key()).await.unwrap().is_none());
}

#[tokio::test]
async fn an_unknown_outcome_is_reported_and_never_tried_again() {
    for (fault, landed) in [(Fault::LostReply, true), (Fault::LostRequest, false)] {
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        let store = faulty.shared();
        let set = Set::open_text(&store, "index").unwrap();
        set.add(["a"]).await.unwrap();
        faulty.fail_nth(1, fault);
        let before = faulty.ops();
        let error = set.add(["b"]).await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
        assert_eq!(faulty.ops() - before, 1);
        let expected = if landed { "+a +b " } else { "+a " };
        assert_eq!(value_of(&store, &key()).await, expected);
    }
}

#[tokio::test]
async fn a_full_text_is_compacted_on_the_way_and_says_when_that_does_not_help() {
    let probe = Probe::small(1_000);
    let store = probe.shared();
    let set = Set::open_text(&store, "index").unwrap();
    for _ in 0..500 {
        set.add(["member"]).await.unwrap();
    }
    assert_eq!(sorted(&set).await, ["member"]);
    let mut count = 0;
    let error = loop {
        match set.add([format!("{count:0100}")]).await {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(count >= 9 && set.members().await.unwrap().len() == count + 1, "{count}");
    set.remove([format!("{:0100}", 0)]).await.unwrap();
    set.add([format!("{count:0100}")]).await.unwrap();
}

#[tokio::test]
async fn a_compaction_keeps_flags_and_life_and_runs_behind_a_read() {
    let store = Probe::new().shared();
    let ttl = Ttl::After(Duration::from_secs(1_000));
    let put = Verb::Put { mode: PutMode::Set, value: Bytes::from_static(b"+a -b -c -d -e "), flags: 7, ttl };
    store.run_one(Ctx::default(), Op::new(key(), put)).await.unwrap();
    let set = Set::options().dirtiness(10).open_text(&store, "index").unwrap();
    assert_eq!(sorted(&set).await, ["a"]);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let get = Op::get(key(), Want::VALUE | Want::FLAGS | Want::TTL);
    let Reply::Item(item) = store.run_one(Ctx::default(), get).await.unwrap() else { panic!("it is gone") };
    assert_eq!((&item.value[..], item.flags), (&b"+a "[..], 7));
    assert!(matches!(item.ttl, larder_core::Remaining::For(left) if left > Duration::from_secs(900)), "{:?}", item.ttl);
}

#[tokio::test]
async fn without_cas_a_text_cannot_be_compacted_and_says_so() {
    let store = Probe::without_cas(1_000).shared();
    let set = Set::open_text(&store, "index").unwrap();
    let error = loop {
        if let Err(error) = set.add(["member"]).await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("cannot be compacted"), "{error}");
    assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn writes_alone_keep_a_text_compact() {
    let store = Probe::new().shared();
    let set = Set::options().dirtiness(100).open_text(&store, "index").unwrap();
    for _ in 0..2_000 {
        set.add(["member"]).await.unwrap();
    }
    let bytes = value_of(&store, &key()).await.len();
    assert!(bytes < 8_000, "{bytes}");
}

#[tokio::test]
async fn a_text_whose_life_is_about_to_end_does_not_live_for_ever_after_a_compaction() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let words = Op::put(key(), PutMode::Set, "+a -a ", Ttl::After(Duration::from_secs(60)));
    store.run_one(Ctx::default(), words).await.unwrap();
    let hooked = crate::support::hooked::Hooked::new(&store);
    hooked.at(1, |store, batch| async move {
        let mut replies = store.run(Ctx::default(), batch).await;
        if let Ok(Reply::Item(item)) = &mut replies[0] {
            item.ttl = Remaining::For(Duration::ZERO);
        }
        replies
    });
    Set::open_text(&hooked.shared(), "index").unwrap().compact().await.unwrap();
    let left = store.run_one(Ctx::default(), Op::get(key(), Want::TTL)).await.unwrap().into_item();
    assert!(left.is_none_or(|item| item.ttl != Remaining::Never));
}

/// A read leaves as many stale bytes as the options let it, and as many as are live; the next one is too many.
#[tokio::test]
async fn a_read_compacts_where_more_is_stale_than_may_be() {
    for (dirtiness, value, is_compacted) in [
        (6, "+a +b -b ", false),
        (5, "+a +b -b ", true),
        (0, "+a +b +a +b ", false),
        (0, "+a +b +a +b +a ", true),
        (0, "", false),
    ] {
        let probe = Probe::new();
        let store = probe.shared();
        set_value(&store, &key(), Bytes::from_static(value.as_bytes())).await;
        let set = Set::options().dirtiness(dirtiness).open_text(&store, "index").unwrap();
        probe.round_trips();
        set.members().await.unwrap();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(probe.round_trips(), 1 + u64::from(is_compacted), "{value:?} where {dirtiness} may be stale");
        assert_eq!(value_of(&store, &key()).await.len() < value.len(), is_compacted, "{value:?}");
    }
}

#[tokio::test]
async fn a_handle_looks_once_for_every_sixteen_times_the_dirt_that_it_writes() {
    let probe = Probe::new();
    let store = probe.shared();
    set_value(&store, &key(), Bytes::from_static(b"+a ")).await;
    let set = Set::options().dirtiness(4).open_text(&store, "index").unwrap();
    let add = async |member: &str| {
        probe.round_trips();
        set.add([member]).await.unwrap();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        // The append, a look, and what follows from it.
        probe.round_trips() > 1
    };
    // It begins anywhere.
    while !add("b").await {}
    let member = "m".repeat(64 - 2);
    assert!(!add("b").await && !add("b").await);
    let looks = [add(&member[..64 - 2 - 6]).await, add("b").await, add("b").await];
    assert_eq!(looks.iter().filter(|looks| **looks).count(), 1, "{looks:?}");
}

/// A change of the handle gets no answer: the compaction that has met with another write waits for it no longer than its own time.
#[tokio::test(start_paused = true)]
async fn a_compaction_waits_for_changes_of_its_handle_until_its_deadline() {
    let inner: StoreRef = Arc::new(MemoryStore::new());
    set_value(&inner, &key(), Bytes::from_static(b"+a +b -b ")).await;
    let hooked = Hooked::new(&inner);
    let set = Set::options().timeout(Duration::from_secs(2)).open_text(&hooked.shared(), "index").unwrap();
    hooked.at(1, |_, _| std::future::pending());
    let changing = tokio::spawn({
        let set = set.clone();
        async move { set.add(["c"]).await }
    });
    tokio::task::yield_now().await;
    // Its reading, and its writing, which another program is before.
    hooked.at(2, |store, batch| async move {
        store.put(key(), PutMode::Append, "+d ", Ttl::Never).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let compacted = tokio::time::timeout(Duration::from_secs(60), set.compact()).await.expect("an end");
    let error = compacted.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Timeout, false), "{error}");
    assert!(!changing.is_finished());
    changing.abort();
    // With nobody at it, it goes through.
    assert!(changing.await.unwrap_err().is_cancelled());
    assert_eq!(set.compact().await.unwrap().bytes, 6);
}

#[tokio::test]
async fn a_text_that_is_not_there_may_be_lost_unless_the_store_keeps_it_on_disk() {
    let memory = Probe::new().shared();
    for (durability, said) in [(Durability::Disk, "(never created)"), (Durability::Recent, "(never created, or lost)")]
    {
        let profile = Profile { durability, ..(*memory.profile()).clone() };
        let set = Set::open_text(&Sieve::of(&memory, profile, |_, _| None), "index").unwrap();
        let error = set.members().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Absent);
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn a_compaction_whose_reply_is_lost_has_succeeded_and_one_that_was_not_sent_has_not() {
    for is_lost in [true, false] {
        let hooked = Hooked::new(&Probe::new().shared());
        let set = Set::options().dirtiness(1 << 40).open_text(&hooked.shared(), "index").unwrap();
        for _ in 0..3 {
            set.add(["a"]).await.unwrap();
        }
        // A read, and the write.
        if is_lost {
            hooked.lose_replies(2)
        } else {
            hooked.refuse(2)
        }
        match set.compact().await {
            Ok(stat) => assert!(is_lost && stat.stale_bytes == 0, "{stat:?}"),
            Err(error) => assert!(!is_lost && error.kind() == ErrorKind::Unavailable, "{error}"),
        }
        assert_eq!(set.stat().await.unwrap().stale_bytes, if is_lost { 0 } else { 6 });
    }
}
