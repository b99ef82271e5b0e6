//! Every test must be able to fail: providers that break one promise each, and the cases that
//! must notice.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

mod mutant;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use latchwork_contract::lock::{Fixture, TestBackend, cases};
use latchwork_lock::InMemoryLockProvider;
use mutant::{Flaw, Mutant};

/// Each flaw with cases that must fail on it; between them, not one for each.
const CAUGHT_BY: [(Flaw, &[&str]); 16] = [
    (
        Flaw::ExcludesNobody,
        &[
            "l01_exclusive_excludes_exclusive",
            "l01_one_of_many_wins",
            "l01_a_counter_without_atomics_loses_nothing",
            "l01_all_or_nothing",
            "l01_payment_different_idempotency_keys_capture_once",
            "l02_a_held_key_stays_taken_until_then",
            "l07_an_unnamed_request_never_does",
            "l14_a_taken_key_runs_nothing",
            "l15_fail_fast_fails_at_once",
            "l15_skip_skips",
        ],
    ),
    (
        Flaw::ReleasesForAnybody,
        &["l03_a_foreign_token_changes_nothing", "l03_a_token_is_good_for_its_own_key_only"],
    ),
    (
        Flaw::RenewsForAnybody,
        &[
            "l03_a_foreign_token_changes_nothing",
            "l08_above_the_threshold_a_break_goes_unseen",
            "l12_a_break_ends_the_lease",
        ],
    ),
    (
        Flaw::FenceStands,
        &[
            "l04_over_release",
            "l04_over_many_tasks",
            "l04_over_break",
            "l20_a_late_write_is_refused",
        ],
    ),
    (
        Flaw::ForgetsDrops,
        &[
            "l14_it_releases_on_panic",
            "l14_it_releases_on_cancellation",
            "l21_close_flushes_many",
            "l21_a_guard_dropped_outside_of_any_runtime_is_released",
        ],
    ),
    (
        Flaw::ForgetsReleases,
        &[
            "l01_exclusive_excludes_exclusive",
            "l14_it_releases_on_return",
            "l16_nothing_is_left_of_many_keys",
        ],
    ),
    (
        Flaw::NeverExpires,
        &["l02_a_lease_ends_neither_early_nor_late", "l05_a_dead_holders_expiry_wakes_the_next"],
    ),
    (Flaw::ExpiresEarly, &["l02_a_lease_ends_neither_early_nor_late"]),
    (Flaw::ResumesTwice, &["l13_of_two_resumers_one_wins", "l13_an_old_copy_is_dead"]),
    (Flaw::BreaksNothing, &["l12_a_break_ends_the_lease", "l04_over_break"]),
    (Flaw::BreaksAll, &["l12_one_lease_is_broken_by_its_fence", "l12_an_old_fence_breaks_nothing"]),
    (Flaw::ShowsTokens, &["l11_no_token_is_shown"]),
    (Flaw::WakesLate, &["l05_a_release_wakes_the_next_promptly"]),
    (Flaw::WaitsForEver, &["l05_a_wait_is_bounded"]),
    (Flaw::ForgetsWhoWaited, &["l15_wait_waits", "l19_who_waited_is_told_so"]),
    (
        Flaw::TrustsFromTheRequest,
        &[
            "l05_a_waiter_is_given_a_lease_with_its_whole_ttl",
            "l05_a_waiter_of_the_same_client_is_given_one_too",
        ],
    ),
];

#[test]
fn every_flaw_is_noticed() {
    let unnoticed: Vec<_> = all()
        .filter(|(flaw, case)| passes(Some(*flaw), case))
        .map(|(flaw, case)| format!("{case} did not notice {flaw:?}"))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn without_the_flaw_the_same_cases_pass() {
    let mut names: Vec<_> = all().map(|(_, case)| case).collect();
    names.sort_unstable();
    names.dedup();
    let failed: Vec<_> = names.into_iter().filter(|case| !passes(None, case)).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

fn all() -> impl Iterator<Item = (Flaw, &'static str)> {
    CAUGHT_BY.into_iter().flat_map(|(flaw, cases)| cases.iter().map(move |case| (flaw, *case)))
}

fn passes(flaw: Option<Flaw>, name: &str) -> bool {
    let case = cases().into_iter().find(|case| case.name == name).expect(name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let ended = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let memory = InMemoryLockProvider::new();
            let backend = TestBackend::new(move || {
                let client = Mutant { inner: memory.clone(), flaw };
                async move { Ok(client) }
            });
            let run = (case.run)(Fixture::new(case.name, backend).await);
            tokio::time::timeout(Duration::from_secs(30), run).await.expect("it ends");
        });
    }));
    runtime.shutdown_background();
    ended.is_ok()
}
