//! A nemesis: what befalls servers while clients work on them, drawn from one seed.
//!
//! | room | purpose |
//! |---|---|
//! | this | deeds, plans of them, and the thread that carries a plan out |
//! | `victims` | what each server suffers: memcached, Redis and Valkey, programs of ours |
//! | `failover` | a primary with its replica, and a cluster |
//! | `program` | a program of ours that serves, as a process |
//!
//! What befalls the network before a server is the fault proxy's ([`crate::proxy`]).

mod failover;
mod program;
mod victims;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;

use crate::history::Caused;

pub use failover::{Pair, Partitioned};
pub use program::Program;
pub use victims::{Cache, Redis, Several, Small};

/// Steps of a plan, of either sort.
const MILD_MAX: usize = 3;
const GRAVE_MAX: usize = 1;

/// Something that is done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// It is killed as by a crash (kill -9), and started again on the same port.
    Kill,
    /// It stands still for a while (SIGSTOP), and goes on.
    Stop,
    /// Everything in it is thrown away.
    Flush,
    /// Everything in it is thrown away a second later.
    FlushLater,
    /// Its memory is filled by others, until it evicts or refuses.
    Fill,
    /// Its replica, which had fallen behind, takes its place.
    FailOver,
    /// It stands still until another node has taken its place, and goes on.
    Outlast,
    /// It is cut off from the other nodes, one of which takes its place while clients reach both, and meets them again.
    Partition,
}

impl Deed {
    /// What findings call it.
    ///
    /// ```
    /// assert_eq!(larder_testkit::nemesis::Deed::Stop.as_str(), "server stopped (SIGSTOP)");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "server killed (kill -9)",
            Self::Stop => "server stopped (SIGSTOP)",
            Self::Flush => "server flushed",
            Self::FlushLater => "server flushed, with a delay",
            Self::Fill => "memory filled by others",
            Self::FailOver => "failover to a replica behind",
            Self::Outlast => "primary stopped until its replica took over",
            Self::Partition => "primary cut off from its cluster, and not from clients",
        }
    }
}

/// A server that things are done to.
pub trait Victim: Send {
    /// What takes nothing that was acknowledged.
    fn mild(&self) -> Vec<Deed>;

    /// What takes data.
    fn grave(&self) -> Vec<Deed>;

    /// Does it, and returns once the server serves again. What it may take is raised in `caused` first.
    ///
    /// # Panics
    /// When the server does not come back, or it is nothing that this server suffers.
    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused);

    /// Returns once nothing of what was done can still take data.
    fn settle(&mut self, _caused: &Caused) {}
}

/// A deed of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the deed before, or the start.
    pub after_ms: u64,
    /// What is done then.
    pub deed: Deed,
}

/// Draws a plan: up to three mild deeds, and in every other plan a grave one, each within `within_ms` of the start.
///
/// ```
/// use larder_testkit::nemesis::{Deed, draw};
/// let plan = draw(7, &[Deed::Stop], &[Deed::Kill, Deed::Flush], 100);
/// assert_eq!(plan, draw(7, &[Deed::Stop], &[Deed::Kill, Deed::Flush], 100));
/// assert!(plan.iter().map(|step| step.after_ms).sum::<u64>() <= 100);
/// ```
pub fn draw(seed: u64, mild: &[Deed], grave: &[Deed], within_ms: u64) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut all = Vec::new();
    for (deeds, most) in [(mild, MILD_MAX), (grave, GRAVE_MAX)] {
        for _ in 0..rng.usize(0..=most) {
            if let Some(&deed) = rng.choice(deeds) {
                all.push((rng.u64(0..=within_ms), deed));
            }
        }
    }
    all.sort_by_key(|&(at, _)| at);
    let mut before = 0;
    let step = |(at, deed)| Step { after_ms: at - std::mem::replace(&mut before, at), deed };
    all.into_iter().map(step).collect()
}

/// How often each deed was done.
pub type Done = BTreeMap<Deed, u64>;

/// What befalls a server, whichever it is.
pub trait Trouble: Send + Sync {
    /// Ends before the next deed, and returns once nothing of what was done can still take data. The server goes on.
    ///
    /// # Panics
    /// When a deed did.
    fn end(&self);

    /// What was done up to now.
    fn done(&self) -> Done;
}

/// A plan that is carried out on a thread of its own. The server lives as long as this does.
pub struct Nemesis<V> {
    thread: Mutex<Option<JoinHandle<V>>>,
    /// Once the plan has ended.
    victim: Mutex<Option<V>>,
    /// Dropped to end it before its next step.
    end: Mutex<Option<mpsc::Sender<()>>>,
    done: Arc<Mutex<Done>>,
}

impl<V: Victim + 'static> Nemesis<V> {
    /// Begins to carry out a plan that is drawn from the seed.
    pub fn begin(mut victim: V, seed: u64, within_ms: u64, caused: Arc<Caused>) -> Self {
        let plan = draw(seed, &victim.mild(), &victim.grave(), within_ms);
        let (end, ended) = mpsc::channel::<()>();
        let done = Arc::new(Mutex::new(Done::new()));
        let told = Arc::clone(&done);
        let carry_out = move || {
            let mut rng = Rng::with_seed(!seed);
            for step in plan {
                // The sender is dropped at the end, and never sends.
                if ended.recv_timeout(Duration::from_millis(step.after_ms)) != Err(mpsc::RecvTimeoutError::Timeout) {
                    break;
                }
                *locked(&told).entry(step.deed).or_default() += 1;
                victim.suffer(step.deed, &mut rng, &caused);
            }
            victim.settle(&caused);
            victim
        };
        let thread = std::thread::Builder::new().name("nemesis".to_owned()).spawn(carry_out).expect("a thread");
        Self { thread: Mutex::new(Some(thread)), victim: Mutex::new(None), end: Mutex::new(Some(end)), done }
    }
}

impl<V: Victim + 'static> Trouble for Nemesis<V> {
    fn end(&self) {
        *locked(&self.end) = None;
        // Held until the victim is there: who ends it at the same time waits.
        let mut thread = locked(&self.thread);
        match thread.take().map(JoinHandle::join) {
            None => {}
            Some(Ok(victim)) => *locked(&self.victim) = Some(victim),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    fn done(&self) -> Done {
        locked(&self.done).clone()
    }
}

impl<V> Drop for Nemesis<V> {
    fn drop(&mut self) {
        *locked(&self.end) = None;
        if let Some(thread) = locked(&self.thread).take() {
            // The server ends with the victim, here; an error means that a deed panicked, which has been printed by then.
            let _ = thread.join();
        }
    }
}

/// A panic while it was locked leaves it meaningful.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deed_is_drawn_and_half_of_the_plans_take_no_data() {
        let (mild, grave) = ([Deed::Stop, Deed::Kill], [Deed::Flush, Deed::FlushLater, Deed::Fill]);
        let plans: Vec<_> = (0..400).map(|seed| draw(seed, &mild, &grave, 200)).collect();
        for deed in mild.iter().chain(&grave) {
            assert!(plans.iter().flatten().filter(|step| step.deed == *deed).count() > 20, "{deed:?}");
        }
        let takes = |plan: &Vec<Step>| plan.iter().filter(|step| grave.contains(&step.deed)).count();
        assert!(plans.iter().all(|plan| takes(plan) <= 1));
        assert!((140..260).contains(&plans.iter().filter(|plan| takes(plan) == 0).count()));
        assert!(plans.iter().all(|plan| plan.iter().map(|step| step.after_ms).sum::<u64>() <= 200));
    }
}
