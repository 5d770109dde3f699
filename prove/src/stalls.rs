//! The part `stalls`: holders of a lock stand still past their lease, and go on as if they held it.
//!
//! Critical sections overlap then, in every design. What must hold: tokens grow in the order in which the *store* granted them, a resource
//! that checks tokens takes no write of an earlier grant after one of a later, and an array that is changed under the lock refuses who was
//! overtaken. Time is virtual: thousands of leases run out in a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{ClockRef, ErrorKind, StoreRef};
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;
use larder_structures::lock::LockGuard;
use larder_structures::{Array, Lock};

use crate::findings::FULLY_CHECKED;
use crate::virtual_time::{self, VirtualClock};
use crate::{Budget, Findings, Part};

pub(crate) const PART: Part = Part {
    name: "stalls",
    about: "holders of a lock that stand still past their lease: tokens grow, and no stale fenced write lands",
    run,
};

const LEASE: Duration = Duration::from_secs(1);
const CLIENTS: usize = 4;
/// What each client does in a round.
const TURNS: usize = 40;
/// One turn in so many stands still.
const STALLS_ONE_IN: u32 = 2;

fn run(budget: Budget) -> Findings {
    let mut findings = Findings::default();
    for seed in budget.seeds() {
        round(seed, &mut findings);
    }
    findings
}

/// What the clients of a round did, in the order of time: one thread, so an order there is.
#[derive(Default)]
struct Seen {
    /// Tokens in the order in which they were granted, and each one's place in it.
    granted: HashMap<u64, usize>,
    token_last: u64,
    /// The resource: the highest token that wrote.
    token_max: u64,
    rank_max: usize,
    stalls: u64,
    writes: u64,
    /// Of them, and of the array's changes, those of a grant that others had overtaken.
    stale: u64,
    refused: u64,
    refused_by_array: u64,
    changes: Vec<(usize, u64)>,
    wrong: Vec<String>,
}

impl Seen {
    fn grant(&mut self, token: u64) {
        if token <= self.token_last {
            self.wrong.push(format!("token {token} was granted after {}", self.token_last));
        }
        self.token_last = self.token_last.max(token);
        let rank = self.granted.len();
        if self.granted.insert(token, rank).is_some() {
            self.wrong.push(format!("token {token} was granted twice"));
        }
    }

    /// A resource that knows tokens only; the ranks are the oracle.
    fn write(&mut self, token: u64) {
        if token < self.token_max {
            self.refused += 1;
            return;
        }
        let rank = self.granted.get(&token).copied().unwrap_or(0);
        if rank < self.rank_max {
            self.stale += 1;
            self.wrong.push(format!("a stale write by token {token} landed after one by {}", self.token_max));
        }
        self.writes += 1;
        self.token_max = token;
        self.rank_max = self.rank_max.max(rank);
    }
}

type Shared = Arc<Mutex<Seen>>;

fn locked(seen: &Shared) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn round(seed: u64, findings: &mut Findings) {
    let seen = virtual_time::run(seed, async {
        let clock = VirtualClock::shared();
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().expect("a store"));
        let seen = Shared::default();
        let array =
            Array::options().shards(1).clock(clock.clone()).open_or_create(&store, "a").await.expect("an array");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let rng = fastrand::Rng::with_seed(seed.wrapping_mul(CLIENTS as u64).wrapping_add(number as u64));
                tokio::spawn(client(number, store.clone(), clock.clone(), rng, seen.clone()))
            })
            .collect();
        for client in clients {
            client.await.expect("a client");
        }
        judge_array(&array, &seen).await;
        seen
    });
    let seen = std::mem::take(&mut *locked(&seen));
    let checked = seen.granted.len() as u64 + seen.writes + seen.refused + seen.changes.len() as u64;
    findings.count("operations checked", checked);
    findings.count(FULLY_CHECKED, checked);
    findings.count("faults: holder stalled past its lease", seen.stalls);
    findings.count("fenced writes taken", seen.writes);
    findings.count("stale fenced writes taken", seen.stale);
    findings.count("stale fenced writes refused", seen.refused + seen.refused_by_array);
    for wrong in &seen.wrong {
        findings.violation(seed, wrong);
    }
}

