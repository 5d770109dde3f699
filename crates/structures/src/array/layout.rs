//! What an array's elements mean: their order, repeats and removal, and what stands among them that is no element.
//!
//! An element is stored as it is; one that begins with a zero byte gets another zero in front. So a zero byte and
//! something else begin what is no element:
//!
//! | bytes | what | where |
//! |---|---|---|
//! | `00 01`, varint number, 8 bytes id, operations | a numbered change: counts if the commits say so ([`Commits`]) | log; a snapshot, while it is open |
//! | `00 02`, varint mark, varint token; 8 bytes chain of the mark, unless that is 0 | numbered changes up to the mark are settled here; the highest token of a lock seen | first in a snapshot; a shard with one anywhere else is not read |
//! | `00 03`, varint token, 8 bytes id, operations | a change under a lock: counts unless a higher token was seen before | log |
//!
//! Operations are encoded as in a frame: length × 2, + 1 to remove; bytes of the stored element.
//!
//! # Removing without a search
//! A removal notes how many items there were at that time: an item is gone if it stands before that. So a removal costs one entry in a table,
//! whatever it removes, and a value without removals needs no table at all.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::commits::{Commits, Wants};
use crate::append::layout::{put_element, put_varint, take, take_u64, take_varint};
use crate::append::{Action, Fold, Snapshot};

/// The version of the layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;

const ESCAPE: u8 = 0;
const NUMBERED: u8 = 1;
const HEAD: u8 = 2;
const FENCED: u8 = 3;

/// The most that a change may take beside its operations, and an element beside its bytes.
pub(crate) const AROUND_BYTES_MAX: usize = 64;

/// An element as it is stored.
pub(crate) fn stored(element: &[u8]) -> Cow<'_, [u8]> {
    if element.first() == Some(&ESCAPE) { Cow::Owned([&[ESCAPE], element].concat()) } else { Cow::Borrowed(element) }
}

/// The element that is stored so; `None` for what is no element.
fn element_of(stored: &[u8]) -> Option<&[u8]> {
    match stored {
        [ESCAPE, rest @ ..] => (rest.first() == Some(&ESCAPE)).then_some(rest),
        _ => Some(stored),
    }
}

/// A numbered change of one shard, as an operation of a frame.
pub(crate) fn numbered(number: u64, id: u64, operations: &[u8]) -> Vec<u8> {
    special(NUMBERED, number, id, operations)
}

/// A change under a lock, as an operation of a frame.
pub(crate) fn fenced(token: u64, id: u64, operations: &[u8]) -> Vec<u8> {
    special(FENCED, token, id, operations)
}

fn special(kind: u8, number: u64, id: u64, operations: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(operations.len() + AROUND_BYTES_MAX);
    body.extend_from_slice(&[ESCAPE, kind]);
    put_varint(&mut body, number);
    body.extend_from_slice(&id.to_le_bytes());
    body.extend_from_slice(operations);
    let mut out = Vec::with_capacity(body.len() + AROUND_BYTES_MAX);
    put_element(&mut out, Action::Put, &body);
    out
}

/// The elements of one shard, in order, as slices of its value.
#[derive(Debug, Default)]
pub(crate) struct Ordered<'v> {
    /// What is known to be committed; without it every numbered change is open.
    commits: Option<Arc<Commits>>,
    /// As they are stored, in order; open changes among them.
    items: Vec<&'v [u8]>,
    /// How many items there were when these were last removed.
    removed_at: HashMap<&'v [u8], usize, crate::hash::State>,
    /// True once something was applied.
    is_begun: bool,
    /// True where a loss is being accepted: see [`accepting`](Ordered::accepting).
    accepts: bool,
    /// Numbered changes up to this one had been settled when the snapshot was written.
    pub(crate) mark: u64,
    /// Which changes these were.
    pub(crate) chain: u64,
    /// The highest token of a lock that was seen.
    pub(crate) token: u64,
    /// The numbers that were found and applied.
    pub(crate) found: Vec<u64>,
    /// The changes under a lock that were found, by id, and whether they counted.
    pub(crate) fenced: Vec<(u64, bool)>,
    /// The highest number of an open change; all bits for what cannot be read.
    pub(crate) open: u64,
}

