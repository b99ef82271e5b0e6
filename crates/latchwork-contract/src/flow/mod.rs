//! F1 to F12 over any [`ContextStore`](latchwork_flow::ContextStore).
//!
//! ```no_run
//! use latchwork_contract::flow::{Bench, main, suite};
//! use latchwork_flow::InMemoryContextStore;
//!
//! main(vec![suite("memory", async || {
//!     let store = InMemoryContextStore::new();
//!     Bench::new(move || {
//!         let client = store.clone();
//!         async move { Ok(client) }
//!     })
//! })]);
//! ```

mod bench;
mod case;
mod cases;
mod fixture;
mod runner;
mod suite;

mod f08_cancel;
mod f08_claims;
mod f08_due;
mod f08_listing;
mod f08_rows;

pub use bench::Bench;
pub use case::Case;
pub use cases::cases;
pub use fixture::Fixture;
pub use runner::{main, trials};
pub use suite::{Suite, missing, suite};
