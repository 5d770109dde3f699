//! What every call needs of an opened queue or stack: its keys, its limits, and how its state is read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{
    Batch, Cas, ClockRef, Ctx, Error, ErrorKind, Key, Op, Profile, PutMode, Reply, Result, Route, StoreExt, StoreRef,
    SystemClock, Ttl, TtlSupport, Want,
};

use super::LEASE_MIN;
use super::layout::{self, LAYOUT, State};
use super::options::Settings;
use super::plan::Order;
use crate::append::layout::{FRAME_BYTES_MAX, HEADER_BYTES};
use crate::cell::Cell;
use crate::events;
use crate::ids::random_id;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::vigil::Vigil;
use crate::wait::Watched;

/// A segment is closed when it has so many items, or so many bytes as the manifest says.
pub(super) const SEGMENT_ITEMS: usize = 1_000;
/// The smallest and the largest size that segments can be made with.
pub(super) const SEGMENT_BYTES: std::ops::RangeInclusive<u32> = 256..=16 * 1024 * 1024;
const SEGMENT_BYTES_DEFAULT: u32 = 32 * 1024;
const BYTES_MAX_DEFAULT: u64 = 1 << 30;
/// Of fewer, one that is being filled and one that is being emptied leave no room for a next.
const SEGMENTS_MIN: u64 = 3;
/// How much of the state's room is left to those who acknowledge or give back: they note who wrote, and never take.
const STATE_BYTES_RESERVED: usize = 512;
/// What a segment takes beside its one item, at the most: header, frame, lengths, the first note of a stack.
const RESERVED_BYTES: usize = HEADER_BYTES + 2 * FRAME_BYTES_MAX + 64;
/// Where items are smaller, nothing of use fits.
const VALUE_BYTES_MIN: usize = 4 * 1024;
/// How much longer a claim's marker lives than its lease, where lives are counted in whole seconds: such a life ends up to a second early.
const SECONDS_SLACK: Duration = Duration::from_secs(1);

/// What a queue or stack is made with; fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    /// A segment is closed at this size.
    pub(super) segment_bytes: u32,
    /// No more segments are opened at this size of all together.
    pub(super) bytes_max: u64,
}

pub(super) struct Engine {
    pub(super) store: StoreRef,
    pub(super) vigil: Arc<Vigil>,
    pub(super) order: Order,
    pub(super) params: Params,
    pub(super) timeout: Duration,
    /// What it is, for errors: `queue "jobs"`.
    what: String,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) cell: Cell,
    pub(super) value_bytes_max: usize,
    /// The highest sequence of the state that was read: a lower one is a rollback.
    newest: AtomicU64,
    /// True once the store said that it may evict, or lose what one of its servers has: what is gone later may have been evicted by then, whatever it says meanwhile.
    may_evict: AtomicBool,
    /// Losses that callers of this handle have heard of, while the state does not say so: not told again by it. 0 where it does.
    heard: AtomicU64,
    pub(super) clock: ClockRef,
    /// What was seen when there was nothing to take: something has come only once one of them changes. Held for a load or a store.
    sight: Mutex<Vec<Watched>>,
}

/// The state as it was read.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) state: State,
    pub(super) cas: Cas,
}

impl Params {
    pub(super) fn encode(self) -> Bytes {
        [&self.segment_bytes.to_le_bytes()[..], &self.bytes_max.to_le_bytes()].concat().into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Params> {
        let (segment_bytes, rest) = bytes.split_first_chunk()?;
        let (bytes_max, rest) = rest.split_first_chunk()?;
        let params =
            Params { segment_bytes: u32::from_le_bytes(*segment_bytes), bytes_max: u64::from_le_bytes(*bytes_max) };
        (rest.is_empty() && SEGMENT_BYTES.contains(&params.segment_bytes)).then_some(params)
    }
}

impl Engine {
    /// Opens what is there, or makes it. The tail is known where this call made it, or read it.
    pub(super) async fn open(
        store: &StoreRef,
        name: &Name,
        kind: Kind,
        options: &Settings,
        may_create: bool,
    ) -> Result<(Engine, View)> {
        if options.timeout.is_zero() {
            return Err(Error::new(ErrorKind::BadInput, "a timeout is 0; nothing can be done within it"));
        }
        let ctx = Ctx::within(options.timeout);
        let profile = store.profile();
        check_profile(&profile, kind)?;
        let wanted = options.params(&profile, name, kind)?;
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => {
                let new = Manifest::new(kind, LAYOUT, 1, wanted.encode());
                manifest::create(store, ctx, name, new, |new| Ok(vec![create_ops(name, new)?])).await?
            }
            None => return Err(manifest::absent(store, name)),
        };
        manifest.expect(name, kind, LAYOUT)?;
        let params = options.check(name, &manifest)?;
        let engine = Engine::new(store, name, &manifest, params, options)?;
        let reply = store.run(ctx, Batch::from_iter([engine.cell.read_op()])).await.pop();
        let view = engine.view(reply.unwrap_or_else(|| Err(larder_core::ext::no_reply())), 0)?;
        Ok((engine, view))
    }

