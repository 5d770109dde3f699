//! What an entry says to somebody who asks for it, and the records that are written. Time is an argument.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Profile, Remaining, Ttl, TtlSupport};

use super::layout::{Content, Record};

/// How far a clock that ticks once a second may be ahead.
const TICK_MS: u64 = 1000;

/// How old a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// As the clock has it, which never makes a record look younger than it is by more than a tick.
    pub(super) ms: u64,
    /// How much less it may be in truth.
    slack_ms: u64,
}

/// What somebody who asks for a key is told by its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The value, fresh.
    Fresh(Bytes),
    /// The lease is the asker's own, the one of that draw.
    Mine { draw: u64, kept: Option<Content> },
    /// Somebody rebuilds it; meanwhile there is the stale value.
    Stale(Bytes),
    /// Somebody rebuilds it, and there is nothing to serve.
    Busy,
    /// Nobody rebuilds it: whoever writes the lease first does. The value may be served until then.
    Takeable(Option<Content>),
}

/// What remains of a record's life where the store's clock tells.
pub(super) fn told(remaining: Remaining, profile: &Profile) -> Option<Duration> {
    match remaining {
        Remaining::For(left) if profile.remaining_ttl => Some(left),
        _ => None,
    }
}

/// A record's age by the store's clock, or where the store tells no remaining life by this process's wall clock `wall`.
pub(super) fn age(record: &Record, remaining: Remaining, profile: &Profile, wall: Duration) -> Age {
    match told(remaining, profile) {
        Some(left) => {
            let slack_ms = if profile.ttl == TtlSupport::Millis { 0 } else { TICK_MS };
            Age { ms: record.life_ms.saturating_sub(as_ms(left)), slack_ms }
        }
        None => Age { ms: as_ms(wall).saturating_sub(record.written_ms), slack_ms: 0 },
    }
}

/// What an entry says to somebody who asks for `key`, and sent the leases whose draw `is_mine`.
pub(super) fn judge(record: Record, key: &[u8], is_mine: impl Fn(u64) -> bool, age: Age) -> Verdict {
    // Another key of the same index: its value is none of ours, and there is room for one of the two.
    if record.key != key {
        return Verdict::Takeable(None);
    }
    let is_fresh = age.ms < record.fresh_ms;
    let is_leased = age.ms.saturating_sub(age.slack_ms) < record.lease_ms;
    let served = record.content.and_then(|Content { value, served_ms }| {
        let left_ms = served_ms.saturating_sub(age.ms);
        (left_ms > 0).then_some(Content { value, served_ms: left_ms })
    });
    match served {
        kept if is_leased && is_mine(record.draw) => Verdict::Mine { draw: record.draw, kept },
        Some(content) if is_fresh => Verdict::Fresh(content.value),
        Some(content) if is_leased => Verdict::Stale(content.value),
        None if is_leased => Verdict::Busy,
        served => Verdict::Takeable(served),
    }
}

/// The records of one rebuild.
#[derive(Clone, Debug)]
pub(super) struct Scribe<'a> {
    pub(super) key: &'a Bytes,
    pub(super) draw: u64,
    pub(super) wall: Duration,
    pub(super) ttl: TtlSupport,
}

