//! Every async method of the structures has a blocking twin of its name in the facade, so that a program without async lacks nothing.
//!
//! Read from both sources: `impl` blocks, and the macros that write them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::command::{Context, Result};
use crate::style;

const STRUCTURES: &str = "crates/structures/src/";
const BLOCKING: &str = "crates/larder/src/blocking/";

/// Fewer methods than this, and the reading of the sources has gone wrong.
const METHODS_MIN: usize = 100;

/// The types that macros write, by the macros' own word for them.
const MACROS: &[(&str, &str, &[&str])] = &[
    ("queue/handle.rs", "$name", &["Queue", "Stack"]),
    ("sharded/mod.rs", "$Type", &["ShardedHash", "ShardedSet", "ShardedSortedSet"]),
    ("blocking/queue.rs", "$name", &["Queue", "Stack"]),
];

/// What has no twin, and why.
const NONE: &[(&str, &str, &str)] = &[
    ("Cache", "lookup", "its lease is ended by async code; `get_or_rebuild` takes a closure"),
    ("Rebuild", "finish", "as `Cache::lookup`"),
    ("Rebuild", "give_up", "as `Cache::lookup`"),
    ("LockGuard", "run", "what it runs is async"),
];

/// The methods of each type.
type Methods = BTreeMap<String, BTreeSet<String>>;

/// Returns a line for each async method without a twin, and for each exception that is none.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let (mut handles, mut twins) = (Methods::new(), Methods::new());
    for file in style::files(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let (methods, marks): (_, &[&str]) = match &name {
            name if name.starts_with(STRUCTURES) => (&mut handles, &["pub async fn "]),
            name if name.starts_with(BLOCKING) => (&mut twins, &["fn ", "pub fn "]),
            _ => continue,
        };
        let text = fs::read_to_string(&file).context(|| format!("could not read {name}"))?;
        collect(&name, &text, marks, methods);
    }
    // Options are waited for by `wait`.
    handles.retain(|handle, _| !handle.ends_with("Options"));
    let mut found = missing(&handles, &twins);
    let count: usize = handles.values().map(BTreeSet::len).sum();
    if count < METHODS_MIN {
        found.push(format!("{count} async methods were found; there were at least {METHODS_MIN}"));
    }
    Ok(found)
}

fn missing(handles: &Methods, twins: &Methods) -> Vec<String> {
    let has = |methods: &Methods, handle: &str, method: &str| {
        methods.get(handle).is_some_and(|methods| methods.contains(method))
    };
    let mut found = Vec::new();
    for (handle, methods) in handles {
        for method in methods.iter().filter(|method| !has(twins, handle, method)) {
            // The twin's macro writes it.
            let is_opener = method.starts_with("open") && twins.contains_key(handle);
            if !is_opener && !NONE.iter().any(|(of, name, _)| (of, name) == (&handle.as_str(), &method.as_str())) {
                found.push(format!("{handle}::{method} has no blocking twin"));
            }
        }
    }
    for (handle, method, why) in NONE {
        if !has(handles, handle, method) || has(twins, handle, method) {
            found.push(format!("{handle}::{method} is said to have no twin ({why}): it has one, or is none itself"));
        }
    }
    found
}

/// Takes in the methods of one source, whose lines begin with one of these marks.
fn collect(file: &str, text: &str, marks: &[&str], methods: &mut Methods) {
    let mut of: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(name) = block(line) {
            let written = MACROS.iter().find(|(place, word, _)| file.ends_with(place) && *word == name);
            of = written.map_or_else(|| vec![name], |(.., names)| names.to_vec());
        }
        let Some(rest) = marks.iter().find_map(|mark| line.strip_prefix(mark)) else { continue };
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        for name in &of {
            methods.entry((*name).to_owned()).or_default().insert(rest[..end].to_owned());
        }
    }
}

/// The type whose methods follow: `impl Type {`, `impl<T> Type<T> {`, and the first line of a twin, `Type(open_or_create);`.
fn block(line: &str) -> Option<&str> {
    let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && !"_$".contains(c)).unwrap_or(text.len());
    if let Some(rest) = line.strip_prefix("impl").filter(|_| line.ends_with('{') && !line.contains(" for ")) {
        let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.trim_start() };
        return Some(&rest[..word(rest)]);
    }
    let name = &line[..word(line)];
    ["();", "(open_or_create);"].contains(&&line[name.len()..]).then_some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLES: &str = "impl Lock {\n    pub async fn open(x: u8) {\n    pub async fn status(&self) {\n    pub fn name(&self) {\n}\n\
        impl fmt::Debug for Other {\n}\nimpl<T: Sealed> Options<T> {\n    pub async fn open() {\n}\nmacro_rules! handle {\n        impl $name {\n            pub async fn pop(&self) {\n";

    fn read(file: &str, text: &str, marks: &[&str]) -> Vec<String> {
        let mut methods = Methods::new();
        collect(file, text, marks, &mut methods);
        methods.iter().flat_map(|(of, names)| names.iter().map(move |name| format!("{of}::{name}"))).collect()
    }

    #[test]
    fn methods_are_read_with_the_type_that_has_them() {
        let found = read("crates/structures/src/queue/handle.rs", HANDLES, &["pub async fn "]);
        assert_eq!(found, ["Lock::open", "Lock::status", "Options::open", "Queue::pop", "Stack::pop"]);
        let twins = "twin! {\n    /// Text.\n    Lock();\n    fn status(&self) -> X = \"\";\n}\nimpl Lock {\n    pub fn acquire(&self) {\n";
        let found = read("crates/larder/src/blocking/lock.rs", twins, &["fn ", "pub fn "]);
        assert_eq!(found, ["Lock::acquire", "Lock::status"]);
    }

    #[test]
    fn what_has_no_twin_and_an_exception_that_is_none_are_found() {
        let of = |methods: &[&str]| methods.iter().map(|&name| name.to_owned()).collect::<BTreeSet<String>>();
        let except: Vec<(String, &str)> =
            NONE.iter().map(|(handle, method, _)| ((*handle).to_owned(), *method)).collect();
        let mut handles = Methods::new();
        for (handle, method) in except {
            handles.entry(handle).or_default().insert(method.to_owned());
        }
        assert_eq!(missing(&handles, &Methods::new()), [""; 0]);
        handles.insert("Lock".to_owned(), of(&["open", "status"]));
        let twins = Methods::from([("Lock".to_owned(), of(&["acquire"])), ("LockGuard".to_owned(), of(&["run"]))]);
        let found = missing(&handles, &twins);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("Lock::status has no") && found[1].starts_with("LockGuard::run is said"),
            "{found:?}"
        );
    }
}
