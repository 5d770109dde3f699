//! Golden bytes, and tables packed and read without a store.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;

use super::super::block::Block;
use super::super::key::Family;
use super::super::pack::{Packed, Sizes, pack};
use super::super::rows::Rows;
use super::*;

const BUILD: u64 = 0x1122_3344_5566_7788;

fn version(packed: &Packed) -> Version {
    let (blocks, parts) = (packed.blocks.len() as u32, packed.parts.len() as u16);
    Version { number: 7, build: BUILD, blocks, parts, is_over: false }
}

fn sizes(block: usize) -> Sizes {
    Sizes { block, part: 100, most: 1 << 20, is_filled: block == 500 }
}

type Row = (LookupKey, LookupKey, Vec<Bytes>);

/// What the packed rows have of a key.
fn look_up(packed: &Packed, directory: &Directory, key: LookupKey) -> Option<Row> {
    let spot = directory.spot(&key)?;
    let bytes = &packed.blocks[spot.block as usize];
    let block = Block::parse(bytes, BUILD, spot.block, spot.first).expect("the block that was made");
    let hit = block.find(spot.key);
    let fields = block.row(hit.row?, &directory.decoder).expect("a row of it");
    let last = hit.end.map_or(spot.last, |end| end - 1);
    Some((spot.family.key(hit.first), spot.family.key(last), fields))
}

/// Every row, and the keys around it, must be found as they were pushed; returns the bytes of all blocks.
fn check(rows: &Rows, pushed: &[Row], block: usize) -> u64 {
    let packed = pack(rows, BUILD, &sizes(block), &AtomicU64::new(0)).unwrap();
    let directory = Directory::decode(&packed.parts.concat(), &version(&packed)).expect("a directory");
    assert_eq!((directory.rows, &directory.columns[..]), (rows.len() as u64, rows.columns()));
    let expected = |key: &LookupKey| {
        let found =
            pushed.iter().find(|(first, last, _)| first.family() == key.family() && first <= key && key <= last);
        found.cloned()
    };
    for (first, last, _) in pushed.iter().step_by(pushed.len() / 300 + 1) {
        let family = first.family();
        let middle = first.number() + (last.number() - first.number()) / 2;
        let around = [
            Some(first.number()),
            Some(last.number()),
            Some(middle),
            first.number().checked_sub(1),
            last.number().checked_add(1).filter(|next| *next <= family.last()),
        ];
        for number in around.into_iter().flatten() {
            let key = family.key(number);
            assert_eq!(look_up(&packed, &directory, key), expected(&key), "{key}");
        }
    }
    for key in [
        LookupKey::V4(Ipv4Addr::UNSPECIFIED),
        LookupKey::V6(Ipv6Addr::UNSPECIFIED),
        Family::V4.key(u128::from(u32::MAX)),
        Family::V6.key(u128::MAX),
    ] {
        if !directory.has_numbers() {
            assert_eq!(look_up(&packed, &directory, key), expected(&key), "{key}");
        }
    }
    packed.bytes
}

fn build(pushed: &[Row], columns: usize) -> Rows {
    let mut rows = Rows::new((0..columns).map(|column| format!("c{column}"))).unwrap();
    for (first, last, fields) in pushed {
        rows.push(*first, *last, fields).unwrap();
    }
    rows
}

/// Ranges in ascending order, in one or two families, with and without gaps, of fields that repeat and fields that do not.
fn tables() -> impl Strategy<Value = (Vec<Row>, usize)> {
    let range = (0u8..4, 0u8..8, any::<u64>(), any::<u64>());
    let field = prop_oneof![
        4 => "[a-c]{0,2}".prop_map(String::into_bytes),
        2 => "[A-Z][a-z]{3,9}( [A-Z][a-z]{2,8})?".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    let rows = prop::collection::vec((range, prop::collection::vec(field, 5)), 0..80);
    (rows, 1usize..=5, 0u8..4).prop_map(|(rows, columns, kind)| {
        let half = rows.len() / 2;
        let mut pushed: Vec<Row> = Vec::new();
        let mut next: Option<u128> = Some(0);
        let mut family = None;
        for (at, ((gap, size, wide, long), fields)) in rows.into_iter().enumerate() {
            let now = match kind {
                0 => Family::Number,
                1 => Family::V4,
                2 => Family::V6,
                _ if at < half => Family::V4,
                _ => Family::V6,
            };
            if family != Some(now) {
                (family, next) = (Some(now), Some(0));
            }
            let Some(free) = next else { continue };
            // From neighbours to most of the space.
            let scale = |by: u8, number: u64| match by {
                0 => 0,
                1 => 1,
                2 => 256,
                3 => u128::from(number >> 40),
                4 => u128::from(number) << 20,
                _ => u128::from(number % 300),
            };
            let first = free.saturating_add(scale(gap, wide)).min(now.last());
            let last = first.saturating_add(scale(size, long)).min(now.last());
            next = (last < now.last()).then(|| last + 1);
            let fields = fields.into_iter().take(columns).map(Bytes::from).collect();
            pushed.push((now.key(first), now.key(last), fields));
        }
        (pushed, columns)
    })
}

proptest! {
    // Each makes some hundred codes.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_key_is_found_as_it_was_pushed((pushed, columns) in tables(), block in prop_oneof![Just(64usize), Just(500), Just(4000)]) {
        check(&build(&pushed, columns), &pushed, block);
    }
}

