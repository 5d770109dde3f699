//! Whatever keeps something by a key: clients write, remove and read keys of their own and of each other.

use larder_core::{Error, ErrorKind, Result};
use larder_structures::{Array, Set, Table};

use super::drive::{self, Client, Excuses, Opener, opener, play};
use crate::history::check::Checked;
use crate::history::check::map::{MapOp, MapTold, Rules, check};
use crate::history::check::order;
use crate::history::recorder::{Call, Outcome};
use crate::history::{Arena, Boxed, Run, Verdict, clock};

/// How a handle does it.
pub(super) type Apply<H> = fn(H, MapOp) -> Boxed<Result<MapTold>>;
type MapCall = Call<MapOp, MapTold>;

/// What clients do, and how often of all their weights together.
#[derive(Clone, Copy, Default)]
pub(super) struct Mix {
    pub(super) put: u32,
    pub(super) add: u32,
    pub(super) remove: u32,
    pub(super) get: u32,
    pub(super) all: u32,
    pub(super) count: u32,
    /// Reads of the first and the last by score.
    pub(super) best: u32,
    /// Changes of how it is spread.
    pub(super) reshard: u32,
    /// Values by which writes are told apart; else each is 1.
    pub(super) has_values: bool,
    /// Each key is written once.
    pub(super) puts_once: bool,
    /// How many keys there are; else so many that each has some ten calls.
    pub(super) keys: Option<u64>,
    /// Of a table: a remove that meets a loss, or whose reply was lost, may take it for its own removal or for others'; reads list what a
    /// writer left unlisted; a put of a new key stands for a moment before the list may refuse it; and one that is unknown may come once more after a remove.
    pub(super) is_table: bool,
    /// What a key holds before it is written.
    pub(super) first: Option<i64>,
}

/// A job on something that keeps values by keys.
pub(super) struct MapJob<H> {
    pub(super) name: &'static str,
    pub(super) open: Opener<H>,
    pub(super) mix: Mix,
    pub(super) apply: Apply<H>,
    /// What else must hold.
    pub(super) also: fn(&[MapCall], &Excuses) -> Vec<String>,
}

/// Nothing else.
pub(super) fn nothing_else(_: &[MapCall], _: &Excuses) -> Vec<String> {
    Vec::new()
}

/// How many members a sorted set keeps at its ends: so few that they are filled again and again.
pub(super) const KEPT: usize = 4;
/// The most shards that something is spread over.
const SHARDS_MAX: u16 = 7;

/// Calls on one key, about.
const CALLS_A_KEY: usize = 10;

/// Excuses that only tables need: see the rules of the checker.
pub(super) fn table_rules(excuses: &Excuses) -> Rules {
    Rules {
        is_set_back: excuses.set_back,
        lists_behind: true,
        takes_back: true,
        may_lose: excuses.lost,
        ..Rules::default()
    }
}

pub(super) async fn map<H: Clone + Send + 'static>(arena: Arena, run: Run, job: MapJob<H>) -> Verdict {
    let MapJob { name, open, mix, apply, also } = job;
    let keys = mix.keys.unwrap_or((run.ops / CALLS_A_KEY).max(2) as u64);
    let mut ended = play(name, arena, run, open, |client| work(client, mix, keys, apply)).await;
    // A change is in its shard or its entry first, and seen by all once it is at the ends, or listed.
    // A put whose entry others removed before it was listed says so on every store (`simulation`, seed 997004445).
    ended.others_may_be_losses = mix.is_table;
    if mix.best > 0 {
        // And who reads may finish what others began, or fill the ends first.
        ended.ends_midway = |_| true;
    } else if mix.is_table {
        ended.ends_midway = |op| matches!(op, MapOp::Put(..) | MapOp::Remove(_));
    }
    if mix.all > 0 {
        ended.read(MapOp::All, |handle| apply(handle, MapOp::All)).await;
    }
    if mix.best > 0 {
        for op in [MapOp::Top(KEPT), MapOp::Bottom(KEPT)] {
            ended.read(op, |handle| apply(handle, op)).await;
        }
    }
    if mix.count > 0 {
        ended.read(MapOp::Count, |handle| apply(handle, MapOp::Count)).await;
    }
    if mix.get > 0 {
        for key in 0..keys {
            ended.read(MapOp::Get(key), |handle| apply(handle, MapOp::Get(key))).await;
        }
    }
    ended.judge(|calls, excuses| {
        let mut calls = calls.to_vec();
        if mix.is_table && (excuses.lost || excuses.cut) {
            calls.iter_mut().for_each(forget_whether_it_was_there);
        }
        let rules = match mix.is_table {
            true => Rules { makes_again: excuses.late, ..table_rules(excuses) },
            false => {
                Rules { first: mix.first, is_set_back: excuses.set_back, may_lose: excuses.lost, ..Rules::default() }
            }
        };
        let mut bad = check(&calls, rules);
        bad.extend(also(&calls, excuses));
        let left_out = u64::from(mix.is_table && is_table_excused(excuses));
        Checked { bad, left_out }
    })
}