    fn new(store: &StoreRef, name: &Name, manifest: &Manifest, params: Params, options: &Settings) -> Result<Engine> {
        let cell = Cell::new(manifest.data_key(name, 0)?);
        let key_bytes = manifest.data_key(name, segment_index(u64::MAX))?.as_bytes().len();
        let clock: ClockRef = options.clock.clone().unwrap_or_else(SystemClock::shared);
        Ok(Engine {
            vigil: Vigil::new(store, clock.clone(), name, manifest)?,
            clock,
            sight: Mutex::default(),
            order: if manifest.kind == Kind::Stack { Order::Lifo } else { Order::Fifo },
            params,
            timeout: options.timeout,
            what: format!("{} {name}", manifest.kind.as_str()),
            name: name.clone(),
            manifest: manifest.clone(),
            cell,
            value_bytes_max: value_bytes_max(&store.profile(), key_bytes),
            newest: AtomicU64::new(0),
            may_evict: AtomicBool::new(store.profile().may_lose_one()),
            heard: AtomicU64::new(0),
            store: store.clone(),
        })
    }

    /// True if what is gone may have been evicted, or lost with a server that the state does not stand on. Asked once the reply that misses it has come: a store on the network says anew at each handshake what it keeps, and that comes before the replies of its
    /// connection. Once true it stays so.
    pub(super) fn may_evict(&self) -> bool {
        let may_evict = self.may_evict.load(Ordering::Acquire) || self.store.profile().may_lose_one();
        if may_evict {
            self.may_evict.store(true, Ordering::Release);
        }
        may_evict
    }

    /// True if a batch may go to several servers, and so is answered by the slowest of them.
    pub(super) fn has_several_servers(&self) -> bool {
        let profile = self.store.profile();
        profile.nodes > 1 || profile.scattered
    }

    /// What a wait for something to take depends on.
    pub(super) fn sight(&self) -> Vec<Watched> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note_sight(&self, sight: Vec<Watched>) {
        *self.sight.lock().unwrap_or_else(PoisonError::into_inner) = sight;
    }

    pub(super) fn generation(&self) -> u64 {
        self.manifest.generation
    }

    /// The largest item that can be pushed.
    pub(super) fn item_bytes_max(&self) -> usize {
        self.value_bytes_max - RESERVED_BYTES
    }

    /// The key of a segment, by its incarnation: what a late request makes of an earlier life is nobody's.
    pub(super) fn segment_key(&self, incarnation: u64) -> Result<Key> {
        segment_key(&self.manifest, &self.name, incarnation)
    }

    pub(super) fn segment_read(&self, incarnation: u64) -> Result<Op> {
        Ok(Op::get(self.segment_key(incarnation)?, Want::VALUE | Want::CAS))
    }

    /// The key of the link that tells a segment's incarnation by its number.
    pub(super) fn link_key(&self, segment: u64) -> Result<Key> {
        link_key(&self.manifest, &self.name, segment)
    }

    pub(super) fn link_read(&self, segment: u64) -> Result<Op> {
        Ok(Op::get(self.link_key(segment)?, Want::VALUE))
    }

    /// Writes a link where none stands, and reads what stands there. All who do write the same, and never over it: a store that is out of memory would
    /// delete what a refused `Set` was to replace.
    pub(super) fn link_ops(&self, segment: u64, incarnation: u64) -> Result<[Op; 2]> {
        let link = layout::link(self.generation(), segment, incarnation);
        let read = Op::get(self.link_key(segment)?, Want::VALUE | Want::CAS);
        Ok([Op::put(self.link_key(segment)?, PutMode::Add, link, Ttl::Never), read])
    }

