//! Reading: how many came in a period, who is among them, and how many came in several periods together.

use std::sync::Arc;
use std::time::Instant;

use larder_core::{Ctx, Error, ErrorKind, Result, Want};

use super::core::{Core, Day};
use super::id::Hash;
use super::layout::{Blob, Members, Precision, Spot};
use super::{Novelty, UniqueCount, UniqueStat, sizing, sketch};

/// How many shards of each period a union has in memory at a time.
const UNION_SHARDS: u32 = 256;

impl Core {
    /// How many came in a period: the sum of its shards. **Round trips: 1** for every 4,096 shards, one more for a period that the handle does not know.
    pub(super) async fn count(&self, ctx: Ctx, period: u64) -> Result<UniqueCount> {
        let Some(day) = self.day(ctx, period).await? else { return Ok(UniqueCount::default()) };
        if let Precision::Sketch { lg_k } = self.params.precision {
            let items = self.read_shards(ctx, &day, &[0], Want::VALUE).await?;
            let blob = items.first().map(|item| Blob::parse(&item.value)).transpose()?;
            let sketch = sketch::read(blob.map_or(&[], |blob| blob.coded), lg_k)?;
            return Ok(sketched(sketch::estimate(&sketch), lg_k));
        }
        let stored = self.counts(ctx, &day).await?.into_iter().map(u64::from).sum();
        Ok(self.counted(stored, &day))
    }

    /// How many each shard has.
    async fn counts(&self, ctx: Ctx, day: &Day) -> Result<Vec<u32>> {
        let shards: Vec<u32> = (0..day.head.shards).collect();
        if self.is_native() {
            return self.set_sizes(ctx, day, &shards).await;
        }
        // The flags carry the number, so that no values travel.
        let items = self.read_shards(ctx, day, &shards, Want::FLAGS).await?;
        Ok(items.into_iter().map(|item| item.flags).collect())
    }

    fn counted(&self, stored: u64, day: &Day) -> UniqueCount {
        let bits = match self.params.precision {
            Precision::Exact if self.params.is_wide() => 128,
            Precision::Exact => return UniqueCount { visitors: stored, stored, ..UniqueCount::default() },
            _ => u32::from(day.head.bits),
        };
        counted(stored, bits, matches!(self.params.precision, Precision::NearExact { .. }))
    }

    /// Whether ids are new in a period, without adding them. **Round trips: 1** for every 4,096 shards, one more for a period that the handle does not know.
    pub(super) async fn are_new(&self, ctx: Ctx, period: u64, hashes: &[Hash]) -> Result<Vec<Novelty>> {
        if let Precision::Sketch { .. } = self.params.precision {
            return Ok(vec![Novelty::Unknown; hashes.len()]);
        }
        let Some(day) = self.day(ctx, period).await? else { return Ok(vec![Novelty::New; hashes.len()]) };
        let mut spots: Vec<_> = hashes.iter().enumerate().map(|(at, &hash)| (self.spot(&day.head, hash), at)).collect();
        spots.sort_unstable();
        if self.is_native() {
            return self.are_new_members(ctx, &day, &spots).await;
        }
        let mut shards: Vec<u32> = spots.iter().map(|(spot, _)| spot.shard).collect();
        shards.dedup();
        let mut novelties = vec![Novelty::New; hashes.len()];
        let mut rest = spots.as_slice();
        for part in shards.chunks(self.ops_a_batch()) {
            let items = self.read_shards(ctx, &day, part, Want::VALUE).await?;
            for (&shard, item) in part.iter().zip(items) {
                let members = self.members(&day, shard, &item.value)?;
                let (these, others) = rest.split_at(rest.partition_point(|(spot, _)| spot.shard == shard));
                rest = others;
                for (spot, at) in these {
                    if members.has(spot) {
                        novelties[*at] = Novelty::Known;
                    }
                }
            }
        }
        Ok(novelties)
    }

    async fn are_new_members(&self, ctx: Ctx, day: &Day, spots: &[(Spot, usize)]) -> Result<Vec<Novelty>> {
        let shards: Vec<(u32, Vec<u64>)> = spots
            .chunk_by(|one, other| one.0.shard == other.0.shard)
            .map(|of| (of[0].0.shard, of.iter().map(|(spot, _)| spot.offset).collect()))
            .collect();
        let mut novelties = vec![Novelty::New; spots.len()];
        let found = self.are_members(ctx, day, &shards).await?.into_iter().flatten();
        for ((_, at), is_there) in spots.iter().zip(found) {
            if is_there {
                novelties[*at] = Novelty::Known;
            }
        }
        Ok(novelties)
    }

