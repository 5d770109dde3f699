//! [`TracingObserver`]: events as events of the `tracing` crate.

use ::tracing::{Level, event};
use larder_core::observe::{Batch, Event, Observer};

/// Tells every event to the subscriber of the `tracing` crate, with the target `larder` and fields for what it tells.
///
/// | event | level | fields |
/// |---|---|---|
/// | `batch` | trace; debug with an op that failed | `store`, `ops`, `failed`, `unknown`, `first`, `latency_us`, `round_trips` |
/// | `conflict` | debug | `subject` |
/// | `retry` | debug | `subject`, `cause` |
/// | `compaction` | debug | `subject`, `shard`, `phase` |
/// | `loss` | error | `subject`, `loss` |
/// | `put_back` | warn | `subject` |
/// | `fall_back` | warn | `subject`, `ops` |
/// | `wait` | debug | `subject`, `time_us`, `end` |
/// | `hold` | debug; warn unless it was released | `subject`, `time_us`, `end` |
/// | `takeover` | info | `subject`, `owner` (`dead`, `alive`) |
///
/// The message is the event's name. They are told where they happen, so they stand in the span of the operation that met them.
///
/// ```
/// # use larder_core::observe;
/// use larder_layers::TracingObserver;
/// observe::set(TracingObserver)?;
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

const TARGET: &str = "larder";

/// Without an allocation: of a batch of a thousand ops a line tells how many, and what the first was.
fn tell_batch(batch: &Batch<'_>) {
    use larder_core::observe::Outcome;
    let Batch { store, ops, latency, round_trips } = batch;
    let failed = ops.iter().filter(|op| matches!(op.outcome, Outcome::Failed { .. } | Outcome::GivenUp)).count();
    let unknown = ops.iter().filter(|op| op.outcome.is_unknown()).count();
    let first = ops.first().map_or("", |op| op.name);
    let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    macro_rules! tell {
        ($level:expr) => {
            event!(target: TARGET, $level, store, ops = ops.len(), failed, unknown, first, latency_us, round_trips, "batch")
        };
    }
    if failed > 0 { tell!(Level::DEBUG) } else { tell!(Level::TRACE) }
}

impl Observer for TracingObserver {
    fn observe(&self, event: &Event<'_>) {
        let micros = |time: &std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match event {
            Event::Batch(batch) => tell_batch(batch),
            Event::Conflict { subject } => event!(target: TARGET, Level::DEBUG, %subject, "conflict"),
            Event::Retry { subject, cause } => {
                event!(target: TARGET, Level::DEBUG, %subject, cause = cause.as_str(), "retry");
            }
            Event::Compaction { subject, shard, phase } => {
                event!(target: TARGET, Level::DEBUG, %subject, shard, phase = phase.as_str(), "compaction");
            }
            Event::Loss { subject, kind } => {
                event!(target: TARGET, Level::ERROR, %subject, loss = kind.as_str(), "loss")
            }
            Event::PutBack { subject } => event!(target: TARGET, Level::WARN, %subject, "put_back"),
            Event::FallBack { subject, ops } => event!(target: TARGET, Level::WARN, %subject, ops, "fall_back"),
            Event::Wait { subject, time, end } => {
                event!(target: TARGET, Level::DEBUG, %subject, time_us = micros(time), end = end.as_str(), "wait");
            }
            Event::Hold { subject, time, end } if *end == "released" => {
                event!(target: TARGET, Level::DEBUG, %subject, time_us = micros(time), end, "hold");
            }
            Event::Hold { subject, time, end } => {
                event!(target: TARGET, Level::WARN, %subject, time_us = micros(time), end, "hold");
            }
            Event::Takeover { subject, is_dead } => {
                let owner = if *is_dead { "dead" } else { "alive" };
                event!(target: TARGET, Level::INFO, %subject, owner, "takeover");
            }
            other => event!(target: TARGET, Level::DEBUG, event = ?other, "{}", other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use ::tracing::field::{Field, Visit};
    use ::tracing::span::{Attributes, Id, Record};
    use ::tracing::{Metadata, Subscriber};

    use super::*;
    use crate::samples;

    /// Keeps each event as a line: level, message, fields.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    #[derive(Default)]
    struct Line {
        message: String,
        fields: String,
    }

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            match field.name() {
                "message" => self.message = format!("{value:?}"),
                name => _ = write!(self.fields, " {name}={value:?}"),
            }
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "larder"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &::tracing::Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            self.0.lock().unwrap().push(format!("{} {}{}", event.metadata().level(), line.message, line.fields));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_event_is_told_with_its_fields() {
        let lines = Lines::default();
        ::tracing::subscriber::with_default(lines.clone(), || samples::each(|event| TracingObserver.observe(event)));
        let expected = [
            r#"DEBUG batch store="cache" ops=2 failed=1 unknown=1 first="get" latency_us=250000 round_trips=1"#,
            r#"DEBUG conflict subject=set "tags""#,
            r#"DEBUG retry subject=set "tags" cause="unavailable""#,
            r#"DEBUG compaction subject=set "tags" shard=3 phase="met""#,
            r#"ERROR loss subject=set "tags" loss="rolled back""#,
            r#"WARN put_back subject=set "tags""#,
            r#"WARN fall_back subject=store "cache:11211" ops=7"#,
            r#"DEBUG wait subject=lock "nightly" time_us=1500000 end="busy""#,
            r#"WARN hold subject=lock "nightly" time_us=2500000 end="freed""#,
            r#"INFO takeover subject=lock "nightly" owner="dead""#,
        ];
        assert_eq!(*lines.0.lock().unwrap(), expected);
    }
}
