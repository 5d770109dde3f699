//! The store: batches as commands, replies as outcomes.

use std::sync::Arc;
use std::time::Instant;

use larder_core::ext::answered_at_once;
use larder_core::{Batch, Ctx, Error, ErrorKind, Op, Profile, Replies, Reply, Result, Run, Store};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::codec::{Command, Encoded, Limits, Refusal, decode, encode, reads_back};
use crate::config::Config;
use crate::counters::{Counters, Stats, count};
use crate::handshake::{ServerInfo, load};
use crate::link::{Fault, Lines, Values};
use crate::node::{Node, Role};
use crate::order;
use crate::place::one_key;
use crate::profile::{BATCH_OPS_MAX, item_bytes_max, profile};
use crate::replicas::Does;
use crate::scripts::Script;
use crate::slices::SLICE_OPS;
use crate::watch::{Watched, is_watch};

/// A store on one Redis or Valkey server: Redis 6.2 or later, and any Valkey.
///
/// # What is promised
/// - A batch is one pipeline on one connection, which all callers share: **round trips: 1**. One more after the server has
///   forgotten the scripts (`SCRIPT FLUSH`): they are loaded again.
/// - An error with [`Effect::NotApplied`](larder_core::Effect) is a promise: the server said no, or nothing of the batch was written to the socket. A write
///   that was sent and not answered is [`Effect::Unknown`](larder_core::Effect), and never sent again. A batch of reads is sent again once, one of more
///   than 1,024 ops twice.
/// - A cas token is the version that the item's writer drew, with the item's length. It outlives connections, and restarts of a
///   server that keeps its data; it matches no item but the one that it was read from.
/// - A key of another Redis type, and a string that another program wrote, are never overwritten, appended to or deleted:
///   [`ErrorKind::LayoutMismatch`]. (An add answers `NotStored` there, since there is something.) A string of nine bytes or more that begins with `0xC1`, as no
///   text and no MessagePack does, is taken for an item, whoever wrote it.
/// - Dropping a future leaves the connection in step. What was handed over may still be sent.
/// - While the server is down ops fail at once, naming it, while one prober redials with jittered backoff (5 ms to 2 s). A replica is refused; so is
///   a server that became one, reads too, from the first write on that it refuses.
///
/// # Limits
/// - Values up to 4 MiB unless the URL says otherwise (`value_bytes_max`): a server that moves a large value does nothing else meanwhile.
/// - Lives are counted by the server's wall clock, to the millisecond: a step of that clock shortens or lengthens them.
/// - A failover, or a restart of a server without an append-only file that is synced always, may lose acknowledged writes: see
///   [`durability`](Profile::durability).
///
/// ```no_run
/// use larder_core::{Key, PutMode, StoreExt, Ttl};
/// use larder_store_redis::{Config, RedisStore};
/// # async fn example() -> larder_core::Result<()> {
/// let store = RedisStore::connect(Config::from_url("redis://127.0.0.1:6379")?).await?;
/// store.put(Key::new("greeting")?, PutMode::Set, "hello", Ttl::Never).await?;
/// assert!(store.get(Key::new("greeting")?).await?.is_some());
/// # Ok(())
/// # }
/// ```
pub struct RedisStore {
    node: Arc<Node>,
    keeper: JoinHandle<()>,
    /// The profile, and what the handshake found when it was put together.
    profile: Mutex<(Option<Arc<ServerInfo>>, Arc<Profile>)>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("config", &self.node.config).finish_non_exhaustive()
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.keeper.abort();
        self.node.close();
    }
}

