//! A server in a process of its own, and what that process takes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use larder_server::{
    Config, DurableEngine, DurableOptions, Engine, Limits, Listen, MemoryEngine, MemoryStore, Runtime, Server,
};

use crate::Result;

/// Memory for items, of both servers.
pub(super) const MEMORY_MB: usize = 1024;
const CONNECTIONS_MAX: usize = 16_384;
/// Longer than anything is measured: whoever never reads is to be there until the end.
const SLOW_TIMEOUT_MS: u64 = 3_600_000;

/// The arguments of a server's process.
#[derive(Args)]
pub(crate) struct ServeArgs {
    #[arg(long)]
    threads: usize,
    /// A store in this folder; in memory without.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// When what is in the folder is on disk.
    #[arg(long, default_value = "always")]
    sync: larder_store_durable::Sync,
    /// A runtime for each thread, in place of one for all.
    #[arg(long)]
    per_core: bool,
}

/// Serves until standard input ends; says where.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    match &args.folder {
        Some(folder) => {
            let store = DurableOptions::new(folder).sync(args.sync).open()?;
            serve_engine(DurableEngine::new(store), args)
        }
        None => {
            let store = MemoryStore::builder().bytes_max(MEMORY_MB << 20).build()?;
            serve_engine(MemoryEngine::new(store), args)
        }
    }
}

fn serve_engine(engine: impl Engine, args: &ServeArgs) -> Result<()> {
    let server = Server::start(
        engine,
        Config {
            listen: vec![Listen::Tcp(([127, 0, 0, 1], 0).into())],
            threads: args.threads,
            runtime: if args.per_core { Runtime::PerCore } else { Runtime::Shared },
            limits: Limits { connections_max: CONNECTIONS_MAX, slow_timeout_ms: SLOW_TIMEOUT_MS, ..Limits::default() },
            ..Config::default()
        },
    )?;
    println!("{}", server.addrs()[0]);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.stop();
    Ok(())
}

/// A server of ours; it ends when this is dropped.
pub(super) struct Served {
    child: Child,
    pub(super) addr: SocketAddr,
}

impl Served {
    pub(super) fn start(threads: usize, words: &[&str]) -> Result<Served> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--threads", &threads.to_string()]).args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        Ok(Served { addr: line.trim().parse()?, child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        _ = self.child.wait();
    }
}

/// Processor time that a process has used.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    /// Linux tells it in hundredths of a second.
    const TICK: Duration = Duration::from_millis(10);
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Behind the name, which may hold spaces.
    let (_, fields) = text.rsplit_once(") ").ok_or("no fields")?;
    let ticks: u32 = fields.split(' ').skip(11).take(2).map(|field| field.parse().unwrap_or(0)).sum();
    Ok(TICK * ticks)
}
