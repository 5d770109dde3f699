//! Items against a plain struct: every shape, every way from one shape to another. This is where the unsafe code is, so run them
//! under valgrind, too, after a change of it:
//!
//! ```text
//! valgrind --error-exitcode=9 --leak-check=full target/debug/deps/larder_store_memory-<hash> --test-threads=1 item::
//! ```

use super::*;
use proptest::prelude::*;

/// What an item should hold.
#[derive(Clone, Debug)]
struct Plain {
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    expiry_ms: Option<u64>,
    cas: u64,
    marks: Marks,
    accessed_s: Option<u32>,
}

impl Plain {
    fn parts(&self) -> Parts<'_> {
        let (left, right) = self.value.split_at(self.value.len() / 3);
        Parts {
            key: &self.key,
            value: [left, right],
            flags: self.flags,
            expiry_ms: self.expiry_ms,
            cas: self.cas,
            marks: self.marks,
            accessed_s: self.accessed_s,
            grown: false,
        }
    }

    #[track_caller]
    fn check(&self, item: &Item) {
        assert_eq!(item.key(), self.key);
        assert_eq!(item.value(), self.value);
        assert_eq!((item.flags(), item.expiry_ms(), item.cas()), (self.flags, self.expiry_ms, self.cas));
        assert_eq!((item.marks(), item.accessed_s()), (self.marks, self.accessed_s));
        assert!(item.has_key(&self.key));
        let mut other = self.key.clone();
        other[0] ^= 1;
        assert!(!item.has_key(&other) && !item.has_key(&self.key[1..]));
        assert!(item.class_bytes() >= self.key.len() + self.value.len() + HEADER_BYTES + 8);
    }
}

const PLAIN: Plain = Plain {
    key: Vec::new(),
    value: Vec::new(),
    flags: 0,
    expiry_ms: None,
    cas: 0,
    marks: Marks::empty(),
    accessed_s: None,
};

/// Bytes that differ from their neighbours and between calls, so that a byte moved to the wrong place shows.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 17 + 7) as u8).collect()
}

/// Every combination of flags and expiry, with the extremes of each.
fn extras() -> impl Iterator<Item = (u32, Option<u64>)> {
    let expiries = [None, Some(0), Some(1), Some(EXPIRY_MS_MAX)];
    [0, 1, u32::MAX].into_iter().flat_map(move |flags| expiries.map(|expiry_ms| (flags, expiry_ms)))
}

#[test]
fn every_key_length_and_value_width_is_kept() {
    for key_bytes in (1..=250).step_by(if cfg!(debug_assertions) { 9 } else { 1 }).chain([250]) {
        for value_bytes in [0, 1, 31, 254, 255, 256, 257, 65_535, 65_536] {
            for (flags, expiry_ms) in extras() {
                let cas = (1 << CAS_BITS) - 1 - key_bytes as u64;
                let plain =
                    Plain { key: bytes(key_bytes, 1), value: bytes(value_bytes, 2), flags, expiry_ms, cas, ..PLAIN };
                plain.check(&Item::new(&plain.parts()).unwrap());
            }
        }
    }
}

#[test]
fn every_length_around_the_class_borders_grows_and_shrinks() {
    for from in (0..600).chain(3_980..4_200) {
        let mut plain =
            Plain { key: bytes(9, 1), value: bytes(from, 2), flags: 7, expiry_ms: Some(5), cas: 1, ..PLAIN };
        let mut item = Item::new(&plain.parts()).unwrap();
        for more in [0, 1, 7, 16, 200, 256, 1] {
            let tail = bytes(more, from);
            item.append(&tail, 2).unwrap();
            plain.value.extend(&tail);
            item.prepend(&tail, 3).unwrap();
            plain.value.splice(0..0, tail);
            plain.cas = 3;
            plain.check(&item);
        }
        for to in [from, 0, from / 2, 3] {
            plain.value = bytes(to, 5);
            plain.cas += 1;
            item.set_value(&plain.value, plain.cas).unwrap();
            plain.check(&item);
        }
    }
}

#[test]
fn large_items_move_by_realloc_and_keep_their_bytes() {
    let mut plain = Plain { key: bytes(250, 1), value: bytes(10, 2), flags: 0, expiry_ms: None, cas: 1, ..PLAIN };
    let mut item = Item::new(&plain.parts()).unwrap();
    let tail = bytes(5_003, 3);
    while plain.value.len() < 400_000 {
        item.append(&tail, 1).unwrap();
        plain.value.extend(&tail);
    }
    plain.check(&item);
    item.prepend(&tail, 1).unwrap();
    plain.value.splice(0..0, tail);
    plain.check(&item);
}

#[test]
fn classes_hold_their_bytes_waste_little_and_never_shrink_as_bytes_grow() {
    for grown in [false, true] {
        let mut last = 0;
        for used in (9..70_000).chain((1 << 20)..(1 << 20) + 5_000) {
            let class = class_bytes(used, grown);
            assert!(
                class >= used + malloc_bytes(used) && class.is_multiple_of(16) && class >= last,
                "{used} {class} {last}"
            );
            let waste_max = if grown { (used / 4).max(48) } else { used / 8 } + 15;
            assert!(class - used - malloc_bytes(used) <= waste_max, "{used} {class}");
            last = class;
        }
    }
    assert_eq!(class_bytes(HEADER_BYTES + 16 + 32, false), 64, "the case that the layout is made for");
}

