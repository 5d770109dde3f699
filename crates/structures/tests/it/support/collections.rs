//! Hashes, sorted sets and bits in the process, as far as structures use them: what Redis has, without Redis.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;
use larder_core::native::{
    BitAct, BitField, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply, Score,
};
use larder_core::{Error, ErrorKind, Key, Profile, Reply, Result, StoreRef, Verb};

use crate::support::sieve::Sieve;

/// What a key holds: bits, or names and their values.
enum Held {
    Bits(Vec<u8>),
    Names(BTreeMap<Bytes, Bytes>),
}

type All = BTreeMap<Key, Held>;

/// The store, with native hashes, sorted sets and bits beside its items.
pub(crate) fn natives(inner: &StoreRef) -> StoreRef {
    let natives = Families::HASH | Families::SORTED | Families::BITS | Families::KEYS | Families::LOOK;
    let all: Mutex<All> = Mutex::default();
    Sieve::of(inner, Profile { natives, ..(*inner.profile()).clone() }, move |_, op| match &op.verb {
        Verb::Native(native) => Some(answer(&mut all.lock().unwrap(), &op.key, native)),
        _ => None,
    })
}

fn answer(all: &mut All, key: &Key, native: &Native) -> Result<Reply> {
    let names = |all: &All| match all.get(key) {
        Some(Held::Names(names)) => names.clone(),
        _ => BTreeMap::new(),
    };
    let bits = |all: &All| match all.get(key) {
        Some(Held::Bits(bits)) => bits.clone(),
        _ => Vec::new(),
    };
    Ok(match native {
        Native::HashGet { fields } => {
            NativeReply::Values(fields.iter().map(|field| names(all).get(field).cloned()).collect())
        }
        Native::HashAll => NativeReply::Pairs(names(all).into_iter().collect()),
        Native::HashLen => NativeReply::Count(names(all).len() as u64),
        Native::SortedScores { members } => {
            NativeReply::Scores(members.iter().map(|member| names(all).get(member).map(score)).collect())
        }
        Native::SortedAdd { entries, .. } => NativeReply::Count(raise(all, key, entries)),
        Native::BitsMake { value } => {
            let is_new = !all.contains_key(key);
            all.entry(key.clone()).or_insert(Held::Bits(value.to_vec()));
            NativeReply::Flag(is_new)
        }
        Native::BitsRead { offset_bytes, len_bytes } => {
            let rest = bits(all).into_iter().skip(*offset_bytes as usize);
            NativeReply::Bytes(rest.take(*len_bytes as usize).collect())
        }
        Native::Bits(fields) => NativeReply::Numbers(fields.iter().map(|field| Some(get(&bits(all), field))).collect()),
        Native::Guarded(guarded) => change(all, key, guarded),
        Native::GuardedBits(guarded) => change_bits(all, key, guarded),
        Native::Encoding => NativeReply::Text(all.get(key).map(|_| "listpack".to_owned())),
        Native::Remove => return Ok(if all.remove(key).is_some() { Reply::Deleted } else { Reply::Miss }),
        other => return Err(Error::new(ErrorKind::Unsupported, format!("no {}", other.name()))),
    }
    .into())
}

fn score(text: &Bytes) -> Score {
    Score::new(std::str::from_utf8(text).unwrap().parse().unwrap()).unwrap()
}

/// Members that are there, where the score grows: how many.
fn raise(all: &mut All, key: &Key, entries: &[(Bytes, Score)]) -> u64 {
    let Some(Held::Names(names)) = all.get_mut(key) else { return 0 };
    let mut count = 0;
    for (member, to) in entries {
        if let Some(now) = names.get_mut(member).filter(|now| score(now) < *to) {
            *now = to.get().to_string().into();
            count += 1;
        }
    }
    count
}

fn get(bits: &[u8], field: &BitField) -> u64 {
    assert_eq!(field.act, BitAct::Get);
    let bit = |at: u64| bits.get((at / 8) as usize).map_or(0, |byte| u64::from(byte >> (7 - at % 8) & 1));
    (field.offset..field.offset + u64::from(field.width)).fold(0, |number, at| number << 1 | bit(at))
}

fn change_bits(all: &mut All, key: &Key, guarded: &GuardedBits) -> NativeReply {
    let Some(held) = all.get_mut(key) else {
        let drops = matches!(guarded.act, GuardedBitsAct::Drop { .. });
        return if drops { NativeReply::Flag(false) } else { NativeReply::Unmarked };
    };
    let Held::Bits(bits) = held else { return NativeReply::Unmarked };
    if !bits.starts_with(&guarded.mark) {
        return NativeReply::Unmarked;
    }
    match &guarded.act {
        GuardedBitsAct::Put { numbers } => {
            for field in numbers {
                let BitAct::Set(value) = field.act else { panic!("{field:?}") };
                for bit in 0..u64::from(field.width) {
                    let (at, mask) = (field.offset + bit, value >> (u64::from(field.width) - 1 - bit) & 1);
                    let byte = &mut bits[(at / 8) as usize];
                    *byte = *byte & !(1 << (7 - at % 8)) | (mask as u8) << (7 - at % 8);
                }
            }
            NativeReply::Flag(true)
        }
        GuardedBitsAct::Drop { .. } => {
            all.remove(key);
            NativeReply::Flag(true)
        }
        other => panic!("{other:?}"),
    }
}

fn change(all: &mut All, key: &Key, Guarded { mark, act, .. }: &Guarded) -> NativeReply {
    if let (GuardedAct::Make { .. }, false) = (act, all.contains_key(key)) {
        all.insert(key.clone(), Held::Names(BTreeMap::from([(mark.clone(), "0".into())])));
        return NativeReply::Flags(vec![true]);
    }
    let Some(held) = all.get_mut(key) else {
        let drops = matches!(act, GuardedAct::Drop { .. });
        return if drops { NativeReply::Flags(vec![false]) } else { NativeReply::Unmarked };
    };
    let Held::Names(names) = held else { return NativeReply::Unmarked };
    let has = |mark: &Bytes| names.contains_key(mark);
    let or = if let GuardedAct::Drop { or } = act { &or[..] } else { &[] };
    if !has(mark) && !or.iter().any(has) {
        return NativeReply::Unmarked;
    }
    let mut put = |(name, value): &(Bytes, Bytes)| names.insert(name.clone(), value.clone()).is_none();
    NativeReply::Flags(match act {
        GuardedAct::Put { entries } => entries.iter().map(put).collect(),
        GuardedAct::Turn { to, entries } => {
            let flags = entries.iter().map(&mut put).collect();
            put(&(to.clone(), "0".into()));
            names.remove(mark);
            flags
        }
        GuardedAct::Remove { names: gone } => gone.iter().map(|name| names.remove(name).is_some()).collect(),
        GuardedAct::Make { .. } => vec![false],
        GuardedAct::Drop { .. } => {
            all.remove(key);
            vec![true]
        }
    })
}
