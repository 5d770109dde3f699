//! Following a log: what came since the last look, wherever in its retention it came.
//!
//! A look asks for the ledger and for the tokens of all parts that are known, and reads only the parts that changed: so many, and leaves the rest to
//! the looks that follow, by the list that it read. What was
//! read of a part is a number of bytes of one incarnation, and their check: parts only grow, so a part that begins otherwise is of a store that was set back, even where
//! what others have put since ends exactly where the last look did. A part is read whole in any case, so that costs no round trip. Events that come late, into old chunks, change those
//! chunks' parts, and are found like any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Batch, Cas, Ctx, Error, ErrorKind, Op, Reply, Result, Want};

use super::cursor::{Begin, Cursor};
use super::events::Events;
use super::fetch::gap;
use super::inner::{Inner, Met, Read, parts};
use super::layout::{At, HEADER_BYTES, PartFrame, PartValue};
use crate::events;
use crate::ledger::{List, Piece};
use crate::runtime;
use crate::wait::{self, Watched};

/// Between two looks of [`Tail::next`], if nothing else was said.
const EVERY: Duration = Duration::from_secs(1);

/// A reader that goes on where it stopped. Made by [`EventLog::tail`](super::EventLog::tail).
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::{EventLog, log::Cursor};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let log = EventLog::open_or_create(&store, "audit").await?;
/// let mut tail = log.tail(Cursor::default())?;
/// log.put("one").await?;
/// log.put("two").await?;
/// assert_eq!(tail.poll().await?.whole()?.len(), 2);
/// assert!(tail.poll().await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tail {
    inner: Arc<Inner>,
    timeout: Duration,
    every: Duration,
    cursor: Cursor,
    /// What stood in each part at the last look; only where the store tells tokens.
    sights: BTreeMap<At, Sight>,
    /// The token of the list of chunks at the last look.
    list_cas: Option<Cas>,
    /// How many parts a look reads at the most.
    parts_a_look: usize,
    /// What the last look found to read and left to the next.
    left: Option<Survey>,
}

/// A shorter pause would be none.
const EVERY_MIN: Duration = Duration::from_millis(1);

/// What stood in a part; `None`: nothing.
type Sight = Option<Seen>;

/// A part as it stood: which incarnation, how long, and the tokens it had, one a connection.
#[derive(Clone, Debug)]
struct Seen {
    incarnation: u64,
    bytes: usize,
    tokens: Vec<Cas>,
}

/// How many tokens of a part are remembered: more connections than that a client does not have.
const TOKENS_MAX: usize = 8;

/// How many parts are read within one timeout, and in one look if nothing else was said: 4 MiB, mostly.
const PARTS_A_BATCH: usize = 64;

/// What is to be read, by the list and the tokens.
#[derive(Clone, Debug)]
struct Survey {
    list: Arc<List>,
    list_cas: Option<Cas>,
    /// The parts that did not change, in order.
    unchanged: Vec<At>,
    /// Those that changed, or were never seen, in order.
    todo: Vec<At>,
    /// The tokens that were told of those.
    tokens: BTreeMap<At, Cas>,
}

impl Survey {
    /// The same without what is past the retention by now: it may have expired since, which is no gap.
    fn kept(&self, inner: &Inner, now_ms: u64) -> Survey {
        let todo = self.todo.iter().filter(|at| inner.is_kept(at.chunk, now_ms)).copied().collect();
        Survey { todo, ..self.clone() }
    }
}

/// Frames: chunk, writer, sequence.
type Frames = BTreeSet<(u64, u64, u64)>;

impl Tail {
    pub(super) fn new(inner: Arc<Inner>, timeout: Duration, cursor: Cursor) -> Result<Tail> {
        if cursor.generation != 0 && cursor.generation != inner.manifest.generation {
            return Err(inner.lost("was made anew since the cursor was kept: begin with a new one"));
        }
        Ok(Tail {
            inner,
            timeout,
            every: EVERY,
            cursor,
            sights: BTreeMap::new(),
            list_cas: None,
            parts_a_look: PARTS_A_BATCH,
            left: None,
        })
    }

