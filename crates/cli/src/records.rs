//! `larder records …`

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Args, Subcommand};
use larder::PackedRecords;
use larder::records::{Aggregate, Field, FieldKind, GROUPS_MAX, Schema, Value};
use serde_json::{Map, Value as Json, json};

use crate::args::Named;
use crate::exit::{Exit, Failure};
use crate::input::{BatchSize, Elements, Source, for_each_batch_by_key, for_each_batch_in_turn, share_bar};
use crate::output::{argument, bytes};
use crate::session::Session;

/// Records that lie close together share shards: the more go out together, the fewer times one is written.
const BATCH: BatchSize = BatchSize { elements_max: 16_384, bytes_max: 1024 * 1024 };
/// The field of records that are made for single bits.
const BIT: &str = "bit";

#[derive(Debug, Subcommand)]
pub(crate) enum RecordsVerb {
    /// Say what each record holds, and make the records if there are none
    #[command(after_help = "\
A FIELD is NAME:KIND. KIND is bit; u1 to u64 or i1 to i64, a number of so many bits; bytes1 to bytes255, written in hex; or labels, as in RED|GREEN|BLUE. Prints the fields and \
what a record takes. What was never set reads as 0, false, or no label.

Records that are there with other fields are refused, exit code 8.

Round trips: 2, 4 when they are made.

Examples:
  larder records define users 'place:CA-ON|CA-QC|US-NY' visits:u7 paid:bit
  larder records define locations country:u8 region:u6")]
    Define(RecordsDefine),
    /// Set fields of a record; those that are not named stay as they are
    #[command(after_help = "\
`-` instead of an ID reads records from standard input, one a line: the id and its fields, apart by tabs or blanks, with progress at a terminal. Everything of some 16,000 lines is \
checked before any of them is written; a line that is wrong is named by its number, and those before it may be set.

Round trips: open 2, set 1 on Redis and Valkey and 2 elsewhere, 4 more for the first of a shard.

Examples:
  larder records set users 17 place=US-NY visits=3
  larder records set users - < users.txt")]
    Set(RecordsSet),
    /// Print records
    #[command(after_help = "\
A line an id: the id, and FIELD=VALUE for each field, apart by tabs; with --field the value alone. With --json an object an id, with its `fields`. `-` reads ids from standard input, one a line.

Round trips: open 2, get 1 for all that touch 2 MiB of shards.

Examples:
  larder records get users 17
  larder records get users 17 18 --field place
  larder --json records get users - < ids.txt")]
    Get(RecordsGet),
    /// Print the highest id that was set; exit code 1 if none was
    #[command(after_help = "\
Round trips: open 2, max 1 on Redis and Valkey and 2 elsewhere.

Examples:
  larder records max users")]
    Max(Named),
    /// Count records by the values of fields
    #[command(after_help = "\
Prints a line a group: how many, a tab, and the values of the fields, apart by tabs; most first. All records from id 0 to the highest are counted, also those that \
were never set; with --ids those alone, an id that is given twice twice, and with `--ids -` those on standard input. The records fall into 1,048,576 \
groups at the most.

Round trips: open 2, and 3 and 1 for every 2 MiB of records; with --ids as get, for every 1,000.

Examples:
  larder records aggregate users place
  larder records aggregate users place paid --ids 17 --ids 18
  grep -v '#' ids.txt | larder records aggregate users place --ids -")]
    Aggregate(RecordsAggregate),
    /// Single bits by id: print them, count them, or set them
    #[command(after_help = "\
Prints `1` or `0` an id; the exit code is 1 if any is 0. Without an id it prints how many bits are 1. --on and --off write them; the records are made if need be, with \
one bit each. `-` reads ids from standard input, one a line. --field names a field of kind bit of other records.

Round trips: open 2 (4 when they are made), then as get, set or aggregate.

Examples:
  larder records bits active 17 18 --on
  larder records bits active 17 && echo active
  larder records bits users 17 --field paid")]
    Bits(RecordsBits),
}

