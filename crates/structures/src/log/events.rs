//! What a log holds, as it is read: events, and the gaps between them.

use std::fmt;

use bytes::Bytes;
use larder_core::{Error, ErrorKind, Result};

/// An event, as it was put.
///
/// ```
/// # use larder_structures::log::Event;
/// let event = Event { time_ms: 1_700_000_000_000, bytes: "signed in".into() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Its time: milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// What was put: a slice of what the store answered, not a copy.
    pub bytes: Bytes,
}

/// A stretch of time of which events were lost: a part of a chunk that was made, and whose retention is not over, is gone.
///
/// ```
/// # use larder_structures::log::Gap;
/// fn tell(gap: &Gap) {
///     eprintln!("lost: {gap}"); // lost: events of 1700000000000 to 1700003599999 (part 0): gone from the store
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Gap {
    /// The first millisecond since the Unix epoch whose events may be missing.
    pub first_ms: u64,
    /// The last one.
    pub last_ms: u64,
    /// Which part of the chunk it was; the events of its other parts are there.
    pub part: u16,
    /// What was found instead.
    pub cause: GapCause,
}

/// What was found in the place of a part that is gone.
///
/// ```
/// # use larder_structures::log::GapCause;
/// assert_ne!(GapCause::Missing, GapCause::Replaced);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GapCause {
    /// Nothing: it was evicted, or its server was restarted.
    Missing,
    /// A later one, made since: what that holds is told, what was lost is not.
    Replaced,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match self.cause {
            GapCause::Missing => "gone from the store",
            GapCause::Replaced => "gone from the store, and begun anew since",
        };
        write!(f, "events of {} to {} (part {}): {found}", self.first_ms, self.last_ms, self.part)
    }
}

/// What was read of a log. The events are had through [`whole`](Events::whole), which fails if some were lost, or
/// [`with_gaps`](Events::with_gaps), which hands out the gaps beside them: so that nobody takes a part for all.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::EventLog;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let log = EventLog::open_or_create(&store, "audit").await?;
/// let (events, gaps) = log.fetch(..).await?.with_gaps();
/// for gap in &gaps {
///     eprintln!("lost: {gap}");
/// }
/// println!("{} events", events.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Events {
    pub(super) events: Vec<Event>,
    pub(super) gaps: Vec<Gap>,
}

impl Events {
    /// The events in the order of their time, those of one millisecond part by part, and as they arrived in each; if none are known to be lost.
    ///
    /// ```
    /// # use larder_structures::log::Events;
    /// assert!(Events::default().whole()?.is_empty());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], telling the gaps.
    pub fn whole(self) -> Result<Vec<Event>> {
        let Some(first) = self.gaps.first() else { return Ok(self.events) };
        let more = match self.gaps.len() {
            1 => String::new(),
            gaps => format!(", and {} more gaps", gaps - 1),
        };
        let detail = format!("{first}{more}; {} other events are there", self.events.len());
        Err(Error::new(ErrorKind::Lost, detail))
    }

    /// The events as [`whole`](Events::whole) has them, and the gaps in the order of their time.
    ///
    /// ```
    /// # use larder_structures::log::Events;
    /// let (events, gaps) = Events::default().with_gaps();
    /// assert!(events.is_empty() && gaps.is_empty());
    /// ```
    pub fn with_gaps(self) -> (Vec<Event>, Vec<Gap>) {
        (self.events, self.gaps)
    }

    /// True where there is nothing to tell: neither an event nor a gap.
    ///
    /// ```
    /// # use larder_structures::log::Events;
    /// assert!(Events::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.gaps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_says_of_what_time_and_part_it_is_and_what_was_found() {
        let gap = |cause| Gap { first_ms: 60_000, last_ms: 119_999, part: 3, cause }.to_string();
        assert_eq!(gap(GapCause::Missing), "events of 60000 to 119999 (part 3): gone from the store");
        assert!(gap(GapCause::Replaced).ends_with("(part 3): gone from the store, and begun anew since"));
    }

    #[test]
    fn who_wants_the_whole_is_told_the_first_gap_and_how_many_more() {
        let gap = Gap { first_ms: 1, last_ms: 2, part: 0, cause: GapCause::Missing };
        let events = vec![Event { time_ms: 9, bytes: Bytes::new() }];
        for (gaps, more) in [(1, ""), (3, ", and 2 more gaps")] {
            let error = Events { events: events.clone(), gaps: vec![gap; gaps] }.whole().unwrap_err();
            let says = format!("events of 1 to 2 (part 0): gone from the store{more}; 1 other events are there");
            assert!(error.kind() == ErrorKind::Lost && error.to_string().contains(&says), "{error}");
        }
    }
}
