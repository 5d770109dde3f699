//! One connection's requests: bytes in, replies out, whatever the pieces they come in. No socket and no waiting.

mod admin;
mod classic;
mod login;
mod meta;
mod refused;
mod stats;

pub(crate) use admin::Dump;

use std::sync::atomic::Ordering;
use std::time::Instant;

use larder_proto::key::KEY_TEXT_BYTES_MAX;
use larder_proto::server::{Admin, Command, KeyScratch, Unended, parse, unended, write};
use memchr::memchr;

use crate::counters::{Class, Count, Tally};
use crate::engine::Engine;
use crate::env::Env;
use crate::hot::Countdown;

/// A connection takes no further request while it has so many bytes to give.
const OUT_BYTES_SOFT: usize = 256 << 10;
/// Nor while what its requests have written, and is not settled, has so many bytes: a request of 20 bytes can write an item of megabytes anew.
const UNSETTLED_BYTES_SOFT: usize = 256 << 10;
/// One request in so many is timed.
pub(crate) const TIMED_EVERY: u32 = 16;

/// How requests of memcached's binary protocol begin.
const BINARY: u8 = 0x80;
/// How a TLS handshake begins.
const TLS_HANDSHAKE: u8 = 0x16;

/// What became of a request.
enum Step {
    /// It is done, and so many bytes behind its line were its body.
    Done(usize),
    /// Its body is not all there: so many bytes are needed behind its line.
    Body(usize),
    /// It goes on when the replies so far were taken.
    Paused,
}

const DONE: Step = Step::Done(0);

/// The state of one connection between requests.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Replies that are to be sent.
    pub(crate) out: Vec<u8>,
    /// True if no more requests are to be taken, and the connection closed once the replies are sent.
    pub(crate) closing: bool,
    /// True if requests wait until replies were sent, rather than for more bytes.
    pub(crate) blocked: bool,
    /// True if others are to have their turn before they go on.
    pub(crate) yields: bool,
    /// Bytes that are needed, from the beginning of the request that is not all there.
    pub(crate) need: usize,
    /// Bytes of that request that hold no line end.
    searched: usize,
    /// Bytes to pass over.
    swallow: usize,
    /// Where in its words a `get` or `gat` goes on that was paused.
    resume: usize,
    /// A listing under way. Where the store [may wait for the disk](Engine::WAITS_FOR_DISK) whoever feeds the session has its [steps](Dump::step) taken elsewhere.
    pub(crate) dump: Option<Dump>,
    login: login::Login,
    /// True once a byte was seen.
    begun: bool,
    requests: u32,
    look: Countdown,
    tally: Option<Box<Tally>>,
    /// What the replies wait for; 0 for nothing. See [`Engine::touched`].
    pub(crate) waits_for: u64,
    /// Bytes in memory until that is settled. See [`Engine::unsettled_bytes`].
    pub(crate) unsettled_bytes: usize,
    /// Timed requests whose replies wait for that, and when they began.
    unsettled: Vec<(Class, Instant)>,
}

impl Session {
    /// A session; one that must log in first if there is an auth file.
    pub(crate) fn new(needs_login: bool) -> Session {
        // Anywhere between two that are timed: those of short connections are as likely as others.
        let requests = fastrand::u32(..TIMED_EVERY);
        Session { login: login::Login::new(needs_login), requests, ..Session::default() }
    }

