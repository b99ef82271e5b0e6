//! Requests for a lease, and claims of a turn.

use std::sync::Arc;
use std::task::Waker;

use super::Store;
use crate::providers::redis::pipeline::Pipeline;
use crate::providers::redis::pipeline::response::{PendingCommand, ResponseHandler};
use crate::providers::redis::scripts::response::{AcquireResponse, ClaimResponse, Response};
use crate::providers::redis::scripts::{AcquireStep, Command, Operation};
use crate::providers::redis::waiters::handle::WaiterHandle;
use crate::providers::redis::waiters::waiter::LocalWaiter;
use crate::rules::Id;
use crate::{AcquireRequest, Grant, Key, Moment, Result};

impl Store {
    /// Requests a lease.
    ///
    /// Cancel safety: the caller releases if the future is dropped; see [`PendingAcquire`].
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        during: &'static str,
        request: &AcquireRequest,
        id: Id,
        step: AcquireStep,
    ) -> Result<AcquireResponse> {
        let pending = PendingAcquire::new(self, &request.key, id, None);
        let command = Command::acquire(request, id, step);
        let response = self.pipelines.send_on(&pending.pipeline, during, command).await;
        pending.disarm();
        response?.acquire(during, &*self.clock)
    }

    /// Enqueues a waiter behind others of this process. The response is handled where it arrives, so
    /// that no task is woken only to learn that it is in the queue.
    pub(crate) fn enqueue<'a>(
        self: &'a Arc<Self>,
        during: &'static str,
        request: &'a AcquireRequest,
        id: Id,
        handle: &WaiterHandle,
    ) -> PendingAcquire<'a> {
        let waiter = handle.start_request();
        let pending = PendingAcquire::new(self, &request.key, id, Some(waiter.clone()));
        let handler = EnqueueHandler { store: self.clone(), during, waiter, answered: false };
        let command = Command::acquire(request, id, AcquireStep::Behind);
        self.pipelines.send_now(&pending.pipeline, PendingCommand::new(command, handler));
        pending
    }

    /// Claims the turn of a waiter, which need not be awake.
    pub(crate) fn claim(self: &Arc<Self>, waiter: Arc<LocalWaiter>) {
        let command = Command::new(Operation::Claim, &waiter.key, waiter.id);
        let handler = ClaimHandler { store: self.clone(), waiter, sent_at: self.clock.now() };
        let pending = PendingCommand::new(command, handler);
        self.pipelines.enqueue_on(&self.pipelines.current(), pending);
    }
}

/// A request that has no response yet, and the pipeline that it uses.
///
/// A requester that drops it sends a release on the pipeline of the runtime that it is in. If that is
/// another one, the release could come before the request, which would then be granted a lease for
/// nobody. So this sends one more release on the pipeline of the request.
pub(crate) struct PendingAcquire<'a> {
    store: &'a Arc<Store>,
    key: &'a Key,
    id: Id,
    /// The waiter whose request it is, if that is handled without its task.
    waiter: Option<Arc<LocalWaiter>>,
    pipeline: Arc<Pipeline>,
    armed: bool,
}

impl<'a> PendingAcquire<'a> {
    fn new(store: &'a Arc<Store>, key: &'a Key, id: Id, waiter: Option<Arc<LocalWaiter>>) -> Self {
        PendingAcquire { store, key, id, waiter, pipeline: store.pipelines.current(), armed: true }
    }

    /// The request was answered.
    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        // Before any release is sent: if the connection is lost, a request that is still wanted is
        // repeated, and would then follow its release.
        if let Some(waiter) = &self.waiter {
            waiter.abandon();
        }
        if !Arc::ptr_eq(&self.pipeline, &self.store.pipelines.current()) {
            self.store.release_later_on(&self.pipeline, self.key, self.id);
        }
    }
}

/// Handles the response to the request of a waiter that joins the queue.
struct EnqueueHandler {
    store: Arc<Store>,
    during: &'static str,
    waiter: Arc<LocalWaiter>,
    answered: bool,
}

impl ResponseHandler for EnqueueHandler {
    fn is_wanted(&self) -> bool {
        self.waiter.is_wanted()
    }

    fn handle(mut self: Box<Self>, response: Result<Response>) -> Option<Waker> {
        self.answered = true;
        let Store { clock, waiters, .. } = &*self.store;
        match response.and_then(|response| response.acquire(self.during, &**clock)) {
            Ok(AcquireResponse::Queued(expires_in)) => {
                waiters.mark_queued(&self.waiter, expires_in, &**clock);
            }
            other => self.waiter.answer(other),
        }
        None
    }
}

impl Drop for EnqueueHandler {
    fn drop(&mut self) {
        self.waiter.request_finished(self.answered, self.during);
    }
}

/// Handles the response to a claim (L5).
struct ClaimHandler {
    store: Arc<Store>,
    waiter: Arc<LocalWaiter>,
    sent_at: Moment,
}

impl ResponseHandler for ClaimHandler {
    fn handle(self: Box<Self>, response: Result<Response>) -> Option<Waker> {
        let ClaimResponse { granted, expires_in } =
            response.map(|response| response.claim()).unwrap_or_default();
        let now = self.store.clock.now();
        if let Some(left) = expires_in {
            self.store.waiters.set_expiry(&self.waiter.key, now.after(left));
        }
        match granted {
            // The ttl started in the server, after the claim was sent.
            Some((grant, true)) => {
                let grant = Grant { trusted_from: Some(self.sent_at), ..grant };
                self.waiter.deliver_grant(grant, now);
            }
            // It failed, was late, or was a repetition whose first response was lost.
            _ => self.waiter.ask_again(),
        }
        None
    }
}
