//! Watching on a cluster: each item is tracked by the primary of its slot.
//!
//! What ends a wait without a change of the item itself says "look again" too: a lost primary (its connection ends, and with it what it remembered), a slot
//! that moved (its keys are deleted where they were), a map that names another primary. A primary that gave its place away goes on telling, as a
//! replica, what it is sent. A slot that moves while nothing stands under the key tells nobody: the next look finds that.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use larder_core::{Batch, Error, ErrorKind, Replies, Reply};

use super::nodes::{Member, Nodes};
use super::parts::uncovered;
use super::slot::Slot;
use crate::watch::Watched;

/// The items of a batch that one primary serves, and their places in the batch.
struct Part {
    member: Arc<Member>,
    items: Vec<Watched>,
    places: Vec<usize>,
}

/// Times that a watch is tried by a newer map, where it failed for now.
const TRIES_MAX: u32 = 3;
/// How long a newer map is waited for.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until one of the items is another, or the deadline. **Round trips: 1** a node, all at once; more for the first on each, which opens a
/// connection, and where the map was old. Where one cannot be watched just now (its slot has no primary, or is on its way), all answer that.
pub(super) async fn watch(nodes: &Nodes, batch: &Batch, deadline: Instant) -> Replies {
    let refused = |error: Error| batch.iter().map(|op| Err(error.clone().op(op))).collect();
    for _ in 1..TRIES_MAX {
        match watch_once(nodes, batch, deadline).await {
            Ok(replies) => return replies,
            Err(error) if error.kind() == ErrorKind::Unavailable => nodes.refreshed(PAUSE, deadline).await,
            Err(error) => return refused(error),
        }
    }
    watch_once(nodes, batch, deadline).await.unwrap_or_else(refused)
}

async fn watch_once(nodes: &Nodes, batch: &Batch, deadline: Instant) -> Result<Replies, Error> {
    let items: Vec<Watched> = batch.iter().filter_map(Watched::of).collect();
    let slots: Vec<Slot> = items.iter().map(|item| Slot::of(&item.key)).collect();
    let parts = parts(nodes, items, &slots)?;
    let mut runs: Vec<_> = parts
        .iter()
        .map(|part| Box::pin(part.member.node.watcher.watch(&part.member.node, &part.items, deadline)))
        .collect();
    let mut moved = pin!(moved(nodes, &parts, &slots));
    let ended = poll_fn(|cx| {
        if moved.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let first = runs.iter_mut().enumerate().find_map(|(at, run)| match run.as_mut().poll(cx) {
            Poll::Ready(told) => Some((at, told)),
            Poll::Pending => None,
        });
        first.map_or(Poll::Pending, |first| Poll::Ready(Some(first)))
    })
    .await;
    match ended {
        None => Ok(batch.iter().map(|_| Ok(Reply::Changed)).collect()),
        Some((at, Ok(told))) => {
            let mut replies: Replies = batch.iter().map(|_| Ok(Reply::Unchanged)).collect();
            for (&place, reply) in parts[at].places.iter().zip(told) {
                replies[place] = Ok(reply);
            }
            Ok(replies)
        }
        Some((at, Err(error))) => Err(error.store(parts[at].member.node.name())),
    }
}

fn parts(nodes: &Nodes, items: Vec<Watched>, slots: &[Slot]) -> Result<Vec<Part>, Error> {
    let topology = nodes.topology();
    let mut parts: Vec<Part> = Vec::new();
    for (place, (item, &slot)) in items.into_iter().zip(slots).enumerate() {
        let owner = topology.map.owner(slot).ok_or_else(|| uncovered(slot, &topology))?;
        let member = &topology.members[owner];
        match parts.iter_mut().find(|part| Arc::ptr_eq(&part.member, member)) {
            Some(part) => {
                part.items.push(item);
                part.places.push(place);
            }
            None => parts.push(Part { member: member.clone(), items: vec![item], places: vec![place] }),
        }
    }
    Ok(parts)
}

/// Ends when a slot is served by another than it was.
async fn moved(nodes: &Nodes, parts: &[Part], slots: &[Slot]) {
    loop {
        let looked = nodes.looked();
        let topology = nodes.topology();
        for part in parts {
            let is_elsewhere = |&place: &usize| {
                let owner = topology.map.owner(slots[place]);
                owner.is_none_or(|owner| !Arc::ptr_eq(&topology.members[owner], &part.member))
            };
            if part.places.iter().any(is_elsewhere) {
                return;
            }
        }
        looked.await;
    }
}
