//! The handles of a queue and of a stack: the same calls, on one engine.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::observe::WaitEnd;
use larder_core::text::Shown;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Reply, Result, StoreRef, Ttl, ambient};

use super::consume::{Change, Consumer, Given, What};
use super::engine::{Engine, SEGMENT_ITEMS};
use super::leases::{Claimed, after};
use super::options::{QueueOptions, Settings, StackOptions};
use super::push::{Answers, Push, Pusher};
use super::{ClaimId, QueueStat};
use crate::append::{Action, layout as frames};
use crate::combine::Combiner;
use crate::events::Waiting;
use crate::ids::random_id;
use crate::manifest::Kind;
use crate::name::Name;
use crate::renew::margin;
use crate::retry::Backoff;
use crate::timeout::TIMEOUT_MAX;
use crate::{runtime, wait};

/// How many callers' takings travel in one write, where a batch takes so many.
const COMBINED_MAX: usize = 128;

/// The first pause of those who wait for an item is at most this long, where the store does not tell of changes.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Pauses between looks while it is open what became of a segment: the first, and the longest.
const DOUBT_PAUSE_FIRST: Duration = Duration::from_millis(1);
const DOUBT_PAUSE_MAX: Duration = Duration::from_millis(50);

/// An opened queue or stack.
pub(super) struct Shared {
    engine: Arc<Engine>,
    pusher: Combiner<Pusher>,
    consumer: Combiner<Consumer>,
    /// Held for a look or a change.
    rest: Mutex<Rest>,
}

/// How those rest who were woken for nothing: others write the state too, and each such write wakes all who wait.
struct Rest {
    backoff: Backoff,
    /// True if the last wait was told of a change, and nothing was taken since.
    is_woken: bool,
}

impl Rest {
    fn new() -> Rest {
        Rest { backoff: Backoff::new(PAUSE_FIRST, PAUSE_MAX), is_woken: false }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("params", &self.engine.params).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) async fn open(
        store: &StoreRef,
        name: impl AsRef<[u8]>,
        kind: Kind,
        options: &Settings,
        may_create: bool,
    ) -> Result<Arc<Shared>> {
        let (engine, view) = Engine::open(store, &Name::new(name)?, kind, options, may_create).await?;
        let engine = Arc::new(engine);
        let pusher = Combiner::new(Pusher::new(engine.clone(), &view), engine.params.segment_bytes as usize);
        // A write of the state takes two ops more, and so does a look at it and a segment; each claim has one.
        let ops_max = store.profile().batch_ops_max.saturating_sub(2).max(1);
        let consumer = Combiner::new(Consumer::new(engine.clone(), view), COMBINED_MAX.min(ops_max));
        Ok(Arc::new(Shared { engine, pusher, consumer, rest: Mutex::new(Rest::new()) }))
    }

    async fn push_all(&self, items: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        let parts = self.parts(items)?;
        let total: usize = parts.iter().map(|part| part.0).sum();
        let mut done = 0;
        for (items, elements) in parts {
            let outcome = self.push_part(items, elements).await;
            if let Err(error) = outcome {
                return Err(if done == 0 { error } else { midway(&error, done, total) });
            }
            done += items;
        }
        Ok(())
    }

    async fn push_part(&self, items: usize, elements: Vec<u8>) -> Result<()> {
        let segment_bytes = self.engine.params.segment_bytes as usize;
        let weight = elements.len().max(items * segment_bytes / SEGMENT_ITEMS);
        let deadline = self.begin("a push has a timeout")?;
        self.pusher.submit_within(Push { elements, items, weight, deadline }, self.engine.timeout).await?;
        self.engine.vigil.check()
    }

