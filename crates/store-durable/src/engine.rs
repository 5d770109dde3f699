//! The engine, `fjall`: reads, scans, and batches that carry their [`Commit`]. What is the engine's has its name here, and in [`tables`](crate::tables), which looks its files over.
//!
//! What is relied on (read in its source, 3.1.13): a batch is written to the journal, then synced if asked to, then put where readers see
//! it, all under the journal's lock; so no reader sees a batch that is not yet as durable as was asked, but where an earlier sync is heard of only then that had failed. Each block of a table has a checksum that
//! every read verifies. After a write or a sync that failed the engine refuses all writes, and reads go on; but where one of its own threads met the failure, it does so a moment late
//! ([`told`](crate::told)).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable,
};

use crate::fault::{Fault, Harm};
use crate::layout::{self, COMMIT_KEY, Commit, Content, GENERATION_KEY, Generations, Record};
use crate::room::Begun;
use crate::tables::{self, Tables};
use crate::told::Told;
use crate::versions::KEYSPACES;

/// The keyspace's name.
const KEYSPACE: &str = "larder";
/// Threads that write tables and merge them.
const WORKERS: usize = 2;

/// What the engine's tables have, at the most, unless told otherwise.
const TABLE_BYTES: u64 = 64 << 20;
/// Tables that one merge of two levels takes: one, those of ten times as large a level that it overlaps, and one at each end.
const MERGE_TABLES: u64 = 13;

/// Tables that nobody has merged yet, at the most, where more of them are written to have them merged: the engine merges four, and slows its writers down at twenty.
const FRESH_TABLES_MAX: usize = 8;

/// How long someone who waits for the workers sleeps between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// An open engine.
pub(crate) struct Engine {
    // In this order: the keyspace is a handle of the database.
    keyspace: Keyspace,
    database: Database,
    tables: Arc<Tables>,
    told: Told,
}

/// A moment of the engine, kept while others write.
pub(crate) struct Moment {
    /// What stands before the engine.
    front: BTreeMap<Vec<u8>, Option<Bytes>>,
    snapshot: fjall::Snapshot,
    keyspace: Keyspace,
    tables: Arc<Tables>,
}

/// Entries that are written together or not at all.
pub(crate) struct Entries {
    batch: OwnedWriteBatch,
    keyspace: Keyspace,
    content: Content,
    /// Bytes of keys and values.
    pub(crate) bytes: usize,
    /// Where an engine key, and a value, is put together.
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Engine {
    /// Makes a new engine in a folder that is not there, or opens the one in it.
    pub(crate) fn open(folder: &Path, is_new: bool, cache_bytes: u64) -> Result<Engine, Fault> {
        let open = || {
            let database = Database::builder(folder)
                .journal_compression(CompressionType::None)
                .manual_journal_persist(true)
                .worker_threads(WORKERS)
                .cache_size(cache_bytes)
                .open()?;
            if !is_new && !database.keyspace_exists(KEYSPACE) {
                return Ok(None);
            }
            let keyspace = database.keyspace(KEYSPACE, options)?;
            if is_new {
                database.persist(PersistMode::SyncAll)?;
            }
            Ok(Some(Engine { keyspace, database, tables: Arc::default(), told: Told::default() }))
        };
        // It panics on some of what it does not expect in its folder.
        match catch_unwind(AssertUnwindSafe(open)) {
            Ok(Ok(Some(engine))) => Ok(engine),
            Ok(Ok(None)) => Err(Fault::corrupt("the engine does not know its keyspace any more")),
            Ok(Err(error)) => Err(fault(error)),
            Err(_) => Err(Fault::corrupt("the engine cannot make sense of its folder (it panicked on opening)")),
        }
    }

    /// The value under an engine key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let named = |error| self.tables.named(&self.keyspace, fault(error));
        Ok(self.keyspace.get(key).map_err(named)?.map(Bytes::from_owner))
    }

    /// The commit record of the last batch.
    pub(crate) fn last_commit(&self) -> Result<Option<Commit>, Fault> {
        self.get(COMMIT_KEY)?.map(|bytes| Commit::decode(&bytes)).transpose().map_err(|bad| Fault::corrupt(bad.0))
    }

    /// Which items there are.
    pub(crate) fn generations(&self) -> Result<Generations, Fault> {
        decoded(self.get(GENERATION_KEY)?)
    }

