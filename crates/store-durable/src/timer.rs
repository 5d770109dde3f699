//! The timer: syncs in time where the store syncs now and then, and has expired items reclaimed. And beside it, in a thread of its own, who notes how far the store is on disk: a note may
//! go to a disk that hangs, and what was written is synced in time all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::committer::{Request, Shared};
use crate::options::Sync;
use crate::queue::Queue;

/// How often expired items are looked for and the note is brought up to date.
const CHORES_EVERY: Duration = Duration::from_secs(1);

/// How often some of what earlier generations left is swept away, or of what is over removed, while there is more of it than is taken up at once.
const PIECE_EVERY: Duration = Duration::from_millis(20);

/// How old the time of the last batch may be while somebody is told what is over by a later one.
const TIME_NOTED_MS: u64 = 60_000;

/// A thread that is ended by [`stop`](Timer::stop).
pub(crate) struct Timer {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts the timer.
    pub(crate) fn start(shared: Arc<Shared>, queue: Arc<Queue<Request>>) -> std::io::Result<Timer> {
        let tick = match shared.sync {
            Sync::Every(interval) => interval.min(CHORES_EVERY),
            Sync::Always | Sync::Never => CHORES_EVERY,
        };
        let mut chores_at = Instant::now() + CHORES_EVERY;
        let asked = shared.clone();
        let pause = move || {
            let goes_on = asked.sweeps.load(Ordering::Acquire) || asked.expiry.has_more();
            if goes_on { tick.min(PIECE_EVERY) } else { tick }
        };
        let work = move || {
            if shared.sweeps.load(Ordering::Acquire) {
                _ = queue.try_send(Request::Sweep);
            }
            shared.expiry.ask_for_more(|| queue.try_send(Request::Reclaim { reply: None }));
            if matches!(shared.sync, Sync::Every(_)) {
                // What cannot be synced is told to whoever writes next.
                _ = shared.sync_now();
            }
            if Instant::now() >= chores_at {
                chores_at = Instant::now() + CHORES_EVERY;
                chores(&shared, &queue);
            }
        };
        Timer::spawn("larder-timer", pause, work)
    }

    /// Starts who notes: `note` writes down how far the store is on disk.
    pub(crate) fn start_notes(shared: Arc<Shared>, mut note: impl FnMut() + Send + 'static) -> std::io::Result<Timer> {
        let mut noted = shared.synced.load(Ordering::Acquire);
        let work = move || {
            let synced = shared.synced.load(Ordering::Acquire);
            if synced != noted {
                noted = synced;
                note();
            }
        };
        Timer::spawn("larder-notes", || CHORES_EVERY, work)
    }

    /// A thread that works, again and again, each time after a pause.
    fn spawn(
        name: &str,
        pause: impl Fn() -> Duration + Send + 'static,
        mut work: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Timer> {
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let work = move || {
            loop {
                thread::park_timeout(pause());
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                work();
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
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

impl Drop for Timer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What is to be done once a second.
fn chores(shared: &Shared, queue: &Queue<Request>) {
    if shared.failure().is_none() {
        match shared.engine.check().and_then(|()| shared.make_room()) {
            Ok(true) => _ = queue.try_send(Request::Nothing),
            Ok(false) => {}
            Err(fault) => shared.fail(&fault),
        }
    }
    if let Some(unsettled) = shared.unsettled.get() {
        unsettled.trim();
        if unsettled.is_untold() {
            _ = queue.try_send(Request::Inbox);
        }
    }
    if shared.front.items() > 0 {
        _ = queue.try_send(Request::Move { reply: None });
    }
    let noted_ms = shared.time_noted_ms.load(Ordering::Relaxed);
    if shared.told_over.load(Ordering::Relaxed) && shared.time.now_ms() >= noted_ms.saturating_add(TIME_NOTED_MS) {
        _ = queue.try_send(Request::Time);
    }
    let is_due = shared.expiry.is_due(shared.time.now_ms()) && shared.failure().is_none();
    if is_due {
        _ = queue.try_send(Request::Reclaim { reply: None });
    }
}
