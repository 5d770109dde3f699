//! Queue, stack and cache against models, on every store: call by call against a plain collection, and under eight clients against the
//! checkers of the histories.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Error, ErrorKind, Result};
use larder_structures::cache::{Lookup, Rebuild, Source};
use larder_structures::{Cache, CacheOptions, Claim, Queue, QueueOptions, Stack};

use super::{Bench, cases};
use crate::history::check::cache::{CacheOp, CacheTold, Turn, check, two_at_once};
use crate::history::jobs::queues::Line;
use crate::history::recorder::Recorder;
use crate::history::{Arena, Caused, JOBS, Run, calm};

cases! {
    queue_agrees_with_a_model [Cas, DeleteCas, Ttl];
    stack_agrees_with_a_model [Cas, DeleteCas, Ttl];
    queue_agrees_with_its_checker_under_eight_clients [Cas, DeleteCas, Ttl];
    stack_agrees_with_its_checker_under_eight_clients [Cas, DeleteCas, Ttl];
    queue_of_one_producer_is_in_order_and_bounded_under_eight_clients [Cas, DeleteCas, Ttl];
    cache_agrees_with_a_model [Cas, Ttl];
    cache_agrees_with_its_checker_under_eight_clients [Cas, Ttl];
}

/// Nobody's lease runs out.
const LEASE: Duration = Duration::from_secs(3_600);
const CLIENTS: usize = 8;

/// Small segments, so that few items fill several; and long enough for any loaded machine.
fn small() -> QueueOptions {
    Queue::options().segment_bytes(SEGMENT_BYTES as u32).timeout(Duration::from_secs(60))
}

// Queue and stack.

async fn queue_agrees_with_a_model(t: Bench) {
    let mut handles = Vec::new();
    for _ in 0..2 {
        handles.push(Line::Queue(small().open_or_create(&t.store, t.name("a")).await.expect("a queue")));
    }
    line_agrees_with_a_model(&handles, |waiting| (!waiting.is_empty()).then(|| waiting.remove(0))).await;
}

async fn stack_agrees_with_a_model(t: Bench) {
    let mut handles = Vec::new();
    for _ in 0..2 {
        let options = Stack::options().segment_bytes(256).timeout(Duration::from_secs(60));
        handles.push(Line::Stack(options.open_or_create(&t.store, t.name("a")).await.expect("a stack")));
    }
    line_agrees_with_a_model(&handles, Vec::pop).await;
}

/// Items are numbers that grow; `next` takes what has to come out of those that wait, which are in order. The first handle pushes alone: so the order
/// is promised.
async fn line_agrees_with_a_model(handles: &[Line], next: fn(&mut Vec<u64>) -> Option<u64>) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut waiting, mut claims, mut pushed) = (Vec::new(), Vec::<(u64, Claim)>::new(), 0);
    let mut attempts: HashMap<u64, u32> = HashMap::new();
    for step in 0..160 {
        let line = &handles[rng.usize(..handles.len())];
        match rng.u8(..20) {
            0..9 => {
                handles[0].push(pushed).await.expect("a push");
                waiting.push(pushed);
                pushed += 1;
            }
            9..12 => assert_eq!(line.pop().await.expect("a pop"), next(&mut waiting), "step {step}, seed {seed}"),
            12..15 => {
                let claimed = line.claim().await.expect("a claim");
                let expected = next(&mut waiting);
                assert_eq!(claimed.as_ref().map(|(value, _)| *value), expected, "step {step}, seed {seed}");
                let Some((value, claim)) = claimed else { continue };
                *attempts.entry(value).or_default() += 1;
                assert_eq!(claim.attempts(), attempts[&value], "step {step}, seed {seed}");
                claims.push((value, claim));
            }
            15..17 if !claims.is_empty() => {
                let (_, claim) = claims.swap_remove(rng.usize(..claims.len()));
                claim.ack().await.expect("an acknowledgement");
                assert_eq!(claim.ack().await.expect_err("done already").kind(), ErrorKind::Fenced, "seed {seed}");
            }
            17..19 if !claims.is_empty() => {
                let (value, claim) = claims.swap_remove(rng.usize(..claims.len()));
                claim.release().await.expect("a release");
                waiting.insert(waiting.partition_point(|other| *other < value), value);
            }
            _ => {
                let expected = (waiting.len() + claims.len()) as u64;
                assert_eq!(line.len().await.expect("a length"), expected, "step {step}, seed {seed}");
            }
        }
    }
    for (_, claim) in claims {
        claim.ack().await.expect("an acknowledgement");
    }
    while let Some(expected) = next(&mut waiting) {
        assert_eq!(handles[1].pop().await.expect("a pop"), Some(expected), "seed {seed}");
    }
    assert_eq!(handles[0].pop().await.expect("a pop"), None, "seed {seed}");
    assert_eq!(handles[1].len().await.expect("a length"), 0, "seed {seed}");
}

