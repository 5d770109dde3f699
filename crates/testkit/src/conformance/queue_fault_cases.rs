//! Queue and stack where something breaks, on every store that carries them: connections, at every op and in every way, requests that arrive after those
//! who sent them gave up, consumers that die, segments that are gone, and limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, Op};
use larder_structures::registry::find;
use larder_structures::{Name, QueueOptions};

use super::{Bench, assert_too_large, cases, one_over};
use crate::faulty::{Fault, Faulty};
use crate::lines::{Kind, LEASE, Line, SCRIPTED, script, small, text};
use crate::queue_bytes::segment_key;

cases! {
    queue_keeps_items_of_any_bytes [Cas, DeleteCas, Ttl];
    stack_keeps_items_of_any_bytes [Cas, DeleteCas, Ttl];
    queue_delivers_again_what_was_not_acknowledged [Cas, DeleteCas, Ttl];
    stack_delivers_again_what_was_not_acknowledged [Cas, DeleteCas, Ttl];
    queue_loses_nothing_when_the_nth_op_fails [Cas, DeleteCas, Ttl];
    stack_loses_nothing_when_the_nth_op_fails [Cas, DeleteCas, Ttl];
    queue_loses_nothing_when_the_nth_op_is_late [Cas, DeleteCas, Ttl];
    stack_loses_nothing_when_the_nth_op_is_late [Cas, DeleteCas, Ttl];
    queue_of_many_producers_loses_nothing_under_random_faults [Cas, DeleteCas, Ttl];
    stack_of_many_producers_loses_nothing_under_random_faults [Cas, DeleteCas, Ttl];
    queue_keeps_what_is_pushed_late_from_a_taker_without_a_link [Cas, DeleteCas, Ttl];
    stack_keeps_what_is_pushed_late_from_a_taker_without_a_link [Cas, DeleteCas, Ttl];
    queue_tells_a_lost_segment_once [Cas, DeleteCas, Ttl];
    stack_tells_a_lost_segment_once [Cas, DeleteCas, Ttl];
    queue_says_full_and_takes_again_when_there_is_room [Cas, DeleteCas, Ttl];
    stack_says_full_and_takes_again_when_there_is_room [Cas, DeleteCas, Ttl];
}

/// The faults after which nothing is on its way any more.
const SETTLED: [Fault; 4] = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply];

/// What is late arrives within the next call, some calls later, and when all is over.
const LATE: [Fault; 3] = [Fault::Late(1), Fault::Late(12), Fault::Late(1_000)];

/// How far apart the ops are that break in one run.
const EVERY: u64 = 7;

/// A lease that the end of a case can wait for.
const SHORT: Duration = Duration::from_secs(5);

/// Patient with a machine under load.
fn patient() -> QueueOptions {
    small().timeout(Duration::from_secs(60))
}

async fn line(t: &Bench, kind: Kind, name: &str) -> Line {
    Line::open_as(kind, &t.store, name, &patient()).await
}

async fn queue_keeps_items_of_any_bytes(t: Bench) {
    keeps_items_of_any_bytes(t, Kind::Queue).await;
}

async fn stack_keeps_items_of_any_bytes(t: Bench) {
    keeps_items_of_any_bytes(t, Kind::Stack).await;
}

async fn keeps_items_of_any_bytes(t: Bench, kind: Kind) {
    let line = Line::open_as(kind, &t.store, &t.name("a"), &QueueOptions::default()).await;
    let limit = line.item_bytes_max();
    let largest = vec![b'x'; limit.min(1 << 20)];
    let mut items: [&[u8]; 5] = [b"", b" \0\r\n\xff", &largest, b"\r\nEND\r\n", b"\0"];
    line.push_all(items).await.expect("a push");
    if let Some(item) = one_over(limit) {
        assert_too_large(&line.push(&item).await.expect_err("refused"), limit);
        // One of them, and nothing is pushed.
        assert_too_large(&line.push_all([b"small", &item[..]]).await.expect_err("refused"), limit);
        assert_eq!(line.len().await.expect("a length"), items.len() as u64);
    }
    if kind == Kind::Stack {
        items.reverse();
    }
    for item in items {
        assert_eq!(line.pop().await.expect("a pop").as_deref(), Some(item));
    }
    assert_eq!(line.pop().await.expect("a pop"), None);
}

