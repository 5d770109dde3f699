//! Reading a range of time: the ledger, then every part that it lists of the range, all at once.

use std::ops::{Bound, RangeBounds, RangeInclusive};

use larder_core::{Ctx, Error, ErrorKind, Result, Want};

use super::events::{Events, GapCause};
use super::inner::{Inner, Met, Read, at, parts};
use super::layout::HEADER_BYTES;
use crate::events;
use crate::ledger::Piece;

/// The milliseconds that a range holds; `None` if there are none.
///
/// # Errors
/// [`ErrorKind::BadInput`] for a range that ends before it begins.
pub(super) fn millis(range: &impl RangeBounds<u64>) -> Result<Option<RangeInclusive<u64>>> {
    if let (Bound::Included(first) | Bound::Excluded(first), Bound::Included(last) | Bound::Excluded(last)) =
        (range.start_bound(), range.end_bound())
        && first > last
    {
        let detail = format!("the range begins at {first} ms and ends before that, at {last} ms");
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    let first = match range.start_bound() {
        Bound::Included(&first) => Some(first),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let last = match range.end_bound() {
        Bound::Included(&last) => Some(last),
        Bound::Excluded(&after) => after.checked_sub(1),
        Bound::Unbounded => Some(u64::MAX),
    };
    Ok(first.zip(last).filter(|(first, last)| first <= last).map(|(first, last)| first..=last))
}

pub(super) async fn fetch(inner: &Inner, ctx: Ctx, times: Option<RangeInclusive<u64>>) -> Result<Events> {
    let list = inner.ledger.read(ctx).await?;
    let oldest_ms = inner.oldest_ms(inner.now_ms());
    let times = times.map(|times| oldest_ms.max(*times.start())..=*times.end());
    let Some(times) = times.filter(|times| !times.is_empty()) else { return Ok(Events::default()) };
    let pieces = list.between(inner.params.chunk_of(*times.start()), inner.params.chunk_of(*times.end()));
    let reads = inner.read_parts(ctx, &parts(pieces), Want::VALUE).await?;
    let mut found = Events::default();
    let mut rest = pieces;
    for of_chunk in reads.chunk_by(|one, next| one.at.chunk == next.at.chunk) {
        let mut met = Met::default();
        for read in of_chunk {
            let listed;
            (listed, rest) = rest.split_at(rest.iter().take_while(|piece| at(piece) == read.at).count());
            let incarnation = take(inner, read, &times, &mut met, &mut found)?;
            let gaps = listed.iter().filter_map(|piece| gap(inner, piece, incarnation));
            found.gaps.extend(gaps.inspect(|_| events::gap(inner.subject())));
        }
    }
    // Stable: what came in the order of chunk, part and arrival stays so within a millisecond.
    found.events.sort_by_key(|event| event.time_ms);
    Ok(found)
}

/// Adds the events of a part; tells which incarnation it is.
fn take(
    inner: &Inner,
    read: &Read,
    times: &RangeInclusive<u64>,
    met: &mut Met,
    found: &mut Events,
) -> Result<Option<u64>> {
    let Some((value, _)) = &read.item else { return Ok(None) };
    let part = inner.parse(read.at, value)?;
    for frame in part.frames(HEADER_BYTES).map_err(|error| inner.named(error, read.at))? {
        if met.insert((frame.writer, frame.seq)) {
            inner.take_events(value, &part, (read.at, &frame), times, &mut found.events)?;
        }
    }
    Ok(Some(part.incarnation))
}

/// The gap that a listed piece leaves where another incarnation is found, or none.
pub(super) fn gap(inner: &Inner, listed: &Piece, found: Option<u64>) -> Option<super::Gap> {
    match found {
        Some(incarnation) if incarnation == listed.incarnation => None,
        Some(_) => Some(inner.gap(at(listed), GapCause::Replaced)),
        None => Some(inner.gap(at(listed), GapCause::Missing)),
    }
}
