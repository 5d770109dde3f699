//! What can be seen of a connection without its lock. The choice between a connection and its read lane goes by it.
//!
//! # Why relaxed
//! Only one thing must be right here: that a read finds the write that its caller sent before it. Both then happened one after the
//! other, on one thread or over something that orders threads, and what happened before is seen whatever the ordering of the
//! accesses. That a reply has come (`answered`) is told by nobody but the task that has read it, so the server has carried it out.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use larder_core::{Key, Op};

/// Places for keys with unanswered writes. Two keys may share one: then a read keeps to the connection though it need not.
const WRITES: usize = 1024;

/// The traffic of one connection. Parts are numbered from 1 in the order of their bytes, and answered in it.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Ops without a reply.
    unanswered: AtomicUsize,
    /// The last part whose replies have all come.
    answered: AtomicU64,
    /// The last part whose deadline passed after it was sent.
    overdue: AtomicU64,
    /// The thread that the connection's task ran on last.
    thread: AtomicUsize,
    closed: AtomicBool,
    /// By a hash of the key, the last part with a write to it; empty where nobody asks.
    writes: Box<[AtomicU64]>,
}

impl Traffic {
    /// With `writes`, [`owes_write`](Traffic::owes_write) can be asked.
    pub(crate) fn new(writes: bool) -> Traffic {
        let places = if writes { WRITES } else { 0 };
        Traffic {
            unanswered: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
            thread: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            writes: (0..places).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// An op goes into the part of this number.
    pub(crate) fn pushes(&self, op: &Op, part: u64) {
        if !self.writes.is_empty() && !op.is_read() {
            self.writes[place(&op.key)].store(part, Relaxed);
        }
    }

    /// Whether a write to the key may still be without a reply. It is not forgotten when its caller gives up.
    pub(crate) fn owes_write(&self, key: &Key) -> bool {
        self.writes.is_empty() || self.writes[place(key)].load(Relaxed) > self.answered.load(Relaxed)
    }

    /// Whether a part is without its replies though its deadline has passed.
    pub(crate) fn owes_overdue(&self) -> bool {
        self.overdue.load(Relaxed) > self.answered.load(Relaxed)
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Relaxed)
    }

    pub(crate) fn set_unanswered(&self, ops: usize) {
        self.unanswered.store(ops, Relaxed);
    }

    pub(crate) fn answered(&self, part: u64) {
        self.answered.store(part, Relaxed);
    }

    /// Whether a part has been answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Relaxed) > 0
    }

    pub(crate) fn overdue(&self, part: u64) {
        self.overdue.store(part, Relaxed);
    }

    /// The connection's task runs on the thread that calls.
    pub(crate) fn runs_here(&self) {
        let here = here();
        if self.thread.load(Relaxed) != here {
            self.thread.store(here, Relaxed);
        }
    }

    /// Whether the connection's task ran last on the thread that asks.
    pub(crate) fn ran_here(&self) -> bool {
        self.thread.load(Relaxed) == here()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }
}

fn place(key: &Key) -> usize {
    (xxhash_rust::xxh3::xxh3_64(key.as_bytes()) as usize) % WRITES
}

/// A number of this thread's own, from 1.
fn here() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        static HERE: Cell<usize> = const { Cell::new(0) };
    }
    HERE.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Relaxed));
        }
        number.get()
    })
}
