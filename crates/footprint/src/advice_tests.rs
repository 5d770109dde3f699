//! Advice over groups whose numbers are known.

use larder_core::Encodings;
use larder_core::survey::{DataType, Measured, Part, Shape, SlabClass, Vitals};
use larder_structures::sharded::Dense;
use larder_structures::{Kind, Name};

use crate::{Act, Advice, Group, Owner, Reason, advise, settings};

const REDIS_7_0: Encodings = Encodings {
    hash_entries_max: 128,
    hash_value_bytes_max: 64,
    set_integers_max: 512,
    set_entries_max: 0,
    set_value_bytes_max: 0,
    sorted_set_entries_max: 128,
    sorted_set_value_bytes_max: 64,
    stream_node_entries_max: 100,
    stream_node_bytes_max: 4_096,
};

fn redis(limits: Encodings) -> Vitals {
    let mut vitals = Vitals::of("cache:6379", "redis");
    vitals.encodings = Some(limits);
    vitals
}

fn shape(name: &str, value: Option<&str>) -> Shape {
    Shape { name: Part::of(name.as_bytes()), value: value.map(|value| Part::of(value.as_bytes())) }
}

fn foreign(pattern: &str, data_type: DataType, encoding: &str, keys: u64, measured: &[Measured]) -> Group {
    let mut group = Group::new(Owner::Foreign(pattern.to_owned()), data_type, encoding, keys);
    group.key_bytes = 16.0;
    group.measured(measured.iter().map(|one| (b"user:1".to_vec(), one.clone())).collect(), Some(&REDIS_7_0))
}

fn of(elements: u64, bytes: u64, shapes: &[Shape]) -> Measured {
    Measured { bytes, elements, shapes: shapes.to_vec(), ..Measured::default() }
}

fn act(advice: &[Advice], has: fn(&Act) -> bool) -> Option<&Advice> {
    advice.iter().find(|one| has(&one.act))
}

fn lines(advice: &[Advice]) -> Vec<String> {
    settings(advice).iter().map(ToString::to_string).collect()
}

#[test]
fn limits_are_raised_to_what_was_measured_and_no_further_than_is_quick() {
    let hash = |elements| of(elements, elements * 80, &[shape("field-1", Some("value-1"))]);
    let group = foreign("user:*", DataType::Hash, "hashtable", 1_000, &[hash(130), hash(500)]);
    assert_eq!(lines(&advise(&[group], &[redis(REDIS_7_0)])), ["hash-max-listpack-entries 512"]);

    // 2,000 fields would cost 4 us an operation: they are spread over shards of 64.
    let group = foreign("user:*", DataType::Hash, "hashtable", 1_000, &[hash(2_000)]);
    let advice = advise(&[group], &[redis(REDIS_7_0)]);
    assert_eq!(lines(&advice), Vec::<String>::new());
    assert!(matches!(advice[0].act, Act::Shard { elements: 64, shards: 32_000, .. }), "{advice:?}");
    // 18 bytes a field packed, and less than 2 for its share of a key.
    let each = 80.0 - advice[0].saves_bytes / 2_000_000.0;
    assert!((18.0..24.0).contains(&each), "{each}");
}

#[test]
fn what_is_too_long_and_too_many_needs_both_limits() {
    let long = "x".repeat(100);
    let hash = of(200, 60_000, &[shape("field", Some(&long))]);
    let group = foreign("page:*", DataType::Hash, "hashtable", 10, &[hash]);
    let setting = "hash-max-listpack-value";
    assert!(group.reasons.contains(&(Reason::TooLong { setting, limit: 64, longest: 100 }, 1.0)));
    let advice = advise(&[group], &[redis(REDIS_7_0)]);
    assert_eq!(lines(&advice), ["hash-max-listpack-entries 256", "hash-max-listpack-value 128"]);
}

