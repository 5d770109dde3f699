//! `larder queue …` and `larder stack …`: the same verbs, on either end of a line.

mod work;

use std::ffi::OsString;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use larder::queue::{Claim, ClaimId};
use larder::{Queue, QueueOptions, QueueStat, Stack, StackOptions, StoreRef};
use serde_json::json;

use crate::args::{Named, positive_time, time};
use crate::exit::{Exit, Failure};
use crate::input::{Elements, Source, read_batches};
use crate::output::bytes;
use crate::session::Session;
use work::Work;

#[derive(Debug, Subcommand)]
pub(crate) enum LineVerb {
    /// Push items, in the order given; creates it if there is none
    #[command(after_help = PUSH_HELP)]
    Push(Push),
    /// Take an item for good and print it
    #[command(after_help = "\
Prints the item and a line end. The item is gone: should whoever reads it die before it is done, it is lost (`claim` and `work` do \
not lose it). Nothing to take, or nothing that came within --wait: exit code 1.

With --wait it ends as an item comes where the store tells of changes (Redis and Valkey); elsewhere it looks again after 250 ms at the most.

Round trips: open 2, pop 2; 1 where there is nothing, and 1 for each look of --wait.

Examples:
  larder queue pop jobs
  larder queue pop jobs --wait 1m
  larder stack pop undo")]
    Pop(Popping),
    /// Take an item until it is acknowledged; print its id and the item
    #[command(after_help = "\
Prints the claim's id, a tab, the item and a line end. Until the lease ends nobody else is given the item; then, unless it was \
acknowledged, somebody is. The lease goes by the server's clock, in whole seconds, and ends up to 2 s late. Nothing to take, or nothing \
that came within --wait: exit code 1.

Round trips: open 2, claim 2; 1 where there is nothing, and 1 for each look of --wait.

Examples:
  larder queue claim jobs --lease 1m
  larder queue claim jobs --wait 10m
  IFS=$'\\t' read -r id item < <(larder queue claim jobs) && ./job \"$item\" && larder queue ack jobs \"$id\"")]
    Claim(Taking),
    /// Acknowledge a claim: the item is done with
    #[command(after_help = "\
Prints nothing. A claim that was acknowledged already, or whose item was given to another after its lease: exit code 5.

Round trips: open 2, ack 1.

Examples:
  larder queue ack jobs 00c0ffee00c0ffee")]
    Ack(Claimed),
    /// Give a claimed item back: the next consumer gets it
    #[command(after_help = "\
Prints nothing. A claim that is over: exit code 5.

Round trips: open 2, release 1.

Examples:
  larder queue release jobs 00c0ffee00c0ffee")]
    Release(Claimed),
    /// Let the lease of a claim begin anew
    #[command(after_help = "\
Prints nothing. A lease that has run out: exit code 5.

Round trips: open 2, renew 1.

Examples:
  larder queue renew jobs 00c0ffee00c0ffee --lease 5m")]
    Renew(Renewal),
    /// Print how many items are not acknowledged yet
    #[command(after_help = "\
Items that wait and items that are claimed. Data that are gone are an error, exit code 4, until a consumer was told of them.

Round trips: open 2, len 2, and 1 more for each further 16 segments of 1,000 items; 4 in all of a short one.

Examples:
  larder queue len jobs")]
    Len(Named),
    /// Print figures
    #[command(after_help = "\
A name and a number a line: items ready, claimed, acknowledged so far; segments, their bytes and how many of them are acknowledged items, those that are missing, and what was lost.

Round trips: open 2, stat 2, and 1 more for each further 16 segments of 1,000 items; 4 in all of a short one.

Examples:
  larder queue stat jobs
  larder --json queue stat jobs | jq .ready")]
    Stat(Named),
    /// Run a command for each item: acknowledged when it exits with 0, else given back
    #[command(after_help = work::HELP)]
    Work(Work),
}

#[derive(Args, Debug)]
pub(crate) struct Push {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The items; `-` alone reads them from standard input, one a line
    #[arg(required = true, value_name = "ITEM")]
    pub(crate) items: Vec<OsString>,
    /// How many bytes are held at the most, when it is created; 1 GiB if not given
    #[arg(long, value_name = "BYTES")]
    pub(crate) bytes_max: Option<u64>,
    /// Fail if there is none, instead of creating it
    #[arg(long)]
    pub(crate) existing: bool,
}

const PUSH_HELP: &str = "\
Prints nothing. Items of standard input are pushed in their order. An error says how many were pushed before it; if any were, the exit code is 7, as all of them once more would push these twice. At the limit of bytes: exit code 8.

Round trips: open 2 (4 when it is created), push 1 for each 1,000 items or 16 KiB, and 2 more where a segment is opened; 3 in all for a few items, 5 when it is created.

