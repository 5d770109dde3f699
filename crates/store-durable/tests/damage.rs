//! Damage: flipped bytes, files that are gone, folders that are no store. Each is told or harmless; none is a miss.
//!
//! `LARDER_FLIPS=10000` makes the test of flips longer.

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use common::{files, key, set, times, try_get};
use larder_core::list::{List, Listed};
use larder_core::{Ctx, Error, ErrorKind, Item, ManualClock, Op, PutMode, Store, StoreExt, Ttl, Verb, Want};
use larder_store_durable::{DurableStore, Options, Sync, fuzzing};

const ITEMS: usize = 300;
const DAY: Duration = Duration::from_secs(86_400);

fn open(folder: &Path) -> Result<DurableStore, Error> {
    Options::new(folder).open()
}

fn value(number: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(number as u64);
    std::iter::repeat_with(|| random.u8(..)).take(20 + number * 3).collect()
}

/// A put of an item: with flags, and every third with a life.
fn put(number: usize) -> Op {
    let ttl = if number.is_multiple_of(3) { Ttl::After(DAY * (1 + number as u32)) } else { Ttl::Never };
    let flags = number as u32 * 7;
    Op::new(key(&format!("k{number}")), Verb::Put { mode: PutMode::Set, value: value(number), flags, ttl })
}

/// A store that is closed, with items in tables and in the journal, and items that were removed.
async fn store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for half in 0..2 {
        let store = open(folder.path()).unwrap();
        for number in (half..ITEMS).step_by(2) {
            store.run_one(Ctx::default(), put(number)).await.unwrap();
            set(&store, &format!("gone{number}"), "v").await.unwrap();
        }
        if half == 0 {
            store.settle().unwrap();
        }
        for number in (half..ITEMS).step_by(2) {
            store.run_one(Ctx::default(), Op::delete(key(&format!("gone{number}")))).await.unwrap();
        }
    }
    folder
}

/// A moment behind all that was written, at which lives are compared.
static AT: LazyLock<Duration> =
    LazyLock::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + DAY / 24);

fn open_then(folder: &Path) -> Result<DurableStore, Error> {
    Options::new(folder).clock(Arc::new(ManualClock::at(*AT))).open()
}

async fn item(store: &DurableStore, number: usize) -> Result<Option<Item>, Error> {
    let get = Op::get(key(&format!("k{number}")), Want::all());
    Ok(store.run_one(Ctx::default(), get).await?.into_item())
}

/// The items of a sound store: values, flags, tokens and lives.
async fn all(sound: &Path) -> Vec<Item> {
    let store = open_then(sound).unwrap();
    let mut items = Vec::new();
    for number in 0..ITEMS {
        items.push(item(&store, number).await.unwrap().unwrap());
        assert_eq!(items[number].value, value(number));
    }
    items
}

/// What is wrong with a store that does not tell that something is: `None` if it tells, or nothing is, also of what is written then and read in the next life.
async fn silent(folder: &Path, expected: &[Item]) -> Option<String> {
    let mut written = 0;
    for life in 0..2 {
        let store = match open_then(folder) {
            Ok(store) => store,
            Err(error) if is_told(&error) => return None,
            Err(error) => return Some(format!("the error is {error}")),
        };
        match wrong(&store, expected, written).await {
            Ok(None) => {}
            Ok(found) => return found.map(|what| format!("{what} in life {life}")),
            Err(error) if error.kind() == ErrorKind::Corrupt => return None,
            Err(error) => return Some(format!("the error is {error}")),
        }
        let fresh = set(&store, "written", "v").await;
        written = usize::from(fresh.is_ok());
        if let Err(error) = fresh {
            return (error.kind() != ErrorKind::Corrupt).then(|| format!("a write fails with {error}"));
        }
    }
    None
}

/// True of an error by which damage is told when a store is opened.
fn is_told(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Config | ErrorKind::LayoutMismatch => true,
        // A place behind the end of a file, say: the engine asks the system for it, which refuses.
        ErrorKind::Unavailable => error.to_string().contains("the engine could not read"),
        _ => false,
    }
}

