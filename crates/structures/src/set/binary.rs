//! The set of append-encoded shards.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Ctx, Error, ErrorKind, Result, StoreRef, ambient};

use super::layout::{HASH_XXH3, Has, LAYOUT, SetElements, shard_of};
use super::members::{Listing, Members};
use super::{SHARDS_MAX, SetOptions, SetStat};
use crate::append::shards::{Reading, ShardStat};
use crate::append::{Action, Part, Shards, Write, Writer, layout};
use crate::combine::Combiner;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::{runtime, timeout};

/// How many bytes of different callers' changes travel in one write.
const COMBINED_BYTES_MAX: usize = 64 * 1024;
/// The most that the length before a member takes, in a snapshot or a frame.
const LENGTH_BYTES_MAX: usize = 10;

pub(super) struct Binary {
    shards: Arc<Shards<SetElements>>,
    combiner: Combiner<Writer<SetElements>>,
    timeout: Duration,
}

impl fmt::Debug for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binary").field("shards", &self.shards.count()).finish_non_exhaustive()
    }
}

impl Binary {
    pub(super) async fn open(store: &StoreRef, name: &Name, options: &SetOptions, may_create: bool) -> Result<Binary> {
        timeout::check(options.timeout)?;
        let shards = manifest::shards_to_make("a set", SHARDS_MAX, options.shards)?;
        let ctx = Ctx::within(options.timeout);
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => {
                let new = Manifest::new(Kind::Set, LAYOUT, shards, Bytes::from_static(&[HASH_XXH3]));
                // Refuses a store that cannot carry it, before anything is written.
                Shards::<SetElements>::new(store, name, &new, options.tuning())?;
                let data_of = |new: &Manifest| Ok(vec![Shards::<SetElements>::create_ops(name, new)?]);
                manifest::create(store, ctx, name, new, data_of).await?
            }
            None => return Err(manifest::absent(store, name)),
        };
        check(name, &manifest, options)?;
        let shards = Arc::new(Shards::new(store, name, &manifest, options.tuning())?);
        let weight_max = COMBINED_BYTES_MAX.min(shards.elements_bytes_max());
        let combiner = Combiner::new(Writer::new(shards.clone()), weight_max);
        Ok(Binary { shards, combiner, timeout: options.timeout })
    }

    pub(super) async fn change(
        &self,
        action: Action,
        members: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        let parts = self.parts(action, members)?;
        if parts.is_empty() {
            return Ok(());
        }
        self.shards.vigil.check()?;
        runtime::current("a change has a timeout")?;
        let touched: Vec<u16> = parts.iter().map(|part| part.shard).collect();
        let deadline = ambient::now() + self.timeout;
        let outcomes = self.combiner.submit_within(Write { parts, deadline }, self.timeout).await?;
        self.shards.judge(&outcomes, |shard| touched.binary_search(&shard).is_ok())?;
        self.shards.vigil.check()
    }

    /// The change a shard, in rising order.
    fn parts(&self, action: Action, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Part>> {
        let mut parts: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        for member in members {
            let member = member.as_ref();
            if member.len() > self.member_bytes_max() {
                let detail = format!(
                    "a member has {} bytes; the limit on this store is {}: {}",
                    member.len(),
                    self.member_bytes_max(),
                    Shown(member)
                );
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
            let shard = shard_of(member, self.shards.count());
            layout::put_element(parts.entry(shard).or_default(), action, member);
        }
        let max = self.shards.elements_bytes_max();
        if let Some((shard, elements)) = parts.iter().find(|(_, elements)| elements.len() > max) {
            let detail = format!(
                "the members of one call come to {} bytes in shard {shard} of {}; the limit is {max}: use several calls, or \
                 a set with more shards",
                elements.len(),
                self.shards.count(),
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(parts.into_iter().map(|(shard, elements)| Part { shard, elements }).collect())
    }

    /// Reads shards, as long as this is the set of its name.
    async fn read(&self, shards: impl IntoIterator<Item = u16>) -> Result<Vec<Reading>> {
        self.shards.vigil.check()?;
        let readings = self.shards.read(Ctx::within(self.timeout), shards).await?;
        self.shards.vigil.check()?;
        Ok(readings)
    }

    pub(super) async fn members(&self) -> Result<Members> {
        let readings = self.read(0..self.shards.count()).await?;
        let mut members = Members::with_capacity(readings.len());
        let mut dirty = Vec::new();
        for reading in readings {
            let value = self.shards.value(&reading);
            // Without a log each member stands there once, and nothing is stale.
            let folded = self.shards.fold(&reading, Listing::new(value, !layout::has_log(value)))?;
            let is_dirty = self.shards.is_dirty_with(&reading, &folded, folded.state.elements_bytes());
            let listed = folded.state.finish();
            if is_dirty {
                members.push(value.clone(), listed);
                dirty.push(reading);
            } else {
                members.push(reading.into_value(), listed);
            }
        }
        if !dirty.is_empty() {
            self.shards.compact_behind(dirty);
        }
        Ok(members)
    }

    pub(super) async fn has(&self, member: &[u8]) -> Result<bool> {
        let shard = shard_of(member, self.shards.count());
        let readings = self.read([shard]).await?;
        match readings.first() {
            Some(reading) => Ok(self.shards.fold(reading, Has { member, is_there: false })?.state.is_there),
            None => Err(larder_core::ext::no_reply()),
        }
    }

    pub(super) async fn stat(&self) -> Result<SetStat> {
        let readings = self.read(0..self.shards.count()).await?;
        let stats: Result<Vec<ShardStat>> =
            readings.iter().map(|reading| Ok(self.shards.stat(reading, &self.shards.state(reading)?))).collect();
        Ok(self.sum(&stats?))
    }

    pub(super) async fn compact(&self) -> Result<SetStat> {
        self.shards.vigil.check()?;
        let stats = self.shards.compact(Ctx::within(self.timeout)).await?;
        self.shards.vigil.check()?;
        Ok(self.sum(&stats))
    }

    fn sum(&self, stats: &[ShardStat]) -> SetStat {
        let sum = |figure: fn(&ShardStat) -> usize| stats.iter().map(|stat| figure(stat) as u64).sum();
        SetStat {
            members: sum(|stat| stat.elements),
            bytes: sum(|stat| stat.bytes),
            live_bytes: sum(|stat| stat.live_bytes),
            stale_bytes: sum(ShardStat::stale_bytes),
            removals: stats.iter().map(|stat| stat.removals).sum(),
            shards: self.shards.count(),
            shard_bytes: stats.iter().map(|stat| stat.bytes as u64).max().unwrap_or(0),
            shard_bytes_max: self.shards.value_bytes_max() as u64,
        }
    }

    pub(super) fn member_bytes_max(&self) -> usize {
        self.shards.elements_bytes_max() - LENGTH_BYTES_MAX
    }
}

/// Fails unless the manifest is of a set that this release reads, and as the options want it.
fn check(name: &Name, manifest: &Manifest, options: &SetOptions) -> Result<()> {
    manifest.expect(name, Kind::Set, LAYOUT)?;
    if manifest.params[..] != [HASH_XXH3] || manifest.copies != 1 {
        let detail = format!("{name} spreads or copies its members in a way this release does not know");
        return Err(Error::new(ErrorKind::LayoutMismatch, detail));
    }
    manifest.expect_shards(name, SHARDS_MAX, options.shards)
}

#[cfg(test)]
mod tests {
    use larder_core::{Batch, Profile, PutMode, Run, Store, Verb};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::Set;
    use crate::answering_tests::Answering;

    /// A store that others get to as well before it has carried out what it is asked to.
    #[derive(Debug)]
    struct Yielding(StoreRef);

    impl Store for Yielding {
        fn profile(&self) -> Arc<Profile> {
            self.0.profile()
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            Run::pending(async move {
                tokio::task::yield_now().await;
                self.0.run(ctx, batch).await
            })
        }
    }

    fn name() -> Name {
        Name::new("s").unwrap()
    }

    #[test]
    fn a_set_of_another_hash_or_with_copies_is_of_another_release() {
        let made = Manifest::new(Kind::Set, LAYOUT, 1, Bytes::from_static(&[HASH_XXH3]));
        check(&name(), &made, &Set::options()).unwrap();
        let hash = Manifest { params: Bytes::from_static(&[HASH_XXH3 + 1]), ..made.clone() };
        for other in [hash, Manifest { copies: 2, ..made }] {
            let error = check(&name(), &other, &Set::options()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{other:?}");
        }
    }

    /// With their lengths, two members come to just what one write takes, or to a byte more.
    #[tokio::test]
    async fn the_members_of_one_call_may_fill_what_a_write_takes() {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(8_000).build().unwrap());
        let set = Binary::open(&store, &name(), &Set::options().shards(1), true).await.unwrap();
        let bytes = |members: &[Vec<u8>]| {
            let mut elements = Vec::new();
            members.iter().for_each(|member| layout::put_element(&mut elements, Action::Put, member));
            elements.len()
        };
        let max = set.shards.elements_bytes_max();
        let two = |more: usize| [vec![b'a'; 2_500], vec![b'b'; 2_500 + more]];
        let more = (0..max).find(|&more| bytes(&two(more)) == max).unwrap();
        let error = set.change(Action::Put, two(more + 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        set.change(Action::Put, two(more)).await.unwrap();
        assert!(set.has(&two(more)[1]).await.unwrap());
    }

    #[tokio::test]
    async fn changes_at_the_same_time_share_writes_of_up_to_64_kib() {
        let answering = Answering::over(&(Arc::new(MemoryStore::new()) as StoreRef));
        let store: StoreRef = Arc::new(Yielding(answering.shared()));
        let set = Arc::new(Binary::open(&store, &name(), &Set::options(), true).await.unwrap());
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..10u8 {
            let set = set.clone();
            callers.spawn(async move { set.change(Action::Put, [vec![number; 20_000]]).await.unwrap() });
        }
        callers.join_all().await;
        let asked = answering.asked();
        let sent = asked.iter().flat_map(|(_, batch)| batch).filter_map(|op| match &op.verb {
            Verb::Put { mode: PutMode::Append, value, .. } => Some(value.len()),
            _ => None,
        });
        let sent: Vec<usize> = sent.collect();
        assert!(sent.iter().all(|&bytes| bytes < 64 * 1024) && (4..8).contains(&sent.len()), "{sent:?}");
    }
}
