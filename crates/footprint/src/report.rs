//! A report: what a store's memory goes into.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use larder_core::survey::{DataType, Measured, Pace, Sample, Survey, Told, Vitals};
use larder_core::{Batch, Ctx, Encodings, Error, ErrorKind, Op, Result, Route, StoreRef, Want};
use larder_structures::inspect::inspect;
use larder_structures::sharded::{self, Dense};
use larder_structures::{Kind, Manifest, Name, registry};

use crate::advice::{Advice, advise};
use crate::estimate::Estimate;
use crate::group::Group;
use crate::groups::{Collector, Like, Tally, samples};
use crate::packed::{Allocator, is_unpacked};
use crate::pattern::{Belongs, Owner};

/// Keys that one request for a closer look has.
const SAMPLES_AT_ONCE: usize = 1_000;
/// On so many servers a manifest may stand.
const COPIES_MAX: u8 = 5;
/// Names whose manifests are looked for in other places at once.
const NAMES_A_LOOK: usize = 64;

/// How a report is made.
///
/// ```
/// use larder_footprint::Options;
/// let options = Options { samples: 1_000, ..Options::default() };
/// assert!(!options.elements);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// How fast servers are asked.
    pub pace: Pace,
    /// How many keys of each group are looked at closer, drawn at random. The error falls with the square root of it.
    pub samples: u32,
    /// Whether structures are asked for their elements, where their keys do not tell: that reads them whole.
    pub elements: bool,
    /// Which keys are drawn.
    pub seed: u64,
    /// When to stop.
    pub ctx: Ctx,
}

impl Default for Options {
    /// 100 keys of each group, no more than 100,000 keys a second, drawn by chance.
    fn default() -> Options {
        Options { pace: Pace::default(), samples: 100, elements: false, seed: fastrand::u64(..), ctx: Ctx::default() }
    }
}

/// How far a report has come.
///
/// ```
/// let step = larder_footprint::Step::Keys { done: 10_000, of: Some(1_000_000) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Keys that were listed; of so many, where the servers told.
    Keys {
        /// So many.
        done: u64,
        /// Of so many.
        of: Option<u64>,
    },
    /// Keys that were looked at closer.
    Samples {
        /// So many.
        done: u64,
        /// Of so many.
        of: u64,
    },
    /// Structures that were asked for their elements.
    Structures {
        /// So many.
        done: u64,
        /// Of so many.
        of: u64,
    },
}

/// What a store's memory goes into. See [`report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// What each server says of itself.
    pub nodes: Vec<Vitals>,
    /// Servers that did not answer: their keys are not in it.
    pub silent: Vec<Error>,
    /// What keys have in common, those that take most first.
    pub groups: Vec<Group>,
    /// The structures, by their names.
    pub structures: Vec<Footprint>,
    /// How many keys there are.
    pub keys: u64,
    /// What they take together.
    pub bytes: Estimate,
    /// Bytes that are resident, or on disk, for each that keys take, where groups were not told their own. On disk with the room that journals have from the beginning, 64 MiB each: so it is not that of a group.
    pub resident_ratio: Option<f64>,
    /// What may be a loss, then what would save memory, what saves most first.
    pub advice: Vec<Advice>,
    /// How many keys of each group were drawn at the most.
    pub samples: u32,
    /// How long it took.
    pub took: Duration,
}

/// What a structure takes, all its keys together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Footprint {
    /// Its name.
    pub name: Name,
    /// What it is; `None` where its manifest cannot be read.
    pub kind: Option<Kind>,
    /// How many keys it has.
    pub keys: u64,
    /// What they take.
    pub bytes: f64,
    /// What is resident for them.
    pub resident_bytes: Option<f64>,
    /// How many elements it has, where they were counted.
    pub elements: Option<f64>,
}

impl Report {
    /// The limits of packed encodings, of the first server that tells them.
    pub fn encodings(&self) -> Option<Encodings> {
        encodings(&self.nodes)
    }
}

pub(crate) fn encodings(nodes: &[Vitals]) -> Option<Encodings> {
    nodes.iter().find_map(|vitals| vitals.encodings)
}

