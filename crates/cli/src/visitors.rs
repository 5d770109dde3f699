//! `larder visitors …`

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use larder::{ErrorKind, Visitors};
use serde_json::json;

use crate::args::{Named, positive_time};
use crate::exit::{Exit, Failure, say};
use crate::input::{Source, each_at_once, for_each_batch};
use crate::log::is_passing;
use crate::output::bytes;
use crate::run::{Forwarded, code_of_signal, print_unless_told};
use crate::session::Session;

/// How many figures a sparkline shows.
const SPARKS: usize = 40;

#[derive(Debug, Subcommand)]
pub(crate) enum VisitorsVerb {
    /// Count visitors in the window that is being filled
    #[command(after_help = HIT_HELP)]
    Hit(VisitorsHit),
    /// Print how many came in the last complete window, or in another
    #[command(after_help = "\
Prints a number. Before the first window is complete, and for a window that nobody hit, it is 0; one that was evicted is lost, exit code \
4, and so it is no 0. --interpolated goes evenly from the figure before that one to it while a period passes. --at tells of the window of a time: of the \
one that is being filled, or of one of the two before.

Round trips: open 1, get 1.

Examples:
  larder visitors get site
  larder visitors get site --interpolated
  larder visitors get site --at 2026-01-31T12:00:00Z")]
    Get(VisitorsGet),
    /// Print the figures again and again: at a terminal a live line with a sparkline, else a line each time
    #[command(after_help = "\
A line is: the time in seconds since 1970, the interpolated figure, that of the last complete window, and the window's that is being filled; `lost` \
where a window was evicted. With --json it is an object. It ends when it is interrupted, or after --count lines; where the server does not answer it says so on standard error, and tries again.

Round trips: open 1, and 3 each time.

Examples:
  larder visitors watch site
  larder visitors watch site --every 10s | tee figures.txt
  larder --json visitors watch site --count 1 | jq .interpolated")]
    Watch(VisitorsWatch),
}

const HIT_HELP: &str = "\
Prints nothing. Without --visitor the caller knows that the visitors are new in this period: N of them are added, in one round trip, and \
an outcome that is unknown is exit code 7 and not tried again. With --visitor each id is counted once a period, whoever else \
says it, too; to try that again does no harm. `--visitor -` reads ids from standard input, one a line.

The visitors are created if need be, with windows of --period. Windows begin at multiples of the period since 1970, for everybody.

Round trips: open 1 (3 when they are created), hit 1 (2 for a window's first); 1 for each visitor, 2 for the first of a window in each shard; 2 in all for one, 3 for a first, 5 when they are created.

Examples:
  larder visitors hit site --period 5m
  larder visitors hit site 12
  larder visitors hit site --visitor \"$user\"
  larder visitors hit site --at 2026-01-31T12:00:00Z
  cut -f1 access.log | larder visitors hit site --visitor -";

#[derive(Args, Debug)]
pub(crate) struct VisitorsHit {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How many, 0 to 2147483648
    #[arg(default_value_t = 1, value_name = "N")]
    pub(crate) n: u64,
    /// Count this id once a period; may be given several times; `-` alone: from standard input, one a line
    #[arg(long, value_name = "ID", conflicts_with = "n")]
    pub(crate) visitor: Vec<OsString>,
    /// When they came, if not now: such as 2026-01-31T12:00:00Z, or seconds since 1970; up to two periods after the end of its window
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) at: Option<SystemTime>,
    /// How long a window is, 1s to 30 days; of visitors that exist it must be the same [default: 5m when they are created]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) period: Option<Duration>,
    /// If they are created: over how many keys the ids of a window are spread
    #[arg(long, value_name = "COUNT")]
    pub(crate) shards: Option<u16>,
    /// Never create them: visitors that are not there are an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Args, Debug)]
pub(crate) struct VisitorsGet {
    #[command(flatten)]
    pub(crate) named: Named,
    /// A figure that moves evenly between those of the last two complete windows
    #[arg(long, conflicts_with = "current")]
    pub(crate) interpolated: bool,
    /// The figure so far of the window that is being filled
    #[arg(long)]
    pub(crate) current: bool,
    /// The figure of the window of this time: such as 2026-01-31T12:00:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with_all = ["interpolated", "current"])]
    pub(crate) at: Option<SystemTime>,
}

#[derive(Args, Debug)]
pub(crate) struct VisitorsWatch {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How long to wait between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_time)]
    pub(crate) every: Duration,
    /// How many lines to print [default: until it is interrupted]
    #[arg(long, value_name = "COUNT")]
    pub(crate) count: Option<u64>,
}

pub(crate) async fn run(session: &Session, verb: VisitorsVerb) -> Result<u8, Failure> {
    match verb {
        VisitorsVerb::Hit(args) => hit(session, &args).await?,
        VisitorsVerb::Get(args) => get(session, &args).await?,
        VisitorsVerb::Watch(args) => return watch(session, &args).await,
    }
    Ok(Exit::Ok as u8)
}