Examples:
  larder queue push jobs 'resize 1.png' 'resize 2.png'
  find . -name '*.png' | larder queue push jobs -
  larder stack push undo \"$state\"";

#[derive(Args, Debug)]
pub(crate) struct Popping {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How long to wait for an item if there is none; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Taking {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How long the item is nobody else's
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_time)]
    pub(crate) lease: Duration,
    /// How long to wait for an item if there is none; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Claimed {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The id that `claim` printed
    #[arg(value_parser = claim_id)]
    pub(crate) id: ClaimId,
}

#[derive(Args, Debug)]
pub(crate) struct Renewal {
    #[command(flatten)]
    pub(crate) claimed: Claimed,
    /// How long from now
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_time)]
    pub(crate) lease: Duration,
}

fn claim_id(text: &str) -> Result<ClaimId, String> {
    text.parse().map_err(|error: larder::Error| error.detail().to_owned())
}

/// What is pushed in one write: it travels in one piece, whatever the sizes that a queue was made with by default.
const PART_ITEMS_MAX: usize = 1_000;
const PART_BYTES_MAX: usize = 16 * 1024;

/// Which of the two a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Queue,
    Stack,
}

impl Which {
    fn word(self) -> &'static str {
        match self {
            Which::Queue => "queue",
            Which::Stack => "stack",
        }
    }
}

/// An open queue or stack.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    Queue(Queue),
    Stack(Stack),
}

macro_rules! each {
    ($line:expr, $handle:ident => $call:expr) => {
        match $line {
            Line::Queue($handle) => $call,
            Line::Stack($handle) => $call,
        }
    };
}

impl Line {
    async fn open(which: Which, store: &StoreRef, name: &[u8], options: &QueueOptions) -> larder::Result<Line> {
        Ok(match which {
            Which::Queue => Line::Queue(options.open(store, name).await?),
            Which::Stack => Line::Stack(StackOptions::from(options.clone()).open(store, name).await?),
        })
    }

    pub(crate) async fn make(
        which: Which,
        store: &StoreRef,
        name: &[u8],
        options: &QueueOptions,
    ) -> larder::Result<Line> {
        Ok(match which {
            Which::Queue => Line::Queue(options.open_or_create(store, name).await?),
            Which::Stack => Line::Stack(StackOptions::from(options.clone()).open_or_create(store, name).await?),
        })
    }

    pub(crate) async fn push_all(&self, items: Elements) -> larder::Result<()> {
        each!(self, line => line.push_all(items).await)
    }

    pub(crate) async fn pop(&self) -> larder::Result<Option<Bytes>> {
        each!(self, line => line.pop().await)
    }

    async fn pop_within(&self, wait: Duration) -> larder::Result<Option<Bytes>> {
        each!(self, line => line.pop_within(wait).await)
    }

    pub(crate) async fn claim(&self, lease: Duration) -> larder::Result<Option<Claim>> {
        each!(self, line => line.claim(lease).await)
    }

    async fn claim_within(&self, lease: Duration, wait: Duration) -> larder::Result<Option<Claim>> {
        each!(self, line => line.claim_within(lease, wait).await)
    }

    async fn changed(&self, poll: Duration, most: Duration) -> larder::Result<()> {
        each!(self, line => line.changed(poll, most).await)
    }

    async fn ack(&self, id: ClaimId) -> larder::Result<()> {
        each!(self, line => line.ack(id).await)
    }

    async fn release(&self, id: ClaimId) -> larder::Result<()> {
        each!(self, line => line.release(id).await)
    }

    async fn renew(&self, id: ClaimId, lease: Duration) -> larder::Result<()> {
        each!(self, line => line.renew(id, lease).await)
    }

    pub(crate) async fn len(&self) -> larder::Result<u64> {
        each!(self, line => line.len().await)
    }

    async fn stat(&self) -> larder::Result<QueueStat> {
        each!(self, line => line.stat().await)
    }
}

pub(crate) async fn run(session: &Session, which: Which, verb: LineVerb) -> Result<u8, Failure> {
    let exit = match verb {
        LineVerb::Push(args) => push(session, which, &args).await?,
        LineVerb::Pop(args) => {
            let item = open(session, which, &args.named).await?.pop_within(args.wait).await?;
            match item {
                Some(item) if session.out.json => session.out.answer("", &json!({"item": bytes(&item)}))?,
                Some(item) => session.out.list(&[item])?,
                None => return nothing(session),
            }
            Exit::Ok
        }
        LineVerb::Claim(args) => return claim(session, which, &args).await,
        LineVerb::Ack(args) => {
            open(session, which, &args.named).await?.ack(args.id).await?;
            Exit::Ok
        }
        LineVerb::Release(args) => {
            open(session, which, &args.named).await?.release(args.id).await?;
            Exit::Ok
        }
        LineVerb::Renew(args) => {
            open(session, which, &args.claimed.named).await?.renew(args.claimed.id, args.lease).await?;
            Exit::Ok
        }
        LineVerb::Len(named) => {
            let len = open(session, which, &named).await?.len().await?;
            session.out.answer(&len.to_string(), &json!({"name": bytes(named.bytes()), "len": len}))?;
            Exit::Ok
        }
        LineVerb::Stat(named) => {
            let stat = open(session, which, &named).await?.stat().await?;
            print(session, &named, &stat)?;
            Exit::Ok
        }
        LineVerb::Work(args) => {
            let line = open(session, which, &args.named).await?;
            return work::run(line, args).await;
        }
    };
    Ok(exit as u8)
}

