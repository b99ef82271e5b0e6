//! The committed matrix is complete and true: every case on every provider.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use latchwork_contract::lock::internal::{Outcome, PROVIDERS, cases, matrix};
use latchwork_lock::Capability;

#[test]
fn the_committed_matrix_is_what_the_expected_capabilities_imply() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrix.txt");
    if std::env::var("LATCHWORK_UPDATE").is_ok_and(|update| update == "1") {
        std::fs::write(&path, matrix()).expect("matrix.txt can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == matrix(),
        "matrix.txt is not what the cases and the expected capabilities imply; look at the \
         difference after: LATCHWORK_UPDATE=1 cargo test -p latchwork-contract --test matrix"
    );
}

#[test]
fn every_case_stands_under_every_provider() {
    let text = matrix();
    let mut rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let head: Vec<_> = rows.next().expect("a head").split_whitespace().collect();
    assert_eq!(head[1..], PROVIDERS.map(|provider| provider.name));
    let rows: Vec<Vec<_>> = rows.map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), cases().len());
    for (row, case) in rows.iter().zip(cases()) {
        assert_eq!(row[0], case.name);
        assert_eq!(row.len(), 1 + PROVIDERS.len(), "{row:?}");
    }
}

#[test]
fn every_promise_has_a_case_and_every_name_is_its_own() {
    let promises: BTreeSet<_> = cases().iter().map(|case| case.promise).collect();
    assert_eq!(promises, (1..=22).collect());
    let names: BTreeSet<_> = cases().iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().len(), "two cases have one name");
}

#[test]
fn every_capability_is_put_to_the_test() {
    let needed: BTreeSet<_> = cases().iter().flat_map(|case| case.needs).copied().collect();
    let untested: Vec<_> =
        Capability::ALL.into_iter().filter(|capability| !needed.contains(capability)).collect();
    assert_eq!(untested, []);
}

#[test]
fn a_provider_that_promises_everything_runs_everything() {
    let all = Capability::ALL
        .into_iter()
        .fold(latchwork_lock::Capabilities::NONE, latchwork_lock::Capabilities::with);
    assert!(cases().iter().all(|case| case.outcome(all) == Outcome::Runs));
}
