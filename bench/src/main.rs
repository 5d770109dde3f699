//! Side-by-side benchmarks of Larder against its peers. `docs/bench.md` says what is measured, and how.

mod chapter;
mod contest;
mod drive;
mod durable;
mod growth;
mod machine;
mod memcached;
mod memory;
mod progress;
mod redis;
mod report;
mod server;
mod stats;
mod structures;
mod svg;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use larder_testkit::redis::RedisVersion;
use larder_testkit::servers::Version;

use crate::progress::Progress;
use crate::report::{Findings, Report, Section};

/// An error only has to be shown.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Where results go that are not sent elsewhere.
const FOLDER: &str = "target/bench";

#[derive(Parser)]
#[command(about = "Benchmarks of Larder against its peers, side by side", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All of them
    All(Options),
    /// Reads and writes through memcached, against the crates memcache and async-memcached
    Memcached(Options),
    /// Reads, writes and structures on Redis or Valkey, against the crates redis, fred, rslock and distkit
    Redis(Options),
    /// The store in the process, against moka, dashmap and quick_cache
    Memory(Options),
    /// Its memory an item, against theirs
    Overhead(Options),
    /// The store in a folder, against a bare log and Redis with a file
    Durable(Options),
    /// Our server, against memcached, and over a folder against Redis
    Server(Options),
    /// Each structure, against the raw ops it needs
    Structures(Options),
    /// What an op costs as its structure grows to a million elements
    Growth(Options),
    /// The chapter's three jobs on every store: what they take, what an op costs, what reads them whole
    Chapter(Options),
    /// Draws the plot and writes the page anew from a JSON file, without measuring
    Page(Options),
    /// One candidate in a process of its own
    #[command(hide = true)]
    Worker(memory::WorkerArgs),
    /// A process that writes over what a store in a folder has, until it is killed
    #[command(hide = true)]
    Overwrite {
        /// The folder
        folder: PathBuf,
        /// How many items it has
        items: u64,
    },
    /// A store in a process of its own, filled from a file
    #[command(hide = true)]
    Hold {
        /// The file
        path: PathBuf,
    },
    /// A server of ours in a process of its own
    #[command(hide = true)]
    Serve(server::ServeArgs),
}

/// How to measure, and where to put the results.
#[derive(Args, Clone, Debug)]
struct Options {
    /// How long a round over the network is measured, in seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Rounds after the warm-up
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Items in the stores in the process; of the chapter its visitors and users, 10 million if not given
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    items: Option<u64>,
    /// The command `larder`, where one benchmark runs it; the one beside this program if not given
    #[arg(long, value_name = "PATH")]
    larder: Option<PathBuf>,
    /// Only the contests whose names contain this, such as "512 tasks"
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Shorter rounds, fewer of them, fewer items
    #[arg(long)]
    quick: bool,
    /// Which memcached
    #[arg(long, default_value = "old")]
    server: ServerChoice,
    /// Which Redis or Valkey
    #[arg(long, default_value = "redis7")]
    redis: RedisChoice,
    /// On Redis, measure pottery and walrus as well: makes a Python environment in target/bench and installs them there
    #[arg(long)]
    python: bool,
    /// Where every round is written
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Where the plot is written
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    /// Where the page for people is written
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Keep what the JSON file has of other benchmarks
    #[arg(long)]
    keep: bool,
}

/// The servers of the test kit.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ServerChoice {
    /// 1.6.18
    Old,
    /// 1.6.38 or later
    New,
}

/// The Redis servers of the test kit.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RedisChoice {
    /// Redis 7.0
    Redis7,
    /// Redis 8
    Redis8,
    /// Valkey 8 or later
    Valkey,
}

/// How to measure, with defaults filled in.
#[derive(Clone, Debug)]
struct Plan {
    window: Duration,
    rounds: usize,
    items: u64,
    /// Visitors and users of the chapter.
    elements: u64,
    /// The command.
    larder: PathBuf,
    /// Ops a thread and round on the stores in the process.
    ops: u64,
    server: Version,
    redis: RedisVersion,
    python: bool,
    only: Option<String>,
}

impl Plan {
    /// Whether a contest of this name is held.
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|part| name.contains(part.as_str()))
    }
}

