//! Which server holds a key: frozen, since two clients that disagree would split every structure in two.
//!
//! # Rendezvous (the default)
//! Every server gets a score for the routing key, and the ranks are the scores in falling order. All arithmetic is on 64-bit
//! unsigned numbers, wrapping; there is no floating point that could differ between machines.
//!
//! ```text
//! fnv(bytes)     = FNV-1a: h = 0xcbf29ce484222325; for each byte b: h = (h xor b) * 0x100000001b3
//! mix(x)         = the finaliser of splitmix64: x = (x xor (x >> 30)) * 0xbf58476d1ce4e5b9;
//!                  x = (x xor (x >> 27)) * 0x94d049bb133111eb; x xor (x >> 31)
//! seed(s, i)     = mix(fnv(s) + (i + 1) * 0x9e3779b97f4a7c15)          for i = 0 .. weight - 1
//! score(s, key)  = the largest of mix(mix(fnv(key)) xor seed(s, i))
//! ```
//!
//! `s` is the server's name as it stands in the URL (`host:port`, or the path of a unix socket). The largest of `w` uniform
//! numbers is the largest of all servers' with a probability in proportion to `w`, which makes the hash weighted exactly.
//! A tie goes to the name that sorts first. A server that is added takes keys from the others and moves no other key.
//! (Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.)
//!
//! # Ketama
//! As libmemcached does it with `KETAMA_WEIGHTED` (and so pylibmc and PHP's memcached, which wrap it): each server has
//! `floor(weight / total weights * 40 * servers) * 4` points on a ring of 32 bits, from the MD5 of `name-0`, `name-1`, and so on, four points a
//! digest; a key's MD5 begins with its place; the server is the one with the first point at or after it, and of
//! several with that very point the one whose name in the URL sorts first. Further ranks are the next other servers on the ring, and then those
//! whose share is too small for a point, by their names as in the URL. The name that is hashed is `host:port` without brackets, `host` alone on
//! port 11211, and `path:0` for a unix socket.

use std::collections::HashSet;

use larder_net::Address;
use md5::{Digest, Md5};
use smallvec::SmallVec;

use crate::config::{Config, Hash, Server};

/// The servers by hash.
#[derive(Debug)]
pub(crate) enum Ring {
    Single,
    Rendezvous(Vec<Seeds>),
    Ketama {
        /// In rising order.
        points: Vec<(u32, u16)>,
        /// The servers without a point, by name.
        pointless: Vec<u16>,
    },
}

/// What is hashed of one server.
#[derive(Debug)]
pub(crate) struct Seeds {
    name: String,
    seeds: Vec<u64>,
}

impl Ring {
    pub(crate) fn new(servers: &[Server], hash: Hash) -> Ring {
        match hash {
            _ if servers.len() <= 1 => Ring::Single,
            Hash::Rendezvous => Ring::Rendezvous(servers.iter().map(Seeds::new).collect()),
            Hash::Ketama => {
                let points = ketama_points(servers);
                let pointless = without_point(servers, &points);
                Ring::Ketama { points, pointless }
            }
        }
    }

    /// The place in the server list of the server that has this rank for the key; `None` for a rank past the last.
    pub(crate) fn server(&self, key: &[u8], rank: u8) -> Option<usize> {
        let rank = usize::from(rank);
        match self {
            Ring::Single => (rank == 0).then_some(0),
            Ring::Rendezvous(seeds) => {
                if rank >= seeds.len() {
                    return None;
                }
                let hash = mix(fnv(key));
                let mut scores: SmallVec<[(u64, usize); 8]> =
                    seeds.iter().enumerate().map(|(place, seeds)| (seeds.score(hash), place)).collect();
                let order = |a: &(u64, usize), b: &(u64, usize)| {
                    b.0.cmp(&a.0).then_with(|| seeds[a.1].name.cmp(&seeds[b.1].name))
                };
                let (_, (_, place), _) = scores.select_nth_unstable_by(rank, order);
                Some(*place)
            }
            Ring::Ketama { points, pointless } => {
                let digest: [u8; 16] = Md5::digest(key).into();
                let place = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
                let start = points.partition_point(|(point, _)| *point < place);
                let mut seen: SmallVec<[u16; 8]> = SmallVec::new();
                for step in 0..points.len() {
                    let (_, server) = points[(start + step) % points.len()];
                    if !seen.contains(&server) {
                        if seen.len() == rank {
                            return Some(usize::from(server));
                        }
                        seen.push(server);
                    }
                }
                pointless.get(rank - seen.len()).map(|server| usize::from(*server))
            }
        }
    }
}

