//! The server's connections, without a socket: whatever comes, in whatever pieces, is answered as it is whole, or the connection closed; what is held stays
//! bounded, and others are served. And the file that says who is.

use std::sync::Arc;
use std::time::Duration;

use larder::testing::ManualClock;
use larder_proto::server::LINE_BYTES_MAX;
use larder_server::fuzzing::{Talk, Wire};
use larder_server::{AuthFile, Limits, MemoryEngine, MemoryStore};
use larder_testkit::sessions::{Generator, LIFE_SHIFT_S, normal};

use super::protocol::WORDS;
use super::{Execute, Input, OF_THE_SERVER, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![Target::new("server", Pair::new).times(OF_THE_SERVER), Target::new("auth files", || auth_files)]
}

/// Items of a few hundred KB fill it, so that running out of memory is fuzzed, too.
const MEMORY_BYTES_MAX: usize = 2 << 20;

/// Two servers with one history: one gets every connection's bytes whole, the other in pieces.
struct Pair {
    whole: Wire,
    pieces: Wire,
}

fn wire() -> Wire {
    // Its clock stands, and it has one shard: the two draw the same tokens and tell the same lives.
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_700_000_000)));
    let store = MemoryStore::builder().bytes_max(MEMORY_BYTES_MAX).value_bytes_max(1 << 20).shards(1).clock(clock);
    let limits = Limits { memory_bytes_max: MEMORY_BYTES_MAX, ..Limits::default() };
    Wire::new(MemoryEngine::new(store.build().expect("limits that are in range")), limits)
}

impl Pair {
    fn new() -> Pair {
        Pair { whole: wire(), pieces: wire() }
    }
}

/// A session: valid, mutated, or garbage.
fn session(input: &mut Input) -> Vec<u8> {
    let mut generator = Generator::new(input.rng.u64(..));
    let mut bytes = Vec::new();
    for _ in 0..input.rng.usize(1..12) {
        match input.rng.u8(0..8) {
            0..=2 => bytes.extend(generator.classic().into_bytes()),
            3..=5 => bytes.extend(generator.meta().into_bytes()),
            6 => bytes.extend(generator.garbage().into_bytes()),
            _ => bytes.extend(input.jumble(WORDS, 6)),
        }
    }
    match input.rng.u8(0..16) {
        0 => {
            // Mostly some KB: what is fetched many times over takes all the time, and says no more.
            let most = if input.one_in(4) { 200_000 } else { 8_000 };
            let length = input.rng.usize(1_000..most);
            let head = format!("{} L 0 0 {length}\r\n", input.pick(&["set", "append", "prepend", "add"]));
            bytes.extend(head.into_bytes());
            bytes.resize(bytes.len() + length, b'v');
            bytes.extend_from_slice(b"\r\n");
        }
        1 => {
            let verb = input.pick(&["get ", "gat 0 "]).as_bytes();
            let most = if input.one_in(8) { 600 } else { 30 };
            bytes.extend([verb, &b"L ".repeat(input.rng.usize(1..most)), b"\r\n"].concat());
        }
        2 => bytes.extend(vec![b'x'; input.rng.usize(1..5_000)]),
        3..=9 => {
            let other = generator.meta().into_bytes();
            input.mutate(&mut bytes, WORDS, &other);
        }
        _ => {}
    }
    bytes
}

/// Figures and listings tell of the server, not of the protocol.
fn is_comparable(bytes: &[u8]) -> bool {
    let has = |word: &[u8]| bytes.windows(word.len()).any(|window| window == word);
    !has(b"stats") && !has(b"dump") && !has(b"me ")
}

/// True for the same replies. A line that is too long is found out before its end is there, or taken where its end came with it, as memcached does: then one of
/// the two has answered more.
fn agree(bytes: &[u8], whole: &[u8], pieces: &[u8]) -> bool {
    let is_long = bytes.split(|&byte| byte == b'\n').any(|line| line.len() >= LINE_BYTES_MAX);
    // The end of a life at a date is told in whole seconds of the wall clock, which goes on.
    let same = |shift_s| {
        let [whole, pieces] = [whole, pieces].map(|reply| normal(reply, true, shift_s));
        whole == pieces || (is_long && (whole.starts_with(&pieces) || pieces.starts_with(&whole)))
    };
    whole == pieces || same(0) || same(LIFE_SHIFT_S)
}

