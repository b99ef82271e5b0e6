//! Distributed locks: leases with fencing tokens, on any backend.
//!
//! A [`Locks`] is a set of locks in one backend. Acquiring a key gives a [`Guard`]: a lease that ends
//! by itself when it is not renewed, and whose [fence](Held::fence) lets a store refuse a write that
//! comes too late.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> latchwork_lock::Result<()> {
//! use latchwork_lock::Locks;
//! use std::time::Duration;
//!
//! let locks = Locks::connect("memory:").await?;
//! let charged = locks
//!     .lock("payment:7")
//!     .wait(Duration::from_secs(10))
//!     .run(|held| async move { format!("charged under fence {}", held.fence()) })
//!     .await?;
//! # let _ = charged; Ok(()) }
//! ```
//!
//! What a lease cannot promise: that its holder has stopped when it ends. A process can be
//! stopped for any length of time and go on without noticing. What must not happen twice is
//! therefore guarded by the fence, where it happens: see [`FenceGate`].
//!
//! The [promises](provider#the-promises) are numbered L1 to L22 (exclusion, expiry, only the holder,
//! fences, fairness, …); the crate `latchwork-contract` tests them on any
//! [`LockProvider`].

pub mod blocking;

mod acquire;
mod any_provider;
mod capability;
mod clock;
mod config;
mod connect;
#[doc(hidden)]
pub mod coordination;
mod deadlock;
mod error;
mod fence_gate;
mod guard;
mod guard_set;
mod held;
mod key;
mod lease;
mod locks;
pub mod prelude;
pub mod provider;
mod providers;
mod renewal;
mod report;
mod reporter;
mod request;
mod retry;
mod rules;
mod sync;

pub use capability::{Capabilities, Capability};
/// The crate of the dates in leases and reports.
pub use chrono;
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{LockConfig, LockStrategy, MAX_TTL, MIN_TTL, OnLoss};
pub use connect::ConnectOptions;
pub use deadlock::Scope;
pub use error::{Error, ErrorKind, Result};
pub use fence_gate::{FenceGate, StaleFence};
pub use guard::Guard;
pub use guard_set::GuardSet;
pub use held::{Held, Refresh};
pub use key::{Key, MAX_KEY_BYTES, MAX_PREFIX_BYTES};
pub use lease::{Fence, Lease, LockState, MAX_OWNER_BYTES, Mode, Owner};
pub use locks::{DEFAULT_PREFIX, Locks};
#[cfg(feature = "etcd")]
pub use providers::etcd::EtcdLockProvider;
#[cfg(all(feature = "file", target_os = "linux"))]
pub use providers::file::{FileLockProvider, FileLockProviderBuilder};
pub use providers::memory::InMemoryLockProvider;
#[cfg(feature = "mysql")]
pub use providers::mysql::{MySqlFenceGate, MySqlLockProvider};
pub use providers::noop::NoOpLockProvider;
#[cfg(feature = "postgres")]
pub use providers::postgres::{PostgresFenceGate, PostgresLockProvider, TransactionLock};
#[cfg(feature = "redis")]
pub use providers::redis::RedisLockProvider;
#[cfg(feature = "sqlite")]
pub use providers::sqlite::{SqliteFenceGate, SqliteLockProvider};
pub use report::{Holder, Inspection, Page, PageRequest, Waiter};
#[doc(hidden)]
pub use request::{Async, ManyKeys, OneKey};
pub use request::{Attempt, LockRequest};

// For the modules of this crate: users find them in `provider`.
pub(crate) use provider::{
    AcquireRequest, Acquired, Grant, LockProvider, Moment, Proof, Token, Wait, process_label,
};
