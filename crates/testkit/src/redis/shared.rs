//! One cluster for all processes of a test run.
//!
//! A cluster takes 2 seconds to start, and nextest runs a process a test. So the first process that asks starts the cluster under a
//! keeper, a shell script that outlives it; the others find its address in a file. The keeper ends the servers, and removes all files, when
//! the run is over (the process that started the tests is gone) or nobody has asked for the cluster in a while. Should the keeper itself be killed,
//! the kernel ends the servers with it.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use super::cluster::{is_ok, prepared, url};
use super::{RedisOptions, RedisServer, RedisVersion};
use crate::servers::{Deadline, READY_MS_MAX};

/// Nobody has asked for so long: longer than a test may take.
const IDLE_S_MAX: u64 = 200;
/// Silence after which a node would count as failed.
const NODE_TIMEOUT_MS: &str = "60000";
/// Clusters that did not come up before giving up.
const ATTEMPTS_MAX: u32 = 5;

/// A cluster that all processes of a test run use. Others' keys are in it: use names of your own.
#[derive(Clone, Debug)]
pub struct SharedCluster {
    url: String,
}

impl SharedCluster {
    /// The store URL.
    pub fn url(&self) -> String {
        self.url.clone()
    }
}

/// The cluster of this test run; started if this process is the first that asks.
///
/// ```
/// use larder_testkit::redis::{RedisVersion, shared_cluster};
///
/// let first = shared_cluster(RedisVersion::Redis7);
/// assert_eq!(shared_cluster(RedisVersion::Redis7).url(), first.url());
/// ```
///
/// # Panics
/// When the executable is missing or the cluster does not come up.
pub fn shared_cluster(version: RedisVersion) -> SharedCluster {
    // nextest, cargo, or a shell: whoever started the tests.
    let run = parent_id();
    let home = std::env::temp_dir().join(format!("larder-cluster-{version:?}-{run}"));
    fs::create_dir_all(&home).expect("a folder of the run's own");
    let lock = File::create(home.join("lock")).expect("a file of the run's own");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock on a file of the run's own");
    let used = home.join("used");
    fs::write(&used, "").expect("a file of the run's own");
    for _ in 0..ATTEMPTS_MAX {
        if let Ok(url) = fs::read_to_string(home.join("url")) {
            let socket = fs::read_to_string(home.join("socket")).unwrap_or_default();
            if super::resp::Connection::open(Path::new(&socket), std::time::Duration::from_secs(5)).is_ok() {
                return SharedCluster { url };
            }
        }
        if start(version, &home, run) {
            continue;
        }
    }
    panic!("a cluster for the run did not come up in {ATTEMPTS_MAX} attempts");
}

/// Starts the servers under a keeper and waits until they serve; false if they do not.
#[expect(clippy::zombie_processes, reason = "the keeper outlives this process, and is waited for where it fails")]
fn start(version: RedisVersion, home: &Path, run: u32) -> bool {
    // No failover is wanted here: on a loaded machine, a node that only waits for its turn would seem dead, and writes be lost.
    let options = RedisOptions::new().arg("cluster-node-timeout", NODE_TIMEOUT_MS);
    let (nodes, _) = prepared(version, &options);
    let script = home.join("keeper");
    fs::write(&script, keeper(&nodes, home, run)).expect("a file of the run's own");
    let mut command = Command::new("sh");
    // A group of its own: signals to the test do not reach it.
    command.arg(&script).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut keeper = command.spawn().expect("a shell");
    let deadline = Deadline::after_ms(2 * READY_MS_MAX);
    while !nodes.iter().all(is_ok) {
        if deadline.passed() || !matches!(keeper.try_wait(), Ok(None)) {
            // The servers go with it, by the kernel's hand; the folders with the handles.
            let _ = keeper.kill();
            let _ = keeper.wait();
            return false;
        }
        deadline.poll();
    }
    fs::write(home.join("socket"), nodes[0].socket().display().to_string()).expect("a file of the run's own");
    fs::write(home.join("url"), url("redis-cluster", &nodes)).expect("a file of the run's own");
    for mut node in nodes {
        node.folder.disable_cleanup(true);
    }
    true
}

/// The script that starts the servers, waits for the end of the run, and ends them.
fn keeper(nodes: &[RedisServer], home: &Path, run: u32) -> String {
    let quoted = |path: &Path| quote(&path.display().to_string());
    let mut text = "#!/bin/sh\n# The keeper of a cluster for a test run.\npids=\n".to_owned();
    let mut folders = vec![quoted(home)];
    for node in nodes {
        let folder = quoted(node.folder());
        let args: Vec<String> = node.arguments().iter().map(|arg| quote(arg)).collect();
        let bound = crate::servers::bound_to_us(&node.version().executable());
        let words = std::iter::once(bound.get_program()).chain(bound.get_args());
        let words: Vec<String> = words.map(|word| quote(&word.to_string_lossy())).collect();
        let command = format!("(cd {folder} && exec {} {} >log 2>&1) &", words.join(" "), args.join(" "));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{command}\npids=\"$pids $!\"");
        folders.push(folder);
    }
    let used: PathBuf = home.join("used");
    let _ = write!(
        text,
        "while kill -0 {run} 2>/dev/null; do\n\
         \x20 sleep 1\n\
         \x20 last=$(stat -c %Y {used} 2>/dev/null) || break\n\
         \x20 [ $(($(date +%s) - last)) -lt {IDLE_S_MAX} ] || break\n\
         done\n\
         kill -9 $pids\n\
         rm -rf {folders}\n",
        used = quoted(&used),
        folders = folders.join(" "),
    );
    text
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
