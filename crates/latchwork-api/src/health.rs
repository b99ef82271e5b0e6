//! Whether a server lives and can serve.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The answer of `/healthz` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or `unavailable`.
    pub status: String,
}
