//! What each op does to an item: memcached's semantics, without engine, clock or waiting.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_core::range;
use larder_core::{
    Arith, Cas, Error, ErrorKind, Initial, Item, Key, Op, PutMode, Remaining, Reply, Result, Ttl, Verb, Want,
};

use crate::end::End;
use crate::layout::Record;

/// The longest life: 100 years of 365 days.
pub(crate) const TTL_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What an op is judged by, apart from the item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The store's time, since the Unix epoch.
    pub(crate) now: Duration,
    /// The session of this store's cas tokens.
    pub(crate) session: u64,
    /// The largest key and value together.
    pub(crate) item_bytes_max: usize,
    /// The token of the item that the op makes, if it makes one.
    pub(crate) cas: u64,
}

/// What becomes of the item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It stays as it is.
    Keep,
    /// It is this from now on.
    Put(Record),
    /// It is gone.
    Remove,
}

/// True if the op's outcome depends on the item that is there.
pub(crate) fn depends(verb: &Verb) -> bool {
    !matches!(verb, Verb::Put { mode: PutMode::Set, .. })
}

/// Runs an op on the item that lives under its key.
///
/// # Errors
/// `BadInput`; nothing changes then.
pub(crate) fn apply(op: &Op, item: Option<&Record>, rules: &Rules) -> Result<(Reply, Change)> {
    let done = match &op.verb {
        Verb::Get { want } => {
            Ok((item.map_or(Reply::Miss, |record| Reply::Item(read(record, *want, rules))), Change::Keep))
        }
        Verb::Put { mode, value, flags, ttl } => put(&op.key, (*mode, value, *flags, *ttl), item, rules),
        Verb::Delete { cas } => Ok(delete(*cas, item, rules)),
        Verb::Touch { ttl } => touch(*ttl, item, rules),
        Verb::GetRange { offset, len } => {
            let part = |record: &Record| Item { value: range::part(&record.value, *offset, *len), ..Item::default() };
            Ok((item.map_or(Reply::Miss, |record| Reply::Item(part(record))), Change::Keep))
        }
        Verb::PutRange { offset, value } => put_range(&op.key, *offset, value, item, rules),
        Verb::Watch { .. } | Verb::Native(_) => Err(op.lacking()),
        Verb::Arith { arith, initial } => self::arith(*arith, *initial, item, rules),
    };
    done.map_err(|error| error.op(op))
}

/// The parts of an item that are wanted.
pub(crate) fn read(record: &Record, want: Want, rules: &Rules) -> Item {
    let left = |expiry_ms: u64| Remaining::For(Duration::from_millis(expiry_ms).saturating_sub(rules.now));
    Item {
        value: if want.contains(Want::VALUE) { record.value.clone() } else { Bytes::new() },
        flags: if want.contains(Want::FLAGS) { record.flags } else { 0 },
        cas: want.contains(Want::CAS).then_some(Cas { token: record.cas, session: rules.session }),
        ttl: match record.end {
            _ if !want.contains(Want::TTL) => Remaining::Unknown,
            None => Remaining::Never,
            Some(end) => left(end.ms()),
        },
    }
}

/// Mode, value, flags and life.
type Put<'a> = (PutMode, &'a Bytes, u32, Ttl);

fn put(key: &Key, put: Put<'_>, item: Option<&Record>, rules: &Rules) -> Result<(Reply, Change)> {
    let (mode, value, flags, ttl) = put;
    let value_bytes_max = check_value(value, key.as_bytes().len(), rules.item_bytes_max)?;
    let end = match mode {
        PutMode::Append | PutMode::Prepend => None,
        _ => end(ttl, rules)?,
    };
    let refused = match (mode, item) {
        (PutMode::Cas(cas), _) if cas.session != rules.session => Some(Reply::Exists),
        (PutMode::Add, Some(_)) | (PutMode::Replace | PutMode::Append | PutMode::Prepend, None) => {
            Some(Reply::NotStored)
        }
        (PutMode::Cas(_), None) => Some(Reply::Miss),
        (PutMode::Cas(cas), Some(item)) if cas.token != item.cas => Some(Reply::Exists),
        (PutMode::Append | PutMode::Prepend, Some(item)) if item.value.len() + value.len() > value_bytes_max => {
            Some(Reply::NotStored)
        }
        _ => None,
    };
    if let Some(reply) = refused {
        return Ok((reply, Change::Keep));
    }
    let record = match (mode, item) {
        (PutMode::Append, Some(item)) => Record { value: joined(&item.value, value), cas: rules.cas, ..item.clone() },
        (PutMode::Prepend, Some(item)) => Record { value: joined(value, &item.value), cas: rules.cas, ..item.clone() },
        _ => Record { flags, end, cas: rules.cas, value: value.clone(), ..Record::default() },
    };
    Ok((Reply::Stored, Change::Put(record)))
}

