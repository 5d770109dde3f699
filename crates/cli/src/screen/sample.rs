//! What a store does now: two looks at its servers, and what lies between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder::survey::{CommandTimes, Survey, Vitals};
use larder::{Ctx, Error, Key, Op, StoreExt, StoreRef, Want};
use serde_json::{Value, json};

use crate::output::bytes;

/// The key that is asked after to see how long an answer takes. Nothing is ever stored there.
const PROBE_KEY: &str = "L!probe";

/// What a server tells of its process: of memcached and of Redis, whose `run_id` is another also where each is the first process of its container.
const OF_PROCESS: [&str; 3] = ["pid", "process_id", "run_id"];
/// How much less a server may have aged than time went by: it tells whole seconds.
const AGE_TOLERANCE_S: f64 = 2.0;

/// How many structures there are of each kind.
pub(super) type Structures = BTreeMap<&'static str, u64>;

/// One moment.
#[derive(Debug)]
pub(super) struct Sample {
    /// The time between the two looks.
    pub(super) interval: Duration,
    /// The servers.
    pub(super) nodes: Vec<Result<Node, Error>>,
    /// How long the store took to answer a get of nothing.
    pub(super) round_trip: Result<Duration, Error>,
    /// `None`: not counted, or not yet.
    pub(super) structures: Option<Structures>,
}

/// A server at one moment.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) vitals: Vitals,
    pub(super) rates: Rates,
}

/// What happened between two looks, a second. `None` where the server does not tell, was restarted, or had its statistics reset.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) ops: Option<f64>,
    pub(super) hits: Option<f64>,
    pub(super) misses: Option<f64>,
    pub(super) evicted: Option<f64>,
    pub(super) expired: Option<f64>,
    pub(super) in_bytes: Option<f64>,
    pub(super) out_bytes: Option<f64>,
    /// Of one processor.
    pub(super) cpu: Option<f64>,
    /// Commands that were run, those that took most time together first.
    pub(super) commands: Vec<Command>,
}

/// The commands of one name between two looks.
#[derive(Debug, PartialEq)]
pub(super) struct Command {
    pub(super) name: String,
    pub(super) a_second: f64,
    pub(super) mean_us: f64,
    /// Since the server's start.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

impl Rates {
    /// `seconds`: from one look to the other. `least_s`: how much lay between their answers at the least.
    fn between(before: &Vitals, now: &Vitals, seconds: f64, least_s: f64) -> Rates {
        let rate = |of: fn(&Vitals) -> Option<u64>| {
            let more = of(now)?.checked_sub(of(before)?)?;
            (seconds > 0.0).then(|| more as f64 / seconds)
        };
        if !is_same(before, now, least_s) {
            return Rates::default();
        }
        let mut commands: Vec<Command> =
            now.commands.iter().filter_map(|times| Command::between(&before.commands, times, seconds)).collect();
        commands.sort_by(|one, other| (other.a_second * other.mean_us).total_cmp(&(one.a_second * one.mean_us)));
        Rates {
            ops: rate(|vitals| vitals.ops),
            hits: rate(|vitals| vitals.hits),
            misses: rate(|vitals| vitals.misses),
            evicted: rate(|vitals| vitals.evicted),
            expired: rate(|vitals| vitals.expired),
            in_bytes: rate(|vitals| vitals.in_bytes),
            out_bytes: rate(|vitals| vitals.out_bytes),
            cpu: rate(|vitals| vitals.cpu_us).map(|us_a_second| us_a_second / 1e6),
            commands,
        }
    }

