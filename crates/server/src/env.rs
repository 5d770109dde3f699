//! What all connections share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::config::{ClientCerts, Config, Limits, Listen};
use crate::conns::Conns;
use crate::counters::{AllCounters, Count};
use crate::engine::{Engine, Figures};
use crate::files::Files;
use crate::listen::Open;

/// A delayed flush that is not asked for.
const NO_FLUSH: i64 = i64::MAX;

/// So many seconds before its start memcached's clock begins: to an earlier moment a `flush_all` removes nothing.
const CLOCK_BEFORE_START_S: u64 = 61;

/// What only the command line knows, for `stats settings`.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) listeners: Vec<String>,
    /// The first TCP port; 0 for none.
    pub(crate) tcp_port: u16,
    /// The first unix socket and its access.
    pub(crate) unix: Option<(String, u32)>,
    pub(crate) ssl: bool,
    /// memcached's number: 0 for clients that are not asked for certificates, 1 for those that are, 2 for those that must have one.
    pub(crate) ssl_verify_mode: u8,
    pub(crate) ssl_only_1_3: bool,
}

impl Settings {
    pub(crate) fn of(config: &Config, open: &Open) -> Settings {
        let tcp = open.tcp.iter().map(|(_, name)| name.clone());
        let unix = config.listen.iter().find_map(|listen| match listen {
            Listen::Unix(path, mode) => Some((path.display().to_string(), *mode)),
            _ => None,
        });
        let port = open.tcp.first().and_then(|(listener, _)| listener.local_addr().ok());
        Settings {
            listeners: tcp.chain(open.unix.iter().map(|(_, name)| name.clone())).collect(),
            tcp_port: port.map_or(0, |addr| addr.port()),
            unix,
            ssl: config.tls.is_some(),
            ssl_verify_mode: config.tls.as_ref().map_or(0, |tls| match tls.clients {
                ClientCerts::Unasked => 0,
                ClientCerts::Asked(_) => 1,
                ClientCerts::Required(_) => 2,
            }),
            ssl_only_1_3: config.tls.as_ref().is_some_and(|tls| tls.only_1_3),
        }
    }
}

/// What all connections share.
pub(crate) struct Env<E> {
    pub(crate) engine: E,
    pub(crate) limits: Limits,
    pub(crate) counters: AllCounters,
    pub(crate) conns: Conns,
    pub(crate) started: Instant,
    pub(crate) settings: Settings,
    pub(crate) threads: usize,
    /// Apart, since who reads them again may have to wait for long, and is to keep no engine.
    pub(crate) files: Arc<Files>,
    pub(crate) memory_bytes_max: AtomicUsize,
    pub(crate) verbosity: AtomicU32,
    /// Bytes of requests and replies that connections hold because they are not finished.
    pub(crate) held_bytes: AtomicUsize,
    /// Bytes that their requests have written and that are in memory until they are on disk, and the last of what they wait for.
    pub(crate) unsettled_bytes: AtomicUsize,
    pub(crate) waits_for: AtomicU64,
    /// Bytes of the store's files, as [`Env::measure`] found them last.
    disk_bytes: AtomicU64,
    /// Backups that are being sent.
    pub(crate) backups: Arc<AtomicUsize>,
    /// Ms since the start, as of the last tick: for what need not be exact.
    pub(crate) coarse_ms: AtomicU64,
    /// When what was stored before it is to go, in ms since the start.
    flush_at_ms: AtomicI64,
    /// What a delayed flush that was due waits for until it is durable; 0 for nothing. See [`Engine::touched`].
    flush_waits_for: AtomicU64,
    /// True once no new work is begun.
    pub(crate) draining: AtomicBool,
    /// Told to end.
    pub(crate) stop: watch::Sender<bool>,
}

impl<E: Engine> Env<E> {
    pub(crate) fn new(engine: E, limits: Limits, threads: usize, files: Files, settings: Settings) -> Arc<Env<E>> {
        Arc::new(Env {
            memory_bytes_max: AtomicUsize::new(limits.memory_bytes_max),
            verbosity: AtomicU32::new(limits.verbosity),
            engine,
            limits,
            counters: AllCounters::new(threads),
            conns: Conns::default(),
            started: Instant::now(),
            settings,
            threads,
            files: Arc::new(files),
            held_bytes: AtomicUsize::new(0),
            unsettled_bytes: AtomicUsize::new(0),
            waits_for: AtomicU64::new(0),
            disk_bytes: AtomicU64::new(0),
            backups: Arc::default(),
            coarse_ms: AtomicU64::new(0),
            flush_at_ms: AtomicI64::new(NO_FLUSH),
            flush_waits_for: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        })
    }

    /// What the store holds, told at once: of one on disk its bytes as of a moment ago.
    pub(crate) fn figures(&self) -> Figures {
        let figures = self.engine.figures();
        if E::WAITS_FOR_DISK { Figures { bytes: self.disk_bytes.load(Ordering::Relaxed), ..figures } } else { figures }
    }

    /// Bytes that the items may take in memory; 0 over a folder, where memory is no limit to them, as the disk tells of none.
    pub(crate) fn limit_bytes(&self) -> usize {
        if E::WAITS_FOR_DISK { 0 } else { self.memory_bytes_max.load(Ordering::Relaxed) }
    }