#[derive(Args, Debug)]
pub(crate) struct RecordsDefine {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The fields
    #[arg(required = true, value_name = "FIELD")]
    pub(crate) fields: Vec<String>,
    /// If they are made: how large a shard is, which sets the range of ids [default: by the store]
    #[arg(long, value_name = "BYTES")]
    pub(crate) shard_bytes: Option<usize>,
}

#[derive(Args, Debug)]
pub(crate) struct RecordsSet {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The record's id; `-` alone: records from standard input
    pub(crate) id: OsString,
    /// FIELD=VALUE
    #[arg(value_name = "FIELD=VALUE")]
    pub(crate) fields: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct RecordsGet {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The ids; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<OsString>,
    /// Print this field's value alone
    #[arg(long, value_name = "FIELD")]
    pub(crate) field: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct RecordsAggregate {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The fields to group by; without one, records are counted
    #[arg(value_name = "FIELD")]
    pub(crate) fields: Vec<String>,
    /// Count these ids alone; `-`: those on standard input, one a line
    #[arg(long, value_name = "ID")]
    pub(crate) ids: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct RecordsBits {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The ids; `-` alone: from standard input, one a line
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<OsString>,
    /// Write ones
    #[arg(long, requires = "ids", conflicts_with = "off")]
    pub(crate) on: bool,
    /// Write zeros
    #[arg(long, requires = "ids")]
    pub(crate) off: bool,
    /// Which field
    #[arg(long, value_name = "FIELD", default_value = BIT)]
    pub(crate) field: String,
}

pub(crate) async fn run(session: &Session, verb: RecordsVerb) -> Result<Exit, Failure> {
    match verb {
        RecordsVerb::Define(args) => define(session, &args).await?,
        RecordsVerb::Set(args) => set(session, &args).await?,
        RecordsVerb::Get(args) => get(session, &args).await?,
        RecordsVerb::Max(named) => {
            let highest = open(session, &named).await?.highest().await?;
            let object = json!({"name": bytes(named.bytes()), "max": highest});
            match highest {
                Some(highest) => session.out.answer(&highest.to_string(), &object)?,
                None if session.out.json => session.out.answer("", &object)?,
                None => {}
            }
            return Ok(if highest.is_some() { Exit::Ok } else { Exit::No });
        }
        RecordsVerb::Aggregate(args) => aggregate(session, &args).await?,
        RecordsVerb::Bits(args) => return bits(session, &args).await,
    }
    Ok(Exit::Ok)
}

async fn define(session: &Session, args: &RecordsDefine) -> Result<(), Failure> {
    let schema = Schema::parse(args.fields.iter().map(String::as_str))?;
    let mut options = PackedRecords::options().schema(schema).timeout(session.timeout);
    if let Some(shard_bytes) = args.shard_bytes {
        options = options.shard_bytes(shard_bytes);
    }
    let records = options.open_or_create(&session.store, args.named.bytes()).await?;
    let (schema, id_max) = (records.schema(), records.id_max());
    let fields: Vec<Json> = schema.fields().iter().map(described).collect();
    let object = json!({"name": bytes(args.named.bytes()), "fields": fields, "bits": schema.bits(), "id_max": id_max});
    let plain = format!("{schema}\n{} bits a record, ids 0 to {id_max}", schema.bits());
    session.out.answer(&plain, &object)
}

fn described(field: &Field) -> Json {
    let kind = match field.kind() {
        FieldKind::Bit => "bit".to_owned(),
        FieldKind::Uint(bits) => format!("u{bits}"),
        FieldKind::Int(bits) => format!("i{bits}"),
        FieldKind::Bytes(count) => format!("bytes{count}"),
        FieldKind::Choice(labels) => labels.join("|"),
    };
    json!({"name": field.name(), "kind": kind, "bits": field.kind().bits(), "offset": field.offset()})
}

async fn open(session: &Session, named: &Named) -> Result<PackedRecords, Failure> {
    let opened = PackedRecords::options().timeout(session.timeout).open(&session.store, named.bytes()).await;
    opened.map_err(|error| {
        let hint = format!("`larder records define {} FIELD…` makes them", String::from_utf8_lossy(named.bytes()));
        Failure::from(error).hint_if_absent(hint)
    })
}

/// A record to set: its id, and fields by their places.
type Entry = (u64, Vec<(usize, Value)>);

async fn set(session: &Session, args: &RecordsSet) -> Result<(), Failure> {
    let records = open(session, &args.named).await?;
    if args.id != "-" {
        let entry = (id_of(argument(&args.id))?, fields_of(&records, args.fields.iter().map(String::as_str))?);
        return write(&records, &[entry]).await;
    }
    if !args.fields.is_empty() {
        let hint = "each line of it is an id and its fields: `echo '17 place=US-NY' | larder records set NAME -`";
        return Err(Failure::usage("`-` reads all records from standard input").hint(hint));
    }
    let read = Cell::new(0u64);
    let act = |lines: Elements| {
        let entries = in_lines(&lines, &read, |line| entry_of(&records, line));
        let records = records.clone();
        async move { write(&records, &entries?).await }
    };
    // Of a field that is set again the later value stays. A line without an id fails its batch.
    for_each_batch_by_key(BATCH, Source::Stdin, Some(|line| id_in(line).unwrap_or(0)), act, |()| Ok(())).await
}

/// Reads each of some lines; the error of one that is wrong has its number.
pub(crate) fn in_lines<T>(
    lines: &[Vec<u8>],
    read: &Cell<u64>,
    parse: impl Fn(&[u8]) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let first = read.get() + 1;
    read.set(read.get() + lines.len() as u64);
    let numbered = (first..).zip(lines);
    numbered.map(|(number, line)| parse(line).map_err(|failure| failure.after(&format!("line {number}")))).collect()
}

/// The id that a line begins with.
fn id_in(line: &[u8]) -> Option<u64> {
    let separator = if line.contains(&b'\t') { b'\t' } else { b' ' };
    let id = line.split(|&byte| byte == separator).find(|word| !word.is_empty())?;
    id_of(id).ok()
}

fn entry_of(records: &PackedRecords, line: &[u8]) -> Result<Entry, Failure> {
    let text = std::str::from_utf8(line).map_err(|_| Failure::usage("a record is no UTF-8 text"))?;
    let is_tabbed = text.contains('\t');
    let mut words = text.split(|c: char| if is_tabbed { c == '\t' } else { c == ' ' }).filter(|word| !word.is_empty());
    let id = words.next().ok_or_else(|| Failure::usage("it is empty; it takes an id and FIELD=VALUE"))?;
    Ok((id_of(id.as_bytes())?, fields_of(records, words)?))
}

fn fields_of<'a>(
    records: &PackedRecords,
    words: impl Iterator<Item = &'a str>,
) -> Result<Vec<(usize, Value)>, Failure> {
    let schema = records.schema();
    let field = |word: &str| {
        let (name, text) = word.split_once('=').ok_or_else(|| {
            Failure::usage(format!("{word:?} sets nothing; a field takes the form FIELD=VALUE, as in visits=3"))
        })?;
        let at = schema.position(name)?;
        Ok((at, schema.fields()[at].parse(text)?))
    };
    words.map(field).collect()
}

/// # Errors
/// What is no number from 0 to 2^64 - 1 is named.
fn id_of(text: &[u8]) -> Result<u64, Failure> {
    let number = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|number| number.parse().ok()).ok_or_else(|| {
        let shown = String::from_utf8_lossy(text);
        Failure::usage(format!("an id is {shown:?}; it takes a whole number from 0 to {}", u64::MAX))
    })
}

async fn write(records: &PackedRecords, entries: &[Entry]) -> Result<(), Failure> {
    let fields = records.schema().fields();
    let named: Vec<(u64, Vec<(&str, Value)>)> = entries
        .iter()
        .map(|(id, values)| (*id, values.iter().map(|(at, value)| (fields[*at].name(), value.clone())).collect()))
        .collect();
    Ok(records.set_many(named.iter().map(|(id, values)| (*id, &values[..]))).await?)
}

async fn get(session: &Session, args: &RecordsGet) -> Result<(), Failure> {
    let records = open(session, &args.named).await?;
    let only = args.field.as_deref().map(|name| records.schema().position(name)).transpose()?;
    let read = Cell::new(0);
    let look = |lines: Elements| {
        let (ids, records) = (each_of(&args.ids, &lines, &read, id_of), records.clone());
        async move {
            let ids = ids?;
            let found = records.get_many(&ids).await?;
            Ok((ids, found))
        }
    };
    for_each_batch_in_turn(BATCH, Source::of(&args.ids)?, look, |(ids, found)| {
        session.out.answers(ids.iter().zip(&found).map(|(id, values)| shown(&records, *id, values, only)))
    })
    .await
}

/// What the words of the command line say, or lines of standard input, which have numbers.
pub(crate) fn each_of<T>(
    typed: &[OsString],
    words: &[Vec<u8>],
    read: &Cell<u64>,
    parse: impl Fn(&[u8]) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    match typed {
        [dash] if dash == "-" => in_lines(words, read, parse),
        _ => words.iter().map(|word| parse(word)).collect(),
    }
}

/// A record, plain and in JSON.
fn shown(records: &PackedRecords, id: u64, values: &[Value], only: Option<usize>) -> (String, Json) {
    let fields = records.schema().fields();
    if let Some(at) = only {
        let value = values.get(at).map(ToString::to_string).unwrap_or_default();
        return (value, json!({"id": id, "fields": {fields[at].name(): values.get(at).map(json_of)}}));
    }
    let mut plain = id.to_string();
    let mut object = Map::from_iter([("id".to_owned(), json!(id))]);
    let mut inner = Map::new();
    for (field, value) in fields.iter().zip(values) {
        plain.push_str(&format!("\t{}={value}", field.name()));
        inner.insert(field.name().to_owned(), json_of(value));
    }
    object.insert("fields".to_owned(), Json::Object(inner));
    (plain, Json::Object(object))
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::Bit(bit) => json!(bit),
        Value::Uint(number) => json!(number),
        Value::Int(number) => json!(number),
        Value::Choice(label) => json!(label),
        Value::Bytes(_) => json!(value.to_string()),
    }
}

