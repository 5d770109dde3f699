//! The read lane: a second connection to a server whose first, *home*, many reads at a time keep busy.
//!
//! One connection is one task here and one thread of the server: two of them answer half as many reads again. But ops on two
//! connections take effect in any order, so what may go over the lane is only what can be told from no order at all: reads without a
//! token, of keys to which home owes the reply of no write. A write whose caller gave up is owed until its reply comes, or home ends.
//!
//! A task keeps to the connection whose own task runs on the same thread, so that nobody has to be woken on another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_core::{Op, Verb, Want};

use crate::conn::Conn;

/// So many ops without a reply, on both connections, are busy.
pub(crate) const BUSY_OPS: usize = 8;
/// A lane is opened when so many reads of one second have found home busy.
const WANTS: u32 = 1_000;
const WANTS_WITHIN: Duration = Duration::from_secs(1);
/// Until a lane that failed is tried again.
pub(crate) const REST: Duration = Duration::from_secs(5);
/// A lane that nobody has used for so long is closed.
pub(crate) const UNUSED: Duration = Duration::from_secs(60);
/// How often a lane is looked at, whether it is used and still wanted.
pub(crate) const LOOK: Duration = Duration::from_secs(5);

/// The lane of one server.
#[derive(Debug)]
pub(crate) enum Lane {
    /// There is none, and there will be none.
    Off,
    /// There is none.
    None,
    /// It is being dialled, for the home with this session.
    Dialling { home: u64 },
    /// It is there, for the home with this session.
    Open { home: u64, conn: Arc<Conn> },
    /// It failed, and is not tried before this moment.
    Resting { until: Instant },
}

impl Lane {
    /// The session of its home, if it is there or on its way.
    pub(crate) fn home(&self) -> Option<u64> {
        match self {
            Lane::Dialling { home } | Lane::Open { home, .. } => Some(*home),
            Lane::Off | Lane::None | Lane::Resting { .. } => None,
        }
    }

    /// Whether one may be dialled.
    pub(crate) fn may_open(&self) -> bool {
        match self {
            Lane::None => true,
            Lane::Resting { until } => Instant::now() >= *until,
            Lane::Off | Lane::Dialling { .. } | Lane::Open { .. } => false,
        }
    }

    /// The lane, if these ops may go over it and should.
    pub(crate) fn takes<'o>(&self, home: &Conn, mut ops: impl Iterator<Item = &'o Op>) -> Option<&Arc<Conn>> {
        let Lane::Open { home: session, conn } = self else { return None };
        let (ours, theirs) = (&conn.traffic, &home.traffic);
        if *session != home.session || ours.unanswered() + theirs.unanswered() < BUSY_OPS || ours.is_closed() {
            return None;
        }
        let should = match (ours.ran_here(), theirs.ran_here()) {
            (true, false) => true,
            (false, true) => false,
            _ => ours.unanswered() < theirs.unanswered(),
        };
        // Round one that is late, either way.
        let should = (should || theirs.owes_overdue()) && !ours.owes_overdue();
        (should && ops.all(|op| is_plain(op) && !theirs.owes_write(&op.key))).then_some(conn)
    }
}

/// A read that wants no token: a token is good on home alone.
fn is_plain(op: &Op) -> bool {
    matches!(&op.verb, Verb::Get { want } if !want.contains(Want::CAS))
}

/// Counts the reads that find home busy.
#[derive(Debug)]
pub(crate) struct Wanted {
    start: Instant,
    count: AtomicU32,
    /// When the first of them was counted, after `start`.
    since_ms: AtomicU64,
    /// There were enough.
    asked: AtomicBool,
}

impl Wanted {
    pub(crate) fn new() -> Wanted {
        Wanted {
            start: Instant::now(),
            count: AtomicU32::new(0),
            since_ms: AtomicU64::new(0),
            asked: AtomicBool::new(false),
        }
    }

    /// Takes in ops that found home as it is; true if a lane should be opened now.
    pub(crate) fn found<'o>(&self, home: &Conn, mut ops: impl Iterator<Item = &'o Op>) -> bool {
        if home.traffic.unanswered() < BUSY_OPS || !ops.all(is_plain) {
            return false;
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = || self.start.elapsed().as_millis() as u64;
        if count == 1 {
            self.since_ms.store(now_ms(), Ordering::Relaxed);
        }
        if count < WANTS {
            return false;
        }
        self.count.store(0, Ordering::Relaxed);
        let within = now_ms().saturating_sub(self.since_ms.load(Ordering::Relaxed)) <= WANTS_WITHIN.as_millis() as u64;
        within && !self.asked.swap(true, Ordering::Relaxed)
    }

    /// Whether a lane was asked for since this was called last.
    pub(crate) fn take(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }
}
