//! Job A: from the id of a range of addresses to its city, region and country.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::native::{Native, NativeReply};
use larder_core::{Ctx, Key, Op, StoreExt, StoreRef, Want};
use larder_structures::PackedTable;
use larder_structures::lookup::Rows;
use larder_testkit::cities::{Cities, City};

use super::ground::{Ground, Held, On, put, run};
use super::{Bench, CHAPTER, LARDER, Laid, PLAIN, RESIDENT_MAX, ROWS, Sizes};
use crate::Result;
use crate::contest::{Contest, Goal, Limit};
use crate::drive::Step;

/// Fields of one hash, by the chapter's choice.
const CHAPTER_FIELDS: u64 = 1_024;
const LIMIT: (&str, &str) = ("hash-max-listpack-entries", "1024");
/// Where decoding is timed, a row is looked at that seldom: what a look at the source takes is no decoding.
const CHECKED_EACH: usize = 64;
const PATIENCE: Duration = Duration::from_secs(120);

/// What all rows may take, by the store.
fn bytes_max(on: On) -> Option<f64> {
    match on {
        On::Memory => Some(2.5e6),
        On::Memcached => Some(4e6),
        On::Redis => Some(3.3e6),
        On::Folder => None,
    }
}

/// Where a row is looked up.
#[derive(Clone)]
struct Lookup {
    place: Place,
    rows: Arc<Vec<City>>,
    random: fastrand::Rng,
    /// One of so many answers is held against its row, which lies elsewhere in memory.
    checked_each: usize,
    done: usize,
}

#[derive(Clone)]
enum Place {
    Items(StoreRef),
    Hashes(StoreRef, u64),
    Packed(PackedTable),
}

/// As Python's `json.dumps` has it.
fn json([city, region, country]: &City) -> String {
    format!("[\"{city}\", \"{region}\", \"{country}\"]")
}

fn hash_key(id: u64, fields: u64) -> String {
    format!("cities:{}", id / fields)
}

impl Step for Lookup {
    async fn step(&mut self) -> Result<()> {
        let id = self.random.u64(..self.rows.len() as u64);
        self.done += 1;
        let is_checked = self.done.is_multiple_of(self.checked_each);
        let row = &self.rows[id as usize];
        let is_right = match &self.place {
            Place::Packed(table) => {
                let found = table.get(id).await?.ok_or("a row is gone")?;
                !is_checked || found.fields.iter().zip(row).all(|(field, expected)| field == expected.as_bytes())
            }
            Place::Items(store) => {
                store.get(Key::new(format!("city:{id}"))?).await?.is_some_and(|item| item.value == json(row).as_bytes())
            }
            Place::Hashes(store, fields) => {
                let get = Native::HashGet { fields: vec![Bytes::from(id.to_string())] };
                let reply = store.run_one(Ctx::default(), Op::native(Key::new(hash_key(id, *fields))?, get)).await?;
                match reply.into_native() {
                    Some(NativeReply::Values(values)) => {
                        values.first().and_then(Option::as_ref).is_some_and(|value| value == json(row).as_bytes())
                    }
                    _ => false,
                }
            }
        };
        if is_right { Ok(()) } else { Err(format!("row {id} is another one").into()) }
    }
}

pub(super) fn hold_all(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    let job = format!("A, cities, {}", on.name());
    if !bench.wants(&job) {
        return Ok(());
    }
    let rows: Arc<Vec<City>> = Arc::new(Cities::new(1).take(usize::try_from(sizes.rows)?).collect());
    let mut laid: Vec<Laid<Lookup>> = Vec::new();
    let random = fastrand::Rng::with_seed(2);
    let work = |place| Lookup { place, rows: rows.clone(), random: random.clone(), checked_each: 1, done: 0 };
    if on == On::Redis {
        for (label, detail, fields, limit) in
            [(PLAIN, "a hash", sizes.rows, None), (CHAPTER, "hashes of 1,024 fields", CHAPTER_FIELDS, Some(LIMIT))]
        {
            let load = async |ground: &Ground| hashes(ground, &rows, fields).await;
            let one = bench.lay(on, (label, detail), limit, sizes.rows, load)?;
            laid.push(with(one, work));
        }
    } else {
        let load = async |ground: &Ground| items(ground, &rows).await;
        laid.push(with(bench.lay(on, (PLAIN, "an item a row"), None, sizes.rows, load)?, work));
    }
    let load = async |ground: &Ground| packed(ground, &rows).await;
    laid.push(with(bench.lay(on, (LARDER, "PackedTable"), None, sizes.rows, load)?, work));
    // The targets are of all rows.
    let most = bytes_max(on).map(|bytes| bytes / ROWS as f64);
    found.push(bench.memory(
        &format!("{job}: memory"),
        sizes.rows,
        &laid,
        (most, on.resident_max(RESIDENT_MAX)),
        sizes,
    ));
    found.push(bench.loading(&format!("{job}: loading"), &laid));
    let goal = Goal { ours: LARDER, against: vec![PLAIN], limit: None };
    found.push(bench.ops(&format!("{job}: a lookup"), &laid, &[goal])?);
    found.push(decoding(bench, on, &job, &laid, sizes)?);
    Ok(())
}

