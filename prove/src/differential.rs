//! Differential: the same random sessions, classic and meta, to a real memcached of the newest release and to the server, over the store in the process and over one
//! in a folder: the replies must be the same bytes, but for what servers draw by themselves.

use fastrand::Rng;
use larder_server::{Config, DurableEngine, DurableOptions, Limits, Listen, MemoryEngine, MemoryStore, Server};
use larder_testkit::servers::{Memcached, Version};
use larder_testkit::sessions::{Generator, difference};

use crate::{Budget, Findings, Part};

pub(crate) const PART: Part = Part {
    name: "differential",
    about: "the same random sessions to a real memcached and to the server: the same replies, byte for byte",
    run,
};

/// Sessions between two looks at the clock.
const AT_ONCE: usize = 20;
/// One session in so many goes to the store in a folder: it waits for the disk.
const IN_FOLDER_EVERY: usize = 8;

/// A memcached and two of ours.
struct Servers {
    theirs: Memcached,
    memory: Server,
    durable: Server,
    _folder: tempfile::TempDir,
}

impl Servers {
    fn start() -> Servers {
        // Its background threads take hold of items now and then, and arithmetic makes an item anew that somebody holds.
        let theirs = Memcached::start(Version::New, &["-m", "64", "-o", "no_lru_maintainer,no_lru_crawler"]);
        let limits = Limits::default();
        let store = MemoryStore::builder().bytes_max(limits.memory_bytes_max).value_bytes_max(limits.item_bytes_max);
        let store = store.build().expect("limits that are in range");
        let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        let config = || Config { listen: listen.clone(), threads: 1, ..Config::default() };
        let memory = Server::start(MemoryEngine::new(store), config()).expect("a server starts");
        let folder = tempfile::tempdir().expect("a folder");
        let store = DurableOptions::new(folder.path()).open().expect("a store in a folder");
        let durable = Server::start(DurableEngine::new(store), config()).expect("a server starts");
        Servers { theirs, memory, durable, _folder: folder }
    }
}

/// The part: sessions until the time is over.
fn run(budget: Budget) -> Findings {
    let servers = Servers::start();
    let mut findings = Findings::default();
    for seed in budget.seeds() {
        round(&servers, seed, AT_ONCE, &mut findings);
    }
    findings
}

fn round(servers: &Servers, seed: u64, sessions: usize, findings: &mut Findings) {
    let (mut generator, mut cuts) = (Generator::new(seed), Rng::with_seed(!seed));
    for number in 0..sessions {
        let session = generator.session();
        let is_durable = number % IN_FOLDER_EVERY == IN_FOLDER_EVERY - 1;
        let ours = if is_durable { &servers.durable } else { &servers.memory };
        // A folder does not remember that an item was fetched.
        let differing = difference([servers.theirs.addr(), ours.addrs()[0]], &session, !is_durable, &mut cuts);
        findings.count("commands compared with memcached", session.len() as u64);
        findings.count("sessions compared with memcached", 1);
        if let Some(differing) = differing {
            findings.violation(seed, &format!("session {number}: {differing}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slice of the normal tests; `crates/server/tests/differential.rs` has more, and what is odd.
    #[test]
    fn memcached_and_the_server_answer_alike() {
        let mut findings = Findings::default();
        round(&Servers::start(), 1, 40, &mut findings);
        assert_eq!(findings.told, [""; 0]);
        assert!(findings.counts["commands compared with memcached"] > 400);
    }
}
