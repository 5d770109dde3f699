//! Rows into blocks: all that a build computes, before anything is written.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_core::{Durability, Error, ErrorKind, Profile, Result};

use super::block::Filling;
use super::layout::{Section, encode_directory};
use super::model::{Encoder, Model};
use super::rows::Rows;

/// A slab class of memcached's default settings, which wastes a fifth of a percent of its pages, and what an item takes of it beside key and value.
const SLAB_BYTES: usize = 1_856;
const SLAB_ITEM_BYTES: usize = 48 + 8 + 1 + 2;
/// Classes of other allocators, and what an item takes of one: on Redis the header of a string, the one of an item, and a zero at the end; in the
/// process the item's own and malloc's.
const CLASS_BYTES: usize = 2_048;
const CLASS_PART_BYTES: usize = 8_192;
const NATIVE_ITEM_BYTES: usize = 5 + 9 + 1;
const PROCESS_ITEM_BYTES: usize = 8 + 8 + 16;
/// The smallest block that is worth a key.
const BLOCK_BYTES_MIN: usize = 64;

/// How large blocks, and parts of a directory, are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// What a block is filled up to.
    pub(super) block: usize,
    pub(super) part: usize,
    /// What a value can have.
    pub(super) most: usize,
    /// True if a smaller item takes a page of its own size: then none is much smaller than the others.
    pub(super) is_filled: bool,
}

impl Sizes {
    /// Those that fit the store's items best; `asked` for blocks, if anything was.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a size that the store's items do not have.
    pub(super) fn new(profile: &Profile, key_bytes: usize, asked: Option<usize>) -> Result<Sizes> {
        let most = profile.value_bytes_max(key_bytes);
        if let Some(asked) = asked.filter(|asked| !(BLOCK_BYTES_MIN..=most).contains(asked)) {
            let detail = format!("a block of {asked} bytes; on this store it takes {BLOCK_BYTES_MIN} to {most}");
            return Err(Error::new(ErrorKind::BadInput, detail).store(profile.store.clone()));
        }
        let (block, part, item) = match profile.durability {
            _ if !profile.natives.is_empty() => (CLASS_BYTES, CLASS_PART_BYTES, NATIVE_ITEM_BYTES),
            Durability::Process => (CLASS_BYTES, CLASS_PART_BYTES, PROCESS_ITEM_BYTES + key_bytes),
            _ => (SLAB_BYTES, SLAB_BYTES, SLAB_ITEM_BYTES + key_bytes),
        };
        let is_filled = block == SLAB_BYTES && asked.is_none();
        Ok(Sizes { block: asked.unwrap_or(block - item).min(most), part: (part - item).min(most), most, is_filled })
    }
}

/// All that is written for a version.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) rows: u64,
    /// Of all blocks, in bytes.
    pub(super) bytes: u64,
    pub(super) blocks: Vec<Bytes>,
    /// The directory's.
    pub(super) parts: Vec<Bytes>,
}

/// Packs rows, and counts those that it has come to.
///
/// # Errors
/// [`ErrorKind::BadInput`], with the row's number, for one that does not fit the store's items.
pub(super) fn pack(rows: &Rows, build: u64, sizes: &Sizes, done: &AtomicU64) -> Result<Packed> {
    let model = Model::train(rows);
    let encoder = Encoder::new(&model);
    let mut blocks: Vec<Bytes> = Vec::new();
    let mut sections = Vec::new();
    for (family, range) in rows.families() {
        let (first_block, mut firsts) = (blocks.len(), Vec::new());
        let mut filling: Option<Filling<'_>> = None;
        let mut push = |key: u128, fields: Option<&_>, row: usize, blocks: &mut Vec<Bytes>| -> Result<()> {
            let open = filling.get_or_insert_with(|| Filling::new(key));
            if !open.push(&encoder, key, fields.copied(), sizes.block) {
                firsts.push(open.first);
                finish(open, &encoder, build, blocks, sizes, row)?;
                let mut next = Filling::new(key);
                next.push(&encoder, key, fields.copied(), sizes.block);
                *open = next;
            }
            Ok(())
        };
        for at in range.clone() {
            let row = rows.row(at);
            done.fetch_add(1, Ordering::Relaxed);
            push(row.first, Some(&row.fields), at, &mut blocks)?;
            // Up to the next row, or to the last key of all, there may be keys without one.
            let next = if at + 1 < range.end { rows.row(at + 1).first - 1 } else { family.last() };
            if row.last < next {
                push(row.last + 1, None, at + 1, &mut blocks)?;
            }
        }
        if let Some(last) = &filling {
            firsts.push(last.first);
            finish(last, &encoder, build, &mut blocks, sizes, range.end)?;
        }
        // Fewer than rows and gaps: checked below.
        sections.push(Section::new(family, first_block as u32, &firsts));
    }
    let too_large = |what: &str| Error::new(ErrorKind::BadInput, format!("{} rows make too many {what}", rows.len()));
    u32::try_from(blocks.len()).map_err(|_| too_large("blocks"))?;
    let bytes = blocks.iter().map(|block| block.len() as u64).sum();
    let rows_count = rows.len() as u64;
    let least = if sizes.is_filled && blocks.len() > 1 { sizes.part } else { 1 };
    let directory = encode_directory(build, (rows_count, bytes), rows.columns(), &model, &sections, least);
    let directory = Bytes::from(directory);
    let parts: Vec<Bytes> = (0..directory.len())
        .step_by(sizes.part)
        .map(|at| directory.slice(at..directory.len().min(at + sizes.part)))
        .collect();
    u16::try_from(parts.len()).map_err(|_| too_large("parts of a directory"))?;
    Ok(Packed { rows: rows_count, bytes, blocks, parts })
}

