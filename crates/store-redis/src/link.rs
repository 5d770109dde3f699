//! A connection: runs encoded commands, and says of those that failed whether they were sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use larder_core::{Effect, Error, ErrorKind, Op};
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Pipeline, RedisError, RedisResult, Value};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot::Receiver;
use tokio::task::AbortHandle;

use crate::counters::{Counters, count};
use crate::gather::{Gather, Joined, Party};
use crate::replicas::{Confirmed, Does, Owed};
use crate::traffic::Traffic;

/// One reply a command.
pub(crate) type Values = SmallVec<[Value; 1]>;

/// Commands to be sent together.
pub(crate) enum Lines<'a> {
    One(&'a Cmd),
    /// A read, which may leave with others as it is and an empty command be left in its place: a copy would cost as much as the way through the party.
    Read(&'a mut Cmd),
    Some(&'a [&'a Cmd]),
    /// As they are sent: of so many a copy would be felt.
    All(&'a Pipeline),
    /// The same, behind others of its batch that it does not wait for: no round trip of their own.
    Rest(&'a Pipeline),
}

impl Lines<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Lines::One(_) | Lines::Read(_) => 1,
            Lines::Some(cmds) => cmds.len(),
            Lines::All(pipeline) | Lines::Rest(pipeline) => pipeline.len(),
        }
    }

    /// What they hold, without what frames it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Lines::One(cmd) => bytes_of(cmd),
            Lines::Read(cmd) => bytes_of(cmd),
            Lines::Some(cmds) => cmds.iter().map(|cmd| bytes_of(cmd)).sum(),
            Lines::All(pipeline) | Lines::Rest(pipeline) => pipeline.cmd_iter().map(bytes_of).sum(),
        }
    }

    /// Adds a copy of each, or a read itself.
    pub(crate) fn add_to(self, pipeline: &mut Pipeline) {
        match self {
            Lines::One(cmd) => _ = pipeline.add_command(cmd.clone()),
            Lines::Read(cmd) => _ = pipeline.add_command(std::mem::take(cmd)),
            Lines::Some(cmds) => cmds.iter().for_each(|&cmd| _ = pipeline.add_command(cmd.clone())),
            Lines::All(cmds) | Lines::Rest(cmds) => {
                cmds.cmd_iter().for_each(|cmd| _ = pipeline.add_command(cmd.clone()))
            }
        }
    }
}

fn bytes_of(cmd: &Cmd) -> usize {
    let bytes_of = |arg| if let Arg::Simple(bytes) = arg { <[u8]>::len(bytes) } else { 0 };
    cmd.args_iter().map(bytes_of).sum()
}

/// A connection that lives until its task ends.
pub(crate) struct Link {
    pub(crate) conn: MultiplexedConnection,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) closed: Arc<AtomicBool>,
    /// Where writes wait for replicas.
    pub(crate) confirmed: Option<Confirmed>,
    /// The task that owns the socket.
    pub(crate) task: AbortHandle,
    /// The runtime of that task. What callers share runs there: their own may end while others wait.
    pub(crate) runtime: Handle,
    pub(crate) gather: Gather,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("traffic", &self.traffic).field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Why commands have no replies. Of all of them alike: the client crate keeps no replies of a part.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// [`Effect::NotApplied`]: nothing was sent. [`Effect::Unknown`]: some of it may have been, and may yet arrive.
    pub(crate) effect: Effect,
    /// What went wrong.
    pub(crate) error: Error,
    /// What became of the connection.
    pub(crate) why: Why,
}

/// What came between commands and their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The deadline; the connection stands.
    Late,
    /// The connection ended: nobody can tell before another is there.
    Cut,
    /// Replies came, but replicas did not confirm.
    Unconfirmed,
    /// Replies came, but the server has become a replica, which has nothing to wait for.
    Demoted,
}

impl Fault {
    /// True if the commands went out, the connection stands, and nothing came.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.why == Why::Late && self.effect == Effect::Unknown
    }

    /// The effect on an op: a read has none.
    pub(crate) fn effect_on(&self, op: &Op) -> Effect {
        if op.is_read() { Effect::NotApplied } else { self.effect }
    }

    /// True if the connection ended.
    pub(crate) fn is_cut(&self) -> bool {
        self.why == Why::Cut
    }
}

