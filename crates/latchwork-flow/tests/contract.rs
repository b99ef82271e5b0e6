//! The promises F1 to F12 over the stores of this crate: every case is a test of its own.

use std::sync::Arc;

use latchwork_contract::flow::{Bench, Suite, suite};
use latchwork_flow::InMemoryContextStore;
use latchwork_lock::ManualClock;

fn main() {
    latchwork_contract::flow::main(vec![memory(), memory_on_a_manual_clock()])
}

fn memory() -> Suite {
    suite("memory", async || clones_of(InMemoryContextStore::new()))
}

/// The same where time moves only when a case says so.
fn memory_on_a_manual_clock() -> Suite {
    suite("memory_manual", async || {
        let clock = ManualClock::new();
        clones_of(InMemoryContextStore::with_clock(Arc::new(clock.clone()))).clock(clock)
    })
}

/// Clones of one store are as far apart as clients of a store in this process can be.
fn clones_of(store: InMemoryContextStore) -> Bench {
    Bench::new(move || {
        let client = store.clone();
        async move { Ok(client) }
    })
}
