//! Whose a key is: a structure's, or, by its pattern, another program's.

use std::collections::{HashMap, HashSet};

use larder_structures::{Kind, Name};

/// Structures that are told apart; others are told together.
const NAMES_MAX: usize = 1_000;
/// Patterns with one beginning that are told apart.
const PATTERNS_A_HEAD_MAX: usize = 24;
/// Beginnings that are told apart.
const HEADS_MAX: usize = 200;
/// Parts of a key that are looked at.
const PARTS_MAX: usize = 4;
/// The longest part that is shown.
const PART_BYTES_MAX: usize = 32;
/// Hexadecimal digits that are an id, however they begin.
const HEX_BYTES_MIN: usize = 8;

/// Whose keys are.
///
/// ```
/// use larder_footprint::Owner;
/// assert_eq!(Owner::Foreign("user:*:name".to_owned()).to_string(), "user:*:name");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A structure's.
    Structure {
        /// Its name.
        name: Name,
        /// True for keys of a life of the name that is over: nobody reads them.
        is_left_over: bool,
    },
    /// A structure's whose manifest is gone: live data of which it was evicted, which is a loss, or what a drop left.
    Unclaimed(Name),
    /// Those of structures beyond the first thousand.
    OtherStructures,
    /// Those of other programs, by what they have in common; `*` stands for what differs.
    Foreign(String),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Structure { name, is_left_over: false } => write!(f, "{name}"),
            Owner::Structure { name, is_left_over: true } => write!(f, "{name} (left over)"),
            Owner::Unclaimed(name) => write!(f, "{name} (manifest gone)"),
            Owner::OtherStructures => f.write_str("other structures"),
            Owner::Foreign(pattern) => f.write_str(pattern),
        }
    }
}

/// Kinds whose native shards carry a mark, which is no element.
pub(crate) fn has_mark(kind: Kind) -> bool {
    matches!(kind, Kind::UniqueVisitors | Kind::ShardedHash | Kind::ShardedSet)
}

/// A key's owner, as far as the key alone tells.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Belongs {
    /// To a life of a name; `None`: it is the manifest.
    Life(Name, Option<u64>),
    OtherStructures,
    Pattern(String),
}

/// Tells owners apart, and not more of them than a reader can take in.
#[derive(Debug, Default)]
pub(crate) struct Sorter {
    names: HashSet<Name>,
    heads: HashMap<String, HashSet<String>>,
}

impl Sorter {
    pub(crate) fn sort(&mut self, key: &[u8]) -> Belongs {
        if let Some((name, life)) = Name::of_key(untagged(key)) {
            if self.names.contains(&name) || self.names.len() < NAMES_MAX {
                self.names.insert(name.clone());
                return Belongs::Life(name, life);
            }
            return Belongs::OtherStructures;
        }
        let pattern = pattern(key);
        let head = head(&pattern).to_owned();
        if !self.heads.contains_key(&head) && self.heads.len() >= HEADS_MAX {
            return Belongs::Pattern("*".to_owned());
        }
        let known = self.heads.entry(head).or_default();
        if known.contains(&pattern) || known.len() < PATTERNS_A_HEAD_MAX {
            known.insert(pattern.clone());
        }
        Belongs::Pattern(pattern)
    }

    /// The owner that is told: of a beginning with too many patterns, all are one.
    pub(crate) fn folded(&self, belongs: Belongs) -> Belongs {
        let Belongs::Pattern(pattern) = belongs else { return belongs };
        let head = head(&pattern);
        match self.heads.get(head) {
            Some(known) if known.len() >= PATTERNS_A_HEAD_MAX => {
                Belongs::Pattern(format!("{}*", head.trim_end_matches('*')))
            }
            _ => Belongs::Pattern(pattern),
        }
    }

    /// True if keys of this pattern are not told apart any more while they are counted.
    pub(crate) fn is_full(&self, pattern: &str) -> bool {
        self.heads
            .get(head(pattern))
            .is_some_and(|known| known.len() >= PATTERNS_A_HEAD_MAX && !known.contains(pattern))
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.names.iter().cloned().collect();
        names.sort();
        names
    }
}

/// A key without the tag before it that keeps it beside another on a cluster.
fn untagged(key: &[u8]) -> &[u8] {
    match key.split_first() {
        Some((b'{', rest)) => rest.iter().position(|&byte| byte == b'}').map_or(key, |end| &rest[end + 1..]),
        _ => key,
    }
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b':' | b'/' | b'.' | b'|' | b'#')
}

/// The first part of a pattern, with its separator.
fn head(pattern: &str) -> &str {
    let end = pattern.bytes().position(is_separator).map_or(pattern.len(), |end| end + 1);
    &pattern[..end]
}