#[test]
fn what_is_within_the_limits_is_to_be_written_anew() {
    let hash = of(20, 1_800, &[shape("field", Some("value"))]);
    let group = foreign("user:*", DataType::Hash, "hashtable", 10, &[hash]);
    let advice = advise(&[group], &[redis(REDIS_7_0)]);
    assert_eq!((advice.len(), &advice[0].act), (1, &Act::Rewrite));
}

#[test]
fn sets_of_integers_may_be_longer_and_other_sets_need_another_server() {
    let integers = of(3_000, 150_000, &[shape("123456", None)]);
    let group = foreign("followers:*", DataType::Set, "hashtable", 100, &[integers]);
    let advice = advise(&[group], &[redis(REDIS_7_0)]);
    assert_eq!(lines(&advice), ["set-max-intset-entries 4096"]);
    let each = 50.0 - advice[0].saves_bytes / 300_000.0;
    assert!((4.0..6.0).contains(&each), "{each}");

    let texts = of(100_000, 9_000_000, &[shape("a-longer-name", None)]);
    let group = foreign("seen:*", DataType::Set, "hashtable", 1, &[texts]);
    assert_eq!(group.reasons, [(Reason::NotIntegers, 1.0)]);
    let advice = advise(&[group], &[redis(REDIS_7_0)]);
    assert!(matches!(&advice[0].act, Act::Shard { by, .. } if by.starts_with("larder unique")), "{advice:?}");
    assert_eq!(lines(&advice), Vec::<String>::new());
}

#[test]
fn a_sharded_hash_whose_shards_fell_out_is_resharded() {
    let hash = of(2_001, 160_000, &[shape("field-1", Some("value-1"))]);
    let name = Name::new("cities").unwrap();
    let mut group =
        Group::new(Owner::Structure { name: name.clone(), is_left_over: false }, DataType::Hash, "hashtable", 64);
    group.kind = Some(Kind::ShardedHash);
    let group = group.measured(vec![(Vec::new(), hash)], Some(&REDIS_7_0));
    let advice = advise(&[group], &[redis(REDIS_7_0)]);
    assert_eq!(advice[0].act, Act::Reshard { name, shards: 2_000 });
}

/// By a hash they are spread over all shards anew: those that are packed yet count, too.
#[test]
fn a_structure_of_which_a_part_fell_out_is_spread_over_more_shards_than_it_has() {
    let integers = |encoding, keys, elements, bytes| {
        let owner = Owner::Structure { name: Name::new("seen").unwrap(), is_left_over: false };
        let mut group = Group::new(owner, DataType::Set, encoding, keys);
        group.kind = Some(Kind::ShardedSet);
        group.measured(vec![(Vec::new(), of(elements, bytes, &[shape("123456", None)]))], Some(&REDIS_7_0))
    };
    let [packed, out] = [integers("intset", 925, 476, 2_000), integers("hashtable", 75, 521, 26_000)];
    let advice = advise(&[packed.clone(), out.clone()], &[redis(REDIS_7_0)]);
    let told = act(&advice, |act| matches!(act, Act::Reshard { .. })).unwrap_or_else(|| panic!("{advice:?}"));
    let Act::Reshard { shards, .. } = told.act else { panic!("{told:?}") };
    let each = (925 * 475 + 75 * 520) / shards;
    assert!((400..=430).contains(&each), "{each} in each of {shards}");
    assert!((1_500_000.0..1_900_000.0).contains(&told.saves_bytes), "{told:?}");
    // Of those that are packed nothing is known: nor is over how many.
    let unknown = Group { measured: Vec::new(), ..packed };
    assert!(!advise(&[unknown, out], &[redis(REDIS_7_0)]).iter().any(|one| matches!(one.act, Act::Reshard { .. })));
}

