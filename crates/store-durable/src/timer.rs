//! The timer: syncs in time where the store syncs now and then, has expired items reclaimed, and notes how far the store is on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::committer::{Request, Shared};
use crate::options::Sync;
use crate::queue::Queue;

/// How often expired items are looked for and the note is brought up to date.
const CHORES_EVERY: Duration = Duration::from_secs(1);

/// How often some of what earlier generations left is swept away, while there is any.
const SWEEP_EVERY: Duration = Duration::from_millis(20);

/// A thread that is ended by [`stop`](Timer::stop).
pub(crate) struct Timer {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts it. `note` writes down how far the store is on disk.
    pub(crate) fn start(
        shared: Arc<Shared>,
        queue: Arc<Queue<Request>>,
        mut note: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Timer> {
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let tick = match shared.sync {
            Sync::Every(interval) => interval.min(CHORES_EVERY),
            Sync::Always | Sync::Never => CHORES_EVERY,
        };
        let work = move || {
            let mut chores_at = Instant::now() + CHORES_EVERY;
            let mut noted = shared.synced.load(Ordering::Acquire);
            loop {
                let sweeps = shared.sweeps.load(Ordering::Acquire);
                thread::park_timeout(if sweeps { tick.min(SWEEP_EVERY) } else { tick });
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                if sweeps {
                    _ = queue.try_send(Request::Sweep);
                }
                if matches!(shared.sync, Sync::Every(_)) {
                    // What cannot be synced is told to whoever writes next.
                    _ = shared.sync_now();
                }
                if Instant::now() < chores_at {
                    continue;
                }
                chores_at = Instant::now() + CHORES_EVERY;
                if let Some(unsettled) = shared.unsettled.get() {
                    unsettled.trim();
                    if unsettled.is_untold() {
                        _ = queue.try_send(Request::Inbox);
                    }
                }
                if shared.front.items() > 0 {
                    _ = queue.try_send(Request::Move { reply: None });
                }
                let is_due = shared.expiry.is_due(shared.time.now_ms()) && shared.failure().is_none();
                if is_due {
                    _ = queue.try_send(Request::Reclaim { reply: None });
                }
                let synced = shared.synced.load(Ordering::Acquire);
                if synced != noted {
                    noted = synced;
                    note();
                }
            }
        };
        let thread = thread::Builder::new().name("larder-timer".to_owned()).spawn(work)?;
        Ok(Timer { stops, thread: Some(thread) })
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(&mut self) {
        self.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            _ = thread.join();
        }
    }
}
