//! Adding: all callers' ids of a handle in one write, each shard read and written anew by cas.
//!
//! A shard's write counts once, whatever becomes of its reply: it carries a mark of its writer, so that a later read tells whether it landed.
//!
//! | what the read after a lost reply finds | what it means | "new?" |
//! |---|---|---|
//! | our mark, and all that we wrote | it landed | new |
//! | one of those that we wrote is missing | it did not, and never will once the next write lands | those that are there: known |
//! | all of them, under another's mark | others wrote after us, or wrote the same | unknown |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Item, Op, PutMode, Reply, Result, Verb, Want, ambient};

use super::Novelty;
use super::core::{Core, Day};
use super::layout::{self, Blob, Precision, Spot};
use super::sketch;
use crate::combine::Driver;
use crate::events;
use crate::ids::random_id;
use crate::manifest::unexpected;
use crate::retry::Backoff;

/// How often all shards that are open are gone through.
const ROUNDS_MAX: usize = 64;
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How often a shard may fail, in a way that passes, while nothing is in doubt.
const FAULTS_MAX: u32 = 8;
/// How many ids of different callers travel in one write.
pub(super) const COMBINED_IDS_MAX: usize = 65_536;

/// A caller's ids.
pub(super) struct Change {
    /// By which the caller finds its answer.
    pub(super) ticket: u64,
    pub(super) day: Arc<Day>,
    pub(super) spots: Vec<Spot>,
    pub(super) deadline: Instant,
}

/// What a caller is told.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// One an id, in the caller's order.
    pub(super) novelties: Vec<Novelty>,
    /// Why some were not added, and how many.
    pub(super) failed: Option<(Error, usize)>,
}

/// What each caller of a write is told, by its ticket.
pub(super) type Outcome = Arc<HashMap<u64, Told>>;

/// Brings changes about.
pub(super) struct Adder {
    core: Arc<Core>,
    works: Vec<Work>,
    mark: u32,
    deadline: Instant,
}

/// One shard of the write under way.
struct Work {
    day: Arc<Day>,
    shard: u32,
    /// Sorted, each once.
    spots: Vec<Spot>,
    found: Vec<Option<Novelty>>,
    /// Who asked for which: change, place among its ids, place in `spots`; in this order.
    asked: Vec<(usize, usize, usize)>,
    /// Which of the spots a write in doubt would have added.
    tried: Option<Vec<bool>>,
    /// A write may land yet, or has landed unseen: what refuses the next one may be this call's own.
    is_in_doubt: bool,
    faults: u32,
    last_error: Option<Error>,
    outcome: Option<Result<()>>,
}

impl Adder {
    pub(super) fn new(core: Arc<Core>) -> Adder {
        Adder { core, works: Vec::new(), mark: 0, deadline: ambient::now() }
    }

    fn begin(&mut self, changes: &[Change]) {
        // Never that of an empty shard.
        self.mark = (random_id() as u32).max(1);
        self.deadline = changes.iter().map(|change| change.deadline).max().unwrap_or_else(ambient::now);
        let mut all = Vec::with_capacity(changes.iter().map(|change| change.spots.len()).sum());
        for (at, change) in changes.iter().enumerate() {
            let incarnation = change.day.head.incarnation;
            all.extend(change.spots.iter().enumerate().map(|(place, &spot)| (incarnation, spot, at, place)));
        }
        all.sort_unstable();
        self.works.clear();
        for (incarnation, spot, at, place) in all {
            let is_same = |work: &Work| work.day.head.incarnation == incarnation && work.shard == spot.shard;
            if !self.works.last().is_some_and(is_same) {
                self.works.push(Work::new(changes[at].day.clone(), spot.shard));
            }
            if let Some(work) = self.works.last_mut() {
                if work.spots.last() != Some(&spot) {
                    work.spots.push(spot);
                    work.found.push(None);
                }
                work.asked.push((at, place, work.spots.len() - 1));
            }
        }
    }

    async fn settle(&mut self) {
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let shards_a_batch = self.core.ops_a_batch();
        for _ in 0..ROUNDS_MAX {
            let open: Vec<usize> = (0..self.works.len()).filter(|&at| self.works[at].outcome.is_none()).collect();
            if open.is_empty() || ambient::now() >= self.deadline {
                return;
            }
            let mut must_pause = false;
            for part in open.chunks(shards_a_batch) {
                must_pause |= self.go_through(part).await;
            }
            if must_pause {
                let left = self.deadline.saturating_duration_since(ambient::now());
                tokio::time::sleep(backoff.next_pause().min(left)).await;
            }
        }
    }

