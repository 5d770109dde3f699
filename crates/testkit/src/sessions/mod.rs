//! Sessions of memcached's protocol, generated, and their replies made comparable: what any two servers that speak it must answer alike.
//!
//! | file | what it holds |
//! |---|---|
//! | `generator` | [`Generator`]: sessions of classic and meta commands, from a seed |
//! | `normal` | [`normal`]: replies without what servers draw by themselves |
//! | `wire` | bytes to a server and back |

mod generator;
mod normal;
mod wire;

use std::net::SocketAddr;

use fastrand::Rng;

pub use generator::{Generator, TOKENS};
pub use normal::{LIFE_SHIFT_S, normal};
pub use wire::{ask, connect, exchange, finish, one_by_one, pieces, read_until};

/// Sends the requests to both servers: what differs, told. The first, a real memcached, gets them one by one, since its replies to some depend on whether
/// earlier ones were sent already (arithmetic on an item that a reply still holds makes it anew, without its marks); ours all at once, cut anywhere.
/// `remembers`: whether ours keeps that an item was fetched.
pub fn difference(
    [theirs, ours]: [SocketAddr; 2],
    requests: &[Vec<u8>],
    remembers: bool,
    rng: &mut Rng,
) -> Option<String> {
    let expected = one_by_one(theirs, requests);
    let request = &requests.concat();
    let got = exchange(ours, pieces(request, rng));
    let under = |shift| [&expected, &got].map(|reply| normal(reply, remembers, shift));
    let [expected, got] = match under(0) {
        [expected, got] if expected == got => return None,
        _ => under(LIFE_SHIFT_S),
    };
    let (request, expected, got) = (Shown(request), Shown(&expected), Shown(&got));
    (got.0 != expected.0).then(|| format!("request:   {request}\nmemcached: {expected}\nours:      {got}\n"))
}

/// Bytes on a line, however many.
struct Shown<'a>(&'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const BYTES_MAX: usize = 4_000;
        write!(f, "{}", self.0[..self.0.len().min(BYTES_MAX)].escape_ascii())
    }
}
