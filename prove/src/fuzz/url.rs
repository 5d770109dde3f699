//! URLs of stores: opened or refused, and no password told, wherever it stands.

use std::fmt::Debug;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use larder_core::Result;
use larder_store_memcached::Config;
use larder_store_redis::ClusterConfig;

use super::{Input, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![Target::new("URLs", || urls)]
}

const SCHEMES: &[&str] = &[
    "memory:",
    "file:",
    "memcached://",
    "memcached+tls://",
    "memcached+unix://",
    "redis://",
    "rediss://",
    "redis+unix://",
    "redis-cluster://",
    "rediss-cluster://",
    "memcahced://",
    "redis:",
    "http://",
    "://",
    "",
];
const HOSTS: &[&str] = &[
    "cache",
    "cache:11211",
    "a,b",
    "a:1,b:2,[::1]:3",
    "[::1]",
    "[::1",
    "127.0.0.1:0",
    ":99999",
    "/tmp/x.sock",
    "/",
    "",
    "cache:11211/3",
    "h%20h",
    "%zz",
    "\u{fc}",
];
const OPTIONS: &[&str] = &[
    "timeout_ms",
    "connect_timeout_ms",
    "connections",
    "hash",
    "weights",
    "fleet",
    "dialect",
    "bytes_max",
    "evict",
    "shards",
    "value_bytes_max",
    "cache_bytes",
    "create",
    "reserve_bytes",
    "share",
    "sync",
    "wait_ms",
    "witness",
    "tls_ca",
    "database",
    "no_such",
];
const VALUES: &[&str] = &[
    "1",
    "0",
    "true",
    "false",
    "64m",
    "2g",
    "9999999999999999999g",
    "ketama",
    "1,3",
    "always",
    "every:5ms",
    "",
    "=",
    "/tmp/x",
    "-1",
];
const WORDS: &[&[u8]] =
    &[b"://", b":", b"@", b"?", b"&", b"=", b"#", b"/", b"[", b"]", b",", b"%41", b"..", b"\xc3\xbc", b" "];
/// What people have in their passwords.
const BESIDE: &[&str] = &["", ":", "@", "#", "%", "%zz", "?", "&", "=", ",", "\u{fc}"];
/// No URL has it but as a password.
const SECRET: &str = "hunter2";

fn url(input: &mut Input, has_secret: bool) -> String {
    let user = match (has_secret, input.rng.u8(0..4)) {
        (true, 0) => format!(":{SECRET}@"),
        (true, 1) => format!("joe:{SECRET}@"),
        // With what should have been percent-encoded.
        (true, _) => format!("joe:{}{SECRET}{}@", input.pick(BESIDE), input.pick(BESIDE)),
        (false, 0) => "joe:other@".to_owned(),
        (false, _) => String::new(),
    };
    let scheme = input.pick(SCHEMES);
    // A folder has no users: what stands there is its path.
    let scheme = if has_secret && scheme == "file:" { "redis:" } else { scheme };
    let mut url = format!("{scheme}{user}{}", input.pick(HOSTS));
    for at in 0..input.rng.usize(0..4) {
        let number = input.number().to_string();
        let value = if input.rng.bool() { input.pick(VALUES) } else { &number };
        url += &format!("{}{}={value}", if at == 0 { "?" } else { "&" }, input.pick(OPTIONS));
    }
    url
}

/// What each of the parsers says, and how what it takes shows itself: to whichever of them a URL is given, also one of another store.
fn said(url: &str) -> [Option<String>; 4] {
    fn told<T: Debug>(parsed: Result<T>) -> Option<String> {
        match parsed {
            // How it shows itself may be logged.
            Ok(config) => Some(format!("{config:?}")),
            Err(error) => Some(format!("{error} {error:?}")),
        }
    }
    let opened = match url.split_once(':') {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("memory") || !url.contains("//") => polled(url),
        _ => None,
    };
    [
        opened,
        told(Config::from_url(url)),
        told(larder_store_redis::Config::from_url(url)),
        told(ClusterConfig::from_url(url)),
    ]
}

/// Opens it where that takes no network: what the error says.
fn polled(url: &str) -> Option<String> {
    // A folder would be made.
    if url.to_ascii_lowercase().starts_with("file:") {
        return larder::durable_options(url).err().map(|error| error.to_string());
    }
    match pin!(larder::open(url)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => Some(format!("{error} {error:?}")),
        _ => None,
    }
}

fn urls(input: &mut Input) -> std::result::Result<(), String> {
    let has_secret = input.one_in(3);
    let mut bytes = url(input, has_secret).into_bytes();
    // Where things were torn apart nobody can tell which word was the password.
    let is_mutated = !has_secret && input.rng.bool();
    if is_mutated {
        let other = url(input, false);
        input.mutate(&mut bytes, WORDS, other.as_bytes());
    }
    let url = String::from_utf8_lossy(&bytes).into_owned();
    // A store in the process may be asked for with many shards.
    let said = bounded("a URL", 64 << 20, 1, || said(&url))?;
    match said.into_iter().flatten().find(|said| said.contains(SECRET)) {
        Some(said) => Err(format!("{} shows its password: {said}", shown(&bytes))),
        None => Ok(()),
    }
}
