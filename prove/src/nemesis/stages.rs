//! Where a history is played: a real server, what is between it and its clients, and what befalls both.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use larder::{Kind, StoreRef};
use larder_testkit::history::{Arena, Calm, Caused};
use larder_testkit::nemesis::{Cache, Deed, Nemesis, Pair, Partitioned, Redis, Several, Small, Trouble, Victim};
use larder_testkit::proxy::{Proxy, Rates};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

use super::Drawn;
use crate::watched::Watched;
use crate::{served, simulation};

/// Clients of a history.
const CLIENTS: std::ops::RangeInclusive<usize> = 2..=4;
/// Hasty, so that what stands still is noticed.
const TIMEOUTS: &str = "timeout_ms=300&connect_timeout_ms=1000";
/// How long a client may need to find a server for the first time, through a network that fails.
const CONNECT_TRIES: u32 = 50;
const CONNECT_PAUSE_MS: u64 = 20;

/// A sort of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Memcached(Version),
    /// By the commands of old.
    Classic,
    /// Two or three that keys are spread over, one of which suffers at a time.
    Several,
    /// The same, and it is one and the same that suffers.
    SparingOthers,
    /// 2 MB that others fill, and the server evicts.
    Evicting,
    /// 2 MB that others fill, and the server refuses.
    Full,
    /// Nothing saved.
    Redis(RedisVersion),
    /// Everything on the disk before it is acknowledged.
    RedisSaved(RedisVersion),
    /// A primary whose replica takes over.
    Pair(RedisVersion),
    Cluster(RedisVersion),
    OwnMemory,
    OwnDurable,
}

impl Stage {
    /// What can be done to it.
    pub(crate) fn deeds(self) -> &'static [Deed] {
        match self {
            Stage::Memcached(_) | Stage::Classic | Stage::Several | Stage::SparingOthers => {
                &[Deed::Stop, Deed::Kill, Deed::Flush, Deed::FlushLater]
            }
            Stage::Evicting | Stage::Full => &[Deed::Stop, Deed::Fill],
            Stage::Redis(_) | Stage::RedisSaved(_) => &[Deed::Stop, Deed::Kill, Deed::Flush],
            Stage::Pair(_) => &[Deed::Stop, Deed::FailOver],
            Stage::Cluster(version) => Partitioned::grave_of(version),
            Stage::OwnMemory | Stage::OwnDurable => &[Deed::Stop, Deed::Kill],
        }
    }

    /// What the findings call it: what comes to something else on a stage of its own is counted apart.
    pub(crate) fn fault(self, deed: Deed) -> String {
        let apart = match (self, deed) {
            (Stage::Cluster(_), Deed::Kill | Deed::Stop) => ", in a cluster",
            (Stage::Evicting, Deed::Fill) => ": it evicts",
            (Stage::Full, Deed::Fill) => ": it refuses",
            _ => "",
        };
        format!("faults: {}{apart}", deed.as_str())
    }

    /// Whether structures use what Redis alone has.
    pub(crate) fn is_redis(self) -> bool {
        matches!(self, Stage::Redis(_) | Stage::RedisSaved(_) | Stage::Pair(_) | Stage::Cluster(_))
    }
}

/// Each as often as it stands here. A cluster takes as long as twenty of the others.
pub(crate) const STAGES: &[Stage] = &[
    Stage::Memcached(Version::New),
    Stage::Memcached(Version::Old),
    Stage::Classic,
    Stage::Several,
    Stage::Several,
    Stage::Evicting,
    Stage::Full,
    Stage::Redis(RedisVersion::Redis7),
    Stage::Redis(RedisVersion::Valkey),
    Stage::RedisSaved(RedisVersion::Redis8),
    Stage::RedisSaved(RedisVersion::Valkey),
    Stage::Pair(RedisVersion::Redis7),
    Stage::Pair(RedisVersion::Valkey),
    Stage::OwnMemory,
    Stage::OwnDurable,
    Stage::OwnDurable,
];

/// A stage that is set.
pub(crate) struct Scene {
    pub(crate) arena: Arena,
    pub(crate) trouble: Arc<dyn Trouble>,
    /// The networks that fail.
    pub(crate) proxies: Vec<Arc<Proxy>>,
}

