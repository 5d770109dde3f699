//! The one server: a memory store that can be stopped, emptied, set back, and robbed of items.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{Cas, Error, ErrorKind, ManualClock, Op, PutMode, Replies, Reply, Store, Ttl, Verb, Want};
use larder_store_memory::MemoryStore;
use larder_testkit::history::Caused;
use tokio::time::Instant;

/// A server, and what befell it.
pub(super) struct Server {
    begun: Instant,
    clock: Arc<ManualClock>,
    value_bytes_max: usize,
    pub(super) caused: Arc<Caused>,
    state: Mutex<State>,
}

struct State {
    memory: MemoryStore,
    /// The session of the memory store's own tokens.
    session: u64,
    /// How often it has started.
    life: u64,
    /// Nothing is answered before.
    answers_from: Instant,
    /// Nobody can connect before.
    is_up_from: Instant,
    /// What it held once: key, value, flags, and when it expires.
    kept: Option<Vec<Kept>>,
}

struct Kept {
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    expiry_ms: Option<u64>,
}

impl Server {
    /// An empty one.
    pub(super) fn new(value_bytes_max: usize, caused: Arc<Caused>) -> Server {
        let (clock, now) = (Arc::new(ManualClock::default()), Instant::now());
        let (memory, session) = start(&clock, value_bytes_max);
        let state = State { memory, session, life: 1, answers_from: now, is_up_from: now, kept: None };
        Server { begun: now, clock, value_bytes_max, caused, state: Mutex::new(state) }
    }

    /// What the memory store says of itself.
    pub(super) fn memory_profile(&self) -> Arc<larder_core::Profile> {
        self.lock().memory.profile()
    }

    /// How often it has started: connections end with a life.
    pub(super) fn life(&self) -> u64 {
        self.lock().life
    }

    /// When it answers again, and when it can be connected to again.
    pub(super) fn busy_until(&self) -> (Instant, Instant) {
        let state = self.lock();
        (state.answers_from, state.is_up_from)
    }

    /// Runs ops that came over a connection; tokens carry the connection's number on the outside. A server that is full refuses what it would have to
    /// keep.
    pub(super) fn apply(&self, ops: &[Op], connection: u64, is_full: bool) -> Replies {
        let state = self.tick();
        let session = state.session;
        let run = |op: &Op| {
            if is_full && !op.is_read() && !matches!(op.verb, Verb::Delete { .. } | Verb::Touch { .. }) {
                return Err(Error::new(ErrorKind::Full, "the server has no room").op(op).store("simulated"));
            }
            let mut op = op.clone();
            if let Verb::Put { mode: PutMode::Cas(cas), .. } | Verb::Delete { cas: Some(cas) } = &mut op.verb {
                cas.session = session;
            }
            state.memory.apply(&op).map(|reply| with_session(reply, connection))
        };
        ops.iter().map(run).collect()
    }

    /// It does not answer for so long.
    pub(super) fn stop(&self, time: Duration) {
        self.lock().answers_from = Instant::now() + time;
    }

    /// Remembers what it holds, for [`set_back`](Server::set_back).
    pub(super) fn keep(&self) {
        let mut state = self.tick();
        state.kept = Some(state.contents());
    }

    /// Removes some items, picked by `random`: how many.
    pub(super) fn evict(&self, items: usize, random: &mut fastrand::Rng) -> usize {
        let state = self.tick();
        let mut keys: Vec<_> = state.contents().into_iter().map(|kept| kept.key).collect();
        random.shuffle(&mut keys);
        keys.truncate(items);
        if !keys.is_empty() {
            self.caused.losses.fetch_add(1, Ordering::SeqCst);
        }
        keys.iter().filter(|key| matches!(state.memory.direct().delete(key, None), Ok(Reply::Deleted))).count()
    }

    /// Removes everything, and goes on.
    pub(super) fn flush(&self) {
        self.caused.losses.fetch_add(1, Ordering::SeqCst);
        self.tick().memory.clear();
    }

