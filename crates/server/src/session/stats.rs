//! `stats`: memcached's names, as far as they mean something here.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::Ordering;

use larder_proto::server::number;
use larder_proto::server::words::Words;
use larder_proto::server::write::{self, stat};

use super::admin::Dump;
use super::classic::NO_ROOM;
use super::refused;
use super::{Session, TIMED_EVERY, is_word, memcached_bytes};
use crate::conns::Phase;
use crate::counters::{Count, LATENCY_CLASSES};
use crate::engine::{Engine, Walk};
use crate::env::{Env, left_s};
use crate::hot::{HotKey, HotKeys};

/// Sizes are told in steps of so many bytes.
const SIZE_STEP: usize = 32;
/// Memcached's number of slab classes: beyond, there is none to dump.
pub(super) const SLAB_CLASSES_MAX: u32 = 64;
/// The only one that there is here.
pub(super) const CLASS: u32 = 1;
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;
/// Hot keys that are told.
const HOT_MAX: usize = 32;

impl Session {
    pub(super) fn stats<E: Engine>(&mut self, env: &Env<E>, mut words: Words<'_>) {
        let Some(what) = words.next() else { return self.general(env) };
        // The first that it may be short for, as in memcached.
        let is = |name: &[u8]| name.starts_with(what);
        let out = &mut self.out;
        if is(b"reset") {
            env.counters.reset(&env.figures());
            return write::line(out, "RESET");
        } else if is(b"detail") {
            return write::line(out, "CLIENT_ERROR stats detail not allowed");
        } else if is(b"settings") {
            settings(env, out);
        } else if is(b"cachedump") {
            return match Cached::begin(env, words) {
                Ok(cached) => self.dump = Some(Dump::Cached(cached)),
                Err(refusal) => write::line(out, refusal),
            };
        } else if is(b"conns") {
            conns(env, out);
        } else if what == b"items" {
            items(env, out);
        } else if what == b"slabs" {
            slabs(env, out);
        } else if what == b"sizes" {
            self.dump = Some(Dump::Sizes(Sizes::default()));
            return;
        } else if what == b"hot" {
            if !env.limits.dump_enabled {
                return write::line(out, "CLIENT_ERROR stats hot not allowed");
            }
            hot(env, out);
        } else if what == b"latency" {
            latency(env, out);
        } else {
            return write::line(out, "ERROR");
        }
        write::line(out, "END");
    }

    fn general<E: Engine>(&mut self, env: &Env<E>) {
        let out = &mut self.out;
        let figures = env.figures();
        let process = crate::process::usage();
        stat(out, "pid", std::process::id());
        stat(out, "uptime", env.started.elapsed().as_secs());
        stat(out, "time", env.wall_ms() / 1_000);
        stat(out, "version", crate::VERSION);
        stat(out, "pointer_size", usize::BITS);
        stat(out, "rusage_user", format_args!("{:.6}", process.user_s));
        stat(out, "rusage_system", format_args!("{:.6}", process.system_s));
        stat(out, "max_connections", env.limits.connections_max);
        stat(out, "curr_connections", env.conns.count());
        stat(out, "connection_structures", env.conns.count());
        stat(out, "read_buf_bytes", env.all_held_bytes());
        for &count in Count::ALL {
            stat(out, count.name(), env.counters.since_reset(count));
        }
        stat(out, "limit_maxbytes", env.limit_bytes());
        stat(out, "accepting_conns", u8::from(!env.draining.load(Ordering::Relaxed)));
        stat(out, "threads", env.threads);
        stat(out, "bytes", figures.bytes);
        stat(out, "curr_items", figures.items);
        stat(out, "evictions", env.counters.evicted_since_reset(&figures));
        stat(out, "reclaimed", env.counters.expired_since_reset(&figures));
        // Ours: what was cut off when the store was opened, and of the whole process.
        stat(out, "torn_bytes", figures.torn_bytes);
        stat(out, "resident_bytes", crate::process::resident_bytes());
        write::line(out, "END");
    }
}

/// Ours: the keys that are asked for most, the hottest first: `STAT <count> <by how much that may be too high> <key>`, the key escaped as in a listing.
fn hot<E: Engine>(env: &Env<E>, out: &mut Vec<u8>) {
    let sketches = env.counters.all.iter().map(|counters| &counters.hot);
    for HotKey { key, count, over } in HotKeys::top(sketches, env.coarse_ms.load(Ordering::Relaxed), HOT_MAX) {
        out.extend_from_slice(format!("STAT {count} {over} ").as_bytes());
        write::key_escaped(out, &key);
        out.extend_from_slice(b"\r\n");
    }
}

