//! Work beside the caller: one piece at a time, forgotten when it fails.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::Result;
use tokio::runtime::Handle;

/// What a handle does beside its callers, of one sort: there is one at a time.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// True while a piece of it is done.
    is_busy: Arc<AtomicBool>,
}

/// Lets the next piece in when it is dropped, however that comes.
struct Busy(Arc<AtomicBool>);

impl Behind {
    /// Starts a piece of work that may take so long, unless one is under way or there is no runtime to do it on. Never waits, never fails: what the work comes to is
    /// forgotten, so it must do no harm by failing, and somebody must try again.
    pub(crate) fn run<F>(&self, most: Duration, work: impl FnOnce() -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.is_busy.swap(true, Ordering::Acquire) {
            return;
        }
        let busy = Busy(self.is_busy.clone());
        let work = work();
        runtime.spawn(async move {
            _ = tokio::time::timeout(most, work).await;
            drop(busy);
        });
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_piece_at_a_time_and_the_next_after_it_ended_failed_or_took_too_long() {
        let behind = Behind::default();
        let (send, mut done) = tokio::sync::mpsc::unbounded_channel();
        let piece = |name: &'static str, takes: u64| {
            let send = send.clone();
            move || async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                _ = send.send(name);
                Err(larder_core::ext::no_reply())
            }
        };
        let most = Duration::from_secs(5);
        behind.run(most, piece("first", 1));
        behind.run(most, piece("beside it", 1));
        assert_eq!(done.recv().await, Some("first"));
        tokio::task::yield_now().await;
        behind.run(most, piece("too long", 60));
        tokio::time::sleep(Duration::from_secs(6)).await;
        behind.run(most, piece("after it", 1));
        assert_eq!(done.recv().await, Some("after it"));
    }
}