/// Whether a table is held to less than all of its rules.
pub(super) fn is_table_excused(excuses: &Excuses) -> bool {
    excuses.lost || excuses.cut || excuses.late
}

/// Whose remove it was is not known where replies or entries are lost.
pub(super) fn forget_whether_it_was_there(call: &mut MapCall) {
    if matches!(call.ok(), Some(MapTold::WasThere(_))) {
        call.outcome = Outcome::Ok(MapTold::Done);
    }
}

async fn work<H: Clone>(mut client: Client<H, MapOp, MapTold>, mix: Mix, keys: u64, apply: Apply<H>) {
    for call in 0..client.ops as u64 {
        let op = draw(&mut client, mix, keys, call);
        client.history.call(client.number, op, apply(client.handle.clone(), op)).await;
    }
}

fn draw<H>(client: &mut Client<H, MapOp, MapTold>, mix: Mix, keys: u64, call: u64) -> MapOp {
    let own = call * 4 + client.number as u64;
    // Of keys that are written once, those of about now: they are there, or about to be.
    let key = if mix.puts_once { client.rng.u64(own.saturating_sub(40)..=own + 4) } else { client.rng.u64(..keys) };
    let weights = [mix.put, mix.add, mix.remove, mix.get, mix.all, mix.count, mix.best, mix.reshard];
    let mut at = client.rng.u32(..weights.iter().sum::<u32>());
    let chosen = weights.iter().position(|&weight| {
        let is_it = at < weight;
        at = at.wrapping_sub(if is_it { 0 } else { weight });
        is_it
    });
    match chosen {
        Some(0) if mix.puts_once => MapOp::Put(own, 1),
        Some(0) if mix.best > 0 => MapOp::Put(key, scattered(own)),
        Some(0) => MapOp::Put(key, if mix.has_values { own as i64 + 1 } else { 1 }),
        Some(1) => MapOp::Add(key, client.rng.i64(1..1_000)),
        Some(2) => MapOp::Remove(key),
        Some(3) => MapOp::Get(key),
        Some(4) => MapOp::All,
        Some(6) if client.rng.bool() => MapOp::Top(client.rng.usize(1..=KEPT)),
        Some(6) => MapOp::Bottom(client.rng.usize(1..=KEPT)),
        Some(7) => MapOp::Reshard(client.rng.u16(1..=SHARDS_MAX)),
        _ => MapOp::Count,
    }
}

/// Scores of writes one after the other, on both sides of 0, each another one for some thousands: else the last written would always be the first.
fn scattered(own: u64) -> i64 {
    (own * 7_919 % 10_007) as i64 - 5_000
}

/// A number that a structure brought back as text.
pub(super) fn number(text: impl AsRef<[u8]>) -> Result<i64> {
    let text = std::str::from_utf8(text.as_ref()).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| Error::new(ErrorKind::Corrupt, "what nobody wrote was read"))
}

pub(super) fn one(told: Vec<bool>) -> Result<bool> {
    told.first().copied().ok_or_else(|| Error::new(ErrorKind::Corrupt, "a call on one key told of none"))
}

pub(super) fn members(all: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<MapTold> {
    Ok(MapTold::All(all.into_iter().map(|member| Ok((number(member)? as u64, 1))).collect::<Result<_>>()?))
}

pub(super) fn entries(all: Vec<(impl AsRef<[u8]>, impl AsRef<[u8]>)>) -> Result<MapTold> {
    let entry = |(key, value)| Ok((number(key)? as u64, number(value)?));
    Ok(MapTold::All(all.into_iter().map(entry).collect::<Result<_>>()?))
}

pub(super) fn is_member(is_member: bool) -> MapTold {
    MapTold::Value(is_member.then_some(1))
}

pub(super) fn unsupported() -> Result<MapTold> {
    Err(Error::new(ErrorKind::Unsupported, "the job does not ask for it"))
}

pub(super) const MEMBERS: Mix = Mix {
    put: 8,
    add: 0,
    remove: 6,
    get: 6,
    all: 1,
    count: 0,
    best: 0,
    reshard: 0,
    has_values: false,
    puts_once: false,
    keys: None,
    is_table: false,
    first: None,
};

pub(super) fn set(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        // Few bytes of dirt: sets are compacted on the way.
        let options = || Set::options().shards(2).dirtiness(64).clock(clock());
        let apply: Apply<Set> = |set, op| {
            Box::pin(async move {
                match op {
                    MapOp::Put(key, _) => set.add([key.to_string()]).await.map(|()| MapTold::Done),
                    MapOp::Remove(key) => set.remove([key.to_string()]).await.map(|()| MapTold::Done),
                    MapOp::Get(key) => set.has(key.to_string()).await.map(is_member),
                    MapOp::All => members(set.members().await?.iter()),
                    _ => unsupported(),
                }
            })
        };
        let open = opener!(options(), drive::name("set", run));
        map(arena, run, MapJob { name: "set", open, mix: MEMBERS, apply, also: nothing_else }).await
    })
}

