//! The audit trail, its listeners, and the server's health.

use super::orders::segment;
use super::{ApiCall, Client};
use crate::{Checkpoints, EventPage, Forgotten, Health, Listeners, Verification};

impl Client {
    /// A page of sealed events: `after`, `limit`, `order`, `event`. [`stream`](Self::stream) follows them.
    pub fn events<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<EventPage> {
        self.find("/v1/events", query)
    }

    /// Checks the whole trail.
    pub fn verify(&self) -> ApiCall<Verification> {
        self.get("/v1/audit/verify")
    }

    /// Where the chains of orders stood whose events were pruned.
    pub fn checkpoints(&self) -> ApiCall<Checkpoints> {
        self.get("/v1/audit/checkpoints")
    }

    /// How far each named listener has come.
    pub fn listeners(&self) -> ApiCall<Listeners> {
        self.get("/v1/listeners")
    }

    /// Forgets how far a named listener has come.
    pub fn forget_listener(&self, name: &str) -> ApiCall<Forgotten> {
        let path = format!("/v1/listeners/{}/forget", segment(name));
        self.post(path, &serde_json::json!({}))
    }

    /// Whether the server can serve.
    pub fn ready(&self) -> ApiCall<Health> {
        self.get("/readyz")
    }
}
