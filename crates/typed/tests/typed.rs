//! Codecs, and the typed handles over them: what is compared, what is told of bytes that are none of the type.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Error, ErrorKind, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::cache::{Lookup, Source};
use larder_structures::{Array, Cache, EventLog, Lock, Queue, Set, Stack, Table};
use larder_typed::{
    Codec, Fault, Json, Postcard, Raw, TypedArray, TypedCache, TypedEventLog, TypedQueue, TypedSet, TypedStack,
    TypedTable, Undecoded,
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle { radius: u32 },
    Named(String, Option<Box<Shape>>),
}

fn shapes() -> Vec<Shape> {
    vec![Shape::Point, Shape::Circle { radius: 7 }, Shape::Named("n".into(), Some(Box::new(Shape::Point)))]
}

fn store() -> StoreRef {
    Arc::new(MemoryStore::new())
}

fn undecoded(error: &Error, said: &str) -> Bytes {
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert!(error.to_string().contains(said), "{error}");
    Undecoded::of(error).unwrap_or_else(|| panic!("no bytes: {error}")).bytes().clone()
}

#[tokio::test]
async fn a_set_holds_and_finds_values_and_tells_those_that_are_none() {
    let set = Set::open_or_create(&store(), "s").await.unwrap();
    let typed: TypedSet<Shape> = TypedSet::new(set.clone());
    typed.add(shapes()).await.unwrap();
    typed.add(&shapes()[..1]).await.unwrap();
    typed.remove([&shapes()[1]]).await.unwrap();
    assert!(typed.has(&shapes()[2]).await.unwrap() && !typed.has(&shapes()[1]).await.unwrap());
    let members = typed.members().await.unwrap();
    assert_eq!(members.len(), 2);
    assert!(members.contains(&shapes()[0]) && members.contains(&shapes()[2]));
    set.add([&b"\xff\xff"[..]]).await.unwrap();
    let error = typed.members().await.unwrap_err();
    assert_eq!(undecoded(&error, "a member, \"\\xff\\xff\""), &b"\xff\xff"[..]);
    let (good, bad): (Vec<_>, Vec<_>) = typed.each().await.unwrap().into_iter().partition(Result::is_ok);
    assert_eq!((good.len(), bad.len()), (2, 1));
}