impl Scribe<'_> {
    /// The lease. What was there is kept beside it, to be served meanwhile.
    pub(super) fn lease(&self, lease: Duration, kept: Option<Content>) -> Record {
        let lease_ms = as_ms(lease);
        let served_ms = kept.as_ref().map_or(0, |content| content.served_ms);
        let slack_ms = if self.ttl == TtlSupport::Millis { 0 } else { TICK_MS };
        self.record(served_ms.max(lease_ms.saturating_add(slack_ms)), 0, lease_ms, kept)
    }

    /// A new value.
    pub(super) fn value(&self, value: Bytes, ttl: Duration, stale: Duration) -> Record {
        let served_ms = as_ms(ttl.saturating_add(stale));
        self.record(served_ms, as_ms(ttl), 0, Some(Content { value, served_ms }))
    }

    /// What remains of a lease that is given up: what was there, and nobody who rebuilds it.
    pub(super) fn free(&self, kept: Option<Content>) -> Record {
        let served_ms = kept.as_ref().map_or(0, |content| content.served_ms);
        self.record(served_ms.max(1), 0, 0, kept)
    }

    fn record(&self, life_ms: u64, fresh_ms: u64, lease_ms: u64, content: Option<Content>) -> Record {
        // The age is what is gone of the life: that must be what the store counts.
        let life_ms = match self.ttl {
            TtlSupport::Millis => life_ms,
            _ => life_ms.checked_next_multiple_of(TICK_MS).unwrap_or(u64::MAX),
        };
        let written_ms = as_ms(self.wall);
        Record { draw: self.draw, written_ms, life_ms, fresh_ms, lease_ms, key: self.key.clone(), content }
    }
}

impl Record {
    /// The life to write it with.
    pub(super) fn ttl(&self) -> Ttl {
        Ttl::After(Duration::from_millis(self.life_ms))
    }
}

