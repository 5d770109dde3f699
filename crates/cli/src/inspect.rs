//! `larder inspect …` and `larder ls`: what is there, of whatever kind.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use larder::{Ctx, Error, ErrorKind, Kind, Name, inspect};
use serde_json::{Map, Value, json};

use crate::args::{Named, time};
use crate::exit::{Exit, Failure};
use crate::output::bytes;
use crate::session::Session;

pub(crate) const INSPECT_HELP: &str = "\
Prints a figure a line: kind, layout, generation, shards, copies; how many keys were found, are missing or could not be read; the bytes of its \
values, and for a set, an array, a table, a log, visitors, a queue and a stack how many of them are live and stale; its parameters; and in a sentence what it promises on this store. Nothing is written.

The values come whole, since no store tells the size of one: of a large structure that is as much to read.

Of a cache, whose entries nothing lists, it counts the keys where the store can list them, for --count-for at the most; with --entry it tells what stands under a key: fresh, stale or being rebuilt, the bytes, the age, and for \
how much longer it may be served. It takes no lease, and does not count as a use.

Round trips: 2, and 1 more for every 64 data keys after the first; 2 more for a set or an array, 3 at the most for packed records, 4 for a queue or a stack, and 1 or more to find what made keys as it went, such as visitors; of a cache 1 more and what listing takes, and 2 more with --entry.

Examples:
  larder inspect hits
  larder inspect pages --entry /index
  larder --json inspect tags | jq .guarantee";

pub(crate) const LS_HELP: &str = "\
Prints the kind and the name of each structure, a line each, in the order of their names. On memcached it asks the crawler of each server, \
which lists what it sees and is no snapshot: what is made, dropped or moved meanwhile may be missing. It looks at every item of the server, \
so that a large one takes its time. A server whose crawler is switched off cannot tell: exit code 8.

Without --timeout it takes as long as it takes.

Round trips: a connection of its own to each server, and 1 for every 256 structures.

Examples:
  larder ls
  larder ls --kind set
  larder --json ls | jq -r .name";

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Of a cache: what stands under this key
    #[arg(long, value_name = "KEY")]
    pub(crate) entry: Option<OsString>,
    /// Of a cache: how long its entries may be counted; 0s not to
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub(crate) count_for: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only structures of this kind: lock, counter, \"fast counter\", set, …
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,
}

pub(crate) async fn inspect(session: &Session, args: &Inspect) -> Result<Exit, Failure> {
    let name = args.named.checked()?;
    let Some(found) = inspect::inspect(&session.store, session.ctx(), &name).await? else {
        return Err(Failure::absent(session, &name).hint("`larder ls` lists what there is"));
    };
    let manifest = &found.manifest;
    if args.entry.is_some() && manifest.kind != Kind::Cache {
        let detail = format!("--entry tells of a cache; {name} is a {}", manifest.kind.as_str());
        return Err(Error::new(ErrorKind::BadInput, detail).into());
    }
    let mut figures = vec![
        ("kind", json!(manifest.kind.as_str())),
        ("layout", json!(manifest.layout)),
        ("generation", json!(format!("{:016x}", manifest.generation))),
        ("shards", json!(manifest.shards)),
        ("copies", json!(manifest.copies)),
        ("keys", json!(found.keys)),
        ("missing", json!(found.missing)),
        ("unread", json!(found.unread)),
        ("bytes", json!(found.bytes)),
    ];
    let counted = [("live_bytes", found.live_bytes), ("stale_bytes", found.stale_bytes), ("elements", found.elements)];
    figures.extend(counted.into_iter().filter_map(|(name, figure)| Some((name, json!(figure?)))));
    if manifest.kind == Kind::Cache {
        figures.extend(of_cache(session, &name, args).await?);
    }
    let params: Map<String, Value> =
        found.params.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    let profile = session.store.profile();
    let store = &profile.store;
    let mut plain: Vec<String> = figures.iter().map(|(name, figure)| format!("{name} {}", bare(figure))).collect();
    plain.extend(found.params.iter().map(|(name, value)| format!("parameter {name}: {value}")));
    plain.push(format!("store {store}"));
    plain.push(format!("guarantee {}", found.guarantee));
    let mut object = json!({"name": bytes(name.as_bytes())});
    for (name, figure) in figures {
        object[name] = figure;
    }
    object["parameters"] = Value::Object(params);
    object["store"] = json!(store);
    object["warnings"] = json!(profile.warnings);
    object["guarantee"] = json!(found.guarantee);
    session.out.answer(&plain.join("\n"), &object)?;
    Ok(Exit::Ok)
}