/// Closes a block. `next` is the number of rows before the one that comes next.
fn finish(
    filling: &Filling<'_>,
    encoder: &Encoder<'_>,
    build: u64,
    blocks: &mut Vec<Bytes>,
    sizes: &Sizes,
    next: usize,
) -> Result<()> {
    let number = blocks.len() as u32;
    // A table of one block is as small as it is.
    let least = if sizes.is_filled && number > 0 { sizes.block } else { 0 };
    let block = filling.finish(encoder, build, number, least);
    if block.len() > sizes.most {
        // It has one key alone, so it is the last row before the next one.
        let detail =
            format!("row {next} takes {} bytes packed; an item of this store takes {}", block.len(), sizes.most);
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    blocks.push(Bytes::from(block));
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_core::native::Families;

    use super::*;

    /// With its key, and what the server or the process keeps beside it: as memcached 1.6 has it, 48 bytes, 8 of a token, the key's end and the value's two.
    #[test]
    fn blocks_and_parts_fill_a_class_of_their_store() {
        let sizes = |durability, natives, key_bytes| {
            let profile = Profile { durability, natives, ..Profile::unlimited("a store") };
            let Sizes { block, part, .. } = Sizes::new(&profile, key_bytes, None).unwrap();
            (block, part)
        };
        let none = Families::empty();
        assert_eq!(sizes(Durability::Server, none, 20), (1_856 - 59 - 20, 1_856 - 59 - 20));
        assert_eq!(sizes(Durability::Process, none, 20), (2_048 - 32 - 20, 8_192 - 32 - 20));
        assert_eq!(sizes(Durability::Server, Families::KEYS, 20), (2_048 - 15, 8_192 - 15));
    }

    fn rows(count: u64) -> Rows {
        let mut rows = Rows::new(["word"]).unwrap();
        for id in 0..count {
            rows.push_id(id, [format!("{:x}", (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))]).unwrap();
        }
        rows
    }

    /// As on memcached, where an item that is smaller takes a page of its own size.
    #[test]
    fn where_sizes_are_kept_apart_all_items_of_a_large_table_are_of_one_size() {
        let sizes = Sizes { block: 400, part: 400, most: 1_000, is_filled: true };
        let packed = pack(&rows(1_000), 7, &sizes, &AtomicU64::new(0)).unwrap();
        assert!(packed.blocks.len() > 3, "{} blocks", packed.blocks.len());
        let last = packed.blocks.last().into_iter();
        assert!(packed.parts.iter().chain(last).all(|item| item.len() == 400), "{packed:?}");
        // A table of one block is as small as it is.
        let small = pack(&rows(1), 7, &sizes, &AtomicU64::new(0)).unwrap();
        assert!(small.blocks.len() == 1 && small.blocks[0].len() < 300, "{small:?}");
        assert_ne!(small.parts.last().map(Bytes::len), Some(400), "{small:?}");
    }

    #[test]
    fn a_block_may_take_all_that_an_item_can_have() {
        let packed = |most: usize| {
            pack(&rows(1), 7, &Sizes { block: most, part: 400, most, is_filled: false }, &AtomicU64::new(0))
        };
        let least = (1..1_000).find(|most| packed(*most).is_ok()).expect("it fits some item");
        assert_eq!(packed(least).unwrap().blocks.iter().map(Bytes::len).max(), Some(least));
        let error = packed(least - 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        let said = format!("bytes packed; an item of this store takes {}", least - 1);
        assert!(error.to_string().contains("row 1 takes") && error.to_string().contains(&said), "{error}");
    }
}
