//! The round-trip budgets of tables.

use std::time::Duration;

use larder_core::Ctx;
use larder_structures::registry::drop_structure;
use larder_structures::{Name, Table};

use super::budget_cases::{Metered, budgets};

budgets! {
    table_open [Cas] = 1;
    table_create [Cas] = 3;
    table_get_of_what_is_there [Cas] = 1;
    table_has_of_what_is_there [Cas] = 1;
    table_get_of_what_is_missing [Cas] = 2;
    table_has_of_what_is_missing [Cas] = 2;
    table_get_many_of_a_hundred [Cas] = 1;
    table_put_of_an_existing_entry [Cas] = 1;
    table_put_of_an_existing_entry_by_another_handle [Cas] = 1;
    table_put_of_a_new_entry [Cas] = 2;
    table_put_for_of_a_new_entry [Cas, Ttl] = 2;
    table_put_for_of_an_existing_entry [Cas, Ttl] = 3;
    table_remove [Cas] = 3;
    table_keys [Cas] = 1;
    table_entries [Cas] = 2;
    table_one_shot_get [Cas] = 2;
    drop_of_a_table [Cas] = 5;
}

async fn table_open(m: Metered) -> u64 {
    m.table(false).await;
    m.cost(Table::open(&m.store, &m.name)).await
}

async fn table_create(m: Metered) -> u64 {
    m.cost(Table::options().shards(2).open_or_create(&m.store, &m.name)).await
}

async fn table_get_of_what_is_there(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost(table.get("k")).await
}

async fn table_has_of_what_is_there(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost(table.has("k")).await
}

async fn table_get_of_what_is_missing(m: Metered) -> u64 {
    let table = m.table(false).await;
    of_what_is_missing(&m, m.cost(table.get("l")).await)
}

async fn table_has_of_what_is_missing(m: Metered) -> u64 {
    let table = m.table(false).await;
    of_what_is_missing(&m, m.cost(table.has("l")).await)
}

/// 2 on a store that may have lost it; 1 where nothing can be lost, which stands for 2 here.
fn of_what_is_missing(m: &Metered, found: u64) -> u64 {
    let is_lossless = super::table_cases::is_lossless(&m.store);
    assert!(!is_lossless || found == 1, "a store that cannot lose tells in 1 round trip, not in {found}");
    found + u64::from(is_lossless)
}

async fn table_get_many_of_a_hundred(m: Metered) -> u64 {
    let table = m.table(false).await;
    for entry in 0..100u8 {
        table.put([entry], "v").await.expect("a put");
    }
    table.settle().await;
    m.cost(table.get_many((0..100u8).map(|entry| [entry]))).await
}

async fn table_put_of_an_existing_entry(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost(table.put("k", "w")).await
}

async fn table_put_of_an_existing_entry_by_another_handle(m: Metered) -> u64 {
    m.table(false).await;
    let table = Table::open(&m.store, &m.name).await.expect("the table");
    m.cost(table.put("k", "w")).await
}

async fn table_put_of_a_new_entry(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost_of_put(2, async move { table.put("l", "v").await }).await
}

async fn table_put_for_of_a_new_entry(m: Metered) -> u64 {
    let table = m.table(true).await;
    m.cost_of_put(2, async move { table.put_for("l", "v", Duration::from_secs(60)).await }).await
}

async fn table_put_for_of_an_existing_entry(m: Metered) -> u64 {
    let table = m.table(true).await;
    m.cost_of_put(3, async move { table.put_for("k", "v", Duration::from_secs(60)).await }).await
}

async fn table_remove(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost_to_caller(async move { table.remove("k").await }).await
}

async fn table_keys(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost(table.keys()).await
}

async fn table_entries(m: Metered) -> u64 {
    let table = m.table(false).await;
    m.cost(table.entries()).await
}

/// What `larder table get NAME KEY` costs.
async fn table_one_shot_get(m: Metered) -> u64 {
    m.table(false).await;
    m.cost(async { Table::open(&m.store, &m.name).await?.get("k").await }).await
}

async fn drop_of_a_table(m: Metered) -> u64 {
    m.table(false).await;
    m.cost(drop_structure(&m.store, Ctx::default(), &Name::new(&m.name).expect("a name"))).await
}
