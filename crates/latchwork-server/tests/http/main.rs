//! The router as a client sees it, on SQLite and PostgreSQL. One test binary, so that it links once.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test that is skipped says so")]

mod batch;
mod browsers;
mod client;
mod explain;
mod flows;
mod headers;
mod idempotency;
mod keyed_effects;
mod locks;
mod parts;
#[cfg(all(feature = "postgres", target_os = "linux"))]
mod proofs;
mod review;
mod server;
mod support;
mod work;