async fn hit(session: &Session, args: &VisitorsHit) -> Result<(), Failure> {
    let source = if args.visitor.is_empty() { None } else { Some(Source::of(&args.visitor)?) };
    let mut options = Visitors::options().timeout(session.timeout);
    if let Some(period) = args.period {
        options = options.period(period);
    }
    if let Some(shards) = args.shards {
        options = options.shards(shards);
    }
    let name = args.named.bytes();
    let visitors = if args.existing {
        options.open(&session.store, name).await.map_err(|error| explained(error, &args.named))?
    } else {
        options.open_or_create(&session.store, name).await?
    };
    let Some(source) = source else {
        match args.at {
            None => visitors.hit_many(args.n).await?,
            Some(time) => visitors.hit_at(time, args.n).await?,
        }
        return session.out.answer("", &json!({"name": bytes(name), "hits": args.n}));
    };
    let at = args.at;
    for_each_batch(source, |ids| {
        let visitors = visitors.clone();
        async move { hit_each(visitors, ids, at).await }
    })
    .await
}

/// Counts each visitor, many at once: they share the connection.
async fn hit_each(visitors: Visitors, ids: Vec<Vec<u8>>, at: Option<SystemTime>) -> Result<(), Failure> {
    each_at_once(ids, |id| {
        let visitors = visitors.clone();
        async move {
            match at {
                None => visitors.hit_visitor(id).await,
                Some(time) => visitors.hit_visitor_at(id, time).await,
            }
        }
    })
    .await
}

async fn get(session: &Session, args: &VisitorsGet) -> Result<(), Failure> {
    let visitors = open(session, &args.named).await?;
    let (what, figure) = match (args.at, args.interpolated, args.current) {
        (Some(time), ..) => ("at", visitors.get_at(time).await),
        (_, true, _) => ("interpolated", visitors.interpolated().await),
        (_, _, true) => ("current", visitors.current().await),
        _ => ("last", visitors.get().await),
    };
    let figure = figure.map_err(explained_loss)?;
    session.out.answer(&figure.to_string(), &json!({"name": bytes(args.named.bytes()), "visitors": figure, "of": what}))
}

async fn open(session: &Session, named: &Named) -> Result<Visitors, Failure> {
    let options = Visitors::options().timeout(session.timeout);
    options.open(&session.store, named.bytes()).await.map_err(|error| explained(error, named))
}

fn explained(error: larder::Error, named: &Named) -> Failure {
    let hint = format!("`larder visitors hit {}` creates them", named.name.to_string_lossy());
    Failure::from(error).hint_if_absent(hint)
}

/// A window that was lost is no reason to drop the others.
fn explained_loss(error: larder::Error) -> Failure {
    let is_window = is_lost_window(&error);
    let failure = Failure::from(error);
    if is_window {
        failure.hint("the window after it is counted as ever; give the server more memory, so that it does not evict")
    } else {
        failure
    }
}

/// True if a window was lost, and not all of them.
fn is_lost_window(error: &larder::Error) -> bool {
    error.kind() == ErrorKind::Lost && error.detail().starts_with("window ")
}

/// What one look found; `None` where a window was lost.
#[derive(Clone, Copy, Debug)]
struct Look {
    time_s: u64,
    interpolated: Option<u64>,
    last: Option<u64>,
    current: Option<u64>,
}

async fn watch(session: &Session, args: &VisitorsWatch) -> Result<u8, Failure> {
    /// Behind a look that failed, so that a server which is away is not asked again and again.
    const PAUSE: Duration = Duration::from_secs(1);
    let visitors = open(session, &args.named).await?;
    let mut signals = Forwarded::listen()?;
    let is_live = io::stdout().is_terminal() && !session.out.json;
    let mut history = VecDeque::with_capacity(SPARKS);
    let mut ticks = tokio::time::interval(args.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut left, mut pause) = (args.count.unwrap_or(u64::MAX), Duration::ZERO);
    while left > 0 {
        let looking = async {
            tokio::time::sleep(pause).await;
            ticks.tick().await;
            look(&visitors).await
        };
        let look = tokio::select! {
            look = looking => look,
            signal = signals.next() => {
                end_line(is_live)?;
                return Ok(code_of_signal(signal));
            }
        };
        pause = Duration::ZERO;
        let line = match look {
            Ok(look) => line(session, &visitors, &look, is_live.then_some(&mut history)),
            Err(error) if is_passing(&error) => {
                end_line(is_live)?;
                say(&format!("warning: {error}; trying again"));
                pause = PAUSE;
                continue;
            }
            Err(error) => {
                end_line(is_live)?;
                return Err(error.into());
            }
        };
        left -= 1;
        if let Some(signal) = print_unless_told(&mut signals, None, line).await? {
            return Ok(code_of_signal(signal));
        }
    }
    end_line(is_live)?;
    Ok(Exit::Ok as u8)
}

