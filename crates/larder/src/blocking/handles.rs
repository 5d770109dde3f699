//! The twins that need nothing but waiting.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{twin, wait};
use crate::set::Members;
use crate::{ArrayStat, Result, SetStat, TableEntries};

twin! {
    /// A [`Counter`](crate::Counter) without async: a cheap clone.
    Counter(open_or_create);
    fn add(&self, delta: i64) -> () = "it.add(-2)?;\nassert_eq!(it.get()?, -2);";
    fn get(&self) -> i128 = "assert_eq!(it.get()?, 0);";
    fn reset(&self) -> i128 = "it.add(7)?;\nassert_eq!(it.reset()?, 7);";
    fn release(&self) -> () = "it.add(7)?;\nit.release()?;";
    fn repair(&self) -> u16 = "assert_eq!(it.repair()?, 0);";
}

twin! {
    /// A [`Set`](crate::Set) without async: a cheap clone.
    Set(open_or_create);
    fn add(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> () = "it.add([\"red\", \"green\"])?;";
    fn remove(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> () = "it.remove([\"red\"])?;";
    fn has(&self, member: impl AsRef<[u8]>) -> bool = "assert!(!it.has(\"red\")?);";
    fn members(&self) -> Members = "assert!(it.members()?.is_empty());";
    fn stat(&self) -> SetStat = "assert_eq!(it.stat()?.members, 0);";
    fn compact(&self) -> SetStat = "assert_eq!(it.compact()?.stale_bytes, 0);";
}

twin! {
    /// An [`Array`](crate::Array) without async: a cheap clone.
    Array(open_or_create);
    fn push(&self, elements: impl IntoIterator<Item = impl AsRef<[u8]>>) -> () = "it.push([\"unpack\", \"build\"])?;";
    fn remove(&self, elements: impl IntoIterator<Item = impl AsRef<[u8]>>) -> () = "it.remove([\"build\"])?;";
    fn change(
        &self,
        add: impl IntoIterator<Item = impl AsRef<[u8]>>,
        delete: impl IntoIterator<Item = impl AsRef<[u8]>>
    ) -> () = "it.change([\"test\"], [\"build\"])?;";
    fn elements(&self) -> Vec<Bytes> = "it.push([\"unpack\"])?;\nassert_eq!(it.elements()?, [\"unpack\"]);";
    fn stat(&self) -> ArrayStat = "println!(\"{:?}\", it.stat()?);";
    fn compact(&self) -> ArrayStat = "println!(\"{:?}\", it.compact()?);";
    fn accept_loss(&self) -> bool = "assert!(!it.accept_loss()?);";
}

twin! {
    /// A [`Table`](crate::Table) without async: a cheap clone.
    Table(open_or_create);
    fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> () = "it.put(\"joe\", \"33\")?;";
    fn put_for(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> () = "let lives = larder::Table::options().ttl(true).open_or_create(&store, \"guests\");\nlet it = larder::blocking::Table::new(larder::blocking::wait(lives)?);\nit.put_for(\"joe\", \"33\", std::time::Duration::from_secs(60))?;";
    fn get(&self, key: impl AsRef<[u8]>) -> Option<Bytes> = "it.put(\"joe\", \"33\")?;\nassert_eq!(it.get(\"joe\")?.unwrap(), \"33\");";
    fn has(&self, key: impl AsRef<[u8]>) -> bool = "assert!(!it.has(\"joe\")?);";
    fn get_many(&self, keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Option<Bytes>> = "assert_eq!(it.get_many([\"joe\", \"ann\"])?, [None, None]);";
    fn remove(&self, key: impl AsRef<[u8]>) -> bool = "assert!(!it.remove(\"joe\")?);";
    fn keys(&self) -> Vec<Bytes> = "assert!(it.keys()?.is_empty());";
    fn entries(&self) -> Vec<(Bytes, Bytes)> = "assert!(it.entries()?.is_empty());";
    fn entries_and_lost(&self) -> TableEntries = "assert!(it.entries_and_lost()?.lost.is_empty());";
}

impl Table {
    /// [`Table::settle`](crate::Table::settle), waited for: for a program that is about to end. **Round trips: 0** of its own.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// # let it = larder::blocking::Table::open_or_create(&store, "name").unwrap();
    /// it.put("joe", "33").unwrap();
    /// it.settle().unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn settle(&self) -> Result<()> {
        wait(async {
            self.0.settle().await;
            Ok(())
        })
    }
}

twin! {
    /// [`Visitors`](crate::Visitors) without async: a cheap clone.
    Visitors(open_or_create);
    fn hit(&self) -> () = "it.hit()?;\nassert_eq!(it.current()?, 1);";
    fn hit_many(&self, hits: u64) -> () = "it.hit_many(3)?;";
    fn hit_at(&self, time: SystemTime, hits: u64) -> () = "it.hit_at(std::time::SystemTime::now(), 3)?;";
    fn hit_visitor(&self, id: impl AsRef<[u8]>) -> () = "it.hit_visitor(\"joe\")?;\nit.hit_visitor(\"joe\")?;";
    fn hit_visitor_at(&self, id: impl AsRef<[u8]>, time: SystemTime) -> () = "it.hit_visitor_at(\"joe\", std::time::SystemTime::now())?;\nit.hit_visitor(\"joe\")?;\nassert_eq!(it.current()?, 1);";
    fn get(&self) -> u64 = "println!(\"{} visitors\", it.get()?);";
    fn current(&self) -> u64 = "assert_eq!(it.current()?, 0);";
    fn interpolated(&self) -> u64 = "println!(\"about {} visitors\", it.interpolated()?);";
    fn get_at(&self, time: SystemTime) -> u64 = "println!(\"{} visitors\", it.get_at(std::time::SystemTime::now())?);";
}
