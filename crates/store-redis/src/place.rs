//! Where an item lives: the key that Redis sees.
//!
//! A cluster hashes what stands between the first `{` and the first `}` behind it, if that is not empty, else the whole key. So keys that
//! belong together are written `{with}key`, on a single node too: data move between one node and a cluster unchanged. A key that
//! holds braces itself would be hashed by a part of it, or be taken for another key's: they are escaped, so that the only braces that Redis sees
//! are ours. For a key without `{`, `}` and the escape byte, which is nearly every key, what Redis sees is the key itself.
//!
//! | in the key | written |
//! |---|---|
//! | `{` | `0x1A` `(` |
//! | `}` | `0x1A` `)` |
//! | `0x1A` | `0x1A` `0x1A` |

use std::borrow::Cow;

use larder_core::{Key, Op};

const ESCAPE: u8 = 0x1A;

/// What is one key on the server: of an op, and what it is routed with. To be routed with its own key is to be routed with none.
pub(crate) fn one_key(op: &Op) -> (&Key, &Key) {
    (&op.key, op.route.with.as_ref().unwrap_or(&op.key))
}

/// The key of an op's item, as Redis sees it. The same for the same key and route, another for any other.
pub(crate) fn physical(op: &Op) -> Cow<'_, [u8]> {
    let key = op.key.as_bytes();
    match &op.route.with {
        Some(with) if with != &op.key => {
            let mut whole = Vec::with_capacity(with.as_bytes().len() + key.len() + 2);
            whole.push(b'{');
            whole.extend_from_slice(&escaped(with.as_bytes()));
            whole.push(b'}');
            whole.extend_from_slice(&escaped(key));
            Cow::Owned(whole)
        }
        _ => escaped(key),
    }
}

/// The key that an op without a route names, from the one that Redis sees; `None` where there is none: no op can have it, or one that is routed with another key has it.
pub(crate) fn logical(key: &[u8]) -> Option<Cow<'_, [u8]>> {
    if key.is_empty() || key.iter().any(|byte| matches!(byte, b'{' | b'}')) {
        return None;
    }
    if !key.contains(&ESCAPE) {
        return (key.len() <= Key::BYTES_MAX).then_some(Cow::Borrowed(key));
    }
    let mut plain = Vec::with_capacity(key.len());
    let mut bytes = key.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match byte {
            ESCAPE => match bytes.next()? {
                b'(' => b'{',
                b')' => b'}',
                &ESCAPE => ESCAPE,
                _ => return None,
            },
            byte => byte,
        });
    }
    (plain.len() <= Key::BYTES_MAX).then_some(Cow::Owned(plain))
}

/// A key, or the beginning of one, without braces.
pub(crate) fn escaped(key: &[u8]) -> Cow<'_, [u8]> {
    let is_special = |byte: &u8| matches!(*byte, b'{' | b'}' | ESCAPE);
    if !key.iter().any(is_special) {
        return Cow::Borrowed(key);
    }
    let mut escaped = Vec::with_capacity(key.len() + 8);
    for &byte in key {
        match byte {
            b'{' => escaped.extend_from_slice(&[ESCAPE, b'(']),
            b'}' => escaped.extend_from_slice(&[ESCAPE, b')']),
            ESCAPE => escaped.extend_from_slice(&[ESCAPE, ESCAPE]),
            byte => escaped.push(byte),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use larder_core::{Route, Want};
    use proptest::prelude::*;

    use super::*;

    fn get(key: &[u8], with: Option<&[u8]>) -> Op {
        let key_of = |bytes: &[u8]| Key::new(bytes.to_vec()).unwrap();
        Op::get(key_of(key), Want::VALUE).routed(Route { with: with.map(key_of), rank: 0 })
    }

    /// What a cluster hashes, by its specification.
    fn hashed(physical: &[u8]) -> &[u8] {
        let Some(from) = physical.iter().position(|&byte| byte == b'{') else { return physical };
        let rest = &physical[from + 1..];
        match rest.iter().position(|&byte| byte == b'}') {
            Some(0) | None => physical,
            Some(to) => &rest[..to],
        }
    }

    #[test]
    fn golden_keys() {
        for (key, with, physical_key) in [
            (&b"L.hits.m"[..], None, &b"L.hits.m"[..]),
            (b"L.q.c1", Some(&b"L.q.0"[..]), b"{L.q.0}L.q.c1"),
            (b"same", Some(b"same"), b"same"),
            (b"a{b}c\x1a", None, b"a\x1a(b\x1a)c\x1a\x1a"),
            (b"}", Some(b"{}"), b"{\x1a(\x1a)}\x1a)"),
        ] {
            assert_eq!(physical(&get(key, with)).as_ref(), physical_key);
            // One that is routed with another key has no name without.
            let named = with.is_none_or(|with| with == key).then_some(key);
            assert_eq!(logical(physical_key).as_deref(), named);
        }
        for strange in [&b""[..], b"{", b"{a}", b"{a}b", b"a}b", b"a{b", b"\x1a", b"\x1ax"] {
            assert_eq!(logical(strange), None, "{strange:?}");
        }
    }

    fn some_key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(b'{'), Just(b'}'), Just(ESCAPE), any::<u8>()], 1..20)
    }

    proptest! {
        #[test]
        fn keys_of_one_route_share_what_is_hashed(one in some_key(), other in some_key(), with in some_key()) {
            let (one, other) = (get(&one, Some(&with)), get(&other, Some(&with)));
            let of = |op: &Op| hashed(&physical(op)).to_vec();
            prop_assert_eq!(of(&one), of(&other));
            prop_assert_eq!(of(&one), of(&get(&with, None)));
        }

        #[test]
        fn who_keeps_the_order_knows_what_is_one_key(one in some_key(), other in some_key(), with in some_key()) {
            let ops = [&one, &other].map(|key| [None, Some(&one), Some(&with)].map(|with| get(key, with.map(|with| &with[..]))));
            for (a, b) in ops.as_flattened().iter().flat_map(|a| ops.as_flattened().iter().map(move |b| (a, b))) {
                prop_assert_eq!(one_key(a) == one_key(b), physical(a) == physical(b));
            }
        }

        #[test]
        fn no_two_keys_meet(one in some_key(), other in some_key(), with in prop::option::of(some_key())) {
            let (first, second) = (get(&one, with.as_deref()), get(&other, with.as_deref()));
            prop_assert_eq!(physical(&first) == physical(&second), one == other);
            let is_routed = with.is_some_and(|with| with != one);
            prop_assert_eq!(logical(&physical(&first)).map(Cow::into_owned), (!is_routed).then_some(one));
        }

        #[test]
        fn any_bytes_of_a_server_can_be_looked_at(bytes: Vec<u8>) {
            let _ = logical(&bytes);
        }
    }
}
