//! `larder lookup …`

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use larder::lookup::{CsvOptions, Found, LookupKey, Rows, Step};
use larder::{ErrorKind, PackedTable};
use serde_json::{Map, Value as Json, json};

use crate::args::Named;
use crate::exit::{Exit, Failure};
use crate::input::{BatchSize, Elements, Source, for_each_batch_in_turn, share_bar};
use crate::output::bytes;
use crate::records::each_of;
use crate::session::Session;

/// Keys that lie close together share blocks.
const BATCH: BatchSize = BatchSize { elements_max: 1_024, bytes_max: 128 * 1024 };
/// How often the bar moves while a file is read.
const BAR_PERIOD: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub(crate) enum LookupVerb {
    /// Build the table from CSV, in the place of what it was
    #[command(after_help = "\
The header names the columns; the first ones say which keys a row has: `start,end,…` a range of addresses or of whole numbers, `network,…` (or `cidr,…`) a \
network, `id,…` a number. Rows go in ascending order, IPv4 before IPv6. A field that begins with a quote ends with one, and a quote in it is \
written twice; with --no-quotes quotes are data. A row that is wrong, or not closed at the end of the input, is named by its number and line, and nothing is \
built then; a record has up to 64 MiB. Nor is anything built of an input without rows, such as that of a pipe whose writer failed, unless --allow-empty is given. `-` reads standard input. Shows its progress at a terminal.

Lookups go on all the time: they see what was there before, or what is built, and never some of each. A build that dies changes nothing; the next one removes what it left.

Round trips: open 3 (4 when it is made), 4 and 2 for every 128 KiB of the packed table, 3 to remove what was there before.

Examples:
  larder lookup build cities cities.csv
  zcat ranges.csv.gz | larder lookup build cities - --header start,end,country,region,city
  larder lookup build names names.tsv --delimiter '\\t' --no-quotes")]
    Build(LookupBuild),
    /// Print the rows of addresses or numbers; exit code 1 if one has none
    #[command(after_help = "\
A line a key: the key, and COLUMN=VALUE for each column, apart by tabs; the key alone where there is no row. With --field the value alone, or an empty line. Values come out byte by byte as they were in the CSV. `-` reads keys from \
standard input, one a line. With --json an object a key, with what tells of the row and, apart from that, its `fields`, of which --field leaves one; they are null where there is no row. A table that is built anew meanwhile may have other columns: values keep to their names, and a row that lacks that of --field is an error. What was evicted is lost, exit code 4, and no missing row.

Round trips: open 3, get 1 for all that touch 1 MiB of the packed table.

Examples:
  larder lookup get cities 192.0.2.7
  larder lookup get cities 2001:db8::1 --field country
  cut -d' ' -f1 access.log | larder lookup get cities - --field country | sort | uniq -c")]
    Get(LookupGet),
    /// Print what the table has: rows, blocks, bytes, columns
    #[command(after_help = "\
Round trips: open 3, stat 1.

Examples:
  larder lookup stat cities")]
    Stat(Named),
}

#[derive(Args, Debug)]
pub(crate) struct LookupBuild {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The CSV file; `-`: standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: OsString,
    /// The header of a file that has none, apart by commas
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) header: Option<String>,
    /// What stands between fields: one character, or `\t`
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    pub(crate) delimiter: u8,
    /// Take quotes for data, as in most files whose delimiter is a tab
    #[arg(long)]
    pub(crate) no_quotes: bool,
    /// Build a table of no rows, too, where the file has none
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// How large a block is made, which one lookup reads [default: by the store, some 2,000]
    #[arg(long, value_name = "BYTES")]
    pub(crate) block_bytes: Option<usize>,
}

#[derive(Args, Debug)]
pub(crate) struct LookupGet {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Addresses or numbers; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
    /// Print this column's value alone
    #[arg(long, value_name = "COLUMN")]
    pub(crate) field: Option<String>,
}

impl LookupBuild {
    fn shown(&self) -> Cow<'_, str> {
        if self.file == "-" { "standard input".into() } else { self.file.to_string_lossy() }
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [one] if one.is_ascii() && !matches!(one, b'"' | b'\n' | b'\r') => Ok(*one),
        _ => Err("it takes one ASCII character that is no quote and no line feed, or \\t".to_owned()),
    }
}

pub(crate) async fn run(session: &Session, verb: LookupVerb) -> Result<Exit, Failure> {
    match verb {
        LookupVerb::Build(args) => build(session, &args).await?,
        LookupVerb::Get(args) => return get(session, &args).await,
        LookupVerb::Stat(named) => stat(session, &named).await?,
    }
    Ok(Exit::Ok)
}

/// A reader that tells how far it is.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

async fn build(session: &Session, args: &LookupBuild) -> Result<(), Failure> {
    // Before anything is made: a file that is wrong leaves no table.
    let rows = read(args).await?;
    if rows.is_empty() && !args.allow_empty {
        let hint = "--allow-empty builds a table without rows, and removes those that it had";
        return Err(Failure::usage(format!("{} has no rows: nothing is built", args.shown())).hint(hint));
    }
    let mut options = PackedTable::options().timeout(session.timeout);
    if let Some(block_bytes) = args.block_bytes {
        options = options.block_bytes(block_bytes);
    }
    let table = options.open_or_create(&session.store, args.named.bytes()).await?;
    let mut bar = None;
    let built = table
        .build_told(rows, &mut |progress| {
            let (step, what) = match progress.step {
                Step::Packing => (0, "rows packed"),
                Step::Writing => (1, "blocks written"),
                _ => (2, "blocks read back"),
            };
            if bar.as_ref().is_none_or(|(of, _)| *of != step) {
                bar = Some((step, share_bar(what)));
            }
            if let Some((_, bar)) = &bar {
                bar.show(progress.done, progress.all);
            }
        })
        .await;
    drop(bar);
    let built = built?;
    let object = json!({
        "name": bytes(args.named.bytes()), "version": built.version, "rows": built.rows, "blocks": built.blocks,
        "bytes": built.bytes, "swept": built.is_swept,
    });
    let plain = format!("{} rows in {} blocks, {} bytes", built.rows, built.blocks, built.bytes);
    session.out.answer(&plain, &object)
}

