//! What can be found out without a server: help, wrong usage, exit codes, completions, masked secrets.

mod common;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;

use common::{finish, larder, on};
use larder_testkit::servers::{Memcached, Version};

/// Every verb that opens a store as others do, with its least arguments. That none is left out is seen by clap's own tree of commands.
const VERBS: [&str; 95] = [
    "lock run n -- true",
    "lock run n --existing -- true",
    "lock status n",
    "lock release n --force",
    "counter add n",
    "counter get n",
    "counter reset n",
    "set add n a",
    "set remove n a",
    "set has n a",
    "set members n",
    "set compact n",
    "set stat n",
    "array push n a",
    "array get n",
    "array change n --add a --delete b",
    "array remove n a",
    "array compact n",
    "array stat n",
    "array accept-loss n",
    "visitors hit n",
    "visitors get n",
    "visitors watch n",
    "unique add n a",
    "unique count n",
    "unique new n a",
    "unique union n",
    "unique forget n",
    "records define n a:bit",
    "records set n 1 a=1",
    "records get n 1",
    "records max n",
    "records aggregate n a",
    "records bits n 1",
    "lookup build n /dev/null",
    "lookup get n 1",
    "lookup stat n",
    "queue push n a",
    "queue pop n",
    "queue claim n",
    "queue ack n 1",
    "queue release n 1",
    "queue renew n 1",
    "queue len n",
    "queue stat n",
    "queue work n -- true",
    "stack push n a",
    "stack pop n",
    "stack claim n",
    "stack ack n 1",
    "stack release n 1",
    "stack renew n 1",
    "stack len n",
    "stack stat n",
    "stack work n -- true",
    "hash set n a b",
    "hash get n a",
    "hash remove n a",
    "hash len n",
    "hash entries n",
    "hash stat n",
    "sharded-set add n a",
    "sharded-set remove n a",
    "sharded-set has n a",
    "sharded-set len n",
    "sharded-set members n",
    "sharded-set stat n",
    "cache get n k --ttl 5m --else true",
    "cache invalidate n k",
    "table put n k v",
    "table get n k",
    "table has n k",
    "table remove n k",
    "table keys n",
    "table entries n",
    "log put n a",
    "log fetch n",
    "log tail n",
    "top",
    "top set n a 1",
    "top add n a 1",
    "top get n a",
    "top remove n a",
    "top list n",
    "top bottom n",
    "top stat n",
    "reshard n --shards 2",
    "inspect n",
    "ls",
    "memory report",
    "memory advise",
    "export -",
    "import /dev/null",
    "drop n",
    "drop n --json",
];

/// The others: those that take only what they can serve, back up or check, the demo, whose store is memory unless told, and those that need none.
const WITHOUT_SESSION: [&str; 9] = [
    "serve",
    "memcached",
    "backup -",
    "restore /dev/null",
    "check",
    "demo",
    "completions bash",
    "man /proc",
    "exit-codes",
];

/// A port that nobody serves: below those of the tests' servers, and reserved.
const NOBODY: &str = "memcached://joe:hunter2@127.0.0.1:1";

/// The words of a command of clap's tree, and whether it does something by itself rather than group others.
struct Known {
    words: String,
    is_verb: bool,
}

/// All of them but `larder` itself.
fn tree() -> Vec<Known> {
    fn walk(command: &clap::Command, before: &str, found: &mut Vec<Known>) {
        for verb in command.get_subcommands() {
            let words = format!("{before}{}", verb.get_name());
            walk(verb, &format!("{words} "), found);
            found.push(Known { words, is_verb: !verb.is_subcommand_required_set() });
        }
    }
    let mut found = Vec::new();
    walk(&larder_cli::command(), "", &mut found);
    found
}

/// The verb of a command line that begins with it.
fn verb_of<'a>(tree: &'a [Known], line: &str) -> &'a str {
    let begins =
        |known: &&Known| line.strip_prefix(&known.words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let verb = tree.iter().filter(begins).max_by_key(|known| known.words.len());
    verb.map(|known| known.words.as_str()).unwrap_or_else(|| panic!("no verb is that of {line:?}"))
}

#[test]
fn no_verb_is_left_out_here() {
    let tree = tree();
    let verbs: BTreeSet<&str> = tree.iter().filter(|known| known.is_verb).map(|known| known.words.as_str()).collect();
    let here: BTreeSet<&str> = VERBS.iter().chain(&WITHOUT_SESSION).map(|line| verb_of(&tree, line)).collect();
    assert!(verbs.contains("counter add") && !verbs.contains("counter") && verbs.contains("top"), "{verbs:?}");
    assert_eq!(here, verbs);
}

