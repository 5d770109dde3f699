//! Building a version beside the one in force, and putting it in its place.
//!
//! | step | what a crash after it leaves |
//! |---|---|
//! | 1. pack the rows | nothing |
//! | 2. the head lists the version, and marks others that are being built as over | the next build marks this one as over, and removes its keys |
//! | 3. write its blocks, looking at the head with each batch | the same |
//! | 4. read all of them back | the same |
//! | 5. the head puts it in force, and marks the one before as over | keys of the one before, which the next build removes; handles see the head within a second |
//! | 6. remove the keys of what is over | the same |
//! | 7. the head forgets it, but what this build has ended: a request of that may be under way yet, and the next build sees to it | nothing |
//!
//! Steps 2, 5 and 7 are conditional writes of one item. Of two builds at the same time the later one goes on; the other finds itself over at its next batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Batch, Effect, Error, ErrorKind, Key, Op, PutMode, Reply, Result, Ttl, Want, ambient};

use super::BUILD_BATCH_BYTES;
use super::layout::{Head, OTHERS_MAX, Version};
use super::pack::{self, Packed};
use super::rows::Rows;
use super::shared::{Inner, version_keys};
use crate::cell::Cell;
use crate::events;
use crate::ids::random_id;
use crate::retry::Backoff;
use crate::runtime;

/// While rows are packed it is told so often how many are.
const TOLD_EVERY: Duration = Duration::from_millis(100);
/// How often a block is sent, or the head written, where that fails or others are first.
const TRIES_MAX: usize = 6;
const HEAD_ROUNDS_MAX: usize = 64;
/// About what a delete takes of a batch.
const KEY_BYTES: usize = 256;

/// What a build is at.
///
/// ```
/// use larder_structures::lookup::{Progress, Step};
/// let progress = Progress { step: Step::Writing, done: 32, all: 64 };
/// assert_eq!(progress.done * 100 / progress.all, 50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which step.
    pub step: Step,
    /// How much of it is done: rows that are packed, blocks that are written or read back.
    pub done: u64,
    /// How much there is.
    pub all: u64,
}

/// A step of a build.
///
/// ```
/// assert_ne!(larder_structures::lookup::Step::Packing, larder_structures::lookup::Step::Verifying);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Rows are packed; nothing is written.
    Packing,
    /// Blocks are written.
    Writing,
    /// Blocks are read back.
    Verifying,
}

/// What was built.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # use larder_structures::lookup::{PackedTable, Rows};
/// let mut rows = Rows::new(["city"])?;
/// rows.push_id(7u64, ["Toronto"])?;
/// let built = PackedTable::open_or_create(&store, "cities").await?.build(rows).await?;
/// assert_eq!((built.version, built.rows, built.blocks), (1, 1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Built {
    /// The number of the version that is in force now.
    pub version: u32,
    /// How many rows it has.
    pub rows: u64,
    /// In how many blocks.
    pub blocks: u32,
    /// What the blocks and the directory take, without keys and what the store adds, in bytes.
    pub bytes: u64,
    /// False if keys of earlier versions could not be removed, which the next build does.
    pub is_swept: bool,
}

impl Inner {
    pub(super) async fn build(&self, rows: Rows, told: &mut (dyn FnMut(Progress) + Send)) -> Result<Built> {
        self.vigil.check()?;
        let build = random_id();
        let packed = self.pack(rows, build, told).await?;
        let unchanged = |error: Error| error.effect(Effect::NotApplied);
        let (version, ended) = self.announce(build, &packed).await.map_err(unchanged)?;
        if let Err(error) = self.write(&version, &packed, told).await {
            self.give_up(&version).await;
            return Err(unchanged(error));
        }
        let head = match self.publish(&version).await {
            Ok(head) => head,
            // Nothing may be removed of what may be in force.
            Err(error) if error.is_unknown() => return Err(error),
            Err(error) => {
                self.give_up(&version).await;
                return Err(error);
            }
        };
        self.learn_parts(&version, &packed.parts);
        let is_swept = self.sweep(&head, &ended).await.is_ok();
        let directory: u64 = packed.parts.iter().map(|part| part.len() as u64).sum();
        let bytes = packed.bytes + directory;
        Ok(Built { version: version.number, rows: packed.rows, blocks: version.blocks, bytes, is_swept })
    }

