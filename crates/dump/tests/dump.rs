//! Dumps that are whole, damaged, cut short and gone on with.

use std::io::{Seek, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use larder_core::list::FLEET_KEY;
use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, Key, Op, Profile, PutMode, Remaining, Run, Store, StoreExt, Ttl, Want,
};
use larder_dump::{
    DumpItem, DumpReader, DumpWriter, Exported, Head, Imported, Importing, Origin, Totals, export, import,
};
use larder_store_memory::MemoryStore;
use proptest::prelude::*;

fn item(key: &[u8], value: impl Into<Bytes>) -> DumpItem {
    DumpItem { key: Key::new(key.to_vec()).unwrap(), flags: 0, expiry_ms: None, value: value.into() }
}

fn dump(items: &[DumpItem]) -> Vec<u8> {
    let mut writer = DumpWriter::new(Vec::new(), &Head::now("test")).unwrap();
    items.iter().for_each(|item| writer.push(item).unwrap());
    writer.finish().unwrap().0
}

fn read(bytes: &[u8]) -> Result<(Head, Vec<DumpItem>), Error> {
    let mut reader = DumpReader::new(bytes)?;
    let mut items = Vec::new();
    while let Some(block) = reader.next_block()? {
        items.extend(block);
    }
    Ok((reader.head().clone(), items))
}

async fn put(store: &MemoryStore, key: &str, value: impl Into<Bytes>, ttl: Ttl) {
    let op = Op::put(Key::new(key.to_owned()).unwrap(), PutMode::Set, value, ttl);
    store.run_one(Ctx::default(), op).await.unwrap();
}

async fn exported(store: &MemoryStore) -> (Vec<u8>, Exported) {
    let writer = DumpWriter::new(Vec::new(), &Head::now("test")).unwrap();
    export(store, store, writer, &|_| false, &mut |_| ()).await.unwrap()
}

async fn imported(store: &MemoryStore, bytes: &[u8], how: Importing) -> Result<Imported, Error> {
    let mut so_far = Imported::default();
    import(store, &mut DumpReader::new(bytes)?, how, &mut so_far, &mut |_| ()).await?;
    Ok(so_far)
}

#[test]
fn the_bytes_are_as_documented() {
    let head = Head {
        source: "s".to_owned(),
        address: Some("redis://a\nb".to_owned()),
        made_ms: 1,
        origin: Some(Origin { store: 2, incarnation: 3, restores: 4, sequence: 5 }),
    };
    let mut writer = DumpWriter::new(Vec::new(), &head).unwrap();
    writer.push(&DumpItem { flags: 9, expiry_ms: Some(8), ..item(b"k", "v") }).unwrap();
    let (bytes, totals) = writer.finish().unwrap();
    assert_eq!(totals, Totals { items: 1, value_bytes: 1 });
    let text = "source s\nmade 1\naddress redis://a b\nstore 0000000000000002\nincarnation 0000000000000003\nrestores 4\n\
        sequence 5\n";
    let mut rest = bytes.strip_prefix(b"LARDER-DUMP 1\n").unwrap();
    let mut block = |number: u64, kind: u8, body: &[u8]| {
        let mut want = vec![kind];
        want.extend_from_slice(&(body.len() as u32).to_le_bytes());
        want.extend_from_slice(body);
        want.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&want, number).to_le_bytes());
        rest = rest.strip_prefix(&want[..]).unwrap_or_else(|| panic!("block {number}"));
    };
    block(0, b'h', text.as_bytes());
    block(1, b'i', b"\x01\0\x09\0\0\0\x08\0\0\0\0\0\0\0\x01\0\0\0kv");
    block(2, b'e', b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(rest, b"");
}

#[test]
fn the_largest_and_the_empty_are_carried() {
    let items = [
        item(b"empty", ""),
        item(&vec![0xff; Key::BYTES_MAX], "long key"),
        item(b"large", vec![7; 64 << 20]),
        item(b"behind", "x"),
    ];
    let (_, read) = read(&dump(&items)).unwrap();
    assert_eq!(read, items);
    let mut writer = DumpWriter::new(Vec::new(), &Head::now("test")).unwrap();
    let error = writer.push(&item(b"k", vec![0; (128 << 20) + 1])).unwrap_err();
    assert!(error.to_string().contains("a dump takes 134217728"), "{error}");
}

