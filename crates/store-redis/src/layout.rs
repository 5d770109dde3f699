//! What an item is in Redis: a string of a short header and the value.
//!
//! ```text
//! byte 0        0xC1, which begins no text in UTF-8 and no value of MessagePack
//! bytes 1..9    the version: 63 bits that the writer draws; the highest bit of byte 1 says that flags follow
//! bytes 9..13   the flags, little-endian, only where that bit is set: where they are not 0
//! then          the value
//! ```
//!
//! Whoever changes an item draws another version, who appends to it too: a server that lost the last appends (a failover, a snapshot) takes others in their
//! place, and then the length is the same and the bytes are not. A cas token is version and length: a bare `APPEND` of another program is seen by the length.

use bytes::Bytes;
use larder_core::Cas;

/// The first byte of an item.
pub(crate) const MAGIC: u8 = 0xC1;
/// Bytes before the value of an item without flags.
pub(crate) const HEADER_BYTES: usize = 9;
/// Bytes before the value of an item with flags.
pub(crate) const HEADER_BYTES_MAX: usize = 13;
/// The bit of the version that says that flags follow.
pub(crate) const FLAGGED: u64 = 1 << 63;
/// The upper half of the session of a token; the lower half is the length of the item. So a token of another store matches nothing.
const SESSION: u64 = 0x4C52_4544_0000_0000;

/// A header, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    version: u64,
    pub(crate) flags: u32,
}

impl Header {
    /// Reads the header of an item from its first bytes; `None` for what is no item.
    pub(crate) fn decode(head: &[u8]) -> Option<Header> {
        let (magic, rest) = head.split_first()?;
        let (version, rest) = rest.split_first_chunk()?;
        let version = u64::from_be_bytes(*version);
        let flags = if version & FLAGGED == 0 { 0 } else { u32::from_le_bytes(*rest.first_chunk()?) };
        (*magic == MAGIC).then_some(Header { version, flags })
    }

    /// Where the value begins.
    pub(crate) fn bytes(self) -> usize {
        if self.version & FLAGGED == 0 { HEADER_BYTES } else { HEADER_BYTES_MAX }
    }

    /// The token of an item that is `length` bytes long, header included.
    pub(crate) fn cas(self, length: usize) -> Cas {
        Cas { token: self.version, session: SESSION | (length as u64 & 0xFFFF_FFFF) }
    }
}

/// An item, as it is stored.
pub(crate) fn encode(version: u64, flags: u32, value: &[u8]) -> Vec<u8> {
    let mut item = Vec::with_capacity(HEADER_BYTES_MAX + value.len());
    item.push(MAGIC);
    if flags == 0 {
        item.extend_from_slice(&(version & !FLAGGED).to_be_bytes());
    } else {
        item.extend_from_slice(&(version | FLAGGED).to_be_bytes());
        item.extend_from_slice(&flags.to_le_bytes());
    }
    item.extend_from_slice(value);
    item
}

/// An item taken apart; `None` for what is no item.
pub(crate) fn decode(item: Bytes) -> Option<(Header, Bytes)> {
    let header = Header::decode(&item)?;
    Some((header, item.slice(header.bytes()..)))
}

/// A version of a writer that rewrites an item in a script, which sets the highest bit itself.
pub(crate) fn version_bytes(version: u64) -> [u8; 8] {
    (version & !FLAGGED).to_be_bytes()
}

/// What a token says of the item that it was read from: its first bytes, and its length. `None` for a token of another store.
pub(crate) fn expected(cas: Cas) -> Option<([u8; HEADER_BYTES], u64)> {
    if cas.session & !0xFFFF_FFFF != SESSION {
        return None;
    }
    let mut head = [MAGIC; HEADER_BYTES];
    head[1..].copy_from_slice(&cas.token.to_be_bytes());
    Some((head, cas.session & 0xFFFF_FFFF))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let plain = encode(0x8102_0304_0506_0708, 0, b"value");
        assert_eq!(plain, b"\xc1\x01\x02\x03\x04\x05\x06\x07\x08value");
        let flagged = encode(0x0102_0304_0506_0708, 0xA0B0_C0D0, b"value");
        assert_eq!(flagged, b"\xc1\x81\x02\x03\x04\x05\x06\x07\x08\xd0\xc0\xb0\xa0value");
        assert_eq!(encode(0, 0, b""), b"\xc1\0\0\0\0\0\0\0\0");
        let (header, value) = decode(flagged.into()).unwrap();
        assert_eq!((header.flags, &value[..]), (0xA0B0_C0D0, &b"value"[..]));
        let cas = header.cas(18);
        assert_eq!(cas, Cas { token: 0x8102_0304_0506_0708, session: 0x4C52_4544_0000_0012 });
        assert_eq!(expected(cas), Some((*b"\xc1\x81\x02\x03\x04\x05\x06\x07\x08", 18)));
        assert_eq!(expected(Cas { token: 1, session: 1 }), None);
        assert_eq!(version_bytes(u64::MAX), [0x7f, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn what_is_no_item_is_none() {
        for text in
            [&b""[..], b"\xc1", b"\xc1\0\0\0\0\0\0\0", b"a value without a header", b"\xc1\x80\0\0\0\0\0\0\0\0\0\0"]
        {
            assert_eq!(decode(Bytes::copy_from_slice(text)), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_item_comes_back(version: u64, flags: u32, value: Vec<u8>) {
            let (header, found) = decode(encode(version, flags, &value).into()).unwrap();
            prop_assert_eq!((header.flags, &found[..]), (flags, &value[..]));
        }

        #[test]
        fn garbage_never_panics(garbage: Vec<u8>) {
            let _ = decode(garbage.into());
        }
    }
}
