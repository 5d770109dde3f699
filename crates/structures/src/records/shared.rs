//! What all clones of a handle share: the schema, the ledger, which shards are known, and making one.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::{Collection, Native, NativeReply, Only, Score};
use larder_core::observe::Subject;
use larder_core::{
    Batch, Ctx, Error, ErrorKind, Key, Op, PutMode, Ranges, Reply, Result, StoreRef, Ttl, Want, ambient,
};

use super::layout::{HEADER_BYTES, Header, Kept, Params};
use super::{BATCH_BYTES, SHARDS_MAX};
use crate::append::Tuning;
use crate::events;
use crate::ids::random_id;
use crate::ledger::{Ledger, List, Made, Piece};
use crate::manifest::{Manifest, unexpected};
use crate::name::Name;
use crate::owned::{self, GONE, Owned};
use crate::vigil::Vigil;

/// Fewer stale bytes of the ledger than this are let be.
const LEDGER_DIRTY_BYTES: usize = 4096;
/// The index of the key that holds the highest id, where it has one of its own.
pub(super) const HIGHEST: &str = "highest";
/// How many writers of one handle can be at different shards at once, in the portable layout.
const GATES: usize = 64;

pub(super) struct Inner {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) params: Params,
    pub(super) ledger: Ledger,
    pub(super) timeout: Duration,
    /// The shards that the ledger is known to list, and their incarnations; never held across an await.
    known: Mutex<HashMap<u32, u64>>,
    /// The highest id that the store is known to know, plus 1.
    pub(super) highest: AtomicU64,
    /// Writers of one handle to one shard go one after the other: they would only beat each other.
    pub(super) gates: Vec<tokio::sync::Mutex<()>>,
}

/// What is known of a shard after the ledger was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It was never made, or nothing in it was acknowledged.
    Never,
    /// It was made, and is there.
    Made,
    /// It was missing, and others have made it since: read it again.
    Meanwhile,
}

/// What a read found of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) shard: u32,
    /// If it was known to be listed before it was read; one that is known since may have been made since.
    pub(super) was_known: bool,
    /// The incarnation that it says of itself; `None` where there is no shard.
    pub(super) found: Option<u64>,
}