    /// The commit record as the tables have it, without what the journal has beyond them: `None` where the tables go at least up to
    /// the batch that the engine numbered `before`.
    pub(crate) fn commit_in_tables(&self, before: u64) -> Result<Option<Option<Commit>>, Fault> {
        commit_in_tables(&self.keyspace.tree, before)
    }

    /// The same of the tables in a folder that no engine has open: its workers write to them as soon as one has.
    pub(crate) fn commit_in_closed_tables(folder: &Path, before: u64) -> Result<Option<Option<Commit>>, Fault> {
        let open = || {
            let numbers = lsm_tree::SequenceNumberCounter::default();
            let [_, ours] = KEYSPACES;
            lsm_tree::Config::new(folder.join("keyspaces").join(ours), numbers.clone(), numbers).open()
        };
        match catch_unwind(AssertUnwindSafe(open)) {
            Ok(Ok(tree)) => commit_in_tables(&tree, before),
            Ok(Err(error)) => Err(fault(error.into())),
            Err(_) => Err(Fault::corrupt("the engine cannot make sense of its tables (it panicked on opening them)")),
        }
    }

    /// Calls `tell` with the entries from `from` on (and with it), before `to`, in order, until it says no.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], tell: &mut dyn FnMut(&[u8], Bytes) -> bool) -> Result<(), Fault> {
        tell_all(self.keyspace.range(from..to), tell).map_err(|fault| self.tables.named(&self.keyspace, fault))
    }

    /// This moment, behind what stands in front.
    pub(crate) fn moment(&self, front: BTreeMap<Vec<u8>, Option<Bytes>>) -> Moment {
        Moment {
            front,
            snapshot: self.database.snapshot(),
            keyspace: self.keyspace.clone(),
            tables: self.tables.clone(),
        }
    }

    /// A batch without entries.
    pub(crate) fn entries(&self) -> Entries {
        let batch = OwnedWriteBatch::with_capacity(self.database.clone(), 64);
        let (keyspace, content) = (self.keyspace.clone(), Content::default());
        Entries { batch, keyspace, content, bytes: 0, key: Vec::new(), value: Vec::new() }
    }

    /// What becomes of the writes of this journal file is heard from now on. To be called before what is written to it is not synced. False where it is gone.
    pub(crate) fn follow(&self, journal: &Path) -> Result<bool, Fault> {
        self.told.follow(journal)
    }

    /// What was heard.
    #[cfg(test)]
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }

    /// Journal files but the one that was followed last are whole and on disk.
    pub(crate) fn forget_earlier(&self) {
        self.told.forget_earlier();
    }

    /// Writes a batch and its commit record, synced or not. After an error it may have been written or not, and nothing can be written any more.
    pub(crate) fn commit(&self, entries: Entries, commit: Commit, sync: bool) -> Result<Commit, Fault> {
        let Entries { mut batch, keyspace, content, .. } = entries;
        let commit = Commit { content: content.sum(), items: content.items, ..commit };
        batch.insert(&keyspace, COMMIT_KEY, commit.encode());
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        batch.durability(Some(mode)).commit().map_err(fault)?;
        if sync {
            self.told.check()?;
        }
        Ok(commit)
    }

    /// Has all that was committed so far on disk.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        self.database.persist(PersistMode::SyncData).map_err(fault)?;
        self.told.check()
    }

    /// Has what is in memory written to tables.
    pub(crate) fn write_tables(&self) -> Result<(), Fault> {
        self.keyspace.rotate_memtable().map(|_| ()).map_err(fault)
    }

    /// Writes what is in memory to tables and waits for it.
    pub(crate) fn settle(&self) -> Result<(), Fault> {
        self.write_tables()?;
        while self.keyspace.tree.sealed_memtable_count() > 0 {
            self.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// An error once the engine could not write: a worker whose write of a table failed has ended, nobody writes the rest, and whoever commits may wait for ever for
    /// room in memory.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.database.persist(PersistMode::Buffer).map_err(fault)
    }

    /// Reads every table from end to end, and holds it against its checksums: which of them match all of those in it, and not the one that was noted of the file.
    pub(crate) fn verify_tables(&self, tell: &mut dyn FnMut(u64)) -> Result<Vec<PathBuf>, Fault> {
        tables::verify(&self.keyspace, tell)
    }

    /// How many entries there are, about.
    pub(crate) fn entries_about(&self) -> u64 {
        u64::try_from(self.keyspace.approximate_len()).unwrap_or(u64::MAX)
    }

    /// Bytes in memory that tables are to be written of, at the most: they count with what they take in memory.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.database.write_buffer_size()
    }

    /// What the engine is still to write of what it has, with the largest merge of tables that may come.
    ///
    /// It merges (by levels) all tables that were just written with those of the first level that has any and that they overlap; and a few tables of a level with those
    /// of the next that they overlap, as a rule some ten of each one, beside the former where they are two levels further down.
    ///
    /// A merge that is running counts whole, though some of what it writes is on the disk already, and no longer free: up to twice, as it ends. So a store may be `Full` for as long as a merge runs, rather than
    /// be without room for the next.
    pub(crate) fn begun(&self) -> Begun {
        // In this order: what becomes a table in between counts twice.
        let unwritten_bytes = self.unwritten_bytes();
        let version = self.keyspace.tree.current_version();
        let mut sizes = version.iter_levels().map(|level| level.size());
        let fresh = sizes.next().unwrap_or(0);
        let levels: Vec<u64> = sizes.filter(|bytes| *bytes > 0).collect();
        let next_merge_bytes = merge_bytes(fresh, &levels[..levels.len().min(1)]);
        Begun { unwritten_bytes, merge_bytes: merge_bytes(fresh, &levels), next_merge_bytes }
    }

    /// Has what is in memory written to tables, where a merge of those may give room back: something is in memory, or was just written, that removes. True where another batch, however small, is to be written
    /// to tables, too: the engine merges only once there are some of them.
    pub(crate) fn write_removals(&self) -> Result<bool, Fault> {
        let version = self.keyspace.tree.current_version();
        let fresh = || version.level(0).into_iter().flat_map(|level| level.iter()).flat_map(|run| run.iter());
        // A batch without items is one entry.
        let gives_room = self.keyspace.tree.active_memtable().len() > 1 || fresh().any(|it| it.tombstone_count() > 0);
        if !gives_room || fresh().count() >= FRESH_TABLES_MAX {
            return Ok(false);
        }
        self.write_tables().map(|()| true)
    }

    /// Bytes that the engine's files take.
    pub(crate) fn disk_bytes(&self) -> Result<u64, Fault> {
        self.database.disk_space().map_err(fault)
    }
}

