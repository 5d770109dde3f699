//! Figures of a queue or stack, and the keys it has made.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, Result, StoreExt, StoreRef, Want};

use super::QueueStat;
use super::engine::{self, Engine, View};
use super::layout::{self, Below, Content, State};
use super::plan::{self, Order};
use super::push::Answers;
use crate::append::layout::varint_bytes;
use crate::cell::Cell;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::owned::Owned;
use crate::registry::Pieces;

/// How many segments are read at once.
const SEGMENTS_AT_ONCE: usize = 16;
/// How many links are read at once.
const LINKS_AT_ONCE: usize = 256;
/// How many passes a count takes at most, where something is missing that others may have removed meanwhile.
const TRIES_MAX: usize = 4;

/// What a pass over the segments found.
#[derive(Default)]
struct Pass {
    ready: u64,
    bytes: u64,
    /// What items take that were acknowledged, of those.
    stale_bytes: u64,
    segments: u64,
    missing: u64,
}

impl Engine {
    /// Reads all there is. **Round trips: 2**, and 1 more for each further 16 segments; of a stack, for each place where some were
    /// removed, too.
    pub(super) async fn stat(&self) -> Result<QueueStat> {
        Ok(self.figures().await?.0)
    }

    /// The figures, and how many segments were missing at each pass while the state moved: others removed them, or they are lost.
    async fn figures(&self) -> Result<(QueueStat, u64)> {
        let ctx = Ctx::within(self.timeout);
        self.vigil.check()?;
        let mut view = self.look(ctx).await?;
        for tries in 1.. {
            let mut in_doubt = 0;
            let mut pass = self.pass(ctx, &view.state).await?;
            if pass.missing > 0 {
                // What others removed since the state was read is not lost.
                let now = self.look(ctx).await?;
                let is_moved = now.state.seq != view.state.seq;
                view = now;
                if is_moved && tries < TRIES_MAX {
                    continue;
                }
                if is_moved {
                    in_doubt = std::mem::take(&mut pass.missing);
                }
            }
            self.vigil.check()?;
            let state = view.state;
            let stat = QueueStat {
                ready: pass.ready
                    + state.opens.iter().filter(|open| open.claim == super::layout::GIVEN_BACK).count() as u64,
                claimed: state.opens.iter().filter(|open| open.claim != super::layout::GIVEN_BACK).count() as u64,
                acknowledged: state.acked,
                segments: pass.segments,
                bytes: pass.bytes,
                stale_bytes: pass.stale_bytes,
                segments_missing: pass.missing + state.untold(),
                segments_lost: state.lost_segments,
                items_lost: state.lost_items,
            };
            return Ok((stat, in_doubt));
        }
        Err(larder_core::ext::no_reply())
    }

    /// How many items are not acknowledged yet.
    pub(super) async fn len(&self) -> Result<u64> {
        let (stat, in_doubt) = self.figures().await?;
        if stat.segments_missing > 0 {
            let detail = format!(
                "{} segments are gone, or went back: evicted, or lost in a restart or a failover; a consumer is told of it, and goes on behind them",
                stat.segments_missing
            );
            return Err(self.named(ErrorKind::Lost, &detail));
        }
        if in_doubt > 0 {
            // Their items are not counted, so the number would be short.
            let detail = format!(
                "others took or pushed at each of {TRIES_MAX} passes, and {in_doubt} segments were missing at the last: removed by them, or lost"
            );
            return Err(self.named(ErrorKind::Conflict, &detail));
        }
        Ok(stat.ready + stat.claimed)
    }

    async fn look(&self, ctx: Ctx) -> Result<View> {
        let newest = self.newest();
        let replies = self.vigil.run(ctx, Batch::from_iter([self.cell.read_op()])).await;
        self.view(Answers::new(replies).next(), newest)
    }

