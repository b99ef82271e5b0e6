//! No locks at all, for tests that have one thread.

mod provider;

pub use provider::NoOpLockProvider;