/// What is not as it is expected, with so many written beside it.
async fn wrong(store: &DurableStore, expected: &[Item], written: usize) -> Result<Option<String>, Error> {
    for (number, expected) in expected.iter().enumerate() {
        // Each is asked for, whatever others tell.
        match item(store, number).await {
            Ok(Some(found)) if found == *expected => {}
            Ok(found) => return Ok(Some(format!("k{number} is {found:?}, not {expected:?}"))),
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(error),
        }
    }
    let mut listed = 0;
    let mut tell = |told: Listed<'_>| listed += usize::from(matches!(told, Listed::Key(_)));
    store.list(Ctx::default(), b"", &mut tell).await?;
    Ok((listed != ITEMS + written).then(|| format!("{listed} keys are listed")))
}

/// The engine would make room for all of them, and the process would end.
#[tokio::test]
async fn a_table_that_tells_of_more_entries_than_it_has_bytes_is_corrupt() {
    let folder = store().await;
    drop(open(folder.path()).unwrap());
    let tables =
        files(folder.path()).into_iter().filter(|path| path.components().any(|part| part.as_os_str() == "tables"));
    let mut found = 0;
    for path in tables {
        let whole = std::fs::read(&path).unwrap();
        let trailer = &whole[whole.len() - 38..];
        assert!(trailer.starts_with(b"SFA!"), "{}", path.display());
        let place = u64::from_le_bytes(trailer[22..30].try_into().unwrap()) as usize;
        assert!(whole[place..].starts_with(b"TOC!"), "{}", path.display());
        let mut damaged = whole.clone();
        damaged[place + 7] = 0xff;
        std::fs::write(&path, damaged).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(name), "{error} does not name {name}");
        std::fs::write(&path, whole).unwrap();
        drop(open(folder.path()).unwrap());
        found += 1;
    }
    assert!(found > 0, "there is no table");
}

/// Flips bytes of a store, one at a time, which has files of these kinds.
async fn flip(sound: &Path, kinds: &[&str], times: usize) {
    let expected = all(sound).await;
    let names: Vec<PathBuf> = files(sound).iter().map(|path| path.strip_prefix(sound).unwrap().into()).collect();
    let size = |name: &PathBuf| std::fs::metadata(sound.join(name)).unwrap().len() as usize;
    let names: Vec<PathBuf> = names.into_iter().filter(|name| size(name) > 0).collect();
    for part in kinds {
        assert!(names.iter().any(|name| name.to_string_lossy().contains(part)), "{part}: {names:?}");
    }
    let mut told = 0;
    for _ in 0..times {
        let folder = tempfile::tempdir().unwrap();
        common::copy(sound, folder.path());
        // By file first: most of them are small, and matter.
        let name = &names[fastrand::usize(..names.len())];
        let path = folder.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let (at, with) = (fastrand::usize(..bytes.len()), fastrand::u8(1..));
        bytes[at] ^= with;
        std::fs::write(&path, bytes).unwrap();
        let wrong = silent(folder.path(), &expected).await;
        assert_eq!(wrong, None, "{} at {at} with {with:#x}", name.display());
        told += usize::from(open(folder.path()).is_err());
    }
    assert!(told > 0, "no flip was ever told");
}

#[tokio::test]
async fn a_flipped_byte_anywhere_is_told_or_harmless() {
    let sound = store().await;
    flip(sound.path(), &["tables", ".jnl", "current", "state", "larder"], times("LARDER_FLIPS", 120)).await;
}