    /// Reads what the state names, and what is found from there. Never the numbers in between: those were removed.
    async fn pass(&self, ctx: Ctx, state: &State) -> Result<Pass> {
        let mut pass = Pass::default();
        let mut reader = self.reader(ctx, state);
        let mut named = named(state);
        loop {
            let numbers: Vec<u64> = named.by_ref().take(SEGMENTS_AT_ONCE).collect();
            if numbers.is_empty() {
                break;
            }
            let mut contents = reader.contents(&numbers, Order::Fifo).await?;
            for number in numbers {
                let content = match contents.remove(&number) {
                    // Nothing of it is left that anybody wants.
                    Some(Err(_))
                        if state.record_at(number).is_some_and(|at| plan::is_drained(state, self.order, at)) =>
                    {
                        None
                    }
                    content => content.transpose()?,
                };
                self.count(state, number, content, &mut pass);
            }
        }
        if self.order == Order::Lifo {
            self.pass_below(&mut reader, &mut pass).await?;
        }
        Ok(pass)
    }

    /// A stack's segments below those on record: each says which is the next.
    async fn pass_below(&self, reader: &mut Reader<'_>, pass: &mut Pass) -> Result<()> {
        let state = reader.state;
        let mut below = state.records.first().map(|record| record.below).unwrap_or_default();
        let mut contents = HashMap::new();
        let mut read_from = u64::MAX;
        while let Some(number) = below.segment {
            // Where numbers may be missing, it ends where all that live were found.
            if below.is_guess && pass.segments + pass.missing >= state.live {
                break;
            }
            if number < read_from {
                let numbers = at_once(number);
                read_from = numbers[numbers.len() - 1];
                contents = reader.contents(&numbers, Order::Lifo).await?;
            }
            below = match contents.remove(&number).and_then(Result::ok).filter(|content| !content.items.is_empty()) {
                Some(content) => {
                    pass.add(state, number, &content, &content.taken);
                    next_below(&content, number)
                }
                None => {
                    pass.missing += u64::from(!below.is_guess);
                    Below { segment: number.checked_sub(1), is_guess: true }
                }
            };
        }
        pass.missing = pass.missing.max(state.live.saturating_sub(pass.segments));
        Ok(())
    }

    fn reader<'e>(&'e self, ctx: Ctx, state: &'e State) -> Reader<'e> {
        let Engine { store, name, manifest, .. } = self;
        Reader { store, ctx, name, manifest, state, links: HashMap::new() }
    }

    fn count(&self, state: &State, number: u64, content: Option<Content>, pass: &mut Pass) {
        let at = state.record_at(number);
        let record = at.map(|at| &state.records[at]);
        let is_sound = |content: &Content| {
            let is_own =
                if number == state.tail { content.incarnation == state.incarnation } else { !content.items.is_empty() };
            is_own && record.is_none_or(|record| record.kept(content).is_none())
        };
        match content.filter(is_sound) {
            Some(content) => pass.add(state, number, &content, record.map_or(&[], |record| &record.taken)),
            None => {
                let is_known = number == state.tail && state.is_tail_lost;
                let is_removed =
                    at.is_some_and(|at| plan::is_drained(state, self.order, at) && state.records[at].remover.is_some());
                if is_known || is_removed {
                    pass.segments += 1;
                } else {
                    pass.missing += 1;
                }
            }
        }
    }
}

impl Pass {
    /// A segment, of whose items these ranges were taken: claimed, or acknowledged.
    fn add(&mut self, state: &State, number: u64, content: &Content, taken: &[(u32, u32)]) {
        let opens: HashSet<u32> =
            state.opens.iter().filter(|open| open.segment == number).map(|open| open.ordinal).collect();
        let count: u32 = taken.iter().map(|range| range.1 - range.0).sum();
        let acknowledged = taken.iter().flat_map(|range| range.0..range.1).filter(|ordinal| !opens.contains(ordinal));
        let items = acknowledged.filter_map(|ordinal| content.items.get(ordinal as usize));
        // As its frame has it: the length twice, which tells a removal from it, and the bytes.
        let bytes = |item: &Bytes| (varint_bytes((item.len() as u64) << 1) + item.len()) as u64;
        self.stale_bytes += items.map(bytes).sum::<u64>();
        self.ready += u64::from(content.count().saturating_sub(count));
        self.segments += 1;
        self.bytes += content.bytes as u64;
    }
}

