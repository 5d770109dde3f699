//! The store of a user who has set none: a durable store, behind a server that the first command starts and that ends when nobody has used it for a while.
//!
//! Commands meet at a unix socket beside the store's folder. Whoever finds nobody there starts a server and waits for it; of several that are started at once, one gets the
//! folder, and the others end. So many commands, and those that wait for something, work side by side, and share syncs.

use std::fs::{DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use larder::Key;
use larder::durable::Options;
use rustix::fs::OFlags;

use crate::exit::{Exit, Failure};
use crate::session::HOW_TO_SET_ONE;

/// How long a server stays that nobody is connected to.
const IDLE_S: u64 = 60;
/// Another such time, in seconds: for tests, which must not leave servers behind.
const IDLE_VARIABLE: &str = "LARDER_OWN_SERVER_IDLE_S";
/// How long a command waits for the server that it started, or for the folder, at the least.
const START_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The largest item that its server takes, as memcached counts it: the store's own largest key and value, and 59 bytes. So it takes what --direct takes (4 bytes less where it has flags), and nothing that the
/// store would refuse.
const ITEM_BYTES_MAX: usize = Options::VALUE_BYTES_MAX + Key::BYTES_MAX + 59;
/// What is said in the environment to whoever started this, and is no business of the server: a store, sockets that systemd opened, and where systemd is told how a unit does.
const NOT_FOR_IT: [&str; 8] = [
    "LARDER_STORE",
    "LISTEN_FDS",
    "LISTEN_FDS_FIRST_FD",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];
/// What the path of a unix socket may have.
const SOCKET_BYTES_MAX: usize = 107;

/// Where the store is.
pub(crate) struct Own {
    folder: PathBuf,
    socket: PathBuf,
}

impl Own {
    /// The store of this user. The folder around it is made if need be.
    pub(crate) fn find() -> Result<Own, Failure> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        let none = || {
            Failure::usage("no store is set, and neither XDG_DATA_HOME nor HOME says where this user's is")
                .hint(HOW_TO_SET_ONE)
        };
        let folder = data.ok_or_else(none)?.join("larder");
        if folder.to_str().is_none_or(|path| path.contains('?')) {
            let message = format!("{} has characters that no URL of a store takes", folder.display());
            return Err(Failure::usage(message).hint(HOW_TO_SET_ONE));
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        let cannot =
            |error| Failure::usage(format!("{} cannot be made: {error}", folder.display())).hint(HOW_TO_SET_ONE);
        made.map_err(cannot)?;
        Ok(Own { socket: folder.with_file_name("larder.socket"), folder })
    }

    /// The URL of its files.
    pub(crate) fn files(&self) -> String {
        format!("file:{}", self.folder.display())
    }

    /// The URL of its server, which is started if it is not there; that of its files where its socket's path is too long for one. `wait`: for another process that has the files.
    pub(crate) fn served(&self, wait: Duration) -> Result<String, Failure> {
        if self.socket.as_os_str().len() > SOCKET_BYTES_MAX {
            return Ok(self.files());
        }
        let wait = wait.max(START_MAX);
        // None where it is waited for ever.
        let (deadline, mut started) = (Instant::now().checked_add(wait), None::<Child>);
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        while UnixStream::connect(&self.socket).is_err() {
            // One that ended found the folder taken: by another's server, which will answer, or by a program, which may let go.
            let is_gone = started.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|ended| ended.is_some()));
            if is_gone && !is_over() {
                started = Some(self.start()?);
            } else if is_over() {
                return Err(self.did_not_start(wait));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(self.server())
    }

    /// The URL of its server. What has a meaning in one is written by its number.
    fn server(&self) -> String {
        let path = self.socket.display().to_string();
        format!("memcached+unix://{}", path.replace('%', "%25").replace('@', "%40").replace('#', "%23"))
    }

    /// Ends the server, so that the files can be opened.
    pub(crate) fn end_server(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + START_MAX;
        while let Ok(stream) = UnixStream::connect(&self.socket) {
            match end(stream) {
                Ok(Some(0 | 1)) => return Ok(()),
                Ok(Some(connections)) => {
                    let message = format!("{} other commands are using this user's store", connections - 1);
                    let failure = Failure::new(Exit::Unreachable, "unavailable", message);
                    return Err(failure.hint("wait until they have ended"));
                }
                // It is ending by itself, as a rule, and nobody is there the next time.
                _ if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
                _ => {
                    let message = "the server of this user's store does not say who uses it";
                    return Err(Failure::new(Exit::Unreachable, "unavailable", message).hint("try again"));
                }
            }
        }
        Ok(())
    }

    fn start(&self) -> Result<Child, Failure> {
        let idle = std::env::var(IDLE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(IDLE_S);
        let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(self.log())?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--store", &self.files(), "--enable-shutdown", "--threads", "2"]);
        command.args(["--max-item-size", &ITEM_BYTES_MAX.to_string()]);
        command.args(["-o", &format!("exit_when_idle={idle}")]).arg("--unix-socket").arg(&self.socket);
        NOT_FOR_IT.iter().for_each(|name| _ = command.env_remove(name));
        command.current_dir("/");
        // It outlives this command, and what ends this command's group.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        hand_nothing_on(&mut command, 0..0);
        Ok(command.spawn()?)
    }

    fn log(&self) -> PathBuf {
        self.folder.with_file_name("larder.log")
    }

    fn did_not_start(&self, wait: Duration) -> Failure {
        let said = std::fs::read_to_string(self.log()).unwrap_or_default();
        let said = said.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or("it did not say why");
        let message = format!("the server of this user's store did not start within {wait:?}: {said}");
        let hint = format!("it writes to {}; --direct opens the files instead", self.log().display());
        Failure::new(Exit::Unreachable, "unavailable", message).hint(hint)
    }
}

/// Asks a server how many connections it has, and ends it where that is this one alone; `None` where it does not tell.
fn end(mut stream: UnixStream) -> io::Result<Option<u64>> {
    stream.set_read_timeout(Some(START_MAX))?;
    stream.write_all(b"stats\r\n")?;
    let connections = connections_in(BufReader::new(stream.try_clone()?));
    if connections.is_some_and(|connections| connections <= 1) {
        stream.write_all(b"shutdown\r\n")?;
    }
    Ok(connections)
}

/// Has a command get nothing in the place of the files that whoever started this process handed on to it, such as a lock's, but for the `meant` ones: a server would hold them for as long as it is there. What
/// this process opened goes to no other.
pub(crate) fn hand_nothing_on(command: &mut Command, meant: Range<RawFd>) {
    let nothing = |child_fd| Some(FdMapping { parent_fd: File::open("/dev/null").ok()?.into(), child_fd });
    let mappings = handed_on().into_iter().filter(|fd| !meant.contains(fd)).filter_map(nothing).collect();
    // It refuses descriptors that are named twice alone.
    _ = command.fd_mappings(mappings);
}

/// The descriptors that a program gets which this process starts, but for the three that each has. None where the system does not list them.
fn handed_on() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let is_handed_on = |fd: &RawFd| {
        let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = told.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
        flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
    };
    open.filter_map(number).filter(|fd| *fd > 2 && is_handed_on(fd)).collect()
}

/// How many connections a server has, by its whole answer to `stats`; of half an answer nothing is known.
fn connections_in(stats: impl BufRead) -> Option<u64> {
    let mut connections = None;
    for line in stats.lines() {
        let line = line.ok()?;
        if line == "END" {
            return connections;
        }
        if let Some(count) = line.strip_prefix("STAT curr_connections ") {
            connections = Some(count.parse().ok()?);
        }
    }
    None
}

/// True if the URL is of files.
pub(crate) fn is_file(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn half_an_answer_tells_no_number_of_connections() {
        let whole = "STAT pid 1\r\nSTAT curr_connections 3\r\nEND\r\n";
        assert_eq!(connections_in(whole.as_bytes()), Some(3));
        for wrong in ["", "STAT pid 1\r\nEND\r\n", "STAT curr_connections x\r\nEND\r\n", &whole[..whole.len() - 5]] {
            assert_eq!(connections_in(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    /// Between the moment that a command is connected and its question, or its answer.
    #[test]
    fn a_server_that_ends_while_it_is_asked_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, socket) = (folder.path().join("larder"), folder.path().join("larder.socket"));
        let own = Own { folder, socket: socket.clone() };
        for round in 0..60 {
            _ = std::fs::remove_file(&socket);
            let listener = UnixListener::bind(&socket).unwrap();
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| own.end_server());
                poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
                match round % 3 {
                    // It was never let in.
                    0 => {}
                    1 => drop(listener.accept().unwrap()),
                    _ => {
                        let mut question = String::new();
                        BufReader::new(listener.accept().unwrap().0).read_line(&mut question).unwrap();
                    }
                }
                drop(listener);
                ending.join().unwrap().unwrap();
            });
        }
    }

    #[test]
    fn what_a_url_would_take_for_its_own_is_written_by_its_number() {
        let own = |path: &str| Own { folder: path.into(), socket: Path::new(path).with_file_name("larder.socket") };
        assert_eq!(own("/a/larder").server(), "memcached+unix:///a/larder.socket");
        assert_eq!(own("/a@b#c%41d/larder").server(), "memcached+unix:///a%40b%23c%2541d/larder.socket");
    }

    #[test]
    fn files_are_told_by_their_scheme() {
        assert!(is_file("file:x") && is_file("FILE:/x") && !is_file("memory:") && !is_file("f"));
        let own = Own { folder: "/a/larder".into(), socket: Path::new("/a/larder").with_file_name("larder.socket") };
        assert_eq!((own.files().as_str(), own.log().as_path()), ("file:/a/larder", Path::new("/a/larder.log")));
        assert_eq!(own.socket, Path::new("/a/larder.socket"));
    }
}
