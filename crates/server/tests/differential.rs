//! The same bytes to the newest memcached and to ours: the replies must be the same bytes. What differs on purpose is listed in the crate's
//! documentation and left out here; tokens that the servers draw, and times, are made alike before they are compared.

mod common;

use std::net::SocketAddr;

use common::{ask, connect, exchange, finish, start, start_in_folder};
use fastrand::Rng;
use larder_server::{Limits, Server};
use larder_testkit::servers::{Memcached, Version};

/// Tokens that the tests give with `E`; all others are drawn by the servers.
const TOKENS: std::ops::Range<u64> = 1_000_000..2_000_000;

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

    /// Sends the requests to both: what differs. memcached gets them one by one, since its replies to some depend on whether earlier ones were
    /// sent already (arithmetic on an item that a reply still holds makes it anew, without its marks); ours all at once, cut anywhere.
    fn differs(&self, requests: &[Vec<u8>], rng: &mut Rng) -> Option<String> {
        let [theirs, ours] = self.addrs();
        let remembers = self.folder.is_none();
        let expected = one_by_one(theirs, requests);
        let request = &requests.concat();
        let got = exchange(ours, pieces(request, rng));
        let under = |shift| [&expected, &got].map(|reply| normal(reply, remembers, shift));
        let [expected, got] = match under(0) {
            [expected, got] if expected == got => return None,
            _ => under(LIFE_SHIFT),
        };
        let (request, expected, got) = (Shown(request), Shown(&expected), Shown(&got));
        (got.0 != expected.0).then(|| format!("request:   {request}\nmemcached: {expected}\nours:      {got}\n"))
    }
}

fn theirs() -> Memcached {
    // Its background threads take hold of items now and then, and arithmetic makes an item anew that somebody holds.
    Memcached::start(Version::New, &["-m", "64", "-o", "no_lru_maintainer,no_lru_crawler"])
}

/// Lives are told in whole hundreds of seconds. Two that a moment lies between may round apart, an end at a given date at some hour of the day:
/// so much later they do not.
const LIFE_SHIFT: u64 = 33;

fn rounded(life: u64, shift: u64) -> u64 {
    (life + shift).div_ceil(100) * 100
}

/// Each request is answered before the next is sent; the last one may leave the connection waiting.
fn one_by_one(addr: SocketAddr, requests: &[Vec<u8>]) -> Vec<u8> {
    let Some((last, before)) = requests.split_last() else { return Vec::new() };
    let mut stream = connect(addr);
    let mut replies = Vec::new();
    for request in before {
        let reply = ask(&mut stream, &[request, &b"mn\r\n"[..]].concat(), b"MN\r\n");
        replies.extend_from_slice(reply.strip_suffix(b"MN\r\n").unwrap_or(&reply));
    }
    replies.extend(finish(stream, [&last[..]]));
    replies
}

/// Bytes on a line, however many.
struct Shown<'a>(&'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const BYTES_MAX: usize = 4_000;
        write!(f, "{}", self.0[..self.0.len().min(BYTES_MAX)].escape_ascii())
    }
}

/// Cuts into pieces: mostly one, else a few.
fn pieces<'a>(bytes: &'a [u8], rng: &mut Rng) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = (0..rng.usize(0..4)).map(|_| rng.usize(0..=bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Tokens that a server drew, and times, replaced by what all of them become; and whether an item was fetched, unless both servers remember that.
fn normal(reply: &[u8], remembers: bool, shift: u64) -> Vec<u8> {
    let lines = reply.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let (line, end) = match line.strip_suffix(b"\r\n") {
            Some(line) => (line, &b"\r\n"[..]),
            None => (line, &b""[..]),
        };
        let kind = line.split(|&byte| byte == b' ').next().unwrap_or_default().to_vec();
        let words: Vec<Vec<u8>> = line
            .split(|&byte| byte == b' ')
            .enumerate()
            .map(|(at, word)| normal_word(&kind, at, word, shift))
            .collect();
        let words: Vec<Vec<u8>> =
            words.into_iter().map(|word| if remembers { word } else { unfetched(&kind, word) }).collect();
        [&words.join(&b' ')[..], end].concat()
    });
    lines.collect::<Vec<_>>().concat()
}

