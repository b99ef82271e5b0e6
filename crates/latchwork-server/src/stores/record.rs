//! A token as a row, the same for every database.

use chrono::{DateTime, Utc};
use latchwork_sql::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::tokens::{SecretHash, Token};

/// A row; times in microseconds, lists as JSON.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) review_roles: String,
    pub(crate) types: Option<String>,
    pub(crate) key_prefixes: Option<String>,
    pub(crate) lookup: String,
    pub(crate) hash: String,
    pub(crate) created_at: i64,
    pub(crate) created_by: String,
    pub(crate) expires_at: Option<i64>,
    pub(crate) last_used_at: Option<i64>,
    pub(crate) revoked_at: Option<i64>,
}

/// The columns of a row, as the statements list them.
pub(crate) type Columns = (
    String,
    String,
    String,
    String,
    Option<String>,
    Option<String>,
    String,
    String,
    i64,
    String,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

impl From<Columns> for Row {
    fn from(columns: Columns) -> Self {
        let (id, name, role, review_roles, types, key_prefixes, lookup, hash, ..) = columns;
        let (.., created_at, created_by, expires_at, last_used_at, revoked_at) = columns;
        Row {
            id,
            name,
            role,
            review_roles,
            types,
            key_prefixes,
            lookup,
            hash,
            created_at,
            created_by,
            expires_at,
            last_used_at,
            revoked_at,
        }
    }
}

impl Row {
    pub(crate) fn new(token: &Token, hash: SecretHash) -> Result<Self> {
        let micros = |time: Option<DateTime<Utc>>| time.map(|time| time.timestamp_micros());
        Ok(Row {
            id: token.id.to_string(),
            name: token.name.clone(),
            role: token.role.to_string(),
            review_roles: json(&token.review_roles)?,
            types: token.types.as_ref().map(json).transpose()?,
            key_prefixes: token.key_prefixes.as_ref().map(json).transpose()?,
            lookup: hash.lookup(),
            hash: hash.to_hex(),
            created_at: token.created_at.timestamp_micros(),
            created_by: token.created_by.clone(),
            expires_at: micros(token.expires_at),
            last_used_at: micros(token.last_used_at),
            revoked_at: micros(token.revoked_at),
        })
    }

    pub(crate) fn token(self) -> Result<Token> {
        let micros = |time: Option<i64>| time.map(time_of).transpose();
        Ok(Token {
            id: self.id.parse().map_err(damaged)?,
            name: self.name,
            role: self.role.parse().map_err(damaged)?,
            review_roles: list(&self.review_roles)?,
            types: self.types.as_deref().map(list).transpose()?,
            key_prefixes: self.key_prefixes.as_deref().map(list).transpose()?,
            created_at: time_of(self.created_at)?,
            created_by: self.created_by,
            expires_at: micros(self.expires_at)?,
            last_used_at: micros(self.last_used_at)?,
            revoked_at: micros(self.revoked_at)?,
        })
    }
}

fn json(list: &impl Serialize) -> Result<String> {
    serde_json::to_string(list).map_err(damaged)
}

fn list<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(damaged)
}

fn time_of(micros: i64) -> Result<DateTime<Utc>> {
    DateTime::from_timestamp_micros(micros).ok_or_else(|| damaged("a time is out of range"))
}

/// A token that cannot be read is refused: nobody can say what it may do.
fn damaged(error: impl std::fmt::Display) -> Error {
    Error::permanent(format!("a stored token is damaged: {error}"), None)
}