/// The segments that the state names: those on record, and all behind the last of them. The others are a stack's, below these, or
/// were removed.
fn named(state: &State) -> impl Iterator<Item = u64> + '_ {
    let behind = state.records.last().map_or(state.tail, |record| record.segment + 1);
    state.records.iter().map(|record| record.segment).chain(behind..=state.tail)
}

/// The numbers to read at once, from this one down: where none was removed, a stack goes on with them.
fn at_once(number: u64) -> Vec<u64> {
    (number.saturating_sub(SEGMENTS_AT_ONCE as u64 - 1)..=number).rev().collect()
}

/// Where a stack goes on below a segment: always further down.
fn next_below(content: &Content, number: u64) -> Below {
    content.below.filter(|below| below.segment.is_none_or(|segment| segment < number)).unwrap_or_default()
}

/// Reads segments by their numbers.
struct Reader<'e> {
    store: &'e StoreRef,
    ctx: Ctx,
    name: &'e Name,
    manifest: &'e Manifest,
    state: &'e State,
    /// What links told; `None`: there is none.
    links: HashMap<u64, Option<u64>>,
}

impl Reader<'_> {
    /// The segments of these numbers that are there. **Round trips: 1**, and 1 for each 256 numbers that the state does not name.
    async fn contents(&mut self, numbers: &[u64], towards: Order) -> Result<HashMap<u64, Result<Content>>> {
        if let Some(&first) = numbers.iter().find(|&&number| !self.is_known(number)) {
            self.read_links(first, towards).await?;
        }
        let there: Vec<(u64, u64)> =
            numbers.iter().filter_map(|&number| Some((number, self.incarnation(number)?))).collect();
        let reads: Result<Batch> = there
            .iter()
            .map(|&(_, incarnation)| {
                Ok(Op::get(engine::segment_key(self.manifest, self.name, incarnation)?, Want::VALUE | Want::CAS))
            })
            .collect();
        let reads = reads?;
        let mut contents = HashMap::with_capacity(there.len());
        if reads.is_empty() {
            return Ok(contents);
        }
        let mut answers = Answers::new(self.store.run(self.ctx, reads).await);
        for (number, _) in there {
            if let Some(item) = answers.next()?.into_item() {
                contents.insert(number, Content::parse(number, &item, 0));
            }
        }
        Ok(contents)
    }

    /// The incarnation of a segment, where it is known.
    fn incarnation(&self, number: u64) -> Option<u64> {
        self.state.incarnation_of(number).or_else(|| self.links.get(&number).copied().flatten())
    }

    fn is_known(&self, number: u64) -> bool {
        self.links.contains_key(&number) || self.state.incarnation_of(number).is_some()
    }

    /// Reads links from this number on, those ahead too. **Round trips: 1.**
    async fn read_links(&mut self, first: u64, towards: Order) -> Result<()> {
        let at_once = self.store.profile().batch_ops_max.clamp(SEGMENTS_AT_ONCE, LINKS_AT_ONCE) as u64;
        let numbers = match towards {
            Order::Fifo => first..=self.state.tail.min(first.saturating_add(at_once - 1)),
            Order::Lifo => first.saturating_sub(at_once - 1)..=first,
        };
        let numbers: Vec<u64> = numbers.filter(|&number| !self.is_known(number)).collect();
        let reads: Result<Batch> = numbers
            .iter()
            .map(|&number| Ok(Op::get(engine::link_key(self.manifest, self.name, number)?, Want::VALUE)))
            .collect();
        let mut answers = Answers::new(self.store.run(self.ctx, reads?).await);
        for number in numbers {
            let item = answers.next()?.into_item();
            let told = item.map(|item| layout::linked(&item.value, self.manifest.generation, number)).transpose()?;
            self.links.insert(number, told);
        }
        Ok(())
    }
}