/// A folder, its journal's file, what that holds, and where it ended before some values and after each of them.
struct Window {
    image: tempfile::TempDir,
    journal: PathBuf,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Values that are known to be on disk before those of the window, and as many in it.
const VALUES: usize = 20;

/// A store of values that are known to be on disk, and as many behind them, of which only the setting may say so.
async fn window(sync: Sync) -> Window {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(sync).open().unwrap();
    let journal = common::newest_journal(folder.path());
    for number in 0..VALUES {
        set(&store, &format!("k{number}"), value(number)).await.unwrap();
        if number == 1 && matches!(sync, Sync::Every(_)) {
            // The timer syncs a second after the store was opened, and then as often as it is told to.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while store.stats().unwrap().synced < store.stats().unwrap().sequence {
                assert!(std::time::Instant::now() < until, "nobody syncs");
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
    store.sync().await.unwrap();
    let on_disk = store.stats().unwrap().sequence;
    let mut ends = vec![common::without_zeros(&journal).len()];
    for number in VALUES..2 * VALUES {
        set(&store, &format!("k{number}"), value(number)).await.unwrap();
        ends.push(common::without_zeros(&journal).len());
    }
    // As a process that was killed leaves it.
    let image = tempfile::tempdir().unwrap();
    common::copy(folder.path(), image.path());
    let stats = store.stats().unwrap();
    assert_eq!((stats.sequence, stats.synced == on_disk), (on_disk + VALUES as u64, sync != Sync::Always));
    let journal = journal.strip_prefix(folder.path()).unwrap().to_owned();
    let bytes = std::fs::read(image.path().join(&journal)).unwrap();
    assert_eq!(Some(&bytes.len()), ends.last());
    Window { image, journal, bytes, ends }
}

impl Window {
    /// A copy, with a byte of the window's value `nth` flipped: its first, that of its first entry, the middle one, or its last.
    fn flipped(&self, nth: usize, place: usize) -> (tempfile::TempDir, Vec<u8>) {
        let (start, end) = (self.ends[nth], self.ends[nth + 1]);
        let mut bytes = self.bytes.clone();
        bytes[[start, start + 13, start.midpoint(end), end - 1][place]] ^= 0x40;
        let folder = tempfile::tempdir().unwrap();
        common::copy(self.image.path(), folder.path());
        std::fs::write(folder.path().join(&self.journal), &bytes).unwrap();
        (folder, bytes)
    }
}

/// Values of the window, from its second to the one before its last, and places in what the journal has of each.
fn flips() -> impl Iterator<Item = (usize, usize)> {
    [1, VALUES / 2, VALUES - 2].into_iter().flat_map(|nth| (0..4).map(move |place| (nth, place)))
}

/// A power cut leaves the same: the batches of such a window reach the disk in any order.
#[tokio::test]
async fn a_flipped_byte_in_what_was_never_synced_cuts_off_what_comes_behind_it_tells_so_and_takes_nothing_before_it() {
    for sync in [Sync::Never, Sync::Every(std::time::Duration::from_secs(3_600))] {
        let window = window(sync).await;
        for (nth, place) in flips() {
            let (folder, bytes) = window.flipped(nth, place);
            let told = format!("{sync}: value {nth} of the window, place {place}");
            let store = open(folder.path()).unwrap_or_else(|error| panic!("{told}: {error}"));
            assert_eq!(store.stats().unwrap().torn_bytes, (bytes.len() - window.ends[nth]) as u64, "{told}");
            for number in 0..2 * VALUES {
                let kept = (number < VALUES + nth).then(|| value(number));
                assert_eq!(try_get(&store, &format!("k{number}")).await.unwrap(), kept, "{told}: {number}");
            }
            // It goes on from there, and it is told once.
            set(&store, "next", value(0)).await.unwrap();
            drop(store);
            let store = open(folder.path()).unwrap();
            assert_eq!(store.stats().unwrap().torn_bytes, 0, "{told}");
            assert_eq!(try_get(&store, "next").await.unwrap(), Some(value(0)), "{told}");
            assert_eq!(try_get(&store, &format!("k{}", VALUES + nth)).await.unwrap(), None, "{told}");
        }
    }
}

#[tokio::test]
async fn a_flipped_byte_in_what_each_write_had_on_disk_is_told_and_nothing_is_cut() {
    let window = window(Sync::Always).await;
    for (nth, place) in flips() {
        let (folder, bytes) = window.flipped(nth, place);
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "value {nth} of the window, place {place}: {error}");
        let told = format!(".jnl at byte {}: ", window.ends[nth]);
        assert!(error.to_string().contains(&told), "{error} does not name{told}");
        assert_eq!(std::fs::read(folder.path().join(&window.journal)).unwrap(), bytes);
    }
}

/// The engine sets zeros aside behind a journal's end; nothing of ours is in them.
#[tokio::test]
async fn a_flipped_byte_in_the_zeros_behind_a_journal_s_end_is_told_and_takes_nothing() {
    let (first, sound) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(first.path()).unwrap();
    for number in 0..ITEMS {
        set(&store, &format!("k{number}"), value(number)).await.unwrap();
    }
    drop(store);
    common::copy(first.path(), sound.path());
    let name = |folder: &Path| {
        files(folder).into_iter().rfind(|path| path.extension().is_some_and(|extension| extension == "jnl")).unwrap()
    };
    let bytes_of = |folder: &Path| std::fs::metadata(name(folder)).unwrap().len();
    let (end, file_bytes) = (bytes_of(sound.path()), bytes_of(first.path()));
    assert!(file_bytes > end + (1 << 20), "{file_bytes} bytes, of which {end} are journal");
    let expected = all(first.path()).await;
    let near = [0, 1, 4, 12, 511, 4_095, 4_096].map(|behind| end + behind);
    let far = std::iter::repeat_with(|| fastrand::u64(end..file_bytes)).take(times("LARDER_FLIPS", 120) / 30);
    for at in near.into_iter().chain([file_bytes - 1]).chain(far) {
        // As a batch begins with, or anything.
        let with = if at == end { 1 } else { fastrand::u8(1..) };
        let folder = tempfile::tempdir().unwrap();
        common::copy(sound.path(), folder.path());
        let file = std::fs::File::options().write(true).open(name(folder.path())).unwrap();
        file.set_len(file_bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[with], at).unwrap();
        let torn_bytes = open(folder.path()).unwrap().stats().unwrap().torn_bytes;
        assert!(torn_bytes > at - end && torn_bytes <= file_bytes - end, "{torn_bytes} of {at} behind {end}");
        assert_eq!(silent(folder.path(), &expected).await, None, "at {at} of {file_bytes} with {with:#x}");
    }
}

/// As a process that was killed leaves it: items that were put and removed by rounds, which are in the journal, or also in tables, and not moved.
async fn rounds(are_in_tables: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(Sync::Never).open().unwrap();
    let run = async |ops: Vec<Op>| {
        assert!(store.run(Ctx::default(), ops.into_iter().collect()).await.iter().all(Result::is_ok));
    };
    let gone = |number: usize| Op::put(key(&format!("gone{number}")), PutMode::Set, value(0), Ttl::Never);
    let numbers: Vec<usize> = (0..ITEMS).collect();
    for some in numbers.chunks(10) {
        run(some.iter().flat_map(|&it| [put(it), gone(it)]).collect()).await;
    }
    for some in numbers.chunks(20) {
        run(some.iter().map(|number| Op::delete(key(&format!("gone{number}")))).collect()).await;
    }
    store.sync().await.unwrap();
    if are_in_tables {
        fuzzing::flush(&store).unwrap();
    }
    // Behind this one the others are known to be on disk. It may be torn itself, and says what was there before.
    run((0..20).map(put).collect()).await;
    assert_eq!(fuzzing::rounds(&store).unwrap(), ITEMS / 10 + ITEMS / 20 + 1, "none is moved yet");
    let image = tempfile::tempdir().unwrap();
    common::copy(folder.path(), image.path());
    image
}

#[tokio::test]
async fn a_flipped_byte_in_rounds_is_told_or_harmless() {
    for are_in_tables in [false, true] {
        let kinds = if are_in_tables { &[".jnl", "tables"][..] } else { &[".jnl"] };
        flip(rounds(are_in_tables).await.path(), kinds, times("LARDER_FLIPS", 120) / 2).await;
    }
}

#[tokio::test]
async fn a_file_that_is_gone_is_told() {
    let sound = store().await;
    let expected = all(sound.path()).await;
    for path in files(sound.path()) {
        let name = path.strip_prefix(sound.path()).unwrap();
        if ["lock", "state"].contains(&name.to_str().unwrap()) {
            continue; // made again
        }
        let folder = tempfile::tempdir().unwrap();
        common::copy(sound.path(), folder.path());
        std::fs::remove_file(folder.path().join(name)).unwrap();
        assert_eq!(silent(folder.path(), &expected).await, None, "without {}", name.display());
        assert!(open(folder.path()).is_err() || name.starts_with("engine/keyspaces/0"), "without {}", name.display());
        if name.extension().is_some_and(|it| it == "jnl") {
            // The only one there is, and nobody notes how far it went.
            std::fs::remove_file(folder.path().join("state")).unwrap();
            assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Corrupt, "without {}", name.display());
        }
    }
}

#[tokio::test]
async fn a_journal_whose_end_was_cut_off_is_told_after_a_clean_close() {
    let sound = store().await;
    let journal = files(sound.path()).into_iter().rfind(|path| path.extension().is_some_and(|it| it == "jnl")).unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    for cut in [1, 40, 200, bytes.len() / 2] {
        std::fs::write(&journal, &bytes[..bytes.len() - cut]).unwrap();
        let error = open(sound.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{cut}: {error}");
        assert!(error.to_string().contains("was on disk"), "{error}");
    }
    std::fs::write(&journal, &bytes).unwrap();
    assert!(open(sound.path()).is_ok(), "an open that failed has changed nothing");
}

#[tokio::test]
async fn a_bad_record_before_good_ones_is_told_with_its_place_and_nothing_is_cut() {
    let sound = store().await;
    std::fs::remove_file(sound.path().join("state")).unwrap();
    let journal = files(sound.path()).into_iter().rfind(|path| path.extension().is_some_and(|it| it == "jnl")).unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    let at = bytes.len() / 3;
    bytes[at] ^= 0x40;
    std::fs::write(&journal, &bytes).unwrap();
    let error = open(sound.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(".jnl at byte "), "{error}");
    assert!(error.to_string().contains("follow"), "{error}");
    assert_eq!(std::fs::read(&journal).unwrap(), bytes);
}

/// Bytes of the tables of items; the engine's own, in the other folder, are read when it is opened.
fn table_bytes(folder: &Path) -> u64 {
    files(&folder.join("engine/keyspaces/1/tables")).iter().map(|path| path.metadata().unwrap().len()).sum()
}

/// What the store says of itself: by opening it and reading all of it, item by item and as a check does.
async fn found(folder: &Path) -> [Option<String>; 2] {
    let store = match open(folder) {
        Ok(store) => store,
        Err(error) => return [Some(error.to_string()), Some(error.to_string())],
    };
    let mut read = None;
    for number in 0..ITEMS {
        read = read.or(try_get(&store, &format!("k{number}")).await.err().map(|error| error.to_string()));
        // Those that are gone are looked for in the filters of tables.
        read = read.or(try_get(&store, &format!("none{number}")).await.err().map(|error| error.to_string()));
    }
    let mut told = Vec::new();
    let checked = match store.check(&mut |checked| told.push((checked.table_bytes, checked.items))) {
        Ok(checked) if checked.damaged == 0 => {
            let all = (table_bytes(folder), ITEMS as u64);
            assert_eq!((checked.table_bytes, checked.items), all);
            // Of each table once it is read, before the items, and of all at the end.
            assert!(told.len() > 1 && told.is_sorted() && told[0].1 == 0 && told.last() == Some(&all), "{told:?}");
            None
        }
        Ok(checked) => Some(checked.first[0].to_string()),
        Err(error) => Some(error.to_string()),
    };
    [read, checked]
}

/// The kind of a file, by its name.
fn kind(name: &Path) -> &'static str {
    let text = name.to_str().unwrap();
    ["tables", ".jnl", "current", "state", "larder", "lock"]
        .into_iter()
        .find(|part| text.contains(part))
        .unwrap_or("list")
}

/// A byte is flipped at places all over each file: whatever a reader could find, a check finds, and it names the file.
#[tokio::test]
async fn a_check_finds_what_any_read_finds_in_every_kind_of_file() {
    let sound = store().await;
    assert_eq!(found(sound.path()).await, [None, None]);
    let (mut told, mut missed) = (std::collections::BTreeMap::new(), Vec::new());
    for path in files(sound.path()) {
        let name = path.strip_prefix(sound.path()).unwrap();
        let is_journal = path.extension().is_some_and(|it| it == "jnl");
        let whole = if is_journal { common::without_zeros(&path) } else { std::fs::read(&path).unwrap() };
        let places = times("LARDER_PLACES", 10).min(whole.len());
        for place in 0..places {
            let folder = tempfile::tempdir().unwrap();
            common::copy(sound.path(), folder.path());
            let at = place * whole.len() / places;
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(folder.path().join(name), bytes).unwrap();
            let [read, checked] = found(folder.path()).await;
            let said =
                format!("{} at byte {at} of {}: read {read:?}, checked {checked:?}", name.display(), whole.len());
            match (&read, &checked) {
                (_, Some(text)) => {
                    let file = name.file_name().unwrap().to_str().unwrap();
                    *told.entry(kind(name)).or_insert(0) += 1;
                    if !text.contains(file) {
                        missed.push(format!("not named: {said}"));
                    }
                }
                (Some(_), None) => missed.push(format!("not found: {said}")),
                // Who had it open; and a note that is written anew, unsynced, every second, and that a power cut may tear: without it nothing is lost.
                (None, None) if ["lock", "state"].contains(&kind(name)) => {}
                (None, None) => missed.push(format!("harmless? {said}")),
            }
        }
    }
    println!("{told:?}");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    for part in ["tables", ".jnl", "current", "larder", "list"] {
        assert!(told.get(part).is_some_and(|&count| count > 0), "{part}: {told:?}");
    }
}

/// As the engine does when a large write came short: the list of the newest tables notes a checksum that the file `table` never had, and is whole itself.
fn note_another_checksum(folder: &Path, table: &Path) {
    let keyspace = folder.join("engine/keyspaces/1");
    let current = std::fs::read(keyspace.join("current")).unwrap();
    let list = keyspace.join(format!("v{}", u64::from_le_bytes(current[..8].try_into().unwrap())));
    let mut bytes = std::fs::read(&list).unwrap();
    let noted = xxhash_rust::xxh3::xxh3_128(&std::fs::read(table).unwrap()).to_le_bytes();
    let at = memchr::memmem::find(&bytes, &noted).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&list, &bytes).unwrap();
    let check = xxhash_rust::xxh3::xxh3_128(&bytes).to_le_bytes();
    std::fs::write(keyspace.join("current"), [&current[..8], &check, &current[24..]].concat()).unwrap();
}

