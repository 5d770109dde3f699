//! What every candidate must do: memcached's semantics, on borrowed bytes.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A store in the process. Every write is atomic; an item may have a life; every write gives the item another version.
pub(super) trait Table: Send + Sync {
    /// A value the caller keeps.
    type Owned: AsRef<[u8]>;

    /// Shows the value; where it lies, if the candidate can.
    fn read<T>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Option<T>;
    /// The value.
    fn get(&self, key: &[u8]) -> Option<Self::Owned>;
    /// The version of the item, for `cas`.
    fn version(&self, key: &[u8]) -> Option<u64>;
    /// Writes the item.
    fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>);
    /// Writes the item if there is none.
    fn add(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> bool;
    /// Writes the item if it still has that version.
    fn cas(&self, key: &[u8], version: u64, value: &[u8], ttl: Option<Duration>) -> bool;
    /// Joins bytes behind the value; the life stays.
    fn append(&self, key: &[u8], tail: &[u8]) -> bool;
    /// Adds to a value of decimal digits; the life stays. `None` without an item, or where it is no number.
    fn incr(&self, key: &[u8], delta: u64) -> Option<u64>;
    /// Removes the item.
    fn delete(&self, key: &[u8]) -> bool;
    /// Finishes what was put off.
    fn settle(&self) {}
}

/// A peer's item: what the crate lacks is kept with the value.
#[derive(Clone, Debug)]
pub(super) struct Item<B> {
    pub(super) value: B,
    pub(super) version: u64,
    /// In ms since the process began; 0: never.
    expires_ms: u64,
}

/// Bytes of a value.
pub(super) trait Buf: Clone + AsRef<[u8]> + Send + Sync + 'static {
    fn of(bytes: &[u8]) -> Self;
    fn overwrite(&mut self, bytes: &[u8]);
    fn append(&mut self, tail: &[u8]);
}

impl Buf for Vec<u8> {
    fn of(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn overwrite(&mut self, bytes: &[u8]) {
        self.clear();
        self.extend_from_slice(bytes);
    }

    fn append(&mut self, tail: &[u8]) {
        self.extend_from_slice(tail);
    }
}

impl Buf for Arc<[u8]> {
    fn of(bytes: &[u8]) -> Arc<[u8]> {
        Arc::from(bytes)
    }

    fn overwrite(&mut self, bytes: &[u8]) {
        match Arc::get_mut(self).filter(|old| old.len() == bytes.len()) {
            Some(old) => old.copy_from_slice(bytes),
            None => *self = Arc::from(bytes),
        }
    }

    fn append(&mut self, tail: &[u8]) {
        let mut joined = Vec::with_capacity(self.len() + tail.len());
        joined.extend_from_slice(self);
        joined.extend_from_slice(tail);
        *self = Arc::from(joined);
    }
}

/// Versions of items made anew start here, so that none is given twice.
static LIVES: AtomicU64 = AtomicU64::new(1);
/// Writes of one item, before its versions meet those of a later one.
const WRITES_BITS: u32 = 32;

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now_ms() -> u64 {
    EPOCH.elapsed().as_millis() as u64
}

fn expiry(ttl: Option<Duration>) -> u64 {
    ttl.map_or(0, |ttl| now_ms() + (ttl.as_millis() as u64).max(1))
}

impl<B: Buf> Item<B> {
    pub(super) fn new(value: &[u8], ttl: Option<Duration>) -> Item<B> {
        let version = LIVES.fetch_add(1, Ordering::Relaxed) << WRITES_BITS;
        Item { value: B::of(value), version, expires_ms: expiry(ttl) }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.expires_ms == 0 || now_ms() < self.expires_ms
    }

    pub(super) fn overwrite(&mut self, value: &[u8], ttl: Option<Duration>) {
        self.value.overwrite(value);
        self.version += 1;
        self.expires_ms = expiry(ttl);
    }

    pub(super) fn append(&mut self, tail: &[u8]) {
        self.value.append(tail);
        self.version += 1;
    }

