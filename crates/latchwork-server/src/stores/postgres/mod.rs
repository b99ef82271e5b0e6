//! Tokens in a PostgreSQL database.

mod schema;
mod statements;
mod store;

pub(crate) use store::PostgresTokens;
