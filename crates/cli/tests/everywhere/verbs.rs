//! Visitors, logs, arrays and tables.

use std::io::{BufRead, BufReader};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::Place;
use crate::common::{finish, until};

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub(crate) fn visitors(place: &Place) {
    // A period of an hour of which some is left: no test lasts so long.
    while now_s() % 3_600 > 3_600 - 20 {
        std::thread::sleep(Duration::from_secs(1));
    }
    let name = &place.name;
    let on = |line: &str| place.on(line);
    for line in ["get NAME", "watch NAME", "hit NAME --existing"] {
        on(&format!("visitors {line}")).fails(3, &format!("`larder visitors hit {name}` creates them"));
    }
    assert_eq!(on("visitors hit NAME --period 1h").exits(0), "");
    assert_eq!(on("visitors hit NAME 4 --json").json(), json!({"name": name, "hits": 4}));
    assert_eq!(on("visitors hit NAME --visitor ann --visitor bob --visitor ann").exits(0), "");
    on("visitors hit NAME --visitor bob").exits(0);
    assert_eq!(on("visitors get NAME --current").exits(0), "7\n");
    assert_eq!(on("visitors get NAME").exits(0), "0\n", "a window that nobody hit");
    let an_hour_ago = now_s() - 3_600;
    on(&format!("visitors hit NAME 3 --at {an_hour_ago}")).exits(0);
    on(&format!("visitors hit NAME --visitor cat --at {an_hour_ago}")).exits(0);
    assert_eq!(on("--json visitors get NAME").json(), json!({"name": name, "visitors": 4, "of": "last"}));
    assert_eq!(on(&format!("visitors get NAME --at {an_hour_ago}")).exits(0), "4\n");
    let interpolated = on("--json visitors get NAME --interpolated").json();
    assert!(interpolated["visitors"].as_u64().unwrap() <= 4 && interpolated["of"] == "interpolated", "{interpolated}");
    let watched = on("visitors watch NAME --every 10ms --count 2").exits(0);
    assert_eq!(watched.lines().filter(|line| line.ends_with(" 4 7")).count(), 2, "{watched}");
    let watched = on("--json visitors watch NAME --count 1").json();
    assert_eq!((&watched["name"], &watched["last"], &watched["current"]), (&json!(name), &json!(4), &json!(7)));
    on("visitors hit NAME --period 2h").fails(8, "3600s");
    on(&format!("visitors hit NAME --at {}", now_s() + 400)).fails(2, "300000 ms");
    let ids: String = (0..300).map(|id| format!("{}\n", id % 170)).collect();
    place.on_with_input("visitors hit NAME.few --period 1h --visitor -", ids.as_bytes()).exits(0);
    assert_eq!(on("visitors get NAME.few --current").exits(0), "170\n");
    assert_eq!(on("drop NAME").exits(0), "visitors\n");
    on("visitors get NAME --current").fails(3, "absent");
}