async fn client(number: usize, store: StoreRef, clock: ClockRef, mut rng: fastrand::Rng, seen: Shared) {
    let faulty = Faulty::new(store);
    let link = faulty.shared();
    let lock = Lock::options().lease(LEASE).clock(clock.clone()).open(&link, "l").await.expect("a lock");
    // Its own connection: the holder that was overtaken reaches the array, and must be refused there.
    let array = Array::options().clock(clock).open(&link, "a").await.expect("the array");
    for turn in 0..TURNS {
        let Ok(guard) = lock.acquire(60 * LEASE).await else { continue };
        locked(&seen).grant(guard.fencing_token());
        tokio::time::sleep(Duration::from_millis(rng.u64(1..200))).await;
        if rng.u32(..STALLS_ONE_IN) == 0 {
            stall(&faulty, &guard, &mut rng).await;
            let mut seen = locked(&seen);
            seen.stalls += 1;
        }
        write(number, turn, &array, &guard, &seen).await;
        _ = guard.release().await;
        tokio::time::sleep(Duration::from_millis(rng.u64(1..300))).await;
    }
}

/// The process stands still, and its renewals with it, until its lease is long over.
async fn stall(faulty: &Faulty, guard: &LockGuard, rng: &mut fastrand::Rng) {
    faulty.fail_always(Fault::NotSent);
    tokio::time::sleep(2 * LEASE + Duration::from_millis(rng.u64(..3_000))).await;
    faulty.heal();
    debug_assert!(!guard.is_held());
}

/// Writes without asking whether the lock is still held: the worst client there is.
async fn write(number: usize, turn: usize, array: &Array, guard: &LockGuard, seen: &Shared) {
    let token = guard.fencing_token();
    locked(seen).write(token);
    let none: [&[u8]; 0] = [];
    let change = (number * TURNS + turn) as u64;
    match array.change_under(guard, [change.to_be_bytes()], none).await {
        Ok(()) => locked(seen).changes.push((usize::try_from(change).unwrap_or(0), token)),
        Err(error) if error.kind() == ErrorKind::Fenced => locked(seen).refused_by_array += 1,
        Err(error) => locked(seen).wrong.push(format!("a change under a lock: {error}")),
    }
}

/// The array holds what was taken, in the order of the grants, and nothing that was refused.
async fn judge_array(array: &Array, seen: &Shared) {
    let elements = array.elements().await.expect("the array");
    let mut seen = locked(seen);
    let ranks: HashMap<u64, usize> = seen
        .changes
        .iter()
        .map(|(change, token)| (*change as u64, seen.granted.get(token).copied().unwrap_or(0)))
        .collect();
    let mut order = Vec::new();
    for element in &elements {
        let change = element.as_ref().try_into().map(u64::from_be_bytes).ok();
        match change.and_then(|change| ranks.get(&change)) {
            Some(rank) => order.push(*rank),
            None => seen.wrong.push(format!("the array holds {element:?}, which was refused")),
        }
    }
    if order.len() != ranks.len() {
        let wrong = format!("{} changes were acknowledged, and {} are there", ranks.len(), order.len());
        seen.wrong.push(wrong);
    }
    let stale = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
    seen.stale += stale as u64;
    if stale > 0 {
        seen.wrong.push("a change of an earlier grant stands behind one of a later".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stale_fenced_write_lands() {
        let mut findings = Findings::default();
        for seed in 0..10 {
            round(seed, &mut findings);
        }
        assert_eq!(findings.violations, 0, "{:#?}", findings.told);
        assert!(findings.counts["faults: holder stalled past its lease"] > 400, "{:?}", findings.counts);
        assert!(findings.counts["stale fenced writes refused"] > 200, "{:?}", findings.counts);
        assert_eq!(findings.counts["stale fenced writes taken"], 0, "it is said, not left out");
    }

    #[test]
    fn a_stale_write_would_be_found() {
        let mut seen = Seen::default();
        seen.grant(5);
        seen.grant(6);
        seen.write(6);
        seen.write(5);
        assert_eq!((seen.refused, seen.wrong.len()), (1, 0));
        seen.grant(4);
        assert_eq!(seen.wrong.len(), 1);
        let mut unordered = Seen { token_last: 0, ..Seen::default() };
        unordered.granted.extend([(9, 0), (8, 1)]);
        unordered.write(8);
        unordered.write(9);
        assert_eq!((unordered.stale, unordered.wrong.len()), (1, 1), "a later token of an earlier grant");
    }
}
