//! A batch under way: which op goes to which node, what came back, and what is tried again.
//!
//! An op is sent again only where it is known not to have run: the node redirected it (`MOVED`, `ASK`), refused it for now, or was sent nothing of
//! it. Reads are sent again in any case. Ops on one key keep their order: they go to one node in one round, and an op that was refused is not tried
//! again once a later one on its key has run, or may have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Batch, Effect, Error, ErrorKind, Key, Op, Replies, Reply, Result};
use larder_net::{Backoff, all_of};
use redis::{Cmd, ServerError, Value};
use smallvec::SmallVec;

use super::map::Place;
use super::nodes::{Member, Nodes, Topology};
use super::slot::{SLOTS, Slot};
use crate::codec::{Command, Encoded, Limits, Refusal, decode, encode, placed, reads_back, refused_to};
use crate::counters::count;
use crate::handshake::load;
use crate::link::{Fault, Lines, Values};
use crate::order;
use crate::place::{one_key, physical};
use crate::replicas::Does;
use crate::scripts::Script;

/// Times that one op follows a redirection.
const REDIRECTIONS_MAX: u32 = 8;
/// Between two tries of an op that no node took. It is the deadline that ends them: a failover takes as long as it takes.
const TRIES: Backoff =
    Backoff { first: Duration::from_millis(4), max: Duration::from_millis(150), min: Duration::ZERO };

/// An op that is not done.
struct Pending {
    /// Its place in the batch.
    at: usize,
    slot: Slot,
    command: Command,
    /// Where a node sent it, instead of where the map says.
    redirected: Option<(Arc<Member>, Asking)>,
    redirections: u32,
    /// It was refused, or sent nowhere, at least once.
    is_again: bool,
    /// Why it is not done: what is told if time runs out.
    refusal: Option<Error>,
}

/// Whether the node is told that it was asked to (`ASKING`): it takes in the slot, which another still serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    No,
    Yes,
}

/// What goes to one node in one round: indices of the pending ops, in the order of the batch.
struct Part {
    member: Arc<Member>,
    ops: SmallVec<[usize; 4]>,
    asking: SmallVec<[Asking; 4]>,
}

/// What came of a part.
struct Answered {
    values: Values,
    /// What was sent once more and not answered, as places in the part in their order, and why not; in `values` stands what was said the first time.
    lost: Option<(Vec<usize>, Fault)>,
}

/// A batch under way.
pub(super) struct Run<'a> {
    nodes: &'a Nodes,
    batch: &'a Batch,
    deadline: Instant,
    replies: Replies,
    pending: SmallVec<[Pending; 1]>,
}