/// Ours: how many requests there were and how long they took, by one in 16, from its line being found to its reply being written into the buffer and, over a folder, being as
/// durable as the store promises.
fn latency<E: Engine>(env: &Env<E>, out: &mut Vec<u8>) {
    const NS_A_US: f64 = 1e3;
    for (class, word) in LATENCY_CLASSES {
        let times = env.counters.times(class);
        stat(out, &format!("{word}:count"), times.count() * u64::from(TIMED_EVERY));
        stat(out, &format!("{word}:sum_us"), times.sum_ns as f64 * f64::from(TIMED_EVERY) / NS_A_US);
        for percent in [50, 99] {
            if let Some(ns) = times.percentile_ns(percent) {
                stat(out, &format!("{word}:p{percent}_us"), ns as f64 / NS_A_US);
            }
        }
    }
}

fn settings<E: Engine>(env: &Env<E>, out: &mut Vec<u8>) {
    let limits = &env.limits;
    let promises = env.engine.promises();
    let on = |on: bool| if on { "on" } else { "off" };
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let told = &env.settings;
    stat(out, "maxbytes", env.limit_bytes());
    stat(out, "maxconns", limits.connections_max);
    stat(out, "tcpport", told.tcp_port);
    stat(out, "udpport", 0);
    stat(out, "inter", told.listeners.join(","));
    stat(out, "verbosity", env.verbosity.load(Ordering::Relaxed));
    stat(out, "evictions", on(promises.evicts));
    stat(out, "domain_socket", told.unix.as_ref().map_or("NULL", |(path, _)| path));
    stat(out, "umask", format_args!("{:o}", told.unix.as_ref().map_or(0o700, |(_, mode)| *mode)));
    stat(out, "shutdown_command", yes(limits.shutdown_enabled));
    stat(out, "num_threads", env.threads);
    stat(out, "detail_enabled", "no");
    stat(out, "cas_enabled", "yes");
    stat(out, "tcp_backlog", limits.backlog);
    stat(out, "binding_protocol", "ascii");
    stat(out, "auth_enabled_sasl", "no");
    stat(out, "auth_enabled_ascii", yes(env.files.ask_who()));
    stat(out, "item_size_max", limits.item_bytes_max);
    stat(out, "maxconns_fast", "yes");
    stat(out, "flush_enabled", yes(limits.flush_enabled));
    stat(out, "dump_enabled", yes(limits.dump_enabled));
    stat(out, "idle_timeout", limits.idle_timeout_ms / 1_000);
    stat(out, "track_sizes", "yes");
    stat(out, "ssl_enabled", yes(told.ssl));
    stat(out, "ssl_verify_mode", told.ssl_verify_mode);
    stat(out, "ssl_min_version", if told.ssl_only_1_3 { "tlsv1.3" } else { "tlsv1.2" });
    stat(out, "client_flags_size", 4);
    // Ours, behind memcached's.
    stat(out, "larder_version", env!("CARGO_PKG_VERSION"));
    stat(out, "incarnation", format_args!("{:016x}", promises.incarnation));
    stat(out, "durability", promises.durability);
    stat(out, "slow_timeout_ms", limits.slow_timeout_ms);
    stat(out, "held_bytes_max", limits.held_bytes_max);
    stat(out, "line_bytes_max", limits.line_bytes_max);
    stat(out, "track_access", yes(limits.track_access));
}

fn items<E: Engine>(env: &Env<E>, out: &mut Vec<u8>) {
    let figures = env.figures();
    if figures.items == 0 {
        return;
    }
    // There are no slab classes: all items are of one.
    stat(out, "items:1:number", figures.items);
    stat(out, "items:1:mem_requested", figures.bytes);
    stat(out, "items:1:evicted", env.counters.evicted_since_reset(&figures));
    stat(out, "items:1:reclaimed", env.counters.expired_since_reset(&figures));
    stat(out, "items:1:outofmemory", env.counters.since_reset(Count::StoreNoMemory));
}

/// All items are of one class, without chunks or pages.
fn slabs<E: Engine>(env: &Env<E>, out: &mut Vec<u8>) {
    const OF_ITEMS: [Count; 7] = [
        Count::GetHits,
        Count::CmdSet,
        Count::DeleteHits,
        Count::IncrHits,
        Count::DecrHits,
        Count::CasHits,
        Count::TouchHits,
    ];
    let figures = env.figures();
    if figures.items > 0 {
        stat(out, "1:used_chunks", figures.items);
        for count in OF_ITEMS {
            stat(out, &format!("1:{}", count.name()), env.counters.since_reset(count));
        }
    }
    stat(out, "active_slabs", u8::from(figures.items > 0));
    stat(out, "total_malloced", figures.bytes);
}

