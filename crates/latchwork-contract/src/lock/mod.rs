//! L1 to L22 over any [`LockProvider`](latchwork_lock::provider::LockProvider).

mod backend;
mod case;
mod cases;
mod eventually;
pub mod expected;
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
pub use case::{Case, Outcome};
pub use cases::cases;
pub use eventually::eventually;
pub use fixture::Fixture;
pub use flaky::{Faults, Flaky, Operation};
/// One connection to the backend under test: "another process" as far as the backend can tell.
pub use latchwork_lock::provider::AnyLockProvider as Client;
pub use matrix::matrix;
pub use runner::{main, trials};
pub use skewed::Skewed;
pub use suite::{Suite, missing, suite};
pub use table::{between_markers, capability_table};
