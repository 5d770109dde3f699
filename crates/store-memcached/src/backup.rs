//! A backup of what a server of Larder's own keeps on disk: `lru_crawler backup all`, on a connection of its own.

use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::MemcachedStore;

/// What makes a server of ours send a backup; another one does not know it.
const BACKUP: &[u8] = b"lru_crawler backup all\r\n";
/// A part of a backup is no larger: the largest item that a dump takes, and a block.
const PART_BYTES_MAX: usize = (128 << 20) + (1 << 20);
/// How long a part may take to come: the server reads it from its disk.
const PART_WAIT: Duration = Duration::from_secs(60);

impl MemcachedStore {
    /// Takes a backup of all that a durable store behind `larder serve` holds at one moment, while others go on reading and writing: a dump, as
    /// `larder_store_durable` restores it, handed to `take` piece by piece. It is whole if this returns without an error; one that was cut short has no end, and is
    /// restored by nobody.
    ///
    /// **Round trips: 1**, on a connection of its own, and as long as the store is large.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a server that is none of Larder's, serves memory, or forbids listings (`-X`), and for several servers, which have no moment in common;
    /// [`ErrorKind::Corrupt`] where the store is damaged; those of the connection, and of `take`.
    ///
    /// ```no_run
    /// # async fn backup() -> larder_core::Result<()> {
    /// use larder_store_memcached::{Config, MemcachedStore};
    /// let store = MemcachedStore::connect(Config::from_url("memcached://localhost:11211")?).await?;
    /// let mut dump = Vec::new();
    /// store.backup(&mut |part| { dump.extend_from_slice(part); Ok(()) }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backup(&self, take: &mut (dyn FnMut(&[u8]) -> Result<()> + Send)) -> Result<()> {
        let [node] = self.nodes() else {
            let detail = "a backup is of one moment, and several servers have none in common; back up each by itself";
            return Err(Error::new(ErrorKind::Unsupported, detail));
        };
        let named = |error: Error| error.store(&node.server.name);
        let mut exchange = node.exchange().await.map_err(named)?;
        exchange.send(BACKUP).await.map_err(named)?;
        let late =
            || named(Error::new(ErrorKind::Timeout, format!("a part of the backup did not come in {PART_WAIT:?}")));
        loop {
            let line = timeout(PART_WAIT, exchange.bare_line()).await.map_err(|_| late())?.map_err(named)?;
            let line = String::from_utf8_lossy(&line);
            let part = match line.trim_end() {
                "OK" => continue,
                "END" => return Ok(()),
                line => line.strip_prefix("DATA ").and_then(|bytes| bytes.parse().ok()),
            };
            let part = part.filter(|bytes| *bytes <= PART_BYTES_MAX).ok_or_else(|| named(refused(line.trim_end())))?;
            take(&timeout(PART_WAIT, exchange.block(part)).await.map_err(|_| late())?.map_err(named)?)?;
        }
    }
}

fn refused(line: &str) -> Error {
    match line.strip_prefix("SERVER_ERROR ") {
        Some(words) => Error::new(ErrorKind::Corrupt, format!("the backup has no end: {words}")),
        None => Error::new(ErrorKind::Unsupported, format!("the server makes no backups: {line:?}")),
    }
}
