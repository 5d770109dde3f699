//! The event log: clients put, now and at times before, fetch, and follow it by tails of their own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_structures::EventLog;
use larder_structures::log::{Cursor, Events, Gap, Tail};

use super::drive::{self, Client, opener, play};
use crate::history::check::log::{Allowed, LogOp, LogTold, Missed, check};
use crate::history::recorder::Recorder;
use crate::history::{Arena, Boxed, Run, Verdict, clock};

const CHUNK: Duration = Duration::from_secs(3_600);
const RETENTION: Duration = Duration::from_secs(10 * 24 * 3_600);
/// Looks of a tail until it has told all.
const LOOKS_MAX: usize = 50;

type LogClient = Client<EventLog, LogOp, LogTold>;

/// The tails of the clients, by client, as they stood when these were done.
type Tails = Arc<Mutex<Vec<(usize, Tail)>>>;

pub(super) fn log(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || EventLog::options().chunk(CHUNK).retention(RETENTION).clock(clock());
        let open = opener!(options(), drive::name("log", run));
        let tails = Tails::default();
        let mut ended = play("event log", arena, run, open, |client| work(client, tails.clone())).await;
        // An event stands in its part before that is listed.
        ended.ends_midway = |op| matches!(op, LogOp::PutAt(..));
        let calm_from = ended.history.tick();
        ended
            .read(LogOp::Fetch, |log| async move { told(log.fetch(..).await?, false) })
            .await
            .inspect(|last| note_gaps(last, |error| ended.history.note(error)));
        if let Some(log) = &ended.fresh {
            let mut tails = std::mem::take(&mut *tails.lock().unwrap_or_else(PoisonError::into_inner));
            tails.sort_by_key(|(client, _)| *client);
            for (client, tail) in tails {
                follow(&ended.history, client, taken_up(log, client, tail)).await;
            }
            if let Ok(tail) = log.tail(Cursor::default()) {
                follow(&ended.history, drive::LAST, tail).await;
            }
        }
        ended.judge(|calls, excuses| {
            let (set_back, whole_until, late) = (excuses.set_back, excuses.whole_until, excuses.late);
            check(calls, Allowed { set_back, whole_until, late, calm_from })
        })
    })
}

/// Every other client dies, and another process takes up what it had kept of its cursor.
fn taken_up(log: &EventLog, client: usize, tail: Tail) -> Tail {
    if client.is_multiple_of(2) {
        return tail;
    }
    let kept = tail.cursor().to_bytes();
    Cursor::from_bytes(&kept).and_then(|cursor| log.tail(cursor)).unwrap_or(tail)
}

/// Looks until all is told.
async fn follow(history: &Recorder<LogOp, LogTold>, client: usize, mut tail: Tail) {
    for _ in 0..LOOKS_MAX {
        let invoked = history.tick();
        let looked = look(&mut tail).await;
        match history.ended(client, LogOp::Tail, invoked, looked) {
            Ok(looked) => {
                note_gaps(&looked, |error| history.note(error));
                if !looked.is_behind {
                    break;
                }
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn note_gaps(told: &LogTold, note: impl FnOnce(&Error)) {
    if !told.gaps.is_empty() {
        note(&Error::new(ErrorKind::Lost, "a gap"));
    }
}

fn told(events: Events, is_behind: bool) -> Result<LogTold> {
    let (events, gaps) = events.with_gaps();
    let event = |event: &larder_structures::log::Event| {
        let value = event.bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        value.ok_or_else(|| Error::new(ErrorKind::Corrupt, "an event that nobody put"))
    };
    let gap = |gap: &Gap| Missed { first_ms: gap.first_ms, last_ms: gap.last_ms, part: gap.part };
    let events = events.iter().map(event).collect::<Result<_>>()?;
    Ok(LogTold { events, gaps: gaps.iter().map(gap).collect(), is_behind })
}

async fn look(tail: &mut Tail) -> Result<LogTold> {
    let events = tail.poll().await?;
    told(events, tail.is_behind())
}

async fn work(mut client: LogClient, tails: Tails) {
    let log = client.handle.clone();
    let Ok(mut tail) = log.tail(Cursor::default()) else { return };
    for call in 0..client.ops as u64 {
        let read = match client.rng.u8(..12) {
            0 => client.history.call(client.number, LogOp::Fetch, async { told(log.fetch(..).await?, false) }).await,
            1 | 2 => client.history.call(client.number, LogOp::Tail, look(&mut tail)).await,
            3 => window(&mut client, &log).await,
            kind => {
                put(&mut client, &log, call, kind).await;
                None
            }
        };
        if let Some(read) = read {
            note_gaps(&read, |error| client.history.note(error));
        }
    }
    // Late frames may come once more, and no event twice.
    for _ in 0..3 {
        if let Some(read) = client.history.call(client.number, LogOp::Tail, look(&mut tail)).await {
            note_gaps(&read, |error| client.history.note(error));
        }
    }
    tails.lock().unwrap_or_else(PoisonError::into_inner).push((client.number, tail));
}

/// Reads some of the time that events are put at, by a clock that others need not agree with.
async fn window(client: &mut LogClient, log: &EventLog) -> Option<LogTold> {
    let chunk_ms = CHUNK.as_millis() as u64;
    let first = log.now_ms() - client.rng.u64(..5 * chunk_ms);
    let last = first + client.rng.u64(..2 * chunk_ms);
    let fetch = async { told(log.fetch(first..=last).await?, false) };
    client.history.call(client.number, LogOp::Window(first, last), fetch).await
}

async fn put(client: &mut LogClient, log: &EventLog, call: u64, kind: u8) {
    let event = (client.number as u64) << 32 | call;
    let mut bytes = event.to_be_bytes().to_vec();
    // Some fill parts.
    bytes.resize(if kind == 4 { 2_000.min(log.event_bytes_max()) } else { 8 + usize::from(kind) }, b'.');
    let chunk_ms = CHUNK.as_millis() as u64;
    let time_ms = log.now_ms() - if client.rng.u8(..4) == 0 { chunk_ms * client.rng.u64(1..4) } else { 0 };
    let put = async { log.put_at(time_ms, &bytes).await.map(|()| LogTold::default()) };
    client.history.call(client.number, LogOp::PutAt(event, time_ms), put).await;
}
