//! Which keys the store holds.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, Error, ErrorKind, Result, ambient};

use crate::MemoryStore;
use crate::shard::Locked;

/// Items between two words of progress.
const PROGRESS_EVERY: u64 = 10_000;
/// How long a walk goes on before it lets other tasks of its thread have a turn.
const TURN: Duration = Duration::from_millis(1);

/// Shard by shard: each is looked at under its lock in one piece, so a shard's part is of one moment, the whole is not. A shard of a store with a million
/// items is held for less than a millisecond. Between shards it lets other tasks of its thread go on once a millisecond has passed.
impl List for MemoryStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            self.walk_shards(
                ctx,
                |shard, now_ms| shard.keys(now_ms, prefix),
                |walked| match walked {
                    Walked::Item(key) => tell(Listed::Key(&key)),
                    Walked::LookedAt(count) => tell(Listed::LookedAt(count)),
                },
            )
            .await
        })
    }
}

/// What a walk over all shards meets.
pub(crate) enum Walked<T> {
    /// What was copied of an item.
    Item(T),
    /// How many items were looked at so far.
    LookedAt(u64),
}

impl MemoryStore {
    /// Copies of each shard under its lock what is wanted of its items, with how many were looked at, and shows it when the lock is free again: nobody's code
    /// runs under it. Between shards others have their turn.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when the deadline comes first. What was shown until then stands.
    pub(crate) async fn walk_shards<T>(
        &self,
        ctx: Ctx,
        copy: impl Fn(&Locked<'_>, u64) -> (Vec<T>, u64),
        mut show: impl FnMut(Walked<T>),
    ) -> Result<()> {
        let inner = &self.inner;
        let (mut looked_at, mut told_at) = (0, 0);
        let mut turn_ends = ambient::now() + TURN;
        for slot in &inner.slots {
            if ambient::now() >= turn_ends {
                give_way().await;
                turn_ends = ambient::now() + TURN;
            }
            if ctx.deadline.is_some_and(|deadline| ambient::now() >= deadline) {
                let detail = format!("the deadline came after {looked_at} items");
                return Err(Error::new(ErrorKind::Timeout, detail).store("memory"));
            }
            let (items, looked) = copy(&slot.lock(&inner.shared), inner.shared.now_ms());
            items.into_iter().for_each(|item| show(Walked::Item(item)));
            looked_at += looked;
            if looked_at - told_at >= PROGRESS_EVERY {
                told_at = looked_at;
                show(Walked::LookedAt(looked_at));
            }
        }
        show(Walked::LookedAt(looked_at));
        Ok(())
    }
}

/// Lets others have their turn: waits once, and is woken at once.
async fn give_way() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::time::Instant;

    use larder_core::ambient::simulation::{World, enter};
    use larder_core::survey::Survey;
    use larder_core::{ManualClock, PutMode, Ttl};

    use super::*;

    /// The end of a future that waits for nobody.
    pub(crate) fn ended<T>(mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
        }
    }

    fn keys(store: &MemoryStore, prefix: &[u8]) -> (BTreeSet<Vec<u8>>, u64) {
        let (mut keys, mut looked_at) = (BTreeSet::new(), 0);
        let mut tell = |told: Listed<'_>| match told {
            Listed::Key(key) => assert!(keys.insert(key.to_vec()), "told once, where nobody writes"),
            Listed::Other(key) => panic!("{key:?}"),
            Listed::LookedAt(count) => looked_at = count,
        };
        ended(store.list(Ctx::default(), prefix, &mut tell)).unwrap();
        (keys, looked_at)
    }

    #[test]
    fn all_keys_of_a_prefix_are_told_and_no_expired_one() {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let put = |key: &[u8], ttl| store.direct().put(key, PutMode::Set, b"v", 0, ttl).unwrap();
        for number in 0..25_000 {
            put(format!("a{number}").as_bytes(), Ttl::Never);
        }
        put(b"a\xff\0", Ttl::Never);
        put(b"b", Ttl::Never);
        put(b"a-brief", Ttl::After(Duration::from_secs(1)));
        assert_eq!(keys(&store, b"a").0.len(), 25_002);
        clock.advance(Duration::from_secs(1));
        let (of_a, _) = keys(&store, b"a");
        assert!(of_a.len() == 25_001 && of_a.contains(&b"a\xff\0"[..]) && !of_a.contains(&b"a-brief"[..]));
        assert!(keys(&store, b"").1 >= 25_002);
        assert_eq!(keys(&store, b"c").0.len(), 0);
        let late = Ctx { deadline: Some(Instant::now()) };
        let error = ended(store.list(late, b"", &mut |_| ())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }

    /// A machine whose moment is this one.
    #[derive(Debug)]
    struct Then(Instant);

    impl World for Then {
        fn now(&self) -> Instant {
            self.0
        }
        fn random(&self) -> u64 {
            7
        }
        fn new_clock(&self) -> u64 {
            0
        }
        fn monotonic(&self, _: u64) -> Duration {
            Duration::ZERO
        }
        fn wall(&self, _: u64) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn a_deadline_is_held_against_the_time_of_the_world_it_is_of() {
        let store = MemoryStore::new();
        let then = Instant::now() + Duration::from_secs(1_000);
        let _entered = enter(std::rc::Rc::new(Then(then)));
        let until = |deadline| ended(store.list(Ctx { deadline: Some(deadline) }, b"", &mut |_| ()));
        until(then + Duration::from_secs(1)).unwrap();
        // Over there, and to come by the machine's own clock.
        assert_eq!(until(then - Duration::from_secs(500)).unwrap_err().kind(), ErrorKind::Timeout);
    }

    #[tokio::test]
    async fn a_walk_lets_others_of_its_thread_go_on() {
        let store = MemoryStore::new();
        for number in 0..200_000u64 {
            store.direct().put(&number.to_le_bytes(), PutMode::Set, b"v", 0, Ttl::Never).unwrap();
        }
        for is_survey in [false, true] {
            let (mut keys, mut ticks) = (0, 0);
            let began = Instant::now();
            let mut tell_key = |told: Listed<'_>| keys += u64::from(matches!(told, Listed::Key(_)));
            let mut tell = |_: larder_core::survey::Told<'_>| ();
            let mut walk = if is_survey {
                store.walk(Ctx::default(), larder_core::survey::Pace::UNBOUNDED, &mut tell)
            } else {
                store.list(Ctx::default(), b"", &mut tell_key)
            };
            let mut interval = tokio::time::interval(Duration::from_millis(1));
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    done = &mut walk => break done.unwrap(),
                    _ = interval.tick() => ticks += 1,
                }
            }
            drop(walk);
            assert!(is_survey || keys == 200_000);
            // The first is at once; of the others a busy machine may take some.
            let took_ms = began.elapsed().as_millis();
            assert!(ticks > 4, "{ticks} in {took_ms} ms");
        }
    }
}
