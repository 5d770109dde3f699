//! `larder unique …`

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use larder::text::Shown;
use larder::{ErrorKind, IdKind, Novelty, Precision, UniqueCount, UniqueVisitors, UniqueVisitorsOptions};
use serde_json::{Value, json};

use crate::args::{Named, positive_time};
use crate::exit::{Exit, Failure};
use crate::input::{BatchSize, Elements, LineCount, Numbered, Source, for_each_batch_in_turn};
use crate::output::bytes;
use crate::session::Session;
use crate::visitors::moment;

/// What is written anew for each batch, or asked of each shard, is less for each id, the more there are.
const BATCH: BatchSize = BatchSize { elements_max: 65_536, bytes_max: 4 * 1024 * 1024 };

#[derive(Debug, Subcommand)]
pub(crate) enum UniqueVerb {
    /// Add visitors to a day, and print how many of them are new
    #[command(after_help = ADD_HELP)]
    Add(UniqueAdd),
    /// Print how many different visitors came in a day
    #[command(after_help = "\
Prints a number; 0 for a day on which nobody came. A day of which a part was lost is no smaller number: exit code 4. --stat prints what the day was made for, too, \
and how many are expected to be missing, since their hashes met others'; of a day on which nobody came, what it would be made for.

Round trips: open 1, count 2 (1 more for each further 4,096 shards); with --stat some 5, or of a day on which nobody came those of counting the day before, too.

Examples:
  larder unique count site
  larder unique count site --at 2026-01-31T12:00:00Z
  larder --json unique count site --stat | jq .expected")]
    Count(UniqueCountArgs),
    /// Print which of several visitors would be new, and add none
    #[command(after_help = "\
Prints the ids that are new, one a line, as they were given; with none, the exit code is 1. Where hashes are cut short, one in many that are new is told to be known; a \
sketch cannot tell, and nothing is printed.

Round trips: open 1, and 2 for as many as touch 4,096 shards.

Examples:
  larder unique new site alice bob
  larder unique new site - < ids.txt > new.txt")]
    New(UniqueNew),
    /// Print how many different visitors came on several days, or to several sites, each once
    #[command(after_help = "\
Of each NAME the day of --at, and with --days as many before it, too. All must have the same kind of ids, and the same seed; where their precisions differ, the \
count is as exact as the least of them.

Round trips: open 1 a name; 2 a day, 1 more for each further 256 shards.

Examples:
  larder unique union site --days 7
  larder unique union shop blog --days 30")]
    Union(UniqueUnion),
    /// Remove a day with all its visitors, or what is left of one that was lost
    #[command(after_help = "\
Round trips: open 1, forget 4 (1 more for each further 4,096 shards).

Examples:
  larder unique forget site --at 2026-01-31T12:00:00Z")]
    Forget(UniqueForget),
}

const ADD_HELP: &str = "\
Prints how many are new: of an id that several add, exactly one is told so. --each prints a line for each instead: `new`, `known` or `unknown`, a blank, and the id. \
`-` reads ids from standard input, one a line, with progress at a terminal; they are sent as they come, many at a time.

They are created if need be: with days in UTC, or --zone, --offset and --period; --precision exact keeps each id's whole hash, compact some 47 bits of it, near-exact 32 \
(near:BITS others) with its error put back, and sketch counts to 1 % in 2.7 KB. Ids are any bytes; with --ids-are integer whole numbers of 64 bits, which never meet.

A day is made for half as many again as came the day before; after a day without visitors, for --expected. More may come.

An outcome that is unknown is exit code 7; to add the same again does no harm.

