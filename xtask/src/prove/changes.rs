//! What has changed since a commit: the product, or tests and comments alone.

use std::borrow::Cow;
use std::path::Path;
use std::process::Command;

use crate::command::output;

/// Packages that the product is not built of: tools, and what measures it.
const TOOLS: [&str; 2] = ["xtask", "larder-bench"];
/// Tests that stand in a library, so that each store's own can run them: no part of the proof does.
const CONFORMANCE: &str = "crates/testkit/src/conformance/";
/// What begins the tests at the end of a file, and what begins those that stand in a file of their own.
const TESTS: [&str; 2] = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
const TESTS_ELSEWHERE: &str = "#[cfg(test)]\n#[path = \"";

/// Whether nothing but tests and comments is another in these folders and files than it was at a commit: what is tested, and how it is built. A tree that had changes is no commit, and tells nothing.
pub(super) fn is_same_product(root: &Path, commit: &str, places: &[&str]) -> bool {
    let git = |words: &[&str]| output(Command::new("git").args(words).current_dir(root)).ok();
    let Some(files) = git(&[&["diff", "--name-only", "--no-renames", "-z", commit, "--"], places].concat()) else {
        return false;
    };
    files.split_terminator('\0').all(|file| {
        // A file that came or went has no text on one side, and one that is no text none on either.
        let before = git(&["show", &format!("{commit}:{file}")]);
        let after = std::fs::read_to_string(root.join(file)).ok();
        let product = |text: &Option<String>| product_of(file, text.as_deref().unwrap_or("")).into_owned();
        (before.is_some() || after.is_some()) && product(&before) == product(&after)
    })
}

/// What of a file's text is no test, no comment and no tool.
pub(crate) fn product_of<'t>(file: &str, text: &'t str) -> Cow<'t, str> {
    match file {
        "Cargo.lock" => without_tools(text).into(),
        file if file.ends_with(".rs") => match without_declared(without_tests(file, text)) {
            // What a command says of itself is written as comments.
            code if code.contains("clap") => code,
            code => without_comments(&code).into(),
        },
        _ => text.into(),
    }
}

/// The packages of a lock file but the tools.
fn without_tools(lock: &str) -> String {
    let is_tool = |package: &&str| TOOLS.iter().any(|tool| package.starts_with(&format!("name = \"{tool}\"\n")));
    lock.split("[[package]]\n").filter(|package| !is_tool(package)).collect()
}

fn without_tests<'t>(file: &str, text: &'t str) -> &'t str {
    if file.starts_with(CONFORMANCE)
        || file.contains("/tests/")
        || file.ends_with("_tests.rs")
        || file.ends_with("/tests.rs")
    {
        return "";
    }
    // What stands behind the tests is none.
    let is_last =
        |tests: usize, end: &str| text[tests..].find(end).is_some_and(|found| tests + found + end.len() == text.len());
    match (TESTS.iter().filter_map(|tests| text.find(tests)).min(), text.rfind(TESTS_ELSEWHERE)) {
        (Some(tests), _) if is_last(tests, "\n}\n") => &text[..tests],
        (None, Some(tests)) if is_last(tests, "_tests.rs\"]\nmod tests;\n") => &text[..tests],
        _ => text,
    }
    .trim_end()
}