    /// Starts again after so long, with what it held.
    pub(super) fn restart(&self, down: Duration) {
        let mut state = self.tick();
        let contents = state.contents();
        self.start_with(&mut state, down, contents);
    }

    /// Starts again after so long, with nothing.
    pub(super) fn restart_empty(&self, down: Duration) {
        self.caused.losses.fetch_add(1, Ordering::SeqCst);
        let mut state = self.tick();
        self.start_with(&mut state, down, Vec::new());
    }

    /// Starts again after so long, with what was [kept](Server::keep); false if nothing was.
    pub(super) fn set_back(&self, down: Duration) -> bool {
        let mut state = self.tick();
        let Some(kept) = state.kept.take() else { return false };
        self.caused.setbacks.fetch_add(1, Ordering::SeqCst);
        self.start_with(&mut state, down, kept);
        true
    }

    /// Up, and answering.
    pub(super) fn heal(&self) {
        let mut state = self.lock();
        state.answers_from = Instant::now();
        state.is_up_from = Instant::now();
    }

    fn start_with(&self, state: &mut State, down: Duration, contents: Vec<Kept>) {
        let (memory, session) = start(&self.clock, self.value_bytes_max);
        let now_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        for Kept { key, value, flags, expiry_ms } in contents {
            let ttl = match expiry_ms.map(|at_ms| at_ms.saturating_sub(now_ms)) {
                None => Ttl::Never,
                Some(0) => continue,
                Some(left_ms) => Ttl::After(Duration::from_millis(left_ms)),
            };
            memory.direct().put(&key, PutMode::Set, &value, flags, ttl).expect("what it held before fits");
        }
        (state.memory, state.session) = (memory, session);
        state.life += 1;
        state.is_up_from = Instant::now() + down;
        state.answers_from = state.is_up_from;
    }

    /// Turns the store's clock to the simulation's time.
    fn tick(&self) -> MutexGuard<'_, State> {
        use larder_core::Clock;
        self.clock.advance(self.begun.elapsed().saturating_sub(self.clock.monotonic()));
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// All that it holds, in the order of the keys.
    fn contents(&self) -> Vec<Kept> {
        let mut contents = Vec::new();
        self.memory.each(|key, seen| {
            let (value, flags) = (seen.value.to_vec(), seen.flags);
            contents.push(Kept { key: key.to_vec(), value, flags, expiry_ms: seen.expiry_ms });
        });
        contents.sort_by(|a, b| a.key.cmp(&b.key));
        contents
    }
}

/// A store of one shard, so that its tokens do not hang on how keys are hashed, and the session of its tokens.
fn start(clock: &Arc<ManualClock>, value_bytes_max: usize) -> (MemoryStore, u64) {
    let memory = MemoryStore::builder().clock(clock.clone()).value_bytes_max(value_bytes_max).shards(1).build();
    let memory = memory.expect("one shard without a budget");
    let direct = memory.direct();
    direct.put(b"k", PutMode::Set, b"", 0, Ttl::Never).expect("an empty store has room");
    let read = direct.get(b"k", Want::CAS).expect("it was just put");
    let session = read.and_then(|item| item.cas).map_or(0, |cas| cas.session);
    memory.clear();
    (memory, session)
}

fn with_session(mut reply: Reply, session: u64) -> Reply {
    if let Reply::Item(item) = &mut reply {
        item.cas = item.cas.map(|cas| Cas { session, ..cas });
    }
    reply
}

/// What a profile does not have, and an op asks for.
pub(super) fn overreach(op: &Op, profile: &larder_core::Profile) -> Option<&'static str> {
    match &op.verb {
        Verb::Delete { cas: Some(_) } if !profile.delete_cas => Some("a delete by token"),
        Verb::Arith { initial: Some(_), .. } if !profile.arith_initial => Some("arithmetic with an initial value"),
        Verb::Watch { .. } if !profile.watch => Some("a watch"),
        Verb::Native(_) => Some("a native op"),
        _ if !profile.keys_binary && op.key.as_bytes().iter().any(|byte| !byte.is_ascii_graphic()) => {
            Some("a binary key")
        }
        _ => None,
    }
}
