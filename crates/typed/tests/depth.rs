//! How deeply parts of a value may stand in one another in postcard, and that nothing else is read or written otherwise than by postcard itself.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_core::{ErrorKind, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::Set;
use larder_typed::{Codec, Fault, Postcard, TypedSet, Undecoded};
use proptest::prelude::*;
use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LIMIT: &str = "more than 127 levels of nesting";

/// Holds itself in every way there is.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Tree {
    Leaf,
    Node(Box<Tree>),
    Field { of: Box<Tree> },
    Pair(Box<Tree>, u8),
    Maybe(Option<Box<Tree>>),
    Many(Vec<Tree>),
    Map(BTreeMap<u8, Tree>),
    Two(Box<(Tree, u8)>),
    Of(Box<Only>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Only(Tree);

type Around = fn(Tree) -> Tree;

/// Each with how many levels it adds.
const KINDS: [(Around, usize); 8] = [
    (|tree| Tree::Node(Box::new(tree)), 1),
    (|tree| Tree::Field { of: Box::new(tree) }, 1),
    (|tree| Tree::Pair(Box::new(tree), 1), 1),
    (|tree| Tree::Maybe(Some(Box::new(tree))), 2),
    (|tree| Tree::Many(vec![tree]), 2),
    (|tree| Tree::Map(BTreeMap::from([(7, tree)])), 2),
    (|tree| Tree::Two(Box::new((tree, 1))), 2),
    (|tree| Tree::Of(Box::new(Only(tree))), 2),
];

fn nested(times: usize, around: Around) -> Tree {
    (0..times).fold(Tree::Leaf, |tree, _| around(tree))
}

#[test]
fn as_many_levels_as_are_read_are_written_and_one_more_is_refused() {
    for (around, levels) in KINDS {
        // The rest of 127 levels are of the first kind.
        let whole = |extra| (0..127 % levels + extra).fold(nested(127 / levels, around), |tree, _| KINDS[0].0(tree));
        let back: Tree = Postcard::decode(&Postcard::encode(&whole(0)).unwrap()).unwrap();
        assert_eq!(back, whole(0));
        let error = Postcard::encode(&whole(1)).unwrap_err();
        assert_eq!(error.to_string(), LIMIT);
        let error = read::<Tree>(postcard::to_stdvec(&whole(1)).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), LIMIT);
    }
}

#[test]
fn what_holds_nothing_is_no_level_and_an_empty_list_is_one() {
    let around = |inmost: Tree| (0..126).fold(inmost, |tree, _| KINDS[0].0(tree));
    for inmost in [Tree::Maybe(None), Tree::Node(Box::new(Tree::Leaf))] {
        let bytes = Postcard::encode(&around(inmost)).unwrap();
        read::<Tree>(bytes.to_vec()).unwrap();
    }
    assert_eq!(Postcard::encode(&around(Tree::Many(Vec::new()))).unwrap_err().to_string(), LIMIT);
    assert_eq!(read::<Tree>([&[1; 126][..], &[5, 0]].concat()).unwrap_err().to_string(), LIMIT);
}

fn read<T: DeserializeOwned + Serialize>(bytes: Vec<u8>) -> Result<T, Fault> {
    Postcard::decode(&bytes.into())
}

