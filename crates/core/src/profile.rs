//! Profiles: what a store can do, what it guarantees, and its limits.

use std::fmt;
use std::time::Duration;

use crate::key::Key;
use crate::native::Families;

/// The limits and guarantees of a store, as its handshake found them.
///
/// Structures look here before they rely on anything. "It depends on the store" is written down in this struct.
///
/// ```
/// let profile = larder_core::Profile::unlimited("example");
/// assert!(profile.cas && profile.nodes == 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What the store is, for people: `memory`, `memcached 1.6.38 (meta), 3 servers`. Carries no secret.
    pub store: String,
    /// The longest key, in bytes.
    pub key_bytes_max: usize,
    /// True if keys of any bytes are carried; false where only printable ASCII without spaces is.
    pub keys_binary: bool,
    /// The largest item, in bytes: key, value and [`item_overhead_bytes`](Profile::item_overhead_bytes) together.
    pub item_bytes_max: usize,
    /// What the store adds to key and value when it holds them against the limit, in bytes.
    pub item_overhead_bytes: usize,
    /// How many ops one batch may have.
    pub batch_ops_max: usize,
    /// How many nodes hold the keys; each is asked at once. 1 where there is no network.
    pub nodes: usize,
    /// True if keys stand on several servers, of which one may lose what it has while others keep theirs. [`nodes`](Profile::nodes) does not say that: a cluster that
    /// places keys by itself counts as one.
    pub scattered: bool,
    /// True if conditional writes by token work.
    pub cas: bool,
    /// True if a delete by token works. Where a store has no such command and gets the same otherwise, its crate says at what cost.
    pub delete_cas: bool,
    /// How lives are kept.
    pub ttl: TtlSupport,
    /// The longest life that can be asked for.
    pub ttl_max: Duration,
    /// True if a get can tell an item's remaining life by the store's own clock.
    pub remaining_ttl: bool,
    /// True if arithmetic can create the item it misses ([`Initial`](crate::Initial)).
    pub arith_initial: bool,
    /// Whether parts of a value can be read and written.
    pub ranges: Ranges,
    /// Which native ops the store has.
    pub natives: Families,
    /// True if [`Watch`](crate::Verb::Watch) tells of a change as it happens; else whoever waits looks every now and then.
    pub watch: bool,
    /// What a crash of the store takes with it.
    pub durability: Durability,
    /// Whether the store drops items of its own accord.
    pub eviction: Eviction,
    /// Up to which sizes the store keeps native collections in their short encodings; `None` for a store that has none, or does not tell.
    pub encodings: Option<Encodings>,
    /// What is set up so that it endangers structures, a sentence each with its mend; empty where nothing is.
    pub warnings: Vec<String>,
}

/// Up to which sizes a Redis or Valkey server keeps collections packed: beyond, each entry costs several times as much memory.
///
/// ```
/// use larder_core::profile::Encodings;
/// assert_eq!(Encodings::default().hash_entries_max, 0); // 0: not told, or never packed
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encodings {
    /// Fields of a packed hash: `hash-max-listpack-entries`.
    pub hash_entries_max: u64,
    /// Bytes of a field or value in a packed hash: `hash-max-listpack-value`.
    pub hash_value_bytes_max: u64,
    /// Members of a set of integers: `set-max-intset-entries`.
    pub set_integers_max: u64,
    /// Members of a packed set, from Redis 7.2: `set-max-listpack-entries`.
    pub set_entries_max: u64,
    /// Bytes of a member of a packed set: `set-max-listpack-value`.
    pub set_value_bytes_max: u64,
    /// Members of a packed sorted set: `zset-max-listpack-entries`.
    pub sorted_set_entries_max: u64,
    /// Bytes of a member of a packed sorted set: `zset-max-listpack-value`.
    pub sorted_set_value_bytes_max: u64,
    /// Entries of a node of a stream: `stream-node-max-entries`.
    pub stream_node_entries_max: u64,
    /// Bytes of a node of a stream: `stream-node-max-bytes`.
    pub stream_node_bytes_max: u64,
}

/// How a store keeps lives.
///
/// ```
/// use larder_core::TtlSupport;
/// assert!(TtlSupport::None < TtlSupport::Seconds && TtlSupport::Seconds < TtlSupport::Millis);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TtlSupport {
    /// Not at all: items stay.
    None,
    /// In whole seconds; a life of T ends after T-1 to T seconds.
    Seconds,
    /// To the millisecond.
    Millis,
}

