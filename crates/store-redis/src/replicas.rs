//! Writes that wait until replicas have them (`WAIT`).

use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Effect, Error, ErrorKind, Op};
use redis::{Cmd, Value};

use crate::codec::Refusal;
use crate::config::WaitReplicas;
use crate::link::{Fault, Why};

/// What commands do, as far as replicas are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// They write, or some of them do.
    Writes,
    /// They read what structures go by.
    Reads,
    /// They ask the server about itself, or look around.
    Asks,
}

impl Does {
    pub(crate) fn of<'a>(mut ops: impl Iterator<Item = &'a Op>) -> Does {
        if ops.all(Op::is_read) { Does::Reads } else { Does::Writes }
    }
}

/// Whether replicas have what was written over a connection.
///
/// Every batch that writes is followed by `WAIT` in the same pipeline. Once one was not confirmed, so is every batch that reads, until a `WAIT`
/// that was sent after the failure succeeds: a structure that settles an unknown outcome by reading must not take for safe what only the
/// primary has.
///
/// Of a batch that was refused, all of it, there is nothing to confirm: that answer stands, whatever `WAIT` says.
#[derive(Debug)]
pub(crate) struct Confirmed {
    wait: WaitReplicas,
    /// Failures so far. Grows only after what failed was handed to the connection.
    failures: AtomicU64,
    /// The most failures that a `WAIT` had before it and succeeded.
    cleared: AtomicU64,
}

/// A batch that a `WAIT` follows, from before it is handed over until it is known whether replicas have it. Dropped before that it is a failure: whoever stopped
/// waiting for it may go on to read it.
#[derive(Debug)]
pub(crate) struct Owed<'a> {
    confirmed: &'a Confirmed,
    /// The failures that it clears if it succeeds.
    failures: u64,
    is_settled: bool,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.confirmed.failures.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Confirmed {
    pub(crate) fn new(wait: WaitReplicas) -> Confirmed {
        Confirmed { wait, failures: AtomicU64::new(0), cleared: AtomicU64::new(0) }
    }

    /// Whether a batch must be followed by [`command`](Confirmed::command). To be asked before the batch is handed over, by whoever does that himself: one that left
    /// after its caller had stopped waiting could be overtaken by a `WAIT` that clears it.
    pub(crate) fn begin(&self, does: Does) -> Option<Owed<'_>> {
        let failures = self.failures.load(Ordering::Acquire);
        let is_owing = failures > self.cleared.load(Ordering::Acquire);
        let waits = does == Does::Writes || does == Does::Reads && is_owing;
        waits.then(|| Owed { confirmed: self, failures, is_settled: false })
    }

    pub(crate) fn command(&self) -> Cmd {
        let mut cmd = redis::cmd("WAIT");
        // Fits: the limit of the option is far below.
        cmd.arg(self.wait.replicas).arg(u64::try_from(self.wait.timeout.as_millis()).unwrap_or(u64::MAX));
        cmd
    }
}

impl Owed<'_> {
    /// The batch was not sent: nothing is owed.
    pub(crate) fn never_sent(mut self) {
        self.is_settled = true;
    }

    /// What the reply to the command says of the batch before it, which was answered so.
    pub(crate) fn judge(mut self, told: Option<Value>, answers: &[Value]) -> Result<(), Fault> {
        let wait = self.confirmed.wait;
        let wanted = wait.replicas;
        let why = if told.as_ref().is_some_and(is_of_replica) { Why::Demoted } else { Why::Unconfirmed };
        let detail = match told {
            Some(Value::Int(have)) if have >= i64::from(wanted) => {
                self.confirmed.cleared.fetch_max(self.failures, Ordering::AcqRel);
                self.is_settled = true;
                return Ok(());
            }
            // All of it was refused: there is nothing to confirm.
            _ if answers.iter().all(is_refused) => {
                self.is_settled = true;
                return Ok(());
            }
            Some(Value::Int(have)) => format!(
                "{have} of {wanted} replicas confirmed it within {} ms (wait_replicas); the primary has it, and a failover may lose it",
                wait.timeout.as_millis()
            ),
            Some(Value::ServerError(error)) => format!(
                "whether {wanted} replicas have it is not known (WAIT: {} {})",
                error.code(),
                error.details().unwrap_or_default()
            ),
            told => format!("whether {wanted} replicas have it is not known (WAIT was answered {told:?})"),
        };
        let error = Error::new(ErrorKind::Timeout, detail);
        Err(Fault { effect: Effect::Unknown, error, why })
    }
}

fn is_refused(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if Refusal::is_of_all(error))
}

fn is_of_replica(told: &Value) -> bool {
    matches!(told, Value::ServerError(error) if Refusal::is_wait_of_replica(error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn one() -> Confirmed {
        Confirmed::new(WaitReplicas { replicas: 1, timeout: Duration::from_millis(5) })
    }

    #[test]
    fn after_a_failure_reads_wait_too_until_a_later_wait_succeeds() {
        let confirmed = one();
        assert!(confirmed.begin(Does::Reads).is_none());
        let before = confirmed.begin(Does::Writes).unwrap();
        let failed = confirmed.begin(Does::Writes).unwrap();
        let fault = failed.judge(Some(Value::Int(0)), &[Value::Okay]).unwrap_err();
        assert!(fault.error.to_string().contains("0 of 1 replicas"), "{}", fault.error);
        assert_eq!((fault.effect, fault.is_unanswered()), (Effect::Unknown, false));
        // One that was sent before the failure was known says nothing of what failed.
        before.judge(Some(Value::Int(1)), &[Value::Okay]).unwrap();
        let read = confirmed.begin(Does::Reads).expect("the failure stands");
        assert!(confirmed.begin(Does::Asks).is_none());
        read.judge(Some(Value::Int(2)), &[Value::Okay]).unwrap();
        assert!(confirmed.begin(Does::Reads).is_none());
    }

    #[test]
    fn one_that_nobody_waits_for_any_more_is_a_failure_and_one_that_was_not_sent_is_none() {
        let confirmed = one();
        confirmed.begin(Does::Writes).unwrap().never_sent();
        assert!(confirmed.begin(Does::Reads).is_none());
        let before = confirmed.begin(Does::Writes).unwrap();
        drop(confirmed.begin(Does::Writes).unwrap());
        before.judge(Some(Value::Int(1)), &[Value::Okay]).unwrap();
        // A read that is given up owes no less.
        drop(confirmed.begin(Does::Reads).expect("the failure stands"));
        confirmed.begin(Does::Reads).expect("it stands still").judge(Some(Value::Int(1)), &[Value::Okay]).unwrap();
        assert!(confirmed.begin(Does::Reads).is_none());
    }
}
