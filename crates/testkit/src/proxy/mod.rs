//! The fault proxy: a TCP proxy in front of a server that loses, delays, cuts and reorders on demand.
//!
//! Faults are decided a *chunk*: what one read from the client returned. A small request sent on an idle connection is
//! one chunk; pipelined requests may share one. Every decision is a function of the seed, the number of the connection
//! and the number of the chunk in it, so other connections do not change it; where a stream falls into chunks, however,
//! depends on timing.

mod link;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_local;

use crate::background::{Background, listen};

/// Connections at one time; a client beyond is closed at accept.
const CONNECTIONS_MAX: u64 = 4_096;
/// Faults that may wait for their chunk ([`Proxy::next`]).
const NEXT_MAX: usize = 1_024;
/// Pause after a failed accept, which is the process out of file descriptors.
const ACCEPT_PAUSE_MS: u64 = 10;
/// How often it is looked at whether everything is carried out.
const DRAIN_POLL_MS: u64 = 1;
/// Reply bytes of a chunk among which a random reply cut falls.
const RANDOM_CUT_REPLY_BYTES: u64 = 64;

/// What the client meets after a lost request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection is closed.
    Close,
    /// The connection stays open and silent.
    Hang,
}

/// When a held request goes on to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Once the client has closed its connection.
    UntilClientCloses,
    /// After this time, whether or not the client still waits (its connection is closed then).
    Ms(u64),
    /// The client's connection is closed at once, and the request goes on after this time.
    CutThenMs(u64),
}

/// Which half of a connection is gone while the other stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The way up. The chunk is delivered and answered; then the server sees the end of the stream, and what the client goes on to send is
    /// thrown away without a word: a peer that has crashed, and whose machine has not said so.
    Up,
    /// The way down. The client sees the end of the replies at once; the chunk, and what it sends all the same, is delivered and carried out.
    Down,
}

/// What happens to a chunk, and but for `Pass`, `Delay`, `Duplicate` and `Behind` to everything after it on that connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the chunk is delivered, its reply returned.
    Pass,
    /// The chunk is delivered after this time, and so is everything behind it.
    Delay {
        /// Added to each chunk it is decided for.
        ms: u64,
    },
    /// The connection is closed at once; at accept, before a byte was read.
    Close,
    /// The connection stays open; nothing is read any more, nothing answered.
    Hang,
    /// This chunk and all later ones are answered with these bytes; nothing reaches the server.
    Garbage(Vec<u8>),
    /// Of this chunk and what follows, this many bytes are delivered and no more. The server then sees the end of the
    /// stream, replies to what was complete are returned, and the connection is closed.
    CutRequest {
        /// Bytes delivered, from the start of this chunk.
        after_bytes: u64,
    },
    /// Everything is delivered; of the replies from here on this many bytes are returned, and in place of the next one
    /// the connection is closed.
    CutReply {
        /// Bytes returned.
        after_bytes: u64,
    },
    /// The chunk is thrown away.
    LoseRequest(Then),
    /// The chunk is delivered and carried out, the replies from here on are thrown away. `Close` comes only after the
    /// server has carried it out.
    LoseReply(Then),
    /// The chunk, and what follows before the client gives up, is held and delivered late; no reply is returned.
    DeliverLate(Hold),
    /// One half of the connection is closed, the other stays open.
    HalfOpen(Half),
    /// The chunk is delivered, and once more after this time, on a connection of its own whose replies nobody gets: what a router between does
    /// that sends again what it has not seen answered. Only for chunks of whole requests, which any connection may send.
    Duplicate {
        /// From the first delivery to the second.
        ms: u64,
    },
    /// The chunk is delivered once the next one of another connection was answered, or after this time where none is: two connections' requests
    /// are carried out in the other order. One chunk at a time waits so; what is to wait beside it passes.
    Behind {
        /// The longest wait.
        ms_max: u64,
    },
}

/// The point at which a fault is decided.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Number of the connection, from 0, in the order of accepting.
    pub connection: u64,
    /// Number of the chunk in its connection, from 0; `None` at accept.
    pub chunk: Option<u64>,
    /// The chunk; empty at accept.
    pub bytes: &'a [u8],
    /// The chunk before it on this connection ended a line, or there was none: a request may begin here.
    pub begins: bool,
}

