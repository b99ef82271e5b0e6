//! Locks between the tasks and threads of one process.

mod plain;
mod provider;
mod record;
mod store;
mod sync;
mod wait;

pub use provider::InMemoryLockProvider;
