//! What to do next, from the state and the segments that were read: no store, no time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::layout::{Below, Content, GIVEN_BACK, Open, Record, State};
use super::removal::{Fate, Removals};

/// From which end items are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// A queue: the oldest first.
    Fifo,
    /// A stack: the newest first.
    Lifo,
}

/// How many segments are looked at in one go.
pub(super) const SEGMENTS_AT_ONCE: usize = 16;

/// How many numbers are looked at in one go where segments may be missing for a good reason.
const GUESSES: u64 = 32;

/// How many links are kept in mind.
const LINKS_MAX: usize = 1_024;

/// What was read of segments.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    seen: HashMap<u64, Seen>,
    /// Incarnations by numbers, as links told them: they never change.
    links: HashMap<u64, u64>,
    /// Counts calls: what was read in an earlier one may be out of date.
    call: u64,
}

/// A segment as it was read last.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// `None`: it is not there.
    pub(super) content: Option<Arc<Content>>,
    /// True if it was its link that was not there.
    is_unlinked: bool,
    /// The call that read it.
    pub(super) call: u64,
    /// The tail as it was known when the read was sent: a segment before it was closed by then.
    tail: u64,
    /// The state's sequence as it was known then. While that stands, what the read did not find is lost.
    pub(super) seq: u64,
}

/// What is known of a segment that the state names.
enum Look<'s> {
    Unread,
    Here(&'s Arc<Content>),
    /// Of what was taken, only the first so many items are there for certain.
    Back(&'s Arc<Content>, u32),
    Lost,
}

/// What taking the next item takes.
#[derive(Debug)]
pub(super) enum Pick {
    /// This one; the state says so now.
    Item { bytes: Bytes, segment: u64, ordinal: u32, attempts: u32 },
    /// These segments must be read first.
    Read(Vec<u64>),
    /// A loss, found now or before, that nobody is known to have heard of; the state counts it.
    Lost(String),
    /// There is nothing to take.
    Nothing,
}

/// An item that nobody has.
enum Free {
    At(u64, u32),
    Read(Vec<u64>),
    Lost(String),
    None,
}

impl Shelf {
    /// Begins a call: what was read before it is no longer fresh. Forgets segments that the state does not name any more.
    pub(super) fn begin(&mut self, state: Option<&State>) {
        self.call += 1;
        if let Some(state) = state {
            let named = |segment: &u64| {
                *segment == state.tail
                    || state.record_at(*segment).is_some()
                    || state.opens.iter().any(|open| open.segment == *segment)
            };
            self.seen.retain(|segment, _| named(segment));
        }
    }

    /// Keeps what was read. `tail` and `seq` are of the state that was known when the read was sent.
    pub(super) fn keep(&mut self, segment: u64, content: Option<Content>, tail: u64, seq: u64) {
        let (content, call) = (content.map(Arc::new), self.call);
        self.seen.insert(segment, Seen { content, is_unlinked: false, call, tail, seq });
    }

    /// Keeps that a segment has no link.
    pub(super) fn keep_unlinked(&mut self, segment: u64, tail: u64, seq: u64) {
        self.seen.insert(segment, Seen { content: None, is_unlinked: true, call: self.call, tail, seq });
    }

    /// Forgets what a link that was missing seemed to tell of segments that the state knows without it. A queue's link goes with the try to remove its segment,
    /// which fails where something was pushed late: the segment is there then.
    pub(super) fn forget_unlinked(&mut self, state: &State) {
        self.seen.retain(|segment, seen| !seen.is_unlinked || state.incarnation_of(*segment).is_none());
    }

    /// Keeps what a link told.
    pub(super) fn link(&mut self, segment: u64, incarnation: u64) {
        if self.links.len() >= LINKS_MAX {
            self.links.clear();
        }
        self.links.insert(segment, incarnation);
    }

    /// The incarnation of a segment, where the state or a link told it.
    pub(super) fn incarnation(&self, state: &State, segment: u64) -> Option<u64> {
        state.incarnation_of(segment).or_else(|| self.links.get(&segment).copied())
    }

    pub(super) fn forget(&mut self, segment: u64) {
        self.seen.remove(&segment);
    }

    pub(super) fn get(&self, segment: u64) -> Option<&Seen> {
        self.seen.get(&segment)
    }

    /// True if the segment was read in this call.
    pub(super) fn has_fresh(&self, segment: u64) -> bool {
        self.get(segment).is_some_and(|seen| self.is_fresh(seen))
    }

    fn is_fresh(&self, seen: &Seen) -> bool {
        seen.call == self.call
    }
}

/// The segment's content, if it can be what the state means.
///
/// What seems lost may be only out of date, one way or the other: others have taken items since the segment was read, or have
/// removed it since the state was. It is lost, or was set back, if it was read while the state was this very one. `record` is the segment's.
fn look<'s>(state: &State, segment: u64, record: Option<&Record>, shelf: &'s Shelf) -> Look<'s> {
    let Some(seen) = shelf.get(segment) else { return Look::Unread };
    let is_sound = |content: &&Arc<Content>| {
        // A segment is closed only when something is in it.
        if segment == state.tail { content.incarnation == state.incarnation } else { !content.items.is_empty() }
    };
    let content = seen.content.as_ref().filter(is_sound);
    let kept = content.and_then(|content| record.and_then(|record| record.kept(content)));
    match (content, kept) {
        (Some(content), None) => Look::Here(content),
        _ if seen.seq != state.seq => Look::Unread,
        (Some(content), Some(kept)) => Look::Back(content, kept),
        (None, _) => Look::Lost,
    }
}

