//! The slot of a key, as the cluster computes it.

use std::fmt;

/// Slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// A slot: which primary serves it, the map says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u16);

impl Slot {
    /// The slot of a key as the server sees it: of what stands between the first `{` and the first `}` behind it, if that is not empty,
    /// else of the whole.
    pub(crate) fn of(physical: &[u8]) -> Slot {
        Slot(crc16(tag(physical)) % SLOTS as u16)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn at(index: usize) -> Slot {
        Slot(index as u16)
    }

    /// Its number.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

fn tag(physical: &[u8]) -> &[u8] {
    let Some(from) = memchr::memchr(b'{', physical) else { return physical };
    let rest = &physical[from + 1..];
    match memchr::memchr(b'}', rest) {
        Some(0) | None => physical,
        Some(to) => &rest[..to],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, nothing reflected, begun with 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_slots() {
        // The check value of the algorithm, from the specification of Redis Cluster.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // As CLUSTER KEYSLOT of a server answers.
        for (key, slot) in [
            (&b"123456789"[..], 12_739),
            (b"foo", 12_182),
            (b"{foo}bar", 12_182),
            (b"a{foo}{bar}", 12_182),
            (b"bar", 5_061),
            (b"", 0),
        ] {
            assert_eq!(Slot::of(key).index(), slot, "{key:?}");
        }
    }

    #[test]
    fn an_empty_or_unclosed_tag_is_none() {
        for key in [&b"{}x"[..], b"x{", b"x{y", b"}{"] {
            assert_eq!(tag(key), key);
        }
        assert_eq!(tag(b"{{x}}"), b"{x");
    }
}
