//! A process run under a tracer that sees every call by which it changes files, one at a time, and can kill the process there, let a call fail, or
//! cut a write short.
//!
//! A thread that comes to such a call while another is in one waits, so that what is recorded is the order in which the disk saw it. What the process says
//! on its standard output stands in the same order: so it is known what was acknowledged before each call.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls::{self, Sys};

/// The event of a call that the filter handed over, as ptrace numbers it.
const SECCOMP: i32 = 7;
/// A path longer than this is none.
const PATH_BYTES_MAX: usize = 4096;
/// So long a thread stands still that met a [fault of that kind](Fault::FailsSlowly).
const STILL: Duration = Duration::from_millis(10);
/// How often it is looked whether that is over.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Which calls are counted for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// All that change a file or a folder, or sync one.
    All,
    /// Those that need room: writes, longer files, new files and folders.
    Growing,
    Writes,
    /// Writes of more than one byte: others cannot be cut in two.
    Splits,
    /// Files and folders made, renamed and removed, and lengths set.
    Names,
    Syncs,
    /// Syncs of the journal by the engine's own threads.
    SyncsOfEngine,
}

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process is killed before the call has done anything.
    KillBefore,
    /// The process is killed when the call has done its work, before it knows.
    KillAfter,
    /// A write writes half of what it should, and the process is killed then.
    KillHalfway,
    /// A write writes half of what it should, and says so; nothing else is wrong.
    Short,
    /// A write writes half of what it should, and all that need room fail from then on.
    ShortThenFull,
    /// The call fails, and does nothing. A sync that fails has the system forget what it should have written, as Linux does.
    Fails(Errno),
    /// The same, and the thread stands still for a while, twice: before it hears of it, so that others come to wait for what it holds, and behind the next call that it makes. Where it let a lock go by
    /// that one, others do what they can before anybody is told.
    FailsSlowly(Errno),
    /// This call and all like it from now on.
    FailFromNow(Errno),
    /// This and every later sync does nothing, and says it did: a disk that lies, or a store that leaves its syncs out. To check the checker.
    SyncsDoNothing,
}

/// Which call is met by which fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) fault: Fault,
    pub(super) among: Among,
    /// The how manyth of those, from 1.
    pub(super) at: u64,
}

/// A file or a folder, by its number on the disk.
pub(super) type Inode = u64;

/// What became of files, in the order in which it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Wrote {
        inode: Inode,
        at: u64,
        bytes: Vec<u8>,
    },
    LenSet {
        inode: Inode,
        len: u64,
    },
    /// A file was opened that may be new; `empties`: it is empty now.
    Opened {
        path: PathBuf,
        inode: Inode,
        empties: bool,
    },
    Renamed {
        from: PathBuf,
        to: PathBuf,
    },
    Unlinked {
        path: PathBuf,
    },
    DirMade {
        path: PathBuf,
        inode: Inode,
    },
    Synced {
        inode: Inode,
    },
    SyncFailed {
        inode: Inode,
    },
    /// A line on the standard output.
    Said(String),
}

/// What was seen of a process.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) events: Vec<Event>,
    /// Calls that count [among](Among) those of the plan; all, without one.
    pub(super) calls: u64,
    /// The fault was caused.
    pub(super) is_reached: bool,
    /// How many events there were when it was.
    pub(super) reached_at: usize,
    /// The process ended by itself, with this code.
    pub(super) code: Option<i32>,
}

/// Runs a program that waits for a line before it [installs the filter](calls::filter) and begins, and watches what it does in `folder`.
pub(super) fn run(command: &mut Command, folder: &Path, plan: Option<Plan>) -> Trace {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACESECCOMP
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).expect("a process that may be traced: ptrace is forbidden here");
    child.stdin.take().expect("a pipe").write_all(b"go\n").expect("a process that listens");
    let trace = Trace { events: Vec::new(), calls: 0, is_reached: false, reached_at: 0, code: None };
    let folder = folder.canonicalize().expect("a folder");
    let (busy, slow) = (None, None);
    let (waiting, told) = (VecDeque::new(), HashMap::new());
    let tracer = Tracer { pid, folder, plan, trace, busy, waiting, slow, told, is_full: false };
    let trace = tracer.watch();
    // The tracer has seen its end; nothing is left to wait for.
    _ = child.wait();
    trace
}