/// What a stage is set with.
struct Props {
    /// As the clients name it, but for its options.
    url: String,
    quiet: String,
    proxies: Vec<Arc<Proxy>>,
    begin: Box<dyn FnOnce(Arc<Caused>) -> Arc<dyn Trouble> + Send>,
}

/// Starts the server, connects the clients, and lets things happen from there on, within `within_ms`.
///
/// # Panics
/// When a server does not come up: nothing can be shown then.
pub(crate) async fn set(stage: Stage, kind: Kind, seed: u64, within_ms: u64) -> Scene {
    let props = tokio::task::spawn_blocking(move || props(stage, seed, within_ms)).await.expect("a server");
    let mut rng = Rng::with_seed(Drawn::Stage.of(seed));
    let mut clients = Vec::new();
    let caused = Arc::new(Caused::default());
    for _ in 0..rng.usize(CLIENTS) {
        // What is given up may stand in a buffer, or with a server that was stopped, and be carried out later.
        let client = connect(&format!("{}{TIMEOUTS}", props.url)).await;
        clients.push(Arc::new(Watched::new(client, Arc::clone(&caused))) as StoreRef);
    }
    let quiet = connect(&format!("{}timeout_ms=10000&connect_timeout_ms=10000", props.quiet)).await;
    for (proxy, number) in props.proxies.iter().zip(0..) {
        let rates = rates(&mut rng, stage, kind);
        // A proxy tells nobody as it sends something twice.
        caused.late.fetch_add(u64::from(rates.duplicate > 0.0), Ordering::SeqCst);
        proxy.draw(simulation::mixed(Drawn::Networks.of(seed) ^ number), rates);
    }
    let trouble = (props.begin)(Arc::clone(&caused));
    let calm = calm(Arc::clone(&trouble), props.proxies.clone());
    Scene { arena: Arena { clients, quiet, caused, calm }, trouble, proxies: props.proxies }
}

/// A network is better or worse, and a request's fate is its own.
fn rates(rng: &mut Rng, stage: Stage, kind: Kind) -> Rates {
    let each = [0.003, 0.01, 0.03][rng.usize(..3)];
    Rates {
        duplicate: if bears_duplicates(stage, kind) { each } else { 0.0 },
        lost_request: each,
        lost_reply: each,
        late_delivery: each,
        cut_request: each,
        cut_reply: each,
        half_open: each / 8.0,
        reorder: each,
        delay: 2.0 * each,
        late_ms_max: 60,
        ..Rates::NONE
    }
}

/// Whether a request that was answered may be carried out a second time. No connection does that, and the contract of a store does not speak of it; a router between can. What
/// is written by token, or appended by writer and sequence, to items that are made once and stay, bears it; what the server's arithmetic counts, an
/// item that was removed, and a command of the server's own do not.
fn bears_duplicates(stage: Stage, kind: Kind) -> bool {
    let is_by_token =
        matches!(stage, Stage::Memcached(Version::New) | Stage::Several | Stage::OwnMemory | Stage::OwnDurable);
    // Each of them is emptied in some plans, and lives on.
    is_by_token && simulation::bears_twice(kind, true)
}

fn calm(trouble: Arc<dyn Trouble>, proxies: Vec<Arc<Proxy>>) -> Calm {
    Arc::new(move || {
        let (trouble, proxies) = (Arc::clone(&trouble), proxies.clone());
        Box::pin(async move {
            // The server serves first: what is still under way arrives at it.
            let end = move || {
                trouble.end();
                proxies.iter().for_each(|proxy| proxy.drain());
            };
            tokio::task::spawn_blocking(end).await.expect("deeds that end");
        })
    })
}

async fn connect(url: &str) -> StoreRef {
    let mut tries = 0;
    loop {
        match larder::open(url).await {
            Ok(store) => return store,
            Err(error) => {
                tries += 1;
                assert!(tries < CONNECT_TRIES, "{url} cannot be opened: {error}");
                tokio::time::sleep(Duration::from_millis(CONNECT_PAUSE_MS)).await;
            }
        }
    }
}

