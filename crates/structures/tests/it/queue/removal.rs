//! Who removes a segment that was used up, and what is told of one that is gone and that nobody removed.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::{
    Batch, Ctx, Durability, Effect, Error, ErrorKind, Eviction, Op, Profile, PutMode, Run, Store, StoreExt, StoreRef,
    Verb,
};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;
use larder_structures::queue::Claim;
use tokio::task::JoinHandle;

use crate::lock::support::Reprofiled;
use crate::queue::support::{BOTH, Kind, Line, drain, key, small, text};
use crate::support::turning::Turning;
use crate::table::support::Evicting;

/// What becomes of requests that remove by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removals {
    Pass,
    /// They hang for ever, and are not delivered.
    Hang,
    /// They are not delivered, and nobody is told so.
    Vanish,
    /// They are delivered, and the reply is lost.
    LoseTheReply,
    /// They are delivered, and the reply comes after a while.
    AnswerLate(Duration),
    /// They pass, and what is written by token behind one is not: nobody hears of it.
    Unsaid,
}

/// Breaks removals by token.
struct Breaking {
    inner: StoreRef,
    removals: Mutex<Removals>,
    /// How many have been asked for.
    asked: AtomicUsize,
}

impl Breaking {
    fn new(inner: &StoreRef) -> Arc<Breaking> {
        Arc::new(Breaking { inner: inner.clone(), removals: Mutex::new(Removals::Pass), asked: AtomicUsize::new(0) })
    }

    fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    fn set(&self, removals: Removals) {
        *self.removals.lock().unwrap() = removals;
    }
}

impl Store for Breaking {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let removes = |op: &Op| matches!(op.verb, Verb::Delete { cas: Some(_) });
        let removals = *self.removals.lock().unwrap();
        let count = batch.len();
        let is_removal = batch.iter().any(removes);
        self.asked.fetch_add(usize::from(is_removal), Ordering::Relaxed);
        let swaps = |op: &Op| matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. });
        if removals == Removals::Unsaid && self.asked.load(Ordering::Relaxed) > 0 && batch.iter().any(swaps) {
            let refused = Error::new(ErrorKind::BadInput, "it is not sent").effect(Effect::NotApplied);
            return Run::Ready((0..count).map(|_| Err(refused.clone())).collect());
        }
        if matches!(removals, Removals::Pass | Removals::Unsaid) || !is_removal {
            return self.inner.run(ctx, batch);
        }
        Run::pending(async move {
            if let Removals::AnswerLate(after) = removals {
                let replies = self.inner.run(ctx, batch).await;
                tokio::time::sleep(after).await;
                return replies;
            }
            match removals {
                Removals::Hang => std::future::pending().await,
                Removals::LoseTheReply => _ = self.inner.run(ctx, batch).await,
                Removals::Pass | Removals::Vanish | Removals::Unsaid | Removals::AnswerLate(_) => {}
            }
            let error = Error::new(ErrorKind::Unavailable, "no reply came").effect(Effect::Unknown);
            (0..count).map(|_| Err(error.clone())).collect()
        })
    }
}

impl fmt::Debug for Breaking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Breaking")
    }
}

/// Looks at the tail are an eighth of a segment apart: a short push sees none.
fn large() -> QueueOptions {
    QueueOptions::default().segment_bytes(64 * 1024)
}

/// Three segments, of which all is claimed; then whoever takes the second for the tail pushes to it, and where it `is_evicted` it is gone.
async fn with_a_late_push(kind: Kind, store: &StoreRef, one: &Line, is_evicted: bool) -> Vec<Claim> {
    let mut late = None;
    for segments in [2, 3] {
        while one.stat().await.segments < segments {
            one.push([b'x'; 4_000]).await.unwrap();
        }
        late.get_or_insert(Line::open(kind, store, &large()).await);
    }
    one.push("in the tail").await.unwrap();
    let mut claims = Vec::new();
    while let Some(claim) = one.claim(Duration::from_secs(600)).await.unwrap() {
        claims.push(claim);
    }
    late.unwrap().push("late").await.unwrap();
    if is_evicted {
        let segment = Op::delete(key(kind, store, Some(1)).await);
        store.run(Ctx::default(), Batch::from_iter([segment])).await;
    }
    claims
}

