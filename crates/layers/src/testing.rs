//! For tests of programs: a store that loses things on purpose: the nth op killed before or after it was applied, replies lost, requests that arrive
//! after the caller gave up, tokens that die with their connection.
//!
//! It behaves as one connection to a server does: when it breaks at an op, every later op of the same batch has no reply
//! either, reads fail as [`NotApplied`](Effect::NotApplied), writes that were sent as [`Unknown`](Effect::Unknown), and tokens read
//! before the break are answered [`Exists`](Reply::Exists) after it, a watch of one [`Changed`](Reply::Changed).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, PutMode, Replies, Reply, Run, Store, StoreRef, Verb,
};

/// What happens at the op that breaks the connection.
///
/// ```
/// use larder_layers::testing::Fault;
/// let all = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)];
/// assert_eq!(all.len(), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The connection broke before it was sent: `NotApplied`, and it is.
    NotSent,
    /// The request was lost: `Unknown`, and neither it nor the rest of its batch took effect.
    LostRequest,
    /// It took effect, then the connection broke: `Unknown`, and the rest of its batch did not take effect.
    Cut,
    /// It and the rest of its batch took effect; the replies were lost: `Unknown`.
    LostReply,
    /// `Unknown`; it and the rest of its batch arrive after this many further ops have run on the new connection.
    Late(u64),
}

/// A store that breaks at chosen ops. Cheap to clone; clones share the plan.
///
/// What a program does when an add may have counted, or not:
///
/// ```
/// # use larder_core::{Result, StoreRef};
/// use larder_layers::testing::{Fault, Faulty};
/// use larder_structures::Counter;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let memory: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let store = Faulty::new(memory);
/// let hits = Counter::options().fast().open_or_create(&store.shared(), "hits").await?;
/// store.fail_nth(1, Fault::LostReply);
/// assert!(hits.add(1).await.unwrap_err().is_unknown());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Faulty {
    inner: StoreRef,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Ops run so far.
    ops: u64,
    /// Which connection this is; tokens of an earlier one are dead.
    connection: u64,
    plan: Plan,
    /// What arrives late: after how many ops, and the ops as the server gets them.
    late: Vec<(u64, Batch)>,
    injected: u64,
    /// What the sessions that callers see stand for: a session of the store behind, read over one connection.
    sessions: Vec<Session>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Session {
    inner: u64,
    connection: u64,
}

#[derive(Default)]
enum Plan {
    #[default]
    Pass,
    Nth(u64, Fault),
    From(u64, Fault),
    Random {
        rng: fastrand::Rng,
        one_in: u64,
        faults: Vec<Fault>,
    },
    Always(Fault),
}

