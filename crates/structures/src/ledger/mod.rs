//! The list of the pieces that a structure has made as it went: chunks of a log, windows of a counter of visitors.
//!
//! Such pieces are keys that come and go, so that a missing one may be a loss, or may never have been. The ledger tells the two
//! apart: an append-encoded value, the one data key that the structure's manifest counts (shard 0 of 1). An entry names a piece
//! and its *incarnation*, a number that its maker drew at random and that stands in the piece, too. So a piece that was
//! lost and made again by somebody who never saw the first is told from the first.
//!
//! # How it is used
//! - Whoever makes a piece registers it **before** it acknowledges what it wrote there; whoever writes to a piece that the ledger does
//!   not list registers it in the maker's place, who may have crashed. So what was acknowledged stands in a piece that is listed, or in
//!   a later incarnation of one.
//! - An incarnation is drawn anew for each try to make a piece. One that was sent twice could come back without what was
//!   written to it first, and nobody would see the loss.
//! - A reader reads the ledger, then the pieces it lists: one that is gone, or is of another incarnation, was lost.
//! - Entries of pieces that are past their life are removed by [`Ledger::trim`], now and then.
//!
//! What is lost with the ledger itself: where it is gone, everything that needs it answers
//! [`Lost`](larder_core::ErrorKind::Lost).
//!
//! # Figures
//! An entry takes 19 bytes once compacted, about 35 before. So a ledger in an item of 1 MiB lists some 54,000 pieces; a structure
//! bounds their number far below that, since each look reads them all.

pub(crate) mod layout;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_core::{Batch, Cas, Ctx, Error, ErrorKind, Key, Op, Reply, Result, StoreRef, Want, ambient};

pub(crate) use self::layout::Piece;
use self::layout::{ENTRY_BYTES, Entries};
use crate::append::past::Seen;
use crate::append::{Action, Distinct, Part, Shards, Tuning, Write, Writer, layout as engine};
use crate::combine::Combiner;
use crate::manifest::Manifest;
use crate::name::Name;
use crate::vigil::Vigil;

/// How many bytes of different callers' entries travel in one write.
const COMBINED_BYTES_MAX: usize = 16 * 1024;
/// How many pieces that are not known to be listed a handle remembers; of more the oldest are forgotten.
const MADE_MAX: usize = 1_024;
/// How many entries one write takes.
const ENTRIES_A_WRITE: usize = COMBINED_BYTES_MAX / (ENTRY_BYTES + 1);

/// The ledger of an opened structure. Its manifest counts one shard: this.
pub(crate) struct Ledger {
    store: StoreRef,
    shards: Arc<Shards<Entries>>,
    combiner: Combiner<Writer<Entries>>,
    /// Pieces that this handle sent to be made, and does not know to be listed: nobody finds them once the list is gone. Held for a
    /// few loads and stores, never across an await.
    made: Mutex<Vec<Made>>,
}

/// A piece that a handle sent to be made, and does not know to be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) piece: Piece,
    /// Its making was not answered yet when this was noted: whoever removes it may come before it.
    is_under_way: bool,
}

/// Pieces whose making is under way, until this is dropped: when that was answered, or nobody waits for it any more. Till then a removal beside it cannot tell
/// one that is gone from one that is yet to come.
#[must_use = "their making ends when this is dropped"]
pub(crate) struct Making<'l> {
    ledger: &'l Ledger,
    pieces: Vec<Piece>,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        for made in self.ledger.lock_made().iter_mut() {
            made.is_under_way &= !self.pieces.contains(&made.piece);
        }
    }
}

/// What a ledger lists, in order of number, part, incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List(Vec<Piece>);

impl Ledger {
    /// How many shards the manifest of a structure with a ledger counts.
    pub(crate) const SHARDS: u16 = 1;

    /// The ops that create the empty ledger of a new manifest.
    pub(crate) fn create_ops(name: &Name, manifest: &Manifest) -> Result<Batch> {
        Shards::<Entries>::create_ops(name, manifest)
    }