/// A word without what it says of the item's having been fetched.
fn unfetched(kind: &[u8], word: Vec<u8>) -> Vec<u8> {
    match (kind, &word[..]) {
        (b"HD" | b"VA", b"h0" | b"h1") => b"h#".to_vec(),
        (b"ME", b"fetch=yes" | b"fetch=no") => b"fetch=#".to_vec(),
        _ => word,
    }
}

fn normal_word(kind: &[u8], at: usize, word: &[u8], shift: u64) -> Vec<u8> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    let drawn = |digits: &[u8]| number(digits).is_some_and(|token| !TOKENS.contains(&token) && token != 0);
    match (kind, word) {
        (b"VERSION", _) if at == 1 => word.split(|&byte| byte == b'-').next().unwrap_or_default().to_vec(),
        (b"VALUE", _) if at == 4 && drawn(word) => b"#".to_vec(),
        (b"HD" | b"VA" | b"NS" | b"EX", [b'c', token @ ..]) if at > 0 && drawn(token) => b"c#".to_vec(),
        // Lives are given in thousands of seconds, and the test takes none that matters.
        (b"HD" | b"VA", [b't', life @ ..]) if at > 0 && number(life).is_some() => {
            format!("t{}", rounded(number(life).unwrap_or(0), shift)).into_bytes()
        }
        (b"HD" | b"VA", [b'l', age @ ..]) if at > 0 && number(age).is_some() => b"l#".to_vec(),
        (b"ME", _) if word.starts_with(b"la=") || word.starts_with(b"cls=") => b"#".to_vec(),
        (b"ME", [b'c', b'a', b's', b'=', token @ ..]) if drawn(token) => b"cas=#".to_vec(),
        (b"ME", [b'e', b'x', b'p', b'=', life @ ..]) if number(life).is_some() => {
            format!("exp={}", rounded(number(life).unwrap_or(0), shift)).into_bytes()
        }
        _ => word.to_vec(),
    }
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
        // Each begins with the same items, and none from the one before.
        for addr in pair.addrs() {
            exchange(addr, [&b"flush_all\r\nset n 0 0 2\r\n10\r\nset s 5 0 3\r\nabc\r\n"[..]]);
        }
        differing.extend(pair.differs(&[request], &mut rng));
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
}

/// What a generated session is made of.
struct Generator {
    rng: Rng,
    token: u64,
}

