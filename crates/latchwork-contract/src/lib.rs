#![doc = include_str!("../README.md")]
//!
//! # The other layers
//!
//! A store of contexts is proven in the same way by [`flow`], with the feature `flow`, and a database
//! of orders by [`work`], with the feature `work`.
//!
//! What a network does to a backend is done by a [`proxy`] in front of it.
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
