//! `larder array …`

use std::ffi::OsString;

use clap::{Args, Subcommand};
use larder::{Array, ArrayStat, Error, ErrorKind};
use serde_json::json;

use crate::args::Named;
use crate::exit::{Exit, Failure};
use crate::input::{Elements, Source, for_each_batch, read_batches};
use crate::output::{argument, bytes};
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ArrayVerb {
    /// Append elements to the array, which is created if need be
    #[command(after_help = "\
Prints nothing. The elements keep their order; those of standard input (`-`, one a line) go out 1024 at a time, one batch after the other. \
An error says how many of them were pushed before it; if any were, the exit code is 7, as all of them once more would push these twice.

With --shards, an array that is created is spread over that many keys: then the order holds within a key only, and it can hold more than \
one item of the store.

Round trips: open 1 (3 when it is created), push 1; from standard input 1 for every 1024 elements.

Examples:
  larder array push jobs sweep cook sweep
  larder array push jobs -- -v
  tail -n 100 app.log | larder array push lines -")]
    Push(ArrayPush),
    /// Print the elements of the array, one a line, in their order
    #[command(after_help = "\
An empty array prints nothing and exits with 0. An array that is spread over several keys is printed key after key.

Round trips: open 1, get 1.

Examples:
  larder array get jobs
  larder --json array get jobs | jq length")]
    Get(Named),
    /// Remove every occurrence of some elements and append others, all at once
    #[command(after_help = "\
Prints nothing. What is deleted goes first, then the added elements are appended; everybody who reads the array sees all of it or nothing, \
also if this command dies midway. `--add -` or `--delete -` reads elements from standard input, one a line. An element that \
begins with a dash is written as --add=-v.

Round trips: open 1 (3 when it is created), change 1; 3 where the elements belong to several keys.

Examples:
  larder array change hosts --add 10.0.0.3 --delete 10.0.0.1 10.0.0.2
  larder array change jobs --delete sweep
  larder array get old | larder array change hosts --add new --delete -")]
    Change(ArrayChange),
    /// Remove every occurrence of elements from the array
    #[command(after_help = "\
Prints nothing; an element that is not in the array is no error. `-` reads elements from standard input, one a line.

Round trips: open 1, remove 1; from standard input 1 for every 1024 elements.

Examples:
  larder array remove jobs sweep
  larder array get done | larder array remove jobs -")]
    Remove(ArrayElements),
    /// Rewrite the array without what was removed, and print the figures
    #[command(after_help = "\
Arrays are compacted by those who read them when it pays; this does it at once.

Round trips: open 1, compact 1 to read and 1 to write.

Examples:
  larder array compact jobs")]
    Compact(Named),
    /// Print the array's figures: elements, bytes, live and stale
    #[command(after_help = "\
Round trips: open 1, stat 1.

Examples:
  larder array stat jobs")]
    Stat(Named),
    /// Go on with an array that is `rolled back`: take what each of its servers holds
    #[command(after_help = "\
Prints `accepted`, or `nothing was lost`. Where an array is spread over several keys and the server of some of them went back, as by a failover, the keys may not fit \
each other any more, and every read fails. This takes of each key what is there. From then on changes that were made before the loss may be read by halves: \
look through the elements. Processes that changed or read the array before are told of the loss until they open it anew.

Round trips: open 1, look 1; 5 more where something was lost, and more where others write meanwhile.

Examples:
  larder array accept-loss hosts
  larder --json array accept-loss hosts")]
    AcceptLoss(Named),
}

#[derive(Args, Debug)]
pub(crate) struct ArrayElements {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The elements; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "ELEMENT")]
    pub(crate) elements: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct ArrayMade {
    /// If it is created: over how many keys it is spread
    #[arg(long, value_name = "COUNT")]
    pub(crate) shards: Option<u16>,
    /// Never create it: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ArrayPush {
    #[command(flatten)]
    pub(crate) elements: ArrayElements,
    #[command(flatten)]
    pub(crate) made: ArrayMade,
}

#[derive(Args, Debug)]
pub(crate) struct ArrayChange {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Append these; `-` alone: from standard input, one a line
    #[arg(long, value_name = "ELEMENT", num_args = 1.., required_unless_present = "delete")]
    pub(crate) add: Vec<OsString>,
    /// Remove every occurrence of these; `-` alone: from standard input, one a line
    #[arg(long, value_name = "ELEMENT", num_args = 1..)]
    pub(crate) delete: Vec<OsString>,
    #[command(flatten)]
    pub(crate) made: ArrayMade,
}

pub(crate) async fn run(session: &Session, verb: ArrayVerb) -> Result<Exit, Failure> {
    match verb {
        ArrayVerb::Push(args) => push(session, &args).await?,
        ArrayVerb::Get(named) => {
            let elements = open(session, &named).await?.elements().await?;
            session.out.list(&elements)?;
        }
        ArrayVerb::Change(args) => change(session, &args).await?,
        ArrayVerb::Remove(args) => {
            let source = Source::of(&args.elements)?;
            let array = open(session, &args.named).await?;
            for_each_batch(source, |batch| {
                let array = array.clone();
                async move { Ok(array.remove(batch).await?) }
            })
            .await?;
        }
        ArrayVerb::Compact(named) => {
            let stat = open(session, &named).await?.compact().await?;
            print(session, &named, &stat)?;
        }
        ArrayVerb::Stat(named) => {
            let stat = open(session, &named).await?.stat().await?;
            print(session, &named, &stat)?;
        }
        ArrayVerb::AcceptLoss(named) => {
            let accepted = open(session, &named).await?.accept_loss().await?;
            let plain = if accepted { "accepted" } else { "nothing was lost" };
            session.out.answer(plain, &json!({"name": bytes(named.bytes()), "accepted": accepted}))?;
        }
    }
    Ok(Exit::Ok)
}

