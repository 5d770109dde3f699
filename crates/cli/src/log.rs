//! `larder log …`

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueHint};
use larder::log::{Cursor, Event, Events, Gap, GapCause, Tail};
use larder::{Error, EventLog};
use serde_json::{Value, json};

use crate::args::{Named, positive_time, time};
use crate::exit::{Exit, Failure, say};
use crate::half::{self, Half};
use crate::input::{Source, read_batches};
use crate::output::bytes;
use crate::session::Session;

/// How many events `tail` begins with, if nothing else was said.
const LINES: usize = 10;

#[derive(Debug, Subcommand)]
pub(crate) enum LogVerb {
    /// Put events into the log, which is created if need be
    #[command(after_help = PUT_HELP)]
    Put(LogPut),
    /// Print the events of a range of time
    #[command(after_help = FETCH_HELP)]
    Fetch(LogFetch),
    /// Print the latest events, and follow what comes
    #[command(after_help = TAIL_HELP)]
    Tail(LogTail),
}

#[derive(Args, Debug)]
pub(crate) struct LogPut {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The events; `-` reads them from standard input, one a line
    #[arg(required = true, value_name = "EVENT")]
    pub(crate) events: Vec<OsString>,
    /// Their time; now if not given
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) at: Option<Moment>,
    /// How much time one chunk spans, if the log is created [default: a 24th of the retention]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) chunk: Option<Duration>,
    /// How long events are kept, if the log is created [default: 1 day]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) retention: Option<Duration>,
    /// Never create it: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LogFetch {
    #[command(flatten)]
    pub(crate) named: Named,
    /// From this time on; all that is kept if not given
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<Moment>,
    /// To this time, and with it
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<Moment>,
    /// Print the time before each event
    #[arg(long)]
    pub(crate) times: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LogTail {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Go on, and print events as they come
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// How many events to begin with [default: 10, with --cursor all]
    #[arg(long, short = 'n', value_name = "NUMBER")]
    pub(crate) lines: Option<usize>,
    /// Keep the place in this file: go on from it if it is there, and write it after each look
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) cursor: Option<PathBuf>,
    /// With --follow, the longest pause between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_time)]
    pub(crate) every: Duration,
    /// Print the time before each event
    #[arg(long)]
    pub(crate) times: bool,
}

const PUT_HELP: &str = "\
Prints nothing. An event is any bytes, on standard input any but the end of a line. TIME is a time such as 2026-11-21T14:00:00Z, an age \
such as 5m (five minutes ago), or @ and milliseconds since 1970. A time that is older than the retention, or more than five minutes \
ahead, is refused, and nothing is put. An error says how many events of standard input were put before it; if any were, the exit code is 7, as all of them once more would put these twice.

Round trips: open 1 (3 when the log is created), put 1, 2 for the first event of a chunk; 2 in all, 3 for the first of a chunk, 5 when the log is created.

Examples:
  larder log put audit 'ann signed in'
  larder log put audit 'ann signed out' --at 2026-11-21T14:00:00Z
  larder log put jobs started --retention 7d
  tail -f app.log | larder log put app -";

const FETCH_HELP: &str = "\
Prints the events in the order of their time, one a line. TIME is as for `put`. Where events of the range were lost (the server evicted \
them, or was restarted), the others are printed, each gap is told on standard error, and the exit code is 4; with --json a gap is a line \
{\"gap\": …} among the others.

Round trips: open 1, the list of chunks 1, the events 1 (one a batch of 512 parts that they fill).

Examples:
  larder log fetch audit
  larder log fetch audit --since 1h --times
  larder log fetch audit --since 2026-11-21T00:00:00Z --until 2026-11-21T23:59:59.999Z
  larder --json log fetch audit --since 5m | jq -r .event";

const TAIL_HELP: &str = "\
Prints the latest events; with --follow goes on until it is interrupted, and prints each event once, late ones too, at the latest --every \
and a look after it was put. A gap is told once, on standard error (with --json as a line {\"gap\": …}); without --follow the exit code is then 4.

With --cursor it begins where the last call with that file stopped. The file is written after the events were printed: who is killed in between \
prints them again. What one that was killed while it wrote left beside it (FILE.<16 hexadecimal digits>.new) is removed by the next.

Round trips: open 1, the first look 2, a look that finds nothing 1, one that finds something 2; 3 in all without --follow.

Examples:
  larder log tail audit
  larder log tail audit -f --times
  larder log tail audit --cursor /var/lib/audit.cursor >> audit.txt";

