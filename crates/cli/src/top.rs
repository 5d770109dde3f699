//! `larder top …`.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::{Args, Subcommand};
use larder::ShardedSortedSet;
use larder::text::Shown;
use serde_json::{Value, json};

use crate::args::Named;
use crate::exit::{Exit, Failure};
use crate::input::{BATCH, Elements, LineCount, Source, for_each_batch_by_key, for_each_batch_in_turn, number_of};
use crate::output::bytes;
use crate::screen::ScreenArgs;
use crate::session::Session;
use crate::sharded::{self, Making};

/// The sorted set's verbs; or none, and then it is the screen.
#[derive(Args, Debug)]
pub(crate) struct Top {
    #[command(subcommand)]
    pub(crate) verb: Option<TopVerb>,
    #[command(flatten)]
    pub(crate) screen: ScreenArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopVerb {
    /// Give members scores
    #[command(after_help = "\
Prints how many of the members are new. `-` alone reads lines from standard input: a member, a tab, a score. A score is a number, with a fraction if you like; whole numbers to \
2^53 are exact.

The sorted set is created if need be, for --expected members, or with --shards, and keeps --kept of them at each end. With --dense members are whole numbers from 0, so many of \
them a shard.

Round trips: open 2 (4 when it is created), set 2 for every batch, 3 where it changes an end.

Examples:
  larder top set points ann 12 bob 7.5
  larder top set points --kept 10 cid -3
  larder top set points --expected 1000000 - < points.tsv")]
    Set(TopSet),
    /// Add to the scores of members
    #[command(after_help = "\
Prints the new score of each, in their order; one that is not there begins at 0, and the sorted set is created as `top set` does. `-` alone reads lines from standard input: a \
member, a tab, a number.

Each add counts once. Should a reply be lost and the outcome not be found out, or should something fail once some lines of standard input are done, the exit code is 7: adding \
again may count twice.

Round trips: open 2 (4 when it is created), add 2 for every batch, 3 where it changes an end.

Examples:
  larder top add points ann 1 bob 0.5
  larder top add points ann -1")]
    Add(TopSet),
    /// Print the scores of members
    #[command(after_help = "\
Prints a score a line; for a member that is not there nothing, and the exit code is 1. With --json an object a member. `-` alone reads members from standard input, one a line.

Round trips: open 2, get 1 for every batch, 2 where one stands at an end.

Examples:
  larder top get points ann
  larder --json top get points - < names.txt")]
    Get(TopMembers),
    /// Remove members
    #[command(after_help = "\
Prints how many there were. `-` alone reads members from standard input, one a line.

Round trips: open 2, remove 2 for every batch, 3 where it changes an end; filling one that falls short 3 for every 128 shards, and 3.

Examples:
  larder top remove points ann bob")]
    Remove(TopMembers),
    /// Print the members of the highest scores
    #[command(after_help = "\
A line each, the highest first: the member, a tab, its score; with --json an object each. As many as are kept, or COUNT. With --all all there are, in no order, from the shards.

Round trips: open 2, list 1; with --all 1 for every 128 shards, and 3.

Examples:
  larder top list points 10
  larder top list points --all | sort -k 2 -n")]
    List(TopList),
    /// Print the members of the lowest scores
    #[command(after_help = "\
A line each, the lowest first: the member, a tab, its score; with --json an object each. As many as are kept, or COUNT.

Round trips: open 2, bottom 1.

Examples:
  larder top bottom points 10")]
    Bottom(TopEnd),
    /// Print figures
    #[command(after_help = "\
Members and shards, the fullest shard, and how many are kept at each end. `larder reshard` spreads them over another number of shards.

Round trips: open 2, stat 1 for every 1,024 shards.

Examples:
  larder top stat points")]
    Stat(Named),
}

#[derive(Args, Debug)]
pub(crate) struct TopSet {
    #[command(flatten)]
    named: Named,
    /// Members and scores in turn; `-` alone: from standard input, a line each, a tab between member and score
    #[arg(required = true, value_names = ["MEMBER", "SCORE"], num_args = 1.., allow_negative_numbers = true)]
    entries: Vec<OsString>,
    #[command(flatten)]
    making: Making,
    /// If it is created: how many members are kept at each end, 1 to 1,000; 100 if not given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    kept: Option<u16>,
}

#[derive(Args, Debug)]
pub(crate) struct TopMembers {
    #[command(flatten)]
    named: Named,
    /// The members; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct TopEnd {
    #[command(flatten)]
    named: Named,
    /// How many; as many as are kept if not given
    #[arg(value_name = "COUNT")]
    count: Option<u16>,
}

#[derive(Args, Debug)]
pub(crate) struct TopList {
    #[command(flatten)]
    end: TopEnd,
    /// All members there are, in no order
    #[arg(long)]
    all: bool,
}

pub(crate) async fn top(session: &Session, verb: TopVerb) -> Result<Exit, Failure> {
    match verb {
        TopVerb::Set(args) => {
            let (source, parse) = scored(&args)?;
            let set = made(session, &args).await?;
            let takes = takes(&set);
            sharded::count_by_key(session, (&args.named, "new"), source, (Some(member_of), takes), |elements| {
                let set = set.clone();
                async move { set.set(parse(elements)?).await }
            })
            .await?;
        }
        TopVerb::Add(args) => add(session, &args).await?,
        TopVerb::Get(args) => return get(session, &args).await,
        TopVerb::Remove(args) => {
            let (source, set) = (Source::of(&args.members)?, open(session, &args.named).await?);
            let takes = {
                let set = set.clone();
                move |member: &[u8]| set.takes(member)
            };
            sharded::count(session, (&args.named, "removed"), source, takes, |members| {
                let set = set.clone();
                async move { set.remove(members).await }
            })
            .await?;
        }
        TopVerb::List(args) => {
            if args.all && args.end.count.is_some() {
                return Err(Failure::usage("--all prints all members there are: it takes no COUNT"));
            }
            let set = open(session, &args.end.named).await?;
            let entries = match args.all {
                true => set.entries().await?,
                false => set.top(args.end.count.map_or(set.kept(), usize::from)).await?,
            };
            print(session, &entries)?;
        }
        TopVerb::Bottom(args) => {
            let set = open(session, &args.named).await?;
            print(session, &set.bottom(args.count.map_or(set.kept(), usize::from)).await?)?;
        }
        TopVerb::Stat(named) => stat(session, &named).await?,
    }
    Ok(Exit::Ok)
}

type Scored = Vec<(Vec<u8>, f64)>;
/// Reads elements as members and scores.
type Parse = fn(Elements) -> larder::Result<Scored>;

/// Where members and scores come from, and how they are read there.
fn scored(args: &TopSet) -> Result<(Source, Parse), Failure> {
    let in_turn = |elements: Elements| -> larder::Result<Scored> {
        sharded::in_turn(elements).into_iter().map(with_number).collect()
    };
    match Source::of(&args.entries)? {
        Source::Stdin => Ok((Source::Stdin, |lines| lines.iter().map(|line| with_number(by_tab(line)?)).collect())),
        Source::Typed(elements) if elements.len() % 2 == 1 => {
            Err(Failure::usage("a member has no score: members and scores are given in turn, or from standard input"))
        }
        Source::Typed(elements) => {
            // Before anything is made for them.
            let _: Scored = in_turn(elements.clone())?;
            Ok((Source::Typed(elements), in_turn))
        }
    }
}

/// A member and its score, of a line. A member may hold tabs; a score holds none.
///
/// # Errors
/// For a line without a tab; nothing of its batch is set.
fn by_tab(line: &[u8]) -> larder::Result<(Vec<u8>, Vec<u8>)> {
    match line.iter().rposition(|&byte| byte == b'\t') {
        Some(at) => Ok((line[..at].to_vec(), line[at + 1..].to_vec())),
        None => {
            let detail = format!("a line of standard input has no tab between member and score: {}", Shown(line));
            Err(larder::Error::new(larder::ErrorKind::BadInput, detail))
        }
    }
}

/// # Errors
/// For a score that is no number; nothing of its batch is set.
fn with_number((member, score): (Vec<u8>, Vec<u8>)) -> larder::Result<(Vec<u8>, f64)> {
    let number = std::str::from_utf8(&score).ok().and_then(|text| text.trim().parse::<f64>().ok());
    match number.filter(|number| !number.is_nan()) {
        Some(number) => Ok((member, number)),
        None => {
            let detail = format!("the score of {} is not a number: {}", Shown(&member), Shown(&score));
            Err(larder::Error::new(larder::ErrorKind::BadInput, detail))
        }
    }
}

/// What refuses a line that is wrong.
fn takes(set: &ShardedSortedSet) -> impl sharded::Takes {
    let set = set.clone();
    move |line: &[u8]| set.takes(with_number(by_tab(line)?)?.0)
}

/// Whom a line is about.
fn member_of(line: &[u8]) -> u64 {
    number_of(line.iter().rposition(|&byte| byte == b'\t').map_or(line, |at| &line[..at]))
}

async fn add(session: &Session, args: &TopSet) -> Result<(), Failure> {
    let (source, parse) = scored(args)?;
    let (set, out) = (made(session, args).await?, session.out);
    let lines = LineCount::of(&source);
    let add = |elements| {
        let (set, lines) = (set.clone(), lines.next(&elements));
        async move {
            let refused = |error| lines.failure(error, takes(&set));
            let entries = parse(elements).map_err(refused)?;
            let scores = set.add(entries.iter().map(|(member, by)| (member, *by))).await.map_err(refused)?;
            Ok((entries, scores))
        }
    };
    // A line tells the score as it is after it.
    let mut is_any_done = false;
    let added = for_each_batch_by_key(BATCH, source, Some(member_of), add, |(entries, scores)| {
        is_any_done = true;
        let answer = |((member, _), score): (&(Vec<u8>, f64), f64)| (text(score), object(member, Some(score)));
        out.answers(entries.iter().zip(scores).map(answer))
    })
    .await;
    added.map_err(|failure| failure.with_some_done(is_any_done))
}

async fn get(session: &Session, args: &TopMembers) -> Result<Exit, Failure> {
    let (source, set) = (Source::of(&args.members)?, open(session, &args.named).await?);
    let (out, mut is_missing, lines) = (session.out, false, LineCount::of(&source));
    let look = |members: Elements| {
        let (set, lines) = (set.clone(), lines.next(&members));
        async move {
            let scores = set.scores(&members).await;
            let scores = scores.map_err(|error| lines.failure(error, |member| set.takes(member)))?;
            Ok((members, scores))
        }
    };
    for_each_batch_in_turn(BATCH, source, look, |(members, scores)| {
        is_missing |= scores.iter().any(Option::is_none);
        let all = members.iter().zip(scores).filter(|(_, score)| out.json || score.is_some());
        out.answers(all.map(|(member, score)| (score.map(text).unwrap_or_default(), object(member, score))))
    })
    .await?;
    Ok(if is_missing { Exit::No } else { Exit::Ok })
}

fn print(session: &Session, entries: &[(::bytes::Bytes, f64)]) -> Result<(), Failure> {
    if session.out.json {
        return session.out.answers(entries.iter().map(|(member, score)| ("", object(member, Some(*score)))));
    }
    let line = |(member, score): &(::bytes::Bytes, f64)| [&member[..], b"\t", text(*score).as_bytes()].concat();
    let lines: Vec<Vec<u8>> = entries.iter().map(line).collect();
    session.out.list(&lines)
}

async fn stat(session: &Session, named: &Named) -> Result<(), Failure> {
    let set = open(session, named).await?;
    let stat = set.stat().await?;
    let mut plain = format!(
        "members {}\nshards {}\nlargest_shard {}\nkept {}",
        stat.elements,
        stat.shards,
        stat.largest_shard,
        set.kept()
    );
    if let Some(from) = stat.moving_from {
        _ = write!(plain, "\nmoving_from {from}");
    }
    let object = json!({
        "name": bytes(named.bytes()), "members": stat.elements, "shards": stat.shards,
        "largest_shard": stat.largest_shard, "kept": set.kept(), "moving_from": stat.moving_from,
    });
    session.out.answer(&plain, &object)
}

/// A score as the shortest number that reads the same.
fn text(score: f64) -> String {
    score.to_string()
}

/// JSON has no infinite numbers: they are text.
fn object(member: &[u8], score: Option<f64>) -> Value {
    let score = match score {
        Some(score) if score.is_infinite() => Value::from(text(score)),
        score => json!(score),
    };
    json!({"member": bytes(member), "score": score})
}

async fn made(session: &Session, args: &TopSet) -> Result<ShardedSortedSet, Failure> {
    let set_up = |mut options: larder::ShardedOptions<ShardedSortedSet>| {
        if let Some(kept) = args.kept {
            options = options.kept(kept);
        }
        options
    };
    let opened = sharded::opened!(ShardedSortedSet, session, args.named, &args.making, set_up);
    opened.map_err(|error| sharded::explained(error, &args.named, "top set", "MEMBER SCORE"))
}

pub(crate) async fn open(session: &Session, named: &Named) -> Result<ShardedSortedSet, Failure> {
    let opened = ShardedSortedSet::options().timeout(session.timeout).open(&session.store, named.bytes()).await;
    opened.map_err(|error| sharded::explained(error, named, "top set", "MEMBER SCORE"))
}
