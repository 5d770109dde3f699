//! Bars of what takes long: drawn on standard error if that is a terminal, gone at the end, and never among the answers.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use std::io::Write;
use std::num::NonZeroU16;
use std::ops::Range;
use std::process::{Child, ChildStdin, Stdio};
use std::thread;
use std::time::Duration;

use common::{Done, larder, on, on_with_input, until, wait};
use indicatif::HumanCount;
use larder_testkit::proxy::{Fault, Proxy};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use serde_json::{Value, json};
use terminal::{Screen, Terminal};

const ROWS: NonZeroU16 = NonZeroU16::new(24).unwrap();
/// Longer than what nothing is shown of.
const PAUSE: Duration = Duration::from_secs(1);
/// What is at stake is what is shown, and not how fast a busy machine is.
const PATIENT: [&str; 3] = ["--json", "--timeout", "60s"];

/// The figures that were drawn right before some words.
fn figures(screen: &Screen, words: &str) -> Vec<u64> {
    let written = String::from_utf8_lossy(&screen.written);
    let figure = |before: &str| {
        let figure = before.rsplit(|letter: char| !letter.is_ascii_digit() && letter != ',').next();
        figure.and_then(|figure| figure.replace(',', "").parse().ok())
    };
    written.match_indices(words).filter_map(|(at, _)| figure(&written[..at])).collect()
}

/// A command whose standard error is a terminal. Nothing else of it is.
struct Watched {
    child: Child,
    stdin: Option<ChildStdin>,
    terminal: Terminal,
}

impl Watched {
    fn start(url: &str, line: &str) -> Watched {
        let (terminal, end) = Terminal::open(ROWS);
        let mut command = larder(PATIENT.into_iter().chain(line.split_whitespace()));
        command.env("LARDER_STORE", url).env("TERM", "xterm-256color").stdin(Stdio::piped()).stderr(end);
        let mut child = command.spawn().unwrap();
        Watched { stdin: child.stdin.take(), child, terminal }
    }

    fn write(&mut self, lines: &str) {
        self.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
    }

    fn figures(&self, words: &str) -> Vec<u64> {
        figures(&self.terminal.screen(), words)
    }

    /// Waits for the end: how the command ended, and what was drawn.
    fn end(mut self) -> (Done, Screen) {
        drop(self.stdin.take());
        let done = wait(self.child);
        let screen = self.terminal.end();
        assert!(!screen.shown.screen().hide_cursor(), "the cursor is there again");
        (done, screen)
    }

    /// The same of what went well: its answer is all there is on standard output, and of the bar nothing is left.
    fn answers(self) -> (Value, Screen) {
        let (done, screen) = self.end();
        assert_eq!(done.exits(0).lines().count(), 1);
        let left = screen.shown.screen();
        assert_eq!((left.contents().as_str(), left.cursor_position()), ("", (0, 0)), "where the shell goes on");
        (done.json(), screen)
    }
}

/// Runs a command whose standard error is no terminal, with a pause in its input: nothing is said there.
fn is_silent(url: &str, line: &str, input: [&str; 2]) -> Value {
    let mut command = larder(PATIENT.into_iter().chain(line.split_whitespace()));
    command.env("LARDER_STORE", url).env("TERM", "xterm-256color").stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input[0].as_bytes()).unwrap();
    if !input[1].is_empty() {
        thread::sleep(PAUSE);
        stdin.write_all(input[1].as_bytes()).unwrap();
    }
    drop(stdin);
    let done = wait(child);
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{line}");
    done.json()
}

fn lines(ids: Range<u64>) -> String {
    ids.map(|id| format!("{id}\n")).collect()
}

/// They grow, and are more than one.
#[track_caller]
fn grow(figures: &[u64]) {
    assert!(figures.is_sorted() && figures.first() < figures.last(), "{figures:?}");
}

