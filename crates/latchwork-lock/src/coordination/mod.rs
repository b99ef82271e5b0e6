//! What several providers need to coordinate the callers of a process with a shared backend.
//!
//! Public for the other crates of this workspace only: it may change with any release.

pub mod background;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod deferred_release;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) mod liveness;
