//! A slot on several servers: a register that is right as long as enough copies are.
//!
//! With `k` copies, a write counts once `W = k/2 + 1` copies took it, and what `R = k + 1 - W` copies say includes every write
//! that counted. A writer first claims the slot: it writes a ballot higher than all it saw to at least `R` copies, each
//! conditional on what it read there and leaving the content as it is. Then it writes contents under that ballot, for as long as
//! nobody claims a higher one: one round trip each. Of contents, the one of the highest (ballot, sequence) holds.
//!
//! Two things make this safe where a server can come back empty, having forgotten what it promised:
//! - every write to a copy is conditional on the very state of it that the writer knows, so a claim ends the right of all
//!   others to write the copies it touched, whatever their ballots;
//! - a copy that is missing has no vote. It is made again only under a ballot that was claimed after it was seen missing,
//!   from copies that were not lost. What is written to an empty place may land late, when the copy was made by others and lost once more: so
//!   that is a blank, which has no vote either, and only the blank that was read before the claim is written over.
//!
//! Copies go missing where the counter is dropped, too. So the claim before a copy is made again looks for the manifest, in the
//! same round trip: where it is missing, or another life's, nothing is made. Where the drop goes on between the look and the
//! write, the copies that promised are gone by then, and those made again are too few for the write to count.
//!
//! A copy: promised ballot (16 bytes), ballot of the content (16), then the slot as of `layout.rs`. A ballot is an epoch and a
//! random draw, 8 bytes each, little-endian. A blank: one byte, 0; one that nobody writes over expires.
//!
//! Sources: CASPaxos (Rystsov, 2018) for a register without a log; Flexible Paxos (Howard, Malkhi, Spiegelman, 2016) for
//! quorums that need not be majorities.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Item, PutMode, Reply, Result, Ttl, TtlSupport};

use super::layout::Slot;
use super::register::{self, Job, Registers, View, Written, no_slot, token};
use crate::cell::{Cell, Wrote};
use crate::ids::random_id;

const BALLOTS_BYTES: usize = 32;
/// What stands in the place of a missing copy until it is made again.
const BLANK: Bytes = Bytes::from_static(&[0]);
/// How long: nobody else removes one that was made behind a drop.
const BLANK_LIFE: Duration = Duration::from_secs(60);

/// Who may write: the highest claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Ballot {
    epoch: u64,
    /// Makes every claim one of its own, also two of one writer.
    draw: u64,
}

/// What a copy holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Record {
    promised: Ballot,
    accepted: Ballot,
    slot: Slot,
}

/// What a writer knows of a copy.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are present, and a box each would cost more")]
enum Copy {
    Present {
        cas: Cas,
        record: Record,
    },
    Missing,
    /// Missing, and there is a blank in its place.
    Blank(Cas),
    Unread(Error),
}

/// What a write is conditional on: the state of every copy.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    /// The ballot that was claimed, if none is known to be higher.
    claimed: Option<Ballot>,
    copies: Vec<Copy>,
}

fn write_quorum(copies: usize) -> usize {
    copies / 2 + 1
}

fn read_quorum(copies: usize) -> usize {
    copies + 1 - write_quorum(copies)
}

/// What a copy of a new slot holds.
pub(super) fn first_bytes(slot: &Slot) -> Bytes {
    Record { slot: slot.clone(), ..Record::default() }.encode()
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        for ballot in [self.promised, self.accepted] {
            out.put_u64_le(ballot.epoch);
            out.put_u64_le(ballot.draw);
        }
        self.slot.encode_into(&mut out);
        out.freeze()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
        let (ballots, slot) = bytes.split_first_chunk::<BALLOTS_BYTES>()?;
        let mut numbers = ballots.chunks_exact(8).filter_map(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
        let mut ballot = || Some(Ballot { epoch: numbers.next()?, draw: numbers.next()? });
        Some(Record { promised: ballot()?, accepted: ballot()?, slot: Slot::decode(slot)? })
    }

    /// The order of contents.
    fn rank(&self) -> (Ballot, u64) {
        (self.accepted, self.slot.seq)
    }
}

