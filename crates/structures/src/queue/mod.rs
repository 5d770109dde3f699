//! A queue (first in, first out) and a stack (last in, first out) of items, of arbitrary bytes, that many processes push to and
//! take from.
//!
//! Pushing is one `append` to the tail segment, whatever the number of items. Taking is one conditional write of a small state that
//! says which items were taken. Both cost the same with a thousand items and with a million.
//!
//! An item that is *claimed* stays until it is acknowledged. If that does not happen within the lease, or it is given back,
//! another consumer gets it: each item is delivered **at least once**. An item that is *popped* is gone with the
//! write that takes it: it is delivered **at most once**, and lost if its consumer dies before it is done with it.
//!
//! # Guarantees, a store
//! | | memory | memcached, either dialect | without cas or expiry |
//! |---|---|---|---|
//! | an item whose push was acknowledged | delivered at least once | delivered at least once, or its loss is reported | [`Unsupported`](larder_core::ErrorKind::Unsupported) |
//! | a push whose outcome is unknown | cannot be | looked into until the timeout; then `Unknown`: it is there once, or not at all. Twice only if the network delivers a request after another segment took it | |
//! | an item that is claimed | is given to nobody else before the lease ends by the store's clock, or it is given back | the same, but for a marker that was evicted: then early | |
//! | a claim whose lease the store does not take: it is out of memory | is made once more; then an error, `Unknown`, and the item is anybody's | the same | |
//! | an item that was acknowledged | never delivered again | never delivered again | |
//! | order | of the items of a handle that pushes alone: the order of their pushes; of several see below | the same | |
//! | a lost segment | only where it is built as a cache that evicts | a consumer is told [`Lost`](larder_core::ErrorKind::Lost): the one that finds it, or, where that one gave up before it heard so, the next; then taking goes on behind it. One alone, unless others take just then, or a reply is lost | |
//! | a segment that was set back, by a failover or a restart from an older file | cannot be | a consumer is told `Lost`, as of a lost segment; what was pushed since is delivered, what was taken just before what is gone perhaps again, and claims of it are void | |
//! | a lost state | the same | `Lost`, to everybody | |
//!
//! A duplicate takes a lease that ran out, an item that was given back, or a fault. One window is left in which a loss is not
//! seen: a restart of the server that also loses the manifest, for then the structure is absent. A producer that has not noticed that its segment was closed may push to it when others have emptied it, and
//! the server may evict it then, or lose it, where several keep what is not on disk: so on a store that may evict, or has several servers without a disk, a segment that was emptied and is gone is told as lost unless it is known that it was removed, though perhaps nothing was in it. It is not known
//! where the reply to the removal was lost, or the one who removed it died right then, or stood still for 300 ms before it said so (half the timeout of a handle that has less than 600 ms), or was answered after the 200 ms that its caller waits for that and not used again so soon, or removed it while the store was one that loses nothing so, which it is no more (nobody says so there). A request that the network held back makes nothing
//! again that was removed: a segment's key is drawn for the one request that adds it.
//!
//! # Leases
//! A lease is the life of an item of its own, a *marker*: so the store's clock decides, and clocks of clients do not matter. Where lives
//! are whole seconds, it is up to two seconds longer than asked for. Renewing gives the marker another life. Nobody is given a claim whose marker is not known
//! to be there, or whose lease is over when the answer comes. Its holder counts on it up to [`Claim::deadline`], from when the write was sent.
//!
//! # Order
//! Items of a handle that pushes alone are taken in the order they were pushed (a stack: the reverse). Where several push, so are those of which one was
//! acknowledged before the other was pushed and that went to the same segment. A handle that has not noticed yet that another closed a segment goes on
//! pushing to it, for an eighth of a segment at the most: those items count as older than the next segment's, and if consumers have emptied the
//! segment by then, they come late, also after what the same handle pushed next. Items that were given back, or whose lease ran out, come first in a queue.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | push: up to 1,000 items, or a segment's bytes | 1; 2 more where the next segment is opened: once in 1,000 items or in a segment's bytes; 4 more where the tail refused it; of a stack 1 more where it seems full, and 1 where more than 16 segments are partly taken, or used up; 1 for each link in the way that a state left that was set back since |
//! | claim, pop, ack, release | as below; once in a segment up to 4 more: for its link, to remove it, of a stack with its link, and on a store that may evict, or has several servers without a disk, to note that |
//! | claim, pop | 2; 1 where the handle wrote the state last and has read on: a queue's claims in a row. A claim whose lease the store did not take: 1 more, of a stack 2. Where there is nothing: 1 more where over 32 claims are open, and for each 16 segments on record (used up, or claimed) beyond the first 16; 2 more for the one who removes what was used up; and on a store that may evict, or has several servers without a disk, while it is open what became of a segment, 1 for each look, for some 300 ms: pauses between them are drawn between 0 and a bound that doubles from 1 ms to 50 ms |
//! | `pop_within`, `claim_within` | as claim and pop, and 1 for each look while there is nothing; where the store tells of changes there is one more for each wait, of 2 s at the most, that ends as an item comes. Elsewhere the pauses between looks are drawn between 0 and a bound that doubles from 10 ms to 250 ms |
//! | ack, release | 1 where the handle wrote the state last, else 2 |
//! | renew | 1 |
//! | len, stat | 1 and 1 for each 16 segments, and 1 for each 256 that are not partly taken; of a stack 1 more for each place where segments were removed |
//! | open | 2 |
//! | open_or_create | 2 if it is there, 4 to make it |
//!
//! On a store of several servers what is looked at on the way (segments that were used up, and where the next one is) is a batch of its own at the same time, so 1 more of those that have any, which takes no longer: a server that does not answer holds a call up for 100 ms,
//! once a second at the most, and for 200 ms where a segment on it is to be removed. Only whether there is nothing to take has to wait for it.
//!
//! Calls through clones of one handle that come at the same time travel in one write.
//!
//! # Limits and memory
//! An item has 0 bytes up to [`Queue::item_bytes_max`]: the store's limit on a value less about 150. At most 1,024 claims are open at a
//! time (with so many, a stack gives what was given back before what is newer), and at most 1 GiB of segments is held unless [`QueueOptions::bytes_max`] says otherwise; then calls are
//! [`Full`](larder_core::ErrorKind::Full). Acknowledging and giving back always fits: taking stops earlier. What is used up and about to be removed does not count. Handles look at their segment now and then: each that pushes may fill it by an eighth more, and by an item. An item costs its bytes, 1 to
//! 3 for its length, and each push 14 to 17 more; a segment that waits in the middle has a link of 12 bytes beside its key. The state takes about 60 bytes, up to 50 for each segment that is partly taken, 12 for each of the last 16 writers and about 14 a claim; a
//! claim's marker some 50 more than its key, on a server, until the lease ends.