#[test]
fn a_place_behind_the_end_of_a_block_is_none() {
    let table = |city: &str, other: &str| {
        let rows: Vec<Row> = (0..64u64)
            .map(|id| (id.into(), id.into(), vec![Bytes::from(if id % 2 == 0 { city } else { other }.to_owned())]))
            .collect();
        pack(&build(&rows, 1), BUILD, &sizes(4000), &AtomicU64::new(0)).unwrap()
    };
    let packed = table("Toronto", "Lima");
    let directory = Directory::decode(&packed.parts.concat(), &version(&packed)).expect("a directory");
    for place in [0, u64::MAX, u64::MAX - 160, u64::MAX - 161, 1 << 40] {
        // 16 keys that follow one another, and as many rows; their second stretch has its place in 64 bits.
        let rest = [&[16, 0, 16, 0, 1, 0, 0, 64][..], &place.to_be_bytes(), &[0x55; 40]].concat();
        let sum = (xxh3_64_with_seed(&rest, BUILD) as u32).to_le_bytes();
        let bytes = [&sum[..], &rest].concat();
        let block = Block::parse(&bytes, BUILD, 0, 0).expect("a block of a right check");
        assert_eq!(block.row(15, &directory.decoder).is_some(), place == 0, "{place}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), keys in prop::collection::vec(any::<u64>(), 8)) {
        Head::decode(&bytes);
        // With a check that is right, so that what is behind it is read, too.
        let mut signed = MAGIC.to_vec();
        signed.extend_from_slice(&BUILD.to_le_bytes());
        signed.extend_from_slice(&bytes);
        let sum = xxh3_64_with_seed(&signed, BUILD);
        signed.extend_from_slice(&sum.to_le_bytes());
        let of = Version { number: 7, build: BUILD, blocks: 1, parts: 1, is_over: false };
        Directory::decode(&signed, &of);
        let packed = pack(&build(&[(1u64.into(), 9u64.into(), vec!["Toronto".into()])], 1), BUILD, &sizes(64), &AtomicU64::new(0)).unwrap();
        let directory = Directory::decode(&packed.parts.concat(), &version(&packed)).expect("a directory");
        let mut block = Vec::from(&[0; 4][..]);
        block.extend_from_slice(&bytes);
        let sum = (xxh3_64_with_seed(&bytes, BUILD) as u32).to_le_bytes();
        block[..4].copy_from_slice(&sum);
        if let Some(block) = Block::parse(&block, BUILD, 0, 3) {
            for key in keys {
                if let Some(row) = block.find(3 + u128::from(key)).row {
                    block.row(row, &directory.decoder);
                }
            }
        }
    }

    #[test]
    fn a_head_comes_back(tag: u64, last: u32, current: Option<(u32, u64, u32, u16)>, others in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u32>(), any::<u16>(), any::<bool>()), 0..OTHERS_MAX)) {
        let of = |(number, build, blocks, parts, is_over)| Version { number, build, blocks, parts, is_over };
        let current = current.map(|(number, build, blocks, parts)| of((number, build, blocks, parts, false)));
        let head = Head { tag, last, current, others: others.into_iter().map(of).collect() };
        let bytes = head.encode();
        prop_assert_eq!(Head::decode(&bytes), Some(head));
        prop_assert_eq!(Head::decode(&bytes[1..]), None);
    }
}