pub(crate) fn log(place: &Place) {
    let on = |line: &str| place.on(line);
    for line in ["fetch NAME", "tail NAME", "put NAME x --existing"] {
        on(&format!("log {line}")).fails(3, &format!("larder log put {} EVENT", place.name));
    }
    on("log put NAME x --retention 1s --chunk 1h").fails(2, "shorter than a chunk");
    assert_eq!(on("log put NAME second --retention 1h").exits(0), "");
    on("log put NAME first --at 5m").exits(0);
    on("log put NAME x --at 2h").fails(2, "keeps events for 3600000 ms");
    on("log put NAME x --at @99999999999999").fails(2, "the limit is 300000 ms");
    on("log put NAME x --retention 2h").fails(8, "3600s");
    place.on_with_input("log put NAME -", b"third\nfour\xff\n").exits(0);
    let fetched = on("log fetch NAME");
    assert_eq!((fetched.code(), &fetched.stdout[..]), (0, &b"first\nsecond\nthird\nfour\xff\n"[..]));
    assert_eq!(on("log fetch NAME --until 1m").exits(0), "first\n");
    assert_eq!(on("log fetch NAME --since 4m --until 1m").exits(0), "");
    let timed = on("log fetch NAME --until 1m --times").exits(0);
    let (time, event) = timed.split_once(' ').unwrap();
    assert_eq!(event, "first\n");
    assert_eq!(on(&format!("log fetch NAME --since {time} --until {time}")).exits(0), "first\n");
    let lines = on("--json log fetch NAME").exits(0);
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<&Value> = events.iter().map(|event| &event["event"]).collect();
    assert_eq!(told, [&json!("first"), &json!("second"), &json!("third"), &json!({"base64": "Zm91cv8="})]);
    assert!(events[1]["time_ms"].as_u64().unwrap().abs_diff(now_s() * 1_000) < 60_000, "{lines}");
    assert_eq!(on("log tail NAME -n 2").stdout, b"third\nfour\xff\n");
    let folder = tempfile::tempdir().unwrap();
    let from_cursor = format!("log tail NAME --cursor {}", folder.path().join("cursor").display());
    assert_eq!(on(&from_cursor).stdout, fetched.stdout);
    assert_eq!(on(&from_cursor).exits(0), "");
    on("log put NAME late --at 2m").exits(0);
    assert_eq!(on(&from_cursor).exits(0), "late\n");
    following(place);
    assert_eq!(on("drop NAME").exits(0), "log\n");
    on(&from_cursor).fails(3, "absent");
}

