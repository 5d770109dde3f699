//! The bytes of every command, and the reply to each that memcached sends.

use bytes::BytesMut;
use larder_core::{
    Arith, Cas, Effect, Error, ErrorKind, Initial, Item, Key, Op, PutMode, Remaining, Reply, Ttl, Verb, Want,
};
use larder_proto::{Abilities, Answer, Decoder, Dialect};
use std::time::Duration;

const SERVER_NOW_S: u64 = 1_700_000_000;
const TOKEN: Cas = Cas { token: 77, session: 5 };

fn key(text: &str) -> Key {
    Key::new(text.to_owned()).unwrap()
}

fn put(name: &str, mode: PutMode, value: &str, flags: u32, ttl_s: u64) -> Op {
    let ttl = if ttl_s == 0 { Ttl::Never } else { Ttl::After(Duration::from_secs(ttl_s)) };
    Op::new(key(name), Verb::Put { mode, value: value.to_owned().into(), flags, ttl })
}

fn arith(name: &str, arith: Arith, initial: Option<Initial>) -> Op {
    Op::new(key(name), Verb::Arith { arith, initial })
}

fn encoded(abilities: &Abilities, op: &Op) -> Result<String, Error> {
    let mut out = Vec::new();
    let encoded = abilities.encode(op, 9, SERVER_NOW_S, &mut out);
    assert!(encoded.is_ok() || out.is_empty(), "a refused op left bytes behind");
    encoded.map(|_| out.escape_ascii().to_string())
}

#[track_caller]
fn golden(op: &Op, meta: &str, classic: &str) {
    for (dialect, expected) in [(Dialect::Meta, meta), (Dialect::Meta13, meta), (Dialect::Classic, classic)] {
        assert_eq!(encoded(&Abilities::of(dialect), op).unwrap(), expected, "{dialect}");
    }
}

#[track_caller]
fn refusal(abilities: &Abilities, op: &Op, kind: ErrorKind) -> String {
    let error = encoded(abilities, op).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.known_effect(), Effect::NotApplied);
    error.to_string()
}

#[test]
fn reads_ask_for_the_wanted_parts_only() {
    golden(&Op::get(key("k"), Want::VALUE), r"mg k v O9\r\n", r"get k\r\n");
    golden(&Op::get(key("k"), Want::empty()), r"mg k O9\r\n", r"get k\r\n");
    golden(&Op::get(key("k"), Want::all()), r"mg k v c f t O9\r\n", r"gets k\r\n");
    golden(&Op::get(key("k"), Want::CAS), r"mg k c O9\r\n", r"gets k\r\n");
}

#[test]
fn only_a_plain_set_is_an_ms() {
    golden(&put("k", PutMode::Set, "ab", 0, 0), r"ms k 2 O9\r\nab\r\n", r"set k 0 0 2\r\nab\r\n");
    golden(&put("k", PutMode::Set, "", 7, 60), r"ms k 0 F7 T60 O9\r\n\r\n", r"set k 7 60 0\r\n\r\n");
    for (mode, name) in [
        (PutMode::Add, "add"),
        (PutMode::Replace, "replace"),
        (PutMode::Append, "append"),
        (PutMode::Prepend, "prepend"),
    ] {
        let bytes = format!(r"{name} k 7 60 2\r\nab\r\n");
        golden(&put("k", mode, "ab", 7, 60), &bytes, &bytes);
    }
    let bytes = r"cas k 7 60 2 77\r\nab\r\n";
    golden(&put("k", PutMode::Cas(TOKEN), "ab", 7, 60), bytes, bytes);
}

#[test]
fn binary_keys_take_ms_with_single_letter_modes() {
    let meta = Abilities::of(Dialect::Meta);
    let binary = |mode| encoded(&meta, &put("a b", mode, "xy", 0, 0)).unwrap();
    assert_eq!(binary(PutMode::Set), r"ms YSBi 2 b O9\r\nxy\r\n");
    assert_eq!(binary(PutMode::Add), r"ms YSBi 2 ME b O9\r\nxy\r\n");
    assert_eq!(binary(PutMode::Replace), r"ms YSBi 2 MR b O9\r\nxy\r\n");
    assert_eq!(binary(PutMode::Append), r"ms YSBi 2 MA b O9\r\nxy\r\n");
    assert_eq!(binary(PutMode::Prepend), r"ms YSBi 2 MP b O9\r\nxy\r\n");
    assert_eq!(binary(PutMode::Cas(TOKEN)), r"ms YSBi 2 C77 b O9\r\nxy\r\n");
    assert_eq!(encoded(&meta, &Op::get(key("\0"), Want::VALUE)).unwrap(), r"mg AA== v b O9\r\n");
    let text = refusal(&Abilities::of(Dialect::Classic), &Op::get(key("a b"), Want::VALUE), ErrorKind::BadInput);
    assert!(text.contains("\"a b\""), "{text}");
}

