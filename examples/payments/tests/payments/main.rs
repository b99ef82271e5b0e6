//! The service from outside: its rules, its races, its processes and its walkthrough.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the helpers of a test fail it, and a child speaks by its output"
)]

mod concurrency;
mod fence;
mod hooked;
mod model;
mod processes;
mod race;
mod rules;
mod support;
mod transfer;
mod walkthrough;
