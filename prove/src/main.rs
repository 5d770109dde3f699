//! `larder-prove PART`: one part of the proof, alone. `cargo xtask prove` runs them all.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use larder_prove::{Budget, PARTS, served, simulation};

#[derive(Parser)]
#[command(name = "larder-prove", about = "Runs one part of the proof and prints what it found as a line of JSON")]
struct Args {
    /// Which part; without one, the parts are listed
    part: Option<String>,
    /// What the run starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs the one seed of the part `simulation` and prints all that happens in it, instead of findings
    #[arg(long)]
    trace: bool,
    /// Begin no more rounds than so many: others are done
    #[arg(long, default_value_t = u64::MAX)]
    seeds_max: u64,
    /// How long new rounds begin
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Be the process that is crashed
    #[arg(long, hide = true, num_args = 1..)]
    crash: Option<Vec<String>>,
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == served::VERB) {
        return served::serve(words.collect());
    }
    let args = Args::parse();
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    if let Some(words) = &args.crash {
        larder_prove::crashes::child(words);
        return ExitCode::SUCCESS;
    }
    let Some(name) = args.part else {
        for part in PARTS {
            println!("{:<12} {}", part.name, part.about);
        }
        return ExitCode::SUCCESS;
    };
    let Some(part) = PARTS.iter().find(|part| part.name == name) else {
        eprintln!(
            "error: no part is called {name:?}; they are: {}",
            PARTS.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
        );
        return ExitCode::from(2);
    };
    if args.trace && part.name == simulation::PART.name {
        let simulated = simulation::simulate(args.seed, true);
        print!("{}", simulated.trace);
        return if simulated.verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let start = Instant::now();
    let budget = Budget::new(args.seed, Duration::from_secs(args.seconds)).at_most(args.seeds_max);
    let findings = (part.run)(budget.clone());
    let line = serde_json::json!({
        "part": part.name,
        "seed": args.seed,
        "seeds": budget.seeds_done(),
        "seconds": start.elapsed().as_secs(),
        "findings": findings,
    });
    println!("{line}");
    for told in &findings.told {
        eprintln!("violation: {told}");
    }
    if findings.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
