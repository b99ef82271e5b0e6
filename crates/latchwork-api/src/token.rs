//! Tokens: who may use the server.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Actor;

/// What a new token shall be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Its name, which is that of the agent or user: no two tokens that can be used have the same.
    pub name: String,
    /// `reader`, `agent`, `reviewer`, `operator` or `admin`.
    pub role: String,
    /// The roles in which its user reviews, besides its own: what the rules of order types name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub review_roles: Vec<String>,
    /// The only order types that it may see; those of its maker unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// What every key of a lock or flow that it may see begins with; as its maker's unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefixes: Option<Vec<String>>,
    /// When it ends; with its maker's unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The same in seconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_s: Option<u64>,
}

/// What is known of a token: everything but its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// `reader`, `agent`, `reviewer`, `operator` or `admin`.
    pub role: String,
    /// `live`, `expired` or `revoked`.
    pub state: String,
    /// The roles in which its user reviews, besides its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub review_roles: Vec<String>,
    /// The only order types that it may see; all of them if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// What every key that it may see begins with; all keys if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefixes: Option<Vec<String>>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// Who made it.
    pub created_by: String,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was last used, to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<DateTime<Utc>>,
}

/// A token that was made, with its text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// What is known of it from now on.
    pub token: Token,
    /// Its text, for `Authorization: Bearer …`. It is shown here and never again.
    pub secret: String,
}

impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A page of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenPage {
    /// The tokens, oldest first.
    pub tokens: Vec<Token>,
    /// Pass it as `after` for the next page; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Who a caller is, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// Whom events name.
    pub actor: Actor,
    /// Its role; `admin` where there are no tokens.
    pub role: String,
    /// Whether a token says so; otherwise the caller named itself.
    pub verified: bool,
    /// The only order types that it may see; all of them if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// What every key that it may see begins with; all keys if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_prefixes: Option<Vec<String>>,
    /// The id of its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Uuid>,
    /// When its token ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
}
