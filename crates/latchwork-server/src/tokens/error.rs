//! Why something about tokens could not be done.

use uuid::Uuid;

/// Why something about tokens could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// A token that can be used has this name.
    #[error("a token named {name:?} can be used already; revoke it first, or take another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// There is no such token.
    #[error("there is no token {token:?}; `latchwork tokens ls` and /v1/tokens list them")]
    NotFound {
        /// Its id or name.
        token: String,
    },
    /// An argument is not legal.
    #[error("{field}: {reason}")]
    Invalid {
        /// Which one.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// The new token could do more than the one that makes it.
    #[error("{field}: a token cannot make one that may do more than itself")]
    Exceeds {
        /// Where it exceeds its maker.
        field: &'static str,
    },
    /// The database failed.
    #[error("the tokens cannot be read or written: {0}")]
    Store(#[from] latchwork_sql::Error),
}

impl TokenError {
    pub(super) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        TokenError::Invalid { field, reason: reason.into() }
    }

    pub(super) fn not_found(id: Uuid) -> Self {
        TokenError::NotFound { token: id.to_string() }
    }

    /// The stable code; see docs/errors.md.
    pub fn code(&self) -> &'static str {
        match self {
            TokenError::NameTaken { .. } => "token_exists",
            TokenError::NotFound { .. } => "token_not_found",
            TokenError::Invalid { .. } => "invalid_argument",
            TokenError::Exceeds { .. } => "forbidden",
            TokenError::Store(error) => match error.fault {
                latchwork_sql::Fault::Temporary => "store_unavailable",
                latchwork_sql::Fault::Permanent => "store_backend",
            },
        }
    }
}
