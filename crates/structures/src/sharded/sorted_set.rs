//! The sharded sorted set.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::native::Score;
use larder_core::text::Shown;
use larder_core::{Ctx, Error, ErrorKind, Result};

use super::core::Core;
use super::ends::{End, Ranked};
use super::keeper::Pendings;
use super::layout::Record;
use super::write::Change;

/// A handle of a sharded sorted set, members by scores, the highest and the lowest of which are one read: a cheap clone, shared by as many tasks as you like. See the
/// [module](super#the-sorted-set).
///
/// A score is a number of 64 bits with a fraction, as in Redis and Valkey: whole numbers to 2^53 are exact, infinite ones are the highest and the lowest of all, -0 is 0, and what
/// is not a number is refused. Members of one score are in the order of their bytes.
///
/// ```
/// # use larder_core::StoreRef;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::ShardedSortedSet;
/// let points = ShardedSortedSet::options().kept(10).open_or_create(&store, "points").await?;
/// assert_eq!(points.set([("ann", 12.0), ("bob", 7.5), ("cid", 9.0)]).await?, [true, true, true]);
/// assert_eq!(points.add([("bob", 2.0)]).await?, [9.5]);
/// assert_eq!(points.top(2).await?, [("ann".into(), 12.0), ("bob".into(), 9.5)]);
/// assert_eq!(points.bottom(1).await?, [("cid".into(), 9.0)]);
/// assert_eq!(points.remove(["ann"]).await?, [true]);
/// assert_eq!(points.top(1).await?, [("bob".into(), 9.5)]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ShardedSortedSet(pub(super) Arc<Core>);

