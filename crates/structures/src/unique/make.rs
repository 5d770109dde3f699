//! Making a period: its shards, then its head, then its entry in the ledger; and forgetting one.
//!
//! | step | what a crash after it leaves |
//! |---|---|
//! | plan it in the ledger (where nothing expires) | an entry that says which keys may be there |
//! | create every shard, empty | shards that nobody reads; they expire, or the plan names them to whoever drops the structure |
//! | add the head: of several that race one wins, the others remove their shards | a period that is there; the next writer enters it in its maker's place |
//! | enter it in the ledger, and its plan with it | a period whose loss is told from now on, and whose shards are found though the head is gone |
//! | look at head and ledger again | the same; two lives that were made of one period are both listed by now |
//!
//! A visitor is counted after the last step. So a shard that is missing was lost, and never was not there yet.
//!
//! # Forgetting one
//! | step | what a crash after it leaves |
//! |---|---|
//! | read head and ledger: which lives the period has, of any maker | nothing |
//! | enter each as being forgotten, with its shards, in place of its other entries | a period that is told to be lost, but to who has it open; it may be forgotten again |
//! | delete the shards, and the head by its token | the same, to all |
//! | enter each as forgotten, in place of that | nothing: the period is as one that nobody came in |
//!
//! So nobody begins another life of a period while anybody may add to the one before, and that is void for ever, whatever comes of it late: a head of it that stands
//! counts as none, and the next one takes its place by its token; an entry of it is passed over; a maker who finds that his own was forgotten before he had
//! entered it removes his shards and begins anew. Should he die before that, the entry names them to the next who forgets the period, and to whoever drops the
//! structure; of a life that had its head or its entry no shard comes late, and the entry names none.
//!
//! These entries end with their periods; where nothing expires they stay, at 19 bytes a life. Of those that name no shards 1,024 stay, of the last
//! periods: what comes late of one that is not known any more is told as a loss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Reply, Result, Want};

use super::core::{
    Core, Day, FORGETTING, FORGOTTEN, Look, MADE, Void, entry, is_forgotten, one, period_of, planned_shards,
};
use super::layout::{self, Head, Members, PERIOD_MAX, Precision};
use super::native::owned_set;
use super::sizing;
use crate::ids::random_id;
use crate::ledger::{self, List, Piece};
use crate::manifest::{Manifest, unexpected};
use crate::name::Name;
use crate::owned::{self, Owned};
use crate::registry::Pieces;
use crate::retry::Backoff;

/// How often making is tried where a reply is lost, or others get in between.
const TRIES_MAX: usize = 8;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How many entries of lives that were forgotten, and of which no shard comes late, stay in the ledger, beside those of the period that is forgotten.
const FORGOTTEN_MAX: usize = 1_024;

/// A life of a period that is to be forgotten.
#[derive(Default)]
struct Life {
    shards: u32,
    /// All its shards were made: none comes late.
    is_whole: bool,
}