impl RedisStore {
    /// Connects and shakes hands. Runs on the tokio runtime it is called on, and needs it for as long as it lives. **Round trips: 2**,
    /// more over TLS.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`], [`ErrorKind::Timeout`]: the server could not be reached;
    /// - [`ErrorKind::Config`]: it is a replica (its primary is named), a sentinel or a node of a cluster, it wants a password or refuses the
    ///   one that was given, it has no such database, or forbids a command that the store needs (which is named); or the configuration is wrong in itself.
    ///
    /// ```no_run
    /// # async fn example() -> larder_core::Result<()> {
    /// use larder_store_redis::{Config, RedisStore};
    /// let store = RedisStore::connect(Config::from_url("redis://:secret@cache?timeout_ms=200")?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(config: Config) -> Result<RedisStore> {
        config.check()?;
        let node = Arc::new(Node::new(config, Arc::new(Counters::default()), Role::Single, Handle::current())?);
        let keeper = tokio::spawn(node.clone().keep());
        let empty = profile(&ServerInfo::default(), node.config.value_bytes_max);
        let store = RedisStore { node, keeper, profile: Mutex::new((None, Arc::new(empty))) };
        store.node.health.first_dial().await;
        match store.node.health.error() {
            Some(error) => Err(error.store(store.node.name())),
            None => Ok(store),
        }
    }

    /// What the store has done so far.
    ///
    /// ```no_run
    /// # fn example(store: &larder_store_redis::RedisStore) {
    /// println!("{} round trips", store.stats().round_trips);
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.node.stats()
    }

    /// The server.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn limits(&self) -> Limits {
        let value_bytes_max = self.node.config.value_bytes_max;
        let info = self.node.info().unwrap_or_default();
        Limits { item_bytes_max: item_bytes_max(&info, value_bytes_max), unknown: info.unknown }
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "an async function keeps what it is given twice, and this is every call's future"
    )]
    fn run_batch(&self, ctx: Ctx, batch: Batch) -> impl Future<Output = Replies> + Send {
        async move {
            let deadline = ctx.deadline.unwrap_or_else(|| Instant::now() + self.node.config.timeout);
            let batch = &batch;
            if batch.len() > SLICE_OPS
                && batch.iter().all(Op::is_read)
                && let Some(replies) = Box::pin(self.run_slices(batch, deadline)).await
            {
                return replies;
            }
            let mut replies = nothing_yet(batch.len());
            let limits = self.limits();
            let mut sent = self.commands(batch, limits, &mut replies);
            if sent.is_empty() {
                return replies;
            }
            let does = Does::of(sent.iter().map(|(place, _)| &batch[*place]));
            let packed = Packed::of(&mut sent);
            let mut answered = self.node.run(packed.lines(&mut sent, does), does, deadline).await;
            let is_cut = answered.as_ref().is_err_and(Fault::is_cut);
            if is_cut && does == Does::Reads && renew(&mut sent, batch, limits) {
                answered = Box::pin(self.node.run(packed.lines(&mut sent, does), does, deadline)).await;
            }
            match answered {
                Ok(values) if values.iter().any(is_no_script) && renew(&mut sent, batch, limits) => {
                    let answers = Box::pin(self.reload(&packed, &sent, batch, values, deadline)).await;
                    sent.iter().zip(answers).for_each(|(sent, answer)| self.settle(sent, answer, batch, &mut replies));
                }
                Ok(values) => {
                    sent.iter().zip(values).for_each(|(sent, value)| self.settle(sent, Ok(value), batch, &mut replies));
                }
                Err(fault) => sent.iter().for_each(|sent| self.settle(sent, Err(fault.clone()), batch, &mut replies)),
            }
            replies
        }
    }

    /// Waits until one of the items is another. **Round trips: 1**, more for the first, which opens a connection for it.
    async fn watch(&self, ctx: Ctx, batch: Batch) -> Replies {
        let deadline = ctx.deadline.unwrap_or_else(|| Instant::now() + self.node.config.timeout);
        let items: Vec<Watched> = batch.iter().filter_map(Watched::of).collect();
        match self.node.watcher.watch(&self.node, &items, deadline).await {
            Ok(replies) => replies.into_iter().map(Ok).collect(),
            Err(error) => batch.iter().map(|op| Err(self.named(error.clone(), op))).collect(),
        }
    }

    /// The commands of ops, each with the place of the first op that it answers; what is known without asking goes into `replies`.
    pub(crate) fn commands(&self, ops: &[Op], limits: Limits, replies: &mut [Result<Reply>]) -> Sent {
        let mut sent = Sent::with_capacity(ops.len());
        for (place, op) in ops.iter().enumerate() {
            if sent.last().is_some_and(|(before, command)| before + command.ops() > place) {
                continue;
            }
            match self.encoded(op, ops.get(place + 1), limits) {
                Ok(Encoded::Command(command)) => sent.push((place, command)),
                Ok(Encoded::Known(reply)) => replies[place] = Ok(reply),
                Err(error) => replies[place] = Err(error.op(op).store(self.node.name())),
            }
        }
        sent
    }

    /// Puts what a command answered where it belongs among the replies to `ops`.
    pub(crate) fn settle(
        &self,
        (place, command): &(usize, Command),
        answer: Result<Value, Fault>,
        ops: &[Op],
        replies: &mut [Result<Reply>],
    ) {
        let outcome = match answer {
            Ok(value) => decode(value, command, &ops[*place]),
            Err(fault) => command.failed(fault.error.clone().effect(fault.effect_on(&ops[*place]))),
        };
        outcome.put(*place, ops, replies, |error| error.store(self.node.name()));
    }

    fn encoded(&self, op: &Op, next: Option<&Op>, limits: Limits) -> Result<Encoded> {
        if op.route.rank > 0 {
            let detail = format!("a route has rank {}; the limit is 0: there is one server", op.route.rank);
            return Err(Error::new(ErrorKind::BadInput, detail).op(op));
        }
        encode(op, reads_back(op, next), limits)
    }

    /// Loads the scripts that the server has forgotten, and runs again what it therefore refused: it did not run. Not so where a later op
    /// on the same key did run: the order of a key's ops is kept, and the refusal stands.
    async fn reload(
        &self,
        packed: &Packed,
        sent: &[(usize, Command)],
        batch: &Batch,
        values: Values,
        deadline: Instant,
    ) -> Vec<Result<Value, Fault>> {
        count(&self.node.counters.scripts_reloaded, 1);
        let key = |at: usize| one_key(&batch[sent[at].0]);
        let again = order::not_overtaken(values.len(), |at| !is_no_script(&values[at]), key);
        let loads: Vec<Cmd> = Script::ALL.map(load).into();
        let cmds = packed.cmds(sent);
        let cmds: Vec<&Cmd> = loads.iter().chain(again.iter().map(|&at| cmds[at])).collect();
        let does = Does::of(again.iter().map(|&at| &batch[sent[at].0]));
        let answered = self.node.run(Lines::Some(&cmds), does, deadline).await;
        let mut values: Vec<Result<Value, Fault>> = values.into_iter().map(Ok).collect();
        match answered {
            Ok(answers) => {
                for (at, answer) in again.into_iter().zip(answers.into_iter().skip(loads.len())) {
                    values[at] = Ok(answer);
                }
            }
            Err(fault) => again.into_iter().for_each(|at| values[at] = Err(fault.clone())),
        }
        values
    }

    fn named(&self, error: Error, op: &Op) -> Error {
        error.op(op).store(self.node.name())
    }
}