/// A push goes to a segment that was passed, the server evicts that before anybody has seen it, and then the last of what else was in it is acknowledged.
#[tokio::test]
async fn a_late_push_to_a_used_up_segment_that_is_evicted_is_told_as_lost() {
    for kind in BOTH {
        for (is_evicted, by_another) in [(false, false), (true, false), (true, true)] {
            let store: StoreRef = Arc::new(MemoryStore::new());
            let one = Line::open(kind, &store, &large()).await;
            let two = Line::open(kind, &store, &large()).await;
            let claims = with_a_late_push(kind, &store, &one, is_evicted).await;
            // Another has never read the segments.
            let line = if by_another { &two } else { &one };
            for claim in &claims {
                line.ack(claim.id()).await.unwrap();
            }
            let (items, told) = drain(line).await;
            let expected: &[&str] = if is_evicted { &[] } else { &["late"] };
            assert_eq!(
                (&items[..], told),
                (&expected.iter().map(|item| item.to_string()).collect::<Vec<_>>()[..], usize::from(is_evicted)),
                "{kind:?}"
            );
            // Once.
            assert_eq!(drain(&one).await, (Vec::new(), 0), "{kind:?}");
            assert_eq!(one.stat().await.segments_lost, u64::from(is_evicted), "{kind:?}");
            assert_eq!(one.len().await.unwrap(), 0);
        }
    }
}

/// Removals whose replies are lost, or that are not delivered: no loss is told of what was removed, and others remove what was left.
#[tokio::test]
async fn a_removal_that_is_not_answered_is_no_loss_and_is_done_by_another() {
    for kind in BOTH {
        for removals in [Removals::Vanish, Removals::LoseTheReply] {
            let memory = Arc::new(MemoryStore::new());
            let store: StoreRef = memory.clone();
            let breaking = Breaking::new(&store);
            let one = Line::open(kind, &breaking.shared(), &small()).await;
            let two = Line::open(kind, &store, &small()).await;
            two.push_all((0..400).map(|n| format!("item {n:06}"))).await.unwrap();
            breaking.set(removals);
            let mut items = Vec::new();
            for n in 0..400 {
                let line = if n < 200 { &one } else { &two };
                items.push(line.pop().await.unwrap().unwrap());
            }
            items.sort();
            items.dedup();
            assert_eq!(items.len(), 400, "{kind:?}, {removals:?}");
            // It takes writes until another's removals are taken over.
            for _ in 0..40 {
                two.push("x").await.unwrap();
                two.pop().await.unwrap().unwrap();
            }
            assert_eq!(drain(&two).await, (Vec::new(), 0));
            assert_eq!((two.stat().await.segments_lost, two.len().await.unwrap()), (0, 0), "{kind:?}, {removals:?}");
            // The link of a stack's segment stays where nobody was told that the segment is gone.
            let links = if (kind, removals) == (Kind::Stack, Removals::LoseTheReply) { 20 } else { 0 };
            assert!(memory.stats().items <= 8 + links, "{} items, {kind:?}, {removals:?}", memory.stats().items);
        }
    }
}