#[test]
fn appends_move_an_item_a_logarithmic_number_of_times() {
    let plain = Plain { key: bytes(16, 1), value: Vec::new(), flags: 0, expiry_ms: None, cas: 1, ..PLAIN };
    let mut item = Item::new(&plain.parts()).unwrap();
    let mut moves = 0;
    for _ in 0..100_000 {
        let class = item.class_bytes();
        let expected = item.class_joined(8, 1);
        item.append(b"12345678", 1).unwrap();
        assert_eq!(item.class_bytes(), expected);
        moves += usize::from(class != expected);
    }
    assert_eq!(item.value().len(), 800_000);
    assert!(moves < 100, "{moves}");
}

#[test]
fn the_referenced_bit_is_apart_from_everything_else() {
    let plain = Plain { key: bytes(3, 1), value: bytes(300, 2), flags: 9, expiry_ms: Some(77), cas: 5, ..PLAIN };
    let mut item = Item::new(&plain.parts()).unwrap();
    assert!(!item.is_referenced());
    item.set_referenced(true);
    assert!(item.is_referenced());
    plain.check(&item);
    item.set_referenced(false);
    assert!(!item.is_referenced());
    plain.check(&item);
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Prepend(usize),
    SetValue(usize),
    SetExpiry(Option<u64>),
    Rewrite(usize, u32, Option<u64>),
    Reference(bool),
    Beside(Option<u64>, u8),
    Access(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![0..40usize, 200..300usize, 0..5_000usize];
    let expiry = || prop_oneof![Just(None), (0..=EXPIRY_MS_MAX).prop_map(Some)];
    prop_oneof![
        len().prop_map(Step::Append),
        len().prop_map(Step::Prepend),
        len().prop_map(Step::SetValue),
        expiry().prop_map(Step::SetExpiry),
        (len(), prop_oneof![Just(0), any::<u32>()], expiry())
            .prop_map(|(len, flags, ms)| Step::Rewrite(len, flags, ms)),
        any::<bool>().prop_map(Step::Reference),
        (expiry(), 0..8u8).prop_map(|(ms, marks)| Step::Beside(ms, marks)),
        any::<u32>().prop_map(Step::Access),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_keeps_the_item(
        key_bytes in 1..=250usize,
        timed in any::<bool>(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut plain = Plain { key: bytes(key_bytes, 1), accessed_s: timed.then_some(7), ..PLAIN };
        let mut item = Item::new(&plain.parts()).unwrap();
        for (at, step) in steps.into_iter().enumerate() {
            // Tokens of callers' own come and go, and take a field then.
            let cas = if at % 3 == 0 { at as u64 + 1 } else { u64::MAX - at as u64 };
            let promised = match step {
                Step::Append(len) => {
                    let (more, class) = (bytes(len, at), item.class_joined(len, cas));
                    item.append(&more, cas).unwrap();
                    plain = Plain { value: [&plain.value[..], &more].concat(), cas, marks: Marks::empty(), ..plain };
                    class
                }
                Step::Prepend(len) => {
                    let (more, class) = (bytes(len, at), item.class_joined(len, cas));
                    item.prepend(&more, cas).unwrap();
                    plain = Plain { value: [&more, &plain.value[..]].concat(), cas, marks: Marks::empty(), ..plain };
                    class
                }
                Step::SetValue(len) => {
                    let class = item.class_with_value(len, cas);
                    plain = Plain { value: bytes(len, at), cas, ..plain };
                    item.set_value(&plain.value, cas).unwrap();
                    class
                }
                Step::SetExpiry(expiry_ms) => {
                    let class = item.class_with_expiry(expiry_ms);
                    plain.expiry_ms = expiry_ms;
                    item.set_expiry(expiry_ms).unwrap();
                    class
                }
                Step::Rewrite(len, flags, expiry_ms) => {
                    plain = Plain { value: bytes(len, at), flags, expiry_ms, cas, marks: Marks::STALE, ..plain };
                    item.rewrite(&plain.parts()).unwrap();
                    plain.parts().class_bytes()
                }
                Step::Beside(expiry_ms, marks) => {
                    plain = Plain { expiry_ms, cas, marks: Marks::from_bits_truncate(marks), ..plain };
                    let class = item.class_beside(expiry_ms, cas);
                    item.set_beside(expiry_ms, cas, plain.marks).unwrap();
                    class
                }
                Step::Access(seconds) => {
                    plain.accessed_s = plain.accessed_s.map(|_| seconds);
                    item.set_accessed_s(seconds);
                    item.class_bytes()
                }
                Step::Reference(on) => {
                    item.set_referenced(on);
                    prop_assert_eq!(item.is_referenced(), on);
                    item.class_bytes()
                }
            };
            prop_assert_eq!(item.class_bytes(), promised);
            plain.check(&item);
        }
    }
}