    /// How long [`next`](Tail::next) pauses between two looks, at the most; it draws from the upper half of that. A second if not
    /// given, a millisecond at the least.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// let tail = log.tail(Cursor::default())?.every(std::time::Duration::from_millis(100));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn every(mut self, every: Duration) -> Tail {
        self.every = every.max(EVERY_MIN);
        self
    }

    /// How many parts one look reads at the most, so how much it may take in memory: a part has 64 KiB mostly, and an item of the store at the most. 64 if not given, 1 at the
    /// least. What is beyond is told by the next looks; see [`is_behind`](Tail::is_behind).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// let tail = log.tail(Cursor::default())?.parts_a_look(16);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn parts_a_look(mut self, parts: usize) -> Tail {
        self.parts_a_look = parts.max(1);
        self
    }

    /// True if the last look left something unread for the next, which takes it up where it stood: there is no need to pause before it. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// let mut tail = log.tail(Cursor::default())?;
    /// loop {
    ///     for event in tail.poll().await?.whole()? {
    ///         println!("{}", String::from_utf8_lossy(&event.bytes));
    ///     }
    ///     if !tail.is_behind() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_behind(&self) -> bool {
        self.left.is_some()
    }

    /// What has been read.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// let tail = log.tail(Cursor::default())?;
    /// assert_eq!(tail.cursor(), &Cursor::default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// What came since the last look: events in the order of their time within what one look found, and gaps, each told once. A look
    /// reads at most [`parts_a_look`](Tail::parts_a_look) parts; where more have changed the next ones take up what it left, and this tail
    /// [`is_behind`](Tail::is_behind) until then. An event that was acknowledged before a look began of a tail that was not behind has been told when it is not behind again.
    /// A cursor that failed, or was dropped, has not moved.
    ///
    /// **Round trips: 1** where nothing came, 2 where something did, 1 for a look that takes up what the last one left; on a store without tokens always 2, and where the client has
    /// several connections until each has told its own token. One more after a put was tried
    /// in two places, and for each further 64 parts that a look was told to read: each 64 are read within a timeout of their own.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// log.put("x").await?;
    /// let mut tail = log.tail(Cursor::default())?;
    /// let (events, gaps) = tail.poll().await?.with_gaps();
    /// assert_eq!((events.len(), gaps.len()), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where the list of chunks is gone, [`RolledBack`](ErrorKind::RolledBack) where a part does not begin with what this tail, or the one whose cursor it took up,
    /// has read of it: the store was set back, and others may have put events since; none of them is skipped in silence. [`LayoutMismatch`](ErrorKind::LayoutMismatch) for
    /// a part that is damaged; those of the store. What a setback took before it was ever read is not told: nobody who reads knows of it.
    pub async fn poll(&mut self) -> Result<Events> {
        self.inner.ledger.vigil().check()?;
        let now_ms = self.inner.now_ms();
        let survey = match &self.left {
            Some(left) => left.kept(&self.inner, now_ms),
            None => self.survey(Ctx::within(self.timeout), now_ms).await?,
        };
        let (some, rest) = survey.todo.split_at(self.first_few(&survey.todo));
        let reads = self.read_values(some).await?;
        let told = self.told_elsewhere(&reads).await?;
        self.inner.ledger.vigil().check()?;
        // Nothing is awaited from here on: what is told and what is noted go together.
        let (cursor, sights, mut found) = self.judge(&survey, &reads, &told, now_ms)?;
        self.cursor = cursor;
        self.sights = sights;
        self.list_cas = survey.list_cas;
        let left = Survey { unchanged: Vec::new(), todo: rest.to_vec(), ..survey }.kept(&self.inner, now_ms);
        self.left = (!left.todo.is_empty()).then_some(left);
        found.events.sort_by_key(|event| event.time_ms);
        found.gaps.sort_by_key(|gap| (gap.first_ms, gap.part));
        Ok(found)
    }

    /// Waits until there is something to tell, looking every now and then. An event is told at the latest one pause (see
    /// [`every`](Tail::every)) and one look after it was acknowledged; at once where the store tells of changes (`watch` in the profile)
    /// and the event went to one of the newest parts. Dropping it loses nothing.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// log.put("x").await?;
    /// let mut tail = log.tail(Cursor::default())?;
    /// assert_eq!(tail.next().await?.whole()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Tail::poll); [`Unsupported`](ErrorKind::Unsupported) without a Tokio runtime.
    pub async fn next(&mut self) -> Result<Events> {
        runtime::current("waiting has pauses")?;
        loop {
            let found = self.poll().await?;
            if !found.is_empty() {
                return Ok(found);
            }
            if self.is_behind() {
                continue;
            }
            // Of many that follow one log, not all look at once.
            let pause = self.every.mul_f64(0.5 + fastrand::f64() / 2.0);
            wait::changed(&self.inner.store, self.watched(), pause, pause).await;
        }
    }

    /// What a wait depends on: the list, and the newest parts. What happens to older ones is found by a look.
    fn watched(&self) -> impl Iterator<Item = Watched> {
        let list = Watched::new(&self.inner.ledger.read_op(), self.list_cas);
        let part = |(at, sight): (&At, &Sight)| {
            let seen = sight.as_ref().and_then(|seen| seen.tokens.first().copied());
            Some(Watched::new(&Op::get(self.inner.key(*at).ok()?, Want::CAS), seen))
        };
        std::iter::once(list).chain(self.sights.iter().rev().filter_map(part))
    }

    /// How many of the parts that are to be read this look reads. A chunk is not split over two looks if it can be helped: its events are told in order then.
    fn first_few(&self, todo: &[At]) -> usize {
        let Some(next) = todo.get(self.parts_a_look) else { return todo.len() };
        match todo[..self.parts_a_look].partition_point(|at| at.chunk < next.chunk) {
            0 => self.parts_a_look,
            whole_chunks => whole_chunks,
        }
    }

    /// Asks which parts there are, and which have changed.
    async fn survey(&self, ctx: Ctx, now_ms: u64) -> Result<Survey> {
        let inner = &self.inner;
        let known: Vec<At> = self.sights.keys().copied().collect();
        // The first batch has a place for the ledger, and one for a look at the manifest.
        let ops_max = inner.store.profile().batch_ops_max.saturating_sub(2).max(1);
        let (first, rest) = known.split_at(known.len().min(ops_max));
        let mut batch = Batch::from_iter([inner.ledger.read_op()]);
        for &at in first {
            batch.push(Op::get(inner.key(at)?, Want::CAS));
        }
        let before = inner.ledger.seen();
        let mut replies = inner.ledger.vigil().run(ctx, batch).await.into_iter();
        let listed = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let list_cas =
            listed.as_ref().ok().and_then(|reply| if let Reply::Item(item) = reply { item.cas } else { None });
        let list = inner.ledger.list(listed, before)?;
        let mut tokens = Vec::with_capacity(known.len());
        inner.take_reads(first, replies, Want::CAS, &mut tokens)?;
        tokens.extend(inner.read_parts(ctx, rest, Want::CAS).await?);

        let mut wanted: BTreeSet<At> = parts(list.pieces()).into_iter().collect();
        wanted.extend(self.cursor.places.keys().map(|(at, _)| *at));
        wanted.retain(|at| inner.is_kept(at.chunk, now_ms));
        // A token may be older than the list, on another server: a part that was made since is read again, before it is missing.
        let is_unchanged = |token: &&Read| self.is_as_before(token) && !self.lists_another(&list, token.at);
        let unchanged: BTreeSet<At> = tokens.iter().filter(is_unchanged).map(|read| read.at).collect();
        let (unchanged, todo): (_, Vec<At>) = wanted.into_iter().partition(|at| unchanged.contains(at));
        let told = tokens.iter().filter_map(|read| Some((read.at, read.item.as_ref()?.1?)));
        let tokens = told.filter(|(at, _)| todo.binary_search(at).is_ok()).collect();
        Ok(Survey { list: Arc::new(list), list_cas, unchanged, todo, tokens })
    }

    /// Reads parts, some at a time, each time within a timeout of its own: of many all together take longer.
    async fn read_values(&self, all: &[At]) -> Result<Vec<Read>> {
        let mut reads = Vec::with_capacity(all.len());
        for some in all.chunks(PARTS_A_BATCH) {
            reads.extend(self.inner.read_parts(Ctx::within(self.timeout), some, Want::VALUE | Want::CAS).await?);
        }
        Ok(reads)
    }

    fn is_as_before(&self, token: &Read) -> bool {
        let now = token.item.as_ref().map(|(_, cas)| *cas);
        match (self.sights.get(&token.at), now) {
            (Some(None), None) => true,
            (Some(Some(before)), Some(Some(now))) => before.tokens.contains(&now),
            _ => false,
        }
    }

    /// True if the list names an incarnation of a part that this tail has never met.
    fn lists_another(&self, list: &List, at: At) -> bool {
        let is_met = |piece: &Piece| self.cursor.places.contains_key(&(at, piece.incarnation));
        !list.incarnations(at.chunk, at.part).iter().all(is_met)
    }

    /// Of the frames that are new in what was read and marked: those that were told before, from another part of their chunk. Of the other parts
    /// no more is kept than that.
    async fn told_elsewhere(&self, reads: &[Read]) -> Result<Frames> {
        let mut marked = Frames::new();
        for read in reads {
            let Some((value, _)) = &read.item else { continue };
            let part = self.inner.parse(read.at, value)?;
            let frames = self.new_frames(read.at, &part)?;
            let frames = frames.iter().filter(|frame| frame.is_marked);
            marked.extend(frames.map(|frame| (read.at.chunk, frame.writer, frame.seq)));
        }
        let mut told = Frames::new();
        let is_concerned = |at: &At| marked.range((at.chunk, 0, 0)..=(at.chunk, u64::MAX, u64::MAX)).next().is_some();
        let is_read = |at: &At| reads.binary_search_by_key(at, |read| read.at).is_ok();
        let places = self.cursor.places.iter().filter(|(_, read)| read.is_some()).map(|((at, _), _)| *at);
        let mut others: Vec<At> = places.filter(|at| is_concerned(at) && !is_read(at)).collect();
        others.dedup();
        for some in others.chunks(PARTS_A_BATCH) {
            for read in self.inner.read_parts(Ctx::within(self.timeout), some, Want::VALUE).await? {
                let frames = self.told_frames(&read)?.into_iter().map(|(writer, seq)| (read.at.chunk, writer, seq));
                told.extend(frames.filter(|frame| marked.contains(frame)));
            }
        }
        Ok(told)
    }

    /// How far a part was read.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] where it does not begin with what was read: it went back to an older state, and others may have appended to that.
    /// [`ErrorKind::LayoutMismatch`] where it is not whole, either: then it is damaged.
    fn read_of(&self, at: At, part: &PartValue<'_>) -> Result<usize> {
        let Some(begin) = self.cursor.places.get(&(at, part.incarnation)).copied().flatten() else {
            return Ok(HEADER_BYTES);
        };
        let read = begin.bytes as usize;
        let why = if part.len() < read {
            format!("has {} bytes; {read} were read of it", part.len())
        } else if part.cut(read).check() != begin.check {
            part.frames(HEADER_BYTES).map_err(|error| self.inner.named(error, at))?;
            format!("does not begin with the {read} bytes that were read of it")
        } else {
            return Ok(read);
        };
        Err(self.inner.named(Error::new(ErrorKind::RolledBack, format!("part {at} of a log {why}")), at))
    }

    fn new_frames<'v>(&self, at: At, part: &PartValue<'v>) -> Result<Vec<PartFrame<'v>>> {
        part.frames(self.read_of(at, part)?).map_err(|error| self.inner.named(error, at))
    }

    /// What a look found that is new, and where the cursor stands behind it.
    fn judge(
        &self,
        survey: &Survey,
        reads: &[Read],
        told: &Frames,
        now_ms: u64,
    ) -> Result<(Cursor, BTreeMap<At, Sight>, Events)> {
        let inner = &self.inner;
        let mut cursor = Cursor { generation: inner.manifest.generation, ..self.cursor.clone() };
        let mut sights = self.sights.clone();
        let mut found = Events::default();
        for of_chunk in reads.chunk_by(|one, next| one.at.chunk == next.at.chunk) {
            self.take(of_chunk, told, now_ms, &mut cursor, &mut found)?;
        }
        let mut incarnations: BTreeMap<At, Option<u64>> =
            sights.iter().map(|(at, sight)| (*at, sight.as_ref().map(|seen| seen.incarnation))).collect();
        for read in reads {
            let sight = match &read.item {
                Some((value, cas)) => {
                    let part = inner.parse(read.at, value)?;
                    incarnations.insert(read.at, Some(part.incarnation));
                    let told = survey.tokens.get(&read.at).copied();
                    cas.map(|cas| Some(seen(sights.get(&read.at), &part, cas, told)))
                }
                None => {
                    incarnations.insert(read.at, None);
                    inner.store.profile().cas.then_some(None)
                }
            };
            match sight {
                Some(sight) => _ = sights.insert(read.at, sight),
                None => _ = sights.remove(&read.at),
            }
        }
        for at_part in survey.unchanged.iter().copied().chain(reads.iter().map(|read| read.at)) {
            let incarnation = incarnations.get(&at_part).copied().flatten();
            self.take_gaps(at_part, incarnation, &survey.list, &mut cursor, &mut found);
        }
        sights.retain(|at, _| inner.is_kept(at.chunk, now_ms));
        // Kept for as long as clocks may be apart, and as a part is listed: a clock that was ahead and goes back must not tell it again.
        cursor.places.retain(|(at, _), _| !inner.is_over(at.chunk, now_ms) || survey.list.has(at.chunk, at.part));
        let is_listed = |chunk: u64| !survey.list.between(chunk, chunk).is_empty();
        cursor.marked.retain(|(chunk, _, _)| !inner.is_over(*chunk, now_ms) || is_listed(*chunk));
        Ok((cursor, sights, found))
    }

    /// The frames of a part that were told before: writer and sequence.
    fn told_frames(&self, read: &Read) -> Result<Vec<(u64, u64)>> {
        let Some((value, _)) = &read.item else { return Ok(Vec::new()) };
        let part = self.inner.parse(read.at, value)?;
        let told = part.cut(self.read_of(read.at, &part)?);
        let frames = told.frames(HEADER_BYTES).map_err(|error| self.inner.named(error, read.at))?;
        Ok(frames.iter().map(|frame| (frame.writer, frame.seq)).collect())
    }

    /// Adds what is new in the parts of a chunk.
    fn take(&self, reads: &[Read], told: &Frames, now_ms: u64, cursor: &mut Cursor, found: &mut Events) -> Result<()> {
        let mut met = Met::default();
        for read in reads {
            met.extend(self.told_frames(read)?);
        }
        let times = self.inner.oldest_ms(now_ms)..=u64::MAX;
        for read in reads {
            let Some((value, _)) = &read.item else { continue };
            let part = self.inner.parse(read.at, value)?;
            for frame in self.new_frames(read.at, &part)? {
                let place = (read.at.chunk, frame.writer, frame.seq);
                let is_told =
                    !met.insert((frame.writer, frame.seq)) || told.contains(&place) || cursor.marked.contains(&place);
                if frame.is_marked {
                    cursor.marked.insert(place);
                }
                if !is_told {
                    self.inner.take_events(value, &part, (read.at, &frame), &times, &mut found.events)?;
                }
            }
            // An item that a log is kept in has fewer.
            let bytes = u32::try_from(part.len()).unwrap_or(u32::MAX);
            cursor.places.insert((read.at, part.incarnation), Some(Begin { bytes, check: part.check() }));
        }
        Ok(())
    }

    /// Adds the gaps of a part that were not told yet: of incarnations that are listed, or were read, and are not what is there.
    fn take_gaps(&self, at_part: At, found: Option<u64>, list: &List, cursor: &mut Cursor, found_now: &mut Events) {
        let read = cursor.places.range((at_part, 0)..=(at_part, u64::MAX)).map(|((_, incarnation), _)| *incarnation);
        let mut known: BTreeSet<u64> = read.collect();
        known.extend(list.incarnations(at_part.chunk, at_part.part).iter().map(|piece| piece.incarnation));
        for incarnation in known {
            let piece = Piece { number: at_part.chunk, part: at_part.part, incarnation };
            if let Some(gap) = gap(&self.inner, &piece, found)
                && cursor.places.insert((at_part, incarnation), None) != Some(None)
            {
                events::gap(self.inner.subject());
                found_now.gaps.push(gap);
            }
        }
    }
}

