//! Part `restarts`: real servers are killed and started again, over and over. Afterwards every structure has all that it acknowledged, or says that
//! it is lost: never a silent zero, never a half.
//!
//! A server that keeps what it acknowledged is killed while clients write; of one that keeps nothing, a fresh client makes the structures anew
//! while the handles of their first life are still there, with tokens that the new server gives out once more.

mod judge;
mod subjects;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use judge::{Given, Outcome, judge};
use larder::{ErrorKind, Result, StoreRef};
use larder_testkit::nemesis::Program;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use subjects::{Handle, Held, SORTS, Sort, Subject, VALUES_MAX};
use tokio::task::block_in_place;

use crate::findings::{AMBIGUOUS, AMBIGUOUS_FULLY_CHECKED, FULLY_CHECKED, SILENT_LOSSES};
use crate::{Budget, Findings, Part, served};

/// Rounds at one time, each with a server of its own.
const ROUNDS_AT_ONCE: usize = 3;
/// Restarts of one server, with the same clients.
const CYCLES: u64 = 15;
/// Of them that are run though the time is over.
const CYCLES_MIN: u64 = 3;
/// Structures of a cycle.
const SUBJECTS: usize = 6;
/// Values that are acknowledged before the kill, of each.
const BEFORE: std::ops::RangeInclusive<u64> = 1..=6;
/// Values that are being written as the server is killed, of each.
const DURING: u64 = 10;
/// Between the first of these and the kill.
const KILL_MS_MAX: u64 = 12;
/// How long a server that was started again may take until a client is served.
const SERVED_MS_MAX: u64 = 30_000;
/// How often a client asks until then.
const ASK_MS: u64 = 5;
/// Longer than a busy machine may need for an op.
const TIMEOUTS: &str = "timeout_ms=10000&connect_timeout_ms=10000";

/// The part.
pub(crate) const PART: Part = Part {
    name: "restarts",
    about: "real servers killed and started again: every structure has all it acknowledged, or says that it is lost",
    run,
};

/// Runs rounds until the time is over.
fn run(budget: Budget) -> Findings {
    let until = budget.until;
    budget.side_by_side(4, ROUNDS_AT_ONCE, move |seed| round(seed, until))
}

/// A server to be killed.
enum Server {
    Memcached(Memcached),
    /// It saves nothing, or all before it acknowledges.
    Redis(RedisServer, bool),
    Own(Program, bool),
}

impl Server {
    fn start(seed: u64) -> Server {
        match seed % 10 {
            0 | 5 => Server::Memcached(Memcached::start(Version::New, &[])),
            1 | 6 => Server::Memcached(Memcached::start(Version::Old, &[])),
            2 => Server::Redis(RedisServer::start(RedisVersion::Redis8, &RedisOptions::new()), false),
            3 => Server::Redis(RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().appendonly()), true),
            7 => Server::Redis(RedisServer::start(RedisVersion::Valkey, &RedisOptions::new().appendonly()), true),
            4 => Server::Own(served::start(false), false),
            _ => Server::Own(served::start(true), true),
        }
    }

    fn keeps(&self) -> bool {
        match self {
            Server::Memcached(_) => false,
            Server::Redis(_, keeps) | Server::Own(_, keeps) => *keeps,
        }
    }

    fn name(&self) -> String {
        match self {
            Server::Memcached(server) => format!("memcached {:?}", server.version()),
            Server::Redis(server, keeps) => {
                format!("{:?}, {}", server.version(), if *keeps { "saved" } else { "not saved" })
            }
            Server::Own(_, keeps) => format!("larder serve, {}", if *keeps { "durable" } else { "in memory" }),
        }
    }

    fn url(&self, rng: &mut Rng) -> String {
        let dialect = if rng.u8(..4) == 0 { "dialect=classic&" } else { "" };
        match self {
            Server::Memcached(server) => format!("{}?{dialect}{TIMEOUTS}", server.url()),
            Server::Redis(server, _) => format!("{}?{TIMEOUTS}", server.url()),
            Server::Own(server, _) => format!("memcached://{}?{dialect}{TIMEOUTS}", server.addr()),
        }
    }

    fn kill_and_restart(&mut self) {
        match self {
            Server::Memcached(server) => server.restart(),
            Server::Redis(server, _) => server.restart(),
            Server::Own(server, _) => server.restart(),
        }
    }
}

