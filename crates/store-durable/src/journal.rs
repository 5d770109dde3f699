//! The engine's journal, looked over before the engine opens it.
//!
//! The engine cuts its journal at the first record that it cannot decode, whatever follows, and says nothing; and a batch's number lies
//! outside its checksum. So each of our batches carries a [`Commit`], and this reads every journal file first:
//!
//! - Batches must count on without a gap, over all files, and the engine's numbers must rise.
//! - A file that was closed (all but the newest) must be whole: the engine syncs it before it begins the next.
//! - What cannot be read at the end of the newest file is a torn tail: a write that a crash cut short. It is cut off, unless a valid
//!   batch stands behind it that says the missing one was on disk: then the file is damaged, and nothing is changed.
//! - What is there, and was not known to be on disk, is written again and synced before anybody sees it: a system whose sync failed shows what it never wrote,
//!   and says of the next sync that all is well; and after a crash of the process alone nobody has synced it.
//! - Where the newest file ends before the tables, and holds all that those know to have been on disk, it is taken for one of which a sync had failed before the power was cut: what the tables hold is
//!   whole up to their last batch, and a new journal is begun ([`begin_anew`]).
//! - The first batch of a file is on disk before the second is written ([`Newest`](crate::newest::Newest)), at every setting: where the first cannot be read and others
//!   follow, the file is damaged.
//!
//! The format is the engine's (fjall 3): a batch is `1 items(4) number(8)`, then for each entry `2 type(1) compression(1) keyspace(8)
//! key-length(2) value-length(4) stored-length(4) key value`, then `3 xxh3-64-of-the-entries(8) "FJL" 3`, all little-endian. A new file is 64 MiB of zeros.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::fault::Fault;
use crate::layout::{COMMIT_BYTES, COMMIT_KEY, Commit, Content};
use crate::newest::is_gone;
use crate::versions::KEYSPACES;

const TAG_BATCH: u8 = 1;
const TAG_ENTRY: u8 = 2;
const TAG_END: u8 = 3;
const TRAILER: [u8; 4] = *b"FJL\x03";
const TYPE_VALUE: u8 = 0;
const TYPE_REMOVED: u8 = 1;
/// The only keyspace there is: the engine counts from 1.
const KEYSPACE_ID: u64 = 1;
/// Batches whose engine number is that far beyond the last one's are not believed.
const NUMBER_STEP_MAX: u64 = 1 << 32;
/// No batch is shorter: its own 26 bytes, and its commit record with key and head.
const BATCH_BYTES_MIN: u64 = 100;
/// A file that is longer is followed by another when the engine writes its next table.
const FULL_BYTES: u64 = 64_000_000;
/// What is behind a bad record is read no more often than this, on the whole.
const SEARCH_MAX: u64 = 8;
/// Before a batch's entries: what it is, how many there are, and its number.
const BATCH_HEAD_BYTES: usize = 1 + 4 + 8;
/// Before an entry's key.
const ENTRY_HEAD_BYTES: usize = 3 + 8 + 2 + 4 + 4;
/// How much is read and searched at once behind a bad record.
const BUFFER_BYTES: usize = 256 * 1024;

/// What the journal holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The first batch: its commit record and the engine's number.
    pub(crate) first: Option<(Commit, u64)>,
    /// The last batch.
    pub(crate) last: Option<(Commit, u64)>,
    /// Bytes of a torn tail that were cut off, most of the zeros behind it left out.
    pub(crate) torn_bytes: u64,
    /// The newest file's number.
    pub(crate) newest: u64,
    /// The store's incarnation.
    store: u64,
    /// Where the last batch of the newest file ends.
    newest_end: u64,
    /// The last batch that is known to be on disk.
    on_disk: u64,
}

impl Found {
    /// False if a whole file may be missing behind the newest: one that is so long that the engine would have begun the next.
    pub(crate) fn lacks_no_file(&self) -> bool {
        self.newest_end <= FULL_BYTES
    }
}

/// A batch as it stands in a file.
struct Frame {
    number: u64,
    commit: Commit,
}

