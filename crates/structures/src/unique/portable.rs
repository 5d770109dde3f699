//! A set of integers as the blob that the portable layout has in its place: the same head, so the same shard and the same offsets.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use larder_core::native::NativeReply;
use larder_core::{Clock, Ctx, Key, Op, Remaining, Result, StoreRef, SystemClock, Want};

use super::core::{MADE, as_ms, end_ms};
use super::id::Rounds;
use super::layout::{Head, Members, PERIOD_MAX, Params, Shape, head_index};
use super::native::{hashes, set_op};
use super::zone::Zone;
use crate::ids::random_id;
use crate::ledger;
use crate::manifest::Manifest;
use crate::name::Name;

/// Heads that are asked for in one batch.
const HEADS_A_BATCH: usize = 1_024;

/// What a manifest says where shards are blobs; `None` for parameters of another release.
pub(crate) fn manifest(manifest: &Manifest) -> Option<Manifest> {
    let params = Params { shape: Shape::Blob, ..Params::decode(&manifest.params)? };
    Some(Manifest { params: params.encode(), ..manifest.clone() })
}

/// The incarnation's lower half and the shard that an index is of.
pub(crate) fn shard_of_index(index: &str) -> Option<(u32, u32)> {
    let (tag, shard) = index.split_once('-')?;
    let (tag, shard) = (u32::from_str_radix(tag, 16).ok()?, u32::from_str_radix(shard, 16).ok()?);
    // Only as it would be written: another spelling is another key.
    (format!("{tag:x}-{shard:x}") == index).then_some((tag, shard))
}

/// The periods of unique visitors, by what stands in the keys of their shards.
#[derive(Debug)]
pub(crate) struct Periods {
    params: Params,
    heads: HashMap<u32, (u64, Head)>,
}

