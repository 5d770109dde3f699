//! [`Outage`]: what to do while a store cannot be reached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::observe::{self, Event, Subject};
use larder_core::{
    Batch, Ctx, Durability, Error, ErrorKind, Eviction, Op, Profile, PutMode, Replies, Run, Store, StoreRef, Verb,
    ambient,
};
use parking_lot::Mutex;

use crate::retry::{Pauses, harmless};
use crate::runtime;

/// The bound of the first pause while a store is out, and that of every pause.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What to do with an op that finds its store out.
///
/// ```
/// use larder_layers::OnOutage;
/// use std::time::Duration;
/// let patient = OnOutage::Wait(Duration::from_secs(10));
/// ```
#[derive(Clone, Debug, Default)]
pub enum OnOutage {
    /// Hand the error on, as it is.
    #[default]
    Fail,
    /// Try again, with pauses of full jitter, until this long after the outage was met, or until the caller's deadline if that is earlier. Needs a Tokio runtime with its timer
    /// (`enable_time`): outside of one the error is handed on as it is, and in one without its timer Tokio panics.
    Wait(Duration),
    /// Ask another store at once. [`Outage`] says what this does to structures.
    FallBack(StoreRef),
}

/// A store with a declared answer to its outages, for reads and for writes apart.
///
/// An outage is an op that failed with [`ErrorKind::Unavailable`] and that **did no harm by it**: it is known not to have taken effect, or only
/// reads. A write whose effect is unknown is handed on as unknown, whatever was declared: it may have landed, and sent again, or sent elsewhere,
/// it might happen twice. Nor is any op sent again that would then overtake another on its key. A store that hangs is no outage until its
/// client says so ([`ErrorKind::Timeout`] is handed on).
///
/// | declared | an op during an outage |
/// |---|---|
/// | [`OnOutage::Fail`] (unless told otherwise) | fails as it is |
/// | [`OnOutage::Wait`] | waits for the store to come back, at most so long |
/// | [`OnOutage::FallBack`] | is run on the second store. A **conditional** write is not, unless [`conditional_writes_too`](Outage::conditional_writes_too) is asked for |
///
/// # What falling back does
/// Two stores are two stores. Nothing is copied from one to the other, neither when the first one goes nor when it comes back, and which of them
/// answers is decided op by op: one client can reach the first while another cannot. So
///
/// - **a lock in two stores is two locks**, each with a holder, and their fencing tokens do not order one another;
/// - an exact counter counts in two places, and either total lacks what the other has; a set, table or log is two halves;
/// - what was written to the second store is not seen once the first is back, and an older value is seen instead.
///
/// Falling back is for what may be stale or made again: caches, for reads of what was also put into the second store. All writes
/// that depend on what the item holds (cas, add, replace, append, prepend, arithmetic, a delete by token) are what structures are made of. They do not
/// fall back unless asked for, so that a structure opened over this layer fails in an outage rather than splits: with
/// [`conditional_writes_too`](Outage::conditional_writes_too) it splits. A token of one store never holds in the other.
///
/// **Open no structure over a layer that falls back.** What only reads, and plain sets, deletes and touches do fall back, and structures use those, too: what is out of reach is then told as
/// [`Lost`](ErrorKind::Lost) or [`Absent`](ErrorKind::Absent), a drop whose last reply was lost may be told as done, and where one of several servers is out a build of a packed table is acknowledged whose
/// blocks stand in the second store alone. And where writes wait and reads fall back, a read is answered by the second store before a write to its key in its own batch is done.
///
/// The profile is the weaker of all stores in each point: what a structure relies on must hold wherever an op may go.
///
/// **Round trips: none of its own** while all goes well; in an outage 1 of the second store, or 1 an attempt.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Key, StoreExt, StoreRef};
/// use larder_layers::{OnOutage, Outage};
/// use larder_store_memory::MemoryStore;
/// use std::{sync::Arc, time::Duration};
///
/// let (server, nearby): (StoreRef, StoreRef) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
/// // Pages are read from a cache nearby while the server is out; what is written waits for it.
/// let pages = Outage::new(server).reads(OnOutage::FallBack(nearby)).writes(OnOutage::Wait(Duration::from_secs(5)));
/// assert_eq!(pages.get(Key::new("front page")?).await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Outage {
    store: StoreRef,
    reads: OnOutage,
    writes: OnOutage,
    conditional_writes_too: bool,
    /// The profiles of the stores and ours, made of them; protects them while a new handshake replaces one.
    weakest: Mutex<Option<Weakest>>,
}

