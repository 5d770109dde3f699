//! The scene of a round: three clients on one store, with the faults that bring a bug to light.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Profile, Run as StoreRun, Store, StoreRef, Verb};
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;
use larder_testkit::history::{Arena, Boxed, Caused, JOBS, Job, Run, Verdict, by_clocks};

use super::servers::{Bug, Server};
use crate::histories::stores::{Meeting, Thief};
use crate::virtual_time::{self, VirtualClock};
use crate::watched::Watched;

const CLIENTS: u64 = 3;
const OPS: usize = 240;
const FAULTS_ONE_IN: u64 = 12;

/// The job of a name.
pub(super) fn job(name: &str) -> &'static Job {
    JOBS.iter().find(|job| job.name == name).expect("a job that there is")
}

#[derive(Clone, Copy)]
pub(super) struct Scene {
    pub(super) seed: u64,
    /// What the connections of the clients do, one kind after the other; none: nothing.
    pub(super) faults: &'static [Fault],
    pub(super) steals_one_in: Option<u64>,
    /// A server of our own in place of the memory store.
    pub(super) bug: Option<Bug>,
    /// Whether the clients' connections send increments again whose outcome is unknown.
    pub(super) retries: bool,
}

impl Scene {
    /// Nothing breaks.
    pub(super) fn calm(seed: u64) -> Scene {
        Scene { seed, faults: &[], steals_one_in: None, bug: None, retries: false }
    }

    /// What the checkers find.
    pub(super) fn play(self, job: impl FnOnce(Arena, Run) -> Boxed<Verdict>) -> Vec<String> {
        virtual_time::run(self.seed, async {
            let clock = VirtualClock::shared();
            let mut rng = fastrand::Rng::with_seed(self.seed);
            let caused = Arc::new(Caused::default());
            let may_evict = self.steals_one_in.is_some();
            let memory = MemoryStore::builder().clock(clock.clone()).shards(4).bytes_max(64 << 20).evict(may_evict);
            let memory = Arc::new(memory.build().expect("limits that hold"));
            let store: StoreRef = match self.bug {
                Some(bug) => Arc::new(Server::new(memory, bug, rng.fork())),
                None => Arc::new(Thief::new(memory, rng.fork(), caused.clone(), self.steals_one_in, false)),
            };
            let links: Vec<Faulty> = (0..CLIENTS).map(|number| self.link(&store, number, &mut rng)).collect();
            let is_late = self.faults.iter().any(|fault| matches!(fault, Fault::Late(_)));
            let client = |link: &Faulty| {
                let watched: StoreRef = match is_late {
                    true => Arc::new(Watched::new(link.shared(), caused.clone())),
                    false => Arc::new(Watched::on_time(link.shared(), caused.clone())),
                };
                if self.retries { Arc::new(Retrying(watched)) as StoreRef } else { watched }
            };
            let clients = links.iter().map(client).collect();
            let calm = Arc::new(move || {
                let links = links.clone();
                Box::pin(async move {
                    for link in &links {
                        link.heal();
                        link.deliver_late().await;
                    }
                }) as Boxed<()>
            });
            let arena = Arena { clients, quiet: store, caused: caused.clone(), calm };
            by_clocks(move || clock.clone(), job(arena, Run { seed: self.seed, ops: OPS })).await.violations
        })
    }

    fn link(&self, store: &StoreRef, number: u64, rng: &mut fastrand::Rng) -> Faulty {
        let link = Faulty::new(Arc::new(Meeting::new(store.clone(), rng.fork())));
        if !self.faults.is_empty() {
            let fault = self.faults[number as usize % self.faults.len()];
            link.fail_randomly(rng.u64(..), FAULTS_ONE_IN, &[fault]);
        }
        link
    }
}

/// A connection that sends increments again whose outcome is unknown.
#[derive(Debug)]
struct Retrying(StoreRef);

impl Store for Retrying {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> StoreRun<'a> {
        StoreRun::pending(async move {
            let mut replies = self.0.run(ctx, batch.clone()).await;
            for (op, reply) in batch.into_iter().zip(&mut replies) {
                let is_arith = matches!(op.verb, Verb::Arith { .. });
                if is_arith
                    && reply.as_ref().is_err_and(larder_core::Error::is_unknown)
                    && let Some(again) = self.0.run(ctx, Batch::from_iter([op])).await.pop()
                {
                    *reply = again;
                }
            }
            replies
        })
    }
}
