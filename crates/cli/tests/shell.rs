//! The command as a shell and a terminal meet it: completions that load, a bar that is drawn, input without end.

mod common;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{finish, larder, on, wait};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version, executable};
use tempfile::TempDir;

/// What bash would offer for the words typed so far.
fn offered(words: &str) -> String {
    let script = format!(
        "source /dev/stdin; COMP_WORDS=({words} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _larder larder '' \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
    );
    let completions = finish(&mut larder(["completions", "bash"])).exits(0);
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bash.spawn().expect("bash");
    child.stdin.take().unwrap().write_all(completions.as_bytes()).unwrap();
    let done = wait(child);
    assert_eq!(done.stderr, "");
    done.exits(0)
}

#[test]
fn bash_loads_the_completions_and_offers_structures_verbs_and_options() {
    let structures = offered("larder");
    assert!(["lock", "counter", "set", "drop", "demo"].iter().all(|word| structures.contains(word)), "{structures}");
    let verbs = offered("larder set");
    assert!(["add", "remove", "has", "members", "compact", "stat"].iter().all(|word| verbs.contains(word)), "{verbs}");
    let options = offered("larder counter add");
    assert!(options.contains("--copies") && options.contains("--existing"), "{options}");
}

/// A folder of its own with the completions for a shell, and the file they are in.
fn completions(shell: &str, file: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, finish(&mut larder(["completions", shell])).exits(0)).unwrap();
    (folder, path)
}