    /// Looks how many bytes the store's files take. It may wait for the disk.
    pub(crate) fn measure(&self) {
        self.disk_bytes.store(self.engine.disk_bytes(), Ordering::Relaxed);
    }

    /// The wall clock, in ms since 1970.
    pub(crate) fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn since_start_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Removes everything when a `flush_all` says so, by memcached's reading of its number: at once for none, a second before a delay or a moment is over, and
    /// not at all for a moment that its clock does not reach back to. The last one asked for counts.
    ///
    /// # Errors
    /// The store takes no writes any more: nothing will be removed.
    pub(crate) fn flush_when(&self, exptime: i32) -> larder_core::Result<()> {
        let since_start_ms = self.since_start_ms();
        let wall_ms = self.wall_ms();
        let delay_ms = match u64::try_from(exptime) {
            Err(_) | Ok(0) => 0,
            Ok(delay_s) if delay_s <= RELATIVE_S_MAX => (delay_s - 1) * 1_000,
            Ok(moment_s) => {
                let start_s = wall_ms.saturating_sub(since_start_ms) / 1_000;
                if moment_s + CLOCK_BEFORE_START_S <= start_s {
                    self.engine.failure().map_or(Ok(()), Err)?;
                    self.flush_at_ms.store(NO_FLUSH, Ordering::Relaxed);
                    return Ok(());
                }
                ((moment_s - 1) * 1_000).saturating_sub(wall_ms)
            }
        };
        if delay_ms == 0 {
            self.flush_at_ms.store(NO_FLUSH, Ordering::Relaxed);
            return self.engine.flush();
        }
        self.engine.failure().map_or(Ok(()), Err)?;
        let at_ms = since_start_ms.saturating_add(delay_ms);
        self.flush_at_ms.store(i64::try_from(at_ms).unwrap_or(NO_FLUSH - 1), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of what is not finished, and of what waits for the disk.
    pub(crate) fn all_held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed).saturating_add(self.unsettled_bytes.load(Ordering::Relaxed))
    }

    /// True if that is too much, and some of it goes by itself.
    pub(crate) fn is_crowded(&self) -> bool {
        self.unsettled_bytes.load(Ordering::Relaxed) > 0 && self.all_held_bytes() >= self.limits.held_bytes_max
    }

    /// Moves the coarse clock on, and does what is due.
    pub(crate) fn tick(&self) {
        let now_ms = self.since_start_ms();
        self.coarse_ms.store(now_ms, Ordering::Relaxed);
        let due_ms = self.flush_at_ms.load(Ordering::Relaxed);
        let is_due = i64::try_from(now_ms).is_ok_and(|now_ms| due_ms <= now_ms);
        // Whoever asked for another moment meanwhile has that one.
        if is_due && self.flush_at_ms.compare_exchange(due_ms, NO_FLUSH, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            match self.engine.flush() {
                Ok(()) => _ = self.flush_waits_for.fetch_max(self.engine.touched(), Ordering::Relaxed),
                Err(error) => self.flush_failed(&error),
            }
        }
        self.settle_flush();
    }

    /// Looks whether a delayed flush was written. One that was not is told here, since whoever asked for it was answered long ago; it is not tried again: where a write has failed the store takes none.
    fn settle_flush(&self) {
        let waits_for = self.flush_waits_for.load(Ordering::Relaxed);
        if waits_for == 0 {
            return;
        }
        // It is asked again with the next tick.
        match self.engine.poll_settled(waits_for, &mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => self.flush_failed(&error),
        }
        self.flush_waits_for.store(0, Ordering::Relaxed);
    }

    fn flush_failed(&self, error: &larder_core::Error) {
        self.counters.mine().add(Count::FlushErrors, 1);
        tracing::error!(%error, "a delayed flush_all that was due may not have removed anything");
    }

    /// When an item expires that is stored now with this life, in ms of the store's clock: memcached's reading of the number. A moment that
    /// has passed is 0. It is counted from the next whole ms, since what there is of this one is not known: no life ends early, and none more than 1 ms late.
    pub(crate) fn expiry_ms(&self, exptime: i32) -> Option<u64> {
        let after = |life_ms: u64| self.engine.now_ms().saturating_add(1).saturating_add(life_ms);
        match u64::try_from(exptime) {
            Ok(0) => None,
            Ok(seconds) if seconds <= RELATIVE_S_MAX => Some(after(seconds * 1_000)),
            Ok(seconds) => Some(match (seconds * 1_000).checked_sub(self.wall_ms()) {
                Some(left_ms) if left_ms > 0 => after(left_ms),
                _ => 0,
            }),
            Err(_) => Some(0),
        }
    }
}

/// The largest number that is a life and not a moment: 30 days.
pub(crate) const RELATIVE_S_MAX: u64 = larder_proto::exptime::RELATIVE_S_MAX;

/// Whole seconds that are left, parts of one counted whole. The ms under way is over by then, as [`Env::expiry_ms`] counts: a life of 10 s has 10 left.
pub(crate) fn left_s(expiry_ms: u64, now_ms: u64) -> u64 {
    match expiry_ms.saturating_sub(now_ms) {
        0 => 0,
        left_ms => (left_ms - 1).div_ceil(1_000).max(1),
    }
}