async fn aggregate(session: &Session, args: &RecordsAggregate) -> Result<(), Failure> {
    let records = open(session, &args.named).await?;
    let names: Vec<&str> = args.fields.iter().map(String::as_str).collect();
    let found = if args.ids.is_empty() {
        let bar = share_bar("records");
        let told = records.aggregate_told(&names, &mut |done, all| bar.show(done, all)).await;
        drop(bar);
        told?
    } else {
        let (mut count, mut groups) = (0, BTreeMap::new());
        let read = Cell::new(0);
        let look = |lines: Elements| {
            let ids = each_of(&args.ids, &lines, &read, id_of);
            let (records, fields) = (records.clone(), args.fields.clone());
            async move {
                let names: Vec<&str> = fields.iter().map(String::as_str).collect();
                Ok(records.aggregate_ids(&names, &ids?).await?)
            }
        };
        for_each_batch_in_turn(BATCH, Source::of(&args.ids)?, look, |some: Aggregate| {
            count += some.records;
            merge(&mut groups, some.groups.into_iter().map(|group| (group.values, group.count)), GROUPS_MAX)
        })
        .await?;
        return print_groups(session, args, count, groups.into_iter().collect());
    };
    let Aggregate { records, groups, .. } = found;
    print_groups(session, args, records, groups.into_iter().map(|group| (group.values, group.count)).collect())
}