/// What a table is asked for.
pub(super) fn on_table(table: Table, op: MapOp) -> Boxed<Result<MapTold>> {
    Box::pin(async move {
        match op {
            MapOp::Put(key, value) => table.put(key.to_string(), value.to_string()).await.map(|()| MapTold::Done),
            MapOp::Remove(key) => table.remove(key.to_string()).await.map(MapTold::WasThere),
            MapOp::Get(key) => Ok(MapTold::Value(table.get(key.to_string()).await?.map(number).transpose()?)),
            MapOp::All => entries(table.entries().await?),
            _ => unsupported(),
        }
    })
}

pub(super) fn table(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || Table::options().shards(2).dirtiness(64).clock(clock());
        let apply: Apply<Table> = on_table;
        let open = opener!(options(), drive::name("table", run));
        let mix = Mix { has_values: true, is_table: true, ..MEMBERS };
        map(arena, run, MapJob { name: "table", open, mix, apply, also: nothing_else }).await
    })
}

const ELEMENTS: Mix = Mix {
    put: 10,
    add: 0,
    remove: 4,
    get: 0,
    all: 1,
    count: 0,
    best: 0,
    reshard: 0,
    has_values: false,
    puts_once: true,
    keys: None,
    is_table: false,
    first: None,
};

/// One shard, which keeps one order.
pub(super) fn array(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || Array::options().shards(1).dirtiness(64).clock(clock());
        let apply: Apply<Array> = |array, op| {
            Box::pin(async move {
                match op {
                    MapOp::Put(key, _) => array.push([key.to_string()]).await.map(|()| MapTold::Done),
                    MapOp::Remove(key) => array.remove([key.to_string()]).await.map(|()| MapTold::Done),
                    MapOp::All => members(array.elements().await?),
                    _ => unsupported(),
                }
            })
        };
        let open = opener!(options(), drive::name("array", run));
        let also = |calls: &[MapCall], excuses: &Excuses| {
            if excuses.set_back { Vec::new() } else { order::check(calls) }
        };
        map(arena, run, MapJob { name: "array", open, mix: ELEMENTS, apply, also }).await
    })
}

/// The other element of a change: both are there, or none.
const TWIN: u64 = 1 << 40;

/// Changes over several shards, two elements each.
pub(super) fn array_changes(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let options = || Array::options().shards(3).dirtiness(64).clock(clock());
        let apply: Apply<Array> = |array, op| {
            Box::pin(async move {
                let none: [&str; 0] = [];
                let both = |key: u64| [key.to_string(), (key + TWIN).to_string()];
                match op {
                    MapOp::Put(key, _) => array.change(both(key), none).await.map(|()| MapTold::Done),
                    MapOp::Remove(key) => array.change(none, both(key)).await.map(|()| MapTold::Done),
                    MapOp::All => {
                        let mut all = Vec::new();
                        for element in array.elements().await? {
                            all.push(number(element)? as u64);
                        }
                        all.sort_unstable();
                        let (low, high): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|&key| key < TWIN);
                        if !low.iter().map(|key| key + TWIN).eq(high.iter().copied()) {
                            let detail = format!("half a change was read: {low:?} and {high:?}");
                            return Err(Error::new(ErrorKind::Corrupt, detail));
                        }
                        Ok(MapTold::All(low.into_iter().map(|key| (key, 1)).collect()))
                    }
                    _ => unsupported(),
                }
            })
        };
        let name = drive::name("array changes", run);
        let quiet = arena.quiet.clone();
        let open = opener!(options(), name.clone());
        let job = MapJob { name: "array changes", open, mix: ELEMENTS, apply, also: nothing_else };
        let mut verdict = map(arena, run, job).await;
        if let Ok(array) = options().open(&quiet, &name).await {
            verdict.operations += 1;
            verdict.violations.extend(goes_on(&array).await.err().map(|why| format!("array changes: {why}")));
        }
        verdict
    })
}

/// Whatever was set back, once that is accepted everybody reads it again, unless something is gone.
async fn goes_on(array: &Array) -> std::result::Result<(), String> {
    let is_bad =
        |error: &Error| matches!(error.kind(), ErrorKind::RolledBack | ErrorKind::Corrupt | ErrorKind::LayoutMismatch);
    for read in [array.accept_loss().await.map(drop), array.elements().await.map(drop)] {
        match read {
            Err(error) if is_bad(&error) => {
                return Err(format!("it does not go on once its loss is accepted: {error}"));
            }
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
    }
    Ok(())
}
