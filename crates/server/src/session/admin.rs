//! Commands that are not about one item.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_proto::server::words::Words;
use larder_proto::server::{Admin, flush_delay, number, write};
use larder_store_durable::BackupParts;
use larder_store_memory::Marks;

use super::classic::NO_ROOM;
use super::meta::idle_s;
use super::refused;
use super::stats::{CLASS, Cached, SLAB_CLASSES_MAX, Sizes};
use super::{Session, is_word, memcached_bytes};
use crate::counters::{Count, Tally};
use crate::engine::{Engine, Walk};
use crate::env::Env;

const BAD: &str = "CLIENT_ERROR bad command line format";
const MEGABYTES_MAX: u32 = 1_000_000_000;
const MEGABYTES_MIN: u32 = 8;
/// Backups that are sent at once.
const BACKUPS_MAX: usize = 2;
/// The highest verbosity there is.
const VERBOSITY_MAX: u32 = 3;

/// A look at all items, a listing or a backup of them, part by part, so that it takes no more room than a part, nor a thread for longer.
#[derive(Debug)]
pub(crate) enum Dump {
    List {
        at: Walk,
        /// True for `mgdump`: lines to send back as they are.
        as_requests: bool,
    },
    Sizes(Sizes),
    Cached(Cached),
    /// A backup that has its place, and is of no moment yet.
    Begun(Place),
    /// Boxed: of many sessions hardly one has one.
    Backup(Box<(BackupParts, Place)>),
}

/// One of the places for backups that are being sent: each keeps what it is of on the disk, and a thread at work.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// `None` where all are taken.
    fn take(taken: &Arc<AtomicUsize>) -> Option<Place> {
        let more = |taken| (taken < BACKUPS_MAX).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Place(taken.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Dump {
    /// Writes a part; what remains. It may wait for the disk, where the [store](Engine::WAITS_FOR_DISK) may.
    pub(crate) fn step<E: Engine>(self, env: &Env<E>, out: &mut Vec<u8>) -> Option<Dump> {
        match self {
            Dump::List { at, as_requests } => list(env, at, as_requests, out),
            Dump::Sizes(sizes) => sizes.step(env, out).map(Dump::Sizes),
            Dump::Cached(cached) => cached.step(env, out).map(Dump::Cached),
            Dump::Begun(place) => begin_backup(env, place, out),
            Dump::Backup(backup) => back_up(env, backup, out),
        }
    }
}

/// A part of a listing.
fn list<E: Engine>(env: &Env<E>, at: Walk, as_requests: bool, out: &mut Vec<u8>) -> Option<Dump> {
    let (now_ms, wall_s) = (env.engine.now_ms(), env.wall_ms() / 1_000);
    let walked = env.engine.walk(at, |key, seen| {
        use std::io::Write;
        if as_requests {
            let base64 = !is_word(key);
            out.extend_from_slice(b"mg ");
            write::key_text(out, key, base64);
            out.extend_from_slice(if base64 { b" b\r\n" } else { b"\r\n" });
            return;
        }
        out.extend_from_slice(b"key=");
        write::key_escaped(out, key);
        let until =
            seen.expiry_ms.map_or(-1, |ms| i64::try_from(wall_s + crate::env::left_s(ms, now_ms)).unwrap_or(i64::MAX));
        let last_s = wall_s.saturating_sub(idle_s(&seen, now_ms));
        let fetch = if seen.marks.contains(Marks::FETCHED) { "yes" } else { "no" };
        let size = memcached_bytes(key, seen.flags, seen.value.len());
        let (cas, flags) = (seen.cas, seen.flags);
        // A Vec takes whatever is written. Memcached has a space before the end, too.
        let _ = writeln!(out, " exp={until} la={last_s} cas={cas} fetch={fetch} cls=1 size={size} flags={flags} ");
    });
    let next = match walked {
        Ok(next) => next,
        Err(error) => {
            // Never as if it were whole: no `END`.
            write::line(out, &refused::line::<E>(&error, NO_ROOM));
            return None;
        }
    };
    if next.is_none() {
        out.extend_from_slice(listing_end(as_requests));
    }
    next.map(|at| Dump::List { at, as_requests })
}

fn listing_end(as_requests: bool) -> &'static [u8] {
    if as_requests { b"EN\r\n" } else { b"END\r\n" }
}

/// Whether all items are in these classes, `all`, `hash` or numbers joined by commas, or none.
///
/// # Errors
/// What memcached answers for classes that it has not either.
fn has_items(classes: &[u8]) -> Result<bool, &'static str> {
    if [&b"all"[..], b"hash"].contains(&classes) {
        return Ok(true);
    }
    let named = classes.split(|&byte| byte == b',').filter(|class| !class.is_empty());
    let mut found = None;
    for class in named {
        match number(Some(class)) {
            Some(class @ 1..SLAB_CLASSES_MAX) => found = Some(found == Some(true) || class == CLASS),
            _ => return Err("BADCLASS invalid class id"),
        }
    }
    found.ok_or("NOTSTARTED no items to crawl")
}

