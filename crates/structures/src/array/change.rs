//! Changes that remove and add at once: one frame in one shard, a numbered change over several.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder_core::{Ctx, Effect, Error, ErrorKind, Result, ambient};

use super::handle::Handle;
use super::keeper::{Claim, Keeper, Outcome, outdated};
use super::layout::{fenced, numbered};
use crate::append::Action;
use crate::events;
use crate::ids::random_id;
use crate::lock::LockGuard;
use crate::retry::Backoff;
use crate::runtime;

/// How many numbers a change fights for.
const NUMBERS_MAX: usize = 64;
/// How long before its deadline a change of several steps takes no further one.
const SETTLED_BEFORE: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);

impl Handle {
    pub(super) async fn change(
        &self,
        guard: Option<&LockGuard>,
        add: impl IntoIterator<Item = impl AsRef<[u8]>>,
        delete: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        let mut parts = BTreeMap::new();
        self.operations(&mut parts, Action::Remove, delete)?;
        self.operations(&mut parts, Action::Put, add)?;
        if parts.is_empty() {
            return Ok(());
        }
        self.shards.vigil.check()?;
        runtime::current("a change has a timeout")?;
        let token = match guard {
            Some(guard) => {
                guard.check()?;
                Some(guard.fencing_token())
            }
            None => None,
        };
        let deadline = ambient::now() + self.timeout;
        // What is known by then is told: cut off at the deadline itself, it would be unknown.
        let settled_by = deadline - (self.timeout / 8).min(SETTLED_BEFORE);
        match (self.keeper(), token) {
            (None, Some(token)) => self.within(deadline, self.change_fenced(settled_by, parts, token)).await?,
            (Some(keeper), token) if token.is_some() || parts.len() > 1 => {
                self.within(deadline, self.change_many(settled_by, keeper, parts, guard)).await?;
            }
            _ => self.write(deadline, parts).await?,
        }
        self.shards.vigil.check()
    }

    /// Gives up at the deadline.
    pub(super) async fn within<T>(&self, deadline: Instant, change: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout_at(deadline.into(), change).await.unwrap_or_else(|_| {
            let detail = format!("the change was not settled within {:?}", self.timeout);
            Err(Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown))
        })
    }

    /// Under a lock, in an array of one shard: every reader drops it if a later holder was here before.
    async fn change_fenced(&self, deadline: Instant, parts: BTreeMap<u16, Vec<u8>>, token: u64) -> Result<()> {
        let id = random_id();
        let parts = parts.into_iter().map(|(shard, operations)| (shard, fenced(token, id, &operations))).collect();
        self.write(deadline, parts).await?;
        let unknown = |error: Error| error.effect(Effect::Unknown);
        let readings = self.shards.read(Ctx { deadline: Some(deadline) }, [0]).await.map_err(unknown)?;
        for reading in &readings {
            let state = self.state(reading, &None).map_err(unknown)?.state;
            match state.fenced.iter().find(|(found, _)| *found == id) {
                Some((_, true)) => {}
                Some((_, false)) => return Err(outdated(&self.what, token, state.token)),
                // Compacted away meanwhile. No higher token was seen: it counted.
                None if state.token <= token => {}
                None => return Err(unknown(outdated(&self.what, token, state.token))),
            }
        }
        Ok(())
    }

    /// Over several shards: first into each of them, then by one write that makes it count in all.
    async fn change_many(
        &self,
        deadline: Instant,
        keeper: &Keeper,
        parts: BTreeMap<u16, Vec<u8>>,
        guard: Option<&LockGuard>,
    ) -> Result<()> {
        if !self.store.profile().cas {
            return Err(keeper.unsupported());
        }
        let turn = tokio::time::timeout_at(deadline.into(), self.turn.lock()).await;
        let Ok(_turn) = turn else {
            return Err(keeper.error(ErrorKind::Timeout, "other changes of this handle took all the time there was"));
        };
        let ctx = Ctx { deadline: Some(deadline) };
        let touched: Vec<u16> = parts.keys().copied().collect();
        let token = guard.map(LockGuard::fencing_token);
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        // Until the commits say so nothing counts, whatever became of the appends.
        let not_applied = |error: Error| error.effect(Effect::NotApplied);
        for _ in 0..NUMBERS_MAX {
            let (mut commits, _) = keeper.current(ctx).await.map_err(not_applied)?;
            if keeper.wants_tidying(&commits) {
                self.tidy(ctx, keeper).await.map_err(not_applied)?;
                (commits, _) = keeper.current(ctx).await.map_err(not_applied)?;
            }
            if let Some(token) = token.filter(|token| *token < commits.token) {
                return Err(keeper.outdated(token, commits.token));
            }
            keeper.check_open(&commits).map_err(not_applied)?;
            let (number, id) = (commits.last() + 1, random_id());
            let framed = parts.iter().map(|(&shard, operations)| (shard, numbered(number, id, operations))).collect();
            self.write(deadline, framed).await.map_err(not_applied)?;
            guard.map_or(Ok(()), LockGuard::check)?;
            match keeper.claim(deadline, &Claim { number, id, touched: &touched, token }).await? {
                Outcome::Won => return Ok(()),
                Outcome::Beaten => {
                    events::retry(keeper.subject(), ErrorKind::Conflict);
                    tokio::time::sleep(backoff.next_pause()).await;
                }
            }
        }
        let why = format!("others changed it at each of {NUMBERS_MAX} tries");
        Err(keeper.error(ErrorKind::Conflict, &why))
    }

    /// Settles older numbers in the shards, so that the commits can forget them.
    async fn tidy(&self, ctx: Ctx, keeper: &Keeper) -> Result<()> {
        let (_, commits) = self.read(ctx).await?;
        let Some(commits) = commits.filter(|commits| keeper.is_behind(commits)) else { return Ok(()) };
        let todo = keeper.behind(&commits);
        match self.shards.compact_these(ctx, todo, true).await {
            // Others write without a pause: there is room for some more numbers before it must succeed.
            Err(error) if error.kind() == ErrorKind::Conflict && !keeper.is_full(&commits) => return Ok(()),
            // So there is where a shard has no room to note what it has settled, which will hardly be otherwise at the next.
            Err(error) if error.kind() == ErrorKind::Full && !keeper.is_full(&commits) => {
                keeper.tidied_in_vain(&commits);
                return Ok(());
            }
            settled => settled.map(|_| ())?,
        }
        self.read(ctx).await.map(|_| ())
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
