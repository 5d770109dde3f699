//! A command that runs on a condition: it is ended when the condition ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use larder::text::Shown;
use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use crate::exit::{Exit, Failure};

/// How often the rest of a process group is looked at while it ends; the kernel has no event for that.
const GROUP_POLL: Duration = Duration::from_millis(20);

/// How the command ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself, or by a signal that was meant for it.
    Own(ExitStatus),
    /// It was ended, since the condition had.
    Ended,
}

/// The signals that are meant for the command. From the moment this is made they no longer end this process.
#[derive(Debug)]
pub(crate) struct Forwarded {
    interrupt: Signals,
    terminate: Signals,
    hangup: Signals,
}

impl Forwarded {
    pub(crate) fn listen() -> io::Result<Forwarded> {
        Ok(Forwarded {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            Some(()) = self.interrupt.recv() => Signal::INT,
            Some(()) = self.terminate.recv() => Signal::TERM,
            Some(()) = self.hangup.recv() => Signal::HUP,
            else => std::future::pending().await,
        }
    }

    /// True if a signal has come that was not taken yet: it is taken.
    pub(crate) async fn has_come(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.next() => true,
            () = std::future::ready(()) => false,
        }
    }
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// `None` if it has ended and was waited for already.
    pid: Option<Pid>,
    /// True if it leads a process group of its own, which signals then reach as a whole.
    leads: bool,
}

impl Running {
    /// Starts the command with more variables in its environment.
    pub(crate) fn start(command: &[OsString], env: &[(&str, OsString)]) -> Result<Running, Failure> {
        Running::start_with(command, env, Stdio::inherit(), Stdio::inherit())
    }

    /// The same, and what it prints to standard output is [`output`](Running::output).
    pub(crate) fn start_captured(command: &[OsString], env: &[(&str, OsString)]) -> Result<Running, Failure> {
        Running::start_with(command, env, Stdio::inherit(), Stdio::piped())
    }

    /// Starts the command with something on its standard input. A command that does not read it all is fine.
    pub(crate) fn start_fed(
        command: &[OsString],
        env: &[(&str, OsString)],
        input: bytes::Bytes,
    ) -> Result<Running, Failure> {
        let mut running = Running::start_with(command, env, Stdio::piped(), Stdio::inherit())?;
        if let Some(mut stdin) = running.child.stdin.take() {
            tokio::spawn(async move { _ = stdin.write_all(&input).await });
        }
        Ok(running)
    }

    /// What the command prints, until it and all that it started have closed their standard output; nothing if that is not captured.
    pub(crate) fn output(&mut self) -> impl Future<Output = io::Result<Vec<u8>>> + use<> {
        let stdout = self.child.stdout.take();
        async move {
            let mut output = Vec::new();
            if let Some(mut stdout) = stdout {
                stdout.read_to_end(&mut output).await?;
            }
            Ok(output)
        }
    }

    fn start_with(
        command: &[OsString],
        env: &[(&str, OsString)],
        stdin: Stdio,
        stdout: Stdio,
    ) -> Result<Running, Failure> {
        let Some((program, args)) = command.split_first() else { return Err(Failure::usage("there is no command")) };
        let leads = !is_foreground();
        let mut command = Command::new(program);
        command.args(args).envs(env.iter().map(|(name, value)| (name, value))).stdin(stdin).stdout(stdout);
        if leads {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| cannot_run(program, &error))?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Running { child, pid, leads })
    }

    /// Waits for the command to end, hands signals on to it, and ends it when `until` is there first: by SIGTERM, and by
    /// SIGKILL after `grace`.
    pub(crate) async fn supervise(
        mut self,
        signals: &mut Forwarded,
        until: impl Future<Output = ()>,
        grace: Duration,
    ) -> io::Result<End> {
        let mut until = pin!(until);
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return Ok(End::Own(status?)),
                () = &mut until => {
                    self.end(grace).await?;
                    return Ok(End::Ended);
                }
                signal = signals.next() => {
                    // The terminal has sent it to the whole foreground group already, and twice means "at once" to many.
                    if self.leads || signal != Signal::INT {
                        self.send(signal);
                    }
                }
            }
        }
    }

    async fn end(&mut self, grace: Duration) -> io::Result<()> {
        let start = Instant::now();
        self.send(Signal::TERM);
        if timeout(grace, self.child.wait()).await.is_err() {
            self.send(Signal::KILL);
            self.child.wait().await?;
        }
        // What the command started may outlive it.
        while self.leads && self.pid.is_some_and(|pid| test_kill_process_group(pid).is_ok()) {
            if start.elapsed() >= grace {
                self.send(Signal::KILL);
                break;
            }
            sleep(GROUP_POLL).await;
        }
        Ok(())
    }

    /// Sends a signal. A command that has ended meanwhile needs none.
    fn send(&self, signal: Signal) {
        let Some(pid) = self.pid else { return };
        _ = if self.leads { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    }
}

/// The exit code that stands for how a command ended, as shells have it.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::Internal as u8)
}

/// The exit code of a process that a signal ended.
pub(crate) fn code_of_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(Exit::Internal as u8)
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    let message = format!("the command {} cannot be run: {error}", Shown(program.as_bytes()));
    Failure::new(Exit::Usage, "command", message).exiting(exit)
}

/// True if this process is in the foreground of a terminal. Then the command must be, too, to read from it.
fn is_foreground() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}
