//! `larder table …`

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use larder::{Error, ErrorKind, Table};
use serde_json::json;

use crate::args::{Named, positive_time};
use crate::exit::{Exit, Failure};
use crate::input::{Source, for_each_batch, read_batches};
use crate::output::{argument, bytes};
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum TableVerb {
    /// Put a value under a key, in place of one that is there
    #[command(after_help = PUT_HELP)]
    Put(TablePut),
    /// Print the value under a key
    #[command(after_help = "\
Prints the value, byte by byte, and a line feed; with --json an object. No such key: exit code 1, and nothing is printed. An entry that was \
evicted is lost, exit code 4: the list of keys tells it from one that is absent.

Round trips: open 1, get 1; 2 of a key that is missing.

Examples:
  larder table get prices apple
  larder table get pages /index --raw > index.html")]
    Get(TableGet),
    /// Tell whether there are keys; exit code 1 if one is not
    #[command(after_help = "\
Prints `true` or `false` a key. `-` alone reads keys from standard input, one a line.

Round trips: open 1, and 1 for all keys; 2 if one is missing.

Examples:
  larder table has prices apple && echo yes
  larder table has prices - < keys.txt")]
    Has(TableKeys),
    /// Remove keys with their values
    #[command(after_help = "\
Prints nothing, whether there was such a key or not; with --json an object a key, which says. `-` alone reads keys from standard input, one a line. What \
was lost is off the list then.

Round trips: open 1, remove 3 a key and 2 that tidy up; 2 of a key that is missing.

Examples:
  larder table remove prices apple pear")]
    Remove(TableKeys),
    /// Print all keys, one a line
    #[command(after_help = "\
In no order; with --json one array. Keys of entries that were lost are among them.

Round trips: open 1, keys 1; 2 while others remove entries.

Examples:
  larder table keys prices | sort")]
    Keys(Named),
    /// Print all keys and values
    #[command(after_help = "\
A line each, in no order: the key, a tab, the value; with --json an object each. Should entries be lost, those that are there are printed, the lost \
ones named on standard error, and the exit code is 4.

Round trips: open 1, the list 1, and 1 a server.

Examples:
  larder table entries prices | sort
  larder --json table entries prices | jq -r .key")]
    Entries(Named),
}

const PUT_HELP: &str = "\
Prints nothing. A VALUE of `-` reads the value from standard input, all of it.

The table is created if need be. With --ttl it is one whose entries have lives, and only such a table takes --ttl later on: its list \
knows when a life ends, so that what is over is absent and not lost.

A put whose outcome is unknown is exit code 7; putting it again does no harm, unless others put the same key meanwhile.

Round trips: open 1 (3 when it is created), put 1, 2 of a new key; with lives 3 and 2; and 2 that tidy up after a new one.

Examples:
  larder table put prices apple 3.20
  larder table put sessions \"$id\" - --ttl 30m < session.json";

