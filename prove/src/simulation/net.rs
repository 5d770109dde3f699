//! What is between clients and the server: connections that delay, break at any op, lose requests and replies, deliver late, and are held up.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{Op, Replies};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::climate::Climate;
use super::server::Server;
use super::trace::Trace;

/// How many delays later a request is carried out again at the most.
const TWICE_AFTER: u64 = 4;

/// The network of a simulation.
pub(super) struct Net {
    pub(super) climate: Climate,
    pub(super) server: Server,
    pub(super) trace: Trace,
    state: Mutex<State>,
}

struct State {
    random: fastrand::Rng,
    /// For requests that are delivered twice alone.
    random_twice: fastrand::Rng,
    connections: u64,
    /// The way of each client.
    links: Vec<Link>,
    /// Requests that may yet arrive.
    in_flight: u64,
    /// No more faults.
    is_calm: bool,
    faults: BTreeMap<&'static str, u64>,
}

#[derive(Clone)]
struct Link {
    connection: Option<Arc<Connection>>,
    /// Nothing gets through before.
    held_until: Instant,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is answered.
    Answered,
    /// The connection breaks before it is sent.
    NotSent,
    /// The connection breaks, and it is lost.
    LostRequest,
    /// The connection breaks after so many of its ops took effect.
    Cut(usize),
    /// It takes effect, and the connection breaks before a reply is there.
    LostReply,
    /// The client sees the connection break; it arrives later.
    Late(Duration),
    /// It is lost, and so is what follows on the connection, and nobody is told.
    BlackHole,
    /// The server has no room for what it writes.
    Full,
}

/// A connection of a client to one life of the server.
pub(super) struct Connection {
    pub(super) number: u64,
    client: usize,
    life: u64,
    requests: mpsc::UnboundedSender<Request>,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    /// The client knows that it is broken.
    is_broken: bool,
    /// The server reads nothing more of it.
    is_cut: bool,
    /// When the last request arrives, since they arrive in order.
    last_arrival: Option<Instant>,
    /// Who waits for an answer, by the number of the request.
    waiting: BTreeMap<u64, oneshot::Sender<Replies>>,
    sent: u64,
}

struct Request {
    number: u64,
    ops: Vec<Op>,
    arrives: Instant,
    fate: Fate,
}

struct Answer {
    number: u64,
    arrives: Instant,
    /// Fewer than the ops where the connection broke at one.
    replies: Replies,
    breaks: bool,
}

impl Net {
    pub(super) fn new(
        climate: Climate,
        server: Server,
        trace: Trace,
        random: fastrand::Rng,
        seed_twice: u64,
    ) -> Arc<Net> {
        let link = Link { connection: None, held_until: Instant::now() };
        let state = State {
            random,
            random_twice: fastrand::Rng::with_seed(seed_twice),
            connections: 0,
            links: vec![link; climate.clients],
            in_flight: 0,
            is_calm: false,
            faults: BTreeMap::new(),
        };
        Arc::new(Net { climate, server, trace, state: Mutex::new(state) })
    }

