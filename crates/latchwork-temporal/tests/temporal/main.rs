//! Everything that needs a real Temporal server, in one binary: the promises L1 to L22 over the provider, and
//! what workflows, workers and servers do to a mutex.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says what went wrong by panicking"
)]

mod clients;
mod contract;
mod support;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let mut trials: Vec<Trial> = latchwork_contract::lock::trials(vec![contract::suite()]);
    trials.extend(clients::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
