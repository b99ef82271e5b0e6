//! What is tested beside the contract: a model of whole transitions, and the stored form.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says what went wrong by panicking"
)]

mod examples;
mod faults;
mod format;
mod in_hand;
mod model;
mod observers;
mod settings;
