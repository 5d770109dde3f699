//! What each server suffers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::{Deed, Victim};
use crate::history::Caused;
use crate::redis::RedisServer;
use crate::servers::Memcached;

/// How long a server stands still at the most: past the timeouts of hasty clients.
pub(super) const STOP_MS_MAX: u64 = 400;
/// How long a server that was killed stays away at the most.
pub(super) const AWAY_MS_MAX: u64 = 20;
/// What `flush_all 2` (memcached takes one of it off) and the seconds of memcached's clock take at the most.
const FLUSH_MS: u64 = 3_200;
/// Items that others write to fill a server of 2 or 3 MB, of a size each up to 1,200 bytes: twice what it holds.
const FILLERS: usize = 12_000;
const FILLER_BYTES_MAX: usize = 1_200;

/// A memcached, which keeps nothing.
pub struct Cache {
    server: Memcached,
    /// A flush that was asked for lands by then.
    flushed: Option<Instant>,
}

impl Cache {
    /// A memcached of any size.
    pub fn new(server: Memcached) -> Self {
        Self { server, flushed: None }
    }
}

impl Victim for Cache {
    fn mild(&self) -> Vec<Deed> {
        vec![Deed::Stop]
    }

    fn grave(&self) -> Vec<Deed> {
        vec![Deed::Kill, Deed::Flush, Deed::FlushLater]
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        match deed {
            Deed::Kill => {
                caused.losses.fetch_add(1, Ordering::SeqCst);
                self.server.kill9();
                sleep(Duration::from_millis(rng.u64(0..=AWAY_MS_MAX)));
                self.server.restart();
            }
            Deed::Stop => stand_still(rng, || self.server.stop(), || self.server.cont()),
            Deed::Flush | Deed::FlushLater => {
                caused.losses.fetch_add(1, Ordering::SeqCst);
                let is_later = deed == Deed::FlushLater;
                tell(&self.server, if is_later { b"flush_all 2\r\n" } else { b"flush_all\r\n" });
                self.flushed = is_later.then(|| Instant::now() + Duration::from_millis(FLUSH_MS));
            }
            other => panic!("memcached does not suffer {other:?}"),
        }
    }

    fn settle(&mut self, _caused: &Caused) {
        if let Some(flushed) = self.flushed.take() {
            sleep(flushed.saturating_duration_since(Instant::now()));
        }
    }
}

/// Several memcacheds that keys are spread over: one of them suffers at a time, the others go on.
pub struct Several {
    servers: Vec<Cache>,
    /// All deeds befall this one.
    only: Option<usize>,
}

impl Several {
    /// One or more.
    pub fn new(servers: impl IntoIterator<Item = Memcached>) -> Self {
        Self { servers: servers.into_iter().map(Cache::new).collect(), only: None }
    }

    /// One or more, of which the first alone suffers: two are never empty.
    pub fn of_which_one_suffers(servers: impl IntoIterator<Item = Memcached>) -> Self {
        Self { only: Some(0), ..Self::new(servers) }
    }
}

impl Victim for Several {
    fn mild(&self) -> Vec<Deed> {
        self.servers.first().map(Cache::mild).unwrap_or_default()
    }

    fn grave(&self) -> Vec<Deed> {
        self.servers.first().map(Cache::grave).unwrap_or_default()
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        let one = self.only.unwrap_or_else(|| rng.usize(..self.servers.len()));
        self.servers[one].suffer(deed, rng, caused);
    }

    fn settle(&mut self, caused: &Caused) {
        self.servers.iter_mut().for_each(|server| server.settle(caused));
    }
}

/// A memcached of 2 or 3 MB that others fill: it evicts, or with `-M` refuses.
pub struct Small {
    server: Memcached,
    evicts: bool,
}

impl Small {
    /// A server that was started with `-m 2` or so; `evicts` unless with `-M`.
    pub fn new(server: Memcached, evicts: bool) -> Self {
        Self { server, evicts }
    }
}

impl Victim for Small {
    fn mild(&self) -> Vec<Deed> {
        if self.evicts { vec![Deed::Stop] } else { vec![Deed::Stop, Deed::Fill] }
    }

    fn grave(&self) -> Vec<Deed> {
        if self.evicts { vec![Deed::Fill] } else { Vec::new() }
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        match deed {
            Deed::Stop => stand_still(rng, || self.server.stop(), || self.server.cont()),
            Deed::Fill => {
                if self.evicts {
                    caused.losses.fetch_add(1, Ordering::SeqCst);
                }
                let mut words = Vec::new();
                let value = [b'x'; FILLER_BYTES_MAX];
                for filler in 0..FILLERS {
                    let bytes = rng.usize(1..=FILLER_BYTES_MAX);
                    words.extend_from_slice(format!("set filler{filler} 0 0 {bytes} noreply\r\n").as_bytes());
                    words.extend_from_slice(&value[..bytes]);
                    words.extend_from_slice(b"\r\n");
                }
                tell(&self.server, &words);
                if !self.evicts {
                    // Full for a while; then there is room again, as where somebody notices.
                    sleep(Duration::from_millis(rng.u64(0..=AWAY_MS_MAX)));
                    let words: String =
                        (0..FILLERS).map(|filler| format!("delete filler{filler} noreply\r\n")).collect();
                    tell(&self.server, words.as_bytes());
                }
            }
            other => panic!("a full memcached does not suffer {other:?}"),
        }
    }
}

/// A Redis or Valkey.
pub struct Redis {
    server: RedisServer,
    keeps: bool,
}

impl Redis {
    /// A server that `keeps` what it acknowledged over a crash (`appendfsync always`), or saves nothing.
    pub fn new(server: RedisServer, keeps: bool) -> Self {
        Self { server, keeps }
    }
}

impl Victim for Redis {
    fn mild(&self) -> Vec<Deed> {
        if self.keeps { vec![Deed::Stop, Deed::Kill] } else { vec![Deed::Stop] }
    }

    fn grave(&self) -> Vec<Deed> {
        if self.keeps { vec![Deed::Flush] } else { vec![Deed::Flush, Deed::Kill] }
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        match deed {
            Deed::Stop => stand_still(rng, || self.server.stop(), || self.server.cont()),
            Deed::Kill => {
                if !self.keeps {
                    caused.losses.fetch_add(1, Ordering::SeqCst);
                }
                self.server.kill9();
                sleep(Duration::from_millis(rng.u64(0..=AWAY_MS_MAX)));
                self.server.restart();
            }
            Deed::Flush => {
                caused.losses.fetch_add(1, Ordering::SeqCst);
                self.server.command(&["FLUSHALL"]);
            }
            other => panic!("a Redis does not suffer {other:?}"),
        }
    }
}

/// Stops a process for a time drawn, and lets it go on.
pub(super) fn stand_still(rng: &mut Rng, stop: impl FnOnce(), cont: impl FnOnce()) {
    stop();
    sleep(Duration::from_millis(rng.u64(1..=STOP_MS_MAX)));
    cont();
}

/// Sends commands on a connection of its own, and returns once they are carried out.
fn tell(server: &Memcached, words: &[u8]) {
    let mut stream = TcpStream::connect(server.addr()).expect("a server that listens");
    stream.write_all(words).expect("a server that reads");
    stream.shutdown(Shutdown::Write).expect("a connection that stands");
    // It closes once it has carried out all it was sent.
    let _ = stream.read_to_end(&mut Vec::new());
}