/// Reads the file on a thread of its own, since that blocks.
async fn read(args: &LookupBuild) -> Result<Rows, Failure> {
    let mut options = CsvOptions::new().delimiter(args.delimiter).quoting(!args.no_quotes);
    if let Some(header) = &args.header {
        options = options.header(header.split(',').map(str::trim));
    }
    let shown = args.shown();
    let (file, all): (Box<dyn Read + Send>, u64) = if args.file == "-" {
        (Box::new(io::stdin()), 0)
    } else {
        let file =
            File::open(&args.file).map_err(|error| Failure::usage(format!("{shown} cannot be read: {error}")))?;
        let all = file.metadata().map_or(0, |metadata| metadata.len());
        (Box::new(file), all)
    };
    let read = Arc::new(AtomicU64::new(0));
    let counted = Counted { inner: file, read: read.clone() };
    let mut reading = tokio::task::spawn_blocking(move || options.read(counted));
    let bar = share_bar("bytes read");
    loop {
        tokio::select! {
            rows = &mut reading => {
                // No store is asked yet: it is the file that cannot be read, such as a folder.
                return rows.map_err(io::Error::other)?.map_err(|error| match error.kind() {
                    ErrorKind::Unavailable => Failure::usage(format!("{shown} cannot be read: {}", error.detail())),
                    _ => error.into(),
                });
            }
            () = tokio::time::sleep(BAR_PERIOD) => {
                let read = read.load(Ordering::Relaxed);
                bar.show(read, all.max(read));
            }
        }
    }
}

async fn open(session: &Session, named: &Named) -> Result<PackedTable, Failure> {
    let opened = PackedTable::options().timeout(session.timeout).open(&session.store, named.bytes()).await;
    opened.map_err(|error| {
        let hint = format!("`larder lookup build {} FILE` makes it", String::from_utf8_lossy(named.bytes()));
        Failure::from(error).hint_if_absent(hint)
    })
}

async fn get(session: &Session, args: &LookupGet) -> Result<Exit, Failure> {
    let table = open(session, &args.named).await?;
    let only = args.field.as_deref();
    // Before anything is read; later the columns may be others.
    let columns = table.columns();
    if let Some(name) = only.filter(|name| !columns.iter().any(|column| column == name)) {
        return Err(no_column(&columns, name));
    }
    let (read, mut is_any_missing) = (Cell::new(0), false);
    let look = |lines: Elements| {
        let (keys, table) = (each_of(&args.keys, &lines, &read, key_of), table.clone());
        async move {
            let keys = keys?;
            let found = table.get_many(&keys).await?;
            Ok((keys, found))
        }
    };
    for_each_batch_in_turn(BATCH, Source::of(&args.keys)?, look, |(keys, found)| {
        is_any_missing |= found.iter().any(Option::is_none);
        let answers = keys.iter().zip(&found).map(|(key, found)| shown(key, found.as_ref(), only));
        session.out.raw_answers(answers.collect::<Result<Vec<_>, Failure>>()?.into_iter())
    })
    .await?;
    Ok(if is_any_missing { Exit::No } else { Exit::Ok })
}

fn key_of(text: &[u8]) -> Result<LookupKey, Failure> {
    let text = std::str::from_utf8(text).map_err(|_| Failure::usage("a key is no UTF-8 text"))?;
    Ok(text.parse()?)
}

fn no_column(columns: &[String], name: &str) -> Failure {
    Failure::usage(format!("there is no column {name:?}; there are: {}", columns.join(", ")))
}

/// A row, plain and in JSON. Values are bytes of any kind.
///
/// # Errors
/// Where the version that the row is of has no column `only`.
fn shown(key: &LookupKey, found: Option<&Found>, only: Option<&str>) -> Result<(Vec<u8>, Json), Failure> {
    let Some(found) = found else {
        let plain = if only.is_some() { String::new() } else { key.to_string() };
        return Ok((plain.into_bytes(), json!({"key": key.to_string(), "fields": null})));
    };
    if let Some(name) = only {
        let value = found.field(name).ok_or_else(|| no_column(&found.columns, name))?;
        return Ok((value.to_vec(), json!({"key": key.to_string(), "fields": {name: bytes(value)}})));
    }
    let mut plain = key.to_string().into_bytes();
    let mut fields = Map::new();
    for (name, value) in found.columns.iter().zip(&found.fields) {
        plain.extend([b"\t", name.as_bytes(), b"=", value].concat());
        fields.insert(name.clone(), bytes(value));
    }
    let object = json!({
        "key": key.to_string(), "first": found.first.to_string(), "last": found.last.to_string(), "fields": fields,
    });
    Ok((plain, object))
}

async fn stat(session: &Session, named: &Named) -> Result<(), Failure> {
    let stat = open(session, named).await?.stat().await?;
    let object = json!({
        "name": bytes(named.bytes()), "version": stat.version, "columns": stat.columns, "rows": stat.rows,
        "blocks": stat.blocks, "bytes": stat.bytes, "others": stat.others,
    });
    let version = stat.version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let plain = format!(
        "version\t{version}\nrows\t{}\nblocks\t{}\nbytes\t{}\ncolumns\t{}",
        stat.rows,
        stat.blocks,
        stat.bytes,
        stat.columns.join(",")
    );
    session.out.answer(&plain, &object)
}