Round trips: open 1 (3 when they are created), add 3 (9 for a day's first, 8 where days expire), 2 for each further batch; on Redis and Valkey, compact and exact numbers, one less each.

Examples:
  larder unique add site alice bob
  larder unique add site --each \"$user\"
  larder unique add site --precision exact --ids-are integer 17 18
  cut -f1 access.log | larder unique add site --expected 1000000 -";

#[derive(Args, Debug)]
pub(crate) struct UniqueAdd {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Who came; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<OsString>,
    /// Print for each whether it is new
    #[arg(long)]
    pub(crate) each: bool,
    #[command(flatten)]
    pub(crate) day: Day,
    /// How long a period is, 1s to 366 days; of those that exist it must be the same [default: 1day when they are created]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) period: Option<Duration>,
    /// How far the local time is ahead of UTC, such as +01:00 or -05:00; likewise [default: +00:00]
    #[arg(long, value_name = "OFFSET", value_parser = offset_s, allow_hyphen_values = true)]
    pub(crate) offset: Option<i32>,
    /// The zone whose days they are, such as Europe/Berlin: of 23 and 25 hours when its clocks change; likewise [default: the offset]
    #[arg(long, value_name = "ZONE", conflicts_with = "offset")]
    pub(crate) zone: Option<String>,
    /// exact, compact, near, near:BITS, sketch or sketch:LGK; likewise [default: compact]
    #[arg(long, value_name = "PRECISION", value_parser = precision)]
    pub(crate) precision: Option<Precision>,
    /// any or integer; likewise [default: any]
    #[arg(long, value_name = "KIND", value_parser = ids)]
    pub(crate) ids_are: Option<IdKind>,
    /// What the hash begins with, if ids may be made up by others; likewise [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// How long a day is kept after its end; likewise [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) keep: Option<Duration>,
    /// How many are expected after a day without visitors [default: 100000 when they are created]
    #[arg(long, value_name = "COUNT")]
    pub(crate) expected: Option<u64>,
    /// Never create them: those that are not there are an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Day {
    /// A time in the day that is meant, if not now: such as 2026-01-31T12:00:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "day")]
    pub(crate) at: Option<SystemTime>,
    /// The day's number instead: how many periods after 1970
    #[arg(long, value_name = "NUMBER")]
    pub(crate) day: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct UniqueCountArgs {
    #[command(flatten)]
    pub(crate) named: Named,
    #[command(flatten)]
    pub(crate) day: Day,
    /// Print all figures, a line each
    #[arg(long)]
    pub(crate) stat: bool,
}

#[derive(Args, Debug)]
pub(crate) struct UniqueNew {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Who came; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<OsString>,
    #[command(flatten)]
    pub(crate) day: Day,
}

#[derive(Args, Debug)]
pub(crate) struct UniqueUnion {
    /// The names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,
    #[command(flatten)]
    pub(crate) day: Day,
    /// How many days, the last of which is meant
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3_660))]
    pub(crate) days: u64,
}

#[derive(Args, Debug)]
pub(crate) struct UniqueForget {
    #[command(flatten)]
    pub(crate) named: Named,
    #[command(flatten)]
    pub(crate) day: Day,
}

pub(crate) async fn run(session: &Session, verb: UniqueVerb) -> Result<Exit, Failure> {
    match verb {
        UniqueVerb::Add(args) => add(session, &args).await?,
        UniqueVerb::Count(args) => count(session, &args).await?,
        UniqueVerb::New(args) => return new(session, &args).await,
        UniqueVerb::Union(args) => union(session, &args).await?,
        UniqueVerb::Forget(args) => {
            let site = open(session, args.named.bytes()).await?;
            let day = args.day.of(&site)?;
            site.forget(day).await?;
            session.out.answer("", &json!({"name": bytes(args.named.bytes()), "period": day}))?;
        }
    }
    Ok(Exit::Ok)
}

impl Day {
    fn of(self, site: &UniqueVisitors) -> Result<u64, Failure> {
        Ok(match (self.day, self.at) {
            (Some(day), _) => day,
            (None, Some(time)) => site.period_of(time)?,
            (None, None) => site.current()?,
        })
    }
}

