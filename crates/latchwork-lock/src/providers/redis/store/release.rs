//! Releases: those that are waited for, and those of dropped guards (L21).
//!
//! The response to a release contains the grants of waiters of this process, so a release is never
//! abandoned: its response is handled also if nobody waits for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use redis::Value;

use super::Store;
use crate::providers::redis::connection::BACKGROUND;
use crate::providers::redis::error;
use crate::providers::redis::pipeline::response::{
    PendingCommand, ResponseHandler, ResponseSender, channel,
};
use crate::providers::redis::pipeline::{Pipeline, ResponseFuture};
use crate::providers::redis::scripts::response::Response;
use crate::providers::redis::scripts::{Command, Operation};
use crate::providers::redis::waiters::UnclaimedGrant;
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Grant, Key, Moment, Result};

/// How often a deferred release is tried while the server is away; then the lease expires.
const MAX_TRIES: u32 = 8;

const RELEASING: &str = "releasing";

/// A release that was sent.
#[derive(Clone)]
struct SentRelease {
    store: Arc<Store>,
    during: &'static str,
    key: Key,
    sent_at: Moment,
}

impl SentRelease {
    /// Delivers the grants of a response; returns whether the lease was held.
    fn apply(&self, response: &Response) -> Result<bool> {
        let released = response.release(self.during)?;
        let Store { clock, waiters, .. } = &*self.store;
        let now = clock.now();
        if let Some(left) = released.expires_in {
            waiters.set_expiry(&self.key, now.after(left));
        }
        for (id, grant) in released.granted {
            // The ttl started in the server, after the release was sent.
            let grant = Grant { trusted_from: Some(self.sent_at), ..grant };
            waiters.deliver_grant(id, grant, now);
        }
        if !released.held && response.repeated {
            return Err(error::reply_lost(self.during));
        }
        Ok(released.held)
    }
}

impl Store {
    /// Releases a lease, or leaves the queue. True if it was held; an error if that is unknown.
    ///
    /// Cancel safety: a release that has started goes on if the future is dropped.
    pub(crate) async fn release(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
    ) -> Result<bool> {
        let (store, key) = (self.clone(), key.clone());
        let sent = SentRelease { store, during, key, sent_at: self.clock.now() };
        let command = Command::new(Operation::Release, &sent.key, id);
        let response = if self.waiters.has_waiters(&sent.key) {
            let (sender, receiver) = channel();
            let handler = HandoffRelease { sent: sent.clone(), sender };
            let pending = PendingCommand::new(command, handler);
            self.pipelines.send_now(&self.pipelines.current(), pending);
            ResponseFuture::Queued(during, receiver)
        } else {
            self.pipelines.send(during, command)
        };
        ReleaseFuture { sent, response: Some(response) }.await
    }

    /// Releases in the background, for a guard or a request that was dropped.
    pub(crate) fn release_later(self: &Arc<Self>, key: &Key, id: Id) {
        self.release_later_on(&self.pipelines.current(), key, id);
    }

    /// Releases in the background, behind everything on a pipeline.
    pub(super) fn release_later_on(self: &Arc<Self>, pipeline: &Pipeline, key: &Key, id: Id) {
        self.pending_releases.send_modify(|pending| *pending += 1);
        let (store, key, sent_at) = (self.clone(), key.clone(), self.clock.now());
        let sent = SentRelease { store, during: RELEASING, key, sent_at };
        let release = DeferredRelease { sent, id, tries: 0, done: false };
        self.pipelines.enqueue_on(pipeline, release.into_pending());
    }

    /// Completes when no deferred release is pending.
    pub(crate) async fn flush_releases(&self) {
        let mut pending = self.pending_releases.subscribe();
        let _ = pending.wait_for(|pending| *pending == 0).await;
    }

    /// Returns a grant that its waiter's task has not taken. Only the one with this fence: a command
    /// that is executed late must not end what the waiter is granted afterwards.
    pub(crate) async fn return_grant(
        &self,
        during: &'static str,
        unclaimed: &UnclaimedGrant,
    ) -> Result<()> {
        let UnclaimedGrant { waiter, fence } = unclaimed;
        self.break_lock(during, &waiter.key, Some(*fence)).await?;
        waiter.grant_returned();
        Ok(())
    }
}

/// Handles the response to a release of a key that others of this process wait for: they are granted
/// the key where the response arrives, and the task that released is woken afterwards, since they
/// have waited longer.
struct HandoffRelease {
    sent: SentRelease,
    sender: ResponseSender,
}

impl ResponseHandler for HandoffRelease {
    fn handle(self: Box<Self>, response: Result<Response>) -> Option<Waker> {
        let held = response.and_then(|response| self.sent.apply(&response));
        let value = |held: bool| Response { value: Value::Int(held.into()), repeated: false };
        self.sender.send(held.map(value))
    }
}

/// A release that is waited for. Dropped before its response, it goes on in the background.
struct ReleaseFuture {
    sent: SentRelease,
    /// `None` when there was a response.
    response: Option<ResponseFuture>,
}

impl Future for ReleaseFuture {
    type Output = Result<bool>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(response) = &mut self.response else { return Poll::Pending };
        let response = ready!(Pin::new(response).poll(cx));
        self.response = None;
        Poll::Ready(response.and_then(|response| self.sent.apply(&response)))
    }
}

impl Drop for ReleaseFuture {
    fn drop(&mut self) {
        if let Some(response) = self.response.take()
            && let Ok(runtime) = BACKGROUND.handle()
        {
            runtime.spawn(ReleaseFuture { sent: self.sent.clone(), response: Some(response) });
        }
    }
}

/// A release that nobody waits for.
struct DeferredRelease {
    sent: SentRelease,
    id: Id,
    tries: u32,
    /// Nothing is left to do.
    done: bool,
}

impl DeferredRelease {
    fn into_pending(self) -> PendingCommand {
        PendingCommand::new(Command::new(Operation::Release, &self.sent.key, self.id), self)
    }
}

impl ResponseHandler for DeferredRelease {
    fn handle(mut self: Box<Self>, response: Result<Response>) -> Option<Waker> {
        self.tries += 1;
        let error = match response {
            Ok(response) => {
                // Nobody wants to know whether it was held.
                let _ = self.sent.apply(&response);
                self.done = true;
                return None;
            }
            Err(error) => error,
        };
        if error.is_temporary()
            && self.tries < MAX_TRIES
            && let Ok(runtime) = BACKGROUND.handle()
        {
            runtime.spawn(async move {
                let mut backoff = Backoff::new(Duration::from_millis(100 << self.tries.min(4)));
                tokio::time::sleep(backoff.pause()).await;
                let store = self.sent.store.clone();
                store.pipelines.enqueue_on(&store.pipelines.current(), self.into_pending());
            });
        } else {
            self.done = true;
            let key = &self.sent.key;
            tracing::warn!(%key, %error, "a deferred release failed: the lease expires");
        }
        None
    }
}

impl Drop for DeferredRelease {
    fn drop(&mut self) {
        let store = &self.sent.store;
        if self.done || self.tries >= MAX_TRIES {
            store.pending_releases.send_modify(|pending| *pending -= 1);
            return;
        }
        // Its pipeline has ended with its runtime; the provider's own goes on.
        let (sent, id, tries) = (self.sent.clone(), self.id, self.tries + 1);
        let again = DeferredRelease { sent, id, tries, done: false };
        store.pipelines.send_in_background(again.into_pending());
    }
}
