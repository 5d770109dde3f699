//! `larder memory …`: what a store's memory goes into, and what would save some.

mod json;
mod table;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget};
use larder::footprint::{self, Options, Report, Step};
use larder::survey::Pace;
use larder::{Ctx, Error, ErrorKind};

use crate::exit::{Exit, Failure};
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum MemoryVerb {
    /// Tell what the memory of a store goes into, what is not packed and why, and what would save some
    #[command(after_help = REPORT_HELP)]
    Report(ReportArgs),
    /// Print the settings and shard sizes that the measured data calls for
    #[command(after_help = ADVISE_HELP)]
    Advise(Look),
}

/// How closely it is looked.
#[derive(Args, Debug)]
pub(crate) struct Look {
    /// How many keys of each group are measured, where the store does not tell sizes as it lists: the error falls with its square root
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    samples: u32,
    /// How many keys a second are asked after at the most; 0: as many as the server answers
    #[arg(long, value_name = "COUNT", default_value = "100000")]
    rate: u32,
    /// Have structures count their elements where their keys do not tell, which reads them whole
    #[arg(long)]
    elements: bool,
    /// Draw the same sample each time
    #[arg(long, value_name = "NUMBER", hide = true)]
    seed: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    look: Look,
    /// Draw it as a picture (SVG), too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    plot: Option<OsString>,
    /// How many groups are printed, of those that take most; --json has all
    #[arg(long, value_name = "COUNT", default_value = "40")]
    groups: usize,
}

const REPORT_HELP: &str = "\
Lists all keys of the store, those of other programs too, and puts together what is alike: a structure's, or those with one pattern (user:*:name), of one type, kept in one \
encoding. Prints for each group how many keys and elements it has, what they take, live and resident, and what an element takes; then which collections are not packed, and which \
limit of the server keeps them out; then what would save memory, and how much.

It may run on a server that is busy: it reads and writes nothing, asks for 500 keys at a time (SCAN, TYPE and OBJECT ENCODING, on each primary of a cluster; never KEYS), waits for others between \
that (--rate), and measures (MEMORY USAGE) only a sample of each group: the column ± is the error of that, which 95 of 100 samples are within. On memcached the crawler of each \
server lists its items (lru_crawler metadump) with the size of each; embedded stores are read item by item. Nothing is a snapshot. With --elements structures are opened and read, and \
one of which a server of a fleet has lost its copy of what names it puts that back.

RSS is what is resident: on memcached the chunks of the slab classes; on Redis the server's own figure for all of its memory, spread over the groups. Of a store in a folder nothing is told \
of groups: what all its files take is said first, with the 64 MiB of room that each journal has from the beginning; its tables take what the items do, within a twentieth.

Without --timeout it takes as long as it takes.

Examples:
  larder memory report
  larder memory report --store redis://cache:6379 --rate 20000 --samples 1000
  larder memory report --plot memory.svg
  larder --json memory report | jq '.groups[] | select(.unpacked)'";

const ADVISE_HELP: &str = "\
Measures as `memory report` does, and prints what the data calls for: settings of Redis or Valkey as lines of redis.conf (hash-max-listpack-entries, set-max-intset-entries, …), options of \
memcached (-f, -I, -o), and shard sizes, each with what was measured, what it would save, and what else it costs, as comments before. Never a growth factor for memcached that runs out of slab \
classes. Servers that do not answer are told first. Nothing is changed.

Limits are raised only as far as operations stay quick: 512 entries of a listpack, 4,096 members of a set of integers; what is larger is to be sharded.

Examples:
  larder memory advise
  larder memory advise --store redis://cache:6379 | grep -v '^#'
  larder --json memory advise | jq '.advice[].saves_bytes'";

pub(crate) async fn run(session: &Session, verb: MemoryVerb, timeout: Option<Duration>) -> Result<Exit, Failure> {
    match verb {
        MemoryVerb::Report(args) => {
            let report = measure(session, &args.look, timeout).await?;
            if let Some(path) = &args.plot {
                let written = std::fs::write(path, footprint::svg(&report));
                let shown = std::path::Path::new(path).display().to_string();
                written.map_err(|error| Failure::usage(format!("{shown} cannot be written: {error}")))?;
            }
            if session.out.json {
                session.out.answer("", &json::report(&report))?;
            } else {
                table::print_report(&report, args.groups)?;
            }
        }
        MemoryVerb::Advise(look) => {
            let report = measure(session, &look, timeout).await?;
            if session.out.json {
                session.out.answer("", &json::advise(&report))?;
            } else {
                table::print_advice(&report)?;
            }
        }
    }
    Ok(Exit::Ok)
}

async fn measure(session: &Session, look: &Look, timeout: Option<Duration>) -> Result<Report, Failure> {
    let Some(survey) = &session.survey else {
        let error = Error::new(ErrorKind::Unsupported, "this store cannot tell what its keys take");
        return Err(error.store(session.store.profile().store.clone()).into());
    };
    let options = Options {
        pace: Pace { keys_a_second: NonZeroU32::new(look.rate) },
        samples: look.samples,
        elements: look.elements,
        seed: look.seed.unwrap_or_else(|| fastrand::u64(..)),
        ctx: timeout.map_or_else(Ctx::default, Ctx::within),
    };
    // Drawn on a terminal only.
    let bar = ProgressBar::new_spinner();
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    let mut told = |step: Step| {
        bar.set_message(words(step));
        bar.tick();
    };
    let report = footprint::report(&session.store, &**survey, &options, &mut told).await;
    bar.finish_and_clear();
    Ok(report?)
}

fn words(step: Step) -> String {
    let share = |done: u64, of: u64| format!("{} of {}", HumanCount(done), HumanCount(of));
    match step {
        Step::Keys { done, of: Some(of) } => format!("listed {} keys", share(done, of)),
        Step::Keys { done, of: None } => format!("listed {} keys", HumanCount(done)),
        Step::Samples { done, of } => format!("measured {} of the sample", share(done, of)),
        Step::Structures { done, of } => format!("asked {} structures", share(done, of)),
    }
}