/// The same with what works on it.
fn with(laid: Laid<Place>, work: impl Fn(Place) -> Lookup) -> Laid<Lookup> {
    let Laid { label, detail, held, rate, work: place, ground } = laid;
    Laid { label, detail, held, rate, work: work(place), ground }
}

async fn hashes(ground: &Ground, rows: &[City], fields: u64) -> Result<(Place, Held)> {
    let before = ground.held()?;
    let ops = (0u64..).zip(rows).map(|(id, row)| {
        let entries = vec![(Bytes::from(id.to_string()), Bytes::from(json(row)))];
        Ok(Op::native(Key::new(hash_key(id, fields))?, Native::HashSet { entries }))
    });
    run(&ground.store, ops).await?;
    Ok((Place::Hashes(ground.store.clone(), fields), before))
}

async fn items(ground: &Ground, rows: &[City]) -> Result<(Place, Held)> {
    let before = ground.held()?;
    run(&ground.store, (0u64..).zip(rows).map(|(id, row)| put(format!("city:{id}"), json(row)))).await?;
    Ok((Place::Items(ground.store.clone()), before))
}

async fn packed(ground: &Ground, rows: &[City]) -> Result<(Place, Held)> {
    let before = ground.held()?;
    let table = PackedTable::options().timeout(PATIENCE).open_or_create(&ground.store, "cities").await?;
    let mut all = Rows::new(["city", "region", "country"])?;
    for (id, row) in (0u64..).zip(rows) {
        all.push_id(id, row)?;
    }
    table.build(all).await?;
    Ok((Place::Packed(table), before))
}

/// What of a lookup is no reading: the same block, read and not decoded, beside it.
fn decoding(bench: &Bench<'_>, on: On, job: &str, laid: &[Laid<Lookup>], sizes: Sizes) -> Result<Contest> {
    let ours = laid.iter().find(|one| one.label == LARDER).ok_or("no packed table")?;
    let keys = bench.runtime.block_on(block_keys(&ours.ground.store))?;
    let bare = Bare { store: ours.ground.store.clone(), keys: Arc::new(keys), random: fastrand::Rng::with_seed(3) };
    let window = bench.plan.window;
    let (mut lookups, mut reads) = (vec![Lookup { checked_each: CHECKED_EACH, ..ours.work.clone() }], vec![bare]);
    let contestants = vec![
        crate::contest::Contestant::new(LARDER, "decoded".to_owned(), || {
            Ok(1e6 / crate::drive::drive_tasks(&bench.runtime, &mut lookups, window)?)
        }),
        crate::contest::Contestant::new("plain read", "the block alone".to_owned(), || {
            Ok(1e6 / crate::drive::drive_tasks(&bench.runtime, &mut reads, window)?)
        }),
    ];
    // One round trip, and 2 us: of a lookup in the process, all of it.
    let limit = (on == On::Memory).then(|| sizes.goal(Limit::AtMost(2.0))).flatten();
    let goals = [
        Goal { ours: LARDER, against: Vec::new(), limit },
        Goal { ours: LARDER, against: vec!["plain read"], limit: None },
    ];
    let name = format!("{job}: a lookup, and the read in it");
    crate::contest::hold(bench.progress, &name, crate::contest::Unit::MicrosPerOp, bench.rounds(), contestants, &goals)
}

/// Reads blocks, and nothing of them is decoded.
#[derive(Clone)]
struct Bare {
    store: StoreRef,
    keys: Arc<Vec<Key>>,
    random: fastrand::Rng,
}

impl Step for Bare {
    async fn step(&mut self) -> Result<()> {
        let key = self.keys[self.random.usize(..self.keys.len())].clone();
        let reply = self.store.run_one(Ctx::default(), Op::get(key, Want::VALUE)).await?;
        reply.into_item().map(drop).ok_or_else(|| "a block is gone".into())
    }
}

/// The keys of the blocks, as `docs/layouts.md` writes them down: the head begins with 15 bytes and the number of the version in force, and then comes its build, whose
/// highest 48 bits are in the key.
async fn block_keys(store: &StoreRef) -> Result<Vec<Key>> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let name = larder_structures::Name::new("cities")?;
    let manifest = larder_structures::registry::find(store, Ctx::default(), &name).await?.ok_or("no table")?;
    let generation = manifest.generation;
    let head = store.get(Key::new(format!("L.cities.b.{generation:016x}.0"))?).await?.ok_or("no head")?;
    let build = head.value.get(19..27).ok_or("no version")?;
    let build = u64::from_le_bytes(build.try_into()?);
    let letters: String = (0..8).map(|at| char::from(LETTERS[(build >> (58 - 6 * at)) as usize & 63])).collect();
    let blocks = PackedTable::open(store, "cities").await?.stat().await?.blocks;
    let key = |block| Key::new(format!("L.cities.b.{generation:016x}.{letters}-{block:x}"));
    (0..blocks).map(|block| Ok(key(block)?)).collect()
}
