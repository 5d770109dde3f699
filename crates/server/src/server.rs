//! The server: listeners, workers, and the thread that looks after both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as channel;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_core::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::config::{Config, Runtime};
use crate::conn::Connection;
use crate::conns::{ConnState, Phase};
use crate::counters::{self, Count};
use crate::engine::Engine;
use crate::env::{Env, Settings};
use crate::files::Files;
use crate::listen::Open;
use crate::{http, notify, tls};

/// How often it is looked how much a store takes on disk.
const MEASURED_EVERY: Duration = Duration::from_secs(1);
/// How long the end waits for that where the store has failed: the engine may never answer then.
const FAILED_WAIT: Duration = Duration::from_secs(5);
/// Threads of a runtime that walk over items and may wait for the disk: further walks wait for one of them.
const WALKERS_MAX: usize = 4;
/// How often limits of time are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a listener rests that could not accept, for want of file descriptors mostly.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How often it is told that it cannot.
const ACCEPT_TOLD_EVERY: Duration = Duration::from_secs(10);
/// How long a client may take for the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// The most threads.
const THREADS_MAX: usize = 256;

/// A server that runs.
///
/// ```
/// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
/// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
/// # let engine = MemoryEngine::new(MemoryStore::new());
/// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
/// println!("listening on {}", server.addrs()[0]);
/// server.stop();
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    addrs: Vec<SocketAddr>,
    metrics: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    control: Option<JoinHandle<()>>,
}

/// A connection that was accepted, on its way to a worker.
enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// What there is before anybody is let in.
type Begun<E> = (Arc<Env<E>>, Open, Working<E>);
/// The threads that serve, and the one that looks at the disk.
type Working<E> = (Workers<E>, Option<Measuring>);

impl Server {
    /// Opens the listeners, starts the threads and returns.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for what cannot be listened on, files that cannot be read, and threads of 0 or over 256.
    ///
    /// ```
    /// use larder_server::{Config, Listen, MemoryEngine, Server};
    /// use larder_store_memory::MemoryStore;
    /// use std::io::{Read, Write};
    ///
    /// let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// let engine = MemoryEngine::new(MemoryStore::builder().bytes_max(64 << 20).build()?);
    /// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
    /// let mut client = std::net::TcpStream::connect(server.addrs()[0]).unwrap();
    /// client.write_all(b"set k 0 0 5\r\nhello\r\nquit\r\n").unwrap();
    /// let mut reply = String::new();
    /// client.read_to_string(&mut reply).unwrap();
    /// assert_eq!(reply, "STORED\r\n");
    /// server.stop();
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn start<E: Engine>(engine: E, config: Config) -> Result<Server> {
        if !(1..=THREADS_MAX).contains(&config.threads) {
            let detail = format!("{} threads; it takes 1 to {THREADS_MAX}", config.threads);
            return Err(Error::new(ErrorKind::Config, detail));
        }
        let control = Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
        let signals = {
            // Listened to before files are read, and before anybody knows of this server: what changes from here on is read again, and the first of them does not end the process.
            let _within = control.enter();
            config.signals.then(Signals::listen)
        };
        let (env, open, working) = match Server::begin(engine, &config) {
            Ok(begun) => begun,
            Err(error) => {
                // Whoever asked may be a task, and none may wait for a runtime's end.
                control.shutdown_background();
                return Err(error);
            }
        };
        let local = |listener: &std::net::TcpListener| listener.local_addr().ok();
        let addrs = open.tcp.iter().filter_map(|(listener, _)| local(listener)).collect();
        let metrics = open.metrics.as_ref().and_then(local);
        let stop = env.stop.clone();
        let thread = std::thread::Builder::new().name("larder-control".to_owned());
        let looking = move || {
            control.block_on(look_after(env, open, working, signals));
            // Files that are being read again may be on a disk that does not answer.
            control.shutdown_background();
        };
        let control = thread.spawn(looking).map_err(cannot_start)?;
        Ok(Server { addrs, metrics, stop, control: Some(control) })
    }

    /// Reads the files, opens the listeners and starts the threads that serve.
    fn begin<E: Engine>(engine: E, config: &Config) -> Result<Begun<E>> {
        let files = Files::new(config.auth.clone(), config.tls.clone())?;
        if config.signals {
            // Whoever has it started may have changed it since, and said so.
            files.read_users_again().transpose()?;
        }
        let open = Open::all(config)?;
        let settings = Settings::of(config, &open);
        let env = Env::new(engine, config.limits.clone(), config.threads, files, settings);
        let measuring = Measuring::start(&env)?;
        let workers = Workers::start(&env, config)?;
        Ok((env, open, (workers, measuring)))
    }

