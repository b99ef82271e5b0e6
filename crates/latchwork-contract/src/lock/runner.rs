//! From cases and suites to named tests.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::time::Duration;

use latchwork_lock::provider::LockProvider;
use libtest_mimic::{Arguments, Failed, Trial};

use super::suite::{Factory, Source};
use super::{Fixture, Outcome, Suite, cases, expected, refusals};

/// How long a case may take. None needs more than some seconds; who reaches this hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs every case over every suite, as `cargo test` and nextest want it, and ends the process.
pub fn main(suites: Vec<Suite>) -> ! {
    libtest_mimic::run(&Arguments::from_args(), trials(suites)).exit()
}

/// The same as a list, to run along with tests of your own.
pub fn trials(suites: Vec<Suite>) -> Vec<Trial> {
    suites.into_iter().flat_map(trials_of).collect()
}

fn trials_of(suite: Suite) -> Vec<Trial> {
    let Suite { name, provider, manual, source } = suite;
    let factory = match source {
        Source::Factory(factory) => factory,
        Source::Missing(reason) => return vec![missing(name, reason)],
    };
    let mut trials = vec![declaration(name, provider, factory.clone())];
    for case in cases().into_iter().filter(|case| !(manual && case.real_time)) {
        let factory = factory.clone();
        // An unknown provider is held to what it declares, which only a connection can tell.
        let declared = expected::of(provider).map(|expected| expected.capabilities());
        if declared.is_some_and(|declared| case.outcome(declared) == Outcome::NotPromised) {
            continue;
        }
        let body = async move || {
            let fixture = Fixture::new(case.name, factory().await).await;
            let declared = declared.unwrap_or(fixture.capabilities());
            match case.outcome(declared) {
                Outcome::Runs => (case.run)(fixture).await,
                Outcome::NotSupported => {
                    for capability in case.undeclared(declared) {
                        refusals::refused(&fixture, capability).await;
                    }
                }
                Outcome::NotPromised => {}
            }
        };
        trials.push(Trial::test(format!("{name}::{}", case.name), move || run(body)));
    }
    trials
}

/// A provider may neither declare a hard thing away nor boast.
fn declaration(name: &'static str, provider: &'static str, factory: Factory) -> Trial {
    Trial::test(format!("{name}::declares_what_is_expected"), move || {
        run(async move || {
            let client = factory().await.connect().await.expect("the backend is there");
            match expected::of(provider) {
                Some(expected) => expected.check(client.name(), client.capabilities()),
                None => expected::check_figures(client.name(), client.capabilities()),
            }
        })
    })
}

pub(crate) fn missing(name: &'static str, reason: String) -> Trial {
    let in_ci = std::env::var_os("CI").is_some();
    Trial::test(format!("{name}::no case was run: {reason}"), move || {
        Err(Failed::from(format!("the backend is missing: {reason}")))
    })
    .with_ignored_flag(!in_ci)
}

/// Runs one test body on a runtime of its own, in a thread of its own: so a body that blocks
/// every worker is noticed too.
pub(crate) fn run<F: Future<Output = ()>>(
    body: impl FnOnce() -> F + Send + 'static,
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failed::from(format!("no runtime: {error}")))?;
    let (tell, told) = mpsc::channel();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || {
        let ended = catch_unwind(AssertUnwindSafe(|| handle.block_on(body())));
        let _ = tell.send(ended);
    });
    match told.recv_timeout(LIMIT) {
        Ok(ended) => {
            runtime.shutdown_timeout(Duration::from_secs(2));
            ended.map_err(|panic| resume_unwind(panic))
        }
        Err(_) => {
            // The thread cannot be stopped; its runtime goes down with the process.
            std::mem::forget(runtime);
            Err(Failed::from(format!(
                "still running after {LIMIT:?}: a waiter was not woken, or a call never answered"
            )))
        }
    }
}
