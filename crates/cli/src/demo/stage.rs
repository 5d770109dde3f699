//! What all parts of the demo share: workers, their turns, the clock, and the bar.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use larder::layers::{Counting, Counts};
use larder::{Ctx, Error, ErrorKind, StoreRef};
use tokio::task::JoinSet;

use super::footprint::{Footprint, stored_bytes};
use super::table::{Row, Verdict};
use crate::args::{Demo, Subject};
use crate::exit::Failure;

/// How often the bar is drawn.
const BAR_PERIOD: Duration = Duration::from_millis(100);

/// One of those who work at once.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) store: StoreRef,
    pub(super) counting: Counting,
}

/// The place of one structure in the demo.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) subject: Subject,
    /// Drawn at random: the store is shared, perhaps with another demo.
    pub(super) name: String,
    pub(super) timeout: Duration,
    /// What each worker opens its handle on.
    pub(super) stores: Vec<StoreRef>,
    /// True if somebody is to spoil the total.
    pub(super) is_sabotaged: bool,
    countings: Vec<Counting>,
    footprints: Vec<Arc<Footprint>>,
    ops: Option<u64>,
    seconds: Duration,
}

/// The turns that workers take: a number of them, or as many as fit into a time.
#[derive(Debug)]
pub(super) struct Turns {
    left: AtomicU64,
    done: AtomicU64,
    start: Instant,
    deadline: Option<Instant>,
}

/// What was driven, and how long it took.
#[derive(Debug)]
pub(super) struct Driven<T> {
    /// What each worker has to say.
    pub(super) accounts: Vec<T>,
    ops: u64,
    elapsed: Duration,
    round_trips: u64,
}

impl Stage {
    pub(super) fn new(subject: Subject, workers: &[Worker], demo: &Demo, timeout: Duration) -> Stage {
        let footprint = |worker: &Worker| Arc::new(Footprint::new(Arc::new(worker.counting.clone())));
        let footprints: Vec<Arc<Footprint>> = workers.iter().map(footprint).collect();
        Stage {
            subject,
            name: format!("demo-{}-{:016x}", subject.label().replace(' ', "-"), fastrand::u64(..)),
            timeout,
            stores: footprints.iter().map(|footprint| Arc::clone(footprint) as StoreRef).collect(),
            is_sabotaged: demo.sabotage == Some(subject),
            countings: workers.iter().map(|worker| worker.counting.clone()).collect(),
            footprints,
            ops: demo.ops.map(|ops| u64::from(ops.get())),
            seconds: demo.seconds,
        }
    }

    /// A handle for every worker, each on a store of its own.
    pub(super) async fn handles<H, E>(&self, open: impl AsyncFn(&StoreRef) -> Result<H, E>) -> Result<Vec<H>, E> {
        let mut handles = Vec::with_capacity(self.stores.len());
        for store in &self.stores {
            handles.push(open(store).await?);
        }
        Ok(handles)
    }

    /// Lets every worker take turns with its handle, all at once, until there are no turns left.
    pub(super) async fn drive<H, T, F>(
        &self,
        handles: Vec<H>,
        work: impl Fn(usize, H, Arc<Turns>) -> F,
    ) -> larder::Result<Driven<T>>
    where
        F: Future<Output = larder::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let before = self.counts();
        let turns = Arc::new(Turns::new(self.ops, self.seconds));
        let bar = self.bar(turns.clone());
        let mut working = JoinSet::new();
        for (worker, handle) in handles.into_iter().enumerate() {
            working.spawn(work(worker, handle, turns.clone()));
        }
        let mut accounts = Vec::with_capacity(working.len());
        while let Some(account) = working.join_next().await {
            accounts.push(account.map_err(|error| Error::new(ErrorKind::Protocol, "a worker died").source(error))??);
        }
        let elapsed = turns.start.elapsed();
        drop(bar);
        let round_trips = self.counts().since(&before).round_trips;
        Ok(Driven { accounts, ops: turns.done.load(Ordering::Relaxed), elapsed, round_trips })
    }

    /// The line of the table: what was driven, and whether the total is right.
    pub(super) async fn row<T>(
        &self,
        driven: larder::Result<Driven<T>>,
        elements: u64,
        verdict: Verdict,
    ) -> Result<Row, Failure> {
        let bytes = stored_bytes(&self.footprints, Ctx::within(self.timeout)).await?;
        let (ops, elapsed, round_trips, verdict) = match driven {
            Ok(driven) => (driven.ops, driven.elapsed, driven.round_trips, verdict),
            Err(error) => (0, Duration::ZERO, 0, Verdict::Off(error.to_string())),
        };
        Ok(Row { subject: self.subject, ops, elapsed, round_trips, elements, bytes, verdict })
    }

    fn counts(&self) -> Counts {
        self.countings.iter().fold(Counts::default(), |sum, counting| sum.plus(&counting.counts()))
    }

    /// Draws a bar while the workers work; nothing where standard error is no terminal.
    fn bar(&self, turns: Arc<Turns>) -> Bar {
        let seconds_ms = u64::try_from(self.seconds.as_millis()).unwrap_or(u64::MAX);
        let bar = ProgressBar::new(self.ops.unwrap_or(seconds_ms));
        let style = ProgressStyle::with_template("{prefix:>13} {bar:40} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━━╌"));
        bar.set_prefix(self.subject.label());
        let by_ops = self.ops.is_some();
        let drawn = bar.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BAR_PERIOD).await;
                let done = turns.done.load(Ordering::Relaxed);
                let elapsed_ms = u64::try_from(turns.start.elapsed().as_millis()).unwrap_or(u64::MAX);
                drawn.set_position(if by_ops { done } else { elapsed_ms });
                drawn.set_message(format!("{done} operations"));
            }
        });
        Bar { bar, task }
    }
}

impl Turns {
    fn new(ops: Option<u64>, seconds: Duration) -> Turns {
        let start = Instant::now();
        let deadline = if ops.is_none() { start.checked_add(seconds) } else { None };
        Turns { left: AtomicU64::new(ops.unwrap_or(u64::MAX)), done: AtomicU64::new(0), start, deadline }
    }

    /// Takes a turn, if there is one left.
    pub(super) fn take(&self) -> bool {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// The operation of the turn is done.
    pub(super) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The bar, and the task that moves it; gone when this is dropped.
struct Bar {
    bar: ProgressBar,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

impl Subject {
    /// As it stands in the table.
    pub(super) fn label(self) -> &'static str {
        match self {
            Subject::Lock => "lock",
            Subject::Counter => "exact counter",
            Subject::FastCounter => "fast counter",
            Subject::Set => "set",
            Subject::Array => "array",
            Subject::Cache => "cache",
            Subject::Visitors => "visitors",
            Subject::Unique => "unique visitors",
            Subject::Queue => "queue",
            Subject::Stack => "stack",
            Subject::Log => "log",
            Subject::Records => "packed records",
            Subject::Lookup => "packed table",
            Subject::Table => "table",
            Subject::Hash => "sharded hash",
            Subject::ShardedSet => "sharded set",
            Subject::Top => "sorted set",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_end_by_number_or_by_time() {
        let three = Turns::new(Some(3), Duration::ZERO);
        assert_eq!((0..10).filter(|_| three.take()).count(), 3);
        assert!(!Turns::new(None, Duration::ZERO).take());
        assert!(Turns::new(None, Duration::from_secs(3600)).take());
    }
}