/// Takes a segment as it is that was set back: what is not there for certain counts as not taken, and who claimed it has no claim any more. So what was pushed
/// since is delivered, and what was taken just before it was set back is delivered once more.
fn set_back(state: &mut State, at: usize, content: &Content, kept: u32) -> String {
    let segment = state.records[at].segment;
    let end = state.records[at].end();
    state.records[at].cut(kept, content);
    let claims = void(state, segment, kept);
    format!(
        "segment {segment} went back to an older state, by a failover or a restart: of the {end} items up to the last that was taken {kept} are there for \
         certain, what was pushed behind them may be gone, and what is there is delivered, perhaps again; {claims} claims are void"
    )
}

/// Counts a segment that was set back: of its items so many are there for certain, and claims of others are void. How many those were.
fn void(state: &mut State, segment: u64, kept: u32) -> usize {
    let before = state.opens.len();
    state.opens.retain(|open| open.segment != segment || open.ordinal < kept);
    let claims = before - state.opens.len();
    state.lost_items += claims as u64;
    state.lost_segments += 1;
    claims
}

/// True if nothing of the segment is left, as far as the state knows, and nobody pushes to it but by mistake.
pub(super) fn is_drained(state: &State, order: Order, at: usize) -> bool {
    let record = &state.records[at];
    let is_in_use = record.segment >= state.tail || (order == Order::Fifo && at + 1 == state.records.len());
    !is_in_use && record.is_whole() && state.opens.iter().all(|open| open.segment != record.segment)
}

/// Takes segments out of the state that were drained and are gone; those that nobody removed are lost, and a consumer is to be told.
pub(super) fn tidy(state: &mut State, order: Order, shelf: &Shelf, removals: &Removals) {
    for at in (0..state.records.len()).rev() {
        if !is_drained(state, order, at) {
            continue;
        }
        let Some(seen) = shelf.get(state.records[at].segment).filter(|seen| seen.content.is_none()) else { continue };
        match removals.fate(state, &state.records[at], seen, shelf.is_fresh(seen)) {
            Fate::Removed => unlink(state, at),
            Fate::Evicted => {
                unlink(state, at);
                state.lost_segments += 1;
                state.found += 1;
            }
            Fate::Open => {}
        }
    }
}

/// Takes a segment out of the state; what lay on it lies on what was below it.
fn unlink(state: &mut State, at: usize) {
    let gone = state.records.remove(at);
    state.live = state.live.saturating_sub(1);
    if let Some(above) = state.records.get_mut(at) {
        above.below = gone.below;
    }
}

/// Takes the next item: the state says afterwards that it was taken. It is not open yet. Or finds a loss: the state counts it afterwards, and has it told to
/// every consumer until one has heard of it. Of the losses that the state counts, the first `told` are not told again. With `again_only`, an item that somebody claimed before
/// is taken, even where a stack has newer ones.
pub(super) fn pick(
    order: Order,
    state: &mut State,
    shelf: &Shelf,
    expired: &HashSet<u64>,
    told: u64,
    again_only: bool,
) -> Pick {
    let untold = state.found.saturating_sub(told.max(state.told));
    if untold > 0 {
        return Pick::Lost(format!(
            "{untold} losses were found: segments are gone, or went back, and what was in them, or was pushed to them late, is lost"
        ));
    }
    let pick = next(order, state, shelf, expired, again_only);
    if matches!(pick, Pick::Lost(_)) {
        state.found += 1;
    }
    pick
}

