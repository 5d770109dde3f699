//! Crashes: processes that are killed under load, power cuts rebuilt from the journal.
//!
//! `LARDER_KILLS=200` and `LARDER_CUTS=500` make the tests longer.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::syncs::refuse_syncs;
use common::{count_of, get, incr, newest_journal, set, times};
use larder_core::{Batch, Ctx, ErrorKind, Key, Op, PutMode, Reply, Store, Ttl};
use larder_store_durable::{Direct, DirectItem, DirectNext, DurableStore, Options, Sync};

/// Writers of a child.
const WRITERS: usize = 24;

/// Runs one of this file's tests in a process of its own, which finds out by the environment that it is the child.
fn child(test: &str, folder: &Path, sync: Sync) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("LARDER_CHILD", folder).env("LARDER_SYNC", sync.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// The store that a child is to work on; `None` in the parent.
fn childs_store() -> Option<DurableStore> {
    let folder = std::env::var_os("LARDER_CHILD")?;
    let sync = std::env::var("LARDER_SYNC").unwrap().parse().unwrap();
    Some(Options::new(folder).sync(sync).open().unwrap())
}

/// What a child writes beside each count: the count alone, and so often under another key; or about 1 MB, so that the engine writes a table and begins another journal every second or so.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    Small,
    Large,
}

impl Size {
    /// Every third three of kills is of large ones, one of each setting.
    fn of(kill: usize) -> Size {
        if kill / 3 % 3 == 2 { Size::Large } else { Size::Small }
    }

    fn keys(self) -> u64 {
        if self == Size::Large { 3 } else { 50 }
    }

    fn key(self, writer: usize, count: u64) -> String {
        let name = if self == Size::Large { 'l' } else { 'w' };
        format!("{name}{writer}-{}", count % self.keys())
    }

    fn value(self, count: u64) -> Vec<u8> {
        let mut value = count.to_string().into_bytes();
        if self == Size::Large {
            // Another length each time.
            value.resize(1_000_000 + count as usize % 1_000, b' ');
        }
        value
    }

    /// The count in what is stored, which must be whole.
    fn count(self, value: &[u8]) -> u64 {
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let count = String::from_utf8_lossy(&value[..digits]).parse().unwrap();
        assert!(self.value(count) == value, "{count} is not as it was written");
        count
    }

    /// After how many counts a child is killed: where values are large, about as the engine writes a table of the first 64 MB, begins another journal, and then the same again.
    fn lines(self) -> usize {
        if self == Size::Large { fastrand::usize(30..90) } else { fastrand::usize(1..400) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_counts_until_it_is_killed() {
    let Some(store) = childs_store() else { return };
    let size = if std::env::var_os("LARDER_LARGE").is_some() { Size::Large } else { Size::Small };
    let store = Arc::new(store);
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                loop {
                    let count = incr(&store, &format!("n{writer}")).await.unwrap();
                    set(&store, &size.key(writer, count), size.value(count)).await.unwrap();
                    // One write a line, so that a line is there whole or not at all.
                    _ = std::io::stdout().write_all(format!("acknowledged {writer} {count}\n").as_bytes());
                }
            })
        })
        .collect();
    for task in tasks {
        _ = task.await;
    }
}

/// Kills a child after it acknowledged some lines: the first and the last count of each writer that it acknowledged; 0 for none. A child before
/// may have been killed between its counter and its value, so only these are known.
fn kill_one(folder: &Path, sync: Sync, size: Size) -> [(u64, u64); WRITERS] {
    let mut child = child("child_that_counts_until_it_is_killed", folder, sync);
    if size == Size::Large {
        child.env("LARDER_LARGE", "1");
    }
    let mut process = child.spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut told = [(0, 0); WRITERS];
    let mut note = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["acknowledged", writer, count] = words[..] {
            let told = &mut told[writer.parse::<usize>().unwrap()];
            told.1 = count.parse().unwrap();
            told.0 = if told.0 == 0 { told.1 } else { told.0 };
        }
    };
    let (mut seen, mut line, lines) = (0, String::new(), size.lines());
    while seen < lines {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended by itself");
        seen += usize::from(line.starts_with("acknowledged"));
        note(line.trim_end());
    }
    process.kill().unwrap(); // SIGKILL
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    process.wait().unwrap();
    rest.split_inclusive('\n').filter(|line| line.ends_with('\n')).for_each(|line| note(line.trim_end()));
    told
}