impl Periods {
    /// Reads the list of periods, and their heads; `None` for parameters of another release, or a zone that this machine does not know. **Round trips: 2** for 1,024 of them.
    pub(crate) async fn read(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Option<Periods>> {
        // When a period ends nobody knows where its zone is not.
        let params = Params::decode(&manifest.params);
        let Some(params) = params.filter(|params| params.zone.as_ref().is_none_or(Zone::is_known)) else {
            return Ok(None);
        };
        let listed = ledger::pieces(store, ctx, name, manifest).await?;
        let made = listed.iter().filter(|piece| piece.part == MADE && piece.number <= PERIOD_MAX);
        let mut periods: Vec<u64> = made.map(|piece| piece.number).collect();
        periods.dedup();
        let mut heads = HashMap::with_capacity(periods.len());
        for part in periods.chunks(HEADS_A_BATCH.min(store.profile().batch_ops_max).max(1)) {
            let get = |&period| Ok(Op::get(manifest.data_key(name, head_index(period))?, Want::VALUE));
            let gets = part.iter().map(get).collect::<Result<_>>()?;
            for (&period, reply) in part.iter().zip(store.run(ctx, gets).await) {
                let Some(item) = reply?.into_item() else { continue };
                // What is no head is told where it is read itself.
                if let Ok(head) = Head::decode(&item.value) {
                    heads.insert(head.incarnation as u32, (period, head));
                }
            }
        }
        Ok(Some(Periods { params, heads }))
    }

    /// True if it knows whose shards these are.
    pub(crate) fn has(&self, tag: u32) -> bool {
        self.heads.contains_key(&tag)
    }

    /// The value, the flags and the life of the item in the place of a shard; `None` for what is none.
    pub(crate) fn item(&self, tag: u32, shard: u32, reply: Option<NativeReply>) -> Option<(Bytes, u32, Remaining)> {
        let (period, head) = self.heads.get(&tag).filter(|(_, head)| shard < head.shards)?;
        let Some(NativeReply::Members(found)) = reply else { return None };
        let first = head.first(shard);
        let mut all = hashes(&self.params, head, shard, found, &Rounds::new(self.params.seed)).ok()??;
        // Of what another program spelt otherwise.
        all.dedup();
        // Each is of this shard, so no less than its first.
        let offsets: Vec<u64> = all.iter().map(|&hash| (u128::from(hash) - first) as u64).collect();
        let count = u32::try_from(offsets.len()).ok()?;
        let members = Members { offsets, lows: Vec::new() };
        let value = members.encode(head.span(shard), random_id() as u32, 0);
        Some((value, count, life(&self.params, *period)))
    }
}

/// The op that reads a shard.
pub(crate) fn read_op(key: Key) -> Op {
    set_op(key)
}

/// What is left of the life of what a period has: no op tells it of a set, and all that a period has ends at one time.
fn life(params: &Params, period: u64) -> Remaining {
    match end_ms(params, period) {
        None => Remaining::Never,
        Some(end_ms) => {
            let left_ms = end_ms.saturating_sub(as_ms(SystemClock::new().wall()));
            Remaining::For(Duration::from_millis(left_ms))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use larder_core::{PutMode, StoreExt, Ttl};
    use larder_store_memory::MemoryStore;

    use super::super::id::IdKind;
    use super::super::layout::LAYOUT;
    use super::super::layout::{Blob, Precision};
    use super::super::native::{exact_spot, member};
    use super::*;
    use crate::append::Tuning;
    use crate::ledger::{Ledger, Piece};
    use crate::manifest::Kind;

    const MARK: &[u8] = b"-2147483648";

    fn params(precision: Precision, ids: IdKind, keep_ms: u64) -> Params {
        let (period_ms, offset_ms, seed, expected) = (86_400_000, 0, 9, 100);
        Params { period_ms, offset_ms, seed, precision, ids, shape: Shape::Native, expected, keep_ms, zone: None }
    }

    fn periods(params: Params, bits: u8) -> (Periods, Head) {
        let head = Head { incarnation: 0x1_0000_00ab, expected: 100, shards: 4, bits, padded_bytes: 0 };
        (Periods { params, heads: HashMap::from([(0xab, (20_000, head))]) }, head)
    }

    fn members(all: &[&[u8]]) -> Option<NativeReply> {
        Some(NativeReply::Members(all.iter().map(|member| Bytes::copy_from_slice(member)).collect()))
    }

    #[test]
    fn a_set_has_golden_bytes_as_a_blob() {
        let (periods, head) = periods(params(Precision::Compact, IdKind::Any, 0), 33);
        let (value, flags, ttl) = periods.item(0xab, 1, members(&[b"-2147483640", MARK, b"-2147483647"])).unwrap();
        assert_eq!((flags, ttl), (2, Remaining::Never));
        let blob = Blob::parse(&value).unwrap();
        let found = blob.members(head.span(1) - 1, false).unwrap();
        assert_eq!(found, Members { offsets: vec![0, 7], lows: Vec::new() });
        assert_eq!((&value[..4], &value[8..16]), (&b"LU\x01\x1c"[..], &b"\x02\0\0\0\x08\0\0\0"[..]));
        // Each a one, and then 28 bits: gaps of 0 and of 6.
        assert_eq!(value[16..], *b"\x01\0\0\xa0\x01\0\0\0");
    }

    #[test]
    fn exact_ids_stand_where_the_portable_layout_looks_for_them() {
        let (periods, head) = periods(params(Precision::Exact, IdKind::Integer, 1_000), 64);
        let rounds = Rounds::new(9);
        for id in [0, 7, u64::from(u32::MAX), 1 << 40, u64::MAX] {
            let (native, portable) = (exact_spot(&head, rounds.hash(id)), head.spot(rounds.hash(id), false));
            let reply = members(&[MARK, &member(native.offset)]);
            let (value, flags, ttl) = periods.item(0xab, native.shard, reply).unwrap();
            let blob = Blob::parse(&value).unwrap().members(head.span(native.shard).wrapping_sub(1), false).unwrap();
            assert!(blob.has(&portable), "{id}");
            // The period was over long ago.
            assert_eq!((native.shard, flags, ttl), (portable.shard, 1, Remaining::For(Duration::ZERO)));
        }
    }

    #[test]
    fn what_is_no_shard_is_none() {
        let (periods, _) = periods(params(Precision::Compact, IdKind::Any, 0), 33);
        assert!(periods.item(0xab, 0, members(&[b"-2147483647"])).is_none(), "no mark");
        assert!(periods.item(0xab, 0, members(&[MARK, b"text"])).is_none());
        assert!(periods.item(0xab, 0, members(&[MARK, b"9223372036854775807"])).is_none(), "of another shard");
        assert!(periods.item(0xab, 4, members(&[MARK])).is_none(), "a shard that the head has not");
        assert!(periods.item(0xac, 0, members(&[MARK])).is_none(), "another period");
        assert!(periods.item(0xab, 0, None).is_none());
        // One number twice, as only another program writes it.
        let (_, flags, _) = periods.item(0xab, 0, members(&[MARK, b"-05", b"-5"])).unwrap();
        assert_eq!(flags, 1);
    }

    #[test]
    fn indexes_are_read_as_they_are_written() {
        assert_eq!(shard_of_index("ab-1f"), Some((0xab, 0x1f)));
        for other in ["", "0", "h4e20", "ab-", "-1", "0ab-1", "AB-1", "ab-1-2", "100000000-0"] {
            assert_eq!(shard_of_index(other), None, "{other}");
        }
    }

    fn manifest_of(params: Params) -> Manifest {
        Manifest::new(Kind::UniqueVisitors, LAYOUT, Ledger::SHARDS, params.encode())
    }

    #[test]
    fn a_manifest_of_sets_says_blobs_elsewhere_and_the_rest_stays() {
        let sets = params(Precision::Exact, IdKind::Integer, 1_000);
        let native = manifest_of(sets.clone());
        let blobs = manifest(&native).unwrap();
        assert_eq!(Params::decode(&blobs.params), Some(Params { shape: Shape::Blob, ..sets }));
        assert_eq!(Manifest { params: native.params.clone(), ..blobs }, native);
        assert_eq!(manifest(&Manifest { params: Bytes::from_static(b"later"), ..native }), None);
    }

    /// What a later release may list beside periods, or behind the last of them, is none of this one's.
    #[tokio::test]
    async fn the_periods_that_are_read_are_those_that_were_made() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let (name, manifest) = (Name::new("site").unwrap(), manifest_of(params(Precision::Compact, IdKind::Any, 0)));
        for made in store.run(Ctx::default(), Ledger::create_ops(&name, &manifest).unwrap()).await {
            made.unwrap();
        }
        let tuning = Tuning { clock: SystemClock::shared(), dirty_bytes: 1_024 };
        let ledger = Ledger::new(&store, &name, &manifest, tuning).unwrap();
        let listed = [(20_000, MADE, 0xa0), (20_001, MADE, 0xa1), (20_002, 7, 0xa2), (PERIOD_MAX + 1, MADE, 0xa3)];
        let pieces = listed.map(|(number, part, incarnation)| Piece { number, part, incarnation });
        ledger.register(Instant::now() + Duration::from_secs(5), &pieces).await.unwrap();
        for piece in pieces {
            let head = Head { incarnation: piece.incarnation, expected: 1, shards: 1, bits: 35, padded_bytes: 0 };
            let key = manifest.data_key(&name, head_index(piece.number)).unwrap();
            store.put(key, PutMode::Set, head.encode(), Ttl::Never).await.unwrap();
        }
        let found = Periods::read(&store, Ctx::default(), &name, &manifest).await.unwrap().unwrap();
        assert_eq!([0xa0, 0xa1, 0xa2, 0xa3].map(|tag| found.has(tag)), [true, true, false, false]);
        let later = Manifest { params: Bytes::from_static(b"later"), ..manifest };
        assert!(Periods::read(&store, Ctx::default(), &name, &later).await.unwrap().is_none());
    }
}
