//! The conformance suites: every case against every store, one test a pair.
//!
//! Rows come from `larder_testkit::conformance`, columns from `columns.rs`; what does not apply stands in `conformance.matrix`.

mod columns;
mod crashing;

use larder_testkit::conformance::{Bench, CASES, Case, matrix};
use libtest_mimic::{Arguments, Failed, Trial};

use columns::{COLUMNS, Column};

const MATRIX: &str = include_str!("../conformance.matrix");

fn main() {
    let arguments = Arguments::from_args();
    let mut trials: Vec<Trial> = COLUMNS
        .iter()
        .flat_map(|column| CASES.iter().flat_map(|group| group.iter()).map(move |case| (column, case)))
        .map(|(column, case)| Trial::test(format!("{}::{}", column.name, case.name), move || run(column, case)))
        .collect();
    let pairs = trials.len();
    trials.push(Trial::test("the_matrix_names_only_what_there_is", the_matrix_names_only_what_there_is));
    trials.push(Trial::test("there_are_cases", move || there_are_cases(pairs)));
    libtest_mimic::run(&arguments, trials).exit();
}

fn run(column: &Column, case: &Case) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let opened = (column.open)().await;
        let found = case.not_applicable(&opened.store.profile());
        if matrix::agree(&matrix::Matrix::parse(MATRIX), column.name, case.name, found)? {
            (case.body)(Bench::new(opened.store.clone())).await;
            if let Some(crashing) = &opened.crashing {
                crashing.end(case.name).await?;
            }
        }
        Ok(())
    })
}

fn the_matrix_names_only_what_there_is() -> Result<(), Failed> {
    let columns: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let cases: Vec<&str> = CASES.iter().flat_map(|group| group.iter()).map(|case| case.name).collect();
    let strangers = matrix::Matrix::parse(MATRIX).strangers(&columns, &cases);
    if strangers.is_empty() { Ok(()) } else { Err(format!("lines of nothing: {strangers:#?}").into()) }
}

/// A suite that lost its cases would pass.
fn there_are_cases(pairs: usize) -> Result<(), Failed> {
    const PAIRS_MIN: usize = 900;
    if pairs >= PAIRS_MIN { Ok(()) } else { Err(format!("{pairs} pairs; there were at least {PAIRS_MIN}").into()) }
}
