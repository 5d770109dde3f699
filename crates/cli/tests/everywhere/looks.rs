//! `larder inspect`, `larder ls` and `larder demo`.

use serde_json::{Value, json};

use crate::Place;
use crate::common::finish;

/// What an inspection of a structure must tell, beside what every one must.
struct Told {
    /// The end of its name.
    name: &'static str,
    kind: &'static str,
    shards: u64,
    elements: u64,
    /// Told as `parameters`.
    parameter: (&'static str, &'static str),
    /// Makes a part of it stale, and changes the elements by so many.
    spoil: &'static str,
    change: i64,
}

const TOLD: &[Told] = &[
    Told {
        name: "NAME.steps",
        kind: "array",
        shards: 3,
        elements: 4,
        parameter: ("elements are spread by", "XXH3-64"),
        spoil: "array remove NAME.steps a",
        change: -1,
    },
    Told {
        name: "NAME.prices",
        kind: "table",
        shards: 2,
        elements: 3,
        parameter: ("lives", "no"),
        spoil: "table remove NAME.prices a",
        change: -1,
    },
    Told {
        name: "NAME.jobs",
        kind: "queue",
        shards: 1,
        elements: 3,
        parameter: ("bytes at most", "1073741824"),
        spoil: "queue pop NAME.jobs",
        change: -1,
    },
    Told {
        name: "NAME.undo",
        kind: "stack",
        shards: 1,
        elements: 3,
        parameter: ("bytes at most", "1073741824"),
        spoil: "stack pop NAME.undo",
        change: -1,
    },
    Told {
        name: "NAME.tags",
        kind: "set",
        shards: 2,
        elements: 3,
        parameter: ("members are spread by", "XXH3-64"),
        spoil: "set remove NAME.tags a",
        change: -1,
    },
];

fn make(place: &Place) {
    for line in [
        "array push NAME.steps a b c d --shards 3",
        "table put NAME.prices a 1 --shards 2",
        "table put NAME.prices b 2",
        "table put NAME.prices c 3",
        "queue push NAME.jobs a b c",
        "stack push NAME.undo a b c",
        "set add NAME.tags a b c --shards 2",
        "log put NAME.audit started",
        "visitors hit NAME.site --period 5m",
        "cache get NAME.pages k --ttl 5m --else echo v",
        "counter add NAME.hits",
        "counter add NAME.quick --fast",
        "lock run NAME.nightly -- true",
    ] {
        place.on(line).exits(0);
    }
}

fn look(place: &Place, name: &str) -> Value {
    place.on(&format!("--json inspect {name}")).json()
}

