//! Keys of a structure, and what tells them from what another program keeps under the same name.
//!
//! An item has a header, which the store looks for. Native data have none: a structure makes them with a mark of its own, and changes and removes them on
//! condition that they carry it.

use bytes::Bytes;
use larder_core::native::{
    Collection, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply,
};
use larder_core::{Effect, Error, ErrorKind, Key, Op, Profile, Reply, Result, Verb};

use crate::manifest;

/// Why data are not there that were, and what to do.
pub(crate) const GONE: &str = "evicted, or lost in a restart, or another program's value stands under its key, which is left as it is; \
                               make it anew, in that case under another name or namespace";

/// Of the error of an op that counts in an item: what is to be added was a number, so where that is told to be none, what stands there is none.
pub(crate) fn counting(error: Error, key: &Key) -> Error {
    if error.kind() != ErrorKind::BadInput {
        return error;
    }
    let detail = format!("{}; another program wrote it", error.detail());
    Error::new(ErrorKind::LayoutMismatch, detail).key(key).effect(Effect::NotApplied).source(error)
}

/// A key of a structure.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) key: Key,
    holds: Holds,
}

/// What a key holds, and the marks one of which it carries.
#[derive(Clone, Debug)]
enum Holds {
    Item,
    Collection(Collection, Vec<Bytes>),
    Bits(Vec<Bytes>),
}

impl Owned {
    pub(crate) fn item(key: Key) -> Owned {
        Owned { key, holds: Holds::Item }
    }

    pub(crate) fn is_item(&self) -> bool {
        matches!(self.holds, Holds::Item)
    }

    pub(crate) fn items(keys: Vec<Key>) -> Vec<Owned> {
        keys.into_iter().map(Owned::item).collect()
    }

