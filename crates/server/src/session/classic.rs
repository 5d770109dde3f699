//! The classic commands.

use larder_core::Result;
use larder_proto::server::words::{Words, loose_u64};
use larder_proto::server::{BAD_FORMAT, KEY_BYTES_MAX, Put, PutVerb, write};
use larder_store_memory::{Marks, Next, Seen, Token, Value};

use super::{DONE, OUT_BYTES_SOFT, Session, Step, memcached_bytes};
use crate::counters::{Count, Tally};
use crate::engine::Engine;
use crate::env::Env;

pub(super) const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";
pub(super) const NO_MEMORY: &str = "SERVER_ERROR out of memory";
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
pub(super) const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    Stored,
    NotStored,
    Exists,
    NotFound,
}

impl Wrote {
    /// What it counts as, of a write that goes by a token.
    pub(super) fn by_token(self) -> Count {
        match self {
            Wrote::Stored => Count::CasHits,
            Wrote::Exists => Count::CasBadval,
            Wrote::NotFound | Wrote::NotStored => Count::CasMisses,
        }
    }
}

impl Session {
    pub(super) fn get<E: Engine>(&mut self, env: &Env<E>, keys: Words<'_>, cas: bool, tally: &mut Tally) -> Step {
        self.each_key::<E>(keys, tally, |out, key, tally| {
            let put = |seen: Seen<'_>| write::value(out, key, seen.flags, seen.value, cas.then_some(seen.cas));
            let shown = env.engine.fetch(key, put);
            tally.add(Count::CmdGet, 1);
            tally.add(if shown?.is_some() { Count::GetHits } else { Count::GetMisses }, 1);
            Ok(())
        })
    }

    pub(super) fn get_and_touch<E: Engine>(
        &mut self,
        env: &Env<E>,
        keys: Words<'_>,
        cas: bool,
        exptime: i32,
        tally: &mut Tally,
    ) -> Step {
        self.each_key::<E>(keys, tally, |out, key, tally| {
            let expiry_ms = env.expiry_ms(exptime);
            let start = out.len();
            let mut hit = false;
            let touched = env.engine.update(key, |seen, _| {
                out.truncate(start);
                hit = seen.is_some();
                let Some(seen) = seen else { return Next::Keep };
                write::value(out, key, seen.flags, seen.value, cas.then_some(seen.cas));
                same(&seen, expiry_ms, seen.marks | Marks::FETCHED)
            });
            tally.add(Count::CmdTouch, 1);
            touched.inspect_err(|_| out.truncate(start))?;
            tally.add(if hit { Count::TouchHits } else { Count::TouchMisses }, 1);
            Ok(())
        })
    }

    /// Answers one key after the other, and pauses where the replies are enough for now: a line holds tens of thousands of keys, and each may stand for the
    /// largest value.
    #[inline]
    fn each_key<E: Engine>(
        &mut self,
        keys: Words<'_>,
        tally: &mut Tally,
        mut answer: impl FnMut(&mut Vec<u8>, &[u8], &mut Tally) -> Result<()>,
    ) -> Step {
        let all = keys.rest();
        // A bad key anywhere makes the whole request bad; the check is made once, before the first value goes out.
        if self.resume == 0 && keys.into_iter().any(|key| key.len() > KEY_BYTES_MAX) {
            tally.add(Count::Errors, 1);
            write::line(&mut self.out, BAD_FORMAT);
            return DONE;
        }
        let mut keys = Words::of(all.get(self.resume..).unwrap_or_default());
        while let Some(key) = keys.next() {
            if let Err(error) = answer(&mut self.out, key, tally) {
                // Values that were found stand; the error ends the reply in place of `END`.
                self.refused::<E>(&error, NO_ROOM, false, tally);
                self.resume = 0;
                return DONE;
            }
            if self.out.len() >= OUT_BYTES_SOFT && { keys }.next().is_some() {
                self.resume = all.len() - keys.rest().len();
                return Step::Paused;
            }
        }
        self.resume = 0;
        self.out.extend_from_slice(b"END\r\n");
        DONE
    }