/// A proxy before a server, with all that is sent to it late by so long.
fn late(server: &RedisServer, ms: u64) -> (Proxy, String) {
    let proxy = Proxy::start(server.addr());
    proxy.script(0, move |moment, _| if moment.chunk.is_some() { Fault::Delay { ms } } else { Fault::Pass });
    let url = format!("redis://{}", proxy.addr());
    (proxy, url)
}

#[test]
fn visitors_of_standard_input_are_counted_while_they_come() {
    let server = Memcached::start(Version::New, &[]);
    let new = "--period 365d --precision exact --ids-are integer -";
    let mut adding = Watched::start(&server.url(), &format!("unique add site {new}"));
    adding.write(&lines(0..1_500));
    let mut all = 1_500;
    // Each is a moment at which a bar may be drawn.
    until("the count", || {
        adding.write(&lines(all..all + 1));
        all += 1;
        adding.figures(" elements").last() >= Some(&1_500)
    });
    let (answer, screen) = adding.answers();
    assert_eq!(answer["new"], all);
    let figures = figures(&screen, " elements");
    assert!(figures.is_sorted() && figures.last() <= Some(&all), "{figures:?}");
    let told = is_silent(&server.url(), &format!("unique add blog {new}"), [&lines(0..1_500), &lines(0..1_600)]);
    assert_eq!(told["new"], 1_600);
}

#[test]
fn a_bar_is_gone_before_it_is_said_what_went_wrong() {
    let server = Memcached::start(Version::New, &[]);
    let mut adding = Watched::start(&server.url(), "unique add site --period 365d --ids-are integer -");
    let mut all = 0;
    until("the count", || {
        adding.write(&lines(all..all + 1));
        all += 1;
        !adding.figures(" elements").is_empty()
    });
    adding.write("no number\n");
    let (done, screen) = adding.end();
    assert_eq!(done.exits(2), "");
    let left = screen.shown.screen().contents();
    assert!(left.contains("elements of standard input are done") && left.starts_with("{\"error\""), "{left}");
}

#[test]
fn a_table_tells_what_was_read_of_standard_input() {
    let server = Memcached::start(Version::New, &[]);
    let rows = |ids: Range<u64>| -> String { ids.map(|id| format!("{id},name {id}\n")).collect() };
    let (first, rest) = (rows(0..400), rows(400..900));
    let build = "lookup build names - --header id,name";
    let mut building = Watched::start(&server.url(), build);
    building.write(&first);
    until("the first half", || building.figures(" bytes read").last() == Some(&(first.len() as u64)));
    building.write(&rest);
    until("both halves", || building.figures(" bytes read").last() == Some(&((first.len() + rest.len()) as u64)));
    let (answer, screen) = building.answers();
    assert_eq!((&answer["rows"], &answer["version"]), (&json!(900), &json!(1)));
    grow(&figures(&screen, " bytes read"));
    assert_eq!(is_silent(&server.url(), build, [&first, &rest])["rows"], 900);
}

#[test]
fn a_table_tells_how_many_blocks_were_written_and_read_back() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let (_proxy, url) = late(&server, 200);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.csv");
    let mut random = fastrand::Rng::with_seed(7);
    // What cannot be packed much: some 250 blocks, of which 64 go out together.
    let rows: String = (0..30_000).map(|id| format!("{id},{:032x}\n", random.u128(..))).collect();
    std::fs::write(&file, format!("id,name\n{rows}")).unwrap();
    let building = Watched::start(&url, &format!("lookup build names {}", file.display()));
    // Meanwhile, since it takes as long.
    assert_eq!(is_silent(&url, &format!("lookup build others {}", file.display()), [""; 2])["rows"], 30_000);
    let (answer, screen) = building.answers();
    assert_eq!(answer["rows"], 30_000);
    let items = answer["blocks"].as_u64().unwrap();
    for words in [" blocks written", " blocks read back"] {
        let of = figures(&screen, words);
        assert!(!of.is_empty() && of.iter().all(|&of| of >= items), "{words}: {of:?} of {items} and a directory");
        grow(&figures(&screen, &format!(" of {}{words}", HumanCount(of[0]))));
    }
}

