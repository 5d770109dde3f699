//! `larder hash …`, `larder sharded-set …`, `larder reshard`.

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use larder::sharded::Progress;
use larder::{Kind, ShardedHash, ShardedSet, ShardedStat};
use serde_json::json;

use crate::args::Named;
use crate::exit::{Exit, Failure};
use crate::input::{
    BATCH, Elements, KeyOf, LineCount, Source, by_tab, by_tabs, for_each_batch_by_key, for_each_batch_in_turn,
    number_of,
};
use crate::output::bytes;
use crate::session::Session;
use crate::top;

#[derive(Debug, Subcommand)]
pub(crate) enum HashVerb {
    /// Set fields to values
    #[command(after_help = "\
Prints how many of the fields are new. `-` alone reads lines from standard input: a field, a tab, a value.

The hash is created if need be, for --expected fields, or with --shards. With --dense fields are whole numbers from 0, so many of them a shard; a number over the range is \
refused until it is resharded.

Round trips: open 2 (4 when it is created), set 1 on Redis and Valkey, else 2, for every batch.

Examples:
  larder hash set cities 17 Lund 18 Umeå
  larder hash set cities --expected 370000 --dense 64 - < cities.tsv")]
    Set(HashSet),
    /// Print the values of fields
    #[command(after_help = "\
Prints a value a line, as it is; for a field that is not there nothing, and the exit code is 1. With --json an object a field. `-` alone reads fields from standard input, one a line.

Round trips: open 2, get 1 for every batch.

Examples:
  larder hash get cities 17
  larder --json hash get cities - < ids.txt")]
    Get(HashFields),
    /// Remove fields
    #[command(after_help = "\
Prints how many there were. `-` alone reads fields from standard input, one a line.

Round trips: open 2, remove 1 on Redis and Valkey, else 2, for every batch.

Examples:
  larder hash remove cities 17 18")]
    Remove(HashFields),
    /// Print how many fields there are
    #[command(after_help = "\
No snapshot: what is set meanwhile may count or not. Also while it is resharded every other field counts once.

Round trips: open 2, len 1 for every 1,024 shards.

Examples:
  larder hash len cities")]
    Len(Named),
    /// Print all fields and their values
    #[command(after_help = "\
A line each, in no order: the field, a tab, the value; with --json an object each.

Round trips: open 2, entries 1 for every 128 shards.

Examples:
  larder hash entries cities | sort -n")]
    Entries(Named),
    /// Print figures, and how the server keeps the shards
    #[command(after_help = STAT_HELP)]
    Stat(Named),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ShardedSetVerb {
    /// Add members
    #[command(after_help = "\
Prints how many are new: of a member that several add at once, one is told so. `-` alone reads members from standard input, one a line.

The set is created if need be, for --expected members, or with --shards. With --dense members are whole numbers from 0, so many of them a shard; they take the least room, and \
a number over the range is refused until it is resharded.

Round trips: open 2 (4 when it is created), add 1 on Redis and Valkey, else 2, for every batch.

Examples:
  larder sharded-set add seen a b c
  larder sharded-set add seen --expected 1000000 - < urls.txt
  larder sharded-set add paid --dense 500 --expected 1000000 17 18")]
    Add(ShardedSetAdd),
    /// Remove members
    #[command(after_help = "\
Prints how many there were. `-` alone reads members from standard input, one a line.

Round trips: open 2, remove 1 on Redis and Valkey, else 2, for every batch.

Examples:
  larder sharded-set remove seen a b")]
    Remove(ShardedSetMembers),
    /// Tell whether these are members; exit code 1 if one is not
    #[command(after_help = "\
Prints `true` or `false` a member. `-` alone reads members from standard input, one a line.

Round trips: open 2, has 1 for every batch.

Examples:
  larder sharded-set has seen a && echo yes")]
    Has(ShardedSetMembers),
    /// Print how many members there are
    #[command(after_help = "\
No snapshot: what is added meanwhile may count or not. Also while it is resharded every other member counts once.

Round trips: open 2, len 1 for every 1,024 shards.

Examples:
  larder sharded-set len seen")]
    Len(Named),
    /// Print all members, one a line
    #[command(after_help = "\
In no order; with --json one array.

Round trips: open 2, members 1 for every 128 shards.

Examples:
  larder sharded-set members seen | sort")]
    Members(Named),
    /// Print figures, and how the server keeps the shards
    #[command(after_help = STAT_HELP)]
    Stat(Named),
}

const STAT_HELP: &str = "\
Elements and shards, the fullest shard; on a server that has several encodings that one's, how many shards are not packed, and what to do where its limits have unpacked them.

Round trips: open 2, stat 1 for every 1,024 shards, and 1.

Examples:
  larder hash stat cities
  larder --json sharded-set stat seen | jq -r .advice";

pub(crate) const RESHARD_HELP: &str = "\
For a sharded hash, set or sorted set; others read and write meanwhile, and wait for nothing. Should it be killed, nothing is lost: whoever meets a shard that is not filled yet \
fills it, and the same command, or one with another number, goes on where it stopped.

Of dense numbers more shards make room for more numbers, and hold as many each as before. --dense makes shards smaller, or larger, for the numbers that there is room for: so shards \
that grew too large for what the server packs are packed again.

Redis and Valkey take all elements of a new shard at once, and do nothing else meanwhile: 1 to 1.3 µs an element, so some 25 ms for 20,000 and 160 ms for 125,000. Keep shards under \
20,000 elements, and nobody waits 50 ms for it.

Round trips: open 2; for every 32 shards, or as many as come from some 500 old ones, 3 on Redis and Valkey, else 5, and 1 for every 32 old ones that are brought together; and some 8.

Examples:
  larder reshard cities --shards 6000
  larder hash stat cities
  larder reshard paid --dense 500";

#[derive(Args, Debug)]
pub(crate) struct Reshard {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How many shards there are to be
    #[arg(long, value_name = "COUNT", required_unless_present = "dense", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) shards: Option<u16>,
    /// Of dense numbers: how many stand in a shard from now on, instead of --shards
    #[arg(long, value_name = "COUNT", conflicts_with = "shards", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) dense: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct Making {
    /// If it is created: for how many elements
    #[arg(long, value_name = "COUNT")]
    pub(crate) expected: Option<u64>,
    /// If it is created: over how many shards it is spread, instead of --expected
    #[arg(long, value_name = "COUNT", conflicts_with = "expected", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) shards: Option<u16>,
    /// Never create it: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
    /// If it is created: fields, or members, are whole numbers from 0, and so many stand in a shard
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) dense: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct HashSet {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Fields and values in turn; `-` alone: from standard input, a line each, a tab between field and value
    #[arg(required = true, value_names = ["FIELD", "VALUE"], num_args = 1..)]
    pub(crate) entries: Vec<OsString>,
    #[command(flatten)]
    pub(crate) making: Making,
}

#[derive(Args, Debug)]
pub(crate) struct HashFields {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The fields; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "FIELD")]
    pub(crate) fields: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct ShardedSetAdd {
    #[command(flatten)]
    pub(crate) members: ShardedSetMembers,
    #[command(flatten)]
    pub(crate) making: Making,
}

