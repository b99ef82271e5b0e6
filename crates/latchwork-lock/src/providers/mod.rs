//! The backends of this crate. Each folder has the same files: `provider` implements the trait,
//! `config` opens the backend, `record` is what is stored, `store` reads and writes it, `notify` wakes
//! waiters, and `error` maps the driver's errors.

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
