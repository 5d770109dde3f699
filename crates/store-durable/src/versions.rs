//! The engine's lists of its tables, looked over before the engine opens them.
//!
//! Each keyspace of the engine has a file `current` that names its newest list, `vN`, and holds the list's checksum; the engine
//! (fjall 3, lsm-tree 3) does not look at it, and panics on some lists that are damaged. `current` is
//! `N(8) xxh3-128-of-vN(16) 0`, little-endian.

use std::fs;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::fault::Fault;

/// The engine's keyspaces: its own, and the store's.
pub(crate) const KEYSPACES: [&str; 2] = ["0", "1"];

/// Looks over the lists of every keyspace in the engine's folder.
///
/// # Errors
/// `Corrupt`, naming the file.
pub(crate) fn verify(folder: &Path) -> Result<(), Fault> {
    KEYSPACES.iter().try_for_each(|name| verify_one(&folder.join("keyspaces").join(name)))
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
    if xxh3_128(&read(&list)?) != u128::from_le_bytes(checksum) {
        return damaged(&list, "does not match the checksum in `current`: one of the two is damaged");
    }
    Ok(())
}