/// Without the lines that are comments: they are for readers, and their examples are tests.
fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// Without the lines that name a module of tests, wherever they stand: its text is in a file of its own.
fn without_declared(text: &str) -> Cow<'_, str> {
    const DECLARED: &str = "#[cfg(test)]\nmod ";
    let mut pieces = text.split(DECLARED);
    let mut left = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once(";\n").or_else(|| piece.strip_suffix(';').map(|name| (name, ""))) {
            Some((name, rest)) if name == "tests" || name.ends_with("_tests") => left.push_str(rest),
            _ => left.extend([DECLARED, piece]),
        }
    }
    left.truncate(left.trim_end().len());
    left.into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const CODE: &str = "fn one() {}\n";

    fn tests(of: &[&str]) -> String {
        format!("\n#[cfg(test)]\nmod tests {{\n    {}\n}}\n", of.join("\n    "))
    }

    #[test]
    fn the_cases_of_the_conformance_suite_are_tests_and_the_rest_of_its_library_is_none() {
        for (file, is_test) in
            [("conformance/model_cases.rs", true), ("conformance.rs", false), ("history/mod.rs", false)]
        {
            assert_eq!(product_of(&format!("crates/testkit/src/{file}"), CODE).is_empty(), is_test, "{file}");
        }
    }

    /// Whether a tree with one file that was this, and is that, is the same product; `None` where there is none.
    fn is_same(file: &str, before: Option<&str>, after: Option<&str>) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let name = format!("a/{file}");
        let file = root.join(&name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(root.join("a/always"), "there").unwrap();
        let git = |words: &[&str]| {
            let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
            output(Command::new("git").args(who).args(words).current_dir(root)).unwrap()
        };
        let put = |text: Option<&str>| match text {
            Some(text) => fs::write(&file, text).unwrap(),
            None => _ = fs::remove_file(&file),
        };
        put(before);
        git(&["init", "-q"]);
        git(&["add", "a"]);
        git(&["commit", "-q", "-m", "first"]);
        let commit = git(&["rev-parse", "HEAD"]);
        put(after);
        git(&["add", "a"]);
        let is_same = |place: &str| is_same_product(root, commit.trim(), &[place]);
        assert!(is_same("b") && is_same("a/always"), "elsewhere");
        assert_eq!(is_same("a"), is_same(&name));
        is_same("a")
    }

    #[test]
    fn tests_that_come_change_or_go_leave_the_product_what_it_was() {
        let with = |of: &[&str]| format!("{CODE}{}", tests(of));
        let code = |before: &str, after: &str| is_same("src/code.rs", Some(before), Some(after));
        assert!(code(&with(&["a"]), &with(&["a"])) && code(&with(&["a"]), &with(&["a", "b"])));
        assert!(code(CODE, &with(&["a"])) && code(&with(&["a"]), &with(&["b"])) && code(&with(&["a"]), CODE));
        let shared = with(&["a"]).replace("mod tests", "pub(crate) mod tests");
        let elsewhere = format!("{CODE}\n#[cfg(test)]\n#[path = \"code_tests.rs\"]\nmod tests;\n");
        assert!(code(CODE, &shared) && code(CODE, &elsewhere));
        let named = format!("{CODE}\n#[cfg(test)]\nmod tests;\n");
        let (uses, more) = ("mod a;\nmod c;\n", "mod a;\n#[cfg(test)]\nmod b_tests;\nmod c;\n");
        assert!(code(CODE, &named) && code(uses, more) && code(more, uses));
        assert!(is_same("tests/it/main.rs", Some("a\n"), Some("a\nb\n")));
        assert!(is_same("src/code_tests.rs", None, Some("a\n")) && is_same("src/code_tests.rs", Some("a\n"), None));
    }

    #[test]
    fn comments_are_no_product_but_those_that_a_command_prints() {
        let with = |comment: &str, more: &str| format!("{more}{comment}\n{CODE}    {comment}\n");
        let code = |more: &str| is_same("src/code.rs", Some(&with("/// One.", more)), Some(&with("// Two.", more)));
        assert!(code("") && !code("use clap::Parser;\n"));
        assert!(!is_same("src/code.rs", Some(&with("/// One.", "")), Some(&with("one(); // Two.", ""))));
    }

    #[test]
    fn whatever_else_changes_is_the_product() {
        let product = |file: &str, before: Option<&str>, after: Option<&str>| {
            assert!(!is_same(file, before, after), "{file}: {before:?}, {after:?}");
        };
        product("src/code.rs", Some(CODE), Some("fn one() {}\nfn two() {}\n"));
        product("src/code.rs", Some(&format!("{CODE}{}", tests(&["a"]))), Some(&tests(&["a"])));
        product("src/code.rs", Some(CODE), None);
        product("src/code.rs", None, Some(CODE));
        product("tests/Cargo.toml", Some("a"), Some("b"));
        let behind = |what: &str| format!("{CODE}{}{what}\n", tests(&["a"]));
        product("src/code.rs", Some(&behind("fn two() {}")), Some(&behind("fn three() {}")));
        product("src/code.rs", Some("mod a;\n"), Some("mod a;\n#[cfg(test)]\nmod b;\n"));
        product("src/code.rs", Some("mod a;\n"), Some("mod a;\nmod b_tests;\n"));
        product("src/code.rs", Some(CODE), Some(&format!("{CODE}\n#[cfg(test)]\n#[path = \"code.rs\"]\nmod tests;\n")));
    }

    #[test]
    fn what_the_tools_are_built_of_is_no_product() {
        let lock = |xtask: &str, core: &str| {
            let package =
                |name: &str, needs: &str| format!("[[package]]\nname = \"{name}\"\ndependencies = [\n {needs:?},\n]\n");
            format!(
                "version = 4\n\n{}\n{}\n{}",
                package("larder-core", core),
                package("syn", "unicode-ident"),
                package("xtask", xtask)
            )
        };
        let is_same = |a: &str, b: &str| product_of("Cargo.lock", a) == product_of("Cargo.lock", b);
        assert!(is_same(&lock("clap", "bytes"), &lock("syn", "bytes")));
        assert!(!is_same(&lock("clap", "bytes"), &lock("clap", "syn")));
        assert!(!is_same(&lock("clap", "bytes"), &lock("clap", "bytes").replace("syn", "nys")));
        assert_eq!(
            product_of("bench/Cargo.lock", "[[package]]\nname = \"xtask\"\n"),
            "[[package]]\nname = \"xtask\"\n"
        );
    }

    #[test]
    fn what_is_no_commit_tells_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_same_product(folder.path(), "abc-changed", &["a"]));
    }
}
