//! The raw ops of a structure: recorded once, then sent again without it.

use std::collections::HashMap;
use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use larder_core::{Batch, Cas, Ctx, Key, Op, Profile, PutMode, Reply, Run, Store, StoreExt, StoreRef, Ttl, Verb, Want};

use crate::Result;
use crate::drive::Step;

/// A value that is appended to begins anew at this size; a set of the default dirtiness looks after itself at about the same.
const APPENDED_BYTES_MAX: usize = 16 << 10;

/// A batch that was run.
#[derive(Clone)]
pub(super) struct Recorded {
    batch: Batch,
    /// What each op was answered, by kind, once it was.
    answers: Arc<OnceLock<Vec<Discriminant<Reply>>>>,
}

impl Recorded {
    pub(super) fn ops(&self) -> usize {
        self.batch.len()
    }

    /// True if one of its ops is, on a token.
    pub(super) fn is_conditional(&self) -> bool {
        self.batch.iter().any(|op| op.cas().is_some())
    }

    /// Whether this is what the op was to answer: what it answered then; or that it took effect, where it then came with a token of before.
    fn expects(&self, op: usize, reply: &Reply) -> bool {
        let verb = &self.batch[op].verb;
        let answered_so = self.answers.get().and_then(|answers| answers.get(op)) == Some(&discriminant(reply));
        match (verb, reply) {
            (Verb::Put { mode: PutMode::Cas(_), .. }, Reply::Stored) => true,
            // A look whether a claim's marker is there: it was just removed.
            (Verb::Get { want }, Reply::Miss) if want.is_empty() => true,
            _ => answered_so,
        }
    }
}

/// A store that notes every batch it is asked to run.
pub(super) struct Recorder {
    store: StoreRef,
    batches: Mutex<Vec<Recorded>>,
}

impl Recorder {
    pub(super) fn new(store: StoreRef) -> Arc<Recorder> {
        Arc::new(Recorder { store, batches: Mutex::default() })
    }

    /// What was run since the last time.
    pub(super) fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Recorded>> {
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
        let answers: Arc<OnceLock<_>> = Arc::default();
        self.lock().push(Recorded { batch: batch.clone(), answers: Arc::clone(&answers) });
        Run::Pending(Box::pin(async move {
            let replies = self.store.run(ctx, batch).await;
            let _only_once = answers.set(replies.iter().flatten().map(discriminant).collect());
            replies
        }))
    }
}

/// Sends recorded batches again and again. What was conditional is conditional on the token that the last answer brought.
pub(super) struct Raw {
    store: StoreRef,
    batches: Vec<Recorded>,
    tokens: HashMap<Key, Cas>,
    /// What the values that are appended to began as, and their bytes since.
    appended: HashMap<Key, (Bytes, usize)>,
    appended_bytes_max: usize,
}

impl Raw {
    /// On keys of its own where a write is conditional, with the values that the recorded ones have.
    pub(super) async fn new(store: &StoreRef, batches: &[Recorded], task: usize, tasks: usize) -> Result<Raw> {
        let mut raw = Raw {
            store: store.clone(),
            batches: batches.to_vec(),
            tokens: HashMap::new(),
            appended: HashMap::new(),
            appended_bytes_max: APPENDED_BYTES_MAX / tasks,
        };
        let is_conditional = batches.iter().any(Recorded::is_conditional);
        for at in 0..raw.batches.len() {
            for op in 0..raw.batches[at].ops() {
                let recorded = raw.batches[at].batch[op].key.clone();
                let key = if is_conditional { of_task(&recorded, task)? } else { recorded.clone() };
                raw.batches[at].batch[op].key = key.clone();
                // What stands under a native key is no item: such an op is sent to the same key again.
                if !matches!(raw.batches[at].batch[op].verb, Verb::Native(_)) {
                    raw.prepare(&recorded, key).await?;
                }
            }
        }
        raw.remove_what_is_put();
        Ok(raw)
    }

    /// A claim puts its marker and removes the one of the claim before it. Repeated, its marker is the same each time.
    fn remove_what_is_put(&mut self) {
        let is_marker = |op: &&Op| matches!(op.verb, Verb::Put { mode: PutMode::Set | PutMode::Add, .. });
        let Some(marker) =
            self.batches.iter().flat_map(|recorded| &recorded.batch).find(is_marker).map(|op| op.key.clone())
        else {
            return;
        };
        let ops = self.batches.iter_mut().flat_map(|recorded| &mut recorded.batch);
        for op in ops.filter(|op| matches!(op.verb, Verb::Delete { cas: None })) {
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
            if let Verb::Put { mode: PutMode::Cas(cas), .. } | Verb::Delete { cas: Some(cas) } = &mut op.verb
                && let Some(&token) = self.tokens.get(&op.key)
            {
                *cas = token;
            }
        }
        batch
    }

    /// Starts a value anew that an op has made grow to its limit: as a compaction does, now and then.
    async fn trim(&mut self, at: usize, op: usize) -> Result<()> {
        let op = &self.batches[at].batch[op];
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
            let batch = self.refreshed(&self.batches[at].batch);
            let replies = self.store.run(Ctx::default(), batch).await;
            for (op, reply) in replies.into_iter().enumerate() {
                let reply = reply?;
                let sent = &self.batches[at].batch[op];
                if !self.batches[at].expects(op, &reply) {
                    return Err(format!("{:?} answered {reply:?}", sent.verb).into());
                }
                if let (Verb::Get { want }, Reply::Item(item)) = (&sent.verb, reply)
                    && want.contains(Want::CAS)
                    && let Some(cas) = item.cas
                {
                    self.tokens.insert(sent.key.clone(), cas);
                }
            }
            for op in 0..self.batches[at].ops() {
                self.trim(at, op).await?;
            }
        }
        Ok(())
    }
}
