//! An eye on the manifest of an opened structure.
//!
//! A handle reads the manifest when it opens, and its data from then on. So a store that evicts what is read least evicts the
//! manifest first, and then a process that opens the name anew would make a second structure beside the first. Therefore
//! a handle looks again, at most once a [`LOOK_EVERY`], with a read or write that it makes anyway: the look travels in the same
//! batch, and costs no round trip. What it finds:
//!
//! | manifest | what it means | what is done |
//! |---|---|---|
//! | this life's | all is well | nothing |
//! | another life's | dropped, or lost, and made again by others | the handle says [`Lost`](ErrorKind::Lost) from then on |
//! | missing, with the data there *after* that | evicted: a drop removes the data first | put back, beside the caller, unless somebody else is first |
//! | a copy that does not decide, of another life | left behind, or its write came late | as one that is missing: replaced |
//! | missing, as are data | dropped, or lost | nothing: the data say `Lost` themselves |
//!
//! So two lives of a name go on side by side for a [`LOOK_EVERY`] at the most, or until the older one's handle is next used.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_core::observe::{self, Event, Subject};
use larder_core::{
    Batch, ClockRef, Ctx, Error, ErrorKind, Key, Op, PutMode, Replies, Reply, Result, Route, StoreRef, Ttl, Want,
};

use crate::behind::Behind;
use crate::copies::{self, Gap};
use crate::counter;
use crate::events;
use crate::manifest::Manifest;
use crate::name::Name;

/// How long a handle goes without a look at its manifest while it is used.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long putting a manifest back may take.
const PUT_BACK_MAX: Duration = Duration::from_secs(5);

/// What all clones of a handle know of their manifest.
pub(crate) struct Vigil {
    store: StoreRef,
    clock: ClockRef,
    name: Name,
    manifest: Manifest,
    key: Key,
    /// When the next look is due, by the clock's monotonic time.
    next_look_ms: AtomicU64,
    /// True once another life of the name was seen; it stays so.
    is_over: AtomicBool,
    /// Puts the manifest back.
    putting_back: Behind,
}

/// What a look found.
#[derive(Debug)]
pub(crate) enum Sight {
    /// This life's manifest, but in these places.
    Ours { missing: Vec<Gap> },
    /// That of another life.
    Another,
    /// None, on any server that should have one.
    Gone { missing: Vec<Gap> },
    /// It could not be read.
    Unread(Error),
}

impl Vigil {
    pub(crate) fn new(store: &StoreRef, clock: ClockRef, name: &Name, manifest: &Manifest) -> Result<Arc<Vigil>> {
        let next_look_ms = AtomicU64::new(as_ms(clock.monotonic().saturating_add(LOOK_EVERY)));
        Ok(Arc::new(Vigil {
            store: store.clone(),
            clock,
            key: name.manifest_key()?,
            name: name.clone(),
            manifest: manifest.clone(),
            next_look_ms,
            is_over: AtomicBool::new(false),
            putting_back: Behind::default(),
        }))
    }

