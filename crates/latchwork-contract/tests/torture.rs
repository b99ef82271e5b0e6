//! The torture must be able to fail: providers that break one promise each.
#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what went wrong by panicking")]

mod mutant;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use latchwork_contract::torture::{self, Torture};
use latchwork_lock::{InMemoryLockProvider, Locks};
use mutant::{Flaw, Mutant};

/// What a short run over a provider with this flaw says, if it finds anything.
fn said(flaw: Flaw) -> Option<String> {
    let mut torture = Torture::at("memory:");
    torture.duration = Duration::from_secs(2);
    torture.unit = Duration::from_millis(150);
    // Few keys, so that there is always somebody to wait for.
    torture.keys = 2;
    torture.slack = Duration::from_millis(100);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torture-{flaw:?}"));
    torture.directory.clone_from(&directory);
    let locks = Locks::new(Mutant::new(InMemoryLockProvider::new(), Some(flaw)));
    let run = AssertUnwindSafe(|| torture::run_here(&locks, torture));
    let ended = catch_unwind(run);
    // What was found here was known before.
    let _ = std::fs::remove_dir_all(directory);
    match ended {
        Ok(_) => None,
        Err(said) => Some(*said.downcast::<String>().expect("a message with the seed in it")),
    }
}

/// A run is random, and two seconds of it need not meet the flaw; ten of them do.
fn finds(flaw: Flaw, what: &str) {
    let mut all = Vec::new();
    for _ in 0..10 {
        match said(flaw) {
            Some(said) if said.contains(what) && said.contains("LATCHWORK_SEED=") => return,
            said => all.push(said),
        }
    }
    panic!("{flaw:?} was not found: {all:#?}");
}

#[test]
fn two_at_once() {
    finds(Flaw::ExcludesNobody, "Exclusion broken");
}

#[test]
fn a_release_with_any_token() {
    finds(Flaw::ReleasesForAnybody, "Exclusion broken");
}

#[test]
fn a_fence_that_stands() {
    finds(Flaw::FenceStands, "Fences broken");
}

#[test]
fn a_lease_that_ends_too_early() {
    finds(Flaw::ExpiresEarly, "Exclusion broken");
}

#[test]
fn a_lease_that_never_ends() {
    finds(Flaw::NeverExpires, "after the end there is still");
}

#[test]
fn a_drop_that_releases_nothing() {
    finds(Flaw::ForgetsDrops, "dropped guards got lost");
}

#[test]
fn two_who_resume_one_lease() {
    finds(Flaw::ResumesTwice, "broken");
}

#[test]
fn a_break_that_breaks_nothing() {
    finds(Flaw::BreaksNothing, "Revived broken");
}

#[test]
fn a_wait_without_end() {
    finds(Flaw::WaitsForEver, "Forgotten broken");
}
