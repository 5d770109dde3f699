//! Where inputs come from: a generator of random numbers with a memory for what it has made.

use fastrand::Rng;

/// The longest input that mutation makes.
const BYTES_MAX: usize = 64 << 10;
/// Numbers at the edges of what fits somewhere.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    8,
    9,
    10,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    250,
    251,
    255,
    256,
    1_023,
    1_024,
    4_095,
    4_096,
    65_535,
    65_536,
    2_592_000,
    2_592_001,
    i32::MAX as u64,
    i32::MAX as u64 + 1,
    u32::MAX as u64,
    u32::MAX as u64 + 1,
    (1 << 40) - 1,
    (1 << 48) - 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 1,
    u64::MAX,
];

/// Draws from a seed.
pub(crate) struct Input {
    pub(crate) rng: Rng,
}

impl Input {
    /// Two targets draw different inputs from one seed.
    pub(crate) fn new(seed: u64, target: &str) -> Input {
        let salt = target.bytes().fold(0u64, |salt, byte| salt.wrapping_mul(257).wrapping_add(u64::from(byte)));
        Input { rng: Rng::with_seed(seed ^ salt.rotate_left(17)) }
    }

    /// True one time in so many.
    pub(crate) fn one_in(&mut self, times: u32) -> bool {
        self.rng.u32(0..times) == 0
    }

    /// A number: an edge, a small one, or any.
    pub(crate) fn number(&mut self) -> u64 {
        match self.rng.u8(0..4) {
            0 => EDGES[self.rng.usize(0..EDGES.len())],
            1 => self.rng.u64(0..300),
            2 => self.rng.u64(..) >> self.rng.u32(0..64),
            _ => self.rng.u64(..),
        }
    }

    /// One of these.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.rng.usize(0..of.len())]
    }

    /// Any bytes, mostly few.
    pub(crate) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let fewer = self.rng.u32(0..6);
        let length = self.rng.usize(0..=most >> fewer);
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes);
        bytes
    }

    /// Words of a dictionary, numbers and garbage, put together.
    pub(crate) fn jumble(&mut self, words: &[&[u8]], most: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..self.rng.usize(0..=most) {
            match self.rng.u8(0..8) {
                0 => out.extend_from_slice(self.number().to_string().as_bytes()),
                1 => out.extend(self.bytes(24)),
                _ => out.extend_from_slice(self.pick(words)),
            }
        }
        out
    }

    /// Changes a few things: bits, bytes, lengths, pieces of its own or of another, words of a dictionary.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>, words: &[&[u8]], other: &[u8]) {
        for _ in 0..=self.rng.usize(0..4).min(self.rng.usize(0..4)) {
            self.mutate_once(bytes, words, other);
        }
        bytes.truncate(BYTES_MAX);
    }

    fn mutate_once(&mut self, bytes: &mut Vec<u8>, words: &[&[u8]], other: &[u8]) {
        let at = self.rng.usize(0..=bytes.len());
        let span = |rng: &mut Rng, from: usize, length: usize| from..length.min(from + 1 + rng.usize(0..16));
        match self.rng.u8(0..11) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << self.rng.u8(0..8),
            2 if at < bytes.len() => bytes[at] = self.pick(&[&0u8, &1, &0x7f, &0x80, &0xff, &b' ', &b'\n']).to_owned(),
            3 if at < bytes.len() => {
                let range = span(&mut self.rng, at, bytes.len());
                bytes.drain(range);
            }
            4 => bytes.truncate(at),
            // A piece is there twice.
            5 if at < bytes.len() => {
                let range = span(&mut self.rng, at, bytes.len());
                let piece = bytes[range].to_vec();
                let to = self.rng.usize(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
            // The rest of another one.
            6 => {
                let from = self.rng.usize(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            7 => {
                let number = self.number();
                let piece = match self.rng.u8(0..4) {
                    0 => number.to_string().into_bytes(),
                    1 => number.to_le_bytes()[..self.rng.usize(1..=8)].to_vec(),
                    2 => number.to_be_bytes()[self.rng.usize(0..8)..].to_vec(),
                    _ => varint(number),
                };
                // In the place of as many bytes, or between.
                let upto = if self.rng.bool() { bytes.len().min(at + piece.len()) } else { at };
                bytes.splice(at..upto, piece);
            }
            8 if !words.is_empty() => {
                let word = self.pick(words).to_vec();
                bytes.splice(at..at, word);
            }
            _ => {
                let piece = self.bytes(32);
                bytes.splice(at..at, piece);
            }
        }
    }

    /// Cuts into pieces: whole, a few, or byte by byte.
    pub(crate) fn pieces(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let cuts = match self.rng.u8(0..8) {
            0 if bytes.len() <= 512 => return bytes.chunks(1).map(<[u8]>::to_vec).collect(),
            1 => 0,
            _ => self.rng.usize(1..6),
        };
        let mut cuts: Vec<usize> = (0..cuts).map(|_| self.rng.usize(0..=bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
    }
}

/// LEB128, as layouts write lengths.
pub(crate) fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// The shortest that still fails, by taking pieces out: for a violation that people read.
pub(crate) fn minimised(mut bytes: Vec<u8>, fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut length = bytes.len().next_power_of_two() / 2;
    while length > 0 {
        let mut at = 0;
        while at < bytes.len() {
            let mut shorter = bytes.clone();
            shorter.drain(at..bytes.len().min(at + length));
            if fails(&shorter) {
                bytes = shorter;
            } else {
                at += length;
            }
        }
        length /= 2;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_draws_one_input_and_targets_differ() {
        let draw = |seed, target| {
            let mut input = Input::new(seed, target);
            let mut bytes = input.jumble(&[b"get ", b"set ", b"\r\n"], 9);
            input.mutate(&mut bytes, &[b"noreply"], b"other");
            (bytes.clone(), input.pieces(&bytes))
        };
        let all: Vec<_> = (0..50).map(|seed| draw(seed, "a")).collect();
        assert_eq!(all, (0..50).map(|seed| draw(seed, "a")).collect::<Vec<_>>());
        assert_ne!(all, (0..50).map(|seed| draw(seed, "b")).collect::<Vec<_>>());
        assert!(all.iter().all(|(bytes, pieces)| pieces.concat() == *bytes));
    }

    #[test]
    fn what_fails_is_made_short() {
        let long = [&[b'x'; 300][..], b"a", &[b'y'; 99], b"b", &[b'z'; 77]].concat();
        let fails = |bytes: &[u8]| {
            let a = bytes.iter().position(|&byte| byte == b'a');
            a.is_some_and(|a| bytes[a..].contains(&b'b'))
        };
        assert_eq!(minimised(long, fails), b"ab");
    }
}
