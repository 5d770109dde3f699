//! The faulty store itself, held to what it says of each fault.

use std::sync::Arc;

use larder_core::{Batch, Cas, Ctx, Effect, Key, Op, PutMode, Reply, Store, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_testkit::faulty::{Fault, Faulty};

fn append(key: &Key, value: &'static str) -> Op {
    Op::put(key.clone(), PutMode::Append, value, Ttl::Never)
}

/// A batch of three appends that breaks at the second: the value after it, and what each op was told.
async fn broken_at_the_second(fault: Fault) -> (Faulty, Key, String, Vec<Option<Effect>>) {
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let faulty = Faulty::new(inner.clone());
    let key = Key::new("k").unwrap();
    faulty.put(key.clone(), PutMode::Set, "", Ttl::Never).await.unwrap();
    faulty.fail_nth(2, fault);
    let batch = Batch::from_iter([append(&key, "a"), append(&key, "b"), append(&key, "c")]);
    let told = faulty.run(Ctx::default(), batch).await;
    let told = told.into_iter().map(|reply| reply.err().map(|error| error.known_effect())).collect();
    let value = inner.get(key.clone()).await.unwrap().unwrap().value;
    (faulty, key, String::from_utf8(value.to_vec()).unwrap(), told)
}

#[tokio::test]
async fn each_fault_does_what_it_says() {
    let unknown = [None, Some(Effect::Unknown), Some(Effect::Unknown)];
    for (fault, value, told) in [
        (Fault::NotSent, "a", [None, Some(Effect::NotApplied), Some(Effect::NotApplied)]),
        (Fault::LostRequest, "a", unknown),
        (Fault::Cut, "ab", unknown),
        (Fault::LostReply, "abc", unknown),
        (Fault::Late(2), "a", unknown),
    ] {
        let (faulty, _, found, heard) = broken_at_the_second(fault).await;
        assert_eq!((found.as_str(), &heard[..]), (value, &told[..]), "{fault:?}");
        assert_eq!(faulty.injected(), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn what_is_late_arrives_after_the_ops_that_were_named() {
    let (faulty, key, _, _) = broken_at_the_second(Fault::Late(2)).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(faulty.get(key.clone()).await.unwrap().unwrap().value);
    }
    assert_eq!(seen, ["a", "abc", "abc"]);
}

#[tokio::test]
async fn tokens_die_with_their_connection() {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let key = Key::new("k").unwrap();
    faulty.put(key.clone(), PutMode::Set, "", Ttl::Never).await.unwrap();
    let token = |item: larder_core::Item| -> Cas { item.cas.unwrap() };
    let old = token(faulty.get(key.clone()).await.unwrap().unwrap());
    faulty.fail_nth(1, Fault::NotSent);
    assert!(faulty.get(key.clone()).await.is_err());
    let cas = |cas| faulty.put(key.clone(), PutMode::Cas(cas), "new", Ttl::Never);
    assert_eq!(cas(old).await.unwrap(), Reply::Exists);
    let fresh = token(faulty.get(key.clone()).await.unwrap().unwrap());
    assert_eq!(cas(fresh).await.unwrap(), Reply::Stored);
}

#[tokio::test]
async fn a_seed_repeats_its_faults() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        faulty.fail_randomly(7, 5, &[Fault::NotSent, Fault::LostReply]);
        let mut broken = Vec::new();
        for n in 0..200 {
            if faulty.get(Key::new("k").unwrap()).await.is_err() {
                broken.push(n);
            }
        }
        runs.push(broken);
    }
    assert_eq!(runs[0], runs[1]);
    assert!((20..80).contains(&runs[0].len()), "{runs:?}");
}
