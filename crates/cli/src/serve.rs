//! `larder serve` and `larder memcached`: the server.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use larder_server::{Args as ServerArgs, DurableEngine, Inherited, MemoryEngine, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::archive::CUT_OFF;
use crate::args::Common;
use crate::exit::{Exit, Failure, Where};
use crate::own::hand_nothing_on;

/// The store in memory. It takes no options here.
const MEMORY: &str = "memory:";
/// Tells a process in the background that it is there already.
const IN_BACKGROUND: &str = "LARDER_IN_BACKGROUND";
/// The most threads that nobody asked for.
const THREADS_UNASKED_MAX: usize = 64;
/// Files that are open beside connections: standard streams, listeners, who asks for `/metrics`, and one more connection, which is told that there are too many.
const OTHER_FILES: u64 = 64;
/// By which a thread waits, where each has a runtime of its own.
const THREAD_FILES: u64 = 4;
/// Of a store in a folder: its engine keeps up to 900 tables open; the rest is journals, and what a backup reads.
const STORE_FILES: u64 = 1_024;
/// Where users are told.
const USERS: &str = "/etc/passwd";

/// What the server is told, in memcached's words and ours.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// The options, as below
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS", num_args = 0..)]
    pub(crate) args: Vec<OsString>,
}

pub(crate) const SERVE_HELP: &str = "\
Serves memory, or with --store file:PATH (or LARDER_STORE=file:PATH) a durable store in a folder, whose replies come when what they say is as durable as the store promises (docs/durability.md). Where LARDER_STORE names a server, it is for clients, and memory is served.

Options, memcached's own letters among them:
      --store memory:|file:PATH        what to serve; options of file: as in a URL: file:PATH?sync=every:100ms [memory:]
  -l, --listen ADDR[:PORT]|unix:PATH   where to listen, more than once or joined by commas [127.0.0.1:11211]
  -p, --port N                         the TCP port of addresses that name none
  -s, --unix-socket PATH, -a MODE      listen on a unix socket instead, with this access [700]; an ADDR of -l is passed
                                       over beside it
  -m, --memory-limit MB                memory for items and their index [64]
  --evict                              drop items when full; without it writes are refused, since structures live here
  -c N, -t N, -I SIZE                  connections [1024], threads [one a core, to 64], largest item [1m]; the limit
                                       of open files is raised to fit -c, as far as the system allows
  -Y FILE                              users and passwords, user:password a line
  -Z --tls-cert FILE --tls-key FILE    TLS on TCP; -o ssl_chain_cert=FILE,ssl_key=FILE is the same
  -o ssl_ca_cert=FILE,ssl_verify_mode=N  clients show certificates that these signed: if they have any (1), or all (2)
  -o ssl_min_version=3                 TLS 1.3 alone
  -b N                                 connections that may wait to be accepted [1024]
  -A, -F, -X                           allow shutdown, forbid flush_all, forbid listings
  --metrics ADDR:PORT                  answer /metrics (Prometheus) and /healthz there
  --runtime per-core|shared            a runtime for each thread, or one for all [shared]
  -o idle_timeout=S                    close TCP connections that are idle for so long
  -o slow_timeout_ms=MS                close those that take nothing of their replies for so long, or hold over 4 KB
                                       of a request and send neither its end nor 4 KB more [30000]
  -o read_buf_mem_limit=MB             what all connections may hold of what is not finished [256]
  -o exit_when_idle=S                  end when nobody was connected for so long
  -o track_access                      keep when each item was last used, for mg's flag l
  -u USER                              started by root, go on as that user
  -d, -P FILE, -v, -V                  background, file for the process id, log more, version

SIGTERM, SIGINT and SIGUSR1: it takes no more connections, lets requests under way finish, and ends.
SIGHUP: it reads the files of -Y and -Z again, for who comes then.

Examples:
  larder serve -m 256
  larder serve --store file:/var/lib/larder
  larder serve --listen unix:/run/user/1000/larder.sock --metrics 127.0.0.1:9100";

pub(crate) const MEMCACHED_HELP: &str = "\
Takes memcached's command line. What has no meaning here is passed over with a warning, and what memcached does not know is refused. It listens on every address, \
IPv4 and IPv6, unless told otherwise, and evicts when it is full unless -M, as memcached does. With --store file:PATH it serves a folder, as `larder serve` does. The same happens when the command is started by the name memcached.

Examples:
  larder memcached -m 64 -l 127.0.0.1 -p 11211 -c 1024";

/// True if the command was started by the name of memcached.
pub(crate) fn is_memcached() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == "memcached"))
}

