//! Figures of a queue or stack, and the keys it has made.

use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Result, StoreExt, StoreRef};

use super::QueueStat;
use super::engine::{Engine, View};
use super::layout::{Content, Record, State};
use super::plan::{self, Order};
use super::push::Answers;
use crate::cell::Cell;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;

/// How many segments are read at once.
const SEGMENTS_AT_ONCE: u64 = 16;
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
    /// Reads all there is. **Round trips: 2**, and 1 more for each further 16 segments.
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

    async fn pass(&self, ctx: Ctx, state: &State) -> Result<Pass> {
        let mut pass = Pass::default();
        // From the tail down: a stack's numbers have gaps, and end where all that live were found.
        let first = match self.order {
            Order::Fifo => state.records.first().map_or(state.tail, |record| record.segment),
            Order::Lifo => 0,
        };
        let mut next = Some(state.tail);
        while let Some(last) = next.filter(|&last| last >= first) {
            let lowest = last.saturating_sub(SEGMENTS_AT_ONCE - 1).max(first);
            let numbers: Vec<u64> = (lowest..=last).rev().collect();
            let ops: Result<Batch> = numbers.iter().map(|&number| self.segment_read(number)).collect();
            let mut answers = Answers::new(self.store.run(ctx, ops?).await);
            for number in numbers {
                let content = match answers.next()?.into_item().map(|item| Content::parse(number, &item, 0)) {
                    // What a late request made again after it was removed is nothing of ours.
                    Some(Err(_)) if state.record_at(number).is_none() => None,
                    content => content.transpose()?,
                };
                self.count(state, number, content, &mut pass);
            }
            if self.order == Order::Lifo && pass.segments + pass.missing >= state.live {
                break;
            }
            next = lowest.checked_sub(1);
        }
        if self.order == Order::Lifo {
            pass.missing = pass.missing.max(state.live.saturating_sub(pass.segments));
        }
        Ok(pass)
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
            Some(content) => {
                let of_itself = || Record { taken: content.taken.clone(), ..Record::default() }.count();
                let taken = record.map_or_else(of_itself, Record::count);
                pass.ready += u64::from(content.count().saturating_sub(taken));
                pass.segments += 1;
                pass.bytes += content.bytes as u64;
            }
            None => {
                let is_known = number == state.tail && state.is_tail_lost;
                let is_removed = at.is_some_and(|at| plan::is_drained(state, self.order, at));
                // Of a stack's numbers that are not on record, those missing are told by what lives; of a queue's, those before the
                // last on record were passed and removed.
                let is_passed = || state.records.last().is_some_and(|last| number < last.segment);
                let may_be_gap = at.is_none() && (self.order == Order::Lifo || is_passed());
                if is_known || is_removed {
                    pass.segments += 1;
                } else if !may_be_gap {
                    pass.missing += 1;
                }
            }
        }
    }
}

/// The keys of the segments that are there, or may be. **Round trips: 1.**
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Vec<Key>> {
    let cell = Cell::new(manifest.data_key(name, 0)?);
    let Some(item) = store.run_one(ctx, cell.read_op()).await?.into_item() else { return Ok(Vec::new()) };
    let state = State::decode(&item.value, manifest.generation).map_err(|error: Error| error.key(&cell.key))?;
    let first = match manifest.kind {
        Kind::Queue => state.records.first().map_or(state.tail, |record| record.segment),
        // Its numbers have gaps, and how far down they go only the segments know.
        _ => 0,
    };
    // One more than the tail: somebody may have stopped while opening it.
    let segments = (first..=state.tail + 1).map(|segment| manifest.data_key(name, format_args!("s{segment:x}")));
    // Of several servers they stand on the state's, where this does not find them: there their leases end them.
    let markers = state.opens.iter().map(|open| manifest.data_key(name, format_args!("c{:016x}", open.claim)));
    segments.chain(markers).collect()
}