/// A caller is dropped while its pop removes a segment, after its write has landed: what it took goes with it, and no item more.
#[tokio::test]
async fn a_caller_that_is_dropped_while_a_segment_is_removed_takes_one_item_along() {
    for kind in BOTH {
        let mut dropped = 0;
        for before in 0..40 {
            let store: StoreRef = Arc::new(MemoryStore::new());
            let breaking = Breaking::new(&store);
            let line = Line::open(kind, &breaking.shared(), &small()).await;
            line.push_all((0..60).map(|n| format!("item {n:06}"))).await.unwrap();
            let mut items = Vec::new();
            for _ in 0..before {
                items.push(text(&line.pop().await.unwrap().unwrap()));
            }
            breaking.set(Removals::Hang);
            let given = tokio::time::timeout(Duration::from_millis(5), line.pop()).await;
            breaking.set(Removals::Pass);
            let is_gone = given.is_err();
            items.extend(given.ok().map(|item| text(&item.unwrap().unwrap())));
            items.extend(line.drain().await);
            items.sort();
            items.dedup();
            assert_eq!(items.len(), 60 - usize::from(is_gone), "{kind:?}, after {before}");
            dropped += usize::from(is_gone);
        }
        assert!(dropped > 0, "{kind:?}: nobody was dropped");
    }
}

