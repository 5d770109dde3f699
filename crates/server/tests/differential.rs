//! The same bytes to the newest memcached and to ours: the replies must be the same bytes. What differs on purpose is listed in the crate's
//! documentation and left out here; tokens that the servers draw, and times, are made alike before they are compared.

mod common;

use std::net::SocketAddr;

use common::{start, start_in_folder};
use fastrand::Rng;
use larder_server::{Limits, Server};
use larder_testkit::servers::{Memcached, Version};
use larder_testkit::sessions::{Generator, difference, exchange};

struct Pair {
    theirs: Memcached,
    ours: Server,
    /// Where ours keeps its items, if in a folder. It does not remember there that an item was fetched.
    folder: Option<tempfile::TempDir>,
}

impl Pair {
    fn start() -> Pair {
        Pair { theirs: theirs(), ours: start(Limits::default()), folder: None }
    }

    fn start_in_folder() -> Pair {
        let folder = tempfile::tempdir().expect("a folder");
        Pair { theirs: theirs(), ours: start_in_folder(folder.path()), folder: Some(folder) }
    }

    fn addrs(&self) -> [SocketAddr; 2] {
        [self.theirs.addr(), self.ours.addrs()[0]]
    }

    fn differs(&self, requests: &[Vec<u8>], rng: &mut Rng) -> Option<String> {
        difference(self.addrs(), requests, self.folder.is_none(), rng)
    }
}

fn theirs() -> Memcached {
    // Its background threads take hold of items now and then, and arithmetic makes an item anew that somebody holds.
    Memcached::start(Version::New, &["-m", "64", "-o", "no_lru_maintainer,no_lru_crawler"])
}

/// Requests that are malformed, at a limit, or odd, each on a connection of its own.
fn odd() -> Vec<Vec<u8>> {
    let key_250 = "k".repeat(250);
    let key_251 = "k".repeat(251);
    let largest = 1_048_576 - 59 - 1;
    let mut requests: Vec<String> = include_str!("odd.txt").lines().map(unescaped).collect();
    requests.extend([
        format!("set {key_250} 0 0 1\r\nx\r\nget {key_250}\r\ndelete {key_250}\r\n"),
        format!("set {key_251} 0 0 1\r\nx\r\nget a\r\n"),
        format!("set {key_251} 0 0 1 noreply\r\nx\r\nget a\r\n"),
        format!("incr {key_251} 1\r\ntouch {key_251} 0\r\ndelete {key_251}\r\nmn\r\n"),
        format!("mg {key_251} v\r\nmd {key_251} q\r\nma {key_251}\r\nme {key_251}\r\nms {key_251} 1\r\nx\r\nmn\r\n"),
        format!("ms {key_250} 1 k s\r\nx\r\nmg {key_250} k v\r\nmd {key_250}\r\n"),
        format!("set L 0 0 {largest}\r\n{}\r\nmg L s\r\ndelete L\r\n", "v".repeat(largest)),
        format!("set L 0 0 {0}\r\n{1}\r\nmg L s\r\n", largest + 1, "v".repeat(largest + 1)),
        format!("set L 1 0 {0}\r\n{1}\r\nmg L s\r\n", largest - 3, "v".repeat(largest - 3)),
        format!("set L 0 0 1\r\nx\r\nset L 0 0 1048576\r\n{}\r\nget L\r\n", "v".repeat(1_048_576)),
        format!("set L 0 0 1\r\nx\r\nadd L 0 0 1048576 noreply\r\n{}\r\nget L\r\n", "v".repeat(1_048_576)),
        format!("set L 0 0 1\r\nx\r\nms L 1048576 O7 q\r\n{}\r\nmg L v\r\n", "v".repeat(1_048_576)),
        // What counts may be longer than the widest number that the standard library formats.
        format!("set p 0 0 65536\r\n1{}\r\nincr p 1\r\nma p v\r\ndecr p 3\r\nget p\r\n", " ".repeat(65_535)),
        format!("mg a {}\r\nmn\r\n", "O".repeat(33)),
        format!("mg a {} v\r\nmn\r\n", "O".repeat(32)),
        format!("ms a 1 {}\r\nx\r\nmn\r\n", "O".repeat(33)),
        format!("md a {}\r\nmn\r\n", "O".repeat(40)),
        format!("get {}\r\n", "a b c ".repeat(900)),
        format!("mg a {}\r\nmn\r\n", "v ".repeat(30)),
        format!("mg a {}\r\nmn\r\n", "v t s f c h l k q u T0 N0 R0 C0 E1000000 O1 P L b"),
    ]);
    requests.into_iter().map(String::into_bytes).collect()
}

/// A line of the file: `\r`, `\n`, `\t`, `\0` and `\\` stand for these bytes.
fn unescaped(line: &str) -> String {
    line.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "\0")
}

#[test]
fn odd_requests_get_what_memcached_answers() {
    odd_requests(&Pair::start());
}

#[test]
fn odd_requests_get_what_memcached_answers_from_a_folder() {
    odd_requests(&Pair::start_in_folder());
}

fn odd_requests(pair: &Pair) {
    let (mut rng, mut differing) = (Rng::with_seed(1), Vec::new());
    for request in odd() {
        // A folder has no limit of memory to set.
        if pair.folder.is_some() && request.starts_with(b"cache_memlimit") {
            continue;
        }
        // Once more with a request behind it: who waits answers that, and who has closed does not. Without, both look alike.
        let is_whole = request.ends_with(b"\n");
        let followed = is_whole.then(|| [&request[..], b"\r\nmn\r\n"].concat());
        for request in std::iter::once(request).chain(followed) {
            // Each begins with the same items, and none from the one before.
            for addr in pair.addrs() {
                exchange(addr, [&b"flush_all\r\nset n 0 0 2\r\n10\r\nset s 5 0 3\r\nabc\r\n"[..]]);
            }
            differing.extend(pair.differs(&[request], &mut rng));
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
}

#[test]
fn generated_sessions_get_what_memcached_answers() {
    generated_sessions(&Pair::start());
}

#[test]
fn generated_sessions_get_what_memcached_answers_from_a_folder() {
    generated_sessions(&Pair::start_in_folder());
}

fn generated_sessions(pair: &Pair) {
    let seed = std::env::var("LARDER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20);
    let mut generator = Generator::new(seed);
    let mut cuts = Rng::with_seed(seed + 1);
    for _ in 0..400 {
        let session = generator.session();
        let differing = pair.differs(&session, &mut cuts);
        assert!(differing.is_none(), "seed {seed}:\n{}", differing.unwrap_or_default());
    }
}
