//! Backups, restores, checks and witnesses.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{count_of, get, incr, key, set};
use larder_core::{Ctx, Error, ErrorKind, ManualClock, Op, PutMode, Remaining, Reply, Store, StoreExt, Ttl, Want};
use larder_dump::{DumpReader, Totals};
use larder_store_durable::{Altered, DurableStore, NextCas, NextTtl, Options};

fn open(folder: &Path) -> DurableStore {
    Options::new(folder).open().unwrap()
}

fn backup(store: &DurableStore) -> Vec<u8> {
    store.backup(Vec::new(), &mut |_| ()).unwrap().0
}

fn restore(folder: &Path, dump: &[u8]) -> Result<Totals, Error> {
    Options::new(folder).restore(dump, &mut |_| ())
}

#[tokio::test]
async fn what_is_restored_is_what_was_backed_up() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = open(&from);
    for n in 0..500 {
        set(&store, &format!("k{n}"), vec![7; n * 10]).await.unwrap();
    }
    set(&store, "large", vec![1; 20 << 20]).await.unwrap();
    let lives = Op::put(key("lives"), PutMode::Set, "v", Ttl::After(Duration::from_secs(600)));
    store.run_one(Ctx::default(), lives).await.unwrap();
    let dump = backup(&store);
    set(&store, "k0", "later").await.unwrap();
    assert_eq!(restore(&to, &dump).unwrap().items, 502);
    let restored = open(&to);
    assert_eq!(get(&restored, "k0").await.unwrap(), "", "later writes are of another moment");
    for n in 1..500 {
        assert_eq!(get(&restored, &format!("k{n}")).await.unwrap(), vec![7; n * 10]);
    }
    assert_eq!(get(&restored, "large").await.unwrap().len(), 20 << 20);
    let item = restored.run_one(Ctx::default(), Op::get(key("lives"), Want::TTL)).await.unwrap().into_item().unwrap();
    assert!(matches!(item.ttl, Remaining::For(left) if left <= Duration::from_secs(600)));
    assert_eq!(restored.check(&mut |_| ()).unwrap().damaged, 0);
}

/// A value may have what the key leaves of `value_bytes_max` and 250 bytes: an append gets there, too.
#[tokio::test]
async fn the_largest_item_that_a_store_takes_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let options = |folder: &Path| Options::new(folder).value_bytes_max(1_000);
    let store = options(&from).open().unwrap();
    set(&store, "k", vec![7; 1_000]).await.unwrap();
    let append = |bytes| Op::put(key("k"), PutMode::Append, vec![8; bytes], Ttl::Never);
    assert_eq!(store.run_one(Ctx::default(), append(249)).await.unwrap(), Reply::Stored);
    assert_eq!(store.run_one(Ctx::default(), append(1)).await.unwrap(), Reply::NotStored);
    let long = "l".repeat(250);
    set(&store, &long, vec![9; 1_000]).await.unwrap();
    let alter = |bytes| {
        let (flags, marks, ttl, cas) = (0, 0, NextTtl::Keep, NextCas::New);
        store.alter(key("a"), move |_| (Altered::Put { value: vec![1; bytes].into(), flags, marks, ttl, cas }, ()))
    };
    assert_eq!(alter(1_250).await.unwrap_err().kind(), ErrorKind::BadInput);
    alter(1_249).await.unwrap();
    let dump = backup(&store);
    assert_eq!(options(&to).restore(&dump[..], &mut |_| ()).unwrap().items, 3);
    let restored = options(&to).open().unwrap();
    assert_eq!(get(&restored, "k").await, get(&store, "k").await);
    assert_eq!(get(&restored, &long).await, get(&store, &long).await);
    let smaller = Options::new(folder.path().join("smaller")).value_bytes_max(999);
    let error = smaller.restore(&dump[..], &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("a value has 1249 bytes; the limit beside this key is 1248"), "{error}");
}