/// Numbers of the journals of a folder.
fn journals(folder: &Path) -> Vec<u64> {
    common::journals(folder).into_iter().map(|(number, _)| number).collect()
}

#[tokio::test]
async fn a_process_killed_under_load_loses_nothing_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [Sync::Always, Sync::Every(Duration::from_millis(100)), Sync::Never];
    let (mut large, mut begun, mut amid) = (0, 0, 0);
    for kill in 0..times("LARDER_KILLS", 10) {
        let (sync, size) = (settings[kill % 3], Size::of(kill));
        let newest = || journals(folder.path()).into_iter().max().unwrap();
        let before = if size == Size::Large { newest() } else { 0 };
        let told = kill_one(folder.path(), sync, size);
        if size == Size::Large {
            (large, begun) = (large + 1, begun + newest() - before);
            amid += usize::from(journals(folder.path()).len() > 1);
        }
        let store = Options::new(folder.path()).open().unwrap();
        for (writer, &(first, count)) in told.iter().enumerate() {
            let stored = count_of(&store, &format!("n{writer}")).await;
            // What was on its way may have been written, too.
            let acknowledged = count == 0 || (count..=count + 1).contains(&stored);
            assert!(acknowledged, "kill {kill} at {sync}: writer {writer} was told {count}, and {stored} is there");
            for count in (count + 1).saturating_sub(size.keys().min(40)).max(first.max(1))..=count {
                let value = get(&store, &size.key(writer, count)).await.map(|value| size.count(&value));
                assert!(value.is_some_and(|value| value >= count), "kill {kill}: {value:?} where {count} was");
            }
        }
    }
    println!(
        "{large} kills with large values: {begun} journals were begun, {amid} kills came while tables were written"
    );
    assert!(large < 3 || begun > 0, "no journal was full");
}

/// As large as the system lets a file of a child grow: past what the engine prepares for its journal, so that a write fails in its middle.
const FILE_BYTES_MAX: usize = (66 << 20) + 512 * 101;

/// The values that fill it: some that fit, and then one that does not.
fn filling(number: usize) -> Vec<u8> {
    vec![number as u8; if number <= 20 { 300_000 + number } else { 62 << 20 }]
}

#[tokio::test]
async fn child_that_writes_until_the_disk_refuses() {
    let Some(store) = childs_store() else { return };
    let mut acknowledged = 0;
    let error = loop {
        match set(&store, &format!("v{}", acknowledged + 1), filling(acknowledged + 1)).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 400, "the limit was never met");
    };
    assert!(error.is_unknown(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    for number in 1..=acknowledged {
        assert_eq!(get(&store, &format!("v{number}")).await.unwrap(), filling(number), "reads go on");
    }
    let error = set(&store, "small", "v").await.unwrap_err();
    assert!(!error.is_unknown() && error.to_string().contains("open the store anew"), "{error}");
    println!("acknowledged {acknowledged}");
}

/// What a child says, none of whose files may grow past so many bytes. A limit of the system stands in for a disk: the write that meets it is cut short, as there.
fn said_within(test: &str, folder: &Path, file_bytes_max: usize) -> String {
    let child = child(test, folder, Sync::Always);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", file_bytes_max / 512), "sh"]);
    limited.arg(child.get_program()).args(child.get_args());
    limited.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[tokio::test]
async fn a_disk_that_fills_up_in_the_middle_of_a_write_takes_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let text = said_within("child_that_writes_until_the_disk_refuses", folder.path(), FILE_BYTES_MAX);
    let acknowledged: usize = text.lines().find_map(|line| line.strip_prefix("acknowledged ")?.parse().ok()).unwrap();
    let store = Options::new(folder.path()).open().unwrap();
    assert!(store.stats().unwrap().torn_bytes > 0, "the write was cut short");
    for number in 1..=acknowledged {
        assert_eq!(get(&store, &format!("v{number}")).await.unwrap(), filling(number));
    }
    assert_eq!(get(&store, &format!("v{}", acknowledged + 1)).await, None);
    set(&store, "small", "v").await.unwrap();
}

#[tokio::test]
async fn child_that_opens_where_nothing_can_be_written() {
    let Some(folder) = std::env::var_os("LARDER_CHILD") else { return };
    let [new, kept] = ["new", "kept"].map(|name| Path::new(&folder).join(name));
    let error = Options::new(&new).open().unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Full, false), "{error}");
    assert!(error.to_string().contains(&*new.to_string_lossy()), "{error}");
    let store = Options::new(&kept).open().unwrap();
    assert_eq!(get(&store, "k").await.unwrap(), "v", "what is there is read");
    let error = set(&store, "k", "w").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(get(&store, "k").await.unwrap(), "v");
    println!("acknowledged 0");
}

