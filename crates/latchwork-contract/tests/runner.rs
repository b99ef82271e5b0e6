//! The runner itself: what it does with a provider that declares little, and with none at all.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

mod mutant;

use latchwork_contract::lock::{TestBackend, missing, suite, trials};
use latchwork_lock::{InMemoryLockProvider, NoOpLockProvider};
use libtest_mimic::Arguments;
use mutant::{Flaw, Mutant};

#[test]
fn a_strangers_provider_is_held_to_what_it_declares() {
    let stranger = suite("stranger", async || {
        let provider = NoOpLockProvider::new();
        TestBackend::new(move || {
            let client = provider.clone();
            async move { Ok(client) }
        })
    });
    let trials = trials(vec![stranger]);
    assert!(trials.iter().any(|trial| trial.name() == "stranger::l01_keys_are_independent"));
    // Refusals, what needs nothing declared, and what is not promised.
    let wanted = ["declares", "refuses_", "l01_", "l12_", "l13_", "l18_a_bad"];
    let chosen = trials
        .into_iter()
        .filter(|trial| wanted.iter().any(|name| trial.name().contains(name)))
        .collect();
    let conclusion = libtest_mimic::run(&Arguments::default(), chosen);
    // That it excludes nobody is no success: it has not promised to.
    assert!(conclusion.num_ignored > 20, "{conclusion:?}");
    assert!(conclusion.num_passed > 2, "{conclusion:?}");
    assert!(!conclusion.has_failed(), "{conclusion:?}");
}

#[test]
fn every_undeclared_operation_is_refused() {
    // It could do all of it: the front door refuses by what is declared, not by trying.
    let silent = suite("silent", async || {
        let inner = InMemoryLockProvider::new();
        TestBackend::new(move || {
            let client = Mutant::new(inner.clone(), Some(Flaw::DeclaresNothing));
            async move { Ok(client) }
        })
    });
    let trials = trials(vec![silent]);
    let refusals = trials.iter().filter(|trial| trial.name().starts_with("silent::refuses_"));
    assert_eq!(refusals.count(), 7);
    let conclusion = libtest_mimic::run(&Arguments::default(), trials);
    assert!(!conclusion.has_failed(), "{conclusion:?}");
    // The rest is not promised, and no success.
    assert!(conclusion.num_ignored > 5 * conclusion.num_passed, "{conclusion:?}");
}

#[test]
fn a_missing_server_is_named_and_skipped_only_on_a_laptop() {
    let trials = trials(vec![missing("redis", "REDIS_URL is not set")]);
    assert_eq!(trials.len(), 1);
    assert_eq!(trials[0].name(), "redis::no case was run: REDIS_URL is not set");
    assert_eq!(trials[0].has_ignored_flag(), std::env::var_os("CI").is_none());
    let arguments = Arguments { include_ignored: true, ..Arguments::default() };
    assert!(libtest_mimic::run(&arguments, trials).has_failed());
}
