//! The `larder` command: structures in a shared store, from a shell. A library for its own program, and for the fuzzing of its command line.

mod address;
mod archive;
mod args;
mod array;
mod cache;
mod counter;
mod demo;
mod exit;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod half;
mod input;
mod inspect;
mod lock;
mod log;
mod lookup;
mod memory;
mod output;
mod own;
mod queue;
mod records;
mod run;
mod screen;
mod serve;
mod session;
mod set;
mod sharded;
mod table;
mod top;
mod unique;
mod visitors;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anstream::ColorChoice;
use clap::{ColorChoice as ClapColorChoice, CommandFactory, FromArgMatches};
use serde_json::json;

use crate::args::{Cli, Command, CounterVerb, LockVerb, Named, SetVerb};
use crate::array::ArrayVerb;
use crate::cache::CacheVerb;
use crate::exit::{Exit, Failure};
use crate::log::LogVerb;
use crate::lookup::LookupVerb;
use crate::output::{Out, bytes};
use crate::queue::LineVerb;
use crate::records::RecordsVerb;
use crate::session::{Makes, Session};
use crate::sharded::{HashVerb, ShardedSetVerb};
use crate::table::TableVerb;
use crate::top::TopVerb;
use crate::unique::UniqueVerb;
use crate::visitors::VisitorsVerb;

/// The whole command: arguments, standard input and output are the process's own.
pub fn main() -> ExitCode {
    // As `memcached`, by whatever link, it is one.
    if serve::is_memcached() {
        return serve::memcached(std::env::args_os().skip(1)).unwrap_or_else(|failure| failure.report(false));
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let (json, changes) = (cli.common.json, changes(&cli.command));
    match start(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) if changes => failure.of_a_change().report(json),
        Err(failure) => failure.report(json),
    }
}

/// The command line as clap knows it, every verb with its options and its help: for what is made of it, or checked of it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the command line. What goes before it being understood: whether to colour, and to say errors in JSON.
fn parse() -> Result<Cli, ExitCode> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let has =
        |option: &str| typed.iter().take_while(|word| *word != "--" && *word != "--else").any(|word| word == option);
    let mut command = command();
    if has("--no-color") {
        ColorChoice::Never.write_global();
        command = command.color(ClapColorChoice::Never);
    }
    let parsed = command.try_get_matches_from(&typed).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let rendered = error.render();
        if error.use_stderr() && has("--json") {
            return wrong_usage(&masked(&rendered.to_string(), &typed)).report(true);
        }
        let text = masked(&rendered.ansi().to_string(), &typed);
        if error.use_stderr() {
            // It prints to a stream that may be closed; there is nobody left to tell.
            _ = write!(anstream::stderr().lock(), "{text}");
            return ExitCode::from(Exit::Usage as u8);
        }
        let mut out = anstream::stdout().lock();
        match write!(out, "{text}").and_then(|()| out.flush()) {
            Ok(()) => ExitCode::from(Exit::Ok as u8),
            Err(error) => Failure::from(error).report(has("--json")),
        }
    })
}

/// What is wrong, and the tip if there is one, of a text that goes on to tell the usage.
fn wrong_usage(text: &str) -> Failure {
    let lines = text.trim_start_matches("error: ").lines().map(str::trim);
    let message: Vec<&str> = lines.clone().take_while(|line| !line.is_empty()).collect();
    let tip = lines.clone().find_map(|line| line.strip_prefix("tip: "));
    Failure::usage(message.join(" ")).hint(tip.unwrap_or("--help tells what can be typed"))
}

/// The text without the secrets of the URLs among what was typed: one that stands in the wrong place is quoted there.
fn masked(text: &str, typed: &[OsString]) -> String {
    let mut text = text.to_owned();
    for word in typed.iter().filter_map(|word| word.to_str()).filter(|word| word.contains('@')) {
        let url = word.split_once('=').filter(|(option, _)| option.starts_with('-')).map_or(word, |(_, value)| value);
        text = text.replace(url, &larder::text::masked_url(url));
    }
    text
}

