//! Tokens.

use uuid::Uuid;

use super::{ApiCall, Client};
use crate::{CreatedToken, Token, TokenPage, TokenRequest, WhoAmI};

impl Client {
    /// Who the server takes the caller for.
    pub fn whoami(&self) -> ApiCall<WhoAmI> {
        self.get("/v1/whoami")
    }

    /// Makes a token; its text is in this answer, and nowhere else.
    pub fn create_token(&self, wanted: &TokenRequest) -> ApiCall<CreatedToken> {
        self.post("/v1/tokens", wanted)
    }

    /// A page of tokens: `limit`, `after`.
    pub fn tokens<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<TokenPage> {
        self.find("/v1/tokens", query)
    }

    /// One token.
    pub fn token_info(&self, id: Uuid) -> ApiCall<Token> {
        self.get(format!("/v1/tokens/{id}"))
    }

    /// Revokes a token.
    pub fn revoke_token(&self, id: Uuid) -> ApiCall<Token> {
        self.post(format!("/v1/tokens/{id}/revoke"), &serde_json::json!({}))
    }
}
