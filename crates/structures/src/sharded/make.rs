//! Opening sharded collections, and making them: their shards, then the map, then the manifest, which commits.

use std::time::Duration;

use bytes::Bytes;
use larder_core::native::{Collection, Families};
use larder_core::{
    Batch, Ctx, Error, ErrorKind, Key, Op, Profile, PutMode, Result, StoreExt, StoreRef, Ttl, Verb, Want,
};

use super::core::{Core, collection, shard_key, unknown_map};
use super::ends::{ENTRY_BYTES, Ends, HEAD_BYTES};
use super::keeper::{ENDS, now_us};
use super::layout::{
    HEADER_BYTES, Kept, LAYOUT, LIVE, Limits, Map, Mark, Params, Phase, Plan, SEALED, Shard, UNFILLED,
};
use super::{FILL, FILL_MAX, FILL_MIN, SHARDS_MAX, SHARDS_MIN};
use crate::ids::random_id;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::owned::{self, Owned};
use crate::registry::Pieces;
use crate::timeout;

/// How many members a sorted set keeps at each end where nothing was said, and at the most.
const KEPT: u16 = 100;
pub(super) const KEPT_MAX: u16 = 1_000;
/// The ends take no more, whatever an item takes: they are written whole.
const ENDS_BYTES_MAX: usize = 1_000_000;
/// Members may be at least so long.
const MEMBER_BYTES_MIN: usize = 64;
/// The least that an item must take.
const VALUE_BYTES_MIN: usize = 1_024;
const OPS_A_BATCH: usize = 1_024;
/// What is left to an element of a shard that is an item and holds more than is usual.
const ELEMENT_BYTES: u64 = 1_024;

/// What options say.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) shards: Option<u16>,
    pub(super) expected: Option<u64>,
    /// Ids a shard.
    pub(super) dense: Option<u32>,
    /// Members at each end of a sorted set.
    pub(super) kept: Option<u16>,
    pub(super) timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { shards: None, expected: None, dense: None, kept: None, timeout: Duration::from_secs(5) }
    }
}

impl Settings {
    /// Opens a collection, and makes it if it may. **Round trips: 2**, and 2 to make it, and 1 for every 1,024 shards.
    pub(super) async fn open(self, store: &StoreRef, name: &Name, kind: Kind, may_create: bool) -> Result<Core> {
        timeout::check(self.timeout)?;
        let ctx = Ctx::within(self.timeout);
        let profile = store.profile();
        let what = || format!("{} {name}", kind.as_str());
        let unsupported = |detail: String| Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        if !profile.cas {
            return unsupported(format!("{} needs conditional writes (cas), which this store has not", what()));
        }
        let manifest = match manifest::find(store, ctx, name).await? {
            Some(found) => found.manifest,
            None if may_create => self.create(store, ctx, name, kind).await?,
            None => return Err(manifest::absent(store, name)),
        };
        manifest.expect(name, kind, LAYOUT)?;
        let Some(params) = Params::decode(&manifest.params) else {
            let detail = format!("{} is kept in a way this release does not know", what());
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        };
        if params.kept == Kept::Native && !is_native(&profile, kind) {
            return unsupported(format!("{} is kept in native collections, which this store has not", what()));
        }
        if params.limits.is_some() != (kind == Kind::ShardedSortedSet) {
            let detail = format!("{} is kept in a way this release does not know", what());
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        }
        if self.dense.is_some() != params.is_dense && self.dense.is_some() {
            let detail = format!("{} spreads its elements by hash, and not by dense numbers", what());
            return Err(Error::new(ErrorKind::LayoutMismatch, detail));
        }
        let nothing = Plan { version: 0, map: Map { id: 0, shards: 1, per_shard: 0 }, phase: Phase::Stable };
        let core = Core::new(store, name, manifest, params, nothing, self.timeout)?;
        core.refresh(ctx).await?;
        Ok(core)
    }

