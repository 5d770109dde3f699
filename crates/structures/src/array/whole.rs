//! Shards and commits of one moment, though they lie on several servers; or that they cannot be.

use std::sync::Arc;

use larder_core::{Ctx, Error, ErrorKind, Result};

use super::commits::{Commits, Wants};
use super::keeper::{ArrayElements, Keeper, item_of};
use super::layout::Ordered;
use crate::append::Shards;
use crate::append::layout::Folded;
use crate::append::shards::Reading;

/// How often a read asks again for what is older than the rest of it.
const READ_TRIES_MAX: usize = 32;

impl Keeper {
    /// Reads these shards and the commits, as they are with the same numbered changes. **Round trips: 1**, more only where changes over several
    /// shards went on meanwhile, or where it fails.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] where they cannot have been there at one moment, whenever they were read.
    pub(crate) async fn read_whole(
        &self,
        shards: &Shards<ArrayElements>,
        ctx: Ctx,
        which: Vec<u16>,
    ) -> Result<(Vec<Reading>, Arc<Commits>)> {
        let before = self.commits();
        let (mut readings, reply) = shards.read_with(ctx, which, Some(self.read_op())).await?;
        let mut commits = self.take_in(item_of(reply)?, before.as_deref())?;
        // What was known of the commits when each shard was read: it must show at least that.
        let mut known = vec![before; readings.len()];
        for _ in 0..READ_TRIES_MAX {
            let mut stale = Vec::new();
            let mut newest_mark = 0;
            for (at, reading) in readings.iter().enumerate() {
                let folded = state_of(shards, reading, Ordered::with(Some(commits.clone())))?;
                let known = known[at].as_deref();
                let is_stale = match commits.wants(reading.shard, &folded.state) {
                    Wants::Nothing => {
                        self.saw_mark(reading.shard, folded.state.mark);
                        continue;
                    }
                    Wants::NewerCommits(mark) => {
                        newest_mark = mark.max(newest_mark);
                        continue;
                    }
                    Wants::NewerShard(number) => known.is_none_or(|known| known.last() < number),
                    Wants::SettledShard(upto) => known.is_none_or(|known| known.base < upto),
                    Wants::SamePast(_) => known.is_none_or(|known| known.tip() != commits.tip()),
                };
                if !is_stale {
                    return Err(self.torn(reading.shard, commits.wants(reading.shard, &folded.state)));
                }
                stale.push(at);
            }
            if newest_mark > 0 {
                commits = self.refresh(ctx).await?;
                if commits.last() < newest_mark {
                    let why = format!("its last change is {}; {newest_mark} is settled already", commits.last());
                    return Err(self.error(ErrorKind::RolledBack, &why));
                }
            } else if stale.is_empty() {
                return Ok((readings, commits));
            } else {
                let which: Vec<u16> = stale.iter().map(|&at| readings[at].shard).collect();
                for (at, reading) in stale.into_iter().zip(shards.read(ctx, which).await?) {
                    known[at] = Some(commits.clone());
                    readings[at] = reading;
                }
            }
        }
        let why = format!("others changed it at each of {READ_TRIES_MAX} tries to read it");
        Err(self.error(ErrorKind::Conflict, &why))
    }

    /// The error for a shard that was read later than the commits, and does not fit them.
    fn torn(&self, shard: u16, wants: Wants) -> Error {
        let why = match wants {
            Wants::NewerShard(number) | Wants::SettledShard(number) => {
                format!("shard {shard} lacks change {number}, which had been committed")
            }
            _ => format!("shard {shard} has settled changes that are not those which the commits know"),
        };
        let why = format!("{why}: a part of it was set back (accept_loss takes what is there)");
        self.error(ErrorKind::RolledBack, &why)
    }
}

/// What a shard holds, in a state of the caller's.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for what this release cannot read.
pub(super) fn state_of<'v>(
    shards: &Shards<ArrayElements>,
    reading: &'v Reading,
    state: Ordered<'v>,
) -> Result<Folded<Ordered<'v>>> {
    let folded = shards.fold(reading, state)?;
    if !folded.state.is_readable() {
        let detail = format!("{}: shard {} holds what this release does not know", shards.what(), reading.shard);
        return Err(Error::new(ErrorKind::LayoutMismatch, detail));
    }
    Ok(folded)
}