impl Moment {
    /// The value under an engine key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        if let Some(value) = self.front.get(key) {
            return Ok(value.clone());
        }
        let named = |error| self.tables.named(&self.keyspace, fault(error));
        Ok(self.snapshot.get(&self.keyspace, key).map_err(named)?.map(Bytes::from_owner))
    }

    /// Which items there are.
    pub(crate) fn generations(&self) -> Result<Generations, Fault> {
        decoded(self.get(GENERATION_KEY)?)
    }

    /// True if there is something under an engine key.
    pub(crate) fn has(&self, key: &[u8]) -> Result<bool, Fault> {
        if let Some(value) = self.front.get(key) {
            return Ok(value.is_some());
        }
        let named = |error| self.tables.named(&self.keyspace, fault(error));
        self.snapshot.contains_key(&self.keyspace, key).map_err(named)
    }

    /// As [`Engine::scan`], of this moment.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], tell: &mut dyn FnMut(&[u8], Bytes) -> bool) -> Result<(), Fault> {
        if from >= to {
            return Ok(());
        }
        let mut front = self.front.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))).peekable();
        let mut goes_on = true;
        let mut merge = |key: &[u8], bytes: Bytes| {
            while let Some((before, value)) = front.next_if(|(it, _)| it.as_slice() < key) {
                goes_on = value.as_ref().is_none_or(|value| tell(before, value.clone()));
                if !goes_on {
                    return false;
                }
            }
            goes_on = match front.next_if(|(it, _)| it.as_slice() == key) {
                Some((_, value)) => value.as_ref().is_none_or(|value| tell(key, value.clone())),
                None => tell(key, bytes),
            };
            goes_on
        };
        tell_all(self.snapshot.range(&self.keyspace, from..to), &mut merge)
            .map_err(|fault| self.tables.named(&self.keyspace, fault))?;
        for (key, value) in front {
            goes_on = goes_on && value.as_ref().is_none_or(|value| tell(key, value.clone()));
        }
        Ok(())
    }
}

fn decoded(generations: Option<Bytes>) -> Result<Generations, Fault> {
    let Some(bytes) = generations else { return Ok(Generations::default()) };
    Generations::decode(&bytes).map_err(|bad| Fault::corrupt(bad.0))
}

