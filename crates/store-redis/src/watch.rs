//! Being told that an item has changed: a connection of its own on which the server tracks what was read.
//!
//! Source: "Client-side caching", Redis documentation (`CLIENT TRACKING`, RESP3): the server remembers which keys a connection read, and pushes
//! one `invalidate` when one of them is changed, deleted, expired or evicted, whoever did it. Writers send nothing for it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use larder_core::{Cas, Error, ErrorKind, Op, Reply, Result, Verb};
use larder_net::Backoff;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, PushKind, RedisResult, Value, cmd};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::task::AbortHandle;

use crate::counters::{Counters, count};
use crate::layout::{HEADER_BYTES, expected};
use crate::node::{Dialled, Node};
use crate::place::physical;
use crate::traffic::Traffic;

/// How often it is looked at whether anything came over a connection on which somebody waits. Silence is what a wait is used to, so a server that is gone without
/// a word is told by a ping alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An item to be watched: its key as Redis sees it, and the token it was read with.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) key: Vec<u8>,
    pub(crate) seen: Option<Cas>,
}

impl Watched {
    /// What an op watches; `None` for another op.
    pub(crate) fn of(op: &Op) -> Option<Watched> {
        match op.verb {
            Verb::Watch { seen } => Some(Watched { key: physical(op).into_owned(), seen }),
            _ => None,
        }
    }
}

/// Whether an op is a watch. A batch of watches alone runs on the connection that tracks.
pub(crate) fn is_watch(op: &Op) -> bool {
    matches!(op.verb, Verb::Watch { .. })
}

/// The watching connection of a node; none before the first watch.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    kept: tokio::sync::Mutex<Kept>,
    /// The server refuses `CLIENT TRACKING`: it is not asked again.
    refused: AtomicBool,
}

/// A connection, or why there is none.
#[derive(Debug, Default)]
struct Kept {
    link: Option<Arc<Link>>,
    /// When it was opened, until it has ended.
    opened: Option<Dialled>,
    /// Dials in a row that failed, or of which nothing came.
    failures: u32,
    /// When the next dial may be, and what whoever would wait is told until then.
    down: Option<(Instant, Error)>,
}

impl Kept {
    /// The connection that lives, if there is one.
    ///
    /// # Errors
    /// Where there is none, and it is too early for the next dial.
    fn link(&mut self) -> Result<Option<Arc<Link>>> {
        if let Some(link) = self.link.as_ref().filter(|link| !link.waiting.has_ended()) {
            return Ok(Some(link.clone()));
        }
        match self.opened.take() {
            Some(opened) if opened.was_barren() => {
                self.failed(Error::new(ErrorKind::Unavailable, "the connection ended before it told of anything"));
            }
            Some(_) => self.failures = 0,
            None => {}
        }
        match &self.down {
            Some((until, error)) if Instant::now() < *until => Err(error.clone()),
            _ => Ok(None),
        }
    }

    fn failed(&mut self, error: Error) {
        self.down = Some((Instant::now() + Backoff::REDIAL.wait(self.failures), error));
        self.failures = self.failures.saturating_add(1);
    }
}

/// A connection that tracks, closed when it is dropped.
struct Link {
    conn: MultiplexedConnection,
    waiting: Arc<Waiting>,
    traffic: Arc<Traffic>,
    /// The task that owns the socket.
    task: AbortHandle,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link {
    /// Ends it, and all who wait.
    fn close(&self) {
        self.task.abort();
        self.waiting.end();
    }

    /// Whether anything comes over it within a time: the answer to a ping, or whatever else.
    async fn answers(&self, patience: Duration) -> bool {
        let received = self.traffic.received_bytes();
        let mut conn = self.conn.clone();
        let answered = tokio::time::timeout(patience, conn.send_packed_command(&cmd("PING"))).await;
        matches!(answered, Ok(Ok(_))) || self.traffic.received_bytes() != received
    }
}

/// Closes a connection on which somebody waits once nothing has come over it for a whole [`LOOK_EVERY`], and then for `patience` not even the answer to a ping:
/// who waits is held up by silence for two [`LOOK_EVERY`] and `patience` at the most. Runs until the connection has ended.
async fn keep(link: Weak<Link>, patience: Duration, counters: Arc<Counters>) {
    let mut received = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(link) = link.upgrade().filter(|link| !link.waiting.has_ended()) else { return };
        let before = received.replace(link.traffic.received_bytes());
        if before == received && link.waiting.is_awaited() && !link.answers(patience).await {
            count(&counters.poisoned, 1);
            return link.close();
        }
    }
}

/// Who waits for which key.
#[derive(Debug, Default)]
struct Waiting {
    /// Protects the keys and their waiters; held for a look-up, never across an await.
    keys: Mutex<HashMap<Vec<u8>, Arc<Notify>>>,
    /// Somebody has begun to wait since it was last looked at.
    begun: AtomicBool,
    /// The connection has ended, and with it what the server remembers.
    ended: AtomicBool,
}

