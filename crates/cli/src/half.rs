//! Files that have their name only when they are whole.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Names that are tried: one that is taken is another's file.
const NAMES_MAX: u32 = 16;
/// What stands between the name of a file that is not whole and its end, in hexadecimal.
const TAG_CHARS: usize = 16;
const END: &[u8] = b".new";

/// A file without its name: it stands beside, under a name that nobody else has, and is removed when this is dropped. Its lock says that somebody writes it: what who was
/// killed left behind has none, and is [swept].
///
/// [swept]: sweep
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
            name.push(format!(".{:0TAG_CHARS$x}.new", RandomState::new().hash_one(tries)));
            let path = PathBuf::from(name);
            let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&path);
            tries += 1;
            match opened {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < NAMES_MAX => continue,
                opened => {
                    let half = Half { file: opened?, path };
                    // Who sweeps may have come between. A file system without locks has none to hold, and nothing is swept there.
                    let is_locked = !matches!(half.file.try_lock(), Err(fs::TryLockError::WouldBlock));
                    if tries >= NAMES_MAX || (is_locked && half.has_its_path()) {
                        return Ok(half);
                    }
                }
            }
        }
    }

    /// False where another has removed it.
    fn has_its_path(&self) -> bool {
        let number = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let there = fs::symlink_metadata(&self.path).map(number);
        there.is_ok_and(|there| self.file.metadata().map(number).is_ok_and(|own| own == there))
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
            // It has its name, whether the other goes or not.
            Ok(()) => _ = fs::remove_file(&self.path),
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

/// Removes what others who were killed left of files of this name: those that nobody has locked. What cannot be read or removed stays.
pub(crate) fn sweep(target: &Path) {
    let (Some(name), Ok(entries)) = (target.file_name(), fs::read_dir(folder(target))) else { return };
    for entry in entries.flatten() {
        let is_one = is_half_of(name.as_bytes(), entry.file_name().as_bytes());
        if !is_one || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Neither through a link nor waiting for a pipe, if it has become one.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(entry.path());
        // It stays locked until it is removed: whoever has just made it sees that.
        if let Ok(file) = opened
            && file.metadata().is_ok_and(|metadata| metadata.is_file())
            && file.try_lock().is_ok()
        {
            _ = fs::remove_file(entry.path());
        }
    }
}

/// True for the name of a file that is to be called `name`.
fn is_half_of(name: &[u8], beside: &[u8]) -> bool {
    let tag =
        beside.strip_prefix(name).and_then(|rest| rest.strip_prefix(b".")).and_then(|rest| rest.strip_suffix(END));
    tag.is_some_and(|tag| tag.len() == TAG_CHARS && tag.iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')))
}

fn folder(of: &Path) -> &Path {
    of.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has the name of a file on disk, where that can be had: a folder that may be written and not read cannot be opened, and not every file system syncs one.
fn sync_folder(of: &Path) -> io::Result<()> {
    match File::open(folder(of)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        opened => where_it_can(opened?.sync_all()),
    }
}

fn where_it_can(synced: io::Result<()>) -> io::Result<()> {
    match synced {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
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

    #[test]
    fn what_nobody_writes_any_more_is_swept_and_all_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("all.dump");
        let held = Half::beside(&target, 0o600).unwrap();
        let held_name = held.path().file_name().unwrap().to_str().unwrap().to_owned();
        let left = ["all.dump.0123456789abcdef.new", "all.dump.ffffffffffffffff.new"];
        let others = [
            "all.dump",
            "all.dump.new",
            "all.dump.0123456789abcde.new",
            "all.dump.0123456789abcdef0.new",
            "all.dump.0123456789ABCDEF.new",
            "all.dump.0123456789abcdef.newer",
            "ball.dump.0123456789abcdef.new",
            "one.dump.0123456789abcdef.new",
        ];
        left.iter().chain(&others).for_each(|name| fs::write(folder.path().join(name), "x").unwrap());
        let link = folder.path().join("all.dump.1111111111111111.new");
        std::os::unix::fs::symlink(folder.path().join("all.dump"), &link).unwrap();
        sweep(&target);
        let mut there: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let mut stay: Vec<_> = others.iter().map(|&name| name.to_owned()).collect();
        stay.extend([held_name, "all.dump.1111111111111111.new".to_owned()]);
        stay.sort();
        assert_eq!(there, stay);
        fs::remove_file(&target).unwrap();
        held.name(&target).unwrap();
    }

    /// Whoever begins is neither swept away nor left without a file while others sweep.
    #[test]
    fn who_begins_while_others_sweep_has_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("cursor");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(relaxed) {
                    sweep(&target);
                }
            });
            let replaced: io::Result<()> =
                (0..500).try_for_each(|_| Half::beside(&target, 0o600).and_then(|half| half.replace(&target)));
            is_done.store(true, relaxed);
            replaced.unwrap();
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// As root every folder can be read, and the test says less.
    #[test]
    fn a_folder_that_cannot_be_read_or_synced_is_no_failure_of_a_file_that_is_whole() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("cursor");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o300)).unwrap();
        sweep(&target);
        let named = Half::beside(&target, 0o600).and_then(|half| half.name(&target));
        let replaced = Half::beside(&target, 0o600).and_then(|half| half.replace(&target));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        named.unwrap();
        replaced.unwrap();
        where_it_can(Err(rustix::io::Errno::INVAL.into())).unwrap();
        where_it_can(Err(rustix::io::Errno::IO.into())).unwrap_err();
    }
}
