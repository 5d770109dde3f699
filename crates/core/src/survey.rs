//! Surveying: what a store's servers say of their memory and their work, and how they keep each key, where they can tell.
//!
//! Apart from [`Store`](crate::Store) for the reason that [`List`](crate::list::List) is: whoever opened the store has its survey beside it, and no wrapper
//! can hide or show anything by accident. Keys are told as the server has them, those of other programs too, and are no keys of ops.
//!
//! A survey is for people who look after a store. It reads, and changes nothing, not even when a key was last used where a server can leave that out.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::profile::Encodings;
use crate::store::Ctx;

/// Something that can be surveyed.
///
/// # Contract
/// - **No snapshot.** A key that is there from before a walk begins until it ends is told, unless the implementation says why not; it may be told twice.
/// - Nothing is written, and no request takes a server long: it is asked in pieces, one after the other, and serves others in between.
///
/// ```
/// use larder_core::survey::{Pace, Survey, Told};
/// use larder_core::{Ctx, Result};
///
/// /// How many keys a store has.
/// async fn count(survey: &dyn Survey) -> Result<u64> {
///     let mut keys = 0;
///     let mut tell = |told: Told<'_>| keys += u64::from(matches!(told, Told::Key(_)));
///     survey.walk(Ctx::default(), Pace::default(), &mut tell).await?;
///     Ok(keys)
/// }
/// ```
pub trait Survey: Send + Sync + fmt::Debug {
    /// What each server says of itself now; one that does not answer is an error in its place. **Round trips: 1** a server (memcached: a connection and 4).
    fn vitals(&self, ctx: Ctx) -> Surveying<'_, Vec<Result<Vitals>>>;

    /// Tells every key and how it is kept, and how far it has come.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where a server cannot tell, [`Config`](crate::ErrorKind::Config) where it forbids a command that is needed;
    /// [`Timeout`](crate::ErrorKind::Timeout) when the deadline comes first. What was told until then stands.
    fn walk<'a>(
        &'a self,
        ctx: Ctx,
        pace: Pace,
        tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    ) -> Surveying<'a, Result<()>>;

    /// Looks closer at keys that a walk told: one answer each, in their order; `None` for one that is gone or has become another type, and for a store whose walk
    /// told all there is.
    ///
    /// # Errors
    /// As of [`walk`](Survey::walk).
    fn measure<'a>(&'a self, _: Ctx, _: Pace, keys: &'a [Sample]) -> Surveying<'a, Result<Vec<Option<Measured>>>> {
        Box::pin(async move { Ok(vec![None; keys.len()]) })
    }
}

/// A survey that is shared.
pub type SurveyRef = Arc<dyn Survey>;

/// A part of a survey under way.
pub type Surveying<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How fast a survey may ask.
///
/// ```
/// use larder_core::survey::Pace;
/// use std::time::Duration;
/// let pace = Pace { keys_a_second: std::num::NonZeroU32::new(10_000) };
/// // A page of 500 that took 10 ms: the rest of 50 ms is left to others.
/// assert_eq!(pace.pause(500, Duration::from_millis(10)), Duration::from_millis(40));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many keys are looked at in a second, about; `None`: as fast as the server answers.
    pub keys_a_second: Option<NonZeroU32>,
}

impl Default for Pace {
    /// 100,000 keys a second: some tenth of what a server does.
    fn default() -> Pace {
        Pace { keys_a_second: NonZeroU32::new(100_000) }
    }
}

impl Pace {
    /// No pauses.
    ///
    /// ```
    /// use larder_core::survey::Pace;
    /// use std::time::Duration;
    /// assert_eq!(Pace::UNBOUNDED.pause(1_000, Duration::ZERO), Duration::ZERO);
    /// ```
    pub const UNBOUNDED: Pace = Pace { keys_a_second: None };

    /// How long to wait after a piece of so many keys that took so long: until its time is over; and at least as long as it took, so that a server that is
    /// slow because it is busy is asked half of the time at the most.
    ///
    /// ```
    /// use larder_core::survey::Pace;
    /// use std::time::Duration;
    /// assert_eq!(Pace::default().pause(500, Duration::from_secs(1)), Duration::from_secs(1));
    /// ```
    pub fn pause(self, keys: usize, took: Duration) -> Duration {
        let Some(rate) = self.keys_a_second else { return Duration::ZERO };
        let whole = Duration::try_from_secs_f64(keys as f64 / f64::from(rate.get())).unwrap_or(Duration::MAX);
        whole.saturating_sub(took).max(took)
    }
}

