//! The sharded sorted set under schedules drawn at random: each op of a batch takes effect at a moment of its own, writers die between any two, with what they sent
//! under way, the ends are lost, and shards are made another number. What was acknowledged is seen meanwhile, and the ends are those of the shards at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Batch, Ctx, Key, Op, Profile, Replies, Reply, Result, Run, Store, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::registry::find;
use larder_structures::{Name, ShardedSortedSet};

/// How many schedules there are, unless `LARDER_SCHEDULES` says another number.
const SCHEDULES: u64 = 60;
const WRITERS: usize = 4;
const TURNS: u64 = 10;
const KEPT: usize = 2;

/// A store on which the keys of a batch are apart: what is done to each takes effect at a moment of its own, and also if the caller is gone by then.
#[derive(Debug)]
struct Apart {
    inner: StoreRef,
    under_way: Arc<AtomicU64>,
}

impl Store for Apart {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let mut keys: BTreeMap<Key, Vec<(usize, Op)>> = BTreeMap::new();
        let count = batch.len();
        for (at, op) in batch.into_iter().enumerate() {
            keys.entry(op.key.clone()).or_default().push((at, op));
        }
        let sent: Vec<_> = keys.into_values().map(|ops| self.send(ctx, ops)).collect();
        Run::pending(async move {
            let mut all: Vec<Option<Result<Reply>>> = (0..count).map(|_| None).collect();
            for replies in sent {
                for (at, reply) in replies.await.expect("no panic") {
                    all[at] = Some(reply);
                }
            }
            all.into_iter().flatten().collect::<Replies>()
        })
    }
}

impl Apart {
    /// Runs ops on one key, some time from now.
    fn send(&self, ctx: Ctx, ops: Vec<(usize, Op)>) -> tokio::task::JoinHandle<Vec<(usize, Result<Reply>)>> {
        let (inner, under_way) = (self.inner.clone(), self.under_way.clone());
        under_way.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            // Mostly soon, now and then much later than others that were sent after it.
            pass(if fastrand::u8(..8) == 0 { 30 } else { 4 }).await;
            let (at, ops): (Vec<usize>, Vec<Op>) = ops.into_iter().unzip();
            let replies = inner.run(ctx, ops.into_iter().collect()).await;
            under_way.fetch_sub(1, Ordering::Relaxed);
            pass(4).await;
            at.into_iter().zip(replies).collect()
        })
    }
}

/// Lets others run, a few times.
async fn pass(most: u32) {
    for _ in 0..fastrand::u32(..most) {
        tokio::task::yield_now().await;
    }
}

async fn open(store: &StoreRef) -> ShardedSortedSet {
    let options = ShardedSortedSet::options().shards(3).kept(KEPT as u16).timeout(Duration::from_secs(60));
    options.open_or_create(store, "n").await.unwrap()
}

type Ranking = Vec<(bytes::Bytes, f64)>;

fn ranked(mut all: Ranking) -> Ranking {
    all.sort_by(|(a, x), (b, y)| x.total_cmp(y).then_with(|| a.cmp(b)));
    all
}

/// A member of this score stands at the ends, where it is not beyond them.
fn is_shown(top: &Ranking, bottom: &Ranking, member: &str, score: Option<f64>, when: &str) {
    let (top, bottom) = (ranked(top.clone()), ranked(bottom.clone()));
    let found: Vec<f64> =
        top.iter().chain(&bottom).filter(|(found, _)| *found == member.as_bytes()).map(|(_, score)| *score).collect();
    let Some(score) = score else {
        assert!(found.is_empty(), "{member} was removed, {when}: {top:?} {bottom:?}");
        return;
    };
    assert!(found.iter().all(|found| *found == score), "{member} has {score}, {when}: {top:?} {bottom:?}");
    let with = |ends: &Ranking| ranked(ends.iter().cloned().chain([(member.to_owned().into(), score)]).collect());
    let is_in = |ends: &Ranking| ends.iter().any(|(found, _)| *found == member.as_bytes());
    let among =
        |ends: &Ranking, at: fn(&Ranking) -> bytes::Bytes| ends.len() < KEPT || at(&with(ends)) != *member.as_bytes();
    // It is better than the worst that is shown: it must be shown.
    assert!(is_in(&top) || !among(&top, |all| all[0].0.clone()), "{member} has {score}, {when}: {top:?}");
    assert!(
        is_in(&bottom) || !among(&bottom, |all| all[all.len() - 1].0.clone()),
        "{member} has {score}, {when}: {bottom:?}"
    );
}