/// A round: one server, killed [`CYCLES`] times.
struct Round {
    seed: u64,
    rng: Rng,
    server: Server,
    /// Of the clients that were there before a kill, and of those that come after it.
    stores: [StoreRef; 2],
    found: Findings,
}

async fn round(seed: u64, until: Instant) -> Findings {
    let mut rng = Rng::with_seed(seed);
    let server = block_in_place(|| Server::start(seed));
    let url = server.url(&mut rng);
    let stores = [connect(&url).await, connect(&url).await];
    let mut round = Round { seed, rng, server, stores, found: Findings::default() };
    for cycle in (0..CYCLES).take_while(|&cycle| cycle < CYCLES_MIN || Instant::now() < until) {
        round.cycle(cycle).await;
    }
    // Ends the server.
    block_in_place(|| drop(round.server));
    round.found
}

async fn connect(url: &str) -> StoreRef {
    served(|| larder::open(url)).await.expect("a store on a server that serves")
}

/// A structure and what it was given.
struct Witness {
    subject: Subject,
    handle: Arc<Handle>,
    given: Given,
    next: u64,
}

impl Witness {
    async fn open(subject: Subject, store: &StoreRef, next: u64) -> Result<Witness> {
        let handle = Arc::new(served(|| subject.open(store, true)).await?);
        Ok(Witness { subject, handle, given: Given::default(), next })
    }

    /// Writes so many values, until one is refused; says why.
    async fn write(&mut self, values: u64) -> Result<()> {
        let (given, refused) = write(&self.handle, self.next, values).await;
        self.next += values;
        self.given.acked.extend(given.acked);
        self.given.unknown.extend(given.unknown);
        refused
    }
}

async fn write(handle: &Handle, first: u64, values: u64) -> (Given, Result<()>) {
    let mut given = Given::default();
    for value in first..first + values {
        assert!(value < VALUES_MAX, "a cycle writes fewer values");
        match served(|| handle.write(value)).await {
            Ok(()) => _ = given.acked.insert(value),
            Err(error) if error.is_unknown() => _ = given.unknown.insert(value),
            Err(error) => return (given, Err(error)),
        }
    }
    (given, Ok(()))
}

/// What a call says once the server serves: what did not take effect is asked again.
async fn served<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> Result<T> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error)
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
                    && !error.is_unknown()
                    && start.elapsed() < Duration::from_millis(SERVED_MS_MAX) =>
            {
                tokio::time::sleep(Duration::from_millis(ASK_MS)).await;
            }
            said => return said,
        }
    }
}

impl Round {
    async fn cycle(&mut self, cycle: u64) {
        let mut sorts: Vec<Sort> = SORTS.to_vec();
        self.rng.shuffle(&mut sorts);
        let (mut witnesses, keeps) = (Vec::new(), self.server.keeps());
        for sort in sorts.into_iter().take(SUBJECTS) {
            let subject = Subject::new(sort, format!("{sort:?}-{cycle}"), keeps);
            match Witness::open(subject, &self.stores[0], 0).await {
                Ok(witness) => witnesses.push(witness),
                Err(error) => self.wrong(sort, &format!("cannot be made: {error}")),
            }
        }
        for witness in &mut witnesses {
            if let Err(error) = witness.write(self.rng.u64(BEFORE)).await {
                self.wrong(witness.subject.sort, &format!("refuses a value: {error}"));
            }
        }
        self.kill(&mut witnesses).await;
        self.found.count("restart cycles", 1);
        self.found.count("faults: server killed (kill -9)", 1);
        self.found.count(SILENT_LOSSES, 0);
        for witness in witnesses {
            let given = &witness.given;
            let given_out = (given.acked.len() + given.unknown.len()) as u64;
            self.found.count("operations checked", given_out);
            // Of what is gone with its server it is checked that this is told, and no more.
            let (unknown, checked) = (given.unknown.len() as u64, u64::from(keeps));
            self.found.count(FULLY_CHECKED, checked * given_out);
            self.found.count(AMBIGUOUS, unknown);
            self.found.count(AMBIGUOUS_FULLY_CHECKED, checked * unknown);
            if keeps { self.is_whole(witness).await } else { self.is_told(witness).await }
        }
    }

