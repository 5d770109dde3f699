//! What a disk holds after the calls of a trace: what is on it for good, and what the system had not written yet when the power went.
//!
//! A write is on disk for good when its file was synced after it. Until then each sector of 512 bytes of it may be there or not, and so may the file's new
//! length. With names of files it is the same by their folders, in two ways: [`Names::InOrder`], as file systems with one journal keep them, which write
//! all changes of names up to a sync, and of later ones the first few; and [`Names::Loose`], which is all that POSIX promises.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::tracer::{Event, Inode};

const SECTOR: u64 = 512;

/// How a disk keeps changes of names that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// In their order: the first few of them; and any sync is one of all that came before it.
    InOrder,
    /// Each for itself, until the folder is synced.
    Loose,
}

/// What of the unsynced changes is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Nothing,
    Some,
    All,
}

/// The bytes of a file; behind them, up to its length, zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    bytes: Vec<u8>,
    len: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, bytes: Vec<u8> },
    SetLen(u64),
}

#[derive(Clone, Debug, Default)]
struct Inner {
    synced: Content,
    pending: Vec<Change>,
}

/// A change of a name.
#[derive(Clone, Debug)]
enum Naming {
    Made { path: PathBuf, id: usize },
    Renamed { from: PathBuf, to: PathBuf, id: usize },
    Removed { path: PathBuf },
}

/// A disk. Files and folders have numbers of their own here, as the system gives those of removed ones to others.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    root: PathBuf,
    files: Vec<Inner>,
    folders: HashSet<usize>,
    ids: HashMap<Inode, usize>,
    /// All names as the process sees them.
    now: BTreeMap<PathBuf, usize>,
    synced: [BTreeMap<PathBuf, usize>; 2],
    pending: [Vec<Naming>; 2],
}

