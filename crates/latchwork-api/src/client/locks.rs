//! Locks, flows, and why something waits.

use uuid::Uuid;

use super::orders::segment;
use super::{ApiCall, Client};
use crate::{
    AcquireLock, BreakLock, BrokenLock, CancelledFlow, CheckFence, CheckedFence, ClaimLock,
    Explanation, Flow, FlowPage, HeldLock, LockInspection, LockPage, LockTurn, ReasonRequest,
    ReleaseLock, ReleasedLock, RenewedLock, ResumeLock, SignalRequest, WaitForLock,
};

impl Client {
    /// Asks for a lease in one call; its remaining time is the server's.
    pub fn acquire_lock(&self, wanted: &AcquireLock) -> ApiCall<HeldLock> {
        self.post("/v1/locks/acquire", wanted).waits(wanted.wait_ms)
    }

    /// Waits for a turn; [`claim_lock`](Self::claim_lock) confirms it.
    pub fn wait_for_lock(&self, wanted: &WaitForLock) -> ApiCall<LockTurn> {
        self.post("/v1/locks/wait", wanted).waits(wanted.wait_ms)
    }

    /// Confirms a turn. Trust in the lease counts from before this is sent.
    pub fn claim_lock(&self, claim: &ClaimLock) -> ApiCall<HeldLock> {
        self.post("/v1/locks/claim", claim)
    }

    /// Begins the ttl of a lease anew. Trust counts from before this is sent.
    pub fn renew_lock(&self, claim: &ClaimLock) -> ApiCall<RenewedLock> {
        self.post("/v1/locks/renew", claim)
    }

    /// Ends a lease, or leaves the queue.
    pub fn release_lock(&self, release: &ReleaseLock) -> ApiCall<ReleasedLock> {
        self.post("/v1/locks/release", release)
    }

    /// Goes on with a lease that was handed over.
    pub fn resume_lock(&self, resume: &ResumeLock) -> ApiCall<HeldLock> {
        self.post("/v1/locks/resume", resume)
    }

    /// Whether a fence is the latest of its key.
    pub fn check_fence(&self, check: &CheckFence) -> ApiCall<CheckedFence> {
        self.post("/v1/locks/check-fence", check)
    }

    /// Ends somebody else's lease.
    pub fn break_lock(&self, lock: &BreakLock) -> ApiCall<BrokenLock> {
        self.post("/v1/locks/break", lock)
    }

    /// The holders and waiters of a key.
    pub fn inspect_lock(&self, key: &str) -> ApiCall<LockInspection> {
        self.get(format!("/v1/locks/keys/{}", segment(key)))
    }

    /// A page of keys: `prefix`, `limit`, `after`.
    pub fn locks<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<LockPage> {
        self.find("/v1/locks", query)
    }

    /// A page of flows: `machine`, `entity`, `status`, `view`, `limit`, `after`.
    pub fn flows<N: AsRef<str>, V: AsRef<str>>(
        &self,
        query: impl IntoIterator<Item = (N, V)>,
    ) -> ApiCall<FlowPage> {
        self.find("/v1/flows", query)
    }

    /// One flow.
    pub fn flow(&self, id: Uuid) -> ApiCall<Flow> {
        self.get(format!("/v1/flows/{id}"))
    }

    /// Sends a signal to a paused flow.
    pub fn signal_flow(&self, id: Uuid, signal: &SignalRequest) -> ApiCall<Flow> {
        self.post(format!("/v1/flows/{id}/signal"), signal)
    }

    /// Cancels a flow.
    pub fn cancel_flow(&self, id: Uuid, reason: &str) -> ApiCall<CancelledFlow> {
        let reason = ReasonRequest { reason: reason.to_owned() };
        self.post(format!("/v1/flows/{id}/cancel"), &reason)
    }

    /// Tries a failed flow again.
    pub fn retry_flow(&self, id: Uuid) -> ApiCall<Flow> {
        self.post(format!("/v1/flows/{id}/retry"), &serde_json::json!({}))
    }

    /// Releases a flow from quarantine.
    pub fn release_flow(&self, id: Uuid) -> ApiCall<Flow> {
        self.post(format!("/v1/flows/{id}/release"), &serde_json::json!({}))
    }

    /// Marks a flow as due, so that a runner looks at it.
    pub fn wake_flow(&self, id: Uuid) -> ApiCall<Flow> {
        self.post(format!("/v1/flows/{id}/wake"), &serde_json::json!({}))
    }

    /// Why an order does not go on.
    pub fn explain_order(&self, id: Uuid) -> ApiCall<Explanation> {
        self.get(format!("/v1/explain/orders/{id}"))
    }

    /// Why an item does not go on.
    pub fn explain_item(&self, id: Uuid) -> ApiCall<Explanation> {
        self.get(format!("/v1/explain/items/{id}"))
    }

    /// Why a flow does not go on.
    pub fn explain_flow(&self, id: Uuid) -> ApiCall<Explanation> {
        self.get(format!("/v1/explain/flows/{id}"))
    }

    /// Who is in the way of a key.
    pub fn explain_lock(&self, key: &str) -> ApiCall<Explanation> {
        self.get(format!("/v1/explain/locks/{}", segment(key)))
    }
}
