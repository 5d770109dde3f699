//! Names of structures, and the keys made of them. Keys are built here and nowhere else.
//!
//! | key | of |
//! |---|---|
//! | `L.<name>.m` | the manifest |
//! | `L.<name>.<role>.<generation>.<index>` | data: a slot, a shard, … |
//!
//! The name is escaped: letters, digits, `_` and `-` stand for themselves, every other byte is `%` and two hex digits. So `.`
//! cannot occur in it: two names never share a key, and neither do two roles of one name. The generation is 16 hex digits, drawn at
//! random when the structure is made: a late write of an earlier life cannot land in a re-created structure. Keys are
//! printable ASCII, so every store and every dialect carries them.

use std::fmt;
use std::fmt::Write as _;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Key, Result};

/// The name of a structure: 1 to [`Name::BYTES_MAX`] arbitrary bytes.
///
/// ```
/// use larder_structures::Name;
/// let name = Name::new("page hits")?;
/// assert_eq!(name.manifest_key()?.as_bytes(), b"L.page%20hits.m");
/// assert!(Name::new("").is_err());
/// assert!(Name::new([0u8; 65]).is_err());
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Bytes);

impl Name {
    /// The longest name, in bytes. Escaped in full it still leaves 16 bytes of a key to a namespace.
    pub const BYTES_MAX: usize = 64;

    /// The longest index of a data key, in bytes.
    pub(crate) const INDEX_BYTES_MAX: usize = 17;