/// Most of the time of a large one.
#[test]
fn a_table_tells_how_many_rows_are_packed() {
    let server = Memcached::start(Version::New, &["-m", "512"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.csv");
    let rows: String = (0..300_000).map(|id| format!("{id},name {}\n", id % 1_000)).collect();
    std::fs::write(&file, format!("id,name\n{rows}")).unwrap();
    let (answer, screen) = Watched::start(&server.url(), &format!("lookup build names {}", file.display())).answers();
    assert_eq!(answer["rows"], 300_000);
    let figures = figures(&screen, " of 300,000 rows packed");
    // An optimized build may be done before anything is shown.
    assert!(!cfg!(debug_assertions) || figures.iter().any(|packed| *packed < 300_000), "{figures:?}");
    assert!(figures.is_sorted(), "{figures:?}");
}

#[test]
fn a_resharding_tells_how_many_shards_are_filled() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    on_with_input(&server.url(), "sharded-set add seen --shards 30 -", lines(0..3_000).as_bytes()).exits(0);
    let (_proxy, url) = late(&server, 20);
    let (answer, screen) = Watched::start(&url, "reshard seen --shards 300").answers();
    assert_eq!(answer, json!({"name": "seen", "shards": 300}));
    let figures = figures(&screen, " of 300 shards");
    grow(&figures);
    assert!(figures.last() <= Some(&300), "{figures:?}");
    assert_eq!(is_silent(&url, "reshard seen --shards 40", [""; 2])["shards"], 40);
    assert_eq!(on(&server.url(), "sharded-set len seen").exits(0), "3000\n");
}

/// It waits for others by itself.
#[test]
fn a_report_of_memory_tells_how_many_keys_are_listed_and_measured() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let pairs = (0..3_000).flat_map(|key| [format!("user:{key}"), "value".to_owned()]);
    server.command(&std::iter::once("MSET".to_owned()).chain(pairs).collect::<Vec<_>>());
    let report = "memory report --rate 2000";
    let (answer, screen) = Watched::start(&server.url(), report).answers();
    assert_eq!(answer["keys"], 3_000);
    let listed = figures(&screen, " of 3,000 keys");
    grow(&listed);
    assert!(listed.last() <= Some(&3_000), "{listed:?}");
    assert_eq!(figures(&screen, " of 100 of the sample").last(), Some(&100));
    assert_eq!(is_silent(&server.url(), report, [""; 2])["keys"], 3_000);
}

/// A check and a backup are held to the same in `screen.rs`.
#[test]
fn what_moves_or_lists_items_tells_how_many() {
    let server = |_| RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let [from, to] = [0, 1].map(server);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display();
    let store = |name: &str| format!("file:{folder}/{name}");
    for url in [from.url(), store("from")] {
        on_with_input(&url, "set add tags --shards 64 -", lines(0..2_000).as_bytes()).exits(0);
    }
    for (url, line) in [
        (from.url(), format!("export {folder}/exported")),
        (to.url(), format!("import {folder}/exported")),
        (from.url(), "ls".to_owned()),
        (store("from"), format!("backup {folder}/saved")),
        (store("to"), format!("restore {folder}/saved")),
    ] {
        let (_, screen) = Watched::start(&url, &line).answers();
        let figures = figures(&screen, " items");
        assert!(figures.is_sorted() && figures.last() > Some(&0), "{line}: {figures:?}");
    }
    for (url, line) in [
        (from.url(), format!("export {folder}/exported-again")),
        (to.url(), format!("import {folder}/exported --replace")),
        (from.url(), "ls".to_owned()),
        (store("to-again"), format!("restore {folder}/saved")),
    ] {
        is_silent(&url, &line, [""; 2]);
    }
}