#[tokio::test]
async fn on_a_full_disk_a_store_is_not_made_and_one_that_is_there_is_read_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [new, kept] = ["new", "kept"].map(|name| folder.path().join(name));
    set(&Options::new(&kept).open().unwrap(), "k", "v").await.unwrap();
    // Lists of tables that are not needed any more the engine removes when it is opened next.
    drop(Options::new(&kept).open().unwrap());
    // Zeros at the end of a journal are room that was set aside; whose number is in `lock`, changes.
    let lock = kept.join("lock");
    let now = || -> BTreeMap<PathBuf, Vec<u8>> {
        let others = common::files(&kept).into_iter().filter(|path| *path != lock);
        others.map(|path| (path.clone(), common::without_zeros(&path))).collect()
    };
    let before = now();
    let said = said_within("child_that_opens_where_nothing_can_be_written", folder.path(), 0);
    assert!(said.contains("acknowledged 0"), "{said}");
    let after = now();
    let mut changed = before.keys().chain(after.keys()).filter(|path| before.get(*path) != after.get(*path));
    assert_eq!(changed.next(), None);
    assert_eq!(get(&Options::new(&kept).open().unwrap(), "k").await.unwrap(), "v");
    // Once there is room, it is made.
    set(&Options::new(&new).open().unwrap(), "k", "v").await.unwrap();
}

#[tokio::test]
async fn child_whose_disk_refuses_to_sync() {
    let Some(store) = childs_store() else { return };
    for number in 1..=50 {
        assert_eq!(incr(&store, "n").await.unwrap(), number);
    }
    refuse_syncs();
    let error = incr(&store, "n").await.unwrap_err();
    assert!(error.is_unknown() && error.kind() == ErrorKind::Unavailable, "{error}");
    for _ in 0..3 {
        let error = incr(&store, "n").await.unwrap_err();
        assert!(!error.is_unknown() && error.to_string().contains("open the store anew"), "{error}");
    }
    assert_eq!(count_of(&store, "n").await, 50, "nobody sees what may not be on disk");
    println!("acknowledged 50");
}

#[tokio::test]
async fn child_that_answers_requests_whose_disk_refuses_to_sync() {
    let Some(store) = childs_store() else { return };
    let direct = Direct::new(store);
    let put = |value: &'static str| {
        let next = move |_: Option<&DirectItem>, cas| {
            DirectNext::Put(DirectItem { value: value.into(), flags: 0, marks: 0, cas, expiry_ms: None })
        };
        direct.update(b"k", next)
    };
    let settled = async |ticket| {
        std::future::poll_fn(|cx| {
            direct.poll_settled(ticket, cx).map_or_else(|error| Poll::Ready(Err(error)), |done| done.map(Ok))
        })
        .await
    };
    settled(put("1").unwrap()).await.unwrap();
    refuse_syncs();
    let (first, second) = (put("2").unwrap(), put("3"));
    settled(first).await.unwrap_err();
    if let Ok(second) = second {
        settled(second).await.unwrap_err();
    }
    let (item, seen) = direct.get(b"k").unwrap();
    assert_eq!((&item.unwrap().value[..], seen), (&b"1"[..], 0), "reads go on, with what is on disk");
    assert!(put("4").unwrap_err().to_string().contains("open the store anew"));
    assert!(direct.clear().is_err());
    println!("acknowledged 1");
}