/// A profile made of several.
#[derive(Debug)]
struct Weakest {
    of: Vec<Arc<Profile>>,
    ours: Arc<Profile>,
}

impl Outage {
    /// Hands errors on, until told otherwise.
    ///
    /// ```
    /// use larder_layers::Outage;
    /// # use larder_store_memory::MemoryStore;
    /// let store = Outage::new(std::sync::Arc::new(MemoryStore::new()));
    /// ```
    pub fn new(store: StoreRef) -> Outage {
        let (reads, writes) = (OnOutage::Fail, OnOutage::Fail);
        Outage { store, reads, writes, conditional_writes_too: false, weakest: Mutex::new(None) }
    }

    /// What to do with reads.
    ///
    /// ```
    /// use larder_layers::{OnOutage, Outage};
    /// # use larder_store_memory::MemoryStore;
    /// # let (server, nearby) = (std::sync::Arc::new(MemoryStore::new()), std::sync::Arc::new(MemoryStore::new()));
    /// let store = Outage::new(server).reads(OnOutage::FallBack(nearby));
    /// ```
    #[must_use]
    pub fn reads(mut self, policy: OnOutage) -> Outage {
        self.reads = policy;
        self.weakest = Mutex::new(None);
        self
    }

    /// What to do with writes: every op that is no get.
    ///
    /// ```
    /// use larder_layers::{OnOutage, Outage};
    /// # use larder_store_memory::MemoryStore;
    /// # let server = std::sync::Arc::new(MemoryStore::new());
    /// let store = Outage::new(server).writes(OnOutage::Wait(std::time::Duration::from_secs(10)));
    /// ```
    #[must_use]
    pub fn writes(mut self, policy: OnOutage) -> Outage {
        self.writes = policy;
        self.weakest = Mutex::new(None);
        self
    }

    /// Lets conditional writes fall back, too, where writes do. **A structure over it then splits in an outage**: a lock can have two
    /// holders, a counter two values. For stores that hold nothing that two clients must agree on.
    ///
    /// ```
    /// use larder_layers::{OnOutage, Outage};
    /// # use larder_store_memory::MemoryStore;
    /// # let (server, nearby) = (std::sync::Arc::new(MemoryStore::new()), std::sync::Arc::new(MemoryStore::new()));
    /// let store = Outage::new(server).writes(OnOutage::FallBack(nearby)).conditional_writes_too();
    /// ```
    #[must_use]
    pub fn conditional_writes_too(mut self) -> Outage {
        self.conditional_writes_too = true;
        self
    }

    fn policy(&self, op: &Op) -> &OnOutage {
        let policy = if op.is_read() { &self.reads } else { &self.writes };
        match policy {
            OnOutage::FallBack(_) if is_conditional(op) && !self.conditional_writes_too => &OnOutage::Fail,
            policy => policy,
        }
    }

    /// The stores that ops may go to, this one first.
    fn stores(&self) -> impl Iterator<Item = &StoreRef> {
        std::iter::once(&self.store).chain(self.seconds())
    }

    /// The stores that ops may fall back to, each once.
    fn seconds(&self) -> impl Iterator<Item = &StoreRef> {
        let [for_reads, for_writes] = [&self.reads, &self.writes].map(|policy| match policy {
            OnOutage::FallBack(store) => Some(store),
            _ => None,
        });
        let other = for_writes.filter(|store| for_reads.is_none_or(|first| !Arc::ptr_eq(first, store)));
        for_reads.into_iter().chain(other)
    }