    /// Checks the length and makes the name.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for an empty name and for one of more than [`Name::BYTES_MAX`] bytes.
    ///
    /// ```
    /// use larder_structures::Name;
    /// assert!(Name::new([0xff, 0x00, b'\n']).is_ok()); // any bytes
    /// assert!(Name::new("").is_err());
    /// ```
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Name> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::BadInput, "a name is empty; it takes 1 to 64 bytes"));
        }
        if bytes.len() > Name::BYTES_MAX {
            return Err(Error::new(
                ErrorKind::BadInput,
                format!("a name has {} bytes; the limit is {}: {}", bytes.len(), Name::BYTES_MAX, Shown(bytes)),
            ));
        }
        Ok(Name(Bytes::copy_from_slice(bytes)))
    }

    /// The bytes of the name.
    ///
    /// ```
    /// assert_eq!(larder_structures::Name::new("page hits")?.as_bytes(), b"page hits");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key of the manifest, which tells what the name holds.
    ///
    /// ```
    /// assert_eq!(larder_structures::Name::new("page hits")?.manifest_key()?.as_bytes(), b"L.page%20hits.m");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn manifest_key(&self) -> Result<Key> {
        let mut key = self.prefix();
        key.push('m');
        Key::new(key)
    }

    /// What every manifest's key begins with.
    pub(crate) const MANIFESTS: &[u8] = b"L.";

    /// The name whose manifest has this key; `None` for any other key.
    pub(crate) fn of_manifest_key(key: &[u8]) -> Option<Name> {
        let mut escaped = key.strip_prefix(Name::MANIFESTS)?.strip_suffix(b".m")?;
        let mut bytes = Vec::with_capacity(escaped.len());
        while let Some((&byte, rest)) = escaped.split_first() {
            escaped = rest;
            if byte == b'%' {
                let (digits, rest) = escaped.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                escaped = rest;
            } else {
                bytes.push(byte);
            }
        }
        // Only as it would be made: another spelling is another key.
        Name::new(bytes).ok().filter(|name| name.manifest_key().is_ok_and(|made| made.as_bytes() == key))
    }

    /// The name that a key belongs to, and which life of it: `None` in place of the life for a manifest, and in all for a key that is no structure's.
    ///
    /// ```
    /// use larder_structures::Name;
    /// let (name, life) = Name::of_key(b"L.page%20hits.s.00000000000000ab.3").expect("a slot of a counter");
    /// assert_eq!((name.as_bytes(), life), (&b"page hits"[..], Some(0xab)));
    /// assert!(Name::of_key(b"user:7").is_none());
    /// ```
    pub fn of_key(key: &[u8]) -> Option<(Name, Option<u64>)> {
        Name::parts_of_key(key).map(|(name, data)| (name, data.map(|data| data.life)))
    }

    /// The name that a key belongs to, and of a data key the rest; `None` in all for a key that is no structure's.
    pub(crate) fn parts_of_key(key: &[u8]) -> Option<(Name, Option<DataKey<'_>>)> {
        let end = key.strip_prefix(Name::MANIFESTS)?.iter().position(|&byte| byte == b'.')? + Name::MANIFESTS.len();
        let (escaped, rest) = key.split_at(end);
        let name = Name::of_manifest_key(&[escaped, b".m"].concat())?;
        if rest == b".m" {
            return Some((name, None));
        }
        // A dot, the role, a dot, 16 digits, a dot.
        let [b'.', role, b'.', rest @ ..] = rest else { return None };
        let (digits, index) = rest.split_at_checked(16)?;
        let index = std::str::from_utf8(index.strip_prefix(b".")?).ok()?;
        let is_plain = digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let life = u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_plain)?, 16).ok()?;
        Some((name, Some(DataKey { role: char::from(*role), life, index })))
    }

    /// The key of a piece of data: `role` says what it is, `index` which one.
    ///
    /// An index is a number, or letters, digits, `_` and `-`, and [`Name::INDEX_BYTES_MAX`] long at the most.
    pub(crate) fn data_key(&self, role: char, generation: u64, index: impl fmt::Display) -> Result<Key> {
        let mut key = self.stem(role, generation);
        let before = key.len();
        _ = write!(key, "{index}");
        debug_assert!(key.len() - before <= Name::INDEX_BYTES_MAX, "{key}");
        Key::new(key)
    }

    /// The keys of many pieces of data at once, in one piece of memory: for as long as a call takes. Who keeps one of them keeps all, so what goes on behind a call makes its key anew.
    pub(crate) fn data_keys<I: AsRef<str>>(
        &self,
        role: char,
        generation: u64,
        indexes: impl ExactSizeIterator<Item = I>,
    ) -> Result<Vec<Key>> {
        let stem = self.stem(role, generation);
        let mut all = String::with_capacity(indexes.len() * (stem.len() + Name::INDEX_BYTES_MAX));
        let ends = indexes.map(|index| {
            all.push_str(&stem);
            all.push_str(index.as_ref());
            all.len()
        });
        let ends: Vec<usize> = ends.collect();
        let (all, mut begin) = (Bytes::from(all), 0);
        let key = |end| Key::new(all.slice(std::mem::replace(&mut begin, end)..end));
        ends.into_iter().map(key).collect()
    }

    /// What a data key is before its index.
    fn stem(&self, role: char, generation: u64) -> String {
        let mut stem = self.prefix();
        _ = write!(stem, "{role}.{generation:016x}.");
        stem
    }

    fn prefix(&self) -> String {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let escaped: usize = self.0.iter().map(|&byte| if is_plain(byte) { 1 } else { 3 }).sum();
        // Room for a role, a generation and an index behind it.
        let mut key =
            String::with_capacity("L..".len() + escaped + "s.0123456789abcdef.".len() + Name::INDEX_BYTES_MAX);
        key.push_str("L.");
        for &byte in &self.0 {
            if is_plain(byte) {
                key.push(char::from(byte));
            } else {
                _ = write!(key, "%{byte:02X}");
            }
        }
        key.push('.');
        key
    }
}

/// A data key, taken apart, but for the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataKey<'k> {
    pub(crate) role: char,
    pub(crate) life: u64,
    pub(crate) index: &'k str,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Shown(&self.0), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Letters that an index may have (base64url).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Letters<const COUNT: usize>([u8; COUNT]);

/// The highest bits as letters, 6 bits each. Frozen: keys are made of it.
pub(crate) fn letters<const COUNT: usize>(bits: u128) -> Letters<COUNT> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // Each place is of 6 bits, so below 64.
    Letters(std::array::from_fn(|at| LETTERS[(bits >> (122 - 6 * at)) as usize & 63]))
}

