//! A memory store with bit fields and sets beside its items, as servers have them: as much of their ops as these tests use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_core::native::{BitAct, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply};
use larder_core::{
    Batch, Ctx, Error, ErrorKind, Item, Key, Op, Profile, Replies, Reply, Result, Run, Store, StoreRef, Verb,
};

/// What a native key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Bits(Vec<u8>),
    Set(Vec<Bytes>),
}

#[derive(Debug)]
pub(crate) struct Natives {
    items: StoreRef,
    held: Mutex<HashMap<Key, Held>>,
}

impl Natives {
    pub(crate) fn over(items: &StoreRef) -> Arc<Natives> {
        Arc::new(Natives { items: items.clone(), held: Mutex::default() })
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

    /// `None` for what is an item's.
    fn answer(&self, op: &Op) -> Option<Result<Reply>> {
        let mut held = self.held.lock().unwrap();
        match &op.verb {
            Verb::Native(native) => Some(Ok(native_reply(&mut held, &op.key, native).into())),
            _ => held.get(&op.key).map(read_as_item),
        }
    }
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

fn native_reply(held: &mut HashMap<Key, Held>, key: &Key, native: &Native) -> NativeReply {
    match (native, held.get_mut(key)) {
        (Native::BitsMake { value }, None) => {
            held.insert(key.clone(), Held::Bits(value.to_vec()));
            NativeReply::Flag(true)
        }
        (Native::BitsMake { .. }, Some(_)) => NativeReply::Flag(false),
        (Native::BitsRead { .. }, Some(Held::Bits(bits))) => NativeReply::Bytes(Bytes::copy_from_slice(bits)),
        (Native::BitsRead { .. }, _) => NativeReply::Bytes(Bytes::new()),
        (Native::SetAll, Some(Held::Set(members))) => NativeReply::Members(members.clone()),
        (Native::SetAll, _) => NativeReply::Members(Vec::new()),
        (Native::GuardedBits(GuardedBits { act: GuardedBitsAct::Drop { .. }, .. }), None)
        | (Native::Guarded(Guarded { act: GuardedAct::Drop { .. }, .. }), None) => NativeReply::Flag(false),
        (Native::GuardedBits(GuardedBits { mark, act }), Some(Held::Bits(bits))) if bits.starts_with(mark) => match act
        {
            GuardedBitsAct::Drop { .. } => {
                held.remove(key);
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
            other => panic!("{other:?}"),
        },
        (Native::Guarded(Guarded { mark, act: GuardedAct::Drop { or }, .. }), Some(Held::Set(members)))
            if members.iter().any(|member| member == mark || or.contains(member)) =>
        {
            held.remove(key);
            NativeReply::Flag(true)
        }
        (Native::GuardedBits(_) | Native::Guarded(_), _) => NativeReply::Unmarked,
        (other, _) => panic!("{other:?}"),
    }
}

impl Store for Natives {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { natives: Families::all(), ..(*self.items.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let mut replies = Replies::new();
            for op in batch {
                match self.answer(&op) {
                    Some(reply) => replies.push(reply),
                    None => replies.extend(self.items.run(ctx, Batch::from_iter([op])).await),
                }
            }
            replies
        })
    }
}