/// What a walk tells.
///
/// ```
/// let told = larder_core::survey::Told::LookedAt(10_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// A key.
    Key(Seen<'a>),
    /// So many keys were looked at so far: told now and then, for progress.
    LookedAt(u64),
}

/// A key, and how it is kept.
///
/// ```
/// use larder_core::survey::{DataType, Seen};
/// let seen = Seen { key: b"tags", data_type: DataType::Set, encoding: "intset", bytes: None, resident_bytes: None, value_bytes: None, expires: None };
/// assert_eq!(seen.data_type.as_str(), "set");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The key as the server has it.
    pub key: &'a [u8],
    /// What it holds.
    pub data_type: DataType,
    /// How the server keeps it, in its own words: `listpack`, `intset`, …
    pub encoding: &'a str,
    /// What it takes, key and overhead included, in bytes; `None` where only [`measure`](Survey::measure) can tell.
    pub bytes: Option<u64>,
    /// What is set apart for it: the chunk of its slab class.
    pub resident_bytes: Option<u64>,
    /// The bytes of its value alone.
    pub value_bytes: Option<u64>,
    /// Whether it has a life, if that is known.
    pub expires: Option<bool>,
}

/// What a key holds.
///
/// ```
/// use larder_core::survey::DataType;
/// assert_eq!(DataType::named("zset"), DataType::SortedSet);
/// assert_eq!(DataType::named("ReJSON-RL"), DataType::Other);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// An item of a store that has nothing else.
    Item,
    /// A string of Redis.
    String,
    /// A list.
    List,
    /// A set.
    Set,
    /// A sorted set.
    SortedSet,
    /// A hash.
    Hash,
    /// A stream.
    Stream,
    /// What a module made.
    Other,
}

impl DataType {
    /// What Redis calls so.
    ///
    /// ```
    /// assert_eq!(larder_core::survey::DataType::named("hash").as_str(), "hash");
    /// ```
    pub fn named(name: &str) -> DataType {
        match name {
            "string" => DataType::String,
            "list" => DataType::List,
            "set" => DataType::Set,
            "zset" => DataType::SortedSet,
            "hash" => DataType::Hash,
            "stream" => DataType::Stream,
            _ => DataType::Other,
        }
    }

    /// Its name, for people.
    ///
    /// ```
    /// assert_eq!(larder_core::survey::DataType::SortedSet.as_str(), "sorted set");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            DataType::Item => "item",
            DataType::String => "string",
            DataType::List => "list",
            DataType::Set => "set",
            DataType::SortedSet => "sorted set",
            DataType::Hash => "hash",
            DataType::Stream => "stream",
            DataType::Other => "other",
        }
    }
}

/// A key to look at closer.
///
/// ```
/// use larder_core::survey::{DataType, Sample};
/// let sample = Sample { key: b"tags".to_vec(), data_type: DataType::Set, elements_max: 64 };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The key as the server has it.
    pub key: Vec<u8>,
    /// What it holds.
    pub data_type: DataType,
    /// How many of its elements to look at, where it has any that can be drawn; 0: none.
    pub elements_max: u32,
}

/// What a closer look found.
///
/// ```
/// let measured = larder_core::survey::Measured { bytes: 96, elements: 1, ..Default::default() };
/// assert!(measured.shapes.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// What the key takes, all included, in bytes. Of a large collection the server makes this up from some of its elements.
    pub bytes: u64,
    /// How many elements it has; of a string 1.
    pub elements: u64,
    /// Of a string its length in bytes.
    pub value_bytes: Option<u64>,
    /// Whether it has a life.
    pub expires: bool,
    /// Elements that were drawn, each different.
    pub shapes: Vec<Shape>,
}

/// How much there is to an element of a collection: of a hash field and value, of a set the member, of a sorted set member and score.
///
/// ```
/// use larder_core::survey::{Part, Shape};
/// let shape = Shape { name: Part::of(b"-17"), value: Some(Part::of(b"text")) };
/// assert_eq!((shape.name, shape.name.bytes()), (Part::Integer(-17), 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The field or the member.
    pub name: Part,
    /// The value or the score.
    pub value: Option<Part>,
}

/// A part of an element.
///
/// ```
/// use larder_core::survey::Part;
/// assert_eq!(Part::of(b"42"), Part::Integer(42));
/// assert_eq!(Part::of(b"042"), Part::Text(3)); // as text it is another
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A whole number of 64 bits, written as one would write it.
    Integer(i64),
    /// So many bytes of anything else.
    Text(u64),
}