#[tokio::test]
async fn an_array_keeps_order_and_names_the_element_that_is_none() {
    let array = Array::open_or_create(&store(), "a").await.unwrap();
    let typed: TypedArray<Shape, Json> = TypedArray::new(array.clone());
    typed.push(shapes()).await.unwrap();
    typed.change([Shape::Point], [Shape::Circle { radius: 7 }]).await.unwrap();
    let lock = Lock::open(&store(), "l").await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    typed.change_under(&guard, [Shape::Point], [Shape::Circle { radius: 7 }]).await.unwrap();
    lock.force_release().await.unwrap();
    guard.renew().await.unwrap_err();
    let error = typed.change_under(&guard, [Shape::Circle { radius: 8 }], [Shape::Point]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    typed.remove([&shapes()[2]]).await.unwrap();
    let expected = typed.elements().await.unwrap();
    assert!(!expected.is_empty() && expected.iter().all(|shape| *shape == Shape::Point), "{expected:?}");
    array.push(["{}"]).await.unwrap();
    let at = expected.len();
    let error = typed.elements().await.unwrap_err();
    assert_eq!(undecoded(&error, &format!("element {at}, ")), "{}");
    assert_eq!(typed.each().await.unwrap().iter().filter(|element| element.is_ok()).count(), at);
}

#[tokio::test]
async fn a_cache_gives_values_back_and_an_invalidation_mends_what_is_none() {
    let cache = Cache::open_or_create(&store(), "c").await.unwrap();
    let typed: TypedCache<Shape> = TypedCache::new(cache.clone());
    let made = typed.get_or_rebuild("k", async || Ok::<_, Error>(Shape::Point)).await.unwrap();
    assert!(made.value == Shape::Point && matches!(made.source, Source::Rebuilt(Ok(()))));
    let hit = typed.get_or_rebuild("k", async || Ok::<_, Error>(Shape::Circle { radius: 1 })).await.unwrap();
    assert!(hit.value == Shape::Point && matches!(hit.source, Source::Fresh));
    assert_eq!(typed.get("k").await.unwrap().unwrap().value, Shape::Point);
    typed.invalidate("k").await.unwrap();
    cache.get_or_rebuild("k", async || Ok::<_, Error>("\x09")).await.unwrap();
    let error = typed.get("k").await.unwrap_err();
    assert_eq!(undecoded(&error, "the value of \"k\""), "\x09");
    typed.invalidate("k").await.unwrap();
    assert!(typed.get("k").await.unwrap().is_none());
    let failed = typed.get_or_rebuild("k", async || Err(Error::new(ErrorKind::Overflow, "mine"))).await;
    assert_eq!(failed.unwrap_err().detail(), "mine");
    assert!(matches!(cache.lookup("k").await.unwrap(), Lookup::Rebuild(_)), "the lease was given up");
}

/// JSON has no maps whose keys are pairs.
type Unwritable = HashMap<(u8, u8), u8>;

fn unwritable() -> Unwritable {
    HashMap::from([((1, 2), 3)])
}

#[tokio::test]
async fn what_cannot_be_written_is_bad_input_and_nothing_is_sent() {
    let store = store();
    let typed: TypedSet<Unwritable, Json> = TypedSet::new(Set::open_or_create(&store, "s").await.unwrap());
    let error = typed.add([HashMap::new(), unwritable()]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("a member cannot be written as JSON"), "{error}");
    assert!(typed.raw().members().await.unwrap().is_empty());
    let cache = Cache::open_or_create(&store, "c").await.unwrap();
    let typed: TypedCache<Unwritable, Json> = TypedCache::new(cache.clone());
    let made = typed.get_or_rebuild("k", async || Ok::<_, Error>(unwritable())).await.unwrap();
    assert_eq!(made.value, unwritable());
    assert!(matches!(&made.source, Source::Rebuilt(Err(error)) if error.kind() == ErrorKind::BadInput), "{made:?}");
    assert!(matches!(cache.lookup("k").await.unwrap(), Lookup::Rebuild(_)), "the lease was given up");
}

#[tokio::test]
async fn a_log_tells_events_in_time_and_the_one_that_is_none() {
    let log = EventLog::open_or_create(&store(), "l").await.unwrap();
    let typed: TypedEventLog<Shape> = TypedEventLog::new(log.clone());
    let now_ms = log.now_ms();
    typed.put_at(now_ms - 1_000, &Shape::Point).await.unwrap();
    typed.put(&Shape::Circle { radius: 2 }).await.unwrap();
    let events = typed.fetch(..).await.unwrap();
    assert_eq!((events[0].time_ms, &events[0].event), (now_ms - 1_000, &Shape::Point));
    assert_eq!(events[1].event, Shape::Circle { radius: 2 });
    log.put_at(now_ms - 500, "\x09").await.unwrap();
    let error = typed.fetch(..).await.unwrap_err();
    assert_eq!(undecoded(&error, &format!("the event of {} ms", now_ms - 500)), "\x09");
    let (events, gaps) = typed.fetch_with_gaps(..).await.unwrap();
    assert_eq!((events.iter().filter(|event| event.is_ok()).count(), events.len(), gaps.len()), (2, 3, 0));
}

#[tokio::test]
async fn a_table_gives_values_back_by_key_and_names_the_one_that_is_none() {
    let table = Table::options().ttl(true).open_or_create(&store(), "t").await.unwrap();
    let typed: TypedTable<Shape, Json> = TypedTable::new(table.clone());
    typed.put("a", &Shape::Point).await.unwrap();
    typed.put_for("b", &Shape::Circle { radius: 3 }, std::time::Duration::from_secs(60)).await.unwrap();
    assert_eq!(typed.get("a").await.unwrap(), Some(Shape::Point));
    let many = typed.get_many(["b", "none", "a"]).await.unwrap();
    assert_eq!(many, [Some(Shape::Circle { radius: 3 }), None, Some(Shape::Point)]);
    assert_eq!(typed.entries().await.unwrap().len(), 2);
    table.put("c", "[]").await.unwrap();
    for error in [
        typed.get("c").await.unwrap_err(),
        typed.get_many(["a", "c"]).await.unwrap_err(),
        typed.entries().await.unwrap_err(),
    ] {
        assert_eq!(undecoded(&error, "the value of \"c"), "[]");
    }
    let each = typed.each().await.unwrap();
    assert_eq!((each.len(), each.iter().filter(|(_, value)| value.is_ok()).count()), (3, 2));
    let bad: TypedTable<Unwritable, Json> = TypedTable::new(table.clone());
    assert_eq!(bad.put("d", &unwritable()).await.unwrap_err().kind(), ErrorKind::BadInput);
    assert!(table.get("d").await.unwrap().is_none());
}

#[tokio::test]
async fn queues_and_stacks_keep_their_order_and_an_item_that_is_none_can_still_be_had() {
    let store = store();
    let lease = std::time::Duration::from_secs(60);
    let queue = Queue::open_or_create(&store, "q").await.unwrap();
    let typed: TypedQueue<Shape> = TypedQueue::new(queue.clone());
    typed.push_all(shapes()).await.unwrap();
    let claim = typed.claim(lease).await.unwrap().unwrap();
    assert_eq!(claim.item().unwrap(), shapes()[0]);
    claim.raw().ack().await.unwrap();
    assert_eq!(typed.pop().await.unwrap(), Some(shapes()[1].clone()));
    assert_eq!(typed.pop().await.unwrap(), Some(shapes()[2].clone()));
    assert_eq!(typed.pop().await.unwrap(), None);
    queue.push("\x09").await.unwrap();
    let claim = typed.claim(lease).await.unwrap().unwrap();
    assert_eq!(undecoded(&claim.item().unwrap_err(), "a claimed item"), "\x09");
    claim.raw().release().await.unwrap();
    assert_eq!(undecoded(&typed.pop().await.unwrap_err(), "an item"), "\x09");
    let stack: TypedStack<Shape, Json> = TypedStack::new(Stack::open_or_create(&store, "s").await.unwrap());
    stack.push(&shapes()[0]).await.unwrap();
    stack.push(&shapes()[2]).await.unwrap();
    assert_eq!(stack.pop().await.unwrap(), Some(shapes()[2].clone()));
    assert_eq!(stack.claim(lease).await.unwrap().unwrap().item().unwrap(), shapes()[0]);
}

#[tokio::test]
async fn raw_values_are_the_bytes_themselves() {
    let set = Set::open_or_create(&store(), "s").await.unwrap();
    let bytes: TypedSet<Vec<u8>, Raw> = TypedSet::new(set.clone());
    let text: TypedSet<String, Raw> = TypedSet::new(set.clone());
    let pairs: TypedSet<[u8; 2], Raw> = TypedSet::new(set);
    bytes.add([b"a\xff".to_vec()]).await.unwrap();
    assert!(pairs.has(b"a\xff").await.unwrap());
    assert_eq!(undecoded(&text.members().await.unwrap_err(), "raw text"), &b"a\xff"[..]);
    text.add(["abc".to_owned()]).await.unwrap();
    assert!(pairs.members().await.unwrap_err().to_string().contains("3 bytes, not 2"));
}

/// What stands behind a value is no part of it: another type's bytes could pass for this one's.
#[test]
fn bytes_behind_a_value_are_refused() {
    fn refused<C: Codec<u8>>(bytes: &'static [u8]) -> Fault {
        C::decode(&Bytes::from_static(bytes)).unwrap_err()
    }
    assert!(refused::<Postcard>(b"\x01\x02").to_string().contains("1 bytes stand behind"));
    refused::<Json>(b"1 2");
    refused::<Postcard>(b"");
    refused::<Json>(b"");
}

/// JSON writes `null` for them, which an option reads as nothing.
#[test]
fn json_refuses_what_it_has_no_number_for_wherever_it_stands() {
    #[derive(serde::Serialize, serde::Deserialize)]
    enum Reading {
        Of { celsius: Option<f64> },
        Two(f32, f32),
        One(f64),
    }
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let told = |fault: Result<Bytes, Fault>| fault.unwrap_err().to_string();
        assert_eq!(told(Json::encode(&bad)), format!("JSON has no number for {bad}"));
        told(Json::encode(&Some(bad)));
        told(Json::encode(&vec![(1, [0.0, bad])]));
        told(Json::encode(&BTreeMap::from([("a".to_owned(), bad as f32)])));
        told(Json::encode(&Reading::Of { celsius: Some(bad) }));
        told(Json::encode(&Reading::Two(1.0, bad as f32)));
        told(Json::encode(&Reading::One(bad)));
    }
    assert_eq!(Json::encode(&Reading::Of { celsius: None }).unwrap(), "{\"Of\":{\"celsius\":null}}");
    assert_eq!(Json::encode(&(Some(0.5), f64::MAX, ())).unwrap(), "[0.5,1.7976931348623157e+308,null]");
}