/// The largest value beside a key of `key_bytes`; an error if the value is larger.
pub(crate) fn check_value(value: &[u8], key_bytes: usize, item_bytes_max: usize) -> Result<usize> {
    let value_bytes_max = item_bytes_max.saturating_sub(key_bytes);
    if value.len() > value_bytes_max {
        let detail = format!("a value has {} bytes; the limit beside this key is {value_bytes_max}", value.len());
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    Ok(value_bytes_max)
}

fn joined(first: &[u8], second: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(first.len() + second.len());
    out.extend_from_slice(first);
    out.extend_from_slice(second);
    out.freeze()
}

fn put_range(key: &Key, offset: u64, value: &Bytes, item: Option<&Record>, rules: &Rules) -> Result<(Reply, Change)> {
    let value_bytes_max = rules.item_bytes_max.saturating_sub(key.as_bytes().len());
    range::end(offset, value.len(), value_bytes_max)?;
    let Some(item) = item else { return Ok((Reply::Miss, Change::Keep)) };
    let value = range::spliced(&item.value, offset, value, value_bytes_max)?;
    Ok((Reply::Stored, Change::Put(Record { value, cas: rules.cas, ..item.clone() })))
}

fn delete(cas: Option<Cas>, item: Option<&Record>, rules: &Rules) -> (Reply, Change) {
    match (cas, item) {
        (Some(cas), _) if cas.session != rules.session => (Reply::Exists, Change::Keep),
        (_, None) => (Reply::Miss, Change::Keep),
        (Some(cas), Some(item)) if cas.token != item.cas => (Reply::Exists, Change::Keep),
        _ => (Reply::Deleted, Change::Remove),
    }
}

fn touch(ttl: Ttl, item: Option<&Record>, rules: &Rules) -> Result<(Reply, Change)> {
    let end = end(ttl, rules)?;
    Ok(match item {
        None => (Reply::Miss, Change::Keep),
        Some(item) => (Reply::Touched, Change::Put(Record { end, ..item.clone() })),
    })
}

fn arith(arith: Arith, initial: Option<Initial>, item: Option<&Record>, rules: &Rules) -> Result<(Reply, Change)> {
    let digits = |number: u64| Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes());
    let start = initial.map(|initial| Ok::<_, Error>((initial.value, end(initial.ttl, rules)?))).transpose()?;
    let Some(item) = item else {
        let Some((number, end)) = start else { return Ok((Reply::Miss, Change::Keep)) };
        let record = Record { end, cas: rules.cas, value: digits(number), ..Record::default() };
        return Ok((Reply::Number(number), Change::Put(record)));
    };
    let new = arith.of(&item.value)?;
    let record = Record { cas: rules.cas, value: digits(new), ..item.clone() };
    Ok((Reply::Number(new), Change::Put(record)))
}

/// When the life of an item ends that is stored now.
pub(crate) fn end(ttl: Ttl, rules: &Rules) -> Result<Option<End>> {
    let Some(ttl) = ttl.within(TTL_MAX)? else { return Ok(None) };
    // Rounded up: a life is never cut short.
    let ms = rules.now.saturating_add(ttl).as_nanos().div_ceil(1_000_000);
    let life_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    Ok(Some(End::of_life(u64::try_from(ms).unwrap_or(u64::MAX), life_ms)))
}