/// Of a store that may evict. One takes the last of a segment and removes it, and says so in the state only after `late`; meanwhile others write the state often. What the others took, how often they were told of a loss,
/// and how long it took.
async fn with_a_removal_that_is_said_late(kind: Kind, late: Duration) -> (Vec<String>, usize, Duration) {
    let store: StoreRef = Arc::new(Evicting(Arc::new(MemoryStore::new())));
    let breaking = Breaking::new(&store);
    let one = Line::open(kind, &breaking.shared(), &small()).await;
    let two = Line::open(kind, &store, &small()).await;
    two.push_all((0..200).map(|n| format!("item {n:06}"))).await.unwrap();
    breaking.set(Removals::AnswerLate(late));
    let taking = tokio::spawn(async move {
        // Until it removes a segment, and hangs there.
        let mut items = Vec::new();
        loop {
            let since = Instant::now();
            items.push(text(&one.pop().await.unwrap().unwrap()));
            if since.elapsed() >= late {
                return items;
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    let since = Instant::now();
    let (mut items, told) = drain(&two).await;
    let taken = since.elapsed();
    if late < Duration::from_secs(1) {
        items.extend(taking.await.unwrap());
    } else {
        taking.abort();
    }
    items.sort();
    (items, told, taken)
}

/// Among many who write the state, the one who removed a segment may come to say so late. Found by the conformance's eight clients of a queue on a busy machine.
#[tokio::test]
async fn a_removal_that_is_noted_late_is_no_loss() {
    for kind in BOTH {
        let (items, told, _) = with_a_removal_that_is_said_late(kind, Duration::from_millis(100)).await;
        assert_eq!((items.len(), told), (200, 0), "{kind:?}");
    }
}

/// Nobody knows what became of the segment: it may have been evicted, with a late push in it. It is told before anybody is told that there is nothing, and once.
#[tokio::test]
async fn a_removal_that_is_never_noted_is_told_as_a_loss_where_the_store_may_evict() {
    for kind in BOTH {
        let (_, told, taken) = with_a_removal_that_is_said_late(kind, Duration::from_secs(600)).await;
        assert_eq!(told, 1, "{kind:?}");
        assert!(taken >= Duration::from_millis(300), "{kind:?}: {taken:?}");
    }
}

/// What went otherwise in a scene. Losses are decided by the clock, 300 ms after they were missed first: a machine that stands still for as long lets one be told before its turn.
type Odd = String;

/// Plays a scene until it goes as it should: on a machine that is busy that may take some.
async fn played<Playing: Future<Output = Result<(), Odd>>>(scene: impl Fn(Kind) -> Playing) {
    for kind in BOTH {
        let mut odds = Vec::new();
        while let Err(odd) = scene(kind).await {
            odds.push(odd);
            assert!(odds.len() < 5, "{kind:?}: {odds:?}");
        }
    }
}

fn expect<T: PartialEq + fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), Odd> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, not {wanted:?}")) }
}

/// It is in doubt whether there is nothing.
struct Doubt {
    store: StoreRef,
    /// Has never looked.
    fresh: Line,
    other: Line,
    /// Of the other's.
    claims: Vec<Claim>,
    /// Hangs.
    taking: JoinHandle<()>,
}

impl Drop for Doubt {
    fn drop(&mut self) {
        self.taking.abort();
    }
}

/// Of a store that may evict. So many items are claimed; one takes the last of a segment and removes it, and never says so; another has taken all the rest.
async fn in_doubt(kind: Kind, claimed: usize) -> Result<Doubt, Odd> {
    let store: StoreRef = Arc::new(Evicting(Arc::new(MemoryStore::new())));
    let breaking = Breaking::new(&store);
    let one = Line::open(kind, &breaking.shared(), &small()).await;
    let (fresh, other) = (Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await);
    let items = || other.push_all((0..200).map(|n| format!("item {n:06}")));
    let mut claims = Vec::new();
    // What comes first is claimed.
    if kind == Kind::Stack {
        items().await.unwrap();
    }
    other.push_all((0..claimed).map(|n| format!("held {n:06}"))).await.unwrap();
    while claims.len() < claimed {
        claims.push(other.take().await);
    }
    if kind == Kind::Queue {
        items().await.unwrap();
    }
    breaking.set(Removals::AnswerLate(Duration::from_secs(600)));
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    // Most of them before anything is in doubt: what is in doubt is decided after 300 ms, in which a busy machine does not take them all.
    for _ in 0..140 {
        other.pop().await.unwrap().unwrap();
        taken.fetch_add(1, Ordering::Relaxed);
    }
    let taking = tokio::spawn(async move {
        loop {
            one.pop().await.unwrap().unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    while breaking.asked.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let doubt = Doubt { store, fresh, other, claims, taking };
    // The one that it hangs with is taken, too.
    for _ in taken.load(Ordering::Relaxed) + 1..200 {
        expect("an item of the rest", doubt.other.pop().await.map(|item| item.is_some()).ok(), Some(true))?;
    }
    Ok(doubt)
}

#[tokio::test]
async fn what_is_pushed_while_it_is_in_doubt_whether_there_is_nothing_is_taken_at_once() {
    played(|kind| async move {
        let doubt = in_doubt(kind, 0).await?;
        let pushing = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            doubt.other.push("new").await.unwrap();
        };
        let (popped, ()) = tokio::join!(doubt.fresh.pop(), pushing);
        expect("what was pushed", popped.map(|item| item.map(|item| text(&item))).ok(), Some(Some("new".to_owned())))?;
        expect("the rest", drain(&doubt.fresh).await, (Vec::new(), 1))
    })
    .await;
}

/// Calls through clones of a handle travel in one write, and those that are not in doubt do not wait for one that is.
#[tokio::test]
async fn an_acknowledgement_does_not_wait_for_another_call_that_is_in_doubt() {
    played(|kind| async move {
        let doubt = in_doubt(kind, 1).await?;
        let (clone, claim) = (doubt.fresh.clone(), doubt.claims[0].id());
        let acknowledging = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            clone.ack(claim).await
        };
        tokio::select! {
            acknowledged = acknowledging => acknowledged.unwrap(),
            popped = doubt.fresh.pop() => return Err(format!("{popped:?} came first")),
        }
        expect("the rest", drain(&doubt.fresh).await, (Vec::new(), 1))
    })
    .await;
}

/// Each was kept from saying what it has removed: it says so though it misses what the other has.
#[tokio::test]
async fn two_who_miss_what_the_other_removed_say_what_they_have_removed_themselves() {
    played(|kind| async move {
        let store: StoreRef = Arc::new(Evicting(Arc::new(MemoryStore::new())));
        let three = Line::open(kind, &store, &small()).await;
        three.push_all((0..200).map(|n| format!("item {n:06}"))).await.unwrap();
        let (mut taken, mut unsaid) = (0, Vec::new());
        for _ in 0..2 {
            let breaking = Breaking::new(&store);
            let line = Line::open(kind, &breaking.shared(), &small()).await;
            breaking.set(Removals::Unsaid);
            while breaking.asked.load(Ordering::Relaxed) == 0 {
                line.pop().await.unwrap().unwrap();
                taken += 1;
            }
            breaking.set(Removals::Pass);
            unsaid.push(line);
        }
        for _ in taken..200 {
            expect("an item of the rest", three.pop().await.map(|item| item.is_some()).ok(), Some(true))?;
        }
        let (one, two) = tokio::join!(unsaid[0].pop(), unsaid[1].pop());
        expect("nothing", (one.ok(), two.ok()), (Some(None), Some(None)))?;
        expect("losses", three.stat().await.segments_lost, 0)
    })
    .await;
}

/// Who removed what a stack has left has ended before he could say so, and nobody takes any more: all that is pushed since would stay on record above it.
#[tokio::test]
async fn a_stack_that_is_only_pushed_to_forgets_what_was_removed_and_not_noted() {
    for may_evict in [false, true] {
        let inner: StoreRef = Arc::new(MemoryStore::new());
        let store: StoreRef = if may_evict { Arc::new(Evicting(inner)) } else { inner };
        let breaking = Breaking::new(&store);
        let taker = Line::open(Kind::Stack, &breaking.shared(), &small()).await;
        for n in 0..40 {
            taker.push(format!("old {n:0250}")).await.unwrap();
        }
        breaking.set(Removals::Unsaid);
        while breaking.asked.load(Ordering::Relaxed) == 0 {
            taker.pop().await.unwrap().unwrap();
        }
        let line = Line::open(Kind::Stack, &store, &small()).await;
        let left = line.len().await.unwrap();
        let state = key(Kind::Stack, &store, None).await;
        let mut bytes = Vec::new();
        for n in 0..200 {
            if n == 100 {
                // For so long another waits for what he has to say, where he may have said it.
                tokio::time::sleep(Duration::from_millis(350)).await;
            }
            line.push(format!("new {n:0250}")).await.unwrap();
            bytes.push(store.get(state.clone()).await.unwrap().expect("the state").value.len());
        }
        assert!(bytes[199] < 2_500, "{may_evict}: {bytes:?}");
        let (items, told) = drain(&line).await;
        assert_eq!((items.len() as u64, told), (left + 200, usize::from(may_evict)), "{may_evict}");
    }
}

type Deed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something happens before each look: each batch of several ops that writes nothing.
struct Overtaken {
    inner: StoreRef,
    by: Box<dyn Fn() -> Option<Deed> + Send + Sync>,
}

fn overtaken(inner: &StoreRef, by: impl Fn() -> Option<Deed> + Send + Sync + 'static) -> StoreRef {
    Arc::new(Overtaken { inner: inner.clone(), by: Box::new(by) })
}

impl Store for Overtaken {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let is_look = batch.len() > 1 && batch.iter().all(|op| matches!(op.verb, Verb::Get { .. }));
        let by = if is_look { (self.by)() } else { None };
        Run::pending(async move {
            if let Some(by) = by {
                by.await;
            }
            self.inner.run(ctx, batch).await
        })
    }
}

impl fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overtaken")
    }
}

