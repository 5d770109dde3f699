//! Lines of `lru_crawler metadump all`: `OK` from newer servers, one an item, then `END`.
//!
//! A line is `key=<key> exp=<time> la=<time> cas=<number> fetch=<yes|no> cls=<number> size=<number>`; fields may be added behind the key, and have
//! been. The key is escaped as in URLs. Lines end in `\n` alone.

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpLine {
    /// It begins. Servers from about 1.6.40 on say so, earlier ones do not.
    Begun,
    /// An item with this key.
    Key(Vec<u8>),
    /// The end.
    End,
    /// Another listing is under way: ask again in a moment.
    Busy,
    /// The server has no such command, or it is switched off; in its own words.
    Refused(String),
}

/// Reads a line, without its end.
///
/// ```
/// use larder_proto::metadump::{DumpLine, parse};
/// let line = b"key=L.page%2520hits.m exp=-1 la=1700000000 cas=3 fetch=no cls=1 size=90";
/// assert_eq!(parse(line), DumpLine::Key(b"L.page%20hits.m".to_vec()));
/// assert_eq!(parse(b"END"), DumpLine::End);
/// ```
pub fn parse(line: &[u8]) -> DumpLine {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Some(rest) = line.strip_prefix(b"key=") {
        let escaped = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
        return DumpLine::Key(unescaped(escaped));
    }
    match line {
        b"OK" => DumpLine::Begun,
        b"END" => DumpLine::End,
        _ if line.starts_with(b"BUSY") => DumpLine::Busy,
        _ => DumpLine::Refused(String::from_utf8_lossy(line).into_owned()),
    }
}

/// `%xx` is a byte; anything else stands for itself.
fn unescaped(escaped: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    let mut out = Vec::with_capacity(escaped.len());
    let mut at = 0;
    while let Some(&byte) = escaped.get(at) {
        match (byte, digit(escaped.get(at + 1)), digit(escaped.get(at + 2))) {
            // Two digits make a byte.
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_old_and_new_servers_are_read() {
        for (line, read) in [
            (&b"key=a exp=-1 la=1 cas=1 fetch=no cls=1 size=63"[..], DumpLine::Key(b"a".to_vec())),
            (
                b"key=%00%ff%2F exp=1700000000 la=1 cas=1 fetch=yes cls=1 size=63 flags=0",
                DumpLine::Key(b"\0\xff/".to_vec()),
            ),
            (b"key=50%", DumpLine::Key(b"50%".to_vec())),
            (b"key=", DumpLine::Key(Vec::new())),
            (b"OK\r", DumpLine::Begun),
            (b"END\r", DumpLine::End),
            (b"BUSY currently processing crawler request\r", DumpLine::Busy),
            (b"ERROR\r", DumpLine::Refused("ERROR".to_owned())),
        ] {
            assert_eq!(parse(line), read, "{}", String::from_utf8_lossy(line));
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(line in prop::collection::vec(any::<u8>(), 0..100)) {
            parse(&line);
        }
    }
}