#[tokio::test]
async fn a_table_that_is_sound_under_a_wrong_checksum_is_not_called_damaged() {
    let folder = store().await;
    drop(open(folder.path()).unwrap());
    let tables = files(&folder.path().join("engine/keyspaces/1/tables"));
    let whole = open(folder.path()).unwrap().check(&mut |_| ()).unwrap();
    assert_eq!(whole.unmatched, Vec::<PathBuf>::new());
    note_another_checksum(folder.path(), &tables[0]);
    assert_eq!(found(folder.path()).await, [None, None]);
    let checked = open(folder.path()).unwrap().check(&mut |_| ()).unwrap();
    assert_eq!(checked.unmatched, [&*tables[0]]);
    // What is damaged in it is found all the same.
    let mut bytes = std::fs::read(&tables[0]).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&tables[0], bytes).unwrap();
    let [_, told] = found(folder.path()).await;
    assert!(told.unwrap().contains("is damaged in the block at byte 0"));
}

/// Both are sound, and in each other's place.
#[tokio::test]
async fn tables_that_changed_places_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    for name in ["a", "b"] {
        set(&store, name, name).await.unwrap();
        store.settle().unwrap();
    }
    drop(store);
    let tables = files(&folder.path().join("engine/keyspaces/1/tables"));
    let [first, second, ..] = &tables[..] else { panic!("two tables: {tables:?}") };
    let aside = folder.path().join("aside");
    for (from, to) in [(first, &aside), (second, first), (&aside, second)] {
        std::fs::rename(from, to).unwrap();
    }
    let error = open(folder.path()).and_then(|store| store.check(&mut |_| ())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("is another table, of number "), "{error}");
}

