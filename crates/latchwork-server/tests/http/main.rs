//! The router as a client sees it, on SQLite. One test binary, so that it links once.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod browsers;
mod explain;
mod flows;
mod locks;
#[cfg(all(feature = "postgres", target_os = "linux"))]
mod proofs;
mod server;
mod support;
mod work;
