//! The nodes of a cluster: which there are, who serves what, and the one task that finds it out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Error, ErrorKind, Result};
use larder_net::Backoff;
use parking_lot::{Mutex, RwLock};
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::JoinHandle;

use super::config::ClusterConfig;
use super::map::{PRIMARIES_MAX, Place, SlotMap};
use super::told::{Told, older};
use crate::codec::refused;
use crate::counters::{Counters, count};
use crate::handshake::text;
use crate::link::Lines;
use crate::node::{Node, Role};
use crate::replicas::Does;

/// Between two looks at the map, of which the last ones found nothing. Never shorter than its shortest, however often a look is asked for.
const LOOKS: Backoff =
    Backoff { first: Duration::from_millis(20), max: Duration::from_secs(1), min: Duration::from_millis(10) };
/// How long a node is kept that serves no slot any more: what was sent to it may still be answered.
const RETIRED: Duration = Duration::from_secs(30);
/// Nodes that are known at once: primaries, seeds, those that redirections named, and retired ones.
const NODES_MAX: usize = 2 * PRIMARIES_MAX;
/// Between two times that all nodes are asked for the map, of a cluster that has slots which nobody serves.
const ASK_ALL: Duration = Duration::from_millis(250);
/// Nodes that are asked for one map.
const ASKED_MAX: usize = 128;

/// A node, and the task that keeps its connection.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) node: Arc<Node>,
    keeper: JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.keeper.abort();
        self.node.close();
    }
}

/// A node, and since when it serves nothing.
type Known = (Arc<Member>, Option<Instant>);

/// The map of one moment, with its nodes.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) map: SlotMap,
    /// As many as the map has primaries, in its order.
    pub(crate) members: Vec<Arc<Member>>,
}

/// What the nodes share.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) config: ClusterConfig,
    pub(crate) counters: Arc<Counters>,
    /// Where the nodes are kept, by whoever's redirection they came.
    runtime: Handle,
    /// As [`RETIRED`].
    retired: Duration,
    topology: RwLock<Arc<Topology>>,
    /// Every node that is known. A lock of its own: nodes come by redirections, too.
    known: Mutex<HashMap<Place, Known>>,
    /// When all were last asked for the map.
    asked_all: Mutex<Option<Instant>>,
    /// Wakes the refresher.
    asked: Notify,
    /// Tells the refresher that a node came, which may have to go again.
    met: Notify,
    /// Wakes those who wait for a look to end.
    looked: Notify,
}

impl Nodes {
    pub(crate) fn new(config: ClusterConfig, counters: Arc<Counters>) -> Nodes {
        let empty = Topology { map: SlotMap::empty(), members: Vec::new() };
        Nodes {
            config,
            counters,
            runtime: Handle::current(),
            retired: RETIRED,
            topology: RwLock::new(Arc::new(empty)),
            known: Mutex::new(HashMap::new()),
            asked_all: Mutex::new(None),
            asked: Notify::new(),
            met: Notify::new(),
            looked: Notify::new(),
        }
    }

