//! Reading: entries by their keys, the list of keys, and what became of an entry that is missing.
//!
//! A miss alone does not tell absent from lost, and neither does a look at the list: a healthy put or remove may be midway. So:
//!
//! 1. get the entry: a miss;
//! 2. read the list: not listed, or leaving, or its life is over by the reader's clock: absent. Else this incarnation was there;
//! 3. get the entry again: still a miss, so that incarnation has left: none comes back;
//! 4. read the list again: a remove says `leaving` *before* it deletes, so had it been one, it would stand there by now. It was lost; or its life is over by another clock.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Batch, Error, ErrorKind, Key, Op, Reply, Result, Want};

use super::layout::{Says, Spot, value_of};
use super::list::{Effort, Inner, ROUNDS_MAX};

/// How many keys are looked for at a time: what is kept of each while it is looked for is some 300 bytes. Not less than a batch of any store takes.
const KEYS_A_LOOK: usize = 64 * 1024;

/// What became of an entry that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    There(Bytes),
    Absent,
    Lost,
}

/// A key that is asked for.
struct Asked<'k> {
    key: &'k [u8],
    spot: Spot,
    seen: Seen,
    /// The incarnation that the list named while the entry was missing.
    suspect: Option<u64>,
}

/// An entry that the list names, and that may be gone all the same.
struct Doubtful {
    key: Bytes,
    incarnation: u64,
    /// Since when it is being removed, if it is that.
    leaving_s: Option<u32>,
}

impl Inner {
    /// Looks for entries. **Round trips: 1** a batch that the keys fill; for each 65,536 of them 1 more where some are missing, 3 more where they are lost, or are in the last five minutes of a life.
    pub(super) async fn look(self: &Arc<Self>, keys: &[&[u8]]) -> Result<Vec<Seen>> {
        let mut effort = self.effort()?;
        let mut seen = Vec::with_capacity(keys.len());
        for part in keys.chunks(KEYS_A_LOOK) {
            seen.extend(self.look_at(&mut effort, part).await?);
        }
        Ok(seen)
    }

    async fn look_at(self: &Arc<Self>, effort: &mut Effort, keys: &[&[u8]]) -> Result<Vec<Seen>> {
        let mut asked = self.asked(keys);
        let mut open = self.fetch(effort, &mut asked, (0..keys.len()).collect()).await?;
        for _ in 0..ROUNDS_MAX {
            // Asked behind the replies, and never true again once it was not: a part that was fetched without the list comes to be judged.
            if open.is_empty() || self.is_lossless() {
                self.shards.vigil.check()?;
                let now_s = self.now_s();
                let there = asked.iter().filter(|asked| matches!(asked.seen, Seen::There(_)));
                there.for_each(|asked| self.tend_behind(asked.spot.shard, now_s));
                return Ok(asked.into_iter().map(|asked| asked.seen).collect());
            }
            let listed = self.judge(effort, &mut asked, open).await?;
            open = self.fetch(effort, &mut asked, listed).await?;
        }
        let named = open.first().map_or(&b""[..], |&at| asked[at].key);
        let detail = format!("{} was removed and put at each of {ROUNDS_MAX} looks", Shown(named));
        Err(Error::new(ErrorKind::Conflict, detail))
    }