/// What a restore has told to be on disk is never taken for a write that a crash cut short.
#[tokio::test]
async fn damage_behind_a_restore_is_told_and_nothing_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    // Three batches, and one.
    for (megabytes, reads_first) in [(20, false), (20, true), (1, false), (1, true)] {
        let [from, to] = ["from", "to"].map(|name| folder.path().join(format!("{name}{megabytes}{reads_first}")));
        let store = open(&from);
        for n in 0..megabytes {
            set(&store, &format!("k{n}"), vec![7; 1 << 20]).await.unwrap();
        }
        restore(&to, &backup(&store)).unwrap();
        if reads_first {
            assert_eq!(get(&open(&to), "k0").await.unwrap().len(), 1 << 20);
        }
        let path = to.join("engine").join("0.jnl");
        let (whole, ends) = (std::fs::read(&path).unwrap(), common::ends(&common::without_zeros(&path)));
        let end = *ends.last().unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let damages = [
            flipped(end / 2),
            flipped(end - 50),
            whole[..end / 2].to_vec(),
            whole[..end - 1].to_vec(),
            whole[..ends[ends.len() - 2]].to_vec(),
            Vec::new(),
        ];
        for (nth, damaged) in damages.into_iter().enumerate() {
            std::fs::write(&path, &damaged).unwrap();
            let error = Options::new(&to).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{nth}, {megabytes} MB: {error}");
            assert!(std::fs::read(&path).unwrap() == damaged, "{nth}, {megabytes} MB: it was changed");
        }
        std::fs::write(&path, &whole).unwrap();
        let restored = open(&to);
        assert_eq!(restored.torn_bytes(), 0);
        for n in 0..megabytes {
            assert_eq!(get(&restored, &format!("k{n}")).await.unwrap().len(), 1 << 20);
        }
    }
}

/// Also where one before it was killed behind its note.
#[tokio::test]
async fn a_restore_that_fails_leaves_no_note_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = open(&from);
    set(&store, "k", "v").await.unwrap();
    let dump = backup(&store);
    restore(&to, &dump).unwrap();
    assert!(to.join("state").exists());
    is_restoring(&to);
    std::fs::write(to.join("lock"), "1\n").unwrap();
    assert_eq!(restore(&to, &dump[..dump.len() - 1]).unwrap_err().kind(), ErrorKind::Corrupt);
    drop(open(&to));
}

/// As a restore leaves it that is killed at its end.
fn is_restoring(folder: &Path) {
    let path = folder.join("larder");
    let text = std::fs::read_to_string(&path).unwrap().replace("ready yes\n", "ready restoring\n");
    let body = &text[..text.rfind("check").unwrap()];
    std::fs::write(&path, format!("{body}check {:016x}\n", xxhash_rust::xxh3::xxh3_64(body.as_bytes()))).unwrap();
}

/// The store's time goes on from what the wall clock said when it was opened; a store that is made of the backup begins with the wall clock's.
#[tokio::test]
async fn lives_in_a_backup_end_by_the_wall_clock() {
    let [year, hour, life] = [31_536_000, 3_600, 60].map(Duration::from_secs);
    let right = Duration::from_secs(1_700_000_000);
    for (name, wrong) in [("ahead", right + year), ("behind", right - 3 * hour)] {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let clock = Arc::new(ManualClock::at(wrong));
        let store = Options::new(&from).clock(clock.clone()).open().unwrap();
        store.run_one(Ctx::default(), Op::put(key("k"), PutMode::Set, "v", Ttl::After(life))).await.unwrap();
        clock.set_wall(right);
        restore_at(&to, &backup(&store), &clock);
        let restored = Options::new(&to).clock(clock.clone()).open().unwrap();
        let ask = || restored.run_one(Ctx::default(), Op::get(key("k"), Want::TTL));
        let item = ask().await.unwrap().into_item();
        assert_eq!(item.map(|item| item.ttl), Some(Remaining::For(life)), "{name}");
        clock.advance(life);
        assert!(ask().await.unwrap().into_item().is_none(), "{name}");
    }
}

fn restore_at(folder: &Path, dump: &[u8], clock: &Arc<ManualClock>) {
    Options::new(folder).clock(clock.clone()).restore(dump, &mut |_| ()).unwrap();
}

#[tokio::test]
async fn a_backup_is_of_one_moment_while_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&folder.path().join("from")));
    for n in 0..200 {
        set(&store, &format!("pad{n}"), vec![0; 10_000]).await.unwrap();
    }
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0.. {
                // Two in one batch: a moment has both or neither.
                let put = |name: &str| Op::put(key(name), PutMode::Set, n.to_string(), Ttl::Never);
                let replies =
                    larder_core::Store::run(&*store, Ctx::default(), [put("a"), put("z")].into_iter().collect());
                replies.await.into_iter().for_each(|reply| assert!(reply.is_ok()));
            }
        })
    };
    for round in 0..20 {
        tokio::time::sleep(Duration::from_millis(3)).await;
        let dump = tokio::task::spawn_blocking({
            let store = store.clone();
            move || backup(&store)
        });
        let to = folder.path().join(format!("to{round}"));
        restore(&to, &dump.await.unwrap()).unwrap();
        let restored = open(&to);
        assert_eq!(get(&restored, "a").await, get(&restored, "z").await);
    }
    writer.abort();
}