#[tokio::test]
async fn child_that_settles_while_its_disk_refuses_to_sync() {
    let Some(store) = childs_store() else { return };
    set(&store, "k", "v").await.unwrap();
    refuse_syncs();
    let (told, settled) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(store.settle().map_err(|error| error.kind())));
    let settled = settled.recv_timeout(Duration::from_secs(20)).expect("it ends, though the engine's worker is gone");
    assert_eq!(settled, Err(ErrorKind::Unavailable));
    println!("acknowledged 1");
}

/// The worker's write fails, and nobody writes then that would be told.
#[tokio::test]
async fn child_whose_engine_fails_beside_it() {
    let Some(store) = childs_store() else { return };
    set(&store, "k", "v").await.unwrap();
    refuse_syncs();
    assert!(store.settle().is_err());
    let direct = Direct::new(store);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while direct.failure().is_none() {
        assert!(std::time::Instant::now() < until, "nobody is told");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("acknowledged 1");
}

#[tokio::test]
async fn a_store_that_cannot_write_its_tables_says_so() {
    for test in ["child_that_settles_while_its_disk_refuses_to_sync", "child_whose_engine_fails_beside_it"] {
        let folder = tempfile::tempdir().unwrap();
        let output = child(test, folder.path(), Sync::Always).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("acknowledged 1"), "{output:?}");
        assert_eq!(get(&Options::new(folder.path()).open().unwrap(), "k").await.unwrap(), "v");
    }
}

#[tokio::test]
async fn a_sync_that_fails_is_told_to_all_who_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let test = "child_that_answers_requests_whose_disk_refuses_to_sync";
    let output = child(test, folder.path(), Sync::Always).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("acknowledged 1"), "{output:?}");
    let value = get(&Options::new(folder.path()).open().unwrap(), "k").await.unwrap();
    assert!(["1", "2", "3"].contains(&std::str::from_utf8(&value).unwrap()), "{value:?}");
}

#[tokio::test]
async fn a_sync_that_fails_ends_all_writing_until_the_store_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let output = child("child_whose_disk_refuses_to_sync", folder.path(), Sync::Always).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("acknowledged 50"), "{output:?}");
    let store = Options::new(folder.path()).open().unwrap();
    let count = count_of(&store, "n").await;
    assert!((50..=51).contains(&count), "{count}");
    assert_eq!(incr(&store, "n").await.unwrap(), count + 1);
}

/// The journal of a store, and where it ends; how far each write went.
struct Recording {
    folder: tempfile::TempDir,
    journal: Vec<u8>,
    /// Where the journal ended after each write.
    ends: Vec<usize>,
    /// The store's note of what is on disk, as it stood after each write.
    states: Vec<Option<Vec<u8>>>,
    /// The last batch that the store knew to be on disk, after each write and its note.
    synced: Vec<u64>,
}

/// Writes `count` values, each once as a batch of its own, and a counter that says how many, and keeps the files as they are then.
async fn record(count: usize, sync: Sync) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(sync).open().unwrap();
    record_on(folder, store, count).await
}

/// As [`record`], each write so many changes at once that the store writes them as one round.
async fn record_rounds(count: usize, sync: Sync) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(sync).open().unwrap();
    record_by(folder, store, count, async |store, number, value| {
        let put = |key: String, value: Vec<u8>| Op::put(Key::new(key).unwrap(), PutMode::Set, value, Ttl::Never);
        let mut batch = Batch::new();
        batch.push(put(format!("v{number}"), value));
        batch.push(put("n".to_owned(), number.to_string().into_bytes()));
        (0..BESIDE).for_each(|other| batch.push(put(format!("beside{other}"), number.to_string().into_bytes())));
        for reply in store.run(Ctx::default(), batch).await {
            assert!(matches!(reply, Ok(Reply::Stored)), "{reply:?}");
        }
    })
    .await
}

/// Items that a round sets besides the two that the others set.
const BESIDE: usize = 10;

/// As [`record`], on a store that may hold something. The journal must not go on in another file meanwhile.
async fn record_on(folder: tempfile::TempDir, store: DurableStore, count: usize) -> Recording {
    record_by(folder, store, count, async |store, number, value| {
        set(store, &format!("v{number}"), value).await.unwrap();
        assert_eq!(incr(store, "n").await.unwrap(), number as u64);
    })
    .await
}

