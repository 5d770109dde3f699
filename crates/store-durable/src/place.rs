//! The folder: who may open it, what it is, and what was known of it when it was last closed.
//!
//! ```text
//! PATH/larder   what this is: version, the store's number, its incarnation, how far its making came
//! PATH/lock     locked by the process that has the store open, as is PATH itself, in case the file is removed; holds its process id, and the store's number once that is made
//! PATH/state    how far the store was on disk when that was last noted: a store that has less has lost something
//! PATH/engine/  the engine's files
//! ```

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_core::{Error, ErrorKind, Result};
use rustix::fs::FlockOperation;
use xxhash_rust::xxh3::xxh3_64;

/// The layout of the folder.
const VERSION: u32 = 3;
/// The oldest that is understood; it becomes the newest when it is opened, and found to be whole. The second has rounds, which one of the first would not look for; the third notes ends of lives by steps, which one before would take
/// for other ends.
const VERSION_MIN: u32 = 1;
const MAGIC: &str = "larder durable store";
/// The file that says what the folder is.
const IDENTITY: &str = "larder";
const LOCK: &str = "lock";
const STATE: &str = "state";
/// What is left of those two where a process died while it wrote one.
const BEGUN: [&str; 2] = ["larder.new", "state.new"];
/// The engine's folder.
const ENGINE: &str = "engine";
/// How long someone who waits for the lock sleeps between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What is as good as for ever: a hundred years.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long an engine that is being closed may keep its files.
const ENGINE_CLOSES_MAX: Duration = Duration::from_secs(1);
/// The locks of all processes, on Linux.
const LOCKS: &str = "/proc/locks";
/// The files of ours are some 100 bytes; more is none of ours.
const SMALL_BYTES_MAX: u64 = 4096;

/// Which store this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Drawn when the store was made; a restored one keeps it.
    pub(crate) store: u64,
    /// Drawn when the store was made, and anew by each restore.
    pub(crate) incarnation: u64,
    /// Counts the restores.
    pub(crate) restores: u64,
}

/// How far a store was on disk, as noted outside of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) identity: Identity,
    /// The last batch that was on disk.
    pub(crate) sequence: u64,
    /// The newest journal file.
    pub(crate) journal: u64,
}

/// How far the making of a store came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// It was begun, and holds nothing: an open makes it anew.
    Begun,
    /// A restore was begun: only another restore may take the folder.
    Restoring,
    /// To the end.
    Whole,
}

const MADE: [(Made, &str); 3] = [(Made::Begun, "no"), (Made::Restoring, "restoring"), (Made::Whole, "yes")];

/// How long another process is waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    /// In all.
    pub(crate) wait: Duration,
    /// Of that, how long already.
    pub(crate) waited: Duration,
    /// Ends it early.
    pub(crate) is_given_up: Arc<AtomicBool>,
}

/// A folder that this process has locked.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    lock: Locked,
    /// The folder itself: whoever removes `lock` must not let a second process in. `None` where the file system locks no folders.
    _whole: Option<Locked>,
    /// The number of the store that `lock` names, if it does.
    named: Option<u64>,
    /// True if the folder was empty.
    pub(crate) is_new: bool,
}

