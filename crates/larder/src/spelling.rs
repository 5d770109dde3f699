//! What somebody who made a typo may have meant.

/// The known word nearest to `typed`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let edits_max = (typed.chars().count() / 3).clamp(1, EDITS_MAX);
    let near = known.iter().map(|word| (edits(typed, word), *word)).min()?;
    (near.0 <= edits_max).then_some(near.1)
}

/// How many letters must be put in, left out, changed or swapped with their neighbour to make one word of the other.
///
/// Source: the optimal string alignment distance, L. Boytsov, "Indexing methods for approximate dictionary searching", 2011.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(WORD_CHARS_MAX).collect();
    let b: Vec<char> = b.chars().take(WORD_CHARS_MAX).collect();
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut fewest = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                fewest = fewest.min(rows[i - 2][j - 2] + 1);
            }
            row.push(fewest);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// More than these is another word.
const EDITS_MAX: usize = 4;
/// Longer words are compared by their beginnings: what is typed may be anything.
const WORD_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_with_swaps_as_one() {
        for (a, b, expected) in [("", "", 0), ("", "abc", 3), ("memcahced", "memcached", 1), ("kitten", "sitting", 3)] {
            assert_eq!(edits(a, b), expected, "{a} {b}");
            assert_eq!(edits(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn only_what_is_near_is_meant() {
        let known = ["memory", "memcached", "memcached+tls"];
        assert_eq!(nearest("memchached", &known), Some("memcached"));
        assert_eq!(nearest("memry", &known), Some("memory"));
        assert_eq!(nearest("memcached+tsl", &known), Some("memcached+tls"));
        assert_eq!(nearest("redis", &known), None);
        assert_eq!(nearest(&"x".repeat(100_000), &known), None);
    }
}
