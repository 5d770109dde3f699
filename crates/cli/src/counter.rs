//! `larder counter …`

use larder::Counter;
use serde_json::json;

use crate::args::{CounterAdd, CounterVerb, Named};
use crate::exit::{Exit, Failure};
use crate::output::{bytes, number};
use crate::session::Session;

pub(crate) async fn run(session: &Session, verb: CounterVerb) -> Result<Exit, Failure> {
    match verb {
        CounterVerb::Add(args) => add(session, &args).await?,
        CounterVerb::Get(named) => {
            let value = open(session, &named).await?.get().await?;
            print(session, &named, value)?;
        }
        CounterVerb::Reset(named) => {
            let before = open(session, &named).await?.reset().await?;
            print(session, &named, before)?;
        }
    }
    Ok(Exit::Ok)
}

async fn add(session: &Session, args: &CounterAdd) -> Result<(), Failure> {
    let mut options = Counter::options().timeout(session.timeout);
    if args.fast {
        options = options.fast();
    }
    if let Some(slots) = args.slots {
        options = options.slots(slots);
    }
    if let Some(copies) = args.copies {
        options = options.copies(copies);
    }
    let name = args.named.bytes();
    let counter = if args.existing {
        options.open(&session.store, name).await.map_err(|error| explained(error, &args.named))?
    } else {
        options.open_or_create(&session.store, name).await?
    };
    counter.add(args.n).await?;
    // The add has landed, which is what was asked for. A slot that could not be given back is taken over later.
    _ = counter.release().await;
    session.out.answer("", &json!({"name": bytes(name), "added": args.n}))
}

async fn open(session: &Session, named: &Named) -> Result<Counter, Failure> {
    let options = Counter::options().timeout(session.timeout);
    options.open(&session.store, named.bytes()).await.map_err(|error| explained(error, named))
}

fn explained(error: larder::Error, named: &Named) -> Failure {
    let hint = format!("`larder counter add {}` creates it", named.name.to_string_lossy());
    Failure::from(error).hint_if_absent(hint)
}

fn print(session: &Session, named: &Named, value: i128) -> Result<(), Failure> {
    session.out.answer(&value.to_string(), &json!({"name": bytes(named.bytes()), "value": number(value)}))
}
