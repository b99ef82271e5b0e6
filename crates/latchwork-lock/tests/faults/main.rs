//! What goes wrong between processes, machines and servers, over every provider that several of
//! them can share: `postgres::a_killed_holder_ends_at_its_ttl`.
//!
//! The tests know a provider by its address only. A new one is registered in
//! `support/backend.rs`, with what it needs to know of itself.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod clock_steps;
mod dead_waiters;
mod drops;
mod network;
mod processes;
#[path = "../support/mod.rs"]
mod support;

use libtest_mimic::Arguments;

/// Trials of async functions that take a database, for one backend.
macro_rules! trials {
    ($backend:expr; $($name:ident),* $(,)?) => {
        vec![$($backend.trial(stringify!($name), $name)),*]
    };
}
use trials;

fn main() {
    if support::child::play(|_| false) {
        return;
    }
    let mut trials = Vec::new();
    for backend in support::backend::all() {
        trials.extend(processes::trials(backend));
        trials.extend(dead_waiters::trials(backend));
        trials.extend(drops::trials(backend));
        trials.extend(clock_steps::trials(backend));
        if backend.by_tcp {
            trials.extend(network::trials(backend));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
