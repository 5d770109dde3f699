//! Sending the ops of one batch to one node: which connection, and what may be sent again after a fault.
//!
//! | what happened | a read | a write |
//! |---|---|---|
//! | the connection ended before its first byte was handed to the system | sent again | sent again |
//! | the connection ended later | sent again, once | error, effect unknown |
//! | the deadline passed before the first byte | error, not applied | error, not applied |
//! | the deadline passed later | error, not applied | error, effect unknown |
//! | the token's connection is gone | | `Exists`, not sent |

use std::sync::Arc;
use std::time::Instant;

use larder_core::{Batch, Effect, Error, ErrorKind, Op, Replies, Reply, Result};
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
                Some(_) if todo.iter().any(|other| other != place && self.batch[*other].key == op.key) => None,
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

    fn fail(&mut self, place: usize, error: Error) {
        self.results.push((place, Err(named(error, &self.batch[place], self.node))));
    }
}

/// The error of an op whose deadline has passed before it was sent.
fn overdue() -> Error {
    Error::new(ErrorKind::Timeout, "the deadline passed before the op was sent")
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