/// A file, or a folder, that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// Waits until the deadline, or until it is given up: the file again, if another process still has it then.
    fn until(
        file: File,
        deadline: Instant,
        is_given_up: &AtomicBool,
    ) -> std::io::Result<std::result::Result<Locked, File>> {
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error.into());
            }
            if Instant::now() >= deadline || is_given_up.load(Ordering::Relaxed) {
                return Ok(Err(file));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Ok(Locked(file)))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // To close the file is not enough: a process that another thread starts at this moment has it, too, until it becomes another program.
        _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Place {
    /// Locks the folder of a store, making it where there is none. Waits for another process to close it.
    pub(crate) fn lock(folder: &Path, patience: &Patience) -> Result<Place> {
        let Patience { wait, waited, is_given_up } = patience;
        let is_new = prepare(folder)?;
        let path = folder.join(LOCK);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|error| failed(&path, "cannot be opened for writing", error))?;
        let deadline = Instant::now() + wait.saturating_sub(*waited).min(WAIT_MAX);
        let locked =
            Locked::until(file, deadline, is_given_up).map_err(|error| failed(&path, "cannot be locked", error))?;
        let lock = locked.map_err(|file| held(folder, id_in(file), *wait))?;
        let whole = File::open(folder).map_err(|error| failed(folder, "cannot be opened", error))?;
        let whole = match Locked::until(whole, deadline, is_given_up) {
            Ok(Ok(locked)) => Some(locked),
            Ok(Err(file)) => return Err(held(folder, holder_of(&file), *wait)),
            Err(_) => None,
        };
        let named = read_small(&path).ok().flatten().and_then(|text| store_in(&text));
        // What was seen before the lock was ours may have changed since.
        let is_new = is_new && !folder.join(IDENTITY).exists();
        let mut place = Place { folder: folder.to_owned(), lock, _whole: whole, named, is_new };
        match place.write_lock() {
            // Whoever waits is told of another process then, without its number: what is there is read, and given back, on a full disk, too.
            Err(error) if error.kind() != ErrorKind::Full => Err(error),
            _ => Ok(place),
        }
    }

    /// Writes this process's id into `lock`, and the number of the store.
    fn write_lock(&mut self) -> Result<()> {
        let store = self.named.map(|store| format!("{store}\n")).unwrap_or_default();
        let text = format!("{}\n{store}", std::process::id());
        let file = &mut self.lock.0;
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|error| failed(&self.folder.join(LOCK), "cannot be written", error))
    }

    /// Has `lock` name the store, which is made to the end: where all else is gone, that tells of it.
    pub(crate) fn name_lock(&mut self, identity: Identity) {
        if self.named.replace(identity.store) != Some(identity.store) {
            // Where that fails it tells less.
            _ = self.write_lock();
        }
    }

    /// Keeps the engine's files from an engine of another process, or one that this process could not close, while they are looked over and mended.
    pub(crate) fn lock_engine(&self) -> Result<Locked> {
        let path = self.engine().join(LOCK);
        let file = File::open(&path).map_err(|error| failed(&path, "cannot be opened", error))?;
        let locked = Locked::until(file, Instant::now() + ENGINE_CLOSES_MAX, &AtomicBool::new(false));
        let locked = locked.map_err(|error| failed(&path, "cannot be locked", error))?;
        locked.map_err(|file| held(&self.folder, holder_of(&file), Duration::ZERO))
    }

    /// The engine's folder.
    pub(crate) fn engine(&self) -> PathBuf {
        self.folder.join(ENGINE)
    }

    /// Of the folder of a store that was made to the end: which it is, and its layout; `None` for one that is new or was not.
    pub(crate) fn identity(&self) -> Result<Option<(Identity, u64)>> {
        if self.is_new {
            return Ok(None);
        }
        let path = self.folder.join(IDENTITY);
        let text = read_small(&path).map_err(|error| failed(&path, "cannot be read", error))?;
        let Some(text) = text else {
            let detail =
                format!("{} holds something, but no store: the file {IDENTITY:?} is missing", self.folder.display());
            return Err(Error::new(ErrorKind::Corrupt, detail));
        };
        match parse_identity(&path, &text)? {
            (identity, Made::Whole, layout) => Ok(Some((identity, layout))),
            (_, Made::Begun, _) => Ok(None),
            (_, Made::Restoring, _) => {
                let detail = format!("a restore into {} did not come to its end; restore again", self.folder.display());
                Err(Error::new(ErrorKind::Corrupt, detail))
            }
        }
    }

    /// A folder of this layout is of the newest from now on.
    pub(crate) fn renew(&self, identity: Identity, layout: u64) -> Result<()> {
        if layout == u64::from(VERSION) { Ok(()) } else { self.write_identity(identity, Made::Whole) }
    }

    /// Looks whether a restore may take the folder: it holds nothing, or what a restore before left.
    pub(crate) fn may_restore(&self) -> Result<()> {
        let path = self.folder.join(IDENTITY);
        let text = read_small(&path).map_err(|error| failed(&path, "cannot be read", error))?;
        match text.map(|text| parse_identity(&path, &text)).transpose()? {
            None | Some((_, Made::Begun | Made::Restoring, _)) => Ok(()),
            Some((_, Made::Whole, _)) => {
                let detail = format!(
                    "{} holds a store; restore into a folder that is not there, or empty",
                    self.folder.display()
                );
                Err(config(detail))
            }
        }
    }

    /// Begins to make a store here: what an earlier attempt left is removed. To be followed by [`finish`](Place::finish).
    pub(crate) fn begin(&self, identity: Identity, is_restore: bool) -> Result<()> {
        let engine = self.engine();
        self.write_identity(identity, if is_restore { Made::Restoring } else { Made::Begun })?;
        match fs::remove_dir_all(&engine) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed(&engine, "cannot be removed", error))
            }
            _ => Ok(()),
        }
    }

    /// The store is made to the end.
    pub(crate) fn finish(&self, identity: Identity) -> Result<()> {
        // The engine syncs what it makes, but not all the names of its folders. All names below are on disk before the store is told to be whole: those that no sync
        // has held may reach the disk in any order.
        let engine = self.engine();
        for folder in [&engine.join("keyspaces"), &engine, &self.folder] {
            sync_folder(folder)?;
        }
        // So are its own name and those above, of which any may be new: who opens a store that is whole syncs none of them.
        sync_names_above(&self.folder)?;
        self.write_identity(identity, Made::Whole)
    }

    /// Removes what was made so far, and the folder where it was not there before.
    pub(crate) fn abandon(self, with_folder: bool) {
        let is_gone = |removed: std::io::Result<()>| match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        // Where that fails, the folder still says that it is no store.
        let removed = is_gone(fs::remove_dir_all(self.engine()));
        let removed = removed.and_then(|()| is_gone(fs::remove_file(self.folder.join(STATE))));
        let removed = removed.and_then(|()| is_gone(fs::remove_file(self.folder.join(IDENTITY))));
        BEGUN.iter().for_each(|name| _ = fs::remove_file(self.folder.join(name)));
        if with_folder && removed.is_ok() {
            _ = fs::remove_file(self.folder.join(LOCK)).and_then(|()| fs::remove_dir(&self.folder));
        }
    }

    fn write_identity(&self, identity: Identity, made: Made) -> Result<()> {
        let Identity { store, incarnation, restores } = identity;
        let ready = MADE.iter().find(|(it, _)| *it == made).map_or("no", |(_, word)| word);
        let text = format!(
            "{MAGIC}\nversion {VERSION}\nstore {store:016x}\nincarnation {incarnation:016x}\nrestores {restores}\nready {ready}\n"
        );
        write_small(&self.folder.join(IDENTITY), &text, true)
    }

    /// What was noted when the store was last closed; `None` where that cannot be told.
    pub(crate) fn noted(&self) -> Option<Noted> {
        let text = read_small(&self.folder.join(STATE)).ok()??;
        Noted::parse(&text)
    }

    /// Notes how far the store is on disk. That need not be synced where there is an older note, which only knows less.
    pub(crate) fn note(&self, noted: &Noted, sync: bool) -> Result<()> {
        write_small(&self.folder.join(STATE), &noted.text(), sync)
    }

    /// Looks whether the engine's folder has what the engine would silently do without.
    pub(crate) fn look_over_engine(&self) -> Result<()> {
        let engine = self.engine();
        let gone = |path: PathBuf| {
            Err(Error::new(ErrorKind::Corrupt, format!("{} is missing: part of the store was deleted", path.display())))
        };
        for path in [engine.join("version"), engine.join("lock")] {
            if !path.is_file() {
                return gone(path);
            }
        }
        for keyspace in crate::versions::KEYSPACES {
            let current = engine.join("keyspaces").join(keyspace).join("current");
            if !current.is_file() {
                return gone(current);
            }
        }
        Ok(())
    }
}

