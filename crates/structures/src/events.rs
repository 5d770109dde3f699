//! What structures tell the process's observer ([`larder_core::observe`]): one place that words it.
//!
//! Free where nobody listens: a load and a branch. Nothing here may be called with a lock held that an observer could want.

use std::time::Duration;

use larder_core::observe::{self, Event, Phase, Subject, WaitEnd};
use larder_core::{ClockRef, Error, ErrorKind};

use crate::manifest::Kind;
use crate::name::Name;

/// A structure, as events name it.
pub(crate) fn subject(kind: Kind, name: &Name) -> Subject<'_> {
    Subject { kind: kind.as_str(), name: name.as_bytes() }
}

/// A write found that another writer was first.
pub(crate) fn conflict(subject: Subject<'_>) {
    observe::emit(|| Event::Conflict { subject });
}

/// Something is about to be tried again.
pub(crate) fn retry(subject: Subject<'_>, cause: ErrorKind) {
    observe::emit(|| Event::Retry { subject, cause });
}

/// A value is being rewritten.
pub(crate) fn compaction(subject: Subject<'_>, shard: u16, phase: Phase) {
    observe::emit(|| Event::Compaction { subject, shard, phase });
}

/// Data are gone, or older than they were; hands the error on that says so.
pub(crate) fn loss(subject: Subject<'_>, error: Error) -> Error {
    observe::emit(|| Event::Loss { subject, kind: error.kind() });
    error
}

/// Data were found to be gone, where that is told beside what is there and not as an error.
pub(crate) fn gap(subject: Subject<'_>) {
    observe::emit(|| Event::Loss { subject, kind: ErrorKind::Lost });
}

/// A wait for a lock or a lease, told when it ends, however that comes.
pub(crate) struct Waiting<'a> {
    subject: Subject<'a>,
    clock: &'a ClockRef,
    /// `None` where nobody listened when it began: then the clock was not asked.
    since: Option<Duration>,
    end: WaitEnd,
}

impl<'a> Waiting<'a> {
    pub(crate) fn begin(subject: Subject<'a>, clock: &'a ClockRef) -> Waiting<'a> {
        Waiting { subject, clock, since: observe::is_on().then(|| clock.monotonic()), end: WaitEnd::GivenUp }
    }

    /// The wait is over. Without this it is given up.
    pub(crate) fn end(mut self, end: WaitEnd) {
        self.end = end;
    }

    /// The wait is over, and this is what it brought.
    pub(crate) fn brought<T>(self, outcome: Result<T, Vain>) -> larder_core::Result<T> {
        self.end(outcome.as_ref().map_or_else(|vain| vain.end, |_| WaitEnd::Got));
        outcome.map_err(|vain| vain.error)
    }
}

/// A wait that was in vain. An error is a failure: it may be a server that does not answer, whatever its kind.
pub(crate) struct Vain {
    end: WaitEnd,
    pub(crate) error: Error,
}

impl Vain {
    /// Somebody else had it all the time.
    pub(crate) fn busy(error: Error) -> Vain {
        Vain { end: WaitEnd::Busy, error }
    }
}

impl From<Error> for Vain {
    fn from(error: Error) -> Vain {
        Vain { end: WaitEnd::Failed, error }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let time = self.clock.monotonic().saturating_sub(since);
            observe::emit(|| Event::Wait { subject: self.subject, time, end: self.end });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex, OnceLock};

    use larder_core::observe::Observer;
    use larder_core::{Ctx, Effect, PutMode, StoreExt, StoreRef, Ttl};
    use larder_layers::testing::{Fault, Faulty};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::answering_tests::Answering;
    use crate::log::Cursor;
    use crate::{Counter, EventLog, Lock, manifest, registry};

    /// Events in words, each with the name of its structure; tests use names of their own, since the observer is the process's.
    static SEEN: Mutex<Vec<(Vec<u8>, String)>> = Mutex::new(Vec::new());

    #[derive(Debug)]
    struct Recorder;