#[derive(Args, Debug)]
pub(crate) struct ShardedSetMembers {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The members; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<OsString>,
}

/// Options with what the command line says, opened.
macro_rules! opened {
    ($Type:ident, $session:expr, $named:expr, $making:expr, $set_up:expr) => {{
        let mut options = $set_up($Type::options().timeout($session.timeout));
        let making: &$crate::sharded::Making = $making;
        if let Some(expected) = making.expected {
            options = options.expected(expected);
        }
        if let Some(shards) = making.shards {
            options = options.shards(shards);
        }
        if let Some(per_shard) = making.dense {
            options = options.dense(per_shard);
        }
        if making.existing {
            options.open(&$session.store, $named.bytes()).await
        } else {
            options.open_or_create(&$session.store, $named.bytes()).await
        }
    }};
}
pub(crate) use opened;

pub(crate) async fn hash(session: &Session, verb: HashVerb) -> Result<Exit, Failure> {
    match verb {
        HashVerb::Set(args) => set(session, &args).await?,
        HashVerb::Get(args) => return get(session, &args).await,
        HashVerb::Remove(args) => {
            let (source, hash) = (Source::of(&args.fields)?, open_hash(session, &args.named).await?);
            let takes = {
                let hash = hash.clone();
                move |field: &[u8]| hash.takes(field)
            };
            count(session, (&args.named, "removed"), source, takes, |fields| {
                let hash = hash.clone();
                async move { hash.remove(fields).await }
            })
            .await?;
        }
        HashVerb::Len(named) => len(session, &named, open_hash(session, &named).await?.len().await?)?,
        HashVerb::Entries(named) => {
            let entries = open_hash(session, &named).await?.entries().await?;
            if session.out.json {
                let object = |(field, value): &(::bytes::Bytes, ::bytes::Bytes)| {
                    ("", json!({"field": bytes(field), "value": bytes(value)}))
                };
                session.out.answers(entries.iter().map(object))?;
            } else {
                let lines: Vec<Vec<u8>> =
                    entries.iter().map(|(field, value)| [&field[..], b"\t", value].concat()).collect();
                session.out.list(&lines)?;
            }
        }
        HashVerb::Stat(named) => stat(session, &named, &open_hash(session, &named).await?.stat().await?)?,
    }
    Ok(Exit::Ok)
}

