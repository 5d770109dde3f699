//! A packed table: one worker builds it anew now and then, the others look rows up, and each answer is of one version, never older than one before.

use std::net::Ipv4Addr;
use std::sync::Arc;

use larder::lookup::{Found, LookupKey, Rows};
use larder::{Error, ErrorKind, PackedTable};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many networks have a row; every other one has none.
const NETWORKS: u32 = 2_000;
/// How many addresses are looked up at a time.
const ADDRESSES: usize = 20;
/// After how many turns of its own the first worker builds the table anew.
const TURNS_A_BUILD: u64 = 200;
const CITIES: [&str; 6] = ["Lund", "Malmö", "Oslo", "Paris", "Toronto", "Umeå"];

/// Networks of 256 addresses, with a gap of as many behind each.
fn rows(version: u64) -> larder::Result<Rows> {
    let mut rows = Rows::new(["city", "version"])?;
    for network in 0..NETWORKS {
        let first = network << 9;
        let city = CITIES[network as usize % CITIES.len()];
        rows.push(Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(first | 255), [city, &version.to_string()])?;
    }
    Ok(rows)
}

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let tables = stage
        .handles(async |store| PackedTable::options().timeout(stage.timeout).open_or_create(store, &stage.name).await)
        .await?;
    let handles: Vec<(bool, PackedTable)> =
        tables.into_iter().enumerate().map(|(at, table)| (at == 0, table)).collect();
    if let Some((_, table)) = handles.first() {
        table.build(rows(1)?).await?;
    }
    let driven = stage.drive(handles.clone(), |_, (builds, table), turns| work(builds, table, turns)).await;
    let verdict = match &driven {
        Ok(driven) => check(stage, &handles, driven).await?,
        Err(_) => Verdict::Right,
    };
    stage.row(driven, u64::from(NETWORKS), verdict).await
}

/// Looks rows up until the turns are over; returns the last version that it built or read.
async fn work(builds: bool, table: PackedTable, turns: Arc<Turns>) -> larder::Result<u64> {
    let (mut last, mut taken) = (1, 0);
    while turns.take() {
        taken += 1;
        if builds && taken % TURNS_A_BUILD == 0 {
            table.build(rows(last + 1)?).await?;
            last += 1;
        }
        let asked: Vec<u32> = (0..ADDRESSES).map(|_| fastrand::u32(..NETWORKS << 9)).collect();
        let keys: Vec<LookupKey> = asked.iter().map(|address| Ipv4Addr::from_bits(*address).into()).collect();
        let found = table.get_many(&keys).await?;
        last = judge(&asked, &found, last).map_err(|wrong| Error::new(ErrorKind::Protocol, wrong))?;
        turns.done();
    }
    Ok(last)
}

/// The version that answers are of, which is not older than `last`.
fn judge(asked: &[u32], found: &[Option<Found>], last: u64) -> Result<u64, String> {
    let mut version = None;
    for (address, found) in asked.iter().zip(found) {
        let shown = Ipv4Addr::from_bits(*address);
        let (network, is_gap) = (address >> 9, address & 256 != 0);
        let Some(found) = found else {
            if is_gap {
                continue;
            }
            return Err(format!("{shown} has no row, and should have one"));
        };
        let city = CITIES[network as usize % CITIES.len()];
        if is_gap || found.fields.first().is_none_or(|field| field != city) {
            return Err(format!("{shown} has {:?}", found.fields));
        }
        let of = found.fields.get(1).and_then(|field| std::str::from_utf8(field).ok()?.parse::<u64>().ok());
        if of.is_none() || version.is_some_and(|version| of != Some(version)) || of < Some(last) {
            return Err(format!("{shown} is of version {of:?}, others of {version:?}, and before of {last}"));
        }
        version = of;
    }
    Ok(version.unwrap_or(last))
}

/// Every network has its row, for a worker and for a fresh handle, of the version that was built last.
async fn check(stage: &Stage, handles: &[(bool, PackedTable)], driven: &Driven<u64>) -> Result<Verdict, Failure> {
    let (Some((_, table)), Some(store)) = (handles.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    let last = driven.accounts.iter().copied().max().unwrap_or(1);
    if stage.is_sabotaged {
        let mut wrong = Rows::new(["city", "version"])?;
        wrong.push(Ipv4Addr::from_bits(0), Ipv4Addr::from_bits(255), ["Atlantis", "0"])?;
        table.build(wrong).await?;
    }
    let fresh = PackedTable::open(store, &stage.name).await?;
    let asked: Vec<u32> =
        (0..NETWORKS).flat_map(|network| [network << 9, network << 9 | 255, network << 9 | 256]).collect();
    let keys: Vec<LookupKey> = asked.iter().map(|address| Ipv4Addr::from_bits(*address).into()).collect();
    for (who, table) in [("a worker", table), ("a fresh handle", &fresh)] {
        let found = table.get_many(&keys).await?;
        match judge(&asked, &found, last) {
            Ok(version) if version == last => {}
            Ok(version) => return Ok(Verdict::Off(format!("{who} reads version {version}, not {last}"))),
            Err(wrong) => return Ok(Verdict::Off(format!("{who}: {wrong}"))),
        }
    }
    Ok(Verdict::Right)
}