/// A look at a segment that is gone is overtaken by a write of another: it tells neither that it was lost nor that there is nothing.
#[tokio::test]
async fn a_loss_that_is_found_while_others_write_is_told_before_there_is_nothing() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(Evicting(Arc::new(MemoryStore::new())));
        let one = Line::open(kind, &store, &large()).await;
        let two = Line::open(kind, &store, &large()).await;
        let mut claims = with_a_late_push(kind, &store, &one, true).await;
        // Those of the first segments are acknowledged last: nobody has looked at them since they were used up.
        if kind == Kind::Queue {
            claims.reverse();
        }
        let of_the_tail = claims.remove(0);
        for claim in &claims {
            two.ack(claim.id()).await.unwrap();
        }
        let once = Arc::new(Mutex::new(None::<Deed>));
        let line = {
            let once = once.clone();
            Line::open(kind, &overtaken(&store, move || once.lock().unwrap().take()), &large()).await
        };
        *once.lock().unwrap() = Some(Box::pin(async move { two.ack(of_the_tail.id()).await.unwrap() }));
        assert_eq!(drain(&line).await, (Vec::new(), 1), "{kind:?}");
        assert!(once.lock().unwrap().is_none(), "{kind:?}: nothing was overtaken");
    }
}

/// Others write the state before each look: what became of the segment is decided all the same, and as soon as otherwise.
#[tokio::test]
async fn a_loss_is_told_however_often_others_write() {
    played(|kind| async move {
        let mut doubt = in_doubt(kind, 100).await?;
        let (claims, looks) = (Mutex::new(std::mem::take(&mut doubt.claims)), Arc::new(AtomicUsize::new(0)));
        let counted = looks.clone();
        let store = overtaken(&doubt.store, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let claim = claims.lock().unwrap().pop()?;
            Some(Box::pin(async move { claim.ack().await.unwrap() }))
        });
        let line = Line::open(kind, &store, &small()).await;
        let since = Instant::now();
        expect("the loss", line.pop().await.map_err(|error| error.kind()), Err(ErrorKind::Lost))?;
        let (looks, taken) = (looks.load(Ordering::Relaxed), since.elapsed());
        // Others wrote before each of them.
        if (2..80).contains(&looks) { Ok(()) } else { Err(format!("{looks} looks in {taken:?}")) }
    })
    .await;
}