/// Finds out what a store's memory goes into: lists its keys, looks closer at some of each kind, and works out what would save memory.
///
/// **It may run on a server that is busy.** It reads and writes nothing; it asks for a few hundred keys at a time, and pauses by its [`Pace`]; what it holds is bounded by the number of
/// groups, not of keys. **No snapshot**: what comes and goes meanwhile may be in it or not.
///
/// `store` must be the one that `survey` came with: manifests are read from it.
///
/// **Round trips:** 1 a server for its figures, those of the [walk](Survey::walk) and of the [closer looks](Survey::measure), 1 for every 256 structures, over several servers
/// 1 more for every 64 whose manifest is not where it belongs, 1 for each sharded structure of dense numbers; with [`elements`](Options::elements), those of [`inspect`] for each structure whose keys do not tell:
/// as whoever opens it does, it puts back copies of the manifest that are missing, which is all that is ever written.
///
/// # Errors
/// Those of the survey; where no server answers, that of one. A server that does not answer beside others that do is among [`silent`](Report::silent) if its keys could be listed
/// nevertheless.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// use larder_structures::Set;
/// let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let store: larder_core::StoreRef = memory.clone();
/// Set::open_or_create(&store, "tags").await?.add(["red", "green"]).await?;
/// let options = larder_footprint::Options { elements: true, ..Default::default() };
/// let report = larder_footprint::report(&store, &*memory, &options, &mut |_| ()).await?;
/// assert_eq!((report.keys, report.structures[0].elements), (2, Some(2.0)));
/// # Ok(()) }
/// ```
pub async fn report(
    store: &StoreRef,
    survey: &dyn Survey,
    options: &Options,
    told: &mut (dyn FnMut(Step) + Send),
) -> Result<Report> {
    let begun = Instant::now();
    let (nodes, silent) = vitals(survey, options.ctx).await?;
    let of = nodes.iter().map(|node| node.items).sum::<Option<u64>>().filter(|_| silent.is_empty());
    let mut collector = Collector::new(options.samples as usize, options.seed);
    let mut tell = |seen: Told<'_>| match seen {
        Told::Key(seen) => collector.count(&seen),
        Told::LookedAt(done) => told(Step::Keys { done, of }),
    };
    survey.walk(options.ctx, options.pace, &mut tell).await?;
    let (sorter, tallies) = collector.finish();
    let measured = measure(survey, options, &tallies, told).await?;
    let manifests = manifests(store, options.ctx, sorter.names()).await?;
    let dense = dense(store, options.ctx, &manifests).await?;
    let limits = encodings(&nodes);
    let ratio = resident_ratio(&nodes);
    let mut groups: Vec<Group> = Vec::with_capacity(tallies.len());
    for ((like, tally), measured) in tallies.iter().zip(measured) {
        let (owner, kind) = owner(like, &manifests);
        let mut group = Group::counted(owner, kind, like, tally);
        if let Owner::Structure { name, is_left_over: false } = &group.owner {
            group.dense = dense.get(name).copied();
        }
        if tally.bytes.is_none() {
            group = group.measured(corrected(measured, like, &nodes), limits.as_ref());
        }
        // memcached's figures are the chunks; elsewhere the ratio of all servers together must do.
        group.resident_bytes = group.resident_bytes.or(ratio.map(|ratio| ratio * group.bytes.value));
        groups.push(group);
    }
    let mut report = assembled(nodes, silent, groups, options.samples);
    if options.elements {
        ask_structures(store, options.ctx, &mut report, told).await?;
    }
    report.took = begun.elapsed();
    Ok(report)
}

/// The same with what the server leaves out or counts and does not take, of the entries of dictionaries, of which the key is one.
fn corrected(mut measured: Vec<(Vec<u8>, Measured)>, like: &Like, nodes: &[Vitals]) -> Vec<(Vec<u8>, Measured)> {
    let (on, is_dictionary) = (Allocator::of(nodes), is_unpacked(like.data_type, &like.encoding));
    for (_, measured) in &mut measured {
        let uncounted = on.uncounted(nodes, like.data_type, is_dictionary, measured.elements);
        measured.bytes = measured.bytes.saturating_add_signed(uncounted);
    }
    measured
}

/// What the servers say of themselves, and those that say nothing.
async fn vitals(survey: &dyn Survey, ctx: Ctx) -> Result<(Vec<Vitals>, Vec<Error>)> {
    let (mut nodes, mut silent) = (Vec::new(), Vec::new());
    for told in survey.vitals(ctx).await {
        match told {
            Ok(vitals) => nodes.push(vitals),
            Err(error) => silent.push(error),
        }
    }
    match silent.pop() {
        Some(error) if nodes.is_empty() => Err(error),
        error => {
            silent.extend(error);
            Ok((nodes, silent))
        }
    }
}