    /// The share of reads that found something.
    pub(super) fn hit_share(&self) -> Option<f64> {
        let (hits, misses) = self.hits.zip(self.misses)?;
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }
}

/// Whether a server is the one of before, and not one that was started since. What it does not tell speaks against nothing.
fn is_same(before: &Vitals, now: &Vitals, least_s: f64) -> bool {
    let is_other = |name: &&str| before.told.get(*name).zip(now.told.get(*name)).is_some_and(|(was, is)| was != is);
    let aged = match (before.uptime_s, now.uptime_s) {
        (Some(before), Some(now)) => now.checked_sub(before).is_some_and(|s| s as f64 + AGE_TOLERANCE_S >= least_s),
        (before, now) => now >= before,
    };
    aged && !OF_PROCESS.iter().any(is_other)
}

impl Command {
    fn between(before: &[CommandTimes], now: &CommandTimes, seconds: f64) -> Option<Command> {
        let none = CommandTimes::default();
        let before = before.iter().find(|times| times.name == now.name).unwrap_or(&none);
        let calls = now.calls.checked_sub(before.calls).filter(|&calls| calls > 0)?;
        let mean_us = (now.total_us - before.total_us).max(0.0) / calls as f64;
        let a_second = calls as f64 / seconds.max(f64::MIN_POSITIVE);
        Some(Command { name: now.name.clone(), a_second, mean_us, p50_us: now.p50_us, p99_us: now.p99_us })
    }
}

/// Looks at a store again and again.
pub(super) struct Sampler<'a> {
    store: &'a StoreRef,
    survey: &'a dyn Survey,
    timeout: Duration,
    /// The last look, and when that was.
    before: Option<(Instant, Vec<Option<Vitals>>)>,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(store: &'a StoreRef, survey: &'a dyn Survey, timeout: Duration) -> Sampler<'a> {
        Sampler { store, survey, timeout, before: None }
    }

    /// Looks now. The first look has no rates. Never longer than the timeout.
    pub(super) async fn look(&mut self) -> Sample {
        let ctx = Ctx::within(self.timeout);
        let round_trip = self.ping(ctx).await;
        let asked = Instant::now();
        let told = self.survey.vitals(ctx).await;
        let now = Instant::now();
        let (interval, least, before) = match self.before.take() {
            Some((at, before)) if before.len() == told.len() => (now - at, asked - at, before),
            // The first, or a cluster has other primaries now.
            _ => (Duration::ZERO, Duration::ZERO, vec![None; told.len()]),
        };
        let (seconds, least_s) = (interval.as_secs_f64(), least.as_secs_f64());
        self.before = Some((now, told.iter().map(|told| told.as_ref().ok().cloned()).collect()));
        let node = |(told, before): (larder::Result<Vitals>, Option<Vitals>)| {
            let vitals = told?;
            let is_it = |before: &Vitals| before.node == vitals.node;
            let rates = before.filter(is_it).map(|before| Rates::between(&before, &vitals, seconds, least_s));
            Ok(Node { vitals, rates: rates.unwrap_or_default() })
        };
        let nodes = told.into_iter().zip(before).map(node).collect();
        Sample { interval, nodes, round_trip, structures: None }
    }

    async fn ping(&self, ctx: Ctx) -> Result<Duration, Error> {
        let begun = Instant::now();
        self.store.run_one(ctx, Op::get(Key::new(PROBE_KEY)?, Want::empty())).await?;
        Ok(begun.elapsed())
    }
}

impl Sample {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "seconds": self.interval.as_secs_f64(),
            "round_trip_us": self.round_trip.as_ref().ok().map(|time| time.as_secs_f64() * 1e6),
            "nodes": self.nodes.iter().map(|node| match node {
                Ok(node) => node.to_json(),
                Err(error) => json!({"error": error.to_string()}),
            }).collect::<Vec<_>>(),
            "structures": self.structures,
        })
    }

    /// The sum of a rate over all servers; `None` where none tells.
    pub(super) fn sum(&self, of: fn(&Rates) -> Option<f64>) -> Option<f64> {
        self.nodes.iter().flatten().filter_map(|node| of(&node.rates)).reduce(|sum, more| sum + more)
    }
}

