//! A server of the fleet: its connections, and the one task that dials.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use larder_core::{Error, ErrorKind, Op, Result};
use larder_net::{Backoff, Connector, Health, down_by_barren};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::{Config, Connections, FleetMode, Server};
use crate::conn::{Conn, Queue, QueueLimits};
use crate::counters::{Counters, count};
use crate::driver::Driver;
use crate::fleet;
use crate::lane::{self, Lane, Wanted};
use crate::probe::{Exchange, Identity, Probed, ServerInfo, probe, within};
use crate::stream::split;
use crate::traffic::Traffic;

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) shared: Arc<Shared>,
    /// Filled by the keeper; a lost one is taken out at once, since its socket closes with its last holder, and what it still carries
    /// should not arrive later than need be.
    conns: RwLock<Conns>,
    wanted: Wanted,
    pub(crate) health: Health,
    barren: Mutex<Barren>,
    /// What the last handshake found.
    info: Mutex<Option<ServerInfo>>,
    /// A connection for questions about the server itself, kept from one time to the next; `None` before the first, and after one that was not answered in full.
    pub(crate) questions: tokio::sync::Mutex<Option<Exchange>>,
    /// Whether this server was claimed, where it was to be: once, since others may claim it later.
    is_claimed: AtomicBool,
    /// Wakes the keeper when a connection was lost, or a lane is wanted.
    missing: Notify,
}

/// Barren connections since the last that was of use.
#[derive(Debug, Default)]
struct Barren {
    in_a_row: u32,
    /// Why the last one ended, until there has been a pause for it.
    cause: Option<Error>,
}

/// The connections to a server.
#[derive(Debug)]
struct Conns {
    /// By place; `None` where there is none.
    homes: Vec<Option<Arc<Conn>>>,
    lane: Lane,
}

impl Conns {
    /// A live connection; `choice` says which, if there are several.
    fn home(&self, choice: usize) -> Option<&Arc<Conn>> {
        let places = self.homes.len();
        (0..places).filter_map(|step| self.homes[(choice + step) % places].as_ref()).find(|conn| !conn.is_closed())
    }
}

/// What a lane must have in common with its home.
struct Home {
    session: u64,
    peer: Option<SocketAddr>,
    identity: Identity,
}

/// What all servers of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tls: Option<Connector>,
    /// The text that each server of the fleet carries.
    pub(crate) fingerprint: fleet::Fingerprint,
}

impl Node {
    pub(crate) fn new(server: Server, shared: Arc<Shared>) -> Node {
        let homes = (0..shared.config.connections.kept()).map(|_| None).collect();
        let lane = if shared.config.connections == Connections::Auto { Lane::None } else { Lane::Off };
        Node {
            server,
            shared,
            conns: RwLock::new(Conns { homes, lane }),
            wanted: Wanted::new(),
            health: Health::default(),
            barren: Mutex::default(),
            info: Mutex::new(None),
            questions: tokio::sync::Mutex::new(None),
            is_claimed: AtomicBool::new(false),
            missing: Notify::new(),
        }
    }

    pub(crate) fn info(&self) -> Option<ServerInfo> {
        self.info.lock().clone()
    }

    /// A live connection; `choice` says which, if there are several.
    pub(crate) fn conn(&self, choice: usize) -> Option<Arc<Conn>> {
        self.conns.read().home(choice).cloned()
    }

