use proptest::prelude::*;

use super::*;

const GENERATION: u64 = 0x1122_3344_5566_7788;

fn state(mark: u64, found: &[u64]) -> Ordered<'static> {
    let mut state = Ordered::with(None);
    state.mark = mark;
    state.chain = chains(mark);
    state.found = found.to_vec();
    state
}

/// The chain of a number of [`won`].
fn chains(number: u64) -> u64 {
    won().chain_of(number).unwrap_or_default()
}

/// 1 touches both shards, 2 nobody's, 3 the second alone.
fn won() -> Commits {
    Commits::new(GENERATION, 2).next(5, [0, 1], 0, 0).next(0, [], 0, 0).next(7, [1], 0, 0)
}

#[test]
fn golden_bytes() {
    let id = 0x0102_0304_0506_0708;
    let commits = Commits::new(GENERATION, 9).next(1, [0], 0, 0).next(id, [0, 8], 300, 1);
    let bytes = commits.encode();
    assert_eq!(bytes[..12], *b"LRC\x02\x88\x77\x66\x55\x44\x33\x22\x11");
    assert_eq!(bytes[16..], *b"\x01\xac\x02\xba\x85\x0e\xdd\x77\xca\x57\x52\x08\x07\x06\x05\x04\x03\x02\x01\x01\x01");
    assert_eq!(bytes[12..16], [0xb5, 0x08, 0xa5, 0x20]);
    assert_eq!(Commits::decode(&bytes, GENERATION, 9).unwrap(), commits);
    assert_eq!((commits.last(), commits.base, commits.token, commits.len()), (2, 1, 300, 1));
}

#[test]
fn foreign_bytes_are_a_layout_mismatch() {
    let bytes = Commits::new(GENERATION, 2).next(1, [0], 0, 0).encode();
    let mut flipped = bytes.to_vec();
    flipped[20] ^= 1;
    for foreign in [&b""[..], b"LRC\x01", &bytes[..bytes.len() - 1], &flipped] {
        let error = Commits::decode(foreign, GENERATION, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{foreign:?}");
    }
    assert!(Commits::decode(&bytes, GENERATION + 1, 2).is_err(), "another life's");
}

#[test]
fn a_number_has_one_winner_and_one_fate() {
    let commits = Commits::new(GENERATION, 2).next(5, [0], 0, 0).next(0, [], 0, 0).next(7, [0, 1], 0, 1);
    let fates = [(1, 5), (2, 9), (2, 0), (3, 7), (3, 5), (4, 9), (5, 9)].map(|(number, id)| commits.fate(number, id));
    use Fate::{Ahead, Beaten, Forgotten, Open, Won};
    assert_eq!(fates, [Forgotten, Beaten, Beaten, Won, Beaten, Open, Ahead]);
}

#[test]
fn a_reader_wants_what_is_older_than_the_rest() {
    // 1 is settled everywhere and forgotten.
    let commits = Commits::new(GENERATION, 2).next(5, [0, 1], 0, 0).next(0, [], 0, 0).next(7, [1], 0, 1);
    assert_eq!((commits.chain_of(0), commits.chain_of(1), commits.tip()), (None, Some(chains(1)), chains(3)));
    let wants = |shard, mark, found: &[u64]| commits.wants(shard, &state(mark, found));
    assert_eq!(wants(0, 1, &[]), Wants::Nothing);
    assert_eq!(wants(0, 0, &[1]), Wants::SettledShard(1), "it was read before 1 was settled in it");
    assert_eq!(wants(1, 1, &[]), Wants::NewerShard(3), "it was read before 3 arrived");
    assert_eq!(wants(1, 1, &[3]), Wants::Nothing);
    assert_eq!(wants(1, 3, &[]), Wants::Nothing);
    assert_eq!(wants(1, 4, &[]), Wants::NewerCommits(4));
}

#[test]
fn a_shard_of_another_past_is_told_and_what_is_read_later_must_go_on_from_what_was() {
    let (commits, first) = (won(), Commits::new(GENERATION, 2).next(5, [0, 1], 0, 0));
    let other = first.next(6, [0], 0, 0).next(7, [1], 0, 0);
    let mut settled = state(2, &[3]);
    assert_eq!(commits.wants(1, &settled), Wants::Nothing);
    settled.chain = other.chain_of(2).unwrap();
    assert_eq!(commits.wants(1, &settled), Wants::SamePast(2));
    assert_ne!(other.tip(), commits.tip(), "3 went to the same, 2 did not");
    for (later, before, fits) in [
        (&commits, &first, true),
        (&commits, &commits, true),
        (&first, &commits, false),
        (&other, &commits, false),
        // What is forgotten cannot be compared.
        (&other.next(8, [0], 0, 3), &first, true),
        (&commits.accepted().unwrap(), &commits, false),
    ] {
        assert_eq!(later.contradicted(before).is_none(), fits, "{later:?} after {before:?}");
    }
}

#[test]
fn an_era_begins_above_all_numbers_of_the_last() {
    let commits = won();
    let next = commits.accepted().unwrap();
    assert_eq!((next.base, next.last(), next.len(), next.era(), next.token), (1 << 40, 1 << 40, 0, 1, 0));
    assert_eq!(next, won().accepted().unwrap(), "whoever accepts it");
    assert_ne!(next.tip(), commits.next(0, [], 0, 0).accepted().unwrap().tip());
    assert_eq!(next.next(9, [0], 0, 0).accepted().unwrap().base, 2 << 40);
    assert_eq!(Commits { base: u64::MAX, ..next.clone() }.accepted(), None);
    assert_eq!(Commits::decode(&next.encode(), GENERATION, 2).unwrap(), next);
    let ended = commits.ended();
    assert_eq!((ended.last(), ended.is_ended(), commits.is_ended(), next.is_ended()), (4, true, false, false));
    assert!(Commits::decode(&ended.encode(), GENERATION, 2).unwrap().is_ended());
    // A shard of the last era is behind, one that was settled for the next is ahead until that begins.
    assert_eq!(next.wants(0, &state(3, &[])), Wants::SettledShard(1 << 40));
    let mut settled = state(1 << 40, &[]);
    assert_eq!(commits.wants(0, &settled), Wants::NewerCommits(1 << 40));
    settled.chain = next.tip();
    assert_eq!(next.wants(0, &settled), Wants::Nothing);
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        _ = Commits::decode(&bytes, GENERATION, 9);
        let mut checked = Commits::new(GENERATION, 9).encode()[..HEADER_BYTES].to_vec();
        checked[12..].copy_from_slice(&check(GENERATION, &bytes).to_le_bytes());
        checked.extend_from_slice(&bytes);
        if let Ok(commits) = Commits::decode(&checked, GENERATION, 9) {
            _ = (commits.last(), commits.fate(3, 4), commits.wants(8, &state(0, &[])), commits.next(1, [3], 0, 9));
        }
    }
}