    fn asked<'k>(&self, keys: &[&'k [u8]]) -> Vec<Asked<'k>> {
        let asked = |&key: &&'k [u8]| Asked { key, spot: self.spot(key), seen: Seen::Absent, suspect: None };
        keys.iter().map(asked).collect()
    }

    /// The keys of entries, made in one piece.
    fn item_keys(&self, asked: &[Asked<'_>], part: &[usize]) -> Result<Vec<Key>> {
        match part {
            [at] => Ok(vec![self.item_key(&asked[*at].spot)?]),
            part => self.manifest.data_keys(&self.name, part.iter().map(|&at| asked[at].spot.index)),
        }
    }

    /// Gets entries; returns those that are missing.
    async fn fetch(
        self: &Arc<Self>,
        effort: &mut Effort,
        asked: &mut [Asked<'_>],
        wanted: Vec<usize>,
    ) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        // Read once: it only says what is asked for beside the entries. Who judges what is missing asks anew.
        let profile = self.store.profile();
        let is_lossless = self.is_lossless_by(&profile);
        let shards = if is_lossless { usize::from(self.shards.count()) } else { 0 };
        for part in wanted.chunks(profile.batch_ops_max.saturating_sub(shards).max(1)) {
            loop {
                match self.fetch_part(effort, asked, part, is_lossless).await {
                    Ok(more) => break missing.extend(more),
                    Err(error) => effort.again(self.subject(), error).await?,
                }
            }
        }
        Ok(missing)
    }

    async fn fetch_part(
        self: &Arc<Self>,
        effort: &Effort,
        asked: &mut [Asked<'_>],
        part: &[usize],
        is_lossless: bool,
    ) -> Result<Vec<usize>> {
        let mut batch: Batch = self.item_keys(asked, part)?.into_iter().map(Inner::get_op).collect();
        // On a store that cannot lose an entry, what is missing is absent, unless the whole table was dropped, or the store is another by now.
        let mut shards: Vec<u16> = Vec::new();
        if is_lossless {
            shards.extend(part.iter().map(|&at| asked[at].spot.shard));
            shards.sort_unstable();
            shards.dedup();
            batch.extend(shards.iter().map(|&shard| self.shards.op(shard, |key| Op::get(key, Want::empty()))));
        }
        let mut replies = self.run(effort.ctx(), batch).await.into_iter();
        let mut missing = Vec::new();
        for &at in part {
            let asked = &mut asked[at];
            let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            match self.found(&asked.spot, asked.key, reply)? {
                None => missing.push(at),
                Some(found) => {
                    let bytes = &found.item.value;
                    let value = value_of(bytes, self.manifest.generation, &asked.spot, asked.key)?;
                    let value = bytes.slice_ref(value);
                    let beside = found.item.value.len() - value.len() - asked.key.len();
                    if !found.is_listed {
                        self.repair_behind(asked.key, None);
                    } else if beside > super::DIRTY_BYTES {
                        self.compact_behind(asked.key, &found);
                    }
                    asked.seen = Seen::There(value);
                }
            }
        }
        for (shard, reply) in shards.into_iter().zip(replies) {
            if reply? == Reply::Miss && missing.iter().any(|&at| asked[at].spot.shard == shard) {
                return Err(self.shards.lost(&[shard]));
            }
        }
        Ok(missing)
    }

    /// Asks the list about entries that are missing; returns those that may be on their way, and must be looked for again.
    async fn judge(
        self: &Arc<Self>,
        effort: &mut Effort,
        asked: &mut [Asked<'_>],
        missing: Vec<usize>,
    ) -> Result<Vec<usize>> {
        let keys: Vec<(&[u8], u16)> = missing.iter().map(|&at| (asked[at].key, asked[at].spot.shard)).collect();
        let says = self.ask(effort, &keys).await?;
        let mut listed = Vec::new();
        for (at, says) in missing.into_iter().zip(says) {
            let asked = &mut asked[at];
            let (incarnation, is_lost) = match says {
                Says::NotListed => continue,
                Says::Leaving { incarnation, .. } => {
                    self.tidy_behind(asked.key, incarnation);
                    continue;
                }
                Says::Mortal { incarnation, expiry_s } if self.now_s() >= expiry_s => {
                    if self.is_over(expiry_s) {
                        self.tidy_behind(asked.key, incarnation);
                    }
                    continue;
                }
                // By another clock its life may be over; but it may also have been put since the entry before it, which was lost, was missing: so it is looked for once more, too.
                Says::Mortal { incarnation, expiry_s } => (incarnation, !self.may_be_over(expiry_s)),
                Says::Listed { incarnation } => (incarnation, true),
            };
            if asked.suspect.replace(incarnation) != Some(incarnation) {
                listed.push(at);
            } else if is_lost {
                asked.seen = Seen::Lost;
            }
        }
        Ok(listed)
    }

    /// All keys that are listed, each with its incarnation. **Round trips: 1**, 2 while entries are being removed, or lives end.
    pub(super) async fn all_listed(self: &Arc<Self>) -> Result<Vec<(Bytes, u64)>> {
        let all: Vec<u16> = (0..self.shards.count()).collect();
        self.listed(&all).await
    }

    /// The keys that these shards list. Repairs, beside the caller, what it finds amiss.
    pub(super) async fn listed(self: &Arc<Self>, shards: &[u16]) -> Result<Vec<(Bytes, u64)>> {
        let mut effort = self.effort()?;
        let (mut keys, mut doubtful, mut dirty) = (Vec::new(), Vec::new(), Vec::new());
        for reading in self.read_list(&mut effort, shards).await? {
            let folded = self.shards.state(&reading)?;
            let value = self.shards.value(&reading);
            keys.reserve(folded.state.len_max());
            for (key, says) in folded.state.keys() {
                let key = value.slice_ref(key);
                match says {
                    Says::NotListed => {}
                    Says::Leaving { incarnation, since_s } => {
                        doubtful.push(Doubtful { key, incarnation, leaving_s: Some(since_s) });
                    }
                    // Over by this client's clock; but it is the store's that ends it.
                    Says::Mortal { incarnation, expiry_s } if self.now_s() >= expiry_s => {
                        doubtful.push(Doubtful { key, incarnation, leaving_s: None });
                    }
                    Says::Mortal { incarnation, .. } | Says::Listed { incarnation } => keys.push((key, incarnation)),
                }
            }
            let is_dirty = self.shards.is_dirty(&reading, &folded);
            drop(folded);
            if is_dirty {
                dirty.push(reading);
            }
        }
        if !dirty.is_empty() {
            self.shards.compact_behind(dirty);
        }
        self.still_there(&mut effort, doubtful, &mut keys).await?;
        Ok(keys)
    }

    /// Of entries that may be gone, those that are there: a remove is midway, or its client died, or clocks disagree about a life.
    async fn still_there(
        self: &Arc<Self>,
        effort: &mut Effort,
        doubtful: Vec<Doubtful>,
        keys: &mut Vec<(Bytes, u64)>,
    ) -> Result<()> {
        if doubtful.is_empty() {
            return Ok(());
        }
        let names: Vec<&[u8]> = doubtful.iter().map(|doubtful| &doubtful.key[..]).collect();
        let mut asked = self.asked(&names);
        self.fetch(effort, &mut asked, (0..doubtful.len()).collect()).await?;
        let seen: Vec<Seen> = asked.into_iter().map(|asked| asked.seen).collect();
        for (Doubtful { key, incarnation, leaving_s }, seen) in doubtful.into_iter().zip(seen) {
            match seen {
                Seen::There(_) => {
                    if leaving_s.is_some_and(|since_s| self.now_s().abs_diff(since_s) > super::LEAVING_MAX_S) {
                        self.renew_behind(&key, incarnation);
                    }
                    keys.push((key, incarnation));
                }
                _ => self.tidy_behind(&key, incarnation),
            }
        }
        Ok(())
    }

    /// All entries, and the keys of those that are lost.
    pub(super) async fn everything(self: &Arc<Self>) -> Result<(Vec<(Bytes, Bytes)>, Vec<Bytes>)> {
        let listed = self.all_listed().await?;
        let keys: Vec<&[u8]> = listed.iter().map(|(key, _)| &key[..]).collect();
        let (mut entries, mut lost) = (Vec::with_capacity(keys.len()), Vec::new());
        let seen = self.look(&keys).await?;
        for ((key, incarnation), seen) in listed.into_iter().zip(seen) {
            match seen {
                Seen::There(value) => entries.push((key, value)),
                Seen::Lost => lost.push(key),
                // If it cannot have been lost by now, it could not when it was missed.
                Seen::Absent if self.is_lossless() => self.tidy_behind(&key, incarnation),
                Seen::Absent => {}
            }
        }
        Ok((entries, lost))
    }
}

#[cfg(test)]
mod tests {
    use larder_core::StoreRef;
    use larder_layers::Counting;
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::Table;

    #[tokio::test]
    async fn thousands_of_keys_are_looked_for_in_one_round_trip_where_a_batch_takes_them() {
        let counting = Counting::new(Arc::new(MemoryStore::new()));
        let store: StoreRef = Arc::new(counting.clone());
        let table = Table::open_or_create(&store, "many").await.unwrap();
        let keys: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        let before = counting.counts();
        let found = table.get_many(&keys).await.unwrap();
        assert!(found.len() == keys.len() && found.iter().all(Option::is_none));
        assert_eq!(counting.counts().since(&before).round_trips, 1);
    }
}