/// How many entries a cache has, where the store can list keys, and what stands under one.
async fn of_cache(session: &Session, name: &Name, args: &Inspect) -> Result<Vec<(&'static str, Value)>, Failure> {
    let mut figures = Vec::new();
    if let Some(list) = session.list.as_ref().filter(|_| !args.count_for.is_zero()) {
        match inspect::cache_entries(&session.store, &**list, session.ctx(), name, args.count_for).await {
            Ok(found) => {
                figures.push(("entries", json!(found.count)));
                figures.push(("entries_are_all", json!(found.are_all)));
            }
            // A server may be set up not to list: then they are not counted.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(key) = &args.entry {
        let entry = inspect::cache_entry(&session.store, session.ctx(), name, key.as_bytes()).await?;
        figures.push(("entry", json!(entry.map_or("none", |entry| entry.state.as_str()))));
        if let Some(entry) = entry {
            let seconds = |time: Duration| json!(time.as_millis() as f64 / 1_000.0);
            figures.extend(entry.value_bytes.map(|bytes| ("entry_value_bytes", json!(bytes))));
            figures.push(("entry_bytes", json!(entry.bytes)));
            figures.push(("entry_age_s", seconds(entry.age)));
            figures.push(("entry_served_for_s", seconds(entry.left)));
        }
    }
    Ok(figures)
}

/// A value without the quotes of JSON.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A structure, a line.
struct Line(String);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) async fn ls(session: &Session, args: &Ls, timeout: Option<Duration>) -> Result<Exit, Failure> {
    let Some(list) = &session.list else {
        let error = Error::new(ErrorKind::Unsupported, "this store cannot tell which keys it holds");
        return Err(error.store(session.store.profile().store.clone()).into());
    };
    // Drawn on a terminal only.
    let progress = ProgressBar::new_spinner();
    let mut looked_at = |items: u64| {
        progress.set_message(format!("looked at {items} items"));
        progress.tick();
    };
    let ctx = timeout.map_or_else(Ctx::default, Ctx::within);
    let found = larder::list(&session.store, &**list, ctx, &mut looked_at).await;
    progress.finish_and_clear();
    let lines = found?.into_iter().filter_map(|listed| {
        let kind = listed.manifest.as_ref().map_or("unknown", |manifest| manifest.kind.as_str());
        if args.kind.as_deref().is_some_and(|wanted| wanted != kind) {
            return None;
        }
        let mut object = json!({"name": bytes(listed.name.as_bytes()), "kind": kind});
        match &listed.manifest {
            Ok(manifest) => {
                object["layout"] = json!(manifest.layout);
                object["shards"] = json!(manifest.shards);
                object["generation"] = json!(format!("{:016x}", manifest.generation));
            }
            Err(error) => object["error"] = json!(error.to_string()),
        }
        // A name of any bytes must not break a line, nor a terminal: it is printed as errors print it, where it is not plain.
        let name = listed.name.as_bytes();
        let is_plain = std::str::from_utf8(name).is_ok_and(|text| !text.chars().any(char::is_control));
        let shown = if is_plain { String::from_utf8_lossy(name).into_owned() } else { listed.name.to_string() };
        Some((Line(format!("{kind}\t{shown}")), object))
    });
    session.out.answers(lines)?;
    Ok(Exit::Ok)
}
