//! The fleet's fingerprint: two clients with different server lists would split a lock in two, so each server of a fleet carries
//! the list it belongs to, and a client with another list is refused.
//!
//! The item's key is [`KEY`], its value is text:
//!
//! ```text
//! larder fleet 1
//! hash rendezvous
//! server cache1:11211 weight 1
//! server cache2:11211 weight 1
//! ```
//!
//! The servers are sorted, since neither hash depends on their order. The item never expires. It is looked at, and put back if
//! it was evicted or the server was restarted, at each connect, and not in between. A client of a single server leaves no mark, but is refused
//! by a server that belongs to a fleet. To change the list of a running fleet, connect once with `fleet=claim`: a client claims each
//! server at its first handshake with it, and from then on is refused as any other where somebody has claimed the server since.

use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Key, Op, PutMode, Reply, Result, Ttl, Want};

use crate::config::{Config, FleetMode};
use crate::probe::Exchange;

/// Where the list is kept.
pub const KEY: &str = larder_core::list::FLEET_KEY;

/// The server list of a store, as its servers carry it.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprint {
    text: String,
    /// A single server carries none.
    stamps: bool,
}

impl Fingerprint {
    pub(crate) fn of(config: &Config) -> Fingerprint {
        let mut lines: Vec<String> =
            config.servers.iter().map(|server| format!("server {} weight {}\n", server.name, server.weight)).collect();
        lines.sort();
        let text = format!("larder fleet 1\nhash {}\n{}", config.hash.as_str(), lines.concat());
        Fingerprint { text, stamps: config.servers.len() > 1 }
    }
}

/// The op that reads a server's list.
pub(crate) fn read() -> Result<Op> {
    Ok(Op::get(Key::new(KEY)?, Want::VALUE))
}

/// Checks the server's list, as it was just `found`, against ours, and leaves ours where there is none. **Round trips: 0**, 1 where
/// it leaves it or claims the server.
pub(crate) async fn check(exchange: &mut Exchange, found: Reply, ours: &Fingerprint, mode: FleetMode) -> Result<()> {
    let key = Key::new(KEY)?;
    let put = |mode| Op::put(key.clone(), mode, ours.text.clone(), Ttl::Never);
    match mode {
        FleetMode::Ignore => return Ok(()),
        FleetMode::Claim => {
            let op = if ours.stamps { put(PutMode::Set) } else { Op::delete(key.clone()) };
            exchange.op(&op).await?;
            return Ok(());
        }
        FleetMode::Check => {}
    }
    let mut found = found;
    // Another client may stamp, or the item be evicted, between our get and our add: a few turns settle it.
    for _ in 0..4 {
        match found {
            Reply::Item(item) if item.value == ours.text.as_bytes() => return Ok(()),
            Reply::Item(item) => return Err(differs(&ours.text, &item.value)),
            _ if !ours.stamps => return Ok(()),
            _ => {}
        }
        if exchange.op(&put(PutMode::Add)).await? == Reply::Stored {
            return Ok(());
        }
        found = exchange.op(&read()?).await?;
    }
    Err(Error::new(ErrorKind::Conflict, format!("the item {KEY} keeps changing while it is looked at")))
}

fn differs(ours: &str, theirs: &[u8]) -> Error {
    Error::new(
        ErrorKind::Config,
        format!(
            "the server belongs to another server list, and with two lists a lock would be two locks; ours is {}, the \
             server's {} (use the same list, or connect once with fleet=claim to change it)",
            Shown(ours.as_bytes()),
            Shown(theirs)
        ),
    )
}
