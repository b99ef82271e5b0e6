//! The MariaDB and MySQL provider: what only real processes and a real server can show.
//!
//! Without a server every test is named as skipped, and fails where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod collisions;
mod doors;
mod fences;
mod idle;
mod messages;
mod pool;
mod relay;
mod restarts;
mod stored;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::time::Duration;

use latchwork_lock::Refresh;
use libtest_mimic::{Arguments, Failed, Trial};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use support::backend::mysql;

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

fn main() {
    let mut trials = Vec::new();
    macro_rules! tests {
        ($($test_database:ident: $($name:ident),* $(,)?;)*) => {$($(
            let name = concat!(stringify!($test_database), "::", stringify!($name));
            trials.push(trial(name, || support::block_on($test_database::$name())));
        )*)*};
    }
    tests![
        restarts:
            a_crash_of_the_server_takes_nothing_back,
            a_restart_of_the_server_takes_nothing_back;
        doors:
            bad_addresses_say_what_is_wrong,
            another_kind_of_server_is_told_apart,
            a_user_without_rights_is_told_so,
            a_read_only_server_is_refused;
        stored:
            a_token_is_in_no_table,
            keys_are_told_apart_by_every_byte,
            the_fence_gate_works_in_a_transaction,
            the_fence_gate_is_one_statement_for_other_drivers,
            many_may_start_at_once,
            a_key_tells_truly_who_stands_behind_it,
            the_schema_can_be_made_by_hand;
        fences:
            fences_go_on_above_a_restored_copy,
            fences_grow_although_the_clock_was_set_back,
            keys_that_nobody_uses_go_and_their_fences_stay,
            every_shared_holder_has_its_own_fence;
        idle: idle_connections_come_back, the_dialect_of_the_server_does_not_matter;
        collisions:
            a_deadlock_is_tried_again,
            a_key_that_somebody_sits_on_is_an_outage,
            an_edit_of_a_stopped_process_ends,
            a_dropped_resume_takes_nothing_after_its_release;
        messages:
            messages_are_as_few_as_declared,
            a_key_goes_from_task_to_task_by_single_messages;
        pool:
            a_pool_of_one_connection_is_enough,
            an_exhausted_pool_is_an_outage_and_no_contention,
            a_waiter_outlasts_an_exhausted_pool,
            a_blocked_thread_with_a_pool_of_one_keeps_its_lease,
            a_server_without_connections_is_an_outage,
            sessions_of_the_user_stay_as_they_were;
        tls:
            certificates_are_checked;
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    let there = mysql::server().is_some();
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(name, move || {
        if !there {
            return Err(Failed::from(mysql::MISSING));
        }
        test();
        Ok(())
    })
    .with_ignored_flag(!there && !in_ci)
}

async fn open(address: &str) -> MySqlConnection {
    MySqlConnection::connect(address).await.expect("the server is there")
}

/// One number.
async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(connection).await;
    row.expect(sql).try_get_unchecked(0).expect("a number")
}
