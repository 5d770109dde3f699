//! The twins of the sharded structures.

use bytes::Bytes;

use super::twin;
use crate::ShardedStat;
use crate::sharded::Progress;

twin! {
    /// A [`ShardedHash`](crate::ShardedHash) without async: a cheap clone.
    ShardedHash(open_or_create);
    fn set(&self, entries: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>) -> Vec<bool> = "assert_eq!(it.set([(\"17\", \"Lund\")])?, [true]);";
    fn get(&self, field: impl AsRef<[u8]>) -> Option<Bytes> = "assert!(it.get(\"17\")?.is_none());";
    fn get_many(&self, fields: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Option<Bytes>> = "assert_eq!(it.get_many([\"17\", \"18\"])?, [None, None]);";
    fn remove(&self, fields: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<bool> = "assert_eq!(it.remove([\"17\"])?, [false]);";
    fn entries(&self) -> Vec<(Bytes, Bytes)> = "assert!(it.entries()?.is_empty());";
    fn len(&self) -> u64 = "assert_eq!(it.len()?, 0);";
    fn is_empty(&self) -> bool = "assert!(it.is_empty()?);";
    fn stat(&self) -> ShardedStat = "assert_eq!(it.stat()?.elements, 0);";
    fn reshard(&self, shards: u16) -> () = "it.reshard(100)?;\nassert_eq!(it.stat()?.shards, 100);";
    fn reshard_with(&self, shards: u16, tell: impl FnMut(Progress) + Send) -> () = "it.reshard_with(100, |done| println!(\"{} of {} shards\", done.filled, done.shards))?;";
    fn reshard_dense(&self, per_shard: u32) -> () = "assert!(it.reshard_dense(100).is_err(), \"they are spread by hash\");";
    fn reshard_dense_with(&self, per_shard: u32, tell: impl FnMut(Progress) + Send) -> () = "assert!(it.reshard_dense_with(100, |_| ()).is_err(), \"they are spread by hash\");";
}

twin! {
    /// A [`ShardedSet`](crate::ShardedSet) without async: a cheap clone.
    ShardedSet(open_or_create);
    fn add(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<bool> = "assert_eq!(it.add([\"a\", \"a\"])?, [true, false]);";
    fn remove(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<bool> = "assert_eq!(it.remove([\"a\"])?, [false]);";
    fn has(&self, member: impl AsRef<[u8]>) -> bool = "assert!(!it.has(\"a\")?);";
    fn has_many(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<bool> = "assert_eq!(it.has_many([\"a\", \"b\"])?, [false, false]);";
    fn members(&self) -> Vec<Bytes> = "assert!(it.members()?.is_empty());";
    fn len(&self) -> u64 = "assert_eq!(it.len()?, 0);";
    fn is_empty(&self) -> bool = "assert!(it.is_empty()?);";
    fn stat(&self) -> ShardedStat = "assert_eq!(it.stat()?.elements, 0);";
    fn reshard(&self, shards: u16) -> () = "it.reshard(100)?;\nassert_eq!(it.stat()?.shards, 100);";
    fn reshard_with(&self, shards: u16, tell: impl FnMut(Progress) + Send) -> () = "it.reshard_with(100, |done| println!(\"{} of {} shards\", done.filled, done.shards))?;";
    fn reshard_dense(&self, per_shard: u32) -> () = "assert!(it.reshard_dense(100).is_err(), \"they are spread by hash\");";
    fn reshard_dense_with(&self, per_shard: u32, tell: impl FnMut(Progress) + Send) -> () = "assert!(it.reshard_dense_with(100, |_| ()).is_err(), \"they are spread by hash\");";
}

twin! {
    /// A [`ShardedSortedSet`](crate::ShardedSortedSet) without async: a cheap clone.
    ShardedSortedSet(open_or_create);
    fn set(&self, entries: impl IntoIterator<Item = (impl AsRef<[u8]>, f64)>) -> Vec<bool> = "assert_eq!(it.set([(\"ann\", 12.0)])?, [true]);";
    fn add(&self, entries: impl IntoIterator<Item = (impl AsRef<[u8]>, f64)>) -> Vec<f64> = "assert_eq!(it.add([(\"ann\", 1.5)])?, [1.5]);";
    fn remove(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<bool> = "assert_eq!(it.remove([\"ann\"])?, [false]);";
    fn score(&self, member: impl AsRef<[u8]>) -> Option<f64> = "assert_eq!(it.score(\"ann\")?, None);";
    fn scores(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Option<f64>> = "assert_eq!(it.scores([\"ann\", \"bob\"])?, [None, None]);";
    fn top(&self, n: usize) -> Vec<(Bytes, f64)> = "it.set([(\"ann\", 12.0), (\"bob\", 7.5)])?;\nassert_eq!(it.top(1)?, [(\"ann\".into(), 12.0)]);";
    fn bottom(&self, n: usize) -> Vec<(Bytes, f64)> = "it.set([(\"ann\", 12.0), (\"bob\", 7.5)])?;\nassert_eq!(it.bottom(1)?, [(\"bob\".into(), 7.5)]);";
    fn entries(&self) -> Vec<(Bytes, f64)> = "assert!(it.entries()?.is_empty());";
    fn len(&self) -> u64 = "assert_eq!(it.len()?, 0);";
    fn is_empty(&self) -> bool = "assert!(it.is_empty()?);";
    fn stat(&self) -> ShardedStat = "assert_eq!(it.stat()?.elements, 0);";
    fn reshard(&self, shards: u16) -> () = "it.reshard(100)?;\nassert_eq!(it.stat()?.shards, 100);";
    fn reshard_with(&self, shards: u16, tell: impl FnMut(Progress) + Send) -> () = "it.reshard_with(100, |done| println!(\"{} of {} shards\", done.filled, done.shards))?;";
    fn reshard_dense(&self, per_shard: u32) -> () = "assert!(it.reshard_dense(100).is_err(), \"they are spread by hash\");";
    fn reshard_dense_with(&self, per_shard: u32, tell: impl FnMut(Progress) + Send) -> () = "assert!(it.reshard_dense_with(100, |_| ()).is_err(), \"they are spread by hash\");";
}
