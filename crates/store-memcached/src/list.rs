//! Which keys the servers hold: `lru_crawler metadump`, on a connection of its own.

use std::time::Duration;

use bytes::BytesMut;
use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, Error, ErrorKind, Result};
use larder_proto::metadump::{DumpLine, parse};
use tokio::time::Instant;

use crate::MemcachedStore;
use crate::node::Node;
use crate::probe::Exchange;

/// Items between two words of progress.
const PROGRESS_EVERY: u64 = 10_000;
/// The pause before a server is asked again that is busy with another's listing.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// How often it is asked, where there is no deadline.
pub(crate) const BUSY_TRIES_MAX: u32 = 600;

/// Every server is asked, one after the other, on a connection of its own that is closed afterwards; the connections of ops are not disturbed.
///
/// - It lists what the server's crawler sees on its way through the server's hash table, which waits to grow until it has passed: an item that is there all along is told. A server that cannot
///   do that, or whose table is just growing, has its LRU lists walked; there an item that is moved between lists meanwhile, as one that was read twice is, may be missed or told twice.
/// - The crawler takes a thread of the server and looks at each item: on a large server it is slow (hundreds of thousands of items a second), and it
///   looks at all items whatever the prefix.
/// - One listing at a time runs on a server; a second waits.
///
/// # Errors
/// [`ErrorKind::Unsupported`] by a server whose crawler is switched off or that has none.
impl List for MemcachedStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            let mut walk = Walk { prefix, tell, looked_at: 0, deadline: ctx.deadline.map(Instant::from_std) };
            for node in self.nodes() {
                walk.node(node).await.map_err(|error| error.store(&node.server.name))?;
            }
            (walk.tell)(Listed::LookedAt(walk.looked_at));
            Ok(())
        })
    }
}

/// What makes a server list its items by its hash table. While that grows, the listing has its end at once.
const METADUMP_HASH: &[u8] = b"lru_crawler metadump hash\r\n";
/// What makes a server list its items by its LRU lists.
pub(crate) const METADUMP: &[u8] = b"lru_crawler metadump all\r\n";

/// What a server says next of its items.
pub(crate) enum Dumped {
    /// An item: its key, and the line.
    Item { key: Vec<u8>, line: BytesMut },
    /// There are no more.
    End,
    /// It is busy with another's listing.
    Busy,
}

/// The next word of a server that was asked by [`METADUMP`].
///
/// # Errors
/// [`ErrorKind::Unsupported`] where it does not list its items; [`ErrorKind::Corrupt`] where it met damage before the end.
pub(crate) async fn dumped(exchange: &mut Exchange) -> Result<Dumped> {
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

/// A listing over all servers.
struct Walk<'a> {
    prefix: &'a [u8],
    tell: &'a mut (dyn FnMut(Listed<'_>) + Send),
    looked_at: u64,
    deadline: Option<Instant>,
}

impl Walk<'_> {
    async fn node(&mut self, node: &Node) -> Result<()> {
        for _ in 0..BUSY_TRIES_MAX {
            let dumped = match self.deadline {
                Some(deadline) => match tokio::time::timeout_at(deadline, self.dump(node)).await {
                    Ok(dumped) => dumped?,
                    Err(_) => return Err(self.late()),
                },
                None => self.dump(node).await?,
            };
            if dumped {
                return Ok(());
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
        Err(Error::new(ErrorKind::Unavailable, "the server is busy with other listings"))
    }

    /// Lists one server; false if it is busy with another listing.
    async fn dump(&mut self, node: &Node) -> Result<bool> {
        let before = self.looked_at;
        match self.dump_by(node, METADUMP_HASH).await {
            Ok(true) if self.looked_at == before => self.dump_by(node, METADUMP).await,
            Err(error) if error.kind() == ErrorKind::Unsupported => self.dump_by(node, METADUMP).await,
            dumped => dumped,
        }
    }

    async fn dump_by(&mut self, node: &Node, how: &[u8]) -> Result<bool> {
        let mut exchange = node.exchange().await?;
        exchange.send(how).await?;
        loop {
            match dumped(&mut exchange).await? {
                Dumped::Item { key, .. } => {
                    if key.starts_with(self.prefix) {
                        (self.tell)(Listed::Key(&key));
                    }
                    self.looked_at += 1;
                    if self.looked_at.is_multiple_of(PROGRESS_EVERY) {
                        (self.tell)(Listed::LookedAt(self.looked_at));
                    }
                }
                Dumped::End => return Ok(true),
                Dumped::Busy => return Ok(false),
            }
        }
    }

    fn late(&self) -> Error {
        Error::new(ErrorKind::Timeout, format!("the deadline came after {} items", self.looked_at))
    }
}
