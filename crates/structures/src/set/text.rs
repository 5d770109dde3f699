//! The set as text under one key, shared with other programs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Subject;
use larder_core::{
    Cas, Ctx, Durability, Error, ErrorKind, Item, Key, Op, PutMode, Remaining, Reply, Result, StoreExt, StoreRef, Ttl,
    Verb, Want, ambient,
};

use tokio::sync::{RwLock, RwLockWriteGuard};

use super::layout::{decode_text, put_text};
use super::members::{Listing, Members};
use super::{SetOptions, SetStat};
use crate::append::{Action, Fold, LOOK_EVERY_DIRTY_BYTES};
use crate::behind::Behind;
use crate::events;
use crate::manifest::{Kind, unexpected};
use crate::runtime;

/// How often a change is tried while append and add both fail, or others write.
const CHANGE_TRIES_MAX: usize = 8;
/// How often a compaction is tried.
const COMPACT_TRIES_MAX: usize = 8;
/// How long a compaction in the background may take.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How often it is tried.
const BEHIND_TRIES_MAX: usize = 3;
/// How long one that has met with a change may keep the handle's own changes waiting, those included that it waits for itself.
const QUIET_MAX: Duration = Duration::from_secs(1);

pub(super) struct Text {
    store: StoreRef,
    key: Key,
    timeout: Duration,
    dirty_bytes: usize,
    value_bytes_max: usize,
    /// True once this handle saw the key: from then on a miss is a loss.
    was_seen: AtomicBool,
    /// Shared by the changes of this handle, and held alone by a compaction that has met with one: else a handle that writes
    /// without a pause would never be compacted.
    quiet: RwLock<()>,
    /// Bytes to append until the next look at the dirt.
    until_look: AtomicUsize,
    /// True while a compaction runs in the background; there is one at a time.
    compacting: Behind,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What a try to change the text came to.
enum Tried {
    Done,
    Again,
}

impl Text {
    pub(super) fn new(store: &StoreRef, key: Key, options: &SetOptions) -> Text {
        let value_bytes_max = store.profile().value_bytes_max(key.as_bytes().len());
        Text {
            store: store.clone(),
            key,
            timeout: options.timeout,
            dirty_bytes: options.dirty_bytes,
            value_bytes_max,
            was_seen: AtomicBool::new(false),
            quiet: RwLock::new(()),
            // From a random start: of many short-lived handles, each that writes a little, some look.
            until_look: AtomicUsize::new(fastrand::usize(0..look_bytes(options.dirty_bytes))),
            compacting: Behind::default(),
        }
    }

