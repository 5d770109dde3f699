//! Queues and stacks.

use larder_core::StoreRef;
use larder_structures::{Queue, Stack};

use super::{LEASE, member};
use crate::Result;
use crate::structures::jobs::Job;

/// Items that are pushed at a time for those who take one at a time.
const PUSHED: usize = 1_000;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Push(Queue),
    /// And how many items it has.
    Take(Queue, usize),
    StackPush(Stack),
    StackPop(Stack, usize),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    Ok(match job {
        Job::QueuePush => Work::Push(Queue::open_or_create(store, name).await?),
        Job::QueueTake => Work::Take(Queue::open_or_create(store, name).await?, 0),
        Job::StackPush => Work::StackPush(Stack::open_or_create(store, name).await?),
        _ => Work::StackPop(Stack::open_or_create(store, name).await?, 0),
    })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        Ok(match self {
            Work::Push(queue) => {
                queue.push(member(0)).await?;
                true
            }
            Work::Take(queue, left) => {
                if *left == 0 {
                    queue.push_all((0..PUSHED).map(member)).await?;
                    *left = PUSHED;
                }
                *left -= 1;
                queue.claim(LEASE).await?.ok_or("a queue has lost its items")?.ack().await?;
                true
            }
            Work::StackPush(stack) => {
                stack.push(member(0)).await?;
                true
            }
            Work::StackPop(stack, left) => {
                if *left == 0 {
                    stack.push_all((0..PUSHED).map(member)).await?;
                    *left = PUSHED;
                }
                *left -= 1;
                stack.pop().await?.is_some_and(|item| item.starts_with(b"member:"))
            }
        })
    }
}