    /// True if a segment's link stands, by the answers to [`link_ops`](Engine::link_ops). Another one was left by a state that was set back, and gives way. **Round trips: 0**, 1 where
    /// there is another.
    pub(super) async fn is_linked(
        &self,
        ctx: Ctx,
        segment: u64,
        incarnation: u64,
        added: Result<Reply>,
        now: Result<Reply>,
    ) -> Result<bool> {
        let link = layout::link(self.generation(), segment, incarnation);
        let Some(item) = now?.into_item() else { return added.map(|_| false) };
        let Some(cas) = item.cas.filter(|_| item.value != link) else { return Ok(item.value == link) };
        let put = Op::put(self.link_key(segment)?, PutMode::Cas(cas), link, Ttl::Never);
        Ok(self.store.run_one(ctx, put).await? == Reply::Stored)
    }

    /// The incarnation that a link tells; `None` if there is no link.
    pub(super) fn linked(&self, segment: u64, reply: Reply) -> Result<Option<u64>> {
        let Some(item) = reply.into_item() else { return Ok(None) };
        layout::linked(&item.value, self.generation(), segment).map(Some)
    }

    /// An op on the item that lives as long as a claim's lease does. It stands on the server of the state, and goes there before the state
    /// does: whoever reads of the claim finds it.
    pub(super) fn marker(&self, claim: u64, op: impl FnOnce(Key) -> Op) -> Result<Op> {
        let key = self.manifest.data_key(&self.name, format_args!("c{claim:016x}"))?;
        Ok(op(key).routed(Route { with: Some(self.cell.key.clone()), rank: 0 }))
    }

    pub(super) fn marker_put(&self, claim: u64, life: Duration) -> Result<Op> {
        self.marker(claim, |key| Op::put(key, PutMode::Set, "", Ttl::After(life)))
    }

