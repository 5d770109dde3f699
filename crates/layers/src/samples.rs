//! One event of each kind, for the tests of observers.

use std::time::Duration;

use larder_core::observe::{Batch, Event, Op, Outcome, Phase, Subject, WaitEnd};
use larder_core::{Effect, ErrorKind};

pub(crate) fn each(mut tell: impl FnMut(&Event<'_>)) {
    let subject = Subject { kind: "set", name: b"tags" };
    let lock = Subject { kind: "lock", name: b"nightly" };
    let unknown = Outcome::Failed { kind: ErrorKind::Timeout, effect: Effect::Unknown };
    let ops = [Op { name: "get", outcome: Outcome::Miss }, Op { name: "append", outcome: unknown }];
    let batch = Batch { store: "cache", ops: &ops, latency: Duration::from_millis(250), round_trips: 1 };
    for event in [
        Event::Batch(batch),
        Event::Conflict { subject },
        Event::Retry { subject, cause: ErrorKind::Unavailable },
        Event::Compaction { subject, shard: 3, phase: Phase::Met },
        Event::Loss { subject, kind: ErrorKind::RolledBack },
        Event::PutBack { subject },
        Event::FallBack { subject: Subject { kind: "store", name: b"cache:11211" }, ops: 7 },
        Event::Wait { subject: lock, time: Duration::from_millis(1_500), end: WaitEnd::Busy },
        Event::Hold { subject: lock, time: Duration::from_millis(2_500), end: "freed" },
        Event::Takeover { subject: lock, is_dead: true },
    ] {
        tell(&event);
    }
}
