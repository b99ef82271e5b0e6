//! Payments in an SQLite file, which several processes of one machine may share.

mod error;
mod record;
mod schema;
mod store;

pub use store::SqliteStore;