pub(crate) fn memcached(words: impl Iterator<Item = OsString>) -> Result<ExitCode, Failure> {
    run(words, true).map(|()| ExitCode::from(Exit::Ok as u8))
}

/// A store that is named in the environment for clients is not the one to serve.
pub(crate) fn serve(common: &Common, words: &[OsString], as_memcached: bool) -> Result<u8, Failure> {
    let named_for_clients = |url: &String| {
        let is_served = crate::own::is_file(url) || is_memory(url.get(..MEMORY.len()).unwrap_or_default());
        !is_served && std::env::var("LARDER_STORE").is_ok_and(|set| set == *url)
    };
    let url = common.store.clone().filter(|url| !named_for_clients(url));
    let store = url.map(|url| [OsString::from("--store"), OsString::from(url)]);
    run(store.into_iter().flatten().chain(words.iter().cloned()), as_memcached)?;
    Ok(Exit::Ok as u8)
}

/// Runs a server until it is told to end.
pub(crate) fn run(words: impl Iterator<Item = OsString>, as_memcached: bool) -> Result<(), Failure> {
    let words: Vec<OsString> = words.collect();
    let mut args = ServerArgs::parse(words.clone())?;
    if args.help {
        return print(if as_memcached { MEMCACHED_HELP } else { SERVE_HELP });
    }
    if args.version {
        return print(&format!("memcached {}", larder_server::VERSION));
    }
    log(args.config.limits.verbosity);
    for ignored in &args.ignored {
        tracing::warn!("{ignored} has no meaning here, and is passed over");
    }
    if let Some(user) = args.user.as_deref().filter(|user| *user != "root" && rustix::process::geteuid().is_root()) {
        // That user may not, and keeps what root has.
        raise_files(files_needed(&args, as_memcached));
        become_user(user, &words, as_memcached)?;
    }
    if args.daemon && std::env::var_os(IN_BACKGROUND).is_none() {
        return go_to_background(&words, as_memcached);
    }
    if let Some(everywhere) = args.everywhere.take().filter(|_| as_memcached) {
        args.config.listen = vec![everywhere];
    }
    args.config.threads = threads(&args, as_memcached, cores());
    inherit(&mut args)?;
    args.config.signals = true;
    allow_files(files_needed(&args, as_memcached));
    outlive_hangups()?;
    let server = start(&mut args, as_memcached)?;
    if let Some(path) = &args.pid_file {
        std::fs::write(path, format!("{}\n", std::process::id()))?;
    }
    server.wait();
    if let Some(path) = &args.pid_file {
        // Somebody may have removed it already.
        _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// From here on a SIGHUP does not end the process, though it may take a while to open a folder: what would be read again is read as the server begins to listen.
fn outlive_hangups() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _within = runtime.enter();
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).map(drop)
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    Ok(writeln!(out, "{text}").and_then(|()| out.flush())?)
}

/// As many as this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many threads serve connections: as many as were asked for, else memcached's number in its place, and else one a core that this process may use.
fn threads(args: &ServerArgs, as_memcached: bool, cores: usize) -> usize {
    let unasked = if as_memcached { args.config.threads } else { cores.clamp(1, THREADS_UNASKED_MAX) };
    args.threads.unwrap_or(unasked)
}

/// How many files are open when all connections are.
fn files_needed(args: &ServerArgs, as_memcached: bool) -> u64 {
    let config = &args.config;
    let store = if args.store.as_deref().is_some_and(crate::own::is_file) { STORE_FILES } else { 0 };
    let threads = (threads(args, as_memcached, cores()) as u64).saturating_mul(THREAD_FILES);
    (config.limits.connections_max as u64).saturating_add(OTHER_FILES).saturating_add(threads).saturating_add(store)
}

/// Raises the number of files that may be open as far as is needed and the system lets us. Where that is not far enough, connections are not accepted that `-c` allows: that is said
/// now, and not when somebody finds out.
fn allow_files(needed: u64) {
    let allowed = raise_files(needed);
    if let Some(allowed) = allowed.filter(|&allowed| allowed < needed) {
        tracing::warn!(
            "{needed} files are open when there are as many connections as -c allows, and this process may have {allowed}: connections beyond that are not accepted; \
             allow more (LimitNOFILE= in a unit file, ulimit -Hn), or fewer connections"
        );
    }
}

/// The same without a word: how many may be open then; `None` for no limit.
fn raise_files(needed: u64) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = file_limits(limit, needed).into_iter().find(|&limit| setrlimit(Resource::Nofile, limit).is_ok());
    raised.unwrap_or(limit).current
}

