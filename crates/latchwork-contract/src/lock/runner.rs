//! From cases and suites to named tests.

use std::any::Any;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use latchwork_lock::provider::LockProvider;
use latchwork_lock::{Capabilities, Capability};
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use super::suite::{Factory, Source};
use super::{Case, Fixture, Outcome, Suite, cases, expected, refusals};

/// How long a case may take. None needs more than some seconds; who reaches this hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs every case over every suite, as `cargo test` and nextest want it, and ends the process.
///
/// A case whose promise the provider does not declare is ignored, and counted as such at the end.
pub fn main(suites: Vec<Suite>) -> ! {
    let arguments = Arguments::from_args();
    // Nextest runs each test in a process of its own, which need not know what the others do.
    let ask = arguments.list || !arguments.exact;
    let trials = suites.into_iter().flat_map(|suite| trials_of(suite, ask)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        // Nobody may read it any more.
        let _ = writeln!(std::io::stdout(), "{}", summary(&conclusion));
    }
    conclusion.exit()
}

/// What ran and what did not, in one line.
pub(crate) fn summary(conclusion: &Conclusion) -> String {
    let ran = conclusion.num_passed + conclusion.num_failed;
    format!("latchwork-contract: {ran} ran, {} not promised", conclusion.num_ignored)
}

/// The same as a list, to run along with tests of your own.
pub fn trials(suites: Vec<Suite>) -> Vec<Trial> {
    suites.into_iter().flat_map(|suite| trials_of(suite, false)).collect()
}

/// The trials of a suite; `ask` connects to an unknown provider, to learn what it declares.
fn trials_of(suite: Suite, ask: bool) -> Vec<Trial> {
    let Suite { name, provider, manual, source } = suite;
    let factory = match source {
        Source::Factory(factory) => factory,
        Source::Missing(reason) => return vec![missing(name, reason)],
    };
    let mut trials = vec![declaration(name, provider, factory.clone())];
    // The committed matrix has what our own do not promise, so these are left out. An unknown provider
    // is held to what it declares, which only a connection can tell.
    let known = expected::of(provider).map(|expected| expected.capabilities());
    let told = known.or_else(|| if ask { declared_by(factory.clone()) } else { None });
    for case in cases().into_iter().filter(|case| !(manual && case.real_time)) {
        let factory = factory.clone();
        let is_ignored = told.is_some_and(|told| case.outcome(told) != Outcome::Runs);
        if is_ignored && known.is_some() {
            continue;
        }
        let body = async move || {
            let fixture = Fixture::new(case.name, factory().await).await;
            let declared = known.unwrap_or(fixture.capabilities());
            if case.outcome(declared) != Outcome::Runs {
                let lacks: Vec<_> = case.undeclared(declared).map(Capability::name).collect();
                return Completion::ignored_with(format!("not promised: {}", lacks.join(", ")));
            }
            (case.run)(fixture).await;
            Completion::Completed
        };
        let trial = Trial::ignorable_test(format!("{name}::{}", case.name), move || {
            run(body).map_err(|failed| broken(&case, &failed))
        });
        trials.push(trial.with_ignored_flag(is_ignored));
    }
    let undeclared = refusals::REFUSABLE.into_iter();
    let undeclared = undeclared.filter(|operation| !told.is_some_and(|told| told.has(*operation)));
    trials.extend(undeclared.map(|operation| refusal(name, known, operation, factory.clone())));
    trials
}

/// An operation that is not declared is refused: one test, however many cases need the operation.
fn refusal(
    name: &'static str,
    known: Option<Capabilities>,
    operation: Capability,
    factory: Factory,
) -> Trial {
    let body = async move || {
        let fixture = Fixture::new("refusal", factory().await).await;
        if known.unwrap_or(fixture.capabilities()).has(operation) {
            return Completion::ignored_with("declared: there is nothing to refuse");
        }
        refusals::refused(&fixture, operation).await;
        Completion::Completed
    };
    let operation = operation.name().replace([' ', '-'], "_");
    Trial::ignorable_test(format!("{name}::refuses_{operation}"), move || run(body))
}

/// What a provider declares that can be connected to.
fn declared_by(factory: Factory) -> Option<Capabilities> {
    let connect = async move || Some(factory().await.connect().await.ok()?.capabilities());
    run(connect).ok().flatten()
}

/// Which promise was broken, and by what it was seen.
fn broken(case: &Case, failed: &Failed) -> Failed {
    let (promise, sentence) = case.promised();
    let said = failed.message().unwrap_or("it failed");
    Failed::from(format!("{promise}. {sentence}\n{}: {said}", case.name))
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

/// What a panic said; its place was printed as it happened.
fn words(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

/// Runs one test body on a runtime of its own, in a thread of its own: so a body that blocks
/// every worker is noticed too.
pub(crate) fn run<T: Send + 'static, F: Future<Output = T>>(
    body: impl FnOnce() -> F + Send + 'static,
) -> Result<T, Failed> {
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
            ended.map_err(|panic| Failed::from(words(&*panic)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_promise_and_its_sentence() {
        for case in cases() {
            let told = broken(&case, &Failed::from("seven"));
            let told = told.message().expect("a message");
            assert!(told.starts_with(&format!("L{} ", case.promise)), "{told}");
            assert!(told.contains(case.promised().1), "{told}");
            assert!(told.ends_with(&format!("{}: seven", case.name)), "{told}");
        }
    }

    #[test]
    fn what_did_not_run_is_no_success() {
        let conclusion = Conclusion {
            num_filtered_out: 0,
            num_passed: 7,
            num_failed: 1,
            num_ignored: 3,
            num_measured: 0,
        };
        assert_eq!(summary(&conclusion), "latchwork-contract: 8 ran, 3 not promised");
    }
}
