//! The bytes that `docs/layouts.md` shows are those that the tests assert: each example stands, as a literal, in a file that its section names.
//!
//! An example is a code span of at least [`EXAMPLE_BYTES_MIN`] bytes in hex, which may begin with a magic as text, or a whole key or number.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::command::{Context, Result};
use crate::style;

const LAYOUTS: &str = "docs/layouts.md";
const EXAMPLE_BYTES_MIN: usize = 4;
/// A number of so many digits is an example, not a size.
const DIGITS_MIN: usize = 16;
/// Fewer examples than this, and the reading of the document has gone wrong.
const EXAMPLES_MIN: usize = 20;

/// Returns a line for each example that no test of its section asserts.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut sources = BTreeMap::new();
    for file in style::files(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        sources.insert(name, file);
    }
    let text = fs::read_to_string(root.join(LAYOUTS)).context(|| format!("could not read {LAYOUTS}"))?;
    let (mut found, mut count) = (Vec::new(), 0);
    for section in sections(&text) {
        let mut literals = Vec::new();
        for name in spans(section).filter(|span| span.ends_with(".rs")) {
            let end = format!("/{name}");
            for (_, file) in sources.iter().filter(|(path, _)| *path == name || path.ends_with(&end)) {
                let source = fs::read_to_string(file).context(|| format!("could not read {}", file.display()))?;
                literals.extend(self::literals(&source));
            }
        }
        let title = section.lines().next().unwrap_or_default();
        for (span, bytes) in spans(section).filter_map(|span| Some((span, example(span)?))) {
            count += 1;
            if !literals.iter().any(|literal| contains(literal, &bytes)) {
                found.push(format!("{LAYOUTS}, {title}: no test that it names asserts `{span}`"));
            }
        }
    }
    if count < EXAMPLES_MIN {
        found.push(format!("{count} examples in {LAYOUTS}; there were at least {EXAMPLES_MIN}"));
    }
    Ok(found)
}

fn contains(literal: &[u8], bytes: &[u8]) -> bool {
    literal.windows(bytes.len()).any(|part| part == bytes)
}

/// The parts of a document from one heading of the second level to the next.
fn sections(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n## ")
}

/// The code spans.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The bytes that a code span shows, if it is an example.
fn example(span: &str) -> Option<Vec<u8>> {
    let is_number = span.len() >= DIGITS_MIN && span.bytes().all(|byte| byte.is_ascii_digit());
    let is_key = (span.starts_with("L.") || span.starts_with("{L.")) && !span.contains(['<', '…', ' ']);
    if is_number || is_key {
        return Some(span.as_bytes().to_vec());
    }
    let mut bytes = Vec::new();
    for word in span.split(' ') {
        match word.split_once("\\x") {
            Some((magic, version)) if magic.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                bytes.extend_from_slice(magic.as_bytes());
                bytes.extend(hex(version)?);
            }
            _ => bytes.extend(hex(word)?),
        }
    }
    (bytes.len() >= EXAMPLE_BYTES_MIN).then_some(bytes)
}

/// The bytes of hex digits; `None` for anything else, and for nothing.
fn hex(text: &str) -> Option<Vec<u8>> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(is_hex) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// The strings of a source: their bytes, and of those that are hex what they stand for.
fn literals(source: &str) -> Vec<Vec<u8>> {
    let (mut found, mut rest, mut before) = (Vec::new(), source, None);
    while let Some(next) = rest.chars().next() {
        let skipped = style::literal_bytes(rest, before);
        let taken = if skipped > 0 { skipped } else { next.len_utf8() };
        let (part, after) = rest.split_at(taken);
        if let Some(text) =
            part.strip_prefix("b").unwrap_or(part).strip_prefix('"').and_then(|text| text.strip_suffix('"'))
        {
            let bytes = unescaped(text);
            let words: String = String::from_utf8_lossy(&bytes).split_whitespace().collect();
            found.extend(hex(&words));
            found.push(bytes);
        }
        before = part.chars().next_back();
        rest = after;
    }
    found
}

/// What the text between the quotes of a literal stands for.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some(next) = rest.chars().next() {
        let mut taken = next.len_utf8();
        if next == '\\' {
            let escaped = rest[1..].chars().next().unwrap_or_default();
            taken += escaped.len_utf8();
            match escaped {
                'x' => {
                    bytes.extend(rest.get(2..4).and_then(hex).into_iter().flatten());
                    taken += 2;
                }
                '0' => bytes.push(0),
                'n' => bytes.push(b'\n'),
                'r' => bytes.push(b'\r'),
                't' => bytes.push(b'\t'),
                // The line goes on in the next.
                '\n' => taken = rest.len() - rest[taken..].trim_start().len(),
                other => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        } else {
            bytes.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_told_from_other_code() {
        assert_eq!(example("4c 52 44 01").unwrap(), b"LRD\x01");
        assert_eq!(example(r"LRA\x01 8877 0a").unwrap(), b"LRA\x01\x88\x77\x0a");
        assert_eq!(example("4611686018427387904").unwrap(), b"4611686018427387904");
        assert_eq!(example("L.a%2Eb.s.0").unwrap(), b"L.a%2Eb.s.0");
        for other in ["10", "L.<name>.m", "add", "{other}key", "00 \"commit\"", "4C524544", "65535", "0x1A (", ""] {
            assert_eq!(example(other), None, "{other}");
        }
    }

    #[test]
    fn literals_are_read_as_the_compiler_reads_them() {
        let source = "// \"no\"\nlet q = '\"';\nconst A: &[u8] = b\"a\\x01\\0\\\\\";\nconst B: &str = \"4c52 \\\n        44\";\n";
        assert_eq!(literals(source), [b"a\x01\0\\".to_vec(), b"LRD".to_vec(), b"4c52 44".to_vec()]);
    }

    #[test]
    fn an_example_is_looked_for_in_whole_literals() {
        assert!(contains(b"xLRD\x01y", &example("4c 52 44 01").unwrap()));
        assert!(!contains(b"LRD", &example("4c 52 44 01").unwrap()));
    }
}