#[test]
fn dense_numbers_are_cut_into_smaller_shards_and_never_over_more_of_the_same_size() {
    let structure = |data_type, kind, encoding, keys, elements, bytes, shape: Shape| {
        let name = Name::new("paid").unwrap();
        let mut group = Group::new(Owner::Structure { name, is_left_over: false }, data_type, encoding, keys);
        (group.kind, group.dense) = (Some(kind), Some(Dense { shards: 100, per_shard: 1_000 }));
        group.measured(vec![(Vec::new(), of(elements, bytes, &[shape]))], Some(&REDIS_7_0))
    };
    let set = |keys, elements, bytes, encoding| {
        structure(DataType::Set, Kind::ShardedSet, encoding, keys, elements, bytes, shape("500", None))
    };
    let advised = |groups: &[Group]| -> Vec<Act> {
        let advice = advise(groups, &[redis(REDIS_7_0)]);
        advice.into_iter().map(|one| one.act).filter(|act| !matches!(act, Act::Settings(_))).collect()
    };
    let name = Name::new("paid").unwrap();
    let act = Act::ReshardDense { name: name.clone(), per_shard: 509, shards: 197 };
    assert_eq!(act.to_string(), "larder reshard \"paid\" --dense 509");
    assert_eq!(advised(&[set(100, 1_001, 48_000, "hashtable")]), std::slice::from_ref(&act));
    // What is gained at one is lost at 99 that are all but empty.
    let thin = set(99, 2, 120, "intset");
    assert_eq!(advised(&[set(1, 600, 8_000, "hashtable"), thin.clone()]), []);
    assert_eq!(advised(&[set(1, 1_001, 48_000, "hashtable"), thin]), [act]);
    // Those were over a limit before, and are not: to write them anew is enough.
    assert!(!advised(&[set(100, 400, 20_000, "hashtable")]).iter().any(|act| matches!(act, Act::ReshardDense { .. })));
    let hash = structure(DataType::Hash, Kind::ShardedHash, "hashtable", 100, 1_001, 90_000, shape("500", Some("x")));
    assert_eq!(advised(&[hash]), [Act::ReshardDense { name, per_shard: 64, shards: 1_563 }]);
}

#[test]
fn a_sharded_set_of_texts_is_not_resharded_where_no_shards_would_be_packed() {
    let texts = of(1_000, 48_000, &[shape("a-longer-name", None)]);
    let name = Name::new("seen").unwrap();
    let mut group = Group::new(Owner::Structure { name, is_left_over: false }, DataType::Set, "hashtable", 64);
    group.kind = Some(Kind::ShardedSet);
    let group = group.measured(vec![(Vec::new(), texts)], Some(&REDIS_7_0));
    let is_resharded = |limits| {
        act(&advise(std::slice::from_ref(&group), &[redis(limits)]), |act| matches!(act, Act::Reshard { .. })).is_some()
    };
    assert!(!is_resharded(REDIS_7_0));
    assert!(is_resharded(Encodings { set_entries_max: 128, set_value_bytes_max: 64, ..REDIS_7_0 }));
}

#[test]
fn more_shards_than_a_name_can_have_are_those_of_several() {
    let string = Measured { bytes: 72, elements: 1, value_bytes: Some(8), expires: false, ..Measured::default() };
    let keys = 64 * 65_535;
    let strings = |keys| foreign("user:*", DataType::String, "embstr", keys, std::slice::from_ref(&string));
    let said = |group: Group| advise(&[group], &[redis(REDIS_7_0)])[0].act.to_string();
    assert_eq!(said(strings(keys)), "larder hash: 65535 shards of 64");
    assert_eq!(said(strings(keys + 1)), "larder hash: 65536 shards of 64, over 2 names: one has 65535 at most");

    // A thousand keys that need many shards together need few each; one that needs as many is too large for a name.
    let hash = |elements| of(elements, elements * 80, &[shape("field-1", Some("value-1"))]);
    let hashes = |keys, elements| foreign("user:*", DataType::Hash, "hashtable", keys, &[hash(elements)]);
    assert_eq!(said(hashes(10_000, 640)), "larder hash: 100000 shards of 64");
    assert_eq!(said(hashes(1, 64 * 140_000)), "larder hash: 140000 shards of 64, over 3 names: one has 65535 at most");

    let name = Name::new("cities").unwrap();
    let sharded = |elements| {
        let owner = Owner::Structure { name: name.clone(), is_left_over: false };
        let mut group = Group::new(owner, DataType::Hash, "hashtable", 64);
        group.kind = Some(Kind::ShardedHash);
        group.measured(vec![(Vec::new(), hash(elements))], Some(&REDIS_7_0))
    };
    assert_eq!(said(sharded(64 * 1_000 + 1)), "larder reshard \"cities\" --shards 64000");
    assert_eq!(said(sharded(64 * 1_100 + 1)), "larder hash: 70400 shards of 64, over 2 names: one has 65535 at most");
}

