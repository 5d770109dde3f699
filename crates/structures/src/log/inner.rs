//! What all clones of a handle share: the parameters, the ledger, the keys of parts, and reading them.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Subject;
use larder_core::{
    Batch, Cas, ClockRef, Ctx, Error, ErrorKind, Key, Op, Profile, Reply, Result, StoreRef, Ttl, TtlSupport, Want,
};

use super::layout::{self, At, Params, PartFrame, PartValue};
use super::writer::EXPIRED_MIN;
use super::{Event, FUTURE_MAX, Gap, GapCause};
use crate::append::Tuning;
use crate::events;
use crate::ids::random_id;
use crate::ledger::{CLOCKS_APART_MAX, Ledger, Piece};
use crate::manifest::{Kind, Manifest, unexpected};
use crate::name::Name;

/// Fewer stale bytes of the ledger than this are let be.
const LEDGER_DIRTY_BYTES: usize = 1024;
/// What a store that counts whole seconds may cut off a life.
const TTL_COARSE_MS: u64 = 2_000;

pub(super) struct Inner {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) params: Params,
    pub(super) clock: ClockRef,
    pub(super) ledger: Ledger,
    /// This handle, among all that write.
    pub(super) writer: u64,
    pub(super) value_bytes_max: usize,
}

/// A part as it was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) at: At,
    /// `None`: there is none.
    pub(super) item: Option<(Bytes, Option<Cas>)>,
}

impl Inner {
    /// No round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store's items are too small, or live too short.
    pub(super) fn new(
        store: &StoreRef,
        name: &Name,
        manifest: Manifest,
        params: Params,
        clock: ClockRef,
    ) -> Result<Inner> {
        let tuning = Tuning { clock: clock.clone(), dirty_bytes: LEDGER_DIRTY_BYTES };
        let ledger = Ledger::new(store, name, &manifest, tuning)?;
        let profile = store.profile();
        check_list(name, params, ledger.pieces_max(), &profile)?;
        let life =
            Duration::from_millis(params.chunk_ms.saturating_add(params.retention_ms)) + FUTURE_MAX + CLOCKS_APART_MAX;
        if profile.ttl != TtlSupport::None && life > profile.ttl_max {
            let detail =
                format!("log {name} needs items to live {life:?}; here they live {:?} at the most", profile.ttl_max);
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        let longest = At { chunk: layout::CHUNK_MAX, part: u16::MAX };
        let key_bytes = manifest.data_key(name, longest)?.as_bytes().len();
        // Lengths are counted in 32 bits in a cursor.
        let value_bytes_max = profile.value_bytes_max(key_bytes).min(u32::MAX as usize);
        Ok(Inner {
            store: store.clone(),
            name: name.clone(),
            params,
            ledger,
            writer: random_id(),
            value_bytes_max,
            manifest,
            clock,
        })
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX)
    }

    /// The oldest time that an event may have.
    pub(super) fn oldest_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.params.retention_ms)
    }

    pub(super) fn event_bytes_max(&self) -> usize {
        // Of a store whose items have no limit, nobody needs the last bytes.
        self.value_bytes_max.saturating_sub(layout::OVERHEAD_BYTES)
    }

    pub(super) fn key(&self, at: At) -> Result<Key> {
        self.manifest.data_key(&self.name, at)
    }

    /// How long a part that is made now has to live: until nobody wants it any more, whose clock is not too far off.
    pub(super) fn ttl(&self, at: At, now_ms: u64) -> Ttl {
        let profile = self.store.profile();
        if profile.ttl == TtlSupport::None {
            return Ttl::Never;
        }
        let life_ms = self.end_ms(at.chunk).saturating_sub(now_ms).saturating_add(TTL_COARSE_MS);
        Ttl::After(Duration::from_millis(life_ms).min(profile.ttl_max))
    }

    /// When nobody wants a chunk any more, whose clock is not too far off.
    fn end_ms(&self, chunk: u64) -> u64 {
        let (_, last_ms) = self.params.bounds_ms(chunk);
        last_ms.saturating_add(self.params.retention_ms).saturating_add(CLOCKS_APART_MAX.as_millis() as u64)
    }

    /// The pieces that nobody wants any more, of those listed.
    pub(super) fn expired(&self, pieces: &[Piece], now_ms: u64) -> Vec<Piece> {
        pieces.iter().filter(|piece| self.is_over(piece.number, now_ms)).copied().collect()
    }

    /// True if nobody wants a chunk any more, whose clock is not too far off.
    pub(super) fn is_over(&self, chunk: u64, now_ms: u64) -> bool {
        self.end_ms(chunk) < now_ms
    }

    /// Reads parts, or their tokens, in as many batches as they fill. **Round trips: 1** a batch.
    pub(super) async fn read_parts(&self, ctx: Ctx, all: &[At], want: Want) -> Result<Vec<Read>> {
        let mut reads = Vec::with_capacity(all.len());
        for some in all.chunks(self.store.profile().batch_ops_max) {
            let ops: Result<Batch> = some.iter().map(|&at| Ok(Op::get(self.key(at)?, want))).collect();
            let replies = self.ledger.vigil().run(ctx, ops?).await;
            self.take_reads(some, replies, want, &mut reads)?;
        }
        Ok(reads)
    }

    /// Takes in the replies to gets of parts.
    pub(super) fn take_reads(
        &self,
        asked: &[At],
        replies: impl IntoIterator<Item = Result<Reply>>,
        want: Want,
        reads: &mut Vec<Read>,
    ) -> Result<()> {
        let mut replies = replies.into_iter();
        for &at in asked {
            let item = match replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))? {
                Reply::Item(item) => Some((item.value, item.cas)),
                Reply::Miss => None,
                other => return Err(unexpected(&Op::get(self.key(at)?, want), &other)),
            };
            reads.push(Read { at, item });
        }
        Ok(())
    }

    /// A part, its header checked.
    pub(super) fn parse<'v>(&self, at: At, bytes: &'v [u8]) -> Result<PartValue<'v>> {
        PartValue::parse(bytes, self.manifest.generation, at).map_err(|error| self.named(error, at))
    }

    pub(super) fn named(&self, error: Error, at: At) -> Error {
        let error = error.store(self.store.profile().store.clone());
        match self.key(at) {
            Ok(key) => error.key(&key),
            Err(_) => error,
        }
    }

    /// Adds the events of a frame that are in `times`, as slices of the part's value.
    pub(super) fn take_events(
        &self,
        value: &Bytes,
        part: &PartValue<'_>,
        (at, frame): (At, &PartFrame<'_>),
        times: &std::ops::RangeInclusive<u64>,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        let (first_ms, _) = self.params.bounds_ms(at.chunk);
        let take = |offset_ms: u64, event: &[u8]| {
            let time_ms = first_ms.saturating_add(offset_ms);
            if times.contains(&time_ms) {
                events.push(Event { time_ms, bytes: value.slice_ref(event) });
            }
        };
        part.events(frame, take).map_err(|error| self.named(error, at))
    }

    pub(super) fn gap(&self, at: At, cause: GapCause) -> Gap {
        let (first_ms, last_ms) = self.params.bounds_ms(at.chunk);
        Gap { first_ms, last_ms, part: at.part, cause }
    }

    /// True if an event of the chunk may still be wanted.
    pub(super) fn is_kept(&self, chunk: u64, now_ms: u64) -> bool {
        self.params.bounds_ms(chunk).1 >= self.oldest_ms(now_ms)
    }

    pub(super) fn lost(&self, why: &str) -> Error {
        let detail = format!("log {} {why}", self.name);
        let error = Error::new(ErrorKind::Lost, detail).store(self.store.profile().store.clone());
        events::loss(self.subject(), error)
    }

    /// The log, as an observer is told of it.
    pub(super) fn subject(&self) -> Subject<'_> {
        events::subject(Kind::EventLog, &self.name)
    }
}

