//! The flags of meta commands.

use super::words::{Words, i32_of, u32_of, u64_of};
use super::{BAD_FORMAT, KEY_BYTES_MAX, META_WORDS_MAX, WORDS_MAX};

/// Room for a key that was sent as base64.
///
/// ```
/// use larder_proto::server::{Command, KeyScratch, parse};
/// let mut scratch = KeyScratch::new();
/// assert!(matches!(parse(b"version\r\n", &mut scratch), Command::Version));
/// ```
#[derive(Debug)]
pub struct KeyScratch {
    bytes: [u8; KEY_BYTES_MAX],
}

impl KeyScratch {
    /// Room for one key.
    ///
    /// ```
    /// use larder_proto::server::{Command, KeyScratch, parse};
    /// let mut scratch = KeyScratch::new();
    /// assert!(matches!(parse(b"mn\r\n", &mut scratch), Command::MetaNoop));
    /// ```
    pub fn new() -> KeyScratch {
        KeyScratch { bytes: [0; KEY_BYTES_MAX] }
    }
}

impl Default for KeyScratch {
    fn default() -> KeyScratch {
        KeyScratch::new()
    }
}

/// A meta command: its key and its flags. Which command it is stands in [`Command`](super::Command).
///
/// ```
/// use larder_proto::server::{Command, KeyScratch, parse};
/// let mut scratch = KeyScratch::new();
/// let Command::MetaArith(meta) = parse(b"ma hits J5 N60\r\n", &mut scratch) else { panic!() };
/// assert_eq!((meta.key, meta.vivify), (&b"hits"[..], Some(60)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta<'a> {
    /// The key, decoded.
    pub key: &'a [u8],
    /// All flags, in their order, as they were sent.
    pub words: Words<'a>,
    /// `b`: the key was sent as base64.
    pub base64: bool,
    /// `q`.
    pub quiet: bool,
    /// `v`.
    pub value: bool,
    /// `u`: the read leaves no trace.
    pub no_bump: bool,
    /// `h` or `l`: how the item was used before is asked for.
    pub asks_use: bool,
    /// `x`: the value is to be removed.
    pub remove_value: bool,
    /// `I`: mark as stale, or take a write with an old token as one of a stale value.
    pub invalidate: bool,
    /// `F`: client flags.
    pub client_flags: u32,
    /// `T`: the life, as it was sent.
    pub exptime: Option<i32>,
    /// `N`: make what is missing, with this life.
    pub vivify: Option<i32>,
    /// `R`: win if less life than this is left.
    pub recache: Option<i32>,
    /// `C`: the token to compare with.
    pub cas: Option<u64>,
    /// `E`: the token to give.
    pub cas_new: Option<u64>,
    /// `M`: the mode's letter.
    pub mode: Option<u8>,
    /// `J`: the number to begin with.
    pub initial: u64,
    /// `D`: by how much.
    pub delta: u64,
}

/// Takes flags apart. `None` for a line that is none of a meta command: a flag that begins with neither a letter nor a digit.
pub(crate) fn parse<'a>(
    key: &'a [u8],
    words: Words<'a>,
    before: usize,
    scratch: &'a mut KeyScratch,
) -> Option<Result<Meta<'a>, &'static str>> {
    let mut count = before;
    for word in words.take(WORDS_MAX - before) {
        count += 1;
        if !(b'A'..=b'z').contains(&word[0]) && !word[0].is_ascii_digit() {
            return None;
        }
    }
    if key.len() > KEY_BYTES_MAX {
        return Some(Err(BAD_FORMAT));
    }
    if count > META_WORDS_MAX {
        return Some(Err("CLIENT_ERROR options flags are too long"));
    }
    Some(flags(key, words, scratch))
}