    pub(super) async fn change(
        self: &Arc<Self>,
        action: Action,
        members: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        let mut words = Vec::new();
        for member in members {
            put_text(&mut words, action, member.as_ref())?;
        }
        if words.is_empty() {
            return Ok(());
        }
        if words.len() > self.value_bytes_max {
            let (bytes, max) = (words.len(), self.value_bytes_max);
            let detail =
                format!("the members of one call come to {bytes} bytes; the limit is {max}: use several calls");
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        runtime::current("a change has a timeout")?;
        let words = Bytes::from(words);
        let ctx = Ctx::within(self.timeout);
        let _shared = tokio::time::timeout(self.timeout, self.quiet.read()).await.map_err(|_| {
            let detail = format!("a compaction of this handle's took longer than {:?}", self.timeout);
            self.named(Error::new(ErrorKind::Timeout, detail))
        })?;
        for _ in 0..CHANGE_TRIES_MAX {
            if let Tried::Done = self.try_change(ctx, action, &words).await? {
                self.was_seen.store(true, Ordering::Relaxed);
                self.count_down(words.len());
                return Ok(());
            }
        }
        let detail = format!("others made, dropped or filled the set at each of {CHANGE_TRIES_MAX} tries");
        Err(self.named(Error::new(ErrorKind::Conflict, detail)))
    }

    /// Looks at the dirt behind the caller, once so much was appended.
    fn count_down(self: &Arc<Self>, bytes: usize) {
        let left = |left: usize| Some(left.checked_sub(bytes).unwrap_or_else(|| look_bytes(self.dirty_bytes)));
        let before = self.until_look.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        if before.is_ok_and(|before| before < bytes) {
            self.behind(None);
        }
    }

    /// Append; where that finds no key, add; where both fail, look why. An error ends it: its effect may be unknown.
    async fn try_change(&self, ctx: Ctx, action: Action, words: &Bytes) -> Result<Tried> {
        let was_seen = self.was_seen.load(Ordering::Relaxed);
        if self.put(ctx, PutMode::Append, words.clone(), 0, Ttl::Never).await? == Reply::Stored {
            return Ok(Tried::Done);
        }
        if action == Action::Put
            && !was_seen
            && self.put(ctx, PutMode::Add, words.clone(), 0, Ttl::Never).await? == Reply::Stored
        {
            return Ok(Tried::Done);
        }
        let Some(item) = self.get(ctx).await? else {
            return if action == Action::Put && !was_seen { Ok(Tried::Again) } else { Err(self.missing(was_seen)) };
        };
        self.was_seen.store(true, Ordering::Relaxed);
        let bytes = item.value.len();
        if bytes.saturating_add(words.len()) <= self.value_bytes_max {
            return Ok(Tried::Again);
        }
        let joined = [&item.value[..], b" ", words].concat();
        let rewritten = decode_text(&joined).map_err(|error| self.named(error))?.compacted();
        let Some(cas) = item.cas.filter(|_| self.store.profile().cas && rewritten.len() <= self.value_bytes_max) else {
            let detail = format!(
                "the set holds {bytes} bytes of at most {}; {} more do not fit{}: remove members, or use a set of \
                 several shards",
                self.value_bytes_max,
                words.len(),
                if item.cas.is_none() {
                    " (this store has no conditional writes, so it cannot be compacted)"
                } else {
                    ""
                }
            );
            return Err(self.named(Error::new(ErrorKind::Full, detail)));
        };
        match self.rewrite(ctx, &item, cas, rewritten).await? {
            Reply::Stored => Ok(Tried::Done),
            _ => Ok(Tried::Again),
        }
    }

    async fn put(&self, ctx: Ctx, mode: PutMode, value: Bytes, flags: u32, ttl: Ttl) -> Result<Reply> {
        let op = Op::new(self.key.clone(), Verb::Put { mode, value, flags, ttl });
        match self.store.run_one(ctx, op.clone()).await? {
            reply @ (Reply::Stored | Reply::NotStored | Reply::Exists | Reply::Miss) => Ok(reply),
            other => Err(unexpected(&op, &other)),
        }
    }

    /// Writes other words for the same item.
    async fn rewrite(&self, ctx: Ctx, item: &Item, cas: Cas, value: Bytes) -> Result<Reply> {
        let ttl = match item.ttl {
            // Nothing left of it, by a coarse clock: not for ever.
            Remaining::For(left) => Ttl::After(left.max(Duration::from_millis(1))),
            Remaining::Never | Remaining::Unknown => Ttl::Never,
        };
        self.put(ctx, PutMode::Cas(cas), value, item.flags, ttl).await
    }

    async fn get(&self, ctx: Ctx) -> Result<Option<Item>> {
        let want = Want::VALUE | Want::CAS | Want::FLAGS | Want::TTL;
        Ok(self.store.run_one(ctx, Op::get(self.key.clone(), want)).await?.into_item())
    }

    async fn read(&self, ctx: Ctx) -> Result<Item> {
        let was_seen = self.was_seen.load(Ordering::Relaxed);
        let item = self.get(ctx).await?.ok_or_else(|| self.missing(was_seen))?;
        self.was_seen.store(true, Ordering::Relaxed);
        Ok(item)
    }

    fn missing(&self, was_seen: bool) -> Error {
        let (kind, detail) = match self.store.profile().durability {
            _ if was_seen => (ErrorKind::Lost, "the set was there and is gone: deleted, evicted, or lost in a restart"),
            Durability::Disk => (ErrorKind::Absent, "the set is absent (never created)"),
            _ => (ErrorKind::Absent, "the set is absent (never created, or lost)"),
        };
        let error = self.named(Error::new(kind, detail));
        if kind == ErrorKind::Lost {
            let subject = Subject { kind: Kind::Set.as_str(), name: self.key.as_bytes() };
            return events::loss(subject, error);
        }
        error
    }

    fn named(&self, error: Error) -> Error {
        error.key(&self.key).store(self.store.profile().store.clone())
    }

    pub(super) async fn members(self: &Arc<Self>) -> Result<Members> {
        let item = self.read(Ctx::within(self.timeout)).await?;
        let text = decode_text(&item.value).map_err(|error| self.named(error))?;
        let mut listing = Listing::new(&item.value, true);
        text.members.0.iter().for_each(|member| listing.apply(Action::Put, member));
        let mut members = Members::with_capacity(1);
        members.push(item.value.clone(), listing.finish());
        let live_bytes = text.live_bytes();
        if self.is_dirty(item.value.len(), live_bytes) {
            self.behind(Some(item));
        }
        Ok(members)
    }

    pub(super) async fn has(&self, member: &[u8]) -> Result<bool> {
        let item = self.read(Ctx::within(self.timeout)).await?;
        let text = decode_text(&item.value).map_err(|error| self.named(error))?;
        Ok(text.members.0.contains(member))
    }

    pub(super) async fn stat(&self) -> Result<SetStat> {
        let item = self.read(Ctx::within(self.timeout)).await?;
        self.stat_of(&item.value)
    }

    fn stat_of(&self, value: &[u8]) -> Result<SetStat> {
        let text = decode_text(value).map_err(|error| self.named(error))?;
        let (bytes, live_bytes) = (value.len() as u64, text.live_bytes() as u64);
        Ok(SetStat {
            members: text.members.0.len() as u64,
            bytes,
            live_bytes,
            stale_bytes: bytes.saturating_sub(live_bytes),
            removals: text.removals,
            shards: 1,
            shard_bytes: bytes,
            shard_bytes_max: self.value_bytes_max as u64,
        })
    }

    pub(super) async fn compact(&self) -> Result<SetStat> {
        if !self.store.profile().cas {
            let detail = "the set cannot be compacted: this store has no conditional writes (cas)";
            return Err(self.named(Error::new(ErrorKind::Unsupported, detail)));
        }
        let ctx = Ctx::within(self.timeout);
        let mut quiet = None;
        for _ in 0..COMPACT_TRIES_MAX {
            let item = self.read(ctx).await?;
            let compacted = decode_text(&item.value).map_err(|error| self.named(error))?.compacted();
            let Some(cas) = item.cas.filter(|_| compacted.len() < item.value.len()) else {
                return self.stat_of(&item.value);
            };
            match self.rewrite(ctx, &item, cas, compacted.clone()).await {
                Ok(Reply::Stored) => return self.stat_of(&compacted),
                Ok(_) => {}
                // Harmless either way: the text says the same before and after. The next read tells.
                Err(error) if error.is_unknown() => {}
                Err(error) => return Err(error),
            }
            if quiet.is_none() {
                quiet = Some(self.quiet(ctx).await?);
            }
        }
        let detail = format!("others wrote at each of {COMPACT_TRIES_MAX} tries to compact it");
        Err(self.named(Error::new(ErrorKind::Conflict, detail)))
    }

    /// Keeps the changes of this handle and a compaction apart.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] where changes were under way up to the deadline.
    async fn quiet(&self, ctx: Ctx) -> Result<RwLockWriteGuard<'_, ()>> {
        if let Ok(quiet) = self.quiet.try_write() {
            return Ok(quiet);
        }
        runtime::current("a compaction waits for changes of its handle")?;
        let left = ctx.deadline.map_or(self.timeout, |deadline| deadline.saturating_duration_since(ambient::now()));
        tokio::time::timeout(left, self.quiet.write()).await.map_err(|_| {
            let detail = "changes of this handle were under way until a compaction was to end";
            self.named(Error::new(ErrorKind::Timeout, detail))
        })
    }