/// A call between its beginning and its end.
struct Begun {
    thread: Pid,
    sys: Sys,
    args: [u64; 6],
    /// What a write would write.
    bytes: Vec<u8>,
    /// It does nothing: a fault saw to that.
    is_stopped: bool,
    then_kill: bool,
    then_slow: bool,
}

/// A thread that is to stand still.
struct Slow {
    thread: Pid,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It stands still until then, and goes on to its next call.
    Holds(Instant),
    /// Until it comes to that.
    Runs,
    /// It is in that.
    Calls,
    /// It stands behind it, until then.
    Stands(Instant),
}

struct Tracer {
    pid: Pid,
    folder: PathBuf,
    plan: Option<Plan>,
    trace: Trace,
    busy: Option<Begun>,
    /// Threads that wait until the one in a call is done.
    waiting: VecDeque<Pid>,
    slow: Option<Slow>,
    /// Files of which a sync failed, and the descriptors that were told of it: Linux tells each of them once.
    told: HashMap<Inode, HashSet<u64>>,
    is_full: bool,
}

impl Tracer {
    fn watch(mut self) -> Trace {
        let (any, flags) = (Pid::from_raw(-1), WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD);
        loop {
            let stands = self.slow.as_ref().and_then(Slow::until);
            let flags = if stands.is_some() { flags | WaitPidFlag::WNOHANG } else { flags };
            match waitpid(any, Some(flags)) {
                Ok(WaitStatus::StillAlive) => self.look_at_slow(stands),
                Ok(WaitStatus::PtraceEvent(thread, _, SECCOMP)) => self.arrives(thread),
                Ok(WaitStatus::PtraceSyscall(thread)) if self.slows(thread) => {}
                Ok(WaitStatus::PtraceSyscall(thread)) => self.leaves(thread),
                Ok(WaitStatus::PtraceEvent(thread, _, _)) => _ = ptrace::cont(thread, None),
                Ok(WaitStatus::Stopped(thread, signal)) => _ = ptrace::cont(thread, signal),
                Ok(WaitStatus::Exited(thread, code)) if thread == self.pid => self.trace.code = Some(code),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) => return self.trace,
                Err(error) => panic!("waiting for a traced process: {error}"),
            }
        }
    }

    /// Goes on with a thread that is to stand still; false for any other.
    fn slows(&mut self, thread: Pid) -> bool {
        let Some(slow) = self.slow.as_mut().filter(|slow| slow.thread == thread) else { return false };
        match slow.stage {
            Stage::Runs => {
                slow.stage = Stage::Calls;
                _ = ptrace::syscall(thread, None);
            }
            Stage::Calls => slow.stage = Stage::Stands(Instant::now() + STILL),
            Stage::Holds(_) | Stage::Stands(_) => return false,
        }
        true
    }

    /// Lets a thread go on that stood still for long enough.
    fn look_at_slow(&mut self, stands: Option<Instant>) {
        if stands.is_some_and(|until| Instant::now() < until) {
            return std::thread::sleep(LOOK_EVERY);
        }
        let Some(slow) = &mut self.slow else { return };
        if let Stage::Holds(_) = slow.stage {
            slow.stage = Stage::Runs;
            _ = ptrace::syscall(slow.thread, None);
            return;
        }
        _ = ptrace::cont(slow.thread, None);
        self.slow = None;
    }

    fn arrives(&mut self, thread: Pid) {
        // Its next call is one that changes a file: that is waited for by others, and so it must not stand still behind it.
        self.slow.take_if(|slow| slow.thread == thread);
        if self.busy.is_some() {
            return self.waiting.push_back(thread);
        }
        // A thread that is gone was killed.
        let Ok(regs) = ptrace::getregs(thread) else { return };
        let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        let sys = calls::named(regs.orig_rax).expect("a call that the filter names");
        let begun =
            Begun { thread, sys, args, bytes: Vec::new(), is_stopped: false, then_kill: false, then_slow: false };
        let begun = self.begin(begun);
        let Some(begun) = begun else { return self.go_on(thread) };
        self.busy = Some(begun);
        _ = ptrace::syscall(thread, None);
    }

    /// Lets a thread go on that is in no call of interest, and the next one that waits.
    fn go_on(&mut self, thread: Pid) {
        _ = ptrace::cont(thread, None);
        self.let_next_in();
    }

    fn let_next_in(&mut self) {
        if self.busy.is_none()
            && let Some(next) = self.waiting.pop_front()
        {
            self.arrives(next);
        }
    }

    /// Looks at a call before it is done, and causes the fault if it is due: `None` for one that is none of the store's.
    fn begin(&mut self, mut call: Begun) -> Option<Begun> {
        if call.sys == Sys::Write && call.args[0] == 1 {
            call.bytes = self.memory(call.args[1], call.args[2]);
            return Some(call);
        }
        if !self.is_ours(&call) {
            return None;
        }
        assert_ne!(call.sys, Sys::Strange, "the process changes files in a way that is not followed: {:?}", call.args);
        if matches!(call.sys, Sys::Write | Sys::WriteAt) {
            call.bytes = self.memory(call.args[1], call.args[2]);
        } else if call.sys == Sys::WriteMany {
            call.bytes = self.vectors(call.args[1], call.args[2]);
        }
        if call.sys == Sys::Told {
            self.tell(&mut call);
        } else {
            self.maybe_fault(&mut call);
        }
        Some(call)
    }

    /// Tells a descriptor of a sync that failed, by whichever it was asked for, as Linux does: once.
    fn tell(&mut self, call: &mut Begun) {
        let descriptor = call.args[0];
        let told = self.inode(descriptor).and_then(|inode| self.told.get_mut(&inode));
        if told.is_some_and(|told| told.insert(descriptor)) {
            stop(call, -(Errno::EIO as i64));
        }
    }

    fn maybe_fault(&mut self, call: &mut Begun) {
        let Some(plan) = self.plan else {
            self.trace.calls += 1;
            return;
        };
        if self.is_full && is_among(call, Among::Growing) {
            return stop(call, -(Errno::ENOSPC as i64));
        }
        if !is_among(call, plan.among) || (plan.among == Among::SyncsOfEngine && !self.is_of_engine(call)) {
            return;
        }
        self.trace.calls += 1;
        let is_due = self.trace.calls == plan.at;
        if is_due {
            self.trace.is_reached = true;
            self.trace.reached_at = self.trace.events.len();
        }
        match plan.fault {
            Fault::KillBefore if is_due => self.kill(),
            Fault::KillAfter if is_due => call.then_kill = true,
            Fault::KillHalfway if is_due => {
                halve(call);
                call.then_kill = true;
            }
            Fault::Short if is_due => halve(call),
            Fault::ShortThenFull if is_due => {
                halve(call);
                self.is_full = true;
            }
            Fault::Fails(errno) if is_due => stop(call, -(errno as i64)),
            Fault::FailsSlowly(errno) if is_due => {
                stop(call, -(errno as i64));
                call.then_slow = true;
            }
            Fault::FailFromNow(errno) if self.trace.is_reached => stop(call, -(errno as i64)),
            Fault::SyncsDoNothing if self.trace.is_reached => stop(call, 0),
            _ => {}
        }
    }

    /// True where a thread of the engine's own comes to the journal.
    fn is_of_engine(&self, call: &Begun) -> bool {
        let name = fs::read_to_string(format!("/proc/{}/task/{}/comm", self.pid, call.thread)).unwrap_or_default();
        let path = self.open_path(call.args[0]).unwrap_or_default();
        name.starts_with("fjall") && path.extension().is_some_and(|extension| extension == "jnl")
    }

    fn kill(&self) {
        _ = kill(self.pid, Signal::SIGKILL);
    }

    fn leaves(&mut self, thread: Pid) {
        let Some(call) = self.busy.take_if(|call| call.thread == thread) else {
            _ = ptrace::cont(thread, None);
            return;
        };
        let done = ptrace::getregs(thread).map_or(-1, |regs| regs.rax as i64);
        if let Some(event) = self.event(&call, done) {
            if let Event::SyncFailed { inode } = &event {
                self.told.entry(*inode).or_default().insert(call.args[0]);
            }
            self.trace.events.push(event);
        }
        if call.then_kill {
            self.kill();
        }
        if call.then_slow {
            self.slow = Some(Slow { thread, stage: Stage::Holds(Instant::now() + STILL) });
        } else {
            _ = ptrace::cont(thread, None);
        }
        self.let_next_in();
    }

    /// What a call that is done did.
    fn event(&self, call: &Begun, done: i64) -> Option<Event> {
        if call.sys == Sys::Sync && call.is_stopped && done < 0 {
            return Some(Event::SyncFailed { inode: self.inode(call.args[0])? });
        }
        if call.is_stopped || done < 0 {
            return None;
        }
        let [first, second, third, ..] = call.args;
        Some(match call.sys {
            Sys::Write if first == 1 => Event::Said(String::from_utf8_lossy(&call.bytes).into_owned()),
            Sys::Write | Sys::WriteMany | Sys::WriteAt => {
                let written = done as u64;
                let at = if call.sys == Sys::WriteAt { call.args[3] } else { self.position(first)? - written };
                Event::Wrote { inode: self.inode(first)?, at, bytes: call.bytes[..written as usize].to_vec() }
            }
            Sys::Sync => Event::Synced { inode: self.inode(first)? },
            Sys::SetLen => Event::LenSet { inode: self.inode(first)?, len: second },
            Sys::Open => {
                let empties = third & calls::EMPTIES != 0;
                Event::Opened { path: self.open_path(done as u64)?, inode: self.inode(done as u64)?, empties }
            }
            Sys::Rename { at: false } => Event::Renamed { from: self.path(None, first)?, to: self.path(None, second)? },
            Sys::Rename { at: true } => {
                Event::Renamed { from: self.path(Some(first), second)?, to: self.path(Some(third), call.args[3])? }
            }
            Sys::Unlink { at: false } | Sys::RemoveDir => Event::Unlinked { path: self.path(None, first)? },
            Sys::Unlink { at: true } => Event::Unlinked { path: self.path(Some(first), second)? },
            Sys::MakeDir { at } => {
                let path = if at { self.path(Some(first), second)? } else { self.path(None, first)? };
                Event::DirMade { inode: fs::metadata(&path).ok()?.ino(), path }
            }
            Sys::Told | Sys::Strange => return None,
        })
    }

    /// True for a call on what is in the store's folder.
    fn is_ours(&self, call: &Begun) -> bool {
        let [first, second, ..] = call.args;
        let path = match call.sys {
            Sys::Write | Sys::WriteAt | Sys::WriteMany | Sys::Sync | Sys::Told | Sys::SetLen => self.open_path(first),
            Sys::Open | Sys::Rename { at: true } | Sys::Unlink { at: true } | Sys::MakeDir { at: true } => {
                self.path(Some(first), second)
            }
            Sys::Rename { at: false } | Sys::Unlink { at: false } | Sys::MakeDir { at: false } | Sys::RemoveDir => {
                self.path(None, first)
            }
            Sys::Strange => return true,
        };
        path.is_some_and(|path| path.starts_with(&self.folder))
    }

    fn memory(&self, from: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).expect("a length")];
        let read = File::open(format!("/proc/{}/mem", self.pid)).and_then(|file| file.read_exact_at(&mut bytes, from));
        read.expect("memory of a traced process");
        bytes
    }

    /// What a call with several buffers writes.
    fn vectors(&self, from: u64, count: u64) -> Vec<u8> {
        let vectors = self.memory(from, count * 16);
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        vectors.chunks(16).flat_map(|vector| self.memory(number(&vector[..8]), number(&vector[8..]))).collect()
    }

    /// The path at an address, from the folder of a descriptor or the process' own.
    fn path(&self, folder: Option<u64>, from: u64) -> Option<PathBuf> {
        let mut bytes = vec![0; PATH_BYTES_MAX];
        let file = File::open(format!("/proc/{}/mem", self.pid)).ok()?;
        let read = file.read_at(&mut bytes, from).ok()?;
        let end = bytes[..read].iter().position(|&byte| byte == 0)?;
        let path = PathBuf::from(String::from_utf8_lossy(&bytes[..end]).into_owned());
        let base = match folder.map(|descriptor| descriptor as i32) {
            Some(descriptor) if descriptor >= 0 => self.open_path(descriptor as u64)?,
            _ => fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?,
        };
        Some(base.join(path))
    }

    /// What a descriptor is open on.
    fn open_path(&self, descriptor: u64) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/fd/{}", self.pid, descriptor as u32)).ok()
    }

    fn inode(&self, descriptor: u64) -> Option<Inode> {
        fs::metadata(format!("/proc/{}/fd/{}", self.pid, descriptor as u32)).ok().map(|found| found.ino())
    }

    /// Where a descriptor stands in its file.
    fn position(&self, descriptor: u64) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.pid)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("pos:")?.trim().parse().ok())
    }
}