impl Noted {
    /// As a file holds it.
    pub(crate) fn text(&self) -> String {
        let Identity { store, incarnation, restores } = self.identity;
        format!(
            "{MAGIC}\nstore {store:016x}\nincarnation {incarnation:016x}\nrestores {restores}\nsequence {}\njournal {}\n",
            self.sequence, self.journal
        )
    }

    /// From a file, `None` if it is damaged.
    pub(crate) fn parse(text: &str) -> Option<Noted> {
        let mut lines = checked(text)?.lines().filter(|line| *line != MAGIC);
        let identity = Identity {
            store: hex(lines.next()?, "store")?,
            incarnation: hex(lines.next()?, "incarnation")?,
            restores: decimal(lines.next()?, "restores")?,
        };
        let (sequence, journal) = (decimal(lines.next()?, "sequence")?, decimal(lines.next()?, "journal")?);
        Some(Noted { identity, sequence, journal })
    }
}

/// Makes the folder if there is none: true if it is empty.
fn prepare(folder: &Path) -> Result<bool> {
    let is_empty = is_empty(folder)?;
    if is_empty {
        fs::create_dir_all(folder).map_err(|error| failed(folder, "cannot be made", error))?;
    }
    Ok(is_empty)
}

/// True if the folder holds nothing, or is not there. Refuses what is no folder, or somebody else's.
pub(crate) fn is_empty(folder: &Path) -> Result<bool> {
    match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => {
            return Err(config(format!("{} is no folder; a durable store is one", folder.display())));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(failed(folder, "cannot be looked at", error)),
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, "cannot be listed", error))? {
        names.push(entry.map_err(|error| failed(folder, "cannot be listed", error))?.file_name());
    }
    if names.iter().any(|name| name == IDENTITY) {
        // Before anything is written: many programs have a file, or a folder, of that name.
        return is_ours(&folder.join(IDENTITY)).map(|()| false);
    }
    let lock = folder.join(LOCK);
    let text = numbers_in(&lock).map_err(|error| failed(&lock, "cannot be read", error))?;
    let may_be_ours = |name: &OsString| name == LOCK && text.is_some() || BEGUN.iter().any(|begun| name == begun);
    names.retain(|name| !may_be_ours(name));
    if names.is_empty() {
        let Some(store) = text.and_then(|text| store_in(&text)) else { return Ok(true) };
        let detail = format!(
            "{} was the store {store:016x}, of which no more than the file {LOCK:?} is left; restore a backup elsewhere, or remove that file to begin anew",
            folder.display()
        );
        return Err(Error::new(ErrorKind::Corrupt, detail));
    }
    if names.iter().all(|name| name == ENGINE || name == STATE) {
        let detail = format!("{} was a store, but its file {IDENTITY:?} is missing", folder.display());
        return Err(Error::new(ErrorKind::Corrupt, detail));
    }
    names.sort();
    names.truncate(3);
    let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
    Err(config(format!("{} is not empty and no durable store: it holds {}, …", folder.display(), names.join(", "))))
}