impl Moment<'_> {
    /// The chunk is whole requests, as far as its ends tell: a small one between two ends of lines.
    pub fn is_whole(&self) -> bool {
        self.begins && self.bytes.len() < WHOLE_BYTES_MAX && self.bytes.ends_with(b"\r\n")
    }
}

/// Chunks from here on may be parts of a value.
const WHOLE_BYTES_MAX: usize = 16 * 1024;

/// Probabilities a chunk, for [`Proxy::random`]; they add up to 1 at the most.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of losing the request and closing.
    pub lost_request: f64,
    /// Of carrying out the request, losing its reply and closing.
    pub lost_reply: f64,
    /// Of closing and carrying out the request afterwards.
    pub late_delivery: f64,
    /// Of delivering only a part of the chunk and closing, the cut at any of its bytes.
    pub cut_request: f64,
    /// Of returning only a part of the replies and closing, the cut at one of their first 64 bytes.
    pub cut_reply: f64,
    /// Of a delay.
    pub delay: f64,
    /// Of losing one half of the connection, either.
    pub half_open: f64,
    /// Of a second delivery, of chunks that are whole requests ([`Moment::is_whole`]); others pass.
    pub duplicate: f64,
    /// Of delivering behind a chunk of another connection.
    pub reorder: f64,
    /// The longest time a late delivery is held after the close, and a second one comes after the first.
    pub late_ms_max: u64,
    /// The longest delay, and the longest wait for another connection.
    pub delay_ms_max: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Self::NONE
    }
}

impl Rates {
    /// No fault; late by up to 50 ms, and delayed by up to 5, where one is asked for. The default, for constants.
    pub const NONE: Self = Self {
        lost_request: 0.0,
        lost_reply: 0.0,
        late_delivery: 0.0,
        cut_request: 0.0,
        cut_reply: 0.0,
        delay: 0.0,
        half_open: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        late_ms_max: 50,
        delay_ms_max: 5,
    };

    fn roll(&self, moment: &Moment<'_>, rng: &mut Rng) -> Fault {
        if moment.chunk.is_none() {
            return Fault::Pass;
        }
        let mut roll = rng.f64();
        let mut hit = |rate: f64| {
            roll -= rate;
            roll < 0.0
        };
        if hit(self.lost_request) {
            Fault::LoseRequest(Then::Close)
        } else if hit(self.lost_reply) {
            Fault::LoseReply(Then::Close)
        } else if hit(self.late_delivery) {
            Fault::DeliverLate(Hold::CutThenMs(rng.u64(0..=self.late_ms_max)))
        } else if hit(self.cut_request) {
            Fault::CutRequest { after_bytes: rng.u64(0..moment.bytes.len().max(1) as u64) }
        } else if hit(self.cut_reply) {
            Fault::CutReply { after_bytes: rng.u64(0..RANDOM_CUT_REPLY_BYTES) }
        } else if hit(self.delay) {
            Fault::Delay { ms: rng.u64(0..=self.delay_ms_max) }
        } else if hit(self.half_open) {
            Fault::HalfOpen(if rng.bool() { Half::Up } else { Half::Down })
        } else if hit(self.duplicate) && moment.is_whole() {
            Fault::Duplicate { ms: rng.u64(0..=self.late_ms_max) }
        } else if hit(self.reorder) {
            Fault::Behind { ms_max: self.delay_ms_max }
        } else {
            Fault::Pass
        }
    }

    fn each(&self) -> [f64; 9] {
        [
            self.lost_request,
            self.lost_reply,
            self.late_delivery,
            self.cut_request,
            self.cut_reply,
            self.delay,
            self.half_open,
            self.duplicate,
            self.reorder,
        ]
    }
}