impl Inner {
    /// No round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store's items are too small, and where it lacks what the layout needs.
    pub(super) fn new(
        store: &StoreRef,
        name: &Name,
        manifest: Manifest,
        params: Params,
        timeout: Duration,
    ) -> Result<Inner> {
        let tuning = Tuning { clock: larder_core::SystemClock::shared(), dirty_bytes: LEDGER_DIRTY_BYTES };
        let ledger = Ledger::new(store, name, &manifest, tuning)?;
        let (profile, longest) = (store.profile(), data_key(name, &manifest, SHARDS_MAX - 1)?);
        let (needs, has) = (params.shard_bytes(), profile.value_bytes_max(longest.as_bytes().len()));
        if params.kept == Kept::Portable && needs > has {
            let detail = format!("records {name} has shards of {needs} bytes; an item takes {has}");
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        Ok(Inner {
            store: store.clone(),
            name: name.clone(),
            manifest,
            params,
            ledger,
            timeout,
            known: Mutex::default(),
            highest: AtomicU64::new(0),
            gates: (0..GATES).map(|_| tokio::sync::Mutex::new(())).collect(),
        })
    }

    pub(super) fn vigil(&self) -> &Arc<Vigil> {
        self.ledger.vigil()
    }

    pub(super) fn deadline(&self) -> Instant {
        let now = ambient::now();
        now.checked_add(self.timeout).unwrap_or(now)
    }

    pub(super) fn is_native(&self) -> bool {
        self.params.kept == Kept::Native
    }

    pub(super) fn has_ranges(&self) -> bool {
        self.store.profile().ranges == Ranges::Native
    }

    /// How many shards are read, or written, in one batch.
    pub(super) fn shards_a_batch(&self) -> usize {
        let fit = (BATCH_BYTES / self.params.shard_bytes()).max(1);
        fit.min(self.store.profile().batch_ops_max / 2).max(1)
    }

    pub(super) fn key(&self, shard: u32) -> Result<Key> {
        data_key(&self.name, &self.manifest, shard)
    }

    /// The shard and the place in it of an id.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for one that is out of range.
    pub(super) fn place(&self, id: u64) -> Result<(u32, u32)> {
        let per_shard = u64::from(self.params.per_shard);
        let shard = u32::try_from(id / per_shard).ok().filter(|&shard| shard < SHARDS_MAX);
        let shard = shard.ok_or_else(|| {
            let last = u64::from(SHARDS_MAX) * per_shard - 1;
            let detail = format!("id {id} is over the range of these records: 0 to {last}; larger shards take more");
            Error::new(ErrorKind::BadInput, detail)
        })?;
        Ok((shard, (id % per_shard) as u32))
    }

    /// The incarnation of a shard that is known already.
    pub(super) fn known(&self, shard: u32) -> Option<u64> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&shard).copied()
    }

    /// Reads the ledger, and learns all it lists, but for what was lost and made again. **Round trips: 1**; where it is gone, up to 3 more to remove what this
    /// handle made for it.
    pub(super) async fn look(&self, deadline: Instant) -> Result<List> {
        let ctx = Ctx { deadline: Some(deadline) };
        let list = match self.ledger.read(ctx).await {
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.remove_orphans(ctx).await;
                return Err(error);
            }
            list => list?,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for of_shard in list.pieces().chunk_by(|one, next| one.number == next.number) {
            let Ok(shard) = u32::try_from(of_shard[0].number) else { continue };
            match of_shard {
                [piece] => _ = known.insert(shard, piece.incarnation),
                // Whoever knew one of them would go on with it and never hear of the loss.
                _ => _ = known.remove(&shard),
            }
        }
        drop(known);
        Ok(list)
    }

    /// The incarnation that a list has of a shard, if any.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where it was lost and made again.
    pub(super) fn said(&self, list: &List, shard: u32) -> Result<Option<u64>> {
        match list.incarnations(u64::from(shard), 0) {
            [] => Ok(None),
            [piece] => Ok(Some(piece.incarnation)),
            _ => Err(self.lost(shard)),
        }
    }

    /// The error for a shard that is gone, or is another than the one that was made.
    pub(super) fn lost(&self, shard: u32) -> Error {
        let per_shard = u64::from(self.params.per_shard);
        let first = u64::from(shard) * per_shard;
        let detail = format!("records {} has lost ids {first} to {}: {GONE}", self.name, first + per_shard - 1);
        let error = Error::new(ErrorKind::Lost, detail);
        self.loss(match self.key(shard) {
            Ok(key) => error.key(&key),
            Err(_) => error,
        })
    }

    pub(super) fn loss(&self, error: Error) -> Error {
        let error = error.store(self.store.profile().store.clone());
        events::loss(self.subject(), error)
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        events::subject(self.manifest.kind, &self.name)
    }

    /// The error for a key that holds something else.
    pub(super) fn strange(&self, shard: u32) -> Error {
        let detail = format!(
            "shard {shard} of records {} holds something else, which another program wrote; nothing was changed. \
             Use another name or namespace, or delete it with that program",
            self.name
        );
        let error = Error::new(ErrorKind::LayoutMismatch, detail);
        match self.key(shard) {
            Ok(key) => error.key(&key),
            Err(_) => error,
        }
    }

    /// Sees to it that shards are there and listed; only then may anything in them be acknowledged. **Round trips: 0** for
    /// those that are known, else 1, and 3 more to make them.
    pub(super) async fn ensure(&self, deadline: Instant, shards: impl Iterator<Item = u32>) -> Result<()> {
        let mut missing: Vec<u32> = shards.filter(|&shard| self.known(shard).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_unstable();
        missing.dedup();
        let list = self.look(deadline).await?;
        let mut new = Vec::new();
        for shard in missing {
            if self.said(&list, shard)?.is_none() {
                new.push(shard);
            }
        }
        for some in new.chunks(self.shards_a_batch()) {
            self.make(deadline, some).await?;
        }
        Ok(())
    }

    /// Makes shards that the ledger does not list, or finds those that others made, and lists them.
    async fn make(&self, deadline: Instant, shards: &[u32]) -> Result<()> {
        // Drawn anew for each try: what was sent twice could come back without what was written to it first.
        let incarnation = || (random_id() >> 1).max(1);
        let piece = |&shard: &u32| Piece { number: u64::from(shard), part: 0, incarnation: incarnation() };
        let drawn: Vec<Piece> = shards.iter().map(piece).collect();
        self.make_drawn(deadline, &drawn).await?;
        self.ledger.listed(&drawn);
        Ok(())
    }

    async fn make_drawn(&self, deadline: Instant, drawn: &[Piece]) -> Result<()> {
        let mut batch = Batch::new();
        for piece in drawn {
            // It was one.
            let shard = piece.number as u32;
            let header = Header { incarnation: piece.incarnation, known: 0, shard };
            let value = header.shard_of_zeros(self.params.shard_bytes());
            batch.push(if self.is_native() {
                Op::native(self.key(shard)?, Native::BitsMake { value: value.into() })
            } else {
                Op::put(self.key(shard)?, PutMode::Add, value, Ttl::Never)
            });
            batch.push(self.header_op(shard)?);
        }
        // Should a reply be lost, or this future be dropped, a look that misses the list removes them.
        let making = self.ledger.making(drawn.to_vec());
        let mut replies = self.vigil().run(Ctx { deadline: Some(deadline) }, batch).await.into_iter();
        drop(making);
        let mut pieces = Vec::with_capacity(drawn.len());
        for piece in drawn {
            let shard = piece.number as u32;
            let made = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            let header = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            let full = |error: &Error| matches!(error.kind(), ErrorKind::Full | ErrorKind::BadInput);
            // Something was there, and reads as nothing: an empty string.
            let was_there = matches!(&made, Ok(Reply::Native(native)) if **native == NativeReply::Flag(false));
            match made {
                // Nothing of the caller's was written; an empty shard may be there, which the next one finds.
                Err(error) if full(&error) => return Err(error.effect(larder_core::Effect::NotApplied)),
                _ => {}
            }
            let incarnation =
                self.incarnation(shard, header.map_err(|error| error.effect(larder_core::Effect::NotApplied))?)?;
            let Some(incarnation) = incarnation else {
                if was_there {
                    return Err(self.strange(shard));
                }
                let detail = format!("shard {shard} of records {} was made and is not there", self.name);
                return Err(Error::new(ErrorKind::Unavailable, detail).store(self.store.profile().store.clone()));
            };
            pieces.push(Piece { incarnation, ..*piece });
        }
        let list =
            self.enlist(deadline, &pieces).await.map_err(|error| error.effect(larder_core::Effect::NotApplied))?;
        pieces.iter().try_for_each(|piece| match self.said(&list, piece.number as u32)? {
            Some(listed) if listed == piece.incarnation => Ok(()),
            _ => {
                let detail = format!("the list of the shards of records {} lacks what was just listed", self.name);
                Err(self.loss(Error::new(ErrorKind::RolledBack, detail)).effect(larder_core::Effect::NotApplied))
            }
        })
    }

    /// Lists shards that are there, and tells what is listed then. **Round trips: 2.**
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where the list is gone, those of the store.
    async fn enlist(&self, deadline: Instant, pieces: &[Piece]) -> Result<List> {
        if let Err(error) = self.ledger.register(deadline, pieces).await {
            if error.kind() == ErrorKind::Lost {
                self.remove_orphans(Ctx { deadline: Some(deadline) }).await;
            }
            return Err(error);
        }
        // Others may have made one, written to it and lost it since the look that missed it: whoever wrote to it had listed it before, so it stands beside this one by now.
        self.look(deadline).await
    }

    /// Once the ledger has told `Lost`: removes the shards that this handle made for it, where it is gone, as in a drop: nobody would find them. What others made they remove themselves.
    /// **Round trips: 0** where it made none, else up to 3.
    async fn remove_orphans(&self, ctx: Ctx) {
        let made = self.ledger.orphans(ctx).await;
        for some in made.chunks(self.store.profile().batch_ops_max) {
            if self.remove(ctx, some).await.is_ok() {
                self.ledger.removed(some);
            }
        }
    }

    /// Removes shards where they are of these incarnations.
    async fn remove(&self, ctx: Ctx, made: &[Made]) -> Result<()> {
        let (profile, mut ops) = (self.store.profile(), Batch::new());
        // Bits are removed by their mark; of an item it must be looked whose it is.
        let gets = if self.is_native() { &[] } else { made };
        let gets: Result<Batch> = gets.iter().map(|made| self.header_op(made.piece.number as u32)).collect();
        let gets = gets?;
        let mut found =
            if gets.is_empty() { Vec::new() } else { self.store.run(ctx, gets).await.into_vec() }.into_iter();
        for Made { piece, .. } in made {
            // It was one.
            let shard = piece.number as u32;
            let is_ours = self.is_native()
                || match found.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))? {
                    Reply::Item(item) => {
                        Header::parse(&item.value).is_some_and(|it| it.incarnation == piece.incarnation)
                    }
                    _ => false,
                };
            if is_ours {
                let marks = vec![Header::mark(shard, piece.incarnation)];
                ops.push(owned_shard(&self.name, &self.manifest, self.is_native(), shard, marks)?.remove_op(&profile));
            }
        }
        if ops.is_empty() {
            return Ok(());
        }
        self.store.run(ctx, ops).await.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// The op that reads what a shard says of itself.
    pub(super) fn header_op(&self, shard: u32) -> Result<Op> {
        let key = self.key(shard)?;
        Ok(if self.is_native() {
            Op::native(key, Native::BitsRead { offset_bytes: 0, len_bytes: HEADER_BYTES as u64 })
        } else if self.has_ranges() {
            Op::get_range(key, 0, HEADER_BYTES as u64)
        } else {
            Op::get(key, Want::VALUE)
        })
    }

    /// What the reply to [`header_op`](Inner::header_op) says; `None` where there is no shard.
    pub(super) fn incarnation(&self, shard: u32, reply: Reply) -> Result<Option<u64>> {
        match reply {
            Reply::Native(native) => match *native {
                NativeReply::Bytes(bytes) if bytes.is_empty() => Ok(None),
                NativeReply::Bytes(bytes) => Ok(Some(self.header(shard, &bytes)?.incarnation)),
                _ => Err(self.strange(shard)),
            },
            Reply::Item(item) => Ok(Some(self.header(shard, &item.value)?.incarnation)),
            Reply::Miss => Ok(None),
            other => Err(unexpected(&self.header_op(shard)?, &other)),
        }
    }

    /// The header of a shard that is there.
    pub(super) fn header(&self, shard: u32, bytes: &[u8]) -> Result<Header> {
        Header::parse(bytes).filter(|header| header.shard == shard).ok_or_else(|| self.strange(shard))
    }

    /// Fails unless a shard that is listed is there, and is the one that was listed. `found` is what it says of itself.
    ///
    /// **Round trips: 0** where that is known, else 1: what others made meanwhile is learnt from the ledger.
    pub(super) async fn settle(&self, deadline: Instant, shard: u32, found: Option<u64>) -> Result<Known> {
        let was_known = self.known(shard).is_some();
        self.settle_all(deadline, &[Seen { shard, was_known, found }]).await.map(|known| known[0])
    }

    /// The same of many shards, by one look for all; to be called when all of them were read, so that the look is no older than any
    /// reading. **Round trips: 0** where all are known, else 1.
    pub(super) async fn settle_all(&self, deadline: Instant, seen: &[Seen]) -> Result<Vec<Known>> {
        let is_settled = |seen: &Seen| seen.found.is_some() && self.known(seen.shard) == seen.found;
        let mut known = vec![Known::Made; seen.len()];
        let open: Vec<usize> = (0..seen.len()).filter(|&at| !is_settled(&seen[at])).collect();
        if open.is_empty() {
            return Ok(known);
        }
        let list = self.look(deadline).await?;
        for at in open {
            known[at] = self.judge(&list, seen[at])?;
        }
        Ok(known)
    }

    /// What a list that was read after a shard tells of it.
    fn judge(&self, list: &List, seen: Seen) -> Result<Known> {
        match (self.said(list, seen.shard)?, seen.found) {
            (Some(listed), Some(found)) if listed == found => Ok(Known::Made),
            // Looked for before it was made; next time it is known.
            (Some(_), None) if !seen.was_known => Ok(Known::Meanwhile),
            (Some(_), _) => Err(self.lost(seen.shard)),
            // It is there, and its maker has not listed it yet: nothing in it was acknowledged.
            (None, Some(_)) => Ok(Known::Made),
            (None, None) => Ok(Known::Never),
        }
    }

    /// The key of the highest id.
    pub(super) fn highest_key(&self) -> Result<Key> {
        highest_key(&self.name, &self.manifest)
    }

    /// The ops that raise the highest id known to `id`, and tell whether its key is there.
    pub(super) fn raise_ops(&self, id: u64) -> Result<[Op; 2]> {
        let entries = vec![(member(&self.manifest), score(id + 1))];
        // Never makes the key, or a member: one that was lost must be missed, and one that another program made is not written to.
        let raise = Native::SortedAdd { entries, only: Only::KNOWN | Only::GREATER };
        Ok([Op::native(self.highest_key()?, raise), self.highest_op()?])
    }

    pub(super) fn highest_op(&self) -> Result<Op> {
        highest_op(&self.name, &self.manifest)
    }

    /// The highest id plus 1 that a reply to [`highest_op`](Inner::highest_op) tells.
    pub(super) fn highest(&self, reply: Result<Reply>) -> Result<u64> {
        match reply?.into_native() {
            Some(NativeReply::Scores(scores)) => match scores.first().copied().flatten() {
                // A whole number under 2^53.
                Some(score) => Ok(score.get() as u64),
                None => {
                    let detail = format!("records {} has lost the highest id that is known: {GONE}", self.name);
                    Err(self.loss(Error::new(ErrorKind::Lost, detail).key(&self.highest_key()?)))
                }
            },
            other => {
                let detail = format!("the highest id was answered {other:?}");
                Err(Error::new(ErrorKind::Protocol, detail))
            }
        }
    }

    /// The error for a highest id below what the store had told: it only grows.
    pub(super) fn set_back(&self, told: u64, knew: u64) -> Result<Error> {
        let detail = format!(
            "records {} went back: the highest id that is known was {} and is {}; what is above it is not counted",
            self.name,
            knew.saturating_sub(1),
            told.checked_sub(1).map_or_else(|| "none".to_owned(), |id| id.to_string()),
        );
        Ok(self.loss(Error::new(ErrorKind::RolledBack, detail).key(&self.highest_key()?)))
    }

    pub(super) fn know_highest(&self, end: u64) {
        self.highest.fetch_max(end, Ordering::Relaxed);
    }
}

