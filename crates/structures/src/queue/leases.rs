//! The leases of claims that a write made: whether their markers are there.
//!
//! A marker that was missed once, while the state named its claim, never comes back: whoever has missed it gives the item away, at
//! once or later. So a claim whose marker is not known to be there is given up, and the item is claimed again under another id. And so a write behind
//! one that is in doubt makes its claims under other ids: each marker is put by the one write that makes its claim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Effect, Error, ErrorKind, Op, Reply, Result, Want, ambient};

use super::consume::{Consumer, Given, Outcomes};
use super::request::{Asked, Request};

/// A claim that a write makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// Of the caller that it is made for.
    pub(super) ticket: u64,
    pub(super) claim: u64,
    pub(super) life: Duration,
}

/// A claim that is given up, as it is not known to be good.
pub(super) struct GivenUp {
    ticket: u64,
    claim: u64,
    why: Error,
}

impl Lease {
    pub(super) fn given_up(&self, why: Error) -> GivenUp {
        GivenUp { ticket: self.ticket, claim: self.claim, why }
    }
}

/// A claim as its holder gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) id: u64,
    /// Until when its holder counts on it.
    pub(super) until: Instant,
}

impl Claimed {
    /// Of a write that is sent now.
    pub(super) fn now(id: u64, term: Duration) -> Claimed {
        Claimed { id, until: after(term) }
    }

    fn of(outcomes: &Outcomes) -> impl Iterator<Item = (u64, Claimed)> {
        outcomes.iter().filter_map(|(ticket, outcome)| match outcome {
            Ok(Given::Item { claim: Some(claimed), .. }) => Some((*ticket, *claimed)),
            _ => None,
        })
    }

    /// When the first of these is over.
    pub(super) fn first_end(outcomes: &Outcomes) -> Option<Instant> {
        Claimed::of(outcomes).map(|(_, claimed)| claimed.until).min()
    }

    /// Those that are over, before anybody could begin with what was claimed: another may have it.
    pub(super) fn overdue(outcomes: &Outcomes) -> Vec<GivenUp> {
        let now = ambient::now();
        let overdue = Claimed::of(outcomes).filter(|(_, claimed)| claimed.until <= now);
        let why = || {
            let detail = "the lease of a claim had run out when the store's answer came: it is too short for this store, or it was slow";
            Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown)
        };
        overdue.map(|(ticket, Claimed { id, .. })| GivenUp { ticket, claim: id, why: why() }).collect()
    }
}

/// The end of a time that begins now; of one that has no end to speak of, a hundred years.
pub(super) fn after(time: Duration) -> Instant {
    ambient::now() + time.min(Duration::from_secs(100 * 365 * 24 * 60 * 60))
}

impl Consumer {
    /// Adds the markers of claims of which it is not known whether the write that makes them has landed: all of the first such write, and of the others what a batch takes.
    pub(super) fn ask_for_own(&self, request: &mut Request) -> Result<()> {
        let max = self.engine.store.profile().batch_ops_max.saturating_sub(2).max(1);
        for lease in self.sent.iter().flat_map(|sent| &sent.leases).take(max) {
            let get = self.engine.marker(lease.claim, |key| Op::get(key, Want::empty()))?;
            request.add(Asked::Own(lease.claim), get);
        }
        Ok(())
    }

    /// What became of a lease whose marker's write was answered so; `None` if it is there.
    pub(super) fn refused(&self, answer: Result<Reply>) -> Option<Error> {
        let error = match answer {
            Ok(Reply::Stored) => return None,
            Ok(_) => self.engine.named(ErrorKind::Unavailable, "the store did not store the lease of a claim"),
            Err(error) => error,
        };
        Some(error.effect(Effect::Unknown))
    }

    /// Of claims whose write's reply was lost, those whose markers were not found.
    pub(super) fn not_found(&self, leases: Vec<Lease>) -> Vec<GivenUp> {
        let error = || {
            let detail =
                "the reply to a claim was lost, and its lease was not found: it was not stored, or has run out";
            self.engine.named(ErrorKind::Unavailable, detail).effect(Effect::Unknown)
        };
        let is_found = |lease: &Lease| self.marked.get(&lease.claim) == Some(&true);
        leases.into_iter().filter(|lease| !is_found(lease)).map(|lease| lease.given_up(error())).collect()
    }

    /// The outcomes of a write that has landed, but for these claims, which are given up.
    pub(super) fn give_up(&mut self, outcomes: Outcomes, given_up: Vec<GivenUp>) -> Outcomes {
        if given_up.is_empty() {
            return outcomes;
        }
        let mut left = (*outcomes).clone();
        for GivenUp { ticket, claim, why } in given_up {
            left.insert(ticket, Ok(Given::Unmarked(why)));
            self.expired.insert(claim);
            // It may be there all the same.
            self.end_markers([claim]);
        }
        Arc::new(left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn of_claims_the_first_ends_first_and_one_that_is_over_is_given_up() {
        let now = ambient::now();
        let item = |claim| Ok(Given::Item { bytes: Bytes::new(), attempts: 1, claim });
        let claimed = |id, until| item(Some(Claimed { id, until }));
        let (one, two) = (claimed(71, now + Duration::from_secs(60)), claimed(72, now));
        let all: Outcomes = Arc::new(HashMap::from([(1, one), (2, two), (3, item(None)), (4, Ok(Given::Nothing))]));
        assert_eq!(Claimed::first_end(&all), Some(now));
        let overdue = Claimed::overdue(&all);
        assert_eq!(overdue.iter().map(|up| (up.ticket, up.claim)).collect::<Vec<_>>(), [(2, 72)]);
    }

    #[test]
    fn a_time_without_an_end_to_speak_of_is_a_hundred_years() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let (now, end) = (ambient::now(), after(Duration::MAX));
        assert!(end >= now + DAY * 36_500 && end < now + DAY * 36_501);
        assert!(after(DAY) < now + 2 * DAY);
    }
}