    /// Step 1, on a thread of its own.
    async fn pack(&self, rows: Rows, build: u64, told: &mut (dyn FnMut(Progress) + Send)) -> Result<Packed> {
        let runtime = runtime::current("a packed table packs its rows on a thread of its own")?;
        let (sizes, all) = (self.sizes, rows.len() as u64);
        told(Progress { step: Step::Packing, done: 0, all });
        let done = Arc::new(AtomicU64::new(0));
        let counted = done.clone();
        let pack = move || pack::pack(&rows, build, &sizes, &counted);
        if ambient::is_simulated() {
            let packed = pack()?;
            told(Progress { step: Step::Packing, done: all, all });
            return Ok(packed);
        }
        let ended = |error| Error::new(ErrorKind::Unavailable, "packing was ended").source(error);
        let mut packing = runtime.spawn_blocking(pack);
        loop {
            let packed = tokio::time::timeout(TOLD_EVERY, &mut packing).await;
            told(Progress { step: Step::Packing, done: done.load(Ordering::Relaxed), all });
            if let Ok(packed) = packed {
                return packed.map_err(ended)?;
            }
        }
    }

    /// Step 2, and removes the keys of what is over. The version, and the builds that it has ended.
    async fn announce(&self, build: u64, packed: &Packed) -> Result<(Version, Vec<Version>)> {
        let mut is_full = false;
        match self.try_announce(build, packed, &mut is_full).await {
            // By versions that could not be removed until now, perhaps.
            Err(_) if is_full => {
                self.sweep(&self.read_head(self.ctx()).await?.0, &[]).await?;
                self.try_announce(build, packed, &mut is_full).await
            }
            announced => announced,
        }
    }

    async fn try_announce(&self, build: u64, packed: &Packed, is_full: &mut bool) -> Result<(Version, Vec<Version>)> {
        let listed = |head: &Head| head.others.iter().copied().find(|version| version.build == build);
        let mut before = Vec::new();
        let head = self
            .change_head(&mut |head| {
                if listed(head).is_some() {
                    return Ok(None);
                }
                if head.others.len() >= OTHERS_MAX {
                    *is_full = true;
                    let detail = format!("{OTHERS_MAX} builds of packed table {} are under way", self.name);
                    return Err(Error::new(ErrorKind::Conflict, detail));
                }
                before.clone_from(&head.others);
                let mut next = head.clone();
                next.others.iter_mut().for_each(|version| version.is_over = true);
                let number = head.last.checked_add(1).ok_or_else(|| {
                    Error::new(ErrorKind::Full, format!("packed table {} was built 2^32 times", self.name))
                })?;
                // Both were counted when the rows were packed.
                let (blocks, parts) = (packed.blocks.len() as u32, packed.parts.len() as u16);
                next.others.push(Version { number, build, blocks, parts, is_over: false });
                next.last = number;
                Ok(Some(next))
            })
            .await?;
        // Announced by a try whose reply was lost, it may have been ended by others before it was seen here.
        let version = listed(&head).filter(|version| !version.is_over).ok_or_else(|| self.displaced())?;
        // Best effort: what is left stays listed, and is removed once this version is in force, or by the next build.
        _ = self.clear(&before, |version| version.is_over).await;
        before.retain(|version| !version.is_over);
        Ok((version, before))
    }

    /// Steps 3 and 4.
    async fn write(&self, version: &Version, packed: &Packed, told: &mut (dyn FnMut(Progress) + Send)) -> Result<()> {
        let mut items: Vec<(Key, Bytes)> = Vec::with_capacity(packed.blocks.len() + packed.parts.len());
        for (number, block) in (0u32..).zip(&packed.blocks) {
            items.push((self.block_key(version, number)?, block.clone()));
        }
        for (number, part) in (0u16..).zip(&packed.parts) {
            items.push((self.part_key(version, number)?, part.clone()));
        }
        let all = items.len() as u64;
        let a_batch = self.ops_a_batch(BUILD_BATCH_BYTES, self.sizes.block);
        let mut done = 0;
        for some in items.chunks(a_batch) {
            told(Progress { step: Step::Writing, done, all });
            self.put_all(version, some).await?;
            done += some.len() as u64;
        }
        let mut gone = 0u64;
        done = 0;
        for some in items.chunks(a_batch) {
            told(Progress { step: Step::Verifying, done, all });
            gone += self.count_gone(some).await?;
            done += some.len() as u64;
        }
        told(Progress { step: Step::Verifying, done, all });
        if gone > 0 {
            // A build that began after this one has removed them, or the store had no room.
            if !self.read_head(self.ctx()).await?.0.is_building(version) {
                return Err(self.displaced());
            }
            return Err(self.gone_again(gone, all));
        }
        Ok(())
    }

