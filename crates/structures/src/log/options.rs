//! How a log is opened and made.

use std::time::Duration;

use larder_core::{ClockRef, Ctx, Error, ErrorKind, Result, StoreRef, SystemClock};

use super::EventLog;
use super::inner::Inner;
use super::layout::{LAYOUT, Params};
use crate::ledger::Ledger;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::timeout;

/// The shortest chunk.
pub const CHUNK_MIN: Duration = Duration::from_secs(1);
/// The longest chunk.
pub const CHUNK_MAX: Duration = Duration::from_secs(31 * 24 * 60 * 60);
/// The longest retention.
pub const RETENTION_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
/// The most chunks that a retention may span: each look at a log's list of chunks reads them all.
pub const CHUNKS_MAX: u64 = 4096;
/// The farthest into the future that a log may be told to take events.
pub const FUTURE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How many chunks a retention has where only one of the two was given.
const CHUNKS_DEFAULT: u64 = 24;
const CHUNK_DEFAULT: Duration = Duration::from_secs(60 * 60);

/// How a log is opened and made.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::EventLog;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let hour = Duration::from_secs(3_600);
/// let log = EventLog::options().chunk(hour / 4).retention(hour * 48).open_or_create(&store, "audit").await?;
/// assert_eq!(log.retention(), hour * 48);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct EventLogOptions {
    chunk: Option<Duration>,
    retention: Option<Duration>,
    future: Duration,
    timeout: Duration,
    clock: Option<ClockRef>,
}

impl Default for EventLogOptions {
    fn default() -> EventLogOptions {
        EventLogOptions {
            chunk: None,
            retention: None,
            future: Duration::from_secs(5 * 60),
            timeout: Duration::from_secs(5),
            clock: None,
        }
    }
}

impl EventLogOptions {
    /// How much time one chunk of a log spans that is made, [`CHUNK_MIN`] to [`CHUNK_MAX`]; a 24th of the retention if not given. It
    /// is fixed then: opening with another is a [`LayoutMismatch`](ErrorKind::LayoutMismatch). Events leave the store a chunk at a time.
    ///
    /// ```
    /// # use larder_structures::EventLog;
    /// let options = EventLog::options().chunk(std::time::Duration::from_secs(60));
    /// ```
    pub fn chunk(mut self, chunk: Duration) -> EventLogOptions {
        self.chunk = Some(chunk);
        self
    }

    /// How long events are kept, from their own time on: one chunk to [`CHUNKS_MAX`] of them, and [`RETENTION_MAX`] at the most; 24 chunks
    /// if not given, of an hour each if that was not given either. It is fixed as the chunk is.
    ///
    /// ```
    /// # use larder_structures::EventLog;
    /// let options = EventLog::options().retention(std::time::Duration::from_secs(7 * 86_400));
    /// ```
    pub fn retention(mut self, retention: Duration) -> EventLogOptions {
        self.retention = Some(retention);
        self
    }

    /// How far ahead of this handle's clock the time of an event may be; 5 minutes if not given, [`FUTURE_MAX`] at the most.
    ///
    /// ```
    /// # use larder_structures::EventLog;
    /// let options = EventLog::options().future(std::time::Duration::from_secs(1));
    /// ```
    pub fn future(mut self, future: Duration) -> EventLogOptions {
        self.future = future.min(FUTURE_MAX);
        self
    }