    /// The items as the frames that carry them: so many, and their encoding.
    fn parts(&self, items: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<(usize, Vec<u8>)>> {
        let max = self.engine.item_bytes_max();
        let segment_bytes = self.engine.params.segment_bytes as usize;
        let mut parts: Vec<(usize, Vec<u8>)> = Vec::new();
        for item in items {
            let item = item.as_ref();
            if item.len() > max {
                let detail =
                    format!("an item has {} bytes; the limit on this store is {max}: {}", item.len(), Shown(item));
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
            match parts.last_mut() {
                Some((items, part)) if *items < SEGMENT_ITEMS && part.len() + item.len() < segment_bytes => {
                    *items += 1;
                    frames::put_element(part, Action::Put, item);
                }
                _ => {
                    let mut part = Vec::with_capacity(item.len() + 10);
                    frames::put_element(&mut part, Action::Put, item);
                    parts.push((1, part));
                }
            }
        }
        Ok(parts)
    }

    fn begin(&self, why: &str) -> Result<Instant> {
        self.engine.vigil.check()?;
        runtime::current(why)?;
        Ok(ambient::now() + self.engine.timeout)
    }

    async fn change(&self, what: What) -> Result<Given> {
        let deadline = self.begin("a claim has a timeout")?;
        self.change_by(what, deadline).await
    }

    async fn change_by(&self, what: What, deadline: Instant) -> Result<Given> {
        let ticket = random_id();
        let left = deadline.saturating_duration_since(ambient::now());
        let outcomes = self.consumer.submit_within(Change { ticket, what, deadline }, left).await?;
        self.engine.vigil.check()?;
        match outcomes.get(&ticket).cloned().unwrap_or_else(|| Err(larder_core::ext::no_reply()))? {
            Given::Loss { what, losses } => {
                if !self.note_told(losses, deadline).await {
                    self.engine.note_heard(losses);
                }
                Err(self.engine.named(ErrorKind::Lost, &what))
            }
            given => Ok(given),
        }
    }

    /// Notes that a caller is about to hear of losses. True if the state says so now; else others are told as well. **Round trips: 1.**
    async fn note_told(&self, losses: u64, deadline: Instant) -> bool {
        // The caller's answer is known: it is not to come too late for this.
        let left = deadline.saturating_duration_since(ambient::now()) / 2;
        let change = Change { ticket: random_id(), what: What::Heard { losses }, deadline: ambient::now() + left };
        self.consumer.submit_within(change, left).await.is_ok()
    }

    async fn pop(&self, wait: Duration) -> Result<Option<Bytes>> {
        Ok(match self.take_within(wait, || What::Pop).await? {
            Given::Item { bytes, .. } => Some(bytes),
            Given::Nothing | Given::Doubt | Given::Unmarked(_) | Given::Done | Given::Loss { .. } => None,
        })
    }

    async fn claim(self: &Arc<Self>, lease: Duration, wait: Duration) -> Result<Option<Claim>> {
        let life = self.engine.life(lease)?;
        let term = lease - margin(lease);
        let given = self.take_within(wait, || What::Claim { id: random_id(), life, term }).await?;
        let Given::Item { bytes, attempts, claim: Some(Claimed { id, until }) } = given else { return Ok(None) };
        let until = Arc::new(Mutex::new(until));
        Ok(Some(Claim { shared: self.clone(), id: ClaimId(id), item: bytes, attempts, lease, until }))
    }

    /// Takes an item, or what comes within a time.
    async fn take_within(&self, wait: Duration, mut what: impl FnMut() -> What) -> Result<Given> {
        let until = ambient::now() + wait.min(TIMEOUT_MAX);
        let (mut waiting, mut backoff) = (None, Backoff::new(PAUSE_FIRST, PAUSE_MAX));
        let (mut doubt, mut look, mut is_unmarked) = (None, None, false);
        loop {
            // Of all that one look takes.
            let begun = self.begin("a claim has a timeout")?;
            let deadline = *look.get_or_insert(begun);
            let mut given = self.change_by(what(), deadline).await;
            if matches!(given, Ok(Given::Doubt)) {
                doubt.get_or_insert_with(|| Doubt::begin(deadline)).pause(&self.engine).await?;
                continue;
            }
            doubt = None;
            if matches!(given, Ok(Given::Unmarked(_))) && !std::mem::replace(&mut is_unmarked, true) {
                continue;
            }
            if let Ok(Given::Unmarked(error)) = given {
                given = Err(error);
            }
            if is_unmarked {
                // What was claimed without a lease may be there with one.
                given = given.map_err(|error| error.effect(Effect::Unknown));
            }
            if matches!(given, Ok(Given::Item { .. })) {
                *self.rest() = Rest::new();
            }
            let left = until.saturating_duration_since(ambient::now());
            if matches!(given, Ok(Given::Nothing)) && !left.is_zero() {
                waiting.get_or_insert_with(|| Waiting::begin(self.engine.vigil.subject(), &self.engine.clock));
                self.wait(backoff.next_pause(), left).await?;
                (look, is_unmarked) = (None, false);
                continue;
            }
            if let Some(waiting) = waiting {
                waiting.end(match &given {
                    Ok(Given::Nothing) => WaitEnd::Busy,
                    Ok(_) => WaitEnd::Got,
                    Err(_) => WaitEnd::Failed,
                });
            }
            return given;
        }
    }

    /// Waits until something may have come since there was nothing to take.
    async fn wait(&self, poll: Duration, most: Duration) -> Result<()> {
        runtime::current("a wait for an item has pauses")?;
        let begin = ambient::now();
        let pause = {
            let Rest { backoff, is_woken } = &mut *self.rest();
            if *is_woken { backoff.next_pause().min(most) } else { Duration::ZERO }
        };
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let most = most.saturating_sub(ambient::now().duration_since(begin));
        if wait::changed(&self.engine.store, self.engine.sight(), poll, most).await {
            self.rest().is_woken = true;
        } else {
            *self.rest() = Rest::new();
        }
        Ok(())
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        // Each change is an assignment: whole after a panic, too.
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ack(&self, id: ClaimId) -> Result<()> {
        self.change(What::Ack { id: id.0 }).await.map(|_| ())
    }

    async fn release(&self, id: ClaimId) -> Result<()> {
        self.change(What::Release { id: id.0 }).await.map(|_| ())
    }

    async fn renew(&self, id: ClaimId, lease: Duration) -> Result<()> {
        let life = self.engine.life(lease)?;
        self.engine.vigil.check()?;
        let touch = self.engine.marker(id.0, |key| Op::touch(key, Ttl::After(life)))?;
        let newest = self.engine.newest();
        let batch = Batch::from_iter([touch, self.engine.cell.read_op()]);
        let mut answers = Answers::new(self.engine.vigil.run(Ctx::within(self.engine.timeout), batch).await);
        let is_touched = answers.next()? == Reply::Touched;
        // The marker of a claim that is over may still be there.
        let state = self.engine.view(answers.next(), newest)?.state;
        if is_touched && state.opens.iter().any(|open| open.claim == id.0) {
            return self.engine.vigil.check();
        }
        let detail = format!("the lease of claim {id} has run out, or it was acknowledged or given back");
        Err(self.engine.named(ErrorKind::Fenced, &detail))
    }
}

/// It is open what became of a segment that is gone, and so whether there is nothing.
struct Doubt {
    until: Instant,
    backoff: Backoff,
}

impl Doubt {
    fn begin(until: Instant) -> Doubt {
        Doubt { until, backoff: Backoff::new(DOUBT_PAUSE_FIRST, DOUBT_PAUSE_MAX) }
    }

    /// Pauses before another look.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if there is no time left.
    async fn pause(&mut self, engine: &Engine) -> Result<()> {
        let left = self.until.saturating_duration_since(ambient::now());
        let pause = self.backoff.next_pause().min(left);
        if left.is_zero() {
            let detail =
                "what became of a segment that is gone, or cannot be looked at, is not known: nothing was taken";
            return Err(engine.named(ErrorKind::Timeout, detail).effect(Effect::NotApplied));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// An error after a part of the items was pushed.
fn midway(error: &Error, done: usize, total: usize) -> Error {
    let detail = format!("the first {done} of {total} items were pushed, then: {error}");
    Error::new(error.kind(), detail).effect(Effect::Unknown).source(error.clone())
}

/// An item that is this consumer's until the lease ends.
///
/// Dropped without a word, it is given to another when the lease has run out.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Queue;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let jobs = Queue::open_or_create(&store, "jobs").await?;
/// jobs.push("resize 1.png").await?;
/// if let Some(claim) = jobs.claim(Duration::from_secs(30)).await? {
///     println!("{:?}, for the {}. time", claim.item(), claim.attempts());
///     claim.ack().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an item that is not acknowledged is delivered again"]
pub struct Claim {
    shared: Arc<Shared>,
    id: ClaimId,
    item: Bytes,
    attempts: u32,
    lease: Duration,
    /// Until when it is counted on, by all clones. Held for a load or a store.
    until: Arc<Mutex<Instant>>,
}

/// An example on a claim.
macro_rules! claimed {
    ($($line:literal),*) => {
        concat!(
            "\n```\n# use larder_core::StoreRef;\n# use larder_structures::Queue;\n# use std::time::Duration;\n",
            "# #[tokio::main(flavor = \"current_thread\")]\n# async fn main() -> larder_core::Result<()> {\n",
            "# let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            "# let jobs = Queue::open_or_create(&store, \"jobs\").await?;\n# jobs.push(\"a\").await?;\n",
            "# let claim = jobs.claim(Duration::from_secs(30)).await?.ok_or_else(larder_core::ext::no_reply)?;\n",
            $($line, "\n",)*
            "# Ok(())\n# }\n```\n"
        )
    };
}

impl Claim {
    /// The item.
    #[doc = claimed!("assert_eq!(claim.item(), \"a\");")]
    pub fn item(&self) -> &Bytes {
        &self.item
    }

    /// How often the item was delivered, this time included: more than 1 after a lease that ran out, or could not be stored, or an item that was given back. An
    /// item that kills its consumers shows here.
    #[doc = claimed!("assert_eq!(claim.attempts(), 1);")]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The id, to acknowledge it from elsewhere.
    #[doc = claimed!("jobs.ack(claim.id()).await?;")]
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// The lease that was asked for.
    #[doc = claimed!("assert_eq!(claim.lease().as_secs(), 30);")]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Until when the item is this consumer's, by this process's clock: the lease, less a tenth of it and a second at the most, from the moment on at which the write was sent that
    /// made the claim, or the last [`renew`](Claim::renew) of it or of a clone. A renewal by the [id](Claim::id) is not seen. **Round trips: 0.**
    #[doc = claimed!("assert!(claim.deadline() <= std::time::Instant::now() + Duration::from_secs(29));")]
    pub fn deadline(&self) -> Instant {
        *self.until()
    }

    /// How long it is until the [`deadline`](Claim::deadline); zero when it has passed. **Round trips: 0.**
    #[doc = claimed!(
        "assert!(claim.remaining() > Duration::from_secs(20));",
        "// Work that takes longer than this renews the lease in time.",
        "claim.renew().await?;"
    )]
    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(ambient::now())
    }

    fn until(&self) -> MutexGuard<'_, Instant> {
        // Each change is an assignment: whole after a panic, too.
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the item is done with: it is never delivered again. **Round trips: 1**, 2 where another handle wrote the state since.
    #[doc = claimed!("claim.ack().await?;", "assert!(claim.ack().await.is_err()); // it is done with")]
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) if it was acknowledged already, or the lease ran out and the item was given to another; else what the
    /// store says. After an unknown outcome the same may be tried again.
    pub async fn ack(&self) -> Result<()> {
        self.shared.ack(self.id).await
    }

    /// Gives the item back: the next consumer gets it. **Round trips:** as [`ack`](Claim::ack).
    #[doc = claimed!(
        "claim.release().await?;",
        "let again = jobs.claim(Duration::from_secs(30)).await?.ok_or_else(larder_core::ext::no_reply)?;",
        "assert_eq!((again.item(), again.attempts()), (claim.item(), 2));"
    )]
    /// # Errors
    /// As [`ack`](Claim::ack).
    pub async fn release(&self) -> Result<()> {
        self.shared.release(self.id).await
    }