impl Copy {
    fn new(cell: &Cell, now: Result<Option<Item>>) -> Result<Copy> {
        match now {
            Ok(None) => Ok(Copy::Missing),
            Ok(Some(item)) if item.value == BLANK => Ok(Copy::Blank(token(cell, &item)?)),
            Ok(Some(item)) => {
                let record = Record::decode(&item.value).ok_or_else(|| no_slot(cell, &item.value))?;
                Ok(Copy::Present { cas: token(cell, &item)?, record })
            }
            Err(error) => Ok(Copy::Unread(error)),
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Copy::Present { record, .. } => Some(record),
            _ => None,
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Copy::Missing | Copy::Blank(_))
    }
}

impl Hold {
    /// True if a copy is missing and the next write will make it again.
    pub(super) fn is_thin(&self) -> bool {
        self.copies.iter().any(Copy::is_missing)
    }

    /// True if a copy is missing, and no blank is in its place.
    fn lacks_blanks(&self) -> bool {
        self.copies.iter().any(|copy| matches!(copy, Copy::Missing))
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.copies.iter().filter_map(Copy::record)
    }

    pub(super) fn fault(&self) -> Option<&Error> {
        self.copies.iter().find_map(|copy| match copy {
            Copy::Unread(error) => Some(error),
            _ => None,
        })
    }
}

/// What the items of a slot's copies say together; `None` if too many copies are gone.
pub(super) fn view(cells: &[Cell], items: Vec<Result<Option<Item>>>) -> Result<Option<View>> {
    let copies = cells.iter().zip(items).map(|(cell, item)| Copy::new(cell, item)).collect::<Result<Vec<_>>>()?;
    judge(copies)
}

fn judge(copies: Vec<Copy>) -> Result<Option<View>> {
    let count = copies.len();
    let hold = Hold { claimed: None, copies };
    let missing = hold.copies.iter().filter(|copy| copy.is_missing()).count();
    if count - missing < read_quorum(count) {
        return Ok(None);
    }
    if hold.records().count() < read_quorum(count) {
        return Err(hold.fault().cloned().unwrap_or_else(larder_core::ext::no_reply));
    }
    let Some(best) = hold.records().max_by_key(|record| record.rank()) else { return Ok(None) };
    let settled = hold.records().filter(|record| record.rank() == best.rank()).count() >= write_quorum(count);
    Ok(Some(View { slot: best.slot.clone(), settled, hold: register::Hold::Many(hold) }))
}

/// The slot that holds of what its copies hold, as one that has none; `None` where too many are gone, or one is no copy.
pub(crate) fn portable_slot(copies: &[Option<Bytes>]) -> Option<Bytes> {
    let there = copies.iter().flatten().filter(|&bytes| *bytes != BLANK);
    let records = there.map(|bytes| Record::decode(bytes)).collect::<Option<Vec<_>>>()?;
    if records.len() < read_quorum(copies.len()) {
        return None;
    }
    records.iter().max_by_key(|record| record.rank()).map(|best| best.slot.encode())
}

/// What is sent to one copy.
enum Ask {
    Read,
    Put(PutMode, Bytes),
    /// Puts a blank where there is nothing.
    Blank,
}

/// What one copy answered.
struct Answer {
    /// Of a put.
    landed: Option<Result<bool>>,
    now: Copy,
}

/// A write under way.
struct Work<'a> {
    cells: &'a [Cell],
    hold: Hold,
    next: Slot,
    /// Why a copy cannot be made again, where its server says so.
    refused: Option<Error>,
    done: Option<Written>,
}

