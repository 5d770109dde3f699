//! What a handle knows of a shard's past: what it read, and which of its own writes were acknowledged. A store that was set back shows by it, also
//! once others, or the handle itself, have written on.

use super::writers::{WRITERS_IDLE_MAX, Writers};

/// Runs of own sequences that are remembered; of more the oldest are forgotten, and their loss is not noticed. Sequences of a shard have gaps only where
/// an outcome was not known, so one run is the rule.
const RUNS_MAX: usize = 64;

/// Sequences, in rising order, as runs without a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs(Vec<(u64, u64)>);

impl Runs {
    fn push(&mut self, seq: u64) {
        match self.0.last_mut() {
            Some((_, last)) if *last + 1 == seq => *last = seq,
            Some((_, last)) if *last >= seq => {}
            _ => self.0.push((seq, seq)),
        }
    }

    /// The first of these above `floor` that the others lack.
    fn first_missing(&self, floor: u64, others: &Runs) -> Option<u64> {
        self.0.iter().filter(|(_, last)| *last > floor).find_map(|&(first, last)| {
            let first = first.max(floor + 1);
            let Some(run) = others.0.iter().find(|run| (run.0..=run.1).contains(&first)) else { return Some(first) };
            (run.1 < last).then(|| run.1 + 1)
        })
    }

    /// Forgets those up to one.
    fn forget(&mut self, upto: u64) {
        self.0.retain_mut(|(first, last)| {
            *first = (*first).max(upto + 1);
            first <= last
        });
    }

    fn last(&self) -> u64 {
        self.0.last().map_or(0, |(_, last)| *last)
    }
}

/// What a fold notes for [`Seen::contradicted`].
#[derive(Debug, Default)]
pub(crate) struct Trace {
    writer: u64,
    /// The length whose digest is asked for.
    bytes: usize,
    /// Of snapshot and frames so far, by their checks.
    digest: u64,
    digest_at_bytes: Option<u64>,
    /// The writer's last sequence in the snapshot, where that knows it.
    known: Option<u64>,
    /// True if no snapshot has forgotten a writer so far.
    is_complete: bool,
    /// The writer's sequences in the log.
    own: Runs,
}

impl Trace {
    /// Of the sequences of `writer`, and of the value as it was with so many bytes.
    pub(crate) fn of(writer: u64, bytes: usize) -> Trace {
        Trace { writer, bytes, ..Trace::default() }
    }

    pub(super) fn begin(&mut self, writers: &Writers, snapshot_check: u32) {
        self.digest = u64::from(snapshot_check);
        self.known = writers.get(self.writer).map(|last| last.seq);
        // Once writers are forgotten, there are never fewer again.
        self.is_complete = writers.len() < WRITERS_IDLE_MAX;
    }

    /// Told of every place where a frame begins or the value ends, before the frame.
    pub(super) fn reached(&mut self, at: usize) {
        if at == self.bytes {
            self.digest_at_bytes = Some(self.digest);
        }
    }

    pub(super) fn frame(&mut self, writer: u64, seq: u64, check: u32) {
        self.digest = (self.digest.rotate_left(23) ^ u64::from(check)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if writer == self.writer {
            self.own.push(seq);
        }
    }
}

/// What a handle knows of a shard. A later read must not be older.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The newest epoch and length that were read; a value only grows in both, in this order.
    pub(super) newest: (u32, usize),
    /// Of that value: another one of its epoch begins with it.
    digest: u64,
    /// The last sequence of this handle that was acknowledged; 0 before the first.
    acked: u64,
    /// True if that sequence stands in `newest.0` for certain: a value of the same epoch must show it.
    is_in_epoch: bool,
    /// Sequences of this handle that were acknowledged and not read since.
    unread: Runs,
    /// Those up to this one may stand in the snapshot of `newest.0`, or in an earlier one; those behind it in the log for certain, or in a later epoch.
    in_snapshot: u64,
    /// Those up to this one were read to be missing in a value whose snapshots have forgotten this handle: they are in it, and what comes late of them
    /// is no sign of the others.
    forgotten: u64,
}

