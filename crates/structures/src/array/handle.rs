//! An opened array: reading it, and changes that are one append a shard.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Ctx, Error, ErrorKind, Result, StoreRef, ambient};

use super::commits::Commits;
use super::keeper::{ArrayElements, Keeper};
use super::layout::{AROUND_BYTES_MAX, LAYOUT, Ordered, stored};
use super::whole::state_of;
use super::{ArrayOptions, ArrayStat, SHARDS_MAX};
use crate::append::layout::Folded;
use crate::append::shards::{Reading, ShardStat};
use crate::append::{Action, Part, Shards, Write, Writer, layout};
use crate::combine::Combiner;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::set::layout::{HASH_XXH3, shard_of};
use crate::{runtime, timeout};

/// How many bytes of different callers' changes travel in one write.
const COMBINED_BYTES_MAX: usize = 64 * 1024;

pub(super) struct Handle {
    pub(super) store: StoreRef,
    pub(super) what: String,
    pub(super) shards: Arc<Shards<ArrayElements>>,
    pub(super) elements: Arc<ArrayElements>,
    pub(super) combiner: Combiner<Writer<ArrayElements>>,
    pub(super) timeout: Duration,
    /// Held by a change over several shards: those of one handle go one after the other.
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Handle {
    pub(super) async fn open(
        store: &StoreRef,
        name: &Name,
        options: &ArrayOptions,
        may_create: bool,
    ) -> Result<Handle> {
        timeout::check(options.timeout)?;
        let shards = manifest::shards_to_make("an array", SHARDS_MAX, options.shards)?;
        let ctx = Ctx::within(options.timeout);
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => {
                let new = Manifest::new(Kind::Array, LAYOUT, shards, Bytes::from_static(&[HASH_XXH3]));
                // Refuses a store that cannot carry it, before anything is written.
                carried(store, name, &new, options)?;
                let data_of = |new: &Manifest| {
                    let mut data = Shards::<ArrayElements>::create_ops(name, new)?;
                    if shards > 1 {
                        data.push(Keeper::create_op(name, new)?);
                    }
                    Ok(vec![data])
                };
                manifest::create(store, ctx, name, new, data_of).await?
            }
            None => return Err(manifest::absent(store, name)),
        };
        check(name, &manifest, options)?;
        let (shards, elements) = carried(store, name, &manifest, options)?;
        let weight_max = COMBINED_BYTES_MAX.min(shards.elements_bytes_max());
        let combiner = Combiner::new(Writer::new(shards.clone()), weight_max);
        Ok(Handle {
            store: store.clone(),
            what: format!("array {name}"),
            shards,
            elements,
            combiner,
            timeout: options.timeout,
            turn: tokio::sync::Mutex::new(()),
        })
    }

    pub(super) fn keeper(&self) -> Option<&Keeper> {
        self.elements.0.as_ref()
    }

    /// The most that the operations of one call may take in a shard.
    pub(super) fn operations_bytes_max(&self) -> usize {
        self.shards.elements_bytes_max() - AROUND_BYTES_MAX
    }

    pub(super) fn element_bytes_max(&self) -> usize {
        self.operations_bytes_max() - AROUND_BYTES_MAX
    }