impl Core {
    /// A period, made if nobody came in it yet. **Round trips: 0** for one that is known, 1 to find it, 7 to make it (6 where periods expire), and more where
    /// its shards or those of the period before fill several batches.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for one whose head is gone, and those of the store; what was made without success is nobody's.
    pub(super) async fn open_day(&self, deadline: Instant, period: u64) -> Result<Arc<Day>> {
        if let Some(day) = self.known(period) {
            return Ok(day);
        }
        let ctx = Ctx { deadline: Some(deadline) };
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut last = None;
        for _ in 0..TRIES_MAX {
            match self.try_open(deadline, ctx, period).await {
                Ok(Some(day)) => return Ok(day),
                Ok(None) => {}
                Err(error) if is_passing(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        let conflict = || Error::new(ErrorKind::Conflict, format!("period {period} keeps being made and dropped"));
        // Nobody is counted before the period is there.
        Err(last.unwrap_or_else(conflict).effect(Effect::NotApplied))
    }

    /// `None` where others were first: look again.
    async fn try_open(&self, deadline: Instant, ctx: Ctx, period: u64) -> Result<Option<Arc<Day>>> {
        let Look { day: found, list, void } = self.look(ctx, period).await?;
        let is_there = found.is_some();
        let day = match found {
            Some(day) if list.has_exactly(&day.piece()) => return Ok(Some(day)),
            Some(day) => day,
            None => {
                self.trim(deadline, &list).await;
                let Some(made) = self.make(deadline, period, &list, void).await? else { return Ok(None) };
                made
            }
        };
        if let Err(error) = self.ledger.register(deadline, &[day.piece(), day.plan()]).await {
            // Where only this life of the name is over, the list may be there, and name it.
            if !is_there && error.kind() == ErrorKind::Lost && self.ledger.is_gone(ctx).await {
                // It was dropped meanwhile: nobody would find what was made.
                self.delete_shards(ctx, &day.head, day.head.shards).await;
                _ = self.store.run(ctx, Batch::from_buf([Op::delete(self.head_key(period)?)])).await;
            }
            return Err(error);
        }
        // The head may have been thrown away before the ledger had it, and another have made the period again: then each would count in a life of its own. The
        // later of two to enter theirs reads both here, and a head that is seen after its entry cannot be made again unnoticed.
        let Look { day: found, list, .. } = self.look(ctx, period).await?;
        if is_forgotten(&list, &day.piece()) {
            // Before it was listed: who forgot it may have deleted its shards before they were made.
            self.delete_shards(ctx, &day.head, day.head.shards).await;
        }
        Ok(found.filter(|day| list.has_exactly(&day.piece())))
    }

    /// Makes a period, but for its entry in the ledger; its head takes the place of one that is void. `None` where others were first, or nothing is known of the head:
    /// look again.
    async fn make(&self, deadline: Instant, period: u64, list: &List, void: Option<Void>) -> Result<Option<Arc<Day>>> {
        let ctx = Ctx { deadline: Some(deadline) };
        let expected = self.forecast(ctx, period).await?;
        let incarnation = random_id();
        // The lower half names its keys.
        if list.pieces().iter().any(|piece| piece.incarnation as u32 == incarnation as u32) {
            return Ok(None);
        }
        let head = sizing::head(&self.params, expected, incarnation, self.room());
        let day = Arc::new(Day { period, head });
        let is_planned = self.params.keep_ms == 0;
        if is_planned {
            self.ledger.register(deadline, &[day.plan()]).await?;
        }
        let created = self.create_shards(ctx, &day).await;
        let may_come_late = created.is_err();
        let made = match created {
            Ok(()) => self.add_head(ctx, &day, void).await,
            Err(error) => Err(error),
        };
        let is_ours = match &made {
            Ok(is_ours) => *is_ours,
            // It may have landed.
            Err(error) => error.is_unknown(),
        };
        if !is_ours {
            self.delete_shards(ctx, &head, head.shards).await;
            if is_planned && !may_come_late {
                let key = self.shard_key(&head, 0)?;
                _ = self.ledger.trim(deadline, &[day.plan()], |_| Ok(key.clone())).await;
            }
        }
        Ok(made?.then_some(day))
    }

    /// How many are expected in a period: by how many came in the one before. **Round trips: 1 to 2**, and as many as its shards take; 0 where it is over.
    ///
    /// # Errors
    /// Those of the store. A period before that was lost, is over, or has another program's bytes in it tells nothing, and is no error.
    pub(super) async fn forecast(&self, ctx: Ctx, period: u64) -> Result<u64> {
        let before = match period.checked_sub(1).filter(|&before| self.is_kept(before)) {
            Some(before) => match self.count(ctx, before).await {
                Ok(count) => Some(count.visitors),
                Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::LayoutMismatch) => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        self.vigil().check()?;
        Ok(sizing::forecast(before, self.params.expected))
    }

    /// # Errors
    /// With the effect "not applied": nobody can know of them yet.
    async fn create_shards(&self, ctx: Ctx, day: &Day) -> Result<()> {
        let shards: Vec<u32> = (0..day.head.shards).collect();
        for part in shards.chunks(self.ops_a_batch()) {
            let adds = part.iter().map(|&shard| self.add_op(day, shard)).collect::<Result<Batch>>()?;
            for (op, reply) in adds.iter().zip(self.store.run(ctx, adds.clone()).await) {
                let reply = reply.map_err(|error| error.effect(Effect::NotApplied))?;
                // Another incarnation has other keys.
                match owned::is_made(op, &reply) {
                    Ok(true) => {}
                    Err(error) if error.kind() != ErrorKind::LayoutMismatch => return Err(error),
                    _ => {
                        let detail = "another period, or another program, has keys of this name";
                        return Err(Error::new(ErrorKind::Conflict, detail).key(&op.key));
                    }
                }
            }
        }
        Ok(())
    }

    fn add_op(&self, day: &Day, shard: u32) -> Result<Op> {
        let key = self.shard_key(&day.head, shard)?;
        if self.is_native() {
            return Ok(self.make_set_op(day, key));
        }
        let value = match self.params.precision {
            Precision::Sketch { .. } => layout::sketch_blob(&[], 0, 0),
            _ => Members::default().encode(day.head.span(shard), 0, day.head.padded_bytes as usize),
        };
        Ok(Op::put(key, PutMode::Add, value, self.life(day.period)))
    }

    /// Adds the head, or puts it in the place of one that is void. True if it is ours that stands, false if another's does.
    ///
    /// # Errors
    /// Unknown exactly where ours may have landed, or may yet.
    async fn add_head(&self, ctx: Ctx, day: &Day, void: Option<Void>) -> Result<bool> {
        let key = self.head_key(day.period)?;
        let mode = void.map_or(PutMode::Add, |void| PutMode::Cas(void.cas));
        let add = Op::put(key.clone(), mode, day.head.encode(), self.life(day.period));
        let doubt = match one(self.store.run(ctx, Batch::from_buf([add.clone()])).await) {
            Ok(Reply::Stored) => return Ok(true),
            Ok(Reply::NotStored) => None,
            // It is not the void one any more.
            Ok(Reply::Exists | Reply::Miss) if void.is_some() => None,
            Ok(other) => return Err(unexpected(&add, &other)),
            Err(error) if error.is_unknown() => Some(error),
            Err(error) => return Err(error),
        };
        let Some(doubt) = doubt else { return Ok(false) };
        let found = one(self.store.run(ctx, Batch::from_buf([Op::get(key, Want::VALUE)])).await);
        match found.map(Reply::into_item) {
            Ok(Some(item)) => match Head::decode(&item.value) {
                Ok(head) if head.incarnation == day.head.incarnation => Ok(true),
                // The void one stands yet: ours may take its place.
                Ok(head) if void.is_some_and(|void| void.incarnation == head.incarnation) => Err(doubt),
                _ => Ok(false),
            },
            _ => Err(doubt),
        }
    }

    /// Removes shards. What cannot be removed expires, or is planned in the ledger.
    async fn delete_shards(&self, ctx: Ctx, head: &Head, shards: u32) {
        let (shards, profile): (Vec<u32>, _) = ((0..shards).collect(), self.store.profile());
        for part in shards.chunks(self.ops_a_batch()) {
            let remove = |&shard| Ok(owned_shard(self.is_native(), self.shard_key(head, shard)?).remove_op(&profile));
            let deletes: Result<Batch> = part.iter().map(remove).collect();
            if let Ok(deletes) = deletes {
                _ = self.store.run(ctx, deletes).await;
            }
        }
    }

    /// Forgets a period: all lives of it that are there. **Round trips: 4**, and more where their shards fill several batches; 1 where there are none.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] where another program's value stood under a shard's key: it is left, and the period is forgotten. Those of the store; then it says
    /// [`ErrorKind::Lost`], and can be forgotten again.
    pub(super) async fn remove(&self, deadline: Instant, period: u64) -> Result<()> {
        let ctx = Ctx { deadline: Some(deadline) };
        self.forget(period);
        let (head, list) = self.read(ctx, period).await?;
        let is_left = |piece: &&Piece| period_of(piece) == period && piece.part <= FORGOTTEN && !is_spent(piece);
        let listed: Vec<Piece> = list.pieces().iter().filter(is_left).copied().collect();
        let lives = lives(&listed, head.as_ref().map(|(day, _)| day.head));
        if lives.is_empty() {
            return Ok(());
        }
        let begun: Vec<Piece> = lives.iter().map(|(&id, life)| entry(period, life.shards, FORGETTING, id)).collect();
        // What says that it was forgotten stays.
        let made: Vec<Piece> = listed.iter().filter(|piece| piece.part < FORGETTING).copied().collect();
        self.ledger.exchange(deadline, &begun, &made).await?;
        let foreign = self.delete_lives(ctx, period, &lives, head.and_then(|(_, cas)| cas)).await?;
        let late = |life: &Life| if life.is_whole { 0 } else { life.shards };
        let done: Vec<Piece> = lives.iter().map(|(&id, life)| entry(period, late(life), FORGOTTEN, id)).collect();
        let mut old: Vec<Piece> = listed.into_iter().chain(begun).filter(|piece| !done.contains(piece)).collect();
        if self.store.profile().delete_cas {
            // Else the heads stand yet, and are found by them.
            old.extend(surplus(&list, period));
        }
        self.ledger.exchange(deadline, &done, &old).await?;
        foreign.map_or(Ok(()), Err)
    }

    /// Deletes the shards of lives, and the head by its token, where the store can. The error for what is another program's, which is left. **Round trips: 1** for every
    /// 4,096 shards.
    ///
    /// # Errors
    /// Those of the store.
    async fn delete_lives(
        &self,
        ctx: Ctx,
        period: u64,
        lives: &BTreeMap<u64, Life>,
        head: Option<Cas>,
    ) -> Result<Option<Error>> {
        let profile = self.store.profile();
        let mut deletes = Vec::new();
        for (&incarnation, life) in lives {
            let head = Head { incarnation, expected: 0, shards: life.shards, bits: 64, padded_bytes: 0 };
            let keys = self.shard_keys(&head, 0..life.shards)?;
            deletes.extend(keys.into_iter().map(|key| owned_shard(self.is_native(), key).remove_op(&profile)));
        }
        if let Some(cas) = head.filter(|_| profile.delete_cas) {
            deletes.push(Op::delete_if(self.head_key(period)?, cas));
        }
        let mut foreign = None;
        for part in deletes.chunks(self.ops_a_batch()) {
            for (op, reply) in part.iter().zip(self.store.run(ctx, part.iter().cloned().collect()).await) {
                let removed = reply.and_then(|reply| match reply {
                    // Another head stands by now.
                    Reply::Exists if op.cas().is_some() => Ok(false),
                    reply => owned::is_removed(op, &reply),
                });
                match removed.map_err(|error| error.effect(Effect::Unknown)) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::LayoutMismatch => _ = foreign.get_or_insert(error),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(foreign)
    }
}

/// The lives of a period, by their incarnations: those that entries are of, and the one whose head stands.
fn lives(listed: &[Piece], head: Option<Head>) -> BTreeMap<u64, Life> {
    let mut lives: BTreeMap<u64, Life> = BTreeMap::new();
    for piece in listed {
        let life = lives.entry(piece.incarnation).or_default();
        life.shards = life.shards.max(planned_shards(piece));
        life.is_whole |= piece.part == MADE;
    }
    if let Some(head) = head {
        lives.insert(head.incarnation, Life { shards: head.shards, is_whole: true });
    }
    lives
}

/// True for the entry of a life that was forgotten and of which no shard comes late: there is nothing left to do about it.
fn is_spent(piece: &Piece) -> bool {
    piece.part == FORGOTTEN && planned_shards(piece) == 0
}

/// Entries of lives that are spent, of other periods, where there are too many: those of the first ones, with what came of them late.
fn surplus(list: &List, period: u64) -> Vec<Piece> {
    // Their numbers are those of the periods.
    let is_of_another = |piece: &&Piece| is_spent(piece) && piece.number != period;
    let life = |piece: &Piece| (period_of(piece), piece.incarnation);
    let spent: Vec<(u64, u64)> = list.pieces().iter().filter(is_of_another).map(life).collect();
    let first: BTreeSet<(u64, u64)> = spent[..spent.len().saturating_sub(FORGOTTEN_MAX)].iter().copied().collect();
    // An entry that says that one was made, without this that says that it was forgotten, were a loss.
    list.pieces().iter().filter(|piece| first.contains(&life(piece))).copied().collect()
}

/// True where another try may fare better.
fn is_passing(error: &Error) -> bool {
    error.is_unknown() || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict)
}

fn owned_shard(is_native: bool, key: Key) -> Owned {
    if is_native { owned_set(key) } else { Owned::item(key) }
}

/// The keys that entries of the ledger stand for: heads last, so that a drop that stops midway can be begun again. **Round trips: 1** where there are
/// any.
async fn keys_of(
    store: &larder_core::StoreRef,
    ctx: Ctx,
    name: &Name,
    manifest: &Manifest,
    entries: &[Piece],
) -> Result<Vec<Owned>> {
    let is_native = super::is_native(manifest);
    let known = |piece: &&Piece| period_of(piece) <= PERIOD_MAX;
    let mut heads: Vec<Key> = Vec::new();
    // Whoever planned a period may have made its head, and ended before he entered that.
    let periods: BTreeSet<u64> = entries.iter().filter(known).map(period_of).collect();
    for period in periods {
        heads.push(manifest.data_key(name, layout::head_index(period))?);
    }
    let mut shards: Vec<(u64, u32)> = Vec::new();
    for part in heads.chunks(store.profile().batch_ops_max.min(4_096)) {
        let gets = part.iter().map(|key| Op::get(key.clone(), Want::VALUE)).collect();
        for reply in store.run(ctx, gets).await {
            if let Some(Ok(head)) = reply?.into_item().map(|item| Head::decode(&item.value)) {
                shards.push((head.incarnation, head.shards));
            }
        }
    }
    let planned = entries.iter().filter(known).filter(|piece| piece.part != MADE);
    shards.extend(planned.map(|piece| (piece.incarnation, planned_shards(piece))));
    shards.sort_unstable();
    shards.dedup();
    let mut keys = Vec::new();
    for (incarnation, count) in shards {
        let head = Head { incarnation, expected: 0, shards: count, bits: 64, padded_bytes: 0 };
        for shard in 0..count {
            keys.push(owned_shard(is_native, manifest.data_key(name, head.index(shard))?));
        }
    }
    keys.extend(heads.into_iter().map(Owned::item));
    Ok(keys)
}

/// The keys of the periods that the ledger lists, for dropping them, and its token. **Round trips: 2.** Of a period that expires and whose head is gone, the shards end by
/// themselves.
///
/// # Errors
/// As [`ledger::pieces`].
pub(super) async fn pieces(
    store: &larder_core::StoreRef,
    ctx: Ctx,
    name: &Name,
    manifest: &Manifest,
) -> Result<Pieces> {
    let (listed, cas) = ledger::pieces_and_token(store, ctx, name, manifest).await?;
    Ok(Pieces { keys: keys_of(store, ctx, name, manifest, &listed).await?, tokens: vec![cas] })
}

#[cfg(test)]
#[path = "make_tests.rs"]
mod tests;
