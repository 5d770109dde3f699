//! What processes take in turns: queues, stacks and caches.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Place;
use crate::common::{Done, finish, until, wait};

pub(crate) fn queue(place: &Place) {
    // Those that came first.
    line(place, "queue", ["a", "b"]);
}

pub(crate) fn stack(place: &Place) {
    line(place, "stack", ["b", "a"]);
}

/// A queue or a stack, and in which order it gives back `a` and `b`.
fn line(place: &Place, kind: &str, [first, second]: [&str; 2]) {
    let on = |line: &str| place.on(&format!("{kind} {line}"));
    for line in ["pop NAME", "claim NAME", "len NAME", "stat NAME", "push NAME x --existing", "work NAME -- true"] {
        on(line).fails(3, &format!("`larder {kind} push {} ITEM` creates it", place.name));
    }
    assert_eq!(on("push NAME a b").exits(0), "");
    assert_eq!(on("len NAME").exits(0), "2\n");
    assert_eq!(on("--json len NAME").json(), json!({"name": place.name, "len": 2}));
    assert_eq!(on("pop NAME").exits(0), format!("{first}\n"));
    assert_eq!(on("--json pop NAME").json(), json!({"item": second}));
    assert_eq!(on("pop NAME").exits(1), "");
    assert_eq!(on("--json pop NAME --wait 300ms").exits(1), "{\"item\":null}\n");
    claims(place, kind);
    work(place, kind);
    let lines: String = (0..3_000).map(|number| format!("line {number:04}\n")).collect();
    place.on_with_input(&format!("{kind} push NAME -"), lines.as_bytes()).exits(0);
    let next = if kind == "queue" { "line 0000\n" } else { "line 2999\n" };
    assert_eq!(on("pop NAME").exits(0), next);
    let stat = on("--json stat NAME").json();
    assert_eq!((&stat["ready"], &stat["claimed"]), (&json!(2_999), &json!(0)), "{stat}");
    assert!(on("stat NAME").exits(0).starts_with("ready 2999\nclaimed 0\n"));
    let other = if kind == "queue" { "stack" } else { "queue" };
    place.on(&format!("{other} len NAME")).fails(8, &format!("holds a {kind}, not a {other}"));
    assert_eq!(place.on("drop NAME").exits(0), format!("{kind}\n"));
}

/// A claim is acknowledged, given back or renewed by its id, and ends with its lease.
fn claims(place: &Place, kind: &str) {
    let on = |line: &str| place.on(&format!("{kind} {line}"));
    let claim = |options: &str| -> Value {
        let mut claimed = Value::Null;
        until("the item to come", || {
            claimed = place.on(&format!("--json {kind} claim NAME {options}")).json();
            !claimed["id"].is_null()
        });
        claimed
    };
    on("push NAME job").exits(0);
    let claimed = on("claim NAME --lease 1m").exits(0);
    let (id, item) = claimed.split_once('\t').unwrap();
    assert_eq!((id.len(), item), (16, "job\n"));
    on("claim NAME").exits(1);
    on(&format!("renew NAME {id} --lease 2m")).exits(0);
    on(&format!("release NAME {id}")).exits(0);
    on(&format!("ack NAME {id}")).fails(5, "nothing is claimed as");
    let began = Instant::now();
    let brief = claim("--lease 1s");
    assert_eq!((&brief["item"], &brief["attempts"]), (&json!("job"), &json!(2)));
    let again = claim("--lease 1m");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((&again["item"], &again["attempts"]), (&json!("job"), &json!(3)));
    on(&format!("ack NAME {}", brief["id"].as_str().unwrap())).fails(5, "nothing is claimed as");
    assert_eq!(on("len NAME").exits(0), "1\n");
    on(&format!("ack NAME {}", again["id"].as_str().unwrap())).exits(0);
    assert_eq!(on("len NAME").exits(0), "0\n");
}

/// A command gets the item, and its exit code decides.
fn work(place: &Place, kind: &str) {
    let work = |options: &str, script: &str| -> Done {
        finish(&mut place.larder(&format!("{kind} work NAME {options} -- sh -c"), [script]))
    };
    place.on(&format!("{kind} push NAME job")).exits(0);
    let failed = work("--once", "exit 9");
    failed.exits(9);
    assert!(failed.stderr.contains("exited with 9, at attempt 1: the item is given back"), "{}", failed.stderr);
    let script = "echo $(cat) = $LARDER_ITEM at $LARDER_ATTEMPT of $LARDER_QUEUE_NAME";
    assert_eq!(work("--once", script).exits(0), format!("job = job at 2 of {}\n", place.name));
    work("--once", script).exits(1);
    place.on(&format!("{kind} push NAME 1 2 3 4")).exits(0);
    let done = work("--jobs 4 --idle-exit 0s --poll 10ms", "echo $LARDER_ITEM");
    done.exits(0);
    assert_eq!(done.sorted_lines().concat(), b"1234");
    assert_eq!(place.on(&format!("{kind} len NAME")).exits(0), "0\n");
}