    /// Reads shards, and writes those that change. True if some must be tried again, after a pause. **Round trips: 2.**
    async fn go_through(&mut self, open: &[usize]) -> bool {
        let ctx = Ctx { deadline: Some(self.deadline) };
        let core = self.core.clone();
        let mut gets = Batch::new();
        for &at in open {
            match core.shard_key(&self.works[at].day.head, self.works[at].shard) {
                Ok(key) => gets.push(Op::get(key, Want::VALUE | Want::CAS)),
                Err(error) => self.works[at].outcome = Some(Err(error)),
            }
        }
        let open: Vec<usize> = open.iter().copied().filter(|&at| self.works[at].outcome.is_none()).collect();
        let mut replies = core.vigil().run(ctx, gets).await.into_iter();
        let (mut puts, mut writers, mut must_pause) = (Batch::new(), Vec::new(), false);
        for at in open {
            let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            let work = &mut self.works[at];
            match reply.map(Reply::into_item) {
                Ok(Some(item)) => match work.judge(&core, self.mark, &item) {
                    Ok(Some(put)) => {
                        puts.push(put);
                        writers.push(at);
                    }
                    Ok(None) => work.outcome = Some(Ok(())),
                    Err(error) => work.outcome = Some(Err(error)),
                },
                Ok(None) => work.outcome = Some(Err(core.lost_shard(&work.day, work.shard))),
                Err(error) => must_pause |= work.fault(&core, error.effect(Effect::NotApplied)),
            }
        }
        if puts.is_empty() {
            return must_pause;
        }
        let sent = puts.clone();
        let mut replies = core.store.run(ctx, puts).await.into_iter();
        for (at, put) in writers.into_iter().zip(sent) {
            let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            must_pause |= self.works[at].written(&core, &put, reply);
        }
        must_pause
    }

    fn finish(&mut self, changes: &[Change]) -> Outcome {
        let mut told: Vec<Told> = changes
            .iter()
            .map(|change| Told { novelties: vec![Novelty::Unknown; change.spots.len()], failed: None })
            .collect();
        let mut is_any_in: Vec<bool> = vec![false; changes.len()];
        for mut work in self.works.drain(..) {
            let outcome = work.outcome.take().unwrap_or_else(|| Err(work.give_up()));
            for &(at, place, spot) in &work.asked {
                match &outcome {
                    Ok(()) => {
                        // Whoever asks first is told; the others come after.
                        let novelty = work.found[spot].unwrap_or(Novelty::Unknown);
                        told[at].novelties[place] = novelty;
                        is_any_in[at] |= novelty != Novelty::Known;
                        if novelty == Novelty::New {
                            work.found[spot] = Some(Novelty::Known);
                        }
                    }
                    Err(error) => match &mut told[at].failed {
                        Some((first, count)) => {
                            *count += 1;
                            if error.is_unknown() {
                                *first = first.clone().effect(Effect::Unknown);
                            }
                        }
                        none => *none = Some((error.clone(), 1)),
                    },
                }
            }
        }
        for (told, is_any_in) in told.iter_mut().zip(is_any_in) {
            if let Some((error, _)) = told.failed.as_mut().filter(|_| is_any_in) {
                *error = error.clone().effect(Effect::Unknown);
            }
        }
        Arc::new(changes.iter().map(|change| change.ticket).zip(told).collect())
    }
}

impl Driver for Adder {
    type Change = Change;
    type Outcome = Outcome;

    fn weight(change: &Change) -> usize {
        change.spots.len()
    }

    async fn apply(&mut self, changes: &[Change], interrupted: bool) -> Result<Outcome> {
        if interrupted {
            // Nobody saw the reply of the write that was under way: it may arrive yet.
            self.works.iter_mut().for_each(|work| work.is_in_doubt |= work.tried.is_some());
        } else {
            self.begin(changes);
        }
        self.settle().await;
        Ok(self.finish(changes))
    }
}

impl Work {
    fn new(day: Arc<Day>, shard: u32) -> Work {
        let (spots, found, asked) = (Vec::new(), Vec::new(), Vec::new());
        Work {
            day,
            shard,
            spots,
            found,
            asked,
            tried: None,
            is_in_doubt: false,
            faults: 0,
            last_error: None,
            outcome: None,
        }
    }