    impl Observer for Recorder {
        fn observe(&self, event: &Event<'_>) {
            let (subject, text) = match event {
                Event::Conflict { subject } => (subject, "conflict".to_owned()),
                Event::Retry { subject, cause } => (subject, format!("retry after {}", cause.as_str())),
                Event::Compaction { subject, phase, .. } => (subject, format!("compaction {}", phase.as_str())),
                Event::Wait { subject, end, .. } => (subject, format!("waited: {}", end.as_str())),
                Event::Hold { subject, end, .. } => (subject, format!("held: {end}")),
                Event::Takeover { subject, is_dead } => (subject, format!("takeover, dead {is_dead}")),
                Event::Loss { subject, kind } => (subject, format!("loss: {}", kind.as_str())),
                _ => return,
            };
            SEEN.lock().unwrap().push((subject.name.to_vec(), text));
        }
    }

    /// Begins to listen.
    pub(crate) fn listen() {
        static SET: OnceLock<()> = OnceLock::new();
        SET.get_or_init(|| observe::set(Recorder).unwrap());
    }

    /// What was told of a name, in order.
    pub(crate) fn told(name: &str) -> Vec<String> {
        let seen = SEEN.lock().unwrap();
        seen.iter().filter(|(of, _)| of == name.as_bytes()).map(|(_, text)| text.clone()).collect()
    }

    fn memory() -> StoreRef {
        Arc::new(MemoryStore::new())
    }

    #[tokio::test]
    async fn a_try_that_follows_on_a_fault_is_told_with_what_went_wrong() {
        listen();
        let faulty = Faulty::new(memory());
        let counter = Counter::options().slots(1).open_or_create(&faulty.shared(), "retried").await.unwrap();
        counter.add(1).await.unwrap();
        assert_eq!(told("retried"), [""; 0]);
        faulty.fail_nth(1, Fault::NotSent);
        counter.add(1).await.unwrap();
        assert_eq!(told("retried"), ["retry after unavailable"]);
    }

    #[tokio::test]
    async fn a_wait_for_a_lock_that_an_error_ends_is_told_as_failed_and_not_as_busy() {
        listen();
        let store = memory();
        let lock = Lock::open(&store, "spoilt").await.unwrap();
        let key = lock.name().manifest_key().unwrap();
        store.put(key, PutMode::Set, "another program's", Ttl::Never).await.unwrap();
        let error = lock.acquire(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
        assert_eq!(told("spoilt"), ["conflict", "waited: failed"]);
        let held = Lock::open(&store, "held").await.unwrap();
        let guard = held.try_acquire().await.unwrap().unwrap();
        assert_eq!(held.acquire(Duration::from_millis(1)).await.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(told("held"), ["waited: got", "waited: busy"]);
        drop(guard);
        // A server that does not answer is nobody who has it, though its error is one of time, too.
        let silent = Answering::over(&store);
        let lock = Lock::open(&silent.shared(), "silent").await.unwrap();
        silent.by(|_| Some(Err(Error::new(ErrorKind::Timeout, "no answer").effect(Effect::NotApplied))));
        let [one, other] = [(); 2].map(|()| lock.acquire(Duration::from_millis(30)));
        let (one, other) = tokio::join!(one, other);
        assert_eq!([one, other].map(|told| told.unwrap_err().kind()), [ErrorKind::Timeout; 2]);
        let waits: Vec<String> = told("silent").into_iter().filter(|event| event.starts_with("waited")).collect();
        assert_eq!(waits, ["waited: failed"; 2], "who polls, and who waits for his turn");
    }

    #[tokio::test]
    async fn a_part_of_a_log_that_is_gone_is_told_as_a_loss_by_whoever_finds_the_gap() {
        listen();
        let store = memory();
        let log = EventLog::open_or_create(&store, "gapped").await.unwrap();
        log.put("a").await.unwrap();
        let mut tail = log.tail(Cursor::default()).unwrap();
        let name = Name::new("gapped").unwrap();
        let manifest = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
        for piece in registry::pieces(&store, Ctx::default(), &name, &manifest).await.unwrap().keys {
            assert!(store.delete(piece.key).await.unwrap());
        }
        assert_eq!(told("gapped"), [""; 0], "nobody has looked");
        assert_eq!(log.fetch(..).await.unwrap().with_gaps().1.len(), 1);
        assert_eq!(told("gapped"), ["loss: lost"]);
        assert_eq!(tail.poll().await.unwrap().with_gaps().1.len(), 1);
        assert_eq!(told("gapped"), ["loss: lost"; 2]);
    }
}
