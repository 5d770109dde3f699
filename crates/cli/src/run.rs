//! A command that runs on a condition: it is ended when the condition ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use larder::text::Shown;
use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::exit::{Exit, Failure};

/// How often the rest of a process group is looked at while it ends; the kernel has no event for that.
const GROUP_POLL: Duration = Duration::from_millis(20);

/// How much output of a command is read at once.
const READ_BYTES: usize = 64 * 1024;

/// How the command ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself, or by a signal that was meant for it.
    Own(ExitStatus),
    /// It was ended, since the condition had.
    Ended,
}

/// The signals that are meant for the command. From the moment this is made they no longer end this process. What whoever started it has it ignore, as `nohup` does hangups, stays ignored.
#[derive(Debug)]
pub(crate) struct Forwarded {
    interrupt: Option<Signals>,
    terminate: Option<Signals>,
    hangup: Option<Signals>,
}

impl Forwarded {
    pub(crate) fn listen() -> io::Result<Forwarded> {
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let unless_ignored = |kind: SignalKind| {
            let is_ignored = ignored >> (kind.as_raw_value() - 1) & 1 == 1;
            if is_ignored { Ok(None) } else { signal(kind).map(Some) }
        };
        Ok(Forwarded {
            interrupt: unless_ignored(SignalKind::interrupt())?,
            terminate: unless_ignored(SignalKind::terminate())?,
            hangup: unless_ignored(SignalKind::hangup())?,
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            () = one_of(&mut self.interrupt) => Signal::INT,
            () = one_of(&mut self.terminate) => Signal::TERM,
            () = one_of(&mut self.hangup) => Signal::HUP,
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

/// Waits for the next of these signals: for ever where they are ignored.
async fn one_of(signals: &mut Option<Signals>) {
    let heard = match signals {
        Some(signals) => signals.recv().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending::<()>().await;
    }
}

/// The signals that a process ignores, by what the system tells of it: a bit each, the lowest that of signal 1. None where it does not tell.
fn ignored(status: &str) -> u64 {
    let hex = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// Prints on a thread of its own, since who reads may be slow, and hears signals meanwhile: the one that came first, and then what was not printed yet is left to that thread, which ends with this process. With `within`
/// it is left to it after so long, too, as by a signal that came before.
pub(crate) async fn print_unless_told(
    signals: &mut Forwarded,
    within: Option<(Duration, Signal)>,
    bytes: impl AsRef<[u8]> + Send + 'static,
) -> io::Result<Option<Signal>> {
    let (limit, earlier) = within.map_or((None, None), |(limit, signal)| (Some(Instant::now() + limit), Some(signal)));
    tokio::select! {
        biased;
        printed = on_a_thread(move || print(bytes.as_ref())) => printed.map(|()| None),
        () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => Ok(earlier),
        signal = signals.next() => Ok(earlier.or(Some(signal))),
    }
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Does what blocks on a thread that nothing waits for when this process ends, unlike those of the runtime.
async fn on_a_thread(act: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, outcome) = oneshot::channel();
    // Whoever waited may have given up.
    std::thread::Builder::new().spawn(move || _ = done.send(act()))?;
    outcome.await.map_err(io::Error::other)?
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// `None` if it has ended and was waited for already.
    pid: Option<Pid>,
    /// True if it leads a process group of its own, which signals then reach as a whole.
    leads: bool,
    /// The first signal that came while it was supervised.
    signalled: Option<Signal>,
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

    /// What the command prints, to be read; nothing if that is not captured.
    pub(crate) fn output(&mut self, kept_bytes_max: usize, beyond: Beyond) -> Output {
        Output { stdout: self.child.stdout.take(), kept: Vec::new(), kept_bytes_max, beyond, bytes: 0 }
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
        Ok(Running { child, pid, leads, signalled: None })
    }

    /// The first signal that came while it was supervised.
    pub(crate) fn signalled(&self) -> Option<Signal> {
        self.signalled
    }

    /// Waits for the command to end, hands signals on to it, and ends it when `until` is there first: by SIGTERM, and by
    /// SIGKILL after `grace`.
    pub(crate) async fn supervise(
        &mut self,
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
                    self.signalled = self.signalled.or(Some(signal));
                    // The terminal has sent it to the whole foreground group already, and twice means "at once" to many.
                    if self.leads || signal != Signal::INT {
                        self.send(signal);
                    }
                }
            }
        }
    }

    /// What `reading` comes to behind the command's own end: what it left behind may hold its output open for ever. A signal is handed on to
    /// that; it, or one that came before, leaves `grace` to the reading. The signal that came now, if one did.
    pub(crate) async fn rest<T>(
        &mut self,
        signals: &mut Forwarded,
        reading: impl Future<Output = T>,
        grace: Duration,
    ) -> (Option<T>, Option<Signal>) {
        let mut reading = pin!(reading);
        let (mut late, mut over) = (None, self.signalled.map(|_| Instant::now() + grace));
        loop {
            tokio::select! {
                biased;
                read = &mut reading => return (Some(read), late),
                () = sleep_until(over.unwrap_or_else(Instant::now)), if over.is_some() => return (None, late.or(self.signalled)),
                signal = signals.next() => {
                    late = late.or(Some(signal));
                    over = over.or_else(|| Some(Instant::now() + grace));
                    if self.leads {
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

/// What becomes of output beyond what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// All of it goes on to standard output as it comes.
    PassedOn,
    Dropped,
}

/// What a command prints. Of one that prints without an end no more is in memory than may be kept.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: Option<ChildStdout>,
    kept: Vec<u8>,
    kept_bytes_max: usize,
    beyond: Beyond,
    /// How many there were.
    bytes: u64,
}

impl Output {
    /// Reads until the command and all that it started have closed their standard output. Where that fails, or is not waited for, they are
    /// told so when they write more.
    pub(crate) async fn read(&mut self) -> io::Result<()> {
        let Some(mut stdout) = self.stdout.take() else { return Ok(()) };
        let mut part = vec![0; READ_BYTES];
        loop {
            let count = stdout.read(&mut part).await?;
            if count == 0 {
                return Ok(());
            }
            let was_over = self.bytes > self.kept_bytes_max as u64;
            self.bytes += count as u64;
            if !was_over {
                self.kept.extend_from_slice(&part[..count]);
            }
            if self.bytes <= self.kept_bytes_max as u64 {
                continue;
            }
            let passed = if was_over { part[..count].to_vec() } else { std::mem::take(&mut self.kept) };
            if self.beyond == Beyond::PassedOn {
                // Who reads there may be slow: signals are heard meanwhile.
                on_a_thread(move || {
                    let mut out = io::stdout();
                    out.write_all(&passed).and_then(|()| out.flush())
                })
                .await?;
            }
        }
    }

    /// How many bytes it was, if too many to be kept.
    pub(crate) fn over(&self) -> Option<u64> {
        (self.bytes > self.kept_bytes_max as u64).then_some(self.bytes)
    }

    /// All that was kept: nothing where it was too much.
    pub(crate) fn kept(self) -> Vec<u8> {
        self.kept
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_of_what_the_system_tells() {
        let of = |line: &str| ignored(&format!("Name:\tlarder\nSigBlk:\t0000000000000001\n{line}\nSigCgt:\t02\n"));
        assert_eq!(of("SigIgn:\t0000000000001003"), 0x1003);
        assert_eq!([of("SigIgn:\tx"), of(""), ignored("")], [0; 3]);
    }
}