/// An error that is found does not end the search: the last one is told, but for two that end it.
fn flags<'a>(key: &'a [u8], words: Words<'a>, scratch: &'a mut KeyScratch) -> Result<Meta<'a>, &'static str> {
    const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
    let mut meta = Meta { key, words, delta: 1, ..Meta::default() };
    let mut seen = 0u128;
    let mut error = None;
    let mut has_error = false;
    let mut decoded = None;
    for word in words {
        let (flag, argument) = (word[0], &word[1..]);
        if seen & (1 << flag) != 0 {
            return Err("CLIENT_ERROR duplicate flag");
        }
        seen |= 1 << flag;
        // Each arm says whether what it read is good, and what to say if not.
        let (good, complaint) = match flag {
            b'b' => {
                meta.base64 = true;
                decoded = decode(key, &mut scratch.bytes);
                (decoded.is_some(), "CLIENT_ERROR error decoding key")
            }
            b'N' => (set(&mut meta.vivify, argument, i32_of), BAD_TOKEN),
            b'T' => (set(&mut meta.exptime, argument, i32_of), BAD_TOKEN),
            b'R' => (set(&mut meta.recache, argument, i32_of), BAD_TOKEN),
            b'C' => (set(&mut meta.cas, argument, u64_of), BAD_TOKEN),
            b'E' => (set(&mut meta.cas_new, argument, u64_of), BAD_TOKEN),
            b'J' => (put(&mut meta.initial, argument, u64_of), "CLIENT_ERROR invalid numeric initial value"),
            b'D' => (put(&mut meta.delta, argument, u64_of), "CLIENT_ERROR invalid numeric delta value"),
            b'F' => {
                has_error |= !put(&mut meta.client_flags, argument, u32_of);
                (true, "")
            }
            b'M' => {
                meta.mode = Some(argument.first().copied().unwrap_or(b' '));
                (true, "")
            }
            b'v' | b'u' | b'q' | b'x' | b'I' => {
                meta.value |= flag == b'v';
                meta.no_bump |= flag == b'u';
                meta.quiet |= flag == b'q';
                meta.remove_value |= flag == b'x';
                meta.invalidate |= flag == b'I';
                (true, "")
            }
            b'h' | b'l' => {
                meta.asks_use = true;
                (true, "")
            }
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' => (true, ""),
            _ => return Err("CLIENT_ERROR invalid flag"),
        };
        if !good {
            (has_error, error) = (true, Some(complaint));
        }
    }
    if has_error {
        return Err(error.unwrap_or(BAD_FORMAT));
    }
    if let Some(bytes) = decoded {
        meta.key = &scratch.bytes[..bytes];
    }
    Ok(meta)
}

fn set<T>(place: &mut Option<T>, argument: &[u8], read: fn(&[u8]) -> Option<T>) -> bool {
    *place = if argument.is_empty() { None } else { read(argument) };
    place.is_some()
}

fn put<T>(place: &mut T, argument: &[u8], read: fn(&[u8]) -> Option<T>) -> bool {
    let number = if argument.is_empty() { None } else { read(argument) };
    let good = number.is_some();
    if let Some(number) = number {
        *place = number;
    }
    good
}

/// Base64 as memcached decodes it: what is no character of base64 is passed over, and it ends with the first padded group. How many
/// bytes; `None` for what does not come out at whole groups.
fn decode(text: &[u8], out: &mut [u8; KEY_BYTES_MAX]) -> Option<usize> {
    let characters = text.iter().filter(|&&byte| byte == b'=' || six_bits(byte).is_some()).count();
    if characters == 0 || characters % 4 != 0 {
        return None;
    }
    let (mut length, mut group, mut in_group, mut padding) = (0usize, 0u32, 0, 0);
    for &byte in text {
        let bits = match six_bits(byte) {
            Some(bits) => bits,
            None if byte == b'=' => {
                padding += 1;
                0
            }
            None => continue,
        };
        group = group << 6 | u32::from(bits);
        in_group += 1;
        if in_group < 4 {
            continue;
        }
        let [_, a, b, c] = group.to_be_bytes();
        out.get_mut(length..length + 3)?.copy_from_slice(&[a, b, c]);
        length += 3;
        (group, in_group) = (0, 0);
        match padding {
            0 => {}
            1 | 2 => return Some(length - padding),
            _ => return None,
        }
    }
    Some(length)
}

fn six_bits(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// For `me`, whose only flag is `b`.
pub(crate) fn debug_key<'a>(key: &'a [u8], words: Words<'a>, scratch: &'a mut KeyScratch) -> Option<Meta<'a>> {
    let base64 = words.take(WORDS_MAX - 2).any(|word| word == b"b");
    if key.len() > KEY_BYTES_MAX {
        return None;
    }
    let key = if base64 {
        let bytes = decode(key, &mut scratch.bytes)?;
        &scratch.bytes[..bytes]
    } else {
        key
    };
    Some(Meta { key, words, base64, ..Meta::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_as_memcached_does() {
        for (text, expected) in [
            (&b"Zm9v"[..], Some(&b"foo"[..])),
            (b"Zm8=", Some(b"fo")),
            (b"Zg==", Some(b"f")),
            (b"Z-m9v", Some(b"foo")),
            (b"Zg==Zm9v", Some(b"f")),
            (b"Zm9", None),
            (b"====", None),
            (b"Z===", None),
            (b"---", None),
            (b"", None),
        ] {
            let mut out = [0; KEY_BYTES_MAX];
            assert_eq!(decode(text, &mut out).map(|bytes| &out[..bytes]), expected, "{text:?}");
        }
        let longest = [b'A'; 248];
        assert_eq!(decode(&longest, &mut [0; KEY_BYTES_MAX]), Some(186));
    }
}