/// Under that wrong checksum, so that nothing but the checksums in the table can tell.
#[tokio::test]
async fn every_byte_of_a_table_is_under_a_checksum_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    set(&store, "k", "v").await.unwrap();
    store.settle().unwrap();
    fuzzing::flush(&store).unwrap();
    drop(store);
    let tables = files(&folder.path().join("engine/keyspaces/1/tables"));
    let whole = std::fs::read(&tables[0]).unwrap();
    assert!(fuzzing::table_is_sound(&tables[0]).unwrap());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&tables[0], bytes).unwrap();
        assert!(!fuzzing::table_is_sound(&tables[0]).unwrap(), "byte {at} of {}", whole.len());
    }
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&tables[0], &whole[..length]).unwrap();
        assert!(!fuzzing::table_is_sound(&tables[0]).unwrap(), "{length} of {} bytes", whole.len());
    }
}

/// The user that may do nothing of its own.
const NOBODY: u32 = 65_534;

/// Run as somebody who may not write: root may write anywhere.
#[tokio::test]
async fn child_who_may_only_read() {
    let Some(folder) = std::env::var_os("LARDER_CHILD") else { return };
    let folder = Path::new(&folder);
    for name in ["store", "empty"] {
        let error = open(&folder.join(name)).unwrap_err();
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Config, false), "{name}: {error}");
        assert!(error.to_string().contains(&*folder.join(name).to_string_lossy()), "{name}: {error}");
        println!("told: {error}");
    }
}