/// Refuses a file that begins as none of ours does.
fn is_ours(path: &Path) -> Result<()> {
    let text = read_small(path).map_err(|error| match path.is_dir() {
        true => not_ours(path),
        false => failed(path, "cannot be read", error),
    })?;
    match text {
        Some(text) if !text.starts_with(MAGIC) => Err(not_ours(path)),
        _ => Ok(()),
    }
}

fn not_ours(path: &Path) -> Error {
    config(format!("{} is no file of a durable store", path.display()))
}

/// What a file of nothing but numbers holds, such as a process id; also one that holds none yet, or of which a power cut left the length alone; and one that is not there.
fn numbers_in(path: &Path) -> std::io::Result<Option<String>> {
    match fs::metadata(path) {
        // Others may stand still when they are read.
        Ok(found) if !found.is_file() => return Ok(None),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let text = read_small(path)?.unwrap_or_default();
    Ok(Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'\n' | 0))))
}

/// The number of the store that the text of `lock` names.
fn store_in(text: &str) -> Option<u64> {
    text.lines().nth(1)?.parse().ok()
}

fn parse_identity(path: &Path, text: &str) -> Result<(Identity, Made, u64)> {
    let damaged = || Error::new(ErrorKind::Corrupt, format!("{} is damaged", path.display()));
    if !text.starts_with(MAGIC) {
        return Err(not_ours(path));
    }
    let text = checked(text).ok_or_else(damaged)?;
    let mut lines = text.lines().skip(1);
    let mut next = || lines.next().ok_or_else(damaged);
    let version: u64 = decimal(next()?, "version").ok_or_else(damaged)?;
    if !(u64::from(VERSION_MIN)..=u64::from(VERSION)).contains(&version) {
        let detail = format!("{} says layout {version}; this program knows {VERSION}", path.display());
        return Err(Error::new(ErrorKind::LayoutMismatch, detail));
    }
    let identity = Identity {
        store: hex(next()?, "store").ok_or_else(damaged)?,
        incarnation: hex(next()?, "incarnation").ok_or_else(damaged)?,
        restores: decimal(next()?, "restores").ok_or_else(damaged)?,
    };
    let ready = next()?.strip_prefix("ready ");
    let made = MADE.iter().find(|(_, word)| Some(*word) == ready).ok_or_else(damaged)?;
    Ok((identity, made.0, version))
}

