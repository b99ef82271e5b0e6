//! What is tested beside the contract: a model of whole transitions, and the stored form.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says what went wrong by panicking"
)]

mod format;
mod model;