/// Why there is no batch at some place.
enum Stop {
    /// The file ends here, or holds zeros from here on.
    End,
    /// What is here is no whole batch.
    Bad(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Stop::Bad("it ends in the middle of a batch"),
            _ => Stop::Io(error),
        }
    }
}

/// Reads every journal file in the engine's folder, of the incarnation `store`. If told to `repair`, it cuts a torn tail off the newest, and has what is left of it on disk; up to batch
/// `on_disk` it is known to be.
///
/// # Errors
/// `Corrupt` with file and place; nothing is changed then.
pub(crate) fn verify(folder: &Path, store: u64, repair: bool, on_disk: u64) -> Result<Found, Fault> {
    let files = files(folder)?;
    let Some((newest, _)) = files.last() else { return Err(Fault::corrupt("the engine's journal is gone")) };
    let mut found = Found { newest: *newest, store, on_disk, ..Found::default() };
    let (mut doubtful, mut ends) = (Doubtful::default(), Vec::new());
    for (nth, (number, path)) in files.iter().enumerate() {
        ends.push(read_file(path, number == newest, &mut found, |commit, at, on_disk| {
            doubtful.add(commit, (nth, at), on_disk);
        })?);
    }
    // Only now: of what is refused nothing is changed.
    for (nth, ((number, path), end)) in files.iter().zip(ends).enumerate().filter(|_| repair) {
        let (is_newest, from) = (number == newest, doubtful.first_in(nth));
        if from.is_some() || is_newest && end.batches < end.file {
            mend(path, from, end.batches, is_newest)?;
        }
    }
    Ok(found)
}

/// The journal files of the engine's folder, in the order they were written.
pub(crate) fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Fault> {
    let failed = |error| Fault::io(&format!("cannot list {}", folder.display()), error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("jnl")) {
            files.extend(numbered(path)?);
        }
    }
    files.sort();
    Ok(files)
}

/// A journal file with its number; `None` where it is gone: an open engine removes those that its tables have.
fn numbered(path: PathBuf) -> Result<Option<(u64, PathBuf)>, Fault> {
    let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
    let number = number.filter(|_| path.is_file() && path.extension().is_some_and(|it| it == "jnl"));
    match number {
        Some(number) => Ok(Some((number, path))),
        None if is_gone(&path) => Ok(None),
        None => Err(Fault::corrupt(format!("{} is no journal of the engine", path.display()))),
    }
}

/// Puts a new journal in the place of one of which nothing is needed: the tables have all that is in it, and more. A crash at any moment leaves what is found the same way again.
pub(crate) fn begin_anew(folder: &Path, newest: u64) -> Result<(), Fault> {
    let failed = |error| Fault::io(&format!("cannot begin a new journal in {}", folder.display()), error);
    let sync_names = |folder: &Path| File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed);
    // The list of the tables that it is done for: who wrote it may have been killed before its name was on disk.
    KEYSPACES.iter().try_for_each(|name| sync_names(&folder.join("keyspaces").join(name)))?;
    let old = files(folder)?;
    let path = folder.join(format!("{}.jnl", newest + 1));
    File::create_new(path).and_then(|file| file.sync_all()).map_err(failed)?;
    // Its name is on disk before the others' are gone; they go one after the other, the oldest first; and they are gone before a batch is in it, which would not count on from theirs.
    sync_names(folder)?;
    for (_, path) in old {
        std::fs::remove_file(path).map_err(failed)?;
        sync_names(folder)?;
    }
    Ok(())
}

/// Where the batches of a file end, and where the file does.
struct End {
    batches: u64,
    file: u64,
}