    /// Brings the ops at `places` to an end, as declared.
    async fn settle(&self, ctx: Ctx, batch: Batch, mut replies: Replies, places: Vec<usize>) -> Replies {
        // What falls back takes its time out of what others wait.
        let start = ambient::now();
        let policy = |at: &usize| self.policy(&batch[*at]);
        for second in self.seconds() {
            // Reads and writes together, in the order of the batch, where they fall back to the same store.
            let falls = |at: &usize| matches!(policy(at), OnOutage::FallBack(store) if Arc::ptr_eq(store, second));
            let places: Vec<usize> = places.iter().copied().filter(falls).collect();
            if !places.is_empty() {
                let ops: Batch = places.iter().map(|&at| batch[at].clone()).collect();
                self.tell(|subject| Event::FallBack { subject, ops: places.len() });
                put_back(&mut replies, &places, second.run(ctx, ops).await);
            }
        }
        let waits = places.into_iter().filter(|at| matches!(policy(at), OnOutage::Wait(_))).collect();
        self.wait(ctx, &batch, replies, waits, start).await
    }

    /// Tries the ops at `places` again until they are answered, or waited long enough since `start`.
    async fn wait(
        &self,
        ctx: Ctx,
        batch: &Batch,
        mut replies: Replies,
        mut places: Vec<usize>,
        start: Instant,
    ) -> Replies {
        let mut pauses = Pauses::new(PAUSE_FIRST, PAUSE_MAX);
        loop {
            let left = |at: &usize| match self.policy(&batch[*at]) {
                OnOutage::Wait(limit) => limit.saturating_sub(ambient::now().duration_since(start)),
                _ => Duration::ZERO,
            };
            places.retain(|at| !left(at).is_zero());
            let pause = pauses.next_pause().min(places.iter().map(left).max().unwrap_or_default());
            // A try that begins at the deadline would end after it.
            if places.is_empty()
                || !runtime::is_here()
                || ctx.deadline.is_some_and(|deadline| deadline.saturating_duration_since(ambient::now()) <= pause)
            {
                return replies;
            }
            tokio::time::sleep(pause).await;
            self.tell(|subject| Event::Retry { subject, cause: ErrorKind::Unavailable });
            let again: Batch = places.iter().map(|&at| batch[at].clone()).collect();
            let answers = self.store.run(ctx, again.clone()).await;
            let next = harmless(&again, &answers, is_outage).into_iter().map(|at| places[at]).collect();
            put_back(&mut replies, &places, answers);
            places = next;
        }
    }