    /// What to write, given what is there; `None` if nothing.
    fn judge(&mut self, core: &Core, mark: u32, item: &Item) -> Result<Option<Op>> {
        let key = core.shard_key(&self.day.head, self.shard)?;
        let blob = Blob::parse(&item.value).map_err(|error| error.key(&key))?;
        let (value, count) = match core.params.precision {
            Precision::Sketch { lg_k } => {
                let hashes = self.spots.iter().map(|spot| spot.offset);
                let with = sketch::with(blob.coded, lg_k, hashes).map_err(|error| error.key(&key))?;
                // Whether somebody is new cannot be told, so nothing is in doubt.
                self.tried = None;
                let Some((sketch, estimate)) = with else { return Ok(None) };
                let count = u32::try_from(estimate).unwrap_or(u32::MAX);
                (layout::sketch_blob(&sketch, mark, count as usize), count)
            }
            _ => match self.merged(core, mark, &blob).map_err(|error| error.key(&key))? {
                Some(merged) => merged,
                None => return Ok(None),
            },
        };
        if value.len() > core.value_bytes_max {
            return Err(self.full(core, blob.count, value.len()));
        }
        let cas = item.cas.ok_or_else(|| Error::new(ErrorKind::Protocol, "a get brought no token").key(&key))?;
        if self.tried.is_none() {
            let tried = self.found.iter().map(Option::is_none).collect();
            // Should this future be dropped before the reply comes, the next caller starts with a look at what landed.
            self.tried = Some(tried);
        }
        Ok(Some(put_op(core, &self.day, key, cas, value, count)))
    }

    /// The shard with what is missing in it, and how many it then has; `None` if nothing is missing.
    fn merged(&mut self, core: &Core, mark: u32, blob: &Blob<'_>) -> Result<Option<(Bytes, u32)>> {
        let is_wide = core.params.is_wide();
        let span = self.day.head.span(self.shard);
        let members = blob.members(span.wrapping_sub(1), is_wide)?;
        let is_there: Vec<bool> = self.spots.iter().map(|spot| members.has(spot)).collect();
        if let Some(tried) = self.tried.take() {
            let has_landed = tried.iter().zip(&is_there).all(|(&tried, &is_there)| !tried || is_there);
            let novelty = match (has_landed, blob.mark == mark) {
                (true, true) => Novelty::New,
                (true, false) => Novelty::Unknown,
                (false, _) => Novelty::Known,
            };
            for ((found, tried), &is_there) in self.found.iter_mut().zip(tried).zip(&is_there) {
                if tried && is_there {
                    found.get_or_insert(novelty);
                }
            }
        }
        let mut missing = Vec::new();
        for ((spot, found), is_there) in self.spots.iter().zip(&mut self.found).zip(is_there) {
            if !is_there {
                missing.push(*spot);
            } else {
                found.get_or_insert(Novelty::Known);
            }
        }
        if missing.is_empty() {
            return Ok(None);
        }
        let merged = members.merge(&missing, is_wide);
        let mut value = merged.encode(span, mark, self.day.head.padded_bytes as usize);
        if value.len() > core.value_bytes_max {
            value = merged.encode(span, mark, 0);
        }
        // Under a store's item limit, so it fits.
        Ok(Some((value, u32::try_from(merged.offsets.len()).unwrap_or(u32::MAX))))
    }

    /// Takes in the reply to a write. True if there should be a pause before the next.
    fn written(&mut self, core: &Core, put: &Op, reply: Result<Reply>) -> bool {
        match reply {
            Ok(Reply::Stored) => {
                self.tried = None;
                let is_sketch = matches!(core.params.precision, Precision::Sketch { .. });
                let novelty = if is_sketch { Novelty::Unknown } else { Novelty::New };
                self.found.iter_mut().for_each(|found| {
                    found.get_or_insert(novelty);
                });
                self.outcome = Some(Ok(()));
                false
            }
            Ok(Reply::Exists) => {
                if !self.is_in_doubt {
                    self.tried = None;
                }
                events::conflict(core.vigil().subject());
                true
            }
            // The read that comes next finds that it is gone.
            Ok(Reply::Miss) => {
                self.tried = None;
                false
            }
            Ok(other) => {
                self.outcome = Some(Err(unexpected(put, &other)));
                false
            }
            Err(error) => {
                self.is_in_doubt |= error.is_unknown();
                if !self.is_in_doubt {
                    self.tried = None;
                }
                self.fault(core, error)
            }
        }
    }

