//! The cookbook's shell commands: the blocks marked `console,tested` are run against a real server, and print what stands there.

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{finish, larder};
use larder_testkit::servers::{Memcached, Version};

/// A line behind a `$`, and what it prints.
#[derive(Debug)]
struct Example {
    command: String,
    output: String,
}

fn pages() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cookbook/src");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    pages.sort();
    pages
}

/// The pages of structures: not those that only include a document of the repository, nor what is about servers, or about tests.
fn chapters() -> Vec<PathBuf> {
    let is_chapter = |page: &PathBuf| {
        let text = std::fs::read_to_string(page).unwrap();
        let is_other =
            ["SUMMARY.md", "introduction.md", "memory.md", "testing.md"].iter().any(|name| page.ends_with(name));
        !is_other && !text.starts_with("{{#include ")
    };
    let chapters: Vec<PathBuf> = pages().into_iter().filter(is_chapter).collect();
    assert!(chapters.len() >= 12, "the reading of the pages has gone wrong: {chapters:?}");
    chapters
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line {
            "```console,tested" => is_inside = true,
            "```" => is_inside = false,
            _ if !is_inside => {}
            _ => match line.strip_prefix("$ ") {
                Some(command) => examples.push(Example { command: command.to_owned(), output: String::new() }),
                None => {
                    let last = examples.last_mut().expect("a block begins with a command");
                    last.output.push_str(line);
                    last.output.push('\n');
                }
            },
        }
    }
    examples
}

/// Runs a line in a shell that finds the built command.
fn run(url: &str, example: &Example) -> String {
    let built = Path::new(env!("CARGO_BIN_EXE_larder"));
    let path = format!("{}:{}", built.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    // Only to have its clean environment.
    let clean = larder([""; 0]);
    let mut shell = std::process::Command::new("sh");
    for (name, value) in clean.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", &example.command]).env("PATH", path).env("LARDER_STORE", url);
    let done = finish(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(done.status.success(), "{}: {}", example.command, done.stderr);
    done.text()
}

#[test]
fn the_cookbooks_commands_print_what_it_says() {
    for page in chapters() {
        let examples = examples(&std::fs::read_to_string(&page).unwrap());
        assert!(!examples.is_empty(), "{} has no commands that are run", page.display());
        for version in Version::ALL {
            let server = Memcached::start(version, &[]);
            for example in &examples {
                let printed = run(&server.url(), example);
                assert_eq!(printed, example.output, "{}: $ {}", page.display(), example.command);
            }
        }
    }
}

/// mdBook fails on a page that is named and missing; so does this, without mdBook. And a page that is not named is never seen.
#[test]
fn the_list_of_pages_names_what_is_there() {
    let list = std::fs::read_to_string(pages().into_iter().find(|page| page.ends_with("SUMMARY.md")).unwrap()).unwrap();
    let programs =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../larder/src/cookbook.rs")).unwrap();
    for page in pages() {
        let file = page.file_name().unwrap().to_str().unwrap();
        if file != "SUMMARY.md" {
            assert!(list.contains(&format!("]({file})")), "{file} is not in SUMMARY.md");
        }
        // A document of the repository, which the book includes, has no programs of its own.
        let is_included = std::fs::read_to_string(&page).unwrap().starts_with("{{#include ");
        if file != "SUMMARY.md" && !is_included {
            assert!(programs.contains(&format!("src/{file}\"")), "the programs of {file} are not compiled");
        }
    }
}