/// What comes next: of a loss, the state says what it takes to go on behind it.
fn next(order: Order, state: &mut State, shelf: &Shelf, expired: &HashSet<u64>, again_only: bool) -> Pick {
    let is_waiting = |open: &&Open| open.claim == GIVEN_BACK || expired.contains(&open.claim);
    let waiting = state.opens.iter().filter(is_waiting);
    let returned = match order {
        Order::Fifo => waiting.min_by_key(|open| (open.segment, open.ordinal)).copied(),
        Order::Lifo => waiting.max_by_key(|open| (open.segment, open.ordinal)).copied(),
    };
    if let Some(open) = returned
        && (order == Order::Fifo || again_only)
    {
        return again(state, shelf, open);
    }
    let free = match order {
        Order::Fifo => oldest(state, shelf),
        Order::Lifo => newest(state, shelf),
    };
    match (free, returned) {
        (Free::Read(segments), _) => Pick::Read(segments),
        (Free::Lost(what), _) => Pick::Lost(what),
        (Free::At(segment, ordinal), Some(open)) if (open.segment, open.ordinal) > (segment, ordinal) => {
            again(state, shelf, open)
        }
        (Free::At(segment, ordinal), _) => take(state, shelf, segment, ordinal),
        (Free::None, Some(open)) => again(state, shelf, open),
        (Free::None, None) => Pick::Nothing,
    }
}

/// Takes an item that was claimed before.
fn again(state: &mut State, shelf: &Shelf, open: Open) -> Pick {
    let at = state.record_at(open.segment);
    let bytes = match look(state, open.segment, at.map(|at| &state.records[at]), shelf) {
        Look::Unread => return Pick::Read(vec![open.segment]),
        Look::Back(content, kept) => match at {
            Some(at) => return Pick::Lost(set_back(state, at, content, kept)),
            None => None,
        },
        // Of what is not on record the segment notes what was taken: it may have been set back, too.
        Look::Here(content) if at.is_some() || content.has_taken(open.ordinal) => {
            content.items.get(open.ordinal as usize).cloned()
        }
        Look::Here(_) if shelf.get(open.segment).is_some_and(|seen| seen.seq != state.seq) => {
            return Pick::Read(vec![open.segment]);
        }
        Look::Here(_) | Look::Lost => None,
    };
    state.opens.retain(|other| (other.segment, other.ordinal) != (open.segment, open.ordinal));
    match bytes {
        Some(bytes) => Pick::Item {
            bytes,
            segment: open.segment,
            ordinal: open.ordinal,
            attempts: open.attempts.saturating_add(1),
        },
        None => {
            state.lost_items += 1;
            Pick::Lost(format!("item {} of segment {} is gone before it was acknowledged", open.ordinal, open.segment))
        }
    }
}

fn take(state: &mut State, shelf: &Shelf, segment: u64, ordinal: u32) -> Pick {
    let content = shelf.get(segment).and_then(|seen| seen.content.as_ref());
    let item = content.and_then(|content| Some((content.items.get(ordinal as usize)?.clone(), content)));
    let at = state.record_at(segment);
    match (item, at) {
        (Some((bytes, content)), Some(at)) => {
            state.records[at].take(ordinal, content);
            Pick::Item { bytes, segment, ordinal, attempts: 1 }
        }
        // Only what was read, of a segment on record, is offered.
        _ => Pick::Read(vec![segment]),
    }
}

fn lost_segment(state: &mut State, segment: u64) -> String {
    state.lost_segments += 1;
    format!("segment {segment} is gone: evicted, or lost in a restart; what was left in it is lost")
}

