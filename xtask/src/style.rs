//! What clippy does not hold: the length of files, unfinished code, switched-off tests, `unsafe`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Context, Result};

const FILE_LINES_MAX: usize = 800;
/// Folders with Rust code of ours.
const FOLDERS: &[&str] = &["crates", "bench", "prove", "xtask"];
/// Files that may say `unsafe`, each of which argues for it at its head.
const UNSAFE_ALLOWED: &[&str] = &["crates/store-memory/src/item.rs", "crates/store-durable/src/told.rs"];

/// What may not stand in code (comments and strings are not code), and why.
const BANNED: &[(&str, &str)] = &[
    ("todo!", "is unfinished"),
    ("unimplemented!", "is unfinished"),
    ("#[ignore", "switches a test off"),
    ("too_many_lines", "lifts the limit on functions: split the function"),
];

/// Rooms whose code runs in simulations, where time and randomness come from a seed.
const SIMULATED: &[&str] = &["crates/structures/src/", "crates/layers/src/"];

/// What may not stand in their code, tests aside, and what does it there.
const BANNED_IN_SIMULATED: &[(&str, &str)] = &[
    ("Instant::now", "ambient::now"),
    ("SystemTime::now", "the clock that the handle was made with"),
    ("RandomState", "ambient::random, or hash::State for a map"),
];

/// Returns a line for each fault in the style of the workspace's Rust files.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in files(root)? {
        let text = fs::read_to_string(&file).context(|| format!("could not read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        check(&name, &text, &mut found);
    }
    Ok(found)
}

/// The Rust files of the workspace, sorted.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    Ok(files)
}

/// The Rust files below a folder, but for build output and hidden folders.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).context(|| format!("could not read {}", folder.display()))?;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, files)?;
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn check(name: &str, text: &str, found: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        found.push(format!("{name}: {lines} lines, the limit is {FILE_LINES_MAX}: split the file"));
    }
    let is_simulated = SIMULATED.iter().any(|room| name.starts_with(room)) && !name.ends_with("tests.rs");
    // Tests stand last in a file. The runtime's clock is the simulation's.
    let tests_from = text.lines().position(|line| line == "mod tests {").unwrap_or(usize::MAX);
    let is_by_runtime = text.contains("use tokio::time::Instant;");
    for (number, line) in code_only(text).lines().enumerate() {
        for (banned, instead) in BANNED_IN_SIMULATED {
            let is_banned = is_simulated && number < tests_from && !(is_by_runtime && *banned == "Instant::now");
            if is_banned && line.replace("SeedableRandomState", "").contains(banned) {
                found.push(format!("{name}:{}: `{banned}` is not the simulation's: {instead}", number + 1));
            }
        }
        let number = number + 1;
        for (banned, why) in BANNED {
            if line.contains(banned) {
                found.push(format!("{name}:{number}: `{banned}` {why}"));
            }
        }
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if words.any(|word| word == "unsafe") && !UNSAFE_ALLOWED.contains(&name) {
            found.push(format!("{name}:{number}: `unsafe` outside the allowed files {UNSAFE_ALLOWED:?}"));
        }
    }
}

/// The text with comments, strings and character literals blanked out, its lines kept.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = literal_bytes(rest, code.chars().next_back());
        let taken = if skipped > 0 { skipped } else { next.len_utf8() };
        let (part, after) = rest.split_at(taken);
        if skipped > 0 {
            code.push(' ');
            code.extend(part.chars().filter(|&c| c == '\n'));
        } else {
            code.push(next);
        }
        rest = after;
    }
    code
}

/// The length of the comment or literal that starts here, or 0.
pub(crate) fn literal_bytes(text: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment_bytes(text);
    }
    if text.starts_with('"') {
        return escaped_bytes(text, '"');
    }
    if text.starts_with('\'') {
        return char_bytes(text);
    }
    let raw = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r');
    match raw {
        Some(raw) if !in_word => raw_bytes(raw).map_or(0, |bytes| text.len() - raw.len() + bytes),
        _ => 0,
    }
}