    pub(super) fn put<E: Engine>(&mut self, env: &Env<E>, put: &Put<'_>, body: &[u8], tally: &mut Tally) -> Step {
        if memcached_bytes(put.key, put.flags, put.bytes) > env.limits.item_bytes_max {
            tally.add(Count::StoreTooLarge, 1);
            if put.verb == PutVerb::Set {
                // As memcached does. Where that fails, the item stays, and the set is refused all the same.
                _ = remove(env, put.key);
            }
            return self.refuse_body(TOO_LARGE, put.noreply, put.bytes, tally);
        }
        let Some(value) = body.get(..put.bytes + 2) else { return Step::Body(put.bytes + 2) };
        let Some(value) = value.strip_suffix(b"\r\n") else {
            tally.add(Count::Errors, 1);
            self.answer(BAD_CHUNK, put.noreply);
            return Step::Done(put.bytes + 2);
        };
        tally.add(Count::CmdSet, 1);
        let expiry_ms = if put.exptime == 0 { None } else { env.expiry_ms(put.exptime) };
        let mut wrote = Wrote::Stored;
        let done = env.engine.write(put.key, put.verb != PutVerb::Set, |seen, _| {
            let (result, next) = classic_next(env, put, value, expiry_ms, seen);
            wrote = result;
            next
        });
        if done.is_ok() && matches!(put.verb, PutVerb::Cas(_)) {
            tally.add(wrote.by_token(), 1);
        }
        let reply = match (done, wrote) {
            (Err(error), _) => {
                if E::REFUSED_SET_REMOVES && put.verb == PutVerb::Set {
                    _ = remove(env, put.key);
                }
                self.refused::<E>(&error, NO_ROOM, put.noreply, tally);
                return Step::Done(put.bytes + 2);
            }
            (Ok(()), Wrote::Stored) => {
                tally.add(Count::TotalItems, 1);
                "STORED"
            }
            (Ok(()), Wrote::NotStored) => "NOT_STORED",
            (Ok(()), Wrote::Exists) => "EXISTS",
            (Ok(()), Wrote::NotFound) => "NOT_FOUND",
        };
        self.answer(reply, put.noreply);
        Step::Done(put.bytes + 2)
    }

    pub(super) fn delete<E: Engine>(&mut self, env: &Env<E>, key: &[u8], noreply: bool, tally: &mut Tally) {
        match remove(env, key) {
            Ok(found) => {
                tally.add(if found { Count::DeleteHits } else { Count::DeleteMisses }, 1);
                self.answer(if found { "DELETED" } else { "NOT_FOUND" }, noreply);
            }
            Err(error) => self.refused::<E>(&error, NO_ROOM, noreply, tally),
        }
    }

    pub(super) fn touch<E: Engine>(
        &mut self,
        env: &Env<E>,
        key: &[u8],
        exptime: i32,
        noreply: bool,
        tally: &mut Tally,
    ) {
        let expiry_ms = env.expiry_ms(exptime);
        let mut found = false;
        let done = env.engine.update(key, |seen, _| {
            found = seen.is_some();
            seen.map_or(Next::Keep, |seen| same(&seen, expiry_ms, seen.marks | Marks::FETCHED))
        });
        tally.add(Count::CmdTouch, 1);
        if let Err(error) = done {
            return self.refused::<E>(&error, NO_ROOM, noreply, tally);
        }
        tally.add(if found { Count::TouchHits } else { Count::TouchMisses }, 1);
        self.answer(if found { "TOUCHED" } else { "NOT_FOUND" }, noreply);
    }