#[tokio::test]
async fn tokens_of_the_store_that_was_backed_up_are_good_for_nothing_in_the_restored_one() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = open(&from);
    set(&store, "k", "1").await.unwrap();
    let token = store.run_one(Ctx::default(), Op::get(key("k"), Want::CAS)).await.unwrap().into_item().unwrap().cas;
    restore(&to, &backup(&store)).unwrap();
    let restored = open(&to);
    let swap = Op::put(key("k"), PutMode::Cas(token.unwrap()), "2", Ttl::Never);
    assert_eq!(restored.run_one(Ctx::default(), swap).await.unwrap(), larder_core::Reply::Exists);
    assert_eq!(get(&restored, "k").await.unwrap(), "1");
}

#[tokio::test]
async fn a_restore_that_fails_leaves_no_store_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = open(&from);
    for n in 0..100 {
        set(&store, &format!("k{n}"), vec![7; 20_000]).await.unwrap();
    }
    let dump = backup(&store);
    let error = restore(&to, &dump[..dump.len() - 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("cut short"), "{error}");
    assert!(!to.exists());
    let error = Options::new(&to).value_bytes_max(10_000).restore(&dump[..], &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("20000 bytes; the limit beside this key is 10248"), "{error}");
    assert!(!to.exists());
    restore(&to, &dump).unwrap();
    let error = restore(&to, &dump).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("holds a store"), "{error}");
    assert_eq!(get(&open(&to), "k99").await.unwrap().len(), 20_000);
}

/// The folder cannot be made a store's to begin with, or not be told to be whole.
#[tokio::test]
async fn a_restore_that_fails_at_its_beginning_leaves_no_store_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = open(&from);
    set(&store, "k", "v").await.unwrap();
    let dump = backup(&store);
    // A folder of another's stands where the store says whose it is.
    std::fs::create_dir_all(to.join("larder.new/x")).unwrap();
    let error = restore(&to, &dump).unwrap_err();
    assert!(error.to_string().contains(&format!("file:{}", to.display())), "{error}");
    assert!(!to.join("engine").exists() && !to.join("larder").exists(), "{error}");
}

/// A dump that does something when it is read.
struct Reading<'a>(&'a [u8], &'a dyn Fn());

impl std::io::Read for Reading<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        (self.1)();
        self.0.read(into)
    }
}

/// Where the store is told to be one, a link leads nowhere: from the beginning, or when all is written.
#[tokio::test]
async fn a_restore_that_cannot_tell_of_its_beginning_or_end_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let store = open(&from);
    set(&store, "k", "v").await.unwrap();
    let dump = backup(&store);
    let plant = || {
        _ = std::fs::create_dir(&to);
        _ = std::os::unix::fs::symlink(folder.path().join("nowhere/file"), to.join("larder.new"));
    };
    for at_its_end in [false, true] {
        let reading = Reading(&dump, if at_its_end { &|| () } else { &plant });
        let mut tell = |_| {
            if at_its_end {
                plant()
            }
        };
        let told = Options::new(&to).restore(reading, &mut tell).unwrap_err().to_string();
        assert!(told.contains("cannot be written") && told.contains(&format!("file:{}", to.display())), "{told}");
        assert!(!to.exists(), "at its end: {at_its_end}");
    }
    restore(&to, &dump).unwrap();
    assert_eq!(get(&open(&to), "k").await.unwrap(), "v");
}

#[tokio::test]
async fn a_restore_that_was_killed_is_no_store_until_it_is_restored_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("from"));
    set(&store, "k", "v").await.unwrap();
    let dump = backup(&store);
    let to = folder.path().join("to");
    restore(&to, &dump).unwrap();
    is_restoring(&to);
    let error = Options::new(&to).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("did not come to its end; restore again"), "{error}");
    restore(&to, &dump).unwrap();
    assert_eq!(get(&open(&to), "k").await.unwrap(), "v");
}