    /// Takes in an error. True if it is worth another try, after a pause.
    fn fault(&mut self, core: &Core, error: Error) -> bool {
        let is_passing = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) || error.is_unknown();
        self.faults += 1;
        if is_passing && (self.tried.is_some() || self.faults < FAULTS_MAX) {
            events::retry(core.vigil().subject(), error.kind());
            self.last_error = Some(error);
            return true;
        }
        self.outcome = Some(Err(error.effect(self.effect())));
        false
    }

    fn effect(&self) -> Effect {
        if self.tried.is_some() || self.is_in_doubt { Effect::Unknown } else { Effect::NotApplied }
    }

    fn full(&self, core: &Core, visitors: u32, bytes: usize) -> Error {
        let Day { period, head } = &*self.day;
        let detail = format!(
            "shard {} of {} of period {period} holds {visitors} visitors and would take {bytes} bytes; the limit is {}: the period was made \
             for {} visitors, expect more of the next",
            self.shard, head.shards, core.value_bytes_max, head.expected
        );
        let error = Error::new(ErrorKind::Full, detail).store(core.store.profile().store.clone());
        error.effect(self.effect())
    }

    /// The error of a shard that could not be settled in time.
    fn give_up(&self) -> Error {
        match &self.last_error {
            Some(error) => error.clone().effect(self.effect()),
            None => {
                let detail = "others wrote at each try, or the time was over";
                Error::new(ErrorKind::Conflict, detail).effect(self.effect())
            }
        }
    }
}