/// Writes slots, each if it is still as its view says. **Round trips: 1** for slots that are claimed, else 2; 1 more where a copy is missing that has no blank.
pub(super) async fn write(registers: &Registers, ctx: Ctx, jobs: Vec<Job>) -> Vec<Written> {
    let work = |job: Job| match (registers.places.get(usize::from(job.index)), job.view.hold) {
        (Some(cells), register::Hold::Many(hold)) => {
            Some(Work { cells, hold, next: job.next, refused: None, done: None })
        }
        _ => None,
    };
    let mut works: Vec<Work> = jobs.into_iter().filter_map(work).collect();
    let lacking: Vec<&mut Work> = works.iter_mut().filter(|work| work.hold.lacks_blanks()).collect();
    if !lacking.is_empty() {
        let asks = lacking.iter().map(|work| (work.cells, work.blank_asks())).collect();
        let (answers, _) = round(registers, ctx, asks, false).await;
        for (work, answers) in lacking.into_iter().zip(answers) {
            work.blanked(answers);
        }
    }
    let mut claims: Vec<(&mut Work, Ballot)> = Vec::new();
    for work in works.iter_mut().filter(|work| work.done.is_none() && work.hold.claimed.is_none()) {
        let ballot = work.next_ballot();
        claims.push((work, ballot));
    }
    if !claims.is_empty() {
        let asks = claims.iter().map(|(work, ballot)| (work.cells, work.claim_asks(*ballot))).collect();
        let makes_copies = claims.iter().any(|(work, _)| work.hold.is_thin());
        let (answers, may_make) = round(registers, ctx, asks, makes_copies).await;
        for ((work, ballot), answers) in claims.into_iter().zip(answers) {
            match &may_make {
                Err(error) if work.hold.is_thin() => work.fail(error.clone().effect(Effect::NotApplied)),
                _ => work.claimed(ballot, answers),
            }
        }
    }
    let mut writes: Vec<(&mut Work, Ballot)> = Vec::new();
    for work in works.iter_mut().filter(|work| work.done.is_none()) {
        if let Some(ballot) = work.hold.claimed {
            writes.push((work, ballot));
        }
    }
    if !writes.is_empty() {
        let asks = writes.iter().map(|(work, ballot)| (work.cells, work.write_asks(*ballot))).collect();
        let (answers, _) = round(registers, ctx, asks, false).await;
        for ((work, ballot), answers) in writes.into_iter().zip(answers) {
            work.written(ballot, answers);
        }
    }
    let undone = || Written { landed: Ok(false), now: Err(larder_core::ext::no_reply()) };
    works.into_iter().map(|work| work.done.unwrap_or_else(undone)).collect()
}

