//! A store of several servers, of which one fails, or is silent: what does not stand there goes on.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, Op, Profile, Reply, Result, Run, Store, StoreRef, Verb};
use larder_store_memory::MemoryStore;

use crate::queue::between::{Between, removes};
use crate::queue::support::{BOTH, Kind, Line, key, small};
use crate::support::answering::Answering;
use crate::support::shaped::Shaped;
use crate::support::slow::Pace;
use crate::table::support::{cost, counting};

/// As one that is `scattered` over so many servers, without a disk.
fn store_of(nodes: usize, scattered: bool) -> StoreRef {
    let store: StoreRef = Arc::new(MemoryStore::new());
    Shaped::over(&store, |profile| (profile.nodes, profile.scattered) = (nodes, scattered))
}

fn several() -> StoreRef {
    store_of(3, true)
}

fn down(op: &Op) -> Result<Reply> {
    let effect = if op.is_read() { Effect::NotApplied } else { Effect::Unknown };
    Err(Error::new(ErrorKind::Unavailable, "the server is down").effect(effect))
}

type Rule = Box<dyn Fn(&Op) -> bool + Send>;

/// A store of which one server has no answers, from when a test says so: a batch that has an op for it ends at its deadline, though the rest was done at once.
struct Silent {
    inner: StoreRef,
    is_silent: Mutex<Rule>,
}

impl Silent {
    fn over(inner: &StoreRef) -> Arc<Silent> {
        Arc::new(Silent { inner: inner.clone(), is_silent: Mutex::new(Box::new(|_| false)) })
    }

    fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    fn to(&self, is_silent: impl Fn(&Op) -> bool + Send + 'static) {
        *self.is_silent.lock().unwrap() = Box::new(is_silent);
    }
}

impl Store for Silent {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let silent: Vec<bool> = batch.iter().map(&*self.is_silent.lock().unwrap()).collect();
        Run::pending(async move {
            let overdue: Vec<Result<Reply>> = batch.iter().map(down).collect();
            let others: Batch =
                batch.into_iter().zip(&silent).filter(|(_, silent)| !**silent).map(|(op, _)| op).collect();
            let mut replies = self.inner.run(ctx, others).await.into_iter();
            if silent.contains(&true) {
                tokio::time::sleep_until(ctx.deadline.expect("it has an end").into()).await;
            }
            let pairs = silent.into_iter().zip(overdue);
            pairs.map(|(silent, overdue)| if silent { overdue } else { replies.next().expect("a reply") }).collect()
        })
    }
}

impl fmt::Debug for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Silent")
    }
}

/// What is done at once, and answered so many milliseconds later.
fn answered_after(ms: u64) -> Pace {
    (Duration::ZERO, Duration::from_millis(ms))
}

/// Far less than a call has, and more than a busy machine takes.
const SOON: Duration = Duration::from_millis(1_500);

/// A handle of one to whom the server of this key is down, until its store answers otherwise.
async fn who_cannot_reach(kind: Kind, store: &StoreRef, key: Key) -> (Arc<Answering>, Line) {
    let answering = Answering::new(store);
    let line = Line::open(kind, &answering.shared(), &small()).await;
    answering.by(move |op| (op.key == key).then(|| down(op)));
    (answering, line)
}

/// Of three segments, an item each, all is claimed, and nothing is left of the second, which nobody has removed; then some are pushed. Returns the key of the second.
async fn with_a_drained_segment(kind: Kind, store: &StoreRef, items: u64) -> Key {
    let one = Line::open(kind, store, &small()).await;
    let mut claims = Vec::new();
    for n in 0..3 {
        one.push(format!("{n:0250}")).await.unwrap();
        claims.push(one.take().await);
    }
    let drained = key(kind, store, Some(1)).await;
    one.push_all((0..items).map(|n| format!("item {n}"))).await.unwrap();
    // By one who has not read it, and cannot.
    let (_, other) = who_cannot_reach(kind, store, drained.clone()).await;
    other.ack(claims[1].id()).await.unwrap();
    drained
}