/// Commands taken out of what is known of them: of thousands, a copy would cost more than to send them.
pub(crate) fn piped(sent: &mut [(usize, Command)]) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(sent.len());
    sent.iter_mut().for_each(|(_, command)| _ = pipeline.add_command(std::mem::take(&mut command.cmd)));
    pipeline
}

/// Makes a read that has left with others anew, held against what it was held against at first, so that it is what it was: true if all commands are there. A write only
/// ever leaves as a copy: it names the version that it writes, which is drawn.
fn renew(sent: &mut [(usize, Command)], batch: &[Op], limits: Limits) -> bool {
    match sent {
        [(place, command)] if batch[*place].is_read() && command.cmd.args_iter().next().is_none() => {
            match encode(&batch[*place], None, limits) {
                Ok(Encoded::Command(again)) => {
                    *command = again;
                    true
                }
                _ => false,
            }
        }
        _ => true,
    }
}

/// The commands of a batch as they are sent.
enum Packed {
    /// Where it is.
    One,
    /// Taken out likewise.
    Many(Box<Pipeline>),
}

impl Packed {
    fn of(sent: &mut [(usize, Command)]) -> Packed {
        if sent.len() == 1 { Packed::One } else { Packed::Many(Box::new(piped(sent))) }
    }

    fn lines<'a>(&'a self, sent: &'a mut [(usize, Command)], does: Does) -> Lines<'a> {
        match (self, sent) {
            (Packed::Many(pipeline), _) => Lines::All(pipeline),
            (Packed::One, [(_, Command { cmd, .. }), ..]) => {
                if does == Does::Reads {
                    Lines::Read(cmd)
                } else {
                    Lines::One(cmd)
                }
            }
            (Packed::One, []) => Lines::Some(&[]),
        }
    }