/// What is known of a part that was read with this token: a token is of one connection, so one that is new may be of the same value. Where it is, the one that was `told` between the last
/// read and this is, too, and its connection need not be met again: where two take turns, one for tokens and one for values, it never would.
fn seen(before: Option<&Sight>, part: &PartValue<'_>, cas: Cas, told: Option<Cas>) -> Seen {
    let (incarnation, bytes) = (part.incarnation, part.len());
    match before {
        Some(Some(before)) if (before.incarnation, before.bytes) == (incarnation, bytes) => {
            let mut tokens = vec![cas];
            for token in told.into_iter().chain(before.tokens.iter().copied()).take(TOKENS_MAX - 1) {
                if tokens.iter().all(|known| known.session != token.session) {
                    tokens.push(token);
                }
            }
            Seen { incarnation, bytes, tokens }
        }
        _ => Seen { incarnation, bytes, tokens: vec![cas] },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use larder_core::{ManualClock, Profile, Run, Store, StoreRef};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::EventLog;

    const AT: At = At { chunk: 9, part: 0 };

    /// The token of a connection.
    fn cas(session: u64) -> Cas {
        Cas { token: 1, session }
    }

    #[test]
    fn tokens_are_remembered_of_one_value_and_of_a_few_connections() {
        let (bytes, other) = (AT.header(1, 5), AT.header(1, 6));
        let part = PartValue::parse(&bytes, 1, AT).unwrap();
        let before = |tokens: Vec<Cas>| Some(Seen { incarnation: 5, bytes: bytes.len(), tokens });
        let tokens = |before: Option<&Sight>, told| seen(before, &part, cas(1), told).tokens;
        assert_eq!(tokens(None, None), [cas(1)]);
        assert_eq!(tokens(Some(&before(vec![cas(2)])), None), [cas(1), cas(2)]);
        assert_eq!(tokens(Some(&before(vec![cas(1), cas(2)])), Some(cas(3))), [cas(1), cas(3), cas(2)]);
        let many = tokens(Some(&before((2..30).map(cas).collect())), None);
        assert_eq!(many, (1..=TOKENS_MAX as u64).map(cas).collect::<Vec<_>>());

        // Of what was there before it grew, or was made anew, no token is one of what is there now.
        let shorter = Some(Seen { incarnation: 5, bytes: bytes.len() - 1, tokens: vec![cas(2)] });
        assert_eq!(tokens(Some(&shorter), Some(cas(3))), [cas(1)]);
        let anew = PartValue::parse(&other, 1, AT).unwrap();
        assert_eq!(seen(Some(&before(vec![cas(2)])), &anew, cas(1), Some(cas(3))).tokens, [cas(1)]);
        assert_eq!(seen(Some(&None), &part, cas(1), Some(cas(3))).tokens, [cas(1)]);
    }

    /// A clock that was ahead and goes back must not tell again what may stand in two parts.
    #[tokio::test]
    async fn a_mark_is_kept_while_its_chunk_is_listed_or_not_over_by_everybodys_clock() {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_700_000_000)));
        let store: StoreRef = Arc::new(MemoryStore::new());
        let options = EventLog::options().chunk(Duration::from_secs(60)).retention(Duration::from_secs(600));
        let log = options.clock(clock.clone()).open_or_create(&store, "marks").await.unwrap();
        log.put("x").await.unwrap();
        let mut tail = log.tail(Cursor::default()).unwrap();
        tail.poll().await.unwrap().whole().unwrap();
        let listed = log.now_ms() / 60_000;
        let [listed, unlisted] = [listed, listed - 1].map(|chunk| (chunk, 1, 1));
        tail.cursor.marked = BTreeSet::from([listed, unlisted]);
        tail.poll().await.unwrap().whole().unwrap();
        assert_eq!(tail.cursor.marked, BTreeSet::from([listed, unlisted]), "none is over");
        clock.advance(Duration::from_secs(1_000_000));
        _ = tail.poll().await.unwrap().with_gaps();
        assert_eq!(tail.cursor.marked, BTreeSet::from([listed]));
    }

    #[tokio::test]
    async fn a_tail_watches_the_list_and_the_parts_that_it_has_seen_the_newest_first() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let options = EventLog::options().chunk(Duration::from_secs(60)).retention(Duration::from_secs(600));
        let log = options.open_or_create(&store, "watched").await.unwrap();
        let mut tail = log.tail(Cursor::default()).unwrap();
        let list = tail.inner.ledger.read_op().key;
        let keys = |tail: &Tail| tail.watched().map(|watched| watched.key).collect::<Vec<_>>();
        assert_eq!(keys(&tail), std::slice::from_ref(&list));
        let now_ms = log.now_ms();
        log.put_all([(now_ms - 60_000, "older"), (now_ms, "newer")]).await.unwrap();
        tail.poll().await.unwrap().whole().unwrap();
        let part = |time_ms: u64| tail.inner.key(At { chunk: time_ms / 60_000, part: 0 }).unwrap();
        assert_eq!(keys(&tail), [list, part(now_ms), part(now_ms - 60_000)]);
    }

    /// A store that tells of no change, and when it was asked.
    #[derive(Debug)]
    struct Polled(StoreRef, Mutex<Vec<tokio::time::Instant>>);

    impl Store for Polled {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { watch: false, ..(*self.0.profile()).clone() })
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            self.1.lock().unwrap().push(tokio::time::Instant::now());
            self.0.run(ctx, batch)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_between_two_looks_is_of_the_upper_half_of_what_was_said_and_never_longer() {
        let polled = Arc::new(Polled(Arc::new(MemoryStore::new()), Mutex::default()));
        let store: StoreRef = polled.clone();
        let log = EventLog::open_or_create(&store, "polled").await.unwrap();
        let mut tail = log.tail(Cursor::default()).unwrap().every(Duration::from_secs(10));
        polled.1.lock().unwrap().clear();
        tokio::time::timeout(Duration::from_secs(600), tail.next()).await.unwrap_err();
        let looks = std::mem::take(&mut *polled.1.lock().unwrap());
        assert!(looks.len() >= 60, "{} looks", looks.len());
        for pause in looks.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()) {
            // Timers count milliseconds.
            assert!((5_000..=10_001).contains(&pause), "{pause} ms");
        }
    }
}
