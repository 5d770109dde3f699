//! What a handle remembers of the record it saw, and what it concludes from it. Time is an argument.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Profile, TtlSupport};

use super::layout::Found;

/// What a handle remembers of one lock.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// What was last seen, until somebody bets on it.
    last: Option<Option<Found>>,
    /// The value last seen, and when this handle saw it first.
    unchanged: Option<(Bytes, Duration)>,
    /// The lease in the last record seen; `None` for a handle that never saw one.
    known_lease: Option<Duration>,
    /// When this handle first missed a record that it had seen.
    missing_since: Option<Duration>,
    /// The highest token seen.
    token_max: u64,
}

/// What can be done about a lock that was seen so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is free, its holder is dead, or it was never there: take it, conditional on what was seen.
    Takeable,
    /// Somebody holds it.
    Busy {
        /// The holder is dead if nothing changes for this long.
        left: Duration,
        /// By the store's clock; otherwise by this handle's own.
        by_store: bool,
    },
    /// It was there and is gone: a live holder may be without its record for this long.
    Gone {
        /// How long to wait.
        left: Duration,
    },
}

impl Sight {
    /// Takes note of what a reply, received at `now`, says of the record.
    pub(crate) fn note(&mut self, view: Option<&Found>, now: Duration) {
        match view {
            Some(found) => {
                self.known_lease = Some(found.record.lease());
                self.token_max = self.token_max.max(found.record.token);
                self.missing_since = None;
                if self.unchanged.as_ref().is_none_or(|(value, _)| *value != found.value) {
                    self.unchanged = Some((found.value.clone(), now));
                }
            }
            None => {
                self.unchanged = None;
                if self.known_lease.is_some() {
                    self.missing_since.get_or_insert(now);
                }
            }
        }
        self.last = Some(view.cloned());
    }

    /// What was last seen, if it is worth a write without another read: once, and only a lock that seemed to be free.
    pub(crate) fn bet(&mut self) -> Option<Option<Found>> {
        let is_worth = match &self.last {
            Some(Some(found)) => !found.record.held,
            Some(None) => self.known_lease.is_none(),
            None => false,
        };
        if is_worth { self.last.take() } else { None }
    }

    /// Concludes, at `now`, from a record that was noted.
    pub(crate) fn judge(&self, view: Option<&Found>, now: Duration, own_lease: Duration, profile: &Profile) -> Verdict {
        let Some(found) = view else {
            let Some(known_lease) = self.known_lease else { return Verdict::Takeable };
            let waited = self.missing_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            return match known_lease.max(own_lease).saturating_sub(waited) {
                Duration::ZERO => Verdict::Takeable,
                left => Verdict::Gone { left },
            };
        };
        if !found.record.held {
            return Verdict::Takeable;
        }
        let lease = found.record.lease();
        let seen = match &self.unchanged {
            Some((value, since)) if *value == found.value => now.saturating_sub(*since),
            _ => Duration::ZERO,
        };
        let age = if profile.remaining_ttl { found.age_min(granularity(profile)) } else { None };
        // Both are lower bounds, so the larger one is right.
        match lease.saturating_sub(age.unwrap_or_default().max(seen)) {
            Duration::ZERO => Verdict::Takeable,
            left => Verdict::Busy { left, by_store: age.is_some() },
        }
    }

    /// The highest token seen.
    pub(crate) fn token_max(&self) -> u64 {
        self.token_max
    }

    /// True if this handle ever saw a record.
    pub(crate) fn knows_record(&self) -> bool {
        self.known_lease.is_some()
    }
}

