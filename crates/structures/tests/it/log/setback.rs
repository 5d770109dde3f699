//! Logs whose list of chunks was set back to an older state, as by a failover of its server alone.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Effect, ErrorKind, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::EventLog;

use crate::log::support::*;

/// Puts until there is a second part; returns what the list held before it was in it.
async fn put_until_a_second_part(log: &EventLog, store: &StoreRef) -> Bytes {
    let (list, second) = (ledger_key(store, "l").await, part_key(store, "l", START_MS, 1).await);
    for n in 0..40 {
        let before = store.get(list.clone()).await.unwrap().unwrap().value;
        log.put_at(START_MS, format!("first-{n}-{:04000}", 0)).await.unwrap();
        if store.get(second.clone()).await.unwrap().is_some() {
            return before;
        }
    }
    panic!("40 events of 4,000 bytes are in one part");
}

/// Several parts that the list lacks: those below the last one, too.
#[tokio::test]
async fn every_part_that_a_list_went_back_behind_is_found_again_once_its_putter_is_told() {
    let (store, clock): (StoreRef, _) = (Arc::new(MemoryStore::new()), clock());
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    let before = put_until_a_second_part(&log, &store).await;
    let mut acknowledged = Vec::new();
    for n in 0..40 {
        acknowledged.push(format!("third-{n}-{:04000}", 0));
        log.put_at(START_MS, acknowledged.last().unwrap()).await.unwrap();
    }
    store.put(ledger_key(&store, "l").await, PutMode::Set, before, Ttl::Never).await.unwrap();
    let error = loop {
        let text = format!("behind-{}-{:04000}", acknowledged.len(), 0);
        match log.put_at(START_MS, &text).await {
            Ok(()) => acknowledged.push(text),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 80, "its putter is told");
    };
    assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
    // Who puts next finds the last part, and nobody comes by the others.
    let fresh = options(&clock).open(&store, "l").await.unwrap();
    fresh.put_at(START_MS, "goes on").await.unwrap();
    let found = texts(fresh.fetch(..).await.unwrap());
    for text in acknowledged.iter().chain([&"goes on".to_owned()]) {
        assert!(found.contains(text), "{}", &text[..7]);
    }
}

/// Whoever made the part that the list lacks, and however the putter comes to ask the list.
#[tokio::test]
async fn what_is_put_behind_a_list_that_went_back_is_found_again_once_its_putter_is_told() {
    for (is_maker, after_a_minute) in [(true, false), (false, false), (true, true), (false, true)] {
        let case = format!("maker: {is_maker}, after a minute: {after_a_minute}");
        let (store, clock): (StoreRef, _) = (Arc::new(MemoryStore::new()), clock());
        let maker = options(&clock).open_or_create(&store, "l").await.unwrap();
        let joiner = options(&clock).open(&store, "l").await.unwrap();
        let log = if is_maker { &maker } else { &joiner };
        log.put_at(START_MS - MINUTE_MS, "other chunk").await.unwrap();
        let before = put_until_a_second_part(&maker, &store).await;
        // A joiner finds the second part by its own first put.
        log.put_at(START_MS, "0-in the first or second").await.unwrap();
        log.put_at(START_MS, "1-in the second").await.unwrap();
        store.put(ledger_key(&store, "l").await, PutMode::Set, before, Ttl::Never).await.unwrap();

        let mut acknowledged = vec!["1-in the second".to_owned()];
        let mut refused = None;
        for n in 0..40 {
            if n == 3 && after_a_minute {
                advance(&clock, MINUTE_MS);
            }
            let text = format!("second-{n}-{:04000}", 0);
            match log.put_at(START_MS, &text).await {
                Ok(()) => acknowledged.push(text),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let error = refused.expect("its putter is told");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::Unknown), "{case}: {error}");
        assert!(acknowledged.len() > 3, "{case}");
        assert_eq!(acknowledged.len() == 4, after_a_minute, "{case}");
        let fresh = options(&clock).open(&store, "l").await.unwrap();
        let found = texts(fresh.fetch(..).await.unwrap());
        for text in &acknowledged {
            assert!(found.contains(text), "{case}: {}", &text[..9]);
        }

        // Nothing more is acknowledged by what the handle knew, in any chunk; who opens the log anew goes on.
        let error = log.put_at(START_MS - MINUTE_MS, "refused").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RolledBack, "{case}: {error}");
        fresh.put_at(START_MS - MINUTE_MS, "goes on").await.unwrap();
        let found = texts(fresh.fetch(..).await.unwrap());
        assert!(found.contains(&"goes on".to_owned()), "{case}");
    }
}