impl Slow {
    fn until(&self) -> Option<Instant> {
        if let Stage::Holds(until) | Stage::Stands(until) = self.stage { Some(until) } else { None }
    }
}

fn is_among(call: &Begun, among: Among) -> bool {
    let writes = matches!(call.sys, Sys::Write | Sys::WriteAt | Sys::WriteMany);
    match among {
        Among::All => true,
        Among::Writes => writes,
        // Of a call with several buffers the half of those is taken.
        Among::Splits => writes && call.args[2] > 1,
        Among::Names => matches!(
            call.sys,
            Sys::SetLen | Sys::Open | Sys::Rename { .. } | Sys::Unlink { .. } | Sys::MakeDir { .. } | Sys::RemoveDir
        ),
        Among::Syncs | Among::SyncsOfEngine => call.sys == Sys::Sync,
        Among::Growing => writes || matches!(call.sys, Sys::SetLen | Sys::Open | Sys::MakeDir { .. }),
    }
}

/// Has the call do nothing and answer `done`.
fn stop(call: &mut Begun, done: i64) {
    if let Ok(mut regs) = ptrace::getregs(call.thread) {
        (regs.orig_rax, regs.rax) = (u64::MAX, done as u64);
        ptrace::setregs(call.thread, regs).expect("a thread that stands still");
    }
    call.is_stopped = true;
}

/// Has one of those [that can be](Among::Splits) write half of what it should.
fn halve(call: &mut Begun) {
    if let Ok(mut regs) = ptrace::getregs(call.thread) {
        regs.rdx /= 2;
        ptrace::setregs(call.thread, regs).expect("a thread that stands still");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_cut_in_two_is_not_counted_as_cut() {
        for (sys, count, is_counted) in [
            (Sys::Write, 2, true),
            (Sys::Write, 1, false),
            (Sys::WriteAt, 1, false),
            (Sys::WriteMany, 2, true),
            (Sys::WriteMany, 1, false),
            (Sys::Sync, 2, false),
        ] {
            let args = [3, 0, count, 0, 0, 0];
            let (thread, bytes) = (Pid::this(), Vec::new());
            let call = Begun { thread, sys, args, bytes, is_stopped: false, then_kill: false, then_slow: false };
            assert_eq!(is_among(&call, Among::Splits), is_counted, "{sys:?} of {count}");
        }
    }
}
