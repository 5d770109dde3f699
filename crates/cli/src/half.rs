//! Files that have their name only when they are whole.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names that are tried: one that is taken is another's file.
const NAMES_MAX: u32 = 16;

/// A file without its name: it stands beside, under a name that nobody else has, and is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) file: File,
    path: PathBuf,
}

impl Half {
    /// A new file in the folder of `target`, which those whom `mode` lets may read.
    pub(crate) fn beside(target: &Path, mode: u32) -> io::Result<Half> {
        let mut tries = 0;
        loop {
            let mut name = target.as_os_str().to_owned();
            name.push(format!(".{:016x}.new", RandomState::new().hash_one(tries)));
            let path = PathBuf::from(name);
            match OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < NAMES_MAX => tries += 1,
                opened => return Ok(Half { file: opened?, path }),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, and stays on disk with it.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where the name is taken: that file stays.
    pub(crate) fn name(self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        match fs::hard_link(&self.path, target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            // Not every file system has links.
            Err(_) if fs::symlink_metadata(target).is_ok() => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(&self.path, target)?,
            Ok(()) => fs::remove_file(&self.path)?,
        }
        sync_folder(target)
    }

    /// Gives it its name, in the place of what has it.
    pub(crate) fn replace(self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        sync_folder(target)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // It is gone already where it has its name.
        _ = fs::remove_file(&self.path);
    }
}

fn sync_folder(of: &Path) -> io::Result<()> {
    let folder = of.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_there_is_neither_used_nor_replaced_unless_it_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("cursor");
        let write = |text: &str| {
            let mut half = Half::beside(&target, 0o600).unwrap();
            half.file.write_all(text.as_bytes()).unwrap();
            half
        };
        let (first, second) = (write("first"), write("second"));
        assert!(!target.exists());
        first.name(&target).unwrap();
        assert_eq!(second.name(&target).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&target).unwrap(), b"first");
        write("third").replace(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"third");
        drop(write("fourth"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