/// `larder cache get NAME KEY OPTIONS --else sh -c SCRIPT`.
fn getting(place: &Place, key: &str, options: &str, script: &str) -> Command {
    place.larder(&format!("cache get NAME {key} {options} --else sh -c"), [script])
}

pub(crate) fn cache(place: &Place) {
    let get = |key: &str, options: &str, script: &str| finish(&mut getting(place, key, options, script));
    place.on("cache invalidate NAME k").fails(3, "`larder cache get` creates it");
    get("k", "--ttl 5m --existing", "echo never").fails(3, "`larder cache get` creates it");
    let made = get("k", "--ttl 5m", "printf 'a\\377\\n'; printf \"$LARDER_CACHE_NAME $LARDER_CACHE_KEY\"");
    made.exits(0);
    assert_eq!(made.stdout, [b"a\xff\n", place.name.as_bytes(), b" k"].concat());
    assert_eq!(get("k", "--ttl 5m", "echo anew").stdout, made.stdout);
    let told = |source: &str| json!({"name": place.name, "key": "j", "value": "v", "source": source, "kept": true});
    assert_eq!(get("j", "--json --ttl 5m", "printf v").json(), told("rebuilt"));
    assert_eq!(get("j", "--json --ttl 5m", "printf w").json(), told("fresh"));
    let failed = get("f", "--ttl 5m --lease 1h", "echo out; exit 42");
    assert_eq!(failed.exits(42), "out\n");
    assert_eq!(get("f", "--ttl 5m --wait 0", "printf v").exits(0), "v", "the lease was given up");
    assert_eq!(place.on("cache invalidate NAME k").exits(0), "");
    assert_eq!(get("k", "--ttl 5m", "printf anew").exits(0), "anew");
    one_at_a_time(place);
    stale_meanwhile(place);
    place.on("queue len NAME").fails(8, "holds a cache, not a queue");
    assert_eq!(place.on("drop NAME").exits(0), "cache\n");
}

/// Of several processes one runs its command, and all print its output.
fn one_at_a_time(place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo run >> {}; sleep 0.3; echo $$", folder.path().join("runs").display());
    let processes: Vec<_> = (0..4).map(|_| getting(place, "once", "--ttl 5m", &script).spawn().unwrap()).collect();
    let outputs: Vec<String> = processes.into_iter().map(|process| wait(process).exits(0)).collect();
    assert!(outputs.iter().all(|output| *output == outputs[0] && !output.is_empty()), "{outputs:?}");
    assert_eq!(fs::read_to_string(folder.path().join("runs")).unwrap(), "run\n");
}

/// While a command runs, others are served what is stale, or where there is nothing of the kind told to wait.
fn stale_meanwhile(place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
    let slow = format!("touch {}; while ! test -e {}; do sleep 0.02; done; printf new", begun.display(), go.display());
    let get = |options: &str| finish(&mut getting(place, "s", options, "printf mine"));
    finish(&mut getting(place, "s", "--ttl 1s --stale 10m", "printf old")).exits(0);
    // By the server's clock it is stale after two ticks at the latest.
    std::thread::sleep(Duration::from_millis(2_100));
    let running = getting(place, "s", "--ttl 10m", &slow).spawn().unwrap();
    until("the command begins", || begun.exists());
    let stale = get("--json --ttl 10m").json();
    assert_eq!((&stale["value"], &stale["source"]), (&json!("old"), &json!("stale")));
    fs::write(&go, "").unwrap();
    assert_eq!(wait(running).exits(0), "new");
    assert_eq!(get("--ttl 10m").exits(0), "new");
    // Of a value that nobody has yet there is nothing to serve.
    fs::remove_file(&go).unwrap();
    fs::remove_file(&begun).unwrap();
    let running = getting(place, "t", "--ttl 10m", &slow).spawn().unwrap();
    until("the command begins", || begun.exists());
    finish(&mut getting(place, "t", "--ttl 10m --wait 300ms", "printf mine")).fails(6, "somebody else's rebuild");
    fs::write(&go, "").unwrap();
    assert_eq!(wait(running).exits(0), "new");
}
