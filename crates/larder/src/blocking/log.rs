//! The event log.

use std::ops::RangeBounds;
use std::time::Duration;

use super::{twin, wait};
use crate::Result;
use crate::log::{Cursor, Events};

twin! {
    /// An [`EventLog`](crate::EventLog) without async: a cheap clone.
    EventLog(open_or_create);
    fn put(&self, event: impl AsRef<[u8]>) -> () = "it.put(\"started\")?;";
    fn put_at(&self, time_ms: u64, event: impl AsRef<[u8]>) -> () = "it.put_at(it.handle().now_ms() - 1_000, \"started\")?;";
    fn put_all(&self, events: impl IntoIterator<Item = (u64, impl AsRef<[u8]>)>) -> () = "let now_ms = it.handle().now_ms();\nit.put_all([(now_ms - 1, \"one\"), (now_ms, \"two\")])?;";
    fn fetch(&self, range: impl RangeBounds<u64>) -> Events = "it.put(\"started\")?;\nassert_eq!(it.fetch(..)?.whole()?[0].bytes, \"started\");";
}

impl EventLog {
    /// [`EventLog::tail`](crate::EventLog::tail): follows the log from a cursor. **Round trips: 0.**
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// let log = larder::blocking::EventLog::open_or_create(&store, "log").unwrap();
    /// let mut tail = log.tail(larder::log::Cursor::default()).unwrap();
    /// log.put("started").unwrap();
    /// assert_eq!(tail.next().unwrap().whole().unwrap()[0].bytes, "started");
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn tail(&self, cursor: Cursor) -> Result<Tail> {
        Ok(Tail(self.handle().tail(cursor)?))
    }

    /// [`EventLog::tail_from_now`](crate::EventLog::tail_from_now), waited for. Round trips: as there.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// let log = larder::blocking::EventLog::open_or_create(&store, "log").unwrap();
    /// log.put("before").unwrap();
    /// let mut tail = log.tail_from_now().unwrap();
    /// assert!(tail.poll().unwrap().is_empty());
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn tail_from_now(&self) -> Result<Tail> {
        Ok(Tail(wait(self.handle().tail_from_now())?))
    }
}

/// A reader that follows a log: a [`Tail`](crate::log::Tail) without async.
///
/// ```
/// # fn follow(mut tail: larder::blocking::Tail) -> larder::Result<()> {
/// loop {
///     let (events, gaps) = tail.next()?.with_gaps();
///     println!("{} events, {} gaps", events.len(), gaps.len());
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Tail(crate::log::Tail);

impl Tail {
    /// How often [`next`](Tail::next) looks: [`Tail::every`](crate::log::Tail::every).
    ///
    /// ```
    /// # fn slow(tail: larder::blocking::Tail) -> larder::blocking::Tail {
    /// tail.every(std::time::Duration::from_secs(10))
    /// # }
    /// ```
    #[must_use]
    pub fn every(self, every: Duration) -> Tail {
        Tail(self.0.every(every))
    }

    /// How many parts one look reads at the most: [`Tail::parts_a_look`](crate::log::Tail::parts_a_look).
    ///
    /// ```
    /// # fn frugal(tail: larder::blocking::Tail) -> larder::blocking::Tail {
    /// tail.parts_a_look(16)
    /// # }
    /// ```
    #[must_use]
    pub fn parts_a_look(self, parts: usize) -> Tail {
        Tail(self.0.parts_a_look(parts))
    }

    /// True if the last look left something unread for the next: [`Tail::is_behind`](crate::log::Tail::is_behind). **Round trips: 0.**
    ///
    /// ```
    /// # fn look(tail: &mut larder::blocking::Tail) -> larder::Result<()> {
    /// while !tail.poll()?.is_empty() || tail.is_behind() {}
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_behind(&self) -> bool {
        self.0.is_behind()
    }

    /// Where it stands, to go on from there in another process: [`Tail::cursor`](crate::log::Tail::cursor).
    ///
    /// ```
    /// # fn keep(tail: &larder::blocking::Tail) -> Vec<u8> {
    /// tail.cursor().to_bytes()
    /// # }
    /// ```
    pub fn cursor(&self) -> &Cursor {
        self.0.cursor()
    }

    /// [`Tail::poll`](crate::log::Tail::poll), waited for: what came since. Round trips: as there.
    ///
    /// ```
    /// # fn look(tail: &mut larder::blocking::Tail) -> larder::Result<()> {
    /// let events = tail.poll()?;
    /// # _ = events;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn poll(&mut self) -> Result<Events> {
        wait(self.0.poll())
    }

    /// [`Tail::next`](crate::log::Tail::next), waited for: as long as it takes until something comes.
    ///
    /// ```
    /// # fn follow(tail: &mut larder::blocking::Tail) -> larder::Result<()> {
    /// let events = tail.next()?;
    /// # _ = events;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    #[allow(clippy::should_implement_trait, reason = "it has the name of what it stands for, and fails")]
    pub fn next(&mut self) -> Result<Events> {
        wait(self.0.next())
    }
}