/// `tail -f` prints each event once, as it comes, while others put.
fn following(place: &Place) {
    let mut child = place.larder("log tail NAME -n 1 -f --every 50ms", [""; 0]).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            _ = sender.send(line.unwrap());
        }
    });
    let mut told: Vec<Vec<u8>> = Vec::new();
    for (count, event) in [(1, "five"), (2, "six"), (3, "")] {
        until("an event", || {
            told.extend(lines.try_iter());
            told.len() >= count
        });
        if !event.is_empty() {
            place.on(&format!("log put NAME {event}")).exits(0);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    told.extend(lines.try_iter());
    assert_eq!(told, [&b"four\xff"[..], b"five", b"six"]);
}

pub(crate) fn array(place: &Place) {
    let on = |line: &str| place.on(line);
    for line in ["get NAME", "stat NAME", "remove NAME a", "push NAME a --existing", "change NAME --add a --existing"] {
        on(&format!("array {line}")).fails(3, &format!("larder array push {} ELEMENT", place.name));
    }
    assert_eq!(on("array push NAME sweep cook sweep").exits(0), "");
    assert_eq!(on("array push NAME -- -v").exits(0), "");
    assert_eq!(on("array get NAME").exits(0), "sweep\ncook\nsweep\n-v\n");
    assert_eq!(on("array change NAME --add eat sleep --delete sweep --delete none").exits(0), "");
    assert_eq!(on("--json array get NAME").json(), json!(["cook", "-v", "eat", "sleep"]));
    assert_eq!(on("array remove NAME cook none").exits(0), "");
    assert_eq!(on("array get NAME").exits(0), "-v\neat\nsleep\n");
    assert!(on("array stat NAME").exits(0).starts_with("elements 3\nbytes "));
    assert_eq!(on("--json array compact NAME").json()["stale_bytes"], 0);
    let lines: String = (0..3_000).map(|number| format!("line-{number}\n")).collect();
    place.on_with_input("array push NAME -", lines.as_bytes()).exits(0);
    assert_eq!(on("array get NAME").exits(0), format!("-v\neat\nsleep\n{lines}"));
    place.on_with_input("array change NAME --add end --delete -", lines.as_bytes()).exits(0);
    on("array remove NAME eat sleep -- -v").exits(0);
    assert_eq!(on("array get NAME").exits(0), "end\n");
    on("array remove NAME end").exits(0);
    assert_eq!(on("array get NAME").exits(0), "", "empty, and known to be");
    on("array change NAME.wide --add a b c d e f --shards 5").exits(0);
    on("array change NAME.wide --add g h i j k l --delete a b c d e f").exits(0);
    assert_eq!(on("array get NAME.wide").sorted_lines().concat(), b"ghijkl");
    assert_eq!(on("array accept-loss NAME.wide").exits(0), "nothing was lost\n");
    assert_eq!(on("--json array accept-loss NAME.wide").json()["accepted"], json!(false));
    on("array push NAME.wide a --shards 4").fails(8, "5 shards, not 4");
    on("set add NAME a").fails(8, "holds an array, not a set");
    assert_eq!(on("--json drop NAME").json(), json!({"name": place.name, "dropped": "array"}));
}

pub(crate) fn table(place: &Place) {
    let on = |line: &str| place.on(line);
    for line in ["get NAME a", "has NAME a", "keys NAME", "entries NAME", "remove NAME a", "put NAME a 1 --existing"] {
        on(&format!("table {line}")).fails(3, &format!("larder table put {} KEY VALUE", place.name));
    }
    assert_eq!(on("table put NAME apple 3.20").exits(0), "");
    place.on_with_input("table put NAME pear -", b"two\nlines\xff").exits(0);
    assert_eq!(on("table get NAME apple").exits(0), "3.20\n");
    assert_eq!(on("table get NAME pear --raw").stdout, b"two\nlines\xff");
    on("table put NAME apple 3.30").exits(0);
    assert_eq!(on("table keys NAME").sorted_lines(), [b"apple".to_vec(), b"pear".to_vec()]);
    assert_eq!(on("table has NAME apple pear").exits(0), "true\ntrue\n");
    assert_eq!(on("table has NAME apple plum").exits(1), "true\nfalse\n");
    assert_eq!(on("--json table has NAME plum").exits(1), "{\"has\":false,\"key\":\"plum\"}\n");
    on("table remove NAME pear plum").exits(0);
    assert_eq!(on("table get NAME pear").exits(1), "");
    assert_eq!(on("--json table get NAME pear").json(), json!({"key": "pear", "has": false, "value": null}));
    assert_eq!(on("table entries NAME").exits(0), "apple\t3.30\n");
    assert_eq!(on("--json table entries NAME").json(), json!({"key": "apple", "value": "3.30"}));
    assert_eq!(on("--json table keys NAME").json(), json!(["apple"]));
    on("table put NAME pear 1 --ttl 1m").fails(8, "ttl(true)");
    // Many, over whatever servers there are, and back in their order.
    let entries: String = (0..400).map(|n| format!("k{n}\tv{n}\n")).collect();
    let put = place.on_with_input("--json table put NAME -", entries.as_bytes());
    assert_eq!(put.json(), json!({"name": place.name, "entries": 400}));
    let keys: String = (0..400).map(|n| format!("k{n}\n")).collect();
    let values: String = (0..400).map(|n| format!("v{n}\n")).collect();
    assert_eq!(place.on_with_input("table get NAME -", keys.as_bytes()).exits(0), values);
    assert_eq!(on("table entries NAME").sorted_lines().len(), 401);
    lives(place);
    assert_eq!(on("drop NAME").exits(0), "table\n");
    finish(&mut place.larder("table keys NAME", [""; 0])).fails(3, "absent");
}

/// An entry whose life is over is absent, and not lost.
fn lives(place: &Place) {
    place.on("table put NAME.lives u7 v --ttl 2s").exits(0);
    place.on("table put NAME.lives u8 v --ttl 1h").exits(0);
    until("the end of a life", || place.on("table get NAME.lives u7").code() == 1);
    assert_eq!(place.on("table has NAME.lives u7 u8").exits(1), "false\ntrue\n");
    assert_eq!(place.on("table entries NAME.lives").exits(0), "u8\tv\n");
}