#[test]
fn every_byte_that_is_flipped_and_every_end_that_is_missing_is_told() {
    let items: Vec<DumpItem> = (0..20).map(|n: u8| item(&[n], vec![n; n.into()])).collect();
    let sound = dump(&items);
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        let error = read(&bytes).expect_err(&format!("byte {at}"));
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::LayoutMismatch), "{at}: {error}");
        let error = read(&sound[..at]).expect_err(&format!("cut at {at}"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
    }
    let mut longer = sound.clone();
    longer.push(0);
    assert!(read(&longer).unwrap_err().to_string().contains("behind its end"));
    assert!(read(b"{\"json\": 1}").unwrap_err().to_string().contains("is no dump"));
}

#[test]
fn blocks_that_are_missing_or_moved_are_told() {
    let large = |n: u8| item(&[n], vec![n; 300 << 10]);
    let sound = dump(&[large(1), large(2), large(3)]);
    let one = dump(&[large(1)]).len() - dump(&[]).len();
    let first = sound.len() - 3 * one - (dump(&[]).len() - dump_head_len());
    let cut = [&sound[..first], &sound[first + one..]].concat();
    assert!(read(&cut).unwrap_err().to_string().contains("does not match its checksum"));
    let (a, b) = (&sound[first..first + one], &sound[first + one..first + 2 * one]);
    let moved = [&sound[..first], b, a, &sound[first + 2 * one..]].concat();
    assert!(read(&moved).is_err());
}

/// The bytes of a dump before its first block of items, for the head that `dump` writes.
fn dump_head_len() -> usize {
    dump(&[]).len() - (5 + 16 + 8)
}

#[tokio::test]
async fn lives_and_flags_go_with_the_items() {
    let (from, to) = (MemoryStore::new(), MemoryStore::new());
    put(&from, "stays", "1", Ttl::Never).await;
    put(&from, "goes", "2", Ttl::After(Duration::from_secs(60))).await;
    put(&from, "over", "3", Ttl::After(Duration::from_millis(2_000))).await;
    let (bytes, out) = exported(&from).await;
    assert_eq!((out.totals.items, out.gone, out.foreign.count), (3, 0, 0));
    tokio::time::sleep(Duration::from_millis(2_050)).await;
    let how = imported(&to, &bytes, Importing::default()).await.unwrap();
    assert_eq!((how.stored, how.kept, how.expired, how.refused.count), (2, 0, 1, 0));
    let ttl = async |key: &'static str| {
        let op = Op::get(Key::new(key).unwrap(), Want::VALUE | Want::TTL);
        to.run_one(Ctx::default(), op).await.unwrap().into_item().map(|item| item.ttl)
    };
    assert_eq!(ttl("stays").await, Some(Remaining::Never));
    assert!(matches!(ttl("goes").await, Some(Remaining::For(left)) if left < Duration::from_secs(60)));
    assert_eq!(ttl("over").await, None);
}

#[tokio::test]
async fn what_is_there_stays_unless_it_is_to_be_replaced() {
    let to = MemoryStore::new();
    put(&to, "k", "mine", Ttl::Never).await;
    let bytes = dump(&[item(b"k", "theirs"), item(b"l", "new")]);
    let how = imported(&to, &bytes, Importing::default()).await.unwrap();
    assert_eq!((how.stored, how.kept), (1, 1));
    let value = async || to.get(Key::new("k").unwrap()).await.unwrap().unwrap().value;
    assert_eq!(value().await, "mine");
    let how = imported(&to, &bytes, Importing { replace: true, ..Importing::default() }).await.unwrap();
    assert_eq!((how.stored, how.kept), (2, 0));
    assert_eq!(value().await, "theirs");
}

/// Notes how many ops each batch has, on a store that takes items so large.
#[derive(Debug)]
struct Noting(MemoryStore, Mutex<Vec<usize>>, usize);

