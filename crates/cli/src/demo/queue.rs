//! A queue or a stack: pushes, claims, acknowledges and gives back; every item must be done with once, and nothing may be left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder::QueueOptions;

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::args::Subject;
use crate::exit::Failure;
use crate::queue::{Line, Which};

/// Longer than any demo runs: whatever comes twice was given back.
const LEASE: Duration = Duration::from_secs(3_600);

/// What a worker did: how many it pushed, and which it was done with.
type Account = (u64, Vec<Vec<u8>>);

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let options = QueueOptions::default().timeout(stage.timeout);
    let which = if stage.subject == Subject::Stack { Which::Stack } else { Which::Queue };
    let queues = stage.handles(async |store| Line::make(which, store, stage.name.as_bytes(), &options).await).await?;
    let driven = stage.drive(queues.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => (check(stage, &queues, driven).await?, driven.accounts.iter().map(|(pushed, _)| pushed).sum()),
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements, verdict).await
}

/// Pushes and takes until the turns are over.
async fn work(worker: usize, queue: Line, turns: Arc<Turns>) -> larder::Result<Account> {
    let (mut pushed, mut done) = (0u64, Vec::new());
    while turns.take() {
        if fastrand::bool() {
            queue.push_all(vec![item(worker, pushed)]).await?;
            pushed += 1;
        } else if let Some(claim) = queue.claim(LEASE).await? {
            if fastrand::u8(..8) == 0 {
                claim.release().await?;
            } else {
                claim.ack().await?;
                done.push(claim.item().to_vec());
            }
        }
        turns.done();
    }
    Ok((pushed, done))
}

/// An item that is no text.
fn item(worker: usize, number: u64) -> Vec<u8> {
    let mut bytes = vec![0xff, b'\n'];
    bytes.extend_from_slice(&worker.to_le_bytes()[..2]);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

/// What is left and what was done must be what was pushed, each once.
async fn check(stage: &Stage, queues: &[Line], driven: &Driven<Account>) -> Result<Verdict, Failure> {
    let Some(queue) = queues.first() else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        queue.pop().await?;
        queue.push_all(vec![b"behind its back".to_vec()]).await?;
    }
    let pushed: u64 = driven.accounts.iter().map(|(pushed, _)| pushed).sum();
    let done: Vec<&Vec<u8>> = driven.accounts.iter().flat_map(|(_, done)| done).collect();
    let len = queue.len().await?;
    if len + done.len() as u64 != pushed {
        return Ok(Verdict::Off(format!("{len} are left and {} are done, of {pushed}", done.len())));
    }
    let mut times: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for item in done {
        *times.entry(item.clone()).or_default() += 1;
    }
    while let Some(item) = queue.pop().await? {
        *times.entry(item.to_vec()).or_default() += 1;
    }
    // The next write of a handle removes the markers of the claims that it has ended.
    for queue in queues {
        queue.push_all(vec![b"last".to_vec()]).await?;
        queue.pop().await?;
    }
    let repeated = times.values().filter(|&&times| times > 1).count();
    let strange = times.keys().filter(|item| item.first() != Some(&0xff)).count();
    if repeated > 0 || strange > 0 || times.len() as u64 != pushed {
        let workers = driven.accounts.len();
        let detail = format!(
            "of {pushed} items by {workers} workers {} came, {repeated} more than once, {strange} of nobody's",
            times.len()
        );
        return Ok(Verdict::Off(detail));
    }
    Ok(Verdict::Right)
}