fn start(cli: Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command(), "larder", &mut script);
            io::stdout().write_all(&script)?;
            Ok(Exit::Ok as u8)
        }
        Command::Man { folder } => {
            let written = clap_mangen::generate_to(command(), folder);
            written.map_err(|error| Failure::usage(format!("{} cannot be written to: {error}", folder.display())))?;
            Ok(Exit::Ok as u8)
        }
        Command::ExitCodes => {
            let codes = exit::CODES.iter().map(|(code, meaning)| json!({"code": code, "meaning": meaning}));
            Out { json: cli.common.json }.answer(&exit::table(), &codes.collect())?;
            Ok(Exit::Ok as u8)
        }
        Command::Serve(serve) => serve::serve(&cli.common, &serve.args, false),
        Command::Backup(args) => archive::backup(&cli.common, args).map(|exit| exit as u8),
        Command::Restore(args) => archive::restore(&cli.common, args).map(|exit| exit as u8),
        Command::Check => archive::check(&cli.common).map(|exit| exit as u8),
        Command::Memcached(serve) => serve::serve(&cli.common, &serve.args, true),
        Command::Demo(_) => runtime(tokio::runtime::Builder::new_multi_thread())?.block_on(dispatch(cli)),
        // One command asks one thing at a time: a thread less to start.
        _ => runtime(tokio::runtime::Builder::new_current_thread())?.block_on(dispatch(cli)),
    }
}

fn runtime(mut builder: tokio::runtime::Builder) -> Result<tokio::runtime::Runtime, Failure> {
    Ok(builder.enable_all().build()?)
}

