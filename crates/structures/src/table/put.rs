//! Putting an entry, and removing it.
//!
//! See the [module](super) for the order of the steps, and what a crash after each leaves behind.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use larder_core::observe::Phase;
use larder_core::{
    Batch, Effect, Error, ErrorKind, Item, Op, PutMode, Replies, Reply, Result, Ttl, Verb, Want, ambient,
};

use super::layout::{self, Entry, Note, Says, Spot, Stamp};
use super::list::{Effort, Found, Inner, ROUNDS_MAX};
use crate::events;
use crate::ids::random_id;

/// A put under way.
struct Put<'p> {
    key: &'p [u8],
    value: &'p [u8],
    spot: Spot,
    item_key: larder_core::Key,
    stamp: Stamp,
    ttl: Ttl,
    expiry_s: u32,
}

/// What became of one try.
enum Tried {
    /// It is in an entry that was there. Its item as it was read, without the value unless that was asked for.
    Joined(Option<Found>),
    /// It made the entry.
    Made(u64),
    /// It took the place of this incarnation.
    Replaced { made: u64, gone: u64 },
    /// A later put of this handle is in the entry, so it was overwritten before it came.
    Overtaken(Found),
    /// It did nothing, and never will.
    Nothing,
    /// The entry is there, and has no room for a second value.
    NoRoom,
    /// Its add may make the entry yet, as this incarnation, whatever became of its append.
    Open { made: u64, error: Error },
}

impl Inner {
    pub(super) async fn put(self: &Arc<Self>, key: &[u8], value: &[u8], ttl: Ttl) -> Result<()> {
        let mut effort = self.effort()?;
        let spot = self.spot(key);
        let item_key = self.item_key(&spot)?;
        let put = Put { key, value, item_key, spot, stamp: self.stamp(), ttl, expiry_s: self.expiry_s(ttl) };
        for _ in 0..ROUNDS_MAX {
            let since = ambient::now();
            let tried = match self.try_put(&mut effort, &put).await {
                Ok(Tried::Open { made, error }) => self.look_for(&mut effort, &put, Some(made), error).await?,
                Err(error) if error.is_unknown() => self.look_for(&mut effort, &put, None, error).await?,
                Err(error) => {
                    effort.again(self.subject(), error).await?;
                    continue;
                }
                Ok(tried) => tried,
            };
            if let Tried::Joined(_) = &tried {
                self.tend_behind(put.spot.shard, self.now_s());
            }
            let tried = match tried {
                Tried::Overtaken(later) if !self.stands(&mut effort, &put, &later).await? => Tried::Nothing,
                tried => tried,
            };
            match tried {
                Tried::Overtaken(_) => return self.shards.vigil.check(),
                Tried::Nothing | Tried::NoRoom => {
                    events::conflict(self.subject());
                    effort.pause().await;
                }
                Tried::Made(incarnation) => return self.list_made(&mut effort, &put, incarnation, since).await,
                Tried::Replaced { made, gone } => {
                    let notes = [self.listed_note(&put, made), Note::Gone { incarnation: gone }];
                    self.note(effort.deadline, put.spot.shard, &notes).await.map_err(unknown)?;
                    self.check_late(&mut effort, &put.spot, key, made, since).await.map_err(unknown)?;
                    self.flag(&effort, key, made).await;
                    return self.shards.vigil.check();
                }
                Tried::Open { error, .. } => return Err(error),
                Tried::Joined(None) => return self.gone_again(&mut effort, &put).await,
                Tried::Joined(Some(found)) => return self.joined(&mut effort, &put, found).await,
            }
            if effort.is_over() {
                break;
            }
        }
        let detail = "others wrote the entry at each try to put it";
        Err(Error::new(if effort.is_over() { ErrorKind::Timeout } else { ErrorKind::Conflict }, detail))
    }