impl Faulty {
    /// Passes everything on until told otherwise.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.put(key, PutMode::Set, "v", Ttl::Never).await?;
    /// assert_eq!((store.ops(), store.injected()), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn new(inner: StoreRef) -> Faulty {
        Faulty { inner, state: Arc::default() }
    }

    /// The same as a [`StoreRef`].
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// let counter = larder_structures::Counter::open_or_create(&store.shared(), "hits").await?;
    /// counter.add(1).await?;
    /// assert_eq!(counter.get().await?, 1);
    /// # Ok(()) }
    /// ```
    pub fn shared(&self) -> StoreRef {
        Arc::new(self.clone())
    }

    /// Breaks once, at the nth op from now (1 is the next one).
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_nth(1, Fault::LostReply);
    /// let error = store.put(key.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap_err();
    /// assert!(error.is_unknown());
    /// assert!(store.get(key).await?.is_some(), "it had arrived");
    /// # Ok(()) }
    /// ```
    pub fn fail_nth(&self, nth: u64, fault: Fault) {
        let mut state = self.lock();
        state.plan = Plan::Nth(state.ops + nth, fault);
    }

    /// Breaks at the nth op from now (1 is the next one) and at every one behind it: a server that goes away midway.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_from(2, Fault::NotSent);
    /// assert!(store.get(key.clone()).await.is_ok());
    /// assert!(store.get(key.clone()).await.is_err());
    /// assert!(store.get(key).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn fail_from(&self, nth: u64, fault: Fault) {
        let mut state = self.lock();
        state.plan = Plan::From(state.ops + nth, fault);
    }

    /// Breaks at one op in `one_in` on average, from a seed that the test prints.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_randomly(7, 2, &[Fault::NotSent, Fault::LostReply]);
    /// for _ in 0..50 {
    ///     _ = store.get(key.clone()).await;
    /// }
    /// assert!(store.injected() > 0);
    /// # Ok(()) }
    /// ```
    pub fn fail_randomly(&self, seed: u64, one_in: u64, faults: &[Fault]) {
        let rng = fastrand::Rng::with_seed(seed);
        self.lock().plan = Plan::Random { rng, one_in, faults: faults.to_vec() };
    }

    /// Breaks at every op: a server that cannot be reached, or never answers.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_always(Fault::NotSent);
    /// assert!(store.get(key).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn fail_always(&self, fault: Fault) {
        self.lock().plan = Plan::Always(fault);
    }

    /// Passes everything on from now. What is late still arrives.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_always(Fault::NotSent);
    /// store.heal();
    /// assert!(store.get(key).await.is_ok());
    /// # Ok(()) }
    /// ```
    pub fn heal(&self) {
        self.lock().plan = Plan::Pass;
    }

    /// Ops run so far.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.get(key).await?;
    /// assert_eq!(store.ops(), 1);
    /// # Ok(()) }
    /// ```
    pub fn ops(&self) -> u64 {
        self.lock().ops
    }

    /// Faults injected so far.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_nth(1, Fault::Cut);
    /// store.get(key).await.unwrap_err();
    /// assert_eq!(store.injected(), 1);
    /// # Ok(()) }
    /// ```
    pub fn injected(&self) -> u64 {
        self.lock().injected
    }

    /// Delivers everything that is late.
    ///
    /// ```
    /// # use larder_core::{Key, PutMode, Result, StoreExt, Ttl};
    /// # use larder_layers::testing::{Fault, Faulty};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let key = Key::new("k")?;
    /// let store = Faulty::new(memory);
    /// store.fail_nth(1, Fault::Late(1_000));
    /// store.put(key.clone(), PutMode::Set, "v", Ttl::Never).await.unwrap_err();
    /// assert!(store.get(key.clone()).await?.is_none());
    /// store.deliver_late().await;
    /// assert!(store.get(key).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn deliver_late(&self) {
        let late = std::mem::take(&mut self.lock().late);
        for (_, batch) in late {
            _ = self.inner.run(Ctx::default(), batch).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_on(&self, ctx: Ctx, batch: Batch) -> Replies {
        let (connection, broken, due) = {
            let mut state = self.lock();
            let connection = state.connection;
            let broken = state.meet(batch.len() as u64);
            (connection, broken, state.take_due())
        };
        for late in due {
            _ = self.inner.run(ctx, late).await;
        }
        let Some((at, fault)) = broken else {
            return self.forward(ctx, connection, batch).await;
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let (applied, late) = match fault {
            Fault::NotSent | Fault::LostRequest => (at, None),
            Fault::Cut => (at + 1, None),
            Fault::LostReply => (batch.len(), None),
            Fault::Late(after) => (at, Some(after)),
        };
        let mut replies = self.forward(ctx, connection, batch.iter().take(applied).cloned().collect()).await;
        if let Some(after) = late {
            let rest = batch.iter().skip(at).filter(|op| !op.is_read());
            let mut state = self.lock();
            let rest: Batch = rest.filter_map(|op| state.inner_op(op.clone(), connection).ok()).collect();
            let due = state.ops + after;
            state.late.push((due, rest));
        }
        replies.truncate(at);
        replies.extend(batch.iter().skip(at).map(|op| Err(error(op, fault))));
        replies
    }

    /// Runs ops on the store behind; tokens are translated both ways. Watches end together, so that where one of them has its answer here, the others have theirs: nothing is sent of them.
    async fn forward(&self, ctx: Ctx, connection: u64, batch: Batch) -> Replies {
        let sent: Vec<std::result::Result<Op, Reply>> = {
            let state = self.lock();
            batch.into_iter().map(|op| state.inner_op(op, connection)).collect()
        };
        let is_over = sent.iter().any(|op| matches!(op, Err(Reply::Changed)));
        let is_watch = |op: &Op| matches!(op.verb, Verb::Watch { .. });
        let ended = sent
            .into_iter()
            .map(|op| op.and_then(|op| if is_over && is_watch(&op) { Err(Reply::Unchanged) } else { Ok(op) }));
        let sent: Vec<std::result::Result<Op, Reply>> = ended.collect();
        let mut replies = self.inner.run(ctx, sent.iter().flatten().cloned().collect()).await.into_iter();
        let mut state = self.lock();
        sent.into_iter()
            .map(|op| match op {
                Err(answer) => Ok(answer),
                Ok(_) => {
                    let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
                    reply.map(|reply| state.outer_reply(reply, connection))
                }
            })
            .collect()
    }
}

impl State {
    /// Counts the ops of a batch; tells at which of them the connection breaks, if at one.
    fn meet(&mut self, ops: u64) -> Option<(u64, Fault)> {
        let first = self.ops + 1;
        self.ops += ops;
        let broken = match &mut self.plan {
            Plan::Pass => None,
            Plan::Nth(nth, fault) => (first..first + ops).contains(nth).then(|| (*nth - first, *fault)),
            Plan::From(nth, fault) => (first + ops > *nth).then(|| (nth.saturating_sub(first), *fault)),
            Plan::Always(fault) => Some((0, *fault)),
            Plan::Random { rng, one_in, faults } => {
                (0..ops).find(|_| rng.u64(..*one_in) == 0).and_then(|at| Some((at, *rng.choice(faults.iter())?)))
            }
        };
        if broken.is_some() {
            self.connection += 1;
            self.injected += 1;
            if matches!(self.plan, Plan::Nth(..)) {
                self.plan = Plan::Pass;
            }
        }
        broken
    }

    /// The op as the store behind knows it; the answer to it where its token belongs to another connection, and so to no item.
    fn inner_op(&self, mut op: Op, connection: u64) -> std::result::Result<Op, Reply> {
        let (cas, otherwise) = match &mut op.verb {
            Verb::Put { mode: PutMode::Cas(cas), .. } | Verb::Delete { cas: Some(cas) } => (cas, Reply::Exists),
            Verb::Watch { seen: Some(cas) } => (cas, Reply::Changed),
            _ => return Ok(op),
        };
        let session = usize::try_from(cas.session).ok().and_then(|at| self.sessions.get(at));
        let Some(session) = session.filter(|session| session.connection == connection) else { return Err(otherwise) };
        cas.session = session.inner;
        Ok(op)
    }

    fn outer_reply(&mut self, mut reply: Reply, connection: u64) -> Reply {
        if let Reply::Item(item) = &mut reply
            && let Some(cas) = &mut item.cas
        {
            let session = Session { inner: cas.session, connection };
            let known = self.sessions.iter().position(|known| *known == session);
            cas.session = known.unwrap_or_else(|| {
                self.sessions.push(session);
                self.sessions.len() - 1
            }) as u64;
        }
        reply
    }

    fn take_due(&mut self) -> Vec<Batch> {
        let ops = self.ops;
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|(at, _)| *at <= ops);
        self.late = later;
        let due: Vec<(u64, Batch)> = due;
        due.into_iter().map(|(_, batch)| batch).collect()
    }
}

