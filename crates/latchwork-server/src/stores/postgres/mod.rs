//! Tokens in a PostgreSQL database.

mod schema;
mod store;

pub(crate) use store::PostgresTokens;
