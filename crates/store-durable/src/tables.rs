//! Files of tables held against their checksums: which is damaged, and where.
//!
//! The engine's list of tables has a checksum over each table's whole file, and each block of a table one of its own; the engine tells of a block that does not match,
//! and not of which file. A block is `LSM\x03 kind(1) xxh3-128-of-its-data(16) length(4) raw-length(4) check(4) data`, little-endian; check: the lower bytes of the xxh3-128 of
//! what stands before it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fjall::{AbstractTree, Keyspace};
use parking_lot::Mutex;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::fault::{Fault, Harm};
use crate::versions::{KEYSPACES, contents_are_whole};

const MAGIC: &[u8] = b"LSM\x03";
const HEADER_BYTES: usize = 33;
/// Where the check of a header stands, behind what it is over.
const CHECK_AT: usize = HEADER_BYTES - 4;
/// Damaged tables that are named at once.
const NAMED_MAX: usize = 100;
/// What is read at once.
const READ_BYTES: usize = 1 << 20;

/// What was found of tables that somebody stumbled over: a file is read through for that once.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// What is wrong with each file that was looked over; `None` for nothing.
    seen: Mutex<HashMap<PathBuf, Option<String>>>,
}

impl Tables {
    /// Names the file and the place of damage that the engine told of, if it is in a table.
    pub(crate) fn named(&self, keyspace: &Keyspace, fault: Fault) -> Fault {
        if fault.harm != Harm::Corrupt {
            return fault;
        }
        let mut seen = self.seen.lock();
        let version = keyspace.tree.current_version();
        for table in version.iter_tables() {
            let look = || damage(&table.path, table.checksum().into_u128()).ok().flatten();
            if let Some(damage) = seen.entry(table.path.to_path_buf()).or_insert_with(look) {
                return Fault::corrupt(format!("{damage} ({})", fault.detail));
            }
        }
        fault
    }
}

/// Reads every table of this moment from end to end; `tell` is given the bytes of each piece that was read.
///
/// # Errors
/// `Corrupt`, with the file and the place of each that is not what was written, or of the first hundred.
pub(crate) fn verify(keyspace: &Keyspace, tell: &mut dyn FnMut(u64)) -> Result<(), Fault> {
    // Held: files that are merged away meanwhile stay until it is dropped.
    let version = keyspace.tree.current_version();
    let mut damages = Vec::new();
    for table in version.iter_tables() {
        let found = damage_telling(&table.path, table.checksum().into_u128(), tell);
        damages.extend(found.map_err(|error| Fault::io(&format!("cannot read {}", table.path.display()), error))?);
        if damages.len() == NAMED_MAX {
            break;
        }
    }
    if damages.is_empty() { Ok(()) } else { Err(Fault::corrupt(damages.join("; "))) }
}

/// Names the file, if one can be found, for which the engine did not open its folder; it says of none.
pub(crate) fn named_in(folder: &Path, fault: Fault) -> Fault {
    if fault.harm != Harm::Corrupt {
        return fault;
    }
    for keyspace in KEYSPACES {
        let tables = fs::read_dir(folder.join("keyspaces").join(keyspace).join("tables"));
        for path in tables.into_iter().flatten().flatten().map(|entry| entry.path()) {
            let place = File::open(&path).and_then(|file| place_of_damage(&file));
            if let Ok(Some(place)) = place {
                let detail = format!("{} is damaged {place} ({})", path.display(), fault.detail);
                return Fault::corrupt(detail);
            }
        }
    }
    fault
}

/// Without its checksum, which stands in the list of tables: what its blocks and its table of contents say of themselves.
fn place_of_damage(file: &File) -> io::Result<Option<String>> {
    if let Some(at) = bad_block(file)? {
        return Ok(Some(format!("in the block at byte {at}")));
    }
    Ok((!contents_are_whole(file)?).then(|| "in its table of contents".to_owned()))
}

fn damage(path: &Path, checksum: u128) -> io::Result<Option<String>> {
    damage_telling(path, checksum, &mut |_| ())
}

fn damage_telling(path: &Path, checksum: u128, tell: &mut dyn FnMut(u64)) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let (mut hasher, mut piece) = (Xxh3Default::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => break,
            bytes => {
                hasher.update(&piece[..bytes]);
                tell(bytes as u64);
            }
        }
    }
    if hasher.digest128() == checksum {
        return Ok(None);
    }
    let place = place_of_damage(&file)?.unwrap_or_else(|| "outside its blocks".to_owned());
    Ok(Some(format!("{} is damaged {place}: it does not match its checksum", path.display())))
}

/// Where the first block stands that does not match its checksums; `None` where all that look like blocks do.
fn bad_block(file: &File) -> io::Result<Option<u64>> {
    let (length, mut at) = (file.metadata()?.len(), 0);
    let mut header = [0; HEADER_BYTES];
    while at + HEADER_BYTES as u64 <= length {
        file.read_exact_at(&mut header, at)?;
        let number =
            |from: usize| u32::from_le_bytes([header[from], header[from + 1], header[from + 2], header[from + 3]]);
        if !header.starts_with(MAGIC) {
            // The first is one for certain.
            return Ok((at == 0).then_some(0));
        }
        let begin = at + HEADER_BYTES as u64;
        let end = begin + u64::from(number(21));
        if xxh3_128(&header[..CHECK_AT]) as u32 != number(CHECK_AT) || end > length {
            return Ok(Some(at));
        }
        let mut data = vec![0; number(21) as usize];
        file.read_exact_at(&mut data, begin)?;
        if xxh3_128(&data).to_le_bytes() != header[5..21] {
            return Ok(Some(at));
        }
        at = end;
    }
    Ok(None)
}
