//! Whatever arrives, in whatever pieces.

use bytes::{Bytes, BytesMut};
use larder_core::{Arith, Cas, Item, Key, Op, PutMode, Reply, Ttl, Verb, Want};
use larder_proto::stats::Stats;
use larder_proto::{Abilities, Answer, Decoder, Dialect, Version};
use proptest::prelude::*;

const DECODER: Decoder = Decoder { session: 5, value_bytes_max: 1 << 20 };

fn key() -> impl Strategy<Value = Key> {
    // The classic dialect takes printable keys alone: among arbitrary bytes they are rare.
    let byte = prop_oneof![Just(0..=u8::MAX), Just(b'!'..=b'~')];
    byte.prop_flat_map(|range| prop::collection::vec(range, 1..=186)).prop_map(|bytes| Key::new(bytes).unwrap())
}

fn op() -> impl Strategy<Value = Op> {
    let cas = any::<u64>().prop_map(|token| Cas { token, session: 5 });
    let mode =
        prop_oneof![Just(PutMode::Set), Just(PutMode::Add), Just(PutMode::Append), cas.clone().prop_map(PutMode::Cas),];
    let value = prop::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
    let verb = prop_oneof![
        any::<u8>().prop_map(|bits| Verb::Get { want: Want::from_bits_truncate(bits) }),
        (mode, value, any::<u32>()).prop_map(|(mode, value, flags)| Verb::Put { mode, value, flags, ttl: Ttl::Never }),
        Just(Verb::Delete { cas: None }),
        cas.prop_map(|cas| Verb::Delete { cas: Some(cas) }),
        Just(Verb::Touch { ttl: Ttl::Never }),
        any::<u64>().prop_map(|delta| Verb::Arith { arith: Arith::Decr(delta), initial: None }),
    ];
    (key(), verb).prop_map(|(key, verb)| Op::new(key, verb))
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Classic), Just(Dialect::Meta13), Just(Dialect::Meta)]
}

/// Bytes that look like replies more often than random ones do.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(
            [
                &b"VA "[..],
                b"HD",
                b"EN",
                b"NS",
                b"NF",
                b"EX",
                b"VALUE ",
                b"END\r\n",
                b"\r\n",
                b" O3",
                b" O",
                b" c",
                b"STORED\r\n",
                b"SERVER_ERROR",
                b"CLIENT_ERROR ",
                b"ERROR\r\n",
                b"k",
                b" ",
                b"0",
                b"99999999999999999999",
                b"-1",
                b"\n",
                b"\r",
            ]
            .to_vec()
        )
        .prop_map(<[u8]>::to_vec),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn garbage_never_panics(op in op(), dialect in dialect(), bytes in garbage(), cut in any::<prop::sample::Index>()) {
        let mut out = Vec::new();
        if let Ok(expect) = Abilities::of(dialect).encode(&op, 3, 0, &mut out) {
            let mut received = BytesMut::from(&bytes[..cut.index(bytes.len() + 1)]);
            let first = DECODER.decode(&mut received, &expect);
            if let Ok(None) = first {
                received.extend_from_slice(&bytes[cut.index(bytes.len() + 1)..]);
                let _ = DECODER.decode(&mut received, &expect);
            }
        } else {
            prop_assert!(out.is_empty());
        }
        let _ = Stats::default().line(&bytes);
        let _ = Version::parse(&String::from_utf8_lossy(&bytes));
    }

    /// Several replies in a row, handed over in arbitrary pieces, come out as when handed over at once.
    #[test]
    fn any_split_gives_the_same_replies(
        values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..9_000)), 1..6),
        cuts in prop::collection::vec(1usize..3_000, 1..40),
        meta in any::<bool>(),
    ) {
        let key = Key::new("k").unwrap();
        let abilities = Abilities::of(if meta { Dialect::Meta } else { Dialect::Classic });
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        let mut expects = Vec::new();
        for (value, opaque) in values.iter().zip(0..) {
            let get = Op::get(key.clone(), Want::VALUE);
            expects.push(abilities.encode(&get, opaque, 0, &mut Vec::new()).unwrap());
            let text = match (value, meta) {
                (Some(value), true) => [format!("VA {} O{opaque}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
                (Some(value), false) => [format!("VALUE k 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat(),
                (None, true) => format!("EN O{opaque}\r\n").into_bytes(),
                (None, false) => b"END\r\n".to_vec(),
            };
            stream.extend_from_slice(&text);
            expected.push(match value {
                Some(value) => Reply::Item(Item { value: value.clone().into(), ..Item::default() }),
                None => Reply::Miss,
            });
        }
        let mut received = BytesMut::new();
        let mut replies = Vec::new();
        let mut rest = &stream[..];
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = later;
            received.extend_from_slice(piece);
            while replies.len() < expects.len() {
                match DECODER.decode(&mut received, &expects[replies.len()]).unwrap() {
                    Some(Answer::Reply(reply)) => replies.push(reply),
                    Some(other) => prop_assert!(false, "{other:?}"),
                    None => break,
                }
            }
        }
        prop_assert_eq!(replies, expected);
        prop_assert!(received.is_empty());
    }

    /// A command is one line under the server's limit, and a body that is announced right.
    #[test]
    fn a_command_is_one_short_line_and_its_body(op in op(), dialect in dialect()) {
        let mut out = Vec::new();
        if Abilities::of(dialect).encode(&op, u32::MAX, 0, &mut out).is_ok() {
            let line = out.windows(2).position(|pair| pair == b"\r\n").unwrap();
            prop_assert!(line < 512);
            prop_assert!(!out[..line].iter().any(|byte| *byte < b' ' || *byte > b'~'));
            match &op.verb {
                Verb::Put { value, .. } => prop_assert_eq!(&out[line + 2..], &[value, &b"\r\n"[..]].concat()[..]),
                // Where the dialect has no conditional delete, it is a conditional put of nothing that is expired.
                Verb::Delete { cas: Some(_) } if dialect == Dialect::Classic => prop_assert_eq!(&out[line + 2..], b"\r\n"),
                _ => prop_assert_eq!(out.len(), line + 2),
            }
        }
    }
}
