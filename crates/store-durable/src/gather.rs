//! How long a round that will sync waits for more writers.
//!
//! Writers who wait for each write, as most do, come back as soon as they are answered. A committer that takes what is there at that moment
//! finds those who came while it synced, and not those whom it has just answered: they fall into two halves, each of which waits for the
//! other's sync. So it waits, at most as long as a sync takes, until as many are there as were answered and waited. Where they do not come
//! back it soon stops waiting for them.

use std::time::Duration;

/// A writer waits no longer than this for others.
const PATIENCE_MAX: Duration = Duration::from_millis(1);
/// Rounds that go on at once after writers did not come back, at the most.
const HASTY_MAX: u32 = 256;

/// What is known of those who come back.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// So many may be there soon.
    wanted: usize,
    /// So many were there when it began to wait.
    waited: usize,
    /// What a sync takes.
    sync: Duration,
    /// Rounds to go on at once.
    hasty: u32,
    /// As many will be, when writers do not come back the next time.
    hasty_next: u32,
}

impl Gather {
    /// A round was synced in that time.
    pub(crate) fn synced(&mut self, took: Duration) {
        self.sync = if self.sync.is_zero() { took } else { (self.sync * 3 + took) / 4 };
    }

    /// A round ended: so many will be answered, and so many wait.
    pub(crate) fn ended(&mut self, answered: usize, waited: usize) {
        (self.wanted, self.waited) = (answered + waited, waited);
    }

    /// How many requests to wait for, and how long.
    pub(crate) fn next(&self) -> (usize, Duration) {
        match self.hasty {
            0 => (self.wanted, self.sync.min(PATIENCE_MAX)),
            _ => (1, Duration::ZERO),
        }
    }

    /// So many came.
    pub(crate) fn came(&mut self, came: usize) {
        if self.hasty > 0 {
            self.hasty -= 1;
            return;
        }
        let missed = self.wanted.saturating_sub(came);
        let is_worth_it = missed * 2 <= self.wanted.saturating_sub(self.waited);
        if is_worth_it {
            self.hasty_next = 0;
        } else {
            self.hasty_next = (self.hasty_next * 2).clamp(1, HASTY_MAX);
            self.hasty = self.hasty_next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_micros(200);

    fn after_a_sync() -> Gather {
        let mut gather = Gather::default();
        gather.synced(SYNC);
        gather
    }

    #[test]
    fn before_the_first_sync_nobody_waits() {
        let mut gather = Gather::default();
        gather.ended(3, 2);
        assert_eq!(gather.next().1, Duration::ZERO);
    }

    #[test]
    fn those_who_were_answered_are_waited_for_as_long_as_a_sync_takes() {
        let mut gather = after_a_sync();
        gather.ended(20, 12);
        assert_eq!(gather.next(), (32, SYNC));
        gather.came(32);
        gather.synced(Duration::from_secs(1));
        assert_eq!(gather.next().1, PATIENCE_MAX);
    }

    #[test]
    fn those_who_do_not_come_back_are_waited_for_less_and_less_often() {
        let mut gather = after_a_sync();
        let mut waits = Vec::new();
        for round in 0..600 {
            gather.ended(4, 1);
            if !gather.next().1.is_zero() {
                waits.push(round);
            }
            gather.came(1);
        }
        assert_eq!(waits, [0, 2, 5, 10, 19, 36, 69, 134, 263, 520]);
        for _ in 0..300 {
            gather.ended(4, 1);
            gather.came(5);
        }
        assert_eq!(gather.next(), (5, SYNC), "they come back again");
    }

    #[test]
    fn one_who_stays_away_among_many_is_not_held_against_the_others() {
        let mut gather = after_a_sync();
        gather.ended(32, 0);
        gather.came(31);
        gather.ended(31, 0);
        assert_eq!(gather.next(), (31, SYNC));
    }
}
