//! Servers that are wrong in one way each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{Batch, Cas, Ctx, Item, Key, Op, Profile, PutMode, Reply, Result, Run, Store, Ttl, Verb, Want};
use larder_store_memory::MemoryStore;

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nothing.
    None,
    /// A conditional write is a plain one.
    PlainSet,
    /// Restarts that keep the data begin to count tokens anew, and nobody notices that its token is of an earlier life.
    TokensReused,
    /// A conditional write that makes a value shorter, as a compaction does, wins also where others have appended since.
    DroppedAppend,
    /// A kill takes the writes of the last moment, acknowledged as they were.
    Unsynced,
    /// Reads are answered, now and then, by a replica that lags.
    Lagging,
    /// What is to live for a time lives for ever.
    NoLives,
    /// What is to live for a time lives for half of it.
    ShortLives,
    /// A delete is answered, and is not done, now and then.
    NoDeletes,
}

/// Batches between two restarts, about, that take the writes of the last moment.
const KILLS_ONE_IN: u64 = 25;
/// The same of restarts that begin to count tokens anew: they must come between a read and the write that is conditional on it.
const RESTARTS_ONE_IN: u64 = 6;
/// Deletes of which one is not done.
const UNDONE_ONE_IN: u64 = 10;
/// Batches of reads of which the replica answers one, and how many writes it lags behind.
const LAGS_ONE_IN: u64 = 20;
const LAG: usize = 20;
/// Writes that a kill takes.
const UNSYNCED: usize = 2;

/// A memory store with a bug.
#[derive(Debug)]
pub(crate) struct Server {
    memory: Arc<MemoryStore>,
    replica: MemoryStore,
    bug: Bug,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: fastrand::Rng,
    /// Writes to a key in this life.
    tokens: HashMap<Key, u64>,
    /// The latest writes, each with what was there before.
    undo: Vec<(Key, Option<Item>)>,
    /// What the replica has not heard of yet: the latest writes, each with what is there since.
    behind: VecDeque<(Key, Option<Item>)>,
}

