//! Going on with an array of which a part was set back.

use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Reply, Result, ambient};

use super::handle::Handle;
use super::keeper::{Keeper, item_of};
use super::layout::Ordered;
use super::whole::state_of;
use crate::retry::Backoff;
use crate::runtime;

/// How often it is begun anew, where others write meanwhile.
const TRIES_MAX: usize = 64;
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);

impl Handle {
    pub(super) async fn accept_loss(&self) -> Result<bool> {
        self.shards.vigil.check()?;
        runtime::current("accepting a loss has a timeout")?;
        let deadline = ambient::now() + self.timeout;
        let turn = tokio::time::timeout_at(deadline.into(), self.turn.lock()).await;
        let Ok(_turn) = turn else {
            let detail = format!("{}: changes of this handle took all the time there was", self.what);
            return Err(Error::new(ErrorKind::Timeout, detail));
        };
        let accepted = self.within(deadline, self.accept(deadline)).await?;
        self.shards.vigil.check()?;
        Ok(accepted)
    }

    async fn accept(&self, deadline: Instant) -> Result<bool> {
        let ctx = Ctx { deadline: Some(deadline) };
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let (mut has_tried, mut last) = (false, None);
        for _ in 0..TRIES_MAX {
            self.shards.forget();
            let Some(keeper) = self.keeper() else {
                // Nothing but the handle's memory could say that anything is missing.
                self.read(ctx).await?;
                return Ok(false);
            };
            keeper.forget();
            if self.fits(ctx, keeper).await.map_err(|error| sent(error, has_tried))? {
                return Ok(has_tried);
            }
            if !self.store.profile().cas {
                return Err(keeper.unsupported());
            }
            has_tried = true;
            match self.try_to_accept(ctx, keeper).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if may_pass(&error) => last = Some(error),
                Err(error) => return Err(sent(error, true)),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        let detail = || format!("{}: others wrote at each of {TRIES_MAX} tries to go on with it", self.what);
        Err(sent(last.unwrap_or_else(|| Error::new(ErrorKind::Conflict, detail())), true))
    }

    /// Whether the parts are of one past, as far as they can tell.
    async fn fits(&self, ctx: Ctx, keeper: &Keeper) -> Result<bool> {
        let all = (0..self.shards.count()).collect();
        let (readings, commits) = match keeper.read_whole(&self.shards, ctx, all).await {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::RolledBack => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut newest = 0;
        for reading in &readings {
            newest = newest.max(state_of(&self.shards, reading, Ordered::with(Some(commits.clone())))?.state.open);
        }
        if commits.is_ended() {
            return Ok(false);
        }
        if newest.saturating_sub(1) <= commits.last() {
            return Ok(true);
        }
        // Whoever has that number wrote it once the one before was given.
        match keeper.refresh(ctx).await {
            Ok(commits) => Ok(newest - 1 <= commits.last()),
            Err(error) if error.kind() == ErrorKind::RolledBack => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sees to it that no change wins a number from then on: else those who change it without a pause would keep everybody from accepting the loss.
    async fn end_era(&self, ctx: Ctx, keeper: &Keeper) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let (commits, _) = keeper.current(ctx).await?;
            if commits.is_ended() || keeper.replace(ctx, &commits, commits.ended()).await? {
                return Ok(());
            }
        }
        let why = format!("others changed it at each of {TRIES_MAX} tries to accept its loss");
        Err(keeper.error(ErrorKind::Conflict, &why))
    }

    /// Settles all shards by the commits as they are, under the mark of the next era, and then begins it. False where others wrote meanwhile, or it is not known what was
    /// done. **Round trips: 4**, 1 more for each change that wins a number before this era is ended.
    ///
    /// Until the last write every reader is told that the parts do not fit; it lands only where the commits are still those that the shards were settled by. Should they not be, and a
    /// change have won its number meanwhile, it stands in each of its shards yet: what is open is carried along, and what comes later stays in the log.
    async fn try_to_accept(&self, ctx: Ctx, keeper: &Keeper) -> Result<bool> {
        self.end_era(ctx, keeper).await?;
        let before = keeper.commits();
        let (readings, reply) = self.shards.read_with(ctx, 0..self.shards.count(), Some(keeper.read_op())).await?;
        let commits = keeper.take_in(item_of(reply)?, before.as_deref())?;
        if !commits.is_ended() {
            return Ok(false);
        }
        let Some(next) = commits.accepted() else {
            return Err(keeper.error(ErrorKind::Full, "no era is left in which it could go on"));
        };
        let (mut batch, mut written) = (Batch::new(), Vec::new());
        for reading in &readings {
            let folded = state_of(&self.shards, reading, Ordered::accepting(commits.clone()))?;
            if (folded.state.mark, folded.state.chain) == (next.base, next.tip()) {
                continue;
            }
            batch.push(self.shards.rewrite_op(reading, &folded)?);
            written.push(reading.shard);
        }
        let mut is_whole = true;
        if !batch.is_empty() {
            for (shard, reply) in written.into_iter().zip(self.shards.vigil.run(ctx, batch).await) {
                match reply {
                    Ok(Reply::Stored) => {}
                    Ok(Reply::Miss) => return Err(self.shards.lost(&[shard])),
                    Ok(_) => is_whole = false,
                    Err(error) if may_pass(&error) => is_whole = false,
                    Err(error) => return Err(error),
                }
            }
        }
        if is_whole { keeper.replace(ctx, &commits, next).await } else { Ok(false) }
    }
}

/// True where another try may end otherwise.
fn may_pass(error: &Error) -> bool {
    let passing = [ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::Conflict, ErrorKind::RolledBack];
    error.is_unknown() || passing.contains(&error.kind())
}

fn sent(error: Error, has_sent: bool) -> Error {
    error.effect(if has_sent { Effect::Unknown } else { Effect::NotApplied })
}