impl Content {
    /// The same as it is `now`, if that is how it was `then`; `None` once it may not be served any more.
    pub(super) fn after(self, then: Duration, now: Duration) -> Option<Content> {
        // Whole ms of the clock, as a store's: of many short whiles in a row none adds up to nothing.
        let served_ms = self.served_ms.saturating_sub(as_ms(now).saturating_sub(as_ms(then)));
        (served_ms > 0).then_some(Content { served_ms, ..self })
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Bytes = Bytes::from_static(b"k");

    fn scribe(ttl: TtlSupport) -> Scribe<'static> {
        static KEY: Bytes = Bytes::from_static(b"k");
        Scribe { key: &KEY, draw: 7, wall: Duration::from_secs(100), ttl }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn telling(ttl: TtlSupport) -> Profile {
        Profile { ttl, ..Profile::unlimited("test") }
    }

    /// What is said of a record of which `gone` of its life is over.
    fn said(record: &Record, ttl: TtlSupport, gone: Duration, draw: u64) -> Verdict {
        let left = Duration::from_millis(record.life_ms) - gone;
        // The wall clock is off by a day: it must not matter.
        let age = age(record, Remaining::For(left), &telling(ttl), secs(100 + 86_400));
        judge(record.clone(), &KEY, |it| it == draw, age)
    }

    #[test]
    fn a_value_is_fresh_then_may_be_rebuilt_then_is_gone() {
        let value = Bytes::from_static(b"v");
        let record = scribe(TtlSupport::Millis).value(value.clone(), secs(5), secs(2));
        assert_eq!(record.ttl(), Ttl::After(secs(7)));
        let at = |ms| said(&record, TtlSupport::Millis, Duration::from_millis(ms), 1);
        assert_eq!(at(0), Verdict::Fresh(value.clone()));
        assert_eq!(at(4_999), Verdict::Fresh(value.clone()));
        assert_eq!(at(5_000), Verdict::Takeable(Some(Content { value: value.clone(), served_ms: 2_000 })));
        assert_eq!(at(6_999), Verdict::Takeable(Some(Content { value, served_ms: 1 })));
        assert_eq!(at(7_000), Verdict::Takeable(None));
    }

    #[test]
    fn a_lease_serves_what_was_there_as_long_as_it_may_be_served() {
        let value = Bytes::from_static(b"v");
        let kept = Some(Content { value: value.clone(), served_ms: 2_000 });
        let record = scribe(TtlSupport::Millis).lease(secs(10), kept.clone());
        let at = |ms, draw| said(&record, TtlSupport::Millis, Duration::from_millis(ms), draw);
        assert_eq!(at(0, 1), Verdict::Stale(value.clone()));
        assert_eq!(at(1_999, 1), Verdict::Stale(value));
        assert_eq!(at(2_000, 1), Verdict::Busy);
        assert_eq!(at(9_999, 1), Verdict::Busy);
        assert_eq!(at(10_000, 1), Verdict::Takeable(None));
        assert_eq!(at(0, 7), Verdict::Mine { draw: 7, kept });
        assert_eq!(at(2_000, 7), Verdict::Mine { draw: 7, kept: None });
        assert_eq!(at(10_000, 7), Verdict::Takeable(None), "a lease of one's own that is over is like any other");
    }

    #[test]
    fn a_server_of_whole_seconds_ends_no_lease_early_and_keeps_nothing_fresh_too_long() {
        let scribe = scribe(TtlSupport::Seconds);
        let lease = scribe.lease(Duration::from_millis(1_500), None);
        assert_eq!(lease.ttl(), Ttl::After(secs(3)));
        // Two ticks may be little more than a second.
        assert_eq!(said(&lease, TtlSupport::Seconds, secs(2), 1), Verdict::Busy);
        assert_eq!(said(&lease, TtlSupport::Seconds, secs(3), 1), Verdict::Takeable(None));
        let value = scribe.value(Bytes::from_static(b"v"), Duration::from_millis(1_500), Duration::ZERO);
        assert_eq!(value.ttl(), Ttl::After(secs(2)));
        assert!(matches!(said(&value, TtlSupport::Seconds, secs(1), 1), Verdict::Fresh(_)));
        assert_eq!(said(&value, TtlSupport::Seconds, secs(2), 1), Verdict::Takeable(None));
    }

    #[test]
    fn where_the_store_tells_no_remaining_life_the_wall_clock_judges() {
        let profile = Profile { remaining_ttl: false, ..telling(TtlSupport::Seconds) };
        let record = scribe(TtlSupport::Seconds).value(Bytes::from_static(b"v"), secs(5), secs(2));
        for (wall_s, age_ms) in [(100, 0), (104, 4_000), (106, 6_000), (50, 0)] {
            assert_eq!(age(&record, Remaining::Unknown, &profile, secs(wall_s)).ms, age_ms, "{wall_s}");
        }
    }

    #[test]
    fn what_another_key_left_at_the_same_index_is_not_served() {
        let record = scribe(TtlSupport::Millis).value(Bytes::from_static(b"v"), secs(5), secs(0));
        let age = Age { ms: 0, slack_ms: 0 };
        assert_eq!(judge(record, b"other", |_| true, age), Verdict::Takeable(None));
    }

    #[test]
    fn a_lease_given_up_leaves_what_was_there_to_the_next() {
        let kept = Some(Content { value: Bytes::from_static(b"v"), served_ms: 2_000 });
        let record = scribe(TtlSupport::Seconds).free(kept.clone());
        assert_eq!(said(&record, TtlSupport::Seconds, secs(0), 1), Verdict::Takeable(kept));
        let record = scribe(TtlSupport::Seconds).free(None);
        assert_eq!(record.ttl(), Ttl::After(secs(1)));
        assert_eq!(said(&record, TtlSupport::Seconds, secs(0), 7), Verdict::Takeable(None));
    }

    #[test]
    fn what_a_store_says_of_a_life_counts_only_where_it_goes_by_its_own_clock() {
        let (tells, left) = (telling(TtlSupport::Millis), Remaining::For(secs(3)));
        let tells_not = Profile { remaining_ttl: false, ..tells.clone() };
        assert_eq!(told(left, &tells), Some(secs(3)));
        assert_eq!(told(left, &tells_not), None);
        assert_eq!(told(Remaining::Unknown, &tells), None);
    }

    #[test]
    fn a_server_of_milliseconds_keeps_records_no_longer_than_they_are_for() {
        let ms = Duration::from_millis;
        let scribe = scribe(TtlSupport::Millis);
        assert_eq!(scribe.value(Bytes::from_static(b"v"), ms(1_500), ms(7)).ttl(), Ttl::After(ms(1_507)));
        assert_eq!(scribe.lease(ms(1_500), None).ttl(), Ttl::After(ms(1_500)));
        assert_eq!(scribe.free(None).ttl(), Ttl::After(ms(1)));
    }
}