    /// Adds the operations of a call to those of each shard.
    pub(super) fn operations(
        &self,
        parts: &mut BTreeMap<u16, Vec<u8>>,
        action: Action,
        elements: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        for element in elements {
            let element = element.as_ref();
            if element.len() > self.element_bytes_max() {
                let detail = format!(
                    "an element has {} bytes; the limit on this store is {}: {}",
                    element.len(),
                    self.element_bytes_max(),
                    Shown(element)
                );
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
            let shard = shard_of(element, self.shards.count());
            layout::put_element(parts.entry(shard).or_default(), action, &stored(element));
        }
        let max = self.operations_bytes_max();
        if let Some((shard, operations)) = parts.iter().find(|(_, operations)| operations.len() > max) {
            let detail = format!(
                "the elements of one call come to {} bytes in shard {shard} of {}; the limit is {max}: use several calls, \
                 or an array with more shards",
                operations.len(),
                self.shards.count(),
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(())
    }

    pub(super) async fn append(
        &self,
        action: Action,
        elements: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        let mut parts = BTreeMap::new();
        self.operations(&mut parts, action, elements)?;
        if parts.is_empty() {
            return Ok(());
        }
        self.shards.vigil.check()?;
        runtime::current("a change has a timeout")?;
        let deadline = ambient::now() + self.timeout;
        self.write(deadline, parts).await?;
        self.shards.vigil.check()
    }

    /// Appends to each shard; tells what became of it in all of them.
    pub(super) async fn write(&self, deadline: Instant, parts: BTreeMap<u16, Vec<u8>>) -> Result<()> {
        let touched: Vec<u16> = parts.keys().copied().collect();
        let parts = parts.into_iter().map(|(shard, elements)| Part { shard, elements }).collect();
        let timeout = deadline.saturating_duration_since(ambient::now());
        let outcomes = self.combiner.submit_within(Write { parts, deadline }, timeout).await?;
        self.shards.judge(&outcomes, |shard| touched.binary_search(&shard).is_ok())
    }

    pub(super) async fn elements(&self) -> Result<Vec<Bytes>> {
        let (readings, commits) = self.read(Ctx::within(self.timeout)).await?;
        let mut elements = Vec::new();
        let mut dirty = Vec::new();
        for reading in readings {
            let folded = self.state(&reading, &commits)?;
            let value = self.shards.value(&reading);
            elements.reserve(folded.state.len_max());
            elements.extend(folded.state.values().map(|element| value.slice_ref(element)));
            let is_dirty = self.shards.is_dirty(&reading, &folded);
            drop(folded);
            if is_dirty {
                dirty.push(reading);
            }
        }
        if !dirty.is_empty() {
            self.shards.compact_behind(dirty);
        }
        Ok(elements)
    }

    pub(super) async fn stat(&self) -> Result<ArrayStat> {
        let (readings, commits) = self.read(Ctx::within(self.timeout)).await?;
        let mut stats = Vec::with_capacity(readings.len());
        for reading in &readings {
            let folded = self.state(reading, &commits)?;
            let stat = self.shards.stat(reading, &folded);
            stats.push(ShardStat { elements: folded.state.values().count(), ..stat });
        }
        Ok(self.sum(&stats))
    }

    pub(super) async fn compact(&self) -> Result<ArrayStat> {
        self.shards.vigil.check()?;
        let ctx = Ctx::within(self.timeout);
        let stats = self.shards.compact(ctx).await?;
        self.shards.vigil.check()?;
        Ok(self.sum(&stats))
    }

    fn sum(&self, stats: &[ShardStat]) -> ArrayStat {
        let sum = |figure: fn(&ShardStat) -> usize| stats.iter().map(|stat| figure(stat) as u64).sum();
        ArrayStat {
            elements: sum(|stat| stat.elements),
            bytes: sum(|stat| stat.bytes),
            live_bytes: sum(|stat| stat.live_bytes),
            stale_bytes: sum(ShardStat::stale_bytes),
            shards: self.shards.count(),
            shard_bytes: stats.iter().map(|stat| stat.bytes as u64).max().unwrap_or(0),
            shard_bytes_max: self.shards.value_bytes_max() as u64,
        }
    }

    pub(super) fn state<'v>(
        &self,
        reading: &'v Reading,
        commits: &Option<Arc<Commits>>,
    ) -> Result<Folded<Ordered<'v>>> {
        state_of(&self.shards, reading, Ordered::with(commits.clone()))
    }

    /// Reads all shards, as they are with the same numbered changes. **Round trips: 1**, more only where changes over several shards went on
    /// meanwhile.
    pub(super) async fn read(&self, ctx: Ctx) -> Result<(Vec<Reading>, Option<Arc<Commits>>)> {
        self.shards.vigil.check()?;
        let read = match self.keeper() {
            None => (self.shards.read(ctx, 0..self.shards.count()).await?, None),
            Some(keeper) => {
                let all = (0..self.shards.count()).collect();
                let (readings, commits) = keeper.read_whole(&self.shards, ctx, all).await?;
                (readings, Some(commits))
            }
        };
        self.shards.vigil.check()?;
        Ok(read)
    }
}

/// The shards and what makes their states, where the store can carry them.
fn carried(
    store: &StoreRef,
    name: &Name,
    manifest: &Manifest,
    options: &ArrayOptions,
) -> Result<(Arc<Shards<ArrayElements>>, Arc<ArrayElements>)> {
    let keeper = if manifest.shards > 1 { Some(Keeper::new(store, name, manifest)?) } else { None };
    let profile = store.profile();
    if keeper.is_some() && usize::from(manifest.shards) + 1 > profile.batch_ops_max {
        let detail = format!(
            "array {name} has {} shards and is read by one op more; a batch of this store takes {}",
            manifest.shards, profile.batch_ops_max
        );
        return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
    }
    let elements = Arc::new(ArrayElements(keeper));
    let shards = Shards::new(store, name, manifest, options.tuning())?.with_elements(elements.clone());
    Ok((Arc::new(shards), elements))
}

/// Fails unless the manifest is of an array that this release reads, and as the options want it.
fn check(name: &Name, manifest: &Manifest, options: &ArrayOptions) -> Result<()> {
    manifest.expect(name, Kind::Array, LAYOUT)?;
    if manifest.params[..] != [HASH_XXH3] || manifest.copies != 1 {
        let detail = format!("{name} spreads or copies its elements in a way this release does not know");
        return Err(Error::new(ErrorKind::LayoutMismatch, detail));
    }
    manifest.expect_shards(name, SHARDS_MAX, options.shards)
}
