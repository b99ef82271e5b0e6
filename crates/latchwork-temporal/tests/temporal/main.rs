//! Everything that needs a real Temporal server, in one binary: the promises L1 to L22 over the provider, and
//! what workflows, workers and servers do to a mutex.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says what went wrong by panicking"
)]

mod caller;
mod clients;
mod contract;
mod replay;
mod support;
mod trouble;
mod workflows;

use libtest_mimic::{Arguments, Trial};

fn main() {
    trouble::be_a_worker();
    let mut trials: Vec<Trial> = latchwork_contract::lock::trials(vec![contract::suite()]);
    trials.extend(clients::trials());
    trials.extend(workflows::trials());
    trials.extend(replay::trials());
    trials.extend(trouble::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