/// What is printed of a look: a line of its own, or, with what was seen before, all of the terminal's.
fn line(session: &Session, visitors: &Visitors, look: &Look, history: Option<&mut VecDeque<Option<u64>>>) -> String {
    let Look { time_s, interpolated, last, current } = *look;
    if let Some(history) = history {
        if history.len() == SPARKS {
            history.pop_front();
        }
        history.push_back(interpolated);
        return format!("\r\x1b[2K{}", live_line(&visitors.name().to_string(), look, history, width()));
    }
    if session.out.json {
        let object = json!({
            "name": bytes(visitors.name().as_bytes()), "time": time_s,
            "interpolated": interpolated, "last": last, "current": current,
        });
        return format!("{object}\n");
    }
    format!("{time_s} {} {} {}\n", shown(interpolated), shown(last), shown(current))
}

/// How many characters a line of the terminal has.
fn width() -> usize {
    const WIDTH_DEFAULT: usize = 80;
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => WIDTH_DEFAULT,
    }
}

async fn look(visitors: &Visitors) -> larder::Result<Look> {
    let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let unless_lost = |figure: larder::Result<u64>| match figure {
        Ok(figure) => Ok(Some(figure)),
        Err(error) if is_lost_window(&error) => Ok(None),
        Err(error) => Err(error),
    };
    let (interpolated, last, current) = tokio::join!(visitors.interpolated(), visitors.get(), visitors.current());
    Ok(Look {
        time_s,
        interpolated: unless_lost(interpolated)?,
        last: unless_lost(last)?,
        current: unless_lost(current)?,
    })
}

/// What a look found, in one line of the terminal: as many of the last figures as there is room for, and no more characters than fit.
fn live_line(name: &str, look: &Look, history: &VecDeque<Option<u64>>, width: usize) -> String {
    let rest = format!("{} (last {}, so far {})", shown(look.interpolated), shown(look.last), shown(look.current));
    // A line that ends at the very edge wraps on some terminals.
    let room = width.saturating_sub(name.chars().count() + rest.chars().count() + 3);
    let sparks: Vec<char> = sparkline(history).chars().collect();
    let spark: String = sparks.get(sparks.len().saturating_sub(room)..).unwrap_or(&[]).iter().collect();
    format!("{name} {spark} {rest}").chars().take(width.saturating_sub(1)).collect()
}

/// Leaves a live line behind, for what is printed next.
fn end_line(is_live: bool) -> io::Result<()> {
    if is_live { writeln!(io::stdout().lock()) } else { Ok(()) }
}

fn shown(figure: Option<u64>) -> String {
    figure.map_or_else(|| "lost".to_owned(), |figure| figure.to_string())
}

/// A bar a figure, as high as the highest of them allows; a cross for one that was lost.
fn sparkline(figures: &VecDeque<Option<u64>>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = u128::from(figures.iter().flatten().copied().max().unwrap_or(0)).max(1);
    let bar = |figure: &Option<u64>| match figure {
        // At most 7, so it is there.
        Some(figure) => BARS.get((u128::from(*figure) * 7).div_ceil(highest) as usize).copied().unwrap_or('█'),
        None => '×',
    };
    figures.iter().map(bar).collect()
}

/// A time such as `2026-01-31T12:00:00Z`, or seconds since 1970.
pub(crate) fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        return time.ok_or_else(|| "it is too far ahead".to_owned());
    }
    humantime::parse_rfc3339_weak(text)
        .map_err(|error| format!("{error}; a time is such as 2026-01-31T12:00:00Z, or 1769860800"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_as_high_as_its_highest_and_marks_what_was_lost() {
        let line = |figures: &[Option<u64>]| sparkline(&figures.iter().copied().collect());
        assert_eq!(line(&[]), "");
        assert_eq!(line(&[Some(0), Some(0)]), "▁▁");
        assert_eq!(line(&[Some(0), Some(1), Some(700), None, Some(350)]), "▁▂█×▅");
        assert_eq!(line(&[Some(u64::MAX), Some(u64::MAX / 2)]), "█▅");
    }

    #[test]
    fn a_live_line_fits_the_terminal() {
        let history: VecDeque<Option<u64>> = (0..SPARKS as u64).map(Some).collect();
        let look = Look { time_s: 0, interpolated: Some(39), last: None, current: Some(7) };
        let line = |width| live_line("\"site\"", &look, &history, width);
        assert_eq!(line(41), "\"site\" ▇▇██████ 39 (last lost, so far 7)");
        assert_eq!(line(200).chars().count(), 6 + 1 + SPARKS + 1 + 24);
        assert_eq!(line(10), "\"site\"  3");
        assert_eq!(line(0), "");
    }

    #[test]
    fn moments_are_read_as_dates_and_as_seconds() {
        let noon = UNIX_EPOCH + Duration::from_secs(1_769_860_800);
        for text in ["2026-01-31T12:00:00Z", "2026-01-31 12:00:00", "1769860800"] {
            assert_eq!(moment(text), Ok(noon), "{text}");
        }
        for wrong in ["", "noon", "-1", "18446744073709551615"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
