//! memcached's slab classes: which sizes of chunks a growth factor makes, and what items of given sizes take in them.
//!
//! Source: `slabs_init` in `slabs.c` of memcached 1.6.

use std::collections::BTreeMap;

/// Regular classes there can be; one more is of the largest chunks.
const CLASSES_MAX: usize = 62;
const ALIGNMENT: u64 = 8;
/// An item's header, to which `-n` adds.
const HEADER_BYTES: u64 = 48;

/// Sizes of chunks.
///
/// ```
/// use larder_footprint::Slabs;
/// let slabs = Slabs::new(1.25, 48, 512 * 1024);
/// assert_eq!(slabs.chunk(90), 96);
/// assert_eq!(slabs.chunk(97), 120);
/// assert!(!slabs.is_short());
/// // Too small a factor runs out of classes: what is larger than 2 KB takes a chunk of half a megabyte.
/// assert!(Slabs::new(1.05, 48, 512 * 1024).is_short());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slabs {
    chunks: Vec<u64>,
    chunk_max: u64,
    is_short: bool,
}

impl Slabs {
    /// The classes of a growth factor (`-f`), the room of the smallest chunk (`-n`), and the largest chunk (`slab_chunk_max`), in bytes.
    pub fn new(factor: f64, room_min: u64, chunk_max: u64) -> Slabs {
        let (mut chunks, mut size) = (Vec::new(), HEADER_BYTES + room_min);
        let mut is_short = true;
        while chunks.len() < CLASSES_MAX {
            if size as f64 >= chunk_max as f64 / factor {
                is_short = false;
                break;
            }
            size = size.next_multiple_of(ALIGNMENT);
            chunks.push(size);
            // As the server does: cut to whole bytes.
            size = (size as f64 * factor) as u64;
        }
        Slabs { chunks, chunk_max, is_short }
    }

    /// True if there are too few classes to reach the largest chunk: items in between waste most of it.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// The chunk that an item of so many bytes takes, its overhead included. One over the largest chunk is cut, and takes about what it has.
    pub fn chunk(&self, bytes: u64) -> u64 {
        if bytes > self.chunk_max {
            return bytes;
        }
        let at = self.chunks.partition_point(|&chunk| chunk < bytes);
        self.chunks.get(at).copied().unwrap_or(self.chunk_max)
    }

    /// What items take in chunks, by how many there are of each size.
    ///
    /// ```
    /// use larder_footprint::Slabs;
    /// let sizes = [(90, 10), (97, 1)].into();
    /// assert_eq!(Slabs::new(1.25, 48, 512 * 1024).total(&sizes), 10 * 96 + 120);
    /// ```
    pub fn total(&self, sizes: &BTreeMap<u64, u64>) -> u64 {
        sizes.iter().map(|(&size, &count)| self.chunk(size).saturating_mul(count)).sum()
    }
}

/// The growth factor under which items of these sizes take least, within a hundredth, with what they take: of those the smallest, whose classes suit other sizes best. None that is
/// [short](Slabs::is_short).
///
/// ```
/// // Items of 960 bytes: 1.25 gives them chunks of 1,184.
/// let (factor, bytes) = larder_footprint::best_factor(&[(960, 1_000)].into(), 48, 512 * 1024);
/// assert!(bytes < 1_000_000 && factor >= 1.15, "{factor} {bytes}");
/// ```
pub fn best_factor(sizes: &BTreeMap<u64, u64>, room_min: u64, chunk_max: u64) -> (f64, u64) {
    const NEAR: f64 = 1.01;
    // In hundredths, so that what is printed is what was tried.
    let tried = (105..=200).map(|hundredths| f64::from(hundredths) / 100.0);
    let totals = tried.map(|factor| (factor, Slabs::new(factor, room_min, chunk_max)));
    let able = totals.filter(|(_, slabs)| !slabs.is_short());
    let able: Vec<(f64, u64)> = able.map(|(factor, slabs)| (factor, slabs.total(sizes))).collect();
    let least = able.iter().map(|&(_, total)| total).min().unwrap_or(u64::MAX);
    let is_near = |&&(_, total): &&(f64, u64)| total as f64 <= least as f64 * NEAR;
    able.iter().find(is_near).copied().unwrap_or((2.0, u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_those_of_a_server() {
        // `memcached -vv` of 1.6.18 as it is started.
        let slabs = Slabs::new(1.25, 48, 512 * 1024);
        assert_eq!(slabs.chunks[..12], [96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944, 1_184]);
        assert_eq!((slabs.chunk(524_288), slabs.chunk(524_289)), (524_288, 524_289));
        assert_eq!(slabs.chunk(1), 96);
    }

    #[test]
    fn no_factor_that_runs_out_of_classes_is_ever_the_best() {
        for size in [100, 5_000, 20_000, 300_000] {
            let (factor, bytes) = best_factor(&[(size, 1_000)].into(), 48, 512 * 1024);
            assert!(factor > 1.1 && !Slabs::new(factor, 48, 512 * 1024).is_short(), "{factor}");
            assert!(bytes < size * 1_150, "{size}: {bytes}");
        }
        assert_eq!(best_factor(&BTreeMap::new(), 48, 512 * 1024).1, 0);
    }
}
