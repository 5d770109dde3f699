//! What the vocabulary says of itself, each op and reply: names, sizes, what is refused, what a store is asked by the short ways.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use larder_core::native::{
    BitField, Collection, Families, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply, Only, Ranks,
    Score, StreamEntry, StreamId,
};
use larder_core::survey::{DataType, Part, Vitals};
use larder_core::text::SHOWN_BYTES_MAX;
use larder_core::{
    Arith, Batch, Cas, Clock, Ctx, Durability, Effect, ErrorKind, Eviction, Item, Key, Op, Profile, PutMode, Ranges,
    Replies, Reply, Run, Store, StoreExt, SystemClock, Ttl, Verb, Want,
};

/// Answers each op with the same reply, and remembers the op.
#[derive(Debug)]
struct Says(Reply, Mutex<Vec<Op>>);

impl Store for Says {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile::unlimited("says"))
    }

    fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
        let replies: Replies = batch.iter().map(|_| Ok(self.0.clone())).collect();
        self.1.lock().unwrap().extend(batch);
        Run::Ready(replies)
    }
}

/// What comes of asking a store that answers so, and what it was asked.
fn asked<T>(reply: Reply, ask: impl AsyncFnOnce(&Says) -> T) -> (T, Op) {
    let store = Says(reply, Mutex::new(Vec::new()));
    let answer = match pin!(ask(&store)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it is answered at once"),
    };
    let op = store.1.lock().unwrap().pop().expect("one op");
    (answer, op)
}

fn key() -> Key {
    Key::new("k").unwrap()
}

#[test]
fn the_short_ways_ask_for_what_they_tell() {
    let item = Item { value: "v".into(), flags: 7, ..Item::default() };
    let (got, op) = asked(Reply::Item(item.clone()), async |store| store.get(key()).await.unwrap());
    assert_eq!(got, Some(item));
    let Verb::Get { want } = op.verb else { panic!("{op:?}") };
    assert_eq!(want, Want::VALUE.union(Want::CAS).union(Want::FLAGS));
    assert_eq!(asked(Reply::Miss, async |store| store.get(key()).await.unwrap()).0, None);
    for (reply, was_there) in [(Reply::Deleted, true), (Reply::Miss, false)] {
        assert_eq!(asked(reply, async |store| store.delete(key()).await.unwrap()), (was_there, Op::delete(key())));
    }
    for (reply, is_there) in [(Reply::Touched, true), (Reply::Miss, false)] {
        let (told, op) = asked(reply, async |store| store.touch(key(), Ttl::Never).await.unwrap());
        assert_eq!((told, op), (is_there, Op::touch(key(), Ttl::Never)));
    }
    for (reply, number) in [(Reply::Number(8), Some(8)), (Reply::Miss, None)] {
        let (told, op) = asked(reply, async |store| store.arith(key(), Arith::Incr(3)).await.unwrap());
        assert_eq!((told, op), (number, Op::arith(key(), Arith::Incr(3))));
    }
}

#[test]
fn a_key_is_its_bytes() {
    let key = Key::new(&b"a\x00b"[..]).unwrap();
    let bytes: &[u8] = key.as_ref();
    assert_eq!((bytes, key.as_bytes()), (&b"a\x00b"[..], &b"a\x00b"[..]));
}

#[test]
fn a_key_of_10_000_bytes_is_refused_in_a_short_text() {
    for byte in [0, b'k', 0xff] {
        let error = Key::new(vec![byte; 10_000]).unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied));
        let text = error.to_string();
        assert!(text.contains("10000 bytes") && text.contains("the limit is 250"), "{text}");
        // The first bytes of the key are shown, the others not, though each may take four letters.
        assert!(text.len() < 4 * SHOWN_BYTES_MAX + 150, "{} letters: {text}", text.len());
    }
}

fn bits(act: GuardedBitsAct) -> Native {
    Native::GuardedBits(GuardedBits { mark: "open".into(), act })
}

fn guarded(act: GuardedAct) -> Native {
    Native::Guarded(Guarded { of: Collection::Hash, mark: "open".into(), act })
}

fn pairs() -> Vec<(Bytes, Bytes)> {
    vec![("ab".into(), "cde".into()), ("fg".into(), "hi".into())]
}

fn names() -> Vec<Bytes> {
    vec!["ab".into(), "cde".into()]
}

fn one() -> Score {
    Score::from(1)
}

