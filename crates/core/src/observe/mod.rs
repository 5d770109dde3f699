//! What goes on inside, told as data: operations, conflicts, retries, compactions, losses, waits for locks.
//!
//! A program sets one [`Observer`] for the whole process, once, as it sets a logger. Structures and layers then tell it every
//! [`Event`]. Without an observer an event costs one relaxed load of one byte, and nothing of it is ever made: no name is looked up,
//! no clock is read. So there is no parameter to hand through every constructor, and nothing to switch off.
//!
//! | event | who tells it | when |
//! |---|---|---|
//! | [`Event::Batch`] | the layer `Observed` | a batch of ops was answered, or given up on |
//! | [`Event::Conflict`] | structures | a write found that another writer was first |
//! | [`Event::Retry`] | structures, and the layers that try again | something is about to be tried again |
//! | [`Event::Compaction`] | structures of append-encoded values | a value is rewritten without what is stale |
//! | [`Event::Loss`] | structures | a caller is told that data are lost, or older than they were |
//! | [`Event::PutBack`] | structures | a manifest that was evicted is written again |
//! | [`Event::FallBack`] | the layer `Outage` | ops are run on another store |
//! | [`Event::Wait`] | locks and leases | a wait is over, however it ended |
//! | [`Event::Hold`] | locks | a term is over, however it ended |
//! | [`Event::Takeover`] | locks and counters | what an owner left behind, or had, is taken over |
//!
//! An observer is called where the event happens, in the middle of an operation: it must be quick, must not block, and must not use
//! the store. The crate `larder-layers` has one for the `metrics` crate and one for the `tracing` crate.
//!
//! ```
//! use larder_core::observe::{self, Event, Observer};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[derive(Debug, Default)]
//! struct Conflicts(AtomicU64);
//!
//! impl Observer for Conflicts {
//!     fn observe(&self, event: &Event<'_>) {
//!         if let Event::Conflict { .. } = event {
//!             self.0.fetch_add(1, Ordering::Relaxed);
//!         }
//!     }
//! }
//!
//! observe::set(Conflicts::default())?;
//! assert!(observe::set(Conflicts::default()).is_err(), "once is enough");
//! # Ok::<(), larder_core::Error>(())
//! ```

mod gate;

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Effect, Error, ErrorKind, Result};
use crate::reply::Reply;

pub use self::gate::is_open as is_on;

static OBSERVER: OnceLock<Box<dyn Observer>> = OnceLock::new();

/// Something that is told every event. See the [module](self).
///
/// ```
/// use larder_core::observe::{Event, Observer};
///
/// #[derive(Debug)]
/// struct Losses;
///
/// impl Observer for Losses {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Loss { .. } = event {
///             eprintln!("{}", event.name());
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + fmt::Debug {
    /// Takes an event in. Quick, without blocking, and without using the store.
    fn observe(&self, event: &Event<'_>);
}

/// Sets the process's observer.
///
/// # Errors
/// [`ErrorKind::Config`] if there is one already: two parts of a program would each believe that theirs is asked.
///
/// ```
/// use larder_core::observe::{self, Event, Observer};
/// #[derive(Debug)]
/// struct Printed;
/// impl Observer for Printed {
///     fn observe(&self, event: &Event<'_>) {
///         eprintln!("{event:?}");
///     }
/// }
/// assert!(!observe::is_on());
/// observe::set(Printed)?;
/// assert!(observe::is_on());
/// # Ok::<(), larder_core::Error>(())
/// ```
pub fn set(observer: impl Observer + 'static) -> Result<()> {
    let taken = |_| Error::new(ErrorKind::Config, "an observer is set already; a process has one");
    OBSERVER.set(Box::new(observer)).map_err(taken)?;
    gate::open();
    Ok(())
}

/// Tells an event, if anybody listens; only then is it made.
///
/// ```
/// use larder_core::observe::{self, Event, Subject};
/// observe::emit(|| Event::Conflict { subject: Subject { kind: "set", name: b"tags" } });
/// ```
#[inline(always)]
pub fn emit<'a>(event: impl FnOnce() -> Event<'a>) {
    if is_on() {
        told(event);
    }
}

/// Apart, so that what is inlined everywhere is the load and the branch alone.
#[cold]
#[inline(never)]
fn told<'a>(event: impl FnOnce() -> Event<'a>) {
    if let Some(observer) = OBSERVER.get() {
        observer.observe(&event());
    }
}

/// The process's observer, for those who tell it more than one event at once.
///
/// ```
/// assert!(larder_core::observe::current().is_none());
/// ```
#[inline]
pub fn current() -> Option<&'static dyn Observer> {
    if is_on() { OBSERVER.get().map(|observer| &**observer) } else { None }
}

/// What an event is about: a structure, by its kind and its name, or a store.
///
/// ```
/// use larder_core::observe::Subject;
/// assert_eq!(Subject { kind: "set", name: b"tags" }.to_string(), "set \"tags\"");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject<'a> {
    /// The kind of structure in words, as its manifest names it; `store` for a store.
    pub kind: &'static str,
    /// The structure's name, or what the store is.
    pub name: &'a [u8],
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, crate::text::Shown(self.name))
    }
}

