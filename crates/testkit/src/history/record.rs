//! The recorder: who asked for what, when, and what came back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What came back of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<R> {
    /// It took effect, between its invocation and its return.
    Ok(R),
    /// It took no effect, and never will.
    Failed,
    /// It may have taken effect, or may yet, once: at any time from its invocation on.
    Unknown,
}

/// An operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<O, R> {
    /// Which client asked.
    pub client: usize,
    /// What for.
    pub op: O,
    /// When: a time of the recorder's logical clock.
    pub invoked: u64,
    /// When it was answered.
    pub returned: u64,
    /// What came back.
    pub outcome: Outcome<R>,
}

/// Records operations of many clients under one logical clock: every invocation and every return has a time of its own. Clones share it.
pub struct Recorder<O, R>(Arc<Shared<O, R>>);

struct Shared<O, R> {
    clock: AtomicU64,
    events: Mutex<Vec<Event<O, R>>>,
}

impl<O, R> Clone for Recorder<O, R> {
    fn clone(&self) -> Self {
        Recorder(self.0.clone())
    }
}

impl<O, R> Default for Recorder<O, R> {
    fn default() -> Self {
        Recorder(Arc::new(Shared { clock: AtomicU64::new(0), events: Mutex::new(Vec::new()) }))
    }
}

impl<O, R> Recorder<O, R> {
    /// The time now: for [`done`](Recorder::done), read before the operation is begun.
    pub fn now(&self) -> u64 {
        self.0.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Records an operation that was begun at `invoked` and is over.
    pub fn done(&self, client: usize, op: O, invoked: u64, outcome: Outcome<R>) {
        let returned = self.now();
        let event = Event { client, op, invoked, returned, outcome };
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// What was recorded so far, in the order of the returns.
    pub fn take(&self) -> Vec<Event<O, R>> {
        let mut events = std::mem::take(&mut *self.0.events.lock().unwrap_or_else(PoisonError::into_inner));
        events.sort_by_key(|event| event.returned);
        events
    }
}