/// How coarse the store's clock is.
pub(crate) fn granularity(profile: &Profile) -> Duration {
    match profile.ttl {
        TtlSupport::Millis => Duration::from_millis(1),
        TtlSupport::Seconds | TtlSupport::None => Duration::from_secs(1),
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Cas, Remaining};

    use super::super::layout::{RECORD_TTL, Record};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn found(held: bool, beat: u64, age: Option<Duration>) -> Found {
        let record =
            Record { generation: 1, held, token: 7, owner: 1, beat, lease_ms: 2_000, since_us: 0, label: Bytes::new() };
        let ttl = age.map_or(Remaining::Unknown, |age| Remaining::For(RECORD_TTL - age));
        Found { value: record.encode(), record, cas: Cas { token: 1, session: 1 }, ttl }
    }

    fn judge(sight: &Sight, view: Option<&Found>, now: Duration, ttl: TtlSupport) -> Verdict {
        sight.judge(view, now, SECOND, &Profile { ttl, ..Profile::unlimited("test") })
    }

    #[test]
    fn by_the_stores_clock_a_dead_holder_is_known_at_first_sight() {
        let mut sight = Sight::default();
        for (age_ms, ttl, dead) in [
            (2_000, TtlSupport::Millis, false),
            (2_001, TtlSupport::Millis, true),
            (2_000, TtlSupport::Seconds, false),
            (3_000, TtlSupport::Seconds, true),
        ] {
            let view = found(true, 0, Some(Duration::from_millis(age_ms)));
            sight.note(Some(&view), Duration::ZERO);
            assert_eq!(judge(&sight, Some(&view), Duration::ZERO, ttl) == Verdict::Takeable, dead, "{age_ms} {ttl:?}");
        }
    }

    #[test]
    fn without_the_stores_clock_a_holder_is_dead_when_nothing_changed_for_a_lease() {
        let mut sight = Sight::default();
        for (at_ms, beat, left_ms) in [(0, 0, 2_000), (1_999, 0, 1), (1_999, 1, 2_000), (3_998, 1, 1), (3_999, 1, 0)] {
            let now = Duration::from_millis(at_ms);
            let view = found(true, beat, None);
            sight.note(Some(&view), now);
            let expected = match left_ms {
                0 => Verdict::Takeable,
                _ => Verdict::Busy { left: Duration::from_millis(left_ms), by_store: false },
            };
            assert_eq!(judge(&sight, Some(&view), now, TtlSupport::Seconds), expected, "{at_ms}");
        }
    }

    #[test]
    fn a_record_that_was_not_the_last_to_be_noted_is_judged_as_seen_just_now() {
        let mut sight = Sight::default();
        sight.note(Some(&found(true, 0, None)), Duration::ZERO);
        let other = found(true, 1, None);
        let full = Verdict::Busy { left: 2 * SECOND, by_store: false };
        assert_eq!(judge(&sight, Some(&other), 5 * SECOND, TtlSupport::Seconds), full);
    }

    #[test]
    fn that_there_was_a_record_and_its_highest_token_are_remembered_when_it_is_gone() {
        let mut sight = Sight::default();
        sight.note(None, Duration::ZERO);
        assert_eq!((sight.token_max(), sight.knows_record()), (0, false));
        let mut lower = found(false, 0, None);
        lower.record.token = 3;
        for view in [Some(&found(true, 0, None)), Some(&lower), None] {
            sight.note(view, SECOND);
            assert_eq!((sight.token_max(), sight.knows_record()), (7, true), "{view:?}");
        }
    }

    #[test]
    fn a_miss_is_a_fresh_lock_to_a_fresh_handle_and_a_loss_to_one_that_saw_the_record() {
        let mut sight = Sight::default();
        sight.note(None, Duration::ZERO);
        assert_eq!(judge(&sight, None, Duration::ZERO, TtlSupport::Millis), Verdict::Takeable);
        sight.note(Some(&found(false, 0, None)), SECOND);
        sight.note(None, 2 * SECOND);
        for (now_s, verdict) in
            [(2, Verdict::Gone { left: 2 * SECOND }), (3, Verdict::Gone { left: SECOND }), (4, Verdict::Takeable)]
        {
            sight.note(None, now_s * SECOND);
            assert_eq!(judge(&sight, None, now_s * SECOND, TtlSupport::Millis), verdict);
        }
    }

    #[test]
    fn a_bet_is_made_once_and_on_free_locks_only() {
        let mut sight = Sight::default();
        assert!(sight.bet().is_none());
        sight.note(None, Duration::ZERO);
        assert!(sight.bet().is_some());
        assert!(sight.bet().is_none());
        sight.note(Some(&found(true, 0, None)), Duration::ZERO);
        assert!(sight.bet().is_none());
        sight.note(Some(&found(false, 1, None)), Duration::ZERO);
        assert!(sight.bet().is_some());
        sight.note(None, Duration::ZERO);
        assert!(sight.bet().is_none(), "a known lock that is gone is no free one");
    }
}
