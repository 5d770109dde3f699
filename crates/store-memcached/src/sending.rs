//! Sending the ops of one batch to one node: which connection, and what may be sent again after a fault.
//!
//! | what happened | a read | a write |
//! |---|---|---|
//! | the connection ended before its first byte was handed to the system | sent again | sent again |
//! | the connection ended later | sent again, once | error, effect unknown |
//! | the deadline passed while it waited in the queue | error, not applied | error, not applied |
//! | the deadline passed later | error, not applied | error, effect unknown |
//! | the token's connection is gone | | `Exists`, not sent |
//!
//! The connection's task takes all that waits out of the queue at one time, and writes it whole, so that an op behind a large value is past the
//! queue before its first byte is written: if its deadline passes there, it is sent all the same.
//!
//! Ops on one key take effect in the order of the batch. So of what may be sent again two things are not, and fail as not applied: a
//! read before a write on its key whose effect is unknown, since it could find what came behind it, and a write behind one, since it
//! could be carried out before it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use larder_core::{Batch, Effect, Error, ErrorKind, Key, Op, Replies, Reply, Result};
use smallvec::SmallVec;

use crate::conn::{Conn, Enqueued, Reject};
use crate::node::Node;
use crate::part::{Cut, Outcome, Waiting};

/// How often one op is handed to a connection at the most.
const SENDS_MAX: usize = 4;

/// Places of ops in a batch.
pub(crate) type Places = SmallVec<[usize; 4]>;

/// The ops of a batch that go to one node, on their way.
pub(crate) struct Sending<'a> {
    node: &'a Node,
    batch: &'a Batch,
    /// Which of a node's connections to use, if there are several.
    choice: usize,
    deadline: Instant,
    /// The first time, the node's lane may be used. What failed there goes over home.
    lane: bool,
    /// What is to be sent, or sent again.
    todo: Places,
    results: Vec<(usize, Result<Reply>)>,
    reads_resent: bool,
    last: Option<Error>,
}