#[test]
fn help_has_examples_for_every_verb() {
    let tree = tree();
    for known in &tree {
        let help = finish(&mut larder(known.words.split(' ').chain(["--help"]))).exits(0);
        let (_, examples) = help.split_once("Examples:\n  ").unwrap_or_else(|| panic!("{}: {help}", known.words));
        // A queue and a stack share their verbs, and these their examples.
        let verb = known.words.rsplit(' ').next().unwrap_or_default();
        assert!(
            examples.lines().any(|line| line.contains("larder ") && line.contains(verb)),
            "{}: {help}",
            known.words
        );
    }
    // What measures a whole store says in words how it goes about it.
    for line in VERBS.into_iter().filter(|line| !line.starts_with("memory ")) {
        let help = finish(&mut larder(verb_of(&tree, line).split(' ').chain(["--help"]))).exits(0);
        assert!(help.contains("Round trips:"), "{line}: {help}");
    }
    for option in ["--help", "-h"] {
        let help = finish(&mut larder([option])).exits(0);
        assert!(help.contains("Examples:\n  larder "), "{help}");
    }
}

#[test]
fn the_exit_codes_are_listed() {
    for words in [vec!["exit-codes"], vec!["help", "exit-codes"]] {
        let table = finish(&mut larder(&words)).exits(0);
        assert!(table.contains("    3  absent") && table.contains("128+n  "), "{table}");
    }
    let codes = finish(&mut larder(["--json", "exit-codes"])).json();
    assert_eq!(codes[3]["code"], "3");
    assert!(codes[3]["meaning"].as_str().unwrap().starts_with("absent"), "{codes}");
}

#[test]
fn the_documented_exit_codes_are_those_that_are_printed() {
    let documented = include_str!("../../../docs/operations.md");
    let table = documented.split_once("As `larder exit-codes` prints them:").expect("the table").1;
    let rows = table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let rows = rows.map(|row| row.trim_matches('|').split_once('|').expect("two columns"));
    let rows: Vec<(String, String)> = rows.map(|(code, text)| (code.trim().into(), text.trim().into())).collect();
    let printed = finish(&mut larder(["--json", "exit-codes"])).json();
    let word = |row: &serde_json::Value, column: &str| row[column].as_str().unwrap().to_owned();
    let printed: Vec<_> =
        printed.as_array().unwrap().iter().map(|row| (word(row, "code"), word(row, "meaning"))).collect();
    assert_eq!(rows, printed);
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(finish(&mut larder(["--version"])).exits(0), format!("larder {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_know_every_shell_and_the_verbs() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = finish(&mut larder(["completions", shell])).exits(0);
        assert!(script.contains("compact") && script.contains("existing"), "{shell}");
    }
    finish(&mut larder(["completions", "tcsh"])).fails(2, "possible values: bash");
}

#[test]
fn manual_pages_tell_of_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    finish(larder(["man"]).arg(folder.path())).exits(0);
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("larder.1").contains("file:PATH"));
    assert!(page("larder-counter-add.1").contains("Round trips"));
    for known in tree() {
        assert!(page(&format!("larder-{}.1", known.words.replace(' ', "-"))).contains("larder"), "{}", known.words);
    }
    finish(larder(["man"]).arg(folder.path().join("none"))).fails(2, "cannot be written to");
}

#[test]
fn without_a_store_every_verb_says_how_to_set_one() {
    for verb in VERBS {
        for store in ["", "memory:", "memory:?bytes_max=64m"] {
            let done = on(store, verb);
            done.fails(2, "LARDER_STORE=memcached://");
            let what = if store.is_empty() { "no store is set" } else { "ends with this command" };
            assert!(done.stderr.contains(what), "{}", done.stderr);
        }
    }
    finish(&mut larder(["counter", "get", "n"])).fails(2, "no store is set");
    finish(&mut larder(["counter", "get", "n", "--store", "memory:"])).fails(2, "ends with this command");
}