async fn record_by(
    folder: tempfile::TempDir,
    store: DurableStore,
    count: usize,
    write: impl AsyncFn(&DurableStore, usize, Vec<u8>),
) -> Recording {
    let kept = tempfile::tempdir().unwrap();
    let journal = newest_journal(folder.path());
    let state = || std::fs::read(folder.path().join("state")).ok();
    let synced_now = || store.stats().unwrap().synced;
    let (mut ends, mut states) = (vec![common::without_zeros(&journal).len()], vec![state()]);
    let mut synced = vec![synced_now()];
    for number in 1..=count {
        let value = vec![number as u8; fastrand::usize(0..3_000)];
        write(&store, number, value).await;
        ends.push(common::without_zeros(&journal).len());
        states.push(state());
        synced.push(synced_now());
    }
    common::copy(folder.path(), kept.path());
    drop(store);
    let journal = common::without_zeros(&kept.path().join("engine").join(journal.file_name().unwrap()));
    Recording { folder: kept, journal, ends, states, synced }
}

/// The files as a power cut may leave them that comes behind a write which is on disk: whole up to it, and behind it, up to byte `written`, some of the sectors.
fn cut_power(recording: &Recording, write: usize, written: usize) -> tempfile::TempDir {
    cut_behind(recording, recording.ends[write], written, write)
}

/// The same of one that comes after a write, with all up to byte `synced` on disk.
fn cut_behind(recording: &Recording, synced: usize, written: usize, write: usize) -> tempfile::TempDir {
    const SECTOR: usize = 512;
    let image = tempfile::tempdir().unwrap();
    common::copy(recording.folder.path(), image.path());
    let mut bytes = recording.journal[..written].to_vec();
    let (mut sector, keeps) = (synced / SECTOR, fastrand::u8(0..4));
    while sector * SECTOR < written {
        let range = (sector * SECTOR).max(synced)..((sector + 1) * SECTOR).min(written);
        if fastrand::u8(0..4) >= keeps {
            bytes[range].fill(0);
        }
        sector += 1;
    }
    if fastrand::bool() {
        // The file's new length may be on disk before what it holds, or not.
        bytes.truncate(fastrand::usize(synced..=written));
    }
    std::fs::write(newest_journal(image.path()), bytes).unwrap();
    match &recording.states[write] {
        Some(state) => std::fs::write(image.path().join("state"), state).unwrap(),
        None => _ = std::fs::remove_file(image.path().join("state")),
    }
    image
}

/// Opens an image, which must hold the first `n` writes for some `n`, and nothing else: `n`.
async fn count_in_image(image: &Path) -> usize {
    let store = Options::new(image).open().unwrap();
    let count = count_of(&store, "n").await as usize;
    for number in 1..=count {
        let value =
            get(&store, &format!("v{number}")).await.unwrap_or_else(|| panic!("{number} of {count} is missing"));
        assert!(value.iter().all(|&byte| byte == number as u8));
    }
    assert_eq!(get(&store, &format!("v{}", count + 2)).await, None, "nothing is there out of order");
    // It goes on from there.
    assert_eq!(incr(&store, "n").await.unwrap(), count as u64 + 1);
    drop(store);
    assert_eq!(count_of(&Options::new(image).open().unwrap(), "n").await as usize, count + 1);
    count
}

#[tokio::test]
async fn a_power_cut_takes_nothing_that_was_synced_wherever_it_cuts() {
    const WRITES: usize = 60;
    let recording = record(WRITES, Sync::Always).await;
    let batches = common::ends(&recording.journal);
    let first = batches.partition_point(|end| *end < recording.ends[0]);
    for cut in 0..times("LARDER_CUTS", 40) {
        // Each batch is on disk before the next is written, also of the two that a write has here: a cut tears one.
        let torn = fastrand::usize(first + 1..batches.len());
        let (synced, whole) = (batches[torn - 1], batches[torn]);
        let written = if fastrand::bool() { whole } else { fastrand::usize(synced..=whole) };
        let acknowledged = recording.ends.partition_point(|end| *end <= synced) - 1;
        let image = cut_behind(&recording, synced, written, acknowledged);
        let count = count_in_image(image.path()).await;
        assert!((acknowledged..=acknowledged + 1).contains(&count), "cut {cut}: {count} of {acknowledged}");
    }
}

