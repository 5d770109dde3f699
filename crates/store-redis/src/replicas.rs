//! Writes that wait until replicas have them (`WAIT`).

use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Effect, Error, ErrorKind, Op};
use redis::{Cmd, Value};

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
#[derive(Debug)]
pub(crate) struct Confirmed {
    wait: WaitReplicas,
    /// Failures so far. Grows only after what failed was handed to the connection.
    failures: AtomicU64,
    /// The most failures that a `WAIT` had before it and succeeded.
    cleared: AtomicU64,
}

/// A `WAIT` that follows a batch, and the failures that it clears.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting(u64);

impl Confirmed {
    pub(crate) fn new(wait: WaitReplicas) -> Confirmed {
        Confirmed { wait, failures: AtomicU64::new(0), cleared: AtomicU64::new(0) }
    }

    /// Whether a batch must be followed by [`command`](Confirmed::command). To be asked before the batch is handed over.
    pub(crate) fn begin(&self, does: Does) -> Option<Waiting> {
        let failures = self.failures.load(Ordering::Acquire);
        let is_owing = failures > self.cleared.load(Ordering::Acquire);
        (does == Does::Writes || does == Does::Reads && is_owing).then_some(Waiting(failures))
    }

    pub(crate) fn command(&self) -> Cmd {
        let mut cmd = redis::cmd("WAIT");
        // Fits: the limit of the option is far below.
        cmd.arg(self.wait.replicas).arg(u64::try_from(self.wait.timeout.as_millis()).unwrap_or(u64::MAX));
        cmd
    }

    /// Takes note that a batch that waited got no reply at all.
    pub(crate) fn unanswered(&self) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// What the reply to the command says of the batch before it.
    pub(crate) fn judge(&self, waiting: Waiting, told: Option<Value>) -> Result<(), Fault> {
        let wanted = self.wait.replicas;
        let detail = match told {
            Some(Value::Int(have)) if have >= i64::from(wanted) => {
                self.cleared.fetch_max(waiting.0, Ordering::AcqRel);
                return Ok(());
            }
            Some(Value::Int(have)) => format!(
                "{have} of {wanted} replicas confirmed it within {} ms (wait_replicas); the primary has it, and a failover may lose it",
                self.wait.timeout.as_millis()
            ),
            Some(Value::ServerError(error)) => format!(
                "whether {wanted} replicas have it is not known (WAIT: {} {})",
                error.code(),
                error.details().unwrap_or_default()
            ),
            told => format!("whether {wanted} replicas have it is not known (WAIT was answered {told:?})"),
        };
        self.unanswered();
        let error = Error::new(ErrorKind::Timeout, detail);
        Err(Fault { effect: Effect::Unknown, error, why: Why::Unconfirmed })
    }
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
        let fault = confirmed.judge(failed, Some(Value::Int(0))).unwrap_err();
        assert!(fault.error.to_string().contains("0 of 1 replicas"), "{}", fault.error);
        assert_eq!((fault.effect, fault.is_unanswered()), (Effect::Unknown, false));
        // One that was sent before the failure was known says nothing of what failed.
        confirmed.judge(before, Some(Value::Int(1))).unwrap();
        let read = confirmed.begin(Does::Reads).expect("the failure stands");
        assert!(confirmed.begin(Does::Asks).is_none());
        confirmed.judge(read, Some(Value::Int(2))).unwrap();
        assert!(confirmed.begin(Does::Reads).is_none());
    }
}