#[test]
fn wrong_usage_names_what_is_wrong() {
    for (line, said) in [
        ("countr get n", "'counter'"),
        ("counter ad n", "'add'"),
        ("counter get", "<NAME>"),
        ("counter add n five", "'five'"),
        ("counter add n 9223372036854775808", "9223372036854775808"),
        ("counter add n --slots 70000", "70000"),
        ("counter add n --fast --slots 4", "--slots"),
        ("counter add n 1 2", "'2'"),
        ("set add n", "<ELEMENT>"),
        ("set add n a --text --shards 4", "--shards"),
        ("lock run n", "COMMAND"),
        ("lock run n true", "'true'"),
        ("lock run n --lease soon -- true", "'soon'"),
        ("counter get n --timeout 0", "must be longer than 0"),
        ("array push n", "ELEMENT"),
        ("array change n", "--add"),
        ("array push n a --shards none", "'none'"),
        ("visitors hit n -1", "'-1'"),
        ("visitors hit n --period 0", "must be longer than 0"),
        ("visitors hit n 5 --visitor a", "--visitor"),
        ("visitors hit n --at noon", "'noon'"),
        ("visitors get n --current --interpolated", "--interpolated"),
        ("visitors watch n --every soon", "'soon'"),
        ("unique add n a --offset 5", "'5'"),
        ("unique add n a --precision rough", "'rough'"),
        ("unique count n --at noon", "'noon'"),
        ("unique union n --days 0", "'0'"),
        ("demo --workers 0", "0 is not in 1..=256"),
        ("demo --ops 0", "'0'"),
        ("demo --ops 5 --seconds 5", "--seconds"),
    ] {
        let done = on(NOBODY, line);
        done.fails(2, said);
        let as_json = on(NOBODY, &format!("--json {line}"));
        assert_eq!(as_json.code(), 2);
        let error = as_json.json_error();
        assert_eq!((error["kind"].as_str(), error["exit_code"].as_u64()), (Some("usage"), Some(2)), "{line}");
        let message = error["message"].as_str().unwrap();
        assert!(error.to_string().contains(said) && !message.contains("error:"), "{error}");
    }
}

/// A time of zero is none: nothing lives, holds, or is kept for so long. The waits alone may be: not at all.
#[test]
fn a_time_of_zero_is_refused_wherever_something_is_to_last_and_nothing_is_made() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let before = server.stat("cmd_set");
    for zero in ["0", "0s", "0ms"] {
        for (line, said) in [
            ("visitors hit n --period ZERO", "--period"),
            ("visitors watch n --every ZERO", "--every"),
            ("unique add n a --period ZERO", "--period"),
            ("log put n a --retention ZERO", "--retention"),
            ("log put n a --chunk ZERO", "--chunk"),
            ("log tail n --every ZERO", "--every"),
            ("table put n k v --ttl ZERO", "--ttl"),
            ("table put n - --ttl ZERO", "--ttl"),
            ("cache get n k --ttl ZERO --else true", "--ttl"),
            ("cache get n k --ttl 1s --lease ZERO --else true", "--lease"),
            ("queue claim n --lease ZERO", "--lease"),
            ("stack claim n --lease ZERO", "--lease"),
            ("queue renew n 00c0ffee00c0ffee --lease ZERO", "--lease"),
            ("queue work n --lease ZERO -- true", "--lease"),
            ("queue work n --poll ZERO -- true", "--poll"),
        ] {
            let line = line.replace("ZERO", zero);
            on(&url, &line).fails(2, said);
            on(&url, &line).fails(2, "it must be longer than 0");
            assert_eq!(on(&url, &format!("--json {line}")).json_error()["exit_code"], 2, "{line}");
        }
        on(&url, &format!("lock run n --lease {zero} -- true")).fails(2, "100 ms to 1 day");
    }
    assert_eq!(server.stat("cmd_set"), before, "nothing was written");
    on(&url, "lock run n --wait 0 -- true").exits(0);
    on(&url, "queue push jobs a").exits(0);
    assert_eq!(on(&url, "queue pop jobs --wait 0").exits(0), "a\n");
    assert_eq!(on(&url, "cache get n2 k --ttl 1m --stale 0 --wait 0 --else echo v").exits(0), "v\n");
}

#[test]
fn a_url_with_a_typo_names_the_nearest() {
    for (url, said) in [
        ("memcahced://cache:11211", "did you mean memcached://host:port"),
        ("localhost:11211", "did you mean memcached://localhost:11211"),
        ("memcached://localhost?timout_ms=5", "did you mean timeout_ms"),
        ("memory:?evcit=true", "did you mean evict"),
        ("mongodb://cache", "known are memory:, file:PATH, memcached://host:port"),
        ("memcached://", ""),
        ("memcached://cache:99999", "99999"),
    ] {
        on(url, "counter get n").fails(2, said);
        on(url, "demo").fails(2, said);
    }
}