    /// Fails if this life of the name is known to be over.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], with the effect "not applied": what was written went to a life that nobody opens any more.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_over() { Err(self.lost("was made again by others: open it anew")) } else { Ok(()) }
    }

    /// True if this life of the name is known to be over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Runs a batch, with a look at the manifest in it if one is due. **Round trips: 1.**
    pub(crate) async fn run(self: &Arc<Self>, ctx: Ctx, batch: Batch) -> Replies {
        if !self.is_due() {
            return self.store.run(ctx, batch).await;
        }
        let (replies, sight) = self.look(ctx, batch).await;
        if let Sight::Ours { missing } | Sight::Gone { missing } = sight
            && !missing.is_empty()
        {
            self.put_back(missing);
        }
        replies
    }

    /// Runs a batch, with a look at the manifest in it if one is due, and tells what it found; puts nothing back. **Round trips: 1.**
    pub(crate) async fn watch(self: &Arc<Self>, ctx: Ctx, batch: Batch) -> (Replies, Option<Sight>) {
        if !self.is_due() {
            return (self.store.run(ctx, batch).await, None);
        }
        let (replies, sight) = self.look(ctx, batch).await;
        (replies, Some(sight))
    }

    /// Runs a batch, with a look at the manifest in it, and puts nothing back. **Round trips: 1**, 2 for a batch that has no room for the look.
    pub(crate) async fn look(self: &Arc<Self>, ctx: Ctx, mut batch: Batch) -> (Replies, Sight) {
        let gets: Batch =
            self.ranks().map(|rank| Op::get(self.key.clone(), Want::VALUE | Want::CAS).routed(at(rank))).collect();
        let asked = batch.len();
        let (replies, seen) = if asked + gets.len() <= self.store.profile().batch_ops_max {
            batch.extend(gets);
            let mut replies = self.store.run(ctx, batch).await;
            let seen = replies.drain(asked.min(replies.len())..).collect();
            (replies, seen)
        } else {
            (self.store.run(ctx, batch).await, self.store.run(ctx, gets).await)
        };
        let sight = self.judge(seen);
        if matches!(sight, Sight::Another) {
            self.is_over.store(true, Ordering::Release);
        }
        (replies, sight)
    }

    /// Fails unless a look found this life's manifest.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], or what kept it from being read.
    pub(crate) fn expect_ours(&self, sight: Sight) -> Result<()> {
        match sight {
            Sight::Ours { .. } => Ok(()),
            Sight::Another => self.check(),
            Sight::Gone { .. } => {
                Err(self.lost("has no manifest any more: it was dropped, or its server was restarted"))
            }
            Sight::Unread(error) => Err(error),
        }
    }

    fn lost(&self, why: &str) -> Error {
        let detail = format!("{} {} {why}", self.manifest.kind.as_str(), self.name);
        let error = Error::new(ErrorKind::Lost, detail).key(&self.key).store(self.store.profile().store.clone());
        events::loss(self.subject(), error)
    }

    /// The structure, as events name it.
    pub(crate) fn subject(&self) -> Subject<'_> {
        events::subject(self.manifest.kind, &self.name)
    }

    /// The ranks of the servers that the manifest stands on.
    fn ranks(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.manifest.copies.max(1)
    }

    /// True if the next batch looks: what needs none may make one for it.
    pub(crate) fn is_look_due(&self) -> bool {
        as_ms(self.clock.monotonic()) >= self.next_look_ms.load(Ordering::Relaxed)
    }

    /// True for one caller a [`LOOK_EVERY`].
    fn is_due(&self) -> bool {
        let now = self.clock.monotonic();
        let due_ms = self.next_look_ms.load(Ordering::Relaxed);
        let next_ms = as_ms(now.saturating_add(LOOK_EVERY));
        as_ms(now) >= due_ms
            && self.next_look_ms.compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The next use looks.
    #[cfg(test)]
    pub(crate) fn make_due(&self) {
        self.next_look_ms.store(0, Ordering::Relaxed);
    }

    /// What the replies of the ranks say together.
    fn judge(&self, seen: Replies) -> Sight {
        let (mut missing, mut fault, mut is_there) = (Vec::new(), None, false);
        for (rank, reply) in self.ranks().zip(seen) {
            match reply.map(Reply::into_item) {
                Ok(None) => missing.push((rank, PutMode::Add)),
                Ok(Some(item)) => match Manifest::decode(&item.value) {
                    Ok(now) if now.generation == self.manifest.generation => is_there = true,
                    // The server of rank 0 decides; elsewhere it may be left behind by an earlier life.
                    _ if rank == 0 => return Sight::Another,
                    Ok(_) => missing.extend(item.cas.map(|cas| (rank, PutMode::Cas(cas)))),
                    Err(_) => {}
                },
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        match fault {
            _ if is_there => Sight::Ours { missing },
            None => Sight::Gone { missing },
            Some(error) => Sight::Unread(error),
        }
    }

    /// Puts the manifest back on the servers of these ranks, beside the caller. Never waits, never fails.
    fn put_back(self: &Arc<Self>, missing: Vec<Gap>) {
        let vigil = self.clone();
        self.putting_back.run(PUT_BACK_MAX, || async move {
            let ctx = Ctx::within(PUT_BACK_MAX);
            let missing = copies::fillable(&vigil.store, ctx, &vigil.name, &vigil.manifest, missing).await;
            // After the manifest was seen missing: of what is being dropped, nothing is left by then.
            if !missing.is_empty() && vigil.are_data_there(ctx).await {
                let takes_back = vigil.add(ctx, &missing).await;
                // Where there are copies, a drop removes those of the manifest and of the data, and both once more.
                if !takes_back.is_empty() && !vigil.are_data_there(ctx).await {
                    _ = vigil.store.run(ctx, takes_back).await;
                }
            }
            Ok(())
        });
    }

    /// True if each piece of data is there, on as many servers as make it valid.
    async fn are_data_there(&self, ctx: Ctx) -> bool {
        let profile = self.store.profile();
        let needed = self.ranks().count() / 2 + 1;
        let slots_a_batch = (profile.batch_ops_max / self.ranks().count()).max(1);
        let indices: Vec<u16> = (0..self.manifest.shards).collect();
        for part in indices.chunks(slots_a_batch) {
            let Ok(cells) =
                part.iter().map(|&index| self.manifest.cells(&self.name, index)).collect::<Result<Vec<_>>>()
            else {
                return false;
            };
            let asks = cells
                .iter()
                .flatten()
                .map(|cell| counter::presence_op(&self.manifest, cell.key.clone()).routed(cell.route.clone()));
            let mut replies = self.store.run(ctx, asks.collect()).await.into_iter();
            for cells in &cells {
                let is_there = |reply: &Result<Reply>| counter::is_present(&self.manifest, reply);
                let found = replies.by_ref().take(cells.len()).filter(is_there).count();
                if found < needed {
                    return false;
                }
            }
        }
        true
    }

    /// Writes the manifest where it lacks; where another life's decides by then, this one is over. The ops that take it back are returned, but for
    /// the one that decides: without data it says `Lost`.
    async fn add(&self, ctx: Ctx, gaps: &[Gap]) -> Batch {
        let bytes = self.manifest.encode();
        let put = |(rank, mode)| {
            let put = Op::put(self.key.clone(), mode, bytes.clone(), Ttl::Never).routed(at(rank));
            [put, Op::get(self.key.clone(), Want::VALUE | Want::CAS).routed(at(rank))]
        };
        let replies = self.store.run(ctx, gaps.iter().flat_map(|&gap| put(gap)).collect()).await;
        if replies.iter().any(|reply| matches!(reply, Ok(Reply::Stored))) {
            observe::emit(|| Event::PutBack { subject: self.subject() });
        }
        if let (Some((0, _)), Some(Ok(Reply::Item(item)))) = (gaps.first(), replies.get(1))
            && Manifest::decode(&item.value).map_or(true, |now| now.generation != self.manifest.generation)
        {
            self.is_over.store(true, Ordering::Release);
        }
        let has_tokens = self.store.profile().delete_cas;
        let take_back = |(&(rank, _), replies): (&Gap, &[Result<Reply>])| match replies {
            [_, Ok(Reply::Item(item))] if rank > 0 && item.value == bytes => Some(match item.cas {
                Some(cas) if has_tokens => Op::delete_if(self.key.clone(), cas).routed(at(rank)),
                _ => Op::delete(self.key.clone()).routed(at(rank)),
            }),
            _ => None,
        };
        gaps.iter().zip(replies.chunks(2)).filter_map(take_back).collect()
    }
}

fn at(rank: u8) -> Route {
    Route { with: None, rank }
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigil").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use larder_core::{Item, Profile, Run, Store, SystemClock, Verb};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::answering_tests::Answering;
    use crate::manifest::Kind;

    fn counter(copies: u8) -> (Arc<Answering>, Arc<Vigil>) {
        counter_on(Arc::new(MemoryStore::new()), copies)
    }

    fn counter_on(store: StoreRef, copies: u8) -> (Arc<Answering>, Arc<Vigil>) {
        let answering = Answering::over(&store);
        let manifest = Manifest { copies, ..Manifest::new(Kind::Counter, 1, 1, Bytes::new()) };
        let name = Name::new("n").unwrap();
        let vigil = Vigil::new(&answering.shared(), SystemClock::shared(), &name, &manifest).unwrap();
        (answering, vigil)
    }

    #[tokio::test]
    async fn a_look_asks_each_server_that_has_a_copy_of_the_manifest() {
        for (copies, ranks) in [(0, vec![0]), (1, vec![0]), (3, vec![0, 1, 2])] {
            let (answering, vigil) = counter(copies);
            let Sight::Gone { missing } = vigil.look(Ctx::default(), Batch::new()).await.1 else {
                panic!("it is gone")
            };
            assert_eq!(missing, ranks.iter().map(|&rank| (rank, PutMode::Add)).collect::<Vec<_>>());
            let asked = answering.asked();
            let asked: Vec<u8> = asked.iter().flat_map(|(_, batch)| batch).map(|op| op.route.rank).collect();
            assert_eq!(asked, ranks, "{copies} copies");
        }
    }

    /// A second look at the data would tell nothing where there are no copies that a drop may have missed.
    #[tokio::test]
    async fn a_manifest_without_copies_is_put_back_by_a_look_at_the_data_and_a_write() {
        let (answering, vigil) = counter(1);
        let cell = vigil.manifest.cells(&vigil.name, 0).unwrap().remove(0);
        let put = Op::put(cell.key, PutMode::Set, "a slot", Ttl::Never);
        assert!(matches!(answering.shared().run(Ctx::default(), Batch::from_iter([put])).await[0], Ok(Reply::Stored)));
        answering.asked();
        vigil.put_back(vec![(0, PutMode::Add)]);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let asked = answering.asked();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(
            matches!(vigil.look(Ctx::default(), Batch::new()).await.1, Sight::Ours { missing } if missing.is_empty())
        );
    }

    /// A store that refuses to delete by token.
    #[derive(Debug)]
    struct Tokenless(MemoryStore);

    impl Store for Tokenless {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { delete_cas: false, ..(*self.0.profile()).clone() })
        }

        fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
            let reply = |op: &Op| match op.verb {
                Verb::Delete { cas: Some(_) } => Err(Error::new(ErrorKind::Unsupported, "a delete by token")),
                _ => self.0.apply(op),
            };
            Run::Ready(batch.iter().map(reply).collect())
        }
    }

    /// The data go while the copy is written.
    #[tokio::test]
    async fn a_copy_that_came_behind_a_drop_is_taken_back_also_where_nothing_is_deleted_by_token() {
        let stores: [StoreRef; 2] = [Arc::new(MemoryStore::new()), Arc::new(Tokenless(MemoryStore::new()))];
        for store in stores {
            let (answering, vigil) = counter_on(store, 3);
            let data = vigil.manifest.cells(&vigil.name, 0).unwrap().remove(0).key;
            let mut is_dropped = false;
            answering.by(move |op| {
                is_dropped |= !op.is_read();
                let reply = if is_dropped { Reply::Miss } else { Reply::Item(Item::default()) };
                (op.key == data).then_some(Ok(reply))
            });
            vigil.put_back(vec![(1, PutMode::Add)]);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let asked = answering.asked();
            assert_eq!(asked.len(), 4, "data, the copy, data, and away with it: {asked:?}");
            assert!(matches!(vigil.look(Ctx::default(), Batch::new()).await.1, Sight::Gone { .. }));
        }
    }
}