impl Part {
    /// What some bytes are.
    ///
    /// ```
    /// use larder_core::survey::Part;
    /// assert_eq!(Part::of(b""), Part::Text(0));
    /// assert_eq!(Part::of(b"9223372036854775808"), Part::Text(19));
    /// assert_eq!(Part::of(b"-0"), Part::Text(2));
    /// ```
    pub fn of(bytes: &[u8]) -> Part {
        let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
        let is_plain = match digits {
            b"0" => digits.len() == bytes.len(),
            [first, ..] => (b'1'..=b'9').contains(first),
            [] => false,
        };
        let number = std::str::from_utf8(bytes).ok().filter(|_| is_plain).and_then(|text| text.parse().ok());
        number.map_or(Part::Text(bytes.len() as u64), Part::Integer)
    }

    /// How many bytes it has, as text.
    ///
    /// ```
    /// use larder_core::survey::Part;
    /// assert_eq!((Part::Integer(i64::MIN).bytes(), Part::Text(7).bytes()), (20, 7));
    /// ```
    pub fn bytes(self) -> u64 {
        match self {
            Part::Integer(0) => 1,
            Part::Integer(number) => u64::from(number.unsigned_abs().ilog10()) + 1 + u64::from(number < 0),
            Part::Text(bytes) => bytes,
        }
    }
}

/// What a server says of itself. What it does not tell is `None`, or empty.
///
/// Totals count from its start, or from the last reset of its statistics.
///
/// ```
/// let vitals = larder_core::survey::Vitals::of("cache:6379", "redis 7.0.15");
/// assert_eq!(vitals.used_bytes, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Vitals {
    /// Where it is.
    pub node: String,
    /// What it is, with its release.
    pub software: String,
    /// Since when it runs, in seconds.
    pub uptime_s: Option<u64>,
    /// What it uses of its memory, its own needs included; of a store on disk nothing.
    pub used_bytes: Option<u64>,
    /// Of that, what data and their keys take.
    pub data_bytes: Option<u64>,
    /// What the operating system has given it: RSS.
    pub resident_bytes: Option<u64>,
    /// Bytes of memory that are resident for each that is used, by the allocator's own figures where it has any.
    pub resident_ratio: Option<f64>,
    /// The step between the small sizes that its allocator gives.
    pub quantum_bytes: Option<u64>,
    /// What its files take.
    pub disk_bytes: Option<u64>,
    /// What it may use; `None`: as much as there is, or it does not tell.
    pub limit_bytes: Option<u64>,
    /// How many keys it holds.
    pub items: Option<u64>,
    /// Connections that are open.
    pub connections: Option<u64>,
    /// Commands that it has run.
    pub ops: Option<u64>,
    /// Reads that found something.
    pub hits: Option<u64>,
    /// Reads that found nothing.
    pub misses: Option<u64>,
    /// Keys that it dropped for want of room.
    pub evicted: Option<u64>,
    /// Keys whose lives were over.
    pub expired: Option<u64>,
    /// Bytes that it received.
    pub in_bytes: Option<u64>,
    /// Bytes that it sent.
    pub out_bytes: Option<u64>,
    /// Processor time that it has used, in microseconds.
    pub cpu_us: Option<u64>,
    /// How long commands took, by their names.
    pub commands: Vec<CommandTimes>,
    /// The latest commands that took long, the newest first.
    pub slow: Vec<Slow>,
    /// Keys that are used most, the hottest first, where the server watches them.
    pub hot: Vec<Hot>,
    /// Slab classes of a memcached.
    pub classes: Vec<SlabClass>,
    /// Up to which sizes it keeps collections packed.
    pub encodings: Option<Encodings>,
    /// Settings that have to do with memory, by the server's own names.
    pub settings: BTreeMap<String, String>,
    /// Its statistics as it told them, by its own names: for what this struct has no word for.
    pub told: BTreeMap<String, String>,
}

impl Vitals {
    /// A server that has told nothing yet.
    ///
    /// ```
    /// assert_eq!(larder_core::survey::Vitals::of("here", "memory").node, "here");
    /// ```
    pub fn of(node: impl Into<String>, software: impl Into<String>) -> Vitals {
        Vitals { node: node.into(), software: software.into(), ..Vitals::default() }
    }