impl<'v> Ordered<'v> {
    pub(crate) fn with(commits: Option<Arc<Commits>>) -> Ordered<'v> {
        Ordered { commits, ..Ordered::default() }
    }

    /// A shard as it is settled where a loss is accepted: whatever its own past was, it takes what these commits have given, and nothing else.
    /// Its head is that of the [next era](Commits::accepted). Changes that are open are carried along, below that mark: they count nowhere, unless these commits turn out not to be the last.
    pub(crate) fn accepting(commits: Arc<Commits>) -> Ordered<'v> {
        Ordered { accepts: true, ..Ordered::with(Some(commits)) }
    }

    /// Up to which number numbered changes of the log are settled already, or came to nothing.
    fn floor(&self) -> u64 {
        match &self.commits {
            // The snapshot stands on another past: none of these numbers can have been settled in it, and those that these commits gave came after it.
            Some(commits) if self.accepts && commits.chain_of(self.mark) != Some(self.chain) => 0,
            _ => self.mark,
        }
    }

    /// True unless something was met that this release cannot read.
    pub(crate) fn is_readable(&self) -> bool {
        self.open != u64::MAX
    }

    /// No more elements than this.
    pub(crate) fn len_max(&self) -> usize {
        self.items.len()
    }

    /// The elements, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &'v [u8]> {
        self.elements().filter_map(element_of)
    }

    fn special(&mut self, item: &'v [u8]) -> Option<()> {
        let mut rest = item.get(2..)?;
        let number = take_varint(&mut rest)?;
        match item[1] {
            // Anywhere else nobody writes one: it would settle what stands before it, which nobody has settled.
            HEAD if self.is_begun => return None,
            HEAD => {
                self.token = self.token.max(take_varint(&mut rest)?);
                if number > self.mark {
                    self.chain = take_u64(&mut rest)?;
                    self.mark = number;
                }
            }
            NUMBERED => {
                let id = take_u64(&mut rest)?;
                let commits = self.commits.as_deref();
                if number <= self.floor() {
                    // Settled: it is a repeat, or came to nothing.
                } else if commits.is_none_or(|commits| number > commits.last()) {
                    self.items.push(item);
                    self.open = self.open.max(number);
                } else if commits.is_some_and(|commits| commits.is(number, id)) {
                    self.found.push(number);
                    self.operations(rest)?;
                }
            }
            FENCED => {
                let id = take_u64(&mut rest)?;
                let counts = number >= self.token;
                self.fenced.push((id, counts));
                if counts {
                    self.token = number;
                    self.operations(rest)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn operations(&mut self, mut rest: &'v [u8]) -> Option<()> {
        while !rest.is_empty() {
            let tag = take_varint(&mut rest)?;
            let stored = take(&mut rest, usize::try_from(tag >> 1).ok()?)?;
            element_of(stored)?;
            self.plain(if tag & 1 == 0 { Action::Put } else { Action::Remove }, stored);
        }
        Some(())
    }

    fn plain(&mut self, action: Action, stored: &'v [u8]) {
        match action {
            Action::Put => self.items.push(stored),
            Action::Remove => _ = self.removed_at.insert(stored, self.items.len()),
        }
    }
}

impl<'v> Fold<'v> for Ordered<'v> {
    fn expect(&mut self, elements: usize) {
        self.items.reserve(elements);
    }

    fn apply(&mut self, action: Action, item: &'v [u8]) {
        if action == Action::Remove || element_of(item).is_some() {
            self.plain(action, item);
        } else if self.special(item).is_none() {
            self.open = u64::MAX;
        }
        self.is_begun = true;
    }
}

impl<'v> Snapshot<'v> for Ordered<'v> {
    /// With the changes that are open: they stand where they were met.
    fn elements(&self) -> impl Iterator<Item = &'v [u8]> {
        let is_there = |at: usize, item: &[u8]| {
            self.removed_at.is_empty() || self.removed_at.get(item).is_none_or(|&removed_at| at >= removed_at)
        };
        self.items.iter().enumerate().filter(move |&(at, item)| is_there(at, item)).map(|(_, &item)| item)
    }

    fn head(&self) -> Option<Vec<u8>> {
        let (mark, chain) = match self.commits.as_deref() {
            Some(commits) if self.accepts => commits.accepted().map(|next| (next.base, next.tip()))?,
            Some(commits) if commits.last() > self.mark => (commits.last(), commits.tip()),
            _ => (self.mark, self.chain),
        };
        if mark == 0 && self.token == 0 {
            return None;
        }
        let mut head = vec![ESCAPE, HEAD];
        put_varint(&mut head, mark);
        put_varint(&mut head, self.token);
        if mark > 0 {
            head.extend_from_slice(&chain.to_le_bytes());
        }
        Some(head)
    }

    fn unsettled(&self) -> u64 {
        self.open
    }

    fn is_whole(&self, shard: u16) -> bool {
        let wants = self.commits.as_ref().map_or(Wants::Nothing, |commits| commits.wants(shard, self));
        // A shard that has settled more than is known here keeps its head, and what is above that is open.
        matches!(wants, Wants::Nothing | Wants::NewerCommits(_))
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