#[test]
fn a_large_sorted_set_is_spread_over_shards_and_a_small_one_has_its_limits_raised() {
    let sorted = |elements| of(elements, elements * 100, &[shape("member-0001", Some("1234.5"))]);
    let group = |elements| foreign("points:*", DataType::SortedSet, "skiplist", 1_000, &[sorted(elements)]);
    let advice = advise(&[group(6_400)], &[redis(REDIS_7_0)]);
    assert_eq!(advice[0].act, Act::Shard { by: "larder top", elements: 64, shards: 100_000, of_a_name: 100 });
    // As design.md has it of a live server: 24.8 bytes, of 11 for the name.
    let each = 100.0 - advice[0].saves_bytes / 6_400_000.0;
    assert!((22.0..27.0).contains(&each), "{each}");
    assert_eq!(lines(&advise(&[group(400)], &[redis(REDIS_7_0)])), ["zset-max-listpack-entries 512"]);
    let mut own = group(6_400);
    own.owner = Owner::Structure { name: Name::new("points").unwrap(), is_left_over: false };
    assert!(advise(&[own], &[redis(REDIS_7_0)]).is_empty(), "no structure keeps one so");
}

#[test]
fn very_many_short_strings_go_into_a_hash_unless_they_have_lives() {
    let string = |expires| Measured { bytes: 72, elements: 1, value_bytes: Some(8), expires, ..Measured::default() };
    let group = |expires| foreign("user:*", DataType::String, "embstr", 100_000, &[string(expires)]);
    let mut vitals = redis(REDIS_7_0);
    vitals.items = Some(100_000);
    let advice = advise(&[group(false)], &[vitals]);
    assert!(matches!(advice[0].act, Act::Shard { elements: 64, shards: 1_563, .. }), "{advice:?}");
    // Beside the key, its place in the table of all keys.
    let each = 72.0 + 8.0 * 131_072.0 / 100_000.0 - advice[0].saves_bytes / 100_000.0;
    assert!((10.0..20.0).contains(&each), "{each}");
    assert!(advise(&[group(true)], &[redis(REDIS_7_0)]).is_empty());
}

#[test]
fn what_saves_next_to_nothing_is_not_said() {
    let small = foreign("few:*", DataType::Hash, "hashtable", 1, &[of(20, 1_800, &[shape("f", Some("v"))])]);
    let large = foreign("list:*", DataType::List, "quicklist", 10, &[of(1_000, 1_000_000, &[])]);
    assert!(advise(&[small, large], &[redis(REDIS_7_0)]).is_empty());
}

fn memcached() -> Vitals {
    let mut vitals = Vitals::of("cache:11211", "memcached 1.6.18");
    vitals.classes =
        vec![SlabClass { id: 1, chunk_bytes: 96, pages: 4, page_chunks: 10_922, used_chunks: 100, evicted: 0 }];
    let known =
        [("growth_factor", "1.25"), ("chunk_size", "48"), ("slab_chunk_max", "524288"), ("item_size_max", "1048576")];
    vitals.settings = known.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    vitals
}