    /// The error for blocks that were acknowledged, and gone when they were read back.
    fn gone_again(&self, gone: u64, all: u64) -> Error {
        let (kind, why) = match self.store.profile().may_evict() {
            true => (ErrorKind::Full, "the store has no room for it"),
            // It refuses what it has no room for, so that it has none of these by a restart or a failover.
            false => (ErrorKind::Lost, "a restart or a failover took them; build it again"),
        };
        let name = &self.name;
        let detail = format!("{gone} of {all} blocks of packed table {name} were gone when they were read back: {why}");
        let error = Error::new(kind, detail).store(self.store.profile().store.clone());
        if kind == ErrorKind::Lost { events::loss(self.subject(), error) } else { error }
    }

    /// Writes items, and looks at the head in the same round trip. The same bytes under the same key: they may be sent again.
    async fn put_all(&self, version: &Version, items: &[(Key, Bytes)]) -> Result<()> {
        let mut todo: Vec<&(Key, Bytes)> = items.iter().collect();
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        for attempt in 1.. {
            let puts = todo.iter().map(|(key, value)| Op::put(key.clone(), PutMode::Set, value.clone(), Ttl::Never));
            let mut batch: Batch = puts.collect();
            batch.push(self.head_op()?);
            let known = self.loaded().known();
            let mut replies = self.vigil.run(self.ctx(), batch).await;
            self.vigil.check()?;
            // One that cannot be read is read with the next batch; the last look is the one that puts the version in force.
            if let Some(Ok(reply)) = replies.pop()
                && !self.head(reply, known)?.0.is_building(version)
            {
                return Err(self.displaced());
            }
            let (mut again, mut fault) = (Vec::new(), None);
            for (item, reply) in todo.into_iter().zip(replies) {
                match reply {
                    Ok(Reply::Stored) => {}
                    Ok(other) => return Err(Error::new(ErrorKind::Protocol, format!("a put was answered {other:?}"))),
                    Err(error) if is_passing(&error) && attempt < TRIES_MAX => {
                        again.push(item);
                        fault = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let Some(fault) = fault else { return Ok(()) };
            events::retry(self.subject(), fault.kind());
            todo = again;
            tokio::time::sleep(backoff.next_pause()).await;
        }
        Ok(())
    }

    /// How many items are not there as they were written.
    async fn count_gone(&self, items: &[(Key, Bytes)]) -> Result<u64> {
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        for attempt in 1.. {
            let gets = items.iter().map(|(key, _)| Op::get(key.clone(), Want::VALUE));
            let replies = self.vigil.run(self.ctx(), gets.collect()).await;
            let (mut gone, mut fault) = (0, None);
            for ((_, value), reply) in items.iter().zip(replies) {
                match reply {
                    Ok(reply) => gone += u64::from(reply.into_item().is_none_or(|item| item.value != *value)),
                    Err(error) => fault = fault.or(Some(error)),
                }
            }
            match fault {
                None => return Ok(gone),
                Some(fault) if is_passing(&fault) && attempt < TRIES_MAX => {
                    events::retry(self.subject(), fault.kind());
                    tokio::time::sleep(backoff.next_pause()).await;
                }
                Some(fault) => return Err(fault),
            }
        }
        Ok(0)
    }

    /// Step 5.
    ///
    /// # Errors
    /// With [`Effect::Unknown`] exactly where it may be in force, or may come to be yet.
    async fn publish(&self, version: &Version) -> Result<Head> {
        self.change_head(&mut |head| {
            if head.current.is_some_and(|current| current.build == version.build) {
                return Ok(None);
            }
            if !head.is_building(version) {
                return Err(self.displaced());
            }
            let mut next = head.clone();
            next.others.retain(|other| other != version);
            next.others.extend(head.current.map(|old| Version { is_over: true, ..old }));
            next.current = Some(*version);
            Ok(Some(next))
        })
        .await
    }

    /// Steps 6 and 7: what the head lists as over. What this build has `ended` may still have a request under way: it stays listed.
    async fn sweep(&self, head: &Head, ended: &[Version]) -> Result<()> {
        let over: Vec<Version> = head.others.iter().copied().filter(|version| version.is_over).collect();
        self.clear(&over, |version| ended.iter().all(|other| other.build != version.build)).await
    }

    /// Removes the keys of versions, up to the first where that fails, and takes those off the head that nobody writes to any more.
    async fn clear(&self, versions: &[Version], is_still: impl Fn(&Version) -> bool) -> Result<()> {
        let (mut gone, mut outcome) = (Vec::new(), Ok(()));
        for version in versions {
            outcome = self.remove_keys(std::slice::from_ref(version)).await;
            if outcome.is_err() {
                break;
            }
            gone.extend(is_still(version).then_some(*version));
        }
        self.forget(&gone).await.and(outcome)
    }

    /// Removes what a build has written that did not come to an end, as far as that can be done. The head goes on listing it: what a late request may bring back
    /// the next build removes.
    async fn give_up(&self, version: &Version) {
        _ = self.remove_keys(std::slice::from_ref(version)).await;
    }

    /// Takes versions off the head that are not in force, and whose keys are gone.
    async fn forget(&self, versions: &[Version]) -> Result<()> {
        if versions.is_empty() {
            return Ok(());
        }
        self.change_head(&mut |head| {
            if !head.others.iter().any(|version| versions.contains(version)) {
                return Ok(None);
            }
            let mut next = head.clone();
            next.others.retain(|version| !versions.contains(version));
            Ok(Some(next))
        })
        .await
        .map(drop)
    }

    async fn remove_keys(&self, versions: &[Version]) -> Result<()> {
        for version in versions {
            let keys = version_keys(&self.name, &self.manifest, version).collect::<Result<Vec<Key>>>()?;
            for some in keys.chunks(self.ops_a_batch(BUILD_BATCH_BYTES, KEY_BYTES)) {
                self.remove_some(some).await?;
            }
        }
        Ok(())
    }

    /// Removes items that nobody writes any more: it may be sent again.
    async fn remove_some(&self, keys: &[Key]) -> Result<()> {
        let mut todo = keys.to_vec();
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
        for attempt in 1.. {
            let replies = self.vigil.run(self.ctx(), todo.iter().cloned().map(Op::delete).collect()).await;
            let (mut again, mut fault) = (Vec::new(), None);
            for (key, reply) in todo.into_iter().zip(replies) {
                match reply {
                    Ok(_) => {}
                    Err(error) if is_passing(&error) && attempt < TRIES_MAX => {
                        again.push(key);
                        fault = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if fault.is_none() {
                break;
            }
            todo = again;
            tokio::time::sleep(backoff.next_pause()).await;
        }
        Ok(())
    }

    /// Writes the head as `change` makes it of what is there; again where others were first, or a reply is lost. `None` of it: there is nothing to change.
    ///
    /// # Errors
    /// With [`Effect::Unknown`] exactly where a write of it may have landed, or may yet.
    async fn change_head(&self, change: &mut (dyn FnMut(&Head) -> Result<Option<Head>> + Send)) -> Result<Head> {
        let cell = Cell::new(self.head_key()?);
        let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));
        let (mut doubt, mut fault) = (None::<Error>, None::<Error>);
        let deadline = ambient::now().checked_add(self.timeout * 2);
        for round in 0..HEAD_ROUNDS_MAX {
            if round > 0 {
                tokio::time::sleep(backoff.next_pause()).await;
                if deadline.is_some_and(|deadline| ambient::now() >= deadline) {
                    break;
                }
            }
            let (head, cas) = match self.read_head(self.ctx()).await {
                Ok(read) => read,
                Err(error) if is_passing(&error) => {
                    fault = Some(error);
                    continue;
                }
                // What was in doubt may be in force, or have been.
                Err(error) => return Err(if doubt.is_some() { unknown(error) } else { error }),
            };
            let changed = change(&head).map_err(|error| if doubt.is_some() { unknown(error) } else { error });
            let Some(mut next) = changed? else { return Ok(head) };
            // A write that is in doubt can land no more, or this one cannot: both go by the same token, or it went by an older one.
            next.tag = random_id();
            let cas = cas.ok_or_else(|| Error::new(ErrorKind::Protocol, "the store gave no cas token"))?;
            let wrote = cell.write(&self.store, self.ctx(), cas, next.encode(), Ttl::Never).await;
            match wrote.landed {
                Ok(true) => return Ok(next),
                Ok(false) => events::conflict(self.subject()),
                Err(error) if error.is_unknown() => {
                    events::retry(self.subject(), error.kind());
                    doubt = Some(error);
                }
                Err(error) if is_passing(&error) => fault = Some(error),
                Err(error) => return Err(if doubt.is_some() { unknown(error) } else { error }),
            }
        }
        Err(doubt.or(fault).unwrap_or_else(|| {
            let detail = format!("others kept writing to the head of packed table {}", self.name);
            Error::new(ErrorKind::Conflict, detail)
        }))
    }

    fn displaced(&self) -> Error {
        let detail = format!("another build of packed table {} began after this one and takes its place", self.name);
        Error::new(ErrorKind::Conflict, detail)
    }
}

/// An error after a write whose outcome nobody has seen: it may have landed, and others may have written over it since.
fn unknown(error: Error) -> Error {
    error.effect(Effect::Unknown)
}

/// True for a fault that may be over at the next try.
pub(super) fn is_passing(error: &Error) -> bool {
    error.is_unknown() || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
