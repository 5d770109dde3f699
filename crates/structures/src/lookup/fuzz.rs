//! The head, the directory and the blocks of a packed table, fuzzed.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use fastrand::Rng;

use super::block::Block;
use super::key::LookupKey;
use super::layout::{Directory, Head, Version};
use super::pack::{Packed, Sizes, pack};
use super::rows::Rows;
use crate::fuzzing::{Codec, bytes, comes_back, unsealed};

const BUILD: u64 = 0x77;
const SIZES: Sizes = Sizes { block: 200, part: 1 << 20, most: 1 << 20, is_filled: false };

fn version(blocks: u32) -> Version {
    Version { number: 1, build: BUILD, blocks, parts: 1, is_over: false }
}

fn head(rng: &mut Rng) -> Vec<u8> {
    let version = |rng: &mut Rng| Version {
        number: rng.u32(..),
        build: rng.u64(..),
        blocks: rng.u32(..),
        parts: rng.u16(..),
        is_over: rng.bool(),
    };
    let current = rng.bool().then(|| version(rng));
    let others = (0..rng.usize(0..4)).map(|_| version(rng)).collect();
    Head { tag: rng.u64(..), last: rng.u32(..), current, others }.encode().to_vec()
}

/// A small table: of numbers or of addresses, of words and of texts.
fn table(rng: &mut Rng) -> Packed {
    let mut rows = Rows::new(["word", "text"]).unwrap_or_else(|_| unreachable!("two columns"));
    let is_of_numbers = rng.bool();
    let mut next = rng.u32(0..1_000);
    for _ in 0..rng.usize(1..40) {
        let last = next + rng.u32(0..20);
        let word = ["AT", "DE", "CH"][rng.usize(0..3)].as_bytes().to_vec();
        let text = if rng.bool() { b"a town on a river".to_vec() } else { bytes(rng, 12) };
        let keys = match is_of_numbers {
            true => (LookupKey::from(u64::from(next)), LookupKey::from(u64::from(last))),
            false => (std::net::Ipv4Addr::from(next).into(), std::net::Ipv4Addr::from(last).into()),
        };
        // Rising, and of as many fields as columns.
        _ = rows.push(keys.0, keys.1, [word, text]);
        next = last + rng.u32(1..30);
    }
    pack(&rows, BUILD, &SIZES, &AtomicU64::new(0)).unwrap_or_else(|_| unreachable!("rows that fit"))
}

/// The first byte tells how many blocks there are. Packing takes a thousand times as long as reading: most are of tables that are packed once.
fn directory(rng: &mut Rng) -> Vec<u8> {
    const TABLES: usize = 64;
    static KNOWN: [OnceLock<Vec<u8>>; TABLES] = [const { OnceLock::new() }; TABLES];
    if rng.u8(0..64) == 0 {
        return directory_of(&table(rng));
    }
    let at = rng.usize(0..TABLES);
    KNOWN[at].get_or_init(|| directory_of(&table(&mut Rng::with_seed(at as u64)))).clone()
}

fn directory_of(packed: &Packed) -> Vec<u8> {
    let blocks = u8::try_from(packed.blocks.len()).unwrap_or(u8::MAX);
    [&[blocks], &packed.parts.concat()[..]].concat()
}

fn read_directory(bytes: &[u8]) -> Result<bool, String> {
    let Some((&blocks, rest)) = bytes.split_first() else { return Ok(false) };
    let Some(directory) = Directory::decode(rest, &version(u32::from(blocks))) else { return Ok(false) };
    for number in [0u64, 1, 500, 70_000, u64::from(u32::MAX), u64::MAX] {
        let address = std::net::Ipv6Addr::from(u128::from(number) << 64);
        for key in [LookupKey::from(number), std::net::Ipv4Addr::from(number as u32).into(), address.into()] {
            let Some(spot) = directory.spot(&key) else { continue };
            if spot.block >= u32::from(blocks) || spot.first > spot.key || spot.last < spot.key {
                return Err(format!("{key:?} is looked for at {spot:?}"));
            }
            // A block that is anything at all.
            if let Some(block) = Block::parse(rest, BUILD, spot.block, spot.first) {
                _ = block.row(0, &directory.decoder);
            }
        }
    }
    Ok(true)
}

/// A table whose blocks are read: what one block's bytes say is read by a sound directory.
struct Known {
    directory: Directory,
    blocks: Vec<Vec<u8>>,
    /// The first key of each.
    firsts: Vec<u128>,
}

fn known() -> &'static Known {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let packed = table(&mut Rng::with_seed(5));
        let blocks: Vec<Vec<u8>> = packed.blocks.iter().map(|block| block.to_vec()).collect();
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let directory = Directory::decode(&packed.parts.concat(), &version(count));
        let directory = directory.unwrap_or_else(|| unreachable!("it was just made"));
        let firsts = directory.sections.iter().flat_map(|section| (0..section.len()).map(|at| section.first(at)));
        Known { firsts: firsts.collect(), directory, blocks }
    })
}

/// The first byte tells which block it is.
fn block(rng: &mut Rng) -> Vec<u8> {
    let at = rng.usize(0..known().blocks.len());
    [&[at as u8], &known().blocks[at][..]].concat()
}

fn read_block(bytes: &[u8]) -> Result<bool, String> {
    let Some((at, rest)) = bytes.split_first() else { return Ok(false) };
    let at = usize::from(*at) % known().blocks.len();
    let first = known().firsts[at];
    let Some(block) = Block::parse(rest, BUILD, at as u32, first) else { return Ok(false) };
    for key in [first, first + 1, first + 40, u128::MAX] {
        let hit = block.find(key);
        if let Some(row) = hit.row {
            _ = block.row(row, &known().directory.decoder);
        }
    }
    Ok(true)
}

pub(crate) const CODECS: &[Codec] = &[
    Codec {
        name: "packed table's head",
        draw: head,
        read: |bytes| comes_back(Head::decode(bytes), |head| Head::decode(&head.encode())),
        seal: unsealed,
    },
    Codec {
        name: "packed table's directory",
        draw: directory,
        read: read_directory,
        seal: |bytes| super::layout::seal(bytes.get_mut(1..).unwrap_or_default(), BUILD),
    },
    Codec {
        name: "packed table's block",
        draw: block,
        read: read_block,
        seal: |bytes| {
            if let [at, rest @ ..] = bytes {
                super::block::seal(rest, BUILD, u32::from(*at) % known().blocks.len() as u32);
            }
        },
    },
];
