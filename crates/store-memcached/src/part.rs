//! A part: the ops of one batch that go to one connection, and the place where their replies land.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use larder_core::{Error, Replies};
use larder_proto::Expect;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// One a batch and connection, not one an op: a single allocation whatever the number of ops.
///
/// The connection's queue holds it until its last reply has been read, even if nobody waits any more: that is what keeps
/// replies matched to requests when a future is dropped or a deadline passes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) expects: SmallVec<[Expect; 1]>,
    pub(crate) deadline: Instant,
    /// Protects the hand-over between the connection's task and the one caller that waits; held for a move only.
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Done(Outcome),
    Taken,
}

/// How a part ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The replies that came, in order: of all ops, or of the first ones.
    pub(crate) replies: Replies,
    /// Why the others did not come.
    pub(crate) cut: Option<Cut>,
}

/// Why replies are missing.
#[derive(Debug)]
pub(crate) enum Cut {
    /// The deadline passed. If `sent`, the ops may have taken effect.
    TimedOut { sent: bool },
    /// The connection ended. If `sent`, the ops may have taken effect.
    Closed { sent: bool, cause: Error },
}

impl Part {
    pub(crate) fn new(expects: SmallVec<[Expect; 1]>, deadline: Instant) -> Arc<Part> {
        Arc::new(Part { expects, deadline, state: Mutex::new(State::Waiting(None)) })
    }

    /// Ends the part, unless it has ended. The caller must wake what this returns, holding no lock.
    pub(crate) fn finish(&self, outcome: Outcome) -> Option<Waker> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = State::Done(outcome);
                waker
            }
            State::Done(_) | State::Taken => None,
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.state.lock(), State::Waiting(_))
    }
}

/// The future of a part's outcome, empty once it has brought that. Dropped before, it leaves a part that nobody waits for.
pub(crate) struct Waiting(Option<Arc<Part>>);

impl Waiting {
    pub(crate) fn new(part: Arc<Part>) -> Waiting {
        Waiting(Some(part))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(part) = self.0.take() {
            // What it may hold is dropped behind the lock.
            let _outcome = std::mem::replace(&mut *part.state.lock(), State::Taken);
        }
    }
}

impl Future for Waiting {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(part) = &self.0 else { return Poll::Pending };
        let mut state = part.state.lock();
        match &mut *state {
            State::Waiting(Some(waker)) if waker.will_wake(cx.waker()) => Poll::Pending,
            State::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => {
                    drop(state);
                    self.0 = None;
                    Poll::Ready(outcome)
                }
                State::Waiting(_) | State::Taken => Poll::Pending,
            },
            State::Taken => Poll::Pending,
        }
    }
}