    fn tell(&self, event: impl FnOnce(Subject<'_>) -> Event<'_>) {
        if let Some(observer) = observe::current() {
            let profile = self.store.profile();
            observer.observe(&event(Subject { kind: "store", name: profile.store.as_bytes() }));
        }
    }
}

impl Store for Outage {
    fn profile(&self) -> Arc<Profile> {
        let now: Vec<Arc<Profile>> = self.stores().map(|store| store.profile()).collect();
        if let [only] = now.as_slice() {
            return only.clone();
        }
        let mut kept = self.weakest.lock();
        match &*kept {
            Some(Weakest { of, ours }) if of.iter().zip(&now).all(|(of, now)| Arc::ptr_eq(of, now)) => ours.clone(),
            _ => {
                let weakest = now.iter().skip(1).fold((*now[0]).clone(), |weakest, other| weaker(weakest, other));
                let ours = Arc::new(weakest);
                *kept = Some(Weakest { of: now, ours: ours.clone() });
                ours
            }
        }
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let judge = move |batch: Batch, replies: Replies| {
            let mut places = harmless(&batch, &replies, is_outage);
            places.retain(|&at| !matches!(self.policy(&batch[at]), OnOutage::Fail));
            if places.is_empty() { Err(replies) } else { Ok(self.settle(ctx, batch, replies, places)) }
        };
        match self.store.run(ctx, batch.clone()) {
            Run::Ready(replies) => match judge(batch, replies) {
                Ok(future) => Run::pending(future),
                Err(replies) => Run::Ready(replies),
            },
            Run::Pending(future) => Run::pending(async move {
                match judge(batch, future.await) {
                    Ok(future) => future.await,
                    Err(replies) => replies,
                }
            }),
        }
    }
}

fn is_outage(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}

/// True for a write whose outcome depends on what the item holds.
fn is_conditional(op: &Op) -> bool {
    match &op.verb {
        Verb::Get { .. } | Verb::GetRange { .. } | Verb::Watch { .. } | Verb::Touch { .. } => false,
        Verb::Put { mode, .. } => !matches!(mode, PutMode::Set),
        Verb::Delete { cas } => cas.is_some(),
        Verb::Arith { .. } | Verb::PutRange { .. } => true,
        Verb::Native(native) => !native.is_read(),
    }
}

/// Puts answers in the places of the ops that they are to.
fn put_back(replies: &mut Replies, places: &[usize], answers: Replies) {
    for (&at, answer) in places.iter().zip(answers) {
        replies[at] = answer;
    }
}

/// What holds on both stores.
fn weaker(one: Profile, other: &Profile) -> Profile {
    let durability = |durability| match durability {
        Durability::Process => 0,
        Durability::Server => 1,
        Durability::Unknown => 2,
        Durability::Recent => 3,
        Durability::Disk => 4,
    };
    let eviction = |eviction| match eviction {
        Eviction::WhenFull => 0,
        Eviction::Unknown => 1,
        Eviction::Never => 2,
    };
    Profile {
        store: format!("{}, in an outage {}", one.store, other.store),
        key_bytes_max: one.key_bytes_max.min(other.key_bytes_max),
        keys_binary: one.keys_binary && other.keys_binary,
        item_bytes_max: one.item_bytes_max.min(other.item_bytes_max),
        item_overhead_bytes: one.item_overhead_bytes.max(other.item_overhead_bytes),
        batch_ops_max: one.batch_ops_max.min(other.batch_ops_max),
        nodes: one.nodes.min(other.nodes),
        scattered: one.scattered || other.scattered,
        cas: one.cas && other.cas,
        delete_cas: one.delete_cas && other.delete_cas,
        ttl: one.ttl.min(other.ttl),
        ttl_max: one.ttl_max.min(other.ttl_max),
        remaining_ttl: one.remaining_ttl && other.remaining_ttl,
        arith_initial: one.arith_initial && other.arith_initial,
        ranges: one.ranges.min(other.ranges),
        natives: one.natives & other.natives,
        watch: one.watch && other.watch,
        durability: std::cmp::min_by_key(one.durability, other.durability, |&of| durability(of)),
        eviction: std::cmp::min_by_key(one.eviction, other.eviction, |&of| eviction(of)),
        // Native collections are not carried over.
        encodings: None,
        warnings: [&one.warnings[..], &other.warnings[..]].concat(),
    }
}

#[cfg(test)]
mod tests {
    use larder_core::native::Families;
    use larder_core::{Cas, Effect, Ranges, Reply, Result, StoreExt, Ttl, TtlSupport};

    use super::*;
    use crate::fake::{Fake, down, fault, get, key, outside_a_runtime};

    const SECOND: Duration = Duration::from_secs(1);

    fn set(name: &'static str) -> Op {
        Op::put(key(name), PutMode::Set, "x", Ttl::Never)
    }