    pub(super) fn arith<E: Engine>(
        &mut self,
        env: &Env<E>,
        key: &[u8],
        incr: bool,
        delta: u64,
        noreply: bool,
        tally: &mut Tally,
    ) {
        let mut summed = Summed::Missing;
        let done = env.engine.update(key, |seen, _| {
            let Some(seen) = seen else {
                summed = Summed::Missing;
                return Next::Keep;
            };
            summed = sum(&seen, incr, delta);
            let Summed::Number(number) = summed else { return Next::Keep };
            summed_next(&seen, number, seen.expiry_ms, Token::Fresh)
        });
        match (done, summed) {
            (Err(error), _) => self.refused::<E>(&error, NO_MEMORY, noreply, tally),
            (Ok(()), Summed::Missing) => {
                tally.add(if incr { Count::IncrMisses } else { Count::DecrMisses }, 1);
                self.answer("NOT_FOUND", noreply);
            }
            (Ok(()), Summed::NotANumber) => self.answer(NOT_A_NUMBER, noreply),
            (Ok(()), Summed::Number(number)) => {
                tally.add(if incr { Count::IncrHits } else { Count::DecrHits }, 1);
                if !noreply {
                    write::number(&mut self.out, number);
                    self.out.extend_from_slice(b"\r\n");
                }
            }
        }
    }
}

/// What arithmetic came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Summed {
    Missing,
    NotANumber,
    Number(u64),
}

pub(super) fn sum(seen: &Seen<'_>, incr: bool, delta: u64) -> Summed {
    match loose_u64(seen.value) {
        Some(old) if incr => Summed::Number(old.wrapping_add(delta)),
        Some(old) => Summed::Number(old.saturating_sub(delta)),
        None => Summed::NotANumber,
    }
}

/// The item with another number. memcached writes one that is not longer into the place of the old, spaces behind it, and keeps what the
/// item remembers; a longer one makes the item anew.
pub(super) fn summed_next<'n>(seen: &Seen<'_>, number: u64, expiry_ms: Option<u64>, token: Token) -> Next<'n> {
    let width = seen.value.len();
    let fits = (number.checked_ilog10().unwrap_or(0) as usize) < width;
    let marks = if fits { seen.marks } else { Marks::empty() };
    Next::Write { value: Value::Padded { number, width }, flags: seen.flags, expiry_ms, marks, token }
}

/// The item as it is, but for its life and marks.
pub(super) fn same<'n>(seen: &Seen<'_>, expiry_ms: Option<u64>, marks: Marks) -> Next<'n> {
    Next::Write { value: Value::Same, flags: seen.flags, expiry_ms, marks, token: Token::Same }
}

/// Removes an item: whether it was there.
pub(super) fn remove<E: Engine>(env: &Env<E>, key: &[u8]) -> Result<bool> {
    let mut found = false;
    env.engine.update(key, |seen, _| {
        found = seen.is_some();
        Next::Remove
    })?;
    Ok(found)
}

fn classic_next<'n, E: Engine>(
    env: &Env<E>,
    put: &Put<'_>,
    value: &'n [u8],
    expiry_ms: Option<u64>,
    seen: Option<Seen<'_>>,
) -> (Wrote, Next<'n>) {
    let write = |value, flags, expiry_ms| {
        (Wrote::Stored, Next::Write { value, flags, expiry_ms, marks: Marks::empty(), token: Token::Fresh })
    };
    match (put.verb, seen) {
        (PutVerb::Set, _) | (PutVerb::Add, None) | (PutVerb::Replace, Some(_)) => {
            write(Value::Whole(value), put.flags, expiry_ms)
        }
        (PutVerb::Append | PutVerb::Prepend, Some(seen)) => {
            if memcached_bytes(put.key, seen.flags, seen.value.len() + value.len()) > env.limits.item_bytes_max {
                return (Wrote::NotStored, Next::Keep);
            }
            let joined = if put.verb == PutVerb::Append { Value::Append(value) } else { Value::Prepend(value) };
            write(joined, seen.flags, seen.expiry_ms)
        }
        // An `add` that comes too late counts as a use.
        (PutVerb::Add, Some(seen)) => (Wrote::NotStored, Next::Used(seen.marks)),
        (PutVerb::Append | PutVerb::Prepend | PutVerb::Replace, None) => (Wrote::NotStored, Next::Keep),
        // A token of 0 is none, and matches nothing.
        (PutVerb::Cas(token), Some(seen)) if token == seen.cas && token != 0 => {
            write(Value::Whole(value), put.flags, expiry_ms)
        }
        (PutVerb::Cas(_), Some(_)) => (Wrote::Exists, Next::Keep),
        (PutVerb::Cas(_), None) => (Wrote::NotFound, Next::Keep),
    }
}
