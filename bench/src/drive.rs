//! Who does the work: tasks or threads that go on until they are told to stop.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Result;

/// Enough for the peers' code, and small enough for 512 of them.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// Work for a task, op by op.
pub(crate) trait Step: Send + 'static {
    /// Does one op, and checks its answer.
    fn step(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// A counter that shares its cache line with no other.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// What those who work share with the one who measures.
struct Shift {
    counts: Vec<Count>,
    over: AtomicBool,
}

impl Shift {
    fn new(workers: usize) -> Arc<Shift> {
        Arc::new(Shift { counts: (0..workers).map(|_| Count::default()).collect(), over: AtomicBool::new(false) })
    }

    fn total(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn done(&self, worker: usize) {
        self.counts[worker].0.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets the others work: a fifth of the window unmeasured, then the window. Ops a second.
    fn measure(&self, window: Duration) -> f64 {
        thread::sleep(window / 5);
        let (from, before) = (Instant::now(), self.total());
        thread::sleep(window);
        let (elapsed, after) = (from.elapsed(), self.total());
        self.over.store(true, Ordering::Relaxed);
        (after - before) as f64 / elapsed.as_secs_f64()
    }
}

/// Runs each on a task of its own, and answers ops a second; they are there again for the next round.
pub(crate) fn drive_tasks<S: Step>(runtime: &Runtime, steps: &mut Vec<S>, window: Duration) -> Result<f64> {
    let shift = Shift::new(steps.len());
    let mut workers: JoinSet<Result<S>> = JoinSet::new();
    for (worker, mut step) in steps.drain(..).enumerate() {
        let shift = shift.clone();
        let work = async move {
            while !shift.is_over() {
                step.step().await?;
                shift.done(worker);
            }
            Ok(step)
        };
        workers.spawn_on(work, runtime.handle());
    }
    let rate = shift.measure(window);
    runtime.block_on(async {
        while let Some(ended) = workers.join_next().await {
            steps.push(ended??);
        }
        Ok(rate)
    })
}

/// Runs `op` on as many threads, each with its own source of random numbers; ops a second.
pub(crate) fn drive_threads(
    threads: usize,
    window: Duration,
    op: impl Fn(&mut fastrand::Rng) -> Result<()> + Sync,
) -> Result<f64> {
    let shift = Shift::new(threads);
    thread::scope(|scope| {
        let mut workers = Vec::with_capacity(threads);
        for worker in 0..threads {
            let (shift, op) = (&shift, &op);
            let work = move || -> Result<()> {
                let mut rng = fastrand::Rng::with_seed(worker as u64);
                while !shift.is_over() {
                    op(&mut rng)?;
                    shift.done(worker);
                }
                Ok(())
            };
            let builder = thread::Builder::new().stack_size(THREAD_STACK_BYTES);
            match builder.spawn_scoped(scope, work) {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    shift.over.store(true, Ordering::Relaxed);
                    return Err(error.into());
                }
            }
        }
        let rate = shift.measure(window);
        for worker in workers {
            worker.join().map_err(|_| "a worker thread panicked")??;
        }
        Ok(rate)
    })
}
