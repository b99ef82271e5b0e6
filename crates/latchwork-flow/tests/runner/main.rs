//! The runner and the stores in databases: duties in one process, and what only real processes and
//! kills can show, over an SQLite file and a PostgreSQL server.
//!
//! Without a server its tests are named as skipped, and fail where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod bounds;
mod child;
mod crash;
mod duties;
mod flaky;
mod stale;
mod stores;
mod test_database;

use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::test_database::TestDatabase;

fn main() {
    if let Ok(part) = std::env::var("LATCHWORK_RUNNER_CHILD") {
        return block_on(child::play(&part));
    }
    let mut trials = duties::trials();
    trials.extend(stores::trials());
    trials.extend(bounds::trials());
    let there = std::env::var_os("LATCHWORK_TEST_POSTGRES").is_some();
    let in_ci = std::env::var_os("CI").is_some();
    for (name, test) in crash::TESTS.iter().chain(bounds::TESTS).chain(stale::TESTS) {
        trials.push(Trial::test(format!("sqlite::{name}"), move || {
            block_on(async { test(TestDatabase::sqlite()).await });
            Ok(())
        }));
        let trial = Trial::test(format!("postgres::{name}"), move || {
            if !there {
                return Err(Failed::from("no server; `scripts/services up postgres` starts one"));
            }
            block_on(async { test(TestDatabase::postgres().await).await });
            Ok(())
        });
        trials.push(trial.with_ignored_flag(!there && !in_ci));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(secs(120), future).await.expect("it ends") })
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Asks until the answer is yes.
async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    for _ in 0..6_000 {
        if ask().await {
            return;
        }
        tokio::time::sleep(millis(10)).await;
    }
    panic!("never: {what}");
}