#[test]
fn the_edges_of_both_address_spaces() {
    let last = Family::V6.key(u128::MAX);
    let v4 = |text: &str| text.parse::<LookupKey>().unwrap();
    let row = |first: &str, last: &str, field: &'static str| (v4(first), v4(last), vec![Bytes::from(field)]);
    let pushed = [
        row("0.0.0.0", "0.0.0.0", "zero"),
        row("0.0.0.2", "254.255.255.255", "most"),
        row("255.255.255.255", "255.255.255.255", "last"),
        row("::", "::", "zero of six"),
        row("::2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd", "most of six"),
        (last, last, vec![Bytes::from("last of six")]),
    ];
    for block in [64, 4000] {
        check(&build(&pushed, 1), &pushed, block);
    }
    let whole = [row("0.0.0.0", "255.255.255.255", "all"), (v4("::"), last, vec![Bytes::from("all of six")])];
    check(&build(&whole, 1), &whole, 64);
}

#[test]
fn few_rows_and_long_ones() {
    check(&build(&[], 3), &[], 64);
    let id = |id: u64, field: Vec<u8>| (LookupKey::from(id), LookupKey::from(id), vec![Bytes::from(field)]);
    for pushed in [
        vec![id(0, b"".to_vec())],
        vec![id(u64::MAX, b"x".to_vec())],
        vec![id(5, vec![0xff; 50_000]), id(6, b"".to_vec()), id(7, (0..=255).cycle().take(100_000).collect())],
        (0..2_000).map(|at| id(at, b"the same".to_vec())).collect(),
        (0..2_000).map(|at| id(at * 3, at.to_string().into_bytes())).collect(),
    ] {
        check(&build(&pushed, 1), &pushed, 2_000);
    }
}

#[test]
fn a_row_that_no_item_takes_is_told_by_number() {
    let id = |id: u64, field: Vec<u8>| (LookupKey::from(id), LookupKey::from(id), vec![Bytes::from(field)]);
    // Too large for a palette, which would take it once for all.
    let mut random = fastrand::Rng::with_seed(7);
    let noise = (0..140_000).map(|_| random.u8(..)).collect();
    let rows = build(&[id(1, b"a".to_vec()), id(2, noise), id(9, b"b".to_vec())], 1);
    let error = pack(&rows, BUILD, &Sizes { block: 500, part: 100, most: 1_000, is_filled: false }, &AtomicU64::new(0))
        .expect_err("no item takes it");
    assert!(error.to_string().contains("row 2 takes") && error.to_string().contains("takes 1000"), "{error}");
}

#[test]
fn what_repeats_takes_little() {
    let id = |at: u64, fields: [&str; 3]| {
        (
            LookupKey::from(at),
            LookupKey::from(at),
            fields.map(|field| Bytes::copy_from_slice(field.as_bytes())).to_vec(),
        )
    };
    let mut random = fastrand::Rng::with_seed(5);
    let pushed: Vec<Row> = (0..20_000)
        .map(|at| {
            let city = random.u32(..40);
            id(at, [&format!("City of {city}"), &format!("R{}", city / 4), &format!("C{}", city / 20)])
        })
        .collect();
    let bytes = check(&build(&pushed, 3), &pushed, 2_000);
    // 40 different rows: 5.3 bits each.
    assert!(bytes < 20_000, "{bytes} bytes");
    let ranges: Vec<Row> = (0..20_000u32)
        .map(|at| {
            let first = LookupKey::V4(Ipv4Addr::from_bits(at << 8));
            let last = LookupKey::V4(Ipv4Addr::from_bits(at << 8 | 255));
            (first, last, pushed[at as usize].2.clone())
        })
        .collect();
    let more = check(&build(&ranges, 3), &ranges, 2_000);
    assert!(more < 45_000, "{more} bytes");
}

#[test]
fn a_part_never_stands_in_a_blocks_place() {
    let version = Version { number: 7, build: 0, blocks: 0, parts: 0, is_over: false };
    let parts: HashSet<String> = (0..=u16::MAX).map(|part| version.part_index(part)).collect();
    assert!((0..=u32::from(u16::MAX) * 16).all(|block| !parts.contains(&version.block_index(block))));
    assert!(version.block_index(u32::MAX).len() <= 17 && version.part_index(u16::MAX).len() <= 17);
}