    /// The ledger that a manifest names. No round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the store's items are too small.
    pub(crate) fn new(store: &StoreRef, name: &Name, manifest: &Manifest, tuning: Tuning) -> Result<Ledger> {
        let shards = Arc::new(Shards::new(store, name, manifest, tuning)?);
        let combiner = Combiner::new(Writer::new(shards.clone()), COMBINED_BYTES_MAX);
        Ok(Ledger { store: store.clone(), shards, combiner, made: Mutex::default() })
    }

    /// How many pieces fit into it at the least: compacted, or where the store has no cas to compact it with, each registered by a write of its own.
    pub(crate) fn pieces_max(&self) -> usize {
        let has_cas = self.store.profile().cas;
        let piece_bytes = ENTRY_BYTES + 1 + if has_cas { 0 } else { engine::FRAME_BYTES_MAX };
        self.shards.elements_bytes_max() / piece_bytes
    }

    /// The eye on the manifest, for batches of the structure's own.
    pub(crate) fn vigil(&self) -> &Arc<Vigil> {
        &self.shards.vigil
    }

    /// The op that reads the ledger, for a batch of the caller's own; [`list`](Ledger::list) takes its reply.
    pub(crate) fn read_op(&self) -> Op {
        self.shards.read_op(0)
    }

    /// What was seen of the ledger so far: asked before a batch with [`read_op`](Ledger::read_op) is sent.
    pub(crate) fn seen(&self) -> Seen {
        self.shards.seen(0)
    }

    /// What the reply to [`read_op`](Ledger::read_op) lists. A ledger that has grown dirty is compacted beside the caller.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where there is none, [`ErrorKind::RolledBack`], those of the store.
    pub(crate) fn list(&self, reply: Result<Reply>, before: Seen) -> Result<List> {
        let item = match reply? {
            Reply::Item(item) => item,
            Reply::Miss => return Err(self.shards.lost(&[0])),
            other => return Err(crate::manifest::unexpected(&self.read_op(), &other)),
        };
        let reading = self.shards.reading(0, item, before);
        let folded = self.shards.state(&reading)?;
        let list = List::of(&folded.state)?;
        let is_dirty = self.shards.is_dirty(&reading, &folded);
        drop(folded);
        self.lock_made().retain(|made| !list.has_exactly(&made.piece));
        if is_dirty {
            self.shards.compact_behind(vec![reading]);
        }
        Ok(list)
    }

    /// Asked once this ledger has told [`Lost`](ErrorKind::Lost): true if it is gone, so that nobody finds a piece by it any more. Else only this life of the name
    /// is over, and the list may be there and name what was made. **Round trips: 0**, 1 in that case.
    pub(crate) async fn is_gone(&self, ctx: Ctx) -> bool {
        if !self.vigil().is_over() {
            return true;
        }
        let get = self.shards.op(0, |key| Op::get(key, Want::empty()));
        matches!(self.store.run(ctx, Batch::from_buf([get])).await.pop(), Some(Ok(Reply::Miss)))
    }

