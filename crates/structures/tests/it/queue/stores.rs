//! What queues and stacks need of their store, and what they make of what it has.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{ErrorKind, Profile, PutMode, StoreRef, Ttl, TtlSupport, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Queue, Stack};

use crate::queue::support::{BOTH, Kind, Line, small};
use crate::support::shaped::Shaped;
use crate::support::sieve::Sieve;

#[tokio::test]
async fn a_store_that_lacks_what_they_need_is_told_what_that_is() {
    type Lacks = fn(&mut Profile);
    let cas: Lacks = |profile| profile.cas = false;
    let delete_cas: Lacks = |profile| profile.delete_cas = false;
    let ttl: Lacks = |profile| profile.ttl = TtlSupport::None;
    let few: Lacks = |profile| profile.batch_ops_max = 4;
    for (lacks, named) in
        [(cas, "(cas)"), (delete_cas, "deletes by token"), (ttl, "lives (ttl)"), (few, "batches of 5 ops")]
    {
        for kind in BOTH {
            let memory = Arc::new(MemoryStore::new());
            let store = Shaped::over(&(memory.clone() as StoreRef), lacks);
            let error = Line::try_open(kind, &store, &small()).await.expect_err("it lacks something");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(named), "{error}");
            assert_eq!(memory.stats().items, 0, "nothing is made");
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_opened_by_who_may_make_it_alone() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let errors = [Queue::open(&store, "q").await.err(), Stack::open(&store, "q").await.err()];
    for error in errors {
        assert_eq!(error.expect("there is none").kind(), ErrorKind::Absent);
    }
    assert_eq!(memory.stats().items, 0);
    Queue::open_or_create(&store, "q").await.unwrap();
    Queue::open(&store, "q").await.unwrap();
}

/// Of whole seconds a life ends up to one early: no claim shall end before its lease.
#[tokio::test]
async fn where_lives_are_counted_in_seconds_a_claim_is_marked_for_one_more_than_its_lease() {
    let lease = Duration::from_millis(2_500);
    for (ttl, lives) in [(TtlSupport::Millis, lease), (TtlSupport::Seconds, lease + Duration::from_secs(1))] {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let marked = Arc::new(Mutex::new(Vec::new()));
        let notes = marked.clone();
        let store = Sieve::of(&store, Profile { ttl, ..(*store.profile()).clone() }, move |_, op| {
            if let Verb::Put { mode: PutMode::Set, ttl: Ttl::After(life), .. } = op.verb {
                notes.lock().unwrap().push(life);
            }
            None
        });
        let line = Line::open(Kind::Queue, &store, &small()).await;
        line.push("a").await.unwrap();
        let Line::Queue(queue) = &line else { panic!("a queue") };
        let claim = queue.claim(lease).await.unwrap();
        assert!(claim.is_some());
        assert_eq!(*marked.lock().unwrap(), [lives], "{ttl:?}");
    }
}