#[tokio::test]
async fn a_folder_that_may_only_be_read_is_told_and_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let sound = store().await;
    let folder = tempfile::tempdir().unwrap();
    let (kept, empty) = (folder.path().join("store"), folder.path().join("empty"));
    std::fs::create_dir(&kept).unwrap();
    std::fs::create_dir(&empty).unwrap();
    common::copy(sound.path(), &kept);
    let all = files(&kept);
    let before: Vec<Vec<u8>> = all.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let folders = ["", "engine", "engine/keyspaces"].map(|name| kept.join(name));
    let may = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    all.iter().for_each(|path| may(path, 0o444));
    folders.iter().chain([&empty]).for_each(|path| may(path, 0o555));
    may(folder.path(), 0o755);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_who_may_only_read", "--nocapture"]).env("LARDER_CHILD", folder.path());
    if rustix::process::geteuid().is_root() {
        child.uid(NOBODY).gid(NOBODY);
    }
    let output = child.output().unwrap();
    folders.iter().chain([&empty]).for_each(|path| may(path, 0o755));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.matches("told: ").count() == 2, "{output:?}");
    assert_eq!(files(&kept), all, "nothing was made");
    assert!(all.iter().zip(before).all(|(path, before)| std::fs::read(path).unwrap() == before));
    assert_eq!(files(&empty), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn what_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let error = open(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("is no folder"), "{error}");
    let error = open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("no durable store: it holds file"), "{error}");
    assert_eq!(files(folder.path()), [file]);
}