impl Waiting {
    /// What the server pushes. Also called when the connection ends.
    fn told(&self, push: &PushInfo) {
        match push.kind {
            PushKind::Invalidate => match push.data.first() {
                Some(Value::Array(keys)) => {
                    let waiting = self.keys.lock();
                    keys.iter()
                        .filter_map(|key| waiting.get(bytes_of(key)?))
                        .for_each(|notify| notify.notify_waiters());
                }
                // All of them: a flush.
                _ => self.wake_all(),
            },
            PushKind::Disconnection => self.end(),
            _ => {}
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.keys.lock().values().for_each(|notify| notify.notify_waiters());
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether somebody waits, or has begun to since this was last asked.
    fn is_awaited(&self) -> bool {
        self.begun.swap(false, Ordering::Relaxed) || !self.keys.lock().is_empty()
    }
}

/// A waiter for some keys; forgets those that nobody else waits for when it is dropped.
struct Waiter<'a> {
    waiting: &'a Waiting,
    keys: Vec<(&'a [u8], Arc<Notify>)>,
    told: Vec<Pin<Box<OwnedNotified>>>,
}

impl<'a> Waiter<'a> {
    /// Whatever changes from now on wakes it.
    fn new(waiting: &'a Waiting, items: &'a [Watched]) -> Waiter<'a> {
        waiting.begun.store(true, Ordering::Relaxed);
        let mut all = waiting.keys.lock();
        let notify_of = |item: &'a Watched| (&item.key[..], all.entry(item.key.clone()).or_default().clone());
        let keys: Vec<_> = items.iter().map(notify_of).collect();
        let told = keys.iter().map(|(_, notify)| Box::pin(notify.clone().notified_owned())).collect();
        drop(all);
        Waiter { waiting, keys, told }
    }

    /// Which of them was the first.
    async fn first(&mut self) -> usize {
        poll_fn(|cx| {
            let is_told = |told: &mut Pin<Box<OwnedNotified>>| told.as_mut().poll(cx).is_ready();
            self.told.iter_mut().position(is_told).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.told.clear();
        let mut all = self.waiting.keys.lock();
        for (key, notify) in self.keys.drain(..) {
            // The map's own, and this one.
            if Arc::strong_count(&notify) <= 2 {
                all.remove(key);
            }
        }
    }
}

impl Watcher {
    /// Waits until one of the items is another, or the deadline. **Round trips: 1**, 2 to 3 more for the first, which opens the connection.
    ///
    /// # Errors
    /// Where they cannot be watched: the server cannot be reached, or refuses. Of one that cannot be reached all are told so, without a dial, until it is time for the next.
    pub(crate) async fn watch(&self, node: &Arc<Node>, items: &[Watched], deadline: Instant) -> Result<Vec<Reply>> {
        if self.refused.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unsupported, "the server tracks no keys"));
        }
        let Ok(link) = tokio::time::timeout_at(deadline.into(), self.link(node)).await else {
            return Ok(vec![Reply::Unchanged; items.len()]);
        };
        let link = link?;
        let mut waiter = Waiter::new(&link.waiting, items);
        if link.waiting.has_ended() {
            return Ok(all_changed(items));
        }
        let mut pipeline = Pipeline::with_capacity(2 * items.len());
        for item in items {
            pipeline.cmd("GETRANGE").arg(&item.key).arg(0).arg(HEADER_BYTES - 1);
            pipeline.cmd("STRLEN").arg(&item.key);
        }
        let mut conn = link.conn.clone();
        let looked = conn.send_packed_commands(&pipeline, 0, 2 * items.len());
        let Ok(answers) = tokio::time::timeout_at(deadline.into(), looked).await else {
            return Ok(vec![Reply::Unchanged; items.len()]);
        };
        let answers =
            answers.map_err(|error| Error::new(ErrorKind::Unavailable, format!("a watch failed: {error}")))?;
        let mut changed = Vec::with_capacity(items.len());
        for (item, answers) in items.iter().zip(answers.chunks(2)) {
            changed.push(is_another(item, answers)?);
        }
        if !changed.contains(&true)
            && let Ok(first) = tokio::time::timeout_at(deadline.into(), waiter.first()).await
        {
            changed[first] = true;
            if link.waiting.has_ended() {
                return Ok(all_changed(items));
            }
        }
        let told = |changed| if changed { Reply::Changed } else { Reply::Unchanged };
        Ok(changed.into_iter().map(told).collect())
    }