fn props(stage: Stage, seed: u64, within_ms: u64) -> Props {
    let memcached = |version, args: &[&str]| Memcached::start(version, args);
    let redis = |version, options: &RedisOptions| RedisServer::start(version, options);
    let plan = Plan { seed, within_ms };
    match stage {
        Stage::Memcached(version) => {
            let server = memcached(version, &[]);
            plan.behind_proxy("memcached", "?", server.addr(), Cache::new(server))
        }
        Stage::Classic => {
            let server = memcached(if seed.is_multiple_of(2) { Version::Old } else { Version::New }, &[]);
            plan.behind_proxy("memcached", "?dialect=classic&", server.addr(), Cache::new(server))
        }
        Stage::Several | Stage::SparingOthers => {
            plan.several((0..2 + seed % 2).map(|_| memcached(Version::New, &[])).collect(), stage)
        }
        Stage::Evicting => {
            let server = memcached(Version::New, &["-m", if seed.is_multiple_of(2) { "2" } else { "3" }]);
            plan.behind_proxy("memcached", "?", server.addr(), Small::new(server, true))
        }
        Stage::Full => {
            let server = memcached(Version::New, &["-m", "2", "-M"]);
            plan.behind_proxy("memcached", "?", server.addr(), Small::new(server, false))
        }
        Stage::Redis(version) => {
            let server = redis(version, &RedisOptions::new());
            plan.behind_proxy("redis", "?", server.addr(), Redis::new(server, false))
        }
        Stage::RedisSaved(version) => {
            let server = redis(version, &RedisOptions::new().appendonly());
            plan.behind_proxy("redis", "?", server.addr(), Redis::new(server, true))
        }
        Stage::Pair(version) => {
            let pair = Pair::start(version, 2);
            let (faulty, quiet) = (Arc::clone(&pair.proxies()[0]), pair.proxies()[1].addr());
            Props {
                url: format!("redis://{}?", faulty.addr()),
                quiet: format!("redis://{quiet}?"),
                proxies: vec![faulty],
                begin: plan.begin(pair),
            }
        }
        Stage::Cluster(version) => {
            // One that is cut off goes on serving what it has.
            let options = RedisOptions::new().arg("cluster-require-full-coverage", "no");
            let cluster = RedisCluster::start_with(version, &options);
            let nodes: Vec<String> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
            let url = format!("redis-cluster://{}?", nodes.join(","));
            Props {
                url: url.clone(),
                quiet: url,
                proxies: Vec::new(),
                begin: plan.begin(Partitioned::new(cluster, version)),
            }
        }
        Stage::OwnMemory | Stage::OwnDurable => {
            let program = served::start(stage == Stage::OwnDurable);
            plan.behind_proxy("memcached", "?", program.addr(), program)
        }
    }
}

#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    within_ms: u64,
}

impl Plan {
    fn behind_proxy<V: Victim + 'static>(
        self,
        scheme: &str,
        options: &str,
        addr: std::net::SocketAddr,
        victim: V,
    ) -> Props {
        let proxy = Arc::new(Proxy::start(addr));
        Props {
            url: format!("{scheme}://{}{options}", proxy.addr()),
            quiet: format!("{scheme}://{addr}{options}"),
            proxies: vec![proxy],
            begin: self.begin(victim),
        }
    }

    /// Keys are spread by the servers' names: so the quiet client goes through the networks as well, once they fail no more.
    fn several(self, servers: Vec<Memcached>, stage: Stage) -> Props {
        let proxies: Vec<Arc<Proxy>> = servers.iter().map(|server| Arc::new(Proxy::start(server.addr()))).collect();
        let names: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        let url = format!("memcached://{}?", names.join(","));
        let spares = stage == Stage::SparingOthers;
        let victim = if spares { Several::of_which_one_suffers(servers) } else { Several::new(servers) };
        Props { url: url.clone(), quiet: url, proxies, begin: self.begin(victim) }
    }

    fn begin<V: Victim + 'static>(self, victim: V) -> Box<dyn FnOnce(Arc<Caused>) -> Arc<dyn Trouble> + Send> {
        Box::new(move |caused| Arc::new(Nemesis::begin(victim, Drawn::Deeds.of(self.seed), self.within_ms, caused)))
    }
}