impl<const COUNT: usize> AsRef<str> for Letters<COUNT> {
    fn as_ref(&self) -> &str {
        // They are all of ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl<const COUNT: usize> fmt::Display for Letters<COUNT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_have_golden_bytes() {
        let name = Name::new(b"a.b\xff_-Z").unwrap();
        assert_eq!(name.manifest_key().unwrap().as_bytes(), b"L.a%2Eb%FF_-Z.m");
        assert_eq!(name.data_key('s', 0xab, 65535).unwrap().as_bytes(), b"L.a%2Eb%FF_-Z.s.00000000000000ab.65535");
    }

    #[test]
    fn keys_that_are_made_at_once_are_those_that_are_made_one_by_one() {
        for bytes in [&b"a"[..], &[0xff; 64]] {
            let name = Name::new(bytes).unwrap();
            for indexes in [vec![], vec!["AB"], vec!["", "12345678901234567", "z"]] {
                let one_by_one = indexes.iter().map(|index| name.data_key('t', 7, index).unwrap());
                assert_eq!(name.data_keys('t', 7, indexes.iter()).unwrap(), one_by_one.collect::<Vec<Key>>());
            }
        }
    }

    #[test]
    fn the_longest_key_fits_and_leaves_room_for_a_namespace() {
        let key = Name::new([0xff; 64]).unwrap().data_key('s', u64::MAX, "12345678901234567").unwrap();
        assert!(key.as_bytes().len() <= Key::BYTES_MAX - 16, "{}", key.as_bytes().len());
    }

    #[test]
    fn a_manifests_key_gives_its_name_back_and_no_other_key_does() {
        for bytes in [&b"a"[..], b"a.b\xff_-Z", b"%", b".m", &[0xff; 64]] {
            let name = Name::new(bytes).unwrap();
            assert_eq!(Name::of_manifest_key(name.manifest_key().unwrap().as_bytes()), Some(name.clone()));
            assert_eq!(Name::of_manifest_key(name.data_key('s', 1, 0).unwrap().as_bytes()), None);
            assert_eq!(Name::of_key(name.manifest_key().unwrap().as_bytes()), Some((name.clone(), None)));
            let data = name.data_key('s', u64::MAX, "12345678901234567").unwrap();
            assert_eq!(Name::of_key(data.as_bytes()), Some((name.clone(), Some(u64::MAX))));
        }
        for key in [
            &b"L.a"[..],
            b"L.a.",
            b"L.a.s",
            b"L.a.s.1.0",
            b"L.a.s.00000000000000AB.0",
            b"L.a.s.+000000000000001.0",
            b"L..m",
            b"",
        ] {
            assert_eq!(Name::of_key(key), None, "{}", String::from_utf8_lossy(key));
        }
        for key in [&b"L..m"[..], b"L.m", b"L.%61.m", b"L.a%2e.m", b"L.a%2.m", b"L.a%+1.m", b"x.a.m", b"L!probe", b""] {
            assert_eq!(Name::of_manifest_key(key), None, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_name_shows_as_other_bytes_do() {
        for bytes in [&b"visitors"[..], "größe".as_bytes(), b"a\xff"] {
            let (name, shown) = (Name::new(bytes).unwrap(), Shown(bytes).to_string());
            assert!(shown.len() > bytes.len(), "{shown}");
            assert_eq!([name.to_string(), format!("{name:?}")], [shown.clone(), shown]);
        }
    }

    #[test]
    fn no_two_names_share_a_key() {
        let tricky: [&[u8]; 9] = [b"a", b"a.m", b"a.s", b"a%2E", b"a.", b"A", b"%", b"%25", b"a.s.0000000000000000.0"];
        let mut seen = HashSet::new();
        for bytes in tricky {
            let name = Name::new(bytes).unwrap();
            assert!(seen.insert(name.manifest_key().unwrap()), "{name}");
            assert!(seen.insert(name.data_key('s', 0, 0).unwrap()), "{name}");
        }
    }
}