/// Ops handed to a connection.
struct Handed {
    places: Places,
    waiting: Waiting,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(node: &'a Node, batch: &'a Batch, choice: usize, deadline: Instant, todo: Places) -> Sending<'a> {
        Sending {
            node,
            batch,
            choice,
            deadline,
            lane: false,
            todo,
            results: Vec::new(),
            reads_resent: false,
            last: None,
        }
    }

    /// Lets reads use the node's lane.
    pub(crate) fn over_lane(mut self) -> Sending<'a> {
        self.lane = true;
        self
    }

    /// Sends until every op has a result.
    pub(crate) async fn run(mut self) -> Vec<(usize, Result<Reply>)> {
        for _ in 0..SENDS_MAX {
            self.keep_order();
            if self.todo.is_empty() {
                return self.results;
            }
            let todo = std::mem::take(&mut self.todo);
            if Instant::now() >= self.deadline {
                todo.iter().for_each(|place| self.fail(*place, overdue()));
                continue;
            }
            let first = if std::mem::take(&mut self.lane) {
                self.node.conn_for(self.choice, todo.iter().map(|place| &self.batch[*place]))
            } else {
                None
            };
            let conn = match first {
                Some(conn) => Ok(conn),
                None => self.node.conn_by(self.choice, self.deadline).await,
            };
            match conn {
                Ok(conn) => {
                    let handed = self.hand_over(&conn, &todo);
                    for Handed { places, waiting } in handed {
                        let outcome = waiting.await;
                        self.settle(&places, outcome);
                    }
                }
                Err(error) => todo.iter().for_each(|place| self.fail(*place, error.clone())),
            }
        }
        let last = self.last.take();
        let last = last.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "connections keep ending"));
        for place in std::mem::take(&mut self.todo) {
            self.fail(place, last.clone());
        }
        self.results
    }

    /// Hands ops to `conn`, and those with a token to the connection that read it.
    fn hand_over(&mut self, conn: &Arc<Conn>, todo: &[usize]) -> Vec<Handed> {
        let mut groups: SmallVec<[(Arc<Conn>, Places); 1]> = SmallVec::new();
        let first_token = todo.iter().find_map(|place| self.batch[*place].cas());
        let home = first_token.and_then(|cas| self.node.conn_of(cas.session)).unwrap_or_else(|| conn.clone());
        let mut repeated = None;
        for place in todo {
            let op = &self.batch[*place];
            let conn = match op.cas() {
                None => Some(home.clone()),
                // Refused by name where it is encoded.
                Some(_) if !home.server.abilities.cas => Some(home.clone()),
                // No item has the token 0, and to some commands it means "do not compare".
                Some(cas) if cas.token == 0 => None,
                Some(cas) if cas.session == home.session => Some(home.clone()),
                // Ops on one key take effect in order, which two connections cannot promise. A token can always be refused.
                Some(_) if repeated.get_or_insert_with(|| repeated_keys(self.batch, todo)).contains(&op.key) => None,
                Some(cas) => self.node.conn_of(cas.session),
            };
            let Some(conn) = conn else {
                self.results.push((*place, Ok(Reply::Exists)));
                continue;
            };
            match groups.iter_mut().find(|(other, _)| other.session == conn.session) {
                Some((_, places)) => places.push(*place),
                None => groups.push((conn, Places::from_slice(&[*place]))),
            }
        }
        let mut handed = Vec::with_capacity(groups.len());
        for (conn, places) in groups {
            let at_once = if conn.server.lockstep { 1 } else { places.len() };
            for places in places.chunks(at_once) {
                handed.extend(self.hand_to(&conn, places));
            }
        }
        handed
    }

    fn hand_to(&mut self, conn: &Conn, places: &[usize]) -> Option<Handed> {
        let batch = self.batch;
        match conn.enqueue(places.iter().map(|place| &batch[*place]), Instant::now(), self.deadline) {
            Ok(enqueued) => self.take_in(places, enqueued),
            Err(Reject::Closed) => {
                self.todo.extend_from_slice(places);
                None
            }
            Err(Reject::Full(error)) => {
                places.iter().for_each(|place| self.fail(*place, error.clone()));
                None
            }
        }
    }

    /// Takes in what a connection took: errors for the ops it refused, and the others to wait for.
    fn take_in(&mut self, places: &[usize], enqueued: Enqueued) -> Option<Handed> {
        let Enqueued { waiting, refused } = enqueued;
        let mut sent = Places::from_slice(places);
        for (place, _) in refused.iter().rev() {
            sent.remove(*place);
        }
        for (place, error) in refused {
            self.fail(places[place], error);
        }
        waiting.map(|waiting| Handed { places: sent, waiting })
    }

    /// Goes on from ops that were handed over already.
    pub(crate) async fn run_from(mut self, places: &[usize], enqueued: Enqueued) -> Vec<(usize, Result<Reply>)> {
        if let Some(Handed { places, waiting }) = self.take_in(places, enqueued) {
            let outcome = waiting.await;
            self.settle(&places, outcome);
        }
        self.run().await
    }

    /// Takes in how a part ended: results for the ops that have one, and what may be sent again into `todo`.
    pub(crate) fn settle(&mut self, places: &[usize], outcome: Outcome) {
        let answered = outcome.replies.len();
        for (place, reply) in places.iter().zip(outcome.replies) {
            match reply {
                Ok(reply) => self.results.push((*place, Ok(reply))),
                Err(error) => self.fail(*place, error),
            }
        }
        let rest = places.get(answered..).unwrap_or_default();
        let resend_reads = !self.reads_resent;
        self.reads_resent |= !rest.is_empty();
        for place in rest {
            let read = self.batch[*place].is_read();
            let effect = |sent: bool| if sent && !read { Effect::Unknown } else { Effect::NotApplied };
            match &outcome.cut {
                Some(Cut::Closed { sent, cause }) if !sent || (read && resend_reads) => {
                    self.last = Some(cause.clone());
                    self.todo.push(*place);
                }
                Some(Cut::Closed { sent, cause }) => {
                    self.fail(*place, cause.clone().effect(effect(*sent)));
                }
                Some(Cut::TimedOut { sent }) => {
                    let error = Error::new(ErrorKind::Timeout, "no answer before the deadline").effect(effect(*sent));
                    self.fail(*place, error);
                }
                None => self.fail(*place, larder_core::ext::no_reply()),
            }
        }
    }

    /// Leaves out of what is to be sent again what could take effect out of the order of the batch, and puts the rest in that order.
    fn keep_order(&mut self) {
        if self.todo.is_empty() || self.results.is_empty() {
            return;
        }
        let batch = self.batch;
        // By key, the first and the last write of which nobody knows whether it was, or will be, carried out.
        let mut unknown: HashMap<&Key, (usize, usize)> = HashMap::new();
        for (place, result) in &self.results {
            if result.as_ref().is_err_and(Error::is_unknown) && !batch[*place].is_read() {
                let (first, last) = unknown.entry(&batch[*place].key).or_insert((*place, *place));
                (*first, *last) = ((*first).min(*place), (*last).max(*place));
            }
        }
        self.todo.sort_unstable();
        if unknown.is_empty() {
            return;
        }
        for place in std::mem::take(&mut self.todo) {
            let op = &batch[place];
            let is_out_of_order = unknown.get(&op.key).is_some_and(|(first, last)| match op.is_read() {
                true => place < *last,
                false => *first < place,
            });
            match is_out_of_order {
                true => self.fail(place, out_of_order()),
                false => self.todo.push(place),
            }
        }
    }

    fn fail(&mut self, place: usize, error: Error) {
        self.results.push((place, Err(named(error, &self.batch[place], self.node))));
    }
}