impl<'a> Run<'a> {
    /// Encodes the ops. What is wrong with one, or known without asking, is answered by now.
    pub(super) fn new(nodes: &'a Nodes, batch: &'a Batch, limits: Limits, deadline: Instant) -> Run<'a> {
        let mut run = Run { nodes, batch, deadline, replies: Replies::new(), pending: SmallVec::new() };
        for (at, op) in batch.iter().enumerate() {
            // The place of one that is pending is filled in later, and so is that of a read which a write answers.
            if run.pending.last().is_some_and(|before| before.at + before.command.ops() > at) {
                run.replies.push(Ok(Reply::Miss));
                continue;
            }
            let reply = match encoded(op, batch.get(at + 1), limits) {
                Ok(Encoded::Command(command)) => {
                    run.pending.push(Pending::new(at, op, command));
                    Ok(Reply::Miss)
                }
                Ok(Encoded::Known(reply)) => Ok(reply),
                Err(error) => Err(error),
            };
            run.replies.push(reply);
        }
        run
    }

    /// Runs them all. **Round trips: 1** a node, all nodes at once; more for what is redirected or refused for now.
    pub(super) async fn finish(mut self) -> Replies {
        let mut round = 0;
        while !self.pending.is_empty() {
            if round > 0 && !self.wait(round).await {
                break;
            }
            round += 1;
            let topology = self.nodes.topology();
            let parts = self.parts(&topology);
            let answers = match &parts[..] {
                [part] => vec![self.sent(part).await],
                parts => all_of(parts.iter().map(|part| Box::pin(self.sent(part))).collect()).await,
            };
            for (part, answer) in parts.iter().zip(answers) {
                self.take(part, answer);
            }
            self.keep_order();
            self.pending.retain(|pending| pending.refusal.is_some());
        }
        for index in 0..self.pending.len() {
            if let Some(refusal) = self.pending[index].refusal.take() {
                self.failed(index, refusal);
            }
        }
        self.replies
    }

    /// An op is done, and so is the read behind it, if it answers that.
    fn failed(&mut self, index: usize, error: Error) {
        let pending = &mut self.pending[index];
        pending.refusal = None;
        pending.command.failed(error).put(pending.at, self.batch, &mut self.replies, |error| error);
    }

    /// Waits before another round, where no redirection tells where to go; false if there is no time for one.
    async fn wait(&self, round: u32) -> bool {
        if self.pending.iter().any(|pending| pending.redirected.is_none()) {
            self.nodes.refreshed(TRIES.bound(round), self.deadline).await;
            let until = self.deadline.min(Instant::now() + TRIES.wait(round));
            tokio::time::sleep_until(until.into()).await;
        }
        Instant::now() < self.deadline
    }

    /// Sorts what is pending by node. What nobody serves stays pending, refused.
    fn parts(&mut self, topology: &Topology) -> SmallVec<[Part; 1]> {
        let mut parts: SmallVec<[Part; 1]> = SmallVec::new();
        let is_again = self.pending.iter().any(|pending| pending.redirected.is_some() || pending.is_again);
        // An earlier op on the same key says where a later one goes: they must not overtake each other.
        let firsts = if is_again { order::firsts(self.pending.len(), |index| self.key(index)) } else { Vec::new() };
        for index in 0..self.pending.len() {
            let first = firsts.get(index).copied().unwrap_or(index);
            let (slot, redirected) = (self.pending[index].slot, self.pending[first].redirected.clone());
            let target = redirected.or_else(|| {
                let owner = topology.map.owner(slot)?;
                Some((topology.members[owner].clone(), Asking::No))
            });
            let Some((member, asking)) = target else {
                let error = uncovered(slot, topology).op(&self.batch[self.pending[index].at]);
                self.again(index, error, true);
                continue;
            };
            self.pending[index].refusal = None;
            match parts.iter_mut().find(|part| Arc::ptr_eq(&part.member, &member)) {
                Some(part) => {
                    part.ops.push(index);
                    part.asking.push(asking);
                }
                None => parts.push(Part {
                    member,
                    ops: SmallVec::from_iter([index]),
                    asking: SmallVec::from_iter([asking]),
                }),
            }
        }
        parts
    }

    /// What is one key on the servers.
    fn key(&self, index: usize) -> (&'a Key, &'a Key) {
        one_key(&self.batch[self.pending[index].at])
    }

    /// Sends a part, one pipeline. Scripts that the node has forgotten are loaded, and what needs them sent once more.
    async fn sent(&self, part: &Part) -> Result<Answered, Fault> {
        let node = &part.member.node;
        let asking = redis::cmd("ASKING");
        let answered = node.run(Lines::Some(&self.commands(part, &asking)), self.does(part), self.deadline).await;
        let mut values = without_asking(answered?, part);
        if !values.iter().any(is_no_script) {
            return Ok(Answered { values, lost: None });
        }
        count(&self.nodes.counters.scripts_reloaded, 1);
        let again = order::not_overtaken(values.len(), |at| !is_no_script(&values[at]), |at| self.key(part.ops[at]));
        let rest = Part {
            member: part.member.clone(),
            ops: again.iter().map(|&at| part.ops[at]).collect(),
            asking: again.iter().map(|&at| part.asking[at]).collect(),
        };
        let loads: Vec<Cmd> = Script::ALL.map(load).into();
        let cmds: Vec<&Cmd> = loads.iter().chain(self.commands(&rest, &asking)).collect();
        // What ran in the first place stays answered, whatever comes of this; the rest did not run, and is refused still if this fails unsent.
        let lost = match node.run(Lines::Some(&cmds), self.does(&rest), self.deadline).await {
            Ok(answers) => {
                let answers = without_asking(answers.into_iter().skip(loads.len()).collect(), &rest);
                for (at, answer) in again.into_iter().zip(answers) {
                    values[at] = answer;
                }
                None
            }
            Err(fault) if fault.effect == Effect::NotApplied => None,
            Err(fault) => Some((again, fault)),
        };
        Ok(Answered { values, lost })
    }

    fn does(&self, part: &Part) -> Does {
        Does::of(part.ops.iter().map(|&index| &self.batch[self.pending[index].at]))
    }

    fn commands<'b>(&'b self, part: &Part, asking: &'b Cmd) -> Vec<&'b Cmd> {
        let mut cmds = Vec::with_capacity(part.ops.len());
        for (&index, &asks) in part.ops.iter().zip(&part.asking) {
            if asks == Asking::Yes {
                cmds.push(asking);
            }
            cmds.push(&self.pending[index].command.cmd);
        }
        cmds
    }

    /// Takes in what a node answered.
    fn take(&mut self, part: &Part, answered: Result<Answered, Fault>) {
        let (values, fault, lost) = match answered {
            Ok(Answered { values, lost: None }) => (values, None, Vec::new()),
            Ok(Answered { values, lost: Some((lost, fault)) }) => (values, Some(fault), lost),
            Err(fault) => (Values::new(), Some(fault), (0..part.ops.len()).collect()),
        };
        if let Some(fault) = fault {
            // Whatever it was, another node may serve its slots soon.
            self.nodes.refresh();
            for &at in &lost {
                self.unanswered(part.ops[at], &part.member, &fault);
            }
        }
        let told = part.ops.iter().zip(values).enumerate().filter(|(at, _)| lost.binary_search(at).is_err());
        for (_, (&index, value)) in told {
            match value {
                Value::ServerError(error) => self.refused(index, &part.member, &error),
                value => self.told(index, &part.member, value),
            }
        }
    }

    fn told(&mut self, index: usize, member: &Member, value: Value) {
        let pending = &mut self.pending[index];
        pending.refusal = None;
        let outcome = decode(value, &pending.command, &self.batch[pending.at]);
        outcome.put(pending.at, self.batch, &mut self.replies, |error| error.store(member.node.name()));
    }

    /// A node said no: where else to go, when to come again, or that it stays so.
    fn refused(&mut self, index: usize, member: &Arc<Member>, error: &ServerError) {
        let (code, words) = (error.code(), error.details().unwrap_or_default());
        let pending = &self.pending[index];
        let op = &self.batch[pending.at];
        let mut named = placed(refused_to(error, &pending.command), op);
        if pending.redirected.as_ref().is_some_and(|(_, asking)| *asking == Asking::Yes) {
            named = of_asking(named, error);
        }
        let named = named.op(op).store(member.node.name());
        match code {
            "MOVED" | "ASK" => {
                count(&self.nodes.counters.redirections, 1);
                let asking = if code == "ASK" { Asking::Yes } else { Asking::No };
                if asking == Asking::No {
                    self.nodes.refresh();
                }
                let place = words.split(' ').nth(1).and_then(|place| Place::parse(place, &member.place));
                let target = place.ok_or(named.clone()).and_then(|place| self.nodes.at(&place));
                let pending = &mut self.pending[index];
                pending.redirections += 1;
                match target {
                    Ok(target) if pending.redirections <= REDIRECTIONS_MAX => {
                        pending.redirected = Some((target, asking));
                        pending.refusal = Some(named);
                    }
                    // In circles, or nowhere: the map is looked at, and the op tried again by it.
                    Ok(_) => {
                        pending.redirections = 0;
                        self.again(index, named, true);
                    }
                    Err(error) => self.again(index, error, true),
                }
            }
            _ if Refusal::is_cluster_down(error) => {
                let error = self.cluster_down(self.pending[index].slot, &format!("{code} {words}"));
                let error = error.op(&self.batch[self.pending[index].at]).store(member.node.name());
                self.again(index, error, true);
            }
            _ if Refusal::is_read_only(error) => self.again(index, named, true),
            "TRYAGAIN" | "LOADING" | "MASTERDOWN" => self.again(index, named, false),
            "NOSCRIPT" => self.again(index, named, false),
            _ => self.failed(index, named),
        }
    }

    /// A node that serves nothing for now: because of this slot, or because of others.
    fn cluster_down(&self, slot: Slot, said: &str) -> Error {
        let map = &self.nodes.topology().map;
        let is_whole = said.contains("cluster is down");
        // Reads may be served all the same.
        let serves_no = if said.contains("read") { "takes no write" } else { "serves no key" };
        let detail = match map.owner(slot) {
            Some(_) if is_whole && map.served() < SLOTS => format!(
                "the slot {slot} of this key has its primary, but {} of 16384 slots have none, and without them the cluster {serves_no} ({said}): \
                 bring their primary back, or assign them (redis-cli --cluster fix), or set cluster-require-full-coverage no",
                SLOTS - map.served()
            ),
            Some(_) if is_whole => format!(
                "every slot has a primary, that of this key, {slot}, too, but one of them is down and none has taken its place yet, or most cannot be \
                 reached, and until then the cluster {serves_no} ({said}): bring them back, or set cluster-require-full-coverage no"
            ),
            _ => format!(
                "the cluster does not serve the slot {slot} of this key ({said}): a primary is down and none has taken its place yet, or the slot \
                 has no owner; bring the primary back, or assign the slot (redis-cli --cluster fix)"
            ),
        };
        Error::new(ErrorKind::Unavailable, detail)
    }

    /// Nothing came back. What may have run is not sent again, unless it only reads.
    fn unanswered(&mut self, index: usize, member: &Member, fault: &Fault) {
        let op = &self.batch[self.pending[index].at];
        let error = fault.error.clone().effect(fault.effect_on(op)).op(op).store(member.node.name());
        let is_hopeless = matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Config);
        if error.is_unknown() || is_hopeless {
            self.failed(index, error);
        } else {
            self.again(index, error, true);
        }
    }

    /// Leaves an op to the next round, by the map, if it may be tried again; else this is its outcome.
    fn again(&mut self, index: usize, refusal: Error, look: bool) {
        if look {
            self.nodes.refresh();
        }
        let pending = &mut self.pending[index];
        pending.is_again = true;
        pending.redirected = None;
        pending.refusal = Some(refusal);
    }

    /// An op that was refused is not tried again where a later one on its key has run, or may have: the refusal is its outcome.
    fn keep_order(&mut self) {
        if self.pending.iter().all(|pending| pending.refusal.is_none()) {
            return;
        }
        let ran = |index: usize| {
            let pending = &self.pending[index];
            pending.refusal.is_none() && self.replies[pending.at].as_ref().map_or_else(Error::is_unknown, |_| true)
        };
        let again = order::not_overtaken(self.pending.len(), ran, |index| self.key(index));
        let mut again = again.into_iter().peekable();
        for index in 0..self.pending.len() {
            if again.next_if_eq(&index).is_none()
                && let Some(refusal) = self.pending[index].refusal.take()
            {
                self.failed(index, refusal);
            }
        }
    }
}