async fn add(session: &Session, args: &UniqueAdd) -> Result<(), Failure> {
    let source = Source::of(&args.ids)?;
    let options = options(session, args);
    let name = args.named.bytes();
    let site = if args.existing {
        options.open(&session.store, name).await.map_err(|error| explained(error, name))?
    } else {
        options.open_or_create(&session.store, name).await?
    };
    // One day for all, also past midnight.
    let day = args.day.of(&site)?;
    let (mut new, mut known, mut unknown) = (0u64, 0u64, 0u64);
    let lines = LineCount::of(&source);
    let add = |ids: Elements| {
        let (site, lines) = (site.clone(), lines.next(&ids));
        async move {
            let told = site.add_in(day, &ids).await.map_err(|error| refused(error, &lines))?;
            Ok((ids, told))
        }
    };
    for_each_batch_in_turn(BATCH, source, add, |(ids, told)| {
        for novelty in &told {
            *match novelty {
                Novelty::New => &mut new,
                Novelty::Known => &mut known,
                Novelty::Unknown => &mut unknown,
            } += 1;
        }
        let told = ids.iter().zip(told);
        match (args.each, session.out.json) {
            (false, _) => Ok(()),
            (true, true) => session.out.answers(told.map(|(id, novelty)| ("", object(id, novelty)))),
            // Byte by byte, as `unique new` prints them.
            (true, false) => {
                let line = |(id, novelty): (&Vec<u8>, Novelty)| [novelty.as_str().as_bytes(), b" ", id].concat();
                session.out.list(&told.map(line).collect::<Elements>())
            }
        }
    })
    .await?;
    if args.each {
        return Ok(());
    }
    // A sketch cannot tell.
    let plain = if unknown > 0 && new + known == 0 { String::new() } else { new.to_string() };
    let object = json!({"name": bytes(name), "period": day, "new": new, "known": known, "unknown": unknown});
    session.out.answer(&plain, &object)
}

fn object(id: &[u8], novelty: Novelty) -> Value {
    json!({"id": bytes(id), "is": novelty.as_str()})
}

fn options(session: &Session, args: &UniqueAdd) -> UniqueVisitorsOptions {
    let mut options = UniqueVisitors::options().timeout(session.timeout);
    if let Some(period) = args.period {
        options = options.period(period);
    }
    if let Some(offset_s) = args.offset {
        options = options.offset_s(offset_s);
    }
    if let Some(zone) = &args.zone {
        options = options.zone(zone);
    }
    if let Some(precision) = args.precision {
        options = options.precision(precision);
    }
    if let Some(ids) = args.ids_are {
        options = options.ids(ids);
    }
    if let Some(seed) = args.seed {
        options = options.seed(seed);
    }
    if let Some(keep) = args.keep {
        options = options.keep(keep);
    }
    if let Some(expected) = args.expected {
        options = options.expected(expected);
    }
    options
}

async fn count(session: &Session, args: &UniqueCountArgs) -> Result<(), Failure> {
    let name = args.named.bytes();
    let site = open(session, name).await?;
    let day = args.day.of(&site)?;
    if !args.stat {
        let count = site.count_in(day).await.map_err(explained_loss)?;
        return session.out.answer(&count.visitors.to_string(), &figures(name, day, &count));
    }
    let Some(stat) = site.stat(day).await.map_err(explained_loss)? else {
        return forecast(session, (&site, name), day).await;
    };
    let mut object = figures(name, day, &stat.count);
    for (field, value) in [
        ("precision", json!(site.precision().as_str())),
        ("expected", json!(stat.expected)),
        ("shards", json!(stat.shards)),
        ("bits", json!(stat.bits)),
        ("padded_bytes", json!(stat.padded_bytes)),
        ("largest_shard", json!(stat.largest_shard)),
        ("unpacked_shards", json!(stat.unpacked_shards)),
        ("outgrown", json!(stat.is_outgrown())),
    ] {
        object[field] = value;
    }
    let limit = session.store.profile().encodings.map_or(0, |limits| limits.set_integers_max);
    let unpacked = match stat.unpacked_shards {
        0 => String::new(),
        many => format!("\n{}", not_packed(many, stat.largest_shard.into(), limit)),
    };
    let plain = format!(
        "visitors {}\nprecision {}\nperiod {day}\nexpected {}{}\nmissing, expected {}\nstandard error {:.1}\nshards {}, the fullest of {} visitors{unpacked}",
        stat.count.visitors,
        site.precision().as_str(),
        stat.expected,
        if stat.is_outgrown() { ", and more came: it is right, and slower to write" } else { "" },
        few(stat.count.missed),
        stat.count.standard_error,
        stat.shards,
        stat.largest_shard
    );
    session.out.answer(&plain, &object)
}

