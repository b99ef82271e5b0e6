//! L1 to L22 over any [`LockProvider`](latchwork_lock::provider::LockProvider).

mod backend;
mod case;
mod cases;
mod eventually;
mod expected;
mod fixture;
mod flaky;
mod matrix;
mod refusals;
pub(crate) mod runner;
mod skewed;
mod suite;
mod table;

mod blocking;
mod dropped;
mod l01_exclusion;
mod l02_expiry;
mod l03_tokens;
mod l04_fences;
mod l05_waiting;
mod l06_writers;
mod l07_same_owner;
mod l08_refresh;
mod l09_loss;
mod l10_renewal;
mod l11_reports;
mod l12_break;
mod l13_hand_over;
mod l14_closure;
mod l15_strategies;
mod l16_bounded;
mod l17_outage;
mod l18_keys;
mod l19_waited;
mod l20_fence_gate;
mod l21_drop;
mod l22_deadlock;
mod lock_all;
mod payments;
mod random_run;

pub use backend::TestBackend;
pub use runner::{main, trials};
pub use suite::{Suite, missing, suite};

use case::{Case, Outcome};
use cases::cases;
pub(crate) use eventually::eventually;
use fixture::Fixture;
use flaky::{Faults, Flaky, Operation};
/// One connection to the backend under test: "another process" as far as the backend can tell.
use latchwork_lock::provider::AnyLockProvider as Client;
use skewed::Skewed;

/// For the tests of this crate, and no part of what it offers.
#[doc(hidden)]
pub mod internal {
    pub use super::case::{Case, Outcome};
    pub use super::cases::cases;
    pub use super::expected::PROVIDERS;
    pub use super::fixture::Fixture;
    pub use super::matrix::matrix;
    pub use super::table::{between_markers, capability_table};
}
