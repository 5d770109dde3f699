//! Whoever hangs can tell nobody: a thread looks on, and tells the input that does not come to an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Looks on at a target's turn.
pub(super) struct Watchdog {
    now: Arc<Now>,
    /// Told to end when it is gone.
    goes_on: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is under way: the executions that were begun, and the seed of the last.
#[derive(Default)]
struct Now {
    begun: AtomicU64,
    seed: AtomicU64,
}

impl Watchdog {
    /// Looks on from now; `tell` is told, once, of an execution that takes longer than `hangs_after`.
    pub(super) fn of(target: &'static str, hangs_after: Duration, tell: fn(&str)) -> Watchdog {
        let now = Arc::<Now>::default();
        let (goes_on, ends) = mpsc::channel();
        let seen = now.clone();
        let thread = thread::spawn(move || {
            let (mut begun, mut since) = (0, Instant::now());
            while ends.recv_timeout(hangs_after / 10) == Err(RecvTimeoutError::Timeout) {
                let latest = seen.begun.load(Ordering::Acquire);
                if latest != begun {
                    (begun, since) = (latest, Instant::now());
                } else if begun > 0 && since.elapsed() > hangs_after {
                    let seed = seen.seed.load(Ordering::Relaxed);
                    return tell(&format!("seed {seed}: fuzz {target}: has not come to an end after {hangs_after:?}"));
                }
            }
        });
        Watchdog { now, goes_on: Some(goes_on), thread: Some(thread) }
    }

    /// The next execution begins, from this seed.
    pub(super) fn begins(&self, seed: u64) {
        self.now.seed.store(seed, Ordering::Relaxed);
        self.now.begun.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.goes_on.take());
        // It does not panic; if it did, that was told.
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Ends the process, and the run without findings: what hangs cannot be stopped otherwise.
pub(super) fn end(what: &str) {
    eprintln!("violation: {what}; the run ends here, and nothing of it is recorded");
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn what_does_not_end_is_told_with_its_seed_while_it_hangs_and_what_ends_is_not() {
        let tell = |what: &str| TOLD.lock().unwrap().push(what.to_owned());
        let hangs_after = Duration::from_millis(200);
        let watchdog = Watchdog::of("planted", hangs_after, tell);
        for seed in 0..40 {
            watchdog.begins(seed);
            thread::sleep(hangs_after / 20);
        }
        assert_eq!(*TOLD.lock().unwrap(), [""; 0]);
        watchdog.begins(77);
        let patience = Instant::now() + Duration::from_secs(20);
        while TOLD.lock().unwrap().is_empty() && Instant::now() < patience {
            thread::sleep(hangs_after / 20);
        }
        drop(watchdog);
        let told = "seed 77: fuzz planted: has not come to an end after 200ms";
        assert_eq!(*TOLD.lock().unwrap(), [told]);
    }
}
