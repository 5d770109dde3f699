//! The connections there are: to list them, and to end those that are over a limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// It waits for a request, and has nothing of one.
    Idle = 0,
    /// It has a part of a request.
    Half = 1,
    /// It has a reply that the client does not take.
    Writing = 2,
    /// It waits for the server: for what it wrote to be on disk, for room, or for a part of a listing.
    Waiting = 3,
}

/// No moment.
const NEVER: u64 = u64::MAX;

/// What others may know of a connection.
#[derive(Debug)]
pub(crate) struct ConnState {
    pub(crate) id: u64,
    pub(crate) peer: String,
    pub(crate) listener: String,
    /// When it last got or gave bytes, in ms since the start.
    pub(crate) last_ms: AtomicU64,
    /// Since when it has held half a request, more than anybody may, and not got on with it, in ms since the start; [`NEVER`] while that is not so.
    stuck_since_ms: AtomicU64,
    phase: AtomicU8,
    /// Wakes its task, which then looks again whether the server ends.
    waker: Mutex<Option<Waker>>,
}

impl ConnState {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Half,
            2 => Phase::Writing,
            _ => Phase::Waiting,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Notes since when it does not get on with half a request; `None` for one that does, or holds little.
    pub(crate) fn set_stuck_since(&self, ms: Option<u64>) {
        self.stuck_since_ms.store(ms.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// For how long it has not got on with half a request; 0 if it does.
    pub(crate) fn stuck_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.stuck_since_ms.load(Ordering::Relaxed))
    }

    /// False of a unix socket: memcached closes no idle one of those.
    pub(crate) fn is_tcp(&self) -> bool {
        self.peer.starts_with("tcp:")
    }

    /// True before its first look at its socket: it has not come so far, or is at a handshake still.
    pub(crate) fn is_new(&self) -> bool {
        self.waker.lock().is_none()
    }

    /// Has [`Conns::wake_all`] wake the task of `cx`.
    pub(crate) fn woken_by(&self, cx: &Context<'_>) {
        let mut waker = self.waker.lock();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }
}

/// A connection, and what ends its task once that was started and until it was used.
type Entry = (Arc<ConnState>, Option<AbortHandle>);

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    /// The lock protects the map; it is held for an insertion or removal a connection, and for a walk a tick.
    open: Mutex<HashMap<u64, Entry>>,
    count: AtomicUsize,
    next_id: AtomicU64,
}

impl Conns {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many there have been.
    pub(crate) fn admitted(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }

    /// Notes a new connection; `None` if there are `max` already.
    pub(crate) fn admit(self: &Conns, max: usize, peer: String, listener: &str, now_ms: u64) -> Option<Arc<ConnState>> {
        let room = |count: usize| (count < max).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(ConnState {
            id,
            peer,
            listener: listener.to_owned(),
            last_ms: AtomicU64::new(now_ms),
            stuck_since_ms: AtomicU64::new(NEVER),
            phase: AtomicU8::new(Phase::Idle as u8),
            waker: Mutex::default(),
        });
        self.open.lock().insert(id, (state.clone(), None));
        Some(state)
    }

    /// Gives the handle that ends a connection's task.
    pub(crate) fn started(&self, id: u64, abort: AbortHandle) {
        if let Some((_, handle)) = self.open.lock().get_mut(&id) {
            *handle = Some(abort);
        }
    }

    pub(crate) fn closed(&self, id: u64) {
        if self.open.lock().remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends those that `over` says: how many. They go when their task is dropped, and whoever asks again before that is not told of them once more.
    pub(crate) fn end(&self, over: impl Fn(&ConnState) -> bool) -> usize {
        let mut open = self.open.lock();
        let ended = open.values_mut().filter(|(state, abort)| abort.is_some() && over(state));
        ended.filter_map(|(_, abort)| abort.take()).map(|abort| abort.abort()).count()
    }

    /// Has each look at what the server is about.
    pub(crate) fn wake_all(&self) {
        self.open.lock().values().filter_map(|(state, _)| state.waker.lock().clone()).for_each(Waker::wake);
    }

    /// Each of them, for a listing.
    pub(crate) fn all(&self) -> Vec<Arc<ConnState>> {
        self.open.lock().values().map(|(state, _)| state.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its task goes a moment later: by then it may be over a limit again, or over another one.
    #[tokio::test]
    async fn a_connection_that_is_ended_twice_is_counted_once() {
        let conns = Conns::default();
        let state = conns.admit(1, String::new(), "", 0).unwrap();
        assert_eq!(conns.end(|_| true), 0, "its task was not started");
        let task = tokio::spawn(std::future::pending::<()>());
        conns.started(state.id, task.abort_handle());
        assert_eq!([conns.end(|_| false), conns.end(|_| true), conns.end(|_| true)], [0, 1, 0]);
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