    pub(super) fn incr(&mut self, delta: u64) -> Option<u64> {
        let digits = std::str::from_utf8(self.value.as_ref()).ok()?;
        let number = digits.parse::<u64>().ok()?.wrapping_add(delta);
        let mut text = [0; 20];
        self.value.overwrite(digits_of(number, &mut text));
        self.version += 1;
        Some(number)
    }

    /// Each of the conditional writes, on an item that may have expired. True if it took place.
    pub(super) fn add(&mut self, value: &[u8], ttl: Option<Duration>) -> bool {
        let expired = !self.is_alive();
        if expired {
            self.overwrite(value, ttl);
        }
        expired
    }

    pub(super) fn cas(&mut self, version: u64, value: &[u8], ttl: Option<Duration>) -> bool {
        let is_same = self.is_alive() && self.version == version;
        if is_same {
            self.overwrite(value, ttl);
        }
        is_same
    }
}

/// Decimal digits without an allocation.
fn digits_of(mut number: u64, text: &mut [u8; 20]) -> &[u8] {
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &text[at..];
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The semantics all candidates are held to.
    pub(in super::super) fn check(table: &impl Table) {
        let value = |key: &[u8]| table.get(key).map(|value| value.as_ref().to_vec());
        let hour = Some(Duration::from_secs(3600));
        assert_eq!((value(b"k"), table.version(b"k"), table.append(b"k", b"x")), (None, None, false));
        assert_eq!((table.incr(b"k", 1), table.delete(b"k")), (None, false));
        assert!(table.add(b"k", b"one", hour) && !table.add(b"k", b"two", None));
        assert!(table.append(b"k", b"+1"));
        assert_eq!(table.read(b"k", <[u8]>::to_vec).as_deref(), Some(&b"one+1"[..]));
        assert_eq!(table.incr(b"k", 1), None);
        let version = table.version(b"k").unwrap();
        assert!(table.cas(b"k", version, b"two", hour) && !table.cas(b"k", version, b"three", hour));
        assert_eq!(value(b"k").as_deref(), Some(&b"two"[..]));
        let version = table.version(b"k").unwrap();
        assert!(table.delete(b"k") && table.add(b"k", b"two", None));
        assert!(!table.cas(b"k", version, b"three", None), "a version of an item that is gone");
        table.set(b"n", b"99", None);
        assert_eq!((table.incr(b"n", 1), value(b"n").as_deref()), (Some(100), Some(&b"100"[..])));
        table.set(b"n", b"18446744073709551615", None);
        assert_eq!(table.incr(b"n", 2), Some(1));
        table.set(b"brief", b"7", Some(Duration::from_millis(1)));
        while value(b"brief").is_some() {
            std::thread::yield_now();
        }
        let outcomes = (table.append(b"brief", b"x"), table.incr(b"brief", 1), table.version(b"brief"));
        assert_eq!(outcomes, (false, None, None));
        assert!(!table.delete(b"brief") && table.add(b"brief", b"again", None));
    }

    /// No write is lost, whoever else writes.
    pub(in super::super) fn check_atomic(table: &impl Table) {
        const ROUNDS: u64 = 2_000;
        table.set(b"n", b"0", None);
        table.set(b"log", b"", None);
        table.set(b"c", b"0", None);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        table.incr(b"n", 1);
                        table.append(b"log", b"x");
                        loop {
                            let (version, old) = (table.version(b"c").unwrap(), table.get(b"c").unwrap());
                            let number: u64 = std::str::from_utf8(old.as_ref()).unwrap().parse().unwrap();
                            if table.cas(b"c", version, (number + 1).to_string().as_bytes(), None) {
                                break;
                            }
                        }
                    }
                });
            }
        });
        let number = |key| table.read(key, |value| String::from_utf8(value.to_vec()).unwrap());
        assert_eq!(number(b"n").as_deref(), Some("8000"));
        assert_eq!(table.read(b"log", <[u8]>::len), Some(8000));
        assert_eq!(number(b"c").as_deref(), Some("8000"));
    }
}
