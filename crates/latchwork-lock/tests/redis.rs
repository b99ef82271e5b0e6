//! The Redis provider: what only a real server can show.
//!
//! Without a server every test is named as skipped, and fails where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

#[path = "redis/addresses.rs"]
mod addresses;
#[path = "redis/idle.rs"]
mod idle;
#[path = "redis/rules.rs"]
mod rules;
#[path = "redis/server.rs"]
mod server;
#[path = "redis/stored.rs"]
mod stored;
mod support;
#[path = "redis/trouble.rs"]
mod trouble;
#[path = "redis/turns.rs"]
mod turns;

use latchwork_lock::{Guard, Locks, RedisLockProvider};
use libtest_mimic::{Arguments, Failed, Trial};
use support::{block_on, eventually, millis, secs, until, waiting};

fn main() {
    addresses::child();
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($module:ident: $($name:ident),* $(,)?);* $(;)?) => {$($(
            trials.push(trial(stringify!($name), || block_on($module::$name())));
        )*)*};
    }
    tests![
        idle: idle_connections_come_back, a_renewal_outlasts_a_right_that_is_gone_for_a_while;
        rules: it_decides_as_memory_does;
        stored: acquire_and_release_are_one_message_each, many_share_a_message,
            those_of_a_message_keep_what_is_their_own,
            the_order_of_a_message_is_kept, a_release_does_not_overtake_its_request,
            a_release_from_elsewhere_does_not_overtake_its_request,
            a_request_that_was_dropped_is_not_sent_again,
            a_release_does_not_overtake_the_script,
            a_lease_ends_once,
            nothing_is_left_of_a_key, a_layout_that_is_unknown_is_refused,
            what_is_left_of_the_dead_goes_away, a_token_is_nowhere,
            a_foreign_value_harms_its_own_key_only,
            foreign_data_beside_a_key_harms_that_key_only;
        trouble: a_restart_without_data_lets_no_stale_write_pass,
            the_callers_connection_manager_comes_back,
            a_restart_with_data_keeps_leases_and_waiters, the_server_may_forget_the_script,
            notices_that_are_lost_are_made_up_for, a_release_that_nobody_waits_for_hands_on,
            a_runtime_that_ends_loses_no_release, drops_under_load_are_released_soon,
            a_server_that_stands_still_is_unavailable,
            a_crowd_is_told_soon_that_a_server_stands_still, fences_grow_when_all_is_forgotten;
        turns: a_turn_is_used_when_its_claim_is_answered, a_turn_that_is_none_lets_nobody_in,
            the_next_one_begins_with_the_answer_to_the_release,
            the_next_one_has_its_turn_where_a_release_was_lost,
            the_next_one_has_its_turn_where_an_answer_was_lost,
            a_turn_that_the_server_forgot_is_asked_for_again,
            a_grant_that_is_being_returned_is_not_given_out,
            no_two_are_trusted_at_once_whatever_is_cut;
        addresses: bad_addresses_say_what_is_wrong, rights_and_passwords_are_checked,
            a_replica_and_a_cluster_are_refused, a_server_that_is_too_old_is_refused,
            a_server_that_may_evict_is_warned_of, certificates_are_checked,
            commands_under_other_names_are_missed_by_name, a_password_may_be_in_the_environment,
            a_rotated_certificate_is_read_again,
            the_callers_own_client_and_connection_will_do,
            a_blocked_runtime_of_the_callers_connection_keeps_its_lease;
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    let there = std::env::var_os("LATCHWORK_TEST_REDIS").is_some();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if !there {
            return Err(Failed::from("no server; `scripts/services up redis` starts one"));
        }
        test();
        Ok(())
    })
    .with_ignored_flag(!there && !in_ci)
}

/// The server that all tests share.
fn shared() -> String {
    std::env::var("LATCHWORK_TEST_REDIS").expect("looked at before")
}

/// A name that nobody else uses.
fn unique(name: &str) -> String {
    format!("{name}-{:016x}", rand::random::<u64>())
}

async fn locks(address: &str) -> Locks {
    Locks::connect(address).await.expect("the server is there")
}

async fn provider(address: &str) -> RedisLockProvider {
    RedisLockProvider::connect(address).await.expect("the server is there")
}

fn waiter(locks: &Locks, key: &str) -> tokio::task::JoinHandle<Guard> {
    let (locks, key) = (locks.clone(), key.to_owned());
    tokio::spawn(async move { locks.lock(&key).wait(secs(60)).acquire().await.expect("its turn") })
}