#[test]
fn commits_of_another_layout_or_generation_are_refused_by_each_alone() {
    let refused = |bytes: &[u8]| Commits::decode(bytes, GENERATION, 9).unwrap_err().detail().to_owned();
    let bytes = Commits::new(GENERATION, 9).next(1, [0], 0, 0).encode();
    for at in [0, 4] {
        let mut other = bytes.to_vec();
        other[at] ^= 1;
        assert!(refused(&other).contains("of another layout or generation"), "{at}");
    }
    let mut other = bytes.to_vec();
    other[12] ^= 1;
    assert!(refused(&other).contains("the check does not match"));
}

#[test]
fn a_number_takes_its_winner_and_a_bit_a_shard() {
    let bytes = |shards| Commits::new(GENERATION, shards).winner_bytes();
    assert_eq!([bytes(0), bytes(1), bytes(8), bytes(9), bytes(100)], [8, 9, 9, 10, 21]);
    let (one, two) = (
        Commits::new(GENERATION, 9).next(1, [0], 0, 0),
        Commits::new(GENERATION, 9).next(1, [0], 0, 0).next(2, [], 0, 0),
    );
    assert_eq!(two.encode().len() - one.encode().len(), two.winner_bytes());
}

#[test]
fn an_era_that_is_accepted_keeps_the_highest_token() {
    let next = Commits::new(GENERATION, 2).next(5, [0, 1], 77, 0).accepted().unwrap();
    assert_eq!((next.token, next.base, next.len()), (77, ERA_NUMBERS, 0));
}

#[test]
fn no_more_room_is_made_than_what_comes_needs() {
    let mut commits = Commits::new(GENERATION, 1_024);
    for id in 1..=3 {
        commits = commits.next(id, [0, 1_023], 0, 0);
    }
    let read = Commits::decode(&commits.encode(), GENERATION, 1_024).unwrap();
    assert_eq!((read.winners.capacity(), read.touched.capacity()), (3, 3 * 128));
}