    /// The TCP addresses it listens on, in the order of the configuration.
    ///
    /// ```
    /// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
    /// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// # let engine = MemoryEngine::new(MemoryStore::new());
    /// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
    /// assert_ne!(server.addrs()[0].port(), 0); // the one that it was given
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Where it answers `/metrics`.
    ///
    /// ```
    /// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
    /// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// # let engine = MemoryEngine::new(MemoryStore::new());
    /// let metrics = Some("127.0.0.1:0".parse().unwrap());
    /// let server = Server::start(engine, Config { listen, metrics, threads: 1, ..Config::default() })?;
    /// assert!(server.metrics_addr().is_some());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Takes no more connections, lets requests under way finish, and ends.
    ///
    /// ```
    /// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
    /// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// # let engine = MemoryEngine::new(MemoryStore::new());
    /// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
    /// let addr = server.addrs()[0];
    /// server.stop();
    /// assert!(std::net::TcpStream::connect(addr).is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        self.join();
    }

    /// Something that tells it to end, from elsewhere.
    ///
    /// ```
    /// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
    /// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// # let engine = MemoryEngine::new(MemoryStore::new());
    /// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
    /// let stopper = server.stopper();
    /// std::thread::spawn(move || stopper.stop());
    /// server.wait();
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone() }
    }

    /// Waits until it has ended, by [`Stopper::stop`] or by a client's `shutdown`.
    ///
    /// ```
    /// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
    /// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// # let engine = MemoryEngine::new(MemoryStore::new());
    /// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
    /// server.stopper().stop();
    /// server.wait();
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(control) = self.control.take() {
            // The thread has said what it had to say.
            let _ = control.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.join();
    }
}

/// Tells a server to end.
///
/// ```
/// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server, Stopper};
/// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
/// # let engine = MemoryEngine::new(MemoryStore::new());
/// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
/// let stopper: Stopper = server.stopper();
/// stopper.clone().stop();
/// server.wait();
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: watch::Sender<bool>,
}

impl Stopper {
    /// Tells it.
    ///
    /// ```
    /// # use larder_server::{Config, Listen, MemoryEngine, MemoryStore, Server};
    /// # let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    /// # let engine = MemoryEngine::new(MemoryStore::new());
    /// let server = Server::start(engine, Config { listen, threads: 1, ..Config::default() })?;
    /// server.stopper().stop(); // and it ends in its own time
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Config, format!("a thread could not be started: {error}")).source(error)
}

/// The thread that keeps what must be waited for: nobody who asks for figures, nor who accepts or keeps time, waits for a sync that is under way.
struct Measuring {
    /// It ends when this is gone.
    goes_on: channel::Sender<()>,
    thread: JoinHandle<()>,
}

impl Measuring {
    /// `None` of a store where there is nothing to wait for.
    fn start<E: Engine>(env: &Arc<Env<E>>) -> Result<Option<Measuring>> {
        if !E::WAITS_FOR_DISK {
            return Ok(None);
        }
        // The first time before anybody can ask.
        env.measure();
        let (goes_on, ended) = channel::channel();
        let env = env.clone();
        let measuring = move || {
            while ended.recv_timeout(MEASURED_EVERY) == Err(channel::RecvTimeoutError::Timeout) {
                env.measure();
            }
        };
        let thread = std::thread::Builder::new().name("larder-measure".to_owned());
        Ok(Some(Measuring { goes_on, thread: thread.spawn(measuring).map_err(cannot_start)? }))
    }