impl Execute for Pair {
    fn execute(&mut self, input: &mut Input) -> Result<(), String> {
        let bytes = session(input);
        let taken_at_once = if input.one_in(4) { 100 } else { usize::MAX };
        let whole = self.whole.talk([bytes.clone()], usize::MAX);
        let pieces = self.pieces.talk(input.pieces(&bytes), taken_at_once);
        for (wire, talk) in [(&self.whole, &whole), (&self.pieces, &pieces)] {
            sound(wire, talk, bytes.len()).map_err(|what| format!("{what} after {}", shown(&bytes)))?;
        }
        if is_comparable(&bytes) && !agree(&bytes, &whole.replies, &pieces.replies) {
            let (whole, pieces) = (shown(&whole.replies), shown(&pieces.replies));
            *self = Pair::new();
            return Err(format!("{} is answered {whole} whole and {pieces} in pieces", shown(&bytes)));
        }
        Ok(())
    }
}

/// Who is in the file may come in with that password, and nobody else; and no password is told.
fn auth_files(input: &mut Input) -> Result<(), String> {
    const SECRET: &str = "hunter2";
    const WORDS: &[&[u8]] = &[b":", b"\n", b"\r\n", b"\r", b"joe", b"hunter2", b"#", b" "];
    let mut text = Vec::new();
    let lines = if input.one_in(300) { input.rng.usize(1_000..1_050) } else { input.rng.usize(0..5) };
    for at in 0..lines {
        let (user, end) = (input.pick(&["joe", "ann", "", "\u{fc}"]), input.pick(&["\n", "\r\n", "\n\n"]));
        text.extend_from_slice(format!("{user}{at}:{SECRET}{at}{end}").as_bytes());
    }
    match input.rng.u8(0..4) {
        0 => text = input.jumble(WORDS, 12),
        1 => input.mutate(&mut text, WORDS, b"hunter2:joe"),
        _ => {}
    }
    let parsed = bounded("an auth file", text.len(), 64, || AuthFile::parse(&text))?;
    let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
    let users: Vec<_> =
        lines.iter().map_while(|line| line.iter().position(|&byte| byte == b':').map(|at| line.split_at(at))).collect();
    let is_one = users.len() == lines.len() && (1..=1_024).contains(&users.len());
    let wrong = |what: &str| Err(format!("{what}: {}", shown(&text)));
    let file = match parsed {
        Err(error) if format!("{error} {error:?}").contains(SECRET) => return wrong("a password is told"),
        Err(_) => return if is_one { wrong("it is refused") } else { Ok(()) },
        Ok(_) if !is_one => return wrong("it is taken"),
        Ok(file) => file,
    };
    if format!("{file:?}").contains(SECRET) {
        return wrong("a password is told");
    }
    // Of many a few: each is looked for among all.
    const TRIED: usize = 4;
    for (user, password) in users.iter().rev().take(TRIED).map(|(user, rest)| (*user, &rest[1..])) {
        let other = [password, b"x"].concat();
        let is_listed = users.iter().any(|(name, rest)| *name == user && rest[1..] == other);
        if !file.allows(user, password) || file.allows(user, &other) != is_listed {
            return wrong(&format!("{} is let in, or kept out", shown(user)));
        }
    }
    Ok(())
}

fn sound(wire: &Wire, talk: &Talk, sent_bytes: usize) -> Result<(), String> {
    if talk.is_hung {
        return Err("the connection neither reads nor ends".to_owned());
    }
    // Who has sent little holds little, whatever length was promised: a buffer that grows as it fills.
    if talk.held_bytes_max > 4 * sent_bytes + 1_024 {
        return Err(format!("a connection held {} bytes", talk.held_bytes_max));
    }
    if (wire.connections(), wire.held_bytes()) != (0, 0) {
        return Err(format!("{} connections and {} bytes are left", wire.connections(), wire.held_bytes()));
    }
    if wire.item_bytes() > MEMORY_BYTES_MAX as u64 {
        return Err(format!("items take {} bytes", wire.item_bytes()));
    }
    // Each reply is a line: the last one, too, is whole.
    let other = wire.talk([b"mn\r\n".to_vec()], usize::MAX);
    if other.replies != b"MN\r\n" { Err("another connection is not served".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffer that a thread answers into stayed with whoever sent half a line, hundreds of KB each, as others' replies made it grow anew.
    #[test]
    fn half_a_line_keeps_no_buffer_of_the_threads() {
        let wire = wire();
        let large = [&b"set L 0 0 200000\r\n"[..], &[b'v'; 200_000], b"\r\nget L\r\n"].concat();
        assert!(wire.talk([large], usize::MAX).replies.len() > 200_000);
        let half = wire.talk([b"get".to_vec(), b" ".to_vec()], usize::MAX);
        assert!(half.held_bytes_max < 1_024, "{} bytes", half.held_bytes_max);
    }
}