/// A day on which nobody came has no figures but what it will be made for.
async fn forecast(session: &Session, (site, name): (&UniqueVisitors, &[u8]), day: u64) -> Result<(), Failure> {
    let (expected, precision) = (site.forecast(day).await?, site.precision().as_str());
    let mut object = figures(name, day, &UniqueCount::default());
    object["precision"] = json!(precision);
    object["expected"] = json!(expected);
    for none in ["shards", "bits", "padded_bytes", "largest_shard", "unpacked_shards"] {
        object[none] = json!(0);
    }
    object["outgrown"] = json!(false);
    let plain = format!("visitors 0\nprecision {precision}\nperiod {day}\nexpected {expected}");
    session.out.answer(&plain, &object)
}

/// What is to be done about sets that the server does not keep packed, by its limit. One member is a mark.
fn not_packed(sets: u64, largest: u64, limit: u64) -> String {
    let later =
        "a set that is unpacked stays so until it is written anew: by DUMP and RESTORE, or a restart from a snapshot";
    match largest + 1 > limit {
        true => format!(
            "{sets} of them have more members than the server packs (set-max-intset-entries {limit}), and take ten times as much; set set-max-intset-entries to {}: {later}",
            (largest + 1).next_power_of_two()
        ),
        false => format!(
            "{sets} of them had more members than the server packed (set-max-intset-entries is {limit} now), and take ten times as much: {later}"
        ),
    }
}

/// How many are expected, also where that is a small part of one.
fn few(expected: f64) -> String {
    if expected > 0.0 && expected < 0.01 { format!("{expected:.1e}") } else { format!("{expected:.2}") }
}

fn figures(name: &[u8], day: u64, count: &UniqueCount) -> Value {
    let UniqueCount { visitors, stored, missed, standard_error } = *count;
    json!({
        "name": bytes(name), "period": day, "visitors": visitors, "stored": stored, "missed": missed,
        "standard_error": standard_error,
    })
}

async fn new(session: &Session, args: &UniqueNew) -> Result<Exit, Failure> {
    let source = Source::of(&args.ids)?;
    let site = open(session, args.named.bytes()).await?;
    let day = args.day.of(&site)?;
    let mut is_any_new = false;
    let lines = LineCount::of(&source);
    let look = |ids: Elements| {
        let (site, lines) = (site.clone(), lines.next(&ids));
        async move {
            let novelties = site.are_new_in(day, &ids).await.map_err(|error| refused(error, &lines))?;
            let new = ids.into_iter().zip(novelties).filter(|(_, novelty)| *novelty == Novelty::New);
            Ok(new.map(|(id, _)| id).collect())
        }
    };
    for_each_batch_in_turn(BATCH, source, look, |new: Elements| {
        is_any_new |= !new.is_empty();
        if new.is_empty() { Ok(()) } else { session.out.list(&new) }
    })
    .await?;
    Ok(if is_any_new { Exit::Ok } else { Exit::No })
}

async fn union(session: &Session, args: &UniqueUnion) -> Result<(), Failure> {
    let mut sites = Vec::with_capacity(args.names.len());
    for name in &args.names {
        sites.push(open(session, crate::output::argument(name)).await?);
    }
    let mut parts = Vec::new();
    for site in &sites {
        let last = args.day.of(site)?;
        parts.extend((last.saturating_sub(args.days - 1)..=last).map(|day| (site, day)));
    }
    let periods = parts.len();
    let UniqueCount { visitors, stored, missed, standard_error } =
        UniqueVisitors::union(parts).await.map_err(explained_loss)?;
    let object = json!({
        "visitors": visitors, "stored": stored, "missed": missed, "standard_error": standard_error, "periods": periods,
    });
    session.out.answer(&visitors.to_string(), &object)
}

async fn open(session: &Session, name: &[u8]) -> Result<UniqueVisitors, Failure> {
    let options = UniqueVisitors::options().timeout(session.timeout);
    options.open(&session.store, name).await.map_err(|error| explained(error, name))
}

fn explained(error: larder::Error, name: &[u8]) -> Failure {
    let hint = format!("`larder unique add {} ID` creates them", String::from_utf8_lossy(name));
    Failure::from(error).hint_if_absent(hint)
}