    fn cmds<'a>(&'a self, sent: &'a [(usize, Command)]) -> Vec<&'a Cmd> {
        match self {
            Packed::One => sent.iter().map(|(_, command)| &command.cmd).collect(),
            Packed::Many(pipeline) => pipeline.cmd_iter().collect(),
        }
    }
}

/// Commands, each with the place of the first op that it answers.
pub(crate) type Sent = SmallVec<[(usize, Command); 1]>;

/// Places for so many replies, to be filled in.
pub(crate) fn nothing_yet(ops: usize) -> Replies {
    (0..ops).map(|_| Ok(Reply::Miss)).collect()
}

pub(crate) fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if Refusal::is_no_script(error))
}

impl Store for RedisStore {
    fn profile(&self) -> Arc<Profile> {
        let info = self.node.info();
        let mut known = self.profile.lock();
        let is_same = match (&known.0, &info) {
            (Some(known), Some(info)) => Arc::ptr_eq(known, info),
            (None, None) => true,
            _ => false,
        };
        if !is_same && let Some(found) = &info {
            *known = (info.clone(), Arc::new(profile(found, self.node.config.value_bytes_max)));
        }
        known.1.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if let Some(replies) = answered_at_once(&batch, BATCH_OPS_MAX) {
            return Run::Ready(replies);
        }
        match batch.as_slice() {
            ops if ops.iter().all(is_watch) => Run::pending(self.watch(ctx, batch)),
            _ => Run::pending(self.run_batch(ctx, batch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Key, PutMode, Ttl, Want};

    use super::*;
    use crate::handshake::Unknown;

    /// Up to so many bytes a thread's own cache of the C library's allocator keeps: beyond them a call is given memory from an arena that threads lock, which cost a fifth of all
    /// reads where many tasks read at once.
    const CACHED_BYTES_MAX: usize = 1_032;

    fn size<'a, F>(_: impl FnOnce(&'a RedisStore, Ctx, Batch) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_calls_future_is_no_larger_than_what_an_allocator_has_at_hand() {
        let bytes = size(|store, ctx, batch| store.run_batch(ctx, batch));
        assert!(bytes <= CACHED_BYTES_MAX, "{bytes}");
    }

    #[test]
    fn a_read_that_was_taken_is_made_as_it_was_and_nothing_else_is() {
        let limits = Limits { item_bytes_max: 1_000, unknown: Unknown::default() };
        let key = Key::new("k").unwrap();
        let reads =
            [Op::get(key.clone(), Want::VALUE), Op::get(key.clone(), Want::TTL), Op::get_range(key.clone(), 3, 4)];
        let write = Op::put(key, PutMode::Append, "x", Ttl::Never);
        for op in reads.into_iter().chain([write]) {
            // Another op of the batch was answered without a command.
            let batch = [Op::get(Key::new("other").unwrap(), Want::VALUE), op];
            let Ok(Encoded::Command(command)) = encode(&batch[1], None, limits) else { panic!("{:?}", batch[1]) };
            let packed = command.cmd.get_packed_command();
            let mut sent = [(1, command)];
            assert!(renew(&mut sent, &batch, limits));
            assert_eq!(sent[0].1.cmd.get_packed_command(), packed, "it is there, and stays");
            _ = std::mem::take(&mut sent[0].1.cmd);
            assert!(renew(&mut sent, &batch, limits));
            let is_made = sent[0].1.cmd.args_iter().next().is_some();
            assert_eq!(is_made, batch[1].is_read(), "{:?}", batch[1]);
            assert!(!is_made || sent[0].1.cmd.get_packed_command() == packed, "{:?}", batch[1]);
        }
    }
}