/// The error of an op whose deadline has passed before it was sent.
fn overdue() -> Error {
    Error::new(ErrorKind::Timeout, "the deadline passed before the op was sent")
}

/// The error of an op that cannot be sent again, since another on its key may have been carried out, or may be yet.
fn out_of_order() -> Error {
    let detail = "the connection ended, and another op of the batch on this key may have taken effect: sent again, this one would be out of order";
    Error::new(ErrorKind::Unavailable, detail).effect(Effect::NotApplied)
}

/// Names the op and the server.
fn named(error: Error, op: &Op, node: &Node) -> Error {
    error.op(op).store(&node.server.name)
}

/// Puts results in the order of the batch.
pub(crate) fn ordered(mut results: Vec<(usize, Result<Reply>)>) -> Replies {
    results.sort_unstable_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The keys that several of these ops have.
fn repeated_keys<'b>(batch: &'b Batch, places: &[usize]) -> HashSet<&'b Key> {
    let mut seen = HashSet::with_capacity(places.len());
    places.iter().map(|place| &batch[*place].key).filter(|&key| !seen.insert(key)).collect()
}

#[cfg(test)]
mod tests {
    use larder_core::{PutMode, Ttl, Want};

    use super::*;
    use crate::config::{Config, Server};
    use crate::fleet::Fingerprint;
    use crate::node::Shared;

    fn node() -> Node {
        let config = Config::new(vec![Server::tcp("cache", Config::PORT)]);
        let fingerprint = Fingerprint::of(&config);
        let shared = Shared { config, counters: Arc::default(), tls: None, fingerprint };
        Node::new(shared.config.servers[0].clone(), Arc::new(shared))
    }

    /// A server that takes an op at a time: the first was cut off, those behind it had not been sent.
    #[tokio::test]
    async fn a_write_behind_one_that_may_be_applied_yet_is_not_sent() {
        let key = |k: &'static str| Key::new(k).unwrap();
        let put = |k, mode| Op::put(key(k), mode, "v", Ttl::Never);
        let get = || Op::get(key("k"), Want::VALUE);
        let ops = [get(), put("k", PutMode::Set), get(), put("k", PutMode::Append), put("other", PutMode::Set)];
        let (node, batch) = (node(), Batch::from_iter(ops));
        let mut sending = Sending::new(&node, &batch, 0, Instant::now(), Places::from_slice(&[4, 3, 2, 0]));
        let cause = Error::new(ErrorKind::Unavailable, "gone");
        let cut = Some(Cut::Closed { sent: true, cause });
        sending.settle(&[1], Outcome { replies: Replies::new(), cut });
        sending.keep_order();
        assert_eq!(sending.todo.as_slice(), [2, 4], "in the order of the batch");
        let effects: Vec<_> =
            ordered(sending.results).into_iter().map(|result| result.unwrap_err().known_effect()).collect();
        assert_eq!(effects, [Effect::NotApplied, Effect::Unknown, Effect::NotApplied]);
    }
}
