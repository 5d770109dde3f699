//! A history of a few ops, and whether one thing after the other could have come to the same: Wing and Gong's search, 1993.

use std::collections::BTreeMap;

use larder_core::Reply;

/// What a thread does. Keys are numbers, values are short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Get(u8),
    Set {
        key: u8,
        value: Vec<u8>,
        expires: bool,
    },
    Add {
        key: u8,
        value: Vec<u8>,
    },
    Append {
        key: u8,
        more: Vec<u8>,
    },
    /// A put under the token that the thread read last of this key, if it did.
    Cas {
        key: u8,
        value: Vec<u8>,
        token: Option<u64>,
    },
    Delete {
        key: u8,
    },
    Incr {
        key: u8,
    },
    /// The clock passes every life.
    Expire,
    /// What the sweeper does.
    Sweep,
    Clear,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Reply(Reply),
    /// There is no room: nothing has changed.
    Full,
    /// What it was asked to add to is no number: nothing has changed.
    NoNumber,
    Done,
}

/// An act of a history, and when it was begun and over.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) begun: u64,
    pub(crate) over: u64,
    pub(crate) act: Act,
    pub(crate) came: Came,
}

/// What may happen besides the acts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// Items vanish: the store evicts.
    pub(crate) evictions: bool,
    /// Writes are refused: the store has a budget.
    pub(crate) full: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Item {
    value: Vec<u8>,
    expires: bool,
    version: u32,
}

/// The store as one thing after the other leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    items: BTreeMap<u8, Item>,
    versions: u32,
    /// The tokens that were seen, by key and version.
    tokens: BTreeMap<(u8, u32), u64>,
}

/// True if the events can be put into an order that respects who was over before whom, and in which each came to what it should.
pub(crate) fn is_linearizable(events: &[Event], allowed: Allowed) -> bool {
    search(events, (1 << events.len()) - 1, &Model::default(), allowed)
}

fn search(events: &[Event], left: u32, model: &Model, allowed: Allowed) -> bool {
    if left == 0 {
        return true;
    }
    let open = || (0..events.len()).filter(|at| left & (1 << at) != 0);
    let first_over = open().map(|at| events[at].over).min().unwrap_or(u64::MAX);
    open().filter(|&at| events[at].begun < first_over).any(|at| {
        let clock_moves = || {
            let Event { begun, over, .. } = events[at];
            events.iter().any(|other| other.act == Act::Expire && other.begun < over && begun < other.over)
        };
        let next = model.after(&events[at], allowed, clock_moves);
        next.iter().any(|model| search(events, left & !(1 << at), model, allowed))
    })
}

impl Model {
    /// The states that the act can have led to, given what came of it.
    fn after(&self, event: &Event, allowed: Allowed, clock_moves: impl Fn() -> bool) -> Vec<Model> {
        let mut starts = vec![self.clone()];
        if allowed.evictions
            && let Some(key) = event.act.key().filter(|key| self.items.contains_key(key))
        {
            let mut without = self.clone();
            without.items.remove(&key);
            starts.push(without);
        }
        let mut ends = Vec::new();
        for mut model in starts {
            if !model.take(event, allowed) {
                continue;
            }
            // A life that was reckoned before the clock moved is over already.
            if let Act::Set { key, expires: true, .. } = event.act
                && event.came == Came::Reply(Reply::Stored)
                && clock_moves()
            {
                let mut dead = model.clone();
                dead.items.remove(&key);
                ends.push(dead);
            }
            ends.push(model);
        }
        ends
    }

    /// Does what the act does; false if that does not come to what came.
    fn take(&mut self, event: &Event, allowed: Allowed) -> bool {
        let came = &event.came;
        if *came == Came::Full {
            return allowed.full;
        }
        let is = |reply: Reply| *came == Came::Reply(reply);
        match &event.act {
            Act::Get(key) => self.is_read(*key, came),
            Act::Set { key, value, expires } => self.put(*key, value.clone(), *expires) && is(Reply::Stored),
            Act::Add { key, .. } if self.items.contains_key(key) => is(Reply::NotStored),
            Act::Add { key, value } => self.put(*key, value.clone(), false) && is(Reply::Stored),
            Act::Append { key, more } => match self.items.get(key).cloned() {
                None => is(Reply::NotStored),
                Some(item) => self.put(*key, [item.value, more.clone()].concat(), item.expires) && is(Reply::Stored),
            },
            Act::Cas { key, value, token } => match self.items.get(key) {
                _ if token.is_none() => is(Reply::Exists),
                None => is(Reply::Miss),
                Some(item) if self.tokens.get(&(*key, item.version)) != token.as_ref() => is(Reply::Exists),
                Some(_) => self.put(*key, value.clone(), false) && is(Reply::Stored),
            },
            Act::Delete { key } => match self.items.remove(key) {
                None => is(Reply::Miss),
                Some(_) => is(Reply::Deleted),
            },
            Act::Incr { key } => self.incr(*key, came),
            Act::Expire => {
                self.items.retain(|_, item| !item.expires);
                true
            }
            Act::Sweep => true,
            Act::Clear => {
                self.items.clear();
                true
            }
        }
    }

    fn put(&mut self, key: u8, value: Vec<u8>, expires: bool) -> bool {
        self.versions += 1;
        self.items.insert(key, Item { value, expires, version: self.versions });
        true
    }

    /// True if a get could have brought this. The token is that of the version from now on, and of no other.
    fn is_read(&mut self, key: u8, came: &Came) -> bool {
        let (Some(item), Came::Reply(Reply::Item(read))) = (self.items.get(&key), came) else {
            return !self.items.contains_key(&key) && *came == Came::Reply(Reply::Miss);
        };
        let Some(cas) = read.cas.filter(|_| read.value == item.value) else { return false };
        let version = (key, item.version);
        let is_of_another =
            self.tokens.iter().any(|(seen, token)| seen.0 == key && *seen != version && *token == cas.token);
        *self.tokens.entry(version).or_insert(cas.token) == cas.token && !is_of_another
    }

    fn incr(&mut self, key: u8, came: &Came) -> bool {
        let Some(item) = self.items.get(&key).cloned() else { return *came == Came::Reply(Reply::Miss) };
        let number = std::str::from_utf8(&item.value).ok().and_then(|text| text.parse::<u64>().ok());
        match number {
            None => *came == Came::NoNumber,
            Some(number) => {
                let next = number.wrapping_add(1);
                self.put(key, next.to_string().into_bytes(), item.expires) && *came == Came::Reply(Reply::Number(next))
            }
        }
    }
}

impl Act {
    fn key(&self) -> Option<u8> {
        match self {
            Act::Get(key)
            | Act::Set { key, .. }
            | Act::Add { key, .. }
            | Act::Append { key, .. }
            | Act::Cas { key, .. }
            | Act::Delete { key }
            | Act::Incr { key } => Some(*key),
            Act::Expire | Act::Sweep | Act::Clear => None,
        }
    }
}