    /// Remembers pieces that are sent to be made, until they are [`listed`](Ledger::listed), a list that was read has them, or they are
    /// [`removed`](Ledger::removed). What this returns is to be dropped once the sending was answered.
    pub(crate) fn making(&self, pieces: Vec<Piece>) -> Making<'_> {
        let mut made = self.lock_made();
        made.extend(pieces.iter().map(|&piece| Made { piece, is_under_way: true }));
        let surplus = made.len().saturating_sub(MADE_MAX);
        made.drain(..surplus);
        drop(made);
        Making { ledger: self, pieces }
    }

    /// Forgets pieces: they are listed.
    pub(crate) fn listed(&self, pieces: &[Piece]) {
        self.lock_made().retain(|made| !pieces.contains(&made.piece));
    }

    /// Forgets [`orphans`](Ledger::orphans) that were removed, but for those that may have come behind the removal: the next one looks for them again.
    pub(crate) fn removed(&self, orphans: &[Made]) {
        let is_gone = |piece: &Piece| orphans.iter().any(|orphan| orphan.piece == *piece && !orphan.is_under_way);
        self.lock_made().retain(|made| !is_gone(&made.piece));
    }

    /// The pieces that this handle perhaps made and that nobody finds, since the list [is gone](Ledger::is_gone); none where it is not. **Round trips** as there.
    pub(crate) async fn orphans(&self, ctx: Ctx) -> Vec<Made> {
        let made = self.lock_made().clone();
        if made.is_empty() || !self.is_gone(ctx).await { Vec::new() } else { made }
    }

    fn lock_made(&self) -> MutexGuard<'_, Vec<Made>> {
        // A panic while it was held (an allocation failed) leaves it whole.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is listed. **Round trips: 1.**
    ///
    /// # Errors
    /// As [`list`](Ledger::list).
    pub(crate) async fn read(&self, ctx: Ctx) -> Result<List> {
        let before = self.seen();
        let mut replies = self.vigil().run(ctx, Batch::from_buf([self.read_op()])).await;
        self.list(replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply())), before)
    }

    /// Lists pieces that were made. Listing one again changes nothing. **Round trips: 1.** Safe to cancel: what is under way is finished by
    /// the next caller.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where the ledger is gone, [`ErrorKind::Full`] where it has no room, those of the store. A lost reply is settled by
    /// reading; what stays open at the deadline is [`Effect::Unknown`].
    pub(crate) async fn register(&self, deadline: Instant, pieces: &[Piece]) -> Result<()> {
        self.exchange(deadline, pieces, &[]).await
    }

    /// Lists pieces, and removes entries, whatever became of their keys: in one write, where they do not fill several. Whoever reads meanwhile finds these or those,
    /// and never neither. **Round trips: 1.**
    ///
    /// # Errors
    /// Those of [`register`](Ledger::register).
    pub(crate) async fn exchange(&self, deadline: Instant, new: &[Piece], old: &[Piece]) -> Result<()> {
        let puts = new.iter().map(|piece| (Action::Put, piece));
        let changes: Vec<_> = puts.chain(old.iter().map(|piece| (Action::Remove, piece))).collect();
        for changes in changes.chunks(ENTRIES_A_WRITE) {
            let mut elements = Vec::with_capacity(changes.len() * (ENTRY_BYTES + 1));
            for &(action, piece) in changes {
                engine::put_element(&mut elements, action, &piece.encode());
            }
            let write = Write { parts: vec![Part { shard: 0, elements }], deadline };
            let left = deadline.saturating_duration_since(ambient::now());
            let outcomes = self.combiner.submit_within(write, left).await?;
            for (_, outcome) in outcomes.iter() {
                outcome.clone().map_err(described)?;
            }
        }
        self.vigil().check()
    }

    /// Removes entries of pieces that are past their life, of those given. An entry goes only once its key is gone: while it is
    /// there, somebody's clock says otherwise. **Round trips: 2**, 1 where nothing is gone; more where they fill several batches.
    ///
    /// On a store whose items live for ever, the keys are deleted here. There a clock that is wrong removes what others still want.
    ///
    /// # Errors
    /// Those of [`register`](Ledger::register).
    pub(crate) async fn trim(
        &self,
        deadline: Instant,
        expired: &[Piece],
        key_of: impl Fn(&Piece) -> Result<Key>,
    ) -> Result<()> {
        let ctx = Ctx { deadline: Some(deadline) };
        let profile = self.store.profile();
        let mut gone = Vec::new();
        for part in expired.chunks(profile.batch_ops_max) {
            let op = |key| match profile.ttl {
                larder_core::TtlSupport::None => Op::delete(key),
                _ => Op::get(key, Want::empty()),
            };
            let ops: Result<Batch> = part.iter().map(|piece| Ok(op(key_of(piece)?))).collect();
            let replies = self.store.run(ctx, ops?).await;
            let is_gone = |reply: &Result<Reply>| matches!(reply, Ok(Reply::Miss | Reply::Deleted));
            gone.extend(part.iter().zip(&replies).filter(|(_, reply)| is_gone(reply)).map(|(piece, _)| *piece));
        }
        self.exchange(deadline, &[], &gone).await
    }
}

