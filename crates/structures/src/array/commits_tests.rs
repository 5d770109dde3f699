use proptest::prelude::*;

use super::*;

const GENERATION: u64 = 0x1122_3344_5566_7788;

fn state(mark: u64, found: &[u64]) -> Ordered<'static> {
    let mut state = Ordered::with(None);
    state.mark = mark;
    state.found = found.to_vec();
    state
}

#[test]
fn golden_bytes() {
    let id = 0x0102_0304_0506_0708;
    let commits = Commits::new(GENERATION, 9).next(1, [0], 0, 0).next(id, [0, 8], 300, 1);
    let bytes = commits.encode();
    assert_eq!(bytes[..12], *b"LRC\x01\x88\x77\x66\x55\x44\x33\x22\x11");
    assert_eq!(bytes[16..], *b"\x01\xac\x02\x08\x07\x06\x05\x04\x03\x02\x01\x01\x01");
    assert_eq!(bytes[12..16], [0x7e, 0x7e, 0x55, 0xf0]);
    assert_eq!(Commits::decode(&bytes, GENERATION, 9).unwrap(), commits);
    assert_eq!((commits.last(), commits.base, commits.token, commits.len()), (2, 1, 300, 1));
}

#[test]
fn foreign_bytes_are_a_layout_mismatch() {
    let bytes = Commits::new(GENERATION, 2).next(1, [0], 0, 0).encode();
    let mut flipped = bytes.to_vec();
    flipped[20] ^= 1;
    for foreign in [&b""[..], b"LRC\x02", &bytes[..bytes.len() - 1], &flipped] {
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
    // 1 touches both shards, 2 nobody's, 3 the second alone; 1 is settled everywhere and forgotten.
    let commits = Commits::new(GENERATION, 2).next(5, [0, 1], 0, 0).next(0, [], 0, 0).next(7, [1], 0, 1);
    let wants = |shard, mark, found: &[u64]| commits.wants(shard, &state(mark, found));
    assert_eq!(wants(0, 1, &[]), Wants::Nothing);
    assert_eq!(wants(0, 0, &[1]), Wants::SettledShard(1), "it was read before 1 was settled in it");
    assert_eq!(wants(1, 1, &[]), Wants::NewerShard(3), "it was read before 3 arrived");
    assert_eq!(wants(1, 1, &[3]), Wants::Nothing);
    assert_eq!(wants(1, 3, &[]), Wants::Nothing);
    assert_eq!(wants(1, 4, &[]), Wants::NewerCommits(4));
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