/// Block comments nest.
fn block_comment_bytes(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// From a quote to the next one that is not escaped.
fn escaped_bytes(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// A character literal, or 0 for a lifetime: that has no closing quote after one character.
fn char_bytes(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => escaped_bytes(text, '\''),
        _ => 0,
    }
}

/// `#"…"#` with any number of hashes; `None` for an identifier that begins with `r`.
fn raw_bytes(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &text[..hashes]);
    Some(body.find(&end).map_or(text.len(), |at| hashes + 1 + at + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        let mut found = Vec::new();
        check("a.rs", text, &mut found);
        found.join("\n")
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(found(&"\n".repeat(800)), "");
        assert!(found(&"\n".repeat(801)).contains("a.rs: 801 lines, the limit is 800"));
    }

    #[test]
    fn unfinished_code_is_found_with_its_line() {
        assert!(found("fn f() {\n    todo!()\n}\n").contains("a.rs:2: `todo!`"));
        assert!(found("fn f() { unimplemented!(\"later\") }").contains("a.rs:1: `unimplemented!`"));
    }

    #[test]
    fn a_test_switched_off_is_found() {
        assert!(found("#[test]\n#[ignore]\nfn f() {}").contains("a.rs:2: `#[ignore`"));
        assert!(found("#[ignore = \"slow\"]\nfn f() {}").contains("switches a test off"));
    }

    #[test]
    fn a_lifted_limit_is_found() {
        assert!(found("#[allow(clippy::too_many_lines)]\nfn f() {}").contains("split the function"));
    }

    #[test]
    fn time_and_randomness_past_a_simulation_are_found() {
        let told = |name: &str, text: &str| {
            let mut found = Vec::new();
            check(name, text, &mut found);
            found.join("\n")
        };
        let room = "crates/structures/src/a.rs";
        assert!(
            told(room, "fn f() {\n    Instant::now();\n}").contains("a.rs:2: `Instant::now` is not the simulation's")
        );
        assert!(told(room, "type M = HashMap<u8, u8, RandomState>;").contains("hash::State"));
        assert_eq!(told(room, "use tokio::time::Instant;\nfn f() { Instant::now(); }"), "");
        assert_eq!(told(room, "// Instant::now\nmod tests {\n    fn f() { Instant::now(); }\n}"), "");
        assert_eq!(told("crates/cli/src/a.rs", "fn f() { Instant::now(); }"), "");
    }

    #[test]
    fn unsafe_is_found_as_a_word_of_code() {
        assert!(found("fn f() { unsafe { g() } }").contains("a.rs:1: `unsafe`"));
        let mut allowed = Vec::new();
        check(UNSAFE_ALLOWED[0], "unsafe fn f() {}", &mut allowed);
        assert!(allowed.is_empty());
        assert_eq!(found("#![deny(unsafe_code)]\n// unsafe\nlet s = \"unsafe\";"), "");
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let blanked = |text: &str| code_only(text).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(blanked("a // b\nc"), "a c");
        assert_eq!(blanked("a /* b /* c */ d */ e"), "a e");
        assert_eq!(blanked(r#"a "b \" c" d"#), "a d");
        assert_eq!(blanked("a r#\"b \" c\"# d"), "a d");
        assert_eq!(blanked("a br##\"b\"# c\"## d"), "a d");
        assert_eq!(blanked("a '\"' b '\\'' c"), "a b c");
        assert_eq!(blanked("fn f<'a>(x: &'a str) -> r#type"), "fn f<'a>(x: &'a str) -> r#type");
        assert_eq!(blanked("var\"x\" b'y' z"), "var b z");
    }

    #[test]
    fn lines_are_kept() {
        assert_eq!(code_only("a\n/* b\nc */\n\"d\ne\"\nf").lines().count(), 6);
        assert!(found("/* a\nb */\n\"c\nd\";\ntodo!()").contains("a.rs:5"));
    }
}