    fn names(asked: Vec<(Ctx, Batch)>) -> Vec<Vec<String>> {
        let of_op = |op: &Op| format!("{} {}", op.name(), String::from_utf8_lossy(op.key.as_bytes()));
        asked.iter().map(|(_, batch)| batch.iter().map(of_op).collect()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_declared_nothing_is_done() {
        let fake = Arc::new(Fake::default());
        let outage = Outage::new(fake.clone());
        assert_eq!(outage.profile(), fake.profile());
        fake.will_answer([down(), down()]);
        let replies = outage.run(Ctx::default(), Batch::from_iter([get("a"), set("b")])).await;
        assert!(replies.iter().all(Result::is_err));
        assert_eq!(fake.take_asked().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_and_writes_are_declared_apart() {
        let (fake, second) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
        let outage = Outage::new(fake.clone()).reads(OnOutage::FallBack(second.clone())).writes(OnOutage::Wait(SECOND));
        fake.will_answer([down(), down(), Ok(Reply::Miss), fault(ErrorKind::Timeout, Effect::NotApplied)]);
        let batch = Batch::from_iter([get("a"), set("b"), get("c"), get("d")]);
        let replies = outage.run(Ctx::default(), batch).await;
        assert!(matches!(&replies[0], Ok(Reply::Item(_))), "from the second store");
        assert_eq!(replies[1].as_ref().unwrap(), &Reply::Stored, "from the first, a moment later");
        assert_eq!(replies[2].as_ref().unwrap(), &Reply::Miss);
        assert_eq!(replies[3].as_ref().unwrap_err().kind(), ErrorKind::Timeout, "no outage");
        assert_eq!(names(second.take_asked()), [["get a"]]);
        assert_eq!(names(fake.take_asked())[1..], [["set b"]]);
    }

    #[test]
    fn outside_a_runtime_nothing_is_waited_for_and_reads_fall_back() {
        let (fake, second) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
        let outage = Outage::new(fake.clone()).reads(OnOutage::FallBack(second)).writes(OnOutage::Wait(SECOND));
        fake.will_answer([down(), down()]);
        let replies = outside_a_runtime(outage.run(Ctx::default(), Batch::from_iter([get("a"), set("b")])));
        assert!(replies[0].is_ok());
        assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(fake.take_asked().len(), 1);
    }

    /// In real time: the limit is one of the layer's own clock.
    #[tokio::test]
    async fn a_wait_ends_with_its_limit_or_the_deadline_and_leaves_the_error() {
        let short = Duration::from_millis(60);
        for (limit, has_deadline) in [(short, false), (3_600 * SECOND, true)] {
            let ctx = if has_deadline { Ctx::within(short) } else { Ctx::default() };
            let fake = Arc::new(Fake::default());
            for _ in 0..10_000 {
                fake.will_answer([down()]);
            }
            let outage = Outage::new(fake.clone()).writes(OnOutage::Wait(limit));
            let start = Instant::now();
            let replies = outage.run(ctx, Batch::from_iter([set("a")])).await;
            assert_eq!(replies[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
            let tries = fake.take_asked().len();
            assert!((2..1_000).contains(&tries), "{tries} tries");
            assert!(start.elapsed() < 5 * SECOND && (start.elapsed() >= short || has_deadline));
        }
    }

    /// In real time, too.
    #[tokio::test]
    async fn a_wait_counts_from_when_the_outage_was_met_and_not_from_the_end_of_a_slow_fallback() {
        let (fake, second) = (Arc::new(Fake::default()), Fake::slow(Duration::from_millis(150)));
        let wait = OnOutage::Wait(Duration::from_millis(100));
        let outage = Outage::new(fake.clone()).reads(OnOutage::FallBack(second)).writes(wait);
        fake.will_answer([down(), down()]);
        let replies = outage.run(Ctx::default(), Batch::from_iter([get("a"), set("b")])).await;
        assert!(replies[0].is_ok());
        assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(fake.take_asked().len(), 1, "its time was over");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_write_is_neither_repeated_nor_sent_elsewhere() {
        for policy in [OnOutage::Wait(SECOND), OnOutage::FallBack(Arc::new(Fake::default()))] {
            let fake = Arc::new(Fake::default());
            let outage = Outage::new(fake.clone()).reads(policy.clone()).writes(policy).conditional_writes_too();
            fake.will_answer([fault(ErrorKind::Unavailable, Effect::Unknown), down()]);
            let replies = outage.run(Ctx::default(), Batch::from_iter([set("a"), get("a")])).await;
            assert!(replies[0].as_ref().unwrap_err().is_unknown());
            assert!(replies[1].is_err(), "it would overtake the write that may land yet");
            assert_eq!(fake.take_asked().len(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn conditional_writes_fall_back_only_where_asked_for() {
        let cas = Cas { token: 1, session: 1 };
        let put = |mode| Op::put(key("k"), mode, "x", Ttl::Never);
        let conditional = [
            put(PutMode::Add),
            put(PutMode::Replace),
            put(PutMode::Append),
            put(PutMode::Prepend),
            put(PutMode::Cas(cas)),
            Op::delete_if(key("k"), cas),
            Op::arith(key("k"), larder_core::Arith::Incr(1)),
        ];
        let others = [put(PutMode::Set), Op::delete(key("k")), Op::touch(key("k"), Ttl::Never)];
        for (op, falls) in conditional.into_iter().map(|op| (op, false)).chain(others.map(|op| (op, true))) {
            for too in [false, true] {
                let (fake, second) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
                let outage = Outage::new(fake.clone()).writes(OnOutage::FallBack(second.clone()));
                let outage = if too { outage.conditional_writes_too() } else { outage };
                fake.will_answer([down()]);
                let replies = outage.run(Ctx::default(), Batch::from_iter([op.clone()])).await;
                assert_eq!(replies[0].is_ok(), falls || too, "{}, {too}", op.name());
                assert_eq!(second.take_asked().len(), usize::from(falls || too), "{}", op.name());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ops_that_fall_back_to_one_store_keep_their_order() {
        let (fake, second) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
        let policy = OnOutage::FallBack(second.clone());
        let outage = Outage::new(fake.clone()).reads(policy.clone()).writes(policy);
        fake.will_answer([down(), down(), down()]);
        let replies = outage.run(Ctx::default(), Batch::from_iter([set("a"), get("a"), set("a")])).await;
        assert!(replies.iter().all(Result::is_ok));
        assert_eq!(names(second.take_asked()), [["set a", "get a", "set a"]]);
        assert_eq!(outage.profile().store, "fake, in an outage fake", "named once");
    }

    #[test]
    fn the_profile_is_the_weaker_in_each_point() {
        #[derive(Debug)]
        struct Profiled(Arc<Profile>);
        impl Store for Profiled {
            fn profile(&self) -> Arc<Profile> {
                self.0.clone()
            }
            fn run<'a>(&'a self, _: Ctx, _: Batch) -> Run<'a> {
                Run::Ready(Replies::new())
            }
        }
        let full = Profile {
            nodes: 3,
            ranges: Ranges::Native,
            natives: Families::all(),
            durability: Durability::Disk,
            ..Profile::unlimited("strong")
        };
        let weak = Profile {
            key_bytes_max: 100,
            keys_binary: false,
            item_bytes_max: 1_000,
            item_overhead_bytes: 50,
            batch_ops_max: 10,
            nodes: 1,
            scattered: true,
            cas: false,
            delete_cas: false,
            ttl: TtlSupport::Seconds,
            ttl_max: SECOND,
            remaining_ttl: false,
            arith_initial: false,
            ranges: Ranges::No,
            natives: Families::SET,
            durability: Durability::Server,
            eviction: Eviction::WhenFull,
            ..Profile::unlimited("weak")
        };
        for (first, second) in [(&full, &weak), (&weak, &full)] {
            let store = |profile: &Profile| -> StoreRef { Arc::new(Profiled(Arc::new(profile.clone()))) };
            let outage = Outage::new(store(first)).reads(OnOutage::FallBack(store(second)));
            let found = outage.profile();
            assert_eq!(*found, Profile { store: found.store.clone(), ..weak.clone() });
            assert_eq!(found.store, format!("{}, in an outage {}", first.store, second.store));
            assert!(Arc::ptr_eq(&found, &outage.profile()), "made once");
        }
    }

    #[tokio::test]
    async fn without_an_outage_nothing_is_asked_twice() {
        let fake = Fake::slow(Duration::from_millis(1));
        let outage = Outage::new(fake.clone()).reads(OnOutage::Wait(SECOND)).writes(OnOutage::Wait(SECOND));
        assert!(outage.get(key("a")).await.unwrap().is_some());
        assert_eq!(fake.take_asked().len(), 1);
    }
}