impl Work<'_> {
    fn next_ballot(&self) -> Ballot {
        let epoch = self.hold.records().map(|record| record.promised.max(record.accepted).epoch).max().unwrap_or(0);
        Ballot { epoch: epoch.saturating_add(1), draw: random_id() }
    }

    fn blank_asks(&self) -> Vec<Ask> {
        let ask = |copy: &Copy| if matches!(copy, Copy::Missing) { Ask::Blank } else { Ask::Read };
        self.hold.copies.iter().map(ask).collect()
    }

    /// Keeps the blanks that are there now. A copy that others have made meanwhile may hold what this write knows nothing of: it is no part of it.
    fn blanked(&mut self, answers: Result<Vec<Answer>>) {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return self.fail(error.effect(Effect::NotApplied)),
        };
        for (copy, answer) in self.hold.copies.iter_mut().zip(answers).filter(|(copy, _)| copy.is_missing()) {
            if let (Copy::Missing, Some(Err(error))) = (&answer.now, answer.landed) {
                self.refused.get_or_insert(error);
            }
            *copy = match answer.now {
                Copy::Present { .. } => Copy::Unread(beaten()),
                now => now,
            };
        }
    }

    fn claim_asks(&self, ballot: Ballot) -> Vec<Ask> {
        let ask = |copy: &Copy| match copy {
            Copy::Present { cas, record } => {
                Ask::Put(PutMode::Cas(*cas), Record { promised: ballot, ..record.clone() }.encode())
            }
            Copy::Missing | Copy::Blank(_) | Copy::Unread(_) => Ask::Read,
        };
        self.hold.copies.iter().map(ask).collect()
    }

    /// Keeps of the copies those that promised, and the blanks that are still there, as they were read before.
    fn claimed(&mut self, ballot: Ballot, answers: Result<Vec<Answer>>) {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return self.fail(error),
        };
        let mut promised = 0;
        let mut fault = self.refused.take();
        for (copy, answer) in self.hold.copies.iter_mut().zip(answers) {
            let is_ours = answer.now.record().is_some_and(|record| record.promised == ballot);
            if let Copy::Unread(error) = &answer.now {
                fault.get_or_insert_with(|| error.clone());
            }
            *copy = match (&*copy, answer.now) {
                (Copy::Present { .. }, now) if is_ours => {
                    promised += 1;
                    now
                }
                (Copy::Blank(cas), Copy::Blank(_)) => Copy::Blank(*cas),
                // It is read again with the write, and joins from the next one on.
                (_, Copy::Unread(error)) => Copy::Unread(error),
                _ => Copy::Unread(beaten()),
            };
        }
        let count = self.hold.copies.len();
        let blank = self.hold.copies.iter().filter(|copy| copy.is_missing()).count();
        if promised < read_quorum(count) || promised + blank < write_quorum(count) {
            let landed = fault.map_or(Ok(false), |error| Err(error.effect(Effect::NotApplied)));
            self.done = Some(Written { landed, now: Err(beaten()) });
            return;
        }
        self.hold.claimed = Some(ballot);
    }

    fn write_asks(&self, ballot: Ballot) -> Vec<Ask> {
        let bytes = Record { promised: ballot, accepted: ballot, slot: self.next.clone() }.encode();
        let ask = |copy: &Copy| match copy {
            Copy::Present { cas, record } if record.promised <= ballot => Ask::Put(PutMode::Cas(*cas), bytes.clone()),
            Copy::Blank(cas) => Ask::Put(PutMode::Cas(*cas), bytes.clone()),
            Copy::Present { .. } | Copy::Missing | Copy::Unread(_) => Ask::Read,
        };
        self.hold.copies.iter().map(ask).collect()
    }

    fn written(&mut self, ballot: Ballot, answers: Result<Vec<Answer>>) {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return self.fail(error.effect(Effect::Unknown)),
        };
        let (mut votes, mut may_land, mut is_deposed, mut fault) = (0, false, false, None);
        for (copy, answer) in self.hold.copies.iter_mut().zip(answers) {
            match answer.landed {
                Some(Ok(true)) if !answer.now.is_missing() => votes += 1,
                Some(Err(error)) => {
                    may_land |= error.is_unknown();
                    fault = Some(error);
                }
                _ => {}
            }
            // A copy that is missing now may be made again under the next claim, not under this one.
            is_deposed |= answer.now.is_missing();
            is_deposed |= answer.now.record().is_some_and(|record| record.promised > ballot);
            *copy = answer.now;
        }
        let hold = Hold { claimed: None, copies: std::mem::take(&mut self.hold.copies) };
        let needed = write_quorum(hold.copies.len());
        let now = if votes >= needed && !is_deposed {
            let hold = register::Hold::Many(Hold { claimed: Some(ballot), ..hold });
            Ok(Some(View { slot: self.next.clone(), settled: true, hold }))
        } else {
            judge(hold.copies)
        };
        let landed = if votes >= needed {
            Ok(true)
        } else if votes > 0 || may_land {
            let detail = format!("{votes} copies took the write; it counts once {needed} have it");
            let error = Error::new(ErrorKind::Unavailable, detail).effect(Effect::Unknown);
            Err(match fault {
                Some(fault) => error.source(fault),
                None => error,
            })
        } else {
            fault.map_or(Ok(false), Err)
        };
        self.done = Some(Written { landed, now });
    }

    fn fail(&mut self, error: Error) {
        self.done = Some(Written { landed: Err(error.clone()), now: Err(error) });
    }
}

fn beaten() -> Error {
    Error::new(ErrorKind::Conflict, "another writer claimed this copy")
}