/// Looks closer at what was drawn of each group: those that were still there, with their keys.
async fn measure(
    survey: &dyn Survey,
    options: &Options,
    tallies: &[(Like, Tally)],
    told: &mut (dyn FnMut(Step) + Send),
) -> Result<Vec<Vec<(Vec<u8>, Measured)>>> {
    let mut all: Vec<(usize, Sample)> = Vec::new();
    for (at, (like, tally)) in tallies.iter().enumerate() {
        all.extend(samples(like, tally).into_iter().map(|sample| (at, sample)));
    }
    let mut found = vec![Vec::new(); tallies.len()];
    let (mut done, of) = (0, all.len() as u64);
    for part in all.chunks(SAMPLES_AT_ONCE) {
        let samples: Vec<Sample> = part.iter().map(|(_, sample)| sample.clone()).collect();
        let measured = survey.measure(options.ctx, options.pace, &samples).await?;
        for ((at, sample), measured) in part.iter().zip(measured) {
            found[*at].extend(measured.map(|measured| (sample.key.clone(), measured)));
        }
        done += part.len() as u64;
        told(Step::Samples { done, of });
    }
    Ok(found)
}

/// The manifests of names. One that is not where it belongs may stand as a copy on another server, until who opens the structure puts it back.
async fn manifests(store: &StoreRef, ctx: Ctx, names: Vec<Name>) -> Result<HashMap<Name, Result<Manifest>>> {
    let found = registry::manifests(store, ctx, names.clone()).await?;
    let mut found: HashMap<Name, Result<Manifest>> =
        found.into_iter().map(|listed| (listed.name, listed.manifest)).collect();
    let missing = names.into_iter().filter(|name| !found.contains_key(name)).collect();
    found.extend(copies(store, ctx, missing).await?);
    Ok(found)
}

/// How structures of dense numbers are cut into shards; without those whose map is gone, or is none.
async fn dense(store: &StoreRef, ctx: Ctx, all: &HashMap<Name, Result<Manifest>>) -> Result<HashMap<Name, Dense>> {
    let mut found = HashMap::new();
    for (name, manifest) in all {
        let Ok(manifest) = manifest else { continue };
        match sharded::dense(store, ctx, name, manifest).await {
            Err(error) if is_of_its_item(error.kind()) => {}
            dense => found.extend(dense?.map(|dense| (name.clone(), dense))),
        }
    }
    Ok(found)
}

/// Manifests that stand as copies only. They are read and left as they are: `registry::find` would mend.
async fn copies(store: &StoreRef, ctx: Ctx, names: Vec<Name>) -> Result<HashMap<Name, Result<Manifest>>> {
    let mut found = HashMap::new();
    let profile = store.profile();
    let ranks = u8::try_from(profile.nodes).unwrap_or(u8::MAX).clamp(1, COPIES_MAX);
    let names_max = (profile.batch_ops_max / usize::from(ranks)).clamp(1, NAMES_A_LOOK);
    for part in names.chunks(names_max).filter(|_| ranks > 1) {
        let places: Vec<(&Name, u8)> = part.iter().flat_map(|name| (1..ranks).map(move |rank| (name, rank))).collect();
        let get = |&(name, rank): &(&Name, u8)| {
            Ok(Op::get(name.manifest_key()?, Want::VALUE).routed(Route { with: None, rank }))
        };
        let replies = store.run(ctx, places.iter().map(get).collect::<Result<Batch>>()?).await;
        for ((name, rank), reply) in places.into_iter().zip(replies) {
            // One that is no copy was left there by another list of servers.
            let copy = match reply {
                Err(error) if !error.is_unknown() && is_of_its_item(error.kind()) => None,
                reply => reply?.into_item().and_then(|item| Manifest::decode(&item.value).ok()),
            };
            if let Some(manifest) = copy.filter(|manifest| rank < manifest.copies) {
                found.entry(name.clone()).or_insert(Ok(manifest));
            }
        }
    }
    Ok(found)
}

/// True if a read failed by what stands there, another program's value: it says nothing of others.
fn is_of_its_item(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::LayoutMismatch | ErrorKind::BadInput)
}

/// Whose keys are, and of which kind that is.
fn owner(like: &Like, manifests: &HashMap<Name, Result<Manifest>>) -> (Owner, Option<Kind>) {
    match &like.belongs {
        Belongs::Pattern(pattern) => (Owner::Foreign(pattern.clone()), None),
        Belongs::OtherStructures => (Owner::OtherStructures, None),
        Belongs::Life(name, life) => {
            let Some(manifest) = manifests.get(name) else { return (Owner::Unclaimed(name.clone()), None) };
            // One that cannot be read is of a kind that this release does not know.
            let manifest = manifest.as_ref().ok();
            let is_left_over = manifest.zip(*life).is_some_and(|(manifest, life)| manifest.generation != life);
            let kind = manifest.map(|manifest| manifest.kind).filter(|_| !is_left_over);
            (Owner::Structure { name: name.clone(), is_left_over }, kind)
        }
    }
}

