//! Orders, and decisions on them.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use uuid::Uuid;

use super::{ApiCall, Client};
use crate::{
    Agents, ApplyStatus, ApproveRequest, Approved, CloneRequest, CommentRequest, EventPage,
    ItemDetailsPage, Order, OrderDetails, OrderPage, OrderType, OrderTypes, Plan, Preview,
    Proposal, ProposeManyRequest, Proposed, ProposedMany, ReasonRequest, Receipt, Recorded,
    RejectRequest, Stats, TransitionTables,
};

impl Client {
    /// A page of orders, by the filters, sorts and includes of docs/work.md.
    pub fn orders<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<OrderPage> {
        self.find("/v1/orders", query)
    }

    /// Proposes an order.
    pub fn propose(&self, order: &Proposal) -> ApiCall<Proposed> {
        self.post("/v1/orders", order)
    }

    /// Proposes several orders.
    pub fn propose_many(&self, orders: &ProposeManyRequest) -> ApiCall<ProposedMany> {
        self.post("/v1/orders/propose-many", orders)
    }

    /// The items that an order would have; nothing is stored.
    pub fn plan(&self, order: &Proposal) -> ApiCall<Plan> {
        self.post("/v1/orders/plan", order)
    }

    /// An order with its payload and the states of its items.
    pub fn order(&self, id: Uuid) -> ApiCall<OrderDetails> {
        self.get(format!("/v1/orders/{id}"))
    }

    /// The items of an order with inputs and results, behind the `next` of the page before.
    pub fn order_items(&self, id: Uuid, after: Option<&str>) -> ApiCall<ItemDetailsPage> {
        self.find(&format!("/v1/orders/{id}/items"), after.map(|after| ("after", after)))
    }

    /// The events of an order, behind the `next` of the page before.
    pub fn order_events(&self, id: Uuid, after: Option<&str>) -> ApiCall<EventPage> {
        self.find(&format!("/v1/orders/{id}/events"), after.map(|after| ("after", after)))
    }

    /// What a reviewer sees of an order.
    pub fn preview(&self, id: Uuid) -> ApiCall<Preview> {
        self.get(format!("/v1/orders/{id}/preview"))
    }

    /// Approves what a preview showed.
    pub fn approve(&self, id: Uuid, approval: &ApproveRequest) -> ApiCall<Approved> {
        self.post(format!("/v1/orders/{id}/approve"), approval)
    }

    /// Rejects an order, for good or with rework.
    pub fn reject(&self, id: Uuid, rejection: &RejectRequest) -> ApiCall<Order> {
        self.post(format!("/v1/orders/{id}/reject"), rejection)
    }

    /// Who applies an order at this time.
    pub fn apply_status(&self, id: Uuid) -> ApiCall<ApplyStatus> {
        self.get(format!("/v1/orders/{id}/apply"))
    }

    /// Takes an order back from its apply worker.
    pub fn take_back_apply(&self, id: Uuid) -> ApiCall<ApplyStatus> {
        self.post(format!("/v1/orders/{id}/apply/take-back"), &json!({}))
    }

    /// The receipt of an applied order.
    pub fn receipt(&self, id: Uuid) -> ApiCall<Receipt> {
        self.get(format!("/v1/orders/{id}/receipt"))
    }

    /// Takes the leases of an order back, and queues a rejected one again.
    pub fn requeue(&self, id: Uuid, reason: &str) -> ApiCall<Order> {
        self.post(format!("/v1/orders/{id}/requeue"), &because(reason))
    }

    /// Tries the failed items of an order again, and a failed order with them.
    pub fn retry(&self, id: Uuid) -> ApiCall<Order> {
        self.post(format!("/v1/orders/{id}/retry"), &json!({}))
    }

    /// Calls an order off.
    pub fn cancel(&self, id: Uuid, reason: &str) -> ApiCall<Order> {
        self.post(format!("/v1/orders/{id}/cancel"), &because(reason))
    }

    /// Gives a failed or rejected order up.
    pub fn dead_letter(&self, id: Uuid, reason: &str) -> ApiCall<Order> {
        self.post(format!("/v1/orders/{id}/dead-letter"), &because(reason))
    }

    /// Proposes an order like this one.
    pub fn clone_order(&self, id: Uuid, clone: &CloneRequest) -> ApiCall<Proposed> {
        self.post(format!("/v1/orders/{id}/clone"), clone)
    }

    /// Leaves a comment on an order.
    pub fn comment(&self, id: Uuid, comment: &CommentRequest) -> ApiCall<Recorded> {
        self.post(format!("/v1/orders/{id}/comments"), comment)
    }

    /// The order types of the server.
    pub fn order_types(&self) -> ApiCall<OrderTypes> {
        self.get("/v1/order-types")
    }

    /// One order type, with its schemas.
    pub fn order_type(&self, name: &str) -> ApiCall<OrderType> {
        self.get(format!("/v1/order-types/{}", segment(name)))
    }

    /// Which state may follow which.
    pub fn transitions(&self) -> ApiCall<TransitionTables> {
        self.get("/v1/transitions")
    }

    /// How many orders and items are in each state.
    pub fn stats(&self) -> ApiCall<Stats> {
        self.get("/v1/stats")
    }

    /// The agents that hold leases.
    pub fn agents(&self) -> ApiCall<Agents> {
        self.get("/v1/agents")
    }
}

fn because(reason: &str) -> ReasonRequest {
    ReasonRequest { reason: reason.to_owned() }
}

/// A name as one segment of a path.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}
