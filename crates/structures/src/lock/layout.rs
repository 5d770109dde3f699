//! The bytes of a lock: one record, in the parameters of the name's manifest.
//!
//! Layout 1, numbers little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | state: 0 free, 1 held |
//! | 1 | 8 | fencing token of the holder, or of the last one |
//! | 9 | 8 | owner, drawn at random for each acquisition (and for a forced release) |
//! | 17 | 8 | beat: counts the writes of one owner |
//! | 25 | 4 | lease, in milliseconds |
//! | 29 | 8 | since when it is held, microseconds since the Unix epoch, by the holder's wall clock |
//! | 37 | 1 | length of the label |
//! | 38 | … | label, at most 64 bytes |
//!
//! State, owner and beat together make every value unique, but for writes that free: who reads one back knows which write it was,
//! and so from when on the lease counts.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::text::Shown;
use larder_core::{Cas, Error, ErrorKind, Item, Remaining, Result};

use crate::manifest::{Kind, Manifest};
use crate::name::Name;

/// The version of this layout.
pub(crate) const LAYOUT: u8 = 1;

/// How long the store keeps a record after its last write. The remaining life tells the record's age by the store's clock.
pub(crate) const RECORD_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The shortest lease.
pub(crate) const LEASE_MIN: Duration = Duration::from_millis(100);

/// The longest lease.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest label, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 64;

const STATE_FREE: u8 = 0;
const STATE_HELD: u8 = 1;
/// Where the label begins.
const FIXED_BYTES: usize = 38;

/// What is stored of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Which life of the name this is.
    pub(crate) generation: u64,
    pub(crate) held: bool,
    pub(crate) token: u64,
    pub(crate) owner: u64,
    pub(crate) beat: u64,
    pub(crate) lease_ms: u32,
    pub(crate) since_us: u64,
    pub(crate) label: Bytes,
}

/// A record's parts, in words, of a lock's stored value.
pub(crate) fn describe(name: &Name, stored: &Bytes) -> Vec<(&'static str, String)> {
    match Record::decode(name, stored) {
        Ok(record) => vec![
            ("state", if record.held { "held" } else { "free" }.to_owned()),
            ("lease", format!("{:?}", record.lease())),
            ("fencing token", record.token.to_string()),
            ("label", Shown(&record.label).to_string()),
        ],
        Err(error) => vec![("damaged", error.detail().to_owned())],
    }
}

impl Record {
    /// The value that is stored: a manifest with the record in it.
    pub(crate) fn encode(&self) -> Bytes {
        let mut params = BytesMut::with_capacity(FIXED_BYTES + self.label.len());
        params.put_u8(if self.held { STATE_HELD } else { STATE_FREE });
        params.put_u64_le(self.token);
        params.put_u64_le(self.owner);
        params.put_u64_le(self.beat);
        params.put_u32_le(self.lease_ms);
        params.put_u64_le(self.since_us);
        // Options check the length, and so does decode.
        params.put_u8(self.label.len().min(LABEL_BYTES_MAX) as u8);
        params.put_slice(&self.label[..self.label.len().min(LABEL_BYTES_MAX)]);
        let params = params.freeze();
        Manifest { kind: Kind::Lock, layout: LAYOUT, shards: 0, generation: self.generation, copies: 1, params }
            .encode()
    }

    /// Reads a stored value.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for a value that is no lock of this layout.
    pub(crate) fn decode(name: &Name, value: &Bytes) -> Result<Record> {
        let manifest = Manifest::decode(value)?;
        manifest.expect(name, Kind::Lock, LAYOUT)?;
        let params = &manifest.params;
        let mismatch = || {
            let detail = format!("{name} holds a lock whose record is damaged: {}", Shown(params));
            Error::new(ErrorKind::LayoutMismatch, detail)
        };
        let (fixed, label) = params.split_first_chunk::<FIXED_BYTES>().ok_or_else(mismatch)?;
        let record = Record {
            generation: manifest.generation,
            held: fixed[0] == STATE_HELD,
            token: u64_at(fixed, 1),
            owner: u64_at(fixed, 9),
            beat: u64_at(fixed, 17),
            lease_ms: u32::from_le_bytes([fixed[25], fixed[26], fixed[27], fixed[28]]),
            since_us: u64_at(fixed, 29),
            label: params.slice_ref(label),
        };
        let is_whole = fixed[0] <= STATE_HELD
            && usize::from(fixed[37]) == label.len()
            && label.len() <= LABEL_BYTES_MAX
            && (LEASE_MIN..=LEASE_MAX).contains(&record.lease());
        if is_whole { Ok(record) } else { Err(mismatch()) }
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(u64::from(self.lease_ms))
    }

    /// True if `owner` holds the lock by this record.
    pub(crate) fn is_held_by(&self, owner: u64) -> bool {
        self.held && self.owner == owner
    }

    /// What follows this record when its holder lets go: everything is kept but the state.
    pub(crate) fn freed(&self) -> Record {
        Record { held: false, beat: self.beat.wrapping_add(1), ..self.clone() }
    }

    /// What follows this record when its holder renews the lease, with a beat that no write of it had.
    pub(crate) fn renewed(&self, beat: u64) -> Record {
        Record { beat, ..self.clone() }
    }
}

fn u64_at(bytes: &[u8; FIXED_BYTES], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) record: Record,
    /// The bytes it was read from; they are those of one write and of no other.
    pub(crate) value: Bytes,
    pub(crate) cas: Cas,
    pub(crate) ttl: Remaining,
}

