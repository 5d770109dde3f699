//! What all parts of a handle share: periods, their heads and keys, the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_core::{
    Batch, Cas, ClockRef, Ctx, Durability, Error, ErrorKind, Key, Op, Replies, Reply, Result, StoreRef, Ttl, Want,
    ambient,
};

use super::layout::{self, Head, PERIOD_MAX, Params};
use super::sizing::Room;
use crate::events;
use crate::ledger::{CLOCKS_APART_MAX, Ledger, List, Piece};
use crate::manifest::Manifest;
use crate::name::Name;
use crate::vigil::Vigil;

/// How far ahead a period may begin: as far as two calendars of the earth are apart.
const AHEAD_MAX: Duration = Duration::from_secs(26 * 60 * 60);
/// What stores take off a life at the most: memcached counts whole seconds.
const GRAIN_MS: u64 = 5_000;
/// How many periods a handle remembers.
const DAYS_MAX: usize = 64;
/// Of several batches, how many ops one has: so much is in memory at a time, and on its way.
const OPS_A_BATCH: usize = 4_096;

/// Parts of a period, as the ledger lists them.
pub(super) const MADE: u16 = 0;
/// With the number of shards above the period's number, as those below: they are found by it where the head is gone. Where nothing expires it is listed before
/// there are any, so that what a crash leaves behind is found by it, too.
pub(super) const PLANNED: u16 = 1;
/// A life whose shards are being deleted: there is no other of its period before they are.
pub(super) const FORGETTING: u16 = 2;
/// A life whose shards were deleted, with how many of them may come late: whatever else is listed of it, or stands as its head, is void for ever.
pub(super) const FORGOTTEN: u16 = 3;
const PERIOD_BITS: u32 = 40;

/// An opened structure, but for the writes under way.
pub(super) struct Core {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) manifest: Manifest,
    pub(super) params: Params,
    pub(super) ledger: Ledger,
    pub(super) clock: ClockRef,
    pub(super) timeout: Duration,
    /// The longest key of a shard.
    pub(super) key_bytes: usize,
    pub(super) value_bytes_max: usize,
    /// Protects what is known of periods, never held across an await: so a plain mutex.
    days: Mutex<BTreeMap<u64, Arc<Day>>>,
}

/// A period that is there.
#[derive(Debug)]
pub(super) struct Day {
    pub(super) period: u64,
    pub(super) head: Head,
}

/// The head that stands, with its token.
pub(super) type Standing = Option<(Arc<Day>, Option<Cas>)>;

/// A head that stands, of a life that was forgotten.
#[derive(Clone, Copy)]
pub(super) struct Void {
    /// That of the next life takes its place by this.
    pub(super) cas: Cas,
    /// Its life: the token of the same item is another one over another connection.
    pub(super) incarnation: u64,
}

/// What a look at a period found.
pub(super) struct Look {
    /// The life of it that stands; `None` where nobody came, or all that came were forgotten.
    pub(super) day: Option<Arc<Day>>,
    pub(super) list: List,
    pub(super) void: Option<Void>,
}

impl Core {
    /// # Errors
    /// [`ErrorKind::BadInput`] for a name without room for keys.
    pub(super) fn new(
        store: StoreRef,
        name: Name,
        manifest: Manifest,
        params: Params,
        ledger: Ledger,
        clock: ClockRef,
        timeout: Duration,
    ) -> Result<Core> {
        let longest = Head { incarnation: u64::MAX, expected: 0, shards: 1, bits: 64, padded_bytes: 0 };
        let key = manifest.data_key(&name, longest.index(layout::SHARDS_MAX))?;
        let key_bytes = key.as_bytes().len();
        let value_bytes_max = store.profile().value_bytes_max(key_bytes).min(u32::MAX as usize);
        let days = Mutex::default();
        Ok(Core { store, name, manifest, params, ledger, clock, timeout, key_bytes, value_bytes_max, days })
    }

    pub(super) fn vigil(&self) -> &Arc<Vigil> {
        self.ledger.vigil()
    }

    pub(super) fn deadline(&self) -> Instant {
        let now = ambient::now();
        now.checked_add(self.timeout).unwrap_or(now)
    }

