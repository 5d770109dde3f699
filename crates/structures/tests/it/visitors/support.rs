//! What the tests of visitors share: a clock turned by hand, keys as they are documented, a store without lives.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_core::{
    Batch, Ctx, Error, ErrorKind, Key, ManualClock, Op, Profile, PutMode, Run, Store, StoreExt, StoreRef, Ttl,
    TtlSupport, Verb, Want,
};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Visitors, VisitorsOptions, registry};

pub(crate) const PERIOD: Duration = Duration::from_secs(300);
/// The beginning of window 5,912,345 of five minutes.
pub(crate) const START_S: u64 = 5_912_345 * 300;
pub(crate) const NAME: &str = "site";

/// A clock at the beginning of a window.
pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(START_S)))
}

/// A store whose items end by the same clock.
pub(crate) fn memory(clock: &Arc<ManualClock>) -> StoreRef {
    Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap())
}

pub(crate) fn options(clock: &Arc<ManualClock>) -> VisitorsOptions {
    Visitors::options().period(PERIOD).shards(2).clock(clock.clone())
}

pub(crate) async fn open(store: &StoreRef, clock: &Arc<ManualClock>) -> Visitors {
    options(clock).open_or_create(store, NAME).await.unwrap()
}

pub(crate) fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The window of a clock.
pub(crate) fn window(clock: &Arc<ManualClock>) -> u64 {
    use larder_core::Clock;
    clock.wall().as_secs() / PERIOD.as_secs()
}

/// A key of a window, by the documented scheme: of its counter, or of a shard of its visitors.
pub(crate) async fn key(store: &StoreRef, window: u64, shard: Option<u16>) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().unwrap();
    let shard = shard.map(|shard| format!("-{shard}")).unwrap_or_default();
    Key::new(format!("L.{NAME}.v.{:016x}.w{window}{shard}", manifest.generation)).unwrap()
}

pub(crate) async fn ledger_key(store: &StoreRef) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.{NAME}.v.{:016x}.0", manifest.generation)).unwrap()
}

/// Loses a key, as a store does that evicts. It must have been there.
pub(crate) async fn evict(store: &StoreRef, key: &Key) {
    assert!(store.delete(key.clone()).await.unwrap(), "{key} is not there");
}

pub(crate) async fn is_there(store: &StoreRef, key: &Key) -> bool {
    store.run_one(Ctx::default(), Op::get(key.clone(), Want::empty())).await.unwrap().into_item().is_some()
}

pub(crate) fn kind<T: std::fmt::Debug>(outcome: larder_core::Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// Lets what runs beside the callers run.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A store where items stay for ever, as MemcacheDB's.
#[derive(Debug)]
pub(crate) struct NoLives(pub StoreRef);

impl Store for NoLives {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { ttl: TtlSupport::None, remaining_ttl: false, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let joins = |mode: &PutMode| matches!(mode, PutMode::Append | PutMode::Prepend);
        let lives = |op: &Op| matches!(&op.verb, Verb::Put { ttl: Ttl::After(_), mode, .. } if !joins(mode));
        if batch.iter().any(lives) {
            let refuse = |_| Err(Error::new(ErrorKind::Unsupported, "no lives here"));
            return Run::Ready(batch.iter().map(refuse).collect());
        }
        self.0.run(ctx, batch)
    }
}