/// Reads a file, and tells `take` of each batch in it and where that begins.
fn read_file(
    path: &Path,
    is_newest: bool,
    found: &mut Found,
    mut take: impl FnMut(&Commit, u64, &mut u64),
) -> Result<End, Fault> {
    let failed = |error| Fault::io(&format!("cannot read {}", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    let mut reader = Reader { inner: BufReader::with_capacity(BUFFER_BYTES, file), at: 0, file_bytes };
    loop {
        let start = reader.at;
        found.newest_end = start;
        let end = End { batches: start, file: file_bytes };
        let why = match read_batch(&mut reader) {
            Ok(frame) => match follows(&frame, found) {
                Ok(()) => {
                    take(&frame.commit, start, &mut found.on_disk);
                    continue;
                }
                Err(why) => return Err(damaged(path, start, why)),
            },
            Err(Stop::Io(error)) => return Err(failed(error)),
            Err(Stop::End) => match zeros_to_the_end(&mut reader).map_err(failed)? {
                true => return Ok(end),
                false => "something else than a batch is here",
            },
            Err(Stop::Bad(why)) => why,
        };
        if !is_newest {
            return Err(damaged(path, start, why));
        }
        tail(&mut reader, path, (start, why), found)?;
        return Ok(end);
    }
}

/// Which batches may not be on disk: those that none behind them says are, nor whoever opens the store. Which file each is in, where it begins there, and its number. The engine syncs a file before it begins the next, but a sync before
/// that may have failed, and then the system has forgotten what that one should have written.
#[derive(Default)]
struct Doubtful(VecDeque<(usize, u64, u64)>);

impl Doubtful {
    fn add(&mut self, commit: &Commit, (file, at): (usize, u64), on_disk: &mut u64) {
        *on_disk = (*on_disk).max(commit.synced);
        self.0.push_back((file, at, commit.sequence));
        while self.0.front().is_some_and(|(.., sequence)| *sequence <= *on_disk) {
            self.0.pop_front();
        }
    }

    /// From where on a file is to be written again.
    fn first_in(&self, file: usize) -> Option<u64> {
        self.0.iter().find(|(it, ..)| *it == file).map(|(_, at, _)| *at)
    }
}

/// Takes a frame in, if it may stand behind those before.
fn follows(frame: &Frame, found: &mut Found) -> Result<(), &'static str> {
    if let Some((last, number)) = found.last {
        if frame.commit.sequence != last.sequence + 1 {
            return Err("a batch does not count on from the one before it");
        }
        if frame.number <= number || frame.number - number > NUMBER_STEP_MAX {
            return Err("a batch has a number that cannot follow the one before it");
        }
    }
    found.first.get_or_insert((frame.commit, frame.number));
    found.last = Some((frame.commit, frame.number));
    Ok(())
}

/// Judges what cannot be read at the end of the newest file: a torn write, or damage.
fn tail(reader: &mut Reader, path: &Path, bad: (u64, &str), found: &mut Found) -> Result<(), Fault> {
    let (start, why) = bad;
    let failed = |error| Fault::io(&format!("cannot read {}", path.display()), error);
    reader.seek(start).map_err(failed)?;
    let mut rest = Vec::new();
    reader.inner.read_to_end(&mut rest).map_err(failed)?;
    match search(&rest, found) {
        Searched::Torn => {}
        Searched::Lost => return Err(damaged(path, start, &format!("{why}, and whole batches follow"))),
        Searched::Endless => {
            return Err(damaged(path, start, &format!("{why}, and what follows takes too long to be told apart")));
        }
    }
    let filled = rest.chunks(ZEROS.len()).rposition(|piece| !is_zero(piece)).map_or(0, |last| (last + 1) * ZEROS.len());
    found.torn_bytes = filled.min(rest.len()) as u64;
    Ok(())
}

/// What is behind a place where no batch can be read.
#[derive(Debug, PartialEq, Eq)]
enum Searched {
    /// Nothing that says more than that a write was cut short.
    Torn,
    /// A whole batch that says that the missing one was on disk.
    Lost,
    /// Something says so, and it took too much to find out whether it is a batch.
    Endless,
}

/// A commit record that tells of a loss, if it is a batch's: where its entry begins, and how many entries its batch has before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Teller {
    at: usize,
    items: u32,
    sequence: u64,
}