/// Asks the copies of several slots at once; with `must_look` also whether this is still the counter of its name, which
/// fails the second result if it is not. **Round trips: 1.**
async fn round(
    registers: &Registers,
    ctx: Ctx,
    asks: Vec<(&[Cell], Vec<Ask>)>,
    must_look: bool,
) -> (Vec<Result<Vec<Answer>>>, Result<()>) {
    let mut batch = Batch::new();
    let blank_life = match registers.store.profile().ttl {
        TtlSupport::None => Ttl::Never,
        _ => Ttl::After(BLANK_LIFE),
    };
    for (cells, asks) in &asks {
        for (cell, ask) in cells.iter().zip(asks) {
            match ask {
                Ask::Read => batch.push(cell.read_op()),
                Ask::Put(mode, bytes) => batch.extend(cell.put_ops(*mode, bytes.clone(), Ttl::Never)),
                Ask::Blank => batch.extend(cell.put_ops(PutMode::Add, BLANK, blank_life)),
            }
        }
    }
    let vigil = &registers.vigil;
    let (replies, is_ours) = if must_look {
        let (replies, sight) = vigil.look(ctx, batch).await;
        (replies, vigil.expect_ours(sight))
    } else {
        (vigil.run(ctx, batch).await, Ok(()))
    };
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
    let mut answer = |cell: &Cell, ask: Ask| {
        let bytes = match ask {
            Ask::Read => return Ok(Answer { landed: None, now: Copy::new(cell, next().map(Reply::into_item))? }),
            Ask::Put(_, bytes) => bytes,
            Ask::Blank => BLANK,
        };
        let wrote = Wrote::new(&bytes, next(), next());
        Ok(Answer { landed: Some(wrote.landed), now: Copy::new(cell, wrote.now)? })
    };
    let mut all = Vec::with_capacity(asks.len());
    for (cells, asks) in asks {
        // Every ask takes its replies, also after one that could not be read.
        let answers: Vec<Result<Answer>> = cells.iter().zip(asks).map(|(cell, ask)| answer(cell, ask)).collect();
        all.push(answers.into_iter().collect());
    }
    (all, is_ours)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::{Op, Profile, Run, Store, StoreRef, SystemClock, Verb};

    use super::*;
    use crate::copies::{self, COPIES_MAX};
    use crate::counter::layout::Mark;
    use crate::manifest::{Kind, Manifest};
    use crate::name::Name;
    use crate::ranked_tests::Three;

    #[test]
    fn golden_bytes() {
        let ballot = |epoch, draw| Ballot { epoch, draw };
        let record = Record { promised: ballot(2, 3), accepted: ballot(1, 0x0405), slot: Slot::default() };
        let mut golden = b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x05\x04\0\0\0\0\0\0".to_vec();
        golden.extend(&Slot::default().encode()[..]);
        assert_eq!(record.encode(), golden);
        assert_eq!(Record::decode(&golden), Some(record));
        for end in 0..golden.len() {
            assert_eq!(Record::decode(&golden[..end]), None);
        }
        assert_eq!((&BLANK[..], BLANK_LIFE.as_secs()), (&b"\0"[..], 60));
    }

    #[test]
    fn quorums_meet() {
        for copies in 1..=usize::from(COPIES_MAX) {
            assert!(write_quorum(copies) + read_quorum(copies) > copies);
            assert!(2 * write_quorum(copies) > copies);
        }
        assert_eq!((write_quorum(3), read_quorum(3)), (2, 2));
        assert_eq!((write_quorum(2), read_quorum(2)), (2, 1));
    }

    #[test]
    fn the_slot_of_copies_is_that_of_the_highest_ballot_and_sequence_where_enough_are_left() {
        let added = |slot: &Slot, delta| slot.added(Mark { writer: 7, op: slot.seq + 1 }, delta, 0).unwrap();
        let copy = |epoch, slot: &Slot| {
            let accepted = Ballot { epoch, draw: 1 };
            Some(Record { promised: accepted, accepted, slot: slot.clone() }.encode())
        };
        let old = added(&Slot::default(), 1);
        let new = added(&old, 4);
        let overruled = added(&new, 9);
        let best = |copies: &[Option<Bytes>]| portable_slot(copies).and_then(|bytes| Slot::decode(&bytes));
        assert_eq!(best(&[copy(2, &old), copy(2, &new), copy(1, &overruled)]), Some(new.clone()));
        assert_eq!(best(&[None, copy(2, &new), copy(2, &old)]), Some(new.clone()));
        assert_eq!(best(&[None, copy(2, &new)]), Some(new.clone()));
        assert_eq!(best(&[Some(BLANK), copy(2, &new), copy(2, &old)]), Some(new.clone()));
        assert_eq!(best(&[None, None, copy(2, &new)]), None);
        assert_eq!(best(&[Some(BLANK), Some(BLANK), copy(2, &new)]), None);
        assert_eq!(best(&[copy(2, &new), copy(2, &old), Some(new.encode())]), None, "one is no copy");
    }

    fn ballot(epoch: u64) -> Ballot {
        Ballot { epoch, draw: 1 }
    }

    /// A slot that was written so often.
    fn slot(writes: u64) -> Slot {
        (1..=writes).fold(Slot::default(), |slot, op| slot.added(Mark { writer: 7, op }, 1, 0).unwrap())
    }

    fn present(promised: u64, accepted: u64, slot: Slot) -> Copy {
        let record = Record { promised: ballot(promised), accepted: ballot(accepted), slot };
        Copy::Present { cas: Cas { token: 1, session: 1 }, record }
    }

    fn broken(effect: Effect) -> Error {
        Error::new(ErrorKind::Timeout, "as the test wants").effect(effect)
    }

    fn unread() -> Copy {
        Copy::Unread(broken(Effect::NotApplied))
    }

    #[test]
    fn a_new_copy_holds_the_slot_under_no_ballot() {
        let made = Record::decode(&first_bytes(&slot(2))).unwrap();
        assert_eq!(made, Record { promised: Ballot::default(), accepted: Ballot::default(), slot: slot(2) });
    }

    #[test]
    fn copies_say_what_most_of_them_hold_and_what_few_hold_is_not_settled() {
        let said = |copies| judge(copies).unwrap().map(|view| (view.slot, view.settled));
        let (old, new) = (|| present(1, 1, slot(1)), || present(2, 2, slot(2)));
        assert_eq!(said(vec![new(), new(), old()]), Some((slot(2), true)));
        assert_eq!(said(vec![old(), new(), old()]), Some((slot(2), false)));
        assert_eq!(said(vec![unread(), new(), old()]), Some((slot(2), false)));
        assert_eq!(said(vec![Copy::Missing, new(), new()]), Some((slot(2), true)));
        assert_eq!(said(vec![Copy::Missing, new(), Copy::Missing]), None, "too many are gone");
        let blank = || Copy::Blank(Cas { token: 1, session: 1 });
        assert_eq!(said(vec![blank(), new(), new()]), Some((slot(2), true)));
        assert_eq!(said(vec![blank(), new(), Copy::Missing]), None, "a blank is none");
        let error = judge(vec![unread(), new(), unread()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "what kept them from being read");
    }

    /// What became of a write of write 2 under ballot 5 to three copies.
    fn written(answers: [(Option<Result<bool>>, Copy); 3]) -> Written {
        let copies = vec![present(5, 1, slot(1)); 3];
        let hold = Hold { claimed: Some(ballot(5)), copies };
        let mut work = Work { cells: &[], hold, next: slot(2), refused: None, done: None };
        work.written(ballot(5), Ok(answers.map(|(landed, now)| Answer { landed, now }).into()));
        work.done.unwrap()
    }

    fn took() -> (Option<Result<bool>>, Copy) {
        (Some(Ok(true)), present(5, 5, slot(2)))
    }

    fn refused() -> (Option<Result<bool>>, Copy) {
        (Some(Ok(false)), present(5, 1, slot(1)))
    }

    fn failed(effect: Effect) -> (Option<Result<bool>>, Copy) {
        (Some(Err(broken(effect))), unread())
    }

    #[test]
    fn who_was_first_at_most_copies_goes_on_in_one_round_trip_unless_another_claims() {
        let claim = |written: Written| {
            assert!(written.landed.unwrap());
            match written.now.unwrap().unwrap().hold {
                register::Hold::Many(hold) => hold.claimed,
                register::Hold::One(_) => None,
            }
        };
        assert_eq!(claim(written([took(), took(), took()])), Some(ballot(5)));
        // One that was not claimed yet promised less.
        assert_eq!(claim(written([took(), took(), (None, present(2, 1, slot(1)))])), Some(ballot(5)));
        assert_eq!(claim(written([took(), took(), (None, present(6, 1, slot(1)))])), None, "a later claim");
        assert_eq!(claim(written([took(), took(), (None, Copy::Missing)])), None, "it is made again under the next");
        let blank = Copy::Blank(Cas { token: 1, session: 1 });
        assert_eq!(claim(written([took(), took(), (None, blank)])), None, "so is a blank");
    }

    #[test]
    fn a_write_that_no_copy_took_is_known_not_to_count_and_any_doubt_is_told() {
        let landed = |answers| written(answers).landed;
        assert!(!landed([refused(), refused(), refused()]).unwrap());
        assert!(!landed([refused(), refused(), (None, unread())]).unwrap());
        let doubtful = [
            [took(), refused(), refused()],
            [failed(Effect::Unknown), refused(), refused()],
            [failed(Effect::Unknown), failed(Effect::NotApplied), refused()],
            [failed(Effect::NotApplied), failed(Effect::Unknown), refused()],
            [took(), failed(Effect::NotApplied), failed(Effect::NotApplied)],
        ];
        for (at, answers) in doubtful.into_iter().enumerate() {
            assert!(landed(answers).unwrap_err().is_unknown(), "{at}");
        }
        let error = landed([failed(Effect::NotApplied), refused(), refused()]).unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied));
    }

    /// Three servers that keep items for ever, and refuse those that have a life.
    #[derive(Debug)]
    struct Lasting(Three);

    impl Store for Lasting {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { ttl: TtlSupport::None, ..(*self.0.profile()).clone() })
        }

        fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
            let reply = |op: &Op| match op.verb {
                Verb::Put { ttl: Ttl::After(_), .. } => Err(Error::new(ErrorKind::Unsupported, "a ttl")),
                _ => self.0.apply(op),
            };
            Run::Ready(batch.iter().map(reply).collect())
        }
    }

    /// The manifest is gone: the counter was dropped. No copy is made again; what needs none goes on.
    #[tokio::test]
    async fn of_slots_that_are_written_together_only_those_that_lack_a_copy_fail_where_none_may_be_made() {
        let servers = Arc::new(Three::new());
        let store: StoreRef = servers.clone();
        let name = Name::new("c").unwrap();
        let manifest = Manifest { copies: 3, ..Manifest::new(Kind::Counter, 1, 2, Bytes::new()) };
        let registers = Registers::new(store.clone(), &name, &manifest, SystemClock::shared()).unwrap();
        assert!(store.run(Ctx::default(), registers.create_ops()).await.iter().all(Result::is_ok));
        servers.at(2).apply(&Op::delete(manifest.data_key(&name, 0).unwrap())).unwrap();
        let views = registers.read(Ctx::default(), 0..2).await;
        let job =
            |(index, view): (u16, Result<Option<View>>)| Job { index, view: view.unwrap().unwrap(), next: slot(1) };
        let jobs: Vec<Job> = (0..).zip(views).map(job).collect();
        assert_eq!([jobs[0].view.is_thin(), jobs[1].view.is_thin()], [true, false]);
        let [thin, whole] = <[Written; 2]>::try_from(write(&registers, Ctx::default(), jobs).await).unwrap();
        assert_eq!(thin.landed.unwrap_err().known_effect(), Effect::NotApplied);
        assert!(whole.landed.unwrap());
        assert_eq!(whole.now.unwrap().unwrap().slot, slot(1));
    }

    /// What holds the place of a copy until it is made again expires where items do; elsewhere it stays.
    #[tokio::test]
    async fn a_copy_is_made_again_also_by_servers_that_keep_items_for_ever() {
        let servers = Arc::new(Lasting(Three::new()));
        let (store, ctx): (StoreRef, _) = (servers.clone(), Ctx::default());
        let name = Name::new("c").unwrap();
        let manifest = Manifest { copies: 3, ..Manifest::new(Kind::Counter, 1, 1, Bytes::new()) };
        copies::spread(&store, ctx, &name, &manifest, (0..3).map(|rank| (rank, PutMode::Add))).await;
        let registers = Registers::new(store.clone(), &name, &manifest, SystemClock::shared()).unwrap();
        assert!(store.run(ctx, registers.create_ops()).await.iter().all(Result::is_ok));
        servers.0.at(2).apply(&Op::delete(manifest.data_key(&name, 0).unwrap())).unwrap();
        let read = async || registers.read(ctx, 0..1).await.remove(0).unwrap().unwrap();
        let view = read().await;
        assert!(view.is_thin(), "one is missing");
        let written = write(&registers, ctx, vec![Job { index: 0, view, next: slot(1) }]).await.remove(0);
        assert!(written.landed.unwrap());
        let now = read().await;
        assert_eq!((now.is_thin(), now.slot), (false, slot(1)));
    }
}
