//! Locks between the tasks and threads of one process.

mod provider;
mod store;
mod sync;
mod wait;

pub use provider::InMemoryLockProvider;
