//! W1 to W20 over any database of the work layer.
//!
//! ```no_run
//! use latchwork_contract::work::{TestBackend, main, suite};
//!
//! main(vec![suite("sqlite", async || {
//!     TestBackend::new("sqlite:///tmp/a-fresh-file.db")
//! })]);
//! ```

mod backend;
mod case;
mod cases;
mod fixture;
mod runner;

mod w01_moves;
mod w02_checkout;
mod w02_lease_ends;
mod w02_operator;
mod w02_parts;
mod w02_propose;
mod w03_claims;
mod w03_limits;
mod w04_leases;
mod w05_failures;
mod w06_validation;
mod w07_apply;
mod w07_exact_preview;
mod w07_failures;
mod w07_hooks;
mod w07_leases;
mod w08_rework;
mod w09_idempotency;
mod w10_audit;
mod w11_maintenance;
mod w12_declared;
mod w13_blockers;
mod w13_items;
mod w13_listings;
mod w14_listeners;
mod w15_bad_input;
mod w17_review;
mod w17_reviewers;
mod w17_unattended;
mod w18_receipt;
mod w20_unique;

pub use backend::{Suite, TestBackend, missing, suite};
pub use case::Case;
pub use cases::cases;
pub use fixture::Fixture;
pub use runner::{main, trials};
