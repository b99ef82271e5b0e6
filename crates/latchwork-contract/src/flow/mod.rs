//! F1 to F16 over any [`ContextStore`](latchwork_flow::ContextStore).
//!
//! ```no_run
//! use latchwork_contract::flow::{TestBackend, main, suite};
//! use latchwork_flow::InMemoryContextStore;
//!
//! main(vec![suite("memory", async || {
//!     let store = InMemoryContextStore::new();
//!     TestBackend::new(move || {
//!         let client = store.clone();
//!         async move { Ok(client) }
//!     })
//! })]);
//! ```

mod backend;
mod case;
mod cases;
mod fixture;
mod machine_fixture;
mod runner;
mod suite;

mod f01_states;
mod f02_gates;
mod f03_actions;
mod f04_failures;
mod f05_steps;
mod f06_stored_form;
mod f07_resume;
mod f08_cancel;
mod f08_claims;
mod f08_due;
mod f08_listing;
mod f08_rows;
mod f08_runs;
mod f09_keys;
mod f10_events;
mod f11_tables;
mod f12_forecast;
mod f13_entities;
mod f14_stale_state;
mod f15_attempts;
mod f15_limits;
mod f16_retries;

mod entities;

pub use backend::TestBackend;
pub use case::Case;
pub use cases::cases;
pub use fixture::Fixture;
pub use runner::{main, trials};
pub use suite::{Suite, missing, suite};