/// What happened.
///
/// ```
/// use larder_core::observe::{Event, Subject};
/// let event = Event::Conflict { subject: Subject { kind: "counter", name: b"hits" } };
/// assert_eq!(event.name(), "conflict");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A batch of ops was answered, or given up on.
    Batch(Batch<'a>),
    /// A write found that another writer was first. It is looked into, and where that is safe tried again.
    Conflict {
        /// What was written.
        subject: Subject<'a>,
    },
    /// Something is about to be tried again.
    Retry {
        /// What is tried again.
        subject: Subject<'a>,
        /// What went wrong before; [`ErrorKind::Conflict`] where others were first.
        cause: ErrorKind,
    },
    /// A value is rewritten without what is stale in it.
    Compaction {
        /// Whose value it is.
        subject: Subject<'a>,
        /// Which shard.
        shard: u16,
        /// How far it got.
        phase: Phase,
    },
    /// A caller is told that data are gone, or older than they were: once each time that it is told.
    Loss {
        /// What is lost.
        subject: Subject<'a>,
        /// [`ErrorKind::Lost`] or [`ErrorKind::RolledBack`].
        kind: ErrorKind,
    },
    /// A manifest that was evicted while the data stayed is written again.
    PutBack {
        /// Whose manifest.
        subject: Subject<'a>,
    },
    /// Ops are run on another store, since theirs cannot be reached.
    FallBack {
        /// The store that cannot be reached.
        subject: Subject<'a>,
        /// How many.
        ops: usize,
    },
    /// A wait for a lock, or for a lease, is over.
    Wait {
        /// What was waited for.
        subject: Subject<'a>,
        /// How long.
        time: Duration,
        /// How it ended.
        end: WaitEnd,
    },
    /// A lock is not held any more.
    Hold {
        /// Which lock.
        subject: Subject<'a>,
        /// How long it was held, to the moment that this process knew that it was not.
        time: Duration,
        /// Why: `released`, `lease over`, `taken over`, `freed`, `gone`.
        end: &'static str,
    },
    /// What another owner had was taken over: a dead holder's lock, or a counter's slot.
    Takeover {
        /// Of which structure.
        subject: Subject<'a>,
        /// False where the owner still seems to live, and the two share it from now on.
        is_dead: bool,
    },
}

impl Event<'_> {
    /// The event in a word or two, joined by `_`, as metrics and log lines name it.
    ///
    /// ```
    /// use larder_core::observe::{Event, Phase, Subject};
    /// let subject = Subject { kind: "set", name: b"tags" };
    /// let event = Event::Compaction { subject, shard: 0, phase: Phase::Begun };
    /// assert_eq!(event.name(), "compaction");
    /// ```
    pub fn name(&self) -> &'static str {
        match self {
            Event::Batch(_) => "batch",
            Event::Conflict { .. } => "conflict",
            Event::Retry { .. } => "retry",
            Event::Compaction { .. } => "compaction",
            Event::Loss { .. } => "loss",
            Event::PutBack { .. } => "put_back",
            Event::FallBack { .. } => "fall_back",
            Event::Wait { .. } => "wait",
            Event::Hold { .. } => "hold",
            Event::Takeover { .. } => "takeover",
        }
    }
}

/// A batch of ops that ran on a store.
///
/// ```
/// use larder_core::observe::{Batch, Op, Outcome};
/// use std::time::Duration;
/// let ops = [Op { name: "get", outcome: Outcome::Miss }];
/// let batch = Batch { store: "cache", ops: &ops, latency: Duration::from_micros(90), round_trips: 1 };
/// assert_eq!(batch.ops[0].outcome.as_str(), "miss");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// What the observed store is called.
    pub store: &'a str,
    /// Its ops, in the order of the batch.
    pub ops: &'a [Op],
    /// From the moment that it was handed over until the last answer, or until the caller stopped waiting.
    pub latency: Duration,
    /// Waits for the store: all nodes are asked at once, so a batch is one.
    pub round_trips: u32,
}

/// One op of a batch.
///
/// ```
/// use larder_core::observe::{Op, Outcome};
/// assert_eq!(Op { name: "incr", outcome: Outcome::Done }.name, "incr");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// As [`Op::name`](crate::Op::name) says.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an op ended.
///
/// ```
/// use larder_core::{Reply, observe::Outcome};
/// assert_eq!(Outcome::of(&Ok(Reply::NotStored)), Outcome::NotStored);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It did what it was for.
    Done,
    /// There was no item.
    Miss,
    /// The condition of an add, replace, append or prepend did not hold.
    NotStored,
    /// A conditional write met another item.
    Exists,
    /// It failed.
    Failed {
        /// In which way.
        kind: ErrorKind,
        /// What is known of its effect.
        effect: Effect,
    },
    /// The caller stopped waiting before the answer came; it may have taken effect.
    GivenUp,
}