/// Adds the groups of a batch to those of the ones before it: all of them together are no more than of one call.
fn merge(
    all: &mut BTreeMap<Vec<Value>, u64>,
    some: impl Iterator<Item = (Vec<Value>, u64)>,
    groups_max: usize,
) -> Result<(), Failure> {
    for (values, count) in some {
        *all.entry(values).or_insert(0) += count;
    }
    if all.len() > groups_max {
        let message = format!("the records fall into more than {groups_max} groups, which is the limit");
        return Err(Failure::usage(message));
    }
    Ok(())
}

fn print_groups(
    session: &Session,
    args: &RecordsAggregate,
    records: u64,
    mut groups: Vec<(Vec<Value>, u64)>,
) -> Result<(), Failure> {
    if args.fields.is_empty() {
        return session.out.answer(&records.to_string(), &json!({"records": records}));
    }
    // Of as many, in the order of what is stored.
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    session.out.answers(groups.iter().map(|(values, count)| {
        let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
        let object: Map<String, Json> =
            args.fields.iter().zip(values).map(|(name, value)| (name.clone(), json_of(value))).collect();
        (format!("{count}\t{}", texts.join("\t")), json!({"count": count, "values": object}))
    }))
}

async fn bits(session: &Session, args: &RecordsBits) -> Result<Exit, Failure> {
    let records = if (args.on || args.off) && args.field == BIT {
        let found = PackedRecords::options().timeout(session.timeout).open(&session.store, args.named.bytes()).await;
        match found {
            Err(error) if error.kind() == larder::ErrorKind::Absent => {
                let options = PackedRecords::options().schema(Schema::new().bit(BIT).build()?).timeout(session.timeout);
                options.open_or_create(&session.store, args.named.bytes()).await?
            }
            found => found?,
        }
    } else {
        open(session, &args.named).await?
    };
    let at = records.schema().position(&args.field)?;
    if *records.schema().fields()[at].kind() != FieldKind::Bit {
        return Err(Failure::usage(format!("field {} is no bit", args.field)));
    }
    if args.ids.is_empty() {
        let bar = share_bar("records");
        let told = records.aggregate_told(&[&args.field], &mut |done, all| bar.show(done, all)).await;
        drop(bar);
        let count = told?.count(&[Value::Bit(true)]);
        session.out.answer(&count.to_string(), &json!({"name": bytes(args.named.bytes()), "ones": count}))?;
        return Ok(Exit::Ok);
    }
    let (read, mut is_any_zero) = (Cell::new(0), false);
    let act = |lines: Elements| {
        let (ids, records) = (each_of(&args.ids, &lines, &read, id_of), records.clone());
        let write_to = (args.on || args.off).then_some(args.on);
        async move {
            let ids = ids?;
            if let Some(bit) = write_to {
                let entries: Vec<Entry> = ids.into_iter().map(|id| (id, vec![(at, Value::Bit(bit))])).collect();
                write(&records, &entries).await?;
                return Ok(Vec::new());
            }
            let found = records.get_many(&ids).await?;
            Ok(ids.into_iter().zip(found).map(|(id, values)| (id, values.get(at) == Some(&Value::Bit(true)))).collect())
        }
    };
    for_each_batch_in_turn(BATCH, Source::of(&args.ids)?, act, |bits: Vec<(u64, bool)>| {
        is_any_zero |= bits.iter().any(|(_, bit)| !bit);
        session.out.answers(bits.into_iter().map(|(id, bit)| (u8::from(bit), json!({"id": id, "bit": bit}))))
    })
    .await?;
    Ok(if is_any_zero { Exit::No } else { Exit::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_all_batches_together_are_limited_as_those_of_one() {
        let mut all = BTreeMap::new();
        let some = |numbers: std::ops::Range<u64>| numbers.map(|number| (vec![Value::Uint(number)], 2));
        assert!(merge(&mut all, some(0..3), 5).is_ok() && merge(&mut all, some(1..5), 5).is_ok());
        assert_eq!(all.values().copied().collect::<Vec<u64>>(), [2, 4, 4, 2, 2]);
        let error = merge(&mut all, some(5..6), 5).unwrap_err();
        assert_eq!(error.exit, Exit::Usage as u8);
        assert!(error.message().contains("more than 5 groups"));
    }
}
