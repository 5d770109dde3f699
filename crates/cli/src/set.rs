//! `larder set …`

use std::collections::HashSet;

use larder::{Set, SetStat};
use serde_json::json;

use crate::args::{SetAdd, SetElements, SetNamed, SetVerb};
use crate::exit::{Exit, Failure};
use crate::input::{Elements, Source, for_each_batch, read_batches};
use crate::output::bytes;
use crate::session::Session;

pub(crate) async fn run(session: &Session, verb: SetVerb) -> Result<Exit, Failure> {
    match verb {
        SetVerb::Add(args) => add(session, &args).await?,
        SetVerb::Remove(args) => remove(session, &args).await?,
        SetVerb::Has(args) => return has(session, &args).await,
        SetVerb::Members(named) => {
            let members = open(session, &named).await?.members().await?;
            session.out.list(&members.to_vec())?;
        }
        SetVerb::Compact(named) => {
            let stat = open(session, &named).await?.compact().await?;
            print(session, &named, &stat)?;
        }
        SetVerb::Stat(named) => {
            let stat = open(session, &named).await?.stat().await?;
            print(session, &named, &stat)?;
        }
    }
    Ok(Exit::Ok)
}

async fn add(session: &Session, args: &SetAdd) -> Result<(), Failure> {
    let SetElements { set: named, elements } = &args.elements;
    let source = Source::of(elements)?;
    let set = if args.existing {
        let set = open(session, named).await?;
        if named.text {
            // A set as text has no manifest: opening it tells nothing.
            set.stat().await.map_err(|error| explained(error, named))?;
        }
        set
    } else if named.text {
        open(session, named).await?
    } else {
        let mut options = Set::options().timeout(session.timeout);
        if let Some(shards) = args.shards {
            options = options.shards(shards);
        }
        options.open_or_create(&session.store, named.named.bytes()).await?
    };
    for_each_batch(source, |batch| {
        let set = set.clone();
        async move { Ok(set.add(batch).await?) }
    })
    .await
}

async fn remove(session: &Session, args: &SetElements) -> Result<(), Failure> {
    let source = Source::of(&args.elements)?;
    let set = open(session, &args.set).await?;
    for_each_batch(source, |batch| {
        let set = set.clone();
        async move { Ok(set.remove(batch).await?) }
    })
    .await
}

async fn has(session: &Session, args: &SetElements) -> Result<Exit, Failure> {
    let source = Source::of(&args.elements)?;
    let set = open(session, &args.set).await?;
    if let Source::Typed(elements) = &source
        && let [element] = elements.as_slice()
    {
        let has = set.has(element).await?;
        return answer(session, [(element, has)]);
    }
    // Reading the set once costs less than asking for each element, and all answers are of one moment.
    let members: HashSet<_> = set.members().await?.into_iter().collect();
    let judged = |elements: &Elements| {
        answer(session, elements.iter().map(|element| (element, members.contains(element.as_slice()))))
    };
    if let Source::Typed(elements) = &source {
        return judged(elements);
    }
    let mut exit = Exit::Ok;
    let mut batches = read_batches();
    while let Some(batch) = batches.recv().await {
        if judged(&batch?)? == Exit::No {
            exit = Exit::No;
        }
    }
    Ok(exit)
}

/// Prints the answers; the exit code says whether all were yes.
fn answer<'a>(session: &Session, answers: impl IntoIterator<Item = (&'a Vec<u8>, bool)>) -> Result<Exit, Failure> {
    let mut exit = Exit::Ok;
    session.out.answers(answers.into_iter().map(|(element, has)| {
        if !has {
            exit = Exit::No;
        }
        (has, json!({"element": bytes(element), "has": has}))
    }))?;
    Ok(exit)
}

async fn open(session: &Session, named: &SetNamed) -> Result<Set, Failure> {
    let options = Set::options().timeout(session.timeout);
    let name = named.named.bytes();
    if named.text {
        return Ok(options.open_text(&session.store, name)?);
    }
    options.open(&session.store, name).await.map_err(|error| explained(error, named))
}

fn explained(error: larder::Error, named: &SetNamed) -> Failure {
    let hint = format!("`larder set add {} ELEMENT` creates it", named.named.name.to_string_lossy());
    Failure::from(error).hint_if_absent(hint)
}

/// Prints figures, a name and a number a line.
fn print(session: &Session, named: &SetNamed, stat: &SetStat) -> Result<(), Failure> {
    let figures = [
        ("members", stat.members),
        ("bytes", stat.bytes),
        ("live_bytes", stat.live_bytes),
        ("stale_bytes", stat.stale_bytes),
        ("removals", stat.removals),
        ("shards", u64::from(stat.shards)),
        ("shard_bytes", stat.shard_bytes),
        ("shard_bytes_max", stat.shard_bytes_max),
    ];
    let plain: Vec<String> = figures.iter().map(|(name, figure)| format!("{name} {figure}")).collect();
    let mut object = json!({"name": bytes(named.named.bytes())});
    for (name, figure) in figures {
        object[name] = json!(figure);
    }
    session.out.answer(&plain.join("\n"), &object)
}
