//! Periods of whole days by the calendar of a zone, where a day has 23 or 25 hours when its clocks change.

use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// The longest name of a zone: the longest that there is has half of that.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Day 0 of every calendar.
const FIRST: Date = jiff::civil::date(1970, 1, 1);

/// A zone of the IANA time zone database.
#[derive(Clone)]
pub(super) struct Zone {
    name: Box<str>,
    /// `None` where this machine's database does not have it.
    rules: Option<TimeZone>,
}

impl Zone {
    /// A zone by its name, such as `Europe/Berlin`; upper and lower case are as good as each other.
    ///
    /// Of what is no name at all, `None`; see [`is_known`](Zone::is_known) for one that is not in the database.
    pub(super) fn named(name: &str) -> Option<Zone> {
        let is_name = |byte: u8| byte.is_ascii_graphic();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
            return None;
        }
        let rules = jiff::tz::db().get(name).ok();
        let name = rules.as_ref().and_then(TimeZone::iana_name).unwrap_or(name).into();
        Some(Zone { name, rules })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_known(&self) -> bool {
        self.rules.is_some()
    }

    /// The day of a time, counted from 1970; `None` before that, and far in the future.
    pub(super) fn day_of(&self, time_ms: u64) -> Option<u64> {
        let time = Timestamp::from_millisecond(i64::try_from(time_ms).ok()?).ok()?;
        let date = self.rules.as_ref()?.to_datetime(time).date();
        u64::try_from(FIRST.until(date).ok()?.get_days()).ok()
    }

    /// When a day begins, in milliseconds since 1970: 0 where that is before, and the end of time far in the future. A day that the calendar leaves out begins
    /// with the next.
    pub(super) fn begin_ms(&self, day: u64) -> u64 {
        let begin = || {
            let date = FIRST.checked_add(Span::new().try_days(i64::try_from(day).ok()?).ok()?).ok()?;
            Some(date.to_zoned_datetime(self.rules.clone()?).ok()?.timestamp().as_millisecond())
        };
        begin().map_or(u64::MAX, |ms| u64::try_from(ms).unwrap_or(0))
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn zone(name: &str) -> Zone {
        let zone = Zone::named(name).unwrap();
        assert!(zone.is_known(), "{name}");
        zone
    }

    fn hours(zone: &Zone, date: Date) -> u64 {
        let day = u64::try_from(FIRST.until(date).unwrap().get_days()).unwrap();
        (zone.begin_ms(day + 1) - zone.begin_ms(day)) / HOUR_MS
    }

    #[test]
    fn days_have_the_hours_that_their_clocks_say() {
        let date = jiff::civil::date;
        let (berlin, new_york, lord_howe, apia) =
            (zone("Europe/Berlin"), zone("America/New_York"), zone("Australia/Lord_Howe"), zone("Pacific/Apia"));
        let days = [
            (&berlin, date(2026, 3, 29), 23),
            (&berlin, date(2026, 10, 25), 25),
            (&berlin, date(2026, 11, 26), 24),
            (&new_york, date(2026, 3, 8), 23),
            (&new_york, date(2026, 11, 1), 25),
            (&apia, date(2011, 12, 30), 0),
            (&apia, date(2011, 12, 31), 24),
        ];
        for (zone, date, expected) in days {
            assert_eq!(hours(zone, date), expected, "{zone:?} {date}");
        }
        // Half an hour.
        let day = u64::try_from(FIRST.until(date(2026, 10, 4)).unwrap().get_days()).unwrap();
        assert_eq!(lord_howe.begin_ms(day + 1) - lord_howe.begin_ms(day), 47 * HOUR_MS / 2);
    }

    #[test]
    fn a_day_begins_where_the_one_before_ends() {
        for name in ["Europe/Berlin", "America/Havana", "Asia/Beirut", "America/Sao_Paulo", "Africa/Cairo", "UTC"] {
            let zone = zone(name);
            for day in 14_000..21_500 {
                let begin_ms = zone.begin_ms(day);
                assert_eq!(zone.day_of(begin_ms), Some(day), "{name}, day {day}");
                assert_eq!(zone.day_of(begin_ms - 1), Some(day - 1), "{name}, before day {day}");
            }
        }
    }

    #[test]
    fn the_ends_of_time_are_in_no_day_or_begin_there() {
        let (east, west) = (zone("Asia/Tokyo"), zone("America/New_York"));
        assert_eq!((east.day_of(0), west.day_of(0)), (Some(0), None), "in New York it is 1969");
        assert_eq!((east.begin_ms(0), west.begin_ms(0)), (0, 5 * HOUR_MS));
        assert_eq!(east.day_of(u64::MAX), None);
        assert_eq!([east.begin_ms(u64::MAX), east.begin_ms(1 << 40)], [u64::MAX; 2]);
    }

    #[test]
    fn names_are_those_of_the_database() {
        assert_eq!(zone("europe/berlin").name(), "Europe/Berlin");
        assert_eq!(zone("europe/berlin"), zone("Europe/Berlin"));
        let nowhere = Zone::named("Europe/Atlantis").unwrap();
        assert_eq!((nowhere.is_known(), nowhere.day_of(0), nowhere.begin_ms(0)), (false, None, u64::MAX));
        for wrong in ["", "Europe Berlin", "\u{e9}", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(Zone::named(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_zone_is_another_where_its_name_is_and_a_name_has_up_to_64_bytes() {
        assert_ne!(zone("Europe/Berlin"), zone("Europe/Paris"));
        let longest = "x".repeat(64);
        assert_eq!(Zone::named(&longest).unwrap().name(), longest);
        assert_eq!(Zone::named(&format!("{longest}x")), None);
    }
}