    /// Kills the server while values are written, and starts it again.
    async fn kill(&mut self, witnesses: &mut [Witness]) {
        let mut writers = Vec::new();
        for witness in witnesses.iter_mut() {
            let (handle, first) = (Arc::clone(&witness.handle), witness.next);
            witness.next += DURING;
            writers.push(tokio::spawn(async move { write(&handle, first, DURING).await }));
        }
        tokio::time::sleep(Duration::from_millis(self.rng.u64(0..=KILL_MS_MAX))).await;
        block_in_place(|| self.server.kill_and_restart());
        for (witness, writer) in witnesses.iter_mut().zip(writers) {
            let (given, refused) = writer.await.expect("a writer that does not panic");
            witness.given.acked.extend(given.acked);
            witness.given.unknown.extend(given.unknown);
            match refused {
                // Of a server that keeps nothing, the structure is gone by then.
                Err(error) if self.server.keeps() || !judge::is_loss(&error) => {
                    self.wrong(witness.subject.sort, &format!("refuses a value as its server is killed: {error}"));
                }
                _ => {}
            }
        }
    }

    /// Of a server that keeps what it acknowledged: all is there, to whoever looks first.
    async fn is_whole(&mut self, witness: Witness) {
        let sort = witness.subject.sort;
        let fresh = match served(|| witness.subject.open(&self.stores[1], false)).await {
            Ok(fresh) => fresh,
            Err(error) => return self.wrong(sort, &format!("cannot be opened after a restart: {error}")),
        };
        let mut readers = [&*witness.handle, &fresh];
        self.rng.shuffle(&mut readers);
        let said = served(|| readers[0].read()).await;
        self.hold(&witness, "", &said);
        // Queues and stacks are empty by now.
        if !matches!(sort, Sort::Queue | Sort::Stack) {
            let said = served(|| readers[1].read()).await;
            self.hold(&witness, "", &said);
        }
    }

    /// Of a server that keeps nothing: the loss is told to those who had seen the data, also once others have made the structure anew, and what
    /// these write then is whole.
    async fn is_told(&mut self, witness: Witness) {
        let sort = witness.subject.sort;
        if self.rng.bool() {
            let said = served(|| witness.handle.read()).await;
            self.hold(&witness, "", &said);
        }
        if sort == Sort::Lock {
            // Whoever takes it makes it anew; what it promises are its tokens.
            return;
        }
        // An open that fails has to say that the data is gone, as a read has to.
        let said = match served(|| witness.subject.open(&self.stores[1], false)).await {
            Ok(fresh) => served(|| fresh.read()).await,
            Err(error) => Err(error),
        };
        self.hold(&witness, "to a fresh client, ", &said);
        let mut second = match Witness::open(witness.subject.clone(), &self.stores[1], witness.next).await {
            Ok(second) => second,
            Err(error) => return self.wrong(sort, &format!("cannot be made anew: {error}")),
        };
        let mut refused = second.write(self.rng.u64(BEFORE)).await;
        // Whatever it says, it must not touch what others have made since.
        let late = served(|| witness.handle.write(VALUES_MAX - 1)).await;
        refused = refused.and(second.write(self.rng.u64(BEFORE)).await);
        if let Err(error) = refused {
            self.wrong(sort, &format!("refuses a value in its second life: {error}"));
        }
        let said = served(|| second.handle.read()).await;
        if let Outcome::Silent(what) | Outcome::Wrong(what) = judge(sort, true, &second.given, &said) {
            self.wrong(sort, &format!("in its second life {what}; a write of the first said {late:?}"));
        }
        let said = served(|| witness.handle.read()).await;
        self.hold(&witness, "beside its second life, ", &said);
    }

    fn hold(&mut self, witness: &Witness, when: &str, said: &Result<Held>) {
        match judge(witness.subject.sort, self.server.keeps(), &witness.given, said) {
            Outcome::Whole => {}
            Outcome::Told => self.found.count("losses told", 1),
            Outcome::Silent(what) => {
                self.found.count(SILENT_LOSSES, 1);
                self.wrong(witness.subject.sort, &format!("{when}{what}"));
            }
            Outcome::Wrong(what) => self.wrong(witness.subject.sort, &format!("{when}{what}")),
        }
    }

    fn wrong(&mut self, sort: Sort, what: &str) {
        let server = self.server.name();
        self.found.violation(self.seed, &format!("{sort:?} on {server} {what}"));
    }
}