    /// How long a call may take, with all it tries again; 5 s if not given, a day at the most.
    ///
    /// ```
    /// # use larder_structures::EventLog;
    /// let options = EventLog::options().timeout(std::time::Duration::from_millis(200));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> EventLogOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// Where the time comes from, of events that are given none, and what is too old; the system's clock if not given.
    ///
    /// ```
    /// # use larder_structures::EventLog;
    /// let options = EventLog::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(mut self, clock: ClockRef) -> EventLogOptions {
        self.clock = Some(clock);
        self
    }

    /// Opens a log that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(EventLog::options().open(&store, "audit").await.is_err());
    /// EventLog::open_or_create(&store, "audit").await?;
    /// EventLog::options().open(&store, "audit").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes, a timeout of 0, a chunk or retention out of range,
    /// [`Absent`](ErrorKind::Absent) if there is none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure, another chunk or another
    /// retention, [`Unsupported`](ErrorKind::Unsupported) where the store's items are too small, to list the chunks of the retention too.
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<EventLog> {
        self.run(store, &Name::new(name)?, false).await
    }

    /// Opens a log, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let log = EventLog::options().open_or_create(&store, "audit").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](EventLogOptions::open), but for `Absent`.
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<EventLog> {
        self.run(store, &Name::new(name)?, true).await
    }

    async fn run(self, store: &StoreRef, name: &Name, may_create: bool) -> Result<EventLog> {
        timeout::check(self.timeout)?;
        let wanted = self.params()?;
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        let ctx = Ctx::within(self.timeout);
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => {
                let new = Manifest::new(Kind::EventLog, LAYOUT, Ledger::SHARDS, wanted.encode());
                // Refuses a store that cannot carry it, before anything is written.
                Inner::new(store, name, new.clone(), wanted, clock.clone())?;
                manifest::create(store, ctx, name, new, |new| Ok(vec![Ledger::create_ops(name, new)?])).await?
            }
            None => return Err(manifest::absent(store, name)),
        };
        let params = self.check(name, &manifest)?;
        let inner = Inner::new(store, name, manifest, params, clock)?;
        Ok(EventLog::new(inner, self.timeout, self.future))
    }

    /// The parameters of a log that is made.
    fn params(&self) -> Result<Params> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if let Some(retention) = self.retention
            && !(CHUNK_MIN..=RETENTION_MAX).contains(&retention)
        {
            return bad(format!("a retention is {CHUNK_MIN:?} to {RETENTION_MAX:?}, not {retention:?}"));
        }
        if let Some(chunk) = self.chunk
            && !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk)
        {
            return bad(format!("a chunk is {CHUNK_MIN:?} to {CHUNK_MAX:?}, not {chunk:?}"));
        }
        let of_retention = |retention: Duration| (retention / CHUNKS_DEFAULT as u32).clamp(CHUNK_MIN, CHUNK_MAX);
        let chunk = self.chunk.or(self.retention.map(of_retention)).unwrap_or(CHUNK_DEFAULT);
        let retention = self.retention.unwrap_or(chunk * CHUNKS_DEFAULT as u32);
        if retention < chunk {
            return bad(format!("a retention of {retention:?} is shorter than a chunk, of {chunk:?}"));
        }
        let (chunk_ms, retention_ms) = (as_ms(chunk), as_ms(retention));
        let chunks = retention_ms.div_ceil(chunk_ms);
        if chunks > CHUNKS_MAX {
            let detail = format!(
                "a retention of {retention:?} has {chunks} chunks of {chunk:?}; the limit is {CHUNKS_MAX}: make chunks longer"
            );
            return bad(detail);
        }
        Ok(Params { chunk_ms, retention_ms })
    }

    /// Fails unless the manifest is of a log that this release reads, and as the options want it.
    fn check(&self, name: &Name, manifest: &Manifest) -> Result<Params> {
        manifest.expect(name, Kind::EventLog, LAYOUT)?;
        let mismatch = |detail: String| Err(Error::new(ErrorKind::LayoutMismatch, detail));
        let params = Params::decode(&manifest.params);
        let Some(params) = params.filter(|_| manifest.copies == 1 && manifest.shards == Ledger::SHARDS) else {
            return mismatch(format!("{name} has parameters that this release does not know"));
        };
        for (what, wanted, found_ms) in
            [("chunks", self.chunk, params.chunk_ms), ("a retention", self.retention, params.retention_ms)]
        {
            if let Some(wanted) = wanted.filter(|&wanted| as_ms(wanted) != found_ms) {
                let found = Duration::from_millis(found_ms);
                return mismatch(format!("{name} was made with {what} of {found:?}, not {wanted:?}; that is fixed"));
            }
        }
        Ok(params)
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_retentions_and_the_future_are_limited_as_documented() {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        assert_eq!((CHUNK_MAX, RETENTION_MAX, FUTURE_MAX), (days(31), days(3_660), days(1)));
        let chunk_of = |options: EventLogOptions| options.params().unwrap().chunk_ms;
        assert_eq!(chunk_of(EventLogOptions::default()), 3_600_000, "an hour, where nothing is said");
    }

    #[test]
    fn a_retention_is_as_long_as_a_chunk_at_the_least() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let of = |retention| EventLogOptions::default().chunk(hours(2)).retention(retention).params();
        let params = of(hours(2)).unwrap();
        assert_eq!((params.chunk_ms, params.retention_ms), (7_200_000, 7_200_000));
        let error = of(hours(2) - Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains("is shorter than a chunk"), "{error}");
    }

    #[test]
    fn a_log_of_copies_or_of_more_than_one_list_is_not_read() {
        let (name, options) = (Name::new("l").unwrap(), EventLogOptions::default());
        let params = options.params().unwrap();
        let made = Manifest::new(Kind::EventLog, LAYOUT, Ledger::SHARDS, params.encode());
        assert_eq!(options.check(&name, &made).unwrap(), params);
        for unknown in [Manifest { copies: 2, ..made.clone() }, Manifest { shards: 2, ..made.clone() }] {
            let error = options.check(&name, &unknown).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
            assert!(error.to_string().contains("parameters that this release does not know"), "{error}");
        }
    }
}
