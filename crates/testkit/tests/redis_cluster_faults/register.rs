//! Values that take each other's place: a packed table's version in force, a cache's entry.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::book::{Book, LATE, Sum, Told, locked};
use crate::windows::{Span, Touching};

/// The values that were put into one place, and what was read there.
#[derive(Default)]
pub(crate) struct Register {
    /// When each was made and by when it was told.
    pub(crate) made: Book,
    /// What was acknowledged and ended whatever had been made before: by taking its place, or by removing it.
    ends: Mutex<Vec<Span>>,
    reads: Mutex<Vec<(Span, u64)>>,
}

impl Register {
    pub(crate) fn ended(&self, sent: Instant) {
        locked(&self.ends).push(Span::since(sent));
    }

    pub(crate) fn read(&self, sent: Instant, found: u64) {
        locked(&self.reads).push((Span::since(sent), found));
    }

    /// Holds every read against what was told by then: what it found was made here and not refused, and nothing that no failover can have taken was put in its
    /// place, or ended it, and told `behind` before the read began. How many reads there were.
    pub(crate) fn close(&self, what: &str, touching: &Touching, behind: Duration) -> u64 {
        let made: BTreeMap<u64, (Span, Told)> = self.made.entries();
        let mut firm: Vec<Span> = locked(&self.ends).clone();
        firm.retain(|&span| !touching.may_lose(span));
        firm.sort_by_key(|span| span.ended);
        // The latest beginning of any that were told by then.
        let mut newest: Vec<Instant> = Vec::new();
        for span in &firm {
            newest.push(newest.last().map_or(span.sent, |last| span.sent.max(*last)));
        }
        let reads = locked(&self.reads);
        for &(read, found) in reads.iter() {
            let Some(&(span, told)) = made.get(&found) else { panic!("{what}: nobody made {found}, which was read") };
            assert!(told != Told::Refused, "{what}: {found} was read and told not to be applied");
            assert!(span.sent < read.ended, "{what}: {found} was read before it was made");
            let until = span.ended + if told == Told::Unknown { LATE } else { Duration::ZERO };
            let told_by_then = firm.partition_point(|span| span.ended + behind < read.sent);
            let after = told_by_then.checked_sub(1).map(|at| newest[at]);
            assert!(
                after.is_none_or(|after| after < until),
                "{what}: {found} of {span:?} was read at {read:?}, though what took its place, from {after:?} on, was acknowledged by then"
            );
        }
        reads.len() as u64
    }

    /// What was told of all that was put there; none of it can be missing.
    pub(crate) fn sum(&self, touching: &Touching) -> Sum {
        self.made.sum(0, touching)
    }
}
