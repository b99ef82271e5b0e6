//! Where it is kept, and what tells the time.

mod clock;
mod memory;
mod sqlite;

pub use memory::MemoryStore;
pub use sqlite::SqliteStore;