/// The keys of the segments that are there, or may be, and of their links, with the token of the state that names them. **Round trips: 1**; 1 more for each 256 segments that are not on
/// record, and of a stack for each 16, and for each place where some were removed.
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let cell = Cell::new(manifest.data_key(name, 0)?);
    let Some(item) = store.run_one(ctx, cell.read_op()).await?.into_item() else { return Ok(Pieces::default()) };
    let state = State::decode(&item.value, manifest.generation).map_err(|error: Error| error.key(&cell.key))?;
    let mut reader = Reader { store, ctx, name, manifest, state: &state, links: HashMap::new() };
    for number in named(&state) {
        if !reader.is_known(number) {
            reader.read_links(number, Order::Fifo).await?;
        }
    }
    if manifest.kind == Kind::Stack {
        reader.find_below().await?;
    }
    let named = named(&state).filter_map(|number| state.incarnation_of(number));
    let linked = reader.links.values().copied().flatten();
    let segments = named.chain(linked).map(|incarnation| engine::segment_key(manifest, name, incarnation));
    // Of what is on record, too: one that was noted may have a link that nobody reads now.
    let numbers = reader.links.iter().filter(|(_, told)| told.is_some()).map(|(&number, _)| number);
    let links = numbers.chain(state.records.iter().map(|record| record.segment)).chain([state.tail]);
    let links = links.map(|number| engine::link_key(manifest, name, number));
    // Of several servers they stand on the state's, where this does not find them: there their leases end them.
    let markers = state.opens.iter().map(|open| manifest.data_key(name, format_args!("c{:016x}", open.claim)));
    let keys: Result<Vec<Key>> = segments.chain(links).chain(markers).collect();
    Ok(Pieces { keys: Owned::items(keys?), tokens: vec![item.cas] })
}

impl Reader<'_> {
    /// Reads the links of a stack's segments below those on record: of all numbers, below one that is lost.
    async fn find_below(&mut self) -> Result<()> {
        let mut below = self.state.records.first().map(|record| record.below).unwrap_or_default();
        let mut found = HashMap::new();
        let mut read_from = u64::MAX;
        while let Some(number) = below.segment {
            if below.is_guess {
                // The segment that knew how to go on is lost.
                for number in (0..=number).rev() {
                    if !self.is_known(number) {
                        self.read_links(number, Order::Lifo).await?;
                    }
                }
                break;
            }
            if number < read_from {
                let numbers = at_once(number);
                read_from = numbers[numbers.len() - 1];
                found = self.contents(&numbers, Order::Lifo).await?;
            }
            below = match found.remove(&number) {
                Some(Ok(content)) if !content.items.is_empty() => next_below(&content, number),
                _ => Below { segment: number.checked_sub(1), is_guess: true },
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Record;
    use super::super::past::Chain;
    use super::*;

    #[test]
    fn so_many_segments_of_a_stack_are_read_at_once_and_none_below_the_first() {
        assert_eq!(at_once(100), (101 - SEGMENTS_AT_ONCE as u64..=100).rev().collect::<Vec<_>>());
        assert_eq!(at_once(2), [2, 1, 0]);
    }

    #[test]
    fn a_stack_goes_on_further_down_whatever_a_segment_says() {
        let says = |segment| Content {
            incarnation: 1,
            items: vec![Bytes::from_static(b"x")],
            below: Some(Below { segment, is_guess: false }),
            taken: Vec::new(),
            kept: None,
            chain: Chain::of(1, 1, 0),
            bytes: 100,
            cas: None,
            last: 0,
        };
        let next = |segment| next_below(&says(segment), 5).segment;
        assert_eq!([None, Some(0), Some(4)].map(next), [None, Some(0), Some(4)]);
        // Else it would never end.
        assert_eq!([Some(5), Some(6)].map(next), [None, None]);
    }

    #[test]
    fn a_state_names_what_it_has_on_record_and_all_behind_the_last_of_that() {
        let record = |segment| Record { segment, ..Record::default() };
        let state = |records: &[u64]| State {
            tail: 9,
            records: records.iter().copied().map(record).collect(),
            ..State::first(1)
        };
        let all = |records: &[u64]| named(&state(records)).collect::<Vec<_>>();
        assert_eq!(all(&[2, 4, 7]), [2, 4, 7, 8, 9]);
        assert_eq!(all(&[9]), [9]);
        assert_eq!(all(&[]), [9]);
    }
}
