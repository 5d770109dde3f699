//! The ledger by itself: what is registered is listed, whatever breaks; what is gone is told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use larder_core::{Effect, Profile, PutMode, Run, Store, StoreExt, SystemClock, Ttl, Verb};
use larder_layers::Counting;
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::Answering;
use crate::manifest::{self, Kind};

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

fn tuning() -> Tuning {
    Tuning { clock: SystemClock::shared(), dirty_bytes: 256 }
}

fn piece(number: u64, part: u16, incarnation: u64) -> Piece {
    Piece { number, part, incarnation }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

async fn made(store: &StoreRef) -> (Name, Manifest) {
    let name = Name::new("n").unwrap();
    let new = Manifest::new(Kind::EventLog, 1, Ledger::SHARDS, Bytes::new());
    let data_of = |new: &Manifest| Ok(vec![Ledger::create_ops(&name, new)?]);
    let manifest = manifest::create(store, Ctx::default(), &name, new, data_of).await.unwrap();
    (name, manifest)
}

async fn ledger() -> (Faulty, StoreRef, Arc<Ledger>, Arc<Ledger>) {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let store = faulty.shared();
    let (name, manifest) = made(&store).await;
    let open = || Arc::new(Ledger::new(&store, &name, &manifest, tuning()).unwrap());
    (faulty.clone(), store.clone(), open(), open())
}

/// So many entries of 19 bytes fit 16 KiB: twice as many take two writes, each of which is as full as may be.
#[tokio::test]
async fn a_write_takes_entries_of_sixteen_kibibytes_and_more_take_more_writes() {
    const ENTRIES: u64 = 16_384 / 19;
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let (name, manifest) = made(&memory).await;
    let answering = Answering::over(&memory);
    let ledger = Ledger::new(&answering.shared(), &name, &manifest, tuning()).unwrap();
    let pieces: Vec<Piece> = (0..2 * ENTRIES).map(|number| piece(number, 0, number)).collect();
    ledger.register(soon(), &pieces).await.unwrap();
    let asked = answering.asked();
    let appended = asked.iter().flat_map(|(_, batch)| batch).filter_map(|op| match &op.verb {
        Verb::Put { mode: PutMode::Append, value, .. } => Some(value.len()),
        _ => None,
    });
    let appended: Vec<usize> = appended.collect();
    assert_eq!(appended.len(), 2, "{appended:?}");
    for bytes in appended {
        assert!((ENTRIES as usize * 19..=16_384 + engine::FRAME_BYTES_MAX).contains(&bytes), "{bytes}");
    }
    assert_eq!(ledger.read(Ctx::default()).await.unwrap().pieces(), pieces);
}

#[tokio::test]
async fn what_is_registered_is_listed_in_order_and_once() {
    let (_, _, one, two) = ledger().await;
    one.register(soon(), &[piece(7, 1, 5), piece(2, 0, 9)]).await.unwrap();
    two.register(soon(), &[piece(7, 0, 4), piece(7, 1, 5), piece(7, 1, 6)]).await.unwrap();
    let list = one.read(Ctx::default()).await.unwrap();
    assert_eq!(list, two.read(Ctx::default()).await.unwrap());
    assert_eq!(list.pieces(), [piece(2, 0, 9), piece(7, 0, 4), piece(7, 1, 5), piece(7, 1, 6)]);
    assert_eq!(list.between(3, 7), [piece(7, 0, 4), piece(7, 1, 5), piece(7, 1, 6)]);
    assert_eq!(list.between(7, 3), []);
    assert_eq!(list.incarnations(7, 1), [piece(7, 1, 5), piece(7, 1, 6)]);
    assert!(list.has(2, 0) && !list.has(2, 1) && !list.has(3, 0));
    assert!(list.has_exactly(&piece(7, 1, 6)) && !list.has_exactly(&piece(7, 1, 7)));
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let counting = Arc::new(Counting::new(Arc::new(MemoryStore::new())));
    let store: StoreRef = counting.clone();
    let (name, manifest) = made(&store).await;
    let ledger = Ledger::new(&store, &name, &manifest, tuning()).unwrap();
    let spent = |before: u64| counting.counts().round_trips - before;
    let before = counting.counts().round_trips;
    ledger.register(soon(), &[piece(1, 0, 1), piece(2, 0, 2)]).await.unwrap();
    assert_eq!(spent(before), 1, "register");
    ledger.read(Ctx::default()).await.unwrap();
    assert_eq!(spent(before), 2, "read");
    ledger.trim(soon(), &[piece(1, 0, 1)], |piece| manifest.data_key(&name, piece.number)).await.unwrap();
    assert_eq!(spent(before), 4, "trim");
    assert_eq!(ledger.read(Ctx::default()).await.unwrap().pieces(), [piece(2, 0, 2)]);
    let before = counting.counts().round_trips;
    ledger.exchange(soon(), &[piece(3, 0, 3), piece(4, 0, 4)], &[piece(2, 0, 2), piece(5, 0, 5)]).await.unwrap();
    assert_eq!(spent(before), 1, "exchange");
    assert_eq!(ledger.read(Ctx::default()).await.unwrap().pieces(), [piece(3, 0, 3), piece(4, 0, 4)]);
}

#[tokio::test]
async fn an_entry_goes_only_once_its_key_is_gone() {
    let (_, store, one, _) = ledger().await;
    let key_of = |piece: &Piece| Key::new(format!("piece-{}", piece.number));
    store.put(key_of(&piece(1, 0, 1)).unwrap(), PutMode::Set, "alive", Ttl::Never).await.unwrap();
    let all = [piece(1, 0, 1), piece(2, 0, 2), piece(3, 0, 3)];
    one.register(soon(), &all).await.unwrap();
    one.trim(soon(), &all[..2], key_of).await.unwrap();
    assert_eq!(one.read(Ctx::default()).await.unwrap().pieces(), [all[0], all[2]]);
}

#[tokio::test]
async fn a_break_at_any_op_loses_no_entry_that_was_acknowledged() {
    for fault in FAULTS {
        for nth in 1..=6 {
            let (faulty, _, one, two) = ledger().await;
            faulty.fail_nth(nth, fault);
            for number in 0..3 {
                one.register(soon(), &[piece(number, 0, 1)]).await.unwrap();
                two.register(soon(), &[piece(number, 0, 2)]).await.unwrap();
            }
            faulty.heal();
            faulty.deliver_late().await;
            assert_eq!(one.read(Ctx::default()).await.unwrap().pieces().len(), 6, "{fault:?} at op {nth}");
            assert!(faulty.injected() > 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_two_handles_lose_no_entry() {
    let (_, _, one, two) = ledger().await;
    let task = |task: u64| {
        let ledger = if task.is_multiple_of(2) { one.clone() } else { two.clone() };
        tokio::spawn(async move {
            for number in 0..50 {
                ledger.register(soon(), &[piece(number, 0, task)]).await.unwrap();
                ledger.read(Ctx::default()).await.unwrap();
            }
        })
    };
    let tasks: Vec<_> = (0..8).map(task).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let list = one.read(Ctx::default()).await.unwrap();
    let expected: BTreeSet<Piece> = (0..50).flat_map(|number| (0..8).map(move |task| piece(number, 0, task))).collect();
    assert_eq!(list.pieces(), expected.into_iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_ledger_that_is_gone_is_lost_and_never_empty() {
    let (_, store, one, two) = ledger().await;
    one.register(soon(), &[piece(1, 0, 1)]).await.unwrap();
    store.delete(one.read_op().key).await.unwrap();
    for ledger in [&one, &two] {
        assert_eq!(ledger.read(Ctx::default()).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(ledger.register(soon(), &[piece(2, 0, 1)]).await.unwrap_err().kind(), ErrorKind::Lost);
    }
    assert!(store.get(one.read_op().key).await.unwrap().is_none(), "a registration must not make it anew");
}

#[tokio::test]
async fn a_full_ledger_says_what_to_do() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(7_000).build().unwrap());
    let (name, manifest) = made(&store).await;
    let ledger = Ledger::new(&store, &name, &manifest, tuning()).unwrap();
    let mut listed = 0;
    let error = loop {
        match ledger.register(soon(), &[piece(listed, 0, 1)]).await {
            Ok(()) => listed += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Full, false), "{error}");
    assert!(error.to_string().contains("shorter time"), "{error}");
    assert!(listed > 300, "{listed}");
    assert_eq!(ledger.read(Ctx::default()).await.unwrap().pieces().len() as u64, listed);
}

#[tokio::test]
async fn a_drop_finds_the_pieces_and_a_lost_ledger_has_none() {
    let (_, store, one, _) = ledger().await;
    let name = Name::new("n").unwrap();
    let manifest = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
    one.register(soon(), &[piece(1, 2, 3)]).await.unwrap();
    assert_eq!(pieces(&store, Ctx::default(), &name, &manifest).await.unwrap(), [piece(1, 2, 3)]);
    store.delete(one.read_op().key).await.unwrap();
    assert_eq!(pieces(&store, Ctx::default(), &name, &manifest).await.unwrap(), []);
}

#[tokio::test]
async fn as_many_pieces_as_are_promised_find_room() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(100_000).build().unwrap());
    let (name, manifest) = made(&store).await;
    let ledger = Ledger::new(&store, &name, &manifest, tuning()).unwrap();
    let pieces: Vec<Piece> = (0..ledger.pieces_max() as u64).map(|number| piece(number, 0, number)).collect();
    assert!(pieces.len() > 5_000);
    ledger.register(soon(), &pieces).await.unwrap();
    assert_eq!(ledger.read(Ctx::default()).await.unwrap().pieces(), pieces);
}

/// A store that answers no write once it is stuck, and counts those that it was sent.
#[derive(Debug)]
struct Stuck {
    inner: StoreRef,
    is_stuck: AtomicBool,
    sent: AtomicUsize,
    goes_on: tokio::sync::Notify,
}

impl Store for Stuck {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if !self.is_stuck.load(Ordering::SeqCst) {
            return self.inner.run(ctx, batch);
        }
        let nth = self.sent.fetch_add(1, Ordering::SeqCst);
        Run::pending(async move {
            match nth {
                // The first write goes on once the others wait behind it.
                0 => self.goes_on.notified().await,
                _ => std::future::pending().await,
            }
            self.inner.run(ctx, batch).await
        })
    }
}

/// They share one write, which goes on to the later deadline.
#[tokio::test]
async fn who_shares_a_write_with_a_patient_caller_is_answered_by_his_own_deadline() {
    // Whoever comes first drives the write.
    for is_short_first in [true, false] {
        let inner: StoreRef = Arc::new(MemoryStore::new());
        let (name, manifest) = made(&inner).await;
        let stuck = Arc::new(Stuck {
            inner,
            is_stuck: AtomicBool::new(true),
            sent: AtomicUsize::new(0),
            goes_on: tokio::sync::Notify::new(),
        });
        let store: StoreRef = stuck.clone();
        let ledger = Arc::new(Ledger::new(&store, &name, &manifest, tuning()).unwrap());
        let register = |number: u64, within_ms: u64| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let began = Instant::now();
                let deadline = began + Duration::from_millis(within_ms);
                (ledger.register(deadline, &[piece(number, 0, 1)]).await, began.elapsed())
            })
        };
        let first = register(1, 20_000);
        tokio::task::yield_now().await;
        let times = if is_short_first { [200, 20_000] } else { [20_000, 200] };
        let [one, other] = [register(2, times[0]), register(3, times[1])];
        tokio::task::yield_now().await;
        stuck.goes_on.notify_one();
        first.await.unwrap().0.unwrap();
        let (short, long) = if is_short_first { (one, other) } else { (other, one) };
        let (outcome, took) = short.await.unwrap();
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown), "{error}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(!long.is_finished());
        long.abort();
    }
}

