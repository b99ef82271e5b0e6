//! From cases and suites to named tests.

use libtest_mimic::{Arguments, Trial};

use super::backend::Source;
use super::{Fixture, Suite, cases};
use crate::lock::runner::{missing, run};

/// Runs every case over every suite, as `cargo test` and nextest want it, and ends the process.
pub fn main(suites: Vec<Suite>) -> ! {
    libtest_mimic::run(&Arguments::from_args(), trials(suites)).exit()
}

/// The same as a list, to run along with tests of your own.
pub fn trials(suites: Vec<Suite>) -> Vec<Trial> {
    suites.into_iter().flat_map(trials_of).collect()
}

fn trials_of(suite: Suite) -> Vec<Trial> {
    let Suite { name, source } = suite;
    let factory = match source {
        Source::Factory(factory) => factory,
        Source::Missing(reason) => return vec![missing(name, reason)],
    };
    let trial = |case: super::Case| {
        let factory = factory.clone();
        let body = async move || (case.run)(Fixture::new(factory().await)).await;
        Trial::test(format!("{name}::{}", case.name), move || run(body))
    };
    cases().into_iter().map(trial).collect()
}