#[test]
fn a_binary_key_has_186_bytes_at_the_most() {
    let meta = Abilities::of(Dialect::Meta);
    let longest = encoded(&meta, &Op::get(key(&"\t".repeat(186)), Want::VALUE)).unwrap();
    assert_eq!(longest.split(' ').nth(1).unwrap().len(), 248);
    let text = refusal(&meta, &Op::get(key(&"\t".repeat(187)), Want::VALUE), ErrorKind::BadInput);
    assert!(text.contains("187 bytes") && text.contains("186"), "{text}");
    assert!(encoded(&meta, &Op::get(key(&"k".repeat(250)), Want::VALUE)).is_ok());
}

#[test]
fn delete_touch_and_arithmetic() {
    golden(&Op::delete(key("k")), r"md k O9\r\n", r"delete k\r\n");
    golden(&Op::touch(key("k"), Ttl::Never), r"mg k T0 O9\r\n", r"touch k 0\r\n");
    golden(&Op::touch(key("k"), Ttl::After(Duration::from_millis(1_500))), r"mg k T2 O9\r\n", r"touch k 2\r\n");
    golden(&arith("k", Arith::Incr(3), None), r"ma k MI D3 v O9\r\n", r"incr k 3\r\n");
    golden(
        &arith("k", Arith::Decr(u64::MAX), None),
        r"ma k MD D18446744073709551615 v O9\r\n",
        r"decr k 18446744073709551615\r\n",
    );
    let meta = Abilities::of(Dialect::Meta);
    assert_eq!(encoded(&meta, &Op::delete_if(key("k"), TOKEN)).unwrap(), r"md k C77 O9\r\n");
    let initial = Some(Initial { value: 5, ttl: Ttl::After(Duration::from_secs(60)) });
    assert_eq!(encoded(&meta, &arith("k", Arith::Incr(1), initial)).unwrap(), r"ma k N60 J5 MI D1 v O9\r\n");
    let classic = Abilities::of(Dialect::Classic);
    assert_eq!(encoded(&classic, &Op::delete_if(key("k"), TOKEN)).unwrap(), r"cas k 0 -1 0 77\r\n\r\n");
    refusal(&Abilities { ttl: false, ..classic }, &Op::delete_if(key("k"), TOKEN), ErrorKind::Unsupported);
    refusal(&classic, &arith("k", Arith::Incr(1), initial), ErrorKind::Unsupported);
    // Newer servers take it for a delete that is not to be answered.
    refusal(&classic, &Op::delete(key("noreply")), ErrorKind::BadInput);
}

#[test]
fn a_server_without_tokens_or_expiry_is_not_asked_for_them() {
    let bare = Abilities::bare();
    assert_eq!(encoded(&bare, &Op::get(key("k"), Want::all())).unwrap(), r"get k\r\n");
    assert_eq!(encoded(&bare, &put("k", PutMode::Add, "v", 0, 0)).unwrap(), r"add k 0 0 1\r\nv\r\n");
    refusal(&bare, &put("k", PutMode::Add, "v", 0, 9), ErrorKind::Unsupported);
    refusal(&bare, &put("k", PutMode::Cas(TOKEN), "v", 0, 0), ErrorKind::Unsupported);
    refusal(&bare, &Op::touch(key("k"), Ttl::Never), ErrorKind::Unsupported);
}