#[tokio::test]
async fn a_copy_that_is_put_back_is_told_by_the_witness() {
    let folder = tempfile::tempdir().unwrap();
    let (at, kept, witness) = (folder.path().join("store"), folder.path().join("kept"), folder.path().join("witness"));
    let witnessed = || Options::new(&at).witness(&witness);
    let store = witnessed().open().unwrap();
    incr(&store, "n").await.unwrap();
    drop(store);
    std::fs::create_dir(&kept).unwrap();
    common::copy(&at, &kept);
    let store = witnessed().open().unwrap();
    incr(&store, "n").await.unwrap();
    let dump = backup(&store);
    drop(store);
    assert_eq!(count_of(&witnessed().open().unwrap(), "n").await, 2);

    std::fs::remove_dir_all(&at).unwrap();
    let error = witnessed().open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!at.join("engine").exists(), "nothing is made in its place");
    std::fs::remove_dir_all(&at).unwrap();
    std::fs::create_dir(&at).unwrap();
    common::copy(&kept, &at);
    let error = witnessed().open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack);
    assert!(error.to_string().contains("it is an older copy"), "{error}");

    // What is restored on purpose is as it should be, and what was before it is older from then on.
    std::fs::remove_dir_all(&at).unwrap();
    restore(&at, &dump).unwrap();
    assert_eq!(count_of(&witnessed().open().unwrap(), "n").await, 2);
    std::fs::remove_dir_all(&at).unwrap();
    std::fs::create_dir(&at).unwrap();
    common::copy(&kept, &at);
    assert_eq!(witnessed().open().unwrap_err().kind(), ErrorKind::RolledBack);
    std::fs::remove_dir_all(&at).unwrap();
    restore(&at, &dump).unwrap();
    let error = witnessed().open().unwrap_err();
    assert!(error.to_string().contains("restored apart"), "{error}");
}

/// What is noted in the folder is so whatever becomes of the witness, and that is told as soon as it can be, though nobody writes any more.
#[tokio::test]
async fn a_witness_that_cannot_be_written_takes_no_note_from_the_folder_and_is_told_later() {
    let folder = tempfile::tempdir().unwrap();
    let (at, witness) = (folder.path().join("store"), folder.path().join("witness"));
    let witnessed = || Options::new(&at).witness(&witness);
    drop(witnessed().open().unwrap());
    // It is written to this name first.
    let in_the_way = folder.path().join("witness.new");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(witnessed().open().is_err(), "that it cannot be told is an error of an open");
    std::fs::remove_dir(&in_the_way).unwrap();
    let store = witnessed().open().unwrap();
    std::fs::create_dir(&in_the_way).unwrap();
    set(&store, "k", vec![7; 1000]).await.unwrap();
    let seen = std::fs::read(&witness).unwrap();
    drop(store);
    assert_eq!(std::fs::read(&witness).unwrap(), seen);
    std::fs::remove_dir(&in_the_way).unwrap();

    let journal = at.join("engine").join("0.jnl");
    let whole = std::fs::read(&journal).unwrap();
    let end = *common::ends(&whole).last().unwrap();
    std::fs::write(&journal, &whole[..end - 100]).unwrap();
    let error = witnessed().open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    std::fs::write(&journal, &whole).unwrap();

    let store = witnessed().open().unwrap();
    std::fs::create_dir(&in_the_way).unwrap();
    set(&store, "k", "v").await.unwrap();
    let seen = std::fs::read(&witness).unwrap();
    // It is tried, and in vain.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    std::fs::remove_dir(&in_the_way).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while std::fs::read(&witness).unwrap() == seen {
        assert!(std::time::Instant::now() < until, "it is not tried again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `a.one` and `a.two`: each is replaced by a file of its own beside it.
#[tokio::test]
async fn witnesses_of_one_stem_do_not_write_over_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let witness = |name: &str| folder.path().join(format!("a.{name}"));
    // Where the one is written to, the other has something else.
    std::fs::create_dir(folder.path().join("a.new")).unwrap();
    for name in ["one", "two"] {
        let store = Options::new(folder.path().join(name)).witness(witness(name)).open().unwrap();
        set(&store, "k", "v").await.unwrap();
    }
    for name in ["one", "two"] {
        Options::new(folder.path().join(name)).witness(witness(name)).open().unwrap();
    }
}

#[tokio::test]
async fn a_witness_that_saw_as_many_restores_takes_the_next_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [first, at, witness] = ["first", "store", "witness"].map(|name| folder.path().join(name));
    let witnessed = || Options::new(&at).witness(&witness);
    let store = open(&first);
    incr(&store, "n").await.unwrap();
    let dump = backup(&store);
    for _ in 0..3 {
        _ = std::fs::remove_dir_all(&at);
        witnessed().restore(&dump[..], &mut |_| ()).unwrap();
        let store = witnessed().open().unwrap();
        incr(&store, "n").await.unwrap();
        assert_eq!(count_of(&store, "n").await, 2);
    }
    // A restore without it is told by it.
    std::fs::remove_dir_all(&at).unwrap();
    restore(&at, &dump).unwrap();
    assert_eq!(witnessed().open().unwrap_err().kind(), ErrorKind::RolledBack);
    // A witness of another store counts for nothing, and one that is damaged is told, and nothing is made.
    let [other, damaged] = ["other", "damaged"].map(|name| folder.path().join(name));
    Options::new(&other).witness(&damaged).open().unwrap();
    std::fs::remove_dir_all(&at).unwrap();
    witnessed().restore(&dump[..], &mut |_| ()).unwrap();
    witnessed().open().unwrap();
    std::fs::remove_dir_all(&at).unwrap();
    Options::new(&at).witness(&damaged).restore(&dump[..], &mut |_| ()).unwrap();
    std::fs::remove_dir_all(&at).unwrap();
    std::fs::write(&damaged, "something else").unwrap();
    let error = Options::new(&at).witness(&damaged).restore(&dump[..], &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!at.exists());
}

