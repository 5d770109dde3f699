//! Changes a sorted set while it is resharded; its shards and both its ends must be what the workers' own models hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder::ShardedSortedSet;

use super::sharded::{SHARDS, shards_after, some_elements};
use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many members are kept at each end: few, so that most changes are between them.
const KEPT: u16 = 20;
/// Scores are whole numbers up to this one, so that many members have the same.
const SCORE_MAX: i32 = 10_000;

type Scores = BTreeMap<Vec<u8>, f64>;
type Ranking = Vec<(Vec<u8>, f64)>;

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let options = ShardedSortedSet::options().shards(SHARDS[2]).kept(KEPT).timeout(stage.timeout);
    let sets = stage.handles(async |store| options.clone().open_or_create(store, &stage.name).await).await?;
    let driven = stage.drive(sets.clone(), change).await;
    let (mut said, mut elements) = (Verdict::Right, 0);
    if let (Ok(driven), Some(set), Some(store)) = (&driven, sets.first(), stage.stores.last()) {
        if stage.is_sabotaged {
            set.set([("behind its back", f64::from(SCORE_MAX) + 1.0)]).await?;
        }
        let expected = expected(driven);
        let fresh = ShardedSortedSet::options().timeout(stage.timeout).open(store, &stage.name).await?;
        for (who, set) in [("a worker", set), ("a fresh handle", &fresh)] {
            said = verdict(who, set, &expected).await?.unwrap_or(said);
        }
        elements = fresh.len().await?;
    }
    stage.row(driven, elements, said).await
}

/// All members, those of the lowest scores first.
fn ranking(entries: impl Iterator<Item = (Vec<u8>, f64)>) -> Ranking {
    let mut all: Ranking = entries.collect();
    all.sort_by(|(a, x), (b, y)| x.total_cmp(y).then_with(|| a.cmp(b)));
    all
}

fn expected(driven: &Driven<Scores>) -> Ranking {
    ranking(driven.accounts.iter().flatten().map(|(member, score)| (member.clone(), *score)))
}

async fn verdict(who: &str, set: &ShardedSortedSet, expected: &Ranking) -> larder::Result<Option<Verdict>> {
    let plain = |entries: Vec<(bytes::Bytes, f64)>| entries.into_iter().map(|(member, score)| (member.to_vec(), score));
    let top: Ranking = plain(set.top(usize::from(KEPT)).await?).collect();
    let bottom: Ranking = plain(set.bottom(usize::from(KEPT)).await?).collect();
    let all = ranking(plain(set.entries().await?));
    let kept = usize::from(KEPT);
    let off = if !top.iter().eq(expected.iter().rev().take(kept)) {
        Some("a top")
    } else if !bottom.iter().eq(expected.iter().take(kept)) {
        Some("a bottom")
    } else if all != *expected {
        Some("members")
    } else {
        None
    };
    Ok(off.map(|what| Verdict::Off(format!("{who} finds {what} that should be another"))))
}

/// Sets, adds to and removes members until the turns are over; what should be there of it.
async fn change(worker: usize, set: ShardedSortedSet, turns: Arc<Turns>) -> larder::Result<Scores> {
    let mut model = Scores::new();
    let mut turn = 0;
    while turns.take() {
        let members = some_elements(worker);
        if let Some(shards) = shards_after(worker, turn) {
            set.reshard(shards).await?;
        } else {
            let by = f64::from(fastrand::i32(-SCORE_MAX..=SCORE_MAX));
            match fastrand::u8(..6) {
                0 => {
                    set.remove(&members).await?;
                    members.iter().for_each(|member| _ = model.remove(member));
                }
                1 => {
                    set.add(members.iter().map(|member| (member, by))).await?;
                    members.into_iter().for_each(|member| *model.entry(member).or_default() += by);
                }
                _ => {
                    set.set(members.iter().map(|member| (member, by))).await?;
                    model.extend(members.into_iter().map(|member| (member, by)));
                }
            }
        }
        turn += 1;
        turns.done();
    }
    Ok(model)
}
