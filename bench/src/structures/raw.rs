//! The raw ops of a structure: recorded once, then sent again without it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_core::{Batch, Cas, Ctx, Key, Op, Profile, PutMode, Reply, Run, Store, StoreExt, StoreRef, Ttl, Verb, Want};

use crate::Result;
use crate::drive::Step;

/// A value that is appended to begins anew at this size; a set of the default dirtiness looks after itself at about the same.
const APPENDED_BYTES_MAX: usize = 16 << 10;

/// A store that notes every batch it is asked to run.
pub(super) struct Recorder {
    store: StoreRef,
    batches: Mutex<Vec<Batch>>,
}

impl Recorder {
    pub(super) fn new(store: StoreRef) -> Arc<Recorder> {
        Arc::new(Recorder { store, batches: Mutex::default() })
    }

    /// What was run since the last time.
    pub(super) fn take(&self) -> Vec<Batch> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Batch>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Store for Recorder {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.lock().push(batch.clone());
        self.store.run(ctx, batch)
    }
}

/// Sends recorded batches again and again. What was conditional is conditional on the token that the last answer brought.
pub(super) struct Raw {
    store: StoreRef,
    batches: Vec<Batch>,
    tokens: HashMap<Key, Cas>,
    /// What the values that are appended to began as, and their bytes since.
    appended: HashMap<Key, (Bytes, usize)>,
    appended_bytes_max: usize,
}

impl Raw {
    /// On keys of its own where a write is conditional, with the values that the recorded ones have.
    pub(super) async fn new(store: &StoreRef, batches: &[Batch], task: usize, tasks: usize) -> Result<Raw> {
        let mut raw = Raw {
            store: store.clone(),
            batches: batches.to_vec(),
            tokens: HashMap::new(),
            appended: HashMap::new(),
            appended_bytes_max: APPENDED_BYTES_MAX / tasks,
        };
        let is_conditional = batches.iter().flatten().any(|op| op.cas().is_some());
        for at in 0..raw.batches.len() {
            for op in 0..raw.batches[at].len() {
                let recorded = raw.batches[at][op].key.clone();
                let key = if is_conditional { of_task(&recorded, task)? } else { recorded.clone() };
                raw.batches[at][op].key = key.clone();
                raw.prepare(&recorded, key).await?;
            }
        }
        raw.remove_what_is_put();
        Ok(raw)
    }

    /// A claim puts its marker and removes the one of the claim before it. Repeated, its marker is the same each time.
    fn remove_what_is_put(&mut self) {
        let is_marker = |op: &&Op| matches!(op.verb, Verb::Put { mode: PutMode::Set | PutMode::Add, .. });
        let Some(marker) = self.batches.iter().flatten().find(is_marker).map(|op| op.key.clone()) else { return };
        for op in self.batches.iter_mut().flatten().filter(|op| matches!(op.verb, Verb::Delete { cas: None })) {
            op.key = marker.clone();
        }
    }

    async fn prepare(&mut self, recorded: &Key, key: Key) -> Result<()> {
        // A claim's marker goes with its acknowledgement: the raw ops add and remove one, too.
        let Some(item) = self.store.get(recorded.clone()).await? else { return Ok(()) };
        if *recorded != key {
            self.store.put(key.clone(), PutMode::Set, item.value.clone(), Ttl::Never).await?;
        }
        let cas = self.store.get(key.clone()).await?.and_then(|item| item.cas);
        self.tokens.extend(cas.map(|cas| (key.clone(), cas)));
        self.appended.insert(key, (item.value, 0));
        Ok(())
    }

    fn refreshed(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        for op in &mut batch {
            if let Verb::Put { mode: PutMode::Cas(cas), .. } = &mut op.verb
                && let Some(&token) = self.tokens.get(&op.key)
            {
                *cas = token;
            }
        }
        batch
    }

    /// Starts a value anew that has grown to its limit: as a set's compaction does, now and then.
    async fn trim(&mut self, op: &Op) -> Result<()> {
        let Verb::Put { mode: PutMode::Append, value, .. } = &op.verb else { return Ok(()) };
        let Some((first, bytes)) = self.appended.get_mut(&op.key) else { return Ok(()) };
        *bytes += value.len();
        if *bytes > self.appended_bytes_max {
            *bytes = 0;
            self.store.put(op.key.clone(), PutMode::Set, first.clone(), Ttl::Never).await?;
        }
        Ok(())
    }
}

/// The same key for each task that must not meet the others, of the same length.
fn of_task(key: &Key, task: usize) -> Result<Key> {
    let mut bytes = key.as_bytes().to_vec();
    // The first byte is the same in every key of a structure, so no other key is met.
    bytes[0] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKMNOPQRSTUVWXYZ0123456789-_+"[task % 64];
    Ok(Key::new(bytes)?)
}

impl Step for Raw {
    async fn step(&mut self) -> Result<()> {
        for at in 0..self.batches.len() {
            let batch = self.refreshed(&self.batches[at]);
            let replies = self.store.run(Ctx::default(), batch).await;
            for (op, reply) in replies.into_iter().enumerate() {
                let (verb, key) = (&self.batches[at][op].verb, &self.batches[at][op].key);
                match (verb, reply?) {
                    (Verb::Get { want }, Reply::Item(item)) => {
                        if want.contains(Want::CAS)
                            && let Some(cas) = item.cas
                            && let Some(token) = self.tokens.get_mut(key)
                        {
                            *token = cas;
                        }
                    }
                    // A look whether a claim's marker is there: it was just removed.
                    (Verb::Get { want }, Reply::Miss) if want.is_empty() => {}
                    // A table's put: appends, else adds.
                    (Verb::Put { mode: PutMode::Add, .. }, Reply::NotStored) => {}
                    (Verb::Put { .. }, Reply::Stored) | (Verb::Arith { .. }, Reply::Number(_)) => {}
                    (Verb::Delete { cas: None }, Reply::Deleted) => {}
                    (verb, other) => return Err(format!("{verb:?} answered {other:?}").into()),
                }
            }
            let is_of_one_key = self.batches[at].iter().all(|op| op.key == self.batches[at][0].key);
            if let (true, Some(op)) = (is_of_one_key, self.batches[at].first())
                && matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
            {
                let op = op.clone();
                self.trim(&op).await?;
            }
        }
        Ok(())
    }
}
