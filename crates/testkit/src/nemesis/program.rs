//! A program of ours that speaks memcached's protocol, as a process.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;

use super::victims::{AWAY_MS_MAX, stand_still};
use super::{Deed, Victim};
use crate::history::Caused;
use crate::servers::{
    Deadline, PORT_ATTEMPTS_MAX, PORTS, READY_MS_MAX, REPLY_MS_MAX, bound_to_us, continue_process, spawn_lasting,
    stop_process,
};

/// A running program that serves; killed when dropped.
pub struct Program {
    executable: PathBuf,
    /// Given the place it listens on and a folder for its data.
    args: fn(SocketAddr, &Path) -> Vec<OsString>,
    keeps: bool,
    addr: SocketAddr,
    process: Option<Child>,
    folder: TempDir,
}

impl Program {
    /// Starts an executable with the arguments that `args` makes of the address to listen on and of a folder for its data, and waits until it
    /// answers. It `keeps` what it acknowledged over a crash, or not.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start(executable: &Path, args: fn(SocketAddr, &Path) -> Vec<OsString>, keeps: bool) -> Self {
        let mut said = String::new();
        for _ in 0..PORT_ATTEMPTS_MAX {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(PORTS)));
            if TcpListener::bind(addr).is_err() {
                continue;
            }
            let folder = tempfile::Builder::new().prefix("larder-test-").tempdir().expect("a temporary folder");
            let executable = executable.to_owned();
            let mut program = Self { executable, args, keeps, addr, process: None, folder };
            match program.spawn() {
                Ok(()) => return program,
                Err(complaint) => said = complaint,
            }
        }
        panic!("{} did not start: {said}", executable.display());
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Kills it as a crash would. Does nothing when it is dead already.
    pub fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Fails only for a process that has ended, which `wait` finds out too.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Kills it if need be and starts it again, on the same port and over its data.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&mut self) {
        self.kill9();
        let outcome = self.spawn();
        assert!(outcome.is_ok(), "{} did not restart: {outcome:?}", self.executable.display());
    }

    fn spawn(&mut self) -> Result<(), String> {
        let mut command = bound_to_us(&self.executable);
        command.args((self.args)(self.addr, self.folder.path())).stdin(Stdio::null()).stdout(Stdio::null());
        let process = spawn_lasting(command).map_err(|error| format!("could not be executed: {error}"))?;
        let process = self.process.insert(process);
        let deadline = Deadline::after_ms(READY_MS_MAX);
        loop {
            if let Ok(Some(status)) = process.try_wait() {
                self.process = None;
                return Err(format!("ended with {status}"));
            }
            if answers(self.addr).is_ok() {
                return Ok(());
            }
            if deadline.passed() {
                self.kill9();
                return Err(format!("does not answer after {READY_MS_MAX} ms"));
            }
            deadline.poll();
        }
    }

    fn pid(&self) -> u32 {
        self.process.as_ref().expect("the program was killed").id()
    }
}

fn answers(addr: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_millis(REPLY_MS_MAX)))?;
    stream.write_all(b"version\r\n")?;
    if stream.read(&mut [0; 64])? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill9();
    }
}

impl Victim for Program {
    fn mild(&self) -> Vec<Deed> {
        if self.keeps { vec![Deed::Stop, Deed::Kill] } else { vec![Deed::Stop] }
    }

    fn grave(&self) -> Vec<Deed> {
        if self.keeps { Vec::new() } else { vec![Deed::Kill] }
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        match deed {
            Deed::Stop => stand_still(rng, || stop_process(self.pid()), || continue_process(self.pid())),
            Deed::Kill => {
                if !self.keeps {
                    caused.losses.fetch_add(1, Ordering::SeqCst);
                }
                self.kill9();
                sleep(Duration::from_millis(rng.u64(0..=AWAY_MS_MAX)));
                self.restart();
            }
            other => panic!("a server of ours does not suffer {other:?}"),
        }
    }
}
