//! Whether what has changed between two trees is tests that have come, and nothing else.

/// What begins the tests at the end of a file.
const TESTS: &str = "#[cfg(test)]\nmod tests {";

/// Whether a diff without context only adds lines to tests. `now` reads a file as it is now.
pub(super) fn are_tests(diff: &str, now: impl Fn(&str) -> Option<String>) -> bool {
    let mut tests_begin = None;
    let mut lines = diff.lines();
    while let Some(line) = lines.next() {
        if let Some(file) = line.strip_prefix("+++ ") {
            // A file that is gone has no name here.
            tests_begin = file.strip_prefix("b/").and_then(|file| first_line_of_tests(file, &now));
        } else if let Some(hunk) = line.strip_prefix("@@ ") {
            let Some((first, count)) = additions(hunk) else { return false };
            if tests_begin.is_none_or(|begin| first < begin) {
                return false;
            }
            // What is added may look like anything.
            lines.by_ref().take(count).for_each(drop);
        } else if ["deleted file ", "old mode ", "Binary ", "GIT binary "].iter().any(|odd| line.starts_with(odd)) {
            return false;
        }
    }
    true
}

/// The first of the lines that a hunk adds and their number, if it takes none away: `-2,0 +3,4 @@`.
fn additions(hunk: &str) -> Option<(usize, usize)> {
    let (before, rest) = hunk.strip_prefix('-')?.split_once(" +")?;
    let after = rest.split_once(" @@")?.0;
    if before.split_once(',')?.1 != "0" {
        return None;
    }
    let (first, count) = after.split_once(',').unwrap_or((after, "1"));
    Some((first.parse().ok()?, count.parse().ok()?))
}

/// Where the tests of a file begin, counted from 1: everything in a folder of tests, or a file of them, is one.
fn first_line_of_tests(file: &str, now: impl Fn(&str) -> Option<String>) -> Option<usize> {
    if !file.ends_with(".rs") {
        return None;
    }
    if file.contains("/tests/") || file.ends_with("_tests.rs") || file.ends_with("/tests.rs") {
        return Some(1);
    }
    let text = now(file)?;
    let begin = text.find(TESTS)?;
    Some(text[..begin].lines().count() + 1)
}

#[cfg(test)]
mod tests {
    const CODE: &str = "fn one() {}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn is_one() {}\n}\n";

    fn diff(file: &str, hunk: &str, lines: &str) -> String {
        format!(
            "diff --git a/{file} b/{file}\nindex 1..2 100644\n--- a/{file}\n+++ b/{file}\n@@ {hunk} @@ mod tests {{\n{lines}\n"
        )
    }

    fn are_tests(diff: &str) -> bool {
        super::are_tests(diff, |file| file.ends_with("code.rs").then(|| CODE.to_owned()))
    }

    #[test]
    fn lines_that_come_to_tests_change_nothing_that_was_shown() {
        assert!(are_tests(""));
        let inside = diff("a/src/code.rs", "-4,0 +5,2", "+    #[test]\n+    fn is_one() {}");
        let beside = diff("a/src/code_tests.rs", "-9,0 +10", "+++ b/a/src/code.rs");
        let apart = diff("a/tests/it/main.rs", "-0,0 +1,2", "+mod a;\n+mod b;");
        assert!(are_tests(&inside) && are_tests(&beside) && are_tests(&apart));
        assert!(are_tests(&format!("{inside}{beside}{apart}")));
    }

    #[test]
    fn anything_else_does() {
        let code = diff("a/src/code.rs", "-0,0 +1", "+fn one() {}");
        let gone = diff("a/src/code.rs", "-5 +4,0", "-    #[test]");
        let other = diff("a/tests/it/main.rs", "-3 +3", "-old\n+new");
        let unknown = diff("a/src/untested.rs", "-7,0 +8", "+fn new() {}");
        let settings = diff("a/tests/Cargo.toml", "-7,0 +8", "+a = 1");
        let removed = "diff --git a/a/tests/x.rs b/a/tests/x.rs\ndeleted file mode 100644\n--- a/a/tests/x.rs\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n";
        let binary = "diff --git a/a/tests/x.rs b/a/tests/x.rs\nindex 1..2 100644\nBinary files a/x and b/x differ\n";
        for diff in [code, gone, other, unknown, settings, removed.to_owned(), binary.to_owned()] {
            assert!(!are_tests(&diff), "{diff}");
            let test = super::tests::diff("a/tests/it/main.rs", "-0,0 +1,2", "+mod a;\n+mod b;");
            assert!(are_tests(&test) && !are_tests(&format!("{test}{diff}{test}")), "{diff}");
        }
    }
}