#[derive(Args, Debug)]
pub(crate) struct TablePut {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The key, 0 to 65536 bytes
    pub(crate) key: OsString,
    /// The value; `-`: from standard input
    pub(crate) value: OsString,
    /// How long the entry lives [default: until it is removed]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) ttl: Option<Duration>,
    /// If it is created: over how many items its list of keys is spread
    #[arg(long, value_name = "COUNT")]
    pub(crate) shards: Option<u16>,
    /// Never create it: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TableGet {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The key
    pub(crate) key: OsString,
    /// Print no line feed behind the value
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TableKeys {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The keys; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
}

pub(crate) async fn run(session: &Session, verb: TableVerb) -> Result<Exit, Failure> {
    match verb {
        TableVerb::Put(args) => put(session, &args).await?,
        TableVerb::Get(args) => return get(session, &args).await,
        TableVerb::Has(args) => return has(session, &args).await,
        TableVerb::Remove(args) => remove(session, &args).await?,
        TableVerb::Keys(named) => {
            let keys = open(session, &named).await?.keys().await?;
            session.out.list(&keys)?;
        }
        TableVerb::Entries(named) => entries(session, &named).await?,
    }
    Ok(Exit::Ok)
}

async fn put(session: &Session, args: &TablePut) -> Result<(), Failure> {
    let name = args.named.bytes();
    let value = if args.value == "-" {
        let mut value = Vec::new();
        io::stdin().lock().read_to_end(&mut value)?;
        value
    } else {
        argument(&args.value).to_vec()
    };
    let table = if args.existing {
        open(session, &args.named).await?
    } else {
        let mut options = Table::options().timeout(session.timeout);
        if let Some(shards) = args.shards {
            options = options.shards(shards);
        }
        if args.ttl.is_some() {
            options = options.ttl(true);
        }
        options.open_or_create(&session.store, name).await?
    };
    let key = argument(&args.key);
    match args.ttl {
        Some(ttl) => table.put_for(key, &value, ttl).await?,
        None => table.put(key, &value).await?,
    }
    table.settle().await;
    session.out.answer("", &json!({"name": bytes(name), "key": bytes(key), "value_bytes": value.len()}))
}

async fn get(session: &Session, args: &TableGet) -> Result<Exit, Failure> {
    let key = argument(&args.key);
    let value = open(session, &args.named).await?.get(key).await?;
    if session.out.json {
        let value = value.as_deref().map(bytes);
        session.out.answer("", &json!({"key": bytes(key), "has": value.is_some(), "value": value}))?;
        return Ok(if value.is_some() { Exit::Ok } else { Exit::No });
    }
    let Some(value) = value else { return Ok(Exit::No) };
    let mut out = io::stdout().lock();
    out.write_all(&value)?;
    if !args.raw {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(Exit::Ok)
}

async fn has(session: &Session, args: &TableKeys) -> Result<Exit, Failure> {
    let source = Source::of(&args.keys)?;
    let table = open(session, &args.named).await?;
    let Source::Typed(keys) = source else {
        let mut exit = Exit::Ok;
        let mut batches = read_batches();
        while let Some(batch) = batches.recv().await {
            if answer(session, &table, &batch?).await? == Exit::No {
                exit = Exit::No;
            }
        }
        return Ok(exit);
    };
    answer(session, &table, &keys).await
}

/// Prints the answers; the exit code says whether all were yes.
async fn answer(session: &Session, table: &Table, keys: &[Vec<u8>]) -> Result<Exit, Failure> {
    let found = table.get_many(keys).await?;
    let exit = if found.iter().all(Option::is_some) { Exit::Ok } else { Exit::No };
    session.out.answers(keys.iter().zip(found).map(|(key, value)| {
        let has = value.is_some();
        (has, json!({"key": bytes(key), "has": has}))
    }))?;
    Ok(exit)
}

async fn remove(session: &Session, args: &TableKeys) -> Result<(), Failure> {
    let source = Source::of(&args.keys)?;
    let table = open(session, &args.named).await?;
    let out = session.out;
    let all = for_each_batch(source, |keys| {
        let table = table.clone();
        async move {
            for key in keys {
                let removed = table.remove(&key).await?;
                out.answer("", &json!({"key": bytes(&key), "removed": removed}))?;
            }
            Ok(())
        }
    });
    let all = all.await;
    table.settle().await;
    all
}

async fn entries(session: &Session, named: &Named) -> Result<(), Failure> {
    let found = open(session, named).await?.entries_and_lost().await?;
    if session.out.json {
        let lines = found.entries.iter().map(|(key, value)| ("", json!({"key": bytes(key), "value": bytes(value)})));
        session.out.answers(lines)?;
    } else {
        let lines: Vec<Vec<u8>> = found.entries.iter().map(|(key, value)| [&key[..], b"\t", value].concat()).collect();
        session.out.list(&lines)?;
    }
    if found.lost.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = found.lost.iter().map(|key| larder::text::Shown(key).to_string()).collect();
    let detail =
        format!("{} of {} entries are gone: {}", shown.len(), shown.len() + found.entries.len(), shown.join(", "));
    Err(Error::new(ErrorKind::Lost, detail).into())
}

async fn open(session: &Session, named: &Named) -> Result<Table, Failure> {
    Table::options().timeout(session.timeout).open(&session.store, named.bytes()).await.map_err(|error| {
        let hint = format!("`larder table put {} KEY VALUE` creates it", named.name.to_string_lossy());
        Failure::from(error).hint_if_absent(hint)
    })
}