impl Generator {
    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.rng.usize(0..of.len())]
    }

    fn key(&mut self) -> &'static str {
        self.pick(&["a", "b", "c", "n", "m", "long-key-of-some-length"])
    }

    fn value(&mut self) -> String {
        match self.rng.u8(0..5) {
            0 => self.rng.u64(0..200).to_string(),
            1 => u64::MAX.to_string(),
            2 => String::new(),
            3 => "v".repeat(self.rng.usize(0..400)),
            _ => self.pick(&["9 ", "abc", "10", "007", "-1", " 5", "99"]).to_owned(),
        }
    }

    fn exptime(&mut self) -> &'static str {
        self.pick(&["0", "0", "0", "1000", "5000", "-1", "2000000000", "100000000"])
    }

    /// Tokens grow, and older ones are asked for.
    fn fresh_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    fn old_token(&mut self) -> u64 {
        if self.rng.u8(0..8) == 0 { 0 } else { self.token - self.rng.u64(0..4).min(self.token - TOKENS.start) }
    }

    fn noreply(&mut self) -> &'static str {
        self.pick(&["", "", "", " noreply"])
    }

    fn classic(&mut self) -> String {
        let (key, value, noreply) = (self.key(), self.value(), self.noreply());
        let (flags, exptime) = (self.pick(&["0", "7", "4294967295"]), self.exptime());
        let bytes = value.len();
        match self.rng.u8(0..12) {
            0..=3 => {
                let verb = self.pick(&["set", "set", "add", "replace", "append", "prepend"]);
                format!("{verb} {key} {flags} {exptime} {bytes}{noreply}\r\n{value}\r\n")
            }
            4 => {
                let token = self.old_token();
                format!("cas {key} {flags} {exptime} {bytes} {token}{noreply}\r\n{value}\r\n")
            }
            5 => format!("get {key} {} {}\r\n", self.key(), self.key()),
            6 => format!("gets {key}\r\n"),
            7 => format!("{} {exptime} {key} {}\r\n", self.pick(&["gat", "gats"]), self.key()),
            8 => format!("delete {key}{noreply}\r\n"),
            9 => format!("touch {key} {exptime}{noreply}\r\n"),
            _ => {
                let delta = self.pick(&["1", "0", "5", "18446744073709551615", "x", "-1"]);
                format!("{} {key} {delta}{noreply}\r\n", self.pick(&["incr", "decr"]))
            }
        }
    }

    fn flags(&mut self, of: &[&str], most: usize) -> String {
        let mut text = String::new();
        for _ in 0..self.rng.usize(0..=most) {
            let flag = self.pick(of);
            let argument = match flag {
                "T" | "N" => self.pick(&["0", "1000", "7000", "-1"]).to_owned(),
                "R" => self.pick(&["0", "30", "2000", "9000"]).to_owned(),
                "E" => self.fresh_token().to_string(),
                "C" => self.old_token().to_string(),
                "O" => self.rng.u32(..).to_string(),
                "F" => self.pick(&["0", "1", "4294967295", "x"]).to_owned(),
                "J" | "D" => self.pick(&["0", "1", "13", "18446744073709551615", "y"]).to_owned(),
                "M" => self.pick(&["S", "E", "A", "P", "R", "set", "I", "D", "+", "-", "z", ""]).to_owned(),
                _ => String::new(),
            };
            text.push_str(&format!(" {flag}{argument}"));
        }
        text
    }

    fn meta(&mut self) -> String {
        let (key, value) = (self.key(), self.value());
        match self.rng.u8(0..9) {
            // `t` and `T-1` in one request: memcached prints a life that has passed as a huge one.
            0..=2 => {
                let life = self.pick(&["t", "s"]);
                let flags = self.flags(&["v", "c", "f", "h", "k", "l", "s", "q", "u", "O", "C", "N", "R"], 6);
                format!("mg {key}{flags} {life}\r\n").replace("N-1", "N1000")
            }
            3 => format!("mg {key}{}\r\n", self.flags(&["v", "c", "T", "h", "N", "E", "R", "k", "q"], 5)),
            4 | 5 => {
                let flags = self.flags(&["c", "C", "E", "F", "I", "k", "O", "q", "s", "T", "M", "N"], 5);
                format!("ms {key} {}{flags}\r\n{value}\r\n", value.len())
            }
            6 => format!("md {key}{}\r\n", self.flags(&["C", "E", "I", "k", "O", "q", "T", "x", "F"], 4)),
            7 => {
                // `E` and `T` are lost by memcached where the number grows by a digit.
                let flags = self.flags(&["C", "N", "J", "D", "M", "O", "q", "c", "v", "k"], 5);
                format!("ma {key}{flags}\r\n")
            }
            _ => self
                .pick(&["me b\r\n", "me a\r\n", "me n\r\n", "mg bG9uZw== b v k\r\n", "ms bG9uZw== 2 b k\r\nhi\r\n"])
                .to_owned(),
        }
    }

    fn garbage(&mut self) -> String {
        let words =
            ["set", "a", "0", "-1", "mg", "ms", "v", "noreply", "99999999999", "M", "\t", " ", "cas", "stats", "x"];
        let mut line = String::new();
        for _ in 0..self.rng.usize(0..7) {
            line.push_str(self.pick(&words));
            line.push_str(self.pick(&[" ", " ", "  ", ""]));
        }
        // What has a body would take in what follows, and statistics differ; that is tried elsewhere.
        let other = ["set", "cas", "ms", "stats"].iter().any(|name| line.trim_start().starts_with(name));
        let end = self.pick(&["\r\n", "\r\n", "\n"]);
        if other { format!("x{line}{end}") } else { format!("{line}{end}") }
    }

    fn session(&mut self) -> Vec<Vec<u8>> {
        let requests = (0..self.rng.usize(1..60)).map(|_| match self.rng.u8(0..20) {
            0..=8 => self.classic(),
            9..=18 => self.meta(),
            _ => self.garbage(),
        });
        let requests: Vec<String> = requests.collect();
        std::iter::once("flush_all\r\n".to_owned()).chain(requests).map(String::into_bytes).collect()
    }
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
    let mut generator = Generator { rng: Rng::with_seed(seed), token: TOKENS.start };
    let mut cuts = Rng::with_seed(seed + 1);
    for _ in 0..400 {
        let session = generator.session();
        let differing = pair.differs(&session, &mut cuts);
        assert!(differing.is_none(), "seed {seed}:\n{}", differing.unwrap_or_default());
    }
}