    pub(crate) fn collection(key: Key, of: Collection, marks: &[&'static [u8]]) -> Owned {
        Owned::marked(key, of, marks.iter().map(|mark| Bytes::from_static(mark)).collect())
    }

    pub(crate) fn marked(key: Key, of: Collection, marks: Vec<Bytes>) -> Owned {
        Owned { key, holds: Holds::Collection(of, marks) }
    }

    pub(crate) fn bits(key: Key, marks: Vec<Bytes>) -> Owned {
        Owned { key, holds: Holds::Bits(marks) }
    }

    /// The op that removes it, and leaves what is another program's. A store without native data has none of its own.
    pub(crate) fn remove_op(&self, profile: &Profile) -> Op {
        let key = self.key.clone();
        let first = |marks: &[Bytes]| (marks.first().cloned(), marks.iter().skip(1).cloned().collect());
        let native = match &self.holds {
            Holds::Collection(of, marks) if profile.natives.contains(of.family()) => {
                let (mark, or) = first(marks);
                mark.map(|mark| Native::Guarded(Guarded { of: *of, mark, act: GuardedAct::Drop { or } }))
            }
            Holds::Bits(marks) if profile.natives.contains(Families::BITS) => {
                let (mark, or) = first(marks);
                mark.map(|mark| Native::GuardedBits(GuardedBits { mark, act: GuardedBitsAct::Drop { or } }))
            }
            _ => None,
        };
        native.map_or_else(|| Op::delete(key.clone()), |native| Op::native(key.clone(), native))
    }
}

/// The op that makes a collection with its mark alone.
pub(crate) fn make_op(key: Key, of: Collection, mark: Bytes, ttl_ms: Option<u64>) -> Op {
    Op::native(key, Native::Guarded(Guarded { of, mark, act: GuardedAct::Make { ttl_ms } }))
}

/// The op that removes what another one made.
pub(crate) fn undo_op(op: &Op) -> Op {
    let undo = match &op.verb {
        Verb::Native(native) => match &**native {
            Native::Guarded(Guarded { of, mark, .. }) => {
                let act = GuardedAct::Drop { or: Vec::new() };
                Native::Guarded(Guarded { of: *of, mark: mark.clone(), act })
            }
            Native::BitsMake { value } => {
                let act = GuardedBitsAct::Drop { or: Vec::new() };
                Native::GuardedBits(GuardedBits { mark: value.clone(), act })
            }
            _ => Native::Remove,
        },
        _ => return Op::delete(op.key.clone()).routed(op.route.clone()),
    };
    Op::native(op.key.clone(), undo).routed(op.route.clone())
}

/// Whether an op that makes a key made it, or it was there, the structure's own.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for what is another program's.
pub(crate) fn is_made(op: &Op, reply: &Reply) -> Result<bool> {
    match reply {
        Reply::Stored => Ok(true),
        Reply::NotStored => Ok(false),
        Reply::Native(native) => match &**native {
            NativeReply::Flag(made) => Ok(*made),
            NativeReply::Flags(flags) if flags.len() == 1 => Ok(flags[0]),
            NativeReply::Unmarked => Err(foreign(op)),
            _ => Err(manifest::unexpected(op, reply)),
        },
        _ => Err(manifest::unexpected(op, reply)),
    }
}

/// Whether an op that removes a key found it.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for what is another program's, which is left as it is.
pub(crate) fn is_removed(op: &Op, reply: &Reply) -> Result<bool> {
    match reply {
        Reply::Deleted => Ok(true),
        Reply::Miss => Ok(false),
        reply => is_made(op, reply),
    }
}

/// The error for a key that holds what another program wrote.
pub(crate) fn foreign(op: &Op) -> Error {
    let detail = "the key holds a value that another program wrote: it has no mark of Larder's; nothing was changed. \
                  Use another key or namespace, or delete it with that program";
    Error::new(ErrorKind::LayoutMismatch, detail).op(op).effect(Effect::NotApplied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new("L.n.d.0123456789abcdef.0").unwrap()
    }

    fn profile(natives: Families) -> Profile {
        Profile { natives, ..Profile::unlimited("test") }
    }

    #[test]
    fn what_a_store_says_of_a_making_is_taken_as_it_is() {
        let op = make_op(key(), Collection::Set, Bytes::from_static(b"mark"), None);
        let native = [
            (NativeReply::Flag(true), true),
            (NativeReply::Flag(false), false),
            (NativeReply::Flags(vec![true]), true),
            (NativeReply::Flags(vec![false]), false),
        ];
        let native = native.map(|(reply, is_new)| (Reply::from(reply), is_new));
        for (reply, is_new) in [(Reply::Stored, true), (Reply::NotStored, false)].into_iter().chain(native) {
            assert_eq!(is_made(&op, &reply).unwrap(), is_new, "{reply:?}");
        }
        let another = is_made(&op, &NativeReply::Unmarked.into()).unwrap_err();
        assert_eq!((another.kind(), another.known_effect()), (ErrorKind::LayoutMismatch, Effect::NotApplied));
        let more_than_was_asked = Reply::from(NativeReply::Flags(vec![true, false]));
        for strange in [more_than_was_asked, NativeReply::Count(1).into(), Reply::Miss] {
            assert_eq!(is_made(&op, &strange).unwrap_err().kind(), ErrorKind::Protocol, "{strange:?}");
        }
    }

    /// Another program's set under the same key must stay: so the store looks for the mark before it removes one.
    #[test]
    fn a_collection_is_removed_by_its_mark_where_there_are_any() {
        let set = Owned::collection(key(), Collection::Set, &[b"live", b"moving"]);
        let Verb::Native(native) = set.remove_op(&profile(Families::SET)).verb else { panic!("it asks for no mark") };
        let act = GuardedAct::Drop { or: vec![Bytes::from_static(b"moving")] };
        assert_eq!(*native, Native::Guarded(Guarded { of: Collection::Set, mark: Bytes::from_static(b"live"), act }));
        // Where a store has none, what is there can only be an item.
        for has in [Families::empty(), Families::HASH] {
            assert!(matches!(set.remove_op(&profile(has)).verb, Verb::Delete { .. }), "{has:?}");
        }
    }

    /// Bits, too, are another program's where they do not begin with a mark.
    #[test]
    fn bits_are_removed_by_their_mark_where_there_are_any() {
        let bits = Owned::bits(key(), vec![Bytes::from_static(b"mark"), Bytes::from_static(b"former")]);
        let Verb::Native(native) = bits.remove_op(&profile(Families::BITS)).verb else { panic!("it asks for no mark") };
        let act = GuardedBitsAct::Drop { or: vec![Bytes::from_static(b"former")] };
        assert_eq!(*native, Native::GuardedBits(GuardedBits { mark: Bytes::from_static(b"mark"), act }));
        for has in [Families::empty(), Families::SET] {
            assert!(matches!(bits.remove_op(&profile(has)).verb, Verb::Delete { .. }), "{has:?}");
        }
    }

    #[test]
    fn what_was_made_is_removed_again_by_its_mark_and_where_it_was_made() {
        let route = larder_core::Route { with: None, rank: 1 };
        let undone = |native: Native| {
            let undo = undo_op(&Op::native(key(), native).routed(route.clone()));
            assert_eq!((&undo.key, &undo.route), (&key(), &route));
            undo.verb
        };
        let mark = Bytes::from_static(b"mark");
        let Verb::Native(make) = make_op(key(), Collection::Hash, mark.clone(), None).verb else {
            panic!("no native op")
        };
        let act = GuardedAct::Drop { or: Vec::new() };
        let drops = Native::Guarded(Guarded { of: Collection::Hash, mark: mark.clone(), act });
        assert_eq!(undone(*make), Op::native(key(), drops).verb);
        let drops =
            Native::GuardedBits(GuardedBits { mark: mark.clone(), act: GuardedBitsAct::Drop { or: Vec::new() } });
        assert_eq!(undone(Native::BitsMake { value: mark }), Op::native(key(), drops).verb);
        let unmarked = Native::SortedAdd { entries: Vec::new(), only: larder_core::native::Only::empty() };
        assert_eq!(undone(unmarked), Op::native(key(), Native::Remove).verb);
        let put = Op::put(key(), larder_core::PutMode::Add, "v", larder_core::Ttl::Never).routed(route.clone());
        let undo = undo_op(&put);
        assert!(matches!(undo.verb, Verb::Delete { cas: None }), "{undo:?}");
        assert_eq!(undo.route, route);
    }
}