#[test]
fn a_growth_factor_that_fits_is_advised_and_never_one_that_runs_out_of_classes() {
    for size in [160, 310, 960, 6_000, 100_000, 400_000] {
        let mut group = Group::new(Owner::Foreign("page:*".to_owned()), DataType::Item, "item", 10_000);
        group.sizes = [(size, 10_000)].into();
        for one in advise(&[group], &[memcached()]) {
            let Act::Options(options) = &one.act else { panic!("{one:?}") };
            let factor: f64 = options[0].value.parse().unwrap();
            assert!(options[0].name == "-f" && factor >= 1.15, "{one:?}");
            assert!(one.saves_bytes > 0.0);
        }
    }
    // 960 bytes take 1,184 of the chunks of 1.25.
    let mut group = Group::new(Owner::Foreign("page:*".to_owned()), DataType::Item, "item", 10_000);
    group.sizes = [(960, 10_000)].into();
    assert_eq!(advise(&[group], &[memcached()]).len(), 1);
}

#[test]
fn refused_items_and_pages_that_nobody_needs_are_told() {
    let mut vitals = memcached();
    vitals.told.insert("store_too_large".to_owned(), "3".to_owned());
    vitals.settings.insert("slab_automove".to_owned(), "0".to_owned());
    let advice = advise(&[], &[vitals]);
    assert_eq!(lines(&advice), ["-I 2m", "-o slab_reassign,slab_automove=1"]);
    assert!(act(&advice, |act| matches!(act, Act::Options(_))).unwrap().saves_bytes >= 3_000_000.0);
    // Of an empty server none.
    let mut vitals = memcached();
    vitals.classes.clear();
    vitals.settings.insert("slab_automove".to_owned(), "0".to_owned());
    assert!(advise(&[], &[vitals]).is_empty());
}

#[test]
fn of_several_servers_the_largest_item_decides_whatever_its_unit() {
    let limit = |bytes: u64| {
        let mut vitals = memcached();
        vitals.told.insert("store_too_large".to_owned(), "3".to_owned());
        vitals.settings.insert("item_size_max".to_owned(), bytes.to_string());
        vitals
    };
    for (limits, said) in [
        ([786_432, 1_048_576], "-I 2m"),
        ([1_048_576, 786_432], "-I 2m"),
        ([262_144, 786_432], "-I 1536k"),
        ([8_388_608, 1_048_576], "-I 16m"),
        ([1_048_576, 8_388_608], "-I 16m"),
    ] {
        assert_eq!(lines(&advise(&[], &limits.map(limit))), [said], "{limits:?}");
    }
}

#[test]
fn names_whose_manifest_is_gone_are_told_once_each_first_and_not_too_many() {
    let gone = |number: u64, data_type, encoding, keys| {
        Group::new(Owner::Unclaimed(Name::new(format!("n{number:02}")).unwrap()), data_type, encoding, keys)
    };
    let hash = of(20, 1_800, &[shape("field", Some("value"))]);
    let mut groups = vec![foreign("user:*", DataType::Hash, "hashtable", 1_000, &[hash])];
    groups.extend((0..23).map(|number| gone(number, DataType::Set, "intset", 10 + number)));
    groups.push(gone(7, DataType::String, "raw", 100));
    let advice = advise(&groups, &[redis(REDIS_7_0)]);
    assert_eq!(advice.len(), 21, "{advice:?}");
    assert!(advice[..20].iter().all(|one| matches!(one.act, Act::Look { .. })) && advice[20].act == Act::Rewrite);
    assert!(advice[0].why.starts_with("117 keys without a manifest"), "{:?}", advice[0]);
    assert_eq!((advice[0].kept.as_str(), advice[1].why.contains("more")), ("set, intset; string, raw", false));
    assert!(advice[19].why.ends_with("(and 3 more such names)"), "{:?}", advice[19]);
}

#[test]
fn settings_of_several_groups_are_the_largest_of_each() {
    let hash = |elements| of(elements, elements * 80, &[shape("field-1", Some("value-1"))]);
    let groups = [
        foreign("a:*", DataType::Hash, "hashtable", 1_000, &[hash(200)]),
        foreign("b:*", DataType::Hash, "hashtable", 1_000, &[hash(400)]),
    ];
    assert_eq!(lines(&advise(&groups, &[redis(REDIS_7_0)])), ["hash-max-listpack-entries 512"]);
}