pub(crate) async fn set_of_shards(session: &Session, verb: ShardedSetVerb) -> Result<Exit, Failure> {
    match verb {
        ShardedSetVerb::Add(args) => {
            let (named, source) = (&args.members.named, Source::of(&args.members.members)?);
            let set = opened!(ShardedSet, session, named, &args.making, |options| options)
                .map_err(|error| explained(error, named, "sharded-set add", "MEMBER"))?;
            let takes = {
                let set = set.clone();
                move |member: &[u8]| set.takes(member)
            };
            count(session, (named, "new"), source, takes, |members| {
                let set = set.clone();
                async move { set.add(members).await }
            })
            .await?;
        }
        ShardedSetVerb::Remove(args) => {
            let (source, set) = (Source::of(&args.members)?, open_set(session, &args.named).await?);
            let takes = {
                let set = set.clone();
                move |member: &[u8]| set.takes(member)
            };
            count(session, (&args.named, "removed"), source, takes, |members| {
                let set = set.clone();
                async move { set.remove(members).await }
            })
            .await?;
        }
        ShardedSetVerb::Has(args) => return has(session, &args).await,
        ShardedSetVerb::Len(named) => len(session, &named, open_set(session, &named).await?.len().await?)?,
        ShardedSetVerb::Members(named) => {
            let members = open_set(session, &named).await?.members().await?;
            session.out.list(&members)?;
        }
        ShardedSetVerb::Stat(named) => stat(session, &named, &open_set(session, &named).await?.stat().await?)?,
    }
    Ok(Exit::Ok)
}

async fn set(session: &Session, args: &HashSet) -> Result<(), Failure> {
    let source = Source::of(&args.entries)?;
    let is_typed = matches!(source, Source::Typed(_));
    if is_typed && args.entries.len() % 2 == 1 {
        return Err(Failure::usage(
            "a field has no value: fields and values are given in turn, or from standard input",
        ));
    }
    let hash = opened!(ShardedHash, session, args.named, &args.making, |options| options)
        .map_err(|error| explained(error, &args.named, "hash set", "FIELD VALUE"))?;
    // Of a field that comes again the later value stays.
    let field_of: KeyOf = |line| number_of(line.split(|&byte| byte == b'\t').next().unwrap_or(line));
    let takes = {
        let hash = hash.clone();
        move |line: &[u8]| hash.takes(by_tab(line, "field")?.0)
    };
    count_by_key(session, (&args.named, "new"), source, (Some(field_of), takes), |elements| {
        let hash = hash.clone();
        async move {
            let entries = if is_typed { in_turn(elements) } else { by_tabs(elements, "field")? };
            hash.set(entries).await
        }
    })
    .await
}

pub(crate) fn in_turn(elements: Elements) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut elements = elements.into_iter();
    let mut entries = Vec::new();
    while let (Some(field), Some(value)) = (elements.next(), elements.next()) {
        entries.push((field, value));
    }
    entries
}