impl Seen {
    pub(super) fn trace(&self, writer: u64) -> Trace {
        Trace::of(writer, self.newest.1)
    }

    /// Why a value that was read after this was seen is an older one; `last` is the last sequence of this handle in it.
    pub(super) fn contradicted(&self, now: (u32, usize), last: u64, trace: &Trace) -> Option<String> {
        let (epoch, bytes) = self.newest;
        let is_same_epoch = bytes > 0 && now.0 == epoch;
        if now < self.newest {
            return Some(format!(
                "it is at epoch {} with {} bytes; this handle saw epoch {epoch} with {bytes}",
                now.0, now.1
            ));
        }
        let must_show = self.is_in_epoch && now.0 == epoch;
        if last < self.acked && (must_show || !self.may_be_forgotten(is_same_epoch, trace)) {
            return Some(format!("this handle's write {} was acknowledged and is gone", self.acked));
        }
        if is_same_epoch && trace.digest_at_bytes != Some(self.digest) {
            return Some(format!("it does not begin with the {bytes} bytes that this handle read"));
        }
        // A snapshot may hold some, and have forgotten who wrote them.
        let floor = match trace.known {
            Some(known) => known,
            None if trace.is_complete => 0,
            None if is_same_epoch => self.in_snapshot,
            None => return None,
        };
        let missing = self.unread.first_missing(floor, &trace.own)?;
        Some(format!("this handle's write {missing} was acknowledged and is gone, though later ones are there"))
    }

    /// True if the last acknowledged write may be in a snapshot that does not say so, and a frame of an earlier one have come once more behind it.
    fn may_be_forgotten(&self, is_same_epoch: bool, trace: &Trace) -> bool {
        let is_in_log = is_same_epoch && self.acked > self.in_snapshot;
        self.acked <= self.forgotten || (trace.known.is_none() && !trace.is_complete && !is_in_log)
    }

    /// Takes in a value that contradicts nothing of `before`, which was seen when its read was sent.
    pub(super) fn read(&mut self, before: &Seen, now: (u32, usize), last: u64, trace: &Trace) {
        if now < self.newest {
            return;
        }
        // An acknowledgement that came after the read was sent stands; it says of itself which epoch it is in.
        if now.0 > self.newest.0 {
            self.is_in_epoch = self.acked == before.acked && last == self.acked;
            self.in_snapshot = self.acked;
        }
        if last < before.acked {
            self.forgotten = self.forgotten.max(before.acked);
        }
        self.newest = now;
        self.digest = trace.digest;
        self.unread.forget(before.unread.last());
    }

