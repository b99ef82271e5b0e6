//! The promises L1 to L21 over the providers of this crate: every case is a test of its own.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::sync::Arc;

use latchwork_contract::lock::{Bench, Suite, suite};
use latchwork_lock::{InMemoryLockProvider, LockProvider, ManualClock, NoOpLockProvider};

fn main() {
    let mut suites = vec![memory(), memory_on_a_manual_clock(), noop()];
    suites.extend(file());
    suites.extend(sqlite());
    latchwork_contract::lock::main(suites)
}

fn memory() -> Suite {
    suite("memory", async || clones_of(InMemoryLockProvider::new()))
}

/// The same where time moves only when a case says so: what is due at a moment is tested at it.
fn memory_on_a_manual_clock() -> Suite {
    suite("memory_manual", async || {
        let clock = ManualClock::new();
        clones_of(InMemoryLockProvider::with_clock(Arc::new(clock.clone()))).clock(clock)
    })
    .of("memory")
    .on_a_manual_clock()
}

fn noop() -> Suite {
    suite("noop", async || clones_of(NoOpLockProvider::new()))
}

/// Clones of one provider are as far apart as clients of a backend in this process can be.
fn clones_of<P: LockProvider + Clone>(provider: P) -> Bench {
    Bench::new(move || {
        let client = provider.clone();
        async move { Ok(client) }
    })
}

#[cfg(all(feature = "file", target_os = "linux"))]
fn file() -> Option<Suite> {
    use latchwork_lock::FileLockProvider;

    Some(suite("file", async || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().to_owned();
        let connect = move || {
            let path = path.clone();
            // The cases wrap the provider, so it is opened itself; that `file:///directory`
            // leads to the same one is tested beside `connect`.
            async move { FileLockProvider::open(path) }
        };
        Bench::new(connect).keep(directory)
    }))
}

#[cfg(not(all(feature = "file", target_os = "linux")))]
fn file() -> Option<Suite> {
    None
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Option<Suite> {
    use latchwork_lock::SqliteLockProvider;

    Some(suite("sqlite", async || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("locks.db");
        let connect = move || SqliteLockProvider::open_file(path.clone());
        Bench::new(connect).keep(directory)
    }))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite() -> Option<Suite> {
    None
}