fn number(found: &Value, field: &str) -> u64 {
    found[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {found}"))
}

pub(crate) fn inspect(place: &Place) {
    place.on("inspect NAME").fails(3, "absent");
    make(place);
    for told in TOLD {
        let before = look(place, told.name);
        all_of_it(place, told, &before);
        place.on(told.spoil).exits(0);
        let after = look(place, told.name);
        let elements = told.elements.saturating_add_signed(told.change);
        assert_eq!(after["elements"], elements, "{after}");
        assert!(number(&after, "stale_bytes") > number(&before, "stale_bytes"), "{before}, then {after}");
        assert_eq!(after["generation"], before["generation"]);
    }
    for (name, kind) in [("audit", "log"), ("site", "visitors")] {
        let found = look(place, &format!("NAME.{name}"));
        every_one(place, &found, kind);
        let weighed = number(&found, "live_bytes") + number(&found, "stale_bytes");
        assert!(weighed > 20 && weighed < number(&found, "bytes"), "{found}");
    }
    for (name, kind) in [("pages", "cache"), ("hits", "counter"), ("quick", "fast counter"), ("nightly", "lock")] {
        every_one(place, &look(place, &format!("NAME.{name}")), kind);
    }
}

/// All that the inspection of one that holds elements tells, in both forms.
fn all_of_it(place: &Place, told: &Told, found: &Value) {
    every_one(place, found, told.kind);
    assert_eq!((number(found, "shards"), number(found, "elements")), (told.shards, told.elements), "{found}");
    let (parameter, value) = told.parameter;
    assert_eq!(found["parameters"][parameter], value, "{found}");
    // What is neither is the manifest, and what else is no data.
    let weighed = number(found, "live_bytes") + number(found, "stale_bytes");
    assert!(number(found, "live_bytes") > 0 && weighed < number(found, "bytes"), "{found}");
    let plain = place.on(&format!("inspect {}", told.name)).exits(0);
    let said: Vec<&str> = plain.lines().collect();
    for field in ["layout", "shards", "copies", "keys", "missing", "unread", "bytes", "live_bytes", "stale_bytes"] {
        assert!(said.contains(&format!("{field} {}", found[field]).as_str()), "no {field} as in {found}: {plain}");
    }
    for field in ["kind", "generation", "guarantee", "store"] {
        assert!(said.contains(&format!("{field} {}", found[field].as_str().unwrap()).as_str()), "no {field}: {plain}");
    }
    assert!(said.contains(&format!("parameter {parameter}: {value}").as_str()), "{plain}");
}

/// What the inspection of each tells.
fn every_one(place: &Place, found: &Value, kind: &str) {
    let layout = match kind {
        "queue" | "stack" => 5,
        _ if found["parameters"]["kept in"] == "a native bit field" => 3,
        _ => 1,
    };
    assert_eq!((&found["kind"], number(found, "layout")), (&json!(kind), layout), "{found}");
    assert_eq!((number(found, "missing"), number(found, "unread")), (0, 0), "{found}");
    assert!(number(found, "keys") > number(found, "shards") && number(found, "bytes") > 16, "{found}");
    let generation = found["generation"].as_str().unwrap();
    assert_eq!(u64::from_str_radix(generation, 16).map(|it| format!("{it:016x}")).as_deref(), Ok(generation));
    assert!(found["name"].as_str().unwrap().starts_with(&place.name), "{found}");
    assert!(found["store"].as_str().unwrap().contains(place.store), "{found}");
    assert!(found["guarantee"].as_str().unwrap().contains(place.end), "{found}");
    assert!(found["warnings"].is_array(), "{found}");
}

pub(crate) fn ls(place: &Place) {
    let mine = |line: &str| -> Vec<String> {
        let listed = place.on(line).exits(0);
        let names = listed.lines().filter_map(|line| line.split_once('\t'));
        let mine = names.filter_map(|(kind, name)| Some((kind, name.strip_prefix(&place.name)?)));
        mine.map(|(kind, name)| format!("{kind} {name}")).collect()
    };
    // A folder becomes a store with whatever is asked of a structure, and not with `ls`.
    place.on("counter get NAME.hits").exits(3);
    assert_eq!(mine("ls"), [""; 0]);
    make(place);
    let all = [
        "log .audit",
        "counter .hits",
        "queue .jobs",
        "lock .nightly",
        "cache .pages",
        "table .prices",
        "fast counter .quick",
        "visitors .site",
        "array .steps",
        "set .tags",
        "stack .undo",
    ];
    assert_eq!(mine("ls"), all);
    assert_eq!(mine("ls --timeout 30s --kind table"), ["table .prices"]);
    let listed = place.on("--json ls --kind array").exits(0);
    let arrays = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let arrays: Vec<Value> = arrays.filter(|found| found["name"] == format!("{}.steps", place.name)).collect();
    let [array] = &arrays[..] else { panic!("{listed}") };
    assert_eq!((&array["kind"], &array["layout"], &array["shards"]), (&json!("array"), &json!(1), &json!(3)));
    assert_eq!(array["generation"], look(place, "NAME.steps")["generation"]);
    place.on("drop NAME.steps").exits(0);
    assert_eq!(mine("ls").len(), all.len() - 1);
    assert!(!mine("ls").contains(&"array .steps".to_owned()));
}

/// On a store that carries all structures, every total is right, and nothing is left behind.
pub(crate) fn demo(place: &Place) {
    let done = finish(&mut place.larder("--json demo --ops 200 --workers 4", [""; 0]));
    done.exits(0);
    let rows: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 17);
    for row in &rows {
        assert_eq!((row["operations"].as_u64(), row["ok"].as_bool()), (Some(200), Some(true)), "{row}");
        assert!(row["off"].is_null() && row["unsupported"].is_null(), "{row}");
        assert!(row["round_trips_per_operation"].as_f64() > Some(0.0), "{row}");
        assert!(row["bytes_per_element"].as_f64() > Some(0.0), "{row}");
    }
    let left = place.on("ls").exits(0);
    // On a store that others use, a demo of theirs may be under way.
    let is_shared = place.store.starts_with("cluster");
    assert!(is_shared || !left.contains("demo-"), "{left}");
}