/// A removal comes before what is on its way: what it removes then is not certain to be gone.
#[tokio::test]
async fn what_was_under_way_when_a_removal_began_is_removed_again_and_then_no_more() {
    let (_, store, one, _) = ledger().await;
    let pieces = [piece(1, 0, 1), piece(2, 0, 2)];
    let orphans = async || one.orphans(Ctx::default()).await;
    drop(one.making(vec![pieces[0]]));
    let making = one.making(vec![pieces[1]]);
    let before = orphans().await;
    assert_eq!(before.iter().map(|made| made.piece).collect::<Vec<_>>(), pieces);
    drop(making);
    one.removed(&before);
    let left = orphans().await;
    assert_eq!(left.iter().map(|made| made.piece).collect::<Vec<_>>(), [pieces[1]], "it came behind the removal");
    one.removed(&left);
    assert_eq!(orphans().await, []);
    // Listed by another, and by itself.
    let _making = one.making(pieces.to_vec());
    one.register(soon(), &pieces[..1]).await.unwrap();
    one.read(Ctx::default()).await.unwrap();
    assert_eq!(orphans().await.len(), 1);
    one.listed(&pieces[1..]);
    assert_eq!(orphans().await, []);
    store.delete(one.read_op().key).await.unwrap();
    assert_eq!(orphans().await, []);
}

