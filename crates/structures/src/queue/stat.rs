//! Figures of a queue or stack, and the keys it has made.

use std::collections::HashMap;

use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, Result, StoreExt, StoreRef, Want};

use super::QueueStat;
use super::engine::{Engine, View};
use super::layout::{Below, Content, Record, State};
use super::plan::{self, Order};
use super::push::Answers;
use crate::cell::Cell;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;

/// How many segments are read at once.
const SEGMENTS_AT_ONCE: usize = 16;
/// How often a count is tried again when something is missing that others may have removed meanwhile.
const TRIES_MAX: usize = 4;

/// What a pass over the segments found.
#[derive(Default)]
struct Pass {
    ready: u64,
    bytes: u64,
    segments: u64,
    missing: u64,
}

impl Engine {
    /// Reads all there is. **Round trips: 2**, and 1 more for each further 16 segments; of a stack, for each place where some were
    /// removed, too.
    pub(super) async fn stat(&self) -> Result<QueueStat> {
        let ctx = Ctx::within(self.timeout);
        self.vigil.check()?;
        let mut view = self.look(ctx).await?;
        for tries in 1.. {
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
                    pass.missing = 0;
                }
            }
            self.vigil.check()?;
            let state = view.state;
            return Ok(QueueStat {
                ready: pass.ready
                    + state.opens.iter().filter(|open| open.claim == super::layout::GIVEN_BACK).count() as u64,
                claimed: state.opens.iter().filter(|open| open.claim != super::layout::GIVEN_BACK).count() as u64,
                acknowledged: state.acked,
                segments: pass.segments,
                bytes: pass.bytes,
                segments_missing: pass.missing + state.untold,
                segments_lost: state.lost_segments,
                items_lost: state.lost_items,
            });
        }
        Err(larder_core::ext::no_reply())
    }

    /// How many items are not acknowledged yet.
    pub(super) async fn len(&self) -> Result<u64> {
        let stat = self.stat().await?;
        if stat.segments_missing > 0 {
            let detail = format!(
                "{} segments are gone: evicted, or lost in a restart; a consumer is told of it once, and goes on behind them",
                stat.segments_missing
            );
            return Err(self.named(ErrorKind::Lost, &detail));
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
        let mut named = named(state);
        loop {
            let numbers: Vec<u64> = named.by_ref().take(SEGMENTS_AT_ONCE).collect();
            if numbers.is_empty() {
                break;
            }
            let mut contents = self.contents(ctx, &numbers).await?;
            for number in numbers {
                let content = match contents.remove(&number) {
                    // What a late request made again after it was removed is nothing of ours.
                    Some(Err(_)) if state.record_at(number).is_none() => None,
                    content => content.transpose()?,
                };
                self.count(state, number, content, &mut pass);
            }
        }
        if self.order == Order::Lifo {
            self.pass_below(ctx, state, &mut pass).await?;
        }
        Ok(pass)
    }

    /// A stack's segments below those on record: each says which is the next.
    async fn pass_below(&self, ctx: Ctx, state: &State, pass: &mut Pass) -> Result<()> {
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
                contents = self.contents(ctx, &numbers).await?;
            }
            below = match contents.remove(&number).and_then(Result::ok).filter(|content| !content.items.is_empty()) {
                Some(content) => {
                    let taken = Record { taken: content.taken.clone(), ..Record::default() }.count();
                    pass.add(&content, taken);
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

    async fn contents(&self, ctx: Ctx, numbers: &[u64]) -> Result<HashMap<u64, Result<Content>>> {
        let ops: Result<Batch> = numbers.iter().map(|&number| self.segment_read(number)).collect();
        contents(&self.store, ctx, numbers, ops?).await
    }

    fn count(&self, state: &State, number: u64, content: Option<Content>, pass: &mut Pass) {
        let at = state.record_at(number);
        let record = at.map(|at| &state.records[at]);
        let is_sound = |content: &Content| {
            let is_own =
                if number == state.tail { content.incarnation == state.incarnation } else { !content.items.is_empty() };
            is_own && record.is_none_or(|record| record.end() <= content.count())
        };
        match content.filter(is_sound) {
            Some(content) => pass.add(&content, record.map_or(0, Record::count)),
            None => {
                let is_known = number == state.tail && state.is_tail_lost;
                let is_removed = at.is_some_and(|at| plan::is_drained(state, self.order, at));
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
    fn add(&mut self, content: &Content, taken: u32) {
        self.ready += u64::from(content.count().saturating_sub(taken));
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

/// The segments of these numbers that are there.
async fn contents(store: &StoreRef, ctx: Ctx, numbers: &[u64], reads: Batch) -> Result<HashMap<u64, Result<Content>>> {
    let mut answers = Answers::new(store.run(ctx, reads).await);
    let mut contents = HashMap::with_capacity(numbers.len());
    for &number in numbers {
        if let Some(item) = answers.next()?.into_item() {
            contents.insert(number, Content::parse(number, &item, 0));
        }
    }
    Ok(contents)
}

/// The keys of the segments that are there, or may be. **Round trips: 1**; of a stack 1 more for each 16 segments that are not on
/// record, and for each place where some were removed.
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Vec<Key>> {
    let cell = Cell::new(manifest.data_key(name, 0)?);
    let Some(item) = store.run_one(ctx, cell.read_op()).await?.into_item() else { return Ok(Vec::new()) };
    let state = State::decode(&item.value, manifest.generation).map_err(|error: Error| error.key(&cell.key))?;
    let segment_key = |segment: u64| manifest.data_key(name, format_args!("s{segment:x}"));
    // One more than the tail: somebody may have stopped while opening it.
    let mut segments: Vec<u64> = named(&state).chain([state.tail + 1]).collect();
    let mut below = match manifest.kind {
        Kind::Queue => Below::default(),
        _ => state.records.first().map(|record| record.below).unwrap_or_default(),
    };
    let mut found = HashMap::new();
    let mut read_from = u64::MAX;
    while let Some(number) = below.segment {
        if below.is_guess {
            // The segment that knew how to go on is lost.
            segments.extend(0..=number);
            break;
        }
        segments.push(number);
        if number < read_from {
            let numbers = at_once(number);
            read_from = numbers[numbers.len() - 1];
            let reads: Result<Batch> =
                numbers.iter().map(|&number| Ok(Op::get(segment_key(number)?, Want::VALUE))).collect();
            found = contents(store, ctx, &numbers, reads?).await?;
        }
        below = match found.remove(&number) {
            Some(Ok(content)) if !content.items.is_empty() => next_below(&content, number),
            _ => Below { segment: number.checked_sub(1), is_guess: true },
        };
    }
    // Of several servers they stand on the state's, where this does not find them: there their leases end them.
    let markers = state.opens.iter().map(|open| manifest.data_key(name, format_args!("c{:016x}", open.claim)));
    segments.into_iter().map(segment_key).chain(markers).collect()
}