/// What is wrong about an id is said with its line: it is named at the end.
fn refused(error: larder::Error, lines: &Numbered) -> Failure {
    if error.kind() != ErrorKind::BadInput || !error.detail().starts_with("ids here are") {
        return explained_loss(error);
    }
    let (kind, detail) = (error.kind(), error.detail().to_owned());
    lines.failure(error, |id| match detail.ends_with(&format!(": {}", Shown(id))) {
        true => Err(larder::Error::new(kind, detail.clone())),
        false => Ok(()),
    })
}

/// A day that was lost is no reason to drop the others.
fn explained_loss(error: larder::Error) -> Failure {
    let is_period = error.kind() == ErrorKind::Lost && error.detail().starts_with("period ");
    let failure = Failure::from(error);
    if is_period {
        failure.hint("other days are counted as ever; `larder unique forget` clears this one away, to begin it anew")
    } else {
        failure
    }
}

/// `exact`, `compact`, `near`, `near:40`, `sketch`, `sketch:14`.
fn precision(text: &str) -> Result<Precision, String> {
    let (word, detail) = text.split_once(':').map_or((text, None), |(word, detail)| (word, Some(detail)));
    let number =
        detail.map(|detail| detail.parse::<u8>().map_err(|_| format!("'{detail}' is no number"))).transpose()?;
    match (word, number) {
        ("exact", None) => Ok(Precision::Exact),
        ("compact", None) => Ok(Precision::Compact),
        ("near" | "near-exact", None) => Ok(Precision::NEAR_EXACT),
        ("near" | "near-exact", Some(bits)) => Ok(Precision::NearExact { bits }),
        ("sketch", None) => Ok(Precision::SKETCH),
        ("sketch", Some(lg_k)) => Ok(Precision::Sketch { lg_k }),
        _ => Err("a precision is exact, compact, near, near:BITS, sketch or sketch:LGK".to_owned()),
    }
}

fn ids(text: &str) -> Result<IdKind, String> {
    match text {
        "any" => Ok(IdKind::Any),
        "integer" => Ok(IdKind::Integer),
        _ => Err("ids are any or integer".to_owned()),
    }
}

/// `+05:30`, `-05:00`, `Z`, as seconds.
fn offset_s(text: &str) -> Result<i32, String> {
    let wrong = || "an offset is such as +01:00, -05:00 or Z".to_owned();
    if text.eq_ignore_ascii_case("z") {
        return Ok(0);
    }
    let (sign, rest) = match text.split_at_checked(1) {
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        _ => return Err(wrong()),
    };
    let (hours, minutes) = rest.split_once(':').unwrap_or((rest, "0"));
    let part = |text: &str, max: i32| {
        let is_digits = !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i32>().ok().filter(|number| is_digits && *number <= max).ok_or_else(wrong)
    };
    Ok(sign * (part(hours, 14)? * 3_600 + part(minutes, 59)? * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_does_not_pack_is_said_with_the_limit_and_a_cure() {
        let said = not_packed(3, 600, 512);
        assert!(said.starts_with("3 of them") && said.contains("(set-max-intset-entries 512)"), "{said}");
        assert!(said.contains("set set-max-intset-entries to 1024: "), "{said}");
        // The mark is a member.
        assert!(not_packed(3, 512, 512).contains("to 1024: ") && not_packed(3, 511, 512).contains("is 512 now"));
    }

    #[test]
    fn offsets_and_precisions_are_read() {
        assert_eq!(
            ["Z", "+00:00", "+05:30", "-5", "-03:30"].map(|text| offset_s(text).unwrap()),
            [0, 0, 19_800, -18_000, -12_600]
        );
        for wrong in ["", "5", "+15:00", "+1:60", "+-1", "+1:", "+001:00", "é"] {
            assert!(offset_s(wrong).is_err(), "{wrong}");
        }
        assert_eq!(precision("near:40"), Ok(Precision::NearExact { bits: 40 }));
        assert_eq!(precision("sketch"), Ok(Precision::SKETCH));
        for wrong in ["", "exact:1", "near:", "near:300", "sketch:x"] {
            assert!(precision(wrong).is_err(), "{wrong}");
        }
    }
}