async fn open(session: &Session, which: Which, named: &Named) -> Result<Line, Failure> {
    let options = QueueOptions::default().timeout(session.timeout);
    let line = Line::open(which, &session.store, named.bytes(), &options).await;
    let hint = format!("`larder {} push {} ITEM` creates it", which.word(), named.name.to_string_lossy());
    line.map_err(|error| Failure::from(error).hint_if_absent(hint))
}

async fn push(session: &Session, which: Which, args: &Push) -> Result<Exit, Failure> {
    let source = Source::of(&args.items)?;
    let line = if args.existing {
        open(session, which, &args.named).await?
    } else {
        let options = QueueOptions::default().timeout(session.timeout);
        let options = args.bytes_max.iter().fold(options, |options, &bytes| options.bytes_max(bytes));
        Line::make(which, &session.store, args.named.bytes(), &options).await?
    };
    let Source::Typed(items) = source else {
        // One batch after the other, unlike elements of a set: their order matters.
        let (mut batches, mut done) = (read_batches(), 0);
        while let Some(batch) = batches.recv().await {
            let batch = batch.map_err(|failure| failure.after_some(done, PUSHED))?;
            push_parts(&line, batch, &mut done).await?;
        }
        return Ok(Exit::Ok);
    };
    push_parts(&line, items, &mut 0).await?;
    Ok(Exit::Ok)
}

/// Of so many items.
const PUSHED: &str = "items are pushed";

/// Pushes items a write at a time: so it is known of each whether it is there.
async fn push_parts(line: &Line, items: Elements, done: &mut usize) -> Result<(), Failure> {
    let mut part = Elements::new();
    let mut bytes = 0;
    let mut items = items.into_iter().peekable();
    while let Some(item) = items.next() {
        bytes += item.len();
        part.push(item);
        let is_full = |next: &Vec<u8>| part.len() >= PART_ITEMS_MAX || bytes + next.len() > PART_BYTES_MAX;
        if items.peek().is_none_or(is_full) {
            let count = part.len();
            let pushed = line.push_all(std::mem::take(&mut part)).await;
            pushed.map_err(|error| Failure::from(error).after_some(*done, PUSHED))?;
            *done += count;
            bytes = 0;
        }
    }
    Ok(())
}

async fn claim(session: &Session, which: Which, args: &Taking) -> Result<u8, Failure> {
    let line = open(session, which, &args.named).await?;
    let Some(claim) = line.claim_within(args.lease, args.wait).await? else { return nothing(session) };
    if session.out.json {
        let id = claim.id().to_string();
        let object = json!({"id": id, "attempts": claim.attempts(), "item": bytes(claim.item())});
        session.out.answer("", &object)?;
    } else {
        session.out.list(&[[claim.id().to_string().as_bytes(), b"\t", claim.item()].concat()])?;
    }
    Ok(Exit::Ok as u8)
}

/// Says that there is nothing to take: not at all to people, whom the exit code tells.
fn nothing(session: &Session) -> Result<u8, Failure> {
    // Where nobody reads it, it must not be said to be done.
    session.out.answer("", &json!({"item": null})).map_err(|failure| failure.after("there is nothing to take"))?;
    Ok(Exit::No as u8)
}

/// Prints figures, a name and a number a line.
fn print(session: &Session, named: &Named, stat: &QueueStat) -> Result<(), Failure> {
    let figures = [
        ("ready", stat.ready),
        ("claimed", stat.claimed),
        ("acknowledged", stat.acknowledged),
        ("segments", stat.segments),
        ("bytes", stat.bytes),
        ("stale_bytes", stat.stale_bytes),
        ("segments_missing", stat.segments_missing),
        ("segments_lost", stat.segments_lost),
        ("items_lost", stat.items_lost),
    ];
    let plain: Vec<String> = figures.iter().map(|(name, figure)| format!("{name} {figure}")).collect();
    let mut object = json!({"name": bytes(named.bytes())});
    for (name, figure) in figures {
        object[name] = json!(figure);
    }
    session.out.answer(&plain.join("\n"), &object)
}