/// A store that has no conditional writes.
#[derive(Debug)]
struct WithoutCas(StoreRef);

impl Store for WithoutCas {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { cas: false, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.0.run(ctx, batch)
    }
}

#[tokio::test]
async fn where_nothing_is_compacted_as_many_pieces_as_are_promised_find_room_one_by_one() {
    let inner: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(7_000).build().unwrap());
    let store: StoreRef = Arc::new(WithoutCas(inner));
    let (name, manifest) = made(&store).await;
    let ledger = Ledger::new(&store, &name, &manifest, tuning()).unwrap();
    let pieces: Vec<Piece> = (0..ledger.pieces_max() as u64).map(|number| piece(number, 0, number)).collect();
    assert!((50..300).contains(&pieces.len()), "{}", pieces.len());
    for piece in &pieces {
        ledger.register(soon(), &[*piece]).await.unwrap();
    }
    assert_eq!(ledger.read(Ctx::default()).await.unwrap().pieces(), pieces);
}

#[tokio::test]
async fn a_ledger_that_went_back_is_told_to_who_registered_more() {
    let (_, store, one, _) = ledger().await;
    let key = one.read_op().key;
    one.register(soon(), &[piece(1, 0, 1)]).await.unwrap();
    one.read(Ctx::default()).await.unwrap();
    let before = store.get(key.clone()).await.unwrap().unwrap().value;
    one.register(soon(), &[piece(2, 0, 1)]).await.unwrap();
    one.read(Ctx::default()).await.unwrap();
    store.put(key, PutMode::Set, before, Ttl::Never).await.unwrap();
    assert_eq!(one.read(Ctx::default()).await.unwrap_err().kind(), ErrorKind::RolledBack);
}

#[tokio::test]
async fn what_a_compaction_would_save_is_what_repeats_and_what_is_gone() {
    let (_, store, one, two) = ledger().await;
    let name = Name::new("n").unwrap();
    let manifest = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
    let look = async || {
        let bytes = store.get(one.read_op().key).await.unwrap().unwrap().value;
        (bytes.len(), stale_bytes(&bytes, manifest.generation, 0).unwrap())
    };
    one.register(soon(), &[piece(1, 0, 1)]).await.unwrap();
    two.register(soon(), &[piece(2, 0, 1)]).await.unwrap();
    let (bytes, stale) = look().await;
    two.register(soon(), &[piece(2, 0, 1)]).await.unwrap();
    let (bytes_then, stale_then) = look().await;
    assert_eq!(stale_then - stale, bytes_then - bytes, "it repeats what is there");
    assert!(stale_then > ENTRY_BYTES, "{stale_then}");
    let error = stale_bytes(b"of nobody", manifest.generation, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
}