async fn push(session: &Session, args: &ArrayPush) -> Result<(), Failure> {
    let source = Source::of(&args.elements.elements)?;
    let array = make(session, &args.elements.named, &args.made).await?;
    match source {
        Source::Typed(elements) => array.push(elements).await?,
        // One after the other: the order is part of what is pushed.
        Source::Stdin => {
            let (mut batches, mut done) = (read_batches(), 0);
            while let Some(batch) = batches.recv().await {
                let so_far = |failure: Failure| failure.after_some(done, "elements of standard input are pushed");
                let batch = batch.map_err(so_far)?;
                let count = batch.len();
                array.push(batch).await.map_err(|error| so_far(error.into()))?;
                done += count;
            }
        }
    }
    Ok(())
}

async fn change(session: &Session, args: &ArrayChange) -> Result<(), Failure> {
    let (add, delete) = (Source::of(&args.add)?, Source::of(&args.delete)?);
    if let (Source::Stdin, Source::Stdin) = (&add, &delete) {
        return Err(Failure::usage("standard input (`-`) can be read for --add or for --delete, not for both"));
    }
    let array = make(session, &args.named, &args.made).await?;
    let whole = async |source| whole(session, &args.named, &array, source).await;
    let (add, delete) = (whole(add).await?, whole(delete).await?);
    Ok(array.change(add, delete).await?)
}

/// What an operation takes beside its elements, at the most.
const AROUND_BYTES: u64 = 1_024;

/// All of it: a change is one call, however long. More than any change of the array can hold is not read: it may have no end.
async fn whole(session: &Session, named: &Named, array: &Array, source: Source) -> Result<Elements, Failure> {
    if let Source::Typed(elements) = source {
        return Ok(elements);
    }
    let shard_bytes_max = array.element_bytes_max() as u64 + AROUND_BYTES;
    // It is asked for only where it matters: most changes are small.
    let (mut elements, mut bytes, mut shards) = (Elements::new(), 0, None);
    let mut batches = read_batches();
    while let Some(batch) = batches.recv().await {
        let batch = batch?;
        bytes += batch.iter().map(|element| element.len() as u64 + 1).sum::<u64>();
        elements.extend(batch);
        if bytes <= shard_bytes_max {
            continue;
        }
        let shards = match shards {
            Some(shards) => shards,
            None => {
                let found = larder::find(&session.store, session.ctx(), &named.checked()?).await?;
                *shards.insert(found.map_or(1, |manifest| u64::from(manifest.shards)))
            }
        };
        let bytes_max = shard_bytes_max.saturating_mul(shards);
        if bytes > bytes_max {
            let detail = format!(
                "the elements on standard input come to more than {bytes_max} bytes, and no change of {shards} shards can \
                 hold them: use several calls, or an array with more shards"
            );
            return Err(Error::new(ErrorKind::BadInput, detail).into());
        }
    }
    Ok(elements)
}

async fn make(session: &Session, named: &Named, made: &ArrayMade) -> Result<Array, Failure> {
    let mut options = Array::options().timeout(session.timeout);
    if let Some(shards) = made.shards {
        options = options.shards(shards);
    }
    if made.existing {
        return options.open(&session.store, named.bytes()).await.map_err(|error| explained(error, named));
    }
    Ok(options.open_or_create(&session.store, named.bytes()).await?)
}

async fn open(session: &Session, named: &Named) -> Result<Array, Failure> {
    let options = Array::options().timeout(session.timeout);
    options.open(&session.store, named.bytes()).await.map_err(|error| explained(error, named))
}

fn explained(error: larder::Error, named: &Named) -> Failure {
    let hint = format!("`larder array push {} ELEMENT` creates it", String::from_utf8_lossy(argument(&named.name)));
    Failure::from(error).hint_if_absent(hint)
}

/// Prints figures, a name and a number a line.
fn print(session: &Session, named: &Named, stat: &ArrayStat) -> Result<(), Failure> {
    let figures = [
        ("elements", stat.elements),
        ("bytes", stat.bytes),
        ("live_bytes", stat.live_bytes),
        ("stale_bytes", stat.stale_bytes),
        ("shards", u64::from(stat.shards)),
        ("shard_bytes", stat.shard_bytes),
        ("shard_bytes_max", stat.shard_bytes_max),
    ];
    let plain: Vec<String> = figures.iter().map(|(name, figure)| format!("{name} {figure}")).collect();
    let mut object = json!({"name": bytes(named.bytes())});
    for (name, figure) in figures {
        object[name] = json!(figure);
    }
    session.out.answer(&plain.join("\n"), &object)
}
