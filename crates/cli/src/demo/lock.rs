//! Counts up a plain number under the lock: an increment is lost as soon as two hold it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder::{ErrorKind, Lock, LockGuard};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How long a worker waits for its turn: longer than any number of workers should need.
const WAIT: Duration = Duration::from_secs(60);

/// What the lock guards. Each step is atomic, so that this is sound; the read and the write behind it together are not, and
/// everybody else gets a chance to run between them.
#[derive(Debug, Default)]
struct Guarded {
    number: AtomicU64,
}

/// A worker's account: the fencing tokens of its turns, each with the number it found.
type Account = Vec<(u64, u64)>;

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let locks =
        stage.handles(async |store| Lock::options().timeout(stage.timeout).open(store, &stage.name).await).await?;
    let guarded = Arc::new(Guarded::default());
    let driven = stage.drive(locks, |_, lock, turns| work(lock, stage.timeout, turns, guarded.clone())).await;
    if stage.is_sabotaged {
        guarded.number.fetch_add(1, Ordering::Relaxed);
    }
    let verdict = driven.as_ref().map_or(Verdict::Right, |driven| check(driven, &guarded));
    stage.row(driven, 1, verdict).await
}

async fn work(lock: Lock, timeout: Duration, turns: Arc<Turns>, guarded: Arc<Guarded>) -> larder::Result<Account> {
    let mut account = Account::new();
    while turns.take() {
        let guard = acquire(&lock, timeout).await?;
        let found = guarded.number.load(Ordering::Relaxed);
        tokio::task::yield_now().await;
        guarded.number.store(found + 1, Ordering::Relaxed);
        account.push((guard.fencing_token(), found));
        guard.release().await?;
        turns.done();
    }
    Ok(account)
}

/// Waits for a turn, but not for a store that does not answer.
async fn acquire(lock: &Lock, timeout: Duration) -> larder::Result<LockGuard> {
    let start = Instant::now();
    loop {
        match lock.acquire(timeout).await {
            Err(error) if error.kind() == ErrorKind::Timeout && start.elapsed() < WAIT => _ = lock.status().await?,
            taken => return taken,
        }
    }
}

/// Every increment must be there, and in the order of increments the fencing tokens must grow.
fn check(driven: &Driven<Account>, guarded: &Guarded) -> Verdict {
    let mut grants: Vec<(u64, u64)> = driven.accounts.iter().flatten().copied().collect();
    let number = guarded.number.load(Ordering::Relaxed);
    if number != grants.len() as u64 {
        return Verdict::Off(format!("{} guarded increments made {number}", grants.len()));
    }
    grants.sort_by_key(|&(_, found)| found);
    if let Some(pair) = grants.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Verdict::Off(format!("fencing token {} was granted after {}", pair[1].0, pair[0].0));
    }
    Verdict::Right
}
