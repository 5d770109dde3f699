//! What all clones of a handle share: the keys, and the version that they know of.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Subject;
use larder_core::{Batch, Cas, ClockRef, Ctx, Error, ErrorKind, Key, Op, Reply, Result, StoreRef, SystemClock, Want};

use super::BATCH_BYTES;
use super::layout::{Directory, Head, Version};
use super::pack::Sizes;
use crate::events;
use crate::manifest::{Manifest, unexpected};
use crate::name::Name;
use crate::vigil::Vigil;

/// How long a handle goes without a look at the head while it is used.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a version is loaded that is gone before it was read.
const LOADS_MAX: usize = 16;

pub(super) struct Inner {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) vigil: Arc<Vigil>,
    clock: ClockRef,
    pub(super) timeout: Duration,
    pub(super) sizes: Sizes,
    /// When the next look at the head is due, by the clock's monotonic time.
    next_look_ms: AtomicU64,
    /// What was read last; never held across an await.
    loaded: Mutex<Arc<Loaded>>,
}

/// A version that was read; `None` before the first was built.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) version: Option<(Version, Directory)>,
}

impl Loaded {
    pub(super) fn known(&self) -> Option<Version> {
        self.version.as_ref().map(|(version, _)| *version)
    }

    /// Versions are told apart by their builds: numbers are given again on a store that was set back.
    pub(super) fn is(&self, version: Option<Version>) -> bool {
        self.known().map(|known| known.build) == version.map(|version| version.build)
    }

    fn number(&self) -> Option<u32> {
        self.known().map(|known| known.number)
    }
}

impl Inner {
    /// No round trip.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for blocks of a size that the store's items do not have.
    pub(super) fn new(
        store: &StoreRef,
        name: &Name,
        manifest: Manifest,
        timeout: Duration,
        block_bytes: Option<usize>,
    ) -> Result<Inner> {
        let clock = SystemClock::shared();
        let vigil = Vigil::new(store, clock.clone(), name, &manifest)?;
        let longest = Version { number: u32::MAX, build: 0, blocks: 0, parts: 0, is_over: false };
        let key_bytes = manifest.data_key(name, longest.block_index(u32::MAX))?.as_bytes().len();
        let sizes = Sizes::new(&store.profile(), key_bytes, block_bytes)?;
        Ok(Inner {
            store: store.clone(),
            name: name.clone(),
            manifest,
            vigil,
            clock,
            timeout,
            sizes,
            next_look_ms: AtomicU64::new(0),
            loaded: Mutex::default(),
        })
    }

    pub(super) fn ctx(&self) -> Ctx {
        Ctx::within(self.timeout)
    }

    pub(super) fn head_key(&self) -> Result<Key> {
        head_key(&self.name, &self.manifest)
    }

    pub(super) fn block_key(&self, version: &Version, block: u32) -> Result<Key> {
        self.manifest.data_key(&self.name, version.block_index(block))
    }

    pub(super) fn part_key(&self, version: &Version, part: u16) -> Result<Key> {
        self.manifest.data_key(&self.name, version.part_index(part))
    }

    /// How many ops on values of `each` bytes go into one batch of `bytes`.
    pub(super) fn ops_a_batch(&self, bytes: usize, each: usize) -> usize {
        // The head and the manifest may be looked at as well.
        let room = self.store.profile().batch_ops_max.saturating_sub(2);
        (bytes / each.max(1)).min(room).max(1)
    }