/// The oldest item of a queue that was never taken.
fn oldest(state: &mut State, shelf: &Shelf) -> Free {
    loop {
        let last = state.records.len().saturating_sub(1);
        // Late appends to segments that were passed come first.
        for at in 0..last {
            let record = &state.records[at];
            match look(state, record.segment, Some(record), shelf) {
                Look::Here(content) => {
                    if let Some(ordinal) = record.first_free(content.count()) {
                        return Free::At(record.segment, ordinal);
                    }
                }
                Look::Back(content, kept) => return Free::Lost(set_back(state, at, content, kept)),
                // It went back to where nothing of it was taken, and is gone since: that is not for who was to remove it to tell.
                Look::Lost if !record.is_whole() => {
                    let segment = record.segment;
                    unlink(state, at);
                    return Free::Lost(lost_segment(state, segment));
                }
                Look::Unread | Look::Lost => {}
            }
        }
        let Some(record) = state.records.last() else { return Free::None };
        let segment = record.segment;
        let is_tail = segment >= state.tail;
        match look(state, segment, Some(record), shelf) {
            Look::Unread => return Free::Read(vec![segment]),
            Look::Back(content, kept) => return Free::Lost(set_back(state, last, content, kept)),
            Look::Lost if is_tail && state.is_tail_lost => return Free::None,
            Look::Lost => {
                if is_tail {
                    state.is_tail_lost = true;
                } else {
                    state.records[last] = state.next_record(segment + 1);
                    state.live = state.live.saturating_sub(1);
                }
                return Free::Lost(lost_segment(state, segment));
            }
            Look::Here(content) => {
                if let Some(ordinal) = record.first_free(content.count()) {
                    return Free::At(segment, ordinal);
                }
            }
        }
        let (is_fresh, was_closed) =
            shelf.get(segment).map_or((false, false), |seen| (shelf.is_fresh(seen), seen.tail > segment));
        match (is_tail, is_fresh, was_closed) {
            (true, true, _) => return Free::None,
            (true, false, _) | (false, _, false) => return Free::Read(vec![segment]),
            (false, _, true) => state.records.push(state.next_record(segment + 1)),
        }
    }
}

/// The newest item of a stack that was never taken.
fn newest(state: &mut State, shelf: &Shelf) -> Free {
    let mut at = state.records.len();
    loop {
        if at == 0 {
            match descend(state, shelf) {
                Descent::Onto => at = 1,
                Descent::Ended(free) => return free,
            }
        }
        at -= 1;
        let record = &state.records[at];
        let segment = record.segment;
        let is_tail = segment == state.tail;
        // Others push to the tail at any time; what is closed changes by mistake only.
        let is_current = |seen: &Seen| shelf.is_fresh(seen) || (!is_tail && seen.tail > segment);
        let Some(seen) = shelf.get(segment).filter(|seen| is_current(seen)) else {
            return Free::Read(if is_tail { vec![segment] } else { downwards(&state.records[..=at]) });
        };
        if seen.content.is_none() && is_drained(state, Order::Lifo, at) {
            // There is nothing to take; what became of it is for others to find out.
            continue;
        }
        match look(state, segment, Some(record), shelf) {
            Look::Unread => return Free::Read(vec![segment]),
            Look::Back(content, kept) => return Free::Lost(set_back(state, at, content, kept)),
            Look::Lost if is_tail && state.is_tail_lost => {}
            Look::Lost if is_tail => {
                state.is_tail_lost = true;
                return Free::Lost(lost_segment(state, segment));
            }
            Look::Lost => {
                unlink(state, at);
                return Free::Lost(lost_segment(state, segment));
            }
            Look::Here(content) => {
                if let Some(ordinal) = record.last_free(content.count()) {
                    return Free::At(segment, ordinal);
                }
            }
        }
    }
}

/// The highest segment of these, and those below it that come next should there be nothing in it: where all is taken, as far as the state knows, only a late push can be. None is the tail.
fn downwards(records: &[Record]) -> Vec<u64> {
    let whole = records.iter().rev().take_while(|record| record.is_whole()).count();
    records.iter().rev().take((whole + 1).min(SEGMENTS_AT_ONCE)).map(|record| record.segment).collect()
}

/// Where going down below the lowest record led.
enum Descent {
    /// Onto a segment: it is the lowest record now.
    Onto,
    Ended(Free),
}