#[tokio::test]
async fn a_power_cut_takes_only_an_end_of_what_was_never_synced() {
    const WRITES: usize = 60;
    take_ends(&record(WRITES, Sync::Never).await, WRITES).await;
}

#[tokio::test]
async fn a_power_cut_in_a_journal_s_later_file_takes_only_an_end_of_what_was_never_synced() {
    const WRITES: usize = 60;
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(Sync::Never).open().unwrap();
    let first = newest_journal(folder.path());
    // The engine begins another file behind 64 MB.
    for _ in 0..66 {
        set(&store, "large", vec![7; 1_000_000]).await.unwrap();
    }
    store.settle().unwrap();
    assert_ne!(newest_journal(folder.path()), first);
    // What is in tables is in no journal any more, a moment later.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while first.exists() {
        assert!(std::time::Instant::now() < until, "the engine keeps the journal of what is in tables");
        store.settle().unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    set(&store, "first of its file", "v").await.unwrap();
    let stats = store.stats().unwrap();
    assert_eq!(stats.synced, stats.sequence, "the first batch of a file is on disk before the second is written");
    take_ends(&record_on(folder, store, WRITES).await, WRITES).await;
}

#[tokio::test]
async fn a_power_cut_takes_nothing_that_was_acknowledged_before_the_last_sync_of_the_timer() {
    const WRITES: usize = 60;
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(Sync::Every(Duration::from_millis(500))).open().unwrap();
    let recording = record_by(folder, store, WRITES, async |store, number, value| {
        set(store, &format!("v{number}"), value).await.unwrap();
        assert_eq!(incr(store, "n").await.unwrap(), number as u64);
        if number == WRITES / 2 {
            let written = store.stats().unwrap().sequence;
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while store.stats().unwrap().synced < written {
                assert!(std::time::Instant::now() < until, "nobody syncs");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
    // Batches count from 1, and all are in this file.
    let batches = common::ends(&recording.journal);
    let (mut kept, mut taken) = (0, 0);
    for cut in 0..times("LARDER_CUTS", 40) {
        let acknowledged = fastrand::usize(WRITES / 2..=WRITES);
        let synced = batches[recording.synced[acknowledged] as usize - 1];
        let written = recording.ends[acknowledged].max(synced);
        let image = cut_behind(&recording, synced, fastrand::usize(synced..=written), acknowledged);
        let count = count_in_image(image.path()).await;
        let on_disk = recording.ends.partition_point(|end| *end <= synced) - 1;
        assert!((on_disk..=acknowledged).contains(&count), "cut {cut}: {count} of {on_disk} to {acknowledged}");
        (kept, taken) = (kept.max(on_disk), taken + acknowledged - count);
    }
    assert!(kept >= WRITES / 2 && taken > 0, "{kept} were on disk, and {taken} not");
}

/// A store of `values`, the first ten in tables, the others behind them in the journal alone; which that is, and what it holds.
async fn ten_in_tables(sync: Sync, values: usize) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(sync).open().unwrap();
    for number in 0..values {
        if number == 10 {
            store.settle().unwrap();
        }
        set(&store, &format!("v{number}"), number.to_string()).await.unwrap();
    }
    let journal = newest_journal(folder.path());
    let bytes = common::without_zeros(&journal);
    drop(store);
    (folder, journal, bytes)
}

/// A store of ten values in tables, and as many behind them in the journal alone; the journal's last `lost` batches are lost, also where the tables have them, and nothing beside the engine says how much
/// there was.
async fn tables_ahead(sync: Sync, lost: usize) -> tempfile::TempDir {
    let (folder, journal, bytes) = ten_in_tables(sync, 20).await;
    let ends = common::ends(&bytes);
    std::fs::write(&journal, &bytes[..ends[ends.len() - 1 - lost]]).unwrap();
    std::fs::remove_file(folder.path().join("state")).unwrap();
    folder
}

/// Opens it: it has its first `count` values and no other, takes another, and has that in its next life.
async fn has_first(image: &Path, count: usize) {
    for (life, count) in [(1, count), (2, count + 1)] {
        let store = Options::new(image).open().unwrap();
        for number in 0..count {
            assert_eq!(get(&store, &format!("v{number}")).await, Some(number.to_string().into()), "life {life}");
        }
        assert_eq!(get(&store, &format!("v{count}")).await, None, "life {life}");
        set(&store, &format!("v{count}"), count.to_string()).await.unwrap();
    }
}

/// What a sync that failed leaves, where another thread of the engine wrote a table all the same, and the power was cut.
#[tokio::test]
async fn a_journal_that_lost_what_the_tables_have_is_begun_anew() {
    has_first(tables_ahead(Sync::Never, 5).await.path(), 15).await;
    has_first(tables_ahead(Sync::Never, 10).await.path(), 10).await;
    for lost in [11, 15] {
        let image = tables_ahead(Sync::Never, lost).await;
        let old = newest_journal(image.path());
        has_first(image.path(), 10).await;
        assert!(!old.exists(), "nothing counts on from what the old journal ends with");
        assert_ne!(newest_journal(image.path()), old);
    }
}

#[tokio::test]
async fn a_journal_that_is_begun_anew_is_so_again_where_a_crash_came_between() {
    let image = tables_ahead(Sync::Never, 12).await;
    let (number, old) = common::journals(image.path()).pop().unwrap();
    // The new one is there, and the old not yet gone.
    std::fs::write(old.with_file_name(format!("{}.jnl", number + 1)), b"").unwrap();
    has_first(image.path(), 10).await;
    assert_eq!(common::journals(image.path()), [(number + 2, old.with_file_name(format!("{}.jnl", number + 2)))]);
}

/// Each write was on disk when it was acknowledged, and the tables say so of those before their last.
#[tokio::test]
async fn a_journal_that_lost_what_was_on_disk_is_not_begun_anew() {
    has_first(tables_ahead(Sync::Always, 11).await.path(), 10).await;
    for lost in [12, 15] {
        let folder = tables_ahead(Sync::Always, lost).await;
        for _ in 0..2 {
            let error = Options::new(folder.path()).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("the journal ends with batch"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_journal_that_may_lack_a_whole_file_is_not_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = Options::new(folder.path()).sync(Sync::Never).open().unwrap();
    for _ in 0..65 {
        set(&store, "large", vec![7; 1_000_000]).await.unwrap();
    }
    let old = newest_journal(folder.path());
    let bytes = common::without_zeros(&old);
    // The engine writes tables of all of it, and begins another file.
    store.settle().unwrap();
    drop(store);
    let newer = newest_journal(folder.path());
    assert_ne!(newer, old);
    std::fs::remove_file(newer).unwrap();
    let ends = common::ends(&bytes);
    std::fs::write(old, &bytes[..ends[ends.len() - 2]]).unwrap();
    std::fs::remove_file(folder.path().join("state")).unwrap();
    let error = Options::new(folder.path()).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("the journal ends with batch"), "{error}");
}

#[tokio::test]
async fn a_power_cut_takes_only_whole_rounds() {
    const WRITES: usize = 60;
    let recording = record_rounds(WRITES, Sync::Never).await;
    for _ in 0..times("LARDER_CUTS", 40) {
        let synced = fastrand::usize(1..WRITES);
        let image = cut_power(&recording, synced, fastrand::usize(recording.ends[synced]..=recording.ends[WRITES]));
        let beside = {
            let store = Options::new(image.path()).open().unwrap();
            let count = count_of(&store, "n").await;
            for other in 0..BESIDE {
                assert_eq!(count_of(&store, &format!("beside{other}")).await, count, "half a round");
            }
            count
        };
        let count = count_in_image(image.path()).await;
        assert!(count >= synced && count as u64 == beside, "{count} of {synced} that the system had written");
    }
}

/// Cuts the power again and again after the first write, with none behind it synced: the store opens by itself, with all up to some write.
async fn take_ends(recording: &Recording, writes: usize) {
    let mut taken = 0;
    for cut in 0..times("LARDER_CUTS", 40) {
        // The first batch of a file is on disk before anything is written behind it.
        let synced = fastrand::usize(1..writes);
        let written = fastrand::usize(recording.ends[synced]..=recording.ends[writes]);
        let image = cut_power(recording, synced, written);
        let count = count_in_image(image.path()).await;
        assert!(count >= synced, "cut {cut}: {count} of {synced} that the system had written");
        taken += writes - count;
    }
    assert!(taken > 0, "no cut took anything");
}

/// A store of ten values in tables, and thirty behind them in three files of the journal, as a kill leaves while the engine writes its second table and the third fills.
async fn three_journals() -> (tempfile::TempDir, [PathBuf; 3]) {
    let (folder, journal, bytes) = ten_in_tables(Sync::Always, 40).await;
    let ends = common::ends(&bytes);
    let cuts = [0, ends[ends.len() - 21], ends[ends.len() - 11], ends[ends.len() - 1]];
    let paths = [0, 1, 2].map(|number| journal.with_file_name(format!("{number}.jnl")));
    for (number, path) in paths.iter().enumerate() {
        std::fs::write(path, &bytes[cuts[number]..cuts[number + 1]]).unwrap();
    }
    (folder, paths)
}

/// The engine writes what stands behind the gap to tables as soon as it opens: the gap is found before.
#[tokio::test]
async fn a_journal_that_is_gone_from_between_the_tables_and_the_others_is_missed_at_every_open() {
    has_first(three_journals().await.0.path(), 40).await;
    for (gone, told) in [(0, "part of the journal is gone"), (1, "does not count on from the one before it")] {
        let (folder, paths) = three_journals().await;
        std::fs::remove_file(&paths[gone]).unwrap();
        for _ in 0..5 {
            let error = Options::new(folder.path()).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}

/// What is left is a store that is older, whole up to its end; and of an empty folder nobody can tell that it held one. Nothing in either says otherwise.
#[tokio::test]
async fn only_a_witness_tells_that_the_newest_journal_went_with_the_note_or_all_of_it() {
    let (whole, [.., newest]) = three_journals().await;
    let (seen, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let witness = elsewhere.path().join("witness");
    common::copy(whole.path(), seen.path());
    drop(Options::new(seen.path()).witness(&witness).open().unwrap());
    let newest = newest.strip_prefix(whole.path()).unwrap();
    let left = |remove: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        common::copy(whole.path(), folder.path());
        remove(folder.path());
        folder
    };
    let kind = |options: Options| options.open().map(drop).map_err(|error| error.kind());
    let without_newest = |folder: &Path| std::fs::remove_file(folder.join(newest)).unwrap();
    let without_end = |folder: &Path| {
        let bytes = std::fs::read(folder.join(newest)).unwrap();
        let ends = common::ends(&bytes);
        std::fs::write(folder.join(newest), &bytes[..ends[ends.len() - 6]]).unwrap();
    };
    let without_state = |folder: &Path| std::fs::remove_file(folder.join("state")).unwrap();
    let without_both = |folder: &Path| {
        without_newest(folder);
        without_state(folder);
    };
    let without_end_and_state = |folder: &Path| {
        without_end(folder);
        without_state(folder);
    };
    let without_all = |folder: &Path| {
        std::fs::remove_dir_all(folder.join("engine")).unwrap();
        ["state", "larder", "lock"].iter().for_each(|name| std::fs::remove_file(folder.join(name)).unwrap());
    };
    type Remove<'a> = &'a dyn Fn(&Path);
    let alone: [Remove<'_>; 2] = [&without_newest, &without_end];
    for remove in alone {
        assert_eq!(kind(Options::new(left(remove).path())), Err(ErrorKind::Corrupt), "the note tells of it");
    }
    has_first(left(&without_state).path(), 40).await;
    let gone: [(Remove<'_>, usize, ErrorKind); 3] = [
        (&without_both, 30, ErrorKind::RolledBack),
        (&without_end_and_state, 35, ErrorKind::RolledBack),
        (&without_all, 0, ErrorKind::Lost),
    ];
    for (remove, kept, told) in gone {
        assert_eq!(kind(Options::new(left(remove).path()).witness(&witness)), Err(told), "{kept} are left");
        has_first(left(remove).path(), kept).await;
    }
}