    pub(super) fn loaded(&self) -> Arc<Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, now: Loaded) -> Arc<Loaded> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // Another caller may have read a later one meanwhile.
        if loaded.number() < now.number() {
            *loaded = Arc::new(now);
        }
        loaded.clone()
    }

    /// Learns the version that this handle has written.
    pub(super) fn learn_parts(&self, version: &Version, parts: &[Bytes]) {
        if let Some(directory) = Directory::decode(&parts.concat(), version) {
            self.learn(Loaded { version: Some((*version, directory)) });
        }
    }

    /// True for one caller a [`LOOK_EVERY`].
    pub(super) fn is_look_due(&self) -> bool {
        let now = as_ms(self.clock.monotonic());
        let due = self.next_look_ms.load(Ordering::Relaxed);
        let next = now.saturating_add(as_ms(LOOK_EVERY));
        now >= due && self.next_look_ms.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(super) fn head_op(&self) -> Result<Op> {
        Ok(Op::get(self.head_key()?, Want::VALUE | Want::CAS))
    }

    /// Reads the head. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`head`](Inner::head), and those of the store.
    pub(super) async fn read_head(&self, ctx: Ctx) -> Result<(Head, Option<Cas>)> {
        let known = self.loaded().known();
        let mut replies = self.vigil.run(ctx, Batch::from_buf([self.head_op()?])).await;
        self.vigil.check()?;
        self.head(replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?, known)
    }

    /// What the reply to [`head_op`](Inner::head_op) says, which was sent when `known` was the version that is known.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where it is gone, [`ErrorKind::RolledBack`] where it is older than that or was, [`ErrorKind::LayoutMismatch`] for
    /// what is none.
    pub(super) fn head(&self, reply: Reply, known: Option<Version>) -> Result<(Head, Option<Cas>)> {
        let item = match reply {
            Reply::Item(item) => item,
            Reply::Miss => {
                let detail = format!("packed table {} has lost its head, which tells its version", self.name);
                return Err(self.loss(Error::new(ErrorKind::Lost, detail)));
            }
            other => return Err(unexpected(&self.head_op()?, &other)),
        };
        let head = known_head(&self.name, &item.value)?;
        match set_back(known, head.current) {
            Some(shown) => {
                Err(self.loss(Error::new(ErrorKind::RolledBack, format!("packed table {} {shown}", self.name))))
            }
            None => Ok((head, item.cas)),
        }
    }

    /// The version in force, read if it is another than the one that is known. **Round trips: 1**, 2 where it is another.
    pub(super) async fn load(&self, ctx: Ctx) -> Result<(Arc<Loaded>, Head)> {
        let mut missed = None;
        for _ in 0..LOADS_MAX {
            let (head, _) = self.read_head(ctx).await?;
            let known = self.loaded();
            // Where another caller's read has overtaken this one, what it knows is newer.
            let Some(version) = head.current.filter(|version| known.number() < Some(version.number)) else {
                if known.number() == head.current.map(|version| version.number) && !known.is(head.current) {
                    // The store was set back between the two reads: the next one tells.
                    continue;
                }
                return Ok((known, head));
            };
            match self.read_directory(ctx, &version).await? {
                Some(directory) => return Ok((self.learn(Loaded { version: Some((version, directory)) }), head)),
                None if missed == Some(version.number) => {
                    let detail =
                        format!("packed table {} has lost the directory of version {}", self.name, version.number);
                    return Err(self.loss(Error::new(ErrorKind::Lost, detail)));
                }
                // Another version may have taken its place meanwhile.
                None => missed = Some(version.number),
            }
        }
        let detail = format!("packed table {} was built anew each of the {LOADS_MAX} times it was read", self.name);
        Err(Error::new(ErrorKind::Conflict, detail))
    }

    /// Reads a version's directory; `None` where a part is gone.
    async fn read_directory(&self, ctx: Ctx, version: &Version) -> Result<Option<Directory>> {
        let mut bytes = Vec::new();
        let parts: Vec<u16> = (0..version.parts).collect();
        for some in parts.chunks(self.ops_a_batch(BATCH_BYTES, self.sizes.part)) {
            let gets = some.iter().map(|&part| Ok(Op::get(self.part_key(version, part)?, Want::VALUE)));
            for reply in self.vigil.run(ctx, gets.collect::<Result<Batch>>()?).await {
                let Some(item) = reply?.into_item() else { return Ok(None) };
                bytes.extend_from_slice(&item.value);
            }
        }
        Directory::decode(&bytes, version).map(Some).ok_or_else(|| {
            let detail =
                format!("the directory of version {} of packed table {} is damaged", version.number, self.name);
            self.loss(Error::new(ErrorKind::Corrupt, detail))
        })
    }

    pub(super) fn loss(&self, error: Error) -> Error {
        events::loss(self.subject(), error.store(self.store.profile().store.clone()))
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        events::subject(self.manifest.kind, &self.name)
    }
}

/// How the version in force shows that the store was set back since another was known. Numbers only grow, and none is given twice.
fn set_back(known: Option<Version>, now: Option<Version>) -> Option<String> {
    let known = known?;
    match now {
        Some(now) if now.number > known.number || now.build == known.build => None,
        Some(now) if now.number == known.number => {
            Some(format!("was at version {}, and another build has that number now", known.number))
        }
        Some(now) => Some(format!("was at version {} and is at {}", known.number, now.number)),
        None => Some(format!("was at version {} and is at none", known.number)),
    }
}

/// The key of the head.
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for one of another release.
pub(super) fn known_head(name: &Name, bytes: &[u8]) -> Result<Head> {
    let odd = || {
        let detail = format!("the head of packed table {name} is none that this release knows");
        Error::new(ErrorKind::LayoutMismatch, detail)
    };
    Head::decode(bytes).ok_or_else(odd)
}

pub(super) fn head_key(name: &Name, manifest: &Manifest) -> Result<Key> {
    manifest.data_key(name, 0)
}

/// The keys of a version's blocks and of its directory.
pub(super) fn version_keys<'v>(
    name: &'v Name,
    manifest: &'v Manifest,
    version: &'v Version,
) -> impl Iterator<Item = Result<Key>> + 'v {
    let blocks = (0..version.blocks).map(|block| version.block_index(block));
    let parts = (0..version.parts).map(|part| version.part_index(part));
    blocks.chain(parts).map(|index| manifest.data_key(name, index))
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedTable").field("name", &self.name).finish_non_exhaustive()
    }
}