#[derive(Debug, Serialize, Deserialize)]
enum List {
    End,
    More(Box<List>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Node {
    next: Option<Box<Node>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Thin(Option<Box<Thin>>);

#[derive(Debug, Serialize, Deserialize)]
struct Bush(Vec<Bush>);

#[derive(Debug, Serialize, Deserialize)]
struct Maps(BTreeMap<(), Maps>);

#[derive(Debug, Serialize, Deserialize)]
enum Shaped {
    End,
    More { next: Box<Shaped> },
}

#[derive(Debug, Serialize, Deserialize)]
enum Paired {
    End,
    More((), Box<Paired>),
}

/// Holds itself whatever the bytes are.
#[derive(Debug, Serialize, Deserialize)]
struct Endless(Box<Endless>);

/// Without a limit each of these overflows the stack, which ends the process.
#[test]
fn bytes_that_nest_without_end_are_an_error_on_a_small_stack() {
    fn refused<T: DeserializeOwned + Serialize + fmt::Debug>() {
        let error = read::<T>(vec![1; 1 << 20]).unwrap_err();
        assert_eq!(error.to_string(), LIMIT, "{}", std::any::type_name::<T>());
    }
    let reads = || {
        refused::<List>();
        refused::<Node>();
        refused::<Thin>();
        refused::<Bush>();
        refused::<Maps>();
        refused::<Shaped>();
        refused::<Paired>();
        refused::<Endless>();
    };
    std::thread::Builder::new().stack_size(512 << 10).spawn(reads).unwrap().join().unwrap();
}

/// A chain of this many would overflow the stack of who writes it.
#[test]
fn a_value_that_nests_without_end_is_an_error_and_not_the_end() {
    let mut chain = (0..1 << 20).fold(List::End, |list, _| List::More(Box::new(list)));
    assert_eq!(Postcard::encode(&chain).unwrap_err().to_string(), LIMIT);
    // Else it is dropped level by level, on the stack.
    while let List::More(next) = chain {
        chain = *next;
    }
}

/// A type may take an error for a value: what it read of is then not known.
#[test]
fn a_type_that_passes_over_the_error_is_refused_all_the_same() {
    #[derive(Debug, Serialize)]
    struct Lenient(Option<List>);
    impl<'de> Deserialize<'de> for Lenient {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Lenient, D::Error> {
            Ok(Lenient(List::deserialize(from).ok()))
        }
    }
    assert!(read::<Lenient>(vec![1, 1, 0]).unwrap().0.is_some());
    assert!(read::<Lenient>(vec![9]).unwrap().0.is_none());
    assert_eq!(read::<Lenient>(vec![1; 128]).unwrap_err().to_string(), LIMIT);
}

#[tokio::test]
async fn a_member_that_nests_too_deeply_is_told_with_its_bytes() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let set = Set::open_or_create(&store, "s").await.unwrap();
    set.add([vec![1; 200]]).await.unwrap();
    let typed: TypedSet<Node> = TypedSet::new(set);
    let error = typed.members().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains(LIMIT), "{error}");
    assert_eq!(Undecoded::of(&error).unwrap().bytes(), &vec![1; 200]);
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Newtype(i128);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pair(u128, Text);

#[derive(Clone, Debug, PartialEq, PartialOrd, Eq, Ord, Serialize, Deserialize)]
enum Variant {
    Unit,
    Newtype(Option<i64>),
    Tuple(u16, String),
    Struct { a: Vec<i32>, b: () },
}

/// Serde's bytes, which a `Vec<u8>` is not.
#[derive(Clone, Debug, PartialEq)]
struct Octets(Vec<u8>);

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Octets, D::Error> {
        struct Owned;
        impl Visitor<'_> for Owned {
            type Value = Octets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Octets, E> {
                Ok(Octets(bytes.to_vec()))
            }
        }
        from.deserialize_byte_buf(Owned)
    }
}

/// Text that is written through `Display`, and read where it stands.
#[derive(Clone, Debug, PartialEq)]
struct Text(String);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        let borrowed = <&'de str>::deserialize(from)?;
        Ok(Text(borrowed.to_owned()))
    }
}

/// Bytes that are read where they stand.
#[derive(Clone, Debug, PartialEq)]
struct Slice(Vec<u8>);

