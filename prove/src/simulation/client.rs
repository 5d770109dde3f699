//! A client's store: one connection at a time, tokens that die with it, and what is known of an op that got no reply.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, Remaining, Replies, Reply, Result, Run, Store};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::climate::Climate;
use super::net::{Connection, Fate, Net};
use super::server::overreach;

/// How long an op may take where its caller does not say.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The store that a client of the simulation has.
pub(super) struct ClientStore {
    net: Arc<Net>,
    profile: Arc<Profile>,
    client: usize,
    /// What was asked for that the profile does not have.
    pub(super) overreached: Arc<Mutex<Vec<String>>>,
}

impl ClientStore {
    pub(super) fn new(net: Arc<Net>, profile: Arc<Profile>, client: usize, over: &Arc<Mutex<Vec<String>>>) -> Self {
        ClientStore { net, profile, client, overreached: over.clone() }
    }

    async fn run_on(&self, ctx: Ctx, batch: Batch) -> Replies {
        note_overreach(&self.overreached, &batch, &self.profile);
        let deadline = ctx.deadline.map_or_else(|| Instant::now() + TIMEOUT, Instant::from_std);
        let Some(connection) = self.net.connect(self.client, deadline).await else {
            return batch.iter().map(|op| Err(not_applied(op, "there is no connection"))).collect();
        };
        let fate = self.fate(&batch);
        if fate == Fate::NotSent {
            connection.break_off();
            return batch.iter().map(|op| Err(not_applied(op, "the connection broke before it was sent"))).collect();
        }
        // A token of another connection names nothing on this one: answered without asking, as the network clients do.
        let is_sent = |op: &Op| op.cas().is_none_or(|cas| cas.session == connection.number);
        let sent: Vec<Op> = batch.iter().filter(|op| is_sent(op)).cloned().collect();
        let mut came = self.exchange(&connection, sent, fate, deadline).await.into_iter();
        let reply = |op: &Op| match is_sent(op) {
            false => Ok(Reply::Exists),
            true => came.next().unwrap_or_else(|| Err(no_reply(op, ErrorKind::Unavailable))),
        };
        batch.iter().map(reply).collect()
    }

    async fn exchange(&self, connection: &Connection, ops: Vec<Op>, fate: Fate, deadline: Instant) -> Replies {
        if ops.is_empty() {
            return Replies::new();
        }
        let answered = self.net.send(connection, ops.clone(), fate);
        match timeout_at(deadline, answered).await {
            Ok(Ok(replies)) => replies.into_iter().map(|reply| self.told(reply)).collect(),
            Ok(Err(_)) => Replies::new(),
            Err(_) => {
                if connection.is_black_hole() {
                    connection.break_off();
                }
                sleep_until(deadline).await;
                ops.iter().map(|op| Err(no_reply(op, ErrorKind::Timeout))).collect()
            }
        }
    }

    /// The reply without what the profile says the server does not tell.
    fn told(&self, reply: Result<Reply>) -> Result<Reply> {
        let mut reply = reply?;
        if let Reply::Item(item) = &mut reply
            && !self.profile.remaining_ttl
        {
            item.ttl = Remaining::Unknown;
        }
        Ok(reply)
    }

    fn fate(&self, batch: &Batch) -> Fate {
        let (breaks, full) = (self.net.climate.break_one_in, self.net.climate.full_one_in);
        let writes = batch.iter().any(|op| !op.is_read());
        if self.net.is_calm() {
            return Fate::Answered;
        }
        let fate = self.net.draw(|random| {
            if full > 0 && writes && random.u64(..full) == 0 {
                return Fate::Full;
            }
            if breaks == 0 || random.u64(..breaks) > 0 {
                return Fate::Answered;
            }
            match random.u8(..7) {
                0 => Fate::NotSent,
                1 => Fate::LostRequest,
                2 | 3 => Fate::Cut(random.usize(..=batch.len())),
                4 => Fate::LostReply,
                5 => Fate::Late(Duration::from_millis(random.u64(..Climate::LATE_MAX.as_millis() as u64))),
                _ => Fate::BlackHole,
            }
        });
        let name = match fate {
            Fate::Answered => return fate,
            Fate::NotSent => "not sent",
            Fate::LostRequest => "lost request",
            Fate::Cut(_) => "cut within a batch",
            Fate::LostReply => "lost reply",
            Fate::Late(_) => "delivered after the client gave up",
            Fate::BlackHole => "half-open connection",
            Fate::Full => "server full",
        };
        self.net.count(name);
        fate
    }
}

impl Store for ClientStore {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(self.run_on(ctx, batch))
    }
}

impl fmt::Debug for ClientStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStore").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The server's data without a network.
pub(super) struct QuietStore {
    net: Arc<Net>,
    profile: Arc<Profile>,
    overreached: Arc<Mutex<Vec<String>>>,
}

/// Connections of no client: tokens of the quiet store, which end with a life of the server.
const QUIET: u64 = 1 << 40;

impl QuietStore {
    pub(super) fn new(net: Arc<Net>, profile: Arc<Profile>, over: &Arc<Mutex<Vec<String>>>) -> Self {
        QuietStore { net, profile, overreached: over.clone() }
    }
}

impl Store for QuietStore {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, _ctx: Ctx, batch: Batch) -> Run<'a> {
        note_overreach(&self.overreached, &batch, &self.profile);
        let session = QUIET + self.net.server.life();
        let reply = |op: &Op| {
            if op.cas().is_some_and(|cas| cas.session != session) {
                return Ok(Reply::Exists);
            }
            self.net.server.apply(std::slice::from_ref(op), session, false).pop().unwrap_or(Ok(Reply::Miss))
        };
        let replies: Replies = batch.iter().map(reply).collect();
        self.net.trace.line(format_args!("quiet: {batch:?}: {replies:?}"));
        Run::Ready(replies)
    }
}

impl fmt::Debug for QuietStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuietStore")
    }
}

fn note_overreach(overreached: &Mutex<Vec<String>>, batch: &Batch, profile: &Profile) {
    for op in batch {
        if let Some(what) = overreach(op, profile) {
            let told = format!("asked for {what}, which the profile does not have: {op:?}");
            overreached.lock().unwrap_or_else(PoisonError::into_inner).push(told);
        }
    }
}

fn not_applied(op: &Op, detail: &str) -> Error {
    Error::new(ErrorKind::Unavailable, detail).op(op).store("simulated")
}

/// The op was sent, and nothing came back.
fn no_reply(op: &Op, kind: ErrorKind) -> Error {
    let effect = if op.is_read() { Effect::NotApplied } else { Effect::Unknown };
    Error::new(kind, "no reply came").op(op).store("simulated").effect(effect)
}