/// What a proxy has done so far. Faults are counted when they set in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Connections not yet closed on both sides, late deliveries among them.
    pub connections_open: u64,
    /// Chunks read from clients.
    pub chunks: u64,
    /// Bytes sent on to the server.
    pub request_bytes: u64,
    /// Bytes sent back to clients.
    pub reply_bytes: u64,
    /// [`Fault::Delay`].
    pub delays: u64,
    /// [`Fault::Close`].
    pub closes: u64,
    /// [`Fault::Hang`].
    pub hangs: u64,
    /// [`Fault::Garbage`].
    pub garbage: u64,
    /// [`Fault::CutRequest`].
    pub request_cuts: u64,
    /// [`Fault::CutReply`].
    pub reply_cuts: u64,
    /// [`Fault::LoseRequest`].
    pub lost_requests: u64,
    /// [`Fault::LoseReply`].
    pub lost_replies: u64,
    /// [`Fault::DeliverLate`].
    pub late_deliveries: u64,
    /// [`Fault::HalfOpen`].
    pub half_opens: u64,
    /// [`Fault::Duplicate`].
    pub duplicates: u64,
    /// [`Fault::Behind`], of chunks that another connection's did overtake.
    pub reorders: u64,
    /// Late and second deliveries that the server has not carried out yet.
    pub late_pending: u64,
}

impl Counts {
    /// All faults but delays and what was reordered, which breaks no promise of a network.
    pub fn faults(&self) -> u64 {
        self.closes
            + self.hangs
            + self.garbage
            + self.request_cuts
            + self.reply_cuts
            + self.lost_requests
            + self.lost_replies
            + self.late_deliveries
            + self.half_opens
            + self.duplicates
    }

    fn add(&mut self, fault: &Fault) {
        let count = match fault {
            Fault::Pass | Fault::Behind { .. } => return,
            Fault::HalfOpen(_) => &mut self.half_opens,
            Fault::Duplicate { .. } => &mut self.duplicates,
            Fault::Delay { .. } => &mut self.delays,
            Fault::Close => &mut self.closes,
            Fault::Hang => &mut self.hangs,
            Fault::Garbage(_) => &mut self.garbage,
            Fault::CutRequest { .. } => &mut self.request_cuts,
            Fault::CutReply { .. } => &mut self.reply_cuts,
            Fault::LoseRequest(_) => &mut self.lost_requests,
            Fault::LoseReply(_) => &mut self.lost_replies,
            Fault::DeliverLate(_) => &mut self.late_deliveries,
        };
        *count += 1;
    }
}

/// How connections are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Now,
    /// Once the server has carried out what it was sent.
    Drain,
}

type Decide = Box<dyn FnMut(&Moment<'_>, &mut Rng) -> Fault + Send>;

struct Script {
    seed: u64,
    decide: Decide,
    /// Come before `decide`, a chunk each.
    next: VecDeque<Fault>,
}

/// What the handle and the connections share.
struct Shared {
    /// Locked for a look.
    upstream: Mutex<SocketAddr>,
    /// Locked for one decision.
    script: Mutex<Script>,
    /// Locked for one addition.
    counts: Mutex<Counts>,
    /// The numbers of live connections. Locked for a look or a change.
    open: Mutex<BTreeSet<u64>>,
    /// Changed to cut all connections.
    cut: watch::Sender<Cut>,
    /// Chunks delivered, on all connections.
    delivered: AtomicU64,
    /// The connection that was answered last, and the number of the last chunk that it had delivered by then.
    answered: watch::Sender<(u64, u64)>,
    /// A chunk waits for one of another connection. Locked for a look.
    waits: Mutex<bool>,
}

impl Shared {
    fn upstream(&self) -> SocketAddr {
        *lock(&self.upstream)
    }

    fn decide(&self, moment: &Moment<'_>) -> Fault {
        let mut script = lock(&self.script);
        let mut rng = Rng::with_seed(mix(script.seed, moment));
        (script.decide)(moment, &mut rng)
    }

    /// The fault that waits for a chunk, if any.
    fn queued(&self) -> Option<Fault> {
        lock(&self.script).next.pop_front()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.counts));
    }
}