    /// How many shards it is made with, on a store of this profile.
    fn shards_to_make(&self, profile: &Profile, kind: Kind) -> Result<u16> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if let Some(0) = self.dense {
            return bad("0 dense numbers a shard; it takes at least 1".to_owned());
        }
        let shards = match (self.shards, self.expected) {
            (Some(shards), _) => u64::from(shards),
            (None, Some(expected)) => self.shards_expected(profile, kind, expected)?,
            (None, None) => u64::from(SHARDS_MIN),
        };
        match u16::try_from(shards) {
            Ok(shards) if shards > 0 => Ok(shards),
            _ => bad(format!("a {} takes 1 to {SHARDS_MAX} shards, not {shards}", kind.as_str())),
        }
    }

    /// Shards for so many elements: made for some 64 each, for more where they would be too many.
    fn shards_expected(&self, profile: &Profile, kind: Kind, expected: u64) -> Result<u64> {
        let (fill, fill_max) = match self.dense {
            Some(per_shard) => (u64::from(per_shard), u64::from(per_shard)),
            None => fill(profile, kind),
        };
        let most = u64::from(SHARDS_MAX);
        if expected > most * fill_max {
            let detail = format!(
                "a {} of {expected} elements takes more than {SHARDS_MAX} shards of {fill_max}; it can be made for {} at the most, and with {SHARDS_MAX} shards for any number, though not so small ones",
                kind.as_str(),
                most * fill_max
            );
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(expected.div_ceil(fill).clamp(1, most))
    }

    /// What the ends take: so many members, each so long, that both always fit into an item.
    fn limits_to_make(&self, profile: &Profile, name: &Name) -> Result<Limits> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        let kept = self.kept.unwrap_or(KEPT);
        if !(1..=KEPT_MAX).contains(&kept) {
            return bad(format!("a sorted set keeps 1 to {KEPT_MAX} members at each end, not {kept}"));
        }
        let bytes = profile.value_bytes_max(larder_core::Key::BYTES_MAX).min(ENDS_BYTES_MAX).saturating_sub(HEAD_BYTES);
        // Twice as many at each end, and two bounds each.
        let each = |kept: usize| (bytes / (4 * kept + 4)).saturating_sub(ENTRY_BYTES).min(super::NAME_BYTES_MAX);
        let max = each(usize::from(kept));
        if max < MEMBER_BYTES_MIN {
            let most = (1..usize::from(kept)).rev().find(|&kept| each(kept) >= MEMBER_BYTES_MIN).unwrap_or(0);
            return bad(format!(
                "{kept} members of {MEMBER_BYTES_MIN} bytes at each end of {name} take more than an item of this store; it takes {most}"
            ));
        }
        Ok(Limits { kept, member_bytes_max: u16::try_from(max).unwrap_or(u16::MAX) })
    }

    async fn create(&self, store: &StoreRef, ctx: Ctx, name: &Name, kind: Kind) -> Result<Manifest> {
        let profile = store.profile();
        let kept = if is_native(&profile, kind) { Kept::Native } else { Kept::Portable };
        let shards = self.shards_to_make(&profile, kind)?;
        let map = Map { id: random_id() as u32, shards, per_shard: self.dense.unwrap_or(0) };
        let limits = match kind {
            Kind::ShardedSortedSet => Some(self.limits_to_make(&profile, name)?),
            _ => None,
        };
        let params = Params { kept, is_dense: self.dense.is_some(), limits };
        let new = Manifest::new(kind, LAYOUT, 1 + u16::from(limits.is_some()), params.encode());
        let longest = shard_key(name, &new, &map, SHARDS_MAX - 1)?.as_bytes().len();
        if profile.value_bytes_max(longest) < VALUE_BYTES_MIN.max(HEADER_BYTES) {
            let detail = format!("{} {name} needs items of {VALUE_BYTES_MIN} bytes", kind.as_str());
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        let plan = Plan { version: 1, map, phase: Phase::Stable };
        let data_of = |new: &Manifest| {
            let parts = parts(&map, OPS_A_BATCH.min(profile.batch_ops_max.saturating_sub(2)));
            let mut data = parts.map(|part| make_ops(name, new, &map, part)).collect::<Result<Vec<Batch>>>()?;
            let mut last = data.pop().unwrap_or_default();
            last.push(Op::put(new.data_key(name, 0)?, PutMode::Add, plan.encode(), Ttl::Never));
            if limits.is_some() {
                let ends = Ends::of_nothing(now_us(&larder_core::SystemClock::new()));
                last.push(Op::put(new.data_key(name, ENDS)?, PutMode::Add, ends.encode(), Ttl::Never));
            }
            data.push(last);
            Ok(data)
        };
        manifest::create(store, ctx, name, new, data_of).await
    }
}