async fn queue_agrees_with_its_checker_under_eight_clients(t: Bench) {
    agrees_with_its_checker("queue", t).await;
}

async fn stack_agrees_with_its_checker_under_eight_clients(t: Bench) {
    agrees_with_its_checker("stack", t).await;
}

/// The job of the histories, by eight clients whom nothing happens. Where a call outlasts its timeout, as on a store that is opened anew all the time, its outcome
/// is unknown, and the checkers reckon with that; they excuse nothing else.
async fn agrees_with_its_checker(job: &str, t: Bench) {
    let job = JOBS.iter().find(|known| known.name == job).expect("a job of the structure");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let clients = vec![t.store.clone(); CLIENTS];
    let arena = Arena { clients, quiet: t.store.clone(), caused: Arc::new(Caused::default()), calm: calm() };
    let verdict = (job.run)(arena, Run { seed, ops: 320 }).await;
    assert_eq!(verdict.violations, [""; 0], "seed {seed}");
    // Of 320 calls; of 200 where claims are held on to. Some find nothing to do.
    assert!(verdict.operations > 50 && verdict.losses_told == 0, "{verdict:?}, seed {seed}");
    println!("{} operations", verdict.operations);
}

/// What the queue below may hold.
const BYTES_MAX: u64 = 4 * SEGMENT_BYTES;
const SEGMENT_BYTES: u64 = 256;
/// An item takes its 8 bytes, 1 for their number and, pushed alone, 14 more at the least.
const ITEM_BYTES: u64 = 8 + 1 + 14;
/// A handle may fill each of the segments by an eighth more than it is closed with, and by one item.
const ITEMS_MAX: u64 = BYTES_MAX / SEGMENT_BYTES * ((SEGMENT_BYTES + SEGMENT_BYTES / 8) / ITEM_BYTES + 1);