mod consume;
mod engine;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod handle;
mod layout;
mod leases;
mod options;
mod past;
mod plan;
mod push;
mod removal;
mod request;
mod stat;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};

pub use handle::{Claim, Queue, Stack};
pub(crate) use layout::LAYOUT;
pub use options::{QueueOptions, StackOptions};
pub(crate) use stat::pieces;

/// The shortest lease.
pub const LEASE_MIN: Duration = Duration::from_millis(1);

/// The id of a claim, to acknowledge it by from another process: 16 hex digits.
///
/// ```
/// use larder_structures::queue::ClaimId;
/// let id: ClaimId = "00000000000000ff".parse()?;
/// assert_eq!(id.to_string(), "00000000000000ff");
/// assert!("".parse::<ClaimId>().is_err() && "0".parse::<ClaimId>().is_err());
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimId(u64);

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ClaimId {
    type Err = Error;

    fn from_str(text: &str) -> Result<ClaimId> {
        let is_hex = (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u64::from_str_radix(text, 16).ok().filter(|&id| is_hex && id != layout::GIVEN_BACK);
        id.map(ClaimId).ok_or_else(|| {
            let shown = larder_core::text::Shown(text.as_bytes());
            Error::new(ErrorKind::BadInput, format!("a claim's id is 1 to 16 hex digits, and not 0: {shown}"))
        })
    }
}

/// Figures of a queue or a stack.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Queue;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let jobs = Queue::open_or_create(&store, "jobs").await?;
/// jobs.push("a").await?;
/// let stat = jobs.stat().await?;
/// assert_eq!((stat.ready, stat.claimed, stat.segments_lost), (1, 0, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QueueStat {
    /// Items that wait to be taken.
    pub ready: u64,
    /// Items that are claimed, those included whose lease has run out and that nobody has claimed again.
    pub claimed: u64,
    /// Items acknowledged or popped since it was made.
    pub acknowledged: u64,
    /// Segments there are.
    pub segments: u64,
    /// What they take, in bytes, without keys and the store's own overhead.
    pub bytes: u64,
    /// Of these, what items take that were acknowledged: it goes with their segments.
    pub stale_bytes: u64,
    /// Segments that are gone, or were set back, and other losses that were found, of which no consumer is known to have heard yet.
    pub segments_missing: u64,
    /// Segments that were lost, or set back, since it was made, as far as consumers have come.
    pub segments_lost: u64,
    /// Claimed items that were lost before they were acknowledged, or whose claim is void since their segment was set back.
    pub items_lost: u64,
}

/// The parameters in words; `None` for what this release did not write.
pub(crate) fn describe(params: &[u8]) -> Option<Vec<(&'static str, String)>> {
    let params = engine::Params::decode(params)?;
    Some(vec![("segment bytes", params.segment_bytes.to_string()), ("bytes at most", params.bytes_max.to_string())])
}