impl Serialize for Slice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!serializer.is_human_readable());
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Slice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Slice, D::Error> {
        if from.is_human_readable() {
            return Err(D::Error::custom("said to be for people"));
        }
        Ok(Slice(<&'de [u8]>::deserialize(from)?.to_vec()))
    }
}

/// Every type that serde knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Every {
    signed: (i8, i16, i32, i64, i128),
    unsigned: (u8, u16, u32, u64, u128),
    others: (bool, char, f32, f64),
    text: String,
    borrowed: Text,
    octets: Octets,
    slice: Slice,
    unit: (),
    none: Unit,
    only: Newtype,
    pair: Pair,
    option: Option<Option<u8>>,
    array: [u16; 3],
    list: Vec<(u8, Option<String>)>,
    map: BTreeMap<Variant, BTreeMap<String, i8>>,
    variants: Vec<Variant>,
    result: Result<u8, String>,
    address: IpAddr,
    within: Option<Box<Every>>,
}

fn variant() -> impl Strategy<Value = Variant> {
    prop_oneof![
        Just(Variant::Unit),
        any::<Option<i64>>().prop_map(Variant::Newtype),
        any::<(u16, String)>().prop_map(|(number, text)| Variant::Tuple(number, text)),
        any::<Vec<i32>>().prop_map(|a| Variant::Struct { a, b: () }),
    ]
}

/// One that holds no other of its kind.
fn flat() -> impl Strategy<Value = Every> {
    type Numbers = ((i8, i16, i32, i64, i128), (u8, u16, u32, u64, u128), (bool, char, f32, f64), [u16; 3]);
    type Texts = (String, String, Vec<u8>, Vec<u8>);
    type Parts = (Option<Option<u8>>, Vec<(u8, Option<String>)>, Result<u8, String>, IpAddr);
    let maps = prop::collection::btree_map(variant(), any::<BTreeMap<String, i8>>(), 0..4);
    let variants = prop::collection::vec(variant(), 0..6);
    (any::<Numbers>(), any::<Texts>(), any::<Parts>(), maps, variants).prop_map(
        |((signed, unsigned, others, array), (text, borrowed, octets, slice), parts, map, variants)| {
            let (option, list, result, address) = parts;
            Every {
                signed,
                unsigned,
                others,
                only: Newtype(signed.4),
                pair: Pair(unsigned.4, Text(text.clone())),
                text,
                borrowed: Text(borrowed),
                octets: Octets(octets),
                slice: Slice(slice),
                unit: (),
                none: Unit,
                option,
                array,
                list,
                map,
                variants,
                result,
                address,
                within: None,
            }
        },
    )
}

fn every() -> impl Strategy<Value = Every> {
    prop::collection::vec(flat(), 1..4).prop_map(|all| {
        let nest = |within: Option<Box<Every>>, outer: Every| Some(Box::new(Every { within, ..outer }));
        *all.into_iter().fold(None, nest).expect("one at least")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_type_is_written_and_read_as_by_postcard(value in every(), at: prop::sample::Index, byte: u8) {
        let bytes = Postcard::encode(&value).unwrap();
        prop_assert_eq!(&bytes[..], &postcard::to_stdvec(&value).unwrap()[..]);
        let back: Every = Postcard::decode(&bytes).unwrap();
        prop_assert_eq!(back, value);
        // Damaged, cut or with something behind, it is what postcard says of it.
        let mut damaged = bytes.to_vec();
        damaged[at.index(bytes.len())] = byte;
        for bytes in [damaged, bytes[..at.index(bytes.len())].to_vec(), [&bytes[..], &[byte]].concat()] {
            let ours: Result<Every, String> = Postcard::decode(&Bytes::from(bytes.clone())).map_err(|fault| fault.to_string());
            let theirs: Result<Every, String> = match postcard::take_from_bytes::<Every>(&bytes) {
                Ok((value, [])) => Ok(value),
                Ok((_, rest)) => Err(format!("{} bytes stand behind the value", rest.len())),
                Err(error) => Err(error.to_string()),
            };
            // By what is printed, since a damaged float may be none that equals itself.
            prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        }
    }
}
