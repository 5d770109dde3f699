//! The round-trip budgets of packed tables.

use larder_core::Ctx;
use larder_structures::lookup::{LookupKey, Rows};
use larder_structures::registry::drop_structure;
use larder_structures::{Name, PackedTable};

use super::budget_cases::{Metered, budgets};

budgets! {
    lookup_open [Cas] = 3;
    lookup_create [Cas] = 4;
    lookup_first_build [Cas] = 6;
    lookup_next_build [Cas] = 9;
    lookup_get [Cas] = 1;
    lookup_get_before_the_first_row [Cas] = 1;
    lookup_get_many [Cas] = 1;
    lookup_get_after_another_handles_build [Cas] = 4;
    lookup_stat [Cas] = 1;
    lookup_one_shot_get [Cas] = 4;
    drop_of_a_lookup [Cas] = 5;
}

fn rows() -> Rows {
    let mut rows = Rows::new(["name"]).expect("columns");
    for id in 10..100u64 {
        rows.push_id(id, [format!("name {id}")]).expect("a row");
    }
    rows
}

/// Several blocks, known to the handle.
async fn built(m: &Metered) -> PackedTable {
    let options = PackedTable::options().block_bytes(64);
    let table = options.open_or_create(&m.store, &m.name).await.expect("a table");
    table.build(rows()).await.expect("a build");
    table
}

async fn lookup_open(m: Metered) -> u64 {
    built(&m).await;
    m.cost(PackedTable::open(&m.store, &m.name)).await
}

async fn lookup_create(m: Metered) -> u64 {
    m.cost(PackedTable::open_or_create(&m.store, &m.name)).await
}

async fn lookup_first_build(m: Metered) -> u64 {
    let table = PackedTable::open_or_create(&m.store, &m.name).await.expect("a table");
    m.cost(table.build(rows())).await
}

async fn lookup_next_build(m: Metered) -> u64 {
    let table = built(&m).await;
    m.cost(table.build(rows())).await
}

async fn lookup_get(m: Metered) -> u64 {
    let table = built(&m).await;
    m.cost(table.get(50u64)).await
}

async fn lookup_get_before_the_first_row(m: Metered) -> u64 {
    let table = built(&m).await;
    m.cost(table.get(5u64)).await
}

async fn lookup_get_many(m: Metered) -> u64 {
    let table = built(&m).await;
    let keys: Vec<LookupKey> = (0..120u64).map(LookupKey::from).collect();
    m.cost(table.get_many(&keys)).await
}

/// A block that is gone, the head, the directory, the block.
async fn lookup_get_after_another_handles_build(m: Metered) -> u64 {
    let table = built(&m).await;
    table.get(50u64).await.expect("a row");
    built(&m).await;
    m.cost(table.get(50u64)).await
}

async fn lookup_stat(m: Metered) -> u64 {
    let table = built(&m).await;
    m.cost(table.stat()).await
}

/// What `larder lookup get NAME KEY` costs.
async fn lookup_one_shot_get(m: Metered) -> u64 {
    built(&m).await;
    m.cost(async { PackedTable::open(&m.store, &m.name).await?.get(50u64).await }).await
}

async fn drop_of_a_lookup(m: Metered) -> u64 {
    built(&m).await;
    let name = Name::new(&m.name).expect("a name");
    m.cost(drop_structure(&m.store, Ctx::default(), &name)).await
}
