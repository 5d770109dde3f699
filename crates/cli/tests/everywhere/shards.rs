//! What is sharded, by dense numbers.

use serde_json::json;

use crate::Place;

/// How elements are put, read and asked for in a group of verbs, and how one is told.
struct Group {
    verbs: &'static str,
    put: &'static str,
    has: &'static str,
    all: &'static str,
    /// What comes after each number: on the command line, and in a line of standard input or output.
    value: [&'static str; 2],
}

const GROUPS: [Group; 3] = [
    Group { verbs: "hash", put: "set", has: "get", all: "entries NAME", value: [" v", "\tv"] },
    Group { verbs: "sharded-set", put: "add", has: "has", all: "members NAME", value: ["", ""] },
    Group { verbs: "top", put: "set", has: "get", all: "list NAME --all", value: [" 1", "\t1"] },
];

pub(crate) fn dense(place: &Place) {
    for group in &GROUPS {
        let Group { verbs, put, has, all, value: [typed, lined] } = group;
        let on = |line: &str| place.on(&format!("{verbs} {line}"));
        let typed = |numbers: &[&str]| numbers.iter().map(|number| format!(" {number}{typed}")).collect::<String>();
        let lines = |numbers: &[u32]| numbers.iter().map(|number| format!("{number}{lined}\n")).collect::<String>();
        on(&format!("{put} NAME --dense 0{}", typed(&["1"]))).fails(2, "--dense");
        assert_eq!(on(&format!("{put} NAME --dense 4 --shards 2{}", typed(&["0", "5", "7"]))).exits(0), "3\n");
        let told = |range: &str, per_shard: &str, elements: u64| {
            let found = place.on("--json inspect NAME").json();
            let parameters = &found["parameters"];
            let expected = json!(["ranges of dense numbers", range, per_shard]);
            let words = ["elements are spread by", "dense numbers", "dense numbers a shard"];
            assert_eq!(json!(words.map(|word| parameters[word].clone())), expected, "{verbs}: {found}");
            assert_eq!(found["elements"], elements, "{verbs}: {found}");
        };
        told("0 to 7", "4", 3);
        assert!(place.on("inspect NAME").exits(0).contains("parameter dense numbers: 0 to 7\n"), "{verbs}");
        // Nothing of what is refused lands, nor of what is given with it.
        on(&format!("{put} NAME{}", typed(&["1", "8"]))).fails(2, "id 8 is over the range");
        for wrong in ["08", "x", "+1", "18446744073709551616"] {
            on(&format!("{put} NAME{}", typed(&["1", wrong]))).fails(2, "whole numbers from 0");
            on(&format!("{has} NAME {wrong}")).fails(2, "whole numbers from 0");
        }
        on(&format!("{has} NAME -- -1")).fails(2, "whole numbers from 0");
        assert_eq!(
            place.on_with_input(&format!("{verbs} {put} NAME --dense 4 -"), lines(&[5, 6]).as_bytes()).exits(0),
            "1\n"
        );
        assert_eq!(on(all).sorted_lines().concat(), lines(&[0, 5, 6, 7]).replace('\n', "").as_bytes(), "{verbs}");
        place.on("reshard NAME --shards 3").exits(0);
        told("0 to 11", "4", 4);
        assert_eq!(on(&format!("{put} NAME{}", typed(&["11"]))).exits(0), "1\n", "{verbs}: it takes more now");
        place.on("reshard NAME --shards 1").exits(0);
        told("0 to 11", "12", 5);
        assert_eq!(on("remove NAME 5 1").exits(0), "1\n");
        assert_eq!(on(all).sorted_lines().concat(), lines(&[0, 11, 6, 7]).replace('\n', "").as_bytes(), "{verbs}");
        on(&format!("{put} NAME.hashed{}", typed(&["x"]))).exits(0);
        on(&format!("{put} NAME.hashed --dense 4{}", typed(&["1"]))).fails(8, "spreads its elements by hash");
        // As many as come, from standard input, over more shards than one batch of numbers touches.
        let many: Vec<u32> = (0..3_000).collect();
        let made = format!("{verbs} {put} NAME.many --dense 100 --expected 3000 -");
        assert_eq!(place.on_with_input(&made, lines(&many).as_bytes()).exits(0), "3000\n", "{verbs}");
        let stat = place.on(&format!("--json {verbs} stat NAME.many")).json();
        let elements = stat["elements"].as_u64().or(stat["members"].as_u64());
        assert_eq!(
            (elements, &stat["shards"], &stat["largest_shard"]),
            (Some(3_000), &json!(30), &json!(100)),
            "{verbs}"
        );
        for name in ["NAME", "NAME.hashed", "NAME.many"] {
            place.on(&format!("drop {name}")).exits(0);
        }
    }
}