impl Disk {
    /// One that holds an empty folder.
    pub(super) fn new(root: &Path) -> Disk {
        let root = root.canonicalize().expect("a folder");
        let id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&root).expect("a folder"));
        let names = BTreeMap::from([(root.clone(), 0)]);
        Disk {
            root,
            files: vec![Inner::default()],
            folders: HashSet::from([0]),
            ids: HashMap::from([(id, 0)]),
            now: names.clone(),
            synced: [names.clone(), names],
            pending: [Vec::new(), Vec::new()],
        }
    }

    /// Goes on by a call.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Wrote { inode, at, bytes } => {
                self.file(*inode).pending.push(Change::Write { at: *at, bytes: bytes.clone() });
            }
            Event::LenSet { inode, len } => self.file(*inode).pending.push(Change::SetLen(*len)),
            Event::Opened { path, inode, empties } => {
                if !self.now.contains_key(path) {
                    self.make(path, *inode, false);
                }
                if *empties {
                    self.file(*inode).pending.push(Change::SetLen(0));
                }
            }
            Event::DirMade { path, inode } => self.make(path, *inode, true),
            Event::Renamed { from, to } => {
                let id = self.now.remove(from).expect("a file that is renamed");
                self.now.insert(to.clone(), id);
                self.name(&Naming::Renamed { from: from.clone(), to: to.clone(), id });
            }
            Event::Unlinked { path } => {
                self.now.remove(path);
                self.name(&Naming::Removed { path: path.clone() });
            }
            Event::Synced { inode } => self.sync(*inode),
            // The system has tried, and will not try again.
            Event::SyncFailed { inode } => self.file(*inode).pending.clear(),
            Event::Said(_) => {}
        }
    }

    fn file(&mut self, inode: Inode) -> &mut Inner {
        let id = *self.ids.get(&inode).expect("a file that was seen when it was made");
        &mut self.files[id]
    }

    fn make(&mut self, path: &Path, inode: Inode, is_folder: bool) {
        let id = self.files.len();
        self.files.push(Inner::default());
        if is_folder {
            self.folders.insert(id);
        }
        self.ids.insert(inode, id);
        self.now.insert(path.to_owned(), id);
        self.name(&Naming::Made { path: path.to_owned(), id });
    }

    fn name(&mut self, naming: &Naming) {
        self.pending.iter_mut().for_each(|pending| pending.push(naming.clone()));
    }

    fn sync(&mut self, inode: Inode) {
        let id = *self.ids.get(&inode).expect("a file that was seen when it was made");
        let [in_order, loose] = &mut self.pending;
        let [names, loose_names] = &mut self.synced;
        in_order.drain(..).for_each(|naming| naming.apply(names));
        if !self.folders.contains(&id) {
            let Inner { synced, pending } = &mut self.files[id];
            pending.drain(..).for_each(|change| synced.apply(&change));
            return;
        }
        let folder = self.now.iter().find(|(_, it)| **it == id).map(|(path, _)| path.as_path());
        let (here, elsewhere) = loose.drain(..).partition::<Vec<_>, _>(|naming| naming.path().parent() == folder);
        here.into_iter().for_each(|naming| naming.apply(loose_names));
        *loose = elsewhere;
    }

    /// Writes what is on the disk into a folder that is empty.
    pub(super) fn image(&self, into: &Path, names: Names, keep: Keep, rng: &mut Rng) {
        let pending = &self.pending[names as usize];
        let mut kept = self.synced[names as usize].clone();
        let first = match keep {
            Keep::Nothing => 0,
            Keep::Some if names == Names::InOrder => rng.usize(..=pending.len()),
            Keep::Some | Keep::All => pending.len(),
        };
        let is_kept = |rng: &mut Rng| names == Names::InOrder || keep == Keep::All || rng.bool();
        pending[..first].iter().filter(|_| is_kept(rng)).for_each(|naming| naming.apply(&mut kept));
        for (path, id) in &kept {
            // What a folder held that is not there is not there either.
            let mut above = path.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.root));
            if *path == self.root || above.any(|folder| !kept.contains_key(folder)) {
                continue;
            }
            let target = into.join(path.strip_prefix(&self.root).expect("a path in the folder"));
            if self.folders.contains(id) {
                fs::create_dir(&target).expect("a new folder");
            } else {
                self.files[*id].left(keep, rng).write(&target);
            }
        }
    }

    /// Where a folder differs from what the process should see by the calls: `None` for nowhere.
    pub(super) fn differs(&self) -> Option<String> {
        let mut found = BTreeMap::new();
        names_below(&self.root, &mut found);
        let here: Vec<&PathBuf> = self.now.keys().filter(|path| **path != self.root).collect();
        if !found.keys().eq(here.iter().copied()) {
            return Some(format!("{:?} are there, where {here:?} should be", found.keys()));
        }
        let mut rng = Rng::with_seed(0);
        let files = found.iter().filter(|(_, is_folder)| !**is_folder).map(|(path, _)| path);
        let mut differing = files.filter(|path| {
            let bytes = fs::read(path).expect("a file");
            let content = self.files[self.now[*path]].left(Keep::All, &mut rng);
            let (head, zeros) = bytes.split_at(content.bytes.len().min(bytes.len()));
            bytes.len() as u64 != content.len || head != content.bytes || zeros.iter().any(|&byte| byte != 0)
        });
        differing.next().map(|path| format!("{} is another", path.display()))
    }
}

fn names_below(folder: &Path, found: &mut BTreeMap<PathBuf, bool>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_folder = path.is_dir();
        if is_folder {
            names_below(&path, found);
        }
        found.insert(path, is_folder);
    }
}

impl Naming {
    fn path(&self) -> &Path {
        match self {
            Naming::Made { path, .. } | Naming::Removed { path } => path,
            Naming::Renamed { to, .. } => to,
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Naming::Made { path, id } => _ = names.insert(path.clone(), *id),
            Naming::Removed { path } => _ = names.remove(path),
            Naming::Renamed { from, to, id } => {
                if names.get(from) == Some(id) {
                    names.remove(from);
                }
                names.insert(to.clone(), *id);
            }
        }
    }
}

