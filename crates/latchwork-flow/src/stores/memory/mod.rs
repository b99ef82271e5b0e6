//! Contexts of one process, for tests and for flows that need not outlive it.

mod store;

pub use store::InMemoryContextStore;