async fn get(session: &Session, args: &HashFields) -> Result<Exit, Failure> {
    let (source, hash) = (Source::of(&args.fields)?, open_hash(session, &args.named).await?);
    let (out, mut is_missing, lines) = (session.out, false, LineCount::of(&source));
    let look = |fields: Elements| {
        let (hash, lines) = (hash.clone(), lines.next(&fields));
        async move {
            let found = hash.get_many(&fields).await;
            let values = found.map_err(|error| lines.failure(error, |field| hash.takes(field)))?;
            Ok((fields, values))
        }
    };
    for_each_batch_in_turn(BATCH, source, look, |(fields, values)| {
        is_missing |= values.iter().any(Option::is_none);
        if out.json {
            let object = |(field, value): (&Vec<u8>, Option<::bytes::Bytes>)| {
                let value = value.map_or(serde_json::Value::Null, |value| bytes(&value));
                (String::new(), json!({"field": bytes(field), "value": value}))
            };
            return out.answers(fields.iter().zip(values).map(object));
        }
        let found: Vec<_> = values.into_iter().flatten().collect();
        if found.is_empty() { Ok(()) } else { out.list(&found) }
    })
    .await?;
    Ok(if is_missing { Exit::No } else { Exit::Ok })
}

async fn has(session: &Session, args: &ShardedSetMembers) -> Result<Exit, Failure> {
    let (source, set) = (Source::of(&args.members)?, open_set(session, &args.named).await?);
    let (out, mut is_missing, lines) = (session.out, false, LineCount::of(&source));
    let look = |members: Elements| {
        let (set, lines) = (set.clone(), lines.next(&members));
        async move {
            let told = set.has_many(&members).await;
            let told = told.map_err(|error| lines.failure(error, |member| set.takes(member)))?;
            Ok((members, told))
        }
    };
    for_each_batch_in_turn(BATCH, source, look, |(members, told)| {
        is_missing |= !told.iter().all(|has| *has);
        let answer = |(member, has): (&Vec<u8>, bool)| (has, json!({"element": bytes(member), "has": has}));
        out.answers(members.iter().zip(told).map(answer))
    })
    .await?;
    Ok(if is_missing { Exit::No } else { Exit::Ok })
}

