//! [`MetricsObserver`]: events as metrics of the `metrics` crate.

use ::metrics::{counter, histogram};
use larder_core::observe::{Batch, Event, Observer, Subject};
use larder_core::text::Shown;

/// Tells every event to the recorder of the `metrics` crate.
///
/// Set it once, beside the recorder; wrap stores into [`Observed`](crate::Observed) for those that are about ops.
///
/// | metric | type, unit | labels | one a |
/// |---|---|---|---|
/// | `larder_ops_total` | counter | `store`, `op`, `outcome`, `unknown` | op of an observed store |
/// | `larder_batch_seconds` | histogram, seconds | `store` | batch of an observed store: from handing it over to the last answer |
/// | `larder_round_trips_total` | counter | `store` | wait for an observed store |
/// | `larder_conflicts_total` | counter | `kind` | write that found another writer first |
/// | `larder_retries_total` | counter | `kind`, `cause` | try after the first |
/// | `larder_compactions_total` | counter | `kind`, `phase` | phase of a compaction: `begun`, `done`, `met`, `failed` |
/// | `larder_losses_total` | counter | `kind`, `loss` | time that data are found lost or rolled back |
/// | `larder_manifests_put_back_total` | counter | `kind` | manifest that was evicted and written again |
/// | `larder_fall_backs_total` | counter | `kind` | op that an outage sent to another store |
/// | `larder_wait_seconds` | histogram, seconds | `kind`, `end` | wait for a lock or lease: `got`, `busy`, `failed`, `given up` |
/// | `larder_hold_seconds` | histogram, seconds | `kind`, `end` | term of a lock: `released`, `lease over`, `taken over`, `freed`, `gone` |
/// | `larder_takeovers_total` | counter | `kind`, `owner` | takeover, from an owner that is `dead` or `alive` |
///
/// `kind` is that of the structure (`lock`, `counter`, …), or `store` for what a layer tries again. Names of structures are no labels unless
/// asked for ([`with_names`](MetricsObserver::with_names)): there may be a million of them, and a metric a name is what ends a metrics server.
///
/// ```
/// # use larder_core::observe;
/// use larder_layers::MetricsObserver;
/// observe::set(MetricsObserver::new())?;
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsObserver {
    with_names: bool,
}

impl MetricsObserver {
    /// Without names of structures.
    ///
    /// ```
    /// let observer = larder_layers::MetricsObserver::new();
    /// ```
    pub fn new() -> MetricsObserver {
        MetricsObserver::default()
    }

    /// With a label `name` on all metrics of structures, for programs that have few of them.
    ///
    /// ```
    /// let observer = larder_layers::MetricsObserver::new().with_names();
    /// ```
    #[must_use]
    pub fn with_names(mut self) -> MetricsObserver {
        self.with_names = true;
        self
    }

    /// The labels of a metric about a structure: its kind, its name where asked for, and one of the event's own.
    fn labels(self, subject: &Subject<'_>, own: Option<(&'static str, &'static str)>) -> Vec<::metrics::Label> {
        let mut labels = vec![::metrics::Label::new("kind", subject.kind)];
        labels.extend(own.map(|(key, value)| ::metrics::Label::new(key, value)));
        if self.with_names {
            labels.push(::metrics::Label::new("name", Shown(subject.name).to_string()));
        }
        labels
    }
}

fn count_batch(batch: &Batch<'_>) {
    let store = || batch.store.to_owned();
    histogram!("larder_batch_seconds", "store" => store()).record(batch.latency.as_secs_f64());
    counter!("larder_round_trips_total", "store" => store()).increment(u64::from(batch.round_trips));
    for op in batch.ops {
        let outcome = op.outcome.as_str();
        let unknown = if op.outcome.is_unknown() { "true" } else { "false" };
        counter!("larder_ops_total", "store" => store(), "op" => op.name, "outcome" => outcome, "unknown" => unknown)
            .increment(1);
    }
}