    /// The faults that were caused, by kind.
    pub(super) fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.lock().faults.clone()
    }

    /// Counts a fault that is caused.
    pub(super) fn count(&self, fault: &'static str) {
        *self.lock().faults.entry(fault).or_default() += 1;
        self.trace.line(format_args!("fault: {fault}"));
    }

    /// Draws from the network's randomness.
    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.lock().random)
    }

    /// True once there are no more faults.
    pub(super) fn is_calm(&self) -> bool {
        self.lock().is_calm
    }

    /// No more faults; returns when nothing that was sent before can still arrive.
    pub(super) async fn calm(&self) {
        self.trace.line(format_args!("calm"));
        {
            let mut state = self.lock();
            state.is_calm = true;
            for link in &mut state.links {
                link.held_until = Instant::now();
            }
        }
        self.server.heal();
        while self.lock().in_flight > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Nothing gets through between a client and the server for so long.
    pub(super) fn hold(&self, client: usize, time: Duration) {
        self.lock().links[client].held_until = Instant::now() + time;
    }

    /// Breaks the connection of a client. What is under way is lost.
    pub(super) fn break_off(&self, client: usize) {
        let connection = self.lock().links[client].connection.clone();
        if let Some(connection) = connection {
            connection.cut();
            connection.break_off();
        }
    }

    /// The connection of a client, made if there is none; `None` if it cannot be had by the deadline, or is refused.
    pub(super) async fn connect(self: &Arc<Net>, client: usize, deadline: Instant) -> Option<Arc<Connection>> {
        loop {
            let open = self.lock().links[client].connection.clone().filter(|open| !open.lock().is_broken);
            if let Some(open) = open {
                return Some(open);
            }
            let (_, is_up_from) = self.server.busy_until();
            let held_until = self.lock().links[client].held_until;
            let there = Instant::now() + self.delay();
            if is_up_from > there {
                self.trace.line(format_args!("c{client} is refused"));
                sleep_until(there.min(deadline)).await;
                return None;
            }
            sleep_until(there.max(held_until).min(deadline)).await;
            if Instant::now() >= deadline {
                return None;
            }
            if self.lock().links[client].connection.as_ref().is_none_or(|other| other.lock().is_broken) {
                self.open(client);
            }
        }
    }

    fn open(self: &Arc<Net>, client: usize) {
        let (requests, arriving) = mpsc::unbounded_channel();
        let (answers, answering) = mpsc::unbounded_channel();
        let mut state = self.lock();
        state.connections += 1;
        let connection = Arc::new(Connection {
            number: state.connections,
            client,
            life: self.server.life(),
            requests,
            state: Mutex::default(),
        });
        state.links[client].connection = Some(connection.clone());
        drop(state);
        self.trace.line(format_args!("c{client} opens connection {}", connection.number));
        tokio::spawn(self.clone().serve(connection.clone(), arriving, answers));
        tokio::spawn(self.clone().answer(connection, answering));
    }

    /// Sends ops; the answer comes, or the connection breaks, or neither.
    pub(super) fn send(&self, connection: &Connection, ops: Vec<Op>, fate: Fate) -> oneshot::Receiver<Replies> {
        let (answer, answered) = oneshot::channel();
        let (delay, late) = (self.delay(), if let Fate::Late(by) = fate { by } else { Duration::ZERO });
        let mut state = connection.lock();
        state.sent += 1;
        let arrives = (Instant::now() + delay + late).max(state.last_arrival.unwrap_or_else(Instant::now));
        state.last_arrival = Some(arrives);
        let number = state.sent;
        self.trace.line(format_args!("c{}#{}.{number} sends, {fate:?}: {ops:?}", connection.client, connection.number));
        state.waiting.insert(number, answer);
        if fate == Fate::BlackHole {
            state.is_cut = true;
        }
        drop(state);
        let request = Request { number, ops, arrives, fate };
        self.lock().in_flight += 1;
        if connection.requests.send(request).is_err() {
            self.lock().in_flight -= 1;
        }
        if matches!(fate, Fate::Late(_)) {
            connection.break_off();
        }
        answered
    }

    /// The server's end of a connection.
    async fn serve(
        self: Arc<Net>,
        connection: Arc<Connection>,
        mut arriving: mpsc::UnboundedReceiver<Request>,
        answers: mpsc::UnboundedSender<Answer>,
    ) {
        let mut last_answer = Instant::now();
        while let Some(request) = arriving.recv().await {
            self.arrival(&connection, request.arrives).await;
            if request.fate == Fate::Answered {
                self.carry_out_again(&connection, &request.ops);
            }
            if let Some((replies, breaks)) = self.meet(&connection, &request) {
                last_answer = last_answer.max(Instant::now() + self.delay());
                let answer = Answer { number: request.number, arrives: last_answer, replies, breaks };
                _ = answers.send(answer);
            }
            self.lock().in_flight -= 1;
            let state = connection.lock();
            if state.is_broken && state.waiting.is_empty() {
                arriving.close();
            }
        }
    }

    /// Waits until what arrives then is looked at: the way may be held up, and the server stopped.
    async fn arrival(&self, connection: &Connection, arrives: Instant) {
        sleep_until(arrives).await;
        loop {
            let held_until = self.lock().links[connection.client].held_until;
            let until = held_until.max(self.server.busy_until().0);
            if until <= Instant::now() || self.server.life() != connection.life {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Has a request carried out once more a while later, in the same life of the server, by chance.
    fn carry_out_again(self: &Arc<Net>, connection: &Arc<Connection>, ops: &[Op]) {
        let one_in = self.climate.twice_one_in;
        let later = {
            let mut state = self.lock();
            if state.is_calm || one_in == 0 || state.random_twice.u64(..one_in) > 0 {
                return;
            }
            state.in_flight += 1;
            *state.faults.entry("request delivered twice").or_default() += 1;
            Duration::from_micros(state.random_twice.u64(..TWICE_AFTER * self.climate.delay_us_max))
        };
        let (net, connection, ops) = (self.clone(), connection.clone(), ops.to_vec());
        tokio::spawn(async move {
            net.arrival(&connection, Instant::now() + later).await;
            if net.server.life() == connection.life {
                net.server.caused.late.fetch_add(1, Ordering::SeqCst);
                let replies = net.server.apply(&ops, connection.number, false);
                let (client, number) = (connection.client, connection.number);
                net.trace.line(format_args!("c{client}#{number} arrives again: {ops:?}: {replies:?}"));
            }
            net.lock().in_flight -= 1;
        });
    }

    /// What comes of a request that arrives: replies, and whether the connection breaks behind them; `None` for nothing.
    fn meet(&self, connection: &Connection, request: &Request) -> Option<(Replies, bool)> {
        let name = format_args!("c{}#{}.{}", connection.client, connection.number, request.number).to_string();
        if self.server.life() != connection.life {
            self.trace.line(format_args!("{name} finds another life"));
            connection.break_off();
            return None;
        }
        let applied = match request.fate {
            Fate::NotSent | Fate::LostRequest => 0,
            Fate::Cut(at) => at.min(request.ops.len()),
            _ if connection.lock().is_cut => {
                self.trace.line(format_args!("{name} is lost"));
                return None;
            }
            _ => request.ops.len(),
        };
        if applied > 0 && connection.is_given_up(request.number) {
            self.server.caused.late.fetch_add(1, Ordering::SeqCst);
        }
        let is_full = request.fate == Fate::Full;
        let replies = self.server.apply(&request.ops[..applied], connection.number, is_full);
        self.trace.line(format_args!("{name} arrives, {applied} ops: {replies:?}"));
        match request.fate {
            Fate::LostRequest | Fate::LostReply | Fate::NotSent => {
                connection.cut();
                connection.break_off();
                None
            }
            Fate::Cut(_) => {
                connection.cut();
                Some((replies, true))
            }
            _ => Some((replies, false)),
        }
    }

    /// The way back of a connection.
    async fn answer(self: Arc<Net>, connection: Arc<Connection>, mut answers: mpsc::UnboundedReceiver<Answer>) {
        while let Some(answer) = answers.recv().await {
            sleep_until(answer.arrives).await;
            let held_until = self.lock().links[connection.client].held_until;
            sleep_until(held_until).await;
            let waiting = connection.lock().waiting.remove(&answer.number);
            if let Some(waiting) = waiting {
                _ = waiting.send(answer.replies);
            }
            if answer.breaks {
                connection.break_off();
            }
        }
    }

    /// How long a message takes.
    fn delay(&self) -> Duration {
        let mut state = self.lock();
        let (late, most_us) = (self.climate.late_one_in, self.climate.delay_us_max);
        if !state.is_calm && late > 0 && state.random.u64(..late) == 0 {
            let late_ms = Climate::LATE_MAX.as_millis() as u64;
            *state.faults.entry("late message").or_default() += 1;
            return Duration::from_millis(state.random.u64(..late_ms));
        }
        Duration::from_micros(state.random.u64(..most_us))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// The server reads nothing more of it.
    fn cut(&self) {
        self.lock().is_cut = true;
    }

    /// The client sees that it is broken: nobody gets an answer.
    pub(super) fn break_off(&self) {
        let mut state = self.lock();
        state.is_broken = true;
        state.waiting.clear();
    }

    /// Whether the client waits for the answer to a request no more.
    fn is_given_up(&self, number: u64) -> bool {
        let state = self.lock();
        state.is_broken || state.waiting.get(&number).is_none_or(oneshot::Sender::is_closed)
    }

    /// True if what is sent on it is lost, and the client does not know.
    pub(super) fn is_black_hole(&self) -> bool {
        let state = self.lock();
        state.is_cut && !state.is_broken
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
