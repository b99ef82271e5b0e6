//! Every test must be able to fail: providers that break one promise each, and the cases that
//! must notice.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

mod mutant;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use latchwork_contract::lock::TestBackend;
use latchwork_contract::lock::internal::{Fixture, cases};
use latchwork_lock::InMemoryLockProvider;
use mutant::{Flaw, Mutant};

/// Each flaw with cases that must fail on it; between them, not one for each.
const CAUGHT_BY: [(Flaw, &[&str]); 32] = [
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
    (
        Flaw::HandsOverAnything,
        &["l13_a_broken_lease_is_not_handed_over", "l13_an_expired_lease_is_not_handed_over"],
    ),
    (
        Flaw::ClaimsLate,
        &["l05_a_waiter_that_sleeps_keeps_nobody_out", "l05_an_unclaimed_hand_off_passes_on"],
    ),
    (Flaw::WaitsLonger, &["l05_a_wait_is_not_longer_than_asked"]),
    (Flaw::FreesNothing, &["l16_nothing_is_stored_of_keys_that_nobody_uses"]),
    (Flaw::WakesTheFirstTask, &["l05_a_waiter_may_move_to_another_task"]),
    (Flaw::RenewsWhileWaiting, &["l03_a_token_that_waits_holds_nothing"]),
    (Flaw::ListsInside, &["l11_a_listing_matches_beginnings_only"]),
    (Flaw::ReadersPass, &["l06_a_waiting_writer_holds_back_later_readers"]),
    (Flaw::IgnoresOwners, &["l07_the_same_owner_takes_over"]),
    (Flaw::TakesOverFromAnybody, &["l07_an_unnamed_request_never_does"]),
    (Flaw::KeepsTheFirstTtl, &["l08_a_longer_ttl_counts"]),
    (Flaw::TrustsTooLong, &["l09_trust_ends_a_margin_before_the_ttl"]),
    (Flaw::RenewsNothing, &["l10_a_renewed_lease_outlives_its_ttl"]),
    (Flaw::ForgetsItsAnswer, &["l17_the_same_token_gets_the_same_grant"]),
    (Flaw::CutsKeys, &["l18_similar_keys_are_distinct"]),
    (Flaw::RefusesToWait, &["l15_wait_waits"]),
];

/// What `Locks` keeps by itself, whatever the provider does: no provider can break it.
const KEPT_BY_THE_FRONT: [u8; 1] = [22];

#[test]
fn every_flaw_is_noticed() {
    let unnoticed: Vec<_> = all()
        .filter(|(flaw, case)| passes(Some(*flaw), case))
        .map(|(flaw, case)| format!("{case} did not notice {flaw:?}"))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn each_promise_has_a_provider_that_breaks_it() {
    let broken: BTreeSet<u8> =
        all().map(|(_, name)| name[1..3].parse().expect("l01 to l22")).collect();
    let expected = (1..=22).filter(|promise| !KEPT_BY_THE_FRONT.contains(promise));
    assert_eq!(broken, expected.collect::<BTreeSet<u8>>());
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
            let mutant = Mutant::new(InMemoryLockProvider::new(), flaw);
            let counted = mutant.clone();
            let backend = TestBackend::new(move || {
                let client = mutant.clone();
                async move { Ok(client) }
            });
            let backend = backend.stored(move || std::future::ready(counted.stored()));
            let run = (case.run)(Fixture::new(case.name, backend).await);
            tokio::time::timeout(Duration::from_secs(30), run).await.expect("it ends");
        });
    }));
    runtime.shutdown_background();
    ended.is_ok()
}