super::common!(
    ShardedSortedSet,
    ShardedSortedSet,
    "# #[tokio::main(flavor = \"current_thread\")] async fn main() -> larder_core::Result<()> {
# let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
use larder_structures::ShardedSortedSet;
let points = ShardedSortedSet::open_or_create(&store, \"points\").await?;
points.set([(\"ann\", 12.0)]).await?;
points.reshard(200).await?;
assert_eq!((points.shards(), points.len().await?), (200, 1));
# Ok(()) }"
);

/// An example, in which `points` is open.
macro_rules! example {
    ($($line:literal),*) => {
        concat!(
            "\n```\n# #[tokio::main(flavor = \"current_thread\")] async fn main() -> larder_core::Result<()> {\n",
            "# let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            "# let points = larder_structures::ShardedSortedSet::open_or_create(&store, \"points\").await?;\n",
            $($line, "\n",)*
            "# Ok(()) }\n```\n"
        )
    };
}

impl ShardedSortedSet {
    /// Gives members scores; for each, in their order, true if it is new. **Round trips: 2**, 3 where the score is, or was, among those that the ends hold; 3 more each
    /// time that others change the ends meanwhile, and those of [filling](super#the-sorted-set) them, once in so many removals from an end as it keeps members.
    ///
    #[doc = example!("assert_eq!(points.set([(\"ann\", 12.0), (\"bob\", -7.5)]).await?, [true, true]);")]
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a member that is too long or, where they are dense, no number of the range, and for a score that is not a number; nothing was set then.
    /// [`Full`](ErrorKind::Full) where a shard takes no more, until it is resharded; [`Lost`](ErrorKind::Lost) for a shard that is gone; those of the store. With
    /// [`Unknown`](larder_core::Effect::Unknown) some may have been set, or may be as soon as somebody looks: to set them again does no harm.
    pub async fn set(&self, entries: impl IntoIterator<Item = (impl AsRef<[u8]>, f64)>) -> Result<Vec<bool>> {
        let (names, changes) = self.scored(entries, Change::Score)?;
        Ok(self.0.rank(&names, &changes).await?.into_iter().map(|told| told.flag).collect())
    }

    /// Adds to the scores of members, 0 where there is none; what they are then, in their order. Round trips: as [`set`](ShardedSortedSet::set).
    ///
    /// Each add counts once. The sum of numbers with a fraction depends on their order; that of whole numbers does not, up to 2^53.
    ///
    #[doc = example!("points.set([(\"ann\", 12.0)]).await?;", "assert_eq!(points.add([(\"ann\", 1.5), (\"bob\", -1.0)]).await?, [13.5, -1.0]);")]
    /// # Errors
    /// As [`set`](ShardedSortedSet::set); [`BadInput`](ErrorKind::BadInput) as well for infinities that have no sum. A lost reply is settled by looking; with
    /// [`Unknown`](larder_core::Effect::Unknown) others have written to the shard since, or it cannot be read: then the add may have been made, and making it again may count twice.
    pub async fn add(&self, entries: impl IntoIterator<Item = (impl AsRef<[u8]>, f64)>) -> Result<Vec<f64>> {
        let (names, changes) = self.scored(entries, Change::Add)?;
        let told = self.0.rank(&names, &changes).await?;
        Ok(told.into_iter().map(|told| told.score.unwrap_or_default().get()).collect())
    }

    /// Removes members; for each, in their order, true if it was there. Round trips: as [`set`](ShardedSortedSet::set), 1 where none was there.
    ///
    #[doc = example!("points.set([(\"ann\", 12.0)]).await?;", "assert_eq!(points.remove([\"ann\", \"bob\"]).await?, [true, false]);")]
    /// # Errors
    /// As [`set`](ShardedSortedSet::set).
    pub async fn remove(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<bool>> {
        let names = self.names(members)?;
        let changes = vec![Change::Remove; names.len()];
        Ok(self.0.rank(&names, &changes).await?.into_iter().map(|told| told.flag).collect())
    }

    /// The score of a member, if it is there. Round trips: as [`scores`](ShardedSortedSet::scores).
    ///
    #[doc = example!("assert_eq!(points.score(\"ann\").await?, None);")]
    /// # Errors
    /// As [`scores`](ShardedSortedSet::scores).
    pub async fn score(&self, member: impl AsRef<[u8]>) -> Result<Option<f64>> {
        Ok(self.scores([member]).await?.pop().flatten())
    }

    /// The scores of members, in their order. **Round trips: 1**, 1 more for each further 256 shards they stand in; 1 more where one was changed at the ends since this handle
    /// looked there; and 3 where its writer is midway, or died there: then this brings the ends to agree.
    ///
    #[doc = example!("points.set([(\"ann\", 12.0)]).await?;", "assert_eq!(points.scores([\"ann\", \"bob\"]).await?, [Some(12.0), None]);")]
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a member that is too long, or no number of the range where they are dense; [`Lost`](ErrorKind::Lost) for a shard that is gone; those of
    /// the store.
    pub async fn scores(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Option<f64>>> {
        let scores = self.0.scores(&self.names(members)?).await?;
        Ok(scores.into_iter().map(|score| score.map(Score::get)).collect())
    }

    /// The `n` members of the highest scores, the highest first; fewer where there are no more. Of members of one score, those of the greater bytes are the higher.
    ///
    /// Every change that was acknowledged before is in it. **Round trips: 1**; where the ends were lost they are [filled](super#the-sorted-set), for 3 for every 128
    /// shards, and 6; where their filling was cut short for as many, and 3.
    ///
    #[doc = example!("points.set([(\"ann\", 12.0), (\"bob\", 7.5)]).await?;", "assert_eq!(points.top(1).await?, [(\"ann\".into(), 12.0)]);")]
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for more than are [kept](super::ShardedOptions::kept); [`Lost`](ErrorKind::Lost) where they must be filled, and a shard is gone; those of the store.
    pub async fn top(&self, n: usize) -> Result<Vec<(Bytes, f64)>> {
        self.best(End::Top, n).await
    }

    /// The `n` members of the lowest scores, the lowest first; otherwise as [`top`](ShardedSortedSet::top). **Round trips: 1.**
    ///
    #[doc = example!("points.set([(\"ann\", 12.0), (\"bob\", 7.5)]).await?;", "assert_eq!(points.bottom(1).await?, [(\"bob\".into(), 7.5)]);")]
    /// # Errors
    /// As [`top`](ShardedSortedSet::top).
    pub async fn bottom(&self, n: usize) -> Result<Vec<(Bytes, f64)>> {
        self.best(End::Bottom, n).await
    }

    /// How many members can be read at each end. **Round trips: 0.**
    #[doc = example!("assert_eq!(points.kept(), 100);")]
    pub fn kept(&self) -> usize {
        self.0.kept()
    }

    /// All members and their scores, in no order. No snapshot: each shard is read at one moment. **Round trips: 1** for every 128 shards, and those of
    /// [`scores`](ShardedSortedSet::scores).
    ///
    #[doc = example!("points.set([(\"ann\", 12.0)]).await?;", "assert_eq!(points.entries().await?, [(\"ann\".into(), 12.0)]);")]
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where a shard is gone, and those of the store.
    pub async fn entries(&self) -> Result<Vec<(Bytes, f64)>> {
        let all = self.0.entries().await?;
        Ok(all.into_iter().map(|(member, score)| (member, score.get())).collect())
    }

    async fn best(&self, end: End, n: usize) -> Result<Vec<(Bytes, f64)>> {
        let best = self.0.best(end, n).await?;
        Ok(best.into_iter().map(|Ranked { score, member }| (member, score.get())).collect())
    }

    fn scored(
        &self,
        entries: impl IntoIterator<Item = (impl AsRef<[u8]>, f64)>,
        change: impl Fn(Score) -> Change,
    ) -> Result<(Vec<Bytes>, Vec<Change>)> {
        let (mut names, mut changes) = (Vec::new(), Vec::new());
        for (member, score) in entries {
            let member = self.name(member.as_ref())?;
            let score = Score::new(score).map_err(|_| {
                Error::new(ErrorKind::BadInput, format!("the score of {} is not a number", Shown(&member)))
            })?;
            names.push(member);
            changes.push(change(score));
        }
        Ok((names, changes))
    }

    fn names(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Bytes>> {
        members.into_iter().map(|member| self.name(member.as_ref())).collect()
    }

    fn name(&self, member: &[u8]) -> Result<Bytes> {
        self.0.expect_length(member)?;
        Ok(Bytes::copy_from_slice(member))
    }
}

impl Core {
    async fn best(&self, end: End, n: usize) -> Result<Vec<Ranked>> {
        self.check()?;
        if n > self.kept() {
            let detail = format!("{} keeps {} members at each end, not {n}", self.what(), self.kept());
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        let mut held = self.read_ends(self.ctx()).await?;
        if held.ends.side(end).best(n).is_none() {
            held = self.fill_ends().await?;
        }
        match held.ends.side(end).best(n) {
            Some(best) => Ok(best.to_vec()),
            None => Err(self.beaten()),
        }
    }

    /// The scores of members that the ends agree with.
    async fn scores(&self, names: &[Bytes]) -> Result<Vec<Option<Score>>> {
        let deadline = self.deadline();
        let mut scores = Vec::with_capacity(names.len());
        let mut open = Vec::new();
        for (at, (value, seen)) in self.find(deadline, names).await?.into_iter().enumerate() {
            let record = match value {
                Some(value) => Record::decode(&value).ok_or_else(|| self.strange(&value))?,
                None => Record::default(),
            };
            scores.push(record.score);
            if record.is_pending {
                open.push((at, seen));
            }
        }
        // What the ends say that this handle knows is enough, if they are new enough; else what they say now.
        for looks in [false, true] {
            if open.is_empty() {
                return Ok(scores);
            }
            let held = match looks {
                true => Some(self.read_ends(Ctx { deadline: Some(deadline) }).await?),
                false => self.keeper.held(),
            };
            if let Some(held) = held {
                open.retain(|(at, seen)| held.ends.version <= *seen || !held.ends.agree(&names[*at], scores[*at]));
            }
        }
        if open.is_empty() {
            return Ok(scores);
        }
        let pending: Pendings = open.iter().map(|(at, _)| (names[*at].clone(), None)).collect();
        let settled = self.settle(deadline, pending).await?;
        for (at, _) in open {
            scores[at] = settled.get(&names[at]).copied().flatten();
        }
        Ok(scores)
    }

    async fn entries(&self) -> Result<Vec<(Bytes, Score)>> {
        let (mut entries, mut pending) = (Vec::new(), Vec::new());
        for (member, value) in self.sweep(true).await?.elements {
            match Record::decode(&value).ok_or_else(|| self.strange(&value))? {
                Record { is_pending: true, .. } => pending.push(member),
                Record { score, .. } => entries.extend(score.map(|score| (member, score))),
            }
        }
        if !pending.is_empty() {
            let scores = self.scores(&pending).await?;
            entries.extend(pending.into_iter().zip(scores).filter_map(|(member, score)| Some((member, score?))));
        }
        Ok(entries)
    }
}
