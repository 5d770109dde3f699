//! Backups of a moment, and stores made of them.

use std::io::{Read, Write};
use std::path::Path;

use bytes::Bytes;
use larder_core::{Key, Result};
use larder_dump::{DumpItem, DumpReader, DumpWriter, FileError, Head, Origin, Totals};

use crate::end::End;
use crate::engine::{Engine, Entries, Moment};
use crate::fault::Fault;
use crate::layout::{self, COMMIT_KEY, Commit, ITEM, Record, Shown};
use crate::list::damaged;
use crate::newest::Newest;
use crate::ops;
use crate::options::Options;
use crate::place::{Identity, Noted, Place};
use crate::store::{DurableStore, random};
use crate::witness::Witness;

/// Items that one part of a backup looks at, at the most.
const LOOKED_AT_MAX: usize = 10_000;
/// Bytes of one batch of a restore.
const BATCH_BYTES: usize = 8 << 20;

impl DurableStore {
    /// Writes all that the store holds at this moment as a [dump](larder_dump), while others read and write. What has expired is left out. Blocks for as long
    /// as the store is large; give it to a thread of its own. It is whole each time: the engine has no backups of what changed alone.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](larder_core::ErrorKind::Corrupt) where something is damaged; [`ErrorKind::Full`](larder_core::ErrorKind::Full) or [`ErrorKind::Unavailable`](larder_core::ErrorKind::Unavailable) where the dump cannot be written. What was written then
    /// has no end, so that nobody restores it.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let elsewhere = folder.path().join("restored");
    /// use larder_store_durable::Options;
    /// let store = Options::new(folder.path().join("store")).open()?;
    /// let (backup, totals) = store.backup(Vec::new(), &mut |_| ())?;
    /// assert_eq!(Options::new(elsewhere).restore(&backup[..], &mut |_| ())?, totals);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn backup<W: Write>(&self, mut out: W, tell: &mut dyn FnMut(Totals)) -> Result<(W, Totals)> {
        let mut parts = self.backup_in_parts()?;
        let failed = |error| FileError(error).of("the dump cannot be written").store(&*self.shared().name);
        while let Some(part) = parts.next(self)? {
            out.write_all(&part).map_err(failed)?;
            tell(parts.totals());
        }
        out.flush().map_err(failed)?;
        Ok((out, parts.totals()))
    }

    /// The same in parts, for whoever sends it on: of this moment, however long the parts are taken.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](larder_core::ErrorKind::Corrupt) where something is damaged.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let elsewhere = folder.path().join("restored");
    /// use larder_store_durable::Options;
    /// let store = Options::new(folder.path().join("store")).open()?;
    /// let (mut parts, mut backup) = (store.backup_in_parts()?, Vec::new());
    /// while let Some(part) = parts.next(&store)? {
    ///     backup.extend_from_slice(&part);
    /// }
    /// assert_eq!(Options::new(elsewhere).restore(&backup[..], &mut |_| ())?, parts.totals());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn backup_in_parts(&self) -> Result<BackupParts> {
        let shared = self.shared();
        let named = |fault: Fault| fault.error(&shared.name);
        let moment = shared.moment(&[ITEM], &[ITEM + 1]);
        let last = moment.get(COMMIT_KEY).map_err(named)?;
        let last = last.and_then(|bytes| Commit::decode(&bytes).ok());
        let last = last.ok_or_else(|| named(Fault::corrupt("the engine holds no commit record")))?;
        let Identity { store, incarnation, restores } = self.identity;
        let origin = Some(Origin { store, incarnation, restores, sequence: last.sequence });
        let writer = DumpWriter::new(Vec::new(), &Head { origin, ..Head::now(shared.name.as_str()) })?;
        let totals = writer.totals();
        let shown = Shown { now_ms: shared.time.now_ms(), generation: shared.generation_of(&moment).map_err(named)? };
        let wall_ms = shared.time.wall_ms();
        Ok(BackupParts { moment, shown, wall_ms, from: vec![ITEM], writer: Some(writer), totals })
    }
}