#[test]
fn native_ops_tell_how_many_bytes_they_send() {
    for (native, bytes) in [
        (Native::HashGet { fields: names() }, 5),
        (Native::HashRemove { fields: names() }, 5),
        (Native::HashSet { entries: pairs() }, 9),
        (Native::HashAdd { field: "ab".into(), value: "cde".into() }, 5),
        (Native::HashIncr { field: "abc".into(), by: 1 }, 11),
        (Native::SetRemove { members: names() }, 5),
        (Native::SortedRemove { members: names() }, 5),
        (Native::SortedScores { members: names() }, 5),
        (Native::SortedAdd { entries: vec![("abc".into(), one()), ("d".into(), one())], only: Only::empty() }, 20),
        (Native::SortedIncr { member: "abc".into(), by: one() }, 11),
        (Native::SortedRank { member: "abc".into(), from_top: true }, 3),
        (Native::BitsMake { value: "abcd".into() }, 4),
        (Native::Bits(vec![BitField::get(3, 0), BitField::get(3, 3), BitField::get(3, 6)]), 24),
        (Native::StreamAppend { fields: pairs(), keep: None }, 9),
        (guarded(GuardedAct::Put { entries: pairs() }), 9),
        (guarded(GuardedAct::Turn { to: "shut".into(), entries: pairs() }), 9),
        (guarded(GuardedAct::Remove { names: names() }), 5),
        (guarded(GuardedAct::Make { ttl_ms: None }), 4),
        (guarded(GuardedAct::Drop { or: names() }), 0),
        (bits(GuardedBitsAct::Put { numbers: vec![BitField::set(9, 8, 1); 3] }), 24),
        (bits(GuardedBitsAct::Incr { number: BitField::incr(9, 8, 1) }), 8),
        (bits(GuardedBitsAct::Drop { or: names() }), 0),
        (Native::HashLen, 0),
    ] {
        assert_eq!(native.bytes(), bytes, "{native:?}");
        assert_eq!(Op::native(key(), native).value_bytes(), bytes);
    }
}

#[test]
fn native_replies_tell_how_many_bytes_came_back() {
    let entry = StreamEntry { id: StreamId::MIN, fields: pairs() };
    for (reply, bytes) in [
        (NativeReply::Pairs(pairs()), 9),
        (NativeReply::Page { next: None, found: names() }, 5),
        (NativeReply::Scored(vec![("abc".into(), one()), ("d".into(), one())]), 20),
        (NativeReply::Scores(vec![Some(one()), None, None]), 24),
        (NativeReply::Numbers(vec![Some(1), None, None]), 24),
        (NativeReply::Bytes("abcd".into()), 4),
        (NativeReply::Entries(vec![entry.clone(), entry]), 18),
        (NativeReply::Text(Some("abc".to_owned())), 3),
        (NativeReply::Count(9), 0),
    ] {
        assert_eq!(reply.bytes(), bytes, "{reply:?}");
        assert_eq!(Reply::from(reply).value_bytes(), bytes);
    }
}

#[test]
fn what_says_nothing_or_contradicts_itself_is_refused_and_nothing_else() {
    let sound = [
        Native::HashSet { entries: pairs() },
        Native::SortedRemove { members: names() },
        Native::SortedScores { members: names() },
        guarded(GuardedAct::Put { entries: pairs() }),
        guarded(GuardedAct::Remove { names: names() }),
        guarded(GuardedAct::Turn { to: "shut".into(), entries: Vec::new() }),
        guarded(GuardedAct::Make { ttl_ms: Some(1) }),
        guarded(GuardedAct::Drop { or: Vec::new() }),
        bits(GuardedBitsAct::Put { numbers: vec![BitField::set(9, 8, 1)] }),
        bits(GuardedBitsAct::Incr { number: BitField::incr(9, 8, 1) }),
        bits(GuardedBitsAct::Drop { or: Vec::new() }),
        Native::SortedTrim(Ranks { from_top: false, ..Ranks::top(1) }),
        Native::Expire { ttl_ms: 1 },
        Native::SortedAdd { entries: vec![("m".into(), one())], only: Only::NEW },
        Native::SortedAdd { entries: vec![("m".into(), one())], only: Only::KNOWN.union(Only::LESS) },
    ];
    for native in sound {
        assert!(native.check().is_ok(), "{native:?}");
    }
    let bad = [
        Native::HashSet { entries: Vec::new() },
        Native::SortedRemove { members: Vec::new() },
        Native::SortedScores { members: Vec::new() },
        guarded(GuardedAct::Put { entries: Vec::new() }),
        guarded(GuardedAct::Remove { names: Vec::new() }),
        guarded(GuardedAct::Turn { to: "open".into(), entries: pairs() }),
        Native::SortedTrim(Ranks { from_top: true, ..Ranks::top(1) }),
        Native::Expire { ttl_ms: 0 },
        Native::SortedAdd { entries: vec![("m".into(), one())], only: Only::NEW.union(Only::LESS) },
        Native::SortedAdd {
            entries: vec![("m".into(), one())],
            only: Only::GREATER.union(Only::LESS).union(Only::KNOWN),
        },
    ];
    for native in bad {
        assert_eq!(native.check().unwrap_err().kind(), ErrorKind::BadInput, "{native:?}");
    }
}

