//! For the tests of logs: a clock that stands, and short ways to say things.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Batch, Cas, Clock, Ctx, Key, ManualClock, Profile, Reply, Run, Store, StoreExt, StoreRef};
use larder_structures::log::{EventLogOptions, Events, Gap};
use larder_structures::{EventLog, Name, registry};

/// When the tests begin: in the middle of a chunk of a minute.
pub(crate) const START_MS: u64 = 1_700_000_000_000;
pub(crate) const MINUTE_MS: u64 = 60_000;

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_millis(START_MS)))
}

pub(crate) fn advance(clock: &ManualClock, ms: u64) {
    clock.advance(Duration::from_millis(ms));
}

pub(crate) fn now_ms(clock: &ManualClock) -> u64 {
    u64::try_from(clock.wall().as_millis()).unwrap()
}

/// Ten chunks of a minute.
pub(crate) fn options(clock: &Arc<ManualClock>) -> EventLogOptions {
    EventLog::options()
        .chunk(Duration::from_millis(MINUTE_MS))
        .retention(Duration::from_millis(10 * MINUTE_MS))
        .clock(clock.clone())
}

/// The key of a part, by the documented scheme.
pub(crate) async fn part_key(store: &StoreRef, name: &str, time_ms: u64, part: u16) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    let chunk = time_ms / MINUTE_MS;
    Key::new(format!("L.{name}.e.{:016x}.{chunk:x}-{part:x}", manifest.generation)).unwrap()
}

/// The key of the list of chunks.
pub(crate) async fn ledger_key(store: &StoreRef, name: &str) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.{name}.e.{:016x}.0", manifest.generation)).unwrap()
}

/// Loses a part, as an eviction does.
pub(crate) async fn evict(store: &StoreRef, name: &str, time_ms: u64, part: u16) {
    assert!(store.delete(part_key(store, name, time_ms, part).await).await.unwrap(), "part {part} was not there");
}

/// The events as text, in order; there must be no gap.
pub(crate) fn texts(events: Events) -> Vec<String> {
    events.whole().unwrap().into_iter().map(|event| String::from_utf8(event.bytes.to_vec()).unwrap()).collect()
}

/// The events as text, and the gaps.
pub(crate) fn with_gaps(events: Events) -> (Vec<String>, Vec<Gap>) {
    let (events, gaps) = events.with_gaps();
    (texts_of(&events), gaps)
}

pub(crate) fn texts_of(events: &[larder_structures::log::Event]) -> Vec<String> {
    events.iter().map(|event| String::from_utf8(event.bytes.to_vec()).unwrap()).collect()
}

/// A store behind two connections that take turns, each with tokens of its own.
#[derive(Debug)]
pub(crate) struct ByTurns(pub StoreRef, pub AtomicU64);

impl Store for ByTurns {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let connection = self.1.fetch_add(1, Ordering::SeqCst) % 2;
        Run::pending(async move {
            let mut replies = self.0.run(ctx, batch).await;
            for reply in &mut replies {
                if let Ok(Reply::Item(item)) = reply {
                    item.cas = item.cas.map(|cas| Cas { session: cas.session ^ connection, ..cas });
                }
            }
            replies
        })
    }
}