/// A backup that is taken part by part, of one moment; see [`DurableStore::backup_in_parts`]. What it is of is kept on disk until it is dropped.
pub struct BackupParts {
    moment: Moment,
    shown: Shown,
    /// What the wall clock said at that moment: the store's time may be another.
    wall_ms: u64,
    /// Where to go on.
    from: Vec<u8>,
    /// `None` once the dump has its end.
    writer: Option<DumpWriter<Vec<u8>>>,
    totals: Totals,
}

impl BackupParts {
    /// The next part, some 256 KiB, more only where an item has more; `None` after the last one. A part is empty where 10,000 items were looked at and did not fill one. `store` is the one that it is of.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](larder_core::ErrorKind::Corrupt) where something is damaged: the dump has no end then, so that nobody restores it.
    pub fn next(&mut self, store: &DurableStore) -> Result<Option<Vec<u8>>> {
        let Some(mut writer) = self.writer.take() else { return Ok(None) };
        let name = &store.shared().name;
        let (mut failed, mut last, mut looked_at) = (None, None, 0);
        let mut add = |engine_key: &[u8], bytes: Bytes| {
            let added = dumped(&engine_key[1..], &bytes, self.shown, self.wall_ms).map_err(|fault| fault.error(name));
            failed = added.and_then(|item| item.map_or(Ok(()), |item| writer.push(&item))).err();
            looked_at += 1;
            let goes_on = failed.is_none() && writer.get_mut().is_empty() && looked_at < LOOKED_AT_MAX;
            last = (!goes_on).then(|| engine_key.to_vec());
            goes_on
        };
        self.moment.scan(&self.from, &[ITEM + 1], &mut add).map_err(|fault| fault.error(name))?;
        failed.map_or(Ok(()), Err)?;
        self.totals = writer.totals();
        let Some(mut next) = last else {
            return writer.finish().map(|(part, _)| Some(part));
        };
        next.push(0);
        self.from = next;
        let part = std::mem::take(writer.get_mut());
        self.writer = Some(writer);
        Ok(Some(part))
    }

    /// How much was taken so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}

impl std::fmt::Debug for BackupParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupParts").field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// An item as a dump has it, with the end of its life by the wall clock; `None` if it is not shown.
fn dumped(key: &[u8], bytes: &Bytes, shown: Shown, wall_ms: u64) -> Result<Option<DumpItem>, Fault> {
    let record = Record::decode(key, bytes).map_err(|bad| damaged(key, bad))?;
    if !shown.has(&record) {
        return Ok(None);
    }
    let bad_key = |_| damaged(key, layout::Bad("its key has no valid length"));
    let key = Key::new(key.to_vec()).map_err(bad_key)?;
    let expiry_ms = record.end.map(|end| wall_ms.saturating_add(end.ms().saturating_sub(shown.now_ms)));
    Ok(Some(DumpItem { key, flags: record.flags, expiry_ms, value: record.value }))
}

impl Options {
    /// Makes a store of a [backup](DurableStore::backup), or of a dump of any other store, in a folder that is empty or not there. It is another incarnation: cas
    /// tokens of the one that was backed up are good for nothing here, and structures whose own figures went further say `RolledBack`. A
    /// [witness](Options::witness) takes it for what it is: where it has seen this store restored as often before, as from the same backup or an older one, if it is given here, too.
    ///
    /// What was made until an error is removed; where the process ends in the middle, the folder is no store until it is restored into again.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](larder_core::ErrorKind::Config) for a folder that holds a store, or something else; [`ErrorKind::Corrupt`](larder_core::ErrorKind::Corrupt) for a dump that is damaged or was cut short, and for a witness that is damaged;
    /// [`ErrorKind::BadInput`](larder_core::ErrorKind::BadInput) for a value that no write puts there: key and value have over [`value_bytes_max`](Options::value_bytes_max) and 250 bytes.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// use larder_dump::{DumpWriter, Head};
    /// let (dump, _) = DumpWriter::new(Vec::new(), &Head::now("nothing"))?.finish()?;
    /// let totals = larder_store_durable::Options::new(folder.path()).restore(&dump[..], &mut |_| ())?;
    /// assert_eq!(totals.items, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn restore<R: Read>(self, input: R, tell: &mut dyn FnMut(Totals)) -> Result<Totals> {
        self.check()?;
        let name = format!("file:{}", self.folder.display());
        let seen = match self.witness.clone().map(Witness::new) {
            Some(witness) => witness.saw().map_err(|error| error.store(&name))?,
            None => None,
        };
        let was_there = self.folder.exists();
        let mut reader = DumpReader::new(input)?;
        let mut place = Place::lock(&self.folder, &self.patience).map_err(|error| error.store(&name))?;
        place.may_restore().map_err(|error| error.store(&name))?;
        let origin = reader.head().origin;
        let store = origin.map_or_else(random, |origin| Ok(origin.store))?;
        // The witness of this very store may have seen more restores, of this or of a later backup.
        let seen = seen.filter(|seen| seen.store == store).map(|seen| seen.restores);
        let before = origin.map(|origin| origin.restores).max(seen);
        let restores = before.map_or(0, |before| before.saturating_add(1));
        let identity = Identity { store, incarnation: random()?, restores };
        let done = place
            .begin(identity, true)
            .and_then(|()| self.fill(&place.engine(), identity, &mut reader, tell))
            .and_then(|noted| place.note(&noted, true))
            .and_then(|()| place.finish(identity));
        match done {
            Ok(()) => {
                place.name_lock(identity);
                Ok(reader.totals())
            }
            Err(error) => {
                place.abandon(!was_there);
                Err(error.store(&name))
            }
        }
    }

