//! The twin of unique visitors.

use std::time::SystemTime;

use super::{twin, wait};
use crate::{Novelty, Result, UniqueCount, UniqueStat, VisitorId};

twin! {
    /// [`UniqueVisitors`](crate::UniqueVisitors) without async: a cheap clone.
    UniqueVisitors(open_or_create);
    fn add<'a>(&self, ids: impl IntoIterator<Item = impl Into<VisitorId<'a>>>) -> Vec<Novelty> = "use larder::Novelty::{Known, New};\nassert_eq!(it.add([\"alice\", \"bob\", \"alice\"])?, [New, New, Known]);";
    fn add_in<'a>(&self, period: u64, ids: impl IntoIterator<Item = impl Into<VisitorId<'a>>>) -> Vec<Novelty> = "let today = it.handle().current()?;\nit.add_in(today - 1, [\"alice\"])?;\nassert_eq!(it.count_in(today - 1)?.visitors, 1);";
    fn is_new<'a>(&self, id: impl Into<VisitorId<'a>>) -> Novelty = "assert_eq!(it.is_new(\"alice\")?, larder::Novelty::New);";
    fn are_new_in<'a>(&self, period: u64, ids: impl IntoIterator<Item = impl Into<VisitorId<'a>>>) -> Vec<Novelty> = "let today = it.handle().current()?;\nassert_eq!(it.are_new_in(today, [\"alice\", \"bob\"])?, [larder::Novelty::New; 2]);";
    fn count(&self) -> UniqueCount = "it.add([1u64, 2, 2])?;\nassert_eq!(it.count()?.visitors, 2);";
    fn count_in(&self, period: u64) -> UniqueCount = "let today = it.handle().current()?;\nassert_eq!(it.count_in(today)?.visitors, 0);";
    fn forecast(&self, period: u64) -> u64 = "let today = it.handle().current()?;\nit.add_in(today - 1, 0..100u64)?;\nassert_eq!(it.forecast(today)?, 150);";
    fn stat(&self, period: u64) -> Option<UniqueStat> = "let today = it.handle().current()?;\nassert!(it.stat(today)?.is_none());";
    fn forget(&self, period: u64) -> () = "let today = it.handle().current()?;\nit.forget(today - 30)?;";
}

impl UniqueVisitors {
    /// [`UniqueVisitors::union`](crate::UniqueVisitors::union), waited for: how many different visitors came in any of these periods. Round trips: as there.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # fn main() -> larder::Result<()> {
    /// # let store = larder::blocking::open("memory:")?;
    /// use larder::blocking::UniqueVisitors;
    /// let shop = UniqueVisitors::open_or_create(&store, "shop")?;
    /// let blog = UniqueVisitors::open_or_create(&store, "blog")?;
    /// shop.add(["alice", "bob"])?;
    /// blog.add(["bob", "carol"])?;
    /// let today = shop.handle().current()?;
    /// assert_eq!(UniqueVisitors::union([(&shop, today), (&blog, today)])?.visitors, 3);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "memory"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn union<'a>(parts: impl IntoIterator<Item = (&'a UniqueVisitors, u64)>) -> Result<UniqueCount> {
        wait(crate::UniqueVisitors::union(parts.into_iter().map(|(site, period)| (&site.0, period))))
    }

    /// The period of a time, as [`UniqueVisitors::period_of`](crate::UniqueVisitors::period_of) tells it. **Round trips: 0.**
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// # let it = larder::blocking::UniqueVisitors::open_or_create(&store, "name").unwrap();
    /// let today = it.period_of(std::time::SystemTime::now()).unwrap();
    /// assert_eq!(it.count_in(today).unwrap().visitors, 0);
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn period_of(&self, time: SystemTime) -> Result<u64> {
        self.0.period_of(time)
    }
}