/// How many items there are of which size, in memcached's bytes, rounded up to 32. Walks all of them.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    at: Walk,
    counts: BTreeMap<usize, u64>,
}

impl Sizes {
    /// Looks at some more; what remains, and all of it once nothing does.
    pub(super) fn step<E: Engine>(mut self, env: &Env<E>, out: &mut Vec<u8>) -> Option<Sizes> {
        let walked = env.engine.walk(std::mem::take(&mut self.at), |key, seen| {
            let bytes = memcached_bytes(key, seen.flags, seen.value.len()).next_multiple_of(SIZE_STEP);
            *self.counts.entry(bytes).or_default() += 1;
        });
        match walked {
            Ok(Some(at)) => return Some(Sizes { at, ..self }),
            Ok(None) => {
                self.counts.iter().for_each(|(bytes, count)| stat(out, &bytes.to_string(), count));
                write::line(out, "END");
            }
            Err(error) => write::line(out, &refused::line::<E>(&error, NO_ROOM)),
        }
        None
    }
}

/// Items by name, of the one class that there is: as many as are asked for, all for 0, and no more than memcached's two megabytes of text. Keys that can be no
/// word, which only base64 brings in, are left out.
#[derive(Debug)]
pub(crate) struct Cached {
    /// Of a class that has none there is nothing to walk.
    at: Option<Walk>,
    items_left: u64,
    bytes_left: usize,
}

impl Cached {
    fn begin<E: Engine>(env: &Env<E>, mut words: Words<'_>) -> Result<Cached, &'static str> {
        if !env.limits.dump_enabled {
            return Err("CLIENT_ERROR stats cachedump not allowed");
        }
        let (Some(class), Some(most)) = (words.next(), words.next()) else {
            return Err("CLIENT_ERROR bad command line");
        };
        let (Some(class), Some(most)) = (number(Some(class)), number(Some(most))) else {
            return Err("CLIENT_ERROR bad command line format");
        };
        if class >= SLAB_CLASSES_MAX {
            return Err("CLIENT_ERROR Illegal slab id");
        }
        let items_left = if most == 0 { u64::MAX } else { u64::from(most) };
        Ok(Cached { at: (class == CLASS).then(Walk::default), items_left, bytes_left: CACHEDUMP_BYTES_MAX })
    }

    /// Lists some more; what remains.
    pub(super) fn step<E: Engine>(mut self, env: &Env<E>, out: &mut Vec<u8>) -> Option<Cached> {
        let (wall_s, now_ms) = (env.wall_ms() / 1_000, env.engine.now_ms());
        let (begin, Some(here)) = (out.len(), self.at.take()) else {
            write::line(out, "END");
            return None;
        };
        let walked = env.engine.walk(here, |key, seen| {
            if self.items_left > 0 && out.len() - begin < self.bytes_left && is_word(key) {
                self.items_left -= 1;
                let until = seen.expiry_ms.map_or(0, |ms| wall_s + left_s(ms, now_ms));
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                // A Vec takes whatever is written.
                let _ = write!(out, " [{} b; {until} s]\r\n", seen.value.len());
            }
        });
        self.bytes_left = self.bytes_left.saturating_sub(out.len() - begin);
        match walked {
            Ok(at @ Some(_)) if self.items_left > 0 && self.bytes_left > 0 => return Some(Cached { at, ..self }),
            Ok(_) => write::line(out, "END"),
            Err(error) => write::line(out, &refused::line::<E>(&error, NO_ROOM)),
        }
        None
    }
}

fn conns<E: Engine>(env: &Env<E>, out: &mut Vec<u8>) {
    let now_ms = env.coarse_ms.load(Ordering::Relaxed);
    let mut all = env.conns.all();
    all.sort_by_key(|conn| conn.id);
    for conn in all {
        let name = |what: &str| format!("{}:{what}", conn.id);
        let phase = match conn.phase() {
            Phase::Idle => "conn_waiting",
            Phase::Half => "conn_nread",
            Phase::Writing => "conn_mwrite",
            Phase::Waiting => "conn_io_queue",
        };
        stat(out, &name("addr"), &conn.peer);
        stat(out, &name("listen_addr"), &conn.listener);
        stat(out, &name("state"), phase);
        let idle_ms = now_ms.saturating_sub(conn.last_ms.load(Ordering::Relaxed));
        stat(out, &name("secs_since_last_cmd"), idle_ms / 1_000);
    }
}
