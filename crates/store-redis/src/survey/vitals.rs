//! What a server says of itself: `INFO`, its settings of memory, and its slow log, in one round trip.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use larder_core::survey::{CommandTimes, Slow, Vitals};
use larder_core::{Ctx, Error, ErrorKind, Result};
use redis::{Cmd, Value};

use super::{allowed, bytes};
use crate::handshake::{encodings, text};
use crate::link::Lines;
use crate::node::Node;
use crate::replicas::Does;

/// The settings that are asked for, one `CONFIG GET` each: several at once are known from 7.0 on.
const SETTINGS: [&str; 7] = [
    "*-max-listpack-*",
    "set-max-intset-entries",
    "stream-node-max-*",
    "list-compress-depth",
    "maxmemory*",
    "activedefrag",
    "slowlog-log-slower-than",
];
/// How many slow commands are asked for.
const SLOW_MAX: usize = 8;
/// How much of a slow command is kept.
const SLOW_BYTES_MAX: usize = 120;

/// Asks a server. **Round trips: 1.**
pub(super) async fn ask(node: &Arc<Node>, ctx: Ctx) -> Result<Vitals> {
    let mut cmds = vec![cmd(&["INFO", "all"])];
    cmds.extend(SETTINGS.iter().map(|setting| cmd(&["CONFIG", "GET", setting])));
    cmds.push(cmd(&["SLOWLOG", "GET", &SLOW_MAX.to_string()]));
    // A millisecond of the server's time: once is enough.
    if node.quantum_bytes.get().is_none() {
        cmds.push(cmd(&["MEMORY", "MALLOC-STATS"]));
    }
    let deadline = ctx.at_most(node.config.timeout).deadline.unwrap_or_else(Instant::now);
    let lines: Vec<&Cmd> = cmds.iter().collect();
    let answered = node.run(Lines::Some(&lines), Does::Asks, deadline).await;
    let mut answers = answered.map_err(|fault| fault.error)?.into_iter();
    let info = text(&allowed("INFO", answers.next().unwrap_or(Value::Nil))?);
    if info.is_empty() {
        return Err(Error::new(ErrorKind::Protocol, "the server answered INFO with nothing"));
    }
    let mut vitals = understood(&node.name(), &info, node.config.database);
    for answer in answers.by_ref().take(SETTINGS.len()) {
        // One that may not be read is not told.
        take_settings(&mut vitals.settings, answer);
    }
    vitals.encodings = encodings(|name| vitals.settings.get(name).map(String::as_str));
    if let Some(Value::Array(entries)) = answers.next() {
        vitals.slow = entries.into_iter().filter_map(slow).collect();
    }
    if let Some(stats) = answers.next() {
        _ = node.quantum_bytes.set(quantum(&text(&stats)));
    }
    vitals.quantum_bytes = node.quantum_bytes.get().copied().flatten();
    Ok(vitals)
}

/// What jemalloc says among its statistics: `Quantum size: 16`.
fn quantum(stats: &str) -> Option<u64> {
    let line = stats.lines().find_map(|line| line.trim().strip_prefix("Quantum size:"))?;
    line.trim().parse().ok().filter(|quantum: &u64| quantum.is_power_of_two())
}

fn cmd(words: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    words.iter().for_each(|word| _ = cmd.arg(word));
    cmd
}

/// What `INFO all` says.
fn understood(node: &str, info: &str, database: u32) -> Vitals {
    let mut told = BTreeMap::new();
    let (mut commands, mut percentiles) = (Vec::new(), Vec::new());
    for line in info.lines() {
        let Some((name, value)) = line.trim_end().split_once(':') else { continue };
        if let Some(command) = name.strip_prefix("cmdstat_") {
            commands.extend(command_times(command, value));
        } else if let Some(command) = name.strip_prefix("latency_percentiles_usec_") {
            percentiles.push((command.to_owned(), value.to_owned()));
        } else {
            told.insert(name.to_owned(), value.to_owned());
        }
    }
    for (command, value) in percentiles {
        if let Some(times) = commands.iter_mut().find(|times| times.name == command) {
            times.p50_us = part(&value, "p50").and_then(|us| us.parse().ok());
            times.p99_us = part(&value, "p99").and_then(|us| us.parse().ok());
        }
    }
    let (flavour, version) = match (told.get("valkey_version"), told.get("redis_version")) {
        (Some(version), _) => ("valkey", version.clone()),
        (None, version) => ("redis", version.cloned().unwrap_or_default()),
    };
    let mut vitals = Vitals::of(node, format!("{flavour} {version}").trim_end());
    vitals.commands = commands;
    let database = told.get(&format!("db{database}"));
    vitals.items = Some(database.and_then(|line| part(line, "keys")?.parse().ok()).unwrap_or(0));
    vitals.told = told;
    let number = |name: &str| vitals.number(name);
    let ratio = |over: &str, under: &str| match (number(over), number(under)) {
        (Some(over), Some(under)) if under > 0 && over > 0 => Some(over as f64 / under as f64),
        _ => None,
    };
    let cpu = |name: &str| vitals.told.get(name).and_then(|seconds| seconds.parse::<f64>().ok());
    let (used, resident) = (number("used_memory"), number("used_memory_rss"));
    let resident_ratio =
        ratio("allocator_resident", "allocator_allocated").or_else(|| ratio("used_memory_rss", "used_memory"));
    let cpu_us = cpu("used_cpu_sys").zip(cpu("used_cpu_user")).map(|(sys, user)| ((sys + user) * 1e6) as u64);
    let (uptime_s, data, limit) = (number("uptime_in_seconds"), number("used_memory_dataset"), number("maxmemory"));
    let (connections, ops) = (number("connected_clients"), number("total_commands_processed"));
    let (hits, misses) = (number("keyspace_hits"), number("keyspace_misses"));
    let (evicted, expired) = (number("evicted_keys"), number("expired_keys"));
    let (in_bytes, out_bytes) = (number("total_net_input_bytes"), number("total_net_output_bytes"));
    vitals.uptime_s = uptime_s;
    (vitals.used_bytes, vitals.data_bytes, vitals.resident_bytes) = (used, data, resident);
    (vitals.resident_ratio, vitals.limit_bytes) = (resident_ratio, limit.filter(|&limit| limit > 0));
    (vitals.connections, vitals.ops, vitals.hits, vitals.misses) = (connections, ops, hits, misses);
    (vitals.evicted, vitals.expired) = (evicted, expired);
    (vitals.in_bytes, vitals.out_bytes, vitals.cpu_us) = (in_bytes, out_bytes, cpu_us);
    vitals
}

