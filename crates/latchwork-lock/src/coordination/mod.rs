//! What several providers need to coordinate the callers of a process with a shared backend.
//!
//! Public for the other crates of this workspace only: it may change with any release.

#[cfg(any(feature = "file", feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) mod acquire;
pub mod background;
pub mod batcher;
pub mod cancel;
pub mod deferred_release;
pub mod grant_slot;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) mod liveness;
pub mod polling;
pub mod runtimes;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
pub(crate) mod server_clock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod server_record;
#[cfg(any(feature = "redis", feature = "etcd"))]
pub(crate) mod tls;
#[cfg(any(
    feature = "file",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "etcd"
))]
pub(crate) mod token_id;
pub mod waiters;