/// How many elements a shard is made for, and at the most where shards would be too many: half of what the server keeps packed, so that chance keeps it within, and where that will do no more
/// than operations stay quick with.
fn fill(profile: &Profile, kind: Kind) -> (u64, u64) {
    let is_native = is_native(profile, kind);
    let limits = profile.encodings.filter(|_| is_native).unwrap_or_default();
    let packed_max = match collection(kind) {
        Collection::Hash => limits.hash_entries_max,
        // Before Redis 7.2 sets are packed of whole numbers only.
        Collection::Set if limits.set_entries_max == 0 => limits.set_integers_max,
        Collection::Set => limits.set_entries_max,
        Collection::Sorted => limits.sorted_set_entries_max,
    };
    // A limit of 0 packs nothing, whatever the size.
    if packed_max == 0 {
        let most = if is_native { FILL_MAX } else { profile.value_bytes_max(Key::BYTES_MAX) as u64 / ELEMENT_BYTES };
        return (FILL, most.clamp(FILL, FILL_MAX));
    }
    let half = (packed_max / 2).max(FILL_MIN);
    (half.min(FILL), half.min(FILL_MAX))
}

/// True where its shards are native collections.
fn is_native(profile: &Profile, kind: Kind) -> bool {
    // A sorted set's shards carry what a native one cannot: see `keeper`.
    kind != Kind::ShardedSortedSet && profile.natives.contains(collection(kind).family().union(Families::KEYS))
}

/// The shards of a map, by the batch.
pub(super) fn parts(map: &Map, a_batch: usize) -> impl Iterator<Item = std::ops::Range<u16>> + use<> {
    let (shards, step) = (map.shards, u16::try_from(a_batch).unwrap_or(u16::MAX).max(1));
    (0..shards).step_by(usize::from(step)).map(move |first| first..first.saturating_add(step).min(shards))
}

/// The op that makes a shard with nothing in it.
pub(super) fn make_op(of: Collection, is_native: bool, key: Key, mark: Mark) -> Result<Op> {
    if !is_native {
        let empty = Shard::empty(mark);
        let value = empty.encode(of);
        return Ok(Op::new(key, Verb::Put { mode: PutMode::Add, value, flags: empty.flags(of), ttl: Ttl::Never }));
    }
    let mark = Bytes::from_static(if mark == Mark::Live { LIVE } else { UNFILLED });
    Ok(owned::make_op(key, of, mark, None))
}

/// A shard's key.
pub(super) fn owned(of: Collection, is_native: bool, key: Key) -> Owned {
    if is_native { Owned::collection(key, of, &[LIVE, SEALED, UNFILLED]) } else { Owned::item(key) }
}

/// The ops that make shards of a new collection.
fn make_ops(name: &Name, manifest: &Manifest, map: &Map, shards: std::ops::Range<u16>) -> Result<Batch> {
    let is_native = are_native(manifest);
    let op = |shard| make_op(collection(manifest.kind), is_native, shard_key(name, manifest, map, shard)?, Mark::Live);
    shards.map(op).collect()
}

fn keys(name: &Name, manifest: &Manifest, map: &Map) -> Result<Vec<Owned>> {
    let (of, is_native) = (collection(manifest.kind), are_native(manifest));
    (0..map.shards).map(|shard| Ok(owned(of, is_native, shard_key(name, manifest, map, shard)?))).collect()
}

/// The keys of the shards, of both maps where one follows the other, and the token of the map item. **Round trips: 1.**
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for a map that this release does not know: nobody else knows of its shards.
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let key = manifest.data_key(name, 0)?;
    let get = Op::get(key.clone(), Want::VALUE | Want::CAS);
    let Some(item) = store.run_one(ctx, get).await?.into_item() else { return Ok(Pieces::default()) };
    let what = || format!("{} {name}", manifest.kind.as_str());
    let plan = Plan::decode(&item.value).ok_or_else(|| unknown_map(&what(), &key))?;
    let mut all = keys(name, manifest, &plan.map)?;
    if let Some(other) = plan.other() {
        all.extend(keys(name, manifest, &other)?);
    }
    Ok(Pieces { keys: all, tokens: vec![item.cas] })
}

/// True if its shards are no items.
pub(crate) fn are_native(manifest: &Manifest) -> bool {
    Params::decode(&manifest.params).is_some_and(|params| params.kept == Kept::Native)
}

