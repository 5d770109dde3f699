//! Which keys the servers hold: `lru_crawler metadump`, on a connection of its own.

use std::time::Duration;

use bytes::BytesMut;
use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, Error, ErrorKind, Result};
use larder_proto::metadump::{DumpLine, parse};
use tokio::time::Instant;

use crate::node::Node;
use crate::probe::Exchange;
use crate::{MemcachedStore, fleet};

/// Items between two words of progress.
const PROGRESS_EVERY: u64 = 10_000;
/// The pause before a server is asked again that is busy with another's listing.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// How often it is asked, where there is no deadline.
const BUSY_TRIES_MAX: u32 = 600;

/// Every server is asked, one after the other, on a connection of its own that is closed afterwards; the connections of ops are not disturbed.
///
/// - It lists what the server's crawler sees on its way through the server's hash table, which waits to grow until it has passed: an item that is there all along is told. A server that cannot
///   do that, or whose table is just growing, has its LRU lists walked; there an item that is moved between lists meanwhile, as one that was read twice is, may be missed or told twice.
/// - The crawler takes a thread of the server and looks at each item: on a large server it is slow (hundreds of thousands of items a second), and it
///   looks at all items whatever the prefix.
/// - One listing at a time runs on a server; a second waits.
/// - The list of its fleet, which each server carries, is not told: it is no data, and on another fleet it would lock its clients out.
///
/// # Errors
/// [`ErrorKind::Unsupported`] by a server whose crawler is switched off or that has none.
impl List for MemcachedStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            let mut looked_at = 0;
            for node in self.nodes() {
                let mut each = |key: &[u8], _: &[u8]| {
                    if key.starts_with(prefix) && key != fleet::KEY.as_bytes() {
                        tell(Listed::Key(key));
                    }
                    looked_at += 1;
                    if looked_at % PROGRESS_EVERY == 0 {
                        tell(Listed::LookedAt(looked_at));
                    }
                    Duration::ZERO
                };
                let listed = match ctx.deadline.map(Instant::from_std) {
                    Some(deadline) => tokio::time::timeout_at(deadline, items(node, &mut each)).await.ok(),
                    None => Some(items(node, &mut each).await),
                };
                let late = || Err(Error::new(ErrorKind::Timeout, format!("the deadline came after {looked_at} items")));
                listed.unwrap_or_else(late).map_err(|error| error.store(&node.server.name))?;
            }
            tell(Listed::LookedAt(looked_at));
            Ok(())
        })
    }
}

/// What makes a server list its items by its hash table. While that grows, the listing has its end at once.
const METADUMP_HASH: &[u8] = b"lru_crawler metadump hash\r\n";
/// What makes a server list its items by its LRU lists.
const METADUMP: &[u8] = b"lru_crawler metadump all\r\n";

/// What a server says next of its items.
enum Dumped {
    /// An item: its key, and the line.
    Item { key: Vec<u8>, line: BytesMut },
    /// There are no more.
    End,
    /// It is busy with another's listing.
    Busy,
}

/// The next word of a server that was asked for its items.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where it does not list its items; [`ErrorKind::Corrupt`] where it met damage before the end.
async fn dumped(exchange: &mut Exchange) -> Result<Dumped> {
    loop {
        let line = exchange.bare_line().await?;
        match parse(&line) {
            DumpLine::Key(key) => return Ok(Dumped::Item { key, line }),
            DumpLine::Begun => {}
            DumpLine::End => return Ok(Dumped::End),
            DumpLine::Busy => return Ok(Dumped::Busy),
            DumpLine::Refused(words) => {
                if words.starts_with("SERVER_ERROR") {
                    let detail = format!("the listing has no end: the server answered {words:?}");
                    return Err(Error::new(ErrorKind::Corrupt, detail));
                }
                let detail = format!("the server does not list its keys (lru_crawler metadump): {words:?}");
                return Err(Error::new(ErrorKind::Unsupported, detail));
            }
        }
    }
}

/// What takes an item, by its key and its line, and says for how long nothing is read behind it.
pub(crate) type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Duration + Send + 'a;

/// Lists one server, by its hash table where it can; where it is busy with another listing, after that.
pub(crate) async fn items(node: &Node, each: &mut Each<'_>) -> Result<()> {
    for _ in 0..BUSY_TRIES_MAX {
        let mut told = 0u64;
        let mut counted = |key: &[u8], line: &[u8]| {
            told += 1;
            each(key, line)
        };
        let is_done = match dump(node, METADUMP_HASH, &mut counted).await {
            Ok(true) if told == 0 => dump(node, METADUMP, each).await?,
            Err(error) if error.kind() == ErrorKind::Unsupported => dump(node, METADUMP, each).await?,
            dumped => dumped?,
        };
        if is_done {
            return Ok(());
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    }
    Err(Error::new(ErrorKind::Unavailable, "the server is busy with other listings"))
}

/// Lists one server; false if it is busy with another listing.
async fn dump(node: &Node, how: &[u8], each: &mut Each<'_>) -> Result<bool> {
    let mut exchange = node.exchange().await?;
    exchange.send(how).await?;
    loop {
        match dumped(&mut exchange).await? {
            Dumped::Item { key, line } => {
                let pause = each(&key, &line);
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            Dumped::End => return Ok(true),
            Dumped::Busy => return Ok(false),
        }
    }
}