async fn queue_delivers_again_what_was_not_acknowledged(t: Bench) {
    delivers_again_what_was_not_acknowledged(t, Kind::Queue).await;
}

async fn stack_delivers_again_what_was_not_acknowledged(t: Bench) {
    delivers_again_what_was_not_acknowledged(t, Kind::Stack).await;
}

async fn delivers_again_what_was_not_acknowledged(t: Bench, kind: Kind) {
    const BRIEF: Duration = Duration::from_millis(400);
    let name = t.name("a");
    let (dead, alive) = (line(&t, kind, &name).await, line(&t, kind, &name).await);
    dead.push("job").await.expect("a push");
    let began = Instant::now();
    let claim = dead.claim(BRIEF).await.expect("a claim").expect("the job");
    let mut again = alive.claim(LEASE).await.expect("a claim");
    // On a busy machine the lease may be over by then.
    assert!(again.is_none() || began.elapsed() >= BRIEF, "it was given to two");
    while again.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        again = alive.claim(LEASE).await.expect("a claim");
    }
    let again = again.expect("the job");
    assert_eq!((again.item(), again.attempts()), (&Bytes::from("job"), 2));
    assert_eq!(claim.ack().await.expect_err("refused").kind(), ErrorKind::Fenced);
    again.ack().await.expect("an acknowledgement");
    assert_eq!(alive.len().await.expect("a length"), 0);
}

async fn queue_loses_nothing_when_the_nth_op_fails(t: Bench) {
    loses_nothing_when_the_nth_op(t, Kind::Queue, &SETTLED).await;
}

async fn stack_loses_nothing_when_the_nth_op_fails(t: Bench) {
    loses_nothing_when_the_nth_op(t, Kind::Stack, &SETTLED).await;
}

async fn queue_loses_nothing_when_the_nth_op_is_late(t: Bench) {
    loses_nothing_when_the_nth_op(t, Kind::Queue, &LATE).await;
}

async fn stack_loses_nothing_when_the_nth_op_is_late(t: Bench) {
    loses_nothing_when_the_nth_op(t, Kind::Stack, &LATE).await;
}

/// Each item of a script through two handles is delivered, once, whichever op breaks: one in [`EVERY`] of them, others in each run.
async fn loses_nothing_when_the_nth_op(t: Bench, kind: Kind, faults: &[Fault]) {
    let first = fastrand::u64(1..=EVERY);
    println!("from op {first}");
    for &fault in faults {
        for nth in (first..).step_by(EVERY as usize) {
            let faulty = Faulty::new(t.store.clone());
            let (store, name) = (faulty.shared(), t.name(&format!("{fault:?}{nth}")));
            let one = Line::open_as(kind, &store, &name, &patient()).await;
            let two = Line::open_as(kind, &store, &name, &patient()).await;
            faulty.fail_nth(nth, fault);
            let mut given = script(&one, &two).await;
            if faulty.injected() == 0 {
                assert!(nth > 60, "only {nth} ops");
                break;
            }
            // What is still late arrives between the last calls, and after them.
            faulty.heal();
            for line in [&one, &two] {
                given.extend(line.pop().await.expect("a pop").as_deref().map(text));
            }
            faulty.deliver_late().await;
            given.extend(one.drain().await);
            given.extend(two.drain().await);
            let mut times: BTreeMap<String, u32> = BTreeMap::new();
            for item in given {
                *times.entry(item).or_default() += 1;
            }
            assert_eq!(times.len(), SCRIPTED, "{kind:?}, {fault:?} at op {nth}: {times:?}");
            times.retain(|_, times| *times > 1);
            assert!(times.is_empty(), "{kind:?}, {fault:?} at op {nth}: {times:?}");
            let stat = two.stat().await;
            let lost = (stat.segments_lost, stat.segments_missing, stat.items_lost);
            assert_eq!(lost, (0, 0, 0), "{kind:?}, {fault:?} at op {nth}");
        }
    }
}

async fn queue_of_many_producers_loses_nothing_under_random_faults(t: Bench) {
    of_many_producers_loses_nothing_under_random_faults(t, Kind::Queue).await;
}