/// One pushes whenever there is room; seven take. Nothing is lost or comes twice, each taker gets items in the order of their pushes, and the queue never
/// holds more than its limit.
async fn queue_of_one_producer_is_in_order_and_bounded_under_eight_clients(t: Bench) {
    const ITEMS: u64 = 120;
    let options = || small().bytes_max(BYTES_MAX);
    let producer = options().open_or_create(&t.store, t.name("a")).await.expect("a queue");
    let (was_full, taking) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut takers = Vec::new();
    for _ in 1..CLIENTS {
        let queue = options().open(&t.store, t.name("a")).await.expect("the queue");
        takers.push(tokio::spawn(take(queue, was_full.clone(), taking.clone())));
    }
    for item in 0..ITEMS {
        while !has_room(producer.push(item.to_be_bytes()).await) {
            was_full.store(true, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Those under way may have taken one each.
        let there = (item + 1).saturating_sub(taking.load(Ordering::SeqCst));
        assert!(there <= ITEMS_MAX, "{there} items are there, of {ITEMS_MAX} that the limit allows");
    }
    assert!(was_full.load(Ordering::SeqCst), "it was never full");
    while !has_room(producer.push(LAST).await) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut all = Vec::new();
    for taker in takers {
        let taken = taker.await.expect("no panic");
        assert!(taken.is_sorted(), "out of the order of their pushes: {taken:?}");
        all.extend(taken);
    }
    all.sort_unstable();
    assert_eq!(all, (0..ITEMS).collect::<Vec<u64>>());
}

fn has_room(pushed: Result<()>) -> bool {
    if let Err(error) = &pushed {
        assert!(error.kind() == ErrorKind::Full && !error.is_unknown(), "{error}");
    }
    pushed.is_ok()
}

/// Nothing of the producer's comes behind it.
const LAST: [u8; 1] = [0];

/// Takes from when it was full, until the last item comes, which is passed on to the next taker. `taking` counts the items that were taken, or may be
/// right now.
async fn take(queue: Queue, was_full: Arc<AtomicBool>, taking: Arc<AtomicU64>) -> Vec<u64> {
    let mut taken = Vec::new();
    loop {
        if !was_full.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        taking.fetch_add(1, Ordering::SeqCst);
        match queue.pop().await.expect("a pop") {
            Some(item) if item == LAST[..] => {
                queue.push(LAST).await.expect("room for one");
                return taken;
            }
            Some(item) => taken.push(number(&item).expect("an item of the producer")),
            None => {
                taking.fetch_sub(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

fn number(bytes: &[u8]) -> Result<u64> {
    let number = bytes.try_into().map(u64::from_be_bytes);
    number.map_err(|_| Error::new(ErrorKind::Corrupt, "bytes that nobody wrote"))
}

// The cache.

/// Everything lives for an hour: what ends, is ended by a call.
fn patient() -> CacheOptions {
    Cache::options().ttl(LEASE).stale(LEASE).lease(LEASE).wait(Duration::from_secs(60)).timeout(Duration::from_secs(60))
}

/// Turns that are held, each with its key, and whether its value may still be put in the cache.
type Turns = Vec<(u64, Rebuild, bool)>;

async fn cache_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut handles = Vec::new();
    for _ in 0..2 {
        handles.push(patient().open_or_create(&t.store, t.name("a")).await.expect("a cache"));
    }
    let mut model: BTreeMap<u64, Bytes> = BTreeMap::new();
    let mut turns = Turns::new();
    for step in 0..160 {
        let (cache, key) = (&handles[rng.usize(..handles.len())], rng.u64(..4));
        let value = Bytes::from(format!("{step}"));
        let is_held = turns.iter().any(|(of, _, is_good)| *of == key && *is_good);
        match rng.u8(..10) {
            0 => {
                cache.invalidate(key.to_string()).await.expect("an invalidation");
                model.remove(&key);
                turns.iter_mut().filter(|(of, ..)| *of == key).for_each(|(.., is_good)| *is_good = false);
            }
            1..4 => {
                let found = cache.get(key.to_string()).await.expect("a get").map(|cached| cached.value);
                assert_eq!(found.as_ref(), model.get(&key), "step {step}, seed {seed}");
            }
            4..6 if !turns.is_empty() => end(&mut turns, &mut model, &mut rng, value).await,
            // A call would wait for the one that makes it.
            _ if is_held => {}
            6 | 7 => {
                let made = cache.get_or_rebuild(key.to_string(), async || Ok::<_, Error>(value.clone())).await;
                let (made, is_new) = (made.expect("a value"), !model.contains_key(&key));
                assert_eq!(made.value, *model.entry(key).or_insert(value), "step {step}, seed {seed}");
                let is_rebuilt = matches!(made.source, Source::Rebuilt(Ok(())));
                assert!(is_rebuilt == is_new && made.is_kept(), "step {step}, seed {seed}: {made:?}");
            }
            _ => match cache.lookup(key.to_string()).await.expect("a lookup") {
                Lookup::Found(cached) => assert_eq!(Some(&cached.value), model.get(&key), "step {step}, seed {seed}"),
                Lookup::Rebuild(turn) => {
                    assert!(turn.stale().is_none() && !model.contains_key(&key), "step {step}, seed {seed}");
                    turns.push((key, turn, true));
                }
            },
        }
    }
}

/// Ends one of the turns: with a value, which is cached unless the key was invalidated meanwhile, or without.
async fn end(turns: &mut Turns, model: &mut BTreeMap<u64, Bytes>, rng: &mut fastrand::Rng, value: Bytes) {
    let (key, turn, is_good) = turns.swap_remove(rng.usize(..turns.len()));
    if rng.u8(..4) == 0 {
        return turn.give_up().await;
    }
    match turn.finish(value.clone()).await.source {
        Source::Rebuilt(Ok(())) => {
            assert!(is_good, "what was invalidated was cached all the same: {key}");
            model.insert(key, value);
        }
        Source::Rebuilt(Err(error)) => assert!(!is_good && error.kind() == ErrorKind::Conflict, "{key}: {error}"),
        other => panic!("the end of a turn is a rebuild: {other:?}"),
    }
}

/// What eight clients of a cache write down.
#[derive(Default)]
struct Noted {
    history: Recorder<CacheOp, CacheTold>,
    /// By value: for which key it was made, and when that began.
    made: Mutex<HashMap<u64, (u64, u64)>>,
    turns: Mutex<Vec<Turn>>,
}

/// One makes a key's value at a time, what is served was made for that key, and no invalidation is undone.
async fn cache_agrees_with_its_checker_under_eight_clients(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let noted = Arc::new(Noted::default());
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let cache = patient().open_or_create(&t.store, t.name("a")).await.expect("a cache");
        clients.push(tokio::spawn(ask(cache, client, seed, noted.clone())));
    }
    for client in clients {
        client.await.expect("no panic");
    }
    let (calls, told) = noted.history.finish();
    assert_eq!((told.strange, told.unknown, told.lost + told.rolled_back), (vec![], 0, 0), "seed {seed}");
    let turns = std::mem::take(&mut *noted.turns.lock().expect("no panic"));
    assert_eq!(check(&calls, &noted.made.lock().expect("no panic")), [""; 0], "seed {seed}");
    assert_eq!(two_at_once(&calls, &turns), [""; 0], "seed {seed}");
    assert!(turns.len() > CLIENTS && turns.len() < calls.len() / 2, "{} of {} calls", turns.len(), calls.len());
}

async fn ask(cache: Cache, client: usize, seed: u64, noted: Arc<Noted>) {
    let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(client as u64));
    for call in 0..40u64 {
        let key = rng.u64(..3);
        if rng.u8(..5) == 0 {
            let invalidate = async { cache.invalidate(key.to_string()).await.map(|()| CacheTold::Done) };
            noted.history.call(client, CacheOp::Invalidate(key), invalidate).await;
            continue;
        }
        let asked = noted.history.tick();
        let told = match cache.lookup(key.to_string()).await {
            Ok(Lookup::Found(found)) => number(&found.value).map(CacheTold::Found),
            Ok(Lookup::Rebuild(turn)) => {
                let (value, begun) = ((client as u64) << 32 | call, noted.history.tick());
                noted.made.lock().expect("no panic").insert(value, (key, begun));
                tokio::time::sleep(Duration::from_millis(rng.u64(..5))).await;
                let finishing = noted.history.tick();
                noted.turns.lock().expect("no panic").push(Turn { key, asked, begun, finishing });
                if rng.u8(..8) == 0 {
                    turn.give_up().await;
                } else {
                    turn.finish(value.to_be_bytes().to_vec()).await;
                }
                Ok(CacheTold::Made(value, begun))
            }
            Err(error) => Err(error),
        };
        _ = noted.history.ended(client, CacheOp::Get(key), asked, told);
    }
}
