//! The backends that this crate brings along. Each folder has the same files: `provider.rs` is
//! the port's implementation, `store.rs` where the truth lives, `wait.rs` how a waiter wakes.

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(all(feature = "file", target_os = "linux"))]
pub(crate) mod file;
pub(crate) mod memory;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
pub(crate) mod noop;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
