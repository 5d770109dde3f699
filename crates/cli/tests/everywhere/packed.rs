//! Records and lookup tables, so many that they stand on all servers there are.

use serde_json::json;

use crate::Place;

const RECORDS: u64 = 40_000;
const PLACES: [&str; 3] = ["CA-ON", "CA-QC", "US-NY"];
const ROWS: u64 = 20_000;

fn all<T: std::fmt::Display>(numbers: impl Iterator<Item = u64>, line: impl Fn(u64) -> T) -> String {
    numbers.map(|number| format!("{}\n", line(number))).collect()
}

pub(crate) fn records(place: &Place) {
    let on = |line: &str| place.on(&format!("records {line}"));
    let with = |line: &str, input: &str| place.on_with_input(&format!("records {line}"), input.as_bytes());
    let makes = format!("`larder records define {} FIELD…` makes them", place.name);
    for line in ["set NAME 1 visits=1", "get NAME 1", "max NAME", "aggregate NAME", "bits NAME 1"] {
        let done = on(line);
        done.fails(3, "absent");
        assert!(line.starts_with("bits") || done.stderr.contains(&makes), "{line}: {}", done.stderr);
    }
    on("define NAME place:CA-ON|CA-QC|US-NY visits:u7 paid:bit delta:i5 tag:bytes2").exits(0);
    on("define NAME visits:u8").fails(8, "not of visits:u8");
    let line = |id: u64| format!("{id} place={} visits={} paid={}", PLACES[id as usize % 3], id % 128, id % 2);
    with("set NAME -", &all(0..RECORDS, line)).exits(0);
    assert_eq!(on("max NAME").exits(0), format!("{}\n", RECORDS - 1));
    let counts = [13_334, 13_333, 13_333].iter().zip(PLACES).map(|(count, place)| format!("{count}\t{place}\n"));
    assert_eq!(on("aggregate NAME place").exits(0), counts.collect::<String>());
    let ids = all(0..3_000, |id| id * 13);
    assert_eq!(with("aggregate NAME paid --ids -", &ids).exits(0), "1500\t0\n1500\t1\n");
    // In the order that they are asked in, from all over.
    let visits = with("get NAME - --field visits", &all((0..3_000).rev(), |id| id * 13)).exits(0);
    assert!(visits == all((0..3_000).rev(), |id| id * 13 % 128), "visits are not those of their ids");
    on("set NAME 39999 delta=-16 tag=00ff").exits(0);
    let fields = json!({"place": "CA-ON", "visits": 63, "paid": true, "delta": -16, "tag": "00ff"});
    assert_eq!(on("get NAME 39999 --json").json(), json!({"id": 39_999, "fields": fields}));
    with("set NAME -", "50000 visits=9\n50001 visits=128\n").fails(2, "line 2");
    assert_eq!(on("max NAME").exits(0), format!("{}\n", RECORDS - 1), "nothing of it is written");
    with("bits NAME.bits - --on", &all(0..RECORDS, |id| id * 3)).exits(0);
    assert_eq!(on("bits NAME.bits").exits(0), format!("{RECORDS}\n"));
    assert_eq!(on("bits NAME.bits 3 4 119997").exits(1), "1\n0\n1\n");
    for name in ["NAME", "NAME.bits"] {
        assert_eq!(place.on(&format!("drop {name}")).exits(0), "packed records\n");
    }
    on("get NAME 1").fails(3, "absent");
}

pub(crate) fn lookup(place: &Place) {
    let on = |line: &str| place.on(&format!("lookup {line}"));
    let with = |line: &str, input: &str| place.on_with_input(&format!("lookup {line}"), input.as_bytes());
    for line in ["get NAME 1", "stat NAME"] {
        on(line).fails(3, &format!("larder lookup build {} FILE", place.name));
    }
    // Networks of 256 addresses, with one between them that nobody has.
    let network = |n: u64| format!("10.{}.{}", n / 128, n % 128 * 2);
    let row = |n: u64| format!("{0}.0,{0}.255,city {n},{1}", network(n), ["SE", "NO"][(n % 2) as usize]);
    let csv = format!("start,end,city,country\n{}", all(0..ROWS, row));
    let built = with("build NAME - --json", &csv).json();
    assert_eq!((&built["rows"], &built["version"]), (&json!(ROWS), &json!(1)), "{built}");
    assert!(built["blocks"].as_u64() > Some(20), "{built}");
    let asked = all((0..ROWS).rev(), |n| format!("{}.77", network(n)));
    let cities = with("get NAME - --field city", &asked).exits(0);
    assert!(cities == all((0..ROWS).rev(), |n| format!("city {n}")), "cities are not those of their addresses");
    assert_eq!(on("get NAME 10.0.1.0 10.0.2.255").exits(1), "10.0.1.0\n10.0.2.255\tcity=city 1\tcountry=NO\n");
    // Of what is broken nothing is built, and the version before it stands.
    with("build NAME -", &format!("{csv}10.0.0.0,10.0.0.1,x,y\n")).fails(2, "row 20001");
    assert_eq!(on("stat NAME").exits(0).lines().take(2).collect::<Vec<_>>(), ["version\t1", "rows\t20000"]);
    with("build NAME - --header id,name", "7,seven\n9,nine\n").exits(0);
    assert_eq!(on("get NAME 7 8 9").exits(1), "7\tname=seven\n8\n9\tname=nine\n");
    assert_eq!(on("stat NAME").exits(0).lines().next(), Some("version\t2"));
    assert_eq!(place.on("drop NAME").exits(0), "packed table\n");
    on("get NAME 7").fails(3, "absent");
}
