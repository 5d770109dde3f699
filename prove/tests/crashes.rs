//! A slice of the part `crashes`, and bugs that it must find.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;

use larder_prove::Findings;
use larder_prove::crashes::{self, Planted, SHARES, round};

/// The program that is crashed.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_larder-prove"))
}

/// Some of a work's crash points: every `shares`th.
fn slice(work: u64, shares: u64, planted: Option<Planted>) -> Findings {
    round(program(), work * SHARES + 5, shares, planted)
}

#[test]
fn a_store_that_is_crashed_at_its_calls_loses_nothing_it_acknowledged() {
    let mut findings = slice(0, 96, None);
    // Another setting: a write is acknowledged before it is on disk.
    findings.add(slice(3, 192, None));
    assert_eq!(findings.violations, 0, "{:#?}", findings.told);
    for what in ["crash points", "power-cut images", "faults: killed before a call", "faults: sync failed (EIO)"] {
        assert!(findings.counts[what] > 1, "{what}: {:?}", findings.counts);
    }
}

/// Found by a long run: the engine's own name was not on disk when the store was told to be whole, and the next open called it deleted.
#[test]
fn a_store_that_is_cut_off_power_while_it_is_made_opens() {
    let findings = crashes::making(program(), 1, 6);
    assert_eq!(findings.violations, 0, "{:#?}", findings.told);
    assert!(findings.counts["power-cut images"] > 300, "{:?}", findings.counts);
}

/// Found by a long run: a sync of the engine's own failed, and a batch was written and synced before the engine had taken note of it. It stood behind a hole when the power went.
#[test]
fn a_sync_that_fails_in_the_engine_is_heard_before_anything_is_acknowledged_behind_it() {
    const UNHEARD: &str = "faults: sync of the engine's own failed (EIO), and was heard of late";
    let mut heard = 0;
    for work in [0, 1, 2, 3, 4, 6, 7, 13, 15] {
        let findings = crashes::faulted(program(), work * SHARES, 1, UNHEARD);
        assert_eq!(findings.violations, 0, "work {work}: {:#?}", findings.told);
        heard += findings.counts.get("crash points").copied().unwrap_or_default();
    }
    assert!(heard >= 9, "{heard} syncs of the engine's own failed");
}

#[test]
fn a_file_that_cannot_be_made_renamed_removed_or_cut_takes_nothing_that_was_acknowledged() {
    const FAILED: &str = "faults: making, renaming, removing or cutting a file failed (EIO)";
    for (work, shares) in [(0, 24), (3, 24)] {
        let findings = crashes::faulted(program(), work * SHARES + 1, shares, FAILED);
        assert_eq!(findings.violations, 0, "work {work}: {:#?}", findings.told);
        assert!(findings.counts[FAILED] > 1, "work {work}: {:?}", findings.counts);
    }
}

/// By POSIX that is no error, and the rest is to be written: nobody is refused for it.
#[test]
fn a_write_that_is_cut_short_is_gone_on_with() {
    const SHORT: &str = "faults: short write";
    let findings = crashes::faulted(program(), SHARES + 3, 40, SHORT);
    assert_eq!(findings.violations, 0, "{:#?}", findings.told);
    assert!(findings.counts[SHORT] > 1, "{:?}", findings.counts);
}

/// A bug that is planted must be found, and be told as what it is.
fn is_found(planted: Planted) {
    let findings = slice(0, 16, Some(planted));
    let is_loss = |told: &String| told.contains("steps; known was") || told.contains("does not open: corrupt");
    assert!(findings.violations > 0 && findings.told.iter().any(is_loss), "{findings:#?}");
}

#[test]
fn syncs_that_are_left_out_are_found() {
    is_found(Planted::NoSync);
}

#[test]
fn writes_that_are_acknowledged_before_they_are_synced_are_found() {
    is_found(Planted::EarlyAcknowledgement);
}