    /// Notes that a write was acknowledged that was sent when `before` was seen.
    pub(super) fn acknowledged(&mut self, seq: u64, before: &Seen) {
        self.acked = seq;
        // It landed in that epoch or in a later one. If none later was seen, a value of that epoch must show it; else it may
        // have landed, and been compacted away, before the one that was seen.
        self.is_in_epoch = self.newest.0 == before.newest.0 && self.newest.1 > 0;
        if self.newest.0 != before.newest.0 {
            self.in_snapshot = seq;
        }
        self.unread.push(seq);
        if self.unread.0.len() > RUNS_MAX {
            self.unread.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(all: &[u64]) -> Runs {
        let mut runs = Runs::default();
        all.iter().for_each(|&seq| runs.push(seq));
        runs
    }

    #[test]
    fn runs_have_no_gaps() {
        assert_eq!(runs(&[1, 2, 2, 1, 3, 7, 8]).0, [(1, 3), (7, 8)]);
        let mut some = runs(&[1, 2, 3, 7, 8]);
        some.forget(2);
        assert_eq!((some.0.clone(), some.last()), (vec![(3, 3), (7, 8)], 8));
        some.forget(9);
        assert_eq!((some.0.is_empty(), some.last()), (true, 0));
    }

    #[test]
    fn the_first_that_is_missing_is_found() {
        let written = runs(&[2, 3, 4, 9]);
        for (there, floor, missing) in [
            (&[2, 3, 4, 9][..], 0, None),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0, None),
            (&[2, 3, 9], 0, Some(4)),
            (&[3, 4, 9], 0, Some(2)),
            (&[4, 9], 3, None),
            (&[4], 3, Some(9)),
            (&[], 9, None),
            (&[], 0, Some(2)),
        ] {
            assert_eq!(written.first_missing(floor, &runs(there)), missing, "{there:?} above {floor}");
        }
    }

    const WRITER: u64 = 7;

    /// What a fold notes of a value: the writer's last sequence in the snapshot, and those in the log.
    fn trace(known: Option<u64>, own: &[u64]) -> Trace {
        Trace { known, own: runs(own), is_complete: true, ..Trace::of(WRITER, 0) }
    }

    /// A handle that read nothing yet but the value of epoch 1 with 100 bytes, and then was told that its write 5 had landed.
    fn acknowledged_in_epoch_1() -> Seen {
        let before = Seen { newest: (1, 100), ..Seen::default() };
        let mut seen = before.clone();
        seen.acknowledged(5, &before);
        seen
    }

    /// The same digest as the value that was read: it only grew since.
    fn grown(seen: &Seen, trace: Trace) -> Trace {
        Trace { digest_at_bytes: Some(seen.digest), ..trace }
    }

    #[test]
    fn a_write_that_was_read_is_missed_in_a_later_epoch_that_knows_only_earlier_ones() {
        let mut seen = acknowledged_in_epoch_1();
        seen.read(&seen.clone(), (1, 140), 5, &trace(None, &[5]));
        let why = seen.contradicted((2, 80), 3, &trace(Some(3), &[]));
        assert_eq!(why.as_deref(), Some("this handle's write 5 was acknowledged and is gone"));
        assert_eq!(seen.contradicted((2, 80), 5, &trace(Some(5), &[])), None);
        // Nor may it be that it was forgotten where nobody was.
        let why = seen.contradicted((2, 80), 0, &trace(None, &[]));
        assert_eq!(why.as_deref(), Some("this handle's write 5 was acknowledged and is gone"));
    }

    #[test]
    fn a_later_epoch_may_have_forgotten_who_wrote() {
        let mut seen = acknowledged_in_epoch_1();
        let forgotten = Trace { is_complete: false, ..trace(None, &[]) };
        assert_eq!(seen.contradicted((2, 80), 0, &forgotten), None);
        // Once it was read so, it stays so for as long as it only grows.
        seen.read(&seen.clone(), (2, 80), 0, &forgotten);
        let grown = grown(&seen, Trace { is_complete: false, ..trace(None, &[]) });
        assert_eq!(seen.contradicted((2, 120), 0, &grown), None);
    }

    #[test]
    fn a_write_that_landed_in_the_epoch_that_is_read_must_show_in_it() {
        let seen = acknowledged_in_epoch_1();
        let gone = "this handle's write 5 was acknowledged and is gone";
        let why = seen.contradicted((1, 120), 0, &grown(&seen, trace(None, &[])));
        assert_eq!(why.as_deref(), Some(gone), "nothing of the handle's is there, so no later ones are");
        assert_eq!(seen.contradicted((1, 140), 5, &grown(&seen, trace(None, &[5]))), None);
        // The same of one that was read in a later epoch than it was sent in.
        let mut seen = acknowledged_in_epoch_1();
        seen.read(&seen.clone(), (2, 100), 5, &trace(Some(5), &[]));
        let why = seen.contradicted((2, 100), 0, &trace(None, &[]));
        assert_eq!(why.as_deref(), Some(gone));
        // Also by a value whose snapshot has forgotten who wrote: which of the writes is gone is told, not only that the value is another.
        let forgotten = Trace { is_complete: false, ..trace(None, &[]) };
        assert_eq!(seen.contradicted((2, 100), 0, &forgotten).as_deref(), Some(gone));
    }

    /// What comes once more behind a snapshot that has forgotten its writer counts as new, and says nothing of later writes.
    #[test]
    fn a_frame_that_comes_late_is_no_sign_of_a_loss_where_its_writer_may_be_forgotten() {
        let late = |known, own: &[u64]| Trace { is_complete: false, ..trace(known, own) };
        let gone = Some("this handle's write 5 was acknowledged and is gone");
        let mut seen = acknowledged_in_epoch_1();
        seen.read(&seen.clone(), (1, 140), 5, &trace(None, &[5]));
        assert_eq!(seen.contradicted((2, 80), 3, &late(None, &[3])), None);
        // In the log of the epoch that it landed in, in one that has forgotten nobody, and in a snapshot that knows the writer, it would be.
        let why = seen.contradicted((1, 180), 3, &grown(&seen, late(None, &[3])));
        assert_eq!(why.as_deref(), gone);
        assert_eq!(seen.contradicted((2, 80), 3, &trace(None, &[3])).as_deref(), gone);
        assert_eq!(seen.contradicted((2, 80), 3, &late(Some(3), &[])).as_deref(), gone);
        // Once it was read to be forgotten, a later snapshot may know the writer by what came late.
        seen.read(&seen.clone(), (2, 80), 0, &late(None, &[]));
        assert_eq!(seen.contradicted((3, 80), 3, &late(Some(3), &[])), None);
        assert_eq!(seen.contradicted((2, 120), 3, &grown(&seen, late(None, &[3]))), None);
        // Of a write since then all holds as before.
        seen.acknowledged(6, &seen.clone());
        let why = seen.contradicted((3, 80), 3, &late(Some(3), &[]));
        assert_eq!(why.as_deref(), Some("this handle's write 6 was acknowledged and is gone"));
    }

    /// It was compacted away behind more writers than a snapshot keeps, and its acknowledgement came after that was read, or while it was.
    #[test]
    fn a_write_that_was_acknowledged_late_may_stand_in_a_snapshot_that_has_forgotten_its_writer() {
        let forgotten = |own: &[u64]| Trace { is_complete: false, ..trace(None, own) };
        let sent = Seen { newest: (1, 100), acked: 4, ..Seen::default() };
        for is_read_first in [true, false] {
            let mut seen = sent.clone();
            if is_read_first {
                seen.read(&sent, (2, 80), 0, &forgotten(&[]));
                seen.acknowledged(5, &sent);
            } else {
                seen.acknowledged(5, &sent);
                seen.read(&sent, (2, 80), 0, &forgotten(&[]));
            }
            assert_eq!(seen.contradicted((2, 80), 0, &grown(&seen, forgotten(&[]))), None, "{is_read_first}");
            // One that is sent since must show, and so must this one where the snapshot knows of the writer.
            let now = seen.clone();
            seen.acknowledged(6, &now);
            assert_eq!(seen.contradicted((2, 120), 6, &grown(&seen, forgotten(&[6]))), None);
            seen.acknowledged(7, &now);
            let why = seen.contradicted((2, 160), 7, &grown(&seen, forgotten(&[7])));
            assert!(why.is_some_and(|why| why.contains("write 6 was acknowledged")), "{is_read_first}");
            let why = seen.contradicted((2, 160), 7, &grown(&seen, trace(Some(4), &[6, 7])));
            assert!(why.is_some_and(|why| why.contains("write 5 was acknowledged")), "{is_read_first}");
        }
    }

    #[test]
    fn the_loss_of_one_write_in_the_middle_is_told_while_it_is_remembered() {
        // Every other sequence, as where each second write failed: a run for each.
        let writes = |count: usize| (0..count as u64).map(|n| 2 * n + 1).collect::<Vec<u64>>();
        for (count, is_told) in [(RUNS_MAX, true), (RUNS_MAX + 1, false)] {
            let writes = writes(count);
            let mut seen = Seen::default();
            writes.iter().for_each(|&seq| seen.acknowledged(seq, &Seen::default()));
            let found = trace(None, &writes[1..]);
            let why = seen.contradicted((1, 5_000), writes[count - 1], &found);
            assert_eq!(why.is_some_and(|why| why.contains("write 1 was acknowledged")), is_told, "{count} runs");
        }
    }

    #[test]
    fn the_digest_tells_values_apart_by_any_bit_of_any_check() {
        let digest = |checks: &[u32]| {
            let mut trace = Trace::of(WRITER, 0);
            trace.begin(&Writers::default(), checks[0]);
            checks[1..].iter().for_each(|&check| trace.frame(1, 1, check));
            trace.digest
        };
        for (before, after) in [(0, 0), (u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX)] {
            let all = [before, 7, after];
            for (at, bit) in (0..3).flat_map(|at| (0..32).map(move |bit| (at, bit))) {
                let mut other = all;
                other[at] ^= 1 << bit;
                assert_ne!(digest(&all), digest(&other), "bit {bit} of check {at} of {all:?}");
            }
        }
    }

    #[test]
    fn a_read_that_ends_late_does_not_take_back_what_a_later_one_saw() {
        let mut seen = acknowledged_in_epoch_1();
        let before = Seen::default();
        seen.read(&before, (1, 140), 5, &trace(None, &[5]));
        for late in [(1, 120), (0, 900)] {
            seen.read(&before, late, 5, &trace(None, &[5]));
            assert_eq!(seen.newest, (1, 140));
        }
    }

    /// What is told of a write behind a read is of the epoch that the acknowledgement said, not of the read.
    #[test]
    fn a_read_of_the_same_epoch_that_was_sent_before_leaves_what_was_acknowledged_since() {
        let before = Seen { newest: (1, 100), ..Seen::default() };
        let mut seen = acknowledged_in_epoch_1();
        seen.read(&before, (1, 140), 5, &trace(None, &[5]));
        let forgotten = Trace { is_complete: false, ..trace(None, &[]) };
        let why = seen.contradicted((1, 180), 0, &grown(&seen, forgotten));
        assert_eq!(why.as_deref(), Some("this handle's write 5 was acknowledged and is gone"));
    }

    #[test]
    fn in_one_epoch_a_write_behind_its_snapshot_must_show_and_one_in_front_of_it_may_be_forgotten() {
        let late = |own: &[u64]| Trace { is_complete: false, ..trace(None, own) };
        // Acknowledged before anything was read.
        let mut seen = Seen::default();
        seen.acknowledged(5, &Seen::default());
        seen.read(&seen.clone(), (0, 140), 5, &trace(None, &[5]));
        let why = seen.contradicted((0, 180), 3, &grown(&seen, late(&[3])));
        assert_eq!(why.as_deref(), Some("this handle's write 5 was acknowledged and is gone"));
        // Acknowledged while an epoch was read that it may not be in; an earlier frame comes once more.
        let sent = Seen { newest: (1, 100), acked: 4, ..Seen::default() };
        let mut seen = sent.clone();
        seen.acknowledged(5, &sent);
        seen.read(&sent, (2, 80), 0, &late(&[]));
        assert_eq!(seen.contradicted((2, 120), 3, &grown(&seen, late(&[3]))), None);
    }

    /// The same value, read again behind an acknowledgement: what is missing in it is in its snapshot, and stays forgotten.
    #[test]
    fn a_second_read_of_one_value_tells_what_was_acknowledged_in_between() {
        let late = |known, own: &[u64]| Trace { is_complete: false, ..trace(known, own) };
        let sent = Seen { newest: (1, 100), acked: 4, ..Seen::default() };
        let mut seen = sent.clone();
        seen.read(&sent, (2, 80), 0, &late(None, &[]));
        seen.acknowledged(5, &sent);
        let again = seen.clone();
        assert_eq!(again.contradicted((2, 80), 0, &grown(&again, late(None, &[]))), None);
        seen.read(&again, (2, 80), 0, &late(None, &[]));
        assert_eq!(seen.contradicted((3, 80), 3, &late(Some(3), &[])), None);
    }
}
