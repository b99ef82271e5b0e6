//! Payments in this process's memory.

mod store;

pub use store::MemoryStore;