/// What a writer does until it is over, or dies. Its own member's score is what was acknowledged last.
async fn write(store: StoreRef, writer: usize, when: String) {
    let (set, reader) = (open(&store).await, open(&store).await);
    let own = format!("own-{writer}");
    for _ in 0..TURNS {
        let score = f64::from(fastrand::i8(-9..10));
        let member = format!("m{}", fastrand::u8(..8));
        let own_score = match fastrand::u8(..8) {
            0 => {
                set.remove([&own]).await.unwrap();
                None
            }
            1..=3 => {
                set.set([(&own, score)]).await.unwrap();
                Some(score)
            }
            4 => {
                set.set([(&own, score), (&member, -score)]).await.unwrap();
                Some(score)
            }
            5 => {
                set.remove([&member, "m0", "m1"].map(String::from)).await.unwrap();
                continue;
            }
            6 => {
                set.add([(&member, score)]).await.unwrap();
                continue;
            }
            _ => {
                set.set([(&member, score)]).await.unwrap();
                continue;
            }
        };
        let (top, bottom) = (reader.top(KEPT).await.unwrap(), reader.bottom(KEPT).await.unwrap());
        is_shown(&top, &bottom, &own, own_score, &when);
        assert_eq!(reader.score(&own).await.unwrap(), own_score, "{own}, {when}");
    }
}

async fn ends_key(store: &StoreRef) -> Key {
    let manifest = find(store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.n.z.{:016x}.1", manifest.generation)).unwrap()
}

async fn schedule(seed: u64) {
    fastrand::seed(seed);
    let when = format!("seed {seed}");
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let under_way = Arc::new(AtomicU64::new(0));
    let store: StoreRef = Arc::new(Apart { inner: inner.clone(), under_way: under_way.clone() });
    let before: Vec<(String, f64)> = (0..8).map(|n| (format!("m{n}"), f64::from(n) - 4.0)).collect();
    open(&inner).await.set(before).await.unwrap();
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer, when.clone()))).collect();
    let (dies, loses, reshards) = (fastrand::u8(..3) > 0, fastrand::u8(..4) == 0, fastrand::u8(..3) == 0);
    let ends = ends_key(&inner).await;
    if loses {
        pass(600).await;
        inner.run_one(Ctx::default(), Op::delete(ends)).await.unwrap();
    }
    if reshards {
        open(&store).await.reshard(fastrand::u16(1..7)).await.unwrap();
    }
    for writer in writers {
        if dies && fastrand::bool() {
            pass(500).await;
            writer.abort();
        }
        if let Err(error) = writer.await {
            assert!(error.is_cancelled(), "{error}, {when}");
        }
    }
    // The dead are told of by nobody: whoever reads finds what they have left.
    while under_way.load(Ordering::Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
    let set = open(&inner).await;
    let all = ranked(set.entries().await.unwrap());
    let top: Ranking = all.iter().rev().take(KEPT).cloned().collect();
    let bottom: Ranking = all.iter().take(KEPT).cloned().collect();
    for set in [&set, &open(&inner).await] {
        assert_eq!(set.top(KEPT).await.unwrap(), top, "{when}: {all:?}");
        assert_eq!(set.bottom(KEPT).await.unwrap(), bottom, "{when}: {all:?}");
        assert_eq!(set.len().await.unwrap(), all.len() as u64, "{when}");
        assert_eq!(ranked(set.entries().await.unwrap()), all, "{when}");
    }
}

/// Time passes as soon as everybody waits for it.
#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_is_seen_and_the_ends_agree_under_random_schedules() {
    let schedules = std::env::var("LARDER_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(SCHEDULES);
    let first = fastrand::u64(..1 << 40);
    println!("seeds from {first}");
    for seed in first..first + schedules {
        schedule(seed).await;
    }
}