    /// Writes the items of a dump into a new engine: how far it is on disk then.
    fn fill<R: Read>(
        &self,
        folder: &Path,
        identity: Identity,
        reader: &mut DumpReader<R>,
        tell: &mut dyn FnMut(Totals),
    ) -> Result<Noted> {
        let plain = |fault: Fault| fault.error("");
        let engine = Engine::open(folder, true, self.cache_bytes).map_err(plain)?;
        let mut journal = Newest::find(folder.to_owned(), |journal| engine.follow(journal)).map_err(plain)?;
        let time_ms = u64::try_from(self.clock.wall().as_millis()).unwrap_or(0);
        // A server gives tokens away as bare numbers: those of the store that was backed up are to fit none of these. Of 52 bits they are whole in a double, too.
        let cas_limit = identity.incarnation >> 12;
        let mut commit = Commit { store: identity.incarnation, time_ms, cas_limit, ..Commit::default() };
        let mut entries = engine.entries();
        while let Some(items) = reader.next_block()? {
            for item in items {
                commit.cas_limit += 1;
                self.add(&mut entries, item, commit.cas_limit)?;
                if entries.bytes >= BATCH_BYTES {
                    let full = std::mem::replace(&mut entries, engine.entries());
                    commit = engine.commit(full, next(commit), false).map_err(plain)?;
                    if journal.advance(|journal| engine.follow(journal)).map_err(plain)? {
                        // A file that is held open takes room on the disk after the engine has removed it.
                        engine.sync().map_err(plain)?;
                        engine.forget_earlier();
                    }
                }
            }
            tell(reader.totals());
        }
        commit = engine.commit(entries, next(commit), true).map_err(plain)?;
        // Behind all of it stands that it is on disk: what is damaged then is no write that a crash cut short.
        let says_so = Commit { synced: commit.sequence, ..next(commit) };
        let sequence = engine.commit(engine.entries(), says_so, true).map_err(plain)?.sequence;
        Ok(Noted { identity, sequence, journal: journal.number() })
    }

    fn add(&self, entries: &mut Entries, item: DumpItem, cas: u64) -> Result<()> {
        // As a write is: what a store has taken, its backup gives back.
        let checked = ops::check_value(&item.value, item.key.as_bytes().len(), self.item_bytes_max());
        checked.map_err(|error| error.key(&item.key))?;
        let DumpItem { key, flags, expiry_ms, value } = item;
        let end = expiry_ms.map(End::at);
        entries.add_item(key.as_bytes(), Some(&Record { flags, end, cas, value, ..Record::default() }));
        Ok(())
    }
}

fn next(commit: Commit) -> Commit {
    Commit { sequence: commit.sequence + 1, ..commit }
}
