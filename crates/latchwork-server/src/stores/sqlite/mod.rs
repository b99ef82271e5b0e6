//! Tokens in an SQLite file.

mod schema;
// The same text: SQLite understands PostgreSQL's.
#[path = "../postgres/statements.rs"]
mod statements;
mod store;

pub(crate) use store::SqliteTokens;