/// Looks for a batch that tells of a loss. What a client wrote may look like the beginning of a batch at every 34th byte, each of which is to be read to the end before its checksum shows that it is none. So commit records of
/// this store are looked for first, which a client cannot know how to write, and then for batches that end with one of them, in no more than [`SEARCH_MAX`] times the bytes that there are.
fn search(rest: &[u8], found: &Found) -> Searched {
    let tellers = tellers(rest, found);
    let Some(first) = tellers.first() else { return Searched::Torn };
    // Where no batch is before this place, its own record may be what is left of it: nothing is written behind a file's first batch before that is on disk.
    let may_be_its_own = found.last.is_none() && tellers.iter().all(|teller| teller.sequence == first.sequence);
    let mut left = rest.len() as u64 * SEARCH_MAX;
    for at in memchr::memchr_iter(TAG_BATCH, rest).filter(|at| *at > 0) {
        if left == 0 {
            return if may_be_its_own { Searched::Torn } else { Searched::Endless };
        }
        let Some((bytes, items)) = end_of_entries(&rest[at..], &mut left) else { continue };
        let teller = tellers.binary_search_by_key(&(at + bytes), |teller| teller.at);
        if !teller.is_ok_and(|nth| tellers[nth].items == items) {
            continue;
        }
        let mut slice = Reader { inner: io::Cursor::new(&rest[at..]), at: 0, file_bytes: (rest.len() - at) as u64 };
        if read_batch(&mut slice).is_ok_and(|frame| tells_of_a_loss(&frame, at as u64, found)) {
            return Searched::Lost;
        }
        left = left.saturating_sub(slice.at);
    }
    // The last that was to be looked at may have been left out, too.
    if left == 0 && !may_be_its_own { Searched::Endless } else { Searched::Torn }
}

/// All commit records that tell of a loss, in their order.
fn tellers(rest: &[u8], found: &Found) -> Vec<Teller> {
    let mut head = vec![TAG_ENTRY, TYPE_VALUE, 0];
    head.extend_from_slice(&KEYSPACE_ID.to_le_bytes());
    head.extend_from_slice(&(COMMIT_KEY.len() as u16).to_le_bytes());
    head.extend_from_slice(&(COMMIT_BYTES as u32).to_le_bytes());
    head.extend_from_slice(&(COMMIT_BYTES as u32).to_le_bytes());
    head.extend_from_slice(COMMIT_KEY);
    let teller = |at: usize| {
        let commit = Commit::decode(rest.get(at + head.len()..)?.get(..COMMIT_BYTES)?).ok()?;
        let teller = Teller { at, items: commit.items, sequence: commit.sequence };
        commit_tells_of_a_loss(&commit, at as u64, found).then_some(teller)
    };
    memchr::memmem::find_iter(rest, &head).filter_map(teller).collect()
}

/// Where the entries of what begins as a batch does end, but for its last one, and how many those are: by their lengths alone. Each takes what its head has from what is `left` to be read.
fn end_of_entries(batch: &[u8], left: &mut u64) -> Option<(usize, u32)> {
    let items = u32::from_le_bytes(*batch.get(1..)?.first_chunk()?).checked_sub(1)?;
    let mut at = BATCH_HEAD_BYTES;
    for _ in 0..items {
        let mut head = batch.get(at..)?.get(..ENTRY_HEAD_BYTES)?;
        if head[0] != TAG_ENTRY || *left == 0 {
            return None;
        }
        *left = left.saturating_sub(ENTRY_HEAD_BYTES as u64);
        #[cfg(test)]
        tests::worked(ENTRY_HEAD_BYTES);
        head = &head[3..];
        let (_, key_bytes, value_bytes) = (number::<8>(&mut head), number::<2>(&mut head), number::<4>(&mut head));
        at = at.checked_add(ENTRY_HEAD_BYTES + key_bytes as usize + value_bytes as usize)?;
    }
    Some((at, items))
}

/// True if a batch that stands `at` bytes behind a place where none can be read says that one there was on disk. Values of a torn batch hold what a client likes, batches too: it is none of ours if it is not of this
/// incarnation, or counts on as none can that stands there.
fn tells_of_a_loss(frame: &Frame, at: u64, found: &Found) -> bool {
    let follows = found.last.is_none_or(|(_, number)| {
        frame.number.checked_sub(number).is_some_and(|step| (1..=NUMBER_STEP_MAX).contains(&step))
    });
    follows && commit_tells_of_a_loss(&frame.commit, at, found)
}