    /// True if nothing of a request is there, and nothing under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.need == 0 && self.searched == 0 && self.swallow == 0 && self.dump.is_none() && self.login.is_idle()
    }

    /// Takes requests off the front of `input`: how many bytes it is done with. The rest is to be given again, with more behind it, or,
    /// if the session is [`blocked`](Session::blocked), once the replies were sent.
    pub(crate) fn feed<E: Engine>(&mut self, env: &Env<E>, input: &[u8]) -> usize {
        let mut tally = self.tally.take().unwrap_or_else(|| Box::new(Tally::new()));
        let mut at = 0;
        self.blocked = false;
        while !self.closing {
            if self.out.len() >= OUT_BYTES_SOFT || self.unsettled_bytes >= UNSETTLED_BYTES_SOFT {
                self.blocked = true;
                break;
            }
            if E::WAITS_FOR_DISK && self.dump.is_some() {
                self.blocked = true;
                break;
            }
            if let Some(dump) = self.dump.take() {
                let before = self.out.len();
                self.dump = dump.step(env, &mut self.out);
                if self.dump.is_some() && self.out.len() == before {
                    // It has looked at many items and has nothing to show, so that nobody's pace is a bound to it.
                    (self.blocked, self.yields) = (true, true);
                    break;
                }
                continue;
            }
            let rest = &input[at..];
            if rest.is_empty() {
                break;
            }
            let passed = self.swallow.min(rest.len());
            if passed > 0 {
                self.swallow -= passed;
                at += passed;
                continue;
            }
            match self.take(env, rest, &mut tally) {
                Some(taken) => at += taken,
                None => break,
            }
        }
        env.counters.mine().absorb(&mut tally);
        self.tally = Some(tally);
        if self.closing { input.len() } else { at }
    }

    /// Takes one request: its bytes, if it is done.
    fn take<E: Engine>(&mut self, env: &Env<E>, rest: &[u8], tally: &mut Tally) -> Option<usize> {
        if !self.begun {
            self.begun = true;
            match rest.first() {
                // Not spoken here.
                Some(&BINARY) => {
                    self.closing = true;
                    return None;
                }
                // Its client waits for an answer, and may never send the end of a line. What memcached says at that end tells it that this is no TLS.
                Some(&TLS_HANDSHAKE) => {
                    tally.add(Count::Errors, 1);
                    self.answer("ERROR", false);
                    self.closing = true;
                    return None;
                }
                _ => {}
            }
        }
        if rest.len() < self.need {
            return None;
        }
        if !self.login.is_in() {
            return self.log_in(env, rest, tally);
        }
        let Some(end) = memchr(b'\n', &rest[self.searched..]).map(|end| self.searched + end + 1) else {
            if unended(rest) == Unended::Close || rest.len() >= env.limits.line_bytes_max {
                tally.add(Count::Errors, 1);
                self.closing = true;
            }
            self.searched = rest.len();
            return None;
        };
        let (line, body) = rest.split_at(end);
        self.requests = self.requests.wrapping_add(1);
        let timed = self.requests.is_multiple_of(TIMED_EVERY).then(Instant::now);
        let mut scratch = KeyScratch::new();
        let command = parse(line, &mut scratch);
        let class = class(&command);
        let step = self.execute(env, &command, body, tally);
        let waits = self.waits(env);
        if !matches!(step, Step::Done(_)) {
            // It comes again, with its body or when there is room for more replies, and is the same request then.
            self.requests = self.requests.wrapping_sub(1);
        } else {
            self.done(env, class, timed, waits);
            if self.look.is_over()
                && let Some(key) = key(&command)
            {
                env.counters.mine().hot.saw(key, env.coarse_ms.load(Ordering::Relaxed));
            }
        }
        self.searched = 0;
        match step {
            Step::Done(body_bytes) => {
                self.need = 0;
                Some(end + body_bytes)
            }
            Step::Body(body_bytes) => {
                self.need = end + body_bytes;
                None
            }
            Step::Paused => {
                self.blocked = true;
                None
            }
        }
    }

    fn execute<E: Engine>(&mut self, env: &Env<E>, command: &Command<'_>, body: &[u8], tally: &mut Tally) -> Step {
        match command {
            Command::Get { keys, cas, touch: None } => return self.get(env, *keys, *cas, tally),
            Command::Get { keys, cas, touch: Some(exptime) } => {
                return self.get_and_touch(env, *keys, *cas, *exptime, tally);
            }
            Command::Put(put) => return self.put(env, put, body, tally),
            Command::MetaGet(meta) => self.meta_get(env, meta, tally),
            Command::MetaPut(meta, bytes) => return self.meta_put(env, meta, *bytes, body, tally),
            Command::MetaDelete(meta) => self.meta_delete(env, meta, tally),
            Command::MetaArith(meta) => self.meta_arith(env, meta, tally),
            Command::MetaDebug(meta) => self.meta_debug(env, meta, tally),
            Command::MetaNoop => write::line(&mut self.out, "MN"),
            Command::Delete { key, noreply } => self.delete(env, key, *noreply, tally),
            Command::Arith { key, incr, delta, noreply } => self.arith(env, key, *incr, *delta, *noreply, tally),
            Command::Touch { key, exptime, noreply } => self.touch(env, key, *exptime, *noreply, tally),
            // These go through what is durable, and are to find what this connection wrote before.
            Command::Stats(words) if self.waits_for > 0 && { *words }.next().is_some() => return Step::Paused,
            Command::Admin(Admin::LruCrawler, ..) if self.waits_for > 0 => return Step::Paused,
            Command::Stats(words) => self.stats(env, *words),
            Command::Version => write::line(&mut self.out, crate::VERSION_LINE),
            Command::Quit => self.closing = true,
            Command::Admin(admin, words, noreply) => self.admin(env, *admin, *words, *noreply, tally),
            Command::Refuse { reply, silent, swallow } => {
                tally.add(Count::Errors, 1);
                self.swallow = *swallow;
                self.answer(reply, *silent);
            }
            Command::Close => self.closing = true,
        }
        DONE
    }

    /// Times a request, if it is one that is timed: now, or when what its reply waits for is durable.
    fn done<E: Engine>(&mut self, env: &Env<E>, class: Class, began: Option<Instant>, waits: bool) {
        match began {
            Some(began) if waits => self.unsettled.push((class, began)),
            Some(began) => env.counters.mine().time(class, began.elapsed()),
            None => {}
        }
    }

    /// Notes what this thread touched since it was noted last: whether the reply waits for anything.
    fn waits<E: Engine>(&mut self, env: &Env<E>) -> bool {
        let (touched, bytes) = (env.engine.touched(), env.engine.unsettled_bytes());
        self.waits_for = self.waits_for.max(touched);
        // Where nothing is to be waited for nothing was written: it was refused.
        if self.waits_for > 0 {
            self.unsettled_bytes = self.unsettled_bytes.saturating_add(bytes);
        }
        touched > 0
    }

    /// What the replies waited for is durable: the timed requests among them took until now.
    pub(crate) fn settled<E: Engine>(&mut self, env: &Env<E>) {
        (self.waits_for, self.unsettled_bytes) = (0, 0);
        for (class, began) in self.unsettled.drain(..) {
            env.counters.mine().time(class, began.elapsed());
        }
    }

    fn answer(&mut self, reply: &str, silent: bool) {
        if !silent {
            write::line(&mut self.out, reply);
        }
    }

    /// Answers an error of a request whose body is still to come, and passes that over.
    fn refuse_body(&mut self, reply: &str, silent: bool, bytes: usize, tally: &mut Tally) -> Step {
        tally.add(Count::Errors, 1);
        self.swallow = bytes + 2;
        self.answer(reply, silent);
        DONE
    }
}