    pub(super) fn now_ms(&self) -> u64 {
        as_ms(self.clock.wall())
    }

    /// What sizes depend on.
    pub(super) fn room(&self) -> Room {
        let is_in_process = self.store.profile().durability == Durability::Process;
        Room { key_bytes: self.key_bytes, is_in_process, members_max: self.members_max() }
    }

    /// How many ops one batch of many takes.
    pub(super) fn ops_a_batch(&self) -> usize {
        // One is left for a look at the manifest.
        OPS_A_BATCH.min(self.store.profile().batch_ops_max.saturating_sub(1)).max(1)
    }

    pub(super) fn head_key(&self, period: u64) -> Result<Key> {
        self.manifest.data_key(&self.name, layout::head_index(period))
    }

    pub(super) fn shard_key(&self, head: &Head, shard: u32) -> Result<Key> {
        self.manifest.data_key(&self.name, head.index(shard))
    }

    /// As [`shard_key`](Core::shard_key), of many at once, for as long as a call takes.
    pub(super) fn shard_keys(&self, head: &Head, shards: impl ExactSizeIterator<Item = u32>) -> Result<Vec<Key>> {
        self.manifest.data_keys(&self.name, shards.map(|shard| head.index(shard)))
    }

    /// # Errors
    /// [`ErrorKind::BadInput`] for a period that is over, too far ahead, or has no number.
    pub(super) fn expect_kept(&self, period: u64) -> Result<()> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if period > PERIOD_MAX {
            return bad(format!("the period is {period}; the last one is {PERIOD_MAX}"));
        }
        let (now_ms, begin_ms) = (self.now_ms(), self.params.begin_ms(period));
        let ahead_ms = begin_ms.saturating_sub(now_ms);
        if ahead_ms > as_ms(AHEAD_MAX) {
            let max = as_ms(AHEAD_MAX);
            return bad(format!("period {period} begins {ahead_ms} ms ahead of this clock; the limit is {max} ms"));
        }
        let until_ms = self.kept_until_ms(period);
        if now_ms >= until_ms {
            let (since, keep) = (now_ms - until_ms, self.params.keep_ms);
            return bad(format!(
                "period {period} is over: it was kept for {keep} ms after its end, and that was {since} ms ago"
            ));
        }
        Ok(())
    }

    fn kept_until_ms(&self, period: u64) -> u64 {
        kept_until_ms(&self.params, period)
    }

    /// True while a period is read and added to.
    pub(super) fn is_kept(&self, period: u64) -> bool {
        self.now_ms() < self.kept_until_ms(period)
    }

    /// The life of what is made, or written anew, in a period now: it ends when the period is no longer kept, whenever it began, and for
    /// clocks that are behind this one as much later as they may be.
    pub(super) fn life(&self, period: u64) -> Ttl {
        match end_ms(&self.params, period) {
            None => Ttl::Never,
            Some(end_ms) => Ttl::After(Duration::from_millis(end_ms.saturating_sub(self.now_ms()).max(1_000))),
        }
    }

    /// A period that is there; `None` for one that nobody came in. **Round trips: 0** for one that is known, else 1.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] for one whose head is gone, and those of the store.
    pub(super) async fn day(&self, ctx: Ctx, period: u64) -> Result<Option<Arc<Day>>> {
        match self.known(period) {
            Some(day) => Ok(Some(day)),
            None => Ok(self.look(ctx, period).await?.day),
        }
    }

    pub(super) fn known(&self, period: u64) -> Option<Arc<Day>> {
        self.lock_days().get(&period).cloned()
    }

    /// Reads a period's head, and the ledger. What the ledger lists is remembered. **Round trips: 1**, 2 where the head seems gone.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where the ledger lists a head that is gone, or a life that is being forgotten.
    pub(super) async fn look(&self, ctx: Ctx, period: u64) -> Result<Look> {
        let (mut head, list) = self.read(ctx, period).await?;
        if list.pieces().iter().any(|piece| is_half_forgotten(&list, piece, period)) {
            return Err(self.being_forgotten(period));
        }
        // It lists another life of the period than the one whose head is there, or one without a head.
        let is_strange = |head: &Standing| {
            let here = head.as_ref().map(|(day, _)| day.head.incarnation);
            let stands = |piece: &&Piece| piece.part == MADE && piece.number == period && !is_forgotten(&list, piece);
            list.pieces().iter().filter(stands).any(|piece| Some(piece.incarnation) != here)
        };
        let is_void = |day: &Day| is_forgotten(&list, &day.piece());
        if is_strange(&head) {
            // The two were read in no order: what was listed by then was there before, and is now.
            let key = self.head_key(period)?;
            head = self.head_of(period, &key, one(self.store.run(ctx, Batch::from_buf([head_op(&key)])).await)?)?;
            if is_strange(&head) {
                let is_another = head.is_some_and(|(day, _)| !is_void(&day));
                let what = if is_another { "it was made again since" } else { "its head is gone" };
                return Err(self.lost(period, what, Some(&key)));
            }
        }
        let (day, void) = match head {
            Some((day, cas)) if is_void(&day) => (None, cas.map(|cas| Void { cas, incarnation: day.head.incarnation })),
            head => (head.map(|(day, _)| day), None),
        };
        if let Some(day) = day.as_ref().filter(|day| list.has_exactly(&day.piece())) {
            self.remember(day);
        }
        Ok(Look { day, list, void })
    }

    /// Reads the head that stands, and the ledger, in no order. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for what is no head, and those of the store.
    pub(super) async fn read(&self, ctx: Ctx, period: u64) -> Result<(Standing, List)> {
        let key = self.head_key(period)?;
        let before = self.ledger.seen();
        let batch = Batch::from_iter([head_op(&key), self.ledger.read_op()]);
        let mut replies = self.vigil().run(ctx, batch).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let (found, listed) = (next()?, next());
        let list = self.ledger.list(listed, before)?;
        Ok((self.head_of(period, &key, found)?, list))
    }

    fn head_of(&self, period: u64, key: &Key, found: Reply) -> Result<Standing> {
        let Some(item) = found.into_item() else { return Ok(None) };
        let head = Head::decode(&item.value).map_err(|error| error.key(key))?;
        Ok(Some((Arc::new(Day { period, head }), item.cas)))
    }

    pub(super) fn remember(&self, day: &Arc<Day>) {
        let mut days = self.lock_days();
        days.insert(day.period, day.clone());
        if days.len() > DAYS_MAX {
            // Not the one that was just asked for.
            let first = days.keys().copied().find(|&period| period != day.period);
            first.map(|first| days.remove(&first));
        }
    }

    pub(super) fn forget(&self, period: u64) {
        self.lock_days().remove(&period);
    }

    fn lock_days(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Day>>> {
        // A panic while it was held (an allocation failed) leaves the map whole.
        self.days.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for a period of which something is gone. Others go on.
    pub(super) fn lost(&self, period: u64, what: &str, key: Option<&Key>) -> Error {
        let detail = format!(
            "period {period} of {}: {what}: evicted, or lost in a restart, or another program's value stands under its key, which is left as it is; \
             `forget` clears what is left of it, and another name or namespace keeps clear of that program",
            self.name
        );
        self.loss(period, detail, key)
    }

    /// The error for a period that is being forgotten: a part of it may be gone.
    fn being_forgotten(&self, period: u64) -> Error {
        let detail = format!(
            "period {period} of {} is being forgotten, or was in a part: `forget` clears away the rest",
            self.name
        );
        self.loss(period, detail, None)
    }

    fn loss(&self, period: u64, detail: String, key: Option<&Key>) -> Error {
        self.forget(period);
        let error = Error::new(ErrorKind::Lost, detail).store(self.store.profile().store.clone());
        let error = match key {
            Some(key) => error.key(key),
            None => error,
        };
        events::loss(self.vigil().subject(), error)
    }

    /// Reads shards of a period, all at once. A missing one is a loss. **Round trips: 1** for every 4,096.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], and those of the store.
    pub(super) async fn read_shards(
        &self,
        ctx: Ctx,
        day: &Day,
        shards: &[u32],
        want: Want,
    ) -> Result<Vec<larder_core::Item>> {
        let mut items = Vec::with_capacity(shards.len());
        for part in shards.chunks(self.ops_a_batch()) {
            let gets: Result<Batch> =
                part.iter().map(|&shard| Ok(Op::get(self.shard_key(&day.head, shard)?, want))).collect();
            let replies: Replies = self.vigil().run(ctx, gets?).await;
            for (&shard, reply) in part.iter().zip(replies) {
                match reply?.into_item() {
                    Some(item) => items.push(item),
                    None => return Err(self.lost_shard(day, shard)),
                }
            }
        }
        Ok(items)
    }

    pub(super) fn lost_shard(&self, day: &Day, shard: u32) -> Error {
        let what = format!("shard {shard} of {} is gone", day.head.shards);
        self.lost(day.period, &what, self.shard_key(&day.head, shard).ok().as_ref())
    }

    /// Removes entries of periods that are over by everybody's clock, where there are many.
    pub(super) async fn trim(&self, deadline: Instant, list: &List) {
        const TRIM_MIN: usize = 16;
        let slack_ms = 2 * as_ms(CLOCKS_APART_MAX) + GRAIN_MS;
        let now_ms = self.now_ms();
        let is_over = |piece: &&Piece| self.kept_until_ms(period_of(piece)).saturating_add(slack_ms) <= now_ms;
        let over: Vec<Piece> = list.pieces().iter().filter(is_over).copied().collect();
        let periods: BTreeSet<u64> = over.iter().map(period_of).collect();
        if periods.len() >= TRIM_MIN {
            // The next one tries again.
            _ = self.ledger.trim(deadline, &over, |piece| self.head_key(period_of(piece))).await;
        }
    }
}

impl Day {
    pub(super) fn piece(&self) -> Piece {
        Piece { number: self.period, part: MADE, incarnation: self.head.incarnation }
    }

    /// The entry of a period that is being made, or was.
    pub(super) fn plan(&self) -> Piece {
        entry(self.period, self.head.shards, PLANNED, self.head.incarnation)
    }
}

/// An entry that tells how many shards there are.
pub(super) fn entry(period: u64, shards: u32, part: u16, incarnation: u64) -> Piece {
    Piece { number: period | u64::from(shards) << PERIOD_BITS, part, incarnation }
}

/// True if the life that an entry is of was forgotten.
pub(super) fn is_forgotten(list: &List, of: &Piece) -> bool {
    let is_same = |piece: &Piece| piece.incarnation == of.incarnation && period_of(piece) == period_of(of);
    list.pieces().iter().any(|piece| piece.part == FORGOTTEN && is_same(piece))
}

/// True for the entry of a life of a period that is being forgotten, and was not yet.
fn is_half_forgotten(list: &List, piece: &Piece, period: u64) -> bool {
    piece.part == FORGETTING && period_of(piece) == period && !is_forgotten(list, piece)
}

/// The op that reads a head.
fn head_op(key: &Key) -> Op {
    Op::get(key.clone(), Want::VALUE | Want::CAS)
}

fn kept_until_ms(params: &Params, period: u64) -> u64 {
    match params.keep_ms {
        0 => u64::MAX,
        keep_ms => params.begin_ms(period.saturating_add(1)).saturating_add(keep_ms),
    }
}

/// When the life of what a period has ends, in milliseconds since 1970; `None`: never.
pub(super) fn end_ms(params: &Params, period: u64) -> Option<u64> {
    let end_ms = || kept_until_ms(params, period).saturating_add(as_ms(CLOCKS_APART_MAX) + GRAIN_MS);
    (params.keep_ms > 0).then(end_ms)
}

/// The period that an entry is of.
pub(super) fn period_of(piece: &Piece) -> u64 {
    piece.number & ((1 << PERIOD_BITS) - 1)
}

/// How many shards an entry says that there are.
pub(super) fn planned_shards(piece: &Piece) -> u32 {
    // 24 bits.
    (piece.number >> PERIOD_BITS) as u32
}

/// The value of a reply that a read of one op brought.
pub(super) fn one(replies: Replies) -> Result<Reply> {
    replies.into_iter().next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueVisitors").field("name", &self.name).field("params", &self.params).finish_non_exhaustive()
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