/// As far as its commit record shows that, which stands no more than `at` bytes behind.
fn commit_tells_of_a_loss(commit: &Commit, at: u64, found: &Found) -> bool {
    if commit.store != found.store || commit.synced >= commit.sequence {
        return false;
    }
    // The first of a file is on disk before the second is written.
    let Some((last, _)) = found.last else { return true };
    let missing = last.sequence.saturating_add(1);
    let behind =
        commit.sequence.checked_sub(missing).is_some_and(|behind| (1..=at / BATCH_BYTES_MIN).contains(&behind));
    // The batches of an unsynced window may reach the disk in any order; one that was known to be there cannot be missing.
    behind && commit.synced >= missing
}

fn damaged(path: &Path, at: u64, why: &str) -> Fault {
    Fault::corrupt(format!("the journal is damaged: {} at byte {at}: {why}", path.display()))
}

/// Has on disk what is before the end of the last batch: what may not be there is written again. Cuts off what is behind it, if told to.
fn mend(path: &Path, doubtful: Option<u64>, end: u64, cuts: bool) -> Result<(), Fault> {
    let mend = |file: File| {
        let mut at = doubtful.unwrap_or(end);
        let mut piece = vec![0; BUFFER_BYTES];
        while at < end {
            let bytes = BUFFER_BYTES.min(usize::try_from(end - at).unwrap_or(BUFFER_BYTES));
            file.read_exact_at(&mut piece[..bytes], at)?;
            file.write_all_at(&piece[..bytes], at)?;
            at += bytes as u64;
        }
        if cuts {
            file.set_len(end)?;
        }
        file.sync_all()
    };
    let done = OpenOptions::new().read(true).write(true).open(path).and_then(mend);
    done.map_err(|error| Fault::io(&format!("cannot mend {}", path.display()), error))
}

/// A reader that knows its place.
struct Reader<R = BufReader<File>> {
    inner: R,
    at: u64,
    file_bytes: u64,
}

impl Reader {
    fn seek(&mut self, at: u64) -> io::Result<()> {
        self.inner.seek(SeekFrom::Start(at))?;
        self.at = at;
        Ok(())
    }
}

impl<R: BufRead> Reader<R> {
    fn field<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut field = [0; N];
        self.inner.read_exact(&mut field)?;
        self.at += N as u64;
        Ok(field)
    }

    /// Hands the next `bytes` to `take`, in pieces.
    fn pieces(&mut self, mut bytes: usize, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        if bytes as u64 > self.file_bytes.saturating_sub(self.at) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while bytes > 0 {
            let piece = self.inner.fill_buf()?;
            let piece = &piece[..piece.len().min(bytes)];
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(piece);
            let taken = piece.len();
            #[cfg(test)]
            tests::worked(taken);
            self.inner.consume(taken);
            self.at += taken as u64;
            bytes -= taken;
        }
        Ok(())
    }
}

/// True if only zeros are left.
fn zeros_to_the_end(reader: &mut Reader) -> io::Result<bool> {
    loop {
        let piece = reader.inner.fill_buf()?;
        if piece.is_empty() {
            return Ok(true);
        }
        if !is_zero(piece) {
            return Ok(false);
        }
        let taken = piece.len();
        reader.inner.consume(taken);
        reader.at += taken as u64;
    }
}

/// As long a comparison as memory is compared by at once.
static ZEROS: [u8; 4096] = [0; 4096];

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|piece| piece == &ZEROS[..piece.len()])
}

fn read_batch<R: BufRead>(reader: &mut Reader<R>) -> Result<Frame, Stop> {
    if reader.at >= reader.file_bytes {
        return Err(Stop::End);
    }
    match reader.field()? {
        [0] => return Err(Stop::End),
        [TAG_BATCH] => {}
        _ => return Err(Stop::Bad("no batch begins here")),
    }
    let items = u32::from_le_bytes(reader.field()?);
    let number = u64::from_le_bytes(reader.field()?);
    let (mut hasher, mut content, mut commit) = (Xxh3::new(), Content::default(), None);
    for _ in 0..items {
        read_entry(reader, &mut hasher, &mut content, &mut commit)?;
    }
    if reader.field()? != [TAG_END] {
        return Err(Stop::Bad("a batch has no end"));
    }
    if u64::from_le_bytes(reader.field()?) != hasher.digest() {
        return Err(Stop::Bad("a batch does not match its checksum"));
    }
    if reader.field()? != TRAILER {
        return Err(Stop::Bad("a batch has another trailer"));
    }
    let commit = commit.ok_or(Stop::Bad("a batch has no commit record"))?;
    let commit = Commit::decode(&commit).map_err(|bad| Stop::Bad(bad.0))?;
    if (commit.items, commit.content) != (content.items, content.sum()) {
        return Err(Stop::Bad("a batch does not match its commit record"));
    }
    Ok(Frame { number, commit })
}