/// Whether parts of a value can be read and written: [`Verb::GetRange`](crate::Verb::GetRange) and
/// [`Verb::PutRange`](crate::Verb::PutRange).
///
/// ```
/// use larder_core::Ranges;
/// assert!(Ranges::No < Ranges::ByCas && Ranges::ByCas < Ranges::Native);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ranges {
    /// No; neither have conditional writes that could stand for it.
    No,
    /// The store has no such ops; a whole read and a conditional write do the same: see [`range`](crate::range) and what it costs.
    ByCas,
    /// Yes.
    Native,
}

/// What a crash of the store takes with it.
///
/// ```
/// use larder_core::{Durability, Profile};
/// assert_eq!(Profile::unlimited("example").durability, Durability::Process);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Everything, and so does the end of this process.
    Process,
    /// Everything the crashed server held.
    Server,
    /// The latest of what was acknowledged: the last second or so with an append-only file, the last minutes with
    /// snapshots; of a store in the process that syncs now and then, what a power cut finds unsynced.
    Recent,
    /// Nothing that was acknowledged.
    Disk,
    /// The store does not tell.
    Unknown,
}

/// Whether a store drops items of its own accord when it runs out of room.
///
/// ```
/// use larder_core::{Eviction, Profile};
/// assert_eq!(Profile::unlimited("example").eviction, Eviction::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Never: it refuses writes when it is full.
    Never,
    /// Yes.
    WhenFull,
    /// The store does not tell.
    Unknown,
}

impl Profile {
    /// The largest value that fits beside a key of `key_bytes` bytes.
    ///
    /// ```
    /// # use larder_core::profile::Profile;
    /// let profile = Profile { item_bytes_max: 1_048_576, item_overhead_bytes: 59, ..Profile::unlimited("example") };
    /// assert_eq!(profile.value_bytes_max(20), 1_048_497);
    /// ```
    pub fn value_bytes_max(&self, key_bytes: usize) -> usize {
        self.item_bytes_max.saturating_sub(self.item_overhead_bytes).saturating_sub(key_bytes)
    }

    /// True if an item may vanish while the store is up: structures must expect it and report it.
    ///
    /// ```
    /// use larder_core::{Eviction, Profile};
    /// let honest = Profile { eviction: Eviction::Unknown, ..Profile::unlimited("example") };
    /// assert!(honest.may_evict()); // what a store does not tell must be expected
    /// ```
    pub fn may_evict(&self) -> bool {
        self.eviction != Eviction::Never
    }

    /// True if an item may be gone for good while others of the same age stay: the store evicts, or keeps keys on several servers, of which one that is started again, or has failed over, may have less.
    /// A disk that has all that was acknowledged loses nothing so.
    ///
    /// ```
    /// use larder_core::{Durability, Profile};
    /// let one = Profile { durability: Durability::Server, ..Profile::unlimited("example") };
    /// assert!(!one.may_lose_one()); // it loses everything, or nothing
    /// assert!(Profile { scattered: true, ..one }.may_lose_one());
    /// ```
    pub fn may_lose_one(&self) -> bool {
        self.may_evict() || (self.scattered && self.durability != Durability::Disk)
    }

    /// A profile that promises everything an embedded store can, but for the optional ops (ranges, native ops): a starting point
    /// for stores and tests.
    ///
    /// ```
    /// let profile = larder_core::Profile { cas: false, ..larder_core::Profile::unlimited("no tokens here") };
    /// assert_eq!(profile.to_string(), "no tokens here");
    /// ```
    pub fn unlimited(store: &str) -> Profile {
        Profile {
            store: store.to_owned(),
            key_bytes_max: Key::BYTES_MAX,
            keys_binary: true,
            item_bytes_max: usize::MAX,
            item_overhead_bytes: 0,
            batch_ops_max: usize::MAX,
            nodes: 1,
            scattered: false,
            cas: true,
            delete_cas: true,
            ttl: TtlSupport::Millis,
            ttl_max: Duration::MAX,
            remaining_ttl: true,
            arith_initial: true,
            ranges: Ranges::ByCas,
            natives: Families::empty(),
            watch: false,
            durability: Durability::Process,
            eviction: Eviction::Never,
            encodings: None,
            warnings: Vec::new(),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store)
    }
}
