//! What a script of the Redis store may touch: the key in `KEYS[1]`, and nothing else. A cluster runs a script where that key is.

use std::fs;
use std::path::Path;

use crate::command::{Context, Result};

const FOLDER: &str = "crates/store-redis/src/scripts";
const KEY: &str = "KEYS[1]";
const CALLS: [&str; 2] = ["redis.call", "redis.pcall"];

/// A line for each call in a script whose key is another.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).context(|| format!("could not read {}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "lua")) {
        let text = fs::read_to_string(file).context(|| format!("could not read {}", file.display()))?;
        check(&file.strip_prefix(root).unwrap_or(file).display().to_string(), &text, &mut found);
    }
    Ok(found)
}

fn check(name: &str, text: &str, found: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().map(|line| line.split("--").next().unwrap_or_default().trim()).collect();
    let mut calls: Vec<&str> = CALLS.to_vec();
    let mut keys = vec![KEY];
    for (at, line) in lines.iter().enumerate() {
        let Some((names, values)) = line.strip_prefix("local ").and_then(|rest| rest.split_once('=')) else { continue };
        for (bound, value) in parts(names).into_iter().zip(parts(values)) {
            if calls.contains(&value) {
                calls.push(bound);
            } else if value == KEY {
                keys.push(bound);
            } else if keys.contains(&bound) {
                found.push(format!("{name}:{}: `{bound}` stands for `{KEY}`, and is `{value}` from here on", at + 1));
            }
        }
    }
    let code = lines.join("\n");
    let mut rest = &code[..];
    while let Some(next) = rest.chars().next() {
        let at = code[..code.len() - rest.len()].matches('\n').count();
        let mut say = |what: String| found.push(format!("{name}:{}: {what}", at + 1));
        let skipped = quoted_bytes(rest);
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
        let (word, after) = rest.split_at(if skipped > 0 { skipped } else { end.max(next.len_utf8()) });
        let follows = after.trim_start();
        let is_bound = lines[at].starts_with("local ");
        if word == "KEYS" && !follows.starts_with("[1]") {
            say(format!("another key than `{KEY}`"));
        } else if calls.contains(&word) {
            match follows.strip_prefix('(').map(parts) {
                Some(args) if args.get(1).is_some_and(|key| keys.contains(key)) => {}
                Some(args) => say(format!("`{word}({})` does not name `{KEY}` behind the command", args.join(", "))),
                None if is_bound || is_exchanged(lines[at], &calls) => {}
                None => say(format!("`{word}` goes where its key cannot be seen")),
            }
        } else if keys.contains(&word) && !is_bound && follows.starts_with('=') && !follows.starts_with("==") {
            say(format!("`{word}` stands for `{KEY}`, and becomes another"));
        }
        rest = after;
    }
}

/// True where what calls stands for another of those that do from here on: their keys are seen.
fn is_exchanged(line: &str, calls: &[&str]) -> bool {
    let Some((names, values)) = line.split_once(" = ") else { return false };
    parts(names).into_iter().zip(parts(values)).all(|(bound, value)| !calls.contains(&value) || calls.contains(&bound))
}

/// What stands between commas, up to the parenthesis that closes or the end; commas in parentheses, braces and quotes are not between.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut at, mut depth) = (Vec::new(), 0, 0, 0_usize);
    while let Some(next) = text[at..].chars().next() {
        match next {
            ')' | '}' | ']' if depth == 0 => break,
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        at += quoted_bytes(&text[at..]).max(next.len_utf8());
    }
    parts.push(text[begin..at].trim());
    parts
}

/// The length of the string that begins here, or 0.
fn quoted_bytes(text: &str) -> usize {
    let Some(quote) = text.chars().next().filter(|&c| c == '\'' || c == '"') else { return 0 };
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check("a.lua", text, &mut found);
        found
    }

    #[test]
    fn the_key_is_found_by_each_of_its_names() {
        let good = "-- redis.call('GET', ARGV[1])\n\
                    local call, key, from = redis.call, KEYS[1], ARGV[2]\n\
                    local head = call('GETRANGE', key, 0, string.len('a, (b'))\n\
                    if head == '' and redis.pcall('EXISTS', KEYS[1]) == 0 and key == KEYS[1] then return 'call KEYS' end\n\
                    return {call(from, key), redis.call('PTTL', KEYS[1])}\n";
        assert_eq!(found(good), [""; 0]);
        let exchanged = "local call = redis.call\nlocal told, run = {}, call\ntold[#told + 1], run = 1, redis.pcall\nreturn run('GET', KEYS[1])";
        assert_eq!(found(exchanged), [""; 0]);
    }

    #[test]
    fn another_key_is_found_with_its_line() {
        for (bad, said) in [
            ("local x = 1\nredis.call('SET', ARGV[1], 'v')", "a.lua:2: `redis.call('SET', ARGV[1], 'v')`"),
            ("local call = redis.call\ncall('GET', 'KEYS[1]')", "a.lua:2: `call('GET', 'KEYS[1]')`"),
            ("redis.call('COPY', KEYS[1], KEYS[2])", "a.lua:1: another key"),
            ("redis.call('FLUSHALL')", "a.lua:1: `redis.call('FLUSHALL')`"),
            ("redis.pcall('GET', KEYS[1] .. 'x')", "a.lua:1: `redis.pcall('GET', KEYS[1] .. 'x')`"),
            ("local key = KEYS[1]\nkey = ARGV[1]\nredis.call('GET', key)", "a.lua:2: `key` stands for `KEYS[1]`"),
            ("local key = KEYS[1]\nlocal key = ARGV[1]\nredis.call('GET', key)", "a.lua:2: `key` stands for"),
            ("return pcall(redis.call, 'GET', 'x')", "a.lua:1: `redis.call` goes where"),
            ("local told = 1\ntold, other = 2, redis.call\nother('GET', 'x')", "a.lua:2: `redis.call` goes where"),
        ] {
            let found = found(bad);
            assert!(found.len() == 1 && found[0].starts_with(said), "{bad:?}: {found:?}");
        }
    }

    #[test]
    fn every_script_of_the_store_is_looked_at() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        assert_eq!(violations(root).unwrap(), [""; 0]);
        assert!(root.join(FOLDER).join("guarded.lua").is_file());
    }
}