/// When the queue was opened nothing was ever evicted, and who was to remove a segment has ended. Since then the store may evict, and does, with a late push in it: what is gone was not removed for certain.
#[tokio::test]
async fn a_segment_that_is_gone_since_the_store_may_evict_is_told_as_lost() {
    for kind in BOTH {
        let turning = Turning::over(&(Arc::new(MemoryStore::new()) as StoreRef));
        told_as_lost(kind, &turning.shared(), || turning.turn(true)).await;
    }
}

/// Of several servers that never evict one is started again, and has the late push no more.
#[tokio::test]
async fn a_segment_that_is_gone_with_one_server_of_several_is_told_as_lost() {
    for kind in BOTH {
        // A cluster that keeps its own copies counts as one node, and loses the latest in a failover.
        for (nodes, durability) in [(3, Durability::Server), (1, Durability::Server), (1, Durability::Recent)] {
            let store = Reprofiled::shared(&(Arc::new(MemoryStore::new()) as StoreRef), |profile| {
                (profile.durability, profile.eviction) = (durability, Eviction::Never);
                (profile.nodes, profile.scattered) = (nodes, true);
            });
            told_as_lost(kind, &store, || ()).await;
        }
    }
}

async fn told_as_lost(kind: Kind, store: &StoreRef, before_it_is_gone: impl FnOnce()) {
    let breaking = Breaking::new(store);
    let one = Line::open(kind, &breaking.shared(), &large()).await;
    let two = Line::open(kind, store, &large()).await;
    let claims = with_a_late_push(kind, store, &one, false).await;
    breaking.set(Removals::Vanish);
    for claim in &claims {
        one.ack(claim.id()).await.unwrap();
    }
    assert!(breaking.asked.load(Ordering::Relaxed) > 0, "{kind:?}: nobody is to remove it");
    drop((one, claims));
    before_it_is_gone();
    let segment = Op::delete(key(kind, store, Some(1)).await);
    store.run(Ctx::default(), Batch::from_iter([segment])).await;
    // It takes writes until another's removals are taken over.
    let mut told = 0;
    for _ in 0..40 {
        two.push("x").await.unwrap();
        told += drain(&two).await.1;
    }
    assert_eq!((told, two.stat().await.segments_lost), (1, 1), "{kind:?}");
}
