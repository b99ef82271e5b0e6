//! Items, and the leases on them.

use uuid::Uuid;

use super::{ApiCall, Client};
use crate::{
    CheckedOut, CheckoutRequest, CommentRequest, FailRequest, FinalizeRequest, Heartbeat,
    HeartbeatMany, HeartbeatManyRequest, Item, ItemDetails, ItemPage, ItemResults, LeasePage,
    LeaseRequest, PartRequest, Parts, Recorded, ReleaseRequest, SnoozeRequest, SubmitManyRequest,
    SubmitRequest, Submitted, SubmittedMany, SubmittedPart,
};

impl Client {
    /// A page of items.
    pub fn items<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<ItemPage> {
        self.find("/v1/items", query)
    }

    /// An item with its input, latest result and lease.
    pub fn item(&self, id: Uuid) -> ApiCall<ItemDetails> {
        self.get(format!("/v1/items/{id}"))
    }

    /// All versions of an item's result.
    pub fn item_results(&self, id: Uuid) -> ApiCall<ItemResults> {
        self.get(format!("/v1/items/{id}/results"))
    }

    /// Leases items; with `wait_ms` it waits for some.
    pub fn checkout(&self, wanted: &CheckoutRequest) -> ApiCall<CheckedOut> {
        self.post("/v1/items/checkout", wanted).waits(wanted.wait_ms)
    }

    /// Extends a lease by its whole ttl.
    pub fn heartbeat(&self, lease: Uuid) -> ApiCall<Heartbeat> {
        self.post("/v1/items/heartbeat", &LeaseRequest { lease })
    }

    /// Extends several leases.
    pub fn heartbeat_many(&self, leases: &[Uuid]) -> ApiCall<HeartbeatMany> {
        let leases = leases.to_vec();
        self.post("/v1/items/heartbeat-many", &HeartbeatManyRequest { leases })
    }

    /// Submits a result, and ends the lease.
    pub fn submit(&self, result: &SubmitRequest) -> ApiCall<Submitted> {
        self.post("/v1/items/submit", result)
    }

    /// Submits several results.
    pub fn submit_many(&self, results: &SubmitManyRequest) -> ApiCall<SubmittedMany> {
        self.post("/v1/items/submit-many", results)
    }

    /// Hands in a part of a result.
    pub fn submit_part(&self, part: &PartRequest) -> ApiCall<SubmittedPart> {
        self.post("/v1/parts", part)
    }

    /// The parts of an item; `key`, `status` and `bodies` narrow or widen it.
    pub fn parts<N: AsRef<str>, V: AsRef<str>>(
        &self,
        item: Uuid,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<Parts> {
        self.find(&format!("/v1/items/{item}/parts"), query)
    }

    /// Submits what the parts of an item make up.
    pub fn finalize(&self, request: &FinalizeRequest) -> ApiCall<Submitted> {
        self.post("/v1/parts/finalize", request)
    }

    /// Gives a lease back; the attempt does not count.
    pub fn release(&self, request: &ReleaseRequest) -> ApiCall<Item> {
        self.post("/v1/items/release", request)
    }

    /// Gives a lease back for later.
    pub fn snooze(&self, request: &SnoozeRequest) -> ApiCall<Item> {
        self.post("/v1/items/snooze", request)
    }

    /// Says that an item could not be done.
    pub fn fail(&self, request: &FailRequest) -> ApiCall<Item> {
        self.post("/v1/items/fail", request)
    }

    /// Tries one failed item again.
    pub fn retry_item(&self, id: Uuid) -> ApiCall<Item> {
        self.post(format!("/v1/items/{id}/retry"), &serde_json::json!({}))
    }

    /// Leaves a comment on an item.
    pub fn comment_item(&self, id: Uuid, comment: &CommentRequest) -> ApiCall<Recorded> {
        self.post(format!("/v1/items/{id}/comments"), comment)
    }

    /// A page of leases: `agent`, `order`, `page[size]`, `page[cursor]`.
    pub fn leases<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<LeasePage> {
        self.find("/v1/leases", query)
    }
}