fn tell_all(entries: fjall::Iter, tell: &mut dyn FnMut(&[u8], Bytes) -> bool) -> Result<(), Fault> {
    for entry in entries {
        let (key, value) = entry.into_inner().map_err(fault)?;
        if !tell(&key, Bytes::from_owner(value)) {
            break;
        }
    }
    Ok(())
}

impl Entries {
    /// What they take in the journal, at the most.
    pub(crate) fn journal_bytes_max(&self) -> usize {
        // An entry has 21 bytes before its key; the batch 26, and its commit record.
        self.bytes + self.batch.len() * 24 + 256
    }

    /// Adds an entry; `None` removes it.
    pub(crate) fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.content.add(key, value);
        self.bytes += key.len() + value.map_or(0, <[u8]>::len);
        match value {
            Some(value) => self.batch.insert(&self.keyspace, key, value),
            None => self.batch.remove(&self.keyspace, key),
        }
    }

    /// Adds the bytes of an item's record, and notes the end of its life where it has one; `None` removes it.
    pub(crate) fn add_bytes(&mut self, key: &[u8], value: Option<&[u8]>) {
        let mut engine_key = std::mem::take(&mut self.key);
        layout::put_item_key(key, &mut engine_key);
        self.add(&engine_key, value);
        if let Some(end) = value.and_then(Record::end_of) {
            layout::put_expiry_key(end, key, &mut engine_key);
            self.add(&engine_key, Some(&[]));
        }
        self.key = engine_key;
    }

    /// Adds what an item is, and notes the end of its life where it has one; `None` removes it.
    pub(crate) fn add_item(&mut self, key: &[u8], record: Option<&Record>) {
        let (mut engine_key, mut value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        layout::put_item_key(key, &mut engine_key);
        self.add(&engine_key, record.map(|record| record.put(key, &mut value)));
        if let Some(end) = record.and_then(|record| record.end) {
            layout::put_expiry_key(end, key, &mut engine_key);
            self.add(&engine_key, Some(&[]));
        }
        (self.key, self.value) = (engine_key, value);
    }
}

fn commit_in_tables(tree: &impl AbstractTree, before: u64) -> Result<Option<Option<Commit>>, Fault> {
    if tree.get_highest_persisted_seqno().is_some_and(|highest| highest >= before) {
        return Ok(None);
    }
    let bytes = tree.get(COMMIT_KEY, before).map_err(|error| fault(error.into()))?;
    let commit = bytes.map(|bytes| Commit::decode(&bytes)).transpose().map_err(|bad| Fault::corrupt(bad.0))?;
    Ok(Some(commit))
}

/// The largest merge that may come: of tables that were just written, so many bytes, and those of the levels that have any.
fn merge_bytes(fresh: u64, levels: &[u64]) -> u64 {
    let first = fresh.saturating_add(levels.first().copied().unwrap_or(0));
    let deeper = levels.iter().sum::<u64>().min(MERGE_TABLES * TABLE_BYTES);
    match levels.len() {
        0 | 1 => first,
        2 => first.max(deeper),
        _ => first.saturating_add(deeper),
    }
}

fn options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
}

fn fault(error: fjall::Error) -> Fault {
    use fjall::Error;
    let io = |error: std::io::Error| Fault::io("the engine could not read or write", error);
    match error {
        Error::Io(error) | Error::Storage(fjall::LsmError::Io(error)) => io(error),
        Error::Poisoned => {
            Fault { harm: Harm::Unavailable, detail: "the engine refuses writes since one failed".to_owned() }
        }
        Error::Locked => {
            Fault { harm: Harm::Unavailable, detail: "the engine's folder is locked by another process".to_owned() }
        }
        Error::InvalidVersion(_) => {
            Fault::corrupt("the engine's file version is damaged: it names no format that the engine knows")
        }
        other => Fault { harm: Harm::Corrupt, detail: format!("the engine found its files damaged: {other:?}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_takes_what_is_fresh_and_the_first_level_or_some_tables_of_two_levels_or_both() {
        assert_eq!(merge_bytes(0, &[]), 0);
        assert_eq!(merge_bytes(5, &[]), 5);
        assert_eq!(merge_bytes(5, &[7]), 12);
        assert_eq!(merge_bytes(5, &[7, 2]), 12);
        assert_eq!(merge_bytes(5, &[7, 60]), 67, "no more than they have");
        assert_eq!(merge_bytes(5, &[7, 1 << 40]), 13 * (64 << 20));
        assert_eq!(merge_bytes(5, &[7, 60, 1 << 40]), 12 + 13 * (64 << 20));
    }
}