#[test]
fn long_lives_are_absolute_by_the_servers_clock() {
    let day = 24 * 60 * 60;
    let text = |ttl_s| encoded(&Abilities::of(Dialect::Meta), &put("k", PutMode::Set, "", 0, ttl_s));
    assert!(text(30 * day).unwrap().contains(&format!(" T{} ", 30 * day)));
    assert!(text(30 * day + 1).unwrap().contains(&format!(" T{} ", SERVER_NOW_S + 30 * day + 1)));
    assert!(text(3_650 * day).unwrap().contains(&format!(" T{} ", SERVER_NOW_S + 3_650 * day)));
    let last = (1 << 31) - 1 - SERVER_NOW_S;
    assert!(text(last).unwrap().contains(" T2147483647 "));
    let error = text(last + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains(&format!("the limit is {last} s")), "{error}");
    assert!(text(u64::MAX).is_err());
    let zero = Op::put(key("k"), PutMode::Set, "", Ttl::After(Duration::ZERO));
    assert_eq!(encoded(&Abilities::of(Dialect::Meta), &zero).unwrap_err().kind(), ErrorKind::BadInput);
}

#[test]
fn an_oversized_value_is_refused_before_a_byte_is_written() {
    let name = "k".repeat(20);
    for mode in [PutMode::Set, PutMode::Add, PutMode::Append, PutMode::Cas(TOKEN)] {
        for (flags, limit) in [(0, 1_048_497), (1, 1_048_493)] {
            for dialect in [Dialect::Meta, Dialect::Classic] {
                let abilities = Abilities::of(dialect);
                assert!(encoded(&abilities, &put(&name, mode, &"v".repeat(limit), flags, 0)).is_ok());
                let over = put(&name, mode, &"v".repeat(limit + 1), flags, 0);
                let text = refusal(&abilities, &over, ErrorKind::BadInput);
                assert!(text.contains(&format!("{} bytes", limit + 1)) && text.contains(&limit.to_string()), "{text}");
            }
        }
    }
}

fn decode_with(dialect: Dialect, op: &Op, bytes: &str) -> Result<Option<Answer>, larder_proto::ProtocolError> {
    let expect = Abilities::of(dialect).encode(op, 9, SERVER_NOW_S, &mut Vec::new()).unwrap();
    let decoder = Decoder { session: 5, value_bytes_max: 1 << 20 };
    decoder.decode(&mut BytesMut::from(bytes), &expect)
}

#[track_caller]
fn reply(dialect: Dialect, op: &Op, bytes: &str) -> Reply {
    match decode_with(dialect, op, bytes) {
        Ok(Some(Answer::Reply(reply))) => reply,
        other => panic!("{bytes:?}: {other:?}"),
    }
}

#[track_caller]
fn refused(dialect: Dialect, op: &Op, bytes: &str) -> (ErrorKind, Effect, bool) {
    match decode_with(dialect, op, bytes) {
        Ok(Some(Answer::Refused { error, in_step })) => (error.kind(), error.known_effect(), in_step),
        other => panic!("{bytes:?}: {other:?}"),
    }
}

#[test]
fn replies_to_reads() {
    let get = |want| Op::get(key("k"), want);
    let full = Item { value: "ab".into(), flags: 3, cas: Some(TOKEN), ttl: Remaining::For(Duration::from_secs(60)) };
    assert_eq!(reply(Dialect::Meta, &get(Want::all()), "VA 2 c77 f3 t60 O9\r\nab\r\n"), Reply::Item(full.clone()));
    assert_eq!(
        reply(Dialect::Meta, &get(Want::all()), "VA 2 c77 f3 t60 O9 W X Z\r\nab\r\n"),
        Reply::Item(full.clone())
    );
    let classic = Item { ttl: Remaining::Unknown, ..full };
    assert_eq!(reply(Dialect::Classic, &get(Want::all()), "VALUE k 3 2 77\r\nab\r\nEND\r\n"), Reply::Item(classic));
    let without_value = Item { cas: Some(TOKEN), ttl: Remaining::Never, ..Item::default() };
    let want = Want::CAS | Want::TTL;
    assert_eq!(reply(Dialect::Meta, &get(want), "HD c77 t-1 O9\r\n"), Reply::Item(without_value));
    assert_eq!(reply(Dialect::Meta, &get(Want::empty()), "HD O9\r\n"), Reply::Item(Item::default()));
    assert_eq!(
        reply(Dialect::Classic, &get(Want::empty()), "VALUE k 3 2\r\nab\r\nEND\r\n"),
        Reply::Item(Item::default())
    );
    assert_eq!(reply(Dialect::Meta, &get(Want::VALUE), "EN O9\r\n"), Reply::Miss);
    assert_eq!(reply(Dialect::Meta, &get(Want::VALUE), "EN\r\n"), Reply::Miss);
    assert_eq!(reply(Dialect::Classic, &get(Want::VALUE), "END\r\n"), Reply::Miss);
}