    /// The connection, opened where there is none that lives.
    async fn link(&self, node: &Arc<Node>) -> Result<Arc<Link>> {
        let mut kept = self.kept.lock().await;
        if let Some(link) = kept.link()? {
            return Ok(link);
        }
        let opened = self.open(node).await;
        match &opened {
            Ok(link) => {
                kept.opened = Some(Dialled::now(link.traffic.clone()));
                kept.link = Some(link.clone());
            }
            Err(error) => kept.failed(error.clone()),
        }
        opened
    }

    async fn open(&self, node: &Arc<Node>) -> Result<Arc<Link>> {
        let waiting = Arc::new(Waiting::default());
        let (told, ends) = (waiting.clone(), waiting.clone());
        let opened = node.open_pushed(move |push| told.told(&push), move || ends.end()).await?;
        let (mut conn, traffic, task) = opened;
        let link = Arc::new(Link { conn: conn.clone(), waiting, traffic, task });
        let limit = node.config.connect_timeout;
        let mut track = cmd("CLIENT");
        let asked = conn.send_packed_command(track.arg("TRACKING").arg("ON"));
        let begun = tracked(tokio::time::timeout(limit, asked).await.ok());
        if begun.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
            self.refused.store(true, Ordering::Relaxed);
        }
        begun?;
        node.runtime.spawn(keep(Arc::downgrade(&link), node.config.timeout * 2, node.counters.clone()));
        Ok(link)
    }

    /// Closes the connection, if there is one.
    pub(crate) fn close(&self) {
        // Whoever holds it opens one, and is about to be dropped with the node.
        if let Some(link) = self.kept.try_lock().ok().and_then(|mut kept| kept.link.take()) {
            link.close();
        }
    }
}

/// What a server said, in time or not, when it was asked to track.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where it says that it does not; another where it did not say so: the connection ended, it is busy for now. Then it is asked again.
fn tracked(answered: Option<RedisResult<Value>>) -> Result<()> {
    let refusal = match answered {
        Some(Ok(Value::Okay)) => return Ok(()),
        Some(Ok(Value::ServerError(error))) => {
            let refused = crate::codec::refused(&error);
            if refused.kind() == ErrorKind::Unavailable {
                return Err(refused);
            }
            refused.detail().to_owned()
        }
        Some(Ok(other)) => format!("it answered {other:?}"),
        Some(Err(error)) => {
            let detail = format!("the connection ended before the server tracked keys: {error}");
            return Err(Error::new(ErrorKind::Unavailable, detail).source(error));
        }
        None => return Err(Error::new(ErrorKind::Timeout, "the server did not answer whether it tracks keys")),
    };
    Err(Error::new(ErrorKind::Unsupported, format!("the server tracks no keys (CLIENT TRACKING: {refusal})")))
}

fn all_changed(items: &[Watched]) -> Vec<Reply> {
    vec![Reply::Changed; items.len()]
}

/// Whether the item is another than the one that was read, by its first bytes and its length.
fn is_another(item: &Watched, answers: &[Value]) -> Result<bool> {
    let [head, Value::Int(length)] = answers else { return Err(refused(answers)) };
    let head = bytes_of(head).ok_or_else(|| refused(answers))?;
    Ok(match item.seen {
        None => *length != 0,
        Some(cas) => match expected(cas) {
            Some((was, bytes)) => head != was || u64::try_from(*length) != Ok(bytes),
            // A token of another store.
            None => true,
        },
    })
}

/// A key of another type, a slot that is served elsewhere: what an op on that key would be told.
fn refused(answers: &[Value]) -> Error {
    let said = answers.iter().find_map(|answer| match answer {
        Value::ServerError(error) => Some(crate::codec::refused(error)),
        _ => None,
    });
    said.unwrap_or_else(|| {
        let detail = format!("the server did not tell what a watched key holds: {answers:?}");
        Error::new(ErrorKind::Protocol, detail)
    })
}

fn bytes_of(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind as Fault, RedisError, parse_redis_value};

    use super::*;

    #[test]
    fn only_a_server_that_says_so_tracks_nothing() {
        let said = |line: &[u8]| tracked(Some(parse_redis_value(line))).map_err(|error| error.kind());
        assert_eq!(said(b"+OK\r\n"), Ok(()));
        for refusal in [
            &b"-NOPERM User joe has no permissions to run the 'client|tracking' command\r\n"[..],
            b"-ERR unknown command 'CLIENT'\r\n",
            b"-ERR Unknown subcommand or wrong number of arguments for 'TRACKING'\r\n",
            b":1\r\n",
        ] {
            assert_eq!(said(refusal), Err(ErrorKind::Unsupported));
        }
        assert_eq!(said(b"-BUSY Redis is busy running a script\r\n"), Err(ErrorKind::Unavailable));
        let cut = tracked(Some(Err(RedisError::from((Fault::Io, "the connection ended")))));
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(tracked(None).unwrap_err().kind(), ErrorKind::Timeout);
    }
}