    fn members(&self, day: &Day, shard: u32, value: &[u8]) -> Result<Members> {
        let last = day.head.span(shard).wrapping_sub(1);
        Blob::parse(value).and_then(|blob| blob.members(last, self.params.is_wide())).map_err(|error| {
            match self.shard_key(&day.head, shard) {
                Ok(key) => error.key(&key),
                Err(_) => error,
            }
        })
    }

    /// Figures of a period. **Round trips:** those of [`count`](Core::count), and 1 more of a sketch, natively 1 more for every 4,096 shards.
    pub(super) async fn stat(&self, ctx: Ctx, period: u64) -> Result<Option<UniqueStat>> {
        let Some(day) = self.day(ctx, period).await? else { return Ok(None) };
        let counts = self.counts(ctx, &day).await?;
        let count = match self.params.precision {
            Precision::Sketch { .. } => self.count(ctx, period).await?,
            _ => self.counted(counts.iter().copied().map(u64::from).sum(), &day),
        };
        let unpacked_shards = if self.is_native() { self.unpacked_sets(ctx, &day).await? } else { 0 };
        Ok(Some(UniqueStat {
            period,
            expected: day.head.expected,
            shards: day.head.shards,
            bits: if self.params.is_wide() { 128 } else { u32::from(day.head.bits) },
            padded_bytes: day.head.padded_bytes,
            largest_shard: counts.iter().copied().max().unwrap_or(0),
            unpacked_shards,
            count,
        }))
    }
}

fn counted(stored: u64, bits: u32, is_corrected: bool) -> UniqueCount {
    let missed = sizing::missed(stored, bits);
    let spread = sizing::spread(stored, bits);
    let visitors = if is_corrected && missed.is_finite() { stored + missed.round() as u64 } else { stored };
    UniqueCount { visitors, stored, missed, standard_error: if is_corrected { spread } else { 0.0 } }
}

fn sketched(estimate: u64, lg_k: u8) -> UniqueCount {
    let standard_error = estimate as f64 * sketch::relative_error(lg_k);
    UniqueCount { visitors: estimate, stored: 0, missed: 0.0, standard_error }
}

/// One period of a union.
pub(super) struct Part<'c> {
    pub(super) core: &'c Arc<Core>,
    pub(super) period: u64,
}