    /// Ends it, so that the store is closed with the server. One that waits for an engine which cannot write any more is left behind, as the store leaves its own.
    async fn end<E: Engine>(self, env: &Env<E>) {
        drop(self.goes_on);
        let mut failed = None;
        while !self.thread.is_finished() {
            if env.engine.failure().is_some() && failed.get_or_insert_with(Instant::now).elapsed() > FAILED_WAIT {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // One that panicked has said so.
        let _ = self.thread.join();
    }
}

/// The threads that serve connections.
struct Workers<E: Engine> {
    /// One queue each; each holds no more than there may be connections.
    queues: Vec<mpsc::UnboundedSender<(Accepted, Listed<E>)>>,
    threads: Vec<JoinHandle<()>>,
    next: usize,
}

impl<E: Engine> Workers<E> {
    fn start(env: &Arc<Env<E>>, config: &Config) -> Result<Workers<E>> {
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        let (is_shared, runtimes) = match config.runtime {
            Runtime::PerCore => (false, config.threads),
            Runtime::Shared => (config.threads > 1, 1),
        };
        for worker in 0..runtimes {
            let (queue, jobs) = mpsc::unbounded_channel();
            let mut builder = if is_shared { Builder::new_multi_thread() } else { Builder::new_current_thread() };
            let (names, numbers) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let runtime = builder
                .worker_threads(config.threads)
                .max_blocking_threads(WALKERS_MAX)
                .thread_name_fn(move || format!("larder-{}", names.fetch_add(1, Ordering::Relaxed)))
                .on_thread_start(move || counters::count_apart(numbers.fetch_add(1, Ordering::Relaxed)))
                .enable_all()
                .build()
                .map_err(cannot_start)?;
            let env = env.clone();
            // Where the runtime has threads of its own, this one only hands connections to it.
            let name = if is_shared { "larder-serve".to_owned() } else { format!("larder-{worker}") };
            let thread = std::thread::Builder::new().name(name);
            let serving = thread.spawn(move || {
                if !is_shared {
                    counters::count_apart(worker);
                }
                runtime.block_on(work(env, jobs));
            });
            let serving = serving.map_err(cannot_start)?;
            queues.push(queue);
            threads.push(serving);
        }
        Ok(Workers { queues, threads, next: 0 })
    }

    fn give(&mut self, accepted: Accepted, listed: Listed<E>) {
        self.next = (self.next + 1) % self.queues.len();
        // A worker ends only after this.
        let _ = self.queues[self.next].send((accepted, listed));
    }
}

/// Starts a task for each connection that is given, until there are none to come and all are over.
async fn work<E: Engine>(env: Arc<Env<E>>, mut jobs: mpsc::UnboundedReceiver<(Accepted, Listed<E>)>) {
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            job = jobs.recv() => {
                let Some((accepted, listed)) = job else { break };
                let id = listed.state.id;
                let abort = tasks.spawn(serve(env.clone(), accepted, listed));
                env.conns.started(id, abort);
            }
            Some(_) = tasks.join_next() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// A connection that is on the list: taken off it wherever this ends, in its task or on the way there. One that was left on it would keep the server from its end.
struct Listed<E: Engine> {
    env: Arc<Env<E>>,
    state: Arc<ConnState>,
}

impl<E: Engine> Drop for Listed<E> {
    fn drop(&mut self) {
        self.env.conns.closed(self.state.id);
    }
}

async fn serve<E: Engine>(env: Arc<Env<E>>, accepted: Accepted, listed: Listed<E>) {
    let state = listed.state.clone();
    match accepted {
        Accepted::Unix(stream) => {
            if let Ok(stream) = UnixStream::from_std(stream) {
                Connection::new(env, state, stream).await;
            }
        }
        Accepted::Tcp(stream) => {
            // Replies are gathered already; waiting for more would only delay them.
            let Ok(stream) = stream.set_nodelay(true).and_then(|()| TcpStream::from_std(stream)) else { return };
            let Some(acceptor) = env.files.acceptor() else { return Connection::new(env, state, stream).await };
            match tokio::time::timeout(HANDSHAKE_MAX, tls::accept(&acceptor, stream)).await {
                Ok(Ok(stream)) => Connection::new(env, state, stream).await,
                _ => env.counters.mine().add(Count::TlsErrors, 1),
            }
        }
    }
}

/// Accepts, keeps time, and ends it all when told.
async fn look_after<E: Engine>(
    env: Arc<Env<E>>,
    open: Open,
    (mut workers, measuring): Working<E>,
    signals: Option<Signals>,
) {
    let (given, mut accepted) = mpsc::channel(1);
    let mut acceptors = tokio::task::JoinSet::new();
    for (listener, name) in open.tcp {
        acceptors.spawn(accept_tcp(env.clone(), listener, name, given.clone()));
    }
    for (listener, name) in open.unix {
        acceptors.spawn(accept_unix(env.clone(), listener, name, given.clone()));
    }
    let mut watchers = tokio::task::JoinSet::new();
    if let Some(Ok(listener)) = open.metrics.map(TcpListener::from_std) {
        watchers.spawn(http::serve(env.clone(), listener));
    }
    if let Some(Signals { ends, again }) = signals {
        acceptors.spawn(stop_by_signal(ends, env.stop.clone()));
        acceptors.spawn(read_again_by_signal(again, env.files.clone()));
    }
    let mut stop = env.stop.subscribe();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tracing::info!(listeners = ?env.settings.listeners, threads = env.threads, "serving");
    notify::tell("READY=1");
    let mut used = (env.since_start_ms(), 0);
    loop {
        tokio::select! {
            Some((stream, listed)) = accepted.recv() => workers.give(stream, listed),
            _ = tick.tick() => {
                keep_time(&env);
                if is_unused(&env, &mut used) {
                    tracing::info!("nobody is connected");
                    break;
                }
            }
            _ = stop.wait_for(|&stop| stop) => break,
        }
    }
    notify::tell("STOPPING=1");
    acceptors.shutdown().await;
    // One that was accepted and given to nobody is no request under way.
    drop(accepted);
    drain(&env).await;
    // Until here `/healthz` says that it ends.
    watchers.shutdown().await;
    workers.queues.clear();
    for thread in workers.threads {
        // A worker that panicked has said so.
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
    if let Some(measuring) = measuring {
        measuring.end(&env).await;
    }
    tracing::info!("ended");
}

/// What the system may ask for.
struct Signals {
    ends: Vec<Signal>,
    again: Option<Signal>,
}

impl Signals {
    /// From now on none of them does what it would do by itself, which is to end the process at once.
    fn listen() -> Signals {
        let listen = |kind: SignalKind| {
            let told = |error: &std::io::Error| tracing::warn!(%error, ?kind, "a signal cannot be listened to");
            signal(kind).inspect_err(told).ok()
        };
        let ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::user_defined1()];
        Signals { ends: ends.into_iter().filter_map(listen).collect(), again: listen(SignalKind::hangup()) }
    }
}

/// Ends the server when the system asks for it.
async fn stop_by_signal(mut ends: Vec<Signal>, stop: watch::Sender<bool>) {
    let any = std::future::poll_fn(|cx| {
        if ends.iter_mut().any(|end| end.poll_recv(cx).is_ready()) { Poll::Ready(()) } else { Poll::Pending }
    });
    any.await;
    stop.send_replace(true);
}

/// Has files read again whenever the system asks for it. That may wait for a disk, and so is done where nobody else waits.
async fn read_again_by_signal(again: Option<Signal>, files: Arc<Files>) {
    let Some(mut again) = again else { return };
    while again.recv().await.is_some() {
        let files = files.clone();
        // One that panicked has said so.
        _ = tokio::task::spawn_blocking(move || files.read_again()).await;
    }
}

/// Moves the clock on, and ends connections that are over a limit of time.
fn keep_time<E: Engine>(env: &Env<E>) {
    env.tick();
    let now_ms = env.coarse_ms.load(Ordering::Relaxed);
    let silent_ms = |conn: &ConnState| now_ms.saturating_sub(conn.last_ms.load(Ordering::Relaxed));
    let (idle_ms, slow_ms) = (env.limits.idle_timeout_ms, env.limits.slow_timeout_ms);
    let counters = env.counters.mine();
    if slow_ms > 0 {
        let takes_nothing = |conn: &ConnState| conn.phase() == Phase::Writing && silent_ms(conn) > slow_ms;
        let slow = env.conns.end(|conn| takes_nothing(conn) || conn.stuck_ms(now_ms) > slow_ms);
        counters.add(Count::SlowKicks, slow as u64);
    }
    if idle_ms > 0 {
        let is_asked = |conn: &ConnState| matches!(conn.phase(), Phase::Idle | Phase::Half) && conn.is_tcp();
        let idle = env.conns.end(|conn| is_asked(conn) && silent_ms(conn) > idle_ms);
        counters.add(Count::IdleKicks, idle as u64);
    }
}

/// True if the server is to end because nobody was connected for as long as it was told, or nobody is and it can write no more: whoever comes next starts it anew. `used`: when somebody last was, and how many had
/// been.
fn is_unused<E: Engine>(env: &Env<E>, used: &mut (u64, u64)) -> bool {
    let (now_ms, admitted, limit_ms) = (env.since_start_ms(), env.conns.admitted(), env.limits.exit_when_idle_ms);
    if env.conns.count() > 0 || admitted != used.1 {
        *used = (now_ms, admitted);
    }
    let has_failed = || env.conns.count() == 0 && env.engine.failure().is_some();
    limit_ms > 0 && (now_ms.saturating_sub(used.0) >= limit_ms || has_failed())
}

/// Lets requests under way finish; has idle connections end themselves, so that none is cut off from a request it has just read; ends all
/// that are left when the time is up. A handshake is no request.
async fn drain<E: Engine>(env: &Env<E>) {
    env.draining.store(true, Ordering::Relaxed);
    env.conns.wake_all();
    let began_ms = env.since_start_ms();
    tracing::info!(connections = env.conns.count(), "draining");
    while env.conns.count() > 0 {
        let late = env.since_start_ms().saturating_sub(began_ms) >= env.limits.drain_timeout_ms;
        env.conns.end(|conn| late || conn.is_new());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

type Given<E> = mpsc::Sender<(Accepted, Listed<E>)>;

async fn accept_tcp<E: Engine>(env: Arc<Env<E>>, listener: std::net::TcpListener, name: String, given: Given<E>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut told = None;
    loop {
        let accepted = listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
        match accepted {
            Ok((stream, peer)) => match admit(&env, format!("tcp:{peer}"), &name) {
                Some(listed) => _ = given.send((Accepted::Tcp(stream), listed)).await,
                None => refuse(stream),
            },
            Err(error) => rest(&error, &mut told).await,
        }
    }
}

async fn accept_unix<E: Engine>(
    env: Arc<Env<E>>,
    listener: std::os::unix::net::UnixListener,
    name: String,
    given: Given<E>,
) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let mut told = None;
    loop {
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => match admit(&env, name.clone(), &name) {
                Some(listed) => _ = given.send((Accepted::Unix(stream), listed)).await,
                None => refuse(stream),
            },
            Err(error) => rest(&error, &mut told).await,
        }
    }
}

fn admit<E: Engine>(env: &Arc<Env<E>>, peer: String, listener: &str) -> Option<Listed<E>> {
    let now_ms = env.coarse_ms.load(Ordering::Relaxed);
    let state = env.conns.admit(env.limits.connections_max, peer, listener, now_ms);
    let count = if state.is_some() { Count::TotalConnections } else { Count::RejectedConnections };
    env.counters.mine().add(count, 1);
    state.map(|state| Listed { env: env.clone(), state })
}

/// Says why, as memcached does; a client whose socket takes nothing is not waited for.
fn refuse(mut stream: impl std::io::Write) {
    let _ = stream.write(TOO_MANY);
}

/// Waits a little before the next try, and says why. `told`: when that was last said.
async fn rest(error: &std::io::Error, told: &mut Option<Instant>) {
    if told.is_none_or(|told| told.elapsed() >= ACCEPT_TOLD_EVERY) {
        *told = Some(Instant::now());
        tracing::warn!(%error, "could not accept a connection");
    }
    tokio::time::sleep(ACCEPT_REST).await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::config::Limits;
    use crate::engine::MemoryEngine;
    use crate::session::TIMED_EVERY;

    /// A thread of the runtime that all share once counted as the others did, on cache lines that all of them wrote.
    #[test]
    fn each_thread_counts_apart_whoever_runs_connections() {
        const THREADS: usize = 2;
        for runtime in [Runtime::Shared, Runtime::PerCore] {
            let engine = MemoryEngine::new(larder_store_memory::MemoryStore::new());
            let env = Env::new(engine, Limits::default(), THREADS, Files::default(), Settings::default());
            let config = Config { threads: THREADS, runtime, ..Config::default() };
            let mut workers = Workers::start(&env, &config).unwrap();
            let mut clients: Vec<_> = (0..8)
                .map(|_| {
                    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                    theirs.set_nonblocking(true).unwrap();
                    let state = env.conns.admit(8, String::new(), "", 0).unwrap();
                    workers.give(Accepted::Unix(theirs), Listed { env: env.clone(), state });
                    ours
                })
                .collect();
            let request = b"get none\r\n".repeat(4 * TIMED_EVERY as usize);
            let mut reply = vec![0; b"END\r\n".len() * 4 * TIMED_EVERY as usize];
            let (deadline, mut asked) = (Instant::now() + Duration::from_secs(20), 0);
            let apart = || env.counters.all.iter().filter(|counters| counters.has_read()).count();
            while apart() < THREADS {
                assert!(Instant::now() < deadline, "{runtime:?}: {} of {THREADS} threads count", apart());
                clients.iter_mut().for_each(|client| client.write_all(&request).unwrap());
                clients.iter_mut().for_each(|client| client.read_exact(&mut reply).unwrap());
                asked += clients.len() as u64 * 4 * u64::from(TIMED_EVERY);
            }
            assert!(!env.counters.all[0].has_read(), "{runtime:?}: that is for whoever is no worker");
            assert_eq!(env.counters.sum(Count::CmdGet), asked, "{runtime:?}");
            drop(clients);
            workers.queues.clear();
            workers.threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}