/// Other programs have files of the names that ours have, too. None of them is written, made or removed.
#[tokio::test]
async fn a_folder_of_another_program_is_left_as_it_is() {
    let alike: [&[(&str, &str)]; 7] = [
        &[("larder", "\x7fELF"), ("lock", "held by somebody\n")],
        &[("larder", "")],
        &[("larder/main.rs", "fn main() {}")],
        &[("lock", "held by somebody\n")],
        &[("lock/holder", "1")],
        &[("notes.new", "mine")],
        &[("engine.new", ""), ("lock", "17\n")],
    ];
    for theirs in alike {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in theirs {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{theirs:?}: {error}");
        assert!(error.to_string().contains("durable store"), "{error}");
        let mut found: Vec<(String, String)> = files(folder.path())
            .into_iter()
            .map(|path| {
                let name = path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(&path).unwrap())
            })
            .collect();
        found.sort();
        let theirs: Vec<(String, String)> = theirs.iter().map(|&(name, text)| (name.into(), text.into())).collect();
        assert_eq!(found, theirs);
    }
}

/// What a process that died while it made a store left is none of anybody else's.
#[tokio::test]
async fn a_store_that_was_hardly_begun_is_made_anew() {
    for text in ["", "4711\n", "\0\0\0\0\0"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("lock"), text).unwrap();
        std::fs::write(folder.path().join("larder.new"), "larder dura").unwrap();
        drop(open(folder.path()).unwrap());
    }
}

#[tokio::test]
async fn a_newer_layout_is_refused() {
    let folder = store().await;
    let path = folder.path().join("larder");
    let text = std::fs::read_to_string(&path).unwrap();
    let body = text.replace("version 3\n", "version 4\n");
    let body = &body[..body.rfind("check").unwrap()];
    let check = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    std::fs::write(&path, format!("{body}check {check:016x}\n")).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("layout 4; this program knows 3"), "{error}");
}