    fn is_dirty(&self, bytes: usize, live_bytes: usize) -> bool {
        bytes.saturating_sub(live_bytes) > self.dirty_bytes.max(live_bytes)
    }

    /// Compacts the text in the background if it is dirty: the item that was read, or else as it is then.
    fn behind(self: &Arc<Self>, item: Option<Item>) {
        if self.store.profile().cas {
            let text = self.clone();
            // Forgotten when it fails: a compaction that failed did no harm, and the next read that finds dirt tries again.
            self.compacting.run(BEHIND_MAX, || async move { text.compact_once(item).await });
        }
    }

    async fn compact_once(&self, item: Option<Item>) -> Result<()> {
        let ctx = Ctx::within(BEHIND_MAX);
        if self.try_compact(ctx, item).await? {
            return Ok(());
        }
        let alone = async {
            let _quiet = self.quiet.write().await;
            for _ in 1..BEHIND_TRIES_MAX {
                if self.try_compact(ctx.at_most(QUIET_MAX), None).await? {
                    break;
                }
            }
            Ok(())
        };
        // Changes wait behind who waits for the lock, too.
        tokio::time::timeout(QUIET_MAX, alone).await.unwrap_or(Ok(()))
    }

    /// Compacts the text, as it was read or is now, if it is dirty. False where somebody wrote meanwhile.
    async fn try_compact(&self, ctx: Ctx, item: Option<Item>) -> Result<bool> {
        let now = match item {
            Some(item) => item,
            None => self.read(ctx).await?,
        };
        let text = decode_text(&now.value)?;
        let Some(cas) = now.cas.filter(|_| self.is_dirty(now.value.len(), text.live_bytes())) else { return Ok(true) };
        Ok(self.rewrite(ctx, &now, cas, text.compacted()).await? != Reply::Exists)
    }