    /// A live connection for these ops: the one that `choice` says, or its lane, if they are reads that may go there and it is busy.
    pub(crate) fn conn_for<'o>(&self, choice: usize, ops: impl Iterator<Item = &'o Op> + Clone) -> Option<Arc<Conn>> {
        let conns = self.conns.read();
        let home = conns.home(choice)?;
        if let Some(lane) = conns.lane.takes(home, ops.clone()) {
            return Some(lane.clone());
        }
        let asks = conns.lane.may_open() && self.wanted.found(home, ops);
        let home = home.clone();
        drop(conns);
        if asks {
            self.missing.notify_one();
        }
        Some(home)
    }

    /// The connection that read a cas token, if it lives.
    pub(crate) fn conn_of(&self, session: u64) -> Option<Arc<Conn>> {
        self.conns.read().homes.iter().flatten().find(|conn| conn.session == session && !conn.is_closed()).cloned()
    }

    /// A live connection, waiting for a dial that is under way; an error at once while the server is down.
    pub(crate) async fn conn_by(&self, choice: usize, deadline: Instant) -> Result<Arc<Conn>> {
        self.health.connection(deadline, || self.conn(choice)).await
    }

    /// Keeps the connections: the only one that dials this server, one dial at a time, but for a lane's. Runs until it is aborted.
    pub(crate) async fn keep(self: Arc<Node>) {
        let tasks = Tasks(Mutex::new(Vec::new()));
        let mut opened = vec![false; self.shared.config.connections.kept()];
        let mut failures = 0u32;
        loop {
            let missing = self.missing.notified();
            let Some(place) = self.vacant() else {
                if let Some(home) = self.home_of_wanted() {
                    tasks.spawn(self.clone().keep_lane(home));
                }
                missing.await;
                continue;
            };
            self.rest_from_barren().await;
            match self.dial(None).await {
                Ok((conn, driver)) => {
                    failures = 0;
                    let told = TellNode { node: self.clone(), conn: conn.clone() };
                    tasks.spawn(async move {
                        driver.run().await;
                        drop(told);
                    });
                    self.conns.write().homes[place] = Some(conn);
                    if std::mem::replace(&mut opened[place], true) {
                        count(&self.shared.counters.reconnects, 1);
                    }
                    self.health.up();
                }
                Err(error) => {
                    count(&self.shared.counters.dials_failed, 1);
                    // Where another connection lives the server is up, and this dial was one too many for it.
                    let is_up = self.conn(0).is_some();
                    if !is_up {
                        self.health.down(error);
                    }
                    tokio::select! {
                        () = tokio::time::sleep(Backoff::REDIAL.wait(failures)) => {}
                        // The last one may have gone, and everybody waits for a dial.
                        () = missing, if is_up => {}
                    }
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Waits as after a dial that failed, where the last connection was barren.
    async fn rest_from_barren(&self) {
        loop {
            let (in_a_row, cause) = {
                let mut barren = self.barren.lock();
                let Some(cause) = barren.cause.take() else { return };
                (barren.in_a_row, cause)
            };
            if let Some(down) = down_by_barren(in_a_row, Some(cause)).filter(|_| self.conn(0).is_none()) {
                self.health.down(down);
            }
            let mut rest = pin!(tokio::time::sleep(Backoff::REDIAL.wait(in_a_row - 1)));
            loop {
                let missing = self.missing.notified();
                let is_up = self.conn(0).is_some();
                tokio::select! {
                    () = &mut rest => break,
                    () = missing, if is_up => {}
                }
                // The last one has gone, and everybody waits for a dial.
                if self.conn(0).is_none() {
                    break;
                }
            }
        }
    }

    /// A place without a live connection.
    fn vacant(&self) -> Option<usize> {
        let conns = self.conns.read();
        conns.homes.iter().position(|conn| conn.as_ref().is_none_or(|conn| conn.is_closed()))
    }

    /// A connection has ended.
    fn lost(&self, conn: &Conn) {
        {
            let mut barren = self.barren.lock();
            *barren = match conn.was_barren() {
                true => Barren { in_a_row: barren.in_a_row.saturating_add(1), cause: conn.queue.lock().closed.clone() },
                false => Barren::default(),
            };
        }
        let mut conns = self.conns.write();
        for conn in &mut conns.homes {
            if conn.as_ref().is_some_and(|conn| conn.is_closed()) {
                *conn = None;
            }
        }
        // A lane goes with its home: it may be another server that comes next.
        if conns.lane.home().is_some_and(|home| conns.homes.iter().flatten().all(|conn| conn.session != home)) {
            conns.lane = Lane::None;
        }
        drop(conns);
        if self.conn(0).is_none() {
            self.health.lost();
        }
        self.missing.notify_one();
    }

    /// A connection, to whatever server stands at the address, or to the very one that a home has reached.
    async fn dial(&self, home: Option<&Home>) -> Result<(Arc<Conn>, Driver)> {
        let config = &self.shared.config;
        let work = async {
            let stream = self.server.address.dial_at(home.and_then(|home| home.peer), self.shared.tls.as_ref()).await?;
            let mut exchange = Exchange::new(stream);
            let Probed { server, item } = probe(&mut exchange, config, &fleet::read()?).await?;
            if home.is_some_and(|home| !home.identity.is_same(&server.identity)) {
                return Err(Error::new(ErrorKind::Unavailable, "the read lane reached another server than its home"));
            }
            if home.is_none() && !self.is_one_of_the_others(&server.identity) {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "another connection to this address reaches another server",
                ));
            }
            fleet::check(&mut exchange, item, &self.shared.fingerprint, self.fleet_mode(home)).await?;
            Ok((exchange.peer(), exchange.finish()?, server))
        };
        let (peer, stream, server) = within(config.connect_timeout, work).await?;
        let (task_stream, direct) = split(stream);
        let has_lane = home.is_none() && config.connections == Connections::Auto;
        let conn = Arc::new(Conn {
            session: next_session(),
            server,
            begun: Instant::now(),
            peer,
            limits: QueueLimits { ops_max: config.queue_ops_max, bytes_max: config.queue_bytes_max },
            counters: self.shared.counters.clone(),
            queue: Mutex::new(Queue::default()),
            direct,
            traffic: Traffic::new(has_lane),
        });
        let driver = Driver::new(conn.clone(), task_stream, config.timeout * 2);
        if home.is_none() {
            // Before it is counted: who asks for the profile in between would keep the one of before.
            *self.info.lock() = Some(conn.server.clone());
            self.is_claimed.store(true, Ordering::Relaxed);
        }
        count(&self.shared.counters.connections, 1);
        Ok((conn, driver))
    }

    /// Whether a server is the one that the live connections have reached. Those of a server that is restarted end by themselves, so that
    /// its next process is refused for no longer; where the newer were taken, two servers behind a balancer would take turns.
    fn is_one_of_the_others(&self, identity: &Identity) -> bool {
        let conns = self.conns.read();
        conns.homes.iter().flatten().all(|conn| conn.is_closed() || conn.server.identity.is_same(identity))
    }

    /// How the server's list is treated at a dial: whoever claims does so at the first handshake, and from then on is a client like any other.
    fn fleet_mode(&self, home: Option<&Home>) -> FleetMode {
        match self.shared.config.fleet {
            FleetMode::Claim if home.is_some() || self.is_claimed.load(Ordering::Relaxed) => FleetMode::Check,
            mode => mode,
        }
    }

    /// The home for which a lane was asked, if it was, and is not there.
    fn home_of_wanted(&self) -> Option<Home> {
        if !self.wanted.take() {
            return None;
        }
        let mut conns = self.conns.write();
        let home = conns.home(0)?;
        let home = Home { session: home.session, peer: home.peer, identity: home.server.identity };
        if !conns.lane.may_open() {
            return None;
        }
        conns.lane = Lane::Dialling { home: home.session };
        Some(home)
    }

    /// Dials a lane and keeps it until it ends, its home does, or nobody uses it.
    async fn keep_lane(self: Arc<Node>, home: Home) {
        let ended = LaneEnded { node: self.clone(), home: home.session };
        let Ok((conn, driver)) = self.dial(Some(&home)).await else {
            count(&self.shared.counters.dials_failed, 1);
            return;
        };
        if !self.open_lane(home.session, conn.clone()) {
            return;
        }
        count(&self.shared.counters.lanes, 1);
        tokio::select! {
            () = driver.run() => {}
            () = self.lane_is_idle(&conn) => {}
        }
        drop(ended);
    }

    /// Puts a lane into use; false if its home has gone meanwhile.
    fn open_lane(&self, home: u64, conn: Arc<Conn>) -> bool {
        let mut conns = self.conns.write();
        let waits = conns.lane.home() == Some(home);
        if waits {
            conns.lane = Lane::Open { home, conn };
        }
        waits
    }

    /// Waits until nothing is under way on a lane and nobody has used it for a while, or its home has gone; takes it out of use.
    async fn lane_is_idle(&self, conn: &Conn) {
        let (mut seen, mut seen_at) = (0, Instant::now());
        loop {
            tokio::time::sleep(lane::LOOK).await;
            let (last, busy) = {
                let queue = conn.queue.lock();
                (queue.last_number, queue.unanswered_ops > 0)
            };
            if last != seen || busy {
                (seen, seen_at) = (last, Instant::now());
            }
            let mut conns = self.conns.write();
            let used = matches!(&conns.lane, Lane::Open { conn: open, .. } if open.session == conn.session);
            if used && seen_at.elapsed() >= lane::UNUSED {
                conns.lane = Lane::None;
                return;
            }
            if !used && !busy {
                return;
            }
        }
    }

    /// A connection beside those of ops, for questions that they do not ask; closed when it is dropped.
    pub(crate) async fn exchange(&self) -> Result<Exchange> {
        let config = &self.shared.config;
        let work = async {
            let stream = self.server.address.dial(self.shared.tls.as_ref()).await?;
            let mut exchange = Exchange::new(stream);
            probe(&mut exchange, config, &fleet::read()?).await?;
            Ok(exchange)
        };
        within(config.connect_timeout, work).await
    }
}

/// The tasks of a node's connections; they end when the keeper does.
struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(task));
    }
}

/// Tells the node that a connection has ended, even if its task did not end as it should.
struct TellNode {
    node: Arc<Node>,
    conn: Arc<Conn>,
}

impl Drop for TellNode {
    fn drop(&mut self) {
        self.node.lost(&self.conn);
    }
}

/// Takes a lane out of use when its task ends, however it does: reads then go over home, and after a rest it may be tried again.
struct LaneEnded {
    node: Arc<Node>,
    home: u64,
}

impl Drop for LaneEnded {
    fn drop(&mut self) {
        let mut conns = self.node.conns.write();
        if conns.lane.home() == Some(self.home) {
            conns.lane = Lane::Resting { until: Instant::now() + lane::REST };
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.0.get_mut() {
            task.abort();
        }
    }
}

/// Numbers connections. They begin anywhere, so that a token that leaves the process is not taken for one of another's.
fn next_session() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static START: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    START.get_or_init(|| fastrand::u64(..)).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}
