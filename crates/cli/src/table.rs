//! `larder table …`

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use larder::{Error, ErrorKind, Table};
use serde_json::json;

use crate::args::{Named, positive_time};
use crate::exit::{Exit, Failure};
use crate::input::{LineCount, Source, by_tab, by_tabs, each_at_once, for_each_batch, read_batches};
use crate::output::{argument, bytes};
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum TableVerb {
    /// Put values under keys, in place of those that are there
    #[command(after_help = PUT_HELP)]
    Put(TablePut),
    /// Print the values under keys; exit code 1 if one is missing
    #[command(after_help = "\
Prints the value of each key, byte by byte, and a line feed; of several keys in their order, where those that are missing are left out. With --json an \
object each, which says so. `-` alone reads keys from standard input, one a line. A key that is missing: exit code 1. An entry that was \
evicted is lost, exit code 4: the list of keys tells it from one that is absent.

Round trips: open 1, get 1 for all keys of a server, and of every 1024 on standard input; 2 if one is missing; 2 in all for a few keys, 3 if one is missing.

Examples:
  larder table get prices apple pear
  larder --json table get prices - < keys.txt | jq -r .value
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
Prints nothing. A VALUE of `-` reads the value from standard input, all of it. `-` alone, without a value, reads entries from standard input: a key, a tab, \
a value, a line each; of a key that comes twice the last value stays.

The table is created if need be. With --ttl it is one whose entries have lives, and only such a table takes --ttl later on: its list \
knows when a life ends, so that what is over is absent and not lost.

A put whose outcome is unknown is exit code 7; putting it again does no harm, unless others put the same key meanwhile.

Round trips: open 1 (3 when it is created), put 1, 2 of a new key; with lives 3 and 2; and 2 that tidy up after a new one; 2 in all for a key that is there, 5 for a new one, 7 with the table; with lives 6 in all for a key that is there. Entries of standard input \
are put many at once.

Examples:
  larder table put prices apple 3.20
  larder table put prices - < prices.tsv
  larder table put sessions \"$id\" - --ttl 30m < session.json";

#[derive(Args, Debug)]
pub(crate) struct TablePut {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The key, 0 to 65536 bytes; `-` without a value: entries from standard input
    pub(crate) key: OsString,
    /// The value; `-`: from standard input
    pub(crate) value: Option<OsString>,
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
    /// The keys; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
    /// Print no line feed behind the value, of a single key
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
    let (name, key) = (args.named.bytes(), argument(&args.key));
    let Some(value) = &args.value else {
        if args.key == "-" {
            return put_lines(session, args).await;
        }
        return Err(Failure::usage("the key has no value; `-` alone reads entries from standard input"));
    };
    let table = open_to_put(session, args).await?;
    let value = if value == "-" { value_of_stdin(table.value_bytes_max(key.len()))? } else { argument(value).to_vec() };
    put_one(&table, key, &value, args.ttl).await?;
    table.settle().await;
    session.out.answer("", &json!({"name": bytes(name), "key": bytes(key), "value_bytes": value.len()}))
}

/// All of standard input, as far as it can be a value: it may have no end.
fn value_of_stdin(bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = io::stdin().lock().take(bytes_max as u64 + 1).read_to_end(&mut value);
    read.map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    if value.len() > bytes_max {
        let detail = format!("the value on standard input is too long; the limit on this store is {bytes_max} bytes");
        return Err(Error::new(ErrorKind::BadInput, detail).into());
    }
    Ok(value)
}

async fn open_to_put(session: &Session, args: &TablePut) -> Result<Table, Failure> {
    if args.existing {
        return open(session, &args.named).await;
    }
    let mut options = Table::options().timeout(session.timeout);
    if let Some(shards) = args.shards {
        options = options.shards(shards);
    }
    if args.ttl.is_some() {
        options = options.ttl(true);
    }
    Ok(options.open_or_create(&session.store, args.named.bytes()).await?)
}

async fn put_one(table: &Table, key: &[u8], value: &[u8], ttl: Option<Duration>) -> larder::Result<()> {
    match ttl {
        Some(ttl) => table.put_for(key, value, ttl).await,
        None => table.put(key, value).await,
    }
}

/// Puts entries of standard input, batch after batch: of a key that comes again the later value stays.
async fn put_lines(session: &Session, args: &TablePut) -> Result<(), Failure> {
    let table = open_to_put(session, args).await?;
    let (mut batches, numbers) = (read_batches(), LineCount::of(&Source::Stdin));
    let mut done = 0;
    while let Some(batch) = batches.recv().await {
        let so_far = |begun: usize| {
            move |failure: Failure| failure.after_input(done as u64, (done + begun) as u64, "entries are put")
        };
        let lines = batch.map_err(so_far(0))?;
        let (count, numbered) = (lines.len(), numbers.next(&lines));
        let wrong = |error| so_far(0)(numbered.failure(error, |line| by_tab(line, "key").map(|_| ())));
        let entries = by_tabs(lines, "key").map_err(wrong)?;
        put_all(&table, entries, args.ttl).await.map_err(so_far(count))?;
        done += count;
    }
    table.settle().await;
    session.out.answer("", &json!({"name": bytes(args.named.bytes()), "entries": done}))
}

/// Puts entries, many at once: they share the connection.
async fn put_all(table: &Table, entries: Vec<(Vec<u8>, Vec<u8>)>, ttl: Option<Duration>) -> Result<(), Failure> {
    let latest: HashMap<Vec<u8>, Vec<u8>> = entries.into_iter().collect();
    each_at_once(latest, |(key, value)| {
        let table = table.clone();
        async move { put_one(&table, &key, &value, ttl).await }
    })
    .await
}

async fn get(session: &Session, args: &TableGet) -> Result<Exit, Failure> {
    let source = Source::of(&args.keys)?;
    let is_single = matches!(&source, Source::Typed(keys) if keys.len() == 1);
    if args.raw && !is_single {
        return Err(Failure::usage("--raw prints the value of a single key: of several they would run together"));
    }
    let table = open(session, &args.named).await?;
    let Source::Typed(keys) = source else {
        let mut exit = Exit::Ok;
        let mut batches = read_batches();
        while let Some(batch) = batches.recv().await {
            if print_values(session, &table, &batch?, "\n").await? == Exit::No {
                exit = Exit::No;
            }
        }
        return Ok(exit);
    };
    print_values(session, &table, &keys, if args.raw { "" } else { "\n" }).await
}

/// Prints the values that there are; the exit code says whether that were all.
async fn print_values(session: &Session, table: &Table, keys: &[Vec<u8>], end: &str) -> Result<Exit, Failure> {
    let values = table.get_many(keys).await?;
    let exit = if values.iter().all(Option::is_some) { Exit::Ok } else { Exit::No };
    if session.out.json {
        session.out.answers(keys.iter().zip(values).map(|(key, value)| {
            let object = json!({"key": bytes(key), "has": value.is_some(), "value": value.as_deref().map(bytes)});
            ("", object)
        }))?;
        return Ok(exit);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    for value in values.iter().flatten() {
        out.write_all(value)?;
        out.write_all(end.as_bytes())?;
    }
    out.flush()?;
    Ok(exit)
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
            let all = keys.len();
            for (done, key) in keys.iter().enumerate() {
                let removed = table.remove(key).await;
                let removed = removed.map_err(|error| Failure::from(error).after_part(done, all))?;
                let told = out.answer("", &json!({"key": bytes(key), "removed": removed}));
                told.map_err(|failure| failure.after_part(done + 1, all))?;
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
