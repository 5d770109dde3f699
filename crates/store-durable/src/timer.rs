//! The timer: syncs in time where the store syncs now and then, and has expired items reclaimed. And beside it, in threads of their own, who note how far the store is on disk: a note may
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
        let (mut chores_at, mut sync_at) = (Instant::now() + CHORES_EVERY, Instant::now());
        let work = move || {
            if shared.sweeps.load(Ordering::Acquire) {
                _ = queue.try_send(Request::Sweep);
            }
            shared.expiry.ask_for_more(|| queue.try_send(Request::Reclaim { reply: None }));
            // Though it wakes more often while pieces are to be removed.
            if let Sync::Every(interval) = shared.sync
                && Instant::now() >= sync_at
            {
                // What cannot be synced is told to whoever writes next.
                _ = shared.sync_now();
                sync_at = Instant::now() + interval;
            }
            if Instant::now() >= chores_at {
                chores_at = Instant::now() + CHORES_EVERY;
                chores(&shared, &queue);
            }
            let goes_on = shared.sweeps.load(Ordering::Acquire) || shared.expiry.has_more();
            let pause = if goes_on { tick.min(PIECE_EVERY) } else { tick };
            match shared.sync {
                Sync::Every(_) => pause.min(sync_at.saturating_duration_since(Instant::now())),
                Sync::Always | Sync::Never => pause,
            }
        };
        Timer::spawn("larder-timer", tick, work)
    }

    /// Starts who notes: `note` writes down how far the store is on disk, as often as that is further, and says whether it could. What it could not is tried again.
    pub(crate) fn start_notes(
        name: &str,
        shared: Arc<Shared>,
        mut note: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<Timer> {
        let mut noted = shared.synced.load(Ordering::Acquire);
        let work = move || {
            let synced = shared.synced.load(Ordering::Acquire);
            if synced != noted && note() {
                noted = synced;
            }
            CHORES_EVERY
        };
        Timer::spawn(name, CHORES_EVERY, work)
    }

    /// A thread that works, again and again, each time after a pause: the work tells the next one.
    fn spawn(
        name: &str,
        mut pause: Duration,
        mut work: impl FnMut() -> Duration + Send + 'static,
    ) -> std::io::Result<Timer> {
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let work = move || {
            loop {
                thread::park_timeout(pause);
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                pause = work();
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

#[cfg(test)]
mod tests {
    use larder_core::{Ctx, Key, Op, PutMode, Store, Ttl};

    use super::*;
    use crate::{Direct, DirectNext, Options};

    /// As where its table is on a disk that stands still.
    #[test]
    fn an_item_that_is_read_for_long_holds_up_no_sync() {
        let folder = tempfile::tempdir().unwrap();
        let every = Sync::Every(Duration::from_millis(20));
        let direct = Direct::new(Options::new(folder.path()).sync(every).open().unwrap());
        let shared = direct.store().shared();
        thread::scope(|scope| {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let direct = &direct;
            scope.spawn(move || {
                direct.update(b"slow", |_, _| {
                    _ = released.recv();
                    DirectNext::Keep
                })
            });
            // Where the timer waits for it, it comes to that meanwhile.
            let begun = Instant::now();
            while begun.elapsed() < CHORES_EVERY * 3 {
                direct.store().nudge(Request::Nothing);
                thread::sleep(Duration::from_millis(5));
                let asked = Instant::now();
                while shared.synced.load(Ordering::Acquire) < shared.written.load(Ordering::Acquire) {
                    assert!(asked.elapsed() < CHORES_EVERY * 10, "nobody syncs");
                    thread::sleep(Duration::from_millis(5));
                }
            }
            drop(release);
        });
    }

    const INTERVAL: Duration = Duration::from_millis(400);

    #[tokio::test]
    async fn it_syncs_as_often_as_was_asked_for_however_much_is_to_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).sync(Sync::Every(INTERVAL)).open().unwrap();
        for batch in 0..20 {
            let put = |nth| {
                let key = Key::new(format!("{batch}.{nth}")).unwrap();
                Op::put(key, PutMode::Set, "v", Ttl::After(Duration::from_millis(1)))
            };
            assert!(store.run(Ctx::default(), (0..1_000).map(put).collect()).await.iter().all(Result::is_ok));
        }
        let synced = || store.shared().synced.load(Ordering::Acquire);
        let until = Instant::now() + Duration::from_secs(20);
        // They are looked for within a second, and removed in 20 pieces, each of which is a batch.
        let (mut is_at_it, mut last, mut syncs) = (false, synced(), Vec::new());
        while !is_at_it || store.shared().expiry.has_more() {
            assert!(Instant::now() < until, "they are removed");
            is_at_it = is_at_it || store.shared().expiry.has_more();
            let now = synced();
            if now != last {
                syncs.push(Instant::now());
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let close = syncs.windows(2).filter(|two| two[1] - two[0] < INTERVAL / 2).count();
        assert!(close <= 2, "{syncs:?}");
    }
}