impl Observer for MetricsObserver {
    fn observe(&self, event: &Event<'_>) {
        let count = |name: &'static str, subject, own| counter!(name, self.labels(subject, own)).increment(1);
        match event {
            Event::Batch(batch) => count_batch(batch),
            Event::Conflict { subject } => count("larder_conflicts_total", subject, None),
            Event::Retry { subject, cause } => count("larder_retries_total", subject, Some(("cause", cause.as_str()))),
            Event::Compaction { subject, phase, .. } => {
                count("larder_compactions_total", subject, Some(("phase", phase.as_str())));
            }
            Event::Loss { subject, kind } => count("larder_losses_total", subject, Some(("loss", kind.as_str()))),
            Event::PutBack { subject } => count("larder_manifests_put_back_total", subject, None),
            Event::FallBack { subject, ops } => {
                counter!("larder_fall_backs_total", self.labels(subject, None)).increment(*ops as u64);
            }
            Event::Wait { subject, time, end } => {
                let labels = self.labels(subject, Some(("end", end.as_str())));
                histogram!("larder_wait_seconds", labels).record(time.as_secs_f64());
            }
            Event::Hold { subject, time, end } => {
                histogram!("larder_hold_seconds", self.labels(subject, Some(("end", end)))).record(time.as_secs_f64());
            }
            Event::Takeover { subject, is_dead } => {
                let owner = if *is_dead { "dead" } else { "alive" };
                count("larder_takeovers_total", subject, Some(("owner", owner)));
            }
            // An event of a newer core: without a metric until it has a name here.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;
    use crate::samples;

    /// What the recorder got: each metric with its labels, and its value.
    fn recorded(observer: MetricsObserver) -> BTreeMap<String, f64> {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        ::metrics::with_local_recorder(&recorder, || samples::each(|event| observer.observe(event)));
        let metric = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
            let labels: Vec<String> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
            };
            (format!("{} {}", key.key().name(), labels.join(",")), value)
        };
        snapshotter.snapshot().into_vec().into_iter().map(metric).collect()
    }

    #[test]
    fn each_event_is_a_metric_with_its_labels() {
        let recorded = recorded(MetricsObserver::new());
        for (metric, value) in [
            ("larder_batch_seconds store=cache", 0.25),
            ("larder_round_trips_total store=cache", 1.0),
            ("larder_ops_total store=cache,op=get,outcome=miss,unknown=false", 1.0),
            ("larder_ops_total store=cache,op=append,outcome=timeout,unknown=true", 1.0),
            ("larder_conflicts_total kind=set", 1.0),
            ("larder_retries_total kind=set,cause=unavailable", 1.0),
            ("larder_compactions_total kind=set,phase=met", 1.0),
            ("larder_losses_total kind=set,loss=rolled back", 1.0),
            ("larder_manifests_put_back_total kind=set", 1.0),
            ("larder_fall_backs_total kind=store", 7.0),
            ("larder_wait_seconds kind=lock,end=busy", 1.5),
            ("larder_hold_seconds kind=lock,end=freed", 2.5),
            ("larder_takeovers_total kind=lock,owner=dead", 1.0),
        ] {
            assert_eq!(recorded.get(metric), Some(&value), "{metric} in {recorded:#?}");
        }
        assert_eq!(recorded.len(), 13, "{recorded:#?}");
    }

    #[test]
    fn names_are_labels_only_where_asked_for() {
        let recorded = recorded(MetricsObserver::new().with_names());
        assert!(recorded.contains_key("larder_conflicts_total kind=set,name=\"tags\""), "{recorded:#?}");
    }

    #[test]
    fn the_table_lists_every_metric() {
        let source = include_str!("metrics.rs");
        let (documented, code) = source.split_once("#[derive(Clone").unwrap();
        for metric in recorded(MetricsObserver::new()).keys() {
            let name = metric.split(' ').next().unwrap();
            assert!(documented.contains(&format!("| `{name}` |")), "{name} is not in the table");
            assert!(code.contains(name));
        }
    }
}