/// Has a backup be of this moment.
fn begin_backup<E: Engine>(env: &Env<E>, place: Place, out: &mut Vec<u8>) -> Option<Dump> {
    match env.engine.backup() {
        Ok(Some(backup)) => {
            write::line(out, "OK");
            return Some(Dump::Backup(Box::new((backup, place))));
        }
        Ok(None) => write::line(out, "ERROR this store has no backups: it is gone with its process"),
        Err(error) => {
            tracing::error!(%error, "no backup");
            write::line(out, "SERVER_ERROR the store is damaged: see the server's log");
        }
    }
    None
}

/// A part of a backup: `DATA`, how many bytes, and those; `END` after the last one.
fn back_up<E: Engine>(env: &Env<E>, mut backup: Box<(BackupParts, Place)>, out: &mut Vec<u8>) -> Option<Dump> {
    match env.engine.backup_part(&mut backup.0) {
        Ok(Some(part)) if part.is_empty() => Some(Dump::Backup(backup)),
        Ok(Some(part)) => {
            out.extend_from_slice(format!("DATA {}\r\n", part.len()).as_bytes());
            out.extend_from_slice(&part);
            out.extend_from_slice(b"\r\n");
            Some(Dump::Backup(backup))
        }
        Ok(None) => {
            write::line(out, "END");
            None
        }
        Err(error) => {
            tracing::error!(%error, "a backup ended before its end");
            write::line(out, "SERVER_ERROR the store is damaged: see the server's log");
            None
        }
    }
}

impl Session {
    pub(super) fn admin<E: Engine>(
        &mut self,
        env: &Env<E>,
        admin: Admin,
        words: Words<'_>,
        noreply: bool,
        tally: &mut Tally,
    ) {
        let reply = match admin {
            Admin::FlushAll => return self.flush_all(env, words, noreply, tally),
            Admin::Verbosity => verbosity(env, words),
            Admin::CacheMemlimit => memlimit(env, words),
            Admin::LruCrawler => return self.lru_crawler(env, words, noreply),
            // There are no lists to tune: what memcached answers without its maintainer.
            Admin::Lru => "ERROR",
            Admin::Slabs => slabs(words),
            Admin::Watch => "CLIENT_ERROR watch commands not allowed",
            Admin::Shutdown => return self.shutdown(env, words, noreply),
            Admin::RefreshCerts => return self.refresh_certs(env, noreply, tally),
        };
        self.answer(reply, noreply);
    }

    fn flush_all<E: Engine>(&mut self, env: &Env<E>, words: Words<'_>, noreply: bool, tally: &mut Tally) {
        tally.add(Count::CmdFlush, 1);
        if !env.limits.flush_enabled {
            return self.answer("CLIENT_ERROR flush_all not allowed", noreply);
        }
        let exptime = match flush_delay(words, noreply) {
            Ok(exptime) => exptime,
            Err(reply) => return self.answer(reply, noreply),
        };
        match env.flush_when(exptime) {
            Ok(()) => self.answer("OK", noreply),
            Err(error) => self.refused::<E>(&error, NO_ROOM, noreply, tally),
        }
    }

    fn shutdown<E: Engine>(&mut self, env: &Env<E>, words: Words<'_>, noreply: bool) {
        let reply = if !env.limits.shutdown_enabled {
            "SERVER_ERROR: shutdown not enabled"
        } else {
            match ({ words }.next(), { words }.count()) {
                (None, _) => "",
                (Some(mode), 1) if b"graceful".starts_with(mode) => "",
                _ => "CLIENT_ERROR invalid shutdown mode",
            }
        };
        if reply.is_empty() {
            self.closing = true;
            tracing::info!("a client asked for the shutdown");
            env.stop.send_replace(true);
        } else {
            self.answer(reply, noreply);
        }
    }