/// How many came in any of several periods, of one structure or of several. All hashes are cut to the shortest.
///
/// # Errors
/// [`ErrorKind::BadInput`] for those that cannot be united; [`ErrorKind::Lost`].
pub(super) async fn union(parts: &[Part<'_>], deadline: Instant) -> Result<UniqueCount> {
    let Some(first) = parts.first() else { return Ok(UniqueCount::default()) };
    let of = |part: &Part<'_>| (part.core.params.ids, part.core.params.seed);
    let is_sketch = |part: &Part<'_>| matches!(part.core.params.precision, Precision::Sketch { .. });
    if let Some(other) = parts.iter().find(|part| of(part) != of(first) || is_sketch(part) != is_sketch(first)) {
        let detail = format!(
            "{} and {} cannot be united: they have other kinds of ids, or another seed, or one of them is a sketch and the other is not",
            first.core.name, other.core.name
        );
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    let ctx = Ctx { deadline: Some(deadline) };
    let mut streams = Vec::with_capacity(parts.len());
    for part in parts {
        if let Some(day) = part.core.day(ctx, part.period).await? {
            streams.push(Stream { core: part.core, day, next: 0, ahead: Vec::new(), at: 0 });
        }
    }
    if is_sketch(first) {
        return united_sketches(ctx, &streams).await;
    }
    let is_wide = streams.iter().all(|stream| stream.core.params.is_wide());
    let bits = streams.iter().map(|stream| u32::from(stream.day.head.bits)).min().unwrap_or(64);
    let is_near = |stream: &Stream<'_>| matches!(stream.core.params.precision, Precision::NearExact { .. });
    let is_corrected = streams.iter().any(is_near);
    let is_exact = streams.iter().all(|stream| stream.core.params.precision == Precision::Exact);
    let stored = distinct(ctx, &mut streams, bits, is_wide).await?;
    if is_exact && !is_wide && bits == 64 && first.core.params.ids == super::IdKind::Integer {
        return Ok(UniqueCount { visitors: stored, stored, ..UniqueCount::default() });
    }
    Ok(counted(stored, if is_wide { 128 } else { bits }, is_corrected))
}

async fn united_sketches(ctx: Ctx, streams: &[Stream<'_>]) -> Result<UniqueCount> {
    let mut sketches = Vec::with_capacity(streams.len());
    let mut smallest = 16;
    for Stream { core, day, .. } in streams {
        let Precision::Sketch { lg_k } = core.params.precision else { continue };
        smallest = smallest.min(lg_k);
        for item in core.read_shards(ctx, day, &[0], Want::VALUE).await? {
            sketches.push(sketch::read(Blob::parse(&item.value)?.coded, lg_k)?);
        }
    }
    Ok(sketched(sketch::union(smallest, &sketches)?, smallest))
}

/// The hashes of a period, in order.
struct Stream<'c> {
    core: &'c Arc<Core>,
    day: Arc<Day>,
    next: u32,
    /// What was read, cut to the union's bits; `at` is the first that is not used up.
    ahead: Vec<(u64, u64)>,
    at: usize,
}

/// Merges the streams, and counts what differs.
async fn distinct(ctx: Ctx, streams: &mut [Stream<'_>], bits: u32, is_wide: bool) -> Result<u64> {
    let (mut count, mut last) = (0u64, None);
    loop {
        for stream in &mut *streams {
            stream.refill(ctx, bits, is_wide).await?;
        }
        let mut live: Vec<&mut Stream<'_>> = streams.iter_mut().filter(|stream| stream.peek().is_some()).collect();
        if live.is_empty() {
            return Ok(count);
        }
        // As long as each has one ahead, or will never have.
        loop {
            let least = live.iter().filter_map(|stream| stream.peek()).min();
            let Some(least) = least else { break };
            if last != Some(least) {
                count += 1;
                last = Some(least);
            }
            let mut is_empty = false;
            for stream in &mut live {
                if stream.peek() == Some(least) {
                    stream.at += 1;
                    is_empty |= stream.peek().is_none();
                }
            }
            if is_empty {
                break;
            }
        }
    }
}

impl Stream<'_> {
    fn peek(&self) -> Option<(u64, u64)> {
        self.ahead.get(self.at).copied()
    }

    /// Reads on where nothing is ahead. **Round trips: 1** where it does.
    async fn refill(&mut self, ctx: Ctx, bits: u32, is_wide: bool) -> Result<()> {
        let head = self.day.head;
        while self.at >= self.ahead.len() && self.next < head.shards {
            self.ahead.clear();
            self.at = 0;
            let shards: Vec<u32> = (self.next..head.shards.min(self.next.saturating_add(UNION_SHARDS))).collect();
            let cut = u32::from(head.bits).saturating_sub(bits);
            if self.core.is_native() {
                let hashes = self.core.set_hashes(ctx, &self.day, &shards).await?;
                self.ahead.extend(hashes.into_iter().flatten().map(|hash| (hash >> cut, 0)));
                self.next += u32::try_from(shards.len()).unwrap_or(u32::MAX);
                continue;
            }
            let items = self.core.read_shards(ctx, &self.day, &shards, Want::VALUE).await?;
            for (&shard, item) in shards.iter().zip(items) {
                let members = self.core.members(&self.day, shard, &item.value)?;
                let first = head.first(shard);
                let low = |at: usize| if is_wide { members.lows.get(at).copied().unwrap_or(0) } else { 0 };
                let whole = members.offsets.iter().enumerate();
                // Below 2^bits, so it fits.
                self.ahead.extend(whole.map(|(at, &offset)| (((first + u128::from(offset)) >> cut) as u64, low(at))));
            }
            if is_wide {
                // Of one upper half, the lower ones stand in no order.
                self.ahead.sort_unstable();
            }
            self.next += u32::try_from(shards.len()).unwrap_or(u32::MAX);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{ManualClock, StoreRef};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::unique::UniqueVisitors;

    /// Of a sketch nothing is stored that could be counted: its figures are its estimate, with how far that may be off.
    #[tokio::test]
    async fn the_figures_of_a_sketched_period_have_its_count() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::at(std::time::Duration::from_secs(1_700_000_000)));
        let sketch = UniqueVisitors::options().precision(Precision::SKETCH).clock(clock);
        let site = sketch.open_or_create(&store, "site").await.unwrap();
        site.add(0..3_000u64).await.unwrap();
        let count = site.count().await.unwrap();
        assert!(count.visitors > 2_500 && count.stored == 0 && count.standard_error > 1.0, "{count:?}");
        let stat = site.stat(site.current().unwrap()).await.unwrap().unwrap();
        assert_eq!((stat.count, stat.shards), (count, 1));
    }

    #[test]
    fn only_a_near_exact_count_is_corrected_and_only_where_it_can_be() {
        let (as_it_is, near) = (counted(1 << 20, 32, false), counted(1 << 20, 32, true));
        assert!((127.5..128.5).contains(&as_it_is.missed), "{as_it_is:?}");
        assert_eq!((as_it_is.visitors, as_it_is.standard_error), (1 << 20, 0.0));
        assert_eq!((near.visitors, near.stored, near.missed), ((1 << 20) + 128, 1 << 20, as_it_is.missed));
        // All hashes that there are: how many came cannot be told.
        let full = counted(1 << 24, 24, true);
        assert_eq!((full.visitors, full.missed), (1 << 24, f64::INFINITY));
    }
}