/// A time that was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Milliseconds since the Unix epoch.
    At(u64),
    /// So long ago.
    Ago(Duration),
}

/// A moment: an age, `@` and milliseconds, or a date.
fn moment(text: &str) -> Result<Moment, String> {
    if let Some(ms) = text.strip_prefix('@') {
        let wrong = || "behind @ there are the milliseconds since 1970".to_owned();
        return ms.parse().map(Moment::At).map_err(|_| wrong());
    }
    if let Ok(age) = time(text) {
        return Ok(Moment::Ago(age));
    }
    let at = humantime::parse_rfc3339_weak(text).ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let at = at.and_then(|at| u64::try_from(at.as_millis()).ok());
    at.map(Moment::At).ok_or_else(|| "a time is such as 2026-11-21T14:00:00Z, 5m (ago) or @1700000000000".to_owned())
}

impl Moment {
    fn ms(self, now_ms: u64) -> u64 {
        match self {
            Moment::At(ms) => ms,
            Moment::Ago(age) => now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

pub(crate) async fn run(session: &Session, verb: LogVerb) -> Result<Exit, Failure> {
    match verb {
        LogVerb::Put(args) => put(session, &args).await,
        LogVerb::Fetch(args) => fetch(session, &args).await,
        LogVerb::Tail(args) => tail(session, &args).await,
    }
}

async fn put(session: &Session, args: &LogPut) -> Result<Exit, Failure> {
    let source = Source::of(&args.events)?;
    let mut options = EventLog::options().timeout(session.timeout);
    options = args.chunk.map_or(options.clone(), |chunk| options.chunk(chunk));
    options = args.retention.map_or(options.clone(), |retention| options.retention(retention));
    let log = if args.existing {
        options.open(&session.store, args.named.bytes()).await.map_err(|error| explained(error, &args.named))?
    } else {
        options.open_or_create(&session.store, args.named.bytes()).await?
    };
    let time_ms = || args.at.map_or(log.now_ms(), |at| at.ms(log.now_ms()));
    if let Source::Typed(events) = source {
        let time_ms = time_ms();
        log.put_all(events.iter().map(|event| (time_ms, event))).await?;
        return Ok(Exit::Ok);
    }
    // One batch after the other: events of one moment keep their order.
    let mut batches = read_batches();
    let mut done = 0;
    while let Some(batch) = batches.recv().await {
        let so_far = |failure: Failure| failure.after_some(done, "events of standard input are put");
        let batch = batch.map_err(so_far)?;
        let time_ms = time_ms();
        let put = log.put_all(batch.iter().map(|event| (time_ms, event))).await;
        put.map_err(|error| so_far(error.into()))?;
        done += batch.len();
    }
    Ok(Exit::Ok)
}

async fn open(session: &Session, named: &Named) -> Result<EventLog, Failure> {
    let log = EventLog::options().timeout(session.timeout).open(&session.store, named.bytes()).await;
    log.map_err(|error| explained(error, named))
}

fn explained(error: Error, named: &Named) -> Failure {
    let hint = format!("`larder log put {} EVENT` creates it", named.name.to_string_lossy());
    Failure::from(error).hint_if_absent(hint)
}

async fn fetch(session: &Session, args: &LogFetch) -> Result<Exit, Failure> {
    let log = open(session, &args.named).await?;
    let now_ms = log.now_ms();
    let since_ms = args.since.map_or(0, |since| since.ms(now_ms));
    let until_ms = args.until.map_or(u64::MAX, |until| until.ms(now_ms));
    let (events, gaps) = log.fetch(since_ms..=until_ms).await?.with_gaps();
    Ok(print(session, args.times, &events, &gaps)?)
}

async fn tail(session: &Session, args: &LogTail) -> Result<Exit, Failure> {
    let log = open(session, &args.named).await?;
    let kept = args.cursor.as_deref().map(kept).transpose()?.flatten();
    let lines = match (args.lines, &args.cursor) {
        (None, None) => Some(LINES),
        (lines, _) => lines,
    };
    let mut tail = log.tail(kept.unwrap_or_default())?.every(args.every);
    let (events, gaps) = match lines {
        Some(lines) => last_of(&mut tail, lines).await?,
        None => tail.poll().await?.with_gaps(),
    };
    let mut exit = print(session, args.times, &events, &gaps)?;
    args.cursor.iter().for_each(|file| half::sweep(file));
    loop {
        if let Some(file) = &args.cursor {
            keep(file, &tail)?;
        }
        if !args.follow && !tail.is_behind() {
            return Ok(exit);
        }
        let found = if args.follow { next(&mut tail).await? } else { tail.poll().await? };
        let (events, gaps) = found.with_gaps();
        let more = print(session, args.times, &events, &gaps)?;
        exit = if more == Exit::Lost { more } else { exit };
    }
}

/// The last events of all that is there, look by look: a log may be larger than the memory of this process.
async fn last_of(tail: &mut Tail, lines: usize) -> Result<(Vec<Event>, Vec<Gap>), Failure> {
    let (mut events, mut gaps) = (Vec::new(), Vec::new());
    loop {
        let (more, lost) = tail.poll().await?.with_gaps();
        gaps.extend(lost);
        events.extend(more);
        events.drain(..events.len().saturating_sub(lines));
        if !tail.is_behind() {
            return Ok((events, gaps));
        }
    }
}

/// What comes next; a store that is away for a while is waited for, and said to be.
async fn next(tail: &mut Tail) -> Result<Events, Failure> {
    const PAUSE: Duration = Duration::from_secs(1);
    loop {
        match tail.next().await {
            Err(error) if is_passing(&error) => say(&format!("warning: {error}; trying again")),
            outcome => return Ok(outcome?),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// True where the store may answer another time.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), larder::ErrorKind::Unavailable | larder::ErrorKind::Timeout)
}

/// The cursor in a file, if there is one.
fn kept(file: &Path) -> Result<Option<Cursor>, Failure> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(Cursor::from_bytes(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::usage(format!("the file {} cannot be read: {error}", file.display()))),
    }
}

/// Keeps the cursor in a file, whole or not at all.
fn keep(file: &Path, tail: &Tail) -> Result<(), Failure> {
    let write = || {
        let mut half = Half::beside(file, 0o666)?;
        half.file.write_all(&tail.cursor().to_bytes())?;
        half.replace(file)
    };
    write().map_err(|error| Failure::usage(format!("the file {} cannot be written: {error}", file.display())))
}

/// Prints events, and tells the gaps.
fn print(session: &Session, times: bool, events: &[Event], gaps: &[Gap]) -> io::Result<Exit> {
    let mut out = BufWriter::new(io::stdout().lock());
    for gap in gaps {
        if session.out.json {
            writeln!(out, "{}", json!({"gap": gap_object(gap)}))?;
        } else {
            say(&format!("lost: events of {} to {} ({})", date(gap.first_ms), date(gap.last_ms), cause(gap)));
        }
    }
    for Event { time_ms, bytes: event } in events {
        if session.out.json {
            writeln!(out, "{}", json!({"time_ms": time_ms, "event": bytes(event)}))?;
            continue;
        }
        if times {
            write!(out, "{} ", date(*time_ms))?;
        }
        out.write_all(event)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(if gaps.is_empty() { Exit::Ok } else { Exit::Lost })
}

fn cause(gap: &Gap) -> &'static str {
    match gap.cause {
        GapCause::Replaced => "replaced",
        _ => "missing",
    }
}

fn gap_object(gap: &Gap) -> Value {
    json!({"first_ms": gap.first_ms, "last_ms": gap.last_ms, "part": gap.part, "cause": cause(gap)})
}

/// A time as `put --at` takes it.
fn date(time_ms: u64) -> String {
    /// The end of the year 9999: what comes later is no date.
    const DATE_MS_MAX: u64 = 253_402_300_799_999;
    if time_ms > DATE_MS_MAX {
        return format!("@{time_ms}");
    }
    let at: SystemTime = UNIX_EPOCH + Duration::from_millis(time_ms);
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_ages_or_milliseconds() {
        assert_eq!(moment("@12"), Ok(Moment::At(12)));
        assert_eq!(moment("5m"), Ok(Moment::Ago(Duration::from_secs(300))));
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(Moment::At(1_500)));
        assert_eq!(moment("1970-01-02 00:00:00"), Ok(Moment::At(86_400_000)));
        for wrong in ["", "@", "@x", "yesterday", "1969-01-01T00:00:00Z"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Moment::Ago(Duration::from_secs(5)).ms(7_000), 2_000);
        assert_eq!(date(1_500), "1970-01-01T00:00:01.500Z");
        assert_eq!(moment(&date(u64::MAX)), Ok(Moment::At(u64::MAX)));
    }
}