/// What a key has in common with its like: the parts between its separators, each cut where digits or bytes that cannot be shown begin.
///
/// `user:1000:name` is `user:*:name`, `session_8f3a` is `session_*`.
pub(crate) fn pattern(key: &[u8]) -> String {
    let mut out = String::new();
    let (mut rest, mut parts) = (key, 0);
    loop {
        let end = rest.iter().position(|&byte| is_separator(byte)).unwrap_or(rest.len());
        if parts == PARTS_MAX {
            out.push('*');
            return out;
        }
        out.push_str(&shown(&rest[..end]));
        parts += 1;
        let Some(&separator) = rest.get(end) else { return out };
        out.push(char::from(separator));
        rest = &rest[end + 1..];
    }
}

fn shown(part: &[u8]) -> String {
    let is_hex = part.len() >= HEX_BYTES_MIN && part.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    let plain = |byte: &u8| byte.is_ascii_graphic() && !byte.is_ascii_digit() && *byte != b'*';
    let kept = if is_hex { 0 } else { part.iter().take_while(|byte| plain(byte)).count() };
    let kept = kept.min(PART_BYTES_MAX);
    let mut text = String::from_utf8_lossy(&part[..kept]).into_owned();
    if kept < part.len() {
        text.push('*');
    }
    text
}

/// The bytes before the first `*` of a pattern: what its keys begin with.
pub(crate) fn fixed(pattern: &str) -> &str {
    pattern.split('*').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_in_keys_are_left_out_and_words_are_not() {
        for (key, told) in [
            (&b"user:1000:name"[..], "user:*:name"),
            (b"session_8f3a", "session_*"),
            (b"deadbeef-cafe-babe", "*"),
            (b"cache/en/home.html", "cache/en/home.html"),
            (b"a:b:c:d:e:f", "a:b:c:d:*"),
            (b"12", "*"),
            (b"", ""),
            (b"\xff\0", "*"),
            (b"x:\xff", "x:*"),
            ("größe".as_bytes(), "gr*"),
        ] {
            assert_eq!(pattern(key), told, "{}", String::from_utf8_lossy(key));
        }
        assert_eq!((fixed("user:*:name"), fixed("plain")), ("user:", "plain"));
    }

    #[test]
    fn structures_are_told_by_name_and_life_also_behind_a_tag() {
        let mut sorter = Sorter::default();
        let name = Name::new("a.b").unwrap();
        let data = b"L.a%2Eb.s.00000000000000ff.0";
        assert_eq!(sorter.sort(b"L.a%2Eb.m"), Belongs::Life(name.clone(), None));
        assert_eq!(sorter.sort(data), Belongs::Life(name.clone(), Some(255)));
        assert_eq!(sorter.sort(&[&b"{L.x.m}"[..], data].concat()), Belongs::Life(name.clone(), Some(255)));
        assert_eq!(sorter.names(), [name]);
        assert_eq!(sorter.sort(b"L.a.b"), Belongs::Pattern("L.a.b".to_owned()));
    }

    #[test]
    fn what_has_too_many_patterns_is_told_together() {
        let mut sorter = Sorter::default();
        let words: Vec<String> =
            (0..200u8).map(|n| format!("w{}{}", char::from(b'a' + n / 26), char::from(b'a' + n % 26))).collect();
        for word in &words {
            sorter.sort(format!("user:{word}:name").as_bytes());
        }
        let folded = |sorter: &Sorter, key: &str| sorter.folded(Belongs::Pattern(pattern(key.as_bytes())));
        assert_eq!(folded(&sorter, "user:waa:name"), Belongs::Pattern("user:*".to_owned()));
        assert!(sorter.is_full("user:new:name") && !sorter.is_full("user:waa:name"));
        sorter.sort(b"few:a");
        assert_eq!(folded(&sorter, "few:a"), Belongs::Pattern("few:a".to_owned()));
        for one in &words {
            for other in &words[..3] {
                sorter.sort(format!("{one}{other}:x").as_bytes());
            }
        }
        assert_eq!(sorter.sort(b"quite:new"), Belongs::Pattern("*".to_owned()));
    }

    proptest! {
        #[test]
        fn any_key_has_a_short_pattern(key in prop::collection::vec(any::<u8>(), 0..300)) {
            let pattern = pattern(&key);
            prop_assert!(pattern.len() <= (PARTS_MAX + 1) * (PART_BYTES_MAX + 2));
            prop_assert!(pattern.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(key.starts_with(fixed(&pattern).as_bytes()));
        }
    }
}