impl Node {
    fn to_json(&self) -> Value {
        let Node { vitals, rates } = self;
        json!({
            "node": vitals.node,
            "software": vitals.software,
            "uptime_s": vitals.uptime_s,
            "used_bytes": vitals.used_bytes,
            "resident_bytes": vitals.resident_bytes,
            "limit_bytes": vitals.limit_bytes,
            "disk_bytes": vitals.disk_bytes,
            "keys": vitals.items,
            "connections": vitals.connections,
            "ops_per_second": rates.ops,
            "hits_per_second": rates.hits,
            "misses_per_second": rates.misses,
            "hit_share": rates.hit_share(),
            "evicted_per_second": rates.evicted,
            "expired_per_second": rates.expired,
            "received_bytes_per_second": rates.in_bytes,
            "sent_bytes_per_second": rates.out_bytes,
            "cpu": rates.cpu,
            "commands": rates.commands.iter().map(Command::to_json).collect::<Vec<_>>(),
            "slow": vitals.slow.iter().map(|slow| json!({"at_s": slow.at_s, "us": slow.us, "command": bytes(&slow.what)})).collect::<Vec<_>>(),
            "hot": vitals.hot.iter().map(|hot| json!({"key": bytes(&hot.key), "count": hot.count, "over": hot.over})).collect::<Vec<_>>(),
        })
    }
}

impl Command {
    fn to_json(&self) -> Value {
        json!({
            "command": self.name,
            "per_second": self.a_second,
            "mean_us": self.mean_us,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals(uptime_s: u64, ops: u64, calls: u64, total_us: f64) -> Vitals {
        let mut vitals = Vitals::of("here", "redis");
        (vitals.uptime_s, vitals.ops, vitals.hits, vitals.misses) = (Some(uptime_s), Some(ops), Some(ops), Some(0));
        vitals.commands =
            vec![CommandTimes { name: "get".to_owned(), calls, total_us, p50_us: Some(1.0), p99_us: None }];
        vitals
    }

    fn between(before: &Vitals, now: &Vitals, seconds: f64) -> Rates {
        Rates::between(before, now, seconds, seconds)
    }

    #[test]
    fn rates_are_what_lies_between_two_looks() {
        let rates = between(&vitals(10, 100, 50, 100.0), &vitals(12, 300, 150, 400.0), 2.0);
        assert_eq!((rates.ops, rates.hit_share(), rates.evicted), (Some(100.0), Some(1.0), None));
        let get = &rates.commands[0];
        assert_eq!((get.a_second, get.mean_us, get.p50_us), (50.0, 3.0, Some(1.0)));
    }

    #[test]
    fn a_server_that_was_restarted_has_no_rates_and_one_that_was_reset_none_of_what_fell() {
        assert_eq!(between(&vitals(10, 100, 50, 1.0), &vitals(1, 300, 60, 2.0), 1.0), Rates::default());
        let reset = between(&vitals(10, 100, 50, 1.0), &vitals(11, 3, 2, 1.0), 1.0);
        assert_eq!((reset.ops, reset.commands.len()), (None, 0));
        assert_eq!(between(&vitals(1, 1, 1, 1.0), &vitals(1, 2, 1, 1.0), 0.0).ops, None);
    }

    /// It was restarted right behind a look, and has been there for longer than the one before it was by then.
    #[test]
    fn a_server_that_has_aged_less_than_time_went_by_was_restarted() {
        let (before, now) = (vitals(10, 100, 50, 1.0), vitals(57, 300, 60, 2.0));
        assert_eq!(between(&before, &now, 60.0), Rates::default());
        assert!(between(&before, &now, 49.0).ops.is_some(), "whole seconds");
        // Another server was long in answering, and so it is not known how long this one took.
        assert!(Rates::between(&before, &now, 60.0, 45.0).ops.is_some());
    }

    #[test]
    fn a_server_of_another_process_is_another() {
        for name in OF_PROCESS {
            let of = |process: &str, uptime_s| {
                let mut vitals = vitals(uptime_s, uptime_s, 1, 1.0);
                vitals.told.insert(name.to_owned(), process.to_owned());
                vitals
            };
            assert_eq!(between(&of("7", 1), &of("8", 3), 2.0), Rates::default(), "{name}");
            assert_eq!(between(&of("7", 1), &of("7", 3), 2.0).ops, Some(1.0), "{name}");
            assert_eq!(between(&vitals(1, 1, 1, 1.0), &of("7", 3), 2.0).ops, Some(1.0), "{name}: not told before");
        }
    }
}
