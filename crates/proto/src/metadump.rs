//! Lines of `lru_crawler metadump all`: `OK` from newer servers, one an item, then `END`.
//!
//! A line is `key=<key> exp=<time> la=<time> cas=<number> fetch=<yes|no> cls=<number> size=<number>`; fields may be added behind the key, and have
//! been. The key is escaped as in URLs. Lines end in `\n` alone.

/// What a line says.
///
/// ```
/// use larder_proto::metadump::{DumpLine, parse};
/// assert_eq!(parse(b"BUSY currently processing crawler request"), DumpLine::Busy);
/// ```
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

/// What a line says of its item beside the key.
///
/// ```
/// use larder_proto::metadump::details;
/// let line = b"key=a exp=1700000000 la=1690000000 cas=3 fetch=no cls=2 size=117";
/// let details = details(line);
/// assert_eq!((details.class, details.size, details.expires), (Some(2), Some(117), Some(true)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Its slab class.
    pub class: Option<u32>,
    /// What it takes of a chunk: the server's overhead, key and value.
    pub size: Option<u64>,
    /// Whether it has a life.
    pub expires: Option<bool>,
}

/// Reads what a line says of its item; what it does not say, or not as a number, is `None`.
///
/// ```
/// use larder_proto::metadump::{Details, details};
/// assert_eq!(details(b"END"), Details::default());
/// ```
pub fn details(line: &[u8]) -> Details {
    let mut details = Details::default();
    // The key is escaped: a space ends it.
    for field in line.split(|&byte| byte == b' ').skip(1) {
        let Ok(field) = std::str::from_utf8(field) else { continue };
        match field.trim_end().split_once('=') {
            Some(("cls", class)) => details.class = class.parse().ok(),
            Some(("size", size)) => details.size = size.parse().ok(),
            Some(("exp", until)) => details.expires = until.parse::<i64>().ok().map(|until| until > 0),
            _ => {}
        }
    }
    details
}

/// A key as listings write it: `%xx` is a byte; anything else stands for itself.
///
/// ```
/// assert_eq!(larder_proto::metadump::unescaped(b"a%20b%"), b"a b%");
/// ```
pub fn unescaped(escaped: &[u8]) -> Vec<u8> {
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
            details(&line);
        }
    }
}