    /// How long a claim's marker lives.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a lease that is too short or too long.
    pub(super) fn life(&self, lease: Duration) -> Result<Duration> {
        let profile = self.store.profile();
        let max = profile.ttl_max.saturating_sub(SECONDS_SLACK);
        if lease < LEASE_MIN || lease > max {
            let detail = format!("a lease is {lease:?}; it takes {LEASE_MIN:?} to {max:?} on this store");
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(if profile.ttl == TtlSupport::Millis { lease } else { lease + SECONDS_SLACK })
    }

    /// What to hand to [`view`](Engine::view) of a read that is sent now.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    /// A caller is being told of so many losses, this very moment, which could not be noted in the state.
    pub(super) fn note_heard(&self, losses: u64) {
        self.heard.fetch_max(losses, Ordering::AcqRel);
    }

    /// Takes in the reply to a read of the state.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if there is none, [`ErrorKind::RolledBack`] if it is older than one that was read before it was sent.
    pub(super) fn view(&self, reply: Result<Reply>, newest: u64) -> Result<View> {
        let Some(item) = reply?.into_item() else {
            return Err(self.named(ErrorKind::Lost, "its state is gone: evicted, dropped, or lost in a restart"));
        };
        let state = State::decode(&item.value, self.generation()).map_err(|error| error.key(&self.cell.key))?;
        if state.seq < newest {
            // Losses are counted anew from there.
            self.heard.store(0, Ordering::Release);
            let detail = format!("its state is at sequence {}; this handle saw {newest}", state.seq);
            return Err(self.named(ErrorKind::RolledBack, &detail));
        }
        let heard = self.heard();
        if self.newest.fetch_max(state.seq, Ordering::AcqRel) <= state.seq
            && !(state.told + 1..=state.found).contains(&heard)
        {
            // The state says so itself; or it counts fewer, and went back to before them.
            _ = self.heard.compare_exchange(heard, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let cas = item.cas.ok_or_else(|| self.named(ErrorKind::Unsupported, "the store tells no cas token"))?;
        Ok(View { state, cas })
    }

    /// An error of this structure.
    pub(super) fn named(&self, kind: ErrorKind, detail: &str) -> Error {
        let error = Error::new(kind, format!("{}: {detail}", self.what));
        let error = error.key(&self.cell.key).store(self.store.profile().store.clone());
        match kind {
            ErrorKind::Lost | ErrorKind::RolledBack => events::loss(self.vigil.subject(), error),
            _ => error,
        }
    }

    /// The state's bytes, if they fit. Who takes, or opens a segment, leaves room for those who acknowledge and give back.
    pub(super) fn encode(&self, state: &State, leaves_room: bool) -> Result<Bytes> {
        let bytes = state.encode(self.generation());
        let max = self.value_bytes_max - if leaves_room { STATE_BYTES_RESERVED } else { 0 };
        if bytes.len() > max {
            let detail =
                format!("its state would have {} bytes of at most {max}: acknowledge what is claimed", bytes.len());
            return Err(self.named(ErrorKind::Full, &detail));
        }
        Ok(bytes)
    }
}

fn segment_index(incarnation: u64) -> String {
    format!("s{incarnation:016x}")
}

pub(super) fn segment_key(manifest: &Manifest, name: &Name, incarnation: u64) -> Result<Key> {
    manifest.data_key(name, segment_index(incarnation))
}

pub(super) fn link_key(manifest: &Manifest, name: &Name, segment: u64) -> Result<Key> {
    manifest.data_key(name, format_args!("n{segment:x}"))
}

fn value_bytes_max(profile: &Profile, key_bytes: usize) -> usize {
    profile.value_bytes_max(key_bytes).min(u32::MAX as usize)
}

/// A segment that is opened takes as many: it and a read of it, the link of the one before and a read of that, and, of a stack, its note.
const BATCH_OPS_MIN: usize = 5;

fn check_profile(profile: &Profile, kind: Kind) -> Result<()> {
    let lacks = match () {
        () if !profile.cas => "conditional writes (cas)",
        () if !profile.delete_cas => "deletes by token",
        () if profile.ttl == TtlSupport::None => "lives (ttl), which leases are made of",
        () if profile.batch_ops_max < BATCH_OPS_MIN => "batches of 5 ops",
        () => return Ok(()),
    };
    let detail = format!("a {} needs {lacks}, which this store does not have", kind.as_str());
    Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()))
}

/// The state and the first segment.
fn create_ops(name: &Name, manifest: &Manifest) -> Result<Batch> {
    let incarnation = random_id();
    let state = State::first(incarnation).encode(manifest.generation);
    let segment = layout::segment(0, incarnation, None);
    let add = |index: String, value| Ok(Op::put(manifest.data_key(name, index)?, PutMode::Add, value, Ttl::Never));
    [add("0".to_owned(), state), add(segment_index(incarnation), segment)].into_iter().collect()
}

impl Settings {
    /// What one is made with.
    fn params(&self, profile: &Profile, name: &Name, kind: Kind) -> Result<Params> {
        let key_bytes = name.manifest_key()?.as_bytes().len() + 40;
        let value_max = value_bytes_max(profile, key_bytes);
        if value_max < VALUE_BYTES_MIN {
            let detail =
                format!("a {} needs items of {VALUE_BYTES_MIN} bytes; here one takes {value_max}", kind.as_str());
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        let half = u32::try_from(value_max / 2).unwrap_or(u32::MAX);
        let segment_bytes = self.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT.min(half));
        if !SEGMENT_BYTES.contains(&segment_bytes) || segment_bytes > half {
            let detail = format!(
                "segments of {segment_bytes} bytes; they take {} to {} on this store",
                SEGMENT_BYTES.start(),
                half.min(*SEGMENT_BYTES.end())
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        let bytes_max = self.bytes_max.unwrap_or(BYTES_MAX_DEFAULT);
        let bytes_min = SEGMENTS_MIN * u64::from(segment_bytes);
        if bytes_max < bytes_min {
            let detail = format!(
                "at most {bytes_max} bytes in all; it takes {bytes_min} or more, {SEGMENTS_MIN} segments of {segment_bytes}"
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(Params { segment_bytes, bytes_max })
    }

    /// What the one that is there was made with.
    fn check(&self, name: &Name, manifest: &Manifest) -> Result<Params> {
        let mismatch = |detail: String| Error::new(ErrorKind::LayoutMismatch, detail);
        let params = Params::decode(&manifest.params).filter(|_| manifest.shards == 1 && manifest.copies == 1);
        let params = params.ok_or_else(|| mismatch(format!("{name} was made in a way this release does not know")))?;
        let differs = |what: &str, made: u64, wanted: u64| {
            mismatch(format!("{name} was made with {what} of {made} bytes, not {wanted}; it is fixed"))
        };
        match (self.segment_bytes, self.bytes_max) {
            (Some(wanted), _) if wanted != params.segment_bytes => {
                Err(differs("segments", params.segment_bytes.into(), wanted.into()))
            }
            (_, Some(wanted)) if wanted != params.bytes_max => Err(differs("a limit", params.bytes_max, wanted)),
            _ => Ok(params),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::{listen, told};

    #[test]
    fn params_have_golden_bytes() {
        let params = Params { segment_bytes: 0x0102_0304 & 0xff_ffff, bytes_max: 0x1122_3344_5566_7788 };
        let bytes = params.encode();
        assert_eq!(&bytes[..], b"\x04\x03\x02\x00\x88\x77\x66\x55\x44\x33\x22\x11");
        assert_eq!(Params::decode(&bytes), Some(params));
        for bytes in [&bytes[..11], b"", b"\xff\x00\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11"] {
            assert_eq!(Params::decode(bytes), None);
        }
    }

    async fn opened() -> Engine {
        let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
        let name = Name::new("q").unwrap();
        Engine::open(&store, &name, Kind::Queue, &Settings::default(), true).await.unwrap().0
    }

    #[tokio::test]
    async fn the_longest_lease_that_is_named_is_taken() {
        let engine = opened().await;
        let max = engine.store.profile().ttl_max - SECONDS_SLACK;
        assert_eq!(engine.life(max).unwrap(), max);
        let error = engine.life(max + Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(&format!("{max:?}")), "{error}");
    }

    #[tokio::test]
    async fn a_state_may_have_as_many_bytes_as_a_value() {
        let mut engine = opened().await;
        let state = State::first(1);
        let bytes = state.encode(engine.generation()).len();
        engine.value_bytes_max = bytes;
        assert_eq!(engine.encode(&state, false).unwrap().len(), bytes);
        engine.value_bytes_max = bytes + STATE_BYTES_RESERVED;
        assert_eq!(engine.encode(&state, true).unwrap().len(), bytes);
        engine.value_bytes_max -= 1;
        assert_eq!(engine.encode(&state, true).unwrap_err().kind(), ErrorKind::Full);
    }

    #[tokio::test]
    async fn the_shortest_lease_that_is_named_is_taken() {
        let engine = opened().await;
        assert_eq!(engine.life(LEASE_MIN).unwrap(), LEASE_MIN);
        let error = engine.life(LEASE_MIN - Duration::from_nanos(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(&format!("it takes {LEASE_MIN:?} to")), "{error}");
    }

    #[tokio::test]
    async fn a_state_that_is_gone_or_went_back_is_told_as_a_loss_and_what_is_full_is_not() {
        listen();
        let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
        let name = Name::new("forgotten").unwrap();
        let (engine, view) = Engine::open(&store, &name, Kind::Queue, &Settings::default(), true).await.unwrap();
        assert_eq!(engine.named(ErrorKind::Full, "no room").kind(), ErrorKind::Full);
        assert_eq!(told("forgotten"), [""; 0]);
        let read = store.run(Ctx::default(), Batch::from_iter([engine.cell.read_op()])).await.pop().unwrap();
        let error = engine.view(read, view.state.seq + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RolledBack);
        assert_eq!(told("forgotten"), ["loss: rolled back"]);
        assert_eq!(engine.view(Ok(Reply::Miss), 0).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(told("forgotten"), ["loss: rolled back", "loss: lost"]);
    }

    #[test]
    fn a_store_whose_items_are_as_large_as_is_asked_for_takes_queues() {
        let (name, mut said) = (Name::new("q").unwrap(), String::new());
        for item_bytes_max in VALUE_BYTES_MIN - 1.. {
            let profile = Profile { item_bytes_max, ..Profile::unlimited("test") };
            match Settings::default().params(&profile, &name, Kind::Queue) {
                Ok(_) => break,
                Err(error) => said = error.to_string(),
            }
        }
        assert!(said.contains("a queue needs items of 4096 bytes; here one takes 4095"), "{said}");
    }

    #[test]
    fn one_that_was_made_with_copies_or_with_more_data_keys_is_another_releases() {
        let name = Name::new("q").unwrap();
        let params = Params { segment_bytes: 4_096, bytes_max: 1 << 20 };
        for (shards, copies, is_known) in [(1, 1, true), (1, 2, false), (2, 1, false), (2, 2, false)] {
            let manifest = Manifest { copies, ..Manifest::new(Kind::Queue, LAYOUT, shards, params.encode()) };
            match Settings::default().check(&name, &manifest) {
                Ok(found) => assert!(is_known && found == params, "{shards} shards, {copies} copies"),
                Err(error) => assert!(!is_known && error.kind() == ErrorKind::LayoutMismatch, "{error}"),
            }
        }
    }

    #[test]
    fn a_store_that_takes_five_ops_at_once_takes_queues_and_stacks() {
        for kind in [Kind::Queue, Kind::Stack] {
            let profile = |batch_ops_max| Profile { batch_ops_max, ..Profile::unlimited("test") };
            check_profile(&profile(5), kind).unwrap();
            let error = check_profile(&profile(4), kind).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("batches of 5 ops"), "{error}");
        }
    }

    #[test]
    fn segments_have_32_kib_if_not_said_otherwise_and_up_to_half_of_what_the_store_takes() {
        let name = Name::new("q").unwrap();
        let made = |segment_bytes, profile: &Profile| {
            Settings { segment_bytes, ..Settings::default() }.params(profile, &name, Kind::Queue)
        };
        let large = Profile { item_bytes_max: 24 << 20, ..Profile::unlimited("test") };
        let params = made(None, &large).unwrap();
        assert_eq!((params.segment_bytes, params.bytes_max), (32 << 10, 1 << 30));
        let params = made(Some(8 << 20), &large).unwrap();
        assert_eq!(params.segment_bytes, 8 << 20);
        assert_eq!(Params::decode(&params.encode()), Some(params), "it can be opened");
        assert_eq!(made(Some(12 << 20 | 1), &large).unwrap_err().kind(), ErrorKind::BadInput);
    }

    /// However many writes there were: their numbers take the most bytes.
    #[tokio::test]
    async fn the_largest_item_fits_beside_all_that_a_segment_has_and_is_about_150_bytes_less_than_a_value() {
        let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
        let name = Name::new("s").unwrap();
        let (engine, _) = Engine::open(&store, &name, Kind::Stack, &Settings::default(), true).await.unwrap();
        let below = layout::Below { segment: Some(u64::MAX / 2 - 2), is_guess: false };
        let note = layout::note_frame(&layout::Record::new(u64::MAX - 1, 1, below), u64::MAX, u64::MAX);
        let segment = layout::segment(u64::MAX - 1, 1, Some(note));
        let mut elements = Vec::new();
        let item = vec![b'x'; engine.item_bytes_max()];
        crate::append::layout::put_element(&mut elements, crate::append::Action::Put, &item);
        let place = layout::place(u64::MAX - 1, 1);
        let frame = crate::append::layout::frame(place, u64::MAX, u64::MAX, &elements);
        assert!(segment.len() + frame.len() <= engine.value_bytes_max, "{} bytes", segment.len() + frame.len());
        let less = engine.value_bytes_max - engine.item_bytes_max();
        assert!((140..=160).contains(&less), "{less} bytes less");
    }

    async fn run(engine: &Engine, batch: impl IntoIterator<Item = Op>) -> Vec<Result<Reply>> {
        engine.store.run(Ctx::default(), Batch::from_iter(batch)).await.into_iter().collect()
    }

    #[tokio::test]
    async fn a_link_that_a_state_left_which_was_set_back_gives_way_unless_others_write_it_meanwhile() {
        let engine = opened().await;
        let put = |incarnation| {
            let link = layout::link(engine.generation(), 3, incarnation);
            Op::put(engine.link_key(3).unwrap(), PutMode::Set, link, Ttl::Never)
        };
        for (meanwhile, is_linked, now) in [(None, true, 8), (Some(put(9)), false, 9)] {
            run(&engine, [put(7)]).await;
            let [added, read] = run(&engine, engine.link_ops(3, 8).unwrap()).await.try_into().unwrap();
            run(&engine, meanwhile).await;
            assert_eq!(engine.is_linked(Ctx::default(), 3, 8, added, read).await.unwrap(), is_linked);
            let read = run(&engine, [engine.link_read(3).unwrap()]).await.remove(0).unwrap();
            assert_eq!(engine.linked(3, read).unwrap(), Some(now));
        }
    }

    /// The state said so itself, and then went back to before that: both were found anew.
    #[tokio::test]
    async fn losses_that_are_found_after_a_state_went_back_are_not_taken_for_those_that_were_heard_of() {
        let engine = opened().await;
        let read = |seq, found, told| {
            let state = State { seq, found, told, ..State::first(1) };
            let cas = Some(Cas { token: seq, session: 1 });
            let item = larder_core::Item { value: state.encode(engine.generation()), cas, ..Default::default() };
            engine.view(Ok(Reply::Item(item)), 0).unwrap()
        };
        engine.note_heard(2);
        read(10, 2, 1);
        assert_eq!(engine.heard(), 2, "nobody else is known to have heard of the second");
        read(11, 2, 2);
        read(12, 2, 0);
        assert_eq!(engine.heard(), 0);
    }
}