async fn stack_of_many_producers_loses_nothing_under_random_faults(t: Bench) {
    of_many_producers_loses_nothing_under_random_faults(t, Kind::Stack).await;
}

/// Two busy producers, and four that push seldom, so that what they take for the tail is old, each on a connection that breaks in every way there is;
/// one who takes now and then, on a sound one, and one on a broken one. What was acknowledged comes out, and nothing that was not pushed.
async fn of_many_producers_loses_nothing_under_random_faults(t: Bench, kind: Kind) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (name, may_evict) = (t.name("a"), t.store.profile().may_lose_one());
    let taker = line(&t, kind, &name).await;
    let broken: Vec<Faulty> = (0..7).map(|_| Faulty::new(t.store.clone())).collect();
    let mut handles = Vec::new();
    for connection in &broken {
        handles.push(Line::open_as(kind, &connection.shared(), &name, &patient()).await);
        connection.fail_randomly(rng.u64(..), 20, &[&SETTLED[..], &[Fault::Late(2), Fault::Late(40)]].concat());
    }
    let (producers, claimer) = (&handles[..6], &handles[6]);
    let (mut acknowledged, mut tried, mut given) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for n in 0..500 {
        let at = if rng.u8(..) < 24 { rng.usize(2..6) } else { rng.usize(0..2) };
        let item = format!("{n:05} {}", "x".repeat(rng.usize(0..40)));
        tried.insert(item.clone());
        match producers[at].push(&item).await {
            Ok(()) => _ = acknowledged.insert(item),
            Err(error) => assert!(error.is_unknown() || error.known_effect() == Effect::NotApplied, "{error}"),
        }
        match rng.u8(..) {
            0..6 => given.extend(all_of(&taker, may_evict).await),
            6..100 => {
                // Whatever became of the acknowledgement, the item came out.
                if let Ok(Some(claim)) = claimer.claim(SHORT).await {
                    given.insert(text(claim.item()));
                    _ = claim.ack().await;
                }
            }
            _ => {}
        }
    }
    let injected: u64 = broken.iter().map(Faulty::injected).sum();
    assert!(injected > 20, "{injected}, seed {seed}");
    for connection in &broken {
        connection.heal();
        connection.deliver_late().await;
    }
    given.extend(all_of(&taker, may_evict).await);
    // A claim of which nobody knows comes back when its lease has run out.
    let until = Instant::now() + 10 * SHORT;
    loop {
        let stat = taker.stat().await;
        if stat.ready + stat.claimed == 0 {
            break;
        }
        assert!(Instant::now() < until, "{kind:?}, seed {seed}: {stat:?}");
        tokio::time::sleep(SHORT / 50).await;
        given.extend(all_of(&taker, may_evict).await);
    }
    let lost: Vec<_> = acknowledged.difference(&given).collect();
    assert!(lost.is_empty(), "{kind:?}, seed {seed}: {lost:?} are lost");
    assert!(given.is_subset(&tried), "{kind:?}, seed {seed}: something came that nobody pushed");
    let stat = taker.stat().await;
    let told = if may_evict { 0 } else { stat.segments_lost + stat.segments_missing };
    assert_eq!((told, stat.items_lost), (0, 0), "{kind:?}, seed {seed}");
}

/// All there is. On a store that may evict, a removal of a used up segment whose reply was lost may be told as a loss.
async fn all_of(line: &Line, may_evict: bool) -> Vec<String> {
    let mut items = Vec::new();
    loop {
        match line.pop().await {
            Ok(Some(item)) => items.push(text(&item)),
            Ok(None) => return items,
            Err(error) => assert!(may_evict && error.kind() == ErrorKind::Lost, "{error}"),
        }
    }
}

async fn queue_keeps_what_is_pushed_late_from_a_taker_without_a_link(t: Bench) {
    keeps_what_is_pushed_late(t, Kind::Queue).await;
}

async fn stack_keeps_what_is_pushed_late_from_a_taker_without_a_link(t: Bench) {
    keeps_what_is_pushed_late(t, Kind::Stack).await;
}