/// `Some(None)` is written as `None` is, and would come back as that.
#[test]
fn json_refuses_something_that_is_nothing() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Unit;
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Wrapped(Option<u8>);
    let told = |fault: Result<Bytes, Fault>| fault.unwrap_err().to_string();
    let word = "JSON has no word for something that is nothing: Some(None) would come back as None";
    assert_eq!(told(Json::encode(&Some(None::<u8>))), word);
    assert_eq!(told(Json::encode(&Some(()))), word);
    assert_eq!(told(Json::encode(&Some(Unit))), word);
    assert_eq!(told(Json::encode(&[Some(Wrapped(None))])), word);
    assert_eq!(told(Json::encode(&Some(serde_json::Value::Null))), word);
    assert_eq!(Json::encode(&Some(vec![None::<u8>])).unwrap(), "[null]", "in a list it is told apart");
    assert_eq!(Json::encode(&Some(Some(7))).unwrap(), "7");
    assert_eq!(Json::encode(&None::<Option<u8>>).unwrap(), "null");
    // A field that may be absent, null, or a value: the three are told apart.
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Patch {
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
        nick: Option<Option<u8>>,
    }
    fn some<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u8>>, D::Error> {
        serde::Deserialize::deserialize(from).map(Some)
    }
    for (nick, written) in [(None, "{}"), (Some(None), "{\"nick\":null}"), (Some(Some(7)), "{\"nick\":7}")] {
        let bytes = Json::encode(&Patch { nick }).unwrap();
        assert_eq!(bytes, written);
        let back: Patch = Json::decode(&bytes).unwrap();
        assert_eq!(back, Patch { nick });
    }
}

