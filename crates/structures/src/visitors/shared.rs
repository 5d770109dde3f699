//! What all parts of a handle share: the windows of a time, their keys and lives, the ledger.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_core::{Batch, ClockRef, Ctx, Error, ErrorKind, Key, Op, Reply, Result, StoreRef, Ttl, TtlSupport, ambient};

use super::known::Known;
use super::layout::{self, Index, Params, WINDOW_MAX};
use crate::ledger::{CLOCKS_APART_MAX, Ledger, List, Piece};
use crate::manifest::Manifest;
use crate::name::Name;
use crate::vigil::Vigil;

/// How many windows behind the one that is being filled are read, and take late hits.
pub(super) const KEPT: u64 = 2;
/// What stores take off a life at the most: memcached counts whole seconds.
const GRAIN_MS: u64 = 5_000;
/// Entries of the ledger whose windows are over are removed when there are so many.
const TRIM_MIN: usize = 16;
/// So many more are not left to a task beside the caller, which a short-lived process does not wait for.
const TRIM_NOW_MIN: usize = 256;
/// How long removing them may take.
const TRIM_MAX: Duration = Duration::from_secs(5);

/// An opened structure.
pub(super) struct Shared {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) params: Params,
    pub(super) ledger: Ledger,
    pub(super) known: Known,
    pub(super) clock: ClockRef,
    pub(super) timeout: Duration,
    /// The largest shard.
    pub(super) value_bytes_max: usize,
    /// True while entries of windows that are over are removed beside the callers.
    pub(super) is_trimming: AtomicBool,
    /// True while a shard is compacted beside the callers.
    pub(super) is_compacting: AtomicBool,
}

impl Shared {
    pub(super) fn vigil(&self) -> &Arc<Vigil> {
        self.ledger.vigil()
    }

    pub(super) fn deadline(&self) -> Instant {
        let now = ambient::now();
        now.checked_add(self.timeout).unwrap_or(now)
    }

    pub(super) fn now_ms(&self) -> u64 {
        as_ms(self.clock.wall())
    }

