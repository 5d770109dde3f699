//! A table with lives: clients put entries that end by themselves, remove and read them, and rest, so that some end meanwhile.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Result, TtlSupport};
use larder_structures::Table;

use super::drive::{self, Client, Excuses, Times, opener, play};
use super::maps::{forget_whether_it_was_there, is_table_excused, on_table, table_rules};
use crate::history::check::Checked;
use crate::history::check::lives::{Lives, ends};
use crate::history::check::map::{MapOp, MapTold, check};
use crate::history::recorder::{Call, Moment};
use crate::history::{Arena, Boxed, Run, Verdict, clock};

/// More would make a round on servers last as long as their rests.
const OPS_MAX: usize = 150;
/// Calls on one key, about.
const CALLS_A_KEY: usize = 10;
/// How long a client rests, every fifth time.
const REST_MS_MAX: u64 = 700;
/// What stores and machines round, and what a store that counts seconds does.
const MILLIS_OFF: Duration = Duration::from_millis(100);
const SECONDS_OFF: Duration = Duration::from_millis(1_250);

/// Longer than a server is stopped, or a message under way, one after the other.
const HELD_BACK: Duration = Duration::from_secs(60);

/// How far two clocks are apart at the most.
const CLOCKS_APART: Duration = Duration::from_secs(5 * 60);

/// By value: a second to four, or for ever.
fn life_of(value: i64) -> Option<Duration> {
    let life_s = value.unsigned_abs() % 5;
    (life_s > 0).then(|| Duration::from_secs(life_s))
}

pub(super) fn table(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || Table::options().shards(2).dirtiness(64).ttl(true).clock(clock());
        let open = opener!(options(), drive::name("table with lives", run));
        let run = Run { ops: run.ops.min(OPS_MAX), ..run };
        let keys = (run.ops / CALLS_A_KEY).max(2) as u64;
        let off = if arena.quiet.profile().ttl == TtlSupport::Millis { MILLIS_OFF } else { SECONDS_OFF };
        let tells_what_is_left = arena.quiet.profile().remaining_ttl;
        let times = Arc::new(Times::default());
        let shared = times.clone();
        let mut ended =
            play("table with lives", arena, run, open, move |client| work(client, keys, shared.clone())).await;
        ended.others_may_be_losses = true;
        // A put whose maker came to no end may have taken an entry's place, and be over before anybody has listed it: then the one before it is told as lost.
        ended.tells_doubts = true;
        ended.ends_midway = |op| matches!(op, MapOp::Put(..) | MapOp::Remove(_));
        for op in std::iter::once(MapOp::All).chain((0..keys).map(MapOp::Get)) {
            times.note(&ended.history);
            ended.read(op, |table| apply(table, op)).await;
            times.note(&ended.history);
        }
        ended.judge(|calls, excuses| {
            judge(calls, excuses, |calls| ends(calls, &times.take(), lives(off, excuses, tells_what_is_left)))
        })
    })
}

/// How exactly lives end. Where the store does not tell what is left of one, whoever lists an entry for another writes it by his own clock.
fn lives(off: Duration, excuses: &Excuses, tells_what_is_left: bool) -> Lives {
    let is_by_clocks = excuses.clocks && !tells_what_is_left;
    Lives {
        of: life_of,
        early: off,
        late: 2 * off,
        smooth_until: if is_by_clocks { 0 } else { excuses.smooth_until },
        held_back: if is_by_clocks { HELD_BACK + CLOCKS_APART } else { HELD_BACK },
        may_lose: excuses.lost || is_by_clocks,
    }
}

/// As those of a table without lives, with their ends among them.
fn judge(
    calls: &[Call<MapOp, MapTold>],
    excuses: &Excuses,
    ends: impl FnOnce(&[Call<MapOp, MapTold>]) -> Vec<Call<MapOp, MapTold>>,
) -> Checked {
    let mut all = calls.to_vec();
    if excuses.lost || excuses.cut {
        all.iter_mut().for_each(forget_whether_it_was_there);
    }
    all.extend(ends(calls));
    // When a life ends is held to the clock until something fails, and to the wall clocks of others never.
    let left_out = u64::from(is_table_excused(excuses) || excuses.clocks || excuses.smooth_until < Moment::MAX);
    Checked { bad: check(&all, table_rules(excuses)), left_out }
}

fn apply(table: Table, op: MapOp) -> Boxed<Result<MapTold>> {
    let MapOp::Put(key, value) = op else { return on_table(table, op) };
    let Some(life) = life_of(value) else { return on_table(table, op) };
    Box::pin(async move { table.put_for(key.to_string(), value.to_string(), life).await.map(|()| MapTold::Done) })
}

async fn work(mut client: Client<Table, MapOp, MapTold>, keys: u64, times: Arc<Times>) {
    for call in 0..client.ops as u64 {
        if client.rng.u8(..5) == 0 {
            tokio::time::sleep(Duration::from_millis(client.rng.u64(..REST_MS_MAX))).await;
        }
        let (key, value) = (client.rng.u64(..keys), (call * 4 + client.number as u64 + 1) as i64);
        let op = match client.rng.u8(..16) {
            0..6 => MapOp::Put(key, value),
            6 | 7 => MapOp::Remove(key),
            8 => MapOp::All,
            _ => MapOp::Get(key),
        };
        times.note(&client.history);
        client.history.call(client.number, op, apply(client.handle.clone(), op)).await;
        times.note(&client.history);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_off_by_wrong_clocks_only_where_the_store_does_not_tell_what_is_left() {
        let off = Duration::from_millis(100);
        let of = |clocks, tells| {
            let excuses = Excuses { clocks, smooth_until: 7, ..Excuses::default() };
            let lives = lives(off, &excuses, tells);
            (lives.held_back, lives.smooth_until, lives.may_lose)
        };
        for sound in [of(false, false), of(false, true), of(true, true)] {
            assert_eq!(sound, (HELD_BACK, 7, false));
        }
        assert_eq!(of(true, false), (HELD_BACK + CLOCKS_APART, 0, true));
        assert!(lives(off, &Excuses { lost: true, ..Excuses::default() }, true).may_lose);
    }
}
