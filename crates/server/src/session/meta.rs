//! The meta commands.

use larder_core::{Error, ErrorKind, Result};
use larder_proto::server::{Meta, OPAQUE_BYTES_MAX, write};
use larder_store_memory::{Marks, Next, Seen, Token, Value};

use super::classic::{
    BAD_CHUNK, NO_MEMORY, NO_ROOM, NOT_A_NUMBER, Summed, TOO_LARGE, Wrote, remove, same, sum, summed_next,
};
use super::{Session, Step, memcached_bytes};
use crate::counters::{Count, Tally};
use crate::engine::Engine;
use crate::env::{Env, RELATIVE_S_MAX, left_s};

const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";

/// How an item is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// It is there, and may be marked as won.
    There,
    /// It was made for this read.
    Made,
    /// It is there, and nothing of it can be changed: nobody is told to have won.
    Only,
}

/// What a read changes of the item it reads.
struct Change {
    expiry_ms: Option<u64>,
    marks: Marks,
    changed: bool,
}

impl Session {
    pub(super) fn meta_get<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, tally: &mut Tally) {
        if opaque_too_long(meta) {
            return self.meta_error(OPAQUE_TOO_LONG, tally);
        }
        let start = self.out.len();
        let plain = meta.exptime.is_none()
            && meta.vivify.is_none()
            && meta.recache.is_none()
            && !meta.no_bump
            && !meta.asks_use;
        let mut found = Ok(None);
        if plain {
            // A read that changes nothing but that it was one; an item with marks to be told, or given, takes the long way.
            let out = &mut self.out;
            found = env.engine.fetch(meta.key, |seen| {
                let marked = seen.marks.intersects(Marks::STALE | Marks::WON);
                if !marked {
                    item_reply(env, out, meta, &seen, Read::Only);
                }
                !marked
            });
        }
        let hit = match (plain, found) {
            (true, Ok(None)) => Ok(false),
            (true, Ok(Some(true))) => Ok(true),
            (_, Err(error)) => Err(error),
            _ => match self.meta_get_changing(env, meta, start) {
                Err(error) if meta.exptime.is_none() => self.meta_get_only(env, meta, error),
                done => done,
            },
        };
        let touches = meta.exptime.is_some();
        tally.add(if touches { Count::CmdTouch } else { Count::CmdGet }, 1);
        let hit = match hit {
            Ok(hit) => hit,
            Err(error) => return self.refused::<E>(&error, NO_ROOM, false, tally),
        };
        match (hit, touches) {
            (true, false) => tally.add(Count::GetHits, 1),
            (true, true) => tally.add(Count::TouchHits, 1),
            (false, false) => tally.add(Count::GetMisses, 1),
            (false, true) => tally.add(Count::TouchMisses, 1),
        }
        if !hit && !meta.quiet {
            self.out.extend_from_slice(b"EN");
            echo(&mut self.out, meta);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// A read that would have marked the item, of a store that takes no writes: reads go on. Where it would have made the item that is refused, for which `error` says why.
    fn meta_get_only<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, error: Error) -> Result<bool> {
        if !matches!(error.kind(), ErrorKind::Full | ErrorKind::Unavailable) {
            return Err(error);
        }
        let out = &mut self.out;
        let found = env.engine.fetch(meta.key, |seen| _ = item_reply(env, out, meta, &seen, Read::Only))?;
        if found.is_none() && meta.vivify.is_some() { Err(error) } else { Ok(found.is_some()) }
    }

    /// A read that may change the item, or make it: whether there is one.
    fn meta_get_changing<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, start: usize) -> Result<bool> {
        let out = &mut self.out;
        let mut hit = false;
        let done = env.engine.update(meta.key, |seen, fresh| {
            out.truncate(start);
            hit = true;
            let bumped = if meta.no_bump { Marks::empty() } else { Marks::FETCHED };
            if let Some(seen) = seen {
                let change = item_reply(env, out, meta, &seen, Read::There);
                let marks = change.marks | bumped;
                return match (change.changed, meta.no_bump) {
                    (true, _) => same(&seen, change.expiry_ms, marks),
                    (false, true) if marks == seen.marks => Next::Keep,
                    (false, _) => Next::Used(marks),
                };
            }
            let Some(_) = meta.vivify else {
                hit = false;
                return Next::Keep;
            };
            let cas = meta.cas_new.unwrap_or(fresh);
            let stub = Seen { value: b"", flags: 0, cas, expiry_ms: None, marks: Marks::empty(), accessed_s: None };
            let change = item_reply(env, out, meta, &stub, Read::Made);
            Next::Write {
                value: Value::Whole(b""),
                flags: 0,
                expiry_ms: change.expiry_ms,
                marks: change.marks | bumped,
                token: Token::Given(cas),
            }
        });
        done.map(|()| hit).inspect_err(|_| self.out.truncate(start))
    }

    pub(super) fn meta_put<E: Engine>(
        &mut self,
        env: &Env<E>,
        meta: &Meta<'_>,
        bytes: usize,
        body: &[u8],
        tally: &mut Tally,
    ) -> Step {
        let mode = match meta.mode {
            None => b'S',
            Some(mode @ (b'E' | b'A' | b'P' | b'R' | b'S')) => mode,
            Some(_) => return self.refuse_body("CLIENT_ERROR invalid mode for ms M token", false, bytes, tally),
        };
        if memcached_bytes(meta.key, meta.client_flags, bytes) > env.limits.item_bytes_max {
            tally.add(Count::StoreTooLarge, 1);
            if mode == b'S' && meta.cas.is_none() {
                // As memcached does. Where that fails, the item stays, and the set is refused all the same.
                _ = remove(env, meta.key);
            }
            return self.refuse_body(TOO_LARGE, false, bytes, tally);
        }
        if opaque_too_long(meta) {
            return self.refuse_body(OPAQUE_TOO_LONG, false, bytes, tally);
        }
        let Some(value) = body.get(..bytes + 2) else { return Step::Body(bytes + 2) };
        let Some(value) = value.strip_suffix(b"\r\n") else {
            tally.add(Count::Errors, 1);
            self.answer(BAD_CHUNK, false);
            return Step::Done(bytes + 2);
        };
        tally.add(Count::CmdSet, 1);
        self.meta_put_value(env, meta, mode, value, tally);
        Step::Done(bytes + 2)
    }

    fn meta_put_value<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, mode: u8, value: &[u8], tally: &mut Tally) {
        let exptime = match meta.vivify {
            Some(vivify) if matches!(mode, b'A' | b'P') => vivify,
            _ => meta.exptime.unwrap_or(0),
        };
        let expiry_ms = env.expiry_ms(exptime);
        let (mut wrote, mut cas, mut size) = (Wrote::Stored, 0, 0);
        let looks = mode != b'S' || meta.cas.is_some();
        let done = env.engine.write(meta.key, looks, |seen, fresh| {
            size = value.len();
            let (result, next) = put_next(env, meta, mode, value, expiry_ms, seen);
            wrote = result;
            cas = if wrote == Wrote::Stored { meta.cas_new.filter(|&cas| cas != 0).unwrap_or(fresh) } else { 0 };
            if let (Wrote::Stored, b'A' | b'P', Some(seen)) = (wrote, mode, seen) {
                size += seen.value.len();
            }
            next
        });
        if let Err(error) = done {
            if E::REFUSED_SET_REMOVES && mode == b'S' && meta.cas.is_none() {
                _ = remove(env, meta.key);
            }
            return self.refused::<E>(&error, NO_ROOM, false, tally);
        }
        // Those are a `cas`, as in memcached; others only look at the token.
        if meta.cas.is_some() && matches!(mode, b'S' | b'R') {
            tally.add(wrote.by_token(), 1);
        }
        if wrote == Wrote::Stored {
            tally.add(Count::TotalItems, 1);
            if meta.quiet {
                return;
            }
        }
        let code = match wrote {
            Wrote::Stored => "HD",
            Wrote::NotStored => "NS",
            Wrote::Exists => "EX",
            Wrote::NotFound => "NF",
        };
        let out = &mut self.out;
        out.extend_from_slice(code.as_bytes());
        for word in meta.words {
            match word[0] {
                b'c' => write::flag(out, b'c', cas),
                b's' => write::flag(out, b's', size as u64),
                _ => echo_word(out, meta, word),
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    pub(super) fn meta_delete<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, tally: &mut Tally) {
        if opaque_too_long(meta) {
            return self.meta_error(OPAQUE_TOO_LONG, tally);
        }
        let expiry_ms = meta.exptime.map(|exptime| env.expiry_ms(exptime));
        let mut wrote = Wrote::Stored;
        let done = env.engine.update(meta.key, |seen, _| {
            let (result, next) = delete_next(meta, expiry_ms, seen);
            wrote = result;
            next
        });
        if let Err(error) = done {
            return self.refused::<E>(&error, NO_MEMORY, false, tally);
        }
        let hit = wrote == Wrote::Stored;
        tally.add(if hit { Count::DeleteHits } else { Count::DeleteMisses }, 1);
        if hit && meta.quiet {
            return;
        }
        self.out.extend_from_slice(match wrote {
            Wrote::Stored => b"HD",
            Wrote::Exists => b"EX",
            Wrote::NotFound | Wrote::NotStored => b"NF",
        });
        echo(&mut self.out, meta);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn meta_arith<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, tally: &mut Tally) {
        let incr = match meta.mode {
            None | Some(b'I' | b'+') => true,
            Some(b'D' | b'-') => false,
            Some(_) => return self.meta_error("CLIENT_ERROR invalid mode for ma M token", tally),
        };
        if opaque_too_long(meta) {
            return self.meta_error(OPAQUE_TOO_LONG, tally);
        }
        let start = self.out.len();
        let out = &mut self.out;
        let (mut summed, mut exists) = (Summed::Missing, false);
        let done = env.engine.update(meta.key, |seen, fresh| {
            out.truncate(start);
            let cas = meta.cas_new.unwrap_or(fresh);
            (summed, exists) = (Summed::Missing, false);
            let Some(seen) = seen else {
                if meta.vivify.is_none() {
                    return Next::Keep;
                }
                summed = Summed::Number(meta.initial);
                let expiry_ms = sum_reply(env, out, meta, meta.initial, cas, None, true);
                let value = Value::Padded { number: meta.initial, width: 0 };
                return Next::Write { value, flags: 0, expiry_ms, marks: Marks::empty(), token: Token::Given(cas) };
            };
            // An empty value is no number, whatever the token is.
            exists = !seen.value.is_empty() && meta.cas.is_some_and(|cas| cas != 0 && cas != seen.cas);
            if exists {
                return Next::Keep;
            }
            summed = sum(&seen, incr, meta.delta);
            let Summed::Number(number) = summed else { return Next::Keep };
            let expiry_ms = sum_reply(env, out, meta, number, cas, seen.expiry_ms, false);
            summed_next(&seen, number, expiry_ms, Token::Given(cas))
        });
        if let Err(error) = done {
            self.out.truncate(start);
            return self.refused::<E>(&error, NO_MEMORY, false, tally);
        }
        match summed {
            Summed::Number(_) => {
                tally.add(if incr { Count::IncrHits } else { Count::DecrHits }, 1);
                if meta.quiet {
                    self.out.truncate(start);
                }
            }
            Summed::NotANumber => self.meta_error(NOT_A_NUMBER, tally),
            Summed::Missing => {
                tally.add(if incr { Count::IncrMisses } else { Count::DecrMisses }, u64::from(!exists));
                self.out.extend_from_slice(if exists { b"EX" } else { b"NF" });
                echo(&mut self.out, meta);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(super) fn meta_debug<E: Engine>(&mut self, env: &Env<E>, meta: &Meta<'_>, tally: &mut Tally) {
        use std::io::Write;
        tally.add(Count::CmdMeta, 1);
        let out = &mut self.out;
        let mut found = false;
        let done = env.engine.update(meta.key, |seen, _| {
            found = seen.is_some();
            let Some(seen) = seen else { return Next::Keep };
            let now_ms = env.engine.now_ms();
            out.extend_from_slice(b"ME ");
            write::key_text(out, meta.key, meta.base64);
            let left = seen.expiry_ms.map_or(-1, |ms| i64::try_from(left_s(ms, now_ms)).unwrap_or(i64::MAX));
            let fetch = if seen.marks.contains(Marks::FETCHED) { "yes" } else { "no" };
            let size = memcached_bytes(meta.key, seen.flags, seen.value.len());
            let idle = idle_s(&seen, now_ms);
            // A Vec takes whatever is written.
            let _ = write!(out, " exp={left} la={idle} cas={} fetch={fetch} cls=1 size={size}\r\n", seen.cas);
            Next::Keep
        });
        if let Err(error) = done {
            return self.refused::<E>(&error, NO_ROOM, false, tally);
        }
        if !found {
            write::line(out, "EN");
        }
    }

    /// Errors are answered even where the rest is quiet.
    fn meta_error(&mut self, error: &str, tally: &mut Tally) {
        tally.add(Count::Errors, 1);
        write::line(&mut self.out, error);
    }
}

/// Seconds since an item was last used; 0 where the store does not keep that.
pub(super) fn idle_s(seen: &Seen<'_>, now_ms: u64) -> u64 {
    seen.accessed_s.map_or(0, |accessed_s| (now_ms / 1_000).saturating_sub(u64::from(accessed_s)))
}

fn opaque_too_long(meta: &Meta<'_>) -> bool {
    meta.words.into_iter().any(|word| word[0] == b'O' && word.len() > OPAQUE_BYTES_MAX)
}

/// Writes the reply of a read, and says what it changes of the item. Flags take effect in their order.
fn item_reply<E: Engine>(env: &Env<E>, out: &mut Vec<u8>, meta: &Meta<'_>, seen: &Seen<'_>, how: Read) -> Change {
    let value = meta.value && meta.cas != Some(seen.cas);
    if value {
        out.reserve(seen.value.len() + 96);
        out.extend_from_slice(b"VA ");
        write::number(out, seen.value.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    let mut expiry_ms = seen.expiry_ms;
    let mut won = false;
    for word in meta.words {
        match word[0] {
            b'T' => expiry_ms = env.expiry_ms(meta.exptime.unwrap_or(0)),
            b'N' if how == Read::Made => {
                expiry_ms = env.expiry_ms(meta.vivify.unwrap_or(0));
                won = true;
            }
            b'R' if how != Read::Made && !seen.marks.contains(Marks::WON) => won |= ends_within(env, expiry_ms, meta),
            b's' => write::flag(out, b's', seen.value.len() as u64),
            b't' => life_flag(env, out, expiry_ms),
            b'c' => write::flag(out, b'c', seen.cas),
            b'f' => write::flag(out, b'f', u64::from(seen.flags)),
            b'l' => write::flag(out, b'l', idle_s(seen, env.engine.now_ms())),
            b'h' => write::flag(out, b'h', u64::from(seen.marks.contains(Marks::FETCHED))),
            _ => echo_word(out, meta, word),
        }
    }
    let mut marks = seen.marks;
    if marks.contains(Marks::WON) {
        out.extend_from_slice(b" Z");
    }
    if marks.contains(Marks::STALE) {
        out.extend_from_slice(b" X");
        won |= !marks.contains(Marks::WON);
    }
    if won && how != Read::Only {
        out.extend_from_slice(b" W");
        marks |= Marks::WON;
    }
    out.extend_from_slice(b"\r\n");
    if value {
        out.extend_from_slice(seen.value);
        out.extend_from_slice(b"\r\n");
    }
    Change { expiry_ms, marks, changed: expiry_ms != seen.expiry_ms }
}

/// True if less of a life is left than `R` says, in whole seconds as memcached counts them.
fn ends_within<E: Engine>(env: &Env<E>, expiry_ms: Option<u64>, meta: &Meta<'_>) -> bool {
    let (Some(expiry_ms), Some(recache)) = (expiry_ms, meta.recache) else { return false };
    let Ok(recache_s) = u64::try_from(recache) else { return false };
    let within_s = if recache_s > RELATIVE_S_MAX { recache_s.saturating_sub(env.wall_ms() / 1_000) } else { recache_s };
    left_s(expiry_ms, env.engine.now_ms()) < within_s
}

fn life_flag<E: Engine>(env: &Env<E>, out: &mut Vec<u8>, expiry_ms: Option<u64>) {
    match expiry_ms {
        None => out.extend_from_slice(b" t-1"),
        Some(expiry_ms) => write::flag(out, b't', left_s(expiry_ms, env.engine.now_ms())),
    }
}

/// The flags that come back whatever became of the request.
fn echo(out: &mut Vec<u8>, meta: &Meta<'_>) {
    meta.words.into_iter().for_each(|word| echo_word(out, meta, word));
}

fn echo_word(out: &mut Vec<u8>, meta: &Meta<'_>, word: &[u8]) {
    match word[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(word);
        }
        b'k' => write::key(out, meta.key, meta.base64),
        _ => {}
    }
}

/// Writes the reply of arithmetic that succeeded: what life the item has then.
fn sum_reply<E: Engine>(
    env: &Env<E>,
    out: &mut Vec<u8>,
    meta: &Meta<'_>,
    number: u64,
    cas: u64,
    mut expiry_ms: Option<u64>,
    made: bool,
) -> Option<u64> {
    let digits = u64::from(number.checked_ilog10().unwrap_or(0)) + 1;
    if meta.value {
        out.extend_from_slice(b"VA ");
        write::number(out, digits);
    } else {
        out.extend_from_slice(b"HD");
    }
    for word in meta.words {
        match word[0] {
            b'c' => write::flag(out, b'c', cas),
            b't' => life_flag(env, out, expiry_ms),
            b'T' => expiry_ms = env.expiry_ms(meta.exptime.unwrap_or(0)),
            b'N' if made => expiry_ms = env.expiry_ms(meta.vivify.unwrap_or(0)),
            _ => echo_word(out, meta, word),
        }
    }
    if meta.value {
        out.extend_from_slice(b"\r\n");
        write::number(out, number);
    }
    out.extend_from_slice(b"\r\n");
    expiry_ms
}

fn put_next<'n, E: Engine>(
    env: &Env<E>,
    meta: &Meta<'_>,
    mode: u8,
    value: &'n [u8],
    expiry_ms: Option<u64>,
    seen: Option<Seen<'_>>,
) -> (Wrote, Next<'n>) {
    // Here a 0 is none, too.
    let token = meta.cas_new.filter(|&cas| cas != 0).map_or(Token::Fresh, Token::Given);
    let whole = |expiry_ms, marks| {
        let value = Value::Whole(value);
        (Wrote::Stored, Next::Write { value, flags: meta.client_flags, expiry_ms, marks, token })
    };
    let Some(seen) = seen else {
        return match (mode, meta.cas) {
            (b'S' | b'R', Some(_)) => (Wrote::NotFound, Next::Keep),
            (b'S' | b'E', _) => whole(expiry_ms, Marks::empty()),
            (b'A' | b'P', _) if meta.vivify.is_some() => whole(expiry_ms, Marks::empty()),
            _ => (Wrote::NotStored, Next::Keep),
        };
    };
    // A token of 0 is none: for a plain set it matches nothing, for an append it asks nothing.
    match (mode, meta.cas) {
        (b'E', _) => (Wrote::NotStored, Next::Used(seen.marks)),
        (b'A' | b'P', Some(cas)) if cas != 0 && cas != seen.cas => (Wrote::Exists, Next::Keep),
        (b'A' | b'P', _) => {
            if memcached_bytes(meta.key, seen.flags, seen.value.len() + value.len()) > env.limits.item_bytes_max {
                return (Wrote::NotStored, Next::Keep);
            }
            let joined = if mode == b'A' { Value::Append(value) } else { Value::Prepend(value) };
            let (flags, expiry_ms) = (seen.flags, seen.expiry_ms);
            (Wrote::Stored, Next::Write { value: joined, flags, expiry_ms, marks: Marks::empty(), token })
        }
        (_, None) => whole(expiry_ms, Marks::empty()),
        (_, Some(cas)) if cas != 0 && cas == seen.cas => whole(expiry_ms, Marks::empty()),
        // A writer who is late, and says that what it brings may be stale: it stays so, and whoever won it has still won it.
        (_, Some(cas)) if meta.invalidate && cas != 0 && cas < seen.cas => {
            whole(seen.expiry_ms, Marks::STALE | (seen.marks & Marks::WON))
        }
        _ => (Wrote::Exists, Next::Keep),
    }
}

/// `expiry_ms` is the life to give, if one was sent.
fn delete_next<'n>(meta: &Meta<'_>, expiry_ms: Option<Option<u64>>, seen: Option<Seen<'_>>) -> (Wrote, Next<'n>) {
    let Some(seen) = seen else { return (Wrote::NotFound, Next::Keep) };
    if meta.cas.is_some_and(|cas| cas != seen.cas) {
        return (Wrote::Exists, Next::Keep);
    }
    let given = meta.cas_new.map(Token::Given);
    let next = match (meta.remove_value, meta.invalidate) {
        (false, false) => Next::Remove,
        (false, true) => Next::Write {
            value: Value::Same,
            flags: seen.flags,
            expiry_ms: expiry_ms.unwrap_or(seen.expiry_ms),
            // Nobody has won it any more, so that the next reader does.
            marks: (seen.marks & Marks::FETCHED) | Marks::STALE,
            token: given.unwrap_or(Token::Fresh),
        },
        (true, invalidate) => Next::Write {
            value: Value::Whole(b""),
            flags: meta.client_flags,
            expiry_ms: expiry_ms.unwrap_or(None),
            marks: if invalidate { Marks::STALE } else { Marks::empty() },
            token: given.unwrap_or(if invalidate { Token::Fresh } else { Token::Same }),
        },
    };
    (Wrote::Stored, next)
}