    /// Who serves what, as far as is known.
    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.topology.read().clone()
    }

    /// The node at a place, which begins to be known, and dialled, with that.
    pub(crate) fn at(&self, place: &Place) -> Result<Arc<Member>> {
        let mut known = self.known.lock();
        if let Some((member, _)) = known.get(place) {
            return Ok(member.clone());
        }
        if known.len() >= NODES_MAX {
            let detail = format!("{NODES_MAX} nodes of the cluster are known, which is the limit");
            return Err(Error::new(ErrorKind::Protocol, detail));
        }
        let node =
            Arc::new(Node::new(self.config.of(place), self.counters.clone(), Role::Member, self.runtime.clone())?);
        let keeper = self.runtime.spawn(node.clone().keep());
        let member = Arc::new(Member { place: place.clone(), node, keeper });
        // Until a map has it.
        known.insert(place.clone(), (member.clone(), Some(Instant::now())));
        self.met.notify_one();
        Ok(member)
    }

    /// Every node that is known.
    pub(crate) fn known(&self) -> Vec<Arc<Member>> {
        self.known.lock().values().map(|(member, _)| member.clone()).collect()
    }

    /// Ends with the next look at the map that ends after this was called.
    pub(crate) fn looked(&self) -> Notified<'_> {
        self.looked.notified()
    }

    /// Has the map looked at again, soon.
    pub(crate) fn refresh(&self) {
        self.asked.notify_one();
    }

    /// Waits until a look has ended that was asked for now, but no longer than `pause`, and not past the deadline.
    pub(crate) async fn refreshed(&self, pause: Duration, deadline: Instant) {
        let looked = self.looked.notified();
        self.refresh();
        let until = deadline.min(Instant::now() + pause);
        // Time is the one outcome, a new map the other; the caller looks.
        let _ = tokio::time::timeout_at(until.into(), looked).await;
    }

    /// Looks at the map whenever it is asked to: the only one that does, so that a failover brings no storm. Runs until it is aborted.
    pub(crate) async fn keep(self: Arc<Nodes>) {
        let mut failures = 0u32;
        loop {
            if failures == 0 {
                self.is_asked().await;
            }
            count(&self.counters.maps_read, 1);
            failures = if self.look().await.is_ok() { 0 } else { failures.saturating_add(1) };
            self.looked.notify_waiters();
            tokio::time::sleep(LOOKS.wait(failures)).await;
        }
    }

    /// Waits until a look is asked for. Nodes that have served nothing for long enough are forgotten meanwhile: they are dialled for as long as they are known.
    async fn is_asked(&self) {
        loop {
            let over = self.forget_retired();
            let retired = async {
                match over {
                    Some(over) => tokio::time::sleep_until(over.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.asked.notified() => return,
                () = self.met.notified() => {}
                () = retired => {}
            }
        }
    }

    /// Asks one node for the map, of those that serve a random one, and goes by it if it has every slot and is no older than the one gone by. One that was cut off from the others knows of its own slots
    /// alone, or of who served what before: so what lacks slots, or is older, or no answer, has the others asked, too, and the best map is gone by.
    ///
    /// An older one is never gone by, unless most primaries of the newer one tell older ones, or most primaries that the older one names are at its epoch, and nobody tells a newer one: an epoch that was
    /// agreed on most of them keep, so it was another cluster then, or it was made anew.
    ///
    /// A cluster may have slots that nobody serves. Then the others are asked now and then, and between that a map as full as the one gone by will do.
    pub(crate) async fn look(&self) -> Result<()> {
        let mut places = self.places().into_iter();
        let no_seed = || Error::new(ErrorKind::Config, "there is no seed; name one node at least");
        let first = self.at(&places.next().ok_or_else(no_seed)?)?;
        let known = self.topology();
        let told = ask(first.clone(), self.patience()).await;
        if let Ok(map) = &told {
            let is_asked = self.asked_all.lock().is_some_and(|before| before.elapsed() < ASK_ALL);
            let (is_older, is_whole) = (map.is_older_than(&known.map), map.is_whole());
            if is_older && is_asked {
                return Err(older(map, &known.map));
            }
            // At once: another may hang.
            if !is_older && (is_whole || map.fullness() >= known.map.fullness()) {
                self.install(map.clone())?;
            }
            if !is_older && (is_whole || is_asked) {
                return Ok(());
            }
        }
        let mut told = self.all_told(&known, &first, told, places).await;
        if told.is_behind() {
            self.named_told(&mut told).await;
        }
        *self.asked_all.lock() = Some(Instant::now());
        self.install(told.decided()?)
    }

    /// Whom to ask: first one that serves and is not known to be down, if there is one; then the seeds, which are never forgotten, and of all others some.
    fn places(&self) -> Vec<Place> {
        let mut serving = self.topology().members.clone();
        serving.retain(|member| member.node.health.error().is_none());
        let first = fastrand::choice(&serving).map(|member| member.place.clone());
        let mut others: Vec<Place> = self.known().iter().map(|member| member.place.clone()).collect();
        fastrand::shuffle(&mut others);
        let mut listed = HashSet::new();
        let all = first.into_iter().chain(self.config.seeds()).chain(others);
        all.filter(|place| listed.insert(place.clone())).take(ASKED_MAX).collect()
    }

    /// What a first node told and what the others tell, all asked at once. Ends with the first map that is whole and no older than the `known` one. A node that
    /// hangs holds up what others told for no longer than an op.
    async fn all_told(
        &self,
        known: &Arc<Topology>,
        first: &Arc<Member>,
        told: Result<SlotMap>,
        places: impl Iterator<Item = Place>,
    ) -> Told {
        let mut all = Told::new(known.clone());
        all.take(first, told);
        places.for_each(|place| self.put_to(&mut all, &place));
        let mut until = Instant::now() + self.patience();
        while !all.is_whole() {
            if all.is_told() {
                until = until.min(Instant::now() + self.config.node.timeout);
            }
            let next = tokio::time::timeout_at(until.into(), all.open.join_next()).await;
            let Ok(Some(Ok((member, told)))) = next else { break };
            all.take(&member, told);
        }
        all
    }

    /// Nothing but older maps was told: whoever these name is asked, too, for as long as an op may take, and who was asked before and has not answered is waited for.
    async fn named_told(&self, all: &mut Told) {
        for place in all.unasked() {
            self.put_to(all, &place);
        }
        let until = Instant::now() + self.config.node.timeout;
        while all.is_behind() {
            let next = tokio::time::timeout_at(until.into(), all.open.join_next()).await;
            let Ok(Some(Ok((member, told)))) = next else { break };
            all.take(&member, told);
        }
    }

    /// Asks one more.
    fn put_to(&self, all: &mut Told, place: &Place) {
        all.asked.insert(place.clone());
        match self.at(place) {
            Ok(member) => {
                let patience = self.patience();
                all.open.spawn(async move { (member.clone(), ask(member, patience).await) });
            }
            Err(error) => all.cannot_ask(error),
        }
    }

    /// How long one node may take to tell the map: it may have to be dialled first.
    fn patience(&self) -> Duration {
        self.config.node.connect_timeout + self.config.node.timeout
    }

    /// Makes a map the one to go by, begins to know its nodes, and forgets those that have served nothing for a while.
    fn install(&self, map: SlotMap) -> Result<()> {
        let members = map.primaries().iter().map(|place| self.at(place)).collect::<Result<Vec<_>>>()?;
        *self.topology.write() = Arc::new(Topology { map, members });
        self.forget_retired();
        Ok(())
    }

    /// Forgets the nodes that have served nothing for a while, and says when the next one is to be.
    fn forget_retired(&self) -> Option<Instant> {
        let topology = self.topology();
        let serving: HashSet<&Place> = topology.members.iter().map(|member| &member.place).collect();
        let now = Instant::now();
        let (mut forgotten, mut next) = (Vec::new(), None::<Instant>);
        let mut known = self.known.lock();
        // Who is missing from a map with holes may be the one who knows better.
        let are_kept = !topology.map.is_whole() && known.len() < PRIMARIES_MAX;
        known.retain(|place, (member, idle)| {
            if serving.contains(place) {
                *idle = None;
                return true;
            }
            let over = *idle.get_or_insert(now) + self.retired;
            if are_kept {
                return true;
            }
            if over <= now {
                forgotten.push(member.clone());
                return false;
            }
            next = Some(next.map_or(over, |next| next.min(over)));
            true
        });
        // Whoever is the last to know one closes its connection: not under the lock.
        drop(known);
        next
    }
}

/// **Round trips: 1.**
async fn ask(member: Arc<Member>, patience: Duration) -> Result<SlotMap> {
    let named = |error: Error| error.store(member.node.name());
    let [mut slots, mut info] = ["CLUSTER", "CLUSTER"].map(redis::cmd);
    slots.arg("SLOTS");
    info.arg("INFO");
    // A node that was just begun to be known is being dialled: that is waited for.
    let answered = member.node.run(Lines::Some(&[&slots, &info]), Does::Asks, Instant::now() + patience).await;
    let mut values = answered.map_err(|fault| named(fault.error))?.into_iter();
    match values.next() {
        Some(Value::ServerError(error)) => Err(named(refused(&error))),
        Some(value) => {
            let map = SlotMap::read(&value, &member.place).map_err(named)?;
            if map.primaries().is_empty() {
                let detail =
                    "no slot is served as this node sees it: make the cluster (redis-cli --cluster create), or fix it";
                return Err(named(Error::new(ErrorKind::Unavailable, detail)));
            }
            // It only tells equally full maps apart, and may be forbidden.
            Ok(map.at_epoch(&values.next().map(|info| text(&info)).unwrap_or_default()))
        }
        None => Err(named(larder_core::ext::no_reply())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, config};
    use super::super::slot::{SLOTS, Slot};
    use super::*;

    const LAST: u16 = SLOTS as u16 - 1;

    fn nodes(seeds: &[&Fake]) -> Arc<Nodes> {
        Arc::new(Nodes::new(config(seeds), Arc::default()))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_that_was_met_in_a_runtime_that_ends_is_kept_in_the_stores_own() {
        let fake = Fake::start().await;
        let nodes = nodes(&[&fake]);
        let (theirs, place) = (nodes.clone(), fake.place());
        let met = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { theirs.at(&place).map(drop) })
        });
        met.join().unwrap().unwrap();
        let member = nodes.at(&fake.place()).unwrap();
        member.node.link_by(Instant::now() + Duration::from_secs(5)).await.unwrap();
    }

    /// Who serves the first and the last slot, as is gone by.
    fn owners(nodes: &Nodes) -> [u16; 2] {
        let topology = nodes.topology();
        [0, SLOTS - 1].map(|slot| topology.members[topology.map.owner(Slot::at(slot)).unwrap()].place.port)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_map_of_an_older_epoch_never_takes_the_place_of_a_newer_one() {
        let (left, right) = (Fake::start().await, Fake::start().await);
        let halves = [(0, 8_191, &left), (8_192, LAST, &right)];
        let nodes = nodes(&[&left, &right]);
        left.says(6, &halves);
        right.says(6, &halves);
        nodes.look().await.unwrap();
        // It was cut off when the right one took over, and knows of nothing.
        left.says(5, &[(0, LAST, &left)]);
        for _ in 0..20 {
            // As often as the right one is asked, by chance or behind the left one, that is well.
            _ = nodes.look().await;
            assert_eq!(owners(&nodes), [left.port, right.port]);
        }
        let gone = right.port;
        drop(right);
        let down = || nodes.known().iter().any(|member| member.node.health.error().is_some());
        while !down() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(nodes.look().await.unwrap_err().kind(), ErrorKind::Unavailable, "nobody who answers knows better");
        assert_eq!(owners(&nodes), [left.port, gone], "the newest that was told is kept");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_that_was_made_anew_is_gone_by_though_its_epochs_begin_again() {
        let (left, right) = (Fake::start().await, Fake::start().await);
        let nodes = nodes(&[&left, &right]);
        for (epoch, slots) in
            [(6, [(0, 8_191, &left), (8_192, LAST, &right)]), (2, [(0, 99, &right), (100, LAST, &left)])]
        {
            left.says(epoch, &slots);
            right.says(epoch, &slots);
            nodes.look().await.unwrap();
            assert_eq!(owners(&nodes), [slots[0].2.port, slots[1].2.port]);
        }
    }

    /// Seeds that stay, as names do, which serve nothing themselves, and three primaries, all gone by at epoch 9; and as many new nodes.
    async fn served(seeds: &[&Fake]) -> (Arc<Nodes>, [Fake; 3], [Fake; 3]) {
        let [olds, news] = [start_three().await, start_three().await];
        seeds.iter().copied().chain(&olds).for_each(|fake| fake.says(9, &thirds(&olds)));
        let nodes = nodes(seeds);
        nodes.look().await.unwrap();
        assert_eq!(owners(&nodes), [olds[0].port, olds[2].port]);
        (nodes, olds, news)
    }

    async fn start_three() -> [Fake; 3] {
        [Fake::start().await, Fake::start().await, Fake::start().await]
    }

    fn thirds(of: &[Fake; 3]) -> [(u16, u16, &Fake); 3] {
        [(0, 4_999, &of[0]), (5_000, 9_999, &of[1]), (10_000, LAST, &of[2])]
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_that_was_made_anew_at_other_places_is_gone_by_once_most_of_its_primaries_say_so() {
        let (one, two) = (Fake::start().await, Fake::start().await);
        let (nodes, olds, news) = served(&[&one, &two]).await;
        drop(olds);
        // Mid-way: nobody but the seeds, and one of three, which a node that was cut off could be.
        [&one, &two, &news[0]].iter().for_each(|fake| fake.says(6, &thirds(&news)));
        news[1].says(5, &thirds(&news));
        assert_eq!(nodes.look().await.unwrap_err().kind(), ErrorKind::Unavailable);
        news[1].says(6, &thirds(&news));
        tokio::time::sleep(ASK_ALL).await;
        nodes.look().await.unwrap();
        assert_eq!(owners(&nodes), [news[0].port, news[2].port]);
        // From here on as ever.
        [&one, &two].into_iter().chain(&news).for_each(|fake| fake.says(7, &thirds(&news)));
        nodes.look().await.unwrap();
        assert_eq!(nodes.topology().map.epoch(), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_of_one_primary_that_was_made_anew_elsewhere_is_gone_by() {
        let (seed, before, after) = (Fake::start().await, Fake::start().await, Fake::start().await);
        [&seed, &before].iter().for_each(|fake| fake.says(9, &[(0, LAST, &before)]));
        let nodes = nodes(&[&seed]);
        nodes.look().await.unwrap();
        drop(before);
        [&seed, &after].iter().for_each(|fake| fake.says(1, &[(0, LAST, &after)]));
        nodes.look().await.unwrap();
        assert_eq!(owners(&nodes), [after.port; 2]);
    }

    /// Each was cut off by itself, at an epoch of its own: what they name they do not agree on, though most of it answers, and all of it is older.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nodes_that_were_cut_off_one_after_the_other_are_no_cluster_that_was_made_anew() {
        let seed = Fake::start().await;
        let (nodes, olds, news) = served(&[&seed]).await;
        let kept = [olds[0].port, olds[2].port];
        drop(olds);
        seed.says(7, &thirds(&news));
        for (fake, epoch) in news.iter().zip([7, 8, 6]) {
            fake.says(epoch, &thirds(&news));
        }
        for _ in 0..2 {
            assert_eq!(nodes.look().await.unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(owners(&nodes), kept);
            tokio::time::sleep(ASK_ALL).await;
        }
        // It has forgotten the others: its word for itself is that of nobody else.
        [&seed, &news[0]].iter().for_each(|fake| fake.says(4, &[(0, 99, &news[0])]));
        assert_eq!(nodes.look().await.unwrap_err().kind(), ErrorKind::Unavailable);
        // A primary of the map that a seed tells may know better than the seed.
        seed.says(6, &thirds(&news));
        news[2].says(10, &thirds(&news));
        tokio::time::sleep(ASK_ALL).await;
        nodes.look().await.unwrap();
        assert_eq!((owners(&nodes), nodes.topology().map.epoch()), ([news[0].port, news[2].port], 10));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_that_serves_nothing_is_dialled_no_more_though_nobody_has_the_map_looked_at() {
        let (stays, goes) = (Fake::start().await, Fake::start().await);
        let retired = Duration::from_millis(300);
        let nodes = Arc::new(Nodes { retired, ..Nodes::new(config(&[&stays, &goes]), Arc::default()) });
        stays.says(1, &[(0, 99, &goes), (100, LAST, &stays)]);
        nodes.look().await.unwrap();
        let keeper = tokio::spawn(nodes.clone().keep());
        goes.says(2, &[(0, LAST, &stays)]);
        stays.says(2, &[(0, LAST, &stays)]);
        nodes.refreshed(Duration::from_secs(5), Instant::now() + Duration::from_secs(5)).await;
        assert_eq!(owners(&nodes), [stays.port; 2]);
        assert_eq!(nodes.known().len(), 2, "what was sent to it may still be answered");
        let gone = Arc::downgrade(&nodes.at(&goes.place()).unwrap());
        let deadline = Instant::now() + Duration::from_secs(5);
        while gone.upgrade().is_some() {
            assert!(Instant::now() < deadline, "it is kept for good");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let dials = goes.dials();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((goes.dials(), nodes.known().len()), (dials, 1));

        // One that a redirection named, and no map since.
        nodes.at(&goes.place()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while nodes.known().len() > 1 {
            assert!(Instant::now() < deadline, "the one of a redirection is kept for good");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        keeper.abort();
    }
}
