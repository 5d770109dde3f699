//! Keys that are asked for most, by a sample of the requests.
//!
//! Each thread has a sketch of its own, [`COUNTERS`] keys at the most, whoever asks: Space-Saving (Metwally, Agrawal, El Abbadi, 2005). A key that is asked for more often than one in
//! [`COUNTERS`] is in it. Counts fade, so that what was hot is forgotten.

use std::collections::HashMap;

use parking_lot::Mutex;

/// One request in so many is looked at, in the mean; the gaps are random, so that no rhythm of the requests is missed.
const SAMPLED_EVERY: u32 = 64;
/// Keys that a sketch counts.
const COUNTERS: usize = 128;
/// After so long counts are worth half.
const HALF_LIFE_MS: u64 = 10_000;

/// When the next request of a connection is looked at.
#[derive(Debug)]
pub(crate) struct Countdown(u32);

impl Default for Countdown {
    /// Anywhere: the first requests of connections are as likely as others.
    fn default() -> Countdown {
        Countdown(fastrand::u32(..2 * SAMPLED_EVERY - 1))
    }
}

impl Countdown {
    /// True if this one is.
    #[inline]
    pub(crate) fn is_over(&mut self) -> bool {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                false
            }
            None => {
                self.0 = fastrand::u32(..2 * SAMPLED_EVERY - 1);
                true
            }
        }
    }
}

/// A key, how often it was asked for at the most, and by how much that may be too high.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HotKey {
    pub(crate) key: Box<[u8]>,
    pub(crate) count: u64,
    pub(crate) over: u64,
}

/// The sketch of one thread. The lock is that thread's: another one takes it only to read.
#[derive(Debug, Default)]
pub(crate) struct HotKeys(Mutex<Sketch>);

#[derive(Debug, Default)]
struct Sketch {
    keys: Vec<HotKey>,
    halved_at_ms: u64,
}

impl HotKeys {
    /// Counts a key of a request that is looked at.
    #[cold]
    pub(crate) fn saw(&self, key: &[u8], now_ms: u64) {
        self.0.lock().count(key, now_ms);
    }

    /// The keys of several sketches, the hottest first, `max` at the most. Counts are of all requests, not of those that were looked at.
    pub(crate) fn top<'a>(all: impl Iterator<Item = &'a HotKeys>, now_ms: u64, max: usize) -> Vec<HotKey> {
        let mut sum: HashMap<Box<[u8]>, (u64, u64)> = HashMap::new();
        for sketch in all {
            let mut sketch = sketch.0.lock();
            sketch.fade(now_ms);
            for HotKey { key, count, over } in &sketch.keys {
                let of = sum.entry(key.clone()).or_default();
                *of = (of.0 + count, of.1 + over);
            }
        }
        let each = u64::from(SAMPLED_EVERY);
        let hot =
            |(key, (count, over)): (Box<[u8]>, (u64, u64))| HotKey { key, count: count * each, over: over * each };
        let mut keys: Vec<HotKey> = sum.into_iter().map(hot).collect();
        keys.sort_by(|one, other| (other.count, &one.key).cmp(&(one.count, &other.key)));
        keys.truncate(max);
        keys
    }
}

impl Sketch {
    fn count(&mut self, key: &[u8], now_ms: u64) {
        self.fade(now_ms);
        if let Some(known) = self.keys.iter_mut().find(|known| *known.key == *key) {
            known.count += 1;
            return;
        }
        if self.keys.len() < COUNTERS {
            self.keys.push(HotKey { key: key.into(), count: 1, over: 0 });
            return;
        }
        // The least of them gives way, and its count is what the new one may have missed.
        if let Some(least) = self.keys.iter_mut().min_by_key(|known| known.count) {
            *least = HotKey { key: key.into(), count: least.count + 1, over: least.count };
        }
    }

    fn fade(&mut self, now_ms: u64) {
        let halves = now_ms.saturating_sub(self.halved_at_ms) / HALF_LIFE_MS;
        if halves == 0 {
            return;
        }
        self.halved_at_ms += halves * HALF_LIFE_MS;
        for known in &mut self.keys {
            known.count = known.count.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
            known.over = known.over.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
        }
        self.keys.retain(|known| known.count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_keys_are_found_among_very_many_and_no_count_is_too_low() {
        let mut random = fastrand::Rng::with_seed(1);
        let sketches = [HotKeys::default(), HotKeys::default()];
        let mut truth: HashMap<Vec<u8>, u64> = HashMap::new();
        for at in 0..200_000 {
            // By Zipf's law, about.
            let rank = (1.0 / random.f64().max(1e-6)) as u64;
            let key = format!("key{rank}").into_bytes();
            *truth.entry(key.clone()).or_default() += 1;
            sketches[at % 2].saw(&key, 0);
        }
        let top = HotKeys::top(sketches.iter(), 0, 10);
        assert_eq!(top.len(), 10);
        for (rank, hot) in (1..).zip(&top[..5]) {
            assert_eq!(*hot.key, *format!("key{rank}").into_bytes());
            let truth = truth[&*hot.key] * u64::from(SAMPLED_EVERY);
            assert!(hot.count >= truth && hot.count - hot.over <= truth, "{hot:?}, {truth}");
        }
    }

    #[test]
    fn what_was_hot_is_forgotten_and_room_is_bounded() {
        let hot = HotKeys::default();
        (0..10_000).for_each(|number: u32| hot.saw(&number.to_le_bytes(), 0));
        assert_eq!(hot.0.lock().keys.len(), COUNTERS);
        let before: u64 = hot.0.lock().keys.iter().map(|known| known.count).sum();
        assert_eq!(before, 10_000, "each is counted somewhere");
        hot.saw(b"new", HALF_LIFE_MS);
        let after: u64 = hot.0.lock().keys.iter().map(|known| known.count).sum();
        assert!(after <= before / 2 + 1);
        assert_eq!(HotKeys::top(std::iter::once(&hot), 1_000 * HALF_LIFE_MS, 10), []);
    }

    #[test]
    fn one_in_64_is_looked_at_and_in_no_rhythm() {
        let mut countdown = Countdown::default();
        let taken: Vec<u32> = (0..640_000).filter(|_| countdown.is_over()).collect();
        assert!((9_000..11_000).contains(&taken.len()), "{}", taken.len());
        // Of every 16th request as many as of any other.
        let on_beat = taken.iter().filter(|&&at| at % 16 == 0).count();
        assert!((400..900).contains(&on_beat), "{on_beat}");
    }
}
