//! Hits whose caller knows that the visitor is new to the window: arithmetic.
//!
//! | the handle | one batch | what then |
//! |---|---|---|
//! | knows that the ledger lists the window's counter | `incr` | a number: counted. A miss: it is gone; on as below |
//! | does not | `add` of a counter without hits, `incr`, `get` of the ledger | a number: counted. It tells the counter's incarnation: unless the ledger lists the counter, it is entered before the hit is acknowledged |
//!
//! The `add` comes to nothing where the counter is there. Creating by `incr` itself would save an op where the store can do it, and would not
//! tell a counter that was made anew from one that was there.

use std::sync::Arc;

use larder_core::{Arith, Batch, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Reply, Result};

use super::layout::{self, COUNT_MAX, COUNTER};
use super::shared::Shared;
use crate::ids::random_id;
use crate::ledger::Piece;
use crate::manifest::unexpected;
use crate::owned::counting;
use crate::runtime;

/// The most hits of one call: hundreds of callers that pass a window's limit at once cannot reach the end of its field.
pub(super) const HITS_MAX: u64 = 1 << 31;
/// How often a counter is made that is gone before it counted.
const TRIES_MAX: usize = 4;

impl Shared {
    pub(super) async fn hit(self: &Arc<Self>, window: u64, hits: u64) -> Result<()> {
        if hits > HITS_MAX {
            let detail = format!("{hits} hits are too many for one call; the limit is {HITS_MAX}");
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        if hits == 0 {
            return Ok(());
        }
        self.vigil().check()?;
        self.hit_known(window, hits).await?;
        self.vigil().check()
    }

    async fn hit_known(self: &Arc<Self>, window: u64, hits: u64) -> Result<()> {
        if let Some(key) = self.known.part(window, COUNTER) {
            let ctx = Ctx { deadline: Some(self.deadline()) };
            let op = Op::arith(key.clone(), Arith::Incr(hits));
            match self.run_one(ctx, op.clone()).await.map_err(|error| counting(error, &key))? {
                Reply::Number(number) => return self.check_count(ctx, &key, number, hits).await,
                // Nothing was counted: that is certain.
                Reply::Miss => self.known.gone(window, COUNTER),
                other => return Err(unexpected(&op, &other)),
            }
        }
        self.hit_first(window, hits).await
    }

    async fn hit_first(self: &Arc<Self>, window: u64, hits: u64) -> Result<()> {
        runtime::current("a window's first hit has a timeout")?;
        let deadline = self.deadline();
        let ctx = Ctx { deadline: Some(deadline) };
        let key = self.key(window, COUNTER)?;
        for _ in 0..TRIES_MAX {
            // Drawn anew each time: see the ledger.
            let drawn = layout::counter_incarnation(random_id());
            let made = Piece { number: window, part: COUNTER, incarnation: drawn };
            let making = self.ledger.making(vec![made]);
            let value = layout::new_counter(drawn);
            let incr = Op::arith(key.clone(), Arith::Incr(hits));
            let before = self.ledger.seen();
            let batch =
                [Op::put(key.clone(), PutMode::Add, value, self.life(window)), incr.clone(), self.ledger.read_op()];
            let mut replies = self.vigil().run(ctx, Batch::from_iter(batch)).await.into_iter();
            drop(making);
            let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            let (added, counted, listed) = (next(), next(), next());
            let number = match (counted.map_err(|error| counting(error, &key))?, added) {
                (Reply::Number(number), _) => number,
                (Reply::Miss, Err(error)) => return Err(error.effect(Effect::NotApplied)),
                // It was evicted in between.
                (Reply::Miss, Ok(_)) => continue,
                (other, _) => return Err(unexpected(&incr, &other)),
            };
            self.check_count(ctx, &key, number, hits).await?;
            let (incarnation, _) = layout::split_counter(number);
            let piece = Piece { number: window, part: COUNTER, incarnation };
            let entered = async {
                let list = match self.ledger.list(listed, before) {
                    Err(error) if is_passing(&error) => self.ledger.read(ctx).await,
                    list => list,
                };
                self.enlist(deadline, &list?, &[piece]).await
            };
            return match entered.await {
                Ok(()) => {
                    self.ledger.listed(&[made]);
                    Ok(())
                }
                Err(error) => Err(self.not_entered(ctx, error, &key, window).await),
            };
        }
        let detail = format!("the counter of window {window} was evicted {TRIES_MAX} times before it could count");
        Err(Error::new(ErrorKind::Lost, detail).key(&key))
    }

    /// Takes back hits that pass the window's limit, and those that were counted in what is no counter of a window.
    async fn check_count(&self, ctx: Ctx, key: &Key, number: u64, hits: u64) -> Result<()> {
        let (incarnation, count) = layout::split_counter(number);
        if incarnation != 0 && count <= COUNT_MAX {
            return Ok(());
        }
        let (kind, detail, done) = match incarnation {
            // None of ours is 0.
            0 => (
                ErrorKind::LayoutMismatch,
                format!("{hits} hits make {number}, and another program wrote this number"),
                "taken back",
            ),
            _ => (
                ErrorKind::Overflow,
                format!("{hits} hits make {count}; a window counts to {COUNT_MAX} (2^39)"),
                "nothing is counted",
            ),
        };
        match self.run_one(ctx, Op::arith(key.clone(), Arith::Decr(hits))).await {
            Ok(_) => Err(Error::new(kind, format!("{detail}; {done}")).key(key)),
            Err(error) => {
                let detail = format!("{detail}, and taking them back failed: {}", error.detail());
                Err(Error::new(kind, detail).key(key).effect(Effect::Unknown).source(error))
            }
        }
    }

    /// The error of a hit that was counted in a window that could not be entered in the ledger.
    async fn not_entered(&self, ctx: Ctx, error: Error, key: &Key, window: u64) -> Error {
        if error.kind() == ErrorKind::Lost {
            // Dropped, or lost whole: what was made is nobody's.
            self.remove_orphans(ctx).await;
            return error.effect(Effect::NotApplied);
        }
        let detail = format!(
            "the hit was counted, but window {window} could not be entered in the ledger, so its loss would not be told: {error}"
        );
        Error::new(error.kind(), detail).key(key).effect(Effect::Unknown).source(error)
    }
}

/// True for what may be otherwise in a moment.
pub(super) fn is_passing(error: &Error) -> bool {
    error.is_unknown() || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

#[cfg(test)]
mod tests {
    #[test]
    fn hits_of_one_call_are_limited_as_documented() {
        assert_eq!(super::HITS_MAX, 2_147_483_648);
    }
}