#[tokio::test]
async fn what_can_be_taken_is_taken_where_a_used_up_segments_server_is_down() {
    for kind in BOTH {
        let store = several();
        let drained = with_a_drained_segment(kind, &store, 4).await;
        let (_, line) = who_cannot_reach(kind, &store, drained).await;
        for n in 0..4 {
            let item = if n % 2 == 0 { line.pop().await } else { Ok(Some(line.take().await.item().clone())) };
            assert!(item.unwrap().is_some(), "{kind:?}, item {n}");
            // Others write the state, so it is read again, with a look at what was used up.
            Line::open(kind, &store, &small()).await.push("more").await.unwrap();
        }
        for n in 0..4 {
            assert!(line.pop().await.unwrap().is_some(), "{kind:?}, item {n} of those");
        }
    }
}

/// A late push may have gone to what cannot be looked at.
#[tokio::test]
async fn nobody_is_told_that_there_is_nothing_where_a_used_up_segments_server_is_down() {
    for kind in BOTH {
        // Nor is it tried until the time for all is over, which is half a minute.
        tokio::time::timeout(Duration::from_secs(5), nobody_is_told(kind)).await.expect("at once");
    }
}

async fn nobody_is_told(kind: Kind) {
    let store = several();
    let drained = with_a_drained_segment(kind, &store, 2).await;
    let between = Between::new(&store);
    let (answering, line) = who_cannot_reach(kind, &between.shared(), drained).await;
    between.slow(|_| true, answered_after(1));
    let (one, two) = (line.take().await, line.take().await);
    let error = line.pop().await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{kind:?}");
    line.ack(one.id()).await.unwrap();
    // Also not to one who asks together with others, whom it does not keep from their answers: the first is on its way while two wait for their turn. A stack would have to pass it.
    let (first, ended, popped) = match kind {
        Kind::Queue => tokio::join!(line.pop(), line.ack(two.id()), line.pop()),
        Kind::Stack => (line.pop().await, line.ack(two.id()).await, line.pop().await),
    };
    ended.unwrap();
    for nothing in [first, popped] {
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::Unavailable, "{kind:?}");
    }
    answering.by(|_| None);
    assert_eq!(line.pop().await.unwrap(), None, "{kind:?}");
}

/// Slow is not down: what it says is waited for before anybody is told that there is nothing.
#[tokio::test(start_paused = true)]
async fn a_used_up_segments_server_that_is_slow_is_waited_for() {
    for kind in BOTH {
        let store = several();
        let drained = with_a_drained_segment(kind, &store, 1).await;
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &small()).await;
        between.slow(move |op| op.key == drained, answered_after(60));
        assert!(line.pop().await.unwrap().is_some(), "{kind:?}");
        assert_eq!(line.pop().await.unwrap(), None, "{kind:?}");
    }
}

/// Nobody tries again for what he does not need.
#[tokio::test]
async fn what_is_looked_at_on_the_way_and_fails_costs_no_round_trip() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let drained = with_a_drained_segment(kind, &store, 4).await;
        let answering = Answering::new(&store);
        let (counted, counting) = counting(answering.shared());
        let line = Line::open(kind, &counted, &small()).await;
        answering.by(move |op| (op.key == drained).then(|| down(op)));
        // A queue's reads the last segment that was passed, and then the tail.
        let expected = if kind == Kind::Queue { 3 } else { 2 };
        assert_eq!(cost(&counting, line.pop()).await, expected, "{kind:?}");
    }
}

