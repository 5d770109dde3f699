//! How long a call may take at the most, whatever it is told.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::{StoreRef, ambient};
use larder_store_memory::MemoryStore;
use larder_structures::records::Schema;
use larder_structures::{
    Array, Counter, EventLog, PackedRecords, PackedTable, Queue, Set, ShardedHash, Table, UniqueVisitors, Visitors,
};

use crate::support::sieve::Sieve;

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn a_call_takes_a_day_at_the_most() {
    let deadlines: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = deadlines.clone();
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let store = Sieve::answering(&memory, move |ctx, _| {
        noted.lock().unwrap().extend(ctx.deadline);
        None
    });
    macro_rules! check {
        ($($kind:ident),* over $longest:expr) => {$(
            let began = ambient::now();
            $kind::options().timeout($longest).open_or_create(&store, stringify!($kind)).await.unwrap();
            let latest = deadlines.lock().unwrap().drain(..).max().unwrap();
            let longest = DAY.min($longest);
            assert!(began + longest <= latest && latest <= ambient::now() + longest, "{:?}", latest - began);
        )*};
    }
    for longest in [DAY - Duration::from_secs(1), DAY, Duration::MAX] {
        let records = PackedRecords::options().schema(Schema::parse(["n:u8"]).unwrap());
        check!(Array, Counter, EventLog, PackedTable, Queue, Set, ShardedHash, Table, UniqueVisitors, Visitors over longest);
        records.timeout(longest).open_or_create(&store, "records").await.unwrap();
    }
}