/// The text without its last line, which is the checksum of the others.
fn checked(text: &str) -> Option<&str> {
    let end = text.trim_end_matches('\n').rfind('\n')? + 1;
    let (body, check) = text.split_at(end);
    (check == check_line(body)).then_some(body)
}

pub(crate) fn check_line(body: &str) -> String {
    format!("check {:016x}\n", xxh3_64(body.as_bytes()))
}

fn decimal(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()
}

fn hex(line: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(line.strip_prefix(name)?.strip_prefix(' ')?, 16).ok()
}

/// A small text file, `None` where there is none.
pub(crate) fn read_small(path: &Path) -> std::io::Result<Option<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(SMALL_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Replaces a small text file, with its checksum behind it.
pub(crate) fn write_small(path: &Path, body: &str, sync: bool) -> Result<()> {
    // Behind the whole name: witnesses of one stem each have a file of their own.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(body.as_bytes())?;
        file.write_all(check_line(body).as_bytes())?;
        if sync {
            file.sync_all()?;
        }
        fs::rename(&new, path)
    };
    write().map_err(|error| failed(path, "cannot be written", error))?;
    match path.parent().filter(|_| sync) {
        Some(folder) => sync_folder(folder),
        None => Ok(()),
    }
}

/// Syncs the folders that a folder's path goes through; but for those that we may not read.
fn sync_names_above(folder: &Path) -> Result<()> {
    // Where the whole path cannot be told, the part that was given.
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    for above in folder.ancestors().skip(1) {
        match sync_folder(above) {
            Err(error) if error.kind() != ErrorKind::Config => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> Result<()> {
    // What a relative path of one name is in.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| failed(folder, "cannot be synced", error))
}

/// The process that the text of `lock` names.
fn id_in(file: File) -> Option<u32> {
    let mut text = String::new();
    _ = file.take(SMALL_BYTES_MAX).read_to_string(&mut text);
    text.lines().next()?.trim().parse().ok()
}

/// The process that has locked a file, where the system tells.
fn holder_of(file: &File) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let locks = fs::read_to_string(LOCKS).ok()?;
    // `1: FLOCK ADVISORY WRITE 4242 08:01:1234 0 EOF`
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, id, at, ..] if at == place => id.parse().ok(),
            _ => None,
        }
    })
}

fn held(folder: &Path, holder: Option<u32>, wait: Duration) -> Error {
    let holder = holder.map_or_else(|| "another process".to_owned(), |id| format!("process {id}"));
    let waited = if wait.is_zero() { String::new() } else { format!(", and was for {wait:?}") };
    let detail = format!("{} is open in {holder}{waited}; one process at a time has a durable store", folder.display());
    Error::new(ErrorKind::Unavailable, detail)
}

fn failed(path: &Path, what: &str, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::Full,
        Io::PermissionDenied | Io::ReadOnlyFilesystem | Io::NotADirectory => ErrorKind::Config,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{} {what}: {error}", path.display())).source(error)
}

/// Of a folder in which a store is not to be made.
pub(crate) fn no_store(folder: &Path) -> Error {
    config(format!("{} holds no store, and none is to be made there: is the path right?", folder.display()))
}

fn config(detail: String) -> Error {
    Error::new(ErrorKind::Config, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_started_meanwhile_does_not_keep_the_folder_locked() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::lock(folder.path(), &Patience::default()).unwrap();
        assert!(Place::lock(folder.path(), &Patience::default()).is_err());
        // What it has of its parent's files until it becomes another program.
        let inherited = [&place.lock, place._whole.as_ref().unwrap()].map(|locked| locked.0.try_clone().unwrap());
        drop(place);
        Place::lock(folder.path(), &Patience::default()).unwrap();
        drop(inherited);
    }
}