/// Goes on below the lowest segment of a stack that is on record.
fn descend(state: &mut State, shelf: &Shelf) -> Descent {
    loop {
        let Some(below) = state.records.first().map(|record| record.below) else { return Descent::Ended(Free::None) };
        let Some(segment) = below.segment else {
            // All numbers were looked at. What is missing now was lost together with the segment that knew of it.
            let missing = state.live.saturating_sub(state.records.len() as u64);
            if missing == 0 {
                return Descent::Ended(Free::None);
            }
            state.live -= missing;
            state.lost_segments += missing;
            let what = format!("{missing} segments are gone: what was left in them is lost");
            return Descent::Ended(Free::Lost(what));
        };
        // What was taken of it stands in notes that it got when it left the record: an older reading may lack them.
        let is_of_now = shelf.get(segment).is_some_and(|seen| seen.seq == state.seq);
        let found = if is_of_now { look(state, segment, None, shelf) } else { Look::Unread };
        match found {
            Look::Unread => {
                let first = if below.is_guess { segment.saturating_sub(GUESSES - 1) } else { segment };
                return Descent::Ended(Free::Read((first..=segment).rev().collect()));
            }
            Look::Here(content) => {
                state.records.insert(0, content.record(segment));
                let Some(kept) = content.kept else { return Descent::Onto };
                let claims = void(state, segment, kept);
                let what = format!(
                    "segment {segment} went back to an older state, by a failover or a restart, before it was left: {kept} of its items are there for \
                     certain, others may be gone, and what is there is delivered, perhaps again; {claims} claims are void"
                );
                return Descent::Ended(Free::Lost(what));
            }
            Look::Lost | Look::Back(..) => {
                state.records[0].below = Below { segment: segment.checked_sub(1), is_guess: true };
                if !below.is_guess {
                    state.live = state.live.saturating_sub(1);
                    return Descent::Ended(Free::Lost(lost_segment(state, segment)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::past::Chain;
    use super::*;

    /// A segment of a stack, of so many pushes of an item, that notes nothing as taken and lies on nothing.
    fn segment(incarnation: u64, items: u32) -> Content {
        Content {
            incarnation,
            items: vec![Bytes::from_static(b"x"); items as usize],
            below: Some(Below::default()),
            taken: Vec::new(),
            kept: None,
            chain: Chain::of(items, items, 0),
            bytes: 100,
            cas: None,
            last: 0,
        }
    }

    /// On record, whole as it was opened.
    fn record(number: u64, below: Below) -> Record {
        Record::new(number, 10 + number, below)
    }

    fn picked(order: Order, state: &mut State, shelf: &Shelf) -> Pick {
        pick(order, state, shelf, &HashSet::new(), 0, false)
    }

    #[test]
    fn a_call_forgets_segments_that_the_state_does_not_name_any_more() {
        let open = Open { segment: 2, ordinal: 0, claim: 5, attempts: 1 };
        let records = vec![record(3, Below::default())];
        let state = State { tail: 4, records, opens: vec![open], ..State::default() };
        let mut shelf = Shelf::default();
        for number in 0..5 {
            shelf.keep(number, Some(segment(10 + number, 1)), 4, 0);
        }
        assert!(shelf.has_fresh(4));
        shelf.begin(Some(&state));
        let known: Vec<u64> = (0..5).filter(|&number| shelf.get(number).is_some()).collect();
        assert_eq!(known, [2, 3, 4]);
        assert!(!shelf.has_fresh(4), "it was read by an earlier call");
    }

    #[test]
    fn what_a_missing_link_seemed_to_tell_is_forgotten_of_what_the_state_knows() {
        let records = vec![record(1, Below::default()), record(3, Below::default())];
        let state = State { tail: 4, records, ..State::default() };
        let mut shelf = Shelf::default();
        shelf.keep(1, None, 4, 0);
        shelf.keep_unlinked(2, 4, 0);
        shelf.keep_unlinked(3, 4, 0);
        shelf.forget_unlinked(&state);
        // The first was read itself.
        assert_eq!([1, 2, 3].map(|number| shelf.get(number).is_some()), [true, true, false]);
    }

    #[test]
    fn what_links_told_is_kept_in_mind_of_many_and_not_of_all_there_ever_were() {
        let (state, mut shelf) = (State::default(), Shelf::default());
        let many = LINKS_MAX as u64;
        for number in 1..=many {
            shelf.link(number, 10 + number);
        }
        assert!((1..=many).all(|number| shelf.incarnation(&state, number) == Some(10 + number)));
        for number in many + 1..3 * many {
            shelf.link(number, 10 + number);
            assert_eq!(shelf.incarnation(&state, number), Some(10 + number));
        }
        assert!(shelf.links.len() <= LINKS_MAX);
    }

    #[test]
    fn nothing_is_taken_from_what_was_forgotten_before_it_is_read_again() {
        let state = State { tail: 2, records: vec![record(1, Below::default())], ..State::default() };
        let mut shelf = Shelf::default();
        shelf.keep(1, Some(segment(11, 1)), 2, 0);
        assert!(matches!(picked(Order::Fifo, &mut state.clone(), &shelf), Pick::Item { segment: 1, .. }));
        shelf.forget(1);
        let pick = picked(Order::Fifo, &mut state.clone(), &shelf);
        assert!(matches!(&pick, Pick::Read(segments) if *segments == [1]), "{pick:?}");
    }

    /// A stack's segment that was left, and was set back since to before the note of what was taken of it.
    #[test]
    fn an_item_that_its_segment_does_not_note_as_taken_is_lost_once_the_segment_was_read_with_this_state() {
        let open = Open { segment: 1, ordinal: 0, claim: GIVEN_BACK, attempts: 1 };
        let base = State { seq: 9, tail: 3, opens: vec![open], ..State::default() };
        let mut shelf = Shelf::default();
        shelf.keep(1, Some(segment(11, 2)), 3, 8);
        let pick = picked(Order::Lifo, &mut base.clone(), &shelf);
        assert!(matches!(&pick, Pick::Read(segments) if *segments == [1]), "{pick:?}");
        shelf.keep(1, Some(segment(11, 2)), 3, 9);
        let mut state = base.clone();
        let pick = picked(Order::Lifo, &mut state, &shelf);
        assert!(matches!(&pick, Pick::Lost(what) if what.contains("item 0 of segment 1 is gone")), "{pick:?}");
        assert_eq!((state.lost_items, state.found, state.opens.len()), (1, 1, 0));
        // As the note has it, it is delivered.
        shelf.keep(1, Some(Content { taken: vec![(0, 1)], ..segment(11, 2) }), 3, 9);
        let pick = picked(Order::Lifo, &mut base.clone(), &shelf);
        assert!(matches!(pick, Pick::Item { segment: 1, ordinal: 0, attempts: 2, .. }), "{pick:?}");
    }

    #[test]
    fn segments_that_are_missing_at_the_bottom_of_a_stack_are_told_once() {
        let records = vec![record(2, Below::default()), record(3, Below::default())];
        let mut state = State { tail: 3, live: 3, records, ..State::default() };
        let shelf = Shelf::default();
        let end = descend(&mut state, &shelf);
        assert!(matches!(end, Descent::Ended(Free::Lost(what)) if what.contains("1 segments are gone")));
        assert_eq!((state.live, state.lost_segments), (2, 1));
        assert!(matches!(descend(&mut state, &shelf), Descent::Ended(Free::None)));
        // What is left counts for the limit.
        state.live = 9;
        assert!(matches!(descend(&mut state, &shelf), Descent::Ended(Free::Lost(_))));
        assert_eq!((state.live, state.lost_segments), (2, 8));
    }

    #[test]
    fn below_a_segment_that_is_lost_so_many_numbers_are_looked_at_in_one_go() {
        let asked = |below| {
            let mut state = State { tail: 200, records: vec![record(200, below)], ..State::default() };
            match descend(&mut state, &Shelf::default()) {
                Descent::Ended(Free::Read(segments)) => segments,
                _ => panic!("nothing is to be read"),
            }
        };
        let guess = |segment| Below { segment: Some(segment), is_guess: true };
        assert_eq!(asked(guess(100)), (101 - GUESSES..=100).rev().collect::<Vec<_>>());
        assert_eq!(asked(guess(2)), [2, 1, 0]);
        assert_eq!(asked(Below { segment: Some(100), is_guess: false }), [100]);
    }

    #[test]
    fn a_segment_that_was_set_back_before_it_was_left_is_a_loss_that_is_counted() {
        let records = vec![record(2, Below { segment: Some(1), is_guess: false })];
        let mut state = State { seq: 9, tail: 2, live: 2, records, ..State::default() };
        let mut shelf = Shelf::default();
        shelf.keep(1, Some(Content { kept: Some(1), ..segment(11, 2) }), 2, 9);
        let end = descend(&mut state, &shelf);
        assert!(matches!(end, Descent::Ended(Free::Lost(what)) if what.contains("segment 1 went back")));
        assert_eq!((state.lost_segments, state.live, state.records[0].segment), (1, 2, 1));
    }
}
