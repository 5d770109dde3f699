//! Which keys the server holds: `SCAN`, a piece at a time, all over one connection.

use std::sync::Arc;
use std::time::Instant;

use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, Error, ErrorKind, Result};
use redis::Value;

use crate::codec::refused;
use crate::link::{Lines, Link};
use crate::node::{Node, Role};
use crate::place::{escaped, logical};
use crate::replicas::Does;
use crate::{RedisStore, handshake::text};

/// Keys that the server looks at in one piece; others are served between pieces.
const SCAN_COUNT: usize = 1_000;

/// `SCAN` with a pattern, so only keys that match cross the network; the server looks at all of them, a thousand a command, and serves others in between.
///
/// - Every key of the database that an op could name is told, those that other programs wrote too. A key that stands there from the
///   beginning to the end is told; `SCAN` may tell one twice.
/// - Where the server goes on is a number that means something to the process that told it alone: after a restart keys would be missed. So a listing whose connection
///   ends midway ends, too, whatever is there by then.
/// - A key of an op that is routed with another (`{with}key`) is [`Listed::Other`], by what the server has.
/// - **Round trips: 1** a thousand keys of the database.
///
/// # Errors
/// [`ErrorKind::Config`] where the server forbids `SCAN`; [`ErrorKind::Unavailable`] where the connection ended midway.
impl List for RedisStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            let listed = list_node(self.node(), ctx, prefix, &mut Progress::default(), tell).await;
            listed.map_err(|error| error.store(self.node().name()))
        })
    }
}

/// How far a listing has come.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) looked_at: u64,
    /// Something of the present server was told.
    pub(crate) is_begun: bool,
}

/// Tells the keys of one server. A node of a cluster must be a primary before the first piece and behind the last: what a replica holds says nothing.
pub(crate) async fn list_node(
    node: &Node,
    ctx: Ctx,
    prefix: &[u8],
    progress: &mut Progress,
    tell: &mut (dyn FnMut(Listed<'_>) + Send),
) -> Result<()> {
    let mut cursor = b"0".to_vec();
    progress.is_begun = false;
    // For the first piece a dial is waited for.
    let link = node.link_by(piece_deadline(node, ctx)).await?;
    is_primary(node, &link, ctx).await?;
    loop {
        let (next, keys) = scan(node, &link, ctx, &cursor, prefix).await?;
        for key in &keys {
            match logical(key) {
                Some(key) if key.starts_with(prefix) => tell(Listed::Key(&key)),
                None if prefix.is_empty() => tell(Listed::Other(key)),
                _ => {}
            }
        }
        progress.is_begun = true;
        progress.looked_at += SCAN_COUNT as u64;
        tell(Listed::LookedAt(progress.looked_at));
        if next == b"0" {
            return is_primary(node, &link, ctx).await.map_err(ended);
        }
        cursor = next;
    }
}

/// Each piece has the timeout of an op, all together the deadline.
fn piece_deadline(node: &Node, ctx: Ctx) -> Instant {
    ctx.at_most(node.config.timeout).deadline.unwrap_or_else(Instant::now)
}

/// A piece, from where the one before it ended, over the connection that this was told over.
async fn scan(
    node: &Node,
    link: &Arc<Link>,
    ctx: Ctx,
    cursor: &[u8],
    prefix: &[u8],
) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let not_listed = |refusal: Error| {
        let detail = format!("the server does not list its keys (SCAN): {}", refusal.detail());
        Error::new(refusal.kind(), detail)
    };
    node.info().unwrap_or_default().unknown.refuse("SCAN").map_err(not_listed)?;
    let mut cmd = redis::cmd("SCAN");
    cmd.arg(cursor).arg("COUNT").arg(SCAN_COUNT);
    if !prefix.is_empty() {
        cmd.arg("MATCH").arg(pattern(prefix));
    }
    let answered = node.run_over(link, Lines::One(&cmd), Does::Asks, piece_deadline(node, ctx)).await;
    let mut values = answered.map_err(|fault| if fault.is_cut() { ended(fault.error) } else { fault.error })?;
    match values.pop() {
        Some(Value::Array(parts)) => match <[Value; 2]>::try_from(parts) {
            Ok([Value::BulkString(next), Value::Array(keys)]) => {
                Ok((next, keys.into_iter().filter_map(bytes).collect()))
            }
            _ => Err(Error::new(ErrorKind::Protocol, "the server answered SCAN with something else")),
        },
        Some(Value::ServerError(error)) => Err(not_listed(refused(&error))),
        other => Err(Error::new(ErrorKind::Protocol, format!("the server answered SCAN with {other:?}"))),
    }
}

/// Whether a node of a cluster is a primary that serves slots, as it sees itself. One that does not tell is taken for one. **Round trips: 1**; 0 for a server on its own.
async fn is_primary(node: &Node, link: &Arc<Link>, ctx: Ctx) -> Result<()> {
    if node.role == Role::Single {
        return Ok(());
    }
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("NODES");
    let answered = node.run_over(link, Lines::One(&cmd), Does::Asks, piece_deadline(node, ctx)).await;
    match answered.map_err(|fault| fault.error)?.pop() {
        Some(Value::ServerError(_)) | None => Ok(()),
        Some(nodes) if serves(&text(&nodes)) => Ok(()),
        Some(_) => {
            let detail = "the node is no primary any more, or serves no slot: what it holds may be nothing";
            Err(Error::new(ErrorKind::Unavailable, detail))
        }
    }
}

/// Whether the node that answered `CLUSTER NODES` is a primary with slots: `<id> <place> myself,master - <times and state> 0-5460 …`. True where it does not say.
fn serves(nodes: &str) -> bool {
    let is_own = |flags: &str| flags.split(',').any(|flag| flag == "myself");
    let own = nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut own = own.filter(|fields| fields.get(2).is_some_and(|flags| is_own(flags)));
    own.next().is_none_or(|fields| {
        let has_slots = fields.iter().skip(8).any(|slots| !slots.trim().is_empty() && !slots.starts_with('['));
        fields[2].split(',').any(|flag| flag == "master") && has_slots
    })
}

fn ended(error: Error) -> Error {
    let detail = format!("it ended midway; what was told is not all: {}", error.detail());
    Error::new(error.kind(), detail).source(error)
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        other => Some(text(&other).into_bytes()),
    }
}

/// A glob of what may begin so: with the prefix itself, or behind a hash tag.
fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = b"*".to_vec();
    for &byte in escaped(prefix).iter() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^' | b'-') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::serves;

    #[test]
    fn a_node_says_whether_it_is_a_primary_with_slots() {
        let line = |flags: &str, slots: &str| {
            format!(
                "a 10.0.0.1:7000@17000 master - 0 1 2 connected 0-5\nb 10.0.0.2:7000@17000,host {flags} - 0 0 3 connected{slots}\n"
            )
        };
        for (flags, slots, is_one) in [
            ("myself,master", " 6-9 12", true),
            ("myself,master", " 6-9 [7->-a]", true),
            ("myself,master", "", false),
            ("myself,master", " [7-<-a]", false),
            ("myself,slave", "", false),
            ("slave", "", true),
        ] {
            assert_eq!(serves(&line(flags, slots)), is_one, "{flags}{slots}");
        }
        assert!(serves(""));
    }
}
