//! Who may do what, as callers with tokens find it; on SQLite and PostgreSQL. One test binary, so that it
//! links once.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test that is skipped says so")]

mod figures;
mod hostile;
mod keys;
mod limits;
mod roles;
mod support;
mod tls;
mod tokens;