async fn dispatch(cli: Cli) -> Result<u8, Failure> {
    if let Command::Demo(demo) = &cli.command {
        return Ok(demo::run(&cli.common, demo).await? as u8);
    }
    let session = Session::open(&cli.common, makes(&cli.command)).await?;
    let outcome = match cli.command {
        Command::Lock(verb) => lock::run(&session, verb).await,
        Command::Counter(verb) => counter::run(&session, verb).await.map(|exit| exit as u8),
        Command::Array(verb) => array::run(&session, verb).await.map(|exit| exit as u8),
        Command::Set(verb) => set::run(&session, verb).await.map(|exit| exit as u8),
        Command::Cache(verb) => cache::run(&session, verb).await,
        Command::Visitors(verb) => visitors::run(&session, verb).await,
        Command::Unique(verb) => unique::run(&session, verb).await.map(|exit| exit as u8),
        Command::Lookup(verb) => lookup::run(&session, verb).await.map(|exit| exit as u8),
        Command::Records(verb) => records::run(&session, verb).await.map(|exit| exit as u8),
        Command::Hash(verb) => sharded::hash(&session, verb).await.map(|exit| exit as u8),
        Command::ShardedSet(verb) => sharded::set_of_shards(&session, verb).await.map(|exit| exit as u8),
        Command::Top(top::Top { verb: Some(verb), screen }) => {
            screen.refuse()?;
            top::top(&session, verb).await.map(|exit| exit as u8)
        }
        Command::Top(top::Top { verb: None, screen }) => screen::run(&session, &screen).await,
        Command::Reshard(args) => sharded::reshard(&session, &args).await.map(|exit| exit as u8),
        Command::Table(verb) => table::run(&session, verb).await.map(|exit| exit as u8),
        Command::Log(verb) => log::run(&session, verb).await.map(|exit| exit as u8),
        Command::Export(args) => archive::export(&session, &args).await.map(|exit| exit as u8),
        Command::Import(args) => archive::import(&session, &args).await.map(|exit| exit as u8),
        Command::Inspect(args) => inspect::inspect(&session, &args).await.map(|exit| exit as u8),
        Command::Ls(args) => inspect::ls(&session, &args, cli.common.timeout).await.map(|exit| exit as u8),
        Command::Memory(verb) => memory::run(&session, verb, cli.common.timeout).await.map(|exit| exit as u8),
        Command::Queue(verb) => queue::run(&session, queue::Which::Queue, verb).await,
        Command::Stack(verb) => queue::run(&session, queue::Which::Stack, verb).await,
        Command::Drop(named) => drop_structure(&session, &named).await.map(|exit| exit as u8),
        Command::Demo(_)
        | Command::Completions { .. }
        | Command::ExitCodes
        | Command::Man { .. }
        | Command::Serve(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Check
        | Command::Memcached(_) => Ok(Exit::Ok as u8),
    };
    session.report_cost();
    outcome.map_err(|failure| failure.at(session.place))
}

/// What goes through a whole store, to tell what is in it, makes none.
fn makes(command: &Command) -> Makes {
    match command {
        Command::Export(_) | Command::Ls(_) | Command::Memory(_) | Command::Top(top::Top { verb: None, .. }) => {
            Makes::Nothing
        }
        _ => Makes::Store,
    }
}

/// True if it changes things: what is done is worth a word, also when all that failed is a reader that went away. Not so of what prints for another command (`lock run`, `cache get`, `queue work`).
fn changes(command: &Command) -> bool {
    match command {
        Command::Lock(verb) => matches!(verb, LockVerb::Release { .. }),
        Command::Counter(verb) => matches!(verb, CounterVerb::Add(_) | CounterVerb::Reset(_)),
        Command::Set(verb) => matches!(verb, SetVerb::Add(_) | SetVerb::Remove(_) | SetVerb::Compact(_)),
        Command::Array(verb) => !matches!(verb, ArrayVerb::Get(_) | ArrayVerb::Stat(_)),
        Command::Cache(verb) => matches!(verb, CacheVerb::Invalidate(_)),
        Command::Visitors(verb) => matches!(verb, VisitorsVerb::Hit(_)),
        Command::Unique(verb) => matches!(verb, UniqueVerb::Add(_) | UniqueVerb::Forget(_)),
        Command::Lookup(verb) => matches!(verb, LookupVerb::Build(_)),
        Command::Records(RecordsVerb::Bits(bits)) => bits.on || bits.off,
        Command::Records(verb) => matches!(verb, RecordsVerb::Define(_) | RecordsVerb::Set(_)),
        Command::Hash(verb) => matches!(verb, HashVerb::Set(_) | HashVerb::Remove(_)),
        Command::ShardedSet(verb) => matches!(verb, ShardedSetVerb::Add(_) | ShardedSetVerb::Remove(_)),
        Command::Top(top) => matches!(top.verb, Some(TopVerb::Set(_) | TopVerb::Add(_) | TopVerb::Remove(_))),
        Command::Table(verb) => matches!(verb, TableVerb::Put(_) | TableVerb::Remove(_)),
        Command::Log(verb) => matches!(verb, LogVerb::Put(_)),
        Command::Queue(verb) | Command::Stack(verb) => {
            !matches!(verb, LineVerb::Len(_) | LineVerb::Stat(_) | LineVerb::Work(_))
        }
        Command::Reshard(_) | Command::Drop(_) | Command::Import(_) | Command::Restore(_) => true,
        _ => false,
    }
}

async fn drop_structure(session: &Session, named: &Named) -> Result<Exit, Failure> {
    let name = named.checked()?;
    match larder::drop_structure(&session.store, session.ctx(), &name).await.map_err(Failure::of_a_drop)? {
        Some(dropped) => {
            let kind = dropped.kind.as_str();
            session.out.answer(kind, &json!({"name": bytes(name.as_bytes()), "dropped": kind}))?;
            Ok(Exit::Ok)
        }
        None => Err(Failure::absent(session, &name).hint("there is nothing to drop")),
    }
}