#[tokio::test]
async fn a_witness_of_another_store_or_a_damaged_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let witness = folder.path().join("witness");
    drop(Options::new(folder.path().join("one")).witness(&witness).open().unwrap());
    drop(open(&folder.path().join("two")));
    let two = || Options::new(folder.path().join("two")).witness(&witness).open().unwrap_err();
    assert_eq!(two().kind(), ErrorKind::Config);
    std::fs::write(&witness, "something else").unwrap();
    assert_eq!(two().kind(), ErrorKind::Corrupt);
}

/// As many items may be over that a look at all of them would keep its thread for long.
#[tokio::test]
async fn a_part_of_a_backup_looks_at_some_thousand_items_though_it_shows_none() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store = Options::new(folder.path().join("from")).clock(clock.clone()).open().unwrap();
    for batch in 0..25 {
        let life = Ttl::After(Duration::from_secs(6_400));
        let put = |number| Op::put(key(&format!("k{batch}.{number}")), PutMode::Set, "v", life);
        assert!(store.run(Ctx::default(), (0..1_000).map(put).collect()).await.iter().all(Result::is_ok));
    }
    clock.advance(Duration::from_secs(6_400));
    set(&store, "z", "lives").await.unwrap();
    let (mut parts, mut dump, mut empty) = (store.backup_in_parts().unwrap(), Vec::new(), 0);
    while let Some(part) = parts.next(&store).unwrap() {
        empty += usize::from(part.is_empty());
        dump.extend_from_slice(&part);
    }
    assert!(empty >= 1, "{empty}");
    assert_eq!(restore(&folder.path().join("to"), &dump).unwrap().items, 1);
}

#[tokio::test]
async fn a_check_names_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for n in 0..300 {
        set(&store, &format!("k{n}"), vec![7; 100]).await.unwrap();
    }
    store.settle().unwrap();
    assert_eq!(store.check(&mut |_| ()).unwrap().items, 300);
    drop(store);
    let tables = folder.path().join("engine").join("keyspaces").join("1").join("tables");
    let table = common::files(&tables).into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[2_000] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let told = Options::new(folder.path()).open().and_then(|store| store.check(&mut |_| ()).map(|found| found.damaged));
    assert!(
        told.as_ref().is_ok_and(|&damaged| damaged > 0) || told.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
    );
}

#[tokio::test]
async fn any_store_s_dump_is_restored_and_a_backup_says_what_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("from"));
    let dump = backup(&store);
    let reader = DumpReader::new(&dump[..]).unwrap();
    let origin = reader.head().origin.unwrap();
    assert_eq!((origin.restores, origin.sequence), (0, 1));
    restore(&folder.path().join("one"), &dump).unwrap();
    let again = backup(&open(&folder.path().join("one")));
    let after = DumpReader::new(&again[..]).unwrap().head().origin.unwrap();
    assert_eq!((after.store, after.restores), (origin.store, 1));
    assert_ne!(after.incarnation, origin.incarnation);
}