/// A push to a segment that was passed keeps it from being removed, but not its link: who comes to it from an older state, by that link, must not take it for removed, at whichever moment the
/// push comes.
async fn keeps_what_is_pushed_late(t: Bench, kind: Kind) {
    const ITEM: [u8; 250] = [b'x'; 250];
    let options = patient().segment_bytes(4_096);
    // Around the moment when the segment is empty whose tail the late one takes it for.
    let moments = if kind == Kind::Queue { 28..36 } else { 16..24 };
    let mut lost = Vec::new();
    for pops_before in moments {
        let name = t.name(&pops_before.to_string());
        let open = || Line::open_as(kind, &t.store, &name, &options);
        let one = open().await;
        let (mut pushed, mut late) = (0usize, None);
        for segments in [2, 3] {
            while one.stat().await.segments < segments {
                one.push_all([ITEM; 2]).await.expect("a push");
                pushed += 2;
            }
            if late.is_none() {
                // Takes segment 1 for the tail.
                late = Some(open().await);
            }
        }
        one.push_all([ITEM; 3]).await.expect("a push");
        pushed += 3;
        let stale = open().await;
        let mut given = 0;
        for pop in 0..pops_before + 2 {
            if pop == pops_before {
                late.take().expect("one that is late").push("late").await.expect("a push");
                pushed += 1;
            }
            given += usize::from(one.pop().await.expect("a pop").is_some());
        }
        given += usize::from(stale.pop().await.expect("a pop").is_some());
        given += one.drain().await.len() + stale.drain().await.len();
        if given != pushed {
            lost.push((pops_before, pushed - given));
        }
    }
    assert!(lost.is_empty(), "{kind:?}, late after so many pops, so many are lost: {lost:?}");
}

async fn queue_tells_a_lost_segment_once(t: Bench) {
    tells_a_lost_segment_once(t, Kind::Queue).await;
}

async fn stack_tells_a_lost_segment_once(t: Bench) {
    tells_a_lost_segment_once(t, Kind::Stack).await;
}

/// The key of a segment, as `docs` write it down.
async fn segment(t: &Bench, kind: Kind, name: &str, number: u64) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await;
    let manifest = manifest.expect("a manifest").expect("a structure");
    segment_key(&t.store, &format!("L.{name}.{}.{:016x}", kind.role(), manifest.generation), number).await
}

async fn tells_a_lost_segment_once(t: Bench, kind: Kind) {
    let name = t.name("a");
    let line = line(&t, kind, &name).await;
    for n in 0..60 {
        line.push(format!("item {n:04}")).await.expect("a push");
    }
    t.ok(Op::delete(segment(&t, kind, &name, 1).await)).await;
    assert_eq!(line.len().await.expect_err("not all there").kind(), ErrorKind::Lost);
    let (mut items, mut losses) = (Vec::new(), 0);
    loop {
        match line.pop().await {
            Ok(Some(item)) => items.push(item),
            Ok(None) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                losses += 1;
            }
        }
    }
    assert_eq!(losses, 1);
    if kind == Kind::Stack {
        items.reverse();
    }
    assert!(items.len() > 30 && items.is_sorted(), "{items:?}");
    assert_eq!(line.stat().await.segments_lost, 1);
}

async fn queue_says_full_and_takes_again_when_there_is_room(t: Bench) {
    says_full_and_takes_again_when_there_is_room(t, Kind::Queue).await;
}

async fn stack_says_full_and_takes_again_when_there_is_room(t: Bench) {
    says_full_and_takes_again_when_there_is_room(t, Kind::Stack).await;
}

async fn says_full_and_takes_again_when_there_is_room(t: Bench, kind: Kind) {
    let line = Line::open_as(kind, &t.store, &t.name("a"), &patient().bytes_max(768)).await;
    let mut pushed = Vec::new();
    let error = loop {
        let item = format!("item {:04}", pushed.len());
        match line.push(&item).await {
            Ok(()) => pushed.push(item),
            Err(error) => break error,
        }
        assert!(pushed.len() < 100, "never full");
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("768") && !error.is_unknown(), "{error}");
    if kind == Kind::Stack {
        pushed.reverse();
    }
    assert_eq!(line.drain().await, pushed);
    line.push("again").await.expect("room");
    assert_eq!(line.drain().await, ["again"]);
}