    /// The window of a time.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for one that has no key.
    pub(super) fn window_of(&self, time_ms: u64) -> Result<u64> {
        let window = layout::window_of(time_ms, self.params.period_ms);
        if window > WINDOW_MAX {
            let detail = format!(
                "the time is {time_ms} ms after 1970, in window {window} of {} ms; the last window is {WINDOW_MAX}",
                self.params.period_ms
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(window)
    }

    /// The window of a hit that tells its own time.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for one that is over, or too far ahead.
    pub(super) fn window_of_hit(&self, time_ms: u64) -> Result<u64> {
        let now_ms = self.now_ms();
        let ahead_ms = time_ms.saturating_sub(now_ms);
        if ahead_ms > as_ms(CLOCKS_APART_MAX) {
            let detail = format!(
                "the hit is {ahead_ms} ms ahead of this clock; the limit is {} ms: clocks that differ by more count in \
                 windows that nobody reads in time",
                as_ms(CLOCKS_APART_MAX)
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        let window = self.window_of(time_ms)?;
        self.expect_kept(window, now_ms)?;
        Ok(window)
    }

    /// # Errors
    /// [`ErrorKind::BadInput`] for a window that is over.
    pub(super) fn expect_kept(&self, window: u64, now_ms: u64) -> Result<()> {
        if self.is_kept(window, now_ms) {
            return Ok(());
        }
        let period_ms = self.params.period_ms;
        let since_ms = now_ms.saturating_sub(layout::begin_ms(window.saturating_add(1), period_ms));
        let detail = format!(
            "window {window} ended {since_ms} ms ago; a window is kept for {KEPT} periods, {} ms, after its end",
            KEPT.saturating_mul(period_ms)
        );
        Err(Error::new(ErrorKind::BadInput, detail))
    }

    /// True while a window is read and hit.
    pub(super) fn is_kept(&self, window: u64, now_ms: u64) -> bool {
        now_ms < self.kept_until_ms(window)
    }

    fn kept_until_ms(&self, window: u64) -> u64 {
        layout::begin_ms(window.saturating_add(KEPT + 1), self.params.period_ms)
    }

    /// The life of what is made, or written anew, in a window now: it ends with the window's use, whenever it began, and for clocks
    /// that are behind this one as much later as they may be.
    pub(super) fn life(&self, window: u64) -> Ttl {
        if self.store.profile().ttl == TtlSupport::None {
            return Ttl::Never;
        }
        let end_ms = self.kept_until_ms(window).saturating_add(as_ms(CLOCKS_APART_MAX) + GRAIN_MS);
        Ttl::After(Duration::from_millis(end_ms.saturating_sub(self.now_ms()).max(1_000)))
    }

    pub(super) fn key(&self, window: u64, part: u16) -> Result<Key> {
        self.manifest.data_key(&self.name, Index { window, part })
    }

    /// Runs a batch as long as this is the structure of its name.
    pub(super) async fn run_one(&self, ctx: Ctx, op: Op) -> Result<Reply> {
        let mut replies = self.vigil().run(ctx, Batch::from_buf([op])).await;
        replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
    }

    /// Sees to it that the ledger lists parts that are there, and remembers that it does. **Round trips: 0** where `list` has them,
    /// else 1.
    pub(super) async fn enlist(self: &Arc<Self>, deadline: Instant, list: &List, pieces: &[Piece]) -> Result<()> {
        let new: Vec<Piece> = pieces.iter().filter(|piece| !list.has(piece.number, piece.part)).copied().collect();
        if !new.is_empty() {
            self.register(deadline, list, &new).await?;
        }
        let now_ms = self.now_ms();
        let oldest = layout::window_of(now_ms, self.params.period_ms).saturating_sub(KEPT + 1);
        for piece in pieces {
            let key = self.key(piece.number, piece.part)?;
            self.known.listed(piece.number, piece.part, key, oldest.min(piece.number));
        }
        self.trim(list, now_ms).await;
        Ok(())
    }

    /// Once the ledger has told `Lost`: removes the parts that this handle wrote to and cannot list, where it is gone, as in a drop: they are nobody's. What cannot be
    /// removed ends by itself. **Round trips: 0** where there are none, else 1, and 1 more where another life of the name was seen.
    pub(super) async fn remove_orphans(&self, ctx: Ctx) {
        let made = self.ledger.orphans(ctx).await;
        for some in made.chunks(self.store.profile().batch_ops_max) {
            let deletes: Result<Batch> =
                some.iter().map(|made| Ok(Op::delete(self.key(made.piece.number, made.piece.part)?))).collect();
            let Ok(deletes) = deletes else { return };
            if self.store.run(ctx, deletes).await.iter().all(Result::is_ok) {
                self.ledger.removed(some);
            }
        }
    }

    /// Enters parts in the ledger. Where that has no room, entries of windows that are over make it.
    async fn register(&self, deadline: Instant, list: &List, pieces: &[Piece]) -> Result<()> {
        let outcome = self.ledger.register(deadline, pieces).await;
        if !matches!(&outcome, Err(error) if error.kind() == ErrorKind::Full) {
            return outcome;
        }
        let over = self.over(list, self.now_ms());
        if over.is_empty() {
            return outcome;
        }
        self.ledger.trim(deadline, &over, |piece| self.key(piece.number, piece.part)).await?;
        self.ledger.register(deadline, pieces).await
    }

    /// What is listed of windows that are over by everybody's clock.
    fn over(&self, list: &List, now_ms: u64) -> Vec<Piece> {
        // By the clock of the maker an item ends that much later, and this clock may be ahead of the maker's.
        let slack_ms = 2 * as_ms(CLOCKS_APART_MAX) + GRAIN_MS;
        let is_over = |piece: &&Piece| self.kept_until_ms(piece.number).saturating_add(slack_ms) <= now_ms;
        list.pieces().iter().filter(is_over).copied().collect()
    }

    /// Removes entries of windows that are over by everybody's clock, now and then. Never fails: the next one tries again.
    async fn trim(self: &Arc<Self>, list: &List, now_ms: u64) {
        let over = self.over(list, now_ms);
        if over.len() < TRIM_MIN || self.is_trimming.swap(true, Ordering::Acquire) {
            return;
        }
        let trimming = Trimming(self.clone());
        let is_long = over.len() >= TRIM_NOW_MIN;
        let work = async move {
            let shared = &trimming.0;
            let key_of = |piece: &Piece| shared.key(piece.number, piece.part);
            let now = ambient::now();
            _ = shared.ledger.trim(now.checked_add(TRIM_MAX).unwrap_or(now), &over, key_of).await;
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !is_long => _ = runtime.spawn(work),
            _ => work.await,
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitors").field("name", &self.name).field("params", &self.params).finish_non_exhaustive()
    }
}

/// Entries being removed; lets the next one in when it is dropped, however that comes.
struct Trimming(Arc<Shared>);

impl Drop for Trimming {
    fn drop(&mut self) {
        self.0.is_trimming.store(false, Ordering::Release);
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