fn class(command: &Command<'_>) -> Class {
    match command {
        Command::Get { .. } | Command::MetaGet(_) | Command::MetaDebug(_) => Class::Read,
        Command::Put(_)
        | Command::MetaPut(..)
        | Command::MetaDelete(_)
        | Command::MetaArith(_)
        | Command::Delete { .. }
        | Command::Arith { .. }
        | Command::Touch { .. } => Class::Write,
        _ => Class::Other,
    }
}

/// The key that a command is about, of several the first; `None` where it is none, as of a `get` that was refused for it.
fn key<'a>(command: &Command<'a>) -> Option<&'a [u8]> {
    let key = match command {
        Command::Get { keys, .. } => { *keys }.next(),
        Command::Put(put) => Some(put.key),
        Command::Delete { key, .. } | Command::Arith { key, .. } | Command::Touch { key, .. } => Some(*key),
        Command::MetaGet(meta) | Command::MetaPut(meta, _) | Command::MetaDelete(meta) | Command::MetaArith(meta) => {
            Some(meta.key)
        }
        _ => None,
    };
    key.filter(|key| key.len() <= KEY_TEXT_BYTES_MAX)
}

/// Whether a key can stand in a line as it is. One that cannot has come as base64, and fits into a line as that.
fn is_word(key: &[u8]) -> bool {
    !key.iter().any(|byte| matches!(byte, b' ' | b'\n' | 0)) && key.last() != Some(&b'\r')
}

/// What an item takes in memcached, for `item_size_max` and the sizes it tells.
fn memcached_bytes(key: &[u8], flags: u32, value_bytes: usize) -> usize {
    const HEADER: usize = larder_proto::Abilities::ITEM_OVERHEAD_BYTES;
    let flags = if flags == 0 { 0 } else { larder_proto::Abilities::FLAGS_BYTES };
    HEADER + key.len() + flags + value_bytes
}
