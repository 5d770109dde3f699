//! Replies without what servers draw by themselves.

use super::generator::TOKENS;

/// Lives are told in whole hundreds of seconds. Two that a moment lies between may round apart, an end at a given date at some hour of the day:
/// so much later they do not.
pub const LIFE_SHIFT_S: u64 = 33;

fn rounded(life: u64, shift: u64) -> u64 {
    (life + shift).div_ceil(100) * 100
}

/// Tokens that a server drew, and times, replaced by what all of them become; and whether an item was fetched, unless both servers remember that.
pub fn normal(reply: &[u8], remembers: bool, shift: u64) -> Vec<u8> {
    let lines = reply.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let (line, end) = match line.strip_suffix(b"\r\n") {
            Some(line) => (line, &b"\r\n"[..]),
            None => (line, &b""[..]),
        };
        let kind = line.split(|&byte| byte == b' ').next().unwrap_or_default().to_vec();
        let words: Vec<Vec<u8>> = line
            .split(|&byte| byte == b' ')
            .enumerate()
            .map(|(at, word)| normal_word(&kind, at, word, shift))
            .collect();
        let words: Vec<Vec<u8>> =
            words.into_iter().map(|word| if remembers { word } else { unfetched(&kind, word) }).collect();
        [&words.join(&b' ')[..], end].concat()
    });
    lines.collect::<Vec<_>>().concat()
}

/// A word without what it says of the item's having been fetched.
fn unfetched(kind: &[u8], word: Vec<u8>) -> Vec<u8> {
    match (kind, &word[..]) {
        (b"HD" | b"VA", b"h0" | b"h1") => b"h#".to_vec(),
        (b"ME", b"fetch=yes" | b"fetch=no") => b"fetch=#".to_vec(),
        _ => word,
    }
}

fn normal_word(kind: &[u8], at: usize, word: &[u8], shift: u64) -> Vec<u8> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    let drawn = |digits: &[u8]| number(digits).is_some_and(|token| !TOKENS.contains(&token) && token != 0);
    match (kind, word) {
        (b"VERSION", _) if at == 1 => word.split(|&byte| byte == b'-').next().unwrap_or_default().to_vec(),
        (b"VALUE", _) if at == 4 && drawn(word) => b"#".to_vec(),
        (b"HD" | b"VA" | b"NS" | b"EX", [b'c', token @ ..]) if at > 0 && drawn(token) => b"c#".to_vec(),
        // Lives are given in thousands of seconds, and the test takes none that matters.
        (b"HD" | b"VA", [b't', life @ ..]) if at > 0 && number(life).is_some() => {
            format!("t{}", rounded(number(life).unwrap_or(0), shift)).into_bytes()
        }
        (b"HD" | b"VA", [b'l', age @ ..]) if at > 0 && number(age).is_some() => b"l#".to_vec(),
        (b"ME", _) if word.starts_with(b"la=") || word.starts_with(b"cls=") => b"#".to_vec(),
        (b"ME", [b'c', b'a', b's', b'=', token @ ..]) if drawn(token) => b"cas=#".to_vec(),
        (b"ME", [b'e', b'x', b'p', b'=', life @ ..]) if number(life).is_some() => {
            format!("exp={}", rounded(number(life).unwrap_or(0), shift)).into_bytes()
        }
        _ => word.to_vec(),
    }
}