impl Store for Noting {
    fn profile(&self) -> Arc<Profile> {
        let item_bytes_max = self.2;
        Arc::new(Profile { item_bytes_max, item_overhead_bytes: 0, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.1.lock().unwrap().push(batch.len());
        self.0.run(ctx, batch)
    }
}

#[tokio::test]
async fn an_export_asks_for_as_many_items_at_once_as_come_to_eight_mebibytes_and_256_at_the_most() {
    for (items, bytes, item_bytes_max, asked) in [
        (600, 10, 1 << 20, &[8, 16, 32, 64, 128, 256, 96][..]),
        (20, 1_000_000, 1 << 20, &[8, 8, 4]),
        (40, 500_000, 1 << 20, &[8, 16, 16]),
        (30, 700_000, 1 << 20, &[8, 11, 11]),
        // The next ones may be as large as the store takes them: they come to 1 GiB at the most.
        (40, 10, (64 << 20) + Key::BYTES_MAX, &[8, 16, 16]),
        (9, 10, (256 << 20) + Key::BYTES_MAX, &[4, 4, 1]),
        (2, 10, usize::MAX, &[1, 1]),
    ] {
        let store = Noting(MemoryStore::new(), Mutex::default(), item_bytes_max);
        let value = Bytes::from(vec![7; bytes]);
        for n in 0..items {
            put(&store.0, &format!("k{n}"), value.clone(), Ttl::Never).await;
        }
        let writer = DumpWriter::new(std::io::sink(), &Head::now("test")).unwrap();
        let (_, out) = export(&store, &store.0, writer, &|_| false, &mut |_| ()).await.unwrap();
        assert_eq!(out.totals.items, items);
        assert_eq!(*store.1.lock().unwrap(), asked, "{items} of {bytes} bytes");
    }
}

#[tokio::test]
async fn an_export_that_was_cut_short_is_gone_on_with() {
    let from = MemoryStore::new();
    for n in 0..3_000 {
        put(&from, &format!("k{n}"), vec![7; 1_000], Ttl::Never).await;
    }
    let (whole, _) = exported(&from).await;
    for cut in [200, whole.len() / 2, whole.len() - 1] {
        let mut file = tempfile();
        file.write_all(&whole[..cut]).unwrap();
        file.rewind().unwrap();
        let resumed = DumpWriter::resume(file, None, None).unwrap();
        let known = resumed.keys.len() as u64;
        let keys = resumed.keys;
        let is_known = |key: &[u8]| keys.contains(&DumpWriter::fingerprint(key));
        let (mut file, out) = export(&from, &from, resumed.writer, &is_known, &mut |_| ()).await.unwrap();
        assert_eq!((out.known, out.totals.items), (known, 3_000));
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        let mut keys: Vec<_> = read(&bytes).unwrap().1.into_iter().map(|item| item.key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 3_000);
        file.rewind().unwrap();
        assert!(DumpWriter::resume(file, None, None).unwrap_err().to_string().contains("is whole, with 3000 items"));
    }
}

fn tempfile() -> std::fs::File {
    tempfile::tempfile().unwrap()
}

/// A file of these bytes, at its beginning.
fn file_of(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

#[test]
fn a_whole_dump_with_a_damaged_length_is_not_cut() {
    let mut bytes = dump(&[item(b"a", vec![1; 300 << 10]), item(b"b", vec![2; 300 << 10])]);
    // The length of the first block of items: it reaches past the end now.
    bytes[dump_head_len() + 3] = 0x40;
    let file = file_of(&bytes);
    let error = DumpWriter::resume(file.try_clone().unwrap(), None, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("yet the dump has its end"), "{error}");
    assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64);
    // Without its end it is taken for cut short.
    let resumed = DumpWriter::resume(file_of(&bytes[..bytes.len() - 1]), None, None).unwrap();
    assert_eq!(resumed.keys.len(), 0);
}

/// A length that reaches past the end and past any block is damaged: what is cut off is one torn block at the most.
#[test]
fn more_than_a_block_can_have_is_not_cut_off() {
    const BLOCK_BYTES_MAX: u64 = (128 << 20) + (256 << 10);
    let bytes = dump(&[item(b"a", vec![1; 300 << 10])]);
    let begun = dump_head_len() as u64;
    let resumed = |length: u64, prefix: [u8; 5]| {
        let mut file = file_of(&bytes[..dump_head_len()]);
        file.seek(std::io::SeekFrom::End(0)).unwrap();
        file.write_all(&prefix).unwrap();
        file.set_len(length).unwrap();
        file.rewind().unwrap();
        (DumpWriter::resume(file.try_clone().unwrap(), None, None), file.metadata().unwrap().len())
    };
    // The longest block there is, without the last byte of its check: it was torn.
    let longest = [b'i', 0, 0, 4, 8];
    let (torn, length) = resumed(begun + 5 + BLOCK_BYTES_MAX + 7, longest);
    assert_eq!((torn.unwrap().keys.len(), length), (0, begun));
    let more = begun + 5 + BLOCK_BYTES_MAX + 8;
    let (wrong, length) = resumed(more, [b'i', 1, 0, 4, 8]);
    assert_eq!((wrong.unwrap_err().kind(), length), (ErrorKind::Corrupt, more));
}

#[test]
fn a_dump_of_another_store_or_one_that_is_being_written_is_not_gone_on_with() {
    let head = |source: &str| Head { made_ms: 1, ..Head::now(source) };
    let (one, two) = (head("one"), head("two"));
    let bytes = DumpWriter::new(Vec::new(), &one).unwrap().finish().unwrap().0;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump");
    let cut = &bytes[..bytes.len() - 1];
    std::fs::write(&path, cut).unwrap();
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let error = DumpWriter::resume(open(), None, Some(&two)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains(r#"begun of "one", and this is "two""#), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), cut);
    let resumed = DumpWriter::resume(open(), None, Some(&one)).unwrap();
    let error = DumpWriter::resume(open(), None, Some(&one)).unwrap_err();
    assert!(error.to_string().contains("another process is writing the dump"), "{error}");
    drop(resumed);
    DumpWriter::resume(open(), None, None).unwrap();
}

/// Two stores of one kind and version are told apart by where they are, and one that was upgraded or lost a replica is the same. A dump of before tells the kind alone.
#[test]
fn a_dump_is_gone_on_with_by_where_its_store_is() {
    let at = |source: &str, address: &str| Head::now(source).at(address);
    let here = at("redis 7.0.15", "redis://a:6379");
    let long = at("redis 7.0.15", &"x".repeat(1 << 20));
    for (begun, is_same) in [
        (at("redis 7.0.15", "redis://a:6379"), true),
        (at("redis 7.0.14, 1 replica", "redis://a:6379"), true),
        (at("redis 7.0.15", "redis://b:6379"), false),
        (at("redis 7.0.15", "redis://a:6379/1"), false),
        (Head::now("redis 7.0.15, 1 replica"), true),
        (Head::now("redis 7.0.14"), false),
        (Head::now("valkey 7.0.15"), false),
        (long, true),
    ] {
        let bytes = DumpWriter::new(Vec::new(), &begun).unwrap().finish().unwrap().0;
        let resumed = DumpWriter::resume(file_of(&bytes[..bytes.len() - 1]), None, Some(&here));
        assert_eq!(resumed.is_ok(), is_same, "{begun:?}");
        match resumed {
            Ok(resumed) => assert_eq!(resumed.head, begun),
            Err(error) => assert!(error.to_string().contains(&begun.shown()), "{error}"),
        }
    }
}

#[test]
fn a_dump_of_another_moment_is_not_gone_on_with() {
    let origin = Origin { store: 2, incarnation: 3, restores: 4, sequence: 5 };
    let head = Head { source: "the first \u{1b}[2Jstore".to_owned(), address: None, made_ms: 1, origin: Some(origin) };
    let mut writer = DumpWriter::new(Vec::new(), &head).unwrap();
    writer.push(&item(b"k", "v")).unwrap();
    let bytes = writer.finish().unwrap().0;
    let cut = &bytes[..bytes.len() - 1];
    for other in [None, Some(Origin { sequence: 6, ..origin })] {
        let file = file_of(cut);
        let error = DumpWriter::resume(file.try_clone().unwrap(), other, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        let shown = r#"of "the first \x1b[2Jstore", and a backup of another moment"#;
        assert!(error.to_string().contains(shown), "{error}");
        assert_eq!(file.metadata().unwrap().len(), cut.len() as u64);
    }
    assert_eq!(DumpWriter::resume(file_of(cut), Some(origin), None).unwrap().keys.len(), 1);
}

/// An item takes some hundred bytes of memory, however small it is in the dump.
#[test]
fn a_block_of_more_items_than_any_writer_puts_there_is_refused() {
    let mut writer = DumpWriter::new(Vec::new(), &Head::now("test")).unwrap();
    (0..20_000u32).for_each(|n| writer.push(&item(&n.to_le_bytes(), "")).unwrap());
    let (sound, totals) = writer.finish().unwrap();
    let mut reader = DumpReader::new(&sound[..]).unwrap();
    let mut most = 0;
    while let Some(items) = reader.next_block().unwrap() {
        most = most.max(items.len());
    }
    assert_eq!((reader.totals(), most), (totals, (256 << 10) / 22 + 1));
    // One block, with a right check, of one item more than fits.
    let one = b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0k";
    let hostile = |items: usize| {
        let mut block = vec![b'i'];
        block.extend_from_slice(&((one.len() * items) as u32).to_le_bytes());
        (0..items).for_each(|_| block.extend_from_slice(one));
        block.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&block, 1).to_le_bytes());
        let bytes = [&sound[..dump_head_len()], &block[..]].concat();
        DumpReader::new(&bytes[..]).unwrap().next_block().map(|items| items.map_or(0, |items| items.len()))
    };
    let most = (256usize << 10).div_ceil(one.len());
    assert_eq!(hostile(most).unwrap(), most);
    let error = hostile(most + 1).unwrap_err();
    assert!(error.to_string().contains("more items than it may"), "{error}");
}

/// On other servers it would lock their clients out.
#[tokio::test]
async fn the_list_of_a_fleet_is_neither_exported_nor_imported() {
    let (from, to) = (MemoryStore::new(), MemoryStore::new());
    put(&from, FLEET_KEY, "larder fleet 1\n", Ttl::Never).await;
    put(&from, "k", "v", Ttl::Never).await;
    let (bytes, out) = exported(&from).await;
    assert_eq!((out.totals.items, out.gone, out.known, out.foreign.count), (1, 0, 0, 0));
    assert_eq!(read(&bytes).unwrap().1, [item(b"k", "v")]);
    let older = dump(&[item(FLEET_KEY.as_bytes(), "larder fleet 1\n"), item(b"k", "v")]);
    for replace in [false, true] {
        let how = imported(&to, &older, Importing { replace, ..Importing::default() }).await.unwrap();
        assert_eq!((how.stored + how.kept, how.expired, how.refused.count), (1, 0, 0));
        assert_eq!(to.get(Key::new(FLEET_KEY).unwrap()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_import_that_failed_is_gone_on_with_behind_what_it_did() {
    let items: Vec<DumpItem> = (0..5u8).map(|n| item(&[n], vec![n; 300 << 10])).collect();
    let bytes = dump(&items);
    let to = MemoryStore::new();
    let mut so_far = Imported::default();
    let mut reader = DumpReader::new(&bytes[..bytes.len() / 2]).unwrap();
    import(&to, &mut reader, Importing::default(), &mut so_far, &mut |_| ()).await.unwrap_err();
    assert_eq!((so_far.blocks, so_far.stored), (2, 2));
    let how = Importing { skip_blocks: so_far.blocks, ..Importing::default() };
    let rest = imported(&to, &bytes, how).await.unwrap();
    assert_eq!((rest.blocks, rest.stored, rest.kept), (5, 3, 0));
}

proptest! {
    #[test]
    fn any_items_are_read_as_they_were_written(
        items in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 1..40), any::<u32>(), proptest::option::of(1u64..),
             proptest::collection::vec(any::<u8>(), 0..200)),
            0..50,
        )
    ) {
        let items: Vec<DumpItem> = items
            .into_iter()
            .map(|(key, flags, expiry_ms, value)| DumpItem { flags, expiry_ms, ..item(&key, value) })
            .collect();
        prop_assert_eq!(read(&dump(&items)).unwrap().1, items);
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), is_dump: bool) {
        let bytes = if is_dump { [b"LARDER-DUMP 1\n", &bytes[..]].concat() } else { bytes };
        prop_assert!(read(&bytes).is_err());
    }
}

/// A store whose network breaks for some items of a batch, by their places.
#[derive(Debug)]
struct Breaking(MemoryStore, &'static [(usize, Effect)]);

impl Store for Breaking {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let replies = self.0.run(ctx, batch).await;
            let broken = |at| self.1.iter().find(|(failing, _)| *failing == at);
            let reply = |(at, reply)| match broken(at) {
                Some((_, effect)) => Err(Error::new(ErrorKind::Unavailable, format!("item {at}")).effect(*effect)),
                None => reply,
            };
            replies.into_iter().enumerate().map(reply).collect()
        })
    }
}

#[tokio::test]
async fn what_is_stored_behind_an_item_that_failed_counts_and_an_unknown_outcome_goes_before() {
    let items: Vec<DumpItem> = (0..10).map(|n| item(format!("k{n}").as_bytes(), "v")).collect();
    let file = dump(&items);
    for (failing, stored, told) in [
        (&[(3, Effect::NotApplied)][..], 9, 3),
        (&[(3, Effect::NotApplied), (5, Effect::Unknown), (7, Effect::Unknown)], 7, 5),
        (&[(3, Effect::Unknown), (5, Effect::NotApplied)], 8, 3),
    ] {
        let store = Breaking(MemoryStore::new(), failing);
        let mut imported = Imported::default();
        let mut reader = DumpReader::new(&file[..]).unwrap();
        let outcome = import(&store, &mut reader, Importing::default(), &mut imported, &mut |_| ()).await;
        let error = outcome.unwrap_err();
        assert_eq!((imported.stored, error.detail()), (stored, format!("item {told}").as_str()));
        assert_eq!(imported.blocks, 0, "the block is not done");
    }
}