#[test]
fn an_op_is_checked_against_what_its_store_can_do() {
    let plain = Profile::unlimited("plain");
    let able = Profile { ranges: Ranges::Native, watch: true, natives: Families::SET, ..Profile::unlimited("able") };
    let kind = |op: &Op, profile: &Profile| op.check(profile).err().map(|error| error.kind());
    for op in [
        Op::get_range(key(), 0, 1),
        Op::put_range(key(), 0, "v"),
        Op::watch(key(), None),
        Op::native(key(), Native::SetLen),
    ] {
        assert_eq!(kind(&op, &plain), Some(ErrorKind::Unsupported), "{op:?}");
        assert_eq!(kind(&op, &able), None, "{op:?}");
    }
    assert_eq!(kind(&Op::native(key(), Native::HashLen), &able), Some(ErrorKind::Unsupported));
    let of_nothing = Op::native(key(), Native::SetAdd { members: Vec::new() });
    assert_eq!(kind(&of_nothing, &able), Some(ErrorKind::BadInput));
    assert_eq!(kind(&of_nothing, &plain), Some(ErrorKind::Unsupported));
}

#[test]
fn ops_have_names_and_tokens_of_their_own() {
    let cas = Cas { token: 3, session: 4 };
    for (op, name, token) in [
        (Op::get(key(), Want::VALUE), "get", None),
        (Op::put(key(), PutMode::Set, "v", Ttl::Never), "set", None),
        (Op::put(key(), PutMode::Cas(cas), "v", Ttl::Never), "cas", Some(cas)),
        (Op::new(key(), Verb::Delete { cas: Some(cas) }), "delete", Some(cas)),
        (Op::touch(key(), Ttl::Never), "touch", None),
        (Op::arith(key(), Arith::Incr(1)), "incr", None),
        (Op::arith(key(), Arith::Decr(1)), "decr", None),
        (Op::get_range(key(), 0, 1), "get range", None),
        (Op::put_range(key(), 0, "v"), "put range", None),
        (Op::watch(key(), None), "watch", None),
        (Op::native(key(), Native::SortedLen), "sorted len", None),
    ] {
        assert_eq!((op.name(), op.cas()), (name, token));
    }
}

#[test]
fn scores_of_unlike_numbers_differ() {
    assert_ne!(Score::from(1u32), Score::from(2u32));
    assert_eq!((Score::from(7u32).get(), Score::from(-7).get()), (7.0, -7.0));
}

#[test]
fn only_a_store_that_never_evicts_is_said_not_to() {
    let of = |eviction| Profile { eviction, ..Profile::unlimited("x") }.may_evict();
    assert!(!of(Eviction::Never) && of(Eviction::Unknown));
}

#[test]
fn one_of_several_servers_may_lose_what_others_keep_unless_all_is_on_disk() {
    let of = |scattered, durability| Profile { scattered, durability, ..Profile::unlimited("x") };
    for durability in [Durability::Process, Durability::Server, Durability::Recent, Durability::Unknown] {
        assert!(of(true, durability).may_lose_one() && !of(false, durability).may_lose_one(), "{durability:?}");
    }
    assert!(!of(true, Durability::Disk).may_lose_one());
    assert!(Profile { eviction: Eviction::WhenFull, ..of(false, Durability::Disk) }.may_lose_one());
}

#[test]
fn what_a_survey_says_is_what_a_server_said() {
    for (name, of) in [
        ("string", DataType::String),
        ("list", DataType::List),
        ("set", DataType::Set),
        ("zset", DataType::SortedSet),
        ("hash", DataType::Hash),
        ("stream", DataType::Stream),
        ("module", DataType::Other),
    ] {
        assert_eq!(DataType::named(name), of);
    }
    assert_eq!([0, 7, -7, 10, -10].map(|number| Part::Integer(number).bytes()), [1, 1, 2, 2, 3]);
    let vitals = Vitals::of("here", "memcached");
    assert_eq!((&vitals.node[..], &vitals.software[..]), ("here", "memcached"));
}

#[test]
fn the_systems_clock_goes_on() {
    let clock = SystemClock::new();
    let before = clock.monotonic();
    std::thread::sleep(Duration::from_millis(20));
    let passed = clock.monotonic() - before;
    assert!(passed >= Duration::from_millis(15), "{passed:?}");
}
