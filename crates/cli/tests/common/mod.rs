//! Running the built command.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// After this a command is taken to hang.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often a condition without an event is looked at again.
const POLL: Duration = Duration::from_millis(5);

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// The command, with a clean environment and nothing on standard input.
pub(crate) fn larder(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("LARDER_STORE").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    // A test that names no store must not write into that of whoever runs it.
    command.env_remove("XDG_DATA_HOME").env_remove("HOME");
    command
}

/// Runs a command line, words apart by spaces, on a store.
pub(crate) fn on(store: &str, line: &str) -> Done {
    finish(larder(line.split_whitespace()).env("LARDER_STORE", store))
}

/// The same with something on standard input.
pub(crate) fn on_with_input(store: &str, line: &str, input: &[u8]) -> Done {
    fed(larder(line.split_whitespace()).env("LARDER_STORE", store), input)
}

/// Runs a command with something on standard input.
pub(crate) fn fed(command: &mut Command, input: &[u8]) -> Done {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end before it has read everything.
    let feeder = thread::spawn(move || _ = stdin.write_all(&input));
    let done = wait(child);
    feeder.join().unwrap();
    done
}

pub(crate) fn finish(command: &mut Command) -> Done {
    wait(command.spawn().unwrap())
}

/// Waits for the end, but not for ever.
pub(crate) fn wait(child: Child) -> Done {
    wait_within(child, DEADLINE)
}

/// The same of what may take longer.
pub(crate) fn wait_within(mut child: Child, deadline: Duration) -> Done {
    let drain = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.map(|mut stream| stream.read_to_end(&mut bytes));
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = drain(child.stderr.take().map(|stream| Box::new(stream) as _));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the command hangs");
            }
            None => thread::sleep(POLL),
        }
    };
    // A process that the command left behind may hold its output open, for ever.
    until("the end of the output", || stdout.is_finished() && stderr.is_finished());
    let stderr = String::from_utf8(stderr.join().unwrap()).unwrap();
    Done { status, stdout: stdout.join().unwrap(), stderr }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "{what} did not happen");
        thread::sleep(POLL);
    }
}

/// A number that a command has written into a file, once it has.
pub(crate) fn number_in(path: &Path) -> i32 {
    let mut number = None;
    until("a number in a file", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        number = text.strip_suffix('\n').and_then(|line| line.parse().ok());
        number.is_some()
    });
    number.unwrap()
}

/// True while the process is there, and no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

impl Done {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("a signal ended it: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Asserts the exit code, and gives standard output.
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> String {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", String::from_utf8_lossy(&self.stdout), self.stderr);
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Asserts the exit code and that something of the error was said on standard error, and nothing on standard output.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, said: &str) {
        assert_eq!(self.exits(code), "");
        assert!(self.stderr.contains(said), "{said:?} is not in: {}", self.stderr);
    }

    /// The lines of standard output, sorted.
    pub(crate) fn sorted_lines(&self) -> Vec<Vec<u8>> {
        let mut lines: Vec<Vec<u8>> = self.stdout.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines.pop(), Some(Vec::new()), "the last line has an end");
        lines.sort();
        lines
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        parse(&self.text())
    }

    /// The error of --json, from standard error.
    #[track_caller]
    pub(crate) fn json_error(&self) -> Value {
        parse(&self.stderr)["error"].clone()
    }

    /// The round trips that --trace tells, connecting left out.
    #[track_caller]
    pub(crate) fn round_trips(&self) -> u64 {
        let trace = self.stderr.lines().find(|line| line.starts_with("{\"trace\"")).expect("a trace");
        parse(trace)["trace"]["round_trips"].as_u64().unwrap()
    }
}

#[track_caller]
fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}
