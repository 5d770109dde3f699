//! The committer removes what is over, and what earlier generations left; and ends.

use std::sync::atomic::Ordering;

use larder_core::Result;

use super::{Committer, Seen};
use crate::fault::{Fault, Harm};
use crate::layout::{self, EXPIRY};
use crate::options::Sync;
use crate::sweep::Swept;

/// What became of an item whose expiry has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// It was over, and goes.
    Over,
    /// It has got another life since, or is gone.
    Other,
    /// It is damaged. It stays, and its expiry with it.
    Damaged,
}

impl Committer {
    /// The last that is done: what stands in front goes into the engine, a piece of what is over, or is to be swept, goes from it, and the time is noted. A store that is used in turns is not open for as long as it takes the
    /// timer to ask for that. What fails here is found by whoever opens the store next.
    pub(super) fn close(mut self) {
        if self.move_all().is_err() || self.shared.failure().is_some() {
            return;
        }
        if self.shared.check_room().is_err() {
            return self.note_time();
        }
        self.begin_round();
        if self.shared.expiry.is_due(self.now_ms()) {
            _ = self.reclaim(false);
        }
        self.end_round();
        if self.shared.sweeps.load(Ordering::Acquire) {
            self.begin_round();
            self.sweep();
            self.end_round();
        }
        _ = self.move_all();
        self.note_time();
    }

    /// Writes a batch without items, if somebody may have been told by a later time than that of the last one, and items have lives that end: what is a miss now stays one, also where the wall clock is set back before the store is opened next.
    pub(super) fn note_time(&mut self) {
        // In this order: who is told of a later end sets it again.
        let is_told = self.shared.told_over.swap(false, Ordering::SeqCst);
        if !is_told || !self.shared.expiry.has_lives() || self.shared.failure().is_some() {
            return;
        }
        self.begin_round();
        if self.now_ms() > self.commit.time_ms {
            self.write_nothing();
        }
    }

    /// Writes a batch without items. Where it fails the store has failed, and whoever writes next is told.
    pub(super) fn write_nothing(&mut self) {
        if self.shared.failure().is_none() {
            let entries = self.shared.engine.entries();
            _ = self.write(entries, self.shared.sync == Sync::Always, Seen::Never);
        }
    }

    /// Removes items whose life is over: some of them, from where it stopped before, or `all`. An item that is damaged stays, for whoever asks for it to be told.
    pub(super) fn reclaim(&mut self, all: bool) -> Result<u64> {
        let (now_ms, shared) = (self.now_ms(), self.shared.clone());
        let named = |fault: Fault| fault.error(&shared.name);
        // The entries before that are gone, and the engine would look at what it keeps of them again.
        let (mut removed, mut from) = (0, self.reclaims_from.take().unwrap_or_else(|| vec![EXPIRY]));
        if all {
            from = vec![EXPIRY];
            self.end_part();
            self.move_all().map_err(named)?;
        }
        loop {
            if let Some(earlier) = shared.failure() {
                return Err(shared.refused(&earlier));
            }
            let due = shared.expiry.due(&shared.engine, &from, now_ms).map_err(named)?;
            if let Some(last) = due.keys.last() {
                // Behind it: what is damaged, and stays, is not met again.
                from = [&last[..], &[0]].concat();
            }
            let mut came_to_something = false;
            for engine_key in due.keys {
                let came = self.reclaim_one(&engine_key, now_ms).map_err(named)?;
                if came != Came::Damaged {
                    removed += u64::from(came == Came::Over);
                    came_to_something = true;
                    self.over.push(engine_key);
                    self.ops += 1;
                }
            }
            if !due.is_full || (came_to_something && !all) {
                self.reclaims_from = due.is_full.then_some(from);
                return Ok(removed);
            }
            self.end_part();
        }
    }

    /// Removes some of what earlier generations left, in a round of its own.
    pub(super) fn sweep(&mut self) {
        self.end_part();
        let found = match self.shared.failure() {
            // What stands before the engine and is of an earlier generation goes into it first, once; what stands there later is of this one.
            None if self.sweep.is_at_the_beginning() => self.move_all().and_then(|()| self.next_swept()),
            None => self.next_swept(),
            Some(_) => Ok(None),
        };
        // Where the engine cannot read, whoever asks for what stands there is told.
        let Ok(Some(swept)) = found else {
            self.shared.sweeps.store(false, Ordering::Release);
            return;
        };
        for (key, end) in swept.old {
            if self.shared.front.get(&key).is_some() {
                continue;
            }
            self.over.extend(end.map(|end| layout::expiry_key(end, &key)));
            self.put(&key, None);
        }
        if swept.is_last {
            self.generations.swept = self.generations.current;
            self.notes_generations = true;
            self.shared.sweeps.store(false, Ordering::Release);
        }
        self.end_part();
    }

    fn next_swept(&mut self) -> Result<Option<Swept>, Fault> {
        self.sweep.next(&self.shared.engine, self.generations.current)
    }

    /// Removes the item of an expiry that has come, if it is the item's own: it may have got another life since.
    fn reclaim_one(&mut self, engine_key: &[u8], now_ms: u64) -> Result<Came, Fault> {
        let Some((_, key)) = layout::split_expiry_key(engine_key) else { return Ok(Came::Other) };
        let is_over = match self.overlay.get(key) {
            Some(record) => record.as_ref().is_some_and(|record| record.is_over(now_ms)),
            None => match self.shared.stored(key) {
                Ok(stored) => stored.is_some_and(|record| record.is_over(now_ms)),
                Err(fault) if fault.harm == Harm::Corrupt => return Ok(Came::Damaged),
                Err(fault) => return Err(fault),
            },
        };
        if is_over {
            self.put(key, None);
        }
        Ok(if is_over { Came::Over } else { Came::Other })
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Ctx, Key, Op, PutMode, StoreExt, Ttl};

    use super::*;
    use crate::Options;
    use crate::committer::Request;
    use crate::layout::COMMIT_KEY;

    fn limit(shared: &crate::committer::Shared) -> u64 {
        crate::layout::Commit::decode(&shared.engine.get(COMMIT_KEY).unwrap().unwrap()).unwrap().cas_limit
    }

    #[tokio::test]
    async fn the_time_is_asked_for_once_where_no_item_has_a_life_and_its_batch_takes_no_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let put = |ttl| Op::put(Key::new("k").unwrap(), PutMode::Set, "v", ttl);
        let store = Options::new(folder.path()).open().unwrap();
        store.run_one(Ctx::default(), put(Ttl::Never)).await.unwrap();
        // It is known only once somebody has looked that there are no lives.
        store.reclaim_expired().await.unwrap();
        let told = || store.shared().told_over.load(Ordering::SeqCst);
        store.shared().told_over.store(true, Ordering::SeqCst);
        assert!(store.ask(Request::Time).await.is_ok());
        store.sync().await.unwrap();
        assert!(!told(), "it would be asked for every second");
        store.run_one(Ctx::default(), put(Ttl::After(std::time::Duration::from_secs(60)))).await.unwrap();
        drop(store);
        let store = Options::new(folder.path()).open().unwrap();
        let before = (limit(store.shared()), store.stats().unwrap().sequence);
        store.shared().told_over.store(true, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(store.ask(Request::Time).await.is_ok());
        store.sync().await.unwrap();
        assert_eq!((limit(store.shared()), store.stats().unwrap().sequence), (before.0, before.1 + 1));
    }
}
