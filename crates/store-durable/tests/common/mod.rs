//! What the tests of files have in common.
#![allow(dead_code)] // Each test takes what it needs.

pub(crate) mod syncs;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use larder_core::{Arith, Ctx, Initial, Key, Op, PutMode, Reply, Result, StoreExt, Ttl, Verb, Want};
use larder_store_durable::DurableStore;

pub(crate) fn key(name: &str) -> Key {
    Key::new(name.to_owned()).unwrap()
}

pub(crate) async fn set(store: &DurableStore, name: &str, value: impl Into<Bytes>) -> Result<Reply> {
    store.run_one(Ctx::default(), Op::put(key(name), PutMode::Set, value, Ttl::Never)).await
}

pub(crate) async fn try_get(store: &DurableStore, name: &str) -> Result<Option<Bytes>> {
    let reply = store.run_one(Ctx::default(), Op::get(key(name), Want::VALUE)).await?;
    Ok(reply.into_item().map(|item| item.value))
}

pub(crate) async fn get(store: &DurableStore, name: &str) -> Option<Bytes> {
    try_get(store, name).await.unwrap()
}

/// Counts on from 1.
pub(crate) async fn incr(store: &DurableStore, name: &str) -> Result<u64> {
    let initial = Some(Initial { value: 1, ttl: Ttl::Never });
    let verb = Verb::Arith { arith: Arith::Incr(1), initial };
    match store.run_one(Ctx::default(), Op::new(key(name), verb)).await? {
        Reply::Number(number) => Ok(number),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn count_of(store: &DurableStore, name: &str) -> u64 {
    get(store, name).await.map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap())
}

/// How often a test does its thing: what the environment says, or else `usual`.
pub(crate) fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// A file without the zeros at its end.
pub(crate) fn without_zeros(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    while bytes.ends_with(&[0; 4096]) {
        bytes.truncate(bytes.len() - 4096);
    }
    bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    bytes
}

/// The ends of the batches of a journal.
pub(crate) fn ends(journal: &[u8]) -> Vec<usize> {
    let trailers = journal.windows(4).enumerate().filter(|(_, bytes)| bytes == b"FJL\x03");
    trailers.map(|(at, _)| at + 4).collect()
}

/// Copies a folder, and of journals not the zeros at their ends; nor a note that is being written, which an open store renames meanwhile.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&path, &target);
        } else if path.extension().is_some_and(|extension| extension == "jnl") {
            std::fs::write(target, without_zeros(&path)).unwrap();
        } else if path.extension().is_none_or(|extension| extension != "new") {
            std::fs::copy(path, target).unwrap();
        }
    }
}

/// The files of a store's journal, each with its number, in their order.
pub(crate) fn journals(folder: &Path) -> Vec<(u64, PathBuf)> {
    let files = files(&folder.join("engine")).into_iter();
    let journals = files.filter(|path| path.extension().is_some_and(|it| it == "jnl"));
    let number = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let mut journals: Vec<_> = journals.map(|path| (number(&path), path)).collect();
    journals.sort();
    journals
}

/// The last of them.
pub(crate) fn newest_journal(folder: &Path) -> PathBuf {
    journals(folder).pop().unwrap().1
}

/// All files in a folder and those below it.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}