#[tokio::test]
async fn the_next_segment_is_not_needed_before_its_turn() {
    // What is looked at aside is a round trip at the same time.
    for (store, expected) in [(store_of(1, false), 2), (several(), 3)] {
        let one = Line::open(Kind::Queue, &store, &small()).await;
        one.push("first").await.unwrap();
        for n in 0..4 {
            one.push(format!("{n:0250}")).await.unwrap();
        }
        let answering = Answering::new(&store);
        let (counted, counting) = counting(answering.shared());
        let line = Line::open(Kind::Queue, &counted, &small()).await;
        answering.by(|op| op.key.as_bytes().ends_with(b".n1").then(|| down(op)));
        assert_eq!(cost(&counting, line.pop()).await, expected);
        assert!(line.pop().await.unwrap().unwrap().ends_with(b"0"));
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Unavailable);
        answering.by(|_| None);
        assert!(line.pop().await.unwrap().unwrap().ends_with(b"1"));
    }
}

/// By the clock of the runtime, which stands still but for what is waited for.
#[tokio::test(start_paused = true)]
async fn what_can_be_taken_is_taken_soon_where_a_used_up_segments_server_is_silent() {
    for kind in BOTH {
        for (nodes, scattered) in [(3, true), (3, false), (1, true)] {
            let store = store_of(nodes, scattered);
            let drained = with_a_drained_segment(kind, &store, 6).await;
            let silent = Silent::over(&store);
            let line = Line::open(kind, &silent.shared(), &small()).await;
            silent.to(move |op| op.key == drained);
            let begin = tokio::time::Instant::now();
            for n in 0..6 {
                assert!(line.pop().await.unwrap().is_some(), "{kind:?}, item {n} of {nodes}, {scattered}");
            }
            // Not each of them waits for it, but one a second.
            assert!(
                begin.elapsed() < Duration::from_millis(250),
                "{kind:?}, {nodes}, {scattered}: {:?}",
                begin.elapsed()
            );
        }
    }
}

/// Who has little time is not held up for all of it.
#[tokio::test(start_paused = true)]
async fn a_look_on_the_way_takes_half_of_the_time_that_a_call_has_left() {
    for kind in BOTH {
        let store = several();
        let drained = with_a_drained_segment(kind, &store, 2).await;
        let silent = Silent::over(&store);
        let line = Line::open(kind, &silent.shared(), &small().timeout(Duration::from_millis(120))).await;
        silent.to(move |op| op.key == drained);
        let begin = tokio::time::Instant::now();
        assert!(line.pop().await.unwrap().is_some(), "{kind:?}");
        let waited = begin.elapsed();
        assert!(waited < Duration::from_millis(80), "{kind:?}: {waited:?}");
    }
}

/// Its removal goes on without the caller, and is done once.
#[tokio::test]
async fn who_takes_the_last_item_of_a_segment_whose_server_falls_silent_gets_it_soon() {
    for kind in BOTH {
        let store = several();
        let silent = Silent::over(&store);
        let line = Line::open(kind, &silent.shared(), &small()).await;
        for n in 0..4 {
            line.push(format!("{n:0250}")).await.unwrap();
        }
        silent.to(|op| matches!(op.verb, Verb::Delete { cas: Some(_) }));
        for n in 0..4 {
            let since = Instant::now();
            assert!(line.pop().await.unwrap().is_some(), "{kind:?}, item {n}");
            assert!(since.elapsed() < SOON, "{kind:?}, item {n}: {:?}", since.elapsed());
        }
    }
}

/// A removal that takes longer than its caller waits is answered to a later call: nobody is told of a loss that was none.
#[tokio::test]
async fn a_removal_whose_answer_comes_late_is_no_loss() {
    for kind in BOTH {
        let store = several();
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &small()).await;
        for n in 0..4 {
            line.push(format!("{n:0250}")).await.unwrap();
        }
        between.slow(removes, answered_after(400));
        for n in 0..4 {
            let since = Instant::now();
            assert!(line.pop().await.unwrap().is_some(), "{kind:?}, item {n}");
            assert!(since.elapsed() < Duration::from_millis(380), "{kind:?}, item {n}: {:?}", since.elapsed());
        }
        assert_eq!(line.pop().await.unwrap(), None, "{kind:?}");
        assert_eq!(line.stat().await.segments_lost, 0, "{kind:?}");
    }
}
