//! What the weather of a simulation is: which faults it has, how often, and which server it is about. Drawn from the seed, so that some
//! seeds have one sort of fault only, and what it does is not hidden by others.

use std::time::Duration;

use larder_core::{Durability, Eviction, Profile, TtlSupport};

/// What happens to the data, and with it which losses are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    /// Nothing: whatever is lost was lost by us.
    None,
    /// Items are evicted.
    Evictions,
    /// The server is flushed, or starts again with nothing.
    Emptied,
    /// The server starts again with what it held a while ago.
    SetBack,
    /// All of these.
    Any,
}

/// Of a store with small values: the least that every structure can do with, a cache's.
const VALUE_BYTES_SMALL: usize = 17 << 10;

/// How a server and what leads to it behave.
#[derive(Clone, Debug)]
pub(super) struct Climate {
    pub(super) clients: usize,
    pub(super) harm: Harm,
    /// One request in so many meets a fault of its connection; none at all for zero.
    pub(super) break_one_in: u64,
    /// One write in so many finds the server full; none at all for zero.
    pub(super) full_one_in: u64,
    /// How long a message takes at the most, in us.
    pub(super) delay_us_max: u64,
    /// One message in so many takes up to [`Climate::LATE_MAX`]; none at all for zero.
    pub(super) late_one_in: u64,
    /// One request in so many is carried out a second time, a while later; none at all for zero.
    pub(super) twice_one_in: u64,
    /// How long it is quiet between two things that befall the server or a client, on average.
    pub(super) calm_for: Duration,
    pub(super) are_clocks_wrong: bool,
    /// The largest value that the server takes.
    pub(super) value_bytes_max: usize,
    pub(super) dialect: Dialect,
}

/// What the server can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// As the memcached client says of a server with the meta commands.
    Meta,
    /// As it says of one without.
    Classic,
    /// As the store in the process says of itself.
    Embedded,
}

impl Climate {
    /// How late a message is at the most.
    pub(super) const LATE_MAX: Duration = Duration::from_secs(20);

    /// The climate of a seed.
    pub(super) fn draw(random: &mut fastrand::Rng) -> Climate {
        let one_of = |random: &mut fastrand::Rng, all: &[u64]| all[random.usize(..all.len())];
        let harms = [
            Harm::None,
            Harm::None,
            Harm::None,
            Harm::Evictions,
            Harm::Emptied,
            Harm::SetBack,
            Harm::SetBack,
            Harm::Any,
        ];
        Climate {
            clients: random.usize(2..=4),
            harm: harms[random.usize(..harms.len())],
            break_one_in: one_of(random, &[0, 8, 20, 60, 200]),
            full_one_in: one_of(random, &[0, 0, 0, 50]),
            delay_us_max: one_of(random, &[400, 2_000, 20_000, 150_000]),
            late_one_in: one_of(random, &[0, 0, 30, 100]),
            twice_one_in: 0,
            calm_for: Duration::from_millis(one_of(random, &[50, 200, 1_000, 5_000])),
            are_clocks_wrong: random.u8(..3) == 0,
            value_bytes_max: if random.u8(..4) == 0 { VALUE_BYTES_SMALL } else { 1 << 20 },
            dialect: [Dialect::Meta, Dialect::Classic, Dialect::Embedded][random.usize(..3)],
        }
    }

    /// The same, with requests that are delivered twice, in every third seed. Drawn apart, so that all other seeds stay what they were.
    pub(super) fn with_requests_twice(mut self, random: &mut fastrand::Rng) -> Climate {
        self.twice_one_in = [0, 0, 0, 0, 3, 30][random.usize(..6)];
        self
    }

    /// Whether items go while the server lives on.
    pub(super) fn takes_items(&self) -> bool {
        !matches!(self.harm, Harm::None | Harm::SetBack)
    }

    /// What the clients are told of the server, which is a memory store.
    pub(super) fn profile(&self, memory: &Profile) -> Profile {
        let is_network = self.dialect != Dialect::Embedded;
        let is_classic = self.dialect == Dialect::Classic;
        Profile {
            store: "simulated".to_owned(),
            keys_binary: !is_classic,
            remaining_ttl: !is_classic,
            arith_initial: !is_classic,
            ttl: if is_network { TtlSupport::Seconds } else { TtlSupport::Millis },
            durability: match self.harm {
                Harm::SetBack => Durability::Recent,
                _ => Durability::Server,
            },
            eviction: match self.harm {
                Harm::Evictions | Harm::Any => Eviction::WhenFull,
                _ => Eviction::Never,
            },
            ..memory.clone()
        }
    }
}