    /// What it says where there is no TLS is what a memcached says that was built without.
    fn refresh_certs<E: Engine>(&mut self, env: &Env<E>, noreply: bool, tally: &mut Tally) {
        match env.files.read_certificates_again() {
            Some(Ok(())) => return self.answer("OK", noreply),
            // Which file it is is for the log. Told also where no reply is asked for, as by memcached.
            Some(Err(_)) => {
                self.answer("SERVER_ERROR certificate and key stay as they were: see the server's log", false)
            }
            None => self.answer("ERROR", noreply),
        }
        tally.add(Count::Errors, 1);
    }

    fn take_place<E: Engine>(&mut self, env: &Env<E>) -> Result<(), &'static str> {
        let place = Place::take(&env.backups).ok_or("SERVER_ERROR busy: two backups are being sent")?;
        self.dump = Some(Dump::Begun(place));
        Ok(())
    }

    fn begin_listing<E: Engine>(
        &mut self,
        env: &Env<E>,
        classes: &[u8],
        as_requests: bool,
    ) -> Result<(), &'static str> {
        if !env.limits.dump_enabled {
            return Err(if as_requests { "ERROR key dump not allowed" } else { "ERROR metadump not allowed" });
        }
        let has_items = has_items(classes)?;
        self.out.extend_from_slice(b"OK\r\n");
        if has_items {
            self.dump = Some(Dump::List { at: Walk::default(), as_requests });
        } else {
            self.out.extend_from_slice(listing_end(as_requests));
        }
        Ok(())
    }

    /// There is no crawler to be turned on or off: what expires goes by itself. Its listings are what clients use it for.
    fn lru_crawler<E: Engine>(&mut self, env: &Env<E>, mut words: Words<'_>, noreply: bool) {
        let (verb, argument, more) = (words.next(), words.next(), words.next());
        let is = |name: &[u8]| verb.is_some_and(|verb| name.starts_with(verb));
        let reply = match (argument, more) {
            // memcached's crawler goes by the table only to list.
            (Some(b"hash"), None) if is(b"crawl") => "ERROR an unknown error happened",
            (Some(classes), None) if is(b"crawl") => has_items(classes).map_or_else(|reply| reply, |_| "OK"),
            (Some(classes), None) if is(b"metadump") || is(b"mgdump") => {
                match self.begin_listing(env, classes, !is(b"metadump")) {
                    Ok(()) => return,
                    Err(reply) => reply,
                }
            }
            // Of our own: all that the store holds at this moment, as a dump.
            (Some(_), None) if verb == Some(b"backup") && !env.limits.dump_enabled => "ERROR backup not allowed",
            (Some(_), None) if verb == Some(b"backup") => match self.take_place(env) {
                Ok(()) => return,
                Err(reply) => reply,
            },
            (Some(argument), None) if is(b"tocrawl") => number(Some(argument)).map_or(BAD, |_| "OK"),
            (Some(argument), None) if is(b"sleep") => match number(Some(argument)) {
                None => BAD,
                Some(..=1_000_000) => "OK",
                Some(_) => "CLIENT_ERROR sleep must be one second or less",
            },
            (None, None) if is(b"enable") || is(b"disable") => "OK",
            _ => "ERROR",
        };
        self.answer(reply, noreply);
    }
}

fn verbosity<E: Engine>(env: &Env<E>, mut words: Words<'_>) -> &'static str {
    match number(words.next()) {
        Some(level) => {
            env.verbosity.store(level.min(VERBOSITY_MAX), Ordering::Relaxed);
            "OK"
        }
        None => BAD,
    }
}

fn memlimit<E: Engine>(env: &Env<E>, mut words: Words<'_>) -> &'static str {
    match number(words.next()) {
        None => "ERROR",
        Some(..MEGABYTES_MIN) => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        Some(megabytes) if megabytes > MEGABYTES_MAX => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        Some(megabytes) => {
            let bytes = usize::try_from(u64::from(megabytes) << 20).unwrap_or(usize::MAX);
            if !env.engine.set_bytes_max(bytes) {
                return "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
            }
            env.memory_bytes_max.store(bytes, Ordering::Relaxed);
            "OK"
        }
    }
}

/// There are no slabs.
fn slabs(mut words: Words<'_>) -> &'static str {
    let verb = words.next();
    let is = |name: &[u8]| verb.is_some_and(|verb| name.starts_with(verb));
    match { words }.count() {
        2 if is(b"reassign") => "CLIENT_ERROR slab reassignment disabled",
        1.. if is(b"automove") => match number(words.next()) {
            Some(0..=2) => "OK",
            Some(_) => "ERROR",
            None => BAD,
        },
        _ => "ERROR",
    }
}
