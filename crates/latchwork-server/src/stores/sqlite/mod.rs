//! Tokens in an SQLite file.

mod schema;
mod store;

pub(crate) use store::SqliteTokens;