impl Link {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the socket. What was not answered fails.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.task.abort();
    }

    /// Runs commands, one round trip.
    ///
    /// The client crate fails alike what it never sent and what was not answered; whether anything was written to the socket since the
    /// commands were handed over tells which. A caller who stops waiting, by the deadline or by dropping this, leaves the replies to the
    /// connection's task: it stays in step. Of a batch that waits for replicas that is a failure to confirm.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async function keeps what it is given twice, and this is in every call's future"
    )]
    pub(crate) fn run<'a>(
        self: &'a Arc<Self>,
        lines: Lines<'a>,
        does: Does,
        deadline: Instant,
    ) -> impl Future<Output = Result<Values, Fault>> + Send + 'a {
        async move {
            match self.confirmed.as_ref().and_then(|of| Some((of, of.begin(does)?))) {
                None => self.exchange(lines, true, deadline).await,
                Some((confirmed, owed)) => Box::pin(self.followed(lines, confirmed, owed, deadline)).await,
            }
        }
    }

    /// Runs commands with a wait for replicas behind them.
    async fn followed(
        self: &Arc<Self>,
        lines: Lines<'_>,
        confirmed: &Confirmed,
        owed: Owed<'_>,
        deadline: Instant,
    ) -> Result<Values, Fault> {
        let is_rest = matches!(lines, Lines::Rest(_));
        let mut followed = Pipeline::with_capacity(lines.len() + 1);
        lines.add_to(&mut followed);
        followed.add_command(confirmed.command());
        let followed = if is_rest { Lines::Rest(&followed) } else { Lines::All(&followed) };
        match self.exchange(followed, false, deadline).await {
            Ok(mut values) => {
                let told = values.pop();
                owed.judge(told, &values)?;
                Ok(values)
            }
            Err(fault) => {
                if fault.effect == Effect::NotApplied {
                    owed.never_sent();
                }
                Err(fault)
            }
        }
    }

    /// Where it `may_ride`, it may leave with others, and after its caller has stopped waiting.
    #[expect(clippy::manual_async_fn, reason = "as above")]
    fn exchange<'a>(
        self: &'a Arc<Self>,
        lines: Lines<'a>,
        may_ride: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<Values, Fault>> + Send + 'a {
        async move {
            let ops = lines.len();
            if self.is_closed() {
                return Err(self.cut(Effect::NotApplied, "the connection has ended"));
            }
            if Instant::now() >= deadline {
                return Err(late(Effect::NotApplied, "the deadline had passed before the op was sent"));
            }
            count(&self.counters.ops, ops as u64);
            count(&self.counters.round_trips, u64::from(!matches!(lines, Lines::Rest(_))));
            let (_here, is_shared) = self.gather.enter(&lines);
            let answered = match is_shared && may_ride {
                true => tokio::time::timeout_at(deadline.into(), self.ride(lines, deadline))
                    .await
                    .map(|told| told.unwrap_or_else(|_| Err(self.cut(Effect::Unknown, RUNTIME_ENDED)))),
                // Of the size that the client crate's requests have: those who ride have none of it.
                false => tokio::time::timeout_at(deadline.into(), Box::pin(self.send(lines))).await,
            };
            let answered = answered.unwrap_or_else(|_| Err(unanswered()));
            if answered.as_ref().is_err_and(Fault::is_unanswered) {
                count(&self.counters.timeouts, ops as u64);
            }
            answered
        }
    }

    /// Sends commands with those of others. They go on without a caller who stops waiting, as long as another waits.
    fn ride(self: &Arc<Self>, lines: Lines<'_>, deadline: Instant) -> Receiver<Result<Values, Fault>> {
        let (joined, told) = self.gather.join(lines, deadline);
        match joined {
            Joined::First => {
                let waits = Waits(Some(self.clone()));
                self.runtime.spawn(async move {
                    // Whoever is ready to run comes along.
                    tokio::task::yield_now().await;
                    if let Some(link) = waits.leaves() {
                        link.send_party(link.gather.depart()).await;
                    }
                });
            }
            Joined::Full(party) => {
                let link = self.clone();
                self.runtime.spawn(async move { link.send_party(party).await });
            }
            Joined::Rides => {}
        }
        told
    }

    /// Sends what callers have gathered, and deals out what comes. Not what nobody waits for any more: with a server that is slow, those who give up and come again
    /// would have it queue up without bound. What waits for its turn at the last of their deadlines gives it up.
    async fn send_party(&self, party: Party) {
        let Some(deadline) = party.deadline.filter(|_| party.is_awaited()) else { return };
        let answered = tokio::time::timeout_at(deadline.into(), self.pipe(&party.pipeline)).await;
        party.tell(answered.unwrap_or_else(|_| Err(unanswered())));
    }

    async fn send(&self, lines: Lines<'_>) -> Result<Values, Fault> {
        match lines {
            Lines::One(cmd) | Lines::Some(&[cmd]) => self.single(cmd).await,
            Lines::Read(cmd) => self.single(cmd).await,
            Lines::Some(cmds) => {
                let mut pipeline = Pipeline::with_capacity(cmds.len());
                lines.add_to(&mut pipeline);
                self.pipe(&pipeline).await
            }
            Lines::All(pipeline) | Lines::Rest(pipeline) => self.pipe(pipeline).await,
        }
    }

    async fn single(&self, cmd: &Cmd) -> Result<Values, Fault> {
        let writes = self.traffic.writes();
        let answered = self.conn.clone().send_packed_command(cmd).await;
        self.judged(writes, 1, answered.map(|value| Values::from_iter([value])))
    }

    async fn pipe(&self, pipeline: &Pipeline) -> Result<Values, Fault> {
        let ops = pipeline.len();
        let writes = self.traffic.writes();
        let answered = self.conn.clone().send_packed_commands(pipeline, 0, ops).await;
        self.judged(writes, ops, answered.map(Values::from_vec))
    }

    /// What the client crate brought, where so many writes to the socket were done before.
    fn judged(&self, writes: u64, ops: usize, answered: RedisResult<Values>) -> Result<Values, Fault> {
        match answered {
            Ok(values) if values.len() == ops => Ok(values),
            Ok(values) => {
                self.close();
                Err(self.cut(Effect::Unknown, &format!("{} replies to {ops} commands", values.len())))
            }
            Err(error) => {
                let effect = if self.traffic.writes() == writes { Effect::NotApplied } else { Effect::Unknown };
                Err(self.broken(effect, error))
            }
        }
    }

    fn broken(&self, effect: Effect, error: RedisError) -> Fault {
        let kind = match error.kind() {
            redis::ErrorKind::Io => ErrorKind::Unavailable,
            // A reply that was cut is no answer, and the parser takes it for a wrong one.
            _ if self.traffic.has_ended() => ErrorKind::Unavailable,
            _ => ErrorKind::Protocol,
        };
        // Whatever it was, replies may not match commands any more.
        self.close();
        let error = Error::new(kind, format!("the connection ended: {error}")).source(error);
        Fault { effect, error, why: Why::Cut }
    }

    fn cut(&self, effect: Effect, detail: &str) -> Fault {
        Fault { effect, error: Error::new(ErrorKind::Unavailable, detail), why: Why::Cut }
    }
}

/// A party that waits for those who are ready. Where the runtime ends meanwhile nobody else would send it: all who joined are told.
struct Waits(Option<Arc<Link>>);

impl Waits {
    fn leaves(mut self) -> Option<Arc<Link>> {
        self.0.take()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.gather.depart().tell(Err(link.cut(Effect::NotApplied, RUNTIME_ENDED)));
        }
    }
}

const RUNTIME_ENDED: &str = "the runtime that the store was opened on has ended";

fn unanswered() -> Fault {
    late(Effect::Unknown, "no answer before the deadline")
}

fn late(effect: Effect, detail: &str) -> Fault {
    Fault { effect, error: Error::new(ErrorKind::Timeout, detail), why: Why::Late }
}