/// The engine's words for a full value are those of a set.
fn described(error: Error) -> Error {
    if error.kind() != ErrorKind::Full {
        return error;
    }
    let detail = "the list of its pieces has no room for another: keep it for a shorter time, or in larger pieces";
    Error::new(ErrorKind::Full, detail).effect(error.known_effect()).source(error)
}

impl List {
    fn of(listed: &Distinct<'_>) -> Result<List> {
        let pieces: Result<Vec<Piece>> = listed.0.iter().map(|entry| Piece::decode(entry)).collect();
        let mut pieces = pieces?;
        pieces.sort_unstable();
        Ok(List(pieces))
    }

    /// All pieces, in order.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The pieces whose number is in `first..=last`, in order; none where the range is inverted.
    pub(crate) fn between(&self, first: u64, last: u64) -> &[Piece] {
        let from = self.0.partition_point(|piece| piece.number < first);
        let to = self.0.partition_point(|piece| piece.number <= last);
        self.0.get(from..to).unwrap_or(&[])
    }

    /// The incarnations that are listed of one part; more than one where it was lost and made again.
    pub(crate) fn incarnations(&self, number: u64, part: u16) -> &[Piece] {
        let from = self.0.partition_point(|piece| (piece.number, piece.part) < (number, part));
        let to = self.0.partition_point(|piece| (piece.number, piece.part) <= (number, part));
        &self.0[from..to]
    }

    /// True if any incarnation of the part is listed.
    pub(crate) fn has(&self, number: u64, part: u16) -> bool {
        !self.incarnations(number, part).is_empty()
    }

    /// True if this very incarnation is listed.
    pub(crate) fn has_exactly(&self, piece: &Piece) -> bool {
        self.0.binary_search(piece).is_ok()
    }
}

/// The pieces that a structure's ledger lists, for dropping it; none where the ledger is gone: what it listed then ends with
/// its own life. **Round trips: 1.**
///
/// # Errors
/// Those of the store, and [`ErrorKind::LayoutMismatch`].
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Vec<Piece>> {
    Ok(pieces_and_token(store, ctx, name, manifest).await?.0)
}

/// The same, and the ledger's token: as long as it has that, nobody has listed more.
///
/// # Errors
/// As [`pieces`].
pub(crate) async fn pieces_and_token(
    store: &StoreRef,
    ctx: Ctx,
    name: &Name,
    manifest: &Manifest,
) -> Result<(Vec<Piece>, Option<Cas>)> {
    let key = manifest.data_key(name, 0)?;
    let want = if store.profile().cas { Want::VALUE | Want::CAS } else { Want::VALUE };
    let reply = store.run(ctx, Batch::from_buf([Op::get(key.clone(), want)])).await.pop();
    let Some(item) = reply.unwrap_or_else(|| Err(larder_core::ext::no_reply()))?.into_item() else {
        return Ok((Vec::new(), None));
    };
    let place = engine::Place { generation: manifest.generation, shard: 0 };
    let folded = engine::Value::parse(&item.value, place).and_then(|value| value.fold(Distinct::default()));
    let list = folded.and_then(|folded| List::of(&folded.state)).map_err(|error| error.key(&key))?;
    Ok((list.0, item.cas))
}

/// How many bytes of a ledger a compaction would save.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are none.
pub(crate) fn stale_bytes(bytes: &[u8], generation: u64, now_s: u32) -> Result<usize> {
    let folded = engine::Value::parse(bytes, engine::Place { generation, shard: 0 })?.fold(Distinct::default())?;
    Ok(bytes.len().saturating_sub(folded.live_bytes(now_s)))
}

/// How long a piece is kept in the store after nobody is to read it any more: so far may clocks disagree before a piece ends under a
/// reader who still wants it.
pub(crate) const CLOCKS_APART_MAX: Duration = Duration::from_secs(5 * 60);

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
