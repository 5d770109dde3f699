//! What it costs to be observed: the same op of the same structure, on a store whose every batch is told to somebody, and on the bare one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use larder_core::StoreRef;
use larder_layers::{MetricsObserver, Observed, TracingObserver};
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tracing_subscriber::filter::LevelFilter;

use super::jobs::Job;
use super::work::Work;
use super::{Ground, STRUCTURE, contestant};
use crate::Result;
use crate::contest::{self, Contest, Goal};

const UNOBSERVED: &str = "unobserved";

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The layer is there, an observer is not.
    Nobody,
    /// Everything is counted.
    Metrics,
    /// Everything is written, to nowhere.
    Tracing,
}

impl Told {
    pub(super) const ALL: [Told; 3] = [Told::Nobody, Told::Metrics, Told::Tracing];

    pub(super) fn name(self, store_name: &str) -> String {
        let told = match self {
            Told::Nobody => "the layer alone",
            Told::Metrics => "told to `metrics`",
            Told::Tracing => "told to `tracing`, every batch written",
        };
        format!("{store_name}: {}, {told}", Job::FastAdd.name())
    }

    /// The store, observed.
    fn layer(self, store: &StoreRef) -> Result<StoreRef> {
        let observed = Observed::new(store.clone(), "bench");
        Ok(Arc::new(match self {
            Told::Nobody => observed,
            Told::Metrics => {
                Totals::install()?;
                observed.to(Arc::new(MetricsObserver::new()))
            }
            Told::Tracing => {
                write_events()?;
                observed.to(Arc::new(TracingObserver))
            }
        }))
    }
}

/// The cheapest op, so that what is told weighs most.
pub(super) fn hold(ground: &Ground<'_>, store: &StoreRef, name: &str, told: Told) -> Result<Contest> {
    let observed = told.layer(store)?;
    let begin = |store: StoreRef, name: String| async move { Work::begin(Job::FastAdd, &store, &name).await };
    let with = ground.runtime.block_on(begin(observed, format!("observed-{told:?}")))?;
    let without = ground.runtime.block_on(begin(store.clone(), format!("unobserved-{told:?}")))?;
    let contestants = vec![
        contestant(ground, STRUCTURE, String::new(), vec![with]),
        contestant(ground, UNOBSERVED, String::new(), vec![without]),
    ];
    let goal = Goal { ours: STRUCTURE, against: vec![UNOBSERVED], limit: None };
    contest::hold(ground.progress, name, contest::Unit::MicrosPerOp, ground.plan.rounds, contestants, &[goal])
}

/// As a program does at its start: events of all levels are formatted. Nobody else in here uses `tracing`.
fn write_events() -> Result<()> {
    static WRITES: OnceLock<bool> = OnceLock::new();
    let writes = *WRITES.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(std::io::sink);
        subscriber.try_init().is_ok()
    });
    if writes { Ok(()) } else { Err("tracing has another subscriber".into()) }
}

/// A recorder as exporters have it: a table by name and labels, and atomic figures in it.
#[derive(Clone, Debug, Default)]
struct Totals(Arc<Tables>);

#[derive(Debug, Default)]
struct Tables {
    counters: RwLock<HashMap<Key, Arc<Total>, foldhash::fast::RandomState>>,
    histograms: RwLock<HashMap<Key, Arc<Total>, foldhash::fast::RandomState>>,
}

/// How often, and in all.
#[derive(Debug, Default)]
struct Total {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Totals {
    fn install() -> Result<()> {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        let installed = *INSTALLED.get_or_init(|| metrics::set_global_recorder(Totals::default()).is_ok());
        if installed { Ok(()) } else { Err("metrics has another recorder".into()) }
    }
}

impl CounterFn for Total {
    fn increment(&self, by: u64) {
        self.sum.fetch_add(by, Ordering::Relaxed);
    }

    fn absolute(&self, to: u64) {
        self.sum.fetch_max(to, Ordering::Relaxed);
    }
}

impl HistogramFn for Total {
    fn record(&self, seconds: f64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((seconds * 1e9) as u64, Ordering::Relaxed);
    }
}

/// The figure of this key; made when it is first asked for.
fn of<K: Clone + Eq + Hash, S: std::hash::BuildHasher>(
    table: &RwLock<HashMap<K, Arc<Total>, S>>,
    key: &K,
) -> Arc<Total> {
    let found = table.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
    found.unwrap_or_else(|| {
        let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
        table.entry(key.clone()).or_default().clone()
    })
}

impl Recorder for Totals {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(of(&self.0.counters, key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(of(&self.0.histograms, key))
    }
}
