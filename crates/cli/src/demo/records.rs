//! Packed records of three fields: each worker sets ids of its own, in bytes that others write, too, and the aggregate is what they set.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder::PackedRecords;
use larder::records::{RecordsOptions, Schema, Value};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many records the workers draw from.
const RECORDS: u64 = 1 << 18;
/// How many are set at a time.
const IDS: usize = 20;
const PLACES: [&str; 5] = ["CA-ON", "CA-QC", "FR-IDF", "US-CA", "US-NY"];

/// What a worker set last of each record: a place, and a number.
type Account = BTreeMap<u64, (usize, u64)>;

fn options(stage: &Stage) -> Result<RecordsOptions, Failure> {
    let schema = Schema::new().choice("place", PLACES).uint("visits", 5).bit("paid").build()?;
    Ok(PackedRecords::options().schema(schema).timeout(stage.timeout))
}

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let options = options(stage)?;
    let opened = stage.handles(async |store| options.clone().open_or_create(store, &stage.name).await).await?;
    let handles: Vec<(u64, PackedRecords)> = (0u64..).zip(opened).collect();
    let workers = handles.len() as u64;
    let work = move |_, (worker, records), turns| work(worker, workers, records, turns);
    let driven = stage.drive(handles.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => (check(stage, &handles, options, driven).await?, highest(driven).map_or(0, |id| id + 1)),
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements, verdict).await
}

/// Sets some of its own records at a time until the turns are over; their neighbours are others'.
async fn work(worker: u64, workers: u64, records: PackedRecords, turns: Arc<Turns>) -> larder::Result<Account> {
    let mut account = Account::new();
    while turns.take() {
        let mut some = Account::new();
        while some.len() < IDS {
            let id = fastrand::u64(..RECORDS / workers) * workers + worker;
            some.insert(id, (fastrand::usize(..PLACES.len()), fastrand::u64(..32)));
        }
        let entries: Vec<(u64, [(&str, Value); 2])> = some
            .iter()
            .map(|(id, (place, visits))| (*id, [("place", PLACES[*place].into()), ("visits", (*visits).into())]))
            .collect();
        records.set_many(entries.iter().map(|(id, fields)| (*id, &fields[..]))).await?;
        account.extend(some);
        turns.done();
    }
    Ok(account)
}

fn highest(driven: &Driven<Account>) -> Option<u64> {
    driven.accounts.iter().filter_map(|account| account.keys().next_back().copied()).max()
}

/// The counts by place, the highest id and some records must be what was set, for a worker and for a fresh handle.
async fn check(
    stage: &Stage,
    handles: &[(u64, PackedRecords)],
    options: RecordsOptions,
    driven: &Driven<Account>,
) -> Result<Verdict, Failure> {
    let (Some((_, records)), Some(store)) = (handles.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        records.set(RECORDS, &[("place", PLACES[0].into())]).await?;
    }
    let fresh = options.open(store, &stage.name).await?;
    let all: BTreeMap<u64, (usize, u64)> = driven.accounts.iter().flatten().map(|(id, set)| (*id, *set)).collect();
    let expected = highest(driven);
    for (who, handle) in [("a worker", records), ("a fresh handle", &fresh)] {
        let found = handle.highest().await?;
        if found != expected {
            return Ok(Verdict::Off(format!("{who} finds the highest id {found:?}, not {expected:?}")));
        }
        let places = handle.aggregate(&["place"]).await?;
        for (number, place) in PLACES.iter().enumerate() {
            let (found, set) = (places.count(&[(*place).into()]), all.values().filter(|(at, _)| *at == number).count());
            if found != set as u64 {
                return Ok(Verdict::Off(format!("{who} counts {found} in {place}, not {set}")));
            }
        }
        let some: Vec<u64> = all.keys().copied().take(1_000).collect();
        let visits = handle.get_many(&some).await?;
        let wrong = some.iter().zip(&visits).find(|(id, values)| values.get(1) != Some(&Value::Uint(all[id].1)));
        if let Some((id, values)) = wrong {
            return Ok(Verdict::Off(format!("{who} finds {values:?} under {id}, not {} visits", all[id].1)));
        }
    }
    Ok(Verdict::Right)
}
