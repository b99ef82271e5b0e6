//! What several providers need to coordinate the callers of a process with a shared backend.

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod deferred_release;
pub(crate) mod liveness;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
pub(crate) mod server_clock;