    pub(super) fn member_bytes_max(&self) -> usize {
        self.value_bytes_max.saturating_sub(2)
    }
}

/// How many bytes a handle appends between two looks at the dirt.
fn look_bytes(dirty_bytes: usize) -> usize {
    dirty_bytes.saturating_mul(LOOK_EVERY_DIRTY_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::Set;
    use crate::events::tests::{listen, told};

    #[tokio::test]
    async fn a_text_that_was_never_there_is_no_loss_and_one_that_was_is() {
        listen();
        let name = "a-text-that-is-deleted";
        let store: StoreRef = Arc::new(MemoryStore::new());
        let set = Set::open_text(&store, name).unwrap();
        assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Absent);
        assert_eq!(told(name), [""; 0]);
        set.add(["a"]).await.unwrap();
        assert!(store.delete(Key::new(name).unwrap()).await.unwrap());
        assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(told(name), ["loss: lost"]);
    }

    /// The same member many times over is dirt; who has appended as much as was left looks at it with the next change.
    #[tokio::test]
    async fn a_text_is_looked_at_behind_the_change_with_which_more_was_appended_than_was_left() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let key = Key::new("dirty").unwrap();
        let text = Arc::new(Text::new(&store, key.clone(), &SetOptions::default().dirtiness(10)));
        text.until_look.store(usize::MAX, Ordering::Relaxed);
        let bytes = async || {
            // A compaction beside the caller has its turn.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            store.get(key.clone()).await.unwrap().unwrap().value.len()
        };
        for _ in 0..20 {
            text.change(Action::Put, ["abc"]).await.unwrap();
        }
        assert_eq!(bytes().await, 20 * 5);
        // Each change appends five bytes.
        text.until_look.store(7, Ordering::Relaxed);
        text.change(Action::Put, ["abc"]).await.unwrap();
        assert_eq!(bytes().await, 21 * 5, "two are left");
        text.change(Action::Put, ["abc"]).await.unwrap();
        assert!(bytes().await < 10, "{}", bytes().await);
    }
}
