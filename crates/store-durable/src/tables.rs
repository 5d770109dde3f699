//! Files of tables held against their checksums: which is damaged, and where.
//!
//! The engine's list of tables has a checksum over each table's whole file, and each block of a table one of its own; the engine tells of a block that does not match,
//! and not of which file. A block is `LSM\x03 kind(1) xxh3-128-of-its-data(16) length(4) raw-length(4) check(4) data`, little-endian; check: the lower bytes of the xxh3-128 of
//! what stands before it. So each byte of a table has a checksum besides the file's: the blocks have their own, the table of contents has one in the trailer, and the one
//! byte that is in no block is a version.
//!
//! The file's checksum alone is not enough to call a table damaged: the engine (lsm-tree 3.1.10, `ChecksummedWriter::write`) counts the bytes of a large write twice that came
//! short and was gone on with, as on a disk that was full for a moment, and notes a checksum that no file has. Such a table is whole, and told of as
//! one that is [`State::Unmatched`]; a table of the same number that another store wrote would be, too.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fjall::{AbstractTree, Keyspace};
use parking_lot::Mutex;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::fault::{Fault, Harm};
use crate::versions::{KEYSPACES, contents};

const MAGIC: &[u8] = b"LSM\x03";
const HEADER_BYTES: usize = 33;
/// Where the check of a header stands, behind what it is over.
const CHECK_AT: usize = HEADER_BYTES - 4;
/// The part of a table that is no block, and what it holds.
const VERSION_PART: &[u8] = b"table_version";
const VERSION: &[u8; 1] = &[3];
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
            let look = || match state(&table.path, table.id(), table.checksum().into_u128(), &mut |_| ()) {
                Ok(State::Damaged(damage)) => Some(damage),
                _ => None,
            };
            if let Some(damage) = seen.entry(table.path.to_path_buf()).or_insert_with(look) {
                return Fault::corrupt(format!("{damage} ({})", fault.detail));
            }
        }
        fault
    }
}

/// How a file's bytes stand to its checksums.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// As they were written.
    Whole,
    /// Every part matches its own checksum; the whole does not match the file's.
    Unmatched,
    /// What is wrong, with the file and the place.
    Damaged(String),
}

/// Reads every table of this moment from end to end; `tell` is given the bytes of each piece that was read. Returns the files that are whole by the checksums of all their
/// parts, and not by the one that the engine noted of them.
///
/// # Errors
/// `Corrupt`, with the file and the place of each that is not what was written, or of the first hundred.
pub(crate) fn verify(keyspace: &Keyspace, tell: &mut dyn FnMut(u64)) -> Result<Vec<PathBuf>, Fault> {
    // Held: files that are merged away meanwhile stay until it is dropped.
    let version = keyspace.tree.current_version();
    let (mut damages, mut unmatched) = (Vec::new(), Vec::new());
    for table in version.iter_tables() {
        let state = state(&table.path, table.id(), table.checksum().into_u128(), tell);
        match state.map_err(|error| Fault::io(&format!("cannot read {}", table.path.display()), error))? {
            State::Whole => {}
            State::Unmatched => unmatched.push(table.path.to_path_buf()),
            State::Damaged(damage) => damages.push(damage),
        }
        if damages.len() == NAMED_MAX {
            break;
        }
    }
    if damages.is_empty() { Ok(unmatched) } else { Err(Fault::corrupt(damages.join("; "))) }
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

/// `number` is what the table says of itself, `checksum` what the list notes of the one that should be there.
fn state(path: &Path, number: u64, checksum: u128, tell: &mut dyn FnMut(u64)) -> io::Result<State> {
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
        return Ok(State::Whole);
    }
    Ok(match place_of_damage(&file)? {
        Some(place) => State::Damaged(format!("{} is damaged {place}: it does not match its checksum", path.display())),
        None if path.file_name().is_none_or(|name| name.to_str() != Some(&number.to_string())) => {
            State::Damaged(format!("{} is another table, of number {number}", path.display()))
        }
        None => State::Unmatched,
    })
}

/// Where a table does not match the checksums in it, which are over all of it; `None` for nowhere.
pub(crate) fn place_of_damage(mut file: &File) -> io::Result<Option<String>> {
    let in_contents = || Ok(Some("in its table of contents".to_owned()));
    let Some(contents) = contents(file)? else { return in_contents() };
    file.rewind()?;
    let parts = match sfa::Reader::from_reader(&mut file) {
        Err(sfa::Error::Io(error)) => return Err(error),
        Err(_) => return in_contents(),
        Ok(reader) => reader,
    };
    let mut at = 0_u64;
    for part in parts.toc().iter() {
        let Some(end) = at.checked_add(part.len()).filter(|end| part.pos() == at && *end <= contents.start) else {
            return in_contents();
        };
        let bad = if part.name() == VERSION_PART { bad_version(file, at, end)? } else { bad_block(file, at, end)? };
        if let Some(place) = bad {
            return Ok(Some(place));
        }
        at = end;
    }
    if at == contents.start { Ok(None) } else { in_contents() }
}

fn bad_version(file: &File, at: u64, end: u64) -> io::Result<Option<String>> {
    let mut version = [0; 1];
    if end - at == version.len() as u64 {
        file.read_exact_at(&mut version, at)?;
    }
    Ok((version != *VERSION).then(|| format!("in the version at byte {at}")))
}

/// Where the first block stands that does not match its checksums, of those that fill a part of a table.
fn bad_block(file: &File, mut at: u64, part_end: u64) -> io::Result<Option<String>> {
    let mut header = [0; HEADER_BYTES];
    while at < part_end {
        let bad = Ok(Some(format!("in the block at byte {at}")));
        let begin = at + HEADER_BYTES as u64;
        if begin > part_end {
            return bad;
        }
        file.read_exact_at(&mut header, at)?;
        let number =
            |from: usize| u32::from_le_bytes([header[from], header[from + 1], header[from + 2], header[from + 3]]);
        let end = begin + u64::from(number(21));
        if !header.starts_with(MAGIC) || xxh3_128(&header[..CHECK_AT]) as u32 != number(CHECK_AT) || end > part_end {
            return bad;
        }
        let mut data = vec![0; number(21) as usize];
        file.read_exact_at(&mut data, begin)?;
        if xxh3_128(&data).to_le_bytes() != header[5..21] {
            return bad;
        }
        at = end;
    }
    Ok(None)
}
