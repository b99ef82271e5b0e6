//! The etcd provider: what only clusters of its own, certificates and its metrics can show.
//!
//! Without the program `etcd` every test is named as skipped, and fails where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod cluster;
mod doors;
mod faults;
mod isolated;
mod partition;
mod release;
mod renewal;
mod seed;
#[path = "../support/mod.rs"]
mod support;
mod together;
mod trips;
mod ways;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    if support::child::play(faults::play) {
        return;
    }
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($test_database:ident: $($name:ident),* $(,)?;)*) => {$($(
            let name = concat!(stringify!($test_database), "::", stringify!($name));
            trials.push(trial(name, || support::block_on($test_database::$name())));
        )*)*};
    }
    tests![
        seed:
            exclusive_locks_exclude_and_shared_ones_coexist,
            a_lock_is_released_when_its_time_runs_out,
            the_time_can_be_refreshed,
            above_the_threshold_etcd_is_not_asked,
            one_can_wait_for_other_locks,
            a_lock_can_be_broken,
            an_identifier_takes_over,
            a_default_identifier_takes_over_and_can_be_overwritten,
            who_holds_a_lock_can_be_seen,
            keys_have_a_prefix,
            a_client_of_ones_own_is_taken,
            many_who_fight_come_to_an_end,
            an_outage_is_waited_out_with_random_delays;
        faults:
            the_leader_may_be_killed,
            a_member_may_be_stopped,
            a_question_that_comes_late_takes_nothing,
            a_place_that_nobody_stands_in_is_cleared,
            without_a_majority_nothing_is_granted,
            a_compaction_takes_no_turn_away,
            a_restart_keeps_leases_and_queues,
            no_guarded_write_is_stale;
        partition:
            a_client_goes_on_with_the_members_that_it_reaches,
            a_client_that_reaches_nobody_knows_its_loss_in_time;
        isolated:
            a_leader_that_is_alone_decides_nothing,
            a_follower_that_is_alone_decides_nothing;
        release:
            a_release_begins_the_next_lease,
            a_waiter_of_another_process_comes_in_its_turn,
            a_process_that_pauses_does_not_trust_too_long,
            what_a_sleeper_was_handed_goes_back,
            waiters_that_go_leave_nothing,
            the_end_of_a_runtime_leaves_nothing;
        together:
            of_those_who_want_one_key_one_gets_it,
            a_lease_that_is_gone_is_no_harm_to_others,
            members_that_go_are_no_harm_to_others,
            an_answer_to_many_may_be_lost,
            a_crowd_is_told_soon_that_a_server_is_silent,
            few_operations_at_a_time_are_enough;
        doors:
            a_password_opens,
            certificates_are_checked,
            rights_that_are_missing_are_named,
            strangers_are_recognised,
            a_token_is_in_no_entry;
        renewal:
            a_renewal_outlasts_a_server_that_is_full_for_a_while,
            a_renewal_outlasts_a_password_that_is_wrong_for_a_while;
        trips:
            round_trips_are_as_declared,
            a_thousand_waiters_ask_for_almost_nothing,
            leases_are_shared_and_ended,
            a_waiter_needs_no_new_lease_for_its_turn,
            a_lease_that_was_attached_to_is_not_renewed_for_another;
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    let there = cluster::is_installed();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if !there {
            return Err(Failed::from(
                "no etcd; install etcd-server, or name one: LATCHWORK_ETCD_BIN",
            ));
        }
        test();
        Ok(())
    })
    .with_ignored_flag(!there && !in_ci)
}
