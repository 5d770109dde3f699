//! Two structures in the process that lose things: a queue whose releases do, and a log that hides a gap behind another.

use std::collections::{BTreeMap, VecDeque};

use larder_core::{Effect, Error, ErrorKind};
use larder_testkit::history::check::log::{self, LogOp, LogTold, Missed};
use larder_testkit::history::check::queue::{self, Order, QueueOp, QueueTold};
use larder_testkit::history::recorder::Recorder;

use crate::virtual_time;

const LAST: usize = 9;
const ITEMS: u64 = 100;

/// A queue of which every fourth reply to a release is lost: such a release has given the item back, or, where it is planted, dropped it.
pub(super) fn lost_release(seed: u64, is_planted: bool) -> Vec<String> {
    virtual_time::run(seed, async {
        let mut rng = fastrand::Rng::with_seed(seed);
        let history = Recorder::<QueueOp, QueueTold>::default();
        let mut items = VecDeque::new();
        for value in 0..ITEMS {
            items.push_back(value);
            history.call(0, QueueOp::Push(value), async { Ok(None) }).await;
            let claimed = items.pop_front();
            history.call(1, QueueOp::Claim, async { Ok(claimed) }).await;
            let Some(claimed) = claimed else { continue };
            if rng.bool() {
                history.call(1, QueueOp::Ack(claimed), async { Ok(None) }).await;
                continue;
            }
            let is_answered = rng.u8(..4) > 0;
            if is_answered || !is_planted {
                items.push_front(claimed);
            }
            let release = async { if is_answered { Ok(None) } else { Err(no_reply()) } };
            history.call(1, QueueOp::Release(claimed), release).await;
        }
        loop {
            let popped = items.pop_front();
            history.call(LAST, QueueOp::Pop, async { Ok(popped) }).await;
            if popped.is_none() {
                break;
            }
        }
        queue::check(&history.finish().0, Order::Queue, &queue::Allowed::default(), LAST).bad
    })
}

fn no_reply() -> Error {
    Error::new(ErrorKind::Timeout, "no reply came").effect(Effect::Unknown)
}

/// Of one chunk.
const CHUNK_MS: u64 = 10;
const CHUNKS: u64 = 5;

/// A log of a value a chunk, of which some go: a fetch tells each as a gap, or, where it is planted, the first of them.
pub(super) fn second_gap(seed: u64, is_planted: bool) -> Vec<String> {
    virtual_time::run(seed, async {
        let mut rng = fastrand::Rng::with_seed(seed);
        let history = Recorder::<LogOp, LogTold>::default();
        let mut chunks: BTreeMap<u64, Option<Vec<u64>>> = BTreeMap::new();
        for event in 0..ITEMS {
            let time = rng.u64(..CHUNKS * CHUNK_MS);
            if let Some(events) = chunks.entry(time / CHUNK_MS).or_insert_with(|| Some(Vec::new())) {
                events.push(event);
                history.call(0, LogOp::PutAt(event, time), async { Ok(LogTold::default()) }).await;
            }
            if rng.u64(..ITEMS / CHUNKS) == 0 {
                chunks.insert(time / CHUNK_MS, None);
            }
            history.call(1, LogOp::Fetch, async { Ok(fetch(&chunks, is_planted)) }).await;
        }
        log::check(&history.finish().0, log::Allowed::default()).bad
    })
}

fn fetch(chunks: &BTreeMap<u64, Option<Vec<u64>>>, hides: bool) -> LogTold {
    let gone = chunks.iter().filter(|(_, events)| events.is_none()).map(|(chunk, _)| chunk * CHUNK_MS);
    let gap = |first_ms| Missed { first_ms, last_ms: first_ms + CHUNK_MS - 1, part: 0 };
    let gaps = gone.map(gap).take(if hides { 1 } else { usize::MAX }).collect();
    LogTold { events: chunks.values().flatten().flatten().copied().collect(), gaps, is_behind: false }
}
