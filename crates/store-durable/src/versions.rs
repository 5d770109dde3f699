//! The engine's lists of its tables, and the tables' own lists of what is in them, looked over before the engine opens them.
//!
//! Each keyspace of the engine has a file `current` that names its newest list, `vN`, and holds the list's checksum; the engine
//! (fjall 3, lsm-tree 3) does not look at it, and panics on some lists that are damaged. `current` is
//! `N(8) xxh3-128-of-vN(16) 0`, little-endian.
//!
//! A table ends in `SFA! 1 0 checksum(16) place(8) length(8)` of its table of contents, `TOC! count(4) entries`. The engine (sfa 1) makes room for `count`
//! entries before it looks at the checksum, and the process ends if there is no such room.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::fault::Fault;

/// The engine's keyspaces: its own, and the store's.
pub(crate) const KEYSPACES: [&str; 2] = ["0", "1"];

/// A table's last bytes, and what they begin with.
const TRAILER_BYTES: u64 = 38;
const TRAILER: &[u8] = b"SFA!\x01\0";
const CONTENTS: &[u8] = b"TOC!";

/// Looks over the lists of every keyspace in the engine's folder, and over those of their tables.
///
/// # Errors
/// `Corrupt`, naming the file.
pub(crate) fn verify(folder: &Path) -> Result<(), Fault> {
    KEYSPACES.iter().try_for_each(|name| {
        let keyspace = folder.join("keyspaces").join(name);
        verify_one(&keyspace)?;
        verify_tables(&keyspace.join("tables"))
    })
}

/// Finds tables that would have the engine make room for more entries than their contents have bytes. Whatever else is damaged in them the engine tells by itself;
/// and a table that a crash left half-written is on no list, and never opened.
fn verify_tables(tables: &Path) -> Result<(), Fault> {
    let files = match fs::read_dir(tables) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        files => files.map_err(|error| Fault::io(&format!("cannot list {}", tables.display()), error))?,
    };
    for file in files {
        let path = file.map_err(|error| Fault::io(&format!("cannot list {}", tables.display()), error))?.path();
        let is_possible = File::open(&path).and_then(|file| is_possible(&file));
        if !is_possible.map_err(|error| Fault::io(&format!("cannot read {}", path.display()), error))? {
            let what = "is damaged: its table of contents tells more entries than it has bytes";
            return Err(Fault::corrupt(format!("{} {what}", path.display())));
        }
    }
    Ok(())
}

/// False if the table's contents cannot have as many entries as they say.
fn is_possible(table: &File) -> std::io::Result<bool> {
    let length = table.metadata()?.len();
    let Some(end) = length.checked_sub(TRAILER_BYTES) else { return Ok(true) };
    let mut trailer = [0; TRAILER_BYTES as usize];
    table.read_exact_at(&mut trailer, end)?;
    let place = trailer[22..30].try_into().map_or(u64::MAX, u64::from_le_bytes);
    let mut head = [0; 8];
    if !trailer.starts_with(TRAILER) || place.saturating_add(head.len() as u64) > end {
        return Ok(true);
    }
    table.read_exact_at(&mut head, place)?;
    let [magic @ .., a, b, c, d] = head;
    Ok(magic != CONTENTS || u64::from(u32::from_le_bytes([a, b, c, d])) <= end - place)
}

/// Where a table's list of its parts stands, which its trailer follows; `None` if it does not match the checksum there.
pub(crate) fn contents(table: &File) -> std::io::Result<Option<Range<u64>>> {
    let length = table.metadata()?.len();
    let Some(end) = length.checked_sub(TRAILER_BYTES) else { return Ok(None) };
    let mut trailer = [0; TRAILER_BYTES as usize];
    table.read_exact_at(&mut trailer, end)?;
    let number = |from: usize| trailer[from..from + 8].try_into().map_or(u64::MAX, u64::from_le_bytes);
    let (place, bytes) = (number(22), number(30));
    if !trailer.starts_with(TRAILER) || place.checked_add(bytes) != Some(end) {
        return Ok(None);
    }
    let mut contents = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    table.read_exact_at(&mut contents, place)?;
    Ok((xxh3_128(&contents).to_le_bytes() == trailer[6..22]).then_some(place..end))
}

fn verify_one(keyspace: &Path) -> Result<(), Fault> {
    let pointer = keyspace.join("current");
    let damaged = |path: &Path, what: &str| Err(Fault::corrupt(format!("{} {what}", path.display())));
    let read =
        |path: &Path| fs::read(path).map_err(|error| Fault::io(&format!("cannot read {}", path.display()), error));
    let current = read(&pointer)?;
    let Ok([id @ .., 0]) = <&[u8; 25]>::try_from(&current[..]) else {
        return damaged(&pointer, "is damaged: it names no list of tables");
    };
    let (id, checksum) = id.split_at(8);
    let (Ok(id), Ok(checksum)) = (id.try_into(), checksum.try_into()) else {
        return damaged(&pointer, "is damaged: it names no list of tables");
    };
    let list = keyspace.join(format!("v{}", u64::from_le_bytes(id)));
    if !list.exists() {
        let what = format!("is not there, and {} names it: one of the two is damaged, or gone", pointer.display());
        return damaged(&list, &what);
    }
    if xxh3_128(&read(&list)?) != u128::from_le_bytes(checksum) {
        return damaged(&list, "does not match the checksum in `current`: one of the two is damaged");
    }
    Ok(())
}
