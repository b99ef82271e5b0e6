//! Whether a server lives and can serve.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The answer of `/healthz` and `/readyz` where all is well; a [`Problem`](crate::Problem) otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}