impl Found {
    /// Reads an item; `None` is a miss.
    pub(crate) fn of(name: &Name, item: Option<Item>) -> Result<Option<Found>> {
        let Some(item) = item else { return Ok(None) };
        let record = Record::decode(name, &item.value)?;
        let cas = item.cas.ok_or_else(|| {
            Error::new(ErrorKind::Protocol, format!("the store gave no cas token with the lock {name}"))
        })?;
        Ok(Some(Found { record, value: item.value, cas, ttl: item.ttl }))
    }

    /// The least age of the record by the store's clock, if the store can tell. `granularity` is how coarse that clock is: with
    /// ticks of a second, a difference of n ticks is more than n - 1 seconds.
    pub(crate) fn age_min(&self, granularity: Duration) -> Option<Duration> {
        match self.ttl {
            Remaining::For(left) => Some(RECORD_TTL.saturating_sub(left).saturating_sub(granularity)),
            Remaining::Unknown | Remaining::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name() -> Name {
        Name::new("n").unwrap()
    }

    fn record() -> Record {
        Record {
            generation: 0x1122_3344_5566_7788,
            held: true,
            token: 0x0102_0304_0506_0708,
            owner: 0x1112_1314_1516_1718,
            beat: 0x2122_2324_2526_2728,
            lease_ms: 30_000,
            since_us: 0x3132_3334_3536_3738,
            label: Bytes::from_static(b"host/7"),
        }
    }

    #[test]
    fn a_record_is_held_by_its_owner_until_it_is_freed() {
        let (record, owner) = (record(), record().owner);
        assert!(record.is_held_by(owner) && record.renewed(9).is_held_by(owner));
        assert!(!record.is_held_by(owner + 1) && !record.freed().is_held_by(owner));
    }

    #[test]
    fn golden_bytes() {
        let held = b"LRD\x01\x01\x01\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11\x01\
            \x01\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x28\x27\x26\x25\x24\x23\x22\x21\
            \x30\x75\x00\x00\x38\x37\x36\x35\x34\x33\x32\x31\x06host/7";
        assert_eq!(&record().encode()[..], held);
        let free = b"LRD\x01\x01\x01\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11\x01\
            \x00\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x29\x27\x26\x25\x24\x23\x22\x21\
            \x30\x75\x00\x00\x38\x37\x36\x35\x34\x33\x32\x31\x06host/7";
        assert_eq!(&record().freed().encode()[..], free);
        assert_eq!(Record::decode(&name(), &Bytes::from_static(held)).unwrap(), record());
    }

    #[test]
    fn a_damaged_record_is_a_layout_mismatch() {
        let whole = record().encode();
        let mut damaged = vec![whole.slice(..whole.len() - 1), Bytes::from([&whole[..], b"x"].concat())];
        // The state, the highest byte of the lease, the length of the label.
        for (at, byte) in [(17, 2), (17 + 28, 0xff), (17 + 37, 5)] {
            let mut bytes = whole.to_vec();
            bytes[at] = byte;
            damaged.push(Bytes::from(bytes));
        }
        for bytes in damaged {
            assert_eq!(Record::decode(&name(), &bytes).unwrap_err().kind(), ErrorKind::LayoutMismatch, "{bytes:?}");
        }
    }

    #[test]
    fn the_age_is_never_overstated() {
        let mut found =
            Found { record: record(), value: Bytes::new(), cas: Cas { token: 1, session: 1 }, ttl: Remaining::Unknown };
        let second = Duration::from_secs(1);
        assert_eq!(found.age_min(second), None);
        for (left_s, age_s) in [(0, 30 * 86_400 - 1), (30 * 86_400 - 5, 4), (30 * 86_400, 0), (31 * 86_400, 0)] {
            found.ttl = Remaining::For(Duration::from_secs(left_s));
            assert_eq!(found.age_min(second), Some(Duration::from_secs(age_s)), "{left_s}");
        }
    }

    proptest! {
        #[test]
        fn decoding_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..140)) {
            let mut manifest = record().encode()[..17].to_vec();
            manifest.extend_from_slice(&bytes);
            for value in [Bytes::from(bytes), Bytes::from(manifest)] {
                if let Ok(record) = Record::decode(&name(), &value) {
                    prop_assert_eq!(record.encode(), value);
                }
            }
        }

        #[test]
        fn what_is_written_is_read(held: bool, token: u64, owner: u64, beat: u64, lease_ms in 100u32..=86_400_000,
            since_us: u64, generation: u64, label in proptest::collection::vec(any::<u8>(), 0..=64)) {
            let record = Record { generation, held, token, owner, beat, lease_ms, since_us, label: label.into() };
            prop_assert_eq!(Record::decode(&name(), &record.encode()).unwrap(), record);
        }
    }

    #[test]
    fn a_record_is_told_in_words_and_its_end_names_the_damage() {
        let name = Name::new("l").unwrap();
        let record = Record {
            generation: 1,
            held: true,
            token: 7,
            owner: 2,
            beat: 3,
            lease_ms: 5_000,
            since_us: 4,
            label: Bytes::from_static(b"who"),
        };
        let told = describe(&name, &record.encode());
        let words = [("state", "held"), ("lease", "5s"), ("fencing token", "7"), ("label", "\"who\"")];
        assert_eq!(told.iter().map(|(part, text)| (*part, &text[..])).collect::<Vec<_>>(), words);
        assert_eq!(describe(&name, &record.freed().encode())[0].1, "free");
        let damaged = describe(&name, &Bytes::from_static(b"x"));
        assert!(damaged.len() == 1 && damaged[0].0 == "damaged" && !damaged[0].1.is_empty(), "{damaged:?}");
        let renewed = record.renewed(99);
        assert_eq!((renewed.beat, Record { beat: 3, ..renewed }), (99, record));
    }
}