/// The reader goes 127 levels deep: what is deeper would be taken off a queue, and lost.
#[test]
fn json_of_more_levels_than_are_read_back_is_refused() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    enum Tree {
        Leaf,
        Node(Box<Tree>),
        Field { of: Box<Tree> },
        Pair(Box<Tree>, u8),
    }
    fn nested(levels: usize, around: impl Fn(Tree) -> Tree) -> Tree {
        (0..levels).fold(Tree::Leaf, |tree, _| around(tree))
    }
    type Around = fn(Tree) -> Tree;
    let kinds: [(Around, usize); 3] = [
        (|tree| Tree::Node(Box::new(tree)), 127),
        (|tree| Tree::Field { of: Box::new(tree) }, 63),
        (|tree| Tree::Pair(Box::new(tree), 1), 63),
    ];
    for (around, levels) in kinds {
        let whole = nested(levels, around);
        let back: Tree = Json::decode(&Json::encode(&whole).unwrap()).unwrap();
        assert_eq!(back, whole);
        let error = Json::encode(&nested(levels + 1, around)).unwrap_err();
        assert!(error.to_string().contains("more than 127 levels"), "{error}");
        // It is refused for a reason.
        assert!(serde_json::from_slice::<Tree>(&serde_json::to_vec(&nested(levels + 1, around)).unwrap()).is_err());
    }
}

proptest! {
    #[test]
    fn every_finite_float_comes_back_from_json_to_the_bit(bits: u64) {
        let float = f64::from_bits(bits);
        prop_assume!(float.is_finite());
        let back: f64 = Json::decode(&Json::encode(&float).unwrap()).unwrap();
        prop_assert_eq!(back.to_bits(), bits);
    }
}

/// Of those some are taken for their neighbours by a reader that is fast.
#[test]
fn a_float_of_many_digits_comes_back_from_json_to_the_bit() {
    for float in [0.09999999999999999_f64, -1.3074161101396561e123, 0.1 + 0.2] {
        let back: f64 = Json::decode(&Json::encode(&float).unwrap()).unwrap();
        assert_eq!(back.to_bits(), float.to_bits(), "{float}");
    }
}

/// Why a set of unordered maps is wrong, and one of ordered maps right.
#[test]
fn equal_ordered_maps_have_equal_bytes_and_equal_unordered_ones_need_not() {
    let ordered = |keys: &mut dyn Iterator<Item = u32>| keys.map(|key| (key, ())).collect::<BTreeMap<_, _>>();
    let unordered = |keys: &mut dyn Iterator<Item = u32>| keys.map(|key| (key, ())).collect::<HashMap<_, _>>();
    let (up, down) = (ordered(&mut (0..50)), ordered(&mut (0..50).rev()));
    assert_eq!(Json::encode(&up).unwrap(), Json::encode(&down).unwrap());
    assert_eq!(Postcard::encode(&up).unwrap(), Postcard::encode(&down).unwrap());
    let (up, down) = (unordered(&mut (0..50)), unordered(&mut (0..50)));
    assert_eq!(up, down);
    assert_ne!(Json::encode(&up).unwrap(), Json::encode(&down).unwrap());
    assert_ne!(Postcard::encode(&up).unwrap(), Postcard::encode(&down).unwrap());
}

type Anything = (u64, String, Option<Vec<i16>>, BTreeMap<String, bool>);

proptest! {
    #[test]
    fn what_is_written_is_read(value: Anything) {
        prop_assert_eq!(&<Json as Codec<Anything>>::decode(&Json::encode(&value).unwrap()).unwrap(), &value);
        prop_assert_eq!(&<Postcard as Codec<Anything>>::decode(&Postcard::encode(&value).unwrap()).unwrap(), &value);
    }

    #[test]
    fn garbage_never_panics(bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        let _json: Result<Anything, Fault> = Json::decode(&bytes);
        let _postcard: Result<Anything, Fault> = Postcard::decode(&bytes);
        let _text: Result<String, Fault> = Raw::decode(&bytes);
    }
}
