//! A frame that comes once more when nobody remembers who wrote it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{ClockRef, Ctx, ManualClock, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::Set;

use crate::support::hooked::Hooked;

/// As many as a snapshot remembers for longer than ten minutes.
const OTHERS: usize = 16;

/// The network delivers the first of two writes a second time, behind a snapshot that has forgotten the handle: its second write is not in the value any
/// more as a frame, and what it added is there.
#[tokio::test]
async fn a_late_frame_behind_a_snapshot_that_has_forgotten_its_writer_is_no_rollback() {
    for (reads_before, is_compacted) in [(false, false), (true, false), (true, true)] {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let shared: ClockRef = clock.clone();
        let store: StoreRef = Arc::new(MemoryStore::new());
        let hooked = Hooked::new(&store);
        let open =
            async |store: &StoreRef| Set::options().clock(shared.clone()).open_or_create(store, "s").await.unwrap();
        let one = open(&hooked.shared()).await;
        let late = Arc::new(Mutex::new(None));
        let keeps = late.clone();
        hooked.at(1, move |store, batch| async move {
            *keeps.lock().unwrap() = Some(batch.clone());
            store.run(Ctx::default(), batch).await
        });
        one.add(["first"]).await.unwrap();
        one.add(["second"]).await.unwrap();
        let mut others = Vec::new();
        for _ in 0..OTHERS {
            others.push(open(&store).await);
        }
        for round in 0..2 {
            for (nth, other) in others.iter().enumerate() {
                other.add([format!("{nth}")]).await.unwrap();
                other.remove([format!("gone {nth}")]).await.unwrap();
            }
            others[0].compact().await.unwrap();
            if round == 0 {
                clock.advance(Duration::from_secs(601));
            }
        }
        if reads_before {
            assert_eq!(one.members().await.unwrap().len(), OTHERS + 2);
        }
        let batch = late.lock().unwrap().take().unwrap();
        assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok));
        if is_compacted {
            others[0].remove(["gone"]).await.unwrap();
            others[0].compact().await.unwrap();
        }
        let members = one.members().await;
        let members = members.unwrap_or_else(|error| panic!("{reads_before} {is_compacted}: {error}"));
        assert_eq!(members.len(), OTHERS + 2);
        one.add(["third"]).await.unwrap();
        assert_eq!(one.members().await.unwrap().len(), OTHERS + 3);
    }
}