/// Fails where a list cannot hold the chunks that are kept at a time: those of the retention, of the time that clocks may be apart and ahead, and those that are over and wait to be
/// removed. One part a chunk is counted: a log whose chunks outgrow their parts needs more, which nobody knows when it is opened.
///
/// # Errors
/// [`ErrorKind::Unsupported`], naming limit and value.
fn check_list(name: &Name, params: Params, most: usize, profile: &Profile) -> Result<()> {
    let apart_ms = 2 * u64::try_from(CLOCKS_APART_MAX.as_millis()).unwrap_or(u64::MAX);
    let kept_ms = params.retention_ms.saturating_add(apart_ms);
    let needed = kept_ms.div_ceil(params.chunk_ms).saturating_add(1 + EXPIRED_MIN as u64);
    if needed <= most as u64 {
        return Ok(());
    }
    let (chunk, retention) = (Duration::from_millis(params.chunk_ms), Duration::from_millis(params.retention_ms));
    let detail = format!(
        "log {name}, which keeps chunks of {chunk:?} for {retention:?}, needs a list of {needed} of them; the limit on this store, whose items have {} bytes, is {most}: make chunks longer, or the retention shorter",
        profile.value_bytes_max(profile.key_bytes_max)
    );
    Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()))
}

/// The parts of listed pieces, each once, in order.
pub(super) fn parts(pieces: &[Piece]) -> Vec<At> {
    let mut all: Vec<At> = pieces.iter().map(at).collect();
    all.dedup();
    all
}

pub(super) fn at(piece: &Piece) -> At {
    At { chunk: piece.number, part: piece.part }
}

pub(super) fn piece(at: At, incarnation: u64) -> Piece {
    Piece { number: at.chunk, part: at.part, incarnation }
}

/// Which frames of a chunk were met: writer and sequence.
pub(super) type Met = HashSet<(u64, u64), crate::hash::State>;

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("name", &self.name).field("params", &self.params).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::SystemClock;
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::EventLog;

    /// Damage that no check shows: it is told.
    #[test]
    fn a_log_of_parameters_that_nobody_writes_is_refused() {
        let (store, name): (StoreRef, _) = (Arc::new(MemoryStore::new()), Name::new("l").unwrap());
        let params = Params { chunk_ms: u64::MAX, retention_ms: u64::MAX };
        let manifest = Manifest::new(Kind::EventLog, layout::LAYOUT, Ledger::SHARDS, params.encode());
        let error = Inner::new(&store, &name, manifest, params, SystemClock::shared()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }

    /// Whose clock is as far behind as may be still wants the last event of a chunk when the retention ends.
    #[tokio::test]
    async fn a_chunk_is_over_behind_the_last_millisecond_that_anybody_wants_it() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let options = EventLog::options().chunk(Duration::from_secs(60)).retention(Duration::from_secs(600));
        let log = options.open_or_create(&store, "l").await.unwrap();
        // Of the times up to 599,999.
        let last_ms = 599_999 + 600_000 + CLOCKS_APART_MAX.as_millis() as u64;
        assert!(!log.inner.is_over(9, last_ms));
        assert!(log.inner.is_over(9, last_ms + 1));
        assert!(!log.inner.is_over(10, last_ms + 1));
    }
}