/// A shell that `cargo xtask servers` has put in place, with nothing of the user's.
fn shell(name: &str, home: &TempDir) -> Command {
    let mut command = Command::new(executable(name));
    command.env("HOME", home.path()).env("XDG_CONFIG_HOME", home.path()).env("TERM", "dumb");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a shell offers for a line, without what it says of each.
fn offers(mut command: Command) -> Vec<String> {
    let done = finish(&mut command);
    assert_eq!(done.stderr, "");
    done.exits(0).lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

/// What fish offers for a line.
fn fish_offers(line: &str) -> Vec<String> {
    let (home, script) = completions("fish", "larder.fish");
    // Unpacked beside the machine's own files, it looks for its functions there.
    let program = "if test -d \"$LARDER_SHELL_ROOT/usr/share/fish\"
                       set -g fish_function_path $LARDER_SHELL_ROOT/usr/share/fish/functions
                   end
                   source $argv[1]; complete --do-complete $argv[2]";
    let mut fish = shell("fish", &home);
    fish.args(["--no-config", "--command", program]).arg(script).arg(line);
    offers(fish)
}

/// What zsh offers for a line.
fn zsh_offers(line: &str) -> Vec<String> {
    let (home, script) = completions("zsh", "_larder");
    let mut zsh = shell("zsh", &home);
    zsh.args(["-f", "-o", "extendedglob"]).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/complete.zsh"));
    zsh.arg(executable("zsh")).arg(script).arg(line);
    offers(zsh)
}

/// Held by every shell whose completions can be told a line.
fn completes(offers: impl Fn(&str) -> Vec<String>) {
    let has_all = |line: &str, words: &[&str]| {
        let offered = offers(line);
        assert!(words.iter().all(|word| offered.iter().any(|offer| offer == word)), "{line:?}: {offered:?}");
    };
    has_all("larder ", &["lock", "counter", "set", "drop", "demo"]);
    has_all("larder set ", &["add", "remove", "has", "members", "compact", "stat"]);
    has_all("larder counter add --", &["--copies", "--existing"]);
    // A word that was begun goes on as it began.
    let begun = offers("larder set rem");
    assert_eq!(begun, ["remove"]);
    assert!(offers("larder set x").is_empty());
}

#[test]
fn fish_loads_the_completions_and_offers_structures_verbs_and_options() {
    completes(fish_offers);
}

#[test]
fn zsh_loads_the_completions_and_offers_structures_verbs_and_options() {
    completes(zsh_offers);
}

/// The most memory that a process has had, in KiB, but for the pages of its own program, which is as large as it was built.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |field: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    kib("VmHWM:") - kib("RssFile:")
}

#[test]
fn standard_input_is_taken_as_it_comes_and_never_held_whole() {
    const LINES: usize = 600_000;
    let server = Memcached::start(Version::New, &["-m", "256"]);
    let mut command = larder(["set", "add", "tags", "--shards", "256", "-"]);
    let mut child = command.env("LARDER_STORE", server.url()).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // 36 MB in all.
    let mut early = 0;
    for line in 0..LINES {
        if line == LINES / 10 {
            early = peak_kib(child.id());
        }
        stdin.write_all(format!("{line:059}\n").as_bytes()).unwrap();
    }
    let peak = peak_kib(child.id());
    drop(stdin);
    wait(child).exits(0);
    assert!(peak < 30 * 1024, "{peak} KiB for 36 MB of input");
    assert!(peak < early + 4 * 1024, "{peak} KiB, and {early} when a tenth of it was read");
    let stat = on(&server.url(), "--json set stat tags").json();
    assert_eq!(stat["members"], LINES);
}

/// What a line of a shell shows at a terminal, which `script` of util-linux gives it; `larder` in it is the command.
fn at_a_terminal(url: Option<&str>, line: &str) -> String {
    // What is at stake is what is shown, and not how fast a busy machine is.
    let line = format!("larder() {{ {} --timeout 60s \"$@\"; }}; {line}", env!("CARGO_BIN_EXE_larder"));
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm-256color")
        .env("COLUMNS", "120");
    command.env_remove("NO_COLOR").env_remove("LARDER_STORE").envs(url.map(|url| ("LARDER_STORE", url)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().expect("script, of util-linux")).exits(0)
}

/// Each takes longer than what nothing is shown of: by a pause in its input, by as much as it has to do, or since it shows itself at once.
#[test]
fn at_a_terminal_what_takes_long_shows_how_far_it_is() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let url = server.url();
    let shows = |line: &str, parts: &[&str]| {
        let shown = at_a_terminal(Some(&url), line);
        assert!(parts.iter().all(|part| shown.contains(part)), "{line}: {shown:?} has not all of {parts:?}");
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ids");
    fs::write(&file, (0..400_000).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    let ids = file.display();
    shows("(seq 9; sleep 1; seq 10 30) | larder unique add site -", &[" 30 elements", "30\r\n"]);
    let of_all = ["█", " of 2,688,890 bytes of input", "400000\r\n"];
    shows(&format!("larder unique add day --expected 400000 - < {ids}"), &of_all);
    // A part of a file that others have read from.
    shows(&format!("(read one; read two; larder unique add rest - | cat) < {ids}"), &["of 2,688,886 bytes of input"]);
    shows(
        "seq 30000 | larder sharded-set add seen --shards 300 - && larder reshard seen --shards 800",
        &["━", "of 800 shards"],
    );
    shows(
        "(seq -f %g,a 0 9; sleep 1; seq -f %g,b 10 30) | larder lookup build names - --header id,name",
        &["bytes read", "31 rows"],
    );
    shows("larder memory report", &["listed ", " keys", "measured "]);
}

/// The figures that stand right before some words, of each time that they were drawn.
fn drawn(shown: &str, words: &str) -> Vec<u64> {
    let figure = |before: &str| -> String {
        let from = before.rfind(|letter: char| !(letter.is_ascii_digit() || letter == ',')).map_or(0, |at| at + 1);
        before[from..].replace(',', "")
    };
    shown.match_indices(words).filter_map(|(at, _)| figure(&shown[..at]).parse().ok()).collect()
}

/// What is drawn is not the end alone: the figures grow.
#[test]
fn at_a_terminal_the_figures_of_what_takes_long_grow() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let url = server.url();
    let grow = |line: &str, words: &str| {
        let shown = at_a_terminal(Some(&url), line);
        // Of the report what it listed.
        let figures = drawn(shown.split("measured").next().unwrap_or_default(), words);
        assert!(figures.is_sorted() && figures.first() < figures.last(), "{line}: {figures:?} of {shown:?}");
    };
    at_a_terminal(
        Some(&url),
        "larder records define users n:u32; seq 60000 | larder sharded-set add seen --shards 300 -",
    );
    let pauses = |line: &str, of: &str| format!("({line} 0 9; sleep 1; {line} 10 29; sleep 1; {line} 30 31) | {of}");
    grow(&pauses("seq -f '%g n=1'", "larder records set users -"), " elements");
    grow("larder reshard seen --shards 3000", " of 3000 shards");
    grow(&pauses("seq -f %g,name", "larder lookup build names - --header id,name"), " of ");
    grow("larder memory report --rate 1000", " of ");
}

#[test]
fn at_a_terminal_the_demo_draws_a_bar_and_colours_its_table() {
    let shown = at_a_terminal(None, "larder demo --seconds 1");
    assert!(shown.contains('━') && shown.contains(" operations"), "no bar: {shown}");
    assert!(shown.contains("\x1b[") && shown.contains('✓'), "no colours: {shown}");
}
