//! Putting, as callers see it: what is refused, what goes into one write, what is said of it.

use std::collections::BTreeMap;

use larder_core::text::Shown;
use larder_core::{Effect, Error, ErrorKind, Result, ambient};

use super::EventLog;
use super::layout::{self, CHUNK_MAX};
use super::options::as_ms;
use super::writer::{PART_BYTES, Put};
use crate::runtime;

/// How many chunks the events of one write may fall into.
const CHUNKS_A_WRITE: usize = 64;
/// How many bytes of events one event may be shown by, in an error.
const SHOWN_BYTES: usize = 64;

/// Events that go out in one write.
#[derive(Default)]
struct Load {
    chunks: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    events: usize,
}

impl EventLog {
    /// Puts an event, of now. **Round trips: 1**, 2 for the first of a part; see the [module](super).
    ///
    /// Once it has returned, every fetch of the event's time and every tail tells it, until its retention is over, or tells a gap.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// log.put(b"any bytes \xff").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`put_at`](EventLog::put_at).
    pub async fn put(&self, event: impl AsRef<[u8]>) -> Result<()> {
        self.put_at(self.now_ms(), event).await
    }

    /// Puts an event of a given time, in milliseconds since the Unix epoch. **Round trips: 1**, as [`put`](EventLog::put).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// log.put_at(log.now_ms() - 5_000, "five seconds ago").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), and nothing is put, for a time that is older than the retention or too far in the future (see
    /// [`future`](super::EventLogOptions::future)), and for an event of more than [`event_bytes_max`](EventLog::event_bytes_max) bytes.
    /// [`Lost`](ErrorKind::Lost) where the list of chunks is gone, and the part that was made for the event is removed, in 2 round trips; [`Full`](ErrorKind::Full) where it has no room, or the store;
    /// [`RolledBack`](ErrorKind::RolledBack) where the list lacks what this handle saw in it, in 1 round trip more: open the log anew; those of the store.
    /// With [`Effect::Unknown`] the event may be in the log, or may come yet: once at the most.
    pub async fn put_at(&self, time_ms: u64, event: impl AsRef<[u8]>) -> Result<()> {
        self.put_all([(time_ms, event)]).await
    }

    /// Puts events of given times. What has room in one write (64 KiB, 64 chunks) goes out in one. **Round trips: 1** a write, as [`put`](EventLog::put).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// let now_ms = log.now_ms();
    /// log.put_all((0..1_000).map(|n| (now_ms - n, format!("event {n}")))).await?;
    /// assert_eq!(log.fetch(..).await?.whole()?.len(), 1_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`put_at`](EventLog::put_at). If one write, or one chunk of it, fails after others were put, the message says how many events were,
    /// and the effect is unknown.
    pub async fn put_all(&self, events: impl IntoIterator<Item = (u64, impl AsRef<[u8]>)>) -> Result<()> {
        let loads = self.loads(events)?;
        if loads.is_empty() {
            return Ok(());
        }
        self.inner.ledger.vigil().check()?;
        runtime::current("a put has a timeout")?;
        let all: usize = loads.iter().map(|load| load.events).sum();
        let mut done = 0;
        for load in loads {
            let events = load.events;
            if let Err(error) = self.send(load).await {
                return Err(match done {
                    0 => error,
                    _ => {
                        let detail = format!("{done} of {all} events were put, then: {error}");
                        Error::new(error.kind(), detail).effect(Effect::Unknown).source(error)
                    }
                });
            }
            done += events;
        }
        self.inner.ledger.vigil().check()
    }

    async fn send(&self, load: Load) -> Result<()> {
        let chunks: Vec<(u64, Vec<u8>)> = load.chunks.into_iter().collect();
        let mine: Vec<u64> = chunks.iter().map(|(chunk, _)| *chunk).collect();
        let deadline = ambient::now() + self.timeout;
        let outcomes = self.combiner.submit_within(Put { chunks, deadline }, self.timeout).await?;
        let mine = || outcomes.iter().filter(|(chunk, _)| mine.binary_search(chunk).is_ok());
        let failed: Vec<&Error> = mine().filter_map(|(_, outcome)| outcome.as_ref().err()).collect();
        let Some(&first) = failed.first() else { return Ok(()) };
        let is_unknown = failed.len() < mine().count() || failed.iter().any(|error| error.is_unknown());
        Err(if is_unknown { first.clone().effect(Effect::Unknown) } else { first.clone() })
    }

    /// The events, checked, in writes.
    fn loads(&self, events: impl IntoIterator<Item = (u64, impl AsRef<[u8]>)>) -> Result<Vec<Load>> {
        let now_ms = self.now_ms();
        let bytes_max = PART_BYTES.min(self.event_bytes_max());
        let mut loads: Vec<Load> = Vec::new();
        for (time_ms, event) in events {
            let event = event.as_ref();
            self.check(now_ms, time_ms, event)?;
            let chunk = self.inner.params.chunk_of(time_ms);
            let has_room = |load: &Load| {
                let is_known = load.chunks.contains_key(&chunk) || load.chunks.len() < CHUNKS_A_WRITE;
                is_known && load.bytes + event.len() + layout::EVENT_BYTES_MAX <= bytes_max
            };
            if !loads.last().is_some_and(has_room) {
                loads.push(Load::default());
            }
            if let Some(load) = loads.last_mut() {
                let elements = load.chunks.entry(chunk).or_default();
                let before = elements.len();
                layout::put_event(elements, time_ms - self.inner.params.bounds_ms(chunk).0, event);
                load.bytes += elements.len() - before;
                load.events += 1;
            }
        }
        Ok(loads)
    }

    fn check(&self, now_ms: u64, time_ms: u64, event: &[u8]) -> Result<()> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        let latest_ms = now_ms.saturating_add(as_ms(self.future));
        let oldest_ms = self.inner.oldest_ms(now_ms);
        if time_ms > latest_ms {
            return bad(format!(
                "an event is of {time_ms} ms, {} ms ahead of this clock; the limit is {} ms",
                time_ms - now_ms,
                as_ms(self.future)
            ));
        }
        if time_ms < oldest_ms {
            return bad(format!(
                "an event is of {time_ms} ms, {} ms ago; the log keeps events for {} ms",
                now_ms - time_ms,
                self.inner.params.retention_ms
            ));
        }
        if self.inner.params.chunk_of(time_ms) > CHUNK_MAX {
            return bad(format!("an event is of {time_ms} ms; a log of this chunk takes no times that far from 1970"));
        }
        if event.len() > self.event_bytes_max() {
            let shown = Shown(&event[..event.len().min(SHOWN_BYTES)]);
            let max = self.event_bytes_max();
            return bad(format!("an event has {} bytes; the limit on this store is {max}: {shown}…", event.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use larder_core::StoreRef;
    use larder_store_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn the_last_chunk_that_has_room_in_a_key_takes_events_and_none_behind_it() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let options = EventLog::options().chunk(Duration::from_secs(60)).retention(Duration::from_secs(600));
        let log = options.open_or_create(&store, "far").await.unwrap();
        let last_ms = log.inner.params.bounds_ms(CHUNK_MAX).1;
        for time_ms in [last_ms, log.inner.params.bounds_ms(CHUNK_MAX).0] {
            log.check(last_ms, time_ms, b"x").unwrap();
        }
        for time_ms in [last_ms + 1, last_ms + 60_001] {
            let error = log.check(time_ms, time_ms, b"x").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput);
            assert!(error.to_string().contains("takes no times that far from 1970"), "{error}");
        }
    }
}