impl Server {
    pub(crate) fn new(memory: Arc<MemoryStore>, bug: Bug, rng: fastrand::Rng) -> Server {
        Server {
            memory,
            replica: MemoryStore::new(),
            bug,
            state: Mutex::new(State { rng, tokens: HashMap::new(), undo: Vec::new(), behind: VecDeque::new() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn restart(&self) {
        let mut state = self.state();
        if state.rng.u64(..if self.bug == Bug::Unsynced { KILLS_ONE_IN } else { RESTARTS_ONE_IN }) > 0 {
            return;
        }
        state.tokens.clear();
        if self.bug != Bug::Unsynced {
            return;
        }
        std::mem::take(&mut state.undo).into_iter().rev().for_each(|before| put_back(&self.memory, before));
    }

    /// Whether the replica answers a batch.
    fn is_lagging(&self, batch: &Batch) -> bool {
        self.bug == Bug::Lagging && batch.iter().all(Op::is_read) && self.state().rng.u64(..LAGS_ONE_IN) == 0
    }

    fn there(&self, key: &Key) -> Option<Item> {
        let got = self.memory.apply(&Op::get(key.clone(), Want::VALUE | Want::FLAGS | Want::CAS));
        got.ok().and_then(Reply::into_item)
    }

    fn apply(&self, op: &Op) -> Result<Reply> {
        match self.bug {
            Bug::None => self.memory.apply(op),
            Bug::PlainSet => self.memory.apply(&plain(op)),
            Bug::DroppedAppend => match self.memory.apply(op)? {
                Reply::Exists if self.is_shorter(op) => self.memory.apply(&plain(op)),
                reply => Ok(reply),
            },
            Bug::TokensReused => self.apply_by_count(op),
            Bug::Lagging => self.apply_and_pass_on(op),
            Bug::NoLives => self.memory.apply(&living(op, |_| Ttl::Never)),
            Bug::ShortLives => self.memory.apply(&living(op, |life| Ttl::After(life / 2))),
            Bug::NoDeletes if matches!(op.verb, Verb::Delete { .. }) && self.state().rng.u64(..UNDONE_ONE_IN) == 0 => {
                Ok(Reply::Deleted)
            }
            Bug::NoDeletes => self.memory.apply(op),
            Bug::Unsynced => {
                let before = self.there(&op.key);
                let reply = self.memory.apply(op)?;
                if !op.is_read() && self.there(&op.key) != before {
                    let mut state = self.state();
                    state.undo.push((op.key.clone(), before));
                    let old = state.undo.len().saturating_sub(UNSYNCED);
                    state.undo.drain(..old);
                }
                Ok(reply)
            }
        }
    }

    /// The replica hears of what the op changed.
    fn apply_and_pass_on(&self, op: &Op) -> Result<Reply> {
        let before = self.there(&op.key);
        let reply = self.memory.apply(op)?;
        let now = self.there(&op.key);
        if now != before {
            let mut state = self.state();
            state.behind.push_back((op.key.clone(), now));
            if state.behind.len() > LAG
                && let Some(heard) = state.behind.pop_front()
            {
                put_back(&self.replica, heard);
            }
        }
        Ok(reply)
    }

    fn is_shorter(&self, op: &Op) -> bool {
        self.there(&op.key).is_some_and(|item| op.value_bytes() < item.value.len())
    }

    /// Tokens are the number of writes to the key in this life of the server.
    fn apply_by_count(&self, op: &Op) -> Result<Reply> {
        let now = self.state().tokens.get(&op.key).copied().unwrap_or(1);
        if let Some(cas) = op.cas()
            && cas.token != now
        {
            return Ok(if self.there(&op.key).is_some() { Reply::Exists } else { Reply::Miss });
        }
        if op.cas().is_some() && self.there(&op.key).is_none() {
            return Ok(Reply::Miss);
        }
        let before = self.there(&op.key);
        let mut reply = self.memory.apply(&plain(op))?;
        if !op.is_read() && self.there(&op.key) != before {
            self.state().tokens.insert(op.key.clone(), now + 1);
        }
        if let Reply::Item(Item { cas: Some(cas), .. }) = &mut reply {
            *cas = Cas { token: now, session: 1 };
        }
        Ok(reply)
    }
}

/// Has a key hold what it held elsewhere, or at another time.
fn put_back(memory: &MemoryStore, (key, item): (Key, Option<Item>)) {
    let op = match item {
        Some(Item { value, flags, .. }) => {
            Op::new(key, Verb::Put { mode: PutMode::Set, value, flags, ttl: Ttl::Never })
        }
        None => Op::delete(key),
    };
    _ = memory.apply(&op);
}

/// The op with another life than it asks for.
fn living(op: &Op, other: impl Fn(Duration) -> Ttl) -> Op {
    let mut op = op.clone();
    if let Verb::Put { ttl, .. } | Verb::Touch { ttl } = &mut op.verb
        && let Ttl::After(life) = *ttl
    {
        *ttl = other(life);
    }
    op
}

/// The op without its condition.
fn plain(op: &Op) -> Op {
    let mut op = op.clone();
    match &mut op.verb {
        Verb::Put { mode: mode @ PutMode::Cas(_), .. } => *mode = PutMode::Set,
        Verb::Delete { cas } => *cas = None,
        _ => {}
    }
    op
}

impl Store for Server {
    fn profile(&self) -> Arc<Profile> {
        self.memory.profile()
    }

    fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
        if matches!(self.bug, Bug::TokensReused | Bug::Unsynced) {
            self.restart();
        }
        if self.is_lagging(&batch) {
            return Run::Ready(batch.iter().map(|op| self.replica.apply(op)).collect());
        }
        Run::Ready(batch.iter().map(|op| self.apply(op)).collect())
    }
}
