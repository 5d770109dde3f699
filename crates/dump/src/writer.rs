//! Writing a dump.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};

use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_128;

use crate::DumpReader;
use crate::format::{
    BLOCK_BYTES, BLOCK_BYTES_MAX, DumpItem, END, END_BYTES, HEAD, Head, ITEMS, MAGIC, Origin, PREFIX_BYTES,
    TOTALS_BYTES, Totals, block, io_error,
};

/// Writes a dump, block by block. One that is not [`finish`](DumpWriter::finish)ed is cut short, and its reader says so.
///
/// ```
/// use larder_core::Key;
/// use larder_dump::{DumpItem, DumpReader, DumpWriter, Head};
/// let mut file = Vec::new();
/// let mut writer = DumpWriter::new(&mut file, &Head::now("a test"))?;
/// let item = DumpItem { key: Key::new("k")?, flags: 7, expiry_ms: None, value: "v".into() };
/// writer.push(&item)?;
/// writer.finish()?;
/// let mut reader = DumpReader::new(&file[..])?;
/// assert_eq!(reader.head().source, "a test");
/// assert_eq!(reader.next_block()?, Some(vec![item]));
/// assert_eq!(reader.next_block()?, None);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DumpWriter<W: Write> {
    out: W,
    /// The block that is being gathered.
    body: Vec<u8>,
    /// Its number.
    number: u64,
    totals: Totals,
}

/// A dump that is gone on with.
#[derive(Debug)]
pub struct Resumed {
    /// Writes behind what there is.
    pub writer: DumpWriter<File>,
    /// [Fingerprints](DumpWriter::fingerprint) of the keys that are in it.
    pub keys: HashSet<u128>,
    /// What it is of.
    pub head: Head,
}

impl<W: Write> DumpWriter<W> {
    /// Begins a dump.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] where it cannot be written.
    pub fn new(mut out: W, head: &Head) -> Result<DumpWriter<W>> {
        let begun = out.write_all(MAGIC).and_then(|()| out.write_all(&block(0, HEAD, &head.encode())));
        begun.map_err(|error| io_error("the dump cannot be written", error))?;
        Ok(DumpWriter { out, body: Vec::new(), number: 1, totals: Totals::default() })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a value over 128 MiB; those of [`new`](DumpWriter::new).
    pub fn push(&mut self, item: &DumpItem) -> Result<()> {
        if item.bytes() > BLOCK_BYTES_MAX - BLOCK_BYTES {
            let detail = format!("an item has {} bytes; a dump takes {}", item.bytes(), BLOCK_BYTES_MAX - BLOCK_BYTES);
            return Err(Error::new(ErrorKind::BadInput, detail).key(&item.key));
        }
        item.encode(&mut self.body)?;
        self.totals.add(item);
        if self.body.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    /// How much was added so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What it writes to.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Writes what was gathered as a block.
    fn flush(&mut self) -> Result<()> {
        if self.body.is_empty() {
            return Ok(());
        }
        let block = block(self.number, ITEMS, &self.body);
        self.body.clear();
        self.number += 1;
        self.out.write_all(&block).map_err(|error| io_error("the dump cannot be written", error))
    }

    /// Ends the dump; gives back what it was written to.
    ///
    /// # Errors
    /// Those of [`new`](DumpWriter::new).
    pub fn finish(mut self) -> Result<(W, Totals)> {
        self.flush()?;
        let end = block(self.number, END, &self.totals.encode());
        let written = self.out.write_all(&end).and_then(|()| self.out.flush());
        written.map_err(|error| io_error("the dump cannot be written", error))?;
        Ok((self.out, self.totals))
    }
}

/// Why a dump is not gone on with that was begun of another store: the source of such an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherStore {
    /// What it was begun of.
    pub begun: String,
    /// What is here.
    pub here: String,
}

impl OtherStore {
    /// True of an error that says so.
    ///
    /// ```
    /// use larder_dump::OtherStore;
    /// let other = OtherStore { begun: "one".to_owned(), here: "another".to_owned() };
    /// assert!(OtherStore::is_why(&other.into()));
    /// ```
    pub fn is_why(error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|source| source.is::<OtherStore>())
    }
}

impl std::fmt::Display for OtherStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OtherStore { begun, here } = self;
        write!(f, "the dump was begun of {begun}, and this is {here}: items of both would be in it")
    }
}

impl std::error::Error for OtherStore {}

impl From<OtherStore> for Error {
    fn from(other: OtherStore) -> Error {
        Error::new(ErrorKind::BadInput, other.to_string()).source(other)
    }
}

impl DumpWriter<File> {
    /// What a key is known by in [`Resumed::keys`].
    pub fn fingerprint(key: &[u8]) -> u128 {
        xxh3_128(key)
    }

    /// Goes on with a dump that was cut short: what is whole of it stays, the rest is cut off: no more than the longest block has (128 MiB and a quarter),
    /// since a length of more is damaged. It takes some 40 bytes of memory a key.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a file that is no dump, or is damaged before its end; [`ErrorKind::BadInput`] for one that has its end, for one of another moment than `origin`
    /// (`None`: of none, as an export is), or of another store than `store` tells ([`OtherStore`], by [`Head::is_of_store_of`]; `None`: of any), whose items do not belong together; and for one that
    /// another process has locked, as this one does from now on. The file is left as it is.
    pub fn resume(mut file: File, origin: Option<Origin>, store: Option<&Head>) -> Result<Resumed> {
        let failed = |error| io_error("the dump cannot be gone on with", error);
        // A file system without locks has none to hold.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::new(ErrorKind::BadInput, "another process is writing the dump"));
        }
        let copy = file.try_clone().map_err(failed)?;
        let mut reader = DumpReader::new(BufReader::new(copy))?;
        if reader.head().origin != origin {
            let detail = format!(
                "the dump is of {}, and a backup of another moment than this would be: make a new one",
                Shown(reader.head().source.as_bytes())
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        if let Some(here) = store.filter(|here| !here.is_of_store_of(reader.head())) {
            return Err(OtherStore { begun: reader.head().shown(), here: here.shown() }.into());
        }
        let (mut keys, mut totals) = (HashSet::new(), Totals::default());
        loop {
            match reader.next_block() {
                Ok(Some(items)) => items.iter().for_each(|item| {
                    keys.insert(DumpWriter::fingerprint(item.key.as_bytes()));
                    totals.add(item);
                }),
                Ok(None) => {
                    let detail =
                        format!("the dump is whole, with {} items: there is nothing to go on with", totals.items);
                    return Err(Error::new(ErrorKind::BadInput, detail));
                }
                // A length that is damaged reaches past the end, too.
                Err(_) if reader.is_cut_short() && has_end(&mut file).map_err(failed)? => {
                    return Err(reader.damaged("a block is longer than what is left, and yet the dump has its end"));
                }
                Err(_) if reader.is_cut_short() => break,
                Err(error) => return Err(error),
            }
        }
        let end = reader.whole_bytes();
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
        let writer = DumpWriter { out: file, body: Vec::new(), number: reader.blocks(), totals };
        Ok(Resumed { writer, keys, head: reader.head().clone() })
    }
}

/// True if a file's last bytes are a dump's last block, by its kind and length.
fn has_end(file: &mut File) -> std::io::Result<bool> {
    let mut last = [0; END_BYTES];
    if file.seek(SeekFrom::End(0))? < END_BYTES as u64 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-(END_BYTES as i64)))?;
    file.read_exact(&mut last)?;
    let length = (TOTALS_BYTES as u32).to_le_bytes();
    Ok(last[0] == END && last[1..PREFIX_BYTES] == length)
}