    /// Lets the lease begin anew. **Round trips: 1.**
    #[doc = claimed!("claim.renew().await?;")]
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) if it has run out: the item may have been given to another. Acknowledging tells.
    pub async fn renew(&self) -> Result<()> {
        let renewed = after(self.lease - margin(self.lease));
        self.shared.renew(self.id, self.lease).await?;
        let mut until = self.until();
        *until = renewed.max(*until);
        Ok(())
    }
}

/// An example on a handle of this name, `jobs`.
macro_rules! example {
    ($name:expr; $($line:expr),*) => {
        concat!(
            "\n```\n# use larder_core::{ErrorKind, StoreRef};\n# use larder_structures::", $name, ";\n",
            "# use std::time::Duration;\n",
            "# #[tokio::main(flavor = \"current_thread\")]\n# async fn main() -> larder_core::Result<()> {\n",
            "# let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            "# let jobs = ", $name, "::open_or_create(&store, \"jobs\").await?;\n",
            $($line, "\n",)*
            "# Ok(())\n# }\n```\n"
        )
    };
}

/// The handle of a kind: the same methods, with examples of its own.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $options:ident, $newest:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub(super) Arc<Shared>);

        impl $name {
            /// Options, to open it otherwise than by default.
            #[doc = example!(stringify!($name); concat!("let options = ", stringify!($name), "::options().bytes_max(16 << 20);"))]
            pub fn options() -> $options {
                $options::default()
            }

            /// Opens one that is there. **Round trips: 2.**
            #[doc = example!(stringify!($name);
                concat!("let missing = ", stringify!($name), "::open(&store, \"none\").await.unwrap_err();"),
                "assert_eq!(missing.kind(), ErrorKind::Absent);")]
            /// # Errors
            #[doc = concat!("As [`", stringify!($options), "::open`].")]
            pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<$name> {
                $name::options().open(store, name).await
            }

            /// Opens one, and makes it if there is none. **Round trips: 2**, 4 if it is made.
            #[doc = example!(stringify!($name);
                concat!("let other = ", stringify!($name), "::open_or_create(&store, \"other\").await?;"),
                "assert_eq!(other.len().await?, 0);")]
            /// # Errors
            #[doc = concat!("As [`", stringify!($options), "::open_or_create`].")]
            pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<$name> {
                $name::options().open_or_create(store, name).await
            }

            /// Pushes an item. **Round trips: 1**, 2 more where the next segment is opened.
            #[doc = example!(stringify!($name); "jobs.push(\"a\").await?;")]
            /// # Errors
            /// [`BadInput`](ErrorKind::BadInput) for an item over the limit, [`Full`](ErrorKind::Full) at the limit of the whole,
            /// [`Lost`](ErrorKind::Lost) if the state is gone, and what the store says. With an effect that is unknown it may be there, or
            /// may yet.
            pub async fn push(&self, item: impl AsRef<[u8]>) -> Result<()> {
                self.0.push_all([item]).await
            }

            /// Pushes items, in this order. **Round trips: 1** for each 1,000 of them, or a segment's bytes, and as [`push`](Self::push).
            #[doc = example!(stringify!($name); "jobs.push_all([\"a\", \"b\"]).await?;", "assert_eq!(jobs.len().await?, 2);")]
            /// # Errors
            /// As [`push`](Self::push). Items that fill several writes are not pushed all or none: the error says how many were.
            pub async fn push_all(&self, items: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
                self.0.push_all(items).await
            }

            /// Takes an item for good: at most once. `None` if there is none. **Round trips: 2**, 1 in a row on the handle that wrote last.
            ///
            /// On a store that may evict, or has several servers without a disk, `None` may take some 300 ms, and 1 round trip for each look meanwhile: as long as it is open whether a segment that is gone was removed by another or lost.
            #[doc = example!(stringify!($name); "jobs.push_all([\"a\", \"b\"]).await?;", concat!("assert_eq!(jobs.pop().await?.as_deref(), Some(&b\"", $newest, "\"[..]));"))]
            /// # Errors
            /// [`Lost`](ErrorKind::Lost), until one consumer has heard of it, where a segment with items is gone (**round trips: 1** more): try again, to go on behind it. With an effect that is
            /// unknown, an item may have been taken, and is lost then. [`Timeout`](ErrorKind::Timeout) also where it is still open then what became of a segment.
            pub async fn pop(&self) -> Result<Option<Bytes>> {
                self.0.pop(Duration::ZERO).await
            }

            /// Takes an item for good, and waits for one if there is none: a day at the most. `None` if none came in time.
            ///
            /// It ends at once as an item comes where the store tells of changes (`watch` in the profile: Redis and Valkey). Elsewhere it looks after pauses that are drawn between 0 and a
            /// bound that doubles from 10 ms to 250 ms. An item whose lease runs out is found by a look: within 2 s. Of many that wait one gets the item. Dropped midway, it may have taken an item,
            /// which is lost then: what must not be lost is claimed. `None` may come some 300 ms late, as of [`pop`](Self::pop).
            ///
            /// **Round trips:** as [`pop`](Self::pop), and 1 for each look in between; where the store tells, 1 more for each wait of 2 s.
            #[doc = example!(stringify!($name); "let waiting = jobs.clone();",
                "let popped = tokio::spawn(async move { waiting.pop_within(Duration::from_secs(60)).await });",
                "jobs.push(\"a\").await?;",
                "assert_eq!(popped.await.unwrap()?.as_deref(), Some(&b\"a\"[..]));")]
            /// # Errors
            /// As [`pop`](Self::pop), and at once; [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime.
            pub async fn pop_within(&self, wait: Duration) -> Result<Option<Bytes>> {
                self.0.pop(wait).await
            }

            /// Takes an item until it is acknowledged: at least once. `None` if there is none to take now, which takes as long as of [`pop`](Self::pop). **Round trips: 2**, 1 in a
            /// row on the handle that wrote last.
            #[doc = example!(stringify!($name);
                "jobs.push_all([\"a\", \"b\"]).await?;",
                "while let Some(claim) = jobs.claim(Duration::from_secs(30)).await? {",
                "    // work",
                "    claim.ack().await?;",
                "}")]
            /// # Errors
            /// [`BadInput`](ErrorKind::BadInput) for a lease that is too short or too long, [`Full`](ErrorKind::Full) with 1,024 claims
            /// open. With an effect that is unknown an item may have been claimed, and comes back: when the lease ends, or at once where it is the lease that the store did not take, twice
            /// (`Full` where it is out of memory), or that had run out, twice, when the answer came ([`Timeout`](ErrorKind::Timeout)). [`Lost`](ErrorKind::Lost), until one consumer has heard of it, where a segment with items is gone (**round trips: 1** more): try again, to go on behind it.
            pub async fn claim(&self, lease: Duration) -> Result<Option<Claim>> {
                self.0.claim(lease, Duration::ZERO).await
            }

            /// Takes an item until it is acknowledged, and waits for one if there is none, as [`pop_within`](Self::pop_within) does. Dropped midway, it may have taken an item, which others get
            /// when the lease ends. **Round trips:** as there.
            #[doc = example!(stringify!($name);
                "jobs.push(\"a\").await?;",
                "let (lease, wait) = (Duration::from_secs(30), Duration::from_millis(20));",
                "while let Some(claim) = jobs.claim_within(lease, wait).await? {",
                "    // work",
                "    claim.ack().await?;",
                "}")]
            /// # Errors
            /// As [`claim`](Self::claim), and at once; [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime.
            pub async fn claim_within(&self, lease: Duration, wait: Duration) -> Result<Option<Claim>> {
                self.0.claim(lease, wait).await
            }

            /// Waits until there may be something to take that was not there when this handle last found nothing; `most` at the most. Takes nothing, so it may be dropped at any time.
            ///
            /// Where the store tells of changes it ends with one, or after 2 s; elsewhere it is a pause, drawn from the upper half of `poll`. **Round trips: 1** where the store tells, else 0.
            #[doc = example!(stringify!($name);
                "assert!(jobs.pop().await?.is_none());",
                "jobs.changed(Duration::from_millis(20), Duration::from_secs(1)).await?;")]
            /// # Errors
            /// [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime.
            pub async fn changed(&self, poll: Duration, most: Duration) -> Result<()> {
                self.0.wait(poll.mul_f64(0.5 + fastrand::f64() / 2.0), most).await
            }

            /// Acknowledges a claim by its id. **Round trips: 1**, 2 where another handle wrote the state since.
            #[doc = example!(stringify!($name);
                "jobs.push(\"a\").await?;",
                "let id = jobs.claim(Duration::from_secs(30)).await?.map(|claim| claim.id());",
                "jobs.ack(id.ok_or_else(larder_core::ext::no_reply)?).await?;")]
            /// # Errors
            /// As [`Claim::ack`].
            pub async fn ack(&self, id: ClaimId) -> Result<()> {
                self.0.ack(id).await
            }

            /// Gives a claimed item back, by the claim's id. **Round trips:** as [`ack`](Self::ack).
            #[doc = example!(stringify!($name);
                "jobs.push(\"a\").await?;",
                "let id = jobs.claim(Duration::from_secs(30)).await?.map(|claim| claim.id());",
                "jobs.release(id.ok_or_else(larder_core::ext::no_reply)?).await?;")]
            /// # Errors
            /// As [`Claim::ack`].
            pub async fn release(&self, id: ClaimId) -> Result<()> {
                self.0.release(id).await
            }

            /// Lets the lease of a claim begin anew, by its id. **Round trips: 1.**
            #[doc = example!(stringify!($name);
                "jobs.push(\"a\").await?;",
                "let id = jobs.claim(Duration::from_secs(30)).await?.map(|claim| claim.id());",
                "jobs.renew(id.ok_or_else(larder_core::ext::no_reply)?, Duration::from_secs(60)).await?;")]
            /// # Errors
            /// As [`Claim::renew`].
            pub async fn renew(&self, id: ClaimId, lease: Duration) -> Result<()> {
                self.0.renew(id, lease).await
            }

            /// How many items are not acknowledged yet: those that wait and those that are claimed. It reads all segments.
            /// **Round trips: 2**, and 1 more for each further 16 segments; of a stack, for each place where some were removed, too.
            #[doc = example!(stringify!($name); "jobs.push(\"a\").await?;", "assert_eq!(jobs.len().await?, 1);")]
            /// # Errors
            /// [`Lost`](ErrorKind::Lost) while segments are missing that no consumer was told of, or the state is.
            /// [`Conflict`](ErrorKind::Conflict) where others changed it at each of 4 passes, and segments were missing that they may have removed.
            #[allow(clippy::len_without_is_empty, reason = "it is asked of a store, and may fail")]
            pub async fn len(&self) -> Result<u64> {
                self.0.engine.len().await
            }

            /// Figures. **Round trips:** as [`len`](Self::len).
            #[doc = example!(stringify!($name); "assert_eq!(jobs.stat().await?.segments, 1);")]
            /// # Errors
            /// [`Lost`](ErrorKind::Lost) if the state is gone. Segments that are gone are a figure; those that others may have removed, who changed it
            /// at each of 4 passes, are in none.
            pub async fn stat(&self) -> Result<QueueStat> {
                self.0.engine.stat().await
            }

            /// The largest item that can be pushed, in bytes. **Round trips: 0.**
            #[doc = example!(stringify!($name); "assert!(jobs.item_bytes_max() > 1_000_000);")]
            pub fn item_bytes_max(&self) -> usize {
                self.0.engine.item_bytes_max()
            }
        }
    };
}

