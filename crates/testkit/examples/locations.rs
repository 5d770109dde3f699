//! The location table: where each user lives, as one of all countries and regions of ISO 3166, in 13 bits.
//!
//! `cargo run -p larder-testkit --example locations [STORE]`, for example `redis://localhost:6379`; in this process if none is given.
//!
//! The codes come from a crate that follows the standard (`rust_iso3166`), not from a list typed in. What is stored is the place of a code among those that the records were made with:
//! the schema stands with the data. So a release of the crate with other codes does not move anybody: opening with it is an error, and says so.

use std::collections::BTreeMap;

use larder::records::{Schema, Value};
use larder::{PackedRecords, Result, StoreRef};
use rust_iso3166::ALL_ALPHA2;
use rust_iso3166::iso3166_2::SUBDIVISION_COUNTRY_MAP;

/// All countries (`CA`), and all regions (`CA-ON`), sorted.
pub(crate) fn codes() -> Vec<&'static str> {
    let mut codes: Vec<&str> = ALL_ALPHA2.to_vec();
    for country in ALL_ALPHA2 {
        let regions = SUBDIVISION_COUNTRY_MAP.get(country).copied().unwrap_or(&[]);
        codes.extend(regions.iter().map(|region| region.code));
    }
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// Makes the table, or opens it.
///
/// # Errors
/// Those of [`PackedRecords`].
pub(crate) async fn open(store: &StoreRef, name: &str) -> Result<PackedRecords> {
    let schema = Schema::new().choice("place", codes()).build()?;
    PackedRecords::options().schema(schema).open_or_create(store, name).await
}

/// Gives each code a user, and one more to each third; tells how many live in which country.
///
/// # Errors
/// Those of [`PackedRecords`].
pub(crate) async fn fill(users: &PackedRecords) -> Result<BTreeMap<String, u64>> {
    let codes = codes();
    let everywhere = codes.iter().chain(codes.iter().step_by(3));
    let places: Vec<[(&str, Value); 1]> = everywhere.map(|code| [("place", (*code).into())]).collect();
    users.set_many((0..).zip(places.iter().map(|fields| &fields[..]))).await?;
    let mut countries = BTreeMap::new();
    for group in users.aggregate(&["place"]).await?.groups {
        if let Some(Value::Choice(Some(code))) = group.values.first() {
            let country = code.split_once('-').map_or(code.as_str(), |(country, _)| country);
            *countries.entry(country.to_owned()).or_insert(0) += group.count;
        }
    }
    Ok(countries)
}

#[allow(dead_code, reason = "a test reads this file as a module")]
#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let store = larder::open(&url).await?;
    let users = open(&store, "locations").await?;
    println!("{} codes of {} countries, {} bits a user", codes().len(), ALL_ALPHA2.len(), users.schema().bits());
    let countries = fill(&users).await?;
    let mut most: Vec<(&String, &u64)> = countries.iter().collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (country, count) in most.into_iter().take(10) {
        println!("{count:>6} {country}");
    }
    Ok(())
}
