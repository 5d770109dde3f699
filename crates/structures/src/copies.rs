//! Manifests that stand on several servers: of structures whose data does.
//!
//! The one on the server of rank 0 decides; the others are what is left of it when that server comes back empty. Where one is
//! missing, whoever opens the structure makes it again, and a handle's look does.
//!
//! A copy is only ever written where there is none, or over the very one that was read before the manifest of another life was read on the
//! server that decides. So a write that comes late replaces no copy of a later life. It may yet land where that life has no copy, and there it stands
//! until the next open, or a handle's look, replaces it; should the one that decides be lost before, the name is the earlier life's again, whose data are
//! [`Lost`](ErrorKind::Lost). The same where it lands behind a drop: the name is there again, without data, until it is dropped once more.

use larder_core::{Batch, Ctx, Error, ErrorKind, Op, PutMode, Reply, Result, Route, StoreRef, Ttl, Want};

use crate::manifest::{self, Found, Manifest};
use crate::name::Name;

/// The most servers that a manifest stands on.
pub(crate) const COPIES_MAX: u8 = 5;

/// The rank of a server that lacks a manifest's copy, and how one is written there: where there is none, or over that of another life.
pub(crate) type Gap = (u8, PutMode);

/// Reads the manifest of a name wherever one can stand, and makes copies again that are missing.
/// **Round trips: 1**, 2 if a copy was missing; 1 more each where the one that decides is missing, too, and where one is another life's.
///
/// # Errors
/// Those of the store, if no manifest was found and not all servers were heard.
pub(crate) async fn find(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<Found>> {
    let Some((found, missing)) = look(store, ctx, name).await? else { return Ok(None) };
    mend(store, ctx, name, &found, missing).await?;
    Ok(Some(found))
}

/// Reads the manifest of a name wherever one can stand, and tells where it should and does not. **Round trips: 1.**
///
/// # Errors
/// Those of the store, if no manifest was found and not all servers were heard.
pub(crate) async fn look(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<(Found, Vec<Gap>)>> {
    let key = name.manifest_key()?;
    let ranks = u8::try_from(store.profile().nodes).unwrap_or(u8::MAX).clamp(1, COPIES_MAX);
    let get = |rank| Op::get(key.clone(), Want::VALUE | Want::CAS | Want::TTL).routed(Route { with: None, rank });
    let replies = store.run(ctx, (0..ranks).map(get).collect()).await;
    let mut found: Option<Found> = None;
    let mut missing = Vec::new();
    let (mut fault, mut foreign) = (None, None);
    for (rank, reply) in (0..ranks).zip(replies) {
        match reply.map(Reply::into_item) {
            Ok(None) => missing.push((rank, PutMode::Add)),
            Ok(Some(item)) => {
                let manifest = match Manifest::decode(&item.value) {
                    Ok(manifest) => manifest,
                    Err(error) if rank == 0 => return Err(error.key(&key)),
                    Err(error) => {
                        foreign = foreign.or(Some((rank, error.key(&key))));
                        continue;
                    }
                };
                match &found {
                    // Left behind by an earlier life, whose drop could not reach this server.
                    Some(first) if first.manifest.generation != manifest.generation => {
                        missing.extend(item.cas.map(|cas| (rank, PutMode::Cas(cas))));
                    }
                    Some(_) => {}
                    None if rank < manifest.copies => found = Some(Found { manifest, item }),
                    None => {}
                }
            }
            Err(error) => fault = fault.or(Some(error)),
        }
    }
    // Of a structure of fewer copies that is no place.
    let is_place = |rank: u8| found.as_ref().is_none_or(|found| rank < found.manifest.copies);
    if let Some((_, error)) = foreign.filter(|(rank, _)| is_place(*rank)) {
        return Err(error);
    }
    let Some(found) = found else {
        return fault.map_or(Ok(None), Err);
    };
    missing.retain(|&(rank, _)| rank < found.manifest.copies);
    Ok(Some((found, missing)))
}

/// Makes copies again that are missing. **Round trips: 1**, 1 more each where the one that decides is, and where one is another life's; 0 where none is.
async fn mend(store: &StoreRef, ctx: Ctx, name: &Name, found: &Found, mut missing: Vec<Gap>) -> Result<()> {
    if missing.first() == Some(&(0, PutMode::Add)) {
        // Whoever creates or restores it first decides what the name is.
        let put = Op::put(name.manifest_key()?, PutMode::Add, found.item.value.clone(), Ttl::Never);
        match store.run(ctx, Batch::from_buf([put])).await.pop() {
            Some(Ok(Reply::NotStored)) => {
                let detail = format!("{name} is being made or restored by others; open it again");
                return Err(Error::new(ErrorKind::Conflict, detail));
            }
            Some(Err(error)) => return Err(error),
            _ => missing.retain(|&(rank, _)| rank > 0),
        }
    }
    let missing = fillable(store, ctx, name, &found.manifest, missing).await;
    spread(store, ctx, name, &found.manifest, missing.into_iter()).await;
    Ok(())
}

/// Of gaps those that a copy may be written to: where another life's stands, only if this one's manifest, read after it, is the one that decides.
/// **Round trips: 1** where one does, else 0.
pub(crate) async fn fillable(
    store: &StoreRef,
    ctx: Ctx,
    name: &Name,
    manifest: &Manifest,
    mut gaps: Vec<Gap>,
) -> Vec<Gap> {
    let is_empty = |(_, mode): &Gap| *mode == PutMode::Add;
    if !gaps.iter().all(is_empty) {
        let first = manifest::find(store, ctx, name).await;
        if !matches!(first, Ok(Some(first)) if first.manifest.generation == manifest.generation) {
            gaps.retain(is_empty);
        }
    }
    gaps
}

/// Puts copies of a manifest where they lack. What fails is made up for by whoever opens the structure next.
/// **Round trips: 1.**
pub(crate) async fn spread(
    store: &StoreRef,
    ctx: Ctx,
    name: &Name,
    manifest: &Manifest,
    gaps: impl Iterator<Item = Gap>,
) {
    let Ok(key) = name.manifest_key() else { return };
    let bytes = manifest.encode();
    let put = |(rank, mode)| Op::put(key.clone(), mode, bytes.clone(), Ttl::Never).routed(Route { with: None, rank });
    let batch: Batch = gaps.map(put).collect();
    if !batch.is_empty() {
        _ = store.run(ctx, batch).await;
    }
}

/// The ops that remove the copies of a manifest, but for the one that decides.
pub(crate) fn delete_ops(name: &Name, manifest: &Manifest) -> Result<Batch> {
    let key = name.manifest_key()?;
    let delete = |rank| Op::delete(key.clone()).routed(Route { with: None, rank });
    Ok((1..manifest.copies).map(delete).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_layers::Counting;

    use super::*;
    use crate::manifest::Kind;
    use crate::ranked_tests::Three;

    /// Once it decides again it is not written once more: others may have dropped the name meanwhile.
    #[tokio::test]
    async fn the_copy_that_decides_is_made_again_in_one_round_trip() {
        let counting = Counting::new(Arc::new(Three::new()));
        let (store, name): (StoreRef, _) = (Arc::new(counting.clone()), Name::new("c").unwrap());
        let manifest = Manifest { copies: 3, ..Manifest::new(Kind::Counter, 1, 1, bytes::Bytes::new()) };
        spread(&store, Ctx::default(), &name, &manifest, [(1, PutMode::Add), (2, PutMode::Add)].into_iter()).await;
        let before = counting.counts();
        let found = find(&store, Ctx::default(), &name).await.unwrap().expect("two copies are there");
        assert_eq!(found.manifest.generation, manifest.generation);
        assert_eq!(counting.counts().since(&before).round_trips, 2, "a look, and the write");
        let (_, missing) = look(&store, Ctx::default(), &name).await.unwrap().expect("it is there");
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[tokio::test]
    async fn another_programs_value_where_the_copy_that_decides_stands_is_told_though_the_others_are_whole() {
        let (store, name): (StoreRef, _) = (Arc::new(Three::new()), Name::new("c").unwrap());
        let manifest = Manifest { copies: 3, ..Manifest::new(Kind::Counter, 1, 1, bytes::Bytes::new()) };
        spread(&store, Ctx::default(), &name, &manifest, [(1, PutMode::Add), (2, PutMode::Add)].into_iter()).await;
        let put = Op::put(name.manifest_key().unwrap(), PutMode::Add, "another program's", Ttl::Never);
        let put = put.routed(Route { with: None, rank: 0 });
        store.run(Ctx::default(), std::iter::once(put).collect()).await.remove(0).unwrap();
        let error = look(&store, Ctx::default(), &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
}