handle! {
    /// A handle of a queue: a cheap clone, shared by as many tasks as you like. First in, first out.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Queue;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let jobs = Queue::open_or_create(&store, "jobs").await?;
    /// jobs.push_all(["first", "second"]).await?;
    /// assert_eq!(jobs.pop().await?.as_deref(), Some(&b"first"[..]));
    /// # Ok(())
    /// # }
    /// ```
    Queue, QueueOptions, "a"
}

handle! {
    /// A handle of a stack: a cheap clone, shared by as many tasks as you like. Last in, first out.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Stack;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let undo = Stack::open_or_create(&store, "undo").await?;
    /// undo.push_all(["first", "second"]).await?;
    /// assert_eq!(undo.pop().await?.as_deref(), Some(&b"second"[..]));
    /// # Ok(())
    /// # }
    /// ```
    Stack, StackOptions, "b"
}

#[cfg(test)]
mod tests {
    use larder_core::{Profile, Run, Store, Verb};
    use larder_layers::Timeout;
    use larder_store_memory::MemoryStore;

    use super::*;

    /// Tells of changes, as far as watches go: there is one at once, or none up to the deadline.
    #[derive(Debug)]
    struct Watching {
        inner: MemoryStore,
        reply: Reply,
    }

    impl Store for Watching {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { watch: true, ..(*self.inner.profile()).clone() })
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            Run::pending(async move {
                let is_watch = |op: &Op| matches!(op.verb, Verb::Watch { .. });
                if let (true, Some(deadline), Reply::Unchanged) =
                    (batch.iter().any(is_watch), ctx.deadline, &self.reply)
                {
                    tokio::time::sleep_until(deadline.into()).await;
                }
                batch
                    .iter()
                    .map(|op| if is_watch(op) { Ok(self.reply.clone()) } else { self.inner.apply(op) })
                    .collect()
            })
        }
    }

    #[tokio::test]
    async fn who_was_not_woken_does_not_rest_before_the_next_watch() {
        for (reply, is_woken) in [(Reply::Changed, true), (Reply::Unchanged, false)] {
            let watching = Arc::new(Watching { inner: MemoryStore::new(), reply });
            // No batch takes longer, far less than a wait may.
            let store: StoreRef = Arc::new(Timeout::new(watching, Duration::from_millis(300)));
            let queue = Queue::open_or_create(&store, "q").await.unwrap();
            assert_eq!(queue.pop().await.unwrap(), None);
            queue.0.wait(Duration::ZERO, Duration::from_secs(60)).await.unwrap();
            assert_eq!(queue.0.rest().is_woken, is_woken);
        }
    }

    /// Others write the state too: who is woken for nothing does not look again at once.
    #[tokio::test(start_paused = true)]
    async fn who_was_woken_for_nothing_rests_before_the_next_watch() {
        let store: StoreRef = Arc::new(Watching { inner: MemoryStore::new(), reply: Reply::Changed });
        let queue = Queue::open_or_create(&store, "q").await.unwrap();
        assert_eq!(queue.pop().await.unwrap(), None);
        let mut rests = Vec::new();
        for _ in 0..3 {
            let since = tokio::time::Instant::now();
            queue.0.wait(Duration::ZERO, Duration::from_secs(60)).await.unwrap();
            rests.push(since.elapsed());
        }
        assert!(rests[0].is_zero() && !rests[1].is_zero() && !rests[2].is_zero(), "{rests:?}");
        // An item makes up for it.
        queue.push("a").await.unwrap();
        assert!(queue.pop().await.unwrap().is_some());
        let since = tokio::time::Instant::now();
        queue.0.wait(Duration::ZERO, Duration::from_secs(60)).await.unwrap();
        assert!(since.elapsed().is_zero());
    }
}
