//! When a failover may have taken what was acknowledged, and of what.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use crate::book::locked;

/// Kinds whose keys are all there from the start: what a primary held of them before it was killed is all that it can lose. Others make new keys as they
/// grow, on any primary.
const FIXED: [&str; 9] = ["raw", "counter", "fast", "visitors", "unique", "sharded", "hash", "sorted", "records"];

/// From when on something was asked for, until it was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) sent: Instant,
    pub(crate) ended: Instant,
}

impl Span {
    /// Ends now.
    pub(crate) fn since(sent: Instant) -> Span {
        Span { sent, ended: Instant::now() }
    }
}

/// A primary and its replica were level at `from`, and the primary was dead by `to`: what it acknowledged between may be gone.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    /// What had keys on it; `None` where that is not known.
    pub(crate) names: Option<BTreeSet<String>>,
}

/// Every window of a run.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Vec<Window>>);

impl Windows {
    pub(crate) fn push(&self, window: Window) {
        locked(&self.0).push(window);
    }

    /// The ends of the windows that touch one thing.
    pub(crate) fn of(&self, kind: &str, name: &str) -> Touching {
        let touches =
            |window: &&Window| !FIXED.contains(&kind) || window.names.as_ref().is_none_or(|names| names.contains(name));
        Touching(locked(&self.0).iter().filter(touches).map(|window| (window.from, window.to)).collect())
    }
}

/// The windows that touch one thing.
pub(crate) struct Touching(Vec<(Instant, Instant)>);

impl Touching {
    /// Whether what was done then may be gone.
    pub(crate) fn may_lose(&self, span: Span) -> bool {
        self.0.iter().any(|&(from, to)| span.sent < to && span.ended > from)
    }

    /// The same, where it was still there at a moment.
    pub(crate) fn may_lose_after(&self, span: Span, moment: Instant) -> bool {
        self.0.iter().any(|&(from, to)| to > moment && span.sent < to && span.ended > from)
    }
}
