//! Tokens in a database, one folder a database.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod record;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
// The same text for both: SQLite understands PostgreSQL's.
#[path = "postgres/statements.rs"]
mod statements;

use chrono::{DateTime, Utc};
use latchwork_sql::{Error, Result};
use uuid::Uuid;

use crate::tokens::{SecretHash, Token};

/// Where tokens are kept.
#[derive(Clone)]
pub(crate) enum TokenStore {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<sqlite::SqliteTokens>),
    #[cfg(feature = "postgres")]
    Postgres(postgres::PostgresTokens),
}

/// Calls the store that there is.
macro_rules! store {
    ($self:expr, $store:ident => $call:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            TokenStore::Sqlite($store) => $call,
            #[cfg(feature = "postgres")]
            TokenStore::Postgres($store) => $call,
        }
    };
}

impl TokenStore {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let scheme = url.split(':').next().unwrap_or_default();
        match scheme {
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let tokens = sqlite::SqliteTokens::connect(url).await?;
                Ok(TokenStore::Sqlite(Box::new(tokens)))
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                postgres::PostgresTokens::connect(url).await.map(TokenStore::Postgres)
            }
            _ => {
                let message = "tokens are kept in an SQLite file (sqlite://…) or in PostgreSQL \
                               (postgres://…)";
                Err(Error::permanent(message, None))
            }
        }
    }

    /// Whether there ever was a token, and how many were revoked.
    pub(crate) async fn news(&self) -> Result<(bool, i64)> {
        store!(self, store => store.news().await)
    }

    /// Stores a token; says whether its name was free. One of this name that has ended is marked as
    /// revoked at its end, which frees the name.
    pub(crate) async fn insert(&self, token: &Token, hash: SecretHash) -> Result<bool> {
        let row = record::Row::new(token, hash)?;
        store!(self, store => store.insert(row).await)
    }

    /// The token of this hash.
    pub(crate) async fn find(&self, hash: SecretHash) -> Result<Option<Token>> {
        let rows = store!(self, store => store.by_lookup(hash.lookup()).await)?;
        let found = rows.into_iter().find(|row| hash.is(&row.hash));
        found.map(record::Row::token).transpose()
    }

    /// The token of this id.
    pub(crate) async fn get(&self, id: Uuid) -> Result<Option<Token>> {
        let row = store!(self, store => store.by_id(id.to_string()).await)?;
        row.map(record::Row::token).transpose()
    }

    /// A page of tokens behind an id, oldest first.
    pub(crate) async fn list(&self, after: Option<Uuid>, limit: i64) -> Result<Vec<Token>> {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        let rows = store!(self, store => store.list(after, limit).await)?;
        rows.into_iter().map(record::Row::token).collect()
    }

    /// Revokes a token; one that is revoked already stays as it is.
    pub(crate) async fn revoke(&self, id: Uuid, now: DateTime<Utc>) -> Result<()> {
        store!(self, store => store.revoke(id.to_string(), now.timestamp_micros()).await)
    }

    /// Notes that a token was used.
    pub(crate) async fn touch(&self, id: Uuid, now: DateTime<Utc>) -> Result<()> {
        store!(self, store => store.touch(id.to_string(), now.timestamp_micros()).await)
    }

    pub(crate) async fn close(&self) {
        store!(self, store => store.close().await);
    }
}
