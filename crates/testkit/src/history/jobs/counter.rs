//! The exact counter: every add once, every read between the bounds.

use larder_core::{Error, ErrorKind};
use larder_structures::Counter;

use super::outcome;
use crate::history::checks::count::{CounterOp, counts};
use crate::history::record::{Outcome, Recorder};
use crate::history::{Arena, Run, Verdict};

/// Adds from all clients, with reads between; then the final read.
pub(super) async fn run(arena: Arena, run: Run) -> Verdict {
    let mut verdict = Verdict::default();
    let name = format!("counter-{}", run.seed);
    if let Err(error) = Counter::open_or_create(&arena.quiet, &name).await {
        verdict.violations.push(format!("a counter could not be made on a quiet store: {error}"));
        return verdict;
    }
    let history = Recorder::default();
    let each = run.ops.div_ceil(arena.clients.len());
    let clients = arena.clients.iter().enumerate().map(|(client, store)| {
        let (store, name, history) = (store.clone(), name.clone(), history.clone());
        let mut rng = fastrand::Rng::with_seed(run.seed.wrapping_mul(31).wrapping_add(client as u64));
        tokio::spawn(async move {
            let mut told = Vec::new();
            let mut handle = None;
            for _ in 0..each {
                let counter = match &handle {
                    Some(counter) => counter,
                    None => match Counter::open(&store, &name).await {
                        Ok(counter) => handle.insert(counter),
                        Err(error) => {
                            told.push(error);
                            continue;
                        }
                    },
                };
                let invoked = history.now();
                if rng.u8(..4) == 0 {
                    let read = counter.get().await;
                    told.extend(read.as_ref().err().map(kept));
                    let read = match outcome(read, |sum| sum) {
                        Outcome::Ok(sum) => Outcome::Ok(sum as u64),
                        _ => Outcome::Failed,
                    };
                    history.done(client, CounterOp::Get, invoked, read);
                } else {
                    let by = rng.u64(1..1_000);
                    let added = counter.add(by as i64).await;
                    told.extend(added.as_ref().err().map(kept));
                    history.done(client, CounterOp::Add(by), invoked, outcome(added, |_| 0));
                }
            }
            told
        })
    });
    let mut told = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        match client.await {
            Ok(errors) => told.extend(errors),
            Err(panic) => verdict.violations.push(format!("a client panicked: {panic}")),
        }
    }
    (arena.calm)().await;
    let events = history.take();
    verdict.operations = events.len() as u64;
    verdict.unknown = events.iter().filter(|event| event.outcome == Outcome::Unknown).count() as u64;
    let last = match Counter::open(&arena.quiet, &name).await {
        Ok(counter) => counter.get().await,
        Err(error) => Err(error),
    };
    told.extend(last.as_ref().err().map(kept));
    verdict.judge_losses(&arena.caused, &told);
    match last {
        Ok(last) => verdict.violations.extend(counts(&events, last as u64)),
        Err(error) if is_loss(&error) => {}
        Err(error) => verdict.violations.push(format!("the final read failed: {error}")),
    }
    verdict
}

/// What an error says, kept beside the result that it came in.
fn kept(error: &Error) -> Error {
    Error::new(error.kind(), error.detail())
}

fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack | ErrorKind::Absent)
}