#[test]
fn replies_to_writes() {
    let set = put("k", PutMode::Set, "v", 0, 0);
    assert_eq!(reply(Dialect::Meta, &set, "HD O9\r\n"), Reply::Stored);
    assert_eq!(reply(Dialect::Classic, &set, "STORED\r\n"), Reply::Stored);
    let cas = put("k", PutMode::Cas(TOKEN), "v", 0, 0);
    for (line, expected) in [
        ("STORED", Reply::Stored),
        ("NOT_STORED", Reply::NotStored),
        ("EXISTS", Reply::Exists),
        ("NOT_FOUND", Reply::Miss),
    ] {
        assert_eq!(reply(Dialect::Meta, &cas, &format!("{line}\r\n")), expected);
    }
    let binary = put("a b", PutMode::Cas(TOKEN), "v", 0, 0);
    for (line, expected) in
        [("HD", Reply::Stored), ("NS", Reply::NotStored), ("EX", Reply::Exists), ("NF", Reply::Miss)]
    {
        assert_eq!(reply(Dialect::Meta, &binary, &format!("{line} O9\r\n")), expected);
    }
    assert_eq!(reply(Dialect::Meta, &Op::delete_if(key("k"), TOKEN), "EX O9\r\n"), Reply::Exists);
    assert_eq!(reply(Dialect::Meta, &Op::delete(key("k")), "NF O9\r\n"), Reply::Miss);
    assert_eq!(reply(Dialect::Classic, &Op::delete(key("k")), "DELETED\r\n"), Reply::Deleted);
    for (line, expected) in [("STORED", Reply::Deleted), ("EXISTS", Reply::Exists), ("NOT_FOUND", Reply::Miss)] {
        assert_eq!(reply(Dialect::Classic, &Op::delete_if(key("k"), TOKEN), &format!("{line}\r\n")), expected);
    }
    assert_eq!(reply(Dialect::Meta, &Op::touch(key("k"), Ttl::Never), "HD O9\r\n"), Reply::Touched);
    assert_eq!(reply(Dialect::Classic, &Op::touch(key("k"), Ttl::Never), "TOUCHED\r\n"), Reply::Touched);
    let incr = arith("k", Arith::Incr(1), None);
    assert_eq!(reply(Dialect::Meta, &incr, "VA 1 O9\r\n7\r\n"), Reply::Number(7));
    assert_eq!(reply(Dialect::Meta, &incr, "NF O9\r\n"), Reply::Miss);
    assert_eq!(reply(Dialect::Classic, &incr, "18446744073709551615\r\n"), Reply::Number(u64::MAX));
    assert_eq!(reply(Dialect::Classic, &incr, "NOT_FOUND\r\n"), Reply::Miss);
}

/// A server that is broken, or means harm: what it announces has no room in any machine, and none is made before it comes.
#[test]
fn a_length_that_no_value_has_is_refused_or_waited_for_without_its_room() {
    let get = Op::get(key("k"), Want::VALUE);
    let expect = Abilities::of(Dialect::Meta).encode(&get, 9, SERVER_NOW_S, &mut Vec::new()).unwrap();
    let decoder = Decoder { session: 5, value_bytes_max: usize::MAX };
    for length in [usize::MAX, usize::MAX - 1, usize::MAX - 16] {
        let mut received = BytesMut::from(format!("VA {length} O9\r\n").as_bytes());
        assert!(decoder.decode(&mut received, &expect).is_err(), "{length}");
    }
    let mut received = BytesMut::from(format!("VA {} O9\r\n", 1u64 << 45).as_bytes());
    assert!(matches!(decoder.decode(&mut received, &expect), Ok(None)));
    assert!(received.capacity() < 32 << 20);
}

#[test]
fn a_padded_number_is_trimmed() {
    let decr = arith("k", Arith::Decr(1), None);
    assert_eq!(reply(Dialect::Meta, &decr, "VA 2 O9\r\n9 \r\n"), Reply::Number(9));
    assert_eq!(reply(Dialect::Classic, &decr, "9 \r\n"), Reply::Number(9));
}