fn read_entry<R: BufRead>(
    reader: &mut Reader<R>,
    hasher: &mut Xxh3,
    content: &mut Content,
    commit: &mut Option<Vec<u8>>,
) -> Result<(), Stop> {
    let head: [u8; ENTRY_HEAD_BYTES] = reader.field()?;
    let [TAG_ENTRY, kind @ (TYPE_VALUE | TYPE_REMOVED), 0, rest @ ..] = &head else {
        return Err(Stop::Bad("a batch has an entry that is none"));
    };
    let mut rest = &rest[..];
    let (keyspace, key_bytes, value_bytes, stored_bytes) =
        (number::<8>(&mut rest), number::<2>(&mut rest), number::<4>(&mut rest), number::<4>(&mut rest));
    if keyspace != KEYSPACE_ID || value_bytes != stored_bytes || commit.is_some() {
        return Err(Stop::Bad("a batch has an entry that is not ours"));
    }
    hasher.update(&head);
    let mut key = Vec::new();
    reader.pieces(key_bytes as usize, |piece| key.extend_from_slice(piece))?;
    hasher.update(&key);
    if key == COMMIT_KEY {
        let mut value = Vec::new();
        reader.pieces(value_bytes as usize, |piece| value.extend_from_slice(piece))?;
        hasher.update(&value);
        *commit = Some(value);
        return Ok(());
    }
    content.head(&key, (*kind == TYPE_VALUE).then_some(value_bytes as usize));
    reader.pieces(value_bytes as usize, |piece| {
        hasher.update(piece);
        content.more(piece);
    })?;
    Ok(())
}

/// A batch, for tests and fuzzing: as the engine writes it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn framed(number: u64, entries: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut out = vec![TAG_BATCH];
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    let from = out.len();
    for (key, value) in entries {
        let bytes = value.as_ref().map_or(0, Vec::len) as u32;
        out.extend([TAG_ENTRY, if value.is_some() { TYPE_VALUE } else { TYPE_REMOVED }, 0]);
        out.extend_from_slice(&KEYSPACE_ID.to_le_bytes());
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let check = xxhash_rust::xxh3::xxh3_64(&out[from..]);
    out.push(TAG_END);
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(&TRAILER);
    out
}

/// The engine's number and ours of each batch at the front, and where it ends, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) fn frames_of<R: BufRead>(inner: R, file_bytes: u64) -> Vec<(u64, u64, usize)> {
    let mut reader = Reader { inner, at: 0, file_bytes };
    let next = || {
        let frame = read_batch(&mut reader).ok()?;
        Some((frame.number, frame.commit.sequence, reader.at as usize))
    };
    std::iter::from_fn(next).collect()
}

