//! `larder serve` as a process of its own, to be killed: this program itself, told so by its first word.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use larder_server::{Args, DurableEngine, MemoryEngine, MemoryStore, Server};
use larder_testkit::nemesis::Program;

/// The first word of the command line that has `larder-prove` serve.
pub const VERB: &str = "serve";

static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();

/// Names `larder-prove` to a program that is another: a test. Without it, the program that runs is the one.
pub fn executable_is(path: impl Into<PathBuf>) {
    // Somebody who said so before said the same.
    let _ = EXECUTABLE.set(path.into());
}

/// Serves until it is killed, told as `larder serve` is.
///
/// # Panics
/// When it cannot: what follows would show nothing.
pub fn serve(words: Vec<OsString>) -> ExitCode {
    let mut args = Args::parse(words).expect("the words of larder serve");
    let config = std::mem::take(&mut args.config);
    let server = match args.store.as_deref() {
        Some(url) if url != "memory:" => {
            let store = larder::durable_options(url).and_then(|options| options.open()).expect("a durable store");
            Server::start(DurableEngine::new(store), config)
        }
        _ => {
            let store = MemoryStore::builder().bytes_max(config.limits.memory_bytes_max);
            Server::start(MemoryEngine::new(store.build().expect("a memory store")), config)
        }
    };
    server.expect("a server").wait();
    ExitCode::SUCCESS
}

/// Starts a server of ours over memory, or over a durable store that keeps what it acknowledged.
pub(crate) fn start(is_durable: bool) -> Program {
    let executable = EXECUTABLE.get_or_init(|| std::env::current_exe().expect("this executable"));
    Program::start(executable, if is_durable { durable } else { memory }, is_durable)
}

fn memory(addr: SocketAddr, _folder: &Path) -> Vec<OsString> {
    [VERB, "-t", "2", "-l", &addr.to_string()].map(OsString::from).to_vec()
}

fn durable(addr: SocketAddr, folder: &Path) -> Vec<OsString> {
    let store = format!("file:{}?wait_ms=5000", folder.join("store").display());
    [VERB, "-t", "2", "-l", &addr.to_string(), "--store", &store].map(OsString::from).to_vec()
}
