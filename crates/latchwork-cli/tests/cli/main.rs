//! The binary, as a shell sees it: real processes, real signals, a lock directory of its own for
//! each test. One test binary, so that it links once.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

mod contention;
mod death;
mod exclusion;
mod flows;
mod forwarding;
mod late;
mod locks;
mod loss;
mod passing;
mod schema;
mod serve;
mod support;
mod terminal;
mod types;
mod walks;
mod words;