/// A panic in a script poisons its lock; the counts and the queue stay meaningful.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One seed a decision, spread by odd multipliers (those of SplitMix64 and of its authors' MurmurHash finalizer).
fn mix(seed: u64, moment: &Moment<'_>) -> u64 {
    let chunk = moment.chunk.map_or(0, |chunk| chunk + 1);
    seed ^ moment.connection.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ chunk.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A running proxy on a loopback port of its own; dropping it closes everything, late deliveries included.
///
/// ```
/// use larder_testkit::proxy::{Fault, Proxy, Then};
/// use larder_testkit::servers::{Memcached, Version};
/// use std::io::{Read, Write};
/// use std::net::TcpStream;
///
/// let server = Memcached::start(Version::New, &[]);
/// let proxy = Proxy::start(server.addr());
/// proxy.next(Fault::LoseReply(Then::Close));
///
/// let mut client = TcpStream::connect(proxy.addr())?;
/// client.write_all(b"set k 0 0 1\r\nv\r\n")?;
/// assert_eq!(client.read(&mut [0; 64])?, 0); // no reply, and yet:
/// assert_eq!(server.stat("curr_items"), 1);
/// # Ok::<_, std::io::Error>(())
/// ```
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _thread: Background,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("addr", &self.addr)
            .field("upstream", &self.shared.upstream())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy that passes everything on to `upstream`, on a thread of its own: no runtime is needed.
    ///
    /// # Panics
    /// When no port or thread is to be had.
    pub fn start(upstream: SocketAddr) -> Self {
        let (listener, addr) = listen();
        let script = Script { seed: 0, decide: Box::new(|_, _| Fault::Pass), next: VecDeque::new() };
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            script: Mutex::new(script),
            counts: Mutex::default(),
            open: Mutex::default(),
            cut: watch::Sender::new(Cut::Now),
            delivered: AtomicU64::new(0),
            answered: watch::Sender::new((0, 0)),
            waits: Mutex::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = Background::run("fault-proxy", move || async move {
            let listener = TcpListener::from_std(listener).expect("a listener on this runtime");
            accept(listener, accepting).await;
        });
        Self { addr, shared, _thread: thread }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on every new connection meets this fault, at accept (`Close`, `Hang`) or at its first chunk (the
    /// others); live connections pass. `Fault::Pass` ends faults, of [`Proxy::random`] too.
    ///
    /// ```
    /// use larder_testkit::proxy::{Fault, Proxy};
    /// # let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    /// let proxy = Proxy::start(nobody);
    /// proxy.set(Fault::Hang);
    /// ```
    pub fn set(&self, fault: Fault) {
        self.script(0, move |moment, _| if moment.chunk.is_none() { fault.clone() } else { Fault::Pass });
    }

    /// The next chunk read from any client meets this fault, whatever else is set. Several calls queue up; the example
    /// of [`Proxy`] uses it.
    ///
    /// # Panics
    /// When 1,024 faults are queued already.
    pub fn next(&self, fault: Fault) {
        let mut script = lock(&self.shared.script);
        assert!(script.next.len() < NEXT_MAX, "more than {NEXT_MAX} faults are queued");
        script.next.push_back(fault);
    }

    /// Lets a function decide from now on, at every accept and chunk. The generator it is given is seeded from `seed`,
    /// the connection and the chunk.
    ///
    /// ```
    /// use larder_testkit::proxy::{Fault, Proxy, Then};
    /// # let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    /// let proxy = Proxy::start(nobody);
    /// proxy.script(0, |moment, _rng| match moment.bytes.starts_with(b"ms ") {
    ///     true => Fault::LoseReply(Then::Close),
    ///     false => Fault::Pass,
    /// });
    /// ```
    pub fn script(&self, seed: u64, decide: impl FnMut(&Moment<'_>, &mut Rng) -> Fault + Send + 'static) {
        let mut script = lock(&self.shared.script);
        script.seed = seed;
        script.decide = Box::new(decide);
    }

    /// Random faults from now on, all drawn from `seed`, which is printed.
    ///
    /// ```
    /// use larder_testkit::proxy::{Proxy, Rates};
    /// # let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    /// let proxy = Proxy::start(nobody);
    /// proxy.random(7, Rates { lost_reply: 0.03, late_delivery: 0.03, ..Rates::default() });
    /// ```
    ///
    /// # Panics
    /// When a rate is negative or the rates add up to more than 1.
    pub fn random(&self, seed: u64, rates: Rates) {
        eprintln!("fault proxy: seed {seed}, {rates:?}");
        self.draw(seed, rates);
    }

    /// The same without a word, for whoever prints its seeds himself.
    ///
    /// # Panics
    /// As [`random`](Self::random).
    pub fn draw(&self, seed: u64, rates: Rates) {
        let each = rates.each();
        let is_fair = each.iter().all(|&rate| rate >= 0.0) && each.iter().sum::<f64>() <= 1.0;
        assert!(is_fair, "not probabilities: {rates:?}");
        self.script(seed, move |moment, rng| rates.roll(moment, rng));
    }

    /// New connections go to another server from now on, as where a name moves to the replica that took over; live ones stay where they are.
    ///
    /// ```
    /// use larder_testkit::proxy::Proxy;
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// use std::io::{Read, Write};
    ///
    /// let server = Memcached::start(Version::Old, &[]);
    /// # let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    /// let proxy = Proxy::start(nobody);
    /// proxy.redirect(server.addr());
    /// let mut client = std::net::TcpStream::connect(proxy.addr())?;
    /// client.write_all(b"version\r\n")?;
    /// assert!(client.read(&mut [0; 64])? > 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn redirect(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// Closes all live connections now. Late deliveries under way lose their client, and are delivered all the same.
    ///
    /// ```
    /// use larder_testkit::proxy::{Fault, Proxy};
    /// use std::io::Read;
    /// # let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    ///
    /// let proxy = Proxy::start(nobody);
    /// proxy.set(Fault::Hang);
    /// let mut client = std::net::TcpStream::connect(proxy.addr())?;
    /// while proxy.counts().hangs == 0 {
    ///     std::thread::yield_now();
    /// }
    /// proxy.cut_all();
    /// assert_eq!(client.read(&mut [0; 1])?, 0);
    /// # Ok::<_, std::io::Error>(())
    /// ```
    pub fn cut_all(&self) {
        self.shared.cut.send_replace(Cut::Now);
    }

    /// Closes all live connections of clients, and returns once the server has carried out all that was sent to it over any connection, late
    /// deliveries too; a server that stands still is given 2 s. New connections meet no faults any more.
    ///
    /// ```
    /// use larder_testkit::proxy::Proxy;
    /// use larder_testkit::servers::{Memcached, Version};
    /// use std::io::Write;
    ///
    /// let server = Memcached::start(Version::New, &[]);
    /// let proxy = Proxy::start(server.addr());
    /// let mut client = std::net::TcpStream::connect(proxy.addr())?;
    /// client.write_all(b"set k 0 0 1\r\nv\r\n")?;
    /// while proxy.counts().chunks == 0 {
    ///     std::thread::yield_now();
    /// }
    /// proxy.drain();
    /// assert_eq!(server.stat("curr_items"), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn drain(&self) {
        self.set(Fault::Pass);
        lock(&self.shared.script).next.clear();
        // Clients may connect anew at once.
        let before = self.counts().connections;
        self.shared.cut.send_replace(Cut::Drain);
        let first_open = || lock(&self.shared.open).first().copied();
        while first_open().is_some_and(|first| first < before) || self.counts().late_pending > 0 {
            std::thread::sleep(Duration::from_millis(DRAIN_POLL_MS));
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
            continue;
        };
        // Before it is among those that a drain waits for: what is sent to them from then on reaches it.
        let cut = shared.cut.subscribe();
        let mut counts = lock(&shared.counts);
        if counts.connections_open >= CONNECTIONS_MAX {
            continue;
        }
        let number = counts.connections;
        counts.connections += 1;
        counts.connections_open += 1;
        // Before the count is seen by others.
        lock(&shared.open).insert(number);
        drop(counts);
        let shared = Arc::clone(&shared);
        spawn_local(async move {
            link::serve(client, number, cut, &shared).await;
            shared.count(|counts| counts.connections_open -= 1);
            lock(&shared.open).remove(&number);
        });
    }
}
