//! A folder with a damaged table, served or opened: every command that meets the damage ends with an error that names the file, and none takes it for nothing.

mod common;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Child;

use common::{Done, finish, larder, on, on_with_input, until};
use larder_server::DurableOptions;

/// A server on a socket; killed when it is dropped.
struct Served(Child, String);

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn serve(folder: &Path) -> Served {
    let socket = folder.join("socket");
    let mut command = larder(["serve", "-s"]);
    let child = command.arg(&socket).arg("--store").arg(format!("file:{}", folder.join("store").display()));
    let child = child.spawn().unwrap();
    once_served(child, &socket)
}

fn once_served(mut child: Child, socket: &Path) -> Served {
    until("the server", || {
        if child.try_wait().unwrap().is_some() {
            let mut said = String::new();
            child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said).unwrap());
            panic!("it ended: {said}");
        }
        std::os::unix::net::UnixStream::connect(socket).is_ok()
    });
    Served(child, format!("memcached+unix://{}", socket.display()))
}

fn tables(folder: &Path) -> Vec<PathBuf> {
    let tables = folder.join("store/engine/keyspaces/1/tables");
    std::fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A store with some structures, all of it in a table, and a byte of a large set flipped: the name of the table.
fn damaged(folder: &Path) -> String {
    let store = format!("file:{}", folder.join("store").display());
    on(&store, "counter add a1 5").exits(0);
    // What the engine cannot make shorter.
    let mut random = 1_u64;
    let mut word = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{random:016x}")
    };
    let words: Vec<String> = (0..2_000).map(|_| word()).collect();
    // The first stands before the second: what a store reads when it is opened is in another block.
    on_with_input(&store, "set add a2 - --shards 1", words[..1_000].join("\n").as_bytes()).exits(0);
    on_with_input(&store, "set add tags - --shards 1", words[1_000..].join("\n").as_bytes()).exits(0);
    DurableOptions::new(folder.join("store")).open().unwrap().settle().unwrap();
    let mut flipped = None;
    for path in tables(folder) {
        let mut bytes = std::fs::read(&path).unwrap();
        let found = words
            .iter()
            .skip(1_000)
            .find_map(|word| bytes.windows(word.len()).position(|window| window == word.as_bytes()));
        if let Some(at) = found {
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            flipped = path.file_name().map(|name| format!("tables/{}", name.to_str().unwrap()));
        }
    }
    flipped.expect("a word that stands in a table as it is")
}

#[track_caller]
fn tells(done: &Done, line: &str, table: &str) {
    assert_ne!(done.code(), 0, "{line}: {}", done.text());
    let named = done.stderr.contains(table) && done.stderr.contains("is damaged in the block at byte ");
    assert!(done.stderr.contains("corrupt") && named, "{line}: {}", done.stderr);
}

#[test]
fn what_meets_a_damaged_table_names_it_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let table = damaged(folder.path());
    let dump = folder.path().join("x.dump");
    for (number, served) in [true, false].into_iter().enumerate() {
        let server = served.then(|| serve(folder.path()));
        let url = server
            .as_ref()
            .map_or_else(|| format!("file:{}", folder.path().join("store").display()), |Served(_, url)| url.clone());
        for line in ["ls", "inspect tags", "set members tags", "set has tags blue", "set add tags blue"] {
            tells(&on(&url, line), line, &table);
        }
        tells(&finish(larder(["--store", &url, "export"]).arg(&dump)), "export", &table);
        // What was written of it is no dump.
        let to = format!("file:{}", folder.path().join(format!("other{number}")).display());
        if dump.exists() {
            assert_ne!(finish(larder(["--store", &to, "import"]).arg(&dump)).code(), 0);
            std::fs::remove_file(&dump).unwrap();
        }
        // What stands elsewhere is served.
        assert_eq!(on(&url, "counter get a1").exits(0), "5\n");
        if !served {
            tells(&on(&url, "check"), "check", &table);
        }
    }
}

/// Whoever opens the store first.
#[test]
fn what_was_cut_off_a_journal_is_told_by_a_check_and_when_a_server_begins() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file:{}", folder.path().join("store").display());
    on(&store, "counter add hits").exits(0);
    let tear = || {
        let journal = folder.path().join("store/engine/0.jnl");
        let bytes = std::fs::read(&journal).unwrap();
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        std::fs::write(&journal, [&bytes[..end], b"torn"].concat()).unwrap();
    };
    let told = "4 bytes were cut off the journal when the store was opened";
    tear();
    assert!(on(&store, "check").exits(0).contains(told));
    assert!(!on(&store, "check").exits(0).contains("cut off"), "they are gone");
    tear();
    assert_eq!(on(&store, "check --json").json()["torn_bytes"], 4);
    tear();
    let (socket, log) = (folder.path().join("socket"), folder.path().join("log"));
    let mut command = larder(["serve", "--store", &store, "-s"]);
    let child = command.arg(&socket).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let server = once_served(child, &socket);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("WARN") && said.contains(told), "{said}");
    assert_eq!(on(&server.1, "counter get hits").exits(0), "1\n");
}