#[test]
fn secrets_are_masked_wherever_they_could_show() {
    let others = ["--help", "counter get --help", "--trace counter get n"];
    // By its own name it takes memcached's command line, which knows no store.
    let without_session = WITHOUT_SESSION.into_iter().filter(|line| *line != "memcached");
    for verb in VERBS.into_iter().chain(without_session).chain(others) {
        for store in
            [NOBODY, "memcachd://joe:hunter2@cache", "memcached://joe:hunter2@cache?no_such=1", "joe:hunter2@x"]
        {
            for json in [None, Some("--json")] {
                let done = finish(&mut larder(["--store", store].into_iter().chain(json).chain(verb.split(' '))));
                let said = format!("{}{}", done.text(), done.stderr);
                assert!(!said.contains("hunter2"), "{store} {verb}: {said}");
                let needs_none = ["--help", "completions", "man", "exit-codes"].iter().any(|word| verb.contains(word));
                assert!(needs_none || (done.code() != 0 && !said.is_empty()), "{store} {verb}: {done:?}");
            }
        }
    }
}

#[test]
fn secrets_are_masked_in_what_was_typed_in_the_wrong_place() {
    const SECRET: &str = "memcached://joe:hunter2@cache:11211";
    for words in [
        vec![SECRET],
        vec!["counter", "get", "n", SECRET],
        vec!["counter", "add", "n", SECRET],
        vec!["demo", SECRET],
        vec!["lock", "run", "n", SECRET],
        vec!["completions", SECRET],
        vec!["demo", "--workers", SECRET],
        vec!["demo", "--workers=memcached://joe:hunter2@cache:11211"],
        vec!["counter", "get", "n", "--store", "memory://joe:hunter2@cache"],
        vec!["counter", "get", "n", "--stroe=memcached://joe:hunter2@cache"],
    ] {
        for json in [false, true] {
            let mut command = larder(json.then_some("--json"));
            let done = finish(command.args(&words));
            done.fails(2, "");
            assert!(!done.stderr.contains("hunter2"), "{words:?}: {}", done.stderr);
        }
    }
}

#[test]
fn a_full_or_closed_standard_error_is_no_crash() {
    for words in [vec!["counter", "get", "n"], vec!["--json", "counter", "get", "n"], vec!["counter", "get"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        finish(larder(words).stderr(full)).exits(2);
    }
}

/// What was asked for was not told.
#[test]
fn help_and_a_version_that_cannot_be_written_are_no_success_and_no_crash() {
    let words = ["--help", "-h", "--version", "counter --help", "serve -h", "serve -V", "memcached -h", "memcached -V"];
    let mut commands: Vec<_> = words.map(|line| larder(line.split_whitespace())).into();
    for option in ["-h", "-V"] {
        let mut command = larder([option]);
        command.arg0("memcached");
        commands.push(command);
    }
    for mut command in commands {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        finish(command.stdout(full)).fails(70, "No space left on device");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = finish(command.stdout(writer));
        assert_eq!((done.code(), done.stderr.as_str()), (141, ""), "{command:?}");
    }
}

#[test]
fn a_server_that_is_down_is_said_to_be_with_its_address() {
    for verb in VERBS {
        let done = on(NOBODY, verb);
        assert_eq!(done.code(), 6, "{done:?}");
        assert!(done.stderr.contains("127.0.0.1:1") && !done.stderr.contains("hunter2"), "{done:?}");
    }
    let error = on(NOBODY, "--json counter get n").json_error();
    assert_eq!((error["kind"].as_str(), error["exit_code"].as_u64()), (Some("unavailable"), Some(6)));
    assert!(error["hint"].as_str().unwrap().contains("is the server up"), "{error}");
    on(NOBODY, "demo").fails(6, "127.0.0.1:1");
}

#[test]
fn arguments_need_not_be_text() {
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let done = finish(larder(["counter", "get"]).arg(name).env("LARDER_STORE", NOBODY));
    assert_eq!(done.code(), 6, "{done:?}");
}

#[test]
fn colours_are_for_terminals_only() {
    for done in [on("", "counter get n"), on("", "--no-color counter get n")] {
        assert!(done.stderr.starts_with("error: "), "{done:?}");
    }
    let mut forced = larder(["counter", "get", "n"]);
    assert!(finish(forced.env("CLICOLOR_FORCE", "1")).stderr.starts_with("\x1b["));
    let mut forced = larder(["counter", "get", "n", "--no-color"]);
    assert!(finish(forced.env("CLICOLOR_FORCE", "1")).stderr.starts_with("error: "));
}