impl Inner {
    /// What of the file is on the disk.
    fn left(&self, keep: Keep, rng: &mut Rng) -> Content {
        let mut content = self.synced.clone();
        if keep == Keep::Nothing || self.pending.is_empty() {
            return content;
        }
        let before = content.len;
        let keeps = rng.u8(1..=3);
        for change in &self.pending {
            match change {
                Change::SetLen(_) if keep == Keep::Some && rng.bool() => {}
                Change::Write { at, bytes } if keep == Keep::Some => {
                    let mut from = 0;
                    while from < bytes.len() {
                        let start = at + from as u64;
                        let to = bytes.len().min((((start / SECTOR) + 1) * SECTOR - at) as usize);
                        if rng.u8(0..4) < keeps {
                            content.apply(&Change::Write { at: start, bytes: bytes[from..to].to_vec() });
                        }
                        from = to;
                    }
                }
                change => content.apply(change),
            }
        }
        if keep == Keep::Some && content.len > before && rng.bool() {
            // The new length may be on the disk before what is in it, or only in part.
            content.apply(&Change::SetLen(rng.u64(before..=content.len)));
        }
        content
    }
}

impl Content {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { at, bytes } => {
                let (from, to) = (*at as usize, *at as usize + bytes.len());
                if self.bytes.len() < to {
                    self.bytes.resize(to, 0);
                }
                self.bytes[from..to].copy_from_slice(bytes);
                self.len = self.len.max(to as u64);
            }
            Change::SetLen(len) => {
                self.bytes.truncate(usize::try_from(*len).expect("a length"));
                self.len = *len;
            }
        }
    }

    fn write(&self, path: &Path) {
        let mut file = fs::File::create_new(path).expect("a new file");
        file.set_len(self.len).expect("room");
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&self.bytes)).expect("room");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with `one` synced and `two` not, in a folder of its own.
    fn disk() -> (tempfile::TempDir, Disk) {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(folder.path());
        let (dir, file) = (disk.root.join("dir"), disk.root.join("dir").join("file"));
        disk.apply(&Event::DirMade { path: dir, inode: 1_000_001 });
        disk.apply(&Event::Opened { path: file, inode: 1_000_002, empties: false });
        disk.apply(&Event::Wrote { inode: 1_000_002, at: 0, bytes: b"one".to_vec() });
        disk.apply(&Event::Synced { inode: 1_000_002 });
        disk.apply(&Event::Wrote { inode: 1_000_002, at: 3, bytes: b"two".to_vec() });
        (folder, disk)
    }

    fn left(disk: &Disk, names: Names, keep: Keep) -> Option<Vec<u8>> {
        let image = tempfile::tempdir().unwrap();
        disk.image(image.path(), names, keep, &mut Rng::with_seed(1));
        fs::read(image.path().join("dir").join("file")).ok()
    }

    #[test]
    fn what_was_synced_is_there_and_what_was_not_may_be() {
        let (_folder, mut disk) = disk();
        assert_eq!(left(&disk, Names::InOrder, Keep::Nothing).unwrap(), b"one");
        assert_eq!(left(&disk, Names::InOrder, Keep::All).unwrap(), b"onetwo");
        disk.apply(&Event::Synced { inode: 1_000_002 });
        assert_eq!(left(&disk, Names::InOrder, Keep::Nothing).unwrap(), b"onetwo");
    }

    #[test]
    fn a_sync_that_failed_is_not_made_good_by_the_next() {
        let (_folder, mut disk) = disk();
        disk.apply(&Event::SyncFailed { inode: 1_000_002 });
        disk.apply(&Event::Synced { inode: 1_000_002 });
        assert_eq!(left(&disk, Names::InOrder, Keep::Nothing).unwrap(), b"one");
    }

    #[test]
    fn a_name_needs_its_folder_synced_where_names_are_loose() {
        let (folder, mut disk) = disk();
        assert_eq!(left(&disk, Names::Loose, Keep::Nothing), None);
        disk.apply(&Event::Synced { inode: 1_000_001 });
        assert_eq!(left(&disk, Names::Loose, Keep::Nothing), None, "the folder's own name is in the one above");
        let root = std::os::unix::fs::MetadataExt::ino(&fs::metadata(folder.path()).unwrap());
        disk.apply(&Event::Synced { inode: root });
        assert_eq!(left(&disk, Names::Loose, Keep::Nothing).unwrap(), b"one");
    }
}
