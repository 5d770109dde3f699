//! What becomes of a write whose look at the other shards fails.

use larder_core::{StoreRef, SystemClock};
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;

use super::*;
use crate::append::{Action, Tuning};
use crate::ledger::layout::Entries;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;

/// Nothing of the write was sent by then.
#[tokio::test(start_paused = true)]
async fn a_write_whose_look_at_a_shard_fails_in_a_way_that_passes_is_made_all_the_same() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let name = Name::new("s").unwrap();
    let new = Manifest::new(Kind::Set, 1, 1, Bytes::new());
    let data_of = |new: &Manifest| Ok(vec![Shards::<Entries>::create_ops(&name, new)?]);
    let manifest = manifest::create(&memory, Ctx::default(), &name, new, data_of).await.unwrap();
    let faulty = Faulty::new(memory);
    let tuning = Tuning { clock: SystemClock::shared(), dirty_bytes: usize::MAX };
    let shards = Arc::new(Shards::<Entries>::new(&faulty.shared(), &name, &manifest, tuning).unwrap());
    let mut writer = Writer::new(shards.clone());
    let mut elements = Vec::new();
    layout::put_element(&mut elements, Action::Put, b"member");
    let parts = vec![Part { shard: 0, elements }];
    writer.begin(&[Write { parts, deadline: ambient::now() + Duration::from_secs(60) }]);
    writer.pending[0].step = Step::Look;
    faulty.fail_nth(1, Fault::NotSent);
    writer.settle().await;
    assert_eq!(faulty.injected(), 1);
    let outcomes = writer.finish();
    assert!(matches!(outcomes[..], [(0, Ok(()))]), "{outcomes:?}");
    let readings = shards.read(Ctx::default(), [0]).await.unwrap();
    assert_eq!(shards.stat(&readings[0], &shards.state(&readings[0]).unwrap()).elements, 1);
}
