//! Queues and stacks.

use larder_core::StoreRef;
use larder_structures::{Queue, Stack};

use super::{LEASE, member};
use crate::Result;
use crate::structures::jobs::Job;

/// Items that are pushed at a time for those who take one at a time.
const PUSHED: usize = 1_000;

/// With how many items it has, where they are taken.
#[derive(Clone)]
pub(in crate::structures) enum Work {
    Push(Queue),
    Take(Queue, usize),
    Pop(Queue, usize),
    StackPush(Stack),
    StackTake(Stack, usize),
    StackPop(Stack, usize),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    Ok(match job {
        Job::QueuePush => Work::Push(Queue::open_or_create(store, name).await?),
        Job::QueueTake => Work::Take(Queue::open_or_create(store, name).await?, 0),
        Job::QueuePop => Work::Pop(Queue::open_or_create(store, name).await?, 0),
        Job::StackPush => Work::StackPush(Stack::open_or_create(store, name).await?),
        Job::StackTake => Work::StackTake(Stack::open_or_create(store, name).await?, 0),
        _ => Work::StackPop(Stack::open_or_create(store, name).await?, 0),
    })
}

/// Counts an item that is taken; the items to push before, where none is left.
fn one_less(left: &mut usize) -> Option<impl Iterator<Item = &'static str>> {
    let items = (*left == 0).then(|| (0..PUSHED).map(member));
    *left = left.checked_sub(1).unwrap_or(PUSHED - 1);
    items
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
                if let Some(items) = one_less(left) {
                    queue.push_all(items).await?;
                }
                queue.claim(LEASE).await?.ok_or("a queue has lost its items")?.ack().await?;
                true
            }
            Work::Pop(queue, left) => {
                if let Some(items) = one_less(left) {
                    queue.push_all(items).await?;
                }
                queue.pop().await?.is_some_and(|item| item.starts_with(b"member:"))
            }
            Work::StackPush(stack) => {
                stack.push(member(0)).await?;
                true
            }
            Work::StackTake(stack, left) => {
                if let Some(items) = one_less(left) {
                    stack.push_all(items).await?;
                }
                stack.claim(LEASE).await?.ok_or("a stack has lost its items")?.ack().await?;
                true
            }
            Work::StackPop(stack, left) => {
                if let Some(items) = one_less(left) {
                    stack.push_all(items).await?;
                }
                stack.pop().await?.is_some_and(|item| item.starts_with(b"member:"))
            }
        })
    }
}