fn number<const N: usize>(rest: &mut &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&rest[..N]);
    *rest = &rest[N..];
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static WORK: Cell<u64> = const { Cell::new(0) };
    }

    /// So many bytes were read, or hashed.
    pub(crate) fn worked(bytes: usize) {
        WORK.set(WORK.get() + bytes as u64);
    }

    /// What is found in a journal of these bytes, and how many bytes were read for each of them.
    fn look(bytes: &[u8]) -> (Result<Found, Fault>, u64) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("1.jnl"), bytes).unwrap();
        WORK.set(0);
        (verify(folder.path(), 7, false, 0), WORK.get() / bytes.len() as u64)
    }

    /// The batch of a value under one key, of which all before is on disk.
    fn batch(sequence: u64, value: &[u8]) -> Vec<u8> {
        batch_behind(sequence, sequence - 1, value)
    }

    /// The same, where batches are on disk up to that one.
    fn batch_behind(sequence: u64, synced: u64, value: &[u8]) -> Vec<u8> {
        let mut content = Content::default();
        content.add(b"\x02k", Some(value));
        let (items, content) = (content.items, content.sum());
        let commit = Commit { sequence, synced, store: 7, items, content, ..Commit::default() };
        let entries = [(b"\x02k".to_vec(), Some(value.to_vec())), (COMMIT_KEY.to_vec(), Some(commit.encode()))];
        framed(sequence, &entries)
    }

    /// A value of what look like the beginnings of batches, of which all end so many bytes behind it.
    fn beginnings(bytes_behind: u32) -> Vec<u8> {
        const COUNT: u32 = (1 << 20) / 34;
        (0..COUNT).flat_map(|at| beginning((COUNT - at - 1) * 34 + bytes_behind)).collect()
    }

    #[test]
    fn a_torn_value_of_beginnings_of_batches_is_read_a_few_times() {
        let (first, whole) = (batch(1, b"v"), batch(2, &[&beginnings(0)[..], &[9; 300]].concat()));
        let torn = &whole[..whole.len() - 150];
        let (found, times) = look(&[&first[..], torn].concat());
        assert!(found.unwrap().torn_bytes > 1 << 19);
        assert!(times < 4, "{times} times");
        // What stands behind it is found.
        let (found, times) = look(&[&first[..], torn, &batch(3, b"v")].concat());
        let told = found.unwrap_err().detail;
        assert!(told.ends_with("and whole batches follow") && times < 4, "{times} times: {told}");
    }

    /// Whoever writes that knows the store, or its own record stands where all of them end.
    #[test]
    fn beginnings_of_batches_before_a_commit_record_of_the_store_are_read_a_few_times() {
        let first = batch(1, b"v");
        let bad = batch(3, b"");
        let record = &bad[BATCH_HEAD_BYTES + ENTRY_HEAD_BYTES + 2..];
        let torn = batch(2, &[&beginnings(0), record].concat());
        let (found, times) = look(&[&first[..], &torn[..torn.len() - 50]].concat());
        let told = found.unwrap_err().detail;
        assert!(told.ends_with("takes too long to be told apart") && times < 16, "{times} times: {told}");
        // The first batch of a file, of which a power cut took the first sector alone.
        let mut torn = batch(2, &beginnings(0));
        torn[..512].fill(0);
        let (found, times) = look(&torn);
        assert_eq!(found.unwrap().torn_bytes, torn.len() as u64);
        assert!(times < 16, "{times} times");
        // But not with another batch behind it.
        let (found, times) = look(&[&torn[..], &batch(3, b"v")].concat());
        assert!(found.is_err() && times < 16, "{times} times");
    }

    /// What looks like the beginning of a batch of one entry besides its commit record, whose value goes on for so many bytes.
    fn beginning(value_bytes: u32) -> Vec<u8> {
        let mut out = vec![TAG_BATCH];
        out.extend_from_slice(&2u32.to_le_bytes());
        out.extend_from_slice(&9u64.to_le_bytes());
        out.extend([TAG_ENTRY, TYPE_VALUE, 0]);
        out.extend_from_slice(&KEYSPACE_ID.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&value_bytes.to_le_bytes());
        out.extend_from_slice(&value_bytes.to_le_bytes());
        out
    }

    #[test]
    fn a_value_that_begins_a_batch_at_every_place_is_not_read_over_and_over() {
        const BEGINNINGS: u32 = 100_000;
        let last = Commit { store: 7, sequence: 10, synced: 10, ..Commit::default() };
        let found = Found { last: Some((last, 5)), store: 7, ..Found::default() };
        let begins = |at: u32| beginning((BEGINNINGS - at - 1) * 34);
        let value: Vec<u8> = (0..BEGINNINGS).flat_map(begins).collect();
        // To read each to its end would be 170 GB.
        assert_eq!((value.len(), search(&value, &found)), (34 * BEGINNINGS as usize, Searched::Torn));
        let commit = Commit { store: 7, sequence: 12, synced: 11, items: 1, ..Commit::default() };
        let record =
            |commit: Commit| framed(6, &[(COMMIT_KEY.to_vec(), Some(commit.encode()))])[BATCH_HEAD_BYTES..].to_vec();
        let with = |commit| [&value[..], &record(commit)].concat();
        assert_eq!(
            search(&with(commit), &found),
            Searched::Endless,
            "this store's record, and no batch: never cut off"
        );
        assert_eq!(search(&with(Commit { store: 8, ..commit }), &found), Searched::Torn, "another store's");
    }

    /// As a listing names one that an open engine removes before it is looked at.
    #[test]
    fn a_journal_that_is_gone_is_left_out_and_what_is_no_file_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("7.jnl"), "").unwrap();
        std::fs::create_dir(path("8.jnl")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("9.jnl")).unwrap();
        assert_eq!(numbered(path("6.jnl")), Ok(None));
        assert_eq!(numbered(path("7.jnl")), Ok(Some((7, path("7.jnl")))));
        for name in ["8.jnl", "9.jnl"] {
            let told = numbered(path(name)).unwrap_err();
            assert_eq!(told, Fault::corrupt(format!("{} is no journal of the engine", path(name).display())));
        }
    }

    /// As a sync leaves it that failed before the next file was begun: the system shows what it never wrote.
    #[test]
    fn what_is_in_doubt_is_written_again_in_older_files_too() {
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let zeros = [0; 5000];
        let one = [batch(1, b"v"), batch_behind(2, 1, b"v"), zeros.to_vec()].concat();
        let files = |third: Vec<u8>| [("1.jnl", one.clone()), ("2.jnl", third)];
        // Which of them were written, and whether the newest was cut.
        let written = |repair, on_disk, files: [(&str, Vec<u8>); 2]| {
            let folder = tempfile::tempdir().unwrap();
            for (name, bytes) in &files {
                std::fs::write(folder.path().join(name), bytes).unwrap();
                let file = File::options().write(true).open(folder.path().join(name)).unwrap();
                file.set_modified(long_ago).unwrap();
            }
            verify(folder.path(), 7, repair, on_disk).unwrap();
            files.map(|(name, bytes)| {
                let left = std::fs::read(folder.path().join(name)).unwrap();
                assert!(bytes.starts_with(&left) && (name == "2.jnl" || left == bytes), "{name}");
                std::fs::metadata(folder.path().join(name)).unwrap().modified().unwrap() != long_ago
            })
        };
        let third = || [batch_behind(3, 1, b"v"), zeros.to_vec()].concat();
        assert_eq!(written(false, 0, files(third())), [false, false]);
        assert_eq!(written(true, 0, files(third())), [true, true]);
        assert_eq!(written(true, 0, files(zeros.to_vec())), [true, true]);
        assert_eq!(written(true, 2, files(third())), [false, true], "whoever opens the store knows");
        let fourth = [third()[..third().len() - 5000].to_vec(), batch_behind(4, 3, b"v")].concat();
        assert_eq!(written(true, 0, files(fourth.clone())), [false, true], "a later batch says so");
        assert_eq!(written(true, 4, files(fourth)), [false, false], "nothing is to be done");
    }

    #[test]
    fn batches_are_in_doubt_until_one_behind_them_says_they_are_on_disk() {
        let batch = |sequence, synced| Commit { sequence, synced, ..Commit::default() };
        let (mut doubtful, mut on_disk) = (Doubtful::default(), 3);
        doubtful.add(&batch(3, 0), (1, 0), &mut on_disk);
        assert_eq!(doubtful.first_in(1), None, "whoever opens the store knows");
        doubtful.add(&batch(4, 2), (1, 100), &mut on_disk);
        doubtful.add(&batch(5, 3), (1, 200), &mut on_disk);
        doubtful.add(&batch(6, 3), (1, 300), &mut on_disk);
        assert_eq!(doubtful.first_in(1), Some(100));
        doubtful.add(&batch(7, 5), (1, 400), &mut on_disk);
        assert_eq!((doubtful.first_in(1), on_disk), (Some(300), 5));
    }
}