    /// A number among what it told.
    ///
    /// ```
    /// let mut vitals = larder_core::survey::Vitals::of("here", "memory");
    /// vitals.told.insert("evictions".to_owned(), "7".to_owned());
    /// assert_eq!(vitals.number("evictions"), Some(7));
    /// ```
    pub fn number(&self, name: &str) -> Option<u64> {
        self.told.get(name)?.parse().ok()
    }
}

/// How long the commands of one name took, as the server counts it: without the network, and without waiting in its queue.
///
/// ```
/// use larder_core::survey::CommandTimes;
/// let times = CommandTimes { name: "get".to_owned(), calls: 4, total_us: 10.0, p50_us: None, p99_us: None };
/// assert_eq!(times.mean_us(), Some(2.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandTimes {
    /// The command.
    pub name: String,
    /// How many there were.
    pub calls: u64,
    /// What they took together, in microseconds.
    pub total_us: f64,
    /// What half of them took at the most.
    pub p50_us: Option<f64>,
    /// What 99 of 100 took at the most.
    pub p99_us: Option<f64>,
}

impl CommandTimes {
    /// What one took; `None` where there was none.
    ///
    /// ```
    /// assert_eq!(larder_core::survey::CommandTimes::default().mean_us(), None);
    /// ```
    pub fn mean_us(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.total_us / self.calls as f64)
    }
}

/// A command that took long.
///
/// ```
/// let slow = larder_core::survey::Slow { at_s: 1_700_000_000, us: 12_000, what: b"KEYS *".to_vec() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slow {
    /// When, in seconds since 1970 by the server's clock.
    pub at_s: u64,
    /// How long it took, in microseconds.
    pub us: u64,
    /// The command and the beginning of its arguments.
    pub what: Vec<u8>,
}

/// A key that is used much.
///
/// ```
/// let hot = larder_core::survey::Hot { key: b"home".to_vec(), count: 1_000, over: 10 };
/// assert!(hot.over <= hot.count);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The key.
    pub key: Vec<u8>,
    /// How often it was used, at the most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub over: u64,
}

/// A slab class of a memcached: chunks of one size.
///
/// ```
/// use larder_core::survey::SlabClass;
/// let class = SlabClass { id: 1, chunk_bytes: 96, pages: 1, page_chunks: 10_922, used_chunks: 922, evicted: 0 };
/// assert_eq!(class.free_bytes(), 960_000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabClass {
    /// Its number.
    pub id: u32,
    /// The size of its chunks.
    pub chunk_bytes: u64,
    /// How many pages it has.
    pub pages: u64,
    /// How many chunks a page is cut into.
    pub page_chunks: u64,
    /// How many chunks hold something.
    pub used_chunks: u64,
    /// How many items were evicted from it.
    pub evicted: u64,
}

impl SlabClass {
    /// What its chunks that hold nothing take.
    ///
    /// ```
    /// assert_eq!(larder_core::survey::SlabClass::default().free_bytes(), 0);
    /// ```
    pub fn free_bytes(&self) -> u64 {
        self.pages.saturating_mul(self.page_chunks).saturating_sub(self.used_chunks).saturating_mul(self.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_from_text_as_a_server_does() {
        for (bytes, part) in [
            (&b"0"[..], Part::Integer(0)),
            (b"-9223372036854775808", Part::Integer(i64::MIN)),
            (b"9223372036854775807", Part::Integer(i64::MAX)),
            (b"+1", Part::Text(2)),
            (b" 1", Part::Text(2)),
            (b"-", Part::Text(1)),
            (b"00", Part::Text(2)),
            (b"1.0", Part::Text(3)),
            (b"\xff", Part::Text(1)),
        ] {
            assert_eq!(Part::of(bytes), part, "{bytes:?}");
            assert_eq!(part.bytes(), bytes.len() as u64, "{bytes:?}");
        }
    }

    #[test]
    fn a_pace_never_asks_more_than_half_of_the_time() {
        let slow = Pace { keys_a_second: NonZeroU32::new(1) };
        assert_eq!(slow.pause(usize::MAX, Duration::ZERO), Duration::MAX, "as long as there is");
        let pace = Pace::default();
        for (keys, took_ms) in [(0, 0), (500, 1), (500, 5), (500, 400), (usize::MAX, 1)] {
            let took = Duration::from_millis(took_ms);
            assert!(pace.pause(keys, took) >= took);
        }
        assert_eq!(pace.pause(1_000, Duration::from_millis(2)), Duration::from_millis(8));
    }
}