impl Outcome {
    /// The outcome that a reply tells.
    ///
    /// ```
    /// use larder_core::observe::Outcome;
    /// use larder_core::{Error, ErrorKind, Reply};
    /// assert_eq!(Outcome::of(&Ok(Reply::Stored)), Outcome::Done);
    /// assert_eq!(Outcome::of(&Err(Error::new(ErrorKind::Full, "no room"))).as_str(), "full");
    /// ```
    pub fn of(reply: &Result<Reply>) -> Outcome {
        match reply {
            Ok(Reply::Item(_) | Reply::Stored | Reply::Deleted | Reply::Touched) => Outcome::Done,
            Ok(Reply::Number(_) | Reply::Changed | Reply::Unchanged | Reply::Native(_)) => Outcome::Done,
            Ok(Reply::Miss) => Outcome::Miss,
            Ok(Reply::NotStored) => Outcome::NotStored,
            Ok(Reply::Exists) => Outcome::Exists,
            Err(error) => Outcome::Failed { kind: error.kind(), effect: error.known_effect() },
        }
    }

    /// The outcome in words: `done`, `miss`, `not stored`, `exists`, `given up`, or the kind of error.
    ///
    /// ```
    /// assert_eq!(larder_core::observe::Outcome::NotStored.as_str(), "not stored");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Miss => "miss",
            Outcome::NotStored => "not stored",
            Outcome::Exists => "exists",
            Outcome::Failed { kind, .. } => kind.as_str(),
            Outcome::GivenUp => "given up",
        }
    }

    /// True if it is not known whether the op took effect.
    ///
    /// ```
    /// use larder_core::observe::Outcome;
    /// assert!(Outcome::GivenUp.is_unknown());
    /// assert!(!Outcome::NotStored.is_unknown());
    /// ```
    pub fn is_unknown(self) -> bool {
        matches!(self, Outcome::GivenUp | Outcome::Failed { effect: Effect::Unknown, .. })
    }
}

/// How far a compaction got.
///
/// ```
/// assert_eq!(larder_core::observe::Phase::Met.as_str(), "met");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The new value is about to be written.
    Begun,
    /// It stands.
    Done,
    /// Somebody wrote in between; the new value was refused, and nothing changed.
    Met,
    /// The write failed; whether or not it landed, the value says the same.
    Failed,
}

impl Phase {
    /// The phase in a word.
    ///
    /// ```
    /// assert_eq!(larder_core::observe::Phase::Begun.as_str(), "begun");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Begun => "begun",
            Phase::Done => "done",
            Phase::Met => "met",
            Phase::Failed => "failed",
        }
    }
}

/// How a wait ended.
///
/// ```
/// assert_eq!(larder_core::observe::WaitEnd::GivenUp.as_str(), "given up");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitEnd {
    /// With what was waited for.
    Got,
    /// Somebody else has it, and the time to wait is over.
    Busy,
    /// With an error.
    Failed,
    /// The caller stopped waiting: its future was dropped.
    GivenUp,
}

impl WaitEnd {
    /// The end in words.
    ///
    /// ```
    /// assert_eq!(larder_core::observe::WaitEnd::Busy.as_str(), "busy");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            WaitEnd::Got => "got",
            WaitEnd::Busy => "busy",
            WaitEnd::Failed => "failed",
            WaitEnd::GivenUp => "given up",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug)]
    struct Names(&'static Mutex<Vec<&'static str>>);

    impl Observer for Names {
        fn observe(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(event.name());
        }
    }

    /// One test, since the observer is the process's.
    #[test]
    fn nothing_is_made_before_an_observer_is_set_and_everything_told_after() {
        static SEEN: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        let conflict = || Event::Conflict { subject: Subject { kind: "set", name: b"tags" } };
        emit(|| panic!("nobody listens"));
        assert!(!is_on() && current().is_none());
        set(Names(&SEEN)).unwrap();
        emit(conflict);
        if let Some(observer) = current() {
            observer.observe(&conflict());
        }
        let error = set(Names(&SEEN)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        emit(conflict);
        assert_eq!(*SEEN.lock().unwrap(), ["conflict"; 3]);
    }

    #[test]
    fn outcomes_tell_what_replies_say() {
        let unknown = Error::new(ErrorKind::Timeout, "no answer").effect(Effect::Unknown);
        let refused = Error::new(ErrorKind::Full, "no room");
        for (reply, said, is_unknown) in [
            (Ok(Reply::Stored), "done", false),
            (Ok(Reply::Number(0)), "done", false),
            (Ok(Reply::Miss), "miss", false),
            (Ok(Reply::NotStored), "not stored", false),
            (Ok(Reply::Exists), "exists", false),
            (Err(unknown), "timeout", true),
            (Err(refused), "full", false),
        ] {
            let outcome = Outcome::of(&reply);
            assert_eq!((outcome.as_str(), outcome.is_unknown()), (said, is_unknown), "{reply:?}");
        }
        assert!(Outcome::GivenUp.is_unknown());
    }
}