#[tokio::test]
async fn a_folder_of_the_first_layout_opens_and_is_of_the_newest_then() {
    let folder = store().await;
    let path = folder.path().join("larder");
    let text = std::fs::read_to_string(&path).unwrap();
    let body = text.replace("version 3\n", "version 1\n");
    let body = &body[..body.rfind("check").unwrap()];
    let check = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    let first = format!("{body}check {check:016x}\n");
    std::fs::write(&path, &first).unwrap();
    // Not before the store is found to be whole, and no older than its witness saw it.
    let journal =
        files(folder.path()).into_iter().rfind(|path| path.extension().is_some_and(|it| it == "jnl")).unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    std::fs::write(&journal, &bytes).unwrap();
    let witness = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(witness.path(), "none").unwrap();
    assert_eq!(Options::new(folder.path()).witness(witness.path()).open().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    drop(open(folder.path()).unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_it() {
    let folder = store().await;
    let store = open(folder.path()).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false));
    assert!(error.to_string().contains(&format!("open in process {}", std::process::id())), "{error}");
    let waiting = {
        let options = Options::new(folder.path()).wait(std::time::Duration::from_secs(20));
        std::thread::spawn(|| options.open().map(drop))
    };
    drop(store);
    waiting.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_store_whose_making_was_cut_short_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    let path = folder.path().join("larder");
    let text = std::fs::read_to_string(&path).unwrap();
    let body = text.replace("ready yes\n", "ready no\n");
    let body = &body[..body.rfind("check").unwrap()];
    let check = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    std::fs::write(&path, format!("{body}check {check:016x}\n")).unwrap();
    std::fs::remove_dir_all(folder.path().join("engine").join("keyspaces")).unwrap();
    let store = open(folder.path()).unwrap();
    set(&store, "k", "v").await.unwrap();
}

/// A value may hold what a journal holds, also by somebody who knows which store it is and guesses its numbers.
#[tokio::test]
async fn batches_in_the_value_of_a_torn_batch_are_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    set(&store, "kept", "v").await.unwrap();
    let (incarnation, next) = (store.incarnation(), store.stats().unwrap().sequence + 1);
    let frame = |store, number, sequence, synced| fuzzing::synced_batch(store, number, sequence, synced);
    let frames = [
        fuzzing::batch(1 << 20, u64::MAX, &[]),
        frame(incarnation + 1, 1 << 20, next + 1, next),
        frame(incarnation, 1 << 20, next + 1, u64::MAX),
        frame(incarnation, 1 << 20, u64::MAX, u64::MAX - 1),
        frame(incarnation, 1 << 20, next + 1_000_000, next),
        frame(incarnation, u64::MAX, next + 1, next),
        frame(incarnation, 0, next + 1, next),
        frame(incarnation, 1 << 20, next, next - 1),
    ];
    let value = frames.concat();
    set(&store, "torn", [&value[..], &[7; 100_000]].concat()).await.unwrap();
    drop(store);
    let journal = files(folder.path()).into_iter().find(|path| path.extension().is_some_and(|it| it == "jnl")).unwrap();
    // As a power cut leaves it: nobody knows of the last batch.
    std::fs::remove_file(folder.path().join("state")).unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    let at = bytes.windows(value.len()).rposition(|bytes| bytes == value).unwrap();
    std::fs::write(&journal, &bytes[..at + value.len() + 10]).unwrap();
    let store = open(folder.path()).unwrap();
    assert!(store.stats().unwrap().torn_bytes > 0);
    assert_eq!(try_get(&store, "kept").await.unwrap().unwrap(), "v");
    assert_eq!(try_get(&store, "torn").await.unwrap(), None);
    drop(store);
    // A batch that is one is believed.
    _ = std::fs::remove_file(folder.path().join("state"));
    let torn = [&bytes[..at + value.len() + 10], &frame(incarnation, 1 << 20, next + 1, next)].concat();
    std::fs::write(&journal, torn).unwrap();
    assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::Corrupt);
}
