//! What only many agents, real processes, raw SQL and random operations can show, over an SQLite file
//! and a PostgreSQL server.
//!
//! Without a server its tests are named as skipped, and fail where `CI` is set.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod apply;
mod child;
mod drain;
mod listeners;
mod model;
mod processes;
mod raw;
mod raw_postgres;
mod sweeps;
mod test_database;

use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::test_database::TestDatabase;

/// One proof over one database.
type Proof = (&'static str, fn(TestDatabase) -> futures::future::LocalBoxFuture<'static, ()>);

macro_rules! proofs {
    ($($run:ident),* $(,)?) => {
        pub(crate) const PROOFS: &[crate::Proof] =
            &[$((stringify!($run), |database| Box::pin($run(database)))),*];
    };
}
pub(crate) use proofs;

fn main() {
    if let Ok(name) = std::env::var("LATCHWORK_APPLY_CHILD") {
        return block_on(apply::play(&name));
    }
    if let Ok(name) = std::env::var("LATCHWORK_WORK_CHILD") {
        return block_on(child::play(&name));
    }
    let there = std::env::var_os("LATCHWORK_TEST_POSTGRES").is_some();
    let in_ci = std::env::var_os("CI").is_some();
    let both = [
        apply::PROOFS,
        drain::PROOFS,
        listeners::PROOFS,
        processes::PROOFS,
        raw::PROOFS,
        sweeps::PROOFS,
        model::PROOFS,
    ]
    .concat();
    let mut trials = Vec::new();
    for (name, proof) in both.clone().into_iter().chain(processes::SQLITE.iter().copied()) {
        trials.push(Trial::test(format!("sqlite::{name}"), move || {
            block_on(async { proof(TestDatabase::sqlite()).await });
            Ok(())
        }));
    }
    for (name, proof) in both.into_iter().chain([raw_postgres::PROOFS, sweeps::POSTGRES].concat()) {
        let trial = Trial::test(format!("postgres::{name}"), move || {
            if !there {
                return Err(Failed::from("no server; `scripts/services up postgres` starts one"));
            }
            block_on(async { proof(TestDatabase::postgres().await).await });
            Ok(())
        });
        trials.push(trial.with_ignored_flag(!there && !in_ci));
    }
    trials.push(Trial::test("postgres::w15_a_server_restarts_in_the_middle", || {
        block_on(processes::w15_a_server_restarts_in_the_middle());
        Ok(())
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    // A long run by hand has its time.
    let long = ["LATCHWORK_LIFE_ORDERS", "LATCHWORK_APPLY_ORDERS", "LATCHWORK_MANY_ITEMS"];
    let limit = if long.iter().any(|name| std::env::var_os(name).is_some()) { 3_600 } else { 270 };
    runtime.block_on(async { tokio::time::timeout(secs(limit), future).await.expect("it ends") })
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