#[test]
fn golden_bytes() {
    let over = Version { number: 2, build: 3, blocks: 0x0405, parts: 6, is_over: true };
    let head = Head {
        tag: 0x0102_0304_0506_0708,
        last: 8,
        current: Some(Version { number: 7, build: BUILD, blocks: 9, parts: 1, is_over: false }),
        others: vec![over],
    };
    assert_eq!(
        hex(&head.encode()),
        "01 0807060504030201 08000000 01 01 07000000 8877665544332211 09000000 0100 00 02000000 0300000000000000 05040000 0600 01"
            .replace(' ', "")
    );
    let version = Version { number: 7, build: BUILD, blocks: 9, parts: 1, is_over: false };
    assert_eq!(
        (version.block_index(0x1a), version.part_index(3)),
        ("ESIzRFVm-1a".to_owned(), "ESIzRFVm-p3".to_owned())
    );
    assert_eq!(over.block_index(0), "AAAAAAAA-0");
    let v4 = |text: &str| text.parse::<LookupKey>().unwrap();
    let row =
        |first: &str, last: &str, fields: [&'static str; 2]| (v4(first), v4(last), fields.map(Bytes::from).to_vec());
    let rows = build(
        &[
            row("1.0.0.0", "1.0.0.255", ["Oslo", "NO"]),
            row("1.0.1.0", "1.0.1.255", ["Bonn", "DE"]),
            row("1.0.4.0", "1.0.4.255", ["Bonn", "DE"]),
        ],
        2,
    );
    // Ids, and a palette.
    let id = |id: u64, text: &'static str| (LookupKey::from(id), LookupKey::from(id), vec![Bytes::from(text)]);
    let ids: Vec<Row> =
        (7..107).map(|at| id(at, ["aab", "aba", "abb", "baa"][at as usize * at as usize % 7 % 4])).collect();
    let expected = [
        "c167d68b 0500 0300 04 08 03 04 2a5d585e",
        "4c525001887766554433221103000000000000001000000000000000020263300263310200000000000000000020010000000b10000000000000000000000000 \
         0000000000088044088112211222208c8120000000000000000000000c030000000000000000000000000000000000000000000044022110228a448001040401 \
         0100000085d3614e9eb6a346",
        "ce1c7d9c 6500 0300 03 00 00 03 67d99f667d99f667d99f667d99f667d99f667d99f667d99f6617",
        "4c52500188776655443322116400000000000000260000000000000001026330010103040361616204036162610403616262184430010001010731cd6659c7e0b0c0",
    ];
    let found = [rows, build(&ids, 1)].map(|rows| {
        let packed = pack(&rows, BUILD, &sizes(501), &AtomicU64::new(0)).unwrap();
        assert_eq!(packed.blocks.len(), 1);
        [hex(&packed.blocks[0]), hex(&packed.parts.concat())]
    });
    assert_eq!(found.concat(), expected.map(|hex| hex.replace(' ', "")));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn heads_of_another_version_or_with_two_in_force_are_none() {
    let some = Version { number: 7, build: BUILD, blocks: 1, parts: 1, is_over: false };
    let head = Head { tag: 1, last: 2, current: Some(some), others: vec![Version { number: 8, ..some }] };
    let bytes = head.encode();
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = byte;
        Head::decode(&bytes)
    };
    assert_eq!(Head::decode(&bytes), Some(head.clone()));
    assert_eq!(with(0, VERSION + 1), None);
    // As many versions as before, and two of them in force.
    let mut two = bytes.to_vec();
    (two[13], two[14]) = (2, 0);
    assert_eq!(Head::decode(&two), None);
    assert_eq!(with(14, 2), None, "one is missing");
    assert!(head.is_building(&Version { number: 8, ..some }) && !head.is_building(&some));
    let over = Version { number: 9, is_over: true, ..some };
    assert!(!Head { others: vec![over], ..head }.is_building(&over));
}

#[test]
fn a_directory_of_another_number_of_blocks_is_none() {
    let pushed: Vec<Row> =
        (0..50u64).map(|id| (LookupKey::from(id), LookupKey::from(id), vec![Bytes::from(id.to_string())])).collect();
    let packed = pack(&build(&pushed, 1), BUILD, &sizes(100), &AtomicU64::new(0)).unwrap();
    let (bytes, version) = (packed.parts.concat(), version(&packed));
    assert!(Directory::decode(&bytes, &version).is_some());
    assert!(Directory::decode(&bytes, &Version { blocks: version.blocks + 1, ..version }).is_none());
}

#[test]
fn a_directory_with_wider_keys_than_there_are_is_none() {
    let rows = build(&[(LookupKey::from(1), LookupKey::from(1), vec![Bytes::from("a")])], 1);
    let model = Model::train(&rows);
    let decoded = |width: usize, blocks: u32| {
        let section = Section { family: Family::V6, width, firsts: vec![0; width * blocks as usize], first_block: 0 };
        let bytes = encode_directory(BUILD, (1, 1), rows.columns(), &model, &[section], 1);
        let version = Version { number: 7, build: BUILD, blocks, parts: 1, is_over: false };
        Directory::decode(&bytes, &version).is_some()
    };
    assert_eq!([decoded(16, 1), decoded(16, 2), decoded(17, 1), decoded(17, 2)], [true, true, false, false]);
    assert!(decoded(0, 1));
}
