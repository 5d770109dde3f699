//! A store with bits, hashes, sets and sorted sets beside its items, as servers have them: as much of their ops as these tests use.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_core::native::{
    BitAct, BitField, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply, Only, Score,
};
use larder_core::profile::Encodings;
use larder_core::{
    Batch, Ctx, Error, ErrorKind, Item, Key, Op, Profile, Replies, Reply, Result, Run, Store, StoreExt, StoreRef, Verb,
};

/// What a native key holds: bits, or names with what each stands for, which of a set is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Bits(Vec<u8>),
    Names(BTreeMap<Bytes, Bytes>),
}

impl Held {
    pub(crate) fn set(members: impl IntoIterator<Item = &'static str>) -> Held {
        Held::Names(members.into_iter().map(|member| (member.into(), Bytes::new())).collect())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        matches!(self, Held::Names(names) if names.contains_key(name.as_bytes()))
    }
}

type All = BTreeMap<Key, Held>;

/// What a native key takes, whatever it holds.
pub(crate) const NATIVE_BYTES: u64 = 1_000;

#[derive(Debug)]
pub(crate) struct Natives {
    items: StoreRef,
    /// How many names are packed; where it does not tell, any number.
    packed_max: Option<u64>,
    held: Mutex<All>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl Natives {
    pub(crate) fn over(items: &StoreRef) -> Arc<Natives> {
        Natives::packing(items, None)
    }

    /// One that packs so many integers of a set, and tells so.
    pub(crate) fn packing(items: &StoreRef, packed_max: Option<u64>) -> Arc<Natives> {
        Arc::new(Natives {
            items: items.clone(),
            packed_max,
            held: Mutex::default(),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// Puts something under a key, as another program may.
    pub(crate) fn hold(&self, key: &Key, held: Held) {
        self.held.lock().unwrap().insert(key.clone(), held);
    }

    pub(crate) fn held(&self, key: &Key) -> Option<Held> {
        self.held.lock().unwrap().get(key).cloned()
    }

    /// All that native keys hold.
    pub(crate) fn all(&self) -> All {
        self.held.lock().unwrap().clone()
    }

    /// Loses what a key holds.
    pub(crate) fn lose(&self, key: &Key) {
        self.held.lock().unwrap().remove(key).expect("it is there");
    }

    /// How many batches were under way at once, at the most since this was asked before.
    pub(crate) fn most_under_way(&self) -> usize {
        self.most_under_way.swap(0, Ordering::SeqCst)
    }

    /// `None` for what is an item's.
    fn answer(&self, op: &Op) -> Option<Result<Reply>> {
        let mut held = self.held.lock().unwrap();
        match &op.verb {
            Verb::Native(native) => Some(Ok(self.native_reply(&mut held, &op.key, native))),
            _ => held.get(&op.key).map(read_as_item),
        }
    }

    /// Items are keys like others to a server.
    async fn weighed(&self, key: Key) -> Result<Reply> {
        let item = self.items.get(key).await?;
        Ok(NativeReply::Size(item.map(|item| item.value.len() as u64)).into())
    }

    fn native_reply(&self, all: &mut All, key: &Key, native: &Native) -> Reply {
        let (no_names, no_bits) = (BTreeMap::new(), Vec::new());
        let (names, bits) = match all.get(key) {
            Some(Held::Names(names)) => (names, &no_bits),
            Some(Held::Bits(bits)) => (&no_names, bits),
            None => (&no_names, &no_bits),
        };
        match native {
            Native::HashGet { fields } => {
                NativeReply::Values(fields.iter().map(|field| names.get(field).cloned()).collect())
            }
            Native::HashAll => NativeReply::Pairs(names.clone().into_iter().collect()),
            Native::HashLen | Native::SetLen => NativeReply::Count(names.len() as u64),
            Native::SetHas { members } => {
                NativeReply::Flags(members.iter().map(|member| names.contains_key(member)).collect())
            }
            Native::SetAll => NativeReply::Members(names.keys().cloned().collect()),
            Native::SortedScores { members } => {
                NativeReply::Scores(members.iter().map(|member| names.get(member).map(score)).collect())
            }
            Native::SortedAdd { entries, only } => NativeReply::Count(put_scores(all, key, entries, *only)),
            Native::BitsMake { value } => {
                let is_new = !all.contains_key(key);
                all.entry(key.clone()).or_insert(Held::Bits(value.to_vec()));
                NativeReply::Flag(is_new)
            }
            Native::BitsRead { offset_bytes, len_bytes } => {
                let rest = bits.iter().skip(*offset_bytes as usize);
                NativeReply::Bytes(rest.take(*len_bytes as usize).copied().collect())
            }
            Native::Bits(fields) => NativeReply::Numbers(fields.iter().map(|field| Some(get(bits, field))).collect()),
            Native::Guarded(guarded) => change(all, key, guarded),
            Native::GuardedBits(guarded) => change_bits(all, key, guarded),
            Native::Encoding => {
                let is_packed = self.packed_max.is_none_or(|most| names.len() as u64 <= most);
                let encoding = if is_packed { "listpack" } else { "hashtable" };
                NativeReply::Text(all.get(key).map(|_| encoding.to_owned()))
            }
            Native::MemoryBytes => NativeReply::Size(all.get(key).map(|_| NATIVE_BYTES)),
            Native::Remove => return if all.remove(key).is_some() { Reply::Deleted } else { Reply::Miss },
            other => panic!("{other:?}"),
        }
        .into()
    }
}

fn is_weighing(op: &Op) -> bool {
    matches!(&op.verb, Verb::Native(native) if matches!(&**native, Native::MemoryBytes))
}

/// An item begins with C1 where there are native keys: of other values that may be so by chance.
fn read_as_item(held: &Held) -> Result<Reply> {
    match held {
        Held::Bits(bits) if bits.first() == Some(&0xc1) => {
            Ok(Reply::Item(Item { value: Bytes::copy_from_slice(&bits[1..]), ..Item::default() }))
        }
        _ => Err(Error::new(ErrorKind::LayoutMismatch, "the key is of another type")),
    }
}

fn score(text: &Bytes) -> Score {
    Score::new(std::str::from_utf8(text).unwrap().parse().unwrap()).unwrap()
}

/// Of those that may be put: how many are new, or have another score.
fn put_scores(all: &mut All, key: &Key, entries: &[(Bytes, Score)], only: Only) -> u64 {
    if !only.contains(Only::KNOWN) {
        all.entry(key.clone()).or_insert(Held::Names(BTreeMap::new()));
    }
    let Some(Held::Names(names)) = all.get_mut(key) else { return 0 };
    let mut count = 0;
    for (member, to) in entries {
        let may = match names.get(member).map(score) {
            None => !only.contains(Only::KNOWN),
            Some(now) => now < *to || (now > *to && !only.contains(Only::GREATER)),
        };
        if may {
            names.insert(member.clone(), to.get().to_string().into());
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
        GuardedBitsAct::Incr { number } => {
            let BitAct::Incr(by) = number.act else { panic!("{number:?}") };
            assert_eq!((number.width, number.offset), (63, 65), "the number of a counter, and no other");
            let before = u64::from_be_bytes(*bits[8..].first_chunk().unwrap());
            let after = before.checked_add_signed(by).filter(|after| after >> 63 == 0);
            if let Some(after) = after {
                bits[8..].copy_from_slice(&after.to_be_bytes());
            }
            NativeReply::Numbers(vec![after])
        }
        GuardedBitsAct::Drop { .. } => {
            all.remove(key);
            NativeReply::Flag(true)
        }
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

impl Store for Natives {
    fn profile(&self) -> Arc<Profile> {
        let profile = self.items.profile();
        let told = |set_integers_max| Encodings { set_integers_max, ..Encodings::default() };
        let encodings = self.packed_max.map(told).or(profile.encodings);
        Arc::new(Profile { natives: Families::all(), encodings, ..(*profile).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let under_way = 1 + self.under_way.fetch_add(1, Ordering::SeqCst);
            self.most_under_way.fetch_max(under_way, Ordering::SeqCst);
            // Others may send theirs meanwhile, as on any server.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            let mut replies = Replies::new();
            for op in batch {
                let is_item = self.held(&op.key).is_none();
                replies.push(match self.answer(&op) {
                    Some(Ok(_)) if is_item && is_weighing(&op) => self.weighed(op.key).await,
                    Some(reply) => reply,
                    None => self.items.run_one(ctx, op).await,
                });
            }
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            replies
        })
    }
}