fn put_op(core: &Core, day: &Day, key: larder_core::Key, cas: Cas, value: Bytes, count: u32) -> Op {
    Op::new(key, Verb::Put { mode: PutMode::Cas(cas), value, flags: count, ttl: core.life(day.period) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use larder_core::{Profile, Run, Store, StoreExt, StoreRef};
    use larder_layers::Counting;
    use larder_layers::testing::{Fault, Faulty};
    use larder_store_memory::MemoryStore;
    use tokio::time::Instant as Moment;

    use super::*;
    use crate::{UniqueVisitors, UniqueVisitorsOptions};

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn memory() -> StoreRef {
        Arc::new(MemoryStore::new())
    }

    /// Periods of a year: a test on the last of its milliseconds would take longer.
    fn options(expected: u64) -> UniqueVisitorsOptions {
        UniqueVisitors::options().period(YEAR).expected(expected).timeout(Duration::from_secs(60))
    }

    async fn day_of(site: &UniqueVisitors) -> Arc<Day> {
        let core = &site.0.core;
        core.open_day(core.deadline(), site.current().unwrap()).await.unwrap()
    }

    fn spots(site: &UniqueVisitors, day: &Day, ids: impl IntoIterator<Item = u64>) -> Vec<Spot> {
        site.hashes(ids).unwrap().into_iter().map(|hash| site.0.core.spot(&day.head, hash)).collect()
    }

    #[tokio::test]
    async fn ids_of_a_shard_that_is_gone_are_counted_and_the_others_leave_a_doubt_where_any_was_new() {
        let store = memory();
        let site = options(200_000).open_or_create(&store, "site").await.unwrap();
        site.add(0..600u64).await.unwrap();
        let day = day_of(&site).await;
        let shards: Vec<u32> = spots(&site, &day, 0..600).iter().map(|spot| spot.shard).collect();
        let of = |shard: u32| (0..600).filter(|&id| shards[id as usize] == shard).collect::<Vec<u64>>();
        let gone = (0..day.head.shards).map(of).max_by_key(Vec::len).unwrap();
        assert!(gone.len() > 1 && gone.len() < 600, "{} of 600", gone.len());
        let key = site.0.core.shard_key(&day.head, shards[gone[0] as usize]).unwrap();
        assert!(store.delete(key).await.unwrap());

        let error = site.add(0..600u64).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "nobody new: {error}");
        assert!(error.to_string().contains(&format!("{} of 600 ids were not added", gone.len())), "{error}");
        let error = site.add(gone.clone()).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
        assert!(!error.to_string().contains("not added"), "all of them: {error}");
        // Some of those that come for the first time count, and it is not told which.
        let error = site.add(0..1_000u64).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::Unknown), "{error}");
    }

    #[tokio::test]
    async fn behind_its_deadline_nothing_more_is_sent() {
        let counting = Counting::new(memory());
        let store: StoreRef = Arc::new(counting.clone());
        let site = options(1).open_or_create(&store, "site").await.unwrap();
        let day = day_of(&site).await;
        let change = Change { ticket: 3, spots: spots(&site, &day, [7, 8]), day, deadline: ambient::now() };
        let before = counting.counts();
        let outcome = Adder::new(site.0.core.clone()).apply(&[change], false).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, 0);
        let (error, count) = outcome[&3].failed.clone().unwrap();
        assert_eq!((error.kind(), error.known_effect(), count), (ErrorKind::Conflict, Effect::NotApplied, 2));
    }

    #[tokio::test]
    async fn a_change_weighs_as_many_as_its_ids() {
        let site = options(1).open_or_create(&memory(), "site").await.unwrap();
        let day = day_of(&site).await;
        for count in [0, 1, 5] {
            let spots = spots(&site, &day, 0..count);
            let change = Change { ticket: 0, day: day.clone(), spots, deadline: ambient::now() };
            assert_eq!(Adder::weight(&change) as u64, count);
        }
    }

    #[tokio::test]
    async fn a_shard_that_a_write_may_yet_land_in_is_in_doubt() {
        let site = options(1).open_or_create(&memory(), "site").await.unwrap();
        let mut work = Work::new(day_of(&site).await, 0);
        assert_eq!(work.effect(), Effect::NotApplied);
        work.tried = Some(vec![true]);
        assert_eq!(work.effect(), Effect::Unknown, "sent, and no reply yet");
        (work.tried, work.is_in_doubt) = (None, true);
        assert_eq!(work.effect(), Effect::Unknown, "sent, and its reply was lost");
        let error = work.full(&site.0.core, 1, usize::MAX);
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown));
    }

    /// A store that says of itself how large its items are, and where others are first at so many of the next writes by token.
    #[derive(Debug)]
    struct Narrow {
        inner: StoreRef,
        item_bytes_max: usize,
        conflicts: AtomicUsize,
    }

    impl Store for Narrow {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { item_bytes_max: self.item_bytes_max, ..(*self.inner.profile()).clone() })
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            let is_by_token = batch.iter().any(|op| matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. }));
            let one_less = |left: usize| left.checked_sub(1).filter(|_| is_by_token);
            match self.conflicts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
                Ok(_) => Run::Ready(batch.iter().map(|_| Ok(Reply::Exists)).collect()),
                Err(_) => self.inner.run(ctx, batch),
            }
        }
    }

    fn narrow(inner: &StoreRef, item_bytes_max: usize) -> (Arc<Narrow>, StoreRef) {
        let narrow = Arc::new(Narrow { inner: inner.clone(), item_bytes_max, conflicts: AtomicUsize::new(0) });
        (narrow.clone(), narrow)
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_or_met_others_is_tried_again_after_a_pause() {
        let faulty = Faulty::new(memory());
        let site = options(1).open_or_create(&faulty.shared(), "site").await.unwrap();
        site.add([0u64]).await.unwrap();
        let began = Moment::now();
        site.add([1u64]).await.unwrap();
        assert!(began.elapsed().is_zero(), "nobody was in the way");
        faulty.fail_always(Fault::NotSent);
        assert_eq!(site.add([2u64]).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(!began.elapsed().is_zero(), "eight reads failed");

        let (narrow, store) = narrow(&memory(), usize::MAX);
        let site = options(1).open_or_create(&store, "site").await.unwrap();
        site.add([0u64]).await.unwrap();
        let began = Moment::now();
        narrow.conflicts.store(8, Ordering::SeqCst);
        assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
        assert_eq!(narrow.conflicts.load(Ordering::SeqCst), 0);
        assert!(!began.elapsed().is_zero(), "others were first eight times");
    }

    #[tokio::test]
    async fn a_shard_takes_just_as_many_bytes_as_an_item_has_room_for() {
        // As it is once all have come.
        let filled = async |store: &StoreRef, ids: u64| {
            let site = options(1).open_or_create(store, "site").await.unwrap();
            site.add(0..ids).await.unwrap();
            site
        };
        let all = memory();
        let site = filled(&all, 9_001).await;
        let day = day_of(&site).await;
        let key = site.0.core.shard_key(&day.head, 0).unwrap();
        let bytes = all.get(key).await.unwrap().unwrap().value.len();
        assert_eq!(day.head.shards, 1);
        let key_bytes = site.0.core.key_bytes;
        for (room_bytes, fits) in [(bytes, true), (bytes - 1, false)] {
            let store = memory();
            filled(&store, 9_000).await;
            let beside = store.profile().item_overhead_bytes + key_bytes;
            let (_, limited) = narrow(&store, room_bytes + beside);
            let site = options(1).open(&limited, "site").await.unwrap();
            match site.add([9_000u64]).await {
                Ok(told) => assert!(fits && told == [Novelty::New], "{told:?}"),
                Err(error) => assert!(!fits && error.kind() == ErrorKind::Full, "{error}"),
            }
        }
    }
}
