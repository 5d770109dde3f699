//! A folder with a damaged table, served or opened: every command that meets the damage ends with an error that names the file, and none takes it for nothing.

mod common;

use std::path::{Path, PathBuf};
use std::process::Child;

use common::{Done, finish, larder, on, until};
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
    until("the server", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    Served(child, format!("memcached+unix://{}", socket.display()))
}

fn tables(folder: &Path) -> Vec<PathBuf> {
    let tables = folder.join("store/engine/keyspaces/1/tables");
    std::fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A store with some structures, all of it in one table, and a byte of the first block flipped: the name of the table.
fn damaged(folder: &Path) -> String {
    let store = format!("file:{}", folder.join("store").display());
    for line in ["counter add hits 5", "set add tags red green", "table put prices apple 3"] {
        on(&store, line).exits(0);
    }
    DurableOptions::new(folder.join("store")).open().unwrap().settle().unwrap();
    let found = tables(folder);
    for path in &found {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[60] ^= 4;
        std::fs::write(path, bytes).unwrap();
    }
    assert!(!found.is_empty());
    format!("tables/{}", found[0].file_name().unwrap().to_str().unwrap())
}

#[track_caller]
fn tells(done: &Done, line: &str, table: &str) {
    assert_ne!(done.code(), 0, "{line}: {}", done.text());
    // A store with several tables names the one that it met.
    let named = done.stderr.contains(table.split('/').next().unwrap())
        && done.stderr.contains("is damaged in the block at byte 0");
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
        for line in [
            "ls",
            "inspect tags",
            "counter get hits",
            "set members tags",
            "table get prices apple",
            "set add tags blue",
        ] {
            tells(&on(&url, line), line, &table);
        }
        tells(&finish(larder(["--store", &url, "export"]).arg(&dump)), "export", &table);
        // What was written of it is no dump.
        let to = format!("file:{}", folder.path().join(format!("other{number}")).display());
        if dump.exists() {
            assert_ne!(finish(larder(["--store", &to, "import"]).arg(&dump)).code(), 0);
            std::fs::remove_file(&dump).unwrap();
        }
        if !served {
            tells(&on(&url, "check"), "check", &table);
        }
    }
}