/// The op that makes the key of the highest id.
pub(super) fn make_highest_op(name: &Name, manifest: &Manifest) -> Result<Op> {
    Ok(owned::make_op(highest_key(name, manifest)?, Collection::Sorted, member(manifest), None))
}

/// The op that reads the highest id.
pub(super) fn highest_op(name: &Name, manifest: &Manifest) -> Result<Op> {
    let read = Native::SortedScores { members: vec![member(manifest)] };
    Ok(Op::native(highest_key(name, manifest)?, read))
}

/// The key of the highest id.
pub(super) fn highest(name: &Name, manifest: &Manifest) -> Result<Owned> {
    Ok(Owned::marked(highest_key(name, manifest)?, Collection::Sorted, vec![member(manifest)]))
}

/// The only member of the key of the highest id, which nobody else has in a set of his.
fn member(manifest: &Manifest) -> Bytes {
    Bytes::from(format!("{:016x}", manifest.generation))
}

fn highest_key(name: &Name, manifest: &Manifest) -> Result<Key> {
    manifest.data_key(name, HIGHEST)
}

/// A shard of one of these marks.
pub(super) fn owned_shard(
    name: &Name,
    manifest: &Manifest,
    is_native: bool,
    shard: u32,
    marks: Vec<Bytes>,
) -> Result<Owned> {
    let key = data_key(name, manifest, shard)?;
    Ok(if is_native { Owned::bits(key, marks) } else { Owned::item(key) })
}

pub(super) fn data_key(name: &Name, manifest: &Manifest, shard: u32) -> Result<Key> {
    manifest.data_key(name, format_args!("s{shard}"))
}

fn score(id: u64) -> Score {
    // Ids are below 2^15 shards of 2^32 records: exact.
    Score::new(id as f64).unwrap_or_default()
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedRecords")
            .field("name", &self.name)
            .field("schema", &self.params.schema)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