impl Options {
    fn plan(&self) -> Plan {
        let (seconds, rounds, items, ops) =
            if self.quick { (0.1, 7, 1_000_000, 200_000) } else { (0.2, 31, 5_000_000, 500_000) };
        Plan {
            window: self.seconds.unwrap_or(Duration::from_secs_f64(seconds)),
            rounds: self.rounds.map_or(rounds, usize::from),
            items: self.items.unwrap_or(items),
            elements: self.items.unwrap_or(if self.quick { chapter::ELEMENTS / 10 } else { chapter::ELEMENTS }),
            larder: self.larder.clone().unwrap_or_else(beside),
            ops,
            only: self.only.clone(),
            server: match self.server {
                ServerChoice::Old => Version::Old,
                ServerChoice::New => Version::New,
            },
            redis: match self.redis {
                RedisChoice::Redis7 => RedisVersion::Redis7,
                RedisChoice::Redis8 => RedisVersion::Redis8,
                RedisChoice::Valkey => RedisVersion::Valkey,
            },
            python: self.python,
        }
    }
}

/// Where cargo puts the command: beside this program.
fn beside() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("larder")
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
    if (0.05..=600.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("{text} seconds; it takes 0.05 to 600"))
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::All(options) => measure(&options, &Section::ALL),
        Command::Memcached(options) => measure(&options, &[Section::Memcached]),
        Command::Redis(options) => measure(&options, &[Section::Redis]),
        Command::Memory(options) => measure(&options, &[Section::Memory]),
        Command::Overhead(options) => measure(&options, &[Section::Overhead]),
        Command::Durable(options) => measure(&options, &[Section::Durable]),
        Command::Server(options) => measure(&options, &[Section::Server]),
        Command::Structures(options) => measure(&options, &[Section::Structures]),
        Command::Growth(options) => measure(&options, &[Section::Growth]),
        Command::Chapter(options) => measure(&options, &[Section::Chapter]),
        Command::Page(options) => Places::of(&options).and_then(|places| places.write()),
        Command::Worker(args) => memory::work(&args),
        Command::Overwrite { folder, items } => durable::overwrite(&folder, items),
        Command::Hold { path } => chapter::hold(&path),
        Command::Serve(args) => server::serve(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("larder-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options, sections: &[Section]) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("larder-bench: built without optimisations; the figures mean nothing (cargo run --release)");
    }
    let plan = options.plan();
    let mut places = Places::of(options)?;
    if !options.keep {
        places.report = Report::default();
    }
    let mut failed: Vec<String> = Vec::new();
    for &section in sections {
        if let Err(error) = measure_one(&plan, section, &mut places) {
            eprintln!("larder-bench: {}: {error}", section.title());
            failed.push(section.title().to_owned());
        }
        let findings = places.report.findings.iter().filter(|findings| findings.section == section);
        findings.for_each(|findings| println!("{}", table::terminal(findings)));
    }
    println!(
        "{} goals missed; every round is in {}, the plot in {}",
        places.report.missed(),
        places.json.display(),
        places.svg.display()
    );
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// What is found is written as it comes, so that a run that is stopped leaves it. Of earlier findings the contests go that are held anew: all, or those that `--only` names.
fn measure_one(plan: &Plan, section: Section, places: &mut Places) -> Result<()> {
    let progress = Progress::new();
    let mut is_begun = false;
    let mut keep = |findings: Findings| {
        if plan.only.is_none() && !std::mem::replace(&mut is_begun, true) {
            places.report.forget(section);
        }
        places.report.put(findings);
        places.write()
    };
    let findings = match section {
        Section::Memcached => memcached::measure(plan, &progress),
        Section::Redis => redis::measure(plan, &progress),
        Section::Memory => memory::measure(plan, &progress),
        Section::Overhead => memory::measure_overhead(plan, &progress),
        Section::Durable => durable::measure(plan, &progress),
        Section::Server => server::measure(plan, &progress),
        Section::Structures => structures::measure(plan, &progress),
        Section::Growth => growth::measure(plan, &progress),
        Section::Chapter => return chapter::measure(plan, &progress, &mut keep),
    }?;
    keep(findings)
}

/// A report, and where it goes.
struct Places {
    report: Report,
    json: PathBuf,
    svg: PathBuf,
    markdown: Option<PathBuf>,
}

impl Places {
    /// With what the JSON file has.
    fn of(options: &Options) -> Result<Places> {
        let json = options.json.clone().unwrap_or_else(|| Path::new(FOLDER).join("results.json"));
        let svg = options.svg.clone().unwrap_or_else(|| Path::new(FOLDER).join("results.svg"));
        Ok(Places { report: Report::load(&json)?, json, svg, markdown: options.markdown.clone() })
    }

    fn write(&self) -> Result<()> {
        self.report.save(&self.json)?;
        report::write(&self.svg, &svg::render(&self.report))?;
        if let Some(page) = &self.markdown {
            let from = page.parent().unwrap_or(Path::new(""));
            let link = self.svg.strip_prefix(from).unwrap_or(&self.svg);
            report::write(page, &table::markdown(&self.report, link))?;
        }
        Ok(())
    }
}