#[test]
fn refusals_say_what_is_known_of_the_effect() {
    use Effect::{NotApplied, Unknown};
    let large = "SERVER_ERROR object too large for cache\r\n";
    let memory = "SERVER_ERROR out of memory storing object\r\n";
    let set = put("k", PutMode::Set, "v", 0, 0);
    let add = put("k", PutMode::Add, "v", 0, 0);
    let binary_add = put("a b", PutMode::Add, "v", 0, 0);
    let get = Op::get(key("k"), Want::VALUE);
    for bytes in [large, memory] {
        // The old item is gone after these two, and only after these two.
        assert_eq!(refused(Dialect::Meta, &set, bytes), (ErrorKind::Full, Unknown, true));
        assert_eq!(refused(Dialect::Classic, &set, bytes), (ErrorKind::Full, Unknown, true));
        assert_eq!(refused(Dialect::Meta, &binary_add, bytes), (ErrorKind::Full, Unknown, true));
        assert_eq!(refused(Dialect::Meta, &add, bytes), (ErrorKind::Full, NotApplied, true));
        assert_eq!(refused(Dialect::Meta, &get, bytes), (ErrorKind::Full, NotApplied, true));
    }
    let strange = "SERVER_ERROR proxy lost the server\r\n";
    assert_eq!(refused(Dialect::Meta, &add, strange), (ErrorKind::Protocol, Unknown, true));
    assert_eq!(refused(Dialect::Meta, &get, strange), (ErrorKind::Protocol, NotApplied, true));
    let incr = arith("k", Arith::Incr(1), None);
    let no_item = "SERVER_ERROR Out of memory allocating new item\r\n";
    assert_eq!(refused(Dialect::Meta, &incr, no_item), (ErrorKind::Full, NotApplied, true));
    let text = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    assert_eq!(refused(Dialect::Meta, &incr, text), (ErrorKind::BadInput, NotApplied, true));
    let chunk = "CLIENT_ERROR bad data chunk\r\n";
    assert_eq!(refused(Dialect::Meta, &set, chunk), (ErrorKind::Protocol, NotApplied, false));
    assert_eq!(refused(Dialect::Meta, &set, "ERROR\r\n"), (ErrorKind::Protocol, NotApplied, false));
}

#[test]
fn what_belongs_to_another_op_is_an_error() {
    let get = Op::get(key("k"), Want::VALUE);
    for bytes in [
        "VA 1 O8\r\nx\r\n",
        "VA 1\r\nx\r\n",
        "EN O8\r\n",
        "HD\r\n",
        "NS O9\r\n",
        "VAx\r\n",
        "V\r\n",
        "STORED\r\n",
        "\r\n",
        // A hit without the value that was asked for.
        "HD O9\r\n",
    ] {
        assert!(decode_with(Dialect::Meta, &get, bytes).is_err(), "{bytes:?}");
    }
    for (want, bytes) in [
        (Want::CAS, "HD O9\r\n"),
        (Want::CAS, "HD t-1 O9\r\n"),
        (Want::VALUE | Want::CAS, "VA 1 O9\r\nx\r\n"),
        (Want::VALUE | Want::CAS, "HD c7 O9\r\n"),
        (Want::FLAGS, "HD O9\r\n"),
        (Want::TTL, "HD f7 O9\r\n"),
        (Want::VALUE | Want::FLAGS, "VA 1 t-1 O9\r\nx\r\n"),
        (Want::VALUE | Want::TTL, "VA 1 f7 O9\r\nx\r\n"),
        (Want::FLAGS | Want::TTL, "HD f7 O9\r\n"),
    ] {
        assert!(decode_with(Dialect::Meta, &Op::get(key("k"), want), bytes).is_err(), "{want:?}: {bytes:?}");
    }
    for bytes in [
        "VALUE q 0 1\r\nx\r\nEND\r\n",
        "VALUE kk 0 1\r\nx\r\nEND\r\n",
        "VALUE k 0 1\r\nxy\r\nEND\r\n",
        "VALUE k 0\r\n",
        "STORED\r\n",
        "1\r\n",
    ] {
        assert!(decode_with(Dialect::Classic, &get, bytes).is_err(), "{bytes:?}");
    }
    let set = put("k", PutMode::Set, "v", 0, 0);
    for bytes in ["NOT_STORED\r\n", "EXISTS\r\n", "END\r\n", "HD O9\r\n"] {
        assert!(decode_with(Dialect::Classic, &set, bytes).is_err(), "{bytes:?}");
    }
    let long = format!("VA 2000000 O9\r\n{}", "x".repeat(3_000));
    assert!(decode_with(Dialect::Meta, &get, &long).unwrap_err().to_string().contains("1048576"));
}