/// The limits to try for one, in turns: what is needed, where that is more than others may have, too, which root may give itself; and as much of it as anybody may. None where it is enough.
fn file_limits(limit: Rlimit, needed: u64) -> Vec<Rlimit> {
    // No number is no limit.
    let allows = |limit: Option<u64>| limit.is_none_or(|most| most >= needed);
    let (needed, maximum) = (Some(needed), limit.maximum);
    match (allows(limit.current), allows(maximum)) {
        (true, _) => Vec::new(),
        (false, true) => vec![Rlimit { current: needed, maximum }],
        (false, false) => vec![Rlimit { current: needed, maximum: needed }, Rlimit { current: maximum, maximum }],
    }
}

/// True if the URL is that of memory; a scheme may be in capitals.
fn is_memory(url: &str) -> bool {
    url.eq_ignore_ascii_case(MEMORY)
}

/// Starts a server over the store that is named.
fn start(args: &mut ServerArgs, as_memcached: bool) -> Result<Server, Failure> {
    let config = std::mem::take(&mut args.config);
    let limits = &config.limits;
    let url = args.store.as_deref().unwrap_or(MEMORY);
    if crate::own::is_file(url) {
        if args.evict == Some(true) {
            return Err(Failure::usage("a store in a folder drops nothing: --evict is for memory:"));
        }
        let opened = larder::durable_options(url)?.open();
        let store = opened.map_err(|error| Failure::opening(error, Where::Folder))?;
        if store.torn_bytes() > 0 {
            tracing::warn!("{} bytes {CUT_OFF}", store.torn_bytes());
        }
        return Ok(Server::start(DurableEngine::new(store), config)?);
    }
    if !is_memory(url) {
        let message = format!("{} cannot be served", larder::text::masked_url(url));
        return Err(Failure::usage(message).hint("memory: and file:PATH can; -m sets the size of memory:"));
    }
    let store = larder_server::MemoryStore::builder()
        .bytes_max(limits.memory_bytes_max)
        .value_bytes_max(limits.item_bytes_max)
        .evict(args.evict.unwrap_or(as_memcached))
        .track_access(limits.track_access);
    Ok(Server::start(MemoryEngine::new(store.build()?), config)?)
}

/// Sockets that systemd opened for us are instead of our own. One that cannot be served is an error: whoever set it up would find nobody behind it.
fn inherit(args: &mut ServerArgs) -> Result<(), Failure> {
    let mut passed = listenfd::ListenFd::from_env();
    for at in 0..passed.len() {
        let listener = match passed.take_tcp_listener(at) {
            Ok(tcp) => tcp.map(|tcp| Inherited::Tcp(tcp.into())),
            Err(_) => passed.take_unix_listener(at).map(|unix| unix.map(|unix| Inherited::Unix(unix.into()))).map_err(
                |error| {
                    let message = format!("a socket that was passed by systemd cannot be served: {error}");
                    Failure::usage(message).hint("ListenStream= with an address or a path is served, and nothing else")
                },
            )?,
        };
        args.config.inherited.extend(listener);
    }
    if !args.config.inherited.is_empty() {
        args.config.listen.clear();
    }
    Ok(())
}

/// Begins this process anew as that user, with no group but the user's own: what root may is given up whole, before there are threads. Returns
/// where that user may do all that root may.
fn become_user(user: &str, words: &[OsString], as_memcached: bool) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt;
    let failed = |why: String| {
        let hint = "start it as that user: User= in a unit file, or setpriv";
        Failure::usage(format!("-u {user}: {why}")).hint(hint)
    };
    let users = std::fs::read_to_string(USERS).map_err(|error| failed(format!("{USERS}: {error}")))?;
    let Some((uid, gid)) = find_user(&users, user) else { return Err(failed(format!("no such user in {USERS}"))) };
    if uid == 0 {
        return Ok(());
    }
    let error = again(words, as_memcached)?.uid(uid).gid(gid).exec();
    Err(failed(format!("this program cannot be run as that user: {error}")))
}

/// The ids of a user and of the user's group.
fn find_user(users: &str, user: &str) -> Option<(u32, u32)> {
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    fields.into_iter().find_map(|fields| match fields[..] {
        [name, _, uid, gid, ..] if name == user => Some((uid.parse().ok()?, gid.parse().ok()?)),
        _ => None,
    })
}

/// This command line once more.
fn again(words: &[OsString], as_memcached: bool) -> Result<Command, Failure> {
    use std::os::unix::process::CommandExt;
    let (name, verb): (_, &[&str]) = if as_memcached { ("memcached", &[]) } else { ("larder", &["serve"]) };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(name).args(verb).args(words);
    Ok(command)
}

