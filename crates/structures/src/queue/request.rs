//! What a call asks the store for: what it cannot do without, and what it looks at on the way, which keeps nobody from the rest.
//!
//! Of a store of several servers a batch is answered when the slowest of them has answered. The state and the markers of claims stand on one; the segments anywhere. So
//! reads of segments on the way go in a batch of their own, at the same time, and are waited for only a moment longer than the rest.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Replies, Reply, Result, ambient};

use super::consume::Consumer;
use super::push::Answers;

/// For so long what is looked at on the way is waited for when the rest has been answered.
pub(super) const LOOK_WAIT: Duration = Duration::from_millis(100);
/// The same where somebody is told that there is nothing unless it shows something.
pub(super) const LOOK_WAIT_MAX: Duration = Duration::from_secs(1);
/// For so long nothing is looked at on the way after a server did not answer.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// What an op of a batch was for.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    State,
    Segment(u64),
    Link(u64),
    Marker(u64),
    /// The marker of a claim of this call.
    Own(u64),
    Other,
}

/// A batch, and what each of its ops is for.
#[derive(Default)]
pub(super) struct Request {
    pub(super) batch: Batch,
    pub(super) asked: Vec<Asked>,
    /// So many ops come first that the call cannot do without.
    needed: usize,
}

/// The answer to an op.
pub(super) struct Answer {
    pub(super) asked: Asked,
    pub(super) is_needed: bool,
    pub(super) reply: Result<Reply>,
}

impl Request {
    pub(super) fn add(&mut self, asked: Asked, op: Op) {
        self.batch.push(op);
        self.asked.push(asked);
    }

    /// All that is there by now is needed; what comes behind it may fail.
    pub(super) fn need_these(&mut self) {
        self.needed = self.batch.len();
    }

    pub(super) fn truncate(&mut self, ops: usize) {
        self.batch.truncate(ops);
        self.asked.truncate(ops);
    }

    /// Takes out the reads of segments on the way, which may go to other servers.
    fn take_aside(&mut self) -> Request {
        let (mut rest, mut aside) = (Request { needed: self.needed, ..Request::default() }, Request::default());
        let ops = std::mem::take(&mut self.batch).into_iter().zip(self.asked.drain(..));
        for (at, (op, asked)) in ops.enumerate() {
            let is_aside = at >= self.needed && matches!(asked, Asked::Segment(_) | Asked::Link(_));
            if is_aside { &mut aside } else { &mut rest }.add(asked, op);
        }
        *self = rest;
        aside
    }

    fn answered(asked: Vec<Asked>, needed: usize, replies: Replies) -> impl Iterator<Item = Answer> {
        let mut replies = Answers::new(replies);
        asked.into_iter().enumerate().map(move |(at, asked)| Answer {
            asked,
            is_needed: at < needed,
            reply: replies.next(),
        })
    }
}

impl Consumer {
    /// Sends a request, and waits for so long for what is looked at on the way when the rest is there. An answer for each op, first those to what was needed. **Round trips: 1**; on a store
    /// of several servers what is looked at on the way is one more, at the same time.
    pub(super) async fn ask_for(&mut self, ctx: Ctx, mut request: Request, wait: Duration) -> Vec<Answer> {
        let aside = if self.engine.has_several_servers() { request.take_aside() } else { Request::default() };
        let Request { batch, asked, needed } = request;
        if aside.batch.is_empty() {
            let replies = self.engine.vigil.run(ctx, batch).await;
            return Request::answered(asked, needed, replies).collect();
        }
        let looks = aside.batch.len();
        let left = move || ctx.deadline.map(|deadline| deadline.saturating_duration_since(ambient::now()));
        // The rest is known by then: it is not to come too late for this.
        let wait = || left().map_or(wait, |left| wait.min(left / 2));
        let run = self.engine.vigil.run(ctx, batch);
        let (replies, seen) = both(run, async { self.engine.store.run(ctx, aside.batch).await }, wait).await;
        let seen = seen.unwrap_or_else(|| {
            let detail = "what is looked at on the way was not answered in time";
            let late = Error::new(ErrorKind::Timeout, detail).effect(Effect::NotApplied);
            (0..looks).map(|_| Err(late.clone())).collect()
        });
        if seen.iter().any(Result::is_err) {
            self.looks_from = Some(ambient::now() + LOOK_PAUSE);
        }
        Request::answered(asked, needed, replies).chain(Request::answered(aside.asked, 0, seen)).collect()
    }

    /// True if segments may be looked at on the way: not for a while after a server did not answer.
    pub(super) fn may_look(&self) -> bool {
        self.looks_from.is_none_or(|from| ambient::now() >= from)
    }
}

/// What the first comes to, and the second where it is done by then or within so long, which is asked then.
async fn both<T>(
    first: impl Future<Output = T>,
    second: impl Future<Output = T>,
    wait: impl FnOnce() -> Duration,
) -> (T, Option<T>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut other = None;
    let one = poll_fn(|cx| {
        let done = first.as_mut().poll(cx);
        if other.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(cx)
        {
            other = Some(done);
        }
        done
    })
    .await;
    if other.is_none() {
        other = tokio::time::timeout(wait(), second).await.ok();
    }
    (one, other)
}
