//! Python's libraries, in a process of their own that does a job for as long as it is told to.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use larder_testkit::redis::RedisServer;

use crate::Result;

const FOLDER: &str = "target/bench/python";
const SCRIPT: &str = include_str!("peers.py");

/// The process, or why there is none.
pub(super) struct Python {
    process: Option<Rc<RefCell<Process>>>,
    described: String,
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only for a process that has ended, which `wait` finds out too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.input, "{question}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        match answer.trim().split_once(' ') {
            Some(("ok", rest)) => Ok(rest.to_owned()),
            _ => Err(format!("Python answered {:?} to {question:?}", answer.trim()).into()),
        }
    }
}

impl Python {
    /// Installs the libraries where that was asked for, and starts the process.
    pub(super) fn start(wanted: bool, server: &RedisServer) -> Result<Python> {
        if !wanted {
            return Ok(Python { process: None, described: "not asked for (--python)".to_owned() });
        }
        if let Err(error) = install() {
            let described = format!("pottery and walrus could not be installed ({error})");
            return Ok(Python { process: None, described });
        }
        let mut command = Command::new(Path::new(FOLDER).join("bin/python"));
        command.args(["-c", SCRIPT, &server.addr().port().to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no standard input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut process = Process { child, input, output };
        let described = process.ask("versions")?;
        Ok(Python { process: Some(Rc::new(RefCell::new(process))), described })
    }

    /// What runs, or why nothing does.
    pub(super) fn described(&self) -> &str {
        &self.described
    }

    /// Does a job by a library: microseconds an op. `None` where the library is not there, or does not do it.
    pub(super) fn contestant(
        &self,
        library: &'static str,
        job: &'static str,
        window: Duration,
    ) -> Result<Option<impl FnMut() -> Result<f64> + use<>>> {
        let Some(process) = self.process.clone() else { return Ok(None) };
        if process.borrow_mut().ask(&format!("can {library} {job}"))? != "yes" {
            return Ok(None);
        }
        let question = format!("run {library} {job} {}", window.as_secs_f64());
        Ok(Some(move || Ok(process.borrow_mut().ask(&question)?.parse()?)))
    }
}

fn install() -> Result<()> {
    let run = |command: &mut Command| -> Result<()> {
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?}: {}", said.lines().last().unwrap_or("no word")).into())
    };
    if !Path::new(FOLDER).join("bin/python").exists() {
        run(Command::new("python3").args(["-m", "venv", FOLDER]))?;
    }
    run(Command::new(Path::new(FOLDER).join("bin/pip")).args(["install", "--quiet", "pottery", "walrus"]))
}