/// The parameters in words; `None` for those of another release.
pub(crate) fn describe(manifest: &Manifest) -> Option<Vec<(&'static str, String)>> {
    let params = Params::decode(&manifest.params)?;
    let kept = match params.kept {
        Kept::Portable => "items under conditional writes",
        Kept::Native => "native collections",
    };
    let spread = if params.is_dense { "ranges of dense numbers" } else { "XXH3-64" };
    let mut said = vec![("elements are spread by", spread.to_owned()), ("kept in", kept.to_owned())];
    if let Some(Limits { kept, member_bytes_max }) = params.limits {
        said.push(("kept at each end", kept.to_string()));
        said.push(("bytes of a member", format!("up to {member_bytes_max}")));
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use larder_core::profile::Encodings;

    use super::*;

    /// Redis, as it is set up by itself; before 7.2, where sets are packed of whole numbers only, without the limit of sets.
    fn server(set_entries_max: u64) -> Profile {
        let encodings = Encodings {
            hash_entries_max: 60,
            set_integers_max: 40,
            set_entries_max,
            sorted_set_entries_max: 20,
            ..Encodings::default()
        };
        Profile { natives: Families::all(), encodings: Some(encodings), ..Profile::unlimited("server") }
    }

    #[test]
    fn a_shard_is_made_for_half_of_what_the_server_keeps_packed() {
        let settings = Settings { expected: Some(600), ..Settings::default() };
        let shards = |profile: &Profile, kind: Kind| settings.shards_to_make(profile, kind).unwrap();
        assert_eq!(shards(&server(50), Kind::ShardedHash), 600 / 30);
        assert_eq!(shards(&server(50), Kind::ShardedSet), 600 / 25);
        assert_eq!(shards(&server(0), Kind::ShardedSet), 600 / 20);
        // Items, whatever the server packs.
        assert_eq!(shards(&server(50), Kind::ShardedSortedSet), 10);
        for kind in [Kind::ShardedHash, Kind::ShardedSet] {
            assert_eq!(shards(&Profile::unlimited("items"), kind), 10, "64 a shard");
        }
    }

    #[test]
    fn for_many_elements_shards_are_made_larger_and_the_most_is_named() {
        let set = |expected: u64| Settings { expected: Some(expected), ..Settings::default() };
        let most = u64::from(SHARDS_MAX);
        let small = Profile { item_bytes_max: 200 * 1_024 + Key::BYTES_MAX, ..Profile::unlimited("small items") };
        for (profile, kind, each) in [
            // Half of what is packed, and no less than 64.
            (server(50), Kind::ShardedHash, 30),
            (server(400), Kind::ShardedSet, 200),
            (server(100_000), Kind::ShardedSet, 1_024),
            (Profile { encodings: None, ..server(0) }, Kind::ShardedSet, 1_024),
            (small.clone(), Kind::ShardedSet, 200),
            (small, Kind::ShardedSortedSet, 200),
            (Profile::unlimited("items"), Kind::ShardedHash, 1_024),
        ] {
            let what = format!("{} of {kind:?}", profile.store);
            let usual = each.min(64) * most;
            assert_eq!(set(usual - usual / most).shards_to_make(&profile, kind).unwrap(), SHARDS_MAX - 1, "{what}");
            for expected in [usual, usual + 1, each * most] {
                let made = set(expected.min(each * most)).shards_to_make(&profile, kind).unwrap();
                assert_eq!(made, SHARDS_MAX, "{what}: {expected}");
            }
            let error = set(each * most + 1).shards_to_make(&profile, kind).unwrap_err();
            let names = format!("it can be made for {} at the most", each * most);
            assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains(&names), "{what}: {error}");
            let told = Settings { shards: Some(SHARDS_MAX), ..set(each * most + 1) };
            assert_eq!(told.shards_to_make(&profile, kind).unwrap(), SHARDS_MAX, "{what}: as many as were asked for");
        }
        let dense = |expected: u64| Settings { dense: Some(500), ..set(expected) };
        let made = |settings: Settings| settings.shards_to_make(&server(50), Kind::ShardedSet);
        assert_eq!(made(dense(500 * most)).unwrap(), SHARDS_MAX);
        let error = made(dense(500 * most + 1)).unwrap_err().to_string();
        assert!(error.contains("it can be made for 32767500 at the most"), "{error}");
    }

    #[test]
    fn members_of_64_bytes_are_enough_at_the_ends_and_less_is_refused() {
        let name = Name::new("n").unwrap();
        let settings = Settings { kept: Some(2), ..Settings::default() };
        // Twice as many at each end, and two bounds each.
        let needs = HEAD_BYTES + (4 * 2 + 4) * (ENTRY_BYTES + MEMBER_BYTES_MIN);
        let profile =
            |bytes: usize| Profile { item_bytes_max: bytes + Key::BYTES_MAX, ..Profile::unlimited("of small items") };
        let limits = settings.limits_to_make(&profile(needs), &name).unwrap();
        assert_eq!((limits.kept, usize::from(limits.member_bytes_max)), (2, MEMBER_BYTES_MIN));
        let error = settings.limits_to_make(&profile(needs - 1), &name).unwrap_err();
        assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains("it takes 1"), "{error}");
    }
}