    fn listed_note<'p>(&self, put: &Put<'p>, incarnation: u64) -> Note<'p> {
        Note::Listed { incarnation, expiry_s: put.expiry_s, key: put.key }
    }

    async fn try_put(self: &Arc<Self>, effort: &mut Effort, put: &Put<'_>) -> Result<Tried> {
        if self.has_lives {
            return self.try_put_for(effort, put).await;
        }
        match self.try_append(effort, put).await? {
            Tried::NoRoom => self.try_rewrite(effort, put).await,
            tried => Ok(tried),
        }
    }

    /// In a table without lives: joins the value to the entry, else makes it. Nothing that others wrote is overwritten blindly,
    /// so an entry that says it is not listed goes on saying so.
    async fn try_append(self: &Arc<Self>, effort: &mut Effort, put: &Put<'_>) -> Result<Tried> {
        let frame = layout::value_frame(put.stamp, &put.spot, put.value);
        let made = random_id();
        let mut want = Want::FLAGS;
        // Now and then a look at the whole entry, so that one that is only ever put is compacted, too.
        if fastrand::u8(0..if frame.len() < 1024 { 8 } else { 4 }) == 0 {
            want |= Want::VALUE | Want::CAS;
        }
        let append = Op::put(put.item_key.clone(), PutMode::Append, frame, Ttl::Never);
        let mut batch = Batch::new();
        let carried = self.compaction_with(&put.item_key).map(|compaction| {
            let (op, shard) = self.begun(compaction);
            batch.push(op);
            shard
        });
        batch.extend([append, self.add_op(put, made), Op::get(put.item_key.clone(), want)]);
        let mut replies = self.run(effort.ctx(), batch).await.into_iter();
        if let Some(shard) = carried {
            self.shards.tell_reply(shard, &next(&mut replies));
        }
        let (append, add) = (next(&mut replies), next(&mut replies));
        match (append, add) {
            // Held back between the two, it would make the entry again once that is removed.
            (Ok(Reply::Stored) | Err(_), Err(error)) if error.is_unknown() => Ok(Tried::Open { made, error }),
            (Ok(Reply::Stored), _) => {
                // Unread: it is looked at below. A miss: it was removed after that.
                let found = match self.found(&put.spot, put.key, next(&mut replies)) {
                    Err(error) if error.kind() != ErrorKind::Conflict => {
                        self.read(effort, &put.spot, put.key).await.map_err(unknown)?
                    }
                    found => found?,
                };
                Ok(Tried::Joined(found))
            }
            (Ok(Reply::NotStored), Ok(Reply::Stored)) => Ok(Tried::Made(made)),
            (Ok(Reply::NotStored), Ok(Reply::NotStored)) => Ok(Tried::NoRoom),
            (Err(error), Ok(Reply::NotStored)) | (Ok(Reply::NotStored), Err(error)) => Err(error),
            (Err(error), Err(_)) => Err(error),
            (Err(error), Ok(_)) => Err(error.effect(Effect::Unknown)),
            (Ok(other), _) => Err(Inner::strange(&put.item_key, &other)),
        }
    }

    /// Writes an entry anew that has no room for another value: with this one alone.
    async fn try_rewrite(&self, effort: &mut Effort, put: &Put<'_>) -> Result<Tried> {
        let Some(found) = self.read(effort, &put.spot, put.key).await? else { return Ok(Tried::Nothing) };
        let frame = layout::value_frame(put.stamp, &put.spot, put.value);
        let written = self.entry(put.key, &found.item)?.rewritten(&frame, self.now_s())?;
        let flags = put.spot.flags(found.is_listed);
        self.shards.tell(put.spot.shard, Phase::Begun);
        let rewritten = self.cas(effort, put, &found, written, flags).await;
        self.shards.tell(put.spot.shard, phase(&rewritten));
        match rewritten? {
            true => Ok(Tried::Joined(Some(Found { item: Item::default(), ..found }))),
            false => Ok(Tried::Nothing),
        }
    }

    /// In a table with lives: every put makes the entry anew, under its own incarnation, so that the list can name the life
    /// of each.
    async fn try_put_for(self: &Arc<Self>, effort: &mut Effort, put: &Put<'_>) -> Result<Tried> {
        let (since, made) = (ambient::now(), random_id());
        let batch = Batch::from_iter([self.add_op(put, made), Inner::get_op(put.item_key.clone())]);
        let mut replies = self.run(effort.ctx(), batch).await.into_iter();
        match next(&mut replies)? {
            Reply::Stored => return Ok(Tried::Made(made)),
            Reply::NotStored => {}
            other => return Err(Inner::strange(&put.item_key, &other)),
        }
        let Some(found) = self.found(&put.spot, put.key, next(&mut replies))? else { return Ok(Tried::Nothing) };
        let entry = self.entry(put.key, &found.item)?;
        if entry.last(put.stamp.writer) >= put.stamp.seq {
            // A later put of this handle came first, so this one was overwritten by it. To write it now would write nothing: the entry takes it
            // for a repeat, and keeps its incarnation.
            let is_own = entry.last(put.stamp.writer) == put.stamp.seq;
            drop(entry);
            return Ok(if is_own { Tried::Joined(Some(found)) } else { Tried::Overtaken(found) });
        }
        let gone = entry.incarnation;
        drop(entry);
        let was_listed = found.is_listed;
        let found = match was_listed {
            true => found,
            // The put itself has done nothing yet.
            false => match self.list_other(effort, put, gone).await {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(Tried::Nothing),
                Err(error) => return Err(error.effect(Effect::NotApplied)),
            },
        };
        let entry = self.entry(put.key, &found.item)?;
        let frame = layout::whole_frame(put.stamp, &put.spot, (made, put.expiry_s), put.key, put.value);
        let written = entry.rewritten(&frame, self.now_s())?;
        let replaced = self.cas(effort, put, &found, written, put.spot.flags(false)).await;
        if !was_listed && !matches!(replaced, Ok(true)) {
            // Its error is one of that other entry, not of this put.
            _ = self.check_late(effort, &put.spot, put.key, gone, since).await;
        }
        Ok(if replaced? { Tried::Replaced { made, gone } } else { Tried::Nothing })
    }

    /// Lists another put's entry, whose maker has not come to that, for good. The entry as it is then; `None` if it is another by now, or none.
    /// **Round trips: 3.**
    async fn list_other(&self, effort: &mut Effort, put: &Put<'_>, incarnation: u64) -> Result<Option<Found>> {
        // With what is left of its life, which is not to change.
        let Some(found) = self.read(effort, &put.spot, put.key).await? else { return Ok(None) };
        if self.entry(put.key, &found.item)?.incarnation != incarnation {
            return Ok(None);
        }
        if found.is_listed {
            return Ok(Some(found));
        }
        self.list_for_good(effort, &put.spot, put.key, found).await
    }

    /// Lists an entry for its maker: signs it first, so that its maker leaves it where it is, and no other takes its place before it is on the list, but
    /// where it is lost. The entry as it is then; `None` if it is another by now, or none. **Round trips: 2.**
    async fn list_for_good(&self, effort: &Effort, spot: &Spot, key: &[u8], found: Found) -> Result<Option<Found>> {
        let mut found = found;
        let entry = self.entry(key, &found.item)?;
        let incarnation = entry.incarnation;
        // None: it is about to be over, and no maker is so late.
        if let Some(sign) = self.sign_op(spot, &found, entry)? {
            let batch = Batch::from_iter([sign, Inner::get_op(self.item_key(spot)?)]);
            let mut replies = self.run(effort.ctx(), batch).await.into_iter();
            if next(&mut replies)? != Reply::Stored {
                return Ok(None);
            }
            let Some(signed) = self.found(spot, key, next(&mut replies))? else { return Ok(None) };
            found = signed;
        }
        let entry = self.entry(key, &found.item)?;
        if entry.incarnation != incarnation {
            return Ok(None);
        }
        let listed = Note::Listed { incarnation, expiry_s: entry.expiry_s, key };
        drop(entry);
        self.note(effort.deadline, spot.shard, &[listed]).await?;
        Ok(Some(found))
    }

    /// True if the later put that overtook this one, or what came after it, stays: false where its maker took it back, as the list refused it.
    async fn stands(self: &Arc<Self>, effort: &mut Effort, put: &Put<'_>, later: &Found) -> Result<bool> {
        if later.is_listed {
            return Ok(true);
        }
        let since = ambient::now();
        let incarnation = self.entry(put.key, &later.item)?.incarnation;
        if self.list_other(effort, put, incarnation).await.map_err(unknown)?.is_none() {
            return Ok(false);
        }
        self.check_late(effort, &put.spot, put.key, incarnation, since).await.map_err(unknown)?;
        self.flag(effort, put.key, incarnation).await;
        Ok(true)
    }

    /// The op that makes the entry, as one that is not listed.
    fn add_op(&self, put: &Put<'_>, incarnation: u64) -> Op {
        let frame = layout::whole_frame(put.stamp, &put.spot, (incarnation, put.expiry_s), put.key, put.value);
        let value = layout::new_entry(self.manifest.generation, &frame);
        let verb = Verb::Put { mode: PutMode::Add, value, flags: put.spot.flags(false), ttl: put.ttl };
        Op::new(put.item_key.clone(), verb)
    }

    /// True if it was written.
    async fn cas(&self, effort: &Effort, put: &Put<'_>, found: &Found, written: Bytes, flags: u32) -> Result<bool> {
        let cas = found.item.cas.ok_or_else(|| self.shards.unsupported())?;
        let op = Inner::cas_op(put.item_key.clone(), cas, written, flags, put.ttl);
        match next(&mut self.run(effort.ctx(), Batch::from_iter([op])).await.into_iter())? {
            Reply::Stored => Ok(true),
            Reply::Exists | Reply::Miss => Ok(false),
            other => Err(Inner::strange(&put.item_key, &other)),
        }
    }

    /// Looks what became of a put whose outcome is unknown. `made`: the incarnation that its add makes, where that may be under way yet.
    ///
    /// # Errors
    /// `error`, unless the put is there: it may have been removed already, or be on its way yet. A later put of the same handle says nothing of
    /// this one; nor does an entry that its append joined, of its add: that comes last, so nothing follows it alone.
    async fn look_for(&self, effort: &mut Effort, put: &Put<'_>, made: Option<u64>, error: Error) -> Result<Tried> {
        let Ok(Some(found)) = self.read(effort, &put.spot, put.key).await else { return Err(error) };
        let Ok(entry) = self.entry(put.key, &found.item) else { return Err(error) };
        let is_through = made.is_none_or(|made| made == entry.incarnation);
        if !is_through || entry.last(put.stamp.writer) != put.stamp.seq {
            return Err(error);
        }
        drop(entry);
        Ok(Tried::Joined(Some(found)))
    }

    /// After a put made the entry: lists its key.
    async fn list_made(
        self: &Arc<Self>,
        effort: &mut Effort,
        put: &Put<'_>,
        incarnation: u64,
        since: Instant,
    ) -> Result<()> {
        let note = self.listed_note(put, incarnation);
        match self.note(effort.deadline, put.spot.shard, &[note]).await {
            Ok(()) => {
                self.check_late(effort, &put.spot, put.key, incarnation, since).await.map_err(unknown)?;
                self.flag(effort, put.key, incarnation).await;
                self.shards.vigil.check()
            }
            Err(error) if error.is_unknown() => Err(error),
            // The list takes no more, or is gone: nobody shall find what is not listed.
            Err(error) => match self.undo(effort, put, incarnation).await {
                Ok(true) => Err(error),
                _ => Err(unknown(error)),
            },
        }
    }

    /// Removes the entry that a put made, if nobody else wrote to it or listed it: an equal value may be another's, who was told that it is there. False where it
    /// is another's by now, or gone: then others removed it, who were told so, or it is lost.
    async fn undo(&self, effort: &mut Effort, put: &Put<'_>, incarnation: u64) -> Result<bool> {
        let Some(found) = self.read(effort, &put.spot, put.key).await? else { return Ok(false) };
        let entry = self.entry(put.key, &found.item)?;
        let is_mine = entry.incarnation == incarnation && entry.is_all_of(put.stamp.writer, put.stamp.seq);
        let is_mine = is_mine && !found.is_listed && self.store.profile().delete_cas;
        let Some(cas) = found.item.cas.filter(|_| is_mine) else { return Ok(false) };
        let delete = Batch::from_iter([Op::delete_if(put.item_key.clone(), cas)]);
        let reply = next(&mut self.run(effort.ctx(), delete).await.into_iter())?;
        Ok(reply == Reply::Deleted)
    }

    /// After a put joined an entry: sees to it that its key is listed, if its maker did not come to that.
    async fn joined(self: &Arc<Self>, effort: &mut Effort, put: &Put<'_>, found: Found) -> Result<()> {
        if found.is_listed {
            if !found.item.value.is_empty() {
                self.compact_with_next(put.key, &found);
            }
            return self.shards.vigil.check();
        }
        for _ in 0..ROUNDS_MAX {
            let since = ambient::now();
            let found = self.read(effort, &put.spot, put.key).await.map_err(unknown)?;
            let Some(found) = found else { return self.gone_again(effort, put).await };
            if found.is_listed {
                return self.shards.vigil.check();
            }
            let Some(incarnation) = self.list_joined(effort, put, found).await.map_err(unknown)? else {
                events::conflict(self.subject());
                effort.pause().await;
                continue;
            };
            self.check_late(effort, &put.spot, put.key, incarnation, since).await.map_err(unknown)?;
            self.flag(effort, put.key, incarnation).await;
            return self.shards.vigil.check();
        }
        Err(unknown(Error::new(ErrorKind::Conflict, "others wrote the entry at each try to list it")))
    }

    /// Lists the entry that a put joined, or the one that is there by now. The incarnation that is listed; `None` if it is another once more. **Round trips: 1**, 2 where it is another.
    async fn list_joined(&self, effort: &Effort, put: &Put<'_>, found: Found) -> Result<Option<u64>> {
        let entry = self.entry(put.key, &found.item)?;
        let Entry { incarnation, expiry_s, .. } = entry;
        // What this put is in, its maker does not take back any more.
        let is_joined = entry.last(put.stamp.writer) == put.stamp.seq;
        drop(entry);
        if !is_joined {
            return Ok(self.list_for_good(effort, &put.spot, put.key, found).await?.map(|_| incarnation));
        }
        let note = Note::Listed { incarnation, expiry_s, key: put.key };
        self.note(effort.deadline, put.spot.shard, &[note]).await?;
        Ok(Some(incarnation))
    }

    /// After a put joined an entry that is gone by now: removed, or lost. Where the list names the key, that is told to whoever misses it. **Round trips: 1**, 0 on a store that
    /// cannot lose it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`], of unknown effect, where it may have been lost before it was listed: then nobody is told.
    async fn gone_again(&self, effort: &mut Effort, put: &Put<'_>) -> Result<()> {
        if !self.is_lossless() {
            let says = self.ask_of_one(effort, &put.spot, put.key).await.map_err(unknown)?;
            if !matches!(says, Says::Listed { .. } | Says::Mortal { .. }) {
                return Err(unknown(unlisted()));
            }
        }
        self.shards.vigil.check()
    }

    /// After an incarnation was noted *listed* that was there at `since`: had it been removed meanwhile, and the list forgotten that it
    /// is gone, the note brought it back. **Round trips: 0** where little time passed, else those of [`check_listed`](Inner::check_listed).
    pub(super) async fn check_late(
        self: &Arc<Self>,
        effort: &mut Effort,
        spot: &Spot,
        key: &[u8],
        incarnation: u64,
        since: Instant,
    ) -> Result<()> {
        match ambient::now().duration_since(since) <= super::LISTING_MAX {
            true => Ok(()),
            false => self.check_listed(effort, spot, key, incarnation).await,
        }
    }

    /// The same, however little time passed. **Round trips: 1**; 2 where the incarnation is not there any more, and 3 more, 6 at the most, where another is there that was listed before it.
    async fn check_listed(
        self: &Arc<Self>,
        effort: &mut Effort,
        spot: &Spot,
        key: &[u8],
        incarnation: u64,
    ) -> Result<()> {
        let newer = match self.read(effort, spot, key).await? {
            Some(found) => Some(self.entry(key, &found.item)?.incarnation),
            None => None,
        };
        if newer == Some(incarnation) {
            return Ok(());
        }
        let may_be_over = match self.ask_of_one(effort, spot, key).await? {
            Says::Listed { incarnation: last } if last == incarnation => false,
            Says::Mortal { incarnation: last, expiry_s } if last == incarnation => self.may_be_over(expiry_s),
            // The list knows that it left, or names one that came after it.
            _ => return Ok(()),
        };
        match newer {
            // Listed after the late one, its successor takes that along when it goes.
            Some(newer) => self.renew(effort, key, newer).await,
            None if self.is_lossless() || may_be_over => {
                self.note(effort.deadline, spot.shard, &[Note::Gone { incarnation }]).await
            }
            // Lost, as whoever misses it is told; or removed, and more than a thousand others after it. Nobody can tell which, and no loss is to be silent.
            None => Ok(()),
        }
    }

    /// Removes an entry; false if there was none.
    pub(super) async fn remove(self: &Arc<Self>, key: &[u8]) -> Result<bool> {
        let mut effort = self.effort()?;
        let spot = self.spot(key);
        // The incarnation that the list says is leaving, by this call, and the writes that were in it.
        let mut leaving: Option<(u64, Vec<(u64, u64)>)> = None;
        // The incarnation that this call has listed for its maker.
        let mut listed: Option<u64> = None;
        let (mut is_begun, mut is_in_doubt) = (false, false);
        for _ in 0..ROUNDS_MAX {
            let found = self.read(&mut effort, &spot, key).await.map_err(|error| begun(error, is_begun))?;
            let entry = found.as_ref().map(|found| self.entry(key, &found.item)).transpose()?;
            let incarnation = entry.as_ref().map(|entry| entry.incarnation);
            if leaving.is_none()
                && let Some(before) = listed.take_if(|listed| Some(*listed) != incarnation)
            {
                // It left before it was listed, maybe, or was lost: then another one may be on the list by now, in front of it.
                self.check_listed(&mut effort, &spot, key, before).await.map_err(|error| begun(error, is_begun))?;
                continue;
            }
            if let Some((before, writes)) = leaving.take_if(|(before, _)| Some(*before) != incarnation) {
                self.tidy_behind(key, before);
                let goes_on = entry.as_ref().is_some_and(|entry| entry.goes_on_from(before, &writes));
                // In a table with lives a put takes the entry's place under another name: nothing of it was removed.
                let took_its_place = self.has_lives && !is_in_doubt && entry.is_some();
                if !goes_on && !took_its_place {
                    // Deleted by a try whose reply was lost, or by others.
                    return Ok(is_in_doubt);
                }
                // It is the same under another name, so no try has deleted it, and none can by the token of before.
                is_in_doubt = false;
            }
            let writes = entry.map(|entry| entry.writes());
            let (Some(found), Some(incarnation), Some(writes)) = (found, incarnation, writes) else {
                match self.remove_missing(&mut effort, &spot, key).await? {
                    Some(was_listed) => return Ok(was_listed),
                    None => continue,
                }
            };
            if !found.is_listed && listed != Some(incarnation) {
                let made = self.list_first(&mut effort, &spot, key, found).await;
                listed = made.map_err(|error| begun(error, is_begun))?;
                continue;
            }
            if let Some((_, seen)) = &mut leaving {
                *seen = writes;
            } else {
                let leaving_now = Note::Leaving { incarnation, since_s: self.now_s() };
                let noted = self.note(effort.deadline, spot.shard, &[leaving_now]).await;
                noted.map_err(|error| begun(error, is_begun))?;
                (leaving, is_begun) = (Some((incarnation, writes)), true);
            }
            match self.delete(&effort, &spot, &found).await {
                Ok(true) => {
                    self.tidy_behind(key, incarnation);
                    self.shards.vigil.check()?;
                    return Ok(true);
                }
                Ok(false) => {
                    events::conflict(self.subject());
                    effort.pause().await;
                }
                // By token: whatever became of it, another look tells, and another try does no harm.
                Err(error) if error.is_unknown() && self.store.profile().delete_cas => {
                    is_in_doubt = true;
                    events::retry(self.subject(), error.kind());
                    effort.pause().await;
                }
                // Blind: tried again, it could take a newer entry.
                Err(error) if error.is_unknown() => return Err(error),
                Err(error) => effort.again(self.subject(), error).await.map_err(unknown)?,
            }
            if effort.is_over() {
                break;
            }
        }
        let detail = "others wrote the entry at each try to remove it";
        Err(begun(Error::new(ErrorKind::Conflict, detail), is_begun))
    }

    /// Lists an entry that is about to be removed, and not listed yet: it must be before it is deleted, so that what comes after it is listed after it. The
    /// incarnation that is listed; `None` if others wrote the entry, or the store could not be reached. **Round trips: 2.**
    async fn list_first(&self, effort: &mut Effort, spot: &Spot, key: &[u8], found: Found) -> Result<Option<u64>> {
        let incarnation = self.entry(key, &found.item)?.incarnation;
        match self.list_for_good(effort, spot, key, found).await {
            Ok(Some(_)) => return Ok(Some(incarnation)),
            Ok(None) => {
                events::conflict(self.subject());
                effort.pause().await;
            }
            // Whatever became of it, nothing is removed by it, and another try does no harm.
            Err(error) => effort.again(self.subject(), error.effect(Effect::NotApplied)).await?,
        }
        Ok(None)
    }

    /// True if the entry as it was found is deleted; false if it is another by now.
    async fn delete(&self, effort: &Effort, spot: &Spot, found: &Found) -> Result<bool> {
        let item_key = self.item_key(spot)?;
        let op = match found.item.cas.filter(|_| self.store.profile().delete_cas) {
            Some(cas) => Op::delete_if(item_key.clone(), cas),
            None => Op::delete(item_key.clone()),
        };
        match next(&mut self.run(effort.ctx(), Batch::from_iter([op])).await.into_iter())? {
            Reply::Deleted => Ok(true),
            Reply::Exists | Reply::Miss => Ok(false),
            other => Err(Inner::strange(&item_key, &other)),
        }
    }

    /// Takes the key of an entry that is missing off the list. True if it was lost, `None` if there is one by now. It was lost if the list
    /// still names the incarnation of before the last look: a remove says `leaving` before it deletes.
    async fn remove_missing(self: &Arc<Self>, effort: &mut Effort, spot: &Spot, key: &[u8]) -> Result<Option<bool>> {
        let mut suspect = None;
        for _ in 0..ROUNDS_MAX {
            let says = self.ask(effort, &[(key, spot.shard)]).await?;
            let (incarnation, is_doubtful) = match says.first() {
                None | Some(Says::NotListed) => return Ok(Some(false)),
                Some(&Says::Leaving { incarnation, .. }) => (incarnation, false),
                Some(&Says::Mortal { incarnation, expiry_s }) => (incarnation, !self.may_be_over(expiry_s)),
                Some(&Says::Listed { incarnation }) => (incarnation, true),
            };
            let is_lost = is_doubtful && suspect.replace(incarnation) == Some(incarnation);
            if !is_lost && self.read(effort, spot, key).await?.is_some() {
                return Ok(None);
            }
            if is_lost || !is_doubtful {
                self.note(effort.deadline, spot.shard, &[Note::Gone { incarnation }]).await?;
                return Ok(Some(is_lost));
            }
        }
        let detail = "others put and removed the entry at each try to remove it";
        Err(Error::new(ErrorKind::Conflict, detail))
    }

    /// Gives an entry another incarnation, beside the caller: the client that was removing it has died, and whoever puts it
    /// from now on must have it listed for good.
    pub(super) fn renew_behind(self: &Arc<Self>, key: &[u8], stale: u64) {
        let key = key.to_vec();
        self.behind(move |table| async move {
            let mut effort = table.effort()?;
            table.renew(&mut effort, &key, stale).await
        });
    }

    /// In a box, as [`check_listed`](Inner::check_listed) and this may call each other, until the call's time is over.
    fn renew<'a>(
        self: &'a Arc<Self>,
        effort: &'a mut Effort,
        key: &'a [u8],
        stale: u64,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
        Box::pin(async move {
            let spot = self.spot(key);
            // True once this call has listed the stale one for its maker.
            let mut has_listed = false;
            for _ in 0..ROUNDS_MAX {
                let since = ambient::now();
                let found = self.read(effort, &spot, key).await?;
                let entry = found.as_ref().map(|found| self.entry(key, &found.item)).transpose()?;
                let expiry_s = entry.filter(|entry| entry.incarnation == stale).map(|entry| entry.expiry_s);
                let (Some(found), Some(expiry_s)) = (found, expiry_s) else {
                    return if has_listed { self.check_listed(effort, &spot, key, stale).await } else { Ok(()) };
                };
                let Some(ttl) = self.left(expiry_s, found.item.ttl) else { return Ok(()) };
                if !found.is_listed && !has_listed {
                    has_listed = self.list_first(effort, &spot, key, found).await?.is_some();
                    continue;
                }
                if let Some(made) = self.make_anew(effort, &spot, key, &found, ttl).await? {
                    let notes = [Note::Listed { incarnation: made, expiry_s, key }, Note::Gone { incarnation: stale }];
                    self.note(effort.deadline, spot.shard, &notes).await?;
                    self.check_late(effort, &spot, key, made, since).await?;
                    self.repair_behind(key, Some(made));
                    return Ok(());
                }
                events::conflict(self.subject());
                effort.pause().await;
            }
            Err(Error::new(ErrorKind::Conflict, "others wrote the entry at each try to renew it"))
        })
    }

    /// Writes an entry anew as another incarnation, which is not listed. That one; `None` if others wrote the entry. **Round trips: 1.**
    async fn make_anew(
        &self,
        effort: &Effort,
        spot: &Spot,
        key: &[u8],
        found: &Found,
        ttl: Ttl,
    ) -> Result<Option<u64>> {
        let entry = self.entry(key, &found.item)?;
        let (made, expiry_s, value) = (random_id(), entry.expiry_s, found.item.value.slice_ref(entry.value));
        // A writer of its own, no handle's: a put of this one that began before is to count after it.
        let writer = layout::renewer(entry.incarnation);
        let stamp = Stamp { generation: self.manifest.generation, writer, seq: 1 };
        let put = Put { key, value: &value, spot: spot.clone(), item_key: self.item_key(spot)?, stamp, ttl, expiry_s };
        let frame = layout::whole_frame(put.stamp, spot, (made, expiry_s), key, &value);
        let written = entry.rewritten(&frame, self.now_s())?;
        let is_written = self.cas(effort, &put, found, written, spot.flags(false)).await?;
        Ok(is_written.then_some(made))
    }
}

fn next(replies: &mut impl Iterator<Item = <Replies as IntoIterator>::Item>) -> Result<Reply> {
    replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
}

/// How a rewrite by token ended.
fn phase(written: &Result<bool>) -> Phase {
    match written {
        Ok(true) => Phase::Done,
        Ok(false) => Phase::Met,
        Err(_) => Phase::Failed,
    }
}

/// An error after which something has taken effect.
fn unknown(error: Error) -> Error {
    error.effect(Effect::Unknown)
}

/// The error where nobody can tell what became of an entry, which the list does not name.
fn unlisted() -> Error {
    Error::new(ErrorKind::Conflict, "the entry was removed by others, or lost, before it was listed")
}

/// An error of a remove: once it is noted, a loss of the entry looks like it.
fn begun(error: Error, is_begun: bool) -> Error {
    if is_begun { unknown(error) } else { error }
}

#[cfg(test)]
#[path = "put_tests.rs"]
mod tests;