impl Pending {
    fn new(at: usize, op: &Op, command: Command) -> Pending {
        let slot = Slot::of(&physical(op));
        Pending { at, slot, command, redirected: None, redirections: 0, is_again: false, refusal: None }
    }
}

fn encoded(op: &Op, next: Option<&Op>, limits: Limits) -> Result<Encoded> {
    if op.route.rank > 0 {
        let detail =
            format!("a route has rank {}; the limit is 0: a cluster keeps its own copies, on replicas", op.route.rank);
        return Err(Error::new(ErrorKind::BadInput, detail).op(op));
    }
    encode(op, reads_back(op, next), limits)
}

pub(super) fn uncovered(slot: Slot, topology: &Topology) -> Error {
    let served = topology.map.served();
    let detail = format!(
        "the slot {slot} of this key is served by no node of the cluster ({served} of 16384 slots are): bring its primary back, or assign \
         the slot to another (CLUSTER ADDSLOTS, redis-cli --cluster fix)"
    );
    Error::new(ErrorKind::Unavailable, detail)
}

/// Of a listing: what the keys of a cluster are nobody knows then.
pub(super) fn unserved(topology: &Topology) -> Error {
    let served = topology.map.served();
    let detail = format!(
        "{served} of 16384 slots of the cluster are served, and keys of the others are not listed: bring their primaries back, or assign the slots to others \
         (CLUSTER ADDSLOTS, redis-cli --cluster fix)"
    );
    Error::new(ErrorKind::Unavailable, detail)
}

fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if Refusal::is_no_script(error))
}

/// The answers to a part, without those to `ASKING`, but for one that was refused.
fn without_asking(values: Values, part: &Part) -> Values {
    if part.asking.iter().all(|&asking| asking == Asking::No) {
        return values;
    }
    let mut values = values.into_iter();
    let mut answers = Values::with_capacity(part.ops.len());
    for &asking in &part.asking {
        let asked = if asking == Asking::Yes { values.next() } else { None };
        let answer = values.next();
        answers.extend(match asked {
            // Sent on because it did not ask: why it could not is what is to be mended.
            Some(Value::ServerError(refusal)) if answer.as_ref().is_some_and(is_moved) => {
                Some(Value::ServerError(refusal))
            }
            _ => answer,
        });
    }
    answers
}

fn is_moved(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "MOVED")
}

/// Names the command that was refused, where it was not the op's own.
fn of_asking(error: Error, refusal: &ServerError) -> Error {
    if !refusal.details().is_some_and(|words| words.to_ascii_lowercase().contains("asking")) {
        return error;
    }
    let detail =
        format!("the slot of this key is moving, and to follow it takes the command ASKING: {}", error.detail());
    Error::new(error.kind(), detail).effect(error.known_effect())
}
