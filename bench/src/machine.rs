//! What a result was measured on. Everything here is read off, nothing is typed in.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine, the compiler and the crates of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    pub(crate) rustc: String,
    pub(crate) commit: String,
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// What else ran: the load average of the last minute, before the first round.
    pub(crate) load_before: String,
    /// Whether this ran before others: the nice level of its scheduling group, where that is not 0.
    #[serde(default)]
    pub(crate) priority: String,
    /// Name and version, as the lock file has them.
    pub(crate) crates: Vec<String>,
}

/// The crates whose versions a reader wants to know.
const CRATES: [&str; 10] =
    ["async-memcached", "memcache", "redis", "fred", "rslock", "distkit", "moka", "dashmap", "quick_cache", "tokio"];

const LOCK: &str = include_str!("../../Cargo.lock");

impl Machine {
    pub(crate) fn read() -> Machine {
        Machine {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cores(),
            memory_bytes: kib("/proc/meminfo", "MemTotal").unwrap_or(0) * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            rustc: said("rustc", &["--version"]),
            commit: commit(),
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            load_before: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|load| load.split(' ').next().map(str::to_owned))
                .unwrap_or_default(),
            priority: priority(),
            crates: CRATES
                .iter()
                .map(|name| format!("{name} {}", locked_version(LOCK, name).as_deref().unwrap_or("unknown")))
                .collect(),
        }
    }

    /// One line of the essentials.
    pub(crate) fn line(&self) -> String {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        let priority = if self.priority.is_empty() { String::new() } else { format!(", {}", self.priority) };
        format!(
            "{}, {} cores, {gib:.0} GiB, Linux {}, {}, commit {}, load before {}{priority}",
            self.cpu, self.cores, self.kernel, self.rustc, self.commit, self.load_before
        )
    }
}

/// The cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The memory this process really occupies.
pub(crate) fn rss_bytes() -> u64 {
    kib("/proc/self/status", "VmRSS").unwrap_or(0) * 1024
}

fn kib(path: &str, name: &str) -> Option<u64> {
    field(path, name)?.split_whitespace().next()?.parse().ok()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success());
    output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Linux weighs scheduling groups, one a session, before processes.
fn priority() -> String {
    let group = fs::read_to_string("/proc/self/autogroup").unwrap_or_default();
    match group.trim().split_once(" nice ") {
        Some((_, nice)) if nice != "0" => format!("scheduling group at nice {nice}"),
        _ => String::new(),
    }
}

/// The commit that is checked out, marked where files differ from it.
fn commit() -> String {
    let (head, changed) = (said("git", &["rev-parse", "--short", "HEAD"]), said("git", &["status", "--short", "-uno"]));
    match (head.is_empty(), changed.is_empty()) {
        (true, _) => "unknown".to_owned(),
        (false, true) => head,
        (false, false) => format!("{head} and changes"),
    }
}

/// The version of a crate that this package depends on. Where the lock file has several of a name, it says which next to the dependency.
fn locked_version(lock: &str, name: &str) -> Option<String> {
    let package = |name: &str| lock.split("[[package]]\n").find(|it| it.starts_with(&format!("name = \"{name}\"\n")));
    let dependency = package("larder-bench")?.lines().find_map(|line| {
        let mut words = line.trim().trim_matches(['"', ',']).split(' ');
        (words.next() == Some(name)).then(|| words.next().map(str::to_owned))
    })?;
    let only = || Some(package(name)?.lines().nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')?.to_owned());
    dependency.or_else(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_in_the_lock_file() {
        for name in CRATES {
            assert!(locked_version(LOCK, name).is_some(), "{name}");
        }
    }

    #[test]
    fn of_two_versions_it_tells_the_one_that_is_used() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\n\n\
            [[package]]\nname = \"b\"\nversion = \"3.0.0\"\n\n[[package]]\nname = \"larder-bench\"\nversion = \"0.1.0\"\n\
            dependencies = [\n \"a 2.0.0\",\n \"b\",\n]\n";
        let versions = ["a", "b", "c"].map(|name| locked_version(lock, name));
        assert_eq!(versions, [Some("2.0.0".to_owned()), Some("3.0.0".to_owned()), None]);
    }

    #[test]
    fn this_process_occupies_memory() {
        assert!(rss_bytes() > 100_000);
    }
}