impl Seeds {
    fn new(server: &Server) -> Seeds {
        let hash = fnv(server.name.as_bytes());
        let seed = |i: u64| mix(hash.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        Seeds { name: server.name.clone(), seeds: (0..u64::from(server.weight.max(1))).map(seed).collect() }
    }

    fn score(&self, hash: u64) -> u64 {
        self.seeds.iter().map(|seed| mix(hash ^ seed)).max().unwrap_or(0)
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The finaliser of splitmix64.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What libmemcached hashes of a server.
fn ketama_name(address: &Address) -> String {
    match address {
        Address::Tcp { host, port: Config::PORT } => host.clone(),
        Address::Tcp { host, port } => format!("{host}:{port}"),
        Address::Unix(path) => format!("{}:0", path.display()),
    }
}

fn ketama_points(servers: &[Server]) -> Vec<(u32, u16)> {
    let total: u32 = servers.iter().map(|server| server.weight).sum();
    let mut points = Vec::new();
    for (place, server) in (0u16..).zip(servers) {
        let name = ketama_name(&server.address);
        // In the widths of libmemcached's C, so that the rounding is its own.
        let share = server.weight as f32 / total as f32;
        let digests = (f64::from(share) * 40.0 * servers.len() as f64) as f32;
        for i in 0..digests.floor() as u32 {
            let digest: [u8; 16] = Md5::digest(format!("{name}-{i}")).into();
            for bytes in digest.as_chunks::<4>().0 {
                points.push((u32::from_le_bytes(*bytes), place));
            }
        }
    }
    // Where two coincide, by name: places are the caller's own.
    points.sort_unstable_by_key(|(point, place)| (*point, servers[usize::from(*place)].name.as_str()));
    points
}

/// The servers whose weight is too small a part of all for a point, by name.
fn without_point(servers: &[Server], points: &[(u32, u16)]) -> Vec<u16> {
    let with_point: HashSet<u16> = points.iter().map(|(_, place)| *place).collect();
    let mut without: Vec<(&str, u16)> =
        servers.iter().zip(0u16..).map(|(server, place)| (server.name.as_str(), place)).collect();
    without.retain(|(_, place)| !with_point.contains(place));
    without.sort_unstable();
    without.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn servers(weights: &[u32]) -> Vec<Server> {
        let server =
            |(i, weight): (usize, &u32)| Server { weight: *weight, ..Server::tcp(&format!("cache{}", i + 1), 11211) };
        weights.iter().enumerate().map(server).collect()
    }

    fn keys() -> impl Iterator<Item = String> {
        (0..20_000).map(|i| format!("key:{i}"))
    }

    /// The share of the keys that each server gets.
    fn shares(ring: &Ring, rank: u8) -> BTreeMap<usize, f64> {
        let mut shares = BTreeMap::new();
        for key in keys() {
            *shares.entry(ring.server(key.as_bytes(), rank).unwrap()).or_insert(0.0) += 1.0 / 20_000.0;
        }
        shares
    }

    #[test]
    fn the_hash_functions_are_the_published_ones() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
        // The first outputs of splitmix64 seeded with 0.
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    /// Computed by a separate implementation in another language, from the text at the head of this file: these may never change.
    #[test]
    fn golden_vectors() {
        let (equal, weighted) = (servers(&[1, 1, 1]), servers(&[1, 2, 5]));
        let rings = [Ring::new(&equal, Hash::Rendezvous), Ring::new(&weighted, Hash::Rendezvous)];
        let long = "x".repeat(250);
        let vectors = [
            (&b""[..], [1, 0, 2], [2, 1, 0]),
            (b"a", [0, 2, 1], [0, 2, 1]),
            (b"foo", [2, 1, 0], [2, 1, 0]),
            (b"key:1", [0, 1, 2], [2, 0, 1]),
            (b"user:7", [2, 0, 1], [2, 0, 1]),
            (b"L.hits.m", [1, 2, 0], [2, 1, 0]),
            (b"\x00\xff", [0, 1, 2], [0, 2, 1]),
            (long.as_bytes(), [2, 0, 1], [2, 1, 0]),
        ];
        for (key, ranks, weighted_ranks) in vectors {
            let of = |ring: &Ring| [0, 1, 2].map(|rank| ring.server(key, rank).unwrap());
            assert_eq!(of(&rings[0]), ranks, "{key:?}");
            assert_eq!(of(&rings[1]), weighted_ranks, "{key:?}");
            assert!(rings.iter().all(|ring| ring.server(key, 3).is_none()));
        }
    }

    /// What libmemcached 1.1.4 answers (`memcached_generate_hash`, behavior `KETAMA_WEIGHTED`).
    #[test]
    fn ketama_is_libmemcacheds() {
        let long = "x".repeat(250);
        let keys = [&b"a"[..], b"foo", b"key:1", b"user:7", b"L.hits.m", b"\x00\xff", long.as_bytes()];
        let vectors = [
            (11211, [1, 1, 1], [2, 0, 1, 1, 0, 0, 0]),
            (11211, [1, 2, 4], [2, 2, 1, 1, 2, 0, 2]),
            (11211, [3, 5, 1], [2, 1, 1, 1, 0, 0, 1]),
            (11300, [1, 1, 1], [1, 1, 2, 2, 1, 0, 0]),
            (11300, [1, 2, 4], [2, 1, 2, 2, 2, 1, 2]),
            (11300, [3, 5, 1], [1, 1, 1, 2, 1, 0, 0]),
        ];
        for (port, weights, expected) in vectors {
            let server = |(at, weight)| Server { weight, ..Server::tcp(&format!("cache{}", at + 1), port) };
            let servers: Vec<Server> = weights.into_iter().enumerate().map(server).collect();
            let ring = Ring::new(&servers, Hash::Ketama);
            assert_eq!(keys.map(|key| ring.server(key, 0).unwrap()), expected, "{port} {weights:?}");
        }
        assert_eq!(ketama_name(&Server::tcp("::1", 11300).address), "::1:11300");
        assert_eq!(ketama_name(&Server::unix("/run/memcached.sock").address), "/run/memcached.sock:0");
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        for hash in [Hash::Rendezvous, Hash::Ketama] {
            for weights in [[1, 3, 2, 1], [1, 100, 1, 100]] {
                let list = servers(&weights);
                let mut turned = list.clone();
                turned.rotate_left(2);
                let (one, other) = (Ring::new(&list, hash), Ring::new(&turned, hash));
                for key in keys().take(2_000) {
                    for rank in 0..4 {
                        let name = |servers: &[Server], ring: &Ring| {
                            servers[ring.server(key.as_bytes(), rank).unwrap()].name.clone()
                        };
                        assert_eq!(name(&list, &one), name(&turned, &other));
                    }
                }
            }
        }
    }

    /// Two of them have a point in common, which is a matter of chance: one of some hundred thousand pairs does.
    #[test]
    fn the_order_of_the_list_does_not_matter_where_points_coincide() {
        let mut owners: BTreeMap<u32, String> = BTreeMap::new();
        let mut met = 0;
        for number in 0..1_500 {
            let name = format!("n{number}");
            for (point, _) in ketama_points(&[Server::tcp(&name, 11211)]) {
                let Some(other) = owners.insert(point, name.clone()).filter(|other| *other != name) else { continue };
                let list = [Server::tcp(&other, 11211), Server::tcp(&name, 11211)];
                let turned = [list[1].clone(), list[0].clone()];
                let rings = [Ring::new(&list, Hash::Ketama), Ring::new(&turned, Hash::Ketama)];
                let points = ketama_points(&list);
                for key in keys() {
                    let digest: [u8; 16] = Md5::digest(&key).into();
                    let place = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
                    let first = points.partition_point(|(point, _)| *point < place);
                    met += u32::from(points.get(first).is_some_and(|(first, _)| *first == point));
                    let at = rings.each_ref().map(|ring| ring.server(key.as_bytes(), 0).unwrap());
                    assert_eq!(list[at[0]].name, turned[at[1]].name, "{key}");
                }
                if met > 0 {
                    return;
                }
            }
        }
        panic!("no key came to a point of two");
    }

    #[test]
    fn keys_are_spread_by_weight_at_every_rank() {
        let ring = Ring::new(&servers(&[1, 1, 1, 1]), Hash::Rendezvous);
        for rank in 0..4 {
            assert!(shares(&ring, rank).values().all(|share| (share - 0.25).abs() < 0.015));
        }
        let ring = Ring::new(&servers(&[1, 3, 16]), Hash::Rendezvous);
        for (server, expected) in [(0, 0.05), (1, 0.15), (2, 0.8)] {
            assert!((shares(&ring, 0)[&server] - expected).abs() < 0.01, "{server}");
        }
    }

    #[test]
    fn a_server_that_is_added_takes_its_share_and_moves_no_other_key() {
        let (before, after) =
            (Ring::new(&servers(&[1; 4]), Hash::Rendezvous), Ring::new(&servers(&[1; 5]), Hash::Rendezvous));
        let mut moved = 0.0;
        for key in keys() {
            let (old, new) = (before.server(key.as_bytes(), 0), after.server(key.as_bytes(), 0));
            if old != new {
                assert_eq!(new, Some(4), "a key moved between old servers");
                moved += 1.0 / 20_000.0;
            }
        }
        assert!((moved - 0.2f64).abs() < 0.01, "{moved}");
        let (before, after) = (Ring::new(&servers(&[1; 4]), Hash::Ketama), Ring::new(&servers(&[1; 5]), Hash::Ketama));
        let moved = keys().filter(|key| before.server(key.as_bytes(), 0) != after.server(key.as_bytes(), 0)).count();
        assert!(moved < 20_000 * 3 / 10, "{moved}");
    }

    #[test]
    fn the_ranks_are_a_permutation() {
        for (hash, weights) in [
            (Hash::Rendezvous, [1, 2, 3, 4, 5]),
            (Hash::Ketama, [1, 2, 3, 4, 5]),
            (Hash::Rendezvous, [1, 100, 1, 100, 1]),
            (Hash::Ketama, [1, 100, 1, 100, 1]),
        ] {
            let ring = Ring::new(&servers(&weights), hash);
            for key in keys().take(500) {
                let mut ranks: Vec<_> = (0..5).map(|rank| ring.server(key.as_bytes(), rank).unwrap()).collect();
                ranks.sort_unstable();
                assert_eq!(ranks, [0, 1, 2, 3, 4]);
            }
        }
    }

    #[test]
    fn servers_without_a_point_on_the_ring_come_last_by_name() {
        let ring = Ring::new(&servers(&[1, 100]), Hash::Ketama);
        assert_eq!([0, 1, 2].map(|rank| ring.server(b"a", rank)), [Some(1), Some(0), None]);
        let mut list = servers(&[1, 1, 100, 100]);
        list.swap(0, 1);
        let ring = Ring::new(&list, Hash::Ketama);
        for key in keys().take(100) {
            let last = [2, 3].map(|rank| list[ring.server(key.as_bytes(), rank).unwrap()].name.as_str());
            assert_eq!(last, ["cache1:11211", "cache2:11211"]);
        }
    }
}