fn go_to_background(words: &[OsString], as_memcached: bool) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt;
    let mut command = again(words, as_memcached)?;
    command.env(IN_BACKGROUND, "1").process_group(0);
    let passed = passed_by_systemd(|name| std::env::var(name).ok());
    // The process that they are meant for is another then: without its number they are meant for whoever has them.
    command.env_remove("LISTEN_PID");
    if passed.is_empty() {
        command.env_remove("LISTEN_FDS");
    }
    hand_nothing_on(&mut command, passed);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(())
}

/// The descriptors that systemd, or who does as it does, opened for this process: none where they are for another. `variable`: of the environment.
fn passed_by_systemd(variable: impl Fn(&str) -> Option<String>) -> Range<RawFd> {
    const FIRST: RawFd = 3;
    let number = |name: &str| variable(name).and_then(|text| text.parse::<RawFd>().ok());
    let is_meant = variable("LISTEN_PID").is_none_or(|pid| pid.is_empty() || pid == std::process::id().to_string());
    let first = number("LISTEN_FDS_FIRST_FD").unwrap_or(FIRST);
    let count = number("LISTEN_FDS").filter(|_| is_meant).unwrap_or(0);
    first..first.saturating_add(count)
}

/// Events to standard error: warnings, and with each `-v` more.
fn log(verbosity: u32) {
    use tracing::Level;
    let level = match verbosity {
        0 => Level::WARN,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    // Somebody who set one before us keeps it.
    _ = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_as_many_as_are_asked_for_else_as_there_are_cores() {
        let of = |words: &[&str], as_memcached, cores| {
            threads(&ServerArgs::parse(words.iter().copied()).unwrap(), as_memcached, cores)
        };
        assert_eq!([1, 2, 64, 65, 1_000].map(|cores| of(&[], false, cores)), [1, 2, 64, 64, 64]);
        assert_eq!([1, 16].map(|cores| of(&[], true, cores)), [4, 4]);
        assert_eq!([(false, 8), (true, 8), (false, 1)].map(|(place, cores)| of(&["-t", "3"], place, cores)), [3; 3]);
        assert_eq!(of(&["-t4"], false, 8), 4, "its own number may be asked for");
    }

    #[test]
    fn descriptors_of_systemd_are_those_that_are_meant_for_this_process() {
        let own = std::process::id().to_string();
        let of = |told: &[(&str, &str)]| {
            passed_by_systemd(|name| told.iter().find(|(told, _)| *told == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("LISTEN_FDS", "2"), ("LISTEN_PID", &own)]), 3..5);
        assert_eq!(of(&[("LISTEN_FDS", "1"), ("LISTEN_FDS_FIRST_FD", "7")]), 7..8);
        assert!(of(&[("LISTEN_FDS", "2"), ("LISTEN_PID", &format!("{own}0"))]).is_empty());
        assert!(of(&[]).is_empty() && of(&[("LISTEN_FDS", "-1")]).is_empty() && of(&[("LISTEN_FDS", "x")]).is_empty());
    }

    #[test]
    fn limits_of_files_are_raised_as_far_as_is_needed_also_where_only_root_may() {
        let tried = |current, maximum, needed| {
            let tried = file_limits(Rlimit { current: Some(current), maximum }, needed);
            tried.iter().map(|limit| (limit.current, limit.maximum)).collect::<Vec<_>>()
        };
        assert!(tried(64, Some(64), 64).is_empty());
        assert_eq!(tried(64, Some(300), 300), [(Some(300), Some(300))]);
        assert_eq!(tried(64, Some(400), 300), [(Some(300), Some(400))]);
        assert_eq!(tried(64, None, 300), [(Some(300), None)]);
        assert_eq!(tried(64, Some(200), 300), [(Some(300), Some(300)), (Some(200), Some(200))]);
        assert!(file_limits(Rlimit { current: None, maximum: None }, 300).is_empty());
    }

    #[test]
    fn files_are_counted_for_connections_threads_and_a_store() {
        let of = |words: &[&str]| files_needed(&ServerArgs::parse([&["-t", "2"], words].concat()).unwrap(), false);
        assert_eq!([of(&[]), of(&["-c", "7"])], [1_024 + 64 + 8, 7 + 64 + 8]);
        assert_eq!(files_needed(&ServerArgs::parse([""; 0]).unwrap(), true), 1_024 + 64 + 16, "memcached's 4 threads");
        assert_eq!(of(&["--store", "file:x"]), of(&["--store", "memory:"]) + 1_024);
        assert_eq!(of(&["-c", &usize::MAX.to_string()]), u64::MAX, "no overflow");
    }
}