/// Bytes that are resident for each that is used, of all servers together; one that does not tell how many it uses counts next to nothing.
fn resident_ratio(nodes: &[Vitals]) -> Option<f64> {
    let told = nodes.iter().filter_map(|node| Some((node.resident_ratio?, node.used_bytes.unwrap_or(1).max(1) as f64)));
    let (resident, used) =
        told.fold((0.0, 0.0), |(resident, all), (ratio, used)| (resident + ratio * used, all + used));
    (used > 0.0).then(|| resident / used)
}

/// A report of groups.
fn assembled(nodes: Vec<Vitals>, silent: Vec<Error>, groups: Vec<Group>, samples: u32) -> Report {
    let mut groups = joined(groups);
    groups.sort_by(|one, other| other.bytes.value.total_cmp(&one.bytes.value));
    let keys = groups.iter().map(|group| group.keys).sum();
    let bytes = groups.iter().fold(Estimate::exact(0.0, 0), |sum, group| sum.plus(group.bytes));
    let disk: u64 = nodes.iter().filter_map(|node| node.disk_bytes).sum();
    let resident_ratio = match disk {
        0 => resident_ratio(&nodes),
        disk => Some(disk as f64 / bytes.value).filter(|ratio| ratio.is_finite()),
    };
    let advice = advise(&groups, &nodes);
    let structures = footprints(&groups);
    Report { nodes, silent, groups, structures, keys, bytes, resident_ratio, advice, samples, took: Duration::ZERO }
}

/// The same with groups of one structure, type and encoding as one: manifests were counted apart, and so were lives that are over.
fn joined(groups: Vec<Group>) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::with_capacity(groups.len());
    let mut places: HashMap<(Owner, DataType, String), usize> = HashMap::new();
    for group in groups {
        let like = (group.owner.clone(), group.data_type, group.encoding.clone());
        match places.get(&like).and_then(|&place| out.get_mut(place)) {
            Some(known) => known.join(group),
            None => {
                places.insert(like, out.len());
                out.push(group);
            }
        }
    }
    out
}

fn footprints(groups: &[Group]) -> Vec<Footprint> {
    let mut found: BTreeMap<&Name, Footprint> = BTreeMap::new();
    for group in groups {
        let Owner::Structure { name, is_left_over: false } = &group.owner else { continue };
        let footprint = found.entry(name).or_insert_with(|| Footprint {
            name: name.clone(),
            kind: group.kind,
            keys: 0,
            bytes: 0.0,
            resident_bytes: Some(0.0),
            elements: None,
        });
        footprint.kind = footprint.kind.or(group.kind);
        footprint.keys += group.keys;
        footprint.bytes += group.bytes.value;
        footprint.resident_bytes = footprint.resident_bytes.zip(group.resident_bytes).map(|(sum, more)| sum + more);
        if let Some(elements) = group.elements {
            footprint.elements = Some(footprint.elements.unwrap_or(0.0) + elements.value);
        }
    }
    found.into_values().collect()
}

/// Asks structures for elements that their keys do not tell.
async fn ask_structures(
    store: &StoreRef,
    ctx: Ctx,
    report: &mut Report,
    told: &mut (dyn FnMut(Step) + Send),
) -> Result<()> {
    let of = report.structures.len() as u64;
    for (done, structure) in (1..).zip(&mut report.structures) {
        if structure.elements.is_none() && structure.kind.is_some() {
            match inspect(store, ctx, &structure.name).await {
                Ok(Some(found)) => structure.elements = found.elements.map(|elements| elements as f64),
                Ok(None) => {}
                // Gone or damaged since: what it is, `inspect` tells.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Absent | ErrorKind::LayoutMismatch) => {}
                Err(error) => return Err(error),
            }
        }
        told(Step::Structures { done, of });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_ratio_is_that_of_all_servers_by_what_they_use() {
        let node = |ratio, used_bytes| {
            let mut vitals = Vitals::default();
            (vitals.resident_ratio, vitals.used_bytes) = (ratio, used_bytes);
            vitals
        };
        assert_eq!(resident_ratio(&[]), None);
        assert_eq!(resident_ratio(&[node(None, Some(100))]), None);
        assert_eq!(resident_ratio(&[node(Some(1.5), None)]), Some(1.5));
        // One that is empty, and holds ten times what it uses, is no measure of one that is full.
        let told = resident_ratio(&[node(Some(10.0), Some(1_000_000)), node(Some(1.1), Some(999_000_000))]).unwrap();
        assert!((told - 1.1089).abs() < 1e-9, "{told}");
    }
}