/// `calls=2,usec=9,usec_per_call=4.50,…`
fn command_times(name: &str, value: &str) -> Option<CommandTimes> {
    let calls = part(value, "calls")?.parse().ok()?;
    let total_us = part(value, "usec")?.parse().ok()?;
    Some(CommandTimes { name: name.to_owned(), calls, total_us, p50_us: None, p99_us: None })
}

/// The value of a name in `name=value,…`.
fn part<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(',').find_map(|part| part.split_once('=').filter(|(known, _)| *known == name)).map(|(_, value)| value)
}

fn take_settings(settings: &mut BTreeMap<String, String>, answer: Value) {
    match answer {
        Value::Map(pairs) => settings.extend(pairs.iter().map(|(name, value)| (text(name), text(value)))),
        Value::Array(parts) => settings.extend(parts.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1])))),
        _ => {}
    }
}

/// An entry of `SLOWLOG GET`: its id, when, how long, the command.
fn slow(entry: Value) -> Option<Slow> {
    let Value::Array(parts) = entry else { return None };
    let [_, Value::Int(at), Value::Int(us), Value::Array(words), ..] = &parts[..] else { return None };
    let mut what = Vec::new();
    for word in words {
        if !what.is_empty() {
            what.push(b' ');
        }
        what.extend(bytes(word.clone()).unwrap_or_default());
        if what.len() >= SLOW_BYTES_MAX {
            what.truncate(SLOW_BYTES_MAX);
            break;
        }
    }
    Some(Slow { at_s: u64::try_from(*at).ok()?, us: u64::try_from(*us).ok()?, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:60\r\n# Memory\r\nused_memory:2000\r\n\
        used_memory_rss:4000\r\nallocator_allocated:1000\r\nallocator_resident:1500\r\nmaxmemory:0\r\n# CPU\r\nused_cpu_sys:0.5\r\n\
        used_cpu_user:1.5\r\n# Commandstats\r\ncmdstat_config|get:calls=2,usec=9,usec_per_call=4.50,rejected_calls=0\r\n\
        # Latencystats\r\nlatency_percentiles_usec_config|get:p50=4.001,p99=5.001,p99.9=5.001\r\n# Keyspace\r\n\
        db3:keys=7,expires=1,avg_ttl=0\r\n";

    #[test]
    fn what_a_server_says_is_understood() {
        let vitals = understood("here", INFO, 3);
        assert_eq!((vitals.software.as_str(), vitals.items, vitals.uptime_s), ("redis 7.0.15", Some(7), Some(60)));
        assert_eq!((vitals.used_bytes, vitals.resident_bytes), (Some(2_000), Some(4_000)));
        assert_eq!((vitals.resident_ratio, vitals.limit_bytes, vitals.cpu_us), (Some(1.5), None, Some(2_000_000)));
        let times = &vitals.commands[0];
        assert_eq!((times.name.as_str(), times.calls, times.p99_us), ("config|get", 2, Some(5.001)));
        assert_eq!(understood("here", INFO, 0).items, Some(0));
        assert_eq!(understood("here", "", 0).resident_ratio, None);
    }

    #[test]
    fn the_step_of_small_sizes_is_found_among_very_much() {
        assert_eq!(quantum("Arenas: 8\nQuantum size: 16\nPage size: 4096\n"), Some(16));
        assert_eq!((quantum(""), quantum("Quantum size: none"), quantum("Quantum size: 0")), (None, None, None));
    }

    #[test]
    fn an_entry_of_the_slow_log_is_cut() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let words = Value::Array(vec![bulk("SET"), bulk(&"x".repeat(500))]);
        let entry = Value::Array(vec![Value::Int(1), Value::Int(1_700_000_000), Value::Int(12_000), words]);
        let slow = slow(entry).unwrap();
        assert_eq!((slow.at_s, slow.us, slow.what.len()), (1_700_000_000, 12_000, SLOW_BYTES_MAX));
        assert!(super::slow(Value::Nil).is_none());
    }
}