/// Does something with elements that tells of each whether it counts, and prints how many did. `takes` refuses a line that is wrong.
pub(crate) async fn count<F>(
    session: &Session,
    told_of: (&Named, &'static str),
    source: Source,
    takes: impl Takes,
    act: impl Fn(Elements) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = larder::Result<Vec<bool>>> + Send + 'static,
{
    count_by_key(session, told_of, source, (None, takes), act).await
}

/// What refuses a line of standard input that is wrong, as its error says.
pub(crate) trait Takes: Fn(&[u8]) -> larder::Result<()> + Clone + Send + 'static {}

impl<T: Fn(&[u8]) -> larder::Result<()> + Clone + Send + 'static> Takes for T {}

/// The same, where elements about the same key must be acted on in their order.
pub(crate) async fn count_by_key<F>(
    session: &Session,
    (named, what): (&Named, &'static str),
    source: Source,
    (key_of, takes): (Option<KeyOf>, impl Takes),
    act: impl Fn(Elements) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = larder::Result<Vec<bool>>> + Send + 'static,
{
    let (mut counted, lines) = (0, LineCount::of(&source));
    let act = |elements| {
        let (lines, takes) = (lines.next(&elements), takes.clone());
        let told = act(elements);
        async move { told.await.map_err(|error| lines.failure(error, takes)) }
    };
    for_each_batch_by_key(BATCH, source, key_of, act, |told: Vec<bool>| {
        counted += told.into_iter().filter(|counts| *counts).count() as u64;
        Ok(())
    })
    .await?;
    let mut object = json!({"name": bytes(named.bytes())});
    object[what] = json!(counted);
    session.out.answer(&counted.to_string(), &object)
}

fn len(session: &Session, named: &Named, len: u64) -> Result<(), Failure> {
    session.out.answer(&len.to_string(), &json!({"name": bytes(named.bytes()), "len": len}))
}

fn stat(session: &Session, named: &Named, stat: &ShardedStat) -> Result<(), Failure> {
    let mut plain = format!("elements {}\nshards {}\nlargest_shard {}", stat.elements, stat.shards, stat.largest_shard);
    for (word, text) in [
        ("moving_from", stat.moving_from.map(|shards| shards.to_string())),
        ("encoding", stat.encoding.clone()),
        ("unpacked_shards", stat.unpacked_shards.map(|shards| shards.to_string())),
        ("advice", stat.advice.clone()),
    ] {
        if let Some(text) = text {
            plain.push_str(&format!("\n{word} {text}"));
        }
    }
    let object = json!({
        "name": bytes(named.bytes()), "elements": stat.elements, "shards": stat.shards,
        "largest_shard": stat.largest_shard, "moving_from": stat.moving_from, "encoding": stat.encoding,
        "unpacked_shards": stat.unpacked_shards, "advice": stat.advice,
    });
    session.out.answer(&plain, &object)
}

/// Makes what the command line says of a handle's shards; how many there are then.
macro_rules! resharded {
    ($handle:expr, $args:expr, $tell:expr) => {{
        let handle = $handle;
        let outcome = match ($args.dense, $args.shards) {
            (Some(per_shard), _) => handle.reshard_dense_with(per_shard, $tell).await,
            (None, shards) => handle.reshard_with(shards.unwrap_or_default(), $tell).await,
        };
        outcome.map(|()| handle.shards())
    }};
}

/// `larder reshard`.
pub(crate) async fn reshard(session: &Session, args: &Reshard) -> Result<Exit, Failure> {
    let name = args.named.checked()?;
    let Some(manifest) = larder::find(&session.store, session.ctx(), &name).await? else {
        return Err(Failure::absent(session, &name).hint("there is nothing to reshard"));
    };
    let bar = progress();
    let tell = |progress: Progress| {
        bar.set_length(u64::from(progress.shards));
        bar.set_position(u64::from(progress.filled));
    };
    let outcome = match manifest.kind {
        Kind::ShardedHash => resharded!(open_hash(session, &args.named).await?, args, tell),
        Kind::ShardedSet => resharded!(open_set(session, &args.named).await?, args, tell),
        Kind::ShardedSortedSet => resharded!(top::open(session, &args.named).await?, args, tell),
        kind => {
            let detail = format!(
                "{name} is a {}: only a sharded hash, set and sorted set can be resharded; the shards of others are fixed when they are made",
                kind.as_str()
            );
            return Err(larder::Error::new(larder::ErrorKind::Unsupported, detail).into());
        }
    };
    bar.finish_and_clear();
    let shards = outcome.map_err(|error| match error.kind() {
        // The same command would end the same way.
        larder::ErrorKind::BadInput | larder::ErrorKind::Full | larder::ErrorKind::Lost => error.into(),
        _ => Failure::from(error).hint("nothing is lost by that: the same command goes on with it"),
    })?;
    session.out.answer("", &json!({"name": bytes(name.as_bytes()), "shards": shards}))?;
    Ok(Exit::Ok)
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} shards") {
        bar.set_style(style.progress_chars("━━╌"));
    }
    bar
}

async fn open_hash(session: &Session, named: &Named) -> Result<ShardedHash, Failure> {
    let opened = ShardedHash::options().timeout(session.timeout).open(&session.store, named.bytes()).await;
    opened.map_err(|error| explained(error, named, "hash set", "FIELD VALUE"))
}

async fn open_set(session: &Session, named: &Named) -> Result<ShardedSet, Failure> {
    let opened = ShardedSet::options().timeout(session.timeout).open(&session.store, named.bytes()).await;
    opened.map_err(|error| explained(error, named, "sharded-set add", "MEMBER"))
}

pub(crate) fn explained(error: larder::Error, named: &Named, verb: &str, what: &str) -> Failure {
    let hint = format!("`larder {verb} {} {what}` creates it", named.name.to_string_lossy());
    Failure::from(error).hint_if_absent(hint)
}
