//! Developer tasks: test, servers, checks. Run as `cargo xtask <task>`.

mod apt;
mod clients;
mod command;
mod cookbook;
mod directions;
mod dist;
mod evidence;
mod examples;
mod links;
mod mutants;
mod prove;
mod scripts;
mod servers;
mod steps;
mod style;
mod summary;
mod twins;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Parser, Subcommand};

use crate::command::Result;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "Developer tasks of Larder")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that must hold before a change is merged: checks, lints, tests, documentation tests
    Test,
    /// Only the checks that build nothing but xtask itself: style, directions of dependencies, links, evidence and the like
    Check,
    /// Write the table at the head of docs/guarantees.md
    Guarantees,
    /// Run the suites of clients in other languages against our server, and against memcached itself
    Clients,
    /// Run the proof: faults, histories, simulation, crashes; adds up in docs/results.md
    Prove(prove::Args),
    /// Change the code in small ways and see that a test fails: mutation testing, in shards; recorded for docs/results.md
    Mutants(mutants::Args),
    /// Build what is handed out, into target/dist: a static binary, manual pages, completions, unit files
    Dist {
        /// And run it: in an empty root, as `cargo install` makes it, and as an image where there is a docker daemon
        #[arg(long)]
        check: bool,
    },
    /// Fetch the real servers and shells that the tests need, into .servers/
    Servers {
        /// Fetch again what is already there
        #[arg(long)]
        refresh: bool,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args.task, &workspace_root()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\x1b[1;31merror:\x1b[0m {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task, root: &Path) -> Result<()> {
    match task {
        Task::Test => steps::test(root),
        Task::Check => steps::check(root),
        Task::Guarantees => summary::write(root),
        Task::Clients => clients::run(root),
        Task::Prove(args) => prove::run(root, args),
        Task::Mutants(args) => mutants::run(root, args),
        Task::Dist { check: true } => dist::check(root),
        Task::Dist { check: false } => dist::build(root).map(drop),
        Task::Servers { refresh } => servers::ensure(root, *refresh),
    }
}

/// The folder of the workspace: this package sits directly in it. Cargo says where the package is when it runs it; what
/// was compiled in is another clone's where a target folder is shared.
fn workspace_root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().unwrap_or(&package).to_path_buf()
}