fn error(op: &Op, fault: Fault) -> Error {
    let unknown = fault != Fault::NotSent && !op.is_read();
    let effect = if unknown { Effect::Unknown } else { Effect::NotApplied };
    Error::new(ErrorKind::Unavailable, format!("the connection broke ({fault:?})")).op(op).effect(effect)
}

impl Store for Faulty {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(self.run_on(ctx, batch))
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faulty").field(&self.inner).finish()
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Cas, Item, StoreExt};

    use super::*;
    use crate::fake::{Fake, get, key};

    #[tokio::test]
    async fn a_watch_has_the_token_of_the_store_behind_and_another_connections_is_told_as_a_change() {
        let (fake, seen) = (Arc::new(Fake::default()), Cas { token: 7, session: 42 });
        fake.will_answer([Ok(Reply::Item(Item { cas: Some(seen), ..Item::default() }))]);
        let store = Faulty::new(fake.clone());
        let item = store.run_one(Ctx::default(), get("k")).await.unwrap().into_item().unwrap();
        let watch = Op::watch(key("k"), item.cas);
        fake.will_answer([Ok(Reply::Unchanged)]);
        assert_eq!(store.run_one(Ctx::default(), watch.clone()).await.unwrap(), Reply::Unchanged);
        let sent: Vec<Op> = fake.take_asked().into_iter().flat_map(|(_, batch)| batch).collect();
        assert_eq!(sent, [get("k"), Op::watch(key("k"), Some(seen))]);
        store.fail_nth(1, Fault::Cut);
        store.run_one(Ctx::default(), get("k")).await.unwrap_err();
        fake.take_asked();
        assert_eq!(store.run_one(Ctx::default(), watch).await.unwrap(), Reply::Changed);
        assert!(fake.take_asked().iter().all(|(_, batch)| batch.is_empty()), "of no item: nothing is asked");
    }

    /// Watches of one batch end with the first of them.
    #[tokio::test]
    async fn a_watch_of_another_connection_ends_those_beside_it_at_once() {
        let fake = Arc::new(Fake::default());
        let store = Faulty::new(fake.clone());
        let dead = Op::watch(key("k"), Some(Cas { token: 7, session: 42 }));
        let replies = store.run(Ctx::default(), [Op::watch(key("l"), None), dead].into_iter().collect()).await;
        let replies: Vec<Reply> = replies.into_iter().map(Result::unwrap).collect();
        assert_eq!(replies, [Reply::Unchanged, Reply::Changed]);
        assert!(fake.take_asked().iter().all(|(_, batch)| batch.is_empty()), "it would wait for a change of the other");
    }
}
