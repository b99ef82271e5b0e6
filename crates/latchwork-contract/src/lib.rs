//! The promises of Latchwork as test suites that run over any provider.
//!
//! A provider's own test file is a factory and one call; every case becomes a named test:
//!
//! ```no_run
//! use latchwork_contract::lock::{TestBackend, main, suite};
//! use latchwork_lock::InMemoryLockProvider;
//!
//! main(vec![suite("memory", async || {
//!     let provider = InMemoryLockProvider::new();
//!     TestBackend::new(move || {
//!         let client = provider.clone();
//!         async move { Ok(client) }
//!     })
//! })]);
//! ```
//!
//! Such a file is a `[[test]]` with `harness = false`. Which cases run is not found out by
//! trying: it follows from the capabilities that are [expected](lock::expected) of each known
//! provider, and stands case by case in `matrix.txt`. A provider of your own is held to what it
//! declares.
//!
//! A store of contexts is proven in the same way by [`flow`], with the feature `flow`, and a database
//! of orders by [`work`], with the feature `work`.
//!
//! Longer runs, with several processes and with kills, write a [`history`] each and have it
//! checked afterwards: that is the [`torture`]. What a network does to a backend is done by a
//! [`proxy`] in front of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test suite says what went wrong by panicking"
)]

mod cleanup;
#[cfg(feature = "flow")]
pub mod flow;
#[cfg(feature = "lock")]
pub mod history;
#[cfg(feature = "lock")]
pub mod lock;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod own_server;
// Signals and the death of a parent are told in the words of Linux.
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(feature = "lock")]
pub mod proxy;
#[cfg(all(feature = "lock", target_os = "linux"))]
pub mod torture;
#[cfg(feature = "work")]
pub mod work;

pub use cleanup::Cleanup;
